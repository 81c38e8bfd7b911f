//! A lost device costs no answer: all that was open goes on with the standby, with the same bits. Without one it ends
//! with one clear error.

use crate::common;
use crate::sick::{Illness, Sick};
use crate::speculation::kinds_of_requests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use checkpoint::{Checkpoint, LoadError, Source};
use common::{Outcome, assert_same, gather, greedy, now, options, submit_all, wait, wait_until_quiet};
use engine::{Engine, EngineOptions, Event, RawRequest, RequestError, Speculation, SubmitError};
use kernels::{Cpu, CpuOptions, DeviceError};
use model::{Batch, Forward, KvBudget, LoadOptions, Standby};
use testing::{Dice, Scratch};

/// Of all devices of an engine: at which call the next is lost, in so many times (`""`: any call), and how many were.
#[derive(Debug, Default)]
struct Losses {
    next: Mutex<Option<(&'static str, u64)>>,
    count: AtomicU64,
}

/// A device that can be lost.
struct OnDevice {
    losses: Arc<Losses>,
    lost: Option<DeviceError>,
}

impl OnDevice {
    fn around(model: Box<dyn Forward>, losses: &Arc<Losses>) -> Box<dyn Forward> {
        Box::new(Sick { inner: model, illness: OnDevice { losses: losses.clone(), lost: None } })
    }
}

impl Illness for OnDevice {
    fn pass(&mut self, door: &'static str) -> Result<(), DeviceError> {
        let mut next = self.losses.next.lock().unwrap();
        let planned = next.as_mut().filter(|(at, _)| self.lost.is_none() && [door, ""].contains(at));
        if planned.is_some_and(|(_, left)| std::mem::replace(left, left.saturating_sub(1)) <= 1) {
            *next = None;
            let device = format!("device {}", self.losses.count.fetch_add(1, Ordering::Relaxed));
            self.lost = Some(match door {
                "wait" => DeviceError::Stuck { device, waited: Duration::from_secs(10) },
                _ => DeviceError::Lost { device, what: "a test".to_owned() },
            });
        }
        self.lost.clone().map_or(Ok(()), Err)
    }

    fn before(&mut self, _: &Batch) {}

    fn logits(&mut self, _: usize, _: &mut [f32]) {}
}

fn lantern() -> Checkpoint {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern");
    Checkpoint::open(Source::Directory(directory)).expect("the shipped model opens")
}

/// A CPU from the packed image, with the sizes of the engine.
fn standby(options: &EngineOptions, images: PathBuf, losses: Arc<Losses>) -> Standby {
    let load = LoadOptions {
        weights: options.weights,
        as_stored: options.as_stored,
        max_rows: options.max_num_batched_tokens,
        max_logit_rows: 64,
        max_model_len: options.max_model_len,
        kv_blocks: KvBudget::Bytes(options.kv_cache_bytes.expect("the tests say it") as usize),
        block_size: options.block_size,
        image_directory: Some(images),
        kv_dtype: options.kv_dtype,
        adapters: options.adapter_room,
        state_slots: 0,
        expert_memory: None,
    };
    let cpu = CpuOptions { threads: options.threads, ..CpuOptions::default() };
    let standby = Standby::new(move || {
        let cpu = Cpu::new(cpu).expect("threads");
        let mut model = model::load(cpu, &lantern(), &load, &mut |_| {})?;
        model.image_writer().into_iter().for_each(|writer| drop(writer.write().expect("room for the image")));
        Ok(OnDevice::around(Box::new(model), &losses))
    });
    standby.expect("a thread")
}

fn start(options: &EngineOptions, standby: Option<Standby>, losses: &Arc<Losses>) -> Engine {
    let around = |model| (OnDevice::around(model, losses), standby);
    Engine::start_around(&lantern(), options, &mut |_| {}, around).expect("the shipped model loads")
}

/// 32 requests of every kind, with rules and texts to draft from.
fn workload() -> Vec<RawRequest> {
    let all = kinds_of_requests(1).into_iter().step_by(2).take(32).enumerate();
    all.map(|(index, raw)| RawRequest { max_tokens: Some(12 + index as i64 % 9), min_tokens: None, ..raw }).collect()
}

fn small() -> EngineOptions {
    let speculation = Speculation::auto();
    EngineOptions { kv_cache_bytes: Some(16 << 20), speculation, max_num_batched_tokens: 64, ..options() }
}

fn answers(engine: &Engine) -> Vec<Outcome> {
    assert!(now(engine.pause()));
    let streams = submit_all(engine, workload());
    now(engine.resume());
    streams.into_iter().map(|(answers, stream)| gather(stream, answers)).collect()
}

/// Of the random steps.
const SEED: u64 = 0x1057;

#[test]
fn a_lost_device_changes_no_bit_of_any_answer() {
    let (losses, images) = (Arc::new(Losses::default()), Scratch::new("standby"));
    let engine = start(&small(), Some(standby(&small(), images.to_path_buf(), losses.clone())), &losses);
    let expected = answers(&engine);
    let doors = ["launch", "wait", "read_logits"].into_iter();
    let at_each = doors.flat_map(|door| [1, 2, 9].map(|after| (door, after)));
    let mut dice = Dice::new(SEED);
    let at_random = (0..200).map(|_| ("", dice.within(1..=400) as u64)).collect::<Vec<_>>();
    for (round, next) in at_each.chain(testing::part_of(at_random, 20)).enumerate() {
        *losses.next.lock().unwrap() = Some(next);
        assert_same(&format!("seed {SEED}, round {round}, {next:?}"), &answers(&engine), &expected);
        assert_eq!(losses.count.load(Ordering::Relaxed), round as u64 + 1, "{next:?}: the device was lost");
    }
    let drafted = engine.stats().drafted_tokens;
    assert!(drafted > 0, "texts are looked up before and after");
    wait_until_quiet(&engine);
}

/// There is none, or it cannot be loaded.
#[test]
fn without_a_standby_everything_ends_with_one_clear_error() {
    let broken = Standby::new(|| {
        Err(LoadError::Option { option: "standby", problem: "the image is on a disk that is gone".to_owned() })
    });
    for standby in [None, broken.ok()] {
        let losses = Arc::new(Losses::default());
        let engine = start(&small(), standby, &losses);
        assert!(now(engine.pause()));
        let streams = submit_all(&engine, workload());
        *losses.next.lock().unwrap() = Some(("", 50));
        now(engine.resume());
        for (_, mut stream) in streams {
            let end = std::iter::from_fn(|| stream.blocking_recv()).last().expect("an end");
            let ended = matches!(end, Event::Done { .. } | Event::Failed(RequestError::DeviceLost));
            assert!(ended, "{end:?}");
        }
        wait("the loop to end", || engine.health().dead);
        let refused = engine.submit(engine.validate(greedy("The fox", 3)).unwrap()).err();
        assert_eq!(refused, Some(SubmitError::DeviceLost));
        assert_eq!(losses.count.load(Ordering::Relaxed), 1);
    }
}
