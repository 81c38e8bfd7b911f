//! The layout of Hugging Face transformers: texts as files, weights in one safetensors file or in those that an index
//! names.
//!
//! ```text
//! config.json  tokenizer.json ...        as they lie there
//! model.safetensors                      or   model.safetensors.index.json ──> model-00001-of-00002.safetensors ...
//!        └──────────── headers read and checked (header.rs) ────────────┘
//! ```

mod header;

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::container::{AddFile, Container};
use crate::files::{Files, LoadError, Source};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The index of a 100,000-tensor checkpoint has about 10 MB.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Files held open at once; the largest dense checkpoints have about 190.
const MAX_SHARDS: usize = 512;

/// A directory in the layout of transformers.
#[derive(Debug)]
pub(crate) struct Directory;

/// Whether a file of that name says that a directory is one.
pub(crate) fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
}

impl Container for Directory {
    fn text(&self, files: &Files, name: &str, limit: u64) -> Result<Option<String>, LoadError> {
        files.read_text(name, limit)
    }

    fn tensors(&self, files: &Files, add: &mut AddFile<'_>) -> Result<String, LoadError> {
        let named = match files.source() {
            Source::Safetensors(_) => files.names().into_iter().next(),
            _ => None,
        };
        let single = named.unwrap_or_else(|| SINGLE.to_string());
        if let Some(file) = files.open(&single)? {
            let tensors = header::read_header(&file)?;
            add(file, tensors)?;
            return Ok(single);
        }
        let Some(index) = files.read_text(INDEX, MAX_INDEX_BYTES)? else {
            return Err(no_weights(files));
        };
        let wrong = |problem: String| LoadError::field(INDEX, "weight_map", problem);
        let map = parse_index(&index).map_err(|error| wrong(error.to_string()))?;
        let shards: BTreeSet<&str> = map.iter().map(|(_, file)| file.as_str()).collect();
        if shards.len() > MAX_SHARDS {
            return Err(wrong(format!("{} files; at most {MAX_SHARDS} are read", shards.len())));
        }
        for &shard in &shards {
            check_shard_name(shard).map_err(wrong)?;
        }
        let mut found: HashMap<String, &str> = HashMap::new();
        for &shard in &shards {
            let file = files.require(shard)?;
            let tensors = header::read_header(&file)?;
            found.extend(tensors.iter().map(|tensor| (tensor.name.clone(), shard)));
            add(file, tensors)?;
        }
        match map.iter().find(|(name, shard)| found.get(name).is_none_or(|found| found != shard)) {
            Some((name, shard)) => Err(wrong(format!("tensor {name:?} is not in {shard}"))),
            None => Ok(INDEX.to_string()),
        }
    }

    fn quantization(&self, files: &Files, limit: u64) -> Result<Option<String>, LoadError> {
        files.read_text("config.json", limit)
    }
}

/// A shard lies beside its index: a plain file name and nothing that could lead elsewhere.
fn check_shard_name(name: &str) -> Result<(), String> {
    let plain = !name.starts_with('.') && !name.contains(['/', '\\', '\0']) && name.len() <= 255;
    if plain && name.ends_with(".safetensors") {
        return Ok(());
    }
    let short: String = name.chars().take(60).collect();
    Err(format!("{short:?} is not the plain name of a .safetensors file"))
}

fn no_weights(files: &Files) -> LoadError {
    let mut pickled = None;
    for entry in files.path().and_then(|path| path.read_dir().ok()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if matches!(name.rsplit('.').next(), Some("bin" | "pt" | "pth" | "ckpt")) {
            pickled = Some(name);
        }
    }
    let problem = match pickled {
        Some(name) => format!(
            "only pickled weights ({name}), which can run code when loaded and are never read; convert them with \
             transformers: AutoModelForCausalLM.from_pretrained(directory).save_pretrained(new_directory)"
        ),
        None => format!("no weights: neither {SINGLE} nor {INDEX} nor a GGUF file is there"),
    };
    LoadError::NoWeights { checkpoint: files.location(), problem }
}

/// `weight_map` of an index: `(tensor, file)`, each tensor once.
fn parse_index(text: &str) -> Result<Vec<(String, String)>, serde_json::Error> {
    struct Index;
    impl<'de> Visitor<'de> for Index {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with weight_map")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut weight_map = None;
            while let Some(field) = map.next_key::<String>()? {
                if field != "weight_map" {
                    map.next_value::<IgnoredAny>()?;
                } else if weight_map.replace(map.next_value_seed(WeightMap)?).is_some() {
                    return Err(A::Error::custom("weight_map occurs twice"));
                }
            }
            weight_map.ok_or_else(|| A::Error::custom("weight_map is missing"))
        }
    }

    struct WeightMap;
    impl<'de> DeserializeSeed<'de> for WeightMap {
        type Value = Vec<(String, String)>;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_map(self)
        }
    }
    impl<'de> Visitor<'de> for WeightMap {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("file names by tensor name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries: Vec<(String, String)> = Vec::new();
            while let Some(entry) = map.next_entry()? {
                entries.push(entry);
            }
            entries.sort_unstable();
            if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(A::Error::custom(format!("tensor {:?} occurs twice", pair[0].0)));
            }
            Ok(entries)
        }
    }

    let mut json = serde_json::Deserializer::from_str(text);
    let map = json.deserialize_map(Index)?;
    json.end()?;
    Ok(map)
}
