//! How families of models write thoughts and calls of tools: text in, parts out.
//!
//! ```text
//! "<think>hm</think>Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>"
//!         ^^ Thought Text          mark           CallBegins                     Arguments      CallEnds   mark
//! ```
//!
//! A [`Dialect`] says what the marks are: seen in a chat template, or named as `--tool-call-parser` and
//! `--reasoning-parser` of vLLM name them. A [`Listener`] hears one answer, in pieces of any length, and tells its
//! parts.
//!
//! **No text is lost.** Every character of an answer is in a part, or in a mark, or is white space that stands alone
//! between marks (after a thought, between two calls, behind the last one). White space beside a mark with text on its
//! other side is kept as it was written, as vLLM does. What looked like a call and is none is [`AnswerPart::Text`],
//! letter by letter: from its opening mark up to what does not fit, and what follows is heard anew. A call of a tool
//! that was not offered is text too, other than in vLLM: who asked cannot run it, and is told no name that he does not
//! know. A thought begins where no text stands before it: a mark in the middle of a text is spoken of. Behind a
//! thought that was closed from outside ([`Listener::cut`]) none is: a model that is not told of that writes marks where
//! it likes, and no one of them is text.
//!
//! **There is no half of a call.** A call begins when its name is complete and is one of the tools', and the arguments
//! have begun as the family writes them; the pieces of its arguments are a prefix of valid JSON at every moment. Where
//! it goes wrong later, or the answer is cut, it does not end ([`Listener::calls_complete`]); [`whole`] leaves such a
//! call out and gives its text instead.
//!
//! **What can mean one thing only is put right**, by the form that it is written in and not by the family. Values in
//! tags: a closing mark that is missing, one inside the value, a value of the wrong kind. JSON: backslashes, control
//! characters and quotes inside texts, single quotes, keys without any, Python's words, commas with nothing behind
//! them, a brace that is missing where a mark says the call is over. Python: every text that Python reads. In all of
//! them: marks twice, no end of a group, a prefix of the name (`functions.`), a fence inside the marks. A call in a
//! thought is one if the thought never closes. What an answer that was cut may look like too is no call.
//!
//! There is no file, clock or network here, and no token: what counts tokens asks [`Listener::is_thinking`].

mod envelope;
mod family;
mod gemma;
mod grammar;
mod harmony;
mod json;
mod listener;
mod named;
mod python;
mod schema;
mod tags;
mod tape;
mod tool_names;
mod undecided;
mod unseen;

use std::sync::Arc;

use serde_json::Value;

pub use family::{Calls, Thoughts};
pub use grammar::{Choice, Form};
pub use listener::{Listener, whole, whole_cut};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// What the model thinks before it answers, without its marks.
    Thought(String),
    /// What it says.
    Text(String),
    /// A call of a tool.
    CallBegins {
        /// Which call of the answer, from 0.
        index: usize,
        /// The tool: one of those that were offered.
        name: String,
        /// What the model itself calls the call, where its family does so.
        id: Option<String>,
    },
    /// The next piece of the arguments. All pieces of a call that ends are one JSON object.
    Arguments {
        /// Which call.
        index: usize,
        /// A piece of JSON.
        json: String,
    },
    /// The call is complete.
    CallEnds {
        /// Which call.
        index: usize,
    },
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments, `{}` if nothing is known of them.
    pub parameters: Value,
    /// Whether arguments must follow the schema even if nobody asks for a call.
    pub strict: bool,
}

/// How a thought is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtMarks {
    /// Whether the answer begins inside it.
    pub is_open: bool,
    /// What opens one, at the beginning of an answer.
    pub opens: &'static [&'static str],
    /// Whether one may also begin behind text, as a message of its own.
    pub opens_anywhere: bool,
    /// What closes it.
    pub closes: &'static [&'static str],
    /// The text that closes it from outside and goes on to the answer, as the family writes it: for a budget of tokens
    /// that is used up.
    pub closing: &'static str,
    /// The same where a call may follow.
    pub yielding: &'static str,
}

/// How a model writes what is not text. Nothing, by default: all that it writes is text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// How it thinks, if it does.
    pub thoughts: Option<Thoughts>,
    /// How it calls tools, if it can.
    pub calls: Option<Calls>,
    /// Special tokens of the vocabulary. But for marks, they stand between messages.
    specials: Arc<[String]>,
    /// Whether no answer may begin a thought.
    is_thoughtless: bool,
    /// Whether text that has begun has no calls in it.
    is_formed: bool,
}

impl Dialect {
    /// One whose parts are named.
    pub fn new(thoughts: Option<Thoughts>, calls: Option<Calls>) -> Dialect {
        Dialect { thoughts, calls, ..Dialect::default() }
    }

    /// The same, but its grammars have no thought in them that the prompt has not begun.
    #[must_use]
    pub fn thoughtless(self) -> Dialect {
        Dialect { is_thoughtless: true, ..self }
    }

    /// The same, of an answer that has a form or calls: what stands in the text of the form is no call.
    #[must_use]
    pub fn formed(self) -> Dialect {
        Dialect { is_formed: true, ..self }
    }

    /// What a chat template itself shows. `sources`: all its texts, one after the other. `special_tokens`: the texts of
    /// the vocabulary's special tokens; they decide where the template has no example of a call, and tell a thought
    /// that the template opens from one in somebody's message.
    pub fn of_template(sources: &str, special_tokens: &[impl AsRef<str>]) -> Dialect {
        let tokens: Vec<&str> = special_tokens.iter().map(AsRef::as_ref).filter(|token| !token.is_empty()).collect();
        Dialect {
            thoughts: Thoughts::of_template(sources, &tokens),
            calls: Calls::of_template(sources, &tokens),
            specials: tokens.into_iter().map(str::to_owned).collect(),
            ..Dialect::default()
        }
    }

    /// Texts that may be special tokens of the vocabulary, and must be shown to the listener (and be plain text to a
    /// grammar) all the same.
    pub fn marks(&self) -> Vec<&'static str> {
        let mut marks = self.thoughts.map(Thoughts::marks).unwrap_or_default();
        marks.extend(self.calls.map(Calls::marks).unwrap_or_default());
        marks.retain(|mark| !mark.is_empty());
        marks.sort_unstable();
        marks.dedup();
        marks
    }

    /// How a thought in an answer to this prompt begins and ends, if the model thinks.
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

    /// Whether an answer to this prompt begins inside a thought.
    pub(crate) fn opens_thought(&self, prompt_end: &str) -> bool {
        let Some(thoughts) = self.thoughts else { return false };
        // A message of the user's may hold a mark too; behind it comes the end of its turn.
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
