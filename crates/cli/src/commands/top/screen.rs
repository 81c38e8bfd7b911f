//! The screen of `twostroke top` as a function of what the feed has said: lines of text, coloured or not.
//!
//! ```text
//! lantern bf16 · amx · 2 threads                                running 3 · waiting 1
//! prefill   1.2k tok/s ██████░░░░ 61 % of arithmetic, 12 % of bandwidth
//! decode     412 tok/s ██░░░░░░░░  7 % of arithmetic, 88 % of bandwidth
//! drafts     2.3 tokens per decode step, 61 % accepted         where next tokens were drafted
//! KV        1,843 of 4,096 blocks ████░░░░░░ 45 %
//! TTFT p50 96 ms, p99 1.24 s · ITL p50 21 ms, p99 40 ms
//!
//! …9f3a  ···███████──────────────────      one lane per request: waiting, prefill, decode
//! …77b0  ▒▒▒▒▒█──────────────────────      its prompt was read by another worker
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use serde_json::Value;

use bench::load::printable;
use figures::Colour;

use crate::environment::utc;
use crate::figures::{LimitShares, NOT_KNOWN, PassWork, Peaks, duration, percent, rate};

/// Seconds that the lanes and the rates look back.
const SECONDS: f64 = 10.0;
const MS: f64 = SECONDS * 1e3;
/// Steps kept, whatever their time.
const MOST_STEPS: usize = 20_000;
/// Columns of a name and of a bar.
const NAME: usize = 12;
const BAR: usize = 20;

/// What fills a column of a lane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    Nothing,
    Waiting,
    Away,
    Decode,
    Prefill,
}

impl Mark {
    fn glyph(self) -> char {
        match self {
            Mark::Nothing => ' ',
            Mark::Waiting => '·',
            Mark::Away => '▒',
            Mark::Decode => '─',
            Mark::Prefill => '█',
        }
    }

    /// Prefill and decode as on the page.
    fn colour(self) -> &'static str {
        match self {
            Mark::Nothing => "",
            Mark::Waiting => Colour::Limit.ansi(),
            Mark::Decode => Colour::Decode.ansi(),
            // Read here or by another worker.
            Mark::Away | Mark::Prefill => Colour::Prefill.ansi(),
        }
    }
}

/// A step, as far as it is drawn.
struct Pass {
    from: f64,
    to: f64,
    /// Of its time, and of the time before it, what the machine took.
    stolen: f64,
    stolen_before: f64,
    prefill_tokens: f64,
    decode_tokens: f64,
    /// Answers that decoded in it, and the drafts of their next tokens.
    decoding: f64,
    drafts: f64,
    flops: f64,
    bytes: f64,
    rows: Vec<(String, Mark)>,
}

impl Pass {
    fn work(&self) -> PassWork {
        PassWork { matrix_flops: self.flops, bytes: self.bytes, ..PassWork::default() }
    }

    /// Seconds that it took by itself. `None`: others are said to have left it no more than its work takes, so they are not
    /// known. Moments are told to the microsecond.
    fn own_seconds(&self, peaks: &Peaks) -> Option<f64> {
        let own = (self.to - self.from - self.stolen) / 1e3;
        (self.stolen == 0.0 || own > peaks.floor_seconds(&self.work()) + 2e-6).then_some(own)
    }
}

/// What the feed has said so far.
#[derive(Default)]
pub(crate) struct Seen {
    info: Value,
    passes: VecDeque<Pass>,
    /// When the prompts of requests were with another worker, from and to.
    away: BTreeMap<String, (f64, Option<f64>)>,
    requests: Value,
    stats: Value,
    now: f64,
}

impl Seen {
    pub(crate) fn new(info: Value) -> Seen {
        Seen { info, ..Seen::default() }
    }

    /// Takes an event in.
    pub(crate) fn hear(&mut self, event: &str, data: Value) {
        let at = data["at"].as_f64().unwrap_or_default();
        self.now = self.now.max(at);
        match event {
            "step" => self.step(at, &data),
            "away" => self.away(&data),
            "requests" => self.requests = data,
            "stats" => self.stats = data,
            _ => {}
        }
    }

