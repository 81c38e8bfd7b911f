//! Commands and programs in the documentation work: every fenced block marked `test` is run; in a quick run, of those
//! that measure the same with other numbers, the first.
//!
//! ````text
//! ```sh test          run by bash in the repository, `twostroke` on its path
//! ```python test      run by the interpreter that `cargo xtask test` prepared, with the `openai` client
//! ````
//! Blocks that speak to port 8000 speak to one server, which is started for all of them.

use std::cell::LazyCell;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::{Server, binary, files, forget_package, is_long, root, run, text};

/// A fenced block and where it stands.
struct Block {
    place: String,
    code: String,
}

/// Blocks of `language` that are marked `test`, in the README and in the book.
fn blocks(language: &str) -> Vec<Block> {
    let pages = files("docs").into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let pages: Vec<PathBuf> = [PathBuf::from("README.md")].into_iter().chain(pages).collect();
    pages.iter().flat_map(|page| blocks_of(page, language)).collect()
}

fn blocks_of(page: &Path, language: &str) -> Vec<Block> {
    let body = text(page).unwrap_or_default();
    let opening = format!("```{language} test");
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for (index, line) in body.lines().enumerate() {
        if !inside && line.trim() == opening {
            inside = true;
            blocks.push(Block { place: format!("{}:{}", page.display(), index + 1), code: String::new() });
        } else if inside && line.trim() == "```" {
            inside = false;
        } else if inside && let Some(block) = blocks.last_mut() {
            block.code.push_str(line);
            block.code.push('\n');
        }
    }
    blocks
}

/// Runs a block, against one server for all if it asks for one.
fn check(block: &Block, mut program: Command, server: &LazyCell<Server>) {
    let port = if block.code.contains(":8000") { server.port() } else { 8000 };
    // What cargo would build and run is on the path: the same sources in the profile of the tests.
    let code = block.code.replace(":8000", &format!(":{port}")).replace("cargo run --release --", "twostroke");
    program.arg(code).current_dir(root());
    let directory = binary().parent().expect("the binary lies in a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let ran = run(forget_package(&mut program).env("PATH", format!("{}:{path}", directory.display())));
    assert_eq!(ran.code, Some(0), "{}:\n{}\n{ran:?}", block.place, block.code);
    assert!(!ran.stdout.trim().is_empty(), "{}: it printed nothing", block.place);
}

/// What computes for seconds: of blocks that differ only behind their first flag a quick run has the first, which is
/// the README's if it has one.
const SLOW: [&str; 3] = ["twostroke bench", "twostroke doctor", "twostroke quantize"];

/// The slow commands of a block, up to their first flag.
fn slow_commands(block: &Block) -> Vec<String> {
    let slow = block.code.lines().filter(|line| SLOW.iter().any(|slow| line.starts_with(slow)));
    slow.map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn shell_commands_work() {
    let blocks = blocks("sh");
    assert!(blocks.len() >= 3, "the documentation has commands that are tested");
    let server: LazyCell<Server> = LazyCell::new(|| Server::start(&[]));
    let mut seen = Vec::new();
    for block in blocks {
        let slow = slow_commands(&block);
        if !is_long() && !slow.is_empty() && slow.iter().all(|command| seen.contains(command)) {
            continue;
        }
        seen.extend(slow);
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c"]);
        // A request that is refused fails its block.
        let code = format!("curl() {{ command curl --fail-with-body \"$@\"; }}\n{}", block.code);
        check(&Block { code, ..block }, bash, &server);
    }
}

#[test]
fn python_programs_work() {
    let blocks = blocks("python");
    assert!(!blocks.is_empty(), "the documentation has a Python program that is tested");
    let Some(python) = std::env::var_os("TWOSTROKE_PYTHON") else {
        return println!("skipped: `cargo xtask test` prepares Python and the openai package");
    };
    let server: LazyCell<Server> = LazyCell::new(|| Server::start(&[]));
    for block in blocks {
        let mut command = Command::new(&python);
        command.arg("-c");
        check(&block, command, &server);
    }
}
