//! `keep_alive`: how long a model stays in memory without requests, as Ollama's clients say it.

use std::time::Duration;

use serde_json::Value;
use transport::error::{ApiError, ApiResult};

/// Seconds, or a text such as `5m`, `1h30m` or `300ms`; below 0: without end, which is `None`.
pub(super) fn read(value: &Value) -> ApiResult<Option<Duration>> {
    let wrong = || {
        let message = "keep_alive must be seconds, or a duration such as '5m' or '1h30m'; below 0: without end.";
        ApiError::bad_request(message).with_param("keep_alive")
    };
    let seconds = match value {
        Value::Number(number) => number.as_f64().ok_or_else(wrong)?,
        Value::String(text) => seconds(text).ok_or_else(wrong)?,
        _ => return Err(wrong()),
    };
    if !seconds.is_finite() {
        return Err(wrong());
    }
    // Longer than any server runs.
    Ok((seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(1e9))))
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
            (json!("1e9h"), None),
        ];
        for (value, wanted) in &table[..12] {
            assert_eq!(read(value).unwrap().map(|stays| stays.as_secs_f64()), *wanted, "{value}");
        }
        for value in [&table[12].0, &json!("abc"), &json!("5 m"), &json!("m"), &json!(""), &json!([]), &json!(true)] {
            assert!(read(value).is_err(), "{value}");
        }
    }
}
