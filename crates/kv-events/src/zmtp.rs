//! What a publisher needs of ZMTP 3.0 (rfc.zeromq.org/spec/23) to speak with the sockets of libzmq: greeting, handshake
//! without security, frames. The other side may be a stranger: no length that it announces is believed beyond a small limit.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;

/// Longest frame that is taken: subscriptions, requests and properties of sockets have some tens of bytes.
const MOST_FRAME: u64 = 4096;
/// Most frames of a message that is taken.
const MOST_FRAMES: usize = 8;
const GREETING: usize = 64;
/// Where in a greeting the version stands, and the name of the mechanism.
const VERSION: usize = 10;
const MECHANISM: std::ops::Range<usize> = 12..32;

// Bits of a frame's first byte.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

const READY: &[u8] = b"\x05READY";
const PING: &[u8] = b"\x04PING";
const PONG: &[u8] = b"\x04PONG";
/// Longest context of a ping, by the specification.
const MOST_CONTEXT: usize = 16;
const SOCKET_TYPE: &[u8] = b"Socket-Type";

struct Frame {
    is_command: bool,
    has_more: bool,
    body: Vec<u8>,
}

/// Agrees to be a socket of type `own` towards one whose type is among `others`.
pub(crate) async fn shake_hands(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    own: &str,
    others: &[&[u8]],
) -> io::Result<()> {
    let mut greeting = [0; GREETING];
    (greeting[0], greeting[9], greeting[VERSION]) = (0xff, 0x7f, 3);
    greeting[MECHANISM][..4].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await?;
    let mut theirs = [0; GREETING];
    stream.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[VERSION] < 3 || theirs[MECHANISM] != greeting[MECHANISM] {
        return Err(refused("no greeting of ZMTP 3 without security"));
    }
    let mut ready = READY.to_vec();
    ready.push(SOCKET_TYPE.len() as u8);
    ready.extend(SOCKET_TYPE);
    ready.extend((own.len() as u32).to_be_bytes());
    ready.extend(own.as_bytes());
    stream.write_all(&[&[COMMAND, ready.len() as u8], &ready[..]].concat()).await?;
    let frame = read_frame(stream).await?;
    let properties = frame.body.strip_prefix(READY).filter(|_| frame.is_command);
    match properties.and_then(socket_type) {
        Some(kind) if others.contains(&kind) => Ok(()),
        _ => Err(refused("no socket of a type that belongs here")),
    }
}

/// The value of that property, among others: a byte of length and a name, four bytes of length and a value.
fn socket_type(mut properties: &[u8]) -> Option<&[u8]> {
    loop {
        let (&len, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(len))?;
        let (len, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        if name.eq_ignore_ascii_case(SOCKET_TYPE) {
            return Some(value);
        }
        properties = rest;
    }
}

async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let flags = stream.read_u8().await?;
    let len = if flags & LONG == 0 { u64::from(stream.read_u8().await?) } else { stream.read_u64().await? };
    if flags > MORE | LONG | COMMAND || len > MOST_FRAME {
        return Err(refused("a frame that is none, or too long"));
    }
    let mut body = vec![0; len as usize];
    stream.read_exact(&mut body).await?;
    Ok(Frame { is_command: flags & COMMAND != 0, has_more: flags & MORE != 0, body })
}

/// The frames of a message. Of the commands a ping alone is answered: libzmq sends it whatever the version, and leaves
/// who says nothing.
pub(crate) async fn read_message(
    input: &mut (impl AsyncRead + Unpin),
    output: &Mutex<impl AsyncWrite + Unpin>,
) -> io::Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    loop {
        let frame = read_frame(input).await?;
        if frame.is_command {
            if let Some(pong) = pong(&frame.body) {
                output.lock().await.write_all(&pong).await?;
            }
            continue;
        }
        frames.push(frame.body);
        if !frame.has_more {
            return Ok(frames);
        }
        if frames.len() == MOST_FRAMES {
            return Err(refused("a message of too many frames"));
        }
    }
}

/// What answers a ping: its context, which is behind its name and two bytes of a time.
fn pong(command: &[u8]) -> Option<Vec<u8>> {
    let context = command.strip_prefix(PING)?.get(2..).filter(|context| context.len() <= MOST_CONTEXT)?;
    let len = (PONG.len() + context.len()) as u8;
    Some([&[COMMAND, len], PONG, context].concat())
}

/// A message as it is sent.
pub(crate) fn message(frames: [&[u8]; 3]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, frame) in frames.iter().enumerate() {
        let more = if at + 1 < frames.len() { MORE } else { 0 };
        match u8::try_from(frame.len()) {
            Ok(len) => bytes.extend([more, len]),
            Err(_) => {
                bytes.push(more | LONG);
                bytes.extend((frame.len() as u64).to_be_bytes());
            }
        }
        bytes.extend(*frame);
    }
    bytes
}

pub(crate) fn refused(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}
