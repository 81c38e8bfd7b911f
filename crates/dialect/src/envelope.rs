//! Calls as JSON objects that have the name inside: `{"name": "f", "arguments": {...}}`, alone or in a list.

use crate::Tool;
use crate::json;
use crate::tape::{Read, Sink, Stop, Tape};
use crate::tool_names::{longest, prefixed};

/// Most brackets that close nothing.
const MAX_SURPLUS: usize = 8;
/// Longest key that is understood; a longer one is some other object's.
const MAX_KEY_BYTES: usize = 64;

/// What stands around the objects.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// What opens, wherever it stands.
    pub(crate) opens: &'static [&'static str],
    /// Whether an object or a list without a mark is one too, where nothing stands before it.
    pub(crate) bare: bool,
    /// What closes, if it comes.
    pub(crate) closes: &'static [&'static str],
    /// What may stand between objects that are in no list.
    pub(crate) between: &'static [&'static str],
    /// Whether the family writes a list; both are read.
    pub(crate) is_list: bool,
    /// How it calls the arguments; both names are read.
    pub(crate) arguments: &'static str,
}

impl Envelope {
    /// What cannot stand inside a call, but for texts.
    fn ends(&self) -> Vec<&'static str> {
        [self.closes, self.opens].concat()
    }
}

/// Marks of envelopes without a mark.
pub(crate) const BARE: [&str; 2] = ["{", "["];

/// Reads what follows the mark.
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

/// The fence of a block of code that stands around what a mark opens already, and the white space behind it.
pub(crate) async fn fence(tape: &Tape) -> Read<bool> {
    let is_fenced = tape.mark_at(0, &["```"]).await.is_some();
    if is_fenced {
        let at = if tape.mark_at(3, &["json"]).await.is_some() { 7 } else { 3 };
        tape.take_many(at);
        tape.space().await?;
    }
    Ok(is_fenced)
}

/// Its end, if it comes.
pub(crate) async fn fence_ends(tape: &Tape, is_fenced: bool) {
    if is_fenced && let Some((_, end)) = tape.mark_at(tape.behind_space(0).await, &["```"]).await {
        tape.take_many(end);
        tape.settle();
    }
}

/// Brackets that close nothing, where a closing mark says that the call is over.
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

/// Takes one of the marks behind a call with the white space before it, or neither.
pub(crate) async fn between(tape: &Tape, marks: &[&'static str]) -> Read<Option<&'static str>> {
    if marks.is_empty() {
        return Ok(None);
    }
    let found = match tape.space().await {
        Ok(()) => tape.one_of(marks).await,
        Err(stop) => Err(stop),
    };
    match found {
        // A mark that was cut is no text.
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
            // The list has no end.
            _ if tape.mark_at(0, &form.ends()).await.is_some() => {
                tape.settle();
                return Ok(());
            }
            _ => return Err(Stop::Malformed),
        }
    }
}

/// An object whose brace is taken.
async fn object(tape: &Tape, tools: &[Tool], form: &Envelope, is_bare: bool) -> Read<()> {
    let ends = form.ends();
    let (mut name, mut id, mut kept, mut index) = (None::<&str>, None, None::<String>, None);
    loop {
        tape.space().await?;
        // A comma with nothing behind it.
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
            // Data that nobody marked as a call is one only if it has nothing else.
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
            // Its brace is missing. The arguments are whole.
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
        // A tool without parameters.
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

/// The object of arguments, a text that has it inside, as OpenAI's API writes it, or nothing at all.
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
