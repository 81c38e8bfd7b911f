//! What each route is for, reads and answers.

use transport::hints::Hint;
use transport::openapi::Answer::{Either, Json, Other, Streamed};
use transport::openapi::{ApiGroup, Body, Operation, delete, get, post};
use transport::query::{QueryParameter, parameter};
use transport::shape::Kind::{self, Integer, Text, Word};

use crate::openai::{self, shapes as openai_shapes};
use crate::{anthropic, llama, ollama, responses, vectors};

const OPENAI: &ApiGroup = &ApiGroup { name: "OpenAI", error: "Error" };
const ANTHROPIC: &ApiGroup = &ApiGroup { name: "Anthropic", error: "AnthropicError" };
const OLLAMA: &ApiGroup = &ApiGroup { name: "Ollama", error: "OllamaError" };
const LLAMA: &ApiGroup = &ApiGroup { name: "llama-server and vLLM", error: "Error" };
const OWN: &ApiGroup = &ApiGroup { name: "twostroke", error: "Error" };
const WATCH: &ApiGroup = &ApiGroup { name: "the page", error: "Error" };

pub(super) const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";
const TEXT: &str = "text/plain; charset=utf-8";

static HINTS: &[Hint] = &openai::hints::HINTS;
static CHAT_HINTS: &[Hint] = &openai::hints::OF_CHATS;

const COMPLETE: Body = Body::Json(&[&openai_shapes::COMPLETION], HINTS);
const CONVERSE: Body = Body::Json(&[&openai_shapes::CHAT], CHAT_HINTS);
const EMBEDDING: Body = Body::Json(&[&llama::shapes::EMBEDDING], HINTS);
const SCORE: Body = Body::Json(&[&vectors::shapes::SCORE], HINTS);
const RERANK: Body = Body::Json(&[&vectors::shapes::RERANK], HINTS);
const CLASSIFY: Body = Body::Json(&[&vectors::shapes::CLASSIFY], HINTS);
const RESPOND: Body = Body::Json(&[&responses::shapes::CREATE], HINTS);
const EMBED: Body = Body::Json(&[&vectors::shapes::EMBEDDINGS], HINTS);
const BATCH: Body = Body::Json(&[&openai_shapes::BATCH], &[]);
const MESSAGES: Body = Body::Json(&[&anthropic::shapes::MESSAGES], anthropic::HINTS);
const COUNT: Body = Body::Json(&[&anthropic::shapes::COUNT], anthropic::HINTS);
const SHOW: Body = Body::Json(&[&ollama::shapes::SHOW], &[]);
const PULL: Body = Body::Json(&[&ollama::shapes::PULL], &[]);
const OLLAMA_CHAT: Body = Body::Json(&[&ollama::shapes::CHAT], ollama::HINTS);
const OLLAMA_GENERATE: Body = Body::Json(&[&ollama::shapes::GENERATE], ollama::HINTS);
const OLLAMA_EMBED: Body = Body::Json(&[&ollama::shapes::EMBED], ollama::HINTS);
const OLLAMA_EMBED_ONE: Body = Body::Json(&[&ollama::shapes::EMBED_ONE], ollama::HINTS);
const LLAMA_COMPLETE: Body = Body::Json(&[&llama::shapes::COMPLETION], HINTS);
const INFILL: Body = Body::Json(&[&llama::shapes::INFILL], HINTS);
const TEMPLATE: Body = Body::Json(&[&openai_shapes::TEMPLATE], HINTS);
const TOKENIZE: Body =
    Body::Json(&[&openai_shapes::TOKENIZE_TEXT, &openai_shapes::TOKENIZE_CHAT, &llama::shapes::TOKENIZE], HINTS);
const DETOKENIZE: Body = Body::Json(&[&openai_shapes::DETOKENIZE], &[]);
const SCALES: Body = Body::List(&llama::shapes::SCALE);
const LOAD_ADAPTER: Body = Body::Json(&[&openai_shapes::LOAD_ADAPTER], &[]);
const UNLOAD_ADAPTER: Body = Body::Json(&[&openai_shapes::UNLOAD_ADAPTER], &[]);
const ROLE: Body = Body::Json(&[&openai_shapes::ROLE], &[]);

