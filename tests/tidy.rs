//! Tests of the tree itself: the architecture's rules that a compiler cannot check. Each names its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tests::{files, root, text};

/// Which of our crates each crate may depend on. Decisions and numbers never meet but in the engine.
const ARROWS: &[(&str, &str)] = &[
    ("protocol", ""),
    ("scheduler", "protocol"),
    ("ledger", "protocol scheduler"),
    ("residency", "protocol"),
    ("kernels", ""),
    ("files", ""),
    ("vulkan", "kernels figures"),
    ("roofline", "kernels"),
    ("quality", "kernels"),
    ("figures", ""),
    ("testing", "protocol scheduler figures"),
    ("grammar", "text"),
    ("kv-events", "protocol scheduler"),
    ("receipt", "protocol"),
    ("dialect", ""),
    ("checkpoint", "kernels files"),
    ("hub", "checkpoint files"),
    ("text", "checkpoint"),
    ("model", "protocol checkpoint text roofline kernels"),
    ("rates", "protocol scheduler model kernels roofline files"),
    ("observe", "protocol rates scheduler ledger roofline figures"),
    ("speculate", "protocol scheduler model text checkpoint kernels"),
    (
        "engine",
        "protocol observe speculate rates scheduler ledger model text checkpoint roofline kernels vulkan files figures \
         grammar receipt",
    ),
    ("replay", "protocol engine sim ledger scheduler model checkpoint files"),
    ("plan", "roofline kernels scheduler figures"),
    ("telemetry", "protocol engine roofline scheduler plan"),
    ("transport", "engine telemetry text files"),
    ("batches", "telemetry transport files"),
    (
        "server",
        "protocol batches dialect engine telemetry transport files hub replay model text residency roofline scheduler \
         plan figures",
    ),
    ("sim", "protocol scheduler files figures"),
    ("launch", "engine model text checkpoint hub kernels"),
    (
        "bench",
        "protocol launch engine model text grammar checkpoint roofline kernels scheduler sim plan ledger figures",
    ),
    (
        "cli",
        "protocol server batches bench dialect launch replay engine model text checkpoint hub \
         quality rates residency roofline kernels vulkan scheduler sim plan files figures kv-events receipt",
    ),
    ("python", "cli engine text scheduler"),
];

/// Arrows that point up, in tests alone. The chaos over the engine writes recordings and has them replayed: a file
/// passes between the two, and no type.
const UP_IN_TESTS: [(&str, &str); 8] = [
    ("vulkan", "model"),
    ("vulkan", "checkpoint"),
    ("sim", "ledger"),
    ("engine", "replay"),
    ("model", "quality"),
    ("plan", "model"),
    ("server", "kernels"),
    ("server", "checkpoint"),
];

/// The tables of a manifest that name other crates.
const DEPENDENCIES: [&str; 4] =
    ["dependencies", "dev-dependencies", "build-dependencies", "target.'cfg(loom)'.dev-dependencies"];

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

/// Files under `src` that are compiled into tests alone.
const TESTS_IN_SRC: [&str; 7] = [
    "crates/bench/src/load/tests",
    "crates/engine/src/chaos.rs",
    "crates/engine/src/chaos/",
    "crates/launch/src/tests.rs",
    "crates/ledger/src/tests",
    "crates/scheduler/src/kv/tests.rs",
    "crates/testing/src/",
];

/// `.rs` files of a crate's `src`, those of tests left out.
fn sources(krate: &str) -> Vec<PathBuf> {
    let mut all = rust(files(&format!("crates/{krate}/src")));
    all.retain(|path| !TESTS_IN_SRC.iter().any(|tests| path.to_string_lossy().starts_with(tests)));
    all
}

