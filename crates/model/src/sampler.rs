//! From a row of logits to a token.
//!
//! ```text
//! raw logits ──► logprobs (before anything below changes them)
//!     │ logit_bias, what may not be chosen ──► repetition, frequency, presence penalties
//!     │ temperature < 1e-5 ──► the largest logit, lowest id among equals
//!     └ / temperature ──► min_p ──► top_k ──► top_p ──► one draw from what is left
//! ```
//!
//! The order and the meaning of each parameter are vLLM's (its V1 sampler and `raw_logprobs`, the default there). A
//! draw is a pure function of `(logits, parameters, history, key)`: a race ([`Noise`]) between what is left, whose
//! random numbers come from a counter-based generator keyed by seed, answer and position, so neither the batch nor the
//! order of requests can change it. Probabilities are integers, exponential and logarithm our own, so the drawn token
//! is the same on every machine.
//!
//! Where probabilities tie at a cut (`top_k`, `top_p`) the lower id stays. `min_p` and `top_p` always keep the best
//! token.

use std::collections::HashMap;
use std::ops::Deref;

use kernels::sampling::{Candidate, Noise, all_below_infinity, by_logit, exp_neg, mass, masses, max_of, select_best};
use protocol::sampling::Sampling;

/// Which tokens a sequence holds, and how often: what the penalties look at.
#[derive(Clone, Debug, Default)]
pub struct History {
    seen: HashMap<u32, Seen>,
}

/// What is known of a token.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Occurrences in the answer.
    count: u32,
    in_prompt: bool,
}

impl History {
    /// The history of a sequence that has only its prompt. O(prompt).
    pub fn new(prompt: &[u32]) -> History {
        History { seen: prompt.iter().map(|&token| (token, Seen { count: 0, in_prompt: true })).collect() }
    }

    /// Adds a token of the answer.
    pub fn push(&mut self, token: u32) {
        self.seen.entry(token).or_default().count += 1;
    }

    /// Takes back a token of the answer that was added.
    pub fn pop(&mut self, token: u32) {
        let seen = self.seen.get_mut(&token).expect("it was added");
        seen.count -= 1;
        if seen.count == 0 && !seen.in_prompt {
            self.seen.remove(&token);
        }
    }
}

/// A history with tokens that were drawn and not delivered yet, as long as this lives.
pub struct HistoryGuard<'a, Run: Iterator<Item = u32> + Clone> {
    history: &'a mut History,
    run: Option<Run>,
}

impl<'a, Run: Iterator<Item = u32> + Clone> HistoryGuard<'a, Run> {
    /// The history with these tokens, if the parameters look at it.
    pub fn of(history: &'a mut History, run: Run, params: &Sampling) -> HistoryGuard<'a, Run> {
        let run = params.needs_history().then_some(run);
        run.iter().cloned().flatten().for_each(|token| history.push(token));
        HistoryGuard { history, run }
    }
}

impl<Run: Iterator<Item = u32> + Clone> Deref for HistoryGuard<'_, Run> {
    type Target = History;

    fn deref(&self) -> &History {
        self.history
    }
}

impl<Run: Iterator<Item = u32> + Clone> Drop for HistoryGuard<'_, Run> {
    fn drop(&mut self) {
        self.run.take().into_iter().flatten().for_each(|token| self.history.pop(token));
    }
}

/// Which tokens may be chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed<'a> {
    /// One bit per token, 32 to a word, the lowest first, 1 for those that may; what it does not cover may not. `None`:
    /// all.
    pub mask: Option<&'a [u32]>,
    /// Ids that may not be drawn in any case.
    pub banned: &'a [u32],
}

impl<'a> Allowed<'a> {
    /// All but these.
    pub fn but(banned: &'a [u32]) -> Allowed<'a> {
        Allowed { mask: None, banned }
    }

    fn is_all(&self) -> bool {
        self.mask.is_none() && self.banned.is_empty()
    }
}

/// Names one draw: the same key gives the same random number in every version and on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleKey {
    /// Seed of the request.
    pub seed: u64,
    /// Index of the answer (`n > 1` draws independent ones).
    pub stream: u32,
    /// Position of the drawn token in its sequence.
    pub position: u64,
}

/// What a step yields for one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The chosen token.
    pub token: u32,
    /// Its log probability under the model's raw distribution; 0 when [`Sampling::logprobs`] is `None`.
    pub logprob: f32,
    /// The best tokens of the raw distribution, best first, up to the requested number; or those that were named.
    pub top: Vec<(u32, f32)>,
}

