//! What a rule lets through, token by token, in the vocabulary of the model that ships.

use std::sync::LazyLock;

use grammar::{Constraint, ConstraintError, Rule, RuleError, ThoughtBudget, TokenRule, Vocabulary, fit_schema};
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

/// The mask, all of whose tokens the rule's own grammar has chosen.
fn mask(constraint: &mut Constraint, at: usize) -> &[u32] {
    constraint.mask(at).unwrap().expect("not all may follow")
}

#[test]
fn a_mask_is_kept_for_its_place_alone() {
    let rule = Rule::JsonSchema(person());
    let tokens = TOKENIZER.encode_plain(r#"{"name": "Ada", "age": 36}"#).unwrap();
    let [mut kept, mut asked] = [constraint(&rule), constraint(&rule)];
    for (at, &token) in tokens.iter().enumerate() {
        kept.mask(at).unwrap();
        // Twice, and behind a rejected draft.
        kept.mask(at).unwrap();
        assert_eq!(kept.mask(at).unwrap(), asked.mask(at).unwrap(), "behind {at} tokens");
        kept.mask_behind(at, &[token]);
        assert_eq!(kept.mask(at).unwrap(), asked.mask(at).unwrap(), "behind {at} tokens and a draft");
        kept.mask(at).unwrap();
        [&mut kept, &mut asked].into_iter().for_each(|one| one.accept(token).unwrap());
        if kept.is_complete(at + 1) {
            break;
        }
        // Back to where it was: what is kept of the place behind that has no meaning any more.
        kept.mask(at + 1).unwrap();
        assert_eq!(kept.mask(at).unwrap(), asked.mask(at).unwrap(), "back to {at} tokens");
        [&mut kept, &mut asked].into_iter().for_each(|one| one.accept(token).unwrap());
    }
}

fn allows(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

/// How many tokens of the text pass, and whether an answer may end behind them.
fn walk(rule: &Rule, tokens: &[u32]) -> (usize, bool) {
    let mut constraint = constraint(rule);
    for (at, &token) in tokens.iter().enumerate() {
        if !allows(mask(&mut constraint, at), token) {
            return (at, allows(mask(&mut constraint, at), *END));
        }
        constraint.accept(token).unwrap();
        if constraint.is_complete(at + 1) {
            return (at + 1, true);
        }
    }
    (tokens.len(), allows(mask(&mut constraint, tokens.len()), *END))
}

/// Whether the text is an answer to the rule: in the model's own tokens, and byte by byte.
fn is_answer(rule: &Rule, text: &str) -> bool {
    let whole = TOKENIZER.encode_plain(text).unwrap();
    let [a, b] = [&whole, &letters(text)].map(|tokens| walk(rule, tokens) == (tokens.len(), true));
    assert_eq!(a, b, "{rule:?} says two things of {text:?}");
    a
}

/// As strict as it was asked for.
fn strict(schema: &Value) -> Rule {
    Rule::JsonSchema(fit_schema(schema, true).unwrap_or_else(|misfit| panic!("{schema}: {misfit:?}")).schema)
}

/// A text as it is written letter by letter.
fn letters(text: &str) -> Vec<u32> {
    text.chars().flat_map(|c| TOKENIZER.encode_plain(&c.to_string()).unwrap()).collect()
}

/// A comma is no way on where all names are given that a closed object may have.
#[test]
fn a_closed_object_ends_behind_the_last_of_its_names() {
    let closed = |schema: Value| {
        let mut schema = schema;
        schema["additionalProperties"] = json!(false);
        schema
    };
    for (schema, whole) in [
        (closed(json!({"patternProperties": {"^k$": {"enum": ["a"]}}, "required": ["k"]})), "{\"k\":\"a\"}"),
        (closed(json!({"patternProperties": {"^(?:a|b)$": {}}, "required": ["a", "b"]})), "{\"a\":1,\"b\":2}"),
        (closed(json!({"patternProperties": {"^k$": {}}, "properties": {"k": {"enum": [1]}}})), "{\"k\":1}"),
        (closed(json!({"patternProperties": {"^a$": {}, "^b$": {}}})), "{\"a\":1,\"b\":2}"),
        (
            json!({"propertyNames": {"pattern": "^k$"}, "additionalProperties": {"enum": [1]}, "required": ["k"]}),
            "{\"k\":1}",
        ),
        (json!({"propertyNames": {"maxLength": 0}, "required": [""]}), "{\"\":1}"),
    ] {
        let mut schema = schema;
        schema["type"] = json!("object");
        let rule = strict(&schema);
        assert!(is_answer(&rule, whole), "{schema}");
        let open = letters(&format!("{},", whole.trim_end_matches('}')));
        assert_eq!(walk(&rule, &open).0, open.len() - 1, "{schema}: a comma");
    }
    // Where there is no way on, that is what is said.
    let schema =
        json!({"type": "object", "patternProperties": {"^k$": {}}, "required": ["k"], "additionalProperties": false});
    let mut constraint = constraint(&Rule::JsonSchema(schema));
    let begun = letters("{\"k\":1, ");
    begun.iter().for_each(|&token| constraint.accept(token).unwrap());
    assert_eq!(constraint.mask(begun.len()), Err(ConstraintError::NothingFollows));
}

/// A whole number that is excluded is none of what is left, however near the other bound is.
#[test]
fn a_number_that_is_excluded_is_no_answer() {
    let number = |bounds: Value| {
        let mut bounds = bounds;
        bounds["type"] = json!("number");
        bounds
    };
    for (schema, taken, refused) in [
        (
            number(json!({"exclusiveMinimum": 0, "exclusiveMaximum": 0.5})),
            &["0.25", "0.001"][..],
            &["0", "-0", "0.0", "0.5", "1"][..],
        ),
        (number(json!({"exclusiveMinimum": 1, "exclusiveMaximum": 1.5})), &["1.25", "1.01"], &["1", "1.0", "1.5"]),
        (
            number(json!({"exclusiveMinimum": -0.5, "exclusiveMaximum": 0})),
            &["-0.25", "-0.001"],
            &["0", "-0", "-0.5", "-1"],
        ),
        (number(json!({"exclusiveMinimum": -1.5, "exclusiveMaximum": -1})), &["-1.25"], &["-1", "-1.5"]),
        (number(json!({"exclusiveMinimum": 0, "maximum": 0.5})), &["0.5", "0.1"], &["0", "0.6"]),
        (number(json!({"minimum": 0, "exclusiveMinimum": true, "maximum": 0.5})), &["0.5", "0.1"], &["0"]),
        (number(json!({"minimum": 0, "exclusiveMaximum": 0.5})), &["0", "0.25"], &["0.5", "-0.1"]),
        (number(json!({"exclusiveMinimum": 0, "exclusiveMaximum": 1e-20})), &[], &["0", "0.1"]),
        (number(json!({"exclusiveMinimum": 0, "exclusiveMaximum": 1})), &["0.5"], &["0", "1"]),
        (number(json!({"exclusiveMinimum": 0})), &["0.5", "3"], &["0"]),
        // Bounds of joined schemas meet.
        (
            json!({"allOf": [number(json!({"exclusiveMinimum": 0})), number(json!({"exclusiveMaximum": 0.5}))]}),
            &["0.25"],
            &["0"],
        ),
        (number(json!({"exclusiveMinimum": 0, "anyOf": [{"maximum": 0.5}, {"minimum": 7}]})), &["0.25", "7"], &["0"]),
        (
            number(json!({"exclusiveMinimum": 2, "$ref": "#/$defs/most", "$defs": {"most": {"maximum": 2.5}}})),
            &["2.25"],
            &["2"],
        ),
    ] {
        let rule = strict(&schema);
        taken.iter().for_each(|text| assert!(is_answer(&rule, text), "{schema}: {text}"));
        refused.iter().for_each(|text| assert!(!is_answer(&rule, text), "{schema}: {text}"));
    }
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
            if !allows(mask(&mut constraint, at), token) {
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
        masks.push(mask(&mut straight, at).to_vec());
        straight.accept(token).unwrap();
    }
    for back in 0..tokens.len() {
        let mut other = constraint(&rule);
        for (at, &token) in tokens.iter().enumerate() {
            assert_eq!(mask(&mut other, at), masks[at]);
            other.accept(token).unwrap();
        }
        // From its end to any place before, and on from there.
        for at in back..tokens.len() {
            assert_eq!(mask(&mut other, at), masks[at], "back to {back}, at {at}");
            other.accept(tokens[at]).unwrap();
        }
    }
}

#[test]
fn special_tokens_follow_only_what_is_complete() {
    let mut constraint = constraint(&Rule::Regex("a*".into()));
    for at in 0..3 {
        let mask = mask(&mut constraint, at).to_vec();
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
        (Rule::JsonSchema(json!({"type": "object", "properties": many})), "500000"),
        (Rule::Regex("a".repeat(600 << 10)), "524288"),
    ] {
        let error = VOCABULARY.compile(&rule).err().unwrap_or_else(|| panic!("{:.80?} is taken", rule));
        let text = error.to_string();
        println!("{text}");
        assert!(text.contains(word) && !text.contains('\n') && text.len() < 400, "{text}");
        assert!(!matches!(error, RuleError::NoTokenizer));
    }
}

fn tokens(text: &str) -> Vec<u32> {
    TOKENIZER.encode_plain(text).unwrap()
}

fn thought(tokens_of_it: u32, is_open: bool) -> ThoughtBudget {
    ThoughtBudget {
        tokens: tokens_of_it,
        is_open,
        opens: vec!["<think>".to_owned()],
        closes: vec!["</think>".to_owned()],
        closing: tokens("\n</think>\n\n"),
        ..ThoughtBudget::default()
    }
}

/// What the one token is that may follow, if it is one.
fn only(constraint: &mut Constraint, at: usize) -> Option<u32> {
    let mask = constraint.mask(at).unwrap()?;
    let mut all = (0..mask.len() as u32 * 32).filter(|&token| allows(mask, token));
    all.next().filter(|_| all.next().is_none())
}

#[test]
fn a_thought_is_closed_when_its_tokens_are_used_up() {
    let answers = [
        // Prompt's end, answer without a budget; tokens of the thought, if there is one.
        (true, " The fox is old", Some(0)),
        (false, "<think> The fox is old", Some(tokens("<think>").len())),
        (false, "  <think> The fox is old", Some(tokens("  <think>").len())),
        (false, "The fox is old. <think> And so on", None),
        (false, "<thin air", None),
    ];
    for (is_open, text, begins) in answers {
        for budget in 0..6 {
            let rule = Rule::Budget { thought: thought(budget, is_open), rule: None };
            let mut constraint = constraint(&rule);
            let drawn = tokens(text);
            let cut = begins.map(|begins| begins + budget as usize).filter(|&cut| cut < drawn.len());
            for (at, &token) in drawn[..cut.unwrap_or(drawn.len())].iter().enumerate() {
                assert_eq!(constraint.mask(at).unwrap(), None, "{text:?} with {budget}, token {at}");
                constraint.accept(token).unwrap();
            }
            let Some(cut) = cut else { continue };
            let closing = tokens("\n</think>\n\n");
            for (at, &token) in closing.iter().enumerate() {
                assert_eq!(only(&mut constraint, cut + at), Some(token), "{text:?} with {budget}");
                // Drafts see the same, and are not remembered.
                assert_eq!(constraint.mask_behind(cut + at, &[token ^ 1]), None);
                assert!(constraint.mask_behind(cut + at, &closing[at..]).is_some_and(|mask| mask.is_none()));
                constraint.accept(token).unwrap();
            }
            assert_eq!(constraint.mask(cut + closing.len()).unwrap(), None, "what follows is free");
            // On the way back it is where it was.
            for at in (0..=cut + closing.len()).rev() {
                let wanted = at.checked_sub(cut).and_then(|at| closing.get(at)).copied();
                assert_eq!(only(&mut constraint, at), wanted, "{text:?} with {budget}, back at {at}");
            }
        }
    }
}

#[test]
fn a_thought_that_the_model_closes_itself_is_left_alone() {
    let rule = Rule::Budget { thought: thought(100, true), rule: None };
    let mut constraint = constraint(&rule);
    let text = tokens(&format!("so it is</think>{}", " and on".repeat(200)));
    for (at, &token) in text.iter().enumerate() {
        assert_eq!(constraint.mask(at).unwrap(), None);
        constraint.accept(token).unwrap();
    }
}

#[test]
fn behind_a_thought_that_was_cut_comes_what_the_other_rule_wants() {
    let behind = Rule::Behind {
        thought: "start: close SP? @answer\nclose[lazy]: /(?s:.*)<\\/think>/\nSP: /[ \\n]{1,4}/\n".to_owned(),
        rule: Box::new(Rule::Choice(vec!["gold".to_owned()])),
    };
    let rule = Rule::Budget { thought: thought(3, true), rule: Some(Box::new(behind)) };
    let closing = tokens("\n</think>\n\n");
    // Of the fox there are four tokens: some thoughts end within it.
    for text in [" The fox is old", "\u{1f98a} is", "\u{e9}\u{1f98a}", " a \u{1f98a}"] {
        let mut constraint = constraint(&rule);
        let answer = [&tokens(text)[..3], &closing, &tokens("gold")].concat();
        for (at, &token) in answer.iter().enumerate() {
            assert!(allows(mask(&mut constraint, at), token), "{text:?} token {at}");
            let is_forced = (3..3 + closing.len()).contains(&at);
            assert!(!is_forced || only(&mut constraint, at) == Some(token), "{text:?} token {at}");
            constraint.accept(token).unwrap();
        }
        assert!(constraint.is_complete(answer.len()));
        // From each place behind it and back.
        for back in 0..answer.len() {
            for (at, &token) in answer.iter().enumerate().skip(back) {
                assert!(allows(mask(&mut constraint, at), token), "{text:?} token {at}, back at {back}");
                constraint.accept(token).unwrap();
            }
        }
    }
}

#[test]
fn a_budget_whose_end_this_model_cannot_write_is_refused() {
    let rule = Rule::Budget { thought: ThoughtBudget { closing: vec![1 << 20], ..thought(3, true) }, rule: None };
    assert!(matches!(VOCABULARY.compile(&rule), Err(RuleError::Refused(_))));
    let inner = Rule::Budget { thought: thought(3, true), rule: None };
    let twice = Rule::Budget { thought: thought(3, true), rule: Some(Box::new(inner)) };
    assert!(matches!(VOCABULARY.compile(&twice), Err(RuleError::Refused(_))));
}

/// The tokens of these, alone or with a rule of the text.
fn of_tokens(only: Option<&[u32]>, never: &[&[u32]], rule: Option<Rule>) -> Rule {
    let (only, never) = (only.map(<[u32]>::to_vec), never.iter().map(|run| run.to_vec()).collect());
    Rule::Tokens { tokens: TokenRule { only, never }, rule: rule.map(Box::new) }
}

/// All tokens that a mask allows; `None`: each.
fn allowed(mask: Option<&[u32]>) -> Option<Vec<u32>> {
    mask.map(|mask| (0..TOKENIZER.vocab_size() as u32).filter(|&token| allows(mask, token)).collect())
}

#[test]
fn tokens_alone_are_a_rule() {
    let mut some = constraint(&of_tokens(Some(&[5, 9, 700]), &[&[9]], None));
    for at in 0..3 {
        assert_eq!(allowed(some.mask(at).unwrap()).unwrap(), [5, 700], "the end is none of them");
        some.accept(5).unwrap();
    }
    let mut none = constraint(&of_tokens(Some(&[5]), &[&[5]], None));
    assert_eq!(none.mask(0).map(|_| ()), Err(ConstraintError::NothingFollows));
    let mut all = constraint(&of_tokens(None, &[&[9_999_999]], None));
    assert_eq!(all.mask(0).unwrap(), None, "no vocabulary has such a token");
}

#[test]
fn a_run_of_tokens_has_no_end() {
    let mut constraint = constraint(&of_tokens(None, &[&[7, 8, 9], &[8, 3]], None));
    let but = |missing: &[u32]| -> Vec<u32> {
        (0..TOKENIZER.vocab_size() as u32).filter(|token| !missing.contains(token)).collect()
    };
    // What is said, and what may not follow it.
    let story: [(u32, &[u32]); 5] = [(7, &[]), (8, &[]), (5, &[9, 3]), (8, &[]), (9, &[3])];
    for (at, &(token, missing)) in story.iter().enumerate() {
        let mask = allowed(constraint.mask(at).unwrap());
        assert_eq!(mask, (!missing.is_empty()).then(|| but(missing)), "token {at}");
        constraint.accept(token).unwrap();
    }
    // Drafts pass the same, and are not remembered.
    assert_eq!(constraint.mask_behind(2, &[9]), None);
    assert_eq!(constraint.mask_behind(0, &[7, 8, 9]), None);
    assert_eq!(constraint.mask_behind(0, &[7, 8]).map(allowed), Some(Some(but(&[9, 3]))));
    assert_eq!(constraint.mask(0).unwrap(), None);
}

#[test]
fn tokens_narrow_what_a_rule_of_the_text_allows() {
    let yes_or_no = Rule::Choice(vec!["yes".to_owned(), "no".to_owned()]);
    let free = allowed(constraint(&yes_or_no).mask(0).unwrap()).unwrap();
    let banned = tokens("yes")[0];
    assert!(free.contains(&banned));
    let mut narrowed = constraint(&of_tokens(None, &[&[banned]], Some(yes_or_no.clone())));
    let left: Vec<u32> = free.iter().copied().filter(|&token| token != banned).collect();
    assert_eq!(allowed(narrowed.mask(0).unwrap()).unwrap(), left);
    // The end of a thought is written in any case, so its tokens must be allowed.
    let budget = Rule::Budget { thought: thought(1, true), rule: None };
    assert!(VOCABULARY.compile(&of_tokens(Some(&tokens("\n</think>\n\n")), &[], Some(budget.clone()))).is_ok());
    let refused = VOCABULARY.compile(&of_tokens(Some(&[5]), &[], Some(budget))).unwrap_err();
    assert!(refused.to_string().contains("end of its thought"), "{refused}");
    // They are the outermost of rules, and there once.
    let twice = of_tokens(Some(&[5]), &[], Some(of_tokens(Some(&[5]), &[], None)));
    assert!(matches!(VOCABULARY.compile(&twice), Err(RuleError::Refused(_))));
}
