//! Calls with parameters in tags, each value verbatim: `<parameter=city>Ulm</parameter>`.

use std::collections::HashSet;

use serde_json::Value;

use crate::Tool;
use crate::char_stream::{CharStream, Read, Sink, Stop};
use crate::envelope::between;
use crate::json::{Mender, Step, quoted};
use crate::schema::{Kinds, MAX_KEY_BYTES, follow};
use crate::tool_names::name;

/// Maximum closing marks in a row that are inspected.
const MAX_ENDS: usize = 4;

/// Tags of a family.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    /// Opens a group of calls, or a call if `name` is `None`; then the mark of a call outside a group.
    pub(crate) opens: &'static [&'static str],
    /// Before and after the name. `None`: the name ends at a tag or a line end.
    pub(crate) name: Option<[&'static str; 2]>,
    /// Around the name of a parameter.
    pub(crate) key: [&'static str; 2],
    pub(crate) value: [&'static str; 2],
    /// Whether a value may be on separate lines: a line break on either side does not belong to it.
    pub(crate) value_on_lines: bool,
    pub(crate) end: &'static [&'static str],
    /// Whether a group may contain more than one call.
    pub(crate) is_group: bool,
    pub(crate) close: &'static str,
}

impl Tags {
    /// Marks that open a call or a group.
    pub(crate) fn starts(&self) -> Vec<&'static str> {
        [self.opens, &self.name.map_or([""], |[before, _]| [before])].concat()
    }

    /// Marks that close a call or a group.
    fn ends(&self) -> Vec<&'static str> {
        [self.end, &[self.close]].concat()
    }
}

/// Parses the text after the mark: `open`, or the text before a name.
pub(crate) async fn read(stream: &CharStream, tools: &[Tool], form: &Tags, mark: &'static str) -> Read<()> {
    let Some([before, _]) = form.name else {
        call(stream, tools, form).await?;
        stream.skip_repeats(&[form.close], &[]).await;
        stream.drop_mark();
        return Ok(());
    };
    if mark == form.opens[0] {
        stream.space().await?;
        stream.one_of(&[before]).await?.ok_or(Stop::Malformed)?;
    }
    loop {
        call(stream, tools, form).await?;
        // A repeated end.
        stream.skip_repeats(form.end, &[]).await;
        stream.drop_mark();
        match between(stream, &[before, form.close]).await? {
            Some(mark) if mark == before => {}
            Some(_) => {
                stream.skip_repeats(&[form.close], &[]).await;
                stream.drop_mark();
                return Ok(());
            }
            None => return Ok(()),
        }
    }
}

/// A call from its name on.
async fn call(stream: &CharStream, tools: &[Tool], form: &Tags) -> Read<()> {
    if form.name.is_none() {
        stream.space().await?;
    }
    let tool = name(stream, tools).await?;
    let marks = [&[form.key[0]], form.ends().as_slice()].concat();
    let mut next = None;
    if let Some([_, behind]) = form.name {
        stream.one_of(&[behind]).await?.ok_or(Stop::Malformed)?;
    } else {
        stream.space().await?;
        next = Some(stream.one_of(&marks).await?.ok_or(Stop::Malformed)?);
    }
    let index = stream.begin(&tool.name, None);
    stream.emit_json(index, "{");
    let (mut keys, mut is_first) = (HashSet::new(), true);
    loop {
        let mark = match next.take() {
            Some(mark) => Some(mark),
            None => {
                stream.space().await?;
                stream.one_of(&marks).await?
            }
        };
        if mark == Some(form.key[0]) {
            let key = key(stream, form).await?;
            let given = Given { key, is_first, keys: &mut keys };
            is_first &= !value(stream, form, index, tool, given).await?;
        } else if mark.is_some() || stream.mark_at(0, &form.starts()).await.is_some() {
            // The next call also ends this one.
            stream.emit_json(index, "}");
            stream.finish_call(index);
            return Ok(());
        } else {
            return Err(Stop::Malformed);
        }
    }
}

/// Everything up to the value.
async fn key(stream: &CharStream, form: &Tags) -> Read<String> {
    let mut key = String::new();
    while stream.one_of(&[form.key[1]]).await?.is_none() {
        let c = stream.peek().await?;
        if c == '\n' || key.len() > MAX_KEY_BYTES {
            return Err(Stop::Malformed);
        }
        key.push(c);
        stream.take();
    }
    if !form.value[0].is_empty() {
        stream.space().await?;
        stream.one_of(&[form.value[0]]).await?.ok_or(Stop::Malformed)?;
    }
    Ok(key.trim().to_owned())
}

/// The parameter whose value follows, and the set of parameters so far, which will include it.
struct Given<'a> {
    key: String,
    is_first: bool,
    keys: &'a mut HashSet<String>,
}

