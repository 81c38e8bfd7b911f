//! A JSON schema as its sender wrote it, made into one that compiles.
//!
//! ```text
//! schema --walk--> what says nothing is left out, what has an equal is written as that   --compiles?--> Fitted
//!                  what cannot be kept to: strict, an error; else left open, and named        |no
//!                                                     repair: the smallest parts that fail <--+
//! ```
//! A schema is advice unless its sender says strict. Places are in the schema's own words, `.properties.m.uniqueItems`,
//! to be appended to the name of the field that holds the schema.
//!
//! All of it is a function of the schema alone: whether something compiles is tried with bytes as tokens.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::{Mutex, OnceLock, PoisonError};

use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Hir, HirKind, Look};
use serde_json::{Map, Number, Value, json};

use crate::ecma::in_our_words;
use crate::limits;
use crate::rule::{MAX_RULE_BYTES, OPTIONS, Rule, RuleError};
use crate::vocabulary;

/// A schema that compiles.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// The schema.
    pub schema: Value,
    /// Places of the sender's schema that are not kept to.
    pub open: Vec<String>,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Misfit {
    /// Where in the sender's schema; empty: the whole of it.
    pub place: String,
    /// What is wrong there.
    pub problem: String,
}

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Formats that are kept to; all others are notes (JSON Schema 2020-12, 7.2.1).
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Schemas within a schema that are looked at.
const MAX_NODES: usize = 50_000;
/// Names that `propertyNames` may list to be written as properties.
const MAX_NAMES: usize = 200;
/// What may be spent on one schema, in bytes of grammars that are compiled on the way ([`vocabulary::try_rule`]): a
/// second or two of one core. The last quarter is for what then is left open.
const MOST_WORK: usize = 128 << 20;
const SEARCH_WORK: usize = MOST_WORK / 4 * 3;
/// What is remembered, in bytes of schemas.
const MAX_KEPT_BYTES: usize = 8 << 20;

/// Up to here a double is every whole number: the compiler counts in doubles.
const MAX_EXACT: u64 = 1 << 53;
/// The last double below 2^63: it writes bounds digit by digit, in 64 bits.
const MAX_BOUND: f64 = 9_223_372_036_854_774_784.0;
/// Bounds, and which way is up from them.
const SIDES: [(&str, &str, f64); 2] = [("minimum", "exclusiveMinimum", 1.0), ("maximum", "exclusiveMaximum", -1.0)];
/// Nearer to 0 no answer has a number: it is written digit by digit.
const LEAST_WRITTEN: f64 = 1e-17;
/// No answer has as much of anything.
const MAX_COUNT: u64 = u32::MAX as u64;

const NOT_EXACT: &str =
    "whole numbers beyond 9007199254740992 cannot be told from their neighbours; send them as texts";
const NO_EXPRESSION: &str =
    "this expression cannot be held to; write it without looking around or back, or leave it out";
const NOT_FOUND: &str = "it takes too many steps to find what of it does not compile: simplify it";
const NOT_KEPT: &str = "this keyword cannot be held to; leave it out, or send the schema without 'strict'";

/// Makes a schema into one that compiles. Strict: all that it says is kept to, or it is an error. Else what cannot be
/// kept to is left open. Milliseconds, unless it was asked for a short while ago: not for the threads that serve
/// connections.
pub fn fit_schema(schema: &Value, strict: bool) -> Result<Fitted, Misfit> {
    type Kept = (HashMap<(Value, bool), Result<Fitted, Misfit>>, usize);
    static KEPT: OnceLock<Mutex<Kept>> = OnceLock::new();
    let kept = || KEPT.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let key = (schema.clone(), strict);
    if let Some(found) = kept().0.get(&key) {
        return found.clone();
    }
    let fitted = fit(schema, strict);
    let bytes = 2 * schema.to_string().len() + 256;
    let mut kept = kept();
    if kept.1 + bytes > MAX_KEPT_BYTES {
        *kept = Kept::default();
    }
    if bytes <= MAX_KEPT_BYTES {
        kept.0.insert(key, fitted.clone());
        kept.1 += bytes;
    }
    fitted
}

fn fit(schema: &Value, strict: bool) -> Result<Fitted, Misfit> {
    // Expressions are looked at one by one only where the whole does not compile.
    let mut walk = Walk::new(schema, strict);
    let mut fitted = walk.whole()?;
    if walk.try_out(&fitted).is_err() {
        walk = Walk { tries_patterns: true, work: walk.work, failed: walk.failed, ..Walk::new(schema, strict) };
        fitted = walk.whole()?;
        if walk.try_out(&fitted).is_err() {
            fitted = walk.repair_all(fitted)?;
        }
    }
    Ok(walk.done(fitted))
}

/// Which schemas have a finite value: each waits for as many of those that it is made of as it needs, so that all of
/// them take as long as there are references. What allows nothing is not asked.
#[derive(Default)]
struct Ends {
    waits: Vec<usize>,
    users: Vec<Vec<usize>>,
}

impl Ends {
    /// One that waits for `count` of these.
    fn wait(&mut self, count: usize, parts: &[usize]) -> usize {
        let at = self.waits.len();
        parts.iter().for_each(|&part| self.users[part].push(at));
        self.waits.push(count);
        self.users.push(Vec::new());
        at
    }

    fn schema(&mut self, schema: &Value, definitions: &HashMap<&str, usize>) -> usize {
        let all = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten();
        let mut needed: Vec<&Value> = all("allOf").collect();
        match schema.get("type").and_then(Value::as_str) {
            Some("object") => {
                let required = all("required").filter_map(Value::as_str);
                needed.extend(required.filter_map(|name| schema.get("properties")?.get(name)));
            }
            Some("array") => {
                let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
                needed.extend(all("prefixItems").take(least));
                needed.extend(schema.get("items").filter(|_| all("prefixItems").count() < least));
            }
            _ => {}
        }
        let mut parts: Vec<usize> = needed.into_iter().map(|one| self.schema(one, definitions)).collect();
        let to = schema.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix("#/$defs/"));
        parts.extend(to.and_then(|name| definitions.get(name)));
        for key in ["anyOf", "oneOf"].into_iter().filter(|key| schema.get(*key).is_some_and(Value::is_array)) {
            let branches: Vec<usize> = all(key).map(|one| self.schema(one, definitions)).collect();
            parts.push(self.wait(1, &branches));
        }
        self.wait(parts.len(), &parts)
    }

    /// This one has an end, and so have those that waited for it alone.
    fn end(&mut self, at: usize) {
        self.waits[at] = 0;
        let mut open = vec![at];
        while let Some(at) = open.pop() {
            for user in std::mem::take(&mut self.users[at]) {
                if self.waits[user] == 1 {
                    open.push(user);
                }
                self.waits[user] = self.waits[user].saturating_sub(1);
            }
        }
    }
}

