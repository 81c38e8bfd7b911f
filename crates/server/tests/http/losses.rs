//! Devices that are lost when a test says so, and what goes on then.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use checkpoint::{Checkpoint, Source};
use engine::EngineOptions;
use kernels::{Cpu, CpuOptions, DeviceError};
use model::{Batch, Forward, KvBudget, LoadOptions, Standby};

use crate::sick::{Illness, Sick};

/// Of all devices of an engine: at which call the next is lost, in so many times (`""`: any call), and how many were.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    pub(crate) next: Mutex<Option<(&'static str, u64)>>,
    pub(crate) count: AtomicU64,
}

/// A device that can be lost.
pub(crate) struct OnDevice {
    losses: Arc<Losses>,
    lost: OnceLock<DeviceError>,
}

impl OnDevice {
    pub(crate) fn around(model: Box<dyn Forward>, losses: &Arc<Losses>) -> Box<dyn Forward> {
        Box::new(Sick { inner: model, illness: OnDevice { losses: losses.clone(), lost: OnceLock::new() } })
    }
}

impl Illness for OnDevice {
    fn pass(&self, door: &'static str) -> Result<(), DeviceError> {
        let mut next = self.losses.next.lock().unwrap();
        let planned = next.as_mut().filter(|(at, _)| self.lost.get().is_none() && [door, ""].contains(at));
        if planned.is_some_and(|(_, left)| std::mem::replace(left, left.saturating_sub(1)) <= 1) {
            *next = None;
            let device = format!("device {}", self.losses.count.fetch_add(1, Ordering::Relaxed));
            let error = match door {
                "wait" => DeviceError::Stuck { device, waited: Duration::from_secs(10) },
                _ => DeviceError::Lost { device, what: "a test".to_owned() },
            };
            self.lost.set(error).expect("it is lost once");
        }
        self.lost.get().cloned().map_or(Ok(()), Err)
    }

    fn before(&mut self, _: &Batch) {}

    fn logits(&mut self, _: usize, _: &mut [f32]) {}
}

pub(crate) fn lantern() -> Checkpoint {
    Checkpoint::open(Source::Directory(testing::lantern())).expect("the shipped model opens")
}

/// The sizes of the engine.
pub(crate) fn sizes(options: &EngineOptions, image_directory: Option<PathBuf>) -> LoadOptions {
    LoadOptions {
        weights: options.weights,
        as_stored: options.as_stored,
        max_rows: options.max_num_batched_tokens,
        max_logit_rows: 64,
        max_model_len: options.max_model_len,
        kv_blocks: KvBudget::Bytes(options.kv_cache_bytes.expect("the tests say it") as usize),
        block_size: options.block_size,
        image_directory,
        kv_dtype: options.kv_dtype,
        adapters: options.adapter_room,
        state_slots: 0,
        expert_memory: None,
    }
}

/// A CPU from the packed image.
pub(crate) fn standby(options: &EngineOptions, images: PathBuf, losses: Arc<Losses>) -> Standby {
    let load = sizes(options, Some(images));
    let cpu = CpuOptions { threads: options.threads, ..CpuOptions::default() };
    let standby = Standby::new(move || {
        let cpu = Cpu::new(cpu).expect("threads");
        let mut model = model::load(cpu, &lantern(), &load, &mut |_| {})?;
        model.image_writer().into_iter().for_each(|writer| drop(writer.write().expect("room for the image")));
        Ok(OnDevice::around(Box::new(model), &losses))
    });
    standby.expect("a thread")
}
