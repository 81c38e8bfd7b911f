//! Frames and their authentication.
//!
//! ```text
//! D: magic, version, nonce        P: nonce            a client that does not begin so gets no answer
//! D: proof                        P: proof            each of both nonces under the cluster key
//! then, both ways:   length (4) | kind (1) | body | seal (32)      all numbers little-endian
//! ```
//!
//! A seal is a blake3 hash of a counter, the kind and the body under a key of this connection and direction. A frame
//! that was changed, repeated, left out or forged has another one: then the connection is over, and the blocks received
//! before stay valid. It also proves that a block is the block that was sent. Nothing is encrypted: prompts travel
//! readably, so this is for a network that is trusted, or for a tunnel.

use std::io::{self, Read, Write};

use observe::RemoteStepEntry;
use serde::{Deserialize, Serialize};

use super::{ClusterKey, CompatibilityInfo};
use crate::recording::AdmitEntry;

const MAGIC: &[u8; 16] = b"twostroke-kv-1\r\n";
/// Version of what frames hold. It is compared before anything is asked, so a worker of another one is refused by name.
/// 2: an `End` says what the machine took. 3: states travel.
pub(crate) const FRAMES: u32 = 3;
/// Longest body of a frame, its kind and its seal included.
pub(crate) const MOST_FRAME_BYTES: usize = 16 << 20;
/// A block is sent in pieces of this size.
const PIECE_BYTES: usize = 4 << 20;
const SEAL_BYTES: usize = 32;

