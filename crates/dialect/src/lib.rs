//! Parsing of thoughts (reasoning) and tool calls of model families: answer text in, parts out.
//!
//! ```text
//! "<think>hm</think>Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>"
//!         ^^ Thought Text          mark           CallBegins                     Arguments      CallEnds   mark
//! ```
//!
//! A [`Dialect`] is the pair of formats: detected from a chat template, or named as in vLLM's `--tool-call-parser` and
//! `--reasoning-parser`. A [`AnswerParser`] parses one answer, in pieces of any length, into parts.
//!
//! **No text is lost.** Every character of an answer is in a part, or in a mark, or is white space alone between marks
//! (after a thought, between two calls, after the last one). White space beside a mark with text on its other side is
//! kept, as in vLLM. What looked like a call but is not is [`AnswerPart::Text`], unchanged: from its opening mark up to
//! the error, and the rest is parsed again. Unlike in vLLM, a call of a tool that was not offered is text too: the client
//! cannot run it, and gets no unknown name. A thought begins only before any text: a mark in the middle of text is quoted
//! text. After a thought that was closed from outside ([`AnswerParser::cut`]) no thought begins: the model does not know
//! about that and may write marks anywhere, and none of them is text but those in a form ([`Dialect::formed`]).
//!
//! **There are no partial calls.** A call begins when its name is complete and is one of the tools', and its arguments
//! have begun in the family's format; the pieces of its arguments are always a prefix of valid JSON. If it fails
//! later, or the answer is cut, the call does not end ([`AnswerParser::calls_complete`]); [`whole`] omits such a call and
//! returns its text instead.
//!
//! **Unambiguous mistakes are repaired**, by syntax and not by family. Values in tags: a missing closing mark, one inside
//! the value, a value of the wrong type. JSON: backslashes, control characters and quotes inside strings, single quotes,
//! unquoted keys, Python keywords, trailing commas, a missing brace before a mark that ends the call. Python: every
//! string literal of Python, but for `\N{...}`, which stays as written. In all of them: repeated marks, a missing group
//! end, a prefix of the name (`functions.`), a code fence inside the marks. A call in a thought counts if the thought
//! never closes. Text that could also be a truncated call is not repaired to one.
//!
//! There is no file, clock or network here, and no tokens: token counters ask [`AnswerParser::is_thinking`].

mod answer_parser;
mod char_stream;
mod envelope;
mod family;
mod gemma;
mod grammar;
mod harmony;
mod json;
mod literal;
mod mark_filter;
mod named;
mod python;
mod schema;
mod tags;
mod thought_calls;
mod tool_names;

use std::sync::Arc;

use serde_json::Value;

pub use answer_parser::{AnswerParser, whole, whole_cut};
pub use family::{Calls, Thoughts};
pub use grammar::{Choice, Form};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Reasoning before the answer, without its marks.
    Thought(String),
    /// Answer text.
    Text(String),
    /// A tool call begins.
    CallBegins {
        /// Index of the call in the answer, from 0.
        index: usize,
        /// Name of an offered tool.
        name: String,
        /// The model's id of the call, if its format has one.
        id: Option<String>,
    },
    /// The next piece of the arguments. All pieces of a complete call are one JSON object.
    Arguments {
        /// Index of the call.
        index: usize,
        /// A piece of JSON.
        json: String,
    },
    /// The call is complete.
    CallEnds {
        /// Index of the call.
        index: usize,
    },
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments, `{}` if unknown.
    pub parameters: Value,
    /// Whether arguments must follow the schema even if no call is required.
    pub strict: bool,
}

/// Marks of a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtMarks {
    /// Whether the answer begins inside it.
    pub is_open: bool,
    /// Opening marks, at the beginning of an answer.
    pub opens: &'static [&'static str],
    /// Whether a thought may also begin after text, as a separate message.
    pub opens_anywhere: bool,
    /// Closing marks.
    pub closes: &'static [&'static str],
    /// The family's text that closes a thought from outside and continues with the answer: for an exhausted reasoning
    /// budget.
    pub closing: &'static str,
    /// The same where a call may follow.
    pub yielding: &'static str,
}

