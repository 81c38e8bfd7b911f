//! Grammars accept exactly the answers that are parsed as calls that follow their schemas.

use std::sync::Arc;

use dialect::{AnswerPart, Calls, Choice, Dialect, Form, Thoughts, Tool, whole};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use testing::Dice;

/// One token per byte, and the end.
fn factory() -> ParserFactory {
    let words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).chain([b"\xFFend".to_vec()]).collect();
    let info =
        TokRxInfo { vocab_size: 257, tok_eos: 256, tok_bos: None, tok_pad: None, tok_unk: None, tok_end_of_turn: None };
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
    let mut factory = ParserFactory::new_simple(&env).expect("its own expressions compile");
    factory.quiet();
    // The server's limits.
    let limits = factory.limits_mut();
    limits.initial_lexer_fuel = 1_000_000;
    limits.step_lexer_fuel = 50_000;
    limits.step_max_items = 50_000;
    limits.max_lexer_states = 50_000;
    factory
}

struct Rule {
    lark: String,
    fresh: Matcher,
}

impl Rule {
    fn new(factory: &ParserFactory, lark: String) -> Rule {
        let parser = factory.create_parser(TopLevelGrammar::from_lark(lark.clone()));
        let mut fresh = Matcher::new(Ok(parser.unwrap_or_else(|error| panic!("{error}\n{lark}"))));
        assert_eq!(fresh.grammar_warnings(), Vec::<String>::new(), "{lark}");
        Rule { lark, fresh }
    }

    /// How many bytes are accepted, and whether the answer may end there.
    fn walk(&self, answer: &str) -> (usize, bool) {
        let mut matcher = self.fresh.deep_clone();
        for (at, byte) in answer.bytes().enumerate() {
            let mask = matcher.compute_mask_or_eos().unwrap_or_else(|error| panic!("{error}\n{}", self.lark));
            if !mask.is_allowed(u32::from(byte)) {
                return (at, mask.is_allowed(256));
            }
            matcher.consume_token(u32::from(byte)).unwrap_or_else(|error| panic!("{error}\n{}", self.lark));
        }
        (answer.len(), matcher.is_stopped() || matcher.is_accepting().expect("it works"))
    }

    #[track_caller]
    fn takes(&self, answer: &str) {
        let (at, end) = self.walk(answer);
        assert!(at == answer.len(), "{:?} | {:?}\n{}", &answer[..at], &answer[at..], self.lark);
        assert!(end, "{answer:?} may not end\n{}", self.lark);
    }

    /// Whether nothing can follow, as the server sees it: no end token has to be sampled.
    fn is_over_behind(&self, answer: &str) -> bool {
        let mut matcher = self.fresh.deep_clone();
        for byte in answer.bytes() {
            matcher.consume_token(u32::from(byte)).unwrap_or_else(|error| panic!("{error}\n{}", self.lark));
        }
        matcher.is_stopped()
    }

    #[track_caller]
    fn refuses(&self, answer: &str) {
        assert_ne!(self.walk(answer), (answer.len(), true), "{answer:?}\n{}", self.lark);
    }
}

fn tools(strict: bool) -> Arc<[Tool]> {
    let tool = |name: &str, parameters: Value| Tool { name: name.into(), parameters, strict };
    [
        tool(
            "weather",
            json!({
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "unit": {"enum": ["C", "F"]},
                    "near": {"type": "array", "items": {"$ref": "#/$defs/place"}},
                },
                "required": ["city", "days"],
                "additionalProperties": false,
                "$defs": {
                    "place": {
                        "type": "object",
                        "properties": {"name": {"type": "string"}, "far": {"type": "boolean"}},
                        "required": ["far"],
                        "additionalProperties": false,
                    },
                },
            }),
        ),
        tool("now", json!({"type": "object", "properties": {}, "additionalProperties": false})),
        Tool { name: "note".into(), parameters: json!({}), strict: false },
    ]
    .into()
}

/// A family: its syntax of one call of `weather` with days and maybe the rest, one of `now`, one of `note`, and two.
struct Family {
    calls: &'static str,
    thoughts: &'static str,
    prompt_end: &'static str,
    /// Valid arguments in the family's syntax, and as JSON.
    good: &'static [(&'static str, &'static str)],
    /// The syntax around a call of `weather`.
    weather: [&'static str; 2],
    /// Arguments that the schema forbids.
    bad: &'static [&'static str],
    now: &'static str,
    note: (&'static str, &'static str),
    /// Two calls of `now` in one answer; empty if the family allows one at most.
    two: &'static str,
    /// Optional text before, parsed as a thought.
    thought: &'static str,
    /// Whether text can be distinguished from calls before them.
    bare: bool,
}

