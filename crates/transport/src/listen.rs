//! Connections: how many, how long each may take over what, and how they end.
//!
//! ```text
//! accept --> [head: 10 s] --> request --> [body: 30 s] --> answer --> [idle: 60 s] --> next head ...
//!                                              |
//!                                              +-- a write that makes no progress for 30 s ends the connection
//! ```
//!
//! HTTP/1.1 only: it is what clients of this API speak, and HTTP/2's floods of resets and continuations stay out. Every
//! limit is set here by hand, because hyper's defaults are documented as not stable.
//!
//! A peer that closes its sending side counts as gone: that is how a disconnect is noticed while the answer is still
//! being computed, and dropping the handler is what cancels its requests.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Uri, header};
use axum::response::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tower::ServiceExt;

use crate::socket::{NewConnection, Peer, Socket};

/// From the first byte of a request to the end of its headers.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two requests on a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A write without progress.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// After an answer that ended a connection: time for the peer to read it before what it still sends is refused.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes thrown away meanwhile: many clients read nothing before they have written all, and a body of four times the
/// usual limit still gets its 413.
const LINGER_BYTES: usize = 32 << 20;
/// What is left of a body when its answer is there is read if it is no more than this and comes soon: the connection can
/// then be used again. hyper does so with what has come already, and closes the connection without a word otherwise.
const UNREAD_BYTES: usize = 256 << 10;
const UNREAD_TIME: Duration = Duration::from_secs(1);
/// As many at once.
const LINGER_READ: usize = 64 << 10;
/// After a failed accept, most likely for want of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Request line and headers together.
const MAX_HEADER_BYTES: usize = 32 << 10;
const MAX_HEADERS: usize = 100;
/// hyper's buffer per direction and connection.
const MAX_BUFFER_BYTES: usize = 64 << 10;
/// File descriptors that are not connections.
const OTHER_FILES: usize = 64;

/// The listening socket and the connections that came from it.
pub struct Listener {
    socket: Socket,
    seats: Arc<Semaphore>,
    root_path: Arc<str>,
    count: Arc<AtomicUsize>,
    connections: JoinSet<()>,
    /// Requests being answered, over all connections.
    open: watch::Sender<usize>,
    /// Set to true: idle connections close, others after their answer.
    closing: watch::Sender<bool>,
}

impl Listener {
    /// `root_path`: what paths may begin with and routes do not. `count`: where open connections are counted.
    pub fn new(socket: Socket, max_connections: usize, root_path: &str, count: Arc<AtomicUsize>) -> Listener {
        // A connection needs a file descriptor; running out of them would stop the accept loop, or a model file's read.
        let files = open_file_limit().map_or(usize::MAX, |limit| limit.saturating_sub(OTHER_FILES).max(1));
        Listener {
            socket,
            seats: Arc::new(Semaphore::new(max_connections.min(files).clamp(1, Semaphore::MAX_PERMITS))),
            root_path: root_path.into(),
            count,
            connections: JoinSet::new(),
            open: watch::Sender::new(0),
            closing: watch::Sender::new(false),
        }
    }