    fn away(&mut self, data: &Value) {
        let from = data["from_ms"].as_f64().unwrap_or_default();
        self.away.insert(name(&data["r"]), (from, data["to_ms"].as_f64()));
        let begin = self.now - MS;
        self.away.retain(|_, &mut time| reaches(time, begin));
    }

    /// Whether there is enough for a first screen.
    pub(crate) fn is_complete(&self) -> bool {
        !self.stats.is_null()
    }

    fn step(&mut self, at: f64, step: &Value) {
        let number = |name: &str| step[name].as_f64().unwrap_or_default();
        let rows = |name: &'static str| step[name].as_array().into_iter().flatten();
        let named = |row: &Value, mark| (name(&row["r"]), mark);
        let marks = rows("prefill").map(|row| named(row, Mark::Prefill));
        self.now = self.now.max(at + number("took"));
        self.passes.push_back(Pass {
            from: at,
            to: at + number("took"),
            stolen: number("stolen"),
            stolen_before: number("stolen_before"),
            prefill_tokens: rows("prefill").filter_map(|row| row["len"].as_f64()).sum(),
            decode_tokens: rows("decode").map(|row| row["tokens"].as_f64().unwrap_or(1.0)).sum(),
            decoding: rows("decode").count() as f64,
            drafts: rows("decode").filter_map(|row| row["drafts"].as_f64()).sum(),
            flops: number("flops"),
            bytes: number("bytes"),
            rows: marks.chain(rows("decode").map(|row| named(row, Mark::Decode))).collect(),
        });
        let is_old = |pass: &Pass| pass.to < self.now - MS;
        while self.passes.len() > MOST_STEPS || self.passes.front().is_some_and(is_old) {
            self.passes.pop_front();
        }
    }

    /// The screen, at most `height` lines of at most `width` columns.
    pub(crate) fn lines(&self, width: usize, height: usize, colour: bool) -> Vec<String> {
        let mut lines = vec![self.title(width)];
        lines.push(self.phase("prefill", |pass| pass.prefill_tokens, Mark::Prefill, colour));
        lines.push(self.phase("decode", |pass| pass.decode_tokens, Mark::Decode, colour));
        lines.extend(self.speculation());
        lines.push(self.blocks());
        lines.push(self.latencies());
        lines.push(String::new());
        let room = height.saturating_sub(lines.len() + 1);
        let lanes = self.lanes(width.saturating_sub(NAME + 1));
        let hidden = lanes.len().saturating_sub(room);
        let shown = if hidden > 0 { room.saturating_sub(1) } else { room };
        for (name, marks) in lanes.iter().take(shown) {
            let mut line = format!("{name:<NAME$} ");
            line.push_str(&painted(marks, colour));
            lines.push(line);
        }
        if hidden > 0 {
            lines.push(format!("{} more", lanes.len() - shown));
        }
        let at =
            self.stats["unix_ms"].as_f64().map_or_else(String::new, |ms| format!(" to {}", utc((ms / 1e3) as i64)));
        let is_away = lanes.iter().any(|(_, marks)| marks.contains(&Mark::Away));
        let away = if is_away { " ▒ read elsewhere" } else { "" };
        let legend = format!("q quits · last {SECONDS:.0} s{at}: █ prefill ─ decode · waiting{away}");
        lines.truncate(height.saturating_sub(1));
        lines.push(legend);
        lines.into_iter().map(|line| cut(&line, width)).collect()
    }

    fn title(&self, width: usize) -> String {
        let text = |value: &Value| printable(value.as_str().unwrap_or_default());
        let info = &self.info;
        let left = format!(
            "{} {} · {} · {} threads",
            text(&info["name"]),
            text(&info["weights"]),
            text(&info["isa"]),
            info["threads"].as_u64().unwrap_or_default()
        );
        let count = |name: &str| self.stats[name].as_u64().unwrap_or_default();
        let paused = if self.stats["paused"] == true { "PAUSED · " } else { "" };
        let stolen = self.stolen();
        let busy = if stolen >= 0.01 { format!("machine busy {} · ", percent(stolen)) } else { String::new() };
        let right = format!("{busy}{paused}running {} · waiting {}", count("running"), count("waiting"));
        let gap = width.saturating_sub(left.chars().count() + right.chars().count()).max(2);
        format!("{left}{:gap$}{right}", "")
    }

