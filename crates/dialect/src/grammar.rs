//! The grammar of an answer with requested calls, for llguidance.
//!
//! ```text
//! Required, Named    start: (thought)? calls              one call after the other, nothing else
//! Or                 start: (thought)? (calls | form)     calls, or an answer of that form
//! Auto               start: (thought)? text (call text)*  text is free up to a mark, behind which a call must follow
//! Auto, one call     start: (thought)? text call?         which ends the answer
//! ```
//! Marks are written as text. If the vocabulary has a special token for a mark, the token must take part with its text,
//! as the parser sees it. Parameters come in schema order. Where a family writes no JSON, what its expressions cannot
//! hold an answer to is named by [`Dialect::open_places`].

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::envelope::Envelope;
use crate::family::{Syntax, Thoughts};
use crate::gemma::Gemma;
use crate::harmony;
use crate::json::quoted;
use crate::named::Named;
use crate::python::Python;
use crate::schema::{Kinds, MAX_KEY_BYTES, choices, follow};
use crate::tags::Tags;
use crate::{Dialect, Tool};

/// White space between parts of JSON: as models write it, but bounded.
const JSON_SPACES: &str = r" |\n{1,2}[ \t]{0,40}";
/// Between marks, and around the parts of an envelope.
const SPACES: &str = r"[ \n]{1,4}";
/// Before a thought, and between it and an answer: as in chat templates. Bounded, because a model that has begun to
/// write line breaks may continue until its token budget is used up.
const LINES: &str = r"\n{1,2}";
/// Inside the beginning of an unmarked call: as written, and as read.
const GAP: &str = r"[ \n]{0,4}";
const ANY_GAP: &str = r"[ \n\t\r]*";
/// A parameter's name in Python if a tool's schema lists none.
const KEY: &str = "[A-Za-z_][A-Za-z0-9_]{0,63}";
/// In formats without quotes: headers have names, too.
const ANY_KEY: &str = "[A-Za-z0-9_$][A-Za-z0-9_$.-]{0,63}";
const ANY_TEXT: &str = "(?s:.*)";

/// Required calls of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<'a> {
    /// None: but calls of strict tools must follow their schema.
    Auto,
    /// At least one.
    Required,
    /// A call of this tool.
    Named(&'a str),
    /// At least one, or else an answer of this form.
    Or(Form<'a>),
}

/// Form of an answer without calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form<'a> {
    /// A Lark expression.
    pub rule: &'a str,
    /// Whether leading white space may be part of it. Then nothing separates it from a thought.
    pub is_exact: bool,
}

impl Dialect {
    /// The grammar of an answer after this prompt end, in llguidance's Lark
    /// (<https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md>). `parallel`: whether more than one call
    /// is allowed; if not, the first one ends the answer.
    ///
    /// `None` if there is nothing to constrain: no tool-call format, no such tool, or `Auto` without strict tools where
    /// several calls are allowed.
    pub fn grammar(&self, tools: &[Tool], choice: Choice<'_>, parallel: bool, prompt_end: &str) -> Option<String> {
        self.lark(tools, choice, parallel, prompt_end).map(|lark| lark.text)
    }

    /// Whether arguments are one JSON object: what compiles by itself does so in the grammar of calls.
    pub fn calls_are_json(&self) -> bool {
        !matches!(self.calls, Some(crate::Calls(Syntax::Tags(_) | Syntax::Python(_) | Syntax::Gemma(_))))
    }

    /// Places of a tool's schema that no grammar of this format holds a call to, in the schema's own words
    /// (`.properties.n.pattern`). The schema has no notes. None in formats whose arguments are JSON.
    pub fn open_places(&self, tool: &Tool) -> Vec<String> {
        let lark = self.lark(std::slice::from_ref(tool), Choice::Required, false, "");
        lark.map(|lark| lark.open).unwrap_or_default()
    }

    fn lark(&self, tools: &[Tool], choice: Choice<'_>, parallel: bool, prompt_end: &str) -> Option<Lark> {
        let calls = self.calls?;
        let tools: Vec<&Tool> = match choice {
            Choice::Named(name) => tools.iter().filter(|tool| tool.name == name).collect(),
            _ => tools.iter().collect(),
        };
        let is_auto = choice == Choice::Auto;
        let form = if let Choice::Or(form) = choice { Some(form) } else { None };
        if tools.is_empty() || is_auto && parallel && !tools.iter().any(|tool| tool.strict) {
            return None;
        }
        let is_free = |tool: &Tool| (is_auto || form.is_some()) && !tool.strict;
        let mut lark = Lark { parallel: parallel && !matches!(choice, Choice::Named(_)), ..Lark::default() };
        let shape = match calls.0 {
            Syntax::Envelope(form) => lark.envelope(form, &tools, is_free),
            Syntax::Mistral(form) => lark.mistral(form, &tools, is_free),
            Syntax::Named(form) => lark.named(form, &tools, is_free),
            Syntax::Tags(form) => lark.tags(form, &tools, is_free),
            Syntax::Python(form) => lark.python(form, &tools, is_free),
            Syntax::Gemma(form) => lark.gemma(form, &tools, is_free),
            Syntax::Harmony => {
                let calls = lark.harmony(&tools, is_free, is_auto);
                let start = match is_auto {
                    true => calls,
                    false => {
                        let final_form = form.map(|form| format!(" | {FINAL} {}", form.rule)).unwrap_or_default();
                        format!("{} ({calls}{final_form})", self.harmony_thought(&mut lark, prompt_end))
                    }
                };
                lark.line("start", &start);
                return Some(lark);
            }
        };
        let heads = self.heads(&mut lark, prompt_end);
        let answer = if is_auto { lark.auto(&shape, self.thoughts.map(Thoughts::opens)) } else { shape.calls };
        let mut start = starts(&heads, Some(&answer), form);
        if is_auto && !heads.iter().any(String::is_empty) {
            // An unconstrained answer may also end in a thought.
            start.push_str(" | TEXT");
        }
        lark.line("start", &start);
        lark.line("SP", &format!("/{SPACES}/"));
        lark.line("LINES", &format!("/{LINES}/"));
        Some(lark)
    }

