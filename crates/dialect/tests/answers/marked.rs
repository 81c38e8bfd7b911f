//! Families with marked calls.

use crate::answers::{Call, CallId, Cut, P, Th, Tx, described, dialect, rows, tools, wanted};

#[test]
fn hermes() {
    rows(
        "hermes",
        "qwen3",
        &[
            ("Hello.", &[Tx("Hello.")]),
            ("", &[]),
            (" \n", &[Tx(" \n")]),
            (
                "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>",
                &[Call("weather", "{\"city\": \"Ulm\"}")],
            ),
            (
                "Let me look.\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>\n\
                 <tool_call>\n{\"arguments\": {\"days\": -1.5e+3, \"x\": [\"\\u00e9\\ud83e\\udd8a}\", null, \
                 true]}, \"name\": \"get\"}\n</tool_call>\n",
                &[
                    Tx("Let me look.\n"),
                    Call("now", "{}"),
                    Call("get", "{\"days\": -1.5e+3, \"x\": [\"\\u00e9\\ud83e\\udd8a}\", null, true]}"),
                ],
            ),
            // No closing mark, no arguments, an id, arguments in quotes, a list.
            ("<tool_call>{\"name\": \"now\"}", &[Call("now", "{}")]),
            (
                "<tool_call>{\"id\": \"c7\", \"type\": \"function\", \"name\": \"now\", \"arguments\": {}} and more",
                &[CallId("c7", "now", "{}"), Tx(" and more")],
            ),
            (
                "<tool_call>{\"name\": \"weather\", \"arguments\": \" \
                 {\\\"city\\\": \\\"K\\u00f6ln \\\\\\\"x\\\\\\\"\\\"} \"}</tool_call>",
                &[Call("weather", "{\"city\": \"K\u{f6}ln \\\"x\\\"\"} ")],
            ),
            (
                "<tool_call>[{\"name\": \"now\"}, {\"name\": \"get\", \"arguments\": {}}]</tool_call>",
                &[Call("now", "{}"), Call("get", "{}")],
            ),
            // More objects between one pair of marks; what is no call stays text.
            (
                "<tool_call>\n{\"name\": \"now\"}\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>",
                &[Call("now", "{}"), Call("get", "{}")],
            ),
            (
                "<tool_call>{\"name\": \"now\"}\n{\"name\": \"nope\"}</tool_call>",
                &[Call("now", "{}"), Tx("\n{\"name\": \"nope\"}</tool_call>")],
            ),
            // A repeated mark, and a call that was not closed before the next.
            (
                "<tool_call>\n<tool_call>\n{\"name\": \"now\"}<tool_call>{\"name\": \"now\"}",
                &[Call("now", "{}"), Call("now", "{}")],
            ),
            // Not calls: another tool, a name that continues, no name, no object, invalid JSON.
            ("<tool_call>{\"name\": \"nope\"}</tool_call>", &[Tx("<tool_call>{\"name\": \"nope\"}</tool_call>")]),
            ("<tool_call>{\"name\": \"nowhere\"}", &[Tx("<tool_call>{\"name\": \"nowhere\"}")]),
            ("<tool_call>{\"arguments\": {}}", &[Tx("<tool_call>{\"arguments\": {}}")]),
            (
                "<tool_call>{\"name\": \"now\", \"arguments\": [1]}",
                &[Tx("<tool_call>{\"name\": \"now\", \"arguments\": [1]}")],
            ),
            ("<tool_call>now()", &[Tx("<tool_call>now()")]),
            ("a <tool_ call> b", &[Tx("a <tool_ call> b")]),
            ("<tool_call>{\"name\": now}", &[Tx("<tool_call>{\"name\": now}")]),
            // An error in the middle: emitted parts stay, and the rest is text.
            (
                "<tool_call>{\"name\": \"get\", \"arguments\": {\"a\": 0x}}</tool_call> so",
                &[Cut("get", "{\"a\": "), Tx("0x}}</tool_call> so")],
            ),
            (
                "<tool_call>{\"name\": \"get\", \"arguments\": {\"a\": \"\\ud83e\\u0041\"}}",
                &[Call("get", "{\"a\": \"\\ufffd\\u0041\"}")],
            ),
            ("<tool_call>{\"name\": \"get\", \"arguments\": {}, 7}", &[Cut("get", "{}"), Tx(", 7}")]),
            ("<tool_call>{\"name\": \"get\", \"arguments\": {\"a\": 1", &[Cut("get", "{\"a\": 1")]),
            ("<tool_call>{\"name\": \"get\", \"arguments\": {}", &[Call("get", "{}")]),
            // With a thought.
            (
                "<think>\nA call: <tool_call>{\"name\": \"now\"}?\n</think>\n\n<tool_call>{\"name\": \"now\"}\
                 </tool_call>",
                &[Th("\nA call: <tool_call>{\"name\": \"now\"}?\n"), Call("now", "{}")],
            ),
            ("<think>", &[]),
            ("<think></think>Yes.", &[Tx("Yes.")]),
        ],
    );
}