/// Definitions of which no value is finite, from the last on: each of them counts as left out for those before it.
fn endless(definitions: &Map<String, Value>) -> Vec<String> {
    let mut ends = Ends::default();
    let places: HashMap<&str, usize> = definitions.keys().map(|name| (name.as_str(), ends.wait(1, &[]))).collect();
    for (name, schema) in definitions {
        let (own, whole) = (places[name.as_str()], ends.schema(schema, &places));
        ends.users[whole].push(own);
    }
    for at in 0..ends.waits.len() {
        if ends.waits[at] == 0 {
            ends.end(at);
        }
    }
    let mut left = Vec::new();
    for name in definitions.keys().rev() {
        if ends.waits[places[name.as_str()]] > 0 {
            ends.end(places[name.as_str()]);
            left.push(name.clone());
        }
    }
    left
}

fn misfit(place: &str, problem: impl Into<String>) -> Misfit {
    Misfit { place: place.to_owned(), problem: problem.into() }
}

struct Walk<'a> {
    root: &'a Value,
    strict: bool,
    tries_patterns: bool,
    open: Vec<String>,
    nodes: usize,
    /// What a reference may name beside places: `$anchor`s and `$id`s, as they are written and within what they are in.
    anchors: HashMap<String, Found<'a>>,
    /// The schema with an `$id` that a reference stands in and is relative to, by the reference's text in memory.
    bases: HashMap<usize, Rc<Base<'a>>>,
    /// Names that schemas got that are referred to, by their place. Two may be shown as one place, `a.b` and `b` in `a`:
    /// where they lie tells them apart.
    names: BTreeMap<(String, usize), String>,
    /// The same names.
    taken: BTreeSet<String>,
    pending: Vec<(String, Found<'a>)>,
    /// What its trials took, of [`MOST_WORK`].
    work: usize,
    failed: Option<(Value, RuleError)>,
    /// Whether an expression or outlines of branches compile.
    known: HashMap<Value, bool>,
    /// Whether bounds of two of its schemas may hold for one number.
    joins: bool,
}

#[derive(Clone)]
struct Found<'a> {
    value: &'a Value,
    place: String,
}

