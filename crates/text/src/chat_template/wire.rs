//! Protocol between the program and a child process that renders: length-prefixed frames.
//!
//! ```text
//! program ──Compile(sources)─────► child      hello, then one answer for each request, in order
//!         ──Render(conversation)─►
//!         ◄──Done(text) | Refused(text) | Failed(line, number) | ...
//! ```
//!
//! Not JSON: floats keep their bits, and depth is bounded here, not by a parser. Neither side trusts the other: each
//! length is checked against the frame before allocating, and an answer is a text of bounded length or an index into a
//! list that both sides have.

use std::io::{self, Read, Write};

use serde_json::{Map, Number, Value as Json};

use super::conversation::{
    ChatMessage, Conversation, MAX_INPUT_BYTES, MAX_OUTPUT_BYTES, MAX_VALUE_DEPTH, Sources, TemplateError,
    TemplateOptions,
};
use super::jinja::{InvalidTemplate, PROBLEMS, printable};
use crate::specials::SpecialNames;

/// The first frame of a child: both sides must have the same version.
pub(super) const HELLO: &[u8] = concat!("twostroke ", env!("CARGO_PKG_VERSION"), " templates 1").as_bytes();
/// Maximum bytes of a request: the text and its framing.
pub(super) const MAX_REQUEST_BYTES: usize = 2 * MAX_INPUT_BYTES;
/// Maximum bytes of an answer: the prompt and its framing.
pub(super) const MAX_ANSWER_BYTES: usize = MAX_OUTPUT_BYTES + 1024;

/// A request to a child.
pub(super) enum Request {
    Compile(Sources),
    Render { messages: Vec<ChatMessage>, options: TemplateOptions, marks: Vec<(char, char)> },
}

/// Writes one frame.
pub(super) fn write_frame(output: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(|_| io::Error::other("frame of more than 4 GiB"))?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(frame)?;
    output.flush()
}

