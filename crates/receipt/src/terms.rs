//! What determines an answer: the terms of a receipt, named as in its JSON.

use std::fmt;

use protocol::sampling::Sampling;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::chain::from_hex;

/// How the model was computed: equal definitions give equal bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The program and its version. Other versions compute the same unless the change log says otherwise.
    pub engine: String,
    /// Accumulation order of 16-bit products.
    pub arithmetic: String,
    /// Precision of the weights in memory.
    pub weights: String,
    /// Whether tensors stored in a wider class kept it.
    pub as_stored: bool,
    /// Precision of keys and values.
    pub kv: String,
    /// Version of the rounding of quantized weights.
    pub layout: u32,
}

/// The request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// Sampling parameters.
    pub sampling: SamplingTerms,
    /// Stop conditions.
    pub stop: StopTerms,
    /// The structured-output rule, in the engine's form, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Value>,
}

/// Sampling parameters, all defaults resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingTerms {
    /// What the sampler drew by.
    #[serde(flatten)]
    pub params: Sampling,
    /// Of the request.
    // As text: JSON readers that use doubles would round it.
    #[serde(with = "as_text")]
    pub seed: u64,
    /// Index of the answer; each has its own random stream.
    pub answer: u32,
}

/// Stop conditions, all defaults resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopTerms {
    /// Maximum tokens.
    pub max_tokens: u64,
    /// Tokens before which no stop condition applies.
    pub min_tokens: u64,
    /// Stop tokens, the model's included.
    pub token_ids: Vec<u32>,
    /// Stop strings.
    pub strings: Vec<String>,
    /// Whether the stop string or token is part of the text.
    pub include_string: bool,
    /// Whether special tokens are omitted from the text.
    pub skip_special: bool,
    /// Special tokens that are in the text anyway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<u32>,
}

/// Why an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerEnd {
    /// The maximum of tokens.
    Length,
    /// Its last token is a stop token.
    StopToken,
    /// Its text contains this stop string of the list.
    StopString(u32),
    /// Its rule is complete and allows no further token.
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

/// The first 8 bytes of a digest: enough to find where two computations diverge. As text 16 hexadecimal digits.
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

/// A whole number as decimal digits in a string.
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
