//! The packed image: weights as they lie in memory, kept on disk, so that the next start copies instead of converting.
//!
//! ```text
//! first start    pack every matrix ──> serve        a thread of its own: image ──> NAME.tmp, fsync, rename ──> NAME
//! next start     NAME, its key is right ──> copy every matrix, its digest is right ──> serve
//! file           [matrix, 4 KiB aligned] ...  index (JSON)  [length u64][SHA-256 of the index][magic]
//! ```
//! The key is a digest of everything that the bytes follow from: the layout's version, what was asked for, config.json,
//! and name, size, times of change and a sample of the bytes of every weight file. One image per checkpoint and class:
//! a newer one takes the older one's place.
//!
//! Nothing is believed unread. The index has a digest of each matrix, made of one for each of its pieces, which the
//! threads that copy take of a piece while it is in their nearest cache: XXH3 (128 bits, at some 50 GB/s a twentieth of
//! what copying takes). It finds what disks, memory and other programs do to bytes by accident. It is no seal: whoever
//! may write this directory can write another digest too, and the weights' own files besides.
//!
//! What a key can see: a file that was replaced or written to has another time of change (that of the inode, which no
//! program can set), whatever its size and its time of modification say. Bytes that changed beneath the file system are
//! seen if the sample has them: the beginning of each file with the names, types and places of its tensors, its end,
//! and pages spread evenly over it. So another model is noticed, and one flipped bit is not; an image that was made
//! before the flip still holds the weights as they were.
//!
//! An image is only ever a saving of time. Whatever is wrong with it, the weights are packed from their files as if
//! there were none, and if it cannot be written, nothing else happens. An image of ours that is damaged is worth a
//! line.

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
use std::sync::{Mutex, PoisonError};
use twox_hash::XxHash3_128;

const CONFIG: &str = "config.json";
/// Ends every image; the last byte changes with the file's form.
const MAGIC: [u8; 8] = *b"2strokeB";
/// Matrices begin at a multiple of it, so that reads are of whole pages.
const ALIGN: u64 = 4096;
/// Length of the index, its digest, the magic.
const TRAILER: u64 = 8 + 32 + 8;
/// An index has about 200 bytes for each matrix.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Pieces are read together up to this, and their digests taken before they leave the nearest caches.
const READ_BYTES: usize = 256 << 10;

/// What becomes of a load's matrices.
#[derive(Debug, Default)]
pub(super) enum Packed {
    /// Nothing.
    #[default]
    Forgotten,
    /// They come from an image as far as there is one, and are remembered for one that may have to be written.
    Imaged(Imaged),
}

/// The image of a load, there or in the making.
#[derive(Debug)]
pub(super) struct Imaged {
    kept: Kept,
    found: Option<Found>,
    /// What is wrong with the image that is there.
    damage: Option<String>,
}

/// An image that fits.
#[derive(Debug)]
struct Found {
    file: File,
    matrices: HashMap<String, Record>,
}

/// An image in the making.
#[derive(Debug)]
struct Kept {
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
    fn is(&self, shape: MatrixShape, class: WeightClass) -> bool {
        let bytes = PackedMatrix::image_bytes(shape, class).map(|bytes| bytes as u64);
        (self.out_features, self.in_features) == (shape.out_features, shape.in_features)
            && self.class == class.name()
            && Some(self.bytes) == bytes
    }
}

/// The digest of a matrix, by those of its pieces in their order.
fn digest_of_pieces(pieces: &[u128]) -> String {
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_le_bytes()).collect();
    format!("{:032x}", XxHash3_128::oneshot(&bytes))
}

