//! Beam search as vLLM's server has it: rounds of ordinary requests for one token, one request for each beam.
//!
//! ```text
//! request --submit--> first round --top tokens--> Search --> beams --submitted together--> next round ...
//!                                                         |
//! Stream of Output  <---- tokens, ends, Done -------------+  when it is over
//! ```
//! A round's requests are planned in one step where there is room. The blocks that beams share are found in the prefix
//! cache; it knows full blocks, so each beam computes what is behind its last full block once more. The engine knows
//! nothing of a search: each of its requests is one like any other, of the same tenant and class.

mod fields;
mod search;

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use engine::{
    Event, EventSender, FinishReason, Observe, RequestError, Stream, SubmitError, Timings, Usage, ValidatedRequest,
};
use protocol::{Nanos, TokenId};

pub(crate) use self::fields::{check, read, refuse_form};
use self::search::{BeamParams, Complete, Search, Terms};
use crate::app::App;

/// The searches that a request asks for, one for each prompt. As many answers come as it asks for, best first, all at
/// the end; a search is as wide as they are many.
pub(crate) struct Beams {
    params: BeamParams,
    taken: Arc<Mutex<Taken>>,
}

/// What searches asked of the engine behind their prompts.
#[derive(Clone, Copy, Default)]
pub(crate) struct Taken {
    /// Rounds, the first of which read the prompt; of several prompts the most.
    pub(crate) rounds: usize,
    /// Rows that were computed after the first round: the tokens of beams, and again what was behind their last full
    /// blocks.
    pub(crate) rows: usize,
}

impl Beams {
    fn new(params: BeamParams) -> Beams {
        Beams { params, taken: Arc::default() }
    }

    /// Submits the first round for a prompt and goes on by itself. The stream is that of the answers and has the name of
    /// the first round's request; when it is dropped, the search ends, and its requests with it.
    pub(crate) fn begin(&self, app: &App, request: ValidatedRequest) -> Result<Stream, SubmitError> {
        let asking = app.drain.asking().ok_or(SubmitError::ShuttingDown)?;
        let engine = app.engine.clone();
        let stop = request.stop_rules();
        let terms = Terms {
            width: request.num_answers(),
            params: self.params,
            prompt_tokens: request.prompt().len(),
            min_tokens: stop.min_tokens,
            max_tokens: stop.max_tokens,
            stop_token_ids: stop.stop_token_ids.clone(),
            logprobs: request.logprobs().map(|shown| shown as usize),
        };
        let candidates = terms.most_likely().min(engine.model().config.vocab_size) as u32;
        let began = (engine.now(), engine.held());
        let first = engine.submit(request.next_token(&[], candidates))?;
        let (outlet, stream) = Stream::open(first.id(), request.prompt());
        let (search, taken) = (Search::new(terms), self.taken.clone());
        let running = Running { engine, request, search, candidates, began, taken };
        tokio::spawn(async move {
            running.run(first, outlet).await;
            drop(asking);
        });
        Ok(stream)
    }