/// A schema with an `$id`, and what it is then called.
struct Base<'a> {
    name: String,
    found: Found<'a>,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Value, strict: bool) -> Walk<'a> {
        let mut walk = Walk {
            root,
            strict,
            tries_patterns: false,
            open: Vec::new(),
            nodes: 0,
            anchors: HashMap::new(),
            bases: HashMap::new(),
            names: BTreeMap::new(),
            taken: BTreeSet::new(),
            pending: Vec::new(),
            work: 0,
            failed: None,
            known: HashMap::new(),
            joins: false,
        };
        let found = Found { value: root, place: String::new() };
        let mut open = vec![(found.clone(), Rc::new(Base { name: String::new(), found }))];
        while let Some((found, mut base)) = open.pop() {
            let place = &found.place;
            match found.value {
                Value::Object(map) => {
                    if let Some(id) = map.get("$id").and_then(Value::as_str) {
                        let name = resolved(&base.name, id.trim_end_matches('#'));
                        walk.anchors.entry(name.clone()).or_insert(found.clone());
                        base = Rc::new(Base { name, found: found.clone() });
                    }
                    for text in REFERENCES.iter().filter_map(|key| map.get(*key)?.as_str()) {
                        walk.bases.insert(text.as_ptr() as usize, base.clone());
                    }
                    let bounded = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
                    walk.joins |= map.contains_key("allOf")
                        || bounded.iter().any(|key| map.contains_key(*key))
                            && ["$ref", "anyOf", "oneOf"].iter().any(|key| map.contains_key(*key));
                    for key in ["$anchor", "$dynamicAnchor", "$id", "id"] {
                        let Some(text) = map.get(key).and_then(Value::as_str) else { continue };
                        let is_anchor = key.ends_with("nchor");
                        let own = is_anchor.then(|| format!("{}#{text}", base.name));
                        let plain = if is_anchor { format!("#{text}") } else { text.trim_end_matches('#').into() };
                        for name in own.into_iter().chain([plain]) {
                            walk.anchors.entry(name).or_insert(found.clone());
                        }
                    }
                    let part = |(key, value)| (Found { value, place: format!("{place}.{key}") }, base.clone());
                    open.extend(map.iter().map(part));
                }
                Value::Array(items) => {
                    let part = |(at, value)| (Found { value, place: format!("{place}[{at}]") }, base.clone());
                    open.extend(items.iter().enumerate().map(part));
                }
                _ => {}
            }
        }
        walk
    }

    /// Whether it compiles. What failed last is often asked for again, as a part of itself.
    fn try_out(&mut self, schema: &Value) -> Result<(), RuleError> {
        if let Some((failed, error)) = &self.failed
            && failed == schema
        {
            return Err(error.clone());
        }
        let (result, work) = vocabulary::try_rule(&Rule::JsonSchema(schema.clone()));
        self.work += work;
        if let Err(error) = &result {
            self.failed = Some((schema.clone(), error.clone()));
        }
        result
    }

    fn is_searching(&self) -> bool {
        self.work < SEARCH_WORK
    }

    fn whole(&mut self) -> Result<Value, Misfit> {
        let mut whole = self.node(self.root, "")?;
        let (mut definitions, mut places) = (Map::new(), HashMap::new());
        while let Some((name, found)) = self.pending.pop() {
            let fitted = self.node(found.value, &found.place)?;
            places.insert(name.clone(), found.place);
            definitions.insert(name, fitted);
        }
        // One that is only made of itself would be begun and never end.
        for name in endless(&definitions) {
            self.lose(
                places[&name].clone(),
                "nothing that it allows ever comes to an end: it is made of itself alone",
            )?;
            definitions.insert(name, json!({}));
        }
        if whole == Value::Bool(false) {
            self.lose("", "it allows nothing")?;
            whole = json!({});
        }
        if let (Value::Object(map), false) = (&mut whole, definitions.is_empty()) {
            // In an order that does not depend on which was found first.
            definitions.sort_keys();
            map.insert("$defs".into(), definitions.into());
        }
        Ok(whole)
    }

    fn done(&self, schema: Value) -> Fitted {
        let mut seen = BTreeSet::new();
        let open = self.open.iter().filter(|place| seen.insert(place.as_str())).cloned().collect();
        Fitted { schema, open }
    }

    /// Records a part of the schema that cannot be enforced.
    fn lose(&mut self, place: impl Into<String>, problem: &str) -> Result<(), Misfit> {
        let place = place.into();
        if self.strict {
            return Err(misfit(&place, problem));
        }
        self.open.push(place);
        Ok(())
    }

    fn node(&mut self, value: &'a Value, place: &str) -> Result<Value, Misfit> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(misfit(place, format!("it has more than {MAX_NODES} schemas in it")));
        }
        match value {
            Value::Bool(_) => Ok(value.clone()),
            Value::Object(map) => self.object(map, place),
            _ => self.lose(place, "a schema is an object, true or false").map(|()| json!({})),
        }
    }

    fn object(&mut self, map: &'a Map<String, Value>, place: &str) -> Result<Value, Misfit> {
        let mut out = Map::new();
        // What serializers write of what is not set.
        let said = || map.iter().filter(|(key, value)| !value.is_null() || *key == "const");
        for (key, value) in said() {
            let here = format!("{place}.{key}");
            if let Some(value) = self.keyword(key, value, map, &here)? {
                let key = match key.as_str() {
                    // Newer spellings of the same.
                    "$dynamicRef" | "$recursiveRef" => "$ref",
                    // The compiler follows no references to see that no two of them hold at once.
                    "oneOf" if !map.contains_key("anyOf") && self.are_apart(&map[key]) => "anyOf",
                    key => key,
                };
                out.insert(key.to_owned(), value);
            }
        }
        self.bounds(map, &mut out, place)?;
        self.whole_bounds(map, &mut out);
        // What is written in other words needs what the rest became.
        for (key, value) in said() {
            let here = format!("{place}.{key}");
            let problem = match self.rewritten(key, value, map, &mut out, &here)? {
                Rewritten::Done => continue,
                Rewritten::Never => return Ok(Value::Bool(false)),
                Rewritten::Not => NOT_KEPT,
            };
            self.lose(here, problem)?;
        }
        list_names(&mut out);
        self.distinct_names(&mut out, place)?;
        Ok(Value::Object(out))
    }

    /// A keyword that compiles as it is, if its value is of its kind. `None`: it says nothing, or is written in other
    /// words.
    fn keyword(
        &mut self,
        key: &str,
        value: &'a Value,
        map: &Map<String, Value>,
        here: &str,
    ) -> Result<Option<Value>, Misfit> {
        let as_it_is = || Ok(Some(value.clone()));
        let problem = match (key, value) {
            ("type", _) => return self.types(value, here),
            ("properties" | "patternProperties", Value::Object(all)) => {
                let mut fitted = Map::new();
                for (name, schema) in all {
                    let here = format!("{here}.{}", shown(name));
                    if key == "properties" {
                        fitted.insert(name.clone(), self.node(schema, &here)?);
                        continue;
                    }
                    let pattern = in_our_words(name);
                    if !self.takes_pattern(&pattern) {
                        self.lose(here, NO_EXPRESSION)?;
                        continue;
                    }
                    let schema = self.node(schema, &here)?;
                    let schema = match fitted.remove(&pattern) {
                        // Two spellings of one expression.
                        Some(other) => json!({"allOf": [other, schema]}),
                        None => schema,
                    };
                    fitted.insert(pattern, schema);
                }
                // Where a pattern is lost nothing is known of the names that it has.
                return Ok(Some(fitted.into()));
            }
            ("properties" | "patternProperties", _) => "it must be an object of schemas",
            ("additionalProperties", Value::Bool(false)) if self.loses_patterns(map) => {
                self.lose(here, "an expression of 'patternProperties' cannot be held to")?;
                return Ok(None);
            }
            // Beside one schema for all items there are no others.
            ("additionalItems", _) if !map.get("items").is_some_and(Value::is_array) => return Ok(None),
            ("items" | "prefixItems", Value::Array(all)) => {
                let fitted = self.list(all, here)?;
                return Ok((!fitted.is_empty()).then_some(Value::Array(fitted)));
            }
            ("items" | "additionalProperties" | "additionalItems", Value::Object(_) | Value::Bool(_)) => {
                return self.node(value, here).map(Some);
            }
            ("items" | "additionalProperties" | "additionalItems" | "prefixItems", _) => "it must be a schema",
            ("anyOf" | "oneOf", Value::Array(all)) if !all.is_empty() => return self.branches(all, here).map(Some),
            ("allOf", Value::Array(all)) => {
                let fitted = self.list(all, here)?;
                return Ok((!fitted.is_empty()).then_some(Value::Array(fitted)));
            }
            ("anyOf" | "oneOf" | "allOf", _) => "it must be a list of schemas",
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to)) => match self.reference(to) {
                Some(name) => return Ok(Some(format!("#/$defs/{name}").into())),
                None => "it names nothing in this schema",
            },
            ("$ref" | "$dynamicRef" | "$recursiveRef", _) => "it must be a text",
            ("const", one) if is_exact(one) => return as_it_is(),
            ("const", _) => NOT_EXACT,
            ("enum", Value::Array(all)) if !all.is_empty() => return self.choices(all, here),
            ("enum", _) => "it must be a list of values that is not empty",
            ("required", Value::Array(all)) if all.iter().all(Value::is_string) => {
                return Ok((!all.is_empty()).then(|| value.clone()));
            }
            ("required", _) => "it must be a list of names, beside 'properties'",
            ("minItems" | "minLength" | "minProperties" | "maxItems" | "maxLength" | "maxProperties", _) => {
                let count = value.as_u64().or_else(|| {
                    let float = value.as_f64()?;
                    (float.fract() == 0.0 && (0.0..9e15).contains(&float)).then_some(float as u64)
                });
                match count {
                    Some(0) if key.starts_with("min") => return Ok(None),
                    Some(MAX_COUNT..) if key.starts_with("max") => return Ok(None),
                    Some(MAX_COUNT..) => "no answer is as long as that",
                    Some(count) => return Ok(Some(count.into())),
                    None => "it must be a whole number that is not below 0",
                }
            }
            ("exclusiveMinimum" | "exclusiveMaximum", Value::Bool(_)) => return as_it_is(),
            ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", Value::Number(_)) => return as_it_is(),
            ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", _) => "it must be a number",
            ("multipleOf", Value::Number(number)) if number.as_f64().is_some_and(|number| number > 0.0) => {
                if number.as_f64().and_then(limits::step).is_some() {
                    return as_it_is();
                }
                "steps of this size cannot be counted in decimal digits; send whole numbers of a smaller unit"
            }
            ("multipleOf", _) => "it must be a number above 0",
            ("pattern", Value::String(pattern)) => {
                let pattern = in_our_words(pattern);
                if self.takes_pattern(&pattern) {
                    return Ok(Some(pattern.into()));
                }
                NO_EXPRESSION
            }
            ("pattern", _) => NO_EXPRESSION,
            ("format", Value::String(format)) if FORMATS.contains(&format.as_str()) => return as_it_is(),
            (OPTIONS, Value::Object(_)) if here.len() == OPTIONS.len() + 1 => return as_it_is(),
            // Notes.
            _ => return Ok(None),
        };
        self.lose(here, problem).map(|()| None)
    }

    /// Values of `enum`.
    fn choices(&mut self, all: &[Value], here: &str) -> Result<Option<Value>, Misfit> {
        let mut left = Vec::with_capacity(all.len());
        for (at, one) in all.iter().enumerate() {
            if is_exact(one) {
                left.push(one.clone());
            } else {
                self.lose(format!("{here}[{at}]"), NOT_EXACT)?;
            }
        }
        // Where none is left it may be anything.
        Ok((!left.is_empty()).then(|| left.into()))
    }

    /// A bound that no double is, or that is too far away to be written digit by digit, is moved to the next inside
    /// of it: what is kept to then is within what was asked for.
    fn bounds(&mut self, map: &Map<String, Value>, out: &mut Map<String, Value>, place: &str) -> Result<(), Misfit> {
        for (plain, strictly, sign) in SIDES {
            let is_strict = map.get(strictly) == Some(&Value::Bool(true));
            let number = |key: &str| out.get(key).and_then(Value::as_number).cloned();
            let (bound, bound_strictly) = (number(plain), number(strictly));
            let is_far = |number: &Option<Number>| number.as_ref().is_some_and(|number| !is_near(number));
            if !is_far(&bound) && !is_far(&bound_strictly) {
                continue;
            }
            let mut inside: Option<f64> = None;
            for (key, number, is_strict) in [(plain, bound, is_strict), (strictly, bound_strictly, true)] {
                let Some(number) = number else { continue };
                if key == strictly {
                    if is_near(&number) {
                        continue;
                    }
                    out.shift_remove(strictly);
                }
                let next = sign * within(&number, sign, is_strict);
                if next > MAX_BOUND {
                    let problem = "numbers beyond 9223372036854774784 are not written where there are bounds";
                    self.lose(format!("{place}.{key}"), problem)?;
                    continue;
                }
                inside = Some(inside.unwrap_or(-MAX_BOUND).max(next));
            }
            if is_strict {
                out.shift_remove(strictly);
            }
            match inside {
                Some(inside) => _ = out.insert(plain.into(), (sign * inside).into()),
                None => _ = out.shift_remove(plain),
            }
        }
        Ok(())
    }

    /// A whole number that is excluded, and less than 1 from the other bound: the compiler makes the fraction of what is
    /// between them optional, and so takes the number itself (llguidance's `rx_float_range`). The bound is moved to the
    /// next number inside of it.
    fn whole_bounds(&self, map: &Map<String, Value>, out: &mut Map<String, Value>) {
        let bounds = SIDES.map(|(plain, strictly, sign)| {
            let number = |key: &str| Some(sign * out.get(key)?.as_f64()?);
            let is_strict = map.get(strictly) == Some(&Value::Bool(true));
            match (number(plain), number(strictly)) {
                (plain, Some(strictly)) if plain.is_none_or(|plain| strictly >= plain) => Some((strictly, true)),
                (plain, _) => plain.map(|plain| (plain, is_strict)),
            }
        });
        for (side, (plain, strictly, sign)) in SIDES.into_iter().enumerate() {
            // As a least: the other side of 0 is read as if it were this one.
            let Some((least, true)) = bounds[side] else { continue };
            if least < 0.0 || least.fract() != 0.0 {
                continue;
            }
            let most = bounds[1 - side].map(|(most, _)| -most);
            // Schemas that are joined have their bounds joined, too.
            if !self.joins && most.is_none_or(|most| most >= least + 1.0) {
                continue;
            }
            let next = match most {
                _ if least > 0.0 => least.next_up(),
                Some(most) if most > 0.0 => LEAST_WRITTEN.min(most / 2.0),
                _ => LEAST_WRITTEN,
            };
            out.shift_remove(strictly);
            out.insert(plain.into(), (sign * next).into());
        }
    }

    /// The compiler counts a name that is given twice as two. Names of `required` are given once, and one other is none of
    /// those; of more that may be any it cannot be said that they differ.
    fn distinct_names(&mut self, out: &mut Map<String, Value>, place: &str) -> Result<(), Misfit> {
        let Some(least) = out.get("minProperties").and_then(Value::as_u64) else { return Ok(()) };
        let required = out.get("required").and_then(Value::as_array);
        let required: BTreeSet<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
        let kept = required.len() as u64 + 1;
        let is_closed = out.get("additionalProperties") == Some(&Value::Bool(false));
        let has_patterns = out.get("patternProperties").and_then(Value::as_object).is_some_and(|all| !all.is_empty());
        if least <= kept || is_closed && !has_patterns {
            return Ok(());
        }
        out.insert("minProperties".into(), kept.into());
        self.lose(format!("{place}.minProperties"), "that names differ cannot be seen; list them in 'properties'")
    }

    fn types(&mut self, value: &Value, here: &str) -> Result<Option<Value>, Misfit> {
        let known = |name: &Value| {
            let name = name.as_str()?.to_ascii_lowercase();
            (name == "integer" || TYPES.contains(&name.as_str())).then_some(Value::from(name))
        };
        let problem = "there are 'null', 'boolean', 'integer', 'number', 'string', 'array' and 'object'";
        match value {
            Value::Array(all) if !all.is_empty() => {
                let kept: Vec<Value> = all.iter().filter_map(known).collect();
                if kept.len() < all.len() {
                    self.lose(here, problem)?;
                    // It may be anything, so that the others say nothing either.
                    return Ok(None);
                }
                Ok(Some(Value::Array(kept)))
            }
            one => match known(one) {
                Some(known) => Ok(Some(known)),
                None => self.lose(here, problem).map(|()| None),
            },
        }
    }

    fn list(&mut self, all: &'a [Value], here: &str) -> Result<Vec<Value>, Misfit> {
        all.iter().enumerate().map(|(at, one)| self.node(one, &format!("{here}[{at}]"))).collect()
    }

    /// One that cannot be kept to is closed where another is left: an answer that is one of the others is surely right.
    fn branches(&mut self, all: &'a [Value], here: &str) -> Result<Value, Misfit> {
        let mut fitted = Vec::new();
        for (at, one) in all.iter().enumerate() {
            let (here, before) = (format!("{here}[{at}]"), self.open.len());
            let schema = self.node(one, &here)?;
            // What is wrong deep inside of it does not weigh that much.
            let own = |place: &String| {
                place.strip_prefix(&here).is_some_and(|rest| !rest.trim_start_matches('.').contains(['.', '[']))
            };
            fitted.push((schema, self.open[before..].iter().any(own)));
        }
        let says = |schema: &Value| *schema != json!({"type": "null"}) && *schema != Value::Bool(false);
        let is_one_left = fitted.iter().any(|(schema, is_open)| !is_open && says(schema));
        fitted.retain(|(_, is_open)| !(is_one_left && *is_open));
        Ok(fitted.into_iter().map(|(schema, _)| schema).collect())
    }

    /// Whether no two of the branches hold at once, where references keep the compiler from seeing it.
    fn are_apart(&mut self, branches: &'a Value) -> bool {
        let branches = branches.as_array().map_or(&[][..], Vec::as_slice);
        let outlines: Vec<Value> = branches.iter().map(|one| self.outline(one, true)).collect();
        self.is_searching()
            && branches.iter().any(|one| one.to_string().contains("$ref"))
            && self.is_taken(json!({"oneOf": outlines}))
    }

    /// Part of what a schema says, behind its references: types and values, its own and those of its properties.
    fn outline(&self, schema: &'a Value, with_properties: bool) -> Value {
        let followed = self.followed(schema);
        let Value::Object(map) = followed else { return followed.clone() };
        let is_kept = |key: &str| ["type", "const", "enum", "required"].contains(&key);
        let mut outline: Map<String, Value> =
            map.iter().filter(|(key, _)| is_kept(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
        if let (Some(Value::Object(all)), true) = (map.get("properties"), with_properties) {
            let all = all.iter().map(|(name, schema)| (name.clone(), self.outline(schema, false)));
            outline.insert("properties".into(), all.collect::<Map<_, _>>().into());
        }
        outline.into()
    }

    fn takes_pattern(&mut self, pattern: &str) -> bool {
        let is_tried = self.tries_patterns && self.is_searching();
        !is_tried || self.is_taken(json!({"type": "string", "pattern": pattern}))
    }

    fn is_taken(&mut self, schema: Value) -> bool {
        if let Some(&known) = self.known.get(&schema) {
            return known;
        }
        let is_taken = self.try_out(&schema).is_ok();
        self.known.insert(schema, is_taken);
        is_taken
    }

    fn loses_patterns(&mut self, map: &Map<String, Value>) -> bool {
        let patterns = map.get("patternProperties").and_then(Value::as_object);
        patterns.is_some_and(|patterns| patterns.keys().any(|pattern| !self.takes_pattern(&in_our_words(pattern))))
    }

    /// The schema that a reference names: within the schema with an `$id` that it stands in, else within the whole.
    fn find(&self, to: &str) -> Option<Found<'a>> {
        let (name, fragment) = to.split_once('#').unwrap_or((to, ""));
        let within = |name: &str, found: &Found<'a>| match fragment {
            "" => Some(found.clone()),
            pointer if pointer.starts_with('/') => at(found, pointer),
            anchor => self.anchors.get(&format!("{name}#{anchor}")).cloned(),
        };
        let relative = self.bases.get(&(to.as_ptr() as usize)).and_then(|base| match name {
            "" => within(&base.name, &base.found),
            name => {
                let name = resolved(&base.name, name);
                within(&name, self.anchors.get(&name)?)
            }
        });
        let whole = || match name {
            "" => within("", &Found { value: self.root, place: String::new() }),
            name => within(name, self.anchors.get(name)?),
        };
        relative.or_else(whole).or_else(|| self.anchors.get(to.trim_end_matches('#')).cloned())
    }

    /// The name that the schema which a reference names has among the definitions.
    fn reference(&mut self, to: &str) -> Option<String> {
        let found = self.find(to)?;
        let key = (found.place.clone(), std::ptr::from_ref(found.value) as usize);
        if let Some(name) = self.names.get(&key) {
            return Some(name.clone());
        }
        let last = found.place.rsplit(['.', '[']).next().unwrap_or_default();
        let mut name: String = last.chars().filter(|c| c.is_ascii_alphanumeric() || "_-".contains(*c)).collect();
        while name.is_empty() || self.taken.contains(&name) {
            name.push_str(&format!("_{}", self.names.len()));
        }
        self.taken.insert(name.clone());
        self.names.insert(key, name.clone());
        self.pending.push((name.clone(), found));
        Some(name)
    }

    /// A schema behind its references.
    fn followed(&self, mut value: &'a Value) -> &'a Value {
        for _ in 0..16 {
            let only = value.as_object().filter(|map| map.keys().all(|key| key == "$ref" || is_note(key)));
            match only.and_then(|map| self.find(map.get("$ref")?.as_str()?)) {
                Some(found) => value = found.value,
                None => break,
            }
        }
        value
    }

    /// A keyword that does not compile, in words that do.
    fn rewritten(
        &mut self,
        key: &str,
        value: &'a Value,
        map: &'a Map<String, Value>,
        out: &mut Map<String, Value>,
        here: &str,
    ) -> Result<Rewritten, Misfit> {
        use Rewritten::{Done, Never, Not};
        let is_object = out.get("type").is_some_and(|kind| kind == "object");
        Ok(match (key, value) {
            ("uniqueItems", Value::Bool(true)) => {
                let is_short = out.get("maxItems").and_then(Value::as_u64).is_some_and(|most| most < 2);
                if is_short { Done } else { Not }
            }
            ("propertyNames", names) => self.property_names(names, out, here)?,
            ("not", Value::Bool(false)) => Done,
            ("not", other) if says_nothing(other) => Never,
            ("not", Value::Object(other)) => negated(other, out),
            ("if", condition) => match (condition, branch(map, "then"), branch(map, "else")) {
                (_, None, None) => Done,
                (condition, then, other) if says_nothing(condition) || *condition == Value::Bool(false) => {
                    let is_true = *condition != Value::Bool(false);
                    if let Some(schema) = if is_true { then } else { other } {
                        let place = here.trim_end_matches(".if");
                        let fitted =
                            self.node(schema, &format!("{place}.{}", if is_true { "then" } else { "else" }))?;
                        also(out, fitted);
                    }
                    Done
                }
                (_, then, other) if then.is_none_or(says_nothing) && other.is_none_or(says_nothing) => Done,
                _ => Not,
            },
            ("contains", inner) => {
                let count = |key: &str| map.get(key).and_then(Value::as_u64);
                let least = count("minContains").unwrap_or(1);
                match (least, count("maxContains")) {
                    (0, None) => Done,
                    (least, None) if says_nothing(inner) => {
                        let before = out.get("minItems").and_then(Value::as_u64).unwrap_or(0);
                        out.insert("minItems".into(), before.max(least).into());
                        Done
                    }
                    _ => Not,
                }
            }
            ("dependentRequired" | "dependentSchemas" | "dependencies", Value::Object(all)) => {
                for (name, wanted) in all {
                    let here = format!("{here}.{}", shown(name));
                    let is_there = out
                        .get("required")
                        .and_then(Value::as_array)
                        .is_some_and(|all| all.iter().any(|one| one == name));
                    match wanted {
                        Value::Array(names) if names.is_empty() => {}
                        Value::Array(names) if is_there => require(out, names),
                        Value::Array(names) if is_object => {
                            let without = json!({"type": "object", "properties": {name: false}});
                            let mut with = json!({"type": "object", "required": [name]});
                            with.as_object_mut().into_iter().for_each(|with| require(with, names));
                            also(out, json!({"anyOf": [without, with]}));
                        }
                        schema if says_nothing(schema) => {}
                        schema if is_there => {
                            let fitted = self.node(schema, &here)?;
                            also(out, fitted);
                        }
                        _ => self.lose(here, NOT_KEPT)?,
                    }
                }
                Done
            }
            ("unevaluatedProperties" | "unevaluatedItems", rest) if says_nothing(rest) => Done,
            ("unevaluatedProperties" | "unevaluatedItems", rest) => {
                let joins = ["$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "contains", "not"];
                let plain = if key == "unevaluatedItems" { "items" } else { "additionalProperties" };
                if map.contains_key(plain) && !map.get(plain).is_some_and(Value::is_array) {
                    Done
                } else if joins.iter().any(|key| map.contains_key(*key)) || map.get(plain).is_some() {
                    Not
                } else {
                    let fitted = self.node(rest, here)?;
                    out.insert(plain.into(), fitted);
                    Done
                }
            }
            _ => Done,
        })
    }

    fn property_names(
        &mut self,
        names: &'a Value,
        out: &mut Map<String, Value>,
        here: &str,
    ) -> Result<Rewritten, Misfit> {
        use Rewritten::{Done, Not};
        let names = match self.followed(names) {
            Value::Bool(true) => return Ok(Done),
            Value::Bool(false) => {
                out.insert("maxProperties".into(), 0.into());
                return Ok(Done);
            }
            Value::Object(names) => names,
            _ => return Ok(Not),
        };
        let is_text =
            |kind: &Value| kind == "string" || kind.as_array().is_some_and(|all| all.contains(&json!("string")));
        if !names.get("type").is_none_or(is_text) {
            return Ok(Not);
        }
        let says = |key: &&String| !(is_note(key) || *key == "type");
        let is_unknown_format =
            |key: &&String| *key == "format" && names[*key].as_str().is_none_or(|format| !FORMATS.contains(&format));
        let keys: Vec<&str> =
            names.keys().filter(says).filter(|key| !is_unknown_format(key)).map(String::as_str).collect();
        let listed = match (names.get("enum"), names.get("const")) {
            (Some(Value::Array(all)), None) => Some(all.as_slice()),
            (None, Some(one)) => Some(std::slice::from_ref(one)),
            _ => None,
        };
        let additional = out.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
        Ok(match (keys.as_slice(), listed) {
            ([], _) => Done,
            (["enum"] | ["const"], Some(listed))
                if listed.len() <= MAX_NAMES && !out.contains_key("patternProperties") =>
            {
                let listed: Vec<&str> = listed.iter().filter_map(Value::as_str).collect();
                let properties = out.entry("properties").or_insert_with(|| json!({}));
                let Value::Object(properties) = properties else { return Ok(Not) };
                properties.retain(|name, _| listed.contains(&name.as_str()));
                if additional != Value::Bool(false) {
                    for name in listed {
                        properties.entry(name).or_insert_with(|| additional.clone());
                    }
                }
                out.insert("additionalProperties".into(), false.into());
                Done
            }
            (keys, None) if !out.contains_key("properties") && !out.contains_key("patternProperties") => {
                let count = |key: &str| names.get(key).and_then(Value::as_u64);
                let pattern = match (keys, names.get("pattern")) {
                    (["pattern"], Some(Value::String(pattern))) => in_our_words(pattern),
                    (keys, None) if keys.iter().all(|key| ["minLength", "maxLength"].contains(key)) => {
                        let most = count("maxLength").map(|most| most.to_string()).unwrap_or_default();
                        format!("^[\\s\\S]{{{},{most}}}$", count("minLength").unwrap_or(0))
                    }
                    _ => return Ok(Not),
                };
                if !self.takes_pattern(&pattern) {
                    self.lose(format!("{here}.pattern"), NO_EXPRESSION)?;
                    return Ok(Done);
                }
                if additional != Value::Bool(false) {
                    out.insert("patternProperties".into(), json!({pattern: additional}));
                    out.insert("additionalProperties".into(), false.into());
                }
                Done
            }
            _ => Not,
        })
    }
}

/// What became of a keyword.
enum Rewritten {
    /// It says nothing, or is written in other words.
    Done,
    /// Nothing satisfies it.
    Never,
    /// There are no other words.
    Not,
}

/// `not`.
fn negated(other: &Map<String, Value>, out: &mut Map<String, Value>) -> Rewritten {
    let mut says = other.iter().filter(|(key, _)| !is_note(key));
    let (Some((key, value)), None) = (says.next(), says.next()) else { return Rewritten::Not };
    let is_object = out.get("type").is_some_and(|kind| kind == "object");
    match (key.as_str(), value) {
        ("type", Value::String(not)) if not != "integer" => {
            let all = match out.get("type") {
                None => TYPES.map(Value::from).to_vec(),
                Some(Value::Array(all)) => all.clone(),
                Some(one) => vec![one.clone()],
            };
            let is_it = |kind: &Value| kind == not || not == "number" && kind == "integer";
            let left: Vec<Value> = all.into_iter().filter(|kind| !is_it(kind)).collect();
            if left.is_empty() {
                return Rewritten::Never;
            }
            out.insert("type".into(), left.into());
            Rewritten::Done
        }
        ("enum" | "const", _) if out.get("enum").is_some_and(Value::is_array) => {
            let not = if key == "const" {
                std::slice::from_ref(value)
            } else {
                value.as_array().map_or(&[][..], Vec::as_slice)
            };
            let Some(Value::Array(all)) = out.get_mut("enum") else { return Rewritten::Not };
            all.retain(|one| !not.iter().any(|not| same(one, not)));
            if all.is_empty() { Rewritten::Never } else { Rewritten::Done }
        }
        ("required", Value::Array(names)) if is_object && names.len() == 1 => {
            let Some(name) = names[0].as_str() else { return Rewritten::Not };
            let properties = out.entry("properties").or_insert_with(|| json!({}));
            properties[name] = Value::Bool(false);
            Rewritten::Done
        }
        _ => Rewritten::Not,
    }
}

/// Whether a bound is a double, and so are the whole numbers beside it.
fn is_near(number: &Number) -> bool {
    match number.as_i128() {
        Some(whole) => whole.unsigned_abs() <= u128::from(MAX_EXACT),
        None => number.as_f64().is_some_and(|number| number.abs() <= MAX_EXACT as f64),
    }
}

/// The first double that is within a bound (sign 1: a least, -1: a most).
fn within(number: &Number, sign: f64, is_strict: bool) -> f64 {
    let double = number.as_f64().unwrap_or(0.0);
    let whole = number.as_i128();
    let is_outside =
        whole.is_some_and(|whole| if sign > 0.0 { (double as i128) < whole } else { double as i128 > whole });
    let is_it = whole.is_none_or(|whole| double as i128 == whole);
    match is_outside || is_strict && is_it {
        true if sign > 0.0 => double.next_up(),
        true => double.next_down(),
        false => double,
    }
}

/// Whether the compiler tells a value from all others: all but large whole numbers.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_i128().is_none_or(|whole| {
            number.as_f64().is_some_and(|double| double as i128 == whole) && whole > i64::MIN.into()
        }),
        Value::Array(all) => all.iter().all(is_exact),
        Value::Object(map) => map.values().all(is_exact),
        _ => true,
    }
}

