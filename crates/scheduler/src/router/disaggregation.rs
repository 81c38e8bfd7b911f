//! Disaggregated prefill and decode: does a prompt leave for a prefill worker, and will its answer have memory
//! afterwards?
//!
//! ```text
//! now                              its prefill ends
//!  |  A -------- over by then ---x           |
//!  |  B ------------------------------------------ ..      running: over with the probability learned from lengths
//!  |             C's prompt ---> C ---------------- ..      in remote prefill: decodes before the new one does
//!  |                                         | new one      seats, blocks and the pace of B and C together?
//! ```
//! A prompt without decode capacity after its prefill was computed for nothing, so capacity is checked first (early
//! rejection). The current load is the wrong measure: it misses all requests still in prefill, so admission oscillates
//! and the two pools are busy in turns. The check therefore predicts the load at the end of the prefill. (Both are
//! Mooncake's: Qin et al., FAST 2025. There every answer lasts equally long; here lengths are learned, given the tokens
//! so far.)

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::{CostModel, Limits, Work};
use protocol::Nanos;

/// Prompts with fewer uncached tokens on the decode worker are prefilled there.
pub const LEAST_TOKENS: usize = 256;

/// Whether a prompt leaves, with predicted first tokens `remote` and `local`. Prompts leave to protect the streams
/// here, so meeting the target is enough. An unknown prediction counts as fast.
pub fn leaves(local: Option<Nanos>, remote: Option<Nanos>, target: Option<Nanos>) -> bool {
    let limit = local.map(|local| local.max(target.unwrap_or(Nanos(0))));
    remote.zip(limit).is_none_or(|(remote, limit)| remote <= limit)
}

/// A current or future answer of a decode worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerInView {
    /// Known tokens, prompt included.
    pub tokens: usize,
    /// Generated tokens.
    pub generated: usize,
    /// Time until its remote prefill ends; zero if it is decoding.
    pub begins_after: Nanos,
}

/// Answer lengths remembered.
const REMEMBERED: usize = 256;

/// Standard deviations added to a predicted load. A late rejection wastes its prefill, and longer queues predict worse:
/// without a margin bad predictions and long queues reinforce each other. On the conversations of docs/performance.md
/// half a deviation rejected least; one or more rejected too many.
const DOUBT: f64 = 0.5;

/// Recent answer lengths, to predict unfinished ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerLengths {
    by_age: VecDeque<usize>,
    by_length: Vec<usize>,
}

impl AnswerLengths {
    /// Adds the length of a finished answer.
    pub fn note(&mut self, tokens: usize) {
        if self.by_age.len() == REMEMBERED
            && let Some(oldest) = self.by_age.pop_front()
        {
            let place = self.by_length.partition_point(|&length| length < oldest);
            self.by_length.remove(place);
        }
        self.by_age.push_back(tokens);
        let place = self.by_length.partition_point(|&length| length < tokens);
        self.by_length.insert(place, tokens);
    }

    /// The probability that an unfinished answer of `generated` tokens gets at least `more`: the fraction of remembered
    /// ones that did. Beyond the longest remembered, it is as likely to double as to end before.
    pub fn goes_on_for(&self, generated: usize, more: usize) -> f64 {
        let longer_than = |tokens| self.by_length.len() - self.by_length.partition_point(|&length| length <= tokens);
        match longer_than(generated) {
            _ if more == 0 || self.by_length.is_empty() => 1.0,
            0 => generated as f64 / (generated + more).max(1) as f64,
            went_on => longer_than(generated + more) as f64 / went_on as f64,
        }
    }
}

/// Load of a decode worker; expected values for the future.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecodeLoad {
    /// Answers.
    pub answers: f64,
    /// Their tokens, prompts included.
    pub tokens: f64,
    /// Standard deviations of the two; zero for the current load.
    pub spread: [f64; 2],
}