    /// What the searches took that are over.
    pub(crate) fn taken(&self) -> Taken {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A search under way.
struct Running {
    engine: Arc<dyn Observe>,
    request: ValidatedRequest,
    search: Search,
    /// Number of top tokens requested behind each beam.
    candidates: u32,
    /// When it began, and for how long the engine had been held by then.
    began: (Nanos, Nanos),
    taken: Arc<Mutex<Taken>>,
}

impl Running {
    async fn run(self, first: Stream, outlet: EventSender) {
        let (mut closed, mut answers) = (pin!(outlet.closed()), pin!(self.answers(first, &outlet)));
        let outcome = std::future::poll_fn(|cx| match closed.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => answers.as_mut().poll(cx).map(Some),
        });
        if let Some(Err(error)) = outcome.await {
            outlet.send(Event::Failed(error));
        }
    }

    async fn answers(self, first: Stream, outlet: &EventSender) -> Result<(), RequestError> {
        let Running { engine, request, mut search, candidates, began, taken } = self;
        let mut sum = Sum::default();
        let mut most_likely = Vec::new();
        let mut round = vec![first];
        loop {
            for mut stream in round {
                most_likely.push(told(&mut stream, &mut sum).await?);
            }
            if most_likely.len() == search.beams().len() {
                sum.taken.rounds += 1;
                search.advance(&most_likely);
                most_likely.clear();
            }
            let waiting = &search.beams()[most_likely.len()..];
            if waiting.is_empty() {
                break;
            }
            let ask = |most: usize| {
                let beams = waiting[..most].iter();
                engine.submit_together(beams.map(|beam| request.next_token(&beam.tokens, candidates)).collect())
            };
            round = as_many_as_fit(waiting.len(), ask)?;
        }
        let answers = search.into_answers();
        let completion_tokens = answers.iter().map(|answer| answer.beam.tokens.len()).sum();
        for (index, answer) in answers.into_iter().enumerate() {
            send(&*engine, &request, outlet, index, answer);
        }
        // Before the last output, whose reader looks at it.
        sum.tell(&taken);
        let usage = Usage { completion_tokens, ..sum.usage };
        outlet.send(Event::Done { usage, timings: sum.timings(&*engine, began) });
        Ok(())
    }
}

/// All of a round, or what the queue has room for: a search is no reason to be refused its own answer.
fn as_many_as_fit(
    mut most: usize,
    ask: impl Fn(usize) -> Result<Vec<Stream>, SubmitError>,
) -> Result<Vec<Stream>, SubmitError> {
    loop {
        match ask(most) {
            Err(SubmitError::QueueFull { .. } | SubmitError::TenantQueueFull { .. }) if most > 1 => most /= 2,
            outcome => return outcome,
        }
    }
}

/// What the rounds took.
#[derive(Default)]
struct Sum {
    taken: Taken,
    /// Tokens of beams behind the first round.
    tokens: usize,
    usage: Usage,
    first: Timings,
    preemptions: usize,
}

impl Sum {
    fn tell(&self, taken: &Mutex<Taken>) {
        let mut all = taken.lock().unwrap_or_else(PoisonError::into_inner);
        *all = Taken { rounds: all.rounds.max(self.taken.rounds), rows: all.rows + self.taken.rows };
    }

    fn timings(self, engine: &dyn Observe, (arrived, held): (Nanos, Nanos)) -> Timings {
        let ms = |time: Nanos| time.as_secs_f64() * 1e3;
        let total_ms = ms(engine.now().since(arrived));
        let Sum { taken, tokens, first, preemptions, .. } = self;
        Timings {
            decode_ms: (total_ms - first.ttft_ms).max(0.0),
            total_ms,
            decode_tokens: tokens,
            decode_steps: taken.rounds - 1,
            preemptions,
            held_ms: ms(engine.held().since(held)),
            ..first
        }
    }
}

/// The top tokens behind one beam.
async fn told(stream: &mut Stream, sum: &mut Sum) -> Result<Vec<(TokenId, f32)>, RequestError> {
    let mut most_likely = None;
    loop {
        match stream.recv().await {
            Some(Event::Token { logprob, .. }) => most_likely = logprob.map(|logprob| logprob.top),
            Some(Event::Done { usage, timings }) => {
                sum.preemptions += timings.preemptions;
                if sum.taken.rounds == 0 {
                    (sum.usage, sum.first) = (usage, timings);
                } else {
                    sum.taken.rows += timings.prefill_tokens;
                    sum.tokens += 1;
                }
                return most_likely.ok_or(RequestError::Internal);
            }
            Some(Event::Failed(error)) => return Err(error),
            Some(_) => {}
            // An engine that is gone sends nothing more, not even an error.
            None => return Err(RequestError::Internal),
        }
    }
}

/// An answer, as one that was written token by token.
fn send(engine: &dyn Observe, request: &ValidatedRequest, outlet: &EventSender, index: usize, complete: Complete) {
    let Complete { beam, reason, .. } = complete;
    let mut detokenizer = engine.model().tokenizer.as_ref().map(|tokenizer| request.detokenizer(tokenizer));
    let stops = matches!(reason, FinishReason::Stop(_)) && !request.includes_stop();
    let last = beam.tokens.len() - 1;
    let mut logprobs = beam.logprobs.into_iter();
    for (at, &token) in beam.tokens.iter().enumerate() {
        let text = match &mut detokenizer {
            // A stop token's own text is not part of the answer, unless asked for.
            Some(detokenizer) if !(stops && at == last) => detokenizer.push_unstoppable(token),
            _ => String::new(),
        };
        outlet.send(Event::Token { answer: index, token, text, logprob: logprobs.next() });
    }
    let text = detokenizer.map_or_else(String::new, |mut detokenizer| detokenizer.finish());
    outlet.send(Event::Finished { answer: index, reason, stop_string: None, text });
}