    /// The grammar of an answer of this form after any thought. `None` if nothing can precede it.
    pub fn behind_thought(&self, prompt_end: &str, form: Form<'_>) -> Option<String> {
        let mut lark = Lark::default();
        let start = if self.thoughts?.is_harmony() {
            // Its text has its own mark.
            format!("{} {FINAL} {}", self.harmony_thought(&mut lark, prompt_end), form.rule)
        } else {
            starts(&self.heads(&mut lark, prompt_end), None, Some(form))
        };
        lark.line("start", &start);
        lark.line("LINES", &format!("/{LINES}/"));
        Some(lark.text)
    }

    /// Expressions of the thoughts that may begin an answer; an empty one if it may begin without.
    fn heads(&self, lark: &mut Lark, prompt_end: &str) -> Vec<String> {
        let Some(thoughts) = self.thoughts else { return vec![String::new()] };
        match (self.opens_thought(prompt_end), self.is_thoughtless) {
            (true, _) => vec![lark.until(thoughts.closes())],
            (false, true) => vec![String::new()],
            (false, false) => {
                let open = format!("/\\n{{0,2}}{}/", any_of(thoughts.opens().iter().copied()));
                vec![String::new(), format!("{open} {}", lark.until(thoughts.closes()))]
            }
        }
    }

    /// The same for harmony, as one expression.
    fn harmony_thought(&self, lark: &mut Lark, prompt_end: &str) -> String {
        // Any other mark ends it too.
        let others =
            any_of(harmony::MARKS.into_iter().filter(|mark| ![harmony::ENDS[0], harmony::CONSTRAIN].contains(mark)));
        let body = format!("/{ANY_TEXT}{}/ & ~/{ANY_TEXT}{others}{ANY_TEXT}/", escaped(harmony::ENDS[0]));
        let thought = format!("{} \"<|start|>assistant\"", lark.terminal("THOUGHT", &body));
        match (self.opens_thought(prompt_end), self.is_thoughtless) {
            (true, _) => thought,
            (false, true) => String::new(),
            (false, false) => format!("({} {thought})?", quoted(harmony::THOUGHT)),
        }
    }
}

/// The header of harmony's text.
const FINAL: &str = "\"<|channel|>final<|message|>\"";

/// All beginnings, each with all continuations.
fn starts(heads: &[String], answer: Option<&str>, form: Option<Form<'_>>) -> String {
    let mut all = Vec::new();
    for head in heads {
        let lines = if head.is_empty() { "" } else { " LINES? " };
        all.extend(answer.map(|answer| format!("{head}{lines}{answer}")));
        all.extend(form.map(|Form { rule, is_exact }| format!("{head}{} {rule}", if is_exact { "" } else { lines })));
    }
    all.join(" | ")
}

/// Grammar expressions of a family's calls.
struct Shape {
    /// A whole answer of calls.
    calls: String,
    /// Marks that every call begins with if text is unconstrained.
    opens: Vec<&'static str>,
    /// The continuation after such a mark.
    behind: String,
    /// For unmarked calls: the beginning, as a regular expression up to the first one's arguments, and the rest.
    bare: Vec<(String, String)>,
}

#[derive(Default)]
struct Lark {
    text: String,
    rules: usize,
    parallel: bool,
    /// Ends of a value in tags besides its closing mark, as a regular expression.
    value_ends: Option<String>,
    /// Rules of a tool's schemas that are referred to, by the reference.
    referred: HashMap<String, String>,
    /// Places of schemas that its rules do not hold an answer to.
    open: Vec<String>,
}

/// What the parser accepts as the end of a value without a closing mark: see `tags::Bounds`.
fn value_ends<'a>(form: &Tags, tools: &[&'a Tool]) -> String {
    let listed = |tool: &&'a Tool| follow(&tool.parameters, &tool.parameters).get("properties")?.as_object();
    let known: Option<Vec<_>> = tools.iter().map(listed).collect();
    let [before, behind] = form.key.map(escaped);
    let keys = match known {
        Some(known) if known.iter().any(|all| !all.is_empty()) => {
            format!("{before}[ ]*{}[ ]*{behind}", any_of(known.iter().flat_map(|all| all.keys()).map(String::as_str)))
        }
        Some(_) => String::new(),
        None => before,
    };
    let ends = any_of(form.end.iter().copied().chain([form.close]));
    let starts = any_of(form.starts().into_iter().filter(|mark| !mark.is_empty()));
    let calls = format!("{ends}\\s*{starts}");
    if keys.is_empty() { calls } else { format!("{keys}|{calls}") }
}

fn either(all: impl IntoIterator<Item = String>) -> String {
    let all: Vec<String> = all.into_iter().collect();
    if let [one] = all.as_slice() { one.clone() } else { format!("({})", all.join(" | ")) }
}

/// A text escaped for a regular expression between slashes.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("\\n"),
            c => {
                if c.is_ascii_punctuation() && c != '_' && c != '<' && c != '>' {
                    escaped.push('\\');
                }
                escaped.push(c);
            }
        }
    }
    escaped
}

fn any_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    format!("({})", texts.into_iter().map(escaped).collect::<Vec<_>>().join("|"))
}

impl Lark {
    fn line(&mut self, name: &str, body: &str) {
        // The only character that JSON does not escape and a grammar does not take.
        let _ = writeln!(self.text, "{name}: {}", body.replace('\u{7f}', "\\u007f"));
    }

    fn rule(&mut self, body: &str) -> String {
        self.named_rule("", body)
    }

    fn named_rule(&mut self, options: &str, body: &str) -> String {
        let name = self.new_name();
        self.line(&format!("{name}{options}"), body);
        name
    }

    fn new_name(&mut self) -> String {
        self.rules += 1;
        format!("r{}", self.rules)
    }

    /// Notes those of the keywords that a schema has.
    fn leave_open(&mut self, schema: &Value, place: &str, keys: &[&str]) {
        let found = keys.iter().filter(|key| schema.get(**key).is_some());
        self.open.extend(found.map(|key| format!("{place}.{key}")));
    }

    /// Notes all keywords of a schema but these.
    fn leave_open_but(&mut self, schema: &Value, place: &str, held: &[&str]) {
        let others = schema.as_object().into_iter().flat_map(Map::keys).filter(|key| !held.contains(&key.as_str()));
        self.open.extend(others.map(|key| format!("{place}.{key}")));
    }

