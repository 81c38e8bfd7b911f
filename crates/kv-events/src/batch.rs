//! Events in msgpack, as vLLM's msgspec writes them.

use protocol::TokenId;
use scheduler::CacheEvent;
use serde::Serialize;

/// `["BlockStored", hashes, parent, tokens, tokens per block, lora_id, medium, lora_name]`: consecutive blocks.
#[derive(Serialize)]
struct Stored {
    name: &'static str,
    hashes: Vec<u64>,
    parent: Option<u64>,
    tokens: Vec<TokenId>,
    block_size: usize,
    lora_id: Option<u32>,
    medium: Option<&'static str>,
    lora_name: Option<&'static str>,
}

/// `["BlockRemoved", hashes, medium]`.
#[derive(Serialize)]
struct Removed {
    name: &'static str,
    hashes: Vec<u64>,
    medium: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Event {
    Stored(Stored),
    Removed(Removed),
    Cleared([&'static str; 1]),
}

/// `[seconds, events, rank]`, with consecutive events merged.
pub(crate) fn encode(events: &[CacheEvent], seconds: f64) -> Vec<u8> {
    rmp_serde::to_vec(&(seconds, merge(events), 0)).expect("numbers and lists are encodable")
}

fn merge(events: &[CacheEvent]) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    for event in events {
        match (event, all.last_mut()) {
            (CacheEvent::Found { hash, parent, tokens, .. }, Some(Event::Stored(stored)))
                if parent.is_some_and(|parent| stored.hashes.last() == Some(&parent.short()))
                    && stored.block_size == tokens.len() =>
            {
                stored.hashes.push(hash.short());
                stored.tokens.extend(tokens);
            }
            (CacheEvent::Lost { hash }, Some(Event::Removed(removed))) => removed.hashes.push(hash.short()),
            (CacheEvent::Found { hash, parent, tokens, .. }, _) => all.push(Event::Stored(Stored {
                name: "BlockStored",
                hashes: vec![hash.short()],
                parent: parent.map(|parent| parent.short()),
                tokens: tokens.clone(),
                block_size: tokens.len(),
                lora_id: None,
                medium: None,
                lora_name: None,
            })),
            (CacheEvent::Lost { hash }, _) => {
                all.push(Event::Removed(Removed { name: "BlockRemoved", hashes: vec![hash.short()], medium: None }));
            }
            // Where states are kept is of no concern to a router of blocks.
            (CacheEvent::Checkpoint { .. }, _) => {}
            (CacheEvent::Cleared, _) => all.push(Event::Cleared(["AllBlocksCleared"])),
        }
    }
    all
}
