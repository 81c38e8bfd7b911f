//! `twostroke verify`: answers computed again from their receipts.
//!
//! ```text
//! files, standard input ──> receipts, by definition ──one model each──> verdicts, in the order of the receipts
//! ```

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use engine::{EngineOptions, Verifier, VerifyError};
use kernels::WeightClass;
use launch::{Chosen, ModelSettings, Settings};
use receipt::{Definition, Discrepancy, Receipt, Verdict};
use serde_json::{Value, json};

use crate::console::{Progress, put_line};
use crate::failure::Failure;
use crate::flags::VerifyFlags;
use crate::models;

/// No file of receipts is larger: a receipt has some 30 bytes for each token.
const MAX_BYTES: u64 = 256 << 20;

/// A receipt and its location: `answers.jsonl:3`.
struct Found {
    place: String,
    receipt: Receipt,
}

pub(crate) fn verify(flags: &VerifyFlags) -> Result<(), Failure> {
    let stdin = [PathBuf::from("-")];
    let paths = if flags.receipts.is_empty() { &stdin[..] } else { &flags.receipts };
    let mut receipts = Vec::new();
    for path in paths {
        read(path, &mut receipts)?;
    }
    let checkpoint = models::open(flags.model.as_deref())?;
    let options = options(flags);
    let mut verdicts: Vec<Option<Verdict>> = vec![None; receipts.len()];
    while let Some(next) = verdicts.iter().position(Option::is_none) {
        let definition = &receipts[next].receipt.definition;
        let same = |found: &Found| is_same(&found.receipt.definition, definition);
        let group: Vec<usize> = (next..receipts.len()).filter(|&at| same(&receipts[at])).collect();
        verify_group(&receipts, &group, &checkpoint, &options, &mut verdicts)?;
    }
    let verdicts: Vec<Verdict> = verdicts.into_iter().flatten().collect();
    for (found, verdict) in receipts.iter().zip(&verdicts) {
        put_line(&if flags.json { as_json(found, verdict).to_string() } else { as_text(found, verdict) })?;
    }
    let equal = verdicts.iter().filter(|verdict| verdict.is_equal()).count();
    if !flags.json && verdicts.len() > 1 {
        put_line(&format!("{equal} of {} equal", verdicts.len()))?;
    }
    if equal == verdicts.len() { Ok(()) } else { Err(Failure::Said(1)) }
}

/// Whether one model computes both: versions of the program are not part of that.
fn is_same(a: &Definition, b: &Definition) -> bool {
    let Definition { arithmetic, weights, as_stored, kv, .. } = a;
    (arithmetic, weights, as_stored, kv) == (&b.arithmetic, &b.weights, &b.as_stored, &b.kv)
}

fn options(flags: &VerifyFlags) -> EngineOptions {
    // Nothing kept on disk is believed: an image of the weights may be of weights as they were.
    let model = ModelSettings { threads: flags.threads, cache: None, ..ModelSettings::default() };
    let max_num_batched_tokens = Some(flags.max_num_batched_tokens);
    let settings = Settings { isa: flags.isa, max_num_seqs: 1, max_num_batched_tokens, ..models::settings_of(model) };
    // Classes are the receipts'.
    settings.options(Chosen { class: WeightClass::Bf16, as_stored: false, why: None })
}

fn verify_group(
    receipts: &[Found],
    group: &[usize],
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    verdicts: &mut [Option<Verdict>],
) -> Result<(), Failure> {
    let tokens = |&at: &usize| receipts[at].receipt.asked.prompt.len() + receipts[at].receipt.tokens.len();
    let longest = group.iter().map(tokens).max().unwrap_or_default();
    let Found { place, receipt } = &receipts[group[0]];
    let failed = |error| match error {
        VerifyError::Start(error) => models::start_failure(checkpoint, error),
        VerifyError::Definition(_) => Failure::usage(format!("{place}: {error}")),
        VerifyError::Origin(_) => Failure::failed(error),
    };
    let bar = Progress::new("loading");
    let mut progress = |p: model::Progress| bar.at(p.bytes_done, p.bytes_total);
    let mut verifier =
        Verifier::load(&receipt.definition, longest, checkpoint, options, &mut progress).map_err(failed)?;
    drop(bar);
    let bar = Progress::counting("verifying", "receipts");
    let mut unexplained = Vec::new();
    for (done, &at) in group.iter().enumerate() {
        let verdict = verifier.verify(&receipts[at].receipt).map_err(failed)?;
        // Where the weights are others, that is the explanation.
        let has_same_weights = !verdict.discrepancies.iter().any(|one| matches!(one, Discrepancy::Weights { .. }));
        if has_same_weights && verdict.has_other_logits() {
            unexplained.push(at);
        }
        verdicts[at] = Some(verdict);
        bar.at(done as u64 + 1, group.len() as u64);
    }
    // Two models are not held at once.
    drop(verifier);
    for at in unexplained {
        let Some(verdict) = &mut verdicts[at] else { continue };
        let cause = Verifier::explain(&receipts[at].receipt, verdict, checkpoint, options).map_err(failed)?;
        verdict.cause = cause.or(verdict.cause.take());
    }
    Ok(())
}

