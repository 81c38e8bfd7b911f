//! The hallway itself: plan, lower, forward, sample, complete, deliver. One thread owns an [`EngineCore`]; nothing here
//! blocks or waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::detokenizer::{Detokenizer, Piece, StopStrings};
use model::sampler::{History, SampleKey, Sampled, Sampler, TokenLogProbs};
use model::tokenizer::Tokenizer;
use model::{Batch, Forward, Logits};
use scheduler::{
    AdmitError, CostModel, Event, FinishReason, Nanos, Outlook, Preempted, Request, RequestId, RowOutput, Scheduler,
    Sequence, Step, StepOutput, StepRecord, TokenId,
};
use sim::report::Outcome;

use crate::books::Ending;
use crate::door::ValidatedRequest;
use crate::live::{End, Ended, InScene, KvMap, MAP_EVERY, SCENE_EVERY, Scene};
use crate::lower::{LogitRow, lower};
use crate::output::{Outlet, Output, RequestError, Timings, TokenLogprob, Usage};
use crate::past::{Asked, Moving, count_token};
use crate::record::{Met, Stats, StepLog};
use crate::recording::{Line, Tape};
use crate::start::EngineOptions;
use crate::tiers::Tiers;
use crate::waiting::QueuePlace;

/// How long the engine's thread waits for a block when it has nothing else to do, before it looks for commands again.
const LOAD_WAIT: Duration = Duration::from_millis(5);

/// Monotonic time since the engine started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.0.elapsed().as_nanos() as u64)
    }
}

/// An admitted request: what the scheduler does not need to know of it.
struct Active {
    request: ValidatedRequest,
    seed: u64,
    outputs: Outlet,
    answers: Vec<Answer>,
    prompt_logprobs: Vec<Option<TokenLogprob>>,
    arrived: Nanos,
    /// As [`Moving`] has it.
    arrived_moving: Nanos,
    first_scheduled: Option<Nanos>,
    first_token: Option<Nanos>,
    last_token: Option<Nanos>,
    usage: Usage,
    timings: Timings,
}

impl Active {
    fn cancelled(&self) -> Cancelled {
        Cancelled { waiting: self.first_scheduled.is_none().then(|| self.request.place()) }
    }

    /// What is told of it when it is over.
    fn ended(&self, request: RequestId, end: End, at: Nanos) -> Ended {
        let first_token = self.first_token;
        let slowest = first_token.map_or(0.0, |first| slowest_ms(&self.answers, first));
        Ended {
            request,
            at,
            end,
            ttft_ms: first_token.map(|first| first.since(self.arrived).as_secs_f64() * 1e3),
            tpot_ms: Some(slowest).filter(|&ms| ms > 0.0),
            prompt_tokens: self.usage.prompt_tokens,
            generated: self.usage.completion_tokens,
            cached: self.usage.cached_tokens,
        }
    }
}

/// One of a request's answers.
struct Answer {
    detokenizer: Option<Detokenizer>,
    history: History,
    logprob: Option<TokenLogprob>,
    num_tokens: usize,
    last_token: Option<Nanos>,
    /// When its tokens came, without what the engine was held.
    outcome: Outcome,
    reason: Option<FinishReason>,
}

/// Everything that a step touches.
pub(crate) struct EngineCore {
    scheduler: Scheduler,
    forward: Box<dyn Forward>,
    tiers: Option<Tiers>,
    tokenizer: Option<Arc<Tokenizer>>,
    sampler: Sampler,
    active: BTreeMap<RequestId, Active>,
    log: Arc<Mutex<StepLog>>,
    tape: Option<Tape>,
    next_seed: u64,
    /// Since when somebody holds the engine.
    held_at: Option<Nanos>,
    moving: Moving,
    // Kept between steps for their memory.
    batch: Batch,
    logit_rows: Vec<LogitRow>,
    logit_row: Vec<f32>,
    output: StepOutput,
    step: Step,
    events: Vec<Event>,
    record: StepRecord,
    failed: Vec<RequestId>,
    overfull: Vec<RequestId>,
    started: Vec<QueuePlace>,
}

