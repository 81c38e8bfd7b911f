//! An answer's stream: bytes into lines, lines into events, events into the times of tokens.

use std::time::Instant;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::load::client::{PhaseFigures, RequestOutcome};
use crate::load::printable::printable;
use crate::load::sessions::Said;

/// Most bytes of a line of the stream, and of everything that is no event before the next one.
pub(crate) const LONGEST_LINE: usize = 1 << 20;
/// Most bytes of a body that an error message shows.
const LONGEST_ERROR: usize = 300;

/// What an error's body says: OpenAI's message in it, or its start.
pub(crate) fn complaint(body: &[u8]) -> String {
    let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
    match parsed["error"]["message"].as_str() {
        Some(message) => shown(message.as_bytes()),
        None => shown(body),
    }
}

/// The start of a body, for an error message.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_ERROR)]);
    printable(&text)
}

/// What has come of an answer so far.
#[derive(Default)]
pub(crate) struct Tokens {
    last: Option<Instant>,
    events: usize,
    /// Bytes of lines that are no events since the last one.
    ignored: usize,
    pub(crate) finished: bool,
    /// What was said, for those who will quote it.
    pub(crate) said: Option<Said>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    id: String,
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
    timings: Option<Timings>,
    /// How far the prompt is read: such an event has a choice, and no token for it.
    prompt_progress: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    finish_reason: Option<Value>,
    token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Delta {
    role: Option<String>,
    content: Option<String>,
    /// What was thought; servers send it by either name, or by both.
    reasoning: Option<String>,
    reasoning_content: Option<String>,
}

/// What a server of this kind says of its phases; of others' timings nothing.
#[derive(Deserialize)]
struct Timings {
    #[serde(default, deserialize_with = "if_known")]
    prefill: Option<PhaseFigures>,
    #[serde(default, deserialize_with = "if_known")]
    decode: Option<PhaseFigures>,
}

/// A field of that name from another server is ignored.
fn if_known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PhaseFigures>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<usize>,
    completion_tokens: Option<usize>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<usize>,
}

impl Tokens {
    /// `keeps`: what it says will be quoted.
    pub(crate) fn new(keeps: bool) -> Tokens {
        Tokens { said: keeps.then(Said::default), ..Tokens::default() }
    }

    /// Takes a line of the stream. True: it was the last one.
    pub(crate) fn take(&mut self, line: &[u8], sent: Instant, outcome: &mut RequestOutcome) -> Result<bool, String> {
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
            self.ignored += line.len() + 1;
            let rubbish = self.ignored > LONGEST_LINE;
            return if rubbish {
                Err("the answer has no events (`data: {...}`), only other text".into())
            } else {
                Ok(false)
            };
        };
        self.ignored = 0;
        if data == b"[DONE]" {
            return if outcome.ttft > 0.0 { Ok(true) } else { Err("the answer has no token".into()) };
        }
        let event: Event =
            serde_json::from_slice(data).map_err(|error| format!("an event is not JSON ({error}): {}", shown(data)))?;
        if event.error.is_some() {
            return Err(format!("the server reported: {}", complaint(data)));
        }
        if outcome.id.is_empty() {
            outcome.id = event.id;
        }
        if let (Some(choice), None) = (event.choices.first(), &event.prompt_progress) {
            self.finished |= choice.finish_reason.as_ref().is_some_and(|reason| !reason.is_null());
            if let Some(said) = &mut self.said {
                let texts = [choice.text.as_deref(), choice.delta.as_ref().and_then(|delta| delta.content.as_deref())];
                texts.into_iter().flatten().for_each(|text| said.text.push_str(text));
                said.ids.extend(choice.token_ids.iter().flatten());
            }
            if choice.is_token() {
                let now = Instant::now();
                match self.last {
                    None => outcome.ttft = now.duration_since(sent).as_secs_f64().max(f64::MIN_POSITIVE),
                    Some(last) => outcome.itls.push(now.duration_since(last).as_secs_f64()),
                }
                self.last = Some(now);
                self.events += 1;
                outcome.output_tokens = self.events;
            }
        }
        if let Some(timings) = event.timings {
            outcome.phases = [timings.prefill, timings.decode];
        }
        if let Some(usage) = event.usage {
            outcome.prompt_tokens = usage.prompt_tokens.unwrap_or(outcome.prompt_tokens);
            outcome.cached_tokens = usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
            outcome.output_tokens = usage.completion_tokens.unwrap_or(outcome.output_tokens);
        }
        Ok(false)
    }
}

