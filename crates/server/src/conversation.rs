//! A conversation with a model that may think and call tools, whichever API it came by: what the model is told, what it
//! must write, and how its answer is parsed.
//!
//! ```text
//! messages, tools, choice --template--> prompt -> tokens
//!                  |                      |
//!                  |                      +--> is a thought open at its end?
//!                  +--> Dialect::grammar ---> Rule: what must be written, if a call or a form is asked for
//!                  +--> Dialect::thought ---> Rule: where a thought has to end, if it has a budget
//!                  +--> OutputParser -------> how the answer is told apart
//! ```

use std::sync::Arc;

use dialect::{Calls, Choice, Dialect, Form, Thoughts, Tool};
use engine::{ModelInfo, Prompt, RawRequest, Rule, ThoughtBudget};
use serde_json::{Map, Value, json};
use transport::error::{ApiError, ApiResult};
use transport::fields::wrong_type;

use crate::answers::{Adjustments, OutputParser};

/// Tokens at the end of a prompt that are looked at for a thought that has begun.
const PROMPT_END_TOKENS: usize = 256;

/// How the model that is served thinks and calls tools.
pub(crate) struct ToolFormat {
    pub(crate) dialect: Dialect,
    /// Special tokens that are marks of it.
    shown: Arc<[u32]>,
    /// The template's own word for whether to think, if it has one.
    switch: Option<&'static str>,
    has_reasoning_effort: bool,
    /// What the server's own variables of the template say of that.
    by_default: Option<bool>,
}

/// Words of templates for whether to think.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Which parsers were named, if any. `none`: nothing is told apart.
#[derive(Clone, Debug, Default)]
pub struct ParserOptions {
    /// One of [`ParserOptions::tool_call_parsers`], or `none`; without it the chat template shows which.
    pub tool_call_parser: Option<String>,
    /// One of [`ParserOptions::reasoning_parsers`], or `none`.
    pub reasoning_parser: Option<String>,
}

impl ParserOptions {
    /// Names of how calls are written.
    pub fn tool_call_parsers() -> &'static [&'static str] {
        Calls::NAMES
    }

    /// Names of how thoughts are written.
    pub fn reasoning_parsers() -> &'static [&'static str] {
        Thoughts::NAMES
    }
}

impl ToolFormat {
    pub(crate) fn of(model: &ModelInfo, options: &ParserOptions) -> ToolFormat {
        let source = model.chat_template.as_ref().map(|template| template.source()).unwrap_or_default();
        let tokenizer = model.tokenizer.as_ref();
        let added = tokenizer.map(|tokenizer| tokenizer.added_tokens()).unwrap_or_default();
        let parsers = [&options.reasoning_parser, &options.tool_call_parser].map(|name| name.as_deref());
        let dialect = Dialect::of_template(&source, &added).with_parsers(parsers[0], parsers[1]);
        let ids = dialect.marks().into_iter().filter_map(|mark| tokenizer?.token_id(mark));
        let shown = ids.filter(|&id| tokenizer.is_some_and(|tokenizer| tokenizer.is_special(id))).collect();
        ToolFormat {
            dialect,
            shown,
            switch: SWITCHES.into_iter().find(|word| has_variable(&source, word)),
            has_reasoning_effort: source.contains("reasoning_effort"),
            by_default: model.chat_template.as_ref().and_then(|template| said(template.variables())),
        }
    }

    /// Whether the model may think.
    pub(crate) fn thinks(&self) -> bool {
        self.dialect.thoughts.is_some()
    }

    /// Settles in the template's words whether is to be thought, and tells the most tokens of a thought: 0 where it is
    /// switched off, by whichever word. The template's own words in a request count most, the server's least.
    pub(crate) fn tell(&self, raw: &mut RawRequest, thinking: Thinking) -> Option<u32> {
        let mut nowhere = Map::new();
        let kwargs = match &mut raw.prompt {
            Prompt::Chat(chat) => &mut chat.template_kwargs,
            _ => &mut nowhere,
        };
        let is_on = said(kwargs).or(thinking.is_on);
        let is_off = thinking.tokens == Some(0) || is_on.or(self.by_default) == Some(false);
        if let Some(switch) = self.switch.filter(|_| is_off || is_on.is_some()) {
            kwargs.entry(switch).or_insert((!is_off).into());
        }
        if is_off { Some(0) } else { thinking.tokens }
    }

