//! The packed image: weights on disk in their memory layout, so that the next start copies instead of converting.
//!
//! ```text
//! first start    pack every matrix ──> serve        background thread: image ──> NAME.tmp, fsync, rename ──> NAME
//! next start     NAME, key matches ──> copy every matrix, digests match ──> serve
//! file           [matrix, 4 KiB aligned] ...  index (JSON)  [length u64][SHA-256 of the index][magic]
//! ```
//! The key is a digest of everything that determines the bytes: layout version, class or recipe, config.json, and name,
//! size, mtime, ctime and a sample of the bytes of every weight file. There is one image per checkpoint and class: a
//! newer one replaces the older.
//!
//! All bytes read are verified. The index has a digest of each matrix, computed from one for each of its pieces, which
//! the copying threads take while the piece is in their L1 or L2 cache: XXH3 (128 bits, about 50 GB/s, a twentieth of
//! the copying time). It detects accidental damage by disks, memory and other programs, and does not authenticate: a
//! program that may write this directory can change the digest and the weight files too.
//!
//! A file that was replaced or written to has another ctime (of the inode, which no program can set), whatever its size
//! and mtime. Bytes that changed beneath the file system are detected if they are in the sample: the beginning of each
//! file with its tensor table, its end, and pages spread evenly over it. So another model is detected, and one flipped
//! bit is not; an image from before the flip still holds the original weights.
//!
//! An image only saves time. If it is invalid, the weights are packed from their files; if it cannot be written, it is
//! skipped. A damaged image of this version is logged.
//!
//! Where experts are read while the model serves ([`ImageUse::keep_open`]), their matrices cannot wait in memory until
//! the image is written: a thread writes each as it is packed, and then the image is open for reading.

use crate::checkpoint::Checkpoint;
use crate::files::{LoadError, ModelFile};
use kernels::quant::LAYOUT_VERSION;
use kernels::{Backend, ByteSource, Image, MatrixShape, PackedMatrix, WeightClass};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use twox_hash::XxHash3_128;

const CONFIG: &str = "config.json";
/// Ends every image; the last byte is the version of the format.
const MAGIC: [u8; 8] = *b"2strokeB";
/// Matrices begin at a multiple of it, so that reads cover whole pages.
const ALIGN: u64 = 4096;
/// Length of the index, its digest, the magic.
const TRAILER: u64 = 8 + 32 + 8;
/// An index has about 200 bytes for each matrix.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Matrices that wait for the thread that writes them.
const MATRICES_AHEAD: usize = 4;
/// Maximum bytes of pieces per read; their digests are taken while they are in cache.
const READ_BYTES: usize = 256 << 10;

/// Whether a load uses an image.
#[derive(Debug, Default)]
pub(super) enum ImageUse {
    /// No image.
    #[default]
    Off,
    /// Matrices come from an image if there is one, and are collected for a new one.
    On(ImageState),
}

/// The image of a load: on disk or to be written.
#[derive(Debug)]
pub(super) struct ImageState {
    pending: PendingImage,
    on_disk: Option<StoredImage>,
    /// A log line about the image on disk, which is damaged or could not be written.
    damage: Option<String>,
    upkeep: Upkeep,
}

/// What becomes of packed matrices.
#[derive(Debug)]
enum Upkeep {
    /// They are kept until the image is written.
    Collect,
    /// A thread writes each of them now.
    Write(Stream),
    /// Nothing: the image on disk is read from.
    Read,
}