/// Formats of a model's thoughts and calls. By default neither: all output is text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// Reasoning format, if any.
    pub thoughts: Option<Thoughts>,
    /// Tool-call format, if any.
    pub calls: Option<Calls>,
    /// Special tokens of the vocabulary. Apart from marks, they separate messages.
    specials: Arc<[String]>,
    /// Whether an answer must not begin a thought.
    is_thoughtless: bool,
    /// Whether text that has begun contains neither calls nor marks.
    is_formed: bool,
}

impl Dialect {
    /// A dialect of these formats.
    pub fn new(thoughts: Option<Thoughts>, calls: Option<Calls>) -> Dialect {
        Dialect { thoughts, calls, ..Dialect::default() }
    }

    /// The same with grammars that contain a thought only if the prompt has begun it.
    #[must_use]
    pub fn thoughtless(self) -> Dialect {
        Dialect { is_thoughtless: true, ..self }
    }

    /// The same for an answer that is either of a form or calls: text of the form contains no calls, and its marks are
    /// text.
    #[must_use]
    pub fn formed(self) -> Dialect {
        Dialect { is_formed: true, ..self }
    }

    /// Detects the formats from a chat template. `sources`: all its texts, concatenated. `special_tokens`: the texts of the
    /// vocabulary's special tokens; they decide if the template has no example of a call, and distinguish a thought
    /// that the template opens from one in a message.
    pub fn of_template(sources: &str, special_tokens: &[impl AsRef<str>]) -> Dialect {
        let tokens: Vec<&str> = special_tokens.iter().map(AsRef::as_ref).filter(|token| !token.is_empty()).collect();
        Dialect {
            thoughts: Thoughts::of_template(sources, &tokens),
            calls: Calls::of_template(sources, &tokens),
            specials: tokens.into_iter().map(str::to_owned).collect(),
            ..Dialect::default()
        }
    }

    /// With the formats of these names, where they are given, in place of what the template shows.
    pub fn with_parsers(mut self, thoughts: Option<&str>, calls: Option<&str>) -> Dialect {
        if let Some(name) = thoughts {
            self.thoughts = Thoughts::named(name);
        }
        if let Some(name) = calls {
            self.calls = Calls::named(name);
        }
        self
    }

    /// Texts that may be special tokens of the vocabulary, but must be visible to the parser (and be plain text to a
    /// grammar).
    pub fn marks(&self) -> Vec<&'static str> {
        let mut marks = self.thoughts.map(Thoughts::marks).unwrap_or_default();
        marks.extend(self.calls.map(Calls::marks).unwrap_or_default());
        marks.retain(|mark| !mark.is_empty());
        marks.sort_unstable();
        marks.dedup();
        marks
    }

    /// The marks of a thought in an answer to this prompt, if the model has a reasoning format.
    pub fn thought(&self, prompt_end: &str) -> Option<ThoughtMarks> {
        let thoughts = self.thoughts?;
        Some(ThoughtMarks {
            is_open: self.opens_thought(prompt_end),
            opens: thoughts.opens(),
            opens_anywhere: thoughts.is_harmony(),
            closes: thoughts.closes(),
            closing: thoughts.closing(),
            yielding: thoughts.yielding(),
        })
    }

    /// Whether an answer to this prompt is a form or calls with no thought before them, so that a mark is text.
    pub fn is_thoughtless_form(&self, prompt_end: &str) -> bool {
        let is_harmony = self.thoughts.is_some_and(Thoughts::is_harmony);
        self.is_thoughtless && self.is_formed && !is_harmony && !self.opens_thought(prompt_end)
    }

    /// Whether an answer to this prompt begins inside a thought.
    pub(crate) fn opens_thought(&self, prompt_end: &str) -> bool {
        let Some(thoughts) = self.thoughts else { return false };
        // A user message may contain a mark too; then the end of its turn comes after it.
        let marks = self.marks();
        let turns = self.specials.iter().filter(|special| !marks.contains(&special.as_str()));
        let turn = turns.filter_map(|turn| Some(prompt_end.rfind(turn.as_str())? + turn.len())).max();
        let own = &prompt_end[turn.unwrap_or(0)..];
        let last = |marks: &[&str]| marks.iter().filter_map(|mark| own.rfind(mark)).max();
        match (last(thoughts.opens()), last(thoughts.closes())) {
            (None, None) => thoughts.is_assumed(),
            (open, close) => open > close,
        }
    }
}
