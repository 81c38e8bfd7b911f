//! Carries out what the machine decides: loads and drops models on threads of their own, and tells those who wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use protocol::Nanos;
use tokio::sync::{Notify, oneshot};

use crate::machine::{Action, Facts, ModelId, Place, Refusal, Residency, Rules, WaitTicket};

/// A model in memory, as those see it who ask it.
pub trait ResidentModel: Clone + Send + Sync + 'static {
    /// Bytes that it takes.
    fn bytes(&self) -> u64;

    /// Ends it and waits until its memory is free. No request is open.
    fn close(self);
}

/// What a loader tells of how far it is.
#[derive(Debug, Default)]
pub struct LoadingReport {
    done: AtomicU64,
    total: AtomicU64,
}

impl LoadingReport {
    /// So much of all.
    pub fn at(&self, done: u64, total: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// In percent; `None`: nothing is known.
    pub fn percent(&self) -> Option<u64> {
        let total = self.total.load(Ordering::Relaxed);
        (total > 0).then(|| self.done.load(Ordering::Relaxed).min(total) * 100 / total)
    }
}

/// Loads a model, or says why not. Blocks.
type Loader<R> = dyn Fn(ModelId, &LoadingReport) -> Result<R, String> + Send + Sync;

/// The models of a process. Clones are of the same.
pub struct Manager<R: ResidentModel>(Arc<Inner<R>>);

impl<R: ResidentModel> Clone for Manager<R> {
    fn clone(&self) -> Manager<R> {
        Manager(self.0.clone())
    }
}

struct Inner<R: ResidentModel> {
    state: Mutex<State<R>>,
    loader: Box<Loader<R>>,
    begun: Instant,
    /// The next moment may have changed.
    changed: Notify,
}

/// Who waits for a model, and where it hears of it.
type Waiter<R> = (ModelId, oneshot::Sender<Result<Entered<R>, Refusal>>);

struct State<R: ResidentModel> {
    machine: Residency,
    loaded: BTreeMap<ModelId, R>,
    loading: BTreeMap<ModelId, Arc<LoadingReport>>,
    waiters: BTreeMap<WaitTicket, Waiter<R>>,
    is_closed: bool,
}

/// How a model stands.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Where it is.
    pub place: Place,
    /// Percent of its way into memory, while it loads.
    pub percent: Option<u64>,
    /// Bytes that it takes, or will.
    pub bytes: u64,
    /// Requests that it answers, and that wait for it.
    pub requests: (usize, usize),
    /// It never leaves by itself.
    pub pinned: bool,
    /// In how long it leaves if nothing is asked of it.
    pub leaves_in: Option<Duration>,
}

impl<R: ResidentModel> Manager<R> {
    /// Without a model. `loader` runs on a thread of its own.
    pub fn new(
        rules: Rules,
        loader: impl Fn(ModelId, &LoadingReport) -> Result<R, String> + Send + Sync + 'static,
    ) -> Manager<R> {
        let state = State {
            machine: Residency::new(rules),
            loaded: BTreeMap::new(),
            loading: BTreeMap::new(),
            waiters: BTreeMap::new(),
            is_closed: false,
        };
        let (state, loader) = (Mutex::new(state), Box::new(loader));
        Manager(Arc::new(Inner { state, loader, begun: Instant::now(), changed: Notify::new() }))
    }

    /// Adds a model.
    pub fn add(&self, facts: Facts) -> ModelId {
        self.0.state().machine.add(facts)
    }

    /// Does what only time brings, as long as there is a manager. Begins with the pinned models.
    pub async fn run(&self) {
        loop {
            let changed = self.0.changed.notified();
            let next = self.0.decide();
            match next {
                Some(wait) => _ = tokio::time::timeout(wait, changed).await,
                None => changed.await,
            }
        }
    }

    /// Waits until the model may be asked. It is open until the result is dropped; dropping the future withdraws.
    pub async fn enter(&self, id: ModelId) -> Result<Entered<R>, Refusal> {
        let (told, answer) = oneshot::channel();
        let ticket = {
            let mut state = self.0.state();
            if state.is_closed {
                return Err(Refusal::Failed("the server is shutting down".to_owned()));
            }
            let ticket = state.machine.ask(id, self.0.now())?;
            state.waiters.insert(ticket, (id, told));
            ticket
        };
        let mut waiting = Waiting { manager: self.0.clone(), ticket, is_over: false };
        self.0.turn();
        let answer = answer.await;
        waiting.is_over = true;
        answer.map_err(|_| Refusal::Failed("the server is shutting down".to_owned()))?
    }

    /// A model in memory, whether or not it takes requests; it is not kept from leaving.
    pub fn peek(&self, id: ModelId) -> Option<R> {
        self.0.state().loaded.get(&id).cloned()
    }

    /// All in memory.
    pub fn all_loaded(&self) -> Vec<(ModelId, R)> {
        self.0.state().loaded.iter().map(|(&id, handle)| (id, handle.clone())).collect()
    }

    /// See [`Residency::keep_alive`].
    pub fn keep_alive(&self, id: ModelId, stays: Option<Duration>) {
        self.0.state().machine.keep_alive(id, stays.map(nanos));
        self.0.turn();
    }