/// What the engine's thread learns from a step.
#[derive(Debug, Default)]
pub(crate) struct StepNews {
    /// Places of the requests that left the queue in this step.
    pub(crate) started: Vec<QueuePlace>,
    /// Requests that ended.
    pub(crate) ended: usize,
}

impl EngineCore {
    pub(crate) fn new(
        scheduler: Scheduler,
        forward: Box<dyn Forward>,
        tokenizer: Option<Arc<Tokenizer>>,
        options: &EngineOptions,
        log: Arc<Mutex<StepLog>>,
    ) -> EngineCore {
        let vocab = forward.config().vocab_size;
        EngineCore {
            scheduler,
            forward,
            tiers: None,
            tokenizer,
            sampler: Sampler::new(vocab),
            active: BTreeMap::new(),
            log,
            tape: None,
            next_seed: options.seed,
            held_at: None,
            moving: Moving::default(),
            batch: Batch::default(),
            logit_rows: Vec::new(),
            logit_row: vec![0.0; vocab],
            output: StepOutput::default(),
            step: Step::default(),
            events: Vec::new(),
            record: StepRecord::default(),
            failed: Vec::new(),
            overfull: Vec::new(),
            started: Vec::new(),
        }
    }

    /// From now on everything that the scheduler hears is told to `tape`.
    pub(crate) fn record_to(&mut self, tape: Option<Tape>) {
        self.tape = tape;
    }

    fn tell(&mut self, line: impl FnOnce() -> Line) {
        if let Some(tape) = &mut self.tape {
            tape(line());
        }
    }

    /// Takes a request in. On an error nothing was kept.
    pub(crate) fn admit(
        &mut self,
        id: RequestId,
        mut request: ValidatedRequest,
        arrived: Nanos,
        outputs: Outlet,
        now: Nanos,
    ) -> Result<(), AdmitError> {
        let asked = Request {
            id,
            prompt: request.prompt.clone(),
            num_answers: request.num_answers,
            stop: request.stop.clone(),
            priority: request.priority,
            salt: request.salt,
            use_prefix_cache: request.prompt_logprobs.is_none(),
            tenant: request.tenant,
            targets: request.targets,
            arrived,
        };
        self.scheduler.admit(asked.clone(), now)?;
        self.log().books.open(&asked);
        let seed = request.seed.unwrap_or_else(|| {
            self.next_seed = self.next_seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            self.next_seed
        });
        request.seed = Some(seed);
        self.tell(|| Line::Admit { id, request: Box::new(request.clone()), arrived, now });
        let answers = (0..request.num_answers).map(|_| self.new_answer(&request)).collect();
        let usage = Usage { prompt_tokens: request.prompt.len(), ..Usage::default() };
        let active = Active {
            request,
            seed,
            outputs,
            answers,
            prompt_logprobs: Vec::new(),
            arrived,
            arrived_moving: self.moving.at(arrived),
            first_scheduled: None,
            first_token: None,
            last_token: None,
            usage,
            timings: Timings::default(),
        };
        self.active.insert(id, active);
        Ok(())
    }

    fn new_answer(&self, request: &ValidatedRequest) -> Answer {
        let detokenizer = self.tokenizer.as_ref().map(|tokenizer| {
            let stop = StopStrings { strings: request.stop_strings.clone(), include: request.include_stop_string };
            Detokenizer::new(tokenizer.clone(), &stop, request.skip_special_tokens)
        });
        // Only penalties look at it.
        let history = if request.sampling.needs_history() { History::new(&request.prompt) } else { History::default() };
        Answer {
            detokenizer,
            history,
            logprob: None,
            num_tokens: 0,
            last_token: None,
            outcome: Outcome::default(),
            reason: None,
        }
    }

