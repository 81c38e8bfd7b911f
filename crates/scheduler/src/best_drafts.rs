//! The one rule for how many drafts pay, of a step that is planned and of a deployment that is thought about.
//!
//! ```text
//! drafts           0     1     2     3     4  ...    told in falling chance, each with the time of a step that has it
//! tokens / time  100   170   230   225   221         the best number is 2
//! ```

/// The next drafts may be cheaper than this one: so many are looked at behind the best number.
const LOOKAHEAD: usize = 4;

/// Counts drafts as long as tokens per second do not fall.
#[derive(Clone, Copy, Debug)]
pub struct BestDrafts {
    tokens: f64,
    told: usize,
    best_rate: f64,
    best: usize,
}

impl BestDrafts {
    /// A step without drafts: tokens that are sure (a prompt row counts as one), and its time.
    pub fn new(tokens: f64, seconds: f64) -> BestDrafts {
        BestDrafts { tokens, told: 0, best_rate: tokens / seconds, best: 0 }
    }

    /// One more draft, which is a token with this chance, and the time of a step with it. Chances are in the unit of
    /// the tokens. Returns whether one more may still pay.
    pub fn add(&mut self, chance: f64, seconds: f64) -> bool {
        self.told += 1;
        self.tokens += chance;
        let rate = self.tokens / seconds;
        if rate >= self.best_rate {
            (self.best_rate, self.best) = (rate, self.told);
        }
        self.told < self.best + LOOKAHEAD
    }

    /// Of the drafts told, so many make tokens come fastest.
    pub fn count(&self) -> usize {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_number_is_the_last_at_which_tokens_do_not_come_slower() {
        // The time of a step with each number of drafts, the chance of each draft, and how many pay.
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
