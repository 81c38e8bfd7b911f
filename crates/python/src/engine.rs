//! An engine, as Python holds it: starting, validating, the log.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use cli::Embedded;
use engine::{Prompt, RawRequest, RemoteRole, SignedAddress};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::log::{Load, StepEntry, StepRowEntry};
use crate::request::{self, Request};
use crate::words;

/// Interval of checks for Ctrl-C while a model loads.
const LOOK: Duration = Duration::from_millis(50);
/// Stack of the thread that loads: that of a program's first.
const STACK_BYTES: usize = 8 << 20;

/// A running engine. Ends with its last reference.
#[pyclass(frozen, module = "twostroke._twostroke")]
pub(crate) struct Engine {
    pub(crate) inner: engine::Engine,
    /// Special tokens that are shown in answers of a chat: marks of thoughts and of calls.
    shown: Arc<[u32]>,
    kv_events: Vec<String>,
}

#[pymethods]
impl Engine {
    /// Loads what `options` say: a JSON object with names of `engine_options`.
    #[new]
    fn new(py: Python<'_>, options: &str) -> PyResult<Engine> {
        let options = known(object(options)?)?;
        let Embedded { engine: inner, kv_events } = start(py, options)?;
        let shown = cli::shown_tokens(inner.model());
        Ok(Engine { inner, shown, kv_events })
    }

    #[getter]
    fn model(&self) -> String {
        self.inner.model().name.clone()
    }

    /// Tokens of prompt and answer together.
    #[getter]
    fn max_model_len(&self) -> usize {
        self.inner.model().max_model_len
    }

    /// What a person should know about this load.
    #[getter]
    fn notices(&self) -> Vec<String> {
        self.inner.model().notices.clone()
    }

    /// Tokens of a KV block.
    #[getter]
    fn block_size(&self) -> usize {
        self.inner.model().block_size
    }

    /// Sequences that run together at most, and tokens of a step.
    #[getter]
    fn limits(&self) -> (usize, usize) {
        let model = self.inner.model();
        (model.max_num_seqs, model.max_num_batched_tokens)
    }

    /// Where it reads prompts for other workers, if it does: host, port, and the seal by which they know that.
    #[getter]
    fn handoff(&self) -> Option<(String, u16, String)> {
        self.inner.signed_address().map(|SignedAddress { host, port, seal }| (host, port, seal))
    }

    /// Where it tells KV events, and replays of them; empty if it does not.
    #[getter]
    fn kv_events(&self) -> Vec<String> {
        self.kv_events.clone()
    }

    /// What it has to do now, and what its cache was good for.
    fn load(&self) -> Load {
        Load::of(&self.inner.stats())
    }

    /// Checks a request: a text or token ids, and how answers are drawn. `rule`: what they must look like, as a kind
    /// and its text. `partner`: whose answer it is ("decode": another worker's), or where its prompt was read.
    #[pyo3(signature = (prompt, params, rule, adapter, partner))]
    fn validate(
        &self,
        prompt: &Bound<'_, PyAny>,
        params: &Bound<'_, PyAny>,
        rule: Option<(String, String)>,
        adapter: Option<String>,
        partner: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        let partner = partner.map_or(Ok(RemoteRole::Any), |partner| self.partner(partner))?;
        let raw = RawRequest { adapter, remote_role: partner, ..request::raw(request::prompt(prompt)?, params, rule)? };
        self.request(prompt.py(), raw)
    }

    /// The same of a conversation, a JSON object: `messages`, and how they become a prompt.
    #[pyo3(signature = (conversation, params, rule, adapter))]
    fn validate_chat(
        &self,
        conversation: &str,
        params: &Bound<'_, PyAny>,
        rule: Option<(String, String)>,
        adapter: Option<String>,
    ) -> PyResult<Request> {
        let (chat, now) = request::chat(object(conversation)?)?;
        let raw = request::raw(Prompt::Chat(chat), params, rule)?;
        self.request(params.py(), RawRequest { adapter, now, shown_tokens: self.shown.clone(), ..raw })
    }

