//! Prompts that one worker reads and another answers: blocks of the KV cache travel, and nothing depends on it.
//!
//! ```text
//! client --> decode worker D                                         prefill worker P
//!              | expects it (no blocks, no queue)   --- ASK --->       its predicted first token, or a refusal
//!              |                                    <-- OFFER --
//!              |                                    --- PULL -->       admitted like any request, one token long
//!   host tier  | block by block, each checked       <-- BLOCK --       after each step, the blocks that became full
//!  checkpoint  |                                    <-- STATE --       of a model with states, those behind the last
//!              | continues: loads, computes tail    <-- END ----       the token that P drew, and its bill
//!              | draws the first token itself, and compares
//! ```
//!
//! D pulls, and no worker writes into another's memory. A connection is a handoff, and as long as it is open P keeps
//! what it has computed; when it ends, however it ends, that becomes what any finished request leaves: a prefix in the
//! cache. So there is nothing to cancel, to renew or to count, and no name that could be mixed up.
//!
//! A transfer is a cache. Whatever is missing, late, refused or changed on its way is computed by D, which has the
//! client: the answer has the same bits, because it is the same computation. Only full blocks travel, and never the one
//! with the last token of the prompt: its row is D's own, and so is every token that a client gets. P draws the first
//! one too, and D compares: two workers that differ there do not have the same model, or one of them computes wrong.
//!
//! There is one exception, which both have to name: a [`PrecisionPair`]. There D never computes what travels, so
//! it asks again, and where no worker brings it the request ends; and the first token of P is of another precision.
//!
//! Two are asked, and each counts what its own cache has of the prompt (`found.rs`), so prompts that begin alike go to
//! one worker until that one is busier than the prefix is worth. The worker is known beforehand, or a router decides
//! and says so ([`RemoteRole`], `signed_address.rs`). `wire.rs` has the frames and their authentication,
//! `prefill_server.rs` P's threads, `prefill_client.rs` D's; what happens on the engine's thread is in
//! `core/handoff.rs`. Nothing here decides what is computed when: that is the scheduler's
//! ([`scheduler::Scheduler::admit_remote`], [`scheduler::Scheduler::pin`], [`scheduler::Scheduler::begin_receive`]).

mod budget;
mod compatibility;
mod found;
mod precisions;
mod prefill_client;
mod prefill_server;
mod signed_address;
mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ledger::Shares;
use observe::{HandoffOutcome, Handoffs, RemotePrefillResult};
use protocol::{Nanos, RequestId, TokenId};
pub use scheduler::router::Role;

pub(crate) use budget::{Budget, Budgeted};
pub(crate) use compatibility::CompatibilityInfo;
pub(crate) use found::FoundBlocks;
pub use precisions::PrecisionPair;
pub(crate) use prefill_client::{PrefillClient, PrefillRequest, RemotePrefill};
pub(crate) use prefill_server::{Listening, listen};
pub use signed_address::SignedAddress;
#[doc(hidden)]
pub use wire::check_frame;

/// Bytes of blocks that are on their way between the engine's thread and the sockets, at most; the same on either side.
pub(crate) const MOST_BYTES_UNDER_WAY: usize = 64 << 20;

/// Bytes of what travels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TravelSizes {
    /// Of a block.
    pub(crate) block_bytes: usize,
    /// Of the states of a sequence; 0: the model has none.
    pub(crate) state_bytes: usize,
}

/// How a worker takes part. Both may be wanted of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoffOptions {
    /// Whose requests it takes, to begin with.
    pub role: Role,
    /// Whether that may change while it runs.
    pub role_may_change: bool,
    /// Where it reads prompts for others; port 0 takes a free one.
    pub listen: Option<SocketAddr>,
    /// Its prefill workers: `HOST:PORT` each. Of a decode worker may be none: then requests say which worker has read
    /// theirs.
    pub prefill_workers: Vec<String>,
    /// The secret that all workers of a cluster share.
    pub key: ClusterKey,
    /// Where those that read prompts and those that answer have weights of two precisions.
    pub precisions: Option<PrecisionPair>,
}

impl HandoffOptions {
    /// Whether the full blocks of prompts are computed elsewhere and never here.
    pub(crate) fn is_remote_only(&self) -> bool {
        self.role == Role::Decode && self.precisions.is_some()
    }

    /// Whether it has prompts read elsewhere.
    pub(crate) fn can_ask(&self) -> bool {
        self.role == Role::Decode || self.role_may_change || !self.prefill_workers.is_empty()
    }
}

/// Why a worker keeps its role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// It was started so.
    #[error("a role changes only where the server was started with --allow-role-change")]
    Fixed,
    /// No decode worker could fetch what it reads.
    #[error("prefill reads prompts for others, who have to find this worker: it was started without --handoff-listen")]
    CannotBeFound,
}

/// What another worker has to do with a request, where the sender knows (`kv_transfer_params`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RemoteRole {
    /// The engine decides.
    #[default]
    Any,
    /// It is another worker's: its prompt is read here, and the answer has one token.
    Decode,
    /// Its prompt was read there: `HOST:PORT` ([`Engine::prefill_worker`](crate::Engine::prefill_worker)).
    Prefill(String),
    /// None: its prompt is read here.
    Local,
}

