//! A client's end of a request: its events, in their order, and the signal that the client is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::{Nanos, RequestId, TokenId};
use scheduler::LatencyBound;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::command::Command;
use crate::output::{Event, EventSender, SendBacklog, event_channel};

/// A request's events. Dropping it cancels the request: its blocks are free within one step.
pub struct Stream {
    pub(crate) id: RequestId,
    pub(crate) events: UnboundedReceiver<Event>,
    pub(crate) backlog: Arc<SendBacklog>,
    /// Of the engine that is notified when the reader is gone.
    pub(crate) commands: Option<UnboundedSender<Command>>,
    pub(crate) prompt: Arc<[TokenId]>,
    pub(crate) latency_bound: Option<LatencyBound>,
    pub(crate) arrived: Nanos,
    pub(crate) ended: bool,
}

impl Stream {
    /// A stream of what is sent through the sender, for a server that is no [`Engine`](crate::Engine).
    pub fn open(id: RequestId, prompt: impl Into<Arc<[TokenId]>>) -> (EventSender, Stream) {
        let (sender, events, backlog) = event_channel();
        let (commands, latency_bound) = (None, None);
        let stream = Stream {
            id,
            events,
            backlog,
            commands,
            prompt: prompt.into(),
            latency_bound,
            arrived: Nanos(0),
            ended: false,
        };
        (sender, stream)
    }

    /// The next event; `None` after `Done` or `Failed`, or when the engine is gone.
    pub async fn recv(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        self.note(event)
    }

    /// As [`Stream::recv`], for callers without an async runtime.
    pub fn blocking_recv(&mut self) -> Option<Event> {
        let event = self.events.blocking_recv();
        self.note(event)
    }

    /// The request's name in step records and logs.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The prompt as tokens.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// The same with a latency bound, made at `arrived`.
    pub fn with_latency_bound(mut self, bound: LatencyBound, arrived: Nanos) -> Stream {
        (self.latency_bound, self.arrived) = (Some(bound), arrived);
        self
    }

    /// What it was promised when it was submitted; `None` where steps are not predicted.
    pub fn latency_bound(&self) -> Option<&LatencyBound> {
        self.latency_bound.as_ref()
    }

    /// When it was submitted, by the engine's clock: from here on its bound runs.
    pub fn arrived(&self) -> Nanos {
        self.arrived
    }

    /// From now on the request ends with [`RequestError::SlowReader`](crate::RequestError::SlowReader) when more than `most`
    /// events wait to be read. Without this call any number may.
    pub fn limit_unread(&self, most: usize) {
        self.backlog.most.store(most, Ordering::Relaxed);
    }

    pub(crate) fn note(&mut self, event: Option<Event>) -> Option<Event> {
        self.backlog.count.fetch_sub(usize::from(event.is_some()), Ordering::Relaxed);
        self.ended |= matches!(event, None | Some(Event::Done { .. } | Event::Failed(_)));
        event
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.as_ref().filter(|_| !self.ended) {
            // The engine may be gone already; then there is nothing to cancel.
            let _ = commands.send(Command::Cancel(self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_learns_that_the_reader_is_gone() {
        let (sender, mut stream) = Stream::open(RequestId(1), vec![1, 2]);
        stream.limit_unread(1);
        let token = || Event::Token { answer: 0, token: 3, text: String::new(), logprob: None };
        sender.send(token());
        assert!(!sender.is_overfull());
        sender.send(token());
        assert!(sender.is_overfull(), "two are more than one");
        assert_eq!(stream.blocking_recv(), Some(token()));
        assert!(!sender.is_overfull());
        drop(stream);
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(sender.closed());
        sender.send(token());
    }
}