/// The scarce resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TooLittle {
    /// Seats of a step.
    Seats,
    /// Blocks of the KV cache.
    Blocks,
    /// Time: with one more answer, a step exceeds the target.
    Time,
}

impl DecodeLoad {
    /// The expected load of the answers `in_view` after time `after`, at `token` per token: without those expected to
    /// end, with those whose prefill ends. Cost: linear in the answers.
    pub fn after(
        after: Nanos,
        token: Nanos,
        lengths: &AnswerLengths,
        in_view: impl IntoIterator<Item = AnswerInView>,
    ) -> DecodeLoad {
        let (mut load, mut variance) = (DecodeLoad::default(), [0.0; 2]);
        for answer in in_view.into_iter().filter(|answer| answer.begins_after <= after) {
            let more = (after.since(answer.begins_after).0 / token.0.max(1)) as usize;
            let is_there = lengths.goes_on_for(answer.generated, more);
            let tokens = (answer.tokens + more) as f64;
            load.answers += is_there;
            load.tokens += is_there * tokens;
            // Answers end independently.
            variance[0] += is_there * (1.0 - is_there);
            variance[1] += is_there * (1.0 - is_there) * tokens * tokens;
        }
        load.spread = variance.map(square_root);
        load
    }

    /// Work of one decode step.
    pub fn work(&self) -> Work {
        let rows = (self.answers + 0.5) as usize;
        Work { decode_rows: rows, decode_context: self.tokens as u64, logit_rows: rows, ..Work::default() }
    }

    /// The resource that one more answer to a prompt of `prompt_tokens` would exhaust; `None` if it fits. `tpot`: the
    /// tightest target of all. Blocks shared by prompts are counted for each.
    pub fn refuses(
        &self,
        prompt_tokens: usize,
        tpot: Option<Nanos>,
        limits: &Limits,
        cost: &CostModel,
    ) -> Option<TooLittle> {
        let [answers, tokens] = self.spread.map(|spread| spread * DOUBT);
        let with = DecodeLoad {
            answers: self.answers + answers + 1.0,
            tokens: self.tokens + tokens + prompt_tokens as f64,
            spread: [0.0; 2],
        };
        // The last block of each answer is half full on average.
        let blocks = with.tokens / limits.block_size as f64 + with.answers / 2.0;
        if with.answers > limits.max_num_seqs as f64 {
            Some(TooLittle::Seats)
        } else if blocks > limits.num_blocks as f64 {
            Some(TooLittle::Blocks)
        } else {
            tpot.filter(|&tpot| cost.step_time(&with.work()) > tpot).map(|_| TooLittle::Time)
        }
    }
}