/// The log probability of a given token: one entry of prompt logprobs.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogProbs {
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// 1 for the best token of the row; counts tokens with a larger logit, plus one.
    pub rank: u32,
    /// The best tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// Why no token could be chosen. The request fails; its neighbours do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The model's output holds NaN or +infinity.
    #[error("the model's output is not finite")]
    NotFinite,
    /// Every token is banned or has probability zero.
    #[error("no token is left to choose from")]
    NothingLeft,
}

/// Reused memory for sampling. One per engine; it grows to the vocabulary's size once and then allocates nothing.
#[derive(Debug)]
pub struct Sampler {
    vocab_size: usize,
    /// `[vocab]`: unnormalised probabilities, see [`mass`].
    masses: Vec<u64>,
    /// Scratch of the race.
    sums: Vec<u64>,
    candidates: Vec<Candidate>,
    /// What is left of the candidates, by id.
    few: Vec<(u32, u64)>,
}

/// Logits per partial sum of [`log_sum_exp`].
const SUM_BLOCK: usize = 256;

impl Sampler {
    /// A sampler for rows of `vocab_size` logits.
    pub fn new(vocab_size: usize) -> Sampler {
        assert!(vocab_size > 0 && vocab_size <= u32::MAX as usize, "a vocabulary of {vocab_size} tokens");
        Sampler { vocab_size, masses: Vec::new(), sums: Vec::new(), candidates: Vec::new(), few: Vec::new() }
    }

