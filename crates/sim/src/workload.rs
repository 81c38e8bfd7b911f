//! Who asks for what, and when.
//!
//! ```text
//! poisson        . ..  .   . . ..    .     independent users: gaps without memory
//! bursty         ....      .. .......      the same rate, gaps of a larger spread (gamma)
//! shared prefix  [ one of k prefixes | its own question ]
//! sessions       question, answer, a pause, [ all of that | next question ], ...      what agents do, in dozens of turns
//! ```
//!
//! A prompt is a list of named pieces, not tokens: two requests that begin with the same pieces begin with the same
//! tokens, which is what a prefix cache is about, and a million requests fit into memory. The tokens are made when the
//! request is admitted. Bursts as gamma gaps: the traces of production services have a coefficient of variation well
//! above 1 (BurstGPT, Wang et al., 2024).

use std::sync::Arc;

use scheduler::{Nanos, Priority, Targets, TokenId};

use crate::drafts::{Acceptance, Drafting, RememberedDrafts};
use figures::random::{Random, mix};

/// Consecutive tokens with a name: equal names mean equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The name. Of two pieces with one name and different lengths, the shorter is the beginning of the longer.
    pub name: u64,
    /// Tokens.
    pub len: usize,
}

impl Piece {
    /// Token `index` of the piece called `name`.
    pub fn token(name: u64, index: usize) -> TokenId {
        (mix(name ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 33) as TokenId
    }
}

/// One request of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// When it arrives; if it follows another, how long after that one's last token.
    pub at: Nanos,
    /// The request, by its place in the load, that must have ended before.
    pub follows: Option<usize>,
    /// What it asks.
    pub prompt: Vec<Piece>,
    /// Tokens of the answer, at least 1.
    pub output_tokens: usize,
    /// What its answer is called: a later prompt may quote it.
    pub answer: u64,
    /// Its class.
    pub priority: Priority,
    /// Whose it is.
    pub tenant: u64,
    /// What it wants to be met.
    pub targets: Targets,
    /// What is known of the guesses at its tokens; `None`: as the load says.
    pub drafts: Option<Arc<RememberedDrafts>>,
}

impl Arrival {
    /// A request of nobody in particular, with a prompt that nobody shares if `name` is used once.
    pub fn new(at: Nanos, name: u64, input_tokens: usize, output_tokens: usize) -> Arrival {
        Arrival {
            at,
            follows: None,
            prompt: vec![Piece { name: mix(name) | ASKED, len: input_tokens }],
            output_tokens,
            answer: mix(name) & !ASKED,
            priority: Priority::default(),
            tenant: 0,
            targets: Targets::default(),
            drafts: None,
        }
    }

    /// Tokens of the prompt.
    pub fn input_tokens(&self) -> usize {
        self.prompt.iter().map(|piece| piece.len).sum()
    }

    /// The prompt as the scheduler wants it.
    pub(crate) fn tokens(&self) -> Arc<[TokenId]> {
        match self.prompt[..] {
            // Of known length: written straight to where it stays.
            [Piece { name, len }] => (0..len).map(|index| Piece::token(name, index)).collect(),
            _ => {
                let mut tokens = Vec::with_capacity(self.input_tokens());
                for piece in &self.prompt {
                    tokens.extend((0..piece.len).map(|index| Piece::token(piece.name, index)));
                }
                tokens.into()
            }
        }
    }
}

/// Requests of a load, at most: they take two gigabytes.
pub const MAX_REQUESTS: usize = 10_000_000;
/// Turns of a session, at most: each quotes all before it.
pub const MAX_TURNS: usize = 1000;
/// Longest prompt, answer or shared prefix of a load.
const MAX_TOKENS: usize = 1 << 24;
/// Nothing comes later than this: thirty years.
pub(crate) const MOST_TIME: Nanos = Nanos(MAX_NANOS as u64);
const MAX_NANOS: f64 = 1e18;

/// Tells the names of prompts and answers apart.
const ASKED: u64 = 1 << 63;

/// Requests in the order of arrival; those that follow others stand anywhere after them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// What to call it in a report.
    pub name: String,
    /// The requests.
    pub arrivals: Vec<Arrival>,
    /// How often guesses at next tokens hold; `None`: nobody guesses.
    pub acceptance: Option<Acceptance>,
}

/// How long prompts and answers are: gamma distributed around a mean, rounded, at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lengths {
    /// Mean tokens of a prompt (of what is new in it).
    pub input_tokens: usize,
    /// Mean tokens of an answer.
    pub output_tokens: usize,
    /// Coefficient of variation of both; 0: all alike.
    pub cv: f64,
}

impl Lengths {
    fn draw(&self, mean: usize, random: &mut Random) -> usize {
        ((mean as f64 * random.gamma(self.cv)).round() as usize).clamp(1, MAX_TOKENS)
    }
}

/// How requests relate to each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Independent users.
    Poisson,
    /// The same rate with gaps of this coefficient of variation.
    Bursty {
        /// Above 1: burstier than Poisson.
        cv: f64,
    },
    /// As Poisson; every prompt begins with one of some prefixes, chosen evenly.
    SharedPrefix {
        /// How many there are.
        prefixes: usize,
        /// How long each is.
        tokens: usize,
    },
    /// Conversations that begin as Poisson: each turn quotes all before it and comes a pause after its answer.
    Sessions {
        /// Turns of each.
        turns: usize,
        /// Mean pause (exponential).
        pause: Nanos,
        /// Tokens that all of them begin with: a system prompt, a list of tools.
        prefix: usize,
    },
}

