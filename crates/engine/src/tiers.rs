//! The bytes of the tiers: slots in host memory, a file behind them, and two threads that read and write it.
//!
//! ```text
//! engine's thread    block --save--> host slot --spill--> [jobs] --> writer --> file
//!                      ^ <----load----- |                                         |
//!                      +<-- [done] <-- checksum compared <-- reader <-- [jobs] <--+
//! ```
//!
//! The scheduler says what moves ([`scheduler::Step`]); this moves it and says when that has ended. A save and a load
//! from host memory are operations of the step: nothing waits for them but the writer, before it reads. The disk never
//! holds a step up: its reads and writes end when they end, and until then the scheduler keeps both ends pinned. The
//! writer shares a slot's buffer by `Arc`, so a buffer that is still being written cannot be overwritten even by
//! mistake: there the save takes a new one.
//!
//! A record is a block's bytes. Its checksum (blake3) stays in memory, so what comes back from the disk is what this
//! process wrote to that slot last, or an error. Errors are not an exception: a read that fails is a prefix miss, a
//! write that fails leaves the content where it was, and after some in a row the scheduler stops using the disk.
//!
//! The file holds prompts and answers. It is created for its owner alone and unlinked at once: no name leads to it, and
//! when the process ends, however it ends, it is gone.

use std::fmt::Debug;
use std::fs::{File, remove_file};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use kernels::{DeviceError, HostBuffer};
use model::Forward;
use protocol::Nanos;
use scheduler::{BlockLoad, Scheduler, SlotSpill, Step, Tier, TierSizes, TierSlot, Transfer};

use crate::clock::Clock;

/// Bytes that are read and not yet taken by the engine's thread, at most.
const READ_AHEAD_BYTES: usize = 64 << 20;

/// Where KV blocks go on disk, and how many bytes of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapDisk {
    /// An existing directory.
    pub directory: PathBuf,
    /// Size of the file that is kept there, without a name.
    pub bytes: u64,
}

/// A file as far as the tiers need one. Tests put faults in.
#[doc(hidden)]
pub trait Store: Debug + Send + Sync {
    /// Writes all of `bytes`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Fills all of `bytes`.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Store for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }
}

/// Opens a file in `directory` that no other process can open, now or later.
pub(crate) fn open_unnamed(directory: &Path) -> io::Result<File> {
    for number in 0.. {
        let path = directory.join(format!(".twostroke-kv-{}-{number}", std::process::id()));
        match files::create_private(&path) {
            // Of another process, or left by a crash between these two lines: empty, and never read.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) => return remove_file(&path).map(|()| file),
        }
    }
    unreachable!("one of the names is free")
}

enum Job {
    Write { life: u64, spill: SlotSpill, from: Arc<dyn HostBuffer> },
    Read { life: u64, load: BlockLoad, sum: blake3::Hash },
}

struct Written {
    life: u64,
    spill: SlotSpill,
    result: io::Result<blake3::Hash>,
    took: Nanos,
}

struct Read {
    life: u64,
    load: BlockLoad,
    result: io::Result<Vec<u8>>,
    took: Nanos,
}

struct Disk {
    writes: Sender<Job>,
    reads: Sender<Job>,
    written: Receiver<Written>,
    read: Receiver<Read>,
    /// Taken from the channel while nothing else was to do.
    first_read: Option<Read>,
    /// Of each slot's bytes; `None` before its first write.
    sums: Vec<Option<blake3::Hash>>,
}

/// Both tiers' bytes. Belongs to the engine's thread.
pub(crate) struct Tiers {
    sizes: TierSizes,
    block_bytes: usize,
    clock: Clock,
    /// Each is allocated when it is first used.
    host: Vec<Option<Arc<dyn HostBuffer>>>,
    disk: Option<Disk>,
    /// Counts schedulers: what was asked for by an earlier one is of no interest when it comes.
    life: u64,
    // Each is logged once.
    has_complained: bool,
    has_given_up: bool,
}

