//! Blocks of a conversation as the messages that a chat template reads.
//!
//! ```text
//! assistant: thinking, text, tool_use, tool_use  -->  one assistant message: thought, text, two calls
//! user: tool_result, tool_result, text           -->  two messages of role tool, one of role user
//! system                                         -->  one message, where it stands
//! ```

use engine::ChatMessage;
use serde_json::{Map, Value, json};
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};
use transport::hints::Hints;

use super::shapes::BLOCK;
use crate::conversation::{insert_thought, told_call};

/// Blocks that only their maker can read: not passed to the model.
const REDACTED: &str = "messages[].content[].redacted_thinking";
const BLOCKS: &str = "messages[].content[]";
/// What the blocks of this API may be that this server does not read.
const TEXT_ONLY: &str = "this server reads text only: send text";

/// Messages while they are read.
#[derive(Default)]
pub(super) struct Messages {
    pub(super) list: Vec<ChatMessage>,
    /// Blocks that were taken and change nothing.
    pub(super) hints: Hints,
}

impl Messages {
    /// Whether the last turn is the assistant's own: then the answer goes on with it.
    pub(super) fn is_begun(&self) -> bool {
        self.list.last().is_some_and(|message| message.role == "assistant")
    }

    /// The field `system`: a text, or text blocks.
    pub(super) fn system(&mut self, system: Option<Value>) -> Result<(), ApiError> {
        if let Some(system) = system {
            let text = self.text_of(system, "system", "system[]")?;
            self.list.push(ChatMessage::new("system", text));
        }
        Ok(())
    }

    /// One of the field `messages`.
    pub(super) fn message(&mut self, mut fields: Fields) -> Result<(), ApiError> {
        let role = fields.text("role")?;
        let name = fields.name("content");
        let content = fields.take("content");
        fields.finish()?;
        let expected = "a string or a list of blocks that is not empty";
        let blocks = match content {
            Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
            Some(Value::Array(blocks)) if !blocks.is_empty() => blocks,
            _ => return Err(wrong_type(name, expected)),
        };
        match role.as_str() {
            "user" => self.user(blocks, &name),
            "assistant" => self.assistant(blocks, &name),
            _ => {
                let text = self.text_of(blocks.into(), &name, BLOCKS)?;
                self.list.push(ChatMessage::new("system", text));
                Ok(())
            }
        }
    }

    fn user(&mut self, blocks: Vec<Value>, path: &str) -> Result<(), ApiError> {
        for (at, block) in blocks.into_iter().enumerate() {
            let mut block = Fields::nested(block, format!("{path}[{at}]"), &BLOCK)?;
            match block.string("type")?.as_deref() {
                Some("text") => {
                    let text = text(&mut block)?;
                    self.say("user", &text);
                }
                Some("tool_result") => self.result(&mut block)?,
                kind => return Err(unknown(&block, kind, "'text' or 'tool_result'")),
            }
            self.hints.extend(block.rest(BLOCKS));
        }
        Ok(())
    }

    fn assistant(&mut self, blocks: Vec<Value>, path: &str) -> Result<(), ApiError> {
        if !self.is_begun() {
            let (role, extra) = ("assistant".to_owned(), Map::new());
            self.list.push(ChatMessage { role, content: None, extra });
        }
        for (at, block) in blocks.into_iter().enumerate() {
            let mut block = Fields::nested(block, format!("{path}[{at}]"), &BLOCK)?;
            match block.string("type")?.as_deref() {
                Some("text") => {
                    let text = text(&mut block)?;
                    self.say("assistant", &text);
                }
                Some("thinking") => self.thought(&mut block)?,
                Some("redacted_thinking") => {
                    block.string("data")?;
                    self.hints.push(REDACTED);
                }
                Some("tool_use") => self.call(&mut block)?,
                kind => {
                    return Err(unknown(&block, kind, "'text', 'thinking', 'redacted_thinking' or 'tool_use'"));
                }
            }
            self.hints.extend(block.rest(BLOCKS));
        }
        Ok(())
    }

