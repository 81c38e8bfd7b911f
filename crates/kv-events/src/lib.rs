//! Publishes KV-cache events over ZeroMQ in vLLM's format, so that routers send a prompt to a worker that has its
//! prefix in the cache.
//!
//! ```text
//! engine --after each step--> Vec<CacheEvent> --> number | msgpack --> the last batches --> PUB     to subscribers
//!                                                                                       --> ROUTER  missed ones again
//! ```
//!
//! The batches that are kept are the only queue: every peer is written to as fast as it reads, from where it is, and one
//! that is slower than they go misses some, which it sees by their numbers. No peer waits for another.
//!
//! A batch is `[seconds since 1970, [event, ...], rank]`, an event a list that begins with its name (`BlockStored`,
//! `BlockRemoved`, `AllBlocksCleared`), as msgspec writes vLLM's structs. A block is identified by the first 64 bits of
//! its hash, which is equal in all workers with the same cluster key. Events contain the tokens of every prompt: use
//! them only in a trusted network.

mod batch;
mod endpoints;
mod zmtp;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use scheduler::CacheEvent;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

pub use endpoints::{Endpoints, EndpointsError};

/// Maximum bytes of batches that are kept.
const MAX_BYTES: usize = 64 << 20;
/// Batches that are kept for slow subscribers, where fewer are kept for replays.
const LEAST_BATCHES: usize = 1000;
/// Ends a replay, in place of a batch number.
const END: [u8; 8] = (-1_i64).to_be_bytes();
/// Connections of one socket; more wait.
const MOST_PEERS: usize = 256;
/// How long a peer that asks for nothing has its seat where no other is free. A router asks at once, and comes again.
const STAY: Duration = Duration::from_secs(5);
/// For a handshake, and for a message that is written.
const PATIENCE: Duration = Duration::from_secs(30);
/// After a failed accept.
const BACKOFF: Duration = Duration::from_millis(50);

/// Bound sockets, before events are published.
pub struct Publisher {
    runtime: Runtime,
    publish: TcpListener,
    replay: Option<TcpListener>,
    endpoints: Endpoints,
    /// Addresses with the actual ports.
    bound: Vec<String>,
}

/// Failure to bind a socket.
#[derive(Debug, thiserror::Error)]
#[error("{endpoint}: {problem}")]
pub struct BindError {
    endpoint: String,
    problem: io::Error,
}

impl Publisher {
    /// Binds the sockets. Errors name the endpoint.
    pub fn bind(endpoints: Endpoints) -> Result<Publisher, BindError> {
        let failed = |endpoint: &str, problem| BindError { endpoint: endpoint.to_owned(), problem };
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("kv-events").enable_all().build();
        let runtime = runtime.map_err(|error| failed(&endpoints.endpoint, error))?;
        let mut bound = Vec::new();
        let mut listen = |endpoint: &String| {
            let listener = runtime.block_on(TcpListener::bind(address(endpoint)))?;
            bound.push(format!("tcp://{}", listener.local_addr()?));
            Ok(listener)
        };
        let mut named = |endpoint| listen(endpoint).map_err(|error| failed(endpoint, error));
        let publish = named(&endpoints.endpoint)?;
        let replay = endpoints.replay_endpoint.as_ref().map(named).transpose()?;
        Ok(Publisher { runtime, publish, replay, endpoints, bound })
    }

    /// The bound addresses: of events, then of replays.
    pub fn bound(&self) -> &[String] {
        &self.bound
    }

    /// Publishes events on a background thread until the sender is dropped.
    pub fn spawn(self, events: Receiver<Vec<CacheEvent>>) -> io::Result<()> {
        let Publisher { runtime, publish, replay, endpoints, .. } = self;
        let kept = Arc::new(Kept {
            topic: endpoints.topic,
            steps: endpoints.buffer_steps,
            batches: std::sync::Mutex::default(),
            count: watch::Sender::new(0),
        });
        runtime.spawn(accept(publish, kept.clone(), subscribed));
        if let Some(socket) = replay {
            runtime.spawn(accept(socket, kept.clone(), replayed));
        }
        let thread = move || {
            for (number, events) in (0_u64..).zip(events) {
                let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
                kept.push(number, batch::encode(&events, seconds).into());
            }
            drop(runtime);
        };
        std::thread::Builder::new().name("kv-events".into()).spawn(thread).map(drop)
    }
}

/// What is behind `tcp://`, with all addresses for vLLM's `*`.
fn address(endpoint: &str) -> String {
    endpoint.trim_start_matches("tcp://").replacen("*:", "0.0.0.0:", 1)
}

/// The last batches, by number.
struct Kept {
    topic: String,
    /// Those that a replay has at most.
    steps: usize,
    batches: std::sync::Mutex<Batches>,
    /// Batches that there have been.
    count: watch::Sender<u64>,
}

#[derive(Default)]
struct Batches {
    bytes: usize,
    last: VecDeque<(u64, Arc<[u8]>)>,
}

impl Kept {
    fn push(&self, number: u64, payload: Arc<[u8]>) {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.bytes += payload.len();
        batches.last.push_back((number, payload));
        while batches.last.len() > self.steps.max(LEAST_BATCHES) || batches.bytes > MAX_BYTES {
            let Some((_, removed)) = batches.last.pop_front() else { break };
            batches.bytes -= removed.len();
        }
        drop(batches);
        self.count.send_replace(number + 1);
    }

