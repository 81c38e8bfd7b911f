//! From text to parts. No recursion: what is nested deeply costs memory, not stack.

use std::collections::HashMap;
use std::fmt::Write;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use crate::rule::RuleError;

/// Parts that a grammar may have after equal ones became one. What is computed from them grows faster than they do, and
/// a chain of them is compiled by recursion.
const MAX_PARTS: usize = 5000;
/// Most that a part may be said to repeat. llama.cpp takes 2,000, and reads more as no limit.
const MAX_TIMES: u32 = 100_000;
/// Characters of alternatives that are made one part.
pub(super) const GROUP_CHARS: usize = 100;
/// Spaces, without those that end a rule.
const BLANKS: [char; 2] = [' ', '\t'];

/// Of a part, in its grammar.
pub(super) type Id = usize;

/// What a text, or a piece of it, may be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// One character.
    Char(Chars),
    /// One after the other. A rule is a sequence of one, so that it can be spoken of before it is known.
    Sequence(Vec<Id>),
    /// One of them.
    Either(Vec<Id>),
    /// The same part, repeated.
    Repeat { part: Id, least: u32, most: Option<u32> },
}

/// A set of characters: ranges in their order, which do not touch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Chars(pub(super) Vec<(char, char)>);

/// A grammar whose every rule is known and can come to an end.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) all: Vec<Part>,
    pub(super) root: Id,
}

pub(super) fn parse(text: &str) -> Result<Parts, RuleError> {
    let mut reader = Reader { rest: text, line: 1, parts: Vec::new(), known: HashMap::new(), rules: HashMap::new() };
    reader.skip(true);
    while !reader.rest.is_empty() {
        reader.rule()?;
        reader.skip(true);
    }
    reader.finish()
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
    parts: Vec<Part>,
    /// Equal parts are one; a rule is none of them.
    known: HashMap<Part, Id>,
    rules: HashMap<&'a str, Rule>,
}

struct Rule {
    id: Id,
    /// Where it was first spoken of, or defined.
    line: usize,
    is_defined: bool,
}

/// What is open: a rule, or a group in it.
struct Open {
    alternatives: Vec<Id>,
    sequence: Vec<Id>,
    line: usize,
}

impl<'a> Reader<'a> {
    fn rule(&mut self) -> Result<(), RuleError> {
        let Some(name) = self.name() else {
            return Err(self.error(format!("a rule's name is expected, and not {}", self.next_words())));
        };
        let line = self.line;
        self.skip(false);
        if !self.eat("::=") {
            return Err(self.error(format!("::= is expected behind {}, and not {}", shown(name), self.next_words())));
        }
        self.skip(true);
        let body = self.alternatives()?;
        let rule = self.rule_named(name)?;
        let rule = self.rules.get_mut(rule).expect("it has just been named");
        if std::mem::replace(&mut rule.is_defined, true) {
            return Err(at(line, format!("the rule {} is there twice", shown(name))));
        }
        rule.line = line;
        self.parts[rule.id] = Part::Sequence(vec![body]);
        Ok(())
    }

