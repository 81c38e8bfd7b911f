//! Items of an input as the messages that a chat template reads.
//!
//! ```text
//! reasoning, message (assistant), function_call, function_call  -->  one assistant message: thought, text, two calls
//! function_call_output                                          -->  one message of role tool
//! message (user, system, developer)                             -->  one message
//! ```

use engine::ChatMessage;
use serde_json::{Map, Value, json};
use transport::error::ApiError;
use transport::fields::{Fields, check_short, wrong_type};
use transport::json;

use super::shapes::{ITEM, PART};
use crate::conversation::{insert_thought, told_call};

/// Messages from the items of one input after another.
#[derive(Default)]
pub(crate) struct Messages {
    pub(crate) list: Vec<ChatMessage>,
    /// Whether the last message is an assistant's that may have more to it.
    is_open: bool,
    /// Kinds of items that the model was not told of.
    pub(crate) passed_over: Vec<&'static str>,
}

/// What an item is that tools of others leave in a conversation.
#[derive(Clone, Copy)]
enum Foreign {
    /// A call; the name of its tool unless the item has one, and the field with its arguments.
    Call(Option<&'static str>, &'static str),
    /// What came of a call: its field `output`.
    Output,
    /// A call and what came of it, in one item.
    Both,
    /// What ran on its maker's server, or says nothing to a model.
    Nothing(&'static str),
}

/// All kinds of items that OpenAI knows and that are none of ours.
const FOREIGN: [(&str, Foreign); 27] = [
    ("custom_tool_call", Foreign::Call(None, "input")),
    ("custom_tool_call_output", Foreign::Output),
    ("local_shell_call", Foreign::Call(Some("local_shell"), "action")),
    ("local_shell_call_output", Foreign::Output),
    ("shell_call", Foreign::Call(Some("shell"), "action")),
    ("shell_call_output", Foreign::Output),
    ("apply_patch_call", Foreign::Call(Some("apply_patch"), "operation")),
    ("apply_patch_call_output", Foreign::Output),
    ("mcp_call", Foreign::Both),
    ("computer_call", Foreign::Nothing("input[].computer_call")),
    ("computer_call_output", Foreign::Nothing("input[].computer_call_output")),
    ("web_search_call", Foreign::Nothing("input[].web_search_call")),
    ("file_search_call", Foreign::Nothing("input[].file_search_call")),
    ("code_interpreter_call", Foreign::Nothing("input[].code_interpreter_call")),
    ("image_generation_call", Foreign::Nothing("input[].image_generation_call")),
    ("mcp_list_tools", Foreign::Nothing("input[].mcp_list_tools")),
    ("mcp_approval_request", Foreign::Nothing("input[].mcp_approval_request")),
    ("mcp_approval_response", Foreign::Nothing("input[].mcp_approval_response")),
    ("tool_search_call", Foreign::Nothing("input[].tool_search_call")),
    ("tool_search_output", Foreign::Nothing("input[].tool_search_output")),
    ("additional_tools", Foreign::Nothing("input[].additional_tools")),
    ("compaction", Foreign::Nothing("input[].compaction")),
    ("compaction_summary", Foreign::Nothing("input[].compaction_summary")),
    ("compaction_trigger", Foreign::Nothing("input[].compaction_trigger")),
    ("context_compaction", Foreign::Nothing("input[].context_compaction")),
    ("ghost_snapshot", Foreign::Nothing("input[].ghost_snapshot")),
    ("web_search_call_output", Foreign::Nothing("input[].web_search_call_output")),
];

/// What an item is that none of our tools left.
fn foreign(item: &Value) -> Option<&'static (&'static str, Foreign)> {
    let kind = item["type"].as_str()?;
    FOREIGN.iter().find(|(name, _)| *name == kind)
}

