//! The machine by tables and under chance, and the manager with models of nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use protocol::Nanos;
use testing::{Dice, is_long};

use crate::machine::{Action, Facts, ModelId, Place, Refusal, Residency, Rules, WaitTicket};
use crate::manager::{Manager, ResidentModel};

const SECOND: u64 = 1_000_000_000;

fn rules(memory: u64) -> Rules {
    Rules { memory, load_wait: Nanos(60 * SECOND), load_timeout: Nanos(600 * SECOND), most_waiting: 1000 }
}

fn facts(bytes: u64) -> Facts {
    Facts { bytes, loads_in: Nanos(10 * SECOND), pinned: false, keep_alive: None }
}

/// A machine, the time, and what it has said.
struct World {
    residency: Residency,
    now: u64,
    actions: Vec<Action>,
}

impl World {
    fn new(memory: u64, models: &[Facts]) -> (World, Vec<ModelId>) {
        let mut residency = Residency::new(rules(memory));
        let ids = models.iter().map(|facts| residency.add(*facts)).collect();
        (World { residency, now: 100 * SECOND, actions: Vec::new() }, ids)
    }

    fn decide(&mut self) -> &[Action] {
        self.actions = self.residency.decide(Nanos(self.now));
        &self.actions
    }

    fn after(&mut self, seconds: u64) -> &[Action] {
        self.now += seconds * SECOND;
        self.decide()
    }

    fn ask(&mut self, id: ModelId) -> WaitTicket {
        self.residency.ask(id, Nanos(self.now)).expect("there is room to wait")
    }

    /// Loads a model that was asked for and is to load now; its request stays open.
    fn load(&mut self, id: ModelId) {
        let ticket = self.ask(id);
        assert_eq!(self.decide(), [Action::Load(id)]);
        self.residency.loaded(id, self.residency.facts(id).bytes, Nanos(self.now));
        assert_eq!(self.decide(), [Action::Admit(ticket)]);
    }

    fn end(&mut self, id: ModelId) {
        self.residency.ended(id, Nanos(self.now));
    }
}

#[test]
fn pinned_models_load_at_the_start_and_the_others_when_they_are_asked_for() {
    let (mut world, ids) = World::new(100, &[facts(10), Facts { pinned: true, ..facts(20) }]);
    assert_eq!(world.decide(), [Action::Load(ids[1])]);
    let ticket = world.ask(ids[0]);
    assert_eq!(world.decide(), [], "one loads at a time");
    world.residency.loaded(ids[1], 20, Nanos(world.now));
    assert_eq!(world.decide(), [Action::Load(ids[0])]);
    world.residency.loaded(ids[0], 12, Nanos(world.now));
    assert_eq!(world.decide(), [Action::Admit(ticket)]);
    assert_eq!(world.residency.facts(ids[0]).bytes, 12, "what it takes is known now");
}

#[test]
fn who_is_idle_longest_goes_and_a_pinned_model_never() {
    let pinned = Facts { pinned: true, ..facts(30) };
    let (mut world, ids) = World::new(100, &[pinned, facts(30), facts(30), facts(30)]);
    assert_eq!(world.decide(), [Action::Load(ids[0])]);
    world.residency.loaded(ids[0], 30, Nanos(world.now));
    for id in [ids[1], ids[2]] {
        world.load(id);
    }
    world.end(ids[2]);
    world.after(5);
    world.end(ids[1]);
    world.after(5);
    let ticket = world.ask(ids[3]);
    assert_eq!(world.decide(), [Action::Unload(ids[2])]);
    assert_eq!(world.after(1), [], "its memory is not free yet");
    world.residency.gone(ids[2]);
    assert_eq!(world.decide(), [Action::Load(ids[3])]);
    world.residency.loaded(ids[3], 30, Nanos(world.now));
    assert_eq!(world.decide(), [Action::Admit(ticket)]);
}

