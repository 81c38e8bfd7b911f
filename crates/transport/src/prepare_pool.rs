//! The threads that parse, render, tokenize and detokenize, and the room for what they work on. A second pool, of one
//! thread, writes what no body asks for: counters, plans, lists.
//!
//! ```text
//! handler --reserve--> body arrives --enter--> waits for its turn --> a thread ──pause──► another's turn? ──► rests
//!    └── dropped: a job that waits or rests is gone at once, one at work at its next pause
//! ```
//!
//! [`FairQueue`] decides; here are the lock, the clock and the threads. They are tokio's blocking ones, but no more are
//! taken than [`FairQueue`] lets begin: `workers` at work, and the few long jobs that rest.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use telemetry::metrics::PrepareStats;
use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::fair_queue::{FairQueue, Full, JobId, Payer};

/// Bodies of all tenants together, in bytes.
const MOST_BYTES: usize = 128 << 20;
/// What a byte costs at least, in nanoseconds: parsing it, and holding it in memory.
const BYTE_NANOS: u64 = 50;

/// Shared by all handlers.
#[derive(Clone)]
pub struct PreparePool(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    working_nanos: AtomicU64,
    waiting_nanos: AtomicU64,
}

struct State {
    queue: FairQueue,
    /// How each job that waits or rests hears that its turn has come.
    calls: std::collections::HashMap<JobId, oneshot::Sender<()>>,
}

impl PreparePool {
    /// `largest_body`: bytes of one body, for which there is always room.
    pub fn new(workers: usize, largest_body: usize) -> PreparePool {
        let queue = FairQueue::new(workers, MOST_BYTES, largest_body);
        let state = Mutex::new(State { queue, calls: Default::default() });
        PreparePool(Arc::new(Shared { state, working_nanos: AtomicU64::new(0), waiting_nanos: AtomicU64::new(0) }))
    }

    /// Room for a body that is about to arrive.
    pub fn room(&self, payer: Payer) -> Room {
        Room { pool: self.clone(), payer, bytes: 0 }
    }

    /// Runs `work` when its turn comes, on a thread of its own. The room is given back when the work is over, also when
    /// its client is gone.
    pub async fn run<T: Send + 'static>(
        &self,
        room: Room,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let came = Instant::now();
        let (call, turn) = oneshot::channel();
        let id = {
            let mut state = self.lock();
            let id = state.queue.enter(room.payer, room.bytes);
            state.calls.insert(id, call);
            state.call_next();
            id
        };
        let given_up = Arc::new(AtomicBool::new(false));
        // From here on, dropping this future drops the job.
        let _watch = Watch { pool: self.clone(), id, given_up: given_up.clone() };
        let mut job = Job { pool: self.clone(), id, given_up, since: None, _room: room };
        turn.await.map_err(|_| ApiError::internal())?;
        self.0.waiting_nanos.fetch_add(nanos(came.elapsed()), Ordering::Relaxed);
        let thread = tokio::task::spawn_blocking(move || {
            job.since = Some(Instant::now());
            let job = Arc::new(Mutex::new(job));
            let pausing = job.clone();
            text::yield_point::with(
                move |bytes| pausing.lock().unwrap_or_else(PoisonError::into_inner).pause(bytes),
                || {
                    let done = work();
                    drop(job);
                    done
                },
            )
        });
        // A panic in there is a bug of ours, and this request's only.
        thread.await.unwrap_or_else(|_| Err(ApiError::internal()))
    }

    pub fn stats(&self) -> PrepareStats {
        let read = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Ordering::Relaxed));
        PrepareStats {
            jobs: self.lock().queue.len(),
            working: read(&self.0.working_nanos),
            waiting: read(&self.0.waiting_nanos),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Wakes the next in turn.
    fn call_next(&mut self) {
        while let Some(id) = self.queue.next() {
            let called = self.calls.remove(&id).is_some_and(|call| call.send(()).is_ok());
            if !called {
                // Given up a moment ago.
                self.queue.leave(id, 0);
            }
        }
    }
}

/// Bytes of a body, held until the work on it is over.
pub struct Room {
    pool: PreparePool,
    payer: Payer,
    bytes: usize,
}

impl Room {
    /// Takes room for bytes that have arrived; 503 where there is none.
    pub fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.pool.lock().queue.reserve(self.payer, bytes).map_err(|Full| ApiError::overloaded(1))?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.pool.lock().queue.release(self.payer, self.bytes);
    }
}

/// The handler's hold on its job.
struct Watch {
    pool: PreparePool,
    id: JobId,
    given_up: Arc<AtomicBool>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
        // One that rests wakes up by this, and finds that it is given up.
        self.pool.lock().calls.remove(&self.id);
    }
}

/// A job's hold on its place.
struct Job {
    pool: PreparePool,
    id: JobId,
    given_up: Arc<AtomicBool>,
    /// When what is not charged yet began; `None` while it does not work.
    since: Option<Instant>,
    _room: Room,
}

impl Job {
    /// Between two windows; see [`text::yield_point`]. `false`: the client is gone.
    fn pause(&mut self, bytes: usize) -> bool {
        let cost = self.cost().max(bytes as u64 * BYTE_NANOS);
        let turn = {
            let mut state = self.pool.lock();
            let rests = state.queue.charge(self.id, cost);
            rests.then(|| {
                let (call, turn) = oneshot::channel();
                state.calls.insert(self.id, call);
                state.call_next();
                turn
            })
        };
        if let Some(turn) = turn
            && !self.given_up.load(Ordering::Relaxed)
        {
            // An error: given up.
            let _ = turn.blocking_recv();
        }
        self.since = Some(Instant::now());
        !self.given_up.load(Ordering::Relaxed)
    }

    fn cost(&mut self) -> u64 {
        let spent = self.since.take().map_or(0, |since| nanos(since.elapsed()));
        self.pool.0.working_nanos.fetch_add(spent, Ordering::Relaxed);
        spent
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let cost = self.cost();
        let mut state = self.pool.lock();
        state.calls.remove(&self.id);
        state.queue.leave(self.id, cost);
        state.call_next();
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
