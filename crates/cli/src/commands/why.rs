//! `twostroke why`: where the time of a request went, in the words of the server that answered it.
//!
//! ```text
//! why        --> GET /v1/requests?order=ttft, ?order=gap   --> the slowest ones, to choose from
//! why ID     --> GET /v1/requests/ID/timeline              --> its story: phases, owners, who delayed it, what helps
//! ```

use std::fmt::Write;

use load::Target;
use serde_json::{Value, json};

use crate::console::put_line;
use crate::failure::Failure;
use crate::figures::duration;
use crate::flags::WhyFlags;
use crate::signals;

/// Runs the command.
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
                    false => lists(&ttft, &gap),
                })
            }
        }
    })
}

async fn ask(target: &Target, flags: &WhyFlags, route: &str) -> Result<Value, Failure> {
    let (status, answer) = load::ask(target, route).await.map_err(Failure::usage)?;
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

/// One line that names the request, and a line for each thing that is to be said.
fn story(timeline: &Value) -> Result<String, Failure> {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let prompts = timeline["prompts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut lines = Vec::new();
    for (index, prompt) in prompts.iter().enumerate() {
        let words = prompt["why"].as_array().ok_or_else(|| {
            Failure::failed("that server is of an older version and tells no reasons: --json prints its timeline")
        })?;
        let (id, name) = (text(&timeline["id"]), text(&timeline["request_id"]));
        let which =
            if prompts.len() > 1 { format!(", prompt {} of {}", index + 1, prompts.len()) } else { String::new() };
        lines.push(format!(
            "{id} ({name}){which}: {}, came at {}",
            text(&prompt["state"]),
            text(&prompt["arrived_at"])
        ));
        lines.extend(words.iter().map(text));
    }
    Ok(lines.join("\n"))
}

fn lists(ttft: &Value, gap: &Value) -> String {
    let rows = |list: &Value| list["data"].as_array().cloned().unwrap_or_default();
    let (ttft, gap) = (rows(ttft), rows(gap));
    if ttft.is_empty() {
        return "no request is known: none has come yet, or none since then, or none of this key".to_owned();
    }
    let slowest = table("longest to the first token", "first token", &ttft, &|line| match line["ttft_ms"].as_f64() {
        Some(ms) => duration(ms / 1e3),
        None => format!("none in {}", time(&line["total_ms"])),
    });
    let roughest = table("longest between two tokens", "gap", &gap, &|line| time(&line["longest_gap_ms"]));
    format!("{slowest}\n\n{roughest}\n\ntwostroke why ID tells where the time of one went")
}

fn time(ms: &Value) -> String {
    ms.as_f64().map_or_else(|| "?".to_owned(), |ms| duration(ms / 1e3))
}

fn table(title: &str, what: &str, rows: &[Value], value: &dyn Fn(&Value) -> String) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let mostly = if what == "gap" { "gaps_mostly" } else { "ttft_mostly" };
    let mut cells = vec![["came at", what, "mostly", "state", "prompt", "answer", "id"].map(str::to_owned)];
    cells.extend(rows.iter().map(|line| {
        [
            text(&line["arrived_at"]),
            value(line),
            text(&line[mostly]),
            text(&line["state"]),
            line["prompt_tokens"].to_string(),
            line["completion_tokens"].to_string(),
            text(&line["id"]),
        ]
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
