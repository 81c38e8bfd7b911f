//! What shells complete: verbs, flags and names of models, by the scripts of `twostroke completions` in the shells
//! themselves. Zsh and fish are tried where they are.

use std::fs;
use std::path::Path;
use std::process::Command;

use testing::Scratch;
use tests::{Ran, run, twostroke};

/// The ways to have each shell complete the line `$1` with its script; a name on a line.
const SHELLS: [(&str, &[&str], &str); 3] = [
    (
        "bash",
        &["--norc", "-c"],
        r#"source <(twostroke completions bash); compopt() { :; }
           COMP_LINE="$1" COMP_POINT=${#1} _twostroke twostroke; printf '%s\n' "${COMPREPLY[@]}""#,
    ),
    (
        "zsh",
        &["-fc"],
        // What the shell's own system of completion gives and takes.
        r#"compdef() { :; }
           _describe() { local each; for each in "${(@P)3}"; do print -r -- ${${each//\\:/@@}%%:*}; done; }
           source <(twostroke completions zsh)
           words=(${=1}); [[ $1 == *" " ]] && words+=(""); CURRENT=$#words; _clap_dynamic_completer_twostroke"#,
    ),
    ("fish", &["--no-config", "-c"], r#"twostroke completions fish | source; complete --do-complete "$argv[1]""#),
];

/// What the shell proposes for a line; `None` where there is no such shell.
fn proposed(shell: &str, cache: &Path, line: &str) -> Option<Vec<String>> {
    let (_, arguments, script) = SHELLS.iter().find(|(name, ..)| *name == shell).expect("a known shell");
    Command::new(shell).arg("--version").output().ok()?;
    let program = tests::binary().parent().expect("it lies in a directory");
    let mut command = Command::new(shell);
    command.args(*arguments).arg(script).args((shell != "fish").then_some("shell")).arg(line);
    let path = format!("{}:{}", program.display(), std::env::var("PATH").expect("there is a path"));
    let plain = twostroke::<&str>(&[]);
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.env("PATH", path).env("HF_HOME", cache).current_dir(cache);
    let Ran { stdout, stderr, .. } = run(&mut command);
    assert_eq!(stderr, "", "{shell}: {line}");
    let value = |line: &str| line.split('\t').next().unwrap_or_default().replace("@@", ":");
    Some(stdout.lines().map(value).filter(|line| !line.is_empty()).collect())
}

#[test]
fn shells_complete_verbs_flags_and_names_of_models() {
    let directory = Scratch::new("completions");
    for path in ["hub/models--fox--Lantern-GGUF/snapshots/1", "hub/models--fox--Lantern-GGUF/refs", "dens"] {
        fs::create_dir_all(directory.join(path)).expect("a directory");
    }
    fs::write(directory.join("den.gguf"), "").expect("a file");
    fs::write(directory.join("den.txt"), "").expect("a file");
    for (shell, ..) in SHELLS {
        for (line, wanted) in [
            ("twostroke qual", &["quality"][..]),
            ("twostroke serve --max-num-s", &["--max-num-seqs"]),
            ("twostroke serve --speculate ", &["auto", "off"]),
            ("twostroke serve gemma3:1", &["gemma3:1b"]),
            ("twostroke run -m llama3.2:3", &["llama3.2:3b"]),
            ("twostroke serve --model=smollm2:1", &["--model=smollm2:135m"]),
            ("twostroke serve fo", &["fox/Lantern-GGUF"]),
            ("twostroke rm fo", &["fox/Lantern-GGUF"]),
            ("twostroke rm gem", &[]),
            ("twostroke serve den", &["den.gguf", "dens/"]),
            ("twostroke completions ", &["bash", "zsh", "fish"]),
        ] {
            let Some(mut proposed) = proposed(shell, &directory, line) else {
                eprintln!("skipped: {shell} is not here");
                break;
            };
            // Bash is given what stands behind the last place where it cuts a word; zsh a directory's slash apart.
            let cuts = |name: &str| match shell {
                "bash" => name.rsplit([':', '=']).next().unwrap_or_default().to_owned(),
                "zsh" => name.trim_end_matches('/').to_owned(),
                _ => name.to_owned(),
            };
            proposed.retain(|name| !name.starts_with("--") || line.contains("--"));
            proposed.retain(|name| line.ends_with("--speculate ") <= !name.starts_with('-'));
            let mut wanted: Vec<String> = wanted.iter().map(|name| cuts(name)).collect();
            proposed.sort();
            wanted.sort();
            assert_eq!(proposed, wanted, "{shell}: {line}");
        }
    }
}

#[test]
fn a_script_asked_for_by_hand_says_what_is_wrong() {
    let mut command = twostroke::<&str>(&[]);
    for (shell, problem) in [("tcsh", "tcsh is no shell"), ("bash", "the words of a line are missing")] {
        let ran = run(command.env("TWOSTROKE_COMPLETE", shell));
        assert!(ran.code == Some(2) && ran.stderr.contains(problem), "{ran:?}");
    }
}

#[test]
fn every_verb_has_a_page_of_the_manual() {
    let directory = Scratch::new("man-pages");
    let pages = directory.text().to_owned();
    assert_eq!(run(&mut twostroke(&["man-pages", &pages])).code, Some(0));
    let reference = tests::text("docs/reference/flags.md").expect("the reference exists");
    let verbs = reference.lines().filter_map(|line| line.strip_prefix("## twostroke "));
    for verb in verbs {
        let page = fs::read_to_string(directory.join(format!("twostroke-{verb}.1"))).unwrap_or_default();
        assert!(page.contains(".SH OPTIONS") && page.contains(".SH SYNOPSIS"), "{verb}: {page}");
    }
    let ran = run(&mut twostroke(&["man-pages", "/no/such/directory"]));
    assert!(ran.code == Some(1) && ran.stderr.contains("/no/such/directory"), "{ran:?}");
}
