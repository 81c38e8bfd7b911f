//! What the bodies of the routes of vectors may hold ([`transport::shape`]).

use transport::shape::Constant::{Boolean as Is, Text as Only};
use transport::shape::Kind::{self, Boolean, Either, Integer, List, Number, Object, Text, Word};
use transport::shape::{Field, Shape, field, only, required};

use crate::openai::shapes::{ASKER, PROMPTS};

pub(crate) static EMBEDDINGS: Shape = Shape {
    name: "EmbeddingsRequest",
    groups: &[
        &[
            required("input", PROMPTS, "a text, a list of token ids, or a list of several of either"),
            field("dimensions", Integer, "number of first components"),
            field("encoding_format", Word(&["float", "base64"]), "how vectors are written"),
            field("normalize", Boolean, "whether vectors have length 1"),
            field("use_activation", Boolean, "the same by its newer name"),
        ],
        ASKER,
        READ,
    ],
};

pub(crate) static CLASSIFY: Shape = Shape {
    name: "ClassifyRequest",
    groups: &[
        &[required("input", PROMPTS, "a text, a list of token ids, or a list of several of either")],
        ASKER,
        READ,
    ],
};

pub(crate) static SCORE: Shape = Shape {
    name: "ScoreRequest",
    groups: &[
        &[
            field("text_1", SIDE, "one text, or as many as on the other side"),
            field("text_2", SIDE, "the other side"),
            field("queries", SIDE, "text_1 by another name"),
            field("documents", SIDE, "text_2 by another name"),
            field("data_1", SIDE, "text_1 by another name"),
            field("data_2", SIDE, "text_2 by another name"),
        ],
        ASKER,
        READ,
    ],
};

pub(crate) static RERANK: Shape = Shape {
    name: "RerankRequest",
    groups: &[
        &[
            required("query", ONE, "what they are to be near"),
            required("documents", SIDE, "what is to be ranked"),
            field("top_n", Integer, "number of best results; 0: all"),
            field("return_documents", Boolean, "whether their texts are told"),
        ],
        ASKER,
        READ,
    ],
};

const ONE: Kind = Either(&[Text, Object(&TEXT)]);
const SIDE: Kind = Either(&[Text, Object(&TEXT), List(&ONE)]);

pub(crate) static TEXT: Shape = Shape {
    name: "RankedText",
    groups: &[&[required("text", Text, "the text"), only("type", Only("text"), "this server reads text only")]],
};

/// What all of them have.
pub(crate) static READ: &[Field] = &[
    field("priority", Integer, "a lower number comes first"),
    field("cache_salt", Text, "shares the prefix cache only with requests of the same salt"),
    field("ttft_slo_ms", Number, "target: milliseconds to the vectors"),
    field(
        "truncate_prompt_tokens",
        Integer,
        "keep this number of tokens of a longer text, the last or with an encoder the first; -1: those that fit",
    ),
    only("add_special_tokens", Is(true), "the tokenizer's own marks are always added to a text"),
];
