//! Loads from files.
//!
//! | format | a line | source |
//! | --- | --- | --- |
//! | Mooncake, JSONL | `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}` | Mooncake (Qin et al., FAST 2025) |
//! | Azure, CSV | `TIMESTAMP,ContextTokens,GeneratedTokens` | Splitwise (Patel et al., ISCA 2024) |
//!
//! A hash id stands for [`HASHED_TOKENS`] tokens, the last of a prompt maybe for fewer: prompts that begin with the same
//! ids begin with the same tokens, so prefix hits are reproduced. Without `hash_ids` nothing is shared. Times count
//! from the first line. Files may be compressed with gzip.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use protocol::Nanos;
use serde::Deserialize;

use crate::workload::{Arrival, MAX_REQUESTS, MOST_TIME, Piece, Workload};
use figures::random::mix;

/// Tokens per hash id in Mooncake's format.
pub const HASHED_TOKENS: usize = 512;

/// Why a trace is invalid.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A line does not follow the format.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// The file contains no request.
    #[error("{}: no requests; expected JSON lines with timestamp, input_length and output_length, or CSV with the header {HEADER}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// Latest time of a line in milliseconds, far below 64 bits of nanoseconds.
const MOST_MS: f64 = 1.6e13;

/// Maximum line length: the hash ids of the largest prompt take a third of it.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Minimum limit of a compressed file's unpacked size,
const ANY_UNPACKED_BYTES: u64 = 16 << 20;
/// and the limit as a multiple of its compressed size. Traces reach 3 to 20 times.
const MAX_RATIO: u64 = 30;

/// Reads a trace file; the first line determines its format. `index` distinguishes the names of its requests from those
/// of other files of the same load.
///
/// Takes the memory of the requests and of one line: text is read and unpacked incrementally.
pub fn read(path: &Path, index: u64) -> Result<Workload, TraceError> {
    let unreadable = |error| TraceError::Unreadable { path: path.to_path_buf(), error };
    let file = files::open(path).map_err(unreadable)?;
    let len = file.metadata().map_err(unreadable)?.len();
    let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
    let is_gzip = file.fill_buf().map_err(unreadable)?.starts_with(&[0x1f, 0x8b]);
    let text: Box<dyn BufRead> = match is_gzip {
        true => {
            let unpacked = Bounded { inner: MultiGzDecoder::new(file), left: most_unpacked(len) };
            Box::new(BufReader::with_capacity(BUFFER_BYTES, unpacked))
        }
        false => Box::new(file),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arrivals = parse(text, mix(index)).map_err(|problem| match problem {
        Problem::Read(error) => unreadable(error),
        Problem::Line(line, problem) => TraceError::Line { path: path.to_path_buf(), line, problem },
    })?;
    if arrivals.is_empty() {
        return Err(TraceError::Empty { path: path.to_path_buf() });
    }
    Ok(Workload { name, arrivals, acceptance: None })
}

const BUFFER_BYTES: usize = 1 << 16;

/// Maximum unpacked size of a compressed file of `len` bytes.
fn most_unpacked(len: u64) -> u64 {
    ANY_UNPACKED_BYTES.max(len.saturating_mul(MAX_RATIO))
}

/// A reader that fails after too many bytes.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(len as u64).ok_or_else(|| {
            let problem = format!(
                "unpacks to more than {MAX_RATIO} times its size, as no known trace does; if it is one, unpack it first"
            );
            io::Error::new(io::ErrorKind::FileTooLarge, problem)
        })?;
        Ok(len)
    }
}

/// Several files as one load: their clocks start together.
pub fn read_all(paths: &[PathBuf]) -> Result<Workload, TraceError> {
    let mut all = Workload::default();
    for (index, path) in paths.iter().enumerate() {
        let one = read(path, index as u64)?;
        all.name = if all.name.is_empty() { one.name } else { format!("{} + {}", all.name, one.name) };
        all.arrivals.extend(one.arrivals);
    }
    all.arrivals.sort_by_key(|arrival| arrival.at);
    Ok(all)
}

/// A read error, or an invalid line.
enum Problem {
    Read(io::Error),
    Line(usize, String),
}

