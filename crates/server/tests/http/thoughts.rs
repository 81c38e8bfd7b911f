//! Thoughts, forms and calls in one answer: every form, in every API, with every way to switch thoughts off, beside
//! every choice of tools, whole and streamed; and budgets, with a model that is made to write marks where it should not.

use std::sync::{Arc, Mutex};

use model::Batch;
use serde_json::{Value, json};
use server::{ParserOptions, ServerOptions};

use crate::client::with;
use crate::host::{Host, local_server, small_engine};
use crate::sick::{Illness, Sick};
use testing::{is_long, one_of, part_of};

/// What a client sees of an answer, whichever API told it.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    thought: String,
    text: String,
    calls: Vec<(String, String)>,
    is_cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Api {
    Chat,
    Responses,
    Messages,
    Ollama,
}

const APIS: [Api; 4] = [Api::Chat, Api::Responses, Api::Messages, Api::Ollama];

impl Api {
    fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Responses => "/v1/responses",
            Api::Messages => "/v1/messages",
            Api::Ollama => "/api/chat",
        }
    }

    fn body(self, question: &str) -> Value {
        let messages = json!([{"role": "user", "content": question}]);
        match self {
            Api::Chat => json!({"messages": messages, "max_tokens": 160, "temperature": 0}),
            Api::Responses => json!({"input": question, "max_output_tokens": 160, "temperature": 0, "store": false}),
            Api::Messages => json!({"messages": messages, "max_tokens": 160, "temperature": 0}),
            Api::Ollama => json!({"messages": messages, "options": {"num_predict": 160, "temperature": 0}}),
        }
    }

    fn tools(self, name: &str) -> Value {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
        let about = "Get the current weather of a city.";
        match self {
            Api::Chat | Api::Ollama => json!([{"type": "function", "function":
                {"name": name, "description": about, "parameters": schema}}]),
            Api::Responses => json!([{"type": "function", "name": name, "description": about, "parameters": schema}]),
            Api::Messages => json!([{"name": name, "description": about, "input_schema": schema}]),
        }
    }

    fn choice(self, choice: &str) -> Value {
        match (self, choice) {
            (Api::Messages, "required") => json!({"type": "any"}),
            (Api::Messages, "named") => json!({"type": "tool", "name": "get_weather"}),
            (Api::Messages, other) => json!({"type": other}),
            (Api::Responses, "named") => json!({"type": "function", "name": "get_weather"}),
            (_, "named") => json!({"type": "function", "function": {"name": "get_weather"}}),
            (_, other) => json!(other),
        }
    }

    /// All ways to ask for a form.
    #[allow(clippy::type_complexity, reason = "a table")]
    fn forms(self) -> Vec<(Value, fn(&str) -> bool)> {
        let schema = bird();
        let named = json!({"type": "json_schema", "json_schema": {"name": "bird", "schema": schema}});
        match self {
            Api::Chat => vec![
                (json!({"response_format": named}), is_bird),
                (json!({"response_format": {"type": "json_object"}}), is_object),
                (json!({"structured_outputs": {"json": schema}}), is_bird),
                (json!({"structured_outputs": {"choice": ["owl", "wren"]}}), is_word),
                (json!({"structured_outputs": {"choice": [" owl", "\nwren"]}}), |text| {
                    text == " owl" || text == "\nwren"
                }),
                (json!({"guided_json": schema}), is_bird),
                (json!({"guided_regex": "owl|wren"}), is_word),
                (json!({"guided_regex": "\\n(owl|wren)"}), |text| text.starts_with('\n') && is_word(&text[1..])),
                (json!({"guided_choice": ["owl", "wren"]}), is_word),
                (json!({"guided_grammar": "start: \"owl\" | \"wren\""}), is_word),
                (json!({"grammar": "root ::= \"owl\" | \"wren\""}), is_word),
                (json!({"json_schema": schema}), is_bird),
                // Marks of a thought, which are the form's own.
                (json!({"guided_choice": ["owl</think>wren"]}), |text| text == "owl</think>wren"),
                (json!({"guided_json": {"const": "<think>owl</think>"}}), |text| text == "\"<think>owl</think>\""),
            ],
            Api::Responses => vec![
                (json!({"text": {"format": {"type": "json_schema", "name": "bird", "schema": schema}}}), is_bird),
                (json!({"text": {"format": {"type": "json_object"}}}), is_object),
            ],
            Api::Messages => {
                vec![(json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}), is_bird)]
            }
            Api::Ollama => vec![(json!({"format": schema}), is_bird), (json!({"format": "json"}), is_object)],
        }
    }

    /// All ways to say that nothing is to be thought.
    fn switches(self) -> Vec<Value> {
        let kwargs = |switch: &str| json!({"chat_template_kwargs": {switch: false}});
        match self {
            Api::Chat => vec![
                json!({"reasoning_effort": "none"}),
                json!({"thinking_token_budget": 0}),
                json!({"thinking_budget": 0}),
                kwargs("enable_thinking"),
                kwargs("thinking"),
                json!({"enable_thinking": false}),
                json!({"thinking": {"type": "disabled"}}),
                json!({"thinking": {"type": "enabled", "budget_tokens": 0}}),
                json!({"reasoning": {"effort": "none"}}),
                json!({"reasoning": {"enabled": false}}),
                json!({"reasoning": {"max_tokens": 0}}),
                json!({"think": false}),
                json!({"think": "none"}),
            ],
            Api::Responses => vec![
                json!({"reasoning": {"effort": "none"}}),
                json!({"thinking_token_budget": 0}),
                json!({"enable_thinking": false}),
                json!({"thinking": {"type": "disabled"}}),
                kwargs("enable_thinking"),
            ],
            Api::Messages => vec![
                json!({"thinking": {"type": "disabled"}}),
                json!({"thinking": {"type": "enabled", "budget_tokens": 0}}),
                kwargs("enable_thinking"),
            ],
            Api::Ollama => vec![json!({"think": false})],
        }
    }

    fn whole(self, answer: &Value) -> Heard {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut heard = Heard::default();
        match self {
            Api::Chat => {
                let choice = &answer["choices"][0];
                let message = &choice["message"];
                (heard.thought, heard.text) = (text(&message["reasoning"]), text(&message["content"]));
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    heard.calls.push((text(&call["function"]["name"]), text(&call["function"]["arguments"])));
                }
                heard.is_cut = choice["finish_reason"] == "length";
            }
            Api::Responses => {
                for item in answer["output"].as_array().expect("a list") {
                    match item["type"].as_str().expect("a type") {
                        "reasoning" => heard.thought += item["content"][0]["text"].as_str().unwrap_or_default(),
                        "message" => heard.text += item["content"][0]["text"].as_str().unwrap_or_default(),
                        _ => heard.calls.push((text(&item["name"]), text(&item["arguments"]))),
                    }
                }
                heard.is_cut = answer["status"] == "incomplete";
            }
            Api::Messages => {
                for block in answer["content"].as_array().expect("a list") {
                    match block["type"].as_str().expect("a type") {
                        "thinking" => heard.thought += block["thinking"].as_str().unwrap_or_default(),
                        "text" => heard.text += block["text"].as_str().unwrap_or_default(),
                        _ => heard.calls.push((text(&block["name"]), block["input"].to_string())),
                    }
                }
                heard.is_cut = answer["stop_reason"] == "max_tokens";
            }
            Api::Ollama => {
                let message = &answer["message"];
                (heard.thought, heard.text) = (text(&message["thinking"]), text(&message["content"]));
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    heard.calls.push((text(&call["function"]["name"]), call["function"]["arguments"].to_string()));
                }
                heard.is_cut = answer["done_reason"] == "length";
            }
        }
        heard
    }

    fn ask(self, host: &Host, body: &Value) -> (Heard, Value) {
        let mut body = body.clone();
        body["stream"] = json!(false);
        let answer = host.ask(self.path(), &body);
        (self.whole(&answer), answer)
    }

    /// The same of a stream: what its pieces say together.
    fn streamed(self, host: &Host, body: &Value) -> Heard {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let answer = host.post(self.path(), &body);
        assert_eq!(answer.status, 200, "{body} -> {}", answer.text());
        let mut heard = Heard::default();
        let said = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match self {
            Api::Chat => {
                for event in answer.events().0 {
                    let choice = &event["choices"][0];
                    let delta = &choice["delta"];
                    heard.thought += &said(&delta["reasoning"]);
                    heard.text += &said(&delta["content"]);
                    for call in delta["tool_calls"].as_array().into_iter().flatten() {
                        if call["function"]["name"].is_string() {
                            heard.calls.push((said(&call["function"]["name"]), String::new()));
                        }
                        heard.calls.last_mut().expect("it began").1 += &said(&call["function"]["arguments"]);
                    }
                    heard.is_cut |= choice["finish_reason"] == "length";
                }
            }
            Api::Responses => {
                let last = lines(answer.text()).pop().expect("an event");
                heard = self.whole(&last["response"]);
            }
            Api::Messages => {
                for event in lines(answer.text()) {
                    let (block, delta) = (&event["content_block"], &event["delta"]);
                    heard.thought += &said(&delta["thinking"]);
                    heard.text += &said(&delta["text"]);
                    if block["type"] == "tool_use" {
                        heard.calls.push((said(&block["name"]), String::new()));
                    }
                    if delta["type"] == "input_json_delta" {
                        heard.calls.last_mut().expect("it began").1 += &said(&delta["partial_json"]);
                    }
                    heard.is_cut |= delta["stop_reason"] == "max_tokens";
                }
            }
            Api::Ollama => {
                for line in answer.text().lines() {
                    let one = self.whole(&serde_json::from_str(line).expect("a line of JSON"));
                    heard.thought += &one.thought;
                    heard.text += &one.text;
                    heard.calls.extend(one.calls);
                    heard.is_cut |= one.is_cut;
                }
            }
        }
        heard
    }

    /// Tokens of the answer, and those of thoughts, as far as it tells.
    fn usage(self, answer: &Value) -> (u64, Option<u64>) {
        let usage = &answer["usage"];
        match self {
            Api::Chat => (
                usage["completion_tokens"].as_u64().expect("a number"),
                usage["completion_tokens_details"]["reasoning_tokens"].as_u64(),
            ),
            Api::Responses => (
                usage["output_tokens"].as_u64().expect("a number"),
                usage["output_tokens_details"]["reasoning_tokens"].as_u64(),
            ),
            Api::Messages => (usage["output_tokens"].as_u64().expect("a number"), None),
            Api::Ollama => (answer["eval_count"].as_u64().expect("a number"), None),
        }
    }
}

