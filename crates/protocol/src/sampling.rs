//! How tokens are drawn: the one place that names a sampler's options.
//!
//! ```text
//! fields of an API, flags --+
//! generation_config.json ---+--> SamplingParams --resolve--> Sampling --> sampler, recording, receipt
//!                                what is asked    ranges     what holds
//! ```
//! Readers and writers go over [`options`]. A further option is a field of both structs, its neutral value, a row of a
//! table, and what the sampler does with it.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// What a request asks for, or a model's files propose; `None`: nothing. Not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "Sampling says what they mean")]
pub struct SamplingParams {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
}

/// The values that hold for a request, checked where they came in. Other names are those of recordings of format 4.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Divides the logits; below 1e-5 the best token is taken.
    pub temperature: f32,
    /// Keep the smallest set of best tokens whose probability reaches this (Holtzman et al., ICLR 2020); 1 keeps all.
    pub top_p: f32,
    /// Keep this many of the best tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep tokens at least this fraction as likely as the best (Nguyen et al., 2024); 0 keeps all.
    pub min_p: f32,
    /// Subtracted once from each token the answer already holds.
    #[serde(alias = "presence")]
    pub presence_penalty: f32,
    /// Subtracted from a token once per occurrence in the answer.
    #[serde(alias = "frequency")]
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer (Keskar et al., 2019); 1 is
    /// off.
    #[serde(alias = "repetition")]
    pub repetition_penalty: f32,
    /// Added to the logits of these ids.
    #[serde(alias = "bias")]
    pub logit_bias: Vec<(u32, f32)>,
    /// `Some(n)`: report the chosen token's log probability and the `n` best ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
    /// With `logprobs`: report these ids, in this order, in place of the best.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprob_ids: Vec<u32>,
}

impl Default for Sampling {
    /// Draw from the model's own distribution.
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            logprobs: None,
            logprob_ids: Vec::new(),
        }
    }
}

/// An option. Its values are read and written as `f64`, which holds each of them exactly.
#[derive(Debug)]
pub struct SamplingOption {
    /// Its name everywhere but in [`llama_name`](Self::llama_name).
    pub name: &'static str,
    /// Its name in the APIs of llama.cpp and Ollama.
    pub llama_name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// What a request may ask for.
    pub range: Range,
    /// What a model's `generation_config.json` may propose, if it has such a field: nothing that requests may not.
    pub of_model: Option<RangeInclusive<f64>>,
    /// What is asked for.
    pub asked: fn(&SamplingParams) -> Option<f64>,
    /// Asks for it.
    pub ask: fn(&mut SamplingParams, Option<f64>),
    /// What holds.
    pub value: fn(&Sampling) -> f64,
    set: fn(&mut Sampling, f64),
}

/// What a value may be.
#[derive(Clone, Copy, Debug)]
pub enum Range {
    /// A whole number, 0 is off. vLLM's clients send -1 for that.
    Count,
    /// A sampler that cuts the tail (`min_p`) has its use with high temperatures.
    NotNegative,
    /// From the first to the second.
    Within(f64, f64),
    /// The same without the first.
    Above(f64, f64),
}

macro_rules! option {
    ($name:ident, $range:expr, $of_model:expr, $about:expr) => {
        SamplingOption {
            name: stringify!($name),
            llama_name: stringify!($name),
            about: $about,
            range: $range,
            of_model: $of_model,
            asked: |params| params.$name.map(|value| value as f64),
            ask: |params, value| params.$name = value.map(|value| value as _),
            value: |sampling| sampling.$name.into(),
            set: |sampling, value| sampling.$name = value as _,
        }
    };
}

/// What every API has: a temperature, and which tokens are left to draw from.
#[rustfmt::skip]
pub static FILTERS: [SamplingOption; 4] = [
    option!(temperature, Range::NotNegative, Some(0.0..=100.0), "0 is greedy"),
    option!(top_p, Range::Above(0.0, 1.0), Some(1e-6..=1.0),
        "nucleus sampling: smallest set with cumulative probability top_p"),
    option!(top_k, Range::Count, Some(0.0..=16_777_216.0), "number of most likely tokens; 0 or -1: all"),
    option!(min_p, Range::Within(0.0, 1.0), Some(0.0..=1.0), "minimum probability relative to the most likely token"),
];

/// What is taken from tokens that were there before.
#[rustfmt::skip]
pub static PENALTIES: [SamplingOption; 3] = [
    option!(presence_penalty, Range::Within(-2.0, 2.0), None, "against tokens that were said"),
    option!(frequency_penalty, Range::Within(-2.0, 2.0), None, "against tokens, as often as they were said"),
    SamplingOption {
        llama_name: "repeat_penalty",
        ..option!(repetition_penalty, Range::Above(0.0, 10.0), Some(1e-3..=10.0),
            "against tokens of the prompt and the answer; 1 is none")
    },
];

/// The largest logits of a row that a device selects at most: few ask for more.
pub const MOST_BEST: u32 = 128;

/// All options, in the order in which a receipt's digest has them.
pub fn options() -> impl Iterator<Item = &'static SamplingOption> {
    FILTERS.iter().chain(&PENALTIES)
}

impl SamplingOption {
    /// Whether its value is a whole number.
    pub const fn is_integer(&self) -> bool {
        matches!(self.range, Range::Count)
    }

    /// Whether it is asked to have an effect.
    pub fn is_on(&self, params: &SamplingParams) -> bool {
        (self.asked)(params).is_some_and(|value| value != (self.value)(&Sampling::default()))
    }
}

