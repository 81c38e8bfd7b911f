//! A model that computes receipts again: no scheduler, no thread, one answer after the other.

use std::sync::Arc;

use checkpoint::Checkpoint;
use checkpoint::weights::Weights;
use grammar::Grammar;
use kernels::{AccumulationOrder, DeviceError, KvDtype, WeightClass};
use model::{Forward, ModelConfig, Progress};
use receipt::{AnswerEnd, Asked, Cause, Computed, Definition, Discrepancy, Receipt, Verdict, judge};
use text::detokenizer::{Detokenizer, StopStrings};
use text::tokenizer::Tokenizer;

use super::origin::OriginError;
use super::recompute::{Bench, Recompute};
use crate::start::Built;
use crate::validate::{Prompt, RawRequest, Rejection};
use crate::{Engine, EngineOptions, ModelInfo, PrecisionPair, StartError, Starting};

/// Why receipts cannot be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The model did not load.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Its files could not be read for their digest.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The receipt names a definition that this program does not know.
    #[error("definition: {0}")]
    Definition(String),
    /// What computes it again is lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A model that was loaded as receipts say. Belongs to the thread that loads it.
pub struct Verifier {
    forward: Box<dyn Forward>,
    model: Arc<ModelInfo>,
    bench: Bench,
    /// Rows at a time.
    rows: usize,
}

