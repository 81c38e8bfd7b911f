//! Who waits, in two orders: by rank, to be served, and by age, so that nobody is forgotten.

use alloc::collections::BTreeSet;

use crate::SeqId;
use crate::sequence::{Rank, Sequence};

/// The waiting sequences. One that was preempted is among them at its old rank, before all that came after it.
#[derive(Default)]
pub(crate) struct Queue {
    by_rank: BTreeSet<(Rank, SeqId)>,
    by_age: BTreeSet<(u64, usize, SeqId)>,
    num_tokens: usize,
    /// Of those that never ran: what the limits of the queue are about.
    num_new: usize,
    num_new_tokens: usize,
}

impl Queue {
    pub(crate) fn insert(&mut self, seq: &Sequence) {
        self.by_age.insert((seq.rank.arrival, seq.rank.answer, seq.id));
        assert!(self.by_rank.insert((seq.rank, seq.id)), "a sequence waits once");
        self.num_tokens += seq.num_tokens();
        if !seq.has_run() {
            self.num_new += 1;
            self.num_new_tokens += seq.num_tokens();
        }
    }

    pub(crate) fn remove(&mut self, seq: &Sequence) {
        self.by_age.remove(&(seq.rank.arrival, seq.rank.answer, seq.id));
        assert!(self.by_rank.remove(&(seq.rank, seq.id)), "a sequence leaves the queue once");
        self.num_tokens -= seq.num_tokens();
        if !seq.has_run() {
            self.num_new -= 1;
            self.num_new_tokens -= seq.num_tokens();
        }
    }

    /// Next in line.
    pub(crate) fn first(&self) -> Option<(Rank, SeqId)> {
        self.by_rank.first().copied()
    }

    /// The one that came before all others, whatever its class.
    pub(crate) fn oldest(&self) -> Option<SeqId> {
        self.by_age.first().map(|&(_, _, id)| id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_rank.len()
    }

    /// Tokens that the waiting sequences know, none of which is computed.
    pub(crate) fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    /// Sequences that never ran, each a whole request.
    pub(crate) fn num_new(&self) -> usize {
        self.num_new
    }

    /// Their tokens.
    pub(crate) fn num_new_tokens(&self) -> usize {
        self.num_new_tokens
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = SeqId> {
        self.by_rank.iter().map(|&(_, id)| id)
    }
}