fn rust(files: Vec<PathBuf>) -> Vec<PathBuf> {
    files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Lines of code: number and text, comments cut off. A `//` in a string cuts too, which hides nothing that is sought
/// here.
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
        for kind in DEPENDENCIES {
            let ours = table(&manifest(&krate), kind).into_iter().filter(|name| crates().contains(name));
            let is_for_tests = |name: &str| name == "testing" || UP_IN_TESTS.contains(&(&krate, name));
            let ours = ours.filter(|name| kind != "dev-dependencies" || !is_for_tests(name));
            complaints.extend(
                ours.filter(|name| !allowed.split(' ').any(|other| other == name))
                    .map(|name| format!("{krate} -> {name}")),
            );
        }
    }
    assert_none("an arrow points up, or joins rooms that must not know each other (ARCHITECTURE.md)", complaints);
    let architecture = text("ARCHITECTURE.md").expect("there is a plan of the house");
    let unmapped = crates().into_iter().filter(|krate| !architecture.contains(&format!("\ncrates/{krate} "))).collect();
    assert_none("a crate that the code map of ARCHITECTURE.md does not have", unmapped);
}

/// Every manifest, with the directory of its package.
fn packages() -> Vec<(PathBuf, String)> {
    let manifests = files("").into_iter().filter(|path| path.file_name().is_some_and(|name| name == "Cargo.toml"));
    let packages = manifests.filter_map(|path| Some((path.parent()?.to_path_buf(), text(&path)?)));
    packages.filter(|(directory, _)| directory != Path::new("")).collect()
}

#[test]
fn every_dependency_is_used() {
    let mut complaints = Vec::new();
    let mut named = BTreeSet::new();
    for (directory, manifest) in packages() {
        let mut all = rust(files(&directory.to_string_lossy()));
        let borrowed = all.iter().flat_map(|path| borrowed(path)).collect::<Vec<_>>();
        all.extend(borrowed);
        for kind in DEPENDENCIES {
            for name in table(&manifest, kind) {
                named.insert(name.clone());
                // A test's dependency is a dev-dependency, so that it is not built for users.
                let may_use = |path: &&PathBuf| kind != "dependencies" || !path.starts_with(directory.join("tests"));
                let word = name.replace('-', "_");
                let uses = |path: &PathBuf| code(path).iter().any(|(_, line)| names_crate(line, &word));
                if !all.iter().filter(may_use).any(uses) {
                    complaints.push(format!("{}/Cargo.toml: {name}", directory.display()));
                }
            }
        }
    }
    let workspace = table(&text("Cargo.toml").expect("there is a workspace"), "workspace.dependencies");
    let idle = workspace.into_iter().filter(|name| !named.contains(name)).map(|name| format!("Cargo.toml: {name}"));
    complaints.extend(idle);
    assert_none("an unused dependency is read, built and audited for nothing", complaints);
}

/// Files of other packages that `path` compiles as modules of its own.
fn borrowed(path: &Path) -> Vec<PathBuf> {
    let lines = code(path).into_iter();
    let names =
        lines.filter_map(|(_, line)| Some(line.trim().strip_prefix("#[path = \"")?.strip_suffix("\"]")?.to_owned()));
    names.map(|name| path.with_file_name(name)).collect()
}

/// Whether a line of code names a crate: `word::`, `use word;` or `use word as`.
fn names_crate(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = &line[at + word.len()..];
        before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
            && (after.starts_with("::") || line.trim_start().starts_with("use ") && after.starts_with([';', ' ']))
    })
}

#[test]
fn a_public_type_has_a_name_of_its_own() {
    let mut homes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for krate in crates() {
        for path in sources(&krate) {
            let tests = tests_begin(&path);
            for (_, line) in code(&path).into_iter().filter(|(number, _)| *number < tests) {
                let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
                if line.trim_start().starts_with("pub ")
                    && let Some(at) = words.iter().position(|word| KINDS.contains(word))
                    && let Some(name) = words.get(at + 1)
                {
                    homes.entry((*name).to_owned()).or_default().insert(krate.clone());
                }
            }
        }
    }
    let twice: BTreeMap<&String, &BTreeSet<String>> = homes.iter().filter(|(_, homes)| homes.len() > 1).collect();
    let told = |homes: &BTreeSet<String>| homes.iter().cloned().collect::<Vec<_>>().join(", ");
    assert_none(
        "a second public type of one name",
        twice.iter().map(|(name, homes)| format!("{name}: {}", told(homes))).collect(),
    );
}