const JSONS: &[(&str, &str)] = &[
    ("{\"city\": \"Ulm \\\"x\\\"\", \"days\": 3}", "{\"city\": \"Ulm \\\"x\\\"\", \"days\": 3}"),
    (
        "{\"city\": \"\", \"days\": -1, \"unit\": \"F\", \"near\": [{\"far\": true}, {\"name\": \"a\", \"far\": \
         false}]}",
        "{\"city\": \"\", \"days\": -1, \"unit\": \"F\", \"near\": [{\"far\": true}, {\"name\": \"a\", \"far\": \
         false}]}",
    ),
];
const BAD_JSONS: &[&str] = &[
    "{}",
    "{\"city\": \"Ulm\"}",
    "{\"city\": 3, \"days\": 3}",
    "{\"city\": \"Ulm\", \"days\": 3.5}",
    "{\"city\": \"Ulm\", \"days\": 3, \"unit\": \"K\"}",
    "{\"city\": \"Ulm\", \"days\": 3, \"wind\": 1}",
    "{\"city\": \"Ulm\", \"days\": 3, \"near\": [{}]}",
    "[]",
];
const PYTHONS: &[(&str, &str)] = &[
    ("city=\"Ulm\", days=3", "{\"city\": \"Ulm\", \"days\": 3}"),
    (
        "city='a\"b', days=-1, near=[{\"far\": True}, {\"name\": \"a\", \"far\": False}]",
        "{\"city\": \"a\\\"b\", \"days\": -1, \"near\": [{\"far\": true}, {\"name\": \"a\", \"far\": false}]}",
    ),
];
const BAD_PYTHONS: &[&str] = &[
    "",
    "city=\"Ulm\"",
    "city=3, days=3",
    "city=\"Ulm\", days=3.5",
    "city=\"Ulm\", days=3, unit=\"K\"",
    "city=\"Ulm\", days=3, wind=1",
    "city=\"Ulm\", days=3, near=[{}]",
    "\"Ulm\"",
];
const TAGS: &[(&str, &str)] = &[
    (
        "<parameter=city>\nUlm <b>\n</parameter>\n<parameter=days>\n3\n</parameter>\n",
        "{\"city\": \"Ulm <b>\", \"days\": 3}",
    ),
    (
        "<parameter=city>\n\n</parameter>\n<parameter=days>\n-1\n</parameter>\n<parameter=unit>\nF\n</parameter>\n\
         <parameter=near>\n[{\"far\": true}]\n</parameter>\n",
        "{\"city\": \"\", \"days\": -1, \"unit\": \"F\", \"near\": [{\"far\": true}]}",
    ),
];
const BAD_TAGS: &[&str] = &[
    "",
    "<parameter=city>\nUlm\n</parameter>\n",
    "<parameter=city>\nUlm\n</parameter>\n<parameter=days>\nthree\n</parameter>\n",
    "<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=unit>\nK\n</parameter>\n",
    "<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=near>\n[{}]\n</parameter>\n",
    "<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=wind>\n3\n</parameter>\n",
];