impl Verifier {
    /// Loads `checkpoint` as `definition` says, for receipts of at most `tokens` tokens. `options`: on how many
    /// threads, on which instruction set, how many rows at a time; none of that can be seen in a verdict.
    pub fn load(
        definition: &Definition,
        tokens: usize,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Verifier, VerifyError> {
        let options = options_of(definition, tokens, checkpoint, options)?;
        let Built { forward, model, .. } = Engine::build(checkpoint, &options, &mut |starting| {
            if let Starting::Loading(loaded) = starting {
                progress(loaded);
            }
        })?;
        forward.set_compute_thread();
        let bench = Bench::new(model.config.vocab_size, 0, model.block_size, 0);
        Ok(Verifier { forward, model, bench, rows: options.max_num_batched_tokens })
    }

    /// Computes a receipt again and compares. The first call reads every weight for its digest.
    pub fn verify(&mut self, receipt: &Receipt) -> Result<Verdict, VerifyError> {
        let basis = self.model.basis(&receipt.model)?;
        let (asked, tokens) = (&receipt.asked, &receipt.tokens);
        let grammar = self.check(asked, tokens.len());
        if let Err(rejection) = grammar {
            let none = Computed { basis, rows: Vec::new(), end: Some((tokens.len(), receipt.end)) };
            let mut verdict = judge(receipt, &none);
            verdict.discrepancies.retain(|one| !matches!(one, Discrepancy::Seal { .. }));
            verdict.discrepancies.push(Discrepancy::Unfit { problem: rejection.message });
            verdict.cause.get_or_insert(Cause::Terms);
            return Ok(verdict);
        }
        let grammar = grammar.ok().flatten();
        let mut again = Recompute::new(asked, tokens, self.model.config.vocab_size, grammar.as_ref());
        while !again.is_done() {
            again.step(&mut *self.forward, &mut self.bench, self.rows)?;
        }
        let end = end_of(asked, tokens, self.model.tokenizer.as_ref(), grammar.as_ref(), &mut |_| {});
        Ok(judge(receipt, &Computed { basis, rows: again.rows().to_vec(), end }))
    }

    /// The text of a receipt's answer, cut as its stop rules cut it: what each token added, and the rest. Nothing without a
    /// tokenizer. The receipt was found equal.
    pub fn text(&self, receipt: &Receipt) -> Vec<String> {
        let mut pieces = Vec::new();
        let Receipt { asked, tokens, .. } = receipt;
        end_of(asked, tokens, self.model.tokenizer.as_ref(), None, &mut |text| pieces.push(text));
        pieces
    }

    /// The model.
    pub fn model(&self) -> &ModelInfo {
        &self.model
    }

    /// The row at which a receipt parts from the model that it names, computed under every other definition: which one
    /// it is of, if any.
    pub fn explain(
        receipt: &Receipt,
        verdict: &Verdict,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
    ) -> Result<Option<Cause>, VerifyError> {
        let Some(Discrepancy::Logits { at, .. }) = verdict.first() else { return Ok(None) };
        let is_narrow = Weights::open(checkpoint).map_err(StartError::Load)?.class() != WeightClass::Bf16;
        for (definition, cause) in others(&receipt.definition, is_narrow) {
            let mut other = Verifier::load(&definition, at.position + 1, checkpoint, options, &mut |_| {})?;
            let Ok(grammar) = other.check(&receipt.asked, at.token + 1) else { return Ok(None) };
            let tokens = &receipt.tokens[..=at.token];
            let mut again = Recompute::new(&receipt.asked, tokens, other.model.config.vocab_size, grammar.as_ref());
            while !again.is_done() {
                again.step(&mut *other.forward, &mut other.bench, other.rows)?;
            }
            if again.rows().get(at.token).is_some_and(|row| row.logits.mark() == receipt.logits[at.token]) {
                return Ok(Some(cause));
            }
        }
        Ok(None)
    }

    /// What validation checks, for one that comes from a file; and the grammar of its rule.
    fn check(&self, asked: &Asked, tokens: usize) -> Result<Option<Grammar>, Rejection> {
        let (params, stop) = (&asked.sampling.params, &asked.stop);
        let ids = |ids: &[u32]| ids.iter().map(|&id| i64::from(id)).collect::<Vec<_>>();
        // A list of stop tokens holds the model's own too, so it may be longer than a client's.
        if let Some(id) = stop.token_ids.iter().find(|&&id| id as usize >= self.model.config.vocab_size) {
            return Err(Rejection::of("stop_token_ids", format!("stop_token_ids: this model has no token {id}")));
        }
        let rule = asked.rule.clone().map(serde_json::from_value).transpose();
        let rule = rule.map_err(|error| Rejection::of("rule", format!("rule: {error}")))?;
        let raw = RawRequest {
            rule,
            shown_tokens: stop.shown.as_slice().into(),
            max_tokens: Some(tokens.max(1) as i64),
            sampling: params.asked(),
            logit_bias: params.logit_bias.iter().map(|&(id, bias)| (i64::from(id), f64::from(bias))).collect(),
            stop: stop.strings.clone(),
            ..RawRequest::new(Prompt::Tokens(ids(&asked.prompt)))
        };
        Ok(self.model.validate(raw, &[0; 32])?.rule.map(|(_, grammar)| grammar))
    }
}

/// Where an answer of these tokens ends, by its stop rules: after how many, and why. `None`: not yet. `said` receives the
/// text that each token adds, and the rest of it.
fn end_of(
    asked: &Asked,
    tokens: &[u32],
    tokenizer: Option<&Arc<Tokenizer>>,
    grammar: Option<&Grammar>,
    said: &mut dyn FnMut(String),
) -> Option<(usize, AnswerEnd)> {
    let stop = &asked.stop;
    let strings = StopStrings { strings: stop.strings.clone(), include: stop.include_string };
    let mut detokenizer = tokenizer.map(|tokenizer| {
        Detokenizer::new(tokenizer.clone(), &strings, stop.skip_special).showing(stop.shown.as_slice().into())
    });
    let end = end_by(asked, tokens, detokenizer.as_mut(), grammar, said);
    said(detokenizer.map(|mut detokenizer| detokenizer.finish()).unwrap_or_default());
    end
}

fn end_by(
    asked: &Asked,
    tokens: &[u32],
    mut detokenizer: Option<&mut Detokenizer>,
    grammar: Option<&Grammar>,
    said: &mut dyn FnMut(String),
) -> Option<(usize, AnswerEnd)> {
    let stop = &asked.stop;
    let mut constraint = grammar.map(Grammar::constraint);
    for (at, &token) in tokens.iter().enumerate() {
        let (num_tokens, is_early) = (at as u64 + 1, (at as u64) < stop.min_tokens);
        let is_stop = !is_early && stop.token_ids.contains(&token);
        if let Some(detokenizer) = &mut detokenizer {
            if is_early {
                said(detokenizer.push_unstoppable(token));
            } else if !is_stop || stop.include_string {
                let piece = detokenizer.push(token);
                said(piece.text);
                if let Some(which) = piece.stopped {
                    return Some((at + 1, AnswerEnd::StopString(which as u32)));
                }
            }
        }
        if is_stop {
            return Some((at + 1, AnswerEnd::StopToken));
        }
        if let Some(known) = &mut constraint {
            if known.accept(token).is_err() {
                // It is not the answer of any model: where it would end is undefined.
                constraint = None;
            } else if known.is_complete(at + 1) {
                return Some((at + 1, AnswerEnd::Complete));
            }
        }
        if num_tokens >= stop.max_tokens {
            return Some((at + 1, AnswerEnd::Length));
        }
    }
    // An answer that may have none has ended.
    (stop.max_tokens == 0).then_some((0, AnswerEnd::Length))
}

/// Definitions that differ in one thing, and what it is.
fn others(definition: &Definition, is_narrow: bool) -> Vec<(Definition, Cause)> {
    let mut others = Vec::new();
    for arithmetic in [AccumulationOrder::Vdpbf16, AccumulationOrder::Amx].map(AccumulationOrder::name) {
        if arithmetic != definition.arithmetic {
            let other = Definition { arithmetic: arithmetic.to_owned(), ..definition.clone() };
            others.push((other, Cause::Arithmetic(arithmetic.to_owned())));
        }
    }
    let mut quantized = Vec::new();
    for weights in CLASSES.map(WeightClass::name) {
        for as_stored in if is_narrow { vec![false, true] } else { vec![definition.as_stored] } {
            quantized.push(Definition { weights: weights.to_owned(), as_stored, ..definition.clone() });
        }
    }
    for kv in DTYPES.map(KvDtype::name) {
        quantized.push(Definition { kv: kv.to_owned(), ..definition.clone() });
    }
    quantized.retain(|other| other != definition);
    others.extend(quantized.into_iter().map(|other| (other.clone(), Cause::Quantization(other))));
    others
}

const CLASSES: [WeightClass; 3] = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4];
const DTYPES: [KvDtype; 2] = [KvDtype::Bf16, KvDtype::Int8];

