//! The packed image: weights as they lie in memory, kept on disk, so that the next start copies instead of converting.
//!
//! ```text
//! first start    pack every matrix ──> serve        a thread of its own: image ──> NAME.tmp, fsync, rename ──> NAME
//! next start     NAME, its key is right ──> copy every matrix ──> serve
//! file           [matrix, 4 KiB aligned] ...  index (JSON)  [length u64][SHA-256 of the index][magic]
//! ```
//! The key is a digest of everything that the bytes follow from: the layout's version, what was asked for, config.json, and
//! name, size and time of change of every weight file. One image per checkpoint and class: a newer one takes the older one's place.
//! An image is only ever a saving of time. Whatever is wrong with it, the weights are packed from their files as if there
//! were none, and if it cannot be written, nothing else happens.

use super::Weights;
use crate::checkpoint::{Checkpoint, ModelFile};
use kernels::quant::LAYOUT_VERSION;
use kernels::{Backend, ByteSource, Image, MatrixShape, PackedMatrix, WeightClass};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

const CONFIG: &str = "config.json";
/// Ends every image; changes with the file's form.
const MAGIC: [u8; 8] = *b"2strokeA";
/// Matrices begin at a multiple of it, so that reads are of whole pages.
const ALIGN: u64 = 4096;
/// Length of the index, its digest, the magic.
const TRAILER: u64 = 8 + 32 + 8;
/// Ends the name of an image in the making, behind the writer's process id.
const TEMPORARY: &str = "tmp";
/// An index has about 150 bytes for each matrix.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// What becomes of a load's matrices.
#[derive(Debug, Default)]
pub(super) enum Packed {
    /// Nothing.
    #[default]
    Forgotten,
    /// They come from an image.
    Found(Found),
    /// They are remembered for one that is to be written.
    Kept(Kept),
}

/// An image that fits.
#[derive(Debug)]
pub(super) struct Found {
    file: File,
    matrices: HashMap<String, Record>,
}

/// An image in the making.
#[derive(Debug)]
pub(super) struct Kept {
    path: PathBuf,
    key: String,
    matrices: Vec<(Record, Image)>,
}

#[derive(Serialize, Deserialize)]
struct Index {
    key: String,
    matrices: Vec<Record>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    name: String,
    class: String,
    out_features: usize,
    in_features: usize,
    offset: u64,
    bytes: u64,
}

impl Record {
    fn is(&self, shape: MatrixShape, class: WeightClass) -> bool {
        let bytes = PackedMatrix::image_bytes(shape, class).map(|bytes| bytes as u64);
        (self.out_features, self.in_features) == (shape.out_features, shape.in_features)
            && self.class == class.name()
            && Some(self.bytes) == bytes
    }
}

impl Packed {
    /// Looks for the image of these weights in `directory`. `purpose`: what else the bytes follow from, and tells
    /// images of one checkpoint apart: class or recipe.
    pub(super) fn look(directory: &Path, checkpoint: &Checkpoint, files: &[ModelFile], purpose: &str) -> Packed {
        if checkpoint.path().is_none() {
            return Packed::Forgotten;
        }
        let Some(key) = key(checkpoint, files, purpose) else { return Packed::Forgotten };
        let path = directory.join(format!("{}.packed", place(checkpoint, purpose)));
        match Found::open(&path, &key) {
            Some(found) => Packed::Found(found),
            None => Packed::Kept(Kept { path, key, matrices: Vec::new() }),
        }
    }

    /// The matrix from the image, if there is one and it can be read.
    pub(super) fn restore<B: Backend>(
        &self,
        backend: &B,
        name: &str,
        shape: MatrixShape,
        class: WeightClass,
    ) -> Option<B::Matrix> {
        let Packed::Found(found) = self else { return None };
        let record = found.matrices.get(name).filter(|record| record.is(shape, class))?;
        let failed = AtomicBool::new(false);
        let read = |at: u64, out: &mut [u8]| {
            if found.file.read_exact_at(out, record.offset + at).is_err() {
                failed.store(true, Ordering::Relaxed);
            }
        };
        let matrix = backend.restore(shape, class, &ByteSource(&read))?;
        (!failed.load(Ordering::Relaxed)).then_some(matrix)
    }

    /// Remembers a matrix that was packed from its files.
    pub(super) fn keep(&mut self, name: String, shape: MatrixShape, class: WeightClass, image: Image) {
        let Packed::Kept(kept) = self else { return };
        let bytes = image.pieces().iter().map(|piece| piece.len() as u64).sum();
        let MatrixShape { out_features, in_features } = shape;
        let class = class.name().to_string();
        kept.matrices.push((Record { name, class, out_features, in_features, offset: 0, bytes }, image));
    }
}

impl Found {
    /// `None` for anything but a whole image with that key.
    fn open(path: &Path, key: &str) -> Option<Found> {
        let file = File::open(path).ok()?;
        let len = file.metadata().ok().filter(fs::Metadata::is_file)?.len();
        let mut trailer = [0; TRAILER as usize];
        file.read_exact_at(&mut trailer, len.checked_sub(TRAILER)?).ok()?;
        let (index_len, digest, magic) = (&trailer[..8], &trailer[8..40], &trailer[40..]);
        let index_len = u64::from_le_bytes(index_len.try_into().ok()?);
        if magic != MAGIC || index_len > MAX_INDEX_BYTES {
            return None;
        }
        let data_len = (len - TRAILER).checked_sub(index_len)?;
        let mut index = vec![0; index_len as usize]; // at most the file's own size
        file.read_exact_at(&mut index, data_len).ok()?;
        if Sha256::digest(&index)[..] != *digest {
            return None;
        }
        let index: Index = serde_json::from_slice(&index).ok()?;
        let within = |record: &Record| record.offset.checked_add(record.bytes).is_some_and(|end| end <= data_len);
        if index.key != key || !index.matrices.iter().all(within) {
            return None;
        }
        let matrices = index.matrices.into_iter().map(|record| (record.name.clone(), record)).collect();
        Some(Found { file, matrices })
    }
}