    /// Unconstrained text up to and including the first of the marks.
    fn until(&mut self, marks: &[&str]) -> String {
        let body = format!("/{ANY_TEXT}{}/", any_of(marks.iter().copied()));
        self.named_rule("[lazy]", &body)
    }

    /// A terminal, defined once.
    fn terminal(&mut self, name: &str, body: &str) -> String {
        if !self.text.lines().any(|line| line.starts_with(&format!("{name}: "))) {
            self.line(name, body);
        }
        self.named_rule("[lazy]", name)
    }

    /// `one`, or several separated by `between`.
    fn several(&self, one: &str, between: &str) -> String {
        if self.parallel { format!("{one} ({between} {one})*") } else { one.to_owned() }
    }

    /// JSON of a schema, which may refer to the document that contains it.
    fn json(&mut self, document: &Value, schema: &Value) -> String {
        let mut schema = match schema {
            Value::Object(schema) => schema.clone(),
            _ => Map::new(),
        };
        for key in ["$defs", "definitions"] {
            if let Some(all) = document.get(key) {
                schema.entry(key).or_insert_with(|| all.clone());
            }
        }
        schema.insert("x-guidance".into(), json!({"whitespace_pattern": JSON_SPACES}));
        self.rule(&format!("%json {}", Value::Object(schema)))
    }

    /// The arguments of a tool as JSON: always an object.
    fn arguments(&mut self, tool: &Tool, is_free: bool) -> String {
        let object = json!({"type": "object"});
        let mut schema = if is_free || !tool.parameters.is_object() { object } else { tool.parameters.clone() };
        if let Value::Object(schema) = &mut schema {
            let says = ["type", "$ref", "anyOf", "oneOf", "allOf", "const", "enum"];
            if !says.iter().any(|key| schema.contains_key(*key)) {
                schema.insert("type".into(), "object".into());
            }
        }
        self.json(&Value::Null, &schema)
    }

    /// Unconstrained text up to a mark, a call, and so on.
    fn auto(&mut self, shape: &Shape, thoughts: Option<&[&str]>) -> String {
        // At the beginning these are not text.
        let mut others: Vec<String> =
            shape.bare.iter().map(|(begin, _)| format!("({})", begin.replace(GAP, ANY_GAP))).collect();
        others.extend(thoughts.map(|opens| any_of(opens.iter().copied())));
        let but = match others.as_slice() {
            [] => String::new(),
            _ => format!(" & ~/[ \\n\\t\\r]*({}){ANY_TEXT}/", others.join("|")),
        };
        self.line("TEXT", &format!("/{ANY_TEXT}/"));
        self.line("FIRST", &format!("/{ANY_TEXT}/{but}"));
        let mut all = vec!["FIRST".to_owned()];
        if !shape.opens.is_empty() {
            let marks = any_of(shape.opens.iter().copied());
            self.line("HEAD", &format!("/{ANY_TEXT}{marks}/{but}"));
            let first = self.named_rule("[lazy]", "HEAD");
            let behind = &shape.behind;
            let mut more = String::new();
            if self.parallel {
                let head = self.named_rule("[lazy]", &format!("/{ANY_TEXT}{marks}/"));
                more = format!("({head} {behind})* TEXT");
            }
            all.push(format!("{first} {behind} {more}"));
        }
        for (begin, rest) in &shape.bare {
            // Lazy: it takes precedence over text, which continues.
            let begin = self.named_rule("[lazy]", &format!("/\\n{{0,2}}{begin}/"));
            all.push(format!("{begin} {rest}"));
        }
        either(all)
    }