/// What goes over a connection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Frame {
    /// What both must have in common. The first frame of either side.
    Compatibility(CompatibilityInfo),
    /// D: when would a prompt like this have its first token?
    Ask(Ask),
    /// P: likely then.
    Offer(Offer),
    /// D: read it, and send what it gives.
    Pull(Box<Pull>),
    /// P: no, and why not.
    Refused(String),
    /// P: a piece of a block.
    Piece(Piece),
    /// P: a piece of the states behind the last block; its index counts the blocks before them.
    State(Piece),
    /// P: that was all.
    End(Box<End>),
    /// P: it is still at it.
    Busy,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ask {
    /// Tokens of its prompt.
    pub(crate) prompt_tokens: usize,
    /// Names of its full blocks, cut to 64 bits: workers with the same key know the same prefix by the same name.
    pub(crate) chain: Vec<u64>,
    pub(crate) priority: i32,
    /// Nanoseconds within which its first token is wanted.
    pub(crate) ttft: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Offer {
    /// Nanoseconds until its first token; `None` where steps are not predicted.
    pub(crate) likely: Option<u64>,
    /// Tokens of it that need not be computed.
    pub(crate) cached_tokens: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pull {
    /// Blocks before this one are there already.
    pub(crate) first_block: usize,
    pub(crate) request: AdmitEntry,
}

/// Bytes of a block, in the order of `Forward::save_block`, or of states, in that of `Forward::save_state`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) index: u32,
    /// Where in the block they begin.
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct End {
    /// All blocks up to here were sent.
    pub(crate) blocks: usize,
    /// The token that was drawn behind the prompt, if it came to that.
    pub(crate) first: Option<u32>,
    /// Nanoseconds until then: in the queue, for its own prompt and between steps, for others in the same steps, and
    /// taken by other programs of that machine.
    pub(crate) queue: u64,
    pub(crate) prefill: u64,
    pub(crate) others: u64,
    pub(crate) machine: u64,
    /// The steps that read it.
    pub(crate) steps: Vec<RemoteStepEntry>,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("peer uses another protocol")]
    Magic,
    #[error("the other side does not have the cluster key")]
    Key,
    #[error("a frame of {0} bytes is longer than any may be, or shorter")]
    Length(usize),
    #[error("frame failed authentication")]
    Seal,
    #[error("there is no frame of kind {0}")]
    Kind(u8),
    #[error("a frame {name}: {problem}")]
    Body { name: &'static str, problem: String },
    #[error("unexpected frame {0}")]
    Turn(&'static str),
}

/// Bytes of a refusal that are read.
const LONGEST_REFUSAL: usize = 1024;

impl Frame {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Frame::Compatibility(_) => "FACTORS",
            Frame::Ask(_) => "ASK",
            Frame::Offer(_) => "OFFER",
            Frame::Pull(_) => "PULL",
            Frame::Refused(_) => "REFUSED",
            Frame::Piece(_) => "BLOCK",
            Frame::State(_) => "STATE",
            Frame::End(_) => "END",
            Frame::Busy => "BUSY",
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Frame::Compatibility(_) => 1,
            Frame::Ask(_) => 2,
            Frame::Offer(_) => 3,
            Frame::Pull(_) => 4,
            Frame::Refused(_) => 5,
            Frame::Piece(_) => 6,
            Frame::End(_) => 7,
            Frame::Busy => 8,
            Frame::State(_) => 9,
        }
    }

    fn write_body(&self, body: &mut Vec<u8>) {
        let mut json = |value: &dyn erased::Json| value.write(body);
        match self {
            Frame::Compatibility(factors) => json(factors),
            Frame::Ask(ask) => json(ask),
            Frame::Offer(offer) => json(offer),
            Frame::Pull(pull) => json(&**pull),
            Frame::Refused(why) => body.extend_from_slice(why.as_bytes()),
            Frame::Piece(Piece { index, offset, bytes }) | Frame::State(Piece { index, offset, bytes }) => {
                body.extend_from_slice(&index.to_le_bytes());
                body.extend_from_slice(&offset.to_le_bytes());
                body.extend_from_slice(bytes);
            }
            Frame::End(end) => json(&**end),
            Frame::Busy => {}
        }
    }

    fn read(kind: u8, body: &[u8]) -> Result<Frame, WireError> {
        fn json<'a, T: Deserialize<'a>>(name: &'static str, body: &'a [u8]) -> Result<T, WireError> {
            serde_json::from_slice(body).map_err(|error| WireError::Body { name, problem: error.to_string() })
        }
        Ok(match kind {
            1 => Frame::Compatibility(json("FACTORS", body)?),
            2 => Frame::Ask(json("ASK", body)?),
            3 => Frame::Offer(json("OFFER", body)?),
            4 => {
                let pull: Box<Pull> = json("PULL", body)?;
                if !pull.request.sampling.is_finite() {
                    return Err(WireError::Body { name: "PULL", problem: "a number is too large".to_owned() });
                }
                Frame::Pull(pull)
            }
            5 => {
                let problem =
                    |error: std::str::Utf8Error| WireError::Body { name: "REFUSED", problem: error.to_string() };
                let why = std::str::from_utf8(body).map_err(problem)?;
                Frame::Refused(why[..why.floor_char_boundary(LONGEST_REFUSAL)].to_owned())
            }
            6 => Frame::Piece(Piece::read("BLOCK", body)?),
            7 => Frame::End(json("END", body)?),
            8 if body.is_empty() => Frame::Busy,
            8 => return Err(WireError::Body { name: "BUSY", problem: "it has a body".to_owned() }),
            9 => Frame::State(Piece::read("STATE", body)?),
            kind => return Err(WireError::Kind(kind)),
        })
    }
}

impl Piece {
    fn read(name: &'static str, body: &[u8]) -> Result<Piece, WireError> {
        let short = || WireError::Body { name, problem: "it has no place".to_owned() };
        let (index, rest) = body.split_first_chunk().ok_or_else(short)?;
        let (offset, bytes) = rest.split_first_chunk().ok_or_else(short)?;
        let (index, offset) = (u32::from_le_bytes(*index), u64::from_le_bytes(*offset));
        Ok(Piece { index, offset, bytes: bytes.to_vec() })
    }
}

mod erased {
    pub(super) trait Json {
        fn write(&self, body: &mut Vec<u8>);
    }

    impl<T: serde::Serialize> Json for T {
        fn write(&self, body: &mut Vec<u8>) {
            serde_json::to_writer(body, self).expect("a frame is JSON");
        }
    }
}

/// For fuzzing: whether an unauthenticated frame is read without harm, and written again as it was.
#[doc(hidden)]
pub fn check_frame(kind: u8, body: &[u8]) -> bool {
    let Ok(frame) = Frame::read(kind, body) else { return false };
    let mut again = Vec::new();
    frame.write_body(&mut again);
    let read = Frame::read(frame.kind(), &again).expect("what was written is read");
    assert_eq!(read, frame);
    true
}

/// Which end one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Decode,
    Prefill,
}

