//! What follows from costs of steps that were corrected: the file for the next start, and the automatic targets.
//!
//! ```text
//! engine's thread   step ──> CostCorrector ──> worth a file? ──channel──> another thread: writes NAME.cost
//!                                                     └─> targets of requests that bring none
//! at the end        CalibrationUpdater::finish: what is known by then, written before the process ends
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use protocol::{Nanos, Targets};
use scheduler::{CostModel, StepRecord};

use crate::calibrate::{Calibrated, CalibrationFile};
use crate::correction::{CorrectedCost, CostCorrector};
use crate::default_slo::{Capacity, DefaultTarget, default_targets};
use crate::samples::StepSamples;

/// Models that wait for the disk.
const MOST_UNWRITTEN: usize = 16;

/// What requests that bring no targets are to get.
#[derive(Clone, Copy, Debug)]
pub struct TargetDefaults {
    /// Of the time to the first token.
    pub ttft: DefaultTarget,
    /// Of the time per token after it.
    pub tpot: DefaultTarget,
    /// What [`DefaultTarget::Auto`] follows from, beside costs.
    pub capacity: Capacity,
}

impl TargetDefaults {
    /// On a machine with this cost model; `None`: unknown.
    pub fn on(&self, cost: Option<&CostModel>) -> Targets {
        let comfortable = cost.map(|cost| default_targets(cost, &self.capacity)).unwrap_or_default();
        Targets { ttft: self.ttft.resolve(comfortable.ttft), tpot: self.tpot.resolve(comfortable.tpot) }
    }
}

/// Targets that any thread may read at any time. 0: none.
#[derive(Debug, Default)]
pub struct CurrentTargets {
    ttft: AtomicU64,
    tpot: AtomicU64,
}

impl CurrentTargets {
    /// These, until steps say otherwise.
    pub fn new(targets: Targets) -> CurrentTargets {
        let live = CurrentTargets::default();
        live.set(targets);
        live
    }

    /// The targets of now.
    pub fn get(&self) -> Targets {
        let target = |time: &AtomicU64| Some(Nanos(time.load(Ordering::Relaxed))).filter(|time| time.0 > 0);
        Targets { ttft: target(&self.ttft), tpot: target(&self.tpot) }
    }

    fn set(&self, targets: Targets) {
        let set = |time: &AtomicU64, target: Option<Nanos>| time.store(target.map_or(0, |t| t.0), Ordering::Relaxed);
        set(&self.ttft, targets.ttft);
        set(&self.tpot, targets.tpot);
    }
}

/// Keeps what is known of the costs of steps in order while an engine runs.
#[derive(Debug)]
pub struct CalibrationUpdater {
    corrector: CostCorrector,
    defaults: TargetDefaults,
    targets: Arc<CurrentTargets>,
    writer: Option<Writer>,
}

impl CalibrationUpdater {
    /// For a model that was measured or kept. Starts a thread where there is a file to be kept.
    pub fn new(calibrated: &Calibrated, defaults: TargetDefaults, targets: Arc<CurrentTargets>) -> CalibrationUpdater {
        let writer = calibrated.file.clone().and_then(|place| Writer::start(place, calibrated.samples.clone()));
        CalibrationUpdater { corrector: CostCorrector::new(calibrated.cost.clone()), defaults, targets, writer }
    }

    /// Takes in a step. One that others disturbed says nothing.
    pub fn step(&mut self, record: &StepRecord) {
        if !record.is_undisturbed() {
            return;
        }
        let took = record.computing_like(self.corrector.predicted(&record.work));
        let Some(corrected) = self.corrector.step(&record.work, took) else { return };
        self.targets.set(self.defaults.on(Some(&corrected.cost)));
        let [decode, prompts] = corrected.cost.drift();
        tracing::info!(
            decode,
            prompts,
            "steps take other times than was measured: the model of their costs is corrected"
        );
        if let Some(writer) = &self.writer {
            // Where a disk is that slow, what is known at the end is still written.
            let _ = writer.corrected.try_send(corrected);
        }
    }

    /// The model as it is corrected by now.
    pub fn cost(&self) -> CostModel {
        self.corrector.corrected().cost
    }

    /// Writes what is known by now, if it is other than what a start would find. What is left of the process is short.
    pub fn finish(&self) -> Option<Finish> {
        let writer = self.writer.as_ref().filter(|_| self.corrector.has_reported())?;
        Some(Finish { file: writer.file.clone(), corrected: self.corrector.corrected() })
    }
}

/// What is to be written at the end, without a lock on anything else.
pub struct Finish {
    file: Arc<File>,
    corrected: CorrectedCost,
}

impl Finish {
    pub fn write(self) {
        self.file.write(&self.corrected, Last::Yes);
    }
}

/// Where models are written, by one at a time.
#[derive(Debug)]
struct File {
    place: CalibrationFile,
    /// As measured at the start.
    samples: StepSamples,
    /// Held by the writer. What was known last is written: the thread may be behind.
    last: Mutex<Last>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    No,
    Yes,
}

impl File {
    fn write(&self, CorrectedCost { cost, was_bad }: &CorrectedCost, is_last: Last) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if (*last, is_last) == (Last::Yes, Last::No) {
            return;
        }
        *last = is_last;
        let CalibrationFile { key, path } = &self.place;
        if let Err(error) = self.samples.corrected(cost.drift(), *was_bad).write(path, key) {
            tracing::warn!(%error, path = %path.display(), "what steps cost could not be kept for the next start");
        }
    }
}