/// The JSON of server-sent events.
fn lines(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

fn bird() -> Value {
    json!({
        "type": "object",
        "properties": {"bird": {"enum": ["owl", "wren"]}, "old": {"type": "boolean"}},
        "required": ["bird", "old"],
        "additionalProperties": false,
    })
}

fn is_bird(text: &str) -> bool {
    let Ok(Value::Object(map)) = serde_json::from_str(text) else { return false };
    map.len() == 2 && (map["bird"] == "owl" || map["bird"] == "wren") && map["old"].is_boolean()
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())
}

fn is_word(text: &str) -> bool {
    text == "owl" || text == "wren"
}

fn is_call((name, arguments): &(String, String)) -> bool {
    name == "get_weather" && is_object(arguments)
}

/// One answer of the table.
fn check(api: Api, body: &Value, heard: &Heard, holds: fn(&str) -> bool, must_call: bool, is_off: bool) {
    let told = || format!("{api:?} {body}: {heard:?}");
    assert!(!is_off || heard.thought.is_empty(), "thought where it is switched off: {}", told());
    let is_white = heard.calls.is_empty() && heard.text.trim().is_empty();
    if heard.is_cut {
        assert!(!is_white || !heard.thought.trim().is_empty(), "nothing but white space: {}", told());
        return;
    }
    assert!(!is_white, "nothing but white space: {}", told());
    if heard.calls.is_empty() {
        assert!(!must_call && holds(&heard.text), "neither a call nor the form: {}", told());
    } else {
        assert!(heard.calls.iter().all(is_call) && heard.text.trim().is_empty(), "{}", told());
    }
}

