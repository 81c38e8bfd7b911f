//! How values of flags are written, and where they have to lie: sizes, counts, times, rates, names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::{Role, SwapDisk};
use model::GenerationBase;
use serde_json::Value;
use server::ParserOptions;
use text::chat_template::MAX_SOURCE_BYTES;

/// Bytes of a file of settings.
const MAX_SETTINGS_BYTES: u64 = 1 << 20;

pub(crate) fn metric(text: &str) -> Result<bench::load::Metric, String> {
    let found = bench::load::Metric::ALL.into_iter().find(|metric| metric.name() == text);
    found.ok_or_else(|| "not one of ttft, tpot, itl, e2el".to_string())
}

pub(crate) fn goal(text: &str) -> Result<bench::load::Goal, String> {
    let (name, ms) = text.split_once(':').ok_or("not METRIC:MS, such as ttft:500")?;
    let metric = metric(name)?;
    let ms = ms
        .parse()
        .ok()
        .filter(|ms: &f64| *ms > 0.0 && ms.is_finite())
        .ok_or("milliseconds are a number greater than 0")?;
    Ok(bench::load::Goal { metric, ms })
}

/// A rate per second that a client can send at.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let allowed = "not a rate per second from 0.001 to 10000";
    text.parse().ok().filter(|rate| (0.001..=10_000.0).contains(rate)).ok_or_else(|| allowed.to_string())
}

/// Requests of a list.
pub(crate) fn listed(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=1000).contains(n)).ok_or_else(|| "not a whole number from 1 to 1000".to_string())
}

pub(crate) fn percentile(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|p| (0.0..=100.0).contains(p)).ok_or_else(|| "not a number from 0 to 100".to_string())
}

/// `auto`, `off`, or a time: `500ms`, `2s`, `1.5s`, `1m`.
pub(crate) fn target(text: &str) -> Result<engine::DefaultTarget, String> {
    use engine::DefaultTarget;
    match text {
        "auto" => return Ok(DefaultTarget::Auto),
        "off" => return Ok(DefaultTarget::None),
        _ => {}
    }
    milliseconds(text, "500ms, 2s, auto, off").map(DefaultTarget::Fixed)
}

/// A time: `500ms`, `2s`, `1.5s`, `1m`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    milliseconds(text, "500ms, 2s")
}

fn milliseconds(text: &str, examples: &str) -> Result<Duration, String> {
    let wrong = || format!("not a time; examples: {examples}");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let ms = match unit {
        "ms" => 1.0,
        "s" => 1e3,
        "m" | "min" => 6e4,
        _ => return Err(wrong()),
    };
    let ms = number.parse::<f64>().map_err(|_| wrong())? * ms;
    if !(0.1..=3.6e6).contains(&ms) {
        return Err("must be between 0.1ms and 60m".into());
    }
    Ok(Duration::from_secs_f64(ms / 1e3))
}

pub(crate) fn instruction_set(text: &str) -> Result<kernels::Isa, String> {
    let names = kernels::Isa::ALL.map(kernels::Isa::name).join(", ");
    kernels::Isa::from_name(text).ok_or_else(|| format!("not one of {names}"))
}

/// Of numbers that are not tokens, without a suffix.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) => within(number, 1, SEATS),
        Err(_) => Err("not a whole number".into()),
    }
}

/// A number that is not negative.
pub(crate) fn number(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0).ok_or("not a number from 0".into())
}

/// Requests per second of a simulated load.
pub(crate) fn sim_rate(text: &str) -> Result<f64, String> {
    let allowed = "must be from 0.001 to 1000000";
    number(text).ok().filter(|rate| (0.001..=1e6).contains(rate)).ok_or_else(|| allowed.to_string())
}

/// A part of a whole.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    number(text).ok().filter(|share| *share <= 1.0).ok_or_else(|| "not a share from 0 to 1, such as 0.001".to_string())
}

/// An object in JSON.
pub(crate) fn object(text: &str) -> Result<serde_json::Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("no object in JSON: {error}"))
}

