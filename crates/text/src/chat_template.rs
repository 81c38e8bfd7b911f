//! Messages to a prompt, by the Jinja template that comes with the model.
//!
//! ```text
//! [{role: user, content: "hi"}] ──template──► "<|user|>\nhi<|end|>\n<|assistant|>\n" ──Tokenizer──► ids
//!                                    │
//!          Renderer::InProcess ──────┴────── Renderer::Child: in a process with limits
//! ```
//!
//! **A template is a program from a stranger**, run on text from strangers. It reaches no object of ours; its source, the
//! depth of its calls, the instructions that it runs and the bytes that it writes are bounded (`jinja.rs`). What cannot be
//! bounded from inside an interpreter is time and memory: a filter can fill any memory or search for hours in one
//! instruction, a value that contains itself can exhaust any stack, and each of these ends the whole process. So the
//! `twostroke` program compiles and renders in child processes with limits (`child.rs`): [`MAX_RENDER_TIME`],
//! [`MAX_RENDER_MEMORY`], [`RENDER_STACK_BYTES`]. A child that dies is the error of one request, or of one load.
//!
//! A program that embeds this crate has no such child unless it makes one: with [`Renderer::InProcess`], the default, do not
//! load a model whose template you would not run. To make one, call [`serve_renderings`] in a process that has set its
//! limits, and name that process's command in [`Renderer::Child`].
//!
//! A system call filter around the child would add little: the interpreter is Rust without system calls of its own, and
//! what it does wrong is to use too much. The child inherits two pipes, may open nothing and write no file.
//!
//! **Special tokens in messages stay text** (`marks.rs`). [`Tokenizer::encode_chat`] makes the template's `<|end|>` a token,
//! and a user's `<|end|>` five ordinary ones; one text with both kinds is never tokenised together.

mod child;
mod jinja;
mod marks;
mod wire;

use std::ffi::OsString;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

pub use self::child::{MAX_RENDER_MEMORY, MAX_RENDER_TIME, RENDER_STACK_BYTES, serve as serve_renderings};
pub(crate) use self::marks::SpecialTexts;

use self::child::{Pool, Unready};
use self::jinja::{Compiled, NotATemplate, PROBLEMS};
use self::marks::{Marks, Words};
use crate::tokenizer::{CONFIG, Config, MAX_CONFIG_BYTES, SPECIAL_TOKENS, SpecialNames, TextError, Tokenizer};
use checkpoint::{Checkpoint, LoadError};

/// The file of a template that is not part of the tokenizer's settings.
const TEMPLATE: &str = "chat_template.jinja";

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
/// Deepest value in a variable or in a field of a message.
pub const MAX_VALUE_DEPTH: usize = 32;
/// Longest role, `name` or `tool_call_id` of a message, in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Stack of the thread that compiles or renders in this process: room for an expression as deep as [`MAX_SOURCE_BYTES`]
/// allows, and for dropping a list as deep as the interpreter's steps can build. Pages that are not touched cost nothing.
const STACK_BYTES: usize = 512 << 20;

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
    /// Variables of the template: `tools` (a list of function schemas), `enable_thinking`, ... They cannot replace
    /// `messages` or the names of special tokens.
    pub kwargs: Map<String, Json>,
    /// Seconds since 1970 UTC for `strftime_now`; without it the function is not defined, and templates fall back to the
    /// date written in them.
    pub now: Option<i64>,
}

/// Where templates are compiled and run.
#[derive(Clone, Debug, Default)]
pub enum Renderer {
    /// In this process. Time, memory and stack are bounded by the template's good will: for templates that you trust.
    #[default]
    InProcess,
    /// In child processes started by this command, program first: each calls [`serve_renderings`] on its standard input
    /// and output, with limits of its own. The program's path is absolute.
    Child(Vec<OsString>),
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
}

/// What the variables are called in a request.
const KWARGS: &str = "chat_template_kwargs";

/// A model's template, compiled. Immutable; share it behind an `Arc`.
#[derive(Debug)]
pub struct ChatTemplate {
    sources: Sources,
    words: Words,
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    Here(Compiled),
    Children(Pool),
}