fn table(api: Api) {
    let host = Host::start();
    let mut switches = api.switches();
    switches.insert(0, json!({}));
    let mut called = 0;
    for (number, (form, holds)) in api.forms().into_iter().enumerate() {
        for (turn, (at, switch)) in part_of(switches.iter().enumerate(), 4).enumerate() {
            // Each form with each switch, each of both with each choice, and all of the first.
            let has_all = number == 0 || at == 0 && is_long();
            for (place, choice) in ["", "auto", "required", "named"].into_iter().enumerate() {
                if !has_all && (number + turn) % 4 != place {
                    continue;
                }
                let question =
                    ["Tell me about a bird.", "What is the weather in Rome?"][usize::from(!choice.is_empty())];
                let mut body = with(&with(&api.body(question), &form), switch);
                if let (Api::Messages, Some(_)) = (api, switch.get("output_config")) {
                    body["output_config"]["format"] = form["output_config"]["format"].clone();
                }
                if !choice.is_empty() {
                    body = with(&body, &json!({"tools": api.tools("get_weather"), "tool_choice": api.choice(choice)}));
                }
                let must_call = matches!(choice, "required" | "named");
                let (heard, answer) = api.ask(&host, &body);
                check(api, &body, &heard, holds, must_call, at > 0);
                called += heard.calls.len();
                let (tokens, thought) = api.usage(&answer);
                assert!(tokens > 0 && thought.is_none_or(|thought| thought < tokens), "{answer}");
                assert!(at == 0 || thought.is_none_or(|thought| thought == 0), "{answer}");
                if (number + at + place) % 3 == 0 {
                    let streamed = api.streamed(&host, &body);
                    check(api, &body, &streamed, holds, must_call, at > 0);
                    let names = |heard: &Heard| heard.calls.iter().map(|call| call.0.clone()).collect::<Vec<_>>();
                    assert_eq!((&streamed.text, &streamed.thought), (&heard.text, &heard.thought), "{body}");
                    assert_eq!(names(&streamed), names(&heard), "{body}");
                }
            }
        }
    }
    assert!(called > 0, "{api:?}: nothing was ever called");
    host.quiet();
}

