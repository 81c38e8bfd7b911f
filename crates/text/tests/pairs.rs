//! Texts of encoders: pairs with their segments, long texts cut, words and their continuations decoded.

use serde_json::{Value, json};
use text::tokenizer::Tokenizer;

/// Letters and words, with BERT's marks around a text and between two.
fn tokenizer(segments: bool) -> Tokenizer {
    let names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "fox", "##es", "ran", "a", "b"];
    let vocab: serde_json::Map<String, Value> =
        names.iter().enumerate().map(|(id, name)| (name.to_string(), json!(id))).collect();
    let special = |id: usize| {
        json!({"id": id, "content": names[id], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let mark = |name: &str, part: u64| json!({"SpecialToken": {"id": name, "type_id": part}});
    let text = |name: &str, part: u64| json!({"Sequence": {"id": name, "type_id": part}});
    let second = u64::from(segments);
    let json = json!({
        "version": "1.0",
        "added_tokens": [special(0), special(1), special(2), special(3)],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [mark("[CLS]", 0), text("A", 0), mark("[SEP]", 0)],
            "pair": [mark("[CLS]", 0), text("A", 0), mark("[SEP]", 0), text("B", second), mark("[SEP]", second)],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    });
    Tokenizer::from_json(&json.to_string(), None, None, 16).expect("a good tokenizer")
}

#[test]
fn a_pair_has_marks_around_and_between() {
    let tokenizer = tokenizer(true);
    let pair = |most| tokenizer.encode_pair("The foxes", "a b a b", most).expect("it is encoded");
    assert_eq!(pair(None), (vec![2, 4, 5, 6, 3, 8, 9, 8, 9, 3], Some(5)));
    assert_eq!(pair(Some(8)), (vec![2, 4, 5, 6, 3, 8, 9, 3], Some(5)), "the second text is cut");
    assert_eq!(pair(Some(4)).0, [2, 4, 5, 6, 3, 3], "the first never");
    assert_eq!(tokenizer.encode_pair("", "", None), Ok((vec![2, 3, 3], Some(2))));
}

#[test]
fn texts_that_the_tokenizer_does_not_tell_apart_have_no_segments() {
    assert_eq!(tokenizer(false).encode_pair("a", "b", None), Ok((vec![2, 8, 3, 9, 3], None)));
}

#[test]
fn of_a_long_text_the_first_tokens_are_kept_and_the_marks() {
    let tokenizer = tokenizer(true);
    for (most, want) in [(9, &[2u32, 4, 5, 6, 7, 3][..]), (6, &[2, 4, 5, 6, 7, 3]), (5, &[2, 4, 5, 6, 3]), (1, &[2, 3])]
    {
        assert_eq!(tokenizer.encode_first("the foxes ran", most).as_deref(), Ok(want), "{most}");
    }
}

#[test]
fn words_have_spaces_between_and_continuations_none() {
    let tokenizer = tokenizer(true);
    assert_eq!(tokenizer.decode(&[2, 4, 5, 6, 7, 3], true), "the foxes ran");
    assert_eq!(tokenizer.decode(&[2, 4, 5, 6, 7, 3], false), "[CLS] the foxes ran [SEP]");
}
