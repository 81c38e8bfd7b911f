//! As much of Lark's text as the limits have to understand: its pieces, and whether a rule has itself in two places.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

/// The pieces of a grammar: names, texts, expressions, schemas, comments, and single characters.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let next = rest.chars().next()?;
        let length = match next {
            '"' => delimited(rest, '"'),
            '#' => line(rest),
            '/' if rest.starts_with("//") => line(rest),
            '/' => delimited(rest, '/'),
            '%' if rest.starts_with("%json") => {
                let mut values = serde_json::Deserializer::from_str(&rest["%json".len()..]).into_iter::<IgnoredAny>();
                values.next();
                "%json".len() + values.byte_offset()
            }
            // A special token, whose name may have a slash.
            '<' => rest.find('>').map_or(1, |end| end + 1),
            ':' if rest.starts_with("::") => 2,
            c if is_of_a_name(c) => rest.find(|c| !is_of_a_name(c) && c != '-').unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let piece;
        (piece, rest) = rest.split_at(length);
        Some(piece)
    })
}

fn is_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Bytes up to the same mark again, escaped ones aside.
fn delimited(text: &str, mark: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            // A text or an expression that does not end on its line is the compiler's to refuse.
            c if c == mark => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn line(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// Whether an alternative of a rule leads back to the rule in two places, or in one that may be repeated. Such a
/// grammar may read a text in a number of ways that grows with its length.
pub(crate) fn branches(text: &str) -> bool {
    let alternatives = alternatives(text);
    let mut numbers = BTreeMap::new();
    for (name, _) in &alternatives {
        let next = numbers.len();
        numbers.entry(*name).or_insert(next);
    }
    let mut leads_to = vec![Vec::new(); numbers.len()];
    for (name, references) in &alternatives {
        leads_to[numbers[name]].extend(references.iter().filter_map(|reference| numbers.get(reference)).copied());
    }
    let circles = circles(&leads_to);
    alternatives.iter().any(|(name, references)| {
        let own = circles[numbers[name]];
        let back = references.iter().filter_map(|reference| numbers.get(reference));
        back.filter(|&&other| own == circles[other]).count() > 1
    })
}

/// Each alternative of each rule: its rule, and the names in it; twice, where they may be repeated.
fn alternatives(text: &str) -> Vec<(&str, Vec<&str>)> {
    let is_told = |piece: &&str| !piece.trim().is_empty() && !piece.starts_with('#') && !piece.starts_with("//");
    let all: Vec<&str> = pieces(text).filter(is_told).collect();
    let mut alternatives = Vec::new();
    let (mut rule, mut references): (&str, Vec<&str>) = ("", Vec::new());
    // Where the groups that are open begin among the references, and the thing that ended last.
    let (mut open, mut last) = (Vec::new(), 0);
    let mut at = 0;
    while let Some(&piece) = all.get(at) {
        at += 1;
        match piece {
            "(" | "[" => open.push(references.len()),
            ")" | "]" => last = open.pop().unwrap_or(references.len()),
            "*" | "+" | "{" | "~" => references.extend_from_within(last.min(references.len())..),
            "|" if open.is_empty() => alternatives.push((rule, std::mem::take(&mut references))),
            name if name.starts_with(is_of_a_name) => {
                if open.is_empty()
                    && let Some(length) = head(&all[at..])
                {
                    alternatives.push((rule, std::mem::take(&mut references)));
                    (rule, last) = (name, 0);
                    at += length;
                } else {
                    last = references.len();
                    references.push(name);
                }
            }
            _ => last = references.len(),
        }
    }
    alternatives.push((rule, references));
    alternatives
}

/// The end of what is between the name of a rule and its body, if this is the beginning of one: attributes, a priority,
/// a colon.
fn head(behind: &[&str]) -> Option<usize> {
    let mut length = 0;
    if behind.first() == Some(&"[") {
        length = behind.iter().position(|&piece| piece == "]")? + 1;
    }
    if behind.get(length) == Some(&".") {
        length += 2;
    }
    (behind.get(length) == Some(&":")).then_some(length + 1)
}

/// For each rule the number of its circle: rules that lead to each other have the same (Kosaraju's algorithm).
fn circles(leads_to: &[Vec<usize>]) -> Vec<usize> {
    let mut led_from = vec![Vec::new(); leads_to.len()];
    for (from, to) in leads_to.iter().enumerate() {
        to.iter().for_each(|&to| led_from[to].push(from));
    }
    let mut order = Vec::with_capacity(leads_to.len());
    let mut seen = vec![false; leads_to.len()];
    for first in 0..leads_to.len() {
        walk(first, leads_to, &mut seen, &mut |rule| order.push(rule));
    }
    let mut circles = vec![0; leads_to.len()];
    seen.fill(false);
    for (number, &first) in order.iter().rev().enumerate() {
        walk(first, &led_from, &mut seen, &mut |rule| circles[rule] = number);
    }
    circles
}

/// Tells all that can be reached and was not seen, each behind what it leads to.
fn walk(first: usize, leads_to: &[Vec<usize>], seen: &mut [bool], tell: &mut dyn FnMut(usize)) {
    let mut open = Vec::new();
    if !std::mem::replace(&mut seen[first], true) {
        open.push((first, 0));
    }
    while let Some((rule, next)) = open.last_mut() {
        match leads_to[*rule].get(*next) {
            Some(&to) => {
                *next += 1;
                if !std::mem::replace(&mut seen[to], true) {
                    open.push((to, 0));
                }
            }
            None => {
                tell(*rule);
                open.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_branches_where_a_rule_has_itself_twice() {
        for (text, expected) in [
            ("start: \"a\" | \"b\"", false),
            ("start: (a | b)* c{2,3}\na: \"x\"\nb: a\nc: a b", false),
            ("start: e\ne: e \"a\" | \"a\"", false),
            ("start: e\ne: \"a\" e \"b\" | \"a\" e | e \"b\" |", false),
            ("start: e\ne: e e | \"a\"", true),
            ("start: e\ne[lazy].5: e \"+\" e\n  | \"a\"", true),
            ("start: e\ne: \"a\" e*", true),
            ("start: e\ne: (\"a\" e)+ \"b\"", true),
            ("start: e\ne: \"a\" (\",\" e)~2", true),
            ("start: e\ne: \"a\" e?", false),
            ("start: e\ne: f f\nf: \"(\" e \")\"", true),
            ("start: e f\ne: \"x\" e | \"x\"\nf: e e | e", false),
            ("start: e // e: e e\ne: \"e: e e\" /e: e e/ # e e\n", false),
            ("start: %json {\"e\": [\"e: e e\"]}\n", false),
            ("start: v\nv: \"[\" (v (\",\" v)*)? \"]\" | \"1\"", true),
            ("e: e /* x */ e", true),
        ] {
            assert_eq!(branches(text), expected, "{text}");
        }
    }

    #[test]
    fn long_chains_and_circles_are_walked_without_a_stack() {
        let chain = |last: &str| -> String {
            let rules = (0..50_000).map(|i| format!("r{i}: \"x\" r{}\n", i + 1));
            rules.chain([format!("r50000: {last}\n")]).collect()
        };
        assert!(!branches(&chain("\"x\"")));
        assert!(!branches(&chain("r0")));
        assert!(branches(&chain("r0 r7")));
    }
}
