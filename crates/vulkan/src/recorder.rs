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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kernels::{DeviceError, OutOfMemory};

use crate::driver::{Buffer, Driver, MAX_BUFFERS, PUSH_BYTES, Place, VulkanError, failed};
use crate::pipelines::Pipeline;

/// Descriptor sets of one pool.
const SETS: u32 = 256;
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
    sets: Vec<vk::DescriptorPool>,
    /// Sets taken from the pools.
    taken: u32,
    /// What the commands use.
    kept: Vec<Arc<Buffer>>,
    /// Value of the timeline when it is done.
    value: u64,
}

/// What was submitted, and whether the device is lost: for those that wait without the recorder.
#[derive(Debug, Default)]
pub(crate) struct Submitted {
    value: AtomicU64,
    lost: OnceLock<DeviceError>,
}

impl Submitted {
    /// The last value of the timeline that was submitted.
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    /// The device is lost, if it was not; the first failure counts.
    pub(crate) fn lose(&self, error: DeviceError) {
        let _ = self.lost.set(error);
    }

    /// The first failure.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

pub(crate) struct Recorder {
    driver: Arc<Driver>,
    open: Option<Frame>,
    under_way: VecDeque<Frame>,
    spare: Vec<Frame>,
    submitted: Arc<Submitted>,
    /// Operations since the start, for tests.
    operations: u64,
    submissions: u64,
}

impl Recorder {
    pub(crate) fn new(driver: Arc<Driver>) -> Recorder {
        Recorder {
            driver,
            open: None,
            under_way: VecDeque::new(),
            spare: Vec::new(),
            submitted: Arc::default(),
            operations: 0,
            submissions: 0,
        }
    }

    pub(crate) fn submitted(&self) -> Arc<Submitted> {
        self.submitted.clone()
    }

    /// Value of the timeline when what is recorded now is done.
    pub(crate) fn next_value(&self) -> u64 {
        self.submitted.value() + 1
    }

    /// Operations and submissions since the start.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.operations, self.submissions)
    }

    /// There is no memory for what has to be: the device is of no use any more.
    pub(crate) fn lose(&mut self, what: &str, error: OutOfMemory) {
        let (device, what) = (self.driver.listed.to_string(), format!("{what}: {error}"));
        self.submitted.lose(DeviceError::Lost { device, what });
    }