    fn envelope(&mut self, form: &Envelope, tools: &[&Tool], is_free: impl Fn(&Tool) -> bool) -> Shape {
        let key = form.arguments;
        let (mut objects, mut bare) = (Vec::new(), Vec::new());
        for tool in tools {
            let arguments = self.arguments(tool, is_free(tool));
            let name = quoted(&quoted(&tool.name));
            let key = quoted(&quoted(key));
            let parts = ["\"{\"", "\"\\\"name\\\"\"", "\":\"", &name, "\",\"", &key, "\":\"", &arguments, "\"}\""];
            objects.push(self.rule(&parts.join(" SP? ")));
            let name = escaped(&quoted(&tool.name));
            let begin = format!(r#"\{{{GAP}"name"{GAP}:{GAP}{name}{GAP},{GAP}"(arguments|parameters)"{GAP}:"#);
            bare.push((begin, format!("SP? {arguments} SP? \"}}\"")));
        }
        let object = self.rule(&either(objects));
        let list = self.several(&object, "SP? \",\" SP?");
        let list = self.rule(&format!("\"[\" SP? {list} SP? \"]\""));
        let more = |between: &str| if self.parallel { format!("({between} {object})*") } else { String::new() };
        let row = match form.between.first() {
            Some(mark) => format!("{} SP?", quoted(mark)),
            None => "SP?".to_owned(),
        };
        let alone = bare.iter().map(|(begin, rest)| (begin.clone(), format!("{rest} {}", more(&row))));
        let listed = bare
            .iter()
            .map(|(begin, rest)| (format!("\\[{GAP}{begin}"), format!("{rest} {} SP? \"]\"", more("SP? \",\" SP?"))));
        let bare = if form.bare { alone.chain(listed).collect() } else { Vec::new() };
        let close = match (form.closes, form.opens) {
            ([], _) => String::new(),
            ([close, ..], [_]) => format!("SP? {}", quoted(close)),
            // Either may be closed.
            ([close, ..], _) if self.parallel => format!("(SP? {})?", quoted(close)),
            // A single call ends without it.
            _ => String::new(),
        };
        let body = if form.is_list { list.clone() } else { object.clone() };
        let behind = format!("SP? {body} {close}");
        let open = |rest: &str| format!("{} {rest}", either(form.opens.iter().map(|mark| quoted(mark))));
        let calls = match (form.bare, form.is_list) {
            (true, false) if form.between.is_empty() => either([object.clone(), list]),
            (true, false) => self.several(&object, &row),
            (_, true) => open(&behind),
            _ => self.several(&format!("({})", open(&behind)), "SP?"),
        };
        Shape { calls, opens: form.opens.to_vec(), behind, bare }
    }

    fn mistral(&mut self, form: &Envelope, tools: &[&Tool], is_free: impl Fn(&Tool) -> bool) -> Shape {
        let list = self.envelope(form, tools, &is_free).behind;
        let calls = tools.iter().map(|tool| {
            let arguments = self.arguments(tool, is_free(tool));
            format!("{} \"[ARGS]\"? SP? {arguments}", quoted(&tool.name))
        });
        let call = either(calls.collect::<Vec<_>>());
        let call = self.rule(&call);
        let open = quoted(form.opens[0]);
        let calls = either([format!("{open} {list}"), self.several(&format!("{open} {call}"), "")]);
        Shape { calls, opens: form.opens.to_vec(), behind: either([list, call]), bare: Vec::new() }
    }

    fn named(&mut self, form: &Named, tools: &[&Tool], is_free: impl Fn(&Tool) -> bool) -> Shape {
        let [group, open] = form.opens;
        // With a code fence each part is on a separate line.
        let line = if form.behind.len() > 1 { "\n" } else { "" };
        let calls: Vec<String> = tools
            .iter()
            .map(|tool| {
                let arguments = self.arguments(tool, is_free(tool));
                let prefix = form.prefix.first().copied().unwrap_or_default();
                let number = if form.is_numbered { "\":\" /[0-9]{1,4}/" } else { "" };
                let middle = format!("{line}{}{line}", form.middle[0]);
                let behind = form.behind.iter().map(|marks| marks[0]).collect::<String>();
                let (name, middle) = (quoted(&format!("{open}{prefix}{}", tool.name)), quoted(&middle));
                format!("{name} {number} {middle} {arguments} {}", quoted(&format!("{line}{behind}")))
            })
            .collect();
        let call = self.rule(&either(calls));
        let behind = format!("{} SP? {}", self.several(&call, "SP?"), quoted(form.close));
        Shape { calls: format!("{} {behind}", quoted(group)), opens: vec![group], behind, bare: Vec::new() }
    }

    fn tags(&mut self, form: &Tags, tools: &[&Tool], is_free: impl Fn(&Tool) -> bool) -> Shape {
        let [before, after] = form.name.unwrap_or_default();
        self.value_ends = Some(value_ends(form, tools));
        let calls: Vec<String> = tools
            .iter()
            .map(|tool| {
                let mut call = format!("{} SP?", quoted(&format!("{before}{}{after}", tool.name)));
                let none = json!({});
                let schema = if is_free(tool) { &none } else { self.whole(&tool.parameters) };
                self.leave_open(schema, "", &["patternProperties"]);
                if let Some(mut parameters) = properties(&tool.parameters, schema, "") {
                    self.leave_out(&mut parameters, &["\n", form.key[1]]);
                    self.leave_open_counts(schema, "", &parameters);
                    for parameter in &parameters {
                        let key = quoted(&format!("{}{}{}", form.key[0], parameter.key, form.key[1]));
                        let value = self.tag_value(form, tool, parameter);
                        let all = format!("({key} {value} SP?)");
                        let _ = write!(call, " {all}{}", if parameter.is_required { "" } else { "?" });
                    }
                } else if schema.get("additionalProperties") != Some(&Value::Bool(false)) {
                    let others = schema.get("additionalProperties").unwrap_or(&none);
                    if !says_nothing(others) {
                        self.leave_open(schema, "", &["additionalProperties"]);
                    }
                    let key = format!("/{ANY_KEY}/ {}", quoted(form.key[1]));
                    let value = self.value(form);
                    let open =
                        if form.value[0].is_empty() { String::new() } else { format!("SP? {}", quoted(form.value[0])) };
                    let one = format!("{} {key} {open} {value} SP?", quoted(form.key[0]));
                    let [least, most] = ["minProperties", "maxProperties"].map(|key| count(schema, key));
                    let _ = write!(call, " {}", times(&one, least.unwrap_or(0), most));
                }
                let _ = write!(call, " {}", quoted(form.end[0]));
                self.rule(&call)
            })
            .collect();
        let call = self.rule(&either(calls));
        let open = quoted(form.opens[0]);
        let (behind, calls) = if form.name.is_none() {
            (call.clone(), self.several(&format!("{open} {call}"), "SP?"))
        } else if form.is_group {
            let behind = format!("SP? {} SP? {}", self.several(&call, "SP?"), quoted(form.close));
            (behind.clone(), format!("{open} {behind}"))
        } else {
            let behind = format!("SP? {call} SP? {}", quoted(form.close));
            (behind.clone(), self.several(&format!("{open} {behind}"), "SP?"))
        };
        Shape { calls, opens: vec![form.opens[0]], behind, bare: Vec::new() }
    }

    /// A string and its closing mark; it must not contain anything that the parser accepts as another end.
    fn value(&mut self, form: &Tags) -> String {
        let ends = self.value_ends.clone().unwrap_or_default();
        let body = format!("/{ANY_TEXT}{}/ & ~/{ANY_TEXT}({ends}){ANY_TEXT}/", escaped(form.value[1]));
        self.terminal("VALUE", &body)
    }

    /// A value and its closing mark.
    fn tag_value(&mut self, form: &Tags, tool: &Tool, parameter: &Parameter<'_>) -> String {
        let open = match form.value[0] {
            "" => String::new(),
            open => format!("SP? {}", quoted(open)),
        };
        let close = quoted(form.value[1]);
        // A line break that the parser strips.
        let line = if form.value_on_lines { "\"\\n\"?" } else { "" };
        let kinds = Kinds::of(&tool.parameters, parameter.key);
        if !kinds.may_be_text() {
            let value = self.json(&tool.parameters, parameter.schema);
            return format!("{open} {line} {value} {line} {close}");
        }
        let schema = alone(&tool.parameters, parameter.schema);
        if let Some(texts) = choices(schema).map(|values| tag_texts(form, kinds, schema, values))
            && !texts.is_empty()
        {
            self.leave_open_but(schema, &parameter.place, &CHOICES);
            // A line break of the text itself is not the one that is stripped.
            let is_framed = texts.iter().any(|text| text.starts_with('\n') || text.ends_with('\n'));
            let line = if is_framed && form.value_on_lines { "\"\\n\"" } else { line };
            return format!("{open} {line} {} {line} {close}", either(texts.iter().map(|text| quoted(text))));
        }
        let is_held = is_plain(&tool.parameters, schema, MAX_UNIONS) && (!kinds.is_any() || says_nothing(schema));
        if !is_held {
            let held: &[&str] = if kinds.is_any() { &[] } else { &["type"] };
            self.leave_open_but(schema, &parameter.place, held);
        }
        format!("{open} {}", self.value(form))
    }

    fn python(&mut self, form: &Python, tools: &[&Tool], is_free: impl Fn(&Tool) -> bool) -> Shape {
        let (mut calls, mut bare) = (Vec::new(), Vec::new());
        for tool in tools {
            let parameters = self.entries(tool, &PYTHON, is_free(tool));
            calls.push(format!("{} {parameters} \")\"", quoted(&format!("{}(", tool.name))));
            bare.push((format!("\\[{GAP}{}\\(", escaped(&tool.name)), format!("{parameters} \")\"")));
        }
        let call = self.rule(&either(calls));
        let close = form.closes.first().map(|mark| quoted(mark)).unwrap_or_default();
        let body = if form.lines {
            format!("\"\\n\" {} \"\\n\"", self.several(&call, "\"\\n\""))
        } else {
            format!("\"[\" {} \"]\"", self.several(&call, "\",\" SP?"))
        };
        let behind = format!("{body} {close}");
        let calls = match form.opens.first() {
            Some(open) if !form.bare => format!("{} {behind}", quoted(open)),
            _ => body.clone(),
        };
        let more = if self.parallel { format!("(\",\" SP? {call})*") } else { String::new() };
        let bare = bare.into_iter().map(|(begin, rest)| (begin, format!("{rest} {more} \"]\"")));
        let bare = if form.bare { bare.collect() } else { Vec::new() };
        Shape { calls, opens: form.opens.to_vec(), behind, bare }
    }

    fn gemma(&mut self, form: &Gemma, tools: &[&Tool], is_free: impl Fn(&Tool) -> bool) -> Shape {
        let end = form.closes[0];
        let notation = Notation { quote: Some((form.quote, end)), words: ["true", "false", "null"], equals: ":" };
        let close = quoted(form.closes[0]);
        let calls: Vec<String> = tools
            .iter()
            .map(|tool| {
                let parameters = self.entries(tool, &notation, is_free(tool));
                format!("{} {parameters} \"}}\"", quoted(&format!("call:{}{{", tool.name)))
            })
            .collect();
        let call = self.rule(&either(calls));
        let behind = format!("{call} {close}");
        let calls = self.several(&format!("{} {behind}", quoted(form.opens[0])), "SP?");
        Shape { calls, opens: form.opens.to_vec(), behind, bare: Vec::new() }
    }

    fn harmony(&mut self, tools: &[&Tool], is_free: impl Fn(&Tool) -> bool, is_auto: bool) -> String {
        let mut calls = Vec::new();
        for tool in tools {
            let arguments = self.arguments(tool, is_free(tool));
            let to = format!("to=functions.{}", tool.name);
            if is_auto {
                let head = format!(
                    r"/{ANY_TEXT}{}( [^\n<]*)?(<\|channel\|>[^\n<]*)?(<\|constrain\|>[^\n<]*)?<\|message\|>/",
                    escaped(&to)
                );
                let head = self.named_rule("[lazy]", &head);
                calls.push(format!("{head} {arguments}"));
            } else {
                let json = "(\" <|constrain|>json\" | \" json\")? \"<|message|>\"";
                let first = quoted(&format!("<|channel|>commentary {to}"));
                let other = quoted(&format!(" {to}<|channel|>commentary"));
                calls.push(format!("({first} | {other}) {json} {arguments}"));
            }
        }
        let call = self.rule(&either(calls));
        if is_auto {
            self.line("TEXT", &format!("/{ANY_TEXT}/"));
            return if self.parallel { format!("{call}* TEXT") } else { format!("{call} | TEXT") };
        }
        call
    }

    /// A tool's schema behind its reference, of which its properties are held to.
    fn whole<'a>(&mut self, parameters: &'a Value) -> &'a Value {
        let schema = follow(parameters, parameters);
        if parameters.get("$ref").is_some() {
            self.leave_open_but(parameters, "", &["$ref", "$defs", "definitions", "x-guidance"]);
        }
        self.leave_open(schema, "", &IN_OTHER_WORDS);
        schema
    }

    /// The arguments of a call.
    fn entries(&mut self, tool: &Tool, notation: &Notation, is_free: bool) -> String {
        let none = json!({});
        let schema = if is_free { &none } else { self.whole(&tool.parameters) };
        self.referred.clear();
        self.object(&tool.parameters, schema, notation, "", true)
    }

    /// What is between the braces of an object, or the parentheses of a call: parameters in schema order, including
    /// optional ones, separated by commas.
    fn object(&mut self, document: &Value, schema: &Value, notation: &Notation, place: &str, is_call: bool) -> String {
        self.leave_open(schema, place, &["patternProperties"]);
        let Some(mut parameters) = properties(document, schema, place) else {
            let value = match schema.get("additionalProperties") {
                Some(others) if fits_nothing(document, others, &looks()) => return String::new(),
                Some(others) => self.literal(document, others, notation, &format!("{place}.additionalProperties")),
                None => self.any(notation),
            };
            let key = match notation.quote {
                None if is_call => format!("/{KEY}/ \"=\""),
                _ => notation.any_key(),
            };
            return listed(&format!("{key} {value}"), count(schema, "minProperties"), count(schema, "maxProperties"));
        };
        match notation.quote {
            Some((quote, _)) => self.leave_out(&mut parameters, &[":", ",", "{", "}", "\n", quote]),
            None if is_call => self.leave_out(&mut parameters, &[]),
            None => {}
        }
        self.leave_open_counts(schema, place, &parameters);
        let entries = parameters.iter().map(|parameter| {
            let value = self.literal(document, parameter.schema, notation, &parameter.place);
            let key = match is_call {
                true => quoted(&format!("{}{}", parameter.key, notation.equals)),
                false => notation.key(parameter.key),
            };
            (format!("{key} {value}"), parameter.is_required)
        });
        let entries: Vec<_> = entries.collect();
        self.separated(&entries)
    }

    /// Leaves out parameters whose names the parser would not read as they are written, and notes them.
    fn leave_out(&mut self, parameters: &mut Vec<Parameter<'_>>, marks: &[&str]) {
        let is_read = |key: &str| key.trim() == key && (1..=MAX_KEY_BYTES).contains(&key.len());
        parameters.retain(|parameter| {
            let is_read = is_read(parameter.key) && !marks.iter().any(|mark| parameter.key.contains(mark));
            if !is_read {
                self.open.push(parameter.place.clone());
            }
            is_read
        });
    }

    /// Notes what is said of an object beside its listed properties, of which each may come once.
    fn leave_open_counts(&mut self, schema: &Value, place: &str, parameters: &[Parameter<'_>]) {
        let least = parameters.iter().filter(|parameter| parameter.is_required).count() as u64;
        if count(schema, "minProperties").is_some_and(|count| count > least) {
            self.leave_open(schema, place, &["minProperties"]);
        }
        if count(schema, "maxProperties").is_some_and(|count| count < parameters.len() as u64) {
            self.leave_open(schema, place, &["maxProperties"]);
        }
    }

    /// Each entry at most once, in order, required ones always; with commas between the present ones.
    fn separated(&mut self, entries: &[(String, bool)]) -> String {
        // From the end: the continuation if nothing was written yet, and if something was.
        let (mut first, mut later) = (String::new(), String::new());
        for (entry, is_required) in entries.iter().rev() {
            let begun = self.rule(&format!("{entry} {later}"));
            let optional = |expression: String, rest: &str| match (is_required, rest) {
                (true, _) => expression,
                (false, "") => format!("({expression})?"),
                (false, rest) => format!("({expression} | {rest})"),
            };
            first = optional(begun.clone(), &first);
            later = optional(format!("\",\" SP? {begun}"), &later);
            later = self.rule(&later);
        }
        first
    }

    /// A value of a schema, as the family writes literals.
    fn literal(&mut self, document: &Value, schema: &Value, notation: &Notation, place: &str) -> String {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return self.referred(document, schema, reference, notation, place);
        }
        if let Some(one) = only_of_all(schema) {
            return self.literal(document, one, notation, &format!("{place}.allOf[0]"));
        }
        if let Some(values) = choices(schema) {
            let values = values.iter().filter(|value| is_choice(schema, value));
            let written: Vec<String> = values.filter_map(|value| notation.written(value)).collect();
            if !written.is_empty() {
                self.leave_open_but(schema, place, &CHOICES);
                return either(written.iter().map(|text| quoted(text)));
            }
        }
        let types: Vec<&str> = match schema.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let types: Vec<&str> = types.into_iter().filter(|kind| has_room(kind, document, schema, &looks())).collect();
        let branches = ["anyOf", "oneOf"].into_iter().find_map(|key| Some((key, schema.get(key)?.as_array()?)));
        if let (Some((key, branches)), true) = (branches, types.is_empty()) {
            let branches = branches.iter().enumerate().filter(|(_, branch)| !fits_nothing(document, branch, &looks()));
            let branches =
                branches.map(|(at, one)| self.literal(document, one, notation, &format!("{place}.{key}[{at}]")));
            let branches: Vec<String> = branches.collect();
            if !branches.is_empty() {
                self.leave_open_but(schema, place, &[key]);
                return either(branches);
            }
        }
        if types.is_empty() {
            self.leave_open_but(schema, place, &[]);
            return self.any(notation);
        }
        self.leave_open(schema, place, &IN_OTHER_WORDS);
        let all = types.into_iter().map(|kind| self.of_kind(kind, document, schema, notation, place));
        let all: Vec<String> = all.collect();
        self.rule(&either(all))
    }

    /// A schema that is referred to, as a rule of its own: it may refer to itself.
    fn referred(
        &mut self,
        document: &Value,
        schema: &Value,
        reference: &str,
        notation: &Notation,
        place: &str,
    ) -> String {
        self.leave_open_but(schema, place, &["$ref"]);
        if let Some(rule) = self.referred.get(reference) {
            return rule.clone();
        }
        let name = self.new_name();
        self.referred.insert(reference.to_owned(), name.clone());
        let target = follow(document, schema);
        let body = if target.get("$ref").is_some() {
            self.leave_open(schema, place, &["$ref"]);
            self.any(notation)
        } else {
            self.literal(document, target, notation, &format!("{place}.$ref"))
        };
        self.line(&name, &body);
        name
    }

    /// A value of one of a schema's types.
    fn of_kind(&mut self, kind: &str, document: &Value, schema: &Value, notation: &Notation, place: &str) -> String {
        match kind {
            "string" if !has_any(schema, &TEXTS) => self.text(notation),
            // JSON's texts are Python's, too.
            "string" if notation.quote.is_none() => self.json_of(kind, schema, &TEXTS),
            "string" => {
                self.leave_open(schema, place, &TEXTS);
                self.text(notation)
            }
            "integer" | "number" if has_any(schema, &NUMBERS) => self.json_of(kind, schema, &NUMBERS),
            "integer" => "/-?(0|[1-9][0-9]{0,99})/".to_owned(),
            "number" => NUMBER.to_owned(),
            "boolean" => format!("({} | {})", quoted(notation.words[0]), quoted(notation.words[1])),
            "null" => quoted(notation.words[2]),
            "array" => {
                self.leave_open(schema, place, &["prefixItems", "additionalItems"]);
                let item = match schema.get("items") {
                    // Said of those behind the first ones.
                    Some(_) if schema.get("prefixItems").is_some() => self.any(notation),
                    Some(Value::Array(_)) => {
                        self.leave_open(schema, place, &["items"]);
                        self.any(notation)
                    }
                    Some(items) if fits_nothing(document, items, &looks()) => return "\"[\" \"]\"".to_owned(),
                    Some(items) => self.literal(document, items, notation, &format!("{place}.items")),
                    None => self.any(notation),
                };
                format!("\"[\" {} \"]\"", listed(&item, count(schema, "minItems"), count(schema, "maxItems")))
            }
            "object" => {
                let entries = self.object(document, schema, notation, place, false);
                format!("\"{{\" {entries} \"}}\"")
            }
            _ => self.any(notation),
        }
    }

    /// JSON of a type with some of a schema's constraints.
    fn json_of(&mut self, kind: &str, schema: &Value, keys: &[&str]) -> String {
        let mut only = json!({"type": kind});
        for key in keys {
            if let Some(value) = schema.get(*key) {
                only[*key] = value.clone();
            }
        }
        self.json(&Value::Null, &only)
    }

    fn text(&mut self, notation: &Notation) -> String {
        match notation.quote {
            Some((quote, end)) => {
                // The parser takes it for the end of the call.
                let end = format!("\\}}{}", escaped(end));
                let body = format!("/{ANY_TEXT}{}/ & ~/{ANY_TEXT}{end}{ANY_TEXT}/", escaped(quote));
                format!("{} {}", quoted(quote), self.terminal("QUOTED", &body))
            }
            None => PYTHON_TEXT.to_owned(),
        }
    }

    fn any(&mut self, notation: &Notation) -> String {
        self.rules += 1;
        let name = format!("any{}", self.rules);
        let text = self.text(notation);
        let key = notation.any_key();
        let words = notation.words.map(quoted).join(" | ");
        let list = format!("\"[\" ({name} (\",\" SP? {name})*)? \"]\"");
        let object = format!("\"{{\" ({key} {name} (\",\" SP? {key} {name})*)? \"}}\"");
        self.line(&name, &format!("{text} | {NUMBER} | {words} | {list} | {object}"));
        name
    }
}

