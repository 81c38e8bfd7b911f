//! What the bodies of OpenAI's routes may hold ([`transport::shape`]).

use engine::sampling::FILTERS;
use transport::shape::Constant::{self, Boolean as Is, Texts};
use transport::shape::Kind::{self, Boolean, Either, Integer, List, Map, Number, Object, Settings, Text, Word};
use transport::shape::{Field, Shape, field, missing, only, required};

use crate::sampling::{self, Names};

const NOTHING: Constant = Texts(&[]);
/// A text, or several.
const SEVERAL: Kind = Either(&[Text, List(&Text)]);
/// A text, the ids of its tokens, or several of either.
pub(crate) const PROMPTS: Kind = Either(&[Text, List(&Integer), List(&Either(&[Text, List(&Integer)]))]);

pub(crate) static CHAT: Shape = Shape {
    name: "ChatRequest",
    groups: &[
        CONVERSATION,
        CONTINUED,
        TOOLS,
        THINKING,
        SWITCHES,
        CHAT_OWN,
        ASKER,
        DELIVERY,
        DRAWN,
        PENALTIES,
        SAMPLING,
        TURN,
        ROUTED,
        BEAMS,
        STRUCTURED,
        ABSENT,
    ],
};

pub(crate) static COMPLETION: Shape = Shape {
    name: "CompletionRequest",
    groups: &[COMPLETION_OWN, ASKER, DELIVERY, DRAWN, PENALTIES, SAMPLING, TURN, ROUTED, BEAMS, STRUCTURED, ABSENT],
};

pub(crate) const MODEL: Field =
    field("model", Text, "a served name, or an adapter's; none means the model that is served");

/// Which model, and who asks how urgently.
pub(crate) static ASKER: &[Field] = &[
    MODEL,
    field("user", Text, "who is behind the request, for the log"),
    field("safety_identifier", Text, "the same by its newer name"),
    field("service_tier", Word(&["auto", "default", "priority", "flex"]), "whose turn it is; flex is batch work"),
];

pub(crate) static DELIVERY: &[Field] = &[
    field("stream", Boolean, "server-sent events, as the answer is written"),
    field("stream_options", Object(&STREAM_OPTIONS), "with stream: what events tell beside text"),
    field("return_token_ids", Boolean, "the ids of tokens beside their text"),
    field("return_tokens_as_token_ids", Boolean, "tokens of log probabilities as token_id:42"),
    field("return_progress", Boolean, "with stream: how far the prompt is read"),
    field("timings_detail", Boolean, "the owners of the time, in timings"),
    field("receipt", Boolean, "digests to verify the answer by"),
    field("speculate", Boolean, "whether speculation is allowed"),
];

static STREAM_OPTIONS: Shape = Shape {
    name: "StreamOptions",
    groups: &[&[
        field("include_usage", Boolean, "a last event with counts of tokens"),
        field("continuous_usage_stats", Boolean, "counts in every event, with the former"),
    ]],
};

/// How tokens are drawn, in every API's words.
pub(crate) static DRAWN: &[Field] = &sampling::fields::<5>(
    &FILTERS,
    Names::OpenAi,
    &[field("seed", Integer, "what is drawn; the same seed draws the same")],
);

pub(crate) static PENALTIES: &[Field] = &sampling::fields::<3>(&engine::sampling::PENALTIES, Names::OpenAi, &[]);

/// Whose turn it is, and by when.
pub(crate) static TURN: &[Field] = &[
    field("priority", Integer, "a lower number comes first"),
    field("cache_salt", Text, "shares the prefix cache only with requests of the same salt"),
    field("ttft_slo_ms", Number, "target: milliseconds to the first token, or to the vectors"),
    field("tpot_slo_ms", Number, "target: milliseconds from token to token"),
];

/// What a router knows.
static ROUTED: &[Field] =
    &[field("kv_transfer_params", Object(&KV_TRANSFER_PARAMS), "which worker reads the prompt, in vLLM's words")];

