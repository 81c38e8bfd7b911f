//! What is heard in an answer: thoughts, text, calls of tools.

use std::sync::Arc;

use dialect::{AnswerPart, Dialect, Listener, Tool, whole};

use super::Plan;
use crate::timeline::Served;

/// How the answers of a request are listened to.
#[derive(Clone)]
pub(crate) struct Hearing {
    pub(crate) dialect: Dialect,
    /// What may be called.
    pub(crate) tools: Arc<[Tool]>,
    /// The last part of the prompt, in which a thought may have begun.
    pub(crate) prompt_end: String,
    /// Whether the client wants to see what was thought.
    pub(crate) shows_thoughts: bool,
}

impl Hearing {
    /// The parts of a whole answer.
    pub(crate) fn whole(&self, text: &str) -> Vec<AnswerPart> {
        let mut parts = whole(&self.dialect, self.tools.clone(), &self.prompt_end, text);
        Shown::new(self).keep(&mut parts);
        parts
    }
}

/// Which of the parts a client sees.
struct Shown {
    thoughts: bool,
    /// White space between a thought and the answer is neither.
    trims: bool,
}

impl Shown {
    fn new(hearing: &Hearing) -> Shown {
        Shown { thoughts: hearing.shows_thoughts, trims: hearing.dialect.thoughts.is_some() }
    }

    fn keep(&mut self, parts: &mut Vec<AnswerPart>) {
        parts.retain_mut(|part| match part {
            AnswerPart::Thought(_) => self.thoughts,
            AnswerPart::Text(text) if self.trims => {
                let start = text.len() - text.trim_start().len();
                text.drain(..start);
                self.trims = text.is_empty();
                !text.is_empty()
            }
            _ => true,
        });
    }
}

/// Listens to one answer, and notes which tokens of it are thought.
pub(crate) struct Ear {
    served: Arc<Served>,
    /// Of the answer, over all prompts.
    index: usize,
    tokens: usize,
    listener: Listener,
    shown: Shown,
    /// Tokens of thoughts, their marks included.
    thought_tokens: usize,
}

impl Ear {
    /// `None` where nobody wants to hear more than the text. `index`: of the answer, over all prompts.
    pub(crate) fn of(plan: &Plan, served: &Arc<Served>, index: usize) -> Option<Ear> {
        let hearing = plan.hearing.as_ref()?;
        Some(Ear {
            served: served.clone(),
            index,
            tokens: 0,
            listener: Listener::new(&hearing.dialect, hearing.tools.clone(), &hearing.prompt_end),
            shown: Shown::new(hearing),
            thought_tokens: 0,
        })
    }

    /// The next token.
    pub(crate) fn token(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        let before = self.listener.is_thinking();
        self.listener.push(text, parts);
        if before || self.listener.is_thinking() {
            self.thought_tokens += 1;
            self.served.thoughts[self.index].grow(self.tokens);
        } else {
            self.served.thoughts[self.index].close();
        }
        self.tokens += 1;
        self.shown.keep(parts);
    }

    /// The answer has ended, with this text that was held back. True: it has called something, as it should.
    pub(crate) fn end(&mut self, text: &str, parts: &mut Vec<AnswerPart>) -> bool {
        self.listener.push(text, parts);
        self.listener.finish(parts);
        self.served.thoughts[self.index].close();
        self.shown.keep(parts);
        self.listener.num_calls() > 0 && self.listener.calls_complete()
    }

    pub(crate) fn thought_tokens(&self) -> usize {
        self.thought_tokens
    }
}
