//! Waiting sequences in three orders: by rank; by tenant and rank, for fairness; and by age, for the starvation guard.

use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::Bound::{Excluded, Included};

use crate::SeqId;
use crate::sequence::{Rank, Sequence};

/// The waiting sequences. A preempted one keeps its rank, ahead of later arrivals.
#[derive(Default)]
pub(crate) struct Queue {
    by_rank: BTreeSet<(Rank, SeqId)>,
    by_tenant: BTreeMap<(u64, Rank), SeqId>,
    by_age: BTreeSet<(u64, usize, SeqId)>,
    num_tenants: usize,
    num_tokens: usize,
}

impl Queue {
    pub(crate) fn insert(&mut self, seq: &Sequence) {
        self.by_age.insert((seq.rank.arrival, seq.rank.answer, seq.id));
        assert!(self.by_rank.insert((seq.rank, seq.id)), "a sequence waits once");
        self.num_tenants += usize::from(!self.has_tenant(seq.request.tenant));
        self.by_tenant.insert((seq.request.tenant, seq.rank), seq.id);
        self.num_tokens += seq.num_tokens();
    }

    pub(crate) fn remove(&mut self, seq: &Sequence) {
        self.by_age.remove(&(seq.rank.arrival, seq.rank.answer, seq.id));
        assert!(self.by_rank.remove(&(seq.rank, seq.id)), "a sequence leaves the queue once");
        self.by_tenant.remove(&(seq.request.tenant, seq.rank));
        self.num_tenants -= usize::from(!self.has_tenant(seq.request.tenant));
        self.num_tokens -= seq.num_tokens();
    }

    /// The head of each tenant's line.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = (Rank, SeqId)> {
        self.tenants().filter_map(|tenant| self.of_tenant(tenant).next())
    }

    /// The first sequences of each tenant, the same number of each; about `most` in all, at least one of each.
    pub(crate) fn firsts_evenly(&self, most: usize) -> impl Iterator<Item = SeqId> {
        let each = (most / self.num_tenants.max(1)).max(1);
        self.tenants().flat_map(move |tenant| self.of_tenant(tenant).take(each)).map(|(_, id)| id)
    }

    /// Of each tenant with more waiting than [`Queue::firsts_evenly`] returns, the newest of its first class; about
    /// `most` in all. The newest may still be on time when all earlier ones are late.
    pub(crate) fn newest_evenly(&self, looked_at: usize, most: usize) -> impl Iterator<Item = SeqId> {
        let each = |most: usize| (most / self.num_tenants.max(1)).max(1);
        let (looked_at, most) = (each(looked_at), each(most));
        self.tenants().flat_map(move |tenant| {
            let mut line = self.of_tenant(tenant);
            let first = line.next();
            let seen = if looked_at > 1 { line.nth(looked_at - 2) } else { first };
            let from_to = first.zip(seen).filter(|((first, _), (seen, _))| first.priority == seen.priority);
            let class = from_to.map(|((first, _), (seen, _))| {
                let end = Rank { priority: first.priority, arrival: u64::MAX, answer: usize::MAX };
                self.by_tenant.range((Excluded((tenant, seen)), Included((tenant, end))))
            });
            class.into_iter().flat_map(move |class| class.rev().take(most)).map(|(_, &id)| id)
        })
    }

    fn has_tenant(&self, tenant: u64) -> bool {
        self.of_tenant(tenant).next().is_some()
    }

    /// Tenants that wait, each once. Cost: a binary search each.
    fn tenants(&self) -> impl Iterator<Item = u64> {
        let from = |tenant: u64| self.by_tenant.range((tenant, Rank::FIRST)..).next().map(|(&(tenant, _), _)| tenant);
        core::iter::successors(from(0), move |tenant| from(tenant.checked_add(1)?))
    }

    fn of_tenant(&self, tenant: u64) -> impl Iterator<Item = (Rank, SeqId)> {
        let from = self.by_tenant.range((tenant, Rank::FIRST)..);
        from.take_while(move |&(&(other, _), _)| other == tenant).map(|(&(_, rank), &id)| (rank, id))
    }

    /// The earliest arrival, regardless of class.
    pub(crate) fn oldest(&self) -> Option<SeqId> {
        self.by_age.first().map(|&(_, _, id)| id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_rank.len()
    }

    /// Known tokens of the waiting sequences, none of which is computed.
    pub(crate) fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = SeqId> {
        self.by_rank.iter().map(|&(_, id)| id)
    }
}
