//! "Why was this slow?": where the time of a request went, as JSON.
//!
//! ```text
//! X-Request-Id, response id --Registry--> the engine's requests --Engine::timeline--> owners, steps, waits, late tokens
//! ```
//!
//! A request is visible to its own tenant (API key) only. Others that appear in it are named if they are
//! the tenant's own; those of other tenants are numbers that lead nowhere, the same for one request wherever it
//! appears.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::iter::repeat_n;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::ledger::{Account, Bill, Gap, Named, Owner, Shares, Visit, Wait};
use engine::quota::to_forget;
use engine::{Ending, Observe, RequestId, Timeline};
use plan::units::duration;
use protocol::Nanos;
use scheduler::{CacheMiss, MissReason};
use serde_json::{Map, Value, json};

use crate::live_events::away_times;
use crate::live_wire::Name;
use crate::otel::TraceParent;
use crate::other_models::{self, Waited};
use crate::thinking::{self, Thought};
use crate::time_format::{self, ms};
use crate::why::{self, OTHER_TENANT};

/// Requests whose names are kept.
const KEPT: usize = 1024;

/// The digest of an API key: the tenant whose prefix-cache blocks a request may share.
pub type Tenant = [u8; 32];

/// One HTTP request and what it became in the engine.
pub struct RequestTrace {
    pub tenant: Option<Tenant>,
    /// The number of its key, counted from 1: how a log names it.
    pub key: Option<usize>,
    /// The answer's `id`.
    pub response_id: String,
    /// The header X-Request-Id of the answer: the caller's own name for it, or ours.
    pub request_id: String,
    /// One per prompt.
    pub requests: Vec<RequestId>,
    /// Tokens of each prompt.
    pub prompt_tokens: Vec<usize>,
    /// Of a conversation, the prompt's tokens that are text of each message.
    pub messages: Vec<Range<usize>>,
    /// Answers to each prompt.
    pub num_answers: usize,
    /// What is thought in each answer, prompt by prompt.
    pub thoughts: Vec<Thought>,
}

impl RequestTrace {
    /// The message in whose text a prompt's token is, or behind whose last one.
    pub fn message_at(&self, token: usize) -> Option<usize> {
        self.messages.iter().position(|message| !message.is_empty() && (message.start..=message.end).contains(&token))
    }

    /// Thoughts in the answers to a prompt.
    pub fn thoughts_of(&self, prompt: usize) -> &[Thought] {
        &self.thoughts[prompt * self.num_answers..(prompt + 1) * self.num_answers]
    }

    /// The longest time that was thought, and the latest moment at which an answer had something to see: since its
    /// arrival, and unless one of them had nothing.
    pub fn thinking(&self, engine: &dyn Observe) -> (Option<Nanos>, Option<Nanos>) {
        let (mut time, mut visible) = (None, None);
        for (prompt, &id) in self.requests.iter().enumerate() {
            let thoughts = self.thoughts_of(prompt);
            if thoughts.iter().all(|thought| thought.tokens().is_none()) {
                continue;
            }
            let Some(Timeline { account, .. }) = engine.timeline(id) else { continue };
            for span in thinking::spans(thoughts, &account) {
                time = time.max(span.time());
                visible = visible.max(span.visible().map(|moment| moment.since(account.arrived)));
            }
        }
        (time, visible)
    }
}

/// Who asks, as the front of the server knows it.
pub struct RequestOrigin {
    pub tenant: Option<Tenant>,
    /// The number of its key, counted from 1.
    pub key: Option<usize>,
    pub request_id: String,
    /// The span that this request is part of.
    pub parent: Option<TraceParent>,
}

/// The newest requests by name.
#[derive(Default)]
pub struct Registry {
    newest: Mutex<Newest>,
    secret: RandomState,
}

#[derive(Default)]
struct Newest {
    traces: VecDeque<Arc<RequestTrace>>,
    by_request: BTreeMap<RequestId, Arc<RequestTrace>>,
}

impl Registry {
    pub fn add(&self, trace: Arc<RequestTrace>) {
        let mut newest = self.lock();
        if newest.traces.len() == KEPT
            && let Some(at) = to_forget(newest.traces.iter().map(|trace| trace.tenant))
            && let Some(oldest) = newest.traces.remove(at)
        {
            oldest.requests.iter().for_each(|id| _ = newest.by_request.remove(id));
        }
        newest.by_request.extend(trace.requests.iter().map(|&id| (id, trace.clone())));
        newest.traces.push_back(trace);
    }

    /// The tenant's request of this name; of several the newest.
    pub fn find(&self, tenant: Option<Tenant>, name: &str) -> Option<Arc<RequestTrace>> {
        let is_it = |trace: &&Arc<RequestTrace>| {
            trace.tenant == tenant && (trace.response_id == name || trace.request_id == name)
        };
        self.lock().traces.iter().rev().find(is_it).cloned()
    }

