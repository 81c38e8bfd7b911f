//! The side that reads prompts for others: one thread listens, and each that came has one.
//!
//! A connection asks any number of times and pulls once. Its request is one like any other, a token long: queue,
//! targets and fairness are what they are for clients. While it runs the thread brings away what the engine's thread
//! gives it, and looks now and then whether the other side is still there. When the thread ends, its blocks are kept no
//! longer.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kernels::HostBuffer;
use ledger::{Owner, Shares, Visit};
use observe::{RemoteStepEntry, Timings};
use protocol::{Nanos, Priority, RequestId, TokenId};
use scheduler::IncomingRequest;

use super::wire::{Ask, End, Frame, Line, Offer, Piece, Pull, Side, WireError};
use super::{Budgeted, ClusterKey, CompatibilityInfo, Counts, FoundBlocks, HandoffEvent};
use crate::command::{BlockMessage, BlockSender, Command};
use crate::output::{Event, RequestError};
use crate::stream::Stream;
use crate::validate::ValidatedRequest;
use crate::{Engine, Inner, Observe};

/// Connections at a time. A peer beyond gets no answer, and reads its prompt itself.
const MOST_CONNECTIONS: usize = 256;
/// For a greeting, and for each frame that is awaited.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a thread looks whether the other side is there, while the engine has nothing for it.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often it says that it is there itself.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// What a listening thread has.
struct Host {
    engine: Weak<Inner>,
    key: ClusterKey,
    compatibility: CompatibilityInfo,
    counts: Arc<Counts>,
    found: Arc<FoundBlocks>,
    connections: AtomicUsize,
}

/// An address that is listened at until this is dropped.
#[derive(Debug)]
pub(crate) struct Listening(SocketAddr);

impl Listening {
    pub(crate) fn address(&self) -> SocketAddr {
        self.0
    }
}

/// Connects once: the thread waits in `accept` without a time limit, and must see that its engine is gone.
impl Drop for Listening {
    fn drop(&mut self) {
        drop(TcpStream::connect_timeout(&self.0, PATIENCE));
    }
}

/// Listens from now on, as long as the engine is there. The engine keeps what it returns.
pub(crate) fn listen(
    engine: &Engine,
    at: SocketAddr,
    key: ClusterKey,
    factors: CompatibilityInfo,
    counts: Arc<Counts>,
    found: Arc<FoundBlocks>,
) -> io::Result<Listening> {
    let listener = TcpListener::bind(at)?;
    let bound = listener.local_addr()?;
    let engine = Arc::downgrade(&engine.0);
    let host = Arc::new(Host { engine, key, compatibility: factors, counts, found, connections: AtomicUsize::new(0) });
    let accept = move || {
        loop {
            let accepted = listener.accept();
            if host.engine.strong_count() == 0 {
                return;
            }
            match accepted {
                Ok((stream, peer)) => host.clone().serve(stream, peer),
                Err(error) => {
                    // Out of descriptors, most often: trying again at once would spin.
                    tracing::warn!(%error, "a connection for a handoff could not be taken");
                    std::thread::sleep(SAY_EVERY);
                }
            }
        }
    };
    std::thread::Builder::new().name("handoff-listen".into()).spawn(accept)?;
    Ok(Listening(bound))
}

/// One of the connections, until it is dropped: whatever becomes of its thread.
struct Place(Arc<Host>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Host {
    fn serve(self: Arc<Host>, stream: TcpStream, peer: SocketAddr) {
        let place = Place(self);
        if place.0.connections.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
            return;
        }
        let thread = move || {
            if let Err(error) = place.0.speak(stream) {
                match error {
                    // A peer that chose another worker has hung up.
                    WireError::Io(_) => tracing::debug!(%peer, %error, "a handoff's connection ended"),
                    _ => tracing::warn!(%peer, %error, "a handoff was refused"),
                }
            }
        };
        // Without a thread there is no handoff, and the other side computes itself.
        let _ = std::thread::Builder::new().name("handoff-give".into()).spawn(thread);
    }

    fn speak(&self, stream: TcpStream) -> Result<(), WireError> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = Line::open(stream, Side::Prefill, &self.key)?;
        if let Some(difference) = line.compare(&self.compatibility)? {
            tracing::warn!(difference, "an incompatible worker asked for a handoff");
            return line.write(&Frame::Refused(difference));
        }
        loop {
            match line.read()? {
                Frame::Ask(ask) => {
                    let answer = self.offer(&ask);
                    line.write(&answer)?;
                }
                Frame::Pull(pull) => return self.give(line, *pull),
                frame => return Err(WireError::Turn(frame.name())),
            }
        }
    }

    fn engine(&self) -> Option<Engine> {
        self.engine.upgrade().map(Engine)
    }

    /// When a prompt would have its first token.
    fn offer(&self, ask: &Ask) -> Frame {
        let Some(engine) = self.engine() else { return Frame::Refused(SHUTTING_DOWN.to_owned()) };
        if engine.health().draining {
            return Frame::Refused(SHUTTING_DOWN.to_owned());
        }
        if !self.counts.reads_for_others() {
            return Frame::Refused("it reads no prompts for others now: its role is decode".to_owned());
        }
        let cached_tokens = self.found.leading(ask.chain.iter().copied()) * engine.model().block_size;
        let incoming = IncomingRequest {
            prompt_tokens: ask.prompt_tokens,
            cached_tokens,
            priority: Priority(ask.priority),
            ttft: ask.ttft.map(Nanos),
        };
        let likely = engine.likely_first_token(&incoming).map(|Nanos(likely)| likely);
        Frame::Offer(Offer { likely, cached_tokens })
    }

    /// Reads a prompt and sends what it gives.
    fn give(&self, mut line: Line<TcpStream>, pull: Pull) -> Result<(), WireError> {
        let submitted = self.engine().ok_or(SHUTTING_DOWN.to_owned()).and_then(|engine| {
            let request = ValidatedRequest::from_remote_prefill(&pull.request, engine.model());
            let request = request.and_then(|request| engine.fits(&request).map(|()| request));
            let request = request.map_err(|rejection| rejection.to_string())?;
            let (messages, blocks) = channel();
            let peer = BlockSender { messages, first_block: pull.first_block };
            let stream = engine.submit_for(request, peer).map_err(|error| error.to_string())?;
            Ok((stream, blocks))
        });
        match submitted {
            Ok((stream, blocks)) => {
                let mut giving = Giving { host: self, id: stream.id(), stream, is_whole: false };
                giving.send(&mut line, &blocks)
            }
            Err(why) => line.write(&Frame::Refused(why)),
        }
    }
}