/// A file's text, or the text itself.
pub(crate) fn chat_template(text: &str) -> Result<String, String> {
    // No name of a file has these, and no template does without.
    if text.contains("{{") || text.contains("{%") {
        return Ok(text.to_owned());
    }
    let read = files::read_text(Path::new(text), MAX_SOURCE_BYTES as u64)
        .map_err(|error| format!("neither a template ({{{{ ... }}}}) nor a file that can be read: {error}"))?;
    // The prompt of every conversation would be empty.
    if read.trim().is_empty() { Err("the file is empty".to_owned()) } else { Ok(read) }
}

/// `auto`, `vllm`, or the directory of a `generation_config.json`.
pub(crate) fn generation_config(text: &str) -> Result<GenerationBase, String> {
    match text {
        "auto" => Ok(GenerationBase::Model),
        "vllm" => Ok(GenerationBase::Neutral),
        directory => {
            let file = Path::new(directory).join("generation_config.json");
            let text = files::read_text(&file, MAX_SETTINGS_BYTES);
            text.map(GenerationBase::Text).map_err(|error| format!("{}: {error}", file.display()))
        }
    }
}

/// vLLM's keys for speculative decoding.
pub(crate) fn speculation(text: &str) -> Result<engine::Speculation, String> {
    launch::speculation(text)
}

/// The acceptance rate of drafts, and optionally the draft model: `0.8`, `0.8,draft=0.5b`.
pub(crate) fn acceptance(text: &str) -> Result<(f64, Option<String>), String> {
    let wrong = || "not a chance above 0 and below 1, with or without a model: 0.8 or 0.8,draft=0.5b".to_string();
    let (chance, model) = match text.split_once(',') {
        None => (text, None),
        Some((chance, more)) => {
            (chance, Some(more.strip_prefix("draft=").filter(|name| !name.is_empty()).ok_or_else(wrong)?))
        }
    };
    let chance = number(chance).ok().filter(|chance| *chance > 0.0 && *chance < 1.0).ok_or_else(wrong)?;
    Ok((chance, model.map(str::to_string)))
}

/// Prices of an hour: `2.00`, or `a100=2.00,h100=3.50`.
pub(crate) fn price(text: &str) -> Result<plan::PriceList, String> {
    plan::PriceList::parse(text).map_err(|problem| problem.problem)
}

/// A coefficient of variation.
pub(crate) fn spread(text: &str) -> Result<f64, String> {
    number(text).ok().filter(|cv| *cv <= 100.0).ok_or_else(|| "must be from 0 to 100".to_string())
}

/// A pause before the next question.
pub(crate) fn pause(text: &str) -> Result<f64, String> {
    duration(text)
        .and_then(|seconds| if seconds <= 86_400.0 { Ok(seconds) } else { Err("must be at most 1440min".into()) })
}

/// A positive number with a decimal suffix: `312T`.
pub(crate) fn quantity(text: &str) -> Result<f64, String> {
    plan::units::quantity(text).ok_or_else(|| "not a number above 0; examples: 312T, 2T, 80G".to_string())
}

/// Bytes a second between instances. Less would be years for a prompt.
pub(crate) fn link(text: &str) -> Result<f64, String> {
    quantity(text)
        .and_then(|bytes| if bytes >= 1e6 { Ok(bytes) } else { Err("must be at least 1M bytes a second".into()) })
}

/// `2/min`, in requests per second.
pub(crate) fn requests(text: &str) -> Result<f64, String> {
    plan::units::requests_per_second(text).ok_or_else(|| "not requests in a time; examples: 2/min, 0.1/s".to_string())
}

/// A length of time in seconds: `500ms`, `2s`, `1.5s`, `1min`.
pub(crate) fn duration(text: &str) -> Result<f64, String> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("min", 60.0), ("s", 1.0)];
    let parsed = units.iter().find_map(|(unit, seconds)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds));
    parsed.filter(|seconds| (1e-6..1e9).contains(seconds)).ok_or("not a time; examples: 500ms, 2s, 1min".into())
}

/// Tokens of a sequence, or of what becomes one: more than any model reads.
const TOKENS: usize = 1 << 24;

/// Sequences, threads, machines, repetitions: an upper bound.
const SEATS: usize = 1 << 16;

