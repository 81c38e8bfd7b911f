//! `twostroke verify`: answers computed again from their receipts.
//!
//! ```text
//! files, standard input ──> receipts, by definition ──one model each──> verdicts, in the order of the receipts
//!                           and what else an answer says ──said.rs──> the same as its tokens?
//! ```

mod said;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use dialect::Dialect;
use engine::{EngineOptions, ModelInfo, Verifier, VerifyError};
use kernels::WeightClass;
use launch::{Chosen, ModelSettings, Settings};
use receipt::{Cause, Definition, Discrepancy, Receipt, Verdict};
use serde_json::{Value, json};

use crate::console::{Progress, put_line};
use crate::failure::Failure;
use crate::flags::VerifyFlags;
use crate::models;
use said::{Compared, Said};

/// No file of receipts is larger: a receipt has some 30 bytes for each token.
const MAX_BYTES: u64 = 256 << 20;

/// A receipt and its location: `answers.jsonl:3`.
struct Found {
    place: String,
    receipt: Receipt,
    said: Said,
}

/// What came of a receipt, and of the text beside it.
type Checked = (Verdict, Compared);

pub(crate) fn verify(flags: &VerifyFlags) -> Result<(), Failure> {
    let stdin = [PathBuf::from("-")];
    let paths = if flags.receipts.is_empty() { &stdin[..] } else { &flags.receipts };
    let mut receipts = Vec::new();
    for path in paths {
        read(path, &mut receipts)?;
    }
    let checkpoint = models::open(flags.model.as_deref())?;
    let options = options(flags);
    let mut verdicts: Vec<Option<Checked>> = receipts.iter().map(|_| None).collect();
    while let Some(next) = verdicts.iter().position(Option::is_none) {
        let definition = &receipts[next].receipt.definition;
        let same = |found: &Found| is_same(&found.receipt.definition, definition);
        let group: Vec<usize> = (next..receipts.len()).filter(|&at| same(&receipts[at])).collect();
        verify_group(&receipts, &group, &checkpoint, &options, flags, &mut verdicts)?;
    }
    let verdicts: Vec<Checked> = verdicts.into_iter().flatten().collect();
    for (found, verdict) in receipts.iter().zip(&verdicts) {
        put_line(&if flags.json { as_json(found, verdict).to_string() } else { as_text(found, verdict) })?;
    }
    let equal = verdicts.iter().filter(|(verdict, _)| verdict.is_equal()).count();
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
    flags: &VerifyFlags,
    verdicts: &mut [Option<Checked>],
) -> Result<(), Failure> {
    let tokens = |&at: &usize| receipts[at].receipt.asked.prompt.len() + receipts[at].receipt.tokens.len();
    let longest = group.iter().map(tokens).max().unwrap_or_default();
    let Found { place, receipt, .. } = &receipts[group[0]];
    let failed = |error| match error {
        VerifyError::Start(error) => models::start_failure(checkpoint, error),
        VerifyError::Definition(_) => Failure::usage(format!("{place}: {error}")),
        VerifyError::Origin(_) | VerifyError::Device(_) => Failure::failed(error),
    };
    let bar = Progress::new("loading");
    let mut progress = |p: model::Progress| bar.at(p.bytes_done, p.bytes_total);
    let mut verifier =
        Verifier::load(&receipt.definition, longest, checkpoint, options, &mut progress).map_err(failed)?;
    drop(bar);
    let dialect = dialect(verifier.model(), flags);
    let bar = Progress::counting("verifying", "receipts");
    let mut unexplained = Vec::new();
    for (done, &at) in group.iter().enumerate() {
        let Found { receipt, said, .. } = &receipts[at];
        let mut verdict = verifier.verify(receipt).map_err(failed)?;
        // Where the weights are others, that is the explanation.
        let has_same_weights = !verdict.discrepancies.iter().any(|one| matches!(one, Discrepancy::Weights { .. }));
        if has_same_weights && verdict.has_other_logits() {
            unexplained.push(at);
        }
        // Tokens that are not the model's have no text that could be right.
        let is_equal = verdict.is_equal();
        let compared = if is_equal { said.compare(receipt, &verifier, &dialect) } else { Compared::Nothing };
        if let Compared::Differs(discrepancy) = &compared {
            verdict = Verdict { discrepancies: vec![discrepancy.clone()], cause: Some(Cause::Text) };
        }
        verdicts[at] = Some((verdict, compared));
        bar.at(done as u64 + 1, group.len() as u64);
    }
    // Two models are not held at once.
    drop(verifier);
    for at in unexplained {
        let Some((verdict, _)) = &mut verdicts[at] else { continue };
        let cause = Verifier::explain(&receipts[at].receipt, verdict, checkpoint, options).map_err(failed)?;
        verdict.cause = cause.or(verdict.cause.take());
    }
    Ok(())
}

