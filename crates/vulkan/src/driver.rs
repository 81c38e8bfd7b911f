//! The driver's side: which devices there are, one of them opened, and waiting for it.

use ash::prelude::VkResult;
use ash::vk;
use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use kernels::{DeviceError, OutOfMemory};

use crate::matrices::Units;
use crate::memory::Piece;

/// Longest time to wait for what was submitted: a pass takes seconds at most, but on software.
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_WITH_SOFTWARE: Duration = Duration::from_secs(3600);
/// Buffers that a kernel may have.
pub(crate) const MAX_BUFFERS: usize = 8;
/// Bytes of push constants that every device has.
pub(crate) const PUSH_BYTES: usize = 128;
/// Lanes of a workgroup, and bytes that it shares, that every device has to have.
pub(crate) const LARGEST_GROUP: u32 = 256;
const SHARED_BYTES: u32 = 32 << 10;

/// Why no device can be used.
#[derive(Debug, thiserror::Error)]
pub enum VulkanError {
    /// There is no loader.
    #[error(
        "no GPU can be used: the Vulkan loader is missing (libvulkan.so.1: Debian's package libvulkan1, with a driver \
         such as mesa-vulkan-drivers or NVIDIA's): {0}"
    )]
    NoLoader(String),
    /// It finds no driver.
    #[error(
        "no GPU can be used: the Vulkan loader finds no driver (NVIDIA's own, or Debian's mesa-vulkan-drivers; in a \
         container the device has to be passed in)"
    )]
    NoDriver,
    /// The loader knows no device of this number.
    #[error("there is no GPU {index}: Vulkan knows {}", if .names.is_empty() { "none".to_owned() } else { .names.join(", ") })]
    NoDevice {
        /// What was asked for.
        index: usize,
        /// Those that there are.
        names: Vec<String>,
    },
    /// It lacks what the kernels need.
    #[error("{device} cannot be used: it lacks {what}")]
    Lacks {
        /// Which device.
        device: String,
        /// What is missing.
        what: String,
    },
    /// Its arithmetic is not IEEE 754's.
    #[error("{device} cannot be used: {operation} gives {found:#010x} where {expected:#010x} is right")]
    Arithmetic {
        /// Which device.
        device: String,
        /// What was computed, with its operands.
        operation: String,
        /// Bits of the result.
        found: u32,
        /// Bits that it has to have.
        expected: u32,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {error}")]
    Call {
        /// Which one.
        call: &'static str,
        /// What the driver says.
        error: vk::Result,
    },
    /// Its memory is too small for what every model needs.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// It was lost at once.
    #[error(transparent)]
    Lost(#[from] DeviceError),
}

/// An error with the name of the call.
pub(crate) fn failed(call: &'static str) -> impl Fn(vk::Result) -> VulkanError {
    move |error| VulkanError::Call { call, error }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// As its driver calls it.
    pub name: String,
    /// `discrete`, `integrated`, `virtual`, `software` or `other`.
    pub kind: &'static str,
    /// The driver and its version.
    pub driver: String,
    /// Bytes of its largest memory that is its own, or of the host's where it has none.
    pub memory_bytes: u64,
    /// Bytes of a buffer that a kernel sees: what a layer of the KV cache has at most.
    pub binding_bytes: u64,
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Listed { name, kind, driver, memory_bytes, .. } = self;
        write!(f, "{name} ({kind}, {driver}, {:.1} GiB)", *memory_bytes as f64 / (1u64 << 30) as f64)
    }
}

/// The loader and its instance: one for the process, to its end. Drivers leave destructors for threads that outlive
/// devices (LLVM's, in software), so a library that was unloaded would be called.
struct Instance {
    /// Keeps the library loaded.
    entry: ash::Entry,
    instance: ash::Instance,
}

