//! The number of draft tokens that maximizes tokens per second, for a planned step and for capacity estimates.
//!
//! ```text
//! drafts           0     1     2     3     4  ...    in order of decreasing probability, each with its step time
//! tokens / time  100   170   230   225   221         best: 2
//! ```

/// Drafts tried beyond the best number so far: step time is not convex, so later ones may pay again.
const LOOKAHEAD: usize = 4;

/// Finds the draft count with the highest token rate.
#[derive(Clone, Copy, Debug)]
pub struct BestDrafts {
    tokens: f64,
    tried: usize,
    best_rate: f64,
    best: usize,
}

impl BestDrafts {
    /// A step without drafts: its certain tokens (a prompt row counts as one) and its time.
    pub fn new(tokens: f64, seconds: f64) -> BestDrafts {
        BestDrafts { tokens, tried: 0, best_rate: tokens / seconds, best: 0 }
    }

    /// Adds a draft that is accepted with probability `chance`, in the unit of the tokens, and the time of a step that
    /// includes it. Returns whether another draft may still pay.
    pub fn add(&mut self, chance: f64, seconds: f64) -> bool {
        self.tried += 1;
        self.tokens += chance;
        let rate = self.tokens / seconds;
        if rate >= self.best_rate {
            (self.best_rate, self.best) = (rate, self.tried);
        }
        self.tried < self.best + LOOKAHEAD
    }

    /// The draft count with the highest token rate.
    pub fn count(&self) -> usize {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_number_is_the_last_at_which_tokens_do_not_come_slower() {
        // Step time by number of drafts, acceptance probability of each draft, and the best number.
        let table: [(&str, &[f64], f64, usize); 6] = [
            ("free rows", &[1.0, 1.0, 1.0, 1.0], 0.1, 3),
            ("rows that cost what they bring", &[1.0, 1.5, 2.0, 2.5], 0.5, 3),
            ("rows that cost more", &[1.0, 1.6, 2.2, 2.8], 0.5, 0),
            ("a knee", &[1.0, 1.0, 1.0, 3.0, 5.0], 0.8, 2),
            ("a step up that later ones pay for", &[1.0, 2.0, 2.0, 2.0, 2.0], 0.8, 4),
            ("a step up that is seen too late", &[1.0, 9.0, 9.0, 9.0, 9.0, 1.0], 0.8, 0),
        ];
        for (what, seconds, chance, expected) in table {
            let mut best = BestDrafts::new(1.0, seconds[0]);
            let mut others = seconds[1..].iter();
            while let Some(&seconds) = others.next()
                && best.add(chance, seconds)
            {}
            assert_eq!(best.count(), expected, "{what}");
        }
    }
}
