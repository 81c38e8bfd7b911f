//! Fair sharing between tenants, by weighted tokens served.
//!
//! ```text
//! served    A |##############          A floods: its next prompt waits
//!           B |#########               B goes first, until it is level with A
//!           C |         |...           C was idle: it resumes level with the least served active tenant
//! ```
//!
//! A Virtual Token Counter per tenant (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a
//! computed prompt token counts 1, a sampled token 2, times the charge of the request's class, and the tenant with the
//! smallest counter goes first. Idle tenants do not accumulate credit: a returning tenant is lifted to the least served
//! active one. Prefix-cache hits are free because they cost nothing, and recompute after a preemption is free because
//! the tenant did not ask for it.
//!
//! The unit is tokens and not predicted seconds, so that it does not depend on a cost model, is exact (no rounding, no
//! drift), and can be checked by a tenant against reported usage.
//!
//! **A class is a strict priority among a tenant's own requests, and a weight between tenants**
//! ([`charge_per_token`]): an urgent token is charged a quarter, so beside a tenant with the usual class it gets
//! four tokens of five, never five. With strict priority between tenants, one key with urgent requests could starve all
//! others.
//!
//! Order of precedence:
//!
//! 1. Starvation guard: the oldest prompt goes first when it was passed over too often ([`crate::policy`]). This bound
//!    on waiting holds for every tenant, also one that floods.
//! 2. The tenant with the smallest counter; of equals the one with the fewest open requests.
//! 3. Within a tenant the higher class; in it deadlines ([`crate::pace`]), or arrival without a cost model.
//!
//! Tenants precede deadlines because clients choose deadlines: otherwise the tenant that asks for the earliest would
//! always go first. Deadlines are judged as if each tenant had its share of the machine alone.
//!
//! A flood must not displace others elsewhere either: the preemption victim belongs to the most served tenant
//! ([`crate::decode`]; only among sequences ranked after the one that needs the block, so the oldest of the highest
//! class never loses), and [`State::leaves_last_seat`] keeps one seat for returning tenants.
//!
//! With a single tenant none of this has an effect.

use alloc::collections::BTreeMap;

use protocol::Priority;

use crate::sequence::Sequence;
use crate::state::State;

/// Charge of a sampled token, in computed prompt tokens (the paper's weights, close to what providers charge).
const SAMPLED: u64 = 2;
/// Tenants remembered; beyond, the least served idle one is dropped, which forgives at most its debt.
const MOST_KNOWN: usize = 1024;

/// Sort key of a tenant, smallest first: weighted tokens served, then open requests.
pub(crate) type FairnessKey = (u64, usize);

#[derive(Default)]
pub(crate) struct TenantCounters {
    counters: BTreeMap<u64, TenantCounter>,
}

#[derive(Clone, Copy, Default)]
struct TenantCounter {
    served: u64,
    num_open: usize,
}

impl TenantCounters {
    /// A request was admitted.
    pub(crate) fn join(&mut self, tenant: u64) {
        let level = self.level();
        let counter = self.counters.entry(tenant).or_default();
        if counter.num_open == 0 {
            counter.served = counter.served.max(level);
        }
        counter.num_open += 1;
        if self.counters.len() > MOST_KNOWN {
            let idle = self.counters.iter().filter(|(_, counter)| counter.num_open == 0);
            if let Some(&least) = idle.min_by_key(|(_, counter)| counter.served).map(|(key, _)| key) {
                self.counters.remove(&least);
            }
        }
    }

    /// Initial counter of a returning tenant: the least served active one's; without any, no one was kept waiting, and
    /// all start level with the most served.
    fn level(&self) -> u64 {
        let known = || self.counters.values();
        let active = known().filter(|counter| counter.num_open > 0).map(|counter| counter.served).min();
        active.or(known().map(|counter| counter.served).max()).unwrap_or(0)
    }

    pub(crate) fn leave(&mut self, tenant: u64) {
        self.counters.get_mut(&tenant).expect("it joined").num_open -= 1;
    }

    /// Panics unless the open requests of each tenant are counted correctly.
    pub(crate) fn check(&self, open: impl Iterator<Item = u64>) {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        open.for_each(|tenant| *counts.entry(tenant).or_default() += 1);
        for (tenant, counter) in &self.counters {
            assert_eq!(counter.num_open, counts.remove(tenant).unwrap_or(0), "I33: open requests of tenant {tenant}");
        }
        assert!(counts.is_empty(), "I33: {counts:?} are not counted");
    }

    /// Charges for rows of `seq` up to position `end` and for `samples` tokens drawn from them.
    pub(crate) fn serve(&mut self, seq: &mut Sequence, end: usize, samples: usize) {
        let end = end.min(seq.num_prompt_tokens());
        let from = seq.num_computed.max(seq.num_prompt_rows_served);
        let prompt_rows = end.saturating_sub(from) as u64;
        seq.num_prompt_rows_served = end.max(seq.num_prompt_rows_served);
        self.charge(seq, prompt_rows + SAMPLED * samples as u64);
    }

    /// Charges for an accepted draft as for a sampled token, so that the charge equals the tokens delivered; rejected
    /// rows are free.
    pub(crate) fn serve_drafted(&mut self, seq: &Sequence) {
        self.charge(seq, SAMPLED);
    }

    fn charge(&mut self, seq: &Sequence, tokens: u64) {
        // A lone tenant need not be counted: all later tenants start level with it.
        if self.counters.len() > 1 {
            let counter = self.counters.get_mut(&seq.request.tenant).expect("it joined");
            counter.served += charge_per_token(seq.rank.priority) * tokens;
        }
    }

    /// Sort key of a sequence's tenant.
    pub(crate) fn key(&self, seq: &Sequence) -> FairnessKey {
        if self.counters.len() <= 1 {
            return (0, 0);
        }
        let counter = self.counters[&seq.request.tenant];
        (counter.served, counter.num_open)
    }
}

impl State {
    /// Whether the waiting `seq` must leave the last free seat to other tenants: its tenant has its equal share of all
    /// seats, and others, present or past, would have to wait for an answer to end.
    pub(crate) fn leaves_last_seat(&self, seq: &Sequence) -> bool {
        let (num_tenants, num_seats) = (self.tenants.counters.len(), self.limits.max_num_seqs);
        if num_tenants <= 1 {
            return false;
        }
        let own = self.running().filter(|other| other.request.tenant == seq.request.tenant);
        let held: usize = own.map(Sequence::num_seats).sum();
        let is_last = self.seats_taken() + seq.num_seats() >= num_seats;
        is_last && held > 0 && held * num_tenants >= num_seats
    }
}

/// 4 for the usual class, 1 for an urgent one (below 0), 16 for batch work (above). So between two backlogged tenants,
/// one class difference means four tokens of five, two mean sixteen of seventeen.
pub(crate) fn charge_per_token(priority: Priority) -> u64 {
    match priority.0.signum() {
        -1 => 1,
        0 => 4,
        _ => 16,
    }
}
