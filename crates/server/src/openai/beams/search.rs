//! Beam search, as vLLM's server defines it: a function of the top tokens behind each beam.
//!
//! ```text
//! beams, best first      the top tokens behind each              candidates, best first
//! A  sum -1.0            x -0.2   </s> -1.9   y ...              A x  -1.2 --+
//! B  sum -1.3            z -0.1   x    -2.5   ...                B z  -1.4 --+--> the next beams
//!                                                                A </s> -----> complete, scored, among the best kept
//! ```
//! A sum is of log probabilities, in doubles. Beams are ranked by their sums, what is no number before all others; of
//! equal ones the lower token comes first, then the better beam. What is complete is ranked by its score,
//! `sum / length ^ penalty`, where the length is that of prompt and answer without the token that ended it; of equal
//! ones the one that was complete first. (transformers counts the answer alone, and the end with it.)

use engine::{FinishReason, TokenLogprob};
use protocol::TokenId;

use crate::order::falling;

/// How beams are searched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BeamParams {
    /// Above 0 long answers are preferred, below 0 short ones; 0 compares the sums.
    pub(super) length_penalty: f64,
    /// The search ends with as many complete answers as there are beams, though better ones may follow.
    pub(super) early_stopping: bool,
}

/// An answer in the making, or one that is complete.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Beam {
    pub(super) tokens: Vec<TokenId>,
    /// Of each token, where requested.
    pub(super) logprobs: Vec<TokenLogprob>,
    sum: f64,
}

/// One that nothing follows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Complete {
    pub(super) beam: Beam,
    pub(super) reason: FinishReason,
    score: f64,
}

/// What a search is of.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) width: usize,
    pub(super) params: BeamParams,
    pub(super) prompt_tokens: usize,
    pub(super) min_tokens: usize,
    pub(super) max_tokens: usize,
    pub(super) stop_token_ids: Vec<TokenId>,
    /// Log probabilities to show of each token, beside its own.
    pub(super) logprobs: Option<usize>,
}

impl Terms {
    /// Number of top tokens per beam: twice the width, as in vLLM and transformers, and
    /// enough beside the stop tokens among them.
    fn candidates(&self) -> usize {
        (2 * self.width).max(self.width + self.stop_token_ids.len())
    }

    /// How many have to be known.
    pub(super) fn most_likely(&self) -> usize {
        self.candidates().max(self.logprobs.unwrap_or(0))
    }

    fn score(&self, sum: f64, answer_tokens: usize) -> f64 {
        sum / ((self.prompt_tokens + answer_tokens) as f64).powf(self.params.length_penalty)
    }
}

/// See the module's picture.
#[derive(Debug)]
pub(super) struct Search {
    terms: Terms,
    /// Best first.
    beams: Vec<Beam>,
    /// The best that are complete, best first; at most the width.
    complete: Vec<Complete>,
}

impl Search {
    pub(super) fn new(terms: Terms) -> Search {
        Search { terms, beams: vec![Beam::default()], complete: Vec::new() }
    }

    /// Those behind which the next tokens are wanted; none when the search is over.
    pub(super) fn beams(&self) -> &[Beam] {
        &self.beams
    }

