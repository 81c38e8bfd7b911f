//! The items of an answer while it grows, and the deltas in which they grew: what its events are made of
//! ([`super::events`]).

use std::collections::VecDeque;

use dialect::AnswerPart;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use transport::ids::Ids;

use crate::answers::Parsed;
use crate::openai::logprobs::TokenTexts;

/// What a delta adds to its item: bytes of its text, and the number of tokens with log probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u32)", into = "(u32, u32)")]
pub(super) struct Delta {
    pub(super) bytes: u32,
    pub(super) logprobs: u32,
}

impl From<(u32, u32)> for Delta {
    fn from((bytes, logprobs): (u32, u32)) -> Delta {
        Delta { bytes, logprobs }
    }
}

impl From<Delta> for (u32, u32) {
    fn from(delta: Delta) -> (u32, u32) {
        (delta.bytes, delta.logprobs)
    }
}

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Thought,
    Text,
    Call,
}

impl Kind {
    pub(super) fn of(item: &Value) -> Kind {
        match item["type"].as_str() {
            Some("reasoning") => Kind::Thought,
            Some("message") => Kind::Text,
            _ => Kind::Call,
        }
    }

    /// What of an item grows.
    pub(super) fn text(self, item: &Value) -> &str {
        let text = if self == Kind::Call { &item["arguments"] } else { &item["content"][0]["text"] };
        text.as_str().unwrap_or_default()
    }

    /// The part of an item that has no text yet. Calls have none.
    pub(super) fn empty_part(self) -> Value {
        match self {
            Kind::Thought => json!({"type": "reasoning_text", "text": ""}),
            _ => json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []}),
        }
    }
}

/// See the module's words.
#[derive(Clone, Debug, Default)]
pub(super) struct Growing {
    pub(super) items: Vec<Value>,
    /// Of all items, in their order.
    pub(super) deltas: Vec<Delta>,
    /// The last item is under way.
    open: Option<Kind>,
    /// Tokens whose text no item has yet, with what is to be told of each.
    waiting: VecDeque<(String, Option<Value>)>,
}

impl Growing {
    /// Whether the last item may grow.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    #[cfg(test)]
    pub(super) fn in_a_text(item: Value, delta: Delta) -> Growing {
        Growing { items: vec![item], deltas: vec![delta], open: Some(Kind::Text), waiting: VecDeque::new() }
    }

    /// What became known with a token.
    pub(super) fn push(&mut self, parsed: Parsed, ids: &Ids, texts: &TokenTexts<'_>) {
        match parsed.logprob {
            // Marks of a thought are none of the text behind it.
            Some(_) if parsed.is_thought => self.waiting.clear(),
            Some(logprob) => {
                let mut told = serde_json::to_value(texts.chat(&logprob)).unwrap_or_default();
                with_bytes(&mut told);
                self.waiting.push_back((parsed.text, Some(told)));
            }
            None => {}
        }
        parsed.parts.into_iter().for_each(|part| self.take(part, ids));
    }

    /// The next part of the answer.
    pub(super) fn take(&mut self, part: AnswerPart, ids: &Ids) {
        match part {
            AnswerPart::Text(text) => {
                let logprobs = of_text(&mut self.waiting, &text);
                // White space between calls is no message.
                if self.open != Some(Kind::Text) && !self.items.is_empty() && text.trim().is_empty() {
                    return;
                }
                self.grow(Kind::Text, &text, logprobs, ids);
                return;
            }
            AnswerPart::Thought(text) => self.grow(Kind::Thought, &text, Vec::new(), ids),
            AnswerPart::CallBegins { name, id, .. } => {
                self.close("completed");
                let call_id = id.unwrap_or_else(|| ids.call_id());
                self.items.push(json!({
                    "type": "function_call", "id": format!("fc_{}", ids.unique()), "status": "in_progress",
                    "call_id": call_id, "name": name, "arguments": "",
                }));
                self.open = Some(Kind::Call);
            }
            AnswerPart::Arguments { json, .. } => self.grow(Kind::Call, &json, Vec::new(), ids),
            AnswerPart::CallEnds { .. } => self.close("completed"),
        }
        self.waiting.clear();
    }

    /// The answer is over. A call that is still open was cut off.
    pub(super) fn end(&mut self) {
        self.close(if self.open == Some(Kind::Call) { "incomplete" } else { "completed" });
    }

    /// The answer is over before its end: whatever is open was cut off.
    pub(super) fn cut_off(mut self) -> (Vec<Value>, Vec<Delta>) {
        self.close("incomplete");
        (self.items, self.deltas)
    }

