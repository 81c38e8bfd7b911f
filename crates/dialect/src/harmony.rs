//! gpt-oss: an answer is a sequence of messages, each with a channel, and calls are messages to a tool.
//!
//! ```text
//! <|channel|>analysis<|message|>hm<|end|>                                                       a thought: hm
//! <|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>   a call: now, {}
//! <|start|>assistant<|channel|>final<|message|>Noon.<|return|>                                  text: Noon.
//! ```

use crate::Tool;
use crate::char_stream::{CharStream, Never, Read, Stop, StreamState};
use crate::envelope::{between, fence, fence_ends, surplus};
use crate::named;
use crate::tool_names::prefixed;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
pub(crate) const CONSTRAIN: &str = "<|constrain|>";
/// Marks that end a message.
pub(crate) const ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|call|>"];
pub(crate) const MARKS: [&str; 7] = [START, CHANNEL, MESSAGE, CONSTRAIN, ENDS[0], ENDS[1], ENDS[2]];
/// The same with the words that belong to them.
pub(crate) const FILTERED: [&str; 11] = [
    START,
    "<|start|>assistant",
    CHANNEL,
    "<|channel|>analysis",
    "<|channel|>commentary",
    "<|channel|>final",
    MESSAGE,
    CONSTRAIN,
    ENDS[0],
    ENDS[1],
    ENDS[2],
];
/// Beginning of a thought, in a prompt.
pub(crate) const THOUGHT: &str = "<|channel|>analysis<|message|>";
/// Marks after a thought, in a prompt.
pub(crate) const THOUGHT_ENDS: [&str; 4] = ["<|end|>", "<|return|>", "<|call|>", "<|start|>"];
/// Closes a thought and begins the answer.
pub(crate) const CLOSING: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";
/// Closes a thought and leaves the next message open.
pub(crate) const YIELDING: &str = "<|end|><|start|>assistant";

/// Maximum length of a message header.
const MAX_HEAD_BYTES: usize = 512;
const TO: &str = "to=";

/// Parses an answer. Its first header continues `<|start|>assistant` of the prompt.
pub(crate) async fn read(stream: &CharStream, tools: &[Tool]) -> Read<Never> {
    let marks = [&[START, CHANNEL][..], &ENDS].concat();
    loop {
        // The next message's mark also ends this one.
        let fresh: &[_] = if stream.is_thinking() { &[] } else { &[" to=", "to="] };
        let mark = stream.scan(&marks, fresh, StreamState::emit_text).await?;
        if ENDS.contains(&mark) {
            stream.set_thinking(false);
            continue;
        }
        match message(stream, tools, mark).await {
            Ok(()) => {}
            Err(Stop::Malformed) => stream.abandon(Stop::Malformed),
            Err(Stop::Ended) => return Err(Stop::Ended),
        }
    }
}

/// A message from its header on; for text and thoughts, the header alone.
async fn message(stream: &CharStream, tools: &[Tool], mark: &str) -> Read<()> {
    let mut head = mark.to_owned();
    while stream.one_of(&[MESSAGE]).await?.is_none() {
        let c = stream.peek().await?;
        if head.len() > MAX_HEAD_BYTES || c == '\n' {
            return Err(Stop::Malformed);
        }
        head.push(c);
        stream.take();
    }
    let word = |text: &str| text.split([' ', '<']).next().unwrap_or_default().to_owned();
    let recipient = head.split_once(TO).map(|(_, rest)| word(rest));
    let channel = head.split_once(CHANNEL).map(|(_, rest)| word(rest));
    match recipient {
        Some(recipient) => {
            let tool = prefixed(tools, &recipient).ok_or(Stop::Malformed)?;
            stream.space().await?;
            let is_fenced = fence(stream).await?;
            let ends = [&ENDS[..], &[START]].concat();
            named::arguments(stream, &tool.name, None, &ends).await?;
            surplus(stream, &ENDS).await;
            fence_ends(stream, is_fenced).await;
            between(stream, &ENDS).await?;
        }
        None => stream.set_thinking(channel.as_deref() == Some("analysis") && !stream.is_cut()),
    }
    Ok(())
}
