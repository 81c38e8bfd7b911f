//! Changes to a file that a reader does not reject at its first byte. All from a seed: the same seed, the same file.

use serde_json::{Map, Value, json};

use crate::Dice;

/// Numbers at which readers break.
const NUMBERS: [u64; 22] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    13,
    31,
    32,
    33,
    64,
    255,
    65_535,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 60,
    1 << 63,
    u64::MAX,
];

/// Changes one thing in a GGUF file.
pub fn gguf(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let found = fields_of_gguf(bytes);
    if found.fields.is_empty() || dice.roll(8) == 0 {
        return any_bytes(bytes, dice);
    }
    match dice.roll(8) {
        // A setting or a row of the tensor table once more, or not at all; the count is made to fit, or not.
        0 | 1 if !found.entries.is_empty() => {
            let (is_tensor, range) = found.entries[dice.roll(found.entries.len())].clone();
            let copy = bytes[range.clone()].to_vec();
            let more = dice.roll(2) == 0;
            let place = if more { range.end..range.end } else { range };
            bytes.splice(place, if more { copy } else { Vec::new() });
            if dice.roll(4) > 0 {
                let at = if is_tensor { 8 } else { 16 };
                let count = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
                let count = if more { count.wrapping_add(1) } else { count.wrapping_sub(1) };
                bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            }
        }
        _ => {
            let (at, width) = found.fields[dice.roll(found.fields.len())];
            let mut old = [0; 8];
            old[..width].copy_from_slice(&bytes[at..at + width]);
            let old = u64::from_le_bytes(old);
            let new = match dice.roll(4) {
                0 => old.wrapping_add(1),
                1 => old.wrapping_sub(1),
                _ => NUMBERS[dice.roll(NUMBERS.len())],
            };
            bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
        }
    }
}

#[derive(Default)]
struct Found {
    /// Place and width of every number that says how the file is built, and of every value.
    fields: Vec<(usize, usize)>,
    /// Settings and rows of the tensor table: whether it is one of the latter, and its bytes.
    entries: Vec<(bool, std::ops::Range<usize>)>,
}

/// Walks as far as the file makes sense.
fn fields_of_gguf(bytes: &[u8]) -> Found {
    let mut found = Found::default();
    let _ = walk_gguf(bytes, &mut found);
    found
}

fn walk_gguf(bytes: &[u8], found: &mut Found) -> Option<()> {
    let mut at = 4;
    let mut number = |found: &mut Found, at: &mut usize, width: usize| -> Option<u64> {
        let mut value = [0; 8];
        value[..width].copy_from_slice(bytes.get(*at..*at + width)?);
        found.fields.push((*at, width));
        *at += width;
        Some(u64::from_le_bytes(value))
    };
    number(found, &mut at, 4)?;
    let num_tensors = number(found, &mut at, 8)?;
    let num_keys = number(found, &mut at, 8)?;
    // Of kinds with a size of their own; a text and a list say theirs themselves.
    const SIZES: [usize; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
    let size = |kind: usize| SIZES.get(kind).copied().filter(|&size| size > 0);
    let text =
        |found: &mut Found, at: &mut usize, number: &mut dyn FnMut(&mut Found, &mut usize, usize) -> Option<u64>| {
            let len = number(found, at, 8)?;
            *at = at.checked_add(usize::try_from(len).ok()?).filter(|end| *end <= bytes.len())?;
            Some(())
        };
    for _ in 0..num_keys {
        let start = at;
        text(found, &mut at, &mut number)?;
        let kind = number(found, &mut at, 4)? as usize;
        match kind {
            8 => text(found, &mut at, &mut number)?,
            9 => {
                let element = number(found, &mut at, 4)? as usize;
                let len = number(found, &mut at, 8)?;
                for index in 0..len {
                    match element {
                        8 => text(found, &mut at, &mut number)?,
                        // Of a long list, the first numbers speak for the rest.
                        _ if index > 8 => at = at.checked_add(size(element)?)?,
                        _ => drop(number(found, &mut at, size(element)?)?),
                    }
                    if at > bytes.len() {
                        return None;
                    }
                }
            }
            _ => drop(number(found, &mut at, size(kind)?)?),
        }
        found.entries.push((false, start..at));
    }
    for _ in 0..num_tensors {
        let start = at;
        text(found, &mut at, &mut number)?;
        for _ in 0..number(found, &mut at, 4)?.min(8) {
            number(found, &mut at, 8)?;
        }
        number(found, &mut at, 4)?;
        number(found, &mut at, 8)?;
        found.entries.push((true, start..at));
    }
    Some(())
}

/// Changes one thing in a safetensors file: in its header, whose length is then made to fit, or anywhere.
pub fn safetensors(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let header = bytes.first_chunk().map(|length| u64::from_le_bytes(*length)).and_then(|length| {
        let end = usize::try_from(length).ok()?.checked_add(8)?;
        bytes.get(8..end).map(<[u8]>::to_vec)
    });
    match header {
        Some(mut header) if dice.roll(6) > 0 => {
            let end = 8 + header.len();
            json(&mut header, dice);
            let length = (header.len() as u64).to_le_bytes();
            bytes.splice(0..end, length.into_iter().chain(header));
        }
        _ => any_bytes(bytes, dice),
    }
}

/// Changes one value of a JSON text, or its bytes.
pub fn json(bytes: &mut Vec<u8>, dice: &mut Dice) {
    match serde_json::from_slice::<Value>(bytes) {
        Ok(mut value) if dice.roll(10) > 0 => {
            let count = nodes(&value);
            let other = node(&value, &mut dice.roll(count)).cloned().unwrap_or_default();
            change(&mut value, &mut dice.roll(count), &other, dice);
            *bytes = value.to_string().into_bytes();
        }
        _ => any_bytes(bytes, dice),
    }
}

/// Values in a value, itself counted.
fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(map) => map.values().map(nodes).sum::<usize>(),
        _ => 0,
    }
}

