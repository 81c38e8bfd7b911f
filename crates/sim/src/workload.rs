//! Loads: requests and their arrival times.
//!
//! ```text
//! poisson        . ..  .   . . ..    .     independent users: memoryless gaps
//! bursty         ....      .. .......      the same rate with more variable gaps (gamma)
//! shared prefix  [ one of k prefixes | an individual question ]
//! sessions       question, answer, a pause, [ all of that | next question ], ...      like agents, in dozens of turns
//! ```
//!
//! A prompt is a list of named pieces instead of tokens: two requests that begin with the same pieces begin with the same
//! tokens, as a prefix cache needs, and a million requests fit into memory. The tokens are generated at admission.
//! Bursts have gamma gaps: production traces have a coefficient of variation well above 1 (BurstGPT, Wang et al., 2024).

use std::sync::Arc;

use protocol::{Nanos, Priority, Targets, TokenId};

use crate::drafts::{Acceptance, DraftModel, RememberedDrafts};
use figures::random::{Random, mix};

/// Consecutive tokens with a name: equal names mean equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The name. Of two pieces with one name and different lengths, the shorter is a prefix of the longer.
    pub name: u64,
    /// Number of tokens.
    pub len: usize,
}

impl Piece {
    /// Token `index` of the piece `name`.
    pub fn token(name: u64, index: usize) -> TokenId {
        (mix(name ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 33) as TokenId
    }
}

/// One request of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// Arrival time; for a follow-up, the pause after its predecessor's last token.
    pub at: Nanos,
    /// Index of the request in the load that must end first.
    pub follows: Option<usize>,
    /// The prompt.
    pub prompt: Vec<Piece>,
    /// Tokens of the answer, at least 1.
    pub output_tokens: usize,
    /// Name of its answer: a later prompt may contain it.
    pub answer: u64,
    /// Priority class.
    pub priority: Priority,
    /// Tenant.
    pub tenant: u64,
    /// Latency targets.
    pub targets: Targets,
    /// Recorded drafts of its tokens; `None`: the load's acceptance applies.
    pub drafts: Option<Arc<RememberedDrafts>>,
}

impl Arrival {
    /// A request of the default tenant, with an unshared prompt if `name` is unique.
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

    /// Number of prompt tokens.
    pub fn input_tokens(&self) -> usize {
        self.prompt.iter().map(|piece| piece.len).sum()
    }

    /// The prompt's tokens for the scheduler.
    pub(crate) fn tokens(&self) -> Arc<[TokenId]> {
        match self.prompt[..] {
            // Of known length: written directly into the Arc.
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

/// Maximum requests of a load: they take two gigabytes.
pub const MAX_REQUESTS: usize = 10_000_000;
/// Maximum turns of a session: each contains all before it.
pub const MAX_TURNS: usize = 1000;
/// Maximum length of a prompt, answer or shared prefix of a load.
const MAX_TOKENS: usize = 1 << 24;
/// Maximum arrival time: thirty years.
pub(crate) const MOST_TIME: Nanos = Nanos(MAX_NANOS as u64);
const MAX_NANOS: f64 = 1e18;

/// Distinguishes the names of prompts from those of answers.
const ASKED: u64 = 1 << 63;

/// Requests in order of arrival; follow-ups are anywhere after their predecessors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// Name for reports.
    pub name: String,
    /// The requests.
    pub arrivals: Vec<Arrival>,
    /// Acceptance probabilities of drafts; `None`: no speculation.
    pub acceptance: Option<Acceptance>,
}

/// Lengths of prompts and answers: gamma distributed around a mean, rounded, at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lengths {
    /// Mean prompt tokens (without repeated ones).
    pub input_tokens: usize,
    /// Mean answer tokens.
    pub output_tokens: usize,
    /// Coefficient of variation of both; 0: constant.
    pub cv: f64,
}

impl Lengths {
    fn draw(&self, mean: usize, random: &mut Random) -> usize {
        ((mean as f64 * random.gamma(self.cv)).round() as usize).clamp(1, MAX_TOKENS)
    }
}

/// Relation between requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoadPattern {
    /// Independent users.
    Poisson,
    /// The same rate with gaps of this coefficient of variation.
    Bursty {
        /// Above 1: burstier than Poisson.
        cv: f64,
    },
    /// As Poisson; every prompt begins with one of several prefixes, uniformly chosen.
    SharedPrefix {
        /// Number of prefixes.
        prefixes: usize,
        /// Length of each.
        tokens: usize,
    },
    /// Conversations that begin as Poisson: each turn contains all before it and follows a pause after the last answer.
    Sessions {
        /// Turns of each session.
        turns: usize,
        /// Mean pause (exponential).
        pause: Nanos,
        /// Tokens that all sessions begin with: a system prompt, a list of tools.
        prefix: usize,
    },
}