/// An image that is written while matrices are packed.
#[derive(Debug)]
struct Stream {
    matrices: SyncSender<Option<(Record, Image)>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Stream {
    /// `None` without a thread for it.
    fn begin(path: PathBuf, key: String) -> Option<Stream> {
        let (matrices, packed) = sync_channel::<Option<(Record, Image)>>(MATRICES_AHEAD);
        let write = move || {
            remove_stale(path.parent().unwrap_or(Path::new(".")));
            files::replace_private_by(&path, |file| {
                let mut is_whole = false;
                let until_end = |matrix: Option<(Record, Image)>| {
                    is_whole |= matrix.is_none();
                    matrix
                };
                write_image(file, key, packed.into_iter().map_while(until_end))?;
                // Loading has failed, or there are weights that have to be counted at each start.
                if is_whole { Ok(()) } else { Err(io::Error::other("the weights were not packed to the end")) }
            })
        };
        let thread = Builder::new().name("packed-image".to_string()).spawn(write).ok()?;
        Some(Stream { matrices, thread })
    }

    /// Blocks until the image is complete.
    fn end(self) -> io::Result<()> {
        let Stream { matrices, thread } = self;
        let _ = matrices.send(None); // a writer that failed says why
        drop(matrices);
        thread.join().unwrap_or_else(|_| Err(io::Error::other("its writer panicked")))
    }
}

/// An image on disk with the right key.
#[derive(Debug)]
struct StoredImage {
    file: File,
    matrices: HashMap<String, Record>,
}

/// An image to be written.
#[derive(Debug)]
struct PendingImage {
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
    /// See [`digest_of_pieces`].
    digest: String,
}

impl Record {
    fn matches(&self, shape: MatrixShape, class: WeightClass) -> bool {
        let bytes = PackedMatrix::image_bytes(shape, class).map(|bytes| bytes as u64);
        (self.out_features, self.in_features) == (shape.out_features, shape.in_features)
            && self.class == class.name()
            && Some(self.bytes) == bytes
    }
}

/// The digest of a matrix from the digests of its pieces, in order.
fn digest_of_pieces(pieces: &[u128]) -> String {
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_le_bytes()).collect();
    format!("{:032x}", XxHash3_128::oneshot(&bytes))
}

/// The digest of a matrix in memory.
fn digest(image: &Image) -> String {
    digest_of_pieces(&image.pieces().into_iter().map(XxHash3_128::oneshot).collect::<Vec<_>>())
}

impl ImageUse {
    /// Opens the image of these weights in `directory`. `purpose`: class or recipe, which distinguishes images of one
    /// checkpoint and is part of the key.
    pub(super) fn open(directory: &Path, checkpoint: &Checkpoint, files: &[ModelFile], purpose: &str) -> ImageUse {
        if checkpoint.path().is_none() {
            return ImageUse::Off;
        }
        let Some(key) = cache_key(checkpoint, files, purpose) else { return ImageUse::Off };
        let path = directory.join(format!("{}.packed", file_stem(checkpoint, purpose)));
        let (on_disk, damage) = match StoredImage::open(&path, &key) {
            Ok(on_disk) => (on_disk, None),
            Err(damage) => (None, Some(damaged(&path, &damage))),
        };
        let (pending, upkeep) = (PendingImage { path, key, matrices: Vec::new() }, Upkeep::Collect);
        ImageUse::On(ImageState { pending, on_disk, damage, upkeep })
    }

    /// Matrices are not kept in memory for the image: one that does not exist is written while they are packed. Whether
    /// that is so, and every matrix has to be packed once.
    pub(super) fn keep_open(&mut self) -> bool {
        let ImageUse::On(ImageState { pending, on_disk, upkeep, .. }) = self else { return false };
        let stream = match on_disk {
            Some(_) => None,
            None => Stream::begin(pending.path.clone(), pending.key.clone()),
        };
        *upkeep = stream.map_or(Upkeep::Read, Upkeep::Write);
        matches!(upkeep, Upkeep::Write(_))
    }

    /// The matrix from the image, if there is one and its digest matches.
    pub(super) fn restore<B: Backend>(
        &mut self,
        backend: &B,
        name: &str,
        shape: MatrixShape,
        class: WeightClass,
    ) -> Option<B::Matrix> {
        let ImageUse::On(state) = self else { return None };
        let image = state.on_disk.as_ref()?;
        let record = image.matrices.get(name).filter(|record| record.matches(shape, class))?;
        match image.restore(backend, record, shape, class) {
            Ok(matrix) => matrix,
            Err(damage) => {
                let pending = &state.pending;
                state.damage.get_or_insert_with(|| damaged(&pending.path, &damage));
                None
            }
        }
    }

    /// Adds a matrix to the image to be written.
    pub(super) fn add(&mut self, name: String, shape: MatrixShape, class: WeightClass, image: Image) {
        let ImageUse::On(ImageState { pending, upkeep, .. }) = self else { return };
        let bytes = image.pieces().iter().map(|piece| piece.len() as u64).sum();
        let MatrixShape { out_features, in_features } = shape;
        let (class, digest) = (class.name().to_string(), String::new());
        let matrix = (Record { name, class, out_features, in_features, offset: 0, bytes, digest }, image);
        match upkeep {
            Upkeep::Collect => pending.matrices.push(matrix),
            Upkeep::Write(stream) => drop(stream.matrices.send(Some(matrix))), // fails once its writer has
            Upkeep::Read => {}
        }
    }

