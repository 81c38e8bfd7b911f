//! The events of an answer, numbered from 0: of its items and the deltas in which they grew the same events come at any
//! time, so that nothing of them has to be kept.
//!
//! ```text
//! created, queued (in the background), in_progress
//! of each item: added, its part added, deltas, text done, part done, done      (a call has no part)
//! completed, incomplete or failed
//! ```
//! A reader has a place of its own ([`Teller`]) in what is there ([`Told`]), whether that grows or has ended.

use std::ops::Range;

use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use transport::sse::framed;

use super::growing::{Delta, Growing, Kind};
use super::store::Content;

/// What can be told of an answer now.
pub(super) struct Told<'a> {
    /// As it ended, or without an answer.
    response: &'a Value,
    items: &'a [Value],
    deltas: &'a [Delta],
    /// The model has said something, or will not.
    has_begun: bool,
    /// The last item may grow.
    is_open: bool,
    has_ended: bool,
}

impl<'a> Told<'a> {
    pub(super) fn growing(head: &'a Value, growing: &'a Growing, has_begun: bool) -> Told<'a> {
        Told {
            response: head,
            items: &growing.items,
            deltas: &growing.deltas,
            has_begun,
            is_open: growing.is_open(),
            has_ended: false,
        }
    }

    pub(super) fn ended(content: &'a Content) -> Told<'a> {
        let items = content.response["output"].as_array().map_or(&[][..], Vec::as_slice);
        Told {
            response: &content.response,
            items,
            deltas: &content.deltas,
            has_begun: true,
            is_open: false,
            has_ended: true,
        }
    }

    fn status(&self) -> &str {
        self.response["status"].as_str().unwrap_or_default()
    }

    /// Whether this is where the answer was cut off: of its last item nothing is told behind the deltas.
    fn is_cut_off(&self, item: usize) -> bool {
        let is_last = item + 1 == self.items.len();
        is_last && matches!(self.status(), "failed" | "cancelled") && self.items[item]["status"] == "incomplete"
    }

    /// The response as it was before there was an answer.
    fn before(&self, status: &str) -> Value {
        let Value::Object(fields) = self.response else { return Value::Null };
        let is_later = |name: &str| matches!(name, "timings" | "hints" | "max_tokens");
        let field = |(name, value): (&String, &Value)| {
            let value = match name.as_str() {
                "status" => status.into(),
                "output" => json!([]),
                "usage" | "error" | "incomplete_details" => Value::Null,
                _ => value.clone(),
            };
            (name.clone(), value)
        };
        fields.iter().filter(|(name, _)| !is_later(name)).map(field).collect::<Map<_, _>>().into()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Created,
    Queued,
    InProgress,
    Added(usize),
    PartAdded(usize),
    /// Bytes of the item's text, and which of its log probabilities.
    Delta(usize, Range<usize>, Range<usize>),
    TextDone(usize),
    PartDone(usize),
    Done(usize),
    Ended,
}

/// Which event comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Created,
    Queued,
    InProgress,
    Item,
    Part,
    Delta,
    PartDone,
    Done,
    Nothing,
}

/// A place in the events of an answer.
#[derive(Clone, Debug)]
pub(super) struct Teller {
    next: Next,
    /// Its number.
    sequence: u64,
    /// The item at which it is, how much of that was told, and in how many deltas of all.
    item: usize,
    bytes: usize,
    logprobs: usize,
    deltas: usize,
    /// Events up to this number are not told.
    after: Option<u64>,
}

impl Teller {
    /// Before the event behind that number, or before all.
    pub(super) fn new(after: Option<u64>) -> Teller {
        Teller { next: Next::Created, sequence: 0, item: 0, bytes: 0, logprobs: 0, deltas: 0, after }
    }

    /// The next event; `None`: none now, or none any more.
    pub(super) fn tell(&mut self, told: &Told<'_>) -> Option<Bytes> {
        loop {
            let event = self.step(told)?;
            let mut number = self.sequence;
            self.sequence += 1;
            if self.after.is_some_and(|after| number <= after) {
                // How many events a lost answer had is not known: its end comes behind whatever was read.
                if event != Event::Ended || told.status() != "failed" {
                    continue;
                }
                number = self.after.map_or(number, |after| after.saturating_add(1));
            }
            return Some(written(number, &event, told));
        }
    }

