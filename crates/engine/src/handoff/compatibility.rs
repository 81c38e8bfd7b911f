//! What two workers must have in common so that a block of the one is a block of the other.

use receipt::{Definition, Provenance};
use serde::{Deserialize, Serialize};

use super::TravelSizes;
use super::wire::FRAMES;
use crate::{ModelInfo, OriginError};

/// Each by name, as a text that is equal where it is the same.
///
/// Threads, instruction sets, memory nodes, batching and limits are not among them: no bit depends on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompatibilityInfo(Vec<(String, String)>);

/// Names and values of a peer's may be so long.
const MOST_BYTES: usize = 4096;

impl CompatibilityInfo {
    /// Of a model in memory whose blocks and states have these sizes. Reads every weight, unless an earlier start has kept
    /// the digest.
    pub(crate) fn of(model: &ModelInfo, sizes: TravelSizes) -> Result<CompatibilityInfo, OriginError> {
        let Provenance { weights, config, definition, .. } = model.basis("")?;
        let Definition { engine, arithmetic, weights: class, as_stored, kv, layout } = definition;
        let factors = [
            ("engine", engine),
            ("version of frames", FRAMES.to_string()),
            ("weights", weights.to_string()),
            ("config.json", config.to_string()),
            ("precision of weights", class),
            ("weights as they are stored", as_stored.to_string()),
            ("precision of keys and values", kv),
            ("arithmetic", arithmetic),
            ("layout", layout.to_string()),
            ("tokens per block", model.block_size.to_string()),
            ("bytes per block", sizes.block_bytes.to_string()),
            ("bytes of states", sizes.state_bytes.to_string()),
            ("rotations", model.rotations()),
        ];
        Ok(CompatibilityInfo(factors.map(|(name, value)| (name.to_owned(), value)).into()))
    }

    /// The first that is not equal: what it is called, what it is here, and what it is there.
    pub(crate) fn differ(&self, theirs: &CompatibilityInfo) -> Option<String> {
        let of = |factors: &CompatibilityInfo, name: &str| {
            factors.0.iter().find(|factor| factor.0 == name).map_or_else(|| "nothing".to_owned(), |f| f.1.clone())
        };
        let names = self.0.iter().chain(&theirs.0).map(|factor| &factor.0);
        names.map(|name| (name, of(self, name), of(theirs, name))).find(|(_, own, other)| own != other).map(
            |(name, own, other)| {
                let shown = |text: &str| text.chars().filter(|c| !c.is_control()).take(80).collect::<String>();
                format!("{}: {} here, {} there", shown(name), shown(&own), shown(&other))
            },
        )
    }

    /// Whether a peer's are of a size that is read.
    pub(crate) fn is_sane(&self) -> bool {
        self.0.len() <= 64 && self.0.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= MOST_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let of = |list: &[(&str, &str)]| {
            CompatibilityInfo(list.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect())
        };
        let own = of(&[("kv", "bf16"), ("weights", "ab")]);
        assert_eq!(own.differ(&own.clone()), None);
        assert_eq!(own.differ(&of(&[("kv", "int8"), ("weights", "ab")])).unwrap(), "kv: bf16 here, int8 there");
        assert_eq!(own.differ(&of(&[("kv", "bf16")])).unwrap(), "weights: ab here, nothing there");
        let more = of(&[("kv", "bf16"), ("weights", "ab"), ("x", "1")]);
        assert_eq!(own.differ(&more).unwrap(), "x: nothing here, 1 there");
    }
}
