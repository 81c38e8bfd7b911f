//! Why no more of a prompt was found in the prefix cache, told when it enters.
//!
//! ```text
//! prompt    [ found | found | was there, is gone | same tokens | other tokens ... ]
//!                           ^ cached                           ^ at_token
//! ```
//!
//! A fact beside the plan: it changes no decision.

use crate::kv::{Fate, FullBlock, Taker, common_len};
use crate::{CostModel, Request, Scheduler, SeqId, Work};
use protocol::{Nanos, RequestId, TokenId};

/// Where a prompt left the longest prefix that its tenant was seen with, and why no more of it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheMiss {
    /// The request.
    pub request: RequestId,
    /// Index of the first token that was not seen behind those before it; the prompt's length if all were.
    pub at_token: usize,
    /// Tokens that are computed and could have been found: those up to there, or what the reason says.
    pub lost: usize,
    /// Predicted time to compute them; `None` without a cost model.
    pub cost: Option<Nanos>,
    /// Why.
    pub why: MissReason,
}

/// Why no more was found. What is seen of others is of the same tenant.
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
    /// It was evicted.
    Evicted {
        /// When, if that is known.
        at: Option<Nanos>,
        /// For whom.
        by: EvictedBy,
    },
    /// The rest does not fill a block.
    BlockNotFull,
    /// It was in a tier that could not be read.
    TierFault {
        /// When that was noticed.
        at: Nanos,
    },
    /// It is in a tier, and computing it is predicted to be faster than loading it.
    NotWorthLoading,
    /// Another request computes it at this moment.
    InProgress {
        /// Which.
        by: RequestId,
    },
    /// The prefix cache is off.
    Off {
        /// For this request, which needs the logits of its prompt; else for all.
        by_request: bool,
    },
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
    pub const NAMES: [&str; 10] = [
        "all_found",
        "new",
        "other_token",
        "other_salt",
        "evicted",
        "block_not_full",
        "tier_fault",
        "not_worth_loading",
        "in_progress",
        "off",
    ];

    /// Its place in [`MissReason::NAMES`].
    pub fn index(&self) -> usize {
        match self {
            MissReason::AllFound => 0,
            MissReason::New => 1,
            MissReason::OtherToken => 2,
            MissReason::OtherSalt => 3,
            MissReason::Evicted { .. } => 4,
            MissReason::BlockNotFull => 5,
            MissReason::TierFault { .. } => 6,
            MissReason::NotWorthLoading => 7,
            MissReason::InProgress { .. } => 8,
            MissReason::Off { .. } => 9,
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        MissReason::NAMES[self.index()]
    }
}

