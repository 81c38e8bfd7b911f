//! What a template is given, what may go wrong, and how large everything may be.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use crate::error::TextError;
use crate::specials::SpecialNames;

/// Largest source of a template; the longest in use are a tenth of it.
pub const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Most bytes that a template may write.
pub const MAX_OUTPUT_BYTES: usize = 32 << 20;
/// Most bytes of text that a conversation and its variables may have.
pub const MAX_INPUT_BYTES: usize = 32 << 20;
/// Most bytes of text in the variables: some hundred tools with their schemas.
pub const MAX_KWARGS_BYTES: usize = 256 << 10;
/// Most values in the variables, or in the further fields of all messages; names count too.
pub const MAX_VALUES: usize = 20_000;
/// The same of tools: 512 of some 300 each, such as agents have.
const MAX_TOOL_VALUES: usize = 150_000;
/// Longest tools, in bytes of their texts.
const MAX_TOOL_BYTES: usize = 4 << 20;
/// Deepest value in a variable or in a field of a message.
pub const MAX_VALUE_DEPTH: usize = 32;
/// Longest role, `name` or `tool_call_id` of a message, in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Processor time that one rendering, or the compilation of a template, may take. The longest that a real template takes
/// is a hundredth of it: 10,000 messages.
pub const MAX_RENDER_TIME: Duration = Duration::from_secs(2);
/// Longest that a request waits for it. A child that has not used up its processor time by then had no processor: the
/// machine is overloaded, or was asleep.
pub const MAX_RENDER_WAIT: Duration = Duration::from_secs(60);
/// Memory that a child may use beside its program and its stack. A prompt of [`MAX_OUTPUT_BYTES`] from as much text
/// takes two thirds of it.
pub const MAX_RENDER_MEMORY: u64 = 256 << 20;
/// Stack of a child. Real templates nest a few levels; a thousand of the deepest kind fit.
pub const RENDER_STACK_BYTES: u64 = 64 << 20;

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// The text; `None` for an assistant's turn that only calls tools.
    pub content: Option<String>,
    /// Everything else the template may read: `name`, `tool_calls`, `tool_call_id`, `reasoning_content`, ...
    pub extra: Map<String, Json>,
}

impl ChatMessage {
    /// A message with a role and a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: Some(content.into()), extra: Map::new() }
    }
}

/// What a template reads besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TemplateOptions {
    /// End with the beginning of an assistant's turn.
    pub add_generation_prompt: bool,
    /// End inside the last message, behind its text: what follows goes on with it. Only [`Tokenizer::encode_chat`] heeds
    /// it.
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

/// Why messages could not be made a prompt. Texts are fixed, except the template's own in [`TemplateError::Refused`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template called `raise_exception`: it does not take such a conversation. One line of printable text.
    #[error("the model's chat template refused the messages: {0}")]
    Refused(String),
    /// The template failed.
    #[error("the model's chat template failed on line {line}: {problem}")]
    Failed {
        /// Line of the template's source; 0 when unknown.
        line: usize,
        /// What went wrong.
        problem: &'static str,
    },
    /// The prompt is longer than any context.
    #[error("the model's chat template wrote more than {MAX_OUTPUT_BYTES} bytes")]
    TooLong,
    /// The template ran too many instructions.
    #[error("the model's chat template took too many steps")]
    TooManySteps,
    /// The template ran too long; a child process was ended.
    #[error("the model's chat template took longer than {} s", MAX_RENDER_TIME.as_secs())]
    TooSlow,
    /// The child process had no processor in [`MAX_RENDER_WAIT`]; it was ended.
    #[error("the process that renders the chat template stood still for {} s: the machine is overloaded or was stopped; \
        ask again", MAX_RENDER_WAIT.as_secs())]
    NoProcessor,
    /// The template used too much memory or stack; a child process ended.
    #[error("the model's chat template ran out of memory: it may use {} MiB, and nest no deeper than a stack of {} MiB",
        MAX_RENDER_MEMORY >> 20, RENDER_STACK_BYTES >> 20)]
    OutOfMemory,
    /// A conversation beyond a limit.
    #[error("{field} {problem}")]
    Limit {
        /// Where in the request, such as `messages[2].name`.
        field: String,
        /// What is too much, and how much is allowed.
        problem: String,
    },
    /// No characters are left to tell the conversation's special tokens from the template's.
    #[error("the messages use up the characters for private use, of which special tokens in them need some")]
    NoMarks,
    /// No thread could be started.
    #[error("the system has no thread left to render the chat template")]
    NoThread,
    /// No child process could be started, or it was of another build.
    #[error("the process that renders the chat template could not be started")]
    NoProcess,
    /// The child process ended, or answered what is no answer.
    #[error("the process that renders the chat template ended unexpectedly")]
    ProcessEnded,
    /// What the last message says is not in what the template wrote, so nothing can go on from there.
    #[error("the model's chat template does not write the last message as it is, so it cannot be continued")]
    NotContinued,
    /// The prompt could not be encoded.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl TemplateError {
    /// The field of a request that is at fault: `messages`, unless it is the variables.
    pub fn param(&self) -> &'static str {
        match self {
            TemplateError::Limit { field, .. } if field.starts_with(KWARGS) => KWARGS,
            _ => "messages",
        }
    }

    /// Whether the machine is at fault and not what was asked: the same may be answered a moment later.
    pub fn is_machines(&self) -> bool {
        matches!(self, TemplateError::NoProcessor | TemplateError::NoThread | TemplateError::NoProcess)
    }
}

/// What the variables are called in a request.
const KWARGS: &str = "chat_template_kwargs";
/// The variable that is no wish of the request's, but what may be called.
const TOOLS: &str = "tools";

/// The templates of a model as text: all that a child process needs.
#[derive(Debug)]
pub(super) struct Sources {
    /// Names and sources; one is `default`.
    pub(super) templates: Vec<(String, String)>,
    pub(super) names: SpecialNames,
    /// A template of its own for conversations with tools.
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

/// What is rendered.
#[derive(Clone, Copy)]
pub(super) struct Conversation<'a> {
    pub(super) messages: &'a [ChatMessage],
    pub(super) options: &'a TemplateOptions,
    /// `(mark, original)`.
    pub(super) marks: &'a [(char, char)],
}

/// Refuses what is larger than any conversation, before anything is copied.
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
        return limit(field, format!("has {bytes} bytes; at most {MAX_NAME_BYTES} are taken"));
    }
    for (field, size, most_values, most_bytes) in [
        (KWARGS, &variables, MAX_VALUES, MAX_KWARGS_BYTES),
        (TOOLS, &tools, MAX_TOOL_VALUES, MAX_TOOL_BYTES),
        ("messages", &all, MAX_VALUES, MAX_INPUT_BYTES),
    ] {
        let problem = if size.depth > MAX_VALUE_DEPTH {
            format!("is nested more than {MAX_VALUE_DEPTH} levels deep")
        } else if size.values > most_values {
            format!("has {} values; at most {most_values} are taken", size.values)
        } else if size.bytes > most_bytes {
            format!("has {} bytes of text; at most {most_bytes} are taken", size.bytes)
        } else {
            continue;
        };
        return limit(field.to_string(), problem);
    }
    Ok(())
}

/// How large a value is.
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
            // What is below is not looked at: it is refused already, and it may be deeper than the stack.
            _ if depth > MAX_VALUE_DEPTH => {}
            Json::String(text) => self.bytes += text.len(),
            Json::Array(items) => items.iter().for_each(|item| self.add(item, depth + 1)),
            Json::Object(map) => self.add_map(map, depth + 1),
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }
}
