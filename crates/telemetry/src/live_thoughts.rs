//! Thoughts on the feed: from which row of an answer on its tokens are thought, and up to which.
//!
//! A feed writes a step a moment after it was made, when the client of the answer may not have received its token yet.
//! So a thought is told twice, when it begins and when it is over, by the positions of rows, where a viewer looks.

use std::collections::BTreeMap;

use engine::{LoggedStep, RequestId};

use crate::live_events::{self as events, Names};
use crate::live_wire::ThoughtEvent;
use crate::thinking::Thought;
use crate::timeline::Registry;

/// Answers that are followed at most.
const MOST: usize = 1024;

/// What a reader was told.
#[derive(Default)]
pub struct Told {
    answers: BTreeMap<(RequestId, usize), State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unheard,
    Begun,
    Over,
}

impl Told {
    /// What is new of the answers in these steps, and of those that were not over.
    pub fn news(&mut self, text: &mut String, steps: &[LoggedStep], names: &mut Names, registry: &Registry) {
        for row in steps.iter().flat_map(|step| &step.record.decode) {
            if self.answers.len() >= MOST {
                self.answers.pop_first();
            }
            self.answers.entry((row.request, row.answer)).or_insert(State::Unheard);
        }
        self.answers.retain(|&(id, answer), state| {
            if *state == State::Over {
                return true;
            }
            let Some((trace, prompt)) = registry.trace(id) else { return false };
            let Some(thought) = trace.thoughts_of(prompt).get(answer) else { return false };
            if let Some(rows) = rows(thought, trace.prompt_tokens[prompt]) {
                let now = if thought.is_over() { State::Over } else { State::Begun };
                if *state != now {
                    let to = thought.is_over().then_some(rows.end);
                    let r = names.look_up(registry, id);
                    events::write(text, "thought", &ThoughtEvent { r, a: answer, from: rows.start, to });
                    *state = now;
                }
            }
            true
        });
    }
}

/// The rows that make a thought's tokens: the first token of an answer comes of its prompt, each other one of the row of
/// the token before it.
fn rows(thought: &Thought, prompt_tokens: usize) -> Option<std::ops::Range<usize>> {
    let tokens = thought.tokens()?;
    Some((prompt_tokens + tokens.start).max(prompt_tokens + 1) - 1..prompt_tokens + tokens.end - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_that_make_the_tokens() {
        for (first, last, expected) in [(0, 0, 100..100), (0, 4, 100..104), (1, 4, 100..104), (3, 4, 102..104)] {
            let thought = Thought::default();
            (first..=last).for_each(|token| thought.grow(token));
            assert_eq!(rows(&thought, 100), Some(expected), "tokens {first} to {last}");
        }
        assert_eq!(rows(&Thought::default(), 100), None);
    }
}
