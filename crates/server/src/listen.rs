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

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tower::ServiceExt;

use crate::app::App;
use crate::routes::without_trailing_slash;

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
pub(crate) struct Listener {
    socket: TcpListener,
    seats: Arc<Semaphore>,
    connections: JoinSet<()>,
    /// Requests being answered, over all connections.
    open: watch::Sender<usize>,
    /// Set to true: idle connections close, others after their answer.
    closing: watch::Sender<bool>,
}

impl Listener {
    pub(crate) async fn bind(addresses: &[SocketAddr], max_connections: usize) -> io::Result<Listener> {
        let socket = TcpListener::bind(addresses).await?;
        // A connection needs a file descriptor; running out of them would stop the accept loop, or a model file's read.
        let files = open_file_limit().map_or(usize::MAX, |limit| limit.saturating_sub(OTHER_FILES).max(1));
        Ok(Listener {
            socket,
            seats: Arc::new(Semaphore::new(max_connections.min(files).clamp(1, Semaphore::MAX_PERMITS))),
            connections: JoinSet::new(),
            open: watch::Sender::new(0),
            closing: watch::Sender::new(false),
        })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Takes connections for ever. Beyond the cap they wait in the system's queue; a failed accept is tried again.
    pub(crate) async fn accept(&mut self, app: &Arc<App>, router: &Router) {
        loop {
            while self.connections.try_join_next().is_some() {}
            let seat = self.seats.clone().acquire_owned().await.expect("the semaphore is never closed");
            match self.socket.accept().await {
                Ok((socket, _)) => {
                    let connection = Connection {
                        app: app.clone(),
                        router: router.clone(),
                        open: self.open.clone(),
                        closing: self.closing.subscribe(),
                        _seat: seat,
                    };
                    self.connections.spawn(connection.serve(socket));
                }
                Err(error) => {
                    tracing::warn!(kind = ?error.kind(), "accepting a connection failed");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    /// A receiver of the number of requests being answered.
    pub(crate) fn open(&self) -> watch::Receiver<usize> {
        self.open.subscribe()
    }

    /// Closes the connections: each finishes the answer it is writing, at most until `limit` is over.
    pub(crate) async fn close(self, limit: Duration) {
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
    app: Arc<App>,
    router: Router,
    open: watch::Sender<usize>,
    closing: watch::Receiver<bool>,
    _seat: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve(self, socket: TcpStream) {
        let counted = ConnectionCount::new(self.app.clone());
        set_options(&socket);
        let state = Arc::new(State::default());
        let (router, open, service_state) = (self.router.clone(), self.open.clone(), state.clone());
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let busy = Busy::new(service_state.clone(), open.clone());
            Box::pin(respond(router.clone(), request.map(Body::new), busy))
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
            .serve_connection(TokioIo::new(Bounded::new(socket, state)), service);
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
            linger(connection.into_parts().io.into_inner().socket).await;
        }
        drop(counted);
    }
}

async fn respond(router: Router, mut request: Request, busy: Busy) -> Result<Response, Infallible> {
    without_trailing_slash(request.uri_mut());
    let Ok(response) = router.oneshot(request).await;
    Ok(response.map(|body| Body::new(Held { body, _busy: busy })))
}

/// Small events must leave at once, and a peer that is gone must be noticed.
fn set_options(socket: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
    let socket = SockRef::from(socket);
    let set = socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&keepalive))
        .and_then(|()| socket.set_tcp_user_timeout(Some(WRITE_TIMEOUT)));
    if let Err(error) = set {
        tracing::debug!(kind = ?error.kind(), "a socket option could not be set");
    }
}

/// Says goodbye and lets the peer finish its sentence: closing with unread bytes would make the system throw away the
/// answer that was just written.
async fn linger(socket: TcpStream) {
    let mut socket = socket;
    if std::future::poll_fn(|cx| Pin::new(&mut socket).poll_shutdown(cx)).await.is_err() {
        return;
    }
    let discard = async {
        let mut scratch = vec![0; LINGER_READ];
        let mut discarded = 0;
        while discarded < LINGER_BYTES {
            if socket.readable().await.is_err() {
                return;
            }
            match socket.try_read(&mut scratch) {
                Ok(0) => return,
                Ok(bytes) => discarded += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, discard).await;
}

struct ConnectionCount(Arc<App>);

impl ConnectionCount {
    fn new(app: Arc<App>) -> ConnectionCount {
        app.http.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionCount(app)
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.http.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection is waiting for; shared between its stream and its requests.
#[derive(Default)]
struct State(AtomicU8);

/// The rest of a head: its time runs.
const HEAD: u8 = 0;
/// An answer.
const ANSWER: u8 = 1;
/// The first byte of the next request.
const IDLE: u8 = 2;

/// A request being answered, from its head to the end of its answer's body.
struct Busy {
    state: Arc<State>,
    open: watch::Sender<usize>,
}

impl Busy {
    fn new(state: Arc<State>, open: watch::Sender<usize>) -> Busy {
        state.0.store(ANSWER, Ordering::Relaxed);
        open.send_modify(|open| *open += 1);
        Busy { state, open }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.state.0.store(IDLE, Ordering::Relaxed);
        self.open.send_modify(|open| *open -= 1);
    }
}

/// A body that keeps its request counted as open until it is sent.
struct Held {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Held {
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

/// A socket on which neither a head nor a write may take for ever.
struct Bounded {
    socket: TcpStream,
    state: Arc<State>,
    head_timer: Pin<Box<Sleep>>,
    write_timer: Pin<Box<Sleep>>,
    write_stalled: bool,
}

impl Bounded {
    fn new(socket: TcpStream, state: Arc<State>) -> Bounded {
        Bounded {
            socket,
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
        let read = Pin::new(&mut self.socket).poll_read(cx, buffer);
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
        let progress = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.written(cx, progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.written(cx, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
