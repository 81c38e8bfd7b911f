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
use crate::family::Calls;
use crate::tape::{Read, Reel, Tape};

/// Result of a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thought {
    Closed,
    /// Not closed; its first call comes next.
    Unclosed,
}

/// Parses the rest of a thought. `calls`: the format to look for in it.
pub(crate) async fn think(tape: &Tape, closes: &[&'static str], calls: Option<Calls>, tools: &[Tool]) -> Read<Thought> {
    let marks = [closes, calls.map_or(&[][..], Calls::opens)].concat();
    loop {
        let mark = tape.scan(&marks, &[], Reel::say).await?;
        let Some(calls) = calls.filter(|_| !closes.contains(&mark)) else {
            tape.think(false);
            return Ok(Thought::Closed);
        };
        if let Some(thought) = decide(tape, closes, calls, tools, mark).await {
            return Ok(thought);
        }
    }
}

/// Decides what the held mark begins; `None`: more of the thought. Characters are inspected at most twice.
async fn decide(
    tape: &Tape,
    closes: &[&'static str],
    calls: Calls,
    tools: &[Tool],
    mark: &'static str,
) -> Option<Thought> {
    let mut said = tape.pick_up();
    // A separate parser for this call, which stops after it.
    let call = Tape::new(false, true, Vec::new());
    let mut reading = pin!(async {
        call.again(&[mark], &[]).await;
        calls.read(&call, tools, mark).await
    });
    let mut hear = || reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let mut is_call = false;
    loop {
        if let Some((_, end)) = tape.mark_at(0, closes).await {
            tape.say(&said);
            tape.take_many(end);
            tape.think(false);
            return Some(Thought::Closed);
        }
        let Some(c) = tape.ahead(0).await else {
            if !is_call {
                call.end();
                let _ = hear();
                is_call = call.has_whole_call();
            }
            if !is_call {
                tape.say(&said);
                return None;
            }
            tape.unread(&said);
            tape.stop_thinking();
            return Some(Thought::Unclosed);
        };
        tape.pick();
        said.push(c);
        if is_call {
            continue;
        }
        call.push(c.encode_utf8(&mut [0; 4]));
        let heard = hear();
        is_call = call.has_whole_call();
        if !is_call && heard.is_ready() {
            // It is not a call. Input that it did not take is parsed again.
            let rest: String = call.unheard();
            said.truncate(said.len() - rest.len());
            tape.say(&said);
            tape.unread(&rest);
            return None;
        }
    }
}