#[test]
fn a_chat_is_in_its_form_or_calls() {
    table(Api::Chat);
}

#[test]
fn a_response_is_in_its_form_or_calls() {
    table(Api::Responses);
}

#[test]
fn a_message_is_in_its_form_or_calls() {
    table(Api::Messages);
}

#[test]
fn ollamas_answer_is_in_its_form_or_calls() {
    table(Api::Ollama);
}

/// With its own form each family calls where it called without one.
#[test]
fn a_form_beside_tools_does_not_keep_a_model_from_calling() {
    let host = Host::start();
    for api in APIS {
        let tools = json!({"tools": api.tools("get_weather")});
        for question in ["What is the weather in Rome?", "What is the weather in Paris?"] {
            let free = api.ask(&host, &with(&api.body(question), &tools)).0;
            assert!(free.calls.iter().all(is_call) && !free.calls.is_empty(), "{api:?}: {free:?}");
            for (form, _) in part_of(api.forms(), 2) {
                let body = with(&with(&api.body(question), &tools), &form);
                let heard = api.ask(&host, &body).0;
                assert_eq!(heard.calls, free.calls, "{api:?} {form}");
                assert_eq!(heard.text, "", "{api:?} {form}");
            }
        }
    }
    host.quiet();
}

/// With each family's way to call, the answer is one or the other.
#[test]
fn every_family_calls_or_keeps_to_the_form() {
    // Behind the first 31 names stand others of the same.
    for (family, parser) in part_of(&ParserOptions::tool_call_parsers()[..31], 4).enumerate() {
        let parsers = ParserOptions { tool_call_parser: Some((*parser).to_owned()), reasoning_parser: None };
        let host = Host::with(small_engine(), ServerOptions { parsers, ..local_server() });
        let api = Api::Chat;
        for (number, (form, holds)) in api.forms().into_iter().enumerate().filter(|(number, _)| number % 3 == 0) {
            for choice in one_of(["auto", "required"], family + number / 3) {
                let question = ["What is the weather in Rome?", "Tell me about a bird."][number % 2];
                let body = with(
                    &with(&api.body(question), &form),
                    &json!({
                        "tools": api.tools("get_weather"), "tool_choice": choice, "reasoning_effort": "none",
                        "max_tokens": 60, "parallel_tool_calls": false,
                    }),
                );
                let (heard, _) = api.ask(&host, &body);
                check(api, &body, &heard, holds, choice == "required", true);
                let streamed = api.streamed(&host, &body);
                // A call that is cut off is text in one piece, and in a stream a call that has no end.
                if streamed.calls.len() == heard.calls.len() {
                    assert_eq!(streamed.text, heard.text, "{parser} {body}");
                }
            }
        }
        host.quiet();
    }
}