/// How the server told an answer's parts.
fn dialect(model: &ModelInfo, flags: &VerifyFlags) -> Dialect {
    let source = model.chat_template.as_ref().map(|template| template.source()).unwrap_or_default();
    let added = model.tokenizer.as_ref().map(|tokenizer| tokenizer.added_tokens()).unwrap_or_default();
    let parsers = [&flags.reasoning_parser, &flags.tool_call_parser].map(|name| name.as_deref());
    Dialect::of_template(&source, &added).with_parsers(parsers[0], parsers[1])
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
    let (mut open, mut done) = (BTreeMap::new(), BTreeMap::new());
    for value in values(&text) {
        let value = value.map_err(|error| wrong(&format!("no JSON: {error}")))?;
        for (choice, value, said) in receipts_in(value, &mut open) {
            done.insert(choice, receipts.len());
            let place = format!("{name}:{}", receipts.len() - before + 1);
            let receipt = Receipt::of(value).map_err(|error| Failure::usage(format!("{place}: {error}")))?;
            receipts.push(Found { place, receipt, said });
        }
    }
    // Text of a stream behind its receipt is text of the answer too.
    for (choice, said) in open {
        if let Some(&at) = done.get(&choice) {
            receipts[at].said.append(said);
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

/// The id of an answer, and the index of one of its choices.
type Choice = (String, u64);

/// A receipt itself, or those of an answer's choices with what these say. `open`: what choices of streams have said since
/// their receipt.
fn receipts_in(mut value: Value, open: &mut BTreeMap<Choice, Said>) -> Vec<(Choice, Value, Said)> {
    let id = value.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(Value::Array(choices)) = value.get_mut("choices") else {
        return vec![(Choice::default(), value, Said::default())];
    };
    let receipt = |(at, choice): (usize, &mut Value)| {
        let place = (id.clone(), choice.get("index").and_then(Value::as_u64).unwrap_or(at as u64));
        open.entry(place.clone()).or_default().read(choice);
        let receipt = choice.as_object_mut()?.shift_remove("receipt")?;
        let said = open.remove(&place).unwrap_or_default();
        Some((place, receipt, said))
    };
    choices.iter_mut().enumerate().filter_map(receipt).collect()
}

fn as_text(found: &Found, (verdict, compared): &Checked) -> String {
    let Found { place, receipt, .. } = found;
    let tokens = receipt.tokens.len();
    match (verdict.first().or(verdict.discrepancies.first()), &verdict.cause) {
        (None, _) => match compared {
            Compared::Equal(note) => format!("{place}: equal, {tokens} tokens and their text{note}"),
            Compared::Not(why) => format!("{place}: equal, {tokens} tokens; text not compared: {why}"),
            Compared::Nothing | Compared::Differs(_) => format!("{place}: equal, {tokens} tokens"),
        },
        (Some(first), Some(cause)) => format!("{place}: not equal: {first}; what differs: {cause}"),
        (Some(first), None) => format!("{place}: not equal: {first}"),
    }
}

fn as_json(found: &Found, (verdict, compared): &Checked) -> Value {
    let Found { place, receipt, .. } = found;
    let (text, note) = match compared {
        Compared::Nothing => (None, ""),
        Compared::Equal(note) => (Some("equal"), note.trim_start_matches([' ', ',', ';'])),
        Compared::Not(why) => (Some("not_compared"), *why),
        Compared::Differs(_) => (Some("different"), ""),
    };
    json!({
        "receipt": place,
        "model": receipt.model,
        "tokens": receipt.tokens.len(),
        "equal": verdict.is_equal(),
        "text": text,
        "text_note": Some(note).filter(|note| !note.is_empty()),
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
        Discrepancy::Text { claimed, found, .. } => ("text", json!(claimed), json!(found)),
        Discrepancy::Unfit { problem } => ("unfit", Value::Null, json!(problem)),
        Discrepancy::Seal { claimed, found } => ("seal", json!(claimed), json!(found)),
    };
    let spot = one.spot();
    let (token, position) = (spot.map(|spot| spot.token), spot.map(|spot| spot.position));
    let character = if let Discrepancy::Text { at, .. } = one { Some(at) } else { None };
    json!({"kind": kind, "token": token, "position": position, "character": character, "claimed": claimed, "found": found})
}
