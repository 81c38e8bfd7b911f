//! Filling a gap: how each family of models marks what stands before it and behind it (fill in the middle: Bavarian et
//! al., 2022).
//!
//! ```text
//! most:       PREFIX before SUFFIX behind MIDDLE -> what belongs between them
//! Codestral:  SUFFIX behind PREFIX before        -> the same
//! ```

use crate::tokenizer::{TextError, Tokenizer};

/// Names of the three marks; no third one: what is behind comes first, and the prefix is gone on with.
type Names = (&'static str, &'static str, Option<&'static str>);

const NAMES: [Names; 7] = [
    // Qwen and CodeGemma; StarCoder and Granite; DeepSeek; GLM; CodeLlama, as its vocabulary or its file has them;
    // Codestral.
    ("<|fim_prefix|>", "<|fim_suffix|>", Some("<|fim_middle|>")),
    ("<fim_prefix>", "<fim_suffix>", Some("<fim_middle>")),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", Some("<｜fim▁end｜>")),
    ("<|code_prefix|>", "<|code_suffix|>", Some("<|code_middle|>")),
    ("▁<PRE>", "▁<SUF>", Some("▁<MID>")),
    ("<PRE>", "<SUF>", Some("<MID>")),
    ("[PREFIX]", "[SUFFIX]", None),
];

const SEPARATORS: [&str; 2] = ["<|file_sep|>", "<file_sep>"];

/// Others that stand between texts: none belongs to what fills a gap.
const ENDS: [&str; 7] = ["<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<reponame>", "<|endoftext|>", "▁<EOT>", "<EOT>"];

/// The marks of one model.
pub struct InfillMarks {
    prefix: u32,
    suffix: u32,
    middle: Option<u32>,
    separator: Option<u32>,
    /// Tokens at which what fills the gap is over.
    pub ends: Vec<u32>,
}

/// A gap in a text.
pub struct TextGap<'a> {
    /// What stands before it.
    pub before: &'a str,
    /// What stands behind it.
    pub behind: &'a str,
    /// How what is between them begins.
    pub begun: &'a str,
    /// Names and texts of other files.
    pub files: &'a [(String, String)],
}

impl InfillMarks {
    /// Those of this vocabulary; `None`: the model was not taught to fill gaps.
    pub fn of(tokenizer: &Tokenizer) -> Option<InfillMarks> {
        let id = |name: &str| tokenizer.token_id(name);
        let (prefix, suffix, middle) = NAMES.iter().find_map(|&(prefix, suffix, middle)| {
            let middle = match middle {
                Some(name) => Some(id(name)?),
                None => None,
            };
            Some((id(prefix)?, id(suffix)?, middle))
        })?;
        let separator = SEPARATORS.iter().find_map(|name| id(name));
        let others = ENDS.iter().filter_map(|name| id(name));
        let ends = [prefix, suffix].into_iter().chain(middle).chain(separator).chain(others).collect();
        Some(InfillMarks { prefix, suffix, middle, separator, ends })
    }

    /// Whether there is one between files.
    pub fn separates_files(&self) -> bool {
        self.separator.is_some()
    }

    /// What the model reads. Marks inside the texts are plain text. Cost: linear in their bytes.
    pub fn prompt(&self, gap: &TextGap<'_>, tokenizer: &Tokenizer) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        let mut put = |mark: Option<u32>, text: &str| -> Result<(), TextError> {
            ids.extend(mark);
            if !text.is_empty() {
                ids.extend(tokenizer.encode_plain(text)?);
            }
            Ok(())
        };
        for (name, text) in gap.files {
            put(self.separator, &format!("{name}\n{text}\n"))?;
        }
        match self.middle {
            Some(_) => {
                put(Some(self.prefix), gap.before)?;
                put(Some(self.suffix), gap.behind)?;
                put(self.middle, gap.begun)?;
            }
            None => {
                put(Some(self.suffix), gap.behind)?;
                put(Some(self.prefix), &format!("{}{}", gap.before, gap.begun))?;
            }
        }
        tokenizer.with_special_tokens(&ids)
    }
}