/// As JSON schema compares: 1 is 1.0.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || one.as_f64() == other.as_f64() && (one.is_f64() || other.is_f64())
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has = |(key, one): (&String, &Value)| other.get(key).is_some_and(|other| same(one, other));
            one.len() == other.len() && one.iter().all(has)
        }
        _ => one == other,
    }
}

/// Patterns of a closed object become properties where they have few names, or names that all have properties: the
/// compiler leaves the place of a pattern open behind all names that it has.
fn list_names(out: &mut Map<String, Value>) {
    if out.get("additionalProperties") != Some(&Value::Bool(false)) {
        return;
    }
    let Some(Value::Object(patterns)) = out.get("patternProperties") else { return };
    let required = out.get("required").and_then(Value::as_array);
    let mut taken: BTreeSet<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
    taken.extend(out.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys).map(String::as_str));
    let is_counted = out.contains_key("minProperties") || out.contains_key("maxProperties");
    let listed =
        patterns.iter().map(|(pattern, schema)| Some((names_of(pattern, MAX_NAMES.max(taken.len()))?, schema)));
    let Some(listed) = listed.collect::<Option<Vec<_>>>() else { return };
    let names = || listed.iter().flat_map(|(names, _)| names);
    let are_few = !is_counted && taken.len() + names().count() <= MAX_NAMES;
    if !are_few && names().any(|name| !taken.contains(name.as_str())) {
        return;
    }
    let mut properties = match out.get("properties") {
        Some(Value::Object(properties)) => properties.clone(),
        _ => Map::new(),
    };
    for (name, schema) in listed.iter().flat_map(|(names, schema)| names.iter().map(move |name| (name, schema))) {
        let joined = properties.get(name).map(|other| json!({"allOf": [other, schema]}));
        properties.insert(name.clone(), joined.unwrap_or_else(|| (*schema).clone()));
    }
    out.shift_remove("patternProperties");
    out.insert("properties".into(), properties.into());
}

