//! Messages to a prompt, by the model's Jinja chat template.
//!
//! ```text
//! [{role: user, content: "hi"}] ──template──► "<|user|>\nhi<|end|>\n<|assistant|>\n" ──Tokenizer──► ids
//!                                    │
//!          Renderer::InProcess ──────┴────── Renderer::Child: in a process with limits
//! ```
//!
//! **A template is an untrusted program**, run on untrusted text. It reaches none of our objects; its source, call
//! depth, instructions and output bytes are bounded (`jinja.rs`). An interpreter cannot bound time and memory from
//! inside: one instruction can fill any memory or search for hours, a value that contains itself can exhaust any stack,
//! and each of these ends the whole process. So the `twostroke` program compiles and renders in child processes with
//! limits (`child.rs`): [`MAX_RENDER_TIME`], [`MAX_RENDER_MEMORY`], [`RENDER_STACK_BYTES`]. A child that dies is the
//! error of one request, or of one load.
//!
//! A program that embeds this crate has no child process by default: with [`Renderer::InProcess`], load only models
//! whose template you trust. To use one, call [`serve_renderings`] in a process that has set its limits, and pass that
//! process's command in [`Renderer::Child`].
//!
//! A system call filter around the child would add little: the interpreter makes no system calls; the risk is resource
//! use. The child inherits two pipes, may open nothing and write no file.
//!
//! **Special tokens in messages stay text** (`marks.rs`). [`Tokenizer::encode_chat`] makes the template's `<|end|>` one
//! token, and a user's `<|end|>` five ordinary ones; text of both kinds is never tokenized together.

mod child;
mod conversation;
mod jinja;
mod marks;
mod wire;

use std::ffi::OsString;
use std::ops::Range;

use checkpoint::{Checkpoint, LoadError};
use serde::Deserialize;
use serde_json::{Map, Value};

pub use self::child::serve as serve_renderings;
use self::child::{CompileError, Pool};
pub use self::conversation::{
    ChatMessage, MAX_INPUT_BYTES, MAX_KWARGS_BYTES, MAX_NAME_BYTES, MAX_OUTPUT_BYTES, MAX_RENDER_MEMORY,
    MAX_RENDER_TIME, MAX_RENDER_WAIT, MAX_SOURCE_BYTES, MAX_VALUE_DEPTH, MAX_VALUES, RENDER_STACK_BYTES, TemplateError,
    TemplateOptions,
};
use self::conversation::{Conversation, Sources, check_limits};
use self::jinja::{Compiled, InvalidTemplate, PROBLEMS};
use self::marks::{Marks, TemplateLiterals};
use crate::specials::{CONFIG, Config, MAX_CONFIG_BYTES, SPECIAL_TOKENS};
use crate::tokenizer::Tokenizer;

/// The file of a template outside of `tokenizer_config.json`.
const TEMPLATE: &str = "chat_template.jinja";

/// Bytes of a message that is looked for in its prompt, and messages that may be missing there before no more are.
const LEAST_FOUND: usize = 16;
const MOST_MISSING: usize = 8;

/// Stack of the thread that compiles or renders in this process: enough for an expression as deep as
/// [`MAX_SOURCE_BYTES`] allows, and for dropping a list as deep as the interpreter's steps can build. Untouched pages
/// cost nothing.
const STACK_BYTES: usize = 512 << 20;

/// The process that compiles and runs templates.
#[derive(Clone, Debug, Default)]
pub enum Renderer {
    /// This process, without limits on time, memory and stack: for trusted templates only.
    #[default]
    InProcess,
    /// Child processes started by this command, program first: each sets its limits and calls [`serve_renderings`] on
    /// its standard input and output. The program's path is absolute.
    Child(Vec<OsString>),
}

/// Renderer, source and default variables of a template.
#[derive(Clone, Debug, Default)]
pub struct TemplateSettings {
    /// The process that runs it.
    pub renderer: Renderer,
    /// Replaces the model's own template.
    pub source: Option<String>,
    /// Default variables of each conversation.
    pub kwargs: Map<String, Value>,
    /// An engine whose model's template cannot be used does not start. Otherwise only conversations fail.
    pub is_needed: bool,
}

/// The model's own template without default variables.
impl From<Renderer> for TemplateSettings {
    fn from(renderer: Renderer) -> TemplateSettings {
        TemplateSettings { renderer, ..TemplateSettings::default() }
    }
}

/// A model's template, compiled. Immutable; share it behind an `Arc`.
#[derive(Debug)]
pub struct ChatTemplate {
    sources: Sources,
    literals: TemplateLiterals,
    engine: Engine,
    settings: TemplateSettings,
}

