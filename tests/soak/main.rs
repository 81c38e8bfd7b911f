//! `cargo xtask soak`: a server under sixteen clients of every kind, for an hour. What grows? What changes?
//!
//! ```text
//! canary            two greedy questions, over and over ──► each answer that of the quiet server, at the end as at the beginning
//! 16 clients        each draws its next deed from its seed: an answer, a stream, several answers with logprobs, a stream left
//!                   at some token, a connection left before the answer, a slow reader, a request that is wrong, /tokenize
//! sampler           every two seconds: resident memory, threads, open files
//! books             what clients count (answers by status, tokens, cancels) ──► what /metrics counted, at quiesce
//! ```
//! The cache is far too small for what they ask, so requests are preempted all the time. Caches and histories fill in the
//! first half of the run. Of the second, the slope of the memory is Theil and Sen's (the median of the slopes between all
//! pairs of samples), with the 95 % interval of Kendall's statistic over blocks of samples, because neighbours are not
//! independent. The upper end of a whole hour must lie below 1 MiB an hour; a shorter run cannot tell that much, and says
//! how much it can.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testing::Dice;
use tests::{Server, signal};

const CLIENTS: u64 = 16;
const DEFAULT_MINUTES: f64 = 60.0;
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// Of the run, before growth counts.
const WARM_UP: f64 = 0.5;
/// Runs shorter than this say nothing of growth.
const LEAST_HOURS: f64 = 0.4;
/// What a process may grow by in an hour.
const MIB_PER_HOUR: f64 = 1.0;
/// Of a client with one request: most of the time it waits for blocks that others hold.
const PATIENCE: Duration = Duration::from_secs(300);
/// Samples become this many means: far enough apart to be independent.
const BLOCKS: usize = 40;

/// What the clients counted.
#[derive(Default)]
struct Books {
    /// Requests to the two answering routes by what became of them.
    answered: AtomicU64,
    refused: AtomicU64,
    wrong: AtomicU64,
    left: AtomicU64,
    tokenized: AtomicU64,
    /// Tokens that whole answers had.
    tokens: AtomicU64,
    complaints: Mutex<Vec<String>>,
}

impl Books {
    fn complain(&self, text: String) {
        let mut complaints = self.complaints.lock().expect("no thread panics with it");
        if complaints.len() < 20 {
            complaints.push(text);
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let minutes = match &words[..] {
        [] => DEFAULT_MINUTES,
        [flag, minutes] if flag == "--minutes" => match minutes.parse() {
            Ok(minutes) if minutes > 0.0 => minutes,
            _ => return usage(),
        },
        _ => return usage(),
    };
    let run = Duration::from_secs_f64(60.0 * minutes);
    // 51 blocks for sixteen clients: a few long answers fill it.
    let flags = ["--kv-cache-memory-bytes", "4MiB", "--max-num-seqs", "12", "--max-queued-requests", "24"];
    let mut server =
        Server::start(&[&flags[..], &["--max-model-len", "768", "--max-num-batched-tokens", "256"]].concat());
    let (port, pid) = (server.port(), server.pid());
    let alone = canaries(port).expect("a quiet server answers");
    let (books, done, begin) = (Books::default(), AtomicBool::new(false), Instant::now());
    let samples = thread::scope(|scope| {
        for seed in 1..=CLIENTS {
            let (books, done) = (&books, &done);
            scope.spawn(move || client(port, seed, books, done));
        }
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                match canaries(port) {
                    Ok(answers) if answers == alone => {}
                    Ok(answers) => books.complain(format!("a canary got another answer: {answers:?}")),
                    Err(why) => books.complain(format!("a canary got no answer: {why}")),
                }
                thread::sleep(Duration::from_millis(200));
            }
        });
        let mut samples = Vec::new();
        while begin.elapsed() < run {
            samples.extend(Sample::of(pid, begin));
            thread::sleep(SAMPLE_EVERY.min(run / 60));
        }
        done.store(true, Ordering::Relaxed);
        samples
    });
    quiesce(port, &books);
    let end = canaries(port);
    let page = get(port, "/metrics").map(|answer| answer.1).unwrap_or_default();
    let verdicts = judge(&samples, &books, &page, end.as_ref() == Ok(&alone), begin.elapsed());
    signal("TERM", pid);
    let code = server.wait();
    let failed = verdicts.iter().filter(|(good, _)| !good).count() + usize::from(code != Some(0));
    for (good, text) in &verdicts {
        println!("{}  {text}", if *good { "ok    " } else { "FAILED" });
    }
    println!("{}  exit code {code:?} after SIGTERM", if code == Some(0) { "ok    " } else { "FAILED" });
    for complaint in books.complaints.lock().expect("no thread panics with it").iter() {
        println!("        {complaint}");
    }
    println!("{} passed, {failed} failed", verdicts.len() + 1 - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("usage: soak [--minutes N]");
    ExitCode::from(2)
}

