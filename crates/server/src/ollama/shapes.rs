//! What the bodies of Ollama's routes may hold ([`transport::shape`]).

use transport::shape::Constant::{Boolean as Is, Text as Only, Texts};
use transport::shape::Kind::{self, Boolean, Either, Integer, List, Map, Object, Settings, Text, Word};
use transport::shape::{Field, Shape, all_missing, field, missing, only, required};

use crate::llama::shapes::SAMPLERS;
use crate::openai::shapes::{ASKER, DRAWN, MODEL, TOOLS};
use crate::vectors::shapes::READ;

pub(crate) static CHAT: Shape = Shape {
    name: "OllamaChatRequest",
    groups: &[
        &[field("messages", List(&Object(&MESSAGE)), "the conversation so far; none loads the model")],
        TOOLS,
        ANSWER,
    ],
};

pub(crate) static GENERATE: Shape = Shape {
    name: "OllamaGenerateRequest",
    groups: &[
        &[
            field("prompt", Text, "the text; none loads the model"),
            field("system", Text, "what the model is told first"),
            field("context", List(&Integer), "an earlier answer's tokens, which this one goes on from"),
            field("raw", Boolean, "without the model's template"),
            field("suffix", Text, "what stands behind the gap that is to be filled"),
            only("images", Texts(&[]), "this server reads text only"),
            field("template", Text, "a template (Jinja) in place of the model's, where the server allows that"),
        ],
        ANSWER,
    ],
};

static ANSWER: &[Field] = &[
    MODEL,
    field("stream", Boolean, "lines of JSON, as the answer is written; unless said otherwise"),
    field("options", Settings(&OPTIONS), "how tokens are drawn"),
    field("format", Either(&[Text, Map]), "'json', or a schema"),
    field("think", THINK, "whether, or how much"),
    field("truncate", Boolean, "prompts are not cut: one that does not fit is refused"),
    field("shift", Boolean, "an answer ends where the context does"),
    field("logprobs", Boolean, "log probabilities of the answer's tokens"),
    field("top_logprobs", Integer, "with logprobs: number of top log probabilities"),
];

const THINK: Kind = Either(&[Boolean, Word(&["low", "medium", "high"])]);

static OPTIONS: Shape = Shape {
    name: "OllamaOptions",
    groups: &[
        &[
            field("num_predict", Integer, "most tokens of the answer; below 1: all that the context leaves"),
            field("num_ctx", Integer, "at most the server's context"),
            only("penalize_newline", Is(true), "a line's end is a token like any other"),
        ],
        DRAWN,
        SAMPLERS,
    ],
};

static MESSAGE: Shape = Shape {
    name: "OllamaMessage",
    groups: &[&[
        required("role", Word(&["system", "user", "assistant", "tool"]), "who speaks"),
        field("content", Text, "the text"),
        field("thinking", Text, "what an assistant thought"),
        field("tool_calls", List(&Object(&CALL)), "an assistant's calls"),
        field("tool_name", Text, "a tool's: which it is"),
        field("tool_call_id", Text, "a tool's: which call it answers"),
        only("images", Texts(&[]), "this server reads text only"),
    ]],
};

static CALL: Shape = Shape {
    name: "OllamaCall",
    groups: &[&[
        required("function", Object(&CALLED), "the tool"),
        field("id", Text, "its name, for the tool's answer"),
        field("type", Word(&["function"]), "what it is"),
    ]],
};

static CALLED: Shape = Shape {
    name: "OllamaCalled",
    groups: &[&[
        required("name", Text, "the tool's name"),
        field("arguments", Map, "the arguments"),
        field("index", Integer, "its place among the calls of an answer"),
    ]],
};

pub(crate) static SHOW: Shape = Shape {
    name: "OllamaShowRequest",
    groups: &[&[
        MODEL,
        field("name", Text, "the same by its older name"),
        field("verbose", Boolean, "with the tokens of the vocabulary"),
        only("system", Only(""), "what is shown is the model as it is served"),
        only("template", Only(""), "what is shown is the model as it is served"),
    ]],
};

pub(crate) static PULL: Shape = Shape {
    name: "OllamaPullRequest",
    groups: &[&[
        field("model", Text, "a short name, or ORG/NAME of the hub, with :QUANT for one GGUF file"),
        field("name", Text, "the same by its older name"),
        field("stream", Boolean, "to be told how far it is, in lines; otherwise when it is done"),
    ]],
};

pub(crate) static EMBED: Shape = Shape {
    name: "OllamaEmbedRequest",
    groups: &[
        &[
            required("input", Either(&[Text, List(&Text)]), "a text, or several"),
            field("dimensions", Integer, "number of first components"),
        ],
        VECTORS,
        ASKER,
        READ,
    ],
};

pub(crate) static EMBED_ONE: Shape =
    Shape { name: "OllamaEmbeddingsRequest", groups: &[&[required("prompt", Text, "a text")], VECTORS, ASKER, READ] };

static VECTORS: &[Field] = &[
    field("options", Settings(&NO_OPTIONS), "of a vector nothing is drawn"),
    field("truncate", Boolean, "texts are not cut: one that does not fit is refused"),
];

/// Clients send all of these as `null`.
static NO_OPTIONS: Shape = Shape {
    name: "OllamaVectorOptions",
    groups: &[
        &[field("num_ctx", Integer, "at most the server's context"), missing("num_predict", NOT_DRAWN)],
        &all_missing::<5>(DRAWN, NOT_DRAWN),
        &all_missing::<18>(SAMPLERS, NOT_DRAWN),
    ],
};

const NOT_DRAWN: &str = "a vector is not drawn";
