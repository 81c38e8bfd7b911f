//! Memory for tensors: zeroed, aligned to a cache line, on 2 MiB pages when large; exhaustion is an error, not an abort.
//!
//! ```text
//! below 64 KiB      the global allocator
//! below 8 MiB       a piece of a 32 MiB chunk: the matrices of a small model share huge pages
//! from 8 MiB on     a separate mapping
//! ```
//! The memory of a piece that is dropped goes to the next of its size: matrices of experts come and go while others of
//! their chunks stay.
//!
//! On a machine with several memory nodes, a buffer may be requested on one of them: chunks and mappings then prefer
//! that node's memory.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The operating system has no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {bytes} bytes requested")]
pub struct OutOfMemory {
    /// Size of the failed request.
    pub bytes: usize,
}

/// Plain numbers: every bit pattern, including all zeros, is a value.
///
/// # Safety
/// The type must be valid for any bytes, have no padding and no destructor, and need at most 64-byte alignment.
pub unsafe trait Pod: Copy + Send + Sync + 'static {}

macro_rules! pod {
    ($($t:ty)*) => { $(
        // SAFETY: a primitive number: any bytes are a value, no padding.
        unsafe impl Pod for $t {}
    )* };
}
pod!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 usize half::bf16);

/// Alignment of every buffer: a cache line, and an AVX-512 register.
pub const ALIGN: usize = 64;

/// Size of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;
/// Minimum size of a buffer with huge pages.
const PIECE_FROM: usize = 64 << 10;
/// Minimum size of a buffer with a separate mapping.
const OWN_FROM: usize = 8 << 20;
/// Size of the mappings that smaller buffers share.
const CHUNK: usize = 32 << 20;

/// A fixed number of zeroed `T`. From 64 KiB on it requests huge pages: fewer TLB misses, and the hardware prefetcher
/// does not stop at 4 KiB (a matrix of 1 MB is read at 60 % of bandwidth on small pages). Large buffers are not
/// touched here: the thread that first writes a page decides its NUMA node.
pub struct Buffer<T: Pod> {
    ptr: NonNull<T>,
    len: usize,
    /// Keeps the memory mapped; `None`: memory of the global allocator.
    mapping: Option<Arc<Mapping>>,
}

// SAFETY: a Buffer owns its memory alone, and T is Send and Sync.
unsafe impl<T: Pod> Send for Buffer<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Pod> Sync for Buffer<T> {}

impl<T: Pod> Buffer<T> {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        Buffer::zeroed_on(None, len)
    }

    /// `len` zeros, preferably on a memory node given by its system id.
    pub(crate) fn zeroed_on(node: Option<u32>, len: usize) -> Result<Self, OutOfMemory> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(OutOfMemory { bytes: usize::MAX })?;
        assert!(align_of::<T>() <= ALIGN);
        if bytes > isize::MAX as usize - 2 * HUGE_PAGE {
            return Err(OutOfMemory { bytes });
        }
        let (ptr, mapping) = match bytes {
            0 => (dangling(), None),
            _ if cfg!(not(target_os = "linux")) || bytes < PIECE_FROM => (allocate(bytes)?, None),
            _ if bytes < OWN_FROM => piece(node, bytes).map(|(ptr, chunk)| (ptr, Some(chunk)))?,
            _ => Mapping::new(node, bytes).map(|own| (own.start, Some(Arc::new(own))))?,
        };
        Ok(Buffer { ptr: ptr.cast(), len, mapping })
    }

    /// Grows to at least `len` values; growing discards the contents. For scratch memory.
    pub fn reserve(&mut self, len: usize) -> Result<(), OutOfMemory> {
        if self.len < len {
            *self = Buffer::default();
            *self = Buffer::zeroed(len)?;
        }
        Ok(())
    }

    /// The same memory as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: a Pod has no padding, so every byte is initialised; bytes need no alignment.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().cast(), self.bytes()) }
    }

    /// The same memory as mutable bytes.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; any bytes are values of a Pod, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().cast(), self.bytes()) }
    }

    /// Pointer to the first value; the caller must synchronize access through it.
    pub(crate) fn start(&self) -> *mut T {
        self.ptr.as_ptr()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T: Pod> Default for Buffer<T> {
    fn default() -> Self {
        Buffer { ptr: dangling().cast(), len: 0, mapping: None }
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `ptr` is aligned and owns `len` initialised values (zeros at least), or `len` is 0.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Pod> Drop for Buffer<T> {
    fn drop(&mut self) {
        let bytes = self.bytes();
        match &self.mapping {
            None if bytes == 0 => {}
            // SAFETY: `ptr` came from `allocate(bytes)` and is given back once.
            None => unsafe { std::alloc::dealloc(self.ptr.as_ptr().cast(), layout(bytes)) },
            Some(chunk) if bytes < OWN_FROM => {
                let freed = FreedPiece { start: self.ptr.cast(), bytes, chunk: Arc::downgrade(chunk) };
                FREED.lock().unwrap_or_else(PoisonError::into_inner).push(freed);
            }
            Some(_) => {}
        }
    }
}

impl<T: Pod> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} x {})", self.len, std::any::type_name::<T>())
    }
}

