//! Which samples of a rate count, how many are taken, and how sure the best of them is. Decisions alone: who measures
//! tells what came of it, and no clock is here.
//!
//! ```text
//! Sample: work, time of the region, what each thread had of its core
//!    |  too short ------> the next one has twice the work; it is no sample of the rate
//!    |  disturbed ------> thrown away; if there is no other, the threads' own time tells the rate, and nobody is sure
//!    v
//! the best five that nothing disturbed --> Figure: the highest, and how far the five are apart
//! ```
//! Whatever disturbs a measurement lowers it, so the best is the nearest to the truth. That five came as far says that
//! it is no accident.

use std::fmt;
use std::time::Duration;

use crate::disturbed::Stretch;

/// A sample is taken over at least this much of a thread's own time: the start of a region is then 1 % of it. Shorter
/// than what a scheduler gives a process at a time, so that some pass undisturbed beside any load.
const GROWN: Duration = Duration::from_millis(1);
/// Where threads' own time stands still, a region of so long has grown too.
const GROWN_BY_WALL: Duration = Duration::from_millis(40);
/// At least so many grown samples are taken, and the best so many tell how sure the figure is.
const LEAST_SAMPLES: usize = 5;
/// Of a series' time, how often it may be taken where samples are disturbed.
const PATIENCE: u32 = 4;
/// A region that took this much longer than its longest thread began late on one of them: they did not run together.
const MOST_LATE: f64 = 0.05;
/// Spread, as a share, below which measurements are called steady.
pub const STEADY: f64 = 0.10;
/// Fewer say little about chance.
pub const FEW: usize = 3;

/// Work that all threads of a pool did at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Operations or bytes, of all threads together. Each has an equal part.
    pub(crate) work: f64,
    /// From the start of the first to the end of the last.
    pub(crate) wall: Duration,
    /// What each thread had of its core.
    pub(crate) threads: Vec<Stretch>,
}

impl Sample {
    fn longest(&self, time: impl Fn(&Stretch) -> Duration) -> Duration {
        self.threads.iter().map(time).max().unwrap_or_default()
    }

    fn has_grown(&self) -> bool {
        let ran = self.longest(|thread| thread.cpu);
        ran >= GROWN || ran.is_zero() && self.wall >= GROWN_BY_WALL
    }

    /// Part of the work that each thread did.
    fn part(&self) -> f64 {
        self.work / self.threads.len() as f64
    }

    /// What was reached, whatever happened meanwhile.
    fn rate(&self) -> f64 {
        self.work / self.wall.as_secs_f64().max(1e-9)
    }

    /// As one sample of all threads, which counts if all of them ran, and together.
    fn together(&self) -> LaneSample {
        let late = self.wall.saturating_sub(self.longest(|thread| thread.wall));
        LaneSample {
            rate: self.rate(),
            guess: self.threads.iter().map(|thread| self.part() / ran(thread)).sum(),
            is_disturbed: self.threads.iter().any(Stretch::is_disturbed) || late > self.wall.mul_f64(MOST_LATE),
        }
    }

    /// As a sample of one thread.
    fn of_thread(&self, thread: &Stretch) -> LaneSample {
        LaneSample {
            rate: self.part() / thread.wall.as_secs_f64().max(1e-9),
            guess: self.part() / ran(thread),
            is_disturbed: thread.is_disturbed(),
        }
    }
}

/// Seconds that a thread ran.
fn ran(thread: &Stretch) -> f64 {
    let ran = match thread.cpu.min(thread.wall) {
        Duration::ZERO => thread.wall, // a clock that stands still
        ran => ran,
    };
    ran.as_secs_f64().max(1e-9)
}

/// What is judged by itself: one thread, or all of them.
#[derive(Clone, Copy, Debug)]
struct LaneSample {
    rate: f64,
    /// What it would have been by the time that threads ran. A guess: who runs while others do not has more of what
    /// they share.
    guess: f64,
    is_disturbed: bool,
}

/// The samples of a lane that count.
#[derive(Clone, Debug, Default)]
struct Lane {
    undisturbed: usize,
    /// The best of those, falling.
    best: Vec<f64>,
    /// Guesses of those that were disturbed.
    guesses: Vec<f64>,
}

impl Lane {
    fn hear(&mut self, sample: LaneSample) {
        if sample.is_disturbed {
            self.guesses.push(sample.guess);
            return;
        }
        self.undisturbed += 1;
        let place = self.best.partition_point(|&better| better >= sample.rate);
        self.best.insert(place, sample.rate);
        self.best.truncate(LEAST_SAMPLES);
    }

