//! Answers in the background while they are written, and the streams of those who read them: each from a place of its
//! own, as often as it likes. A reader that leaves ends nothing.
//!
//! ```text
//! the task that writes --change--> Running <--poll-- Replay (a body), Replay, ...
//!                                     |
//!                                     +--end--> Content, which the store keeps: later readers have it from there
//! ```

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use axum::response::Response;
use hyper::body::{Body, Bytes, Frame};
use serde_json::Value;
use transport::answer_memory::Charge;
use transport::sse::{EVENTS, streamed};

use super::events::{Teller, Told};
use super::growing::{Delta, Growing};
use super::store::Content;

/// An answer that any number of readers follow.
pub(super) struct Running(Mutex<State>);

struct State {
    /// The response as it was queued.
    head: Value,
    growing: Growing,
    has_begun: bool,
    end: End,
    /// Those who wait for more, by their seats: who leaves gives it back.
    readers: HashMap<u64, Waker>,
    next_seat: u64,
}

enum End {
    NotYet,
    /// As it ended.
    At(Arc<Content>),
    /// It was forgotten.
    Nowhere,
}

impl Running {
    pub(super) fn new(head: Value) -> Running {
        let (growing, readers) = (Growing::default(), HashMap::new());
        Running(Mutex::new(State { head, growing, has_begun: false, end: End::NotYet, readers, next_seat: 0 }))
    }

    /// Lets it grow. One that has ended stays as it is.
    pub(super) fn change<T>(&self, grow: impl FnOnce(&mut Growing) -> T) -> T {
        let mut state = self.lock();
        state.has_begun = true;
        let grown = grow(&mut state.growing);
        state.wake();
        grown
    }

    /// Ends it here, with what `ended` makes of what there is.
    pub(super) fn cut_off(&self, ended: impl FnOnce(Vec<Value>, Vec<Delta>) -> Arc<Content>) {
        let mut state = self.lock();
        let (items, deltas) = std::mem::take(&mut state.growing).cut_off();
        state.end(End::At(ended(items, deltas)));
    }

    /// What there is of it.
    pub(super) fn grown(&self) -> Growing {
        self.lock().growing.clone()
    }

    /// How it ended, if that is not known yet.
    pub(super) fn end(&self, content: Arc<Content>) {
        self.lock().end(End::At(content));
    }

    /// It is forgotten, which is the last that its readers hear.
    pub(super) fn forget(&self) {
        self.lock().end(End::Nowhere);
    }

    /// Whether the model has begun to answer.
    pub(super) fn has_begun(&self) -> bool {
        self.lock().has_begun
    }

    /// A place for one more reader.
    fn seat(&self) -> u64 {
        let mut state = self.lock();
        state.next_seat += 1;
        state.next_seat
    }

    /// The reader there reads no more.
    fn leave(&self, seat: u64) {
        self.lock().readers.remove(&seat);
    }

    fn poll(&self, seat: u64, teller: &mut Teller, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.lock();
        let event = match &state.end {
            End::NotYet => teller.tell(&Told::growing(&state.head, &state.growing, state.has_begun)),
            End::At(content) => return Poll::Ready(teller.tell(&Told::ended(content))),
            End::Nowhere => return Poll::Ready(teller.forgotten()),
        };
        if event.is_none() {
            state.readers.insert(seat, cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(event)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn end(&mut self, end: End) {
        if matches!(self.end, End::NotYet) {
            self.end = end;
            self.growing = Growing::default();
            self.wake();
        }
    }

    fn wake(&mut self) {
        self.readers.drain().for_each(|(_, reader)| reader.wake());
    }
}

/// Where the events of an answer are.
pub(super) enum Source {
    Running(Arc<Running>),
    Ended(Arc<Content>),
}

/// The body of a stream of them. Pulled by its connection: for a slow reader nothing is written ahead.
pub(super) struct Replay {
    source: Source,
    /// Among the readers of one that is written.
    seat: u64,
    teller: Teller,
    /// Memory set aside for an answer that has ended.
    _charge: Option<Charge>,
}

impl Replay {
    /// The events behind that number.
    pub(super) fn response(source: Source, after: Option<u64>, charge: Option<Charge>) -> Response {
        let seat = match &source {
            Source::Running(running) => running.seat(),
            Source::Ended(_) => 0,
        };
        let replay = Replay { source, seat, teller: Teller::new(after), _charge: charge };
        streamed(EVENTS, "no-cache", axum::body::Body::new(replay))
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        if let Source::Running(running) = &self.source {
            running.leave(self.seat);
        }
    }
}

impl Body for Replay {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Replay { source, seat, teller, .. } = &mut *self;
        let event = match source {
            Source::Running(running) => running.poll(*seat, teller, cx),
            Source::Ended(content) => Poll::Ready(teller.tell(&Told::ended(content))),
        };
        event.map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn readers_are_woken_by_what_is_new_and_by_every_end() {
        let content = || {
            let response = json!({"status": "completed", "background": true, "output": []});
            Arc::new(Content { response, input: Value::Null, conversation: Vec::new(), deltas: Vec::new() })
        };
        for is_forgotten in [false, true] {
            let running = Running::new(json!({"status": "queued", "background": true}));
            let count = Arc::new(Count::default());
            let waker = Waker::from(count.clone());
            let cx = Context::from_waker(&waker);
            let mut tellers = [Teller::new(None), Teller::new(Some(1))];
            let mut told = [0, 0];
            let mut read = |running: &Running| {
                let mut over = 0;
                for (seat, (teller, told)) in (0..).zip(tellers.iter_mut().zip(&mut told)) {
                    loop {
                        match running.poll(seat, teller, &cx) {
                            Poll::Ready(Some(_)) => *told += 1,
                            Poll::Ready(None) => break over += 1,
                            Poll::Pending => break,
                        }
                    }
                }
                (told[0], told[1], over)
            };
            assert_eq!(read(&running), (2, 0, 0));
            running.change(|_| ());
            assert_eq!(count.0.load(Ordering::Relaxed), 2, "one for each reader, however often it waits");
            assert_eq!(read(&running), (3, 1, 0));
            if is_forgotten {
                running.forget()
            } else {
                running.end(content())
            }
            assert_eq!(count.0.load(Ordering::Relaxed), 4);
            // Its end, or that it was forgotten.
            let expected = (4, 2, 2);
            assert_eq!(read(&running), expected);
            // Whatever comes behind the first end is too late.
            running.forget();
            running.end(content());
            assert_eq!(read(&running), expected);
        }
    }

    #[test]
    fn readers_that_leave_are_forgotten() {
        let running = Arc::new(Running::new(json!({"status": "queued", "background": true})));
        let waker = Waker::from(Arc::new(Count::default()));
        let mut cx = Context::from_waker(&waker);
        let waits = |running: &Running| running.lock().readers.len();
        let read = |cx: &mut Context<'_>| {
            let mut body = Replay::response(Source::Running(running.clone()), None, None).into_body();
            while let Poll::Ready(event) = Pin::new(&mut body).poll_frame(cx) {
                event.expect("more comes").expect("it never fails");
            }
            body
        };
        let stays = read(&mut cx);
        for _ in 0..100 {
            drop(read(&mut cx));
        }
        assert_eq!(waits(&running), 1);
        drop(stays);
        assert_eq!(waits(&running), 0);
    }
}