impl Instance {
    fn get() -> Result<&'static Instance, VulkanError> {
        static INSTANCE: OnceLock<Instance> = OnceLock::new();
        static LOADING: Mutex<()> = Mutex::new(());
        let _alone = locked(&LOADING);
        match INSTANCE.get() {
            Some(instance) => Ok(instance),
            // What failed is tried again: a driver may have been installed.
            None => Instance::new().map(|instance| INSTANCE.get_or_init(|| instance)),
        }
    }

    fn new() -> Result<Instance, VulkanError> {
        // SAFETY: the loader is a library that may be loaded and unloaded; it is trusted to be one.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| VulkanError::NoLoader(error.to_string()))?;
        let application =
            vk::ApplicationInfo::default().application_name(c"twostroke").api_version(vk::API_VERSION_1_3);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the structures live until the call returns.
        let instance = unsafe { entry.create_instance(&info, None) }.map_err(|error| match error {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => VulkanError::NoDriver,
            error => failed("vkCreateInstance")(error),
        })?;
        Ok(Instance { entry, instance })
    }

    /// In the loader's order, but devices of the system before software, so that 0 is what most people mean.
    fn devices(&self) -> Result<Vec<(vk::PhysicalDevice, Listed)>, VulkanError> {
        // SAFETY: the instance is alive.
        let all = unsafe { self.instance.enumerate_physical_devices() };
        let all = all.map_err(failed("vkEnumeratePhysicalDevices"))?;
        let mut all: Vec<_> = all.into_iter().map(|device| (device, self.listed(device))).collect();
        let order = ["discrete", "integrated", "virtual", "other", "software"];
        all.sort_by_key(|(_, listed)| order.iter().position(|kind| *kind == listed.kind));
        Ok(all)
    }

    fn listed(&self, device: vk::PhysicalDevice) -> Listed {
        let mut of_driver = vk::PhysicalDeviceDriverProperties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut of_driver);
        // SAFETY: (here and below) the device is one of this instance, and the structures live until the calls return.
        let memory = unsafe {
            self.instance.get_physical_device_properties2(device, &mut properties);
            self.instance.get_physical_device_memory_properties(device)
        };
        let properties = properties.properties;
        let kind = match properties.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => "discrete",
            vk::PhysicalDeviceType::INTEGRATED_GPU => "integrated",
            vk::PhysicalDeviceType::VIRTUAL_GPU => "virtual",
            vk::PhysicalDeviceType::CPU => "software",
            _ => "other",
        };
        let text = |text: Result<&CStr, std::ffi::FromBytesUntilNulError>| {
            text.map_or_else(|_| "?".to_owned(), |text| text.to_string_lossy().into_owned())
        };
        let heaps = &memory.memory_heaps[..memory.memory_heap_count as usize];
        let own = heaps.iter().filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let (name, info) = (text(of_driver.driver_name_as_c_str()), text(of_driver.driver_info_as_c_str()));
        Listed {
            name: text(properties.device_name_as_c_str()),
            kind,
            driver: format!("{name} {info}").trim_end().to_owned(),
            memory_bytes: own.map(|heap| heap.size).max().unwrap_or(0),
            binding_bytes: properties.limits.max_storage_buffer_range.into(),
        }
    }
}

/// The devices that `--device gpu:N` counts, from 0.
pub fn list() -> Result<Vec<Listed>, VulkanError> {
    Ok(Instance::get()?.devices()?.into_iter().map(|(_, listed)| listed).collect())
}

/// The one of this number.
pub(crate) fn find(index: usize) -> Result<(vk::PhysicalDevice, Listed), VulkanError> {
    let devices = Instance::get()?.devices()?;
    let names = || devices.iter().map(|(_, listed)| listed.to_string()).collect();
    devices.get(index).cloned().ok_or_else(|| VulkanError::NoDevice { index, names: names() })
}

/// What a kernel with this number of buffers is bound to.
pub(crate) struct Layout {
    pub(crate) sets: vk::DescriptorSetLayout,
    pub(crate) pipeline: vk::PipelineLayout,
}

