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

/// What an endpoint is called.
struct EndpointNames {
    route: &'static str,
    /// What the names of its answers begin with.
    prefix: &'static str,
    /// What spans call it (OpenTelemetry's names).
    operation: &'static str,
}

impl Endpoint {
    fn names(self) -> EndpointNames {
        let (route, prefix, operation) = match self {
            Self::Chat => ("/v1/chat/completions", "chatcmpl-", "chat"),
            Self::Completion => ("/v1/completions", "cmpl-", "text_completion"),
            Self::Responses => ("/v1/responses", "resp_", "chat"),
            Self::Messages => ("/v1/messages", "msg_", "chat"),
            Self::Embeddings => ("/v1/embeddings", "embd-", "embeddings"),
            Self::Score => ("/v1/score", "score-", "embeddings"),
            Self::Rerank => ("/v1/rerank", "rerank-", "embeddings"),
            Self::Classify => ("/classify", "classify-", "embeddings"),
            Self::Pooling => ("/pooling", "pool-", "embeddings"),
            Self::OllamaChat => ("/api/chat", "ollama-", "chat"),
            Self::OllamaGenerate => ("/api/generate", "ollama-", "text_completion"),
            Self::OllamaEmbed => ("/api/embed", "ollama-", "embeddings"),
            Self::LlamaCompletion => ("/completion", "llama-", "text_completion"),
            Self::Infill => ("/infill", "llama-", "text_completion"),
        };
        EndpointNames { route, prefix, operation }
    }

    pub(crate) fn route(self) -> &'static str {
        self.names().route
    }

    /// What the names of its answers begin with.
    pub(crate) fn prefix(self) -> &'static str {
        self.names().prefix
    }

    /// What spans call it.
    pub(crate) fn operation(self) -> &'static str {
        self.names().operation
    }
}