static KV_TRANSFER_PARAMS: Shape = Shape {
    name: "KvTransferParams",
    groups: &[&[
        field("do_remote_decode", Boolean, "the prompt is read here for another worker; the answer says where it is"),
        field("do_remote_prefill", Boolean, "the prompt was read where the other fields say"),
        field("remote_host", Text, "the worker that has read it"),
        field("remote_port", Integer, "its port"),
        field("seal", Text, "by which that worker is known"),
        missing("remote_engine_id", "a worker is known by its address"),
        missing("remote_block_ids", "blocks are known by what is in them"),
        missing("remote_request_id", "blocks are known by what is in them"),
    ]],
};

static SAMPLING: &[Field] = &[
    field("n", Integer, "how many answers"),
    field("logit_bias", Map, "by token id, what is added to its logit"),
    field("allowed_token_ids", List(&Integer), "the tokens that an answer may have"),
    field("bad_words", SEVERAL, "words that are in no answer"),
    field("logprob_token_ids", List(&Integer), "with logprobs: of these tokens, in place of the most likely"),
    field("truncate_prompt_tokens", Integer, "keep this number of last tokens of a longer prompt; -1: those that fit"),
    field("stop", SEVERAL, "texts that end an answer"),
    field("stop_token_ids", List(&Integer), "tokens that end an answer"),
    field("min_tokens", Integer, "least tokens of an answer"),
    field("ignore_eos", Boolean, "goes on behind the end of text"),
    field("include_stop_str_in_output", Boolean, "whether what ended an answer is part of it"),
    field("skip_special_tokens", Boolean, "whether special tokens are left out of the text"),
    field("prompt_logprobs", Integer, "number of top log probabilities per prompt token; -1: all"),
    field("prediction", Object(&PREDICTION), "a text that the answer will mostly be: faster, not other"),
];

/// Beam search, in vLLM's words.
static BEAMS: &[Field] = &[
    field("use_beam_search", Boolean, "the n best answers that n beams find; nothing is drawn"),
    field("length_penalty", Number, "of a beam search: above 0 prefers long answers; 1 unless said otherwise"),
    field("early_stopping", Either(&[Boolean, Word(&["never"])]), "of a beam search: ends with its nth whole answer"),
];

static PREDICTION: Shape = Shape {
    name: "Prediction",
    groups: &[&[
        required("type", Word(&["content"]), "what it is of"),
        required("content", Either(&[Text, List(&Object(&TEXT_PART))]), "the text"),
    ]],
};

/// A part of a message.
pub(crate) static TEXT_PART: Shape = Shape {
    name: "TextPart",
    groups: &[&[required("type", Text, "'text': this server reads text only"), field("text", Text, "the text")]],
};

/// What an answer must look like.
pub(crate) static STRUCTURED: &[Field] = &[
    field("response_format", Settings(&RESPONSE_FORMAT), "JSON, or JSON of a schema"),
    field("structured_outputs", Settings(&STRUCTURED_OUTPUTS), "the same and more, in vLLM's words"),
    field("guided_json", SCHEMA, "JSON of this schema"),
    field("guided_json_object", Boolean, "any JSON object"),
    field("guided_regex", Text, "a text that this expression matches whole"),
    field("guided_choice", List(&Text), "one of these"),
    field("guided_grammar", Text, "a text of this grammar (GBNF, or Lark)"),
    field("grammar", Text, "a text of this grammar (GBNF), in llama.cpp's words"),
    field("json_schema", SCHEMA, "JSON of this schema, in llama.cpp's words"),
];

/// A schema, or the text of one.
pub(crate) const SCHEMA: Kind = Either(&[Map, Boolean, Text]);

const NO_TAGS: &str = "structural tags are not here: send 'tools', or the whole form as 'structured_outputs.grammar'";

static RESPONSE_FORMAT: Shape = Shape {
    name: "ResponseFormat",
    groups: &[&[
        missing("structures", NO_TAGS),
        missing("format", NO_TAGS),
        required("type", Word(&["text", "json_object", "json_schema"]), "what the answer is"),
        field("json_schema", Object(&NAMED_SCHEMA), "with json_schema: which"),
        field("schema", SCHEMA, "the schema, where llama.cpp has it"),
    ]],
};