    fn spread(&self) -> f64 {
        match (self.best.first(), self.best.last()) {
            (Some(best), Some(worst)) => (best - worst) / best,
            _ => 1.0,
        }
    }

    fn rate(&self) -> f64 {
        let guess = || {
            let mut guesses = self.guesses.clone();
            guesses.sort_unstable_by(f64::total_cmp);
            guesses.get(guesses.len() / 2).copied().unwrap_or(0.0)
        };
        self.best.first().copied().unwrap_or_else(guess)
    }
}

/// Whether threads share what is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// They do, as the bandwidth of memory: only what all of them reach at the same time counts.
    Share,
    /// Each has its own, as the arithmetic of its core: a thread that ran undisturbed counts whatever became of the
    /// others.
    Own,
}

/// Samples of one rate as they come.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    threads: Threads,
    /// Size of the next sample: rounds, bytes, whatever makes it longer.
    size: usize,
    most: usize,
    has_grown: bool,
    samples: usize,
    lanes: Vec<Lane>,
    /// The most that any sample has reached.
    reached: f64,
}

impl Series {
    /// Samples of at least `size`, and at most `most`.
    pub(crate) fn new(threads: Threads, size: usize, most: usize) -> Series {
        Series { threads, size, most, has_grown: false, samples: 0, lanes: Vec::new(), reached: 0.0 }
    }

    /// The size of the next sample, `spent` into a series that should take `budget`; `None`: that is enough.
    pub(crate) fn next(&self, spent: Duration, budget: Duration) -> Option<usize> {
        let certainty = self.certainty();
        let is_good = certainty.doubt().is_none() && certainty.undisturbed >= LEAST_SAMPLES;
        let patience = if is_good { 1 } else { PATIENCE };
        (self.samples < LEAST_SAMPLES || spent < budget * patience).then_some(self.size)
    }

    /// Takes in what came of the size that was asked for.
    pub(crate) fn hear(&mut self, sample: &Sample) {
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
            Threads::Share => self.lanes[0].hear(sample.together()),
            Threads::Own => {
                self.lanes
                    .iter_mut()
                    .zip(&sample.threads)
                    .for_each(|(lane, thread)| lane.hear(sample.of_thread(thread)));
            }
        }
    }

    /// That of the lane that is known least.
    fn certainty(&self) -> Certainty {
        Certainty {
            samples: self.samples,
            undisturbed: self.lanes.iter().map(|lane| lane.undisturbed).min().unwrap_or(0),
            spread: self.lanes.iter().map(Lane::spread).fold(0.0, f64::max),
        }
    }

    /// The rate, once a sample has grown.
    pub(crate) fn figure(&self) -> Figure {
        let rate: f64 = self.lanes.iter().map(Lane::rate).sum();
        Figure { rate: rate.max(self.reached), certainty: self.certainty() }
    }
}

/// A measured rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) rate: f64,
    pub(crate) certainty: Certainty,
}

/// How sure a measured figure is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Certainty {
    /// Times that it was measured.
    pub samples: usize,
    /// Those that nothing else disturbed, as far as the system tells.
    pub undisturbed: usize,
    /// How far those that count are apart, as a share.
    pub spread: f64,
}

impl Certainty {
    /// Of repetitions of which nobody knows what disturbed them. All of them count; the spread is a share of the
    /// median.
    pub fn of_repetitions(seconds: &[f64]) -> Certainty {
        let mut sorted = seconds.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let spread = match sorted.as_slice() {
            [] => 1.0,
            [least, .., most] => (most - least) / sorted[sorted.len() / 2],
            [_] => 0.0,
        };
        Certainty { samples: sorted.len(), undisturbed: sorted.len(), spread }
    }

    /// Of what was measured well at an earlier time.
    pub const fn kept() -> Certainty {
        Certainty { samples: LEAST_SAMPLES, undisturbed: LEAST_SAMPLES, spread: 0.0 }
    }

    /// Why it is not sure; `None`: it is. The one meaning of "not sure", for limits, curves and costs of steps.
    pub fn doubt(&self) -> Option<Doubt> {
        match self {
            _ if self.undisturbed < FEW => Some(Doubt::Few { samples: self.samples, undisturbed: self.undisturbed }),
            _ if self.spread > STEADY => Some(Doubt::Spread(self.spread)),
            _ => None,
        }
    }
}

