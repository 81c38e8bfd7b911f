//! Calls whose parameters stand in tags, each value as it is: `<parameter=city>Ulm</parameter>`.

use crate::Tool;
use crate::listener::name;
use crate::schema::{Kinds, quoted};
use crate::tape::{Read, Stop, Tape};

/// Longest name of a parameter.
const MAX_KEY_BYTES: usize = 256;

/// The tags.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    /// What opens a group of calls, or a call if `name` is none; then what opens a call that is in no group.
    pub(crate) opens: &'static [&'static str],
    /// What stands before and behind the name. Nothing: it ends where a tag or a line does.
    pub(crate) name: Option<[&'static str; 2]>,
    /// Around the name of a parameter.
    pub(crate) key: [&'static str; 2],
    /// Around its value.
    pub(crate) value: [&'static str; 2],
    /// The mark behind a value that stands on lines of its own: a line break on either side is not of it.
    pub(crate) value_on_lines: Option<&'static str>,
    /// What closes a call.
    pub(crate) end: &'static [&'static str],
    /// Whether more than one call stands in a group.
    pub(crate) is_group: bool,
    /// What closes the group.
    pub(crate) close: &'static str,
}

/// Reads what follows the mark: `open`, or what stands before a name.
pub(crate) async fn read(tape: &Tape, tools: &[Tool], form: &Tags, mark: &'static str) -> Read<()> {
    let Some([before, _]) = form.name else { return call(tape, tools, form).await };
    if mark == form.opens[0] {
        tape.space().await?;
        tape.one_of(&[before]).await?.ok_or(Stop::Malformed)?;
    }
    loop {
        call(tape, tools, form).await?;
        match crate::envelope::between(tape, &[before, form.close]).await? {
            Some(mark) if mark == before => {}
            _ => return Ok(()),
        }
    }
}

/// A call from its name on.
async fn call(tape: &Tape, tools: &[Tool], form: &Tags) -> Read<()> {
    if form.name.is_none() {
        tape.space().await?;
    }
    let tool = name(tape, tools).await?;
    let marks = [&[form.key[0]], form.end].concat();
    let mut next = None;
    if let Some([_, behind]) = form.name {
        tape.one_of(&[behind]).await?.ok_or(Stop::Malformed)?;
    } else {
        tape.space().await?;
        next = Some(tape.one_of(&marks).await?.ok_or(Stop::Malformed)?);
    }
    let index = tape.begin(&tool.name, None);
    tape.put(index, "{");
    let mut is_first = true;
    loop {
        let mark = match next.take() {
            Some(mark) => mark,
            None => {
                tape.space().await?;
                tape.one_of(&marks).await?.ok_or(Stop::Malformed)?
            }
        };
        if mark != form.key[0] {
            tape.put(index, "}");
            tape.finish_call(index);
            return Ok(());
        }
        let key = key(tape, form).await?;
        tape.put(index, &format!("{}{}: ", if is_first { "" } else { ", " }, quoted(&key)));
        value(tape, form, index, Kinds::of(&tool.parameters, &key)).await?;
        is_first = false;
    }
}

/// Everything up to the value.
async fn key(tape: &Tape, form: &Tags) -> Read<String> {
    let mut key = String::new();
    while tape.one_of(&[form.key[1]]).await?.is_none() {
        let c = tape.peek().await?;
        if c == '\n' || key.len() > MAX_KEY_BYTES {
            return Err(Stop::Malformed);
        }
        key.push(c);
        tape.take();
    }
    if !form.value[0].is_empty() {
        tape.space().await?;
        tape.one_of(&[form.value[0]]).await?.ok_or(Stop::Malformed)?;
    }
    Ok(key.trim().to_owned())
}

/// A value, and what closes it. A text is given out as it comes.
async fn value(tape: &Tape, form: &Tags, index: usize, kinds: Kinds) -> Read<()> {
    let mut marks = vec![form.value[1]];
    if let Some(on_line) = form.value_on_lines {
        marks.push(on_line);
        if tape.peek().await? == '\n' {
            tape.take();
        }
    }
    if kinds.is_text() {
        tape.put(index, "\"");
        tape.scan(&marks, &[], |reel, piece| {
            let json = quoted(piece);
            reel.argue(index, piece, &json[1..json.len() - 1]);
        })
        .await?;
        tape.put(index, "\"");
    } else {
        tape.settle();
        let mut written = String::new();
        tape.scan(&marks, &[], |reel, piece| {
            written.push_str(piece);
            reel.argue(index, piece, "");
        })
        .await?;
        tape.put(index, &kinds.json(&written));
    }
    Ok(())
}