    /// The last event of an answer that was forgotten while it was read, once.
    pub(super) fn forgotten(&mut self) -> Option<Bytes> {
        if std::mem::replace(&mut self.next, Next::Nothing) == Next::Nothing {
            return None;
        }
        let number = self.after.map_or(self.sequence, |after| self.sequence.max(after.saturating_add(1)));
        let message = "This response was deleted: nothing more of it is told.";
        let body = json!({"type": "error", "sequence_number": number, "code": "response_not_found", "message": message,
            "param": null});
        Some(format!("event: error\n{}", framed(&body.to_string())).into())
    }

    fn step(&mut self, told: &Told<'_>) -> Option<Event> {
        let (event, next) = match self.next {
            Next::Nothing => return None,
            Next::Created if told.response["background"] == true => (Event::Created, Next::Queued),
            Next::Created => (Event::Created, Next::InProgress),
            Next::Queued => (Event::Queued, Next::InProgress),
            Next::InProgress if !told.has_begun => return None,
            Next::InProgress => (Event::InProgress, Next::Item),
            Next::Item => match told.items.get(self.item) {
                None if !told.has_ended => return None,
                None => (Event::Ended, Next::Nothing),
                Some(item) if Kind::of(item) == Kind::Call => (Event::Added(self.item), Next::Delta),
                Some(_) => (Event::Added(self.item), Next::Part),
            },
            Next::Part => (Event::PartAdded(self.item), Next::Delta),
            Next::Delta => match self.delta(told) {
                Some(delta) => (delta, Next::Delta),
                None => self.behind_deltas(told)?,
            },
            Next::PartDone => (Event::PartDone(self.item), Next::Done),
            Next::Done => {
                let done = self.item;
                (self.item, self.bytes, self.logprobs) = (done + 1, 0, 0);
                (Event::Done(done), Next::Item)
            }
        };
        self.next = next;
        Some(event)
    }

    /// The next delta of the item, if there is one.
    fn delta(&mut self, told: &Told<'_>) -> Option<Event> {
        let item = &told.items[self.item];
        let text = Kind::of(item).text(item);
        let left = text.get(self.bytes..).filter(|left| !left.is_empty())?;
        let all = item["content"][0]["logprobs"].as_array().map_or(0, Vec::len);
        // An answer without recorded deltas has one per item.
        let delta = told.deltas.get(self.deltas).filter(|delta| left.is_char_boundary(delta.bytes as usize));
        let (bytes, logprobs) =
            delta.map_or((left.len(), all), |delta| (delta.bytes as usize, delta.logprobs as usize));
        let (from, first) = (self.bytes, self.logprobs);
        (self.bytes, self.logprobs) = (from + bytes, all.min(first + logprobs));
        self.deltas += 1;
        Some(Event::Delta(self.item, from..self.bytes, first..self.logprobs))
    }

    /// What comes when all text of the item was told.
    fn behind_deltas(&mut self, told: &Told<'_>) -> Option<(Event, Next)> {
        let item = &told.items[self.item];
        if told.is_open && self.item + 1 == told.items.len() {
            return None;
        }
        if told.is_cut_off(self.item) {
            return Some((Event::Ended, Next::Nothing));
        }
        match Kind::of(item) {
            Kind::Call if item["status"] == "completed" => Some((Event::TextDone(self.item), Next::Done)),
            Kind::Call => {
                // The arguments of a call that was cut off never are done.
                let done = self.item;
                (self.item, self.bytes, self.logprobs) = (done + 1, 0, 0);
                Some((Event::Done(done), Next::Item))
            }
            _ => Some((Event::TextDone(self.item), Next::PartDone)),
        }
    }
}

/// `event:` and `data:`.
fn written(number: u64, event: &Event, told: &Told<'_>) -> Bytes {
    let (name, fields) = named(event, told);
    let mut body = json!({"type": name, "sequence_number": number});
    if let Value::Object(fields) = fields {
        fields.into_iter().for_each(|(name, value)| body[name] = value);
    }
    format!("event: {name}\n{}", framed(&body.to_string())).into()
}

