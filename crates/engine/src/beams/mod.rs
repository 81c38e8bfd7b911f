//! Beam search over whatever serves: rounds of requests for one token, one for each beam.
//!
//! ```text
//! request --submit--> first round --likeliest tokens--> Search --> beams --submitted together--> next round ...
//!                                                         |
//! Stream of Output  <---- tokens, ends, Done -------------+  when it is over
//! ```
//! A round's requests are planned in one step where there is room. The blocks that beams share are found in the prefix
//! cache; it knows full blocks, so each beam computes what is behind its last full block once more. To the scheduler
//! each is a request like any other, of the same tenant and class.

mod search;

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use scheduler::{Nanos, TokenId};
use text::detokenizer::{Detokenizer, StopStrings};

use self::search::{Complete, Search, Terms};
use crate::door::ValidatedRequest;
use crate::output::{BeamRounds, Outlet, Output, RequestError, Timings, Usage};
use crate::serve::Observe;
use crate::stream::Stream;
use crate::{FinishReason, SubmitError};

pub use self::search::BeamParams;

/// A beam search under way. As many answers come as the request asks for, best first, all at its end; its width is
/// their number.
pub struct BeamSearch {
    engine: Arc<dyn Observe>,
    request: ValidatedRequest,
    search: Search,
    /// So many of the likeliest tokens are asked for behind each beam.
    candidates: u32,
    first: Stream,
    outlet: Outlet,
    /// When it began, and for how long the engine had been held by then.
    began: (Nanos, Nanos),
}

impl BeamSearch {
    /// Submits the first round. The stream is that of the answers; it has the name of the first round's request.
    /// Nothing comes of it until [`BeamSearch::run`] is over.
    pub fn begin(
        engine: Arc<dyn Observe>,
        request: ValidatedRequest,
        params: BeamParams,
    ) -> Result<(Stream, BeamSearch), SubmitError> {
        let terms = Terms {
            width: request.num_answers,
            params,
            prompt_tokens: request.prompt.len(),
            min_tokens: request.stop.min_tokens,
            max_tokens: request.stop.max_tokens,
            stop_token_ids: request.stop.stop_token_ids.clone(),
            logprobs: request.sampling.logprobs.map(|shown| shown as usize),
        };
        let candidates = terms.likeliest().min(engine.model().config.vocab_size) as u32;
        if engine.health().draining {
            return Err(SubmitError::ShuttingDown);
        }
        let began = (engine.now(), engine.held());
        let first = engine.submit(request.round(&[], candidates))?;
        let (outlet, stream) = Stream::open(first.id(), request.prompt.clone());
        let search = Search::new(terms);
        Ok((stream, BeamSearch { engine, request, search, candidates, first, outlet, began }))
    }

    /// Searches, and sends the answers. Ends when the stream is dropped, and its requests with it.
    pub async fn run(self) {
        let outlet = self.outlet.clone();
        let (mut closed, mut answers) = (pin!(outlet.closed()), pin!(self.answers()));
        let outcome = std::future::poll_fn(|cx| match closed.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => answers.as_mut().poll(cx).map(Some),
        });
        if let Some(Err(error)) = outcome.await {
            outlet.send(Output::Failed(error));
        }
    }

    async fn answers(self) -> Result<(), RequestError> {
        let BeamSearch { engine, request, mut search, candidates, first, outlet, began } = self;
        let mut sum = Sum::default();
        let mut likeliest = Vec::new();
        let mut round = vec![first];
        loop {
            for mut stream in round {
                likeliest.push(told(&mut stream, &mut sum).await?);
            }
            if likeliest.len() == search.beams().len() {
                sum.rounds += 1;
                search.advance(&likeliest);
                likeliest.clear();
            }
            let waiting = &search.beams()[likeliest.len()..];
            if waiting.is_empty() {
                break;
            }
            let ask = |most: usize| {
                let beams = waiting[..most].iter();
                engine.submit_together(beams.map(|beam| request.round(&beam.tokens, candidates)).collect())
            };
            round = as_many_as_fit(waiting.len(), ask)?;
        }
        let answers = search.into_answers();
        let completion_tokens = answers.iter().map(|answer| answer.beam.tokens.len()).sum();
        for (index, answer) in answers.into_iter().enumerate() {
            send(&engine, &request, &outlet, index, answer);
        }
        let usage = Usage { completion_tokens, ..sum.usage };
        outlet.send(Output::Done { usage, timings: sum.timings(&*engine, began) });
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
            Err(SubmitError::QueueFull { .. } | SubmitError::ShareTaken { .. }) if most > 1 => most /= 2,
            outcome => return outcome,
        }
    }
}

