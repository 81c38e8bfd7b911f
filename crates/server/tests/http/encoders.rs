//! Encoders: vectors, ranks, scores and classes of texts, and one clear error where text is asked for.

use std::path::{Path, PathBuf};

use engine::{EngineOptions, StartError};
use serde_json::{Value, json};

use crate::host::{Host, local_server, small_engine};

const TEXTS: [&str; 3] = ["a fox ran", "the fox ran in the wood", "one two three"];

/// A tokenizer of words and letters, as BERT's: `[CLS] text [SEP]`, the second text of a pair of type 1.
fn tokenizer() -> Value {
    let words =
        ["a", "fox", "ran", "the", "in", "wood", "one", "two", "three", "##s", "##n", "b", "c", "d", "yes", "no"];
    let names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].into_iter().chain(words);
    let vocab: Value =
        names.enumerate().map(|(id, name)| (name.to_string(), json!(id))).collect::<serde_json::Map<_, _>>().into();
    let special = |id: u64, name: &str| {
        json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    };
    let mark = |name: &str, part: u64| json!({"SpecialToken": {"id": name, "type_id": part}});
    let text = |name: &str, part: u64| json!({"Sequence": {"id": name, "type_id": part}});
    json!({
        "version": "1.0",
        "added_tokens": [special(0, "[PAD]"), special(1, "[UNK]"), special(2, "[CLS]"), special(3, "[SEP]")],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [mark("[CLS]", 0), text("A", 0), mark("[SEP]", 0)],
            "pair": [mark("[CLS]", 0), text("A", 0), mark("[SEP]", 0), text("B", 1), mark("[SEP]", 1)],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    })
}

/// The committed encoder of this name with that tokenizer, in a directory of its own.
fn with_tokenizer(name: &str) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/encoders").join(name);
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    for directory in ["", "1_Pooling", "2_Dense"] {
        let Ok(entries) = from.join(directory).read_dir() else { continue };
        std::fs::create_dir_all(to.join(directory)).unwrap();
        for path in entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
            std::fs::copy(&path, to.join(directory).join(path.file_name().unwrap())).unwrap();
        }
    }
    std::fs::write(to.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    to
}

fn options() -> EngineOptions {
    EngineOptions { max_model_len: None, ..small_engine() }
}

fn host(name: &str) -> Host {
    Host::of(with_tokenizer(name), options(), local_server(), |forward| (forward, None))
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().expect("a list").iter().map(|value| value.as_f64().expect("a number")).collect()
}