fn parse(mut text: impl BufRead, file: u64) -> Result<Vec<Arrival>, Problem> {
    let mut arrivals: Vec<Arrival> = Vec::new();
    let (mut start, mut is_csv, mut is_first, mut bytes) = (None, false, true, Vec::new());
    for number in 1.. {
        bytes.clear();
        let read = text.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut bytes).map_err(Problem::Read)?;
        let wrong = |problem: String| Problem::Line(number, problem);
        if read == 0 {
            break;
        }
        if bytes.len() as u64 > MAX_LINE_BYTES {
            return Err(wrong(format!("longer than {MAX_LINE_BYTES} bytes, the maximum of a trace line")));
        }
        let line = std::str::from_utf8(&bytes).map_err(|_| wrong("not text in UTF-8".to_string()))?.trim();
        if line.is_empty() {
            continue;
        }
        if std::mem::take(&mut is_first) && line.eq_ignore_ascii_case(HEADER) {
            is_csv = true;
            continue;
        }
        let name = file.wrapping_add(number as u64);
        let parsed = if is_csv { csv_line(line, name) } else { json_line(line, name, file) };
        let mut arrival = parsed.map_err(wrong)?;
        let start = *start.get_or_insert(arrival.at);
        if arrival.at < start {
            return Err(wrong("is earlier than the first line".to_string()));
        }
        if arrival.at.since(start) > MOST_TIME {
            let problem = "is more than thirty years after the first line; are its times in milliseconds?";
            return Err(wrong(problem.to_string()));
        }
        if arrivals.len() == MAX_REQUESTS {
            return Err(wrong(format!("more than {MAX_REQUESTS} requests; simulate a part of the trace")));
        }
        arrival.at = arrival.at.since(start);
        arrivals.push(arrival);
    }
    Ok(arrivals)
}

