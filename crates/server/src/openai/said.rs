//! The parts of an answer as OpenAI's messages and deltas have them.

use dialect::AnswerPart;

use crate::app::App;
use crate::openai::wire::{CallFunction, ChatMessageOut, Delta, WireCall};

/// Parts, put together by kind.
#[derive(Default)]
pub(crate) struct Said {
    thought: Option<String>,
    text: Option<String>,
    calls: Vec<WireCall>,
}

impl Said {
    pub(crate) fn of(parts: Vec<AnswerPart>, app: &App) -> Said {
        let mut said = Said::default();
        for part in parts {
            match part {
                AnswerPart::Thought(text) => said.thought.get_or_insert_default().push_str(&text),
                AnswerPart::Text(text) => said.text.get_or_insert_default().push_str(&text),
                AnswerPart::CallBegins { index, name, id } => {
                    let function = CallFunction { name: Some(name), arguments: String::new() };
                    let id = Some(id.unwrap_or_else(|| app.ids.call_id()));
                    said.calls.push(WireCall { index: Some(index), id, r#type: Some("function"), function });
                }
                AnswerPart::Arguments { index, json } => match said.calls.last_mut() {
                    Some(call) if call.index == Some(index) => call.function.arguments.push_str(&json),
                    _ => {
                        let function = CallFunction { name: None, arguments: json };
                        said.calls.push(WireCall { index: Some(index), id: None, r#type: None, function });
                    }
                },
                AnswerPart::CallEnds { .. } => {}
            }
        }
        said
    }

    /// Whether there is anything to see.
    pub(crate) fn is_empty(&self) -> bool {
        self.thought.is_none() && self.text.is_none() && self.calls.is_empty()
    }

    pub(crate) fn message(mut self) -> ChatMessageOut {
        // A number is for the pieces of a stream.
        self.calls.iter_mut().for_each(|call| call.index = None);
        // White space beside a thought or a call is dropped.
        let has_more = self.thought.is_some() || !self.calls.is_empty();
        let text = self.text.filter(|text| !(has_more && text.trim().is_empty()));
        let content = if self.calls.is_empty() { Some(text.unwrap_or_default()) } else { text };
        ChatMessageOut {
            content,
            reasoning_content: self.thought.clone(),
            reasoning: self.thought,
            tool_calls: self.calls,
            ..ChatMessageOut::default()
        }
    }

    /// A piece of one.
    pub(crate) fn delta(self) -> Delta {
        Delta {
            role: None,
            content: self.text,
            reasoning_content: self.thought.clone(),
            reasoning: self.thought,
            tool_calls: self.calls,
        }
    }
}
