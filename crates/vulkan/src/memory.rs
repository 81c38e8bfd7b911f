//! Buffers, and the memory that they lie in. Drivers give some 4,000 pieces of memory, and a mixture of experts has
//! more matrices, so small buffers share pieces.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ash::vk;
use kernels::OutOfMemory;

use crate::driver::{Driver, locked};

/// Bytes of a piece that buffers share, and of the largest of these.
const SHARED: u64 = 64 << 20;
const LARGEST: u64 = 16 << 20;

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the device's memory; mapped where the host reaches that at no cost.
    Device,
    /// In the device's memory, as if the host did not reach it: for tests of staging.
    Apart,
    /// In the host's memory, which the device reaches.
    Host,
}

/// The type of memory for a buffer, of those that it may have.
fn memory_type(memory: &vk::PhysicalDeviceMemoryProperties, allowed: u32, place: Place) -> Option<u32> {
    use vk::MemoryPropertyFlags as Flags;
    let mapped = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    // The first that has all is taken.
    let wanted: &[Flags] = match place {
        // Memory of the device that the host may write needs no staging.
        Place::Device => &[Flags::DEVICE_LOCAL | mapped, Flags::DEVICE_LOCAL, Flags::empty()],
        Place::Apart => &[Flags::DEVICE_LOCAL, Flags::empty()],
        Place::Host => &[mapped | Flags::HOST_CACHED, mapped],
    };
    let types = &memory.memory_types[..memory.memory_type_count as usize];
    let heap_of = |kind: &vk::MemoryType| &memory.memory_heaps[kind.heap_index as usize];
    let largest = memory.memory_heaps.iter().map(|heap| heap.size).max().unwrap_or(0);
    wanted.iter().find_map(|flags| {
        let fits = |(index, kind): &(usize, &vk::MemoryType)| {
            // A window of 256 MiB into the device's memory is not where weights go.
            let is_window = place == Place::Device
                && kind.property_flags.contains(mapped)
                && heap_of(kind).size < 1 << 30
                && largest > heap_of(kind).size;
            allowed >> index & 1 == 1 && kind.property_flags.contains(*flags) && !is_window
        };
        types.iter().enumerate().find(fits).map(|(index, _)| index as u32)
    })
}

/// A piece of memory.
pub(crate) struct Piece {
    memory: vk::DeviceMemory,
    kind: u32,
    start: Option<NonNull<u8>>,
    free: Mutex<FreeParts>,
    driver: Arc<Driver>,
}

// SAFETY: the handle may be used by any thread. Mapped bytes are read and written through methods of buffers whose
// callers say that no operation of the device is under way on them.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

impl Piece {
    fn new(driver: &Arc<Driver>, bytes: u64, kind: u32, is_mapped: bool) -> Result<Piece, OutOfMemory> {
        let short = OutOfMemory { bytes: bytes as usize };
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(kind);
        let info = info.push_next(&mut flags);
        driver.before("vkAllocateMemory").map_err(|_| short)?;
        // SAFETY: (and below) the device is alive, structures live until the calls return, and the memory is freed once.
        let memory = unsafe { driver.device.allocate_memory(&info, None) }.map_err(|_| short)?;
        let mut piece =
            Piece { memory, kind, start: None, free: Mutex::new(FreeParts::new(bytes)), driver: driver.clone() };
        if is_mapped {
            // SAFETY: as above; the memory is not mapped yet.
            let start = unsafe { driver.device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) };
            piece.start = NonNull::new(start.map_err(|_| short)?.cast());
        }
        Ok(piece)
    }

    /// One with room for a buffer, and where: others may share it if it is small.
    fn with_room(
        driver: &Arc<Driver>,
        needed: &vk::MemoryRequirements,
        kind: u32,
        (is_mapped, is_shared): (bool, bool),
    ) -> Result<(Arc<Piece>, u64), OutOfMemory> {
        let take = |piece: Arc<Piece>| {
            let at = locked(&piece.free).take(needed.size, needed.alignment)?;
            Some((piece, at))
        };
        if !is_shared || needed.size > LARGEST {
            let own = Arc::new(Piece::new(driver, needed.size, kind, is_mapped)?);
            return Ok(take(own).expect("it is as large"));
        }
        let mut pieces = locked(&driver.pieces);
        pieces.retain(|piece| piece.strong_count() > 0);
        let same = |piece: &Arc<Piece>| piece.kind == kind && piece.start.is_some() == is_mapped;
        if let Some(found) = pieces.iter().filter_map(Weak::upgrade).filter(same).find_map(take) {
            return Ok(found);
        }
        // A card that is almost full may have room for it alone.
        let new =
            Piece::new(driver, SHARED, kind, is_mapped).or_else(|_| Piece::new(driver, needed.size, kind, is_mapped));
        let new = Arc::new(new?);
        pieces.push(Arc::downgrade(&new));
        Ok(take(new).expect("it is as large at least"))
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: no buffer lies in it; freeing unmaps.
        unsafe { self.driver.device.free_memory(self.memory, None) };
    }
}