    /// What follows each of the beams: `most_likely[beam]`, best first, of equal ones the lower id.
    pub(super) fn advance(&mut self, most_likely: &[Vec<(TokenId, f32)>]) {
        assert_eq!(most_likely.len(), self.beams.len(), "each beam was asked for");
        let answer_tokens = self.beams[0].tokens.len();
        let mut candidates = Vec::new();
        for (rank, most_likely) in most_likely.iter().enumerate() {
            for &(token, logprob) in most_likely.iter().take(self.terms.candidates()) {
                let sum = self.beams[rank].sum + f64::from(logprob);
                if !self.terms.stop_token_ids.contains(&token) {
                    candidates.push((sum, token, rank));
                } else if answer_tokens >= self.terms.min_tokens {
                    let beam = self.grown(rank, token, sum, most_likely);
                    let score = self.terms.score(sum, answer_tokens);
                    self.complete.push(Complete { beam, reason: FinishReason::Stop(Some(token)), score });
                }
            }
        }
        self.keep_the_best();
        candidates.sort_unstable_by(|a, b| falling(a.0, b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        candidates.truncate(self.terms.width);
        let grow = |&(sum, token, rank): &(f64, TokenId, usize)| self.grown(rank, token, sum, &most_likely[rank]);
        self.beams = candidates.iter().map(grow).collect();
        if answer_tokens + 1 >= self.terms.max_tokens {
            let last = std::mem::take(&mut self.beams).into_iter();
            let end = |beam: Beam| {
                let score = self.terms.score(beam.sum, beam.tokens.len());
                Complete { beam, reason: FinishReason::Length, score }
            };
            self.complete.extend(last.map(end));
            self.keep_the_best();
        } else if self.is_settled() {
            self.beams.clear();
        }
    }

    fn grown(&self, rank: usize, token: TokenId, sum: f64, most_likely: &[(TokenId, f32)]) -> Beam {
        let parent = &self.beams[rank];
        let mut beam = Beam { tokens: Vec::with_capacity(parent.tokens.len() + 1), logprobs: Vec::new(), sum };
        beam.tokens.extend_from_slice(&parent.tokens);
        beam.tokens.push(token);
        if let Some(shown) = self.terms.logprobs {
            let own =
                most_likely.iter().find(|&&(id, _)| id == token).map_or(f32::NEG_INFINITY, |&(_, logprob)| logprob);
            let top = most_likely[..shown.min(most_likely.len())].to_vec();
            beam.logprobs.extend_from_slice(&parent.logprobs);
            beam.logprobs.push(TokenLogprob { token, logprob: own, top });
        }
        beam
    }

    fn keep_the_best(&mut self) {
        self.complete.sort_by(|a, b| falling(a.score, b.score));
        self.complete.truncate(self.terms.width);
    }

    /// Whether no beam can become better than what is complete: sums only fall, so a score is at most that of the best
    /// sum, at the length that flatters it most. Going on would change nothing.
    fn is_settled(&self) -> bool {
        let [.., worst] = &self.complete[..] else { return false };
        if self.complete.len() < self.terms.width {
            return false;
        }
        let Some(best) = self.beams.first() else { return true };
        let lengths = [best.tokens.len(), self.terms.max_tokens];
        let reachable = lengths.map(|length| self.terms.score(best.sum, length));
        self.terms.params.early_stopping || reachable.iter().all(|&score| score <= worst.score)
    }

    /// The answers, best first.
    pub(super) fn into_answers(self) -> Vec<Complete> {
        self.complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: TokenId = 9;

    fn terms(width: usize, max_tokens: usize, length_penalty: f64) -> Terms {
        let params = BeamParams { length_penalty, early_stopping: false };
        Terms { width, params, prompt_tokens: 1, min_tokens: 0, max_tokens, stop_token_ids: vec![END], logprobs: None }
    }

    /// A model of ten tokens: what follows depends on the last two.
    fn most_likely(seed: u64, tokens: &[TokenId], most: usize) -> Vec<(TokenId, f32)> {
        let weight = |token: TokenId| {
            let [.., a, b] = [&[7, 7], tokens].concat()[..] else { unreachable!("two are before all others") };
            let mut x = seed ^ u64::from(a) << 20 ^ u64::from(b) << 10 ^ u64::from(token);
            for _ in 0..3 {
                x = (x ^ x >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
            // Few values, so that many are equal.
            1.0 + (x >> 60) as f32
        };
        let total: f32 = (0..10).map(weight).sum();
        let mut all: Vec<(TokenId, f32)> = (0..10).map(|token| (token, (weight(token) / total).ln())).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all.truncate(most);
        all
    }

    fn run(seed: u64, terms: &Terms) -> (Vec<Complete>, usize) {
        let (mut search, mut rounds) = (Search::new(terms.clone()), 0);
        while !search.beams().is_empty() {
            let behind = |beam: &Beam| most_likely(seed, &beam.tokens, terms.most_likely());
            let most_likely: Vec<_> = search.beams().iter().map(behind).collect();
            search.advance(&most_likely);
            rounds += 1;
        }
        (search.into_answers(), rounds)
    }

    /// vLLM's loop, in its own words: nothing is forgotten, and everything is sorted at the end.
    fn by_definition(seed: u64, terms: &Terms) -> Vec<(Vec<TokenId>, f64)> {
        let mut beams = vec![(Vec::new(), 0.0f64)];
        let mut completed: Vec<(Vec<TokenId>, f64)> = Vec::new();
        for _ in 0..terms.max_tokens {
            let mut candidates = Vec::new();
            for (rank, (tokens, sum)) in beams.iter().enumerate() {
                for (token, logprob) in most_likely(seed, tokens, 2 * terms.width) {
                    let (tokens, sum) = ([&tokens[..], &[token]].concat(), sum + f64::from(logprob));
                    if token == END {
                        completed.push((tokens, sum));
                    } else {
                        candidates.push((tokens, sum, token, rank));
                    }
                }
            }
            candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then((a.2, a.3).cmp(&(b.2, b.3))));
            beams = candidates.into_iter().take(terms.width).map(|(tokens, sum, ..)| (tokens, sum)).collect();
        }
        completed.extend(beams);
        let mut scored: Vec<_> = completed
            .into_iter()
            .map(|(tokens, sum)| {
                let length = terms.prompt_tokens + tokens.len() - usize::from(tokens.last() == Some(&END));
                let score = sum / (length as f64).powf(terms.params.length_penalty);
                (tokens, score)
            })
            .collect();
        scored.sort_by(|a, b| b.1.total_cmp(&a.1));
        scored.truncate(terms.width);
        scored
    }

    #[test]
    fn a_search_finds_what_its_definition_finds_and_stops_when_nothing_can_change() {
        let mut saved = 0;
        for seed in 0..200 {
            for (width, max_tokens) in [(1, 6), (2, 1), (2, 7), (3, 5), (4, 8)] {
                for length_penalty in [-1.0, 0.0, 0.6, 1.0, 2.0] {
                    let terms = terms(width, max_tokens, length_penalty);
                    let (answers, rounds) = run(seed, &terms);
                    let found: Vec<_> = answers.into_iter().map(|answer| (answer.beam.tokens, answer.score)).collect();
                    let context = format!("seed {seed}, width {width}, {max_tokens} tokens, penalty {length_penalty}");
                    assert_eq!(found, by_definition(seed, &terms), "{context}");
                    saved += max_tokens - rounds;
                }
            }
        }
        assert!(saved > 100, "of searches that are settled some are given up: {saved} rounds");
    }

    #[test]
    fn an_early_end_comes_with_as_many_answers_as_beams() {
        let mut differ = 0;
        for seed in 0..100 {
            let exact = terms(3, 12, 2.0);
            let early = Terms { params: BeamParams { early_stopping: true, ..exact.params }, ..exact.clone() };
            let ((whole, rounds), (answers, fewer)) = (run(seed, &exact), run(seed, &early));
            assert!(answers.len() == 3 && fewer <= rounds, "seed {seed}: {fewer} of {rounds} rounds");
            differ += usize::from(answers != whole);
        }
        assert!(differ > 0, "what is given up is sometimes better");
    }

    #[test]
    fn an_answer_does_not_end_before_its_least_length() {
        for seed in 0..50 {
            let terms = Terms { min_tokens: 4, ..terms(3, 8, 0.0) };
            let (answers, _) = run(seed, &terms);
            assert_eq!(answers.len(), 3);
            // The end is one more token than were needed before it.
            assert!(answers.iter().all(|answer| answer.beam.tokens.len() > 4), "seed {seed}: {answers:?}");
        }
    }

    #[test]
    fn log_probabilities_are_those_of_the_tokens_and_change_none() {
        for seed in 0..50 {
            let plain = terms(3, 5, 1.0);
            let answers = run(seed, &plain).0;
            // Fewer than the search looks at, and more.
            for shown in [0, 1, 9] {
                let told = run(seed, &Terms { logprobs: Some(shown), ..plain.clone() }).0;
                for (Complete { beam, .. }, plain) in told.iter().zip(&answers) {
                    assert_eq!(beam.tokens, plain.beam.tokens, "seed {seed}, {shown} shown");
                    assert_eq!(beam.logprobs.iter().map(|logprob| logprob.token).collect::<Vec<_>>(), beam.tokens);
                    let sum: f64 = beam.logprobs.iter().map(|logprob| f64::from(logprob.logprob)).sum();
                    assert!((sum - beam.sum).abs() < 1e-9);
                    assert!(beam.logprobs.iter().all(|logprob| logprob.top.len() == shown));
                }
            }
        }
    }
}
