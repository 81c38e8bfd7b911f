//! Other workers: answers that began there, prompts that are read there and come, late or never.

use std::collections::BTreeSet;

use scheduler::{AdmitError, Nanos, Request, TokenId};

use crate::model::Rng;
use crate::world::{Answer, Chaos};

/// What other workers do, in percent: of requests, or of each that is open in a tick. Nothing at all in two of five
/// seeds.
pub(crate) struct Elsewhere {
    /// Requests of which tokens were generated before they come.
    resumed: u64,
    /// Requests whose prompt is read elsewhere.
    expected: u64,
    /// Expected ones that come in a tick.
    pub(crate) ends: u64,
    /// Of these, those of which nothing comes.
    fails: u64,
}

impl Elsewhere {
    pub(crate) fn from(rng: &mut Rng) -> Elsewhere {
        if rng.percent(40) {
            return Elsewhere { resumed: 0, expected: 0, ends: 0, fails: 0 };
        }
        Elsewhere {
            resumed: rng.one_of(&[0, 20, 60]),
            expected: rng.one_of(&[0, 20, 60]),
            ends: rng.one_of(&[3, 20, 100]),
            fails: rng.one_of(&[0, 20, 100]),
        }
    }
}

/// What happened to a request before it came.
pub(crate) enum Before {
    Nothing,
    /// It still happens.
    Expected,
    /// Of each answer what was generated; none of those that ended.
    Generated(Vec<Option<Vec<TokenId>>>),
}

impl Before {
    /// Answers with a sequence of their own from the beginning; the others are forked.
    pub(crate) fn to_enter(&self) -> BTreeSet<usize> {
        match self {
            Before::Generated(generated) if knows_some(generated) => {
                (0..generated.len()).filter(|&answer| generated[answer].is_some()).collect()
            }
            _ => BTreeSet::from([0]),
        }
    }
}

/// Whether an answer has a token, or has ended.
fn knows_some(generated: &[Option<Vec<TokenId>>]) -> bool {
    !generated.iter().all(|tokens| tokens.as_ref().is_some_and(Vec::is_empty))
}

/// As the scheduler wants them.
pub(crate) fn as_slices(generated: &[Option<Vec<TokenId>>]) -> Vec<Option<&[TokenId]>> {
    generated.iter().map(|tokens| tokens.as_deref()).collect()
}

impl Chaos {
    /// Decides it for a request that comes now.
    pub(crate) fn before_it_came(&mut self, answers: &mut [Answer]) -> Before {
        let Elsewhere { resumed, expected, .. } = self.elsewhere;
        if self.far.percent(resumed) {
            let generated = generate(&mut self.far, answers);
            deliver(answers, &generated);
            return Before::Generated(generated);
        }
        if self.far.percent(expected) { Before::Expected } else { Before::Nothing }
    }

    pub(crate) fn note_before(&mut self, request: &Request, before: &Before) {
        match before {
            Before::Nothing => {}
            Before::Expected => _ = self.expected.insert(request.id),
            Before::Generated(generated) => self.note_generated(request, generated),
        }
    }

    fn note_generated(&mut self, request: &Request, generated: &[Option<Vec<TokenId>>]) {
        if !knows_some(generated) {
            return self.seen.saw("resumed without a token");
        }
        self.turns.has_paid(request);
        self.seen.saw("resumed from elsewhere");
        if generated.iter().flatten().count() > 1 {
            self.seen.saw("resumed with several answers");
        }
        if generated.iter().any(Option::is_none) {
            self.seen.saw("resumed after some answers ended");
        }
    }

    /// Some of what is expected comes, or turns out to be lost.
    pub(crate) fn hear_from_elsewhere(&mut self) {
        for id in self.expected.clone() {
            if !self.far.percent(self.elsewhere.ends) {
                continue;
            }
            let request = self.clients[&id].request.clone();
            let generated = if self.far.percent(self.elsewhere.fails) {
                vec![Some(Vec::new()); request.num_answers]
            } else {
                generate(&mut self.far, &self.clients[&id].answers)
            };
            let outcome = self.scheduler.expected_ended(id, &as_slices(&generated), Nanos(self.now));
            self.note(&outcome);
            match outcome {
                Ok(()) => {
                    self.expected.remove(&id);
                    let client = self.clients.get_mut(&id).expect("it was admitted");
                    deliver(&mut client.answers, &generated);
                    let before = Before::Generated(generated.clone());
                    client.to_enter = before.to_enter();
                    self.seen.saw("expected one came");
                    self.note_generated(&request, &generated);
                }
                Err(AdmitError::HasEnded { answer }) => {
                    check_has_ended(&self.clients[&id].answers[answer], generated[answer].as_deref());
                    self.seen.saw("expected one has ended");
                }
                Err(error) => panic!("{id:?} was admitted: {error}"),
            }
            self.check_all();
        }
    }

    /// I12, I19: what is expected is that and nothing else.
    pub(crate) fn check_elsewhere(&self) {
        let expecting = self.scheduler.sequences().filter(|seq| seq.is_expecting());
        assert_eq!(expecting.count(), self.expected.len(), "I12: expected ones");
        for &id in &self.expected {
            assert!(self.scheduler.expected(id).is_some_and(|request| request.id == id), "I12: {id:?} is expected");
        }
    }
}

/// Some of what each answer says when it runs alone, or all of it. Some have ended.
fn generate(rng: &mut Rng, answers: &[Answer]) -> Vec<Option<Vec<TokenId>>> {
    let goes_on = rng.in_range(0..=answers.len() - 1);
    let all = rng.percent(5);
    let of = |(index, answer): (usize, &Answer)| {
        let expected = &answer.expected.0;
        let len = rng.in_range(0..=expected.len() - usize::from(!all && !expected.is_empty()));
        let has_ended = index != goes_on && rng.percent(20);
        (!has_ended).then(|| expected[..len].to_vec())
    };
    answers.iter().enumerate().map(of).collect()
}

/// What the client of an answer has heard before.
fn deliver(answers: &mut [Answer], generated: &[Option<Vec<TokenId>>]) {
    for (answer, tokens) in answers.iter_mut().zip(generated) {
        match tokens {
            Some(tokens) => answer.delivered.clone_from(tokens),
            None => (answer.delivered, answer.finished) = (answer.expected.0.clone(), Some(answer.expected.1)),
        }
    }
}

/// It was refused because all of it was there.
pub(crate) fn check_has_ended(answer: &Answer, generated: Option<&[TokenId]>) {
    let generated = generated.expect("one that ended is not asked for");
    assert!(!generated.is_empty() && generated == answer.expected.0, "it goes on");
}