impl Workload {
    /// `requests` requests (turns count) that arrive at `rate` per second, drawn from `seed`. In sessions, `rate` is
    /// that of sessions times turns, so that a fleet that keeps up sees this many requests per second.
    /// Takes the memory of a few hundred bytes for each request; of sessions, of 16 bytes for each turn before it as
    /// well. Panics if `rate` is not positive.
    pub fn synthetic(shape: Shape, lengths: Lengths, rate: f64, requests: usize, seed: u64) -> Workload {
        assert!(rate > 0.0, "requests per second");
        let mut random = Random::new(seed);
        let mut arrivals: Vec<Arrival> = Vec::with_capacity(requests);
        let mut seconds = 0.0;
        while arrivals.len() < requests {
            let index = arrivals.len() as u64;
            let gap = match shape {
                Shape::Bursty { cv } => random.gamma(cv),
                Shape::Sessions { turns, .. } => random.exponential() * turns as f64,
                Shape::Poisson | Shape::SharedPrefix { .. } => random.exponential(),
            };
            seconds += gap / rate;
            let at = Nanos((seconds * 1e9).min(MAX_NANOS) as u64);
            let input = lengths.draw(lengths.input_tokens, &mut random);
            let output = lengths.draw(lengths.output_tokens, &mut random);
            let mut arrival = Arrival::new(at, mix(seed).wrapping_add(index), input, output);
            if let Shape::SharedPrefix { prefixes, tokens } = shape {
                let prefix = random.below(prefixes.max(1) as u64);
                arrival.prompt.insert(0, Piece { name: mix(prefix ^ mix(!seed)) | ASKED, len: tokens });
            }
            if let Shape::Sessions { prefix: prefix @ 1.., .. } = shape {
                arrival.prompt.insert(0, Piece { name: mix(!seed) | ASKED, len: prefix });
            }
            arrivals.push(arrival);
            if let Shape::Sessions { turns, pause, .. } = shape {
                let turns = turns.min(1 + requests - arrivals.len());
                for _ in 1..turns {
                    follow_up(&mut arrivals, lengths, pause, seed, &mut random);
                }
            }
        }
        let name = match shape {
            Shape::Poisson => format!("poisson, {rate} requests/s"),
            Shape::Bursty { cv } => format!("bursty (cv {cv}), {rate} requests/s"),
            Shape::SharedPrefix { prefixes, tokens } => {
                format!("poisson, {rate} requests/s, {prefixes} shared prefixes of {tokens} tokens")
            }
            Shape::Sessions { turns, .. } => format!("sessions of {turns} turns, {rate} requests/s"),
        };
        Workload { name, arrivals, acceptance: None }
    }

    /// The same requests with targets: those that have their own keep them.
    pub fn with_targets(mut self, targets: Targets) -> Workload {
        for arrival in &mut self.arrivals {
            arrival.targets.ttft = arrival.targets.ttft.or(targets.ttft);
            arrival.targets.tpot = arrival.targets.tpot.or(targets.tpot);
        }
        self
    }

    /// The same requests, whose next tokens are guessed at.
    pub fn with_acceptance(self, acceptance: Option<Acceptance>) -> Workload {
        Workload { acceptance, ..self }
    }

    /// What guesses at the answer of a request go by; `None`: nobody guesses.
    pub(crate) fn drafting(&self, request: usize) -> Option<Drafting<'_>> {
        let remembered = self.arrivals[request].drafts.as_deref().map(Drafting::Remembered);
        remembered.or_else(|| self.acceptance.as_ref().map(Drafting::Imagined))
    }

    /// The same requests, so that `rate` of them arrive per second on average. Pauses between the turns of a session
    /// stay.
    pub fn at_rate(self, rate: f64) -> Workload {
        let open = || self.arrivals.iter().filter(|arrival| arrival.follows.is_none());
        let seconds = open().map(|arrival| arrival.at.as_secs_f64()).fold(0.0, f64::max);
        let factor = self.arrivals.len() as f64 / rate / seconds.max(1e-9);
        self.slower(factor)
    }

    /// The same requests, so many times as fast. Pauses between the turns of a session stay.
    pub fn at_speed(self, speed: f64) -> Workload {
        self.slower(1.0 / speed)
    }

    fn slower(mut self, factor: f64) -> Workload {
        for arrival in self.arrivals.iter_mut().filter(|arrival| arrival.follows.is_none()) {
            arrival.at = Nanos((arrival.at.0 as f64 * factor).min(MAX_NANOS) as u64);
        }
        self
    }

    /// Its first `requests` requests.
    pub fn first(mut self, requests: usize) -> Workload {
        self.arrivals.truncate(requests);
        self
    }
}

/// The next turn of the session whose last turn is the last arrival.
fn follow_up(arrivals: &mut Vec<Arrival>, lengths: Lengths, pause: Nanos, seed: u64, random: &mut Random) {
    let index = arrivals.len();
    let before = &arrivals[index - 1];
    let mut prompt = before.prompt.clone();
    prompt.push(Piece { name: before.answer, len: before.output_tokens });
    let at = Nanos((pause.0 as f64 * random.exponential()).min(MAX_NANOS) as u64);
    let input = lengths.draw(lengths.input_tokens, random);
    let output = lengths.draw(lengths.output_tokens, random);
    let mut arrival = Arrival::new(at, mix(seed).wrapping_add(index as u64), input, output);
    prompt.append(&mut arrival.prompt);
    (arrival.prompt, arrival.follows) = (prompt, Some(index - 1));
    arrivals.push(arrival);
}