/// An open device.
pub(crate) struct Driver {
    pub(crate) device: ash::Device,
    pub(crate) family: u32,
    pub(crate) listed: Listed,
    /// What the offset of a binding is a multiple of.
    pub(crate) alignment: u64,
    pub(crate) limits: vk::PhysicalDeviceLimits,
    /// What multiplies matrices of bytes, if anything does.
    pub(crate) units: Option<Units>,
    /// By the number of buffers: the first is of one.
    pub(crate) layouts: Vec<Layout>,
    /// Locked by each submission.
    queue: Mutex<vk::Queue>,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    /// Memory that buffers share.
    pub(crate) pieces: Mutex<Vec<Weak<Piece>>>,
    /// Why it is lost, for all its users.
    pub(crate) lost: OnceLock<DeviceError>,
    /// It gave no answer in time, and may still compute: what it uses is never freed, and nothing waits for it again.
    stuck: AtomicBool,
    /// Calls that made something.
    pub(crate) made: AtomicU64,
    /// A call that fails, and how often it succeeds before: for tests.
    pub(crate) failing: Mutex<Option<(&'static str, u64)>>,
}

impl Driver {
    pub(crate) fn open(
        (physical, listed): (vk::PhysicalDevice, Listed),
        failing: Option<(&'static str, u64)>,
    ) -> Result<Driver, VulkanError> {
        let instance = Instance::get()?;
        let lacks = |what: &str| VulkanError::Lacks { device: listed.to_string(), what: what.to_owned() };
        // SAFETY: (to the end) all handles are of this instance and alive, structures live until the calls return.
        let properties = unsafe { instance.instance.get_physical_device_properties(physical) };
        if properties.api_version < vk::API_VERSION_1_3 {
            return Err(lacks("Vulkan 1.3"));
        }
        let (mut of_12, mut of_13) =
            (vk::PhysicalDeviceVulkan12Features::default(), vk::PhysicalDeviceVulkan13Features::default());
        let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut of_12).push_next(&mut of_13);
        // SAFETY: as above.
        unsafe { instance.instance.get_physical_device_features2(physical, &mut features) };
        let limits = properties.limits;
        for (is_there, what) in [
            (of_12.timeline_semaphore == vk::TRUE, "timeline semaphores"),
            (of_12.buffer_device_address == vk::TRUE, "addresses of buffers"),
            (of_13.shader_integer_dot_product == vk::TRUE, "products of four bytes"),
            (limits.max_compute_work_group_invocations >= LARGEST_GROUP, "workgroups of 256"),
            (limits.max_compute_shared_memory_size >= SHARED_BYTES, "32 KiB that a workgroup shares"),
            (limits.max_per_stage_descriptor_storage_buffers >= MAX_BUFFERS as u32, "eight buffers in a kernel"),
            (limits.max_push_constants_size >= PUSH_BYTES as u32, "128 bytes of push constants"),
        ] {
            if !is_there {
                return Err(lacks(what));
            }
        }
        // SAFETY: as above.
        let families = unsafe { instance.instance.get_physical_device_queue_family_properties(physical) };
        let computes = |family: &vk::QueueFamilyProperties| family.queue_flags.contains(vk::QueueFlags::COMPUTE);
        let family = families.iter().position(computes).ok_or_else(|| lacks("a queue that computes"))? as u32;
        let priorities = [1.0];
        let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&priorities)];
        let units = Units::of(&instance.entry, &instance.instance, physical, LARGEST_GROUP);
        let has_units = units.is_some();
        let mut of_12 = vk::PhysicalDeviceVulkan12Features::default()
            .timeline_semaphore(true)
            .buffer_device_address(true)
            .shader_int8(has_units)
            .vulkan_memory_model(has_units)
            .vulkan_memory_model_device_scope(has_units);
        let mut of_13 = vk::PhysicalDeviceVulkan13Features::default()
            .shader_integer_dot_product(true)
            .maintenance4(true)
            .subgroup_size_control(has_units)
            .compute_full_subgroups(has_units);
        let mut of_matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
        let extensions = [ash::khr::cooperative_matrix::NAME.as_ptr()];
        let mut info =
            vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut of_12).push_next(&mut of_13);
        if has_units {
            info = info.enabled_extension_names(&extensions).push_next(&mut of_matrices);
        }
        // SAFETY: as above.
        let device = unsafe { instance.instance.create_device(physical, &info, None) };
        let device = device.map_err(failed("vkCreateDevice"))?;
        // SAFETY: as above.
        let (queue, memory) = unsafe {
            (device.get_device_queue(family, 0), instance.instance.get_physical_device_memory_properties(physical))
        };
        let mut driver = Driver {
            device,
            family,
            listed,
            // Kernels load 16 bytes at a time.
            alignment: limits.min_storage_buffer_offset_alignment.max(16),
            limits,
            units,
            layouts: Vec::new(),
            queue: Mutex::new(queue),
            memory,
            pieces: Mutex::new(Vec::new()),
            lost: OnceLock::new(),
            stuck: AtomicBool::new(false),
            made: AtomicU64::new(0),
            failing: Mutex::new(failing),
        };
        (1..=MAX_BUFFERS).try_for_each(|buffers| driver.add_layout(buffers))?;
        Ok(driver)
    }

    /// What was made before a call fails goes with the driver.
    fn add_layout(&mut self, buffers: usize) -> Result<(), VulkanError> {
        let (kind, stage) = (vk::DescriptorType::STORAGE_BUFFER, vk::ShaderStageFlags::COMPUTE);
        let any =
            vk::DescriptorSetLayoutBinding::default().descriptor_type(kind).descriptor_count(1).stage_flags(stage);
        let bindings: Vec<_> = (0..buffers).map(|index| any.binding(index as u32)).collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: (and below) the device is alive, and structures live until the calls return.
        let make = || unsafe { self.device.create_descriptor_set_layout(&info, None) };
        let sets = self.make("vkCreateDescriptorSetLayout", make)?;
        self.layouts.push(Layout { sets, pipeline: vk::PipelineLayout::null() });
        let (layouts, push) = ([sets], [vk::PushConstantRange::default().stage_flags(stage).size(PUSH_BYTES as u32)]);
        let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&layouts).push_constant_ranges(&push);
        // SAFETY: as above.
        let make = || unsafe { self.device.create_pipeline_layout(&info, None) };
        self.layouts[buffers - 1].pipeline = self.make("vkCreatePipelineLayout", make)?;
        Ok(())
    }

    /// A call whose failure has its name.
    pub(crate) fn make<T>(&self, call: &'static str, make: impl FnOnce() -> VkResult<T>) -> Result<T, VulkanError> {
        self.before(call)?;
        make().map_err(failed(call))
    }

    /// Counts a call that makes something, and fails one where a test says so.
    pub(crate) fn before(&self, call: &'static str) -> Result<(), VulkanError> {
        let makes = call.starts_with("vkCreate") || call.starts_with("vkAllocate");
        self.made.fetch_add(u64::from(makes), Ordering::Relaxed);
        let mut failing = locked(&self.failing);
        let Some((_, left)) = failing.as_mut().filter(|(planned, _)| ["", call].contains(planned)) else {
            return Ok(());
        };
        if let Some(one_less) = left.checked_sub(1) {
            *left = one_less;
            return Ok(());
        }
        *failing = None;
        Err(failed(call)(vk::Result::ERROR_DEVICE_LOST))
    }

    /// See `stuck`.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: all that was made of the device holds this, and is gone; it is idle then, or lost.
        unsafe {
            // A lost device says so here, and is destroyed all the same.
            let _ = self.device.device_wait_idle();
            for layout in &self.layouts {
                self.device.destroy_pipeline_layout(layout.pipeline, None);
                self.device.destroy_descriptor_set_layout(layout.sets, None);
            }
            self.device.destroy_device(None);
        }
    }
}

