//! Filling a gap: how each family of models marks what stands before it and behind it (fill in the middle: Bavarian et
//! al., 2022).
//!
//! ```text
//! most:       PREFIX before SUFFIX behind MIDDLE -> what belongs between them
//! Codestral:  SUFFIX behind PREFIX before        -> the same
//! ```

use engine::{ModelInfo, Prompt, RawRequest};
use text::tokenizer::{TextError, Tokenizer};
use transport::error::ApiError;

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
pub(crate) struct Marks {
    prefix: u32,
    suffix: u32,
    middle: Option<u32>,
    separator: Option<u32>,
    /// Tokens at which what fills the gap is over.
    ends: Vec<i64>,
}

/// A gap in a text.
pub(crate) struct Gap<'a> {
    pub(crate) before: &'a str,
    pub(crate) behind: &'a str,
    /// How what is between them begins.
    pub(crate) begun: &'a str,
    /// Names and texts of other files.
    pub(crate) files: &'a [(String, String)],
}

/// Puts what fills the gap into the place of the prompt. `field`: where the text before the gap is from; it is at
/// fault where no gap can be filled, unless the files are.
pub(crate) fn fill(gap: &Gap<'_>, model: &ModelInfo, raw: &mut RawRequest, field: &str) -> Result<(), ApiError> {
    let tokenizer = model.tokenizer.as_ref();
    let Some((tokenizer, marks)) = tokenizer.and_then(|tokenizer| Some((tokenizer, Marks::of(tokenizer)?))) else {
        let message = "This model fills no gaps: its vocabulary has no marks for what is before one and behind it.";
        return Err(ApiError::bad_request(message).with_param(field).with_code("no_infill"));
    };
    if !gap.files.is_empty() && marks.separator.is_none() {
        return Err(ApiError::unsupported("input_extra", "this model's vocabulary has no mark between files"));
    }
    let ids = marks
        .prompt(gap, tokenizer)
        .map_err(|error| ApiError::bad_request(format!("The texts cannot be read: {error}.")).with_param(field))?;
    raw.prompt = Prompt::Tokens(ids.into_iter().map(i64::from).collect());
    raw.stop_token_ids.extend(marks.ends);
    Ok(())
}

impl Marks {
    /// Those of this vocabulary; `None`: the model was not taught to fill gaps.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Option<Marks> {
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
        let ends = [prefix, suffix].into_iter().chain(middle).chain(separator).chain(others).map(i64::from).collect();
        Some(Marks { prefix, suffix, middle, separator, ends })
    }

    /// What the model reads. Marks inside the texts are plain text.
    fn prompt(&self, gap: &Gap<'_>, tokenizer: &Tokenizer) -> Result<Vec<u32>, TextError> {
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The vocabulary of this repository's model, with these marks as well.
    fn tokenizer(marks: &[&str]) -> Tokenizer {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lantern/tokenizer.json");
        let mut json: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("it is there")).unwrap();
        let added = json["added_tokens"].as_array_mut().unwrap();
        let template = added[0].clone();
        for (at, mark) in marks.iter().enumerate() {
            let mut token = template.clone();
            token["id"] = json!(2048 + at);
            token["content"] = json!(mark);
            added.push(token);
        }
        Tokenizer::from_json(&json.to_string(), None, None, 4096).expect("a tokenizer")
    }

    #[test]
    fn each_family_has_its_marks_in_its_order() {
        let gap = Gap { before: "one", behind: "three", begun: "t", files: &[] };
        for (marks, wanted) in [
            (
                &["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"][..],
                "<|fim_prefix|>one<|fim_suffix|>three<|fim_middle|>t",
            ),
            (&["<fim_prefix>", "<fim_middle>", "<fim_suffix>"], "<fim_prefix>one<fim_suffix>three<fim_middle>t"),
            (
                &["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
                "<｜fim▁begin｜>one<｜fim▁hole｜>three<｜fim▁end｜>t",
            ),
            (&["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"], "▁<PRE>one▁<SUF>three▁<MID>t"),
            (&["[SUFFIX]", "[PREFIX]"], "[SUFFIX]three[PREFIX]onet"),
        ] {
            let tokenizer = tokenizer(marks);
            let marks_of = Marks::of(&tokenizer).expect("it has marks");
            let ids = marks_of.prompt(&gap, &tokenizer).unwrap();
            assert_eq!(tokenizer.decode(&ids, false), wanted);
            assert!(marks.iter().all(|mark| marks_of.ends.contains(&tokenizer.token_id(mark).unwrap().into())));
        }
        assert!(Marks::of(&tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>"])).is_none(), "one is missing");
        assert!(Marks::of(&tokenizer(&[])).is_none());
    }

    #[test]
    fn marks_in_the_texts_are_texts_and_files_come_first() {
        let tokenizer = tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"]);
        let marks = Marks::of(&tokenizer).unwrap();
        let files = [("a.py".to_owned(), "x = 1".to_owned())];
        let gap = Gap { before: "<|fim_suffix|>", behind: "", begun: "", files: &files };
        let ids = marks.prompt(&gap, &tokenizer).unwrap();
        let text = tokenizer.decode(&ids, false);
        assert_eq!(text, "<|file_sep|>a.py\nx = 1\n<|fim_prefix|><|fim_suffix|><|fim_suffix|><|fim_middle|>");
        assert_eq!(ids.iter().filter(|&&id| id == marks.suffix).count(), 1);
    }
}
