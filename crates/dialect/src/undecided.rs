//! Calls inside thoughts. A model that means one never closes its thought; one in a thought that goes on and closes is
//! an example. So what is called is known when the thought closes, or the answer is over.
//!
//! ```text
//!   thought ──a call──► undecided ──closing mark──► all of it was thought
//!                           └───end of the answer──► the thought ended before the call: from there on it is heard anew
//! ```

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use crate::Tool;
use crate::family::Calls;
use crate::tape::{Read, Reel, Tape};

/// How a thought went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thought {
    Closed,
    /// Its first call comes next.
    Unclosed,
}

/// Hears the rest of a thought. `calls`: what is looked for in it.
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

/// What the mark that is held begins; `None`: more of the thought. What is looked at twice at most.
async fn decide(
    tape: &Tape,
    closes: &[&'static str],
    calls: Calls,
    tools: &[Tool],
    mark: &'static str,
) -> Option<Thought> {
    let mut said = tape.pick_up();
    // A listener of its own to this call. When it has one, it has nothing more to say.
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
            // It is none. What it did not take is heard anew.
            let rest: String = call.unheard();
            said.truncate(said.len() - rest.len());
            tape.say(&said);
            tape.unread(&rest);
            return None;
        }
    }
}
