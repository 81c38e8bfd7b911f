//! Thoughts: opened by the model, by the template, or not at all.

use dialect::{AnswerParser, Dialect, Thoughts};

use crate::answers::{P, Th, Tx, dialect, row, tools};

#[test]
fn thoughts() {
    let table: &[(&str, &str, &str, &[P])] = &[
        ("qwen3", "<|im_start|>assistant\n", "<think>\nhm\n</think>\n\nYes.", &[Th("\nhm\n"), Tx("\n\nYes.")]),
        ("qwen3", "<|im_start|>assistant\n<think>\n", "hm\n</think>\n\nYes.", &[Th("hm\n"), Tx("\n\nYes.")]),
        ("qwen3", "assistant\n<think>\nSo, ", "hm </thi", &[Th("hm </thi")]),
        ("qwen3", "<think>\n\n</think>\n\n", "Yes.", &[Tx("Yes.")]),
        ("qwen3", "", "Yes </think> no <think> x", &[Tx("Yes </think> no <think> x")]),
        ("qwen3", "", "\n</think>\nYes.", &[Tx("\nYes.")]),
        ("qwen3", "", "<think>a</think> <think>b</think>c", &[Th("ab"), Tx("c")]),
        ("deepseek_r1", "", "hm</think>Yes.", &[Th("hm"), Tx("Yes.")]),
        ("deepseek_r1", "<think>\n\n</think>\n\n", "Yes.", &[Tx("Yes.")]),
    ];
    for (thoughts, prompt_end, answer, parts) in table {
        row(&dialect("", thoughts), prompt_end, answer, parts);
        row(&dialect("hermes", thoughts), prompt_end, answer, parts);
    }
}

#[test]
fn other_marks() {
    let table: &[(&str, &str, &str, &[P])] = &[
        ("mistral", "", "[THINK]hm[/THINK]Yes.", &[Th("hm"), Tx("Yes.")]),
        ("cohere_command3", "", "<|START_THINKING|>hm<|END_THINKING|>Yes.", &[Th("hm"), Tx("Yes.")]),
        ("granite", "", "Here's my thought process: hm. Here is my response: Yes.", &[Th(" hm. "), Tx(" Yes.")]),
        ("granite", "", "Here is my cat.", &[Tx("Here is my cat.")]),
        ("gemma4", "<|turn>model\n<|channel>thought\n", "hm<channel|>Yes.", &[Th("hm"), Tx("Yes.")]),
        ("openai_gptoss", "<|start|>assistant<|channel|>analysis<|message|>", "hm<|end|>", &[Th("hm")]),
    ];
    for (thoughts, prompt_end, answer, parts) in table {
        let dialect = dialect("", thoughts);
        let (heard, _) = crate::answers::heard(&dialect, prompt_end, &[answer]);
        assert_eq!(crate::answers::described(&heard), crate::answers::wanted(parts), "{answer:?}");
    }
}

#[test]
fn a_thought_is_open_if_the_template_opened_it() {
    let tokens = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"];
    let dialect = Dialect::of_template("<think></think><tool_call>", &tokens);
    let table = [
        ("<|im_start|>assistant\n", false),
        ("<|im_start|>assistant\n<think>\n", true),
        ("<|im_start|>assistant\n<think>\nSo, I", true),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", false),
        ("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", false),
        ("<|im_start|>user\nWhat is </think>?<|im_end|>\n<|im_start|>assistant\n<think>", true),
    ];
    for (prompt_end, is_thinking) in table {
        let parser = AnswerParser::new(&dialect, tools(), prompt_end);
        assert_eq!(parser.is_thinking(), is_thinking, "{prompt_end:?}");
    }
}

#[test]
fn a_parser_is_send() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&AnswerParser::new(&dialect("hermes", "qwen3"), tools(), ""));
}

