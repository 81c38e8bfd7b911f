//! The parser of one answer.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::char_stream::{CharStream, Never, Read, Stop, StreamState};
use crate::family::{Calls, Thoughts};
use crate::harmony;
use crate::thought_calls::{self, ThoughtEnd};
use crate::{AnswerPart, Dialect, Tool};

/// Parses one answer while it is generated. The parts do not depend on how it is cut into pieces, once adjacent parts of
/// a kind are joined. Time and memory are linear in the answer.
pub struct AnswerParser {
    stream: CharStream,
    /// The parsing coroutine; `None` when the answer is over.
    reading: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl AnswerParser {
    /// `prompt_end`: the last part of the prompt. The answer may begin inside a thought that the template has opened
    /// (`<think>\n`), or inside a prefilled one.
    pub fn new(dialect: &Dialect, tools: Arc<[Tool]>, prompt_end: &str) -> AnswerParser {
        AnswerParser::begin(dialect, tools, prompt_end, false)
    }

    fn begin(dialect: &Dialect, tools: Arc<[Tool]>, prompt_end: &str, patient: bool) -> AnswerParser {
        let calls = dialect.calls.filter(|_| !tools.is_empty());
        // Its text may begin with a mark.
        let thoughts = dialect.thoughts.filter(|_| !dialect.is_thoughtless_form(prompt_end));
        let filtered = thoughts.map(Thoughts::filtered_marks).unwrap_or_default();
        let stream = CharStream::new(dialect.opens_thought(prompt_end), patient, dialect.is_formed, filtered);
        let reading = answer(stream.clone(), thoughts, calls, tools, dialect.is_formed);
        AnswerParser { stream, reading: Some(Box::pin(reading)) }
    }

    /// The next piece of the answer; appends the completed parts to `parts`.
    pub fn push(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        self.stream.push(text);
        self.read(parts);
    }

    /// Ends the answer; appends the parts held back to `parts`. After an incomplete call there are none.
    pub fn finish(&mut self, parts: &mut Vec<AnswerPart>) {
        self.stream.end();
        self.read(parts);
    }

    /// Whether the next character belongs to a thought.
    pub fn is_thinking(&self) -> bool {
        self.stream.is_thinking()
    }

    /// Character ranges of the answer parsed as thoughts since the last call.
    pub fn thought(&mut self) -> Vec<Range<usize>> {
        self.stream.thought()
    }

    /// Number of characters of the answer that are already classified.
    pub fn num_classified(&self) -> usize {
        self.stream.num_classified()
    }

    /// The thought was closed from outside after `at` characters; 0 if no thought is allowed. The model does not know and
    /// may close it again, or continue it: marks of thoughts after this position are removed from the text, up to that
    /// of a form ([`Dialect::formed`]), and nothing after it is a thought.
    pub fn cut(&mut self, at: usize) {
        self.stream.cut(at);
    }

    /// Number of calls that have begun.
    pub fn num_calls(&self) -> usize {
        self.stream.calls().0
    }

    /// Whether every call that began has ended.
    pub fn calls_complete(&self) -> bool {
        self.stream.calls().1
    }

    fn read(&mut self, parts: &mut Vec<AnswerPart>) {
        if let Some(reading) = &mut self.reading
            && let Poll::Ready(()) = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.reading = None;
        }
        self.stream.take_parts(parts);
    }
}

impl fmt::Debug for AnswerParser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerParser").field("is_thinking", &self.is_thinking()).finish_non_exhaustive()
    }
}

/// The parts of an answer that is not streamed. Incomplete calls are text.
pub fn whole(dialect: &Dialect, tools: Arc<[Tool]>, prompt_end: &str, text: &str) -> Vec<AnswerPart> {
    whole_cut(dialect, tools, prompt_end, text, None)
}

/// The same for an answer whose thought was closed from outside ([`AnswerParser::cut`]).
pub fn whole_cut(
    dialect: &Dialect,
    tools: Arc<[Tool]>,
    prompt_end: &str,
    text: &str,
    cut: Option<usize>,
) -> Vec<AnswerPart> {
    let mut parser = AnswerParser::begin(dialect, tools, prompt_end, true);
    if let Some(at) = cut {
        parser.cut(at);
    }
    let mut parts = Vec::new();
    parser.push(text, &mut parts);
    parser.finish(&mut parts);
    parts
}

