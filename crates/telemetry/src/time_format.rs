//! Moments as people and alerts name them: RFC 3339 in UTC, and milliseconds since 1970.

use std::time::{SystemTime, UNIX_EPOCH};

use engine::{Observe, UnixNanos};
use jiff::Timestamp;
use protocol::Nanos;
use serde_json::{Map, Value};

/// A day, the longest relative time.
const DAY_S: u64 = 86_400;

/// Now, in seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Exact to the nanosecond, so that parts add up on paper too.
pub fn ms(nanos: Nanos) -> f64 {
    nanos.0 as f64 / 1e6
}

/// `2026-11-22T03:12:00.250Z`.
pub fn rfc3339(unix: UnixNanos) -> String {
    // Only what is thousands of years away has no date.
    Timestamp::from_nanosecond(i128::from(unix.0)).map_or_else(|_| "?".to_owned(), |moment| format!("{moment:.3}"))
}

/// Adds a moment of the engine's to an object: `NAME_at` for people, `NAME_unix_ms` for programs.
pub fn insert(object: &mut Map<String, Value>, name: &str, engine: &dyn Observe, at: Nanos) {
    let unix = engine.unix(at);
    object.insert(format!("{name}_at"), rfc3339(unix).into());
    object.insert(format!("{name}_unix_ms"), unix.as_millis_f64().into());
}

/// A time as clients write it: RFC 3339, seconds or milliseconds since 1970 (Grafana's `${__from}`), or how long
/// before `now` (`90s`, `15m`, `2h`).
pub fn parse(text: &str, now: UnixNanos) -> Option<UnixNanos> {
    /// Seconds since 1970 reach this in the year 5138, milliseconds did in 1973.
    const FIRST_MILLIS: u64 = 100_000_000_000;
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        let number: u64 = text.parse().ok()?;
        let nanos = if number < FIRST_MILLIS { 1_000_000_000 } else { 1_000_000 };
        return Some(UnixNanos(number.checked_mul(nanos)?));
    }
    for (unit, seconds) in [('s', 1), ('m', 60), ('h', 3_600)] {
        if let Some(digits) = text.strip_suffix(unit).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        {
            let back = digits.parse::<u64>().ok()?.checked_mul(seconds).filter(|&back| back <= DAY_S)?;
            return Some(UnixNanos(now.0.saturating_sub(back * 1_000_000_000)));
        }
    }
    // A plus sign in a query is a space.
    let moment: Timestamp = text.replace(' ', "+").parse().ok()?;
    u64::try_from(moment.as_nanosecond()).ok().map(UnixNanos)
}

/// `500ms`, `2s`, or a bare number of milliseconds.
pub fn milliseconds(value: &str) -> Option<f64> {
    let (digits, unit) = match (value.strip_suffix("ms"), value.strip_suffix('s')) {
        (Some(digits), _) => (digits, 1.0),
        (None, Some(digits)) => (digits, 1e3),
        (None, None) => (value, 1.0),
    };
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    digits.parse::<f64>().ok().filter(|_| is_plain).map(|number| number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn moments_are_read_as_they_are_written() {
        let now = UnixNanos(1_795_316_720 * SECOND);
        assert_eq!(rfc3339(UnixNanos(now.0 + 250_999_999)), "2026-11-22T03:05:20.250Z");
        let at = |text: &str| parse(text, now).map(|unix| now.0 as i128 / 1_000_000 - unix.0 as i128 / 1_000_000);
        for (text, ago_ms) in [
            ("90s", 90_000),
            ("5m", 300_000),
            ("24h", 86_400_000),
            ("1795316720", 0),
            ("1795316719250", 750),
            ("2026-11-22T03:05:19Z", 1_000),
            ("2026-11-22T03:05:19.750Z", 250),
            ("2026-11-22T05:05:19+02:00", 1_000),
            ("2026-11-22T05:05:19 02:00", 1_000),
        ] {
            assert_eq!(at(text), Some(ago_ms), "{text}");
        }
        for wrong in ["", "s", "-5m", "5", "yesterday", "25h", "99999999999999999999", "2026-11-22", "1e9", "0.5h"] {
            assert!(parse(wrong, now).is_none_or(|_| wrong == "5"), "{wrong}");
        }
    }
}
