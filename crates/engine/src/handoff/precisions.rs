//! A pair of precisions: one worker reads prompts with weights of the first, another continues them with weights of the
//! second.

use std::fmt;
use std::str::FromStr;

use kernels::WeightClass;
use scheduler::router::Role;

const CLASSES: [WeightClass; 3] = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4];

/// What weights are held in where prompts are read, and where answers are written: `int8/int4`.
///
/// The full blocks of a prompt, but for the one with its last token, are computed by the first, and everything else by
/// the second. So it is a separate definition, as each precision is: it is part of fingerprints and receipts, both
/// workers have to name it, and what the second does not have of a prompt it does not compute instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrecisionPair {
    /// Of the worker that reads prompts.
    pub prompts: WeightClass,
    /// Of the worker that answers.
    pub answers: WeightClass,
}

impl PrecisionPair {
    /// Of the worker with this role; `None` for one that does both.
    pub fn of(&self, role: Role) -> Option<WeightClass> {
        match role {
            Role::Prefill => Some(self.prompts),
            Role::Decode => Some(self.answers),
            Role::Both => None,
        }
    }
}

impl fmt::Display for PrecisionPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.prompts.name(), self.answers.name())
    }
}

impl FromStr for PrecisionPair {
    type Err = String;

    fn from_str(text: &str) -> Result<PrecisionPair, String> {
        let class = |name: &str| CLASSES.into_iter().find(|class| class.name() == name);
        let found = text
            .split_once('/')
            .and_then(|(prompts, answers)| Some(PrecisionPair { prompts: class(prompts)?, answers: class(answers)? }));
        match found {
            Some(pair) if pair.prompts == pair.answers => {
                Err("one precision is no pair: --weights names it".to_owned())
            }
            Some(pair) => Ok(pair),
            None => Err("it is two of bf16, int8 and int4, as in int8/int4: of prompts, and of answers".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_two_precisions_by_name() {
        let pair: PrecisionPair = "int8/int4".parse().unwrap();
        assert_eq!(
            (pair.to_string().as_str(), pair.prompts, pair.answers),
            ("int8/int4", WeightClass::Int8, WeightClass::Int4)
        );
        assert_eq!(
            [Role::Prefill, Role::Decode, Role::Both].map(|role| pair.of(role)),
            [Some(WeightClass::Int8), Some(WeightClass::Int4), None]
        );
        for (wrong, says) in [("int8", "two of"), ("int8/int8", "no pair"), ("int8/int7", "two of"), ("/", "two of")] {
            let error = wrong.parse::<PrecisionPair>().unwrap_err();
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}