/// A connection to a peer that has the key.
pub(crate) struct Line<S> {
    stream: S,
    ours: FrameMac,
    theirs: FrameMac,
    // Kept for their memory.
    written: Vec<u8>,
    read: Vec<u8>,
}

/// One direction.
struct FrameMac {
    key: [u8; 32],
    next: u64,
}

impl FrameMac {
    fn seal(&mut self, kind: u8, body: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.next.to_le_bytes()).update(&[kind]).update(body);
        self.next += 1;
        hasher.finalize()
    }
}

impl<S: Read + Write> Line<S> {
    /// Greets the other side, and believes it when it has shown that it has the key.
    pub(crate) fn open(mut stream: S, side: Side, key: &ClusterKey) -> Result<Line<S>, WireError> {
        let (mut nonce, mut theirs) = ([0; 32], [0; 32]);
        getrandom::fill(&mut nonce).map_err(io::Error::from)?;
        match side {
            Side::Decode => {
                stream.write_all(&[MAGIC.as_slice(), &nonce].concat())?;
                stream.read_exact(&mut theirs)?;
            }
            Side::Prefill => {
                let mut magic = [0; 16];
                stream.read_exact(&mut magic)?;
                if magic != *MAGIC {
                    return Err(WireError::Magic);
                }
                stream.read_exact(&mut theirs)?;
                stream.write_all(&nonce)?;
            }
        }
        let nonces = match side {
            Side::Decode => [nonce, theirs].concat(),
            Side::Prefill => [theirs, nonce].concat(),
        };
        let of = |what: &str| *blake3::keyed_hash(&key.derive(what), &nonces).as_bytes();
        let (decode, prefill) = (of("proof of decode"), of("proof of prefill"));
        let mut proof = [0; 32];
        // Comparing hashes takes the same time wherever they differ.
        let mut expect = |stream: &mut S, expected: [u8; 32]| {
            stream.read_exact(&mut proof)?;
            let is_right = blake3::Hash::from_bytes(proof) == blake3::Hash::from_bytes(expected);
            if is_right { Ok(()) } else { Err(WireError::Key) }
        };
        match side {
            Side::Decode => {
                stream.write_all(&decode)?;
                expect(&mut stream, prefill)?;
            }
            Side::Prefill => {
                expect(&mut stream, decode)?;
                stream.write_all(&prefill)?;
            }
        }
        let (to_prefill, to_decode) = (of("to prefill"), of("to decode"));
        let (ours, theirs) = match side {
            Side::Decode => (to_prefill, to_decode),
            Side::Prefill => (to_decode, to_prefill),
        };
        let sealer = |key| FrameMac { key, next: 0 };
        Ok(Line { stream, ours: sealer(ours), theirs: sealer(theirs), written: Vec::new(), read: Vec::new() })
    }

    /// What is below it.
    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    pub(crate) fn write(&mut self, frame: &Frame) -> Result<(), WireError> {
        let mut bytes = std::mem::take(&mut self.written);
        bytes.clear();
        bytes.extend_from_slice(&[0; 4]);
        bytes.push(frame.kind());
        frame.write_body(&mut bytes);
        let seal = self.ours.seal(bytes[4], &bytes[5..]);
        bytes.extend_from_slice(seal.as_bytes());
        let len = bytes.len() - 4;
        bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
        let sent = match len <= MOST_FRAME_BYTES {
            true => self.stream.write_all(&bytes).map_err(WireError::Io),
            false => Err(WireError::Length(len)),
        };
        self.written = bytes;
        sent
    }