    /// Forgets a request; its blocks are free within one step. Returns whether it had left the queue.
    pub(crate) fn cancel(&mut self, id: RequestId, now: Nanos) -> Option<Cancelled> {
        let active = self.active.remove(&id)?;
        self.scheduler.abort(id);
        self.tell(|| Line::Cancel(id, now));
        let mut log = self.log();
        log.stats.finished_cancelled += 1;
        log.books.close(id, Ending::Cancelled, now);
        log.ended(active.ended(id, End::Cancelled, now));
        self.remember(id, &active, &mut log);
        self.gauge(&mut log.stats);
        drop(log);
        Some(active.cancelled())
    }

    /// Somebody holds the engine from `now` on. The caller makes no step until [`EngineCore::resume`].
    pub(crate) fn pause(&mut self, now: Nanos) {
        self.held_at = Some(now);
        self.moving.pause(now);
        self.log().books.pause(now);
        self.tell(|| Line::Pause(now));
    }

    /// It moves again; no request is late because of the time in between.
    pub(crate) fn resume(&mut self, now: Nanos) {
        let Some(held_at) = self.held_at.take() else { return };
        self.moving.resume(now);
        self.log().books.resume(now);
        self.scheduler.note_hold(held_at, now);
        self.tell(|| Line::Resume(now));
    }

    /// Anything admitted and unfinished.
    pub(crate) fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    /// Blocks that leave the KV cache live on in `tiers`. Before the first request.
    pub(crate) fn set_tiers(&mut self, tiers: Tiers) {
        self.scheduler.set_tiers(tiers.sizes());
        self.tiers = Some(tiers);
    }

    /// One forward pass: the sentence that the whole engine is. False if there was nothing to compute yet. `clock` is asked
    /// twice: for the plan, and for its end.
    pub(crate) fn step(&mut self, clock: &mut dyn Iterator<Item = Nanos>, news: &mut StepNews) -> bool {
        let mut now = || clock.next().expect("time goes on");
        if let Some(tiers) = &mut self.tiers {
            tiers.settle(&mut *self.forward, &mut self.scheduler);
        }
        let planned = now();
        self.scheduler.schedule_into(planned, &mut self.step);
        self.transfer();
        if self.step.is_empty() {
            self.tell(|| Line::Idle(planned));
            return false;
        }
        self.lower();
        let logits = self.forward();
        self.sample(&logits);
        let now = now();
        self.scheduler.complete_into(&self.output, now, &mut self.events, &mut self.record);
        if let Some(tape) = &mut self.tape {
            let tokens = self.output.rows.iter().map(|row| row.tokens.clone()).collect();
            tape(Line::Step(Box::new(self.record.clone()), tokens));
        }
        self.write_down();
        self.deliver(now, news);
        self.fail_requests(now, news);
        self.end_unread(now, news);
        news.started.append(&mut self.started);
        true
    }

    /// Moves the blocks that the step wants moved. With nothing to compute, waits for one that is on its way.
    fn transfer(&mut self) {
        let Some(tiers) = &mut self.tiers else { return };
        tiers.transfer(&self.step, &mut *self.forward, &mut self.scheduler);
        if self.step.is_empty() && self.scheduler.is_loading() {
            tiers.wait(LOAD_WAIT);
        }
    }

    fn lower(&mut self) {
        let scores = |sequence: &Sequence| {
            self.active.get(&sequence.request_id()).is_some_and(|active| active.request.prompt_logprobs.is_some())
        };
        lower(&self.step, &self.scheduler, scores, &mut self.batch, &mut self.logit_rows);
    }

    fn forward(&mut self) -> Logits {
        if !self.step.copies.is_empty() {
            let copies: Vec<_> = self.step.copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect();
            self.forward.copy_blocks(&copies);
        }
        let ticket = self.forward.launch(&self.batch);
        self.forward.wait(ticket)
    }

    /// Draws a token from every row that ended its known tokens, and judges the prompts that want it.
    fn sample(&mut self, logits: &Logits) {
        self.output.step = self.step.id;
        self.output.rows.clear();
        for row in 0..self.logit_rows.len() {
            if self.logit_rows[row].scores {
                self.score_row(row, logits);
            }
            if self.logit_rows[row].samples > 0 {
                self.sample_row(row, logits);
            }
        }
    }

