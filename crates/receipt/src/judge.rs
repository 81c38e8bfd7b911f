//! Compares a receipt with its recomputation: the first difference and its likely cause.

use std::fmt;

use crate::chain::{Digest, seal};
use crate::terms::{AnswerEnd, Definition, RowMark};
use crate::{Provenance, Receipt};

/// The recomputation of a receipt: one pass over its prompt and tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Computed {
    /// The model used.
    pub basis: Provenance,
    /// A row per token, in order; fewer if a token id is not in the vocabulary.
    pub rows: Vec<ComputedRow>,
    /// Number of tokens after which the answer ends, and why; `None` if it continues after the last.
    pub end: Option<(usize, AnswerEnd)>,
}

/// A row of logits, and the token that the receipt's sampling parameters draw from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputedRow {
    /// Its digest.
    pub logits: Digest,
    /// `None` if the logits are not finite.
    pub token: Option<u32>,
}

/// A position in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Index in the answer.
    pub token: usize,
    /// Index in prompt and answer.
    pub position: usize,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {} of the answer (position {})", self.token, self.position)
    }
}

/// A difference between receipt and recomputation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discrepancy {
    /// Other weights.
    Weights {
        /// The receipt's.
        claimed: Digest,
        /// The weights used.
        found: Digest,
    },
    /// A field before the tokens was changed.
    Head {
        /// The receipt's head.
        claimed: Digest,
        /// The digest of its fields.
        found: Digest,
    },
    /// Other logits.
    Logits {
        /// The first differing token.
        at: Spot,
        /// The receipt's digest.
        claimed: RowMark,
        /// The recomputed one.
        found: RowMark,
    },
    /// The sampler draws another token.
    Token {
        /// The first differing token.
        at: Spot,
        /// The receipt's token.
        claimed: u32,
        /// The recomputed one.
        found: Option<u32>,
    },
    /// The answer ends elsewhere, or for another reason.
    End {
        /// The first position that differs.
        at: Spot,
        /// The receipt's reason.
        claimed: AnswerEnd,
        /// `None`: it continues there.
        found: Option<AnswerEnd>,
    },
    /// The request is not valid for this model, so nothing was computed.
    Unfit {
        /// The problem.
        problem: String,
    },
    /// The text that came with the receipt is not what its tokens decode to.
    Text {
        /// Which part of it.
        what: &'static str,
        /// Characters before the first that differs.
        at: usize,
        /// What it says there.
        claimed: String,
        /// What the tokens say there.
        found: String,
    },
    /// Only the digest over everything differs.
    Seal {
        /// The receipt's.
        claimed: Digest,
        /// The recomputed one.
        found: Digest,
    },
}

impl Discrepancy {
    /// The position of the difference.
    pub fn spot(&self) -> Option<Spot> {
        match self {
            Discrepancy::Logits { at, .. } | Discrepancy::Token { at, .. } | Discrepancy::End { at, .. } => Some(*at),
            _ => None,
        }
    }
}

impl fmt::Display for Discrepancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Discrepancy::Weights { claimed, found } => {
                write!(f, "the weights have digest {found}; the receipt says {claimed}")
            }
            Discrepancy::Head { claimed, found } => write!(
                f,
                "the fields before the tokens have digest {found}; the receipt says {claimed}: one was changed"
            ),
            Discrepancy::Logits { at, claimed, found } => {
                write!(f, "{at}: its logits have digest {found}; the receipt says {claimed}")
            }
            Discrepancy::Token { at, claimed, found: Some(found) } => {
                write!(f, "{at}: the sampler draws {found}; the receipt says {claimed}")
            }
            Discrepancy::Token { at, claimed, found: None } => {
                write!(f, "{at}: no token can be drawn; the receipt says {claimed}")
            }
            Discrepancy::End { at, claimed, found: Some(found) } => {
                write!(f, "{at}: the answer ends here by {found}; the receipt says {claimed}")
            }
            Discrepancy::End { at, claimed, found: None } => {
                write!(f, "{at}: the answer continues here; the receipt says that it ended by {claimed}")
            }
            Discrepancy::Unfit { problem } => f.write_str(problem),
            Discrepancy::Text { what, at, .. } => write!(f, "{what} differs from its tokens at character {at}"),
            Discrepancy::Seal { claimed, found } => {
                write!(f, "the digest over everything is {found}; the receipt says {claimed}")
            }
        }
    }
}

