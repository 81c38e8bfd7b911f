//! The readers as a stranger's bytes meet them. Each returns whether they took the file; a panic is a finding.

use kernels::{KvDtype, Reference, WeightClass};
use model::chat_template::ChatTemplate;
use model::tokenizer::Tokenizer;
use model::{Checkpoint, GenerationDefaults, KvBudget, LoadError, LoadOptions, ModelConfig, Source};
use std::path::PathBuf;
use std::sync::OnceLock;

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
    };
    model::load(Reference::new(), checkpoint, &options, &mut |_| {}).map(drop)
}

fn read_and_write(tokenizer: &Tokenizer) {
    for text in ["", "Hello <|end|> world 123", "  a\n\u{65e5}\u{672c} \u{1f642}"] {
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
