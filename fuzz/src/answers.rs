//! Answers of models as a parser meets them. A panic is a finding.

use std::sync::{Arc, OnceLock};

use dialect::{AnswerParser, AnswerPart, Calls, Dialect, Thoughts, Tool, whole};
use serde_json::{Map, Value, json};

/// A dialect by the names in the first line, and an answer: heard alike however it is cut, its calls are whole, and it
/// says nothing that is not in it. Whether it has a call.
pub fn answer(bytes: &[u8]) -> bool {
    let Some((names, answer)) = std::str::from_utf8(bytes).ok().and_then(|text| text.split_once('\n')) else {
        return false;
    };
    let (calls, thoughts) = names.split_once(' ').unwrap_or((names, ""));
    let dialect = Dialect::new(Thoughts::named(thoughts), Calls::named(calls));
    let all = heard(&dialect, [answer]);
    let middle = (answer.len() / 2..).find(|&at| answer.is_char_boundary(at)).unwrap_or(0);
    assert_eq!(heard(&dialect, [&answer[..middle], &answer[middle..]]), all, "cut at {middle}");
    assert_eq!(heard(&dialect, answer.split_inclusive(|_| true)), all, "letter by letter");
    check(answer, &all);
    let parts = whole(&dialect, tools(), "", answer);
    let begun = parts.iter().filter(|part| matches!(part, AnswerPart::CallBegins { .. })).count();
    assert_eq!(check(answer, &parts), begun, "a call that did not end");
    begun > 0
}

fn tools() -> Arc<[Tool]> {
    static TOOLS: OnceLock<Arc<[Tool]>> = OnceLock::new();
    let make = || {
        let parameters = json!({
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "near": {"type": "array"}},
        });
        let tool = |name: &str, parameters| Tool { name: name.into(), parameters, strict: false };
        [tool("weather", parameters), tool("now", json!({})), tool("nowhere", json!({}))].into()
    };
    TOOLS.get_or_init(make).clone()
}

fn heard<'a>(dialect: &Dialect, pieces: impl IntoIterator<Item = &'a str>) -> Vec<AnswerPart> {
    let (mut parser, mut parts) = (AnswerParser::new(dialect, tools(), ""), Vec::new());
    for piece in pieces {
        parser.push(piece, &mut parts);
    }
    parser.finish(&mut parts);
    parts
}

/// How many calls end.
fn check(answer: &str, parts: &[AnswerPart]) -> usize {
    let (mut rest, mut ended, mut arguments) = (answer.chars(), 0, String::new());
    for part in parts {
        match part {
            AnswerPart::Text(text) | AnswerPart::Thought(text) => {
                assert!(text.chars().all(|c| rest.any(|other| c == other)), "said, and not in the answer: {text:?}");
            }
            AnswerPart::CallBegins { name, .. } => {
                assert!(tools().iter().any(|tool| tool.name == *name), "a call of {name}");
                arguments.clear();
            }
            AnswerPart::Arguments { json, .. } => arguments.push_str(json),
            AnswerPart::CallEnds { .. } => {
                // A number may be larger than any that is computed with; it is JSON all the same.
                match serde_json::from_str::<Map<String, Value>>(&arguments) {
                    Err(error) if !error.to_string().contains("number out of range") => panic!("{error}: {arguments}"),
                    _ => ended += 1,
                }
            }
        }
    }
    ended
}
