//! Flags that name a file for a result, and what is there already: a file that is no earlier result of ours stays.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use testing::Scratch;
use tests::{Ran, Server, run, twostroke};

use crate::replay::recorded;

const FOREIGN: [&str; 4] = [
    "my notes",
    "{\"program\": \"another\"}",
    "<svg xmlns=\"http://www.w3.org/2000/svg\"><text>by twostroke</text></svg>\n",
    "my notes\nwithout an end",
];

/// A way to have a result written: the files that come, and the command. `{}` is the place that a flag names.
struct Writer {
    arguments: Vec<String>,
    /// Below the place, or the place itself.
    files: &'static [&'static str],
}

impl Writer {
    fn new(arguments: &[&str], files: &'static [&'static str]) -> Writer {
        Writer { arguments: arguments.iter().map(ToString::to_string).collect(), files }
    }

    fn run(&self, place: &Path) -> Ran {
        let place = place.display().to_string();
        let arguments: Vec<String> = self.arguments.iter().map(|argument| argument.replace("{}", &place)).collect();
        run(&mut twostroke(&arguments))
    }

    /// The file that is written at a place, one of several.
    fn file(&self, place: &Path, at: usize) -> PathBuf {
        if self.files[at].is_empty() { place.to_owned() } else { place.join(self.files[at]) }
    }
}

#[test]
fn what_is_there_already_stays_unless_it_is_ours() {
    let scratch = Scratch::new("outputs-table");
    let server = Server::start(&[]);
    let port = server.port().to_string();
    let log = recorded("outputs").display().to_string();
    let words = |line: &'static str| line.split(' ').collect::<Vec<_>>();
    let load = words("--num-prompts 2 --random-input-len 8 --random-output-len 2 --num-warmups 0");
    let bench = |more| [&["bench-serve", "--port", port.as_str()][..], &load, &words(more)].concat();
    let fleet = "sim --requests 20 --instances 2 --splits --ttft-slo 9s --tpot-slo 1s --svg {}";
    let lab = "lab --prompts 8,16,24 --positions 0,8,16 --batches 1,2,3 -r 1 -t 1 -o {}";
    let pages = &["lab.json", "lab.csv", "lab.html", "roofline.svg", "prefill.svg", "batch.svg", "position.svg"];
    let writers = [
        Writer::new(&words("plan -m 7b --machine a100 --svg {}"), &[""]),
        Writer::new(&words("sim --requests 20 --svg {}"), &["ttft.svg", "tpot.svg", "kv.svg", "load.svg"]),
        Writer::new(&words(fleet), &["splits.svg"]),
        Writer::new(&words(lab), pages),
        Writer::new(&["replay", &log, "--trace", "{}"], &[""]),
        Writer::new(&bench("--save-result --result-filename {}"), &[""]),
        Writer::new(&bench("--sweep-request-rate 20,inf --sweep-svg {}"), &[""]),
    ];
    for (number, writer) in writers.iter().enumerate() {
        let name = writer.arguments.join(" ");
        let is_directory = !writer.files[0].is_empty();
        // Nothing, and then our own.
        let place = scratch.join(format!("{number}-new"));
        for _ in 0..2 {
            let ran = writer.run(&place);
            assert_eq!(ran.code, Some(0), "{name}: {ran:?}");
        }
        for at in 0..writer.files.len() {
            let own = fs::read(writer.file(&place, at)).unwrap_or_else(|error| panic!("{name} {at}: {error}"));
            // Through a link; where the file is read-only; where a foreign one, a directory or a link to one is.
            #[allow(clippy::type_complexity, reason = "a table")]
            let cases: [(&str, &dyn Fn(&Path), bool); 8] = [
                ("own", &|file| fs::write(file, &own).unwrap(), true),
                (
                    "read-only",
                    &|file| {
                        fs::write(file, &own).unwrap();
                        fs::set_permissions(file, fs::Permissions::from_mode(0o444)).unwrap();
                    },
                    false,
                ),
                ("foreign", &|file| fs::write(file, FOREIGN[number % 4]).unwrap(), false),
                ("foreign page", &|file| fs::write(file, FOREIGN[(number + 1) % 4]).unwrap(), false),
                ("foreign picture", &|file| fs::write(file, FOREIGN[2]).unwrap(), false),
                ("directory", &|file| fs::create_dir(file).unwrap(), false),
                (
                    "link to a foreign file",
                    &|file| {
                        fs::write(file.with_extension("target"), "theirs").unwrap();
                        symlink(file.with_extension("target"), file).unwrap();
                    },
                    false,
                ),
                ("link that leads nowhere", &|file| symlink("/no/such/directory/x", file).unwrap(), false),
            ];
            // Of a writer of several files each is looked at, in the cases that differ most.
            for (index, (case, make, is_taken)) in cases.into_iter().enumerate() {
                // In a quick run each writer has a third of the cases; over its own it has written just above.
                let is_tried = tests::is_long() || index > 0 && index % 3 == number % 3;
                if at > 0 && index != 2 || at == 0 && !is_tried {
                    continue;
                }
                let place = scratch.join(format!("{number}-{at}-{index}"));
                let parent = if is_directory { place.clone() } else { scratch.to_path_buf() };
                fs::create_dir_all(&parent).unwrap();
                let file = writer.file(&place, at);
                make(&file);
                let before = (fs::read(&file).ok(), fs::symlink_metadata(&file).unwrap().file_type());
                let ran = writer.run(&place);
                if is_taken {
                    assert_eq!(ran.code, Some(0), "{name}, {case}: {ran:?}");
                    continue;
                }
                assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{name}, {case}: {ran:?}");
                assert!(ran.stderr.lines().count() == 1 && ran.stderr.contains(&file.display().to_string()), "{ran:?}");
                let after = (fs::read(&file).ok(), fs::symlink_metadata(&file).unwrap().file_type());
                assert_eq!(after, before, "{name}, {case}");
                assert_eq!(fs::read(file.with_extension("target")).ok(), (index == 6).then(|| b"theirs".to_vec()));
                if is_directory {
                    let names = fs::read_dir(&place).unwrap().count();
                    assert_eq!(
                        names,
                        if index == 6 { 2 } else { 1 },
                        "{name}, {case}: looked at before anything is written"
                    );
                }
            }
        }
        // A place that there cannot be.
        let file = scratch.join(format!("{number}-file"));
        fs::write(&file, "theirs").unwrap();
        let ran = writer.run(&file.join("below"));
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{name}: {ran:?}");
        let ran = writer.run(&file);
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{name}: {ran:?}");
        assert_eq!(fs::read(&file).unwrap(), b"theirs", "{name}");
    }
    let _ = fs::remove_file(log);
}