/// What the rounds took.
#[derive(Default)]
struct Sum {
    rounds: usize,
    usage: Usage,
    first: Timings,
    searched: BeamRounds,
    preemptions: usize,
}

impl Sum {
    fn timings(self, engine: &dyn Observe, (arrived, held): (Nanos, Nanos)) -> Timings {
        let ms = |time: Nanos| time.as_secs_f64() * 1e3;
        let total_ms = ms(engine.now().since(arrived));
        let Sum { rounds, first, searched, preemptions, .. } = self;
        Timings {
            decode_ms: (total_ms - first.ttft_ms).max(0.0),
            total_ms,
            decode_tokens: searched.tokens,
            decode_steps: rounds - 1,
            preemptions,
            held_ms: ms(engine.held().since(held)),
            promise: None,
            beams: Some(BeamRounds { rounds, ..searched }),
            ..first
        }
    }
}

/// The likeliest tokens behind one beam.
async fn told(stream: &mut Stream, sum: &mut Sum) -> Result<Vec<(TokenId, f32)>, RequestError> {
    let mut likeliest = None;
    loop {
        match stream.recv().await {
            Some(Output::Token { logprob, .. }) => likeliest = logprob.map(|logprob| logprob.top),
            Some(Output::Done { usage, timings }) => {
                sum.preemptions += timings.preemptions;
                if sum.rounds == 0 {
                    (sum.usage, sum.first) = (usage, timings);
                } else {
                    sum.searched.rows += timings.prefill_tokens;
                    sum.searched.tokens += 1;
                }
                return likeliest.ok_or(RequestError::Internal);
            }
            Some(Output::Failed(error)) => return Err(error),
            Some(_) => {}
            // An engine that is gone sends nothing more, not even an error.
            None => return Err(RequestError::Internal),
        }
    }
}

/// An answer, as one that was written token by token.
fn send(engine: &Arc<dyn Observe>, request: &ValidatedRequest, outlet: &Outlet, index: usize, complete: Complete) {
    let Complete { beam, reason, .. } = complete;
    let mut detokenizer = engine.model().tokenizer.as_ref().map(|tokenizer| {
        let stop = StopStrings { strings: Vec::new(), include: false };
        Detokenizer::new(tokenizer.clone(), &stop, request.skip_special_tokens).showing(request.shown_tokens.clone())
    });
    let stops = matches!(reason, FinishReason::Stop(_)) && !request.include_stop_string;
    let last = beam.tokens.len() - 1;
    let mut logprobs = beam.logprobs.into_iter();
    for (at, &token) in beam.tokens.iter().enumerate() {
        let text = match &mut detokenizer {
            // A stop token's own text is not part of the answer, unless asked for.
            Some(detokenizer) if !(stops && at == last) => detokenizer.push_unstoppable(token),
            _ => String::new(),
        };
        outlet.send(Output::Token { answer: index, token, text, logprob: logprobs.next() });
    }
    let text = detokenizer.map_or_else(String::new, |mut detokenizer| detokenizer.finish());
    outlet.send(Output::Finished { answer: index, reason, stop_string: None, text });
}
