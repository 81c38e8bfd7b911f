//! What every room knows of a request: who it is, when it ends, what it may take.

use alloc::vec::Vec;

use crate::Nanos;

/// An index into the model's vocabulary.
pub type TokenId = u32;

/// Identifies a request. Chosen by the engine, never by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A request's class. Lower runs first among a tenant's requests, equal ones in arrival order. Between tenants it is a
/// weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub i32);

/// Stop conditions on token ids. Stop *strings* are found by the engine's detokenizer, which then
/// stops the answer in the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRules {
    /// Maximum tokens to generate, at least 1 (0 for a request that only scores its prompt).
    pub max_tokens: usize,
    /// Stop tokens are ignored (and not sampled) before this many tokens.
    pub min_tokens: usize,
    /// Token ids that end the sequence: the model's end-of-sequence ids unless ignored, and the request's.
    pub stop_token_ids: Vec<TokenId>,
}

/// Latency targets of a request; `None`: best effort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Arrival to first token.
    pub ttft: Option<Nanos>,
    /// Mean time per output token.
    pub tpot: Option<Nanos>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token (with its id) or, for a stop string, `None`.
    Stop(Option<TokenId>),
    /// `max_tokens` or the end of the context.
    Length,
}

/// How urgent a request is, in the words of OpenAI's `service_tier`: its place among its tenant's own, and a weight
/// beside those of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceClass {
    /// Priority -1: before its tenant's others, with four times their weight beside those of other tenants.
    Priority,
    /// Priority 0, and the server's targets.
    #[default]
    Default,
    /// Batch work: priority 1, and no targets but its own; after its tenant's others, with a quarter of their weight.
    Flex,
}

impl ServiceClass {
    /// All of them, by urgency.
    pub const ALL: [ServiceClass; 3] = [ServiceClass::Priority, ServiceClass::Default, ServiceClass::Flex];

    /// As the API names it.
    pub fn name(self) -> &'static str {
        match self {
            ServiceClass::Priority => "priority",
            ServiceClass::Default => "default",
            ServiceClass::Flex => "flex",
        }
    }
}