#[test]
fn a_model_with_open_requests_is_never_unloaded_and_leaves_after_its_last_answer() {
    let (mut world, ids) = World::new(50, &[facts(30), facts(30)]);
    world.load(ids[0]);
    let first = world.ask(ids[1]);
    assert_eq!(world.decide(), [], "it has work, and has not stayed for long");
    assert_eq!(world.after(30), [], "now it closes");
    assert!(matches!(world.residency.place(ids[0]), Place::Serving { closing: true, .. }));
    let newcomer = world.ask(ids[0]);
    assert_eq!(world.decide(), [], "newcomers wait");
    world.end(ids[0]);
    assert_eq!(world.decide(), [Action::Unload(ids[0])]);
    world.residency.gone(ids[0]);
    assert_eq!(world.decide(), [Action::Load(ids[1])], "who asked first");
    world.residency.loaded(ids[1], 30, Nanos(world.now));
    assert_eq!(world.decide(), [Action::Admit(first)]);
    // The same the other way round.
    world.after(30);
    assert!(matches!(world.residency.place(ids[1]), Place::Serving { closing: true, .. }));
    world.end(ids[1]);
    assert_eq!(world.decide(), [Action::Unload(ids[1])]);
    world.residency.gone(ids[1]);
    assert_eq!(world.decide(), [Action::Load(ids[0])]);
    world.residency.loaded(ids[0], 30, Nanos(world.now));
    assert_eq!(world.decide(), [Action::Admit(newcomer)]);
}

#[test]
fn a_model_that_was_to_leave_stays_where_its_room_is_needed_no_more() {
    let (mut world, ids) = World::new(50, &[facts(30), facts(30)]);
    world.load(ids[0]);
    let first = world.ask(ids[1]);
    assert_eq!(world.after(30), []);
    assert!(matches!(world.residency.place(ids[0]), Place::Serving { closing: true, .. }));
    let newcomer = world.ask(ids[0]);
    assert!(world.residency.withdraw(first));
    assert_eq!(world.decide(), [Action::Admit(newcomer)], "at once, without a load");
}

#[test]
fn a_model_with_work_stays_three_times_as_long_as_the_next_loads_but_no_one_waits_longer_than_the_rule() {
    // How long the next loads, and after how many seconds the first closes.
    for (loads_in, closes_after) in [(1, 3), (10, 30), (300, 60)] {
        let next = Facts { loads_in: Nanos(loads_in * SECOND), ..facts(30) };
        let (mut world, ids) = World::new(50, &[facts(30), next]);
        world.load(ids[0]);
        world.ask(ids[1]);
        let closes = |world: &World| matches!(world.residency.place(ids[0]), Place::Serving { closing: true, .. });
        let mut seconds = 0;
        while !closes(&world) {
            let moment = world.residency.next_moment(Nanos(world.now)).expect("something is to come");
            assert!(moment > Nanos(world.now));
            (world.now, seconds) = (moment.0, (moment.0 - 100 * SECOND) / SECOND);
            world.decide();
        }
        assert_eq!(seconds, closes_after, "{loads_in}");
    }
}

#[test]
fn what_cannot_be_answered_is_refused_with_the_reason() {
    let pinned = Facts { pinned: true, ..facts(60) };
    let (mut world, ids) = World::new(100, &[pinned, facts(50), facts(30), facts(101)]);
    let refusal = |world: &mut World, id| {
        let ticket = world.ask(id);
        match world.decide().iter().find(|action| matches!(action, Action::Refuse(..))) {
            Some(Action::Refuse(of, refusal)) if *of == ticket => Some(refusal.clone()),
            _ => None,
        }
    };
    assert_eq!(refusal(&mut world, ids[1]), Some(Refusal::TooLarge { needs: 50, room: 40 }));
    assert_eq!(refusal(&mut world, ids[3]), Some(Refusal::TooLarge { needs: 101, room: 40 }));
    world.residency.loaded(ids[0], 60, Nanos(world.now));
    assert_eq!(refusal(&mut world, ids[2]), None);
    world.residency.failed(ids[2], "no such file".to_owned(), Nanos(world.now));
    let failed = Refusal::Failed("no such file".to_owned());
    assert!(world.decide().iter().any(|action| matches!(action, Action::Refuse(_, why) if *why == failed)));
    assert_eq!(refusal(&mut world, ids[2]), Some(failed), "not tried again at once");
    world.after(30);
    let ticket = world.ask(ids[2]);
    assert_eq!(world.decide(), [Action::Load(ids[2])]);
    assert_eq!(world.after(599), []);
    assert_eq!(world.after(1), [Action::Refuse(ticket, Refusal::TooLate)]);
    for _ in 0..1000 {
        world.ask(ids[2]);
    }
    assert_eq!(world.residency.ask(ids[2], Nanos(world.now)), Err(Refusal::Full));
}