/// The digest of a matrix in memory.
fn digest(image: &Image) -> String {
    digest_of_pieces(&image.pieces().into_iter().map(XxHash3_128::oneshot).collect::<Vec<_>>())
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
        let (found, damage) = match Found::open(&path, &key) {
            Ok(found) => (found, None),
            Err(damage) => (None, Some(damage)),
        };
        Packed::Imaged(Imaged { kept: Kept { path, key, matrices: Vec::new() }, found, damage })
    }

    /// The matrix from the image, if there is one and its bytes are those that were written.
    pub(super) fn restore<B: Backend>(
        &mut self,
        backend: &B,
        name: &str,
        shape: MatrixShape,
        class: WeightClass,
    ) -> Option<B::Matrix> {
        let Packed::Imaged(imaged) = self else { return None };
        let found = imaged.found.as_ref()?;
        let record = found.matrices.get(name).filter(|record| record.is(shape, class))?;
        match found.restore(backend, record, shape, class) {
            Ok(matrix) => matrix,
            Err(damage) => {
                imaged.damage.get_or_insert(damage);
                None
            }
        }
    }

    /// Remembers a matrix, wherever it came from.
    pub(super) fn keep(&mut self, name: String, shape: MatrixShape, class: WeightClass, image: Image) {
        let Packed::Imaged(Imaged { kept, .. }) = self else { return };
        let bytes = image.pieces().iter().map(|piece| piece.len() as u64).sum();
        let MatrixShape { out_features, in_features } = shape;
        let (class, digest) = (class.name().to_string(), String::new());
        kept.matrices.push((Record { name, class, out_features, in_features, offset: 0, bytes, digest }, image));
    }

    /// The image of what was packed; `None` when there is nothing to write.
    pub(super) fn into_writer(self) -> Option<ImageWriter> {
        match self {
            Packed::Imaged(Imaged { kept, found, damage }) if found.is_none() || damage.is_some() => {
                Some(ImageWriter(kept))
            }
            _ => None,
        }
    }

    /// What a person should know of an image that could not be used, though it is one of ours.
    pub(super) fn damage(&self) -> Option<String> {
        let Packed::Imaged(Imaged { kept, damage, .. }) = self else { return None };
        let damage = damage.as_ref()?;
        Some(format!("the packed weights in {} are damaged ({damage}): packing them again", kept.path.display()))
    }
}

impl Found {
    /// The image with that key. `Ok(None)`: there is none, or one of something else. An error says what is wrong with
    /// it.
    fn open(path: &Path, key: &str) -> Result<Option<Found>, String> {
        let unread = |error: io::Error| error.to_string();
        let file = match files::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unread(error)),
        };
        let len = file.metadata().map_err(unread)?.len();
        let mut trailer = [0; TRAILER as usize];
        let at = len.checked_sub(TRAILER).ok_or("its end is missing")?;
        file.read_exact_at(&mut trailer, at).map_err(unread)?;
        let (index_len, digest, magic) = (&trailer[..8], &trailer[8..40], &trailer[40..]);
        let [of_ours @ .., form] = MAGIC;
        if magic[..7] == of_ours && magic[7] != form {
            return Ok(None); // of another version
        }
        let index_len = u64::from_le_bytes(index_len.try_into().expect("8 bytes"));
        if magic != MAGIC || index_len > MAX_INDEX_BYTES {
            return Err("its end is not ours".into());
        }
        let data_len = (len - TRAILER).checked_sub(index_len).ok_or("its index is cut off")?;
        let mut index = vec![0; index_len as usize]; // at most the file's own size
        file.read_exact_at(&mut index, data_len).map_err(unread)?;
        if Sha256::digest(&index)[..] != *digest {
            return Err("its index is not what was written".into());
        }
        let index: Index = serde_json::from_slice(&index).map_err(|error| format!("its index: {error}"))?;
        if index.key != key {
            return Ok(None);
        }
        let within = |record: &Record| record.offset.checked_add(record.bytes).is_some_and(|end| end <= data_len);
        if !index.matrices.iter().all(within) {
            return Err("its index leads outside".into());
        }
        let matrices = index.matrices.into_iter().map(|record| (record.name.clone(), record)).collect();
        Ok(Some(Found { file, matrices }))
    }

    /// The matrix, if every byte of it is as it was written; an error says that it is not.
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
            false => Err(format!("{} is not what was written", record.name)),
        }
    }

    /// Fills `out`, whole pieces of a matrix from its byte `at` on, and notes the digest of each.
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

/// An image that is still to be written. Holds the matrices' memory until then.
#[derive(Debug)]
pub struct ImageWriter(Kept);