impl Workload {
    /// `requests` requests (counting turns) that arrive at `rate` per second, drawn from `seed`. For sessions, `rate` is
    /// sessions per second times turns, so that a fleet that keeps up sees this many requests per second.
    /// Memory: a few hundred bytes per request; for sessions, also 16 bytes for each earlier turn. Panics if `rate` is not
    /// positive.
    pub fn synthetic(shape: LoadPattern, lengths: Lengths, rate: f64, requests: usize, seed: u64) -> Workload {
        assert!(rate > 0.0, "requests per second");
        let mut random = Random::new(seed);
        let mut arrivals: Vec<Arrival> = Vec::with_capacity(requests);
        let mut seconds = 0.0;
        while arrivals.len() < requests {
            let index = arrivals.len() as u64;
            let gap = match shape {
                LoadPattern::Bursty { cv } => random.gamma(cv),
                LoadPattern::Sessions { turns, .. } => random.exponential() * turns as f64,
                LoadPattern::Poisson | LoadPattern::SharedPrefix { .. } => random.exponential(),
            };
            seconds += gap / rate;
            let at = Nanos((seconds * 1e9).min(MAX_NANOS) as u64);
            let input = lengths.draw(lengths.input_tokens, &mut random);
            let output = lengths.draw(lengths.output_tokens, &mut random);
            let mut arrival = Arrival::new(at, mix(seed).wrapping_add(index), input, output);
            if let LoadPattern::SharedPrefix { prefixes, tokens } = shape {
                let prefix = random.below(prefixes.max(1) as u64);
                arrival.prompt.insert(0, Piece { name: mix(prefix ^ mix(!seed)) | ASKED, len: tokens });
            }
            if let LoadPattern::Sessions { prefix: prefix @ 1.., .. } = shape {
                arrival.prompt.insert(0, Piece { name: mix(!seed) | ASKED, len: prefix });
            }
            arrivals.push(arrival);
            if let LoadPattern::Sessions { turns, pause, .. } = shape {
                let turns = turns.min(1 + requests - arrivals.len());
                for _ in 1..turns {
                    follow_up(&mut arrivals, lengths, pause, seed, &mut random);
                }
            }
        }
        let name = match shape {
            LoadPattern::Poisson => format!("poisson, {rate} requests/s"),
            LoadPattern::Bursty { cv } => format!("bursty (cv {cv}), {rate} requests/s"),
            LoadPattern::SharedPrefix { prefixes, tokens } => {
                format!("poisson, {rate} requests/s, {prefixes} shared prefixes of {tokens} tokens")
            }
            LoadPattern::Sessions { turns, .. } => format!("sessions of {turns} turns, {rate} requests/s"),
        };
        Workload { name, arrivals, acceptance: None }
    }

    /// The same requests with targets; existing targets are kept.
    pub fn with_targets(mut self, targets: Targets) -> Workload {
        for arrival in &mut self.arrivals {
            arrival.targets.ttft = arrival.targets.ttft.or(targets.ttft);
            arrival.targets.tpot = arrival.targets.tpot.or(targets.tpot);
        }
        self
    }

    /// The same requests with speculation.
    pub fn with_acceptance(self, acceptance: Option<Acceptance>) -> Workload {
        Workload { acceptance, ..self }
    }

    /// Source of drafts for a request; `None`: no speculation.
    pub(crate) fn drafting(&self, request: usize) -> Option<DraftModel<'_>> {
        let remembered = self.arrivals[request].drafts.as_deref().map(DraftModel::Remembered);
        remembered.or_else(|| self.acceptance.as_ref().map(DraftModel::Imagined))
    }

    /// The same requests scaled to an average of `rate` per second. Pauses between the turns of a session are kept.
    pub fn at_rate(self, rate: f64) -> Workload {
        let open = || self.arrivals.iter().filter(|arrival| arrival.follows.is_none());
        let seconds = open().map(|arrival| arrival.at.as_secs_f64()).fold(0.0, f64::max);
        let factor = self.arrivals.len() as f64 / rate / seconds.max(1e-9);
        self.slower(factor)
    }

    /// The same requests `speed` times as fast. Pauses between the turns of a session are kept.
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
