//! The endpoints that answer with tokens, and what they are called.

/// Whose format an answer is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completion,
    Responses,
    Messages,
    Embeddings,
    Score,
    Rerank,
    OllamaChat,
    OllamaGenerate,
    OllamaEmbed,
    LlamaCompletion,
    Infill,
}

impl Endpoint {
    pub(crate) fn route(self) -> &'static str {
        match self {
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Completion => "/v1/completions",
            Endpoint::Responses => "/v1/responses",
            Endpoint::Messages => "/v1/messages",
            Endpoint::Embeddings => "/v1/embeddings",
            Endpoint::Score => "/v1/score",
            Endpoint::Rerank => "/v1/rerank",
            Endpoint::OllamaChat => "/api/chat",
            Endpoint::OllamaGenerate => "/api/generate",
            Endpoint::OllamaEmbed => "/api/embed",
            Endpoint::LlamaCompletion => "/completion",
            Endpoint::Infill => "/infill",
        }
    }

    /// What the names of its answers begin with.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Endpoint::Chat => "chatcmpl-",
            Endpoint::Completion => "cmpl-",
            Endpoint::Responses => "resp_",
            Endpoint::Messages => "msg_",
            Endpoint::Embeddings => "embd-",
            Endpoint::Score => "score-",
            Endpoint::Rerank => "rerank-",
            Endpoint::OllamaChat | Endpoint::OllamaGenerate | Endpoint::OllamaEmbed => "ollama-",
            Endpoint::LlamaCompletion | Endpoint::Infill => "llama-",
        }
    }

    /// What spans call it (OpenTelemetry's names).
    pub(crate) fn operation(self) -> &'static str {
        match self {
            Endpoint::Completion | Endpoint::OllamaGenerate | Endpoint::LlamaCompletion | Endpoint::Infill => {
                "text_completion"
            }
            Endpoint::Embeddings | Endpoint::Score | Endpoint::Rerank | Endpoint::OllamaEmbed => "embeddings",
            Endpoint::Chat | Endpoint::Responses | Endpoint::Messages | Endpoint::OllamaChat => "chat",
        }
    }
}
