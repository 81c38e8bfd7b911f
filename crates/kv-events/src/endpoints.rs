//! vLLM's `--kv-events-config`: whether, where, and under which topic.

use serde::Deserialize;

/// Where events go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Of the PUB socket: `tcp://HOST:PORT`.
    pub endpoint: String,
    /// Of the ROUTER socket, where earlier batches can be had.
    pub replay_endpoint: Option<String>,
    /// The first frame of every message.
    pub topic: String,
    /// Batches that are kept for replays.
    pub buffer_steps: usize,
}

/// What is wrong with the JSON.
#[derive(Debug, thiserror::Error)]
pub enum EndpointsError {
    /// It is none, or has what is not known here.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Another way of publishing.
    #[error("publisher: zmq (or null: nothing is told), not {0:?}")]
    Publisher(String),
    /// An endpoint of another kind.
    #[error("{0}: an endpoint is tcp://HOST:PORT, or tcp://*:PORT")]
    Endpoint(String),
    /// No batch would be kept.
    #[error("buffer_steps: 1 or more")]
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
    /// Of vLLM's queues, which are not these: whoever falls behind by 100,000 batches misses some, and asks for them.
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
    /// Of the text of a flag; `None` where events are not wanted.
    pub fn parse(text: &str) -> Result<Option<Endpoints>, EndpointsError> {
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
            let place = endpoint.strip_prefix("tcp://").and_then(|place| place.rsplit_once(':'));
            if !place.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
                return Err(EndpointsError::Endpoint(endpoint.clone()));
            }
        }
        let Json { endpoint, replay_endpoint, topic, buffer_steps, .. } = json;
        Ok(json.enable_kv_cache_events.then_some(Endpoints { endpoint, replay_endpoint, topic, buffer_steps }))
    }
}
