//! The model families, their names, and their detection from a chat template.

use crate::Tool;
use crate::char_stream::{CharStream, Read};
use crate::envelope::{self, Envelope};
use crate::gemma::{self, Gemma};
use crate::harmony;
use crate::named::{self, Named};
use crate::python::{self, Python};
use crate::tags::{self, Tags};

/// Tool-call format of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls(pub(crate) Syntax);

/// Formats, grouped by the code that parses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syntax {
    Envelope(&'static Envelope),
    /// With the list of older versions.
    Mistral(&'static Envelope),
    Named(&'static Named),
    Tags(&'static Tags),
    Python(&'static Python),
    Gemma(&'static Gemma),
    Harmony,
}

const HERMES: Envelope = Envelope {
    opens: &["<tool_call>"],
    bare: false,
    closes: &["</tool_call>"],
    between: &[],
    is_list: false,
    arguments: "arguments",
};
const LLAMA: Envelope = Envelope {
    opens: &["<|python_tag|>"],
    bare: true,
    closes: &[],
    between: &[";"],
    arguments: "parameters",
    ..HERMES
};
const GRANITE: Envelope =
    Envelope { opens: &["<|tool_call|>", "<tool_call>"], bare: true, closes: &[], is_list: true, ..HERMES };
const PHI: Envelope =
    Envelope { opens: &["functools", "<|tool_call|>"], closes: &["<|/tool_call|>"], is_list: true, ..HERMES };
const JAMBA: Envelope = Envelope { opens: &["<tool_calls>"], closes: &["</tool_calls>"], is_list: true, ..HERMES };
const NEMOTRON: Envelope = Envelope { opens: &["<TOOLCALL>"], closes: &["</TOOLCALL>"], is_list: true, ..HERMES };
const GRANITE_20B: Envelope = Envelope { opens: &["<function_call>"], closes: &[], ..HERMES };
const JSON: Envelope = Envelope { opens: &[], bare: true, closes: &[], ..HERMES };
const INTERN: Envelope = Envelope {
    opens: &["<|action_start|><|plugin|>", "<|action_start|> <|plugin|>", "<|action_start|>\n<|plugin|>"],
    closes: &["<|action_end|>"],
    arguments: "parameters",
    ..HERMES
};
const LONGCAT: Envelope = Envelope { opens: &["<longcat_tool_call>"], closes: &["</longcat_tool_call>"], ..HERMES };
const MISTRAL: Envelope = Envelope { opens: &["[TOOL_CALLS]"], closes: &[], is_list: true, ..HERMES };

const DEEPSEEK_V3: Named = Named {
    opens: ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
    prefix: &["function<｜tool▁sep｜>"],
    is_prefix_free: false,
    is_numbered: false,
    middle: &["```json"],
    behind: &[&["```"], &["<｜tool▁call▁end｜>"]],
    close: "<｜tool▁calls▁end｜>",
    marks: &[
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ],
};
const DEEPSEEK_V31: Named =
    Named { prefix: &[], middle: &["<｜tool▁sep｜>"], behind: &[&["<｜tool▁call▁end｜>"]], ..DEEPSEEK_V3 };
const KIMI: Named = Named {
    opens: ["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
    prefix: &["functions."],
    is_prefix_free: true,
    is_numbered: true,
    middle: &["<|tool_call_argument_begin|>"],
    behind: &[&["<|tool_call_end|>"]],
    close: "<|tool_calls_section_end|>",
    marks: &[
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ],
};

const QWEN: Tags = Tags {
    opens: &["<tool_call>", "<function="],
    name: Some(["<function=", ">"]),
    key: ["<parameter=", ">"],
    value: ["", "</parameter>"],
    value_on_lines: true,
    end: &["</function>", "</tool_call>"],
    is_group: false,
    close: "</tool_call>",
};
const SEED: Tags = Tags {
    opens: &["<seed:tool_call>", "<function="],
    end: &["</function>", "</seed:tool_call>"],
    close: "</seed:tool_call>",
    ..QWEN
};
const MINIMAX: Tags = Tags {
    opens: &["<minimax:tool_call>", "<invoke name=\""],
    name: Some(["<invoke name=\"", "\">"]),
    key: ["<parameter name=\"", "\">"],
    end: &["</invoke>"],
    is_group: true,
    close: "</minimax:tool_call>",
    ..QWEN
};
const GLM: Tags = Tags {
    opens: &["<tool_call>"],
    name: None,
    key: ["<arg_key>", "</arg_key>"],
    value: ["<arg_value>", "</arg_value>"],
    value_on_lines: false,
    end: &["</tool_call>"],
    is_group: false,
    close: "</tool_call>",
};

const PYTHON: Python = Python { opens: &[], bare: true, lines: false, closes: &[] };
const LLAMA_4: Python = Python { opens: &["<|python_start|>"], bare: true, lines: false, closes: &["<|python_end|>"] };
const LFM: Python =
    Python { opens: &["<|tool_call_start|>"], bare: false, lines: false, closes: &["<|tool_call_end|>"] };
const OLMO: Python = Python { opens: &["<function_calls>"], bare: false, lines: true, closes: &["</function_calls>"] };
const TOOL_CODE: Python = Python { opens: &["```tool_code"], bare: false, lines: true, closes: &["```"] };

const FUNCTION_GEMMA: Gemma =
    Gemma { opens: &["<start_function_call>"], quote: "<escape>", closes: &["<end_function_call>"] };
const GEMMA_4: Gemma = Gemma { opens: &["<|tool_call>"], quote: "<|\"|>", closes: &["<tool_call|>"] };

/// Names and formats. Where vLLM has the name it means the same format.
///
/// After the first 31 come aliases: names of SGLang, and of vLLM for models that share another one's format. Other
/// parsers of vLLM and SGLang have formats that are not supported here.
const CALLS: [(&str, Syntax); 48] = [
    ("hermes", Syntax::Envelope(&HERMES)),
    ("granite4", Syntax::Envelope(&HERMES)),
    ("llama3_json", Syntax::Envelope(&LLAMA)),
    ("llama4_json", Syntax::Envelope(&LLAMA)),
    ("mistral", Syntax::Mistral(&MISTRAL)),
    ("qwen3_coder", Syntax::Tags(&QWEN)),
    ("qwen3_xml", Syntax::Tags(&QWEN)),
    ("mimo", Syntax::Tags(&QWEN)),
    ("openai", Syntax::Harmony),
    ("deepseek_v3", Syntax::Named(&DEEPSEEK_V3)),
    ("deepseek_v31", Syntax::Named(&DEEPSEEK_V31)),
    ("glm45", Syntax::Tags(&GLM)),
    ("glm47", Syntax::Tags(&GLM)),
    ("granite", Syntax::Envelope(&GRANITE)),
    ("granite-20b-fc", Syntax::Envelope(&GRANITE_20B)),
    ("functiongemma", Syntax::Gemma(&FUNCTION_GEMMA)),
    ("gemma4", Syntax::Gemma(&GEMMA_4)),
    ("gemma", Syntax::Python(&TOOL_CODE)),
    ("phi4_mini_json", Syntax::Envelope(&PHI)),
    ("lfm2", Syntax::Python(&LFM)),
    ("llama4_pythonic", Syntax::Python(&LLAMA_4)),
    ("pythonic", Syntax::Python(&PYTHON)),
    ("olmo3", Syntax::Python(&OLMO)),
    ("kimi_k2", Syntax::Named(&KIMI)),
    ("minimax_m2", Syntax::Tags(&MINIMAX)),
    ("seed_oss", Syntax::Tags(&SEED)),
    ("jamba", Syntax::Envelope(&JAMBA)),
    ("hunyuan_a13b", Syntax::Envelope(&JAMBA)),
    ("nemotron_json", Syntax::Envelope(&NEMOTRON)),
    ("harmony", Syntax::Harmony),
    ("json", Syntax::Envelope(&JSON)),
    ("xlam", Syntax::Envelope(&JSON)),
    ("internlm", Syntax::Envelope(&INTERN)),
    ("interns1", Syntax::Envelope(&INTERN)),
    ("longcat", Syntax::Envelope(&LONGCAT)),
    ("ernie45", Syntax::Envelope(&HERMES)),
    ("qwen", Syntax::Envelope(&HERMES)),
    ("qwen25", Syntax::Envelope(&HERMES)),
    ("step3p5", Syntax::Tags(&QWEN)),
    ("llama3", Syntax::Envelope(&LLAMA)),
    ("deepseekv3", Syntax::Named(&DEEPSEEK_V3)),
    ("deepseekv31", Syntax::Named(&DEEPSEEK_V31)),
    ("glm", Syntax::Tags(&GLM)),
    ("glm4_moe", Syntax::Tags(&GLM)),
    ("gpt-oss", Syntax::Harmony),
    ("gpt_oss", Syntax::Harmony),
    ("minimax-m2", Syntax::Tags(&MINIMAX)),
    ("hunyuan", Syntax::Envelope(&JAMBA)),
];

/// The first halves of [`CALLS`] and [`THOUGHTS`].
const fn names<const N: usize, T: Copy>(table: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = table[at].0;
        at += 1;
    }
    names
}

impl Calls {
    /// Names that [`Calls::named`] accepts: those of vLLM and SGLang for `--tool-call-parser` where the format is the
    /// same, and `json` (an answer that is one call or a list of them), `gemma` (Gemma 3's `tool_code` blocks) and
    /// `harmony` (`openai`).
    pub const NAMES: &[&str] = &names(&CALLS);

    /// The format with a name of [`Calls::NAMES`].
    pub fn named(name: &str) -> Option<Calls> {
        CALLS.iter().find(|(known, _)| *known == name).map(|&(_, syntax)| Calls(syntax))
    }

    /// The first of its names.
    pub fn name(self) -> &'static str {
        CALLS.iter().find(|(_, syntax)| *syntax == self.0).map_or("", |(name, _)| name)
    }

    pub(crate) fn is_harmony(self) -> bool {
        self.0 == Syntax::Harmony
    }

    /// Marks that open a call anywhere.
    pub(crate) fn opens(self) -> &'static [&'static str] {
        match self.0 {
            Syntax::Envelope(form) | Syntax::Mistral(form) => form.opens,
            Syntax::Named(form) => &form.opens,
            Syntax::Tags(form) => form.opens,
            Syntax::Python(form) => form.opens,
            Syntax::Gemma(form) => form.opens,
            Syntax::Harmony => &[],
        }
    }

    /// Marks that open a call only at the start of an answer.
    pub(crate) fn bare(self) -> &'static [&'static str] {
        match self.0 {
            Syntax::Envelope(form) if form.bare => &envelope::BARE,
            Syntax::Python(form) if form.bare => &python::BARE,
            _ => &[],
        }
    }

    /// See [`crate::Dialect::marks`].
    pub(crate) fn marks(self) -> Vec<&'static str> {
        match self.0 {
            // Two tokens.
            Syntax::Envelope(&INTERN) => [&["<|action_start|>", "<|plugin|>"], INTERN.closes].concat(),
            Syntax::Envelope(form) => [form.opens, form.closes].concat(),
            Syntax::Mistral(form) => [form.opens, &["[ARGS]", "[CALL_ID]"]].concat(),
            Syntax::Named(form) => form.marks.to_vec(),
            Syntax::Tags(form) => {
                let name = form.name.map_or("", |name| name[0]);
                let around = [name, form.key[0], form.key[1], form.value[0], form.value[1], form.close];
                [form.opens, &around, form.end].concat()
            }
            Syntax::Python(form) => [form.opens, form.closes].concat(),
            Syntax::Gemma(form) => [form.opens, &[form.quote], form.closes].concat(),
            Syntax::Harmony => harmony::MARKS.to_vec(),
        }
    }

    /// Parses the text after a mark of `opens` or `bare`.
    pub(crate) async fn read(self, stream: &CharStream, tools: &[Tool], mark: &'static str) -> Read<()> {
        match self.0 {
            Syntax::Envelope(form) => envelope::read(stream, tools, form, mark).await,
            Syntax::Mistral(form) => named::mistral(stream, tools, form, mark).await,
            Syntax::Named(form) => named::read(stream, tools, form, mark).await,
            Syntax::Tags(form) => tags::read(stream, tools, form, mark).await,
            Syntax::Python(form) => python::read(stream, tools, form, mark).await,
            Syntax::Gemma(form) => gemma::read(stream, tools, form).await,
            // No marks of calls: `harmony::read` parses its messages.
            Syntax::Harmony => Ok(()),
        }
    }

    pub(crate) fn of_template(sources: &str, tokens: &[&str]) -> Option<Calls> {
        let shows = |mark: &str| sources.contains(mark);
        let has = |mark: &str| tokens.contains(&mark);
        let name = match () {
            () if shows("<|channel|>") && shows("<|message|>") => "openai",
            () if shows("<|tool_calls_section_begin|>") => "kimi_k2",
            () if shows("<｜tool▁calls▁begin｜>") && shows("```json") => "deepseek_v3",
            () if shows("<｜tool▁calls▁begin｜>") => "deepseek_v31",
            () if shows("[TOOL_CALLS]") => "mistral",
            () if shows("<minimax:tool_call>") => "minimax_m2",
            () if shows("<seed:tool_call>") => "seed_oss",
            () if shows("<function=") && shows("<parameter=") => "qwen3_coder",
            () if shows("<arg_key>") => "glm45",
            () if shows("<start_function_call>") => "functiongemma",
            () if shows("<|tool_call>") && shows("<tool_call|>") => "gemma4",
            () if shows("<|tool_call_start|>") => "lfm2",
            () if shows("<function_calls>") => "olmo3",
            () if shows("```tool_code") => "gemma",
            () if shows("functools[") => "phi4_mini_json",
            () if shows("<function_call>") => "granite-20b-fc",
            // The wording of Llama's authors for lists of calls.
            () if shows("[func_name1(") && shows("<|header_start|>") => "llama4_pythonic",
            () if shows("[func_name1(") => "pythonic",
            () if shows("<|python_start|>") => "llama4_pythonic",
            () if shows("<|python_tag|>") => "llama3_json",
            () if shows("<|tool|>") && shows("<|/tool|>") => "phi4_mini_json",
            () if shows("<|tool_call|>") => "granite",
            () if shows("<TOOLCALL>") => "nemotron_json",
            () if shows("<tool_calls>") => "jamba",
            () if shows("<tool_call>") => "hermes",
            // Llama's format, as a template without the mark writes a call.
            () if shows("{\"name\": \"") && shows("\"parameters\": ") => "llama3_json",
            () if has("[TOOL_CALLS]") => "mistral",
            () if has("<|python_tag|>") => "llama3_json",
            () if has("<|tool_call_start|>") => "lfm2",
            () => return None,
        };
        Calls::named(name)
    }
}

/// Reasoning format of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thoughts {
    opens: &'static [&'static str],
    closes: &'static [&'static str],
    /// Closes a thought from outside: no line break before the mark, which would belong to the thought.
    closing: &'static str,
    /// Whether an answer begins as a thought even if the template does not open one.
    is_assumed: bool,
}

