//! Operations in the order of the calls: they are listed, and a list is a command buffer in which each is behind a
//! barrier. The command buffers go to one queue.
//!
//! ```text
//! dispatch, copy    added to the list; whatever it uses is kept until it is done
//! submit            the command buffer of an equal list that is done, or one that is recorded now, goes to the queue;
//!                   the timeline counts it
//! wait              sleeps until the timeline has counted the last one; frames and all they keep are free again
//! ```
//! What changes from step to step, tokens, positions, slots and tables, is in a step's buffer and not in the list. So a
//! step with as many rows as one of the last 64 or so records nothing. Numbers of rows are in the list: grids that a
//! device read from the step's buffer would save the recording of a new number, and cost every kernel a buffer more,
//! where one has all eight already.
//!
//! Desktops reset a device that is busy with one submission for seconds: what is counted as more work than
//! [`MULTIPLY_ADDS`] goes to the queue in several.
//!
//! The first call that fails marks the device as lost: operations do nothing from then on, and every door says why.

use ash::vk;
use std::collections::VecDeque;
use std::sync::Arc;

use kernels::{DeviceError, OutOfMemory};

use crate::driver::{Driver, MAX_BUFFERS, PUSH_BYTES, Timeline, VulkanError, failed};
use crate::memory::{Buffer, Place};
use crate::pipelines::Pipeline;

/// Descriptor sets of one pool, all of as many buffers.
const SETS: usize = 32;
/// Bytes that pass through a staging buffer at a time.
const STAGE_BYTES: usize = 16 << 20;
/// Multiply-adds after which operations are submitted: 20 ms of a device that does 0.9 T a second, and 0.9 s of one
/// that does 20 G. A token of a 7B is less than half of it.
const MULTIPLY_ADDS: u64 = 1 << 34;
/// Frames that are kept with what they do. The shortest are not worth it.
const FRAMES: usize = 64;
const SHORTEST: usize = 8;

/// Part of a buffer, as a kernel sees it.
#[derive(Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub(crate) buffer: &'a Arc<Buffer>,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

impl<'a> Binding<'a> {
    pub(crate) fn whole(buffer: &'a Arc<Buffer>) -> Binding<'a> {
        Binding { buffer, at: 0, bytes: buffer.bytes }
    }
}

/// A buffer, its number, and the part that an operation uses.
type Bound = (vk::Buffer, u64, u64, u64);

/// What is written into a command buffer. Those that are equal do the same: no other buffer ever has the number.
#[derive(Clone, Copy, PartialEq)]
struct Operation {
    what: What,
    bound: [Bound; MAX_BUFFERS],
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    /// A kernel with as many buffers and these numbers, over workgroups.
    Dispatch { kernel: vk::Pipeline, buffers: usize, push: [u32; PUSH_BYTES / 4], groups: [u32; 3] },
    /// The part of the first buffer to that of the second.
    Copy,
    /// Zeros for the part of the first buffer.
    Clear,
}

/// Commands that go to the queue together.
struct Frame {
    driver: Arc<Driver>,
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    pools: Vec<vk::DescriptorPool>,
    /// Descriptor sets by their number of buffers.
    sets: [Vec<vk::DescriptorSet>; MAX_BUFFERS],
    /// What the commands do.
    operations: Vec<Operation>,
    /// What they use, until they are done.
    kept: Vec<Arc<Buffer>>,
    /// Value of the timeline when it is done.
    value: u64,
}

/// What was done since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct OperationCounts {
    /// Kernels and copies.
    pub operations: u64,
    /// Those of them that were recorded: others were found in a command buffer.
    pub recorded: u64,
    /// Times that some went to the queue.
    pub submissions: u64,
    /// Bytes of weights that products load: once for the rows of a workgroup.
    pub weight_bytes: u64,
    /// Bytes that the host read.
    pub read_bytes: u64,
    /// Calls of the driver that made something, by all users of the device.
    pub made: u64,
}