/// All texts in which an expression is found, if there are at most `most`.
fn names_of(pattern: &str, most: usize) -> Option<Vec<String>> {
    let whole = regex_syntax::parse(&llguidance::regex_to_lark(pattern, "dw")).ok()?;
    let HirKind::Concat(parts) = whole.kind() else { return None };
    let [begin, inner @ .., end] = parts.as_slice() else { return None };
    let is_whole = *begin == Hir::look(Look::Start) && *end == Hir::look(Look::End);
    if !is_whole || inner.iter().any(|part| !part.properties().look_set().is_empty()) {
        return None;
    }
    let mut extractor = Extractor::new();
    extractor.limit_class(most).limit_repeat(most).limit_literal_len(MAX_RULE_BYTES).limit_total(most);
    let texts = extractor.extract(&Hir::concat(inner.to_vec()));
    let texts = texts.is_exact().then(|| texts.literals().unwrap_or_default().iter())?;
    let mut texts: Vec<String> =
        texts.map(|text| String::from_utf8(text.as_bytes().to_vec()).ok()).collect::<Option<_>>()?;
    let mut seen = BTreeSet::new();
    texts.retain(|text| seen.insert(text.clone()));
    Some(texts)
}

/// Adds a schema that has to be satisfied, too.
fn also(out: &mut Map<String, Value>, schema: Value) {
    if let Value::Array(all) = out.entry("allOf").or_insert_with(|| json!([])) {
        all.push(schema);
    }
}

