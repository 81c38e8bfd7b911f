//! A client's end of a request: its outputs, in their order, and the signal that the client is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use scheduler::{LatencyBound, Nanos, RequestId, TokenId};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::command::Command;
use crate::output::{Outlet, Output, Unread, outlet};

/// A request's outputs. Dropping it cancels the request: its blocks are free within one step.
pub struct Stream {
    pub(crate) id: RequestId,
    pub(crate) outputs: UnboundedReceiver<Output>,
    pub(crate) unread: Arc<Unread>,
    /// Of the engine that is notified when the reader is gone.
    pub(crate) commands: Option<UnboundedSender<Command>>,
    pub(crate) prompt: Arc<[TokenId]>,
    pub(crate) promise: Option<LatencyBound>,
    pub(crate) arrived: Nanos,
    pub(crate) ended: bool,
}

impl Stream {
    /// A stream of what is sent through the outlet, for a server that is no [`Engine`](crate::Engine).
    pub fn open(id: RequestId, prompt: impl Into<Arc<[TokenId]>>) -> (Outlet, Stream) {
        let (outlet, outputs, unread) = outlet();
        let (commands, promise) = (None, None);
        let stream =
            Stream { id, outputs, unread, commands, prompt: prompt.into(), promise, arrived: Nanos(0), ended: false };
        (outlet, stream)
    }

    /// The next output; `None` after `Done` or `Failed`, or when the engine is gone.
    pub async fn recv(&mut self) -> Option<Output> {
        let output = self.outputs.recv().await;
        self.note(output)
    }

    /// As [`Stream::recv`], for callers without an async runtime.
    pub fn blocking_recv(&mut self) -> Option<Output> {
        let output = self.outputs.blocking_recv();
        self.note(output)
    }

    /// The request's name in step records and logs.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The prompt as tokens.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// The same with a promise, made at `arrived`.
    pub fn promised(mut self, promise: LatencyBound, arrived: Nanos) -> Stream {
        (self.promise, self.arrived) = (Some(promise), arrived);
        self
    }

    /// What it was promised when it was submitted; `None` where steps are not predicted.
    pub fn promise(&self) -> Option<&LatencyBound> {
        self.promise.as_ref()
    }

    /// When it was submitted, by the engine's clock: from here on its promise runs.
    pub fn arrived(&self) -> Nanos {
        self.arrived
    }

    /// From now on the request ends with [`RequestError::Unread`](crate::RequestError::Unread) when more than `most`
    /// outputs wait to be read. Without this call any number may.
    pub fn limit_unread(&self, most: usize) {
        self.unread.most.store(most, Ordering::Relaxed);
    }

    pub(crate) fn note(&mut self, output: Option<Output>) -> Option<Output> {
        self.unread.count.fetch_sub(usize::from(output.is_some()), Ordering::Relaxed);
        self.ended |= matches!(output, None | Some(Output::Done { .. } | Output::Failed(_)));
        output
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
        let (outlet, mut stream) = Stream::open(RequestId(1), vec![1, 2]);
        stream.limit_unread(1);
        let token = || Output::Token { answer: 0, token: 3, text: String::new(), logprob: None };
        outlet.send(token());
        assert!(!outlet.is_overfull());
        outlet.send(token());
        assert!(outlet.is_overfull(), "two are more than one");
        assert_eq!(stream.blocking_recv(), Some(token()));
        assert!(!outlet.is_overfull());
        drop(stream);
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(outlet.closed());
        outlet.send(token());
    }
}
