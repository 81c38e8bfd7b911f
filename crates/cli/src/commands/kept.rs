//! `twostroke pull`, `list`, `show`, `rm`: the models on this disk.

use std::io::{self, IsTerminal};
use std::path::Path;

use kernels::limits::Limits;
use launch::SHIPPED_NAME;
use plan::units::{bytes, rate, rounded};
use roofline::ModelShape;
use serde_json::json;

use crate::commands::serve::exact_bytes;
use crate::console::{put, put_line};
use crate::failure::Failure;
use crate::flags::{ListFlags, PullFlags, RmFlags, ShowFlags};
use crate::{environment, forecast, models, shapes};

pub(crate) fn list(flags: &ListFlags) -> Result<(), Failure> {
    let models = hub::cached(&environment::variables().hub).map_err(Failure::failed)?;
    let limits = forecast::limits();
    let date = |model: &hub::Cached| model.written.map(|seconds| environment::utc(seconds as i64));
    if flags.json {
        let one = |model: &hub::Cached| {
            let path = model.path.to_string_lossy();
            let mut told = json!({"id": model.id, "path": path, "bytes": model.bytes, "written": date(model)});
            told["runs_here"] = match forecast::of_cached(&model.id, limits.as_ref()) {
                Ok(speeds) => json!({
                    "fits": true,
                    "prefill_tokens_per_second": speeds.map(|speeds| rounded(speeds.prefill)),
                    "decode_tokens_per_second": speeds.map(|speeds| rounded(speeds.decode)),
                }),
                Err(why) => json!({"fits": false, "why": why}),
            };
            told
        };
        return put_line(&json!({"models": models.iter().map(one).collect::<Vec<_>>()}).to_string());
    }
    let width = models.iter().map(|model| model.id.len()).max().unwrap_or(0).max(SHIPPED_NAME.len());
    let built_in = "built in".to_owned();
    let row = |name: &str, size: String, written: String, runs: String| {
        put_line(&format!("{name:<width$}  {size:>9}  {written:<20}  {runs}"))
    };
    row("MODEL", "SIZE".to_owned(), "WRITTEN".to_owned(), "RUNS HERE".to_owned())?;
    row(SHIPPED_NAME, "-".to_owned(), built_in, runs_here(SHIPPED_NAME, limits.as_ref()))?;
    for model in &models {
        let written = date(model).unwrap_or_else(|| "?".to_owned());
        row(&model.id, bytes(model.bytes), written, runs_here(&model.id, limits.as_ref()))?;
    }
    Ok(())
}

/// A cell of `list`.
fn runs_here(name: &str, limits: Option<&Limits>) -> String {
    match forecast::of_cached(name, limits) {
        Ok(Some(speeds)) => rate(speeds.decode),
        Ok(None) if limits.is_none() => "yes (twostroke doctor measures how fast)".to_owned(),
        Ok(None) => "yes".to_owned(),
        Err(why) => format!("no: {why}"),
    }
}

/// Downloads what is not in the cache; without a name tells which short names there are.
pub(crate) fn pull(flags: &PullFlags) -> Result<(), Failure> {
    if flags.models.is_empty() {
        put_line(&format!("{:<26}  {:>8}  {:<12}  REPOSITORY", "NAME", "SIZE", "LICENCE"))?;
        for row in hub::short_names() {
            let names = row.names.replace(' ', ", ");
            let size = format!("{:.2} GB", row.gigabytes);
            put_line(&format!("{names:<26}  {size:>8}  {:<12}  {}:{}", row.licence, row.repository, row.quant))?;
        }
        return Ok(());
    }
    for name in &flags.models {
        if name == SHIPPED_NAME {
            put_line(&format!("{name}: is built in"))?;
            continue;
        }
        let path = models::path_for("pull", name, !flags.force)?;
        put_line(&format!("{name}: {path}"))?;
    }
    Ok(())
}

