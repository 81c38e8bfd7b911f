//! Puts all mutations into copies of the source files at once, each behind its number in the catalogue.
//!
//! ```text
//! x > limit       ->   (if crate::planted::is(7) { false } else { x > limit })
//! release(id);    ->   if crate::planted::is(1) {} else { release(id); }
//! ```
//!
//! One build then serves every bug (mutant schemata: Untch, Offutt and Harrold, ISSTA 1993): compiling each alone would
//! take a hundred times as long as finding it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::catalogue::{Edit, Mutation};

/// What to put in the place of what.
type Change = (Range<usize>, String);

/// Source files with the mutations in them, by name. `read` gives a file's text. An error names every edit that no
/// longer applies, applies in several places, or overlaps another one.
pub(crate) fn weave(
    mutations: &[Mutation],
    read: impl Fn(&str) -> Result<String, String>,
) -> Result<BTreeMap<&'static str, String>, String> {
    let mut errors = Vec::new();
    let mut files: BTreeMap<&str, (String, Vec<Change>)> = BTreeMap::new();
    for (number, mutation) in mutations.iter().enumerate() {
        for edit in mutation.edits {
            if !files.contains_key(edit.file) {
                files.insert(edit.file, (read(edit.file)?, Vec::new()));
            }
            let (text, changes) = files.get_mut(edit.file).expect("it was just read");
            match places(text, edit.find)[..] {
                [ref place] => changes.push((place.clone(), woven(number, &text[place.clone()], edit))),
                ref places => errors.push(format!(
                    "{}: in {} there are {} places, not 1, with {:?}",
                    mutation.name,
                    edit.file,
                    places.len(),
                    edit.find
                )),
            }
        }
    }
    for (file, (_, changes)) in &mut files {
        changes.sort_by_key(|(place, _)| place.start);
        let overlap = changes.windows(2).find(|pair| pair[0].0.end > pair[1].0.start);
        errors.extend(overlap.map(|pair| format!("{file}: two mutations in one place, at byte {}", pair[1].0.start)));
    }
    if !errors.is_empty() {
        return Err(errors.join("\n"));
    }
    let result = files.into_iter().map(|(file, (mut text, changes))| {
        changes.into_iter().rev().for_each(|(place, change)| text.replace_range(place, &change));
        (file, text)
    });
    Ok(result.collect())
}

fn woven(number: usize, original: &str, edit: &Edit) -> String {
    let switch = format!("if crate::planted::is({number}) {{ {} }} else {{ {original} }}", edit.replace);
    // Statements stand as they are; an expression may stand before a dot or beside an operator.
    if edit.find.ends_with(';') { switch } else { format!("({switch})") }
}

/// Where `find` is in `text`. White space does not count, so it does not matter how the source is wrapped.
fn places(text: &str, find: &str) -> Vec<Range<usize>> {
    let find: Vec<char> = find.chars().filter(|c| !c.is_whitespace()).collect();
    let text: Vec<(usize, char)> = text.char_indices().filter(|(_, c)| !c.is_whitespace()).collect();
    let windows = text.windows(find.len()).filter(|window| window.iter().map(|&(_, c)| c).eq(find.iter().copied()));
    let range = |window: &[(usize, char)]| {
        let (last, c) = window[window.len() - 1];
        window[0].0..last + c.len_utf8()
    };
    windows.map(range).collect()
}

/// The module that the woven source asks, as `src/planted.rs`.
pub(crate) fn switch(mutations: &[Mutation]) -> String {
    let names: Vec<String> = mutations.iter().map(|mutation| format!("    {:?},\n", mutation.name)).collect();
    let of_pair: Vec<bool> = mutations.iter().map(|mutation| mutation.is_of_pair).collect();
    format!(
        "//! Which bug is there: written by `cargo xtask planted`.

use core::sync::atomic::{{AtomicUsize, Ordering}};

/// Every bug.
pub const NAMES: &[&str] = &[\n{}];
/// Which of them are of a pair of precisions.
pub const OF_PAIR: &[bool] = &{of_pair:?};
static PLANTED: AtomicUsize = AtomicUsize::new(usize::MAX);

/// From now on this bug is there, in every scheduler of the process.
pub fn plant(bug: Option<usize>) {{
    PLANTED.store(bug.unwrap_or(usize::MAX), Ordering::SeqCst);
}}

pub(crate) fn is(bug: usize) -> bool {{
    PLANTED.load(Ordering::Relaxed) == bug
}}
",
        names.concat()
    )
}