static NAMED_SCHEMA: Shape =
    Shape { name: "NamedSchema", groups: &[&[required("schema", SCHEMA, "the schema")], OF_A_SCHEMA] };

/// What is said of a schema.
pub(crate) static OF_A_SCHEMA: &[Field] = &[
    field("name", Text, "its name, for people"),
    field("description", Text, "what it is for, for people"),
    field("strict", Boolean, "whether it is kept to whatever it has, or refused; else it is, as far as it can be"),
];

static STRUCTURED_OUTPUTS: Shape = Shape {
    name: "StructuredOutputs",
    groups: &[&[
        field("json", SCHEMA, "JSON of this schema"),
        field("json_object", Boolean, "any JSON object"),
        field("regex", Text, "a text that this expression matches whole"),
        field("choice", List(&Text), "one of these"),
        field("grammar", Text, "a text of this grammar (GBNF, or Lark)"),
        missing("structural_tag", NO_TAGS),
    ]],
};

/// What OpenAI and vLLM have and this server has not.
static ABSENT: &[Field] = &[
    // vllm-router writes these into every request.
    only("no_stop_trim", Is(false), "what ends an answer is part of it with 'include_stop_str_in_output'"),
    only("return_hidden_states", Is(false), "hidden states are not given out"),
    only("spaces_between_special_tokens", Is(true), "special tokens are always set apart as the tokenizer does it"),
    only("add_special_tokens", Is(true), "the tokenizer's own prefix is always added to a text prompt"),
    missing("logits_processors", "logits processors are not supported"),
    missing("prompt_embeds", "prompts are text or token ids, not embeddings"),
    missing("vllm_xargs", "plug-in parameters are not supported"),
];

static COMPLETION_OWN: &[Field] = &[
    required("prompt", PROMPTS, "a text, a list of token ids, or a list of several of either"),
    field("max_tokens", Integer, "most tokens of an answer; -1: all that the context leaves"),
    // llm-d's sidecar writes it into every request.
    field("max_completion_tokens", Integer, "the same by the name that chats have for it"),
    field("logprobs", Integer, "number of top log probabilities per token; -1: all"),
    field("echo", Boolean, "the prompt before the answer"),
    field("best_of", Integer, "as many as n"),
    field("suffix", Text, "what stands behind the gap that is to be filled"),
];

static CHAT_OWN: &[Field] = &[
    field("max_tokens", Integer, "most tokens of an answer; -1: all that the context leaves"),
    field("max_completion_tokens", Integer, "the same by its newer name"),
    field("logprobs", Boolean, "log probabilities of the answer's tokens"),
    field("top_logprobs", Integer, "with logprobs: number of top log probabilities; -1: all"),
    field("echo", Boolean, "an assistant's last message before its continuation"),
    only("functions", NOTHING, "functions are the API before tools: use 'tools' and 'tool_choice'"),
    only("function_call", Constant::Text("none"), "functions are the API before tools: use 'tools' and 'tool_choice'"),
    only("separate_reasoning", Is(true), "thoughts are told apart: 'include_reasoning' says whether they are shown"),
    only("stream_reasoning", Is(true), "thoughts are streamed like the rest"),
    only("modalities", Texts(&["text"]), "this server answers in text only"),
    missing("audio", "this server answers in text only"),
    missing("web_search_options", "web search is not supported"),
    missing("documents", "documents are not supported"),
    missing("mm_processor_kwargs", "this server reads text only"),
];

/// What is read.
static CONVERSATION: &[Field] = &[
    required("messages", List(&Object(&MESSAGE)), "the conversation so far"),
    field("add_generation_prompt", Boolean, "whether a turn of the assistant is begun"),
    field("chat_template_kwargs", Map, "for the model's template"),
    field("chat_template", Text, "a template in its place, where the server allows that"),
];

static CONTINUED: &[Field] =
    &[field("continue_final_message", Boolean, "the answer goes on with the last message, in its turn")];

