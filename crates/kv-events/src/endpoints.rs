//! The JSON of vLLM's `--kv-events-config`: endpoints and topic.

use serde::Deserialize;
use serde_json::Value;

/// Endpoints of a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Address of the PUB socket: `tcp://HOST:PORT`.
    pub endpoint: String,
    /// Address of the ROUTER socket, which replays earlier batches.
    pub replay_endpoint: Option<String>,
    /// The first frame of every message.
    pub topic: String,
    /// Number of batches kept for replays.
    pub buffer_steps: usize,
}

/// Errors in the JSON.
#[derive(Debug, thiserror::Error)]
pub enum EndpointsError {
    /// Invalid JSON, or an unknown field.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Other JSON than an object.
    #[error("not a JSON object, such as {{\"enable_kv_cache_events\": true}}")]
    NoObject,
    /// An unsupported publisher.
    #[error("publisher: expected zmq, or null for no events, not {0:?}")]
    Publisher(String),
    /// An unsupported endpoint.
    #[error("{0}: an endpoint must be tcp://HOST:PORT or tcp://*:PORT")]
    Endpoint(String),
    /// No batches to keep.
    #[error("buffer_steps: must be at least 1")]
    BufferSteps,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    #[serde(default)]
    enable_kv_cache_events: bool,
    publisher: Option<String>,
    #[serde(default = "endpoint")]
    endpoint: String,
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
    #[serde(default = "buffer_steps")]
    buffer_steps: usize,
    /// Accepted and ignored, like `max_queue_size`: these limit vLLM's queues, which do not exist here. A subscriber
    /// that falls behind the batches that are kept misses some.
    #[serde(rename = "hwm")]
    _hwm: Option<u64>,
    #[serde(rename = "max_queue_size")]
    _max_queue_size: Option<u64>,
}

fn endpoint() -> String {
    "tcp://*:5557".to_owned()
}

fn buffer_steps() -> usize {
    10_000
}

impl Endpoints {
    /// Parses the value of the flag; `None` if events are disabled.
    pub fn parse(text: &str) -> Result<Option<Endpoints>, EndpointsError> {
        // Of a list serde would take the fields by their places.
        if !serde_json::from_str::<Value>(text)?.is_object() {
            return Err(EndpointsError::NoObject);
        }
        let json: Json = serde_json::from_str(text)?;
        match json.publisher.as_deref() {
            Some("null") => return Ok(None),
            None | Some("zmq") => {}
            Some(other) => return Err(EndpointsError::Publisher(other.to_owned())),
        }
        if json.buffer_steps == 0 {
            return Err(EndpointsError::BufferSteps);
        }
        for endpoint in [Some(&json.endpoint), json.replay_endpoint.as_ref()].into_iter().flatten() {
            let address = endpoint.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'));
            if !address.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
                return Err(EndpointsError::Endpoint(endpoint.clone()));
            }
        }
        let Json { endpoint, replay_endpoint, topic, buffer_steps, .. } = json;
        Ok(json.enable_kv_cache_events.then_some(Endpoints { endpoint, replay_endpoint, topic, buffer_steps }))
    }
}
