//! A drain: nothing new is taken, and what is under way is waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{OwnedRwLockReadGuard, RwLock, watch};

/// What a server that goes down has to know of.
#[derive(Default)]
pub struct Drain {
    begun: AtomicBool,
    /// Has a receiver for each answer that is written though no connection waits for it.
    background: watch::Sender<()>,
    /// Read by answers that take several requests of the engine, one after the other.
    asking: Arc<RwLock<()>>,
}

/// Something is done for which no connection waits, until this is dropped.
pub type InBackground = watch::Receiver<()>;

/// Requests are still to be made of the engine, until this is dropped.
pub type Asking = OwnedRwLockReadGuard<()>;

impl Drain {
    /// Nothing new is taken from now on.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    pub fn in_background(&self) -> InBackground {
        self.background.subscribe()
    }

    pub async fn background_ended(&self) {
        self.background.closed().await;
    }

    /// `None` where a drain has begun.
    pub fn asking(&self) -> Option<Asking> {
        // A writer that waits lets no further reader in.
        self.asking.clone().try_read_owned().ok()
    }

    /// An engine that drains refuses what is asked of it, so it is told when all has been asked.
    pub async fn asking_ended(&self) {
        drop(self.asking.write().await);
    }
}