pub(crate) struct Recorder {
    pub(crate) driver: Arc<Driver>,
    /// What goes to the queue next, what it uses, and its multiply-adds.
    open: Vec<Operation>,
    kept: Vec<Arc<Buffer>>,
    multiply_adds: u64,
    /// Multiply-adds of a submission.
    pub(crate) most: u64,
    under_way: VecDeque<Frame>,
    /// That are done. The first is used for other operations next.
    spare: VecDeque<Frame>,
    pub(crate) timeline: Arc<Timeline>,
    /// What is read passes through it where the host does not reach the device's memory.
    stage: Option<Arc<Buffer>>,
    pub(crate) counts: OperationCounts,
    has_barriers: bool,
}

impl Recorder {
    /// `most`: multiply-adds of a submission, in place of the usual number.
    pub(crate) fn new(timeline: Timeline, has_barriers: bool, most: Option<u64>) -> Recorder {
        Recorder {
            driver: timeline.driver.clone(),
            open: Vec::new(),
            kept: Vec::new(),
            multiply_adds: 0,
            most: most.unwrap_or(MULTIPLY_ADDS),
            under_way: VecDeque::new(),
            spare: VecDeque::new(),
            timeline: Arc::new(timeline),
            stage: None,
            counts: OperationCounts::default(),
            has_barriers,
        }
    }

    /// A buffer with room for these bytes, or a new one. Without memory for it the device is lost.
    pub(crate) fn at_least(&mut self, room: &mut Option<Arc<Buffer>>, bytes: u64, place: Place) -> Option<Arc<Buffer>> {
        if room.as_ref().is_none_or(|buffer| buffer.bytes < bytes) {
            // Half as much again, so that a prompt that grows does not take memory in each step; a kernel has to see all.
            let most = self.driver.listed.binding_bytes;
            let new = match bytes <= most {
                true => Buffer::new(&self.driver, (bytes + bytes / 2).min(most), place),
                false => Err(OutOfMemory { bytes: bytes as usize }),
            };
            match new {
                Ok(new) => *room = Some(Arc::new(new)),
                Err(error) => {
                    self.lose("room for a step", error);
                    return None;
                }
            }
        }
        room.clone()
    }

    /// There is no memory for what has to be: the device is of no use any more.
    pub(crate) fn lose(&mut self, what: &str, error: OutOfMemory) {
        self.timeline.lose(format!("{what}: {error}"));
    }