/// The thread that writes. It ends with the engine.
#[derive(Debug)]
struct Writer {
    file: Arc<File>,
    corrected: SyncSender<CorrectedCost>,
}

impl Writer {
    /// `None`: the system gave no thread, and nothing is kept until the end.
    fn start(place: CalibrationFile, samples: StepSamples) -> Option<Writer> {
        let file = Arc::new(File { place, samples, last: Mutex::new(Last::No) });
        let (sender, receiver): (_, Receiver<CorrectedCost>) = sync_channel(MOST_UNWRITTEN);
        let own = file.clone();
        let write = move || {
            while let Ok(corrected) = receiver.recv() {
                // The newest of those that came meanwhile.
                own.write(&receiver.try_iter().last().unwrap_or(corrected), Last::No);
            }
        };
        std::thread::Builder::new().name("cost-keeper".to_owned()).spawn(write).ok()?;
        Some(Writer { file, corrected: sender })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kernels::cpu_time::Interval;
    use scheduler::cost::{Knot, Terms};
    use scheduler::{StealTime, Work};

    use super::*;
    use crate::samples::{SHORT, Sample, Shape};

    /// A machine `times` as slow as another one.
    fn machine(times: f64) -> CostModel {
        let knot = |rows, ms: f64| Knot { rows, seconds: times * ms / 1e3 };
        CostModel::new(vec![knot(1, 20.0), knot(64, 30.0), knot(512, 150.0)], Terms::default())
    }

    /// What a start measures there.
    fn measured(times: f64) -> StepSamples {
        let shape = |decode, chunk| Shape { decode, chunk, context: decode.min(1) * SHORT, ..Shape::default() };
        let sample = |shape: Shape| {
            let wall = Duration::from_nanos(machine(times).step_time(&shape.work()).0);
            Sample::new(shape, Interval { wall, cpu: wall, switches: 0 })
        };
        StepSamples::new([shape(1, 0), shape(16, 0), shape(0, 16), shape(0, 64), shape(0, 512)].map(sample).to_vec())
    }

    fn work(index: usize) -> Work {
        let mut work = Work::default();
        work.add_decode(100);
        if index.is_multiple_of(5) {
            work.add_chunk(0, 256, true);
        }
        work
    }

    #[test]
    fn a_file_of_a_busy_start_is_healed_on_disk_and_targets_follow() {
        let directory = testing::Scratch::new("keeper");
        let place = CalibrationFile { key: crate::kept::key("test"), path: directory.join("x.cost") };
        // Every time was multiplied by eight, and the file still looks valid.
        let samples = measured(8.0);
        samples.write(&place.path, &place.key).expect("it can be written");
        assert_eq!(StepSamples::read(&place.path, "another key"), None);
        let cost = StepSamples::read(&place.path, &place.key).and_then(|kept| kept.fit()).expect("it is whole");
        let capacity = Capacity { seqs: 16, tokens_each: 100, rows: 512 };
        let defaults = TargetDefaults { ttft: DefaultTarget::Auto, tpot: DefaultTarget::Auto, capacity };
        let targets = Arc::new(CurrentTargets::new(defaults.on(Some(&machine(8.0)))));
        let file = Some(place.clone());
        let calibrated = Calibrated { cost, samples, took: Duration::ZERO, from_disk: true, doubt: None, file };
        let mut updater = CalibrationUpdater::new(&calibrated, defaults, targets.clone());
        assert!(updater.finish().is_none(), "there is nothing new to write");
        let before = targets.get();
        let mut step = |index: usize, stolen: StealTime| {
            let took = machine(1.0).step_time(&work(index));
            updater.step(&StepRecord { work: work(index), completed_at: took, stolen, ..StepRecord::default() });
        };
        (0..200).for_each(|index| step(index, StealTime { during: Nanos(10_000_000), ..StealTime::default() }));
        assert_eq!(targets.get(), before, "disturbed steps say nothing");
        (0..100).for_each(|index| step(index, StealTime::default()));
        updater.finish().expect("there is").write();
        drop(updater);
        let kept = StepSamples::read(&place.path, &place.key).expect("it is whole");
        assert!(kept.doubt().is_some() && kept.has_drifted(), "what was so far off is measured again");
        let cost = kept.fit().expect("it has samples");
        for index in [1, 5] {
            let off = cost.seconds(&work(index)) / machine(1.0).seconds(&work(index));
            assert!((0.9..1.1).contains(&off), "{index}: {off}");
        }
        let (true_targets, corrected) = (defaults.on(Some(&machine(1.0))), targets.get());
        assert!(before.tpot > corrected.tpot && before.ttft > corrected.ttft, "{before:?} {corrected:?}");
        let off =
            |a: Option<Nanos>, b: Option<Nanos>| a.expect("a target").as_secs_f64() / b.expect("one").as_secs_f64();
        assert!((0.9..1.1).contains(&off(corrected.tpot, true_targets.tpot)), "{corrected:?} {true_targets:?}");
    }

    #[test]
    fn chosen_targets_stay() {
        let capacity = Capacity { seqs: 16, tokens_each: 100, rows: 512 };
        let fixed = DefaultTarget::Fixed(Duration::from_millis(70));
        let defaults = TargetDefaults { ttft: DefaultTarget::None, tpot: fixed, capacity };
        for times in [1.0, 8.0] {
            let Targets { ttft, tpot } = CurrentTargets::new(defaults.on(Some(&machine(times)))).get();
            assert_eq!((ttft, tpot), (None, Some(Nanos(70_000_000))));
        }
    }
}
