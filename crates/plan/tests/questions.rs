//! Plan parameters in a URL: valid ones, and the errors of invalid ones.

use plan::{Here, Question};
use serde_json::Value;

pub(crate) fn asked(query: &str) -> Result<Value, plan::Problem> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let question = Question::from_parameters(pairs)?;
    Ok(question.plan(&Here::default())?.json())
}

#[test]
fn good_questions_have_answers() {
    for query in [
        "model=7b&flops=312T&bandwidth=2T",
        "model=7b&flops=312T&bandwidth=2T&memory=80G&prompt=4096&response=1&batch=64",
        "model=llama-3.1-70b&machine=h100&machines=4&weights=int8&kv=int8&format=svg",
        "model=llama-3.1-8b&machine=H100&users=1000&rate=2/min&tpot=50&rows=512",
        "model=llama-3.1-8b&machine=h100&acceptance=0.8&draft=llama-3.2-1b&batch=4",
    ] {
        let plan = asked(query).unwrap_or_else(|problem| panic!("{query}: {problem}"));
        assert!(
            plan["ttft_ms"].as_f64() > Some(0.0) && plan["total_ms"].as_f64() >= plan["ttft_ms"].as_f64(),
            "{query}"
        );
    }
}

#[test]
fn wrong_questions_name_the_parameter() {
    let table = [
        ("colour=red", "query", "no parameter \"colour\""),
        ("model=llama-9&machine=h100", "model", "\"llama-9\" is not known; known are llama-2-7b"),
        ("model=here&machine=h100", "model", "not known"),
        ("model=../etc/passwd&machine=h100", "model", "not known"),
        ("model=7b&machine=h100&expert_memory=8G", "expert_memory", "has no experts"),
        ("model=7b&machine=h100&expert_memory=some", "expert_memory", "not a number"),
        ("model=7b&machine=abacus", "machine", "known are here, a100, h100"),
        ("model=7b", "machine", "not measured"),
        ("model=7b&machine=h100&flops=1T&bandwidth=1T", "machine", "not both"),
        ("model=7b&flops=1T", "bandwidth", "missing"),
        ("model=7b&bandwidth=1T", "flops", "missing"),
        ("model=7b&flops=-1T&bandwidth=1T", "flops", "not a number above 0"),
        ("model=7b&machine=h100&memory=1G", "memory", "goes with"),
        ("model=7b&machine=h100&prompt=0", "prompt", "whole number from 1"),
        ("model=7b&machine=h100&prompt=1e3", "prompt", "whole number from 1"),
        ("model=7b&machine=h100&batch=99999999999999999999", "batch", "whole number from 1"),
        ("model=7b&machine=h100&batch=2&batch=3", "batch", "twice"),
        ("model=7b&machine=h100&weights=fp8", "weights", "bf16, fp16, int8, int4"),
        ("model=7b&machine=h100&kv=int4", "kv", "bf16, fp16, int8"),
        ("model=llama-2-7b&machine=h100&prompt=5000", "prompt", "reads at most 4096"),
        ("model=7b&machine=h100&users=5", "rate", "missing"),
        ("model=7b&machine=h100&rate=5", "rate", "goes with users"),
        ("model=7b&machine=h100&users=5&rate=soon", "rate", "2/min"),
        ("model=7b&machine=h100&tpot=50", "tpot", "goes with users"),
        ("model=7b&machine=h100&ttft=500", "ttft", "goes with users"),
        ("model=7b&machine=h100&users=5&rate=1&ttft=0", "ttft", "not a number above 0"),
        ("model=7b&machine=h100&users=5&rate=1&tpot=1e30", "tpot", "milliseconds"),
        ("model=7b&machine=h100&users=5&rate=1e30", "rate", "per second"),
        ("model=7b&machine=h100&users=5&rate=nan", "rate", "2/min"),
        ("model=7b&machine=h100&users=-5&rate=1", "users", "whole number from 1"),
        ("model=7b&flops=1e30&bandwidth=1T", "flops", "must be from 1k to 1e21"),
        ("model=7b&flops=1T&bandwidth=1e30", "bandwidth", "must be from 1k to 1e18"),
        ("model=7b&flops=1T&bandwidth=1T&memory=1e30", "memory", "must be from 1k to 1e18"),
        ("model=7b&flops=nan&bandwidth=1T", "flops", "not a number above 0"),
        ("model=7b&machine=h100&prompt=1e30", "prompt", "whole number from 1"),
        ("model=llama-2-7b&machine=h100&thinking=5000", "thinking", "reads at most 4096"),
        ("model=7b&machine=h100&thinking=-1", "thinking", "whole number from 1"),
        ("model=7b&machine=h100&cached=1.5", "cached", "not a share from 0 to 1"),
        ("model=7b&machine=h100&cached=1", "cached", "the last token is computed"),
        ("model=7b&machine=h100&cached=nan", "cached", "not a share"),
        ("model=7b&machine=h100&utilization=0", "utilization", "must be from 0.01 to 1"),
        ("model=7b&machine=h100&utilization=70", "utilization", "not a share from 0 to 1"),
        ("model=7b&machine=h100&price=0", "price", "2.00, or a100=2.00,h100=3.50"),
        ("model=7b&machine=h100&price=-2", "price", "above 0"),
        ("model=7b&machine=h100&price=1e30", "price", "up to 1000000"),
        ("model=7b&machine=h100&price=nan", "price", "not a price"),
        ("model=7b&machine=h100&price=abacus=2", "price", "no machine \"abacus\" is known"),
        ("model=7b&machine=h100&price=h100=2,H100=3", "price", "h100 is there twice"),
        ("model=7b&machine=h100&price=h100=2,", "price", "no machine \"\" is known"),
        ("model=7b&machine=h100&watts=1e30", "watts", "must be from 0.001"),
        ("model=7b&machine=h100&watts=0", "watts", "not a number above 0"),
        ("model=7b&machine=h100&machines=2&link=1", "link", "must be from 1M"),
        ("model=7b&machine=h100&link=-1G", "link", "not a number above 0"),
        ("model=30b-a40b&machine=h100", "model", "is not known"),
        ("model=7b&machine=h100&acceptance=1", "acceptance", "not a probability above 0 and below 1"),
        ("model=7b&machine=h100&acceptance=0", "acceptance", "such as 0.8"),
        ("model=7b&machine=h100&acceptance=nan", "acceptance", "such as 0.8"),
        ("model=7b&machine=h100&acceptance=0.8&draft=llama-9", "draft", "\"llama-9\" is not known"),
        ("model=7b&machine=h100&draft=0.5b", "draft", "goes with acceptance"),
    ];
    for (query, field, words) in table {
        let problem = asked(query).expect_err(query);
        assert_eq!(problem.field, field, "{query}: {problem}");
        assert!(problem.to_string().contains(words), "{query}: {problem}");
    }
}

