//! Messages to a prompt, by the Jinja template that comes with the model.
//!
//! ```text
//! [{role: user, content: "hi"}] ──template──► "<|user|>\nhi<|end|>\n<|assistant|>\n" ──Tokenizer──► ids
//! ```
//!
//! The environment is the one of `transformers.apply_chat_template`: `trim_blocks` and `lstrip_blocks`, loop controls,
//! Python's methods on strings, lists and maps, `tojson` as `json.dumps` writes it, `raise_exception`, `strftime_now`, and
//! `{% generation %}` as a tag without effect.
//!
//! **A template is a program from a stranger**, run on text from strangers. It reaches no object of ours; its source, the
//! depth of its calls, the instructions it runs and the bytes it writes are bounded; it runs on a thread of its own, with
//! a stack that the deepest expression within these bounds cannot exhaust. Not bounded is the memory that it holds while
//! it runs: joining strings in a loop doubles them cheaply, so do not serve a model whose template you would not run.
//!
//! **Special tokens in messages stay text.** [`Tokenizer::encode_chat`] makes the template's `<|end|>` a token, and a
//! user's `<|end|>` five ordinary ones. Where a message holds the text of a special token, its first character is swapped
//! for an unused private-use character before the template runs; the rendered text is split at special tokens, and the
//! characters are swapped back in what is between. One text with both kinds is never tokenised together.

use std::collections::BTreeSet;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::checkpoint::{Checkpoint, LoadError};
use crate::tokenizer::{CONFIG, Config, MAX_CONFIG_BYTES, SPECIAL_TOKENS, SpecialNames, TextError, Tokenizer};

/// The file of a template that is not part of the tokenizer's settings.
const TEMPLATE: &str = "chat_template.jinja";

/// Largest source of a template; the longest in use are a tenth of it.
pub const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Most bytes that a template may write.
pub const MAX_OUTPUT_BYTES: usize = 32 << 20;
/// Most instructions that one rendering may run: a thousand messages take about 100,000.
const MAX_INSTRUCTIONS: u64 = 4_000_000;
/// Deepest nesting of macro calls, loops and blocks.
const MAX_DEPTH: usize = 100;
/// Deepest value that `tojson` writes.
const MAX_JSON_DEPTH: usize = 128;
/// Longest text of `raise_exception` that is passed on.
const MAX_REFUSAL_CHARS: usize = 300;
/// Stack of the thread that compiles or renders: room for an expression as deep as [`MAX_SOURCE_BYTES`] allows, and for
/// dropping a list as deep as [`MAX_INSTRUCTIONS`] can build. Pages that are not touched cost nothing.
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

/// Why messages could not be made a prompt. Texts are fixed, except the template's own in [`TemplateError::Refused`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template called `raise_exception`: it does not take such a conversation.
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
    /// No thread could be started.
    #[error("the system has no thread left to render the chat template")]
    NoThread,
    /// The prompt could not be encoded.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// A compiled template. Immutable; share it behind an `Arc`.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    names: SpecialNames,
    /// A template of its own for conversations with tools.
    has_tool_use: bool,
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

