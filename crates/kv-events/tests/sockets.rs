//! Events and replays through the sockets, as a router receives them; and the flag that names these.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;

use kv_events::{Endpoints, Publisher};
use scheduler::{BlockHash, CacheEvent};
use tokio::runtime::Runtime;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

fn hash(number: u8) -> BlockHash {
    BlockHash([number; 32])
}

fn short(number: u8) -> u64 {
    u64::from_le_bytes([number; 8])
}

fn found(number: u8, parent: Option<u8>) -> CacheEvent {
    let tokens = vec![u32::from(number) * 1000; 4];
    CacheEvent::Found { hash: hash(number), parent: parent.map(hash), salt: 0, tokens }
}

fn lost(number: u8) -> CacheEvent {
    CacheEvent::Lost { hash: hash(number) }
}

/// `BlockStored` as vLLM's clients parse it.
type Stored = (String, Vec<u64>, Option<u64>, Vec<u32>, usize, Option<u32>, Option<String>, Option<String>);
type Removed = (String, Vec<u64>, Option<String>);

fn stored(numbers: &[u8], parent: Option<u8>) -> Stored {
    let tokens = numbers.iter().flat_map(|&number| [u32::from(number) * 1000; 4]).collect();
    let hashes = numbers.iter().copied().map(short).collect();
    ("BlockStored".into(), hashes, parent.map(short), tokens, 4, None, None, None)
}

fn removed(numbers: &[u8]) -> Removed {
    ("BlockRemoved".into(), numbers.iter().copied().map(short).collect(), None)
}

fn published(buffer_steps: usize) -> (Publisher, [String; 2]) {
    let publisher = Publisher::bind(Endpoints {
        endpoint: "tcp://127.0.0.1:0".into(),
        replay_endpoint: Some("tcp://127.0.0.1:0".into()),
        topic: "kv@me".into(),
        buffer_steps,
    });
    let publisher = publisher.expect("ports are free");
    let bound = publisher.bound().to_vec().try_into().expect("two sockets");
    (publisher, bound)
}

/// Every batch from a number on, with its number, until the end of the replay.
async fn replayed(endpoint: &str, from: u64) -> Vec<(u64, Vec<u8>)> {
    let mut socket = DealerSocket::new();
    socket.connect(endpoint).await.expect("it is there");
    let mut question = ZmqMessage::from(Vec::new());
    question.push_back(from.to_be_bytes().to_vec().into());
    socket.send(question).await.expect("it is sent");
    let mut all = Vec::new();
    loop {
        let frames = socket.recv().await.expect("an answer").into_vec();
        let [empty, number, payload] = &frames[..] else { panic!("three frames: {frames:?}") };
        assert!(empty.is_empty());
        let number = u64::from_be_bytes(number[..].try_into().expect("eight bytes"));
        if number == u64::MAX {
            assert!(payload.is_empty());
            return all;
        }
        all.push((number, payload.to_vec()));
    }
}

/// A replay, repeated until it has that number of batches.
async fn replayed_of(endpoint: &str, from: u64, count: usize) -> Vec<(u64, Vec<u8>)> {
    loop {
        let all = replayed(endpoint, from).await;
        if all.len() >= count {
            return all;
        }
    }
}

