//! A conversation with a model that may think and call tools, whichever API it came by: what the model is told, what it
//! must write, and how its answer is heard.
//!
//! ```text
//! messages, tools, choice --template--> prompt -> tokens
//!                  |                      |
//!                  |                      +--> is a thought open at its end?
//!                  +--> Dialect::grammar ---> Rule: what must be written, if a call is asked for
//!                  +--> Dialect::thought ---> Rule: where a thought has to end, if it has a budget
//!                  +--> Hearing ------------> how the answer is told apart
//! ```

use std::sync::Arc;

use dialect::{Calls, Choice, Dialect, Thoughts, Tool};
use engine::{ModelInfo, Prompt, RawRequest, Rule, ThoughtBudget};
use serde_json::{Map, Value};

use crate::answers::Hearing;
use crate::error::ApiError;
use crate::fields::wrong_type;
use crate::openai::params::Settled;
use crate::openai::tools::ToolChoice;

/// Tokens at the end of a prompt that are looked at for a thought that has begun.
const PROMPT_END_TOKENS: usize = 256;

/// How the model that is served thinks and calls tools.
pub(crate) struct Speech {
    pub(crate) dialect: Dialect,
    /// Special tokens that are marks of it.
    shown: Arc<[u32]>,
    /// Switches that the template has.
    pub(crate) has_enable_thinking: bool,
    pub(crate) has_reasoning_effort: bool,
}

/// Which parsers were named, if any. `none`: nothing is told apart.
#[derive(Clone, Debug, Default)]
pub struct SpeechOptions {
    /// One of [`SpeechOptions::tool_call_parsers`], or `none`; without it the chat template shows which.
    pub tool_call_parser: Option<String>,
    /// One of [`SpeechOptions::reasoning_parsers`], or `none`.
    pub reasoning_parser: Option<String>,
}

impl SpeechOptions {
    /// Names of how calls are written.
    pub fn tool_call_parsers() -> &'static [&'static str] {
        Calls::NAMES
    }

    /// Names of how thoughts are written.
    pub fn reasoning_parsers() -> &'static [&'static str] {
        Thoughts::NAMES
    }
}

impl Speech {
    pub(crate) fn of(model: &ModelInfo, options: &SpeechOptions) -> Speech {
        let source = model.chat_template.as_ref().map(|template| template.source()).unwrap_or_default();
        let tokenizer = model.tokenizer.as_ref();
        let added = tokenizer.map(|tokenizer| tokenizer.added_tokens()).unwrap_or_default();
        let mut dialect = Dialect::of_template(&source, &added);
        if let Some(name) = &options.tool_call_parser {
            dialect.calls = Calls::named(name);
        }
        if let Some(name) = &options.reasoning_parser {
            dialect.thoughts = Thoughts::named(name);
        }
        let ids = dialect.marks().into_iter().filter_map(|mark| tokenizer?.token_id(mark));
        let shown = ids.filter(|&id| tokenizer.is_some_and(|tokenizer| tokenizer.is_special(id))).collect();
        Speech {
            dialect,
            shown,
            has_enable_thinking: source.contains("enable_thinking"),
            has_reasoning_effort: source.contains("reasoning_effort"),
        }
    }

    /// Whether the model may think.
    pub(crate) fn thinks(&self) -> bool {
        self.dialect.thoughts.is_some()
    }

