//! Whose turn it is: tenants share what there is by the tokens they were served.
//!
//! ```text
//! served    A |##############          A floods: its next prompt waits
//!           B |#########               B goes first, until it is level with A
//!           C |         |...           C was idle: it comes back level with the least served that is active
//! ```
//!
//! A Virtual Token Counter for each tenant (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a
//! computed prompt token counts 1, a sampled token 2, times what the request's class is charged; and of all tenants
//! that want something the one with the smallest counter goes first. Saved rights do not pile up: who comes back from
//! idle is lifted to the least served tenant that is active. What the prefix cache had counts nothing, because it costs
//! nothing; what is computed again after a preemption counts nothing, because nobody asked for it.
//!
//! Counted in tokens and not in the cost model's seconds, so that it is the same with and without a model, exact (no
//! rounding, no drift), and a number that a tenant can check against the usage it was told.
//!
//! **A class is a right of way among a tenant's own requests, and a weight between tenants**
//! ([`crate::Priority::charge`]): who asks urgently pays a quarter for each token, so beside one who does not it gets
//! four tokens of five, and never five. Were it a right of way between tenants too, one key with urgent requests could
//! silence all the others.
//!
//! How it goes together with the other rules of order, strongest first:
//!
//! 1. Patience: the oldest prompt goes first when it was passed over too often ([`crate::policy`]). The bound on
//!    waiting holds for everybody, also for one who floods.
//! 2. The tenant with the smallest counter; of equals the one with the fewest open requests.
//! 3. Within a tenant the higher class; in it deadlines ([`crate::pace`]), or arrival without a cost model.
//!
//! Tenants come before deadlines, because a deadline is a wish of the one who sends: by deadlines first, whoever asks
//! for the earliest would always go first. Deadlines are judged as if each tenant had its share of the machine alone.
//!
//! Two more places where a flood would press others out: the victim of a preemption is of the most served tenant
//! ([`crate::decode`]; only among sequences behind the one that needs the block, so that the oldest of the highest
//! class never loses), and [`State::leaves_last_seat`] keeps one seat for who comes back.
//!
//! One tenant alone has the order that there was without tenants.

use alloc::collections::BTreeMap;

use crate::sequence::Sequence;
use crate::state::State;

/// What a sampled token counts, in computed prompt tokens (the paper's weights, close to what providers charge).
const SAMPLED: u64 = 2;
/// Tenants that are remembered; beyond, the least served idle one is forgotten, which loses a debt at most.
const MOST_KNOWN: usize = 1024;

/// Whose turn it is, smallest first: weighted tokens served, then open requests.
pub(crate) type Turn = (u64, usize);

/// The counters.
#[derive(Default)]
pub(crate) struct Shares {
    tenants: BTreeMap<u64, Share>,
}

#[derive(Clone, Copy, Default)]
struct Share {
    served: u64,
    num_open: usize,
}

impl Shares {
    /// A request was admitted.
    pub(crate) fn join(&mut self, tenant: u64) {
        let level = self.level();
        let share = self.tenants.entry(tenant).or_default();
        if share.num_open == 0 {
            share.served = share.served.max(level);
        }
        share.num_open += 1;
        if self.tenants.len() > MOST_KNOWN {
            let idle = self.tenants.iter().filter(|(_, share)| share.num_open == 0);
            if let Some(&least) = idle.min_by_key(|(_, share)| share.served).map(|(key, _)| key) {
                self.tenants.remove(&least);
            }
        }
    }

    /// Where one that comes back begins: the least served of the active; if nobody is, nobody was kept waiting, and
    /// all begin level with the most served.
    fn level(&self) -> u64 {
        let known = || self.tenants.values();
        let active = known().filter(|share| share.num_open > 0).map(|share| share.served).min();
        active.or(known().map(|share| share.served).max()).unwrap_or(0)
    }

    /// A request ended.
    pub(crate) fn leave(&mut self, tenant: u64) {
        self.tenants.get_mut(&tenant).expect("it joined").num_open -= 1;
    }

    /// Panics unless the open requests of each tenant are counted right.
    pub(crate) fn check(&self, open: impl Iterator<Item = u64>) {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        open.for_each(|tenant| *counts.entry(tenant).or_default() += 1);
        for (tenant, share) in &self.tenants {
            assert_eq!(share.num_open, counts.remove(tenant).unwrap_or(0), "I33: open requests of tenant {tenant}");
        }
        assert!(counts.is_empty(), "I33: {counts:?} are not counted");
    }

    /// Rows of `seq` up to position `end` are planned, and `samples` tokens will be drawn from them.
    pub(crate) fn serve(&mut self, seq: &mut Sequence, end: usize, samples: usize) {
        let end = end.min(seq.num_prompt_tokens());
        let from = seq.num_computed.max(seq.num_prompt_rows_served);
        let prompt_rows = end.saturating_sub(from) as u64;
        seq.num_prompt_rows_served = end.max(seq.num_prompt_rows_served);
        self.charge(seq, prompt_rows + SAMPLED * samples as u64);
    }

    /// A guess held, and its token is one that was drawn besides: what is paid is what came, so that a tenant can check
    /// it; rows whose guess was wrong are free.
    pub(crate) fn serve_drafted(&mut self, seq: &Sequence) {
        self.charge(seq, SAMPLED);
    }

    fn charge(&mut self, seq: &Sequence, tokens: u64) {
        // Alone, a tenant need not be counted: all who come later begin level with it.
        if self.tenants.len() > 1 {
            let share = self.tenants.get_mut(&seq.request.tenant).expect("it joined");
            share.served += seq.rank.priority.charge() * tokens;
        }
    }

    /// Whose turn a sequence's tenant is. Equal for all of one tenant.
    pub(crate) fn turn(&self, seq: &Sequence) -> Turn {
        if self.tenants.len() <= 1 {
            return (0, 0);
        }
        let share = self.tenants[&seq.request.tenant];
        (share.served, share.num_open)
    }
}

impl State {
    /// Whether `seq`, which waits, is to leave the last free seat to others: its tenant has its equal share of all
    /// seats, and there are or were others, who would else wait for an answer to end.
    pub(crate) fn leaves_last_seat(&self, seq: &Sequence) -> bool {
        let (num_tenants, num_seats) = (self.shares.tenants.len(), self.limits.max_num_seqs);
        if num_tenants <= 1 {
            return false;
        }
        let own = self.running().filter(|other| other.request.tenant == seq.request.tenant);
        let held: usize = own.map(Sequence::num_seats).sum();
        let is_last = self.seats_taken() + seq.num_seats() >= num_seats;
        is_last && held > 0 && held * num_tenants >= num_seats
    }
}
