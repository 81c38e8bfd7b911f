//! What the bodies of OpenAI's responses may hold ([`transport::shape`]).

use transport::shape::Kind::{Boolean, Either, Integer, Json, List, Map, Object, Text, Word};
use transport::shape::{Field, Shape, field, missing, required};

use crate::openai::shapes::{
    ALLOWED_TOOLS, ASKER, DELIVERY, DRAWN, OF_A_FUNCTION, OF_A_SCHEMA, PENALTIES, SCHEMA, SWITCHES, TURN,
};

pub(crate) static CREATE: Shape =
    Shape { name: "ResponseRequest", groups: &[OWN, SWITCHES, ASKER, DELIVERY, DRAWN, PENALTIES, TURN, ABSENT] };

static OWN: &[Field] = &[
    required("input", Either(&[Text, List(&Object(&ITEM))]), "a text, or items of a conversation"),
    field("instructions", Text, "what the model is told first"),
    field("previous_response_id", Text, "a kept answer, which this one goes on from"),
    field("max_output_tokens", Integer, "most tokens of the answer"),
    field("tools", List(&Object(&TOOL)), "what may be called"),
    field("tool_choice", Either(&[Text, Object(&CHOICE)]), "whether something must be called, and which"),
    field("parallel_tool_calls", Boolean, "whether an answer may have several calls"),
    field("reasoning", Object(&REASONING), "how much is thought"),
    field("text", Object(&OUTPUT), "what the answer must look like"),
    field("max_tool_calls", Integer, "changes nothing: it counts calls of tools that a server runs"),
    field("store", Boolean, "whether the answer is kept"),
    field("background", Boolean, "whether it is generated in the background"),
    field("include", List(&Text), "what is told beside the answer: message.output_text.logprobs"),
    field("top_logprobs", Integer, "with logprobs: number of top log probabilities per token"),
    field(
        "truncation",
        Word(&["auto", "disabled"]),
        "auto: of an input that is too long the oldest items are left out",
    ),
    field("chat_template_kwargs", Map, "for the model's template"),
];

const ELSEWHERE: &str = "a schema is 'text.format' here; expressions, choices and grammars are in /v1/chat/completions";

static ABSENT: &[Field] = &[
    missing("conversation", "this server keeps no conversations: send 'previous_response_id', or all of 'input'"),
    missing("response_format", ELSEWHERE),
    missing("structured_outputs", ELSEWHERE),
    missing("grammar", ELSEWHERE),
    missing("guided_json", ELSEWHERE),
    missing("guided_regex", ELSEWHERE),
    missing("guided_choice", ELSEWHERE),
    missing("guided_grammar", ELSEWHERE),
    missing("prompt", "this server has none of that: send 'input' and 'tools'"),
    missing("moderation", "this server has none of that: send 'input' and 'tools'"),
    missing("context_management", "this server has none of that: send 'input' and 'tools'"),
];

/// An item of any kind: which fields a kind has its reader knows.
pub(crate) static ITEM: Shape = Shape {
    name: "Item",
    groups: &[&[
        field("type", Text, "message, reasoning, function_call, function_call_output or item_reference"),
        field("id", Text, "its name"),
        field("status", Text, "as the answer had it"),
        field("role", Word(&["system", "developer", "user", "assistant"]), "of a message: who speaks"),
        field("phase", Text, "of a message: which part of a conversation it is"),
        field("content", Either(&[Text, List(&Object(&PART))]), "of a message, or of reasoning"),
        field("summary", List(&Object(&PART)), "of reasoning"),
        field("encrypted_content", Text, "of reasoning"),
        field("call_id", Text, "of a call and what came of it"),
        field("namespace", Text, "of a call"),
        field("name", Text, "of a call: the tool's"),
        field("arguments", Text, "of a call: JSON, as a text"),
        field("output", Either(&[Text, List(&Object(&PART))]), "what came of a call"),
    ]],
};

pub(crate) static PART: Shape = Shape {
    name: "Part",
    groups: &[&[
        field("type", Text, "input_text, output_text, text, reasoning_text, summary_text or refusal"),
        field("text", Text, "the text"),
        field("refusal", Text, "of a refusal"),
        field("annotations", List(&Json), "as the answer had them"),
        field("logprobs", List(&Json), "as the answer had them"),
    ]],
};

/// A function. Of tools that their maker runs any field is taken: the model is not told of them.
pub(crate) static TOOL: Shape = Shape {
    name: "ResponseTool",
    groups: &[
        &[
            required("type", Text, "function, or a kind of tool that its maker runs"),
            field("name", Text, "of a function: the tool's name"),
        ],
        OF_A_FUNCTION,
    ],
};

pub(crate) static CHOICE: Shape = Shape {
    name: "ResponseToolChoice",
    groups: &[
        &[
            required("type", Word(&["function", "allowed_tools"]), "one tool, or one of several"),
            field("name", Text, "which tool"),
        ],
        ALLOWED_TOOLS,
    ],
};

static REASONING: Shape = Shape {
    name: "Reasoning",
    groups: &[&[
        field("effort", Text, "how much is thought, where the model's template has a switch"),
        field("summary", Text, "reasoning is returned whole, never summarized"),
        field("generate_summary", Text, "the same by its older name"),
    ]],
};

static OUTPUT: Shape = Shape {
    name: "ResponseText",
    groups: &[&[
        field("verbosity", Text, "changes nothing"),
        field("format", Object(&FORMAT), "text, JSON, or JSON of a schema"),
    ]],
};

pub(crate) static FORMAT: Shape = Shape {
    name: "ResponseTextFormat",
    groups: &[
        &[
            required("type", Word(&["text", "json_object", "json_schema"]), "what the answer is"),
            field("schema", SCHEMA, "with json_schema: the schema"),
        ],
        OF_A_SCHEMA,
    ],
};