    /// The request of which it is a prompt, and which.
    pub fn trace(&self, id: RequestId) -> Option<(Arc<RequestTrace>, usize)> {
        let trace = self.lock().by_request.get(&id)?.clone();
        let prompt = trace.requests.iter().position(|&other| other == id)?;
        Some((trace, prompt))
    }

    /// Whether it was given a name that is not forgotten.
    pub fn knows(&self, id: RequestId) -> bool {
        self.lock().by_request.contains_key(&id)
    }

    /// Another request as `tenant` may see it: its name, or a number.
    pub fn name(&self, tenant: Option<Tenant>, id: RequestId) -> Name {
        match self.lock().by_request.get(&id) {
            Some(trace) if trace.tenant == tenant => Name::Own(trace.response_id.clone()),
            _ => Name::Other(u64::from(self.secret.hash_one(id.0) as u32)),
        }
    }

    /// The same within a sentence.
    pub fn words(&self, tenant: Option<Tenant>, id: RequestId) -> String {
        match self.name(tenant, id) {
            Name::Own(name) => name,
            Name::Other(number) => format!("request {number} of another client"),
        }
    }

    /// The tenant's requests whose names are kept, the newest last.
    pub fn of(&self, tenant: Option<Tenant>) -> Vec<Arc<RequestTrace>> {
        self.lock().traces.iter().filter(|trace| trace.tenant == tenant).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A model of the server beside that of the request.
pub struct OtherModel<'a> {
    pub name: &'a str,
    pub engine: &'a dyn Observe,
    pub registry: &'a Registry,
}

/// Requests of other models that a sentence names.
const MOST_TOLD: usize = 3;

/// Writes timelines for one tenant.
pub struct Reader<'a> {
    pub engine: &'a dyn Observe,
    pub registry: &'a Registry,
    pub tenant: Option<Tenant>,
    /// The other models of the server, whose steps its requests may have waited for.
    pub others: Vec<OtherModel<'a>>,
}

