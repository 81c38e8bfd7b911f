//! What the prefix cache finds, for threads that are not the engine's: a request is promised its first token, and a worker
//! that is asked for a prompt answers, at once, also in the middle of a long step.
//!
//! Names of blocks are cut to 64 bits. A collision costs a wrong forecast or a detour and no bit: the scheduler looks into its
//! own cache, and compares tokens.

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

    /// How many blocks from the first on are found of a prompt's. Between two of them the engine may change what is found.
    pub(crate) fn leading(&self, chain: impl IntoIterator<Item = u64>) -> usize {
        let is_found = |name: &u64| self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(name);
        chain.into_iter().take_while(is_found).count()
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
    }
}