impl ImageWriter {
    /// Writes the image beside its place and then into it, at the disk's speed: for a thread that nobody waits for.
    /// Complete or absent, also when the process ends or the power goes meanwhile. Returns where it is.
    pub fn write(self) -> io::Result<PathBuf> {
        let ImageWriter(mut kept) = self;
        let path = kept.path.clone();
        remove_stale(path.parent().unwrap_or(Path::new(".")));
        files::replace_private_by(&path, |file| kept.write_to(file)).map(|()| path)
    }
}

impl Kept {
    fn write_to(&mut self, file: &mut File) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut at = 0u64;
        for (record, image) in &mut self.matrices {
            record.offset = at.next_multiple_of(ALIGN);
            out.write_all(&vec![0; (record.offset - at) as usize])?;
            for piece in image.pieces() {
                out.write_all(piece)?;
            }
            at = record.offset + record.bytes;
            record.digest = digest(image);
        }
        let matrices = self.matrices.iter().map(|(record, _)| record.clone()).collect();
        let index = serde_json::to_vec(&Index { key: self.key.clone(), matrices })?;
        out.write_all(&index)?;
        out.write_all(&(index.len() as u64).to_le_bytes())?;
        out.write_all(&Sha256::digest(&index))?;
        out.write_all(&MAGIC)?;
        out.flush()
    }
}

/// Removes what writers that are gone left half written: `NAME.PID.tmp` of a process that is not there. Where there is
/// no `/proc` to ask, nothing is removed.
fn remove_stale(directory: &Path) {
    if !Path::new("/proc/self").exists() {
        return;
    }
    for path in directory.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()) {
        if files::writer_of(&path).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_file(&path); // somebody else was faster
        }
    }
}

/// A name for what is kept about a checkpoint, one for each purpose: a newer result takes the older one's place.
pub(super) fn place(checkpoint: &Checkpoint, purpose: &str) -> String {
    let path = checkpoint.path().map(|path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf()));
    let place = path.map_or_else(|| checkpoint.location(), |path| path.display().to_string());
    hex(&Sha256::digest(format!("{place} {purpose}")))[..32].to_string()
}

/// The digest of everything that bytes made of these weights follow from; `None` where a file does not say when it was
/// changed. Files in the binary count with their bytes.
pub(super) fn key(checkpoint: &Checkpoint, files: &[ModelFile], purpose: &str) -> Option<String> {
    let mut key = Sha256::new();
    key.update(format!("{LAYOUT_VERSION} {} {purpose}\n", env!("CARGO_PKG_VERSION")));
    // It says how quantized tensors are to be read.
    key.update(checkpoint.read_text(CONFIG).ok().flatten().unwrap_or_default());
    for file in files {
        match file.in_binary() {
            Some(bytes) => key.update(Sha256::digest(bytes)),
            None => {
                let [modified, changed] = file.times()?;
                key.update(format!("{} {} {modified:?} {changed:?} ", file.name(), file.len()));
                let pages = (SAMPLED_PAGES / files.len() as u64).max(LEAST_PAGES);
                key.update(format!("{:032x}\n", sample(file, pages).ok()?));
            }
        }
    }
    Some(hex(&key.finalize()))
}

/// Pages of all files of a checkpoint that a sample has, and pages of each file at least.
const SAMPLED_PAGES: u64 = 128;
const LEAST_PAGES: u64 = 4;
const PAGE: u64 = 4096;
/// Of the beginning, where tensors are listed.
const SAMPLED_START: u64 = 256 << 10;

/// A digest of the beginning of a file, of its end, and of `pages` pages in between. Some milliseconds for a file of
/// any size, the slower the less of it is in memory.
fn sample(file: &ModelFile, pages: u64) -> Result<u128, LoadError> {
    let start = file.len().min(SAMPLED_START);
    let mut bytes = file.read_vec(0, start as usize)?;
    if let Some(rest) = (file.len() - start).checked_sub(PAGE) {
        let mut page = [0; PAGE as usize];
        for index in 0..=pages {
            // Evenly, the last of them the file's end.
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