    fn sample_row(&mut self, row: usize, logits: &Logits) {
        let LogitRow { seq, position, samples, .. } = self.logit_rows[row];
        let sequence = self.scheduler.sequence(seq).expect("a planned sequence lives until its step completes");
        let (id, first_answer) = (sequence.request_id(), sequence.answer());
        // A request that was cancelled while its step was planned has nobody to tell.
        let mut tokens = Vec::with_capacity(samples);
        for index in first_answer..first_answer + samples {
            let Some(active) = self.active.get_mut(&id) else {
                tokens.push(0);
                continue;
            };
            let (answer, stop, params) = (&mut active.answers[index], &active.request.stop, &active.request.sampling);
            let banned: &[TokenId] = if answer.num_tokens < stop.min_tokens { &stop.stop_token_ids } else { &[] };
            let key = SampleKey { seed: active.seed, stream: index as u32, position: position as u64 + 1 };
            self.forward.read_logits(logits, row, &mut self.logit_row);
            match self.sampler.sample(&mut self.logit_row, params, &answer.history, banned, key) {
                Ok(Sampled { token, logprob, top }) => {
                    answer.logprob = params.logprobs.map(|_| TokenLogprob { token, logprob, top });
                    tokens.push(token);
                }
                Err(_) => {
                    // The plan needs some token; the request ends before anybody sees it.
                    self.failed.push(id);
                    tokens.push(0);
                }
            }
        }
        self.output.rows.push(RowOutput { seq, tokens });
    }

    /// The log probability of the prompt token after this row, for a request that asked.
    fn score_row(&mut self, row: usize, logits: &Logits) {
        let LogitRow { seq, position, .. } = self.logit_rows[row];
        let sequence = self.scheduler.sequence(seq).expect("a planned sequence lives until its step completes");
        let id = sequence.request_id();
        let Some(active) = self.active.get_mut(&id) else { return };
        let (Some(top), prompt) = (active.request.prompt_logprobs, &active.request.prompt) else { return };
        if position == 0 {
            active.prompt_logprobs = vec![None];
        }
        // Rows that come again after a preemption have been judged.
        let next = position + 1;
        if next < prompt.len() && active.prompt_logprobs.len() == next {
            self.forward.read_logits(logits, row, &mut self.logit_row);
            match self.sampler.log_probs_of(&self.logit_row, prompt[next], top as usize) {
                Ok(TokenLogProbs { logprob, top, .. }) => {
                    active.prompt_logprobs.push(Some(TokenLogprob { token: prompt[next], logprob, top }));
                }
                Err(_) => self.failed.push(id),
            }
        }
        if active.prompt_logprobs.len() == prompt.len() {
            active.request.prompt_logprobs = None;
            active.outputs.send(Output::PromptLogprobs(std::mem::take(&mut active.prompt_logprobs)));
        }
    }

    /// The step's record goes to the log, and to the requests whose rows it carried.
    fn write_down(&mut self) {
        let record = &mut self.record;
        let (mut prompt_tokens, mut cached_tokens) = (0, 0);
        for row in &record.prefill {
            let Some(active) = self.active.get_mut(&row.request) else { continue };
            if active.first_scheduled.is_none() {
                active.first_scheduled = Some(record.scheduled_at);
                active.usage.cached_tokens = row.cached_tokens;
                active.timings.cached_tokens = row.cached_tokens;
                prompt_tokens += active.usage.prompt_tokens as u64;
                cached_tokens += row.cached_tokens as u64;
                self.started.push(active.request.place());
            }
            active.timings.prefill_tokens += row.len;
        }
        for row in &record.decode {
            let Some(active) = self.active.get_mut(&row.request) else { continue };
            active.timings.decode_steps += 1;
            active.timings.decode_context_tokens += row.start as u64 + 1;
        }
        for preempted in &record.preempted {
            let Preempted { request, tokens, verdict } = preempted;
            tracing::info!(
                request = request.0,
                tokens,
                fate = ?verdict.fate,
                reason = ?verdict.reason,
                swap_ms = verdict.swap.as_secs_f64() * 1e3,
                recompute_ms = verdict.recompute.as_secs_f64() * 1e3,
                "preempted: the KV cache is full"
            );
            if let Some(active) = self.active.get_mut(request) {
                active.timings.preemptions += 1;
            }
        }
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.books.step(record, self.scheduler.cost_model());
        log.fill.observe(record.completed_at, self.scheduler.used_blocks());
        log.push(record, &self.moving);
        log.stats.prompt_tokens += prompt_tokens;
        log.stats.cached_tokens += cached_tokens;
        self.gauge(&mut log.stats);
    }

