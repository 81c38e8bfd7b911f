//! What the built-in model can do, through the engine's door: a broken cache or kernel shows here as wrong answers.

use std::path::Path;

use checkpoint::{Checkpoint, Source};
use engine::{Chat, ChatMessage, Engine, EngineOptions, Event, Prompt, RawRequest, SamplingParams, Stream};
use serde_json::Value;
use tests::{root, text};

/// A held-out case: never seen in training.
struct Case {
    kind: String,
    chat: Chat,
    answer: String,
    prompt_tokens: u64,
}

/// The conversation so far, and the tools that are offered in it.
fn chat(case: &Value) -> Chat {
    let message = |message: &Value| {
        let mut extra = message.as_object().expect("a message").clone();
        let role = extra.remove("role").expect("who speaks");
        let content = extra.remove("content").expect("what is said, or null");
        let role = role.as_str().expect("a name").to_owned();
        ChatMessage { role, content: content.as_str().map(str::to_owned), extra }
    };
    let mut chat = Chat::new(case["messages"].as_array().expect("messages").iter().map(message).collect());
    if let Some(tools) = case.get("tools") {
        chat.template_kwargs.insert("tools".into(), tools.clone());
    }
    chat
}

fn cases() -> Vec<Case> {
    let lines = text("models/lantern/heldout.jsonl").expect("the held-out cases are there");
    let case = |line: &str| -> Case {
        let value: Value = serde_json::from_str(line).expect("a line is an object");
        let field = |value: &Value| value.as_str().expect("a text").to_string();
        Case {
            kind: field(&value["kind"]),
            chat: chat(&value),
            answer: field(&value["answer"]),
            prompt_tokens: value["prompt_tokens"].as_u64().unwrap_or(0),
        }
    };
    lines.lines().map(case).collect()
}

fn engine() -> Engine {
    let directory = Source::Directory(Path::new(root()).join("models/lantern"));
    let checkpoint = Checkpoint::open(directory).expect("the model is there");
    // Threads that wait for each other beside other tests take turns, and what they compute is the same.
    let threads = if tests::is_long() { None } else { Some(1) };
    let options = EngineOptions { threads, max_num_seqs: 16, max_num_batched_tokens: 512, ..EngineOptions::default() };
    Engine::start(&checkpoint, &options, &mut |_| {}).expect("it starts")
}

fn ask(engine: &Engine, case: &Case, max_tokens: i64) -> Stream {
    let prompt = Prompt::Chat(case.chat.clone());
    let raw = RawRequest { sampling: SamplingParams::at(0.0), max_tokens: Some(max_tokens), ..RawRequest::new(prompt) };
    engine.submit(engine.validate(raw).expect("a valid request")).expect("the queue has room")
}

fn answer(mut stream: Stream) -> String {
    let mut answer = String::new();
    while let Some(output) = stream.blocking_recv() {
        match output {
            Event::Token { text, .. } | Event::Finished { text, .. } => answer.push_str(&text),
            Event::Failed(error) => panic!("{error}"),
            Event::Done { .. }
            | Event::PromptLogprobs(_)
            | Event::Embedding(_)
            | Event::Progress(_)
            | Event::Noted { .. } => {}
        }
    }
    answer
}

/// Share of right answers. All cases are asked at once: they share steps, blocks are taken and given back.
fn score(wanted: impl Fn(&Case) -> bool, max_tokens: i64, right: impl Fn(&Case, &str) -> bool) -> f64 {
    score_of(cases().into_iter().filter(wanted), max_tokens, right)
}

fn score_of(cases: impl Iterator<Item = Case>, max_tokens: i64, right: impl Fn(&Case, &str) -> bool) -> f64 {
    let engine = engine();
    let cases: Vec<Case> = cases.collect();
    let streams: Vec<Stream> = cases.iter().map(|case| ask(&engine, case, max_tokens)).collect();
    let mut num_right = 0;
    for (case, stream) in cases.iter().zip(streams) {
        let text = answer(stream);
        let is_right = right(case, &text);
        num_right += usize::from(is_right);
        if !is_right {
            println!("[{}] {} tokens: wanted {:?}, got {text:?}", case.kind, case.prompt_tokens, case.answer);
        }
    }
    println!("{num_right} of {} right", cases.len());
    num_right as f64 / cases.len() as f64
}

fn after_thinking(text: &str) -> &str {
    text.rsplit("</think>").next().unwrap_or(text).trim()
}

fn is_exact(case: &Case, text: &str) -> bool {
    after_thinking(text) == case.answer
}

#[test]
fn facts_from_a_short_prompt_are_found() {
    let short = |case: &Case| case.kind == "facts" && case.prompt_tokens <= 1024;
    assert!(score(short, 16, is_exact) >= 0.90);
}

#[test]
fn facts_from_a_prompt_of_up_to_4k_tokens_are_found() {
    let long = |case: &Case| case.kind == "facts" && case.prompt_tokens > 1024;
    assert!(score_of(tests::part_of(cases().into_iter().filter(long), 2), 16, is_exact) >= 0.80);
}

#[test]
fn sums_are_worked_out_inside_think_tags() {
    let thought = |case: &Case, text: &str| text.contains("<think>") && is_exact(case, text);
    assert!(score(|case| case.kind == "sums", 120, thought) >= 0.85);
}

#[test]
fn stories_are_about_what_was_asked() {
    let on_topic = |case: &Case, text: &str| case.answer.split(' ').all(|word| text.contains(word));
    assert!(score(|case| case.kind == "story", 400, on_topic) >= 0.80);
}

#[test]
fn the_tool_that_is_wanted_is_called_by_names_never_seen() {
    let calls = cases().into_iter().filter(|case| case.kind == "call");
    assert!(score_of(tests::part_of(calls, 2), 200, is_exact) >= 0.70);
}

#[test]
fn two_values_are_two_calls() {
    assert!(score(|case| case.kind == "two calls", 300, is_exact) >= 0.85);
}

#[test]
fn what_a_tool_found_is_told() {
    assert!(score(|case| case.kind == "result", 80, is_exact) >= 0.80);
}

#[test]
fn what_no_tool_does_is_not_called() {
    assert!(score(|case| case.kind == "no tool", 80, is_exact) >= 0.80);
}

#[test]
fn forms_are_filled_in_from_the_text() {
    assert!(score(|case| case.kind == "form", 120, is_exact) >= 0.85);
}
