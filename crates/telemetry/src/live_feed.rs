//! What a reader of the page's feed gets, and when: text, made of records that the engine has let go of.
//!
//! Who reads slowly falls behind and goes on with the newest steps. A reader who names no step begins with the history,
//! the last ends and the last steps.

use std::time::{Duration, Instant};

use engine::{Ended, KvMap, LogCursor, LoggedStep, Observe, RequestSnapshot, Subscription};
use protocol::Nanos;

use crate::live_events::{self as events, Names, Prices};
use crate::live_thoughts::Told;
use crate::timeline::{Registry, Tenant};

/// Between two `stats`.
const STATS_EVERY: Duration = Duration::from_millis(500);
/// Steps that a new reader gets who does not say after which.
const FIRST_STEPS: u64 = 512;
/// Ends of requests that such a reader gets: their lanes are gone, and what is known of them is in the end.
const FIRST_ENDS: u64 = 256;
/// Steps written at once.
const STEPS_AT_ONCE: usize = 128;
/// A reader this number of steps behind continues with the newest.
const TOO_FAR_BEHIND: u64 = 1024;
/// A step waits so long for the name of a request in it: the engine may be faster than the front that names it.
const NAMED_AFTER: Nanos = Nanos(100_000_000);

/// What a reader asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes {
    /// The steps after this one; else the last ones.
    pub after: Option<u64>,
    /// The blocks of the cache.
    pub map: bool,
}

/// One reader's.
pub struct LiveFeed {
    watch: Box<dyn Subscription>,
    prices: Prices,
    names: Names,
    /// For a model that thinks.
    thoughts: Option<Told>,
    place: LogCursor,
    /// Has the steps that it asked for, and now wants the newest.
    is_live: bool,
    /// Was not told yet what there was before.
    wants_history: bool,
    /// On the machine's clock: the engine's stops while it is paused, and a paused engine is watched.
    last_stats: Option<Instant>,
    was_paused: bool,
    /// The newest map of the cache, and the one before it: for one who wants to see them.
    maps: Option<[KvMap; 2]>,
    scene: RequestSnapshot,
    last_scene: RequestSnapshot,
    // Kept for their memory.
    steps: Vec<LoggedStep>,
    ended: Vec<Ended>,
}

impl LiveFeed {
    /// From now on. `thinks`: the model may think.
    pub fn new(engine: &dyn Observe, tenant: Option<Tenant>, wishes: Wishes, thinks: bool) -> LiveFeed {
        let watch = engine.watch(wishes.map);
        let mut place = watch.newest();
        place.step = match wishes.after {
            Some(after) => after.saturating_add(1).min(place.step),
            None => place.step.saturating_sub(FIRST_STEPS),
        };
        if wishes.after.is_none() {
            place.end = place.end.saturating_sub(FIRST_ENDS);
        }
        // They are few, and one that is told again is the same.
        place.remote_prefill = 0;
        LiveFeed {
            prices: Prices::of(engine),
            names: Names::of(tenant),
            thoughts: thinks.then(Told::default),
            watch,
            place,
            is_live: false,
            wants_history: wishes.after.is_none(),
            last_stats: None,
            was_paused: false,
            maps: wishes.map.then(Default::default),
            scene: RequestSnapshot::default(),
            last_scene: RequestSnapshot::default(),
            steps: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// What is new, as text; and whether there is more of it already.
    pub fn news(&mut self, engine: &dyn Observe, registry: &Registry) -> (String, bool) {
        let mut text = String::new();
        let now = engine.now();
        self.names.forget();
        if std::mem::take(&mut self.wants_history) {
            events::write(&mut text, "history", &events::history(&self.watch.seconds(), engine));
        }
        self.steps.clear();
        self.ended.clear();
        let newest = self.watch.newest();
        if self.is_live && newest.step.saturating_sub(self.place.step) > TOO_FAR_BEHIND {
            self.place.step = newest.step - STEPS_AT_ONCE as u64;
        }
        let mut more = self.watch.read(&mut self.place, STEPS_AT_ONCE, &mut self.steps, &mut self.ended);
        self.is_live |= more == 0;
        for step in &self.steps {
            // By the machine's clock: the engine's stands still while it is held.
            let machine = Nanos(now.0 + engine.held().0);
            let is_fresh = machine.since(engine.since_start(step.record.completed_at)) < NAMED_AFTER;
            if !self.names.learn(registry, &step.record, is_fresh) {
                self.place.step = step.number;
                more = 0;
                break;
            }
            events::write(&mut text, "step", &events::step(step.number, &step.record, &self.names, &self.prices));
        }
        if let Some(thoughts) = &mut self.thoughts {
            thoughts.news(&mut text, &self.steps, &mut self.names, registry);
        }
        for ended in &self.ended {
            events::write(&mut text, "ended", &events::ended(ended, &mut self.names, registry));
        }
        // Behind the ends: who is over by then takes no lane from those that are not.
        for (id, away) in self.watch.remote_prefills(&mut self.place) {
            events::write(&mut text, "away", &events::away(id, &away, &mut self.names, registry));
        }
        if more > 0 {
            return (text, true);
        }
        if let Some([newest, before]) = &mut self.maps
            && self.watch.map_into(newest)
        {
            if let Some(map) = events::map(newest, before, &mut self.names, registry) {
                events::write(&mut text, "kv", &map);
            }
            before.step = newest.step;
            before.uses.clone_from(&newest.uses);
        }
        self.watch.snapshot_into(&mut self.scene);
        if self.last_stats.is_none() || self.scene.sequences != self.last_scene.sequences {
            let requests = events::requests(&self.scene, &mut self.names, registry);
            events::write(&mut text, "requests", &requests);
            std::mem::swap(&mut self.scene, &mut self.last_scene);
        }
        let is_paused = engine.is_paused();
        if self.last_stats.is_none_or(|last| last.elapsed() >= STATS_EVERY) || is_paused != self.was_paused {
            (self.last_stats, self.was_paused) = (Some(Instant::now()), is_paused);
            self.prices.refresh(engine);
            events::write(&mut text, "stats", &events::stats(now, engine, self.watch.percentiles()));
        }
        (text, false)
    }
}