    /// Tokens per second of a phase, and what its passes had of both limits while the machine was theirs. A pass of both
    /// phases counts for the one that has more of its rows.
    fn phase(&self, what: &str, tokens: impl Fn(&Pass) -> f64, mark: Mark, colour: bool) -> String {
        let seconds = self.span();
        // The sum of nothing is -0, which would be shown.
        let sum = self.passes.iter().fold(0.0, |sum, pass| sum + tokens(pass));
        let mut line = format!("{what:<9} {:>11}", rate(if seconds > 0.0 { sum / seconds } else { 0.0 }));
        // What was reached is possible: a pass that is newer than the last word about limits may show that they are
        // higher.
        let limit = |name: &str, of: fn(&Pass) -> f64| {
            let told = self.stats["limits"][name].as_f64().or_else(|| self.info["limits"][name].as_f64());
            let reached = self.passes.iter().filter(|pass| pass.to > pass.from);
            let reached = reached.map(|pass| of(pass) / (pass.to - pass.from) * 1e3);
            reached.chain(told.filter(|&limit| limit > 0.0)).reduce(f64::max).filter(|_| told.is_some())
        };
        let flops = limit("matrix_flops", |pass| pass.flops);
        let (Some(flops), Some(bytes)) = (flops, limit("read_bandwidth", |pass| pass.bytes)) else { return line };
        let peaks = Peaks { matrix: flops, attention: flops, bandwidth: bytes };
        let mut of_phase =
            self.passes.iter().filter(|pass| tokens(pass) * 2.0 > pass.prefill_tokens + pass.decode_tokens);
        if sum > 0.0 && of_phase.clone().next().is_none() {
            return line + "   only in steps that carry more of the other phase";
        }
        let (mut took, mut work) = (0.0, PassWork::default());
        for (pass, own) in of_phase.clone().filter_map(|pass| Some((pass, pass.own_seconds(&peaks)?))) {
            took += own;
            work.add(&pass.work());
        }
        if took == 0.0 && of_phase.next().is_some() {
            let _ = write!(line, " {NOT_KNOWN}");
            return line;
        }
        let shares = LimitShares::within(&work, took, &peaks);
        let LimitShares { compute, memory } = shares;
        let of_limit = shares.of_limit();
        let _ = write!(
            line,
            " {} {} of arithmetic, {} of bandwidth",
            bar(of_limit, mark, colour),
            percent(compute),
            percent(memory)
        );
        line
    }

    /// Tokens that a decoding answer had of a step, where any were drafted.
    fn speculation(&self) -> Option<String> {
        let sum = |of: fn(&Pass) -> f64| self.passes.iter().map(of).sum::<f64>();
        let (tokens, steps) = (sum(|pass| pass.decode_tokens), sum(|pass| pass.decoding));
        let drafts = sum(|pass| pass.drafts);
        let (each, accepted) = (tokens / steps.max(1.0), (tokens - steps).max(0.0) / drafts.max(1.0));
        let line = format!("{:<9} {each:>6.1} tokens per decode step, {} accepted", "drafts", percent(accepted));
        (drafts > 0.0).then_some(line)
    }

    /// Share of the engine's time that the machine gave to others.
    fn stolen(&self) -> f64 {
        let worked = self.passes.iter().map(|pass| pass.to - pass.from + pass.stolen_before).sum::<f64>();
        let stolen = self.passes.iter().map(|pass| pass.stolen + pass.stolen_before).sum::<f64>();
        if worked > 0.0 { (stolen / worked).min(1.0) } else { 0.0 }
    }

    /// Seconds that the kept steps cover.
    fn span(&self) -> f64 {
        let first = self.passes.front().map_or(self.now, |pass| pass.from);
        (self.now - first).min(MS) / 1e3
    }

    fn blocks(&self) -> String {
        let count = |name: &str| self.stats[name].as_u64().unwrap_or_default();
        let (used, total) = (count("used_blocks"), count("total_blocks").max(1));
        let share = used as f64 / total as f64;
        let full = match self.stats["kv_seconds_to_full"].as_f64() {
            Some(seconds) if share > 0.5 => format!(" · full in {}", duration(seconds)),
            _ => {
                let saved = self.stats["cache_saved_of_optimum"].as_f64();
                saved.map_or(String::new(), |saved| format!(" · cache saved {} of the best", percent(saved).trim()))
            }
        };
        let blocks = format!("{used} of {total} blocks");
        format!("{:<9} {} {} {blocks}{full}", "KV", bar(share, Mark::Nothing, false), percent(share))
    }

