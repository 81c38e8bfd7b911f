//! The readers as a stranger's bytes meet them. Each returns whether they took the file; a panic is a finding.

use checkpoint::{Checkpoint, LoadError, Source};
use kernels::{KvDtype, Reference, WeightClass};
use model::{GenerationDefaults, KvBudget, LoadOptions, ModelConfig};
use std::path::PathBuf;
use std::sync::OnceLock;
use text::chat_template::{ChatMessage, ChatTemplate, TemplateOptions};
use text::tokenizer::Tokenizer;

/// Everything that loading and serving do with a file before the first token.
pub fn gguf(bytes: &[u8]) -> bool {
    judge("model.gguf", whole_model(&[("model.gguf", bytes)]))
}

/// A file of weights beside a configuration that asks for other tensors, or for its own.
pub fn safetensors(bytes: &[u8]) -> bool {
    const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8, "max_position_embeddings": 64,
        "tie_word_embeddings": true}"#;
    let files = [("model.safetensors", bytes), ("config.json", CONFIG.as_bytes())];
    judge("model.safetensors", checkpoint(&files).and_then(|checkpoint| load(&checkpoint)))
}

/// `config.json` and `generation_config.json`.
pub fn config(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let generation = judge("generation_config.json", GenerationDefaults::parse(text).map(drop));
    judge("config.json", ModelConfig::parse(text).map(drop)) && generation
}

/// `tokenizer.json`, and the same bytes as `tokenizer_config.json`.
pub fn tokenizer(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let template = judge("tokenizer", ChatTemplate::from_sources(None, Some(text), None).map(drop));
    let tokenizer = Tokenizer::from_json(text, None, None, 1 << 16);
    judge("tokenizer", tokenizer.map(|tokenizer| read_and_write(&tokenizer))) && template
}

/// A text, by the tokenizers that there are: what is encoded comes back, and is nothing but text.
pub fn text(bytes: &[u8]) -> bool {
    static TOKENIZERS: OnceLock<(Vec<Tokenizer>, ChatTemplate)> = OnceLock::new();
    let (tokenizers, template) = TOKENIZERS.get_or_init(|| {
        const LANTERN: &str = include_str!("../../models/lantern/tokenizer.json");
        const SETTINGS: &str = include_str!("../../models/lantern/tokenizer_config.json");
        let files = [
            LANTERN,
            include_str!("../../crates/text/tests/data/byte_level.json"),
            include_str!("../../crates/text/tests/data/byte_fallback.json"),
            include_str!("../../crates/text/tests/data/metaspace.json"),
            include_str!("../../crates/text/tests/data/gemma.json"),
        ];
        let read = |json: &str| Tokenizer::from_json(json, None, None, 1 << 16).expect("a committed tokenizer");
        let template = ChatTemplate::from_sources(None, Some(SETTINGS), None).expect("a committed template");
        (files.map(read).into(), template.expect("it has one"))
    });
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    for (index, tokenizer) in tokenizers.iter().enumerate() {
        let (Ok(marked), Ok(plain)) = (tokenizer.encode(text, false), tokenizer.encode_plain(text)) else {
            return false;
        };
        assert!(marked.iter().chain(&plain).all(|id| (*id as usize) < 1 << 16), "an id of no token");
        assert!(!plain.iter().any(|id| tokenizer.is_special(*id)), "a text became a control token");
        // The first writes bytes, has one for each, and normalizes nothing.
        if index == 0 {
            assert_eq!(tokenizer.decode(&plain, false), text, "a text did not come back");
            assert_eq!(tokenizer.decode(&marked, false), text, "a text with marks did not come back");
        }
        let shown = tokenizer.decode(&marked, true);
        assert!(shown.len() <= 64 + 16 * text.len(), "a text of {} bytes became {}", text.len(), shown.len());
    }
    let message = ChatMessage::new("user", text);
    let options = TemplateOptions { add_generation_prompt: true, ..TemplateOptions::default() };
    let Ok(ids) = tokenizers[0].encode_chat(template, &[message], &options) else { return false };
    // <|user|>, <|end|>, <|assistant|>: those of the template, whatever the text says.
    assert_eq!(ids.iter().filter(|id| tokenizers[0].is_special(**id)).count(), 3, "a text wrote a control token");
    true
}

