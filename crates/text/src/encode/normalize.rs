//! Normalizers: the stage before pre-tokenization.

use std::borrow::Cow;

use tokenizers::NormalizerWrapper;
use unicode_normalization_alignments::UnicodeNormalization;

use crate::error::TextError;
use crate::yield_point;

/// Maximum growth of a text, as a factor: NFKC makes 33 bytes of 3, and the rules of common tokenizers 3 of 1.
const MAX_GROWTH: usize = 16;
/// A short text may grow to this size, whatever the factor.
const MAX_SHORT_BYTES: usize = 4096;

/// Steps in order.
#[derive(Debug)]
pub(super) struct Normalizer(Vec<Step>);

#[derive(Debug)]
enum Step {
    Prepend(String),
    Replace { from: String, to: String },
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
}

impl Normalizer {
    /// `None` for an unsupported step.
    pub(super) fn compile(normalizer: Option<&NormalizerWrapper>) -> Option<Normalizer> {
        let mut steps = Vec::new();
        if let Some(normalizer) = normalizer {
            flatten(normalizer, &mut steps)?;
        }
        Some(Normalizer(steps))
    }

    /// Borrows if nothing changes. A text that grows beyond the limit is an error.
    pub(super) fn normalize<'t>(&self, text: &'t str) -> Result<Cow<'t, str>, TextError> {
        let limit = (text.len() * MAX_GROWTH).max(MAX_SHORT_BYTES);
        let mut text = Cow::Borrowed(text);
        for step in &self.0 {
            // Each step is a pass over the text.
            if text.len() >= yield_point::WINDOW_BYTES {
                yield_point::yield_point(0)?;
            }
            if let Some(changed) = step.apply(&text, limit)? {
                text = Cow::Owned(changed);
            }
        }
        Ok(text)
    }

    /// Maximum factor by which a text can shrink; `None`: no bound is known.
    pub(super) fn shrinks_by(&self) -> Option<usize> {
        self.0.iter().try_fold(1, |factor, step| match step {
            Step::Prepend(_) | Step::Nfd => Some(factor),
            Step::Replace { from, to } => (to.len() >= from.len()).then_some(factor),
            // NFC composes 3 Hangul letters of 3 bytes to one character of 3, and 4 Greek characters of 2 to one of 3.
            Step::Nfc | Step::Nfkc => Some(factor * 4),
            Step::Nfkd | Step::Lowercase => Some(factor * 4),
        })
    }
}

fn flatten(normalizer: &NormalizerWrapper, steps: &mut Vec<Step>) -> Option<()> {
    steps.push(match normalizer {
        NormalizerWrapper::Sequence(sequence) => {
            return sequence.as_ref().iter().try_for_each(|part| flatten(part, steps));
        }
        NormalizerWrapper::Prepend(prepend) => Step::Prepend(prepend.prepend.clone()),
        NormalizerWrapper::Replace(_) => {
            let fields = serde_json::to_value(normalizer).ok()?;
            let from = fields["pattern"]["String"].as_str().filter(|from| !from.is_empty())?;
            Step::Replace { from: from.to_owned(), to: fields["content"].as_str()?.to_owned() }
        }
        NormalizerWrapper::NFC(_) => Step::Nfc,
        NormalizerWrapper::NFD(_) => Step::Nfd,
        NormalizerWrapper::NFKC(_) => Step::Nfkc,
        NormalizerWrapper::NFKD(_) => Step::Nfkd,
        NormalizerWrapper::Lowercase(_) => Step::Lowercase,
        _ => return None,
    });
    Some(())
}

impl Step {
    /// `None`: the text does not change.
    fn apply(&self, text: &str, limit: usize) -> Result<Option<String>, TextError> {
        if text.is_empty() {
            return Ok(None);
        }
        Ok(match self {
            Step::Prepend(prefix) if text.len() + prefix.len() > limit => return Err(TextError::Encode),
            Step::Prepend(prefix) => Some([prefix.as_str(), text].concat()),
            Step::Replace { from, to } => {
                let found = text.matches(from.as_str()).count();
                if found == 0 {
                    return Ok(None);
                }
                if text.len() - found * from.len() + found.saturating_mul(to.len()) > limit {
                    return Err(TextError::Encode);
                }
                Some(text.replace(from.as_str(), to))
            }
            // ASCII is its own normal form.
            Step::Nfc | Step::Nfd | Step::Nfkc | Step::Nfkd if text.is_ascii() => None,
            Step::Nfc => Some(text.nfc().map(|(c, _)| c).collect()),
            Step::Nfd => Some(text.nfd().map(|(c, _)| c).collect()),
            Step::Nfkc => Some(text.nfkc().map(|(c, _)| c).collect()),
            Step::Nfkd => Some(text.nfkd().map(|(c, _)| c).collect()),
            // Character by character like the crate, so without the rule for a final sigma.
            Step::Lowercase => Some(text.chars().flat_map(char::to_lowercase).collect()),
        })
    }
}
