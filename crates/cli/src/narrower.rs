//! The lines at the start of `run` and `serve` that say which weights were taken, and what int8 would bring.
//!
//! ```text
//! limits (measured, or kept) ── plan ──> factors of both phases ┐
//! shapes ──> memory, to the byte                                ├── Facts ──> two lines on standard error
//! what `quality` has kept of this checkpoint ──> KL             ┘
//! ```
//! Nothing is measured for them: what is not known, or was measured badly, is left out. Only where no class was chosen
//! and 16 bits are taken.

use checkpoint::Checkpoint;
use checkpoint::weights::Weights;
use engine::DeviceChoice;
use kernels::WeightClass;
use kernels::limits::Limits;
use model::ModelConfig;
use plan::{Ask, Deployment, Gain, NamedModel};
use roofline::Machine;

use crate::flags::{ModelFlags, SumOrder};
use crate::kept::{self, Loss, On, Precision};
use crate::models::{self, Chosen};

/// What the lines say.
#[derive(Clone, Debug, Default)]
struct Facts {
    /// The type that the checkpoint's weights are stored in, as files write it.
    stored: Option<&'static str>,
    /// On this machine; `None` where its limits are not known.
    gain: Option<Gain>,
    /// Bytes of weights in memory, of those that bf16 takes.
    memory: Option<f64>,
    /// `None` where it was not measured.
    loss: Option<Loss>,
    /// What would measure it.
    command: String,
}

/// The lines; none where nothing is to be chosen. `model`: as the user named it. `limits`: those of this machine, if
/// they were measured in this process.
pub(crate) fn start_lines(
    flags: &ModelFlags,
    model: Option<&str>,
    checkpoint: &Checkpoint,
    chosen: Chosen,
    limits: Option<Limits>,
) -> Vec<String> {
    if flags.weights.class().is_some() || chosen.class != WeightClass::Bf16 {
        return Vec::new();
    }
    // The engine will say what is wrong with such a checkpoint.
    let (Ok(config), Ok(weights)) = (ModelConfig::load(checkpoint), Weights::open(checkpoint)) else {
        return Vec::new();
    };
    if config.encoder.is_some() {
        return Vec::new(); // it decodes nothing, and `quality` compares what is written
    }
    let (kv_dtype, arithmetic) = (flags.kv_dtype.dtype(), On::of(flags).arithmetic);
    let directory = models::packed_cache(flags);
    let limits = directory.as_deref().and_then(|directory| kept::limits(directory, On::of(flags))).or(limits);
    let model_on = |limits: &Limits, weights| {
        let machine = Machine::here(limits, weights, None);
        Deployment::new(&NamedModel::new(checkpoint.name(), config.shape()), weights, kv_dtype, machine)
    };
    let gain = |limits: Limits| {
        let (wide, narrow) = (model_on(&limits, WeightClass::Bf16), model_on(&limits, WeightClass::Int8));
        wide.gain(&narrow, &Ask::usual(config.context_limit))
    };
    let bytes = |class| model::bytes_in_memory(&config, class).map(|bytes| bytes as f64);
    let precision = Precision { weights: WeightClass::Int8, kv_dtype, arithmetic };
    let facts = Facts {
        stored: weights.stored_type(),
        // They are the CPU's.
        gain: limits.filter(|limits| flags.device == DeviceChoice::Cpu && is_plausible(limits)).map(gain),
        memory: bytes(WeightClass::Int8).zip(bytes(WeightClass::Bf16)).map(|(narrow, wide)| narrow / wide),
        loss: directory.and_then(|directory| precision.kept(&directory, checkpoint)),
        command: command(flags, model),
    };
    lines(&facts).to_vec()
}

/// Whether these may be limits: no machine multiplies integers more slowly than 16-bit numbers, but one whose other
/// processes took the time meanwhile seems to.
fn is_plausible(limits: &Limits) -> bool {
    limits.int8_ops >= limits.bf16_flops
}

