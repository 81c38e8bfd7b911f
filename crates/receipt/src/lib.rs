//! A receipt: what an answer was computed from, so that anybody who has the weights can compute it again and see.
//!
//! ```text
//! terms   weights, config, definition of the arithmetic, prompt, sampling, stop rules ──> head
//! token   id, digest of the row of logits that it was drawn from                      ──> link = H(link before, both)
//! end     why the answer ends                                                        ──> seal = H(last link, end)
//!
//! receipt  = terms, tokens, 8 bytes of each row's digest, end, head, seal
//! judge(receipt, what came when it was computed again) -> Verdict: equal, or the first token that is not
//! ```
//!
//! Logits are a function of the weights, the history and the definition of the arithmetic, and a token is one of its
//! logits, the parameters, the seed and the position. So one pass over prompt and tokens, on any machine, gives every
//! row again, and the sampler every token. The 8 bytes say where two computations part; the seal is over whole digests.
//!
//! Nothing here is signed: a receipt shows that an answer is the one that these terms give, not who computed it. There
//! is no file, clock or network here, and no floating-point arithmetic.

mod chain;
mod judge;
mod terms;

use serde::{Deserialize, Serialize};

pub use chain::Digest;
pub use judge::{Cause, Computed, ComputedRow, Discrepancy, Spot, Verdict, judge};
pub use terms::{AnswerEnd, Asked, Definition, RowMark, SamplingTerms, StopTerms};

/// The version of the format that this crate writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// See the module's picture. As JSON, this is what a client gets and what is verified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// [`VERSION`].
    pub receipt: u32,
    /// The model's name, for people.
    pub model: String,
    /// Digest of the tensors of the checkpoint as they are stored.
    pub weights: Digest,
    /// Digest of its `config.json`, which says what is computed with them.
    pub config: Digest,
    /// What was computed with them.
    pub definition: Definition,
    /// What was asked.
    #[serde(flatten)]
    pub asked: Asked,
    /// The answer, the token that ended it included.
    pub tokens: Vec<u32>,
    /// The beginning of the digest of the logits that each token was drawn from.
    pub logits: Vec<RowMark>,
    /// Why it ends.
    pub end: AnswerEnd,
    /// Digest of everything above the tokens.
    pub head: Digest,
    /// Digest of everything.
    pub seal: Digest,
}

/// An answer that was noted while it was computed: what a receipt needs beside what it shares with all others.
#[derive(Clone, Debug, PartialEq)]
pub struct Unsealed {
    /// What was asked.
    pub asked: Asked,
    /// The answer.
    pub tokens: Vec<u32>,
    /// Digests of the logits that its tokens were drawn from.
    pub rows: Vec<Digest>,
    /// Why it ends.
    pub end: AnswerEnd,
}

/// What all receipts of a model in memory share.
#[derive(Clone, Debug, PartialEq)]
pub struct Provenance {
    /// Its name.
    pub model: String,
    /// Digest of its tensors.
    pub weights: Digest,
    /// Digest of its `config.json`.
    pub config: Digest,
    /// What is computed with them.
    pub definition: Definition,
}

impl Unsealed {
    /// The receipt. Cost: a digest per token, some 100 ns each.
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

/// Why a text is no receipt.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// No JSON, or not of this shape.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Of another version.
    #[error("receipt: version {0}; this program reads version {VERSION}")]
    Version(u64),
    /// Its parts do not go together.
    #[error("{field}: {problem}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl Receipt {
    /// The receipt that a JSON value is.
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
        if receipt.asked.prompt.is_empty() {
            return field("prompt", "empty");
        }
        Ok(receipt)
    }

    /// What the head is, of what stands above the tokens.
    fn head_again(&self) -> Digest {
        chain::head(&self.model, &self.weights, &self.config, &self.definition, &self.asked)
    }
}
