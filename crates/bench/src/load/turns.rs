//! Conversations turn by turn: what a longer history costs, and what the prefix cache saves of it.

use figures::Distribution;

use crate::load::client::RequestOutcome;

/// What came of one turn of all conversations.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnFigures {
    /// Which, from 1.
    pub turn: usize,
    /// And to which; turns of a table are put together as they grow.
    pub to: usize,
    /// Completed requests.
    pub requests: usize,
    /// Tokens of their prompts, in the mean.
    pub prompt_tokens: f64,
    /// Of these, the share that the server's cache had.
    pub hit_rate: f64,
    /// Times to first token, milliseconds.
    pub ttft: Distribution,
}

/// Turn by turn; empty where nothing has a second one.
pub fn turns(outcomes: &[RequestOutcome]) -> Vec<TurnFigures> {
    let last = outcomes.iter().map(|outcome| outcome.turn).max().unwrap_or(0);
    if last == 0 { Vec::new() } else { (0..=last).filter_map(|turn| figures(outcomes, turn, turn)).collect() }
}

/// The same in rows that fit on a page: 1, 2, 3 to 4, 5 to 8, ...
pub(crate) fn grouped(outcomes: &[RequestOutcome]) -> Vec<TurnFigures> {
    let last = outcomes.iter().map(|outcome| outcome.turn).max().unwrap_or(0);
    let mut rows = Vec::new();
    let (mut from, mut width) = (0, 1);
    while last > 0 && from <= last {
        let to = (from + width - 1).min(last);
        rows.extend(figures(outcomes, from, to));
        (from, width) = (to + 1, if from == 0 { 1 } else { from + width });
    }
    rows
}

fn figures(outcomes: &[RequestOutcome], from: usize, to: usize) -> Option<TurnFigures> {
    let of_turn = |outcome: &&RequestOutcome| outcome.error.is_none() && (from..=to).contains(&outcome.turn);
    let completed: Vec<&RequestOutcome> = outcomes.iter().filter(of_turn).collect();
    let sum = |of: fn(&RequestOutcome) -> usize| completed.iter().map(|outcome| of(outcome)).sum::<usize>() as f64;
    let (prompts, cached) = (sum(|outcome| outcome.prompt_tokens), sum(|outcome| outcome.cached_tokens));
    (!completed.is_empty()).then(|| TurnFigures {
        turn: from + 1,
        to: to + 1,
        requests: completed.len(),
        prompt_tokens: prompts / completed.len() as f64,
        hit_rate: if prompts > 0.0 { cached / prompts } else { 0.0 },
        ttft: Distribution::of(completed.iter().map(|outcome| outcome.ttft * 1e3).collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(turn: usize, prompt_tokens: usize, cached_tokens: usize) -> RequestOutcome {
        let ttft = 0.1 * (turn + 1) as f64;
        RequestOutcome { turn, prompt_tokens, cached_tokens, ttft, output_tokens: 1, ..RequestOutcome::default() }
    }

    #[test]
    fn each_turn_has_its_own_figures() {
        let failed = RequestOutcome { error: Some("no".into()), ..outcome(1, 500, 0) };
        let outcomes = [outcome(0, 100, 0), outcome(1, 200, 90), outcome(1, 400, 210), failed];
        let found = turns(&outcomes);
        assert_eq!(found.len(), 2);
        assert_eq!((found[1].turn, found[1].requests, found[1].prompt_tokens, found[1].hit_rate), (2, 2, 300.0, 0.5));
        assert!((found[1].ttft.percentile(50.0) - 200.0).abs() < 1e-9);
        assert_eq!(turns(&[outcome(0, 1, 0), outcome(0, 2, 0)]), []);
    }

    #[test]
    fn rows_of_a_table_double() {
        let outcomes: Vec<RequestOutcome> = (0..43).map(|turn| outcome(turn, 700 * (turn + 1), 700 * turn)).collect();
        let rows: Vec<(usize, usize)> = grouped(&outcomes).iter().map(|row| (row.turn, row.to)).collect();
        assert_eq!(rows, [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 43)]);
        assert_eq!(turns(&outcomes).len(), 43);
        assert!(grouped(&outcomes[..1]).is_empty());
    }
}
