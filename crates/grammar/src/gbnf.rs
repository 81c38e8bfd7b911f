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

use self::parse::Part;
use crate::rule::RuleError;

/// The same language, its `root` being `start`: a rule `n4` for each part that is one, and a terminal `L5` for each
/// lexeme. All is flat: Lark's own parser takes little nesting.
pub(crate) fn to_lark(text: &str) -> Result<String, RuleError> {
    let parts = parse::parse(text)?;
    let plan = lexemes::plan(&parts).map_err(|lexemes::TooIntricate| {
        let problem = "the grammar is too large to find out what may follow what in it";
        RuleError::Gbnf { line: 1, problem: problem.to_owned() }
    })?;
    let mut is_lexeme = vec![false; parts.all.len()];
    plan.lexemes.iter().for_each(|&id| is_lexeme[id] = true);
    let name = |&id: &usize| match (is_lexeme[id], plan.is_nullable[id]) {
        (true, false) => format!("L{id}"),
        (true, true) => format!("(L{id}|\"\")"),
        (false, _) => format!("n{id}"),
    };
    let names = |parts: &[usize]| parts.iter().map(name).collect::<Vec<_>>();
    let mut lark = format!("start: {}\n", name(&parts.root));
    for &id in &plan.rules {
        let body = match &parts.all[id] {
            Part::Char(_) => format!("/{}/", parts.expression(id, false)),
            Part::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
            Part::Sequence(parts) => names(parts).join(" "),
            Part::Either(parts) => names(parts).join(" | "),
            Part::Repeat { part, least, most } => {
                // What may be nothing may be nothing any number of times.
                let least = if plan.is_nullable[*part] { 0 } else { *least };
                name(part) + &parse::times(least, *most)
            }
        };
        let _ = writeln!(lark, "n{id}: {body}"); // a string takes all
    }
    for &id in &plan.lexemes {
        // A lexeme of nothing is none.
        let but_nothing = if plan.is_nullable[id] { " & /(?s:.+)/" } else { "" };
        let _ = writeln!(lark, "L{id}: /{}/{but_nothing}", parts.expression(id, false));
    }
    Ok(lark)
}
