//! Confusing values and texts around calls, for every family.

use dialect::{AnswerParser, AnswerPart, Calls, Dialect, Thoughts, whole};
use serde_json::{Value, json};

use super::{FAMILIES, Family, Form, cut, tools};
use crate::answers::check_arguments;
use testing::part_of;

/// Strings in the arguments.
const VALUES: [&str; 46] = [
    "",
    " ",
    "a",
    "a b ",
    "0",
    "true",
    "null",
    "{}",
    "[]",
    "\\",
    "\\\\",
    "a\\",
    "\\n",
    "\\u00e9 \\ud83e",
    "\"",
    "\"\"\"",
    "'",
    "'''",
    "a\"b'c",
    "`",
    "```",
    "```json\n{}\n```",
    "a, b=1, c",
    "},{",
    "\"}}",
    "\"}]",
    ")]",
    "a\nb\n\nc",
    "a\r\nb\tc",
    "\u{1}\u{1b}[0m\u{7f}",
    "\u{1f98a}\u{200d}\u{1f98a}",
    "e\u{301}\u{2028}\u{feff}x",
    "１２３",
    "<tool_call>",
    "</tool_call>",
    "<think>hm</think>",
    "</function>",
    "</parameter",
    "<parameter=x>",
    "</arg_value",
    "<|call|>",
    "<|end|><|start|>assistant",
    "[TOOL_CALLS]x[ARGS]{}",
    "{\"name\": \"look\", \"arguments\": {\"file\": \"</tool_call>\"}}",
    "<tool_call>{\"name\": \"look\", \"arguments\": {}}</tool_call>",
    "<function=look><parameter=file>x</parameter></function>",
];

/// A value in the family's syntax, and whether it is unambiguous with any contents.
fn written(family: Family, value: &str) -> (String, bool) {
    match family.form {
        Form::Json => (format!("\"file\": {}", Value::from(value)), true),
        Form::Python => {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('\r', "\\r");
            (format!("file=\"{escaped}\""), true)
        }
        Form::Gemma(quote) => (family.text("file", value, true), !value.contains(quote)),
        // Without quotes, white space at an edge belongs to no value, and tags may be the call's.
        Form::Tags(_) => (
            family.text("file", value, true),
            !value.contains(['<', '\r']) && value.trim() == value && !value.is_empty(),
        ),
    }
}

fn heard(dialect: &Dialect, pieces: &[&str]) -> (Vec<AnswerPart>, bool) {
    let (mut parser, mut parts) = (AnswerParser::new(dialect, tools(), ""), Vec::new());
    for piece in pieces {
        parser.push(piece, &mut parts);
    }
    parser.finish(&mut parts);
    (parts, parser.calls_complete())
}

/// The arguments of an answer's calls, after checking that its pieces do not matter.
fn calls(family: Family, answer: &str) -> Result<Vec<Value>, String> {
    let thoughts = if family.is_harmony() { "openai_gptoss" } else { "qwen3" };
    let dialect = Dialect::new(Thoughts::named(thoughts), Calls::named(family.name));
    let (all, is_complete) = heard(&dialect, &[answer]);
    check_arguments(&all, false);
    let letters: Vec<&str> = answer.char_indices().map(|(at, c)| &answer[at..at + c.len_utf8()]).collect();
    if heard(&dialect, &letters).0 != all {
        return Err("letter by letter".into());
    }
    if let Some(seed) = (1..=30).find(|&seed| heard(&dialect, &cut(answer, seed)).0 != all) {
        return Err(format!("cuts of seed {seed}"));
    }
    let at_once = whole(&dialect, tools(), "", answer);
    check_arguments(&at_once, true);
    if is_complete && at_once != all {
        return Err(format!("whole: {at_once:?}, streamed: {all:?}"));
    }
    let mut calls: Vec<String> = Vec::new();
    for part in &at_once {
        match part {
            AnswerPart::CallBegins { .. } => calls.push(String::new()),
            AnswerPart::Arguments { json, .. } => calls.last_mut().expect("it began").push_str(json),
            _ => {}
        }
    }
    Ok(calls.iter().map(|call| serde_json::from_str(call).expect("it ended")).collect())
}

#[test]
fn any_value_comes_through() {
    let mut faults = Vec::new();
    for family in FAMILIES {
        for value in part_of(VALUES, 3) {
            let (parameter, is_told) = written(family, value);
            for (all, wanted) in [
                (family.all(std::slice::from_ref(&parameter)), json!({"file": value})),
                (family.all(&[family.bare_value("rows", "3"), parameter.clone()]), json!({"rows": 3, "file": value})),
                (family.all(&[parameter.clone(), family.bare_value("rows", "3")]), json!({"file": value, "rows": 3})),
            ] {
                let answer = family.call("look", &all);
                match calls(family, &answer) {
                    Ok(calls) if !is_told || calls == [wanted] => {}
                    wrong => faults.push(format!("{}: {answer:?}: {wrong:?}", family.name)),
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} wrong:\n{}", faults.len(), faults.join("\n"));
}

/// Broken calls: their parts do not depend on the pieces, and their arguments are an object or belong to no call.
#[test]
fn any_broken_call_has_the_same_parts() {
    type Breaks = fn(Family, &str) -> String;
    let ways: [(&str, Breaks); 14] = [
        ("no end", |f, call| call.strip_suffix(f.close).unwrap_or(call).to_owned()),
        ("half an end", |f, call| call[..call.len() - f.close.chars().last().map_or(0, char::len_utf8)].to_owned()),
        ("no beginning", |f, call| call[f.mark().len()..].to_owned()),
        ("twice in one another", |f, call| format!("{}{call}{}", f.open("look"), f.close)),
        ("both marks twice", |f, call| format!("{}{call}{}", f.mark(), f.close)),
        ("in a thought", |f, call| format!("{}hm\n{call}", f.thought)),
        ("in a thought, cut", |f, call| format!("{}hm\n{}", f.thought, call.strip_suffix(f.close).unwrap_or(call))),
        ("in a thought that closes", |f, call| format!("{}{call}</think>{call}", f.thought)),
        ("in a thought that closes twice", |f, call| format!("{}{call}</think></think>\n{call}", f.thought)),
        ("a thought inside", |f, call| call.replacen("look", &format!("{}look</think>", f.thought), 1)),
        ("between texts", |_, call| format!("a{call}b{call}c")),
        ("nothing in it", |f, _| f.call("", "")),
        ("unknown between known", |_, call| format!("{call}\n{}\n{call}", call.replacen("look", "other", 1))),
        ("a comma too many", |f, call| format!("{},{}", call.strip_suffix(f.close).unwrap_or(call), f.close)),
    ];
    let mut faults = Vec::new();
    for (first, family) in FAMILIES.into_iter().enumerate() {
        for (number, value) in VALUES.iter().enumerate() {
            // Each value in a few ways, each way with a few values.
            let ways = (0..4).map(|turn| ways[(first + number + 4 * turn) % ways.len()]);
            for (way, breaks) in part_of(ways, 4) {
                let answer = breaks(family, &family.call("look", &family.all(&[written(family, value).0])));
                if let Err(fault) = calls(family, &answer) {
                    faults.push(format!("{} | {way}: {answer:?}: {fault}", family.name));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} wrong:\n{}", faults.len(), faults.join("\n"));
}
