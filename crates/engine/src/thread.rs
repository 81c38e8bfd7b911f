//! The engine's own thread: takes commands between steps, computes, and sleeps when there is nothing to do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernels::DeviceError;
use observe::{KvMap, RequestSnapshot};
use protocol::Nanos;
use scheduler::AdmissionForecast;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;

use crate::clock::Clock;
use crate::command::{Command, NewRequest, PauseCommand};
use crate::core::EngineCore;
use crate::output::{Event, RequestError};
use crate::queue_permit::QueueCounts;
use crate::turns::{Seat, Turn};

/// What a step may take however late the others on its cores are: their prompts go on too.
const LEAST_STEP: Duration = Duration::from_millis(10);
/// Nanoseconds that a standby may load. Weights on a disk that hangs never come.
const LONGEST_MOVE: u64 = 600_000_000_000;

/// Whether steps are made.
#[derive(Debug, Default)]
struct PauseGate {
    is_held: bool,
    /// Steps that are made while it is held.
    steps: usize,
}

impl PauseGate {
    fn is_open(&self) -> bool {
        !self.is_held || self.steps > 0
    }
}

/// Numbers that other threads may read at any time, and the queue's places: a full queue refuses before the engine's
/// thread is asked.
#[derive(Debug)]
pub(crate) struct EngineStatus {
    /// When the loop last moved, nanoseconds of the engine's clock.
    pub(crate) last_beat: AtomicU64,
    /// Requests are being computed or wait for it.
    pub(crate) busy: AtomicBool,
    /// No new request is taken.
    pub(crate) draining: AtomicBool,
    /// A client holds the engine.
    pub(crate) held: AtomicBool,
    /// The loop has ended.
    pub(crate) dead: AtomicBool,
    /// It has, because its device is lost.
    pub(crate) lost: AtomicBool,
    /// Nanoseconds that it may stand still: its device is lost, and a standby is loaded.
    pub(crate) patience: AtomicU64,
    /// Requests that were submitted, and those of them that wait.
    pub(crate) requests: Arc<QueueCounts>,
    /// The prefill queue, renewed before each step.
    pub(crate) forecast: Mutex<AdmissionForecast>,
    /// The number of watchers.
    pub(crate) watchers: AtomicUsize,
    /// Those of them that want the map of the cache.
    pub(crate) map_watchers: AtomicUsize,
    /// What the blocks are used for, renewed while a watcher wants it.
    pub(crate) map: Mutex<KvMap>,
    /// Waiting and running requests, renewed while there is a watcher.
    pub(crate) snapshot: Mutex<RequestSnapshot>,
}

impl EngineStatus {
    /// Of an engine that has done nothing yet.
    pub(crate) fn new(requests: Arc<QueueCounts>) -> EngineStatus {
        EngineStatus {
            last_beat: AtomicU64::default(),
            busy: AtomicBool::default(),
            draining: AtomicBool::default(),
            held: AtomicBool::default(),
            dead: AtomicBool::default(),
            lost: AtomicBool::default(),
            patience: AtomicU64::default(),
            requests,
            forecast: Mutex::default(),
            watchers: AtomicUsize::default(),
            map_watchers: AtomicUsize::default(),
            map: Mutex::default(),
            snapshot: Mutex::default(),
        }
    }

    pub(crate) fn forecast(&self) -> MutexGuard<'_, AdmissionForecast> {
        self.forecast.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until a stop command, until every handle is gone, or until the device is lost and there is no standby.
pub(crate) fn run(
    core: EngineCore,
    mut commands: UnboundedReceiver<Command>,
    status: Arc<EngineStatus>,
    clock: Clock,
    seat: Option<Seat>,
) {
    core.set_compute_thread();
    let mut driver = Driver { seat, ..Driver::new(core, status, clock) };
    'serving: while !driver.is_lost() {
        driver.beat();
        loop {
            let command = match commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) if driver.is_ready() => break,
                Err(TryRecvError::Disconnected) => break 'serving,
                // Between two parts of a check a command may have come.
                Err(TryRecvError::Empty) if driver.check() => continue,
                Err(TryRecvError::Empty) => {
                    driver.rest();
                    let Some(command) = commands.blocking_recv() else { break 'serving };
                    command
                }
            };
            if !driver.take(command) {
                break 'serving;
            }
        }
        driver.step();
    }
    driver.end();
}

/// What the thread does between its waits: commands and steps, each at the time that the clock shows.
pub(crate) struct Driver {
    core: EngineCore,
    status: Arc<EngineStatus>,
    clock: Clock,
    /// Among engines that share the cores.
    seat: Option<Seat>,
    gate: PauseGate,
    /// The last step was abandoned.
    has_abandoned: bool,
    /// Times that a step's failure took everything with it, and times that its plan was abandoned.
    #[cfg(test)]
    failures: (u64, u64),
}

