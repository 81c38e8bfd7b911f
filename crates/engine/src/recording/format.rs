//! The file: a header, then one JSON object per line.
//!
//! ```text
//! {"twostroke_recording":5,"model":"lantern","began_unix_ns":1795375863000000000,"limits":{..},"cost":{..},..}
//! {"admit":{"id":1,"now":..,"arrived":..,"prompt":[..],..}}
//! {"step":{"n":0,"from":..,"to":..,"decode":[],"prefill":[[1,0,12,0]],"tokens":[[411]],"failed":[],..,"digest":".."}}
//! {"stop":[1,0]}   {"cancel":[2,..]}   {"idle":..}   {"abandoned":..}   {"restart":{..}}
//! "end"
//! ```
//!
//! Times are nanoseconds since the engine began, which was at `began_unix_ns` on the wall. A step's line spells out
//! what people ask about; `digest` is a hash of everything in its record. Seconds of the cost model are text, because
//! they must come back with the same bits. A last line that was cut off is left out; without `"end"` the recording was
//! cut off.

use grammar::Rule;
use kernels::AccumulationOrder;
use observe::OfferEntry;
use protocol::sampling::Sampling;
use protocol::{Nanos, RequestId, TokenId};
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, DraftProposal, DraftSource, ExpertReads, Limits, StateSizes, StealTime, StepRecord};
use serde::{Deserialize, Serialize};

use super::{RecordLine, RecordedDrafts, StepTokens};
use crate::ModelInfo;
use crate::validate::{OfPrompt, ValidatedRequest};

/// Of the format that is written.
pub const VERSION: u64 = 5;
/// The oldest that a reader takes: it has other names for a few options of sampling.
pub const OLDEST_VERSION: u64 = 4;
/// Points of a cost model: one for each power of two, and some between.
const MAX_KNOTS: usize = 4096;
/// How far off a model of costs may be.
const MAX_DRIFT: f64 = 100.0;

/// What was recorded, and on what.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    twostroke_recording: u64,
    /// The program that wrote it.
    pub program: String,
    /// Name of the model.
    pub model: String,
    /// Class of its weights, as `--weights` names it.
    pub weights: String,
    /// Whether what the checkpoint stored wider kept its class.
    pub as_stored: bool,
    /// Precision of keys and values, as `--kv-dtype` names it.
    pub kv_dtype: String,
    /// Order of sums of 16-bit products, as `--arithmetic` names it.
    #[serde(default = "before_there_was_a_choice")]
    pub arithmetic: String,
    /// What a clock on the wall showed at moment 0, nanoseconds since 1970 UTC. A recording of before may not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_unix_ns: Option<u64>,
    #[serde(with = "LimitsEntry")]
    limits: Limits,
    cost: Option<CostEntry>,
    /// Which drafter takes passes of its own, and what one costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drafting: Option<(u8, CostEntry)>,
}

/// The arithmetic of a recording that names none.
fn before_there_was_a_choice() -> String {
    AccumulationOrder::Amx.name().to_owned()
}

impl Header {
    pub(crate) fn of(model: &ModelInfo, as_stored: bool, limits: &Limits, cost: Option<&CostModel>) -> Header {
        Header {
            twostroke_recording: VERSION,
            program: concat!("twostroke ", env!("CARGO_PKG_VERSION")).to_owned(),
            model: model.name.clone(),
            weights: model.weights.name().to_owned(),
            as_stored,
            kv_dtype: model.kv_dtype.name().to_owned(),
            arithmetic: model.arithmetic.name().to_owned(),
            began_unix_ns: None,
            limits: Limits { hash_key: [0; 32], ..limits.clone() },
            cost: cost.map(CostEntry::of),
            drafting: None,
        }
    }

    /// With the cost of drafts, if they take passes of their own.
    pub(crate) fn with_drafting(self, drafting: Option<&(DraftSource, CostModel)>) -> Header {
        Header { drafting: drafting.map(|(source, cost)| (source.0, CostEntry::of(cost))), ..self }
    }

