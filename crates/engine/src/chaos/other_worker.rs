//! Another worker, imagined: it reads prompts for the engine, and has prompts read by it. It may be slow, leave in the
//! middle and forget, as a network does; what it says is true, for what is changed on its way no thread believes.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use observe::HandoffOutcome;
use protocol::{RequestId, TokenId};

use super::fake::{self, POISON};
use crate::command::BlockMessage;
use crate::handoff::{Budget, HandoffEvent, HandoffResult, PrefillRequest, ReceiveEvent, RemotePrefill};

/// What the engine asked for and has not had the end of.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// And the next block of each.
    wanted: BTreeMap<RequestId, (PrefillRequest, usize)>,
    disbelieved: u64,
    /// No worker answers for a while.
    is_away: bool,
}

impl Asked {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_away(&self, is_away: bool) {
        self.inner().is_away = is_away;
    }

    pub(super) fn disbelieved(&self) -> u64 {
        self.inner().disbelieved
    }

    /// Requests with a prompt being read.
    pub(super) fn requests(&self) -> Vec<RequestId> {
        self.inner().wanted.keys().copied().collect()
    }

    /// The next that comes for a request: a block, or the end where `ends` or all blocks have come. `first`: the token
    /// that it draws. Hashes of the prefixes that it has read for the block are appended to `said`.
    pub(super) fn next(
        &self,
        id: RequestId,
        ends: bool,
        block_size: usize,
        first: Option<TokenId>,
        said: &mut Vec<u64>,
    ) -> HandoffEvent {
        let mut inner = self.inner();
        let (wanted, next) = inner.wanted.get_mut(&id).expect("it is asked for");
        // What breaks things here breaks them there.
        let fails = wanted.entry.prompt.iter().take((*next + 1) * block_size).any(|&token| token == POISON);
        if ends || fails || *next == wanted.blocks.end {
            let outcome = match *next {
                next if next == wanted.blocks.end => HandoffOutcome::Whole,
                next if next == wanted.blocks.start => HandoffOutcome::Lost,
                _ => HandoffOutcome::InPart,
            };
            let first = first.filter(|_| outcome == HandoffOutcome::Whole);
            inner.wanted.remove(&id);
            return HandoffEvent::Received(
                id,
                ReceiveEvent::Done(Box::new(HandoffResult { first, ..HandoffResult::without(outcome) })),
            );
        }
        let mut bytes = Budget::of(1 << 20).try_take(12 * block_size, Vec::from).expect("there is room");
        let (block, hashes) = block(&wanted.entry.prompt, *next, block_size);
        bytes.bytes.copy_from_slice(&block);
        said.extend(hashes);
        *next += 1;
        HandoffEvent::Received(id, ReceiveEvent::Block { index: *next - 1, bytes })
    }
}

impl RemotePrefill for Asked {
    fn ask(&mut self, wanted: PrefillRequest) {
        let next = wanted.blocks.start;
        assert!(self.inner().wanted.insert(wanted.id, (wanted, next)).is_none(), "once for each request");
    }

    fn forget(&mut self, id: RequestId) {
        self.inner().wanted.remove(&id);
    }

    fn quarantine_worker(&mut self, _: RequestId) {
        self.inner().disbelieved += 1;
    }

    fn is_there(&self) -> bool {
        !self.inner().is_away
    }

    fn least_tokens(&self) -> usize {
        1
    }
}

/// The bytes of a block of a prompt, as every worker has them, and its prefixes.
fn block(prompt: &[TokenId], index: usize, block_size: usize) -> (Vec<u8>, Vec<u64>) {
    let mut hash = prompt[..index * block_size].iter().fold(0, |hash, &token| fake::grow(hash, token));
    let (mut bytes, mut hashes) = (Vec::new(), Vec::new());
    for &token in &prompt[index * block_size..][..block_size] {
        hash = fake::grow(hash, token);
        bytes.extend_from_slice(&token.to_le_bytes());
        bytes.extend_from_slice(&hash.to_le_bytes());
        hashes.push(hash);
    }
    (bytes, hashes)
}

/// A peer that has a prompt prefilled by the engine.
pub(super) struct Reading {
    pub(super) id: RequestId,
    pub(super) given: Receiver<BlockMessage>,
    pub(super) prompt: Vec<TokenId>,
    /// The next block that comes.
    pub(super) next: usize,
    /// The token behind the prompt; `None` if its request ends with an error.
    pub(super) first: Option<TokenId>,
    /// Percent of turns in which it comes for blocks.
    pub(super) pace: u64,
}

impl Reading {
    /// Takes what is there. True: that was all.
    pub(super) fn take(&mut self, block_size: usize) -> bool {
        loop {
            match self.given.try_recv() {
                Ok(BlockMessage::Block { index, bytes }) => {
                    assert_eq!(index, self.next, "blocks come in their order");
                    assert_eq!(
                        bytes.bytes.bytes(),
                        Ok(&*block(&self.prompt, index, block_size).0),
                        "block {index} of {:?}",
                        self.id
                    );
                    self.next += 1;
                }
                Ok(BlockMessage::State { .. }) => panic!("{:?}: the model has no states", self.id),
                Ok(BlockMessage::End { blocks, first }) => {
                    assert_eq!(blocks, self.next, "what was sent is what is said to be");
                    assert!(first.is_none() || first == self.first, "the token behind the prompt of {:?}", self.id);
                    return true;
                }
                Err(TryRecvError::Empty) => return false,
                // The engine has begun anew.
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }
}