fn require(out: &mut Map<String, Value>, names: &[Value]) {
    if let Value::Array(all) = out.entry("required").or_insert_with(|| json!([])) {
        names.iter().filter(|name| name.is_string()).for_each(|name| {
            if !all.contains(name) {
                all.push(name.clone());
            }
        });
    }
}

fn branch<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    map.get(key).filter(|schema| !schema.is_null())
}

fn says_nothing(schema: &Value) -> bool {
    match schema {
        Value::Bool(is) => *is,
        Value::Object(map) => map.keys().all(|key| is_note(key)),
        _ => false,
    }
}

/// Whether a keyword says nothing of what is allowed. Unknown ones are notes, too.
fn is_note(key: &str) -> bool {
    const SAYS: &str = "type properties patternProperties additionalProperties propertyNames required minProperties \
        maxProperties dependentRequired dependentSchemas dependencies unevaluatedProperties items prefixItems \
        additionalItems contains minContains maxContains minItems maxItems uniqueItems unevaluatedItems minLength \
        maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf const enum anyOf oneOf \
        allOf not if then else $ref $dynamicRef $recursiveRef disallow extends divisibleBy";
    !SAYS.split_whitespace().any(|word| word == key)
}

/// What a pointer names in a schema.
fn at<'a>(found: &Found<'a>, pointer: &str) -> Option<Found<'a>> {
    let Found { mut value, mut place } = found.clone();
    for step in pointer.split('/').skip(1) {
        let step = decoded(step).replace("~1", "/").replace("~0", "~");
        match value {
            Value::Object(map) => {
                value = map.get(&step)?;
                place.push_str(&format!(".{}", shown(&step)));
            }
            Value::Array(items) => {
                value = items.get(step.parse::<usize>().ok()?)?;
                place.push_str(&format!("[{step}]"));
            }
            _ => return None,
        }
    }
    Some(Found { value, place })
}

