//! Calls in Python syntax: `[weather(city="Ulm", days=3), now()]`.

use serde_json::Value;

use crate::Tool;
use crate::char_stream::{CharStream, Read, Stop};
use crate::envelope::{between, fence_ends};
use crate::json::quoted;
use crate::literal::{QUOTES, to_json};
use crate::schema::{MAX_KEY_BYTES, names};
use crate::tool_names::name;

/// The syntax around the calls.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Python {
    /// Opening marks, valid anywhere.
    pub(crate) opens: &'static [&'static str],
    /// Whether an unmarked list at the start of an answer is a list of calls.
    pub(crate) bare: bool,
    /// Whether calls may be on separate lines, without a list.
    pub(crate) lines: bool,
    /// Optional closing marks.
    pub(crate) closes: &'static [&'static str],
}

/// Opening character of an unmarked list.
pub(crate) const BARE: [&str; 1] = ["["];

/// Parses the text after the mark.
pub(crate) async fn read(stream: &CharStream, tools: &[Tool], form: &Python, mark: &str) -> Read<()> {
    let (mut is_list, mut is_fenced) = (BARE.contains(&mark), false);
    if !is_list {
        stream.space().await?;
        if !form.closes.contains(&"```") && stream.mark_at(0, &["```"]).await.is_some() {
            is_fenced = true;
            let at = stream.mark_at(3, &["python", "tool_code", "json"]).await.map_or(3, |(_, end)| end);
            stream.take_many(at);
            stream.space().await?;
        }
        if stream.peek().await? == '[' {
            stream.take();
            is_list = true;
        }
    }
    if is_list {
        loop {
            stream.space().await?;
            call(stream, tools, true).await?;
            stream.space().await?;
            if stream.peek().await? == ',' {
                stream.take();
                stream.space().await?;
                // A trailing comma, or an empty list.
                if stream.peek().await? != ']' {
                    continue;
                }
            }
            if stream.peek().await? == ']' {
                stream.take();
                break;
            }
            // The list is not closed.
            if stream.mark_at(0, form.closes).await.is_some() {
                break;
            }
            return Err(Stop::Malformed);
        }
        stream.drop_mark();
        fence_ends(stream, is_fenced).await;
        between(stream, form.closes).await?;
        stream.skip_repeats(form.closes, form.opens).await;
        stream.drop_mark();
        return Ok(());
    }
    if !form.lines {
        return Err(Stop::Malformed);
    }
    loop {
        call(stream, tools, false).await?;
        stream.space().await?;
        // Commas, as in a list.
        if stream.peek().await? == ',' {
            stream.take();
            stream.space().await?;
        }
        if stream.one_of(form.closes).await?.is_some() {
            stream.skip_repeats(form.closes, form.opens).await;
            stream.drop_mark();
            return Ok(());
        }
    }
}

async fn call(stream: &CharStream, tools: &[Tool], is_list: bool) -> Read<()> {
    let tool = name(stream, tools).await?;
    stream.expect('(').await?;
    stream.space().await?;
    let (mut index, mut is_first) = (None, true);
    loop {
        if stream.peek().await? == ')' {
            let index = index.unwrap_or_else(|| stream.begin(&tool.name, None));
            stream.take();
            stream.emit_json(index, if is_first { "{}" } else { "}" });
            stream.finish_call(index);
            return Ok(());
        }
        // The list ends, but the call does not.
        if let (Some(index), true, ']') = (index, is_list, stream.peek().await?) {
            stream.emit_json(index, "}");
            stream.finish_call(index);
            return Ok(());
        }
        let key = key(stream, &tool.parameters).await?;
        let index = *index.get_or_insert_with(|| stream.begin(&tool.name, None));
        stream.emit_json(index, &format!("{}{}: ", if is_first { "{" } else { ", " }, quoted(&key)));
        is_first = false;
        let written = extent(stream, is_list).await?;
        stream.emit_json(index, &to_json(written.trim()).ok_or(Stop::Malformed)?);
        if stream.peek().await? == ',' {
            stream.take();
            stream.space().await?;
        }
    }
}

/// A parameter's name and the equals sign.
async fn key(stream: &CharStream, parameters: &Value) -> Read<String> {
    // A name in the schema need not be one in Python.
    let mut longest = None::<(usize, &String)>;
    for name in names(parameters) {
        let Some((_, end)) = stream.mark_at(0, &[name]).await else { continue };
        let end = stream.behind_space(end).await;
        if stream.ahead(end).await == Some('=') {
            longest = longest.max(Some((end, name)));
        }
    }
    if let Some((end, name)) = longest {
        stream.take_many(end + 1);
        stream.space().await?;
        return Ok(name.clone());
    }
    let mut key = String::new();
    loop {
        let c = stream.peek().await?;
        if !c.is_alphanumeric() && c != '_' || key.len() > MAX_KEY_BYTES {
            break;
        }
        key.push(c);
        stream.take();
    }
    stream.space().await?;
    if key.is_empty() {
        return Err(Stop::Malformed);
    }
    stream.expect('=').await?;
    stream.space().await?;
    Ok(key)
}

/// Reads a value up to the comma or bracket after it, which is not taken.
async fn extent(stream: &CharStream, is_list: bool) -> Read<String> {
    let (mut written, mut quote, mut depth) = (String::new(), None, 0);
    loop {
        let c = stream.peek().await?;
        let marks = quote.map_or(QUOTES.to_vec(), |quote| vec![quote]);
        if let Some((mark, end)) = stream.mark_at(0, &marks).await {
            quote = quote.is_none().then_some(mark);
            written.push_str(mark);
            stream.take_many(end);
            continue;
        }
        match (quote, c) {
            (Some(_), '\\') => {
                written.push(c);
                stream.take();
                // An escaped character ends nothing.
                written.push(stream.peek().await?);
                stream.take();
                continue;
            }
            (Some(_), _) => {}
            (None, '(' | '[' | '{') => depth += 1,
            (None, ',' | ')') if depth == 0 => return Ok(written),
            (None, ']') if depth == 0 && is_list && !written.is_empty() => return Ok(written),
            (None, ')' | ']' | '}') if depth > 0 => depth -= 1,
            (None, ']' | '}' | '=') => return Err(Stop::Malformed),
            _ => {}
        }
        written.push(c);
        stream.take();
    }
}