fn families() -> Vec<Family> {
    let json = Family {
        calls: "",
        thoughts: "",
        prompt_end: "",
        good: JSONS,
        weather: ["", ""],
        bad: BAD_JSONS,
        now: "",
        note: ("", "{\"a\": [1, null]}"),
        two: "",
        thought: "",
        bare: false,
    };
    vec![
        Family {
            calls: "hermes",
            thoughts: "qwen3",
            weather: ["<tool_call>\n{\"name\": \"weather\", \"arguments\": ", "}\n</tool_call>"],
            now: "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
            note: ("<tool_call>\n{\"name\": \"note\", \"arguments\": {\"a\": [1, null]}}\n</tool_call>", json.note.1),
            two: "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \
                  \"arguments\": {}}\n</tool_call>",
            thought: "<think>\nhm <tool_call>\n</think>\n\n",
            ..json
        },
        Family {
            calls: "llama3_json",
            weather: ["{\"name\": \"weather\", \"parameters\": ", "}"],
            now: "{\"name\": \"now\", \"parameters\": {}}",
            note: ("{\"name\": \"note\", \"parameters\": {\"a\": [1, null]}}", json.note.1),
            two: "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}",
            bare: true,
            ..json
        },
        Family {
            calls: "granite",
            thoughts: "granite",
            weather: ["<|tool_call|>[{\"name\": \"weather\", \"arguments\": ", "}]"],
            now: "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}]",
            note: ("<|tool_call|>[{\"name\": \"note\", \"arguments\": {\"a\": [1, null]}}]", json.note.1),
            two: "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]",
            thought: "Here is my thought process: hm. Here is my response:\n",
            ..json
        },
        Family {
            calls: "phi4_mini_json",
            weather: ["functools[{\"name\": \"weather\", \"arguments\": ", "}]"],
            now: "functools[{\"name\": \"now\", \"arguments\": {}}]",
            note: ("functools[{\"name\": \"note\", \"arguments\": {\"a\": [1, null]}}]", json.note.1),
            two: "functools[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]",
            ..json
        },
        Family {
            calls: "json",
            thoughts: "qwen3",
            prompt_end: "<think>\n",
            weather: ["[{\"name\": \"weather\", \"arguments\": ", "}]"],
            now: "{\"name\": \"now\", \"arguments\": {}}",
            note: ("[{\"name\": \"note\", \"arguments\": {\"a\": [1, null]}}]", json.note.1),
            two: "[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]",
            thought: "hm\n</think>\n\n",
            bare: true,
            ..json
        },
        Family {
            calls: "mistral",
            thoughts: "mistral",
            weather: ["[TOOL_CALLS]weather[ARGS]", ""],
            now: "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}]",
            note: ("[TOOL_CALLS]note{\"a\": [1, null]}", json.note.1),
            two: "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}",
            thought: "[THINK]hm[/THINK]",
            ..json
        },
        Family {
            calls: "deepseek_v3",
            weather: [
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n",
                "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ],
            now: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>\
                  <｜tool▁calls▁end｜>",
            note: (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>note\n```json\n{\"a\": [1, null]}\n```\
                 <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                json.note.1,
            ),
            two: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>\n\
                  <｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ..json
        },
        Family {
            calls: "deepseek_v31",
            weather: [
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>",
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ],
            now: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            note: (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>note<｜tool▁sep｜>{\"a\": [1, null]}<｜tool▁call▁end｜>\
                 <｜tool▁calls▁end｜>",
                json.note.1,
            ),
            two: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now\
                  <｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ..json
        },
        Family {
            calls: "kimi_k2",
            thoughts: "kimi_k2",
            weather: [
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>",
                "<|tool_call_end|><|tool_calls_section_end|>",
            ],
            now: "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}\
                  <|tool_call_end|><|tool_calls_section_end|>",
            note: (
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.note:0<|tool_call_argument_begin|>\
                 {\"a\": [1, null]}<|tool_call_end|><|tool_calls_section_end|>",
                json.note.1,
            ),
            two: "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}\
                  <|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>\
                  <|tool_calls_section_end|>",
            thought: "<think>hm</think>",
            ..json
        },
        Family {
            calls: "openai",
            thoughts: "openai_gptoss",
            prompt_end: "<|start|>assistant",
            weather: ["<|channel|>commentary to=functions.weather <|constrain|>json<|message|>", ""],
            now: " to=functions.now<|channel|>commentary json<|message|>{}",
            note: ("<|channel|>commentary to=functions.note<|message|>{\"a\": [1, null]}", json.note.1),
            thought: "<|channel|>analysis<|message|>hm<|end|><|start|>assistant",
            ..json
        },
        Family {
            calls: "qwen3_coder",
            thoughts: "qwen3",
            prompt_end: "<think>\n",
            good: TAGS,
            weather: ["<tool_call>\n<function=weather>\n", "</function>\n</tool_call>"],
            bad: BAD_TAGS,
            now: "<tool_call>\n<function=now>\n</function>\n</tool_call>",
            note: (
                "<tool_call>\n<function=note>\n<parameter=a>\n[1, null]\n</parameter>\n</function>\n</tool_call>",
                json.note.1,
            ),
            two: "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n\
             </function>\n</tool_call>",
            thought: "hm\n</think>\n\n",
            ..json
        },
        Family {
            calls: "minimax_m2",
            good: &[(
                "<parameter name=\"city\">Ulm</parameter>\n<parameter name=\"days\">3</parameter>\n",
                "{\"city\": \"Ulm\", \"days\": 3}",
            )],
            weather: ["<minimax:tool_call>\n<invoke name=\"weather\">\n", "</invoke>\n</minimax:tool_call>"],
            bad: &["", "<parameter name=\"city\">Ulm</parameter>\n"],
            now: "<minimax:tool_call>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
            note: (
                "<minimax:tool_call><invoke name=\"note\"><parameter name=\"a\">[1, null]</parameter></invoke>\
                 </minimax:tool_call>",
                json.note.1,
            ),
            two: "<minimax:tool_call>\n<invoke name=\"now\">\n</invoke>\n<invoke name=\"now\">\n</invoke>\n\
             </minimax:tool_call>",
            ..json
        },
        Family {
            calls: "glm45",
            thoughts: "glm45",
            good: &[(
                "<arg_key>city</arg_key>\n<arg_value>Ulm\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3\
                 </arg_value>\n<arg_key>unit</arg_key>\n<arg_value>F</arg_value>\n",
                "{\"city\": \"Ulm\\n\", \"days\": 3, \"unit\": \"F\"}",
            )],
            weather: ["<tool_call>weather\n", "</tool_call>"],
            bad: &["", "<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n"],
            now: "<tool_call>now\n</tool_call>",
            note: (
                "<tool_call>note\n<arg_key>a</arg_key>\n<arg_value>[1, null]</arg_value>\n</tool_call>",
                json.note.1,
            ),
            two: "<tool_call>now\n</tool_call>\n<tool_call>now\n</tool_call>",
            thought: "<think>hm</think>\n",
            ..json
        },
        Family {
            calls: "lfm2",
            good: PYTHONS,
            weather: ["<|tool_call_start|>[weather(", ")]<|tool_call_end|>"],
            bad: BAD_PYTHONS,
            now: "<|tool_call_start|>[now()]<|tool_call_end|>",
            note: ("<|tool_call_start|>[note(a=[1, None])]<|tool_call_end|>", json.note.1),
            two: "<|tool_call_start|>[now(), now()]<|tool_call_end|>",
            ..json
        },
        Family {
            calls: "llama4_pythonic",
            good: PYTHONS,
            weather: ["[weather(", ")]"],
            bad: BAD_PYTHONS,
            now: "[now()]",
            note: ("[note(a=[1, None])]", json.note.1),
            two: "[now(), now()]",
            bare: true,
            ..json
        },
        Family {
            calls: "gemma",
            good: PYTHONS,
            weather: ["```tool_code\nweather(", ")\n```"],
            bad: BAD_PYTHONS,
            now: "```tool_code\nnow()\n```",
            note: ("```tool_code\nnote(a=[1, None])\n```", json.note.1),
            two: "```tool_code\nnow()\nnow()\n```",
            ..json
        },
        Family {
            calls: "functiongemma",
            good: &[
                ("city:<escape>Ulm, {a}<escape>,days:3", "{\"city\": \"Ulm, {a}\", \"days\": 3}"),
                (
                    "city:<escape><escape>,days:-1,unit:<escape>F<escape>,near:[{far:true},{name:<escape>a\
                     <escape>,far:false}]",
                    "{\"city\": \"\", \"days\": -1, \"unit\": \"F\", \"near\": [{\"far\": true}, \
                     {\"name\": \"a\", \"far\": false}]}",
                ),
            ],
            weather: ["<start_function_call>call:weather{", "}<end_function_call>"],
            bad: &[
                "",
                "city:<escape>Ulm<escape>",
                "city:3,days:3",
                "city:<escape>Ulm<escape>,days:three",
                "city:<escape>Ulm<escape>,days:3,unit:<escape>K<escape>",
                "city:<escape>Ulm<escape>,days:3,near:[{}]",
            ],
            now: "<start_function_call>call:now{}<end_function_call>",
            note: ("<start_function_call>call:note{a:[1,null]}<end_function_call>", "{\"a\": [1, null]}"),
            two: "<start_function_call>call:now{}<end_function_call><start_function_call>call:now{}<end_function_call>",
            ..json
        },
    ]
}

/// The calls of an answer, and all text.
fn heard(dialect: &Dialect, prompt_end: &str, answer: &str) -> (Vec<(String, String)>, String) {
    let (mut calls, mut said) = (Vec::new(), String::new());
    for part in whole(dialect, tools(true), prompt_end, answer) {
        match part {
            AnswerPart::CallBegins { name, .. } => calls.push((name, String::new())),
            AnswerPart::Arguments { json, .. } => calls.last_mut().expect("a call").1.push_str(&json),
            AnswerPart::Text(text) => said.push_str(&text),
            AnswerPart::Thought(_) | AnswerPart::CallEnds { .. } => {}
        }
    }
    (calls, said)
}

#[test]
fn forced_calls_follow_their_schemas_and_are_heard() {
    let factory = factory();
    for family in families() {
        let dialect = dialect(&family);
        let tools = tools(false);
        let rule = |choice, parallel| {
            let lark = dialect.grammar(&tools, choice, parallel, family.prompt_end);
            Rule::new(&factory, lark.expect("calls are asked for"))
        };
        let required = rule(Choice::Required, true);
        // A thought that the template has opened must end.
        let open = if family.prompt_end.ends_with("<think>\n") { family.thought } else { "" };
        let weather = |arguments: &str| format!("{open}{}{arguments}{}", family.weather[0], family.weather[1]);
        for (written, json) in family.good {
            let answer = weather(written);
            required.takes(&answer);
            let calls = [("weather".to_owned(), (*json).to_owned())];
            assert_eq!(heard(&dialect, family.prompt_end, &answer), (calls.into(), String::new()), "{answer:?}");
        }
        for written in family.bad {
            required.refuses(&weather(written));
        }
        for (answer, calls) in [
            (family.now, vec![("now", "{}")]),
            (family.note.0, vec![("note", family.note.1)]),
            (family.two, vec![("now", "{}"), ("now", "{}")]),
        ] {
            if answer.is_empty() {
                continue;
            }
            let answer = format!("{open}{answer}");
            required.takes(&answer);
            let calls = calls.into_iter().map(|(name, json)| (name.to_owned(), json.to_owned())).collect();
            assert_eq!(heard(&dialect, family.prompt_end, &answer), (calls, String::new()), "{answer:?}");
        }
        if !family.thought.is_empty() {
            required.takes(&format!("{}{}", family.thought, family.now));
        }
        for answer in ["", "Yes.", "Let me see. "] {
            required.refuses(&format!("{open}{answer}"));
            required.refuses(&format!("{open}{answer}x{}", family.now));
        }
        let one = rule(Choice::Required, false);
        one.takes(&format!("{open}{}", family.now));
        if !family.two.is_empty() {
            one.refuses(&format!("{open}{}", family.two));
        }
        let named = rule(Choice::Named("now"), true);
        named.takes(&format!("{open}{}", family.now));
        named.refuses(&format!("{open}{}", family.note.0));
        assert_eq!(dialect.grammar(&tools, Choice::Named("nope"), true, ""), None);
        assert_eq!(dialect.grammar(&tools, Choice::Auto, true, ""), None, "nothing is strict");
        assert_eq!(dialect.grammar(&[], Choice::Required, true, ""), None);
    }
}

#[test]
fn strict_tools_are_held_to_their_schemas_in_an_answer_that_is_free() {
    let factory = factory();
    for family in families() {
        let dialect = dialect(&family);
        let tools = tools(true);
        let lark = dialect.grammar(&tools, Choice::Auto, true, family.prompt_end);
        let rule = Rule::new(&factory, lark.expect("tools are strict"));
        let open = if family.prompt_end.ends_with("<think>\n") { family.thought } else { "" };
        let text = if family.bare || family.calls == "openai" { "" } else { "Let me {see} [1].\n" };
        for answer in ["Yes.", "", "{\"a\": 1} [1] <b> \u{1f98a}"] {
            rule.takes(&format!("{open}{answer}"));
        }
        let weather = |arguments: &str| format!("{open}{text}{}{arguments}{}", family.weather[0], family.weather[1]);
        for (written, _) in family.good {
            rule.takes(&weather(written));
        }
        for written in family.bad {
            rule.refuses(&weather(written));
        }
        rule.takes(&format!("{open}{text}{}", family.now));
        rule.takes(&format!("{open}{text}{}", family.note.0));
        if !family.two.is_empty() {
            rule.takes(&format!("{open}{text}{}", family.two));
        }
        if !family.bare && family.calls != "openai" {
            rule.takes(&format!("{open}{text}{} and {} so", family.now, family.now));
            rule.refuses(&format!(
                "{open}{text}{} and {}{}{}",
                family.now, family.weather[0], family.bad[0], family.weather[1]
            ));
        }
        if !family.thought.is_empty() {
            rule.takes(&format!("{}Yes.", family.thought));
            rule.takes("Cut in a thought");
            rule.takes(&format!("{}{text}{}", family.thought, family.now));
        }
    }
}

#[test]
fn the_first_of_one_call_ends_an_answer_that_is_free() {
    let factory = factory();
    for family in families() {
        let dialect = dialect(&family);
        // Without strict tools: the only constraint is a single call.
        let lark = dialect.grammar(&tools(false), Choice::Auto, false, family.prompt_end);
        let rule = Rule::new(&factory, lark.expect("one call is less than several"));
        let open = if family.prompt_end.ends_with("<think>\n") { family.thought } else { "" };
        let text = if family.bare || family.calls == "openai" { "" } else { "Let me {see} [1].\n" };
        for answer in ["Yes.", "", "{\"a\": 1} [1] <b> \u{1f98a}"] {
            rule.takes(&format!("{open}{answer}"));
        }
        let call = format!("{open}{text}{}", family.now);
        rule.takes(&call);
        assert!(rule.is_over_behind(&call), "{}: {call:?} is complete\n{}", family.calls, rule.lark);
        rule.takes(&format!("{open}{text}{}", family.note.0));
        rule.refuses(&format!("{call} and more"));
        if !family.two.is_empty() {
            rule.refuses(&format!("{open}{text}{}", family.two));
        }
        if !family.thought.is_empty() {
            rule.takes(&format!("{}Yes.", family.thought));
            rule.takes(&format!("{}{text}{}", family.thought, family.now));
        }
    }
}

/// Formats that write no JSON: what their grammars hold a call to, and the places of what they do not.
#[test]
fn a_schema_is_held_to_or_its_places_are_named() {
    let factory = factory();
    let around = |calls: &str, arguments: &str| match calls {
        "gemma4" => format!("<|tool_call>call:f{{{arguments}}}<tool_call|>"),
        "pythonic" => format!("[f({arguments})]"),
        "minimax_m2" => format!("<minimax:tool_call>\n<invoke name=\"f\">\n{arguments}</invoke>\n</minimax:tool_call>"),
        _ => format!("<tool_call>\n<function=f>\n{arguments}</function>\n</tool_call>"),
    };
    let one = |calls: &str, value: &str| match calls {
        "gemma4" => format!("m:{value}"),
        "pythonic" => format!("m={value}"),
        "minimax_m2" => format!("<parameter name=\"m\">{value}</parameter>\n"),
        _ => format!("<parameter=m>\n{value}\n</parameter>\n"),
    };
    let check = |calls: &str, parameters: &Value, good: &[String], bad: &[String], open: &[&str]| {
        let tool = Tool { name: "f".into(), parameters: parameters.clone(), strict: true };
        let dialect = Dialect::new(None, Calls::named(calls));
        assert_eq!(dialect.open_places(&tool), open, "{calls}: {parameters}");
        let lark =
            dialect.grammar(std::slice::from_ref(&tool), Choice::Required, false, "").expect("a call is asked for");
        let rule = Rule::new(&factory, lark);
        for arguments in good {
            let answer = around(calls, arguments);
            rule.takes(&answer);
            assert_eq!(heard_by(&dialect, &tool, &answer), 1, "{calls}: {answer:?}");
        }
        bad.iter().for_each(|arguments| rule.refuses(&around(calls, arguments)));
    };
    type Row =
        (&'static [&'static str], Value, &'static [&'static str], &'static [&'static str], &'static [&'static str]);
    const LITERALS: &[&str] = &["gemma4", "pythonic"];
    const TAGS: &[&str] = &["qwen3_coder", "minimax_m2"];
    const ALL: &[&str] = &["gemma4", "pythonic", "qwen3_coder", "minimax_m2"];
    let rows: &[Row] = &[
        (ALL, json!({"type": "integer", "minimum": 1, "maximum": 5}), &["1", "5"], &["0", "6", "-1", "11"], &[]),
        (ALL, json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}), &["0.5", "1"], &["0", "1.5"], &[]),
        (
            ALL,
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}),
            &["[1]", "[1,2]"],
            &["[]", "[1,2,3]"],
            &[],
        ),
        (LITERALS, json!({"type": "array", "items": {"type": "null"}, "maxItems": 1000}), &["[]"], &[], &[]),
        (LITERALS, json!({"type": "array", "minItems": 1, "maxItems": 1}), &["[1]"], &["[]", "[1,2]"], &[]),
        (LITERALS, json!({"type": "array", "maxItems": 1}), &["[]", "[1]"], &["[1,2]"], &[]),
        (
            LITERALS,
            json!({"type": "array", "items": {"type": "integer", "minimum": 2, "maximum": 1}}),
            &["[]"],
            &["[2]"],
            &[],
        ),
        (LITERALS, json!({"type": "array", "items": {"enum": [1], "type": "string"}}), &["[]"], &["[1]"], &[]),
        (LITERALS, json!({"type": ["array", "integer"], "minItems": 2, "maxItems": 1}), &["1"], &["[1]", "[1,2]"], &[]),
        (
            LITERALS,
            json!({"anyOf": [false, {"const": 1, "type": "null"}, {"type": "integer"}]}),
            &["1"],
            &["null"],
            &[],
        ),
        (ALL, json!({"enum": ["\u{7f}", "a"]}), &[], &["c"], &[]),
        (LITERALS, json!({"type": "array", "minItems": 1, "maxItems": u64::MAX}), &["[1]"], &["[]"], &[]),
        (LITERALS, json!({"type": "array", "minItems": 1_u64 << 60}), &[], &["[]", "[1]"], &[]),
        (&["pythonic"], json!({"type": "string", "format": "date"}), &["\"2026-11-28\""], &["\"\"", "'x'"], &[]),
        (&["pythonic"], json!({"type": "string", "pattern": "^a+$"}), &["\"aa\""], &["\"ab\"", "'b'"], &[]),
        (&["pythonic"], json!({"type": "string", "maxLength": 2}), &["\"\\n\\\\\""], &["\"abc\"", "'abc'"], &[]),
        (
            &["gemma4"],
            json!({"type": "string", "pattern": "^a+$"}),
            &["<|\"|>a<|\"|>"],
            &[],
            &[".properties.m.pattern"],
        ),
        (&["gemma4"], json!({"enum": ["a", "<|\"|>"]}), &["<|\"|>a<|\"|>"], &["<|\"|><|\"|><|\"|>"], &[]),
        (&["gemma4"], json!({"enum": [["a"], {"b": true}]}), &["[<|\"|>a<|\"|>]", "{b:true}"], &["[]"], &[]),
        (&["pythonic"], json!({"allOf": [{"enum": ["a", "b"]}]}), &["\"a\""], &["\"c\""], &[]),
        (&["pythonic"], json!({"type": "string", "enum": ["a", 1]}), &["\"a\""], &["1"], &[]),
        (
            LITERALS,
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}),
            &[],
            &["{}"],
            &[],
        ),
        (LITERALS, json!({"type": "object", "additionalProperties": false}), &["{}"], &["{a:1}", "{\"a\":1}"], &[]),
        (
            &["gemma4"],
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1}),
            &["{}", "{Content-Type:1}"],
            &["{a:1,b:1}"],
            &[],
        ),
        (
            &["gemma4"],
            json!({"type": "object", "properties": {"a:b": {"type": "integer"}, "c": {"type": "integer"}}}),
            &["{}", "{c:1}"],
            &["{a:b:1}"],
            &[".properties.m.properties.a:b"],
        ),
        (&["gemma4"], json!({"type": "object", "required": ["a"]}), &["{a:1}"], &["{}", "{b:1}"], &[]),
        (
            LITERALS,
            json!({"type": "array", "prefixItems": [{"type": "integer"}], "items": false, "maxItems": 1}),
            &["[1]"],
            &[],
            &[".properties.m.prefixItems"],
        ),
        (LITERALS, json!({"type": "integer", "anyOf": [{"minimum": 3}]}), &["3"], &[], &[".properties.m.anyOf"]),
        (TAGS, json!({"type": "string", "maxLength": 3}), &["abc"], &[], &[".properties.m.maxLength"]),
        (TAGS, json!({"type": ["string", "integer"], "minimum": 3}), &["3"], &[], &[".properties.m.minimum"]),
        (TAGS, json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), &["a", "null"], &[], &[]),
        (TAGS, json!({"type": ["string", "null"], "enum": ["a", null]}), &["a", "null"], &["b"], &[]),
        (TAGS, json!({"$ref": "#/$defs/word"}), &["a"], &["b"], &[]),
        (TAGS, json!({"enum": ["1", 2, "2"]}), &["1", "2"], &["3"], &[]),
        (TAGS, json!({"enum": ["a", "</parameter>"]}), &["a"], &["</parameter>"], &[]),
        (&["qwen3_coder"], json!({"enum": ["a", "x</tool_call>"]}), &["a"], &["x</tool_call>"], &[]),
    ];
    for (families, schema, good, bad, open) in rows {
        let parameters = json!({"type": "object", "properties": {"m": schema}, "required": ["m"],
            "additionalProperties": false, "$defs": {"word": {"enum": ["a"]}}});
        for calls in *families {
            let written = |all: &[&str]| all.iter().map(|value| one(calls, value)).collect::<Vec<_>>();
            check(calls, &parameters, &written(good), &written(bad), open);
        }
    }
    let some = json!({"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1});
    for calls in ALL {
        let open: &[&str] = if TAGS.contains(calls) { &[".additionalProperties"] } else { &[] };
        check(calls, &some, &[], &[String::new()], open);
        let either =
            json!({"type": "object", "properties": {"m": {"type": "integer"}}, "anyOf": [{"required": ["m"]}]});
        check(calls, &either, &[one(calls, "1")], &[], &[".anyOf"]);
    }
    let patterns = json!({"type": "object", "patternProperties": {"^x": {"type": "integer"}}});
    let beside = json!({"$ref": "#/$defs/a", "minProperties": 1, "$defs": {"a": {"type": "object", "properties": {}}}});
    for calls in ALL {
        check(calls, &patterns, &[], &[], &[".patternProperties"]);
        check(calls, &beside, &[], &[], &[".minProperties"]);
    }
    // A parameter that cannot be there.
    let beside = json!({"type": "object", "properties": {"m": {"type": "number", "minimum": 2, "maximum": 1.5},
        "n": {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, " s": {}}, "maxProperties": 0});
    for calls in ALL {
        check(calls, &beside, &[String::new()], &[one(calls, "1")], &[".properties. s"]);
    }
    // Each of a hundred needs a hundred others, five times.
    let needs = |next: usize| {
        let all: serde_json::Map<_, _> =
            (0..100).map(|at| (format!("p{at}"), json!({"$ref": format!("#/$defs/d{next}")}))).collect();
        json!({"type": "object", "required": all.keys().collect::<Vec<_>>(), "properties": all})
    };
    let mut wide =
        json!({"type": "object", "properties": {"m": {"$ref": "#/$defs/d0"}}, "$defs": {"d5": {"type": "null"}}});
    (0..5).for_each(|at| wide["$defs"][format!("d{at}")] = needs(at + 1));
    check("gemma4", &wide, &[String::new()], &["m:{}".to_owned()], &[]);
    // A tree, however deep.
    let tree = json!({"type": "object", "properties": {"m": {"$ref": "#/$defs/node"}}, "$defs": {"node": {
        "type": "object", "properties": {"n": {"$ref": "#/$defs/node"}}, "additionalProperties": false}}});
    let deep = format!("m:{}{}", "{n:".repeat(9) + "{", "}".repeat(10));
    let wrong = deep.replace("{}", "{n:1}");
    check("gemma4", &tree, &[deep], &[wrong], &[]);
}

/// The number of calls that are heard in a whole answer.
fn heard_by(dialect: &Dialect, tool: &Tool, answer: &str) -> usize {
    let parts = whole(dialect, [tool.clone()].into(), "", answer);
    parts.iter().filter(|part| matches!(part, AnswerPart::CallEnds { .. })).count()
}

/// An agent's number of tools, with typical schemas.
#[test]
fn the_tools_of_an_agent_fit_into_the_limits() {
    let factory = factory();
    let tool = |at: usize| Tool {
        name: format!("tool_{at}"),
        parameters: json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "where"},
                "lines": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                "mode": {"enum": ["a", "b", "c"]},
                "edits": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"old": {"type": "string"}, "new": {"type": "string"}, "all": {"type": "\
                         boolean"}},
                        "required": ["old", "new"],
                        "additionalProperties": false,
                    },
                },
                "limit": {"type": ["integer", "null"]},
            },
            "required": ["path"],
            "additionalProperties": false,
        }),
        strict: true,
    };
    let tools: Vec<Tool> = (0..32).map(tool).collect();
    let choices = [Choice::Auto, Choice::Required, Choice::Named("tool_31")];
    for (number, name) in Calls::NAMES.iter().enumerate() {
        let dialect = Dialect::new(Thoughts::named("qwen3"), Calls::named(name));
        for choice in testing::one_of(choices, number) {
            let lark = dialect.grammar(&tools, choice, true, "").expect("calls are asked for");
            let mut matcher = Rule::new(&factory, lark).fresh;
            matcher.compute_mask_or_eos().unwrap_or_else(|error| panic!("{name}, {choice:?}: {error}"));
        }
    }
}