/// What `plan` knows of a model, without a machine.
pub(crate) fn show(flags: &ShowFlags) -> Result<(), Failure> {
    let name = flags.model.as_deref().unwrap_or(SHIPPED_NAME);
    let found = shapes::found("show", name)?;
    let (shape, stored, layers) = match &found {
        Some(found) => (found.config.shape(), found.stored, Some((found.config.num_layers, found.config.hidden_size))),
        None => (shapes::shape("show", name)?, None, None),
    };
    let title = found.as_ref().map_or_else(|| name.to_owned(), |found| found.name.clone());
    let ModelShape { vocab, context_limit, .. } = shape;
    let kv_bytes = 2 * shape.kv_values;
    if flags.json {
        return put_line(
            &json!({
                "model": title,
                "parameters": shape.parameters(),
                "active_parameters": shape.active_parameters,
                "context": context_limit,
                "vocabulary": vocab,
                "layers": layers.map(|layers| layers.0),
                "hidden_size": layers.map(|layers| layers.1),
                "stored": stored.map(|class| class.name()),
                "kv_bytes_per_token": kv_bytes,
                "has_files": found.is_some(),
            })
            .to_string(),
        );
    }
    let mut rows = vec![("model", title), ("parameters", count(shape.parameters()))];
    if shape.active_parameters < shape.layer_parameters {
        rows.push(("active", format!("{} a token", count(shape.active_parameters))));
    }
    rows.push(("context", format!("{context_limit} tokens")));
    rows.push(("vocabulary", format!("{vocab} tokens")));
    if let Some((layers, width)) = layers {
        rows.push(("layers", format!("{layers}, {width} wide")));
    }
    match (stored, &found) {
        (Some(class), _) => rows.push(("stored", class.name().to_owned())),
        (None, Some(_)) => rows.push(("stored", "a configuration without weights".to_owned())),
        (None, None) => rows.push(("stored", "a shape known by name, no files".to_owned())),
    }
    if shape.state_numbers > 0 {
        rows.push(("states", format!("{} a sequence", exact_bytes(4 * shape.state_numbers))));
    }
    match found.as_ref().is_some_and(|found| found.config.encoder.is_some()) {
        true => rows.push(("kind", "an encoder: vectors of texts, and no cache".to_owned())),
        false => rows.push(("KV cache", format!("{} a token in bf16", exact_bytes(kv_bytes)))),
    }
    for (what, value) in rows {
        put_line(&format!("{what:<12}{value}"))?;
    }
    Ok(())
}

fn count(parameters: u64) -> String {
    match parameters {
        1_000_000_000.. => format!("{:.2} B", parameters as f64 / 1e9),
        1_000_000.. => format!("{:.1} M", parameters as f64 / 1e6),
        _ => parameters.to_string(),
    }
}

/// Models of the hub's cache, each after it was said what goes. All names are looked up before the first goes.
pub(crate) fn remove(flags: &RmFlags) -> Result<(), Failure> {
    let env = environment::variables().hub;
    let find = |name: &String| {
        if name == SHIPPED_NAME {
            return Err(Failure::usage(format!("{name}: is built in")));
        }
        // A path that exists is the user's own file and no name of the cache.
        if Path::new(name).exists() {
            return Err(Failure::usage(format!(
                "{name}: is a file or directory of yours; rm removes models of the cache"
            )));
        }
        let found = hub::canonical(name, &env).map_err(Failure::usage)?;
        let id = found.split(['@', ':']).next().unwrap_or_default();
        hub::find_cached(id, &env).map_err(Failure::usage)
    };
    let mut models: Vec<hub::Cached> = flags.models.iter().map(find).collect::<Result<_, _>>()?;
    // A model that is named twice goes once.
    models.sort_by(|a, b| a.id.cmp(&b.id));
    models.dedup();
    for model in models {
        let hub::Cached { id, path, files, .. } = &model;
        put_line(&format!("{id}: {} in {files} files, {}", bytes(model.bytes), path.display()))?;
        if !flags.yes && !agrees(id)? {
            continue;
        }
        hub::remove_cached(&model).map_err(Failure::failed)?;
    }
    Ok(())
}

/// Asks at a terminal; where there is none, the command is the answer.
fn agrees(id: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Ok(true);
    }
    put(&format!("remove {id}? [y/N] "))?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_short_name_is_of_a_class_that_loads() {
        let refusal = |class: &str| {
            let config = json!({"architectures": [class]}).to_string();
            model::ModelConfig::parse(&config).err().map_or_else(String::new, |error| error.to_string())
        };
        assert!(refusal("NoSuchModel").contains("architectures"), "{}", refusal("NoSuchModel"));
        for row in hub::short_names() {
            assert!(!refusal(row.class).contains("architectures"), "{row:?}: {}", refusal(row.class));
        }
    }

    #[test]
    fn parameters_are_counted_as_people_say_them() {
        for (parameters, said) in [(999, "999"), (494_032_768, "494.0 M"), (7_615_616_512, "7.62 B")] {
            assert_eq!(count(parameters), said);
        }
    }
}
