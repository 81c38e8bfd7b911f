//! How long a model stays in memory without requests: `keep_alive` in a request, as Ollama's clients say it, and
//! `--keep-alive`.

use std::time::Duration;

use crate::error::{ApiError, ApiResult};
use serde_json::Value;

/// Seconds, or a text such as `5m`, `1h30m` or `300ms`; below 0, or `forever`: without end, which is `None`. What it must
/// be, where it is none of these.
pub fn keep_alive(text: &str) -> Result<Option<Duration>, &'static str> {
    let stays = if text == "forever" { Some(-1.0) } else { seconds(text) };
    // Longer than any server runs.
    let stays = stays.filter(|seconds| seconds.is_finite()).map(|seconds| seconds.min(1e9));
    let stays = stays.ok_or("must be seconds, a duration such as 5m or 1h30m, or forever; below 0: without end")?;
    Ok((stays >= 0.0).then(|| Duration::from_secs_f64(stays)))
}

/// The same in a request.
pub fn read(value: &Value) -> ApiResult<Option<Duration>> {
    let text = match value {
        Value::String(text) => text.clone(),
        // No duration is a list or a truth.
        other => other.to_string(),
    };
    keep_alive(&text).map_err(|wrong| ApiError::bad_request(format!("keep_alive {wrong}.")).with_param("keep_alive"))
}

/// A number alone is of seconds, as in Ollama.
fn seconds(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse::<f64>() {
        return Some(number);
    }
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        sum += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    Some(sign * sum).filter(|_| text.ends_with(|c: char| c.is_ascii_alphabetic()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_are_read_as_ollama_reads_them() {
        let table = [
            (json!(0), Some(0.0)),
            (json!(300), Some(300.0)),
            (json!(0.5), Some(0.5)),
            (json!("0"), Some(0.0)),
            (json!("45"), Some(45.0)),
            (json!("5m"), Some(300.0)),
            (json!("1h30m"), Some(5400.0)),
            (json!("1.5h"), Some(5400.0)),
            (json!("300ms"), Some(0.3)),
            (json!(-1), None),
            (json!("-1"), None),
            (json!("-5m"), None),
            (json!("forever"), None),
            (json!("24h"), Some(86400.0)),
        ];
        for (value, wanted) in &table {
            assert_eq!(read(value).unwrap().map(|stays| stays.as_secs_f64()), *wanted, "{value}");
        }
        let wrong = ["1e9h", "abc", "5 m", "m", "", "nan", "inf", "NaNh"];
        for value in wrong.into_iter().map(Value::from).chain([json!([]), json!(true), json!(null)]) {
            assert!(read(&value).is_err(), "{value}");
        }
    }
}