/// The value that `target` counts down to.
fn node<'a>(value: &'a Value, target: &mut usize) -> Option<&'a Value> {
    if *target == 0 {
        return Some(value);
    }
    *target -= 1;
    match value {
        Value::Array(items) => items.iter().find_map(|item| node(item, target)),
        Value::Object(map) => map.values().find_map(|item| node(item, target)),
        _ => None,
    }
}

/// Changes the value that `target` counts down to; `other` may take its place.
fn change(value: &mut Value, target: &mut usize, other: &Value, dice: &mut Dice) -> bool {
    if *target == 0 {
        *value = changed(std::mem::take(value), other, dice);
        return true;
    }
    *target -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| change(item, target, other, dice)),
        Value::Object(map) => map.values_mut().any(|item| change(item, target, other, dice)),
        _ => false,
    }
}

fn changed(value: Value, other: &Value, dice: &mut Dice) -> Value {
    match (value, dice.roll(5)) {
        (Value::Array(mut items), 0 | 1) if !items.is_empty() => {
            let at = dice.roll(items.len());
            match dice.roll(3) {
                0 => drop(items.remove(at)),
                1 => items.insert(at, items[at].clone()),
                _ => items.reverse(),
            }
            Value::Array(items)
        }
        (Value::Object(mut map), 0 | 1) if !map.is_empty() => {
            let key = map.keys().nth(dice.roll(map.len())).cloned().expect("not empty");
            let removed = map.remove(&key);
            if dice.roll(2) == 0 {
                map.insert(format!("{key}x"), removed.unwrap_or_default());
            }
            Value::Object(map)
        }
        (Value::String(text), 0 | 1) => {
            let mut text = text.into_bytes();
            any_bytes(&mut text, dice);
            Value::String(String::from_utf8_lossy(&text).into_owned())
        }
        (Value::Number(number), 0 | 1) => {
            let number = number.as_f64().unwrap_or_default();
            Value::from([number + 1.0, -number, number / 2.0, number * 1e9][dice.roll(4)])
        }
        (value, _) => match dice.roll(13) {
            0 => Value::Null,
            1 => Value::Bool(dice.roll(2) == 0),
            2 | 3 => Value::from(NUMBERS[dice.roll(NUMBERS.len())]),
            4 => Value::from(-1),
            5 => Value::from([0.5, 1e-300, 1e300][dice.roll(3)]),
            6 => Value::String("\u{0}\u{e000}[a(".repeat(dice.roll(4))),
            7 => Value::Array(vec![Value::from(1); dice.roll(4)]),
            8 => other.clone(),
            9 => Value::String("a".repeat(dice.roll(5000))),
            10 => Value::Array(vec![value.clone(), value]),
            11 => [json!({"String": "a"}), json!({"Regex": "(?i)a|[^b]{2,}"})][dice.roll(2)].take(),
            _ => Value::Object(Map::from_iter([("type".to_string(), Value::from("Sequence"))])),
        },
    }
}