impl Tiers {
    /// Tiers of these sizes; `store` is there if there are slots on disk. Starts two threads for it.
    pub(crate) fn new(
        sizes: TierSizes,
        block_bytes: usize,
        store: Option<Arc<dyn Store>>,
        clock: Clock,
    ) -> io::Result<Tiers> {
        let disk = store.map(|store| Disk::start(store, sizes.disk_slots, block_bytes, clock.clone())).transpose()?;
        let host = vec![None; sizes.host_slots];
        Ok(Tiers { sizes, block_bytes, clock, host, disk, life: 0, has_complained: false, has_given_up: false })
    }

    /// How many slots there are.
    pub(crate) fn sizes(&self) -> TierSizes {
        self.sizes
    }

    /// A new scheduler takes over, and knows of nothing; the device may be another.
    pub(crate) fn start_over(&mut self) {
        self.life += 1;
        self.host.fill(None);
    }

    /// Does what a step asks for before it computes: saves and loads from host memory at once, the disk's in the
    /// background.
    pub(crate) fn transfer(
        &mut self,
        step: &Step,
        forward: &mut dyn Forward,
        scheduler: &mut Scheduler,
    ) -> Result<(), DeviceError> {
        let begun = self.clock.now();
        for save in &step.saves {
            let slot = &mut self.host[save.slot.index as usize];
            slot.take_if(|buffer| Arc::get_mut(buffer).is_none());
            let buffer = slot.get_or_insert_with(|| forward.host_buffer(vec![0; self.block_bytes]));
            forward.save_block(save.block.0, Arc::get_mut(buffer).expect("it is new, or was found unshared"));
        }
        if !step.spills.is_empty() {
            forward.submit()?;
        }
        let saved = self.clock.now();
        scheduler.add_transfer_time(Transfer::Save, step.saves.len(), saved.since(begun));
        for &spill in &step.spills {
            let from = self.host[spill.host.index as usize].clone().expect("a block was saved to it, or landed");
            let job = Job::Write { life: self.life, spill, from };
            if self.disk.as_ref().is_none_or(|disk| disk.writes.send(job).is_err()) {
                scheduler.spill_ended(spill, false, Nanos(0));
            }
        }
        let begun = self.clock.now();
        let (from_host, from_disk): (Vec<BlockLoad>, _) =
            step.loads.iter().partition(|load| load.slot.tier == Tier::Host);
        for &load in &from_host {
            let from = self.host[load.slot.index as usize].as_deref().expect("a block was saved to it, or landed");
            forward.load_block(from, load.block.0);
            scheduler.load_ended(load, true, Nanos(0));
        }
        scheduler.add_transfer_time(Transfer::Load(Tier::Host), from_host.len(), self.clock.now().since(begun));
        for load in from_disk {
            let sum = self.disk.as_ref().and_then(|disk| disk.sums[load.slot.index as usize]);
            let job = sum.map(|sum| Job::Read { life: self.life, load, sum });
            let sent = self.disk.as_ref().zip(job).is_some_and(|(disk, job)| disk.reads.send(job).is_ok());
            if !sent {
                scheduler.load_ended(load, false, Nanos(0));
            }
        }
        Ok(())
    }

    /// Tells the scheduler what has ended since the last call, and brings what was read to its block.
    pub(crate) fn settle(&mut self, forward: &mut dyn Forward, scheduler: &mut Scheduler) {
        let Some(disk) = &mut self.disk else { return };
        let mut problem = None;
        while let Ok(Written { life, spill, result, took }) = disk.written.try_recv() {
            if life == self.life {
                scheduler.spill_ended(spill, result.is_ok(), took);
                match result {
                    Ok(sum) => disk.sums[spill.disk.index as usize] = Some(sum),
                    Err(error) => problem = Some(("write", error)),
                }
            }
        }
        while let Some(Read { life, load, result, took }) = disk.first_read.take().or_else(|| disk.read.try_recv().ok())
        {
            if life == self.life {
                let result = result.map(|bytes| forward.load_block(&*forward.host_buffer(bytes), load.block.0));
                scheduler.load_ended(load, result.is_ok(), took);
                problem = problem.or(result.err().map(|error| ("read", error)));
            }
        }
        let given_up = scheduler.swap_stats().disk_given_up;
        if let Some((what, error)) = problem
            && !self.has_complained
        {
            self.has_complained = true;
            tracing::warn!(%error, what, "the KV swap file had a fault; what it held is computed again");
        }
        if given_up && !self.has_given_up {
            self.has_given_up = true;
            tracing::warn!("the KV swap file is not used any more, after faults in a row");
        }
    }

