//! Which file of a crate names items of which other: circles of files are what makes a tree hard to change.
//!
//! File A leads to file B if A names, by `use` or by a path, an item that is defined in B; re-exports are followed. A
//! module and its own child do not count, nor does the root of the crate. Macros expand to paths that are not seen, and
//! methods lead nowhere: what is left is what a reader of the source sees.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The files of one crate and which lead where.
pub(crate) struct Graph {
    /// Relative to the crate's `src`.
    pub(crate) files: Vec<PathBuf>,
    /// Per file, those that it leads to.
    edges: Vec<BTreeSet<usize>>,
}

impl Graph {
    /// Reads a crate from `root`, its `lib.rs` or `main.rs`.
    pub(crate) fn read(root: &Path) -> Result<Graph, String> {
        let mut tree = Tree::default();
        tree.add(root, None)?;
        let src = root.parent().expect("a file lies in a directory");
        let files: Vec<PathBuf> =
            tree.files.iter().map(|file| file.strip_prefix(src).unwrap_or(file).to_path_buf()).collect();
        let mut edges = vec![BTreeSet::new(); files.len()];
        for (index, module) in tree.modules.iter().enumerate() {
            for path in &module.paths {
                let Some(Target::Item(at)) = tree.resolve(index, path, 0) else { continue };
                let (from, to) = (module.file, tree.modules[at].file);
                if from != to && to != 0 && !tree.is_family(index, at) {
                    edges[from].insert(to);
                }
            }
        }
        Ok(Graph { files, edges })
    }

    /// Groups of more than one file in which each leads to every other (Tarjan, 1972), the largest first.
    pub(crate) fn circles(&self) -> Vec<Vec<usize>> {
        let reachable: Vec<BTreeSet<usize>> = (0..self.files.len()).map(|file| self.reachable(file)).collect();
        let mut circles = BTreeSet::new();
        for (file, reached) in reachable.iter().enumerate().filter(|(file, reached)| reached.contains(file)) {
            circles.insert(reached.iter().copied().filter(|other| reachable[*other].contains(&file)).collect());
        }
        let mut circles: Vec<Vec<usize>> = circles.into_iter().collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    fn reachable(&self, file: usize) -> BTreeSet<usize> {
        let mut reached = BTreeSet::new();
        let mut next = vec![file];
        while let Some(file) = next.pop() {
            next.extend(self.edges[file].iter().copied().filter(|to| reached.insert(*to)));
        }
        reached
    }
}

#[derive(Default)]
struct Tree {
    files: Vec<PathBuf>,
    modules: Vec<Module>,
}

#[derive(Default)]
struct Module {
    parent: Option<usize>,
    file: usize,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    /// What a name that `use` brings stands for.
    aliases: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Every path that it names, by `use` and elsewhere.
    paths: Vec<Vec<String>>,
}

#[derive(Clone, Copy)]
enum Target {
    /// An item, of this module.
    Item(usize),
    Module(usize),
}

impl Tree {
    /// Reads the module that is a file, and those that it declares.
    fn add(&mut self, path: &Path, parent: Option<usize>) -> Result<usize, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let file = self.files.len();
        self.files.push(path.to_path_buf());
        let index = self.modules.len();
        self.modules.push(Module { parent, file, ..Module::default() });
        let tokens = tokens(&text);
        let mut reader = Reader { tokens: &tokens, at: 0 };
        let declared = reader.module(self, index);
        let directory = directory(path);
        for name in declared {
            let child = [directory.join(format!("{name}.rs")), directory.join(&name).join("mod.rs")];
            if let Some(path) = child.iter().find(|path| path.is_file()) {
                let child = self.add(path, Some(index))?;
                self.modules[index].children.insert(name, child);
            }
        }
        Ok(index)
    }

    /// Whether these are the same module, or a module and its child.
    fn is_family(&self, a: usize, b: usize) -> bool {
        a == b || self.modules[a].parent == Some(b) || self.modules[b].parent == Some(a)
    }

    /// What a path leads to; it may go on to what is within an item.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let mut target = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => Target::Module(self.modules[from].parent?),
            name => self.named(from, name, !rest.is_empty(), depth)?,
        };
        for (index, name) in rest.iter().enumerate() {
            target = match target {
                Target::Item(_) => return Some(target),
                Target::Module(at) if name == "super" => Target::Module(self.modules[at].parent?),
                Target::Module(at) => self.named(at, name, index + 1 < rest.len(), depth)?,
            };
        }
        Some(target)
    }

    /// What a name is in a module. `goes_on`: more of the path follows, so a module is meant where both are there.
    fn named(&self, at: usize, name: &str, goes_on: bool, depth: usize) -> Option<Target> {
        const DEEPEST: usize = 12; // two modules that import each other whole
        if depth > DEEPEST {
            return None;
        }
        let module = &self.modules[at];
        let child = module.children.get(name).map(|child| Target::Module(*child));
        let item = module.items.contains(name).then_some(Target::Item(at));
        let own = if goes_on { child.or(item) } else { item.or(child) };
        own.or_else(|| self.resolve(at, module.aliases.get(name)?, depth + 1)).or_else(|| {
            module.globs.iter().find_map(|glob| match self.resolve(at, glob, depth + 1)? {
                Target::Module(other) if other != at => self.named(other, name, goes_on, depth + 1),
                _ => None,
            })
        })
    }
}

