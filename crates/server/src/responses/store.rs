//! Responses that are kept: to be asked for again, and to be gone on from.
//!
//! ```text
//! keep --> memory --with a directory--> a file --> acknowledged
//! ask  --> whose is it? --> memory, or the file
//! ```
//! With a directory all that is acknowledged is on disk before: an answer that has ended, and one in the background that
//! is only queued. A file that says so after a restart is of an answer that has failed: nothing computes it any more.
//! Room is bounded, and so is time: the oldest go first, and before them those of the key that holds the most. What is
//! kept is its key's alone; the name of another's is as unknown as one that never was.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::ChatMessage;
use serde_json::{Value, json};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::AbortHandle;

pub(super) use super::disk::Content;
use super::disk::{Disk, Head};
use super::growing::Delta;
use super::running::{Running, Source};
use telemetry::time_format::unix_seconds;
use transport::auth::Tenant;
use transport::error::ApiError;

/// Bytes of all responses together, and seconds for which one is kept.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    bytes: usize,
    seconds: u64,
}

const IN_MEMORY: Bounds = Bounds { bytes: 64 << 20, seconds: 24 * 3600 };
/// As long as OpenAI keeps them.
const ON_DISK: Bounds = Bounds { bytes: 4 << 30, seconds: 30 * 24 * 3600 };

/// One response.
struct Kept {
    head: Head,
    /// `None`: it is on disk.
    content: Option<Arc<Content>>,
    bytes: usize,
    /// Its place among its key's, once it is there.
    number: u64,
    /// It is computed in the background.
    is_running: bool,
    /// What computes it, and as far as it is there.
    task: Option<(AbortHandle, Arc<Running>)>,
}

/// See the module's words. Clones share it.
#[derive(Clone)]
pub(crate) struct Store(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    disk: Option<Disk>,
    bounds: Bounds,
}

#[derive(Default)]
struct State {
    kept: HashMap<String, Kept>,
    /// What has ended, by its key: nothing that is computed is forgotten, which the queue bounds.
    ended: HashMap<Option<Tenant>, Ended>,
    count: u64,
    bytes: usize,
}

/// Of one key.
#[derive(Default)]
struct Ended {
    /// Names, the oldest first.
    order: BTreeMap<u64, String>,
    bytes: usize,
}

impl Store {
    /// In a directory, with those that an earlier server left there.
    pub(crate) fn open(place: &Path) -> io::Result<Store> {
        let (disk, found) = Disk::open(place)?;
        let mut state = State::default();
        for (id, head, bytes) in found {
            state.insert(id, Kept { head, content: None, bytes, number: 0, is_running: false, task: None });
        }
        let store = Store(Arc::new(Shared { state: Mutex::new(state), disk: Some(disk), bounds: ON_DISK }));
        store.make_room(&mut store.lock());
        Ok(store)
    }

    pub(crate) fn in_memory() -> Store {
        Store(Arc::new(Shared { state: Mutex::default(), disk: None, bounds: IN_MEMORY }))
    }

    /// Keeps an answer that has ended, or what is known of one in the background. With a directory it is there when this
    /// returns, and it is not kept at all if it cannot be written. What is larger than all that is kept is refused.
    pub(super) fn keep(&self, tenant: Option<Tenant>, id: &str, content: Content) -> Result<Arc<Content>, ApiError> {
        let bytes = content.weight();
        let (is_running, is_background) = (is_computed(&content.response), content.response["background"] == true);
        let content = Arc::new(content);
        let head = Head { tenant, created_at: unix_seconds(), items: names(&content.response) };
        {
            let mut state = self.lock();
            // What was deleted or cancelled while it was computed stays so.
            if is_background && !is_running && !state.kept.get(id).is_some_and(|kept| kept.is_running) {
                return Ok(content);
            }
            if bytes > self.0.bounds.bytes {
                return Err(ApiError::too_large_to_keep(self.0.bounds.bytes));
            }
            state.remove(id);
            let (head, content) = (head.clone(), Some(content.clone()));
            state.insert(id.to_owned(), Kept { head, content, bytes, number: 0, is_running, task: None });
            self.make_room(&mut state);
        }
        self.write(id, &head, &content)?;
        Ok(content)
    }