/// An address that is relative to another (RFC 3986, 5.2), without queries.
fn resolved(base: &str, to: &str) -> String {
    let path = |address: &str| {
        let host = address.find("://").map_or(0, |at| at + 3);
        if host == 0 { 0 } else { address[host..].find('/').map_or(address.len(), |at| host + at) }
    };
    let is_whole = to.split_once(':').is_some_and(|(scheme, _)| !scheme.contains('/'));
    if is_whole || base.is_empty() || to.is_empty() {
        return if to.is_empty() { base.to_owned() } else { to.to_owned() };
    }
    let (host, folder) = base.split_at(path(base));
    let folder = if to.starts_with('/') { "" } else { folder.rsplit_once('/').map_or("", |(folder, _)| folder) };
    let mut steps: Vec<&str> = folder.split('/').filter(|_| !folder.is_empty()).collect();
    for step in to.trim_start_matches('/').split('/') {
        match step {
            "." => {}
            ".." => _ = steps.pop(),
            step => steps.push(step),
        }
    }
    format!("{host}/{}", steps.join("/").trim_start_matches('/'))
}

/// A name in a place: short, and on one line.
fn shown(name: &str) -> String {
    let short: String = name.chars().take(64).flat_map(char::escape_debug).collect();
    if name.chars().count() > 64 { format!("{short}...") } else { short }
}

