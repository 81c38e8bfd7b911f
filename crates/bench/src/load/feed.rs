//! Events without end: what `/live/feed` of a server of ours says, and questions beside it.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use crate::load::events::complaint;
use crate::load::printable::{printable, said};
use crate::load::target::{Connection, Target, TargetError};

/// Such a feed says something twice a second.
const SILENCE: Duration = Duration::from_secs(20);
/// Most bytes of one event.
const LONGEST_EVENT: usize = 32 << 20;

/// A GET whose answer is JSON: its status and the object, `Null` if it is none.
pub async fn ask(target: &Target, route: &str) -> Result<(u16, Value), TargetError> {
    let (status, body) = target.look_up(&target.at_root(route)).await.map_err(TargetError::Answer)?;
    Ok((status.as_u16(), said(&body)))
}

/// A POST of JSON whose answer is JSON.
pub async fn tell(target: &Target, route: &str, body: &Value) -> Result<(u16, Value), TargetError> {
    let (status, body) = target.tell(&target.at_root(route), body.to_string()).await.map_err(TargetError::Answer)?;
    Ok((status.as_u16(), said(&body)))
}

/// An open feed.
pub struct Feed {
    /// Lives as long as the body that comes over it.
    _connection: Connection,
    body: Incoming,
    bytes: Vec<u8>,
}

impl Feed {
    /// Opens `route`. An answer that is no stream of events is an error that shows its beginning.
    pub async fn open(target: &Target, route: &str) -> Result<Feed, TargetError> {
        let path = target.at_root(route);
        let mut connection = target.connect().await.map_err(TargetError::Answer)?;
        let opening = timeout(SILENCE, target.get(&mut connection, &path)).await;
        let answer = opening.map_err(|_| silent()).and_then(|answer| answer.map_err(TargetError::Answer))?;
        let (head, body) = answer.into_parts();
        let kind = head.headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if head.status.is_success() && kind.starts_with("text/event-stream") {
            return Ok(Feed { _connection: connection, body, bytes: Vec::new() });
        }
        let body = http_body_util::Limited::new(body, 4096).collect().await.map(|body| body.to_bytes());
        let text = body.map(|body| complaint(&body)).unwrap_or_default();
        Err(TargetError::Answer(format!("{path} answered {}: {text}", head.status)))
    }

    /// The next event's name and data; `None` when the server has ended the feed.
    pub async fn next(&mut self) -> Result<Option<(String, Value)>, TargetError> {
        loop {
            if let Some(end) = self.bytes.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.bytes.drain(..end + 2).collect();
                if let Some(event) = parsed(&String::from_utf8_lossy(&event)) {
                    return Ok(Some(event));
                }
                continue;
            }
            if self.bytes.len() > LONGEST_EVENT {
                return Err(TargetError::Answer("the feed sends an event without an end".into()));
            }
            match timeout(SILENCE, self.body.frame()).await.map_err(|_| silent())? {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.bytes.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(TargetError::Answer(crate::load::target::chain(&error))),
            }
        }
    }
}

fn silent() -> TargetError {
    TargetError::Answer(format!("the server said nothing for {} s", SILENCE.as_secs()))
}

/// Name and data of an event; `None` for comments and for what is no JSON.
fn parsed(event: &str) -> Option<(String, Value)> {
    let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let data = said(field("data")?.as_bytes());
    (!data.is_null()).then_some((printable(field("event")?), data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_a_name_and_an_object() {
        let (name, data) = parsed("event: step\ndata: {\"id\": 3}\n\n").expect("an event");
        assert_eq!((name.as_str(), &data["id"]), ("step", &3.into()));
        for none in ["", ": a comment\n\n", "event: step\n\n", "data: {}\n\n", "event: step\ndata: rubbish\n\n"] {
            assert_eq!(parsed(none), None, "{none:?}");
        }
    }
}
