//! Where a prompt that enters left what was seen: why no more of it was found, and which conversation came back.

use crate::cache_miss::{CacheMiss, MissReason};
use crate::kv::{Fate, FullBlock, Taker, common_len};
use crate::{BlockHash, Request, Scheduler, SeqId, Work};
use protocol::Nanos;

/// Why a block is gone, when it went, and for which request of which tenant.
type Gone = (MissReason, Option<Nanos>, Option<Taker>);

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
        let (mut at, same_behind, running, last) = self.seen_prefix(id, &request);
        if let Some(gap) = last.and_then(|last| self.state.pool.seen.note_return(last)) {
            self.state.seqs[id].gap = gap;
        }
        // What a lookup could find of this number of tokens.
        let whole = |tokens: usize| tokens.min(most) / block_size * block_size;
        let other_salt = (whole(at) < whole(most)).then(|| self.seen_with_other_salt(&request)).flatten();
        let mut gone = None;
        let (why, lost_to) = match other_salt.filter(|&other| whole(other) > whole(at)) {
            _ if !self.state.limits.enable_prefix_caching => (MissReason::Off, start),
            _ if !request.use_prefix_cache => (MissReason::OffForIt, whole(at)),
            _ if whole(at) > start => (gone.insert(self.why_gone(id, &request, running)).0, whole(at)),
            Some(other) => {
                at = other;
                (MissReason::OtherSalt, whole(at))
            }
            None => match same_behind {
                Some(same) if at + same > 0 => (MissReason::OtherToken, at + same),
                _ if at.min(most) > start => (MissReason::BlockNotFull, at),
                _ if at >= most => (MissReason::AllFound, start),
                _ => (MissReason::New, start),
            },
        };
        let (gone_at, gone_for) = gone.map_or((None, None), |(_, at, by)| (at, by));
        let by = gone_for.filter(|by| by.tenant == request.tenant).map(|by| by.request);
        let lost = lost_to.min(most).saturating_sub(start);
        let cost = self.policy.cost.as_ref().map(|cost| {
            let time = |start: usize| {
                let mut work = Work::default();
                work.add_chunk(start, request.prompt.len() - start, true);
                cost.step_time(&work)
            };
            time(start).since(time(start + lost))
        });
        self.state.seqs[id].miss = Some(CacheMiss {
            request: request.id,
            at_token: at,
            lost,
            cost,
            why,
            at: gone_at,
            by,
            by_other_tenant: gone_for.is_some() && by.is_none(),
        });
    }

    /// How far the prompt was seen with its own salt; if that went on with another token, how many tokens behind it are
    /// the same; the running sequence that reaches so far, if the blocks that were seen do not; and the last of those.
    fn seen_prefix(
        &mut self,
        id: SeqId,
        request: &Request,
    ) -> (usize, Option<usize>, Option<Taker>, Option<BlockHash>) {
        let (size, prompt) = (self.state.limits.block_size, &request.prompt);
        let (seq, past, hasher) = (&mut self.state.seqs[id], &self.state.pool.seen, &self.state.hasher);
        let mut blocks = self.plan.hits.len();
        while blocks < prompt.len() / size && past.fate(&seq.content(blocks, hasher).0).is_some() {
            blocks += 1;
        }
        let last = blocks.checked_sub(1).map(|last| seq.content(last, hasher).0);
        let (common, other) = past.common(last, request.salt, &prompt[blocks * size..]);
        let behind = prompt.get((blocks + 1) * size..).unwrap_or_default();
        let mut seen = (blocks * size + common, other.map(|other| past.same_behind(other, behind)), None, last);
        for other in self.state.running().filter(|other| other.request.salt == request.salt) {
            let tokens = other.tokens();
            // Most have no more in common than that, and are not compared.
            let is_longer = seen.0 < prompt.len() && tokens.get(seen.0) == prompt.get(seen.0);
            let at = if is_longer { common_len(tokens, prompt) } else { 0 };
            if at > seen.0 && other.request.use_prefix_cache {
                let blocks = prompt.chunks_exact(size).zip(tokens.chunks_exact(size)).skip(at / size + 1);
                let same = || blocks.filter(|(a, b)| a == b).count() * size;
                seen = (at, (at < prompt.len().min(tokens.len())).then(same), Taker::of(&other.request), last);
            }
        }
        seen
    }

    /// Why the first block that is not found is not, although it was seen; when it went, and for which request.
    fn why_gone(&mut self, id: SeqId, request: &Request, running: Option<Taker>) -> Gone {
        let (hash, tokens) = self.state.seqs[id].content(self.plan.hits.len(), &self.state.hasher);
        let parent = self.plan.hits.last().map(|hit| hit.name);
        if self.state.pool.find(&FullBlock { hash, parent, salt: request.salt, tokens }).is_some() {
            // It was found and left out.
            let has_states = self.state.limits.states.is_some();
            let why = if has_states { MissReason::NoCheckpoint } else { MissReason::NotWorthLoading };
            return (why, None, None);
        }
        match (self.state.pool.seen.fate(&hash), running) {
            (Some(Fate::Lost(at)), _) => (MissReason::TierFault, Some(at), None),
            (Some(Fate::Evicted(at, by)), _) => (MissReason::Evicted, Some(at), by),
            (None, by @ Some(_)) => (MissReason::InProgress, None, by),
            // It is held behind a block that was evicted and computed again.
            _ => (MissReason::Evicted, None, None),
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
