//! What clients send to any server with OpenAI's API and what changes no token ([`transport::hints`]).

use serde_json::Value;
use transport::error::ApiError;
use transport::hints::{Hint, Hints, Kind, hint, take_of};
use transport::shape::Shape;

/// Those of every route that speaks OpenAI's, vLLM's or llama-server's words.
pub(crate) const HINTS: [Hint; 12] = [
    hint("metadata", Kind::Object, "labels of an answer that is stored"),
    hint("client_metadata", Kind::Object, "what a program says of itself, for its vendor's records"),
    hint("session_id", Kind::Text, "which requests belong together, for records"),
    hint("request_id", Kind::Text, "names the request; here the header `X-Request-Id` does"),
    hint("prompt_cache_key", Kind::Text, "which of many caches to look in; here is one, and it finds by content"),
    hint("prompt_cache_retention", Kind::Text, "how long a prompt stays cached; here until the room is needed"),
    hint("prompt_cache_options", Kind::Object, "the same, in more words"),
    hint("cache_prompt", Kind::Boolean, "whether the prefix cache is used; here the server's flags say so"),
    hint("stream_options.include_obfuscation", Kind::Boolean, "padding that hides how long events are"),
    hint("backend_sampling", Kind::Boolean, "which device draws tokens"),
    hint("t_max_prompt_ms", Kind::Number, "a limit on reading a prompt, which llama-server does not keep either"),
    hint("keep_alive", Kind::Time, "how long a model stays loaded, if it is not the first of the server"),
];

/// Those of chats alone; elsewhere some of the names mean something.
const CHAT_HINTS: [Hint; 9] = [
    hint("store", Kind::Boolean, "whether an answer is kept; here it is not"),
    hint("verbosity", Kind::Text, "how long answers are; no model here was taught what it means"),
    hint("usage", Kind::Object, "OpenRouter's wish for counts of tokens, which every whole answer has"),
    hint("provider", Kind::Object, "OpenRouter's choice of who answers"),
    hint("models", Kind::List, "OpenRouter's other models, for when the first one fails"),
    hint("route", Kind::Text, "OpenRouter's choice among them"),
    hint("chat_id", Kind::Text, "which conversation it is, for records"),
    hint("conversation_id", Kind::Text, "the same"),
    hint("user_id", Kind::Text, "who is behind the request, for its vendor's records"),
];

/// What a chat takes.
pub(crate) static OF_CHATS: [Hint; HINTS.len() + CHAT_HINTS.len()] = {
    let mut all = [HINTS[0]; HINTS.len() + CHAT_HINTS.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < HINTS.len() { HINTS[at] } else { CHAT_HINTS[at - HINTS.len()] };
        at += 1;
    }
    all
};

/// All of them.
pub fn hints() -> impl Iterator<Item = &'static Hint> {
    OF_CHATS.iter()
}

/// Takes them out of a body of this shape, with the members inside of it that its shapes lack, and tells which there were.
pub(crate) fn take(body: &mut Value, shape: &'static Shape) -> Result<Hints, ApiError> {
    take_of(body, &HINTS, shape)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::openai::shapes::CHAT;

    fn taken(body: &mut Value) -> Vec<String> {
        serde_json::from_value(json!(take(body, &CHAT).unwrap())).unwrap()
    }

    #[test]
    fn hints_are_taken_wherever_they_stand_and_nothing_else_is() {
        let rest = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, 5]}, "b"], "n": 1});
        let mut body = rest.clone();
        assert_eq!(taken(&mut body), [""; 0]);
        assert_eq!(body, rest);
        body["metadata"] = json!({"metadata": 1});
        body["session_id"] = json!(null);
        body["messages"][0]["id"] = json!(7);
        body["messages"][0]["mood"] = json!(null);
        body["messages"][0]["content"][0]["cache_control"] = json!({"type": "ephemeral"});
        assert_eq!(taken(&mut body), ["metadata", "messages[].content[].cache_control", "messages[].id"]);
        assert_eq!(body, rest);
        // At the top only what is listed.
        let mut body = json!({"id": "x", "cache_control": {}, "include_obfuscation": true});
        assert_eq!(taken(&mut body), [""; 0]);
        assert_eq!(body.as_object().unwrap().len(), 3);
    }

    #[test]
    fn what_is_the_callers_own_stays_and_names_are_bounded() {
        let schema = json!({"type": "object", "properties": {"x": {"anything": 1}}, "x-note": "y"});
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}, "server": 1});
        let mut body = json!({"tools": [tool], "chat_template_kwargs": {"a": {"b": 1}}, "logit_bias": {"5": 1}});
        assert_eq!(taken(&mut body), ["tools[].server"]);
        assert_eq!(body["tools"][0]["function"]["parameters"], schema);
        assert_eq!((&body["chat_template_kwargs"], &body["logit_bias"]), (&json!({"a": {"b": 1}}), &json!({"5": 1})));
        let strange =
            json!({"role": "user", "content": "a", "a, b": 1, "\r\nX: y": 1, "ü": 1, "": 1, "k".repeat(65): 1});
        assert_eq!(taken(&mut json!({"messages": [strange]})), ["messages[].*"]);
        let many: serde_json::Map<String, Value> = (0..1000).map(|at| (format!("k{at}"), json!(at))).collect();
        let names = taken(&mut json!({"messages": [many]}));
        assert_eq!((names.len(), names.last().map(String::as_str)), (64 + 1, Some("...")));
        let mut long = Hints::default();
        long.extend((0..60).map(|at| format!("a, b{}{at}", "ü".repeat(90))));
        let line = long.in_a_line();
        assert!(line.len() < 2048 + 8 && line.ends_with(", ...") && line.is_ascii(), "{line}");
    }

    #[test]
    fn a_hint_of_another_type_is_refused_with_its_place() {
        for (body, place) in [
            (json!({"metadata": []}), "metadata"),
            (json!({"prompt_cache_key": 5}), "prompt_cache_key"),
            (json!({"stream_options": {"include_obfuscation": "yes"}}), "stream_options.include_obfuscation"),
        ] {
            assert_eq!(take(&mut body.clone(), &CHAT).unwrap_err().param(), Some(place), "{body}");
        }
    }

    #[test]
    fn the_guide_has_every_hint_and_no_other() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");
        for (file, hints) in [
            ("serve.md", hints().collect()),
            ("anthropic.md", crate::anthropic::HINTS.iter().collect::<Vec<_>>()),
            ("ollama.md", crate::ollama::HINTS.iter().collect()),
        ] {
            let guide = std::fs::read_to_string(format!("{directory}/{file}")).expect(file);
            let rows: Vec<&str> = guide.lines().skip_while(|line| !line.starts_with("| hint ")).skip(2).collect();
            let rows: Vec<&str> = rows.into_iter().take_while(|line| line.starts_with('|')).collect();
            let row = |hint: &&Hint| format!("| `{}` | {} | {} |", hint.field, hint.must_be(), hint.meaning);
            assert_eq!(rows, hints.iter().map(row).collect::<Vec<_>>(), "{file}");
        }
    }
}