#[test]
fn events_are_told_as_vllm_tells_them_and_told_again() {
    let (publisher, [events, replays]) = published(10);
    let (sender, receiver) = channel();
    publisher.spawn(receiver).expect("a thread");
    Runtime::new().expect("a runtime").block_on(async {
        let first = vec![found(1, None), found(2, Some(1)), lost(7), lost(8), found(3, Some(1)), found(4, Some(3))];
        sender.send(first).expect("the publisher runs");
        sender.send(vec![CacheEvent::Cleared]).expect("the publisher runs");
        let told = replayed_of(&replays, 0, 2).await;
        assert_eq!([told[0].0, told[1].0], [0, 1]);
        let (seconds, (one, two, three), rank): (f64, (Stored, Removed, Stored), u32) =
            rmp_serde::from_slice(&told[0].1).expect("the events of a batch");
        assert!(seconds > 1.7e9);
        assert_eq!((one, two, three, rank), (stored(&[1, 2], None), removed(&[7, 8]), stored(&[3, 4], Some(1)), 0));
        let (_, [[cleared]], _): (f64, [[String; 1]; 1], u32) = rmp_serde::from_slice(&told[1].1).expect("a batch");
        assert_eq!(cleared, "AllBlocksCleared");
        assert_eq!(replayed(&replays, 1).await.len(), 1);

        // A subscriber receives the next batch; its number shows what was missed.
        let mut subscriber = SubSocket::new();
        subscriber.connect(&events).await.expect("it is there");
        subscriber.subscribe("kv@").await.expect("it is sent");
        let frames = loop {
            sender.send(vec![lost(9)]).expect("the publisher runs");
            let next = tokio::time::timeout(std::time::Duration::from_millis(50), subscriber.recv()).await;
            if let Ok(message) = next {
                break message.expect("a message").into_vec();
            }
        };
        let [topic, number, payload] = &frames[..] else { panic!("three frames: {frames:?}") };
        assert_eq!(&topic[..], b"kv@me");
        let number = u64::from_be_bytes(number[..].try_into().expect("eight bytes"));
        let (_, (event,), _): (f64, (Removed,), u32) = rmp_serde::from_slice(payload).expect("a batch");
        assert_eq!(event, removed(&[9]));
        assert_eq!(replayed(&replays, number).await[0], (number, payload.to_vec()));
    });
}

#[test]
fn as_many_batches_are_kept_as_was_said() {
    let (publisher, [_, replays]) = published(3);
    let (sender, receiver) = channel();
    publisher.spawn(receiver).expect("a thread");
    Runtime::new().expect("a runtime").block_on(async {
        for number in 0..20 {
            sender.send(vec![lost(number)]).expect("the publisher runs");
        }
        loop {
            let kept: Vec<u64> = replayed(&replays, 0).await.into_iter().map(|(number, _)| number).collect();
            assert!(kept.len() <= 3, "{kept:?}");
            if kept == [17, 18, 19] {
                break;
            }
        }
    });
}

/// A greeting of ZMTP 3, and what a socket of that kind says behind it.
fn ready(kind: &[u8]) -> Vec<u8> {
    let body = [b"\x05READY\x0bSocket-Type\0\0\0", &[kind.len() as u8][..], kind].concat();
    [GREETING, &[0; 48], &[4, body.len() as u8], &body].concat()
}

const GREETING: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL";

/// A peer that has said that.
fn peer(endpoint: &str, says: &[u8]) -> TcpStream {
    let mut peer = TcpStream::connect(endpoint.strip_prefix("tcp://").unwrap()).expect("it is there");
    // It may be refused before it has said all.
    let _ = peer.write_all(says);
    peer
}

/// Peers on every seat that ask for nothing leave for those who do.
#[test]
fn who_asks_for_nothing_keeps_no_one_out() {
    let (publisher, [events, replays]) = published(10);
    let (sender, receiver) = channel();
    publisher.spawn(receiver).expect("a thread");
    for (kind, endpoint) in [(&b"DEALER"[..], &replays), (b"SUB", &events)] {
        let says = ready(kind);
        let says = |at: usize| if at.is_multiple_of(2) { &says[..] } else { &says[..9] };
        let _held: Vec<TcpStream> = (0..260).map(|at| peer(endpoint, says(at))).collect();
        let mut router = match kind {
            b"SUB" => peer(endpoint, &[&ready(b"SUB"), &b"\0\x01\x01"[..]].concat()),
            _ => peer(endpoint, &[&ready(b"DEALER"), &b"\x01\0\0\x08"[..], &[0; 8]].concat()),
        };
        router.set_nonblocking(true).unwrap();
        let mut told = Vec::new();
        // Its greeting has 64 bytes, what it is has less.
        while told.len() < 100 {
            sender.send(vec![lost(1)]).expect("the publisher runs");
            std::thread::sleep(std::time::Duration::from_millis(50));
            let _ = router.read_to_end(&mut told);
        }
    }
}

/// libzmq's sockets leave a peer that does not answer their heartbeats.
#[test]
fn a_ping_is_answered() {
    let (publisher, bound) = published(10);
    let (_sender, receiver) = channel();
    publisher.spawn(receiver).expect("a thread");
    for (endpoint, kind) in bound.iter().zip([&b"SUB"[..], b"DEALER"]) {
        let mut peer = peer(endpoint, &[&ready(kind), &b"\x04\x09\x04PING\0\x0aab"[..]].concat());
        let mut told = Vec::new();
        while !told.ends_with(b"\x04\x07\x04PONGab") {
            let mut byte = [0];
            peer.read_exact(&mut byte).expect("it stays");
            told.extend(byte);
        }
    }
}

