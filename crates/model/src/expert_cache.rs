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

use crate::tensors;
use crate::transformer::{Loader, Mlp, Pass};
use checkpoint::LoadError;
use checkpoint::weights::Weights;
use kernels::{Backend, WeightClass};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
pub struct ExpertReads {
    /// Experts.
    pub count: u64,
    /// Their bytes in memory.
    pub bytes: u64,
    /// Time in which the computing threads did nothing else.
    pub took: Duration,
}

/// What reads experts, and counts.
pub(crate) struct ExpertReader {
    weights: Arc<Weights>,
    class: WeightClass,
    as_stored: bool,
    memory: ExpertMemory,
    /// Layers that have experts.
    num_layers: usize,
    /// Whether all have to be packed once at the start.
    pack_all: bool,
    count: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
}

impl ExpertReader {
    /// See the fields.
    pub(crate) fn new(
        (weights, class, as_stored): (&Arc<Weights>, WeightClass, bool),
        memory: ExpertMemory,
        num_layers: usize,
        pack_all: bool,
    ) -> ExpertReader {
        let [count, bytes, nanos] = [const { AtomicU64::new(0) }; 3];
        let weights = weights.clone();
        ExpertReader { weights, class, as_stored, memory, num_layers, pack_all, count, bytes, nanos }
    }

    /// Since the last call.
    pub(crate) fn take(&self) -> ExpertReads {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        let took = Duration::from_nanos(take(&self.nanos));
        ExpertReads { count: take(&self.count), bytes: take(&self.bytes), took }
    }

    fn read<B: Backend>(&self, pass: &Pass<'_, B>, expert: &tensors::Mlp) -> Result<Mlp<B>, LoadError> {
        let &ExpertReader { class, as_stored, memory: ExpertMemory { now, .. }, .. } = self;
        let &Pass { backend, config, .. } = pass;
        let began = now();
        let (names, progress, weights) = (Vec::new(), &mut |_| {}, &*self.weights);
        let expert =
            Loader { backend, config, weights, class, as_stored, names, progress, expert_reader: None }.mlp(expert)?;
        let took = now().saturating_sub(began);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(expert.bytes(backend) as u64, Ordering::Relaxed);
        self.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        Ok(expert)
    }
}

/// The experts of a layer, with memory for some.
pub(crate) struct ExpertCache<B: Backend> {
    reader: Arc<ExpertReader>,
    experts: Vec<tensors::Mlp>,
    /// How many stay in memory.
    room: usize,
    /// Bytes of each.
    bytes: usize,
    held: Mutex<Held<B>>,
}

struct Held<B: Backend> {
    experts: Vec<Option<Mlp<B>>>,
    uses: Uses,
}

impl<B: Backend> ExpertCache<B> {
    /// The first ones, until the memory is full.
    pub(crate) fn load(
        loader: &mut Loader<'_, B>,
        reader: Arc<ExpertReader>,
        experts: &[tensors::Mlp],
    ) -> Result<ExpertCache<B>, LoadError> {
        let share = reader.memory.bytes / reader.num_layers.max(1) as u64;
        let mut held: Vec<Option<Mlp<B>>> = Vec::with_capacity(experts.len());
        let (mut room, mut bytes) = (1, 0);
        for (index, expert) in experts.iter().enumerate() {
            // The first one tells how many there is room for.
            let expert = if index < room || reader.pack_all { Some(loader.mlp(expert)?) } else { None };
            if let Some(expert) = expert.as_ref().filter(|_| index == 0) {
                bytes = expert.bytes(loader.backend);
                room = (share / bytes.max(1) as u64) as usize;
            }
            held.push(expert.filter(|_| index < room));
        }
        let held = Mutex::new(Held { experts: held, uses: Uses::new(experts.len()) });
        Ok(ExpertCache { reader, experts: experts.to_vec(), room, bytes, held })
    }

    /// Calls `work` for each that is `needed`, by rising index.
    ///
    /// Panics if one cannot be read: its file was written to, or its disk is broken.
    pub(crate) fn each(
        &self,
        pass: &Pass<'_, B>,
        needed: impl Fn(usize) -> bool,
        mut work: impl FnMut(usize, &Mlp<B>),
    ) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Held { experts, uses } = &mut *held;
        uses.count(&needed);
        for index in (0..self.experts.len()).filter(|&index| needed(index)) {
            if let Some(expert) = &experts[index] {
                work(index, expert);
                continue;
            }
            let has_room = experts.iter().flatten().count() < self.room;
            let dropped =
                if has_room { None } else { uses.least_used(index, |other| experts[other].is_some(), &needed) };
            if let Some(dropped) = dropped {
                // Operations that were asked for may still read it.
                pass.backend.wait();
                experts[dropped] = None;
            }
            let expert = self.reader.read(pass, &self.experts[index]);
            let expert = expert.unwrap_or_else(|error| panic!("an expert cannot be read: {error}"));
            work(index, &expert);
            match has_room || dropped.is_some() {
                true => experts[index] = Some(expert),
                false => pass.backend.wait(),
            }
        }
    }

    /// Those in memory.
    pub(crate) fn held_mut(&mut self) -> Vec<&mut Mlp<B>> {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        held.experts.iter_mut().flatten().collect()
    }

    /// Bytes of all experts, and of those in memory.
    pub(crate) fn bytes(&self) -> [usize; 2] {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        [self.experts.len(), held.experts.iter().flatten().count()].map(|experts| experts * self.bytes)
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

    fn new(experts: usize) -> Uses {
        Uses(vec![0; experts])
    }

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
        let (mut held, mut uses) = (vec![true, true, true, false, false, false, false, false], Uses::new(8));
        let pass = |pass: &&[usize]| {
            let needed = |index: usize| pass.contains(&index);
            uses.count(needed);
            let mut reads = 0;
            for index in (0..8).filter(|&index| needed(index)) {
                if held[index] {
                    continue;
                }
                reads += 1;
                if let Some(dropped) = uses.least_used(index, |other| held[other], needed) {
                    (held[dropped], held[index]) = (false, true);
                }
                assert_eq!(held.iter().filter(|&&held| held).count(), 3);
            }
            reads
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
