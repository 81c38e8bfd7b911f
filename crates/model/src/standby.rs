//! What goes on where a device is lost.

use crate::forward::Forward;
use checkpoint::LoadError;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// What goes on where the device is lost: the same model from the same weights, with as many rows, blocks, slots of
/// states and of adapters, which are empty, and places for logits. Loaded when it is asked for, once for each device
/// that is lost, on a thread of its own: the thread that computes is pinned to a core, and so would be what it begins.
pub struct Standby {
    ask: SyncSender<()>,
    loaded: Receiver<Result<Box<dyn Forward>, LoadError>>,
}

impl Standby {
    /// Starts the thread, which sleeps. Called where no thread is pinned.
    pub fn new(mut load: impl FnMut() -> Result<Box<dyn Forward>, LoadError> + Send + 'static) -> io::Result<Standby> {
        let ((ask, asked), (give, loaded)) = (sync_channel(1), sync_channel(1));
        let run = move || asked.into_iter().take_while(|()| give.send(load()).is_ok()).for_each(drop);
        std::thread::Builder::new().name("standby".into()).spawn(run)?;
        Ok(Standby { ask, loaded })
    }

    /// Blocks until it is there: seconds, where weights come from a packed image.
    pub fn load(&self) -> Result<Box<dyn Forward>, LoadError> {
        let loaded = self.ask.send(()).ok().and_then(|()| self.loaded.recv().ok());
        loaded.unwrap_or_else(|| {
            let problem = "its loading panicked: the log has the place".to_owned();
            Err(LoadError::Option { option: "standby", problem })
        })
    }
}
