//! Which samples of a rate count, how many are taken, and the certainty of the best. Pure decisions: the caller measures
//! and reports samples; no clock is read here.
//!
//! ```text
//! Sample: work, time of the region, CPU time of each thread
//!    |  too short ------> the next one has twice the work; not counted as a sample
//!    |  disturbed ------> discarded; without undisturbed ones the threads' CPU time gives an uncertain rate
//!    v
//! the best five undisturbed --> Figure: the highest, and the spread of the five
//! ```
//! Disturbances only lower a measurement, so the best sample is nearest to the truth. That five agree shows that it is
//! no accident.

use std::fmt;
use std::time::Duration;

use crate::cpu_time::Interval;

/// Minimum CPU time of a thread in a sample: the start of a region is then 1 % of it. Shorter than an OS scheduler's
/// time slice, so that some samples are undisturbed beside any load.
const GROWN: Duration = Duration::from_millis(1);
/// Minimum elapsed time where the CPU clock does not advance.
const GROWN_BY_WALL: Duration = Duration::from_millis(40);
/// The spread is taken over this number of the best samples.
const BEST: usize = 5;
/// Minimum number of full samples.
const LEAST_SAMPLES: usize = BEST;
/// A series may take this multiple of its time budget if samples are disturbed.
const PATIENCE: u32 = 4;
/// A region longer than its longest thread by more than this share started late on one: the threads did not overlap.
const MOST_LATE: f64 = 0.05;
/// Measurements with a spread (as a share) below this are called steady.
pub const STEADY: f64 = 0.10;
/// Fewer samples than this are no evidence of chance.
pub const FEW: usize = 3;

/// Work that all threads of a pool did at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Operations or bytes of all threads together; each thread has an equal part.
    pub(crate) work: f64,
    /// From the start of the first to the end of the last.
    pub(crate) wall: Duration,
    /// CPU time of each thread.
    pub(crate) threads: Vec<Interval>,
}

impl Sample {
    fn longest(&self, time: impl Fn(&Interval) -> Duration) -> Duration {
        self.threads.iter().map(time).max().unwrap_or_default()
    }

    fn has_grown(&self) -> bool {
        let ran = self.longest(|thread| thread.cpu);
        ran >= GROWN || ran.is_zero() && self.wall >= GROWN_BY_WALL
    }

    /// Work of each thread.
    fn part(&self) -> f64 {
        self.work / self.threads.len() as f64
    }

    /// Rate by elapsed time, disturbed or not.
    fn rate(&self) -> f64 {
        self.work / self.wall.as_secs_f64().max(1e-9)
    }

    /// As one sample of all threads, which counts only if all of them ran undisturbed and together.
    fn together(&self) -> LaneSample {
        let late = self.wall.saturating_sub(self.longest(|thread| thread.wall));
        LaneSample {
            rate: self.rate(),
            estimate: self.threads.iter().map(|thread| self.part() / ran(thread)).sum(),
            is_disturbed: self.threads.iter().any(Interval::is_disturbed) || late > self.wall.mul_f64(MOST_LATE),
        }
    }

    /// As a sample of one thread.
    fn of_thread(&self, thread: &Interval) -> LaneSample {
        LaneSample {
            rate: self.part() / thread.wall.as_secs_f64().max(1e-9),
            estimate: self.part() / ran(thread),
            is_disturbed: thread.is_disturbed(),
        }
    }
}

/// CPU seconds of a thread.
fn ran(thread: &Interval) -> f64 {
    let ran = match thread.cpu.min(thread.wall) {
        Duration::ZERO => thread.wall, // a clock that stands still
        ran => ran,
    };
    ran.as_secs_f64().max(1e-9)
}

/// One sample of a lane: one thread, or all of them.
#[derive(Clone, Copy, Debug)]
struct LaneSample {
    rate: f64,
    /// Estimated rate by CPU time. Biased: a thread that runs while others do not has more of the shared resources.
    estimate: f64,
    is_disturbed: bool,
}

/// The samples of one lane.
#[derive(Clone, Debug, Default)]
struct Lane {
    undisturbed: usize,
    /// The best undisturbed rates, descending.
    best: Vec<f64>,
    /// Estimates from disturbed samples.
    estimates: Vec<f64>,
}