impl Driver {
    pub(crate) fn new(core: EngineCore, status: Arc<EngineStatus>, clock: Clock) -> Driver {
        Driver {
            core,
            status,
            clock,
            seat: None,
            gate: PauseGate::default(),
            has_abandoned: false,
            #[cfg(test)]
            failures: (0, 0),
        }
    }

    /// Whether there is a step to make, and it may be made.
    pub(crate) fn is_ready(&self) -> bool {
        self.core.has_work() && self.gate.is_open()
    }

    /// Uses an idle moment. False: there is nothing to use it for.
    pub(crate) fn check(&mut self) -> bool {
        if self.core.has_work() || self.gate.is_held {
            return false;
        }
        self.beat();
        let turn = match &self.seat {
            Some(seat) => match seat.take_idle() {
                Some(turn) => Some(turn),
                None => return false,
            },
            None => None,
        };
        let worked = self.core.run_idle_work();
        drop(turn);
        worked
    }

    fn beat(&self) {
        self.status.last_beat.store(self.clock.now().0, Ordering::Relaxed);
    }

    /// Before the thread waits for a command: what there is to see is shown.
    pub(crate) fn rest(&mut self) {
        let Driver { core, status, clock, .. } = self;
        status.busy.store(false, Ordering::Relaxed);
        self.seat.iter().for_each(|seat| seat.renew(None));
        core.look_ahead(clock.now(), &status.forecast);
        core.show_now(clock.now(), &status.snapshot);
        if status.map_watchers.load(Ordering::Relaxed) > 0 {
            core.show_map(clock.now(), true, &status.map);
        }
        if !core.has_work() {
            self.gate.steps = 0;
        }
    }

    /// Takes a command in. False: it was the last.
    pub(crate) fn take(&mut self, command: Command) -> bool {
        self.status.busy.store(true, Ordering::Relaxed);
        self.beat();
        // Whatever else is asked goes before a rerun.
        let is_part =
            matches!(command, Command::BeginRerun(..) | Command::Rerun(_) | Command::Cancel(_) | Command::Show);
        if self.core.is_rerun() && !is_part {
            self.guard(EngineCore::end_rerun);
        }
        match command {
            Command::BeginRerun(views, told) => {
                // The caller may have left.
                let _ = told.send(!self.gate.is_held && self.core.begin_rerun(views));
            }
            Command::Rerun(one) if self.core.is_rerun() => _ = self.guard(|core, now| submit(core, one, now)),
            // The stream of one that comes too late ends.
            Command::Rerun(_) => {}
            Command::EndRerun => {}
            Command::Submit(requests) => {
                for one in requests {
                    self.guard(|core, now| submit(core, one, now));
                }
            }
            Command::Cancel(id) => _ = self.guard(|core, now| _ = core.cancel(id, now)),
            Command::Pause(hold, told) => {
                self.hold(hold);
                if let Some(told) = told {
                    // The caller may have left.
                    let _ = told.send(self.gate.is_held);
                }
            }
            Command::Adapter { slot, adapter, told } => {
                self.guard(|core, _| {
                    // The caller may have left.
                    let _ = told.send(core.put_adapter(slot, adapter));
                });
            }
            Command::Handoff(event) => _ = self.attempt(|core, now| core.handoff_event(event, now)),
            // What there is to see is shown before the thread sleeps.
            Command::Show => {}
            Command::Stop => return false,
        }
        !self.is_lost()
    }

