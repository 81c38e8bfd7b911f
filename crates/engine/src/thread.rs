//! The engine's own thread: takes commands between steps, computes, and sleeps when there is nothing to do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scheduler::{AdmissionForecast, Nanos, RequestId, Scheduler};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::oneshot;

use crate::core::{Cancelled, Clock, EngineCore, StepNews};
use crate::door::ValidatedRequest;
use crate::live::{KvMap, Scene};
use crate::output::{Outlet, Output, RequestError};
use crate::waiting::Waiting;

/// What other threads ask of the engine's.
pub(crate) enum Command {
    /// Take this request in.
    Submit { id: RequestId, request: Box<ValidatedRequest>, arrived: Nanos, outputs: Outlet },
    /// Its receiver is gone.
    Cancel(RequestId),
    /// Make no step, one step, or as many as there are; the answer says whether the engine is held from now on.
    Hold(Hold, Option<oneshot::Sender<bool>>),
    /// Somebody began to watch.
    Show,
    /// End every request with an error and leave.
    Stop,
}

/// How somebody who looks at the engine holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Pause,
    SingleStep,
    Resume,
}

/// Whether steps are made.
#[derive(Debug, Default)]
struct Gate {
    is_held: bool,
    /// Steps that are made all the same.
    steps: usize,
}

impl Gate {
    fn is_open(&self) -> bool {
        !self.is_held || self.steps > 0
    }
}

/// Numbers that other threads may read at any time, and who waits: a full queue refuses before the engine's thread is
/// asked.
#[derive(Debug)]
pub(crate) struct Shared {
    /// When the loop last moved, nanoseconds of the engine's clock.
    pub(crate) last_beat: AtomicU64,
    /// Requests are being computed or wait for it.
    pub(crate) busy: AtomicBool,
    /// No new request is taken.
    pub(crate) draining: AtomicBool,
    /// Somebody holds the engine.
    pub(crate) held: AtomicBool,
    /// The loop has ended.
    pub(crate) dead: AtomicBool,
    /// Submitted and not yet in a step.
    pub(crate) waiting: Mutex<Waiting>,
    /// Submitted and not ended.
    pub(crate) open_requests: AtomicUsize,
    /// Who is in line for prefill, renewed before each step.
    pub(crate) outlook: Mutex<AdmissionForecast>,
    /// Those who watch.
    pub(crate) watchers: AtomicUsize,
    /// Those of them who want to see the blocks of the cache.
    pub(crate) map_watchers: AtomicUsize,
    /// What the blocks are used for, renewed while somebody wants to see it.
    pub(crate) map: Mutex<KvMap>,
    /// Who waits and who runs, renewed while somebody watches.
    pub(crate) scene: Mutex<Scene>,
    /// Smoothed nanoseconds between two ends of requests under load: what a full queue drains at.
    pub(crate) drain_interval: AtomicU64,
}

impl Shared {
    /// Of an engine that has done nothing yet.
    pub(crate) fn new(waiting: Waiting) -> Shared {
        Shared {
            last_beat: AtomicU64::default(),
            busy: AtomicBool::default(),
            draining: AtomicBool::default(),
            held: AtomicBool::default(),
            dead: AtomicBool::default(),
            waiting: Mutex::new(waiting),
            open_requests: AtomicUsize::default(),
            outlook: Mutex::default(),
            watchers: AtomicUsize::default(),
            map_watchers: AtomicUsize::default(),
            map: Mutex::default(),
            scene: Mutex::default(),
            drain_interval: AtomicU64::default(),
        }
    }

    /// Who waits.
    pub(crate) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancelled(&self, cancelled: Cancelled) {
        self.open_requests.fetch_sub(1, Ordering::Relaxed);
        if let Some(place) = cancelled.waiting {
            self.waiting().leave(place);
        }
    }
}

