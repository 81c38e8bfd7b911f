//! `twostroke why`: where the time of a request went, in the words of the server that answered it.
//!
//! ```text
//! why        --> GET /v1/requests?order=ttft, ?order=gap   --> the slowest ones, to choose from
//! why ID     --> GET /v1/requests/ID/timeline              --> its story: phases, owners, who delayed it, what helps
//! ```

use std::fmt::Write;

use bench::load::{ListedRequest, RequestTimeline, Target};
use serde_json::{Value, json};

use crate::console::put_line;
use crate::failure::Failure;
use crate::figures::duration;
use crate::flags::WhyFlags;
use crate::signals;

pub(crate) fn why(flags: &WhyFlags) -> Result<(), Failure> {
    let target = flags.server.target()?;
    let runtime = signals::runtime(0)?;
    runtime.block_on(async {
        match &flags.id {
            Some(id) => {
                let timeline = ask(&target, flags, &format!("/v1/requests/{}/timeline", encoded(id))).await?;
                put_line(&if flags.json { timeline.to_string() } else { story(&timeline)? })
            }
            None => {
                let slowest = async |order| {
                    let since = flags.since.as_deref().map_or_else(String::new, |at| format!("&since={}", encoded(at)));
                    ask(&target, flags, &format!("/v1/requests?order={order}&limit={}{since}", flags.limit)).await
                };
                let (ttft, gap) = (slowest("ttft").await?, slowest("gap").await?);
                put_line(&match flags.json {
                    true => json!({"ttft": ttft["data"], "gap": gap["data"]}).to_string(),
                    false => lists(&listed(&ttft)?, &listed(&gap)?),
                })
            }
        }
    })
}

async fn ask(target: &Target, flags: &WhyFlags, route: &str) -> Result<Value, Failure> {
    let (status, answer) = bench::load::ask(target, route).await.map_err(Failure::usage)?;
    let said = answer["error"]["message"].as_str().unwrap_or("it is no twostroke server, or an older one");
    match status {
        200 if answer["object"].is_string() => Ok(answer),
        401 => Err(Failure::usage(format!("{} asks for a key: set --api-key", flags.server.url))),
        400 | 404 => Err(Failure::usage(format!("{}: {said}", flags.server.url))),
        _ => Err(Failure::failed(format!("{} answered {status}: {said}", flags.server.url))),
    }
}

/// As a part of a path or a query: names of requests may have any printable character.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().fold(String::new(), |mut text, byte| {
        let _ = if plain(byte) { write!(text, "{}", char::from(byte)) } else { write!(text, "%{byte:02X}") };
        text
    })
}

fn other_version() -> Failure {
    Failure::failed("that server is of another version and says it otherwise: --json prints what it says")
}

/// One line that names the request, and a line for each thing that is to be said.
fn story(timeline: &Value) -> Result<String, Failure> {
    let RequestTimeline { id, request_id, prompts } = RequestTimeline::read(timeline).ok_or_else(other_version)?;
    let count = prompts.len();
    let mut lines = Vec::new();
    for (index, prompt) in prompts.into_iter().enumerate() {
        let words = prompt.why.ok_or_else(other_version)?;
        let which = if count > 1 { format!(", prompt {} of {count}", index + 1) } else { String::new() };
        lines.push(format!("{id} ({request_id}){which}: {}, came at {}", prompt.state, prompt.arrived_at));
        lines.extend(words);
    }
    Ok(lines.join("\n"))
}

fn listed(list: &Value) -> Result<Vec<ListedRequest>, Failure> {
    ListedRequest::read(list).ok_or_else(other_version)
}

fn lists(ttft: &[ListedRequest], gap: &[ListedRequest]) -> String {
    if ttft.is_empty() {
        return "no request is known: none has come yet, or none since then, or none of this key".to_owned();
    }
    let time = |ms: f64| duration(ms / 1e3);
    let first_token = |line: &ListedRequest| {
        (line.ttft_ms.map_or_else(|| format!("none in {}", time(line.total_ms)), time), line.ttft_mostly.clone())
    };
    let slowest = table("longest to the first token", "first token", ttft, &first_token);
    let longest = |line: &ListedRequest| (time(line.longest_gap_ms), line.gaps_mostly.clone());
    let roughest = table("longest between two tokens", "gap", gap, &longest);
    format!("{slowest}\n\n{roughest}\n\ntwostroke why ID tells where the time of one went")
}

/// `value`: the cell in the column `what`, and the main owner of the time.
fn table(
    title: &str,
    what: &str,
    rows: &[ListedRequest],
    value: &dyn Fn(&ListedRequest) -> (String, Option<String>),
) -> String {
    let mut cells = vec![["came at", what, "mostly", "state", "prompt", "answer", "id"].map(str::to_owned)];
    cells.extend(rows.iter().map(|line| {
        let (value, mostly) = value(line);
        let ListedRequest { id, state, arrived_at, prompt_tokens, completion_tokens, .. } = line.clone();
        let (read, written) = (prompt_tokens.to_string(), completion_tokens.to_string());
        [arrived_at, value, mostly.unwrap_or_else(|| "-".to_owned()), state, read, written, id]
    }));
    let widths: Vec<usize> =
        (0..7).map(|at| cells.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &[String; 7]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    let lines: Vec<String> = cells.iter().map(line).collect();
    format!("{title}\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_signs_of_their_own_stay_one_part_of_a_path() {
        assert_eq!(encoded("chatcmpl-1f"), "chatcmpl-1f");
        assert_eq!(encoded("a/b?c#d%e f"), "a%2Fb%3Fc%23d%25e%20f");
    }
}
