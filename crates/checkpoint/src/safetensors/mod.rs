//! The layout of Hugging Face transformers: texts as files, weights in one safetensors file or in the files of an
//! index.
//!
//! ```text
//! config.json  tokenizer.json ...        read unchanged
//! model.safetensors                      or   model.safetensors.index.json ──> model-00001-of-00002.safetensors ...
//!                                        or   those parts without an index, if complete
//!        └──────────── headers read and checked (header.rs) ────────────┘
//! ```

mod header;

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::container::{AddFile, Container};
use crate::files::{Files, LoadError, Source};

const SINGLE: &str = "model.safetensors";
const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
/// The index of a 100,000-tensor checkpoint has about 10 MB.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Maximum files held open; the largest dense checkpoints have about 190.
const MAX_SHARDS: usize = 512;

/// A directory in the layout of transformers.
#[derive(Debug)]
pub(crate) struct Directory;

/// Whether a file of that name marks a directory of this layout.
pub(crate) fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
}

impl Container for Directory {
    fn text(&self, files: &Files, name: &str, limit: u64) -> Result<Option<String>, LoadError> {
        let text = files.read_text(name, limit)?;
        Ok(if name == CONFIG { text.map(with_numbers) } else { text })
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
            let parts = part_files(&files.names()).map_err(|problem| no_weights(files, Some(problem)))?;
            let Some(first) = parts.first().cloned() else { return Err(no_weights(files, None)) };
            for part in parts {
                let file = files.require(&part)?;
                let tensors = header::read_header(&file)?;
                add(file, tensors)?;
            }
            return Ok(first);
        };
        let wrong = |problem: String| LoadError::field(INDEX, "weight_map", problem);
        let map = parse_index(&index).map_err(|error| LoadError::json(INDEX, "weight_map", &error))?;
        let shards: BTreeSet<&str> = map.iter().map(|(_, file)| file.as_str()).collect();
        if shards.len() > MAX_SHARDS {
            return Err(wrong(format!("{} files; at most {MAX_SHARDS}", shards.len())));
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
        let config = files.read_text(CONFIG, limit)?.map(with_numbers);
        // ModelOpt's older exports name the method in a file of their own.
        match config.as_ref().is_some_and(|text| text.contains("\"quantization_config\"")) {
            true => Ok(config),
            false => Ok(files.read_text("hf_quant_config.json", limit)?.or(config)),
        }
    }
}

/// Python writes `Infinity` where a limit is none, which is no JSON: outside strings it becomes a number beyond any range
/// in use.
fn with_numbers(text: String) -> String {
    const INFINITY: &str = "Infinity";
    if !text.contains(INFINITY) {
        return text;
    }
    let (mut out, mut rest, mut in_string) = (String::with_capacity(text.len()), text.as_str(), false);
    while let Some(next) = rest.chars().next() {
        let (len, written) = match next {
            'I' if !in_string && rest.starts_with(INFINITY) => (INFINITY.len(), "1e300"),
            // The character behind it ends no string.
            '\\' if in_string => {
                let len = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
                (len, &rest[..len])
            }
            _ => (next.len_utf8(), &rest[..next.len_utf8()]),
        };
        in_string ^= next == '"';
        out.push_str(written);
        rest = &rest[len..];
    }
    out
}

/// A shard is in the directory of its index: its name must be a plain file name, not a path.
fn check_shard_name(name: &str) -> Result<(), String> {
    let plain = !name.starts_with('.') && !name.contains(['/', '\\', '\0']) && name.len() <= 255;
    if plain && name.ends_with(".safetensors") {
        return Ok(());
    }
    let short: String = name.chars().take(60).collect();
    Err(format!("{short:?} is not the plain name of a .safetensors file"))
}

/// `NAME-00002-of-00003.safetensors` as `(NAME, 2, 3)`.
fn part_name(file: &str) -> Option<(&str, u64, u64)> {
    let (rest, count) = file.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| match digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse().ok(),
        false => None,
    };
    Some((stem, number(part)?, number(count)?))
}

/// All parts of a model without an index, in order; empty if no name is that of a part. An error if a part is absent,
/// or if there are several models.
pub fn part_files(names: &[String]) -> Result<Vec<String>, String> {
    let mut models: BTreeSet<(&str, u64)> =
        names.iter().filter_map(|name| part_name(name)).map(|(stem, _, count)| (stem, count)).collect();
    // Files such as `consolidated-` beside them are another format of the same weights.
    if models.iter().any(|(stem, _)| *stem == "model") {
        models.retain(|(stem, _)| *stem == "model");
    }
    let (stem, count) = match models.iter().collect::<Vec<_>>().as_slice() {
        [] => return Ok(Vec::new()),
        [(stem, count)] => (*stem, *count),
        [(stem, count), (other, of), ..] => {
            return Err(format!(
                "parts of several models and no {INDEX}: {stem}-*-of-{count:05} and {other}-*-of-{of:05}"
            ));
        }
    };
    if count == 0 || count > MAX_SHARDS as u64 {
        return Err(format!("{stem} has {count} parts by their names; 1 to {MAX_SHARDS} are supported"));
    }
    let parts = (1..=count).map(|part| format!("{stem}-{part:05}-of-{count:05}.safetensors"));
    parts
        .map(|part| match names.contains(&part) {
            true => Ok(part),
            false => Err(format!("{part} is absent; found other parts of {stem} without {INDEX}")),
        })
        .collect()
}

/// `problem`: the error about existing parts.
fn no_weights(files: &Files, problem: Option<String>) -> LoadError {
    let mut names = files.names();
    names.sort();
    let ends = |ends: &[&str]| {
        // A directory `bin` of programs has nothing before the extension.
        names.iter().find(|name| name.rsplit_once('.').is_some_and(|(_, end)| ends.contains(&end)))
    };
    let problem = match (problem, ends(&["safetensors"]), ends(&["bin", "pt", "pth", "ckpt"])) {
        (Some(problem), ..) => format!("no weights: {problem}"),
        (None, Some(name), _) => {
            format!("no weights: found neither {SINGLE} nor {INDEX}; {name} has another name")
        }
        (None, None, Some(name)) => format!(
            "only pickled weights ({name}), which can run code when loaded and are never read; convert them with \
             transformers: AutoModelForCausalLM.from_pretrained(directory).save_pretrained(new_directory)"
        ),
        (None, None, None) => format!("no weights: found neither {SINGLE} nor {INDEX} nor a GGUF file"),
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