/// Every answer that a grammar accepts is parsed as calls that follow their schemas, whatever its unconstrained text: here
/// the marks of the family, and mistakes that the parser repairs.
#[test]
fn nothing_that_a_grammar_allows_is_misheard() {
    let factory = factory();
    let tools = tools(false);
    let (mut num_tried, mut num_ended) = (0, 0);
    for (number, name) in Calls::NAMES.iter().enumerate() {
        let thoughts =
            if Calls::named(name).is_some_and(|calls| calls.name() == "openai") { "openai_gptoss" } else { "qwen3" };
        let dialect = Dialect::new(Thoughts::named(thoughts), Calls::named(name));
        let lark = dialect.grammar(&tools, Choice::Required, true, "").expect("calls are asked for");
        let rule = Rule::new(&factory, lark);
        let mut pieces: Vec<String> = dialect.marks().into_iter().map(str::to_owned).collect();
        pieces.extend(HOSTILE.split('|').map(str::to_owned));
        let ends: Vec<String> =
            dialect.marks().into_iter().map(str::to_owned).chain(ENDS.split('|').map(str::to_owned)).collect();
        for seed in testing::part_of(1..=12, 4) {
            num_tried += 1;
            let mut dice = Dice::new(seed << 32 | number as u64);
            let Some(answer) = generate(&rule, &mut dice, &pieces, &ends) else { continue };
            num_ended += 1;
            let parts = whole(&dialect, tools.clone(), "", &answer);
            let (mut calls, mut said, mut ended) = (Vec::new(), String::new(), 0);
            for part in &parts {
                match part {
                    AnswerPart::CallBegins { name, .. } => calls.push((name.clone(), String::new())),
                    AnswerPart::Arguments { json, .. } => calls.last_mut().expect("a call").1.push_str(json),
                    AnswerPart::CallEnds { .. } => ended += 1,
                    AnswerPart::Text(text) => said.push_str(text),
                    AnswerPart::Thought(_) => {}
                }
            }
            let context = format!("{name}, seed {seed}: {answer:?}: {parts:?}\n{}", rule.lark);
            assert!(!calls.is_empty() && ended == calls.len() && said.trim().is_empty(), "{context}");
            for (called, arguments) in calls {
                let arguments: Value = serde_json::from_str(&arguments).unwrap_or_else(|_| panic!("{context}"));
                if called == "now" {
                    assert_eq!(arguments, json!({}), "{context}");
                } else if called == "weather" {
                    assert!(arguments["city"].is_string() && arguments["days"].is_number(), "{context}");
                    let known = ["city", "days", "unit", "near"];
                    let keys = arguments.as_object().expect("an object").keys();
                    assert!(keys.clone().all(|key| known.contains(&key.as_str())), "{context}");
                    let unit = &arguments["unit"];
                    assert!(unit.is_null() || unit == "C" || unit == "F", "{context}");
                }
            }
        }
    }
    assert!(num_ended * 3 > num_tried, "only {num_ended} of {num_tried} answers came to an end");
}

