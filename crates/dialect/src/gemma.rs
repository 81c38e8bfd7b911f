//! Gemma's calls: `call:weather{city:<escape>Ulm<escape>,days:3}`, texts between two quotes that are tokens.

use serde_json::Value;

use crate::Tool;
use crate::envelope::between;
use crate::listener::name;
use crate::schema::{Kinds, quoted};
use crate::tape::{Read, Stop, Tape};

/// Longest name of a parameter.
const MAX_KEY_BYTES: usize = 256;
/// Deepest nesting of lists and objects.
const MAX_DEPTH: usize = 100;

/// The marks of a generation of Gemma.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gemma {
    pub(crate) opens: &'static [&'static str],
    /// On both sides of a text.
    pub(crate) quote: &'static str,
    pub(crate) closes: &'static [&'static str],
}

/// Reads what follows the mark.
pub(crate) async fn read(tape: &Tape, tools: &[Tool], form: &Gemma) -> Read<()> {
    tape.space().await?;
    tape.one_of(&["call:"]).await?.ok_or(Stop::Malformed)?;
    let tool = name(tape, tools).await?;
    tape.expect('{').await?;
    let index = tape.begin(&tool.name, None);
    tape.put(index, "{");
    let mut is_first = true;
    loop {
        tape.space().await?;
        if tape.peek().await? == '}' {
            tape.take();
            tape.put(index, "}");
            tape.finish_call(index);
            between(tape, form.closes).await?;
            return Ok(());
        }
        let key = key(tape, form.quote).await?;
        let written = extent(tape, form.quote).await?;
        let json = parameter(&tool.parameters, &key, &written, form.quote).ok_or(Stop::Malformed)?;
        tape.put(index, &format!("{}{}: {json}", if is_first { "" } else { ", " }, quoted(&key)));
        is_first = false;
        if tape.peek().await? == ',' {
            tape.take();
        }
    }
}

async fn key(tape: &Tape, quote: &'static str) -> Read<String> {
    let mut key = String::new();
    tape.one_of(&[quote]).await?;
    loop {
        tape.one_of(&[quote]).await?;
        let c = tape.peek().await?;
        if c == ':' {
            tape.take();
            return Ok(key);
        }
        if key.len() > MAX_KEY_BYTES || matches!(c, '{' | '}' | ',' | '\n') {
            return Err(Stop::Malformed);
        }
        key.push(c);
        tape.take();
    }
}

/// A value up to the comma or brace behind it, which stays.
async fn extent(tape: &Tape, quote: &'static str) -> Read<String> {
    let (mut written, mut is_text, mut depth) = (String::new(), false, 0);
    loop {
        if tape.one_of(&[quote]).await?.is_some() {
            written.push_str(quote);
            is_text = !is_text;
            continue;
        }
        let c = tape.peek().await?;
        match c {
            _ if is_text => {}
            '{' | '[' => depth += 1,
            ',' | '}' if depth == 0 => return Ok(written),
            '}' | ']' if depth > 0 => depth -= 1,
            ']' => return Err(Stop::Malformed),
            _ => {}
        }
        written.push(c);
        tape.take();
    }
}

fn parameter(parameters: &Value, key: &str, written: &str, quote: &str) -> Option<String> {
    let kinds = Kinds::of(parameters, key);
    let inside = written.trim().strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    match inside.filter(|inside| !inside.contains(quote)) {
        // Numbers come in quotes from models that were shown them so.
        Some(text) => Some(if kinds.is_text() || kinds.is_any() { quoted(text) } else { kinds.json(text) }),
        None if written.contains(quote) || written.contains(['{', '[']) => {
            let (json, rest) = value(written, quote, 0)?;
            rest.trim().is_empty().then_some(json)
        }
        None => Some(kinds.json(written.trim())),
    }
}

/// The first value of `written` as JSON, and what follows.
fn value<'a>(written: &'a str, quote: &str, depth: usize) -> Option<(String, &'a str)> {
    let rest = written.trim_start();
    if depth > MAX_DEPTH {
        return None;
    }
    if let Some(rest) = rest.strip_prefix(quote) {
        let (text, rest) = rest.split_once(quote)?;
        return Some((quoted(text), rest));
    }
    let (open, close) = match rest.chars().next()? {
        '[' => ('[', ']'),
        '{' => ('{', '}'),
        _ => {
            let end = rest.find([',', ']', '}']).unwrap_or(rest.len());
            let word = rest[..end].trim();
            let is_json = serde_json::from_str::<Value>(word).is_ok_and(|value| !value.is_string());
            return Some((if is_json { word.to_owned() } else { quoted(word) }, &rest[end..]));
        }
    };
    let mut json = String::from(open);
    let mut rest = rest[1..].trim_start();
    while !rest.starts_with(close) {
        if json.len() > 1 {
            rest = rest.strip_prefix(',')?.trim_start();
            json.push_str(", ");
        }
        if open == '{' {
            let (key, after) = match rest.strip_prefix(quote) {
                Some(rest) => rest.split_once(quote).and_then(|(key, rest)| Some((key, rest.strip_prefix(':')?)))?,
                None => rest.split_once(':')?,
            };
            json.push_str(&quoted(key.trim()));
            json.push_str(": ");
            rest = after;
        }
        let (inner, after) = value(rest, quote, depth + 1)?;
        json.push_str(&inner);
        rest = after.trim_start();
    }
    json.push(close);
    Some((json, &rest[1..]))
}
