//! Messages to a prompt, by the Jinja template that comes with the model.
//!
//! ```text
//! [{role: user, content: "hi"}] ──template──► "<|user|>\nhi<|end|>\n<|assistant|>\n" ──Tokenizer──► ids
//!                                    │
//!          Renderer::InProcess ──────┴────── Renderer::Child: in a process with limits
//! ```
//!
//! **A template is a program from a stranger**, run on text from strangers. It reaches no object of ours; its source,
//! the depth of its calls, the instructions that it runs and the bytes that it writes are bounded (`jinja.rs`). What
//! cannot be bounded from inside an interpreter is time and memory: a filter can fill any memory or search for hours in
//! one instruction, a value that contains itself can exhaust any stack, and each of these ends the whole process. So
//! the `twostroke` program compiles and renders in child processes with limits (`child.rs`): [`MAX_RENDER_TIME`],
//! [`MAX_RENDER_MEMORY`], [`RENDER_STACK_BYTES`]. A child that dies is the error of one request, or of one load.
//!
//! A program that embeds this crate has no such child unless it makes one: with [`Renderer::InProcess`], the default,
//! do not load a model whose template you would not run. To make one, call [`serve_renderings`] in a process that has
//! set its limits, and name that process's command in [`Renderer::Child`].
//!
//! A system call filter around the child would add little: the interpreter is Rust without system calls of its own, and
//! what it does wrong is to use too much. The child inherits two pipes, may open nothing and write no file.
//!
//! **Special tokens in messages stay text** (`marks.rs`). [`Tokenizer::encode_chat`] makes the template's `<|end|>` a
//! token, and a user's `<|end|>` five ordinary ones; one text with both kinds is never tokenised together.

mod child;
mod conversation;
mod jinja;
mod marks;
mod wire;

use std::ffi::OsString;

use checkpoint::{Checkpoint, LoadError};
use serde::Deserialize;
use serde_json::{Map, Value};

pub use self::child::serve as serve_renderings;
use self::child::{Pool, Unready};
pub use self::conversation::{
    ChatMessage, MAX_INPUT_BYTES, MAX_KWARGS_BYTES, MAX_NAME_BYTES, MAX_OUTPUT_BYTES, MAX_RENDER_MEMORY,
    MAX_RENDER_TIME, MAX_RENDER_WAIT, MAX_SOURCE_BYTES, MAX_VALUE_DEPTH, MAX_VALUES, RENDER_STACK_BYTES, TemplateError,
    TemplateOptions,
};
use self::conversation::{Conversation, Sources, check_limits};
use self::jinja::{Compiled, NotATemplate, PROBLEMS};
use self::marks::{Marks, Words};
use crate::specials::{CONFIG, Config, MAX_CONFIG_BYTES, SPECIAL_TOKENS};
use crate::tokenizer::Tokenizer;

/// The file of a template that is not part of the tokenizer's settings.
const TEMPLATE: &str = "chat_template.jinja";

/// Stack of the thread that compiles or renders in this process: room for an expression as deep as [`MAX_SOURCE_BYTES`]
/// allows, and for dropping a list as deep as the interpreter's steps can build. Pages that are not touched cost
/// nothing.
const STACK_BYTES: usize = 512 << 20;

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

/// A template other than the model's own, and what it is told.
#[derive(Clone, Debug, Default)]
pub struct TemplateSettings {
    /// Where it is run.
    pub renderer: Renderer,
    /// In place of the model's own.
    pub source: Option<String>,
    /// Variables of each conversation that has none of the name.
    pub kwargs: Map<String, Value>,
}

/// The model's own template, run there.
impl From<Renderer> for TemplateSettings {
    fn from(renderer: Renderer) -> TemplateSettings {
        TemplateSettings { renderer, ..TemplateSettings::default() }
    }
}

/// A model's template, compiled. Immutable; share it behind an `Arc`.
#[derive(Debug)]
pub struct ChatTemplate {
    sources: Sources,
    words: Words,
    engine: Engine,
    settings: TemplateSettings,
}

#[derive(Debug)]
enum Engine {
    Here(Compiled),
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
    /// Reads `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`, to be run in this process. `None`
    /// when the model has neither.
    pub fn load(checkpoint: &Checkpoint) -> Result<Option<ChatTemplate>, LoadError> {
        ChatTemplate::load_with(checkpoint, &TemplateSettings::default())
    }

    /// [`load`](Self::load) with settings. With [`Renderer::Child`] a first child is started.
    pub fn load_with(checkpoint: &Checkpoint, settings: &TemplateSettings) -> Result<Option<ChatTemplate>, LoadError> {
        let config = checkpoint.read_text_capped(CONFIG, MAX_CONFIG_BYTES)?;
        let specials = checkpoint.read_text_capped(SPECIAL_TOKENS, MAX_CONFIG_BYTES)?;
        let source = checkpoint.read_text_capped(TEMPLATE, MAX_SOURCE_BYTES as u64)?;
        let source = settings.source.as_deref().or(source.as_deref());
        ChatTemplate::from_files([source, config.as_deref(), specials.as_deref()], settings)
            .map_err(|error| checkpoint.in_its_words(error))
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

    /// The same model's, with another text. Costs what compiling it costs, and a process where the model's has one.
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
        ChatTemplate::compiled(file, Sources::new(templates, names), settings).map(Some)
    }

    fn compiled(file: &str, sources: Sources, settings: &TemplateSettings) -> Result<ChatTemplate, LoadError> {
        let wrong =
            |error: NotATemplate| LoadError::field(file, format!("chat_template line {}", error.line), error.problem);
        let failed = |error: TemplateError| LoadError::field(file, "chat_template", error);
        let engine = match &settings.renderer {
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
        Ok(ChatTemplate { sources, words, engine, settings: settings.clone() })
    }

    /// The texts of the model's templates, one after the other.
    pub fn source(&self) -> String {
        self.sources.templates.iter().map(|(_, source)| source.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// Variables of each conversation that has none of the name.
    pub fn variables(&self) -> &Map<String, Value> {
        &self.settings.kwargs
    }

    /// The prompt as text.
    pub fn render(&self, messages: &[ChatMessage], options: &TemplateOptions) -> Result<String, TemplateError> {
        let options = &self.told(options);
        check_limits(messages, options)?;
        self.render_marked(Conversation { messages, options, marks: &[] })
    }

    /// The options of a conversation, with the variables that it leaves to the settings.
    fn told(&self, options: &TemplateOptions) -> TemplateOptions {
        let mut kwargs = self.settings.kwargs.clone();
        kwargs.extend(options.kwargs.clone());
        TemplateOptions { kwargs, ..*options }
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
        let options = &template.told(options);
        check_limits(messages, options)?;
        let marks = match self.special_texts() {
            Some(specials) => Marks::for_conversation(specials, &template.words, messages, options)?,
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

fn too_long(file: &str, name: &str, source: &str) -> LoadError {
    let problem = format!("template {name:.20?} has {} bytes; at most {MAX_SOURCE_BYTES}", source.len());
    LoadError::field(file, "chat_template", problem)
}

/// The prompt up to the end of the last message's text, if that is to be continued. Templates trim texts, so white space
/// at its end is no part of what is looked for.
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

/// Runs `work` on a thread with [`STACK_BYTES`]; a panic in it is its own failure.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("template".to_string()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, work).map_err(|_| TemplateError::NoThread)?;
        let bug = TemplateError::Failed { line: 0, problem: PROBLEMS[PROBLEMS.len() - 1] };
        thread.join().map_err(|_| bug)
    })
}