    /// Its device is lost, and there is no other.
    fn is_lost(&self) -> bool {
        self.status.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn step(&mut self) {
        if self.gate.is_held {
            self.let_go();
        }
        self.show();
        let turn = self.take_turn();
        let clock = self.clock.clone();
        let mut made = true;
        let mut clock = std::iter::repeat_with(|| clock.now());
        if self.attempt(|core, _| core.step(&mut clock, None).map(|any| made = any)) {
            self.has_abandoned = false;
        }
        if let Some(seat) = &self.seat {
            // Before the next one plans: what this has just written is due no more.
            seat.renew(self.due_in());
        }
        drop(turn);
        if self.gate.is_held {
            // A step that waits for a block is still to be made.
            self.gate.steps -= usize::from(made);
            self.clock.hold();
        }
    }

    /// In how long its next token is due, if one has a target.
    fn due_in(&self) -> Option<Duration> {
        let now = self.clock.now();
        self.core.next_due().map(|due| Duration::from_nanos(due.since(now).0))
    }

    /// Waits for the cores, where others have them too, and bounds the step by what these leave it.
    fn take_turn(&mut self) -> Option<Turn> {
        let seat = self.seat.as_ref()?;
        let turn = seat.take(self.due_in());
        let nanos = |time: Duration| Nanos(time.as_nanos() as u64);
        self.core.share_cores(nanos(turn.waited), seat.others_due().map(|due| nanos(due.max(LEAST_STEP))));
        // Others were computing, and that is no sign of a loop that is stuck.
        self.beat();
        Some(turn)
    }

    /// A panic is a bug, but one that must not take the engine with it. False: there was one.
    fn guard(&mut self, work: impl FnOnce(&mut EngineCore, Nanos)) -> bool {
        self.attempt(|core, now| {
            work(core, now);
            Ok(())
        })
    }

    /// The same for what computes: a lost device need not take the engine with it either.
    fn attempt(&mut self, work: impl FnOnce(&mut EngineCore, Nanos) -> Result<(), DeviceError>) -> bool {
        let now = self.clock.now();
        match catch_unwind(AssertUnwindSafe(|| work(&mut self.core, now))) {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => self.lose(&error),
            Err(_) => self.recover(),
        }
        false
    }

    /// The device is lost: the standby goes on, or nothing does.
    fn lose(&mut self, error: &DeviceError) {
        let clock = self.clock.clone();
        self.status.patience.store(LONGEST_MOVE, Ordering::Relaxed);
        let moved = catch_unwind(AssertUnwindSafe(|| self.core.move_to_standby(error, &mut || clock.now())));
        self.beat();
        self.status.patience.store(0, Ordering::Relaxed);
        if !moved.unwrap_or(false) {
            tracing::error!(%error, "every request ends with an error");
            self.status.lost.store(true, Ordering::Relaxed);
        }
    }

    /// After a panic around the rows of a step. A plan that is under way is given up, once; after it, and where there
    /// is none, the scheduler may be in disorder.
    fn recover(&mut self) {
        if self.core.is_in_flight() && !self.has_abandoned {
            tracing::error!("a step failed before its rows were computed; it is planned again");
            self.has_abandoned = true;
            if catch_unwind(AssertUnwindSafe(|| self.core.abandon())).is_ok() {
                #[cfg(test)]
                {
                    self.failures.1 += 1;
                }
                return;
            }
        }
        tracing::error!("a step failed; every request ends with an error and the engine goes on");
        self.has_abandoned = false;
        #[cfg(test)]
        {
            self.failures.0 += 1;
        }
        self.core.start_over(self.core.cost_model(), self.clock.now());
    }

    fn show(&self) {
        let Driver { core, status, clock, .. } = self;
        core.look_ahead(clock.now(), &status.forecast);
        if status.watchers.load(Ordering::Relaxed) > 0 {
            core.show(clock.now(), &status.snapshot);
        }
        if status.map_watchers.load(Ordering::Relaxed) > 0 {
            core.show_map(clock.now(), false, &status.map);
        }
    }

    /// Nothing more is done: what is open ends with an error.
    pub(crate) fn end(mut self) {
        self.status.dead.store(true, Ordering::Relaxed);
        let error = if self.is_lost() { RequestError::DeviceLost } else { RequestError::ShuttingDown };
        self.core.end_all(error, self.clock.now());
    }

    /// Holds the engine, or lets go of it. It is never held while it drains.
    fn hold(&mut self, hold: PauseCommand) {
        let drains = self.status.draining.load(Ordering::Relaxed);
        match hold {
            PauseCommand::Pause if !self.gate.is_held && !drains => {
                self.gate = PauseGate { is_held: true, steps: 0 };
                self.clock.hold();
            }
            PauseCommand::SingleStep if self.gate.is_held && self.core.has_work() => self.gate.steps += 1,
            PauseCommand::Resume if self.gate.is_held => {
                self.gate = PauseGate::default();
                self.let_go();
            }
            _ => {}
        }
        self.status.held.store(self.gate.is_held, Ordering::Relaxed);
    }

    /// The clock runs again.
    fn let_go(&mut self) {
        self.clock.let_go();
        self.core.set_paused_time(self.clock.held());
    }
}

#[cfg(test)]
impl Driver {
    /// Times that it had to start over, and times that a plan was abandoned.
    pub(crate) fn failures(&self) -> (u64, u64) {
        self.failures
    }

    /// Panics where the scheduler's books disagree.
    pub(crate) fn check_invariants(&self) {
        self.core.check_invariants();
    }

    /// Whether there is a draft model.
    pub(crate) fn drafting_computes(&self) -> bool {
        self.core.drafting_computes()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.core.in_flight()
    }
}

fn submit(core: &mut EngineCore, one: NewRequest, now: Nanos) {
    let NewRequest { id, request, arrived, events, peer } = one;
    match core.admit(id, *request, arrived, events.clone(), now) {
        Ok(()) => peer.into_iter().for_each(|peer| core.serve_prefill(id, peer)),
        Err(error) => events.send(Event::Failed(error)),
    }
}
