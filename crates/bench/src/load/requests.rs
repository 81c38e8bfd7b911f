//! What a server of ours says of requests that it answered: `/v1/requests` and `/v1/requests/ID/timeline`. The one place
//! that reads these documents; what a reader does not need is left out.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// One request of the list.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ListedRequest {
    /// The answer's name.
    pub id: String,
    /// `waiting`, `running`, `finished`, `cancelled` or `failed`.
    pub state: String,
    /// When it came, as people write it.
    pub arrived_at: String,
    /// Tokens of its prompts, and those of its answers so far.
    pub prompt_tokens: u64,
    /// See `prompt_tokens`.
    pub completion_tokens: u64,
    /// Arrival to first token; `None` while there is none.
    pub ttft_ms: Option<f64>,
    /// Between two tokens.
    pub longest_gap_ms: f64,
    /// Arrival to end, or to now.
    pub total_ms: f64,
    /// The owner of the largest part of the time to its first token, and of its gaps.
    pub ttft_mostly: Option<String>,
    /// See `ttft_mostly`.
    pub gaps_mostly: Option<String>,
}

/// Where the time of one request went.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RequestTimeline {
    /// The answer's name.
    pub id: String,
    /// The request's own.
    pub request_id: String,
    /// One for each prompt.
    pub prompts: Vec<PromptTimeline>,
}

/// The same of one of its prompts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PromptTimeline {
    /// As in the list.
    pub state: String,
    /// As in the list.
    pub arrived_at: String,
    /// In words, a sentence or two each; `None`: an older server, which tells no reasons.
    pub why: Option<Vec<String>>,
    /// Arrival to first token.
    pub ttft_ms: Option<f64>,
    /// The longest gaps between its tokens.
    pub longest_gaps: Vec<TimelineGap>,
}

/// A gap between two tokens.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TimelineGap {
    /// Its end, since the request came.
    pub at_ms: f64,
    /// Its length.
    pub gap_ms: f64,
    /// Whose time it was: `OWNER_ms`.
    #[serde(default)]
    pub owners: BTreeMap<String, f64>,
    /// Whose prompts and rows others' part of it was.
    #[serde(default)]
    pub delayed_by: Vec<Delay>,
}

/// Another request's part of a gap.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Delay {
    /// Its response id, a number for another key's, null for many small ones together.
    pub request: Value,
    /// Milliseconds.
    pub ms: f64,
}

impl RequestTimeline {
    /// Of the document. `None` if it is another one.
    pub fn read(document: &Value) -> Option<RequestTimeline> {
        let is_one = document["object"] == "request.timeline";
        is_one.then(|| RequestTimeline::deserialize(document).ok()).flatten()
    }
}

impl ListedRequest {
    /// Those of the document. `None` if it is another one.
    pub fn read(document: &Value) -> Option<Vec<ListedRequest>> {
        Vec::deserialize(&document["data"]).ok()
    }
}