#[test]
fn answers_of_a_batch_are_added_to_none_but_its_own() {
    let scratch = Scratch::new("outputs-batch");
    let body = r#"{"model": "lantern", "prompt": "Once", "max_tokens": 2}"#;
    let line = format!(r#"{{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {body}}}"#);
    let input = scratch.join("input.jsonl");
    // Without a line's end: what `-o` names may be the input itself.
    fs::write(&input, &line).unwrap();
    let batch = |output: &Path| {
        run(&mut twostroke(&["batch", "-i", &input.display().to_string(), "-o", &output.display().to_string()]))
    };
    let output = scratch.join("output.jsonl");
    assert_eq!(batch(&output).code, Some(0));
    let whole = fs::read_to_string(&output).unwrap();
    // What a kill leaves of our own line is cut off, and answered again.
    for len in [0, 1, 9, 20, whole.len() - 1] {
        fs::write(&output, &whole[..len]).unwrap();
        let ran = batch(&output);
        assert_eq!(ran.code, Some(0), "{len}: {ran:?}");
        assert_eq!(fs::read_to_string(&output).unwrap().lines().count(), 1, "{len}");
    }
    for foreign in ["x", "my notes", "my notes\n", "{", "{\"id\": 1}", "{\"custom_id\":\"a\"}", "\n\nnotes", &line] {
        if whole.starts_with(foreign) {
            continue;
        }
        let file = scratch.join("foreign");
        fs::write(&file, foreign).unwrap();
        let ran = batch(&file);
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{foreign:?}: {ran:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), foreign);
    }
    let ran = batch(&input);
    assert_eq!((ran.code, fs::read_to_string(&input).unwrap()), (Some(2), line.clone()), "{ran:?}");
}

#[test]
fn what_must_be_new_is_left_alone_when_it_is_not() {
    let scratch = Scratch::new("outputs-new");
    let at = |name: &str| scratch.join(name).display().to_string();
    for (name, text) in [("foreign", "theirs"), ("empty", "")] {
        fs::write(at(name), text).unwrap();
    }
    fs::create_dir(at("directory")).unwrap();
    symlink(at("nowhere"), at("link")).unwrap();
    for name in ["foreign", "empty", "directory", "link"] {
        let path = at(name);
        for arguments in [
            &["serve", "--port", "0", "--record", &path][..],
            &["serve", "--uds", &path],
            &["quantize", "-m", "lantern", "--weights", "int8", "-o", &path],
        ] {
            let ran = run(&mut twostroke(arguments));
            assert!(ran.code.is_some_and(|code| code > 0), "{arguments:?}: {ran:?}");
            let said = ran.stderr.lines().last().unwrap_or_default();
            assert!(
                said.starts_with("twostroke: ") && (said.contains(&path) || said.contains("--record")),
                "{arguments:?}: {ran:?}"
            );
        }
        assert!(fs::symlink_metadata(&path).is_ok(), "{name}");
    }
    assert_eq!(fs::read(at("foreign")).unwrap(), b"theirs");
    assert!(!scratch.join("nowhere").exists());
}
