//! The side that has prompts read by others: a thread for each of them, from its question to its last block.
//!
//! ```text
//! ask up to two workers, at random --> the earlier offer, if it is no later than here --> pull --> blocks, as they come
//!        |                                       |                                          |
//!     none there                           slower                           late, changed, cut off
//!        +---------------------------------------+------------------------------------------+--> Over: the rest is
//!                                                                                                computed here
//! ```
//! A worker that could not be reached is left alone for a while, an incompatible one for good.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use protocol::{Nanos, RequestId};
use scheduler::router::{self, LEAST_TOKENS};
use tokio::sync::mpsc::UnboundedSender;

use super::wire::{Ask, End, Frame, Line, Offer, Piece, Pull, Side, WireError};
use super::{
    Budget, Budgeted, ClusterKey, CompatibilityInfo, Counts, HandoffEvent, HandoffOutcome, HandoffResult,
    MOST_BYTES_UNDER_WAY, ReceiveEvent, TravelSizes,
};
use crate::command::Command;
use crate::recording::AdmitEntry;

/// To be connected, and for each frame of the beginning.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Without a word for so long the other side is gone: it says each second that it is there.
const SILENCE: Duration = Duration::from_secs(4);
/// Without a block for so long, or for three times as long as it was to take, it is too late.
const LEAST_PATIENCE: Duration = Duration::from_secs(2);
/// For so long a worker that is not there is not asked.
const REST: Duration = Duration::from_secs(2);
/// Workers that requests have named and of which something is remembered.
const MOST_NAMED: usize = 1024;
/// Workers that are asked for one prompt.
const MAX_ASKED_WORKERS: usize = 2;

/// A prompt that another worker might prefill.
#[derive(Debug)]
pub(crate) struct PrefillRequest {
    pub(crate) id: RequestId,
    pub(crate) entry: AdmitEntry,
    /// Names of the prompt's full blocks, cut to 64 bits.
    pub(crate) chain: Vec<u64>,
    /// Blocks that are not here: what is to come.
    pub(crate) blocks: std::ops::Range<usize>,
    /// Nanoseconds in which its first token would come if all were computed here, where that is known.
    pub(crate) local: Option<Nanos>,
    /// The worker that has read it, if known; else the configured prefill workers are asked.
    pub(crate) at: Option<String>,
}

/// The prefill workers, as the engine's thread sees them: requests go out, and commands come back. Tests replace it.
pub(crate) trait RemotePrefill: Debug + Send {
    /// Has a prompt read. Exactly one [`ReceiveEvent::Done`] comes, unless it is forgotten before.
    fn ask(&mut self, wanted: PrefillRequest);
    /// The request no longer waits for it.
    fn forget(&mut self, id: RequestId);
    /// Its first token is not what is drawn here: the worker that read it is not asked again.
    fn quarantine_worker(&mut self, id: RequestId);
    /// Whether there is a worker to ask now.
    fn is_there(&self) -> bool;
    /// A prompt of which fewer tokens are not here is read here.
    fn least_tokens(&self) -> usize {
        LEAST_TOKENS
    }
}

/// Workers by their addresses, over TCP.
#[derive(Debug)]
pub(crate) struct PrefillClient(Arc<Workers>);

#[derive(Debug)]
struct Workers {
    key: ClusterKey,
    compatibility: CompatibilityInfo,
    sizes: TravelSizes,
    commands: UnboundedSender<Command>,
    counts: Arc<Counts>,
    budget: Budget,
    workers: Vec<Arc<Worker>>,
    /// Those that requests have named.
    named: Mutex<BTreeMap<String, Arc<Worker>>>,
    open: Mutex<BTreeMap<RequestId, Open>>,
    dice: AtomicU64,
}

#[derive(Debug)]
struct Worker {
    address: String,
    /// Until when it is left alone; `None`: it is asked.
    rests: Mutex<Option<Rest>>,
}

#[derive(Clone, Copy, Debug)]
enum Rest {
    Until(Instant),
    ForGood,
}

/// A prompt that is being read.
#[derive(Debug, Default)]
struct Open {
    /// Its connections: closed when the request no longer waits.
    streams: Vec<TcpStream>,
    worker: Option<Arc<Worker>>,
}

