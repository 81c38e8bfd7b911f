//! What an answer follows from, in the words of the receipt's JSON.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::chain::from_hex;

/// What was computed with the weights: who agrees in all of it computes the same bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The program and its version. Another one computes the same unless its change log says otherwise.
    pub engine: String,
    /// The order in which 16-bit products are summed.
    pub arithmetic: String,
    /// Precision of the weights in memory.
    pub weights: String,
    /// Whether what the checkpoint stores in a wider class kept it.
    pub as_stored: bool,
    /// Precision of keys and values.
    pub kv: String,
    /// The version of the rounding that narrow weights are made with.
    pub layout: u32,
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The prompt, as the model read it.
    pub prompt: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: SamplingTerms,
    /// Where the answer ends.
    pub stop: StopTerms,
    /// What it must look like, in the words of the engine; absent where nothing is said of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Value>,
}

/// How tokens are drawn, every default resolved. What each means: `model::sampler`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct SamplingTerms {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: u32,
    pub min_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub repetition_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
    /// As text: programs that take numbers for doubles would round it.
    #[serde(with = "as_text")]
    pub seed: u64,
    /// Which of the request's answers; each draws numbers of its own.
    pub answer: u32,
}

/// Where the answer ends, every default resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopTerms {
    /// Tokens that it may have.
    pub max_tokens: u64,
    /// Tokens before which nothing ends it.
    pub min_tokens: u64,
    /// Tokens that end it, the model's own among them.
    pub token_ids: Vec<u32>,
    /// Texts that end it.
    pub strings: Vec<String>,
    /// Whether a text or token that ended it belongs to its text.
    pub include_string: bool,
    /// Whether special tokens give no text.
    pub skip_special: bool,
    /// Special tokens that give text all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<u32>,
}

/// Why an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerEnd {
    /// It has all tokens that it may have.
    Length,
    /// Its last token is one that ends it.
    StopToken,
    /// Its text has a stop string: this one of the list.
    StopString(u32),
    /// It is all that its rule asks for, and nothing could follow.
    Complete,
}

impl fmt::Display for AnswerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnswerEnd::Length => f.write_str("length"),
            AnswerEnd::StopToken => f.write_str("a stop token"),
            AnswerEnd::StopString(which) => write!(f, "stop string {which}"),
            AnswerEnd::Complete => f.write_str("its rule: it is complete"),
        }
    }
}

/// The first 8 bytes of a digest: enough to say where two computations part. 16 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RowMark(pub [u8; 8]);

impl fmt::Display for RowMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RowMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for RowMark {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RowMark {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RowMark, D::Error> {
        from_hex(&String::deserialize(deserializer)?).map(RowMark).map_err(D::Error::custom)
    }
}

/// A whole number as decimal digits in a text.
mod as_text {
    use super::{Deserialize, Deserializer, Error, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = text.parse::<u64>().ok().filter(|number| number.to_string() == text);
        number.ok_or_else(|| D::Error::custom("not a whole number in decimal digits, as a text"))
    }
}