/// An image that is still to be written. Holds the matrices' memory until then.
#[derive(Debug)]
pub struct ImageWriter(Kept);

impl ImageWriter {
    /// Writes the image beside its place and then into it, at the disk's speed: for a thread that nobody waits for.
    /// Complete or absent, also when the process ends or the power goes meanwhile. Returns where it is.
    pub fn write(self) -> io::Result<PathBuf> {
        let ImageWriter(mut kept) = self;
        let path = kept.path.clone();
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory)?;
        remove_stale(directory);
        let temporary = path.with_extension(format!("{}.{TEMPORARY}", std::process::id()));
        let written = kept.write_to(&temporary).and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary); // it may not exist; a stale one is removed by a later start
        }
        written.map(|()| path)
    }
}

impl Kept {
    fn write_to(&mut self, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut at = 0u64;
        for (record, image) in &mut self.matrices {
            record.offset = at.next_multiple_of(ALIGN);
            out.write_all(&vec![0; (record.offset - at) as usize])?;
            for piece in image.pieces() {
                out.write_all(piece)?;
            }
            at = record.offset + record.bytes;
        }
        let matrices = self.matrices.iter().map(|(record, _)| record.clone()).collect();
        let index = serde_json::to_vec(&Index { key: self.key.clone(), matrices })?;
        out.write_all(&index)?;
        out.write_all(&(index.len() as u64).to_le_bytes())?;
        out.write_all(&Sha256::digest(&index))?;
        out.write_all(&MAGIC)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    }
}

/// Removes what writers that are gone left half written: `NAME.PID.tmp` of a process that is not there. Where there is no
/// `/proc` to ask, nothing is removed.
fn remove_stale(directory: &Path) {
    if !Path::new("/proc/self").exists() {
        return;
    }
    for path in directory.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.strip_suffix(TEMPORARY).and_then(|name| name.trim_end_matches('.').rsplit('.').next());
        if pid.and_then(|pid| pid.parse::<u32>().ok()).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_file(&path); // somebody else was faster
        }
    }
}

/// A name for what is kept about a checkpoint, one for each purpose: a newer result takes the older one's place.
fn place(checkpoint: &Checkpoint, purpose: &str) -> String {
    let path = checkpoint.path().map(|path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf()));
    let place = path.map_or_else(|| checkpoint.location(), |path| path.display().to_string());
    hex(&Sha256::digest(format!("{place} {purpose}")))[..32].to_string()
}

/// The digest of everything that bytes made of these weights follow from; `None` where a file does not say when it was
/// changed. Files in the binary count with their bytes.
fn key(checkpoint: &Checkpoint, files: &[ModelFile], purpose: &str) -> Option<String> {
    let mut key = Sha256::new();
    key.update(format!("{LAYOUT_VERSION} {} {purpose}\n", env!("CARGO_PKG_VERSION")));
    // It says how quantized tensors are to be read.
    key.update(checkpoint.read_text(CONFIG).ok().flatten().unwrap_or_default());
    for file in files {
        match file.in_binary() {
            Some(bytes) => key.update(Sha256::digest(bytes)),
            None => {
                let (seconds, nanos) = file.modified()?;
                key.update(format!("{} {} {seconds}.{nanos}\n", file.name(), file.len()));
            }
        }
    }
    Some(hex(&key.finalize()))
}

impl Weights {
    /// The beginning of the name of a file in which a result of `purpose` about a checkpoint is kept. Another checkpoint, or
    /// another purpose, has another one.
    pub fn place(checkpoint: &Checkpoint, purpose: &str) -> String {
        place(checkpoint, purpose)
    }

    /// What such a result follows from, as a digest: the layout of packed weights, the configuration, and name, size and time
    /// of change of each file. A result with another key is out of date. `None` where nobody could tell. Of a built-in model
    /// it reads the weights.
    pub fn key(&self, checkpoint: &Checkpoint, purpose: &str) -> Option<String> {
        key(checkpoint, &self.files, purpose)
    }

    /// From here on matrices come from their image in `directory` if a fitting one is there, and are remembered for one
    /// otherwise. `purpose`: see [`Packed::look`].
    pub(crate) fn use_image(&mut self, directory: &Path, checkpoint: &Checkpoint, purpose: &str) {
        self.packed = Mutex::new(Packed::look(directory, checkpoint, &self.files, purpose));
    }

    /// The image of what was packed, to be written when nobody waits for it; `None` when there is nothing to write.
    pub(crate) fn into_image_writer(self) -> Option<ImageWriter> {
        // A checkpoint with NaN weights is packed anew each time, for the packing counts them.
        let finite = self.num_non_finite() == 0;
        match self.packed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Packed::Kept(kept) if finite => Some(ImageWriter(kept)),
            _ => None,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
