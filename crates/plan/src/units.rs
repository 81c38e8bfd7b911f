//! Parsing and formatting of quantities.

/// A quantity with a decimal suffix: `312T`, `2t`, `1.5k`, `80G`, `80GB`, `16GiB`, `8e9`. `None` unless it is a positive
/// number.
pub fn quantity(text: &str) -> Option<f64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && !".eE+-".contains(c)).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let binary = suffix.len() > 1 && suffix.ends_with("iB");
    let letter = suffix.trim_end_matches("iB").trim_end_matches('B');
    let power = ["", "k", "m", "g", "t", "p"].iter().position(|&known| letter.eq_ignore_ascii_case(known))?;
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    let value = number.parse::<f64>().ok()? * base.powi(power as i32);
    (value.is_finite() && value > 0.0).then_some(value)
}

/// Requests per second: `2/s`, `0.5/min`, `30/h`; a bare number is per second.
pub fn requests_per_second(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match unit {
        "s" => 1.0,
        "min" | "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let value = number.parse::<f64>().ok()? / seconds;
    (value.is_finite() && value > 0.0).then_some(value)
}

/// Rounded to three decimals: the rest is noise.
pub fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Formats as `61 %`.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Formats as `41.3 tok/s`, `8.4k tok/s`.
pub fn rate(tokens_per_second: f64) -> String {
    match tokens_per_second {
        rate if rate < 99.95 => format!("{rate:.1} tok/s"),
        rate if rate < 999.5 => format!("{rate:.0} tok/s"),
        rate if rate < 99_950.0 => format!("{:.1}k tok/s", rate / 1e3),
        rate => format!("{:.0}k tok/s", rate / 1e3),
    }
}

/// Formats as `0.8 ms`, `96 ms`, `1.24 s`, `3.1 min`.
pub fn duration(seconds: f64) -> String {
    match seconds * 1e3 {
        ms if ms < 9.95 => format!("{ms:.1} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms if ms < 599_950.0 => format!("{:.2} s", ms / 1e3),
        ms => format!("{:.1} min", ms / 6e4),
    }
}

/// Formats as `8.0 MiB`, `3.31 GiB`.
pub fn bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b < 1024.0 => format!("{b} B"),
        b if b < 1024.0 * 1024.0 => format!("{:.0} KiB", b / 1024.0),
        b if b < 1024.0 * 1024.0 * 1024.0 => format!("{:.1} MiB", b / 1024.0 / 1024.0),
        b => format!("{:.2} GiB", b / 1024.0 / 1024.0 / 1024.0),
    }
}

/// Formats as `26.1 GB/s`.
pub fn bandwidth(bytes_per_second: f64) -> String {
    format!("{:.1} GB/s", bytes_per_second / 1e9)
}

/// Formats as `3.75 TOP/s`, `412 GFLOP/s`: operations per second with their name.
pub fn operations(per_second: f64, name: &str) -> String {
    if per_second >= 1e12 {
        format!("{:.2} T{name}/s", per_second / 1e12)
    } else {
        format!("{:.0} G{name}/s", per_second / 1e9)
    }
}

/// Three digits and a decimal prefix: `14 G`, `14.3 T`, `987`.
pub fn prefixed(value: f64) -> String {
    const PREFIXES: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    let power = if value < 1.0 { 0 } else { ((value.log10() / 3.0 + 1e-4) as usize).min(PREFIXES.len() - 1) };
    let scaled = value / 1000_f64.powi(power as i32);
    let digits = match scaled {
        x if x >= 99.95 || (x - x.round()).abs() < 0.005 => 0,
        x if x >= 9.995 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$}{}", PREFIXES[power])
}

/// Formats as `1,024`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
