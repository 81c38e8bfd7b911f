//! Experts that do not fit in memory: of each layer those used most stay, others are read when rows go through them.
//!
//! ```text
//! choice of the rows      1 4 7                     of 8 experts, with memory for three
//! in memory           0 1     7                     1 and 7 are there
//! missing                 4 ──> read, as at the start: from the packed image, or packed from the model's files
//!                           └─> stays in place of 0 if it is used more, else its memory is given back at once
//! ```
//! A prompt goes through nearly all experts once, so what was used last says little: counted is how often an expert was
//! used in about the last hundred passes. One that rows of this pass still need is not dropped.
//!
//! What is computed does not depend on any of this: an expert has the same bits whenever it is read.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Memory for experts, where not all of them are to stay in it.
#[derive(Clone, Copy)]
pub struct ExpertMemory {
    /// Bytes for the experts of all layers, shared equally between these. One expert more is read beside them.
    pub bytes: u64,
    /// A clock, to tell how long reading took.
    pub now: fn() -> Duration,
}

impl fmt::Debug for ExpertMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

/// What experts were read while the model computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertReadTotals {
    /// Experts.
    pub count: u64,
    /// Their bytes in memory.
    pub bytes: u64,
    /// Time in which the computing threads did nothing else.
    pub took: Duration,
}

/// Counts reads.
#[derive(Debug, Default)]
pub(crate) struct ReadCounts {
    count: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
}

impl ReadCounts {
    pub(crate) fn add(&self, bytes: usize, took: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Those since the last call.
    pub(crate) fn take(&self) -> ExpertReadTotals {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        let took = Duration::from_nanos(take(&self.nanos));
        ExpertReadTotals { count: take(&self.count), bytes: take(&self.bytes), took }
    }
}

/// The experts `T` of a layer, with memory for some.
pub(crate) struct ExpertCache<T> {
    /// How many stay in memory.
    room: usize,
    held: Mutex<Held<T>>,
}

struct Held<T> {
    experts: Vec<Option<T>>,
    uses: Uses,
}

impl<T> ExpertCache<T> {
    /// At most `room` of `experts` are there.
    pub(crate) fn new(room: usize, experts: Vec<Option<T>>) -> ExpertCache<T> {
        let uses = Uses(vec![0; experts.len()]);
        ExpertCache { room, held: Mutex::new(Held { experts, uses }) }
    }

    /// Calls `work` for each that is `needed`, by rising index, and `read` for those that are not there; what it gives
    /// nothing for ends the walk. `settle` is called before one is dropped: operations that were asked for may still
    /// read it.
    pub(crate) fn each(
        &self,
        needed: impl Fn(usize) -> bool,
        read: impl Fn(usize) -> Option<T>,
        settle: impl Fn(),
        mut work: impl FnMut(usize, &T),
    ) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Held { experts, uses } = &mut *held;
        uses.count(&needed);
        for index in (0..experts.len()).filter(|&index| needed(index)) {
            if let Some(expert) = &experts[index] {
                work(index, expert);
                continue;
            }
            let has_room = experts.iter().flatten().count() < self.room;
            let dropped =
                if has_room { None } else { uses.least_used(index, |other| experts[other].is_some(), &needed) };
            if let Some(dropped) = dropped {
                settle();
                experts[dropped] = None;
            }
            let Some(expert) = read(index) else { return };
            work(index, &expert);
            match has_room || dropped.is_some() {
                true => experts[index] = Some(expert),
                false => settle(),
            }
        }
    }

    /// How many there are, and how many in memory.
    pub(crate) fn counts(&self) -> [usize; 2] {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        [held.experts.len(), held.experts.iter().flatten().count()]
    }

    /// Those in memory.
    pub(crate) fn held_mut(&mut self) -> Vec<&mut T> {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        held.experts.iter_mut().flatten().collect()
    }
}

/// How often each expert of a layer was used.
#[derive(Debug)]
struct Uses(Vec<u32>);

impl Uses {
    /// What a use counts at first.
    const ONE: u32 = 1 << 16;
    /// What a pass takes of a count: a 128th.
    const FADE: u32 = 7;

    /// A pass uses those that are `needed`.
    fn count(&mut self, needed: impl Fn(usize) -> bool) {
        for (index, uses) in self.0.iter_mut().enumerate() {
            *uses = *uses - (*uses >> Uses::FADE) + if needed(index) { Uses::ONE } else { 0 };
        }
    }

    /// The one of those `held` that is used least and may go for `index`; `None` if all are used as much. Experts are
    /// walked through by rising index: one behind it that is `needed` stays.
    fn least_used(&self, index: usize, held: impl Fn(usize) -> bool, needed: impl Fn(usize) -> bool) -> Option<usize> {
        let may_go = |&other: &usize| held(other) && !(other > index && needed(other));
        let least = (0..self.0.len()).filter(may_go).min_by_key(|&other| (self.0[other], other));
        least.filter(|&other| self.0[other] < self.0[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes through a layer of eight experts with room for three; how many had to be read in each.
    fn reads(passes: &[&[usize]]) -> Vec<usize> {
        let cache = ExpertCache::new(3, (0..8).map(|index| (index < 3).then_some(index)).collect());
        let pass = |pass: &&[usize]| {
            let (mut seen, reads) = (Vec::new(), AtomicU64::new(0));
            let read = |index| {
                reads.fetch_add(1, Ordering::Relaxed);
                Some(index)
            };
            cache.each(|index| pass.contains(&index), read, || {}, |index, &expert| seen.push((index, expert)));
            assert_eq!(seen, pass.iter().map(|&index| (index, index)).collect::<Vec<_>>(), "each once, in order");
            assert_eq!(cache.counts(), [8, 3]);
            reads.into_inner() as usize
        };
        passes.iter().map(pass).collect()
    }

    #[test]
    fn experts_that_are_used_often_stay_through_a_prompt_that_uses_all() {
        let all: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 7];
        for (passes, want, what) in [
            (vec![&[0, 2][..]; 3], vec![0, 0, 0], "what is there is not read"),
            (vec![&[5, 6, 7][..]; 3], vec![3, 0, 0], "unused ones make room"),
            (vec![all; 3], vec![5, 5, 5], "no more than what does not fit"),
            ([vec![&[5, 6, 7][..]; 3], vec![all], vec![&[5, 6, 7][..]]].concat(), vec![3, 0, 0, 5, 0], "they stay"),
            ([vec![&[5, 6, 7][..]; 2], vec![&[0][..]; 4]].concat(), vec![3, 0, 1, 1, 0, 0], "habits change"),
            (vec![&[0, 7][..], &[3, 7]], vec![1, 1], "what the pass still needs is kept"),
        ] {
            assert_eq!(reads(&passes), want, "{what}");
        }
    }
}
