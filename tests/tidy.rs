//! Tests of the tree itself: the architecture's rules that a compiler cannot check. Each names its reason.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tests::{files, root, text};

/// Which of our crates each crate may depend on. Decisions and numbers never meet but in the engine.
const ARROWS: &[(&str, &[&str])] = &[
    ("scheduler", &[]),
    ("kernels", &[]),
    ("files", &[]),
    ("roofline", &["kernels"]),
    ("quality", &["kernels"]),
    ("checkpoint", &["kernels", "files"]),
    ("hub", &["checkpoint", "files"]),
    ("text", &["checkpoint"]),
    ("model", &["checkpoint", "text", "roofline", "kernels"]),
    ("engine", &["scheduler", "model", "text", "checkpoint", "roofline", "kernels", "sim", "files"]),
    ("plan", &["roofline", "kernels", "scheduler", "sim"]),
    ("server", &["engine", "model", "text", "roofline", "scheduler", "plan"]),
    ("sim", &["scheduler", "files"]),
    ("launch", &["engine", "model", "text", "checkpoint", "hub", "kernels"]),
    ("load", &["sim"]),
    (
        "cli",
        &[
            "server",
            "launch",
            "engine",
            "model",
            "text",
            "checkpoint",
            "hub",
            "quality",
            "roofline",
            "kernels",
            "scheduler",
            "sim",
            "load",
            "plan",
            "files",
        ],
    ),
];

/// Every complaint at once: one failing run shows all there is to mend.
fn assert_none(reason: &str, complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{reason}\n  {}", complaints.join("\n  "));
}

fn crates() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("crates")).expect("there are crates").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// `.rs` files of a crate's `src`.
fn sources(krate: &str) -> Vec<PathBuf> {
    rust(files(&format!("crates/{krate}/src")))
}

fn rust(files: Vec<PathBuf>) -> Vec<PathBuf> {
    files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Lines of code: number and text, comments cut off. A `//` in a string cuts too, which hides nothing that is sought here.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = text(path).unwrap_or_default();
    let lines = text.lines().enumerate();
    lines.map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default().to_string())).collect()
}

/// Lines of `path` that hold one of `words`, as complaints.
fn lines_with(path: &Path, words: &[&str]) -> Vec<String> {
    let hits = code(path).into_iter().filter(|(_, line)| words.iter().any(|word| line.contains(word)));
    hits.map(|(number, line)| format!("{}:{number}: {}", path.display(), line.trim())).collect()
}

/// Names on the left of `=` in a table of a manifest.
fn table(manifest: &str, name: &str) -> Vec<String> {
    let mut inside = false;
    let mut names = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.trim() == format!("[{name}]");
        } else if inside && let Some((key, _)) = line.split_once('=') {
            names.push(key.trim().split('.').next().unwrap_or_default().to_string());
        }
    }
    names
}

fn manifest(krate: &str) -> String {
    text(format!("crates/{krate}/Cargo.toml")).expect("a crate has a manifest")
}

#[test]
fn arrows_between_crates_point_down() {
    let mut complaints = Vec::new();
    for krate in crates() {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == krate) else {
            complaints.push(format!("{krate}: not in the table of arrows"));
            continue;
        };
        let ours = table(&manifest(&krate), "dependencies").into_iter().filter(|name| crates().contains(name));
        complaints
            .extend(ours.filter(|name| !allowed.contains(&name.as_str())).map(|name| format!("{krate} -> {name}")));
    }
    assert_none("an arrow points up, or joins rooms that must not know each other (ARCHITECTURE.md)", complaints);
}

/// Every crate that `krate` compiles, itself left out: our manifests say what ours need, `Cargo.lock` what the others do (all
/// of their features and platforms, so a little too much).
fn compiled_by(krate: &str) -> BTreeSet<String> {
    let lock = text("Cargo.lock").expect("it is committed");
    let locked = |name: &str| -> Vec<String> {
        let packages = lock.split("[[package]]").filter(|package| package.contains(&format!("\nname = \"{name}\"\n")));
        let lists = packages.filter_map(|package| Some(package.split_once("dependencies = [")?.1.split_once(']')?.0));
        // An entry is a name, and its version where there are several.
        let entries = lists.flat_map(|list| list.split('"').skip(1).step_by(2));
        entries.map(|entry| entry.split(' ').next().unwrap_or_default().to_string()).collect()
    };
    let ours = crates();
    let (mut found, mut open) = (BTreeSet::new(), vec![krate.to_string()]);
    while let Some(name) = open.pop() {
        let needs = if ours.contains(&name) { table(&manifest(&name), "dependencies") } else { locked(&name) };
        open.extend(needs.into_iter().filter(|need| found.insert(need.clone())));
    }
    found
}