    /// Puts it on disk. What has ended is in memory no more then, and what cannot be written is nowhere: of an answer in
    /// the background stays the file that it was queued with, which says that it failed.
    fn write(&self, id: &str, head: &Head, content: &Arc<Content>) -> Result<(), ApiError> {
        let Some(disk) = &self.0.disk else { return Ok(()) };
        let written = blocking(|| disk.write(id, head, content));
        let mut state = self.lock();
        let is_it = |kept: &Kept| kept.content.as_ref().is_some_and(|now| Arc::ptr_eq(now, content));
        let was_queued = content.response["background"] == true && !is_computed(&content.response);
        match (&written, state.kept.get_mut(id)) {
            (Ok(()), Some(kept)) if is_it(kept) && !kept.is_running => kept.content = None,
            (Err(_), Some(kept)) if is_it(kept) && was_queued => kept.content = None,
            (Err(_), Some(kept)) if is_it(kept) => drop(state.remove(id)),
            // It was replaced meanwhile, which is written too.
            (_, Some(_)) => {}
            (_, None) => disk.clear(id),
        }
        written.map_err(|error| {
            tracing::error!(%error, "a response cannot be kept on disk");
            ApiError::not_kept()
        })
    }

    /// Notes what computes a response.
    pub(super) fn computes(&self, id: &str, task: AbortHandle, running: Arc<Running>) {
        match self.lock().kept.get_mut(id) {
            Some(kept) if kept.is_running => kept.task = Some((task, running)),
            // It is done already.
            Some(_) => {}
            None => {
                task.abort();
                running.forget();
            }
        }
    }

    /// An answer that is written now, if it is this key's; or where it ended, which may be a file.
    pub(super) fn events(&self, tenant: Option<Tenant>, id: &str) -> Result<Source, ApiError> {
        if let Some((_, running)) = &self.find(&mut self.lock(), tenant, id)?.task {
            return Ok(Source::Running(running.clone()));
        }
        Ok(Source::Ended(self.content(tenant, id)?))
    }

    /// The response, if it is this key's. May read a file.
    pub(crate) fn response(&self, tenant: Option<Tenant>, id: &str) -> Result<Value, ApiError> {
        let has_begun = {
            let mut state = self.lock();
            let task = &self.find(&mut state, tenant, id)?.task;
            task.as_ref().is_some_and(|(_, running)| running.has_begun())
        };
        let mut response = self.content(tenant, id)?.response.clone();
        if has_begun && response["status"] == "queued" {
            response["status"] = "in_progress".into();
        }
        Ok(response)
    }

    /// What it was made from. May read a file.
    pub(crate) fn input(&self, tenant: Option<Tenant>, id: &str) -> Result<Value, ApiError> {
        Ok(self.content(tenant, id)?.input.clone())
    }

    /// Its conversation, to go on from. May read a file.
    pub(crate) fn messages(&self, tenant: Option<Tenant>, id: &str) -> Result<Vec<ChatMessage>, ApiError> {
        let content = self.content(tenant, id)?;
        if matches!(content.response["status"].as_str(), Some("completed" | "incomplete")) {
            return Ok(content.conversation.clone());
        }
        let message = "The response of 'previous_response_id' has not ended, or has no answer.";
        Err(ApiError::bad_request(message).with_param("previous_response_id"))
    }

    /// The items of this key's answers whose names are `wanted`, each with what stands beside its name. Those that are
    /// found are wanted no more. May read files.
    pub(crate) fn pop(&self, tenant: Option<Tenant>, wanted: &mut HashMap<String, usize>) -> Vec<(usize, Value)> {
        let has_some = |kept: &Kept| kept.head.items.iter().any(|item| wanted.contains_key(item));
        let responses: Vec<String> = {
            let state = self.lock();
            let is_wanted = |id: &&String| state.kept.get(*id).is_some_and(|kept| !self.is_old(kept) && has_some(kept));
            let order = state.ended.get(&tenant).map(|ended| &ended.order);
            order.into_iter().flat_map(|order| order.values().rev()).filter(is_wanted).cloned().collect()
        };
        let mut found = Vec::new();
        for id in responses {
            let Ok(content) = self.content(tenant, &id) else { continue };
            let output = content.response["output"].as_array().into_iter().flatten();
            found.extend(output.filter_map(|item| Some((wanted.remove(item["id"].as_str()?)?, item.clone()))));
        }
        found
    }

