//! Selects the GGUF files of a hub repository for `org/name:Q4_K_M`, the syntax of llama.cpp and Ollama.
//!
//! ```text
//! Llama-3.2-1B-Instruct-Q4_K_M.gguf              Q4_K_M
//! Q8_0/Model-Q8_0-00001-of-00002.gguf, -00002-   Q8_0, both parts
//! mmproj-model-f16.gguf, imatrix.gguf            no models
//! ```

use std::collections::BTreeMap;

use checkpoint::gguf::{is_model, split_name};

/// llama.cpp's default quantization: about 4.8 bits a weight.
const DEFAULT_QUANT: &str = "Q4_K_M";

/// Failure to select a model.
pub(crate) enum NoChoice {
    /// No file has that quantization, or there are several and none was named. The available ones, possibly none.
    Quants(Vec<String>),
    /// A part of the model is missing.
    Part(String),
}

/// The files of the model whose name ends with `quant`, the first part first. Without `quant`, the default
/// quantization or the only model. Ignores case.
pub(crate) fn choose(files: &[String], quant: Option<&str>) -> Result<Vec<String>, NoChoice> {
    // By name without part numbers: the parts found, and the number of parts by their names.
    let mut models: BTreeMap<&str, (Vec<&String>, u64)> = BTreeMap::new();
    for file in files.iter().filter(|file| is_model(file)) {
        let (stem, parts) = match split_name(file) {
            Some((stem, _, parts)) => (stem, parts),
            None => (&file[..file.len() - ".gguf".len()], 1),
        };
        models.entry(stem).or_insert((Vec::new(), parts)).0.push(file);
    }
    let ending = |quant: &str| {
        let quant = quant.to_ascii_lowercase();
        let ends = |stem: &&str| {
            let rest = stem.to_ascii_lowercase();
            rest.strip_suffix(&quant).is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.', '_', '/']))
        };
        // `UD-Q4_K_XL` ends with `Q4_K_XL` too: the shorter name wins.
        models.keys().copied().filter(ends).min_by_key(|stem| stem.len())
    };
    let only = || models.keys().copied().next().filter(|_| models.len() == 1);
    let stem = match quant {
        Some(quant) => ending(quant),
        None => ending(DEFAULT_QUANT).or_else(only),
    };
    let Some((stem, (found, parts))) = stem.and_then(|stem| Some((stem, models.get(stem)?))) else {
        let mut available: Vec<String> = models.keys().map(|stem| label(stem).to_owned()).collect();
        available.sort();
        available.dedup();
        return Err(NoChoice::Quants(available));
    };
    if found.len() == 1 && *parts == 1 {
        return Ok(vec![found[0].clone()]);
    }
    let names = (1..=*parts).map(|part| format!("{stem}-{part:05}-of-{parts:05}.gguf"));
    names.map(|name| if files.contains(&name) { Ok(name) } else { Err(NoChoice::Part(name)) }).collect()
}

/// The name of a quantization: the end of the file's stem.
fn label(stem: &str) -> &str {
    stem.rsplit(['-', '.', '/']).next().unwrap_or(stem)
}
