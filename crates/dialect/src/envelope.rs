//! Calls as JSON objects that contain the name: `{"name": "f", "arguments": {...}}`, alone or in a list.

use crate::Tool;
use crate::char_stream::{CharStream, Read, Sink, Stop};
use crate::json;
use crate::tool_names::{longest, prefixed};

/// Maximum unmatched closing brackets that are skipped.
const MAX_SURPLUS: usize = 8;
/// Maximum length of a call's keys; an object with a longer one is not a call.
const MAX_KEY_BYTES: usize = 64;

/// The syntax around the objects.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// Opening marks, valid anywhere.
    pub(crate) opens: &'static [&'static str],
    /// Whether an unmarked object or list at the start of an answer is a call too.
    pub(crate) bare: bool,
    /// Optional closing marks.
    pub(crate) closes: &'static [&'static str],
    /// Separators allowed between objects outside a list.
    pub(crate) between: &'static [&'static str],
    /// Whether the family writes a list; both forms are accepted.
    pub(crate) is_list: bool,
    /// The family's key for arguments; both keys are accepted.
    pub(crate) arguments: &'static str,
}

impl Envelope {
    /// Marks that cannot be inside a call, except in strings.
    fn ends(&self) -> Vec<&'static str> {
        [self.closes, self.opens].concat()
    }
}

/// Opening characters of unmarked envelopes.
pub(crate) const BARE: [&str; 2] = ["{", "["];

/// Parses the text after the mark.
pub(crate) async fn read(stream: &CharStream, tools: &[Tool], form: &Envelope, mark: &str) -> Read<()> {
    let is_bare = BARE.contains(&mark);
    let mut is_fenced = false;
    let first = if is_bare {
        mark.chars().next()
    } else {
        stream.space().await?;
        is_fenced = fence(stream).await?;
        let c = stream.peek().await?;
        if matches!(c, '{' | '[') {
            stream.take();
        }
        Some(c)
    };
    match first {
        Some('{') => {
            object(stream, tools, form, is_bare).await?;
            loop {
                if between(stream, form.between).await?.is_some() {
                    stream.space().await?;
                    stream.expect('{').await?;
                } else if form.closes.is_empty() || !another(stream, "{").await {
                    break;
                }
                object(stream, tools, form, is_bare).await?;
            }
        }
        Some('[') => list(stream, tools, form, is_bare).await?,
        _ => return Err(Stop::Malformed),
    }
    surplus(stream, form.closes).await;
    fence_ends(stream, is_fenced).await;
    between(stream, form.closes).await?;
    stream.skip_repeats(form.closes, &[]).await;
    stream.drop_mark();
    Ok(())
}

/// Takes an opening code fence after a mark, with the white space behind it.
pub(crate) async fn fence(stream: &CharStream) -> Read<bool> {
    let is_fenced = stream.mark_at(0, &["```"]).await.is_some();
    if is_fenced {
        let at = if stream.mark_at(3, &["json"]).await.is_some() { 7 } else { 3 };
        stream.take_many(at);
        stream.space().await?;
    }
    Ok(is_fenced)
}

/// Takes the closing fence, if it comes.
pub(crate) async fn fence_ends(stream: &CharStream, is_fenced: bool) {
    if is_fenced && let Some((_, end)) = stream.mark_at(stream.behind_space(0).await, &["```"]).await {
        stream.take_many(end);
        stream.drop_mark();
    }
}

/// Takes the beginning of another call between the same pair of marks, with or without a comma before it.
pub(crate) async fn another(stream: &CharStream, begin: &'static str) -> bool {
    let mut at = stream.behind_space(0).await;
    if stream.ahead(at).await == Some(',') {
        at = stream.behind_space(at + 1).await;
    }
    let found = stream.mark_at(at, &[begin]).await;
    if let Some((_, end)) = found {
        stream.take_many(end);
    }
    found.is_some()
}