/// Where the children of a file's module lie.
fn directory(file: &Path) -> PathBuf {
    let parent = file.parent().expect("a file lies in a directory");
    match file.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "main" | "mod") | None => parent.to_path_buf(),
        Some(stem) => parent.join(stem),
    }
}

/// A word or one character of punctuation.
#[derive(Clone, Debug, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Mark(char),
}

/// The tokens of a source text without comments, strings, characters, lifetimes and numbers.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = string(rest) {
            length
        } else if first == '\'' {
            character(rest)
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            if !first.is_numeric() {
                tokens.push(Token::Word(&rest[..end]));
            }
            end
        } else {
            if !first.is_whitespace() {
                tokens.push(Token::Mark(first));
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// The length of the string that a text begins with.
fn string(text: &str) -> Option<usize> {
    let prefix = text.strip_prefix("br").or_else(|| text.strip_prefix('r'));
    if let Some(raw) = prefix {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let begin = text.len() - raw.len() + hashes + 1;
            return Some(text[begin..].find(&close).map_or(text.len(), |end| begin + end + close.len()));
        }
    }
    let body = text.strip_prefix('b').unwrap_or(text).strip_prefix('"')?;
    let mut is_escaped = false;
    let end = body.find(|c| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    });
    Some(end.map_or(text.len(), |end| text.len() - body.len() + end + 1))
}

/// The length of the character or the lifetime that a text begins with.
fn character(text: &str) -> usize {
    let body = &text[1..];
    if body.starts_with('\\') {
        return body[2..].find('\'').map_or(text.len(), |end| end + 4);
    }
    let first = body.chars().next().map_or(0, char::len_utf8);
    if body[first..].starts_with('\'') { first + 2 } else { 1 }
}

struct Reader<'a, 'b> {
    tokens: &'b [Token<'a>],
    at: usize,
}