    /// The cost of drafts: for [`Scheduler::set_drafting_cost`](scheduler::Scheduler::set_drafting_cost).
    pub fn drafting(&self) -> Option<(DraftSource, CostModel)> {
        let drafting = self.drafting.as_ref();
        drafting.map(|(source, cost)| (DraftSource(*source), cost.model().expect("it was checked when it was read")))
    }

    /// The scheduler's limits. The key of its hashes is not recorded: it decides nothing.
    pub fn limits(&self) -> Limits {
        self.limits.clone()
    }

    /// What predicted the steps at the start.
    pub fn cost(&self) -> Option<CostModel> {
        self.cost.as_ref().map(|cost| cost.model().expect("it was checked when it was read"))
    }

    /// What is wrong with its numbers, if anything. A reader calls it before anything else is done with the header.
    pub fn check(&self) -> Result<(), String> {
        // Before memory is taken for them.
        let limits = self.limits();
        for (field, found, most) in [
            ("block_size", limits.block_size, 1 << 16),
            ("num_blocks", limits.num_blocks, Limits::MOST_BLOCKS),
            ("max_model_len", limits.max_model_len, Limits::MOST_TOKENS),
            ("max_num_seqs", limits.max_num_seqs, Limits::MOST_SEQS),
            ("max_num_batched_tokens", limits.max_num_batched_tokens, Limits::MOST_ROWS),
            ("max_prefill_chunk", limits.max_prefill_chunk, Limits::MOST_ROWS),
            ("max_prefill_seqs", limits.max_prefill_seqs, Limits::MOST_SEQS),
        ] {
            within(&format!("limits.{field}"), found as u64, 1, most as u64)?;
        }
        if let Some(states) = limits.states {
            within("limits.states", states.slots as u64, 1, Limits::MOST_STATES as u64)?;
        }
        scheduler::Scheduler::new(limits).map_err(|error| format!("limits: {error}"))?;
        if let Some((source, cost)) = &self.drafting {
            within("drafting: source", (*source).into(), 0, DraftProposal::SOURCES as u64 - 1)?;
            cost.model()?;
        }
        self.cost.as_ref().map_or(Ok(()), |cost| cost.model().map(|_| ()))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Limits", deny_unknown_fields)]
struct LimitsEntry {
    block_size: usize,
    num_blocks: usize,
    max_model_len: usize,
    max_num_seqs: usize,
    max_num_batched_tokens: usize,
    max_prefill_chunk: usize,
    max_prefill_seqs: usize,
    max_queued_requests: usize,
    max_queued_tokens: usize,
    enable_prefix_caching: bool,
    #[serde(with = "states", default, skip_serializing_if = "Option::is_none")]
    states: Option<StateSizes>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    whole_prompts: bool,
    #[serde(skip)]
    hash_key: [u8; 32],
}

/// Slots and interval.
mod states {
    use scheduler::StateSizes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(states: &Option<StateSizes>, to: S) -> Result<S::Ok, S::Error> {
        states.map(|states| (states.slots, states.interval)).serialize(to)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Option<StateSizes>, D::Error> {
        let read = Option::<(usize, usize)>::deserialize(from)?;
        Ok(read.map(|(slots, interval)| StateSizes { slots, interval }))
    }
}

/// A model of costs, every bit of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostEntry {
    knots: Vec<(usize, String)>,
    pair: String,
    key: String,
    row: String,
    prompt: String,
    head: String,
    logits: String,
    drift: [String; 2],
}

impl CostEntry {
    /// As it is written.
    pub fn of(cost: &CostModel) -> CostEntry {
        // The shortest decimal that reads back as the same number.
        let text = |seconds: f64| format!("{seconds:?}");
        let Terms { pair, key, row, prompt, head, logits } = cost.terms();
        CostEntry {
            knots: cost.knots().iter().map(|knot| (knot.rows, text(knot.seconds))).collect(),
            pair: text(pair),
            key: text(key),
            row: text(row),
            prompt: text(prompt),
            head: text(head),
            logits: text(logits),
            drift: cost.drift().map(text),
        }
    }

    /// The model again, or what is wrong with its numbers.
    pub fn model(&self) -> Result<CostModel, String> {
        let number = |field: &str, text: &String, most: f64| match text.parse::<f64>() {
            Ok(number) if (0.0..=most).contains(&number) => Ok(number),
            _ => Err(format!("cost.{field}: {text:.40?} is not a number from 0 to {most:e}")),
        };
        within("cost.knots", self.knots.len() as u64, 1, MAX_KNOTS as u64)?;
        let knots = self.knots.iter().map(|(rows, text)| {
            within("cost.knots", *rows as u64, 0, Limits::MOST_ROWS as u64)?;
            Ok(Knot { rows: *rows, seconds: number("knots", text, Terms::MOST_SECONDS)? })
        });
        let knots = knots.collect::<Result<Vec<_>, String>>()?;
        if !knots.is_sorted_by(|a, b| a.rows < b.rows) {
            return Err("cost.knots: its points do not rise".into());
        }
        let terms = Terms {
            pair: number("pair", &self.pair, Terms::MOST.pair)?,
            key: number("key", &self.key, Terms::MOST.key)?,
            row: number("row", &self.row, Terms::MOST.row)?,
            prompt: number("prompt", &self.prompt, Terms::MOST.prompt)?,
            head: number("head", &self.head, Terms::MOST.head)?,
            logits: number("logits", &self.logits, Terms::MOST.logits)?,
        };
        let drift = [number("drift", &self.drift[0], MAX_DRIFT)?, number("drift", &self.drift[1], MAX_DRIFT)?];
        Ok(CostModel::new(knots, terms).drifted(drift))
    }
}

/// A line of the file after the header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Entry {
    /// A request came in.
    Admit(Box<AdmitEntry>),
    /// The client of this request was gone, and when.
    Cancel(u64, u64),
    /// The text of this request's answer holds a stop string.
    Stop(u64, usize),
    /// A plan without rows, and when.
    Idle(u64),
    /// A step is complete.
    Step(Box<StepEntry>),
    /// A plan that was not computed, when, and the drafts that were on offer for it.
    Abandoned(u64, Vec<OfferEntry>),
    /// Everything open ended, and a new scheduler began.
    Restart {
        /// What predicts its steps.
        cost: Option<CostEntry>,
    },
    /// The last line of a recording that was not cut off.
    End,
}

/// A request as it passed validation. Times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct AdmitEntry {
    pub id: u64,
    /// When the scheduler received it.
    pub now: u64,
    pub arrived: u64,
    pub prompt: Vec<TokenId>,
    pub n: usize,
    pub max_tokens: usize,
    pub min_tokens: usize,
    pub stop_token_ids: Vec<TokenId>,
    pub priority: i32,
    pub tenant: u64,
    pub salt: u64,
    pub ttft: Option<u64>,
    pub tpot: Option<u64>,
    pub prompt_logprobs: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embed: bool,
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    pub include_stop: bool,
    pub skip_special: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<TokenId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    /// What another engine had generated of its answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub generated: Vec<Option<Vec<TokenId>>>,
    pub sampling: Sampling,
}