/// An answer that is not streamed has an incomplete call as text, and the text before it unchanged.
#[test]
fn what_is_whole_shows_no_half_of_a_call() {
    let table: &[(&str, &str, &[P])] = &[
        (
            "hermes",
            "<think>hm</think>\n\n<tool_call>\n{\"name\": \"now\", \"arg",
            &[Th("hm"), Tx("\n\n<tool_call>\n{\"name\": \"now\", \"arg")],
        ),
        (
            "hermes",
            "<think>hm</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1",
            &[Th("hm"), Tx("\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1")],
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"now\"}</tool_call>\n<tool_call>{\"name\": \"get\", \"arguments\": {x",
            &[Call("now", "{}"), Tx("\n<tool_call>{\"name\": \"get\", \"arguments\": {x")],
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"get\", \"arguments\": {]}<tool_call>{\"name\": \"now\"}",
            &[Tx("<tool_call>{\"name\": \"get\", \"arguments\": {]}"), Call("now", "{}")],
        ),
        (
            "hermes",
            "<tool_call>{\"arguments\": \"{\\\"a\\\": 1\", \"name\": \"get\"}",
            &[Tx("<tool_call>{\"arguments\": \"{\\\"a\\\": 1\", \"name\": \"get\"}")],
        ),
        (
            "qwen3_coder",
            "<function=weather>\n<parameter=city>\nUl\"m</par",
            &[Tx("<function=weather>\n<parameter=city>\nUl\"m</par")],
        ),
        (
            "qwen3_coder",
            "<function=get>\n<parameter=a>\n1\n</parameter>\n<b>",
            &[Tx("<function=get>\n<parameter=a>\n1\n</parameter>\n<b>")],
        ),
        ("lfm2", "<|tool_call_start|>[get(a='x', b=[1", &[Tx("<|tool_call_start|>[get(a='x', b=[1")]),
        (
            "openai",
            "<|channel|>commentary to=functions.get <|constrain|>json<|message|>{\"a\"",
            &[Tx("<|channel|>commentary to=functions.get <|constrain|>json<|message|>{\"a\"")],
        ),
    ];
    for (calls, answer, parts) in table {
        let dialect = dialect(calls, "qwen3");
        let heard = dialect::whole(&dialect, tools(), "", answer);
        assert_eq!(described(&heard), wanted(parts), "{answer:?}");
    }
}

