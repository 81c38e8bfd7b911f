//! `cargo xtask count`: the size and the structure of the tree, each figure beside what it may be at most.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::{command, root};
use crate::structure::Graph;

/// The most files that may lead to each other in a circle.
const LARGEST_CIRCLE: usize = 3;

/// Words of a private dialect, in place of which a comment, an error or a help text has the component's name or the
/// field's term. What is in brackets is the usual choice.
const BANNED: [&str; 16] = [
    "nobody",    // no one, nothing, the component
    "somebody",  // a client, another request
    "whoever",   // the caller, the client
    "whom",      // rewrite
    "anybody",   // any client
    "everybody", // all requests
    "himself",   // itself
    "he",        // it
    "his",       // its
    "him",       // it
    "guess",     // draft, propose
    "guesses",   // drafts
    "guessed",   // drafted
    "so many",   // the number
    "likeliest", // most likely, top-k
    "for ever",  // forever, without limit
];

/// One line of the table.
struct Figure {
    name: &'static str,
    value: usize,
    /// Beyond this it is an error. Lowered whenever the value falls.
    limit: usize,
}

/// Prints the table; an error names what is beyond its limit.
pub(crate) fn run() -> Result<(), String> {
    let figures = figures()?;
    println!("{:<32} {:>8} {:>8}", "", "now", "at most");
    for Figure { name, value, limit } in &figures {
        println!("{name:<32} {value:>8} {limit:>8}");
    }
    for (krate, circle) in circles()? {
        println!("circle in {krate}: {}", circle.join(", "));
    }
    let beyond: Vec<&str> = figures.iter().filter(|figure| figure.value > figure.limit).map(|each| each.name).collect();
    if beyond.is_empty() { Ok(()) } else { Err(format!("beyond the limit: {}", beyond.join(", "))) }
}

fn figures() -> Result<Vec<Figure>, String> {
    let rust = tracked("*.rs")?;
    let largest = circles()?.iter().map(|(_, circle)| circle.len()).max().unwrap_or(0);
    Ok(vec![
        // AArch64 (1,800) and tiles that reach the peak (1,500) are what 235,000 had no room for.
        // 240,000 until attention had kernels for tiles and a lost device a standby, 241,000 until blocks and the best
        // logits came from a device by operations, and adapters, HTTP and handoffs were tried across losses (600 of
        // tests).
        // 242,000 until there was a GPU: its driver, operations and their tests (2,900).
        // 246,000 until the device selected the largest logits and recorded a step once (200).
        // 246,200 until it had mixtures, memory that buffers share, and products and attention by many workgroups (600).
        // 246,800 until it had products by a card's matrices, and experts that come together and that it chooses (700).
        // 247,500 until it had latent attention (300) and layers with states (450).
        Figure { name: "lines of Rust", value: lines(&rust)?, limit: 248_250 },
        // A device that is lost while requests are open (150) is what 8,750 had no room for, its adapters what 8,900 had
        // none for, and the choice of a device with its memory and standby (130) 8,920.
        Figure { name: "code of engine", value: code("engine")?, limit: 9_080 },
        Figure { name: "code of server", value: code("server")?, limit: 12_900 },
        Figure { name: "largest circle of files", value: largest, limit: LARGEST_CIRCLE },
        Figure { name: "fields of EngineCore", value: fields("engine/src/core.rs", "EngineCore")?, limit: 14 },
        Figure { name: "fields of App", value: fields("server/src/app.rs", "App")?, limit: 15 },
        Figure { name: "files of a sampler option", value: naming("min_p", &rust)?, limit: 6 },
        Figure { name: "lines with banned words", value: banned(&rust)?, limit: 3 },
        Figure { name: "binaries of tests", value: test_binaries()?, limit: 47 },
        Figure { name: "words of ARCHITECTURE.md", value: words("ARCHITECTURE.md")?, limit: 5_000 },
    ])
}

