//! Publishes KV-cache events over ZeroMQ in vLLM's format, so that routers send a prompt to a worker that has its
//! prefix in the cache.
//!
//! ```text
//! engine --after each step--> Vec<CacheEvent> --> [topic | number | msgpack]  --> PUB     to subscribers
//!                                                   the last 10,000 batches    --> ROUTER  replays missed batches
//! ```
//!
//! A batch is `[seconds since 1970, [event, ...], rank]`, an event a list that begins with its name (`BlockStored`,
//! `BlockRemoved`, `AllBlocksCleared`), as msgspec writes vLLM's structs. A block is identified by the first 64 bits of
//! its hash, which is equal in all workers with the same cluster key. Events contain the tokens of every prompt: use
//! them only in a trusted network.

mod batch;
mod endpoints;

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use scheduler::CacheEvent;
use tokio::runtime::{Builder, Runtime};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

pub use endpoints::{Endpoints, EndpointsError};

/// Maximum bytes of batches kept for replays.
const MAX_REPLAY_BYTES: usize = 64 << 20;
/// Ends a replay, in place of a batch number.
const END: [u8; 8] = (-1_i64).to_be_bytes();

/// Bound sockets, before events are published.
pub struct Publisher {
    runtime: Runtime,
    publish: PubSocket,
    replay: Option<RouterSocket>,
    endpoints: Endpoints,
    /// Addresses with the actual ports.
    bound: Vec<String>,
}

/// Failure to bind a socket.
#[derive(Debug, thiserror::Error)]
#[error("{endpoint}: {problem}")]
pub struct BindError {
    endpoint: String,
    problem: String,
}

impl Publisher {
    /// Binds the sockets. Errors name the endpoint.
    pub fn bind(endpoints: Endpoints) -> Result<Publisher, BindError> {
        let failed = |endpoint: &str, problem: &dyn std::fmt::Display| BindError {
            endpoint: endpoint.to_owned(),
            problem: problem.to_string(),
        };
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("kv-events").enable_all().build();
        let runtime = runtime.map_err(|error| failed(&endpoints.endpoint, &error))?;
        // A new socket starts its own tasks.
        let inside = runtime.enter();
        let mut bound = Vec::new();
        let (mut publish, mut replay) = (PubSocket::new(), None);
        let endpoint = &endpoints.endpoint;
        let at = runtime.block_on(publish.bind(&everywhere(endpoint)));
        bound.push(at.map_err(|error| failed(endpoint, &error))?.to_string());
        if let Some(endpoint) = &endpoints.replay_endpoint {
            let mut socket = RouterSocket::new();
            let at = runtime.block_on(socket.bind(&everywhere(endpoint)));
            bound.push(at.map_err(|error| failed(endpoint, &error))?.to_string());
            replay = Some(socket);
        }
        drop(inside);
        Ok(Publisher { runtime, publish, replay, endpoints, bound })
    }

    /// The bound addresses: of events, then of replays.
    pub fn bound(&self) -> &[String] {
        &self.bound
    }

    /// Publishes events on a background thread until the sender is dropped.
    pub fn spawn(self, events: Receiver<Vec<CacheEvent>>) -> std::io::Result<()> {
        let Publisher { runtime, mut publish, replay, endpoints, .. } = self;
        let buffer = Arc::new(ReplayBuffer { max_batches: endpoints.buffer_steps, batches: Mutex::default() });
        if let Some(socket) = replay {
            runtime.spawn(serve_replays(socket, buffer.clone()));
        }
        let thread = move || {
            for (number, events) in (0_u64..).zip(events) {
                let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
                let payload = batch::encode(&events, seconds);
                let mut message = ZmqMessage::from(endpoints.topic.clone());
                message.push_back(number.to_be_bytes().to_vec().into());
                message.push_back(payload.clone().into());
                buffer.push(number, payload);
                if let Err(error) = runtime.block_on(publish.send(message)) {
                    tracing::debug!(%error, "cannot publish KV-cache events");
                }
            }
            // Tasks of the runtime write the messages already sent.
            drop(publish);
        };
        std::thread::Builder::new().name("kv-events".into()).spawn(thread).map(drop)
    }
}

/// Replaces vLLM's `*` for all addresses.
fn everywhere(endpoint: &str) -> String {
    endpoint.replacen("://*:", "://0.0.0.0:", 1)
}

/// The last batches, by number.
struct ReplayBuffer {
    max_batches: usize,
    batches: Mutex<Batches>,
}

#[derive(Default)]
struct Batches {
    bytes: usize,
    last: VecDeque<(u64, Vec<u8>)>,
}

impl ReplayBuffer {
    fn push(&self, number: u64, payload: Vec<u8>) {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.bytes += payload.len();
        batches.last.push_back((number, payload));
        while batches.last.len() > self.max_batches || batches.bytes > MAX_REPLAY_BYTES {
            let Some((_, removed)) = batches.last.pop_front() else { break };
            batches.bytes -= removed.len();
        }
    }

    /// The first kept batch from this number on.
    fn first_from(&self, number: u64) -> Option<(u64, Vec<u8>)> {
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let at = batches.last.partition_point(|(kept, _)| *kept < number);
        batches.last.get(at).cloned()
    }
}

/// A request is `[client, "", number]`; the reply is every batch from there on as `[client, "", number, batch]`, and an
/// end marker.
async fn serve_replays(mut socket: RouterSocket, buffer: Arc<ReplayBuffer>) {
    // An invalid request gets no reply.
    while let Ok(request) = socket.recv().await {
        let frames = request.into_vec();
        let Some((client, number)) = parse_request(&frames) else { continue };
        let reply = |frames: [Vec<u8>; 2]| {
            let mut message = ZmqMessage::from(client.to_vec());
            message.push_back(Vec::new().into());
            frames.into_iter().for_each(|frame| message.push_back(frame.into()));
            message
        };
        let mut next = number;
        let mut is_connected = true;
        while let Some((number, payload)) = buffer.first_from(next).filter(|_| is_connected) {
            is_connected = socket.send(reply([number.to_be_bytes().to_vec(), payload])).await.is_ok();
            next = number + 1;
        }
        // Fails if the client has disconnected.
        let _ = socket.send(reply([END.to_vec(), Vec::new()])).await;
    }
}

fn parse_request<T: AsRef<[u8]>>(frames: &[T]) -> Option<(&[u8], u64)> {
    let [client, empty, number] = frames else { return None };
    let number = number.as_ref().try_into().ok().map(u64::from_be_bytes)?;
    empty.as_ref().is_empty().then_some((client.as_ref(), number))
}
