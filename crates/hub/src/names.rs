//! Names of models in every form that people write them.
//!
//! ```text
//! ./dir, model.gguf                                  what is on this disk
//! org/name[@revision][:QUANT]                        the hub
//! hf.co/org/name, https://huggingface.co/org/name/blob/main/Model-Q8_0.gguf     the same, pasted
//! llama3.2:1b, qwen3:4b-q8_0, gemma3                 a short name: family[:size][-quantization], names.tsv
//! Qwen3-0.6B                                         the last part of one model of the cache
//! ```

use std::path::Path;

use crate::{HubEnv, HubError, HubId, cached, is_plain};

/// Characters of a name that are compared with others: what is longer is a mistake anyway.
const MOST_COMPARED: usize = 200;

/// A row of `names.tsv`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortName {
    /// All names that mean it; the first is shown.
    pub names: &'static str,
    /// `org/name` on the hub.
    pub repository: &'static str,
    /// The quantization of the file that is meant unless the name says another.
    pub quant: &'static str,
    /// The class in transformers, by which it is known to load.
    pub class: &'static str,
    /// Size of the file in GB.
    pub gigabytes: f64,
    /// Its licence, as the hub calls it.
    pub licence: &'static str,
}

/// All rows of the table.
pub fn short_names() -> impl Iterator<Item = ShortName> {
    include_str!("../names.tsv").lines().map(|line| {
        let mut columns = line.split('\t');
        let mut column = || columns.next().unwrap_or_default();
        let (names, repository, quant, class) = (column(), column(), column(), column());
        let gigabytes = column().parse().unwrap_or(0.0);
        ShortName { names, repository, quant, class, gigabytes, licence: column() }
    })
}

/// The hub's name of a model without that of its site.
pub fn without_site(name: &str) -> &str {
    let bare = ["https://", "http://"].iter().find_map(|scheme| name.strip_prefix(scheme)).unwrap_or(name);
    let bare = bare.strip_prefix("www.").unwrap_or(bare);
    ["hf.co/", "huggingface.co/"].iter().find_map(|site| bare.strip_prefix(site)).unwrap_or(name)
}

/// Whether a text is a model's name by its form, or of something on this disk or in the cache: then it is no prompt.
pub fn is_name(text: &str, env: &HubEnv) -> bool {
    let is_path = ["./", "../", "/", "~/"].iter().any(|start| text.starts_with(start)) || text.ends_with(".gguf");
    !text.is_empty()
        && !text.contains(char::is_whitespace)
        && (is_path || Path::new(text).exists() || canonical(text, env).is_ok_and(|name| HubId::parse(&name).is_some()))
}

/// What a name means: itself if it is a path, else `org/name[@revision][:QUANT]`. An error names what is near.
pub fn canonical(name: &str, env: &HubEnv) -> Result<String, HubError> {
    if files::broken_link(Path::new(name)).is_some() || Path::new(name).exists() {
        return Ok(name.to_owned());
    }
    let bare = without_site(name);
    if bare != name {
        return Ok(from_url(bare));
    }
    if name.contains('/') || name.ends_with(".gguf") {
        return Ok(name.to_owned());
    }
    if let Some(found) = from_table(name).or_else(|| from_cache(name, env)) {
        return Ok(found);
    }
    Err(HubError::UnknownName { spec: name.to_owned(), near: near(name, env) })
}

/// `org/name/blob/REVISION/FILE.gguf` as `org/name@REVISION:FILE`.
fn from_url(path: &str) -> String {
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').collect();
    let [org, name, "blob" | "resolve" | "tree" | "raw", revision, file @ ..] = &parts[..] else {
        return path.to_owned();
    };
    let revision = if *revision == "main" { String::new() } else { format!("@{revision}") };
    let stem = file.last().and_then(|file| {
        let stem = checkpoint::gguf::split_name(file).map(|(stem, ..)| stem);
        stem.or_else(|| file.strip_suffix(".gguf"))
    });
    let quant = stem.map_or_else(String::new, |stem| format!(":{stem}"));
    format!("{org}/{name}{revision}{quant}")
}

/// A short name, upper case ignored.
fn from_table(name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    let lower = lower.strip_suffix(":latest").unwrap_or(&lower);
    let rows = || short_names().flat_map(|row| row.names.split(' ').map(move |name| (name, row)));
    let meant = rows().filter_map(|(name, row)| {
        let rest = lower.strip_prefix(name)?;
        let quant = match rest.strip_prefix('-') {
            None if rest.is_empty() => row.quant.to_owned(),
            None => return None,
            Some(rest) => quant_of(rest)?.unwrap_or_else(|| row.quant.to_owned()),
        };
        Some((name.len(), format!("{}:{quant}", row.repository)))
    });
    meant.max_by_key(|(len, _)| *len).map(|(_, found)| found)
}

/// The quantization of `instruct-q4_K_M`; `None` inside if it names none, outside if it is something else.
fn quant_of(rest: &str) -> Option<Option<String>> {
    let last = ["instruct-", "it-", "chat-", "text-"].iter().find_map(|word| rest.strip_prefix(word)).unwrap_or(rest);
    if ["instruct", "it", "chat", "text"].contains(&last) {
        return Some(None);
    }
    let digits = last.trim_start_matches("iq").trim_start_matches(['q', 'f']);
    let is_quant = last.starts_with(['q', 'i', 'f']) && digits.starts_with(|c: char| c.is_ascii_digit());
    let known = ["bf16", "fp16", "mxfp4"].contains(&last);
    (is_plain(last) && (is_quant || known)).then(|| Some(last.replace("fp16", "f16").to_ascii_uppercase()))
}

/// The only model of the cache whose last part this is, upper case ignored.
fn from_cache(name: &str, env: &HubEnv) -> Option<String> {
    let end = name.find(['@', ':']).unwrap_or(name.len());
    let (last, suffix) = name.split_at(end);
    let models = cached(env).ok()?;
    let mut found = models
        .iter()
        .filter(|model| model.id.rsplit('/').next().is_some_and(|theirs| theirs.eq_ignore_ascii_case(last)));
    match (found.next(), found.next()) {
        (Some(model), None) => Some(format!("{}{suffix}", model.id)),
        _ => None,
    }
}

/// Up to three names that are near, of the table and of the cache.
fn near(name: &str, env: &HubEnv) -> Vec<String> {
    let of_table = short_names().flat_map(|row| row.names.split(' ').map(str::to_owned));
    let of_cache = cached(env).unwrap_or_default().into_iter().map(|model| model.id);
    let is_near = |other: &String| {
        let (is_other, distance) = distance(name, other);
        !is_other || distance * 3 <= name.len()
    };
    nearest(name, of_table.chain(of_cache).filter(is_near).collect())
}

/// The three of `names` that are nearest to `name`, the nearest first.
pub fn nearest(name: &str, mut names: Vec<String>) -> Vec<String> {
    let name: String = name.chars().take(MOST_COMPARED).collect();
    names.sort_by_cached_key(|other| distance(&name, other));
    names.dedup();
    names.truncate(3);
    names
}

/// A family that is begun, or of which another size is meant, is nearer than any other word. Upper case is ignored, and so
/// are organisations.
fn distance(name: &str, other: &str) -> (bool, usize) {
    let (name, other) = (name.to_ascii_lowercase(), other.to_ascii_lowercase());
    let last = other.rsplit('/').next().unwrap_or_default();
    let family = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
    (family(last) != family(&name), strsim::damerau_levenshtein(last, &name))
}
