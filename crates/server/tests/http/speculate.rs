//! Guesses at the next tokens, as clients see them: what was guessed is told, and nothing else is different.

use engine::{EngineOptions, Speculation};
use serde_json::{Value, json};

use crate::host::{Host, local_server, metric, small_engine};

#[test]
fn guesses_are_told_and_change_nothing() {
    let host = Host::with(EngineOptions { speculation: Speculation::auto(), ..small_engine() }, local_server());
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
    let tokens = metric(page, "twostroke_generation_tokens_total");
    assert_eq!(tokens, 240.0, "a token is one, whether it came alone or with others");
}

#[test]
fn whether_to_guess_is_true_or_false() {
    let host = Host::start();
    let answer = host.post("/v1/completions", &json!({"prompt": "a", "speculate": "often"}));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("speculate")));
}
