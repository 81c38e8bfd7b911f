//! `serve --models`: one of several models, as JSON; in the file of `--config` a list of mappings under `models`.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::values::{count, target};

/// How long a model stays without requests; `None`: without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepAlive(pub(crate) Option<Duration>);

/// A model of several, and what is its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct ModelEntry {
    /// What `-m` takes.
    pub(crate) model: String,
    /// What requests may call it.
    #[serde(default, deserialize_with = "one_or_several")]
    pub(crate) name: Vec<String>,
    /// It is loaded at the start and never leaves.
    #[serde(default)]
    pub(crate) pin: bool,
    #[serde(default, deserialize_with = "read_stay")]
    pub(crate) keep_alive: Option<KeepAlive>,
    #[serde(default, deserialize_with = "read_target")]
    pub(crate) ttft_slo: Option<Target>,
    #[serde(default, deserialize_with = "read_target")]
    pub(crate) tpot_slo: Option<Target>,
    #[serde(default, deserialize_with = "read_count")]
    pub(crate) max_model_len: Option<usize>,
}

/// As `--ttft-slo` has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target(pub(crate) engine::DefaultTarget);

impl ModelEntry {
    /// With nothing of its own.
    pub(crate) fn of(model: &str) -> ModelEntry {
        ModelEntry {
            model: model.to_owned(),
            name: Vec::new(),
            pin: false,
            keep_alive: None,
            ttft_slo: None,
            tpot_slo: None,
            max_model_len: None,
        }
    }
}

impl ModelEntry {
    /// Tells entries apart.
    pub(crate) fn key(&self) -> String {
        format!("{} as {}", self.model, self.name.join(" "))
    }
}

/// A mapping of `models`.
pub(crate) fn entry(text: &str) -> Result<ModelEntry, String> {
    // A name alone has nothing of its own.
    if !text.trim_start().starts_with('{') {
        return Ok(ModelEntry::of(text));
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// `5m`, `90s`, `1h30m`; 0: at once; forever: without end.
pub(crate) fn keep_alive(text: &str) -> Result<KeepAlive, String> {
    server::keep_alive(text).map(KeepAlive).map_err(str::to_owned)
}

fn one_or_several<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Names::deserialize(from)? {
        Names::One(name) => vec![name],
        Names::Several(names) => names,
    })
}

/// A value as a flag has it: a text, or a number that would be one.
fn read<'de, D: Deserializer<'de>, T>(from: D, parse: fn(&str) -> Result<T, String>) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    parse(&text).map(Some).map_err(|problem| serde::de::Error::custom(format!("'{text}': {problem}")))
}

fn read_stay<'de, D: Deserializer<'de>>(from: D) -> Result<Option<KeepAlive>, D::Error> {
    read(from, keep_alive)
}

fn read_target<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Target>, D::Error> {
    read(from, |text| target(text).map(Target))
}

fn read_count<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    read(from, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_flags_are() {
        let all = r#"{"model": "qwen3:4b", "name": ["chat", "gpt-4o-mini"], "pin": true, "ttft-slo": "1s",
            "tpot-slo": "50ms", "max-model-len": "8k", "keep-alive": "1h"}"#;
        let read = entry(all).unwrap();
        assert_eq!((read.model.as_str(), read.name.len(), read.pin), ("qwen3:4b", 2, true));
        assert_eq!(
            (read.max_model_len, read.keep_alive),
            (Some(8000), Some(KeepAlive(Some(Duration::from_secs(3600)))))
        );
        assert_eq!(entry("./embedder").unwrap().model, "./embedder");
        assert_eq!(entry(r#"{"model": "a", "name": "b", "keep-alive": 0}"#).unwrap().name, ["b"]);
        for wrong in [
            r#"{"name": "a"}"#,
            r#"{"model": "a", "pinned": true}"#,
            r#"{"model": "a", "keep-alive": "abc"}"#,
            r#"{"model": "a", "ttft-slo": "soon"}"#,
            r#"{"model": "a", "max-model-len": 0}"#,
            r#"{"model": "a""#,
        ] {
            assert!(entry(wrong).is_err(), "{wrong}");
        }
    }
}
