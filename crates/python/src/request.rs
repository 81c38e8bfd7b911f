//! A request as Python gives it, before validation. Names are those of vLLM and of `RawRequest`.

use engine::sampling::{SamplingParams, options};
use engine::{Chat, ChatMessage, Prompt, RawRequest, Rule, ValidatedRequest, fit_schema};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A validated request, and what an answer needs of it. May be submitted more than once.
#[pyclass(frozen, module = "twostroke._twostroke")]
pub(crate) struct Request {
    pub(crate) validated: ValidatedRequest,
    /// Stop strings, as outputs number them.
    pub(crate) stop: Vec<String>,
    /// The prompt as text, unless it was given as tokens.
    pub(crate) text: Option<String>,
}

#[pymethods]
impl Request {
    /// The prompt as text; `None` where it was given as tokens.
    #[getter]
    fn prompt(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// The prompt as tokens.
    #[getter]
    fn prompt_token_ids(&self) -> Vec<u32> {
        self.validated.prompt().to_vec()
    }
}

/// A text, or token ids.
pub(crate) fn prompt(prompt: &Bound<'_, PyAny>) -> PyResult<Prompt> {
    match prompt.cast::<PyString>() {
        Ok(text) => Ok(Prompt::Text(extracted("prompt", text.as_any())?)),
        Err(_) => Ok(Prompt::Tokens(extracted("prompt_token_ids", prompt)?)),
    }
}

/// A request with what `params` (a `SamplingParams`) says.
pub(crate) fn raw(prompt: Prompt, params: &Bound<'_, PyAny>, rule: Option<(String, String)>) -> PyResult<RawRequest> {
    let logit_bias: Option<BTreeMap<i64, f64>> = field(params, "logit_bias")?;
    let mut sampling = SamplingParams::default();
    for option in options() {
        let value = match option.is_integer() {
            true => field::<Option<i64>>(params, option.name)?.map(|value| value as f64),
            false => field(params, option.name)?,
        };
        (option.ask)(&mut sampling, value);
    }
    Ok(RawRequest {
        n: field(params, "n")?,
        max_tokens: field(params, "max_tokens")?,
        // What does not fit ends as any answer does at the end of the context.
        cut_max_tokens: true,
        min_tokens: field(params, "min_tokens")?,
        sampling,
        logit_bias: logit_bias.unwrap_or_default().into_iter().collect(),
        seed: field(params, "seed")?,
        stop: texts(params, "stop")?,
        stop_token_ids: field::<Option<Vec<i64>>>(params, "stop_token_ids")?.unwrap_or_default(),
        bad_words: texts(params, "bad_words")?,
        allowed_token_ids: field(params, "allowed_token_ids")?,
        ignore_eos: field(params, "ignore_eos")?,
        include_stop_str_in_output: field(params, "include_stop_str_in_output")?,
        skip_special_tokens: field(params, "skip_special_tokens")?,
        logprobs: field(params, "logprobs")?,
        prompt_logprobs: field(params, "prompt_logprobs")?,
        // No stranger asks.
        max_logprobs: -1,
        truncate_prompt_tokens: field(params, "truncate_prompt_tokens")?,
        rule: rule.map(|(kind, text)| self::rule(&kind, text)).transpose()?,
        ..RawRequest::new(prompt)
    })
}

/// What an answer must look like: the kinds of vLLM's `StructuredOutputsParams`.
fn rule(kind: &str, text: String) -> PyResult<Rule> {
    let wrong = |problem: &str| PyValueError::new_err(format!("structured_outputs.{kind}: {problem}"));
    match kind {
        "json" => match serde_json::from_str(&text) {
            Ok(schema @ (Value::Object(_) | Value::Bool(_))) => {
                let fitted = fit_schema(&schema, false);
                let fitted = fitted.map_err(|misfit| wrong(&format!("{}: {misfit}", misfit.place)))?;
                Ok(Rule::JsonSchema(fitted.schema))
            }
            _ => Err(wrong("not a JSON schema")),
        },
        "json_object" => Ok(Rule::JsonObject),
        "regex" => Ok(Rule::Regex(text)),
        "choice" => serde_json::from_str(&text).map(Rule::Choice).map_err(|_| wrong("not a list of texts")),
        "grammar" => Ok(Rule::of_grammar(text)),
        _ => Err(wrong("there is no such form")),
    }
}

/// A conversation, and the time that it is held at.
pub(crate) fn chat(mut conversation: Map<String, Value>) -> PyResult<(Chat, Option<i64>)> {
    let mut flag = |name: &str| conversation.remove(name).and_then(|value| value.as_bool()).unwrap_or(false);
    let (add_generation_prompt, continue_final_message) =
        (flag("add_generation_prompt"), flag("continue_final_message"));
    let now = conversation.remove("now").and_then(|now| now.as_i64());
    let template = match conversation.remove("chat_template") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(_) => return Err(PyTypeError::new_err("chat_template: not a text")),
    };
    let template_kwargs = match conversation.remove("chat_template_kwargs") {
        Some(Value::Object(map)) => map,
        _ => return Err(PyTypeError::new_err("chat_template_kwargs: not a dict")),
    };
    let Some(Value::Array(messages)) = conversation.remove("messages") else {
        return Err(PyTypeError::new_err("messages: not a list of dicts"));
    };
    let messages = messages.into_iter().enumerate().map(|(at, message)| self::message(at, message));
    let messages = messages.collect::<PyResult<Vec<ChatMessage>>>()?;
    let own = Chat { template_kwargs, add_generation_prompt, continue_final_message, template, ..Chat::new(messages) };
    Ok((own, now))
}

/// What a message has beside its role and its text is the template's to read.
fn message(at: usize, message: Value) -> PyResult<ChatMessage> {
    let wrong = |problem: &str| PyValueError::new_err(format!("messages[{at}]: {problem}"));
    let Value::Object(mut extra) = message else { return Err(wrong("not a dict")) };
    let Some(Value::String(role)) = extra.remove("role") else { return Err(wrong("role is no text")) };
    let content = match extra.remove("content") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match part {
                Value::String(text) => Some(text.clone()),
                part if part["type"] == "text" => part["text"].as_str().map(str::to_owned),
                _ => None,
            };
            let texts: Option<Vec<String>> = parts.iter().map(text).collect();
            Some(texts.ok_or_else(|| wrong("content has a part that is no text"))?.join("\n"))
        }
        Some(_) => return Err(wrong("content is neither a text nor a list of texts")),
    };
    Ok(ChatMessage { role, content, extra })
}

/// A text is a list of one.
fn texts(of: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<String>> {
    let value = of.getattr(name)?;
    match value.cast::<PyString>() {
        Ok(text) => Ok(vec![extracted(name, text.as_any())?]),
        Err(_) => Ok(extracted::<Option<Vec<String>>>(name, &value)?.unwrap_or_default()),
    }
}

fn field<'py, T: FromPyObjectOwned<'py>>(of: &Bound<'py, PyAny>, name: &str) -> PyResult<T> {
    extracted(name, &of.getattr(name)?)
}

/// A value of the right type, or an error that names it.
fn extracted<'py, T: FromPyObjectOwned<'py>>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<T> {
    value.extract().map_err(|error: T::Error| {
        let error: PyErr = error.into();
        let message = format!("{name}: {}", error.value(value.py()));
        match error.is_instance_of::<PyOverflowError>(value.py()) {
            true => PyValueError::new_err(message),
            false => PyTypeError::new_err(message),
        }
    })
}
