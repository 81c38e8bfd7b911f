//! All lines of a file, answered.

use std::future::Future;
use std::sync::Arc;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::input::{Line, Lines, MAX_LINE_BYTES, member};
use crate::local::{Answered, permits};
use crate::{BatchInput, BatchOutput, Counts, InputError, Local, OutputError};

/// A status that says "not now".
const NOT_NOW: [u16; 2] = [429, 503];

/// Why a batch did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The input has changed meanwhile.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The engine is going down.
    #[error("the engine is shutting down")]
    ShuttingDown,
}

/// A batch under way. Dropping it gives up what is being answered; what is written stays.
pub struct BatchRun {
    local: Local,
    lines: Lines,
    output: BatchOutput,
    /// What is asked of lines that do not say it themselves.
    tier: Option<&'static str>,
    counts: Counts,
    answers: JoinSet<(String, Answered)>,
    /// What this batch's lines may hold at a time: no more than two of the longest.
    own_lines: Arc<Semaphore>,
}

/// Room for a line; as much as the longest takes until its length is known.
struct Room([OwnedSemaphorePermit; 2]);

impl Room {
    async fn of(semaphores: [Arc<Semaphore>; 2]) -> Room {
        let most = permits(MAX_LINE_BYTES);
        let [own, all] = semaphores;
        // The own one first: who has none of that holds none of what others wait for.
        let own = own.acquire_many_owned(most).await.expect("it is never closed");
        Room([own, all.acquire_many_owned(most).await.expect("it is never closed")])
    }

    /// Returns the unused part of a line's budget.
    fn shrink(&mut self, bytes: usize) {
        for held in &mut self.0 {
            let surplus = held.num_permits().saturating_sub(permits(bytes) as usize);
            drop(held.split(surplus));
        }
    }
}

impl BatchRun {
    /// `tier`: the `service_tier` of lines that name none.
    pub fn new(
        local: Local,
        input: &BatchInput,
        output: BatchOutput,
        tier: Option<&'static str>,
    ) -> Result<BatchRun, InputError> {
        let (total, done, failed, bytes) = (input.len(), output.len(), output.failed(), output.bytes());
        let counts = Counts { total, done, failed, bytes, ..Counts::default() };
        let own_lines = Arc::new(Semaphore::new(2 * permits(MAX_LINE_BYTES) as usize));
        Ok(BatchRun { local, lines: input.lines()?, output, tier, counts, answers: JoinSet::new(), own_lines })
    }

    /// How far it is.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Answers what is not answered yet; `tell` hears of each answer. Call it inside a tokio runtime.
    pub async fn finish(&mut self, mut tell: impl FnMut(Counts)) -> Result<Counts, Stopped> {
        tell(self.counts);
        let (mut room, mut is_read) = (None, false);
        loop {
            let has_seat = !is_read && self.answers.len() < self.local.server.fills;
            // Kept while answers come: asking again would mean the last place in the queue.
            let asked =
                room.get_or_insert_with(|| Box::pin(Room::of([self.own_lines.clone(), self.local.lines.clone()])));
            let answered = tokio::select! {
                biased;
                Some(answered) = self.answers.join_next() => answered,
                mut held = asked, if has_seat => {
                    room = None;
                    match self.next()? {
                        Some(line) => {
                            held.shrink(line.body.len());
                            self.answers.spawn(answer(self.local.clone(), line, self.tier, held));
                        }
                        None => is_read = true,
                    }
                    continue;
                }
                else => break,
            };
            let Ok((custom_id, answered)) = answered else { return Err(Stopped::ShuttingDown) };
            if NOT_NOW.contains(&answered.status) {
                // It was asked until the server went down.
                return Err(Stopped::ShuttingDown);
            }
            self.keep(custom_id, &answered)?;
            tell(self.counts);
        }
        self.output.finish()?;
        Ok(self.counts)
    }

    fn next(&mut self) -> Result<Option<Line>, InputError> {
        loop {
            match self.lines.next()? {
                Some(line) if self.output.has(&line.custom_id) => {}
                line => return Ok(line),
            }
        }
    }

