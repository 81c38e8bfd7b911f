//! Operations in the order of the calls: each is written into a command buffer behind a barrier, and the command
//! buffers go to one queue.
//!
//! ```text
//! dispatch, copy    written into the open frame; whatever it uses is kept until the frame is done
//! submit            the frame goes to the queue; the timeline counts it
//! wait              sleeps until the timeline has counted the last one; frames and all they keep are free again
//! ```
//! The first call that fails marks the device as lost: operations do nothing from then on, and every door says why.

use ash::vk;
use std::collections::VecDeque;
use std::sync::Arc;

use kernels::{DeviceError, OutOfMemory};

use crate::driver::{Buffer, Driver, MAX_BUFFERS, PUSH_BYTES, Place, Timeline, VulkanError, failed};
use crate::pipelines::Pipeline;

/// Descriptor sets of one pool.
const SETS: usize = 256;
/// Bytes that pass through a staging buffer at a time.
const STAGE_BYTES: usize = 16 << 20;

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

/// Commands that go to the queue together.
struct Frame {
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    pools: Vec<vk::DescriptorPool>,
    /// Sets by their number of buffers, and how many of each are taken. They stay: the next frame like this one finds
    /// them bound as it binds them.
    sets: [Vec<Set>; MAX_BUFFERS],
    taken: [usize; MAX_BUFFERS],
    /// What the commands use.
    kept: Vec<Arc<Buffer>>,
    /// Value of the timeline when it is done.
    value: u64,
}

/// A descriptor set, and the number, place and bytes of each buffer that it is bound to.
struct Set {
    handle: vk::DescriptorSet,
    bound: [(u64, u64, u64); MAX_BUFFERS],
}

/// What was done since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct OperationCounts {
    /// Kernels and copies.
    pub operations: u64,
    /// Times that some went to the queue.
    pub submissions: u64,
    /// Bytes of weights that products were given.
    pub weight_bytes: u64,
    /// Bytes that the host read.
    pub read_bytes: u64,
    /// Calls of the driver that made something, by all users of the device.
    pub made: u64,
}

pub(crate) struct Recorder {
    driver: Arc<Driver>,
    open: Option<Frame>,
    under_way: VecDeque<Frame>,
    spare: Vec<Frame>,
    pub(crate) timeline: Arc<Timeline>,
    /// What is read passes through it where the host does not reach the device's memory.
    stage: Option<Arc<Buffer>>,
    pub(crate) counts: OperationCounts,
    has_barriers: bool,
}

