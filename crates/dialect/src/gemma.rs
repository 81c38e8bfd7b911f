//! Gemma's calls: `call:weather{city:<escape>Ulm<escape>,days:3}`, with strings between two quote tokens.

use std::collections::HashSet;

use serde_json::Value;

use crate::Tool;
use crate::char_stream::{CharStream, Read, Stop};
use crate::envelope::{another, between, surplus};
use crate::json::{is_json, quoted};
use crate::schema::{Kinds, MAX_KEY_BYTES, names};
use crate::tool_names::name;

/// Maximum nesting of lists and objects.
const MAX_DEPTH: usize = 100;

/// Marks of a Gemma generation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gemma {
    pub(crate) opens: &'static [&'static str],
    /// The quote on both sides of a string.
    pub(crate) quote: &'static str,
    pub(crate) closes: &'static [&'static str],
}

/// Parses the text after the mark.
pub(crate) async fn read(stream: &CharStream, tools: &[Tool], form: &Gemma) -> Read<()> {
    const CALL: &str = "call:";
    stream.space().await?;
    stream.one_of(&[CALL]).await?.ok_or(Stop::Malformed)?;
    call(stream, tools, form).await?;
    while another(stream, CALL).await {
        call(stream, tools, form).await?;
    }
    surplus(stream, form.closes).await;
    between(stream, form.closes).await?;
    stream.skip_repeats(form.closes, &[]).await;
    stream.drop_mark();
    Ok(())
}

/// A call from its name on.
async fn call(stream: &CharStream, tools: &[Tool], form: &Gemma) -> Read<()> {
    let tool = name(stream, tools).await?;
    stream.expect('{').await?;
    let index = stream.begin(&tool.name, None);
    stream.emit_json(index, "{");
    let mut keys = HashSet::new();
    loop {
        stream.space().await?;
        let is_closed = stream.peek().await? == '}';
        if is_closed {
            stream.take();
        }
        // Its closing brace may be missing.
        if is_closed || !keys.is_empty() && stream.mark_at(0, form.closes).await.is_some() {
            stream.emit_json(index, "}");
            stream.finish_call(index);
            return Ok(());
        }
        let key = key(stream, form.quote).await?;
        let next: Vec<String> =
            names(&tool.parameters).filter(|other| **other != key && !keys.contains(other.as_str())).cloned().collect();
        let written = extent(stream, form, &next).await?;
        if let Some(json) = parameter(&tool.parameters, &key, &written, form.quote)? {
            stream.emit_json(index, &format!("{}{}: {json}", if keys.is_empty() { "" } else { ", " }, quoted(&key)));
            keys.insert(key);
        }
        if stream.peek().await? == ',' {
            stream.take();
        }
    }
}

async fn key(stream: &CharStream, quote: &'static str) -> Read<String> {
    let mut key = String::new();
    stream.one_of(&[quote]).await?;
    loop {
        stream.one_of(&[quote]).await?;
        let c = stream.peek().await?;
        if c == ':' {
            stream.take();
            return Ok(key);
        }
        if key.len() > MAX_KEY_BYTES || matches!(c, '{' | '}' | ',' | '\n') {
            return Err(Stop::Malformed);
        }
        key.push(c);
        stream.take();
    }
}

