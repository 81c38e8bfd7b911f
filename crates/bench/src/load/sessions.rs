//! Conversations: each turn quotes what was said before it, the server's own answers among it.
//!
//! ```text
//! planned    [ question 1 ]    [ question 2 ]     pauses, lengths: those of the simulator's sessions
//! sent       question 1        question 1, answer 1, question 2        ...
//! ```
//! What an answer says is known when it is there, so a turn is put together when its turn comes. As token ids the quoted
//! answer is the tokens that the server returned; a server that returns none is quoted invented ids, and its cache
//! can then hold no more than the prompts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::load::plan::{PlannedPrompt, PlannedRequest, invented};

/// What was said in an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
}

/// A turn that is over and will be quoted: its whole prompt, and its answer.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) prompt: PlannedPrompt,
    pub(crate) said: Said,
}

/// What is sent after `turn`: all of it, and then what `next` has that is new.
pub(crate) fn continued(turn: Turn, before: u64, next: PlannedRequest) -> PlannedRequest {
    let Turn { prompt, said } = turn;
    let prompt = match (prompt, next.prompt) {
        (PlannedPrompt::Tokens(mut ids), PlannedPrompt::Tokens(new)) => {
            let quoted = if said.ids.is_empty() { invented(before, next.quoted_tokens) } else { said.ids };
            ids.extend(quoted);
            ids.extend(new);
            PlannedPrompt::Tokens(ids)
        }
        (PlannedPrompt::Words(first), PlannedPrompt::Words(new)) => PlannedPrompt::Chat(vec![first, said.text, new]),
        (PlannedPrompt::Chat(mut all), PlannedPrompt::Words(new)) => {
            all.extend([said.text, new]);
            PlannedPrompt::Chat(all)
        }
        (_, new) => new,
    };
    let prompt_tokens = match &prompt {
        PlannedPrompt::Tokens(ids) => ids.len(),
        _ => next.prompt_tokens,
    };
    PlannedRequest { prompt, prompt_tokens, ..next }
}

/// Which request is sent next, and when: first turns at their moments, the others a pause after the end of the one
/// before.
#[derive(Debug)]
pub(crate) struct Agenda {
    asks: Vec<Option<PlannedRequest>>,
    /// By predecessor.
    followers: Vec<Option<usize>>,
    due: BinaryHeap<Reverse<(Duration, usize)>>,
}

impl Agenda {
    pub(crate) fn of(load: Vec<PlannedRequest>) -> Agenda {
        let mut followers = vec![None; load.len()];
        for (index, ask) in load.iter().enumerate() {
            if let Some(before) = ask.follows {
                followers[before] = Some(index);
            }
        }
        let open = load.iter().enumerate().filter(|(_, ask)| ask.follows.is_none());
        let due = open.map(|(index, ask)| Reverse((ask.at, index))).collect();
        Agenda { asks: load.into_iter().map(Some).collect(), followers, due }
    }

    /// Whether any is due, ever, and when.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.due.peek().map(|&Reverse((at, _))| at)
    }

    /// Takes the next one.
    pub(crate) fn take(&mut self) -> Option<(usize, PlannedRequest)> {
        let Reverse((_, index)) = self.due.pop()?;
        Some((index, self.asks[index].take()?))
    }

    /// Request `index` has ended at `now`; with its turn, if it will be quoted.
    pub(crate) fn ended(&mut self, index: usize, now: Duration, turn: Option<Turn>) {
        let Some(next) = self.followers[index] else { return };
        let Some((turn, ask)) = turn.zip(self.asks[next].take()) else { return };
        let at = now + ask.at;
        let before = ask.quotes;
        self.asks[next] = Some(PlannedRequest { at, ..continued(turn, before, ask) });
        self.due.push(Reverse((at, next)));
    }

    /// Requests that are not sent because `index` had no answer.
    pub(crate) fn given_up(&mut self, index: usize) -> Vec<usize> {
        std::iter::successors(self.followers[index], |&index| self.followers[index]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(prompt: PlannedPrompt, follows: Option<usize>, at: u64) -> PlannedRequest {
        PlannedRequest { at: Duration::from_millis(at), follows, ..PlannedRequest::single(prompt, 2, 3) }
    }

    #[test]
    fn a_turn_quotes_what_was_said() {
        let words = |text: &str| PlannedPrompt::Words(text.into());
        let said = |text: &str, ids: &[u32]| Said { text: text.into(), ids: ids.to_vec() };
        let turn = Turn { prompt: words("one"), said: said("two", &[]) };
        let second = continued(turn, 0, ask(words("three"), Some(0), 0));
        assert_eq!(second.prompt, PlannedPrompt::Chat(vec!["one".into(), "two".into(), "three".into()]));
        let third =
            continued(Turn { prompt: second.prompt, said: said("four", &[]) }, 0, ask(words("five"), Some(1), 0));
        let PlannedPrompt::Chat(all) = third.prompt else { panic!("a chat") };
        assert_eq!(all, ["one", "two", "three", "four", "five"]);
        let ids = |ids: &[u32]| PlannedPrompt::Tokens(ids.to_vec());
        let turn = || ids(&[1, 2]);
        let next = continued(Turn { prompt: turn(), said: said("x", &[8, 9]) }, 7, ask(ids(&[5]), Some(0), 0));
        assert_eq!((next.prompt, next.prompt_tokens), (ids(&[1, 2, 8, 9, 5]), 5));
        // A server that returns no ids: `quoted_tokens` ids drawn from the answer's name.
        let plain = PlannedRequest { quoted_tokens: 4, ..ask(ids(&[5]), Some(0), 0) };
        let next = continued(Turn { prompt: turn(), said: said("x", &[]) }, 7, plain);
        assert_eq!(next.prompt_tokens, 2 + 4 + 1);
    }

    #[test]
    fn a_turn_comes_a_pause_after_the_one_before_and_not_at_all_after_a_failure() {
        let words = || PlannedPrompt::Words("x".into());
        let ms = Duration::from_millis;
        // Two sessions: 0, 1, 2 and 3, 4.
        let load = vec![
            ask(words(), None, 0),
            ask(words(), Some(0), 50),
            ask(words(), Some(1), 20),
            ask(words(), None, 10),
            ask(words(), Some(3), 5),
        ];
        let mut agenda = Agenda::of(load);
        assert_eq!(agenda.take().map(|(index, _)| index), Some(0));
        assert_eq!((agenda.next(), agenda.take().map(|(index, _)| index)), (Some(ms(10)), Some(3)));
        assert_eq!(agenda.next(), None);
        let turn = || Some(Turn { prompt: words(), said: Said::default() });
        agenda.ended(0, ms(100), turn());
        agenda.ended(3, ms(120), turn());
        assert_eq!(agenda.next(), Some(ms(125)));
        assert_eq!(agenda.take().map(|(index, _)| index), Some(4));
        let (index, second) = agenda.take().expect("it is due");
        assert_eq!((index, second.at), (1, ms(150)));
        assert!(matches!(second.prompt, PlannedPrompt::Chat(_)));
        assert_eq!((agenda.given_up(1), agenda.given_up(4)), (vec![2], vec![]));
        agenda.ended(1, ms(200), None);
        assert_eq!(agenda.take(), None);
    }
}