/// The submissions of one user of a device, counted: a semaphore has the number of those that are done.
pub(crate) struct Timeline {
    pub(crate) driver: Arc<Driver>,
    semaphore: vk::Semaphore,
    submitted: AtomicU64,
    patience: Duration,
    /// Why nothing more is computed for this one, where the device goes on for others.
    lost: OnceLock<DeviceError>,
}

impl Timeline {
    /// `patience`: longest wait, in place of the usual one.
    pub(crate) fn new(driver: &Arc<Driver>, patience: Option<Duration>) -> Result<Timeline, VulkanError> {
        let usual = if driver.listed.kind == "software" { PATIENCE_WITH_SOFTWARE } else { PATIENCE };
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device is alive, and structures live until the call returns.
        let semaphore = driver.make("vkCreateSemaphore", || unsafe { driver.device.create_semaphore(&info, None) })?;
        let (driver, patience) = (driver.clone(), patience.unwrap_or(usual));
        Ok(Timeline { driver, semaphore, submitted: AtomicU64::new(0), patience, lost: OnceLock::new() })
    }

    /// The first failure.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.lost.get().or(self.driver.lost.get()).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Nothing more is computed here.
    pub(crate) fn lose(&self, what: String) {
        let _ = self.lost.set(DeviceError::Lost { device: self.driver.listed.to_string(), what });
    }

