//! Why no more of a prompt was found in the prefix cache, and that no tenant is told of another.

use std::ops::Range;

use protocol::{Nanos, RequestId};
use scheduler::cost::Terms;
use scheduler::{CacheMiss, Limits, MissReason, Request, Scheduler, Tier, TierSizes, Transfer};
use testing::{Dice, plans};

struct World {
    scheduler: Scheduler,
    now: u64,
    misses: Vec<CacheMiss>,
    /// Whether tiers can be read.
    reads: bool,
}

impl World {
    fn new(limits: &Limits) -> World {
        let scheduler = Scheduler::new(limits.clone()).expect("good limits");
        World { scheduler, now: 0, misses: Vec::new(), reads: true }
    }

    /// Runs these to their ends; what the last one was told.
    fn ask(&mut self, requests: &[Request]) -> CacheMiss {
        requests.iter().for_each(|request| self.scheduler.admit(request.clone()).expect("room"));
        while self.scheduler.has_work() {
            self.now += 1;
            let step = self.scheduler.schedule(Nanos(self.now));
            self.scheduler.check_invariants();
            step.loads.iter().for_each(|&load| self.scheduler.load_ended(load, self.reads, Nanos(1)));
            if !step.is_empty() {
                self.misses.extend(self.scheduler.complete(plans::answer(&step, 900), Nanos(self.now)).record.misses);
            }
        }
        let last = requests.last().expect("one is asked").id;
        let mut told = self.misses.iter().filter(|miss| miss.request == last);
        let miss = *told.next().expect("each is told");
        assert_eq!(told.count(), 0, "and once");
        miss
    }
}

/// One token is generated, and not computed.
fn request(id: u64, tenant: u64, salt: u64, prompt: Range<u32>) -> Request {
    Request { tenant, salt, stop: plans::at_most(1), ..plans::request(id, prompt.collect::<Vec<_>>()) }
}

#[test]
fn each_miss_has_its_reason() {
    use MissReason::*;
    let of = |id, prompt| request(id, 1, 10, prompt);
    let first = || of(1, 0..20);
    let again = || of(3, 0..20);
    let mut changed = (0..20).collect::<Vec<_>>();
    changed[6] = 99;
    let changed = Request { prompt: changed.into(), ..again() };
    let unread = Request { use_prefix_cache: false, ..again() };
    let others = request(2, 2, 20, 100..128);
    let roomy = &plans::small();
    // Two prompts do not fit.
    let small = &Limits { num_blocks: 8, ..roomy.clone() };
    let off = &Limits { enable_prefix_caching: false, ..roomy.clone() };
    let beside = &Limits { max_num_batched_tokens: 16, ..roomy.clone() };
    let gone = |by: Option<u64>| (Some(Nanos(4)), by.map(RequestId), by.is_none());
    let (known, beside_1) = ((None, None, false), (None, Some(RequestId(1)), false));
    for (what, limits, turns, at_token, lost, why, gone) in [
        ("nothing was seen", roomy, vec![vec![first()]], 0, 0, New, known),
        // Two of its block, and three whole ones behind it.
        ("a token differs", roomy, vec![vec![first()], vec![changed]], 6, 14, OtherToken, known),
        ("another salt", roomy, vec![vec![first()], vec![request(3, 1, 11, 0..20)]], 20, 16, OtherSalt, known),
        ("another tenant", roomy, vec![vec![first()], vec![request(3, 2, 20, 0..20)]], 0, 0, New, known),
        ("18 tokens", roomy, vec![vec![of(1, 0..18)], vec![of(3, 0..18)]], 18, 1, BlockNotFull, known),
        ("17 tokens", roomy, vec![vec![of(1, 0..17)], vec![of(3, 0..17)]], 17, 0, AllFound, known),
        ("a longer one", roomy, vec![vec![of(1, 0..16)], vec![of(3, 0..24)]], 16, 0, New, known),
        ("beside", beside, vec![vec![first(), again()]], 20, 16, InProgress, beside_1),
        ("evicted", small, vec![vec![first()], vec![of(2, 100..128)], vec![again()]], 20, 12, Evicted, gone(Some(2))),
        ("for another's", small, vec![vec![first()], vec![others], vec![again()]], 20, 12, Evicted, gone(None)),
        ("off for it", roomy, vec![vec![first()], vec![unread]], 20, 16, OffForIt, known),
        ("off", off, vec![vec![first()], vec![again()]], 0, 0, Off, known),
    ] {
        let mut world = World::new(limits);
        let told = turns.iter().map(|turn| world.ask(turn)).last().expect("a turn");
        assert_eq!((told.at_token, told.lost, told.cost, told.why), (at_token, lost, None, why), "{what}");
        assert_eq!((told.at, told.by, told.by_other_tenant), gone, "{what}");
    }
    for (reads, load, why) in [(false, 1, TierFault), (true, 1_000_000_000, NotWorthLoading)] {
        let mut world = World::new(small);
        world.scheduler.set_tiers(TierSizes { host_slots: 16, disk_slots: 0 });
        world.scheduler.set_cost_model(Some(plans::machine_of(&[(1, 0.001), (1001, 1.001)], Terms::default())));
        world.scheduler.add_transfer_time(Transfer::Load(Tier::Host), 1, Nanos(load));
        world.ask(&[first()]);
        world.ask(&[of(2, 100..128)]);
        world.reads = reads;
        let told = world.ask(&[again()]);
        assert_eq!((told.at_token, told.why), (20, why));
        assert!(told.lost > 0 && told.cost > Some(Nanos(0)), "{told:?}");
    }
}

#[test]
fn what_a_tenant_is_told_does_not_depend_on_what_another_one_sent() {
    let mut whys = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let mut dice = Dice::new(seed);
        let limits = &Limits { num_blocks: 10_000, ..plans::small() };
        let (mut both, mut alone) = (World::new(limits), World::new(limits));
        for id in 1..60 {
            // Prompts of both begin alike; two salts each.
            let (tenant, kind) = (dice.below(2), dice.below(2) as u32);
            let prompt: Vec<_> = (0..1 + dice.below(30) as u32).map(|at| at / 5 * kind).collect();
            let asked = Request { prompt: prompt.into(), ..request(id, tenant, 2 * tenant + dice.below(2), 0..1) };
            let told = both.ask(std::slice::from_ref(&asked));
            if tenant == 0 {
                assert_eq!(told, alone.ask(&[asked]), "seed {seed}");
                whys.insert(told.why as usize);
            }
        }
    }
    assert!(whys.len() >= 5, "it sees several reasons: {whys:?}");
}

#[test]
fn what_is_forgotten_takes_no_room_and_is_no_culprit() {
    let mut world = World::new(&Limits { num_blocks: 8, ..plans::small() });
    let first = || request(1, 1, 10, 0..20);
    world.ask(&[first()]);
    let before = world.scheduler.cached_blocks();
    // Five blocks are cached; the first of these has room beside them, and the second has not.
    for (id, prompt, found) in [(2, 100..112, true), (3, 100..128, false)] {
        world.scheduler.mark_cache();
        world.ask(&[request(id, 2, 99, prompt)]);
        world.scheduler.forget_cache();
        world.scheduler.check_invariants();
        let now = world.scheduler.cached_blocks();
        assert_eq!((now == before, now <= before), (found, true), "{now} of {before}");
    }
    let miss = world.ask(&[Request { id: RequestId(4), ..first() }]);
    assert_eq!((miss.why, miss.by, miss.by_other_tenant), (MissReason::Evicted, None, false), "{miss:?}");
    assert!(miss.at.is_some(), "when is told");
}