/// Does something with a body from which the items of other servers' tools are out: their members are not those of ours.
pub(crate) fn without_foreign<T>(body: &mut Value, act: impl FnOnce(&mut Value) -> T) -> T {
    let mut out = Vec::new();
    if let Some(Value::Array(items)) = body.get_mut("input") {
        let foreign = items.iter_mut().enumerate().filter(|(_, item)| foreign(item).is_some());
        out.extend(foreign.map(|(at, item)| (at, item.take())));
    }
    let done = act(body);
    for (at, item) in out {
        body["input"][at] = item;
    }
    done
}

impl Messages {
    /// Goes on from these.
    pub(crate) fn after(list: Vec<ChatMessage>) -> Messages {
        Messages { list, ..Messages::default() }
    }

    /// A text or a list of items.
    pub(crate) fn read(&mut self, input: Value) -> Result<(), ApiError> {
        match input {
            Value::String(text) => {
                self.list.push(ChatMessage::new("user", text));
                Ok(())
            }
            Value::Array(items) if !items.is_empty() => {
                items.into_iter().enumerate().try_for_each(|(at, item)| self.item(format!("input[{at}]"), item))
            }
            _ => Err(wrong_type("input", "a string or a list of items that is not empty")),
        }
    }

    fn item(&mut self, path: String, item: Value) -> Result<(), ApiError> {
        let foreign = foreign(&item);
        if let Some((_, foreign)) = foreign {
            return self.foreign(&path, &item, *foreign);
        }
        let mut fields = Fields::nested(item, path, &ITEM)?;
        let kind_name = fields.name("type");
        let kind = fields.string("type")?;
        // What an item of an answer has, and comes back with it.
        fields.string("id")?;
        fields.string("status")?;
        match kind.as_deref() {
            None | Some("message") => self.message(&mut fields)?,
            Some("reasoning") => self.reasoning(&mut fields)?,
            Some("function_call") => self.call(&mut fields)?,
            Some("function_call_output") => self.output(&mut fields)?,
            Some(_) => {
                let known = "'message', 'reasoning', 'function_call', 'function_call_output', 'item_reference', or a \
                             kind of item that OpenAI knows";
                return Err(wrong_type(kind_name, known));
            }
        }
        fields.finish()
    }

    fn message(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        let role = match fields.text("role")?.as_str() {
            "user" => "user",
            "assistant" => "assistant",
            _ => "system",
        };
        // Which part of a conversation it is, to those who number parts.
        fields.string("phase")?;
        let name = fields.name("content");
        let text = match fields.take("content") {
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => text_of(parts, &name)?,
            _ => return Err(wrong_type(name, "a string or a list of text parts")),
        };
        if role == "assistant" {
            let message = self.assistant();
            let before = message.content.take().unwrap_or_default();
            message.content = Some(if before.is_empty() { text } else { format!("{before}\n{text}") });
        } else {
            self.push(ChatMessage::new(role, text));
        }
        Ok(())
    }

    fn reasoning(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        let mut texts = Vec::new();
        for field in ["summary", "content"] {
            let name = fields.name(field);
            let parts = match fields.take(field) {
                None => Vec::new(),
                Some(Value::Array(parts)) => parts,
                Some(_) => return Err(wrong_type(name, "a list")),
            };
            for (at, part) in parts.into_iter().enumerate() {
                let mut part = Fields::nested(part, format!("{name}[{at}]"), &PART)?;
                part.string("type")?;
                let text = part.string("text")?;
                part.finish()?;
                // A summary comes from elsewhere; the thought is the content.
                texts.extend(text.filter(|_| field == "content"));
            }
        }
        // Encrypted by and for its maker; ours has none.
        fields.string("encrypted_content")?;
        let thought = texts.concat();
        let message = self.assistant();
        if !thought.is_empty() {
            insert_thought(&mut message.extra, &thought);
        }
        Ok(())
    }

    fn call(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        let id = fields.string("call_id")?;
        fields.string("namespace")?;
        let name = fields.text("name")?;
        let arguments = fields.string("arguments")?.unwrap_or_default();
        self.called(id, &name, parsed(arguments));
        Ok(())
    }