/// A number of tokens: `512`, `8k` (8,000), `8K` (8,192), as vLLM reads them.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, TOKENS)
}

pub(crate) fn count_or_zero(text: &str) -> Result<usize, String> {
    within(whole(text)?, 0, TOKENS)
}

/// Sequences that run together, and other things of which there are few.
pub(crate) fn seats(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, SEATS)
}

/// How calls of tools are written.
pub(crate) fn tool_call_parser(text: &str) -> Result<String, String> {
    one_of(text, ParserOptions::tool_call_parsers())
}

/// How thoughts are written.
pub(crate) fn reasoning_parser(text: &str) -> Result<String, String> {
    one_of(text, ParserOptions::reasoning_parsers())
}

fn one_of(text: &str, names: &[&str]) -> Result<String, String> {
    if text == "none" || names.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("it may be 'none' or one of: {}", names.join(", ")))
}

/// Rows of a forward pass.
pub(crate) fn rows(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, scheduler::Limits::MOST_ROWS)
}

pub(crate) fn rows_or_zero(text: &str) -> Result<usize, String> {
    within(whole(text)?, 0, scheduler::Limits::MOST_ROWS)
}

/// Blocks of a KV cache.
pub(crate) fn blocks(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, scheduler::Limits::MOST_BLOCKS)
}

/// Requests of a load.
pub(crate) fn load(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, sim::workload::MAX_REQUESTS)
}

pub(crate) fn load_or_zero(text: &str) -> Result<usize, String> {
    within(whole(text)?, 0, sim::workload::MAX_REQUESTS)
}

/// Turns of a conversation.
pub(crate) fn turns(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, sim::workload::MAX_TURNS)
}

/// Requests that are sent: a client holds about a kilobyte for each.
pub(crate) fn sent(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, 1_000_000)
}

/// Tokens of many requests together.
pub(crate) fn many(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, 1 << 40)
}

fn whole(text: &str) -> Result<usize, String> {
    let bytes = size(text).map_err(|_| "not a whole number, with or without k, K, m or M behind it".to_string())?;
    usize::try_from(bytes).map_err(|_| "too large".into())
}

/// The number, or where it has to lie.
fn within(number: usize, least: usize, most: usize) -> Result<usize, String> {
    match number {
        _ if number < least => Err(format!("must be at least {least}")),
        _ if number > most => Err(format!("must be at most {most}")),
        _ => Ok(number),
    }
}

/// An adapter's name and directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoraModule {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// `NAME=DIR`, or an object with vLLM's keys.
pub(crate) fn lora_module(text: &str) -> Result<LoraModule, String> {
    let wrong = || "not NAME=DIR, such as sql=/srv/adapters/sql".to_string();
    let (name, path) = if text.trim_start().starts_with('{') {
        let Ok(Value::Object(mut fields)) = serde_json::from_str(text) else {
            return Err("not a JSON object".to_string());
        };
        fields.remove("base_model_name");
        let (name, path) = (fields.remove("name"), fields.remove("path"));
        if let Some(other) = fields.keys().next() {
            return Err(format!("{other:?} is not known; name and path are"));
        }
        match (name, path) {
            (Some(Value::String(name)), Some(Value::String(path))) => (name, path),
            _ => return Err("name and path must be there, as strings".to_string()),
        }
    } else {
        let (name, path) = text.split_once('=').ok_or_else(wrong)?;
        (name.to_string(), path.to_string())
    };
    match name.is_empty() || path.is_empty() {
        true => Err(wrong()),
        false => Ok(LoraModule { name, path: path.into() }),
    }
}

/// How many adapters there may be.
pub(crate) fn adapters(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count <= 1024).ok_or_else(|| "not a number from 0 to 1024".to_string())
}

/// The rank of an adapter.
pub(crate) fn rank(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|rank| (1..=512).contains(rank)).ok_or_else(|| "not a number from 1 to 512".to_string())
}