    /// Renders the prompt, and settles how its answer is parsed and what it must look like. `None`: there is nothing to
    /// parse.
    pub(crate) fn settle(
        &self,
        raw: &mut RawRequest,
        tool_options: ToolOptions,
        model: &ModelInfo,
    ) -> ApiResult<Option<OutputParser>> {
        let Dialect { thoughts, calls, .. } = &self.dialect;
        let ToolOptions { tools, choice, parallel, thinking, is_searched } = tool_options;
        let thought_tokens = self.tell(raw, thinking);
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
        raw.messages = model.messages_in(raw, &tokens);
        raw.prompt = Prompt::Tokens(tokens.into_iter().map(i64::from).collect());
        raw.shown_tokens = self.shown.clone();
        // A call that must be made is this turn, and the form is the next one's.
        let must_call = matches!(choice, ToolChoice::Required | ToolChoice::Named(_));
        let rule = raw.rule.take().filter(|_| !must_call);
        let is_exact = rule.as_ref().is_some_and(may_begin_with_space);
        let form = rule.as_ref().map(|_| Form { rule: "@answer", is_exact });
        let choice = match (&choice, form) {
            (ToolChoice::Required, _) => Choice::Required,
            (ToolChoice::Named(name), _) => Choice::Named(name),
            (ToolChoice::Auto | ToolChoice::Never, Some(form)) => Choice::Or(form),
            (ToolChoice::Auto | ToolChoice::Never, None) => Choice::Auto,
        };
        let mut dialect = self.dialect.clone();
        if thought_tokens == Some(0) {
            dialect = dialect.thoughtless();
        }
        if rule.is_some() {
            dialect = dialect.formed();
        }
        let calls = dialect.grammar(&tools, choice, parallel, &prompt_end);
        let thought = form.filter(|_| calls.is_none()).and_then(|form| dialect.behind_thought(&prompt_end, form));
        raw.rule = match (calls.or(thought), rule) {
            (Some(thought), Some(rule)) => Some(Rule::Behind { thought, rule: Box::new(rule) }),
            (Some(calls), None) => Some(Rule::Lark(calls)),
            (None, rule) => rule,
        };
        let shows_thoughts = thinking.shown && thought_tokens != Some(0);
        // Nothing closes the thoughts of a beam search.
        let mut closed_behind = None;
        if let Some(tokens) = thought_tokens.filter(|_| !is_searched && !dialect.is_thoughtless_form(&prompt_end))
            && let Some(thought) = self.budget(tokens, &prompt_end, !tools.is_empty(), is_exact, model)?
        {
            raw.rule = Some(Rule::Budget { thought, rule: raw.rule.take().map(Box::new) });
            closed_behind = Some(tokens);
        }
        Ok(Some(OutputParser { dialect, tools, prompt_end, shows_thoughts, thought_tokens: closed_behind, is_exact }))
    }

    /// Limits a thought to this number of tokens, closed as its family closes it. `None`: the model does not think.
    fn budget(
        &self,
        tokens: u32,
        prompt_end: &str,
        calls: bool,
        is_exact: bool,
        model: &ModelInfo,
    ) -> ApiResult<Option<ThoughtBudget>> {
        let (Some(thought), Some(tokenizer)) = (self.dialect.thought(prompt_end), &model.tokenizer) else {
            return Ok(None);
        };
        let written = |text: &str| {
            // What stands behind the mark would be part of the form.
            let text = if is_exact { text.trim_end() } else { text };
            tokenizer.encode(text, false).map_err(|_| ApiError::internal())
        };
        let owned = |marks: &[&str]| marks.iter().map(|&mark| mark.to_owned()).collect();
        Ok(Some(ThoughtBudget {
            tokens,
            is_open: thought.is_open,
            opens: owned(thought.opens),
            opens_anywhere: thought.opens_anywhere,
            closes: owned(thought.closes),
            closing: written(if calls { thought.yielding } else { thought.closing })?,
            closing_again: written(thought.closing)?,
        }))
    }
}

/// A thought in a message: each template has its own word for it.
pub(crate) fn insert_thought(extra: &mut Map<String, Value>, thought: &str) {
    for name in ["reasoning_content", "reasoning", "thinking"] {
        extra.insert(name.to_owned(), thought.into());
    }
}

/// A call as templates read it.
pub(crate) fn told_call(id: Option<String>, name: &str, arguments: &Value) -> Value {
    let mut call = json!({"type": "function", "function": {"name": name, "arguments": arguments}});
    if let Some(id) = id {
        call["id"] = id.into();
    }
    call
}

