//! Why no more of a prompt was found in the prefix cache, and that no tenant is told of another.

use protocol::{Nanos, RequestId, TokenId};
use scheduler::cost::Terms;
use scheduler::{CacheMiss, EvictedBy, Limits, MissReason, Request, Scheduler, Step, Tier, TierSizes, Transfer};
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

    fn step(&mut self) {
        self.now += 1;
        let step: Step = self.scheduler.schedule(Nanos(self.now));
        self.scheduler.check_invariants();
        for &load in &step.loads {
            self.scheduler.load_ended(load, self.reads, Nanos(1));
        }
        if !step.is_empty() {
            self.misses.extend(self.scheduler.complete(plans::answer(&step, 900), Nanos(self.now)).record.misses);
        }
    }

    /// Runs these to their ends; what the last one was told.
    fn ask(&mut self, requests: impl IntoIterator<Item = Request>) -> CacheMiss {
        let mut last = RequestId(0);
        for request in requests {
            last = request.id;
            self.scheduler.admit(request).expect("room");
        }
        while self.scheduler.has_work() {
            self.step();
        }
        let mut told = self.misses.iter().filter(|miss| miss.request == last);
        let miss = *told.next().expect("each is told");
        assert_eq!(told.count(), 0, "and once");
        miss
    }
}

/// One token is generated, and not computed.
fn request(id: u64, tenant: u64, salt: u64, prompt: Vec<TokenId>) -> Request {
    Request { tenant, salt, stop: plans::at_most(1), ..plans::request(id, prompt) }
}

fn tokens(range: std::ops::Range<u32>) -> Vec<TokenId> {
    range.collect()
}

#[test]
fn each_miss_has_its_reason() {
    use MissReason::*;
    let of = |id, prompt| request(id, 1, 10, prompt);
    let first = || of(1, tokens(0..20));
    let mut changed = tokens(0..20);
    changed[6] = 99;
    let roomy = &plans::small();
    // Two prompts do not fit.
    let small = &Limits { num_blocks: 8, ..roomy.clone() };
    let beside = &Limits { max_num_batched_tokens: 16, ..roomy.clone() };
    let filler = |tenant| request(2, tenant, 10 * tenant, tokens(100..128));
    let evicted = |by| Evicted(Some(Nanos(4)), by);
    let unread = Request { use_prefix_cache: false, ..of(2, tokens(0..20)) };
    let off = &Limits { enable_prefix_caching: false, ..roomy.clone() };
    let cases = vec![
        ("nothing was seen", roomy, vec![vec![first()]], 0, 0, New),
        // Two of its block, and three whole ones behind it.
        ("a token differs", roomy, vec![vec![first()], vec![of(2, changed)]], 6, 14, OtherToken),
        ("another salt", roomy, vec![vec![first()], vec![request(2, 1, 11, tokens(0..20))]], 20, 16, OtherSalt),
        ("another tenant", roomy, vec![vec![first()], vec![request(2, 2, 20, tokens(0..20))]], 0, 0, New),
        ("18 tokens", roomy, vec![vec![of(1, tokens(0..18))], vec![of(2, tokens(0..18))]], 18, 1, BlockNotFull),
        ("17 tokens", roomy, vec![vec![of(1, tokens(0..17))], vec![of(2, tokens(0..17))]], 17, 0, AllFound),
        ("a longer one", roomy, vec![vec![of(1, tokens(0..16))], vec![of(2, tokens(0..24))]], 16, 0, New),
        ("beside", beside, vec![vec![first(), of(2, tokens(0..20))]], 20, 16, InProgress(RequestId(1))),
        (
            "evicted by its own",
            small,
            vec![vec![first()], vec![filler(1)], vec![of(3, tokens(0..20))]],
            20,
            12,
            evicted(EvictedBy::Request(RequestId(2))),
        ),
        (
            "evicted by another's",
            small,
            vec![vec![first()], vec![filler(2)], vec![of(3, tokens(0..20))]],
            20,
            12,
            evicted(EvictedBy::OtherTenant),
        ),
        ("off for it", roomy, vec![vec![first()], vec![unread]], 20, 16, OffForIt),
        ("off", off, vec![vec![first()], vec![of(2, tokens(0..20))]], 0, 0, Off),
    ];
    for (what, limits, turns, at_token, lost, why) in cases {
        let mut world = World::new(limits);
        let told = turns.into_iter().map(|turn| world.ask(turn)).last().expect("a turn");
        assert_eq!(told, CacheMiss { request: told.request, at_token, lost, cost: None, why }, "{what}");
    }
}

#[test]
fn a_tier_that_fails_or_is_slow_is_named_and_the_loss_is_predicted() {
    for (reads, load, why) in
        [(false, Nanos(1), MissReason::TierFault(Nanos(8))), (true, Nanos(1_000_000_000), MissReason::NotWorthLoading)]
    {
        let mut world = World::new(&Limits { num_blocks: 8, ..plans::small() });
        world.scheduler.set_tiers(TierSizes { host_slots: 16, disk_slots: 0 });
        world.scheduler.set_cost_model(Some(plans::machine_of(&[(1, 0.001), (1001, 1.001)], Terms::default())));
        world.scheduler.add_transfer_time(Transfer::Load(Tier::Host), 1, load);
        world.ask([request(1, 1, 10, tokens(0..20))]);
        world.ask([request(2, 1, 10, tokens(100..128))]);
        world.reads = reads;
        let told = world.ask([request(3, 1, 10, tokens(0..20))]);
        assert_eq!((told.at_token, told.why), (20, why));
        assert!(told.lost > 0 && told.cost > Some(Nanos(0)), "{told:?}");
    }
}

#[test]
fn what_a_tenant_is_told_does_not_depend_on_what_another_one_sent() {
    for seed in 0..20 {
        let mut dice = Dice::new(seed);
        let limits = Limits { num_blocks: 10_000, ..plans::small() };
        let (mut both, mut alone) = (World::new(&limits), World::new(&limits));
        for id in 1..60 {
            // Prompts of both begin alike; two salts each.
            let kind = dice.below(2) as u32;
            let prompt = (0..1 + dice.below(30) as u32).map(|at| at / 5 * kind).collect();
            let tenant = dice.below(2);
            let request = request(id, tenant, 2 * tenant + dice.below(2), prompt);
            let told = both.ask([request.clone()]);
            if tenant == 0 {
                assert_eq!(told, alone.ask([request]), "seed {seed}");
            }
        }
        let whys =
            |world: &World| world.misses.iter().map(|miss| miss.why.index()).collect::<std::collections::BTreeSet<_>>();
        assert!(whys(&alone).len() >= 4, "it sees several reasons: {:?}", whys(&alone));
    }
}