/// A directory and a size, apart at the last colon.
pub(crate) fn swap_disk(text: &str) -> Result<SwapDisk, String> {
    let (directory, bytes) = text.rsplit_once(':').ok_or("not DIR:SIZE, such as /var/tmp:20GiB")?;
    let bytes = size(bytes)?;
    if directory.is_empty() || bytes == 0 {
        return Err("not DIR:SIZE, such as /var/tmp:20GiB".to_string());
    }
    Ok(SwapDisk { directory: directory.into(), bytes })
}

/// A size in bytes: `4GiB`, `4G` (2^30 each), `4GB`, `4g` (10^9 each), `1.5GiB`, `1048576`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || "not a size; examples: 4GiB, 500MB, 1073741824".to_string();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let factor: u64 = match suffix {
        "" | "B" => 1,
        "k" | "kB" | "KB" => 1000,
        "m" | "MB" => 1000 * 1000,
        "g" | "GB" => 1000 * 1000 * 1000,
        "t" | "TB" => 1000 * 1000 * 1000 * 1000,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        _ => return Err(wrong()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| "too large".to_string());
    }
    let value = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
    if factor == 1 || value.fract() > 1e-6 * value || value >= u64::MAX as f64 {
        return Err(wrong());
    }
    Ok(value as u64)
}

/// Whose requests a worker takes.
pub(crate) fn role(text: &str) -> Result<Role, String> {
    let found = Role::ALL.into_iter().find(|role| role.name() == text);
    found.ok_or_else(|| "it is prefill, decode or both".to_owned())
}

/// `HOST:PORT`, whatever the host's name leads to.
pub(crate) fn host_and_port(text: &str) -> Result<String, String> {
    let is_one = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && host.chars().all(|c| c.is_ascii_graphic() && c != '/')
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if is_one { Ok(text.to_owned()) } else { Err("it is HOST:PORT, as in 10.0.0.7:9000".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_written_unit() {
        let table = [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("4GiB", Some(4 << 30)),
            ("4G", Some(4 << 30)),
            ("4GB", Some(4_000_000_000)),
            ("4g", Some(4_000_000_000)),
            ("1.5GiB", Some(3 << 29)),
            ("25.6k", Some(25_600)),
            ("8K", Some(8192)),
            ("16777216T", None),
            ("1.5", None),
            ("", None),
            ("-1", None),
            ("4 GB", None),
            ("nanG", None),
            ("GiB", None),
        ];
        for (text, want) in table {
            assert_eq!(size(text).ok(), want, "{text:?}");
        }
    }

    #[test]
    fn an_acceptance_is_a_chance_and_perhaps_a_model() {
        let table = [
            ("0.8", Some((0.8, None))),
            ("1e-3", Some((0.001, None))),
            ("0.8,draft=0.5b", Some((0.8, Some("0.5b")))),
            ("0.8,draft=dir/with,comma", Some((0.8, Some("dir/with,comma")))),
            ("0", None),
            ("1", None),
            ("-0.5", None),
            ("nan", None),
            ("80%", None),
            ("", None),
            ("0.8,", None),
            ("0.8,draft=", None),
            ("0.8,0.5b", None),
            ("draft=0.5b", None),
        ];
        for (text, want) in table {
            let want = want.map(|(chance, model): (f64, Option<&str>)| (chance, model.map(str::to_string)));
            assert_eq!(acceptance(text).ok(), want, "{text:?}");
        }
    }

    #[test]
    fn a_target_is_a_time_or_a_word() {
        use engine::DefaultTarget::{Auto, Fixed, None as Off};
        let ms = |ms| Some(Fixed(Duration::from_millis(ms)));
        let table = [
            ("500ms", ms(500)),
            ("2s", ms(2000)),
            ("1.5s", ms(1500)),
            ("2m", ms(120_000)),
            ("60m", ms(3_600_000)),
            ("auto", Some(Auto)),
            ("off", Some(Off)),
            ("", None),
            ("0", None),
            ("0ms", None),
            ("0.05ms", None),
            ("500", None),
            ("-5ms", None),
            ("2h", None),
            ("1..5s", None),
            ("nans", None),
            ("infs", None),
            ("61m", None),
            ("2 s", None),
        ];
        for (text, want) in table {
            assert_eq!(target(text).ok(), want, "{text:?}");
        }
    }
}