/// What a crate must not compile, however far below, and why.
const NOT_COMPILED: &[(&str, &[&str], &str)] = &[
    ("plan", &["ureq", "minijinja", "tokenizers", "hyper", "tokio", "rustls", "model"], "planning is arithmetic"),
    (
        "checkpoint",
        &["ureq", "minijinja", "tokenizers", "tokio"],
        "a file is read without a network, a template or a text",
    ),
    ("engine", &["ureq", "hyper", "clap"], "an engine is given its model's files"),
    ("launch", &["clap"], "a command line parses, launch resolves"),
    ("load", &["kernels", "model", "engine"], "a load is sent from the outside"),
];

#[test]
fn crates_compile_what_they_need() {
    let mut complaints = Vec::new();
    for (krate, banned, why) in NOT_COMPILED {
        let compiled = compiled_by(krate);
        assert!(compiled.contains("serde_json"), "{krate}: the walk found {compiled:?}");
        let found = banned.iter().filter(|name| compiled.contains(**name));
        complaints.extend(found.map(|name| format!("{krate} compiles {name}: {why}")));
    }
    assert_none("a room has what it needs, so that it can be read, built and reused alone", complaints);
}

#[test]
fn engine_options_are_made_in_one_place() {
    // The type and its defaults, what a recording overrides, and the place.
    let known =
        ["crates/engine/src/start.rs", "crates/engine/src/recording/format.rs", "crates/launch/src/settings.rs"];
    let all = crates().into_iter().flat_map(|krate| sources(&krate));
    let others = all.filter(|path| !known.iter().any(|known| Path::new(known) == path));
    let made = others.flat_map(|path| lines_with(&path, &["EngineOptions {", "EngineOptions::default"])).collect();
    assert_none("verbs fill launch::Settings, and Settings::options decides what they left open", made);
}

#[test]
fn the_scheduler_cannot_do_io() {
    let lib = text("crates/scheduler/src/lib.rs").expect("the scheduler exists");
    assert!(lib.contains("#![no_std]"), "the scheduler is no_std: that is what makes it deterministic");
}

#[test]
fn bugs_are_planted_by_tests_alone() {
    let mut complaints = Vec::new();
    let manifests = files("").into_iter().filter(|path| path.ends_with("Cargo.toml"));
    for path in manifests.filter(|path| path != Path::new("crates/scheduler/Cargo.toml")) {
        complaints.extend(lines_with(&path, &["planted"]));
    }
    let own = manifest("scheduler");
    if own.contains("default =") || !own.contains("planted = []") {
        complaints.push("crates/scheduler/Cargo.toml: `planted` is a feature that is off by default".into());
    }
    if !text("crates/cli/src/main.rs").is_some_and(|main| main.contains("assert!(!scheduler::BUGS_CAN_BE_PLANTED)")) {
        complaints.push("crates/cli/src/main.rs: the program refuses to be built with them".into());
    }
    assert_none("bugs can be planted in a test of the scheduler and nowhere else", complaints);
}

#[test]
fn wire_formats_stay_outside() {
    let mut complaints = Vec::new();
    for krate in ["scheduler", "kernels"] {
        let names = table(&manifest(krate), "dependencies");
        complaints.extend(
            names.into_iter().filter(|name| name.starts_with("serde")).map(|name| format!("{krate} -> {name}")),
        );
    }
    assert_none("inner types are not serialised: JSON stays at the edge", complaints);
}

#[test]
fn time_is_an_argument() {
    const MAY: [&str; 4] = ["engine", "server", "load", "cli"];
    let paths = crates().into_iter().filter(|krate| !MAY.contains(&krate.as_str())).flat_map(|krate| sources(&krate));
    let elsewhere = paths.filter(|path| path != Path::new("crates/kernels/src/limits.rs"));
    let clocks = elsewhere.flat_map(|path| lines_with(&path, &["Instant::now", "SystemTime"])).collect();
    assert_none("only engine, server, load, cli and the measurement of limits look at a clock", clocks);
}

