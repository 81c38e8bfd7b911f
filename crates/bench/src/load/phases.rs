//! What both phases had of the server's machine, by its own account: the `timings` of its answers.

use std::collections::BTreeMap;

use figures::Distribution;

use crate::load::client::RequestOutcome;

/// One phase of all answers that say something of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseSummary {
    /// How many do.
    pub answers: usize,
    /// Operations of all.
    pub flops: f64,
    /// Bytes of all; what requests read together counts for each of them.
    pub bytes: f64,
    /// Shares of the machine's limit, in percent.
    pub limit_percent: Distribution,
    /// What bound how many, the most first.
    pub bound_by: Vec<(String, usize)>,
}

impl PhaseSummary {
    /// Operations per byte.
    pub fn intensity(&self) -> f64 {
        if self.bytes > 0.0 { self.flops / self.bytes } else { 0.0 }
    }
}

/// Prefill and decode; `None` where no answer says anything.
pub fn phases(outcomes: &[RequestOutcome]) -> [Option<PhaseSummary>; 2] {
    std::array::from_fn(|phase| {
        let completed = outcomes.iter().filter(|outcome| outcome.error.is_none());
        let told: Vec<_> = completed.filter_map(|outcome| outcome.phases[phase].as_ref()).collect();
        let mut bounds: BTreeMap<&str, usize> = BTreeMap::new();
        told.iter().filter_map(|told| told.bound_by.as_deref()).for_each(|by| *bounds.entry(by).or_default() += 1);
        let mut bound_by: Vec<_> = bounds.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        bound_by.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        (!told.is_empty()).then(|| PhaseSummary {
            answers: told.len(),
            flops: told.iter().map(|told| told.flops).sum(),
            bytes: told.iter().map(|told| told.bytes).sum(),
            limit_percent: Distribution::of(told.iter().filter_map(|told| told.limit_percent).collect()),
            bound_by,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::client::PhaseFigures;

    #[test]
    fn what_the_server_says_is_summed_up() {
        let told = |limit_percent: f64, bound_by: &str| {
            Some(PhaseFigures {
                flops: 1e9,
                bytes: 2e6,
                limit_percent: Some(limit_percent),
                bound_by: Some(bound_by.into()),
            })
        };
        let outcome = |prefill, decode| RequestOutcome { phases: [prefill, decode], ..RequestOutcome::default() };
        let outcomes = [
            outcome(told(60.0, "compute"), None),
            outcome(told(20.0, "memory"), None),
            outcome(told(40.0, "compute"), None),
        ];
        let [prefill, decode] = phases(&outcomes);
        let prefill = prefill.expect("it was told");
        assert_eq!((prefill.answers, prefill.flops, prefill.intensity()), (3, 3e9, 500.0));
        assert_eq!(prefill.limit_percent.percentile(50.0), 40.0);
        assert_eq!(prefill.bound_by, [("compute".to_owned(), 2), ("memory".to_owned(), 1)]);
        assert_eq!(decode, None);
    }
}
