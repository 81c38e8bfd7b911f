//! Responses that are kept: to be asked for again, and to be gone on from.
//!
//! Memory is bounded, and so is time: the oldest go first, and before them those of the key that holds the most. What is
//! kept is its key's alone; the name of another's is as unknown as one that never was.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::ChatMessage;
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::auth::Tenant;
use crate::error::ApiError;

/// Bytes of all responses together.
const MOST_BYTES: usize = 64 << 20;
/// How long one is kept.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// One response.
struct Kept {
    tenant: Option<Tenant>,
    response: Value,
    input: Value,
    /// All of the conversation until its end.
    conversation: Vec<ChatMessage>,
    bytes: usize,
    since: Instant,
    /// What computes it, as long as it is in the background.
    task: Option<AbortHandle>,
}

/// See the module's words.
#[derive(Default)]
pub(crate) struct Store(Mutex<State>);

#[derive(Default)]
struct State {
    kept: HashMap<String, Kept>,
    /// The oldest first; names of what is gone may be among them.
    order: VecDeque<String>,
    bytes: usize,
}

impl Store {
    /// Keeps an answer that has ended, or what is known of one in the background.
    pub(crate) fn keep(
        &self,
        tenant: Option<Tenant>,
        id: &str,
        response: Value,
        input: Value,
        conversation: Vec<ChatMessage>,
    ) {
        let bytes = weight(&response) + weight(&input) + conversation.iter().map(message_weight).sum::<usize>();
        let mut state = self.lock();
        let task = state.remove(id).and_then(|before| before.task);
        // Who was taken out of the store while it was computed stays out.
        if bytes > MOST_BYTES {
            return;
        }
        state.bytes += bytes;
        state.order.push_back(id.to_owned());
        let kept = Kept { tenant, response, input, conversation, bytes, since: Instant::now(), task };
        state.kept.insert(id.to_owned(), kept);
        state.make_room();
    }

    /// Notes what computes a response.
    pub(crate) fn computes(&self, id: &str, task: AbortHandle) {
        match self.lock().kept.get_mut(id) {
            Some(kept) => kept.task = Some(task),
            None => task.abort(),
        }
    }

    /// The response, if it is this key's.
    pub(crate) fn response(&self, tenant: Option<Tenant>, id: &str) -> Result<Value, ApiError> {
        self.look(tenant, id, |kept| kept.response.clone())
    }

    /// What it was made from.
    pub(crate) fn input(&self, tenant: Option<Tenant>, id: &str) -> Result<Value, ApiError> {
        self.look(tenant, id, |kept| kept.input.clone())
    }

    /// Its conversation, to go on from.
    pub(crate) fn messages(&self, tenant: Option<Tenant>, id: &str) -> Result<Vec<ChatMessage>, ApiError> {
        let (status, messages) =
            self.look(tenant, id, |kept| (kept.response["status"].clone(), kept.conversation.clone()))?;
        if matches!(status.as_str(), Some("completed" | "incomplete")) {
            return Ok(messages);
        }
        let message = "The response of 'previous_response_id' has not ended, or has no answer.";
        Err(ApiError::bad_request(message).with_param("previous_response_id"))
    }

    /// The items of this key's answers whose names are `wanted`, each with what stands beside its name. Those that are
    /// found are wanted no more.
    pub(crate) fn take_out(&self, tenant: Option<Tenant>, wanted: &mut HashMap<String, usize>) -> Vec<(usize, Value)> {
        let state = self.lock();
        let mut found = Vec::new();
        for kept in state.order.iter().rev().filter_map(|id| state.kept.get(id)) {
            if wanted.is_empty() {
                break; // they are of the newest answers most of the time
            }
            let output = kept.response["output"].as_array().filter(|_| kept.is_of(tenant)).into_iter().flatten();
            let of_item = |item: &Value| Some((wanted.remove(item["id"].as_str()?)?, item.clone()));
            found.extend(output.filter_map(of_item));
        }
        found
    }

    /// Forgets it, and ends what computes it.
    pub(crate) fn delete(&self, tenant: Option<Tenant>, id: &str) -> Result<(), ApiError> {
        self.look(tenant, id, |_| ())?;
        if let Some(task) = self.lock().remove(id).and_then(|kept| kept.task) {
            task.abort();
        }
        Ok(())
    }

    /// Ends what computes it; one that has ended stays as it is.
    pub(crate) fn cancel(&self, tenant: Option<Tenant>, id: &str) -> Result<Value, ApiError> {
        self.look(tenant, id, |kept| {
            if matches!(kept.response["status"].as_str(), Some("queued" | "in_progress")) {
                if let Some(task) = kept.task.take() {
                    task.abort();
                }
                kept.response["status"] = "cancelled".into();
            }
            kept.response.clone()
        })
    }