/// Files that are committed, by a pattern of git's.
fn tracked(pattern: &str) -> Result<Vec<PathBuf>, String> {
    let output = command("git", &["ls-files", pattern]).output().map_err(|error| format!("git: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| root().join(line))
        .filter(|file| file.is_file())
        .collect())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn lines(files: &[PathBuf]) -> Result<usize, String> {
    files.iter().map(|file| Ok(read(file)?.lines().count())).sum()
}

fn words(file: &str) -> Result<usize, String> {
    Ok(read(&root().join(file))?.split_whitespace().count())
}

/// Lines of a crate's `src` that are neither blank nor comment, without tests: items and files that `#[cfg(test)]` stands
/// before.
fn code(krate: &str) -> Result<usize, String> {
    let files = tracked(&format!("crates/{krate}/src/*.rs"))?;
    let texts = files.iter().map(|file| Ok((file, read(file)?))).collect::<Result<Vec<_>, String>>()?;
    let of_tests: Vec<PathBuf> = texts.iter().flat_map(|(file, text)| test_modules(file, text)).collect();
    let is_of_tests = |file: &Path| of_tests.iter().any(|module| file.with_extension("").starts_with(module));
    Ok(texts.iter().filter(|(file, _)| !is_of_tests(file)).map(|(_, text)| lines_of_code(text)).sum())
}

/// Where the modules lie that a file has for tests alone, without an extension.
fn test_modules<'a>(file: &'a Path, text: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    let is_root = ["lib.rs", "main.rs", "mod.rs"].iter().any(|name| file.ends_with(name));
    let place =
        if is_root { file.parent().map(Path::to_path_buf).unwrap_or_default() } else { file.with_extension("") };
    let pairs = text.lines().zip(text.lines().skip(1));
    let names =
        pairs.filter(|(line, _)| *line == TESTS).filter_map(|(_, line)| line.strip_prefix("mod ")?.strip_suffix(';'));
    names.map(move |name| place.join(name))
}

const TESTS: &str = "#[cfg(test)]";

fn lines_of_code(text: &str) -> usize {
    let mut lines = text.lines();
    let mut count = 0;
    while let Some(line) = lines.next() {
        if line == TESTS {
            // An item of several lines ends with a brace in the first column.
            let item = lines.find(|line| !line.starts_with("#["));
            if item.is_some_and(|item| !item.ends_with([';', '}'])) {
                lines.find(|line| *line == "}");
            }
        } else if !line.trim().is_empty() && !line.trim_start().starts_with("//") {
            count += 1;
        }
    }
    count
}

/// Programs that `cargo test` builds: each links the tree below it.
fn test_binaries() -> Result<usize, String> {
    let mut metadata = command("cargo", &["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = metadata.output().map_err(|error| format!("cargo: {error}"))?;
    // A target says of itself whether it is tested; no other field has the name.
    Ok(String::from_utf8_lossy(&output.stdout).matches("\"test\":true").count())
}

/// Lines `name: type` of a struct.
fn fields(file: &str, name: &str) -> Result<usize, String> {
    let text = read(&root().join("crates").join(file))?;
    let head = format!("struct {name} {{");
    let body = text.lines().skip_while(|line| !line.ends_with(&head)).skip(1).take_while(|line| *line != "}");
    let count = body.filter(|line| !line.trim_start().starts_with("//") && line.contains(": ")).count();
    if count == 0 { Err(format!("{file} has no struct {name}")) } else { Ok(count) }
}

/// Sources of crates in which a word stands.
fn naming(word: &str, rust: &[PathBuf]) -> Result<usize, String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut files = BTreeSet::new();
    for file in rust.iter().filter(|file| file.components().any(|part| part.as_os_str() == "src")) {
        if read(file)?.split(|c| !is_name(c)).any(|other| other == word) {
            files.insert(file);
        }
    }
    Ok(files.len())
}

/// Lines of the crates' sources that hold one of [`BANNED`], in comments, texts or names.
fn banned(rust: &[PathBuf]) -> Result<usize, String> {
    let is_source = |file: &&PathBuf| file.starts_with(root().join("crates")) && file.iter().any(|part| part == "src");
    rust.iter().filter(is_source).map(|file| Ok(read(file)?.lines().filter(|line| is_banned(line)).count())).sum()
}

fn is_banned(line: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words: Vec<String> =
        line.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    BANNED.iter().any(|banned| {
        let banned: Vec<&str> = banned.split(' ').collect();
        words.windows(banned.len()).any(|some| some == banned)
    })
}

/// Circles of files of every crate.
fn circles() -> Result<Vec<(String, Vec<String>)>, String> {
    let mut found = Vec::new();
    for file in tracked("crates/*/Cargo.toml")? {
        let src = file.with_file_name("src");
        let Some(root) = ["lib.rs", "main.rs"].map(|name| src.join(name)).into_iter().find(|root| root.is_file())
        else {
            continue;
        };
        let graph = Graph::read(&root)?;
        let krate = src.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        for circle in graph.circles() {
            found.push((krate.clone(), circle.iter().map(|file| graph.files[*file].display().to_string()).collect()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn files_lead_in_no_large_circle() {
        let circles = circles().expect("the sources can be read");
        let large: Vec<_> = circles.iter().filter(|(_, circle)| circle.len() > LARGEST_CIRCLE).collect();
        assert!(large.is_empty(), "files that all lead to each other; move what one names of another: {large:#?}");
        assert!(!circles.is_empty(), "there are small circles: if none is found, nothing was read");
    }

    #[test]
    fn banned_words_are_found_whole() {
        let banned =
            ["/// Nobody is there.", "// whom, then", "    let guesses = 3;", "waits for ever", "so many of them"];
        assert!(banned.into_iter().all(is_banned));
        let fine = ["// the draft", "let guesses_of = 3;", "for everyone", "a hero", "so few, many"];
        assert!(!fine.into_iter().any(is_banned));
    }

    #[test]
    fn tests_are_no_code() {
        let text = "//! A crate.\n\nmod a;\n#[cfg(test)]\nmod chaos;\nfn f() {\n}\n#[cfg(test)]\nfn of_tests() {\n    f();\n}\n\n\
                    #[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn t() {\n    }\n}\nfn g() {}\n";
        assert_eq!(lines_of_code(text), 4, "mod a, f, g");
        for (file, module) in
            [("src/lib.rs", "src/chaos"), ("src/kv/mod.rs", "src/kv/chaos"), ("src/kv.rs", "src/kv/chaos")]
        {
            assert_eq!(test_modules(Path::new(file), text).collect::<Vec<_>>(), [PathBuf::from(module)]);
        }
    }

    #[test]
    fn nothing_is_beyond_its_limit() {
        for Figure { name, value, limit } in figures().expect("the sources can be read") {
            assert!(value <= limit, "{name}: {value}, and at most {limit}");
            assert!(value > 0, "{name}");
        }
    }
}