    fn keep(&mut self, custom_id: String, answered: &Answered) -> Result<(), OutputError> {
        let Answered { status, request_id, body, .. } = answered;
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        // In OpenAI's older words or in its newer ones.
        let tokens = |names: [&str; 2]| names.into_iter().find_map(|name| body["usage"][name].as_u64()).unwrap_or(0);
        self.counts.prompt_tokens += tokens(["prompt_tokens", "input_tokens"]);
        self.counts.completion_tokens += tokens(["completion_tokens", "output_tokens"]);
        let has_failed = *status >= 400 || body.is_null();
        let line = json!({
            "id": format!("batch_req_{request_id}"),
            "custom_id": custom_id,
            "response": {"status_code": status, "request_id": request_id, "body": body},
            "error": null,
        });
        self.output.add(&custom_id, &line.to_string(), has_failed)?;
        self.counts.bytes = self.output.bytes();
        self.counts.done += 1;
        self.counts.failed += usize::from(has_failed);
        Ok(())
    }
}

/// Writes the tier into an object that has none, at its end: places in errors stay those of the line.
fn name_tier(body: &mut String, tier: &str) {
    if let Some(null) = member(body, "service_tier") {
        return body.replace_range(null, &format!("\"{tier}\""));
    }
    let end = body.len() - 1; // the brace
    let comma = if body[..end].trim_end().ends_with('{') { "" } else { ", " };
    body.insert_str(end, &format!("{comma}\"service_tier\": \"{tier}\""));
}

/// Asks until there is room.
fn answer(
    local: Local,
    line: Line,
    tier: Option<&'static str>,
    room: Room,
) -> impl Future<Output = (String, Answered)> {
    let Line { custom_id, url, mut body, has_class } = line;
    if let Some(tier) = tier.filter(|_| !has_class) {
        name_tier(&mut body, tier);
    }
    let body = Bytes::from(body);
    async move {
        let _room = room;
        loop {
            let answered = local.post(&url, body.clone()).await;
            match answered.retry_after {
                Some(later) if NOT_NOW.contains(&answered.status) && !local.server.drain.has_begun() => {
                    tokio::time::sleep(later).await;
                }
                _ => return (custom_id, answered),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::lines_room;

    #[test]
    fn a_line_that_names_no_tier_gets_one() {
        for (body, wanted) in [
            ("{}", r#"{"service_tier": "flex"}"#),
            ("{ }", r#"{ "service_tier": "flex"}"#),
            (r#"{"a":[{}]}"#, r#"{"a":[{}], "service_tier": "flex"}"#),
            (r#"{"service_tier": null, "a": 1}"#, r#"{"service_tier": "flex", "a": 1}"#),
        ] {
            let mut named = body.to_owned();
            name_tier(&mut named, "flex");
            assert_eq!(named, wanted);
        }
    }

    /// 25 lines of the longest of each of 20 keys: what is held has a bound, and each key's first comes early.
    #[test]
    fn lines_hold_no_more_than_their_room_and_keys_take_turns() {
        let all = lines_room();
        let most = all.available_permits();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
            for key in 0..20 {
                let (all, told) = (all.clone(), told.clone());
                let own = Arc::new(Semaphore::new(2 * permits(MAX_LINE_BYTES) as usize));
                tokio::spawn(async move {
                    for _ in 0..25 {
                        let mut room = Room::of([own.clone(), all.clone()]).await;
                        room.shrink(MAX_LINE_BYTES - 1);
                        told.send((key, room)).unwrap();
                    }
                });
            }
            drop(told);
            let (mut held, mut order) = (Vec::new(), Vec::new());
            while let Some((key, room)) = heard.recv().await {
                order.push(key);
                held.push(room);
                assert!(held.len() <= 8);
                // Nothing is given back before all that fit have come.
                if all.available_permits() == 0 {
                    held.remove(0);
                }
            }
            assert_eq!(order.len(), 20 * 25);
            let firsts = (0..20).map(|key| order.iter().position(|other| *other == key).unwrap());
            assert!(firsts.max() < Some(60), "{order:?}");
        });
        assert_eq!(all.available_permits(), most);
    }
}