/// What `raise_exception` was called with; travels as the source of a template error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Reads `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`. `None` when the model has neither.
    pub fn load(checkpoint: &Checkpoint) -> Result<Option<ChatTemplate>, LoadError> {
        let config = checkpoint.read_text_capped(CONFIG, MAX_CONFIG_BYTES)?;
        let specials = checkpoint.read_text_capped(SPECIAL_TOKENS, MAX_CONFIG_BYTES)?;
        let source = checkpoint.read_text_capped(TEMPLATE, MAX_SOURCE_BYTES as u64)?;
        let template = ChatTemplate::from_sources(source.as_deref(), config.as_deref(), specials.as_deref());
        template.map_err(|error| checkpoint.in_its_words(error))
    }

    /// [`load`](Self::load) from the text of the files `chat_template.jinja`, `tokenizer_config.json` and
    /// `special_tokens_map.json`.
    pub fn from_sources(
        source: Option<&str>,
        config: Option<&str>,
        special_tokens_map: Option<&str>,
    ) -> Result<Option<ChatTemplate>, LoadError> {
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
        let environment = on_deep_stack(|| compile(file, &templates));
        let environment = environment.unwrap_or_else(|error| Err(LoadError::field(file, "chat_template", error)))?;
        let has_tool_use = templates.iter().any(|(name, _)| name == "tool_use");
        Ok(Some(ChatTemplate { environment, names, has_tool_use }))
    }

    /// The prompt as text.
    pub fn render(&self, messages: &[ChatMessage], options: &TemplateOptions) -> Result<String, TemplateError> {
        on_deep_stack(|| self.render_here(messages, options))?
    }

    fn render_here(&self, messages: &[ChatMessage], options: &TemplateOptions) -> Result<String, TemplateError> {
        let tools = options.kwargs.get("tools").is_some_and(|tools| !tools.is_null());
        let name = if tools && self.has_tool_use { "tool_use" } else { "default" };
        let template = self.environment.get_template(name).map_err(failure)?;
        let mut output = Bounded { bytes: Vec::new(), full: false };
        let rendered = template.render_captured_to(self.context(messages, options), &mut output).map(drop);
        if output.full {
            return Err(TemplateError::TooLong);
        }
        rendered.map_err(failure)?;
        Ok(String::from_utf8(output.bytes).expect("a template writes text"))
    }

    fn context(&self, messages: &[ChatMessage], options: &TemplateOptions) -> Value {
        // `tools` and `documents` are always defined, as in transformers.
        let mut variables = vec![("tools".to_string(), Value::from(())), ("documents".to_string(), Value::from(()))];
        variables.extend(options.kwargs.iter().map(|(name, value)| (name.clone(), to_value(value))));
        let names = &self.names;
        for (name, token) in
            [("bos_token", &names.bos), ("eos_token", &names.eos), ("unk_token", &names.unk), ("pad_token", &names.pad)]
        {
            if let Some(token) = token {
                variables.push((name.to_string(), Value::from(token.as_str())));
            }
        }
        if let Some(now) = options.now {
            let strftime = move |format: &str| strftime(now, format);
            variables.push(("strftime_now".to_string(), Value::from_function(strftime)));
        }
        variables.push(("add_generation_prompt".to_string(), Value::from(options.add_generation_prompt)));
        variables.push(("messages".to_string(), messages.iter().map(message_value).collect::<Vec<Value>>().into()));
        Value::from_pairs(variables)
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
        let Some(marks) = Marks::for_conversation(self, messages, options) else {
            return Ok(self.encode(&template.render(messages, options)?, false)?);
        };
        let messages: Vec<ChatMessage> = messages.iter().map(|message| marks.message(message)).collect();
        let kwargs = marks.map(&options.kwargs);
        let rendered = template.render(&messages, &TemplateOptions { kwargs, ..*options })?;
        Ok(self.encode_restoring(&rendered, &marks.restore)?)
    }
}

/// Private-use characters that stand for the first characters of special tokens.
struct Marks<'a> {
    special_texts: &'a aho_corasick::AhoCorasick,
    /// `(mark, original)`.
    restore: Vec<(char, char)>,
}

impl<'a> Marks<'a> {
    /// `None` when no text of the conversation holds a special token: nearly always.
    fn for_conversation(
        tokenizer: &'a Tokenizer,
        messages: &[ChatMessage],
        options: &TemplateOptions,
    ) -> Option<Marks<'a>> {
        let special_texts = tokenizer.special_texts()?;
        let (mut originals, mut taken) = (BTreeSet::new(), BTreeSet::new());
        each_text(messages, options, &mut |text| {
            let starts = special_texts.find_overlapping_iter(text).map(|found| found.start());
            originals.extend(starts.filter_map(|start| text[start..].chars().next()));
        });
        if originals.is_empty() {
            return None;
        }
        each_text(messages, options, &mut |text| taken.extend(text.chars().filter(|&c| c >= '\u{F0000}')));
        // 131,068 characters of planes 15 and 16; a conversation that uses all of them is left without marks, and its
        // special tokens stay unbroken only then.
        let unused = ('\u{F0000}'..='\u{FFFFD}').chain('\u{100000}'..='\u{10FFFD}').filter(|c| !taken.contains(c));
        Some(Marks { special_texts, restore: unused.zip(originals).collect() })
    }

    /// `text` with the first character of every special token in it swapped for its mark.
    fn text(&self, text: &str) -> String {
        let starts: BTreeSet<usize> =
            self.special_texts.find_overlapping_iter(text).map(|found| found.start()).collect();
        let mark = |(at, c): (usize, char)| match starts.contains(&at) {
            true => self.restore.iter().find(|(_, original)| *original == c).map_or(c, |(mark, _)| *mark),
            false => c,
        };
        if starts.is_empty() { text.to_string() } else { text.char_indices().map(mark).collect() }
    }

    fn json(&self, value: &Json) -> Json {
        match value {
            Json::String(text) => Json::String(self.text(text)),
            Json::Array(items) => items.iter().map(|item| self.json(item)).collect(),
            Json::Object(map) => Json::Object(self.map(map)),
            other => other.clone(),
        }
    }

    fn map(&self, map: &Map<String, Json>) -> Map<String, Json> {
        map.iter().map(|(key, value)| (self.text(key), self.json(value))).collect()
    }

    fn message(&self, message: &ChatMessage) -> ChatMessage {
        ChatMessage {
            role: self.text(&message.role),
            content: message.content.as_deref().map(|content| self.text(content)),
            extra: self.map(&message.extra),
        }
    }
}

