//! What each route is for, reads and answers.

use transport::hints::Hint;
use transport::query::{QueryParameter, parameter};
use transport::shape::{Kind, Shape};

use crate::openai::{self, shapes as openai_shapes};
use crate::{anthropic, llama, ollama, responses, vectors};

pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// Whose API it is of.
    pub(super) tag: &'static str,
    pub(super) about: &'static str,
    /// What its URL may ask: every other name is refused ([`super::query`]).
    pub(super) query: &'static [QueryParameter],
    pub(super) body: Body,
    pub(super) answer: Answer,
}

#[derive(Clone, Copy)]
pub(super) enum Body {
    None,
    /// An object of one of these shapes.
    Json(&'static [&'static Shape], &'static [Hint]),
    /// A list of these.
    List(&'static Shape),
    /// An object that another table reads: a model's `config.json`.
    AnyJson,
    /// A file, as a form.
    File,
}

/// What 200 brings: a schema's name, or types of content.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    Json(&'static str),
    /// Whole, or as events of this type.
    Streamed(&'static str, &'static str),
    Other(&'static str),
    Either(&'static [&'static str]),
}

impl Operation {
    /// `post_v1_chat_completions`.
    pub(super) fn id(&self) -> String {
        let words = self.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let words: Vec<&str> = words.collect();
        format!("{}_{}", self.method.to_ascii_lowercase(), words.join("_"))
    }

    /// The schema of what it answers when it does not.
    pub(super) fn error(&self) -> &'static str {
        match self.tag {
            ANTHROPIC => "AnthropicError",
            OLLAMA => "OllamaError",
            _ => "Error",
        }
    }
}

const OPENAI: &str = "OpenAI";
const ANTHROPIC: &str = "Anthropic";
const OLLAMA: &str = "Ollama";
const LLAMA: &str = "llama-server and vLLM";
const OWN: &str = "twostroke";
const WATCH: &str = "the page";

const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";
const TEXT: &str = "text/plain; charset=utf-8";

static HINTS: &[Hint] = &openai::hints::HINTS;
static CHAT_HINTS: &[Hint] = &openai::hints::OF_CHATS;

const fn get(path: &'static str, tag: &'static str, about: &'static str, answer: Answer) -> Operation {
    Operation { method: "GET", path, tag, about, query: &[], body: Body::None, answer }
}

const fn post(path: &'static str, tag: &'static str, about: &'static str, body: Body, answer: Answer) -> Operation {
    Operation { method: "POST", path, tag, about, query: &[], body, answer }
}

const fn delete(path: &'static str, tag: &'static str, about: &'static str, answer: Answer) -> Operation {
    Operation { method: "DELETE", path, tag, about, query: &[], body: Body::None, answer }
}

impl Operation {
    const fn asked(mut self, query: &'static [QueryParameter]) -> Operation {
        self.query = query;
        self
    }
}

const COMPLETE: Body = Body::Json(&[&openai_shapes::COMPLETION], HINTS);
const CONVERSE: Body = Body::Json(&[&openai_shapes::CHAT], CHAT_HINTS);
const EMBEDDING: Body = Body::Json(&[&llama::shapes::EMBEDDING], HINTS);
const SCORE: Body = Body::Json(&[&vectors::shapes::SCORE], HINTS);
const RERANK: Body = Body::Json(&[&vectors::shapes::RERANK], HINTS);
const CLASSIFY: Body = Body::Json(&[&vectors::shapes::CLASSIFY], HINTS);
const PAGE: &[QueryParameter] = &[
    parameter("limit", Kind::Integer, "maximum number"),
    parameter("after", Kind::Text, "those behind the one of this name"),
];

/// What a response was asked to include when it was made is there.
const INCLUDE: QueryParameter =
    parameter("include", Kind::List(&Kind::Text), "changes nothing: what the answer was made with is told");
const INCLUDED: QueryParameter = parameter("include[]", Kind::List(&Kind::Text), "the same, as lists are written");

/// Anthropic's clients write it into the URL of whatever is new to them.
const BETA: &[QueryParameter] =
    &[parameter("beta", Kind::Text, "changes nothing: every field says itself what it asks for")];
const MODELS: &[QueryParameter] = &[
    parameter("limit", Kind::Integer, "maximum number, Anthropic's form"),
    parameter("after_id", Kind::Text, "in Anthropic's words: those behind the one of this name"),
    parameter("before_id", Kind::Text, "in Anthropic's words: those before it"),
    parameter("beta", Kind::Text, "changes nothing: every field says itself what it asks for"),
];

