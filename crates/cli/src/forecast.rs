//! What a model would do on this machine before it is loaded, or even here: whether it fits, and the speed of both phases.
//!
//! ```text
//! a model of the cache --its headers------> shape, class --+
//! a download ----------name, quantization--> size, class --+--plan, limits of earlier starts--> tokens a second
//! ```
//! Nothing is measured for it: where no earlier start has left limits, there are no speeds.

use hub::{HubEnv, HubError, Incoming, ShortName};
use kernels::limits::Limits;
use kernels::memory_limits::headroom;
use kernels::{KvDtype, WeightClass};
use launch::OpenError;
use model::ModelConfig;
use plan::units::{bytes, rate};
use plan::{Ask, Deployment, NamedModel};
use roofline::Machine;

use crate::{environment, kept};

/// Of the memory that weights take, a tenth more is needed for the cache and for steps.
const BESIDE: f64 = 1.1;
/// Bits of a weight in int8, with its scale.
const INT8_BITS: f64 = 8.25;

/// Tokens a second of one request alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Speeds {
    pub(crate) prefill: f64,
    pub(crate) decode: f64,
}

/// The limits of this machine as earlier starts have measured them.
pub(crate) fn limits() -> Option<Limits> {
    let on = kept::On::cpu(None, None);
    kept::limits(&environment::variables().packed_cache?, on)
}

fn speeds(model: &NamedModel, weights: WeightClass, limits: &Limits) -> Speeds {
    let ask = Ask::usual(model.shape.context_limit);
    let machine = Machine::here(limits, weights, None);
    let times = Deployment::new(model, weights, KvDtype::Bf16, machine).times(&ask);
    Speeds { prefill: ask.prompt as f64 / times.ttft_alone, decode: 1.0 / times.tpot }
}

/// Of a model on this disk, by its headers: its speeds, where it writes text and the limits are known, or why it does not run.
pub(crate) fn of_cached(name: &str, limits: Option<&Limits>) -> Result<Option<Speeds>, String> {
    let hub = HubEnv { offline: true, ..environment::variables().hub };
    let checkpoint = launch::open(Some(name), &hub, &mut |_| true).map_err(|error| match error {
        OpenError::Hub(HubError::Offline { .. }) => format!("incomplete: twostroke pull {name} gets the rest"),
        error => error.to_string(),
    })?;
    let config = ModelConfig::load(&checkpoint).map_err(|error| error.to_string())?;
    let class = launch::ModelSettings::default().choose(&checkpoint).map_err(|error| error.to_string())?.class;
    let needs = (config.weight_bytes_in_memory(class, None) as f64 * BESIDE) as u64;
    let room = headroom().map_or(u64::MAX, |room| room.bytes);
    if needs > room {
        return Err(format!("needs {}, {} are free", bytes(needs), bytes(room)));
    }
    let model = NamedModel::new(name, config.shape());
    Ok(limits.filter(|_| config.encoder.is_none()).map(|limits| speeds(&model, class, limits)))
}

/// What is foretold of a download.
pub(crate) struct Forecast {
    /// Bytes that the model takes in memory.
    pub(crate) needs: u64,
    /// Bytes that are free for it.
    pub(crate) room: u64,
    pub(crate) speeds: Option<Speeds>,
}

/// By the files' size and the name: the shape is not here yet. `None` where the hub says no size.
pub(crate) fn of_download(incoming: &Incoming, limits: Option<&Limits>) -> Option<Forecast> {
    let whole = incoming.whole? as f64;
    let room = headroom()?.bytes;
    let stored_bits = bits(incoming);
    let (class, bits) = match stored_bits {
        ..6.0 => (WeightClass::Int4, stored_bits),
        6.0..12.0 => (WeightClass::Int8, stored_bits),
        // What does not fit as it is stored is taken in int8.
        _ if whole * BESIDE > room as f64 => (WeightClass::Int8, INT8_BITS),
        _ => (WeightClass::Bf16, stored_bits),
    };
    let size = size_in(&incoming.id).unwrap_or_else(|| format!("{:.0}m", whole * 8.0 / stored_bits / 1e6));
    let speeds = NamedModel::find(&size).zip(limits).map(|(model, limits)| speeds(&model, class, limits));
    Some(Forecast { needs: (whole * bits / stored_bits * BESIDE) as u64, room, speeds })
}

/// Bits of a weight, by the name of the file.
fn bits(incoming: &Incoming) -> f64 {
    let file = incoming.files.iter().find(|file| file.ends_with(".gguf"));
    let quant = file.and_then(|file| file.trim_end_matches(".gguf").rsplit(['-', '.', '/']).next()).unwrap_or("BF16");
    let digit = quant.trim_start_matches("MXF").chars().find_map(|c| c.to_digit(10)).unwrap_or(8);
    match quant.to_ascii_uppercase().as_str() {
        "BF16" | "F16" => 16.0,
        "F32" => 32.0,
        // With scales.
        _ => f64::from(digit) + 0.5,
    }
}

