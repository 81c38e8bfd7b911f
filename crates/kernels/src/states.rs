//! The memory of layers whose memory is a state: a few numbers per sequence that each token changes, in slots.
//!
//! ```text
//! slot    [ layer 0: inputs of its convolution, heads x keys x values | layer 1: .. | .. ]      float32
//! step    a sequence reads one slot, or zeros at its beginning -> its rows -> copies after some rows, in other slots
//! ```
//! Float32 as computed: a state that was kept in fewer bits would go on as another one.

use crate::mem::{Buffer, OutOfMemory};
use std::marker::PhantomData;
use std::ops::Range;

/// Dimensions of the slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateShape {
    /// Number of slots.
    pub slots: usize,
    /// Numbers in a slot: the states of all layers.
    pub numbers: usize,
}

impl StateShape {
    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.numbers * size_of::<f32>()
    }
}

/// After which row the states of a sequence are written to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSave {
    /// A row of the batch.
    pub row: u32,
    /// The slot.
    pub slot: u32,
}

/// The rows of one sequence in a step, the state before them, and the states to keep.
#[derive(Clone, Copy, Debug)]
pub struct StateSpan<'a> {
    /// First row in the batch.
    pub first_row: usize,
    /// Number of rows.
    pub num_rows: usize,
    /// The slot with the state before the first row; `None`: zeros.
    pub from: Option<u32>,
    /// By rising row; the rows are of this span. No slot is named twice in a step, and none of them is read in it.
    pub saves: &'a [StateSave],
}

impl StateSpan<'_> {
    /// Its rows in the batch.
    pub fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.num_rows
    }
}

/// Slots of float32 numbers in host memory.
#[derive(Debug)]
pub struct States {
    shape: StateShape,
    data: Buffer<f32>,
    /// By slot: the number of the last operation that read it (even) or wrote it (odd).
    marks: Buffer<u64>,
    operation: u64,
}

impl States {
    /// Zeros.
    pub fn new(shape: StateShape) -> Result<States, OutOfMemory> {
        let numbers = shape.slots.checked_mul(shape.numbers).ok_or(OutOfMemory { bytes: usize::MAX })?;
        Ok(States { shape, data: Buffer::zeroed(numbers)?, marks: Buffer::zeroed(shape.slots)?, operation: 0 })
    }

    /// Its dimensions.
    pub fn shape(&self) -> StateShape {
        self.shape
    }

    /// Copies a slot's bytes.
    ///
    /// Panics if there is no such slot, or `out` is not [`StateShape::slot_bytes`] long.
    pub fn read(&self, slot: u32, out: &mut [u8]) {
        out.copy_from_slice(&self.data.as_bytes()[self.bytes_of(slot)]);
    }

    /// The reverse.
    ///
    /// Panics for the same arguments.
    pub fn write(&mut self, slot: u32, bytes: &[u8]) {
        let range = self.bytes_of(slot);
        self.data.as_bytes_mut()[range].copy_from_slice(bytes);
    }

    fn bytes_of(&self, slot: u32) -> Range<usize> {
        assert!((slot as usize) < self.shape.slots, "slot {slot} of {}", self.shape.slots);
        let bytes = self.shape.slot_bytes();
        slot as usize * bytes..(slot as usize + 1) * bytes
    }