    /// Chooses the next token.
    ///
    /// `logits`: f32 `[vocab]`, changed in place. `history` is read by the penalties only. `allowed`: `min_tokens` bans
    /// the ids that would end the answer, a grammar has a mask. Greedy costs two reads of the row; a draw costs one
    /// exponential per token, or a partial selection when `top_k` is set; a mask one more pass over the row.
    ///
    /// Panics when a banned id, or one of `logit_bias`, `logprob_ids` or `history`, is outside the vocabulary:
    /// validation let it through.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        params: &Sampling,
        history: &History,
        allowed: Allowed<'_>,
        key: SampleKey,
    ) -> Result<Sampled, SampleError> {
        assert_eq!(logits.len(), self.vocab_size, "a row is as wide as the vocabulary");
        if !all_below_infinity(logits) {
            return Err(SampleError::NotFinite);
        }
        let mut raw = None;
        if let Some(top) = params.logprobs {
            let log_sum = log_sum_exp(logits);
            let of = |&(x, id): &Candidate| (id, log_prob(x, log_sum));
            let top = match &params.logprob_ids[..] {
                [] => self.best(logits, top as usize).iter().map(of).collect(),
                named => named.iter().map(|&id| of(&(logits[id as usize], id))).collect(),
            };
            // The chosen token is not known yet, so its raw logit is looked up below in a copy made only when needed.
            raw = Some((log_sum, top, self.changes_logits(params, history, allowed).then(|| logits.to_vec())));
        }
        adjust(logits, params, history, allowed);
        let token = match params.is_greedy() {
            true => argmax(logits).ok_or(SampleError::NothingLeft)?,
            false => self.draw(logits, params, Noise::new(key.seed, key.stream, key.position))?,
        };
        let (logprob, top) = match raw {
            None => (0.0, Vec::new()),
            Some((log_sum, top, before)) => {
                let row = before.as_deref().unwrap_or(logits);
                (log_prob(row[token as usize], log_sum), top)
            }
        };
        Ok(Sampled { token, logprob, top })
    }

    /// For [`Forward::read_best`](crate::Forward::read_best): the row that [`sample_best`](Self::sample_best) draws
    /// from.
    pub fn best_mut(&mut self) -> &mut Vec<Candidate> {
        &mut self.candidates
    }

    /// [`sample`](Self::sample) by the best of a row alone, as many as [`Sampling::decided_by`] says: the same token.
    pub fn sample_best(&mut self, params: &Sampling, key: SampleKey) -> Result<Sampled, SampleError> {
        let token = match self.candidates[0] {
            (max, _) if max.is_nan() => return Err(SampleError::NotFinite),
            (f32::NEG_INFINITY, _) => return Err(SampleError::NothingLeft),
            (_, id) if params.is_greedy() => id,
            _ => self.draw_of_few(params, Noise::new(key.seed, key.stream, key.position))?,
        };
        Ok(Sampled { token, logprob: 0.0, top: Vec::new() })
    }

    /// The log probability of `token` under a row of raw logits, its rank, and the `top_n` best: prompt logprobs.
    pub fn log_probs_of(&mut self, row: &[f32], token: u32, top_n: usize) -> Result<TokenLogProbs, SampleError> {
        assert_eq!(row.len(), self.vocab_size, "a row is as wide as the vocabulary");
        if !all_below_infinity(row) {
            return Err(SampleError::NotFinite);
        }
        let log_sum = log_sum_exp(row);
        let own = row[token as usize];
        let rank = 1 + row.iter().filter(|&&x| x > own).count() as u32;
        let top = self.best(row, top_n).iter().map(|&(x, id)| (id, log_prob(x, log_sum))).collect();
        Ok(TokenLogProbs { logprob: log_prob(own, log_sum), rank, top })
    }

    fn changes_logits(&self, params: &Sampling, history: &History, allowed: Allowed<'_>) -> bool {
        !params.logit_bias.is_empty() || !allowed.is_all() || (params.needs_history() && !history.seen.is_empty())
    }

    fn draw(&mut self, logits: &[f32], params: &Sampling, noise: Noise) -> Result<u32, SampleError> {
        let max = max_of(logits);
        if max == f32::NEG_INFINITY {
            return Err(SampleError::NothingLeft);
        }
        let weight = Weight { max, scale: 1.0 / params.temperature };
        if params.top_k == 0 || params.top_k as usize >= self.vocab_size {
            self.masses.resize(self.vocab_size, 0);
            masses(logits, weight.max, weight.scale, params.min_p, &mut self.masses);
            if params.top_p < 1.0 {
                self.cut_top_p(logits, share(params.top_p, self.masses.iter().sum()));
            }
            return noise.draw(&self.masses, &mut self.sums).ok_or(SampleError::NothingLeft);
        }
        self.best(logits, params.top_k as usize);
        self.draw_of_few(params, noise)
    }

    /// The same from the best alone.
    fn draw_of_few(&mut self, params: &Sampling, noise: Noise) -> Result<u32, SampleError> {
        let weight = Weight { max: self.candidates[0].0, scale: 1.0 / params.temperature };
        let mass_of = |candidate: &Candidate| mass(weight.of(candidate.0), params.min_p);
        if params.top_p < 1.0 {
            let total = self.candidates.iter().map(mass_of).sum();
            let (last, _) = reach(&self.candidates, mass_of, share(params.top_p, total));
            self.candidates.truncate(last + 1);
        }
        self.few.clear();
        self.few.extend(self.candidates.iter().map(|candidate| (candidate.1, mass_of(candidate))));
        self.few.sort_unstable_by_key(|&(id, _)| id);
        noise.draw_of(&self.few).ok_or(SampleError::NothingLeft)
    }

    /// Keeps the shortest run of best tokens that weighs `needed`, and sets the masses of the others to 0.
    ///
    /// Nearly always the run is among the best few tokens; in a flat distribution it is found by a selection that
    /// halves (Hoare's FIND on weights), linear in the vocabulary.
    fn cut_top_p(&mut self, logits: &[f32], needed: u64) {
        let mut last = None;
        for num in [64, 1024] {
            self.best(logits, num);
            let (end, reached) = reach(&self.candidates, |c| self.masses[c.1 as usize], needed);
            if reached >= needed {
                last = Some(self.candidates[end]);
                break;
            }
        }
        let (logit, id) = last.unwrap_or_else(|| self.find_last(logits, needed));
        for (other, (m, &x)) in self.masses.iter_mut().zip(logits).enumerate() {
            let kept = x > logit || (x == logit && other as u32 <= id);
            *m = if kept { *m } else { 0 };
        }
    }

    /// The token of the sorted row at which the masses sum to `needed`.
    fn find_last(&mut self, logits: &[f32], mut needed: u64) -> Candidate {
        let (masses, candidates) = (&self.masses, &mut self.candidates);
        candidates.clear();
        candidates.extend(logits.iter().enumerate().map(|(id, &x)| (x, id as u32)));
        let mut window = candidates.as_mut_slice();
        while window.len() > 64 {
            let middle = window.len() / 2;
            window.select_nth_unstable_by(middle, by_logit);
            let upper: u64 = window[..middle].iter().map(|c| masses[c.1 as usize]).sum();
            if upper >= needed {
                window = &mut window[..middle];
            } else {
                needed -= upper;
                window = &mut window[middle..];
            }
        }
        window.sort_unstable_by(by_logit);
        let (end, _) = reach(window, |c| masses[c.1 as usize], needed);
        window[end]
    }

    fn best(&mut self, row: &[f32], num: usize) -> &[Candidate] {
        select_best(row, num, &mut self.candidates);
        &self.candidates
    }
}

