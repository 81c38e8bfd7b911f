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
#[derive(Debug, PartialEq, Eq)]
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
            rest.strip_suffix(&quant).is_some_and(|rest| rest.ends_with(['-', '.', '_', '/']))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantization_is_the_end_of_a_name() {
        const REPOSITORY: &[&str] = &[
            "README.md",
            "M-1B-Instruct-Q8_0.gguf",
            "M-1B-Instruct-q4_k_m.gguf",
            "M-1B-Instruct-UD-Q4_K_XL.gguf",
            "mmproj-M-1B-Q4_0.gguf",
            "F16/M-1B-Instruct-F16-00001-of-00002.gguf",
            "F16/M-1B-Instruct-F16-00002-of-00002.gguf",
        ];
        let all = NoChoice::Quants(["F16", "Q4_K_XL", "Q8_0", "q4_k_m"].map(String::from).to_vec());
        let two = ["F16/M-1B-Instruct-F16-00001-of-00002.gguf", "F16/M-1B-Instruct-F16-00002-of-00002.gguf"];
        type Row<'a> = (&'a [&'a str], Option<&'a str>, Result<&'a [&'a str], NoChoice>);
        let table: [Row<'_>; 11] = [
            (REPOSITORY, Some("Q8_0"), Ok(&["M-1B-Instruct-Q8_0.gguf"])),
            (REPOSITORY, Some("q8_0"), Ok(&["M-1B-Instruct-Q8_0.gguf"])),
            (REPOSITORY, Some("Q4_K_XL"), Ok(&["M-1B-Instruct-UD-Q4_K_XL.gguf"])),
            (REPOSITORY, Some("UD-Q4_K_XL"), Ok(&["M-1B-Instruct-UD-Q4_K_XL.gguf"])),
            (REPOSITORY, Some("F16"), Ok(&two)),
            (REPOSITORY, None, Ok(&["M-1B-Instruct-q4_k_m.gguf"])),
            (REPOSITORY, Some("Q4_0"), Err(all)),
            (&["a.Q2_K.gguf"], None, Ok(&["a.Q2_K.gguf"])),
            (&["a-Q2_K.gguf", "a-Q3_K.gguf"], None, Err(NoChoice::Quants(["Q2_K", "Q3_K"].map(String::from).to_vec()))),
            (&["a-F16-00002-of-00002.gguf"], None, Err(NoChoice::Part("a-F16-00001-of-00002.gguf".to_owned()))),
            (&["model.safetensors"], Some("Q8_0"), Err(NoChoice::Quants(Vec::new()))),
        ];
        for (files, quant, expected) in table {
            let files: Vec<String> = files.iter().map(|file| file.to_string()).collect();
            let expected = expected.map(|files| files.iter().map(|file| file.to_string()).collect());
            assert_eq!(choose(&files, quant), expected, "{quant:?} of {files:?}");
        }
    }
}