const HOSTILE: &str = "<parameter=days>|<parameter name=\"days\">|<arg_key>days</arg_key>|</function>\n</tool_call>|\
    \n|\\|\\d|\"|'|}|},|\"}|,days:|```|functions.|<think>| |x";
/// Pieces that bring an answer to its end.
const ENDS: &str = "\"|}|]|)|1|true|,|:|\"name\": |now|weather|\"city\": \"|\"days\": |\n|{|F";

/// An answer that the grammar accepts; `None` if it does not end.
fn generate(rule: &Rule, dice: &mut Dice, pieces: &[String], ends: &[String]) -> Option<String> {
    let mut matcher = rule.fresh.deep_clone();
    let mut answer: Vec<u8> = Vec::new();
    for step in 0..300 {
        if matcher.is_stopped() {
            break;
        }
        let mask = matcher.compute_mask_or_eos().unwrap_or_else(|error| panic!("{error}\n{}", rule.lark));
        if mask.is_allowed(256) && (step > 60 || dice.roll(3) == 0) {
            break;
        }
        let from = if step < 60 && dice.roll(3) == 0 { pieces } else { ends };
        let piece = from[dice.roll(from.len())].as_bytes();
        let mut next = matcher.deep_clone();
        let fits = piece.iter().all(|&byte| {
            let fits =
                !next.is_stopped() && next.compute_mask_or_eos().is_ok_and(|mask| mask.is_allowed(u32::from(byte)));
            fits && next.consume_token(u32::from(byte)).is_ok()
        });
        if fits {
            matcher = next;
            answer.extend(piece);
            continue;
        }
        // One of the allowed printable bytes, where few are allowed.
        let allowed: Vec<u8> = (32..127).filter(|&byte| mask.is_allowed(u32::from(byte))).collect();
        if !allowed.is_empty() && allowed.len() < 12 {
            let byte = allowed[dice.roll(allowed.len())];
            matcher.consume_token(u32::from(byte)).expect("it is allowed");
            answer.push(byte);
        }
    }
    let ends = matcher.is_stopped() || matcher.is_accepting().unwrap_or(false);
    ends.then(|| String::from_utf8(answer).expect("pieces are texts"))
}

