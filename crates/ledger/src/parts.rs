//! A step's time as one of its rows sees it, for a picture of the step: the same rule as the accounts', in shares.
//!
//! ```text
//! A's lane  [own|dec|////////// B's prompt //////////]     what the step would have cost alone, and what it cost beyond
//! B's lane  [################ own ################|dec]
//! ```

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use scheduler::{CostModel, RecordRow, RequestId, StepRecord};

use crate::{Price, Prices};

/// Shares of the time that a step's rows took, from 0 to 1. What is left of 1 belongs to other requests' decode rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// What its own rows would have cost alone.
    pub own: f64,
    /// What the prompts of other requests made of it.
    pub other_prefill: f64,
}

/// The parts of every row, those of decode first, each in the record's order. `cost`: what predicted the step. Nothing
/// where nobody's prompt shares the step with anybody: there everybody pays alike for the pass over the weights.
pub fn parts(record: &StepRecord, cost: Option<&CostModel>) -> Vec<Parts> {
    let first = |rows: &[RecordRow]| rows.first().map(|row| row.request);
    let Some(one) = first(&record.prefill) else { return Vec::new() };
    let rows = || record.decode.iter().map(|row| (row, false)).chain(record.prefill.iter().map(|row| (row, true)));
    if rows().all(|(row, _)| row.request == one) {
        return Vec::new();
    }
    let prices = Prices::of(cost);
    // Of each request, what its decode rows and what its prompt rows cost beyond the pass.
    let mut groups: BTreeMap<RequestId, [Price; 2]> = BTreeMap::new();
    let mut all = [Price::default(); 2];
    for (row, is_prefill) in rows() {
        let beyond = prices.beyond(is_prefill, row.start, row.len, row.samples > 0);
        groups.entry(row.request).or_default()[usize::from(is_prefill)].add(row.len, beyond);
        all[usize::from(is_prefill)].add(row.len, beyond);
    }
    let num_rows = all[0].rows + all[1].rows;
    let pass = prices.pass(num_rows);
    let of = |[decode, prefill]: [Price; 2]| {
        let own_rows = decode.rows + prefill.rows;
        let own_pass = prices.pass(own_rows);
        let own = own_pass + decode.beyond + prefill.beyond;
        let per_row = if num_rows > own_rows { (pass - own_pass).max(0.0) / (num_rows - own_rows) } else { 0.0 };
        let [decode, prefill] = [(all[0], decode), (all[1], prefill)].map(|(all, own)| {
            let others = Price { rows: all.rows - own.rows, beyond: (all.beyond - own.beyond).max(0.0) };
            if others.rows > 0.0 { others.at(per_row) } else { 0.0 }
        });
        let total = own + decode + prefill;
        if total > 0.0 { Parts { own: own / total, other_prefill: prefill / total } } else { Parts::default() }
    };
    let shares: BTreeMap<RequestId, Parts> = groups.into_iter().map(|(request, group)| (request, of(group))).collect();
    rows().map(|(row, _)| shares[&row.request]).collect()
}
