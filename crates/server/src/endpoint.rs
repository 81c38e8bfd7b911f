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
    Classify,
    Pooling,
    OllamaChat,
    OllamaGenerate,
    OllamaEmbed,
    LlamaCompletion,
    Infill,
}

impl Endpoint {
    pub(crate) fn route(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completion => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Embeddings => "/v1/embeddings",
            Self::Score => "/v1/score",
            Self::Rerank => "/v1/rerank",
            Self::Classify => "/classify",
            Self::Pooling => "/pooling",
            Self::OllamaChat => "/api/chat",
            Self::OllamaGenerate => "/api/generate",
            Self::OllamaEmbed => "/api/embed",
            Self::LlamaCompletion => "/completion",
            Self::Infill => "/infill",
        }
    }

    /// What the names of its answers begin with.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Completion => "cmpl-",
            Self::Responses => "resp_",
            Self::Messages => "msg_",
            Self::Embeddings => "embd-",
            Self::Score => "score-",
            Self::Rerank => "rerank-",
            Self::Classify => "classify-",
            Self::Pooling => "pool-",
            Self::OllamaChat | Self::OllamaGenerate | Self::OllamaEmbed => "ollama-",
            Self::LlamaCompletion | Self::Infill => "llama-",
        }
    }

    /// What spans call it (OpenTelemetry's names).
    pub(crate) fn operation(self) -> &'static str {
        match self {
            Self::Completion | Self::OllamaGenerate | Self::LlamaCompletion | Self::Infill => "text_completion",
            Self::Embeddings | Self::Score | Self::Rerank | Self::Classify | Self::Pooling | Self::OllamaEmbed => {
                "embeddings"
            }
            Self::Chat | Self::Responses | Self::Messages | Self::OllamaChat => "chat",
        }
    }
}
