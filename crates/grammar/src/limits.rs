//! What a rule may have before it is compiled: all that the compiler's own steps do not count.
//!
//! The numbers are those at which the worst rules that were found took one or two tenths of a second of one core to
//! compile; beyond some of them it was minutes, gigabytes, or more stack than there is. They count what is in the text,
//! so that a rule that is refused is refused on every machine.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

use crate::lark::{self, branches};
use crate::rule::{Rule, RuleError};

/// Bytes of all regular expressions of a rule.
const MAX_EXPRESSION_BYTES: usize = 64 << 10;
/// `\p`, `\w`, `\d` and their opposites in expressions: sets of hundreds of ranges, of some 100 KiB each where case
/// does not count.
const MAX_CLASSES: usize = 1000;

/// Lark's text, in bytes.
const MAX_LARK_BYTES: usize = 128 << 10;
/// Names, texts, expressions and groups of a Lark grammar. Each may be a lexeme, which is compared with all others, or
/// a step of a chain, which is compiled by recursion: [`crate::vocabulary`] has the stack for this number.
pub(crate) const MAX_LARK_PIECES: usize = 6000;
/// `&` in a Lark grammar: the number of states of an intersection is the product of those of its sides.
const MAX_LARK_INTERSECTIONS: usize = 4;

/// Values in a schema's JSON, keys not counted.
const MAX_SCHEMA_VALUES: usize = 10_000;
/// Pairs of properties of the same object, in all objects.
const MAX_PROPERTY_PAIRS: usize = 500_000;
/// Properties in a row that may be absent: each of them may be the next. More of them are refused where an answer
/// begins with them; deeper down they would end it.
const MAX_ABSENT_RUN: usize = 249;
/// `pattern`s of a schema that joins schemas: all that come to stand in one place are intersected.
const MAX_JOINED_PATTERNS: usize = 12;

/// Remainders that all `multipleOf`s of a schema have: each is a state, and they are looked through to see that there is a
/// number at all.
const MAX_STEPS: u64 = 1 << 16;

/// What a mask may take of a step. A row of the parser is the ways in which a text may go on at one place; a way that
/// is found is compared with those that the row has. So a mask's work is its ways, times those of a row, times how
/// often the same way is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepLimits {
    /// Ways of the row at the end of an answer.
    pub(crate) place_items: usize,
    /// Ways that a mask looks at, in the rows of all tokens that it tries.
    pub(crate) mask_items: usize,
}

/// Where a way is found a few times at most: schemas, and grammars that go on in one place. An object with 249
/// properties that may all be absent has a row of a thousand; the widest schema of `tests/harm.rs` that is taken has
/// masks of 5,500. The worst that was found (lists of 200 lengths within each other) takes 23 ms, and common ones some
/// hundredths of one.
const FEW_READINGS: StepLimits = StepLimits { place_items: 1000, mask_items: 6000 };
/// Where a rule has itself in two places, a text has as many parses as it has places, and each is found again
/// for each: with the limits of the others some took 1.4 s. With these the worst takes 4 ms; JSON and arithmetic as
/// grammars take a fifth of them.
const MANY_READINGS: StepLimits = StepLimits { place_items: 300, mask_items: 2500 };

impl StepLimits {
    /// Those of a rule; `lark`: what it is compiled as, if it is a grammar.
    pub(crate) fn of(rule: &Rule, grammars: &[Option<&str>]) -> StepLimits {
        let is_grammar = match rule {
            Rule::Behind { rule, .. } => matches!(**rule, Rule::Lark(_) | Rule::Gbnf(_)),
            rule => matches!(rule, Rule::Lark(_) | Rule::Gbnf(_)),
        };
        let branches = is_grammar && grammars.iter().flatten().any(|lark| branches(lark));
        if branches { MANY_READINGS } else { FEW_READINGS }
    }
}

/// Keys beside `$ref` that join nothing to what it names.
const NOTES: [&str; 9] =
    ["$ref", "$defs", "definitions", "$schema", "$id", "$comment", "title", "description", "default"];

pub(crate) fn check_expression(expression: &str) -> Result<(), RuleError> {
    let mut counted = Expressions::default();
    counted.add(expression);
    counted.check()
}

pub(crate) fn check_lark(text: &str) -> Result<(), RuleError> {
    at_most("bytes", text.len(), MAX_LARK_BYTES)?;
    let mut expressions = Expressions::default();
    let (mut pieces, mut intersections) = (0, 0);
    for piece in lark::pieces(text) {
        let first = piece.chars().next().unwrap_or_default();
        match first {
            '/' if !piece.starts_with("//") => expressions.add(piece),
            '%' => {
                // What is no JSON is the compiler's to refuse.
                if let Some(Ok(schema)) = piece.strip_prefix("%json").map(serde_json::from_str) {
                    check_schema(&schema)?;
                }
            }
            ':' if piece == "::" => {
                return Err(RuleError::Refused("rules with parameters (::) are not taken".to_owned()));
            }
            _ => {}
        }
        pieces += usize::from(first.is_alphabetic() || matches!(first, '_' | '"' | '/' | '(' | '[' | '{' | '<' | '@'));
        intersections += usize::from(first == '&');
    }
    at_most("names, texts, expressions and groups", pieces, MAX_LARK_PIECES)?;
    at_most("intersections (&)", intersections, MAX_LARK_INTERSECTIONS)?;
    expressions.check()
}

