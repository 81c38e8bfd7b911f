//! Doing it again: the recorded inputs at the recorded times, and whether the same comes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::recording::{AdmitEntry, Entry, OfferEntry, StepEntry};
use protocol::{FinishReason, Nanos, Priority, RequestId, StopRules, Targets, TokenId};
use scheduler::{CostModel, Request, RowOutput, Rows, Scheduler, Sequence, Step, StepOutput, StepRecord, TokenEvent};

use crate::read::{Recording, RecordingError};

/// What a replay came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// Steps that were the same.
    pub steps: u64,
    /// Requests admitted.
    pub requests: u64,
    /// Tokens that the steps gave.
    pub tokens: u64,
    /// From the first to the last moment of the recording, seconds.
    pub seconds: f64,
    /// Where it first went another way; nothing after that was looked at.
    pub difference: Option<Difference>,
    /// `|predicted - taken| / taken` of the steps whose time was predicted and is their own, by [`Replayed::KINDS`]: the
    /// machine did next to nothing for others meanwhile.
    pub errors: [Vec<f64>; 3],
    /// All steps whose time was predicted, by the same.
    pub predicted: [u64; 3],
    /// The recording has no end: the engine was killed, the disk was full, or the file was truncated.
    pub was_cut_off: bool,
}

/// The first thing that is not as recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Line of the file.
    pub line: usize,
    /// The step, if it is about one.
    pub step: Option<u64>,
    /// Each thing that differs, as recorded and as replayed.
    pub what: Vec<(String, String, String)>,
}

impl Difference {
    /// `recorded` and what came instead; both lines are about the same moment.
    pub(crate) fn between(recorded: &Entry, replayed: Option<&Entry>) -> Difference {
        if let (Entry::Step(recorded), Some(Entry::Step(replayed))) = (recorded, replayed) {
            return Difference { line: 0, step: Some(recorded.n), what: differences(recorded, replayed) };
        }
        let text = |entry: &Entry| serde_json::to_string(entry).expect("it was read or is to be written");
        let step = if let Entry::Step(step) = recorded { Some(step.n) } else { None };
        let what = (String::from("what comes"), text(recorded), replayed.map_or_else(|| "nothing".into(), text));
        Difference { line: 0, step, what: vec![what] }
    }
}

impl Replayed {
    /// Kinds of steps: those that only decode, those that also verify drafts, those that read prompts.
    pub const KINDS: [&str; 3] = ["decode", "verify", "prompts"];

    /// One more entry that was the same.
    pub(crate) fn count(&mut self, entry: &Entry, first: &mut Option<u64>) {
        let moment = match entry {
            Entry::Admit(entry) => {
                self.requests += 1;
                entry.now
            }
            Entry::Step(step) => {
                self.steps += 1;
                self.tokens += step.tokens.iter().map(Vec::len).sum::<usize>() as u64;
                let predicted = step.predicted().as_secs_f64();
                if predicted > 0.0 {
                    let kind = if step.reads_prompts() { 2 } else { usize::from(!step.drafts.is_empty()) };
                    let took = step.undisturbed().map(Nanos::as_secs_f64).filter(|took| *took > 0.0);
                    self.predicted[kind] += 1;
                    self.errors[kind].extend(took.map(|took| (predicted - took).abs() / took));
                }
                step.to
            }
            _ => return,
        };
        let first = Nanos(*first.get_or_insert(moment));
        self.seconds = self.seconds.max(Nanos(moment).since(first).as_secs_f64());
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.step {
            Some(step) => write!(f, "step {step} (line {}) differs", self.line)?,
            None => write!(f, "line {} differs", self.line)?,
        }
        for (name, recorded, replayed) in &self.what {
            write!(f, "; {name}: recorded {}, replayed {}", shown(recorded), shown(replayed))?;
        }
        Ok(())
    }
}

/// The beginning of what may be megabytes.
fn shown(text: &str) -> String {
    const MOST: usize = 200;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
        None => text.to_string(),
    }
}

