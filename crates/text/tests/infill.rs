//! The marks of families around a gap.

use serde_json::{Value, json};
use text::infill::{InfillMarks, TextGap};
use text::tokenizer::Tokenizer;

/// The vocabulary of this repository's model, with these marks as well.
fn tokenizer(marks: &[&str]) -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lantern/tokenizer.json");
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("it is there")).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    let template = added[0].clone();
    for (at, mark) in marks.iter().enumerate() {
        let mut token = template.clone();
        token["id"] = json!(2048 + at);
        token["content"] = json!(mark);
        added.push(token);
    }
    Tokenizer::from_json(&json.to_string(), None, None, 4096).expect("a tokenizer")
}

#[test]
fn each_family_has_its_marks_in_its_order() {
    let gap = TextGap { before: "one", behind: "three", begun: "t", files: &[] };
    for (marks, wanted) in [
        (
            &["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"][..],
            "<|fim_prefix|>one<|fim_suffix|>three<|fim_middle|>t",
        ),
        (&["<fim_prefix>", "<fim_middle>", "<fim_suffix>"], "<fim_prefix>one<fim_suffix>three<fim_middle>t"),
        (
            &["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
            "<｜fim▁begin｜>one<｜fim▁hole｜>three<｜fim▁end｜>t",
        ),
        (&["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"], "▁<PRE>one▁<SUF>three▁<MID>t"),
        (&["[SUFFIX]", "[PREFIX]"], "[SUFFIX]three[PREFIX]onet"),
    ] {
        let tokenizer = tokenizer(marks);
        let marks_of = InfillMarks::of(&tokenizer).expect("it has marks");
        let ids = marks_of.prompt(&gap, &tokenizer).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), wanted);
        assert!(marks.iter().all(|mark| marks_of.ends.contains(&tokenizer.token_id(mark).unwrap())));
    }
    assert!(InfillMarks::of(&tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>"])).is_none(), "one is missing");
    assert!(InfillMarks::of(&tokenizer(&[])).is_none());
}

#[test]
fn marks_in_the_texts_are_texts_and_files_come_first() {
    let tokenizer = tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"]);
    let marks = InfillMarks::of(&tokenizer).unwrap();
    let files = [("a.py".to_owned(), "x = 1".to_owned())];
    let gap = TextGap { before: "<|fim_suffix|>", behind: "", begun: "", files: &files };
    let ids = marks.prompt(&gap, &tokenizer).unwrap();
    let text = tokenizer.decode(&ids, false);
    assert_eq!(text, "<|file_sep|>a.py\nx = 1\n<|fim_prefix|><|fim_suffix|><|fim_suffix|><|fim_middle|>");
    assert_eq!(ids.iter().filter(|&&id| Some(id) == tokenizer.token_id("<|fim_suffix|>")).count(), 1);
}
