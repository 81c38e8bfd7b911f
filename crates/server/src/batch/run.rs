//! All lines of a file, answered.

use std::future::Future;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::input::{Line, Lines};
use super::local::Answered;
use super::{BatchInput, BatchOutput, InputError, Local, OutputError};

/// A status that says "not now".
const NOT_NOW: [u16; 2] = [429, 503];

/// How far a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Its lines.
    pub total: usize,
    /// Those that are answered, refusals among them.
    pub done: usize,
    /// Those that were refused.
    pub failed: usize,
    /// Tokens of prompts and of answers in this run.
    pub prompt_tokens: u64,
    /// See `prompt_tokens`.
    pub completion_tokens: u64,
}

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
}

impl BatchRun {
    /// `tier`: the `service_tier` of lines that name none.
    pub fn new(
        local: Local,
        input: &BatchInput,
        output: BatchOutput,
        tier: Option<&'static str>,
    ) -> Result<BatchRun, InputError> {
        let counts = Counts { total: input.len(), done: output.len(), failed: output.failed(), ..Counts::default() };
        Ok(BatchRun { local, lines: input.lines()?, output, tier, counts, answers: JoinSet::new() })
    }

    /// How far it is.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Answers what is not answered yet; `tell` hears of each answer. Call it inside a tokio runtime.
    pub async fn finish(&mut self, mut tell: impl FnMut(Counts)) -> Result<Counts, Stopped> {
        tell(self.counts);
        loop {
            while self.answers.len() < self.local.fills()
                && let Some(line) = self.next()?
            {
                self.answers.spawn(answer(self.local.clone(), line, self.tier));
            }
            let Some(answered) = self.answers.join_next().await else { break };
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
        self.output.add(custom_id, &line.to_string(), has_failed)?;
        self.counts.done += 1;
        self.counts.failed += usize::from(has_failed);
        Ok(())
    }
}

/// Asks until there is room.
fn answer(local: Local, line: Line, tier: Option<&'static str>) -> impl Future<Output = (String, Answered)> {
    let Line { custom_id, url, mut body } = line;
    if let Some(tier) = tier {
        body.entry("service_tier").or_insert_with(|| tier.into());
    }
    async move {
        let body = Value::Object(body).to_string();
        loop {
            let answered = local.post(&url, body.clone()).await;
            match answered.retry_after {
                Some(later) if NOT_NOW.contains(&answered.status) && !local.is_stopping() => {
                    tokio::time::sleep(later).await;
                }
                _ => return (custom_id, answered),
            }
        }
    }
}