const NUMBER: &str = r"/-?(0|[1-9][0-9]{0,99})(\.[0-9]{1,99})?([eE][+-]?[0-9]{1,2})?/";
const PYTHON_TEXT: &str = r#"/"([^"\\\n]|\\["'\\nrt])*"|'([^'\\\n]|\\["'\\nrt])*'/"#;

/// Literal syntax of a family.
struct Notation {
    /// The string quote, and the closing mark of a call; `None`: Python strings.
    quote: Option<(&'static str, &'static str)>,
    /// True, false and null.
    words: [&'static str; 3],
    /// Between a parameter's name and its value.
    equals: &'static str,
}

const PYTHON: Notation = Notation { quote: None, words: ["True", "False", "None"], equals: "=" };

impl Notation {
    /// A key of an object and its separator, as an expression.
    fn key(&self, key: &str) -> String {
        match self.quote {
            Some(_) => quoted(&format!("{key}:")),
            None => format!("{} SP?", quoted(&format!("{}:", quoted(key)))),
        }
    }

    /// Any key and its separator.
    fn any_key(&self) -> String {
        match self.quote {
            Some(_) => format!("/{ANY_KEY}/ \":\""),
            None => format!("{PYTHON_TEXT} \":\" SP?"),
        }
    }

    /// A value as a literal; `None` if none is read as that value.
    fn written(&self, value: &Value) -> Option<String> {
        let key = |key: &str| match self.quote {
            Some(_) => {
                let is_plain = |c: char| c.is_ascii_alphanumeric() || "_$.-".contains(c);
                (!key.is_empty() && key.chars().all(is_plain)).then(|| key.to_owned())
            }
            None => Some(quoted(key)),
        };
        let joined = |all: Option<Vec<String>>| Some(all?.join(","));
        Some(match value {
            Value::String(text) => match self.quote {
                // The parser takes these for the end of the text, and of the call.
                Some((quote, end)) if text.contains(quote) || text.contains(&format!("}}{end}")) => return None,
                Some((quote, _)) => format!("{quote}{text}{quote}"),
                None => quoted(text),
            },
            Value::Bool(is) => self.words[usize::from(!is)].to_owned(),
            Value::Null => self.words[2].to_owned(),
            Value::Number(number) => number.to_string(),
            Value::Array(all) => format!("[{}]", joined(all.iter().map(|one| self.written(one)).collect())?),
            Value::Object(all) => {
                let entry = |(name, one): (&String, &Value)| Some(format!("{}:{}", key(name)?, self.written(one)?));
                format!("{{{}}}", joined(all.iter().map(entry).collect())?)
            }
        })
    }
}

/// Keywords that say something of a whole object in other words than by its properties.
const IN_OTHER_WORDS: [&str; 5] = ["anyOf", "oneOf", "allOf", "enum", "const"];
const TEXTS: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];
const NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// What is held to where values are enumerated.
const CHOICES: [&str; 3] = ["type", "enum", "const"];

