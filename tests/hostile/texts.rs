//! Tokenizers and chat templates of strangers.

use std::io::{BufWriter, Write};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::base::{Base, Verdict, converse, load, load_with};
use crate::case::{Bound, Case, FILE, Named, Outcome, Scratch};
use crate::child;
use crate::weights::changes;
use testing::mutate;

const TOKENIZER: &str = "tokenizer";
const TEMPLATE: &str = "template";
const FILE_OF_TOKENS: &str = "tokenizer.json";
const SETTINGS: &str = "tokenizer_config.json";

/// Texts that are encoded with each tokenizer: long enough for an expression or a normalizer to run away with.
fn prompt() -> String {
    format!("{} {}! \u{65e5}\u{672c} \u{1f642} {}", "a".repeat(3000), "ab".repeat(1000), "1".repeat(1000))
}

/// Tokenizers and their settings with one to three changes from a seed.
pub(crate) fn mutated(base: &Arc<Base>, seeds: std::ops::Range<u64>) -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in seeds {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let mut bytes = own.model[FILE_OF_TOKENS].clone();
            changes(seed, &mut bytes, mutate::json);
            tokenizer(&own, scratch, &bytes, &Verdict::RefusedOr(vec!["tokenizer", "context is"]))
        };
        cases.push(Case::new(TOKENIZER, format!("mutated-{seed}"), check).drawn(seed));
        if seed % 2 == 0 {
            let own = Arc::clone(base);
            let check = move |scratch: &Scratch| {
                let mut settings = own.json(SETTINGS);
                let mut source = settings["chat_template"].as_str().expect("it has one").as_bytes().to_vec();
                changes(seed, &mut source, mutate::template);
                settings["chat_template"] = String::from_utf8_lossy(&source).into();
                let mut bytes = settings.to_string().into_bytes();
                if seed % 16 == 0 {
                    changes(seed, &mut bytes, mutate::json);
                }
                template(&own, scratch, &bytes, &Verdict::RefusedOr(vec![]))
            };
            cases.push(Case::new(TEMPLATE, format!("mutated-{seed}"), check).drawn(seed));
        }
    }
    cases
}

fn tokenizer(base: &Base, scratch: &Scratch, bytes: &[u8], verdict: &Verdict) -> Outcome {
    let directory = base.with(scratch, &[(FILE_OF_TOKENS, Some(bytes))]);
    verdict.judge(&child::run(&load_with(&directory, &prompt()), scratch, &FILE, &[]), &FILE)
}

fn template(base: &Base, scratch: &Scratch, bytes: &[u8], verdict: &Verdict) -> Outcome {
    let directory = base.with(scratch, &[(SETTINGS, Some(bytes))]);
    verdict.judge(&child::run(&converse(&directory, "Hello there"), scratch, &RENDER, &[]), &RENDER)
}

/// Of a template: a rendering may take two seconds, and the rest one more.
const RENDER: Bound = FILE.seconds(3);

fn nested(open: &str, inner: &str, close: &str, depth: usize) -> String {
    format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
}

