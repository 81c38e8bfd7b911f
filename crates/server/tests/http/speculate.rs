//! Guesses at the next tokens, as clients see them: what was guessed is told, and nothing else is different.

use engine::EngineOptions;
use serde_json::{Value, json};

use crate::host::{Host, local_server, metric, small_engine};

#[test]
fn guesses_are_told_and_change_nothing() {
    let host = Host::with(EngineOptions { speculate: true, ..small_engine() }, local_server());
    let prompt = "The fox sat by the door. The owl sang of gold.\n".repeat(4);
    let body = |speculate: bool| {
        json!({"prompt": prompt, "max_tokens": 120, "temperature": 0, "ignore_eos": true, "logprobs": 1,
            "return_token_ids": true, "speculate": speculate})
    };
    let (with, without) = (host.ask("/v1/completions", &body(true)), host.ask("/v1/completions", &body(false)));
    assert_eq!(with["choices"], without["choices"]);
    assert_eq!(with["usage"]["completion_tokens"], 120);
    let count = |field: &str| with["timings"][field].as_f64().unwrap_or_else(|| panic!("{field}: {}", with["timings"]));
    let (drafted, accepted) = (count("drafted_tokens"), count("accepted_tokens"));
    assert!(accepted > 60.0 && accepted <= drafted, "{accepted} of {drafted}");
    assert_eq!(count("decode_tokens"), 119.0, "guessed or not, they are the answer's tokens");
    assert_eq!(without["timings"]["drafted_tokens"], Value::Null);
    host.quiet();
    let page = host.get("/metrics");
    let page = page.text();
    for (name, expected) in [("num_draft_tokens", drafted), ("num_accepted_tokens", accepted)] {
        assert_eq!(metric(page, &format!("twostroke_spec_decode_{name}_total")), expected, "{name}");
        let vllm = format!("vllm:spec_decode_{name}_total{{model_name=\"lantern\",engine=\"0\"}}");
        assert_eq!(metric(page, &vllm), expected, "{name}");
    }
    let total = |name: &str| -> f64 {
        let labelled = page.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        labelled
            .map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number"))
            .sum()
    };
    for prefix in ["twostroke_", "vllm:"] {
        assert_eq!(total(&format!("{prefix}spec_decode_num_accepted_tokens_per_pos_total")), accepted, "{prefix}");
    }
    // Of both requests: a step of the one without guesses brings a token.
    let steps = 119.0 - accepted + 119.0;
    let [sum, runs] = ["sum", "count"].map(|part| metric(page, &format!("twostroke_tokens_per_decode_step_{part}")));
    assert_eq!((sum, runs), (238.0, steps), "tokens, and the steps that brought them");
    let off = total("twostroke_speculation_off_steps_total");
    assert!(off < steps - 119.0, "{off} steps without guesses");
    let own = metric(page, "twostroke_gap_seconds_total{owner=\"own_drafts\"}");
    let rejected = metric(page, "twostroke_rejected_drafts_seconds_total");
    assert!(0.0 <= rejected && rejected <= own, "{rejected} of {own}");
    let tokens = metric(page, "twostroke_generation_tokens_total");
    assert_eq!(tokens, 240.0, "a token is one, whether it came alone or with others");
}

#[test]
fn a_timeline_tells_guesses_apart() {
    let host = Host::with(EngineOptions { speculate: true, ..small_engine() }, local_server());
    let prompt = "The fox sat by the door. The owl sang of gold.\n".repeat(4);
    let body =
        json!({"prompt": prompt, "max_tokens": 120, "temperature": 0, "ignore_eos": true, "timings_detail": true});
    let answer = host.ask("/v1/completions", &body);
    let detail = &answer["timings"]["detail"][0];
    let ms = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("milliseconds in {detail}"));
    assert_eq!(ms(&detail["gaps"]["other_drafts_ms"]), 0.0, "there are no others");
    assert!(ms(&detail["rejected_drafts_ms"]) <= ms(&detail["gaps"]["own_drafts_ms"]));
    let gaps: f64 = detail["gaps"].as_object().expect("owners").values().map(ms).sum();
    assert!((gaps - ms(&answer["timings"]["decode_ms"])).abs() < 0.001 + gaps * 0.01, "{answer}");
    let id = answer["id"].as_str().expect("an id");
    let timeline = host.get(&format!("/v1/requests/{id}/timeline")).json();
    let prompt = &timeline["prompts"][0];
    let times = prompt["token_times_ms"].as_array().expect("times");
    let steps = prompt["steps"].as_array().expect("steps");
    let runs = steps.iter().filter(|step| step["tokens"].as_u64() > Some(1)).count();
    assert!(times.len() == 120 && runs > 0, "{} tokens, {runs} runs", times.len());
    assert!(times.is_sorted_by(|a, b| a.as_f64() <= b.as_f64()) && times.windows(2).any(|two| two[0] == two[1]));
    // The rows of a step are its token's and those of its guesses.
    let rows = |step: &Value| step["rows"].as_u64() >= step["tokens"].as_u64();
    assert!(steps.iter().filter(|step| step["phase"] == "decode").all(rows), "{steps:?}");
    let words = prompt["why"].to_string();
    assert!(words.contains("guesses at its tokens") && words.contains(" held"), "{words}");
}

#[test]
fn whether_to_guess_is_true_or_false() {
    let host = Host::start();
    let answer = host.post("/v1/completions", &json!({"prompt": "a", "speculate": "often"}));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("speculate")));
}