#[test]
fn a_token_counter_knows_where_a_thought_is() {
    let (mut parser, mut parts) = (AnswerParser::new(&dialect("hermes", "qwen3"), tools(), ""), Vec::new());
    let pieces = [("<th", false), ("ink>", true), ("hm </", true), ("think", true), (">", false), ("Yes", false)];
    for (piece, is_thinking) in pieces {
        parser.push(piece, &mut parts);
        assert_eq!(parser.is_thinking(), is_thinking, "{piece:?}");
    }
    assert_eq!((parser.num_calls(), parser.calls_complete()), (0, true));
}

#[test]
fn what_closes_a_thought_does() {
    for name in Thoughts::NAMES {
        let thoughts = Thoughts::named(name).expect("it is named");
        let dialect = dialect("", name);
        let open = match thoughts.name() {
            "granite" => "Here is my thought process:",
            "gemma4" => "<|channel>thought\n",
            "mistral" => "[THINK]",
            "seed_oss" => "<seed:think>",
            "cohere_command3" => "<|START_THINKING|>",
            "openai_gptoss" => "<|channel|>analysis<|message|>",
            _ => "<think>",
        };
        let (mut parser, mut parts) = (AnswerParser::new(&dialect, tools(), open), Vec::new());
        assert!(parser.is_thinking(), "{name}");
        parser.push("hm", &mut parts);
        parser.push(thoughts.closing(), &mut parts);
        assert!(!parser.is_thinking(), "{name}");
        parser.push("Yes.", &mut parts);
        parser.finish(&mut parts);
        let said = crate::answers::described(&parts);
        assert!(said[0].starts_with("thought hm") && said[1].trim_end().ends_with("Yes."), "{name}: {said:?}");
    }
}

/// A model does not know that its thought was closed: it closes it again, or continues it.
#[test]
fn behind_a_thought_that_was_cut_no_mark_is_text() {
    for name in Thoughts::NAMES {
        let dialect = dialect("", name);
        let marks = dialect.thought("").expect("it thinks");
        let (open, closing) = (marks.opens[0], Thoughts::named(name).expect("it is named").closing());
        let close = if *name == "openai_gptoss" {
            "<|end|><|start|>assistant<|channel|>final<|message|>"
        } else {
            marks.closes[0]
        };
        let reopened =
            if *name == "openai_gptoss" { format!("<|end|><|start|>assistant{open}") } else { open.to_owned() };
        let begun = if marks.is_open { "" } else { open };
        let cut = begun.chars().count() + 2;
        for (rest, text) in [
            (format!("a{close}b"), "ab"),
            (format!("{close}ab"), "ab"),
            (format!("a{reopened}b{close}"), "ab"),
            (format!("{reopened}a{close}{close}b"), "ab"),
            ("ab".to_owned(), "ab"),
        ] {
            let answer = format!("{begun}hm{closing}{rest}");
            let said = |parts: &[dialect::AnswerPart]| -> (String, String) {
                let (mut thought, mut text) = (String::new(), String::new());
                for part in parts {
                    match part {
                        dialect::AnswerPart::Thought(more) => thought.push_str(more),
                        dialect::AnswerPart::Text(more) => text.push_str(more),
                        other => panic!("{other:?}"),
                    }
                }
                (thought, text.trim().to_owned())
            };
            let wanted = ("hm".to_owned(), text.to_owned());
            let whole = dialect::whole_cut(&dialect, tools(), "", &answer, Some(cut));
            assert_eq!(said(&whole), wanted, "{name}: {answer:?}");
            let (mut parser, mut parts) = (AnswerParser::new(&dialect, tools(), ""), Vec::new());
            for (at, c) in answer.chars().enumerate() {
                if at == cut {
                    parser.cut(cut);
                }
                parser.push(c.encode_utf8(&mut [0; 4]), &mut parts);
            }
            parser.finish(&mut parts);
            assert_eq!(said(&parts), wanted, "{name}, letter by letter: {answer:?}");
            let thought: usize = parser.thought().iter().map(|range| range.len()).sum();
            assert_eq!(thought, 2, "{name}: {answer:?}");
        }
    }
}