    /// The first failure.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.timeline.check()
    }

    /// Runs what may fail, unless something has.
    fn attempt(&mut self, work: impl FnOnce(&mut Recorder) -> Result<(), VulkanError>) {
        if self.check().is_err() {
            return;
        }
        if let Err(error) = work(self) {
            self.timeline.lose_by(error);
        }
    }

    /// Adds an operation to the list.
    fn list<'a>(&mut self, what: What, bindings: impl Iterator<Item = &'a Binding<'a>>) {
        if self.check().is_err() {
            return;
        }
        let mut operation = Operation { what, bound: [(vk::Buffer::null(), 0, 0, 0); MAX_BUFFERS] };
        for (bound, Binding { buffer, at, bytes }) in operation.bound.iter_mut().zip(bindings) {
            *bound = (buffer.handle, buffer.number, *at, *bytes);
            self.kept.push((*buffer).clone());
        }
        self.open.push(operation);
        self.counts.operations += 1;
    }

    /// A kernel over `groups` workgroups. `push`: numbers for it, at most 32.
    pub(crate) fn dispatch(
        &mut self,
        kernel: &Pipeline,
        bindings: &[Binding<'_>],
        push: impl IntoIterator<Item = u32>,
        groups: [u32; 3],
    ) {
        assert!(bindings.len() == kernel.buffers && bindings.len() <= MAX_BUFFERS, "{} buffers", bindings.len());
        if groups.contains(&0) {
            return;
        }
        let mut numbers = [0; PUSH_BYTES / 4];
        numbers.iter_mut().zip(push).for_each(|(to, number)| *to = number);
        let Ok(handle) = kernel.handle().map_err(|error| self.timeline.lose_by(error)) else { return };
        let what = What::Dispatch { kernel: handle, buffers: kernel.buffers, push: numbers, groups };
        self.list(what, bindings.iter());
    }

    /// A copy of bytes between buffers: where from, where to, and how many.
    pub(crate) fn copy(&mut self, from: &Arc<Buffer>, to: &Arc<Buffer>, (src, dst, bytes): (u64, u64, u64)) {
        let from = Binding { buffer: from, at: src, bytes };
        self.list(What::Copy, [from, Binding { buffer: to, at: dst, bytes }].iter());
    }

    /// Zeros for the first bytes of a buffer, a multiple of 4.
    pub(crate) fn clear(&mut self, buffer: &Arc<Buffer>, bytes: u64) {
        if bytes > 0 {
            self.list(What::Clear, [Binding { buffer, at: 0, bytes }].iter());
        }
    }

    /// Counts work of what was listed last. Enough of it is submitted, and what follows comes with the next submission.
    pub(crate) fn count(&mut self, multiply_adds: u64) {
        self.multiply_adds += multiply_adds;
        if self.multiply_adds >= self.most {
            // Whether that failed is told at the next door.
            let _ = self.submit();
        }
    }

    /// What was listed goes to the queue.
    pub(crate) fn submit(&mut self) -> Result<(), DeviceError> {
        self.check()?;
        self.attempt(|this| {
            this.retire()?;
            this.multiply_adds = 0;
            if this.open.is_empty() {
                return Ok(());
            }
            let mut frame = this.recorded()?;
            this.open.clear();
            frame.kept.append(&mut this.kept);
            frame.value = this.timeline.value() + 1;
            let submitted = this.timeline.submit(frame.commands);
            // Even if that failed: what is under way is freed when the device is.
            this.under_way.push_back(frame);
            submitted?;
            this.counts.submissions += 1;
            Ok(())
        });
        self.check()
    }

    /// A frame with what is listed.
    fn recorded(&mut self) -> Result<Frame, VulkanError> {
        let same = self.spare.iter().rposition(|frame| frame.operations == self.open);
        if let Some(frame) = same.and_then(|index| self.spare.remove(index)) {
            return Ok(frame);
        }
        let is_used_up = |frame: &Frame| frame.operations.len() < SHORTEST || self.spare.len() >= FRAMES;
        let mut frame = match self.spare.front().is_some_and(is_used_up) {
            true => self.spare.pop_front().expect("there is one"),
            false => Frame::new(&self.driver)?,
        };
        std::mem::swap(&mut frame.operations, &mut self.open);
        frame.record(self.has_barriers)?;
        self.counts.recorded += frame.operations.len() as u64;
        Ok(frame)
    }

    /// Submits, and sleeps until all is done.
    pub(crate) fn wait(&mut self) -> Result<(), DeviceError> {
        self.submit()?;
        self.attempt(|this| {
            this.driver.before("vkWaitSemaphores")?;
            this.timeline.wait(this.timeline.value())?;
            this.retire()
        });
        self.check()
    }

    /// Frames that are done are spare again.
    fn retire(&mut self) -> Result<(), VulkanError> {
        if self.under_way.is_empty() {
            return Ok(());
        }
        let done = self.timeline.done()?;
        while let Some(mut frame) = self.under_way.pop_front_if(|frame| frame.value <= done) {
            frame.kept.clear();
            match frame.operations.len() < SHORTEST {
                true => self.spare.push_front(frame),
                false => self.spare.push_back(frame),
            }
        }
        Ok(())
    }

    /// Copies bytes of the host to a place in a buffer that no operation uses, and waits for it where they have to be
    /// staged.
    pub(crate) fn upload(&mut self, to: &Arc<Buffer>, at: u64, bytes: &[u8]) -> Result<(), VulkanError> {
        // SAFETY: by the caller's word.
        if unsafe { to.write(at as usize, bytes) } {
            return Ok(());
        }
        let stage = Arc::new(Buffer::new(&self.driver, bytes.len().min(STAGE_BYTES) as u64, Place::Host)?);
        for (index, part) in bytes.chunks(STAGE_BYTES).enumerate() {
            // SAFETY: what was copied from it before is done.
            unsafe { stage.write(0, part) };
            let to_at = at + (index * STAGE_BYTES) as u64;
            // The last bytes of a word come with it: buffers are whole words.
            let len = (part.len() as u64).next_multiple_of(4).min(to.bytes - to_at).min(stage.bytes);
            self.copy(&stage, to, (0, to_at, len));
            self.wait()?;
        }
        Ok(())
    }

    /// Copies bytes of a buffer to the host, behind all that was recorded.
    pub(crate) fn download(&mut self, from: &Arc<Buffer>, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        if out.is_empty() {
            return self.check();
        }
        let (source, first) = match from.is_mapped() {
            true => (from.clone(), at),
            false => {
                let mut stage = self.stage.take();
                let Some(stage) = self.at_least(&mut stage, out.len() as u64, Place::Host) else { return self.check() };
                self.stage = Some(stage.clone());
                self.copy(from, &stage, (at, 0, out.len() as u64));
                (stage, 0)
            }
        };
        self.wait()?;
        // SAFETY: all that was submitted is done, and what comes later needs the recorder.
        let bytes = unsafe { source.bytes() }.expect("it is mapped");
        out.copy_from_slice(&bytes[first as usize..][..out.len()]);
        self.counts.read_bytes += out.len() as u64;
        Ok(())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if !self.driver.is_stuck() {
            // A lost device says so here. Others may submit meanwhile: only what came from here is waited for.
            let _ = self.timeline.wait(self.timeline.value());
        }
        if self.driver.is_stuck() {
            // It may use all of this for good; the standby does not wait for it.
            let frames = (std::mem::take(&mut self.under_way), std::mem::take(&mut self.spare));
            std::mem::forget((frames, self.driver.clone()));
        }
    }
}

