//! A step's time as one of its rows sees it, for a picture of the step: the accounts' rule, as fractions.
//!
//! ```text
//! A's lane  [own|dec|////////// B's prompt //////////]     own rows alone, then what the other rows add
//! B's lane  [################ own ################|dec]
//! ```

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use protocol::RequestId;
use scheduler::{CostModel, RecordRow, StepRecord};

use crate::{Price, Prices};

/// Fractions of the time of a step's rows, from 0 to 1. The rest belongs to other requests' decode rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowShares {
    /// Its own rows alone.
    pub own: f64,
    /// Other requests' prompts.
    pub other_prefill: f64,
}

/// The fractions of every row, decode rows first, each in the record's order. `cost`: the model that predicted the
/// step. Empty if no prompt shares the step with another request.
pub fn row_shares(record: &StepRecord, cost: Option<&CostModel>) -> Vec<RowShares> {
    let first = |rows: &[RecordRow]| rows.first().map(|row| row.request);
    let Some(one) = first(&record.prefill) else { return Vec::new() };
    let rows = || record.decode.iter().map(|row| (row, false)).chain(record.prefill.iter().map(|row| (row, true)));
    if rows().all(|(row, _)| row.request == one) {
        return Vec::new();
    }
    let prices = Prices::of(cost);
    // Per request, the cost of its decode rows and of its prompt rows beyond the weights pass.
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
        if total > 0.0 { RowShares { own: own / total, other_prefill: prefill / total } } else { RowShares::default() }
    };
    let shares: BTreeMap<RequestId, RowShares> =
        groups.into_iter().map(|(request, group)| (request, of(group))).collect();
    rows().map(|(row, _)| shares[&row.request]).collect()
}