#[test]
fn an_encoder_gives_vectors_ranks_and_scores() {
    let host = host("bert");
    let list = host.ask("/v1/embeddings", &json!({"input": TEXTS}));
    assert_eq!(list["usage"]["prompt_tokens"], 5 + 8 + 5, "the tokenizer's marks are around each text");
    let vectors: Vec<Vec<f64>> = (0..3).map(|at| numbers(&list["data"][at]["embedding"])).collect();
    for vector in &vectors {
        assert_eq!(vector.len(), 40, "as wide as the last product behind pooling");
        assert!((vector.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-5);
    }
    for (at, text) in TEXTS.iter().enumerate() {
        let alone = host.ask("/v1/embeddings", &json!({"input": text}));
        assert_eq!(numbers(&alone["data"][0]["embedding"]), vectors[at], "{text}");
    }
    let ids = host.ask("/v1/embeddings", &json!({"input": [2, 4, 5, 6, 3]}));
    assert_eq!(ids["data"][0]["embedding"], list["data"][0]["embedding"], "token ids are taken as they are");
    let short = host.ask("/v1/embeddings", &json!({"input": TEXTS[0], "dimensions": 7, "encoding_format": "base64"}));
    assert_eq!(short["data"][0]["embedding"].as_str().map(str::len), Some(40), "28 bytes");
    let pooled = host.ask("/pooling", &json!({"input": TEXTS[0]}));
    assert_eq!(numbers(&pooled["data"][0]["data"]).len(), 40);

    let ranked = host.ask("/v1/rerank", &json!({"query": TEXTS[0], "documents": [TEXTS[2], TEXTS[1]], "top_n": 1}));
    assert_eq!(ranked["results"].as_array().map(Vec::len), Some(1));
    let score = host.ask("/v1/score", &json!({"text_1": TEXTS[0], "text_2": TEXTS[1]}));
    let dot: f64 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
    assert!((score["data"][0]["score"].as_f64().unwrap() - dot).abs() < 1e-6);

    assert_eq!(host.get("/health").status, 200);
    assert_eq!(host.ask("/detokenize", &json!({"tokens": [2, 7, 5, 13, 3]}))["prompt"], "[CLS] the foxs [SEP]");
    assert!(host.metric("twostroke_prompt_tokens_total") > 0.0);
}

/// A pair in the words that Qwen3-Reranker was trained with; its score is the share of "yes" beside "no".
#[test]
fn a_decoder_that_judges_reads_pairs_in_its_template() {
    let host = host("qwen3-reranker");
    let ids = |text: &str| -> Vec<f64> {
        numbers(&host.ask("/tokenize", &json!({"prompt": text, "add_special_tokens": false}))["tokens"])
    };
    let prefix = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
                  provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
    let suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let pair = |query: &str, document: &str| {
        let instruct = "Given a web search query, retrieve relevant passages that answer the query";
        let body = format!("<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {document}");
        let tokens: Vec<u32> =
            [ids(prefix), ids(&body), ids(suffix)].concat().into_iter().map(|id| id as u32).collect();
        let logit = numbers(&host.ask("/pooling", &json!({"input": tokens}))["data"][0]["data"])[0];
        1.0 / (1.0 + (-logit).exp())
    };
    let wanted = [pair(TEXTS[0], TEXTS[1]), pair(TEXTS[0], TEXTS[2])];
    let scores = host.ask("/v1/score", &json!({"text_1": TEXTS[0], "text_2": [TEXTS[1], TEXTS[2]]}));
    for (at, wanted) in wanted.iter().enumerate() {
        let found = scores["data"][at]["score"].as_f64().unwrap();
        assert!((found - wanted).abs() < 1e-6, "{found}, not {wanted}");
    }
    let ranked = host.ask("/v1/rerank", &json!({"query": TEXTS[0], "documents": [TEXTS[1], TEXTS[2]]}));
    let best = usize::from(wanted[1] > wanted[0]);
    assert_eq!(ranked["results"][0]["index"].as_u64(), Some(best as u64), "{wanted:?}");
}

#[test]
fn many_texts_of_several_clients_are_read_in_whole_passes() {
    let host = host("modernbert");
    // Longer than what a step has left, and longer than a block.
    let text = |len: usize| vec!["fox"; len].join(" ");
    let alone: Vec<Vec<f64>> = [1, 30, 200, 398]
        .map(|len| numbers(&host.ask("/v1/embeddings", &json!({"input": text(len)}))["data"][0]["embedding"]))
        .into();
    let texts: Vec<String> = [398, 1, 200, 398, 30, 398, 1, 200].map(text).into();
    let lists: Vec<Value> = std::thread::scope(|scope| {
        let ask = || host.ask("/v1/embeddings", &json!({"input": texts}));
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for list in lists {
        for (at, which) in [3, 0, 2, 3, 1, 3, 0, 2].into_iter().enumerate() {
            assert_eq!(numbers(&list["data"][at]["embedding"]), alone[which], "text {at}");
        }
    }
}

#[test]
fn a_text_that_is_too_long_is_refused_or_cut() {
    let host = host("xlm-roberta");
    let long = vec!["fox"; 400].join(" ");
    let refused = host.post("/v1/embeddings", &json!({"input": ["fox", long]}));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("input[1]")));
    assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
    assert!(refused.text().contains("at most 320 tokens"), "{}", refused.text());
    let exact = host.ask("/v1/embeddings", &json!({"input": vec!["fox"; 318].join(" ")}));
    assert_eq!(exact["usage"]["prompt_tokens"], 320, "every position is used");
    let cut = host.ask("/v1/embeddings", &json!({"input": long, "truncate_prompt_tokens": -1}));
    assert_eq!(cut["data"], exact["data"], "its first tokens, with the mark at the end");
}

#[test]
fn a_reranker_judges_pairs() {
    let host = host("bert-reranker");
    let documents = [TEXTS[2], TEXTS[1], "wood"];
    let ranked = host.ask("/rerank", &json!({"query": TEXTS[0], "documents": documents, "return_documents": false}));
    let scored = host.ask("/score", &json!({"text_1": TEXTS[0], "text_2": documents}));
    assert_eq!(scored["usage"]["prompt_tokens"], (3 + 3 + 3) + (3 + 6 + 3) + (3 + 1 + 3), "[CLS] a [SEP] b [SEP]");
    let results = ranked["results"].as_array().unwrap();
    for result in results {
        let (index, score) = (result["index"].as_u64().unwrap() as usize, result["relevance_score"].as_f64().unwrap());
        assert!(score > 0.0 && score < 1.0, "{result}");
        assert_eq!(scored["data"][index]["score"], result["relevance_score"], "one definition");
    }
    assert!(results.windows(2).all(|pair| pair[0]["relevance_score"].as_f64() >= pair[1]["relevance_score"].as_f64()));
    // The second text has its own segment: by token ids the same pair is read as one text.
    let pooled = host.ask("/pooling", &json!({"input": [2, 4, 5, 6, 3, 9, 3]}));
    let logit = numbers(&pooled["data"][0]["data"])[0];
    let as_one = 1.0 / (1.0 + (-logit).exp());
    assert!((scored["data"][2]["score"].as_f64().unwrap() - as_one).abs() > 1e-6);
    let refused = host.post("/v1/embeddings", &json!({"input": "a"}));
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("judges texts"), "{}", refused.text());
    let long = vec!["fox"; 400].join(" ");
    let pair = json!({"query": TEXTS[0], "documents": ["a", long]});
    assert_eq!(host.post("/rerank", &pair).json()["error"]["param"], "documents[1]");
    let cut = json!({"query": TEXTS[0], "documents": ["a", long], "truncate_prompt_tokens": -1});
    assert_eq!(host.ask("/rerank", &cut)["usage"]["prompt_tokens"], 7 + 320);
}