impl Lane {
    fn add(&mut self, sample: LaneSample) {
        if sample.is_disturbed {
            self.estimates.push(sample.estimate);
            return;
        }
        self.undisturbed += 1;
        let place = self.best.partition_point(|&better| better >= sample.rate);
        self.best.insert(place, sample.rate);
        self.best.truncate(BEST);
    }

    fn rate(&self) -> f64 {
        let estimate = || {
            let mut estimates = self.estimates.clone();
            estimates.sort_unstable_by(f64::total_cmp);
            estimates.get(estimates.len() / 2).copied().unwrap_or(0.0)
        };
        self.best.first().copied().unwrap_or_else(estimate)
    }
}

/// Whether the threads share the measured resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// Shared, as memory bandwidth: only what all threads reach at the same time counts.
    Share,
    /// Per thread, as the arithmetic of its core: an undisturbed thread counts even if others were disturbed.
    Own,
}

/// The samples of one rate.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    threads: Threads,
    /// Size of the next sample: rounds, bytes, or any unit that makes it longer.
    size: usize,
    most: usize,
    has_grown: bool,
    samples: usize,
    lanes: Vec<Lane>,
    /// The highest rate of any sample.
    reached: f64,
}

impl Series {
    /// A series with samples of size `size` to `most`.
    pub(crate) fn new(threads: Threads, size: usize, most: usize) -> Series {
        Series { threads, size, most, has_grown: false, samples: 0, lanes: Vec::new(), reached: 0.0 }
    }

    /// The size of the next sample, after `spent` of `budget`; `None`: the series is complete.
    pub(crate) fn next(&self, spent: Duration, budget: Duration) -> Option<usize> {
        let certainty = self.certainty();
        let is_good = certainty.doubt().is_none() && certainty.undisturbed >= LEAST_SAMPLES;
        let patience = if is_good { 1 } else { PATIENCE };
        (self.samples < LEAST_SAMPLES || spent < budget * patience).then_some(self.size)
    }

    /// Adds the sample of the size that `next` returned.
    pub(crate) fn add(&mut self, sample: &Sample) {
        self.has_grown |= sample.has_grown() || self.size >= self.most;
        if !self.has_grown {
            self.size = self.size.saturating_mul(2).min(self.most);
            return;
        }
        self.samples += 1;
        self.reached = self.reached.max(sample.rate());
        let lanes = if self.threads == Threads::Share { 1 } else { sample.threads.len() };
        self.lanes.resize_with(lanes, Lane::default);
        match self.threads {
            Threads::Share => self.lanes[0].add(sample.together()),
            Threads::Own => {
                self.lanes
                    .iter_mut()
                    .zip(&sample.threads)
                    .for_each(|(lane, thread)| lane.add(sample.of_thread(thread)));
            }
        }
    }

    /// The certainty of the least known lane, and the best of all lanes together.
    fn certainty(&self) -> Certainty {
        let undisturbed = self.lanes.iter().map(|lane| lane.undisturbed).min().unwrap_or(0);
        let best = |at: usize| self.lanes.iter().map(|lane| lane.best.get(at)).sum::<Option<f64>>();
        let best: Vec<f64> = (0..undisturbed.min(BEST)).map_while(best).collect();
        Certainty { samples: self.samples, undisturbed, ..Certainty::of_rates(&best) }
    }

    /// The measured rate; requires a full sample.
    pub(crate) fn figure(&self) -> Figure {
        let rate: f64 = self.lanes.iter().map(Lane::rate).sum();
        Figure { rate: rate.max(self.reached), certainty: self.certainty() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) rate: f64,
    pub(crate) certainty: Certainty,
}

/// Certainty of a measured figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Certainty {
    /// Number of measurements.
    pub samples: usize,
    /// Measurements that no other process disturbed, as far as the system reports it.
    pub undisturbed: usize,
    /// Spread of the measurements that count, as a share.
    pub spread: f64,
    /// Of a rate: the best undisturbed measurements, descending; 0 where there are fewer.
    pub best: [f64; BEST],
}

impl Certainty {
    /// For repetitions without information about disturbances. All of them count; the spread is a share of the median.
    pub fn of_repetitions(seconds: &[f64]) -> Certainty {
        let mut sorted = seconds.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let spread = match sorted.as_slice() {
            [] => 1.0,
            [least, .., most] => (most - least) / sorted[sorted.len() / 2],
            [_] => 0.0,
        };
        Certainty { samples: sorted.len(), undisturbed: sorted.len(), spread, best: [0.0; BEST] }
    }

