//! What each family writes and its parts, for any pieces.

use std::sync::Arc;

use dialect::{AnswerParser, AnswerPart, Calls, Dialect, Thoughts, Tool, whole};
use serde_json::{Value, json};

mod bare;
mod cuts;
mod marked;
pub(crate) mod random;
mod templates;
mod thoughts;
mod wrong;

/// A part as a table writes it. A call is its name and the arguments as text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum P {
    /// A thought.
    Th(&'static str),
    /// Text.
    Tx(&'static str),
    /// A complete call.
    Call(&'static str, &'static str),
    /// A complete call with an id.
    CallId(&'static str, &'static str, &'static str),
    /// An incomplete call.
    Cut(&'static str, &'static str),
}
use P::{Call, CallId, Cut, Th, Tx};

fn tools() -> Arc<[Tool]> {
    let tool = |name: &str, parameters: Value| Tool { name: name.into(), parameters, strict: false };
    [
        tool(
            "weather",
            json!({
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "metric": {"type": "boolean"},
                    "near": {"type": "array", "items": {"type": "string"}},
                    "at": {"type": "object"},
                    "unit": {"type": ["string", "null"]},
                    "zip": {"type": ["string", "integer"]},
                    "file-path": {"type": "boolean"},
                    "file": {"type": "boolean"},
                    "a=b c": {"type": "boolean"},
                },
                "required": ["city"],
            }),
        ),
        tool("now", json!({"type": "object", "properties": {}})),
        tool("get", json!({})),
        tool("get_all.of-it", json!({})),
    ]
    .into()
}

fn dialect(calls: &str, thoughts: &str) -> Dialect {
    let dialect = Dialect::new(Thoughts::named(thoughts), Calls::named(calls));
    assert!(dialect.calls.is_some() || calls.is_empty(), "no calls {calls}");
    assert!(dialect.thoughts.is_some() || thoughts.is_empty(), "no thoughts {thoughts}");
    dialect
}

fn heard(dialect: &Dialect, prompt_end: &str, pieces: &[&str]) -> (Vec<AnswerPart>, bool) {
    let (mut parser, mut parts) = (AnswerParser::new(dialect, tools(), prompt_end), Vec::new());
    for piece in pieces {
        parser.push(piece, &mut parts);
        check_arguments(&parts, false);
    }
    parser.finish(&mut parts);
    check_arguments(&parts, false);
    (parts, parser.calls_complete())
}

/// Arguments of complete calls are an object, and those of others the beginning of one.
fn check_arguments(parts: &[AnswerPart], all_end: bool) {
    let mut open: Option<(usize, String)> = None;
    for part in parts {
        match part {
            AnswerPart::CallBegins { index, .. } => open = Some((*index, String::new())),
            AnswerPart::Arguments { index, json } => {
                let (at, text) = open.as_mut().expect("a call has begun");
                assert_eq!(at, index);
                text.push_str(json);
                assert!(begins_object(text), "not the beginning of an object: {text:?}");
            }
            AnswerPart::CallEnds { index } => {
                let (at, text) = open.take().expect("a call has begun");
                assert_eq!(at, *index);
                let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
                assert!(value.is_object(), "{text:?}");
            }
            AnswerPart::Text(text) | AnswerPart::Thought(text) => assert!(!text.is_empty()),
        }
    }
    assert!(!all_end || open.is_none(), "a call did not end: {parts:?}");
}

fn begins_object(text: &str) -> bool {
    match serde_json::from_str::<serde_json::Map<String, Value>>(text) {
        Ok(_) => true,
        Err(error) => error.is_eof(),
    }
}

/// The parts in the notation of the tables.
fn described(parts: &[AnswerPart]) -> Vec<String> {
    let mut described: Vec<String> = Vec::new();
    let mut call = (String::new(), String::new());
    for part in parts {
        match part {
            AnswerPart::Thought(text) => described.push(format!("thought {text}")),
            AnswerPart::Text(text) => described.push(format!("text {text}")),
            AnswerPart::CallBegins { name, id, .. } => {
                call = (id.clone().unwrap_or_default(), name.clone());
                described.push(format!("cut {name} "));
            }
            AnswerPart::Arguments { json, .. } => described.last_mut().expect("a call").push_str(json),
            AnswerPart::CallEnds { .. } => {
                let last = described.last_mut().expect("a call");
                *last = last.replacen("cut", &format!("call {}", call.0), 1);
            }
        }
    }
    described
}

fn wanted(parts: &[P]) -> Vec<String> {
    let one = |part: &P| match part {
        Th(text) => format!("thought {text}"),
        Tx(text) => format!("text {text}"),
        Call(name, json) => format!("call  {name} {json}"),
        CallId(id, name, json) => format!("call {id} {name} {json}"),
        Cut(name, json) => format!("cut {name} {json}"),
    };
    parts.iter().map(one).collect()
}

/// One row: the parts of an answer, cut everywhere, and of each of its prefixes.
fn row(dialect: &Dialect, prompt_end: &str, answer: &str, parts: &[P]) {
    let (all, complete) = heard(dialect, prompt_end, &[answer]);
    assert_eq!(described(&all), wanted(parts), "{answer:?}");
    assert_eq!(complete, !parts.iter().any(|part| matches!(part, Cut(..))), "{answer:?}");
    // An answer that is not streamed has the same parts, if all its calls are complete.
    let at_once = whole(dialect, tools(), prompt_end, answer);
    assert!(!complete || at_once == all, "{answer:?}: {at_once:?}");
    let cuts: Vec<usize> = (0..=answer.len()).filter(|&at| answer.is_char_boundary(at)).collect();
    for &at in &cuts {
        let pieces = [&answer[..at], &answer[at..]];
        assert_eq!(heard(dialect, prompt_end, &pieces).0, all, "cut at {at}: {answer:?}");
    }
    let single: Vec<&str> = cuts.windows(2).map(|pair| &answer[pair[0]..pair[1]]).collect();
    assert_eq!(heard(dialect, prompt_end, &single).0, all, "letter by letter: {answer:?}");
    for &at in &cuts {
        let begun = &answer[..at];
        let parts = whole(dialect, tools(), prompt_end, begun);
        check_arguments(&parts, true);
        accounts(begun, &parts);
        accounts(begun, &heard(dialect, prompt_end, &[begun]).0);
    }
}

/// Every character of the parts is in the answer, in order; the rest is in a mark, between marks, or in a call.
fn accounts(answer: &str, parts: &[AnswerPart]) {
    let said: String = parts
        .iter()
        .filter_map(|part| match part {
            AnswerPart::Text(text) | AnswerPart::Thought(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let is_called = parts.iter().any(|part| matches!(part, AnswerPart::CallBegins { .. }));
    assert!(explains(answer, &said, is_called), "{said:?} is not what {answer:?} says: {parts:?}");
}

/// Whether `answer` is `said` with marks of thoughts in between, and white space beside them; with calls: with
/// anything in between.
fn explains(answer: &str, said: &str, is_called: bool) -> bool {
    const MARKS: [&str; 20] = [
        "<think>",
        "</think>",
        "[THINK]",
        "[/THINK]",
        "<seed:think>",
        "</seed:think>",
        "<|channel>thought\n",
        "<channel|>",
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|start|>assistant<|channel|>commentary<|message|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        "Here is my thought process:",
        "Here's my thought process:",
        "Here is my response:",
        "Here's my response:",
    ];
    // Possible prefix lengths of `said`, for each prefix of the answer.
    let mut ends: Vec<std::collections::BTreeSet<usize>> = vec![Default::default(); answer.len() + 1];
    ends[0].insert(0);
    for (at, c) in answer.char_indices() {
        for end in ends[at].clone() {
            if said[end..].starts_with(c) {
                ends[at + c.len_utf8()].insert(end + c.len_utf8());
            }
            if is_called || c.is_whitespace() {
                ends[at + c.len_utf8()].insert(end);
            }
            for mark in MARKS.iter().filter(|mark| answer[at..].starts_with(**mark)) {
                ends[at + mark.len()].insert(end);
            }
        }
    }
    ends[answer.len()].contains(&said.len())
}

fn rows(calls: &str, thoughts: &str, table: &[(&str, &[P])]) {
    let dialect = dialect(calls, thoughts);
    for (answer, parts) in table {
        row(&dialect, "", answer, parts);
    }
}