#[derive(Debug)]
enum Engine {
    InProcess(Compiled),
    Children(Pool),
}

/// `chat_template` in `tokenizer_config.json`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a template, or a list of objects with `name` and `template`")]
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
    /// Reads `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`, for rendering in this process.
    /// `None` if the model has neither. One that never reads `messages` is an error.
    pub fn load(checkpoint: &Checkpoint) -> Result<Option<ChatTemplate>, LoadError> {
        ChatTemplate::load_with(checkpoint, &TemplateSettings::default())
    }

    /// [`load`](Self::load) with settings. With [`Renderer::Child`] a first child is started.
    pub fn load_with(checkpoint: &Checkpoint, settings: &TemplateSettings) -> Result<Option<ChatTemplate>, LoadError> {
        let config = checkpoint.read_text_capped(CONFIG, MAX_CONFIG_BYTES)?;
        let specials = checkpoint.read_text_capped(SPECIAL_TOKENS, MAX_CONFIG_BYTES)?;
        let source = checkpoint.read_text_capped(TEMPLATE, MAX_SOURCE_BYTES as u64)?;
        let source = settings.source.as_deref().or(source.as_deref());
        ChatTemplate::from_files([source, config.as_deref(), specials.as_deref()], settings).map_err(
            |error| match error {
                // No file of the model is wrong.
                LoadError::Field { file, field, problem } if file == TEMPLATE && settings.source.is_some() => {
                    LoadError::Option { option: "chat_template", problem: format!("{field}: {problem}") }
                }
                error => checkpoint.translate_error(error),
            },
        )
    }

    /// [`load`](Self::load) from the text of the files `chat_template.jinja`, `tokenizer_config.json` and
    /// `special_tokens_map.json`.
    pub fn from_sources(
        source: Option<&str>,
        config: Option<&str>,
        special_tokens_map: Option<&str>,
    ) -> Result<Option<ChatTemplate>, LoadError> {
        ChatTemplate::from_files([source, config, special_tokens_map], &TemplateSettings::default())
    }

    /// The same settings and special tokens with another source. Compiles it, and starts a process if the model's
    /// template uses one.
    pub fn with_source(&self, source: &str) -> Result<ChatTemplate, LoadError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(too_long(TEMPLATE, "default", source));
        }
        let templates = vec![("default".to_string(), source.to_string())];
        ChatTemplate::compiled(TEMPLATE, Sources::new(templates, self.sources.names.clone()), &self.settings)
    }

    fn from_files(files: [Option<&str>; 3], settings: &TemplateSettings) -> Result<Option<ChatTemplate>, LoadError> {
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
                return Err(too_long(file, name, source));
            }
        }
        let template = ChatTemplate::compiled(file, Sources::new(templates, names), settings)?;
        // What a server sends in a file's place compiles too, and would be the prompt of every conversation.
        if !template.literals.has_word("messages") {
            return Err(LoadError::field(file, "chat_template", "not a template: it never reads `messages`"));
        }
        Ok(Some(template))
    }

    fn compiled(file: &str, sources: Sources, settings: &TemplateSettings) -> Result<ChatTemplate, LoadError> {
        let wrong = |error: InvalidTemplate| {
            LoadError::field(file, format!("chat_template line {}", error.line), error.problem)
        };
        let failed = |error: TemplateError| match error {
            // The machine is short of something: another start may have it.
            TemplateError::NoThread | TemplateError::NoProcess | TemplateError::NoProcessor => {
                LoadError::Io { file: file.to_string(), error: std::io::Error::other(error) }
            }
            error => LoadError::field(file, "chat_template", error),
        };
        let engine = match &settings.renderer {
            Renderer::InProcess => {
                let compiled = on_deep_stack(|| Compiled::new(&sources)).map_err(failed)?;
                Engine::InProcess(compiled.map_err(wrong)?)
            }
            Renderer::Child(command) => {
                Engine::Children(Pool::new(command, &sources).map_err(|error| match error {
                    CompileError::Template(error) => wrong(error),
                    CompileError::Child(error) => failed(error),
                })?)
            }
        };
        let literals = TemplateLiterals::of(sources.templates.iter().map(|(_, source)| source.as_str()));
        Ok(ChatTemplate { sources, literals, engine, settings: settings.clone() })
    }

    /// The sources of the model's templates, joined by newlines.
    pub fn source(&self) -> String {
        self.sources.templates.iter().map(|(_, source)| source.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// Default variables of each conversation.
    pub fn variables(&self) -> &Map<String, Value> {
        &self.settings.kwargs
    }

    /// The prompt as text.
    pub fn render(&self, messages: &[ChatMessage], options: &TemplateOptions) -> Result<String, TemplateError> {
        let options = &self.with_defaults(options);
        check_limits(messages, options)?;
        self.render_marked(Conversation { messages, options, marks: &[] })
    }

    /// The options of a conversation, with the default variables.
    fn with_defaults(&self, options: &TemplateOptions) -> TemplateOptions {
        let mut kwargs = self.settings.kwargs.clone();
        kwargs.extend(options.kwargs.clone());
        TemplateOptions { kwargs, ..*options }
    }

    fn render_marked(&self, conversation: Conversation<'_>) -> Result<String, TemplateError> {
        match &self.engine {
            Engine::InProcess(compiled) => on_deep_stack(|| compiled.render(&self.sources, conversation))?,
            Engine::Children(pool) => pool.render(conversation),
        }
    }
}

impl Tokenizer {
    /// The prompt as ids. Special tokens of the template are parsed, those in messages and variables are plain text.
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[ChatMessage],
        options: &TemplateOptions,
    ) -> Result<Vec<u32>, TemplateError> {
        let options = &template.with_defaults(options);
        check_limits(messages, options)?;
        let marks = match self.special_texts() {
            Some(specials) => Marks::for_conversation(specials, &template.literals, messages, options)?,
            None => None,
        };
        let Some(marks) = marks else {
            let rendered = template.render_marked(Conversation { messages, options, marks: &[] })?;
            return Ok(self.encode(within_last(&rendered, messages, options)?, false)?);
        };
        let messages: Vec<ChatMessage> = messages.iter().map(|message| marks.message(message)).collect();
        let options = TemplateOptions { kwargs: marks.map(&options.kwargs), ..*options };
        let conversation = Conversation { messages: &messages, options: &options, marks: &marks.swapped };
        let rendered = template.render_marked(conversation).map_err(|error| match error {
            TemplateError::Refused(text) => TemplateError::Refused(marks.restore(&text)),
            error => error,
        })?;
        Ok(self.encode_restoring(within_last(&rendered, &messages, &options)?, &marks.swapped)?)
    }
}