    /// All is packed. Returns the image of the packed matrices, if it has to be written; one whose matrices were not
    /// kept is complete, and matrices are read from it from now on. `is_lasting`: the next start may use it.
    pub(super) fn end(&mut self, is_lasting: bool) -> Option<ImageWriter> {
        let ImageUse::On(ImageState { pending, on_disk, damage, upkeep }) = self else { return None };
        let PendingImage { path, key, matrices } = pending;
        match std::mem::replace(upkeep, Upkeep::Read) {
            Upkeep::Collect => {
                let matrices = std::mem::take(matrices);
                let wanted = is_lasting && (on_disk.is_none() || damage.is_some());
                return wanted.then(|| ImageWriter(PendingImage { path: path.clone(), key: key.clone(), matrices }));
            }
            Upkeep::Write(stream) if is_lasting => {
                let opened =
                    stream.end().map_err(|error| error.to_string()).and_then(|()| StoredImage::open(path, key));
                match opened {
                    Ok(image) => *on_disk = image,
                    Err(problem) => {
                        let path = path.display();
                        *damage = Some(format!("packed weights could not be kept in {path}: {problem}"));
                    }
                }
            }
            Upkeep::Write(_) => {}
            // Whole matrices are still read from it; the next start writes another.
            Upkeep::Read if damage.is_some() => drop(fs::remove_file(path)),
            Upkeep::Read => {}
        }
        None
    }

    /// A log line about an image that is damaged or could not be written.
    pub(super) fn damage(&self) -> Option<String> {
        let ImageUse::On(ImageState { damage, .. }) = self else { return None };
        damage.clone()
    }
}

fn damaged(path: &Path, damage: &str) -> String {
    format!("the packed weights in {} are damaged ({damage}): packing them again", path.display())
}