impl Frame {
    fn new(driver: &Arc<Driver>) -> Result<Frame, VulkanError> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(driver.family);
        // SAFETY: (here and below) the device is alive, and structures live until the calls return.
        let pool = driver.make("vkCreateCommandPool", || unsafe { driver.device.create_command_pool(&info, None) })?;
        let (commands, (pools, sets, operations, kept)) = (vk::CommandBuffer::null(), Default::default());
        let mut frame = Frame { driver: driver.clone(), pool, commands, pools, sets, operations, kept, value: 0 };
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: as above.
        let make = || unsafe { driver.device.allocate_command_buffers(&info) };
        frame.commands = driver.make("vkAllocateCommandBuffers", make)?[0];
        Ok(frame)
    }

    /// Records its operations in place of what its commands did before.
    fn record(&mut self, has_barriers: bool) -> Result<(), VulkanError> {
        let (driver, commands, mut taken) = (self.driver.clone(), self.commands, [0; MAX_BUFFERS]);
        let (device, info) = (&driver.device, vk::CommandBufferBeginInfo::default());
        // SAFETY: the frame is new or done, so nothing of it is in use.
        unsafe { device.reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty()) }
            .map_err(failed("vkResetCommandPool"))?;
        // SAFETY: as above.
        unsafe { device.begin_command_buffer(commands, &info) }.map_err(failed("vkBeginCommandBuffer"))?;
        for index in 0..self.operations.len() {
            let Operation { what, bound } = self.operations[index];
            if has_barriers || !matches!(what, What::Dispatch { .. }) {
                barrier(device, commands, false);
            }
            let [(from, _, src_offset, size), (to, _, dst_offset, _), ..] = bound;
            match what {
                What::Dispatch { kernel, buffers, push, groups: [x, y, z] } => {
                    let set = self.set(&bound[..buffers], &mut taken[buffers - 1])?;
                    let (layout, point) = (driver.layouts[buffers - 1].pipeline, vk::PipelineBindPoint::COMPUTE);
                    let (stage, push) = (vk::ShaderStageFlags::COMPUTE, push.map(u32::to_ne_bytes));
                    // SAFETY: the command buffer is being recorded. What it refers to is kept until it is done, and
                    // without that it is not submitted again.
                    unsafe {
                        device.cmd_bind_pipeline(commands, point, kernel);
                        device.cmd_bind_descriptor_sets(commands, point, layout, 0, &[set], &[]);
                        device.cmd_push_constants(commands, layout, stage, 0, push.as_flattened());
                        device.cmd_dispatch(commands, x, y, z);
                    }
                }
                What::Copy => {
                    let regions = [vk::BufferCopy { src_offset, dst_offset, size }];
                    // SAFETY: as above.
                    unsafe { device.cmd_copy_buffer(commands, from, to, &regions) };
                }
                // SAFETY: as above.
                What::Clear => unsafe { device.cmd_fill_buffer(commands, from, src_offset, size, 0) },
            }
        }
        barrier(device, commands, true);
        // SAFETY: the command buffer is being recorded.
        unsafe { device.end_command_buffer(commands) }.map_err(failed("vkEndCommandBuffer"))
    }

    /// The next descriptor set of as many buffers, bound to these.
    fn set(&mut self, bound: &[Bound], taken: &mut usize) -> Result<vk::DescriptorSet, VulkanError> {
        if *taken == self.sets[bound.len() - 1].len() {
            self.add_sets(bound.len())?;
        }
        let set = self.sets[bound.len() - 1][*taken];
        *taken += 1;
        for (index, &(buffer, _, offset, range)) in bound.iter().enumerate() {
            let info = [vk::DescriptorBufferInfo { buffer, offset, range }];
            let write = vk::WriteDescriptorSet::default().dst_set(set).dst_binding(index as u32);
            let write = write.descriptor_type(vk::DescriptorType::STORAGE_BUFFER).buffer_info(&info);
            // SAFETY: what had the set before is done, and the buffer is alive.
            unsafe { self.driver.device.update_descriptor_sets(&[write], &[]) };
        }
        Ok(set)
    }

    fn add_sets(&mut self, buffers: usize) -> Result<(), VulkanError> {
        let (driver, descriptor_count) = (&self.driver, (SETS * buffers) as u32);
        let sizes = [vk::DescriptorPoolSize { ty: vk::DescriptorType::STORAGE_BUFFER, descriptor_count }];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(SETS as u32).pool_sizes(&sizes);
        // SAFETY: the device is alive, and structures live until the call returns.
        let make = || unsafe { driver.device.create_descriptor_pool(&info, None) };
        let pool = driver.make("vkCreateDescriptorPool", make)?;
        self.pools.push(pool);
        let layouts = [driver.layouts[buffers - 1].sets; SETS];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        // SAFETY: as above; the pool has room, and is used by the caller alone.
        let make = || unsafe { driver.device.allocate_descriptor_sets(&info) };
        self.sets[buffers - 1].extend(driver.make("vkAllocateDescriptorSets", make)?);
        Ok(())
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: what was submitted is done, or the device lost, before what it may use is destroyed.
        unsafe {
            self.driver.device.destroy_command_pool(self.pool, None);
            self.pools.iter().for_each(|&pool| self.driver.device.destroy_descriptor_pool(pool, None));
        }
    }
}

/// What was recorded before is done, and seen, before what comes after: operations, or the host that waits for them.
fn barrier(device: &ash::Device, commands: vk::CommandBuffer, is_last: bool) {
    use vk::{AccessFlags as Access, PipelineStageFlags as Stage};
    let computes = Stage::COMPUTE_SHADER | Stage::TRANSFER;
    let written = Access::SHADER_WRITE | Access::TRANSFER_WRITE;
    let (by, seen) = match is_last {
        true => (Stage::HOST, Access::HOST_READ),
        false => (computes, written | Access::SHADER_READ | Access::TRANSFER_READ),
    };
    let all = [vk::MemoryBarrier::default().src_access_mask(written).dst_access_mask(seen)];
    // SAFETY: the command buffer is being recorded.
    unsafe { device.cmd_pipeline_barrier(commands, computes, by, vk::DependencyFlags::empty(), &all, &[], &[]) };
}