/// A moment of the process.
#[derive(Clone, Copy)]
struct Sample {
    hours: f64,
    mib: f64,
    threads: u64,
    files: u64,
}

impl Sample {
    fn of(pid: u32, begin: Instant) -> Option<Sample> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
        };
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
        let (mib, threads) = (number("VmRSS")? as f64 / 1024.0, number("Threads")?);
        Some(Sample { hours: begin.elapsed().as_secs_f64() / 3600.0, mib, threads, files })
    }
}

/// One client: deed after deed until the end.
fn client(port: u16, seed: u64, books: &Books, done: &AtomicBool) {
    let mut dice = Dice::new(seed);
    while !done.load(Ordering::Relaxed) {
        let prompt = "Once upon a time there was a fox and a lantern. ".repeat(1 + dice.roll(24));
        let max_tokens = 8 + dice.below(240);
        let mut body = json!({ "prompt": prompt, "max_tokens": max_tokens, "seed": dice.below(1000),
            "temperature": 1.0, "ignore_eos": true });
        match dice.roll(10) {
            0..3 => whole(port, &body, 1, books),
            3 => {
                let n = 2 + dice.below(2);
                (body["n"], body["logprobs"]) = (json!(n), json!(dice.below(6)));
                whole(port, &body, n, books);
            }
            4 | 5 => {
                (body["stream"], body["stream_options"]) = (json!(true), json!({ "include_usage": true }));
                whole(port, &body, 1, books);
            }
            6 => {
                body["stream"] = json!(true);
                let bytes = 1 + dice.roll(20_000);
                leave(port, &body, bytes, books);
            }
            7 => {
                let wait = dice.below(60);
                abandon(port, &body, Duration::from_millis(wait), books);
            }
            8 => {
                let bad = [
                    json!({ "prompt": 7 }),
                    json!({ "prompt": "x", "n": 1e9 }),
                    json!({ "prompt": "" , "temperature": -1 }),
                ];
                match post(port, "/v1/completions", &bad[dice.roll(3)]) {
                    Ok((400, _)) => count(&books.wrong),
                    other => books.complain(format!("a wrong request: {other:?}")),
                }
            }
            _ => match post(port, "/tokenize", &json!({ "prompt": prompt })) {
                Ok((200, _)) => count(&books.tokenized),
                other => books.complain(format!("/tokenize: {other:?}")),
            },
        }
    }
}

fn count(number: &AtomicU64) {
    number.fetch_add(1, Ordering::Relaxed);
}

/// An answer to its end, streamed or not, slowly in one of eight cases.
fn whole(port: u16, body: &Value, n: u64, books: &Books) {
    match post(port, "/v1/completions", body) {
        Ok((200, text)) => {
            count(&books.answered);
            // Of a stream, the usage is in the last event but one.
            let wanted = n * body["max_tokens"].as_u64().unwrap_or(0);
            let found = text.rfind("\"completion_tokens\":").and_then(|at| {
                let digits: String = text[at + 20..].chars().take_while(char::is_ascii_digit).collect();
                digits.parse::<u64>().ok()
            });
            if found != Some(wanted) {
                books.complain(format!("{found:?} tokens of {wanted}: {}", tail(&text)));
            }
            books.tokens.fetch_add(found.unwrap_or(0), Ordering::Relaxed);
        }
        Ok((429 | 503, _)) => count(&books.refused),
        other => books.complain(format!("no answer: {:?}", other.map(|(status, text)| (status, tail(&text))))),
    }
}

fn tail(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(120);
    text.chars().skip(skipped).collect()
}