/// A step, as far as it is spelled out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepEntry {
    /// Its number.
    pub n: u64,
    /// When it was planned, nanoseconds.
    pub from: u64,
    /// When it was complete.
    pub to: u64,
    /// Request and position of each decode row.
    decode: Vec<(u64, usize)>,
    /// Request, first position, rows and cached tokens of each chunk.
    prefill: Vec<(u64, usize, usize, usize)>,
    /// A list for each row of `decode`, then of `prefill`, from which tokens were sampled: one token, one for each
    /// answer that was forked there, or the run of accepted drafts.
    pub tokens: Vec<Vec<TokenId>>,
    /// Requests with rows that failed or gave NaN: they ended.
    pub failed: Vec<u64>,
    /// Drafts that were on offer, and those that were verified: a list for each row of `decode` that has some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offers: Vec<OfferEntry>,
    /// See `offers`.
    #[serde(rename = "guesses", default, skip_serializing_if = "Vec::is_empty")]
    pub drafts: Vec<Vec<TokenId>>,
    preempted: usize,
    waiting: usize,
    used_blocks: usize,
    predicted: u64,
    /// What the machine took of the time before it and of its own, nanoseconds; left out where that is nothing.
    #[serde(default, skip_serializing_if = "is_zero")]
    stolen: [u64; 2],
    /// By how much the second may be wrong.
    #[serde(default, skip_serializing_if = "is_zero")]
    uncertain: u64,
    /// Experts read in it: how many, their bytes, and the nanoseconds that it took.
    #[serde(default, skip_serializing_if = "is_zero")]
    experts: [u64; 3],
    /// What drafting passes took of it, nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    drafting: u64,
    /// Of everything in the record.
    digest: String,
}