fn has_any(schema: &Value, keys: &[&str]) -> bool {
    keys.iter().any(|key| schema.get(*key).is_some())
}

fn says_nothing(schema: &Value) -> bool {
    *schema == Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty)
}

/// More of anything than an answer holds, and within what llguidance reads as a count.
const MAX_COUNT: u64 = 1 << 30;

/// A number that a schema gives.
fn count(schema: &Value, key: &str) -> Option<u64> {
    schema.get(key).and_then(Value::as_u64).map(|count| count.min(MAX_COUNT))
}

/// `one`, from `least` to `most` times.
fn times(one: &str, least: u64, most: Option<u64>) -> String {
    match (least, most) {
        // A grammar has no word for none.
        (_, Some(0)) => String::new(),
        (0, None) => format!("({one})*"),
        (least, most) => format!("({one}){{{least},{}}}", most.map(|most| most.to_string()).unwrap_or_default()),
    }
}

/// The same with commas between them.
fn listed(one: &str, least: Option<u64>, most: Option<u64>) -> String {
    let least = least.unwrap_or(0);
    let Some(others) = most.unwrap_or(u64::MAX).checked_sub(1) else { return String::new() };
    let others = times(&format!("\",\" SP? {one}"), least.saturating_sub(1), most.map(|_| others));
    if least == 0 { format!("({one} {others})?") } else { format!("{one} {others}") }
}