impl Choice {
    /// An event with text is a token; so is one without, unless it only opens or closes the answer: the bytes of a
    /// character may take several tokens.
    fn is_token(&self) -> bool {
        let has = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let (delta, opens) = match &self.delta {
            Some(delta) => {
                (has(&delta.content) || has(&delta.reasoning) || has(&delta.reasoning_content), delta.role.is_some())
            }
            None => (false, false),
        };
        let closes = self.finish_reason.as_ref().is_some_and(|reason| !reason.is_null());
        has(&self.text) || delta || !(opens || closes)
    }
}

/// Lines out of bytes as they come.
#[derive(Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    begin: usize,
}

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes.drain(..self.begin);
        self.begin = 0;
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > LONGEST_LINE + bytes.len() {
            Err("the server sends a line without an end".into())
        } else {
            Ok(())
        }
    }

    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let rest = &self.bytes[self.begin..];
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let line = rest[..end].trim_ascii_end().to_vec();
        self.begin += end + 1;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(lines: &[&str]) -> (RequestOutcome, Result<bool, String>) {
        let (mut tokens, mut outcome) = (Tokens::default(), RequestOutcome::default());
        let sent = Instant::now();
        let mut last = Ok(false);
        for line in lines {
            last = tokens.take(line.as_bytes(), sent, &mut outcome);
        }
        (outcome, last)
    }

    #[test]
    fn what_is_a_token() {
        // (events, tokens by events)
        let cases: &[(&[&str], usize)] = &[
            (
                &[
                    r#"data: {"choices":[{"text":"a","finish_reason":null}]}"#,
                    r#"data: {"choices":[{"text":"b","finish_reason":"length"}]}"#,
                ],
                2,
            ),
            (&[r#"data: {"choices":[{"text":"a"}]}"#, r#"data: {"choices":[{"text":"","finish_reason":"stop"}]}"#], 1),
            (
                &[
                    r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
                    r#"data: {"choices":[{"delta":{"content":"a"}}]}"#,
                ],
                1,
            ),
            // The end in a separate event, as OpenAI and we send it.
            (
                &[
                    r#"data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
                    r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}"#,
                    r#"data: {"choices":[{"delta":{},"finish_reason":"length"}],"timings":{}}"#,
                    r#"data: {"choices":[],"usage":null}"#,
                ],
                1,
            ),
            // An end with the text that was held back until then.
            (&[r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#], 1),
            (&[r#"data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}"#], 1),
            (&[r#"data: {"choices":[{"delta":{"reasoning":"hm","reasoning_content":"hm"}}]}"#], 1),
            (&[r#"data: {"choices":[{"text":""}]}"#, ": a comment", "", "event: x"], 1),
            (
                &[
                    r#"data: {"choices":[{"delta":{}}],"prompt_progress":{"total":9,"cache":0,"processed":4,"time_ms":1}}"#,
                    r#"data: {"choices":[{"delta":{"content":"a"}}]}"#,
                ],
                1,
            ),
        ];
        for (lines, expected) in cases {
            assert_eq!(events(lines).0.output_tokens, *expected, "{lines:?}");
        }
    }

    #[test]
    fn the_servers_own_count_is_believed() {
        let (outcome, last) = events(&[
            r#"data: {"id":"cmpl-1","choices":[{"text":"abc"}]}"#,
            r#"data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":5}}}"#,
            "data: [DONE]",
        ]);
        assert_eq!((outcome.id.as_str(), outcome.prompt_tokens, outcome.output_tokens), ("cmpl-1", 7, 3));
        assert_eq!(outcome.cached_tokens, 5);
        assert_eq!(last, Ok(true));
    }

    #[test]
    fn rubbish_is_an_error_that_shows_it() {
        assert!(events(&["data: <html>"]).1.unwrap_err().contains("<html>"));
        let error = events(&[r#"data: {"error":{"message":"too hot","code":7}}"#]).1.unwrap_err();
        assert_eq!(error, "the server reported: too hot");
        assert_eq!(complaint(b"out of it\n"), "out of it ");
        assert!(events(&["data: [DONE]"]).1.unwrap_err().contains("no token"));
    }

    #[test]
    fn lines_are_found_across_frames() {
        let mut lines = Lines::default();
        lines.push(b"da").unwrap();
        assert_eq!(lines.next(), None);
        lines.push(b"ta: 1\r\n\ndata").unwrap();
        assert_eq!(lines.next(), Some(b"data: 1".to_vec()));
        assert_eq!(lines.next(), Some(b"".to_vec()));
        assert_eq!(lines.next(), None);
        lines.push(b": 2\n").unwrap();
        assert_eq!(lines.next(), Some(b"data: 2".to_vec()));
    }
}
