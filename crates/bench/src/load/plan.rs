//! What is sent and when: pure, and the same for the same seed.
//!
//! ```text
//! lengths    random: uniform around a mean          prefix_repetition: some prefixes, each before many suffixes
//! moments    gamma-distributed distances (burstiness 1: Poisson), scaled so that the last request leaves on time
//! sessions   the simulator's, turn for turn: which follows which, after what pause, with how many new tokens
//! ```

use std::time::Duration;

use figures::random::Random;
use protocol::Nanos;
use sim::workload::{Lengths, LoadPattern, Piece, Workload};

/// A prompt: token ids where the server takes them, words where it wants text.
#[derive(Clone, Debug, PartialEq)]
pub enum PlannedPrompt {
    /// For `/v1/completions`.
    Tokens(Vec<u32>),
    /// For chats; about one token a word, and the server's usage says how many it really were.
    Words(String),
    /// A conversation: what the user said first, the answer, what the user said then, ...
    Chat(Vec<String>),
}

/// One request of the load.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRequest {
    /// When it is sent, from the beginning of the run; if it follows another, how long after that one's end.
    pub at: Duration,
    /// The request, by its place in the load, that it follows in a conversation, and quotes.
    pub follows: Option<usize>,
    /// Which turn of its conversation it is, from 0.
    pub turn: usize,
    /// Its answer is quoted by the next turn.
    pub is_quoted: bool,
    /// What the answer before it is called, and the tokens that it was planned with.
    pub(crate) quotes: u64,
    pub(crate) quoted_tokens: usize,
    /// What is asked.
    pub prompt: PlannedPrompt,
    /// Tokens of the prompt as planned.
    pub prompt_tokens: usize,
    /// Most tokens of the answer.
    pub max_tokens: usize,
}

impl PlannedRequest {
    /// One that belongs to no conversation, sent at once.
    pub fn single(prompt: PlannedPrompt, prompt_tokens: usize, max_tokens: usize) -> PlannedRequest {
        PlannedRequest {
            at: Duration::ZERO,
            follows: None,
            turn: 0,
            is_quoted: false,
            quotes: 0,
            quoted_tokens: 0,
            prompt,
            prompt_tokens,
            max_tokens,
        }
    }
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
    /// Each prompt is one of `prefixes` prefixes and a unique suffix.
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
    /// Conversations, as the simulator has them ([`sim::LoadPattern::Sessions`]).
    Sessions {
        /// Turns of each.
        turns: usize,
        /// Mean pause between an answer and the next turn.
        pause: Duration,
        /// Tokens that all of them begin with.
        prefix: usize,
        /// Mean tokens that a turn appends.
        input: usize,
        /// Mean tokens of an answer.
        output: usize,
        /// Coefficient of variation of both.
        cv: f64,
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
            Dataset::Sessions { prefix, input, turns, .. } => *input as f64 + *prefix as f64 / *turns as f64,
            Dataset::Trace(_) => 0.0,
        };
    if tokens > MOST_TOKENS {
        return Err(PlanError::TooMuch { tokens, most: MOST_TOKENS });
    }
    if let Dataset::Sessions { .. } = dataset {
        return sessions(dataset, count, arrivals, words, seed);
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
        let (prompt, prompt_tokens) = prompt(&pieces, words);
        PlannedRequest { at, ..PlannedRequest::single(prompt, prompt_tokens, output.max(1)) }
    });
    Ok(asks.collect())
}

/// The simulator's sessions, each turn with what is new in it.
fn sessions(
    dataset: &Dataset,
    count: usize,
    arrivals: &Arrivals,
    words: bool,
    seed: u64,
) -> Result<Vec<PlannedRequest>, PlanError> {
    let &Dataset::Sessions { turns, pause, prefix, input, output, cv } = dataset else { return Ok(Vec::new()) };
    if arrivals.ramp.is_some() || arrivals.burstiness != 1.0 {
        // Only a session's first turn has a start time.
        let allowed = "1, and no ramp: sessions begin as a Poisson process";
        return Err(PlanError::Number { what: "--burstiness", allowed, value: arrivals.burstiness });
    }
    let rate = at_least("--request-rate", arrivals.rate)?;
    if count == 0 {
        return Err(PlanError::Empty);
    }
    let shape = LoadPattern::Sessions { turns, pause: Nanos(pause.as_nanos() as u64), prefix };
    let lengths = Lengths { input_tokens: input, output_tokens: output, cv };
    let load = Workload::synthetic(shape, lengths, rate, count, seed).arrivals;
    let mut asks: Vec<PlannedRequest> = Vec::with_capacity(load.len());
    for arrival in &load {
        let before = arrival.follows.map(|index| &load[index]);
        // What the turn before has, and its answer, are there already.
        let old = before.map_or(0, |before| before.prompt.len() + 1);
        let (prompt, prompt_tokens) = prompt(&arrival.prompt[old..], words);
        let turn = arrival.follows.map_or(0, |index| asks[index].turn + 1);
        if let Some(index) = arrival.follows {
            asks[index].is_quoted = true;
        }
        asks.push(PlannedRequest {
            at: Duration::from_nanos(arrival.at.0),
            follows: arrival.follows,
            turn,
            is_quoted: false,
            quotes: before.map_or(0, |before| before.answer),
            quoted_tokens: before.map_or(0, |before| before.output_tokens),
            prompt,
            prompt_tokens,
            max_tokens: arrival.output_tokens,
        });
    }
    Ok(asks)
}

