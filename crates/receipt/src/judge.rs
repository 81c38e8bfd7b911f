//! A receipt beside what came when it was computed again: where the two part, and what is likely to differ.

use std::fmt;

use crate::chain::{Digest, seal};
use crate::terms::{AnswerEnd, Definition, RowMark};
use crate::{Provenance, Receipt};

/// What came when a receipt was computed again: one pass over its prompt and its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Computed {
    /// What it was computed with.
    pub basis: Provenance,
    /// A row for each token, in their order; fewer where a token was no token of this model.
    pub rows: Vec<ComputedRow>,
    /// After how many tokens the answer ends, and why; `None`: it goes on behind the last.
    pub end: Option<(usize, AnswerEnd)>,
}

/// A row of logits, and the token that the receipt's sampling takes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputedRow {
    /// Its digest.
    pub logits: Digest,
    /// `None` where no token can be taken: the logits are no numbers.
    pub token: Option<u32>,
}

/// A token of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Counted from 0 in the answer.
    pub token: usize,
    /// Counted from 0 in prompt and answer.
    pub position: usize,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {} of the answer (position {})", self.token, self.position)
    }
}

/// One thing in which the two differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discrepancy {
    /// Other weights.
    Weights {
        /// The receipt's.
        claimed: Digest,
        /// Those that it was computed with.
        found: Digest,
    },
    /// Something above the tokens was changed after the receipt was made.
    Head {
        /// What it says.
        claimed: Digest,
        /// The digest of what stands there.
        found: Digest,
    },
    /// Other logits.
    Logits {
        /// The first such token.
        at: Spot,
        /// The receipt's digest.
        claimed: RowMark,
        /// What came.
        found: RowMark,
    },
    /// Other tokens than the sampler takes.
    Token {
        /// The first such token.
        at: Spot,
        /// The receipt's.
        claimed: u32,
        /// What came.
        found: Option<u32>,
    },
    /// It ends elsewhere, or for another reason.
    End {
        /// Where the two part: behind so many tokens.
        at: Spot,
        /// The receipt's reason.
        claimed: AnswerEnd,
        /// `None`: there it goes on.
        found: Option<AnswerEnd>,
    },
    /// It asks for what the model does not take, so nothing was computed.
    Unfit {
        /// What.
        problem: String,
    },
    /// All of the above agree, and the digest over everything does not.
    Seal {
        /// The receipt's.
        claimed: Digest,
        /// What came.
        found: Digest,
    },
}

impl Discrepancy {
    /// The token that it is about.
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
                "what stands above the tokens has digest {found}; the receipt says {claimed}: something there was changed"
            ),
            Discrepancy::Logits { at, claimed, found } => {
                write!(f, "{at}: its logits have digest {found}; the receipt says {claimed}")
            }
            Discrepancy::Token { at, claimed, found: Some(found) } => {
                write!(f, "{at}: the sampler takes {found}; the receipt says {claimed}")
            }
            Discrepancy::Token { at, claimed, found: None } => {
                write!(f, "{at}: no token can be drawn here; the receipt says {claimed}")
            }
            Discrepancy::End { at, claimed, found: Some(found) } => {
                write!(f, "{at}: here the answer ends by {found}; the receipt says {claimed}")
            }
            Discrepancy::End { at, claimed, found: None } => {
                write!(f, "{at}: here the answer goes on; the receipt says that it ended by {claimed}")
            }
            Discrepancy::Unfit { problem } => f.write_str(problem),
            Discrepancy::Seal { claimed, found } => {
                write!(f, "the digest over everything is {found}; the receipt says {claimed}")
            }
        }
    }
}

/// What is likely to differ, from where and how two computations part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The checkpoint's tensors.
    Weights,
    /// Its `config.json`.
    Config,
    /// The order of sums: the logits are those of this one.
    Arithmetic(String),
    /// The precision of weights or cache: the logits are those of this definition.
    Quantization(Definition),
    /// The prompt, or what computed it: the logits differ from the first one on, and nothing that was tried explains
    /// it.
    Prompt,
    /// The parameters or the seed: every row of logits is as claimed, and the sampler takes other tokens.
    Sampling,
    /// Tokens that were put in the place of others.
    Tokens,
    /// Digests in the receipt: tokens are as claimed, and so are logits before and behind.
    Digests,
    /// Where the answer ends: it was cut off or lengthened, or its stop rules are others.
    End,
    /// Something above the tokens that has no effect on them.
    Terms,
    /// From some token on the logits are others: a fault of the machine, another program, or tokens that were put in or
    /// left out with digests that are not theirs.
    Computation,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Weights => "the weights",
            Cause::Config => "config.json",
            Cause::Arithmetic(found) => {
                return write!(f, "the arithmetic: the logits are those of {found}");
            }
            Cause::Quantization(Definition { weights, as_stored, kv, .. }) => {
                let stored = if *as_stored { ", wider ones as stored" } else { "" };
                return write!(
                    f,
                    "the quantization: the logits are those of {weights} weights{stored} and a {kv} cache"
                );
            }
            Cause::Prompt => "the prompt",
            Cause::Sampling => "the sampling: parameters or seed",
            Cause::Tokens => "tokens were changed",
            Cause::Digests => "digests were changed",
            Cause::End => "where the answer ends",
            Cause::Terms => "what was asked was changed afterwards",
            Cause::Computation => "what computed it from there on, or tokens were put in or left out",
        })
    }
}

impl Cause {
    /// One word for programs.
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
            Cause::Computation => "computation",
        }
    }
}

/// Everything in which a receipt and its computation differ. Of logits, tokens and ends, the first of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// None of them: equal.
    pub discrepancies: Vec<Discrepancy>,
    /// What is likely to differ; `None` where nothing does.
    pub cause: Option<Cause>,
}

impl Verdict {
    /// Whether every digest and every token is as claimed.
    pub fn is_equal(&self) -> bool {
        self.discrepancies.is_empty()
    }

    /// The first token that is not as claimed, or whose logits are not; or where the answer ends otherwise.
    pub fn first(&self) -> Option<&Discrepancy> {
        let placed = self.discrepancies.iter().filter_map(|one| Some((one.spot()?.token, one)));
        placed.min_by_key(|&(token, _)| token).map(|(_, one)| one)
    }

    /// Whether logits differ before any token does: then another definition may explain them.
    pub fn has_other_logits(&self) -> bool {
        matches!(self.first(), Some(Discrepancy::Logits { .. }))
    }
}

/// Compares. Digests are compared row by row, tokens with what the sampler takes, the end with the stop rules, and the
/// whole with the seal.
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
    // Where the tokens are wrong they end as wrong tokens do.
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
        // Every row behind the token is that of the claimed one: the model read it, and another sampler took it.
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