/// Changes a text: a piece of it over and over, marks and letters that tokenizers have rules for.
pub fn text(bytes: &mut Vec<u8>, dice: &mut Dice) {
    const PIECES: [&str; 20] = [
        "<|end|>",
        "<|system|>",
        "<|en",
        "d|>",
        " ",
        "\n",
        "\r\n",
        "\t",
        "\u{a0}",
        "\u{2581}",
        "\u{301}",
        "\u{200d}",
        "\u{1f469}\u{200d}\u{1f680}",
        "\u{e000}",
        "\u{10fffd}",
        "\u{65e5}\u{672c}",
        "'s",
        "'LL",
        "7",
        "\u{0}",
    ];
    let text = String::from_utf8_lossy(bytes).into_owned();
    let at = dice.roll(text.len() + 1);
    let at = (at..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    let piece = match dice.roll(6) {
        0 => return any_bytes(bytes, dice),
        1 => text[..at].repeat(1 + dice.roll(8)),
        2 => PIECES[dice.roll(PIECES.len())].repeat(1 << dice.roll(10)),
        3 => char::from_u32(dice.roll(0x11_0000) as u32).unwrap_or('x').to_string(),
        _ => PIECES[dice.roll(PIECES.len())].to_owned(),
    };
    *bytes = [&text[..at], &piece, &text[at..]].concat().into_bytes();
    bytes.truncate(1 << 14);
    while std::str::from_utf8(bytes).is_err() {
        bytes.pop();
    }
}

/// Changes an answer behind its first line: marks, names and what arguments are made of, more of it or less.
pub fn answer(bytes: &mut Vec<u8>, dice: &mut Dice) {
    const PIECES: [&str; 40] = [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<function=",
        "</function>",
        "<parameter=",
        "</parameter>",
        "<arg_key>",
        "</arg_value>",
        "<|channel|>",
        "<|message|>",
        "<|start|>",
        "<|end|>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "```",
        "<escape>",
        "<|tool_call_start|>",
        "weather",
        "now",
        "where",
        "city",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "\"",
        "'",
        "\\",
        ",",
        ":",
        "=",
        " ",
        "\n",
        "\u{1f98a}",
    ];
    let text = String::from_utf8_lossy(bytes).into_owned();
    let head = text.find('\n').map_or(text.len(), |at| at + 1);
    let place = |at: usize| (at..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    let at = place(head + dice.roll(text.len() - head + 1));
    let end = place(at + dice.roll(8));
    let (piece, rest) = match dice.roll(8) {
        0 => return any_bytes(bytes, dice),
        1 => (text[head..at].to_owned(), at),
        2 => (PIECES[dice.roll(PIECES.len())].repeat(1 << dice.roll(8)), at),
        3 | 4 => (String::new(), end),
        5 => (PIECES[dice.roll(PIECES.len())].to_owned(), end),
        _ => (PIECES[dice.roll(PIECES.len())].to_owned(), at),
    };
    *bytes = [&text[..at], &piece, &text[rest..]].concat().into_bytes();
    bytes.truncate(1 << 14);
    while std::str::from_utf8(bytes).is_err() {
        bytes.pop();
    }
}

/// Changes the body of a request: one byte that says which route, and JSON.
pub fn body(bytes: &mut Vec<u8>, dice: &mut Dice) {
    numbered(bytes, dice, 6, |_, rest, dice| json(rest, dice));
}

/// Changes a frame of a handoff: a digit that says of which kind, and JSON, or the piece of a block.
pub fn frame(bytes: &mut Vec<u8>, dice: &mut Dice) {
    numbered(bytes, dice, 10, |digit, rest, dice| if digit == b'6' { any_bytes(rest, dice) } else { json(rest, dice) });
}

/// Changes a digit below `count`, or what stands behind it.
fn numbered(bytes: &mut Vec<u8>, dice: &mut Dice, count: usize, change: fn(u8, &mut Vec<u8>, &mut Dice)) {
    if bytes.is_empty() || dice.roll(12) == 0 {
        bytes.resize(bytes.len().max(1), b'{');
        bytes[0] = b'0' + dice.roll(count) as u8;
        return;
    }
    let mut rest = bytes.split_off(1);
    change(bytes[0], &mut rest, dice);
    bytes.extend(rest);
}

/// Changes the rule of an answer: one byte that says of which kind, and JSON or a text whose marks mean something.
pub fn rule(bytes: &mut Vec<u8>, dice: &mut Dice) {
    const PIECES: [&str; 32] = [
        "(", ")", "[", "]", "{", "}", "*", "+", "?", "|", "\"", "\\", "/", "\n", ".", "^", "-", "~", "&", "{0,2}",
        "{3}", "{100000}", "[^a]", ".*", "\\p{L}", "(?i)", " ::= ", "root", "start", "item", " | \"\"", "\u{e9}",
    ];
    if bytes.is_empty() || dice.roll(24) == 0 {
        bytes.resize(bytes.len().max(1), b'{');
        bytes[0] = b"srclg"[dice.roll(5)];
        return;
    }
    let mut rest = bytes.split_off(1);
    if bytes[0] == b's' {
        json(&mut rest, dice);
        bytes.extend(rest);
        return;
    }
    let text = String::from_utf8_lossy(&rest).into_owned();
    let mut places = [dice.roll(text.len() + 1), dice.roll(text.len() + 1)];
    places.sort_unstable();
    let [from, to] = places.map(|at| (at..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len()));
    let piece = text.get(from..to.min(from + 64)).unwrap_or_default();
    let changed = match dice.roll(8) {
        0 => [&text[..from], &text[to..]].concat(),
        1 => [&text[..from], piece, &text[from..]].concat(),
        2 => [&text[..from], &piece.repeat(1 << dice.roll(8)), &text[from..]].concat(),
        3 => [&text[..from], "(", &text[from..to], ")*", &text[to..]].concat(),
        _ => [&text[..from], PIECES[dice.roll(PIECES.len())], &text[from..]].concat(),
    };
    bytes.extend(changed.into_bytes());
    bytes.truncate(1 << 14);
    while std::str::from_utf8(bytes).is_err() {
        bytes.pop();
    }
}

/// Changes one line of a file of lines, or the lines' order: a recording, a trace.
pub fn lines(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let mut lines: Vec<Vec<u8>> = bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    let at = dice.roll(lines.len());
    match dice.roll(10) {
        0 => lines.insert(at, lines[at].clone()),
        1 => drop(lines.remove(at)),
        2 => {
            let other = dice.roll(lines.len());
            lines.swap(at, other);
        }
        3 => any_bytes(&mut lines[at], dice),
        _ if lines[at].first() == Some(&b'{') => json(&mut lines[at], dice),
        // Comma separated.
        _ => {
            let mut fields: Vec<String> = String::from_utf8_lossy(&lines[at]).split(',').map(str::to_owned).collect();
            let field = dice.roll(fields.len());
            fields[field] = NUMBERS[dice.roll(NUMBERS.len())].to_string();
            lines[at] = fields.join(",").into_bytes();
        }
    }
    *bytes = lines.join(&b'\n');
}

/// Changes one thing in a chat template: a statement or an expression doubled, left out, wrapped, or its bytes.
pub fn template(bytes: &mut Vec<u8>, dice: &mut Dice) {
    const PIECES: [&str; 24] = [
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if messages %}",
        "{% endif %}",
        "{% set ns = namespace(a=messages) %}",
        "{% set ns.a = ns %}",
        "{{ ns.a }}",
        "{% macro f(x) %}{{ x }}{{ f(x) }}{% endmacro %}",
        "{{ f(messages) }}",
        "{{ messages|tojson(indent=4) }}",
        "{{ 'a' * 100000000 }}",
        "{{ range(1000000)|join('x') }}",
        "{{ messages[0].content|replace('e', 'ee' * 1000)|indent(1000000) }}",
        "{{ messages|map(attribute='content')|join }}",
        "{{ raise_exception('no') }}",
        "{{ strftime_now('%d %b %Y') }}",
        "{% raw %}",
        "{%- generation %}",
        "{{ messages[-1]['content'][::-1] }}",
        "{{ messages[::0] }}",
        "{{ bos_token ~ eos_token }}",
        "{{ (messages|length) ** 99 }}",
        "{{ '%99999d'|format(1) }}",
        "{% break %}",
    ];
    let text = String::from_utf8_lossy(bytes).into_owned();
    let starts: Vec<usize> = text.match_indices('{').map(|(at, _)| at).collect();
    if starts.is_empty() || dice.roll(6) == 0 {
        return any_bytes(bytes, dice);
    }
    let at = starts[dice.roll(starts.len())];
    let end = text[at..].find('}').map_or(text.len(), |length| (at + length + 2).min(text.len()));
    let end = (end..=text.len()).find(|&end| text.is_char_boundary(end)).unwrap_or(text.len());
    let piece = match dice.roll(4) {
        0 => String::new(),
        1 => text[at..end].repeat(1 + dice.roll(50)),
        2 => format!("{}{}", text[at..end].to_owned(), PIECES[dice.roll(PIECES.len())]),
        _ => PIECES[dice.roll(PIECES.len())].to_owned(),
    };
    *bytes = [&text[..at], &piece, &text[end..]].concat().into_bytes();
}

/// A byte changed, a piece cut out, doubled, or the end cut off.
pub fn any_bytes(bytes: &mut Vec<u8>, dice: &mut Dice) {
    if bytes.is_empty() {
        return bytes.push(dice.roll(256) as u8);
    }
    let at = dice.roll(bytes.len());
    let end = (at + 1 + dice.roll(16)).min(bytes.len());
    match dice.roll(6) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => {
            let copy = bytes[at..end].to_vec();
            bytes.splice(at..at, copy);
        }
        3 => bytes[at] ^= 1 << dice.roll(8),
        _ => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF, b'"', b'{', b'9'][dice.roll(8)],
    }
}
