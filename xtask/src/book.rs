//! The book in `docs/`, by mdBook: `cargo xtask book` writes target/book, and a stage of the tests finds it without a warning
//! and each of its links alive.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::setup;
use crate::shell::{command, root, target};

/// Builds it. A warning is an error.
pub(crate) fn build() -> Result<PathBuf, String> {
    let python = setup::python("venv-book", &root().join("xtask/book.txt"))?;
    let mut build = command(python.with_file_name("mdbook"), &["build"]);
    let output = build.current_dir(root()).output().map_err(|error| format!("mdbook: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    let problems: Vec<&str> = said.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    if !output.status.success() || !problems.is_empty() {
        return Err(format!("mdbook: {}", if problems.is_empty() { said } else { problems.join("\n") }));
    }
    Ok(target().join("book"))
}

/// Builds it and follows its links. Returns how many there are.
pub(crate) fn check() -> Result<usize, String> {
    let book = build()?;
    let mut pages = BTreeMap::new();
    read(&book, &book, &mut pages)?;
    let (mut count, mut dead) = (0, Vec::new());
    for (page, Page { links, .. }) in &pages {
        for link in links.iter().filter(|link| !link.contains(':')) {
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let to =
                if path.is_empty() { page.clone() } else { plain(&page.parent().unwrap_or(Path::new("")).join(path)) };
            let is_alive = match pages.get(&to) {
                Some(found) => anchor.is_empty() || found.names.contains(anchor),
                None => book.join(&to).is_file(),
            };
            if !is_alive {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    if dead.is_empty() { Ok(count) } else { Err(format!("links of the book that lead nowhere:\n{}", dead.join("\n"))) }
}

/// What a page leads to, and what in it can be led to.
struct Page {
    links: Vec<String>,
    names: BTreeSet<String>,
}

/// The pages under `directory`, by their paths under `book`. Pages that repeat the others' text are left out.
fn read(book: &Path, directory: &Path, pages: &mut BTreeMap<PathBuf, Page>) -> Result<(), String> {
    let problem = |error: std::io::Error| format!("{}: {error}", directory.display());
    for entry in fs::read_dir(directory).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        if path.is_dir() {
            read(book, &path, pages)?;
            continue;
        }
        let name = path.strip_prefix(book).unwrap_or(&path).to_path_buf();
        let repeats = ["print.html", "404.html", "toc.html", "index.html"].iter().any(|other| name == Path::new(other));
        if path.extension().is_some_and(|extension| extension == "html") && !repeats {
            let text = fs::read_to_string(&path).map_err(problem)?;
            let links = attributes(&text, "href=\"").chain(attributes(&text, "src=\"")).map(str::to_owned).collect();
            let names = attributes(&text, "id=\"").map(str::to_owned).collect();
            pages.insert(name, Page { links, names });
        }
    }
    Ok(())
}

fn attributes<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(name).skip(1).filter_map(|rest| rest.split('"').next())
}

/// Without `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            std::path::Component::ParentDir => _ = plain.pop(),
            part => plain.push(part),
        }
        plain
    })
}