static MESSAGE: Shape = Shape {
    name: "Message",
    groups: &[&[
        required("role", Word(&["system", "developer", "user", "assistant", "tool"]), "who speaks"),
        field("content", Either(&[Text, List(&Object(&TEXT_PART))]), "the text, whole or in parts"),
        field("name", Text, "the speaker's name"),
        field("tool_calls", List(&Object(&CALL)), "an assistant's calls"),
        field("tool_call_id", Text, "a tool's: which call it answers"),
        field("reasoning", Text, "what an assistant thought"),
        field("reasoning_content", Text, "the same by its older name"),
        only("refusal", NOTHING, "this server answers in text, thoughts and calls"),
        only("audio", NOTHING, "this server answers in text, thoughts and calls"),
        missing("function_call", "functions are the API before tools: use 'tool_calls'"),
    ]],
};

static CALL: Shape = Shape {
    name: "Call",
    groups: &[&[
        required("function", Object(&CALLED), "the tool"),
        field("id", Text, "its name, for the tool's answer"),
        field("type", Word(&["function"]), "what it is"),
        field("index", Integer, "its place, from the pieces of a stream"),
    ]],
};

static CALLED: Shape = Shape {
    name: "Called",
    groups: &[&[
        required("name", Text, "the tool's name"),
        field("arguments", Either(&[Text, Map]), "JSON, as a text"),
    ]],
};

/// What may be called.
pub(crate) static TOOLS: &[Field] = &[
    field("tools", List(&Object(&TOOL)), "what may be called"),
    field("tool_choice", TOOL_CHOICE, "whether something must be called, and which"),
    field("parallel_tool_calls", Boolean, "whether an answer may have several calls"),
];

const TOOL_CHOICE: Kind = Either(&[Text, Object(&CHOSEN)]);

pub(crate) static CHOSEN: Shape = Shape {
    name: "ToolChoice",
    groups: &[&[
        required("type", Word(&["function", "allowed_tools"]), "one tool, or one of several"),
        field("function", Object(&NAMED), "which tool"),
        field("allowed_tools", Object(&ALLOWED), "which tools"),
    ]],
};

static NAMED: Shape = Shape { name: "NamedTool", groups: &[&[required("name", Text, "the tool's name")]] };

static ALLOWED: Shape = Shape { name: "AllowedTools", groups: &[ALLOWED_TOOLS] };

/// A choice among some of the tools; the API of responses has it beside its type.
pub(crate) static ALLOWED_TOOLS: &[Field] = &[
    field("mode", Word(&["auto", "required"]), "whether one of them must be called"),
    field("tools", List(&Object(&ALLOWED_TOOL)), "those that may be called"),
];

static ALLOWED_TOOL: Shape = Shape {
    name: "AllowedTool",
    groups: &[&[
        field("type", Text, "function, or the kind of a tool that is set aside"),
        field("function", Object(&NAMED), "the tool"),
        field("name", Text, "its name, where there is no function"),
        field("server_label", Text, "of a tool that is set aside: which"),
    ]],
};

static TOOL: Shape = Shape {
    name: "Tool",
    groups: &[&[
        required("type", Word(&["function"]), "other tools are for servers that run them"),
        required("function", Object(&FUNCTION), "the tool"),
        field("strict", Boolean, "whether its arguments are held to their schema"),
    ]],
};

static FUNCTION: Shape =
    Shape { name: "Function", groups: &[&[required("name", Text, "the tool's name")], OF_A_FUNCTION] };

/// What is said of a tool beside its name; the API of responses has these beside its type.
pub(crate) static OF_A_FUNCTION: &[Field] = &[
    field("description", Text, "what it does, for the model"),
    field("parameters", Map, "the schema of its arguments"),
    field("strict", Boolean, "whether they are held to it"),
];

static THINKING: &[Field] = &[
    field("include_reasoning", Boolean, "whether thoughts are shown"),
    field("reasoning_effort", Text, "how much is thought, where the model's template has a switch"),
    field("reasoning", Object(&REASONING), "the same in OpenRouter's words"),
];

/// How much is thought, in others' words than OpenAI's.
pub(crate) static SWITCHES: &[Field] = &[
    field("thinking_token_budget", Integer, "most tokens of a thought; 0: none, -1: any"),
    field("thinking_budget", Integer, "the same in Qwen's words"),
    field("enable_thinking", Boolean, "whether is thought, in Qwen's words"),
    field("thinking", Object(&THINKING_TYPE), "whether is thought, in the words of DeepSeek and GLM"),
    field("think", Either(&[Boolean, Word(&["none", "low", "medium", "high"])]), "the same in Ollama's words"),
];