#[test]
fn a_thought_that_the_prompt_has_begun_may_be_opened_again() {
    for (answer, parts) in [
        ("<think>hm</think>Yes.", &[Th("hm"), Tx("Yes.")][..]),
        ("<thi</think>Yes.", &[Th("<thi"), Tx("Yes.")]),
        ("hm <think></think>Yes.", &[Th("hm <think>"), Tx("Yes.")]),
    ] {
        row(&dialect("hermes", "deepseek_r1"), "", answer, parts);
        row(&dialect("", "qwen3"), "<think>\n", answer, parts);
    }
}

#[test]
fn in_a_form_that_has_begun_nothing_is_called() {
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let dialect = dialect("hermes", "qwen3").formed();
    for (answer, calls) in
        [(format!("\n{call}{call}"), 2), (format!("<think>{call}</think>{call}"), 1), (format!("[\"{call}\"]"), 0)]
    {
        let (parts, _) = crate::answers::heard(&dialect, "", &[&answer]);
        let begun = parts.iter().filter(|part| matches!(part, dialect::AnswerPart::CallEnds { .. })).count();
        assert_eq!(begun, calls, "{answer:?}: {parts:?}");
    }
}

#[test]
fn a_form_behind_a_thought_may_begin_with_a_mark() {
    for (prompt_end, answer, parts) in [
        ("", "<think>hm</think>\n\n<think>", &[Th("hm"), Tx("\n\n<think>")][..]),
        ("<think>\n", "hm</think></think>x", &[Th("hm"), Tx("</think>x")]),
        ("<think>\n", "<think>hm</think><think>a</think>", &[Th("hm"), Tx("<think>a</think>")]),
    ] {
        row(&dialect("hermes", "qwen3").formed(), prompt_end, answer, parts);
    }
}

#[test]
fn in_a_form_that_has_begun_a_mark_is_text() {
    let harmony = "<|channel|>final<|message|>";
    for (thoughts, answer, cut, text) in [
        ("qwen3", "\"<think>x</think>\"", 0, "\"<think>x</think>\""),
        ("qwen3", "a</think>b", 0, "a</think>b"),
        ("qwen3", "<b></think>", 0, "<b></think>"),
        ("qwen3", "<<think>", 0, "<<think>"),
        // Without thoughts also at its head.
        ("qwen3", "<think>x</think>", 0, "<think>x</think>"),
        ("qwen3", " </think>", 0, " </think>"),
        ("qwen3", "<think>hm</think>\n\n[\"<think>\", \"</think>\"]", 9, "\n\n[\"<think>\", \"</think>\"]"),
        ("qwen3", "<think>hm</think>\n\n</think>[\"</think>\"]", 9, "\n\n[\"</think>\"]"),
        ("gemma4", "[\"<|channel>thought\n<channel|>\"]", 0, "[\"<|channel>thought\n<channel|>\"]"),
        ("openai_gptoss", &format!("{harmony}[\"<|constrain|>\"]"), 0, "[\"<|constrain|>\"]"),
    ] {
        for calls in ["", "hermes", "json"] {
            let formed = dialect(calls, thoughts).formed();
            let dialect = if cut == 0 { formed.thoughtless() } else { formed };
            let said = |parts: &[dialect::AnswerPart]| -> String {
                let text = |part: &dialect::AnswerPart| match part {
                    dialect::AnswerPart::Text(text) => Some(text.clone()),
                    _ => None,
                };
                parts.iter().filter_map(text).collect()
            };
            let whole = dialect::whole_cut(&dialect, tools(), "", answer, Some(cut));
            assert_eq!(said(&whole), text, "{calls}: {answer:?}");
            let (mut parser, mut parts) = (AnswerParser::new(&dialect, tools(), ""), Vec::new());
            parser.cut(cut);
            answer.chars().for_each(|c| parser.push(c.encode_utf8(&mut [0; 4]), &mut parts));
            parser.finish(&mut parts);
            assert_eq!(said(&parts), text, "{calls}, letter by letter: {answer:?}");
        }
    }
}