/// Pieces as a prompt, and its tokens.
fn prompt(pieces: &[Piece], words: bool) -> (PlannedPrompt, usize) {
    let ids: Vec<u32> = pieces.iter().flat_map(|piece| (0..piece.len).map(|index| id(piece.name, index))).collect();
    let tokens = ids.len();
    (if words { PlannedPrompt::Words(as_words(&ids)) } else { PlannedPrompt::Tokens(ids) }, tokens)
}

/// The ids of an invented answer.
pub(crate) fn invented(name: u64, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|index| id(name, index)).collect()
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
        // Made elsewhere.
        Dataset::Sessions { .. } => Vec::new(),
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

/// A number that clocks can work with.
fn at_least(what: &'static str, value: f64) -> Result<f64, PlanError> {
    match value {
        // Not a number is none of both.
        _ if value >= LOWEST => Ok(value),
        _ if value > 0.0 => Err(PlanError::Number { what, allowed: "at least 0.000001", value }),
        _ => Err(PlanError::Number { what, allowed: "greater than 0", value }),
    }
}

/// When each of `count` requests is sent.
fn moments(arrivals: &Arrivals, count: usize, random: &mut Random) -> Result<Vec<Duration>, PlanError> {
    let finite = |what, value: f64| match at_least(what, value)? {
        value if value.is_finite() => Ok(value),
        value => Err(PlanError::Number { what, allowed: "finite", value }),
    };
    let burstiness = at_least("--burstiness", arrivals.burstiness)?;
    let rate_at: Box<dyn Fn(usize) -> f64> = match arrivals.ramp {
        None => {
            let rate = at_least("--request-rate", arrivals.rate)?;
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

    const AGENTS: Dataset =
        Dataset::Sessions { turns: 3, pause: Duration::from_secs(2), prefix: 40, input: 10, output: 7, cv: 0.0 };

    #[test]
    fn sessions_are_those_of_the_simulator() {
        let load = schedule(&AGENTS, 7, &POISSON, false, 5).unwrap();
        let turns: Vec<usize> = load.iter().map(|ask| ask.turn).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2, 0]);
        let follows: Vec<_> = load.iter().map(|ask| ask.follows).collect();
        assert_eq!(follows, [None, Some(0), Some(1), None, Some(3), Some(4), None]);
        assert_eq!(
            load.iter().map(|ask| ask.is_quoted).collect::<Vec<_>>(),
            [true, true, false, true, true, false, false]
        );
        // What is new in each turn: the shared prefix and its own tokens, then its own.
        assert_eq!(load.iter().map(|ask| ask.prompt_tokens).collect::<Vec<_>>(), [50, 10, 10, 50, 10, 10, 50]);
        let ids = |index: usize| match &load[index].prompt {
            PlannedPrompt::Tokens(ids) => ids.clone(),
            other => panic!("ids, not {other:?}"),
        };
        assert_eq!(ids(0)[..40], ids(3)[..40]);
        assert_ne!(ids(0)[40..], ids(3)[40..]);
        // The same moments, pauses and lengths as `sim` with these numbers.
        let shape = LoadPattern::Sessions { turns: 3, pause: Nanos(2_000_000_000), prefix: 40 };
        let lengths = Lengths { input_tokens: 10, output_tokens: 7, cv: 0.0 };
        let imagined = Workload::synthetic(shape, lengths, 10.0, 7, 5);
        for (ask, arrival) in load.iter().zip(&imagined.arrivals) {
            assert_eq!((ask.at.as_nanos() as u64, ask.max_tokens), (arrival.at.0, arrival.output_tokens));
        }
        let all_at_once = Arrivals { rate: f64::INFINITY, ..POISSON };
        let load = schedule(&AGENTS, 7, &all_at_once, true, 5).unwrap();
        assert!(load.iter().filter(|ask| ask.follows.is_none()).all(|ask| ask.at.is_zero()));
        let steady = Arrivals { burstiness: 2.0, ..POISSON };
        let error = schedule(&AGENTS, 7, &steady, false, 5).unwrap_err().to_string();
        assert!(error.contains("--burstiness") && error.contains("Poisson"), "{error}");
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
