//! What the bodies of llama-server's routes may hold ([`transport::shape`]), and the options that Ollama shares with it.

use engine::sampling::PENALTIES;
use transport::shape::Constant::{Boolean as Is, Number as Exactly, Texts};
use transport::shape::Kind::{Boolean, Either, Integer, Json, List, Map, Number, Object, Text};
use transport::shape::{Field, Shape, field, missing, only, required};

use crate::openai::shapes::{ASKER, DRAWN, MODEL, PROMPTS, STRUCTURED};
use crate::sampling::{self, Names};
use crate::vectors::shapes::READ;

pub(crate) static COMPLETION: Shape = Shape {
    name: "LlamaCompletionRequest",
    groups: &[
        &[required("prompt", PROMPTS, "a text, token ids, or a list of one of these")],
        DELIVERY,
        DRAWN,
        SAMPLERS,
        STRUCTURED,
    ],
};

pub(crate) static INFILL: Shape = Shape {
    name: "InfillRequest",
    groups: &[
        &[
            field("input_prefix", Text, "what stands before the gap"),
            field("input_suffix", Text, "what stands behind it"),
            field("prompt", Text, "how the gap begins"),
            field("input_extra", List(&Object(&FILE)), "other files"),
        ],
        DELIVERY,
        DRAWN,
        SAMPLERS,
        STRUCTURED,
    ],
};

pub(crate) static TOKENIZE: Shape = Shape {
    name: "LlamaTokenizeRequest",
    groups: &[&[
        required("content", Text, "a text"),
        MODEL,
        field("add_special", Boolean, "whether the tokenizer's own marks are added"),
        field("with_pieces", Boolean, "the texts of tokens beside their ids"),
        only("parse_special", Is(true), "marks in a text are marks, as in every prompt"),
    ]],
};

pub(crate) static EMBEDDING: Shape = Shape {
    name: "LlamaEmbeddingRequest",
    groups: &[
        &[
            field("content", PROMPTS, "a text, a list of token ids, or a list of several of either"),
            field("input", PROMPTS, "the same by another name"),
            field("embd_normalize", Integer, "2: vectors have length 1; -1: as the model has them"),
        ],
        ASKER,
        READ,
    ],
};

/// One of a list.
pub(crate) static SCALE: Shape = Shape {
    name: "LoraScale",
    groups: &[&[
        required("id", Integer, "which adapter, as GET tells"),
        required("scale", Number, "0: an adapter is asked for as a model, by its name"),
    ]],
};

static FILE: Shape = Shape {
    name: "ExtraFile",
    groups: &[&[required("text", Text, "what is in it"), field("filename", Text, "its name")]],
};

static DELIVERY: &[Field] = &[
    MODEL,
    field("stream", Boolean, "server-sent events, as the answer is written"),
    field("return_tokens", Boolean, "the ids of tokens beside their text"),
    field("timings_detail", Boolean, "the owners of the time, in timings"),
    field("return_progress", Boolean, "with stream: how far the prompt is read"),
    field("n_predict", Integer, "most tokens of the answer; -1 and -2: all that the context leaves"),
    field("ignore_eos", Boolean, "goes on behind the end of text"),
    field("n_keep", Integer, "what stays of a prompt that is cut: none is"),
    field("dry_sequence_breakers", List(&Text), "refines a sampler that is off"),
    field("n_probs", Integer, "number of top log probabilities per token; 0: none"),
    field("logit_bias", Either(&[List(&Json), Map]), "pairs of a token, by id or text, and what is added to its logit"),
    only("min_keep", Exactly(0.0), "this server has no such sampler"),
    only("n_indent", Exactly(0.0), "lines are not indented for the model"),
    only("t_max_predict_ms", Exactly(0.0), "an answer is not ended by a clock"),
    only("id_slot", Exactly(-1.0), "requests have no slots here: the prefix cache finds what was read before"),
    only("n_discard", Exactly(0.0), "prompts are not cut"),
    only("post_sampling_probs", Is(false), "log probabilities are the model's own: 'n_probs'"),
    only("timings_per_token", Is(false), "times are told at the end"),
    only("lora", Texts(&[]), "an adapter is asked for as a model, by its name"),
    only("response_fields", Texts(&[]), "answers are told whole"),
    only("grammar_lazy", Is(false), "a grammar holds from the first token"),
    only("multimodal_data", Texts(&[]), TEXT_ONLY),
    only("image_data", Texts(&[]), TEXT_ONLY),
    only("n_cmpl", Exactly(1.0), "a prompt has one answer"),
    only("top_n_sigma", Exactly(-1.0), NO_SAMPLER),
    only("adaptive_target", Exactly(-1.0), NO_SAMPLER),
    field("adaptive_decay", Number, REFINES),
    missing("samplers", "the order of the samplers is fixed: top_k, top_p, min_p behind the temperature"),
];

/// How tokens are drawn, in llama.cpp's words, beside those that all have.
pub(crate) static SAMPLERS: &[Field] = &sampling::fields::<18>(
    &PENALTIES,
    Names::Llama,
    &[
        field("stop", Either(&[Text, List(&Text)]), "texts that end the answer"),
        field("repeat_last_n", Integer, "number of last tokens: -1 or at least all of them; 0 is no penalty"),
        only("typical_p", Exactly(1.0), NO_SAMPLER),
        only("tfs_z", Exactly(1.0), NO_SAMPLER),
        only("mirostat", Exactly(0.0), NO_SAMPLER),
        only("dry_multiplier", Exactly(0.0), NO_SAMPLER),
        only("xtc_probability", Exactly(0.0), NO_SAMPLER),
        only("dynatemp_range", Exactly(0.0), NO_SAMPLER),
        field("mirostat_tau", Number, REFINES),
        field("mirostat_eta", Number, REFINES),
        field("dry_base", Number, REFINES),
        field("dry_allowed_length", Number, REFINES),
        field("dry_penalty_last_n", Number, REFINES),
        field("xtc_threshold", Number, REFINES),
        field("dynatemp_exponent", Number, REFINES),
    ],
);

const TEXT_ONLY: &str = "this server reads text only";
const NO_SAMPLER: &str = "this server has no such sampler";
pub(super) const REFINES: &str = "refines a sampler that is off";