/// Runs until told to stop, or until every handle is gone.
pub(crate) fn run(mut core: EngineCore, mut commands: UnboundedReceiver<Command>, shared: Arc<Shared>, clock: Clock) {
    core.adopt_thread();
    let mut last_end = clock.now();
    let mut news = StepNews::default();
    let mut gate = Gate::default();
    'serving: loop {
        shared.last_beat.store(clock.now().0, Ordering::Relaxed);
        loop {
            let command = match commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) if core.has_work() && gate.is_open() => break,
                Err(TryRecvError::Disconnected) => break 'serving,
                Err(TryRecvError::Empty) => {
                    shared.busy.store(false, Ordering::Relaxed);
                    core.look_ahead(clock.now(), &shared.outlook);
                    core.show_now(clock.now(), &shared.scene);
                    if shared.map_watchers.load(Ordering::Relaxed) > 0 {
                        core.show_map(clock.now(), true, &shared.map);
                    }
                    if !core.has_work() {
                        gate.steps = 0;
                    }
                    let Some(command) = commands.blocking_recv() else { break 'serving };
                    last_end = clock.now();
                    command
                }
            };
            shared.busy.store(true, Ordering::Relaxed);
            shared.last_beat.store(clock.now().0, Ordering::Relaxed);
            match command {
                Command::Submit { id, request, arrived, outputs } => {
                    submit(&mut core, id, *request, arrived, outputs, &shared, clock.now());
                }
                Command::Cancel(id) => {
                    if let Some(cancelled) = core.cancel(id, clock.now()) {
                        shared.cancelled(cancelled);
                    }
                }
                Command::Hold(hold, told) => {
                    set_gate(&mut gate, hold, &mut core, &shared, clock.now());
                    if let Some(told) = told {
                        // Who asked may have left.
                        let _ = told.send(gate.is_held);
                    }
                    last_end = clock.now();
                }
                // What there is to see is shown before the thread sleeps.
                Command::Show => {}
                Command::Stop => break 'serving,
            }
        }
        if gate.is_held {
            core.resume(clock.now());
        }
        core.look_ahead(clock.now(), &shared.outlook);
        if shared.watchers.load(Ordering::Relaxed) > 0 {
            core.show(clock.now(), &shared.scene);
        }
        if shared.map_watchers.load(Ordering::Relaxed) > 0 {
            core.show_map(clock.now(), false, &shared.map);
        }
        // A panic is a bug, but one that must not take other requests' future with it.
        let mut now = std::iter::repeat_with(|| clock.now());
        let made = catch_unwind(AssertUnwindSafe(|| core.step(&mut now, &mut news))).unwrap_or_else(|_| {
            recover(&mut core, &shared, clock.now());
            news = StepNews::default();
            true
        });
        if gate.is_held {
            // A step that waits for a block is still to be made.
            gate.steps -= usize::from(made);
            core.pause(clock.now());
        }
        for place in news.started.drain(..) {
            shared.waiting().leave(place);
        }
        for _ in 0..std::mem::take(&mut news.ended) {
            shared.open_requests.fetch_sub(1, Ordering::Relaxed);
            let now = clock.now();
            smooth(&shared.drain_interval, now.since(last_end).0);
            last_end = now;
        }
    }
    shared.dead.store(true, Ordering::Relaxed);
    for cancelled in core.fail_all(RequestError::ShuttingDown, clock.now()) {
        shared.cancelled(cancelled);
    }
}

/// Somebody holds the engine, or lets go of it. Nobody does while it drains.
fn set_gate(gate: &mut Gate, hold: Hold, core: &mut EngineCore, shared: &Shared, now: Nanos) {
    let drains = shared.draining.load(Ordering::Relaxed);
    match hold {
        Hold::Pause if !gate.is_held && !drains => {
            *gate = Gate { is_held: true, steps: 0 };
            core.pause(now);
        }
        Hold::SingleStep if gate.is_held && core.has_work() => gate.steps += 1,
        Hold::Resume if gate.is_held => {
            *gate = Gate::default();
            core.resume(now);
        }
        _ => {}
    }
    shared.held.store(gate.is_held, Ordering::Relaxed);
}

fn submit(
    core: &mut EngineCore,
    id: RequestId,
    request: ValidatedRequest,
    arrived: Nanos,
    outputs: Outlet,
    shared: &Shared,
    now: Nanos,
) {
    let place = request.place();
    if let Err(error) = core.admit(id, request, arrived, outputs.clone(), now) {
        // The door and the queue's counters refuse everything that the scheduler would.
        tracing::error!(request = id.0, ?error, "the scheduler refused a request that had passed the door");
        outputs.send(Output::Failed(RequestError::Internal));
        shared.cancelled(Cancelled { waiting: Some(place) });
    }
}

/// After a panic inside a step: everything admitted ends with an error, and the engine starts over with an empty cache.
fn recover(core: &mut EngineCore, shared: &Shared, now: Nanos) {
    tracing::error!("a step failed; its requests end with an error and the engine goes on");
    for cancelled in core.fail_all(RequestError::Internal, now) {
        shared.cancelled(cancelled);
    }
    let mut scheduler = Scheduler::new(core.limits().clone()).expect("these limits have made a scheduler before");
    scheduler.set_cost_model(core.cost_model());
    core.replace_scheduler(scheduler);
}

/// An exponential average with weight 1/8.
fn smooth(average: &AtomicU64, sample: u64) {
    let before = average.load(Ordering::Relaxed);
    let after = if before == 0 { sample } else { before - before / 8 + sample / 8 };
    average.store(after.max(1), Ordering::Relaxed);
}