/// Feeds the recording to a scheduler and compares each step's record. The tokens are taken from the recording.
/// `tell` receives what clients would receive, with the time, and each request as it is admitted.
pub fn replay(mut recording: Recording, tell: &mut dyn FnMut(ReplayEvent<'_>)) -> Result<Replayed, RecordingError> {
    let mut replaying = Replaying::new(&recording);
    let (mut replayed, mut first) = (Replayed::default(), None);
    while let Some(entry) = recording.next()? {
        if let Some(difference) = replaying.take(&entry, &recording, tell)? {
            replayed.difference = Some(Difference { line: recording.line(), ..difference });
            return Ok(replayed);
        }
        replayed.count(&entry, &mut first);
    }
    replayed.was_cut_off = !recording.has_end;
    Ok(replayed)
}

/// What happens in a replay, as clients and readers of the log would hear of it.
#[derive(Clone, Copy, Debug)]
pub enum ReplayEvent<'a> {
    /// A request was admitted.
    Admitted(&'a Request),
    /// An answer is complete. If it is the request's last, that has ended too.
    AnswerEnded(RequestId, usize, FinishReason),
    /// A request has all of its answers, was cancelled, or failed.
    Ended(RequestId),
    /// Drafts were on offer in the step that is reported next.
    Offered(&'a [OfferEntry]),
    /// A step was the same, and what predicts the next one. Reported before the ends that came of it.
    Step(&'a StepRecord, Option<&'a CostModel>),
}

/// In the place of an answer's tokens: it is complete.
const ENDED: usize = usize::MAX;

struct Replaying {
    scheduler: Scheduler,
    /// Tokens of each answer of the open requests: what must not be asked of the scheduler is seen here.
    open: BTreeMap<u64, Vec<usize>>,
    step: Step,
    output: StepOutput,
    events: Vec<TokenEvent>,
    record: StepRecord,
}

impl Replaying {
    fn new(recording: &Recording) -> Replaying {
        let mut scheduler = Scheduler::new(recording.header.limits()).expect("its limits were checked");
        scheduler.set_cost_model(recording.header.cost());
        scheduler.set_drafting_cost(recording.header.drafting());
        Replaying {
            scheduler,
            open: BTreeMap::new(),
            step: Step::default(),
            output: StepOutput::default(),
            events: Vec::new(),
            record: StepRecord::default(),
        }
    }

    /// One entry. `Ok(Some)`: it is not as recorded; the line is filled in by the caller.
    fn take(
        &mut self,
        entry: &Entry,
        recording: &Recording,
        tell: &mut dyn FnMut(ReplayEvent<'_>),
    ) -> Result<Option<Difference>, RecordingError> {
        match *entry {
            Entry::Admit(ref entry) => self.admit(entry, recording, tell)?,
            Entry::Cancel(id, _) => {
                self.open.remove(&id);
                if !self.scheduler.abort(RequestId(id)) {
                    return Err(recording.wrong(format!("there is no open request {id}")));
                }
                tell(ReplayEvent::Ended(RequestId(id)));
            }
            Entry::Stop(id, answer) => {
                let tokens = self.open.get(&id).and_then(|answers| answers.get(answer));
                if !tokens.is_some_and(|&tokens| tokens > 0 && tokens != ENDED) {
                    return Err(recording.wrong(format!("answer {answer} of request {id} has no text to stop")));
                }
                self.scheduler.stop(RequestId(id), answer);
                self.ended(RequestId(id), answer, FinishReason::Stop(None), tell);
            }
            Entry::Idle(now) => {
                self.scheduler.schedule_into(Nanos(now), &mut self.step);
                if !self.step.is_empty() {
                    let what = vec![("plan".into(), "no rows".into(), format!("{} rows", self.step.num_rows()))];
                    return Ok(Some(Difference { line: 0, step: None, what }));
                }
            }
            Entry::Step(ref entry) => return self.step(entry, recording, tell),
            Entry::Abandoned(now, ref offers) => {
                self.offer(offers);
                self.scheduler.schedule_into(Nanos(now), &mut self.step);
                self.scheduler.abandon(self.step.id);
            }
            Entry::Restart { ref cost } => {
                let cost = cost.as_ref().map(|cost| cost.model().map_err(|problem| recording.wrong(problem)));
                let mut scheduler = Scheduler::new(recording.header.limits()).expect("its limits were checked");
                scheduler.set_cost_model(cost.transpose()?);
                scheduler.set_drafting_cost(recording.header.drafting());
                self.scheduler = scheduler;
                for (id, _) in std::mem::take(&mut self.open) {
                    tell(ReplayEvent::Ended(RequestId(id)));
                }
            }
            Entry::End => unreachable!("the reader keeps it"),
        }
        Ok(None)
    }

    fn admit(
        &mut self,
        entry: &AdmitEntry,
        recording: &Recording,
        tell: &mut dyn FnMut(ReplayEvent<'_>),
    ) -> Result<(), RecordingError> {
        let request = asked(entry);
        tell(ReplayEvent::Admitted(&request));
        let generated: Vec<_> = entry.generated.iter().map(Option::as_deref).collect();
        if !generated.is_empty() && generated.len() != entry.n {
            return Err(recording.wrong(format!("request {}: `generated` has not one entry for each answer", entry.id)));
        }
        let admitted = match generated.iter().any(Option::is_some) {
            true => self.scheduler.resume(request, &generated, Nanos(entry.now)),
            false => self.scheduler.admit(request),
        };
        admitted.map_err(|error| recording.wrong(format!("request {}: {error}", entry.id)))?;
        let tokens = |generated: &Option<&[TokenId]>| generated.map_or(ENDED, |_| 0);
        let open = if generated.is_empty() { vec![0; entry.n] } else { generated.iter().map(tokens).collect() };
        self.open.insert(entry.id, open);
        Ok(())
    }

    fn step(
        &mut self,
        recorded: &StepEntry,
        recording: &Recording,
        tell: &mut dyn FnMut(ReplayEvent<'_>),
    ) -> Result<Option<Difference>, RecordingError> {
        let (from, to) = (Nanos(recorded.from), Nanos(recorded.to));
        self.offer(&recorded.offers);
        self.scheduler.schedule_into(from, &mut self.step);
        if self.step.is_empty() {
            let what = vec![("plan".into(), "rows".into(), "no rows".into())];
            return Ok(Some(Difference { line: 0, step: Some(recorded.n), what }));
        }
        self.scheduler.set_drafting_time(recorded.drafting_took());
        let failed: Vec<RequestId> = recorded.failed.iter().copied().map(RequestId).collect();
        let request = |seq| self.scheduler.sequence(seq).map(Sequence::request_id);
        let stands = |rows: &Rows| rows.samples > 0 && request(rows.seq).is_none_or(|id| !failed.contains(&id));
        self.output.step = self.step.id;
        self.output.rows.clear();
        for (index, Rows { seq, samples, drafts, .. }) in self.step.rows().filter(stands).enumerate() {
            // Where the plan is another one there is a difference, and any token will do to see the record.
            let tokens =
                recorded.tokens.get(index).filter(|tokens| (samples..=samples + drafts).contains(&tokens.len()));
            let samples = tokens.map_or(samples, Vec::len);
            let token = |sample: usize| tokens.map_or(0, |tokens| tokens[sample]);
            self.output.rows.extend((0..samples).map(|sample| RowOutput { seq, token: token(sample) }));
        }
        self.output.failed.clone_from(&failed);
        self.output.stolen = recorded.stolen();
        self.output.experts = recorded.experts();
        for &id in &failed {
            if self.open.remove(&id.0).is_none() {
                return Err(recording.wrong(format!("there is no open request {}", id.0)));
            }
        }
        self.events.clear();
        self.scheduler.complete_into(&self.output, to, &mut self.events, &mut self.record);
        let tokens: Vec<TokenId> = self.output.rows.iter().map(|row| row.token).collect();
        // Drafts are an input.
        let replayed = StepEntry::of(&self.record, &tokens, &failed);
        let replayed = replayed.with_drafts(recorded.offers.clone(), recorded.drafts.clone());
        if replayed != *recorded {
            let what = differences(recorded, &replayed);
            return Ok(Some(Difference { line: 0, step: Some(recorded.n), what }));
        }
        if !recorded.offers.is_empty() {
            tell(ReplayEvent::Offered(&recorded.offers));
        }
        tell(ReplayEvent::Step(&self.record, self.scheduler.cost_model()));
        failed.into_iter().for_each(|id| tell(ReplayEvent::Ended(id)));
        for event in std::mem::take(&mut self.events) {
            self.note(&event, tell);
        }
        Ok(None)
    }

    /// Passes the drafts on offer to the scheduler.
    fn offer(&mut self, offers: &[OfferEntry]) {
        for entry in offers {
            let seq = self.scheduler.sequences().find(|sequence| entry.is_for(sequence)).map(Sequence::id);
            if let Some(seq) = seq {
                self.scheduler.propose(entry.offer(seq));
            }
        }
    }

    /// An answer had a token, or ended.
    fn note(&mut self, event: &TokenEvent, tell: &mut dyn FnMut(ReplayEvent<'_>)) {
        match *event {
            TokenEvent::Token { request, answer, .. } => {
                self.open.get_mut(&request.0).expect("it is open")[answer] += 1
            }
            TokenEvent::Finished { request, answer, reason } => self.ended(request, answer, reason, tell),
        }
    }

    fn ended(
        &mut self,
        request: RequestId,
        answer: usize,
        reason: FinishReason,
        tell: &mut dyn FnMut(ReplayEvent<'_>),
    ) {
        tell(ReplayEvent::AnswerEnded(request, answer, reason));
        let answers = self.open.get_mut(&request.0).expect("it is open");
        answers[answer] = ENDED;
        if answers.iter().all(|&tokens| tokens == ENDED) {
            self.open.remove(&request.0);
            tell(ReplayEvent::Ended(request));
        }
    }
}

/// What the scheduler was asked.
fn asked(entry: &AdmitEntry) -> Request {
    Request {
        id: RequestId(entry.id),
        prompt: Arc::from(entry.prompt.as_slice()),
        num_answers: entry.n,
        stop: stop_rules(entry),
        priority: Priority(entry.priority),
        salt: entry.salt,
        use_prefix_cache: entry.prompt_logprobs.is_none(),
        tenant: entry.tenant,
        targets: targets(entry),
        arrived: Nanos(entry.arrived),
    }
}

fn stop_rules(entry: &AdmitEntry) -> StopRules {
    StopRules {
        max_tokens: entry.max_tokens,
        min_tokens: entry.min_tokens,
        stop_token_ids: entry.stop_token_ids.clone(),
    }
}

fn targets(entry: &AdmitEntry) -> Targets {
    Targets { ttft: entry.ttft.map(Nanos), tpot: entry.tpot.map(Nanos) }
}

/// Field by field, as the file has them.
fn differences(recorded: &StepEntry, replayed: &StepEntry) -> Vec<(String, String, String)> {
    let fields = |entry: &StepEntry| match serde_json::to_value(entry) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => unreachable!("a step is an object"),
    };
    let both = fields(recorded).into_iter().zip(fields(replayed)).filter(|((_, a), (_, b))| a != b);
    both.map(|((name, recorded), (_, replayed))| (name, recorded.to_string(), replayed.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_predictions_are_of_the_kind_of_their_step() {
        // What differs from a step that takes 100 ns and is expected to take 90; the kind, and how far off that is.
        let table = [
            (r#""n":1"#, Some((0, 0.1))),
            (r#""n":1,"guesses":[[5]]"#, Some((1, 0.1))),
            (r#""n":1,"prefill":[[1,0,8,0]]"#, Some((2, 0.1))),
            (r#""n":1,"prefill":[[1,0,8,0]],"guesses":[[5]]"#, Some((2, 0.1))),
            (r#""n":1,"stolen":[70,2]"#, Some((0, 0.1))),
            (r#""n":1,"stolen":[70,40]"#, None),
            (r#""n":1,"stolen":[0,2],"uncertain":1"#, None),
            (r#""n":1,"predicted":0"#, None),
        ];
        for (differs, wanted) in table {
            let mut step = serde_json::json!({
                "from": 1000, "to": 1100, "decode": [[1, 7]], "prefill": [], "tokens": [[5]], "failed": [],
                "preempted": 0, "waiting": 0, "used_blocks": 1, "predicted": 90, "digest": "",
            });
            let differs: serde_json::Value = serde_json::from_str(&format!("{{{differs}}}")).expect("an object");
            for (name, value) in differs.as_object().expect("an object") {
                step[name] = value.clone();
            }
            let step: StepEntry = serde_json::from_value(step).expect("a step");
            let mut replayed = Replayed::default();
            replayed.count(&Entry::Step(Box::new(step)), &mut None);
            let errors =
                replayed.errors.iter().enumerate().flat_map(|(kind, off)| off.iter().map(move |&off| (kind, off)));
            let errors: Vec<(usize, f64)> = errors.collect();
            let is_as_wanted = match (wanted, &errors[..]) {
                (Some((kind, off)), [error]) => error.0 == kind && (error.1 - off).abs() < 1e-9,
                (wanted, errors) => wanted.is_none() && errors.is_empty(),
            };
            assert!(is_as_wanted, "{differs}: {errors:?}, not {wanted:?}");
        }
    }
}