/// Newton's method; `core` has no `sqrt`.
fn square_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let mut root = x.max(1.0);
    while root * root > x * (1.0 + 1e-9) {
        root = (root + x / root) / 2.0;
    }
    root
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::cost::{Knot, Terms};

    const MS: u64 = 1_000_000;

    fn load(answers: f64, tokens: f64) -> DecodeLoad {
        DecodeLoad { answers, tokens, spread: [0.0; 2] }
    }

    #[test]
    fn prompts_leave_if_they_are_in_time_or_earlier() {
        // Local, remote, target in ms; whether it leaves.
        let table = [
            (Some(100), Some(90), None, true),
            (Some(100), Some(110), None, false),
            (Some(100), Some(110), Some(200), true),
            (Some(300), Some(250), Some(200), true),
            (Some(300), Some(350), Some(200), false),
            (None, Some(350), Some(200), true),
            (Some(300), None, Some(200), true),
        ];
        for (local, remote, target, expected) in table {
            let [local_ns, remote_ns, target_ns] =
                [local, remote, target].map(|ms: Option<u64>| ms.map(|ms| Nanos(ms * MS)));
            assert_eq!(leaves(local_ns, remote_ns, target_ns), expected, "{local:?} {remote:?} {target:?}");
        }
    }

    #[test]
    fn answers_go_on_as_long_as_answers_did() {
        let mut lengths = AnswerLengths::default();
        assert_eq!(lengths.goes_on_for(3, 1000), 1.0, "nothing is known");
        [10, 20, 30, 40].into_iter().for_each(|tokens| lengths.note(tokens));
        let table = [(0, 5, 1.0), (0, 10, 0.75), (0, 25, 0.5), (15, 10, 2.0 / 3.0), (30, 10, 0.0), (50, 50, 0.5)];
        for (generated, more, expected) in table {
            assert_eq!(lengths.goes_on_for(generated, more), expected, "{generated} and {more} more");
        }
        (0..REMEMBERED).for_each(|_| lengths.note(7));
        assert_eq!(lengths.goes_on_for(0, 7), 0.0, "older ones are forgotten");
        assert_eq!(lengths.by_age.len(), lengths.by_length.len());
    }

    #[test]
    fn a_load_to_come_has_those_on_their_way_and_not_those_that_end() {
        let mut lengths = AnswerLengths::default();
        (0..10).for_each(|_| lengths.note(100));
        let answer = |tokens, generated, begins| AnswerInView { tokens, generated, begins_after: Nanos(begins * MS) };
        let view = [answer(1090, 90, 0), answer(510, 10, 0), answer(2000, 0, 200), answer(3000, 0, 900)];
        let after = |ms: u64| DecodeLoad::after(Nanos(ms * MS), Nanos(10 * MS), &lengths, view.iter().copied());
        assert_eq!(after(0), load(2.0, 1600.0));
        // The first has reached its 100 tokens; the third began 100 ms before.
        assert_eq!(after(300), load(2.0, 540.0 + 2010.0));
        assert_eq!(after(1000), load(2.0, 2080.0 + 3010.0));
        assert_eq!(after(2000), DecodeLoad::default());
    }

    /// Each of two answers remains with probability 1/2.
    #[test]
    fn what_is_not_sure_is_taken_for_more_than_its_mean() {
        let mut lengths = AnswerLengths::default();
        [10, 1000].into_iter().for_each(|tokens| lengths.note(tokens));
        let view = [AnswerInView { tokens: 980, generated: 0, begins_after: Nanos(0) }; 2];
        let then = DecodeLoad::after(Nanos(20), Nanos(1), &lengths, view);
        assert_eq!((then.answers, then.tokens), (1.0, 1000.0));
        assert!((then.spread[0] - 0.5_f64 * core::f64::consts::SQRT_2).abs() < 1e-6, "{then:?}");
        assert!((then.spread[1] - 500.0 * core::f64::consts::SQRT_2).abs() < 1e-3, "{then:?}");
    }

    #[test]
    fn what_is_short_is_named() {
        let limits = Limits {
            block_size: 10,
            num_blocks: 100,
            max_model_len: 1000,
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            max_prefill_chunk: 64,
            max_prefill_seqs: 8,
            max_queued_requests: 8,
            max_queued_tokens: 8000,
            enable_prefix_caching: true,
            states: None,
            whole_prompts: false,
            hash_key: [0; 32],
        };
        let terms = Terms { key: 1e-5, ..Terms::default() };
        let cost = CostModel::new(vec![Knot { rows: 1, seconds: 0.010 }], terms);
        let table = [
            (8.0, 80.0, 10, None, Some(TooLittle::Seats)),
            (4.0, 900.0, 90, None, Some(TooLittle::Blocks)),
            (4.0, 900.0, 60, Some(15), Some(TooLittle::Time)),
            (4.0, 900.0, 60, Some(20), None),
            (4.0, 900.0, 60, None, None),
        ];
        for (answers, tokens, prompt, tpot, expected) in table {
            let load = load(answers, tokens);
            let tpot_ns = tpot.map(|ms: u64| Nanos(ms * MS));
            assert_eq!(load.refuses(prompt, tpot_ns, &limits, &cost), expected, "{load:?}, {prompt}, {tpot:?}");
        }
    }
}