/// Likely cause, from where and how two computations diverge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The checkpoint's tensors.
    Weights,
    /// Its `config.json`.
    Config,
    /// The accumulation order: the logits match this one.
    Arithmetic(String),
    /// The precision of weights or KV cache: the logits match this definition.
    Quantization(Definition),
    /// The prompt, or its computation: the logits differ from the first token on, and no definition tried explains it.
    Prompt,
    /// Sampling parameters or seed: every row of logits matches, but other tokens are drawn.
    Sampling,
    /// Tokens were replaced.
    Tokens,
    /// Digests were replaced: tokens match, and so do logits before and after.
    Digests,
    /// The end: the answer was truncated or extended, or the stop conditions differ.
    End,
    /// A field before the tokens without effect on them.
    Terms,
    /// The text beside the receipt.
    Text,
    /// Logits diverge at some token: a hardware fault, another program, or tokens inserted or removed with wrong
    /// digests.
    Computation,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Weights => "the weights",
            Cause::Config => "config.json",
            Cause::Arithmetic(found) => {
                return write!(f, "the arithmetic: the logits match {found}");
            }
            Cause::Quantization(Definition { weights, as_stored, kv, .. }) => {
                let stored = if *as_stored { ", wider ones as stored" } else { "" };
                return write!(f, "the quantization: the logits match {weights} weights{stored} and a {kv} cache");
            }
            Cause::Prompt => "the prompt",
            Cause::Sampling => "the sampling: parameters or seed",
            Cause::Tokens => "tokens were changed",
            Cause::Digests => "digests were changed",
            Cause::End => "where the answer ends",
            Cause::Terms => "the request was changed afterwards",
            Cause::Text => "the text was changed",
            Cause::Computation => "the computation from there on, or tokens were inserted or removed",
        })
    }
}

impl Cause {
    /// A machine-readable name.
    pub fn name(&self) -> &'static str {
        match self {
            Cause::Weights => "weights",
            Cause::Config => "config",
            Cause::Arithmetic(_) => "arithmetic",
            Cause::Quantization(_) => "quantization",
            Cause::Prompt => "prompt",
            Cause::Sampling => "sampling",
            Cause::Tokens => "tokens",
            Cause::Digests => "digests",
            Cause::End => "end",
            Cause::Terms => "terms",
            Cause::Text => "text",
            Cause::Computation => "computation",
        }
    }
}

/// All differences between a receipt and its recomputation: the first of logits, tokens and end each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Empty: equal.
    pub discrepancies: Vec<Discrepancy>,
    /// Likely cause; `None` if equal.
    pub cause: Option<Cause>,
}

impl Verdict {
    /// Whether everything matches.
    pub fn is_equal(&self) -> bool {
        self.discrepancies.is_empty()
    }

    /// The difference with the first position.
    pub fn first(&self) -> Option<&Discrepancy> {
        let placed = self.discrepancies.iter().filter_map(|one| Some((one.spot()?.token, one)));
        placed.min_by_key(|&(token, _)| token).map(|(_, one)| one)
    }

    /// Whether logits differ before any token: then another definition may explain them.
    pub fn has_other_logits(&self) -> bool {
        matches!(self.first(), Some(Discrepancy::Logits { .. }))
    }
}