    /// Up to the end of the rule.
    fn alternatives(&mut self) -> Result<Id, RuleError> {
        let mut open = vec![Open { alternatives: Vec::new(), sequence: Vec::new(), line: self.line }];
        loop {
            let is_nested = open.len() > 1;
            let inner = open.last_mut().expect("the rule itself is open until it ends");
            let Some(next) = self.rest.chars().next() else {
                if is_nested {
                    return Err(at(inner.line, "`(` is never closed".to_owned()));
                }
                return self.close(open.remove(0));
            };
            match next {
                '"' => inner.sequence.push(self.literal()?),
                '[' => inner.sequence.push(self.class()?),
                '.' => {
                    self.bump();
                    inner.sequence.push(self.part(Part::Char(Chars::of(&[], true)))?);
                }
                '(' => {
                    self.bump();
                    let line = self.line;
                    open.push(Open { alternatives: Vec::new(), sequence: Vec::new(), line });
                }
                ')' if is_nested => {
                    self.bump();
                    let group = open.pop().expect("it is nested");
                    let group = self.close(group)?;
                    open.last_mut().expect("it was nested").sequence.push(group);
                }
                '|' => {
                    self.bump();
                    let sequence = std::mem::take(&mut inner.sequence);
                    inner.alternatives.push(self.sequence(sequence)?);
                    self.skip(true);
                }
                '*' | '+' | '?' | '{' => {
                    let Some(part) = inner.sequence.pop() else {
                        return Err(self.error(format!("`{next}` has nothing before it to repeat")));
                    };
                    let (least, most) = self.times()?;
                    inner.sequence.push(self.repeat(part, least, most)?);
                }
                '\r' | '\n' => {
                    // A rule ends with its line, unless the next one continues with an alternative.
                    self.skip(true);
                    if !self.rest.starts_with('|') {
                        return self.close(open.remove(0));
                    }
                }
                '<' | '!' => {
                    let problem = "tokens (<...> and !<...>) are not taken, only characters";
                    return Err(self.error(problem.to_owned()));
                }
                _ => {
                    let Some(name) = self.name() else {
                        return Err(self.error(format!("{} is not expected here", self.next_words())));
                    };
                    let rule = self.rule_named(name)?;
                    inner.sequence.push(self.rules[rule].id);
                }
            }
            self.skip(open.len() > 1);
        }
    }

    fn close(&mut self, open: Open) -> Result<Id, RuleError> {
        let mut all = open.alternatives;
        all.push(self.sequence(open.sequence)?);
        if let [only] = all[..] {
            return Ok(only);
        }
        // Single characters are one set, which is read in one step.
        let mut chars = Vec::new();
        let mut others = Vec::new();
        for id in all {
            match &self.parts[id] {
                Part::Char(set) => chars.extend(set.0.iter().map(|&(first, last)| (first.into(), last.into()))),
                _ => others.push(id),
            }
        }
        others.sort_unstable();
        others.dedup();
        let mut others = self.in_groups(others)?;
        if !chars.is_empty() {
            others.insert(0, self.part(Part::Char(Chars::of(&chars, false)))?);
        }
        match others[..] {
            [only] => Ok(only),
            _ => self.part(Part::Either(others)),
        }
    }

    /// Many texts, in groups of neighbours, each of which is small enough to be read at once.
    fn in_groups(&mut self, alternatives: Vec<Id>) -> Result<Vec<Id>, RuleError> {
        let text = |id: Id| match &self.parts[id] {
            Part::Sequence(parts) if parts.len() > 1 => parts.iter().map(|&part| self.single(part)).collect(),
            _ => None,
        };
        let (texts, mut others): (Vec<Id>, Vec<Id>) = alternatives.iter().partition(|id| text(**id).is_some());
        if texts.len() <= GROUP_CHARS {
            return Ok(alternatives);
        }
        let mut texts: Vec<(Vec<char>, Id)> = texts.into_iter().filter_map(|id| Some((text(id)?, id))).collect();
        texts.sort_unstable();
        let mut group = Vec::new();
        let mut chars = 0;
        for (text, id) in texts {
            chars += text.len();
            if chars > GROUP_CHARS && !group.is_empty() {
                others.push(self.part(Part::Either(std::mem::take(&mut group)))?);
                chars = text.len();
            }
            group.push(id);
        }
        others.push(self.part(Part::Either(group))?);
        Ok(others)
    }

    /// The only character that a part may be.
    fn single(&self, id: Id) -> Option<char> {
        match &self.parts[id] {
            Part::Char(Chars(ranges)) => ranges[..].first().filter(|(first, last)| ranges.len() == 1 && first == last),
            _ => None,
        }
        .map(|&(only, _)| only)
    }

    fn sequence(&mut self, parts: Vec<Id>) -> Result<Id, RuleError> {
        match parts[..] {
            [only] => Ok(only),
            _ => self.part(Part::Sequence(parts)),
        }
    }

