//! Admission to the queue: counted by the handle, so that a full queue refuses before the engine's thread is
//! asked.
//!
//! A request's [`QueuePermit`] is its place in the queue and among the open requests. It travels with the request, and
//! whatever becomes of that, both are released when the permit is dropped: there is no second list to keep.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scheduler::quota::{Quota, QuotaExceeded};

use crate::adapters::Use;

/// Requests that were submitted and are in no step yet, and the tokens of their prompts and predictions.
#[derive(Debug)]
pub(crate) struct Waiting {
    requests: Quota,
    tokens: Quota,
}

/// A request's place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePlace {
    pub(crate) tenant: u64,
    pub(crate) prompt_tokens: usize,
}

/// Open requests, and those of them that wait.
#[derive(Debug)]
pub(crate) struct QueueCounts {
    waiting: Mutex<Waiting>,
    open: AtomicUsize,
}

impl QueueCounts {
    pub(crate) fn new(waiting: Waiting) -> Arc<QueueCounts> {
        Arc::new(QueueCounts { waiting: Mutex::new(waiting), open: AtomicUsize::new(0) })
    }

    /// Takes a place in the queue, or none.
    pub(crate) fn enter(self: &Arc<QueueCounts>, place: QueuePlace) -> Result<QueuePermit, QuotaExceeded> {
        self.waiting().enter(place)?;
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(QueuePermit { counts: self.clone(), place: Some(place), adapter: None })
    }

    /// Requests that were submitted and have not ended.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's places: released when it is dropped.
#[derive(Debug)]
pub(crate) struct QueuePermit {
    counts: Arc<QueueCounts>,
    /// In the queue, while it is there.
    place: Option<QueuePlace>,
    /// It is one of those that use an adapter.
    adapter: Option<Use>,
}

impl QueuePermit {
    /// The same of a request with an adapter.
    pub(crate) fn with(mut self, adapter: Option<Use>) -> QueuePermit {
        self.adapter = adapter;
        self
    }

    pub(crate) fn leave_queue(&mut self) {
        if let Some(place) = self.place.take() {
            self.counts.waiting().leave(place);
        }
        if let Some(adapter) = &mut self.adapter {
            adapter.begin();
        }
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.leave_queue();
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Waiting {
    /// `is_shared`: several tenants may come, and none of them may fill the queue.
    pub(crate) fn new(max_requests: usize, max_tokens: usize, is_shared: bool) -> Waiting {
        Waiting {
            requests: Quota::new(max_requests as u64, is_shared),
            tokens: Quota::new(max_tokens as u64, is_shared),
        }
    }

    /// Takes the place, or none. However long its prompt, one that finds the queue empty gets in; and a tenant that has
    /// nothing in it gets in as long as the queue has room at all.
    fn enter(&mut self, place: QueuePlace) -> Result<(), QuotaExceeded> {
        let QueuePlace { tenant, prompt_tokens } = place;
        let is_first = self.requests.taken() == 0;
        let is_first_of_tenant = self.requests.held_by(tenant) == 0;
        self.requests.take(tenant, 1)?;
        match self.tokens.take(tenant, prompt_tokens as u64) {
            Ok(()) => Ok(()),
            Err(no_room) if is_first || no_room == QuotaExceeded::TenantQueueFull && is_first_of_tenant => {
                self.tokens.hold(tenant, prompt_tokens as u64);
                Ok(())
            }
            Err(no_room) => {
                self.requests.give_back(tenant, 1);
                Err(no_room)
            }
        }
    }

    /// The request runs, or is gone.
    fn leave(&mut self, place: QueuePlace) {
        self.requests.give_back(place.tenant, 1);
        self.tokens.give_back(place.tenant, place.prompt_tokens as u64);
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.taken() as usize
    }

    /// Those of one tenant.
    pub(crate) fn requests_of(&self, tenant: u64) -> usize {
        self.requests.held_by(tenant) as usize
    }

    /// Prompt tokens of all.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens.taken() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(tenant: u64, prompt_tokens: usize) -> QueuePlace {
        QueuePlace { tenant, prompt_tokens }
    }

    #[test]
    fn a_flood_leaves_room_for_the_next_key() {
        let mut waiting = Waiting::new(8, 1000, true);
        let entered = (0..20).filter(|_| waiting.enter(place(1, 10)).is_ok()).count();
        assert_eq!((entered, waiting.requests_of(1)), (4, 4));
        assert_eq!(waiting.enter(place(1, 10)), Err(QuotaExceeded::TenantQueueFull));
        assert_eq!(waiting.enter(place(2, 10)), Ok(()));
        // By tokens as well: 1 may have half of what is left, and 3, which has nothing, whatever fits.
        let mut waiting = Waiting::new(8, 1000, true);
        assert_eq!(waiting.enter(place(1, 400)), Ok(()));
        assert_eq!(waiting.enter(place(1, 400)), Err(QuotaExceeded::TenantQueueFull));
        assert_eq!(waiting.requests(), 1, "what is refused holds nothing");
        assert_eq!(waiting.enter(place(3, 600)), Ok(()));
        assert_eq!(waiting.enter(place(4, 1)), Err(QuotaExceeded::Full));
    }

    #[test]
    fn a_ticket_gives_back_what_it_took_whatever_becomes_of_it() {
        let counted = QueueCounts::new(Waiting::new(2, 100, false));
        let counts = || {
            let waiting = counted.waiting();
            (counted.open(), waiting.requests(), waiting.tokens())
        };
        let mut runs = counted.enter(place(1, 10)).expect("there is room");
        let waits = counted.enter(place(1, 20)).expect("there is room");
        assert_eq!(counted.enter(place(1, 1)).err(), Some(QuotaExceeded::Full));
        assert_eq!(counts(), (2, 2, 30));
        runs.leave_queue();
        runs.leave_queue();
        assert_eq!(counts(), (2, 1, 20));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _waits = waits;
            std::panic::resume_unwind(Box::new("a bug"));
        }));
        assert!(panicked.is_err());
        drop(runs);
        assert_eq!(counts(), (0, 0, 0));
    }

    #[test]
    fn an_empty_queue_takes_any_prompt() {
        for is_shared in [false, true] {
            let mut waiting = Waiting::new(2, 10, is_shared);
            assert_eq!(waiting.enter(place(1, 1_000_000)), Ok(()));
            assert_eq!(waiting.enter(place(2, 1)), Err(QuotaExceeded::Full));
            waiting.leave(place(1, 1_000_000));
            assert_eq!((waiting.requests(), waiting.tokens()), (0, 0));
            assert_eq!(waiting.enter(place(2, 1)), Ok(()));
        }
    }
}