#[test]
fn only_the_command_line_reads_the_environment() {
    let paths = crates().into_iter().filter(|krate| krate != "cli").flat_map(|krate| sources(&krate));
    let reads = paths.flat_map(|path| lines_with(&path, &["env::var", "env::args", "env::home_dir"])).collect();
    assert_none("values are passed down from crates/cli/src/environment.rs and flags.rs", reads);
    let flags = sources("cli").into_iter().filter(|path| !path.ends_with("environment.rs"));
    assert_none("one file of the cli reads it", flags.flat_map(|path| lines_with(&path, &["env::var"])).collect());
}

/// Who opens something without the door in `crates/files`, and why.
const OTHER_OPENS: &[(&str, &str)] = &[
    ("crates/cli/src/environment.rs", "/dev/urandom, so many bytes"),
    ("crates/cli/src/commands/render_templates.rs", "asks the kernel: /proc"),
    ("crates/launch/src/machine.rs", "asks the kernel: /proc and /sys"),
    ("crates/kernels/src/limits.rs", "asks the kernel: /proc and /sys"),
    ("crates/kernels/src/room.rs", "asks the kernel: /proc and control groups"),
    ("crates/kernels/src/threads.rs", "asks the kernel: /sys"),
    ("crates/server/src/listen.rs", "asks the kernel: /proc"),
    ("crates/server/src/stop.rs", "asks the kernel: /proc"),
    ("crates/model/src/export/staging.rs", "a directory, to sync it"),
];

#[test]
fn files_have_one_door() {
    const WORDS: [&str; 6] =
        ["File::open(", "fs::read(", "fs::read_to_string(", "OpenOptions", "File::options(", "File::create("];
    let paths = crates().into_iter().filter(|krate| krate != "files").flat_map(|krate| sources(&krate));
    let (known, others): (Vec<PathBuf>, _) =
        paths.partition(|path| OTHER_OPENS.iter().any(|(known, _)| Path::new(known) == path));
    let opens = |path: &PathBuf| {
        // Tests at the end of a file open what they have made.
        let body = text(path).unwrap_or_default();
        let tests = body.lines().position(|line| line == "#[cfg(test)]").map_or(usize::MAX, |index| index + 1);
        let hits = code(path)
            .into_iter()
            .filter(|(number, line)| *number < tests && WORDS.iter().any(|word| line.contains(word)));
        hits.map(|(number, line)| format!("{}:{number}: {}", path.display(), line.trim())).collect::<Vec<_>>()
    };
    assert_none(
        "crates/files opens files: nothing waits at a pipe or reads a device",
        others.iter().flat_map(opens).collect(),
    );
    let idle = OTHER_OPENS
        .iter()
        .filter(|(path, _)| !known.iter().any(|known| known == Path::new(path) && !opens(known).is_empty()));
    assert_none("no longer an exception", idle.map(|(path, _)| path.to_string()).collect());
}

#[test]
fn unsafe_has_one_address() {
    let mut complaints = Vec::new();
    for krate in crates().into_iter().filter(|krate| krate != "kernels") {
        if !manifest(&krate).contains("[lints]\nworkspace = true") {
            complaints.push(format!("crates/{krate}/Cargo.toml does not take the workspace's lints"));
        }
    }
    let workspace = text("Cargo.toml").expect("there is a workspace");
    if !workspace.contains("unsafe_code = \"forbid\"") {
        complaints.push("Cargo.toml does not forbid unsafe code".into());
    }
    assert_none("unsafe code lives in kernels; everything else is forbidden to have any", complaints);
}

#[test]
fn phases_are_a_pair_of_doors() {
    let all = files("crates");
    let mut complaints = Vec::new();
    for (one, other) in [("prefill.rs", "decode.rs"), ("decode.rs", "prefill.rs")] {
        let alone = all.iter().filter(|path| path.ends_with(one) && !all.contains(&path.with_file_name(other)));
        complaints.extend(alone.map(|path| format!("{}: no {other} beside it", path.display())));
    }
    for room in ["crates/scheduler/src", "crates/kernels/src/attention"] {
        if !all.contains(&Path::new(room).join("prefill.rs")) {
            complaints.push(format!("{room} has no prefill.rs"));
        }
    }
    assert_none("each phase is a file, beside that of the other", complaints);
}

#[test]
fn a_phase_is_derived_and_never_stored() {
    let paths = rust(files("crates"));
    let fields = paths.iter().flat_map(|path| lines_with(path, &["is_prefill:", "is_decode:", "is_prompt:"])).collect();
    assert_none("phase is `Sequence::phase()`: a flag beside the lengths can contradict them", fields);
}

