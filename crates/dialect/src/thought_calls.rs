//! Calls inside thoughts. A model that means a call does not close its thought; a call in a thought that closes later is
//! an example. So the decision is made when the thought closes, or when the answer is over.
//!
//! ```text
//!   thought ──a call──► undecided ──closing mark──► all of it was thought
//!                           └───end of the answer──► the thought ended before the call: the rest is parsed again
//! ```

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use crate::Tool;
use crate::char_stream::{CharStream, Read, StreamState};
use crate::family::Calls;

/// Result of a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThoughtEnd {
    Closed,
    /// Not closed; its first call comes next.
    Unclosed,
}

/// Parses the rest of a thought. `calls`: the format to look for in it.
pub(crate) async fn read_thought(
    stream: &CharStream,
    closes: &[&'static str],
    calls: Option<Calls>,
    tools: &[Tool],
) -> Read<ThoughtEnd> {
    let marks = [closes, calls.map_or(&[][..], Calls::opens)].concat();
    loop {
        let mark = stream.scan(&marks, &[], StreamState::emit_text).await?;
        let Some(calls) = calls.filter(|_| !closes.contains(&mark)) else {
            stream.set_thinking(false);
            return Ok(ThoughtEnd::Closed);
        };
        if let Some(thought) = decide(stream, closes, calls, tools, mark).await {
            return Ok(thought);
        }
    }
}

/// Decides what the held mark begins; `None`: more of the thought. Characters are inspected at most twice.
async fn decide(
    stream: &CharStream,
    closes: &[&'static str],
    calls: Calls,
    tools: &[Tool],
    mark: &'static str,
) -> Option<ThoughtEnd> {
    let mut text = stream.pick_up();
    // A separate parser for this call, which stops after it.
    let call = CharStream::new(false, true, false, Vec::new());
    let mut reading = pin!(async {
        call.skip_repeats(&[mark], &[]).await;
        calls.read(&call, tools, mark).await
    });
    let mut poll = || reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let mut is_call = false;
    loop {
        if let Some((_, end)) = stream.mark_at(0, closes).await {
            stream.emit_text(&text);
            stream.take_many(end);
            stream.set_thinking(false);
            return Some(ThoughtEnd::Closed);
        }
        let Some(c) = stream.ahead(0).await else {
            if !is_call {
                call.end();
                let _ = poll();
                is_call = call.has_whole_call();
            }
            if !is_call {
                stream.emit_text(&text);
                return None;
            }
            stream.unread(&text);
            stream.stop_thinking();
            return Some(ThoughtEnd::Unclosed);
        };
        stream.pick();
        text.push(c);
        if is_call {
            continue;
        }
        call.push(c.encode_utf8(&mut [0; 4]));
        let polled = poll();
        is_call = call.has_whole_call();
        if !is_call && polled.is_ready() {
            // It is not a call. Input that it did not take is parsed again.
            let rest: String = call.remaining();
            text.truncate(text.len() - rest.len());
            stream.emit_text(&text);
            stream.unread(&rest);
            return None;
        }
    }
}