impl Range {
    /// The value, or what it must be.
    fn check(self, value: f64) -> Result<f64, String> {
        let number = value as f32;
        match self {
            Range::Count if value == -1.0 => Ok(0.0),
            Range::Count if !(0.0..=f64::from(u32::MAX)).contains(&value) => {
                Err(format!("at least 1, or 0 or -1 for off, got {value}"))
            }
            // A NaN is in no range.
            Range::NotNegative if !(value >= 0.0 && number.is_finite()) => Err("a number that is 0 or more".to_owned()),
            Range::Within(least, most) | Range::Above(least, most) if !(least..=most).contains(&value) => {
                Err(format!("a number between {least} and {most}"))
            }
            Range::Above(least, most) if f64::from(number) <= least => {
                Err(format!("greater than {least} and at most {most}"))
            }
            _ => Ok(value),
        }
    }
}

impl SamplingParams {
    /// A temperature and nothing else.
    pub fn at(temperature: f64) -> SamplingParams {
        SamplingParams { temperature: Some(temperature), ..SamplingParams::default() }
    }

    /// What these leave open, the others say.
    pub fn or(mut self, others: &SamplingParams) -> SamplingParams {
        for option in options() {
            let value = (option.asked)(&self).or((option.asked)(others));
            (option.ask)(&mut self, value);
        }
        self
    }

    /// The values that hold: what is asked for, else what the model proposes, else what changes nothing. An error is an
    /// option's name and what is wrong with it.
    pub fn resolve(self, model: &SamplingParams) -> Result<Sampling, (&'static str, String)> {
        let (params, mut sampling) = (self.or(model), Sampling::default());
        for option in options() {
            let refused = |problem| (option.name, format!("{} must be {problem}", option.name));
            if let Some(value) = (option.asked)(&params) {
                (option.set)(&mut sampling, option.range.check(value).map_err(refused)?);
            }
        }
        Ok(sampling)
    }
}

impl Sampling {
    /// A request that names every value: for what is read from a file, to be checked like a caller's.
    pub fn asked(&self) -> SamplingParams {
        let mut params = SamplingParams::default();
        options().for_each(|option| (option.ask)(&mut params, Some((option.value)(self))));
        params
    }

    /// The same draw, of which only the token is wanted.
    pub fn without_logprobs(&self) -> Sampling {
        Sampling { logprobs: None, logprob_ids: Vec::new(), ..self.clone() }
    }

    /// JSON has no other numbers, but one that is too large is read as such.
    pub fn is_finite(&self) -> bool {
        let values = options().map(|option| (option.value)(self));
        values.chain(self.logit_bias.iter().map(|bias| bias.1.into())).all(f64::is_finite)
    }

    /// True when the best token is taken without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature < 1e-5
    }

    /// How many of a row's largest logits decide the token, if no other token is forbidden or wanted: 1 for greedy, its
    /// `top_k` for a draw. 0: any may, or there would be more than [`MOST_BEST`].
    pub fn decided_by(&self) -> u32 {
        let others_matter = self.logprobs.is_some() || !self.logit_bias.is_empty() || self.needs_history();
        match if self.is_greedy() { 1 } else { self.top_k } {
            count if others_matter || count > MOST_BEST => 0,
            count => count,
        }
    }

    /// True when a penalty looks at the tokens that were there before.
    pub fn needs_history(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 || self.repetition_penalty != 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_comes_before_what_the_model_proposes() {
        let nothing = SamplingParams::default();
        let model = SamplingParams { top_k: Some(20), repetition_penalty: Some(1.1), ..SamplingParams::at(0.6) };
        let asked = SamplingParams { top_k: Some(-1), min_p: Some(0.05), ..nothing };
        let holds = Sampling { temperature: 0.6, min_p: 0.05, repetition_penalty: 1.1, ..Sampling::default() };
        assert_eq!(asked.resolve(&model), Ok(holds.clone()));
        assert_eq!(holds.asked().resolve(&model), Ok(holds), "every value is named, also a neutral one");
        assert_eq!(nothing.resolve(&nothing), Ok(Sampling::default()));
        let is_on = |params: SamplingParams| options().any(|option| option.is_on(&params));
        assert!(!is_on(nothing) && !is_on(Sampling::default().asked()));
        assert!(is_on(SamplingParams::at(0.9)) && is_on(SamplingParams { top_k: Some(3), ..nothing }));
    }

    #[test]
    fn a_value_beyond_its_range_is_refused_by_name() {
        let nothing = SamplingParams::default();
        for (name, value, problem) in [
            ("temperature", -1.0, "a number that is 0 or more"),
            ("temperature", f64::NAN, "a number that is 0 or more"),
            ("temperature", 1e300, "a number that is 0 or more"),
            ("top_p", 1.1, "a number between 0 and 1"),
            ("top_p", 0.0, "greater than 0 and at most 1"),
            ("top_p", 1e-60, "greater than 0 and at most 1"),
            ("top_k", -5.0, "at least 1, or 0 or -1 for off, got -5"),
            ("top_k", 4_294_967_296.0, "at least 1, or 0 or -1 for off, got 4294967296"),
            ("min_p", 2.0, "a number between 0 and 1"),
            ("presence_penalty", 1e30, "a number between -2 and 2"),
            ("frequency_penalty", f64::NAN, "a number between -2 and 2"),
            ("repetition_penalty", 11.0, "a number between 0 and 10"),
            ("repetition_penalty", 0.0, "greater than 0 and at most 10"),
        ] {
            let mut params = nothing;
            options().filter(|option| option.name == name).for_each(|option| (option.ask)(&mut params, Some(value)));
            assert_eq!(params.resolve(&nothing), Err((name, format!("{name} must be {problem}"))));
        }
    }
}
