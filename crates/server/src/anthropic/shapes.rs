//! What the bodies of Anthropic's routes may hold ([`transport::shape`]).

use transport::shape::Constant::{NoFields, Texts};
use transport::shape::Kind::{Boolean, Either, Integer, Json, List, Map, Object, Text, Word};
use transport::shape::{Field, Shape, field, only, required};

use crate::openai::shapes::{DRAWN, MODEL, SCHEMA, TURN};

/// An answer is wanted.
pub(crate) static MESSAGES: Shape = Shape {
    name: "MessagesRequest",
    groups: &[&[required("max_tokens", Integer, "most tokens of the answer")], FIELDS, DRAWN, TURN],
};

/// A count of tokens is wanted.
pub(crate) static COUNT: Shape = Shape {
    name: "CountTokensRequest",
    groups: &[&[field("max_tokens", Integer, "changes no count")], FIELDS, DRAWN, TURN],
};

static FIELDS: &[Field] = &[
    required("messages", List(&Object(&MESSAGE)), "the conversation so far"),
    MODEL,
    field("system", Either(&[Text, List(&Object(&BLOCK))]), "what the model is told first"),
    field("stream", Boolean, "server-sent events, as the answer is written"),
    field("stop_sequences", List(&Text), "texts that end the answer"),
    field("tools", List(&Object(&TOOL)), "what may be called"),
    field("tool_choice", Object(&CHOICE), "whether something must be called, and which"),
    field("thinking", Object(&THINKING), "whether and how much is thought"),
    field("output_config", Object(&OUTPUT), "how much effort, and what the answer must look like"),
    field("output_format", Object(&FORMAT), "the form, where earlier versions had it"),
    field("service_tier", Word(&["auto", "standard_only"]), "there is one"),
    field("context_management", Object(&MANAGEMENT), "only that thoughts are kept"),
    field("chat_template_kwargs", Map, "for the model's template"),
    field("timings_detail", Boolean, "the owners of the time, in timings"),
    field("speculate", Boolean, "whether speculation is allowed"),
    field("thread", Json, "refused: this server keeps no threads"),
    only("container", NoFields, "nothing is run here"),
    only("mcp_servers", Texts(&[]), "this server asks no other server: offer 'tools'"),
];

pub(crate) static MESSAGE: Shape = Shape {
    name: "AnthropicMessage",
    groups: &[&[
        required("role", Word(&["user", "assistant", "system"]), "who speaks"),
        required("content", Either(&[Text, List(&Object(&BLOCK))]), "a text, or blocks"),
    ]],
};

/// A block of any kind: which fields a kind has its reader knows.
pub(crate) static BLOCK: Shape = Shape {
    name: "Block",
    groups: &[&[
        required("type", Text, "text, thinking, redacted_thinking, tool_use or tool_result"),
        field("text", Text, "of text"),
        field("thinking", Text, "of thinking"),
        field("signature", Text, "of thinking: who wrote it"),
        field("data", Text, "of redacted_thinking"),
        field("id", Text, "of tool_use: the call's name"),
        field("name", Text, "of tool_use: the tool's"),
        field("input", Map, "of tool_use: the arguments"),
        field("tool_use_id", Text, "of tool_result: which call it answers"),
        field("content", Either(&[Text, List(&Object(&TEXT_BLOCK))]), "of tool_result: what the tool said"),
        field("is_error", Boolean, "of tool_result: whether it failed"),
        field("citations", Json, "of text: none"),
        field("caller", Object(&CALLER), "of tool_use: the model itself"),
    ]],
};

static CALLER: Shape = Shape { name: "Caller", groups: &[&[required("type", Word(&["direct"]), "the model itself")]] };

static TEXT_BLOCK: Shape = Shape {
    name: "TextBlock",
    groups: &[&[
        required("type", Text, "text"),
        field("text", Text, "the text"),
        only("citations", Texts(&[]), "this server cites nothing: send the text alone"),
    ]],
};

static TOOL: Shape = Shape {
    name: "AnthropicTool",
    groups: &[&[
        field("type", Text, "custom; the maker's own tools are taken, and the model is not told of them"),
        field("name", Text, "the tool's name"),
        field("description", Text, "what it does, for the model"),
        field("input_schema", Map, "the schema of its arguments"),
        field("strict", Boolean, "whether they are held to it"),
        field("defer_loading", Boolean, "of custom: false, the model is told of every tool at once"),
        field("allowed_callers", List(&Text), "of custom: direct, only the model itself calls tools here"),
    ]],
};

static CHOICE: Shape = Shape {
    name: "AnthropicToolChoice",
    groups: &[&[
        required("type", Word(&["auto", "any", "tool", "none"]), "whether something must be called"),
        field("name", Text, "with tool: which"),
        field("disable_parallel_tool_use", Boolean, "one call at most"),
    ]],
};

static THINKING: Shape = Shape {
    name: "Thinking",
    groups: &[&[
        required("type", Word(&["enabled", "adaptive", "disabled"]), "whether"),
        field("budget_tokens", Integer, "with enabled: most tokens of a thought"),
        field("display", Word(&["summarized", "omitted"]), "whether it is shown"),
    ]],
};

static OUTPUT: Shape = Shape {
    name: "OutputConfig",
    groups: &[&[
        field("effort", Word(&["low", "medium", "high", "xhigh", "max"]), "how much is thought"),
        field("format", Object(&FORMAT), "what the answer must look like"),
    ]],
};

static FORMAT: Shape = Shape {
    name: "OutputFormat",
    groups: &[&[
        required("type", Word(&["json_schema"]), "JSON of a schema"),
        required("schema", SCHEMA, "the schema"),
    ]],
};

static MANAGEMENT: Shape =
    Shape { name: "ContextManagement", groups: &[&[field("edits", List(&Json), "only that thoughts are kept")]] };