    /// Of measurements of a rate that nothing disturbed, in any order.
    pub fn of_rates(rates: &[f64]) -> Certainty {
        let mut sorted = rates.to_vec();
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        let mut best = [0.0; BEST];
        best.iter_mut().zip(&sorted).for_each(|(best, rate)| *best = *rate);
        let spread = sorted.get(..sorted.len().min(BEST)).and_then(|best| Some((best.first()?, best.last()?)));
        let spread = spread.map_or(1.0, |(best, worst)| (best - worst) / best);
        Certainty { samples: rates.len(), undisturbed: rates.len(), spread, best }
    }

    /// Why the figure is uncertain; `None`: it is certain. The only definition of "not sure", for limits, curves and step
    /// costs.
    pub fn doubt(&self) -> Option<Doubt> {
        match self {
            _ if self.undisturbed < FEW => Some(Doubt::Few { samples: self.samples, undisturbed: self.undisturbed }),
            _ if self.spread > STEADY => Some(Doubt::Spread(self.spread)),
            _ => None,
        }
    }
}

/// Why a figure is uncertain. Its text ends a sentence that begins with "not sure: ".
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Doubt {
    /// Other processes disturbed nearly all measurements, or there were few.
    Few {
        /// Number of measurements.
        samples: usize,
        /// Undisturbed measurements.
        undisturbed: usize,
    },
    /// The measurements differ by this share.
    Spread(f64),
}