    /// Forgets it, and ends what computes it. What cannot be deleted from the disk is still there.
    pub(crate) fn delete(&self, tenant: Option<Tenant>, id: &str) -> Result<(), ApiError> {
        let mut state = self.lock();
        self.find(&mut state, tenant, id)?;
        if let Some(disk) = &self.0.disk {
            disk.remove(id).map_err(|error| {
                tracing::error!(%error, "a response cannot be deleted from the disk");
                ApiError::not_kept()
            })?;
        }
        state.release(id);
        Ok(())
    }

    /// Ends what computes it; one that has ended in the background stays as it is. May read and write a file.
    pub(crate) fn cancel(&self, tenant: Option<Tenant>, id: &str) -> Result<Value, ApiError> {
        let mut state = self.lock();
        if self.find(&mut state, tenant, id)?.is_running
            && let Some(mut kept) = state.remove(id)
            && let Some(mut content) = kept.content.take()
        {
            Arc::make_mut(&mut content).response["status"] = "cancelled".into();
            if let Some((task, running)) = kept.task.take() {
                // Before the task ends, which tells the readers that it is forgotten.
                running.cut_off(|items, deltas| {
                    let cancelled = Arc::make_mut(&mut content);
                    cancelled.response["output"] = items.into();
                    cancelled.deltas = deltas;
                    content.clone()
                });
                task.abort();
            }
            let (head, told, bytes) = (kept.head.clone(), Some(content.clone()), content.weight());
            state.insert(id.to_owned(), Kept { content: told, bytes, is_running: false, ..kept });
            self.make_room(&mut state);
            drop(state);
            self.write(id, &head, &content)?;
            return Ok(content.response.clone());
        }
        drop(state);
        let response = self.response(tenant, id)?;
        match response["background"] == true {
            true => Ok(response),
            false => Err(ApiError::bad_request("Cannot cancel a synchronous response.").with_param("response_id")),
        }
    }

    fn content(&self, tenant: Option<Tenant>, id: &str) -> Result<Arc<Content>, ApiError> {
        if let Some(content) = &self.find(&mut self.lock(), tenant, id)?.content {
            return Ok(content.clone());
        }
        let disk = self.0.disk.as_ref().ok_or_else(ApiError::unknown_response)?;
        let read = disk.read(id).map(|mut content| {
            if is_computed(&content.response) {
                let message = "The server ended before this answer did, or could not keep it: ask again.";
                content.response["status"] = "failed".into();
                content.response["error"] = json!({"code": "server_error", "message": message});
            }
            Arc::new(content)
        });
        read.map_err(|error| {
            tracing::error!(%error, "a response on disk cannot be read");
            ApiError::damaged_response()
        })
    }