impl Tokenizer {
    /// The prompt's tokens that are text of each message: none where a template wrote it otherwise, or left it out, and of a
    /// text so short that it may stand elsewhere too. Linear in the prompt.
    pub fn find_messages(&self, prompt: &[u32], messages: &[ChatMessage]) -> Vec<Range<usize>> {
        let bytes = prompt.iter().flat_map(|&id| self.token_bytes(id).unwrap_or_default()).collect();
        let Ok(text) = String::from_utf8(bytes) else { return Vec::new() };
        let (mut tokens, mut end, mut found) = (0, 0, 0);
        // How many tokens end at this byte or before; each byte is behind the last one.
        let mut tokens_until = |byte: usize| {
            while let Some(&id) = prompt.get(tokens).filter(|&&id| end + self.token_len(id) <= byte) {
                end += self.token_len(id);
                tokens += 1;
            }
            tokens
        };
        // Templates trim texts.
        let mut missing = 0;
        let place = |message: &ChatMessage| {
            let said = message.content.as_deref().unwrap_or_default().trim();
            if said.len() < LEAST_FOUND || missing == MOST_MISSING {
                return 0..0;
            }
            let Some(at) = text[found..].find(said) else {
                missing += 1;
                return 0..0;
            };
            let begin = found + at;
            found = begin + said.len();
            tokens_until(begin)..tokens_until(found)
        };
        messages.iter().map(place).collect()
    }
}

fn too_long(file: &str, name: &str, source: &str) -> LoadError {
    let problem = format!("template {name:.20?} has {} bytes; at most {MAX_SOURCE_BYTES}", source.len());
    LoadError::field(file, "chat_template", problem)
}

/// The prompt up to the end of the last message's text, if that is to be continued. Templates trim texts, so the search
/// ignores white space at both ends.
fn within_last<'a>(
    rendered: &'a str,
    messages: &[ChatMessage],
    options: &TemplateOptions,
) -> Result<&'a str, TemplateError> {
    if !options.continue_final_message {
        return Ok(rendered);
    }
    let text = messages.last().and_then(|message| message.content.as_deref()).unwrap_or_default().trim();
    let at = rendered.rfind(text).filter(|_| !text.is_empty()).ok_or(TemplateError::NotContinued)?;
    Ok(&rendered[..at + text.len()])
}

/// Runs `work` on a thread with [`STACK_BYTES`]; a panic in it becomes an error.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("template".to_string()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, work).map_err(|_| TemplateError::NoThread)?;
        let bug = TemplateError::Failed { line: 0, problem: PROBLEMS[PROBLEMS.len() - 1] };
        thread.join().map_err(|_| bug)
    })
}