    fn latencies(&self) -> String {
        let time = |name: &str| self.stats[name].as_f64().map_or_else(|| "-".to_string(), |ms| duration(ms / 1e3));
        let oldest = match self.stats["oldest_waiting_ms"].as_f64() {
            Some(ms) if ms >= 1.0 => format!(" · oldest waits {}", duration(ms / 1e3)),
            _ => String::new(),
        };
        format!(
            "TTFT p50 {}, p99 {}{oldest} · ITL p50 {}, p99 {}",
            time("ttft_p50_ms"),
            time("ttft_p99_ms"),
            time("itl_p50_ms"),
            time("itl_p99_ms")
        )
    }

    /// One lane for each request that ran or waits in the time shown: the newest first.
    fn lanes(&self, columns: usize) -> Vec<(String, Vec<Mark>)> {
        let begin = self.now - MS;
        let column = |at: f64| (((at - begin) / MS).clamp(0.0, 1.0) * columns as f64) as usize;
        let mut lanes: BTreeMap<&str, (f64, Vec<Mark>)> = BTreeMap::new();
        let waiting: Vec<(String, f64)> = (self.requests["waiting"].as_array().into_iter().flatten())
            .map(|one| (name(&one["r"]), one["since"].as_f64().unwrap_or_default()))
            .collect();
        let mut paint = |who, from: f64, to: f64, mark: Mark| {
            let (first, marks) = lanes.entry(who).or_insert_with(|| (from, vec![Mark::Nothing; columns]));
            *first = first.min(from);
            let (from, to) = (column(from), column(to));
            // A step narrower than a column is still visible.
            let end = to.max(from + 1).min(columns);
            for cell in &mut marks[from.min(end)..end] {
                *cell = mark.max(*cell);
            }
        };
        for pass in self.passes.iter().filter(|pass| pass.to >= begin) {
            for (who, mark) in &pass.rows {
                paint(who, pass.from, pass.to, *mark);
            }
        }
        for (who, since) in &waiting {
            paint(who, *since, self.now, Mark::Waiting);
        }
        for (who, &(from, to)) in self.away.iter().filter(|(_, time)| reaches(**time, begin)) {
            paint(who, from, to.unwrap_or(self.now), Mark::Away);
        }
        let mut lanes: Vec<_> = lanes.into_iter().collect();
        lanes.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
        lanes.into_iter().map(|(who, (_, marks))| (short(who), marks)).collect()
    }
}

/// Whether a span, which may be open, extends beyond a moment.
fn reaches((_, to): (f64, Option<f64>), at: f64) -> bool {
    to.is_none_or(|to| to >= at)
}

/// A request's name as text: an id or a number.
fn name(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), printable)
}

/// The end of a name, which is where names differ.
fn short(name: &str) -> String {
    let count = name.chars().count();
    if count <= NAME {
        name.to_owned()
    } else {
        format!("…{}", name.chars().skip(count - NAME + 1).collect::<String>())
    }
}

fn bar(share: f64, mark: Mark, colour: bool) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    let begin = if colour { mark.colour() } else { "" };
    let end = if begin.is_empty() { "" } else { "\x1b[0m" };
    format!("{begin}{}{end}{}", "█".repeat(full), "░".repeat(BAR - full))
}

fn painted(marks: &[Mark], colour: bool) -> String {
    let mut line = String::new();
    for run in marks.chunk_by(|a, b| a == b) {
        let begin = if colour { run[0].colour() } else { "" };
        line.push_str(begin);
        line.extend(run.iter().map(|mark| mark.glyph()));
        line.push_str(if begin.is_empty() { "" } else { "\x1b[0m" });
    }
    line.trim_end().to_owned()
}

