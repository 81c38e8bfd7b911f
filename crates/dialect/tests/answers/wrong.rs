//! Mistakes in calls, and each family's result. Repairs belong to a syntax (values in tags, JSON, Python, Gemma's quotes,
//! a mark in a thought), so each mistake has one row and each family one cell in it.

use std::sync::Arc;

use dialect::{AnswerParser, AnswerPart, Calls, Dialect, Thoughts, Tool, whole};
use serde_json::{Value, json};

use crate::answers::check_arguments;
use testing::Dice;

mod attack;

/// The syntax around a call, and the syntax of its arguments.
#[derive(Clone, Copy, Debug)]
struct Family {
    name: &'static str,
    form: Form,
    /// Before a call: `@` is the tool's name.
    open: &'static str,
    close: &'static str,
    /// What closes the group, a part of `close`: the rest of it alone also ends a call.
    group: &'static str,
    /// Opens a thought.
    thought: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Json,
    Python,
    /// Before and after a key, before and after a value.
    Tags([&'static str; 4]),
    Gemma(&'static str),
}

const XML: Form = Form::Tags(["<parameter=", ">\n", "", "\n</parameter>\n"]);
const INVOKE: Form = Form::Tags(["<parameter name=\"", "\">", "", "</parameter>\n"]);
const PAIRS: Form = Form::Tags(["<arg_key>", "</arg_key>\n", "<arg_value>", "</arg_value>\n"]);

const fn family(name: &'static str, form: Form, open: &'static str, close: &'static str) -> Family {
    Family { name, form, open, close, group: "", thought: "<think>" }
}

const fn grouped(
    name: &'static str,
    form: Form,
    open: &'static str,
    close: &'static str,
    group: &'static str,
) -> Family {
    Family { name, form, open, close, group, thought: "<think>" }
}

const KIMI: [&str; 3] = [
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.@:0<|tool_call_argument_begin|>",
    "<|tool_call_end|><|tool_calls_section_end|>",
    "<|tool_calls_section_end|>",
];
const V3: [&str; 3] = [
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>@\n```json\n",
    "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<｜tool▁calls▁end｜>",
];
const V31: [&str; 2] =
    ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>@<｜tool▁sep｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"];
const HARMONY: &str = "<|channel|>commentary to=functions.@ <|constrain|>json<|message|>";

const FAMILIES: [Family; 31] = [
    family("hermes", Form::Json, "<tool_call>\n{\"name\": \"@\", \"arguments\": ", "}\n</tool_call>"),
    family("granite4", Form::Json, "<tool_call>\n{\"name\": \"@\", \"arguments\": ", "}\n</tool_call>"),
    family("llama3_json", Form::Json, "{\"name\": \"@\", \"parameters\": ", "}"),
    family("llama4_json", Form::Json, "<|python_tag|>{\"name\": \"@\", \"parameters\": ", "}"),
    family("mistral", Form::Json, "[TOOL_CALLS]@[ARGS]", ""),
    grouped("qwen3_coder", XML, "<tool_call>\n<function=@>\n", "</function>\n</tool_call>", "</tool_call>"),
    grouped("qwen3_xml", XML, "<tool_call>\n<function=@>\n", "</function>\n</tool_call>", "</tool_call>"),
    grouped("mimo", XML, "<tool_call>\n<function=@>\n", "</function>\n</tool_call>", "</tool_call>"),
    family("openai", Form::Json, HARMONY, "<|call|>"),
    grouped("deepseek_v3", Form::Json, V3[0], V3[1], V3[2]),
    grouped("deepseek_v31", Form::Json, V31[0], V31[1], V3[2]),
    family("glm45", PAIRS, "<tool_call>@\n", "</tool_call>"),
    family("glm47", PAIRS, "<tool_call>@\n", "</tool_call>"),
    family("granite", Form::Json, "<|tool_call|>[{\"name\": \"@\", \"arguments\": ", "}]"),
    family("granite-20b-fc", Form::Json, "<function_call> {\"name\": \"@\", \"arguments\": ", "}"),
    family("functiongemma", Form::Gemma("<escape>"), "<start_function_call>call:@{", "}<end_function_call>"),
    family("gemma4", Form::Gemma("<|\"|>"), "<|tool_call>call:@{", "}<tool_call|>"),
    family("gemma", Form::Python, "```tool_code\n@(", ")\n```"),
    family("phi4_mini_json", Form::Json, "<|tool_call|>[{\"name\": \"@\", \"arguments\": ", "}]<|/tool_call|>"),
    family("lfm2", Form::Python, "<|tool_call_start|>[@(", ")]<|tool_call_end|>"),
    family("llama4_pythonic", Form::Python, "<|python_start|>[@(", ")]<|python_end|>"),
    family("pythonic", Form::Python, "[@(", ")]"),
    family("olmo3", Form::Python, "<function_calls>\n@(", ")\n</function_calls>"),
    grouped("kimi_k2", Form::Json, KIMI[0], KIMI[1], KIMI[2]),
    grouped(
        "minimax_m2",
        INVOKE,
        "<minimax:tool_call>\n<invoke name=\"@\">\n",
        "</invoke>\n</minimax:tool_call>",
        "</minimax:tool_call>",
    ),
    grouped("seed_oss", XML, "<seed:tool_call>\n<function=@>\n", "</function>\n</seed:tool_call>", "</seed:tool_call>"),
    family("jamba", Form::Json, "<tool_calls>[{\"name\": \"@\", \"arguments\": ", "}]</tool_calls>"),
    family("hunyuan_a13b", Form::Json, "<tool_calls>[{\"name\": \"@\", \"arguments\": ", "}]</tool_calls>"),
    family("nemotron_json", Form::Json, "<TOOLCALL>[{\"name\": \"@\", \"arguments\": ", "}]</TOOLCALL>"),
    family("harmony", Form::Json, HARMONY, "<|call|>"),
    family("json", Form::Json, "{\"name\": \"@\", \"arguments\": ", "}"),
];

impl Family {
    fn is_harmony(self) -> bool {
        matches!(self.name, "openai" | "harmony")
    }

    /// Whether a call needs no mark at the start of an answer; it is not a call in a thought, or after text.
    fn is_bare(self) -> bool {
        self.open.starts_with(['{', '[']) && self.name != "mistral"
    }

    /// Whether the name is in an object with the arguments.
    fn is_envelope(self) -> bool {
        self.open.contains("\"@\"")
    }

    fn open(self, name: &str) -> String {
        self.open.replace('@', name)
    }

    fn call(self, name: &str, arguments: &str) -> String {
        format!("{}{arguments}{}", self.open(name), self.close)
    }

    /// The mark that begins a call; empty if there is none.
    fn mark(self) -> &'static str {
        let ends = [
            "<tool_call>",
            "<|python_tag|>",
            "[TOOL_CALLS]",
            "<｜tool▁calls▁begin｜>",
            "<|tool_call|>",
            "<function_call>",
            "<start_function_call>",
            "<|tool_call>",
            "```tool_code",
            "<|tool_call_start|>",
            "<|python_start|>",
            "<function_calls>",
            "<|tool_calls_section_begin|>",
            "<minimax:tool_call>",
            "<seed:tool_call>",
            "<tool_calls>",
            "<TOOLCALL>",
        ];
        ends.into_iter().find(|mark| self.open.starts_with(mark)).unwrap_or_default()
    }

    /// A string parameter in the family's syntax; with or without its closing mark, if it has one.
    fn text(self, key: &str, value: &str, is_closed: bool) -> String {
        match self.form {
            Form::Json => format!("\"{key}\": \"{value}{}", if is_closed { "\"" } else { "" }),
            Form::Python => format!("{key}=\"{value}{}", if is_closed { "\"" } else { "" }),
            Form::Gemma(quote) => format!("{key}:{quote}{value}{}", if is_closed { quote } else { "" }),
            Form::Tags([a, b, c, d]) => format!("{a}{key}{b}{c}{value}{}", if is_closed { d } else { "\n" }),
        }
    }

    /// A parameter with an unquoted value.
    fn bare_value(self, key: &str, value: &str) -> String {
        match self.form {
            Form::Json => format!("\"{key}\": {value}"),
            Form::Python => format!("{key}={value}"),
            Form::Gemma(_) => format!("{key}:{value}"),
            Form::Tags(_) => self.text(key, value, true),
        }
    }

    fn all(self, parameters: &[String]) -> String {
        match self.form {
            Form::Json => format!("{{{}}}", parameters.join(", ")),
            Form::Python | Form::Gemma(_) => parameters.join(","),
            Form::Tags(_) => parameters.concat(),
        }
    }

    fn one(self, parameter: String) -> String {
        self.call("look", &self.all(&[parameter]))
    }

    /// The correct answer, which the tables modify.
    fn right(self) -> String {
        self.one(self.text("file", "a.rs", true))
    }
}

/// A family's result for an answer.
enum Cell {
    /// One call of `look` with these arguments, and this text.
    Heard(String, Value, &'static str),
    /// This number of calls, and this text.
    Calls(String, usize, &'static str),
    /// The answer is not a complete call. Reason.
    Refused(String, &'static str),
    /// The family's syntax cannot express this.
    Impossible,
}
use Cell::{Heard, Impossible, Refused};

type Row = (&'static str, fn(Family) -> Cell);

const CUT: &str = "it looks like an answer that was cut";
const OWN_QUOTES: &str = "what is inside and what is behind the text looks alike";
const EXAMPLE: &str = "without a mark it is an example in a text";

const ROWS: &[Row] = &[
    ("right", |f| Heard(f.right(), json!({"file": "a.rs"}), "")),
    ("a value with its own closing mark", |f| match f.form {
        Form::Tags([.., close]) => {
            let mark = close.trim();
            let value = format!("grep '{mark}' a; b{mark}c");
            Heard(f.one(f.text("file", &value, true)), json!({"file": value}), "")
        }
        Form::Json => Heard(f.one(f.text("file", "say \"hi\" to", true)), json!({"file": "say \"hi\" to"}), ""),
        Form::Gemma(quote) => {
            let value = format!("a {quote}b{quote} c");
            Heard(f.one(f.text("file", &value, true)), json!({"file": value}), "")
        }
        Form::Python => Refused(f.one(f.text("file", "say \"hi\" to", true)), OWN_QUOTES),
    }),
    ("a value with the end of its call", |f| {
        let end = f.close.trim_start_matches(['}', ']', ')']).trim().replace(['\n', '"'], " ");
        let value = format!("x {end} y");
        Heard(f.one(f.text("file", &value, true)), json!({"file": value}), "")
    }),
    ("no closing mark before the next parameter", |f| match f.form {
        Form::Tags(_) => {
            let both = f.all(&[f.text("file", "a.rs", false), f.bare_value("rows", "12")]);
            Heard(f.call("look", &both), json!({"file": "a.rs", "rows": 12}), "")
        }
        Form::Gemma(_) => {
            let both = f.all(&[f.text("file", "a.rs", false), f.text("rows", "12", true)]);
            Heard(f.call("look", &both), json!({"file": "a.rs", "rows": 12}), "")
        }
        _ => Refused(f.call("look", &f.all(&[f.text("file", "a.rs", false), f.bare_value("rows", "12")])), OWN_QUOTES),
    }),
    ("no closing mark of the first of two", |f| match f.form {
        Form::Gemma(_) => {
            let both = f.all(&[f.text("file", "a, b", false), f.bare_value("rows", "12")]);
            Heard(f.call("look", &both), json!({"file": "a, b", "rows": 12}), "")
        }
        _ => Impossible,
    }),
    ("no closing mark before the end", |f| match f.form {
        Form::Tags(_) => Heard(f.one(f.text("file", "a.rs", false)), json!({"file": "a.rs"}), ""),
        Form::Gemma(_) => Heard(f.one(f.text("file", "a.rs", false)), json!({"file": "a.rs"}), ""),
        _ => Refused(f.one(f.text("file", "a.rs", false)), OWN_QUOTES),
    }),
    ("the end of the answer inside a value", |f| {
        Refused(format!("{}{}", f.open("look"), f.all(&[f.text("file", "a.r", false)])), CUT)
    }),
    ("no end of the group", |f| match f.group {
        "" => Impossible,
        group => Heard(f.right().replace(group, ""), json!({"file": "a.rs"}), ""),
    }),
    ("no closing mark at all", |f| match f.form {
        Form::Json => {
            Heard(f.right().replace(f.close.trim_start_matches(['}', ']', '\n']), ""), json!({"file": "a.rs"}), "")
        }
        _ => Impossible,
    }),
    ("no brace behind the arguments", |f| match f.is_envelope() {
        true => {
            let arguments = f.all(&[f.text("file", "a.rs", true)]);
            let one = format!("{}{arguments}{}", f.open("look"), f.close.replacen('}', "", 1));
            Heard(one, json!({"file": "a.rs"}), "")
        }
        false => Impossible,
    }),
    ("no brace of the arguments", |f| match f.form {
        Form::Json if f.close.is_empty() => Refused(f.right().replacen("\"}", "\"", 1), CUT),
        Form::Json => Heard(f.right().replacen("\"}", "\"", 1), json!({"file": "a.rs"}), ""),
        _ => Impossible,
    }),
    ("a brace too many", |f| match (f.form, f.close.trim_start_matches(['}', ']', '\n'])) {
        (Form::Json, close) if !close.is_empty() => {
            Heard(f.right().replace(close, &format!("}}{close}")), json!({"file": "a.rs"}), "")
        }
        _ => Impossible,
    }),
    ("no bracket behind a list", |f| match f.close.contains(']') && f.close.len() > 2 {
        true => Heard(f.right().replace(f.close, &f.close.replace(']', "")), json!({"file": "a.rs"}), ""),
        false => Impossible,
    }),
    ("the first mark twice", |f| match f.mark() {
        "" => Impossible,
        mark => Heard(format!("{mark}\n{}", f.right()), json!({"file": "a.rs"}), ""),
    }),
    ("the last mark twice", |f| {
        let end =
            f.close.rfind(['<', '`']).map_or("", |at| if f.close.ends_with("```") { "```" } else { &f.close[at..] });
        match end {
            "" => Impossible,
            // It ends a message.
            end => Heard(format!("{}\n{end}", f.right()), json!({"file": "a.rs"}), ""),
        }
    }),
    ("a prefix of the name", |f| {
        let name = if f.open.contains("functions.@") { "look" } else { "functions.look" };
        Heard(f.right().replacen("look", name, 1), json!({"file": "a.rs"}), "")
    }),
    ("no tool of that name", |f| Refused(f.right().replace("look", "looks"), "the client cannot run it")),
    ("a comma with nothing behind it", |f| match f.form {
        Form::Tags(_) => Impossible,
        Form::Json => Heard(f.right().replacen("\"}", "\",\n}", 1), json!({"file": "a.rs"}), ""),
        _ => Heard(f.one(format!("{},", f.text("file", "a.rs", true))), json!({"file": "a.rs"}), ""),
    }),
    ("commas in a value", |f| match f.form {
        Form::Gemma(_) => Heard(f.one(f.bare_value("all", "[1,2,]")), json!({"all": [1, 2]}), ""),
        _ => Heard(f.one(f.bare_value("all", "[1, 2, ]")), json!({"all": [1, 2]}), ""),
    }),
    ("a number that no JSON has", |f| Heard(f.one(f.bare_value("rows", "NaN")), json!({"rows": "NaN"}), "")),
    ("one without an end", |f| Heard(f.one(f.bare_value("rows", "-Infinity")), json!({"rows": "-Infinity"}), "")),
    ("a number of another base", |f| Heard(f.one(f.bare_value("rows", "0x1F")), json!({"rows": 31}), "")),
    ("a number with zeros before it", |f| Heard(f.one(f.bare_value("rows", "007")), json!({"rows": 7}), "")),
    ("such numbers in a list", |f| {
        Heard(f.one(f.bare_value("all", "[NaN,Infinity,0]")), json!({"all": ["NaN", "Infinity", 0]}), "")
    }),
    ("single quotes", |f| match f.form {
        Form::Json => {
            let one = f.right().replacen("\"file\": \"a.rs\"", "'file': 'a \"b\" it\\'s'", 1);
            Heard(one, json!({"file": "a \"b\" it's"}), "")
        }
        Form::Python => Heard(f.one("file='a \"b\" it\\'s'".into()), json!({"file": "a \"b\" it's"}), ""),
        _ => Impossible,
    }),
    ("single quotes in a value", |f| match f.form {
        Form::Gemma(_) => Impossible,
        _ => Heard(f.one(f.bare_value("at", "{'a': ['b', None]}")), json!({"at": {"a": ["b", null]}}), ""),
    }),
    ("keys without quotes", |f| match f.form {
        Form::Json => Heard(f.right().replacen("\"file\"", "file", 1), json!({"file": "a.rs"}), ""),
        Form::Python => Refused(f.one("at={a: 1}".into()), "a name is a variable"),
        Form::Tags(_) => Heard(f.one(f.bare_value("at", "{a: 1}")), json!({"at": {"a": 1}}), ""),
        Form::Gemma(_) => Impossible,
    }),
    ("Python's words", |f| match f.form {
        Form::Gemma(_) => Heard(f.one(f.bare_value("deep", "True")), json!({"deep": true}), ""),
        _ => Heard(f.one(f.bare_value("deep", "True")), json!({"deep": true}), ""),
    }),
    ("a fence inside the marks", |f| match f.form {
        _ if f.is_bare() => Refused(format!("```json\n{}\n```", f.right()), EXAMPLE),
        Form::Json if f.name == "deepseek_v3" => Impossible,
        Form::Json if f.is_envelope() => {
            let (mark, close) = (f.mark(), f.close.trim_start_matches(['}', ']', '\n']));
            let inside = f.right().replacen(mark, "", 1);
            let inside = inside.strip_suffix(close).unwrap_or(&inside).trim().to_owned();
            Heard(format!("{mark}\n```json\n{inside}\n```\n{close}"), json!({"file": "a.rs"}), "")
        }
        Form::Json => Heard(f.call("look", "```json\n{\"file\": \"a.rs\"}\n```"), json!({"file": "a.rs"}), ""),
        Form::Python if f.close.starts_with(")]") => {
            let close = &f.close[2..];
            let inside = format!("{}\n```python\n[look(file=\"a.rs\")]\n```{close}", f.mark());
            Heard(inside, json!({"file": "a.rs"}), "")
        }
        Form::Python | Form::Tags(_) | Form::Gemma(_) => Impossible,
    }),
    ("control characters", |f| {
        Heard(f.one(f.text("file", "a\nb\tc\u{1}d", true)), json!({"file": "a\nb\tc\u{1}d"}), "")
    }),
    ("lone backslashes", |f| {
        let value = r"C:\work \d+ \' \$";
        let heard = if f.form == Form::Python { r"C:\work \d+ ' \$" } else { value };
        Heard(f.one(f.text("file", value, true)), json!({"file": heard}), "")
    }),
    ("half an escape", |f| match f.form {
        Form::Json => {
            let heard = json!({"file": "\\u12g \u{fffd}. \u{fffd}A \\ux"});
            Heard(f.one(f.text("file", r"\u12g \ud83e. \ud83e\u0041 \ux", true)), heard, "")
        }
        _ => Impossible,
    }),
    ("an empty value for a number", |f| {
        let both = |empty: String| f.call("look", &f.all(&[f.text("file", "a", true), empty]));
        match f.form {
            Form::Tags(_) | Form::Gemma(_) => Heard(both(f.bare_value("rows", "")), json!({"file": "a"}), ""),
            Form::Json => Refused(both(f.bare_value("rows", "")), "no JSON"),
            Form::Python => Refused(both(f.bare_value("rows", "")), "no Python"),
        }
    }),
    ("a number with a point for an integer", |f| match f.form {
        Form::Tags(_) | Form::Gemma(_) => Heard(f.one(f.bare_value("rows", "5.0")), json!({"rows": 5}), ""),
        // JSON and Python have typed values: they are passed on.
        _ => Heard(f.one(f.bare_value("rows", "5.0")), json!({"rows": 5.0}), ""),
    }),
    ("a flag in quotes", |f| match f.form {
        Form::Tags(_) => Heard(f.one(f.bare_value("deep", "\"true\"")), json!({"deep": true}), ""),
        Form::Gemma(_) => Heard(f.one(f.text("deep", "true", true)), json!({"deep": true}), ""),
        _ => Heard(f.one(f.bare_value("deep", "\"true\"")), json!({"deep": "true"}), ""),
    }),
    ("arguments in a text", |f| match f.form {
        Form::Json => Heard(f.call("look", r#""{\"file\": \"a\\nb\"}""#), json!({"file": "a\nb"}), ""),
        _ => Impossible,
    }),
    ("broken arguments in a text", |f| match f.form {
        Form::Json => Heard(f.call("look", r#"'{"file": "\d", }'"#), json!({"file": "\\d"}), ""),
        _ => Impossible,
    }),
    ("no arguments", |f| match f.form {
        Form::Json if f.is_envelope() => Heard(f.call("look", "null"), json!({}), ""),
        Form::Json if f.close.is_empty() => Refused(f.call("look", ""), "a word behind a mark"),
        Form::Json => Heard(f.call("look", ""), json!({}), ""),
        _ => Heard(f.call("look", ""), json!({}), ""),
    }),
    ("text between two calls", |f| match f.is_bare() {
        true => Heard(format!("{} and {}", f.right(), f.right()), json!({"file": "a.rs"}), "behind"),
        false if f.is_harmony() => {
            let text = "<|start|>assistant<|channel|>final<|message|> and <|end|><|start|>assistant";
            Cell::Calls(format!("{}{text}{}", f.right(), f.right()), 2, " and ")
        }
        false => Cell::Calls(format!("{} and {}", f.right(), f.right()), 2, " and "),
    }),
    ("two calls in a row", |f| match f.name {
        "pythonic" => Cell::Calls(format!("{}\n{}", f.right(), f.right()), 2, ""),
        _ if f.is_harmony() => Cell::Calls(format!("{}<|start|>assistant{}", f.right(), f.right()), 2, ""),
        _ => Cell::Calls(format!("{}\n{}", f.right(), f.right()), 2, ""),
    }),
    ("three calls between one pair of marks", |f| {
        let close = f.close.trim_start_matches(['}', ']', '\n']);
        let right = f.right();
        let one = right.strip_prefix(f.mark()).and_then(|rest| rest.strip_suffix(close)).unwrap_or(&right);
        let one = one.trim_matches(['[', ']', '\n']);
        match f.form {
            Form::Json if f.is_envelope() && !close.is_empty() => {
                Cell::Calls(format!("{}{one}\n{one},\n{one}{close}", f.mark()), 3, "")
            }
            Form::Gemma(_) => Cell::Calls(format!("{}{one}\n{one},\n{one}{close}", f.mark()), 3, ""),
            _ => Impossible,
        }
    }),
    ("an id", |f| match f.is_envelope() {
        true => {
            let one = f.right().replacen("{\"name\"", "{\"id\": \"c1\", \"name\"", 1);
            Heard(one, json!({"file": "a.rs"}), if f.is_bare() { "refused" } else { "" })
        }
        false => Impossible,
    }),
    ("a call in a thought that never closes", |f| match f.is_harmony() || f.is_bare() {
        true => Impossible,
        false => Heard(format!("{}hm {}", f.thought, f.right()), json!({"file": "a.rs"}), ""),
    }),
    ("an example in a thought that closes", |f| match f.is_harmony() {
        true => Impossible,
        false => Cell::Calls(format!("{}hm {} so</think>Yes.", f.thought, f.right()), 0, "Yes."),
    }),
    ("an example and a call in thoughts", |f| match f.is_harmony() {
        true => Impossible,
        false => Heard(format!("{}hm {} so</think>{}", f.thought, f.right(), f.right()), json!({"file": "a.rs"}), ""),
    }),
];

fn tools() -> Arc<[Tool]> {
    let parameters = json!({"type": "object", "properties": {
        "file": {"type": "string"}, "rows": {"type": "integer"}, "deep": {"type": "boolean"},
        "all": {"type": "array"}, "at": {"type": "object"},
    }});
    [Tool { name: "look".into(), parameters, strict: false }].into()
}

/// Complete calls with their arguments, and all text. Panics at arguments that are not the beginning of an object.
fn calls_and_text(parts: &[AnswerPart]) -> (Vec<String>, String) {
    check_arguments(parts, false);
    let (mut calls, mut ended, mut text) = (Vec::new(), Vec::new(), String::new());
    for part in parts {
        match part {
            AnswerPart::Text(piece) => text.push_str(piece),
            AnswerPart::CallBegins { .. } => calls.push(String::new()),
            AnswerPart::Arguments { index, json } => calls[*index].push_str(json),
            AnswerPart::CallEnds { index } => ended.push(calls[*index].clone()),
            AnswerPart::Thought(_) => {}
        }
    }
    (ended, text)
}

fn cut(text: &str, seed: u64) -> Vec<&str> {
    let mut dice = Dice::new(seed);
    let (mut pieces, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let mut at = (1 + dice.roll(9)).min(rest.len());
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        let (piece, behind) = rest.split_at(at);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

#[test]
fn every_family_forgives_what_its_form_of_writing_can() {
    assert_eq!(FAMILIES.map(|family| family.name).as_slice(), &Calls::NAMES[..31]);
    let mut faults = Vec::new();
    for (row, cell) in ROWS {
        for family in FAMILIES {
            if let Err(fault) = walk(family, cell(family)) {
                faults.push(format!("{} | {row}: {fault}", family.name));
            }
        }
    }
    assert!(faults.is_empty(), "{} wrong cells:\n{}", faults.len(), faults.join("\n"));
}

/// One cell: whole, by character, in random cuts.
fn walk(family: Family, cell: Cell) -> Result<(), String> {
    let thoughts = if family.is_harmony() { "openai_gptoss" } else { "qwen3" };
    let dialect = Dialect::new(Thoughts::named(thoughts), Calls::named(family.name));
    let answer = match &cell {
        Heard(answer, ..) | Cell::Calls(answer, ..) | Refused(answer, _) => answer,
        Impossible => return Ok(()),
    };
    let heard = |pieces: &[&str]| {
        let (mut parser, mut parts) = (AnswerParser::new(&dialect, tools(), ""), Vec::new());
        pieces.iter().for_each(|piece| parser.push(piece, &mut parts));
        parser.finish(&mut parts);
        (parts, parser.calls_complete())
    };
    let (all, is_complete) = heard(&[answer]);
    let letters: Vec<&str> = answer.split_inclusive(|_| true).collect();
    if heard(&letters).0 != all {
        return Err(format!("letter by letter: {answer:?}"));
    }
    if let Some(seed) = (1..=30).find(|&seed| heard(&cut(answer, seed)).0 != all) {
        return Err(format!("cuts of seed {seed}: {answer:?}"));
    }
    let at_once = whole(&dialect, tools(), "", answer);
    if is_complete && at_once != all {
        return Err(format!("whole: {at_once:?}, streamed: {all:?}"));
    }
    let (calls, text) = calls_and_text(&at_once);
    let values: Vec<Value> = calls.iter().map(|call| serde_json::from_str(call).expect("it ended")).collect();
    let is_right = match &cell {
        Heard(_, wanted, "refused") => values.is_empty() || values == [wanted.clone()],
        Heard(_, wanted, "behind") => values == [wanted.clone()] && text.starts_with(" and "),
        Heard(_, wanted, said) => values == [wanted.clone()] && text.trim() == said.trim(),
        Cell::Calls(_, count, said) => values.len() == *count && text.trim() == said.trim(),
        Refused(answer, why) => !why.is_empty() && values.is_empty() && text.trim().len() + 40 >= answer.trim().len(),
        Impossible => true,
    };
    if is_right { Ok(()) } else { Err(format!("{answer:?}: {at_once:?}")) }
}