/// Why a figure is not sure. Printed, it ends a sentence that begins with "not sure: ".
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Doubt {
    /// Something else used the machine in nearly all measurements, or there were few.
    Few {
        /// Times that it was measured.
        samples: usize,
        /// Those that nothing disturbed.
        undisturbed: usize,
    },
    /// They are far apart, as a share.
    Spread(f64),
    /// It was kept by an earlier start as one that is not sure.
    Earlier,
}

impl Doubt {
    /// How much it weighs beside another one.
    pub(crate) fn weight(&self) -> f64 {
        match self {
            Doubt::Few { undisturbed, .. } => 1.0 + 1.0 / (1 + undisturbed) as f64,
            Doubt::Spread(spread) => spread.min(1.0),
            Doubt::Earlier => 0.0,
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Few { samples, undisturbed } => {
                write!(f, "other programs used the machine ({undisturbed} of {samples} measurements were undisturbed)")
            }
            Doubt::Spread(spread) => {
                write!(f, "measurements were {:.0} % apart, so something else used the machine", spread * 100.0)
            }
            Doubt::Earlier => f.write_str("other programs used the machine when it was measured, at an earlier start"),
        }
    }
}

#[cfg(test)]
mod tests {
    use testing::Dice;

    use super::*;

    /// A made machine: what it can do, and how others use it.
    #[derive(Clone, Copy, Debug)]
    struct Made {
        /// Work per second of all threads.
        rate: f64,
        threads: usize,
        /// Of each core's time, what others take.
        busy: f64,
        /// Seconds that a core is given to one process at a time.
        slice: f64,
        /// Seconds of a region's start.
        start: f64,
        kind: Threads,
    }

    impl Made {
        /// A region of so much work. Each thread meets the load of its own core.
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
                Stretch { wall: seconds(needs + lost), cpu: seconds(needs), switches: u64::from(lost > 0.0) }
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
                series.hear(&sample);
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
        // Seeds are starts; every one of them has its own machine and its own load.
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
                // What is not sure is not wild either: it goes by the time that the threads had.
                Some(_) => assert!(off > 0.85, "seed {seed}: {made:?} {figure:?}"),
            }
            unsure[seed as usize % 2] += usize::from(figure.certainty.doubt().is_some());
            // The figure never comes of the first, short rounds, wherever the time went.
            let grown = sizes.iter().filter(|&&size| size == sizes[sizes.len() - 1]).count();
            assert!(grown >= LEAST_SAMPLES && sizes[sizes.len() - 1] as f64 >= made.rate * 0.9e-3, "seed {seed}");
        }
        // Of 500 each: what cores have for themselves is known beside most loads; that all run together is rare.
        assert!(unsure[0] < 150 && unsure[1] < 450, "{unsure:?} were not sure");
    }

    #[test]
    fn a_first_region_that_lost_its_core_is_no_figure() {
        // What was seen: 1,024 rounds in 29 ms, all the time that the loop had.
        let lost = Sample {
            work: 1024.0,
            wall: Duration::from_millis(29),
            threads: vec![Stretch { wall: Duration::from_millis(29), cpu: Duration::from_micros(1), switches: 1 }; 2],
        };
        let mut series = Series::new(Threads::Own, 1 << 10, usize::MAX);
        series.hear(&lost);
        assert_eq!(series.next(Duration::from_millis(29), BUDGET), Some(1 << 11), "it goes on, with more");
        assert_eq!(series.samples, 0);
    }

    #[test]
    fn what_is_sure_has_one_meaning() {
        let certainty = |samples, undisturbed, spread| Certainty { samples, undisturbed, spread }.doubt();
        assert_eq!(certainty(5, 5, 0.02), None);
        assert_eq!(certainty(40, 2, 0.0), Some(Doubt::Few { samples: 40, undisturbed: 2 }));
        assert_eq!(certainty(5, 5, 0.3), Some(Doubt::Spread(0.3)));
        assert_eq!(Certainty::of_repetitions(&[1.0, 1.02, 1.01]).doubt(), None);
        assert_eq!(Certainty::of_repetitions(&[1.0, 2.0, 1.0]).doubt(), Some(Doubt::Spread(1.0)));
        assert!(matches!(Certainty::of_repetitions(&[1.0]).doubt(), Some(Doubt::Few { .. })));
        assert!(Certainty::of_repetitions(&[]).doubt().is_some());
        assert_eq!(Certainty::kept().doubt(), None);
    }
}
