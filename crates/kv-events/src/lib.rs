//! KV events: what the prefix cache finds and finds no more, told to routers as vLLM tells it, so that they send a prompt
//! where its prefix is.
//!
//! ```text
//! engine --after each step--> Vec<CacheEvent> --> [topic | number | msgpack]  --> PUB     whoever subscribes
//!                                                   the last 10,000 batches    --> ROUTER  whoever has missed some
//! ```
//!
//! A batch is `[seconds since 1970, [event, ...], rank]`, an event a list that begins with its name (`BlockStored`,
//! `BlockRemoved`, `AllBlocksCleared`), as msgspec writes vLLM's structs. Blocks are named by the first 64 bits of their
//! hash, which is the same in every worker with the same cluster key. Events hold the tokens of every prompt: they are for
//! a network that is trusted.

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

/// What a worker tells is kept for those who come later, as far as this goes.
const MOST_REPLAY_BYTES: usize = 64 << 20;
/// Behind the last batch of a replay, in place of its number.
const END: [u8; 8] = (-1_i64).to_be_bytes();

/// Sockets that are bound, and tell nothing yet.
pub struct Publisher {
    runtime: Runtime,
    publish: PubSocket,
    replay: Option<RouterSocket>,
    endpoints: Endpoints,
    /// Where they are, with the ports that were free.
    bound: Vec<String>,
}

/// Why nothing can be told.
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
        // A socket begins its own tasks when it is made.
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

    /// Where they are: of events, then of replays.
    pub fn bound(&self) -> &[String] {
        &self.bound
    }

    /// Tells what comes, on a thread of its own, until whoever sends it is gone.
    pub fn tell(self, events: Receiver<Vec<CacheEvent>>) -> std::io::Result<()> {
        let Publisher { runtime, mut publish, replay, endpoints, .. } = self;
        let told = Arc::new(Told { most: endpoints.buffer_steps, batches: Mutex::default() });
        if let Some(socket) = replay {
            runtime.spawn(serve_replays(socket, told.clone()));
        }
        let thread = move || {
            for (number, events) in (0_u64..).zip(events) {
                let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
                let payload = batch::encode(&events, seconds);
                let mut message = ZmqMessage::from(endpoints.topic.clone());
                message.push_back(number.to_be_bytes().to_vec().into());
                message.push_back(payload.clone().into());
                told.keep(number, payload);
                if let Err(error) = runtime.block_on(publish.send(message)) {
                    tracing::debug!(%error, "nobody hears of the prefix cache");
                }
            }
            // What was sent is on its way: tasks of the runtime write it.
            drop(publish);
        };
        std::thread::Builder::new().name("kv-events".into()).spawn(thread).map(drop)
    }
}

/// vLLM writes `*` for every address.
fn everywhere(endpoint: &str) -> String {
    endpoint.replacen("://*:", "://0.0.0.0:", 1)
}

/// The last batches, by their numbers.
struct Told {
    most: usize,
    batches: Mutex<Batches>,
}

#[derive(Default)]
struct Batches {
    bytes: usize,
    last: VecDeque<(u64, Vec<u8>)>,
}

impl Told {
    fn keep(&self, number: u64, payload: Vec<u8>) {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.bytes += payload.len();
        batches.last.push_back((number, payload));
        while batches.last.len() > self.most || batches.bytes > MOST_REPLAY_BYTES {
            let Some((_, gone)) = batches.last.pop_front() else { break };
            batches.bytes -= gone.len();
        }
    }

    /// The batch of this number, or the next one that there is.
    fn from(&self, number: u64) -> Option<(u64, Vec<u8>)> {
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let at = batches.last.partition_point(|(kept, _)| *kept < number);
        batches.last.get(at).cloned()
    }
}

/// A question is `[who, "", number]`; an answer is every batch from there on as `[who, "", number, batch]`, and an end.
async fn serve_replays(mut socket: RouterSocket, told: Arc<Told>) {
    // Whoever asks wrongly hears nothing, and others go on.
    while let Ok(question) = socket.recv().await {
        let frames = question.into_vec();
        let Some((who, number)) = asked(&frames) else { continue };
        let answer = |frames: [Vec<u8>; 2]| {
            let mut message = ZmqMessage::from(who.to_vec());
            message.push_back(Vec::new().into());
            frames.into_iter().for_each(|frame| message.push_back(frame.into()));
            message
        };
        let mut next = number;
        let mut is_there = true;
        while let Some((number, payload)) = told.from(next).filter(|_| is_there) {
            is_there = socket.send(answer([number.to_be_bytes().to_vec(), payload])).await.is_ok();
            next = number + 1;
        }
        // Whoever has left does not need the end.
        let _ = socket.send(answer([END.to_vec(), Vec::new()])).await;
    }
}

fn asked<T: AsRef<[u8]>>(frames: &[T]) -> Option<(&[u8], u64)> {
    let [who, empty, number] = frames else { return None };
    let number = number.as_ref().try_into().ok().map(u64::from_be_bytes)?;
    empty.as_ref().is_empty().then_some((who.as_ref(), number))
}
