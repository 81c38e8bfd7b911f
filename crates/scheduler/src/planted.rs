//! Bugs that real engines had, to be planted into this scheduler: the tests' own test.
//!
//! ```text
//! feature `planted` off    planted(_) is a constant false: nothing of this is in the code
//! feature `planted` on     one bug at a time misbehaves where the code asks `planted(Bug::..)`
//! ```
//!
//! The chaos test turns the feature on to prove that it would notice each of them; the program refuses to be built
//! with it. Where a bug comes from stands beside it: an incident of another engine, or the rule that it breaks.

macro_rules! bugs {
    ($($(#[$origin:meta])* $name:ident,)*) => {
        /// A bug that can be planted.
        #[cfg_attr(not(feature = "planted"), expect(unreachable_pub))]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $($(#[$origin])* $name,)* }

        #[cfg(feature = "planted")]
        impl Bug {
            /// Every one.
            pub const ALL: &[Bug] = &[$(Bug::$name,)*];
        }
    };
}

bugs! {
    /// Blocks of a cancelled request are free while the step in flight still writes them (vLLM #52360, pegaflow
    /// 0.24.2).
    FreeBeforeFence,
    /// Blocks of a request that is cancelled in flight are never freed (vLLM #9428, #24584).
    BlocksLeakedOnCancel,
    /// A request that is cancelled in the queue stays there and runs for nobody (vLLM #54947).
    CancelForgottenInQueue,
    /// A place in the queue is not given back, until every request is refused (vLLM #53130).
    QueuePlaceKept,
    /// One that waits for room holds a block meanwhile, and so does everybody else (Dynamo #11016).
    HoldAndWait,
    /// A request that can never fit is admitted and waits for ever (Dynamo #11016).
    NeverFitsUnchecked,
    /// Any number of answers is admitted (CVE-2026-34756).
    AnswersUnbounded,
    /// The queue takes any number of tokens (vLLM before #49445).
    QueueUnbounded,
    /// `min_tokens` is not heeded (kin of CVE-2026-114051: limits checked on other values than those used).
    MinTokensIgnored,
    /// One token more than asked for: usage and text disagree.
    OneTokenTooMany,
    /// A prefix hit is believed by its hash alone (CVE-2025-25183).
    HashBelieved,
    /// Blocks are shared between tenants (CVE-2025-46570).
    SaltIgnored,
    /// Two contents have one name, so the children of one are believed to follow the other (PYSEC-2025-43).
    NameUsedTwice,
    /// An evicted block is still found under its old prefix (vLLM #37076).
    EvictedStillFound,
    /// A block is offered to others before it is computed (vLLM #52470).
    RegisteredBeforeComplete,
    /// A block is offered to others when all but its last token is computed.
    PartialBlockRegistered,
    /// After a failed step its blocks are offered to others as if it had happened (LMCache #1981).
    FailedStepCached,
    /// A sequence computes on blocks that are still being loaded (vLLM #52360 read the other way).
    ComputedWhileLoading,
    /// A slot is handed out while it is being read (vLLM #52470).
    SlotNotPinned,
    /// The bytes of an evicted block are not copied to the slot that they are said to be in (a lost write).
    SaveForgotten,
    /// A load that failed, or whose checksum is wrong, is believed (LMCache #2420, #3207).
    BadLoadBelieved,
    /// Blocks of a request that is cancelled while it loads are never freed (vLLM #46283).
    BlocksLeakedOnLoad,
    /// An answer writes into a block that its siblings still read.
    SharedBlockWritten,
    /// Forked answers share blocks without counting.
    ForkUncounted,
    /// Blocks of a prefix hit are counted as free as well (vLLM #32255: one block, two owners).
    HitsCountedFree,
    /// What was generated before a preemption is forgotten and generated again (Dynamo: replay without the emitted
    /// tokens).
    TokensLostWhenPreempted,
    /// The first in line loses its blocks to those behind it.
    OldestPreempted,
    /// A request of a higher class loses its blocks while a lower one of its tenant keeps them.
    HigherClassPreempted,
    /// Nothing bounds how often one request loses its blocks (vLLM #546).
    PreemptedWithoutEnd,
    /// Blocks set aside for protected sequences are given away: in the end nobody can finish (Dynamo #11016).
    ReserveGivenAway,
    /// The oldest prompt waits for ever behind those whose turn it is.
    PromptStarved,
    /// Who comes back from idle has saved rights and is served alone until they are used up (the lift of Sheng et al.,
    /// OSDI 2024, left out).
    RightsSavedUp,
    /// A tenant pays for prompts and not for answers, so long answers are free.
    AnswersNotCharged,
    /// All classes are charged alike, so batch work costs others as much as what somebody waits for.
    ClassNotWeighed,
    /// Neighbours in the queue change places.
    OutOfOrder,
    /// A chunk takes more rows than the step has left.
    ChunkExceedsStep,
    /// Any number of prompts advances in a step.
    PromptsUnbounded,
    /// In a large step the last decode rows are left out.
    DecodeRowForgotten,
    /// Streams without a target are left out for ever while others have one.
    LeftOutForEver,
    /// Prompts take as long as they like whatever the streams' target is (the long prompt that freezes a stranger's
    /// stream).
    TargetIgnored,
    /// The end of an answer is told twice.
    EndToldTwice,
    /// A token goes to the request's first answer whichever it belongs to (kin of CVE-2026-105755).
    TokenToWrongAnswer,
    /// The tokens that wait are miscounted after a preemption.
    GaugeDrifts,
}

#[cfg(feature = "planted")]
mod planting {
    use core::sync::atomic::{AtomicU8, Ordering};

    use super::Bug;

    const NONE: u8 = u8::MAX;
    static PLANTED: AtomicU8 = AtomicU8::new(NONE);

    /// From now on this bug is there, in every scheduler of the process.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.store(bug.map_or(NONE, |bug| bug as u8), Ordering::SeqCst);
    }

    pub(crate) fn planted(bug: Bug) -> bool {
        PLANTED.load(Ordering::Relaxed) == bug as u8
    }
}

#[cfg(feature = "planted")]
pub use planting::plant;
#[cfg(feature = "planted")]
pub(crate) use planting::planted;

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
