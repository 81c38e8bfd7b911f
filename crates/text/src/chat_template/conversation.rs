//! Input of a template, its limits and its errors.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use crate::error::TextError;
use crate::specials::SpecialNames;

/// Maximum bytes of a template's source; the longest in use have a tenth of it.
pub const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Maximum bytes that a template may write.
pub const MAX_OUTPUT_BYTES: usize = 32 << 20;
/// Maximum bytes of text in the messages of a conversation.
pub const MAX_INPUT_BYTES: usize = 32 << 20;
/// Maximum bytes of text in the variables without `tools`.
pub const MAX_KWARGS_BYTES: usize = 256 << 10;
/// Maximum values in the variables, or in the extra fields of all messages; names count too.
pub const MAX_VALUES: usize = 20_000;
/// Maximum values in `tools`: 512 tools of some 300 values each, as agents send.
const MAX_TOOL_VALUES: usize = 150_000;
/// Maximum bytes of text in `tools`.
const MAX_TOOL_BYTES: usize = 4 << 20;
/// Maximum nesting depth of a variable or a field of a message.
pub const MAX_VALUE_DEPTH: usize = 32;
/// Maximum bytes of the role, `name` or `tool_call_id` of a message.
pub const MAX_NAME_BYTES: usize = 256;
/// Maximum CPU time of one rendering, or of compiling a template. Real templates take at most a hundredth of it, for
/// 10,000 messages.
pub const MAX_RENDER_TIME: Duration = Duration::from_secs(2);
/// Maximum wait for it. A child that has not used up its CPU time by then got no CPU: the machine is overloaded, or was
/// asleep.
pub const MAX_RENDER_WAIT: Duration = Duration::from_secs(60);
/// Maximum memory of a child besides its program and its stack. A prompt of [`MAX_OUTPUT_BYTES`] from a text of the
/// same size takes two thirds of it.
pub const MAX_RENDER_MEMORY: u64 = 256 << 20;
/// Stack of a child. Real templates nest a few levels; a thousand levels of the deepest kind fit.
pub const RENDER_STACK_BYTES: u64 = 64 << 20;

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool`, or another role that the template knows.
    pub role: String,
    /// The text; `None` for an assistant message that only calls tools.
    pub content: Option<String>,
    /// Other fields for the template: `name`, `tool_calls`, `tool_call_id`, `reasoning_content`, ...
    pub extra: Map<String, Json>,
}

impl ChatMessage {
    /// A message with a role and a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: Some(content.into()), extra: Map::new() }
    }
}

/// Input of a template besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TemplateOptions {
    /// End with the beginning of an assistant message.
    pub add_generation_prompt: bool,
    /// End after the text of the last message, so that the answer continues it. Only [`Tokenizer::encode_chat`]
    /// applies it.
    ///
    /// [`Tokenizer::encode_chat`]: crate::tokenizer::Tokenizer::encode_chat
    pub continue_final_message: bool,
    /// Variables of the template: `tools` (a list of function schemas), `enable_thinking`, ... They cannot replace
    /// `messages` or the names of special tokens.
    pub kwargs: Map<String, Json>,
    /// Seconds since 1970 UTC for `strftime_now`; without it the function is not defined, and templates fall back to
    /// the date written in them.
    pub now: Option<i64>,
}

/// Errors of rendering. Messages are fixed texts, except the template's own in [`TemplateError::Refused`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template rejected the conversation with `raise_exception`. One line of printable text.
    #[error("the model's chat template refused the messages: {0}")]
    Refused(String),
    /// The template failed.
    #[error("the model's chat template failed on line {line}: {problem}")]
    Failed {
        /// Line of the template's source; 0 if unknown.
        line: usize,
        /// One of `PROBLEMS`.
        problem: &'static str,
    },
    /// The prompt exceeds [`MAX_OUTPUT_BYTES`].
    #[error("the model's chat template wrote more than {MAX_OUTPUT_BYTES} bytes")]
    TooLong,
    /// The template ran too many instructions.
    #[error("the model's chat template took too many steps")]
    TooManySteps,
    /// The template exceeded [`MAX_RENDER_TIME`]; the child process was ended.
    #[error("the model's chat template took longer than {} s", MAX_RENDER_TIME.as_secs())]
    TooSlow,
    /// The child process got no CPU time within [`MAX_RENDER_WAIT`]; it was ended.
    #[error("the process that renders the chat template got no CPU time for {} s: the machine is overloaded or was \
        suspended; try again", MAX_RENDER_WAIT.as_secs())]
    NoProcessor,
    /// The template used too much memory or stack; the child process ended.
    #[error("the model's chat template ran out of memory: the limits are {} MiB of memory and {} MiB of stack",
        MAX_RENDER_MEMORY >> 20, RENDER_STACK_BYTES >> 20)]
    OutOfMemory,
    /// The conversation exceeds a limit.
    #[error("{field} {problem}")]
    Limit {
        /// Field of the request, such as `messages[2].name`.
        field: String,
        /// The size and the limit.
        problem: String,
    },
    /// No characters are left as marks for the special tokens in messages.
    #[error("the messages use nearly all private-use characters, so special tokens in them cannot be escaped")]
    NoMarks,
    /// No thread could be started.
    #[error("the system cannot start a thread to render the chat template")]
    NoThread,
    /// No child process could be started, or it is another version.
    #[error("the process that renders the chat template could not be started")]
    NoProcess,
    /// The child process ended, or sent an invalid answer.
    #[error("the process that renders the chat template ended unexpectedly")]
    ProcessEnded,
    /// The rendered text does not contain the last message's text.
    #[error("the model's chat template changes the last message, so it cannot be continued")]
    NotContinued,
    /// The prompt could not be encoded.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl TemplateError {
    /// The request field that caused the error: `messages` or the variables.
    pub fn param(&self) -> &'static str {
        let TemplateError::Limit { field, .. } = self else { return "messages" };
        [KWARGS, TOOLS].into_iter().find(|name| field.starts_with(name)).unwrap_or("messages")
    }

    /// Whether the machine caused the error, not the request: the same request may succeed later.
    pub fn is_machine_fault(&self) -> bool {
        matches!(self, TemplateError::NoProcessor | TemplateError::NoThread | TemplateError::NoProcess)
    }
}

/// The request field of the variables.
const KWARGS: &str = "chat_template_kwargs";
/// The variable of the tools, which has its own limits.
const TOOLS: &str = "tools";

/// The templates of a model as text: all input for compiling.
#[derive(Debug)]
pub(super) struct Sources {
    /// Names and sources; one is `default`.
    pub(super) templates: Vec<(String, String)>,
    pub(super) names: SpecialNames,
    /// Whether there is a separate template for conversations with tools.
    pub(super) has_tool_use: bool,
}

impl Sources {
    pub(super) fn new(templates: Vec<(String, String)>, names: SpecialNames) -> Sources {
        let has_tool_use = templates.iter().any(|(name, _)| name == "tool_use");
        Sources { templates, names, has_tool_use }
    }

    pub(super) fn template_for(&self, options: &TemplateOptions) -> &'static str {
        let tools = options.kwargs.get("tools").is_some_and(|tools| !tools.is_null());
        if tools && self.has_tool_use { "tool_use" } else { "default" }
    }
}

/// Input of one rendering.
#[derive(Clone, Copy)]
pub(super) struct Conversation<'a> {
    pub(super) messages: &'a [ChatMessage],
    pub(super) options: &'a TemplateOptions,
    /// `(mark, original)`.
    pub(super) marks: &'a [(char, char)],
}

/// Checks the limits of the input, before anything is copied.
pub(super) fn check_limits(messages: &[ChatMessage], options: &TemplateOptions) -> Result<(), TemplateError> {
    let limit = |field: String, problem: String| Err(TemplateError::Limit { field, problem });
    let (mut variables, mut tools) = (Size::default(), Size::default());
    for (name, value) in &options.kwargs {
        let size = if name == TOOLS { &mut tools } else { &mut variables };
        size.add_entry(name, value, 1);
    }
    let mut all = Size::default();
    let mut name_too_long = None;
    for (at, message) in messages.iter().enumerate() {
        let names = ["name", "tool_call_id"].map(|field| (field, message.extra.get(field).and_then(Json::as_str)));
        for (field, name) in names.into_iter().chain([("role", Some(message.role.as_str()))]) {
            let bytes = name.map_or(0, str::len);
            if bytes > MAX_NAME_BYTES {
                name_too_long.get_or_insert((format!("messages[{at}].{field}"), bytes));
            }
        }
        all.bytes += message.role.len() + message.content.as_deref().map_or(0, str::len);
        all.add_map(&message.extra, 1);
    }
    if let Some((field, bytes)) = name_too_long {
        return limit(field, format!("has {bytes} bytes; at most {MAX_NAME_BYTES}"));
    }
    for (field, size, most_values, most_bytes) in [
        (KWARGS, &variables, MAX_VALUES, MAX_KWARGS_BYTES),
        (TOOLS, &tools, MAX_TOOL_VALUES, MAX_TOOL_BYTES),
        ("messages", &all, MAX_VALUES, MAX_INPUT_BYTES),
    ] {
        let problem = if size.depth > MAX_VALUE_DEPTH {
            format!("is nested more than {MAX_VALUE_DEPTH} levels deep")
        } else if size.values > most_values {
            format!("has {} values; at most {most_values}", size.values)
        } else if size.bytes > most_bytes {
            format!("has {} bytes of text; at most {most_bytes}", size.bytes)
        } else {
            continue;
        };
        return limit(field.to_string(), problem);
    }
    Ok(())
}

/// Total size of values.
#[derive(Default)]
struct Size {
    bytes: usize,
    values: usize,
    depth: usize,
}

impl Size {
    fn add_map(&mut self, map: &Map<String, Json>, depth: usize) {
        map.iter().for_each(|(key, value)| self.add_entry(key, value, depth));
    }

    fn add_entry(&mut self, key: &str, value: &Json, depth: usize) {
        self.bytes += key.len();
        self.values += 1;
        self.add(value, depth);
    }

    fn add(&mut self, value: &Json, depth: usize) {
        self.depth = self.depth.max(depth);
        self.values += 1;
        match value {
            // Already refused; deeper levels could overflow the stack.
            _ if depth > MAX_VALUE_DEPTH => {}
            Json::String(text) => self.bytes += text.len(),
            Json::Array(items) => items.iter().for_each(|item| self.add(item, depth + 1)),
            Json::Object(map) => self.add_map(map, depth + 1),
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }
}