/// What declares a type.
const KINDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// The line from which a file has its own tests.
fn tests_begin(path: &Path) -> usize {
    let body = text(path).unwrap_or_default();
    body.lines().position(|line| line == "#[cfg(test)]").map_or(usize::MAX, |index| index + 1)
}

/// Lines of comments beyond 120 columns that there were when the rule was made; the number only falls.
const WIDE: usize = 500;

#[test]
fn comments_fit_the_page() {
    const WIDTH: usize = 120;
    const HARD: usize = 130;
    let (mut wide, mut complaints) = (0, Vec::new());
    for path in rust(files("")) {
        let mut is_picture = false;
        for (index, line) in text(&path).unwrap_or_default().lines().enumerate() {
            let Some(words) = line.trim_start().strip_prefix("//") else {
                is_picture = false;
                continue;
            };
            let words = words.trim_start_matches(['/', '!']).trim_start();
            is_picture ^= words.starts_with("```");
            // Pictures, tables and addresses have no place to be broken at.
            let length = line.chars().count();
            if length <= WIDTH || is_picture || words.starts_with('|') || line.contains("://") {
                continue;
            }
            wide += 1;
            if length > HARD {
                complaints.push(format!("{}:{}: {length}", path.display(), index + 1));
            }
        }
    }
    assert_none("rustfmt does not wrap comments: 120 columns, and never more than 130", complaints);
    assert!(wide <= WIDE, "{wide} lines of comments have more than {WIDTH} columns, and there were {WIDE}");
    println!("{wide} lines of comments have more than {WIDTH} columns");
}

