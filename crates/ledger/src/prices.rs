//! What rows of a step cost, in units that are scaled away.

use scheduler::cost::Terms;
use scheduler::{CostModel, RecordRow, StepRecord, Work};

/// Without a cost model: a pass over the weights costs as much as computing so many rows, about what a CPU with matrix
/// units computes while it reads them.
pub const ROWS_OF_A_PASS: usize = 64;

/// Rows, and what they cost beyond the pass over the weights.
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

    /// Adds another's.
    pub(crate) fn merge(&mut self, other: Price) {
        self.rows += other.rows;
        self.beyond += other.beyond;
    }

    /// With the pass at so much per row.
    pub(crate) fn at(&self, per_row: f64) -> f64 {
        self.beyond + self.rows * per_row
    }
}

/// What rows cost, in units that are scaled away: the model's seconds, or rows.
pub(crate) struct Prices<'a> {
    pub(crate) cost: Option<&'a CostModel>,
    terms: Terms,
    /// A pass for one row: what most shares ask for.
    pass_of_one: f64,
}

impl Prices<'_> {
    pub(crate) fn of(cost: Option<&CostModel>) -> Prices<'_> {
        let terms = cost.map(CostModel::terms).unwrap_or_default();
        let mut prices = Prices { cost, terms, pass_of_one: 0.0 };
        prices.pass_of_one = prices.measure_pass(1.0);
        prices
    }

    /// The pass over the weights for so many rows.
    pub(crate) fn pass(&self, rows: f64) -> f64 {
        if rows == 1.0 { self.pass_of_one } else { self.measure_pass(rows) }
    }

    fn measure_pass(&self, rows: f64) -> f64 {
        let Some(cost) = self.cost else { return rows.max(ROWS_OF_A_PASS as f64) };
        // The machine's drift is the same for all parts of a step, so it is left out of all.
        let work = Work { decode_rows: rows as usize, ..Work::default() };
        cost.parts(&work).weights / cost.drift()[0]
    }

    /// What rows of a record cost beyond the pass: those that are no guesses, and what these add.
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

    /// What a guess of a step cost whoever made it, if that took passes: the same for each.
    pub(crate) fn drafting(&self, record: &StepRecord) -> f64 {
        let drafts: usize = record.decode.iter().map(|row| row.drafts).sum();
        let seconds = self.cost.map_or(0.0, |cost| record.drafting.as_secs_f64() / cost.drift()[0]);
        seconds / drafts.max(1) as f64
    }

    /// What rows cost beyond the pass.
    pub(crate) fn beyond(&self, prefill: bool, start: usize, len: usize, ends: bool) -> f64 {
        let mut work = Work::default();
        if prefill {
            work.add_chunk(start, len, ends)
        } else {
            work.add_decode(start + 1);
            (1..len).for_each(|draft| work.add_draft(start + draft + 1));
        }
        // One read of the head serves all rows with logits, as the pass serves all rows: it is nobody's own.
        let Terms { pair, key, row, prompt, head: _, logits } = self.terms;
        pair * (work.prefill_pairs + work.draft_pairs) as f64
            + key * work.decode_context as f64
            + row * work.decode_rows as f64
            + prompt * work.prefill_seqs as f64
            + logits * work.logit_rows as f64
    }
}