/// `%24` and the like.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, others @ ..] = rest {
        let hex = |bytes: &[u8]| u8::from_str_radix(std::str::from_utf8(bytes).ok()?, 16).ok();
        match (first, others.get(..2).and_then(hex)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &others[2..];
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// What may be left out of a schema that does not compile, the least first.
const LOSABLE: &str = "pattern format multipleOf patternProperties maxLength minLength maxItems minItems \
    maxProperties minProperties exclusiveMinimum exclusiveMaximum minimum maximum enum const required \
    additionalProperties allOf $ref anyOf prefixItems items properties";

impl Walk<'_> {
    /// Looks for what does not compile, in each definition by itself first.
    fn repair_all(&mut self, whole: Value) -> Result<Value, Misfit> {
        let Value::Object(mut root) = whole else { return Ok(whole) };
        let options = root.shift_remove(OPTIONS);
        let mut definitions = match root.shift_remove("$defs") {
            Some(Value::Object(definitions)) => definitions,
            _ => Map::new(),
        };
        let anything: Map<String, Value> = definitions.keys().map(|name| (name.clone(), Value::Bool(true))).collect();
        let places: HashMap<String, String> =
            self.names.iter().map(|((place, _), name)| (name.clone(), place.clone())).collect();
        let place = |name: &String| places.get(name).cloned().unwrap_or_default();
        let mut parts: Vec<_> = definitions.iter_mut().map(|(name, part)| (place(name), part)).collect();
        self.repair_parts(&mut parts, &anything)?;
        let mut root = self.repair(Value::Object(root), &anything, "")?;
        let mut whole = with(&root, &definitions);
        if self.try_out(&whole).is_err() {
            root = self.repair(root, &definitions, "")?;
            whole = with(&root, &definitions);
            if let Err(error) = self.try_out(&whole) {
                self.lose("", &error.to_string())?;
                whole = json!({});
            }
        }
        if let (Some(options), Value::Object(map)) = (options, &mut whole) {
            map.insert(OPTIONS.into(), options);
            if let Err(error) = self.try_out(&whole) {
                self.lose(format!(".{OPTIONS}"), &error.to_string())?;
                whole.as_object_mut().map(|map| map.shift_remove(OPTIONS));
            }
        }
        Ok(whole)
    }

    fn repair(&mut self, node: Value, definitions: &Map<String, Value>, place: &str) -> Result<Value, Misfit> {
        let Some(error) = self.fault(&node, definitions) else { return Ok(node) };
        let Value::Object(mut map) = node else {
            self.lose(place, &error)?;
            return Ok(json!({}));
        };
        let mut parts = Vec::new();
        for (key, value) in &mut map {
            let here = format!("{place}.{key}");
            match (key.as_str(), value) {
                ("properties" | "patternProperties", Value::Object(all)) => {
                    parts.extend(all.iter_mut().map(|(name, part)| (format!("{here}.{}", shown(name)), part)));
                }
                ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(all)) => {
                    parts.extend(all.iter_mut().enumerate().map(|(at, part)| (format!("{here}[{at}]"), part)));
                }
                ("items" | "additionalProperties" | "additionalItems", part) => parts.push((here, part)),
                _ => {}
            }
        }
        // A schema that is false may stand in another one.
        parts.retain(|(_, part)| **part != Value::Bool(false));
        let before = self.open.len();
        self.repair_parts(&mut parts, definitions)?;
        let mut error = error;
        if self.open.len() > before {
            let node = Value::Object(map.clone());
            match self.fault(&node, definitions) {
                None => return Ok(node),
                Some(other) => error = other,
            }
        }
        if let Some(all) = map.get("oneOf").cloned() {
            // One of them at least.
            let mut other = map.clone();
            other.shift_remove("oneOf");
            also(&mut other, json!({"anyOf": all}));
            let other = Value::Object(other);
            if self.fault(&other, definitions).is_none() {
                return self.lose(format!("{place}.oneOf"), vocabulary::NOT_APART).map(|()| other);
            }
        }
        for key in LOSABLE.split_whitespace().filter(|key| map.contains_key(*key)) {
            if !self.is_searching() {
                break;
            }
            let mut other = map.clone();
            other.shift_remove(key);
            // What is said of all others would be said of these.
            match key {
                "properties" | "patternProperties" => _ = other.shift_remove("additionalProperties"),
                "prefixItems" => _ = other.shift_remove("items"),
                "items" => _ = other.shift_remove("additionalItems"),
                _ => {}
            }
            let other = Value::Object(other);
            if self.fault(&other, definitions).is_none() {
                return match map.get("allOf") {
                    Some(Value::Array(all)) if key == "allOf" && all.len() > 1 => {
                        self.join(other, all, definitions, &format!("{place}.allOf"))
                    }
                    _ => self.lose(format!("{place}.{key}"), &error).map(|()| other),
                };
            }
        }
        self.lose(place, &error)?;
        Ok(kind_of(&map.into()))
    }

    /// Of schemas that are joined as many as compile together, the first ones first.
    fn join(
        &mut self,
        mut node: Value,
        all: &[Value],
        definitions: &Map<String, Value>,
        place: &str,
    ) -> Result<Value, Misfit> {
        for (at, one) in all.iter().enumerate() {
            let mut more = node.clone();
            more.as_object_mut().into_iter().for_each(|more| also(more, one.clone()));
            let problem = if self.is_searching() { self.fault(&more, definitions) } else { Some(NOT_FOUND.to_owned()) };
            match problem {
                None => node = more,
                Some(problem) => self.lose(format!("{place}[{at}]"), &problem)?,
            }
        }
        Ok(node)
    }

    /// Those of the parts that fail, found by halves. When enough was spent on it, each that is left is opened; strict:
    /// what they are parts of is then what is named.
    fn repair_parts(
        &mut self,
        parts: &mut [(String, &mut Value)],
        definitions: &Map<String, Value>,
    ) -> Result<(), Misfit> {
        match parts {
            _ if !self.is_searching() => {
                for (place, part) in parts.iter_mut().filter(|_| !self.strict) {
                    **part = kind_of(part);
                    self.open.push(std::mem::take(place));
                }
                Ok(())
            }
            [] => Ok(()),
            [(place, part)] => {
                **part = self.repair(part.take(), definitions, place)?;
                Ok(())
            }
            parts => {
                let all: Vec<Value> = parts.iter().map(|(_, part)| (**part).clone()).collect();
                let together = json!({"type": "array", "prefixItems": all, "minItems": all.len(), "items": false});
                if self.fault(&together, definitions).is_none() {
                    return Ok(());
                }
                let (left, right) = parts.split_at_mut(parts.len() / 2);
                self.repair_parts(left, definitions)?;
                self.repair_parts(right, definitions)
            }
        }
    }

    fn fault(&mut self, node: &Value, definitions: &Map<String, Value>) -> Option<String> {
        if self.work >= MOST_WORK {
            return Some(NOT_FOUND.to_owned());
        }
        self.try_out(&with(node, definitions)).err().map(|error| error.to_string())
    }
}

/// Of a schema only its types, which always compile.
fn kind_of(schema: &Value) -> Value {
    schema.get("type").map_or_else(|| json!({}), |kind| json!({"type": kind}))
}

fn with(node: &Value, definitions: &Map<String, Value>) -> Value {
    let mut node = node.clone();
    if let (Value::Object(map), false) = (&mut node, definitions.is_empty()) {
        map.insert("$defs".into(), definitions.clone().into());
    }
    node
}