/// The facts in words.
fn lines(facts: &Facts) -> [String; 2] {
    let stored = match facts.stored {
        None | Some("BF16") => "weights: bf16, as the checkpoint is stored".to_string(),
        Some(other) => format!("weights: bf16; the checkpoint is stored in {}", other.to_lowercase()),
    };
    let mut brings = Vec::new();
    if let Some(Gain { prefill, decode }) = facts.gain {
        brings.extend([format!("{prefill:.1}x prefill"), format!("{decode:.1}x decode")]);
    }
    brings.extend(facts.memory.map(|share| format!("{share:.2} of the memory")));
    let costs = match &facts.loss {
        Some(Loss { mean_kl, tokens, text, .. }) => {
            format!("KL {} (quality, {tokens} tokens of {text})", two_digits(*mean_kl))
        }
        None => format!("quality: {} tells", facts.command),
    };
    let brings = if brings.is_empty() { costs } else { format!("{}; {costs}", brings.join(", ")) };
    [stored, format!("int8 would bring: {brings}")]
}

/// What would measure the loss with the same cache and arithmetic.
fn command(flags: &ModelFlags, model: Option<&str>) -> String {
    let mut command = "twostroke quality".to_string();
    if let Some(model) = model {
        command.push_str(&format!(" -m {}", quoted(model)));
    }
    command.push_str(" --weights int8");
    if flags.kv_dtype.dtype() != kernels::KvDtype::Bf16 {
        command.push_str(&format!(" --kv-dtype {}", flags.kv_dtype.dtype().name()));
    }
    if flags.arithmetic != SumOrder::Auto
        && let Some(arithmetic) = flags.arithmetic.arithmetic()
    {
        command.push_str(&format!(" --arithmetic {}", arithmetic.name()));
    }
    command
}

/// An argument as a shell takes it.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@=+-".contains(c);
    match argument.chars().all(is_plain) {
        true => argument.to_string(),
        false => format!("'{}'", argument.replace('\'', "'\\''").replace(char::is_control, "?")),
    }
}

/// A small number with two digits that count: `0.0015`.
fn two_digits(number: f64) -> String {
    let zeros = if number > 0.0 { -number.log10().floor() } else { 0.0 };
    format!("{number:.*}", (zeros.clamp(0.0, 12.0) + 1.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_said_and_nothing_else() {
        let loss = Loss { mean_kl: 0.00406, tokens: 1275, window: 512, skip: 256, text: kept::CALIBRATION.to_string() };
        let gain = Gain { prefill: 1.66, decode: 1.94 };
        let all = Facts {
            stored: Some("BF16"),
            gain: Some(gain),
            memory: Some(0.5037),
            loss: Some(loss),
            command: "twostroke quality --weights int8".to_string(),
        };
        let table = [
            (
                all.clone(),
                "weights: bf16, as the checkpoint is stored",
                "1.7x prefill, 1.9x decode, 0.50 of the memory; KL 0.0041 (quality, 1275 tokens of the calibration text)",
            ),
            (
                Facts { loss: None, stored: Some("F16"), ..all.clone() },
                "weights: bf16; the checkpoint is stored in f16",
                "1.7x prefill, 1.9x decode, 0.50 of the memory; quality: twostroke quality --weights int8 tells",
            ),
            (
                Facts { gain: None, stored: Some("F32"), ..all.clone() },
                "weights: bf16; the checkpoint is stored in f32",
                "0.50 of the memory; KL 0.0041 (quality, 1275 tokens of the calibration text)",
            ),
            (
                Facts { gain: None, memory: None, loss: None, stored: None, ..all.clone() },
                "weights: bf16, as the checkpoint is stored",
                "quality: twostroke quality --weights int8 tells",
            ),
        ];
        for (facts, stored, brings) in table {
            assert_eq!(lines(&facts), [stored.to_string(), format!("int8 would bring: {brings}")], "{facts:?}");
        }
    }

    #[test]
    fn small_numbers_keep_two_digits() {
        let table =
            [(0.0015, "0.0015"), (0.000136, "0.00014"), (0.346, "0.35"), (1.4, "1.4"), (0.0, "0.0"), (12.3, "12.3")];
        for (number, wanted) in table {
            assert_eq!(two_digits(number), wanted);
        }
    }

    #[test]
    fn a_shell_takes_the_name_of_any_model() {
        let table = [
            ("org/name:Q4_K_M", "org/name:Q4_K_M"),
            ("my model", "'my model'"),
            ("it's", "'it'\\''s'"),
            ("a\nb", "'a?b'"),
        ];
        for (name, wanted) in table {
            assert_eq!(quoted(name), wanted);
        }
    }
}