/// What strangers say, whole or not, ends their connection or holds it; no length that they announce is believed.
#[test]
fn strangers_take_nothing_from_others() {
    let (publisher, bound) = published(10);
    let (sender, receiver) = channel();
    publisher.spawn(receiver).expect("a thread");
    let greeting = [GREETING, &[0; 48]].concat();
    let after = |kind: &[u8], more: &[u8]| [&ready(kind), more].concat();
    let mut told = vec![
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3), true),
        (vec![0; 64], true),
        ([&greeting[..10], b"\x01\0", &greeting[12..]].concat(), true),
        ([&greeting[..12], b"CURVE", &greeting[17..]].concat(), true),
        (greeting[..20].to_vec(), false),
        (ready(b"PUSH"), true),
        ([&greeting[..], &[6], &u64::MAX.to_be_bytes()].concat(), true),
    ];
    for kind in [&b"SUB"[..], b"DEALER"] {
        told.push((after(kind, &[&[2][..], &(1_u64 << 40).to_be_bytes(), b"x"].concat()), true));
        told.push((after(kind, &[&[2][..], &u64::MAX.to_be_bytes()].concat()), true));
        told.push((after(kind, &b"\x01\0".repeat(99)), true));
        told.push((after(kind, b"\x08\0"), true));
        told.push((after(kind, b"\0\x01\x07"), false));
    }
    let mut held = Vec::new();
    for ((says, ends), endpoint) in told.iter().flat_map(|told| bound.iter().map(move |endpoint| (told, endpoint))) {
        let mut stranger = peer(endpoint, says);
        if *ends {
            let _ = stranger.read_to_end(&mut Vec::new());
        }
        held.push(stranger);
    }
    sender.send(vec![lost(1)]).expect("the publisher runs");
    let told = Runtime::new().expect("a runtime").block_on(replayed_of(&bound[1], 0, 1));
    assert_eq!(told[0].0, 0);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let (_publisher, [events, _]) = published(1);
    let endpoints =
        Endpoints { endpoint: events.clone(), replay_endpoint: None, topic: String::new(), buffer_steps: 1 };
    let error = Publisher::bind(endpoints).err().expect("it is taken").to_string();
    assert!(error.contains(&events), "{error}");
}

#[test]
fn the_words_are_those_of_vllm() {
    let whole = r#"{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5600",
        "replay_endpoint": "tcp://127.0.0.1:5601", "topic": "kv@me", "buffer_steps": 7, "hwm": 100000}"#;
    let endpoints = Endpoints::parse(whole).expect("it is right").expect("events are wanted");
    assert_eq!(endpoints.endpoint, "tcp://*:5600");
    assert_eq!((endpoints.topic.as_str(), endpoints.buffer_steps), ("kv@me", 7));
    let least = Endpoints::parse(r#"{"enable_kv_cache_events": true}"#).expect("it is right").expect("wanted");
    assert_eq!((least.endpoint.as_str(), least.replay_endpoint), ("tcp://*:5557", None));
    assert_eq!(Endpoints::parse("{}").expect("it is right"), None);
    assert_eq!(Endpoints::parse(r#"{"enable_kv_cache_events": true, "publisher": "null"}"#).expect("right"), None);
    for (wrong, says) in [
        ("", "EOF"),
        ("[]", "not a JSON object"),
        (r#"[true, "zmq"]"#, "not a JSON object"),
        ("5", "not a JSON object"),
        (r#"{"endpiont": "tcp://*:1"}"#, "endpiont"),
        (r#"{"publisher": "kafka"}"#, "kafka"),
        (r#"{"endpoint": "ipc:///tmp/x"}"#, "tcp://HOST:PORT"),
        (r#"{"endpoint": "tcp://*:70000"}"#, "tcp://HOST:PORT"),
        (r#"{"replay_endpoint": "5558"}"#, "tcp://HOST:PORT"),
        (r#"{"buffer_steps": 0}"#, "buffer_steps"),
    ] {
        let error = Endpoints::parse(wrong).expect_err("it is refused").to_string();
        assert!(error.contains(says), "{wrong}: {error}");
    }
}