impl StoredImage {
    /// The image with that key. `Ok(None)`: there is none, or one with another key or version. An error describes the
    /// damage.
    fn open(path: &Path, key: &str) -> Result<Option<StoredImage>, String> {
        let unread = |error: io::Error| error.to_string();
        let file = match files::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unread(error)),
        };
        let len = file.metadata().map_err(unread)?.len();
        let mut trailer = [0; TRAILER as usize];
        let at = len.checked_sub(TRAILER).ok_or("trailer is missing")?;
        file.read_exact_at(&mut trailer, at).map_err(unread)?;
        let (index_len, digest, magic) = (&trailer[..8], &trailer[8..40], &trailer[40..]);
        let [prefix @ .., version] = MAGIC;
        if magic[..7] == prefix && magic[7] != version {
            return Ok(None);
        }
        let index_len = u64::from_le_bytes(index_len.try_into().expect("8 bytes"));
        if magic != MAGIC || index_len > MAX_INDEX_BYTES {
            return Err("bad trailer".into());
        }
        let data_len = (len - TRAILER).checked_sub(index_len).ok_or("index is truncated")?;
        let mut index = vec![0; index_len as usize]; // at most the file's own size
        file.read_exact_at(&mut index, data_len).map_err(unread)?;
        if Sha256::digest(&index)[..] != *digest {
            return Err("index does not match its digest".into());
        }
        let index: Index = serde_json::from_slice(&index).map_err(|error| format!("index: {error}"))?;
        if index.key != key {
            return Ok(None);
        }
        let within = |record: &Record| record.offset.checked_add(record.bytes).is_some_and(|end| end <= data_len);
        if !index.matrices.iter().all(within) {
            return Err("index points outside the file".into());
        }
        let matrices = index.matrices.into_iter().map(|record| (record.name.clone(), record)).collect();
        Ok(Some(StoredImage { file, matrices }))
    }

    /// The matrix, or an error if its digest does not match.
    fn restore<B: Backend>(
        &self,
        backend: &B,
        record: &Record,
        shape: MatrixShape,
        class: WeightClass,
    ) -> Result<Option<B::Matrix>, String> {
        let ends: Vec<u64> = PackedMatrix::image_pieces(shape, class).into_iter().flatten().collect();
        let digests = Mutex::new(vec![None::<u128>; ends.len()]);
        let failed = Mutex::new(None::<io::Error>);
        let read = |at: u64, out: &mut [u8]| {
            if let Err(error) = self.read_pieces(record.offset, at, out, &ends, &digests) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        };
        let matrix = backend.restore(shape, class, &ByteSource(&read));
        if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error.to_string());
        }
        let Some(matrix) = matrix else { return Ok(None) };
        let digests: Option<Vec<u128>> =
            digests.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect();
        match digests.is_some_and(|digests| digest_of_pieces(&digests) == record.digest) {
            true => Ok(Some(matrix)),
            false => Err(format!("{} does not match its digest", record.name)),
        }
    }

    /// Fills `out` with whole pieces of a matrix from its byte `at` on, and records the digest of each.
    fn read_pieces(
        &self,
        matrix: u64,
        at: u64,
        out: &mut [u8],
        ends: &[u64],
        digests: &Mutex<Vec<Option<u128>>>,
    ) -> io::Result<()> {
        let first = ends.partition_point(|&end| end <= at);
        let last = ends.partition_point(|&end| end <= at + out.len() as u64);
        let (mut piece, mut begin, mut found) = (first, at, Vec::with_capacity(last - first));
        let mut rest = out;
        while piece < last {
            let fits = ends[piece..last].partition_point(|&end| end - begin <= READ_BYTES as u64).max(1);
            let end = ends[piece + fits - 1];
            let (bytes, others) = std::mem::take(&mut rest).split_at_mut((end - begin) as usize);
            self.file.read_exact_at(bytes, matrix + begin)?;
            let mut from = begin;
            found.extend(ends[piece..piece + fits].iter().map(|&end| {
                let bytes = &bytes[(from - begin) as usize..(end - begin) as usize];
                from = end;
                Some(XxHash3_128::oneshot(bytes))
            }));
            (rest, begin, piece) = (others, end, piece + fits);
        }
        digests.lock().unwrap_or_else(PoisonError::into_inner)[first..last].copy_from_slice(&found);
        Ok(())
    }
}

/// An image to be written. Keeps the matrices' memory until then.
#[derive(Debug)]
pub struct ImageWriter(PendingImage);

impl ImageWriter {
    /// Writes the image to a temporary file and renames it, at the disk's speed: for a background thread. The image is
    /// complete or absent, even after a crash or a power failure. Returns its path.
    pub fn write(self) -> io::Result<PathBuf> {
        let ImageWriter(PendingImage { path, key, matrices }) = self;
        remove_stale(path.parent().unwrap_or(Path::new(".")));
        files::replace_private_by(&path, |file| write_image(file, key, matrices.into_iter())).map(|()| path)
    }
}

fn write_image(file: &mut File, key: String, packed: impl Iterator<Item = (Record, Image)>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let (mut at, mut matrices) = (0u64, Vec::new());
    for (mut record, image) in packed {
        record.offset = at.next_multiple_of(ALIGN);
        out.write_all(&vec![0; (record.offset - at) as usize])?;
        for piece in image.pieces() {
            out.write_all(piece)?;
        }
        at = record.offset + record.bytes;
        record.digest = digest(&image);
        matrices.push(record);
    }
    let index = serde_json::to_vec(&Index { key, matrices })?;
    out.write_all(&index)?;
    out.write_all(&(index.len() as u64).to_le_bytes())?;
    out.write_all(&Sha256::digest(&index))?;
    out.write_all(&MAGIC)?;
    out.flush()
}

/// Removes incomplete files of writers that have ended: `NAME.PID.tmp` without process PID. Without `/proc`, removes
/// nothing.
fn remove_stale(directory: &Path) {
    if !Path::new("/proc/self").exists() {
        return;
    }
    for path in directory.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()) {
        if files::writer_of(&path).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_file(&path); // fails if another process removed it first
        }
    }
}

/// The stem of a file name for a checkpoint and a purpose, so that a newer result replaces the older one.
pub(super) fn file_stem(checkpoint: &Checkpoint, purpose: &str) -> String {
    let path = checkpoint.path().map(|path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf()));
    let location = path.map_or_else(|| checkpoint.location(), |path| path.display().to_string());
    hex(&Sha256::digest(format!("{location} {purpose}")))[..32].to_string()
}