#[test]
fn granite_and_other_lists() {
    rows(
        "granite",
        "",
        &[
            (
                "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}, \
                 {\"name\": \"now\", \"arguments\": {}}]",
                &[Call("weather", "{\"city\": \"Ulm\"}"), Call("now", "{}")],
            ),
            ("<tool_call> [{\"name\": \"now\", \"arguments\": {}}] x", &[Call("now", "{}"), Tx(" x")]),
            ("[{\"name\": \"now\", \"arguments\": {}}]", &[Call("now", "{}")]),
            ("<|tool_call|>[]", &[Tx("<|tool_call|>[]")]),
            ("[1, 2]", &[Tx("[1, 2]")]),
        ],
    );
    rows(
        "phi4_mini_json",
        "",
        &[
            ("functools[{\"name\": \"now\", \"arguments\": {}}]", &[Call("now", "{}")]),
            ("<|tool_call|>[{\"name\": \"now\", \"parameters\": {}}]<|/tool_call|>", &[Call("now", "{}")]),
            ("Import functools first.", &[Tx("Import functools first.")]),
        ],
    );
    rows(
        "jamba",
        "",
        &[(
            "Ok.\n<tool_calls>[\n  {\"name\": \"now\", \"arguments\": {}},\n {\"name\": \"get\", \"arguments\": \
             {\"a\": [[]]}}\n]</tool_calls>",
            &[Tx("Ok.\n"), Call("now", "{}"), Call("get", "{\"a\": [[]]}")],
        )],
    );
    rows(
        "granite-20b-fc",
        "",
        &[(
            "<function_call> {\"name\": \"now\", \"arguments\": {}}\n\
             <function_call> {\"name\": \"now\", \"arguments\": {}}",
            &[Call("now", "{}"), Call("now", "{}")],
        )],
    );
    rows(
        "nemotron_json",
        "",
        &[("<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>", &[Call("now", "{}")])],
    );
}

#[test]
fn mistral() {
    rows(
        "mistral",
        "mistral",
        &[
            (
                "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}, \"id\": \"a1B2c3D4e\"}]",
                &[Call("weather", "{\"city\": \"Ulm\"}")],
            ),
            (
                "[TOOL_CALLS]weather{\"city\": \"Ulm\"}[TOOL_CALLS]now{}",
                &[Call("weather", "{\"city\": \"Ulm\"}"), Call("now", "{}")],
            ),
            (
                "So.[TOOL_CALLS]get_all.of-it[ARGS]{\"a\": \"[TOOL_CALLS]\"}",
                &[Tx("So."), Call("get_all.of-it", "{\"a\": \"[TOOL_CALLS]\"}")],
            ),
            ("[TOOL_CALLS]now[CALL_ID]a1B2c3D4e[ARGS]{}", &[CallId("a1B2c3D4e", "now", "{}")]),
            ("[THINK]hm[/THINK][TOOL_CALLS]now {}", &[Th("hm"), Call("now", "{}")]),
            ("[TOOL_CALLS]nope{}", &[Tx("[TOOL_CALLS]nope{}")]),
            ("[TOOL_CALLS]get_al{}", &[Tx("[TOOL_CALLS]get_al{}")]),
            ("[TOOL_CALLS]now[ARGS]\"x\"", &[Tx("[TOOL_CALLS]now[ARGS]\"x\"")]),
            ("[TOOL_CALLS]get{\"a\"", &[Cut("get", "{\"a\"")]),
        ],
    );
}