const THINK: Thoughts =
    Thoughts { opens: &["<think>"], closes: &["</think>"], closing: "</think>\n\n", is_assumed: false };
const ASSUMED: Thoughts = Thoughts { is_assumed: true, ..THINK };
const MISTRAL_THINK: Thoughts =
    Thoughts { opens: &["[THINK]"], closes: &["[/THINK]"], closing: "[/THINK]", is_assumed: false };
const SEED_THINK: Thoughts =
    Thoughts { opens: &["<seed:think>"], closes: &["</seed:think>"], closing: "</seed:think>", is_assumed: false };
const COHERE: Thoughts = Thoughts {
    opens: &["<|START_THINKING|>"],
    closes: &["<|END_THINKING|>"],
    closing: "<|END_THINKING|>",
    is_assumed: false,
};
const GEMMA_THINK: Thoughts =
    Thoughts { opens: &["<|channel>thought\n"], closes: &["<channel|>"], closing: "<channel|>", is_assumed: false };
/// Phrases instead of marks, of Granite 3.2.
const GRANITE_THINK: Thoughts = Thoughts {
    opens: &["Here is my thought process:", "Here's my thought process:"],
    closes: &["Here is my response:", "Here's my response:"],
    closing: "Here is my response:\n",
    is_assumed: false,
};
const HARMONY: Thoughts = Thoughts {
    opens: &[harmony::THOUGHT],
    closes: &harmony::THOUGHT_ENDS,
    closing: harmony::CLOSING,
    is_assumed: false,
};