fn is_zero<T: Default + PartialEq>(nanos: &T) -> bool {
    *nanos == T::default()
}

impl StepEntry {
    /// As it is written. `tokens`: in the order of the record's rows, `samples` of each.
    pub fn of(record: &StepRecord, tokens: &[TokenId], failed: &[RequestId]) -> StepEntry {
        let mut rest = tokens;
        let sampled = record.decode.iter().chain(&record.prefill).filter(|row| row.samples > 0);
        let tokens = sampled.map(|row| {
            let (tokens, others) = rest.split_at(row.samples);
            rest = others;
            tokens.to_vec()
        });
        let tokens = tokens.collect();
        // Recordings of this format have digests over the names that types had when it was made.
        let mut record_text =
            format!("{record:?}").replace("StealTime {", "Stolen {").replace(", uncertain: Nanos(0) }", " }");
        // Steps that read no experts had no word of them.
        if record.experts == ExpertReads::default() {
            record_text = record_text.replace(&format!(", experts: {:?}", record.experts), "");
        }
        // Nor had they of other models, and a server of several records none.
        record_text = record_text.replace(", other_model: Nanos(0)", "");
        // They had no reasons of misses, which are no decisions. No bracket is in one.
        if let Some(start) = record_text.find(", misses: [")
            && let Some(len) = record_text[start..].find(']')
        {
            record_text.replace_range(start..=start + len, "");
        }
        let digest = blake3::hash(record_text.as_bytes()).to_hex();
        StepEntry {
            n: record.step.0,
            from: record.scheduled_at.0,
            to: record.completed_at.0,
            decode: record.decode.iter().map(|row| (row.request.0, row.start)).collect(),
            prefill: record.prefill.iter().map(|row| (row.request.0, row.start, row.len, row.cached_tokens)).collect(),
            tokens,
            failed: failed.iter().map(|id| id.0).collect(),
            offers: Vec::new(),
            drafts: Vec::new(),
            preempted: record.preempted.len(),
            waiting: record.waiting_requests,
            used_blocks: record.used_blocks,
            predicted: record.predicted.0,
            stolen: [record.stolen.before.0, record.stolen.during.0],
            uncertain: record.stolen.uncertain.0,
            experts: [record.experts.count, record.experts.bytes, record.experts.took.0],
            drafting: record.drafting_took.0,
            digest: digest[..16].to_owned(),
        }
    }

    /// With its drafts.
    pub fn with_drafts(self, offers: Vec<OfferEntry>, drafts: Vec<Vec<TokenId>>) -> StepEntry {
        StepEntry { offers, drafts, ..self }
    }

    pub(crate) fn drafted(&self) -> RecordedDrafts {
        RecordedDrafts { offers: self.offers.clone(), drafts: self.drafts.clone(), took: self.drafting_took() }
    }

    /// How long it was expected to take; zero: no prediction.
    pub fn predicted(&self) -> Nanos {
        Nanos(self.predicted)
    }

    /// How long it took, if the machine did next to nothing for others meanwhile. While a recording is made one step is in
    /// flight, so it began when it was planned.
    pub fn undisturbed(&self) -> Option<Nanos> {
        let took = Nanos(self.to).since(Nanos(self.from));
        self.stolen().is_nothing(took).then_some(took)
    }