    fn look<T>(&self, tenant: Option<Tenant>, id: &str, see: impl FnOnce(&mut Kept) -> T) -> Result<T, ApiError> {
        let mut state = self.lock();
        let kept = state.kept.get_mut(id).filter(|kept| kept.is_of(tenant));
        kept.map(see).ok_or_else(ApiError::unknown_response)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Whether this key may see it, and it is still there to be seen.
    fn is_of(&self, tenant: Option<Tenant>) -> bool {
        self.tenant == tenant && self.since.elapsed() < KEPT_FOR
    }
}

impl State {
    fn remove(&mut self, id: &str) -> Option<Kept> {
        let kept = self.kept.remove(id)?;
        self.bytes -= kept.bytes;
        self.order.retain(|other| other != id);
        Some(kept)
    }

    /// Nothing that is computed is forgotten: it is bounded by the queue.
    fn make_room(&mut self) {
        while self.order.front().and_then(|id| self.kept.get(id)).is_some_and(|kept| kept.since.elapsed() >= KEPT_FOR) {
            let Some(id) = self.order.front().cloned() else { break };
            self.remove(&id);
        }
        while self.bytes > MOST_BYTES {
            let mut held: HashMap<Option<Tenant>, usize> = HashMap::new();
            self.kept.values().for_each(|kept| *held.entry(kept.tenant).or_default() += kept.bytes);
            let Some(most) = held.into_iter().max_by_key(|&(_, bytes)| bytes).map(|(tenant, _)| tenant) else { return };
            let is_its = |id: &&String| self.kept.get(*id).is_some_and(|kept| kept.tenant == most);
            let Some(id) = self.order.iter().find(is_its).cloned() else { return };
            if let Some(task) = self.remove(&id).and_then(|kept| kept.task) {
                task.abort();
            }
        }
    }
}

fn message_weight(message: &ChatMessage) -> usize {
    let extra: usize = message.extra.iter().map(|(name, value)| name.len() + weight(value)).sum();
    64 + message.role.len() + message.content.as_deref().map_or(0, str::len) + extra
}

/// About the bytes that a value takes.
fn weight(value: &Value) -> usize {
    32 + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(map) => map.iter().map(|(name, value)| 24 + name.len() + weight(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn response(text: &str) -> Value {
        json!({"status": "completed", "text": text})
    }

    #[test]
    fn a_response_is_its_keys_alone() {
        let store = Store::default();
        store.keep(Some([1; 32]), "a", response("x"), json!("in"), Vec::new());
        assert_eq!(store.response(Some([1; 32]), "a").unwrap(), response("x"));
        assert_eq!(store.input(Some([1; 32]), "a").unwrap(), json!("in"));
        for other in [None, Some([2; 32])] {
            assert!(store.response(other, "a").is_err() && store.delete(other, "a").is_err());
            assert!(store.messages(other, "a").is_err() && store.cancel(other, "a").is_err());
        }
        store.delete(Some([1; 32]), "a").unwrap();
        assert!(store.response(Some([1; 32]), "a").is_err());
        assert_eq!(store.lock().bytes, 0);
    }

    #[test]
    fn who_holds_the_most_makes_room() {
        let store = Store::default();
        let large = "x".repeat(1 << 20);
        store.keep(Some([2; 32]), "small", response("y"), json!(""), Vec::new());
        for at in 0..200 {
            store.keep(Some([1; 32]), &format!("large-{at}"), response(&large), json!(""), Vec::new());
        }
        assert!(store.lock().bytes <= MOST_BYTES);
        assert!(store.response(Some([2; 32]), "small").is_ok(), "a neighbour's flood takes nothing of mine");
        assert!(store.response(Some([1; 32]), "large-0").is_err());
        assert!(store.response(Some([1; 32]), "large-199").is_ok());
        let too_large = "x".repeat(MOST_BYTES);
        store.keep(None, "huge", response(&too_large), json!(""), Vec::new());
        assert!(store.response(None, "huge").is_err());
        assert!(store.response(Some([1; 32]), "large-199").is_ok());
    }

    #[test]
    fn only_what_has_ended_is_gone_on_from() {
        let store = Store::default();
        store.keep(None, "a", json!({"status": "in_progress"}), json!(""), vec![ChatMessage::new("user", "hi")]);
        assert_eq!(store.messages(None, "a").unwrap_err().param(), Some("previous_response_id"));
        assert_eq!(store.cancel(None, "a").unwrap()["status"], "cancelled");
        store.keep(None, "a", response("x"), json!(""), vec![ChatMessage::new("user", "hi")]);
        assert_eq!(store.messages(None, "a").unwrap().len(), 1);
        assert_eq!(store.cancel(None, "a").unwrap()["status"], "completed");
    }
}