    fn repeat(&mut self, part: Id, least: u32, most: Option<u32>) -> Result<Id, RuleError> {
        match (least, most) {
            (_, Some(0)) => self.part(Part::Sequence(Vec::new())),
            (1, Some(1)) => Ok(part),
            _ => self.part(Part::Repeat { part, least, most }),
        }
    }

    fn part(&mut self, part: Part) -> Result<Id, RuleError> {
        if let Some(&id) = self.known.get(&part) {
            return Ok(id);
        }
        let id = self.new_part(part.clone())?;
        self.known.insert(part, id);
        Ok(id)
    }

    fn new_part(&mut self, part: Part) -> Result<Id, RuleError> {
        if self.parts.len() == MAX_PARTS {
            return Err(self.error(format!("the grammar has more than {MAX_PARTS} different parts")));
        }
        self.parts.push(part);
        Ok(self.parts.len() - 1)
    }

    /// The key of a rule, which may be defined later.
    fn rule_named(&mut self, name: &'a str) -> Result<&'a str, RuleError> {
        if !self.rules.contains_key(name) {
            let id = self.new_part(Part::Sequence(Vec::new()))?;
            self.rules.insert(name, Rule { id, line: self.line, is_defined: false });
        }
        Ok(name)
    }

    fn literal(&mut self) -> Result<Id, RuleError> {
        let line = self.line;
        self.bump();
        let mut text = Vec::new();
        loop {
            match self.rest.chars().next() {
                None => return Err(at(line, "a text's closing `\"` is missing".to_owned())),
                Some('"') => break,
                Some(_) => {
                    let code = self.character()?;
                    let Some(c) = char::from_u32(code) else {
                        return Err(self.error(format!("U+{code:04X} is no character")));
                    };
                    text.push(self.part(Part::Char(Chars(vec![(c, c)])))?);
                }
            }
        }
        self.bump();
        self.sequence(text)
    }

    fn class(&mut self) -> Result<Id, RuleError> {
        let line = self.line;
        self.bump();
        let is_negated = self.eat("^");
        let mut ranges = Vec::new();
        loop {
            match self.rest.chars().next() {
                None => return Err(at(line, "a class's closing `]` is missing".to_owned())),
                Some(']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            let mut last = first;
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.bump();
                if self.rest.is_empty() {
                    return Err(at(line, "a class's closing `]` is missing".to_owned()));
                }
                last = self.character()?;
            }
            if last < first {
                return Err(self.error(format!("the range U+{first:04X} to U+{last:04X} runs backwards")));
            }
            ranges.push((first, last));
        }
        self.bump();
        let is_empty = ranges.is_empty();
        let chars = Chars::of(&ranges, is_negated);
        if is_empty || chars.0.is_empty() {
            return Err(at(line, "a class has no character".to_owned()));
        }
        self.part(Part::Char(chars))
    }

    /// One character of a text or a class, as a code point.
    fn character(&mut self) -> Result<u32, RuleError> {
        let next = self.bump().expect("the caller has seen one");
        if next != '\\' {
            return Ok(next.into());
        }
        let Some(escape) = self.bump() else { return Err(self.error("`\\` has nothing behind it".to_owned())) };
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            't' => return Ok('\t'.into()),
            'r' => return Ok('\r'.into()),
            'n' => return Ok('\n'.into()),
            '\\' | '"' | '[' | ']' | '-' => return Ok(escape.into()),
            _ => return Err(self.error(format!("the escape `\\{}` is not known", escape.escape_debug()))),
        };
        let hex = self.rest.get(..digits).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(hex) = hex else {
            return Err(self.error(format!("`\\{escape}` has {digits} hexadecimal digits behind it")));
        };
        self.rest = &self.rest[digits..];
        Ok(u32::from_str_radix(hex, 16).expect("8 hexadecimal digits at most"))
    }

    /// The repetition that follows a part: least and most.
    fn times(&mut self) -> Result<(u32, Option<u32>), RuleError> {
        match self.bump() {
            Some('*') => return Ok((0, None)),
            Some('+') => return Ok((1, None)),
            Some('?') => return Ok((0, Some(1))),
            _ => {}
        }
        let line = self.line;
        self.skip(true);
        let least = self.number()?;
        self.skip(true);
        let mut most = Some(least);
        if self.eat(",") {
            self.skip(true);
            most = if self.rest.starts_with('}') { None } else { Some(self.number()?) };
            self.skip(true);
        }
        if !self.eat("}") {
            return Err(at(line, format!("`}}` is expected behind `{{`, and not {}", self.next_words())));
        }
        match most {
            Some(most) if most < least => Err(at(line, format!("{{{least},{most}}} runs backwards"))),
            _ => Ok((least, most)),
        }
    }

    fn number(&mut self) -> Result<u32, RuleError> {
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = self.rest.split_at(digits);
        if number.is_empty() {
            return Err(self.error(format!("a number is expected, and not {}", self.next_words())));
        }
        self.rest = rest;
        match number.parse() {
            Ok(number) if number <= MAX_TIMES => Ok(number),
            _ => Err(self.error(format!("a part is repeated at most {MAX_TIMES} times"))),
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let is_of_name = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        let (name, rest) = self.rest.split_at(self.rest.bytes().take_while(is_of_name).count());
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    /// Behind spaces and comments; behind lines too where these end nothing.
    fn skip(&mut self, is_over_lines: bool) {
        while let Some(next) = self.rest.chars().next() {
            if next == '#' {
                self.rest = self.rest.trim_start_matches(|c| c != '\n' && c != '\r');
            } else if BLANKS.contains(&next) || (is_over_lines && matches!(next, '\r' | '\n')) {
                self.bump();
            } else {
                break;
            }
        }
    }

    fn bump(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        // A line ends with \n, \r\n, or \r alone.
        if next == '\n' || (next == '\r' && !self.rest.starts_with('\n')) {
            self.line += 1;
        }
        Some(next)
    }

    fn eat(&mut self, word: &str) -> bool {
        match self.rest.strip_prefix(word) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// The next characters, for an error.
    fn next_words(&self) -> String {
        match self.rest.chars().next() {
            None => "the end".to_owned(),
            Some('\r' | '\n') => "the end of the line".to_owned(),
            Some(c) => format!("`{}`", c.escape_debug()),
        }
    }

    fn error(&self, problem: String) -> RuleError {
        at(self.line, problem)
    }

    fn finish(self) -> Result<Parts, RuleError> {
        let unknown =
            self.rules.iter().filter(|(_, rule)| !rule.is_defined).min_by_key(|(_, rule)| (rule.line, rule.id));
        if let Some((name, rule)) = unknown {
            return Err(at(rule.line, format!("the rule {} is not there", shown(name))));
        }
        let Some(root) = self.rules.get("root").map(|rule| rule.id) else {
            return Err(at(1, "the rule `root`, where an answer begins, is not there".to_owned()));
        };
        let parts = Parts { all: self.parts, root };
        let ends = parts.settled(|part| match part {
            Part::Char(_) => 0,
            Part::Sequence(parts) => parts.len(),
            Part::Either(_) => 1,
            Part::Repeat { least, .. } => usize::from(*least > 0),
        });
        // One that another waits for is as endless as that one: the first in the text is named.
        let endless = self.rules.iter().filter(|(_, rule)| !ends.is[rule.id]).min_by_key(|(_, rule)| rule.line);
        match endless {
            Some((name, rule)) => Err(at(rule.line, format!("the rule {} can never come to an end", shown(name)))),
            None => Ok(parts.without_names(&ends.order)),
        }
    }
}

/// Which parts have what their own parts give them.
pub(super) struct Settled {
    pub(super) is: Vec<bool>,
    /// Those that have, each behind the parts that it has it from.
    pub(super) order: Vec<Id>,
}

impl Parts {
    /// Replaces references to a sequence of one part by that part. `order`: all parts, such a sequence behind its own.
    fn without_names(mut self, order: &[Id]) -> Parts {
        let mut meant: Vec<Id> = (0..self.all.len()).collect();
        for &id in order {
            if let Part::Sequence(parts) = &self.all[id]
                && let [only] = parts[..]
            {
                meant[id] = meant[only];
            }
        }
        for part in &mut self.all {
            match part {
                Part::Char(_) => {}
                Part::Sequence(parts) | Part::Either(parts) => parts.iter_mut().for_each(|id| *id = meant[*id]),
                Part::Repeat { part, .. } => *part = meant[*part],
            }
        }
        self.root = meant[self.root];
        self
    }

    /// A regular part as an expression, in ASCII and without `/`. `is_loose`: counts above 1 are any number. By recursion:
    /// as deep as lexemes are.
    pub(super) fn expression(&self, id: Id, is_loose: bool) -> String {
        let each = |parts: &[Id]| parts.iter().map(|&part| self.expression(part, is_loose)).collect::<Vec<_>>();
        match &self.all[id] {
            Part::Char(chars) => chars.class(),
            Part::Sequence(parts) => each(parts).concat(),
            Part::Either(parts) => format!("(?:{})", each(parts).join("|")),
            Part::Repeat { part, least, most } => {
                let (least, most) = match most {
                    Some(most) if *most > 1 && is_loose => ((*least).min(1), None),
                    most => (if is_loose { (*least).min(1) } else { *least }, *most),
                };
                format!("(?:{}){}", self.expression(*part, is_loose), times(least, most))
            }
        }
    }

    /// The smallest set that holds every part of whose own parts (counted with repetition) at least `wants` are in it.
    ///
    /// Cost: linear.
    pub(super) fn settled(&self, wants: impl Fn(&Part) -> usize) -> Settled {
        let mut parents = vec![Vec::new(); self.all.len()];
        for (id, part) in self.all.iter().enumerate() {
            for &child in part.children() {
                parents[child].push(id);
            }
        }
        let mut wanted: Vec<usize> = self.all.iter().map(wants).collect();
        let mut order: Vec<Id> = (0..self.all.len()).filter(|&id| wanted[id] == 0).collect();
        let mut is: Vec<bool> = wanted.iter().map(|&wanted| wanted == 0).collect();
        let mut next = 0;
        while let Some(&id) = order.get(next) {
            next += 1;
            for &parent in &parents[id] {
                wanted[parent] = wanted[parent].saturating_sub(1);
                if wanted[parent] == 0 && !is[parent] {
                    is[parent] = true;
                    order.push(parent);
                }
            }
        }
        Settled { is, order }
    }
}

impl Part {
    pub(super) fn children(&self) -> &[Id] {
        match self {
            Part::Char(_) => &[],
            Part::Sequence(parts) | Part::Either(parts) => parts,
            Part::Repeat { part, .. } => std::slice::from_ref(part),
        }
    }
}

impl Chars {
    /// Those of these code points that are characters, or all others.
    fn of(ranges: &[(u32, u32)], is_negated: bool) -> Chars {
        let chars = ranges.iter().filter_map(|&(first, last)| {
            let mut codes = first..=last.min(char::MAX.into());
            let first = codes.find_map(char::from_u32)?;
            let last = codes.rev().find_map(char::from_u32).unwrap_or(first);
            Some(ClassUnicodeRange::new(first, last))
        });
        let mut class = ClassUnicode::new(chars);
        if is_negated {
            class.negate();
        }
        Chars(class.iter().map(|range| (range.start(), range.end())).collect())
    }

    fn class(&self) -> String {
        let mut class = "[".to_owned();
        for (first, last) in &self.0 {
            let _ = write!(class, "\\x{{{:x}}}-\\x{{{:x}}}", *first as u32, *last as u32); // a string takes all
        }
        class + "]"
    }
}

/// How often, as expressions and Lark write it.
pub(super) fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

/// A rule's name as an error has it. It is ASCII.
fn shown(name: &str) -> String {
    match name.get(..60) {
        Some(start) => format!("`{start}...`"),
        None => format!("`{name}`"),
    }
}

fn at(line: usize, problem: String) -> RuleError {
    RuleError::Gbnf { line, problem }
}