fn named(event: &Event, told: &Told<'_>) -> (&'static str, Value) {
    let item = |at: &usize| &told.items[*at];
    let place = |at: &usize| json!({"item_id": item(at)["id"], "output_index": at});
    let part = |at: &usize| json!({"item_id": item(at)["id"], "output_index": at, "content_index": 0});
    let with = |mut fields: Value, name: &str, value: Value| {
        fields[name] = value;
        fields
    };
    match event {
        Event::Created | Event::Queued => {
            let status = if told.response["background"] == true { "queued" } else { "in_progress" };
            let name = if *event == Event::Created { "response.created" } else { "response.queued" };
            (name, json!({"response": told.before(status)}))
        }
        Event::InProgress => ("response.in_progress", json!({"response": told.before("in_progress")})),
        Event::Added(at) => {
            let mut item = without_text(item(at));
            item["status"] = "in_progress".into();
            ("response.output_item.added", json!({"output_index": at, "item": item}))
        }
        Event::PartAdded(at) => {
            ("response.content_part.added", with(part(at), "part", Kind::of(item(at)).empty_part()))
        }
        Event::Delta(at, bytes, logprobs) => {
            let item = item(at);
            let kind = Kind::of(item);
            let delta = kind.text(item).get(bytes.clone()).unwrap_or_default();
            match kind {
                Kind::Call => ("response.function_call_arguments.delta", with(place(at), "delta", delta.into())),
                Kind::Thought => ("response.reasoning_text.delta", with(part(at), "delta", delta.into())),
                Kind::Text => {
                    let told = item["content"][0]["logprobs"].as_array().and_then(|all| all.get(logprobs.clone()));
                    let fields = with(part(at), "delta", delta.into());
                    ("response.output_text.delta", with(fields, "logprobs", told.unwrap_or_default().into()))
                }
            }
        }
        Event::TextDone(at) => {
            let item = item(at);
            let content = &item["content"][0];
            match Kind::of(item) {
                Kind::Call => {
                    let fields = with(place(at), "name", item["name"].clone());
                    ("response.function_call_arguments.done", with(fields, "arguments", item["arguments"].clone()))
                }
                Kind::Thought => ("response.reasoning_text.done", with(part(at), "text", content["text"].clone())),
                Kind::Text => {
                    let fields = with(part(at), "text", content["text"].clone());
                    let logprobs = content["logprobs"].as_array().cloned().unwrap_or_default();
                    ("response.output_text.done", with(fields, "logprobs", logprobs.into()))
                }
            }
        }
        Event::PartDone(at) => ("response.content_part.done", with(part(at), "part", item(at)["content"][0].clone())),
        Event::Done(at) => ("response.output_item.done", json!({"output_index": at, "item": item(at)})),
        Event::Ended => {
            let name = match told.status() {
                "completed" => "response.completed",
                "failed" => "response.failed",
                // Clients know no event of an answer that was cancelled: its status says so.
                _ => "response.incomplete",
            };
            (name, json!({"response": told.response}))
        }
    }
}