#[test]
fn rows_of_faults_are_in_the_list() {
    let faults = text("docs/faults.md").expect("docs/faults.md exists");
    let row = |line: &str| line.strip_prefix("| ")?.split(' ').next()?.parse::<u32>().ok();
    let listed: BTreeSet<u32> = faults.lines().filter_map(row).collect();
    let mut complaints = Vec::new();
    let tests = ["tests", "crates/server/tests"].into_iter().flat_map(files);
    for path in rust(tests.collect()).into_iter().filter(|path| path != Path::new("tests/tidy.rs")) {
        let body = text(&path).unwrap_or_default();
        for (index, line) in body.lines().enumerate() {
            let named = ["// row ", "\"row ", "/// Row "].into_iter().filter_map(|mark| line.split_once(mark));
            let numbers = named.filter_map(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
            let lost = numbers.filter(|number| !listed.contains(number));
            complaints.extend(lost.map(|number: u32| format!("{}:{}: row {number}", path.display(), index + 1)));
        }
    }
    assert_none("a row that docs/faults.md does not have", complaints);
}

/// With `autotests = false` a file that no module names is not compiled, and its tests never run.
#[test]
fn every_file_of_tests_is_compiled() {
    let is_named = |main: &str, name: &str| main.lines().any(|line| line == format!("mod {name};"));
    let mut lost = Vec::new();
    for krate in crates() {
        let directory = format!("crates/{krate}/tests");
        let Some(main) = text(format!("{directory}/main.rs")) else { continue };
        for path in files(&directory) {
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            let is_direct = path.parent() == Some(Path::new(&directory));
            let is_rust = path.extension().is_some_and(|extension| extension == "rs");
            if is_direct && is_rust && name != "main" && !is_named(&main, name) {
                lost.push(path.display().to_string());
            }
        }
    }
    assert_none("a file of tests that tests/main.rs does not name", lost);
}

/// Tests that look at a clock, and why that says nothing about the machine.
const CLOCKS_IN_TESTS: &[(&str, &str)] = &[
    ("tests/cli/terminal.rs", "patience"),
    ("crates/server/tests/http/live.rs", "patience"),
    ("tests/cli/numbers.rs", "hostile numbers: a minute for what takes a second"),
    ("tests/cli/templates.rs", "hostile templates: two minutes for what takes seconds"),
    ("crates/files/tests/door.rs", "a pipe would wait forever"),
    ("crates/model/tests/gguf_bad_files.rs", "hostile files: a file that claims 2^60 elements would never end"),
    ("crates/text/tests/hostile_tokenizers.rs", "hostile files: thirty times what is promised"),
    ("crates/replay/tests/recording.rs", "a sum of times is no longer than the time in which they passed"),
    ("crates/server/tests/http/requests.rs", "the wall clock that a list's times are held against"),
    ("crates/scheduler/tests/chaos/main.rs", "how long to go on, and rates that are printed"),
];

#[test]
fn no_time_is_a_tests_assertion() {
    let crates = crates().into_iter().flat_map(|krate| files(&format!("crates/{krate}/tests")));
    // These two are programs: the first holds hostile inputs against bounds, the second runs for an hour.
    let programs = ["tests/hostile", "tests/soak"];
    let own = files("tests").into_iter().filter(|path| !programs.iter().any(|program| path.starts_with(program)));
    let others = rust(crates.chain(own).collect()).into_iter().filter(|path| path != Path::new("tests/tidy.rs"));
    let (known, others): (Vec<PathBuf>, _) =
        others.partition(|path| CLOCKS_IN_TESTS.iter().any(|(known, _)| Path::new(known) == path));
    let looks = |path: &PathBuf| lines_with(path, &["Instant::now", "SystemTime::now", ".elapsed()"]);
    let found = others.iter().flat_map(looks).collect();
    assert_none("a busy machine is slow: wait for an event, or pass the time in", found);
    let idle = CLOCKS_IN_TESTS
        .iter()
        .filter(|(path, _)| !known.iter().any(|known| known == Path::new(path) && !looks(known).is_empty()));
    assert_none("no longer an exception", idle.map(|(path, _)| path.to_string()).collect());
}

/// Who makes a `ValidatedRequest`: validation.
const DOORS: [&str; 1] = ["crates/engine/src/validate.rs"];

#[test]
fn requests_are_validated_at_one_door() {
    let paths: Vec<PathBuf> = crates().iter().flat_map(|krate| sources(krate)).collect();
    let makes = |path: &PathBuf| -> Vec<String> {
        let lines = lines_with(path, &["ValidatedRequest {"]).into_iter();
        lines.filter(|line| !["struct ", "impl ", " for ", "-> "].iter().any(|word| line.contains(word))).collect()
    };
    let is_door = |path: &&PathBuf| DOORS.iter().any(|door| Path::new(door) == path.as_path());
    let elsewhere = paths.iter().filter(|path| !is_door(path)).flat_map(makes).collect();
    assert_none("whatever API a request came through, crates/engine/src/validate.rs has checked it", elsewhere);
    let idle = DOORS.iter().filter(|door| !paths.iter().any(|path| path == Path::new(door) && !makes(path).is_empty()));
    assert_none("no longer makes one", idle.map(|door| (*door).to_owned()).collect());
}

/// Channels and lines without a bound of their own, and what bounds what is in them.
const UNBOUNDED: &[(&str, &str)] = &[
    (
        "crates/cli/src/commands/serve.rs",
        "events of the prefix cache: the thread that sends them to routers waits for none",
    ),
    ("crates/cli/src/commands/top.rs", "keys of a person"),
    (
        "crates/engine/src/output.rs",
        "tokens of a request: the length of its answers; the server bounds their bytes by key",
    ),
    (
        "crates/engine/src/handoff/prefill_server.rs",
        "blocks: their bytes come out of a budget, and wait where there is none",
    ),
    ("crates/engine/src/start.rs", "commands: places of the queue are counted before a request is sent"),
    (
        "crates/engine/src/tiers.rs",
        "blocks: the scheduler pins both ends of every transfer, so no more than the pool has",
    ),
    ("crates/text/src/chat_template/child.rs", "one frame, asked for"),
];

#[test]
fn what_has_no_bound_of_its_own_is_known() {
    let paths: Vec<PathBuf> = crates().iter().flat_map(|krate| sources(krate)).collect();
    let makes = |path: &PathBuf| {
        let tests = tests_begin(path);
        let lines = code(path).into_iter().filter(|(number, _)| *number < tests);
        // One answer through a `oneshot` is bounded by being one.
        let makes = lines.filter(|(_, line)| {
            let is_unbounded =
                ["unbounded_channel()", "mpsc::channel()", " channel()"].iter().any(|word| line.contains(word));
            is_unbounded && !line.contains("oneshot::")
        });
        makes.map(|(number, line)| format!("{}:{number}: {}", path.display(), line.trim())).collect::<Vec<_>>()
    };
    let (known, others): (Vec<&PathBuf>, Vec<&PathBuf>) =
        paths.iter().partition(|path| UNBOUNDED.iter().any(|(known, _)| Path::new(known) == path.as_path()));
    assert_none(
        "a queue without a limit, or with one that is not written down",
        others.into_iter().flat_map(makes).collect(),
    );
    let idle = UNBOUNDED
        .iter()
        .filter(|(path, _)| !known.iter().any(|known| known.as_path() == Path::new(path) && !makes(known).is_empty()));
    assert_none("no longer an exception", idle.map(|(path, _)| path.to_string()).collect());
}

/// The crates that a lock file has as dependencies of `name`.
fn locked(lock: &str, name: &str) -> Vec<String> {
    let packages = lock.split("[[package]]").filter(|package| package.contains(&format!("\nname = \"{name}\"\n")));
    let lists = packages.filter_map(|package| Some(package.split_once("dependencies = [")?.1.split_once(']')?.0));
    // An entry is a name, and its version where there are several.
    let entries = lists.flat_map(|list| list.split('"').skip(1).step_by(2));
    entries.map(|entry| entry.split(' ').next().unwrap_or_default().to_string()).collect()
}

/// Every crate that `krate` compiles, itself left out: our manifests say what ours need, `Cargo.lock` what the others
/// do (all of their features and platforms, so a little too much).
fn compiled_by(krate: &str) -> BTreeSet<String> {
    let lock = text("Cargo.lock").expect("it is committed");
    let ours = crates();
    let (mut found, mut open) = (BTreeSet::new(), vec![krate.to_string()]);
    while let Some(name) = open.pop() {
        let needs = if ours.contains(&name) { table(&manifest(&name), "dependencies") } else { locked(&lock, &name) };
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
    ("engine", &["ureq", "hyper", "clap", "sim"], "an engine is given its model's files, and imagines nothing"),
    ("launch", &["clap"], "a command line parses, launch resolves"),
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
fn every_lock_file_has_what_crates_need() {
    let mut complaints = Vec::new();
    for path in ["fuzz/Cargo.lock", "guards/Cargo.lock"] {
        let lock = text(path).expect("it is committed");
        for krate in crates().iter().filter(|krate| lock.contains(&format!("\nname = \"{krate}\"\n"))) {
            let (needs, locked) = (table(&manifest(krate), "dependencies"), locked(&lock, krate));
            complaints.extend(
                needs.iter().filter(|need| !locked.contains(need)).map(|need| format!("{path}: {krate}: {need}")),
            );
        }
    }
    assert_none("not in a lock file: cargo metadata --manifest-path DIR/Cargo.toml", complaints);
}

#[test]
fn a_load_is_sent_from_the_outside() {
    const INSIDE: [&str; 5] = ["engine::", "kernels::", "model::", "scheduler::", "launch::"];
    let paths = rust(files("crates/bench/src/load")).into_iter();
    let found = paths.flat_map(|path| lines_with(&path, &INSIDE)).collect();
    assert_none("bench-serve measures what every server shows, and ours has no door of its own", found);
}

#[test]
fn engine_options_are_made_in_one_place() {
    // The type and its defaults, what a recording and a receipt override, and the place.
    let known = [
        "crates/engine/src/options.rs",
        "crates/engine/src/start.rs",
        "crates/engine/src/replaying.rs",
        "crates/launch/src/settings.rs",
    ];
    let known = [&known[..], &["crates/engine/src/verify/verifier.rs"]].concat();
    let all = crates().into_iter().flat_map(|krate| sources(&krate));
    let others = all.filter(|path| !known.iter().any(|known| Path::new(known) == path));
    let lines = others.flat_map(|path| lines_with(&path, &["EngineOptions {", "EngineOptions::default"]));
    let made = lines.filter(|line| !line.contains("-> EngineOptions {")).collect();
    assert_none("verbs fill launch::Settings, and Settings::options decides what they left open", made);
}

#[test]
fn scheduler_and_ledger_cannot_do_io() {
    for krate in ["scheduler", "ledger"] {
        let lib = text(format!("crates/{krate}/src/lib.rs")).expect("it exists");
        assert!(lib.contains("#![no_std]"), "the {krate} is no_std: that is what makes it deterministic");
        let product = |path: &PathBuf| {
            let tests = tests_begin(path);
            let lines = code(path).into_iter().filter(|(number, _)| *number < tests);
            let back = lines.filter(|(_, line)| line.contains("extern crate std") || names_crate(line, "std"));
            back.map(|(number, line)| format!("{}:{number}: {}", path.display(), line.trim())).collect::<Vec<_>>()
        };
        assert_none("std comes back through the window", sources(krate).iter().flat_map(product).collect());
    }
}

#[test]
fn bugs_are_planted_by_tests_alone() {
    let manifests = files("").into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let sources = crates().into_iter().flat_map(|krate| sources(&krate));
    let found = manifests.chain(sources).flat_map(|path| lines_with(&path, &["planted", "Bug::"]));
    // The manifest names the binaries of its tests.
    let found = found.filter(|line| !line.starts_with("crates/scheduler/Cargo.toml:")).collect();
    assert_none("no source speaks of bugs: they are mutations of a copy (crates/scheduler/tests/planted)", found);
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
    const MAY: [&str; 8] = ["engine", "server", "telemetry", "transport", "batches", "bench", "cli", "kv-events"];
    let paths = crates().into_iter().filter(|krate| !MAY.contains(&krate.as_str())).flat_map(|krate| sources(&krate));
    let measures = [
        "crates/kernels/src/limits.rs",
        "crates/kernels/src/cpu_time.rs",
        "crates/kernels/src/threads/sync.rs",
        "crates/rates/src/calibrate.rs",
        "crates/speculate/src/medusa.rs",
        "crates/residency/src/manager.rs",
        "crates/vulkan/src/probe.rs",
    ];
    let elsewhere = paths.filter(|path| !measures.iter().any(|file| path == Path::new(file)));
    let clocks = elsewhere.flat_map(|path| lines_with(&path, &["Instant::now", "SystemTime"])).collect();
    assert_none(
        "only engine, server, telemetry, transport, batches, bench, cli, kv-events, the manager of models and the measurements of limits and steps look at a clock",
        clocks,
    );
}

#[test]
fn only_the_command_line_reads_the_environment() {
    let paths = crates().into_iter().filter(|krate| krate != "cli").flat_map(|krate| sources(&krate));
    let reads = paths.flat_map(|path| lines_with(&path, &["env::var", "env::args", "env::home_dir"])).collect();
    assert_none("values are passed down from crates/cli/src/environment.rs and flags.rs", reads);
    let flags = sources("cli").into_iter().filter(|path| !path.ends_with("environment.rs"));
    assert_none("one file of the cli reads it", flags.flat_map(|path| lines_with(&path, &["env::var"])).collect());
}

/// Who opens something without `crates/files`, and why.
const OTHER_OPENS: &[(&str, &str)] = &[
    ("crates/cli/src/commands/render_templates.rs", "asks the kernel: /proc"),
    ("crates/launch/src/machine.rs", "asks the kernel: /proc and /sys"),
    ("crates/kernels/src/cpu_time.rs", "asks the kernel: /proc"),
    ("crates/kernels/src/limits/reading.rs", "asks the kernel: /sys"),
    ("crates/kernels/src/memory_limits.rs", "asks the kernel: /proc and control groups"),
    ("crates/kernels/src/threads/cpus.rs", "asks the kernel: /sys"),
    ("crates/kernels/src/threads/nodes.rs", "asks the kernel: /sys"),
    ("crates/kernels/src/threads/steal.rs", "asks the kernel: /proc"),
    ("crates/transport/src/listen.rs", "asks the kernel: /proc"),
    ("crates/transport/src/stop.rs", "asks the kernel: /proc"),
    ("crates/model/src/export/staging.rs", "a result in the making, to lock, write and sync it"),
];

#[test]
fn files_have_one_door() {
    const WORDS: [&str; 7] = [
        "File::open(",
        "fs::read(",
        "fs::read_to_string(",
        "fs::write(",
        "OpenOptions",
        "File::options(",
        "File::create(",
    ];
    let paths = crates().into_iter().filter(|krate| krate != "files").flat_map(|krate| sources(&krate));
    let (known, others): (Vec<PathBuf>, _) =
        paths.partition(|path| OTHER_OPENS.iter().any(|(known, _)| Path::new(known) == path));
    let opens = |path: &PathBuf| {
        // Tests at the end of a file open what they have made.
        let tests = tests_begin(path);
        let hits = code(path)
            .into_iter()
            .filter(|(number, line)| *number < tests && WORDS.iter().any(|word| line.contains(word)));
        hits.map(|(number, line)| format!("{}:{number}: {}", path.display(), line.trim())).collect::<Vec<_>>()
    };
    assert_none(
        "crates/files opens files: nothing waits at a pipe, reads a device or cuts a file that it did not write",
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
    // Workspaces of their own: programs for developers, without a lint table to take.
    let apart = ["crates/kernels", "crates/vulkan", "fuzz", "guards"];
    for (directory, manifest) in packages() {
        if !apart.contains(&&*directory.to_string_lossy()) && !manifest.contains("[lints]\nworkspace = true") {
            complaints.push(format!("{}/Cargo.toml does not take the workspace's lints", directory.display()));
        }
    }
    let workspace = text("Cargo.toml").expect("there is a workspace");
    if !workspace.contains("unsafe_code = \"forbid\"") {
        complaints.push("Cargo.toml does not forbid unsafe code".into());
    }
    assert_none("unsafe code lives in kernels and vulkan; everything else is forbidden to have any", complaints);
}

#[test]
fn one_place_asks_for_the_machine() {
    let mut others = rust(files("crates/kernels/src"));
    others.retain(|path| !path.starts_with("crates/kernels/src/arch"));
    let words = ["target_arch", "arch::x86_64", "arch::aarch64", "arch::plain"];
    let found = others.iter().flat_map(|path| lines_with(path, &words)).collect();
    assert_none("a machine's code is in kernels/src/arch; all other code calls arch::native", found);
}

#[test]
fn no_instruction_rounds_in_another_way() {
    // Of AArch64: sums of products that round to odd or as a mode says, halves, and estimates.
    let words = ["bfdot", "bfmmla", "bfmopa", "fmlal", "fmlal2", "frecpe", "frecps", "frsqrte", "frsqrts"];
    let is_refused = |line: &str| {
        let line = line.to_lowercase();
        line.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| words.contains(&word))
    };
    assert!(is_refused("asm!(\"bfdot {c:v}.4s\")") && !is_refused("asm!(\"bfmlalb {c:v}.4s\")"));
    let lines = rust(files("crates/kernels/src")).into_iter().flat_map(|path| {
        code(&path).into_iter().map(move |(number, line)| (format!("{}:{number}", path.display()), line))
    });
    let found = lines.filter(|(_, line)| is_refused(line)).map(|(at, line)| format!("{at}: {}", line.trim())).collect();
    assert_none("these instructions do not round as the definitions do: multiply by bfmlalb, bfmlalt or fmla", found);
}

#[test]
fn phases_are_a_pair_of_doors() {
    let all = files("crates");
    let mut complaints = Vec::new();
    for (one, other) in [("prefill.rs", "decode.rs"), ("decode.rs", "prefill.rs")] {
        let alone = all.iter().filter(|path| path.ends_with(one) && !all.contains(&path.with_file_name(other)));
        complaints.extend(alone.map(|path| format!("{}: no {other} beside it", path.display())));
    }
    if !all.iter().any(|path| path == Path::new("crates/scheduler/src/prefill.rs")) {
        complaints.push("crates/scheduler/src has no prefill.rs".into());
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
    // `cargo xtask test --all` runs the long ones.
    let is_long = |line: &String| line.contains(concat!("#[ig", "nore = \"long: "));
    let sources = rust(files(""));
    let found = sources.iter().flat_map(|path| lines_with(path, &words)).filter(|line| !is_long(line)).collect();
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
    assert_none("a file that is not imported is dead, and one without a head has no reader", complaints);
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
    // What follows are flags of others, which are not ours.
    let reference = reference.split("\n## Flags of vLLM").next().expect("a first part");
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
fn routes_are_in_the_guide() {
    let guide = text("docs/guide/serve.md").expect("the guide exists");
    let routes = text("crates/server/src/routes.rs").expect("the routes exist");
    let routes = routes.lines().filter_map(|line| line.trim().strip_prefix("(Method::")?.split('"').nth(1));
    // A parameter of a path is written without its star; the page's own files are the page.
    let routes = routes.map(|route| route.replace("{*", "{")).filter(|route| !route.contains('.'));
    let wanted: BTreeSet<String> = routes.collect();
    assert!(wanted.len() > 40, "they are found: {wanted:?}");
    let lost = wanted
        .into_iter()
        .filter(|name| !guide.contains(&format!("`{name}`")) && !guide.contains(&format!(" {name}`")));
    assert_none("a route that docs/guide/serve.md does not name", lost.collect());
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
    assert_none("an absolute path of one machine", complaints);
}

/// Whether `line` holds `word` where a path begins.
fn holds_path(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_ascii_alphanumeric() && !"._-/}$".contains(c))
    })
}

#[test]
fn nothing_that_was_fetched_lies_here() {
    // The largest of ours is the model that ships, with some eight megabytes.
    const MOST_BYTES: u64 = 12 << 20;
    let is_package =
        |path: &Path| path.extension().is_some_and(|end| ["whl", "gz", "tar", "zip"].iter().any(|e| end == *e));
    let bytes = |path: &Path| std::fs::metadata(root().join(path)).map_or(0, |file| file.len());
    let fetched = files("").into_iter().filter(|path| is_package(path) || bytes(path) > MOST_BYTES);
    assert_none("a package or weights of others", fetched.map(|path| path.display().to_string()).collect());
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

/// What lines that begin with `begin` and end with `end` name first.
fn named(path: &str, begin: &str, end: &str) -> Vec<String> {
    let text = text(path).unwrap();
    let lines = text.lines().map(str::trim).filter(|line| line.ends_with(end));
    lines.filter_map(|line| Some(line.strip_prefix(begin)?.split('"').next()?.to_string())).collect()
}

#[test]
fn the_page_of_models_names_every_class_and_every_architecture() {
    let page = text("docs/guide/models.md").unwrap();
    let classes = named("crates/model/src/config/family.rs", "architecture: \"", ",");
    let gguf = named("crates/checkpoint/src/gguf/config.rs", "(\"", "ForCausalLM\"),");
    assert!(classes.len() >= 40 && gguf.len() >= 25, "the tables are where they were: {classes:?} {gguf:?}");
    let missing = classes.into_iter().chain(gguf).filter(|name| !page.contains(&format!("`{name}`")));
    assert_none("docs/guide/models.md names what loads", missing.collect());
}
