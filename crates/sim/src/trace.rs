//! Loads from files.
//!
//! | format | a line | source |
//! | --- | --- | --- |
//! | Mooncake, JSONL | `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}` | Mooncake (Qin et al., FAST 2025) |
//! | Azure, CSV | `TIMESTAMP,ContextTokens,GeneratedTokens` | Splitwise (Patel et al., ISCA 2024) |
//!
//! A hash id names [`HASHED_TOKENS`] tokens, the last of a prompt perhaps fewer: prompts that begin with the same ids
//! begin with the same tokens, so prefix hits come out as they were. Without `hash_ids` nothing is shared. Times count
//! from the first line. Files may be compressed with gzip.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use scheduler::Nanos;
use serde::Deserialize;

use crate::random::mix;
use crate::workload::{Arrival, Piece, Workload};

/// Tokens that one of Mooncake's hash ids stands for.
pub const HASHED_TOKENS: usize = 512;

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A line is not what the format says.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// There is no request in it.
    #[error("{}: no requests; expected JSON lines with timestamp, input_length and output_length, or CSV with the header {HEADER}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// Reads a trace file; the first line tells its format. `index` makes the names of its requests differ from those of
/// other files of the same load.
pub fn read(path: &Path, index: u64) -> Result<Workload, TraceError> {
    let unreadable = |error| TraceError::Unreadable { path: path.to_path_buf(), error };
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        MultiGzDecoder::new(&bytes[..]).read_to_end(&mut plain).map_err(unreadable)?;
        bytes = plain;
    }
    let text = String::from_utf8(bytes).map_err(|_| unreadable(io::Error::other("not text in UTF-8")))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arrivals = parse(&text, mix(index)).map_err(|(line, problem)| TraceError::Line {
        path: path.to_path_buf(),
        line,
        problem,
    })?;
    if arrivals.is_empty() {
        return Err(TraceError::Empty { path: path.to_path_buf() });
    }
    Ok(Workload { name, arrivals })
}

/// Several files as one load: their clocks begin together.
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

fn parse(text: &str, file: u64) -> Result<Vec<Arrival>, (usize, String)> {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let mut lines = lines.by_ref().filter(|(_, line)| !line.is_empty()).peekable();
    let is_csv = lines.next_if(|(_, line)| line.eq_ignore_ascii_case(HEADER)).is_some();
    let mut arrivals = Vec::new();
    let mut start = None;
    for (number, line) in lines {
        let name = file.wrapping_add(number as u64);
        let parsed = if is_csv { csv_line(line, name) } else { json_line(line, name, file) };
        let mut arrival = parsed.map_err(|problem| (number, problem))?;
        let start = *start.get_or_insert(arrival.at);
        if arrival.at < start {
            return Err((number, "is earlier than the first line".to_string()));
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
    if !(0.0..=1e15).contains(&line.timestamp) {
        return Err(format!("timestamp {} is not a number of milliseconds", line.timestamp));
    }
    let mut arrival = request(Nanos((line.timestamp * 1e6) as u64), name, line.input_length, line.output_length)?;
    if !line.hash_ids.is_empty() {
        let (ids, wanted) = (line.hash_ids.len(), line.input_length.div_ceil(HASHED_TOKENS));
        if ids != wanted {
            return Err(format!("{ids} hash_ids for {} tokens: there are {HASHED_TOKENS} to each", line.input_length));
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

/// Traces count tokens of nothing, too: a request without a prompt or an answer is none.
fn request(at: Nanos, name: u64, input: usize, output: usize) -> Result<Arrival, String> {
    const MOST: usize = 1 << 24;
    match (input, output) {
        (0, _) => Err("a prompt of 0 tokens".to_string()),
        (input, output) if input > MOST || output > MOST => Err(format!("{input} and {output} tokens are too many")),
        // Some traces have answers of length 0: refused by a filter, or cut. The prompt was computed.
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
    let is_valid = (1970..=9999).contains(&year)
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
    // Days of the civil calendar: March is the first month of a year that ends with the leap day.
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
}