/// The receipts of a file, in their order.
fn read(path: &Path, receipts: &mut Vec<Found>) -> Result<(), Failure> {
    let name = if path == Path::new("-") { "standard input".to_string() } else { path.display().to_string() };
    let wrong = |problem: &dyn std::fmt::Display| Failure::usage(format!("{name}: {problem}"));
    let bytes = match path == Path::new("-") {
        true => {
            let mut bytes = Vec::new();
            io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| wrong(&error))?;
            if bytes.len() as u64 > MAX_BYTES {
                return Err(wrong(&format!("more than {MAX_BYTES} bytes")));
            }
            bytes
        }
        false => files::read(path, MAX_BYTES).map_err(|error| wrong(&error))?,
    };
    let text = String::from_utf8(bytes).map_err(|_| wrong(&"not UTF-8 text"))?;
    let before = receipts.len();
    for value in values(&text) {
        let value = value.map_err(|error| wrong(&format!("no JSON: {error}")))?;
        for value in receipts_in(value) {
            let place = format!("{name}:{}", receipts.len() - before + 1);
            let receipt = Receipt::of(value).map_err(|error| Failure::usage(format!("{place}: {error}")))?;
            receipts.push(Found { place, receipt });
        }
    }
    if receipts.len() == before { Err(wrong(&"there is no receipt in it")) } else { Ok(()) }
}

/// The JSON values of a text, one after the other; of a streamed answer, those of its events.
fn values(text: &str) -> Vec<serde_json::Result<Value>> {
    if text.trim_start().starts_with("data:") {
        let events = text.lines().filter_map(|line| line.trim().strip_prefix("data:")).map(str::trim);
        return events.filter(|event| *event != "[DONE]").map(serde_json::from_str).collect();
    }
    serde_json::Deserializer::from_str(text).into_iter().collect()
}

/// A receipt itself, or those of an answer's choices.
fn receipts_in(mut value: Value) -> Vec<Value> {
    match value.get_mut("choices") {
        Some(Value::Array(choices)) => {
            choices.iter_mut().filter_map(|choice| choice.as_object_mut()?.shift_remove("receipt")).collect()
        }
        _ => vec![value],
    }
}

fn as_text(found: &Found, verdict: &Verdict) -> String {
    let Found { place, receipt } = found;
    let tokens = receipt.tokens.len();
    match (verdict.first().or(verdict.discrepancies.first()), &verdict.cause) {
        (None, _) => format!("{place}: equal, {tokens} tokens"),
        (Some(first), Some(cause)) => format!("{place}: not equal: {first}; what differs: {cause}"),
        (Some(first), None) => format!("{place}: not equal: {first}"),
    }
}

fn as_json(found: &Found, verdict: &Verdict) -> Value {
    let Found { place, receipt } = found;
    json!({
        "receipt": place,
        "model": receipt.model,
        "tokens": receipt.tokens.len(),
        "equal": verdict.is_equal(),
        "first": verdict.first().map(discrepancy),
        "cause": verdict.cause.as_ref().map(|cause| cause.name()),
        "what": verdict.cause.as_ref().map(ToString::to_string),
        "discrepancies": verdict.discrepancies.iter().map(discrepancy).collect::<Vec<_>>(),
    })
}

fn discrepancy(one: &Discrepancy) -> Value {
    let text = |value: &dyn std::fmt::Display| value.to_string();
    let (kind, claimed, found) = match one {
        Discrepancy::Weights { claimed, found } => ("weights", json!(claimed), json!(found)),
        Discrepancy::Head { claimed, found } => ("head", json!(claimed), json!(found)),
        Discrepancy::Logits { claimed, found, .. } => ("logits", json!(claimed), json!(found)),
        Discrepancy::Token { claimed, found, .. } => ("token", json!(claimed), json!(found)),
        Discrepancy::End { claimed, found, .. } => {
            ("end", text(claimed).into(), found.map_or(Value::Null, |found| text(&found).into()))
        }
        Discrepancy::Unfit { problem } => ("unfit", Value::Null, json!(problem)),
        Discrepancy::Seal { claimed, found } => ("seal", json!(claimed), json!(found)),
    };
    let spot = one.spot();
    let (token, position) = (spot.map(|spot| spot.token), spot.map(|spot| spot.position));
    json!({"kind": kind, "token": token, "position": position, "claimed": claimed, "found": found})
}