impl<'a> Reader<'a, '_> {
    fn peek(&self, ahead: usize) -> Option<&Token<'a>> {
        self.tokens.get(self.at + ahead)
    }

    fn word(&self, ahead: usize) -> Option<&'a str> {
        match self.peek(ahead) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn is_mark(&self, ahead: usize, mark: char) -> bool {
        self.peek(ahead) == Some(&Token::Mark(mark))
    }

    fn is_path_mark(&self, ahead: usize) -> bool {
        self.is_mark(ahead, ':') && self.is_mark(ahead + 1, ':')
    }

    /// Reads items until the block closes. Returns the modules that are files of their own.
    fn module(&mut self, tree: &mut Tree, index: usize) -> Vec<String> {
        const ITEMS: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];
        let mut files = Vec::new();
        let mut depth = 0_usize;
        while let Some(token) = self.peek(0).cloned() {
            match token {
                Token::Mark('#') if self.is_test_only() => self.skip_item(),
                Token::Mark('{') => {
                    depth += 1;
                    self.at += 1;
                }
                Token::Mark('}') if depth == 0 => {
                    self.at += 1;
                    return files;
                }
                Token::Mark('}') => {
                    depth -= 1;
                    self.at += 1;
                }
                Token::Mark(_) => self.at += 1,
                // `impl Trait + use<'a>` imports nothing.
                Token::Word("use") if !self.is_mark(1, '<') => {
                    self.at += 1;
                    self.imports(&mut tree.modules[index], &[]);
                }
                Token::Word("mod") if self.is_mark(2, ';') => {
                    files.extend(self.word(1).map(str::to_owned));
                    self.at += 3;
                }
                Token::Word("mod") if self.is_mark(2, '{') => {
                    let name = self.word(1).unwrap_or_default().to_owned();
                    self.at += 3;
                    let child = tree.modules.len();
                    let file = tree.modules[index].file;
                    tree.modules.push(Module { parent: Some(index), file, ..Module::default() });
                    tree.modules[index].children.insert(name, child);
                    self.module(tree, child);
                }
                Token::Word(word) if depth == 0 && ITEMS.contains(&word) => {
                    let skipped = if word == "macro_rules" { 2 } else { 1 };
                    if let Some(name) = self.word(skipped) {
                        tree.modules[index].items.insert(name.to_owned());
                    }
                    self.at += skipped;
                }
                Token::Word(_) => {
                    let is_member = self.at > 0 && self.tokens[self.at - 1] == Token::Mark('.');
                    let path = self.path();
                    if !is_member {
                        tree.modules[index].paths.push(path);
                    }
                }
            }
        }
        files
    }

    /// `#[cfg(test)]` comes here.
    fn is_test_only(&self) -> bool {
        self.is_mark(1, '[') && self.word(2) == Some("cfg") && self.is_mark(3, '(') && self.word(4) == Some("test")
    }

    /// Skips an item with its attributes: to the end of its first block, or to a semicolon before one.
    fn skip_item(&mut self) {
        let mut depth = 0_usize;
        while let Some(token) = self.peek(0) {
            let is_end = match token {
                Token::Mark('{' | '(' | '[') => {
                    depth += 1;
                    false
                }
                Token::Mark(close @ ('}' | ')' | ']')) => {
                    depth = depth.saturating_sub(1);
                    *close == '}' && depth == 0
                }
                Token::Mark(';') => depth == 0,
                _ => false,
            };
            self.at += 1;
            if is_end {
                return;
            }
        }
    }

    /// A path in code: words with `::` between them.
    fn path(&mut self) -> Vec<String> {
        let mut path = Vec::new();
        while let Some(word) = self.word(0) {
            path.push(word.to_owned());
            self.at += 1;
            if !self.is_path_mark(0) || self.word(2).is_none() {
                break;
            }
            self.at += 2;
        }
        path
    }

    /// One tree of imports behind `use`, or within its braces: `prefix` comes before it.
    fn imports(&mut self, module: &mut Module, prefix: &[String]) {
        let mut path = prefix.to_vec();
        let mut alias = None;
        while let Some(token) = self.peek(0).cloned() {
            match token {
                Token::Mark(',' | '}' | ';') => break,
                Token::Mark('*') => {
                    self.at += 1;
                    module.globs.push(path);
                    return;
                }
                Token::Mark('{') => {
                    self.at += 1;
                    while self.peek(0).is_some() && !self.is_mark(0, '}') && !self.is_mark(0, ';') {
                        self.imports(module, &path);
                        self.at += usize::from(self.is_mark(0, ','));
                    }
                    self.at += 1;
                    return;
                }
                Token::Word("as") => {
                    self.at += 1;
                    alias = self.word(0).map(str::to_owned);
                }
                Token::Word("self") if !path.is_empty() => {}
                Token::Word(word) if alias.is_none() => path.push(word.to_owned()),
                _ => {}
            }
            self.at += 1;
        }
        let Some(name) = alias.or_else(|| path.last().cloned()) else { return };
        if path.len() > 1 {
            module.aliases.insert(name, path.clone());
        }
        module.paths.push(path);
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn tokens_are_words_and_marks_of_code_alone() {
        let text = r##"use a::b; // c::d
/* e::f */ "g::h" r#"i"j"# 'k' '\'' '\u{1F600}' &'static str 1_000u32 x.y"##;
        let words: Vec<&str> = tokens(text)
            .iter()
            .filter_map(|token| match token {
                Token::Word(word) => Some(*word),
                Token::Mark(_) => None,
            })
            .collect();
        assert_eq!(words, ["use", "a", "b", "static", "str", "x", "y"]);
    }

    /// One leads to the next by a path, an alias, a re-export, a glob; the last leads to nothing, or back to the first.
    #[test]
    fn a_circle_is_found_by_whatever_names_lead_it() {
        let src = std::env::temp_dir().join(format!("twostroke-structure-{}", std::process::id()));
        let circles = |last: &str| {
            let _ = fs::remove_dir_all(&src); // of the case before
            fs::create_dir_all(src.join("d")).expect("a directory");
            for (file, text) in [
                ("lib.rs", "mod a; mod b; mod c; mod d; mod outside; pub fn root() { a::first() }"),
                ("a.rs", "pub fn first() { crate::b::second(); crate::root() }"),
                ("b.rs", "use crate::c::Third as Renamed; pub fn second() -> Renamed { Renamed }"),
                ("c.rs", "use crate::d::fourth; pub struct Third; impl Third { fn call() { fourth() } }"),
                ("d.rs", "mod child; pub use child::fourth;"),
                ("d/child.rs", last),
                ("outside.rs", "// use crate::a::first;\nfn none() { \"crate::a::first\"; x.first(); }"),
            ] {
                fs::write(src.join(file), text).expect("a file");
            }
            let graph = Graph::read(&src.join("lib.rs")).expect("a crate");
            let names =
                |circle: &Vec<usize>| circle.iter().map(|file| graph.files[*file].display().to_string()).collect();
            graph.circles().iter().map(names).collect::<Vec<Vec<String>>>()
        };
        assert!(circles("pub fn fourth() {}").is_empty());
        assert!(circles("pub fn fourth() {} #[cfg(test)] mod tests { use crate::a::first; }").is_empty());
        let found = circles("use crate::a::*; pub fn fourth() { first() }");
        assert_eq!(found, [["a.rs", "b.rs", "c.rs", "d/child.rs"]]);
        fs::remove_dir_all(&src).expect("it was ours");
    }
}