/// The schema that stands alone in an `allOf`.
fn only_of_all(schema: &Value) -> Option<&Value> {
    match schema.get("allOf")?.as_array()?.as_slice() {
        [one] if schema.as_object()?.len() == 1 => Some(one),
        _ => None,
    }
}

/// A schema behind its references.
fn alone<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let is_reference = |schema: &Value| schema.as_object().is_some_and(|map| map.len() == 1);
    let followed = if is_reference(schema) { follow(document, schema) } else { schema };
    match only_of_all(followed) {
        Some(one) if is_reference(one) => follow(document, one),
        Some(one) => one,
        None => followed,
    }
}

/// Unions within unions that are looked into.
const MAX_UNIONS: usize = 4;

/// Whether a schema says nothing but types.
fn is_plain(document: &Value, schema: &Value, deep: usize) -> bool {
    let schema = alone(document, schema);
    let Some(map) = schema.as_object() else { return *schema == Value::Bool(true) };
    match ["anyOf", "oneOf"].iter().find_map(|key| map.get(*key)?.as_array()) {
        Some(all) if map.len() == 1 && deep > 0 => all.iter().all(|one| is_plain(document, one, deep - 1)),
        Some(_) => false,
        None => map.keys().all(|key| key == "type"),
    }
}

/// How many schemas are looked at to see that nothing fits one: those that refer to each other take exponential time.
fn looks() -> Cell<usize> {
    Cell::new(256)
}

