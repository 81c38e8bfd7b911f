//! Adapters that are loaded, by name: which are available, and when a slot is free again.
//!
//! ```text
//! load     a slot is taken ── files are read and packed, here ── taken in between two steps ── named
//! request  name ──> Lease: held by the request to its end, whatever becomes of it
//! unload   refused while another lease exists; the name goes first, then the matrices, then the slot is free
//! ```
//! So a running request never loses its adapter, and an admitted one never finds another in its place. The slot says
//! where the matrices are. The lease's digest, over all weights of the adapter, goes into the request's salt and keeps
//! blocks of the prefix cache and earlier answers of different adapters apart.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use checkpoint::LoadError;
use model::{Adapter, AdapterPacker, AdapterRoom, Forward, ModelConfig};

/// Longest name in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Why an adapter was not loaded, or not unloaded.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// `--max-loras` is 0.
    #[error("this server has no room for adapters: --max-loras sets how many there may be")]
    NoRoom,
    /// Every slot is taken.
    #[error("{most} adapters are loaded, as many as --max-loras allows: unload one first")]
    Full {
        /// Slots.
        most: usize,
    },
    /// No name at all, or one that no log and no header should have.
    #[error("the name of an adapter has 1 to {MAX_NAME_BYTES} bytes, none of them a control character or a comma")]
    Name,
    /// The name is taken.
    #[error("the adapter '{name}' is loaded already")]
    Exists {
        /// As it was sent.
        name: String,
    },
    /// No adapter has that name.
    #[error("there is no adapter '{name}'")]
    Unknown {
        /// As it was sent.
        name: String,
    },
    /// Requests would lose it.
    #[error("the adapter '{name}' is in use by {requests} requests: unload it when they have ended")]
    InUse {
        /// As it was sent.
        name: String,
        /// Those that hold it.
        requests: usize,
    },
    /// Its files.
    #[error("adapter '{name}' ({}): {error}", .path.display())]
    Load {
        /// As it was sent.
        name: String,
        /// Where it was looked for.
        path: PathBuf,
        /// What is wrong with them.
        error: Box<LoadError>,
    },
    /// The engine's thread has ended.
    #[error("the engine has stopped")]
    Stopped,
    /// The serving component has no adapters.
    #[error("adapters cannot be loaded here")]
    Unsupported,
}

/// An adapter as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterInfo {
    /// What requests call it.
    pub name: String,
    /// Where it was read.
    pub path: PathBuf,
    /// Largest rank of its matrices.
    pub rank: usize,
    /// Requests that wait with it, and those that run.
    pub waiting: usize,
    /// See `waiting`.
    pub running: usize,
}

/// What a request holds of its adapter.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) slot: u32,
    pub(crate) digest: [u8; 32],
    users: Users,
    is_lost: AtomicBool,
}

impl Lease {
    /// Its adapter went with its device and is not in its slot any more: a request that still holds this cannot run.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

/// Submitted requests that wait, and those that run.
#[derive(Debug, Default)]
struct Users {
    waiting: AtomicUsize,
    running: AtomicUsize,
}

/// A submitted request is counted, first among those that wait, until this is gone.
#[derive(Debug)]
pub(crate) struct Use {
    lease: Arc<Lease>,
    runs: bool,
}

impl Use {
    pub(crate) fn of(lease: &Arc<Lease>) -> Use {
        lease.users.waiting.fetch_add(1, Ordering::Relaxed);
        Use { lease: lease.clone(), runs: false }
    }