#[test]
fn speculation_is_planned_where_it_is_asked_for() {
    let plan = asked("model=7b&machine=h100&acceptance=0.8&draft=0.5b").expect("a good question");
    let speculation = &plan["speculation"];
    let number = |key: &str| speculation[key].as_f64().unwrap_or_else(|| panic!("{key}: {speculation}"));
    assert!((1.0..5.0).contains(&number("tokens_per_step")) && number("gain") > 1.5, "{speculation}");
    assert!((number("step_ms") / number("tokens_per_step") / number("tpot_ms") - 1.0).abs() < 1e-3, "{speculation}");
    assert!(
        number("drafting_ms") > 0.0 && speculation["stops_at_batch"].is_null(),
        "keys bind a large batch: {speculation}"
    );
    assert_eq!(
        (&speculation["drafter"]["name"], &speculation["drafter"]["weight_bytes"]),
        (&"0.5b".into(), &1e9.into()),
        "{speculation}"
    );
    assert_eq!(speculation["acceptance"], 0.8);
    assert!(asked("model=7b&machine=h100").expect("a good question")["speculation"].is_null());
}

#[test]
fn a_message_does_not_grow_with_an_untrusted_name() {
    for query in [format!("{}=1", "x".repeat(1 << 20)), format!("model={}&machine=h100", "x".repeat(1 << 20))] {
        assert!(asked(&query).expect_err("nonsense").to_string().len() < 900);
    }
}

#[test]
fn every_preset_can_be_asked_for() {
    let presets = plan::presets(&Here::default());
    let names = |what: &str| {
        let list = presets[what].as_array().expect("a list").clone();
        list.into_iter().map(|preset| preset["name"].as_str().expect("a name").to_string()).collect::<Vec<_>>()
    };
    for model in names("models") {
        for machine in names("machines") {
            let query = format!("model={model}&machine={machine}&prompt=1000&response=100");
            asked(&query).unwrap_or_else(|problem| panic!("{query}: {problem}"));
        }
    }
}