impl Recorder {
    pub(crate) fn new(timeline: Timeline, has_barriers: bool) -> Recorder {
        Recorder {
            driver: timeline.driver.clone(),
            open: None,
            under_way: VecDeque::new(),
            spare: Vec::new(),
            timeline: Arc::new(timeline),
            stage: None,
            counts: OperationCounts::default(),
            has_barriers,
        }
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

    /// Records a kernel over `groups` workgroups. `push`: numbers for it, at most 32.
    pub(crate) fn dispatch(&mut self, kernel: &Pipeline, bindings: &[Binding<'_>], push: &[u32], groups: [u32; 3]) {
        assert!(bindings.len() == kernel.buffers && bindings.len() <= MAX_BUFFERS, "{} buffers", bindings.len());
        assert!(push.len() * 4 <= PUSH_BYTES, "{} numbers", push.len());
        if groups.contains(&0) {
            return;
        }
        self.attempt(|this| {
            let (driver, has_barriers) = (this.driver.clone(), this.has_barriers);
            let frame = this.frame()?;
            let set = frame.set(&driver, bindings)?;
            let mut bytes = [0; PUSH_BYTES];
            for (to, number) in bytes.as_chunks_mut().0.iter_mut().zip(push) {
                *to = number.to_ne_bytes();
            }
            let (device, commands) = (&driver.device, frame.commands);
            if has_barriers {
                barrier(device, commands, false);
            }
            let layout = driver.layouts[kernel.buffers - 1].pipeline;
            // SAFETY: the command buffer is being recorded, and what it refers to is kept in the frame until it is done.
            unsafe {
                device.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, kernel.handle);
                let point = vk::PipelineBindPoint::COMPUTE;
                device.cmd_bind_descriptor_sets(commands, point, layout, 0, &[set], &[]);
                if !push.is_empty() {
                    let stage = vk::ShaderStageFlags::COMPUTE;
                    device.cmd_push_constants(commands, layout, stage, 0, &bytes[..push.len() * 4]);
                }
                device.cmd_dispatch(commands, groups[0], groups[1], groups[2]);
            }
            frame.kept.extend(bindings.iter().map(|binding| binding.buffer.clone()));
            this.counts.operations += 1;
            Ok(())
        });
    }

    /// Records a copy of bytes between buffers: where from, where to, and how many.
    pub(crate) fn copy(
        &mut self,
        from: &Arc<Buffer>,
        to: &Arc<Buffer>,
        (src_offset, dst_offset, size): (u64, u64, u64),
    ) {
        self.attempt(|this| {
            let driver = this.driver.clone();
            let frame = this.frame()?;
            let regions = [vk::BufferCopy { src_offset, dst_offset, size }];
            barrier(&driver.device, frame.commands, false);
            // SAFETY: the command buffer is being recorded, and both buffers are kept until it is done.
            unsafe { driver.device.cmd_copy_buffer(frame.commands, from.handle, to.handle, &regions) };
            frame.kept.extend([from.clone(), to.clone()]);
            this.counts.operations += 1;
            Ok(())
        });
    }

    /// Records zeros for the first bytes of a buffer, a multiple of 4.
    pub(crate) fn clear(&mut self, buffer: &Arc<Buffer>, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.attempt(|this| {
            let driver = this.driver.clone();
            let frame = this.frame()?;
            barrier(&driver.device, frame.commands, false);
            // SAFETY: as in `copy`.
            unsafe { driver.device.cmd_fill_buffer(frame.commands, buffer.handle, 0, bytes, 0) };
            frame.kept.push(buffer.clone());
            this.counts.operations += 1;
            Ok(())
        });
    }

    /// What was recorded goes to the queue.
    pub(crate) fn submit(&mut self) -> Result<(), DeviceError> {
        self.check()?;
        self.attempt(|this| {
            this.retire()?;
            let Some(mut frame) = this.open.take() else { return Ok(()) };
            let (device, value) = (&this.driver.device, this.timeline.value() + 1);
            barrier(device, frame.commands, true);
            // SAFETY: the command buffer is being recorded.
            let ended = unsafe { device.end_command_buffer(frame.commands) }.map_err(failed("vkEndCommandBuffer"));
            frame.value = value;
            let submitted = ended.and_then(|()| this.timeline.submit(frame.commands));
            // Even if that failed: what is under way is freed when the device is.
            this.under_way.push_back(frame);
            submitted?;
            this.counts.submissions += 1;
            Ok(())
        });
        self.check()
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
        while self.under_way.front().is_some_and(|frame| frame.value <= done) {
            let mut frame = self.under_way.pop_front().expect("there is one");
            frame.kept.clear();
            frame.taken = [0; MAX_BUFFERS];
            // SAFETY: the frame is done, so nothing of it is in use.
            let reset =
                unsafe { self.driver.device.reset_command_pool(frame.pool, vk::CommandPoolResetFlags::empty()) };
            // One that was not is freed with the others.
            self.spare.push(frame);
            reset.map_err(failed("vkResetCommandPool"))?;
        }
        Ok(())
    }

    /// The frame that is recorded.
    fn frame(&mut self) -> Result<&mut Frame, VulkanError> {
        if self.open.is_none() {
            let frame = match self.spare.pop() {
                Some(frame) => frame,
                None => Frame::new(&self.driver)?,
            };
            let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
            // SAFETY: the command buffer is new, or was reset.
            let begun = unsafe { self.driver.device.begin_command_buffer(frame.commands, &info) };
            // A frame that did not begin is freed with the others.
            let frame = self.open.insert(frame);
            begun.map_err(failed("vkBeginCommandBuffer"))?;
            return Ok(frame);
        }
        Ok(self.open.as_mut().expect("it is open"))
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
                let stage = match self.stage.take().filter(|stage| stage.bytes >= out.len() as u64) {
                    Some(stage) => stage,
                    None => match Buffer::new(&self.driver, out.len() as u64, Place::Host) {
                        Ok(stage) => Arc::new(stage),
                        Err(error) => {
                            self.lose("what is read from it", error);
                            return self.check();
                        }
                    },
                };
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
            let frames = (self.open.take(), std::mem::take(&mut self.under_way), std::mem::take(&mut self.spare));
            std::mem::forget((frames, self.driver.clone()));
            return;
        }
        let device = &self.driver.device;
        // SAFETY: what was submitted is done, or the device lost, before what it may use is destroyed.
        unsafe {
            for frame in self.open.take().into_iter().chain(self.under_way.drain(..)).chain(self.spare.drain(..)) {
                device.destroy_command_pool(frame.pool, None);
                frame.pools.iter().for_each(|&pool| device.destroy_descriptor_pool(pool, None));
            }
        }
    }
}