#[test]
fn a_model_leaves_when_it_was_idle_for_as_long_as_it_was_told() {
    let (mut world, ids) = World::new(100, &[Facts { keep_alive: Some(Nanos(300 * SECOND)), ..facts(30) }]);
    let id = ids[0];
    world.load(id);
    assert_eq!(world.after(1000), [], "it has a request");
    world.end(id);
    assert_eq!(world.residency.leaves_at(id), Some(Nanos(world.now + 300 * SECOND)));
    assert_eq!(world.after(299), []);
    assert_eq!(world.after(1), [Action::Unload(id)]);
    world.residency.gone(id);
    // 0: as soon as it is idle. Without end: never. Dismissed: once, whatever it was told.
    world.load(id);
    world.residency.keep_alive(id, Some(Nanos(0)));
    assert_eq!(world.decide(), []);
    world.end(id);
    assert_eq!(world.decide(), [Action::Unload(id)]);
    world.residency.gone(id);
    world.load(id);
    world.residency.keep_alive(id, None);
    world.end(id);
    assert_eq!(world.after(1 << 20), []);
    world.residency.dismiss(id);
    assert_eq!(world.decide(), [Action::Unload(id)]);
    world.residency.gone(id);
    assert_eq!(world.decide(), []);
    world.load(id);
}

/// Random requests, loads that end or fail, and clients that leave: no budget is exceeded, nothing is unloaded under a
/// request, and once no more come all that wait are answered.
fn chaos(seed: u64) {
    let mut dice = Dice::new(seed);
    let memory = 100;
    let models: Vec<Facts> = (0..dice.within(1..=6))
        .map(|_| {
            let most = if dice.percent(5) { 130 } else { 70 };
            Facts {
                bytes: dice.within(1..=most) as u64,
                loads_in: Nanos(dice.below(30 * SECOND)),
                pinned: dice.percent(10),
                keep_alive: dice.percent(50).then(|| Nanos(dice.below(600 * SECOND))),
            }
        })
        .collect();
    let (mut world, ids) = World::new(memory, &models);
    let (mut loading, mut leaving, mut open) = (Vec::new(), Vec::new(), Vec::new());
    let mut waiting: BTreeMap<WaitTicket, ModelId> = BTreeMap::new();
    let steps = 200;
    let mut calm = 0;
    for step in 0.. {
        let is_busy = step < steps;
        let most = if dice.percent(10) { 100 * SECOND } else { SECOND };
        world.now += dice.below(most);
        let now = Nanos(world.now);
        match dice.below(6) {
            0 | 1 if is_busy => {
                let id = ids[dice.roll(ids.len())];
                let ticket = world.residency.ask(id, now).expect("few wait");
                waiting.insert(ticket, id);
            }
            2 if is_busy && dice.percent(30) => {
                if let Some(&ticket) = waiting.keys().next() {
                    assert!(world.residency.withdraw(ticket), "{seed}: it waits");
                    waiting.remove(&ticket);
                }
            }
            3 if !loading.is_empty() => {
                let id: ModelId = loading.swap_remove(dice.roll(loading.len()));
                match dice.percent(10) {
                    true => world.residency.failed(id, "chance".to_owned(), now),
                    false => world.residency.loaded(id, world.residency.facts(id).bytes, now),
                }
            }
            4 if !leaving.is_empty() => world.residency.gone(leaving.swap_remove(0)),
            5 if !open.is_empty() => world.residency.ended(open.swap_remove(dice.roll(open.len())), now),
            2 if is_busy && dice.percent(10) => world.residency.dismiss(ids[dice.roll(ids.len())]),
            _ => {}
        }
        for action in world.residency.decide(now) {
            match action {
                Action::Load(id) => loading.push(id),
                Action::Unload(id) => {
                    assert!(!open.contains(&id), "{seed}: {id:?} has a request");
                    leaving.push(id);
                }
                Action::Admit(ticket) => open.push(waiting.remove(&ticket).expect("it waits")),
                Action::Refuse(ticket, _) => _ = waiting.remove(&ticket).expect("it waits"),
            }
        }
        let takes = |id: &ModelId| match world.residency.place(*id) {
            Place::Cold | Place::Failed { .. } => 0,
            _ => world.residency.facts(*id).bytes,
        };
        let taken: u64 = ids.iter().map(takes).sum();
        assert!(taken <= memory, "{seed}: {taken} of {memory}");
        if !is_busy {
            calm += 1;
            if waiting.is_empty() {
                return;
            }
            assert!(calm < 2000, "{seed}: {waiting:?} wait without end; {:?}", world.residency);
        }
    }
}