fn dangling() -> NonNull<u8> {
    NonNull::without_provenance(const { std::num::NonZero::new(ALIGN).unwrap() })
}

fn layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes, ALIGN).expect("size was checked against isize::MAX")
}

/// `bytes` > 0 zeroed bytes from the global allocator.
fn allocate(bytes: usize) -> Result<NonNull<u8>, OutOfMemory> {
    // SAFETY: the size is not zero.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(bytes)) }).ok_or(OutOfMemory { bytes })
}

/// The chunk that new pieces are taken from.
struct Current {
    node: Option<u32>,
    chunk: Arc<Mapping>,
    /// Bytes already handed out.
    used: usize,
}

/// One per node.
static CURRENT: Mutex<Vec<Current>> = Mutex::new(Vec::new());

/// A piece that no buffer has, of a chunk that others keep mapped.
struct FreedPiece {
    start: NonNull<u8>,
    bytes: usize,
    chunk: Weak<Mapping>,
}

// SAFETY: a range of memory belongs to no thread, and nothing else refers to this one.
unsafe impl Send for FreedPiece {}

/// Those of chunks that are no longer mapped leave it at the next request for a piece.
static FREED: Mutex<Vec<FreedPiece>> = Mutex::new(Vec::new());

/// A freed piece of exactly this size on that node.
fn freed(node: Option<u32>, bytes: usize) -> Option<(NonNull<u8>, Arc<Mapping>)> {
    let mut freed = FREED.lock().unwrap_or_else(PoisonError::into_inner);
    freed.retain(|piece| piece.chunk.strong_count() > 0);
    for at in 0..freed.len() {
        if freed[at].bytes == bytes
            && let Some(chunk) = freed[at].chunk.upgrade().filter(|chunk| chunk.node == node)
        {
            return Some((freed.swap_remove(at).start, chunk));
        }
    }
    None
}

/// A freed piece, the next of the node's current chunk, which was never handed out and so is zero, or the first of a new
/// one. A chunk is unmapped when its last piece is dropped and another chunk is the current one.
fn piece(node: Option<u32>, bytes: usize) -> Result<(NonNull<u8>, Arc<Mapping>), OutOfMemory> {
    if let Some((start, chunk)) = freed(node, bytes) {
        // SAFETY: the piece has that many bytes, its chunk is mapped, and it left the list, so that it is ours alone.
        unsafe { start.write_bytes(0, bytes) };
        return Ok((start, chunk));
    }
    let mut all = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let at = all.iter().position(|current| current.node == node).unwrap_or(all.len());
    if all.get(at).is_none_or(|current| current.used + bytes > CHUNK) {
        let chunk = Arc::new(Mapping::new(node, CHUNK).map_err(|_| OutOfMemory { bytes })?);
        let current = Current { node, chunk, used: 0 };
        match all.get_mut(at) {
            Some(old) => *old = current,
            None => all.push(current),
        }
    }
    let Current { chunk, used, .. } = &mut all[at];
    // SAFETY: `used + bytes` is within the chunk.
    let ptr = unsafe { chunk.start.add(*used) };
    *used = (*used + bytes).next_multiple_of(page_size());
    Ok((ptr, chunk.clone()))
}

/// Alignment of a chunk's pieces: no two share a page, so that each has pages of its own node. 4 KiB on x86, up to 64
/// on AArch64.
fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    // SAFETY: the call has no pointers.
    *SIZE.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0).max(4096))
}

/// Anonymous zero pages, aligned to 2 MiB, advised to be huge.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    node: Option<u32>,
}

// SAFETY: a range of memory belongs to no thread; access goes through the buffers that own its pieces.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    #[cfg(target_os = "linux")]
    fn new(node: Option<u32>, bytes: usize) -> Result<Mapping, OutOfMemory> {
        let keep = bytes.next_multiple_of(HUGE_PAGE);
        let mapped = keep + HUGE_PAGE;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new private mapping; what is cut off below is part of it and was never handed out.
        unsafe {
            let start = libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0);
            if start == libc::MAP_FAILED {
                return Err(OutOfMemory { bytes });
            }
            let start = start.cast::<u8>();
            let head = start.align_offset(HUGE_PAGE);
            let aligned = start.add(head);
            if head > 0 {
                libc::munmap(start.cast(), head);
            }
            let tail = mapped - head - keep;
            if tail > 0 {
                libc::munmap(aligned.add(keep).cast(), tail);
            }
            libc::madvise(aligned.cast(), keep, libc::MADV_HUGEPAGE); // only advice: 4 KiB pages give the same bits
            if let Some(node) = node {
                prefer(node, aligned.cast(), keep);
            }
            Ok(Mapping { start: NonNull::new_unchecked(aligned), bytes: keep, node })
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn new(node: Option<u32>, bytes: usize) -> Result<Mapping, OutOfMemory> {
        allocate(bytes).map(|start| Mapping { start, bytes, node })
    }
}