/// Calls `see` with every text that a template can read from the request.
fn each_text(messages: &[ChatMessage], options: &TemplateOptions, see: &mut dyn FnMut(&str)) {
    fn in_map(map: &Map<String, Json>, see: &mut dyn FnMut(&str)) {
        for (key, value) in map {
            see(key);
            in_json(value, see);
        }
    }
    fn in_json(value: &Json, see: &mut dyn FnMut(&str)) {
        match value {
            Json::String(text) => see(text),
            Json::Array(items) => items.iter().for_each(|item| in_json(item, see)),
            Json::Object(map) => in_map(map, see),
            _ => {}
        }
    }
    for message in messages {
        see(&message.role);
        see(message.content.as_deref().unwrap_or_default());
        in_map(&message.extra, see);
    }
    in_map(&options.kwargs, see);
}

/// A writer that refuses to grow past [`MAX_OUTPUT_BYTES`].
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.full |= bytes.len() > MAX_OUTPUT_BYTES - self.bytes.len();
        if self.full {
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `work` on a thread with [`STACK_BYTES`]; a panic in it is its own failure.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("template".to_string()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, work).map_err(|_| TemplateError::NoThread)?;
        thread.join().map_err(|_| TemplateError::Failed { line: 0, problem: "internal error of the template engine" })
    })
}

/// The environment of transformers, with bounds.
fn compile(file: &str, templates: &[(String, String)]) -> Result<Environment<'static>, LoadError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the default delimiters"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.set_debug(false);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let message = message.to_string().chars().take(MAX_REFUSAL_CHARS).collect();
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
    });
    environment.add_filter("tojson", to_json);
    // Python can iterate and index strings and maps, and its Jinja says so; templates rely on it to tell lists from text.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Seq | Iterable | String | Map | Undefined)
    });
    for (name, source) in templates {
        environment.add_template_owned(name.clone(), without_generation_tags(source)).map_err(|error| {
            let line = error.line().unwrap_or(0);
            let problem =
                error.detail().unwrap_or("not a template").chars().take(MAX_REFUSAL_CHARS).collect::<String>();
            LoadError::field(file, format!("chat_template line {line}"), problem)
        })?;
    }
    Ok(environment)
}

/// `{% generation %}` marks the assistant's tokens for training; here it becomes a block without effect.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        result.push_str(before);
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[2..end];
        match inner.trim_matches(|c: char| c.is_ascii_whitespace() || c == '-' || c == '+') {
            "generation" => result.push_str(&format!("{{%{}%}}", inner.replace("generation", "if true"))),
            "endgeneration" => result.push_str(&format!("{{%{}%}}", inner.replace("endgeneration", "endif"))),
            _ => result.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    result + rest
}

fn failure(error: Error) -> TemplateError {
    let mut source: Option<&dyn std::error::Error> = Some(&error);
    while let Some(current) = source {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TemplateError::Refused(message.clone());
        }
        source = current.source();
    }
    let problem = match error.kind() {
        ErrorKind::OutOfFuel => return TemplateError::TooManySteps,
        ErrorKind::UndefinedError => "a value is not defined",
        ErrorKind::UnknownFilter => "unknown filter",
        ErrorKind::UnknownTest => "unknown test",
        ErrorKind::UnknownFunction => "unknown function",
        ErrorKind::UnknownMethod => "unknown method",
        ErrorKind::TooManyArguments | ErrorKind::MissingArgument => "wrong number of arguments",
        ErrorKind::TemplateNotFound | ErrorKind::BadInclude => "includes are not supported",
        ErrorKind::BadSerialization => "a value cannot be written as JSON",
        ErrorKind::CannotUnpack => "a value cannot be unpacked",
        ErrorKind::NonKey | ErrorKind::NonPrimitive => "a value of the wrong kind",
        ErrorKind::InvalidOperation => "invalid operation",
        _ => "error in the template",
    };
    TemplateError::Failed { line: error.line().unwrap_or(0), problem }
}

fn message_value(message: &ChatMessage) -> Value {
    let own = [("role", Value::from(message.role.as_str())), ("content", Value::from(message.content.as_deref()))];
    let extra = message.extra.iter().filter(|(key, _)| key.as_str() != "role" && key.as_str() != "content");
    let extra = extra.map(|(key, value)| (key.as_str(), to_value(value)));
    Value::from_pairs(own.into_iter().chain(extra).map(|(key, value)| (key.to_string(), value)))
}

fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(to_value).collect::<Vec<Value>>().into(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, value)| (key.clone(), to_value(value)))),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(value), _, _) => Value::from(value),
            (_, Some(value), _) => Value::from(value),
            (_, _, value) => Value::from(value),
        },
    }
}