/// The mass that is the fraction `p` of `total`.
fn share(p: f32, total: u64) -> u64 {
    ((f64::from(p) * total as f64).ceil() as u64).clamp(1, total)
}

/// Index at which the running sum reaches `needed`, and the sum there; the last index and the whole sum when it does
/// not.
fn reach<T>(items: &[T], mass: impl Fn(&T) -> u64, needed: u64) -> (usize, u64) {
    let mut sum = 0;
    for (i, item) in items.iter().enumerate() {
        sum += mass(item);
        if sum >= needed {
            return (i, sum);
        }
    }
    (items.len() - 1, sum)
}

/// From a logit to its unnormalised probability: `exp((x - max) / temperature)`, 1 for the best token.
#[derive(Clone, Copy)]
struct Weight {
    max: f32,
    scale: f32,
}

impl Weight {
    fn of(self, logit: f32) -> f32 {
        // The maximum goes first: a tiny temperature cannot overflow what is never positive.
        exp_neg((logit - self.max) * self.scale)
    }
}

/// Bias, bans, penalties: everything that acts on single logits.
fn adjust(logits: &mut [f32], params: &Sampling, history: &History, allowed: Allowed<'_>) {
    for &(id, bias) in &params.logit_bias {
        logits[id as usize] += bias;
    }
    if let Some(mask) = allowed.mask {
        keep(logits, mask);
    }
    for &id in allowed.banned {
        logits[id as usize] = f32::NEG_INFINITY;
    }
    if !params.needs_history() {
        return;
    }
    for (&id, &Seen { count, .. }) in &history.seen {
        let logit = &mut logits[id as usize];
        *logit = if *logit > 0.0 { *logit / params.repetition_penalty } else { *logit * params.repetition_penalty };
        *logit -= params.frequency_penalty * count as f32;
        if count > 0 {
            *logit -= params.presence_penalty;
        }
    }
}

/// Takes the tokens whose bit is 0 out of the race. Most masks of a grammar have few bits, or nearly all; of texts in
/// JSON most words have some.
fn keep(logits: &mut [f32], mask: &[u32]) {
    let covered = logits.len().min(mask.len() * 32);
    let (covered, rest) = logits.split_at_mut(covered);
    rest.fill(f32::NEG_INFINITY);
    let (words, tail) = covered.as_chunks_mut::<32>();
    for (logits, &bits) in words.iter_mut().zip(mask) {
        match bits {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            bits => keep_bits(logits, bits),
        }
    }
    let last = mask.get(words.len()).copied().unwrap_or(0);
    for (bit, logit) in tail.iter_mut().enumerate() {
        *logit = if last >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
    }
}

/// Without a shift by a variable, which vectors of the oldest x86-64 do not have: there a mixed word would cost a cycle
/// for each of its bits.
fn keep_bits(logits: &mut [f32; 32], bits: u32) {
    const BITS: [u32; 32] = {
        let mut bits = [0; 32];
        let mut at = 0;
        while at < 32 {
            bits[at] = 1 << at;
            at += 1;
        }
        bits
    };
    for (logit, bit) in logits.iter_mut().zip(BITS) {
        let kept = if bits & bit == 0 { 0 } else { u32::MAX };
        *logit = f32::from_bits(logit.to_bits() & kept | f32::NEG_INFINITY.to_bits() & !kept);
    }
}

/// The lowest id of the largest logit, unless all are -infinity.
fn argmax(row: &[f32]) -> Option<u32> {
    let max = max_of(row);
    if max == f32::NEG_INFINITY {
        return None;
    }
    row.iter().position(|&x| x == max).map(|id| id as u32)
}

/// `ln(sum(exp(row)))`.
fn log_sum_exp(row: &[f32]) -> f64 {
    let max = max_of(row);
    if max == f32::NEG_INFINITY {
        return f64::NEG_INFINITY;
    }
    let mut block = [0.0f32; SUM_BLOCK];
    let mut total = 0.0;
    for logits in row.chunks(SUM_BLOCK) {
        for (w, &x) in block.iter_mut().zip(logits) {
            *w = exp_neg(x - max);
        }
        total += sum(&block[..logits.len()]);
    }
    f64::from(max) + total.ln()
}

fn log_prob(logit: f32, log_sum: f64) -> f32 {
    match logit == f32::NEG_INFINITY {
        true => f32::NEG_INFINITY, // also when the whole row is, where the difference would be NaN
        false => (f64::from(logit) - log_sum) as f32,
    }
}

/// Sum in eight lanes, then across them: an order that vectorises and never changes.
fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 8];
    for chunk in values.chunks(8) {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(value);
        }
    }
    lanes.iter().sum()
}