    /// See [`Residency::renew`].
    pub fn renew(&self, id: ModelId, facts: Facts) -> bool {
        let is_renewed = self.0.state().machine.renew(id, facts);
        self.0.turn();
        is_renewed
    }

    /// See [`Residency::dismiss`].
    pub fn dismiss(&self, id: ModelId) {
        self.0.state().machine.dismiss(id);
        self.0.turn();
    }

    /// How it stands.
    pub fn standing(&self, id: ModelId) -> Standing {
        let now = self.0.now();
        let state = self.0.state();
        let facts = state.machine.facts(id);
        Standing {
            place: state.machine.place(id).clone(),
            percent: state.loading.get(&id).and_then(|report| report.percent()),
            bytes: facts.bytes,
            requests: state.machine.requests(id),
            pinned: facts.pinned,
            leaves_in: state.machine.leaves_at(id).map(|at| Duration::from_nanos(at.since(now).0)),
        }
    }

    /// No request enters any more; those who wait are told.
    pub fn close(&self) {
        let mut state = self.0.state();
        state.is_closed = true;
        state.waiters.clear();
    }
}

fn nanos(time: Duration) -> Nanos {
    Nanos(time.as_nanos().min(u128::from(u64::MAX)) as u64)
}

impl<R: ResidentModel> Inner<R> {
    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        nanos(self.begun.elapsed())
    }

    /// After something has changed.
    fn turn(self: &Arc<Self>) {
        self.decide();
        self.changed.notify_one();
    }

    /// Decides and begins what was decided. Returns in how long time alone may change something.
    fn decide(self: &Arc<Self>) -> Option<Duration> {
        loop {
            let mut state = self.state();
            if state.is_closed {
                // Who waited has been told, and nothing is loaded any more.
                return None;
            }
            let now = self.now();
            let actions = state.machine.decide(now);
            let left: Vec<Entered<R>> =
                actions.into_iter().filter_map(|action| self.begin(&mut state, action)).collect();
            let next = state.machine.next_moment(now).map(|at| Duration::from_nanos(at.since(now).0));
            drop(state);
            if left.is_empty() {
                return next;
            }
            // Requests whose clients left as they were admitted: over, which is a change.
            drop(left);
        }
    }

    /// Begins it. Returns what was admitted for a client that has left, to be dropped without the lock.
    fn begin(self: &Arc<Self>, state: &mut State<R>, action: Action) -> Option<Entered<R>> {
        match action {
            Action::Load(id) => {
                let report = Arc::new(LoadingReport::default());
                state.loading.insert(id, report.clone());
                let inner = self.clone();
                self.start(state, id, "load", move || inner.load(id, &report));
            }
            Action::Unload(id) => {
                let handle = state.loaded.remove(&id)?;
                let inner = self.clone();
                self.start(state, id, "unload", move || {
                    handle.close();
                    inner.state().machine.gone(id);
                    inner.turn();
                });
            }
            Action::Admit(ticket) => {
                let (id, told) = state.waiters.remove(&ticket)?;
                let handle = state.loaded.get(&id).cloned()?;
                let entered = Entered { handle, id, manager: Arc::downgrade(self) };
                return told.send(Ok(entered)).err()?.ok();
            }
            Action::Refuse(ticket, refusal) => {
                if let Some((_, told)) = state.waiters.remove(&ticket) {
                    // Who left is told nothing.
                    _ = told.send(Err(refusal));
                }
            }
        }
        None
    }

    fn start(&self, state: &mut State<R>, id: ModelId, name: &str, work: impl FnOnce() + Send + 'static) {
        if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(work) {
            tracing::error!(%error, "no thread to {name} a model");
            state.machine.failed(id, format!("no thread to {name} it: {error}"), self.now());
        }
    }

    fn load(self: &Arc<Self>, id: ModelId, report: &LoadingReport) {
        let loaded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.loader)(id, report)));
        let loaded = loaded.unwrap_or_else(|_| Err("an internal error".to_owned()));
        let mut state = self.state();
        state.loading.remove(&id);
        match loaded {
            Ok(handle) => {
                state.machine.loaded(id, handle.bytes(), self.now());
                state.loaded.insert(id, handle);
            }
            Err(why) => state.machine.failed(id, why, self.now()),
        }
        drop(state);
        self.turn();
    }
}

/// One who waits. Leaving before the answer withdraws.
struct Waiting<R: ResidentModel> {
    manager: Arc<Inner<R>>,
    ticket: WaitTicket,
    is_over: bool,
}

impl<R: ResidentModel> Drop for Waiting<R> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.manager.state();
        if state.waiters.remove(&self.ticket).is_some() {
            state.machine.withdraw(self.ticket);
        }
        drop(state);
        self.manager.turn();
    }
}

/// A model that answers a request: it stays in memory until this is dropped.
pub struct Entered<R: ResidentModel> {
    /// What answers.
    pub handle: R,
    id: ModelId,
    manager: Weak<Inner<R>>,
}

impl<R: ResidentModel> Drop for Entered<R> {
    fn drop(&mut self) {
        if let Some(inner) = self.manager.upgrade() {
            inner.state().machine.ended(self.id, inner.now());
            inner.turn();
        }
    }
}