/// Remainders of a schema's `multipleOf`s.
pub(crate) fn steps(schema: &Value) -> u64 {
    Schema::of(schema).count_steps()
}

/// A step as the compiler reads it, in double precision: a whole number, and how many of its digits stand behind the
/// point. `None`: it has more digits than are counted.
pub(crate) fn step(mut step: f64) -> Option<(u64, u32)> {
    let mut digits = 0;
    while step.is_finite() && step.fract() != 0.0 {
        (step, digits) = (step * 10.0, digits + 1);
    }
    (step <= f64::from(u32::MAX)).then_some((step as u64, digits))
}

pub(crate) fn check_schema(schema: &Value) -> Result<(), RuleError> {
    let counted = Schema::of(schema);
    at_most("values", counted.values, MAX_SCHEMA_VALUES)?;
    at_most("pairs of properties of the same object", counted.pairs, MAX_PROPERTY_PAIRS)?;
    at_most("properties in a row that may be absent", counted.absent_run, MAX_ABSENT_RUN)?;
    let what = "remainders of its 'multipleOf's (digits without zeros behind them, all together)";
    at_most(what, counted.count_steps() as usize, MAX_STEPS as usize)?;
    if counted.is_joined {
        at_most("patterns in a schema with allOf, or with $ref and more,", counted.patterns, MAX_JOINED_PATTERNS)?;
    }
    counted.expressions.check()
}

#[derive(Default)]
struct Schema {
    values: usize,
    pairs: usize,
    absent_run: usize,
    patterns: usize,
    is_joined: bool,
    steps: BTreeSet<(u64, u32)>,
    expressions: Expressions,
}

impl Schema {
    fn of(schema: &Value) -> Schema {
        let mut counted = Schema::default();
        let mut open = vec![schema];
        while let Some(value) = open.pop() {
            counted.values += 1;
            match value {
                Value::Object(map) => {
                    counted.add(map);
                    open.extend(map.values());
                }
                Value::Array(values) => open.extend(values),
                _ => {}
            }
        }
        counted
    }

    /// Those that are joined are multiplied, and the compiler does so in 32 bits.
    fn count_steps(&self) -> u64 {
        let bare = |mut step: u64| {
            while step > 0 && step.is_multiple_of(10) {
                step /= 10;
            }
            step
        };
        if !self.is_joined {
            return self.steps.iter().map(|&(step, _)| bare(step)).sum();
        }
        let most = self.steps.iter().map(|&(_, digits)| digits).max().unwrap_or(0);
        let product = self.steps.iter().try_fold(1_u64, |all, &(step, digits)| {
            let step = step.checked_mul(10_u64.checked_pow(most - digits)?)?;
            let product = all.checked_mul(step).filter(|&product| product <= u32::MAX.into())?;
            Some(product / gcd(all, step))
        });
        product.map_or(u32::MAX.into(), bare)
    }

    fn add(&mut self, map: &Map<String, Value>) {
        if let Some(Value::String(pattern)) = map.get("pattern") {
            self.patterns += 1;
            self.expressions.add(pattern);
        }
        self.steps.extend(map.get("multipleOf").and_then(Value::as_f64).and_then(step));
        if let Some(Value::Object(patterns)) = map.get("patternProperties") {
            self.patterns += patterns.len();
            patterns.keys().for_each(|pattern| self.expressions.add(pattern));
        }
        let count = |key: &str| map.get(key).and_then(Value::as_object).map_or(0, Map::len);
        self.pairs = self.pairs.saturating_add((count("properties") + count("patternProperties")).saturating_pow(2));
        if let Some(Value::Object(properties)) = map.get("properties") {
            let required = map.get("required").and_then(Value::as_array);
            let required: HashSet<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
            let mut run = 0;
            for name in properties.keys() {
                run = if required.contains(name.as_str()) { 0 } else { run + 1 };
                self.absent_run = self.absent_run.max(run);
            }
        }
        let is_more = map.contains_key("$ref") && map.keys().any(|key| !NOTES.contains(&key.as_str()));
        self.is_joined |= is_more || map.contains_key("allOf");
    }
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

#[derive(Default)]
struct Expressions {
    bytes: usize,
    classes: usize,
}

impl Expressions {
    fn add(&mut self, expression: &str) {
        self.bytes += expression.len();
        let pairs = expression.as_bytes().windows(2);
        self.classes += pairs.filter(|pair| pair[0] == b'\\' && b"pPwWdD".contains(&pair[1])).count();
    }

    fn check(&self) -> Result<(), RuleError> {
        at_most("bytes of expressions", self.bytes, MAX_EXPRESSION_BYTES)?;
        at_most("classes (\\p, \\w, \\d) in expressions", self.classes, MAX_CLASSES)
    }
}

fn at_most(what: &'static str, count: usize, most: usize) -> Result<(), RuleError> {
    if count <= most { Ok(()) } else { Err(RuleError::TooMuch { what, count, most }) }
}