#[test]
fn deepseek() {
    rows(
        "deepseek_v3",
        "qwen3",
        &[
            (
                "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>\
                 weather\n```json\n{\"city\": \"Köln\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function\
                 <｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                &[Tx("I look."), Call("weather", "{\"city\": \"Köln\"}"), Call("now", "{}")],
            ),
            ("<｜tool▁calls▁begin｜>x", &[Tx("<｜tool▁calls▁begin｜>x")]),
            (
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>nope\n```json\n{}\n```",
                &[Tx("<｜tool▁call▁begin｜>function<｜tool▁sep｜>nope\n```json\n{}\n```")],
            ),
        ],
    );
    rows(
        "deepseek_v31",
        "qwen3",
        &[
            (
                "hm</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Ulm\"}\
                 <｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                &[Tx("hm</think>"), Call("weather", "{\"city\": \"Ulm\"}"), Call("now", "{}")],
            ),
            ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{} ", &[Call("now", "{}")]),
        ],
    );
    rows(
        "kimi_k2",
        "kimi_k2",
        &[
            (
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>\
                 {\"city\": \"Ulm\"}<|tool_call_end|><|tool_call_begin|>functions.now:1\
                 <|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
                &[
                    CallId("functions.weather:0", "weather", "{\"city\": \"Ulm\"}"),
                    CallId("functions.now:1", "now", "{}"),
                ],
            ),
            (
                "<think>hm<|tool_calls_section_begin|><|tool_call_begin|>now<|tool_call_argument_begin|>{}",
                &[Th("hm"), Call("now", "{}")],
            ),
            ("<think>a <|tool_calls_section_begin|> b</think>", &[Th("a <|tool_calls_section_begin|> b")]),
        ],
    );
}

#[test]
fn qwen_coder() {
    rows(
        "qwen3_coder",
        "qwen3",
        &[
            (
                "<tool_call>\n<function=weather>\n<parameter=city>\nUlm \"am\" Rhein\n</parameter>\n\
                 <parameter=days>\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n\
                 <parameter=near>\n[\"a\", 'b']\n</parameter>\n<parameter=unit>\nnull\n</parameter>\n\
                 <parameter=other>\n1e3\n</parameter>\n</function>\n</tool_call>",
                &[Call(
                    "weather",
                    "{\"city\": \"Ulm \\\"am\\\" Rhein\", \"days\": 3, \"metric\": true, \"near\": [\"a\", \"b\"], \
                         \"unit\": null, \"other\": 1e3}",
                )],
            ),
            (
                "Ok.\n<tool_call>\n<function=weather>\n<parameter=city>\n\nif a < b:\n\tx </parameter\n\n\
                 </parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
                &[
                    Tx("Ok.\n"),
                    Call("weather", "{\"city\": \"\\nif a < b:\\n\\tx </parameter\\n\"}"),
                    Call("now", "{}"),
                ],
            ),
            // Line breaks of another kind.
            (
                "<function=weather>\r\n<parameter=city>\r\nUlm\r\n</parameter>\r\n<parameter=days>\r\n3\r\n\
                 </function>",
                &[Call("weather", "{\"city\": \"Ulm\", \"days\": 3}")],
            ),
            // Without the outer mark, without the inner one's end; values that do not match the schema.
            (
                "<function=weather><parameter=city>12</parameter><parameter=days>soon</parameter>\
                 <parameter=unit>5</parameter></tool_call>",
                &[Call("weather", "{\"city\": \"12\", \"days\": \"soon\", \"unit\": \"5\"}")],
            ),
            ("<tool_call>\n<function=nope>\n</function>", &[Tx("<tool_call>\n<function=nope>\n</function>")]),
            ("<tool_call>\n{\"name\": \"now\"}", &[Tx("<tool_call>\n{\"name\": \"now\"}")]),
            ("<function=get>\n<parameter=a>\n{\"b\": 1}\n</parameter>\nwhat", &[Cut("get", "{")]),
            ("<function=weather><parameter=city>U\nlm", &[Cut("weather", "{\"city\": \"U\\nlm")]),
            (
                "<think>Is <tool_call> it?\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
                &[Th("Is <tool_call> it?\n"), Call("now", "{}")],
            ),
        ],
    );
    rows(
        "minimax_m2",
        "",
        &[(
            "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Ulm</parameter>\n\
             <parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n\
             </minimax:tool_call>",
            &[Call("weather", "{\"city\": \"Ulm\", \"days\": 2}"), Call("now", "{}")],
        )],
    );
    rows(
        "seed_oss",
        "seed_oss",
        &[(
            "<seed:think>hm</seed:think><seed:tool_call>\n<function=weather>\n<parameter=city>Ulm</parameter>\n\
             </function>\n</seed:tool_call>",
            &[Th("hm"), Call("weather", "{\"city\": \"Ulm\"}")],
        )],
    );
}