    /// The gauges as they are now.
    fn gauge(&self, stats: &mut Stats) {
        stats.used_blocks = self.scheduler.used_blocks();
        stats.cached_blocks = self.scheduler.cached_blocks();
        let prefix = self.scheduler.prefix_stats();
        stats.prefix_queries = prefix.queried_tokens;
        stats.prefix_hits = prefix.hit_tokens;
        stats.swap = self.scheduler.swap_stats();
    }

    fn log(&self) -> std::sync::MutexGuard<'_, StepLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns events into text and sends them to whoever asked.
    fn deliver(&mut self, now: Nanos, news: &mut StepNews) {
        let mut events = std::mem::take(&mut self.events);
        for (index, event) in events.iter().enumerate() {
            match *event {
                Event::Token { request, answer, token } => {
                    // A stop token's own text is not part of the answer, unless asked for.
                    let is_stop = matches!(events.get(index + 1),
                        Some(&Event::Finished { request: r, answer: a, reason: FinishReason::Stop(Some(_)) })
                            if r == request && a == answer);
                    self.deliver_token(request, answer, token, is_stop, now);
                }
                Event::Finished { request, answer, reason } => self.finish_answer(request, answer, reason, None),
            }
            let (Event::Token { request, .. } | Event::Finished { request, .. }) = *event;
            self.finish_request(request, now, news);
        }
        events.clear();
        self.events = events;
    }

    fn deliver_token(&mut self, id: RequestId, index: usize, token: TokenId, is_stop: bool, now: Nanos) {
        let Some(active) = self.active.get_mut(&id) else { return };
        let answer = &mut active.answers[index];
        if answer.reason.is_some() || self.failed.contains(&id) {
            return;
        }
        answer.num_tokens += 1;
        count_token(&mut answer.outcome, self.moving.at(now));
        active.usage.completion_tokens += 1;
        active.first_token.get_or_insert(now);
        active.last_token = Some(now);
        if active.request.sampling.needs_history() {
            answer.history.push(token);
        }
        let gap = answer.last_token.replace(now).map(|before| now.since(before).as_secs_f64());
        active.timings.decode_tokens += usize::from(gap.is_some());
        let withhold = is_stop && !active.request.include_stop_string;
        let piece = match &mut answer.detokenizer {
            // Before `min_tokens` a stop string is text like any other.
            Some(detokenizer) if answer.num_tokens <= active.request.stop.min_tokens => {
                Piece { text: detokenizer.push_unstoppable(token), stopped: None }
            }
            Some(detokenizer) if !withhold => detokenizer.push(token),
            _ => Default::default(),
        };
        let logprob = answer.logprob.take();
        active.outputs.send(Output::Token { answer: index, token, text: piece.text, logprob });
        if active.outputs.is_overfull() {
            self.overfull.push(id);
        }
        self.log().token(gap);
        if let Some(stop_string) = piece.stopped {
            self.scheduler.stop(id, index);
            self.tell(|| Line::Stop(id, index));
            self.finish_answer(id, index, FinishReason::Stop(None), Some(stop_string));
        }
    }