/// Parts of a piece that no buffer has, rising, none next to another.
struct FreeParts(Vec<Range<u64>>);

impl FreeParts {
    /// All of a piece.
    fn new(bytes: u64) -> FreeParts {
        FreeParts(std::iter::once(0..bytes).collect())
    }

    /// Takes the first that is large enough, and what it begins with.
    fn take(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let fits = |part: &Range<u64>| part.start.next_multiple_of(alignment) + bytes <= part.end;
        let index = self.0.iter().position(fits)?;
        let Range { start, end } = self.0[index].clone();
        let at = start.next_multiple_of(alignment);
        let rest = [start..at, at + bytes..end].into_iter().filter(|part| !part.is_empty());
        self.0.splice(index..=index, rest);
        Some(at)
    }

    fn give_back(&mut self, part: Range<u64>) {
        let index = self.0.partition_point(|other| other.start < part.start);
        self.0.insert(index, part);
        self.0.dedup_by(|next, before| {
            let touch = before.end == next.start;
            if touch {
                before.end = next.end;
            }
            touch
        });
    }
}

/// Some memory.
pub(crate) struct Buffer {
    pub(crate) handle: vk::Buffer,
    /// No other has it, before or after: a handle comes again.
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    /// As kernels see it.
    pub(crate) address: u64,
    /// Others whose addresses are in it.
    pub(crate) holds: Vec<Arc<Buffer>>,
    /// Where it lies, once it does.
    part: Option<(Arc<Piece>, Range<u64>)>,
    driver: Arc<Driver>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.bytes, self.driver.listed.name)
    }
}

impl Buffer {
    /// At least a word long. Its content is undefined.
    pub(crate) fn new(driver: &Arc<Driver>, bytes: u64, place: Place) -> Result<Buffer, OutOfMemory> {
        let short = OutOfMemory { bytes: bytes as usize };
        let bytes = bytes.max(4).next_multiple_of(4);
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        let device = &driver.device;
        driver.before("vkCreateBuffer").map_err(|_| short)?;
        // SAFETY: (to the end) the device is alive, structures live until the calls return, and what was made is destroyed
        // once, here or in `drop`.
        let handle = unsafe { device.create_buffer(&info, None) }.map_err(|_| short)?;
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let mut buffer =
            Buffer { handle, number, bytes, address: 0, holds: Vec::new(), part: None, driver: driver.clone() };
        // SAFETY: as above.
        let needed = unsafe { device.get_buffer_memory_requirements(handle) };
        let kind = memory_type(&driver.memory, needed.memory_type_bits, place).ok_or(short)?;
        let flags = driver.memory.memory_types[kind as usize].property_flags;
        // What is not coherent would have to be flushed.
        let reached = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let is_mapped = place != Place::Apart && flags.contains(reached);
        let (piece, at) =
            Piece::with_room(driver, &needed, kind, (is_mapped, place != Place::Host)).map_err(|_| short)?;
        let memory = piece.memory;
        buffer.part = Some((piece, at..at + needed.size));
        // SAFETY: as above; the buffer is not bound yet, and no other has this part.
        unsafe { device.bind_buffer_memory(handle, memory, at) }.map_err(|_| short)?;
        let info = vk::BufferDeviceAddressInfo::default().buffer(handle);
        // SAFETY: as above; the buffer and its memory are made for that.
        buffer.address = unsafe { device.get_buffer_device_address(&info) };
        Ok(buffer)
    }

    /// Its first byte, where the host reaches it.
    fn start(&self) -> Option<NonNull<u8>> {
        let (piece, part) = self.part.as_ref()?;
        // SAFETY: the part is in what is mapped.
        piece.start.map(|start| unsafe { start.add(part.start as usize) })
    }

    pub(crate) fn is_mapped(&self) -> bool {
        self.start().is_some()
    }

    /// Its bytes, where the host reaches them.
    ///
    /// # Safety
    /// No operation that writes them is under way.
    pub(crate) unsafe fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: `bytes` are mapped as long as this lives, and by the caller's word nothing writes them.
        self.start().map(|start| unsafe { std::slice::from_raw_parts(start.as_ptr(), self.bytes as usize) })
    }

    /// Writes some of them. False: the host does not reach them.
    ///
    /// # Safety
    /// No operation on these bytes is under way, and no other thread reads or writes them.
    pub(crate) unsafe fn write(&self, at: usize, from: &[u8]) -> bool {
        assert!(at + from.len() <= self.bytes as usize, "{} bytes at {at} of {}", from.len(), self.bytes);
        let Some(start) = self.start() else { return false };
        // SAFETY: in range as checked, mapped as long as this lives, and alone by the caller's word.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), start.as_ptr().add(at), from.len()) };
        true
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: what is under way holds the buffer, so nothing is.
        unsafe { self.driver.device.destroy_buffer(self.handle, None) };
        if let Some((piece, part)) = self.part.take() {
            locked(&piece.free).give_back(part);
        }
    }
}
