//! What a server says, as a terminal may have it.

use serde_json::Value;

/// One line of text that a terminal prints and does not obey: no control characters, nothing that begins another line
/// or turns the direction of writing. Line breaks and tabs are spaces.
pub fn printable(text: &str) -> String {
    let shown = |c| match c {
        '\t' | '\n' | '\r' => ' ',
        c if is_command(c) => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

fn is_command(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}' | '\u{200e}' | '\u{200f}')
}

/// JSON of a server, every text and name in it [`printable`]. What is no JSON is null.
pub(crate) fn said(bytes: &[u8]) -> Value {
    fn clean(value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(printable(&text)),
            Value::Array(items) => items.into_iter().map(clean).collect(),
            Value::Object(fields) => {
                Value::Object(fields.into_iter().map(|(name, value)| (printable(&name), clean(value))).collect())
            }
            other => other,
        }
    }
    serde_json::from_slice(bytes).map(clean).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_it_is_obeyed() {
        let bad = "\u{0}\u{7}\u{8}\u{1b}\u{7f}\u{85}\u{9b}\u{9d}\u{2028}\u{2029}\u{202e}\u{2066}\u{200f}\u{61c}";
        assert_eq!(printable(bad), "\u{fffd}".repeat(bad.chars().count()));
        assert_eq!(printable("a\tb\r\nc"), "a b  c");
        for good in ["", "a b-c", "größer als 5 µs", "日本語", "👩‍👩‍👧", "e\u{301}", "شكرا"] {
            assert_eq!(printable(good), good);
        }
        let text =
            serde_json::json!({"a\u{1b}": ["\u{9b}2J", {"b": "\n"}], "n": 1.5, "t": true, "z": null}).to_string();
        let clean = serde_json::json!({"a\u{fffd}": ["\u{fffd}2J", {"b": " "}], "n": 1.5, "t": true, "z": null});
        assert_eq!(said(text.as_bytes()), clean);
        assert_eq!(said(b"{"), Value::Null);
    }
}
