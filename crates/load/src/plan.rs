//! What is sent and when: pure, and the same for the same seed.
//!
//! ```text
//! lengths    random: uniform around a mean          prefix_repetition: some prefixes, each before many suffixes
//! moments    gamma-distributed distances (burstiness 1: Poisson), scaled so that the last request leaves on time
//! ```

use std::time::Duration;

use sim::random::Random;
use sim::workload::{Piece, Workload};

/// A prompt: token ids where the server takes them, words where it wants text.
#[derive(Clone, Debug, PartialEq)]
pub enum PlannedPrompt {
    /// For `/v1/completions`.
    Tokens(Vec<u32>),
    /// For chats; about one token a word, and the server's usage says how many it really were.
    Words(String),
}

/// One request of the load.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRequest {
    /// When it is sent, from the beginning of the run.
    pub at: Duration,
    /// What is asked.
    pub prompt: PlannedPrompt,
    /// Tokens of the prompt as planned.
    pub prompt_tokens: usize,
    /// Most tokens of the answer.
    pub max_tokens: usize,
}

/// Where prompts come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Dataset {
    /// Random tokens, lengths uniform in `mean * (1 - ratio) ..= mean * (1 + ratio)`, behind a prefix that all share.
    Random {
        /// Mean tokens after the prefix.
        input: usize,
        /// Mean tokens of answers.
        output: usize,
        /// 0: all lengths equal.
        ratio: f64,
        /// Tokens that all prompts begin with.
        prefix: usize,
    },
    /// Each prompt is one of `prefixes` prefixes and a suffix of its own.
    PrefixRepetition {
        /// Tokens of a prefix.
        prefix: usize,
        /// Tokens of a suffix.
        suffix: usize,
        /// Different prefixes.
        prefixes: usize,
        /// Tokens of answers.
        output: usize,
    },
    /// A recorded service: its moments, lengths and shared prefixes, as the simulator replays them.
    Trace(Workload),
}

/// How requests per second grow over the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ramp {
    /// From one rate to the other in equal steps.
    Linear(f64, f64),
    /// From one rate to the other in equal ratios.
    Exponential(f64, f64),
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrivals {
    /// Requests per second; infinite: all at once.
    pub rate: f64,
    /// Shape of the distances: 1 is a Poisson process, less is burstier, more is steadier; infinite: exactly even.
    pub burstiness: f64,
    /// A changing rate instead.
    pub ramp: Option<Ramp>,
}

/// Why there is no such load.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A number out of its range.
    #[error("{what} must be {allowed}, not {value}")]
    Number {
        /// The option.
        what: &'static str,
        /// What is allowed.
        allowed: &'static str,
        /// What was given.
        value: f64,
    },
    /// More than a client holds.
    #[error("{tokens:.0} prompt tokens are too many for one run; at most {most:.0}: fewer or shorter prompts")]
    TooMuch {
        /// Of all prompts together.
        tokens: f64,
        /// What is held.
        most: f64,
    },
    /// Nothing to send.
    #[error("there are no requests to send")]
    Empty,
}

/// Prompt tokens of a run at most: 4 GB of them.
const MOST_TOKENS: f64 = 1e9;
/// Below it a run takes years, and its moments leave what clocks can say.
const LOWEST: f64 = 1e-6;

/// Ids that every vocabulary has and no tokenizer treats as special.
const IDS: std::ops::Range<u32> = 300..1500;

/// The requests of a run, by rising moments. `words`: prompts as text instead of ids.
pub fn schedule(
    dataset: &Dataset,
    count: usize,
    arrivals: &Arrivals,
    words: bool,
    seed: u64,
) -> Result<Vec<PlannedRequest>, PlanError> {
    let mut random = Random::new(seed);
    let tokens = count as f64
        * match dataset {
            Dataset::Random { input, prefix, .. } => *input as f64 + *prefix as f64,
            Dataset::PrefixRepetition { prefix, suffix, .. } => *prefix as f64 + *suffix as f64,
            Dataset::Trace(_) => 0.0,
        };
    if tokens > MOST_TOKENS {
        return Err(PlanError::TooMuch { tokens, most: MOST_TOKENS });
    }
    let shapes = shapes(dataset, count, &mut random)?;
    if shapes.is_empty() {
        return Err(PlanError::Empty);
    }
    let moments = match dataset {
        Dataset::Trace(load) => {
            load.arrivals.iter().take(count).map(|arrival| Duration::from_nanos(arrival.at.0)).collect()
        }
        _ => moments(arrivals, shapes.len(), &mut random)?,
    };
    let asks = moments.into_iter().zip(shapes).map(|(at, (pieces, output))| {
        let ids: Vec<u32> = pieces.iter().flat_map(|piece| (0..piece.len).map(|index| id(piece.name, index))).collect();
        let prompt_tokens = ids.len();
        let prompt = if words { PlannedPrompt::Words(as_words(&ids)) } else { PlannedPrompt::Tokens(ids) };
        PlannedRequest { at, prompt, prompt_tokens, max_tokens: output.max(1) }
    });
    Ok(asks.collect())
}

