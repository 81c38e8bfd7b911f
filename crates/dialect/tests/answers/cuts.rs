//! After a thought that was closed from outside, and in an answer without thoughts: none of the text is a mark or a
//! thought, and no word of it is lost, in any pieces.

use dialect::{AnswerParser, AnswerPart, Dialect, Thoughts, whole_cut};

use crate::answers::{dialect, tools};
use testing::Dice;

/// An answer with a cut thought.
struct Cut {
    /// The end of the prompt.
    prompt_end: &'static str,
    thought: String,
    /// The answer up to the cut, the closing text, and the model's text after it.
    begun: String,
    closing: &'static str,
    rest: String,
}

#[derive(Debug, Default, PartialEq)]
struct Said {
    thought: String,
    text: String,
    calls: Vec<String>,
}

fn said(parts: &[AnswerPart]) -> Said {
    let mut said = Said::default();
    for part in parts {
        match part {
            AnswerPart::Thought(more) => said.thought.push_str(more),
            AnswerPart::Text(more) => said.text.push_str(more),
            AnswerPart::CallBegins { name, .. } => said.calls.push(name.clone()),
            AnswerPart::Arguments { json, .. } => said.calls.last_mut().expect("it began").push_str(json),
            AnswerPart::CallEnds { .. } => {}
        }
    }
    said.text = said.text.trim().to_owned();
    said
}

impl Cut {
    fn answer(&self) -> String {
        format!("{}{}{}", self.begun, self.closing, self.rest)
    }

    fn at(&self) -> usize {
        self.begun.chars().count()
    }

    fn whole(&self, dialect: &Dialect) -> Said {
        said(&whole_cut(dialect, tools(), self.prompt_end, &self.answer(), Some(self.at())))
    }

    /// The same in pieces of up to `most` characters; the cut becomes known when the thought is over, as in a server.
    fn streamed(&self, dialect: &Dialect, dice: &mut Dice, most: usize) -> Said {
        let (mut parser, mut parts) = (AnswerParser::new(dialect, tools(), self.prompt_end), Vec::new());
        if self.begun.is_empty() {
            parser.cut(0);
        }
        for (number, text) in [self.begun.clone(), format!("{}{}", self.closing, self.rest)].into_iter().enumerate() {
            let characters: Vec<char> = text.chars().collect();
            let mut at = 0;
            while at < characters.len() {
                let end = (at + 1 + dice.roll(most)).min(characters.len());
                parser.push(&characters[at..end].iter().collect::<String>(), &mut parts);
                at = end;
            }
            if number == 0 {
                parser.cut(self.at());
            }
        }
        parser.finish(&mut parts);
        let thought: usize = parser.thought().iter().map(|range| range.len()).sum();
        assert_eq!(thought, self.thought.chars().count(), "{:?}", self.answer());
        said(&parts)
    }
}

/// All marks of the family: those of thoughts, and its special tokens.
fn marks(thoughts: Thoughts) -> Vec<&'static str> {
    let dialect = Dialect::new(Some(thoughts), None);
    let own = dialect.thought("").expect("it thinks");
    [own.opens, own.closes, &dialect.marks()].concat()
}

fn is_harmony(thoughts: Thoughts) -> bool {
    thoughts.name() == "openai_gptoss"
}