/// At most `width` columns; what colours takes none.
fn cut(line: &str, width: usize) -> String {
    let (mut shown, mut left, mut in_code) = (String::new(), width, false);
    for character in line.chars() {
        let begins = character == '\x1b';
        if !in_code && !begins {
            if left == 0 {
                continue;
            }
            left -= 1;
        }
        in_code = begins || in_code && character != 'm';
        shown.push(character);
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two requests: one read its prompt for a second and now decodes, one waits.
    fn seen() -> Seen {
        let info = json!({"name": "fox\u{1b}[31m", "weights": "int8", "isa": "avx2", "threads": 2,
            "limits": {"matrix_flops": 1e12, "read_bandwidth": 1e10}});
        let mut seen = Seen::new(info);
        let step = |at: u64, took: u64, decode: Value, prefill: Value, flops: f64, bytes: f64| json!({"id": at, "at": at, "took": took, "decode": decode, "prefill": prefill, "flops": flops, "bytes": bytes});
        let row = json!([{"r": "cmpl-0123456789abcdef", "a": 0, "start": 0, "len": 500}]);
        seen.hear("step", step(1000, 1000, json!([]), row.clone(), 5e11, 1e9));
        for at in (2000..11_000).step_by(100) {
            seen.hear("step", step(at, 100, row.clone(), json!([]), 1e9, 8e8));
        }
        seen.hear("requests", json!({"at": 11_000, "running": [], "waiting": [{"r": 77, "since": 9000}]}));
        let stats = json!({"at": 11_000, "running": 1, "waiting": 1, "used_blocks": 30, "total_blocks": 40,
            "kv_seconds_to_full": 5.0, "ttft_p50_ms": 1000.0, "ttft_p99_ms": null, "itl_p50_ms": 100.0, "itl_p99_ms": 120.0,
            "oldest_waiting_ms": 2000.0, "paused": true});
        seen.hear("stats", stats);
        seen
    }

    #[test]
    fn the_screen_says_what_happened() {
        let seen = seen();
        assert!(seen.is_complete());
        let lines = seen.lines(80, 24, false);
        let text = lines.join("\n");
        assert!(lines[0].starts_with("fox\u{fffd}[31m int8 · avx2 · 2 threads  "), "{text}");
        assert!(lines[0].ends_with("PAUSED · running 1 · waiting 1"), "{text}");
        assert!(
            lines[1].contains("50.0 tok/s") && lines[1].ends_with("50 % of arithmetic, 10 % of bandwidth"),
            "{text}"
        );
        assert!(lines[2].contains("9.0 tok/s") && lines[2].ends_with("1 % of arithmetic, 80 % of bandwidth"), "{text}");
        assert!(lines[3].contains("75 % 30 of 40 blocks · full in 5.00 s"), "{text}");
        assert_eq!(lines[4], "TTFT p50 1.00 s, p99 - · oldest waits 2.00 s · ITL p50 100 ms, p99 120 ms");
        // The newest first; a tenth of the time was prefill, the rest decode.
        assert!(lines[6].starts_with("77           ") && lines[6].ends_with("·············"), "{text}");
        let lane: String = lines[7].chars().skip(NAME + 1).collect();
        assert!(lines[7].starts_with("…56789abcdef "), "{text}");
        assert_eq!((lane.matches('█').count(), lane.matches('─').count()), (6, 61), "{text}");
        assert!(lines.last().is_some_and(|line| line.contains("q quits")));
    }

    #[test]
    fn what_the_machine_took_is_said_and_no_share_of_a_limit() {
        let info = json!({"name": "fox", "limits": {"matrix_flops": 1e12, "read_bandwidth": 1e10}});
        let mut seen = Seen::new(info);
        let row = json!([{"r": 7, "a": 0, "start": 3}]);
        // A tenth of a second of work, and three times as long for others.
        let step =
            json!({"at": 100, "took": 400, "stolen": 300, "decode": row, "prefill": [], "flops": 1e9, "bytes": 8e8});
        seen.hear("step", step);
        seen.hear("stats", json!({"at": 500, "running": 1, "waiting": 0}));
        let lines = seen.lines(90, 24, false);
        assert!(lines[0].ends_with("machine busy 75 % · running 1 · waiting 0"), "{lines:?}");
        assert!(lines[2].ends_with("1 % of arithmetic, 80 % of bandwidth"), "{lines:?}");
        // Of a step nearly all of which others are said to have had nothing is known.
        let step = |at| json!({"at": at, "took": 400, "stolen": 399, "decode": row, "prefill": [], "flops": 1e9, "bytes": 8e8});
        seen.hear("step", step(600));
        assert!(seen.lines(90, 24, false)[2].ends_with("1 % of arithmetic, 80 % of bandwidth"));
        let mut unknown = Seen::new(seen.info.clone());
        unknown.hear("step", step(100));
        let lines = unknown.lines(90, 24, false);
        assert!(lines[2].ends_with(" tok/s not known (machine busy)"), "{lines:?}");
    }

    #[test]
    fn with_drafts_it_says_how_many_tokens_come_of_a_step() {
        let mut seen = Seen::new(json!({"name": "fox"}));
        let row = |more: Value| {
            let mut row = json!({"r": 7, "a": 0, "start": 3});
            row.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            row
        };
        let rows = [json!({}), json!({"drafts": 4, "tokens": 5}), json!({"drafts": 4, "tokens": 1})];
        for (at, more) in (100..).step_by(10).zip(rows) {
            seen.hear("step", json!({"at": at, "took": 10, "decode": [row(more)], "prefill": []}));
        }
        seen.hear("stats", json!({"at": 130, "running": 1, "waiting": 0}));
        let lines = seen.lines(80, 24, false);
        // Seven tokens of three steps; of eight drafts four were accepted.
        assert_eq!(lines[3], "drafts       2.3 tokens per decode step, 50 % accepted", "{lines:?}");
        assert!(lines[5].starts_with("TTFT"), "{lines:?}");
    }

    #[test]
    fn a_prompt_that_another_worker_reads_has_its_time_there() {
        let mut seen = seen();
        assert!(!seen.lines(80, 24, false).join("").contains('▒'));
        // Over since before what is shown, five of ten seconds, and still there.
        for (r, from, to) in [("old", 100, json!(900)), ("there", 1000, json!(6000)), ("now", 8500, Value::Null)] {
            seen.hear("away", json!({"r": r, "worker": "10.0.0.2:9000", "from_ms": from, "to_ms": to}));
        }
        let lines = seen.lines(80, 24, false);
        let lane = |name: &str| {
            let of = |line: &&String| line.split_whitespace().next() == Some(name);
            lines.iter().find(of).map(|line| line.matches('▒').count())
        };
        assert_eq!((lane("old"), lane("there"), lane("now")), (None, Some(33), Some(17)), "{lines:#?}");
        assert!(lines.last().is_some_and(|line| line.ends_with("▒ read elsewhere")), "{lines:#?}");
    }

    #[test]
    fn an_idle_server_does_nothing() {
        let mut seen = Seen::new(json!({"name": "fox"}));
        seen.hear("stats", json!({"at": 5.0, "total_blocks": 4, "cache_saved_of_optimum": 0.75}));
        let lines = seen.lines(80, 24, false);
        assert!(lines[1].ends_with(" 0.0 tok/s") && !lines[1].contains('-'), "{lines:?}");
        assert!(lines[3].ends_with("0 of 4 blocks · cache saved 75 % of the best"), "{lines:?}");
        assert_eq!(lines[4], "TTFT p50 -, p99 - · ITL p50 -, p99 -");
    }

    #[test]
    fn any_size_is_kept() {
        let seen = seen();
        for (width, height) in [(0, 0), (1, 1), (10, 3), (20, 8), (300, 50)] {
            for colour in [false, true] {
                let lines = seen.lines(width, height, colour);
                assert!(lines.len() <= height.max(1), "{width} x {height}");
                for line in lines {
                    let plain: String = line
                        .split('\x1b')
                        .enumerate()
                        .map(
                            |(index, part)| {
                                if index == 0 { part } else { part.split_once('m').map_or("", |(_, rest)| rest) }
                            },
                        )
                        .collect();
                    assert!(plain.chars().count() <= width, "{width} x {height}: {line:?}");
                    assert!(colour || !line.contains('\x1b'));
                }
            }
        }
        // More lanes than lines: the rest are counted.
        let mut many = seen;
        for number in 0..30 {
            let row = json!([{"r": number, "a": 0, "start": 3}]);
            many.hear("step", json!({"at": 11_000, "took": 10, "decode": row, "prefill": []}));
        }
        let lines = many.lines(80, 12, false);
        assert_eq!((lines.len(), lines[10].as_str()), (12, "28 more"));
    }
}