/// Precision of weights and cache and the order of sums, by the names that files give them.
pub(crate) fn classes(
    weights: &str,
    kv: &str,
    arithmetic: &str,
) -> Result<(WeightClass, KvDtype, AccumulationOrder), String> {
    if weights.parse::<PrecisionPair>().is_ok() {
        let message = "its prompt was read with weights of one precision and its answer written with another";
        return Err(format!("{weights}: {message}, by two workers: no model computes that again alone"));
    }
    let class = CLASSES.into_iter().find(|class| class.name() == weights);
    let dtype = DTYPES.into_iter().find(|dtype| dtype.name() == kv);
    let (Some(class), Some(dtype)) = (class, dtype) else {
        return Err(format!("there are no {weights:.40} weights with a {kv:.40} cache"));
    };
    let order =
        AccumulationOrder::from_name(arithmetic).ok_or_else(|| format!("there is no arithmetic {arithmetic:.40?}"))?;
    Ok((class, dtype, order))
}

/// `options` with the classes and the arithmetic of a receipt, and a cache for `tokens` tokens.
fn options_of(
    definition: &Definition,
    tokens: usize,
    checkpoint: &Checkpoint,
    options: &EngineOptions,
) -> Result<EngineOptions, VerifyError> {
    let Definition { weights, kv, arithmetic, as_stored, .. } = definition;
    let (weights, kv_dtype, arithmetic) = classes(weights, kv, arithmetic).map_err(VerifyError::Definition)?;
    let config = ModelConfig::load(checkpoint).map_err(StartError::Load)?;
    // One more than there are, for validation leaves room for a token; a receipt that is too long is refused there.
    let len = (tokens + 1).clamp(2, config.context_limit.max(2));
    let cache = config.cache_shape(kv_dtype, len.div_ceil(options.block_size), options.block_size);
    Ok(EngineOptions {
        weights,
        as_stored: *as_stored,
        kv_dtype,
        arithmetic: Some(arithmetic),
        max_model_len: Some(len),
        max_num_seqs: 1,
        kv_cache_bytes: Some(cache.bytes() as u64),
        spot_check: 0.0,
        record: None,
        ..options.clone()
    })
}