/// Reads one frame of at most `max_bytes`; `None` at the end of input. Memory grows with the bytes received, not with
/// the announced length.
pub(super) fn read_frame(input: &mut impl Read, max_bytes: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > max_bytes {
        return Err(io::Error::other("frame is too long"));
    }
    let mut frame = Vec::new();
    input.take(length as u64).read_to_end(&mut frame)?;
    if frame.len() == length { Ok(Some(frame)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

pub(super) fn compile_request(sources: &Sources) -> Vec<u8> {
    let mut frame = FrameWriter(vec![b'C']);
    frame.count(sources.templates.len());
    for (name, source) in &sources.templates {
        frame.text(name);
        frame.text(source);
    }
    let names = &sources.names;
    for name in [&names.bos, &names.eos, &names.unk, &names.pad] {
        frame.optional(name.as_deref());
    }
    frame.0
}

pub(super) fn render_request(conversation: Conversation<'_>) -> Vec<u8> {
    let Conversation { messages, options, marks } = conversation;
    let mut frame = FrameWriter(vec![b'R']);
    frame.count(messages.len());
    for message in messages {
        frame.text(&message.role);
        frame.optional(message.content.as_deref());
        frame.map(&message.extra);
    }
    frame.0.push(options.add_generation_prompt.into());
    frame.map(&options.kwargs);
    frame.0.push(options.now.is_some().into());
    frame.0.extend(options.now.unwrap_or_default().to_le_bytes());
    frame.count(marks.len());
    for &(mark, original) in marks {
        frame.count(u32::from(mark) as usize);
        frame.count(u32::from(original) as usize);
    }
    frame.0
}

pub(super) fn request(frame: &[u8]) -> Option<Request> {
    let mut rest = FrameReader(frame);
    let request = match rest.byte()? {
        b'C' => {
            let templates = rest.list(|rest| Some((rest.text()?, rest.text()?)))?;
            let [bos, eos, unk, pad] = [rest.optional()?, rest.optional()?, rest.optional()?, rest.optional()?];
            Request::Compile(Sources::new(templates, SpecialNames { bos, eos, unk, pad }))
        }
        b'R' => {
            let messages = rest.list(|rest| {
                Some(ChatMessage { role: rest.text()?, content: rest.optional()?, extra: rest.map(0)? })
            })?;
            let add_generation_prompt = rest.byte()? == 1;
            let kwargs = rest.map(0)?;
            let has_now = rest.byte()? == 1;
            let now = i64::from_le_bytes(rest.array()?);
            let marks = rest.list(|rest| Some((rest.character()?, rest.character()?)))?;
            // The parent cuts the end of the prompt.
            let continue_final_message = false;
            let now = has_now.then_some(now);
            let options = TemplateOptions { add_generation_prompt, continue_final_message, kwargs, now };
            Request::Render { messages, options, marks }
        }
        _ => return None,
    };
    rest.0.is_empty().then_some(request)
}

pub(super) fn compiled_answer(compiled: Result<(), &InvalidTemplate>) -> Vec<u8> {
    match compiled {
        Ok(()) => vec![b'+'],
        Err(error) => {
            let mut frame = FrameWriter(vec![b'-']);
            frame.count(error.line);
            frame.text(&error.problem);
            frame.0
        }
    }
}

/// `None`: an invalid answer.
pub(super) fn compiled(frame: &[u8]) -> Option<Result<(), InvalidTemplate>> {
    let mut rest = FrameReader(frame);
    match rest.byte()? {
        b'+' => Some(Ok(())),
        b'-' => Some(Err(InvalidTemplate { line: rest.count()?, problem: printable(&rest.text()?) })),
        _ => None,
    }
}

pub(super) fn rendered_answer(rendered: Result<String, TemplateError>) -> Vec<u8> {
    let (tag, text, line, number) = match &rendered {
        Ok(text) => (b'+', text.as_str(), 0, 0),
        Err(TemplateError::Refused(text)) => (b'!', text.as_str(), 0, 0),
        Err(TemplateError::TooLong) => (b'l', "", 0, 0),
        Err(TemplateError::TooManySteps) => (b's', "", 0, 0),
        Err(TemplateError::Failed { line, problem }) => {
            (b'-', "", *line, PROBLEMS.iter().position(|known| known == problem).unwrap_or(0))
        }
        Err(_) => (b'-', "", 0, 0),
    };
    let mut frame = FrameWriter(Vec::with_capacity(text.len() + 16));
    frame.0.push(tag);
    frame.text(text);
    frame.count(line);
    frame.count(number);
    frame.0
}

/// `None`: an invalid answer.
pub(super) fn rendered(frame: &[u8]) -> Option<Result<String, TemplateError>> {
    let mut rest = FrameReader(frame);
    let (tag, text, line, number) = (rest.byte()?, rest.text()?, rest.count()?, rest.count()?);
    Some(match tag {
        b'+' => Ok(text),
        b'!' => Err(TemplateError::Refused(printable(&text))),
        b'l' => Err(TemplateError::TooLong),
        b's' => Err(TemplateError::TooManySteps),
        b'-' => Err(TemplateError::Failed { line, problem: PROBLEMS.get(number).copied().unwrap_or(PROBLEMS[0]) }),
        _ => return None,
    })
}

/// A frame being written.
struct FrameWriter(Vec<u8>);

impl FrameWriter {
    fn count(&mut self, count: usize) {
        // All counts are bounded far below that.
        self.0.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn optional(&mut self, text: Option<&str>) {
        self.0.push(text.is_some().into());
        self.text(text.unwrap_or_default());
    }

    fn map(&mut self, map: &Map<String, Json>) {
        self.count(map.len());
        for (key, value) in map {
            self.text(key);
            self.json(value);
        }
    }

    fn json(&mut self, value: &Json) {
        match value {
            Json::Null => self.0.push(b'n'),
            Json::Bool(value) => self.0.push(if *value { b't' } else { b'f' }),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => self.number(b'i', value.to_le_bytes()),
                (_, Some(value)) => self.number(b'u', value.to_le_bytes()),
                _ => self.number(b'd', number.as_f64().unwrap_or(f64::NAN).to_le_bytes()),
            },
            Json::String(text) => {
                self.0.push(b's');
                self.text(text);
            }
            Json::Array(items) => {
                self.0.push(b'[');
                self.count(items.len());
                items.iter().for_each(|item| self.json(item));
            }
            Json::Object(map) => {
                self.0.push(b'{');
                self.map(map);
            }
        }
    }

    fn number(&mut self, kind: u8, bytes: [u8; 8]) {
        self.0.push(kind);
        self.0.extend(bytes);
    }
}

/// The unread rest of a frame. `None` from any method: the frame is invalid.
struct FrameReader<'a>(&'a [u8]);

impl FrameReader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn count(&mut self) -> Option<usize> {
        self.array().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    fn character(&mut self) -> Option<char> {
        char::from_u32(u32::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Option<String> {
        let length = self.count()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn optional(&mut self) -> Option<Option<String>> {
        let (there, text) = (self.byte()? == 1, self.text()?);
        Some(there.then_some(text))
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.count()?;
        // Nothing is reserved for the count, and each item takes at least one byte: a false count ends early.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Some(items)
    }

    fn map(&mut self, depth: usize) -> Option<Map<String, Json>> {
        let pairs = self.list(|rest| Some((rest.text()?, rest.json(depth + 1)?)))?;
        Some(pairs.into_iter().collect())
    }

    fn json(&mut self, depth: usize) -> Option<Json> {
        if depth > MAX_VALUE_DEPTH {
            return None;
        }
        Some(match self.byte()? {
            b'n' => Json::Null,
            b't' => Json::Bool(true),
            b'f' => Json::Bool(false),
            b'i' => i64::from_le_bytes(self.array()?).into(),
            b'u' => u64::from_le_bytes(self.array()?).into(),
            b'd' => Json::Number(Number::from_f64(f64::from_le_bytes(self.array()?))?),
            b's' => Json::String(self.text()?),
            b'[' => Json::Array(self.list(|rest| rest.json(depth + 1))?),
            b'{' => Json::Object(self.map(depth)?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::Bool),
            any::<i64>().prop_map(Json::from),
            any::<u64>().prop_map(Json::from),
            any::<f64>().prop_map(Json::from),
            ".{0,8}".prop_map(Json::String),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Json::Array),
                prop::collection::vec((".{0,4}", inner), 0..4)
                    .prop_map(|pairs| Json::Object(pairs.into_iter().collect())),
            ]
        })
    }

    fn map() -> impl Strategy<Value = Map<String, Json>> {
        prop::collection::vec((".{0,6}", json()), 0..4).prop_map(|pairs| pairs.into_iter().collect())
    }

    proptest! {
        /// A conversation arrives as it was sent, to the last bit of every number.
        #[test]
        fn conversations_arrive_as_they_were_sent(
            texts in prop::collection::vec((".{0,9}", prop::option::of(".{0,9}"), map()), 0..4),
            kwargs in map(),
            now in prop::option::of(any::<i64>()),
            marks in prop::collection::vec(any::<(char, char)>(), 0..3),
        ) {
            let sent: Vec<ChatMessage> =
                texts.into_iter().map(|(role, content, extra)| ChatMessage { role, content, extra }).collect();
            let sent_options = TemplateOptions { add_generation_prompt: now.is_some(), kwargs, now, ..TemplateOptions::default() };
            let frame = render_request(Conversation { messages: &sent, options: &sent_options, marks: &marks });
            let Some(Request::Render { messages, options, marks: got }) = request(&frame) else { panic!("not read") };
            prop_assert_eq!((messages, options, got), (sent, sent_options, marks));
            for cut in 0..frame.len() {
                prop_assert!(request(&frame[..cut]).is_none(), "cut at {}", cut);
            }
        }

        /// Reading any bytes ends, and memory stays proportional to them.
        #[test]
        fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..200), tag in prop::sample::select(&b"CR+-!"[..])) {
            let frame: Vec<u8> = std::iter::once(tag).chain(bytes).collect();
            request(&frame);
            compiled(&frame);
            rendered(&frame);
            let _ = read_frame(&mut &frame[..], 100);
        }
    }

    #[test]
    fn answers_arrive_as_they_were_sent() {
        let failed = |problem| TemplateError::Failed { line: 7, problem };
        let errors = [TemplateError::Refused("no".into()), TemplateError::TooLong, TemplateError::TooManySteps];
        let answers = errors.into_iter().chain(PROBLEMS.map(failed)).map(Err).chain([Ok("text 🦊".to_string())]);
        for answer in answers {
            assert_eq!(rendered(&rendered_answer(answer.clone())), Some(answer));
        }
        let long = TemplateError::Refused(format!("\u{1b}[31m{}", "x".repeat(100_000)));
        let Some(Err(TemplateError::Refused(text))) = rendered(&rendered_answer(Err(long))) else { panic!("refused") };
        assert!(text.len() <= 300 && text.starts_with(" [31m"), "{text}");
        let wrong = InvalidTemplate { line: 3, problem: "unexpected end".into() };
        assert_eq!(compiled(&compiled_answer(Err(&wrong))), Some(Err(wrong)));
        assert_eq!(compiled(&compiled_answer(Ok(()))), Some(Ok(())));
    }
}
