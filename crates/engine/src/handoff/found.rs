//! What the prefix cache finds, for threads that are not the engine's: a request is promised its first token, and a worker
//! that is asked for a prompt answers, at once, also in the middle of a long step.
//!
//! Names of blocks are cut to 64 bits. A collision costs a wrong forecast or a detour and no bit: the scheduler looks into its
//! own cache, and compares tokens.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use scheduler::CacheEvent;

use crate::feature::{CoreEvent, Feature};

/// Names of blocks that would be found now, or were a step ago.
#[derive(Debug, Default)]
pub(crate) struct FoundBlocks {
    /// With whether they have a checkpoint.
    names: Mutex<BTreeMap<u64, bool>>,
    /// The model has states: a prompt goes on behind a block with a checkpoint only.
    has_states: bool,
}

impl FoundBlocks {
    /// Of a model that has states, or none.
    pub(crate) fn of(has_states: bool) -> FoundBlocks {
        FoundBlocks { has_states, ..FoundBlocks::default() }
    }

    /// What changed, in its order.
    pub(crate) fn hear(&self, events: &[CacheEvent]) {
        let mut found = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            match event {
                CacheEvent::Found { hash, .. } => _ = found.insert(hash.short(), false),
                CacheEvent::Lost { hash } => _ = found.remove(&hash.short()),
                CacheEvent::Checkpoint { hash, is_kept } => {
                    found.entry(hash.short()).and_modify(|has_checkpoint| *has_checkpoint = *is_kept);
                }
                CacheEvent::Cleared => found.clear(),
            }
        }
    }

    /// How many blocks from the first on a prompt would find. Between two of them the engine may change what is found.
    pub(crate) fn leading(&self, chain: impl IntoIterator<Item = u64>) -> usize {
        let find = |name: u64| self.names.lock().unwrap_or_else(PoisonError::into_inner).get(&name).copied();
        let found = chain.into_iter().map_while(find).enumerate();
        let usable = found.filter(|(_, has_checkpoint)| *has_checkpoint || !self.has_states);
        usable.last().map_or(0, |(last, _)| last + 1)
    }
}

impl Feature for Arc<FoundBlocks> {
    fn on(&mut self, event: &CoreEvent<'_>) {
        if let CoreEvent::CacheChanged(events) = event {
            self.hear(events);
        }
    }

    fn wants_cache_events(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use scheduler::kv::BlockHash;

    use super::*;

    #[test]
    fn a_chain_is_found_up_to_its_first_gap() {
        let hash = |number: u8| BlockHash([number; 32]);
        let come = |number: u8| CacheEvent::Found { hash: hash(number), parent: None, salt: 0, tokens: vec![] };
        let chain: Vec<u64> = (1..=4).map(|number| hash(number).short()).collect();
        let leading = |found: &FoundBlocks, chain: &[u64]| found.leading(chain.iter().copied());
        let found = FoundBlocks::default();
        assert_eq!(leading(&found, &chain), 0);
        found.hear(&[come(1), come(2), come(4)]);
        assert_eq!((leading(&found, &chain), leading(&found, &chain[3..]), leading(&found, &[])), (2, 1, 0));
        found.hear(&[come(3), CacheEvent::Lost { hash: hash(2) }]);
        assert_eq!(leading(&found, &chain), 1);
        found.hear(&[CacheEvent::Cleared, come(4)]);
        assert_eq!(leading(&found, &chain), 0);
        // With states, up to the last checkpoint before the gap.
        let found = FoundBlocks::of(true);
        let checkpoint = |number, is_kept| CacheEvent::Checkpoint { hash: hash(number), is_kept };
        found.hear(&[come(1), come(2), come(3), checkpoint(1, true), checkpoint(2, true)]);
        assert_eq!(leading(&found, &chain), 2);
        found.hear(&[checkpoint(2, false), checkpoint(4, true)]);
        assert_eq!(leading(&found, &chain), 1);
    }
}