    fn grow(&mut self, kind: Kind, text: &str, logprobs: Vec<Value>, ids: &Ids) {
        if self.open != Some(kind) && kind != Kind::Call {
            self.close("completed");
            let id = ids.unique();
            self.items.push(match kind {
                Kind::Thought => json!({
                    "type": "reasoning", "id": format!("rs_{id}"), "summary": [], "content": [kind.empty_part()],
                    "status": "in_progress",
                }),
                _ => json!({
                    "type": "message", "id": format!("msg_{id}"), "role": "assistant", "content": [kind.empty_part()],
                    "status": "in_progress",
                }),
            });
            self.open = Some(kind);
        }
        let Some(item) = self.items.last_mut().filter(|_| !text.is_empty()) else { return };
        let grown = if kind == Kind::Call { &mut item["arguments"] } else { &mut item["content"][0]["text"] };
        if let Value::String(grown) = grown {
            grown.push_str(text);
        }
        self.deltas.push(Delta { bytes: text.len() as u32, logprobs: logprobs.len() as u32 });
        if kind == Kind::Text
            && let Value::Array(all) = &mut item["content"][0]["logprobs"]
        {
            all.extend(logprobs);
        }
    }

    fn close(&mut self, status: &str) {
        if self.open.take().is_some()
            && let Some(item) = self.items.last_mut()
        {
            item["status"] = status.into();
        }
    }
}

/// What is to be told of the tokens that have this text. Tokens before it are none of any text; what is behind it waits
/// for more. Tokens without a text are the beginning of the next one's.
fn of_text(waiting: &mut VecDeque<(String, Option<Value>)>, text: &str) -> Vec<Value> {
    if waiting.is_empty() || text.is_empty() {
        return Vec::new();
    }
    let raw: String = waiting.iter().map(|(text, _)| text.as_str()).collect();
    // A form that tells its text otherwise than it was written: then all of them are its tokens.
    let (start, end) = raw.find(text).map_or((0, raw.len()), |start| (start, start + text.len()));
    let mut logprobs = Vec::new();
    let mut at = 0;
    while at < end {
        let Some((piece, logprob)) = waiting.pop_front() else { break };
        let (from, to) = (at, at + piece.len());
        at = to;
        if to <= start && to > from {
            logprobs.clear();
            continue;
        }
        logprobs.extend(logprob);
        if to > end {
            waiting.push_front((piece[end - from..].to_owned(), None));
            break;
        }
    }
    logprobs
}

/// A token without bytes of its own has none to tell; strict clients want a list.
fn with_bytes(logprob: &mut Value) {
    if logprob["bytes"].is_null() {
        logprob["bytes"] = json!([]);
    }
    if let Value::Array(top) = &mut logprob["top_logprobs"] {
        top.iter_mut().filter(|entry| entry["bytes"].is_null()).for_each(|entry| entry["bytes"] = json!([]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_go_with_the_text_of_their_tokens() {
        // Tokens that came, the text that they made known, whose log probabilities are told, and what waits.
        let table: [(&[&str], &str, &[usize], usize); 9] = [
            (&["Hello"], "Hello", &[0], 0),
            (&["Hel", "lo"], "Hello", &[0, 1], 0),
            (&["</", "x>", "\n\n", "Hello"], "Hello", &[3], 0),
            (&["Hello", " <", "to"], "Hello", &[0], 2),
            (&["Hello <"], "Hello", &[0], 1),
            (&["", "", "\u{e9}"], "\u{e9}", &[0, 1, 2], 0),
            (&["x", "", "", "\u{e9}"], "\u{e9}", &[1, 2, 3], 0),
            (&["a", "b"], "other", &[0, 1], 0),
            (&["a"], "", &[], 1),
        ];
        for (tokens, text, told, waits) in table {
            let token = |(at, token): (usize, &&str)| ((*token).to_owned(), Some(json!(at)));
            let mut waiting: VecDeque<_> = tokens.iter().enumerate().map(token).collect();
            let logprobs = of_text(&mut waiting, text);
            assert_eq!(logprobs, told.iter().map(|at| json!(at)).collect::<Vec<_>>(), "{tokens:?} {text}");
            assert_eq!(waiting.len(), waits, "{tokens:?} {text}");
        }
        // The rest of a token is told without it a second time.
        let mut waiting = VecDeque::from([("Hello <".to_owned(), Some(json!(0))), ("b>".to_owned(), Some(json!(1)))]);
        assert_eq!(of_text(&mut waiting, "Hello"), [json!(0)]);
        assert_eq!(of_text(&mut waiting, " <b>"), [json!(1)]);
        assert!(waiting.is_empty());
    }
}