/// How far the tenant was seen with a prompt, and what went on with another token there.
struct Seen {
    at: usize,
    goes_on: bool,
    /// Tokens in whole blocks behind it that are the same.
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
        let (found, most) = (self.plan.hits.len(), request.prompt.len() - 1);
        self.state.pool.seen.note_salt(request.tenant, request.salt);
        let seen = self.seen(id, &request);
        let whole = |tokens: usize| tokens.min(most) / block_size;
        let (mut at, mut lost_to) = (seen.at, whole(seen.at) * block_size);
        let why = if !self.state.limits.enable_prefix_caching {
            MissReason::Off { by_request: false }
        } else if !request.use_prefix_cache {
            MissReason::Off { by_request: true }
        } else if whole(at) > found {
            self.why_gone(id, &request, seen.running)
        } else if let Some(other) = self.seen_with_other_salt(&request).filter(|&other| whole(other) > whole(at)) {
            (at, lost_to) = (other, whole(other) * block_size);
            MissReason::OtherSalt
        } else {
            lost_to = at + seen.same_behind;
            match at.min(most) > found * block_size {
                _ if seen.goes_on => MissReason::OtherToken,
                true => MissReason::BlockNotFull,
                false if at >= most => MissReason::AllFound,
                false => MissReason::New,
            }
        };
        let start = found * block_size;
        let lost = lost_to.min(most).saturating_sub(start);
        let cost = self.policy.cost.as_ref().map(|cost| time_lost(cost, start, lost, request.prompt.len()));
        self.state.seqs[id].miss = Some(CacheMiss { request: request.id, at_token: at, lost, cost, why });
    }

    /// How far the prompt was seen with its own salt, in blocks or in sequences that run.
    fn seen(&mut self, id: SeqId, request: &Request) -> Seen {
        let (block_size, prompt) = (self.state.limits.block_size, &request.prompt);
        let (seq, past) = (&mut self.state.seqs[id], &self.state.pool.seen);
        let mut blocks = self.plan.hits.len();
        while (blocks + 1) * block_size <= prompt.len()
            && past.fate(&seq.content(blocks, &self.state.hasher).0).is_some()
        {
            blocks += 1;
        }
        let parent = blocks.checked_sub(1).map(|last| seq.content(last, &self.state.hasher).0);
        let common = past.common(parent, request.salt, &prompt[blocks * block_size..]);
        let behind = prompt.get((blocks + 1) * block_size..).unwrap_or_default();
        let mut seen = Seen {
            at: blocks * block_size + common.len,
            goes_on: common.other.is_some(),
            same_behind: common.other.map_or(0, |other| past.same_behind(other, behind)),
            running: None,
        };
        for other in self.state.running().filter(|other| other.request.salt == request.salt) {
            let at = common_len(other.tokens(), prompt);
            if at > seen.at && other.request.use_prefix_cache {
                let blocks = prompt.chunks_exact(block_size).zip(other.tokens().chunks_exact(block_size));
                seen = Seen {
                    at,
                    goes_on: at < prompt.len() && at < other.num_tokens(),
                    same_behind: blocks.skip(at / block_size + 1).filter(|(a, b)| a == b).count() * block_size,
                    running: Some(other.request.id),
                };
            }
        }
        seen
    }

    /// Why the first block that is not found is not, although it was seen.
    fn why_gone(&mut self, id: SeqId, request: &Request, running: Option<RequestId>) -> MissReason {
        let (hash, tokens) = self.state.seqs[id].content(self.plan.hits.len(), &self.state.hasher);
        let parent = self.plan.hits.last().map(|hit| hit.name);
        if self.state.pool.find(&FullBlock { hash, parent, salt: request.salt, tokens }).is_some() {
            return MissReason::NotWorthLoading; // what is found was left out
        }
        match (self.state.pool.seen.fate(&hash), running) {
            (Some(Fate::Lost { at }), _) => MissReason::TierFault { at },
            (Some(Fate::Evicted { at, by }), _) => MissReason::Evicted {
                at: Some(at),
                by: match by {
                    Some(Taker { request: by, tenant }) if tenant == request.tenant => EvictedBy::Request(by),
                    Some(_) => EvictedBy::OtherTenant,
                    None => EvictedBy::Unknown,
                },
            },
            (None, Some(by)) => MissReason::InProgress { by },
            // It is held behind a block that was evicted and computed again.
            _ => MissReason::Evicted { at: None, by: EvictedBy::Unknown },
        }
    }

    /// How far the prompt was seen with another salt of its tenant.
    fn seen_with_other_salt(&self, request: &Request) -> Option<usize> {
        let (block_size, past) = (self.state.limits.block_size, &self.state.pool.seen);
        let of_salt = |salt| {
            let (mut parent, mut at) = (None, 0);
            for tokens in request.prompt.chunks_exact(block_size) {
                let hash = self.state.hasher.hash(parent.unwrap_or(crate::BlockHash::ROOT), salt, tokens);
                if past.fate(&hash).is_none() {
                    break;
                }
                (parent, at) = (Some(hash), at + block_size);
            }
            at + past.common(parent, salt, &request.prompt[at..]).len
        };
        past.other_salts(request.tenant, request.salt).map(of_salt).max()
    }

    /// Keeps the tokens of a sequence that do not fill a block, for prompts that begin as it does.
    pub(crate) fn note_tail(&mut self, id: SeqId) {
        let seq = &mut self.state.seqs[id];
        if self.state.limits.enable_prefix_caching && seq.request.use_prefix_cache && !seq.prompt_is_remote {
            let (full, computed) = (seq.num_computed / self.state.limits.block_size, seq.num_computed);
            let parent = full.checked_sub(1).map(|last| seq.content(last, &self.state.hasher).0);
            let tail: &[TokenId] = &seq.tokens()[full * self.state.limits.block_size..computed];
            self.state.pool.seen.note_tail(parent, seq.request.salt, tail);
        }
    }
}

/// What the rows of a prompt take beyond those that would be left without the lost tokens.
fn time_lost(cost: &CostModel, start: usize, lost: usize, end: usize) -> Nanos {
    let time = |start: usize| {
        let mut work = Work::default();
        work.add_chunk(start, end - start, true);
        cost.step_time(&work)
    };
    time(start).since(time(start + lost))
}