    /// The tokens of a prompt, with what the model puts before them.
    fn tokenize(&self, py: Python<'_>, text: String) -> PyResult<Vec<u32>> {
        let raw = RawRequest::new(Prompt::Text(text));
        py.detach(|| self.inner.model().encode(&raw)).map_err(|rejection| words::rejection(&rejection, None))
    }

    /// The text of tokens.
    fn detokenize(&self, tokens: Vec<u32>, skip_special_tokens: bool) -> PyResult<String> {
        let model = self.inner.model();
        let tokenizer = model.tokenizer.as_ref();
        let tokenizer = tokenizer.ok_or_else(|| PyValueError::new_err("this model has no tokenizer"))?;
        if let Some(id) = tokens.iter().find(|&&id| id as usize >= model.config.vocab_size) {
            let message = format!("token_ids: {id} is none of this model's {} tokens", model.config.vocab_size);
            return Err(PyValueError::new_err(message));
        }
        Ok(tokenizer.decode(&tokens, skip_special_tokens))
    }

    /// The newest step records, oldest first, at most `most`.
    fn steps(&self, most: usize) -> Vec<StepEntry> {
        self.inner.records(most).iter().map(|record| StepEntry::of(record)).collect()
    }

    /// What each sequence had in them.
    fn step_rows(&self, most: usize) -> Vec<StepRowEntry> {
        self.inner.records(most).iter().flat_map(|record| StepRowEntry::of(record)).collect()
    }

    /// Ends every request, and the engine.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| cli::stop(&self.inner));
    }
}

impl Engine {
    fn partner(&self, partner: &Bound<'_, PyAny>) -> PyResult<RemoteRole> {
        if partner.extract::<&str>().is_ok_and(|word| word == "decode") {
            return Ok(RemoteRole::Decode);
        }
        let (host, port, seal) = partner.extract()?;
        let known = self.inner.prefill_worker(&SignedAddress { host, port, seal });
        known.ok_or_else(|| PyValueError::new_err("partner: a worker that does not have the cluster key of this one"))
    }

    fn request(&self, py: Python<'_>, raw: RawRequest) -> PyResult<Request> {
        let stop = raw.stop.clone();
        let given = match &raw.prompt {
            Prompt::Text(text) => Some(text.clone()),
            Prompt::Tokens(_) | Prompt::Pair(..) | Prompt::Chat(_) => None,
        };
        let is_chat = matches!(raw.prompt, Prompt::Chat(_));
        let adapter = raw.adapter.clone();
        let validated = py.detach(|| self.inner.validate(raw));
        let validated = validated.map_err(|rejection| words::rejection(&rejection, adapter.as_deref()))?;
        let tokenizer = self.inner.model().tokenizer.as_ref().filter(|_| is_chat);
        let text = given.or_else(|| Some(tokenizer?.decode(validated.prompt(), false)));
        Ok(Request { validated, stop, text })
    }
}

/// Loads on a thread of its own, so that Ctrl-C need not wait for it: what was loading then goes on and is dropped.
fn start(py: Python<'_>, options: Map<String, Value>) -> PyResult<Embedded> {
    let (told, mut outcome) = sync_channel(1);
    let load = move || {
        // The receiver may be gone.
        let _ = told.send(cli::start(options));
    };
    let thread = thread::Builder::new().name("loading".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(load).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    loop {
        let outcome = &mut outcome;
        match py.detach(move || outcome.recv_timeout(LOOK)) {
            Ok(started) => return started.map_err(words::failure),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(PyRuntimeError::new_err("a bug ended the start")),
        }
    }
}

/// Refuses what is no option, by its name.
fn known(options: Map<String, Value>) -> PyResult<Map<String, Value>> {
    match options.keys().find(|name| !cli::ENGINE_OPTIONS.contains(&name.as_str())) {
        None => Ok(options),
        Some(name) => {
            let instead = cli::hint(name).map(|hint| format!(": {}", words::in_python(hint))).unwrap_or_default();
            Err(PyTypeError::new_err(format!("LLM() got an unexpected keyword argument '{name}'{instead}")))
        }
    }
}

/// A JSON object that Python has written.
fn object(json: &str) -> PyResult<Map<String, Value>> {
    match serde_json::from_str(json) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(PyValueError::new_err("not an object")),
        Err(error) => Err(PyValueError::new_err(error.to_string())),
    }
}
