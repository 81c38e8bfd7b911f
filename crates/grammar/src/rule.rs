//! What is asked for, before anything is known of a vocabulary.

use llguidance::api::TopLevelGrammar;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::budget::ThoughtBudget;
use crate::tokens::TokenRule;
use crate::{gbnf, limits};

/// Longest rule in bytes of its JSON. The schemas of a hundred tools are a quarter of it.
pub const MAX_RULE_BYTES: usize = 512 << 10;
/// Most texts of a choice.
pub const MAX_CHOICES: usize = 4096;

/// Spaces between the parts of JSON: none, one, or a line break with an indent. Without an end to them a model that has
/// begun to write spaces continues until it has no tokens left.
const JSON_SPACES: &str = r" |\n{1,2}[ \t]{0,40}";
/// Where a schema says how it is to be read, in llguidance's words.
pub(crate) const OPTIONS: &str = "x-guidance";

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A JSON object, whatever is in it.
    JsonObject,
    /// JSON that satisfies a schema (draft 2020-12, as far as llguidance has it; what it has not is refused).
    JsonSchema(Value),
    /// Text that an expression matches as a whole (syntax of Rust's `regex`).
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's dialect of Lark: its rule `start`.
    Lark(String),
    /// A grammar in llama.cpp's GBNF: its rule `root`.
    Gbnf(String),
    /// Something else first, such as a thought, or in its place, such as a call: Lark whose `start` names the rest as
    /// `@answer`.
    Behind {
        /// The Lark.
        thought: String,
        /// The rest.
        rule: Box<Rule>,
    },
    /// Anything, or what another rule wants, in which a thought has an end.
    Budget {
        /// Of the thought.
        thought: ThoughtBudget,
        /// What the whole answer must look like.
        rule: Option<Box<Rule>>,
    },
    /// Anything, or what another rule wants, of these tokens.
    Tokens {
        /// The tokens.
        tokens: TokenRule,
        /// What the answer must look like beside that.
        rule: Option<Box<Rule>>,
    },
}

/// A rule, taken apart into what is asked of tokens, of a thought, and of the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) tokens: Option<&'a TokenRule>,
    pub(crate) thought: Option<&'a ThoughtBudget>,
    pub(crate) text: Option<&'a Rule>,
}

/// What the rule behind a thought is called.
const ANSWER: &str = "answer";

/// Why there is no grammar. The text is llguidance's own where it is not ours, on one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Longer than [`MAX_RULE_BYTES`].
    #[error("it has {bytes} bytes; at most {MAX_RULE_BYTES} are taken")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// No text to choose, or more than [`MAX_CHOICES`].
    #[error("it has {count} texts to choose from; 1 to {MAX_CHOICES} are taken")]
    Choices {
        /// How many.
        count: usize,
    },
    /// More of something than compiling would be quick with.
    #[error("it has {count} {what}; at most {most} are taken")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many it may have.
        most: usize,
    },
    /// GBNF that is none.
    #[error("line {line}: {problem}")]
    Gbnf {
        /// Of the grammar's text.
        line: usize,
        /// What is wrong there.
        problem: String,
    },
    /// The compiler does not take it.
    #[error("{0}")]
    Refused(String),
    /// This model's tokens are not known.
    #[error("this model has no tokenizer, so nothing can be said of the text of its answers")]
    NoTokenizer,
}

impl Rule {
    /// Of a grammar's text, whichever of the two it is: only GBNF has the sign `::=`.
    pub fn of_grammar(text: String) -> Rule {
        if text.contains("::=") { Rule::Gbnf(text) } else { Rule::Lark(text) }
    }