/// A model that wants to say one token after the other, whatever came before.
struct Scripted(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    /// Tokens of the prompt.
    prompt: usize,
    wanted: Vec<u32>,
    positions: Vec<usize>,
}

impl Illness for Scripted {
    fn before(&mut self, batch: &Batch) {
        let positions = batch.logit_rows.iter().map(|&row| batch.positions[row as usize] as usize).collect();
        self.0.lock().unwrap().positions = positions;
    }

    fn logits(&mut self, row: usize, logits: &mut [f32]) {
        let script = self.0.lock().unwrap();
        let at = (script.positions[row] + 1).checked_sub(script.prompt);
        if let Some(&token) = at.and_then(|at| script.wanted.get(at)) {
            logits[token as usize] += 1000.0;
        }
    }
}

/// How each family writes: what opens a thought, what closes it.
fn marks(family: &str) -> (&'static str, &'static str) {
    match family {
        "granite" => ("Here is my thought process:", "Here is my response:"),
        "gemma4" => ("<|channel>thought\n", "<channel|>"),
        "mistral" => ("[THINK]", "[/THINK]"),
        "seed_oss" => ("<seed:think>", "</seed:think>"),
        "cohere_command3" | "cohere_command4" => ("<|START_THINKING|>", "<|END_THINKING|>"),
        "openai_gptoss" | "gpt-oss" => {
            ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
        }
        _ => ("<think>", "</think>"),
    }
}

