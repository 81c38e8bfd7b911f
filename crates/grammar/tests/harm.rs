//! Rules that mean harm: each is refused with a reason, or taken and then cheap to follow. What they cost is bounded by
//! counts, so nothing here has a clock; but one that got past them would take minutes, gigabytes, or the process.

use std::fmt::Write;
use std::sync::LazyLock;

use grammar::{ConstraintError, Rule, Vocabulary};
use serde_json::{Map, Value, json};
use testing::Dice;
use text::tokenizer::Tokenizer;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let json = include_str!("../../../models/lantern/tokenizer.json");
    let config = include_str!("../../../models/lantern/tokenizer_config.json");
    Tokenizer::from_json(json, Some(config), None, 1 << 20).expect("the model that ships has one")
});
static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let end = TOKENIZER.eos_id().expect("it ends its answers");
    Vocabulary::new(&TOKENIZER, TOKENIZER.vocab_size(), &[end], &[])
});

/// Stack of the threads that ask, a quarter of what the server's have.
const STACK: usize = 512 << 10;

/// Compiles the rule and follows it some tokens far, on a small stack. The reason where it is refused.
fn judged(rule: Rule) -> Option<String> {
    let follow = move || {
        let grammar = match VOCABULARY.compile(&rule) {
            Ok(grammar) => grammar,
            Err(error) => return Some(error.to_string()),
        };
        let mut constraint = grammar.constraint();
        let mut dice = Dice::new(1);
        for at in 0..24 {
            // A rule that takes too many steps ends its own answer.
            let Ok(Some(mask)) = constraint.mask(at) else { break };
            let allowed: Vec<u32> =
                (0..TOKENIZER.vocab_size() as u32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
            let Some(&token) = allowed.get(dice.roll(allowed.len())) else { break };
            if constraint.accept(token).is_err() || constraint.is_complete(at + 1) {
                break;
            }
        }
        None
    };
    let thread = std::thread::Builder::new().stack_size(STACK);
    thread.spawn(follow).expect("a thread").join().expect("a rule is no reason to panic")
}

/// Lines of a grammar, each with the next one's number.
fn chain(length: usize, line: impl Fn(usize, usize) -> String) -> String {
    (0..length).map(|i| line(i, i + 1) + "\n").collect()
}

fn words(count: usize, between: &str, word: impl Fn(usize) -> String) -> String {
    (0..count).map(word).collect::<Vec<_>>().join(between)
}

fn each(count: usize, schema: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..count).map(schema).collect()
}

fn named(count: usize, schema: impl Fn(usize) -> Value) -> Map<String, Value> {
    (0..count).map(|i| (format!("k{i}"), schema(i))).collect()
}

/// Schemas each of which speaks of the next.
fn refs(count: usize, schema: impl Fn(Value) -> Value) -> Value {
    let mut defs = named(count, |i| schema(json!({"$ref": format!("#/$defs/k{}", i + 1)})));
    defs.insert(format!("k{count}"), json!({"type": "object"}));
    json!({"$defs": defs, "$ref": "#/$defs/k0"})
}

fn lark(text: impl Into<String>) -> Rule {
    Rule::Lark(text.into())
}

fn gbnf(text: impl Into<String>) -> Rule {
    Rule::Gbnf(text.into())
}

fn regex(text: impl Into<String>) -> Rule {
    Rule::Regex(text.into())
}