/// A text of marks, parts of marks and words. Each `1` in it is a word that must not be lost.
fn rest(thoughts: Thoughts, dice: &mut Dice) -> String {
    let marks = marks(thoughts);
    let mut rest = String::new();
    for _ in 0..dice.roll(14) + 1 {
        let mark = marks[dice.roll(marks.len())];
        match dice.roll(12) {
            0 | 1 => rest.push_str(mark),
            2 => rest.push_str(&format!("\n{mark}")),
            3 => rest.push_str(&mark.repeat(2)),
            // One inside another.
            4 => {
                let half = mark.char_indices().nth(1 + dice.roll(mark.chars().count() - 1)).map_or(0, |(at, _)| at);
                rest.push_str(&format!("{}{}{}", &mark[..half], marks[dice.roll(marks.len())], &mark[half..]));
            }
            5 => {
                let half = mark.char_indices().nth(dice.roll(mark.chars().count())).map_or(0, |(at, _)| at);
                rest.push_str(&mark[[0, half][dice.roll(2)]..][..if half == 0 { mark.len() } else { 0 }]);
                rest.push_str(&mark[..half]);
            }
            6 => rest.push_str(["\n", "\n\n", " ", "\t"][dice.roll(4)]),
            7 => rest.push_str(["<", "</", "[", "<|", ">", "|"][dice.roll(6)]),
            8 => rest.push_str(["\u{1f98a}1", "é1", "１1"][dice.roll(3)]),
            _ => rest.push_str([" 1", "1 ", "1"][dice.roll(3)]),
        }
    }
    rest
}

/// The first name of each format: the others are aliases.
fn families() -> impl Iterator<Item = Thoughts> {
    let all = Thoughts::NAMES.iter().map(|name| Thoughts::named(name).expect("it is named"));
    let mut seen = Vec::new();
    all.filter(move |thoughts| {
        !seen.contains(thoughts) && {
            seen.push(*thoughts);
            true
        }
    })
}

/// Ways to a cut: the prompt began the thought, the model did, or thoughts are not allowed.
fn begins(thoughts: Thoughts, budget: usize, way: usize) -> (&'static str, String, String) {
    let marks = Dialect::new(Some(thoughts), None).thought("").expect("it thinks");
    let thought: String = " hm".chars().cycle().take(budget).collect();
    let open = marks.opens[0];
    match way {
        _ if budget == 0 && way.is_multiple_of(2) => ("", String::new(), String::new()),
        0 | 1 => (open, thought.clone(), thought),
        // Opened as the family does.
        _ if is_harmony(thoughts) => ("", format!("{open}{thought}"), thought),
        2 => ("", format!("{open}{thought}"), thought),
        3 => ("", format!("\n{open}{thought}"), thought),
        4 => (open, format!("\n{open}{thought}"), thought),
        _ => ("", format!("{open}{open}\n{open}{thought}"), thought),
    }
}

#[test]
fn no_mark_behind_a_cut_is_seen_and_no_word_is_lost() {
    for (number, thoughts) in families().enumerate() {
        let dialect = Dialect::new(Some(thoughts), None);
        let marks = marks(thoughts);
        for seed in 1..=240_u64 {
            let mut dice = Dice::new(seed << 32 | number as u64);
            let (prompt_end, begun, thought) = begins(thoughts, dice.roll(12), dice.roll(6));
            let closing = if begun.is_empty() && prompt_end.is_empty() && !dialect.thought("").unwrap().is_open {
                ""
            } else {
                thoughts.closing()
            };
            let cut = Cut { prompt_end, thought, begun, closing, rest: rest(thoughts, &mut dice) };
            let whole = cut.whole(&dialect);
            let context = format!("{}, seed {seed}: {:?} -> {whole:?}", thoughts.name(), cut.answer());
            assert_eq!(whole.thought, cut.thought, "{context}");
            for mark in &marks {
                assert!(!whole.text.contains(mark.trim_end()), "{mark:?} is seen: {context}");
            }
            // Between two marks of harmony is a message header.
            if !is_harmony(thoughts) {
                let ones = |text: &str| text.matches('1').count();
                assert_eq!(ones(&whole.text), ones(&cut.rest), "a word is lost: {context}");
            }
            for most in [1, 2, 5, 9, 40] {
                assert_eq!(cut.streamed(&dialect, &mut dice, most), whole, "in pieces of {most}: {context}");
            }
        }
    }
}

