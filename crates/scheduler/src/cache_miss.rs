//! Why no more of a prompt was found in the prefix cache, told when it enters.
//!
//! ```text
//! prompt    [ found | found | was there, is gone | same tokens | other tokens ... ]
//!                           ^ computed from here               ^ at_token
//! ```
//!
//! A fact beside the plan. It also tells whose conversation came back, and after how long.

use crate::kv::{Fate, FullBlock, Taker, common_len};
use crate::{BlockHash, Request, Scheduler, SeqId, Work};
use protocol::{Nanos, RequestId};

/// Where a prompt left the longest prefix that its tenant was seen with, and why no more of it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheMiss {
    /// The request.
    pub request: RequestId,
    /// Index of the first token that was not seen behind those before it; the prompt's length if all were.
    pub at_token: usize,
    /// Tokens that are computed and could have been found.
    pub lost: usize,
    /// Predicted time to compute them beside the others; `None` without a cost model.
    pub cost: Option<Nanos>,
    /// Why.
    pub why: MissReason,
}

/// Why no more was found. What was seen is of the same tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// All was found but the last token, whose row is always computed.
    AllFound,
    /// Nothing longer was seen since the start, as far as is remembered.
    New,
    /// Another token was seen there. Whole blocks behind it that are the same count as lost: they would be found if what
    /// differs came last.
    OtherToken,
    /// It was seen with another salt or adapter.
    OtherSalt,
    /// It was evicted: when, if that is known, and for whom.
    Evicted(Option<Nanos>, EvictedBy),
    /// The rest does not fill a block.
    BlockNotFull,
    /// It was in a tier that could not be read, as was noticed then.
    TierFault(Nanos),
    /// It is in a tier, and computing it is predicted to be faster than loading it.
    NotWorthLoading,
    /// That request computes it at this moment.
    InProgress(RequestId),
    /// The request needs the logits of its prompt, which are not kept.
    OffForIt,
    /// The prefix cache is off.
    Off,
}

/// For whom a block was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictedBy {
    /// A request of the same tenant.
    Request(RequestId),
    /// A request of another tenant.
    OtherTenant,
    /// None, or it is not remembered.
    Unknown,
}

impl MissReason {
    /// Names in answers and metrics, by [`MissReason::index`].
    #[rustfmt::skip]
    pub const NAMES: [&str; 11] = [
        "all_found", "new", "other_token", "other_salt", "evicted", "block_not_full", "tier_fault",
        "not_worth_loading", "in_progress", "off_for_it", "off",
    ];

    /// Its place in [`MissReason::NAMES`].
    pub fn index(&self) -> usize {
        match self {
            MissReason::AllFound => 0,
            MissReason::New => 1,
            MissReason::OtherToken => 2,
            MissReason::OtherSalt => 3,
            MissReason::Evicted(..) => 4,
            MissReason::BlockNotFull => 5,
            MissReason::TierFault(_) => 6,
            MissReason::NotWorthLoading => 7,
            MissReason::InProgress(_) => 8,
            MissReason::OffForIt => 9,
            MissReason::Off => 10,
        }
    }
}

/// How far the tenant was seen with a prompt.
#[derive(Default)]
struct SeenPrefix {
    at: usize,
    /// The last block of it.
    last: Option<BlockHash>,
    /// Whether that went on, with another token; and how many tokens behind it are the same.
    goes_on: bool,
    same_behind: usize,
    /// The running sequence that reaches so far, if the blocks that were seen do not.
    running: Option<RequestId>,
}

impl Scheduler {
    /// Notes why the sequence that enters with `self.plan.hits` finds no more. Cost: a lookup for each block of the
    /// prompt, and a comparison with each running sequence.
    pub(crate) fn note_miss(&mut self, id: SeqId) {
        let block_size = self.state.limits.block_size;
        let seq = &self.state.seqs[id];
        if seq.most_computed > 0 || seq.prompt_is_remote {
            return; // its first rows told
        }
        let request = seq.request.clone();
        let (start, most) = (self.plan.hits.len() * block_size, request.prompt.len() - 1);
        self.state.pool.seen.note_salt(request.tenant, request.salt);
        let SeenPrefix { mut at, last, goes_on, same_behind, running } = self.seen_prefix(id, &request);
        if let Some(gap) = last.and_then(|last| self.state.pool.seen.note_return(last)) {
            self.state.seqs[id].gap = gap;
        }
        // What a lookup could find of so many tokens.
        let whole = |tokens: usize| tokens.min(most) / block_size * block_size;
        let other_salt = (whole(at) < whole(most)).then(|| self.seen_with_other_salt(&request)).flatten();
        let other_salt = other_salt.filter(|&other| whole(other) > whole(at));
        let (why, lost_to) = match other_salt {
            _ if !self.state.limits.enable_prefix_caching => (MissReason::Off, start),
            _ if !request.use_prefix_cache => (MissReason::OffForIt, whole(at)),
            _ if whole(at) > start => (self.why_gone(id, &request, running), whole(at)),
            Some(other) => {
                at = other;
                (MissReason::OtherSalt, whole(at))
            }
            None if goes_on => (MissReason::OtherToken, at + same_behind),
            None if at.min(most) > start => (MissReason::BlockNotFull, at),
            None if at >= most => (MissReason::AllFound, start),
            None => (MissReason::New, start),
        };
        let lost = lost_to.min(most).saturating_sub(start);
        let cost = self.policy.cost.as_ref().map(|cost| {
            let time = |start: usize| {
                let mut work = Work::default();
                work.add_chunk(start, request.prompt.len() - start, true);
                cost.step_time(&work)
            };
            time(start).since(time(start + lost))
        });
        self.state.seqs[id].miss = Some(CacheMiss { request: request.id, at_token: at, lost, cost, why });
    }