/// Reads `bytes` of a stream, the last of them slowly, and leaves.
fn leave(port: u16, body: &Value, bytes: usize, books: &Books) {
    let Ok(mut stream) = send(port, "/v1/completions", body) else { return books.complain("no connection".into()) };
    let (mut left, mut piece) = (bytes, [0; 512]);
    while left > 0 {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(count) => left = left.saturating_sub(count),
        }
        thread::sleep(Duration::from_micros(500));
    }
    count(&books.left);
}

/// Leaves before there can be an answer.
fn abandon(port: u16, body: &Value, wait: Duration, books: &Books) {
    let stream = send(port, "/v1/completions", body);
    thread::sleep(wait);
    drop(stream);
    count(&books.left);
}

fn send(port: u16, path: &str, body: &Value) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    Ok(stream)
}

fn post(port: u16, path: &str, body: &Value) -> Result<(u16, String), String> {
    read(send(port, path, body).map_err(|error| error.to_string())?)
}

fn get(port: u16, path: &str) -> Result<(u16, String), String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(|error| error.to_string())?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).map_err(|error| error.to_string())?;
    read(stream)
}

fn read(mut stream: TcpStream) -> Result<(u16, String), String> {
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(|error| error.to_string())?;
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| format!("no status: {}", tail(&text)))?, text))
}

/// What the canaries are told.
fn canaries(port: u16) -> Result<Vec<String>, String> {
    ["What is 17 + 25?", "Tell me a story about a fox"]
        .into_iter()
        .map(|question| {
            let body =
                json!({ "messages": [{ "role": "user", "content": question }], "temperature": 0, "max_tokens": 40 });
            // A queue that is full is no wrong answer: again.
            for _ in 0..200 {
                let (status, text) = post(port, "/v1/chat/completions", &body)?;
                let value: Value =
                    text.split("\r\n\r\n").nth(1).and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
                match (status, value["choices"][0]["message"]["content"].as_str()) {
                    (200, Some(content)) => return Ok(content.to_owned()),
                    (429 | 503, _) => thread::sleep(Duration::from_millis(50)),
                    _ => return Err(format!("{status} {}", tail(&text))),
                }
            }
            Err("its queue was full for ten seconds".into())
        })
        .collect()
}