    /// Text of one turn stands on lines of its own, whether it came in blocks or in messages.
    fn say(&mut self, role: &str, text: &str) {
        match self.list.last_mut().filter(|message| message.role == role) {
            Some(message) => match &mut message.content {
                Some(content) => {
                    content.push('\n');
                    content.push_str(text);
                }
                none => *none = Some(text.to_owned()),
            },
            None => self.list.push(ChatMessage::new(role, text)),
        }
    }

    fn thought(&mut self, block: &mut Fields) -> Result<(), ApiError> {
        let text = block.text("thinking")?;
        // Says that its maker wrote it; ours is empty.
        block.string("signature")?;
        let extra = self.list.last_mut().map(|message| &mut message.extra);
        if let (Some(extra), false) = (extra, text.is_empty()) {
            let before = extra.get("thinking").and_then(Value::as_str).unwrap_or_default();
            let thought = format!("{before}{text}");
            insert_thought(extra, &thought);
        }
        Ok(())
    }

    fn call(&mut self, block: &mut Fields) -> Result<(), ApiError> {
        let [id, name] = [block.text("id")?, block.text("name")?];
        let input_name = block.name("input");
        let input = block.map("input")?.ok_or_else(|| wrong_type(input_name, "an object"))?;
        block.only("caller", &json!({"type": "direct"}), "only the model itself calls tools here")?;
        let call = told_call(Some(id), &name, &input.into());
        let message = self.list.last_mut().map(|message| &mut message.extra);
        let calls = message.map(|extra| extra.entry("tool_calls").or_insert_with(|| json!([])));
        if let Some(Value::Array(calls)) = calls {
            calls.push(call);
        }
        Ok(())
    }

    fn result(&mut self, block: &mut Fields) -> Result<(), ApiError> {
        let id_name = block.name("tool_use_id");
        let id = block.short("tool_use_id")?.ok_or_else(|| wrong_type(id_name, "a string"))?;
        let name = block.name("content");
        let text = match block.take("content") {
            Some(content) => self.text_of(content, &name, "messages[].content[].content[]")?,
            None => String::new(),
        };
        // Templates have no place for it, so it is said in words.
        let text = if block.boolean("is_error")?.unwrap_or(false) { format!("Error: {text}") } else { text };
        let extra = Map::from_iter([("tool_call_id".to_owned(), Value::from(id))]);
        self.list.push(ChatMessage { role: "tool".to_owned(), content: Some(text), extra });
        Ok(())
    }

    /// A text, or text blocks, on lines of their own. `place`: where such blocks stand.
    fn text_of(&mut self, content: Value, path: &str, place: &str) -> Result<String, ApiError> {
        let blocks = match content {
            Value::String(text) => return Ok(text),
            Value::Array(blocks) => blocks,
            _ => return Err(wrong_type(path, "a string or a list of text blocks")),
        };
        let mut texts = Vec::with_capacity(blocks.len());
        for (at, block) in blocks.into_iter().enumerate() {
            let mut block = Fields::nested(block, format!("{path}[{at}]"), &BLOCK)?;
            match block.string("type")?.as_deref() {
                Some("text") => texts.push(text(&mut block)?),
                kind => return Err(unknown(&block, kind, "'text'")),
            }
            self.hints.extend(block.rest(place));
        }
        Ok(texts.join("\n"))
    }
}

fn text(block: &mut Fields) -> Result<String, ApiError> {
    block.only("citations", &json!([]), "this server cites nothing: send the text alone")?;
    block.text("text")
}

/// A block of a kind that has no place here: one of the API's others, or none at all.
fn unknown(block: &Fields, kind: Option<&str>, known: &str) -> ApiError {
    let name = block.name("type");
    match kind {
        Some("image" | "document" | "search_result" | "container_upload" | "tool_reference") => {
            ApiError::unsupported(name, TEXT_ONLY)
        }
        _ => wrong_type(name, known),
    }
}