#[test]
fn glm() {
    rows(
        "glm45",
        "glm45",
        &[
            (
                "<think>hm</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value> Ulm\n</arg_value>\n\
                 <arg_key>near</arg_key>\n<arg_value>[\"a\"]</arg_value>\n</tool_call>\n<tool_call>now\n\
                 </tool_call>",
                &[Th("hm"), Call("weather", "{\"city\": \" Ulm\\n\", \"near\": [\"a\"]}"), Call("now", "{}")],
            ),
            (
                "<tool_call>get<arg_key>a</arg_key><arg_value>07</arg_value><arg_key>b</arg_key><arg_value>7\
                 </arg_value></tool_call>.",
                &[Call("get", "{\"a\": \"07\", \"b\": 7}"), Tx(".")],
            ),
            ("<tool_call>weather is fine", &[Tx("<tool_call>weather is fine")]),
        ],
    );
}

#[test]
fn gemma() {
    rows(
        "functiongemma",
        "",
        &[
            (
                "<start_function_call>call:weather{city:<escape>Ulm, {am} Rhein<escape>,days:<escape>3<escape>,\
                 metric:true}<end_function_call>",
                &[Call("weather", "{\"city\": \"Ulm, {am} Rhein\", \"days\": 3, \"metric\": true}")],
            ),
            (
                "<start_function_call>call:now{}<end_function_call><start_function_call>call:now{}",
                &[Call("now", "{}"), Call("now", "{}")],
            ),
            ("<start_function_call>call:nope{}", &[Tx("<start_function_call>call:nope{}")]),
        ],
    );
    rows(
        "gemma4",
        "gemma4",
        &[(
            "<|channel>thought\nhm\n<channel|><|tool_call>call:weather{at:{lat:48.4,<|\"|>k<|\"|>:[<|\"|>a,]\
             <|\"|>,null,{}]},city:<|\"|>12<|\"|>}<tool_call|>",
            &[Th("hm\n"), Call("weather", "{\"at\": {\"lat\": 48.4, \"k\": [\"a,]\", null, {}]}, \"city\": \"12\"}")],
        )],
    );
    rows(
        "gemma",
        "",
        &[
            (
                "So:\n```tool_code\nweather(city=\"Ulm\", days=-3)\nnow()\n```\nThat is it.",
                &[
                    Tx("So:\n"),
                    Call("weather", "{\"city\": \"Ulm\", \"days\": -3}"),
                    Call("now", "{}"),
                    Tx("\nThat is it."),
                ],
            ),
            ("```tool_code\n[now()]\n```", &[Call("now", "{}")]),
            ("```tool_code\nprint(1)\n```", &[Tx("```tool_code\nprint(1)\n```")]),
            ("```python\nnow()\n```", &[Tx("```python\nnow()\n```")]),
        ],
    );
}

/// A value that may be a string is one, unless it is exactly JSON of another type.
#[test]
fn no_string_becomes_a_number() {
    let table: &[(&str, &str, &str)] = &[
        ("qwen3_coder", "<function=weather>\n<parameter=zip>\n@\n</parameter>\n</function>", "weather"),
        ("seed_oss", "<function=weather>\n<parameter=zip>\n@\n</parameter>\n</function>", "weather"),
        ("minimax_m2", "<invoke name=\"get\">\n<parameter name=\"zip\">@</parameter>\n</invoke>", "get"),
        ("glm45", "<tool_call>get<arg_key>zip</arg_key><arg_value>@</arg_value></tool_call>", "get"),
        ("gemma4", "<|tool_call>call:get{zip:@}<tool_call|>", "get"),
        ("gemma4", "<|tool_call>call:weather{zip:<|\"|>@<|\"|>}<tool_call|>", "weather"),
        ("functiongemma", "<start_function_call>call:weather{zip:@}<end_function_call>", "weather"),
        ("functiongemma", "<start_function_call>call:weather{zip:<escape>@<escape>}<end_function_call>", "weather"),
    ];
    for (calls, answer, name) in table {
        for value in ["01234", "+491701234567", "1_000", "0x10", ".5", "1.", "12"] {
            let heard = dialect::whole(&dialect(calls, ""), tools(), "", &answer.replace('@', value));
            let is_json = value == "12" && !answer.contains("zip:<");
            let json = if is_json { value.to_owned() } else { format!("\"{value}\"") };
            assert_eq!(described(&heard), [format!("call  {name} {{\"zip\": {json}}}")], "{calls}: {answer:?}");
        }
    }
}

