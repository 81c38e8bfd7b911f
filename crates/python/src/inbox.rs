//! Outputs of many requests, for one who waits for all of them.
//!
//! ```text
//! engine --output--> stream --wakes--> key in `ready`, a byte into the bell --> select(), asyncio: readable
//!                                                                                  |
//! Python <--output(key): what has come <-- take(): the streams that have something <+
//! ```
//! The engine's thread writes one byte, however many outputs a step has, and never waits.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use engine::{Stream, SubmitError};
use pyo3::exceptions::{PyKeyError, PyOSError, PyRuntimeError};
use pyo3::prelude::*;

use crate::answers::{Answers, OutputEntry};
use crate::engine::Engine;
use crate::request::Request;

/// Requests of one caller, by keys that it chose. Of one thread at a time.
#[pyclass(module = "twostroke._twostroke")]
pub(crate) struct Inbox {
    bell: UnixStream,
    door: Arc<Door>,
    open: BTreeMap<u64, Open>,
}

/// A request under way.
struct Open {
    stream: Stream,
    waker: Waker,
    answers: Answers,
}

/// Where it is rung.
struct Door {
    bell: UnixStream,
    /// Whose streams have something; one key may be there twice.
    ready: Mutex<Vec<u64>>,
}

/// Rings for one stream.
struct Ring {
    door: Arc<Door>,
    key: u64,
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.door.ring(self.key);
    }
}

impl Door {
    fn ring(&self, key: u64) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = ready.is_empty();
        ready.push(key);
        drop(ready);
        if is_first {
            // A bell that is full has rung, and one whose reader is gone need not.
            let _ = (&self.bell).write(&[0]);
        }
    }
}

#[pymethods]
impl Inbox {
    #[new]
    fn new() -> PyResult<Inbox> {
        let pair = || -> io::Result<(UnixStream, UnixStream)> {
            let (bell, rung) = UnixStream::pair()?;
            bell.set_nonblocking(true)?;
            rung.set_nonblocking(true)?;
            Ok((bell, rung))
        };
        let (bell, rung) = pair().map_err(|error| PyOSError::new_err(error.to_string()))?;
        let door = Arc::new(Door { bell: rung, ready: Mutex::default() });
        Ok(Inbox { bell, door, open: BTreeMap::new() })
    }

    /// The descriptor that is readable when something has come.
    fn fileno(&self) -> i32 {
        self.bell.as_raw_fd()
    }

    /// Queues a request under a key. False: the queue is full, and a place will be free when a request has begun.
    fn submit(&mut self, engine: &Engine, key: u64, request: &Request) -> PyResult<bool> {
        let stream = match engine.inner.submit(request.validated.clone()) {
            Ok(stream) => stream,
            Err(SubmitError::QueueFull { .. } | SubmitError::TenantQueueFull { .. }) => return Ok(false),
            Err(SubmitError::ShuttingDown) => return Err(PyRuntimeError::new_err("this engine was stopped")),
            Err(error) => return Err(PyRuntimeError::new_err(error.to_string())),
        };
        let waker = Waker::from(Arc::new(Ring { door: self.door.clone(), key }));
        // The first look at a stream is what has it ring.
        self.door.ring(key);
        self.open.insert(key, Open { stream, waker, answers: Answers::new(engine, request) });
        Ok(true)
    }

    /// The name that the engine has given to a request.
    fn request_id(&self, key: u64) -> PyResult<String> {
        self.open.get(&key).map(|open| open.stream.id().0.to_string()).ok_or_else(|| unknown(key))
    }

    /// Whose outputs have come since the last look, and whether that was all of them. Does not wait.
    fn take(&mut self) -> Vec<(u64, bool)> {
        // First the bell, then the keys: what comes between the two rings once too often, and not once too rarely.
        let mut bytes = [0; 64];
        while (&self.bell).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
        let mut ready = std::mem::take(&mut *self.door.ready.lock().unwrap_or_else(PoisonError::into_inner));
        ready.sort_unstable();
        ready.dedup();
        ready.into_iter().filter_map(|key| Some((key, self.open.get_mut(&key)?.read()?))).collect()
    }

    /// What has come of a request; with `delta` what was not given out before.
    fn output(&mut self, key: u64, delta: bool) -> PyResult<OutputEntry> {
        let open = self.open.get_mut(&key).ok_or_else(|| unknown(key))?;
        Ok(open.answers.entry(delta))
    }

    /// Forgets a request; one that is under way is cancelled.
    fn close(&mut self, key: u64) {
        self.open.remove(&key);
    }

    /// Forgets all of them.
    fn close_all(&mut self) {
        self.open.clear();
    }
}

impl Open {
    /// Reads what has come. `None`: nothing; whether it was the last.
    fn read(&mut self) -> Option<bool> {
        let mut context = Context::from_waker(&self.waker);
        let mut has_come = false;
        while !self.answers.is_over() {
            match pin!(self.stream.recv()).poll(&mut context) {
                Poll::Ready(output) => self.answers.take(output),
                Poll::Pending => break,
            }
            has_come = true;
        }
        has_come.then_some(self.answers.is_over())
    }
}

fn unknown(key: u64) -> PyErr {
    PyKeyError::new_err(format!("no request has the key {key}"))
}
