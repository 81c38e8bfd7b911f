//! Families with unmarked calls.

use crate::answers::{Call, Th, Tx, rows};

#[test]
fn llama() {
    rows(
        "llama3_json",
        "",
        &[
            ("{\"name\": \"weather\", \"parameters\": {\"city\": \"Ulm\"}}", &[Call("weather", "{\"city\": \"Ulm\"}")]),
            (
                "<|python_tag|>{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}; \
                 {\"name\": \"get\", \"parameters\": {}}",
                &[Call("now", "{}"), Call("get", "{}")],
            ),
            (
                "{\"name\": \"now\", \"parameters\": {}}\n{\"name\": \"now\", \"parameters\": {}}",
                &[Call("now", "{}"), Call("now", "{}")],
            ),
            // Data is not a call.
            ("{\"name\": \"Ada\", \"age\": 36}", &[Tx("{\"name\": \"Ada\", \"age\": 36}")]),
            ("{\"name\": \"now\"}", &[Tx("{\"name\": \"now\"}")]),
            ("Like {\"name\": \"now\", \"parameters\": {}}", &[Tx("Like {\"name\": \"now\", \"parameters\": {}}")]),
        ],
    );
}

#[test]
fn pythonic() {
    for name in ["pythonic", "llama4_pythonic"] {
        rows(
            name,
            "",
            &[
                (
                    "[weather(city=\"Ulm\", days=2), now()]",
                    &[Call("weather", "{\"city\": \"Ulm\", \"days\": 2}"), Call("now", "{}")],
                ),
                ("[now](https://example.com)", &[Tx("[now](https://example.com)")]),
                ("[1] says", &[Tx("[1] says")]),
                ("Like [now()]", &[Tx("Like [now()]")]),
            ],
        );
    }
    rows("llama4_pythonic", "", &[("<|python_start|>[now()]<|python_end|>", &[Call("now", "{}")])]);
}

#[test]
fn json() {
    rows(
        "json",
        "qwen3",
        &[
            (
                "<think>hm</think>\n[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"get\", \"arguments\": \
                 {\"a\": 0}}]",
                &[Th("hm"), Call("now", "{}"), Call("get", "{\"a\": 0}")],
            ),
            ("{\"arguments\": {}, \"name\": \"now\"}", &[Call("now", "{}")]),
            ("[\"a\"]", &[Tx("[\"a\"]")]),
        ],
    );
}
