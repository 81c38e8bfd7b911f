//! When what is in the cache will be asked for again: learned from what was.
//!
//! ```text
//! conversation   |turn|.... gap ....|turn|..... gap .....|turn|... age ->      gap: the mean of its own so far
//! law            of all conversations: how many came back at which age, in gaps; how many had reached that age
//! value          chance to come back within HOLD gaps / expected time until then, HOLD at most
//! ```
//! A conversation keeps its pace (a tool answers in seconds, a person in minutes), so ages are compared with its own gap;
//! those without one are compared with the mean first gap of all. Survival by the counts of Kaplan and Meier (JASA 53,
//! 1958), with a prior of half of what is left in each octave, by which the older of two is worth less: without knowledge
//! the order is that of the last use.

use protocol::Nanos;

/// Two bins in each octave of age over gap, from an eighth to 32.
const BINS: usize = 16;
const EDGES: [f64; BINS + 1] = {
    let mut edges = [0.125; BINS + 1];
    let mut bin = 1;
    while bin <= BINS {
        edges[bin] = edges[bin - 1] * core::f64::consts::SQRT_2;
        bin += 1;
    }
    edges
};
/// For this many gaps, about, a block would be kept on.
const HOLD: f64 = 4.0;
/// The prior: as many observations, in each of which this share comes back within half an octave.
const PRIOR: f64 = 1.0;
const PRIOR_SHARE: f64 = 1.0 - core::f64::consts::FRAC_1_SQRT_2;
/// This number is remembered; then each counts half.
const MEMORY: f64 = 400.0;
/// Weight of one first gap in the mean of all, and the mean before any.
const FIRST_WEIGHT: f64 = 0.1;
const FIRST_SECONDS: f64 = 10.0;

/// When a content was used last, and the mean time between two uses; zero: it was used once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) used: Nanos,
    pub(crate) gap: Nanos,
}

impl Pace {
    /// Of what is wanted again at once: a sequence that lost its blocks.
    pub(crate) const SOON: Nanos = Nanos(1_000_000);

    /// It is used again. Uses at one moment are one.
    pub(crate) fn again(self, now: Nanos) -> Pace {
        let gap = match (self.gap.0, now.since(self.used).0) {
            (gap, 0) | (0, gap) => gap,
            (before, gap) => before / 2 + gap / 2,
        };
        Pace { used: now, gap: Nanos(gap) }
    }
}

/// At which ages conversations came back.
#[derive(Clone, Debug)]
struct ReturnLaw {
    returned: [f64; BINS],
    reached: [f64; BINS],
    /// By age, per gap.
    value: [f64; BINS],
}

impl ReturnLaw {
    fn new() -> ReturnLaw {
        let mut law = ReturnLaw { returned: [0.0; BINS], reached: [0.0; BINS], value: [0.0; BINS] };
        law.update();
        law
    }

    fn bin(ratio: f64) -> usize {
        EDGES[1..BINS].partition_point(|&edge| edge <= ratio)
    }

    fn add(&mut self, ratio: f64, came_back: bool) {
        let bin = ReturnLaw::bin(ratio);
        self.reached[..=bin].iter_mut().for_each(|reached| *reached += 1.0);
        self.returned[bin] += f64::from(u8::from(came_back));
        if self.reached[0] > MEMORY {
            self.reached.iter_mut().chain(&mut self.returned).for_each(|count| *count /= 2.0);
        }
        self.update();
    }

    fn update(&mut self) {
        self.value = core::array::from_fn(|bin| self.value_in(bin));
    }

    fn value_in(&self, now: usize) -> f64 {
        let (mut is_away, mut chance, mut time) = (1.0, 0.0, 0.0);
        for bin in now..BINS {
            let comes = (self.returned[bin] + PRIOR_SHARE * PRIOR) / (self.reached[bin] + PRIOR);
            let width = (EDGES[bin + 1] - EDGES[bin]) * if bin == now { 0.5 } else { 1.0 };
            time += is_away * width * (1.0 - comes / 2.0);
            chance += is_away * comes;
            is_away *= 1.0 - comes;
            if EDGES[bin + 1] - EDGES[now] >= HOLD && bin > now + 1 {
                break;
            }
        }
        chance / time
    }
}

/// What is known of all conversations.
#[derive(Clone, Debug)]
pub(crate) struct Returns {
    /// Of those that never came back, and of those that did.
    laws: [ReturnLaw; 2],
    first_seconds: f64,
}

impl Returns {
    pub(crate) fn new() -> Returns {
        Returns { laws: [ReturnLaw::new(), ReturnLaw::new()], first_seconds: FIRST_SECONDS }
    }

    /// The law that holds, and the gap in seconds.
    fn scale(&self, pace: Pace) -> (usize, f64) {
        if pace.gap == Nanos(0) { (0, self.first_seconds) } else { (1, pace.gap.as_secs_f64()) }
    }

    /// Expected returns per second: what a block that is kept saves, but for the time that computing it takes.
    pub(crate) fn value(&self, pace: Pace, now: Nanos) -> f64 {
        let (law, gap) = self.scale(pace);
        self.laws[law].value[ReturnLaw::bin(now.since(pace.used).as_secs_f64() / gap)] / gap
    }

    /// A conversation came back, or was forgotten before it did.
    pub(crate) fn observe(&mut self, pace: Pace, now: Nanos, came_back: bool) {
        let (law, gap) = self.scale(pace);
        let age = now.since(pace.used).as_secs_f64();
        self.laws[law].add(age / gap, came_back);
        if law == 0 && came_back {
            self.first_seconds += FIRST_WEIGHT * (age.max(1e-3) - self.first_seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn without_knowledge_the_longest_unused_is_worth_least() {
        let returns = Returns::new();
        for gap in [0, 1, 100] {
            let value = |used: u64| {
                returns.value(Pace { used: Nanos(used * SECOND), gap: Nanos(gap * SECOND) }, Nanos(1000 * SECOND))
            };
            let values = [999, 998, 990, 950, 700, 0].map(value);
            assert!(values.is_sorted_by(|a, b| a >= b), "{gap}: {values:?}");
        }
    }

    #[test]
    fn what_comes_back_at_its_pace_is_worth_most_shortly_before() {
        let mut returns = Returns::new();
        // Each comes back after 0.9 to 1.1 of its own gap, whatever that is, or never.
        for index in 0..400_u64 {
            let gap = 1 + index % 50;
            let age = gap * (900 + index * 37 % 200) / 1000;
            let pace = Pace { used: Nanos(0), gap: Nanos(gap * SECOND) };
            let ends = index % 10 == 0;
            returns.observe(pace, Nanos(if ends { 30 * gap } else { age } * SECOND), !ends);
        }
        let at =
            |age: u64, gap: u64| returns.value(Pace { used: Nanos(0), gap: Nanos(gap * SECOND) }, Nanos(age * SECOND));
        assert!(at(90, 100) > 2.0 * at(10, 100), "{} {}", at(90, 100), at(10, 100));
        assert!(at(90, 100) > 10.0 * at(300, 100), "it is over: {} {}", at(90, 100), at(300, 100));
        assert!(at(90, 100) < at(9, 10), "what comes sooner is worth more");
    }
}