    fn find<'a>(&self, state: &'a mut State, tenant: Option<Tenant>, id: &str) -> Result<&'a mut Kept, ApiError> {
        let is_its = |kept: &&mut Kept| kept.head.tenant == tenant && !self.is_old(kept);
        state.kept.get_mut(id).filter(is_its).ok_or_else(ApiError::unknown_response)
    }

    fn is_old(&self, kept: &Kept) -> bool {
        unix_seconds().saturating_sub(kept.head.created_at) >= self.0.bounds.seconds
    }

    fn forget(&self, state: &mut State, id: &str) {
        state.release(id);
        if let Some(disk) = &self.0.disk {
            disk.clear(id);
        }
    }

    fn make_room(&self, state: &mut State) {
        let old = |state: &State| state.firsts().find(|id| self.is_old(&state.kept[*id])).cloned();
        while let Some(id) = old(state) {
            self.forget(state, &id);
        }
        while state.bytes > self.0.bounds.bytes {
            let most = state.ended.values().max_by_key(|ended| ended.bytes);
            let Some(id) = most.and_then(|ended| ended.order.values().next()).cloned() else { return };
            self.forget(state, &id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The last of its key's. Its name must be free.
    fn insert(&mut self, id: String, mut kept: Kept) {
        self.bytes += kept.bytes;
        self.count += 1;
        kept.number = self.count;
        if !kept.is_running {
            let ended = self.ended.entry(kept.head.tenant).or_default();
            ended.bytes += kept.bytes;
            ended.order.insert(kept.number, id.clone());
        }
        self.kept.insert(id, kept);
    }

    fn remove(&mut self, id: &str) -> Option<Kept> {
        let kept = self.kept.remove(id)?;
        self.bytes -= kept.bytes;
        if let Entry::Occupied(mut ended) = self.ended.entry(kept.head.tenant)
            && ended.get_mut().order.remove(&kept.number).is_some()
        {
            ended.get_mut().bytes -= kept.bytes;
            if ended.get().order.is_empty() {
                ended.remove();
            }
        }
        Some(kept)
    }

    /// The oldest of each key.
    fn firsts(&self) -> impl Iterator<Item = &String> {
        self.ended.values().filter_map(|ended| ended.order.values().next())
    }

    /// Takes it out of memory and ends what computes it.
    fn release(&mut self, id: &str) {
        if let Some((task, running)) = self.remove(id).and_then(|kept| kept.task) {
            task.abort();
            running.forget();
        }
    }
}

/// Waits for a disk. Of a runtime with several threads the others go on meanwhile.
fn blocking<T>(wait: impl FnOnce() -> T) -> T {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}

/// Names of the items that may be named in an input: those of an answer that was cut off are none.
fn names(response: &Value) -> Vec<String> {
    let is_whole = matches!(response["status"].as_str(), Some("completed" | "incomplete"));
    let items = response["output"].as_array().into_iter().flatten().filter(|_| is_whole);
    items.filter_map(|item| item["id"].as_str().map(str::to_owned)).collect()
}

impl Content {
    /// What became of it, and nothing else.
    pub(super) fn without_an_answer(mut self) -> Content {
        let emptied = ["instructions", "tools", "text", "metadata"];
        for (name, value) in self.response.as_object_mut().into_iter().flatten() {
            match name.as_str() {
                "output" => *value = json!([]),
                name if emptied.contains(&name) => *value = Value::Null,
                _ => {}
            }
        }
        Content { input: Value::Null, conversation: Vec::new(), deltas: Vec::new(), ..self }
    }

    /// About the bytes that it takes.
    pub(super) fn weight(&self) -> usize {
        let conversation: usize = self.conversation.iter().map(message_weight).sum();
        weight(&self.response) + weight(&self.input) + conversation + size_of::<Delta>() * self.deltas.len()
    }
}

fn is_computed(response: &Value) -> bool {
    matches!(response["status"].as_str(), Some("queued" | "in_progress"))
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
    use super::*;

    /// What is kept of this.
    fn content(response: Value, input: Value, conversation: Vec<ChatMessage>) -> Content {
        Content { response, input, conversation, deltas: vec![Delta::from((3, 0))] }
    }

    fn response(text: &str) -> Value {
        json!({"status": "completed", "text": text, "output": [{"id": format!("item-{text}"), "text": text}]})
    }

    #[test]
    fn a_response_is_its_keys_alone() {
        let store = Store::in_memory();
        store.keep(Some([1; 32]), "a", content(response("x"), json!("in"), Vec::new())).unwrap();
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

    /// Every key forgets as fast with many responses as with few: hours, if each looked at all.
    #[test]
    fn many_responses_are_forgotten_one_by_one() {
        let store = Store::in_memory();
        let ids: Vec<String> = (0..300_000).map(|at| format!("resp-{at:016}")).collect();
        let mut state = store.lock();
        for (at, id) in ids.iter().enumerate() {
            let head = Head { tenant: Some([(at % 7) as u8; 32]), created_at: (at % 2) as u64, items: Vec::new() };
            let number = 0;
            state.insert(id.clone(), Kept { head, content: None, bytes: 1, number, is_running: false, task: None });
        }
        for id in ids.iter().rev().take(150_000) {
            state.remove(id);
        }
        assert_eq!((state.bytes, state.kept.len()), (150_000, 150_000));
        store.make_room(&mut state);
        assert_eq!((state.bytes, state.kept.len(), state.ended.len()), (0, 0, 0), "all are old");
    }

    #[test]
    fn who_holds_the_most_makes_room() {
        let store = Store::in_memory();
        let large = "x".repeat(1 << 20);
        store.keep(Some([2; 32]), "small", content(response("y"), json!(""), Vec::new())).unwrap();
        for at in 0..200 {
            store
                .keep(Some([1; 32]), &format!("large-{at}"), content(response(&large), json!(""), Vec::new()))
                .unwrap();
        }
        assert!(store.lock().bytes <= IN_MEMORY.bytes);
        assert!(store.response(Some([2; 32]), "small").is_ok(), "a neighbour's flood takes nothing of mine");
        assert!(store.response(Some([1; 32]), "large-0").is_err());
        assert!(store.response(Some([1; 32]), "large-199").is_ok());
        let too_large = content(response(&"x".repeat(IN_MEMORY.bytes)), json!(""), Vec::new());
        assert_eq!(store.keep(None, "huge", too_large.clone()).unwrap_err().status(), 507);
        assert!(store.response(None, "huge").is_err());
        // What was queued stays so until its failure is told, which takes no room.
        let queued = json!({"status": "queued", "background": true});
        store.keep(None, "begun", content(queued, json!(""), Vec::new())).unwrap();
        let mut grown = too_large;
        grown.response["background"] = true.into();
        assert!(store.keep(None, "begun", grown.clone()).is_err());
        assert_eq!(store.response(None, "begun").unwrap()["status"], "queued");
        grown.response["status"] = "failed".into();
        store.keep(None, "begun", grown.without_an_answer()).unwrap();
        assert_eq!(store.response(None, "begun").unwrap()["status"], "failed");
        assert!(store.response(Some([1; 32]), "large-199").is_ok());
    }

    #[test]
    fn only_what_has_ended_is_gone_on_from() {
        let store = Store::in_memory();
        let queued = json!({"status": "queued", "background": true});
        store.keep(None, "a", content(queued, json!(""), vec![ChatMessage::new("user", "hi")])).unwrap();
        assert_eq!(store.messages(None, "a").unwrap_err().param(), Some("previous_response_id"));
        assert_eq!(store.cancel(None, "a").unwrap()["status"], "cancelled");
        store.keep(None, "a", content(response("x"), json!(""), vec![ChatMessage::new("user", "hi")])).unwrap();
        assert_eq!(store.messages(None, "a").unwrap().len(), 1);
        let message = "Cannot cancel a synchronous response.";
        assert_eq!(store.cancel(None, "a").unwrap_err().message(), message);
    }

    #[test]
    fn what_is_on_disk_is_there_after_a_restart() {
        let place = testing::Scratch::new("store");
        let mut reply = ChatMessage::new("assistant", "It is.");
        reply.extra.insert("reasoning".into(), "because".into());
        let told = vec![ChatMessage::new("user", "hi"), reply];
        let (mine, other) = (Some([1; 32]), Some([2; 32]));
        let store = Store::open(&place).unwrap();
        store.keep(mine, "a", content(response("x"), json!("in"), told.clone())).unwrap();
        let queued = json!({"status": "queued", "background": true});
        for id in ["b", "cancelled", "deleted", "done"] {
            store.keep(mine, id, content(queued.clone(), json!("in"), told.clone())).unwrap();
        }
        store.cancel(mine, "cancelled").unwrap();
        store.delete(mine, "deleted").unwrap();
        for id in ["cancelled", "deleted", "done"] {
            let done = json!({"status": "completed", "background": true});
            store.keep(mine, id, content(done, json!("in"), told.clone())).unwrap();
        }
        assert_eq!(store.response(mine, "b").unwrap()["status"], "queued");
        store.keep(None, "c", content(response("z"), json!([1]), Vec::new())).unwrap();
        assert!(store.lock().kept["a"].content.is_none(), "it is a file");
        assert_eq!(store.messages(mine, "a").unwrap(), told);
        assert!(Store::open(&place).is_err(), "one server at a time");
        drop(store);
        std::fs::write(place.join("broken.json"), "{").unwrap();
        // A directory is no leftover, whatever it is called.
        std::fs::create_dir(place.join("x.json.17.tmp")).unwrap();
        let strange = ["notes.txt", "x.tmp", "x.json.y.tmp", "x.json..tmp"];
        strange.iter().for_each(|name| std::fs::write(place.join(name), "another's").unwrap());
        std::fs::write(place.join("a.json.17.tmp"), "half").unwrap();
        let store = Store::open(&place).unwrap();
        assert_eq!((store.response(mine, "a").unwrap(), store.input(mine, "a").unwrap()), (response("x"), json!("in")));
        assert_eq!(store.messages(mine, "a").unwrap(), told);
        let mut wanted = HashMap::from([("item-x".to_owned(), 3), ("item-z".to_owned(), 4)]);
        let found = store.pop(mine, &mut wanted);
        assert_eq!(found, [(3, json!({"id": "item-x", "text": "x"}))]);
        assert_eq!(wanted, HashMap::from([("item-z".to_owned(), 4)]), "that one is another's");
        assert!(!place.join("a.json.17.tmp").exists() && strange.iter().all(|name| place.join(name).exists()));
        for (id, status) in [("b", "failed"), ("cancelled", "cancelled"), ("done", "completed")] {
            assert_eq!(store.response(mine, id).unwrap()["status"], status, "{id}");
            assert_eq!(store.cancel(mine, id).unwrap()["status"], status, "{id}");
        }
        assert!(store.response(mine, "b").unwrap()["error"]["message"].is_string());
        assert!(store.messages(mine, "b").is_err() && store.response(mine, "deleted").is_err());
        assert!(place.join("x.json.17.tmp").exists());
        assert!(store.response(other, "a").is_err() && store.response(None, "a").is_err());
        assert_eq!(store.input(None, "c").unwrap(), json!([1]));
        store.delete(mine, "a").unwrap();
        assert!(!place.join("a.json").exists() && place.join("notes.txt").exists());
        // A file that is gone or damaged is one response that is unknown.
        std::fs::write(place.join("c.json"), "{}").unwrap();
        assert!(store.response(None, "c").is_err());
    }

    /// Numbers come back from a file to their last bit, and a time that is yet to come keeps nothing forever.
    #[test]
    fn a_file_says_what_was_kept() {
        let place = testing::Scratch::new("store-numbers");
        let store = Store::open(&place).unwrap();
        // Some of any thousand such numbers are misread where their last bits are not minded.
        let numbers: Vec<f64> = (1..2000).map(|at: u32| f64::from((at as f32).sqrt().ln() * -1.7)).collect();
        let told = json!({"status": "completed", "output": [], "numbers": numbers});
        store.keep(None, "a", content(told.clone(), json!(numbers), Vec::new())).unwrap();
        assert_eq!((store.response(None, "a").unwrap(), store.input(None, "a").unwrap()), (told, json!(numbers)));
        drop(store);
        let file = place.join("a.json");
        let (_, rest) = std::fs::read_to_string(&file)
            .unwrap()
            .split_once('\n')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        let later = json!({"owner": null, "created_at": u64::MAX, "items": []});
        std::fs::write(&file, format!("{later}\n{rest}")).unwrap();
        let store = Store::open(&place).unwrap();
        assert!(store.lock().kept["a"].head.created_at <= unix_seconds());
        assert!(store.response(None, "a").is_ok());
        // Half of a file is told apart from what never was.
        std::fs::write(&file, "{\"own").unwrap();
        assert_ne!(store.response(None, "a").unwrap_err().message(), ApiError::unknown_response().message());
    }

    #[test]
    fn what_cannot_be_written_is_an_error_and_takes_no_memory() {
        let place = testing::Scratch::new("full-store");
        let store = Store::open(&place).unwrap();
        let queued = json!({"status": "queued", "background": true});
        store.keep(None, "begun", content(queued.clone(), json!(""), Vec::new())).unwrap();
        let before = store.lock().bytes;
        // A directory of its name: no file can be put there, not even by root.
        for id in ["whole", "later"] {
            std::fs::create_dir(place.join(format!("{id}.json"))).unwrap();
        }
        for (id, response) in [("whole", response("x")), ("later", queued)] {
            assert_eq!(
                store.keep(None, id, content(response, json!(""), Vec::new())).unwrap_err().status(),
                507,
                "{id}"
            );
            assert!(store.response(None, id).is_err(), "{id}");
        }
        assert_eq!(store.lock().bytes, before);
        assert_eq!(store.response(None, "begun").unwrap()["status"], "queued");
        std::fs::remove_dir_all(&place).unwrap();
        // What was queued and cannot be written when it ends has failed.
        let done = json!({"status": "completed", "background": true, "output": []});
        std::fs::write(&place, "no directory").unwrap();
        assert!(store.keep(None, "begun", content(done, json!(""), Vec::new())).is_err());
        assert!(store.lock().kept["begun"].content.is_none(), "it is in memory no more");
        std::fs::remove_file(&place).unwrap();
    }

    #[test]
    fn what_is_computed_makes_no_room() {
        let store = Store::in_memory();
        let queued = json!({"status": "queued", "background": true});
        store.keep(Some([1; 32]), "running", content(queued, json!(""), Vec::new())).unwrap();
        for at in 0..3 {
            let large = response(&"x".repeat(20 << 20));
            store.keep(Some([1; 32]), &format!("large-{at}"), content(large, json!(""), Vec::new())).unwrap();
        }
        assert!(store.lock().bytes <= IN_MEMORY.bytes);
        assert_eq!(store.response(Some([1; 32]), "running").unwrap()["status"], "queued");
        assert!(store.response(Some([1; 32]), "large-0").is_err());
    }
}