async fn answer(
    stream: CharStream,
    thoughts: Option<Thoughts>,
    calls: Option<Calls>,
    tools: Arc<[Tool]>,
    is_formed: bool,
) {
    let is_harmony = calls.is_some_and(Calls::is_harmony) || thoughts.is_some_and(Thoughts::is_harmony);
    // Readers return only when the answer is over.
    let Err(stop) = match is_harmony {
        true => harmony::read(&stream, if calls.is_some() { &tools } else { &[] }).await,
        false => read(&stream, thoughts, calls, &tools, is_formed).await,
    };
    stream.abandon(stop);
    stream.close();
}

async fn read(
    stream: &CharStream,
    thoughts: Option<Thoughts>,
    calls: Option<Calls>,
    tools: &[Tool],
    is_formed: bool,
) -> Read<Never> {
    let opens = calls.map_or(&[][..], Calls::opens);
    let (thought_opens, thought_closes) = thoughts.map_or((&[][..], &[][..]), |t| (t.opens(), t.closes()));
    // A leading closing mark without an opening one is an empty thought.
    let mut fresh = [calls.map_or(&[][..], Calls::bare), thought_opens, thought_closes].concat();
    // Strings of a form contain no calls.
    let anywhere = if is_formed { &[][..] } else { opens };
    if is_formed {
        fresh.extend(opens);
    }
    let thought_marks = [thought_opens, thought_closes].concat();
    // An unclosed thought ends before its first call; there is at most one such thought.
    let (mut is_unclosed, calls_in_thought) = (false, calls.filter(|calls| !calls.opens().is_empty()));
    loop {
        if stream.is_thinking() {
            // The model may open a thought that has already begun.
            stream.skip_repeats(thought_opens, &[]).await;
            stream.drop_mark();
            let calls = calls_in_thought.filter(|_| !is_unclosed);
            is_unclosed |=
                thought_calls::read_thought(stream, thought_closes, calls, tools).await? == ThoughtEnd::Unclosed;
            if is_formed && !stream.is_cut() {
                // Its text may begin with a mark: there is one thought before it.
                fresh.retain(|mark| !thought_marks.contains(mark));
            }
            continue;
        }
        let mark = stream.scan(anywhere, &fresh, StreamState::emit_text).await?;
        if thought_marks.contains(&mark) && stream.is_cut() {
            stream.drop_mark();
        } else if thought_marks.contains(&mark) {
            stream.set_thinking(thought_opens.contains(&mark));
        } else if let Some(calls) = calls {
            if opens.contains(&mark) {
                // A repeated mark.
                stream.skip_repeats(&[mark], &[]).await;
            }
            match calls.read(stream, tools, mark).await {
                Ok(()) => {}
                Err(Stop::Malformed) => stream.abandon(Stop::Malformed),
                Err(Stop::Ended) => return Err(Stop::Ended),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Character inspections for `times` repetitions of `flood`, pushed one letter at a time.
    fn steps(dialect: &Dialect, flood: &str, times: usize) -> usize {
        let tools = [Tool { name: "get".into(), parameters: json!({}), strict: false }];
        let (mut parser, mut parts) = (AnswerParser::new(dialect, tools.into(), ""), Vec::new());
        for c in flood.repeat(times).chars() {
            parser.push(c.encode_utf8(&mut [0; 4]), &mut parts);
        }
        parser.finish(&mut parts);
        parser.stream.steps()
    }

    #[test]
    fn work_is_linear_in_what_is_heard() {
        let mut floods = [
            "<",
            "{",
            "[",
            "\n",
            "<tool_call>",
            "<tool_call>{\"name\": \"",
            "<tool_call>{\"arguments\": {\"a\": [[",
            "<tool_call>{\"arguments\": \"<tool_call>",
            "<function=get><parameter=a></param",
            "<tool_call>get<arg_key></arg_",
            "[TOOL_CALLS]get[ARGS",
            "[get(a='",
            "```tool_code\nget(a=",
            "<start_function_call>call:get{a:<esc",
            "<｜tool▁calls▁begin｜><｜tool▁call▁",
            "<|start|><|channel|>to=",
            "<think></thin",
        ];
        for (at, name) in Calls::NAMES.iter().enumerate() {
            let thoughts = Thoughts::NAMES[at % Thoughts::NAMES.len()];
            let dialect = Dialect::new(Thoughts::named(thoughts), Calls::named(name));
            // Each in turn.
            floods.rotate_left(1);
            for flood in testing::part_of(floods, 3) {
                let (few, many) = (steps(&dialect, flood, 100), steps(&dialect, flood, 1000));
                assert!(many <= 11 * few, "{name}, {flood:?}: {few} steps for 100, {many} for 1000");
            }
        }
    }
}
