//! Relative cost of a step's rows; the unit cancels out.

use scheduler::cost::Terms;
use scheduler::{CostModel, RecordRow, StepRecord, Work};

/// Without a cost model: the rows that cost as much as a pass over the weights, about what a CPU with matrix units
/// computes while it reads them.
pub const ROWS_OF_A_PASS: usize = 64;

/// Rows, and their cost beyond the weights pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Price {
    pub(crate) rows: f64,
    pub(crate) beyond: f64,
}

impl Price {
    pub(crate) fn add(&mut self, rows: usize, beyond: f64) {
        self.rows += rows as f64;
        self.beyond += beyond;
    }

    pub(crate) fn merge(&mut self, other: Price) {
        self.rows += other.rows;
        self.beyond += other.beyond;
    }

    /// The cost at `per_row` of the pass.
    pub(crate) fn at(&self, per_row: f64) -> f64 {
        self.beyond + self.rows * per_row
    }
}

/// Costs of rows: the model's seconds, or row counts.
pub(crate) struct Prices<'a> {
    pub(crate) cost: Option<&'a CostModel>,
    terms: Terms,
    /// A pass with one row, the most frequent query.
    pass_of_one: f64,
}

impl Prices<'_> {
    pub(crate) fn of(cost: Option<&CostModel>) -> Prices<'_> {
        let terms = cost.map(CostModel::terms).unwrap_or_default();
        let mut prices = Prices { cost, terms, pass_of_one: 0.0 };
        prices.pass_of_one = prices.measure_pass(1.0);
        prices
    }

    /// Cost of a weights pass with this many rows.
    pub(crate) fn pass(&self, rows: f64) -> f64 {
        if rows == 1.0 { self.pass_of_one } else { self.measure_pass(rows) }
    }

    fn measure_pass(&self, rows: f64) -> f64 {
        let Some(cost) = self.cost else { return rows.max(ROWS_OF_A_PASS as f64) };
        // The drift is the same for all parts of a step, so it cancels out.
        let work = Work { decode_rows: rows as usize, ..Work::default() };
        cost.parts(&work).weights / cost.drift()[0]
    }

    /// Cost of a record's rows beyond the pass: without drafts, and what the drafts add.
    pub(crate) fn beyond_parts(&self, prefill: bool, row: &RecordRow) -> [f64; 2] {
        let of = |len| self.beyond(prefill, row.start, len, row.samples > 0);
        match row.drafts {
            0 => [of(row.len), 0.0],
            drafts => {
                let first = of(row.len - drafts);
                [first, (of(row.len) - first).max(0.0)]
            }
        }
    }

    /// Drafting cost per draft of the step, if it took forward passes.
    pub(crate) fn drafting(&self, record: &StepRecord) -> f64 {
        let drafts: usize = record.decode.iter().map(|row| row.drafts).sum();
        let seconds = self.cost.map_or(0.0, |cost| record.drafting.as_secs_f64() / cost.drift()[0]);
        seconds / drafts.max(1) as f64
    }

    /// Cost of rows beyond the pass.
    pub(crate) fn beyond(&self, prefill: bool, start: usize, len: usize, ends: bool) -> f64 {
        let mut work = Work::default();
        if prefill {
            work.add_chunk(start, len, ends)
        } else {
            work.add_decode(start + 1);
            (1..len).for_each(|draft| work.add_draft(start + draft + 1));
        }
        // The read of the head serves all rows with logits, so like the pass it is no row's own.
        let Terms { pair, key, row, prompt, head: _, logits } = self.terms;
        pair * (work.prefill_pairs + work.draft_pairs) as f64
            + key * work.decode_context as f64
            + row * work.decode_rows as f64
            + prompt * work.prefill_seqs as f64
            + logits * work.logit_rows as f64
    }
}