/// Tokenizers as they should not be written.
pub(crate) fn built_tokenizers(base: &Arc<Base>) -> Vec<Case> {
    type Build = fn(Value) -> Value;
    fn added(mut good: Value, entry: Value) -> Value {
        let token = json!({ "id": 2040, "content": "x", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false });
        let mut token = token.as_object().expect("an object").clone();
        token.extend(entry.as_object().expect("an object").clone());
        good["added_tokens"].as_array_mut().expect("a list").push(token.into());
        good
    }
    fn with(mut good: Value, part: &str, value: Value) -> Value {
        good[part] = value;
        good
    }
    fn model(mut good: Value, part: &str, value: Value) -> Value {
        good["model"][part] = value;
        good
    }
    fn split(pattern: &str) -> Value {
        json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
    }
    fn replace(from: &str, to: &str) -> Value {
        json!({ "type": "Replace", "pattern": { "String": from }, "content": to })
    }
    // In some of these a reader may find nothing wrong; then it has to work, and within its bound.
    let table: &[(&str, Build)] = &[
        ("as it was", |good| good),
        ("an added token of 100 kB (row 6)", |good| added(good, json!({ "content": "ab".repeat(50_000) }))),
        ("an added token of 8 MB", |good| added(good, json!({ "content": "ab".repeat(4 << 20) }))),
        ("a charsmap of four bytes (row 6)", |good| {
            with(good, "normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": "/////w==" }))
        }),
        ("a charsmap of one byte", |good| {
            with(good, "normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": "AA==" }))
        }),
        ("a charsmap that claims 2^31", |good| {
            with(good, "normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": "AAAAgAAAAAA=" }))
        }),
        ("a charsmap that is no base64", |good| {
            with(good, "normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": "!" }))
        }),
        ("40 normalizers that double (row 6)", |good| {
            with(good, "normalizer", json!({ "type": "Sequence", "normalizers": vec![replace("a", "aa"); 40] }))
        }),
        ("a normalizer that multiplies by a million", |good| {
            with(good, "normalizer", replace("a", &"a".repeat(1_000_000)))
        }),
        ("a normalizer that replaces nothing", |good| with(good, "normalizer", replace("", "aaaa"))),
        ("a prefix of 64 MB", |good| {
            with(good, "normalizer", json!({ "type": "Prepend", "prepend": "p".repeat(32 << 20) }))
        }),
        ("a decoder that doubles 40 times", |good| {
            with(good, "decoder", json!({ "type": "Sequence", "decoders": vec![replace("e", "ee"); 40] }))
        }),
        ("20,000 normalizers, each in the next", |good| {
            let text = nested(r#"{"type":"Sequence","normalizers":["#, r#"{"type":"NFC"}"#, "]}", 60);
            with(good, "normalizer", serde_json::from_str(&text).expect("60 deep is JSON"))
        }),
        ("100,000 normalizers in a row", |good| {
            with(
                good,
                "normalizer",
                json!({ "type": "Sequence", "normalizers": vec![json!({ "type": "NFC" }); 100_000] }),
            )
        }),
        ("an empty added token", |good| added(good, json!({ "content": "" }))),
        ("an empty added token that strips", |good| {
            added(good, json!({ "content": "", "lstrip": true, "rstrip": true, "single_word": true }))
        }),
        ("an added token beyond the vocabulary", |good| added(good, json!({ "id": 4_000_000_000u64 }))),
        ("an added token of id 2^64-1", |good| added(good, json!({ "id": u64::MAX }))),
        ("an added token of id -1", |good| added(good, json!({ "id": -1 }))),
        ("an id twice", |good| {
            added(added(good, json!({ "id": 5, "content": "p" })), json!({ "id": 5, "content": "q" }))
        }),
        ("70,000 added tokens", |good| {
            (0..70_000).fold(good, |mut good, index| {
                let token = json!({ "id": 2040 + index % 8, "content": format!("x{index}"), "single_word": false,
                    "lstrip": false, "rstrip": false, "normalized": false, "special": true });
                good["added_tokens"].as_array_mut().expect("a list").push(token);
                good
            })
        }),
        ("added tokens that all begin alike", |good| {
            (1..2000).fold(good, |good, length| added(good, json!({ "content": "a".repeat(length) })))
        }),
        ("a merge of unknown parts", |mut good| {
            good["model"]["merges"][0] = json!(["\u{4e00}\u{4e01}", "zzzz"]);
            good
        }),
        ("a merge of three", |mut good| {
            good["model"]["merges"][0] = json!(["a", "b", "c"]);
            good
        }),
        ("a merge of one text without space", |mut good| {
            good["model"]["merges"][0] = json!("ab");
            good
        }),
        ("merges that are numbers", |good| model(good, "merges", json!([1, 2, 3]))),
        ("no merges", |good| model(good, "merges", json!([]))),
        ("no vocabulary", |good| model(good, "vocab", json!({}))),
        ("a vocabulary that is a list", |good| model(good, "vocab", json!([["a", 0]]))),
        ("a vocabulary of ids 2^32-1", |good| model(good, "vocab", json!({ "a": u32::MAX, "b": u32::MAX - 1 }))),
        ("every id the same", |mut good| {
            for id in good["model"]["vocab"].as_object_mut().expect("an object").values_mut() {
                *id = json!(0);
            }
            good
        }),
        ("ids turned round", |mut good| {
            let vocab = good["model"]["vocab"].as_object_mut().expect("an object");
            let count = vocab.len();
            for (index, id) in vocab.values_mut().enumerate() {
                *id = json!(count - 1 - index);
            }
            good
        }),
        ("dropout", |good| model(good, "dropout", json!(0.9))),
        ("dropout of 1e300", |good| model(good, "dropout", json!(1e300))),
        ("an unknown token that is not there", |good| model(good, "unk_token", json!("<nope>"))),
        ("a prefix of words of 1 MB", |good| model(good, "continuing_subword_prefix", json!("#".repeat(1 << 20)))),
        ("(a+)+$", |good| with(good, "pre_tokenizer", split("(a+)+$"))),
        ("(a|aa)+b", |good| with(good, "pre_tokenizer", split("(a|aa)+b"))),
        ("(?=(a*)*)x", |good| with(good, "pre_tokenizer", split("(?=(a*)*)x"))),
        (r"(a*)*\1b", |good| with(good, "pre_tokenizer", split(r"(a*)*\1b"))),
        ("(.{1,999}){999}", |good| with(good, "pre_tokenizer", split("(.{1,999}){999}"))),
        ("a{1,1000000}", |good| with(good, "pre_tokenizer", split("a{1,1000000}"))),
        ("an expression of 100,000 groups", |good| with(good, "pre_tokenizer", split(&nested("(", "a", ")", 100_000)))),
        ("an expression of 1 MB", |good| with(good, "pre_tokenizer", split(&"a|".repeat(1 << 19)))),
        ("an expression that is none", |good| with(good, "pre_tokenizer", split("foo**(?<"))),
        ("an expression that matches nothing", |good| with(good, "pre_tokenizer", split("(?:)"))),
        (r"\p{L}* over and over", |good| {
            let splits = vec![split(r"\p{L}*"); 500];
            with(good, "pre_tokenizer", json!({ "type": "Sequence", "pretokenizers": splits }))
        }),
        ("a pre-tokenizer of no kind", |good| with(good, "pre_tokenizer", json!({ "type": "Shell" }))),
        ("truncation to 0", |good| {
            let value = json!({ "direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 7 });
            with(good, "truncation", value)
        }),
        ("padding to 2^30", |good| {
            let value = json!({ "strategy": { "Fixed": 1 << 30 }, "direction": "Right", "pad_to_multiple_of": null,
                "pad_id": 0, "pad_type_id": 0, "pad_token": "a" });
            with(good, "padding", value)
        }),
        ("a template of tokens that are not there", |good| {
            let one = json!({ "SpecialToken": { "id": "<x>", "type_id": 0 } });
            let value = json!({ "type": "TemplateProcessing", "single": [one], "pair": [], "special_tokens": {} });
            with(good, "post_processor", value)
        }),
        ("a template of a million tokens", |good| {
            let one = json!({ "SpecialToken": { "id": "a", "type_id": 0 } });
            let value = json!({ "type": "TemplateProcessing", "single": vec![one; 200_000], "pair": [],
                "special_tokens": { "a": { "id": "a", "ids": [1, 2, 3, 4, 5], "tokens": vec!["a"; 5] } } });
            with(good, "post_processor", value)
        }),
        ("a unigram of NaN scores", |good| {
            let value = json!({ "type": "Unigram", "unk_id": 0, "vocab": [["a", -1e308], ["b", 1e308], ["ab", 0]] });
            with(good, "model", value)
        }),
        ("a unigram whose unknown is beyond it", |good| {
            with(good, "model", json!({ "type": "Unigram", "unk_id": 99, "vocab": [["a", 0.0]] }))
        }),
        ("a unigram of nothing", |good| with(good, "model", json!({ "type": "Unigram", "unk_id": null, "vocab": [] }))),
        ("a word piece of 2^63 letters", |good| {
            let value = json!({ "type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "",
                "max_input_chars_per_word": 1u64 << 63, "vocab": { "a": 0 } });
            with(good, "model", value)
        }),
        ("a model of no kind", |good| with(good, "model", json!({ "type": "Pickle" }))),
        ("version 9", |good| with(good, "version", json!("9.0"))),
        ("a name that hides", |good| with(good, "model", json!({ "type": "\u{1b}[2J\nfake: line" }))),
    ];
    let mut cases = Vec::new();
    for &(name, build) in table {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let bytes = build(own.json(FILE_OF_TOKENS)).to_string();
            tokenizer(&own, scratch, bytes.as_bytes(), &Verdict::RefusedOr(vec!["tokenizer", "context is"]))
        };
        cases.push(Case::new(TOKENIZER, name, check));
    }
    type Text = fn(&str) -> Vec<u8>;
    let refused: &[(&str, Text)] = &[
        ("empty", |_| Vec::new()),
        ("not UTF-8", |_| vec![0xFF; 4096]),
        ("half of it", |good| good.as_bytes()[..good.len() / 2].to_vec()),
        ("100,000 lists deep", |_| nested("[", "1", "]", 100_000).into_bytes()),
        ("100,000 objects deep", |_| nested(r#"{"normalizer":"#, "1", "}", 100_000).into_bytes()),
        ("a null", |_| b"null".to_vec()),
        ("a byte order mark", |good| [b"\xEF\xBB\xBF".as_slice(), good.as_bytes()].concat()),
        ("something behind it", |good| [good.as_bytes(), b"}"].concat()),
    ];
    for &(name, build) in refused {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let bytes = build(&own.json(FILE_OF_TOKENS).to_string());
            tokenizer(&own, scratch, &bytes, &Verdict::Refused(vec![FILE_OF_TOKENS]))
        };
        cases.push(Case::new(TOKENIZER, name, check));
    }
    // Large ones are written piece by piece, so that the suite itself stays small.
    type Write1 = fn(&mut dyn FnMut(&[u8]));
    let large: &[(&str, Write1)] = &[
        ("60 MB of {} (row 6)", |write| {
            write(b"[{}");
            (0..20 << 10).for_each(|_| write(",{}".repeat(1 << 10).as_bytes()));
            write(b"]");
        }),
        ("60 MB of [] in added_tokens", |write| {
            write(br#"{"added_tokens":[[]"#);
            (0..20 << 10).for_each(|_| write(",[]".repeat(1 << 10).as_bytes()));
            write(b"]}");
        }),
        ("60 MB of vocabulary", |write| {
            write(br#"{"model":{"type":"BPE","vocab":{"a":0"#);
            (0..4_000_000u32).for_each(|id| write(format!(",\"{id:x}\":{}", id & 7).as_bytes()));
            write(br#"},"merges":[]}}"#);
        }),
        ("60 MB of spaces", |write| (0..60).for_each(|_| write(&[b' '; 1 << 20]))),
        ("a text of 60 MB", |write| {
            write(b"{\"version\":\"");
            (0..60).for_each(|_| write(&[b'v'; 1 << 20]));
            write(b"\"}");
        }),
        ("1 GB", |write| (0..1000).for_each(|_| write(&[b'['; 1 << 20]))),
    ];
    for &(name, fill) in large {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let directory = own.with(scratch, &[(FILE_OF_TOKENS, None)]);
            let file = std::fs::File::create(directory.join(FILE_OF_TOKENS)).expect("it can be written");
            let mut file = BufWriter::new(file);
            fill(&mut |bytes| file.write_all(bytes).expect("room for it"));
            drop(file);
            let outcome = Verdict::Refused(vec![FILE_OF_TOKENS])
                .judge(&child::run(&load(&directory), scratch, &FILE, &[]), &FILE);
            let _ = std::fs::remove_file(directory.join(FILE_OF_TOKENS)); // too large to keep; its recipe is its name
            outcome
        };
        cases.push(Case::new(TOKENIZER, name, check));
    }
    cases
}

/// Templates as they should not be written. Each is one request's error at most, within two seconds.
pub(crate) fn built_templates(base: &Arc<Base>) -> Vec<Case> {
    let table: &[Named<String>] = &[
        ("a namespace that holds itself (row 5)", || "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}".into()),
        ("a namespace in a list that holds it (row 5)", || {
            "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a|tojson }}".into()
        }),
        ("a namespace compared with itself", || {
            "{% set ns = namespace() %}{% set ns.a = ns %}{% set m = namespace() %}{% set m.a = ns %}{{ ns == m }}"
                .into()
        }),
        ("indent(2000000000) (row 5)", || "{{ 'a\\nb'|indent(2000000000) }}".into()),
        ("format with a width (row 5)", || "{{ '%2000000000d'|format(1) }}".into()),
        ("format with a precision", || "{{ '%.2000000000f'|format(1.5) }}".into()),
        ("join (row 5)", || "{{ range(100000)|join('x' * 100000) }}".into()),
        ("replace (row 5)", || "{% set a = 'a' * 30000 %}{{ a|replace('a', a)|replace('a', a)|length }}".into()),
        ("find in a loop (row 5)", || {
            "{% set a = 'a' * 200000 %}{% set b = 'a' * 100000 ~ 'b' %}{% for i in range(100000) %}{% if \
                a.find(b) > 0 %}x{% endif %}{% endfor %}"
                .into()
        }),
        ("count in a loop", || {
            "{% set a = 'a' * 1000000 %}{% for i in range(100000) %}{% if a.count('aa') == 1 %}x{% endif %}{% endfor %}"
                .into()
        }),
        ("split and join in a loop", || {
            "{% set ns = namespace(a='a b ') %}{% for i in range(60) %}{% set ns.a = (ns.a ~ ns.a).split(' \
                ')|join(' ') %}{% endfor %}"
                .into()
        }),
        ("a text that doubles 60 times", || {
            "{% set ns = namespace(a='ab') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ \
                ns.a|length }}"
                .into()
        }),
        ("a list that doubles 60 times", || {
            "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}{{ \
                ns.a|length }}"
                .into()
        }),
        ("a list in a list, 100,000 deep", || {
            "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}"
                .into()
        }),
        ("a list in a list, 100,000 deep, dropped", || {
            "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}x".into()
        }),
        ("'A' * 10^9", || "{{ 'A' * 1000000000 }}".into()),
        ("[0] * 10^9", || "{{ ([0] * 1000000000)|length }}".into()),
        ("range(10^9)", || "{% for i in range(1000000000) %}{% endfor %}".into()),
        ("range(10^9)|list", || "{{ range(1000000000)|list|length }}".into()),
        ("range of ranges", || {
            "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}".into()
        }),
        ("sort of 10^5, ten thousand times", || {
            "{% set r = range(100000)|list %}{% for i in range(10000) %}{% if r|sort(reverse=i is odd)|first == \
                7 %}x{% endif %}{% endfor %}"
                .into()
        }),
        ("unique, groupby, batch, slice", || {
            "{% set r = range(100000)|list %}{{ r|batch(1)|list|length }}{{ r|slice(100000)|list|length }}{{ \
                r|unique|list|length }}"
                .into()
        }),
        ("slice(10^9)", || "{{ [1]|slice(1000000000)|list|length }}".into()),
        ("batch filled to 10^9", || "{{ [1]|batch(1000000000, 'x')|list|length }}".into()),
        ("center(10^9)", || "{{ 'a'|center(1000000000) }}".into()),
        ("ljust(10^9)", || "{{ 'a'.ljust(1000000000) }}".into()),
        ("zfill(10^9)", || "{{ 'a'.zfill(1000000000) }}".into()),
        ("format() with a width", || "{{ '{:>2000000000}'.format(1) }}".into()),
        ("tojson(indent=10^9)", || "{{ {'a': [1, [2]]}|tojson(indent=1000000000) }}".into()),
        ("pprint of much", || "{{ range(100000)|list|pprint|length }}".into()),
        ("2 ** 10^9", || "{{ 2 ** 1000000000 }}".into()),
        ("a division by zero", || "{{ 1 // 0 }}{{ 1 % 0 }}".into()),
        ("the smallest number divided by -1", || "{{ (-9223372036854775807 - 1) // -1 }}".into()),
        ("a slice that steps by 0", || "{{ 'abc'[::0] }}".into()),
        ("a macro that calls itself", || "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into()),
        ("two macros that call each other", || {
            "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}".into()
        }),
        ("a caller that calls", || {
            "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}".into()
        }),
        ("a loop that recurses", || "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}".into()),
        ("5,500 nested ifs", || nested("{% if 1 %}", "x", "{% endif %}", 5500)),
        ("5,500 nested fors", || nested("{% for i in [1, 2] %}", "x", "{% endfor %}", 5500)),
        ("20,000 brackets", || format!("{{{{ {} }}}}", nested("(", "1", ")", 20_000))),
        ("20,000 lists", || format!("{{{{ {} }}}}", nested("[", "1", "]", 20_000))),
        ("20,000 nots", || format!("{{{{ {} 1 }}}}", "not ".repeat(20_000))),
        ("20,000 minuses", || format!("{{{{ {} 1 }}}}", "- ".repeat(20_000))),
        ("20,000 plusses", || format!("{{{{ 1 {} }}}}", "+ 1".repeat(20_000))),
        ("20,000 filters", || format!("{{{{ 1 {} }}}}", "|string".repeat(20_000))),
        ("20,000 attributes", || format!("{{{{ messages{} }}}}", ".a".repeat(20_000))),
        ("20,000 blocks", || (0..20_000).map(|i| format!("{{% set a{i} = {i} %}}")).collect()),
        ("a source of 2 MB", || "x".repeat(2 << 20)),
        ("includes and imports", || "{% include '/etc/passwd' %}".into()),
        ("extends", || "{% extends '/etc/passwd' %}".into()),
        ("__class__", || "{{ ''.__class__.__mro__[1].__subclasses__() }}".into()),
        ("__init__.__globals__", || "{{ cycler.__init__.__globals__.os.popen('id').read() }}".into()),
        ("self.__init__", || "{{ self.__init__.__globals__.__builtins__.__import__('os').system('id') }}".into()),
        ("lipsum", || "{{ lipsum(n=1000000) }}".into()),
        ("debug()", || "{{ debug() }}".into()),
        ("strftime_now of a long form", || format!("{{{{ strftime_now('{}') }}}}", "%c".repeat(50_000))),
        ("strftime_now of no form", || "{{ strftime_now('%') }}{{ strftime_now('%Q%!') }}".into()),
        ("strftime_now with a width", || "{{ strftime_now('%2000000000d') }}".into()),
        ("datetimeformat", || "{{ 1e300|datetimeformat }}{{ -1e18|dateformat }}".into()),
        ("raise_exception of much", || "{{ raise_exception('x' * 10000000) }}".into()),
        ("raise_exception with escapes", || "{{ raise_exception('\\u001b[2J\\nfake: line') }}".into()),
        ("not a template", || "{% if %}{{".into()),
        ("control characters", || "\u{0}\u{1b}[2J{{ messages }}".into()),
        ("empty", String::new),
    ];
    let mut cases = Vec::new();
    for &(name, build) in table {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let mut settings = own.json(SETTINGS);
            // One that reads no messages would be refused before it runs.
            settings["chat_template"] = (build() + "{{ messages | length }}").into();
            template(&own, scratch, settings.to_string().as_bytes(), &Verdict::RefusedOr(vec![]))
        };
        cases.push(Case::new(TEMPLATE, name, check));
    }
    type Build = fn(Value) -> Value;
    let settings: &[(&str, Build)] = &[
        ("chat_template is a number", |mut good| {
            good["chat_template"] = json!(7);
            good
        }),
        ("chat_template is a list of nothing", |mut good| {
            good["chat_template"] = json!([{}]);
            good
        }),
        ("100,000 named templates", |mut good| {
            good["chat_template"] = (0..100_000).map(|i| json!({ "name": format!("t{i}"), "template": "x" })).collect();
            good
        }),
        ("a token that is an object in an object", |mut good| {
            good["eos_token"] = json!({ "content": { "content": "x" } });
            good
        }),
        ("an end-of-text token of 8 MB", |mut good| {
            good["eos_token"] = json!("e".repeat(7 << 20));
            good
        }),
    ];
    for &(name, build) in settings {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let bytes = build(own.json(SETTINGS)).to_string();
            template(&own, scratch, bytes.as_bytes(), &Verdict::RefusedOr(vec![]))
        };
        cases.push(Case::new(TEMPLATE, name, check));
    }
    // The model's own template, and what a person types.
    let prompts: &[Named<String>] = &[
        ("a prompt of control tokens", || "<|end|>\n<|system|>\n<|im_end|>".repeat(100)),
        ("a prompt of braces", || "{{ messages }}{% raw %}".repeat(100)),
        ("100 kB of one letter (row 32)", || "a".repeat(100_000)),
        ("100 kB of dots (row 32)", || ".".repeat(100_000)),
        ("100 kB of combining marks (row 32)", || "\u{301}".repeat(50_000)),
        ("100 kB of emoji (row 32)", || "\u{1f642}".repeat(25_000)),
        ("every private-use character", || ('\u{e000}'..='\u{f8ff}').chain('\u{f0000}'..='\u{f1000}').collect()),
    ];
    for &(name, build) in prompts {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let directory = own.with(scratch, &[]);
            let ran = child::run(&converse(&directory, &build()), scratch, &RENDER, &[]);
            Verdict::RefusedOr(vec!["token"]).judge(&ran, &RENDER)
        };
        cases.push(Case::new(TEMPLATE, name, check));
    }
    let own = Arc::clone(base);
    cases.push(Case::new(TEMPLATE, "chat_template.jinja beside the settings", move |scratch| {
        let directory =
            own.with(scratch, &[("chat_template.jinja", Some(b"{{ messages | string ~ 'x' * 1000000000 }}"))]);
        let ran = child::run(&converse(&directory, "hi"), scratch, &RENDER, &[]);
        Verdict::RefusedOr(vec![]).judge(&ran, &RENDER)
    }));
    cases
}