/// `json.dumps(value, ensure_ascii=.., indent=.., separators=.., sort_keys=..)`; `ensure_ascii` is off by default, as
/// transformers sets it.
fn to_json(value: &Value, ensure_ascii: Option<bool>, options: Kwargs) -> Result<String, Error> {
    let ensure_ascii = ensure_ascii.or(options.get("ensure_ascii")?).unwrap_or(false);
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => text.to_string(),
            (None, Some(width)) if width <= 64 => " ".repeat(width),
            _ => return Err(Error::new(ErrorKind::BadSerialization, "indent")),
        }),
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::BadSerialization, "separators")),
        None => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
    };
    let mut json =
        JsonWriter { ensure_ascii, indent, item, key, sort_keys: sort_keys.unwrap_or(false), text: String::new() };
    json.value(value, 0)?;
    Ok(json.text)
}

/// Python's `json.dumps`.
struct JsonWriter {
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
    text: String,
}

impl JsonWriter {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_JSON_DEPTH || self.text.len() > MAX_OUTPUT_BYTES {
            return Err(Error::new(ErrorKind::BadSerialization, "too deep or too long"));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.text.push_str(&value.to_string()),
            ValueKind::Number => {
                let number = f64::try_from(value.clone())?;
                self.text.push_str(&python_float(number));
            }
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', &items, depth, |json, item| json.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    let name = match key.kind() {
                        ValueKind::String => key.as_str().unwrap_or_default().to_string(),
                        ValueKind::None => "null".to_string(),
                        ValueKind::Bool => key.to_string().to_lowercase(),
                        ValueKind::Number => key.to_string(),
                        _ => return Err(Error::new(ErrorKind::BadSerialization, "key")),
                    };
                    pairs.push((name, value.get_item(&key)?));
                }
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.list('{', '}', &pairs, depth, |json, (name, item)| {
                    json.string(name);
                    json.text.push_str(&json.key.clone());
                    json.value(item, depth + 1)
                })?;
            }
            _ => return Err(Error::new(ErrorKind::BadSerialization, "kind")),
        }
        Ok(())
    }

    fn list<T>(
        &mut self,
        open: char,
        close: char,
        items: &[T],
        depth: usize,
        mut write: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.text.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.text.push_str(&self.item.clone());
            }
            self.new_line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.new_line(depth);
        }
        self.text.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            self.text.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for c in text.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{C}' => self.text.push_str("\\f"),
                c if u32::from(c) < 0x20 || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.text.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}

/// Python's `repr` of a float: Rust's, with a sign and at least two digits in the exponent.
fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let text = format!("{value:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

/// C's `strftime` for the fields that templates use, at `now` seconds since 1970, in UTC and English.
fn strftime(now: i64, format: &str) -> Result<String, Error> {
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let (days, seconds) = (now.div_euclid(86_400), now.rem_euclid(86_400));
    let (year, month, day) = civil_date(days);
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => text.push_str(&year.to_string()),
            Some('y') => text.push_str(&format!("{:02}", year.rem_euclid(100))),
            Some('m') => text.push_str(&format!("{month:02}")),
            Some('d') => text.push_str(&format!("{day:02}")),
            Some('e') => text.push_str(&format!("{day:2}")),
            Some('B') => text.push_str(month_name),
            Some('b' | 'h') => text.push_str(&month_name[..3]),
            Some('A') => text.push_str(weekday),
            Some('a') => text.push_str(&weekday[..3]),
            Some('H') => text.push_str(&format!("{hour:02}")),
            Some('I') => text.push_str(&format!("{:02}", (hour + 11) % 12 + 1)),
            Some('M') => text.push_str(&format!("{minute:02}")),
            Some('S') => text.push_str(&format!("{second:02}")),
            Some('p') => text.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => text.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => text.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('j') => text.push_str(&format!("{:03}", days - days_to(year, 1, 1) + 1)),
            Some('%') => text.push('%'),
            // `%-d`: without the leading zero.
            Some('-') => match chars.next() {
                Some('d') => text.push_str(&day.to_string()),
                Some('m') => text.push_str(&month.to_string()),
                Some('H') => text.push_str(&hour.to_string()),
                Some('I') => text.push_str(&((hour + 11) % 12 + 1).to_string()),
                _ => return Err(Error::new(ErrorKind::InvalidOperation, "strftime")),
            },
            _ => return Err(Error::new(ErrorKind::InvalidOperation, "strftime")),
        }
    }
    Ok(text)
}

/// Year, month and day of a number of days since 1970 (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468; // from March 1st of year 0
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of [`civil_date`].
fn days_to(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}