#[test]
fn no_request_is_cut_or_waits_without_end_whatever_happens() {
    let seeds = if is_long() { 20_000 } else { 2_000 };
    (0..seeds).for_each(chaos);
}

/// A model of nothing.
#[derive(Clone)]
struct Nothing(Arc<AtomicUsize>);

impl ResidentModel for Nothing {
    fn bytes(&self) -> u64 {
        40
    }

    fn close(self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_manager_loads_tells_and_drops() {
    let alive = Arc::new(AtomicUsize::new(0));
    let (counted, fails) = (alive.clone(), Arc::new(Mutex::new(true)));
    let failing = fails.clone();
    let manager = Manager::new(rules(100), move |id, report| {
        report.at(1, 2);
        if id == ModelId(2) && std::mem::take(&mut *failing.lock().unwrap()) {
            return Err("damaged".to_owned());
        }
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(Nothing(counted.clone()))
    });
    let ids: Vec<ModelId> = (0..3).map(|_| manager.add(Facts { loads_in: Nanos(0), ..facts(40) })).collect();
    let running = manager.clone();
    let runs = tokio::spawn(async move { running.run().await });
    let first = manager.enter(ids[0]).await.expect("it loads");
    let second = manager.enter(ids[1]).await.expect("there is room for two");
    assert_eq!(alive.load(Ordering::SeqCst), 2);
    // One that leaves while it waits takes its place with it.
    let left = tokio::time::timeout(Duration::from_millis(20), manager.enter(ids[2]));
    assert!(left.await.is_err(), "both have work");
    assert_eq!(manager.standing(ids[2]).requests, (0, 0));
    drop((first, second));
    let refusal = manager.enter(ids[2]).await.err();
    assert_eq!(refusal, Some(Refusal::Failed("damaged".to_owned())));
    manager.dismiss(ids[0]);
    manager.dismiss(ids[1]);
    testing::wait("both are gone", || alive.load(Ordering::SeqCst) == 0);
    assert!(manager.peek(ids[0]).is_none());
    manager.close();
    assert!(matches!(manager.enter(ids[0]).await, Err(Refusal::Failed(_))));
    runs.abort();
}

#[test]
fn a_model_that_was_replaced_on_the_disk_is_what_it_says_now_once_it_is_out_of_memory() {
    let (mut world, ids) = World::new(100, &[facts(200)]);
    let id = ids[0];
    let ticket = world.ask(id);
    assert!(matches!(world.decide(), [Action::Refuse(other, Refusal::TooLarge { .. })] if *other == ticket));
    assert!(world.residency.renew(id, facts(50)));
    world.load(id);
    assert!(!world.residency.renew(id, facts(60)) && world.residency.facts(id).bytes == 50);
    // One that failed is tried again without waiting.
    let (mut world, ids) = World::new(100, &[facts(50)]);
    let id = ids[0];
    world.ask(id);
    assert_eq!(world.decide(), [Action::Load(id)]);
    world.residency.failed(id, "half a file".to_owned(), Nanos(world.now));
    world.decide();
    assert!(world.residency.renew(id, facts(50)));
    world.load(id);
}