/// Whether a template reads a variable of this name, and not only a word that has it in it.
fn has_variable(source: &str, name: &str) -> bool {
    let is_of_a_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '\'' | '"' | '-' | '<' | '/');
    let ends = |rest: &str| rest.starts_with(" is ") || rest.starts_with(" %}") || rest.starts_with(" -%}");
    source.match_indices(name).any(|(at, _)| {
        let (before, behind) = (&source[..at], &source[at + name.len()..]);
        // Of a word of English more is asked than of one that is none.
        let is_alone = !before.ends_with(is_of_a_name) && (name.contains('_') || ends(behind));
        is_alone && (name.contains('_') || ["if ", "not ", "and ", "or "].iter().any(|word| before.ends_with(word)))
    })
}

/// Whether to think, as variables of a template say it.
fn said(kwargs: &Map<String, Value>) -> Option<bool> {
    let switched = SWITCHES.iter().find_map(|name| kwargs.get(*name)?.as_bool());
    switched.or_else(|| (kwargs.get("reasoning_effort")? == "none").then_some(false))
}

/// Whether the texts of a rule may have white space at their head, as far as is known without compiling it.
fn may_begin_with_space(rule: &Rule) -> bool {
    match rule {
        Rule::JsonObject | Rule::JsonSchema(_) => false,
        Rule::Choice(texts) => texts.iter().any(|text| text.starts_with(char::is_whitespace)),
        Rule::Regex(_) | Rule::Lark(_) | Rule::Gbnf(_) => true,
        Rule::Behind { rule, .. } => may_begin_with_space(rule),
        Rule::Budget { rule, .. } | Rule::Tokens { rule, .. } => rule.as_deref().is_none_or(may_begin_with_space),
    }
}

/// What a request says of thoughts, by whichever field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thinking {
    /// Whether to think, if it is said.
    pub(crate) is_on: Option<bool>,
    /// Tokens after which a thought is closed; 0: there is none.
    pub(crate) tokens: Option<u32>,
    /// Whether thoughts are shown.
    pub(crate) shown: bool,
}

impl Default for Thinking {
    fn default() -> Thinking {
        Thinking { is_on: None, tokens: None, shown: true }
    }
}

impl Thinking {
    /// Another field says it too. One that switches thoughts off wins.
    pub(crate) fn switch(&mut self, is_on: bool) {
        self.is_on = Some(is_on && self.is_on != Some(false));
    }

    /// Another field says how much at most: the least counts.
    pub(crate) fn at_most(&mut self, tokens: Option<u32>) {
        self.tokens = [self.tokens, tokens].into_iter().flatten().min();
    }

    /// How much, in OpenAI's words: told to the template if it has words for it. False: there are none.
    pub(crate) fn effort(
        &mut self,
        tool_format: &ToolFormat,
        field: &str,
        effort: &str,
        kwargs: &mut Map<String, Value>,
    ) -> ApiResult<bool> {
        if !EFFORTS.contains(&effort) {
            let expected = format!("one of '{}'", EFFORTS.join("', '"));
            return Err(wrong_type(field, &expected));
        }
        self.switch(effort != "none");
        if tool_format.has_reasoning_effort {
            kwargs.insert("reasoning_effort".to_owned(), effort.into());
        }
        Ok(tool_format.has_reasoning_effort || tool_format.switch.is_some() || effort == "none" && tool_format.thinks())
    }
}

/// Most tokens of a thought, as a request says it: -1 is the same as nothing said, as in vLLM. What changes nothing
/// since the model does not think is a hint.
pub(crate) fn thought_tokens(
    field: &'static str,
    asked: Option<i64>,
    tool_format: &ToolFormat,
    adjustments: &mut Adjustments,
) -> ApiResult<Option<u32>> {
    match asked {
        None | Some(-1) => Ok(None),
        Some(_) if tool_format.dialect.thoughts.is_none() => {
            adjustments.hints.push(field);
            Ok(None)
        }
        Some(tokens) => {
            let tokens = u32::try_from(tokens);
            tokens.map(Some).map_err(|_| wrong_type(field, "a number of tokens, or -1 for no limit"))
        }
    }
}

/// Which calls are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// None: the model is not told of the tools.
    Never,
    /// At least one.
    Required,
    /// One of this tool.
    Named(String),
}

/// What a request wants of thoughts and calls.
pub(crate) struct ToolOptions {
    pub(crate) tools: Arc<[Tool]>,
    pub(crate) choice: ToolChoice,
    /// Several calls in one answer.
    pub(crate) parallel: bool,
    pub(crate) thinking: Thinking,
    /// A beam search, which holds its answers to nothing.
    pub(crate) is_searched: bool,
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