pub(super) static OPERATIONS: &[Operation] = &[
    post("/v1/chat/completions", OPENAI, "Answer a conversation", CONVERSE, Answer::Streamed("ChatCompletion", EVENTS)),
    post("/v1/completions", OPENAI, "Continue texts", COMPLETE, Answer::Streamed("Completion", EVENTS)),
    post(
        "/v1/responses",
        OPENAI,
        "Answer, and keep the answer",
        Body::Json(&[&responses::shapes::CREATE], HINTS),
        Answer::Streamed("Response", EVENTS),
    ),
    post(
        "/v1/responses/input_tokens",
        OPENAI,
        "Count the tokens of an input",
        Body::Json(&[&responses::shapes::CREATE], HINTS),
        Answer::Json("InputTokens"),
    ),
    get("/v1/responses/{id}", OPENAI, "A kept answer, or its events", Answer::Streamed("Response", EVENTS)).asked(&[
        parameter("stream", Kind::Boolean, "the events of the answer, as far as it is there and then as they come"),
        parameter("starting_after", Kind::Integer, "with stream: those behind the one of this sequence_number"),
        parameter("include_obfuscation", Kind::Boolean, "changes nothing: no event is padded"),
        INCLUDE,
        INCLUDED,
    ]),
    delete("/v1/responses/{id}", OPENAI, "Forget a kept answer", Answer::Json("Deleted")),
    get("/v1/responses/{id}/input_items", OPENAI, "What a kept answer answers", Answer::Json("List")).asked(&[
        parameter("limit", Kind::Integer, "maximum number"),
        parameter("after", Kind::Text, "those behind the one of this name"),
        parameter("order", Kind::Word(&["asc", "desc"]), "oldest or newest first"),
        INCLUDE,
        INCLUDED,
    ]),
    post("/v1/responses/{id}/cancel", OPENAI, "End an answer in the background", Body::None, Answer::Json("Response")),
    post(
        "/v1/embeddings",
        OPENAI,
        "Vectors of texts",
        Body::Json(&[&vectors::shapes::EMBEDDINGS], HINTS),
        Answer::Json("Embeddings"),
    ),
    post("/v1/files", OPENAI, "Send a file of requests", Body::File, Answer::Json("File")),
    get("/v1/files", OPENAI, "Files", Answer::Json("List")).asked(&[
        parameter("limit", Kind::Integer, "maximum number"),
        parameter("after", Kind::Text, "those behind the one of this name"),
        parameter("purpose", Kind::Text, "those of this purpose"),
        parameter("order", Kind::Word(&["asc", "desc"]), "oldest or newest first"),
    ]),
    get("/v1/files/{id}", OPENAI, "A file", Answer::Json("File")),
    delete("/v1/files/{id}", OPENAI, "Delete a file", Answer::Json("Deleted")),
    get("/v1/files/{id}/content", OPENAI, "What is in a file", Answer::Other("application/jsonl")),
    post(
        "/v1/batches",
        OPENAI,
        "Begin with the requests of a file",
        Body::Json(&[&openai_shapes::BATCH], &[]),
        Answer::Json("Batch"),
    ),
    get("/v1/batches", OPENAI, "Batches", Answer::Json("List")).asked(PAGE),
    get("/v1/batches/{id}", OPENAI, "A batch", Answer::Json("Batch")),
    post("/v1/batches/{id}/cancel", OPENAI, "End a batch", Body::None, Answer::Json("Batch")),
    get("/v1/models", OPENAI, "What is served", Answer::Json("List")).asked(MODELS),
    get("/v1/models/{*model}", OPENAI, "One of them", Answer::Json("Model")).asked(BETA),
    post(
        "/v1/messages",
        ANTHROPIC,
        "Answer a conversation",
        Body::Json(&[&anthropic::shapes::MESSAGES], anthropic::HINTS),
        Answer::Streamed("AnthropicMessage", EVENTS),
    )
    .asked(BETA),
    post(
        "/v1/messages/count_tokens",
        ANTHROPIC,
        "Count the tokens of a conversation",
        Body::Json(&[&anthropic::shapes::COUNT], anthropic::HINTS),
        Answer::Json("CountedTokens"),
    )
    .asked(BETA),
    get("/api/version", OLLAMA, "Which API is spoken", Answer::Json("Version")),
    get("/api/tags", OLLAMA, "What is served", Answer::Json("OllamaModels")),
    get("/api/ps", OLLAMA, "What is loaded", Answer::Json("OllamaModels")),
    post("/api/show", OLLAMA, "About a model", Body::Json(&[&ollama::shapes::SHOW], &[]), Answer::Json("OllamaShown")),
    post(
        "/api/chat",
        OLLAMA,
        "Answer a conversation",
        Body::Json(&[&ollama::shapes::CHAT], ollama::HINTS),
        Answer::Streamed("OllamaChat", LINES),
    ),
    post(
        "/api/generate",
        OLLAMA,
        "Answer a text",
        Body::Json(&[&ollama::shapes::GENERATE], ollama::HINTS),
        Answer::Streamed("OllamaGenerate", LINES),
    ),
    post(
        "/api/embed",
        OLLAMA,
        "Vectors of texts",
        Body::Json(&[&ollama::shapes::EMBED], ollama::HINTS),
        Answer::Json("OllamaEmbeddings"),
    ),
    post(
        "/api/embeddings",
        OLLAMA,
        "The vector of a text",
        Body::Json(&[&ollama::shapes::EMBED_ONE], ollama::HINTS),
        Answer::Json("OllamaEmbedding"),
    ),
    post(
        "/completion",
        LLAMA,
        "Continue a text",
        Body::Json(&[&llama::shapes::COMPLETION], HINTS),
        Answer::Streamed("LlamaCompletion", EVENTS),
    ),
    post(
        "/infill",
        LLAMA,
        "Fill a gap in a file",
        Body::Json(&[&llama::shapes::INFILL], HINTS),
        Answer::Streamed("LlamaCompletion", EVENTS),
    ),
    post("/completions", LLAMA, "/v1/completions", COMPLETE, Answer::Streamed("Completion", EVENTS)),
    post("/chat/completions", LLAMA, "/v1/chat/completions", CONVERSE, Answer::Streamed("ChatCompletion", EVENTS)),
    get("/models", LLAMA, "/v1/models", Answer::Json("List")).asked(MODELS),
    get("/props", LLAMA, "About the server", Answer::Json("Object")),
    get("/slots", LLAMA, "Open requests", Answer::Json("Objects")),
    post(
        "/apply-template",
        LLAMA,
        "A conversation as the text that the model reads",
        Body::Json(&[&openai_shapes::TEMPLATE], HINTS),
        Answer::Json("Prompt"),
    ),
    post(
        "/tokenize",
        LLAMA,
        "Ids of the tokens of a text or a conversation",
        Body::Json(&[&openai_shapes::TOKENIZE_TEXT, &openai_shapes::TOKENIZE_CHAT, &llama::shapes::TOKENIZE], HINTS),
        Answer::Json("Tokens"),
    ),
    post(
        "/detokenize",
        LLAMA,
        "The text of tokens",
        Body::Json(&[&openai_shapes::DETOKENIZE], &[]),
        Answer::Json("Prompt"),
    ),
    get("/tokenizer_info", LLAMA, "About the tokenizer", Answer::Json("Object")),
    get("/load", LLAMA, "How many requests are open", Answer::Json("Load")),
    get("/ping", LLAMA, "/health", Answer::Json("Health")),
    post("/ping", LLAMA, "/health", Body::None, Answer::Json("Health")),
    get("/v1/health", LLAMA, "/health", Answer::Json("Health")),
    post("/v1/score", LLAMA, "How alike texts are", SCORE, Answer::Json("Scores")),
    post("/score", LLAMA, "/v1/score", SCORE, Answer::Json("Scores")),
    post("/v1/rerank", LLAMA, "Documents by how near they are to a query", RERANK, Answer::Json("Ranking")),
    post("/v2/rerank", LLAMA, "/v1/rerank", RERANK, Answer::Json("Ranking")),
    post("/rerank", LLAMA, "/v1/rerank", RERANK, Answer::Json("Ranking")),
    post("/classify", LLAMA, "The share of each class of a text", CLASSIFY, Answer::Json("Classes")),
    post("/pooling", LLAMA, "What a model has of a text, as it is", CLASSIFY, Answer::Json("Pooled")),
    post("/reranking", LLAMA, "/v1/rerank", RERANK, Answer::Json("Ranking")),
    post("/embedding", LLAMA, "Vectors of texts", EMBEDDING, Answer::Json("LlamaEmbeddings")),
    post("/embeddings", LLAMA, "/embedding", EMBEDDING, Answer::Json("LlamaEmbeddings")),
    get("/lora-adapters", LLAMA, "Adapters", Answer::Json("Objects")),
    post(
        "/lora-adapters",
        LLAMA,
        "Scales of adapters: 0, for each is asked for by its name",
        Body::List(&llama::shapes::SCALE),
        Answer::Json("Object"),
    ),
    post(
        "/v1/load_lora_adapter",
        LLAMA,
        "Serve an adapter, where the server allows that",
        Body::Json(&[&openai_shapes::LOAD_ADAPTER], &[]),
        Answer::Other(TEXT),
    ),
    post(
        "/v1/unload_lora_adapter",
        LLAMA,
        "Serve it no longer",
        Body::Json(&[&openai_shapes::UNLOAD_ADAPTER], &[]),
        Answer::Other(TEXT),
    ),
    get("/role", OWN, "Whose requests this worker takes", Answer::Json("Object")),
    post(
        "/role",
        OWN,
        "Change it, where the server allows that",
        Body::Json(&[&openai_shapes::ROLE], &[]),
        Answer::Json("Object"),
    ),
    get("/v1/requests", OWN, "The last requests", Answer::Json("Object")).asked(&[
        parameter("state", Kind::Text, "waiting, running, finished, cancelled, failed, with commas between"),
        parameter("min_ttft", Kind::Text, "whose first token took as long as this: 500ms, 2s"),
        parameter("min_gap", Kind::Text, "with a pause between tokens as long as this"),
        parameter("since", Kind::Text, "that ended since: RFC 3339, or how long ago, such as 15m"),
        parameter("order", Kind::Word(&["newest", "ttft", "gap", "total"]), "which come first"),
        parameter("limit", Kind::Integer, "maximum number"),
    ]),
    get("/v1/requests/{id}/timeline", OWN, "Where the time of a request went", Answer::Json("Object")),
    get("/v1/requests/{id}/without/{other}", OWN, "What it would have waited without another", Answer::Json("Object"))
        .asked(&[parameter("run", Kind::Boolean, "whether an idle server also runs that, and measures it")]),
    get("/health", OWN, "Whether the engine moves", Answer::Json("Health")),
    get("/metrics", OWN, "Counters for Prometheus", Answer::Either(METRICS)),
    get("/version", OWN, "The server's version", Answer::Json("Version")),
    get("/docs", OWN, "This document for people", Answer::Other("text/html; charset=utf-8")),
    get("/plan", OWN, "What a deployment would do", Answer::Either(PLAN)).asked(&PLANNED),
    post("/plan", OWN, "The same of a model's config.json", Body::AnyJson, Answer::Either(PLAN))
        .asked(&PLANNED_OF_CONFIG),
    get("/plan/presets", OWN, "Models and machines that are known by name", Answer::Json("Object")),
    get("/live/info", WATCH, "What is served, and what the machine can do", Answer::Json("Object")),
    get("/live/feed", WATCH, "Steps as they happen", Answer::Other(EVENTS)).asked(&[
        parameter("after", Kind::Integer, "those behind this step"),
        parameter("kv", Kind::Word(&["0", "1"]), "whether the map of the KV cache is told too"),
    ]),
    get("/live/trace", WATCH, "The last steps as a trace", Answer::Json("Object")).asked(&[parameter(
        "seconds",
        Kind::Integer,
        "length in seconds",
    )]),
    get("/live/whatif", WATCH, "What other settings would have done", Answer::Json("Object")).asked(&[
        parameter("minutes", Kind::Integer, "length in minutes, up to now"),
        parameter("max_num_batched_tokens", Kind::Integer, "rows of one forward pass"),
        parameter("max_prefill_chunk", Kind::Integer, "rows of one prompt in one forward pass"),
        parameter("max_num_partial_prefills", Kind::Integer, "prompts in prefill at once"),
        parameter("max_num_seqs", Kind::Integer, "sequences that run together"),
        parameter("kv_blocks", Kind::Integer, "blocks of the KV cache"),
        parameter("ttft_slo", Kind::Text, "the target of the first token: 500ms, 2s, off"),
        parameter("tpot_slo", Kind::Text, "the target from token to token: 50ms, off"),
        parameter("speculate", Kind::Word(&["off"]), "without speculation"),
    ]),
    post("/live/pause", WATCH, "Hold the engine, where the server allows that", Body::None, Answer::Json("Object")),
    post("/live/step", WATCH, "One step of a paused engine", Body::None, Answer::Json("Object")),
    post("/live/resume", WATCH, "Let it go", Body::None, Answer::Json("Object")),
];

/// What may be planned, as who reads it knows it.
static PLANNED: [QueryParameter; plan::PARAMETERS.len()] = planned(0);
/// The same where the body is the model, which stands first.
static PLANNED_OF_CONFIG: [QueryParameter; plan::PARAMETERS.len() - 1] = planned(1);

const fn planned<const COUNT: usize>(first: usize) -> [QueryParameter; COUNT] {
    let mut all = [const { parameter("", Kind::Text, "") }; COUNT];
    let mut at = 0;
    while at < COUNT {
        let plan::Parameter { name, about, kind } = plan::PARAMETERS[first + at];
        let kind = match kind {
            plan::ParameterKind::Whole => Kind::Integer,
            plan::ParameterKind::Chance => Kind::Number,
            plan::ParameterKind::Word(words) => Kind::Word(words),
            plan::ParameterKind::Text => Kind::Text,
        };
        all[at] = parameter(name, kind, about);
        at += 1;
    }
    all
}

const METRICS: &[&str] =
    &["text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8"];
const PLAN: &[&str] = &["application/json", "image/svg+xml"];