    /// The numbers of one layer for the threads of one operation: `len` from `at` in each slot. Checks what
    /// [`StateSpan::saves`] promises, so that no two spans meet in a slot that one of them writes.
    pub(crate) fn open(&mut self, spans: &[StateSpan<'_>], (at, len): (usize, usize)) -> OpenStates<'_> {
        let StateShape { slots, numbers } = self.shape;
        assert!(at + len <= numbers || slots == 0, "{len} numbers at {at} of a slot of {numbers}");
        self.operation += 1;
        let (read, written) = (2 * self.operation, 2 * self.operation + 1);
        for slot in spans.iter().filter_map(|span| span.from) {
            assert!((slot as usize) < slots, "a state in slot {slot} of {slots}");
            self.marks[slot as usize] = read;
        }
        for span in spans {
            let mut first = span.first_row;
            for &StateSave { row, slot } in span.saves {
                assert!((slot as usize) < slots, "a state for slot {slot} of {slots}");
                assert!((first..span.first_row + span.num_rows).contains(&(row as usize)), "row {row} of {span:?}");
                assert!(self.marks[slot as usize] < read, "slot {slot} is read or written twice");
                self.marks[slot as usize] = written;
                first = row as usize;
            }
        }
        OpenStates { data: self.data.start(), numbers, at, len, states: PhantomData }
    }
}

/// See [`States::open`].
#[derive(Clone, Copy)]
pub(crate) struct OpenStates<'a> {
    data: *mut f32,
    numbers: usize,
    at: usize,
    len: usize,
    states: PhantomData<&'a mut f32>,
}

// SAFETY: it gives pointers; each write through them says why no other thread makes one.
unsafe impl Sync for OpenStates<'_> {}

impl OpenStates<'_> {
    /// The `len` numbers from `first` of the layer's part of a slot that [`States::open`] has checked.
    #[inline(always)]
    pub(crate) fn part(&self, slot: u32, first: usize, len: usize) -> *mut f32 {
        assert!(first + len <= self.len);
        self.data.wrapping_add(slot as usize * self.numbers + self.at + first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_slot_comes_back_as_it_was_written() {
        let mut states = States::new(StateShape { slots: 3, numbers: 5 }).unwrap();
        let bytes: Vec<u8> = (0..20).collect();
        states.write(1, &bytes);
        let mut out = [1; 20];
        for (slot, expected) in [(0, vec![0; 20]), (1, bytes), (2, vec![0; 20])] {
            states.read(slot, &mut out);
            assert_eq!(out, expected[..], "slot {slot}");
        }
        assert!(catch_unwind(AssertUnwindSafe(|| states.read(3, &mut [0; 20]))).is_err(), "there is no slot 3");
    }

    #[test]
    fn no_slot_is_written_that_another_span_touches() {
        type Span = (usize, Option<u32>, Vec<(u32, u32)>);
        let allowed = |spans: &[Span]| {
            let saves: Vec<Vec<StateSave>> = spans
                .iter()
                .map(|(.., saves)| saves.iter().map(|&(row, slot)| StateSave { row, slot }).collect())
                .collect();
            let spans: Vec<StateSpan<'_>> = spans
                .iter()
                .zip(&saves)
                .map(|(&(first_row, from, _), saves)| StateSpan { first_row, num_rows: 4, from, saves })
                .collect();
            let mut states = States::new(StateShape { slots: 4, numbers: 2 }).unwrap();
            catch_unwind(AssertUnwindSafe(|| states.open(&spans, (0, 2)).len)).is_ok()
        };
        assert!(allowed(&[(0, None, vec![(0, 0), (3, 1), (3, 2)]), (4, Some(3), vec![])]));
        assert!(allowed(&[(0, Some(1), vec![]), (4, Some(1), vec![(7, 0)])]), "two may read one slot");
        for (spans, why) in [
            (vec![(0, Some(1), vec![(1, 1)])], "its own"),
            (vec![(0, Some(1), vec![]), (4, None, vec![(5, 1)])], "another's"),
            (vec![(0, None, vec![(1, 2)]), (4, None, vec![(5, 2)])], "written twice"),
            (vec![(0, None, vec![(2, 2), (1, 3)])], "falling rows"),
            (vec![(0, None, vec![(4, 2)])], "a row of the next span"),
            (vec![(0, None, vec![(0, 4)])], "no such slot"),
            (vec![(0, Some(4), vec![])], "no such slot to read"),
        ] {
            assert!(!allowed(&spans), "{why}");
        }
    }
}