    /// Says in the template's words how much is to be thought. False: it has no words for it.
    pub(crate) fn effort(&self, field: &str, effort: &str, kwargs: &mut Map<String, Value>) -> Result<bool, ApiError> {
        if !EFFORTS.contains(&effort) {
            let expected = format!("one of '{}'", EFFORTS.join("', '"));
            return Err(wrong_type(field, &expected));
        }
        if self.has_reasoning_effort {
            kwargs.insert("reasoning_effort".to_owned(), effort.into());
        } else if self.has_enable_thinking {
            kwargs.insert("enable_thinking".to_owned(), (effort != "none").into());
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Renders the prompt, and settles how its answer is heard and what it must look like. `None`: there is nothing to
    /// listen for.
    pub(crate) fn settle(
        &self,
        raw: &mut RawRequest,
        wish: Wish<'_>,
        model: &ModelInfo,
    ) -> Result<Option<Hearing>, ApiError> {
        let Dialect { thoughts, calls, .. } = &self.dialect;
        let Wish { tools, choice, parallel, shows_thoughts, thought_tokens, rule_field } = wish;
        if !tools.is_empty() && calls.is_none() {
            let why = "this model's chat template shows no way to call tools: start the server with --tool-call-parser if \
                       the model has one";
            return Err(ApiError::unsupported("tools", why));
        }
        if thoughts.is_none() && tools.is_empty() {
            return Ok(None);
        }
        let tokens = model.encode(raw)?;
        let end = &tokens[tokens.len().saturating_sub(PROMPT_END_TOKENS)..];
        let prompt_end = model.tokenizer.as_ref().map(|tokenizer| tokenizer.decode(end, false)).unwrap_or_default();
        raw.prompt = Prompt::Tokens(tokens.into_iter().map(i64::from).collect());
        raw.shown_tokens = self.shown.clone();
        let choice = match &choice {
            ToolChoice::Required => Choice::Required,
            ToolChoice::Named(name) => Choice::Named(name),
            ToolChoice::Auto | ToolChoice::Never => Choice::Auto,
        };
        let calls = self.dialect.grammar(&tools, choice, parallel, &prompt_end);
        raw.rule = match (calls, raw.rule.take()) {
            (Some(_), Some(_)) => {
                let message = "A form of the answer and calls that must have one cannot both be asked for.";
                return Err(ApiError::bad_request(message).with_param(rule_field.unwrap_or("tool_choice")));
            }
            (Some(calls), None) => Some(Rule::Lark(calls)),
            (None, Some(rule)) => Some(match self.dialect.behind_thought(&prompt_end, "@answer") {
                Some(thought) => Rule::Behind { thought, rule: Box::new(rule) },
                None => rule,
            }),
            (None, None) => None,
        };
        if let Some(tokens) = thought_tokens
            && let Some(thought) = self.budget(tokens, &prompt_end, model)?
        {
            raw.rule = Some(Rule::Budget { thought, rule: raw.rule.take().map(Box::new) });
        }
        Ok(Some(Hearing { dialect: self.dialect.clone(), tools, prompt_end, shows_thoughts }))
    }

    /// A thought of so many tokens, closed as its family closes it. `None`: the model does not think.
    fn budget(&self, tokens: u32, prompt_end: &str, model: &ModelInfo) -> Result<Option<ThoughtBudget>, ApiError> {
        let (Some(thought), Some(tokenizer)) = (self.dialect.thought(prompt_end), &model.tokenizer) else {
            return Ok(None);
        };
        let closing = tokenizer.encode(thought.closing, false).map_err(|_| ApiError::internal())?;
        let owned = |marks: &[&str]| marks.iter().map(|&mark| mark.to_owned()).collect();
        let (opens, closes) = (owned(thought.opens), owned(thought.closes));
        Ok(Some(ThoughtBudget { tokens, is_open: thought.is_open, opens, closes, closing }))
    }
}

/// Most tokens of a thought, as a request says it: -1 is the same as nothing said, as in vLLM. What changes nothing
/// since the model does not think is a hint.
pub(crate) fn thought_tokens(
    field: &'static str,
    asked: Option<i64>,
    speech: &Speech,
    settled: &mut Settled,
) -> Result<Option<u32>, ApiError> {
    match asked {
        None | Some(-1) => Ok(None),
        Some(_) if speech.dialect.thoughts.is_none() => {
            settled.hints.push(field);
            Ok(None)
        }
        Some(tokens) => {
            let tokens = u32::try_from(tokens);
            tokens.map(Some).map_err(|_| wrong_type(field, "a number of tokens, or -1 for no limit"))
        }
    }
}

/// What a request wants of thoughts and calls.
pub(crate) struct Wish<'a> {
    pub(crate) tools: Arc<[Tool]>,
    pub(crate) choice: ToolChoice,
    /// Several calls in one answer.
    pub(crate) parallel: bool,
    pub(crate) shows_thoughts: bool,
    /// Tokens after which a thought is closed.
    pub(crate) thought_tokens: Option<u32>,
    /// The field that says what the answer must look like, if one does.
    pub(crate) rule_field: Option<&'a str>,
}

/// How much may be thought, in OpenAI's words.
const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];

/// The definition of a tool as templates read it.
pub(crate) fn definition(name: &str, description: Option<&str>, parameters: &Value) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    if let Some(description) = description {
        function.insert("description".to_owned(), description.into());
    }
    function.insert("parameters".to_owned(), parameters.clone());
    serde_json::json!({"type": "function", "function": function})
}