#[test]
fn pythonic() {
    rows(
        "lfm2",
        "",
        &[
            (
                "<|tool_call_start|>[weather(city='Ul\\'m \\u00e9', near=[\"a\", 'b',], at={'x': (1, .5), 2: \
                 None}, metric=True), now()]<|tool_call_end|>I look.",
                &[
                    Call(
                        "weather",
                        "{\"city\": \"Ul'm é\", \"near\": [\"a\", \"b\"], \"at\": {\"x\": [1, 0.5], \"2\": \
                         null}, \"metric\": true}",
                    ),
                    Call("now", "{}"),
                    Tx("I look."),
                ],
            ),
            // Names that only the schema makes names.
            (
                "<|tool_call_start|>[weather(file-path=True, file=False, a=b c = True, a=1)]<|tool_call_end|>",
                &[Call("weather", "{\"file-path\": true, \"file\": false, \"a=b c\": true, \"a\": 1}")],
            ),
            ("<|tool_call_start|>[weather(file-name=True)]", &[Tx("<|tool_call_start|>[weather(file-name=True)]")]),
            ("<|tool_call_start|>[nope()]<|tool_call_end|>", &[Tx("<|tool_call_start|>[nope()]<|tool_call_end|>")]),
            ("<|tool_call_start|>[get(1)]", &[Tx("<|tool_call_start|>[get(1)]")]),
            ("<|tool_call_start|>[get(a=b)]", &[Cut("get", "{\"a\": "), Tx("b)]")]),
            ("<|tool_call_start|>[get(a=1, b=\"x", &[Cut("get", "{\"a\": 1, \"b\": ")]),
        ],
    );
    rows(
        "olmo3",
        "",
        &[(
            "<function_calls>\nget(a=1_000)\nnow( )\n</function_calls>",
            &[Call("get", "{\"a\": 1000}"), Call("now", "{}")],
        )],
    );
}

#[test]
fn harmony() {
    rows(
        "openai",
        "openai_gptoss",
        &[
            (
                "<|channel|>analysis<|message|>Let me to=x see<|end|><|start|>assistant<|channel|>commentary \
                 to=functions.weather <|constrain|>json<|message|>{\"city\": \"Ulm\"}<|call|>",
                &[Th("Let me to=x see"), Call("weather", "{\"city\": \"Ulm\"}")],
            ),
            (
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I \
                 look.<|end|><|start|>assistant to=functions.now<|channel|>commentary<|message|>{}<|call|>",
                &[Th("hm"), Tx("I look."), Call("now", "{}")],
            ),
            (" to=functions.now<|channel|>commentary json<|message|>{}", &[Call("now", "{}")]),
            ("<|channel|>final<|message|>Yes.<|return|>", &[Tx("Yes.")]),
            ("<|channel|>analysis<|message|>hm", &[Th("hm")]),
            ("Yes.", &[Tx("Yes.")]),
            (
                "<|channel|>commentary to=python<|message|>1+1<|call|>",
                &[Tx("<|channel|>commentary to=python<|message|>1+1")],
            ),
            (
                "<|channel|>commentary to=functions.now<|message|>what",
                &[Tx("<|channel|>commentary to=functions.now<|message|>what")],
            ),
        ],
    );
}
