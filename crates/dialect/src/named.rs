//! Calls as a name, a mark, and the object of arguments.

use crate::Tool;
use crate::envelope::{self, Envelope, between, fence, fence_ends, surplus};
use crate::json;
use crate::tape::{Read, Sink, Stop, Tape};
use crate::tool_names::name;

/// Maximum length of a call's id.
const MAX_ID_BYTES: usize = 64;

/// The syntax around name and arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// The mark of a group of calls, and that of a call, which may be outside a group.
    pub(crate) opens: [&'static str; 2],
    /// Prefix of the name.
    pub(crate) prefix: &'static [&'static str],
    /// Whether the prefix is optional.
    pub(crate) is_prefix_free: bool,
    /// Whether prefix, name and a number are the call's id.
    pub(crate) is_numbered: bool,
    /// Between name and arguments, with white space.
    pub(crate) middle: &'static [&'static str],
    /// After the arguments, each optional.
    pub(crate) behind: &'static [&'static [&'static str]],
    /// Closes the group.
    pub(crate) close: &'static str,
    /// All texts that may be tokens.
    pub(crate) marks: &'static [&'static str],
}

/// Parses the text after the mark.
pub(crate) async fn read(tape: &Tape, tools: &[Tool], form: &Named, mark: &'static str) -> Read<()> {
    let [group, open] = form.opens;
    if mark == group {
        tape.again(&[group], &[]).await;
        tape.space().await?;
        tape.one_of(&[open]).await?.ok_or(Stop::Malformed)?;
    }
    loop {
        tape.again(&[open], &[]).await;
        call(tape, tools, form).await?;
        for marks in form.behind {
            surplus(tape, marks).await;
            between(tape, marks).await?;
            tape.again(marks, &[]).await;
            tape.settle();
        }
        match between(tape, &[open, form.close]).await? {
            Some(mark) if mark == open => {}
            Some(_) => {
                tape.again(&[form.close], &[]).await;
                tape.settle();
                return Ok(());
            }
            None => return Ok(()),
        }
    }
}

async fn call(tape: &Tape, tools: &[Tool], form: &Named) -> Read<()> {
    tape.space().await?;
    let prefix = match form.prefix {
        [] => "",
        prefix => match tape.one_of(prefix).await? {
            Some(prefix) => prefix,
            None if form.is_prefix_free => "",
            None => return Err(Stop::Malformed),
        },
    };
    let tool = name(tape, tools).await?;
    let mut id = None;
    if form.is_numbered && tape.peek().await? == ':' {
        let mut number = String::new();
        tape.take();
        while tape.peek().await?.is_ascii_digit() && number.len() < MAX_ID_BYTES {
            number.push(tape.peek().await?);
            tape.take();
        }
        id = Some(format!("{prefix}{}:{number}", tool.name));
    }
    tape.space().await?;
    tape.one_of(form.middle).await?.ok_or(Stop::Malformed)?;
    tape.space().await?;
    let behind = form.behind.concat();
    let ends = [behind.as_slice(), &form.opens, &[form.close]].concat();
    let is_fenced = !behind.contains(&"```") && fence(tape).await?;
    arguments(tape, &tool.name, id, &ends).await?;
    fence_ends(tape, is_fenced).await;
    Ok(())
}

/// The object of arguments, a string that contains one, or nothing if a mark ends the call.
pub(crate) async fn arguments(tape: &Tape, name: &str, id: Option<String>, ends: &[&'static str]) -> Read<()> {
    let index = match tape.peek().await? {
        '{' => {
            let index = tape.begin(name, id);
            json::object(tape, &mut Sink::Call(index), ends).await?;
            index
        }
        '"' | '\'' => json::object_in_text(tape, || tape.begin(name, id)).await?,
        _ => {
            tape.mark_at(0, ends).await.ok_or(Stop::Malformed)?;
            let index = tape.begin(name, id);
            tape.put(index, "{}");
            index
        }
    };
    tape.finish_call(index);
    Ok(())
}

/// Mistral's format: a list of objects (up to tokenizer version 7), or name and object with an optional id and mark
/// between them.
pub(crate) async fn mistral(tape: &Tape, tools: &[Tool], list: &Envelope, mark: &'static str) -> Read<()> {
    const ID: &str = "[CALL_ID]";
    const ARGUMENTS: &str = "[ARGS]";
    tape.space().await?;
    if matches!(tape.peek().await?, '[' | '{') {
        return envelope::read(tape, tools, list, mark).await;
    }
    let tool = name(tape, tools).await?;
    tape.space().await?;
    let mut id = None;
    if tape.one_of(&[ID, ARGUMENTS]).await? == Some(ID) {
        let mut said = String::new();
        while tape.peek().await?.is_ascii_alphanumeric() && said.len() < MAX_ID_BYTES {
            said.push(tape.peek().await?);
            tape.take();
        }
        id = Some(said);
        tape.one_of(&[ARGUMENTS]).await?;
    }
    tape.space().await?;
    let is_fenced = fence(tape).await?;
    arguments(tape, &tool.name, id, list.opens).await?;
    fence_ends(tape, is_fenced).await;
    Ok(())
}