#[test]
fn nothing_is_left_for_later() {
    let words = [concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("db", "g!("), concat!("#[ig", "nore")];
    let found = rust(files("")).iter().flat_map(|path| lines_with(path, &words)).collect();
    assert_none("no stubs, no leftovers, no test that does not run", found);
}

#[test]
fn the_simulator_has_no_scheduler_of_its_own() {
    let found = sources("sim").into_iter().flat_map(|path| code(&path)).filter(|(_, line)| line.contains("struct"));
    let copies = found.filter(|(_, line)| line.contains("Scheduler ")).map(|(_, line)| line).collect();
    assert_none("the simulator drives the production scheduler", copies);
}

#[test]
fn every_source_file_is_compiled_and_says_what_it_is() {
    let mut complaints = Vec::new();
    for krate in crates() {
        for path in sources(&krate) {
            let body = text(&path).unwrap_or_default();
            if !body.starts_with("//!") {
                complaints.push(format!("{}: does not begin with its picture (//!)", path.display()));
            }
            if !is_named_by_its_parent(&path) {
                complaints.push(format!("{}: no module names it", path.display()));
            }
        }
    }
    assert_none("a file that nobody imports is dead, and one without a head has no reader", complaints);
}

fn is_named_by_its_parent(path: &Path) -> bool {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut directory = path.parent().expect("a file lies in a directory").to_path_buf();
    let name = match stem.as_str() {
        "lib" | "main" => return true,
        "mod" => {
            let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            directory.pop();
            name
        }
        stem => stem.to_string(),
    };
    let beside = directory.file_name().map(|name| directory.with_file_name(format!("{}.rs", name.to_string_lossy())));
    let parents = ["lib.rs", "main.rs", "mod.rs"].map(|file| directory.join(file)).into_iter().chain(beside);
    let names = |line: &str| {
        let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ").trim();
        line == format!("mod {name};") || line == format!("#[path = \"{name}.rs\"]")
    };
    parents.filter_map(text).any(|parent| parent.lines().any(names))
}

#[test]
fn cited_papers_are_in_the_list() {
    let papers = text("docs/papers.md").expect("docs/papers.md exists");
    let listed: BTreeSet<Citation> = papers.lines().filter(|line| line.starts_with("| ")).flat_map(citations).collect();
    let mut complaints = Vec::new();
    for path in rust(files("crates")) {
        let body = text(&path).unwrap_or_default();
        let comments: Vec<&str> = body.lines().map(str::trim).filter(|line| line.starts_with("//")).collect();
        let joined = comments.join(" ").replace("///", "").replace("//!", "").replace("//", "");
        let unknown = citations(&joined).into_iter().filter(|citation| !listed.contains(citation));
        complaints.extend(unknown.map(|(author, year)| format!("{}: {author} {year}", path.display())));
    }
    assert_none("a method's paper is cited where it is implemented and listed in docs/papers.md", complaints);
}

/// First author and year.
type Citation = (String, String);

/// `Kwon et al., SOSP 2023` and `Zhang & Sennrich, 2019`: the name before `et al.` or `&`, and the next year.
fn citations(text: &str) -> Vec<Citation> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut found = Vec::new();
    for (index, pair) in words.windows(2).enumerate() {
        let is_name = |word: &str| word.chars().next().is_some_and(char::is_uppercase);
        let et_al = pair[1] == "et" && words.get(index + 2).is_some_and(|word| word.starts_with("al."));
        let and = pair[1] == "&" && words.get(index + 2).is_some_and(|word| is_name(word) && word.ends_with(','));
        let author = pair[0].trim_matches(|c: char| !c.is_alphanumeric());
        if !(et_al || and) || !is_name(author) {
            continue;
        }
        let year = words[index + 2..].iter().take(5).map(|word| word.trim_matches(|c: char| !c.is_ascii_digit()));
        if let Some(year) =
            year.filter(|word| word.len() == 4).find(|word| word.starts_with("19") || word.starts_with("20"))
        {
            found.push((author.to_string(), year.to_string()));
        }
    }
    found
}

