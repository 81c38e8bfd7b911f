//! A streamed answer: a body that is pulled by its connection.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use engine::Event;
use hyper::body::{Body, Bytes, Frame};
use telemetry::timeline::RequestTrace;
use transport::error::ApiError;

use super::EventStream;
use crate::app::App;
use crate::openai::late::LatencyBoundWatch;

/// Writes what a stream says, in the format of one API.
pub(crate) trait StreamWriter: Send {
    /// Writes what `output` says into `events`. An error ends the stream.
    fn write(&mut self, prompt: usize, output: Event, events: &mut VecDeque<Bytes>) -> Result<(), ApiError>;

    /// The error that ends it. The headers are gone, so it is an event, and the missing end says that it is no end.
    fn failed(&mut self, error: &ApiError) -> Bytes;

    /// Whether lines that are no events may stand between them.
    fn takes_comments(&self) -> bool {
        true
    }
}

/// The body of a streamed answer. Pulled by the connection: while a reader is slow nothing is written ahead for it, and
/// what the engine has sent meanwhile is at most the answer's own tokens.
pub(crate) struct Events {
    app: Arc<App>,
    trace: Arc<RequestTrace>,
    outputs: Option<EventStream>,
    writer: Box<dyn StreamWriter>,
    late: Option<LatencyBoundWatch>,
    ready: VecDeque<Bytes>,
}

impl Events {
    pub(crate) fn new(app: Arc<App>, outputs: EventStream, writer: Box<dyn StreamWriter>) -> Events {
        let late = outputs.bound_watch().filter(|_| writer.takes_comments());
        Events { app, trace: outputs.trace().clone(), outputs: Some(outputs), writer, late, ready: VecDeque::new() }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(event))));
            }
            let Some(outputs) = &mut this.outputs else { return Poll::Ready(None) };
            let Poll::Ready(next) = outputs.poll_next(cx) else {
                let late = this.late.as_mut().and_then(|late| late.poll(&this.app, &this.trace, cx));
                let Some(comment) = late else { return Poll::Pending };
                return Poll::Ready(Some(Ok(Frame::data(comment))));
            };
            let Some((prompt, output)) = next else {
                this.outputs = None;
                continue;
            };
            if let (Some(late), Event::Token { .. }) = (&mut this.late, &output) {
                late.token(prompt);
            }
            if let Err(error) = this.writer.write(prompt, output, &mut this.ready) {
                let last = this.writer.failed(&error);
                this.ready.push_back(last);
                this.outputs = None;
            }
        }
    }
}
