//! `truncation: "auto"`: of a conversation that is too long the oldest turns are left out.
//!
//! ```text
//! system, [user, assistant], [user, assistant], USER, [assistant, tool], [assistant, tool]
//!         '---- first ----'  '---- second ---'        '---- third ----'  '--- fourth ---'
//! ```
//! System messages and the user's last message stay, and what came of a call goes with the call. As few go as make room
//! for the answer: for `max_output_tokens`, at most half of the context; or for an eighth of it where that is not said.

use engine::{ChatMessage, Prompt, RawRequest};

use crate::app::App;
use crate::conversation::Thinking;

/// Leaves out what has to go. What does not fit without it either is refused by validation.
pub(super) fn fit(raw: &mut RawRequest, thinking: Thinking, app: &App) {
    let model = app.engine.model();
    let most = model.max_model_len - room(raw.max_tokens, model.max_model_len);
    let mut probe = raw.clone();
    app.model.tool_format.tell(&mut probe, thinking);
    let Prompt::Chat(chat) = &mut raw.prompt else { return };
    let groups = groups(&chat.messages);
    let mut length = |left_out: usize| {
        if let Prompt::Chat(probe) = &mut probe.prompt {
            probe.messages = without(&chat.messages, &groups[..left_out]);
        }
        match model.encode(&probe) {
            Ok(tokens) => Some(tokens.len()),
            Err(refused) => (refused.code == Some("context_length_exceeded")).then_some(usize::MAX),
        }
    };
    // Where more than the length is wrong, that is to be said.
    if groups.is_empty() || length(0).is_none_or(|tokens| tokens <= most) {
        return;
    }
    let (mut too_few, mut enough) = (0, groups.len());
    while enough - too_few > 1 {
        let middle = usize::midpoint(too_few, enough);
        if length(middle).is_some_and(|tokens| tokens <= most) {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    chat.messages = without(&chat.messages, &groups[..enough]);
}

/// Tokens that the prompt leaves to the answer.
fn room(max_tokens: Option<i64>, context: usize) -> usize {
    let wanted = max_tokens.filter(|&tokens| tokens > 0).map_or(context / 8, |tokens| tokens as usize);
    wanted.clamp(1, (context / 2).max(1))
}

/// Places of the messages that may go, in the order in which they do.
fn groups(messages: &[ChatMessage]) -> Vec<Vec<usize>> {
    let last = messages.iter().rposition(|message| message.role == "user").unwrap_or(messages.len().saturating_sub(1));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut is_open = false;
    for (at, message) in messages.iter().enumerate() {
        if at == last {
            is_open = false;
            continue;
        }
        if message.role == "system" {
            continue;
        }
        let begins = if at < last { message.role == "user" } else { message.role != "tool" };
        match groups.last_mut().filter(|_| is_open && !begins) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
        is_open = true;
    }
    groups
}

fn without(messages: &[ChatMessage], groups: &[Vec<usize>]) -> Vec<ChatMessage> {
    let mut stays = vec![true; messages.len()];
    groups.iter().flatten().for_each(|&at| stays[at] = false);
    let stay = messages.iter().zip(stays).filter(|(_, stays)| *stays);
    stay.map(|(message, _)| message.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_whole_and_the_last_question_stays() {
        let table: [(&str, &[&[usize]]); 9] = [
            ("u", &[]),
            ("su", &[]),
            ("suauau", &[&[1, 2], &[3, 4]]),
            ("sauau", &[&[1], &[2, 3]]),
            ("uatatuatatt", &[&[0, 1, 2, 3, 4], &[6, 7], &[8, 9, 10]]),
            ("uasau", &[&[0, 1, 3]]),
            ("uat", &[&[1, 2]]),
            ("at", &[&[0]]),
            ("", &[]),
        ];
        for (roles, expected) in table {
            let role = |role: char| match role {
                's' => "system",
                'u' => "user",
                'a' => "assistant",
                _ => "tool",
            };
            let messages: Vec<ChatMessage> = roles.chars().map(|c| ChatMessage::new(role(c), "x")).collect();
            assert_eq!(groups(&messages), expected, "{roles}");
            let left = without(&messages, &groups(&messages));
            assert_eq!(left.len(), messages.len() - expected.iter().map(|group| group.len()).sum::<usize>());
        }
    }

    #[test]
    fn the_answer_has_room() {
        for (asked, room_of_1024) in
            [(None, 128), (Some(-1), 128), (Some(10), 10), (Some(900), 512), (Some(i64::MAX), 512)]
        {
            assert_eq!(room(asked, 1024), room_of_1024, "{asked:?}");
        }
        assert_eq!(room(None, 1), 1);
    }
}