    /// Exchanges with the peer what a block depends on: the first thing on a line. What is not equal, if
    /// anything is not.
    pub(crate) fn compare(&mut self, own: &CompatibilityInfo) -> Result<Option<String>, WireError> {
        self.write(&Frame::Compatibility(own.clone()))?;
        match self.read()? {
            Frame::Compatibility(theirs) if theirs.is_sane() => Ok(own.differ(&theirs)),
            frame => Err(WireError::Turn(frame.name())),
        }
    }

    /// Sends a block or states, in pieces: each is `frame` of its piece.
    pub(crate) fn write_pieces(
        &mut self,
        frame: fn(Piece) -> Frame,
        index: usize,
        bytes: &[u8],
    ) -> Result<(), WireError> {
        let index = u32::try_from(index).expect("blocks are counted in 32 bits");
        for (at, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            let offset = (at * PIECE_BYTES) as u64;
            self.write(&frame(Piece { index, offset, bytes: piece.to_vec() }))?;
        }
        Ok(())
    }

    /// Waits for a frame, as long as the stream does.
    pub(crate) fn read(&mut self) -> Result<Frame, WireError> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if !(1 + SEAL_BYTES..=MOST_FRAME_BYTES).contains(&len) {
            return Err(WireError::Length(len));
        }
        // Memory for what has come, and not for what was announced.
        self.read.clear();
        let read = (&mut self.stream).take(len as u64).read_to_end(&mut self.read)?;
        if read < len {
            return Err(WireError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let (framed, seal) = self.read.split_at(len - SEAL_BYTES);
        let (kind, body) = (framed[0], &framed[1..]);
        let seal: [u8; SEAL_BYTES] = seal.try_into().expect("a seal is left");
        if self.theirs.seal(kind, body) != blake3::Hash::from_bytes(seal) {
            return Err(WireError::Seal);
        }
        Frame::read(kind, body)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn pair(keys: [&str; 2]) -> [Result<Line<UnixStream>, WireError>; 2] {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        let keys = keys.map(|key| ClusterKey::of(key.as_bytes()));
        let prefill = keys[1].clone();
        let thread = thread::spawn(move || Line::open(other, Side::Prefill, &prefill));
        let decode = Line::open(one, Side::Decode, &keys[0]);
        [decode, thread.join().expect("it does not panic")]
    }

    fn frames() -> Vec<Frame> {
        let steps = vec![RemoteStepEntry { after: 4, took: 5, rows: 6 }];
        let end = End { blocks: 3, first: Some(7), queue: 1, prefill: 2, others: 3, machine: 4, steps };
        vec![
            Frame::Ask(Ask { prompt_tokens: 5000, chain: vec![7, u64::MAX], priority: -1, ttft: Some(1_000_000) }),
            Frame::Offer(Offer { likely: None, cached_tokens: 64 }),
            Frame::Refused("none is here".to_owned()),
            Frame::Piece(Piece { index: 9, offset: 1 << 40, bytes: vec![1, 2, 3] }),
            Frame::State(Piece { index: 3, offset: 0, bytes: vec![4, 5] }),
            Frame::End(Box::new(end)),
            Frame::Busy,
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        let [decode, prefill] = pair(["a", "a"]);
        let (mut decode, mut prefill) = (decode.expect("the key is right"), prefill.expect("the key is right"));
        for frame in frames() {
            prefill.write(&frame).expect("it is written");
            assert_eq!(decode.read().expect("it is read"), frame);
            decode.write(&frame).expect("it is written");
            assert_eq!(prefill.read().expect("it is read"), frame);
        }
        let block: Vec<u8> = (0..PIECE_BYTES + 5).map(|at| at as u8).collect();
        let writer = thread::spawn(move || prefill.write_pieces(Frame::Piece, 4, &block).map(|()| block));
        let mut come = Vec::new();
        while come.len() < PIECE_BYTES + 5 {
            let Frame::Piece(piece) = decode.read().expect("it is read") else { panic!("a piece comes") };
            assert_eq!((piece.index, piece.offset), (4, come.len() as u64));
            come.extend(piece.bytes);
        }
        assert_eq!(come, writer.join().expect("it does not panic").expect("it is written"));
    }

    #[test]
    fn the_end_of_an_older_worker_is_no_end() {
        let body = br#"{"blocks":3,"first":7,"queue":1,"prefill":2,"others":953,"steps":[]}"#;
        let refused = Frame::read(7, body).expect_err("it books the machine on others");
        assert!(refused.to_string().contains("machine"), "{refused}");
    }

    #[test]
    fn without_the_key_there_is_no_answer() {
        let [decode, prefill] = pair(["a", "b"]);
        assert!(matches!(prefill, Err(WireError::Key)));
        assert!(matches!(decode, Err(WireError::Io(_))), "the other side has hung up");
        let (mut one, other) = UnixStream::pair().expect("a pair of sockets");
        one.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is written");
        let refused = Line::open(other, Side::Prefill, &ClusterKey::of(b"a"));
        assert!(matches!(refused, Err(WireError::Magic)));
        assert_eq!(one.read(&mut [0; 1]).unwrap_or(0), 0, "no byte comes back");
    }

    /// Both ends in memory: what is written is kept, what is read was put there.
    #[derive(Default)]
    struct Memory {
        written: Vec<u8>,
        to_read: VecDeque<u8>,
    }

    impl Read for Memory {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.to_read.read(bytes)
        }
    }

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn line(of: u8, to_read: &[u8]) -> Line<Memory> {
        let sealer = |key| FrameMac { key: [key; 32], next: 0 };
        let stream = Memory { to_read: to_read.iter().copied().collect(), ..Memory::default() };
        Line { stream, ours: sealer(of), theirs: sealer(of), written: Vec::new(), read: Vec::new() }
    }

    #[test]
    fn no_changed_byte_no_repeated_and_no_missing_frame_is_believed() {
        let mut writer = line(1, &[]);
        let mut ends = vec![0];
        for frame in frames() {
            writer.write(&frame).expect("it is written");
            ends.push(writer.stream.written.len());
        }
        let sent = writer.stream.written;
        let read_all = |of, bytes: &[u8]| {
            let mut reader = line(of, bytes);
            std::iter::from_fn(|| reader.read().ok()).collect::<Vec<_>>()
        };
        assert_eq!(read_all(1, &sent), frames());
        assert!(read_all(2, &sent).is_empty(), "a key of another connection");
        for at in 0..sent.len() {
            for bit in [1, 0x80] {
                let mut changed = sent.clone();
                changed[at] ^= bit;
                let whole = ends.iter().filter(|&&end| end <= at).count() - 1;
                assert_eq!(read_all(1, &changed), frames()[..whole], "byte {at} is changed");
            }
            assert_eq!(read_all(1, &sent[..at]), frames()[..ends.iter().filter(|&&end| end <= at).count() - 1]);
        }
        for (index, range) in ends.windows(2).enumerate() {
            let [before, frame, after] = [&sent[..range[0]], &sent[range[0]..range[1]], &sent[range[1]..]];
            assert_eq!(read_all(1, &[before, after].concat()), frames()[..index], "frame {index} is left out");
            let twice = [before, frame, frame, after].concat();
            assert_eq!(read_all(1, &twice), frames()[..=index], "frame {index} comes twice");
        }
    }

    #[test]
    fn bodies_that_are_none_are_refused_by_name() {
        let cases: [(u8, &[u8], &str); 9] = [
            (0, b"", "no frame of kind 0"),
            (10, b"{}", "no frame of kind 10"),
            (9, &[0; 11], "STATE"),
            (1, b"[[1,2]]", "FACTORS"),
            (2, b"{}", "ASK"),
            (3, b"{\"likely\": 1, \"more\": 2}", "OFFER"),
            (4, b"{\"first_block\": 0, \"request\": {}}", "PULL"),
            (6, &[0; 11], "BLOCK"),
            (8, b"x", "BUSY"),
        ];
        for (kind, body, says) in cases {
            let error = Frame::read(kind, body).expect_err("it is refused").to_string();
            assert!(error.contains(says), "{error}");
        }
        for len in [0_u32, 32, MOST_FRAME_BYTES as u32 + 1, u32::MAX] {
            let error = line(1, &len.to_le_bytes()).read().expect_err("it is refused");
            assert!(matches!(error, WireError::Length(_)), "{error}");
        }
    }
}