/// Compares digests row by row, tokens with the sampler's, the end with the stop conditions, and everything with the
/// seal.
pub fn judge(receipt: &Receipt, computed: &Computed) -> Verdict {
    let mut discrepancies = Vec::new();
    let spot = |token: usize| Spot { token, position: receipt.asked.prompt.len() + token };
    if receipt.weights != computed.basis.weights {
        let (claimed, found) = (receipt.weights, computed.basis.weights);
        discrepancies.push(Discrepancy::Weights { claimed, found });
    }
    let head = receipt.head_again();
    if receipt.head != head {
        discrepancies.push(Discrepancy::Head { claimed: receipt.head, found: head });
    }
    let rows = &computed.rows;
    let differs = |at: usize| rows[at].logits.mark() != receipt.logits[at];
    if let Some(at) = (0..rows.len()).find(|&at| differs(at)) {
        let (claimed, found) = (receipt.logits[at], rows[at].logits.mark());
        discrepancies.push(Discrepancy::Logits { at: spot(at), claimed, found });
    }
    let wrong = |at: usize| rows[at].token != Some(receipt.tokens[at]);
    if let Some(at) = (0..rows.len()).find(|&at| wrong(at)) {
        let (claimed, found) = (receipt.tokens[at], rows[at].token);
        discrepancies.push(Discrepancy::Token { at: spot(at), claimed, found });
    }
    // With wrong tokens the end differs too.
    let has_place = discrepancies.iter().any(|one| one.spot().is_some());
    if !has_place && computed.end != Some((receipt.tokens.len(), receipt.end)) {
        let (at, found) = match computed.end {
            Some((tokens, end)) => (tokens.saturating_sub(1), Some(end)),
            None => (receipt.tokens.len(), None),
        };
        discrepancies.push(Discrepancy::End { at: spot(at), claimed: receipt.end, found });
    }
    let whole: Vec<Digest> = rows.iter().map(|row| row.logits).collect();
    let sealed = seal(&receipt.head, &receipt.tokens, &whole, receipt.end);
    if receipt.seal != sealed && !discrepancies.iter().any(|one| one.spot().is_some()) {
        discrepancies.push(Discrepancy::Seal { claimed: receipt.seal, found: sealed });
    }
    let mut verdict = Verdict { discrepancies, cause: None };
    verdict.cause = cause(receipt, computed, &verdict, &differs);
    verdict
}

fn cause(receipt: &Receipt, computed: &Computed, verdict: &Verdict, differs: &dyn Fn(usize) -> bool) -> Option<Cause> {
    let has = |which: fn(&Discrepancy) -> bool| verdict.discrepancies.iter().any(which);
    if verdict.is_equal() {
        return None;
    }
    if has(|one| matches!(one, Discrepancy::Weights { .. })) {
        return Some(Cause::Weights);
    }
    let head_is_wrong = has(|one| matches!(one, Discrepancy::Head { .. }));
    let behind = |at: usize| at + 1..computed.rows.len();
    Some(match verdict.first() {
        // All later rows match: the model read the claimed token, so only the sampler differs.
        Some(Discrepancy::Token { at, .. }) if behind(at.token).is_empty() && head_is_wrong => Cause::Sampling,
        Some(Discrepancy::Token { at, .. }) if behind(at.token).is_empty() => Cause::Tokens,
        Some(Discrepancy::Token { at, .. }) if behind(at.token).any(differs) => Cause::Tokens,
        Some(Discrepancy::Token { .. }) => Cause::Sampling,
        Some(Discrepancy::Logits { .. }) if receipt.config != computed.basis.config => Cause::Config,
        Some(Discrepancy::Logits { at, .. }) => {
            let tokens_agree = !has(|one| matches!(one, Discrepancy::Token { .. }));
            let some_agree = behind(at.token).any(|row| !differs(row)) || behind(at.token).is_empty();
            match at.token {
                _ if tokens_agree && some_agree => Cause::Digests,
                0 => Cause::Prompt,
                _ => Cause::Computation,
            }
        }
        Some(Discrepancy::End { .. }) => Cause::End,
        _ if head_is_wrong => Cause::Terms,
        _ => Cause::Digests,
    })
}
