//! The digests: BLAKE3 with a separate derivation context per kind, so that none can replace another. Numbers are
//! little-endian; variable-length fields are prefixed by their length.

use std::fmt;

use blake3::Hasher;
use protocol::sampling::options;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::terms::{AnswerEnd, Asked, Definition, RowMark, SamplingTerms, StopTerms};

const HEAD: &str = "twostroke receipt 1: head";
const LINK: &str = "twostroke receipt 1: token and logits";
const SEAL: &str = "twostroke receipt 1: end";
const ROW: &str = "twostroke receipt 1: row of logits";
const TEXT: &str = "twostroke receipt 1: text";

/// 256 bits of BLAKE3; as text 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    pub(crate) const ZERO: Digest = Digest([0; 32]);

    /// Digest of a row of logits, every bit of it. Cost: at some GB/s about 40 us for a vocabulary of 50,000.
    pub fn of_row(logits: &[f32]) -> Digest {
        // 1 KiB for each of 16 lanes at a time.
        let mut bytes = [0; 16 << 10];
        let mut hasher = Hasher::new_derive_key(ROW);
        for part in logits.chunks(bytes.len() / 4) {
            for (bytes, logit) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(part) {
                *bytes = logit.to_le_bytes();
            }
            hasher.update(&bytes[..4 * part.len()]);
        }
        Digest(*hasher.finalize().as_bytes())
    }

    /// Digest of a text.
    pub fn of_text(text: &str) -> Digest {
        Digest(*Hasher::new_derive_key(TEXT).update(text.as_bytes()).finalize().as_bytes())
    }

    /// Its first 8 bytes.
    pub fn mark(&self) -> RowMark {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        RowMark([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        from_hex(&String::deserialize(deserializer)?).map(Digest).map_err(D::Error::custom)
    }
}

/// Parses lower-case hexadecimal digits: one spelling per digest.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Result<[u8; N], String> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let wrong = || format!("not {} lower-case hexadecimal digits", 2 * N);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return Err(wrong());
    }
    let mut bytes = [0; N];
    for (byte, &[high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(high).ok_or_else(wrong)? << 4 | digit(low).ok_or_else(wrong)?;
    }
    Ok(bytes)
}

struct Fields(Hasher);

impl Fields {
    fn of(kind: &str) -> Fields {
        Fields(Hasher::new_derive_key(kind))
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Fields {
        self.number(bytes.len() as u64).0.update(bytes);
        self
    }

    fn text(&mut self, text: &str) -> &mut Fields {
        self.bytes(text.as_bytes())
    }

    fn number(&mut self, number: u64) -> &mut Fields {
        self.0.update(&number.to_le_bytes());
        self
    }

    fn float(&mut self, number: f32) -> &mut Fields {
        self.0.update(&number.to_le_bytes());
        self
    }

    fn tokens(&mut self, tokens: &[u32]) -> &mut Fields {
        self.number(tokens.len() as u64);
        tokens.iter().for_each(|token| _ = self.0.update(&token.to_le_bytes()));
        self
    }

    fn digest(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

/// Digest of everything that determines an answer.
pub(crate) fn head(model: &str, weights: &Digest, config: &Digest, definition: &Definition, asked: &Asked) -> Digest {
    let mut fields = Fields::of(HEAD);
    fields.text(model).bytes(&weights.0).bytes(&config.0);
    // Destructured, so that the compiler rejects a forgotten field.
    let Definition { engine, arithmetic, weights, as_stored, kv, layout } = definition;
    fields.text(engine).text(arithmetic).text(weights).number(u64::from(*as_stored)).text(kv);
    fields.number(u64::from(*layout));
    let Asked { prompt, sampling, stop, rule } = asked;
    fields.tokens(prompt);
    let SamplingTerms { params, seed, answer } = sampling;
    for option in options() {
        let value = (option.value)(params);
        if option.is_integer() {
            fields.number(value as u64)
        } else {
            fields.float(value as f32)
        };
    }
    let logit_bias = &params.logit_bias;
    fields.number(logit_bias.len() as u64);
    logit_bias.iter().for_each(|&(token, bias)| _ = fields.number(u64::from(token)).float(bias));
    fields.number(*seed).number(u64::from(*answer));
    let StopTerms { max_tokens, min_tokens, token_ids, strings, include_string, skip_special, shown } = stop;
    fields.number(*max_tokens).number(*min_tokens).tokens(token_ids);
    fields.number(strings.len() as u64);
    strings.iter().for_each(|string| _ = fields.text(string));
    fields.number(u64::from(*include_string)).number(u64::from(*skip_special));
    // The rule as JSON text, keys in their order. These two are hashed only if present, so digests of receipts from
    // before they existed stay the same.
    if !shown.is_empty() {
        fields.tokens(shown);
    }
    rule.iter().for_each(|rule| _ = fields.text(&rule.to_string()));
    fields.digest()
}

/// Digest of the head, every token with its full logits digest, and the end.
pub(crate) fn seal(head: &Digest, tokens: &[u32], rows: &[Digest], end: AnswerEnd) -> Digest {
    let link = tokens.iter().zip(rows).fold(*head, |link, (&token, row)| {
        let mut fields = Fields::of(LINK);
        fields.bytes(&link.0).number(u64::from(token)).bytes(&row.0);
        fields.digest()
    });
    let (kind, which) = match end {
        AnswerEnd::Length => (0, 0),
        AnswerEnd::StopToken => (1, 0),
        AnswerEnd::StopString(which) => (2, which),
        AnswerEnd::Complete => (3, 0),
    };
    let mut fields = Fields::of(SEAL);
    fields.bytes(&link.0).number(tokens.len() as u64).number(kind).number(u64::from(which));
    fields.digest()
}