/// A value and its closing mark. A string is emitted incrementally. Returns whether it was a value.
async fn value(stream: &CharStream, form: &Tags, index: usize, tool: &Tool, given: Given<'_>) -> Read<bool> {
    let Given { key, is_first, keys } = given;
    let kinds = Kinds::of(&tool.parameters, &key);
    let begin = format!("{}{}: ", if is_first { "" } else { ", " }, quoted(&key));
    keys.insert(key);
    let bounds = Bounds { form, tool, keys, starts: form.starts(), ends: form.ends() };
    if form.value_on_lines {
        stream.peek().await?;
        stream.take_many(line_break(stream).await);
    }
    let mut written = String::new();
    match kinds.is_text() {
        true => stream.emit_json(index, &format!("{begin}\"")),
        false => stream.drop_mark(),
    }
    // Nothing ends a value inside a string of a list or an object.
    let mut json = Some(Mender::new()).filter(|_| !kinds.may_be_text());
    let close = loop {
        let is_inside = json.as_ref().is_some_and(Mender::is_in_text);
        if !is_inside && let Some(close) = bounds.over(stream).await {
            break close;
        }
        let c = stream.peek().await?;
        if json.as_mut().is_some_and(|json| json.step(c, &mut String::new()) != Step::More) {
            json = None;
        }
        if kinds.is_text() {
            let json = quoted(c.encode_utf8(&mut [0; 4]));
            stream.emit_arguments(&mut Sink::Call(index), &json[1..json.len() - 1]);
        } else {
            written.push(c);
            stream.emit_arguments(&mut Sink::Call(index), "");
        }
    };
    stream.take_many(close);
    if kinds.is_text() {
        stream.emit_json(index, "\"");
    } else if let Some(json) = kinds.json(&written) {
        stream.emit_json(index, &format!("{begin}{json}"));
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// Length of the line break that comes next, 0 if none does.
async fn line_break(stream: &CharStream) -> usize {
    stream.mark_at(0, &["\n", "\r\n"]).await.map_or(0, |(_, end)| end)
}

/// Possible ends of a value. A value may contain any mark that is not followed by a valid continuation after a value.
struct Bounds<'a> {
    form: &'a Tags,
    tool: &'a Tool,
    /// Parameters so far, including this one.
    keys: &'a HashSet<String>,
    starts: Vec<&'static str>,
    ends: Vec<&'static str>,
}

impl Bounds<'_> {
    /// Length of the closing mark and the line break before it if the value ends here. A next parameter or an end of the
    /// call in place of that mark is not counted.
    async fn over(&self, stream: &CharStream) -> Option<usize> {
        let close = self.form.value[1];
        stream.ahead(0).await?;
        let mut at = line_break(stream).await;
        if at > 0 {
            if self.form.value_on_lines
                && let Some((_, end)) = stream.mark_at(at, &[close]).await
            {
                return self.is_behind_value(stream, end).await.then_some(end);
            }
            while matches!(stream.ahead(at).await, Some(' ' | '\t')) {
                at += 1;
            }
            return self.is_unclosed(stream, at).await.then_some(at);
        }
        if let Some((_, end)) = stream.mark_at(0, &[close]).await {
            return self.is_behind_value(stream, end).await.then_some(end);
        }
        self.is_unclosed(stream, 0).await.then_some(0)
    }

    /// Whether a valid continuation after a closed value follows: the next parameter, the end of the call, or the next call.
    async fn is_behind_value(&self, stream: &CharStream, by: usize) -> bool {
        let mut at = stream.behind_space(by).await;
        // The mark is repeated.
        if let Some((_, end)) = stream.mark_at(at, &[self.form.value[1]]).await {
            at = stream.behind_space(end).await;
        }
        let marks = [&[self.form.key[0]], self.ends.as_slice(), &self.starts].concat();
        stream.ahead(at).await.is_none() || stream.mark_at(at, &marks).await.is_some()
    }

    /// Whether the text here ends a value without a closing mark.
    async fn is_unclosed(&self, stream: &CharStream, by: usize) -> bool {
        if let Some((_, end)) = stream.mark_at(by, &[self.form.key[0]]).await {
            return self.is_next_key(stream, end).await;
        }
        // The ends of the call and its group, and then nothing, or the next call: any other text is part of the value.
        let mut at = by;
        for _ in 0..MAX_ENDS {
            let Some((_, end)) = stream.mark_at(at, &self.ends).await else { break };
            at = stream.behind_space(end).await;
        }
        at > by && (stream.ahead(at).await.is_none() || stream.mark_at(at, &self.starts).await.is_some())
    }

    /// Whether the name of another parameter follows.
    async fn is_next_key(&self, stream: &CharStream, by: usize) -> bool {
        let [_, behind] = self.form.key;
        let (mut key, mut at) = (String::new(), by);
        let end = loop {
            if let Some((_, end)) = stream.mark_at(at, &[behind]).await {
                break end;
            }
            match stream.ahead(at).await {
                Some(c) if key.len() < MAX_KEY_BYTES && (c.is_alphanumeric() || "_-. $".contains(c)) => key.push(c),
                _ => return false,
            }
            at += 1;
        };
        let is_new = !self.keys.contains(key.trim());
        let fits = is_new && !key.trim().is_empty() && may_be_key(self.tool, key.trim());
        match self.form.value[0] {
            "" => fits,
            open => fits && stream.mark_at(stream.behind_space(end).await, &[open]).await.is_some(),
        }
    }
}

/// Whether the tool has this parameter, or does not list its parameters.
fn may_be_key(tool: &Tool, key: &str) -> bool {
    let known = follow(&tool.parameters, &tool.parameters).get("properties").and_then(Value::as_object);
    known.is_none_or(|known| known.contains_key(key))
}
