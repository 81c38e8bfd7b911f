//! `twostroke ps`, `twostroke stop`: the models that a server has in memory, and one that is to leave.

use plan::units::bytes;
use serde_json::{Value, json};

use crate::console::put_line;
use crate::failure::Failure;
use crate::flags::{PsFlags, StopFlags};
use crate::signals;

pub(crate) fn list(flags: &PsFlags) -> Result<(), Failure> {
    let target = flags.server.target()?;
    let answer = signals::runtime(0)?.block_on(bench::load::ask(&target, "/api/ps")).map_err(Failure::failed)?;
    let models = understood(&flags.server.url, answer)?;
    let Some(entries) = models["models"].as_array() else { return Err(other_server(&flags.server.url)) };
    if flags.json {
        return put_line(&models.to_string());
    }
    let rows: Vec<[String; 8]> = entries.iter().map(row).collect();
    let head = ["NAME", "SIZE", "CONTEXT", "STATE", "REQUESTS", "PREFILL", "DECODE", "UNTIL"].map(str::to_owned);
    let width = |column: usize| rows.iter().chain([&head]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    for row in [&head].into_iter().chain(&rows) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        put_line(cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// An entry as a row. Ollama's own have neither a state nor requests. Of the phases: their share of the machine's limit, where
/// one ran in the last minute.
fn row(entry: &Value) -> [String; 8] {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let count = |name: &str| entry[name].as_u64().unwrap_or(0);
    let name = text(&entry["name"]);
    let state = entry["state"]["value"].as_str().map_or_else(
        || "loaded".to_owned(),
        |state| match entry["state"]["percent"].as_u64() {
            Some(percent) => format!("{state} {percent} %"),
            None => state.to_owned(),
        },
    );
    let requests = match (count("requests"), count("waiting")) {
        (open, 0) => open.to_string(),
        (open, 1) => format!("{open}, 1 waits"),
        (open, waiting) => format!("{open}, {waiting} wait"),
    };
    let phase = |name: &str| {
        entry["limit_percent"][name].as_f64().map_or_else(|| "-".to_owned(), |percent| format!("{percent} %"))
    };
    let until = match (entry["pinned"].as_bool(), entry["idle_seconds_left"].as_u64()) {
        (Some(true), _) => "pinned".to_owned(),
        (_, Some(seconds)) => format!("{} idle", span(seconds)),
        (Some(false), None) => "its requests end".to_owned(),
        (None, None) => text(&entry["expires_at"]),
    };
    let name = name.strip_suffix(":latest").map_or(name.clone(), str::to_owned);
    let (size, context) = (bytes(count("size")), count("context_length").to_string());
    [name, size, context, state, requests, phase("prefill"), phase("decode"), until]
}

/// `4 min`, `30 s`, `2 h`.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3600)),
    }
}

pub(crate) fn stop(flags: &StopFlags) -> Result<(), Failure> {
    let target = flags.server.target()?;
    let runtime = signals::runtime(0)?;
    for name in &flags.models {
        let body = json!({"model": name, "keep_alive": 0, "stream": false});
        let asked = bench::load::tell(&target, "/api/generate", &body);
        let answer = understood(&flags.server.url, runtime.block_on(asked).map_err(Failure::failed)?)?;
        if answer["done_reason"] != "unload" {
            let url = &flags.server.url;
            let why = "is the model that the server was started with: it stays until the server ends";
            return Err(Failure::usage(format!("{url}: {name} {why}")));
        }
    }
    Ok(())
}

fn understood(url: &str, (status, answer): (u16, Value)) -> Result<Value, Failure> {
    let said = answer["error"].as_str().or(answer["error"]["message"].as_str());
    match (status, said) {
        (200, _) if answer.is_object() => Ok(answer),
        (401, _) => Err(Failure::usage(format!("{url} asks for a key: set --api-key"))),
        (400 | 404, Some(said)) => Err(Failure::usage(format!("{url}: {said}"))),
        (_, Some(said)) => Err(Failure::failed(format!("{url} answered {status}: {said}"))),
        _ => Err(other_server(url)),
    }
}

fn other_server(url: &str) -> Failure {
    Failure::failed(format!("{url} lists no models as a server of ours, or Ollama, does"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_what_a_person_asks() {
        let table = [
            (
                json!({"name": "a:latest", "size": 3_328_599_654_u64, "context_length": 8192, "state": {"value": "loaded"},
                    "requests": 2, "waiting": 1, "pinned": true, "limit_percent": {"prefill": 61.0, "decode": null}}),
                ["a", "3.10 GiB", "8192", "loaded", "2, 1 waits", "61 %", "-", "pinned"],
            ),
            (
                json!({"name": "qwen3:4b", "size": 1024, "context_length": 4096, "requests": 0, "waiting": 3,
                    "state": {"value": "loading", "percent": 43}, "pinned": false}),
                ["qwen3:4b", "1 KiB", "4096", "loading 43 %", "0, 3 wait", "-", "-", "its requests end"],
            ),
            (
                json!({"name": "b", "size": 0, "state": {"value": "loaded"}, "pinned": false, "idle_seconds_left": 241}),
                ["b", "0 B", "0", "loaded", "0", "-", "-", "5 min idle"],
            ),
            (
                json!({"name": "ollamas:7b", "size": 0, "expires_at": "2026-11-29T00:00:00Z"}),
                ["ollamas:7b", "0 B", "0", "loaded", "0", "-", "-", "2026-11-29T00:00:00Z"],
            ),
        ];
        for (entry, wanted) in table {
            assert_eq!(row(&entry), wanted, "{entry}");
        }
        for (seconds, wanted) in [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h"), (7201, "3 h")] {
            assert_eq!(span(seconds), wanted);
        }
    }
}