    /// A block's bytes came from elsewhere.
    pub(crate) fn land(&mut self, slot: TierSlot, bytes: Vec<u8>, forward: &dyn Forward) {
        assert_eq!((slot.tier, bytes.len()), (Tier::Host, self.block_bytes), "a whole block lands in host memory");
        self.host[slot.index as usize] = Some(forward.host_buffer(bytes));
    }

    /// Waits until a read has ended, or for `most`.
    pub(crate) fn wait(&mut self, most: Duration) {
        if let Some(disk) = &mut self.disk
            && disk.first_read.is_none()
        {
            disk.first_read = disk.read.recv_timeout(most).ok();
        }
    }
}

impl Disk {
    fn start(store: Arc<dyn Store>, slots: usize, block_bytes: usize, clock: Clock) -> io::Result<Disk> {
        let (writes, write_jobs) = channel();
        let (reads, read_jobs) = channel();
        let (written_sender, written) = channel();
        let (read_sender, read) = sync_channel((READ_AHEAD_BYTES / block_bytes).clamp(2, 256));
        let writer_store = store.clone();
        let writer_clock = clock.clone();
        let writer = move || write_all(&*writer_store, block_bytes, &write_jobs, &written_sender, writer_clock);
        std::thread::Builder::new().name("kv-swap-write".into()).spawn(writer)?;
        let reader = move || read_all(&*store, block_bytes, &read_jobs, &read_sender, clock);
        std::thread::Builder::new().name("kv-swap-read".into()).spawn(reader)?;
        Ok(Disk { writes, reads, written, read, first_read: None, sums: vec![None; slots] })
    }
}

/// Until the engine is gone.
fn write_all(store: &dyn Store, block_bytes: usize, jobs: &Receiver<Job>, done: &Sender<Written>, clock: Clock) {
    for job in jobs {
        let Job::Write { life, spill, from } = job else { continue };
        let bytes = from.bytes().map_err(io::Error::other);
        let begun = clock.now();
        let result = bytes.and_then(|bytes| {
            store.write_at(bytes, spill.disk.index as u64 * block_bytes as u64).map(|()| blake3::hash(bytes))
        });
        // Before the engine can learn of it.
        drop(from);
        if done.send(Written { life, spill, result, took: clock.now().since(begun) }).is_err() {
            return;
        }
    }
}

/// Until the engine is gone.
fn read_all(store: &dyn Store, block_bytes: usize, jobs: &Receiver<Job>, done: &SyncSender<Read>, clock: Clock) {
    for job in jobs {
        let Job::Read { life, load, sum } = job else { continue };
        let begun = clock.now();
        let mut bytes = vec![0; block_bytes];
        let result = store.read_at(&mut bytes, load.slot.index as u64 * block_bytes as u64).and_then(|()| {
            match blake3::hash(&bytes) == sum {
                true => Ok(bytes),
                false => Err(io::Error::new(io::ErrorKind::InvalidData, "other bytes came back than were written")),
            }
        });
        if done.send(Read { life, load, result, took: clock.now().since(begun) }).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_file_has_no_name_and_belongs_to_its_owner_alone() {
        let directory = testing::Scratch::new("tiers");
        let file = open_unnamed(&directory).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.mode() & 0o777, metadata.nlink()), (0o600, 0));
        Store::write_at(&file, b"block", 70).unwrap();
        let mut bytes = [0; 5];
        Store::read_at(&file, &mut bytes, 70).unwrap();
        assert_eq!(&bytes, b"block");
        assert!(Store::read_at(&file, &mut bytes, 73).is_err(), "a short read is an error");
        std::fs::remove_dir(&directory).unwrap();
        assert!(open_unnamed(&directory).is_err());
    }
}