impl Doubt {
    /// Severity, to compare doubts.
    pub(crate) fn weight(&self) -> f64 {
        match self {
            Doubt::Few { undisturbed, .. } => 1.0 + 1.0 / (1 + undisturbed) as f64,
            Doubt::Spread(spread) => spread.min(1.0),
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Few { samples, undisturbed } if samples == undisturbed => {
                write!(f, "there were too few measurements ({samples})")
            }
            Doubt::Few { samples, undisturbed } => {
                write!(f, "other programs used the machine ({undisturbed} of {samples} measurements were undisturbed)")
            }
            Doubt::Spread(spread) => {
                write!(f, "measurements were {:.0} % apart, so something else used the machine", spread * 100.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use testing::Dice;

    use super::*;

    /// A simulated machine: its rate, and the load on it.
    #[derive(Clone, Copy, Debug)]
    struct Made {
        /// Work per second of all threads.
        rate: f64,
        threads: usize,
        /// Share of each core's time that other processes take.
        busy: f64,
        /// Time slice in seconds.
        slice: f64,
        /// Seconds to start a region.
        start: f64,
        kind: Threads,
    }

    impl Made {
        /// A region of `size` work. Each thread meets the load of its own core.
        fn sample(&self, size: usize, chance: &mut Dice) -> Sample {
            let work = size as f64;
            let needs = work / self.rate;
            let mut wall = 0f64;
            let threads = (0..self.threads).map(|_| {
                // Waits until its slice comes, and again whenever one ends.
                let away = |chance: &mut Dice| self.slice * self.busy / (1.0 - self.busy) * (0.5 + chance.share());
                let late = if chance.share() < self.busy { away(chance) } else { 0.0 };
                let mut lost = 0.0;
                if self.busy > 0.0 {
                    let mut left = needs - self.slice * chance.share();
                    while left > 0.0 {
                        lost += away(chance);
                        left -= self.slice;
                    }
                }
                wall = wall.max(late + needs + lost);
                let seconds = Duration::from_secs_f64;
                Interval { wall: seconds(needs + lost), cpu: seconds(needs), switches: u64::from(lost > 0.0) }
            });
            let threads = threads.collect();
            Sample { work, wall: Duration::from_secs_f64(wall + self.start), threads }
        }

        /// A series over it, on a made clock, and the sizes that it asked for.
        fn measured(&self, budget: Duration, chance: &mut Dice) -> (Figure, Vec<usize>) {
            let mut series = Series::new(self.kind, 1 << 10, usize::MAX);
            let (mut spent, mut sizes) = (Duration::ZERO, Vec::new());
            while let Some(size) = series.next(spent, budget) {
                let sample = self.sample(size, chance);
                spent += sample.wall;
                sizes.push(size);
                series.add(&sample);
            }
            (series.figure(), sizes)
        }
    }

    const BUDGET: Duration = Duration::from_millis(29);

    #[test]
    fn a_quiet_machine_is_measured_in_its_time_and_for_sure() {
        let quiet = Made { rate: 1e9, threads: 2, busy: 0.0, slice: 3e-3, start: 3e-6, kind: Threads::Share };
        let (figure, _) = quiet.measured(BUDGET, &mut Dice::new(1));
        assert_eq!(figure.certainty.doubt(), None, "{figure:?}");
        assert!(figure.rate <= 1e9 && figure.rate > 0.99e9, "{figure:?}");
    }

    #[test]
    fn a_thousand_busy_starts_are_right_or_not_sure() {
        // One seed per start, each with its own machine and load.
        let mut unsure = [0; 2];
        for seed in 0..1000 {
            let chance = &mut Dice::new(seed);
            let made = Made {
                rate: 10f64.powf(6.0 + 4.0 * chance.share()),
                threads: 1 + (chance.share() * 8.0) as usize,
                busy: 0.95 * chance.share(),
                slice: 1e-3 * (0.7 + 10.0 * chance.share()),
                start: 5e-6 * chance.share(),
                kind: if seed % 2 == 0 { Threads::Own } else { Threads::Share },
            };
            let (figure, sizes) = made.measured(BUDGET, chance);
            let off = figure.rate / made.rate;
            assert!(figure.rate > 0.0 && off <= 1.0 + 1e-6, "seed {seed}: {made:?} {figure:?}");
            match figure.certainty.doubt() {
                None => assert!(off > 0.85, "seed {seed}: sure and wrong: {made:?} {figure:?}"),
                // An uncertain figure is still near: it comes from the threads' CPU time.
                Some(_) => assert!(off > 0.85, "seed {seed}: {made:?} {figure:?}"),
            }
            unsure[seed as usize % 2] += usize::from(figure.certainty.doubt().is_some());
            // The figure never comes from the first, short rounds, whatever the time was lost to.
            let grown = sizes.iter().filter(|&&size| size == sizes[sizes.len() - 1]).count();
            assert!(grown >= LEAST_SAMPLES && sizes[sizes.len() - 1] as f64 >= made.rate * 0.9e-3, "seed {seed}");
        }
        // Of 500 each: per-core rates are measured beside most loads; all threads undisturbed together is rare.
        assert!(unsure[0] < 150 && unsure[1] < 450, "{unsure:?} were not sure");
    }

    #[test]
    fn a_first_region_that_lost_its_core_is_no_figure() {
        // Observed: 1,024 rounds in 29 ms, all the time that the loop had.
        let lost = Sample {
            work: 1024.0,
            wall: Duration::from_millis(29),
            threads: vec![Interval { wall: Duration::from_millis(29), cpu: Duration::from_micros(1), switches: 1 }; 2],
        };
        let mut series = Series::new(Threads::Own, 1 << 10, usize::MAX);
        series.add(&lost);
        assert_eq!(series.next(Duration::from_millis(29), BUDGET), Some(1 << 11), "it goes on, with more");
        assert_eq!(series.samples, 0);
    }

    #[test]
    fn what_is_sure_has_one_meaning() {
        let certainty =
            |samples, undisturbed, spread| Certainty { samples, undisturbed, spread, best: [1.0; BEST] }.doubt();
        assert_eq!(certainty(5, 5, 0.02), None);
        assert_eq!(certainty(40, 2, 0.0), Some(Doubt::Few { samples: 40, undisturbed: 2 }));
        assert_eq!(certainty(5, 5, 0.3), Some(Doubt::Spread(0.3)));
        assert_eq!(Certainty::of_repetitions(&[1.0, 1.02, 1.01]).doubt(), None);
        assert_eq!(Certainty::of_repetitions(&[1.0, 2.0, 1.0]).doubt(), Some(Doubt::Spread(1.0)));
        assert!(matches!(Certainty::of_repetitions(&[1.0]).doubt(), Some(Doubt::Few { .. })));
        assert!(Certainty::of_repetitions(&[]).doubt().is_some());
        assert_eq!(Certainty::of_rates(&[4.0, 3.9, 1.0, 3.9, 4.0, 3.8]).doubt(), None);
        assert_eq!(Certainty::of_rates(&[4.0, 3.0, 4.0]).doubt(), Some(Doubt::Spread(0.25)));
    }
}