/// Whether no value is of a schema, as far as bounds, counts, values and branches tell.
fn fits_nothing(document: &Value, schema: &Value, left: &Cell<usize>) -> bool {
    let schema = follow(document, schema);
    let Some(fewer) = left.get().checked_sub(1).filter(|_| schema.is_object()) else {
        return *schema == Value::Bool(false);
    };
    left.set(fewer);
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    let is_none = |one: &Value| fits_nothing(document, one, left);
    let has_kind = |kind: &Value| kind.as_str().is_none_or(|kind| has_room(kind, document, schema, left));
    ["anyOf", "oneOf"].into_iter().filter_map(list).any(|all| all.iter().all(is_none))
        || list("allOf").is_some_and(|all| all.iter().any(is_none))
        || choices(schema).is_some_and(|values| !values.iter().any(|value| is_choice(schema, value)))
        || !schema
            .get("type")
            .is_none_or(|kinds| kinds.as_array().map_or(has_kind(kinds), |all| all.iter().any(has_kind)))
}

/// The same of its values of a type.
fn has_room(kind: &str, document: &Value, schema: &Value, left: &Cell<usize>) -> bool {
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    let is_range = |least: &str, most: &str| number(least).unwrap_or(0.0) <= number(most).unwrap_or(f64::MAX);
    let is_never = |schema: Option<&Value>| schema.is_some_and(|schema| fits_nothing(document, schema, left));
    match kind {
        "string" => is_range("minLength", "maxLength"),
        "array" => {
            let is_empty = schema.get("prefixItems").is_none() && is_never(schema.get("items"));
            is_range("minItems", "maxItems") && (!is_empty || number("minItems").unwrap_or(0.0) == 0.0)
        }
        "object" => {
            let all = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
            let others = schema.get("additionalProperties");
            let listed = schema.get("properties");
            let mut wanted = all.map(|name| listed.and_then(|listed| listed.get(name)).or(others));
            is_range("minProperties", "maxProperties") && !wanted.any(is_never)
        }
        "integer" | "number" => {
            let [least, above, most, below] =
                ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"].map(number);
            let least = least.unwrap_or(f64::MIN).max(above.map_or(f64::MIN, f64::next_up));
            let most = most.unwrap_or(f64::MAX).min(below.map_or(f64::MAX, f64::next_down));
            match number("multipleOf").or((kind == "integer").then_some(1.0)) {
                // As the schema compiler counts.
                Some(step) => (least / step).ceil() * step <= (most / step).floor() * step,
                None => least <= most,
            }
        }
        _ => true,
    }
}

/// Whether a value that a schema enumerates is of its types, and its only one.
fn is_choice(schema: &Value, value: &Value) -> bool {
    let is = |kind: &Value| match kind.as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    let is_typed = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(is),
        Some(kind) => is(kind),
        None => true,
    };
    is_typed && schema.get("const").is_none_or(|one| one == value)
}

/// Those of the values that the parser reads as themselves, as they are written.
fn tag_texts(form: &Tags, kinds: Kinds<'_>, schema: &Value, values: &[Value]) -> Vec<String> {
    let marks = [&[form.value[1], form.key[0], form.close], form.end, &form.starts()].concat();
    let written = values.iter().filter(|value| is_choice(schema, value)).filter_map(|value| {
        let written = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let read = kinds.json(&written).and_then(|json| serde_json::from_str::<Value>(&json).ok());
        let is_read =
            read.as_ref() == Some(value) && !marks.iter().any(|mark| !mark.is_empty() && written.contains(mark));
        is_read.then_some(written)
    });
    written.collect()
}

struct Parameter<'a> {
    key: &'a str,
    schema: &'a Value,
    is_required: bool,
    /// Of its schema.
    place: String,
}

/// The properties of an object, if its schema lists any, or requires some. One that cannot be there is not among them.
fn properties<'a>(document: &Value, schema: &'a Value, place: &str) -> Option<Vec<Parameter<'a>>> {
    static ANYTHING: Value = Value::Bool(true);
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let listed = schema.get("properties").and_then(Value::as_object);
    if listed.is_none() && required.is_empty() {
        return None;
    }
    let shown = |key: &str| key.chars().take(64).flat_map(char::escape_debug).collect::<String>();
    let known = listed.into_iter().flatten().filter(|(_, schema)| !fits_nothing(document, schema, &looks()));
    let known = known.map(|(key, schema)| Parameter {
        key,
        schema,
        is_required: required.contains(&key.as_str()),
        place: format!("{place}.properties.{}", shown(key)),
    });
    let others = schema.get("additionalProperties").unwrap_or(&ANYTHING);
    let unknown = required.iter().filter(|key| listed.is_none_or(|listed| !listed.contains_key(**key)));
    let unknown = unknown.map(|key| Parameter {
        key,
        schema: others,
        is_required: true,
        place: format!("{place}.additionalProperties"),
    });
    Some(known.chain(unknown).collect())
}