    fn finish_answer(&mut self, id: RequestId, index: usize, reason: FinishReason, stop_string: Option<usize>) {
        let Some(active) = self.active.get_mut(&id) else { return };
        let answer = &mut active.answers[index];
        if answer.reason.is_some() || self.failed.contains(&id) {
            return;
        }
        answer.reason = Some(reason);
        self.log.lock().unwrap_or_else(PoisonError::into_inner).books.end_answer(id, index);
        let text = match &mut answer.detokenizer {
            Some(detokenizer) if stop_string.is_none() => detokenizer.finish(),
            _ => String::new(),
        };
        active.outputs.send(Output::Finished { answer: index, reason, stop_string, text });
    }

    fn finish_request(&mut self, id: RequestId, now: Nanos, news: &mut StepNews) {
        let finished = |active: &Active| active.answers.iter().all(|answer| answer.reason.is_some());
        if !self.active.get(&id).is_some_and(finished) {
            return;
        }
        let Some(mut active) = self.active.remove(&id) else { return };
        let ms = |from: Nanos, to: Nanos| to.since(from).as_secs_f64() * 1e3;
        let first_scheduled = active.first_scheduled.unwrap_or(now);
        let first_token = active.first_token.unwrap_or(now);
        active.timings.queue_ms = ms(active.arrived, first_scheduled);
        active.timings.prefill_ms = ms(first_scheduled, first_token);
        active.timings.ttft_ms = ms(active.arrived, first_token);
        active.timings.decode_ms = ms(first_token, active.last_token.unwrap_or(first_token));
        active.timings.total_ms = ms(active.arrived, now);
        *active.timings.bill = self.log().books.close(id, Ending::Finished, now);
        let reasons: Vec<_> = active.answers.iter().filter_map(|answer| answer.reason).collect();
        let met = Met::of(&active.request.targets, &active.timings, slowest_ms(&active.answers, first_token));
        let end = reasons.last().map_or(End::Cancelled, |&reason| End::Finished(reason));
        let mut log = self.log();
        log.finished(&active.usage, &active.timings, &reasons);
        log.met(active.request.class, met);
        log.ended(active.ended(id, end, now));
        self.remember(id, &active, &mut log);
        drop(log);
        news.ended += 1;
        active.outputs.send(Output::Done { usage: active.usage, timings: active.timings });
    }

    /// For those who ask what would have been: lengths and moments, and nothing that could be read.
    fn remember(&self, id: RequestId, active: &Active, log: &mut StepLog) {
        let asked = Asked::of(id, &active.request, active.arrived_moving, self.scheduler.limits().block_size);
        for (index, answer) in active.answers.iter().enumerate() {
            log.history.note_answer(&asked, index, answer.outcome);
        }
    }

    /// Ends the requests whose rows were not numbers, and nobody else.
    fn fail_requests(&mut self, now: Nanos, news: &mut StepNews) {
        for id in std::mem::take(&mut self.failed) {
            if let Some(active) = self.active.remove(&id) {
                self.scheduler.abort(id);
                self.tell(|| Line::Failed(id));
                news.ended += 1;
                let mut log = self.log();
                log.stats.finished_error += 1;
                log.books.close(id, Ending::Failed, now);
                log.ended(active.ended(id, End::Failed, now));
                self.gauge(&mut log.stats);
                drop(log);
                active.outputs.send(Output::Failed(RequestError::NanLogits));
            }
        }
    }

    /// Ends the requests whose clients are too far behind.
    fn end_unread(&mut self, now: Nanos, news: &mut StepNews) {
        for id in std::mem::take(&mut self.overfull) {
            let Some(active) = self.active.get(&id) else { continue };
            active.outputs.send(Output::Failed(RequestError::Unread));
            self.cancel(id, now);
            news.ended += 1;
        }
    }

    /// Ends every request with `error`: the last resort, when a step panicked or the engine stops.
    pub(crate) fn fail_all(&mut self, error: RequestError, now: Nanos) -> Vec<Cancelled> {
        let all = std::mem::take(&mut self.active);
        let mut log = self.log();
        log.stats.finished_error += all.len() as u64;
        for (&id, active) in &all {
            log.books.close(id, Ending::Failed, now);
            log.ended(active.ended(id, End::Failed, now));
        }
        drop(log);
        all.into_values()
            .map(|active| {
                active.outputs.send(Output::Failed(error));
                active.cancelled()
            })
            .collect()
    }