    /// Accepts connections without end. Beyond the cap they wait in the system's queue; a failed accept is tried again.
    pub async fn accept(&mut self, router: &Router) {
        loop {
            while self.connections.try_join_next().is_some() {}
            let seat = self.seats.clone().acquire_owned().await.expect("the semaphore is never closed");
            match self.socket.accept().await {
                Ok(accepted) => {
                    let connection = Connection {
                        root_path: self.root_path.clone(),
                        count: self.count.clone(),
                        router: router.clone(),
                        open: self.open.clone(),
                        closing: self.closing.subscribe(),
                        _seat: seat,
                    };
                    self.connections.spawn(connection.serve(accepted));
                }
                Err(error) => {
                    tracing::warn!(kind = ?error.kind(), "accepting a connection failed");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    /// A receiver of the number of requests being answered.
    pub fn open(&self) -> watch::Receiver<usize> {
        self.open.subscribe()
    }

    /// Closes the connections: each finishes the answer it is writing, at most until `limit` is over.
    pub async fn close(self, limit: Duration) {
        let Listener { socket, mut connections, closing, .. } = self;
        drop(socket);
        closing.send_replace(true);
        let all = async { while connections.join_next().await.is_some() {} };
        // What is left after the limit is dropped with the set, and with it aborted.
        let _ = tokio::time::timeout(limit, all).await;
    }
}

/// The soft limit of open files, where the system says so.
fn open_file_limit() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What a connection needs, whatever is asked on it.
struct Connection {
    root_path: Arc<str>,
    count: Arc<AtomicUsize>,
    router: Router,
    open: watch::Sender<usize>,
    closing: watch::Receiver<bool>,
    _seat: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve(self, accepted: NewConnection) {
        let counted = ConnectionCount::new(self.count.clone());
        let peer = match accepted.peer(HEAD_TIMEOUT, WRITE_TIMEOUT).await {
            Ok(peer) => peer,
            Err(error) => {
                tracing::debug!(kind = ?error.kind(), "a connection ended before it was one");
                return;
            }
        };
        let state = Arc::new(State::default());
        let (router, open, service_state) = (self.router.clone(), self.open.clone(), state.clone());
        let root_path = self.root_path.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let busy = Busy::new(service_state.clone(), open.clone());
            Box::pin(respond(router.clone(), root_path.clone(), request, busy))
        });
        let mut connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // hyper starts this timer when it begins to wait, so it bounds the idle time too; the head's own, shorter
            // limit is the stream's.
            .header_read_timeout(IDLE_TIMEOUT)
            .half_close(false)
            .keep_alive(true)
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEADER_BYTES)
            .max_buf_size(MAX_BUFFER_BYTES)
            .pipeline_flush(false)
            .serve_connection(TokioIo::new(Bounded::new(peer, state)), service);
        let mut closing = self.closing.clone();
        let mut told = false;
        let ended = loop {
            tokio::select! {
                ended = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)) => break ended,
                _ = closing.wait_for(|closing| *closing), if !told => {
                    told = true;
                    Pin::new(&mut connection).graceful_shutdown();
                }
            }
        };
        if ended.is_ok() {
            linger(connection.into_parts().io.into_inner().peer).await;
        }
        drop(counted);
    }
}

async fn respond(
    router: Router,
    root_path: Arc<str>,
    mut request: hyper::Request<Incoming>,
    busy: Busy,
) -> Result<Response, Infallible> {
    settle_path(request.uri_mut(), &root_path);
    if busy.is_pipelined {
        // Who sends many at once lets the other connections have the thread between two of them.
        tokio::task::yield_now().await;
    }
    // `Expect: 100-continue` is not answered for an unwanted body.
    let is_withheld = request.headers().contains_key(header::EXPECT);
    let (back, unread) = oneshot::channel();
    let request = request.map(|body| Body::new(Lent { body: Some(body), back: Some(back) }));
    let Ok(mut response) = router.oneshot(request).await;
    if let Ok(body) = { unread }.try_recv()
        && (is_withheld || !is_read(body).await)
    {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response.map(|body| holding(body, busy)))
}

/// `/v1/models/` is `/v1/models`, and so is `//v1//models`: some clients put a slash behind or before whatever they are
/// told. Said by a redirect it would reach only those that follow one with a body.
///
/// A proxy that serves this server under a prefix may leave the prefix in the path (`root_path`): it is taken off.
fn settle_path(uri: &mut Uri, root_path: &str) {
    let (whole, query) = (uri.path(), uri.query());
    let path = with_single_slashes(whole);
    let path = path.strip_prefix(root_path).filter(|rest| rest.starts_with('/')).unwrap_or(&path);
    let path = match path.strip_suffix('/') {
        Some(shorter) if !shorter.is_empty() => shorter,
        _ => path,
    };
    if path.len() == whole.len() {
        return;
    }
    let target = query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = target.try_into().ok();
    if let Ok(shorter) = Uri::from_parts(parts) {
        *uri = shorter;
    }
}

fn with_single_slashes(path: &str) -> Cow<'_, str> {
    if !path.contains("//") {
        return Cow::Borrowed(path);
    }
    let mut single = String::with_capacity(path.len());
    for next in path.chars() {
        if next != '/' || !single.ends_with('/') {
            single.push(next);
        }
    }
    Cow::Owned(single)
}

