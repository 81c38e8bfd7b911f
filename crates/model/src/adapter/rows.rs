//! Which rows of a step go through which adapter.
//!
//! ```text
//! spans    [ A: rows 0..1, slot 1 | B: rows 1..4, none | C: rows 4..6, slot 1 ]      logit_rows [ 0 3 5 ]
//! listed   [ 0 4 5 | 0 2 ]        slot 1: of all rows, then of those that have logits, by their index among these
//! ```

use crate::batch::Batch;
use std::ops::Range;

/// The rows of one adapter, as ranges of the lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowGroup {
    pub(crate) slot: usize,
    pub(crate) all: Range<usize>,
    pub(crate) wanted: Range<usize>,
}

/// The lists of a step. They are refilled and keep their memory.
#[derive(Debug, Default)]
pub(crate) struct RowLists {
    pub(crate) listed: Vec<u32>,
    pub(crate) groups: Vec<RowGroup>,
    /// By row; `u32::MAX`: none.
    slots: Vec<u32>,
}

impl RowLists {
    /// Room for the largest step.
    pub(crate) fn with_room(max_rows: usize, slots: usize) -> RowLists {
        RowLists {
            listed: Vec::with_capacity(2 * max_rows),
            groups: Vec::with_capacity(slots.min(max_rows)),
            slots: Vec::with_capacity(max_rows),
        }
    }

    pub(crate) fn fill(&mut self, batch: &Batch) {
        let RowLists { listed, groups, slots } = self;
        listed.clear();
        groups.clear();
        slots.clear();
        if batch.spans.iter().all(|span| span.adapter.is_none()) {
            return;
        }
        for span in &batch.spans {
            slots.extend((0..span.num_rows).map(|_| span.adapter.unwrap_or(u32::MAX)));
        }
        for span in &batch.spans {
            let Some(slot) = span.adapter else { continue };
            if groups.iter().any(|group| group.slot == slot as usize) {
                continue;
            }
            let first = listed.len();
            listed.extend((0..slots.len() as u32).filter(|&row| slots[row as usize] == slot));
            let middle = listed.len();
            let wanted = batch.logit_rows.iter().zip(0..).filter(|&(&row, _)| slots[row as usize] == slot);
            listed.extend(wanted.map(|(_, index): (_, u32)| index));
            groups.push(RowGroup { slot: slot as usize, all: first..middle, wanted: middle..listed.len() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Span;

    #[test]
    fn rows_are_listed_by_slot_and_by_their_place_among_the_wanted() {
        let span = |first_row, num_rows, adapter| Span {
            first_row,
            num_rows,
            start: 0,
            table: 0..0,
            adapter,
            state: None,
            saves: 0..0,
        };
        let mut batch = Batch {
            spans: vec![span(0, 1, Some(1)), span(1, 3, None), span(4, 2, Some(1)), span(6, 1, Some(0))],
            logit_rows: vec![0, 3, 5, 6],
            ..Batch::default()
        };
        let mut lists = RowLists::default();
        lists.fill(&batch);
        assert_eq!(lists.listed, [0, 4, 5, 0, 2, 6, 3]);
        let group = |slot, all, wanted| RowGroup { slot, all, wanted };
        assert_eq!(lists.groups, [group(1, 0..3, 3..5), group(0, 5..6, 6..7)]);

        batch.spans.iter_mut().for_each(|span| span.adapter = None);
        lists.fill(&batch);
        assert!(lists.listed.is_empty() && lists.groups.is_empty(), "no span has one");
    }
}