    /// Each layer is looked for once: what is deeper than its place stays in the text, which refuses it.
    pub(crate) fn parts(&self) -> Parts<'_> {
        let (tokens, rest) = match self {
            Rule::Tokens { tokens, rule } => (Some(tokens), rule.as_deref()),
            other => (None, Some(other)),
        };
        let (thought, text) = match rest {
            Some(Rule::Budget { thought, rule }) => (Some(thought), rule.as_deref()),
            other => (None, other),
        };
        Parts { tokens, thought, text }
    }

    /// In the compiler's words.
    pub(crate) fn grammar(&self) -> Result<TopLevelGrammar, RuleError> {
        match self {
            Rule::JsonObject => Ok(TopLevelGrammar::from_json_schema(with_spaces(&json!({"type": "object"})))),
            Rule::JsonSchema(schema) => {
                limits::check_schema(schema)?;
                Ok(TopLevelGrammar::from_json_schema(with_spaces(schema)))
            }
            Rule::Regex(expression) => {
                limits::check_expression(expression)?;
                Ok(TopLevelGrammar::from_regex(expression))
            }
            Rule::Choice(texts) if texts.is_empty() || texts.len() > MAX_CHOICES => {
                Err(RuleError::Choices { count: texts.len() })
            }
            Rule::Choice(texts) => {
                // One terminal: of thousands the parser would follow each. A terminal is never empty.
                let or_nothing = if texts.iter().any(String::is_empty) { " | \"\"" } else { "" };
                let texts = texts.iter().filter(|text| !text.is_empty()).map(|text| quoted(text)).collect::<Vec<_>>();
                let text = if texts.is_empty() { "" } else { "TEXT" };
                let terminal = if texts.is_empty() { String::new() } else { format!("\nTEXT: {}", texts.join(" | ")) };
                Ok(TopLevelGrammar::from_lark(format!("start: {text}{or_nothing}{terminal}")))
            }
            Rule::Lark(text) => {
                limits::check_lark(text)?;
                Ok(TopLevelGrammar::from_lark(text.clone()))
            }
            Rule::Gbnf(text) => Ok(TopLevelGrammar::from_lark(gbnf::to_lark(text)?)),
            Rule::Behind { thought, rule } => {
                limits::check_lark(thought)?;
                let mut whole = TopLevelGrammar::from_lark(thought.clone());
                for (at, mut part) in rule.grammar()?.grammars.into_iter().enumerate() {
                    if at == 0 {
                        part.name = Some(ANSWER.to_owned());
                    }
                    whole.grammars.push(part);
                }
                Ok(whole)
            }
            Rule::Budget { .. } | Rule::Tokens { .. } => {
                Err(RuleError::Refused("budgets and tokens are the outermost of rules, tokens once".to_owned()))
            }
        }
    }

    /// Refuses what is too long to be looked at.
    pub(crate) fn check_length(&self) -> Result<(), RuleError> {
        let bytes = self.bytes();
        if bytes > MAX_RULE_BYTES { Err(RuleError::TooLong { bytes }) } else { Ok(()) }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Rule::JsonObject => 0,
            Rule::JsonSchema(schema) => schema.to_string().len(),
            Rule::Regex(text) | Rule::Lark(text) | Rule::Gbnf(text) => text.len(),
            Rule::Choice(texts) => texts.iter().map(String::len).sum(),
            Rule::Behind { thought, rule } => thought.len() + rule.bytes(),
            Rule::Budget { thought, rule } => thought.bytes() + rule.as_ref().map_or(0, |rule| rule.bytes()),
            Rule::Tokens { tokens, rule } => tokens.bytes() + rule.as_ref().map_or(0, |rule| rule.bytes()),
        }
    }
}

/// The schema, with bounded spaces unless it says itself what is between its parts.
pub(crate) fn with_spaces(schema: &Value) -> Value {
    let mut map = match schema {
        Value::Object(map) => map.clone(),
        Value::Bool(true) => Map::new(),
        // What is no schema is the compiler's to refuse.
        other => return other.clone(),
    };
    if let Value::Object(options) = map.entry(OPTIONS).or_insert_with(|| json!({})) {
        let is_said = ["whitespace_flexible", "whitespace_pattern"].iter().any(|key| options.contains_key(*key));
        if !is_said {
            options.insert("whitespace_pattern".into(), JSON_SPACES.into());
        }
    }
    Value::Object(map)
}

/// A text as Lark writes it.
pub(crate) fn quoted(text: &str) -> String {
    // JSON's escapes are Lark's, but Lark takes no plain delete.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