#[derive(Deserialize)]
struct JsonLine {
    /// Milliseconds.
    timestamp: f64,
    input_length: usize,
    output_length: usize,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

fn json_line(line: &str, name: u64, file: u64) -> Result<Arrival, String> {
    let line: JsonLine = serde_json::from_str(line).map_err(|error| format!("not as expected: {error}"))?;
    // Nanoseconds since 1970 end in 2554.
    if !(0.0..=MOST_MS).contains(&line.timestamp) {
        return Err(format!("timestamp {} is not a number of milliseconds from 0 to {MOST_MS:e}", line.timestamp));
    }
    let mut arrival = request(Nanos((line.timestamp * 1e6) as u64), name, line.input_length, line.output_length)?;
    if !line.hash_ids.is_empty() {
        let (ids, wanted) = (line.hash_ids.len(), line.input_length.div_ceil(HASHED_TOKENS));
        if ids != wanted {
            return Err(format!("{ids} hash_ids for {} tokens: each stands for {HASHED_TOKENS}", line.input_length));
        }
        let len = |block: usize| HASHED_TOKENS.min(line.input_length - block * HASHED_TOKENS);
        let pieces = line.hash_ids.iter().enumerate();
        arrival.prompt = pieces.map(|(block, &id)| Piece { name: mix(id ^ mix(file)), len: len(block) }).collect();
    }
    Ok(arrival)
}

fn csv_line(line: &str, name: u64) -> Result<Arrival, String> {
    let fields: Vec<&str> = line.split(',').collect();
    let &[time, input, output] = &fields[..] else { return Err(format!("{} fields instead of 3", fields.len())) };
    let count = |text: &str| text.trim().parse().map_err(|_| format!("{text:?} is not a number of tokens"));
    let at = moment(time).ok_or_else(|| format!("{time:?} is not a time like 2023-11-16 18:15:46.6805900"))?;
    request(at, name, count(input)?, count(output)?)
}

// Traces contain zero counts: a request without a prompt is invalid.
fn request(at: Nanos, name: u64, input: usize, output: usize) -> Result<Arrival, String> {
    const MOST: usize = 1 << 24;
    match (input, output) {
        (0, _) => Err("a prompt of 0 tokens".to_string()),
        (input, output) if input > MOST || output > MOST => Err(format!("{input} and {output} tokens are too many")),
        // Some traces have answers of length 0, which were filtered or aborted after prefill: count one token.
        (input, output) => Ok(Arrival::new(at, name, input, output.max(1))),
    }
}

/// Nanoseconds since 1970 of `2023-11-16 18:15:46.6805900`, without a time zone.
fn moment(text: &str) -> Option<Nanos> {
    let (date, time) = text.trim().split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (time.next()?.parse::<u64>().ok()?, time.next()?.parse::<u64>().ok()?);
    let seconds = time.next()?;
    let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let seconds = seconds.parse::<u64>().ok()?;
    // Nanoseconds since 1970 end in 2554.
    let is_valid = (1970..=2500).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && seconds < 61
        && fraction.len() <= 9
        && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !is_valid {
        return None;
    }
    let nanos = format!("{fraction:0<9}").parse::<u64>().ok()?;
    // Civil calendar with March as the first month, so that the leap day ends the year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year / 4 - year / 100 + year / 400;
    let days = year * 365 + leaps + (month * 153 + 2) / 5 + day - 1 - 719_468;
    Some(Nanos((days * 86_400 + hour * 3600 + minute * 60 + seconds) * 1_000_000_000 + nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let table = [
            ("1970-01-01 00:00:00", Some(0)),
            ("1970-01-02 00:00:01.5", Some(86_401_500_000_000)),
            ("2023-11-16 18:15:46.6805900", Some(1_700_158_546_680_590_000)),
            ("2024-02-29 00:00:00", Some(1_709_164_800_000_000_000)),
            ("2024-03-01 00:00:00", Some(1_709_251_200_000_000_000)),
            ("2023-13-16 18:15:46", None),
            ("2023-11-16", None),
            ("", None),
            ("2023-11-16 18:15:4x", None),
        ];
        for (text, want) in table {
            assert_eq!(moment(text), want.map(Nanos), "{text:?}");
        }
    }

    #[test]
    fn times_beyond_the_clock_are_refused_by_their_line() {
        let json = |times: &[&str]| -> String {
            let line = |time: &&str| format!("{{\"timestamp\": {time}, \"input_length\": 9, \"output_length\": 9}}\n");
            times.iter().map(line).collect()
        };
        let csv = |times: &[&str]| -> String {
            let lines = times.iter().map(|time| format!("{time},9,9\n"));
            std::iter::once(format!("{HEADER}\n")).chain(lines).collect()
        };
        // (text, the arrivals in milliseconds, or the line and a word of its problem)
        #[allow(clippy::type_complexity, reason = "a table")]
        let table: Vec<(String, Result<Vec<u64>, (usize, &str)>)> = vec![
            (json(&["0", "5"]), Ok(vec![0, 5])),
            (json(&["1700000000000", "1700000000007"]), Ok(vec![0, 7])),
            (json(&["16000000000000"]), Ok(vec![0])),
            (json(&["0", "999999999999"]), Ok(vec![0, 999_999_999_999])),
            (json(&["0", "1000000000001"]), Err((2, "thirty years"))),
            (json(&["0", "1e13"]), Err((2, "thirty years"))),
            (json(&["0", "1e14"]), Err((2, "milliseconds"))),
            (json(&["1e14"]), Err((1, "milliseconds"))),
            (json(&["1e15"]), Err((1, "milliseconds"))),
            (json(&["1e300"]), Err((1, "milliseconds"))),
            (json(&["-1"]), Err((1, "milliseconds"))),
            (json(&["0", "18446744073710"]), Err((2, "milliseconds"))),
            (csv(&["2023-11-16 18:15:46", "2023-11-16 18:15:47.5"]), Ok(vec![0, 1500])),
            (csv(&["1970-01-01 00:00:00", "2500-12-31 23:59:60"]), Err((3, "thirty years"))),
            (csv(&["2500-12-31 23:59:60"]), Ok(vec![0])),
            (csv(&["2600-01-01 00:00:00"]), Err((2, "not a time"))),
            (csv(&["18446744073709551615-01-01 00:00:00"]), Err((2, "not a time"))),
        ];
        for (text, wanted) in table {
            match (parse(text.as_bytes(), 0), wanted) {
                (Ok(found), Ok(wanted)) => {
                    let found: Vec<u64> = found.iter().map(|arrival| arrival.at.0 / 1_000_000).collect();
                    assert_eq!(found, wanted, "{text}");
                }
                (Err(Problem::Line(line, problem)), Err((wanted, word))) => {
                    assert!(line == wanted && problem.contains(word), "{text}: line {line}: {problem}");
                }
                (found, wanted) => panic!("{text}: {:?} for {wanted:?}", found.map(|found| found.len()).ok()),
            }
        }
        // All fields have bounds, and no text overflows one.
        for (input, output) in
            [("18446744073709551615", "1"), ("1", "18446744073709551615"), ("1e30", "1"), ("16777217", "1")]
        {
            let line = format!("{{\"timestamp\": 0, \"input_length\": {input}, \"output_length\": {output}}}\n");
            assert!(matches!(parse(line.as_bytes(), 0), Err(Problem::Line(1, _))), "{line}");
            let line = format!("{HEADER}\n2023-11-16 18:15:46,{input},{output}\n");
            assert!(matches!(parse(line.as_bytes(), 0), Err(Problem::Line(2, _))), "{line}");
        }
    }
}
