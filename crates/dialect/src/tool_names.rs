//! Tool names as models write them.

use crate::Tool;
use crate::char_stream::{CharStream, Read, Stop};

/// The tool of that name.
pub(crate) fn find<'a>(tools: &'a [Tool], name: &str) -> Option<&'a Tool> {
    tools.iter().find(|tool| tool.name == name)
}

/// Prefixes that models put before names, depending on how tools were presented to them.
const PREFIXES: [&str; 5] = ["functions.", "function.", "tools.", "tool.", "default_api."];

/// The tool of that name, with or without a prefix.
pub(crate) fn prefixed<'a>(tools: &'a [Tool], name: &str) -> Option<&'a Tool> {
    let bare = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    find(tools, name).or_else(|| find(tools, bare?))
}

/// Reads a tool's name, as long as the input is the beginning of one. A prefix is skipped.
pub(crate) async fn name<'a>(stream: &CharStream, tools: &'a [Tool]) -> Read<&'a Tool> {
    let mut written = String::new();
    if let Some((prefix, end)) = stream.mark_at(0, &PREFIXES).await
        && !tools.iter().any(|tool| tool.name.starts_with(prefix))
    {
        stream.take_many(end);
    }
    loop {
        written.push(stream.peek().await?);
        if !tools.iter().any(|tool| tool.name.starts_with(&written)) {
            written.pop();
            return find(tools, &written).ok_or(Stop::Malformed);
        }
        stream.take();
    }
}

/// Length of the longest name in bytes.
pub(crate) fn longest(tools: &[Tool]) -> usize {
    let longest = tools.iter().map(|tool| tool.name.len()).max().unwrap_or(0);
    longest + PREFIXES.iter().map(|prefix| prefix.len()).max().unwrap_or(0)
}
