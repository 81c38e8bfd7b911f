//! The endpoints that answer with tokens, and what they are called.

/// Whose words an answer is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
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

impl Form {
    pub(crate) fn route(self) -> &'static str {
        match self {
            Form::Chat => "/v1/chat/completions",
            Form::Completion => "/v1/completions",
            Form::Responses => "/v1/responses",
            Form::Messages => "/v1/messages",
            Form::Embeddings => "/v1/embeddings",
            Form::Score => "/v1/score",
            Form::Rerank => "/v1/rerank",
            Form::OllamaChat => "/api/chat",
            Form::OllamaGenerate => "/api/generate",
            Form::OllamaEmbed => "/api/embed",
            Form::LlamaCompletion => "/completion",
            Form::Infill => "/infill",
        }
    }

    /// What the names of its answers begin with.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Form::Chat => "chatcmpl-",
            Form::Completion => "cmpl-",
            Form::Responses => "resp_",
            Form::Messages => "msg_",
            Form::Embeddings => "embd-",
            Form::Score => "score-",
            Form::Rerank => "rerank-",
            Form::OllamaChat | Form::OllamaGenerate | Form::OllamaEmbed => "ollama-",
            Form::LlamaCompletion | Form::Infill => "llama-",
        }
    }

    /// What spans call it (OpenTelemetry's names).
    pub(crate) fn operation(self) -> &'static str {
        match self {
            Form::Completion | Form::OllamaGenerate | Form::LlamaCompletion | Form::Infill => "text_completion",
            Form::Embeddings | Form::Score | Form::Rerank | Form::OllamaEmbed => "embeddings",
            Form::Chat | Form::Responses | Form::Messages | Form::OllamaChat => "chat",
        }
    }
}