impl Open {
    fn hang_up(&self) {
        for stream in &self.streams {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl PrefillClient {
    /// `commands`: of the engine's thread.
    pub(crate) fn new(
        addresses: &[String],
        key: ClusterKey,
        factors: CompatibilityInfo,
        sizes: TravelSizes,
        commands: UnboundedSender<Command>,
        counts: Arc<Counts>,
    ) -> PrefillClient {
        PrefillClient(Arc::new(Workers {
            // Which of them is asked changes no answer: any beginning will do.
            dice: AtomicU64::new(u64::from(std::process::id())),
            key,
            compatibility: factors,
            sizes,
            commands,
            counts,
            budget: Budget::of(MOST_BYTES_UNDER_WAY),
            workers: addresses.iter().map(|address| Worker::at(address)).collect(),
            named: Mutex::default(),
            open: Mutex::default(),
        }))
    }
}

impl RemotePrefill for PrefillClient {
    fn ask(&mut self, wanted: PrefillRequest) {
        let (workers, id) = (self.0.clone(), wanted.id);
        workers.open().insert(id, Open::default());
        let take = move || {
            let over = workers.take(&wanted);
            workers.hang_up(id);
            workers.say(id, ReceiveEvent::Done(Box::new(over)));
        };
        if std::thread::Builder::new().name("handoff-take".into()).spawn(take).is_err() {
            self.0.say(id, ReceiveEvent::Done(Box::new(HandoffResult::without(HandoffOutcome::Refused))));
        }
    }

    fn forget(&mut self, id: RequestId) {
        // No longer open before it hangs up: else the worker would seem to be at fault, and be left to rest.
        let open = self.0.open().remove(&id);
        open.iter().for_each(Open::hang_up);
    }

    fn quarantine_worker(&mut self, id: RequestId) {
        let worker = self.0.open().remove(&id).and_then(|open| open.worker);
        if let Some(worker) = worker {
            tracing::error!(worker = worker.address, "two workers drew different first tokens: it is not asked again");
            self.0.counts.gives_up(&worker.address, "it drew another first token than this worker");
            *worker.rests() = Some(Rest::ForGood);
        }
    }

    fn is_there(&self) -> bool {
        self.0.workers.iter().any(|worker| worker.is_asked())
    }
}

impl Worker {
    fn at(address: &str) -> Arc<Worker> {
        Arc::new(Worker { address: address.to_owned(), rests: Mutex::default() })
    }

    fn rests(&self) -> MutexGuard<'_, Option<Rest>> {
        self.rests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_asked(&self) -> bool {
        match *self.rests() {
            None => true,
            Some(Rest::Until(until)) => Instant::now() >= until,
            Some(Rest::ForGood) => false,
        }
    }
}

/// A worker that would do it.
struct Offered {
    worker: Arc<Worker>,
    line: Line<TcpStream>,
    likely: Option<Nanos>,
    cached_tokens: usize,
}

impl Workers {
    fn open(&self) -> MutexGuard<'_, BTreeMap<RequestId, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes its connections, so the workers that were asked learn that no more is wanted.
    fn hang_up(&self, id: RequestId) {
        if let Some(open) = self.open().get_mut(&id) {
            open.hang_up();
            open.streams.clear();
        }
    }

    /// Does nothing once the engine is gone.
    fn say(&self, id: RequestId, event: ReceiveEvent) {
        let _ = self.commands.send(Command::Handoff(HandoffEvent::Received(id, event)));
    }

    /// Has a prompt read, from the question to the last block.
    fn take(&self, wanted: &PrefillRequest) -> HandoffResult {
        let began = Instant::now();
        let asked = wanted.at.as_ref().map_or_else(|| self.some(), |address| self.named(address));
        let offered: Vec<Offered> = asked.into_iter().filter_map(|worker| self.ask(worker, wanted)).collect();
        let rank = |offered: &Offered| (offered.likely, Reverse(offered.cached_tokens));
        let Some(best) = offered.into_iter().min_by_key(rank) else {
            return self.over(wanted, HandoffOutcome::Refused);
        };
        // One that has read it is not asked for the time.
        let local = wanted.local.filter(|_| wanted.at.is_none());
        if !router::leaves(local, best.likely, wanted.entry.ttft.map(Nanos)) {
            return self.over(wanted, HandoffOutcome::Slower);
        }
        let pulled = Nanos(began.elapsed().as_nanos() as u64);
        self.say(wanted.id, ReceiveEvent::Begun { worker: best.worker.address.clone() });
        let mut come = Come { blocks: wanted.blocks.start, states: self.sizes.state_bytes == 0 };
        let result = self.pull(best, wanted, &mut come);
        let is_open = self.open().contains_key(&wanted.id);
        let outcome = match &result {
            _ if !is_open => HandoffOutcome::Cancelled,
            Ok(_) if come.blocks == wanted.blocks.end && come.states => HandoffOutcome::Whole,
            Err(Failed::Refused) => HandoffOutcome::Refused,
            // Blocks are of use up to the states behind the last.
            _ if come.blocks == wanted.blocks.start || !come.states => HandoffOutcome::Lost,
            _ => HandoffOutcome::InPart,
        };
        let mut over = HandoffResult::without(outcome);
        over.read.pulled = pulled;
        if let Ok(end) = result {
            let told = [end.queue, end.prefill, end.others, end.machine];
            ledger::Owner::REMOTE.into_iter().zip(told).for_each(|(owner, nanos)| over.read.bill.add(owner, nanos));
            (over.read.steps, over.first) = (end.steps, end.first);
        }
        over
    }

    /// Adds a piece; returns the whole if it was the last of its `len` bytes.
    fn add(
        &self,
        part: &mut PartWhole,
        piece: &Piece,
        len: usize,
        patience: Duration,
    ) -> Result<Option<Budgeted>, Failed> {
        let Piece { offset, bytes, .. } = piece;
        if *offset as usize != part.filled || bytes.is_empty() || part.filled + bytes.len() > len {
            return Err(Failed::Cut);
        }
        if part.bytes.is_none() {
            // While it waits nothing is read: the other side waits too.
            part.bytes = Some(self.budget.take(len, patience).ok_or(Failed::Cut)?);
        }
        let whole = part.bytes.as_mut().expect("it was just made");
        whole.bytes[part.filled..][..bytes.len()].copy_from_slice(bytes);
        part.filled += bytes.len();
        if part.filled < len {
            return Ok(None);
        }
        self.counts.bytes_taken.fetch_add(len as u64, Ordering::Relaxed);
        part.filled = 0;
        Ok(part.bytes.take())
    }

    fn over(&self, wanted: &PrefillRequest, outcome: HandoffOutcome) -> HandoffResult {
        let is_open = self.open().contains_key(&wanted.id);
        HandoffResult::without(if is_open { outcome } else { HandoffOutcome::Cancelled })
    }

    /// Some that are asked, in any order.
    fn some(&self) -> Vec<Arc<Worker>> {
        let mut asked: Vec<usize> = (0..self.workers.len()).filter(|&at| self.workers[at].is_asked()).collect();
        let mut some = Vec::with_capacity(MAX_ASKED_WORKERS);
        while some.len() < MAX_ASKED_WORKERS && !asked.is_empty() {
            let dice = self.dice.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            some.push(self.workers[asked.swap_remove((dice >> 33) as usize % asked.len())].clone());
        }
        some
    }

    /// The one that a request names, unless it is not asked now.
    fn named(&self, address: &str) -> Vec<Arc<Worker>> {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() >= MOST_NAMED && !named.contains_key(address) {
            // Of those that are well nothing is known that would be missed.
            named.retain(|_, worker| worker.rests().is_some());
            if named.len() >= MOST_NAMED {
                named.pop_first();
            }
        }
        let worker = named.entry(address.to_owned()).or_insert_with(|| Worker::at(address)).clone();
        if worker.is_asked() { vec![worker] } else { Vec::new() }
    }

    /// What a worker offers; `None` if it does not.
    fn ask(&self, worker: Arc<Worker>, wanted: &PrefillRequest) -> Option<Offered> {
        match self.try_ask(&worker.address, wanted) {
            Ok(Answer::Would(line, offer)) => {
                *worker.rests() = None;
                let Offer { likely, cached_tokens } = offer;
                Some(Offered { worker, line, likely: likely.map(Nanos), cached_tokens })
            }
            Ok(Answer::Unlike(difference)) => {
                let rest = &mut *worker.rests();
                if !matches!(rest, Some(Rest::ForGood)) {
                    tracing::warn!(worker = worker.address, difference, "incompatible worker; disabled");
                    self.counts.gives_up(&worker.address, &difference);
                }
                *rest = Some(Rest::ForGood);
                None
            }
            Err(error) => {
                // A request that hung up first needs no error.
                if self.open().contains_key(&wanted.id) {
                    let is_new = worker.rests().replace(Rest::Until(Instant::now() + REST)).is_none();
                    if is_new {
                        tracing::warn!(worker = worker.address, %error, "it does not answer: prompts are read here");
                    }
                }
                None
            }
        }
    }

    fn try_ask(&self, address: &str, wanted: &PrefillRequest) -> Result<Answer, WireError> {
        let unresolved = || std::io::Error::other("its name leads to no address");
        let at = address.to_socket_addrs()?.next().ok_or_else(unresolved)?;
        let stream = TcpStream::connect_timeout(&at, CONNECT_PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(CONNECT_PATIENCE))?;
        stream.set_write_timeout(Some(CONNECT_PATIENCE))?;
        match self.open().get_mut(&wanted.id) {
            Some(open) => open.streams.push(stream.try_clone()?),
            None => return Err(std::io::Error::other("the request no longer waits").into()),
        }
        let mut line = Line::open(stream, Side::Decode, &self.key)?;
        if let Some(difference) = line.compare(&self.compatibility)? {
            return Ok(Answer::Unlike(difference));
        }
        let AdmitEntry { prompt, priority, ttft, .. } = &wanted.entry;
        let chain = wanted.chain.clone();
        line.write(&Frame::Ask(Ask { prompt_tokens: prompt.len(), chain, priority: *priority, ttft: *ttft }))?;
        match line.read()? {
            Frame::Offer(offer) => Ok(Answer::Would(line, offer)),
            Frame::Refused(why) => Err(std::io::Error::other(why).into()),
            frame => Err(WireError::Turn(frame.name())),
        }
    }

    /// Blocks, in their order, as they come, and the states behind them.
    fn pull(&self, offered: Offered, wanted: &PrefillRequest, come: &mut Come) -> Result<End, Failed> {
        let Offered { worker, mut line, likely, .. } = offered;
        match self.open().get_mut(&wanted.id) {
            Some(open) => open.worker = Some(worker.clone()),
            None => return Err(Failed::Cut),
        }
        line.stream().set_read_timeout(Some(SILENCE))?;
        let pull = Pull { first_block: wanted.blocks.start, request: wanted.entry.clone() };
        line.write(&Frame::Pull(Box::new(pull)))?;
        let patience = LEAST_PATIENCE.max(Duration::from_nanos(likely.map_or(0, |likely| likely.0.saturating_mul(3))));
        let mut progress = Instant::now();
        let mut part = PartWhole::default();
        loop {
            let frame = line.read().inspect_err(|error| {
                if !matches!(error, WireError::Io(_)) {
                    let worker = &worker.address;
                    tracing::warn!(worker, %error, "blocks came otherwise than they were sent; they are computed here");
                }
            })?;
            if !matches!(frame, Frame::Busy) {
                progress = Instant::now();
            }
            match frame {
                Frame::Busy if progress.elapsed() > patience => return Err(Failed::Cut),
                Frame::Busy => {}
                Frame::Piece(piece) if piece.index as usize == come.blocks && come.blocks < wanted.blocks.end => {
                    if let Some(bytes) = self.add(&mut part, &piece, self.sizes.block_bytes, patience)? {
                        self.say(wanted.id, ReceiveEvent::Block { index: come.blocks, bytes });
                        come.blocks += 1;
                    }
                }
                Frame::State(piece) if piece.index as usize == wanted.blocks.end && come.lacks_states(wanted) => {
                    if let Some(bytes) = self.add(&mut part, &piece, self.sizes.state_bytes, patience)? {
                        self.say(wanted.id, ReceiveEvent::State { blocks: come.blocks, bytes });
                        come.states = true;
                    }
                }
                Frame::End(end) => return Ok(*end),
                Frame::Refused(why) => {
                    tracing::info!(worker = worker.address, why, "a prompt was not read there");
                    return Err(Failed::Refused);
                }
                _ => return Err(Failed::Cut),
            }
        }
    }
}

/// What has come of a prompt.
#[derive(Clone, Copy, Debug)]
struct Come {
    /// Up to which block all are here.
    blocks: usize,
    /// Whether the states behind them are, or the model has none.
    states: bool,
}

impl Come {
    /// All blocks are here, and the states behind them are not.
    fn lacks_states(&self, wanted: &PrefillRequest) -> bool {
        self.blocks == wanted.blocks.end && !self.states
    }
}

/// A block or states of which not all pieces are here.
#[derive(Default)]
struct PartWhole {
    bytes: Option<Budgeted>,
    filled: usize,
}

/// What a worker says to a question.
enum Answer {
    /// It would.
    Would(Line<TcpStream>, Offer),
    /// It is incompatible: another model, or another computation.
    Unlike(String),
}

/// Why no more blocks come.
#[derive(Debug)]
enum Failed {
    Refused,
    Cut,
}

impl From<WireError> for Failed {
    fn from(_: WireError) -> Failed {
        Failed::Cut
    }
}

impl From<std::io::Error> for Failed {
    fn from(_: std::io::Error) -> Failed {
        Failed::Cut
    }
}
