//! Calls as JSON objects that contain the name: `{"name": "f", "arguments": {...}}`, alone or in a list.

use crate::Tool;
use crate::json;
use crate::tape::{Read, Sink, Stop, Tape};
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
pub(crate) async fn read(tape: &Tape, tools: &[Tool], form: &Envelope, mark: &str) -> Read<()> {
    let is_bare = BARE.contains(&mark);
    let mut is_fenced = false;
    let first = if is_bare {
        mark.chars().next()
    } else {
        tape.space().await?;
        is_fenced = fence(tape).await?;
        let c = tape.peek().await?;
        if matches!(c, '{' | '[') {
            tape.take();
        }
        Some(c)
    };
    match first {
        Some('{') => {
            object(tape, tools, form, is_bare).await?;
            while between(tape, form.between).await?.is_some() {
                tape.space().await?;
                tape.expect('{').await?;
                object(tape, tools, form, is_bare).await?;
            }
        }
        Some('[') => list(tape, tools, form, is_bare).await?,
        _ => return Err(Stop::Malformed),
    }
    surplus(tape, form.closes).await;
    fence_ends(tape, is_fenced).await;
    between(tape, form.closes).await?;
    tape.again(form.closes, &[]).await;
    tape.settle();
    Ok(())
}

/// Takes an opening code fence after a mark, with the white space behind it.
pub(crate) async fn fence(tape: &Tape) -> Read<bool> {
    let is_fenced = tape.mark_at(0, &["```"]).await.is_some();
    if is_fenced {
        let at = if tape.mark_at(3, &["json"]).await.is_some() { 7 } else { 3 };
        tape.take_many(at);
        tape.space().await?;
    }
    Ok(is_fenced)
}

/// Takes the closing fence, if it comes.
pub(crate) async fn fence_ends(tape: &Tape, is_fenced: bool) {
    if is_fenced && let Some((_, end)) = tape.mark_at(tape.behind_space(0).await, &["```"]).await {
        tape.take_many(end);
        tape.settle();
    }
}

/// Skips unmatched closing brackets before a closing mark.
pub(crate) async fn surplus(tape: &Tape, closes: &[&'static str]) {
    let mut at = tape.behind_space(0).await;
    let mut count = 0;
    while count < MAX_SURPLUS && matches!(tape.ahead(at).await, Some('}' | ']')) {
        at = tape.behind_space(at + 1).await;
        count += 1;
    }
    if count > 0 && tape.mark_at(at, closes).await.is_some() {
        tape.take_many(at);
        tape.settle();
    }
}

/// Takes one of the marks after a call with the white space before it, or neither.
pub(crate) async fn between(tape: &Tape, marks: &[&'static str]) -> Read<Option<&'static str>> {
    if marks.is_empty() {
        return Ok(None);
    }
    let found = match tape.space().await {
        Ok(()) => tape.one_of(marks).await,
        Err(stop) => Err(stop),
    };
    match found {
        // A truncated mark is not text.
        Ok(Some(_)) | Err(Stop::Ended) => tape.settle(),
        _ => tape.say_held(),
    }
    found
}

async fn list(tape: &Tape, tools: &[Tool], form: &Envelope, is_bare: bool) -> Read<()> {
    loop {
        tape.space().await?;
        tape.expect('{').await?;
        object(tape, tools, form, is_bare).await?;
        tape.space().await?;
        if tape.peek().await? == ',' {
            tape.take();
            tape.space().await?;
        }
        match tape.peek().await? {
            ']' => {
                tape.take();
                tape.settle();
                return Ok(());
            }
            '{' => {}
            // The list is not closed.
            _ if tape.mark_at(0, &form.ends()).await.is_some() => {
                tape.settle();
                return Ok(());
            }
            _ => return Err(Stop::Malformed),
        }
    }
}

/// An object after its opening brace.
async fn object(tape: &Tape, tools: &[Tool], form: &Envelope, is_bare: bool) -> Read<()> {
    let ends = form.ends();
    let (mut name, mut id, mut kept, mut index) = (None::<&str>, None, None::<String>, None);
    loop {
        tape.space().await?;
        // A trailing comma.
        if index.is_some() && tape.peek().await? == '}' {
            break;
        }
        let key = json::text(tape, MAX_KEY_BYTES).await?;
        tape.space().await?;
        tape.expect(':').await?;
        tape.space().await?;
        match key.as_str() {
            "name" if name.is_none() => {
                let said = json::text(tape, longest(tools)).await?;
                name = Some(&prefixed(tools, &said).ok_or(Stop::Malformed)?.name);
                if let (Some(name), Some(json)) = (name, kept.take()) {
                    let begun = tape.begin(name, id.take());
                    tape.put(begun, &json);
                    index = Some(begun);
                }
            }
            "arguments" | "parameters" if index.is_none() && kept.is_none() => match name {
                Some(name) => index = Some(arguments(tape, name, &mut id, &ends).await?),
                None => {
                    let mut json = String::new();
                    json::object(tape, &mut Sink::Kept(&mut json), &[]).await?;
                    kept = Some(json);
                }
            },
            "id" if id.is_none() => {
                let value = json::value(tape).await?;
                id = serde_json::from_str::<String>(&value).ok();
            }
            // Unmarked JSON is a call only without other keys.
            "type" => drop(json::value(tape).await?),
            _ if is_bare => return Err(Stop::Malformed),
            _ => drop(json::value(tape).await?),
        }
        let more = match tape.space().await {
            Ok(()) => tape.peek().await,
            Err(stop) => Err(stop),
        };
        match (more, index) {
            (Ok(','), _) => tape.take(),
            (Ok('}'), _) => break,
            (Ok(']'), Some(index)) => {
                tape.finish_call(index);
                return Ok(());
            }
            // The closing brace is missing, but the arguments are complete.
            (Ok(_), Some(index)) if tape.mark_at(0, &ends).await.is_some() => {
                tape.finish_call(index);
                return Ok(());
            }
            (Err(Stop::Ended), Some(index)) => {
                tape.finish_call(index);
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
            let index = tape.begin(name, id);
            tape.put(index, "{}");
            index
        }
        _ => return Err(Stop::Malformed),
    };
    tape.take();
    tape.finish_call(index);
    Ok(())
}

/// The arguments: an object, a string that contains one, as in OpenAI's API, or nothing.
async fn arguments(tape: &Tape, name: &str, id: &mut Option<String>, ends: &[&'static str]) -> Read<usize> {
    match tape.peek().await? {
        '{' => {
            let index = tape.begin(name, id.take());
            json::object(tape, &mut Sink::Call(index), ends).await?;
            Ok(index)
        }
        '"' | '\'' => json::object_in_text(tape, || tape.begin(name, id.take())).await,
        _ => {
            tape.one_of(&["null"]).await?.ok_or(Stop::Malformed)?;
            let index = tape.begin(name, id.take());
            tape.put(index, "{}");
            Ok(index)
        }
    }
}