/// A token of a named piece, as an id that every vocabulary has.
fn id(name: u64, index: usize) -> u32 {
    IDS.start + Piece::token(name, index) % (IDS.end - IDS.start)
}

/// Of each request: the pieces of its prompt, and the tokens of its answer.
fn shapes(dataset: &Dataset, count: usize, random: &mut Random) -> Result<Vec<(Vec<Piece>, usize)>, PlanError> {
    Ok(match dataset {
        &Dataset::Random { input, output, ratio, prefix } => {
            if !(0.0..1.0).contains(&ratio) {
                let allowed = "at least 0 and below 1";
                return Err(PlanError::Number { what: "--random-range-ratio", allowed, value: ratio });
            }
            let shared = Piece { name: 1, len: prefix };
            let shape = |_| {
                let (input, output) = (around(input, ratio, random), around(output, ratio, random));
                (vec![shared, Piece { name: random.bits(), len: input }], output)
            };
            (0..count).map(shape).collect()
        }
        &Dataset::PrefixRepetition { prefix, suffix, prefixes, output } => {
            if prefixes == 0 {
                let what = "--prefix-repetition-num-prefixes";
                return Err(PlanError::Number { what, allowed: "at least 1", value: 0.0 });
            }
            let shape = |index| {
                let shared = Piece { name: (index % prefixes) as u64, len: prefix };
                (vec![shared, Piece { name: random.bits(), len: suffix }], output)
            };
            (0..count).map(shape).collect()
        }
        Dataset::Trace(load) => {
            let arrivals = load.arrivals.iter().take(count);
            arrivals.map(|arrival| (arrival.prompt.clone(), arrival.output_tokens)).collect()
        }
    })
}

/// Uniform in `mean * (1 - ratio) ..= mean * (1 + ratio)`, at least 1.
fn around(mean: usize, ratio: f64, random: &mut Random) -> usize {
    let low = (mean as f64 * (1.0 - ratio)).floor();
    let high = (mean as f64 * (1.0 + ratio)).ceil();
    let drawn = (low + random.uniform() * (high - low + 1.0)).floor();
    drawn.clamp(1.0, high.max(1.0)) as usize
}

/// When each of `count` requests is sent.
fn moments(arrivals: &Arrivals, count: usize, random: &mut Random) -> Result<Vec<Duration>, PlanError> {
    let positive = |what, value: f64| match value {
        // Not a number is none of both.
        _ if value >= LOWEST => Ok(value),
        _ if value > 0.0 => Err(PlanError::Number { what, allowed: "at least 0.000001", value }),
        _ => Err(PlanError::Number { what, allowed: "greater than 0", value }),
    };
    let finite = |what, value: f64| match positive(what, value)? {
        value if value.is_finite() => Ok(value),
        value => Err(PlanError::Number { what, allowed: "finite", value }),
    };
    let burstiness = positive("--burstiness", arrivals.burstiness)?;
    let rate_at: Box<dyn Fn(usize) -> f64> = match arrivals.ramp {
        None => {
            let rate = positive("--request-rate", arrivals.rate)?;
            Box::new(move |_| rate)
        }
        Some(ramp) => {
            let (Ramp::Linear(from, to) | Ramp::Exponential(from, to)) = ramp;
            let from = finite("--ramp-up-start-rps", from)?;
            let to = finite("--ramp-up-end-rps", to)?;
            let share = move |index: usize| index as f64 / (count - 1).max(1) as f64;
            match ramp {
                Ramp::Linear(..) => Box::new(move |index| from + (to - from) * share(index)),
                Ramp::Exponential(..) => Box::new(move |index| from * (to / from).powf(share(index))),
            }
        }
    };
    let mut now = 0.0;
    let mut moments: Vec<f64> = (0..count)
        .map(|index| {
            let mean = 1.0 / rate_at(index);
            // Of a gamma distribution with this shape, the coefficient of variation is 1 / sqrt(shape).
            now += mean * random.gamma(1.0 / burstiness.sqrt());
            now
        })
        .collect();
    // Chance would make the whole run a few percent faster or slower than asked.
    if arrivals.ramp.is_none() && now > 0.0 {
        let scale = count as f64 / arrivals.rate / now;
        moments.iter_mut().for_each(|moment| *moment *= scale);
    }
    Ok(moments.into_iter().map(Duration::from_secs_f64).collect())
}

