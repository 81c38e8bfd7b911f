//! What the prefix cache finds, for threads that are not the engine's: a worker that is asked for a prompt answers at
//! once, also in the middle of a long step.
//!
//! Names of blocks are cut to 64 bits. A collision costs a detour and no bit: the prefill worker looks into its own
//! cache, and compares tokens.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use scheduler::CacheEvent;

use crate::feature::{CoreEvent, Feature};

/// Names of blocks that would be found now, or were a step ago.
#[derive(Debug, Default)]
pub(crate) struct FoundBlocks(Mutex<BTreeSet<u64>>);

impl FoundBlocks {
    /// What changed, in its order.
    pub(crate) fn hear(&self, events: &[CacheEvent]) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            match event {
                CacheEvent::Found { hash, .. } => _ = found.insert(hash.short()),
                CacheEvent::Lost { hash } => _ = found.remove(&hash.short()),
                CacheEvent::Cleared => found.clear(),
            }
        }
    }

    /// How many blocks from the first on are found of a prompt's.
    pub(crate) fn leading(&self, chain: &[u64]) -> usize {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        chain.iter().take_while(|name| found.contains(name)).count()
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
        let found = FoundBlocks::default();
        assert_eq!(found.leading(&chain), 0);
        found.hear(&[come(1), come(2), come(4)]);
        assert_eq!((found.leading(&chain), found.leading(&chain[3..]), found.leading(&[])), (2, 1, 0));
        found.hear(&[come(3), CacheEvent::Lost { hash: hash(2) }]);
        assert_eq!(found.leading(&chain), 1);
        found.hear(&[CacheEvent::Cleared, come(4)]);
        assert_eq!(found.leading(&chain), 0);
    }
}