    /// After a panic the plan in flight is void: a new scheduler starts with an empty cache and empty tiers.
    pub(crate) fn replace_scheduler(&mut self, scheduler: Scheduler) {
        self.scheduler = scheduler;
        if let Some(tiers) = &mut self.tiers {
            tiers.start_over();
            self.scheduler.set_tiers(tiers.sizes());
        }
        let cost = self.cost_model();
        self.tell(|| Line::Restart(cost));
        self.output.rows.clear();
        self.events.clear();
        self.failed.clear();
        self.overfull.clear();
        self.started.clear();
    }

    /// Tells other threads who is in line for prefill.
    pub(crate) fn look_ahead(&self, now: Nanos, outlook: &Mutex<Outlook>) {
        if self.scheduler.cost_model().is_some() {
            let mut outlook = outlook.lock().unwrap_or_else(PoisonError::into_inner);
            self.scheduler.outlook_into(now, &mut outlook);
        }
    }

    /// Shows who waits and who runs, unless that was done a moment ago; not while somebody looks.
    pub(crate) fn show(&self, now: Nanos, scene: &Mutex<Scene>) {
        if let Ok(mut scene) = scene.try_lock()
            && now.since(scene.at) >= SCENE_EVERY
        {
            self.fill(now, &mut scene);
        }
    }

    /// The same, whatever it takes: before the engine's thread waits.
    pub(crate) fn show_now(&self, now: Nanos, scene: &Mutex<Scene>) {
        self.fill(now, &mut scene.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Shows what the blocks of the cache are used for, unless that was done a moment ago or somebody looks. Who holds the
    /// engine sees every step.
    pub(crate) fn show_map(&self, now: Nanos, always: bool, map: &Mutex<KvMap>) {
        let Ok(mut map) = map.try_lock() else { return };
        if always || now.since(map.at) >= MAP_EVERY {
            map.at = now;
            map.step = self.log().stats.steps.saturating_sub(1);
            self.scheduler.block_uses_into(&mut map.uses);
        }
    }

    fn fill(&self, now: Nanos, scene: &mut Scene) {
        let one = |sequence: &Sequence| {
            let request = sequence.request_id();
            let active = self.active.get(&request)?;
            let waits = sequence.block_table().is_empty();
            Some(InScene {
                request,
                answer: sequence.answer(),
                waits,
                since: if waits { active.arrived } else { active.first_scheduled.unwrap_or(active.arrived) },
                prompt_tokens: active.usage.prompt_tokens,
                computed: sequence.num_computed(),
                generated: active.answers[sequence.answer()].num_tokens,
            })
        };
        scene.fill(now, self.scheduler.sequences().filter_map(one));
    }

    /// The calling thread is the one that steps from now on.
    pub(crate) fn adopt_thread(&self) {
        self.forward.adopt_thread();
    }

    pub(crate) fn limits(&self) -> &scheduler::Limits {
        self.scheduler.limits()
    }

    pub(crate) fn cost_model(&self) -> Option<CostModel> {
        self.scheduler.cost_model().cloned()
    }
}

/// The longest mean time between tokens of an answer, milliseconds; 0 where none has two.
fn slowest_ms(answers: &[Answer], first_token: Nanos) -> f64 {
    let mean = |answer: &Answer| {
        let gaps = answer.num_tokens.saturating_sub(1);
        let last = answer.last_token.filter(|_| gaps > 0)?;
        Some(last.since(first_token).as_secs_f64() * 1e3 / gaps as f64)
    };
    answers.iter().filter_map(mean).fold(0.0, f64::max)
}

/// What a request that was removed had been.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cancelled {
    /// Its place in the queue, if it was still there.
    pub(crate) waiting: Option<QueuePlace>,
}