/// After the first 18 come aliases: see [`CALLS`].
const THOUGHTS: [(&str, Thoughts); 32] = [
    ("qwen3", THINK),
    ("deepseek_v3", THINK),
    ("glm45", THINK),
    ("glm47", THINK),
    ("ernie45", THINK),
    ("holo2", THINK),
    ("kimi_k2", THINK),
    ("mimo", THINK),
    ("nemotron_v3", THINK),
    ("olmo3", THINK),
    ("deepseek_r1", ASSUMED),
    ("minimax_m2", ASSUMED),
    ("mistral", MISTRAL_THINK),
    ("seed_oss", SEED_THINK),
    ("cohere_command3", COHERE),
    ("gemma4", GEMMA_THINK),
    ("granite", GRANITE_THINK),
    ("openai_gptoss", HARMONY),
    ("deepseek_v4", THINK),
    ("cohere_command4", COHERE),
    ("step3", ASSUMED),
    ("step3p5", THINK),
    ("deepseek-r1", ASSUMED),
    ("deepseek-v3", THINK),
    ("deepseek-v4", THINK),
    ("glm", THINK),
    ("gpt-oss", HARMONY),
    ("interns1", THINK),
    ("minimax", ASSUMED),
    ("minimax-m2", ASSUMED),
    ("nemotron_3", THINK),
    ("qwen3-thinking", ASSUMED),
];