#[test]
fn a_classifier_names_its_classes() {
    let host = host("modernbert-classifier");
    let list = host.ask("/classify", &json!({"input": TEXTS}));
    for at in 0..3 {
        let item = &list["data"][at];
        let shares = numbers(&item["probs"]);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{item}");
        let best = (0..3).max_by(|&a, &b| shares[a].total_cmp(&shares[b])).unwrap();
        assert_eq!(item["label"], ["entailment", "neutral", "contradiction"][best]);
        assert_eq!((&item["index"], &item["num_classes"]), (&json!(at), &json!(3)));
    }
    let refused = host.post("/rerank", &json!({"query": "a", "documents": ["a"]}));
    assert!(refused.status == 400 && refused.text().contains("3 classes"), "{}", refused.text());
}

#[test]
fn nothing_is_written_by_an_encoder() {
    let host = host("bert");
    let name = host.get("/v1/models").json()["data"][0]["id"].clone();
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a fox"})),
        ("/v1/completions", json!({"prompt": "a fox", "max_tokens": 1, "stream": true})),
        ("/api/generate", json!({"model": name, "prompt": "a fox"})),
        ("/completion", json!({"prompt": "a fox"})),
    ] {
        let refused = host.post(path, &body);
        assert_eq!(refused.status, 400, "{path}: {}", refused.text());
        assert!(refused.text().contains("gives vectors, it writes no text"), "{path}: {}", refused.text());
    }
    let chat = host.post("/v1/chat/completions", &json!({"messages": [{"role": "user", "content": "a"}]}));
    assert!(chat.status == 400, "{}", chat.text());
    let classes = host.post("/classify", &json!({"input": "a"}));
    assert!(classes.status == 400 && classes.text().contains("no classes"), "{}", classes.text());
}

#[test]
fn what_concerns_answers_is_refused_at_the_start() {
    let directory = with_tokenizer("bert");
    let checkpoint = checkpoint::Checkpoint::open(checkpoint::Source::Directory(directory)).unwrap();
    for (wanted, options) in [
        ("--record", EngineOptions { record: Some("/nowhere/x".into()), ..options() }),
        ("--spot-check", EngineOptions { spot_check: 0.5, ..options() }),
        ("--expert-memory", EngineOptions { expert_memory: Some(1 << 20), ..options() }),
        ("--kv-swap-memory", EngineOptions { kv_swap_bytes: 1 << 20, ..options() }),
    ] {
        match engine::Engine::start(&checkpoint, &options, &mut |_| {}) {
            Err(StartError::Option { option, problem }) => {
                assert_eq!(option, wanted);
                assert!(problem.contains("is an encoder"), "{problem}");
            }
            other => panic!("{wanted}: {:?}", other.err()),
        }
    }
}

#[test]
fn a_client_that_goes_away_leaves_nothing_behind() {
    let host = Host::of(with_tokenizer("bert"), options(), local_server(), |forward| (forward, None));
    host.pause();
    let texts = vec![TEXTS[1]; 20];
    let gone = host.begin("", "POST", "/v1/embeddings", &json!({"input": texts}).to_string());
    testing::wait("the request to come", || host.engine.health().open_requests > 0);
    drop(gone);
    host.resume();
    testing::wait("the request to go", || host.engine.health().open_requests == 0);
    assert_eq!(host.post("/v1/embeddings", &json!({"input": "a"})).status, 200);
}
