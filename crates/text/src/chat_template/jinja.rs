//! Compiles and runs templates in this process, in the Jinja environment of `transformers.apply_chat_template`.
//!
//! ```text
//! sources ──Compiled::new──► bytecode ──render(conversation)──► text
//! ```
//!
//! `trim_blocks` and `lstrip_blocks`, loop controls, Python's methods on strings, lists and maps, `tojson` as
//! `json.dumps` writes it, `raise_exception`, `strftime_now`, and `{% generation %}` as a tag without effect.
//!
//! A template reaches none of our objects; its source length, call depth, instructions and output bytes are bounded
//! here. **Its memory, its stack and the work of one built-in filter are not**: `child.rs` runs this module in a
//! process with limits.

use std::io;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use serde_json::Value as Json;

use super::conversation::{ChatMessage, Conversation, MAX_OUTPUT_BYTES, Sources, TemplateError};

/// Maximum instructions of one rendering: a thousand messages take about 100,000.
const MAX_INSTRUCTIONS: u64 = 4_000_000;
/// Maximum nesting of macro calls, loops and blocks.
const MAX_DEPTH: usize = 100;
/// Maximum depth of a value for `tojson`.
const MAX_JSON_DEPTH: usize = 128;
/// Maximum characters of a template's message, or of an error about it.
const MAX_REFUSAL_CHARS: usize = 300;
/// The variable that passes the marks to `tojson`: no template can name it, and no caller can set it.
const MARKS: &str = "\0marks";

/// Problems for [`TemplateError::Failed`]. A child process sends the index.
pub(super) const PROBLEMS: [&str; 13] = [
    "error in the template",
    "a value is not defined",
    "unknown filter",
    "unknown test",
    "unknown function",
    "unknown method",
    "wrong number of arguments",
    "includes are not supported",
    "a value cannot be written as JSON",
    "a value cannot be unpacked",
    "a value has the wrong type",
    "invalid operation",
    "internal error of the template engine",
];

/// Error of compiling a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidTemplate {
    /// Line of the source; 0 if unknown.
    pub(super) line: usize,
    /// One line of printable text.
    pub(super) problem: String,
}

/// The compiled templates of a model.
#[derive(Debug)]
pub(super) struct Compiled {
    environment: Environment<'static>,
}

/// The argument of `raise_exception`, as the source of a template error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl Compiled {
    /// Parses the templates. Recursive: needs a deep stack.
    pub(super) fn new(sources: &Sources) -> Result<Compiled, InvalidTemplate> {
        let mut environment = environment();
        for (name, source) in &sources.templates {
            environment.add_template_owned(name.clone(), without_generation_tags(source)).map_err(|error| {
                let problem = printable(error.detail().unwrap_or("invalid template"));
                InvalidTemplate { line: error.line().unwrap_or(0), problem }
            })?;
        }
        Ok(Compiled { environment })
    }

    /// The prompt as text. Recursive: needs a deep stack.
    pub(super) fn render(&self, sources: &Sources, conversation: Conversation<'_>) -> Result<String, TemplateError> {
        let template = self.environment.get_template(sources.template_for(conversation.options)).map_err(failure)?;
        let mut output = Bounded { bytes: Vec::new(), full: false };
        let rendered = template.render_captured_to(context(sources, conversation), &mut output).map(drop);
        if output.full {
            return Err(TemplateError::TooLong);
        }
        rendered.map_err(failure)?;
        Ok(String::from_utf8(output.bytes).expect("a template writes text"))
    }
}

/// Makes one line of printable text of a template's message: it may contain untrusted text, and is shown in logs,
/// terminals and other programs' messages.
pub(super) fn printable(text: &str) -> String {
    let shown = |c: char| {
        if c.is_control() || matches!(c, '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}') { ' ' } else { c }
    };
    text.chars().take(MAX_REFUSAL_CHARS).map(shown).collect()
}

fn context(sources: &Sources, conversation: Conversation<'_>) -> Value {
    let Conversation { messages, options, marks } = conversation;
    // `tools` and `documents` are always defined, as in transformers.
    let mut variables = vec![("tools".to_string(), Value::from(())), ("documents".to_string(), Value::from(()))];
    variables.extend(options.kwargs.iter().map(|(name, value)| (name.clone(), to_value(value))));
    let names = &sources.names;
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
    let marks: String = marks.iter().flat_map(|&(mark, original)| [mark, original]).collect();
    variables.push((MARKS.to_string(), Value::from(marks)));
    Value::from_pairs(variables)
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

/// The environment of transformers, with bounds.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the default delimiters"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.set_debug(false);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let message = Raised(printable(&message.to_string()));
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(message))
    });
    environment.add_filter("tojson", to_json);
    // In Python's Jinja, strings and maps are sequences and iterable; templates rely on it to distinguish lists from
    // text.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Seq | Iterable | String | Map | Undefined)
    });
    environment
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
        ErrorKind::UndefinedError => 1,
        ErrorKind::UnknownFilter => 2,
        ErrorKind::UnknownTest => 3,
        ErrorKind::UnknownFunction => 4,
        ErrorKind::UnknownMethod => 5,
        ErrorKind::TooManyArguments | ErrorKind::MissingArgument => 6,
        ErrorKind::TemplateNotFound | ErrorKind::BadInclude => 7,
        ErrorKind::BadSerialization => 8,
        ErrorKind::CannotUnpack => 9,
        ErrorKind::NonKey | ErrorKind::NonPrimitive => 10,
        ErrorKind::InvalidOperation => 11,
        _ => 0,
    };
    TemplateError::Failed { line: error.line().unwrap_or(0), problem: PROBLEMS[problem] }
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
fn to_json(state: &State, value: &Value, ensure_ascii: Option<bool>, options: Kwargs) -> Result<String, Error> {
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
    let marks = match state.lookup(MARKS) {
        Some(marks) if ensure_ascii => marks.as_str().unwrap_or_default().chars().step_by(2).collect(),
        _ => Vec::new(),
    };
    let sort_keys = sort_keys.unwrap_or(false);
    let mut json = JsonWriter { ensure_ascii, marks, indent, item, key, sort_keys, text: String::new() };
    json.value(value, 0)?;
    Ok(json.text)
}

/// Python's `json.dumps`.
struct JsonWriter {
    ensure_ascii: bool,
    /// Marks, which are not escaped.
    marks: Vec<char>,
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
                c if self.marks.contains(&c) => self.text.push(c),
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

/// C's `strftime`, at `now` seconds since 1970, in UTC and English.
fn strftime(now: i64, format: &str) -> Result<String, Error> {
    /// Limits the output too: a field may be padded to 255 characters.
    const MAX_FORMAT_BYTES: usize = 256;
    let refused = || Error::new(ErrorKind::InvalidOperation, "strftime");
    let moment = Timestamp::from_second(now).map_err(|_| refused())?.to_zoned(TimeZone::UTC);
    if format.len() > MAX_FORMAT_BYTES {
        return Err(refused());
    }
    jiff::fmt::strtime::format(format, &moment).map_err(|_| refused())
}