const LIMIT: QueryParameter = parameter("limit", Integer, "maximum number");
const AFTER: QueryParameter = parameter("after", Text, "those behind the one of this name");
const ORDER: QueryParameter = parameter("order", Word(&["asc", "desc"]), "oldest or newest first");
const PAGE: &[QueryParameter] = &[LIMIT, AFTER];

/// What a response was asked to include when it was made is there.
const INCLUDE: QueryParameter =
    parameter("include", Kind::List(&Text), "changes nothing: what the answer was made with is told");
const INCLUDED: QueryParameter = parameter("include[]", Kind::List(&Text), "the same, as lists are written");

/// Anthropic's clients write it into the URL of whatever is new to them.
const OF_BETA: QueryParameter = parameter("beta", Text, "changes nothing: every field says itself what it asks for");
const BETA: &[QueryParameter] = &[OF_BETA];
/// Of several models in memory, the one that is meant.
const OF_MODEL: QueryParameter = parameter("model", Text, "of this model; the first one unless said otherwise");
const MODELS: &[QueryParameter] = &[
    parameter("limit", Integer, "maximum number, Anthropic's form"),
    parameter("after_id", Text, "in Anthropic's words: those behind the one of this name"),
    parameter("before_id", Text, "in Anthropic's words: those before it"),
    OF_BETA,
];

