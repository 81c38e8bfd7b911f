//! A whole answer as one JSON body, written while it is read.
//!
//! ```text
//! {"id":..,"choices":[{"index":0,..,"logprobs":{"content":[ token, token, .. ],..},..},..],"usage":..}
//! text ----------------------------------------------------|  list            | text --------------->
//! ```
//!
//! Log probabilities of a token take ten times as much as JSON as they take as numbers: 64 answers of 3,000 tokens with
//! 20 each are 400 MB. So they stay numbers, and become JSON a piece at a time, as fast as the client reads.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use engine::TokenLogprob;
use hyper::body::{Body, Bytes, Frame};
use serde::Serialize;
use transport::answer_memory::Charge;

use crate::app::App;
use crate::openai::logprobs::TokenTexts;

/// Bytes written at once, about.
const PIECE_BYTES: usize = 64 << 10;

/// The numbers of an answer from which its lists are written.
#[derive(Default)]
pub(crate) struct Numbers {
    /// Prompts as tokens.
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) prompt_logprobs: Vec<Vec<Option<TokenLogprob>>>,
    pub(crate) logprobs: Vec<Vec<TokenLogprob>>,
    /// Choices of a prompt.
    pub(crate) num_answers: usize,
    /// A choice's lists begin with its prompt.
    pub(crate) echoes: bool,
    /// Tokens are shown as ids.
    pub(crate) as_ids: bool,
}

/// A list of the body, for one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// `logprobs.content` of a chat.
    Content,
    /// The same as Ollama has it.
    Logprobs,
    /// The same as llama-server has it.
    Probabilities,
    TextOffset,
    TokenLogprobs,
    Tokens,
    TopLogprobs,
    PromptLogprobs,
}

impl List {
    /// How it stands in the body before it is filled.
    fn hole(self) -> &'static str {
        match self {
            List::Content => "\"content\":[]",
            List::Logprobs => "\"logprobs\":[]",
            List::Probabilities => "\"completion_probabilities\":[]",
            List::TextOffset => "\"text_offset\":[]",
            List::TokenLogprobs => "\"token_logprobs\":[]",
            List::Tokens => "\"tokens\":[]",
            List::TopLogprobs => "\"top_logprobs\":[]",
            List::PromptLogprobs => "\"prompt_logprobs\":[]",
        }
    }
}

enum Part {
    Text(String),
    List {
        list: List,
        choice: usize,
        /// Entries that are written.
        at: usize,
        /// Characters of those.
        offset: usize,
    },
}

/// See the module's picture.
pub(crate) struct Whole {
    app: Arc<App>,
    numbers: Numbers,
    parts: VecDeque<Part>,
    /// Written and not sent.
    written: Vec<u8>,
    _charge: Option<Charge>,
}

impl Whole {
    /// `json`: the body with its lists empty; `lists`: in the order in which they stand there, each with its choice.
    pub(crate) fn new(
        app: Arc<App>,
        numbers: Numbers,
        json: &str,
        lists: &[(List, usize)],
        charge: Option<Charge>,
    ) -> Whole {
        let mut parts = VecDeque::with_capacity(2 * lists.len() + 1);
        let mut rest = json;
        for &(list, choice) in lists {
            // No text of a stranger looks like this: its quotation marks stand behind backslashes.
            let hole = list.hole();
            let at = rest.find(hole).expect("each list stands in the body") + hole.len() - 1;
            parts.push_back(Part::Text(rest[..at].to_string()));
            parts.push_back(Part::List { list, choice, at: 0, offset: 0 });
            rest = &rest[at..];
        }
        parts.push_back(Part::Text(rest.to_string()));
        Whole { app, numbers, parts, written: Vec::new(), _charge: charge }
    }

    /// The body as it is sent.
    pub(crate) fn body(mut self) -> axum::body::Body {
        self.short().map_or_else(|| axum::body::Body::new(self), Into::into)
    }

    /// The body, if one piece is all there is; then its length is known.
    fn short(&mut self) -> Option<Vec<u8>> {
        self.written = self.piece();
        self.parts.is_empty().then(|| std::mem::take(&mut self.written))
    }

    /// The next piece; empty after the last.
    fn piece(&mut self) -> Vec<u8> {
        let mut json = Vec::new();
        while json.len() < PIECE_BYTES {
            match self.parts.front_mut() {
                None => break,
                Some(Part::Text(text)) => {
                    json.extend_from_slice(text.as_bytes());
                    self.parts.pop_front();
                }
                Some(Part::List { list, choice, at, offset }) => {
                    let tokenizer = self.app.engine.model().tokenizer.as_deref();
                    let texts = TokenTexts { tokenizer, as_ids: self.numbers.as_ids };
                    let before = json.len();
                    json.extend_from_slice(if *at > 0 { b"," } else { b"" });
                    if self.numbers.entry(*list, *choice, *at, offset, &texts, &mut json) {
                        *at += 1;
                    } else {
                        json.truncate(before);
                        self.parts.pop_front();
                    }
                }
            }
        }
        json
    }
}

impl Numbers {
    /// Writes entry `at` of a list; false if there is none.
    fn entry(
        &self,
        list: List,
        choice: usize,
        at: usize,
        offset: &mut usize,
        texts: &TokenTexts<'_>,
        json: &mut Vec<u8>,
    ) -> bool {
        let prompt = choice / self.num_answers;
        if list == List::PromptLogprobs {
            let Some(logprob) = self.prompt_logprobs[prompt].get(at) else { return false };
            write(json, &texts.by_id(logprob.as_ref()));
            return true;
        }
        let echoed: &[u32] = if self.echoes { &self.prompts[prompt] } else { &[] };
        let (token, logprob) = match echoed.get(at) {
            Some(&token) => (token, self.prompt_logprobs[prompt].get(at).and_then(Option::as_ref)),
            None => match self.logprobs[choice].get(at - echoed.len()) {
                Some(logprob) => (logprob.token, Some(logprob)),
                None => return false,
            },
        };
        match list {
            List::Content | List::Logprobs => write(json, &logprob.map(|logprob| texts.chat(logprob))),
            List::Probabilities => write(json, &logprob.map(|logprob| texts.llama(logprob))),
            List::TextOffset => {
                write(json, offset);
                *offset += texts.text(token).chars().count();
            }
            List::TokenLogprobs => write(json, &texts.logprob(logprob)),
            List::Tokens => write(json, &texts.text(token)),
            List::TopLogprobs => write(json, &texts.top(logprob)),
            List::PromptLogprobs => unreachable!("it has entries of its own"),
        }
        true
    }
}

fn write(json: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(json, value).expect("strings, finite numbers and lists serialize");
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = if self.written.is_empty() { self.piece() } else { std::mem::take(&mut self.written) };
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece.into()))))
    }
}