/// Skips unmatched closing brackets before a closing mark.
pub(crate) async fn surplus(stream: &CharStream, closes: &[&'static str]) {
    let mut at = stream.behind_space(0).await;
    let mut count = 0;
    while count < MAX_SURPLUS && matches!(stream.ahead(at).await, Some('}' | ']')) {
        at = stream.behind_space(at + 1).await;
        count += 1;
    }
    if count > 0 && stream.mark_at(at, closes).await.is_some() {
        stream.take_many(at);
        stream.drop_mark();
    }
}

/// Takes one of the marks after a call with the white space before it, or neither.
pub(crate) async fn between(stream: &CharStream, marks: &[&'static str]) -> Read<Option<&'static str>> {
    if marks.is_empty() {
        return Ok(None);
    }
    let found = match stream.space().await {
        Ok(()) => stream.one_of(marks).await,
        Err(stop) => Err(stop),
    };
    match found {
        // A truncated mark is not text.
        Ok(Some(_)) | Err(Stop::Ended) => stream.drop_mark(),
        _ => stream.emit_held(),
    }
    found
}

async fn list(stream: &CharStream, tools: &[Tool], form: &Envelope, is_bare: bool) -> Read<()> {
    loop {
        stream.space().await?;
        stream.expect('{').await?;
        object(stream, tools, form, is_bare).await?;
        stream.space().await?;
        if stream.peek().await? == ',' {
            stream.take();
            stream.space().await?;
        }
        match stream.peek().await? {
            ']' => {
                stream.take();
                stream.drop_mark();
                return Ok(());
            }
            '{' => {}
            // The list is not closed.
            _ if stream.mark_at(0, &form.ends()).await.is_some() => {
                stream.drop_mark();
                return Ok(());
            }
            _ => return Err(Stop::Malformed),
        }
    }
}

/// An object after its opening brace.
async fn object(stream: &CharStream, tools: &[Tool], form: &Envelope, is_bare: bool) -> Read<()> {
    let ends = form.ends();
    let (mut name, mut id, mut kept, mut index) = (None::<&str>, None, None::<String>, None);
    loop {
        stream.space().await?;
        // A trailing comma.
        if index.is_some() && stream.peek().await? == '}' {
            break;
        }
        let key = json::text(stream, MAX_KEY_BYTES).await?;
        stream.space().await?;
        stream.expect(':').await?;
        stream.space().await?;
        match key.as_str() {
            "name" if name.is_none() => {
                let written = json::text(stream, longest(tools)).await?;
                name = Some(&prefixed(tools, &written).ok_or(Stop::Malformed)?.name);
                if let (Some(name), Some(json)) = (name, kept.take()) {
                    let begun = stream.begin(name, id.take());
                    stream.emit_json(begun, &json);
                    index = Some(begun);
                }
            }
            "arguments" | "parameters" if index.is_none() && kept.is_none() => match name {
                Some(name) => index = Some(arguments(stream, name, &mut id, &ends).await?),
                None => {
                    let mut json = String::new();
                    json::object(stream, &mut Sink::Kept(&mut json), &[]).await?;
                    kept = Some(json);
                }
            },
            "id" if id.is_none() => {
                let value = json::value(stream).await?;
                id = serde_json::from_str::<String>(&value).ok();
            }
            // Unmarked JSON is a call only without other keys.
            "type" => drop(json::value(stream).await?),
            _ if is_bare => return Err(Stop::Malformed),
            _ => drop(json::value(stream).await?),
        }
        let more = match stream.space().await {
            Ok(()) => stream.peek().await,
            Err(stop) => Err(stop),
        };
        match (more, index) {
            (Ok(','), _) => stream.take(),
            (Ok('}'), _) => break,
            (Ok(']'), Some(index)) => {
                stream.finish_call(index);
                return Ok(());
            }
            // The closing brace is missing, but the arguments are complete.
            (Ok(_), Some(index)) if stream.mark_at(0, &ends).await.is_some() => {
                stream.finish_call(index);
                return Ok(());
            }
            (Err(Stop::Ended), Some(index)) => {
                stream.finish_call(index);
                return Err(Stop::Ended);
            }
            (Err(stop), _) => return Err(stop),
            _ => return Err(Stop::Malformed),
        }
    }
    let index = match (index, name) {
        (Some(index), _) => index,
        // A call without arguments.
        (None, Some(name)) if !is_bare => {
            let index = stream.begin(name, id);
            stream.emit_json(index, "{}");
            index
        }
        _ => return Err(Stop::Malformed),
    };
    stream.take();
    stream.finish_call(index);
    Ok(())
}

/// The arguments: an object, a string that contains one, as in OpenAI's API, or nothing.
async fn arguments(stream: &CharStream, name: &str, id: &mut Option<String>, ends: &[&'static str]) -> Read<usize> {
    match stream.peek().await? {
        '{' => {
            let index = stream.begin(name, id.take());
            json::object(stream, &mut Sink::Call(index), ends).await?;
            Ok(index)
        }
        '"' | '\'' => json::object_in_text(stream, || stream.begin(name, id.take())).await,
        _ => {
            stream.one_of(&["null"]).await?.ok_or(Stop::Malformed)?;
            let index = stream.begin(name, id.take());
            stream.emit_json(index, "{}");
            Ok(index)
        }
    }
}