    /// The request is in a step.
    pub(crate) fn begin(&mut self) {
        if !std::mem::replace(&mut self.runs, true) {
            self.lease.users.running.fetch_add(1, Ordering::Relaxed);
            self.lease.users.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let Users { waiting, running } = &self.lease.users;
        if self.runs { running } else { waiting }.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Entry {
    path: PathBuf,
    rank: usize,
    lease: Arc<Lease>,
}

#[derive(Debug, Default)]
struct Shelf {
    loaded: BTreeMap<String, Entry>,
    /// Names of adapters being loaded or unloaded.
    busy: BTreeSet<String>,
    free: Vec<u32>,
    /// For the device that computes, and how many there were before it.
    packer: Option<AdapterPacker>,
    lost_devices: u64,
}

/// The adapters of an engine.
#[derive(Debug, Default)]
pub struct Adapters {
    room: AdapterRoom,
    shelf: Mutex<Shelf>,
}

/// A slot for an adapter that was read, and not put there yet.
pub(crate) struct Reserved {
    pub(crate) slot: u32,
    name: String,
    lost_devices: u64,
}

impl Adapters {
    pub(crate) fn new(room: AdapterRoom, packer: Option<AdapterPacker>) -> Adapters {
        let free = (0..room.slots as u32).rev().collect();
        Adapters { room, shelf: Mutex::new(Shelf { free, packer, ..Shelf::default() }) }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there may be.
    pub fn most(&self) -> usize {
        self.room.slots
    }

    /// Whether requests may ask for it.
    pub fn has(&self, name: &str) -> bool {
        self.shelf().loaded.contains_key(name)
    }

    /// Those that requests may ask for, by name.
    pub fn list(&self) -> Vec<AdapterInfo> {
        let info = |(name, entry): (&String, &Entry)| AdapterInfo {
            name: name.clone(),
            path: entry.path.clone(),
            rank: entry.rank,
            waiting: entry.lease.users.waiting.load(Ordering::Relaxed),
            running: entry.lease.users.running.load(Ordering::Relaxed),
        };
        self.shelf().loaded.iter().map(info).collect()
    }

    /// For a request that asks for it.
    pub(crate) fn lease(&self, name: &str) -> Option<Arc<Lease>> {
        self.shelf().loaded.get(name).map(|entry| entry.lease.clone())
    }

    /// Takes a slot under a name.
    pub(crate) fn reserve(&self, name: &str) -> Result<Reserved, AdapterError> {
        if self.room.slots == 0 {
            return Err(AdapterError::NoRoom);
        }
        check_name(name)?;
        let mut shelf = self.shelf();
        if shelf.loaded.contains_key(name) || shelf.busy.contains(name) {
            return Err(AdapterError::Exists { name: name.to_owned() });
        }
        let slot = shelf.free.pop().ok_or(AdapterError::Full { most: self.room.slots })?;
        shelf.busy.insert(name.to_owned());
        Ok(Reserved { slot, name: name.to_owned(), lost_devices: shelf.lost_devices })
    }

    /// Reads the files for a slot that was taken.
    pub(crate) fn read(&self, name: &str, path: &Path, config: &ModelConfig) -> Result<Adapter, AdapterError> {
        Adapter::load(path, config, self.room.max_rank).map_err(|error| failed(name, path, error))
    }

    /// What brings one into the layout of the device that computes, to be kept until it is in its slot: the device is
    /// known by its address.
    pub(crate) fn packer(&self) -> Result<AdapterPacker, AdapterError> {
        self.shelf().packer.clone().ok_or(AdapterError::NoRoom)
    }

    /// The adapter is in its slot: requests may ask for it. Fails, and gives the slot back, where that device was lost
    /// since.
    pub(crate) fn fill(&self, reserved: Reserved, path: &Path, rank: usize, digest: [u8; 32]) -> Result<(), LoadError> {
        let Reserved { slot, name, lost_devices } = reserved;
        let lease = Arc::new(Lease { slot, digest, users: Users::default(), is_lost: AtomicBool::new(false) });
        let mut shelf = self.shelf();
        shelf.busy.remove(&name);
        if shelf.lost_devices != lost_devices {
            shelf.free.push(slot);
            return Err(LoadError::Option { option: "adapters", problem: "its device was lost: load it again".into() });
        }
        shelf.loaded.insert(name, Entry { path: path.to_owned(), rank, lease });
        Ok(())
    }

    /// Reads all that are loaded again, for a device that takes the place of a lost one. Those of other weights by now
    /// lose their names and their slots, and their requests end: the open ones now, others when they are admitted.
    pub(crate) fn move_to(&self, forward: &mut dyn Forward) {
        let mut shelf = self.shelf();
        (shelf.packer, shelf.lost_devices) = (forward.adapter_packer(), shelf.lost_devices + 1);
        let loaded = shelf.loaded.iter().map(|(name, entry)| (name.clone(), entry.path.clone(), entry.lease.clone()));
        let loaded: Vec<_> = loaded.collect();
        drop(shelf); // what takes time holds no request up
        for (name, path, lease) in loaded {
            let same = |adapter: &Adapter| digest(adapter) == lease.digest;
            let adapter = Adapter::load(&path, forward.config(), self.room.max_rank).ok().filter(same);
            if adapter.is_none_or(|adapter| forward.set_adapter(lease.slot as usize, Some(&adapter)).is_err()) {
                tracing::error!(name, path = %path.display(), "the adapter is lost with its device");
                lease.is_lost.store(true, Ordering::Relaxed);
                let mut shelf = self.shelf();
                shelf.loaded.remove(&name);
                shelf.free.push(lease.slot);
            }
        }
    }

    /// There is nothing in the slot.
    pub(crate) fn give_back(&self, reserved: Reserved) {
        let mut shelf = self.shelf();
        shelf.busy.remove(&reserved.name);
        shelf.free.push(reserved.slot);
    }

    /// Takes the name away from new requests; the slot is to be emptied and released.
    pub(crate) fn withdraw(&self, name: &str) -> Result<Reserved, AdapterError> {
        check_name(name)?;
        let mut shelf = self.shelf();
        let Some(entry) = shelf.loaded.get(name) else { return Err(AdapterError::Unknown { name: name.to_owned() }) };
        // Validation takes leases under this lock.
        let requests = Arc::strong_count(&entry.lease) - 1;
        if requests > 0 {
            return Err(AdapterError::InUse { name: name.to_owned(), requests });
        }
        let slot = entry.lease.slot;
        shelf.loaded.remove(name);
        shelf.busy.insert(name.to_owned());
        Ok(Reserved { slot, name: name.to_owned(), lost_devices: shelf.lost_devices })
    }
}

fn check_name(name: &str) -> Result<(), AdapterError> {
    let is_good =
        !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(|c: char| c.is_control() || c == ',');
    if is_good { Ok(()) } else { Err(AdapterError::Name) }
}

pub(crate) fn failed(name: &str, path: &Path, error: LoadError) -> AdapterError {
    AdapterError::Load { name: name.to_owned(), path: path.to_owned(), error: Box::new(error) }
}

/// What tells adapters apart, whatever they are called.
pub(crate) fn digest(adapter: &Adapter) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    adapter.each_byte(|bytes| _ = hasher.update(bytes));
    *hasher.finalize().as_bytes()
}