/// Reads a value up to the comma or brace after it, which is not taken. A string may contain its quote: it ends at the
/// quote before a valid continuation, or with the call.
///
/// `keys`: parameters that may follow. If one seems to be inside a string that never ends, the string ended before it.
async fn extent(stream: &CharStream, form: &Gemma, keys: &[String]) -> Read<String> {
    let quote = form.quote;
    let (mut written, mut is_text, mut depth) = (String::new(), false, 0);
    let before_key = |stream: &CharStream, written: &str, is_last: bool| {
        let at = next_key(written, keys, is_last)?;
        stream.untake(written[at..].chars().count());
        Some(format!("{}{quote}", &written[..at]))
    };
    loop {
        if let Some((_, end)) = stream.mark_at(0, &[quote]).await {
            let next = stream.ahead(stream.behind_space(end).await).await;
            let is_inside = is_text && !next.is_none_or(|c| FOLLOWS.contains(c));
            if is_inside
                && depth == 0
                && let Some(written) = before_key(stream, &written, true)
            {
                return Ok(written);
            }
            is_text = is_inside || !is_text;
            written.push_str(quote);
            stream.take_many(end);
            continue;
        }
        let c = stream.peek().await?;
        match c {
            // The closing quote is missing.
            '}' if is_text && depth == 0 && stream.mark_at(1, form.closes).await.is_some() => {
                return Ok(before_key(stream, &written, false).unwrap_or_else(|| written + quote));
            }
            _ if is_text => {}
            '{' | '[' => depth += 1,
            ',' | '}' if depth == 0 => return Ok(written),
            '}' | ']' if depth > 0 => depth -= 1,
            ']' => return Err(Stop::Malformed),
            // The call's closing brace is missing.
            '<' if depth == 0 && stream.mark_at(0, form.closes).await.is_some() => return Ok(written),
            _ => {}
        }
        written.push(c);
        stream.take();
    }
}

/// Position of the comma before the first of the keys, or before the key that `written` ends with.
fn next_key(written: &str, keys: &[String], is_last: bool) -> Option<usize> {
    let is_key = |rest: &str| {
        let Some((key, value)) = rest.trim_start().split_once(':') else { return false };
        (!is_last || value.trim().is_empty()) && keys.iter().any(|known| known == key)
    };
    if is_last {
        // A key is near the end: this runs at every quote.
        let end = written.floor_char_boundary(written.len().saturating_sub(2 * MAX_KEY_BYTES));
        let at = end + written[end..].rfind(',')?;
        return is_key(&written[at + 1..]).then_some(at);
    }
    written.match_indices(',').map(|(at, _)| at).find(|at| is_key(&written[at + 1..]))
}

/// Characters that may follow a string or a key.
const FOLLOWS: &str = ",}]:";

/// A value as JSON; `None` if it is invalid.
fn parameter(parameters: &Value, key: &str, written: &str, quote: &str) -> Read<Option<String>> {
    let kinds = Kinds::of(parameters, key);
    if let Some((text, "")) = text(written.trim(), quote) {
        // Models that saw quoted numbers write them.
        return Ok(if kinds.has_text(text) { Some(quoted(text)) } else { kinds.json(text) });
    }
    if written.contains(quote) || !kinds.is_text() && written.contains(['{', '[']) {
        let (json, rest) = value(written, quote, 0).ok_or(Stop::Malformed)?;
        return if rest.trim().is_empty() { Ok(Some(json)) } else { Err(Stop::Malformed) };
    }
    Ok(kinds.json(written.trim()))
}

/// A quoted string, and the rest.
fn text<'a>(written: &'a str, quote: &str) -> Option<(&'a str, &'a str)> {
    let inside = written.strip_prefix(quote)?;
    inside.match_indices(quote).find_map(|(at, _)| {
        let rest = &inside[at + quote.len()..];
        let follows = rest.trim_start().chars().next().is_none_or(|c| FOLLOWS.contains(c));
        follows.then_some((&inside[..at], rest))
    })
}

/// The first value of `written` as JSON, and the rest.
fn value<'a>(written: &'a str, quote: &str, depth: usize) -> Option<(String, &'a str)> {
    let rest = written.trim_start();
    if depth > MAX_DEPTH {
        return None;
    }
    if rest.starts_with(quote) {
        let (text, rest) = text(rest, quote)?;
        return Some((quoted(text), rest));
    }
    let (open, close) = match rest.chars().next()? {
        '[' => ('[', ']'),
        '{' => ('{', '}'),
        _ => {
            let end = rest.find([',', ']', '}']).unwrap_or(rest.len());
            let word = rest[..end].trim();
            return Some((
                if is_json(word) && !word.starts_with('"') { word.to_owned() } else { quoted(word) },
                &rest[end..],
            ));
        }
    };
    let mut json = String::from(open);
    let mut rest = rest[1..].trim_start();
    while !rest.starts_with(close) {
        if json.len() > 1 {
            rest = rest.strip_prefix(',')?.trim_start();
            // A trailing comma, or an empty list.
            if rest.starts_with(close) {
                break;
            }
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
