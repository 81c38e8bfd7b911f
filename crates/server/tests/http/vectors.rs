//! Vectors of texts, and what is made of them.

use serde_json::{Value, json};

use crate::client::Answer;
use crate::host::Host;

const EMBED: &str = "/v1/embeddings";
const TEXTS: [&str; 3] = ["A fox ran through the forest.", "The fox ran in the wood.", "17 + 25 = 42"];

fn vector(item: &Value) -> Vec<f64> {
    item["embedding"].as_array().expect("floats").iter().map(|value| value.as_f64().unwrap()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// From the standard alphabet, without a library.
fn of_base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|&c| c != b'=').collect();
    let bits = |digits: &[u8]| {
        let sum = digits.iter().fold(0u32, |sum, &c| sum << 6 | u32::from(digit(c))) << (6 * (4 - digits.len()));
        sum.to_be_bytes()[1..digits.len()].to_vec()
    };
    digits.chunks(4).flat_map(bits).collect()
}

#[test]
fn a_text_has_a_vector_of_length_1() {
    let host = Host::start();
    let list = host.ask(EMBED, &json!({"model": "lantern", "input": TEXTS}));
    assert_eq!((&list["object"], &list["model"]), (&json!("list"), &json!("lantern")));
    let vectors: Vec<Vec<f64>> = list["data"].as_array().unwrap().iter().map(vector).collect();
    assert_eq!(vectors.len(), 3);
    for (index, (item, own)) in list["data"].as_array().unwrap().iter().zip(&vectors).enumerate() {
        assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(index)));
        assert!((dot(own, own) - 1.0).abs() < 1e-5, "{}", dot(own, own));
    }
    // What is alike is nearer.
    assert!(dot(&vectors[0], &vectors[1]) > dot(&vectors[0], &vectors[2]));
    let usage = &list["usage"];
    assert!(usage["prompt_tokens"].as_u64() > Some(10) && usage["prompt_tokens"] == usage["total_tokens"], "{usage}");

    // One alone, its tokens, and it written otherwise are the same.
    let one = host.ask(EMBED, &json!({"input": TEXTS[1]}));
    assert_eq!(vector(&one["data"][0]), vectors[1]);
    let tokens = host.ask("/tokenize", &json!({"prompt": TEXTS[1]}))["tokens"].clone();
    for input in [tokens.clone(), json!([tokens])] {
        assert_eq!(vector(&host.ask(EMBED, &json!({"input": input}))["data"][0]), vectors[1]);
    }
    let encoded = host.ask(EMBED, &json!({"input": TEXTS[1], "encoding_format": "base64"}));
    let bytes = of_base64(encoded["data"][0]["embedding"].as_str().expect("a text"));
    let floats: Vec<f32> = bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(floats, vectors[1].iter().map(|&value| value as f32).collect::<Vec<_>>());

    // Fewer dimensions are the first ones, with length 1 again; and without it, a part of the whole.
    let few = vector(&host.ask(EMBED, &json!({"input": TEXTS[1], "dimensions": 8}))["data"][0]);
    assert!(few.len() == 8 && (dot(&few, &few) - 1.0).abs() < 1e-5);
    assert!((few[0] / few[1] - vectors[1][0] / vectors[1][1]).abs() < 1e-3);
    let raw = vector(&host.ask(EMBED, &json!({"input": TEXTS[1], "normalize": false}))["data"][0]);
    let length = dot(&raw, &raw).sqrt();
    assert!((length - 1.0).abs() > 0.01 && (raw[3] / length - vectors[1][3]).abs() < 1e-5);
    host.quiet();
}

#[test]
fn hundreds_of_texts_are_read_some_at_a_time() {
    let host = Host::start();
    let texts: Vec<String> = (0..150).map(|at| format!("{} foxes and {} lanterns", at % 40, at / 40)).collect();
    let list = host.ask(EMBED, &json!({"input": texts, "dimensions": 4, "metadata": {"a": "b"}}));
    assert_eq!(list["data"].as_array().unwrap().len(), 150);
    assert_eq!(list["hints"], json!(["metadata"]));
    for at in [0, 31, 32, 149] {
        let alone = host.ask(EMBED, &json!({"input": texts[at], "dimensions": 4}));
        assert_eq!(list["data"][at]["embedding"], alone["data"][0]["embedding"], "text {at}");
    }
    host.quiet();
}

#[test]
fn scores_and_ranks_are_cosines() {
    let host = Host::start();
    let list = host.ask(EMBED, &json!({"input": TEXTS, "normalize": false}));
    let vectors: Vec<Vec<f64>> = list["data"].as_array().unwrap().iter().map(vector).collect();
    let cosine = |a: usize, b: usize| {
        let lengths = (dot(&vectors[a], &vectors[a]) * dot(&vectors[b], &vectors[b])).sqrt();
        dot(&vectors[a], &vectors[b]) / lengths
    };
    for path in ["/v1/score", "/score"] {
        let one_to_all = host.ask(path, &json!({"text_1": TEXTS[0], "text_2": TEXTS}));
        for at in 0..3 {
            let score = one_to_all["data"][at]["score"].as_f64().unwrap();
            assert!((score - cosine(0, at)).abs() < 1e-6, "{score} and {}", cosine(0, at));
        }
        let pairs = json!({"queries": [TEXTS[0], TEXTS[1]], "documents": [TEXTS[2], {"text": TEXTS[1]}]});
        let scores = host.ask(path, &pairs);
        assert!((scores["data"][0]["score"].as_f64().unwrap() - cosine(0, 2)).abs() < 1e-6);
        assert!((scores["data"][1]["score"].as_f64().unwrap() - 1.0).abs() < 1e-12);
    }
    for path in ["/v1/rerank", "/rerank", "/v2/rerank"] {
        let body = json!({"query": TEXTS[0], "documents": [TEXTS[2], TEXTS[1], TEXTS[0]]});
        let ranked = host.ask(path, &body)["results"].clone();
        let order: Vec<u64> = ranked.as_array().unwrap().iter().map(|one| one["index"].as_u64().unwrap()).collect();
        assert_eq!(order, [2, 1, 0]);
        assert_eq!(ranked[1]["document"]["text"], TEXTS[1]);
        let few = json!({"query": TEXTS[0], "documents": body["documents"], "top_n": 1, "return_documents": false});
        let few = host.ask(path, &few)["results"].clone();
        assert_eq!(few.as_array().unwrap().len(), 1);
        assert!(few[0].get("document").is_none() && few[0]["index"] == 2);
    }
    host.quiet();
}