#[test]
fn bombs_are_refused_or_cheap() {
    let before = peak();
    let mut wrong = Vec::new();
    let pieces = "names, texts, expressions and groups";
    for (name, rule, refusal) in [
        ("counts in counts", regex("(((a{100}){100}){100}){100}"), None),
        ("counted rules", lark("start: a{1000}\na: b{1000}\nb: c{1000}\nc: \"x\"{1000}"), None),
        ("counted terminals", lark("start: A\nA: B{0,1000000}\nB: C{0,1000000}\nC: \"x\"{0,1000000}"), None),
        ("counted parts", gbnf("root ::= (((\"x\" | \"xy\"){0,100000}){0,100000}){0,100000}"), None),
        (
            "counted nothing",
            gbnf("root ::= ((a{1000}){1000}){1000} b\na ::= [a-z]{0,1000}\nb ::= \"x\" b \"y\" | a"),
            Some("too many ways"),
        ),
        ("many states", regex("(.*a){20}"), None),
        ("more states", regex("(.*a.{20}){20}"), None),
        ("states of GBNF", gbnf("root ::= (.* \"a\" .{20}){20}"), None),
        ("a wide expression", regex(".".repeat(64 << 10)), None),
        ("a wider one", regex(".".repeat((64 << 10) + 1)), Some("65537 bytes of expressions")),
        ("classes", regex(r"(?i)\p{L}\p{Lu}\w\W\d".repeat(200)), None),
        ("more classes", regex(r"\p{L}\p{Lu}\w\W\d".repeat(201)), Some("1005 classes")),
        (
            "classes in a schema",
            Rule::JsonSchema(json!({"type": "string", "pattern": r"\w".repeat(1001)})),
            Some("1001 classes"),
        ),
        ("classes in Lark", lark(format!("start: /{}/", r"\w".repeat(1001))), Some("1001 classes")),
        ("900 alternatives", lark(format!("start: {}", words(900, " | ", |i| format!("\"w{i}\"")))), None),
        ("15,000 alternatives", lark(format!("start: {}", words(15_000, "|", |i| format!("\"{i:x}\"")))), Some(pieces)),
        ("alternatives of GBNF", gbnf(format!("root ::= {}", words(2000, " | ", |i| format!("\"w{i}\"")))), None),
        (
            "more of them",
            gbnf(format!("root ::= {}", words(20_000, "|", |i| format!("\"w{i}\"")))),
            Some("more than 5000 different parts"),
        ),
        (
            "twice alternatives",
            gbnf(format!("root ::= a a\na ::= {}", words(2000, "|", |i| format!("\"w{i}\"")))),
            None,
        ),
        (
            "many that begin alike",
            gbnf(format!("root ::= a (\",\" a)*\na ::= {}", words(1000, "|", |i| format!("\"w{i}\" [a-z]* [0-9]")))),
            Some("too large"),
        ),
        ("a long name", gbnf("a".repeat(500 << 10)), Some("::= is expected behind")),
        ("a long text", gbnf(format!("root ::= \"{}\"", "xyz".repeat(170_000))), Some("too large")),
        ("a long sequence", gbnf(format!("root ::= {}", "[a-z]".repeat(100_000))), Some("too large")),
        ("4,096 texts", Rule::Choice((0..4096).map(|i| format!("{i:0100}")).collect()), None),
        (
            "intersections",
            lark(format!("start: A\nA: {}", words(5, " & ", |i| format!("/(.*a.{{{i}}}b)+/")))),
            Some("too many expressions"),
        ),
        (
            "more intersections",
            lark(format!("start: A\nA: {}", words(30, " & ", |i| format!("/(.*a.{{{i}}}b)+/")))),
            Some("29 intersections"),
        ),
        (
            "parameters",
            lark("start: a::0x0\na::_: \"x\" a::set_bit(1) | \"x\" a::set_bit(2) | \"\""),
            Some("rules with parameters"),
        ),
        ("substrings", lark(format!("start: A\nA: %regex {{\"substring_chars\": \"{}\"}}", "ab".repeat(30_000))), None),
        ("what may be absent", lark(format!("start: {}", "\"a\"? ".repeat(2000))), Some("")),
        ("many lines", lark("\n".repeat((128 << 10) + 1)), Some("131073 bytes")),
        ("itself twice", lark("start: e\ne: e e | \"a\""), None),
        ("itself in all ways", lark("start: e\ne: e e | e e e | e? e? | \"a\" | \"\""), None),
        ("itself in GBNF", gbnf("root ::= s\ns ::= \"a\" s \"a\" | \"a\" s | s \"a\" | \"a\" | s s"), None),
        ("a slash in a token is no expression", lark(format!("start: </x> {}", "\"a\" ".repeat(6000))), Some(pieces)),
        ("quotes in comments", lark(format!("// \"\nstart: {} # \"", "\"a\" ".repeat(6000))), Some(pieces)),
        (
            "a schema in Lark",
            lark(format!("start: %json {}", json!({"properties": named(1500, |_| json!({}))}))),
            Some("2250000 pairs"),
        ),
        (
            "300 objects",
            Rule::JsonSchema(
                json!({"anyOf": each(300, |i| json!({"properties": {format!("k{i}"): {"type": "string"}}}))}),
            ),
            None,
        ),
        (
            "5,000 objects",
            Rule::JsonSchema(
                json!({"anyOf": each(5000, |i| json!({"properties": {format!("k{i}"): {"type": "string"}}}))}),
            ),
            Some("values"),
        ),
        (
            "allOf",
            Rule::JsonSchema(
                json!({"allOf": each(300, |i| json!({"properties": {format!("k{i}"): {"type": "string"}}}))}),
            ),
            Some("too large"),
        ),
        (
            "allOf of anyOf",
            Rule::JsonSchema(
                json!({"allOf": each(20, |i| json!({"anyOf": [{"minimum": i}, {"required": [format!("k{i}")]}]}))}),
            ),
            Some(""),
        ),
        (
            "joined patterns",
            Rule::JsonSchema(json!({"type": "string", "allOf": each(20, |i| json!({"pattern": format!("a{i}")}))})),
            Some("20 patterns"),
        ),
        (
            "properties",
            Rule::JsonSchema(json!({"properties": named(708, |_| json!({"type": "string"}))})),
            Some("501264 pairs"),
        ),
        (
            "10,000 constants",
            Rule::JsonSchema(json!({"enum": (0..9_990).map(|i| format!("value {i}")).collect::<Vec<_>>()})),
            None,
        ),
        (
            "multiples",
            Rule::JsonSchema(
                json!({"allOf": each(20, |i| json!({"type": "integer", "multipleOf": 1_000_003 + 2 * i}))}),
            ),
            Some(""),
        ),
        ("a multiple", Rule::JsonSchema(json!({"type": "integer", "multipleOf": 1_234_567_891})), Some("")),
        (
            "many digits",
            Rule::JsonSchema(json!({"type": "number", "multipleOf": 0.000_001_234_567_891_234_5})),
            Some("too many digits"),
        ),
        (
            "a loop",
            Rule::JsonSchema(
                json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
            ),
            Some(""),
        ),
        ("twice each", Rule::JsonSchema(refs(20, |next| json!({"allOf": [next.clone(), next]}))), None),
        (
            "long texts",
            Rule::JsonSchema(json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000})),
            None,
        ),
        ("long lists", Rule::JsonSchema(json!({"type": "array", "minItems": 1_000_000})), None),
        ("512 KiB of nothing", Rule::JsonSchema(json!({"description": "x".repeat(500 << 10)})), None),
        ("512 KiB of values", Rule::JsonSchema(json!({"enum": vec![0; 250_000]})), Some("values")),
    ] {
        let reason = judged(rule);
        println!("{name}: {reason:?}");
        let is_as_expected = match (&reason, refusal) {
            (None, None) => true,
            (Some(reason), Some(word)) => reason.contains(word) && reason.len() < 400 && !reason.contains("panic"),
            _ => false,
        };
        if !is_as_expected {
            wrong.push(format!("{name}: {reason:?}, and {refusal:?} was expected"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if let (Some(before), Some(after)) = (before, peak()) {
        // Sixteen of them are kept; one that got through without limits took 1.7 GB.
        assert!(after - before < 512 << 10, "{} KiB", after - before);
    }
}

/// Most memory that the process had, in KiB.
fn peak() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

#[test]
fn the_deepest_rules_need_no_stack_of_those_who_ask() {
    let groups = |open: &str, inner: &str, close: &str, depth: usize| {
        let mut text = open.repeat(depth);
        let _ = write!(text, "{inner}{}", close.repeat(depth));
        text
    };
    let long = 1990;
    for (name, rule, is_taken) in [
        (
            "rules",
            lark(format!("start: r0\n{}r{long}: \"x\"", chain(long, |i, next| format!("r{i}: r{next} \"y\"")))),
            true,
        ),
        (
            "a rule more",
            lark(format!("start: r0\n{}r2000: \"x\"", chain(2000, |i, next| format!("r{i}: r{next} \"y\"")))),
            false,
        ),
        (
            "rules and groups",
            lark(format!(
                "start: r0\n{}r220: \"x\"",
                chain(220, |i, next| format!("r{i}: {}", groups("(", &format!("r{next} \"y\""), ")", 24)))
            )),
            true,
        ),
        (
            "terminals",
            lark(format!("start: R0\n{}R{long}: \"x\"", chain(long, |i, next| format!("R{i}: R{next} \"y\"")))),
            true,
        ),
        (
            "alternatives",
            lark(format!("start: R0\n{}R1100: \"x\"", chain(1100, |i, next| format!("R{i}: (R{next} | \"y\") \"z\"")))),
            true,
        ),
        (
            "opposites",
            lark(format!("start: R0\n{}R1400: \"x\"", chain(1400, |i, next| format!("R{i}: ~(R{next} \"y\")")))),
            true,
        ),
        ("groups", lark(groups("start: (", "\"x\"", ")", 1)), true),
        ("groups of an expression", regex(groups("(a", "x", "b)?", 70)), true),
        ("more of them", regex(groups("(a", "x", "b)?", 10_000)), false),
        ("groups of GBNF", gbnf(groups("root ::= (\"a\" ", "\"x\"", ")", 1)), true),
        (
            "rules of GBNF",
            gbnf(format!(
                "root ::= r0\n{}r1200 ::= \"x\" root?",
                chain(1200, |i, next| format!("r{i} ::= r{next} \"y\""))
            )),
            true,
        ),
        ("nested GBNF", gbnf(format!("root ::= {}", groups("(\"a\" ", "[a-z]*", " \"b\")?", 1600))), true),
        ("nested GBNF, one way", gbnf(format!("root ::= {}", groups("(\"a\" ", "\"x\"", ")", 2400))), true),
        ("more nested", gbnf(format!("root ::= {}", groups("(\"a\" ", "\"x\"", ")", 6000))), false),
        ("names", Rule::JsonSchema(refs(4900, |next| next)), true),
        ("objects", Rule::JsonSchema(refs(1990, |next| json!({"type": "object", "properties": {"x": next}}))), true),
        ("joined", Rule::JsonSchema(refs(1660, |next| json!({"allOf": [next, {"type": "object"}]}))), true),
    ] {
        let reason = judged(rule);
        println!("{name}: {reason:?}");
        assert_eq!(reason.is_none(), is_taken, "{name}: {reason:?}");
    }
}

/// Walks along a text, over and over, and tells after how many tokens the rule ended its own answer.
fn follow(rule: &Rule, text: &str, most: usize) -> Result<(), usize> {
    let mut constraint = VOCABULARY.compile(rule).map_err(|_| 0usize)?.constraint();
    let tokens: Vec<u32> = text.chars().flat_map(|c| TOKENIZER.encode_plain(&c.to_string()).unwrap()).collect();
    for at in 0..most {
        let token = tokens[at % tokens.len()];
        match constraint.mask(at) {
            Ok(Some(mask)) => assert_eq!(mask[token as usize / 32] >> (token % 32) & 1, 1, "{rule:?}: token {at}"),
            Ok(None) => {}
            Err(error) => {
                assert_eq!(error, ConstraintError::TooComplex, "{rule:?}");
                return Err(at);
            }
        }
        if let Err(error) = constraint.accept(token) {
            assert_eq!(error, ConstraintError::TooComplex, "{rule:?}");
            return Err(at);
        }
    }
    Ok(())
}

#[test]
fn what_can_be_read_in_ever_more_ways_ends_its_own_answer_early() {
    let twins = |rest: &str| {
        let rules = words(60, "\n", |i| format!("x{i}: \"a\" | \"aa\""));
        lark(format!("start: e\ne: e e{} {rest}\n{rules}", words(60, "", |i| format!(" | x{i} e"))))
    };
    for (rule, text) in [
        (lark("start: e\ne: e e | \"a\""), "a"),
        (lark("start: e\ne: e e | e e e | e? e? | \"a\" | \"\""), "a"),
        (gbnf("root ::= s\ns ::= \"a\" s \"a\" | \"a\" s | s \"a\" | \"a\" | s s"), "a"),
        (gbnf("root ::= s s s s\ns ::= s* \"a\"?"), "a"),
        // The text that is written has few readings, and what may follow it has many.
        (twins("| \"b\""), "b"),
        (twins("| \"b\" e | \"b\""), "b"),
    ] {
        let ended = follow(&rule, text, 400);
        // So soon that no mask before it was long: what a mask looks at grows with the square of these.
        assert!(matches!(ended, Err(at) if at < 200), "{rule:?}: {ended:?}");
    }
}

#[test]
fn grammars_that_people_write_go_on_however_long_the_answer() {
    let json = "root ::= value\nvalue ::= object | array | string | [0-9]+ | \"true\" | \"null\"\n\
                object ::= \"{\" ws (pair (\",\" ws pair)*)? \"}\" ws\npair ::= string \":\" ws value\n\
                array ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\nstring ::= \"\\\"\" [^\"\\\\]* \"\\\"\" ws\nws ::= [ \\n]*";
    let sums = "start: sum\nsum: sum \"+\" product | product\nproduct: product \"*\" atom | atom\n\
                atom: /[0-9]+/ | \"(\" sum \")\"";
    for (rule, begin, text) in [
        (gbnf(json), "[", "{\"a\": [1, true, {\"b\": \"c\"}], \"d\": null}, "),
        (lark(sums), "", "(1+2*(3+4))*5+"),
        (lark("start: line*\nline: /[a-z ]+/ \"\\n\""), "", "it was a fox\n"),
        (gbnf("root ::= item root | item\nitem ::= \"- \" [a-z]+ \"\\n\""), "", "- fox\n"),
    ] {
        let mut constraint = VOCABULARY.compile(&rule).unwrap().constraint();
        let whole: String = std::iter::once(begin).chain(std::iter::repeat_n(text, 40)).collect();
        let tokens = TOKENIZER.encode_plain(&whole).unwrap();
        for (at, &token) in tokens.iter().enumerate() {
            let mask = constraint.mask(at).unwrap_or_else(|error| panic!("{rule:?}: {error} behind {at} tokens"));
            let mask = mask.expect("not all may follow");
            assert_eq!(mask[token as usize / 32] >> (token % 32) & 1, 1, "{rule:?}: token {at}");
            constraint.accept(token).unwrap_or_else(|error| panic!("{rule:?}: {error} with token {at}"));
        }
    }
}