fn budgets(families: &[&str], some: &[u32]) {
    for family in families {
        let script = Arc::new(Mutex::new(Script::default()));
        let parsers = ParserOptions { reasoning_parser: Some((*family).to_owned()), tool_call_parser: None };
        let options = ServerOptions { parsers, ..local_server() };
        let illness = Scripted(script.clone());
        let host = Host::around(small_engine(), options, |inner| Box::new(Sick { inner, illness }));
        let api = Api::Chat;
        let ask = api.body("What is 21 + 13?");
        let prompt = host.ask("/tokenize", &json!({"messages": ask["messages"]}))["count"].as_u64().unwrap() as usize;
        let tokens = |text: &str| -> Vec<u32> {
            let told = host.ask("/tokenize", &json!({"prompt": text, "add_special_tokens": false}));
            told["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        let (open, close) = marks(family);
        let words = " so it is and".repeat(12);
        let texts = [
            format!("{open}{words}{close}the answer{close} is 4{open} or{close}{close} 5. And so on"),
            format!("{open}{words}{close}{open}{words}{close} 4{close} 5. And so on"),
            format!("{open}\n{words}\n{close}\n\n{close}\n\nIt is{close}\n4. And so on"),
            format!("\n{open}\n{open}{words}{close}\n{open}\nIt is{close}\n4. And so on"),
        ];
        for text in part_of(&texts, 2) {
            let wanted = tokens(text);
            *script.lock().unwrap() = Script { prompt, wanted: wanted.clone(), positions: Vec::new() };
            for &budget in some {
                let budget = u64::from(budget);
                let most = wanted.len() + 8;
                let body = with(&ask, &json!({"thinking_token_budget": budget, "max_tokens": most}));
                let (heard, answer) = api.ask(&host, &body);
                let seen = format!("{family}, {budget}: {heard:?}");
                for visible in [&heard.thought, &heard.text] {
                    assert!(!visible.contains(open) && !visible.contains(close.trim_end()), "a mark: {seen}");
                    assert!(!visible.contains("<|"), "a mark: {seen}");
                }
                let counted = api.usage(&answer).1.unwrap();
                assert_eq!(counted, budget, "{seen}");
                assert_eq!(heard.thought.is_empty(), budget == 0, "{seen}");
                // What closes a thought of harmony's begins with `<|end|>`, and that ends an answer of this model.
                assert!(!heard.text.is_empty() || open.starts_with("<|channel|>"), "{seen}");
                if budget % 2 == 1 {
                    let streamed = api.streamed(&host, &body);
                    assert_eq!(
                        (&streamed.thought, &streamed.text),
                        (&heard.thought, &heard.text),
                        "{family}, {budget}"
                    );
                    let slowly = api.ask(&host, &with(&body, &json!({"speculate": false}))).0;
                    assert_eq!(slowly, heard, "without drafts");
                }
            }
        }
        host.quiet();
    }
}

/// Whatever a model writes behind it: a thought has as many tokens as it may have, and no mark is seen. What is heard in
/// texts of all kinds is a test of the dialect's; here is one family of each kind.
#[test]
fn a_budget_is_a_budget() {
    let kinds = ["deepseek_r1", "qwen3", "cohere_command4", "mistral", "gpt-oss", "seed_oss", "granite", "gemma4"];
    budgets(&part_of(kinds, 2).collect::<Vec<_>>(), &part_of([0, 13, 2, 1], 3).collect::<Vec<_>>());
}

#[test]
#[ignore = "long: every family, seven budgets, four texts"]
fn a_budget_is_a_budget_in_every_family() {
    budgets(ParserOptions::reasoning_parsers(), &[0, 1, 2, 3, 5, 13, 40]);
    budgets(&["qwen3"], &(0..=40).collect::<Vec<_>>());
}

/// On the model as it is, with all that a budget may stand beside.
#[test]
fn a_budget_holds_beside_tools_forms_and_several_answers() {
    let host = Host::start();
    for api in [Api::Chat, Api::Responses] {
        for question in ["What is 21 + 13?", "How many legs have two owls?", "What is the weather in Rome?"] {
            for budget in part_of([0, 1, 2, 3, 5, 8, 13, 40], 4) {
                let (form, _) = api.forms().swap_remove(0);
                let tools = json!({"tools": api.tools("get_weather")});
                for more in [json!({}), form, tools.clone(), with(&tools, &json!({"tool_choice": "required"}))] {
                    let body = with(&with(&api.body(question), &more), &json!({"thinking_token_budget": budget}));
                    let (heard, answer) = api.ask(&host, &body);
                    let counted = api.usage(&answer).1.unwrap();
                    assert!(counted <= budget, "{body}: {answer}");
                    let again = json!({"prompt": heard.thought, "add_special_tokens": false});
                    let thought = host.ask("/tokenize", &again)["count"].as_u64().unwrap();
                    assert!(thought <= budget, "{thought} of {budget}: {heard:?}");
                    assert!(!heard.text.contains("think>") && !heard.thought.contains("think>"), "{heard:?}");
                }
            }
        }
    }
    let body = json!({
        "messages": [{"role": "user", "content": "What is 21 + 13?"}], "temperature": 1, "seed": 4, "n": 4,
        "thinking_token_budget": 4, "max_tokens": 60,
    });
    let answer = host.ask("/v1/chat/completions", &body);
    assert!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() <= 16, "{answer}");
    assert!(!answer["choices"].to_string().contains("think>"), "{answer}");
    host.quiet();
}