#[test]
fn ollamas_words_mean_the_same() {
    let host = Host::start();
    let ours = host.ask(EMBED, &json!({"input": TEXTS, "dimensions": 16}));
    let asked = json!({"model": "lantern:latest", "input": TEXTS, "dimensions": 16, "keep_alive": "5m"});
    let theirs = host.ask("/api/embed", &asked);
    assert_eq!(theirs["model"], "lantern:latest");
    for at in 0..3 {
        assert_eq!(theirs["embeddings"][at], ours["data"][at]["embedding"]);
    }
    assert_eq!(theirs["prompt_eval_count"], ours["usage"]["prompt_tokens"]);
    assert!(theirs["total_duration"].as_u64() > Some(1000));
    // LangChain sends each option that Ollama has, most of them as null.
    let options = json!({"num_ctx": 2048, "mirostat": null, "temperature": null, "tfs_z": null, "stop": null});
    let asked = json!({"model": "lantern:latest", "input": TEXTS, "dimensions": 16, "options": options});
    let told = host.post("/api/embed", &asked);
    assert_eq!(told.json()["embeddings"], theirs["embeddings"], "{}", told.text());
    assert_eq!(told.header("x-twostroke-hints"), Some("options.num_ctx"));
    let raw = host.ask(EMBED, &json!({"input": TEXTS[0], "normalize": false}));
    let one = host.ask("/api/embeddings", &json!({"model": "lantern", "prompt": TEXTS[0]}));
    assert_eq!(one["embedding"], raw["data"][0]["embedding"]);
    for (path, body, field) in [
        ("/api/embed", json!({"input": []}), "input"),
        ("/api/embed", json!({"input": ["a", 5]}), "input[1]"),
        ("/api/embed", json!({"input": "a", "options": {"temperature": 1}}), "options.temperature"),
        ("/api/embed", json!({"input": "a", "options": {"mirostat": 2}}), "options.mirostat"),
        ("/api/embed", json!({"input": "a", "options": {"num_ctx": 0}}), "options.num_ctx"),
        ("/api/embed", json!({"input": "a", "options": {"warmth": 1}}), "options.warmth"),
        ("/api/embeddings", json!({"prompt": ["a"]}), "prompt"),
    ] {
        let answer = host.post(path, &body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.json()["error"].as_str().unwrap().contains(field), "{}", answer.text());
    }
    host.quiet();
}

#[test]
fn what_is_wrong_is_named() {
    let host = Host::start();
    let param = |answer: &Answer| (answer.status, answer.json()["error"]["param"].clone());
    let long = "fox ".repeat(5000);
    for (path, body, place) in [
        (EMBED, json!({}), "input"),
        (EMBED, json!({"input": []}), "input"),
        (EMBED, json!({"input": ""}), "input"),
        (EMBED, json!({"input": ["a", 5]}), "input[1]"),
        (EMBED, json!({"input": ["a", ""]}), "input[1]"),
        (EMBED, json!({"input": ["a", long]}), "input[1]"),
        (EMBED, json!({"input": [1, "a"]}), "input[1]"),
        (EMBED, json!({"input": vec!["a"; 2049]}), "input"),
        (EMBED, json!({"input": "a", "dimensions": 0}), "dimensions"),
        (EMBED, json!({"input": "a", "dimensions": 100_000}), "dimensions"),
        (EMBED, json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        (EMBED, json!({"input": "a", "stream": true}), "stream"),
        (EMBED, json!({"input": "a", "truncate_prompt_tokens": 0}), "truncate_prompt_tokens"),
        (EMBED, json!({"input": "a", "temprature": 1}), "temprature"),
        ("/v1/score", json!({"text_1": "a"}), "text_2"),
        ("/v1/score", json!({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}), "text_1"),
        ("/v1/score", json!({"text_1": "a", "text_2": [""]}), "text_2[0]"),
        ("/v1/score", json!({"text_1": "a", "text_2": []}), "text_2"),
        ("/v1/rerank", json!({"documents": ["a"]}), "query"),
        ("/v1/rerank", json!({"query": "a", "documents": ["a"], "top_n": -1}), "top_n"),
        ("/v1/rerank", json!({"query": "a", "documents": [{"text": 5}]}), "documents[0].text"),
    ] {
        assert_eq!(param(&host.post(path, &body)), (400, json!(place)), "{path} {body:.80}");
    }
    let unknown = host.post(EMBED, &json!({"input": "a", "model": "gpt"}));
    assert_eq!(param(&unknown), (404, json!("model")));
    host.quiet();
}