    /// Whether it had rows of prompts.
    pub fn reads_prompts(&self) -> bool {
        !self.prefill.is_empty()
    }

    /// What drafting passes took of its time.
    pub fn drafting_took(&self) -> Nanos {
        Nanos(self.drafting)
    }

    /// What the machine took of the time before it and of its own.
    pub fn stolen(&self) -> StealTime {
        let [before, during] = self.stolen.map(Nanos);
        StealTime { before, during, uncertain: Nanos(self.uncertain) }
    }

    /// Experts that it read.
    pub fn experts(&self) -> ExpertReads {
        let [count, bytes, took] = self.experts;
        ExpertReads { count, bytes, took: Nanos(took) }
    }
}

impl AdmitEntry {
    /// A request that came in at `now`, as it passed validation.
    pub(crate) fn of(id: RequestId, request: ValidatedRequest, arrived: Nanos, now: Nanos) -> AdmitEntry {
        AdmitEntry {
            id: id.0,
            now: now.0,
            arrived: arrived.0,
            prompt: request.prompt.to_vec(),
            n: request.num_answers,
            max_tokens: request.stop.max_tokens,
            min_tokens: request.stop.min_tokens,
            stop_token_ids: request.stop.stop_token_ids,
            priority: request.priority.0,
            tenant: request.tenant,
            salt: request.salt,
            ttft: request.targets.ttft.map(|Nanos(target)| target),
            tpot: request.targets.tpot.map(|Nanos(target)| target),
            prompt_logprobs: if let OfPrompt::LogProbs(top) = request.of_prompt { Some(top) } else { None },
            embed: request.of_prompt == OfPrompt::Embedding,
            seed: request.seed,
            stop: request.stop_strings,
            include_stop: request.include_stop_string,
            skip_special: request.skip_special_tokens,
            shown: request.shown_tokens.to_vec(),
            rule: request.rule.map(|(rule, _)| Rule::clone(&rule)),
            generated: request.generated,
            sampling: request.sampling,
        }
    }
}

impl From<RecordLine> for Entry {
    fn from(line: RecordLine) -> Entry {
        match line {
            RecordLine::Admit { id, request, arrived, now } => {
                Entry::Admit(Box::new(AdmitEntry::of(id, *request, arrived, now)))
            }
            RecordLine::Cancel(id, now) => Entry::Cancel(id.0, now.0),
            RecordLine::Stop(id, answer) => Entry::Stop(id.0, answer),
            RecordLine::Idle(now) => Entry::Idle(now.0),
            RecordLine::Step(record, failed, spelled) => {
                let StepTokens { tokens, drafted } = *spelled;
                let entry = StepEntry::of(&record, &tokens, &failed);
                Entry::Step(Box::new(entry.with_drafts(drafted.offers, drafted.drafts)))
            }
            RecordLine::Abandoned(now, offers) => Entry::Abandoned(now.0, offers),
            RecordLine::Restart(cost) => Entry::Restart { cost: cost.as_ref().map(CostEntry::of) },
        }
    }
}

/// What is wrong with a field of the file that has to lie in a range and does not.
pub fn within(field: &str, found: u64, least: u64, most: u64) -> Result<(), String> {
    match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(format!("{field}: {found} is not from {least} to {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_model_of_costs_says_can_be_read_back() {
        for seconds in [0.0, 1e-300, 1.5e-6, 2e-3, 0.7, 1e3, 1e9, f64::MAX, f64::INFINITY, f64::NAN] {
            let terms =
                Terms { pair: seconds, key: seconds, row: seconds, prompt: seconds, head: seconds, logits: seconds };
            let knots = vec![Knot { rows: 1, seconds }, Knot { rows: 64, seconds }];
            let model = CostModel::new(knots, terms).drifted([64.0, 1.0 / 64.0]);
            assert_eq!(CostEntry::of(&model).model(), Ok(model), "{seconds}");
        }
    }
}