    fn called(&mut self, id: Option<String>, name: &str, arguments: Value) {
        let call = told_call(id, name, &arguments);
        let calls = self.assistant().extra.entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
    }

    /// An item that another server's tools left. Its fields are theirs: what is not read changes nothing here.
    fn foreign(&mut self, path: &str, item: &Value, foreign: Foreign) -> Result<(), ApiError> {
        let text = |field: &str| item[field].as_str().map(str::to_owned);
        let id = || {
            let id = text("call_id").or_else(|| text("id"));
            id.as_ref().map_or(Ok(()), |id| check_short(id, || format!("{path}.call_id"))).map(|()| id)
        };
        let needed = |field: &str| text(field).ok_or_else(|| wrong_type(format!("{path}.{field}"), "a string"));
        match foreign {
            Foreign::Nothing(hint) => {
                if !self.passed_over.contains(&hint) {
                    self.passed_over.push(hint);
                }
            }
            Foreign::Call(name, field) => {
                let name = name.map_or_else(|| needed("name"), |name| Ok(name.to_owned()))?;
                let arguments = match &item[field] {
                    object @ Value::Object(_) => object.clone(),
                    Value::String(text) => json!({field: text}),
                    _ => return Err(wrong_type(format!("{path}.{field}"), "a string or an object")),
                };
                self.called(id()?, &name, arguments);
            }
            Foreign::Output => self.came(id()?, shown(&item["output"])),
            Foreign::Both => {
                let (name, arguments) = (needed("name")?, text("arguments").unwrap_or_default());
                self.called(id()?, &name, parsed(arguments));
                let what_came = [&item["output"], &item["error"]].into_iter().find(|value| !value.is_null());
                if let Some(what_came) = what_came {
                    self.came(id()?, shown(what_came));
                }
            }
        }
        Ok(())
    }

    fn output(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        let id = fields.short("call_id")?;
        let name = fields.name("output");
        let text = match fields.take("output") {
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => text_of(parts, &name)?,
            _ => return Err(wrong_type(name, "a string or a list of text parts")),
        };
        self.came(id, text);
        Ok(())
    }

    fn came(&mut self, id: Option<String>, text: String) {
        let mut extra = Map::new();
        if let Some(id) = id {
            extra.insert("tool_call_id".to_owned(), id.into());
        }
        self.push(ChatMessage { role: "tool".to_owned(), content: Some(text), extra });
    }

    fn push(&mut self, message: ChatMessage) {
        self.is_open = false;
        self.list.push(message);
    }

    /// The assistant's message that these items belong to.
    fn assistant(&mut self) -> &mut ChatMessage {
        if !std::mem::replace(&mut self.is_open, true) {
            let (role, extra) = ("assistant".to_owned(), Map::new());
            self.list.push(ChatMessage { role, content: None, extra });
        }
        self.list.last_mut().expect("one was pushed")
    }
}

/// Arguments as JSON, or as the text that they are.
fn parsed(arguments: String) -> Value {
    match arguments.trim() {
        "" => json!({}),
        _ => json::of_text(&arguments).unwrap_or(Value::String(arguments)),
    }
}

/// What came of a tool as a text: its own, that of its parts, or JSON.
fn shown(output: &Value) -> String {
    match output {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) if parts.iter().all(|part| part["text"].is_string()) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}

/// Text parts, one after the other.
fn text_of(parts: Vec<Value>, path: &str) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        let mut part = Fields::nested(part, format!("{path}[{at}]"), &PART)?;
        let kind = part.name("type");
        match part.string("type")?.as_deref() {
            Some("input_text" | "output_text" | "text" | "reasoning_text") => {}
            Some("refusal") => {
                texts.extend(part.string("refusal")?);
                part.finish()?;
                continue;
            }
            _ => return Err(wrong_type(kind, "'input_text' or 'output_text': this server reads text only")),
        }
        // What our own answers have, and comes back with them.
        part.list("annotations")?;
        part.list("logprobs")?;
        texts.push(part.text("text")?);
        part.finish()?;
    }
    Ok(texts.join("\n"))
}