/// Raised whenever the same files are read as other weights. 2: the last group of quantized inputs may be shorter.
const READING_VERSION: u32 = 2;

/// The digest of everything that determines results computed from these weights; `None` if a file has no times of
/// change. Files in the binary are digested whole.
pub(super) fn cache_key(checkpoint: &Checkpoint, files: &[ModelFile], purpose: &str) -> Option<String> {
    let mut key = Sha256::new();
    key.update(format!("{LAYOUT_VERSION} {READING_VERSION} {} {purpose}\n", env!("CARGO_PKG_VERSION")));
    // It determines how quantized tensors are read.
    key.update(checkpoint.read_text(CONFIG).ok().flatten().unwrap_or_default());
    for file in files {
        match file.in_binary() {
            Some(bytes) => key.update(Sha256::digest(bytes)),
            None => {
                let [modified, changed] = file.times()?;
                key.update(format!("{} {} {modified:?} {changed:?} ", file.name(), file.len()));
                let pages = (SAMPLED_PAGES / files.len() as u64).max(MIN_PAGES);
                key.update(format!("{:032x}\n", sample(file, pages).ok()?));
            }
        }
    }
    Some(hex(&key.finalize()))
}

/// Sampled pages of all files of a checkpoint together, and at least of each file.
const SAMPLED_PAGES: u64 = 128;
const MIN_PAGES: u64 = 4;
const PAGE: u64 = 4096;
/// Sampled bytes of the beginning, which has the tensor table.
const SAMPLED_START: u64 = 256 << 10;

/// A digest of the beginning of a file, of its end, and of `pages` pages between them. Takes some milliseconds for a
/// file of any size, longer if it is not in the page cache.
fn sample(file: &ModelFile, pages: u64) -> Result<u128, LoadError> {
    let start = file.len().min(SAMPLED_START);
    let mut bytes = file.read_vec(0, start as usize)?;
    if let Some(rest) = (file.len() - start).checked_sub(PAGE) {
        let mut page = [0; PAGE as usize];
        for index in 0..=pages {
            // Evenly spaced; the last one is the file's end.
            let at = start + (u128::from(rest) * u128::from(index) / u128::from(pages)) as u64;
            file.read_at(at, &mut page)?;
            bytes.extend_from_slice(&page);
        }
    } else {
        bytes.extend(file.read_vec(start, (file.len() - start) as usize)?);
    }
    Ok(XxHash3_128::oneshot(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Source;

    #[test]
    fn a_sample_has_the_listing_both_ends_and_pages_between() {
        let directory = testing::Scratch::new("sample");
        let checkpoint = Checkpoint::open(Source::Directory(directory.to_path_buf())).unwrap();
        for len in [1, 4095, SAMPLED_START, SAMPLED_START + PAGE - 1, SAMPLED_START + PAGE, 3 << 20] {
            let sample_with = |flip: Option<u64>| {
                let mut bytes = vec![7u8; len as usize];
                flip.iter().for_each(|&at| bytes[at as usize] ^= 1);
                fs::write(directory.join("weights"), bytes).unwrap();
                sample(&checkpoint.open_file("weights").unwrap().unwrap(), 16).unwrap()
            };
            let whole = sample_with(None);
            let mut seen = vec![0, len / 2 % SAMPLED_START.min(len), len - 1];
            // The first page behind the listing, whatever the number of pages.
            seen.extend((len > SAMPLED_START).then_some(SAMPLED_START));
            for at in seen {
                assert_ne!(sample_with(Some(at)), whole, "byte {at} of {len}");
            }
            // Every change of the 16th part of a file.
            if len == 3 << 20 {
                let part: Vec<u64> = (SAMPLED_START..len - len / 16).step_by(100_000).collect();
                for from in part {
                    let mut bytes = vec![7u8; len as usize];
                    bytes[from as usize..][..len as usize / 16].fill(8);
                    fs::write(directory.join("weights"), bytes).unwrap();
                    let file = checkpoint.open_file("weights").unwrap().unwrap();
                    assert_ne!(sample(&file, 16).unwrap(), whole, "from byte {from}");
                }
            }
        }
    }
}