    /// How far the prompt was seen with its own salt, in blocks or in sequences that run.
    fn seen_prefix(&mut self, id: SeqId, request: &Request) -> SeenPrefix {
        let (size, prompt) = (self.state.limits.block_size, &request.prompt);
        let (seq, past, hasher) = (&mut self.state.seqs[id], &self.state.pool.seen, &self.state.hasher);
        let mut blocks = self.plan.hits.len();
        while blocks < prompt.len() / size && past.fate(&seq.content(blocks, hasher).0).is_some() {
            blocks += 1;
        }
        let parent = blocks.checked_sub(1).map(|last| seq.content(last, hasher).0);
        let (common, other) = past.common(parent, request.salt, &prompt[blocks * size..]);
        let behind = prompt.get((blocks + 1) * size..).unwrap_or_default();
        let same_behind = other.map_or(0, |other| past.same_behind(other, behind));
        let (at, goes_on) = (blocks * size + common, other.is_some());
        let mut seen = SeenPrefix { at, last: parent, goes_on, same_behind, running: None };
        for other in self.state.running().filter(|other| other.request.salt == request.salt) {
            let at = common_len(other.tokens(), prompt);
            if at > seen.at && other.request.use_prefix_cache {
                let goes_on = at < prompt.len().min(other.num_tokens());
                let blocks = prompt.chunks_exact(size).zip(other.tokens().chunks_exact(size)).skip(at / size + 1);
                let same_behind = blocks.filter(|(a, b)| a == b).count() * size;
                seen = SeenPrefix { at, goes_on, same_behind, running: Some(other.request.id), ..seen };
            }
        }
        seen
    }

    /// Why the first block that is not found is not, although it was seen.
    fn why_gone(&mut self, id: SeqId, request: &Request, running: Option<RequestId>) -> MissReason {
        let (hash, tokens) = self.state.seqs[id].content(self.plan.hits.len(), &self.state.hasher);
        let parent = self.plan.hits.last().map(|hit| hit.name);
        if self.state.pool.find(&FullBlock { hash, parent, salt: request.salt, tokens }).is_some() {
            return MissReason::NotWorthLoading; // it was found and left out
        }
        match (self.state.pool.seen.fate(&hash), running) {
            (Some(Fate::Lost(at)), _) => MissReason::TierFault(at),
            (Some(Fate::Evicted(at, by)), _) => {
                let by =
                    by.map_or(EvictedBy::Unknown, |Taker { request: by, tenant }| match tenant == request.tenant {
                        true => EvictedBy::Request(by),
                        false => EvictedBy::OtherTenant,
                    });
                MissReason::Evicted(Some(at), by)
            }
            (None, Some(by)) => MissReason::InProgress(by),
            // It is held behind a block that was evicted and computed again.
            _ => MissReason::Evicted(None, EvictedBy::Unknown),
        }
    }

    /// How far the prompt was seen with another salt of its tenant.
    fn seen_with_other_salt(&self, request: &Request) -> Option<usize> {
        let (size, past, prompt) = (self.state.limits.block_size, &self.state.pool.seen, &request.prompt);
        let of_salt = |salt| {
            let (mut parent, mut at) = (None, 0);
            for tokens in prompt.chunks_exact(size) {
                let hash = self.state.hasher.hash(parent.unwrap_or(BlockHash::ROOT), salt, tokens);
                if past.fate(&hash).is_none() {
                    break;
                }
                (parent, at) = (Some(hash), at + size);
            }
            at + past.common(parent, salt, &prompt[at..]).0
        };
        past.other_salts(request.tenant, request.salt).map(of_salt).max()
    }

    /// Keeps the tokens of a sequence that do not fill a block, for prompts that begin as it does.
    pub(crate) fn note_tail(&mut self, id: SeqId) {
        let (seq, size) = (&mut self.state.seqs[id], self.state.limits.block_size);
        if self.state.limits.enable_prefix_caching && seq.request.use_prefix_cache && !seq.prompt_is_remote {
            let full = seq.num_computed / size;
            let parent = full.checked_sub(1).map(|last| seq.content(last, &self.state.hasher).0);
            let tail = &seq.tokens()[full * size..seq.num_computed];
            if let Some(last) = &parent {
                self.state.pool.seen.note_end(last, seq.gap);
            }
            self.state.pool.seen.note_tail(parent, seq.request.salt, tail);
        }
    }
}
