//! Why a prompt was not cached: seven misses that are made, and what each answer says of its own.

use std::io;
use std::sync::Arc;

use engine::{EngineOptions, Store, SwapDisk};
use serde_json::{Value, json};

use crate::client::Answer;
use crate::host::{Host, keyed, metric, small_engine, wait};

const A: &str = "sk-a";
const B: &str = "sk-b";

fn host(engine: EngineOptions) -> Host {
    Host::with(EngineOptions { max_model_len: Some(512), ..engine }, keyed(&[A, B]))
}

fn ask(host: &Host, key: &str, body: &Value) -> Value {
    let mut body = body.clone();
    (body["max_tokens"], body["return_token_ids"]) = (2.into(), true.into());
    let path = if body["prompt"].is_null() { "/v1/chat/completions" } else { "/v1/completions" };
    send(host, key, "POST", path, &body.to_string()).json()
}

fn send(host: &Host, key: &str, method: &str, path: &str, body: &str) -> Answer {
    let answer = host.begin(key, method, path, body).answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// Tokens with which both prompts begin.
fn common(a: &Value, b: &Value) -> usize {
    let [a, b] = [a, b].map(|of| of["prompt_token_ids"].as_array().expect("they were asked for"));
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn tokens(range: std::ops::Range<u32>) -> Value {
    json!({"prompt": range.collect::<Vec<u32>>()})
}

#[derive(Debug)]
struct NoReads;

impl Store for NoReads {
    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(5))
    }
}

#[test]
fn each_answer_says_why_no_more_of_its_prompt_was_cached() {
    let rules = "Speak of the fox and of the lantern, and of nothing else that there is. ".repeat(5);
    let chat = |time: &str, tools: [&str; 2]| {
        let tools =
            tools.map(|name| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}));
        json!({"messages": [
            {"role": "system", "content": format!("It is {time} now. {rules}")}, {"role": "user", "content": "Begin with the fox."},
        ], "tools": tools})
    };
    let roomy = host(small_engine());
    let mut asked_more = chat("14:00", ["see", "go"]);
    asked_more["messages"][1]["content"] = json!("Begin with the fox. Then end.");
    for (what, first, second, why, message) in [
        ("timestamp", chat("12:01", ["see", "go"]), chat("12:02", ["see", "go"]), "other_token", Some(0)),
        ("tool order", chat("13:00", ["see", "go"]), chat("13:00", ["go", "see"]), "other_token", None),
        ("a question that goes on", chat("14:00", ["see", "go"]), asked_more, "other_token", Some(1)),
        ("partial block", chat("15:00", ["a", "b"]), chat("15:00", ["a", "b"]), "block_not_full", None),
    ] {
        let (first, second) = (ask(&roomy, A, &first), ask(&roomy, A, &second));
        let told = &second["timings"]["cache"];
        assert_eq!((&told["why"], &told["left_at_token"]), (&json!(why), &json!(common(&first, &second))), "{what}");
        assert_eq!(told["left_in_message"], json!(message), "{what}: {told}");
        assert!(told["lost_tokens"].as_u64() > Some(0) && told["predicted_ms"].is_null(), "{what}: {told}");
    }
    let stamped = ask(&roomy, A, &chat("12:03", ["see", "go"]));
    let path = format!("/v1/requests/{}/timeline", stamped["id"].as_str().expect("an id"));
    let why = send(&roomy, A, "GET", &path, "").json()["prompts"][0]["why"].to_string();
    assert!(why.contains("(in messages[0])") && why.contains("changes in its prompt at the end"), "{why}");
    let page = send(&roomy, A, "GET", "/metrics", "");
    assert_eq!(metric(page.text(), "twostroke_cache_misses_total{why=\"block_not_full\"}"), 1.0);
    ask(&roomy, A, &tokens(20..60));
    // Another tenant: what it is told is what it would be told if the first had never been.
    let of_tenant = ask(&roomy, B, &tokens(20..60))["timings"]["cache"].clone();
    drop(roomy);
    let restarted = host(small_engine());
    let mut of_restart = ask(&restarted, A, &tokens(20..60))["timings"]["cache"].clone();
    assert_eq!((&of_restart["why"], &of_restart["left_at_token"]), (&json!("new"), &json!(0)), "restart");
    assert!(of_restart["since_unix_ms"].as_f64() > of_tenant["since_unix_ms"].as_f64(), "{of_restart}");
    for moment in ["since_at", "since_unix_ms"] {
        of_restart[moment] = of_tenant[moment].clone();
    }
    assert_eq!(of_tenant, of_restart, "tenant");
    let block = 32 * restarted.engine.model().kv_bytes_per_token as u64;
    drop(restarted);
    // Room for 16 blocks: one prompt of seven and one of twelve do not fit.
    let small = EngineOptions { kv_cache_bytes: Some(16 * block), ..small_engine() };
    let pressed = host(small.clone());
    for (key, name) in [(A, None), (B, Some("another tenant's request"))] {
        ask(&pressed, A, &tokens(20..230));
        let other = ask(&pressed, key, &tokens(30..400));
        let told = ask(&pressed, A, &tokens(20..230))["timings"]["cache"].clone();
        assert_eq!((&told["why"], &told["left_at_token"]), (&json!("evicted"), &json!(210)), "{told}");
        assert_eq!(told["by"], name.map_or(other["id"].clone(), Into::into), "{told}");
        assert!(told["lost_at"].is_string(), "{told}");
    }
    drop(pressed);
    let disk = Some(SwapDisk { directory: std::env::temp_dir(), bytes: 256 * block });
    let faulty = host(EngineOptions { kv_swap_disk: disk, kv_swap_store: Some(Arc::new(NoReads)), ..small });
    ask(&faulty, A, &tokens(20..230));
    let mut others = (300..).map(|from| tokens(from..from + 40));
    wait("its blocks to be on disk", || {
        ask(&faulty, A, &others.next().expect("there are more"));
        faulty.engine.stats().swap.spilled >= 8
    });
    let answer = ask(&faulty, A, &tokens(20..230));
    let told = &answer["timings"]["cache"];
    assert_eq!((&told["why"], &told["left_at_token"]), (&json!("tier_fault"), &json!(210)), "{told}");
    let path = format!("/v1/requests/{}/timeline", answer["id"].as_str().expect("an id"));
    let timeline = send(&faulty, A, "GET", &path, "");
    let prompt = &timeline.json()["prompts"][0];
    assert_eq!(prompt["cache"], *told);
    assert!(prompt["why"].to_string().contains("the tier that had it could not be read"), "{prompt}");
}