/// `1.7B`, `30B-A3B` of a repository's name.
fn size_in(id: &str) -> Option<String> {
    let parts: Vec<&str> = id.rsplit('/').next()?.split(['-', '_']).collect();
    let is_size = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_digit()) && part.ends_with(['b', 'B', 'm', 'M']) && part.len() > 1
    };
    let at = parts.iter().position(|part| is_size(part))?;
    let active = parts.get(at + 1).filter(|part| part.starts_with(['a', 'A']) && is_size(&part[1..]));
    Some(active.map_or_else(|| parts[at].to_owned(), |active| format!("{}-{active}", parts[at]).to_lowercase()))
}

/// The largest model of the same family that is smaller and fits, of those with short names.
fn smaller(id: &str, room: u64) -> Option<ShortName> {
    let own = hub::short_names().find(|row| row.repository == id)?;
    let family = |row: &ShortName| row.names.split([':', ' ']).next();
    let fits = |row: &ShortName| row.gigabytes * 1e9 * BESIDE <= room as f64 && row.gigabytes < own.gigabytes;
    hub::short_names()
        .filter(|row| family(row) == family(&own) && fits(row))
        .max_by(|a, b| a.gigabytes.total_cmp(&b.gigabytes))
}

impl Forecast {
    /// `it needs about 2.2 GiB of 12 GiB of free memory; predicted here: prefill 1.2k tok/s, decode 41 tok/s`.
    pub(crate) fn words(&self) -> String {
        let unknown = || "its speed here is not known before twostroke doctor has measured this machine".to_owned();
        let speeds = self.speeds.map_or_else(unknown, |Speeds { prefill, decode }| {
            format!("predicted here: prefill {}, decode {}", rate(prefill), rate(decode))
        });
        format!("it needs about {} of {} of free memory; {speeds}", bytes(self.needs), bytes(self.room))
    }

    /// Why it is not downloaded.
    pub(crate) fn refusal(&self, id: &str) -> String {
        let other = smaller(id, self.room).map(|row| {
            let name = row.names.split(' ').next().unwrap_or_default();
            format!("the largest smaller one of its family that fits is {name} ({:.2} GB)", row.gigabytes)
        });
        let other = other.unwrap_or_else(|| "twostroke pull lists smaller ones".to_owned());
        let [needs, room] = [self.needs, self.room].map(bytes);
        format!("{id} does not fit: it needs about {needs} of memory, and {room} are free; {other}; --force goes on")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_precisions_are_read_off_names() {
        let incoming = |id: &str, file: &str| Incoming {
            id: id.to_owned(),
            files: vec![file.to_owned()],
            bytes: None,
            whole: Some(1 << 30),
            licence: None,
            free: None,
        };
        for (id, file, size, wanted) in [
            ("Qwen/Qwen3-1.7B-GGUF", "Qwen3-1.7B-Q8_0.gguf", Some("1.7B"), 8.5),
            ("Qwen/Qwen3-30B-A3B-GGUF", "a-Q4_K_M.gguf", Some("30b-a3b"), 4.5),
            ("bartowski/SmolLM2-135M-Instruct-GGUF", "a-IQ2_XS.gguf", Some("135M"), 2.5),
            ("ggml-org/gemma-3-4b-it-GGUF", "a-F16.gguf", Some("4b"), 16.0),
            ("a/gpt-oss-20b-GGUF", "a-MXFP4.gguf", Some("20b"), 4.5),
            ("org/tiny", "model.safetensors", None, 16.0),
        ] {
            let incoming = incoming(id, file);
            assert_eq!((size_in(id).as_deref(), bits(&incoming)), (size, wanted), "{id} {file}");
            assert!(size.is_none_or(|size| NamedModel::find(size).is_some()), "{id}");
        }
    }

    #[test]
    fn speeds_are_those_of_the_plan() {
        let of_rate = Limits::of_rate(1e12, &[1e12]);
        let limits = Limits { bf16_flops: 1e12, int8_ops: 2e12, read_bandwidth: 20e9, ..of_rate };
        let model = NamedModel::find("1b").expect("a size");
        let of = |weights| speeds(&model, weights, &limits);
        let [bf16, int8, int4] = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4].map(of);
        // Decode reads all weights for each token: no faster than 20 GB/s over 2 GB, and narrower ones are faster.
        assert!(bf16.decode < 10.0 && bf16.decode > 5.0 && int8.decode > bf16.decode, "{bf16:?} {int8:?}");
        assert!(int4.decode > int8.decode && bf16.prefill > 10.0 * bf16.decode, "{bf16:?} {int4:?}");
    }

    #[test]
    fn what_does_not_fit_has_a_smaller_sibling() {
        let name = |id, room| smaller(id, room).map(|row| row.names);
        assert_eq!(name("Qwen/Qwen3-30B-A3B-GGUF", 4 << 30), Some("qwen3:4b"));
        assert_eq!(name("Qwen/Qwen3-8B-GGUF", 1 << 30), Some("qwen3:0.6b"));
        assert_eq!(name("Qwen/Qwen3-0.6B-GGUF", 1 << 30), None);
        assert_eq!(name("org/tiny", 1 << 40), None);
    }
}