/// Constants of a hundred million letters that a template under test may have.
const MOST_LARGE_CONSTANTS: usize = 4;
/// What no count of instructions bounds inside a process. The program renders in children with limits, where each of
/// these is one request's error; here they would end the fuzzer, which knows it already.
const UNBOUNDED: [&str; 19] = [
    "set ",
    "*",
    "indent",
    "format",
    "join",
    "replace",
    "find",
    "count",
    "split",
    "range",
    "sort",
    "slice",
    "batch",
    "center",
    "just",
    "fill",
    "macro",
    "recursive",
    "tojson",
];

/// The source of a chat template: compiled, and rendered if nothing in it is without bound. The same twice.
pub fn template(bytes: &[u8]) -> bool {
    let Ok(source) = std::str::from_utf8(bytes) else { return false };
    // Constants are computed as a template is parsed, which in the program is a child's work too: a hundred megabytes
    // each, and a source has room for thousands of them.
    if source.matches("00000000").count() > MOST_LARGE_CONSTANTS {
        return false;
    }
    let template = match ChatTemplate::from_sources(Some(source), None, None) {
        Ok(template) => template.expect("there is a source"),
        Err(error) => return judge("chat_template", Err(error)),
    };
    if UNBOUNDED.iter().any(|word| source.contains(word)) {
        return true;
    }
    let messages = [ChatMessage::new("system", "be brief"), ChatMessage::new("user", "hi {{ there }}")];
    let options =
        TemplateOptions { add_generation_prompt: true, now: Some(1_700_000_000), ..TemplateOptions::default() };
    let (once, again) = (template.render(&messages, &options), template.render(&messages, &options));
    match (once, again) {
        (Ok(once), Ok(again)) => assert_eq!(once, again, "a template rendered otherwise the second time"),
        (Err(error), Err(_)) => {
            let message = error.to_string();
            assert!(message.len() < 1 << 20, "an error of {} bytes", message.len());
            return false;
        }
        _ => panic!("a template failed one time of two"),
    }
    true
}

fn whole_model(files: &[(&str, &[u8])]) -> Result<(), LoadError> {
    let checkpoint = checkpoint(files)?;
    // Each on its own: a file without tensors may still hold a tokenizer.
    let tokenizer = Tokenizer::load(&checkpoint, 1 << 16).map(|tokenizer| read_and_write(&tokenizer));
    let template = ChatTemplate::load(&checkpoint).map(drop);
    load(&checkpoint).and(tokenizer).and(template)
}

fn load(checkpoint: &Checkpoint) -> Result<(), LoadError> {
    let options = LoadOptions {
        weights: WeightClass::Int8,
        as_stored: false,
        max_rows: 1,
        max_logit_rows: 1,
        max_model_len: None,
        kv_blocks: KvBudget::Blocks(1),
        block_size: 32,
        image_directory: None,
        kv_dtype: KvDtype::Bf16,
        adapters: model::AdapterRoom::default(),
        state_slots: 4,
        expert_memory: None,
    };
    model::load(Reference::new(), checkpoint, &options, &mut |_| {}).map(drop)
}

fn read_and_write(tokenizer: &Tokenizer) {
    let long = " lamp<unk>\u{FDFA}\u{1f98a}".repeat(50);
    for text in ["", "Hello <|end|> world 123", "  a\r\n e\u{301} \u{65e5}\u{672c} \u{1f642}", &long] {
        for ids in [tokenizer.encode(text, true), tokenizer.encode_plain(text)].into_iter().flatten() {
            tokenizer.decode(&ids, true);
        }
    }
}

/// Whether it went well. An error is one line, not too long, and says which file.
fn judge(file: &str, result: Result<(), LoadError>) -> bool {
    if let Err(error) = &result {
        let message = error.to_string();
        assert!(!message.contains('\n') && message.len() < 4096, "not one clear line: {message}");
        let named = message.contains(file) || matches!(error, LoadError::OutOfMemory { .. } | LoadError::Option { .. });
        assert!(named, "no {file} in: {message}");
    }
    result.is_ok()
}

/// The files in a directory of this process, the same one each time.
fn checkpoint(files: &[(&str, &[u8])]) -> Result<Checkpoint, LoadError> {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
        base.join(format!("twostroke-fuzz-{}", std::process::id()))
    });
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory).expect("room for a few files");
    for (name, bytes) in files {
        std::fs::write(directory.join(name), bytes).expect("room for a few files");
    }
    Checkpoint::open(Source::Directory(directory.clone()))
}