    /// The first failure.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.submitted.check()
    }

    /// Runs what may fail, unless something has.
    fn attempt(&mut self, work: impl FnOnce(&mut Recorder) -> Result<(), VulkanError>) {
        if self.check().is_err() {
            return;
        }
        if let Err(error) = work(self) {
            self.submitted.lose(match error {
                VulkanError::Call { call, error } => self.driver.lost(call, error),
                VulkanError::Lost(error) => error,
                other => DeviceError::Lost { device: self.driver.listed.to_string(), what: other.to_string() },
            });
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
            let driver = this.driver.clone();
            let frame = this.frame()?;
            let set = frame.set(&driver, kernel)?;
            let infos: [_; MAX_BUFFERS] = std::array::from_fn(|index| {
                let binding = bindings.get(index).unwrap_or(&bindings[0]);
                [vk::DescriptorBufferInfo { buffer: binding.buffer.handle, offset: binding.at, range: binding.bytes }]
            });
            let writes: [_; MAX_BUFFERS] = std::array::from_fn(|index| {
                vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(index as u32)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(&infos[index])
            });
            let mut bytes = [0; PUSH_BYTES];
            for (to, number) in bytes.as_chunks_mut().0.iter_mut().zip(push) {
                *to = number.to_ne_bytes();
            }
            let (device, commands) = (&driver.device, frame.commands);
            barrier(device, commands);
            // SAFETY: the set is not in use, the command buffer is being recorded, and what it refers to is kept in the
            // frame until it is done.
            unsafe {
                device.update_descriptor_sets(&writes[..bindings.len()], &[]);
                device.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, kernel.handle);
                let point = vk::PipelineBindPoint::COMPUTE;
                device.cmd_bind_descriptor_sets(commands, point, kernel.layout, 0, &[set], &[]);
                if !push.is_empty() {
                    let stage = vk::ShaderStageFlags::COMPUTE;
                    device.cmd_push_constants(commands, kernel.layout, stage, 0, &bytes[..push.len() * 4]);
                }
                device.cmd_dispatch(commands, groups[0], groups[1], groups[2]);
            }
            frame.kept.extend(bindings.iter().map(|binding| binding.buffer.clone()));
            this.operations += 1;
            Ok(())
        });
    }

    /// Records a copy of bytes between buffers, `(from, to, bytes)` each; parts of one call do not overlap.
    pub(crate) fn copy(&mut self, from: &Arc<Buffer>, to: &Arc<Buffer>, parts: &[(u64, u64, u64)]) {
        self.attempt(|this| {
            let driver = this.driver.clone();
            let frame = this.frame()?;
            let region =
                |&(src_offset, dst_offset, size): &(u64, u64, u64)| vk::BufferCopy { src_offset, dst_offset, size };
            let regions: Vec<_> = parts.iter().map(region).collect();
            barrier(&driver.device, frame.commands);
            // SAFETY: the command buffer is being recorded, and both buffers are kept until it is done.
            unsafe { driver.device.cmd_copy_buffer(frame.commands, from.handle, to.handle, &regions) };
            frame.kept.extend([from.clone(), to.clone()]);
            this.operations += 1;
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
            barrier(&driver.device, frame.commands);
            // SAFETY: as in `copy`.
            unsafe { driver.device.cmd_fill_buffer(frame.commands, buffer.handle, 0, bytes, 0) };
            frame.kept.push(buffer.clone());
            this.operations += 1;
            Ok(())
        });
    }

    /// What was recorded goes to the queue.
    pub(crate) fn submit(&mut self) -> Result<(), DeviceError> {
        self.check()?;
        self.attempt(|this| {
            this.retire()?;
            let Some(mut frame) = this.open.take() else { return Ok(()) };
            let (driver, value) = (this.driver.clone(), this.next_value());
            to_host(&driver.device, frame.commands);
            // SAFETY: the command buffer is being recorded.
            unsafe { driver.device.end_command_buffer(frame.commands) }.map_err(failed("vkEndCommandBuffer"))?;
            frame.value = value;
            let submitted = driver.submit(frame.commands, value);
            // Even if that failed: what is under way is freed when the device is.
            this.under_way.push_back(frame);
            submitted?;
            this.submissions += 1;
            this.submitted.value.store(value, Ordering::Release);
            Ok(())
        });
        self.check()
    }

    /// Submits, and sleeps until all is done.
    pub(crate) fn wait(&mut self) -> Result<(), DeviceError> {
        self.submit()?;
        self.attempt(|this| {
            this.driver.wait(this.submitted.value())?;
            this.retire()
        });
        self.check()
    }

    /// Frames that are done are spare again.
    fn retire(&mut self) -> Result<(), VulkanError> {
        if self.under_way.is_empty() {
            return Ok(());
        }
        let done = self.driver.done()?;
        while self.under_way.front().is_some_and(|frame| frame.value <= done) {
            let mut frame = self.under_way.pop_front().expect("there is one");
            frame.kept.clear();
            frame.taken = 0;
            let device = &self.driver.device;
            // SAFETY: the frame is done, so nothing of it is in use.
            unsafe {
                for &sets in &frame.sets {
                    device
                        .reset_descriptor_pool(sets, vk::DescriptorPoolResetFlags::empty())
                        .map_err(failed("vkResetDescriptorPool"))?;
                }
                device
                    .reset_command_pool(frame.pool, vk::CommandPoolResetFlags::empty())
                    .map_err(failed("vkResetCommandPool"))?;
            }
            self.spare.push(frame);
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
            self.copy(&stage, to, &[(0, to_at, len)]);
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
                let stage = match Buffer::new(&self.driver, out.len() as u64, Place::Host) {
                    Ok(stage) => Arc::new(stage),
                    Err(error) => {
                        self.lose("what is read from it", error);
                        return self.check();
                    }
                };
                self.copy(from, &stage, &[(at, 0, out.len() as u64)]);
                (stage, 0)
            }
        };
        self.wait()?;
        // SAFETY: all that was submitted is done, and what comes later needs the recorder.
        let bytes = unsafe { source.bytes() }.expect("it is mapped");
        out.copy_from_slice(&bytes[first as usize..][..out.len()]);
        Ok(())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.driver.is_stuck() {
            // It may use all of this for good; the standby does not wait for it.
            let frames = (self.open.take(), std::mem::take(&mut self.under_way), std::mem::take(&mut self.spare));
            std::mem::forget((frames, self.driver.clone()));
            return;
        }
        let device = &self.driver.device;
        // SAFETY: the device is idle, or lost, before what it may use is destroyed.
        unsafe {
            // A lost device says so here.
            let _ = device.device_wait_idle();
            for frame in self.open.take().into_iter().chain(self.under_way.drain(..)).chain(self.spare.drain(..)) {
                device.destroy_command_pool(frame.pool, None);
                frame.sets.iter().for_each(|&sets| device.destroy_descriptor_pool(sets, None));
            }
        }
    }
}