    /// The same because of a call that failed. A device that is lost is lost to all.
    pub(crate) fn lose_by(&self, error: VulkanError) {
        match error {
            VulkanError::Call { error: vk::Result::ERROR_DEVICE_LOST, .. } => {
                let (device, what) = (self.driver.listed.to_string(), error.to_string());
                let _ = self.driver.lost.set(DeviceError::Lost { device, what });
            }
            VulkanError::Lost(error) => _ = self.driver.lost.set(error),
            other => self.lose(other.to_string()),
        }
    }

    /// Value of what was submitted last.
    pub(crate) fn value(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// Gives a recorded command buffer to the queue. The caller is the only one that submits here.
    pub(crate) fn submit(&self, commands: vk::CommandBuffer) -> Result<(), VulkanError> {
        let value = self.value() + 1;
        let (commands, values, semaphores) = ([commands], [value], [self.semaphore]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let info = vk::SubmitInfo::default()
            .command_buffers(&commands)
            .signal_semaphores(&semaphores)
            .push_next(&mut timeline);
        let queue = locked(&self.driver.queue);
        // SAFETY: the command buffer is recorded and not in use, values of the timeline rise, and the queue is locked.
        let submit = || unsafe { self.driver.device.queue_submit(*queue, &[info], vk::Fence::null()) };
        self.driver.make("vkQueueSubmit", submit)?;
        self.submitted.store(value, Ordering::Release);
        Ok(())
    }

    /// Sleeps until what has this value is done.
    pub(crate) fn wait(&self, value: u64) -> Result<(), VulkanError> {
        let (semaphores, values) = ([self.semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let answer = match self.patience.as_nanos() as u64 {
            // As if it never did, whatever it has done: for tests.
            0 => Err(vk::Result::TIMEOUT),
            // SAFETY: the semaphore is alive.
            patience => unsafe { self.driver.device.wait_semaphores(&info, patience) },
        };
        answer.map_err(|error| match error {
            vk::Result::TIMEOUT => {
                self.driver.stuck.store(true, Ordering::Relaxed);
                let device = self.driver.listed.to_string();
                VulkanError::Lost(DeviceError::Stuck { device, waited: self.patience })
            }
            error => failed("vkWaitSemaphores")(error),
        })
    }

    /// The value up to which all is done.
    pub(crate) fn done(&self) -> Result<u64, VulkanError> {
        // SAFETY: the semaphore is alive.
        let value = || unsafe { self.driver.device.get_semaphore_counter_value(self.semaphore) };
        self.driver.make("vkGetSemaphoreCounterValue", value)
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        if !self.driver.is_stuck() {
            // SAFETY: the recorder has waited for what signals it, or the device is lost.
            unsafe { self.driver.device.destroy_semaphore(self.semaphore, None) };
        }
    }
}