impl Reader<'_> {
    /// Everything that is known of the request of this name; `None` if it is unknown or forgotten.
    pub fn timeline(&self, name: &str) -> Option<Value> {
        let trace = self.registry.find(self.tenant, name)?;
        let prompts = trace.requests.iter().enumerate();
        let prompts = prompts.map(|(at, &id)| Some(self.prompt(&self.engine.timeline(id)?, &trace, at)));
        let prompts: Option<Vec<Value>> = prompts.collect();
        Some(json!({
            "id": trace.response_id,
            "object": "request.timeline",
            "request_id": trace.request_id,
            "prompts": prompts?,
        }))
    }

    /// The sums of a request's prompts, and its late tokens: the detail of an answer's `timings`.
    pub fn detail(&self, trace: &RequestTrace) -> Vec<Value> {
        let sums = |timeline: Timeline| {
            let mut sums = self.sums(&timeline.account.bill);
            sums.insert("late_tokens".into(), self.gaps(&timeline.account, &timeline.account.late_gaps()));
            Value::Object(sums)
        };
        trace.requests.iter().map(|&id| self.engine.timeline(id).map_or(Value::Null, sums)).collect()
    }

    /// Why no more of a prompt was cached, as `timings.cache` says it.
    pub fn cache_miss(&self, miss: &CacheMiss, trace: &RequestTrace) -> Value {
        let cost = miss.cost.map(|cost| (ms(cost) * 1e3).round() / 1e3);
        let mut told = Map::new();
        told.insert("left_at_token".into(), miss.at_token.into());
        told.insert("left_in_message".into(), trace.message_at(miss.at_token).into());
        told.insert("why".into(), MissReason::NAMES[miss.why as usize].into());
        told.insert("lost_tokens".into(), miss.lost.into());
        told.insert("predicted_ms".into(), cost.into());
        let since_start = (miss.why == MissReason::New).then_some(("since", Nanos(0)));
        if let Some((name, at)) = since_start.or(miss.at.map(|at| ("lost", at))) {
            time_format::insert(&mut told, name, self.engine, at);
        }
        let by = miss.by.map(|by| json!(self.registry.name(self.tenant, by)));
        let other = miss.by_other_tenant.then(|| OTHER_TENANT.into());
        told.extend(by.or(other).map(|by| ("by".to_owned(), by)));
        Value::Object(told)
    }

    /// Whose the time of an open request was until now, and which others' prompts and rows it was.
    pub fn so_far(&self, id: RequestId) -> Option<(Value, Value)> {
        let bill = self.engine.timeline(id)?.account.bill;
        let (mut shares, mut others) = (bill.ttft, bill.ttft_others);
        shares.merge(&bill.gaps);
        others.merge(&bill.gaps_others);
        Some((owners(&shares, None), self.others(&others)))
    }

    fn prompt(&self, timeline: &Timeline, trace: &RequestTrace, at: usize) -> Value {
        let (account, thoughts) = (&timeline.account, trace.thoughts_of(at));
        let since = |moment: Nanos| ms(moment.since(account.arrived));
        let state = match timeline.ending {
            None if account.visits.is_empty() => "waiting",
            None => "running",
            Some(Ending::Finished) => "finished",
            Some(Ending::Cancelled) => "cancelled",
            Some(Ending::Failed) => "failed",
        };
        let mut prompt = Map::new();
        prompt.insert("state".into(), state.into());
        // Every other moment is counted from this one.
        time_format::insert(&mut prompt, "arrived", self.engine, account.arrived);
        prompt.insert("until_ms".into(), since(timeline.until).into());
        prompt.insert("held_ms".into(), ms(timeline.held).into());
        prompt.insert("ttft_ms".into(), account.first_token.map(since).into());
        let thinking = thinking::spans(thoughts, account);
        prompt.insert("thinking".into(), thinking.iter().map(|span| span.json(account.arrived)).collect());
        let targets = json!({"ttft_ms": account.targets.ttft.map(ms), "tpot_ms": account.targets.tpot.map(ms)});
        prompt.insert("targets".into(), targets);
        prompt.extend(self.sums(&account.bill));
        prompt.insert("cache".into(), account.bill.miss.map(|miss| self.cache_miss(&miss, trace)).into());
        let name = |id| self.registry.words(self.tenant, id);
        let others = self.others.iter().map(|other| other.engine);
        let waited = other_models::waited(self.engine, others, timeline);
        let story = why::tell(timeline, &|token| trace.message_at(token), &name, self.waited_words(&waited));
        prompt.insert("why".into(), story.into());
        prompt.insert("other_models".into(), self.waited_json(&waited));
        prompt.insert("median_gap_ms".into(), ms(account.median_gap()).into());
        prompt.insert("late_tokens".into(), self.gaps(account, &account.late_gaps()));
        prompt.insert("longest_gaps".into(), self.gaps(account, &account.longest_gaps));
        let wait = |wait: &Wait| {
            json!({
                "answer": wait.answer,
                "from_ms": since(wait.from),
                "to_ms": since(wait.to),
                "owners": owners(&wait.shares, None),
            })
        };
        prompt.insert("waits".into(), account.waits.iter().map(wait).collect());
        let away = timeline.away.as_ref();
        prompt.insert("away".into(), json!(away.map(|away| away_times(away, account.arrived))));
        let step = |visit: &Visit| {
            json!({
                "answer": visit.answer,
                "from_ms": since(visit.from),
                "to_ms": since(visit.to),
                "phase": phase(visit.work),
                "rows": visit.rows,
                "tokens": visit.tokens,
            })
        };
        prompt.insert("steps".into(), account.visits.iter().map(step).collect());
        prompt.insert("steps_left_out".into(), account.visits_left_out.into());
        let came = account.visits.iter().flat_map(|visit| repeat_n(visit.to, visit.tokens.into()));
        prompt.insert("token_times_ms".into(), came.map(since).collect());
        Value::Object(prompt)
    }

    /// `other_models`: the sum of its entries is the owner's time.
    fn waited_json(&self, waited: &Waited) -> Value {
        let ms = |nanos: u64| nanos as f64 / 1e6;
        let entry = |&(at, id, nanos): &(usize, RequestId, Nanos)| {
            let other = &self.others[at];
            let name = other.registry.name(self.tenant, id);
            json!({"model": other.name, "request": name, "ms": ms(nanos.0)})
        };
        let mut entries: Vec<Value> = waited.named.iter().map(entry).collect();
        let rest = waited.total.0 - waited.named.iter().map(|(.., nanos)| nanos.0).sum::<u64>();
        if rest > 0 {
            entries.push(json!({"model": null, "request": null, "ms": ms(rest)}));
        }
        entries.into()
    }

    /// The same in a sentence.
    fn waited_words(&self, waited: &Waited) -> Option<String> {
        let told = waited.named.iter().take(MOST_TOLD).map(|&(at, id, nanos)| {
            let other = &self.others[at];
            let name = other.registry.words(self.tenant, id);
            format!("{name} of {} ({})", other.name, duration(nanos.as_secs_f64()))
        });
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| format!("Of other models' requests it waited for {}.", told.join(", ")))
    }

    fn sums(&self, bill: &Bill) -> Map<String, Value> {
        let mut sums = Map::new();
        sums.insert("ttft".into(), owners(&bill.ttft, Some(&Owner::OF_TTFT)));
        sums.insert("ttft_delayed_by".into(), self.others(&bill.ttft_others));
        sums.insert("gaps".into(), owners(&bill.gaps, Some(&Owner::OF_GAP)));
        sums.insert("gaps_delayed_by".into(), self.others(&bill.gaps_others));
        sums.insert("rejected_drafts_ms".into(), ms(bill.rejected).into());
        let [ttft, gaps] = bill.uncertain.map(ms);
        sums.insert("uncertain".into(), json!({"ttft_ms": ttft, "gaps_ms": gaps}));
        sums.insert("saved_by_cache_ms".into(), bill.saved_by_cache.map(ms).into());
        let cost = &bill.cost;
        let cost = json!({
            "prefill_in_ttfts_ms": ms(cost.prefill_in_ttfts),
            "prefill_in_gaps_ms": ms(cost.prefill_in_gaps),
            "decode_in_ttfts_ms": ms(cost.decode_in_ttfts),
            "decode_in_gaps_ms": ms(cost.decode_in_gaps),
            "drafts_in_ttfts_ms": ms(cost.drafts_in_ttfts),
            "drafts_in_gaps_ms": ms(cost.drafts_in_gaps),
            "queue_kv_ms": ms(cost.queue_kv),
            "queue_seats_ms": ms(cost.queue_seats),
            "queue_budget_ms": ms(cost.queue_budget),
            "waiting_ms": ms(cost.waiting),
            "left_out_ms": ms(cost.left_out),
            "total_ms": ms(cost.total()),
        });
        sums.insert("cost_to_others".into(), cost);
        sums
    }

    fn gaps(&self, account: &Account, gaps: &[Gap]) -> Value {
        let gap = |gap: &Gap| {
            json!({
                "answer": gap.answer,
                "token": gap.token,
                "at_ms": ms(gap.at.since(account.arrived)),
                "gap_ms": ms(gap.shares.total()),
                "owners": owners(&gap.shares, None),
                "delayed_by": self.others(&gap.others),
            })
        };
        gaps.iter().map(gap).collect()
    }

    fn others(&self, named: &Named) -> Value {
        let entry = |(id, nanos)| json!({"request": self.registry.name(self.tenant, id), "ms": ms(nanos)});
        let mut others: Vec<Value> = named.entries().map(entry).collect();
        if named.rest() > Nanos(0) {
            others.push(json!({"request": null, "ms": ms(named.rest())}));
        }
        Value::Array(others)
    }
}