/// Asks the system to place untouched pages on a node while it has free memory. A refusal costs speed only.
///
/// # Safety
/// `start` is the page where a mapping of `bytes` begins.
#[cfg(target_os = "linux")]
unsafe fn prefer(node: u32, start: *mut libc::c_void, bytes: usize) {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let mut mask = [0 as libc::c_ulong; 1024 / BITS];
    let Some(word) = mask.get_mut(node as usize / BITS) else { return };
    *word = 1 << (node as usize % BITS);
    // SAFETY: by the caller's word; the kernel reads as many bits of the mask as there are.
    unsafe {
        let mode = libc::c_long::from(libc::MPOL_PREFERRED);
        libc::syscall(libc::SYS_mbind, start, bytes, mode, mask.as_ptr(), mask.len() * BITS + 1, 0 as libc::c_long);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made exactly this range, and the last buffer on it is gone.
        unsafe {
            #[cfg(target_os = "linux")]
            libc::munmap(self.start.as_ptr().cast(), self.bytes);
            #[cfg(not(target_os = "linux"))]
            std::alloc::dealloc(self.start.as_ptr(), layout(self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_writable() {
        let edges = [PIECE_FROM, OWN_FROM, CHUNK].map(|bytes| bytes / size_of::<f32>());
        for len in edges.into_iter().flat_map(|edge| [edge - 1, edge, edge + 17]).chain([0, 1, 63, 4096]) {
            let mut buffer = Buffer::<f32>::zeroed(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|x| x.to_bits() == 0));
            assert_eq!(buffer.as_ptr() as usize % ALIGN, 0);
            buffer.fill(1.5);
            assert!(buffer.iter().all(|&x| x == 1.5));
        }
    }

    #[test]
    fn pieces_of_a_chunk_do_not_overlap_and_outlive_each_other() {
        // Three chunks' worth of pieces, every second one dropped immediately.
        let mut kept = Vec::new();
        for id in 0..3 * CHUNK / (1 << 20) {
            let mut buffer = Buffer::<u32>::zeroed((1 << 18) + id).unwrap();
            assert!(buffer.iter().all(|&x| x == 0), "piece {id} is not zero");
            buffer.fill(id as u32);
            if id % 2 == 0 {
                kept.push((id as u32, buffer));
            }
        }
        for (id, buffer) in &kept {
            assert!(buffer.iter().all(|x| x == id), "piece {id} was overwritten");
        }
    }

    #[test]
    fn pieces_that_come_and_go_take_no_more_memory() {
        // A size of this test alone: others' pieces are not in its way.
        let len = (3 << 17) + 8;
        let mut held: Vec<_> = (0..100).map(|_| Buffer::<u32>::zeroed(len).unwrap()).collect();
        let mut places: std::collections::HashSet<_> = held.iter().map(|buffer| buffer.as_ptr()).collect();
        for turn in 0..2000 {
            let at = turn * 37 % held.len();
            held[at] = Buffer::default();
            let mut buffer = Buffer::zeroed(len).unwrap();
            assert!(buffer.iter().all(|&x| x == 0), "turn {turn}");
            buffer.fill(turn as u32 + 1);
            places.insert(buffer.as_ptr());
            held[at] = buffer;
        }
        assert_eq!(places.len(), 100);
        // All chunks but perhaps the current one are unmapped with their last piece.
        drop(held);
        drop(Buffer::<u32>::zeroed((3 << 17) + 9).unwrap());
        let kept = FREED
            .lock()
            .unwrap()
            .iter()
            .filter(|piece| piece.bytes == 4 * len && piece.chunk.strong_count() > 0)
            .count();
        assert!(kept * 4 * len <= 2 * CHUNK, "{kept} pieces are kept");
    }

    #[test]
    fn impossible_sizes_are_an_error_and_not_an_abort() {
        for len in [usize::MAX, usize::MAX / 8, 1 << 60, 1 << 47] {
            assert!(Buffer::<u64>::zeroed(len).is_err(), "{len}");
        }
    }

    #[test]
    fn reserve_grows_and_never_shrinks() {
        let mut buffer = Buffer::<u8>::default();
        assert!(buffer.is_empty());
        buffer.reserve(100).unwrap();
        buffer.reserve(10).unwrap();
        assert_eq!(buffer.len(), 100);
    }
}