impl Frame {
    fn new(driver: &Driver) -> Result<Frame, VulkanError> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(driver.family)
            .flags(vk::CommandPoolCreateFlags::TRANSIENT);
        driver.before("vkCreateCommandPool")?;
        // SAFETY: (here and below) the device is alive, and structures live until the calls return.
        let pool = unsafe { driver.device.create_command_pool(&info, None) }.map_err(failed("vkCreateCommandPool"))?;
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        let allocated = driver.before("vkAllocateCommandBuffers").and_then(|()| {
            // SAFETY: as above.
            unsafe { driver.device.allocate_command_buffers(&info) }.map_err(failed("vkAllocateCommandBuffers"))
        });
        match allocated {
            Ok(all) => {
                let (pools, sets) = (Vec::new(), Default::default());
                let taken = [0; MAX_BUFFERS];
                Ok(Frame { pool, commands: all[0], pools, sets, taken, kept: Vec::new(), value: 0 })
            }
            Err(error) => {
                // SAFETY: nothing was made of the pool.
                unsafe { driver.device.destroy_command_pool(pool, None) };
                Err(error)
            }
        }
    }

    /// The next descriptor set of as many buffers, bound to these.
    fn set(&mut self, driver: &Driver, bindings: &[Binding<'_>]) -> Result<vk::DescriptorSet, VulkanError> {
        let kind = bindings.len() - 1;
        if self.taken[kind] == self.sets[kind].len() {
            let handle = self.new_set(driver, bindings.len())?;
            self.sets[kind].push(Set { handle, bound: [(u64::MAX, 0, 0); MAX_BUFFERS] });
        }
        let set = &mut self.sets[kind][self.taken[kind]];
        self.taken[kind] += 1;
        let infos: [_; MAX_BUFFERS] = std::array::from_fn(|index| {
            let Binding { buffer, at, bytes } = bindings.get(index).unwrap_or(&bindings[0]);
            [vk::DescriptorBufferInfo { buffer: buffer.handle, offset: *at, range: *bytes }]
        });
        let bound = std::array::from_fn(|index| {
            let Binding { buffer, at, bytes } = bindings.get(index).unwrap_or(&bindings[0]);
            (buffer.number, *at, *bytes)
        });
        if std::mem::replace(&mut set.bound, bound) != bound {
            let writes: [_; MAX_BUFFERS] = std::array::from_fn(|index| {
                vk::WriteDescriptorSet::default()
                    .dst_set(set.handle)
                    .dst_binding(index as u32)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(&infos[index])
            });
            // SAFETY: the frame that had the set before is done, and the buffers are alive.
            unsafe { driver.device.update_descriptor_sets(&writes[..bindings.len()], &[]) };
        }
        Ok(set.handle)
    }

    fn new_set(&mut self, driver: &Driver, buffers: usize) -> Result<vk::DescriptorSet, VulkanError> {
        let made = self.sets.iter().map(Vec::len).sum::<usize>();
        if made == self.pools.len() * SETS {
            let count = (SETS * MAX_BUFFERS) as u32;
            let sizes = [vk::DescriptorPoolSize { ty: vk::DescriptorType::STORAGE_BUFFER, descriptor_count: count }];
            let info = vk::DescriptorPoolCreateInfo::default().max_sets(SETS as u32).pool_sizes(&sizes);
            driver.before("vkCreateDescriptorPool")?;
            // SAFETY: the device is alive, and structures live until the call returns.
            let pool = unsafe { driver.device.create_descriptor_pool(&info, None) };
            self.pools.push(pool.map_err(failed("vkCreateDescriptorPool"))?);
        }
        let layouts = [driver.layouts[buffers - 1].sets];
        let pool = self.pools[made / SETS];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        driver.before("vkAllocateDescriptorSets")?;
        // SAFETY: as above; the pool has room, and is used by the caller alone.
        let sets = unsafe { driver.device.allocate_descriptor_sets(&info) };
        Ok(sets.map_err(failed("vkAllocateDescriptorSets"))?[0])
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