static REASONING: Shape = Shape {
    name: "ReasoningWish",
    groups: &[&[
        field("effort", Text, "how much is thought"),
        field("enabled", Boolean, "whether is thought"),
        field("max_tokens", Integer, "most tokens of a thought"),
        field("exclude", Boolean, "whether thoughts are left out"),
    ]],
};

static THINKING_TYPE: Shape = Shape {
    name: "ThinkingType",
    groups: &[&[
        required("type", Word(&["enabled", "disabled", "auto", "adaptive"]), "whether"),
        field("budget_tokens", Integer, "most tokens of a thought"),
    ]],
};

pub(crate) static TOKENIZE_TEXT: Shape = Shape {
    name: "TokenizeTextRequest",
    groups: &[
        &[required("prompt", Text, "a text"), missing("messages", "a text or a conversation, not both")],
        TOKENIZE,
    ],
};

pub(crate) static TOKENIZE_CHAT: Shape =
    Shape { name: "TokenizeChatRequest", groups: &[CONVERSATION, CONTINUED, TOOLS, NO_PROMPT, TOKENIZE] };

static NO_PROMPT: &[Field] = &[missing("prompt", "a text or a conversation, not both")];

static TOKENIZE: &[Field] = &[
    MODEL,
    field("return_token_strs", Boolean, "the texts of tokens beside their ids"),
    field("add_special_tokens", Boolean, "whether the tokenizer's own marks are added"),
];

pub(crate) static DETOKENIZE: Shape =
    Shape { name: "DetokenizeRequest", groups: &[&[MODEL, required("tokens", List(&Integer), "the ids of tokens")]] };

/// A conversation that is rendered and not answered.
pub(crate) static TEMPLATE: Shape = Shape {
    name: "ApplyTemplateRequest",
    groups: &[
        &[MODEL, only("continue_final_message", Is(false), "a text that is cut is told by POST /tokenize, as tokens")],
        CONVERSATION,
        TOOLS,
    ],
};

/// A file of requests, begun.
pub(crate) static BATCH: Shape = Shape {
    name: "BatchRequest",
    groups: &[&[
        required("input_file_id", Text, "a file of requests, whose purpose is 'batch'"),
        required("endpoint", Text, "the route that all of them are for"),
        only("completion_window", Constant::Text("24h"), "a batch runs until it is over: send '24h'"),
        field("metadata", Map, "labels, which the batch shows"),
    ]],
};

/// An adapter that comes or goes.
pub(crate) static LOAD_ADAPTER: Shape = Shape {
    name: "LoadAdapterRequest",
    groups: &[&[
        required("lora_name", Text, "what requests call it"),
        required("lora_path", Text, "its directory, on the server"),
        only("load_inplace", Is(false), "unload the adapter first: requests may have it"),
    ]],
};

pub(crate) static UNLOAD_ADAPTER: Shape = Shape {
    name: "UnloadAdapterRequest",
    groups: &[&[
        required("lora_name", Text, "what requests call it"),
        missing("lora_int_id", "adapters go by their names here"),
    ]],
};

pub(crate) static ROLE: Shape = Shape {
    name: "RoleRequest",
    groups: &[&[required("role", Word(&["prefill", "decode", "both"]), "whose requests are taken from now on")]],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_names_every_field_that_is_here() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/serve.md");
        let guide = std::fs::read_to_string(path).expect("the guide exists");
        let is_here = |field: &&Field| !matches!(field.kind, Kind::Only(_) | Kind::Missing);
        let fields = CHAT.fields().chain(COMPLETION.fields()).filter(is_here);
        let named = |name: &str| if name.starts_with("guided_") { "guided_*".to_owned() } else { name.to_owned() };
        let lost: Vec<String> =
            fields.map(|field| named(field.name)).filter(|name| !guide.contains(&format!("`{name}`"))).collect();
        assert!(lost.is_empty(), "docs/guide/serve.md does not name {lost:?}");
    }
}