/// The templates of a model as text: all that a child process needs.
#[derive(Debug)]
struct Sources {
    /// Names and sources; one is `default`.
    templates: Vec<(String, String)>,
    names: SpecialNames,
    /// A template of its own for conversations with tools.
    has_tool_use: bool,
}

impl Sources {
    fn new(templates: Vec<(String, String)>, names: SpecialNames) -> Sources {
        let has_tool_use = templates.iter().any(|(name, _)| name == "tool_use");
        Sources { templates, names, has_tool_use }
    }

    fn template_for(&self, options: &TemplateOptions) -> &'static str {
        let tools = options.kwargs.get("tools").is_some_and(|tools| !tools.is_null());
        if tools && self.has_tool_use { "tool_use" } else { "default" }
    }
}

/// What is rendered.
#[derive(Clone, Copy)]
struct Conversation<'a> {
    messages: &'a [ChatMessage],
    options: &'a TemplateOptions,
    /// `(mark, original)`.
    marks: &'a [(char, char)],
}

/// `chat_template` in `tokenizer_config.json`.
#[derive(Deserialize)]
#[serde(untagged)]
enum TemplateField {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
struct TemplateConfig {
    chat_template: Option<TemplateField>,
}

impl ChatTemplate {
    /// Reads `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`, to be run in this process. `None` when
    /// the model has neither.
    pub fn load(checkpoint: &Checkpoint) -> Result<Option<ChatTemplate>, LoadError> {
        ChatTemplate::load_with(checkpoint, &Renderer::InProcess)
    }

    /// [`load`](Self::load), to be run where `renderer` says. With [`Renderer::Child`] a first child is started.
    pub fn load_with(checkpoint: &Checkpoint, renderer: &Renderer) -> Result<Option<ChatTemplate>, LoadError> {
        let config = checkpoint.read_text_capped(CONFIG, MAX_CONFIG_BYTES)?;
        let specials = checkpoint.read_text_capped(SPECIAL_TOKENS, MAX_CONFIG_BYTES)?;
        let source = checkpoint.read_text_capped(TEMPLATE, MAX_SOURCE_BYTES as u64)?;
        let files = [source.as_deref(), config.as_deref(), specials.as_deref()];
        ChatTemplate::from_files(files, renderer).map_err(|error| checkpoint.in_its_words(error))
    }

    /// [`load`](Self::load) from the text of the files `chat_template.jinja`, `tokenizer_config.json` and
    /// `special_tokens_map.json`.
    pub fn from_sources(
        source: Option<&str>,
        config: Option<&str>,
        special_tokens_map: Option<&str>,
    ) -> Result<Option<ChatTemplate>, LoadError> {
        ChatTemplate::from_files([source, config, special_tokens_map], &Renderer::InProcess)
    }

    fn from_files(files: [Option<&str>; 3], renderer: &Renderer) -> Result<Option<ChatTemplate>, LoadError> {
        let [source, config, special_tokens_map] = files;
        let names = Config::parse(CONFIG, config)?.names(Config::parse(SPECIAL_TOKENS, special_tokens_map)?);
        let field = match config.map(serde_json::from_str::<TemplateConfig>).transpose() {
            Ok(config) => config.and_then(|config| config.chat_template),
            Err(error) => return Err(LoadError::field(CONFIG, "chat_template", error)),
        };
        let (file, templates) = match (source, field) {
            (Some(source), _) => (TEMPLATE, vec![("default".to_string(), source.to_string())]),
            (None, Some(TemplateField::One(source))) => (CONFIG, vec![("default".to_string(), source)]),
            (None, Some(TemplateField::Named(list))) => {
                (CONFIG, list.into_iter().map(|entry| (entry.name, entry.template)).collect())
            }
            (None, None) => return Ok(None),
        };
        if !templates.iter().any(|(name, _)| name == "default") {
            return Err(LoadError::field(CONFIG, "chat_template", "no template named `default`"));
        }
        for (name, source) in &templates {
            if source.len() > MAX_SOURCE_BYTES {
                let problem = format!("template {name:.20?} has {} bytes; at most {MAX_SOURCE_BYTES}", source.len());
                return Err(LoadError::field(file, "chat_template", problem));
            }
        }
        let sources = Sources::new(templates, names);
        let wrong =
            |error: NotATemplate| LoadError::field(file, format!("chat_template line {}", error.line), error.problem);
        let failed = |error: TemplateError| LoadError::field(file, "chat_template", error);
        let engine = match renderer {
            Renderer::InProcess => {
                let compiled = on_deep_stack(|| Compiled::new(&sources)).map_err(failed)?;
                Engine::Here(compiled.map_err(wrong)?)
            }
            Renderer::Child(command) => {
                Engine::Children(Pool::new(command, &sources).map_err(|error| match error {
                    Unready::Wrong(error) => wrong(error),
                    Unready::Child(error) => failed(error),
                })?)
            }
        };
        let words = Words::of(sources.templates.iter().map(|(_, source)| source.as_str()));
        Ok(Some(ChatTemplate { sources, words, engine }))
    }