    /// The first kept batch of these numbers.
    fn first_of(&self, from: u64, end: u64) -> Option<(u64, Arc<[u8]>)> {
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let at = batches.last.partition_point(|(kept, _)| *kept < from);
        batches.last.get(at).filter(|(number, _)| *number < end).cloned()
    }
}

/// Serves every peer by itself.
async fn accept<S: Future<Output = io::Result<()>> + Send + 'static>(
    socket: TcpListener,
    kept: Arc<Kept>,
    serve: fn(TcpStream, Arc<Kept>, OwnedSemaphorePermit) -> S,
) {
    let seats = Arc::new(Semaphore::new(MOST_PEERS));
    while let Ok(seat) = seats.clone().acquire_owned().await {
        let Ok((stream, _)) = socket.accept().await else {
            tokio::time::sleep(BACKOFF).await;
            continue;
        };
        let served = serve(stream, kept.clone(), seat);
        tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, "a peer of the KV-cache events has left");
            }
        });
    }
}

/// A peer that has said what kind of socket it is; its two sides.
async fn welcome(
    mut stream: TcpStream,
    seat: &OwnedSemaphorePermit,
    own: &str,
    others: &[&[u8]],
) -> io::Result<(OwnedReadHalf, Mutex<OwnedWriteHalf>)> {
    // An event waits for no other to be acknowledged.
    stream.set_nodelay(true)?;
    tokio::select! {
        met = timeout(PATIENCE, zmtp::shake_hands(&mut stream, own, others)) => met??,
        left = crowded(seat) => left?,
    }
    let (input, output) = stream.into_split();
    Ok((input, Mutex::new(output)))
}

/// Fails when a peer that has asked for nothing has had its time and no seat is free: it would keep others out for good.
async fn crowded(seat: &OwnedSemaphorePermit) -> io::Result<()> {
    loop {
        tokio::time::sleep(STAY).await;
        if seat.semaphore().available_permits() == 0 {
            return Err(zmtp::refused("its seat is needed, and it has asked for nothing"));
        }
    }
}

/// A message is `[topic, number, batch]`, for a peer that subscribed to how the topic begins.
async fn subscribed(stream: TcpStream, kept: Arc<Kept>, seat: OwnedSemaphorePermit) -> io::Result<()> {
    let (mut input, output) = welcome(stream, &seat, "PUB", &[b"SUB", b"XSUB"]).await?;
    // Subscriptions to this topic; others are not kept.
    let wanted = AtomicUsize::new(0);
    let listen = async {
        loop {
            let frames = zmtp::read_message(&mut input, &output).await?;
            let [frame] = &frames[..] else { continue };
            match frame.split_first() {
                Some((1, prefix)) if kept.topic.as_bytes().starts_with(prefix) => {
                    wanted.fetch_add(1, Ordering::Relaxed);
                }
                Some((0, prefix)) if kept.topic.as_bytes().starts_with(prefix) => {
                    let fewer = wanted.load(Ordering::Relaxed).saturating_sub(1);
                    wanted.store(fewer, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    };
    let tell = async {
        let mut count = kept.count.subscribe();
        let mut next = *count.borrow_and_update();
        while count.changed().await.is_ok() {
            let end = *count.borrow_and_update();
            while let Some((number, payload)) = kept.first_of(next, end) {
                if wanted.load(Ordering::Relaxed) > 0 {
                    write(&output, [kept.topic.as_bytes(), &number.to_be_bytes(), &payload]).await?;
                }
                next = number + 1;
            }
        }
        Ok(())
    };
    let stay = async {
        loop {
            let left = crowded(&seat).await;
            if wanted.load(Ordering::Relaxed) == 0 {
                return left;
            }
        }
    };
    tokio::select! { left = listen => left, over = tell => over, left = stay => left }
}

/// A request is `["", number]`; the reply is every batch from there on as `["", number, batch]`, and an end marker.
async fn replayed(stream: TcpStream, kept: Arc<Kept>, seat: OwnedSemaphorePermit) -> io::Result<()> {
    let (mut input, output) = welcome(stream, &seat, "ROUTER", &[b"DEALER", b"REQ", b"ROUTER"]).await?;
    loop {
        // An invalid request gets no reply.
        let asked = async {
            loop {
                if let Some(from) = parse_request(&zmtp::read_message(&mut input, &output).await?) {
                    return io::Result::Ok(from);
                }
            }
        };
        let from = tokio::select! { from = asked => from?, left = crowded(&seat) => return left };
        let end = *kept.count.borrow();
        let mut next = from.max(end.saturating_sub(kept.steps as u64));
        while let Some((number, payload)) = kept.first_of(next, end) {
            write(&output, [b"", &number.to_be_bytes(), &payload]).await?;
            next = number + 1;
        }
        write(&output, [b"", &END, b""]).await?;
    }
}

fn parse_request(frames: &[Vec<u8>]) -> Option<u64> {
    let [empty, number] = frames else { return None };
    let number = number[..].try_into().ok().map(u64::from_be_bytes)?;
    empty.is_empty().then_some(number)
}

async fn write(output: &Mutex<OwnedWriteHalf>, frames: [&[u8]; 3]) -> io::Result<()> {
    timeout(PATIENCE, async { output.lock().await.write_all(&zmtp::message(frames)).await }).await?
}
