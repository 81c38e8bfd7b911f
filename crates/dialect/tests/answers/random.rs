//! Answers that no model writes: pieces of every family's marks in any order, and repetitions of them.

use dialect::{AnswerParser, AnswerPart, Calls, Dialect, Thoughts, whole};
use testing::Dice;

use crate::answers::{accounts, check_arguments, heard, tools};

/// Pieces of answers, besides a dialect's marks.
const PIECES: [&str; 44] = [
    "weather",
    "now",
    "get",
    "nope",
    "city",
    "days",
    "Ulm",
    "\u{1f98a}",
    " ",
    "\n",
    "\n\n",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    "=",
    "\"",
    "'",
    "\\",
    "<",
    ">",
    "/",
    "|",
    "1",
    "-0.5e1",
    "true",
    "None",
    "{}",
    "{\"name\": \"now\"",
    "\"name\": \"now\"",
    "\"arguments\": {",
    "\"arguments\": {}",
    "\"parameters\": {}",
    "{\"city\": \"Ulm\"}",
    "now()",
    "city=\"Ulm\"",
    "functions.",
    "to=functions.now",
    "```json\n",
    "call:now{",
];

#[test]
fn any_pieces_have_the_same_complete_parts() {
    for (number, calls) in Calls::NAMES.iter().enumerate() {
        let thoughts = Thoughts::NAMES[number % Thoughts::NAMES.len()];
        let dialect = Dialect::new(Thoughts::named(thoughts), Calls::named(calls));
        let marks = dialect.marks();
        for seed in testing::part_of(1..400, 3) {
            let mut dice = Dice::new(seed << 32 | number as u64);
            let mut answer = String::new();
            for _ in 0..dice.roll(24) + 1 {
                let piece = match dice.roll(3) {
                    0 if !marks.is_empty() => marks[dice.roll(marks.len())],
                    _ => PIECES[dice.roll(PIECES.len())],
                };
                // Sometimes a part of a mark.
                let mut end = if dice.roll(12) == 0 { dice.roll(piece.len()) } else { piece.len() };
                while !piece.is_char_boundary(end) {
                    end -= 1;
                }
                answer.push_str(&piece[..end]);
            }
            let (all, _) = heard(&dialect, "", &[&answer]);
            let mut cuts: Vec<usize> = (0..4).map(|_| dice.roll(answer.len() + 1)).collect();
            cuts.retain(|&at| answer.is_char_boundary(at));
            cuts.extend([0, answer.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|pair| &answer[pair[0]..pair[1]]).collect();
            assert_eq!(heard(&dialect, "", &pieces).0, all, "{calls}, seed {seed}: {answer:?}");
            let parts = whole(&dialect, tools(), "", &answer);
            check_arguments(&parts, true);
            let is_harmony = dialect.marks().contains(&"<|channel|>");
            if !is_harmony {
                accounts(&answer, &parts);
                accounts(&answer, &all);
            }
        }
    }
}

/// A million bytes (in a quick run a quarter of that) of `<`, and of unclosed marks, a letter at a time. Ending within
/// a test's time limit shows that parsing is linear: quadratic time would take hours.
#[test]
fn a_flood_of_marks_is_passed_on() {
    let bytes = if testing::is_long() { 1 << 20 } else { 1 << 18 };
    let floods: [(&str, &str, &str); 12] = [
        ("hermes", "qwen3", "<"),
        ("hermes", "qwen3", "<tool_call>"),
        ("hermes", "qwen3", "<tool_call>{\"name\": "),
        ("hermes", "qwen3", "</think>"),
        ("llama3_json", "", "{"),
        ("mistral", "mistral", "[TOOL_CALLS]"),
        ("deepseek_v3", "qwen3", "<｜tool▁calls▁begin｜>"),
        ("qwen3_coder", "qwen3", "<think><tool_call>"),
        ("pythonic", "", "[get("),
        ("gemma", "", "```tool_code\nget("),
        ("openai", "openai_gptoss", "<|start|><|channel|>"),
        ("functiongemma", "", "<start_function_call>call:get"),
    ];
    for (calls, thoughts, flood) in floods {
        let dialect = Dialect::new(Thoughts::named(thoughts), Calls::named(calls));
        let answer = flood.repeat(bytes / flood.len());
        let (mut parser, mut parts, mut at) = (AnswerParser::new(&dialect, tools(), ""), Vec::new(), 0);
        while at < answer.len() {
            let end = at + answer[at..].chars().next().expect("there is more").len_utf8();
            parser.push(&answer[at..end], &mut parts);
            at = end;
        }
        parser.finish(&mut parts);
        let said: usize = parts
            .iter()
            .map(|part| match part {
                AnswerPart::Text(text) | AnswerPart::Thought(text) => text.len(),
                _ => 0,
            })
            .sum();
        assert!(said <= answer.len() && parser.calls_complete() && parser.num_calls() == 0, "{flood:?}");
        // All but marks of thoughts and message headers.
        let is_plain = !flood.contains("think") && calls != "openai";
        assert!(!is_plain || said == answer.len(), "{flood:?}: {said} of {}", answer.len());
    }
}

#[test]
fn long_arguments_are_passed_on_as_they_come() {
    let text = "line \\\"\\n".repeat(1 << 16);
    let answers = [
        ("hermes", format!("<tool_call>{{\"name\": \"get\", \"arguments\": {{\"a\": \"{text}\"}}}}</tool_call>")),
        ("hermes", format!("<tool_call>{{\"arguments\": {{\"a\": \"{text}\"}}, \"name\": \"get\"}}</tool_call>")),
        ("qwen3_coder", format!("<function=weather><parameter=city>{text}</parameter></function>")),
        ("pythonic", format!("[get(a=\"{text}\")]")),
    ];
    for (calls, answer) in answers {
        let dialect = Dialect::new(None, Calls::named(calls));
        let pieces: Vec<String> = answer.chars().map(String::from).collect();
        let (mut parser, mut parts) = (AnswerParser::new(&dialect, tools(), ""), Vec::new());
        for piece in &pieces {
            parser.push(piece, &mut parts);
        }
        parser.finish(&mut parts);
        assert_eq!((parser.num_calls(), parser.calls_complete()), (1, true), "{calls}");
        check_arguments(&parts, true);
    }
}