/// Waits until nothing runs any more.
fn quiesce(port: u16, books: &Books) {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let page = get(port, "/metrics").map(|answer| answer.1).unwrap_or_default();
        let still = ["twostroke_requests_running", "twostroke_requests_waiting", "twostroke_kv_blocks_used"];
        if still.iter().all(|name| sum(&page, name) == Some(0.0)) {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    books.complain("minutes after the last client left, something runs, waits or holds blocks".into());
}

/// The sum over the samples of a family whose labels have all of `labels`.
fn sum_with(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let lines = page.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    let values: Vec<f64> = lines
        .filter(|line| labels.iter().all(|label| line.contains(label)))
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

fn sum(page: &str, name: &str) -> Option<f64> {
    sum_with(page, name, &[])
}

/// Every verdict with its line.
fn judge(samples: &[Sample], books: &Books, page: &str, same: bool, took: Duration) -> Vec<(bool, String)> {
    let warm = &samples[(samples.len() as f64 * WARM_UP) as usize..];
    let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let mut verdicts = Vec::new();
    println!(
        "{:.1} minutes: {} answers of {} tokens, {} left, {} refused, {} wrong, {} tokenized; {} preemptions",
        took.as_secs_f64() / 60.0,
        number(&books.answered),
        number(&books.tokens),
        number(&books.left),
        number(&books.refused),
        number(&books.wrong),
        number(&books.tokenized),
        sum(page, "twostroke_num_preemptions_total").unwrap_or(f64::NAN),
    );
    println!("{:>8} {:>9} {:>8} {:>6}", "minute", "MiB", "threads", "files");
    for sample in samples.iter().step_by((samples.len() / 12).max(1)) {
        println!("{:>8.1} {:>9.1} {:>8} {:>6}", 60.0 * sample.hours, sample.mib, sample.threads, sample.files);
    }
    verdicts.push((same, "canaries at the end as at the beginning".into()));
    let complaints = books.complaints.lock().expect("no thread panics with it").len();
    verdicts.push((complaints == 0, format!("{complaints} complaints of clients")));
    verdicts.push((
        sum(page, "twostroke_kv_blocks_used") == Some(0.0),
        format!("{:?} blocks held at the end", sum(page, "twostroke_kv_blocks_used")),
    ));
    let preempted = sum(page, "twostroke_num_preemptions_total").unwrap_or(0.0);
    verdicts.push((preempted > 0.0, format!("{preempted} preemptions")));
    // An answer that was whole was counted with 200; one that was left may have been, too, if it was streamed.
    let answers = sum_with(page, "twostroke_http_requests_total", &["/v1/completions", "\"200\""]).unwrap_or(0.0);
    let (least, most) = (number(&books.answered) as f64, (number(&books.answered) + number(&books.left)) as f64);
    verdicts.push((
        (least..=most).contains(&answers),
        format!("{answers} answers with 200, {least} to {most} by the clients"),
    ));
    let wrong = sum_with(page, "twostroke_http_requests_total", &["/v1/completions", "\"400\""]).unwrap_or(0.0);
    verdicts.push((
        wrong == number(&books.wrong) as f64,
        format!("{wrong} with 400, {} by the clients", number(&books.wrong)),
    ));
    let tokenized = sum_with(page, "twostroke_http_requests_total", &["/tokenize", "\"200\""]).unwrap_or(0.0);
    verdicts.push((
        tokenized == number(&books.tokenized) as f64,
        format!("{tokenized} tokenized, {} by the clients", number(&books.tokenized)),
    ));
    let tokens = sum(page, "twostroke_generation_tokens_total").unwrap_or(0.0);
    verdicts.push((
        tokens >= number(&books.tokens) as f64,
        format!("{tokens} tokens, {} in whole answers", number(&books.tokens)),
    ));
    let threads = warm.iter().map(|sample| sample.threads).max().unwrap_or(0);
    let first = warm.first().map_or(0, |sample| sample.threads);
    verdicts.push((threads <= first + 4, format!("{first} threads became {threads} at most")));
    let files = warm.iter().map(|sample| sample.files).max().unwrap_or(0);
    verdicts.push((files < 40 + 2 * CLIENTS, format!("{files} open files at most")));
    verdicts.push(growth(warm, took));
    verdicts
}

/// The slope of the memory, and whether it is what a whole hour allows.
fn growth(samples: &[Sample], took: Duration) -> (bool, String) {
    let means: Vec<(f64, f64)> = samples
        .chunks(samples.len().div_ceil(BLOCKS).max(1))
        .map(|block| {
            let mean = |of: fn(&Sample) -> f64| block.iter().map(of).sum::<f64>() / block.len() as f64;
            (mean(|sample| sample.hours), mean(|sample| sample.mib))
        })
        .collect();
    let Some((slope, low, high)) = theil_sen(&means) else {
        return (true, "too short for a slope".into());
    };
    let text = format!("{slope:+.2} MiB/h ({low:+.2} to {high:+.2} with 95 %)");
    match took.as_secs_f64() / 3600.0 {
        // A whole hour must show that it does not grow; less must not show that it does. What the engine remembers of
        // closed requests and past steps fills its rings in the first quarter of an hour, so less says nothing.
        hours if hours > 0.95 => (high <= MIB_PER_HOUR, format!("{text}, {MIB_PER_HOUR} at most")),
        hours => {
            let told =
                format!("{text}; in {:.0} minutes {:.1} MiB/h cannot be told from none", 60.0 * hours, high - slope);
            (hours < LEAST_HOURS || low <= MIB_PER_HOUR, told)
        }
    }
}

/// Median of the slopes between all pairs, and the ends of its 95 % interval (Sen, 1968).
fn theil_sen(points: &[(f64, f64)]) -> Option<(f64, f64, f64)> {
    let n = points.len() as f64;
    let mut slopes: Vec<f64> = Vec::new();
    for (index, a) in points.iter().enumerate() {
        slopes.extend(points[index + 1..].iter().filter(|b| b.0 > a.0).map(|b| (b.1 - a.1) / (b.0 - a.0)));
    }
    if slopes.len() < 10 {
        return None;
    }
    slopes.sort_by(f64::total_cmp);
    let half = 1.96 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt() / 2.0;
    let middle = slopes.len() as f64 / 2.0;
    let at = |place: f64| slopes[(place.max(0.0) as usize).min(slopes.len() - 1)];
    Some((at(middle), at(middle - half), at(middle + half)))
}