impl Frame {
    fn new(driver: &Driver) -> Result<Frame, VulkanError> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(driver.family)
            .flags(vk::CommandPoolCreateFlags::TRANSIENT);
        // SAFETY: (here and below) the device is alive, and structures live until the calls return.
        let pool = unsafe { driver.device.create_command_pool(&info, None) }.map_err(failed("vkCreateCommandPool"))?;
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: as above.
        match unsafe { driver.device.allocate_command_buffers(&info) } {
            Ok(all) => Ok(Frame { pool, commands: all[0], sets: Vec::new(), taken: 0, kept: Vec::new(), value: 0 }),
            Err(error) => {
                // SAFETY: nothing was made of the pool.
                unsafe { driver.device.destroy_command_pool(pool, None) };
                Err(failed("vkAllocateCommandBuffers")(error))
            }
        }
    }

    /// The next descriptor set, for this kernel.
    fn set(&mut self, driver: &Driver, kernel: &Pipeline) -> Result<vk::DescriptorSet, VulkanError> {
        if (self.taken / SETS) as usize == self.sets.len() {
            let buffers = SETS * MAX_BUFFERS as u32;
            let sizes = [vk::DescriptorPoolSize { ty: vk::DescriptorType::STORAGE_BUFFER, descriptor_count: buffers }];
            let info = vk::DescriptorPoolCreateInfo::default().max_sets(SETS).pool_sizes(&sizes);
            // SAFETY: the device is alive, and structures live until the call returns.
            let sets = unsafe { driver.device.create_descriptor_pool(&info, None) };
            self.sets.push(sets.map_err(failed("vkCreateDescriptorPool"))?);
        }
        let layouts = [kernel.sets];
        let pool = self.sets[(self.taken / SETS) as usize];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        // SAFETY: as above; the pool has room, and is used by the caller alone.
        let sets = unsafe { driver.device.allocate_descriptor_sets(&info) };
        let sets = sets.map_err(failed("vkAllocateDescriptorSets"))?;
        self.taken += 1;
        Ok(sets[0])
    }
}

/// What was recorded before is done, and seen, before what comes after.
fn barrier(device: &ash::Device, commands: vk::CommandBuffer) {
    use vk::AccessFlags as Access;
    use vk::PipelineStageFlags as Stage;
    let stages = Stage::COMPUTE_SHADER | Stage::TRANSFER;
    let all = [vk::MemoryBarrier::default()
        .src_access_mask(Access::SHADER_WRITE | Access::TRANSFER_WRITE)
        .dst_access_mask(Access::SHADER_READ | Access::SHADER_WRITE | Access::TRANSFER_READ | Access::TRANSFER_WRITE)];
    // SAFETY: the command buffer is being recorded.
    unsafe { device.cmd_pipeline_barrier(commands, stages, stages, vk::DependencyFlags::empty(), &all, &[], &[]) };
}

/// What was recorded before is seen by the host that waits for it.
fn to_host(device: &ash::Device, commands: vk::CommandBuffer) {
    use vk::AccessFlags as Access;
    use vk::PipelineStageFlags as Stage;
    let all = [vk::MemoryBarrier::default()
        .src_access_mask(Access::SHADER_WRITE | Access::TRANSFER_WRITE)
        .dst_access_mask(Access::HOST_READ)];
    let from = Stage::COMPUTE_SHADER | Stage::TRANSFER;
    // SAFETY: the command buffer is being recorded.
    unsafe { device.cmd_pipeline_barrier(commands, from, Stage::HOST, vk::DependencyFlags::empty(), &all, &[], &[]) };
}
