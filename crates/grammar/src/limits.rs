//! What a rule may have before it is compiled: all that the compiler's own steps do not count.
//!
//! The numbers are those at which the worst rules that were found took one or two tenths of a second of one core to
//! compile; beyond some of them it was minutes, gigabytes, or more stack than there is. They count what stands in the
//! text, so that a rule that is refused is refused on every machine.

use serde_json::{Map, Value};

use crate::rule::RuleError;

/// Bytes of all regular expressions of a rule.
const MAX_EXPRESSION_BYTES: usize = 64 << 10;
/// `\p`, `\w`, `\d` and their opposites in expressions: sets of hundreds of ranges, of some 100 KiB each where case
/// does not count.
const MAX_CLASSES: usize = 1000;

/// Lark's text, in bytes.
const MAX_LARK_BYTES: usize = 128 << 10;
/// Names, texts, expressions and groups of a Lark grammar. Each may be a lexeme, which is compared with all others, or
/// a step of a chain, which is compiled by recursion: [`crate::vocabulary`] has the stack for so many.
pub(crate) const MAX_LARK_PIECES: usize = 6000;
/// `&` in a Lark grammar: the states of an intersection are as many as the product of those of its sides.
const MAX_LARK_INTERSECTIONS: usize = 4;

/// Values in a schema's JSON, keys not counted.
const MAX_SCHEMA_VALUES: usize = 10_000;
/// Pairs of properties of the same object, in all objects.
const MAX_PROPERTY_PAIRS: usize = 500_000;
/// `pattern`s of a schema that joins schemas: all that come to stand in one place are intersected.
const MAX_JOINED_PATTERNS: usize = 12;

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
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let length = match next {
            '"' => delimited(rest, '"'),
            '#' => line(rest),
            '/' if rest.starts_with("//") => line(rest),
            '/' => {
                let length = delimited(rest, '/');
                expressions.add(&rest[..length]);
                length
            }
            '%' if rest.starts_with("%json") => {
                let json = &rest["%json".len()..];
                let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
                // What is no JSON is the compiler's to refuse.
                if let Some(Ok(schema)) = values.next() {
                    check_schema(&schema)?;
                }
                "%json".len() + values.byte_offset()
            }
            // A special token, whose name may have a slash.
            '<' => rest.find('>').map_or(1, |end| end + 1),
            ':' if rest.starts_with("::") => {
                return Err(RuleError::Refused("rules with parameters (::) are not taken".to_owned()));
            }
            c if c.is_alphanumeric() || c == '_' => {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').unwrap_or(rest.len())
            }
            c => c.len_utf8(),
        };
        pieces += usize::from(next.is_alphabetic() || matches!(next, '_' | '"' | '/' | '(' | '[' | '{' | '<' | '@'));
        intersections += usize::from(next == '&');
        rest = &rest[length..];
    }
    at_most("names, texts, expressions and groups", pieces, MAX_LARK_PIECES)?;
    at_most("intersections (&)", intersections, MAX_LARK_INTERSECTIONS)?;
    expressions.check()
}

pub(crate) fn check_schema(schema: &Value) -> Result<(), RuleError> {
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
    at_most("values", counted.values, MAX_SCHEMA_VALUES)?;
    at_most("pairs of properties of the same object", counted.pairs, MAX_PROPERTY_PAIRS)?;
    if counted.is_joined {
        at_most("patterns in a schema with allOf, or with $ref and more,", counted.patterns, MAX_JOINED_PATTERNS)?;
    }
    counted.expressions.check()
}

#[derive(Default)]
struct Schema {
    values: usize,
    pairs: usize,
    patterns: usize,
    is_joined: bool,
    expressions: Expressions,
}

impl Schema {
    fn add(&mut self, map: &Map<String, Value>) {
        if let Some(Value::String(pattern)) = map.get("pattern") {
            self.patterns += 1;
            self.expressions.add(pattern);
        }
        if let Some(Value::Object(patterns)) = map.get("patternProperties") {
            self.patterns += patterns.len();
            patterns.keys().for_each(|pattern| self.expressions.add(pattern));
        }
        let count = |key: &str| map.get(key).and_then(Value::as_object).map_or(0, Map::len);
        self.pairs = self.pairs.saturating_add((count("properties") + count("patternProperties")).saturating_pow(2));
        let is_more = map.contains_key("$ref") && map.keys().any(|key| !NOTES.contains(&key.as_str()));
        self.is_joined |= is_more || map.contains_key("allOf");
    }
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

fn at_most(what: &'static str, count: usize, most: usize) -> Result<(), RuleError> {
    if count <= most { Ok(()) } else { Err(RuleError::TooMuch { what, count, most }) }
}