impl Thoughts {
    /// Names that [`Thoughts::named`] accepts: those of vLLM and SGLang for `--reasoning-parser`.
    pub const NAMES: &[&str] = &names(&THOUGHTS);

    /// The format with a name of [`Thoughts::NAMES`].
    pub fn named(name: &str) -> Option<Thoughts> {
        THOUGHTS.iter().find(|(known, _)| *known == name).map(|&(_, thoughts)| thoughts)
    }

    /// The first of its names.
    pub fn name(self) -> &'static str {
        THOUGHTS.iter().find(|(_, thoughts)| *thoughts == self).map_or("", |(name, _)| name)
    }

    /// See [`crate::ThoughtMarks::closing`].
    pub fn closing(self) -> &'static str {
        self.closing
    }

    /// See [`crate::ThoughtMarks::yielding`].
    pub(crate) fn yielding(self) -> &'static str {
        if self.is_harmony() { harmony::YIELDING } else { self.closing }
    }

    pub(crate) fn opens(self) -> &'static [&'static str] {
        self.opens
    }

    pub(crate) fn closes(self) -> &'static [&'static str] {
        self.closes
    }

    pub(crate) fn is_assumed(self) -> bool {
        self.is_assumed
    }

    pub(crate) fn is_harmony(self) -> bool {
        self == HARMONY
    }

    /// See [`crate::Dialect::marks`].
    pub(crate) fn marks(self) -> Vec<&'static str> {
        match self {
            HARMONY => harmony::MARKS.to_vec(),
            GRANITE_THINK => Vec::new(),
            // The word after the mark is text.
            GEMMA_THINK => vec!["<|channel>", "<channel|>"],
            _ => [self.opens, self.closes].concat(),
        }
    }

    /// Marks to filter from text after a thought that was closed from outside.
    pub(crate) fn filtered_marks(self) -> Vec<&'static str> {
        match self {
            HARMONY => harmony::FILTERED.to_vec(),
            _ => [self.opens.to_vec(), self.closes.to_vec(), self.marks()].concat(),
        }
    }

    pub(crate) fn of_template(sources: &str, tokens: &[&str]) -> Option<Thoughts> {
        let shows = |mark: &str| sources.contains(mark);
        let has = |mark: &str| tokens.contains(&mark);
        Some(match () {
            () if shows("<|channel|>") && shows("<|message|>") => HARMONY,
            () if shows("[THINK]") => MISTRAL_THINK,
            () if shows("<seed:think>") => SEED_THINK,
            () if shows("<|START_THINKING|>") => COHERE,
            () if shows("<|channel>") && shows("<channel|>") => GEMMA_THINK,
            () if shows("<think>") || shows("</think>") => THINK,
            () if shows("Here is my thought process:") => GRANITE_THINK,
            () if has("[THINK]") => MISTRAL_THINK,
            () if has("<think>") && has("</think>") => THINK,
            () => return None,
        })
    }
}
