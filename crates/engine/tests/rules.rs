//! Constrained answers: they match their rule, whatever else is served, and end when they are complete.

use crate::common;

use common::{ask, greedy, options, start};
use engine::{ConstraintError, EngineOptions, Event, FinishReason, RawRequest, RequestError, Rule, SamplingParams};
use serde_json::{Value, json};

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "likes": {"type": "array", "items": {"enum": ["gold", "song", "rain"]}, "maxItems": 3},
        },
        "required": ["name", "age", "likes"],
        "additionalProperties": false,
    })
}

fn is_person(text: &str) -> bool {
    let Ok(Value::Object(map)) = serde_json::from_str(text) else { return false };
    let likes = map.get("likes").and_then(Value::as_array);
    map.len() == 3
        && map.get("name").and_then(Value::as_str).is_some_and(|name| (1..=12).contains(&name.chars().count()))
        && map.get("age").and_then(Value::as_u64).is_some_and(|age| age <= 120)
        && likes.is_some_and(|likes| {
            likes.len() <= 3
                && likes.iter().all(|one| ["gold", "song", "rain"].contains(&one.as_str().unwrap_or_default()))
        })
}

/// Whether a text is an answer.
type Holds<'a> = &'a dyn Fn(&str) -> bool;

#[test]
fn an_answer_looks_as_it_must() {
    let engine = start(&options());
    let yes_or_no = Rule::Choice(vec!["yes".to_owned(), "no, \"never\"".to_owned()]);
    let digits = Rule::Regex("[0-9]{3}-[0-9]{2}".to_owned());
    let nested = Rule::Lark("start: \"(\" start \")\" | \"x\" | \"y\"".to_owned());
    let balanced = |text: &str| {
        let (open, close) = (text.matches('(').count(), text.matches(')').count());
        open == close && text == format!("{}{}{}", "(".repeat(open), &text[open..=open], ")".repeat(open))
    };
    let table: [(Rule, Holds<'_>); 5] = [
        (Rule::JsonSchema(person()), &is_person),
        (yes_or_no, &|text| ["yes", "no, \"never\""].contains(&text)),
        (digits, &|text| text.len() == 6 && text.as_bytes()[3] == b'-'),
        (nested, &balanced),
        (Rule::JsonObject, &|text| serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())),
    ];
    let mut ended = 0;
    for (rule, holds) in &table {
        for seed in 0..8 {
            let raw = RawRequest {
                rule: Some(rule.clone()),
                sampling: SamplingParams::at(0.2 * seed as f64),
                seed: Some(seed),
                n: Some(2),
                ..greedy("The fox said:", 200)
            };
            for answer in ask(&engine, raw).answers {
                match answer.reason {
                    Some(FinishReason::Stop(_)) => {
                        assert!(holds(&answer.text), "{rule:?}, seed {seed}: {:?}", answer.text)
                    }
                    _ => assert_eq!(answer.tokens.len(), 200, "it has no other end"),
                }
                ended += usize::from(answer.reason != Some(FinishReason::Length));
            }
        }
    }
    assert!(ended > 60, "{ended} of 80 answers are complete");
}

#[test]
fn what_is_complete_ends_though_it_may_not_end_itself() {
    let engine = start(&options());
    let rule = Some(Rule::Choice(vec!["gold".to_owned()]));
    for raw in [
        greedy("The fox said:", 40),
        RawRequest { ignore_eos: true, ..greedy("The fox said:", 40) },
        RawRequest { min_tokens: Some(30), ..greedy("The fox said:", 40) },
    ] {
        let answer = ask(&engine, RawRequest { rule: rule.clone(), ..raw }).answers.remove(0);
        assert_eq!((answer.text.as_str(), answer.reason), ("gold", Some(FinishReason::Stop(None))));
    }
    // Its last token is also the last that it may have.
    let tokens = ask(&engine, RawRequest { rule: rule.clone(), ..greedy("The fox said:", 40) }).answers[0].tokens.len();
    let raw = RawRequest { rule: rule.clone(), ..greedy("The fox said:", tokens as i64) };
    assert_eq!(ask(&engine, raw).answers[0].reason, Some(FinishReason::Stop(None)));
    // A stop string within it comes first.
    let raw = RawRequest { rule, stop: vec!["l".to_owned()], ..greedy("The fox said:", 40) };
    assert_eq!(ask(&engine, raw).answers[0].text, "go");
}

#[test]
fn an_answer_whose_rule_takes_too_many_steps_ends_alone() {
    let engine = start(&EngineOptions { max_num_batched_tokens: 16, ..options() });
    let free = ask(&engine, greedy("Once upon a time", 40));
    let other = |at: usize| json!({"type": "object", "properties": {format!("a{at}"): {"type": "string"}}});
    let any = json!({"anyOf": (0..400).map(other).collect::<Vec<_>>()});
    let all = json!({"type": "object", "properties": {"k": any}, "required": ["k"], "additionalProperties": false});
    let wide = RawRequest { rule: Some(Rule::JsonSchema(all)), ..greedy("Once", 40) };
    let mut stream = engine.submit(engine.validate(wide).expect("its beginning is short")).expect("room");
    assert_eq!(ask(&engine, greedy("Once upon a time", 40)).answers, free.answers);
    let end = loop {
        match stream.blocking_recv().expect("an end") {
            Event::Failed(error) => break Some(error),
            Event::Done { .. } => break None,
            _ => {}
        }
    };
    assert_eq!(end, Some(RequestError::Rule(ConstraintError::TooComplex)));
}

#[test]
fn a_rule_that_is_none_is_refused_at_the_door() {
    let engine = start(&options());
    for rule in [
        Rule::Regex("(".to_owned()),
        Rule::JsonSchema(json!({"type": "dragon"})),
        Rule::Choice(Vec::new()),
        Rule::Lark("start: missing".to_owned()),
    ] {
        let rejection =
            engine.validate(RawRequest { rule: Some(rule.clone()), ..greedy("x", 4) }).expect_err("refused");
        assert_eq!(rejection.param, Some("rule"), "{rule:?}");
    }
}
