//! A feed: the body of `GET /live/feed`, which ends with its reader or with the server.
//!
//! Pulled by the connection: every 50 ms it asks the log what is new and writes it, and while its reader is slow it
//! writes nothing. All text is made here, on a thread of the server, from records that the engine has let go of.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use engine::{Ended, KvMap, LogCursor, LoggedStep, RequestSnapshot, Subscription};
use hyper::body::{Body, Bytes, Frame};
use protocol::Nanos;
use telemetry::live_events::{self as events, Names, Prices};
use telemetry::live_thoughts::Told;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior};
use transport::auth::Tenant;
use transport::error::ApiError;

use crate::app::App;
use crate::app::MOST_READERS;

/// Between two looks at the log.
const LOOK_EVERY: Duration = Duration::from_millis(50);
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
pub(crate) struct Wishes {
    /// The steps after this one; else the last ones.
    pub(crate) after: Option<u64>,
    /// The blocks of the cache.
    pub(crate) map: bool,
}

/// One reader's.
pub(crate) struct Feed {
    app: Arc<App>,
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
    look: Interval,
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
    _seat: OwnedSemaphorePermit,
}

impl Feed {
    /// A feed from now on.
    pub(crate) fn open(app: Arc<App>, tenant: Option<Tenant>, wishes: Wishes) -> Result<Feed, ApiError> {
        let seat =
            app.permits.readers.clone().try_acquire_owned().map_err(|_| ApiError::too_many_readers(MOST_READERS))?;
        let watch = app.engine.watch(wishes.map);
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
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Feed {
            prices: Prices::of(&*app.engine),
            names: Names::of(tenant),
            thoughts: app.model.tool_format.thinks().then(Told::default),
            watch,
            place,
            is_live: false,
            wants_history: wishes.after.is_none(),
            look,
            last_stats: None,
            was_paused: false,
            maps: wishes.map.then(Default::default),
            scene: RequestSnapshot::default(),
            last_scene: RequestSnapshot::default(),
            steps: Vec::new(),
            ended: Vec::new(),
            _seat: seat,
            app,
        })
    }

    /// What is new, as text. Empty if nothing is.
    fn news(&mut self) -> String {
        let mut text = String::new();
        let now = self.app.engine.now();
        self.names.forget();
        if std::mem::take(&mut self.wants_history) {
            events::write(&mut text, "history", &events::history(&self.watch.seconds(), &*self.app.engine));
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
            let engine = &self.app.engine;
            let machine = Nanos(now.0 + engine.held().0);
            let is_fresh = machine.since(engine.since_start(step.record.completed_at)) < NAMED_AFTER;
            if !self.names.learn(&self.app.telemetry.registry, &step.record, is_fresh) {
                self.place.step = step.number;
                more = 0;
                break;
            }
            events::write(&mut text, "step", &events::step(step.number, &step.record, &self.names, &self.prices));
        }
        if let Some(thoughts) = &mut self.thoughts {
            thoughts.news(&mut text, &self.steps, &mut self.names, &self.app.telemetry.registry);
        }
        for ended in &self.ended {
            events::write(&mut text, "ended", &events::ended(ended, &mut self.names, &self.app.telemetry.registry));
        }
        // Behind the ends: who is over by then takes no lane from those that are not.
        for (id, away) in self.watch.remote_prefills(&mut self.place) {
            events::write(&mut text, "away", &events::away(id, &away, &mut self.names, &self.app.telemetry.registry));
        }
        if more > 0 {
            self.look.reset_immediately();
            return text;
        }
        if let Some([newest, before]) = &mut self.maps
            && self.watch.map_into(newest)
        {
            if let Some(map) = events::map(newest, before, &mut self.names, &self.app.telemetry.registry) {
                events::write(&mut text, "kv", &map);
            }
            before.step = newest.step;
            before.uses.clone_from(&newest.uses);
        }
        self.watch.snapshot_into(&mut self.scene);
        if self.last_stats.is_none() || self.scene.sequences != self.last_scene.sequences {
            let requests = events::requests(&self.scene, &mut self.names, &self.app.telemetry.registry);
            events::write(&mut text, "requests", &requests);
            std::mem::swap(&mut self.scene, &mut self.last_scene);
        }
        let is_paused = self.app.engine.is_paused();
        if self.last_stats.is_none_or(|last| last.elapsed() >= STATS_EVERY) || is_paused != self.was_paused {
            (self.last_stats, self.was_paused) = (Some(Instant::now()), is_paused);
            self.prices.refresh(&*self.app.engine);
            events::write(&mut text, "stats", &events::stats(now, &*self.app.engine, self.watch.percentiles()));
        }
        text
    }
}

impl Body for Feed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            ready!(self.look.poll_tick(cx));
            if self.app.drain.has_begun() {
                return Poll::Ready(None);
            }
            let text = self.news();
            if !text.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(text.into()))));
            }
        }
    }
}