const SHUTTING_DOWN: &str = "the server is shutting down";

/// A prompt that is prefilled for a peer. Dropping it releases what is kept for the peer.
struct Giving<'a> {
    host: &'a Host,
    id: RequestId,
    /// Dropped before its end it cancels the request.
    stream: Stream,
    is_whole: bool,
}

impl Giving<'_> {
    fn send(&mut self, line: &mut Line<TcpStream>, blocks: &Receiver<BlockMessage>) -> Result<(), WireError> {
        let mut said = Instant::now();
        loop {
            match blocks.recv_timeout(LOOK_EVERY) {
                Ok(BlockMessage::Block { index, bytes }) => {
                    self.send_bytes(line, Frame::Piece, index, bytes)?;
                    said = Instant::now();
                }
                Ok(BlockMessage::State { blocks, bytes }) => {
                    self.send_bytes(line, Frame::State, blocks, bytes)?;
                    said = Instant::now();
                }
                Ok(BlockMessage::End { blocks, first }) => {
                    let timings = self.outcome();
                    let end = End { steps: self.steps(), ..end(blocks, first, timings.as_ref().ok()) };
                    self.is_whole = first.is_some();
                    return line.write(&Frame::End(Box::new(end)));
                }
                Err(RecvTimeoutError::Timeout) => {
                    if is_gone(line.stream())? {
                        return Ok(());
                    }
                    if said.elapsed() >= SAY_EVERY {
                        line.write(&Frame::Busy)?;
                        said = Instant::now();
                    }
                }
                // The engine has begun anew, or ended.
                Err(RecvTimeoutError::Disconnected) => return line.write(&Frame::End(Box::new(end(0, None, None)))),
            }
        }
    }

    fn send_bytes(
        &self,
        line: &mut Line<TcpStream>,
        frame: fn(Piece) -> Frame,
        index: usize,
        saved: Budgeted<Arc<dyn HostBuffer>>,
    ) -> Result<(), WireError> {
        let bytes = saved.bytes.bytes().map_err(io::Error::other)?;
        line.write_pieces(frame, index, bytes)?;
        self.host.counts.bytes_given.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        drop(saved);
        self.tell(HandoffEvent::Room);
        Ok(())
    }

    /// How the request ended: by now it has.
    fn outcome(&mut self) -> Result<Timings, RequestError> {
        loop {
            match self.stream.blocking_recv() {
                Some(Event::Done { timings, .. }) => return Ok(timings),
                Some(Event::Failed(error)) => return Err(error),
                Some(_) => {}
                None => return Err(RequestError::ShuttingDown),
            }
        }
    }

    /// The steps that read the prompt, as far as they are kept.
    fn steps(&self) -> Vec<RemoteStepEntry> {
        let Some(timeline) = self.host.engine().and_then(|engine| engine.timeline(self.id)) else { return Vec::new() };
        let account = timeline.account;
        let step = |visit: &Visit| RemoteStepEntry {
            after: visit.from.since(account.arrived).0,
            took: visit.to.since(visit.from).0,
            rows: visit.rows as usize,
        };
        account.visits.iter().map(step).collect()
    }

    fn tell(&self, event: HandoffEvent) {
        if let Some(inner) = self.host.engine.upgrade() {
            // An engine that is gone keeps nothing.
            let _ = inner.commands.send(Command::Handoff(event));
        }
    }
}

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        self.host.counts.given[usize::from(!self.is_whole)].fetch_add(1, Ordering::Relaxed);
        self.tell(HandoffEvent::PeerGone(self.id));
    }
}

fn end(blocks: usize, first: Option<TokenId>, timings: Option<&Timings>) -> End {
    let seen = timings.map_or_else(Shares::default, |timings| timings.bill.ttft.seen_from_afar());
    let [queue, prefill, others, machine] = Owner::REMOTE.map(|owner| seen.of(owner).0);
    End { blocks, first, queue, prefill, others, machine, steps: Vec::new() }
}

/// Whether the other side has hung up. It says nothing while it waits.
fn is_gone(stream: &TcpStream) -> Result<bool, WireError> {
    stream.set_nonblocking(true)?;
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false)?;
    match peeked {
        Ok(0) => Ok(true),
        Ok(_) => Err(WireError::Turn("while its prompt is read")),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    }
}