#[test]
fn citations_are_recognised() {
    let text = "as in (PagedAttention: Kwon et al., SOSP 2023). RMS norm (Zhang & Sennrich, 2019) and R & D of 2020";
    let wanted = [("Kwon", "2023"), ("Zhang", "2019")].map(|(author, year)| (author.to_string(), year.to_string()));
    assert_eq!(citations(text), wanted);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut complaints = Vec::new();
    for path in files("").into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let body = text(&path).unwrap_or_default();
        for target in links(&body).into_iter().filter(|target| !target.contains("://") && !target.starts_with('#')) {
            let file = target.split('#').next().unwrap_or_default();
            if !root().join(path.parent().unwrap_or(Path::new(""))).join(file).exists() {
                complaints.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert_none("a link to a file that is not there", complaints);
}

/// Targets of `[text](target)`.
fn links(markdown: &str) -> Vec<&str> {
    markdown.split("](").skip(1).filter_map(|rest| rest.split([')', ' ', '\n']).next()).collect()
}

#[test]
fn every_page_is_in_the_book() {
    let summary = text("docs/SUMMARY.md").expect("docs/SUMMARY.md exists");
    let pages = files("docs").into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let pages = pages.filter(|path| !path.ends_with("SUMMARY.md"));
    let page = |path: &PathBuf| path.strip_prefix("docs").expect("below docs").display().to_string();
    let lost = pages.map(|path| page(&path)).filter(|page| !links(&summary).contains(&page.as_str())).collect();
    assert_none("a page that no reader finds", lost);
}

#[test]
fn figures_have_their_numbers_beside_them() {
    let is_figure =
        |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "svg" || extension == "png");
    let figures = files("docs").into_iter().chain(files("bench"));
    let figures: Vec<PathBuf> = figures.collect();
    let bare = figures.iter().filter(is_figure).filter(|path| !root().join(path.with_extension("json")).exists());
    assert_none("a figure is drawn from committed JSON", bare.map(|path| path.display().to_string()).collect());
}

#[test]
fn flags_in_documents_exist() {
    let reference = text("docs/reference/flags.md").expect("the reference exists");
    let mut complaints = Vec::new();
    for path in files("").into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let body = text(&path).unwrap_or_default();
        for line in body.lines().filter_map(|line| line.trim_start().split_once("twostroke ").map(|(_, rest)| rest)) {
            let flags =
                line.split([' ', '`', '=', ',', ')', ']', '[']).filter(|word| word.starts_with("--") && word.len() > 2);
            let unknown = flags
                .filter(|flag| !["--help", "--version"].contains(flag) && !reference.contains(&format!("`{flag}`")));
            complaints.extend(unknown.map(|flag| format!("{}: {flag}", path.display())));
        }
    }
    assert_none("documents name flags that the reference does not have", complaints);
}

#[test]
fn commands_in_documents_exist() {
    let xtask = text("xtask/src/main.rs").expect("xtask exists");
    let mut complaints = Vec::new();
    for path in files("").into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let body = text(&path).unwrap_or_default();
        for rest in body.split("cargo xtask ").skip(1) {
            let command = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap_or_default();
            if !command.is_empty() && !xtask.contains(&format!("[\"{command}\"")) {
                complaints.push(format!("{}: cargo xtask {command}", path.display()));
            }
        }
    }
    assert_none("documents name commands that xtask does not have", complaints);
}

#[test]
fn nothing_depends_on_one_machine() {
    // Written in two pieces, so that this file does not complain about itself.
    let paths = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];
    let mut complaints = Vec::new();
    for path in files("").into_iter().filter(|path| !path.starts_with("models") && !path.ends_with("Cargo.lock")) {
        let body = text(&path).unwrap_or_default();
        let lines = body.lines().enumerate().filter(|(_, line)| paths.iter().any(|word| holds_path(line, word)));
        complaints.extend(lines.map(|(index, line)| format!("{}:{}: {}", path.display(), index + 1, line.trim())));
    }
    assert_none("an absolute path of somebody's machine", complaints);
}

/// Whether `line` holds `word` where a path begins.
fn holds_path(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_ascii_alphanumeric() && !"._-/}$".contains(c))
    })
}

#[test]
fn licences_are_there() {
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        assert!(text(file).is_some_and(|text| text.len() > 200), "{file}");
    }
    assert!(text("Cargo.toml").expect("a workspace").contains("license = \"Apache-2.0 OR MIT\""));
}

/// Lengths are a trend to watch, not a limit: long files may be right.
#[test]
fn the_longest_files_are_told() {
    let mut lengths: Vec<(usize, PathBuf)> =
        rust(files("")).into_iter().map(|path| (text(&path).unwrap_or_default().lines().count(), path)).collect();
    lengths.sort();
    let total: usize = lengths.iter().map(|(lines, _)| lines).sum();
    println!("{total} lines of Rust in {} files; the longest:", lengths.len());
    for (lines, path) in lengths.iter().rev().take(8) {
        println!("{lines:>6} {}", path.display());
    }
    assert!(total > 0, "there is source code");
}