fn as_words(ids: &[u32]) -> String {
    // Short syllables: most vocabularies have them as one token.
    const SYLLABLES: [&str; 24] = [
        "and", "the", "red", "sun", "old", "top", "run", "map", "ice", "win", "box", "sea", "day", "cup", "war", "art",
        "sky", "car", "low", "tea", "key", "pay", "job", "fit",
    ];
    ids.iter().map(|&id| SYLLABLES[id as usize % SYLLABLES.len()]).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const POISSON: Arrivals = Arrivals { rate: 10.0, burstiness: 1.0, ramp: None };

    fn random(input: usize, ratio: f64) -> Dataset {
        Dataset::Random { input, output: 20, ratio, prefix: 0 }
    }

    #[test]
    fn the_same_seed_gives_the_same_load_and_another_seed_another() {
        let load = |seed| schedule(&random(30, 0.5), 50, &POISSON, false, seed).unwrap();
        assert_eq!(load(1), load(1));
        assert_ne!(load(1), load(2));
    }

    #[test]
    fn the_last_request_leaves_when_the_rate_says() {
        for burstiness in [0.3, 1.0, 4.0, f64::INFINITY] {
            let arrivals = Arrivals { burstiness, ..POISSON };
            let load = schedule(&random(3, 0.0), 200, &arrivals, false, 7).unwrap();
            assert!((load.last().unwrap().at.as_secs_f64() - 20.0).abs() < 1e-6);
            assert!(load.is_sorted_by_key(|ask| ask.at));
        }
    }

    #[test]
    fn burstiness_is_the_shape_of_the_distances() {
        // Of a gamma distribution the squared coefficient of variation is 1 / shape.
        for shape in [0.25, 1.0, 4.0] {
            let arrivals = Arrivals { burstiness: shape, ..POISSON };
            let load = schedule(&random(1, 0.0), 20_000, &arrivals, false, 3).unwrap();
            let gaps: Vec<f64> = load.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            let found = variance / (mean * mean);
            assert!((found * shape - 1.0).abs() < 0.1, "shape {shape}: {found}");
        }
    }

    #[test]
    fn a_ramp_goes_from_one_rate_to_the_other() {
        for ramp in [Ramp::Linear(1.0, 9.0), Ramp::Exponential(1.0, 9.0)] {
            let arrivals = Arrivals { rate: f64::INFINITY, burstiness: f64::INFINITY, ramp: Some(ramp) };
            let load = schedule(&random(1, 0.0), 101, &arrivals, false, 3).unwrap();
            let gap = |index: usize| (load[index].at - load[index - 1].at).as_secs_f64();
            assert!((gap(100) - 1.0 / 9.0).abs() < 1e-6 && gap(1) > 0.9, "{ramp:?}: {} {}", gap(1), gap(100));
        }
    }

    #[test]
    fn lengths_stay_in_their_range_and_prefixes_are_shared() {
        let load = schedule(&random(100, 0.3), 500, &POISSON, false, 5).unwrap();
        assert!(load.iter().all(|ask| (70..=131).contains(&ask.prompt_tokens)));
        let dataset = Dataset::PrefixRepetition { prefix: 40, suffix: 10, prefixes: 3, output: 8 };
        let load = schedule(&dataset, 9, &POISSON, false, 5).unwrap();
        let PlannedPrompt::Tokens(first) = &load[0].prompt else { panic!("ids") };
        let PlannedPrompt::Tokens(fourth) = &load[3].prompt else { panic!("ids") };
        assert_eq!((first.len(), first[..40] == fourth[..40], first[40..] == fourth[40..]), (50, true, false));
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let cases = [
            (random(3, 1.5), POISSON, "--random-range-ratio must be at least 0 and below 1, not 1.5"),
            (random(3, 0.0), Arrivals { rate: -1.0, ..POISSON }, "--request-rate must be greater than 0, not -1"),
            (random(3, 0.0), Arrivals { burstiness: 0.0, ..POISSON }, "--burstiness must be greater than 0, not 0"),
            (
                random(3, 0.0),
                Arrivals { ramp: Some(Ramp::Linear(0.0, 1.0)), ..POISSON },
                "--ramp-up-start-rps must be greater than 0, not 0",
            ),
            (
                random(3, 0.0),
                Arrivals { ramp: Some(Ramp::Exponential(1.0, f64::INFINITY)), ..POISSON },
                "--ramp-up-end-rps must be finite, not inf",
            ),
            (random(3, 0.0), Arrivals { rate: f64::NAN, ..POISSON }, "--request-rate must be greater than 0, not NaN"),
            (
                random(3, 0.0),
                Arrivals { rate: 1e-300, ..POISSON },
                "--request-rate must be at least 0.000001, not 0.000",
            ),
            (
                random(1_000_000_000, 0.0),
                POISSON,
                "5000000000 prompt tokens are too many for one run; at most 1000000000: fewer or shorter prompts",
            ),
        ];
        for (dataset, arrivals, message) in cases {
            let error = schedule(&dataset, 5, &arrivals, false, 1).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error:?} is not {message:?}");
        }
        assert_eq!(schedule(&random(3, 0.0), 0, &POISSON, false, 1), Err(PlanError::Empty));
    }
}