/// A secret that workers share. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; 32]);

impl ClusterKey {
    /// Derived from a secret text.
    pub fn of(secret: &[u8]) -> ClusterKey {
        ClusterKey(blake3::derive_key("twostroke 2026-11 cluster key", secret))
    }

    /// A key for another purpose: derivable from this one, and not the other way round.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        *blake3::keyed_hash(&self.0, purpose.as_bytes()).as_bytes()
    }
}

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// Whose requests are taken now, and whether others may be.
#[derive(Debug)]
struct Roles {
    now: Mutex<Role>,
    may_change: bool,
    listens: bool,
}

/// The same, while it is counted by several threads.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// `None`: it takes no part.
    roles: Option<Roles>,
    pub(crate) taken: [AtomicU64; 6],
    pub(crate) bytes_taken: AtomicU64,
    pub(crate) blocks_taken: AtomicU64,
    pub(crate) given: [AtomicU64; 2],
    pub(crate) bytes_given: AtomicU64,
    pub(crate) kept_blocks: AtomicU64,
    pub(crate) mismatches: AtomicU64,
    /// Workers that are not asked any more, and why not.
    problems: Mutex<BTreeMap<String, String>>,
}

impl Counts {
    /// Of a worker that takes part, or does not.
    pub(crate) fn of(options: Option<&HandoffOptions>) -> Counts {
        let roles = |options: &HandoffOptions| Roles {
            now: Mutex::new(options.role),
            may_change: options.role_may_change,
            listens: options.listen.is_some(),
        };
        Counts { roles: options.map(roles), ..Counts::default() }
    }

    /// Whose requests are taken now; `None`: it takes no part.
    pub(crate) fn role(&self) -> Option<Role> {
        self.roles.as_ref().map(|roles| *roles.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the role; returns the one before.
    pub(crate) fn set_role(&self, role: Role) -> Result<Role, RoleError> {
        let roles = self.roles.as_ref().filter(|roles| roles.may_change).ok_or(RoleError::Fixed)?;
        if role == Role::Prefill && !roles.listens {
            return Err(RoleError::CannotBeFound);
        }
        Ok(std::mem::replace(&mut roles.now.lock().unwrap_or_else(PoisonError::into_inner), role))
    }

    /// Whether its clients' requests are taken.
    pub(crate) fn answers(&self) -> bool {
        self.role().is_none_or(Role::answers)
    }

    /// Whether it prefills for peers.
    pub(crate) fn reads_for_others(&self) -> bool {
        self.role().is_none_or(Role::reads)
    }

    /// A worker is not asked any more.
    pub(crate) fn gives_up(&self, worker: &str, why: &str) {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        problems.insert(worker.to_owned(), why.to_owned());
    }

    /// All of them: `HOST:PORT: why`.
    pub(crate) fn problems(&self) -> Vec<String> {
        let problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        problems.iter().map(|(worker, why)| format!("{worker}: {why}")).collect()
    }

    pub(crate) fn took(&self, outcome: HandoffOutcome) {
        let at = HandoffOutcome::ALL.iter().position(|other| *other == outcome).expect("all are there");
        self.taken[at].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Handoffs {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Handoffs {
            role: self.role().unwrap_or_default(),
            takes_part: self.roles.is_some(),
            taken: std::array::from_fn(|at| of(&self.taken[at])),
            bytes_taken: of(&self.bytes_taken),
            blocks_taken: of(&self.blocks_taken),
            given: std::array::from_fn(|at| of(&self.given[at])),
            bytes_given: of(&self.bytes_given),
            kept_blocks: of(&self.kept_blocks),
            mismatches: of(&self.mismatches),
        }
    }
}

/// What the engine's thread learns of a prompt that is read elsewhere.
#[derive(Debug)]
pub(crate) enum ReceiveEvent {
    /// This worker reads it.
    Begun { worker: String },
    /// A block has come, and it is what was sent.
    Block { index: usize, bytes: Budgeted },
    /// The states behind this many blocks have come.
    State { blocks: usize, bytes: Budgeted },
    /// No more comes.
    Done(Box<HandoffResult>),
}

#[derive(Clone, Debug)]
pub(crate) struct HandoffResult {
    pub(crate) read: RemotePrefillResult,
    /// The first token, as it was drawn there.
    pub(crate) first: Option<TokenId>,
}

impl HandoffResult {
    pub(crate) fn without(outcome: HandoffOutcome) -> HandoffResult {
        let read = RemotePrefillResult { outcome, bill: Shares::default(), steps: Vec::new(), pulled: Nanos(0) };
        HandoffResult { read, first: None }
    }
}

/// Messages to the engine's thread from those that move blocks.
#[derive(Debug)]
pub(crate) enum HandoffEvent {
    /// Of a prompt that is read elsewhere for this request.
    Received(RequestId, ReceiveEvent),
    /// Of what waits to be sent, some has gone: there is room for more.
    Room,
    /// The peer that fetched this request's blocks is gone, or has all of them.
    PeerGone(RequestId),
}