fn dialect(family: &Family) -> Dialect {
    let dialect = Dialect::new(Thoughts::named(family.thoughts), Calls::named(family.calls));
    assert!(dialect.calls.is_some(), "{}", family.calls);
    dialect
}

/// After the same thoughts, with at most two line breaks.
#[test]
fn an_answer_is_calls_or_its_form() {
    let factory = factory();
    for family in families() {
        let (begun, tools) = (dialect(&family), tools(false));
        let is_open = begun.thought(family.prompt_end).is_some_and(|thought| thought.is_open);
        let open = if is_open { family.thought } else { "" };
        let said = |text: &str| match family.calls {
            "openai" => format!("<|channel|>final<|message|>{text}"),
            _ => text.to_owned(),
        };
        for (thinks, is_exact) in [(true, false), (false, false), (true, true), (false, true)] {
            let dialect = if thinks { begun.clone() } else { begun.clone().thoughtless() };
            let form = Form { rule: "(\"yes\" | \"no\")", is_exact };
            let lark = dialect.grammar(&tools, Choice::Or(form), true, family.prompt_end);
            let both = Rule::new(&factory, lark.expect("there are tools"));
            let alone = dialect.behind_thought(family.prompt_end, form).map(|lark| Rule::new(&factory, lark));
            let behind = if is_exact { open.trim_end() } else { open };
            for rule in [Some(&both), alone.as_ref()].into_iter().flatten() {
                rule.takes(&format!("{behind}{}", said("yes")));
                for other in ["", "maybe", "\n\n\nyes", "yes\n", " ", "\n"] {
                    rule.refuses(&format!("{behind}{}", said(other)));
                    rule.refuses(&format!("{behind}{other}"));
                }
                if !family.thought.is_empty() && !is_open {
                    let thought = if is_exact { family.thought.trim_end() } else { family.thought };
                    let answer = format!("{thought}{}", said("no"));
                    if thinks {
                        rule.takes(&answer)
                    } else {
                        rule.refuses(&answer)
                    }
                    rule.refuses(&format!("\n\n\n{answer}"));
                    rule.refuses(&format!("{thought}\n\n\n{}", said("no")));
                }
            }
            both.takes(&format!("{open}{}", family.now));
            both.takes(&format!("{open}{}", family.note.0));
            both.refuses(&format!("{open}{}{}", said("yes"), family.now));
            let bad = format!("{open}\n\n\n\n\n{}", family.now);
            both.refuses(&bad);
        }
    }
}