/// An answer that continues after its marks is not empty, in any family.
#[test]
fn what_is_said_behind_a_cut_is_the_answer() {
    for thoughts in families() {
        let dialect = Dialect::new(Some(thoughts), None);
        let marks = dialect.thought("").expect("it thinks");
        let (open, closing) = (marks.opens[0], thoughts.closing());
        let close = if is_harmony(thoughts) { closing } else { marks.closes[0] };
        for budget in [0, 1, 3, 7] {
            for way in 0..6 {
                for rest in [
                    format!("so it is{close}It is 4.{close}"),
                    format!("\n{open}so it is{close}\n\nIt is 4."),
                    format!("{close}{close}\n{close}It is 4.\n{open}"),
                    format!("It is 4.{open}{open}\n"),
                    "It is 4.".to_owned(),
                ] {
                    let (prompt_end, begun, thought) = begins(thoughts, budget, way);
                    let cut = Cut { prompt_end, thought, begun, closing, rest };
                    let heard = cut.whole(&dialect);
                    let context = format!("{}, {budget}: {:?} -> {heard:?}", thoughts.name(), cut.answer());
                    assert_eq!(heard.thought, cut.thought, "{context}");
                    assert!(heard.text.contains("It is 4."), "{context}");
                    assert!(cut.rest.contains("so it") == heard.text.contains("so it"), "{context}");
                    assert!(!heard.text.contains(['<', '[', '|']) && !heard.text.contains("Here"), "{context}");
                    assert_eq!(cut.streamed(&dialect, &mut Dice::new(7), 4), heard, "{context}");
                }
            }
        }
    }
}

/// Calls work after a cut as anywhere.
#[test]
fn calls_behind_a_cut_are_calls() {
    for thoughts in families().filter(|thoughts| !is_harmony(*thoughts)) {
        let marks = Dialect::new(Some(thoughts), None).thought("").expect("it thinks");
        let (open, close) = (marks.opens[0], marks.closes[0]);
        let half = &close[..close.len() / 2];
        for (calls, call) in [
            ("hermes", "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": \"@\"}}\n</tool_call>"),
            ("qwen3_coder", "<tool_call>\n<function=get>\n<parameter=a>\n@\n</parameter>\n</function>\n</tool_call>"),
            ("mistral", "[TOOL_CALLS]get[ARGS]{\"a\": \"@\"}"),
            ("lfm2", "<|tool_call_start|>[get(a=\"@\")]<|tool_call_end|>"),
            ("llama3_json", "{\"name\": \"get\", \"parameters\": {\"a\": \"@\"}}"),
            ("pythonic", "[get(a=\"@\")]"),
        ] {
            let dialect = dialect(calls, thoughts.name());
            for before in ["", "\n", close, open, &format!("\n{open}\n{close}"), &format!("{close}{close}\n")] {
                // The inside of a call is not text.
                for value in ["x", close.trim(), &format!("{open}x")] {
                    let value = value.replace('\n', " ");
                    for behind in ["", "\n", close] {
                        let rest = format!("{before}{}{behind}", call.replace('@', &value));
                        let (prompt_end, begun, thought) = begins(thoughts, 3, 0);
                        let cut = Cut { prompt_end, thought, begun, closing: thoughts.closing(), rest };
                        let heard = cut.whole(&dialect);
                        let context = format!("{} {calls}: {:?} -> {heard:?}", thoughts.name(), cut.answer());
                        assert_eq!((heard.calls.len(), heard.text.as_str()), (1, ""), "{context}");
                        let arguments: serde_json::Value =
                            serde_json::from_str(heard.calls[0].strip_prefix("get").expect("its name")).expect("JSON");
                        assert_eq!(arguments["a"], value, "{context}");
                        assert_eq!(cut.streamed(&dialect, &mut Dice::new(5), 6), heard, "{context}");
                    }
                }
            }
            // An invalid call is text, except for the marks in it.
            let rest = format!("{half}<tool_call>{{\"name\": \"no{close}pe\"{half}<tool_call>x{close}{open}y");
            let (prompt_end, begun, thought) = begins(thoughts, 3, 0);
            let cut = Cut { prompt_end, thought, begun, closing: thoughts.closing(), rest };
            let heard = cut.whole(&dialect);
            assert!(!heard.text.contains(close) && !heard.text.contains(open), "{calls}: {heard:?}");
            assert!(heard.text.ends_with("xy"), "{calls}: {heard:?}");
        }
    }
}