/// Says goodbye and lets the peer finish its sentence: closing with unread bytes would make the system throw away the
/// answer that was just written.
async fn linger(mut peer: Peer) {
    if std::future::poll_fn(|cx| Pin::new(&mut peer).poll_shutdown(cx)).await.is_err() {
        return;
    }
    let discard = async {
        let mut scratch = vec![0; LINGER_READ];
        let mut discarded = 0;
        while discarded < LINGER_BYTES {
            match peer.read(&mut scratch).await {
                Ok(0) | Err(_) => return,
                Ok(bytes) => discarded += bytes,
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, discard).await;
}

struct ConnectionCount(Arc<AtomicUsize>);

impl ConnectionCount {
    fn new(count: Arc<AtomicUsize>) -> ConnectionCount {
        count.fetch_add(1, Ordering::Relaxed);
        ConnectionCount(count)
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection is waiting for; shared between its stream and its requests.
#[derive(Default)]
struct State(AtomicU8);

/// The rest of a head: its time runs.
const HEAD: u8 = 0;
const ANSWER: u8 = 1;
/// The first byte of the next request.
const IDLE: u8 = 2;

/// A request being answered, from its head to the end of its answer's body.
struct Busy {
    state: Arc<State>,
    open: watch::Sender<usize>,
    /// Nothing was read for it: it came with the one before.
    is_pipelined: bool,
}

impl Busy {
    fn new(state: Arc<State>, open: watch::Sender<usize>) -> Busy {
        let is_pipelined = state.0.swap(ANSWER, Ordering::Relaxed) == IDLE;
        open.send_modify(|open| *open += 1);
        Busy { state, open, is_pipelined }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.state.0.store(IDLE, Ordering::Relaxed);
        self.open.send_modify(|open| *open -= 1);
    }
}

/// Reads and drops the rest of a body. False where that takes too long.
async fn is_read(mut body: Incoming) -> bool {
    if body.size_hint().lower() > UNREAD_BYTES as u64 {
        return false;
    }
    let rest = async {
        let mut bytes = 0;
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            bytes += frame.map_or(UNREAD_BYTES, |frame| frame.data_ref().map_or(0, Bytes::len));
            if bytes > UNREAD_BYTES {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(UNREAD_TIME, rest).await.unwrap_or(false)
}

/// A request's body, which comes back if it is dropped before its end.
struct Lent {
    body: Option<Incoming>,
    back: Option<oneshot::Sender<Incoming>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take().filter(|body| !body.is_end_stream()), self.back.take()) {
            let _ = back.send(body);
        }
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = frame {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

/// A body that keeps something until it is sent.
struct Held<T> {
    body: Body,
    _kept: T,
}

/// The body, which keeps `kept` until it is sent or dropped.
pub fn holding(body: Body, kept: impl Send + Unpin + 'static) -> Body {
    Body::new(Held { body, _kept: kept })
}

impl<T: Unpin> HttpBody for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket on which head and write have a time limit.
struct Bounded {
    peer: Peer,
    state: Arc<State>,
    head_timer: Pin<Box<Sleep>>,
    write_timer: Pin<Box<Sleep>>,
    write_stalled: bool,
}

impl Bounded {
    fn new(peer: Peer, state: Arc<State>) -> Bounded {
        Bounded {
            peer,
            state,
            head_timer: Box::pin(tokio::time::sleep(HEAD_TIMEOUT)),
            write_timer: Box::pin(tokio::time::sleep(WRITE_TIMEOUT)),
            write_stalled: false,
        }
    }

    /// A write either made progress, or must make some soon.
    fn written<T>(&mut self, cx: &mut Context<'_>, progress: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.write_stalled = false;
            return progress;
        }
        if !self.write_stalled {
            self.write_stalled = true;
            self.write_timer.as_mut().reset((Instant::now() + WRITE_TIMEOUT).into());
        }
        match self.write_timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Bounded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.peer).poll_read(cx, buffer);
        let waits_for = self.state.0.load(Ordering::Relaxed);
        if waits_for == IDLE && buffer.filled().len() > before {
            self.state.0.store(HEAD, Ordering::Relaxed);
            self.head_timer.as_mut().reset((Instant::now() + HEAD_TIMEOUT).into());
        }
        if read.is_pending() && waits_for == HEAD && self.head_timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.peer).poll_write(cx, bytes);
        self.written(cx, progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.peer).poll_write_vectored(cx, slices);
        self.written(cx, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.peer.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.peer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.peer).poll_shutdown(cx)
    }
}
