//! llama.cpp's grammars (GBNF) in Lark's words.
//!
//! ```text
//! text --parse--> parts --lexemes--> what the lexer reads, and what the parser does --to_lark--> the same language
//! ```
//!
//! What llama.cpp takes means the same here, and more is taken: rules that begin with themselves, an alternative on a
//! line that begins with `|`, and counts above 2,000. Not taken are its tokens (`<think>`, `<[1000]>`), a rule that is
//! there twice (there the later one counts), and a rule that can never come to an end.

mod lexemes;
mod parse;

#[cfg(test)]
mod tests;

use std::fmt::Write;

use self::lexemes::Plan;
use self::parse::{Chars, Id, Part, Parts};
use crate::rule::{RuleError, quoted};

/// The same language, its `root` being `start`.
pub(crate) fn to_lark(text: &str) -> Result<String, RuleError> {
    let mut parts = parse::parse(text)?;
    let plan = lexemes::plan(&mut parts).map_err(|lexemes::TooIntricate| {
        let problem = "the grammar is too large to find out what may follow what in it";
        RuleError::Gbnf { line: 1, problem: problem.to_owned() }
    })?;
    Ok(Writer { parts: &parts, plan: &plan, lark: String::new() }.write())
}

/// A rule `n4` for each part that is one, a terminal `L5` for each lexeme, and terminals `T6` for what these are made
/// of. All is flat: Lark's own parser takes little nesting.
struct Writer<'a> {
    parts: &'a Parts,
    plan: &'a Plan,
    lark: String,
}

impl Writer<'_> {
    fn write(mut self) -> String {
        let mut is_lexeme = vec![false; self.parts.all.len()];
        self.plan.lexemes.iter().for_each(|&id| is_lexeme[id] = true);
        let lexeme_or_rule = |id: Id| match (is_lexeme[id], self.plan.is_nullable[id]) {
            (true, false) => format!("L{id}"),
            (true, true) => format!("(L{id}|\"\")"),
            (false, _) => format!("n{id}"),
        };
        self.line(format_args!("start: {}", lexeme_or_rule(self.parts.root)));
        for &id in &self.plan.rules {
            let body = self.body(id, &lexeme_or_rule);
            self.line(format_args!("n{id}: {body}"));
        }
        // Children first, so that a chain of them is no recursion.
        let mut is_there = vec![false; self.parts.all.len()];
        for &lexeme in &self.plan.lexemes {
            let mut open = vec![(lexeme, 0)];
            while let Some((id, next)) = open.pop() {
                if let Some(&child) = self.parts.all[id].children().get(next) {
                    open.push((id, next + 1));
                    if !is_there[child] {
                        open.push((child, 0));
                    }
                } else if !std::mem::replace(&mut is_there[id], true) {
                    let body = self.body(id, &|id| format!("T{id}"));
                    self.line(format_args!("T{id}: {body}"));
                }
            }
            // A lexeme of nothing is none.
            let but_nothing = if self.plan.is_nullable[lexeme] { " & /(?s:.+)/" } else { "" };
            self.line(format_args!("L{lexeme}: T{lexeme}{but_nothing}"));
        }
        self.lark
    }

    fn body(&self, id: Id, name: &dyn Fn(Id) -> String) -> String {
        let names = |parts: &[Id]| parts.iter().map(|&id| name(id)).collect::<Vec<_>>();
        match &self.parts.all[id] {
            Part::Char(chars) => match chars.single() {
                Some(c) => quoted(c.encode_utf8(&mut [0; 4])),
                None => class(chars),
            },
            Part::Text(text) => quoted(&text.iter().collect::<String>()),
            Part::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
            Part::Sequence(parts) => names(parts).join(" "),
            Part::Either(parts) => names(parts).join(" | "),
            Part::Repeat { part, least, most } => {
                // What may be nothing may be nothing any number of times.
                let least = if self.plan.is_nullable[*part] { 0 } else { *least };
                let times = match (least, most) {
                    (0, None) => "*".to_owned(),
                    (1, None) => "+".to_owned(),
                    (0, Some(1)) => "?".to_owned(),
                    (least, None) => format!("{{{least},}}"),
                    (least, Some(most)) => format!("{{{least},{most}}}"),
                };
                format!("{}{times}", name(*part))
            }
        }
    }

    fn line(&mut self, line: std::fmt::Arguments) {
        writeln!(self.lark, "{line}").expect("a string takes what is written");
    }
}

/// As an expression of one character.
fn class(chars: &Chars) -> String {
    let mut class = "/[".to_owned();
    for (first, last) in &chars.0 {
        write!(class, "\\x{{{first:x}}}-\\x{{{last:x}}}").expect("a string takes what is written");
    }
    class + "]/"
}