    /// The prompt as text.
    pub fn render(&self, messages: &[ChatMessage], options: &TemplateOptions) -> Result<String, TemplateError> {
        check_limits(messages, options)?;
        self.render_marked(Conversation { messages, options, marks: &[] })
    }

    fn render_marked(&self, conversation: Conversation<'_>) -> Result<String, TemplateError> {
        match &self.engine {
            Engine::Here(compiled) => on_deep_stack(|| compiled.render(&self.sources, conversation))?,
            Engine::Children(pool) => pool.render(conversation),
        }
    }
}

impl Tokenizer {
    /// The prompt as ids: the template's special tokens are tokens, those in messages and variables are plain text.
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[ChatMessage],
        options: &TemplateOptions,
    ) -> Result<Vec<u32>, TemplateError> {
        check_limits(messages, options)?;
        let marks = match self.special_texts() {
            Some(specials) => Marks::for_conversation(specials, &template.words, messages, options)?,
            None => None,
        };
        let Some(marks) = marks else {
            return Ok(self.encode(&template.render_marked(Conversation { messages, options, marks: &[] })?, false)?);
        };
        let messages: Vec<ChatMessage> = messages.iter().map(|message| marks.message(message)).collect();
        let options = TemplateOptions { kwargs: marks.map(&options.kwargs), ..*options };
        let conversation = Conversation { messages: &messages, options: &options, marks: &marks.swapped };
        let rendered = template.render_marked(conversation).map_err(|error| match error {
            TemplateError::Refused(text) => TemplateError::Refused(marks.restore(&text)),
            error => error,
        })?;
        Ok(self.encode_restoring(&rendered, &marks.swapped)?)
    }
}

/// Refuses what is larger than any conversation, before anything is copied.
fn check_limits(messages: &[ChatMessage], options: &TemplateOptions) -> Result<(), TemplateError> {
    let limit = |field: String, problem: String| Err(TemplateError::Limit { field, problem });
    let mut variables = Size::default();
    variables.add_map(&options.kwargs, 1);
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
    for (field, size, most_bytes) in [(KWARGS, &variables, MAX_KWARGS_BYTES), ("messages", &all, MAX_INPUT_BYTES)] {
        let problem = if size.depth > MAX_VALUE_DEPTH {
            format!("is nested more than {MAX_VALUE_DEPTH} levels deep")
        } else if size.values > MAX_VALUES {
            format!("has {} values; at most {MAX_VALUES} are taken", size.values)
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
        for (key, value) in map {
            self.bytes += key.len();
            self.values += 1;
            self.add(value, depth);
        }
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

/// Runs `work` on a thread with [`STACK_BYTES`]; a panic in it is its own failure.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("template".to_string()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, work).map_err(|_| TemplateError::NoThread)?;
        let bug = TemplateError::Failed { line: 0, problem: PROBLEMS[PROBLEMS.len() - 1] };
        thread.join().map_err(|_| bug)
    })
}