pub(super) static OPERATIONS: &[Operation] = &[
    post("/v1/chat/completions", OPENAI, "Answer a conversation", CONVERSE, Streamed("ChatCompletion", EVENTS)),
    post("/v1/completions", OPENAI, "Continue texts", COMPLETE, Streamed("Completion", EVENTS)),
    post("/v1/responses", OPENAI, "Answer, and keep the answer", RESPOND, Streamed("Response", EVENTS)),
    post("/v1/responses/input_tokens", OPENAI, "Count the tokens of an input", RESPOND, Json("InputTokens")),
    get("/v1/responses/{id}", OPENAI, "A kept answer, or its events", Streamed("Response", EVENTS)).asked(&[
        parameter("stream", Kind::Boolean, "the events of the answer, as far as it is there and then as they come"),
        parameter("starting_after", Integer, "with stream: those behind the one of this sequence_number"),
        parameter("include_obfuscation", Kind::Boolean, "changes nothing: no event is padded"),
        INCLUDE,
        INCLUDED,
    ]),
    delete("/v1/responses/{id}", OPENAI, "Forget a kept answer", Json("Deleted")),
    get("/v1/responses/{id}/input_items", OPENAI, "What a kept answer answers", Json("List"))
        .asked(&[LIMIT, AFTER, ORDER, INCLUDE, INCLUDED]),
    post("/v1/responses/{id}/cancel", OPENAI, "End an answer in the background", Body::None, Json("Response")),
    post("/v1/embeddings", OPENAI, "Vectors of texts", EMBED, Json("Embeddings")),
    post("/v1/files", OPENAI, "Send a file of requests", Body::File, Json("File")),
    get("/v1/files", OPENAI, "Files", Json("List")).asked(&[
        LIMIT,
        AFTER,
        parameter("purpose", Text, "those of this purpose"),
        ORDER,
    ]),
    get("/v1/files/{id}", OPENAI, "A file", Json("File")),
    delete("/v1/files/{id}", OPENAI, "Delete a file", Json("Deleted")),
    get("/v1/files/{id}/content", OPENAI, "What is in a file", Other("application/jsonl")),
    post("/v1/batches", OPENAI, "Begin with the requests of a file", BATCH, Json("Batch")),
    get("/v1/batches", OPENAI, "Batches", Json("List")).asked(PAGE),
    get("/v1/batches/{id}", OPENAI, "A batch", Json("Batch")),
    post("/v1/batches/{id}/cancel", OPENAI, "End a batch", Body::None, Json("Batch")),
    get("/v1/models", OPENAI, "What is served", Json("List")).asked(MODELS),
    get("/v1/models/{*model}", OPENAI, "One of them", Json("Model")).asked(BETA),
    post("/v1/messages", ANTHROPIC, "Answer a conversation", MESSAGES, Streamed("AnthropicMessage", EVENTS))
        .asked(BETA),
    post("/v1/messages/count_tokens", ANTHROPIC, "Count the tokens of a conversation", COUNT, Json("CountedTokens"))
        .asked(BETA),
    get("/api/version", OLLAMA, "Which API is spoken", Json("Version")),
    get("/api/tags", OLLAMA, "What is served", Json("OllamaModels")),
    get("/api/ps", OLLAMA, "What is loaded", Json("OllamaModels")),
    post("/api/show", OLLAMA, "About a model", SHOW, Json("OllamaShown")),
    post("/api/chat", OLLAMA, "Answer a conversation", OLLAMA_CHAT, Streamed("OllamaChat", LINES)),
    post("/api/generate", OLLAMA, "Answer a text", OLLAMA_GENERATE, Streamed("OllamaGenerate", LINES)),
    post("/api/embed", OLLAMA, "Vectors of texts", OLLAMA_EMBED, Json("OllamaEmbeddings")),
    post("/api/embeddings", OLLAMA, "The vector of a text", OLLAMA_EMBED_ONE, Json("OllamaEmbedding")),
    post("/api/pull", OLLAMA, "Download a model, where the server allows that", PULL, Streamed("Object", LINES)),
    Operation {
        body: PULL,
        ..delete("/api/delete", OLLAMA, "Remove a model from the disk, where the server allows that", Json("Object"))
    },
    post("/completion", LLAMA, "Continue a text", LLAMA_COMPLETE, Streamed("LlamaCompletion", EVENTS)),
    post("/infill", LLAMA, "Fill a gap in a file", INFILL, Streamed("LlamaCompletion", EVENTS)),
    post("/completions", LLAMA, "/v1/completions", COMPLETE, Streamed("Completion", EVENTS)),
    post("/chat/completions", LLAMA, "/v1/chat/completions", CONVERSE, Streamed("ChatCompletion", EVENTS)),
    get("/models", LLAMA, "/v1/models", Json("List")).asked(MODELS),
    get("/props", LLAMA, "About the server", Json("Object")).asked(&[OF_MODEL]),
    get("/slots", LLAMA, "Open requests", Json("Objects")).asked(&[OF_MODEL]),
    post("/apply-template", LLAMA, "A conversation as the text that the model reads", TEMPLATE, Json("Prompt")),
    post("/tokenize", LLAMA, "Ids of the tokens of a text or a conversation", TOKENIZE, Json("Tokens")),
    post("/detokenize", LLAMA, "The text of tokens", DETOKENIZE, Json("Prompt")),
    get("/tokenizer_info", LLAMA, "About the tokenizer", Json("Object")),
    get("/load", LLAMA, "How many requests are open", Json("Load")),
    get("/ping", LLAMA, "/health", Json("Health")),
    post("/ping", LLAMA, "/health", Body::None, Json("Health")),
    get("/v1/health", LLAMA, "/health", Json("Health")),
    post("/v1/score", LLAMA, "How alike texts are", SCORE, Json("Scores")),
    post("/score", LLAMA, "/v1/score", SCORE, Json("Scores")),
    post("/v1/rerank", LLAMA, "Documents by how near they are to a query", RERANK, Json("Ranking")),
    post("/v2/rerank", LLAMA, "/v1/rerank", RERANK, Json("Ranking")),
    post("/rerank", LLAMA, "/v1/rerank", RERANK, Json("Ranking")),
    post("/classify", LLAMA, "The share of each class of a text", CLASSIFY, Json("Classes")),
    post("/pooling", LLAMA, "What a model has of a text, as it is", CLASSIFY, Json("Pooled")),
    post("/reranking", LLAMA, "/v1/rerank", RERANK, Json("Ranking")),
    post("/embedding", LLAMA, "Vectors of texts", EMBEDDING, Json("LlamaEmbeddings")),
    post("/embeddings", LLAMA, "/embedding", EMBEDDING, Json("LlamaEmbeddings")),
    get("/lora-adapters", LLAMA, "Adapters", Json("Objects")),
    post("/lora-adapters", LLAMA, "Scales of adapters: 0, for each is asked for by its name", SCALES, Json("Object")),
    post("/v1/load_lora_adapter", LLAMA, "Serve an adapter, where the server allows that", LOAD_ADAPTER, Other(TEXT)),
    post("/v1/unload_lora_adapter", LLAMA, "Serve it no longer", UNLOAD_ADAPTER, Other(TEXT)),
    get("/role", OWN, "Whose requests this worker takes", Json("Object")),
    post("/role", OWN, "Change it, where the server allows that", ROLE, Json("Object")),
    get("/v1/requests", OWN, "The last requests", Json("Object")).asked(&[
        OF_MODEL,
        parameter("state", Text, "waiting, running, finished, cancelled, failed, with commas between"),
        parameter("min_ttft", Text, "whose first token took as long as this: 500ms, 2s"),
        parameter("min_gap", Text, "with a pause between tokens as long as this"),
        parameter("since", Text, "that ended since: RFC 3339, or how long ago, such as 15m"),
        parameter("order", Word(&["newest", "ttft", "gap", "total"]), "which come first"),
        LIMIT,
    ]),
    get("/v1/requests/{id}/timeline", OWN, "Where the time of a request went", Json("Object")),
    get("/v1/requests/{id}/without/{other}", OWN, "What it would have waited without another", Json("Object"))
        .asked(&[parameter("run", Kind::Boolean, "whether an idle server also runs that, and measures it")]),
    get("/health", OWN, "Whether the engine moves", Json("Health")).at_503("it does not move", "Health"),
    get("/metrics", OWN, "Counters for Prometheus", Either(METRICS)),
    get("/version", OWN, "The server's version", Json("Version")),
    get("/docs", OWN, "This document for people", Other("text/html; charset=utf-8")),
    get("/plan", OWN, "What a deployment would do", Either(PLAN)).asked(&PLANNED),
    post("/plan", OWN, "The same of a model's config.json", Body::AnyJson, Either(PLAN)).asked(&PLANNED_OF_CONFIG),
    get("/plan/presets", OWN, "Models and machines that are known by name", Json("Object")),
    get("/live/info", WATCH, "What is served, and what the machine can do", Json("Object")).asked(&[OF_MODEL]),
    get("/live/feed", WATCH, "Steps as they happen", Other(EVENTS)).asked(&[
        OF_MODEL,
        parameter("after", Integer, "those behind this step"),
        parameter("kv", Word(&["0", "1"]), "whether the map of the KV cache is told too"),
    ]),
    get("/live/trace", WATCH, "The last steps as a trace", Json("Object"))
        .asked(&[OF_MODEL, parameter("seconds", Integer, "length in seconds")]),
    get("/live/whatif", WATCH, "What other settings would have done", Json("Object")).asked(&[
        OF_MODEL,
        parameter("minutes", Integer, "length in minutes, up to now"),
        parameter("max_num_batched_tokens", Integer, "rows of one forward pass"),
        parameter("max_prefill_chunk", Integer, "rows of one prompt in one forward pass"),
        parameter("max_num_partial_prefills", Integer, "prompts in prefill at once"),
        parameter("max_num_seqs", Integer, "sequences that run together"),
        parameter("kv_blocks", Integer, "blocks of the KV cache"),
        parameter("ttft_slo", Text, "the target of the first token: 500ms, 2s, off"),
        parameter("tpot_slo", Text, "the target from token to token: 50ms, off"),
        parameter("speculate", Word(&["off"]), "without speculation"),
    ]),
    post("/live/pause", WATCH, "Hold the engine, where the server allows that", Body::None, Json("Object"))
        .asked(&[OF_MODEL]),
    post("/live/step", WATCH, "One step of a paused engine", Body::None, Json("Object")).asked(&[OF_MODEL]),
    post("/live/resume", WATCH, "Let it go", Body::None, Json("Object")).asked(&[OF_MODEL]),
];

/// What may be planned, as who reads it knows it.
static PLANNED: [QueryParameter; plan::PARAMETERS.len()] = planned(0);
/// The same where the body is the model, which stands first.
static PLANNED_OF_CONFIG: [QueryParameter; plan::PARAMETERS.len() - 1] = planned(1);

const fn planned<const COUNT: usize>(first: usize) -> [QueryParameter; COUNT] {
    let mut all = [const { parameter("", Text, "") }; COUNT];
    let mut at = 0;
    while at < COUNT {
        let plan::Parameter { name, about, kind } = plan::PARAMETERS[first + at];
        let kind = match kind {
            plan::ParameterKind::Whole => Integer,
            plan::ParameterKind::Share => Kind::Number,
            plan::ParameterKind::Word(words) => Word(words),
            plan::ParameterKind::Text => Text,
        };
        all[at] = parameter(name, kind, about);
        at += 1;
    }
    all
}

const METRICS: &[&str] =
    &["text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8"];
const PLAN: &[&str] = &["application/json", "image/svg+xml"];
