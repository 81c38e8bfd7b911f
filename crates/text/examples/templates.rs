//! What it costs to render a chat in a child process: median times of a rendering in and out of process, of one that
//! starts its child, and of the ids.
//!
//! `cargo run --release -p text --example templates -- target/release/twostroke models/lantern`

use std::path::PathBuf;
use std::time::Instant;

use checkpoint::{Checkpoint, Source};
use text::chat_template::{ChatMessage, ChatTemplate, Renderer, TemplateOptions};
use text::tokenizer::Tokenizer;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let binary: PathBuf = arguments.next().expect("the binary").into();
    let directory: PathBuf = arguments.next().expect("a model's directory").into();
    let binary = std::fs::canonicalize(binary).expect("the binary exists");
    let checkpoint = Checkpoint::open(Source::at(directory)).expect("a model");
    let children = Renderer::Child(vec![binary.into(), "render-templates".into()]);
    let load = |renderer: &Renderer| {
        ChatTemplate::load_with(&checkpoint, &renderer.clone().into()).expect("a template").expect("the model chats")
    };
    let tokenizer = Tokenizer::load(&checkpoint, usize::MAX).expect("a tokenizer");
    let messages = [
        ChatMessage::new("system", "You are a helpful assistant."),
        ChatMessage::new("user", "What is 17 + 25?"),
        ChatMessage::new("user", "And <b>twice</b> that?"),
    ];
    let options = TemplateOptions { add_generation_prompt: true, ..TemplateOptions::default() };
    for (name, renderer) in [("in process", &Renderer::InProcess), ("in a child", &children)] {
        let template = load(renderer);
        let rendering = median(2000, || drop(template.render(&messages, &options).expect("renders")));
        let ids = median(2000, || drop(tokenizer.encode_chat(&template, &messages, &options).expect("encodes")));
        let long = vec![ChatMessage::new("user", "a long message ".repeat(500)); 1000];
        let long = median(20, || drop(template.render(&long, &options).expect("renders")));
        let first = median(50, || drop(load(renderer).render(&messages, &options).expect("renders")));
        println!("{name}: rendering {rendering} us, with ids {ids} us, 7.5 MB {long} us, load and first {first} us");
    }
}

/// Microseconds.
fn median(times: usize, mut work: impl FnMut()) -> u128 {
    let mut took: Vec<u128> = (0..times)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_micros()
        })
        .collect();
    took.sort_unstable();
    took[times / 2]
}
