//! Calls as a name, a mark, and the object of arguments.

use crate::Tool;
use crate::char_stream::{CharStream, Read, Sink, Stop};
use crate::envelope::{self, Envelope, between, fence, fence_ends, surplus};
use crate::json;
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
    pub(crate) close: &'static str,
    /// All texts that may be tokens.
    pub(crate) marks: &'static [&'static str],
}

/// Parses the text after the mark.
pub(crate) async fn read(stream: &CharStream, tools: &[Tool], form: &Named, mark: &'static str) -> Read<()> {
    let [group, open] = form.opens;
    if mark == group {
        stream.skip_repeats(&[group], &[]).await;
        stream.space().await?;
        stream.one_of(&[open]).await?.ok_or(Stop::Malformed)?;
    }
    loop {
        stream.skip_repeats(&[open], &[]).await;
        call(stream, tools, form).await?;
        for marks in form.behind {
            surplus(stream, marks).await;
            between(stream, marks).await?;
            stream.skip_repeats(marks, &[]).await;
            stream.drop_mark();
        }
        match between(stream, &[open, form.close]).await? {
            Some(mark) if mark == open => {}
            Some(_) => {
                stream.skip_repeats(&[form.close], &[]).await;
                stream.drop_mark();
                return Ok(());
            }
            None => return Ok(()),
        }
    }
}

async fn call(stream: &CharStream, tools: &[Tool], form: &Named) -> Read<()> {
    stream.space().await?;
    let prefix = match form.prefix {
        [] => "",
        prefix => match stream.one_of(prefix).await? {
            Some(prefix) => prefix,
            None if form.is_prefix_free => "",
            None => return Err(Stop::Malformed),
        },
    };
    let tool = name(stream, tools).await?;
    let mut id = None;
    if form.is_numbered && stream.peek().await? == ':' {
        let mut number = String::new();
        stream.take();
        while stream.peek().await?.is_ascii_digit() && number.len() < MAX_ID_BYTES {
            number.push(stream.peek().await?);
            stream.take();
        }
        id = Some(format!("{prefix}{}:{number}", tool.name));
    }
    stream.space().await?;
    stream.one_of(form.middle).await?.ok_or(Stop::Malformed)?;
    stream.space().await?;
    let behind = form.behind.concat();
    let ends = [behind.as_slice(), &form.opens, &[form.close]].concat();
    let is_fenced = !behind.contains(&"```") && fence(stream).await?;
    arguments(stream, &tool.name, id, &ends).await?;
    fence_ends(stream, is_fenced).await;
    Ok(())
}

/// The object of arguments, a string that contains one, or nothing if a mark ends the call.
pub(crate) async fn arguments(stream: &CharStream, name: &str, id: Option<String>, ends: &[&'static str]) -> Read<()> {
    let index = match stream.peek().await? {
        '{' => {
            let index = stream.begin(name, id);
            json::object(stream, &mut Sink::Call(index), ends).await?;
            index
        }
        '"' | '\'' => json::object_in_text(stream, || stream.begin(name, id)).await?,
        _ => {
            stream.mark_at(0, ends).await.ok_or(Stop::Malformed)?;
            let index = stream.begin(name, id);
            stream.emit_json(index, "{}");
            index
        }
    };
    stream.finish_call(index);
    Ok(())
}

/// Mistral's format: a list of objects (up to tokenizer version 7), or name and object with an optional id and mark
/// between them.
pub(crate) async fn mistral(stream: &CharStream, tools: &[Tool], list: &Envelope, mark: &'static str) -> Read<()> {
    const ID: &str = "[CALL_ID]";
    const ARGUMENTS: &str = "[ARGS]";
    stream.space().await?;
    if matches!(stream.peek().await?, '[' | '{') {
        return envelope::read(stream, tools, list, mark).await;
    }
    let tool = name(stream, tools).await?;
    stream.space().await?;
    let mut id = None;
    if stream.one_of(&[ID, ARGUMENTS]).await? == Some(ID) {
        let mut written = String::new();
        while stream.peek().await?.is_ascii_alphanumeric() && written.len() < MAX_ID_BYTES {
            written.push(stream.peek().await?);
            stream.take();
        }
        id = Some(written);
        stream.one_of(&[ARGUMENTS]).await?;
    }
    stream.space().await?;
    let is_fenced = fence(stream).await?;
    arguments(stream, &tool.name, id, list.opens).await?;
    fence_ends(stream, is_fenced).await;
    Ok(())
}