/// An item as it began.
fn without_text(item: &Value) -> Value {
    let Value::Object(fields) = item else { return Value::Null };
    let field = |(name, value): (&String, &Value)| {
        let value = match name.as_str() {
            "content" => json!([]),
            "arguments" => "".into(),
            _ => value.clone(),
        };
        (name.clone(), value)
    };
    fields.iter().map(field).collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, text: &str, status: &str) -> Value {
        let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": [1, 2, 3]});
        json!({"type": "message", "id": id, "role": "assistant", "content": [part], "status": status})
    }

    fn call(id: &str, arguments: &str, status: &str) -> Value {
        json!({"type": "function_call", "id": id, "status": status, "call_id": "c", "name": "f", "arguments": arguments})
    }

    fn content(status: &str, background: bool, items: Vec<Value>, deltas: &[(u32, u32)]) -> Content {
        let response = json!({"id": "r", "status": status, "background": background, "error": null, "output": items,
            "usage": {"input_tokens": 1}, "timings": {}, "hints": ["x"]});
        let deltas = deltas.iter().map(|&delta| Delta::from(delta)).collect();
        Content { response, input: Value::Null, conversation: Vec::new(), deltas }
    }

    fn all(told: &Told<'_>, after: Option<u64>) -> Vec<Value> {
        let mut teller = Teller::new(after);
        let events = std::iter::from_fn(|| teller.tell(told));
        let body = |event: Bytes| {
            let text = String::from_utf8(event.to_vec()).unwrap();
            let (name, data) = text.split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data.trim_end()).unwrap();
            assert_eq!(name, format!("event: {}", data["type"].as_str().unwrap()));
            data
        };
        events.map(body).collect()
    }

    fn names(events: &[Value]) -> Vec<String> {
        let name = |event: &Value| event["type"].as_str().unwrap().strip_prefix("response.").unwrap().to_owned();
        events.iter().map(name).collect()
    }

    #[test]
    fn an_answer_is_told_from_any_place() {
        let items = vec![message("a", "Hallo du", "completed"), call("b", "{\"x\":1}", "completed")];
        let content = content("completed", true, items, &[(5, 2), (3, 1), (7, 0)]);
        let events = all(&Told::ended(&content), None);
        let expected = [
            "created",
            "queued",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ];
        assert_eq!(names(&events), expected);
        assert_eq!((&events[5]["delta"], &events[5]["logprobs"]), (&json!("Hallo"), &json!([1, 2])));
        assert_eq!((&events[6]["delta"], &events[6]["logprobs"]), (&json!(" du"), &json!([3])));
        let statuses: Vec<&Value> = events[..3].iter().map(|event| &event["response"]["status"]).collect();
        assert_eq!(statuses, ["queued", "queued", "in_progress"]);
        let head =
            json!({"id": "r", "status": "queued", "background": true, "error": null, "output": [], "usage": null});
        assert_eq!(events[0]["response"], head);
        assert_eq!(events.last().unwrap()["response"], content.response);
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], at);
            assert_eq!(all(&Told::ended(&content), Some(at as u64)), events[at + 1..], "after {at}");
        }
        assert_eq!(all(&Told::ended(&content), Some(u64::MAX)), [Value::Null; 0]);
    }

    #[test]
    fn what_grows_is_told_as_far_as_it_is_and_no_event_changes() {
        let head =
            json!({"id": "r", "status": "queued", "background": true, "error": null, "output": [], "usage": null});
        let mut growing = Growing::default();
        let mut teller = Teller::new(None);
        let mut tell = |told: &Told<'_>| std::iter::from_fn(|| teller.tell(told)).collect::<Vec<_>>();
        let mut live = tell(&Told::growing(&head, &growing, false));
        assert_eq!(live.len(), 2);
        assert_eq!(tell(&Told::growing(&head, &growing, false)).len(), 0);
        growing = Growing::in_a_text(message("a", "Hallo", "in_progress"), Delta::from((5, 0)));
        live.extend(tell(&Told::growing(&head, &growing, true)));
        assert_eq!(live.len(), 6);
        // Cut off there, it ends there.
        let (items, deltas) = growing.cut_off();
        let mut cut = content("cancelled", true, items, &[]);
        cut.deltas = deltas;
        live.extend(tell(&Told::ended(&cut)));
        let again = {
            let mut teller = Teller::new(None);
            std::iter::from_fn(|| teller.tell(&Told::ended(&cut))).collect::<Vec<_>>()
        };
        assert_eq!(live, again);
        assert!(live.last().unwrap().starts_with(b"event: response.incomplete"));
    }

    #[test]
    fn an_answer_without_notes_and_one_that_was_lost_have_an_end() {
        let noted =
            content("incomplete", false, vec![call("b", "{\"x", "incomplete"), message("a", "", "completed")], &[]);
        let events = all(&Told::ended(&noted), None);
        let expected = [
            "created",
            "in_progress",
            "output_item.added",
            "function_call_arguments.delta",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "incomplete",
        ];
        assert_eq!(names(&events), expected);
        // Deltas that are of another text do no harm.
        let strange = content("completed", false, vec![message("a", "\u{e9}\u{e9}", "completed")], &[(1, 9), (99, 0)]);
        let events = all(&Told::ended(&strange), None);
        let text: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
        assert_eq!(text, "\u{e9}\u{e9}");
        let lost = content("failed", true, Vec::new(), &[]);
        assert_eq!(names(&all(&Told::ended(&lost), None)), ["created", "queued", "in_progress", "failed"]);
        let end = all(&Told::ended(&lost), Some(57));
        assert_eq!((names(&end), &end[0]["sequence_number"]), (vec!["failed".to_owned()], &json!(58)));
    }
}
