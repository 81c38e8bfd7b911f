//! A receipt records what determined an answer, so that any owner of the weights can recompute and verify it.
//!
//! ```text
//! terms   weights, config, definition of the arithmetic, prompt, sampling, stop rules ──> head
//! token   id, digest of the row of logits that it was drawn from                      ──> link = H(link before, both)
//! end     why the answer ends                                                        ──> seal = H(last link, end)
//!
//! receipt  = terms, tokens, 8 bytes of each row's digest, end, head, seal
//! judge(receipt, recomputed rows) -> Verdict: equal, or the first differing token
//! ```
//!
//! Logits are a function of weights, history and the definition of the arithmetic; a token is a function of its logits,
//! the parameters, the seed and the position. So one pass over prompt and tokens, on any machine, reproduces every row,
//! and the sampler every token. The 8 bytes show where two computations diverge; the seal covers the full digests.
//!
//! Receipts are not signed: they show that these terms give this answer, not who computed it. This crate uses no files,
//! clock or network, and no floating-point arithmetic.

mod chain;
mod judge;
mod terms;

use serde::{Deserialize, Serialize};

pub use chain::Digest;
pub use judge::{Cause, Computed, ComputedRow, Discrepancy, Spot, Verdict, judge};
pub use terms::{AnswerEnd, Asked, Definition, RowMark, SamplingTerms, StopTerms};

/// The format version that this crate writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// A receipt, in the JSON form that clients get and verify. See the module's picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// [`VERSION`].
    pub receipt: u32,
    /// Display name of the model.
    pub model: String,
    /// Digest of the checkpoint's tensors as stored.
    pub weights: Digest,
    /// Digest of its `config.json`, which defines the model.
    pub config: Digest,
    /// How the model was computed.
    pub definition: Definition,
    /// The request.
    #[serde(flatten)]
    pub asked: Asked,
    /// The answer, its stop token included.
    pub tokens: Vec<u32>,
    /// First bytes of the digest of each token's logits.
    pub logits: Vec<RowMark>,
    /// Why the answer ended.
    pub end: AnswerEnd,
    /// Digest of everything before the tokens.
    pub head: Digest,
    /// Digest of everything.
    pub seal: Digest,
}

/// The part of a receipt that is recorded while an answer is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Unsealed {
    /// The request.
    pub asked: Asked,
    /// The answer.
    pub tokens: Vec<u32>,
    /// Digests of each token's logits.
    pub rows: Vec<Digest>,
    /// Why the answer ended.
    pub end: AnswerEnd,
}

/// The part that all receipts of a loaded model share.
#[derive(Clone, Debug, PartialEq)]
pub struct Provenance {
    /// Display name.
    pub model: String,
    /// Digest of its tensors.
    pub weights: Digest,
    /// Digest of its `config.json`.
    pub config: Digest,
    /// How the model is computed.
    pub definition: Definition,
}

impl Unsealed {
    /// Makes the receipt. Cost: a digest per token, some 100 ns each.
    pub fn seal(self, basis: Provenance) -> Receipt {
        let Unsealed { asked, tokens, rows, end } = self;
        let Provenance { model, weights, config, definition } = basis;
        let logits = rows.iter().map(Digest::mark).collect();
        let (head, seal) = (Digest::ZERO, Digest::ZERO);
        let mut receipt =
            Receipt { receipt: VERSION, model, weights, config, definition, asked, tokens, logits, end, head, seal };
        receipt.head = receipt.head_again();
        receipt.seal = chain::seal(&receipt.head, &receipt.tokens, &rows, end);
        receipt
    }
}

/// Why a text is not a receipt.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// Not JSON, or not of this shape.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Another version.
    #[error("receipt: version {0} is not supported; this program reads version {VERSION}")]
    Version(u64),
    /// An inconsistent or missing field.
    #[error("{field}: {problem}")]
    Field {
        /// The field.
        field: &'static str,
        /// The problem.
        problem: String,
    },
}

impl Receipt {
    /// Parses a JSON value.
    pub fn of(value: serde_json::Value) -> Result<Receipt, Unreadable> {
        let field = |field, problem: &str| Err(Unreadable::Field { field, problem: problem.to_owned() });
        match value.get("receipt") {
            None => return field("receipt", "missing: this is no receipt"),
            Some(version) => match version.as_u64() {
                Some(version) if version == u64::from(VERSION) => {}
                Some(version) => return Err(Unreadable::Version(version)),
                None => return field("receipt", "not a version"),
            },
        }
        let receipt: Receipt = serde_json::from_value(value)?;
        if receipt.tokens.len() != receipt.logits.len() {
            let (tokens, marks) = (receipt.tokens.len(), receipt.logits.len());
            let problem = format!("{marks} digests for {tokens} tokens");
            return Err(Unreadable::Field { field: "logits", problem });
        }
        if receipt.asked.sampling.params != receipt.asked.sampling.params.without_logprobs() {
            return field("sampling", "log probabilities are not part of a receipt");
        }
        if receipt.asked.prompt.is_empty() {
            return field("prompt", "empty");
        }
        Ok(receipt)
    }

    /// Recomputes the head from the fields before the tokens.
    fn head_again(&self) -> Digest {
        chain::head(&self.model, &self.weights, &self.config, &self.definition, &self.asked)
    }
}