/// Milliseconds by owner: of those given, or of all that have any.
fn owners(shares: &Shares, of: Option<&[Owner]>) -> Value {
    let part = |owner: Owner| (format!("{}_ms", owner.name()), ms(shares.of(owner)).into());
    let parts: Map<String, Value> = match of {
        Some(owners) => owners.iter().copied().map(part).collect(),
        None => Owner::ALL.into_iter().filter(|&owner| shares.of(owner) > Nanos(0)).map(part).collect(),
    };
    Value::Object(parts)
}

fn phase(work: Owner) -> &'static str {
    match work {
        Owner::OwnPrefill => "prefill",
        Owner::Recompute => "recompute",
        _ => "decode",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(tenant: u8, response: &str, request: &str, id: u64) -> Arc<RequestTrace> {
        Arc::new(RequestTrace {
            tenant: Some([tenant; 32]),
            key: Some(usize::from(tenant)),
            response_id: response.into(),
            request_id: request.into(),
            requests: vec![RequestId(id)],
            prompt_tokens: vec![1],
            messages: Vec::new(),
            num_answers: 1,
            thoughts: vec![Thought::default()],
        })
    }

    #[test]
    fn a_tenant_sees_its_own_names_and_numbers_for_the_rest() {
        let registry = Registry::default();
        registry.add(trace(1, "cmpl-a", "mine", 1));
        registry.add(trace(2, "cmpl-b", "mine", 2));
        registry.add(trace(1, "cmpl-c", "mine", 3));
        let find = |tenant, name| registry.find(Some([tenant; 32]), name).map(|trace| trace.requests[0].0);
        assert_eq!([find(1, "cmpl-a"), find(2, "cmpl-a"), find(2, "cmpl-b")], [Some(1), None, Some(2)]);
        assert_eq!([find(1, "mine"), find(2, "mine"), find(3, "mine")], [Some(3), Some(2), None], "the newest");
        assert_eq!(registry.find(None, "cmpl-a").map(|trace| trace.requests[0]), None);
        let name = |id| registry.name(Some([1; 32]), RequestId(id));
        assert_eq!(name(1), Name::Own("cmpl-a".into()));
        let is_number = |id| matches!(name(id), Name::Other(_));
        assert!(is_number(2) && name(2) == name(2) && name(2) != name(9), "{:?} {:?}", name(2), name(9));
        for id in 10..10 + KEPT as u64 {
            registry.add(trace(1, &format!("cmpl-{id}"), "x", id));
        }
        assert_eq!(find(1, "cmpl-a"), None, "forgotten");
        assert!(is_number(1));
    }
}
