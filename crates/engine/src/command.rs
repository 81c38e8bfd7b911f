//! What other threads ask of the engine's thread.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use checkpoint::LoadError;
use kernels::HostBuffer;
use model::PackedAdapter;
use observe::Views;
use protocol::{Nanos, RequestId, TokenId};
use tokio::sync::oneshot;

use crate::handoff::{Budgeted, HandoffEvent};
use crate::output::EventSender;
use crate::queue_permit::QueuePermit;
use crate::validate::ValidatedRequest;

/// What was in a slot.
pub(crate) type PutAdapterResult = Result<Option<PackedAdapter>, LoadError>;

/// What other threads ask of the engine's.
pub(crate) enum Command {
    /// Take these requests in, all before the next step.
    Submit(Vec<NewRequest>),
    /// Its receiver is gone.
    Cancel(RequestId),
    /// Make no step, one step, or run; the answer says whether the engine is held from now on.
    Pause(PauseCommand, Option<oneshot::Sender<bool>>),
    /// Put an adapter into a slot, or empty it; the reply is what was there.
    Adapter { slot: u32, adapter: Option<PackedAdapter>, told: oneshot::Sender<PutAdapterResult> },
    /// A prompt that another worker reads, or that is read for one.
    Handoff(HandoffEvent),
    /// If there is nothing else to do, facts go to these views ([`crate::rerun`]); the answer says whether they do.
    BeginRerun(Arc<Mutex<Views>>, oneshot::Sender<bool>),
    /// Take it in, if the rerun goes on.
    Rerun(NewRequest),
    /// It is over.
    EndRerun,
    /// A watcher was added.
    Show,
    /// End every request with an error and leave.
    Stop,
}

/// A request that has a name and a place.
pub(crate) struct NewRequest {
    pub(crate) id: RequestId,
    pub(crate) request: Box<ValidatedRequest>,
    pub(crate) arrived: ArrivalInfo,
    pub(crate) events: EventSender,
    /// The worker that the blocks of its prompt are for.
    pub(crate) peer: Option<BlockSender>,
}

/// How a request came.
#[derive(Debug)]
pub(crate) struct ArrivalInfo {
    pub(crate) at: Nanos,
    /// For how long the engine had been held by then.
    pub(crate) held: Nanos,
    /// Its place in the queue; `None` where the queue is not counted.
    pub(crate) permit: Option<QueuePermit>,
}

/// What the engine's thread gives away of a prompt.
#[derive(Debug)]
pub(crate) enum BlockMessage {
    Block {
        index: usize,
        bytes: Budgeted<Arc<dyn HostBuffer>>,
    },
    /// The states behind this many blocks.
    State {
        blocks: usize,
        bytes: Budgeted<Arc<dyn HostBuffer>>,
    },
    /// All blocks up to here were sent, and the token behind the prompt is this, if it came to that.
    End {
        blocks: usize,
        first: Option<TokenId>,
    },
}

/// Where it gives it to, and what of it.
#[derive(Debug)]
pub(crate) struct BlockSender {
    pub(crate) messages: Sender<BlockMessage>,
    /// Blocks before this one are there already.
    pub(crate) first_block: usize,
}

/// How a watcher holds the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseCommand {
    Pause,
    SingleStep,
    Resume,
}
