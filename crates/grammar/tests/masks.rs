//! What a rule lets through, token by token, in the vocabulary of the model that ships.

use std::sync::LazyLock;

use grammar::{Constraint, Rule, RuleError, Vocabulary};
use serde_json::{Map, Value, json};
use text::tokenizer::Tokenizer;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let json = include_str!("../../../models/lantern/tokenizer.json");
    let config = include_str!("../../../models/lantern/tokenizer_config.json");
    Tokenizer::from_json(json, Some(config), None, 1 << 20).expect("the model that ships has one")
});
static END: LazyLock<u32> = LazyLock::new(|| TOKENIZER.eos_id().expect("it ends its answers"));
static VOCABULARY: LazyLock<Vocabulary> =
    LazyLock::new(|| Vocabulary::new(&TOKENIZER, TOKENIZER.vocab_size(), &[*END], &[]));

fn constraint(rule: &Rule) -> Constraint {
    VOCABULARY.compile(rule).unwrap_or_else(|error| panic!("{rule:?}: {error}")).constraint()
}

fn allows(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

/// How many tokens of the text pass, and whether an answer may end behind them.
fn walk(rule: &Rule, tokens: &[u32]) -> (usize, bool) {
    let mut constraint = constraint(rule);
    for (at, &token) in tokens.iter().enumerate() {
        if !allows(constraint.mask(at).unwrap(), token) {
            return (at, allows(constraint.mask(at).unwrap(), *END));
        }
        constraint.accept(token).unwrap();
        if constraint.is_complete(at + 1) {
            return (at + 1, true);
        }
    }
    (tokens.len(), allows(constraint.mask(tokens.len()).unwrap(), *END))
}

/// Whether the text is an answer to the rule: in the model's own tokens, and byte by byte.
fn is_answer(rule: &Rule, text: &str) -> bool {
    let whole = TOKENIZER.encode_plain(text).unwrap();
    let single: Vec<u32> = text.chars().flat_map(|c| TOKENIZER.encode_plain(&c.to_string()).unwrap()).collect();
    let [a, b] = [&whole, &single].map(|tokens| walk(rule, tokens) == (tokens.len(), true));
    assert_eq!(a, b, "{rule:?} says two things of {text:?}");
    a
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "kind": {"enum": ["cat", "fox"]},
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

#[test]
fn a_rule_takes_its_answers_and_no_others() {
    let deep = json!({"$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"});
    let thought = |rule: Rule| Rule::Behind {
        thought: "start: (\"<think>\" close SP?)? @answer\nclose[lazy]: /(?s:.*)<\\/think>/\nSP: /[ \\n]{1,4}/\n"
            .into(),
        rule: Box::new(rule),
    };
    let table: [(Rule, &[&str], &[&str]); 15] = [
        (
            Rule::JsonSchema(person()),
            &[r#"{"name":"Ada","age":36}"#, "{\n  \"name\": \"Ada\",\n  \"age\": 36,\n  \"kind\": \"fox\"\n}"],
            &[r#"{"name":"Ada"}"#, r#"{"name":"Ada","age":121}"#, r#"{"name":"Ada","age":36,"x":1}"#, "Ada", ""],
        ),
        (Rule::JsonObject, &["{}", r#"{"a": [1, 2.5e3, null, "b\n"]}"#], &["[1]", "{", r#"{"a"}"#, "{}}"]),
        (Rule::JsonSchema(json!(true)), &["[1]", "\"a\"", "12"], &["[1", "a"]),
        (Rule::JsonSchema(deep), &["[]", "[[],[[]]]"], &["[1]", "[[]"]),
        (Rule::Regex(r"[a-c]{2,3}\d?".into()), &["ab", "abc", "abc7"], &["a", "abcd", "ab77", " ab"]),
        (Rule::Choice(vec!["yes".into(), "no \"way\"\n".into()]), &["yes", "no \"way\"\n"], &["ye", "no", "Yes"]),
        (Rule::Choice(vec!["".into(), "a\u{7f}\0".into()]), &["", "a\u{7f}\0"], &["a", "b"]),
        (Rule::Choice(vec!["".into()]), &[""], &["a"]),
        (
            Rule::Choice((0..4096).map(|i| format!("text {i}")).collect()),
            &["text 0", "text 4095"],
            &["text", "text 4096"],
        ),
        (Rule::Gbnf("root ::= \"a\" root \"b\" | [^a-z]".into()), &["1", "aaébb"], &["aacb", "ab"]),
        (Rule::Lark("start: \"a\" start \"b\" | \"c\"".into()), &["c", "aacbb"], &["aacb", "ab"]),
        (Rule::Regex("(é|🦊)+".into()), &["é", "🦊é"], &["e", ""]),
        (
            thought(Rule::JsonSchema(person())),
            &["{\"name\":\"A\",\"age\":1}", "<think>\n{ hm </think>\n\n{\"name\":\"A\",\"age\":1}"],
            &["<think>{\"name\":\"A\",\"age\":1}", "<think></think>", "hm</think>{\"name\":\"A\",\"age\":1}"],
        ),
        (thought(Rule::Choice(vec!["yes".into()])), &["yes", "<think>no</think>yes"], &["no", "<think>yes"]),
        (thought(Rule::Lark("start: \"a\" | \"b\" start".into())), &["bba", "<think>x</think> a"], &["b"]),
    ];
    for (rule, answers, others) in &table {
        for text in *answers {
            assert!(is_answer(rule, text), "{rule:?} does not take {text:?}");
        }
        for text in *others {
            assert!(!is_answer(rule, text), "{rule:?} takes {text:?}");
        }
    }
}

#[test]
fn spaces_between_parts_of_json_have_an_end() {
    let mut constraint = constraint(&Rule::JsonSchema(person()));
    let mut at = 0;
    let mut push = |text: &str| {
        for token in TOKENIZER.encode_plain(text).unwrap() {
            if !allows(constraint.mask(at).unwrap(), token) {
                return false;
            }
            constraint.accept(token).unwrap();
            at += 1;
        }
        true
    };
    assert!(push("{\n") && push("\n") && !push("\n"), "a third line break");
}

#[test]
fn it_goes_back_to_where_it_is_asked() {
    let text = r#"{"name": "Ada", "age": 36}"#;
    let tokens = TOKENIZER.encode_plain(text).unwrap();
    let rule = Rule::JsonSchema(person());
    let mut straight = constraint(&rule);
    let mut masks = Vec::new();
    for (at, &token) in tokens.iter().enumerate() {
        masks.push(straight.mask(at).unwrap().to_vec());
        straight.accept(token).unwrap();
    }
    for back in 0..tokens.len() {
        let mut other = constraint(&rule);
        for (at, &token) in tokens.iter().enumerate() {
            assert_eq!(other.mask(at).unwrap(), masks[at]);
            other.accept(token).unwrap();
        }
        // From its end to any place before, and on from there.
        for at in back..tokens.len() {
            assert_eq!(other.mask(at).unwrap(), masks[at], "back to {back}, at {at}");
            other.accept(tokens[at]).unwrap();
        }
    }
}

#[test]
fn special_tokens_follow_only_what_is_complete() {
    let mut constraint = constraint(&Rule::Regex("a*".into()));
    for at in 0..3 {
        let mask = constraint.mask(at).unwrap().to_vec();
        for id in (0..TOKENIZER.vocab_size() as u32).filter(|&id| TOKENIZER.is_special(id)) {
            assert_eq!(allows(&mask, id), id == *END, "token {id}");
        }
        constraint.accept(TOKENIZER.encode_plain("a").unwrap()[0]).unwrap();
    }
}

#[test]
fn what_is_no_rule_is_refused_with_the_reason() {
    let many: Map<String, Value> = (0..900).map(|i| (format!("k{i}"), json!({}))).collect();
    for (rule, word) in [
        (Rule::Regex("(".into()), "regex"),
        (Rule::Choice(Vec::new()), "1 to 4096"),
        (Rule::JsonSchema(json!({"type": "nonsense"})), "nonsense"),
        (Rule::JsonSchema(json!({"$ref": "https://example.org/schema.json"})), ""),
        (Rule::JsonSchema(json!({"$ref": "#/nowhere"})), "nowhere"),
        (Rule::JsonSchema(json!({"type": "integer", "minimum": 3, "maximum": 2})), ""),
        (Rule::JsonSchema(json!(7)), ""),
        (Rule::JsonSchema(json!({"unevaluatedProperties": false, "type": "object"})), "unevaluated"),
        (Rule::Lark("start: nowhere".into()), "nowhere"),
        (Rule::Lark("begin: \"a\"".into()), "start"),
        (Rule::Lark("start: a \"x\"\na[max_tokens=3]: /.*/".into()), "rollback"),
        (Rule::Lark("start: a \"x\"\na[stop=\"b\"]: /.*/".into()), "rollback"),
        (Rule::JsonSchema(json!({"type": "object", "properties": many})), "1000"),
        (Rule::Regex("a".repeat(600 << 10)), "524288"),
    ] {
        let error = VOCABULARY.compile(&rule).err().unwrap_or_else(|| panic!("{:.80?} is taken", rule));
        let text = error.to_string();
        println!("{text}");
        assert!(text.contains(word) && !text.contains('\n') && text.len() < 400, "{text}");
        assert!(!matches!(error, RuleError::NoTokenizer));
    }
}
