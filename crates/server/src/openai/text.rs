//! `POST /tokenize` and `POST /detokenize`, in vLLM's shapes.

use engine::Chat;
use serde::Serialize;
use serde::ser::{Error as _, SerializeSeq, Serializer};
use serde_json::{Map, Value, json};
use text::chat_template::TemplateOptions;
use text::tokenizer::TextError;
use text::yield_point::yield_point;
use transport::error::ApiError;
use transport::fields::Fields;
use transport::hints::Hints;

use crate::app::App;
use crate::llama::shapes::TOKENIZE;
use crate::openai::hints;
use crate::openai::{chat, params, shapes, tools};

#[derive(Serialize)]
struct Tokenized<'t, T> {
    count: usize,
    max_model_len: usize,
    tokens: Each<'t, T>,
    /// As the vocabulary names them, as vLLM has it: a part of a character has no text, and every token has a name.
    token_strs: Option<Each<'t, Option<String>>>,
    /// Fields of the conversation that change nothing.
    #[serde(skip_serializing_if = "Hints::is_empty")]
    hints: Hints,
}

/// An entry for each of millions of tokens: written with pauses.
struct Each<'t, T> {
    tokens: &'t [u32],
    entry: &'t dyn Fn(u32) -> T,
}

impl<T: Serialize> Serialize for Each<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.tokens.len()))?;
        for tokens in self.tokens.chunks(4096) {
            yield_point(0).map_err(S::Error::custom)?;
            for &token in tokens {
                list.serialize_element(&(self.entry)(token))?;
            }
        }
        list.end()
    }
}

/// Text or a conversation to the ids that the model would read. Not for the threads that serve connections.
pub(crate) fn tokenize(mut body: Value, app: &App) -> Result<String, ApiError> {
    let is_there = |field: &str| body.get(field).is_some_and(|value| !value.is_null());
    // llama-server's clients call it so.
    if is_there("content") && !is_there("prompt") && !is_there("messages") {
        return tokenize_content(body, app);
    }
    let is_text = is_there("prompt");
    if body.is_object() && !is_text && !is_there("messages") {
        let message = "'prompt' is missing: a text, or in its place 'messages', a conversation.";
        return Err(ApiError::bad_request(message).with_param("prompt"));
    }
    let shape = if is_text { &shapes::TOKENIZE_TEXT } else { &shapes::TOKENIZE_CHAT };
    let hints = hints::take(&mut body, shape)?;
    let mut fields = Fields::of(body, shape)?;
    params::model(&mut fields, app)?;
    let strings = fields.boolean("return_token_strs")?.unwrap_or(false);
    let model = app.engine.model();
    let Some(tokenizer) = &model.tokenizer else { return Err(no_tokenizer()) };
    let text = if is_text { fields.string("prompt")? } else { None };
    let tokens = match text {
        Some(text) => {
            let add_special = fields.boolean("add_special_tokens")?.unwrap_or(true);
            fields.finish()?;
            params::check_text("prompt", text.len())?;
            tokenizer.encode(&text, add_special).map_err(|error| text_refused(&error))?
        }
        None => {
            let (_, definitions, ..) = tools::read(&mut fields)?.told();
            let chat = chat::prompt(&mut fields, definitions, Map::new(), app)?;
            // A template writes its own, so nothing is added unless the request asks for it.
            let add_special = fields.boolean("add_special_tokens")?.unwrap_or(false);
            fields.finish()?;
            let instead = ": send 'prompt' instead of 'messages'";
            let own = model.chat_template.as_ref().ok_or_else(|| chat::no_template(model, instead))?;
            let now = Some(app.now() as i64);
            let Chat { add_generation_prompt, continue_final_message, template_kwargs: kwargs, .. } = chat;
            let options = TemplateOptions { add_generation_prompt, continue_final_message, kwargs, now };
            let other = chat::other_template(own, chat.template.as_deref())?;
            let template = other.as_ref().unwrap_or(own);
            let ids = tokenizer.encode_chat(template, &chat.messages, &options);
            let ids = ids.map_err(|error| ApiError::from(&error))?;
            if add_special { tokenizer.with_special_tokens(&ids).map_err(|error| text_refused(&error))? } else { ids }
        }
    };
    let tokens = tokens.as_slice();
    let name = |id| tokenizer.token_name(id);
    let token_strs = strings.then_some(Each { tokens, entry: &name });
    written(tokens, &|id| id, token_strs, model.max_model_len, hints)
}

/// In llama-server's words: nothing is added unless a request says so.
fn tokenize_content(mut body: Value, app: &App) -> Result<String, ApiError> {
    let hints = hints::take(&mut body, &TOKENIZE)?;
    let mut fields = Fields::of(body, &TOKENIZE)?;
    params::model(&mut fields, app)?;
    let text = fields.text("content")?;
    let add_special = fields.boolean("add_special")?.unwrap_or(false);
    let pieces = fields.boolean("with_pieces")?.unwrap_or(false);
    fields.finish()?;
    let model = app.engine.model();
    let Some(tokenizer) = &model.tokenizer else { return Err(no_tokenizer()) };
    params::check_text("content", text.len())?;
    let tokens = tokenizer.encode(&text, add_special);
    let tokens = tokens.map_err(|error| text_refused(&error).rename_param("prompt", "content"))?;
    if !pieces {
        return written(&tokens, &|id| id, None, model.max_model_len, hints);
    }
    // A part of a character is its bytes.
    let piece = |id| {
        let piece = match tokenizer.token_bytes(id).map(String::from_utf8) {
            Some(Ok(text)) => Value::String(text),
            Some(Err(part)) => part.into_bytes().into(),
            None => tokenizer.token_text(id).into(),
        };
        json!({"id": id, "piece": piece})
    };
    written(&tokens, &piece, None, model.max_model_len, hints)
}

fn written<T: Serialize>(
    tokens: &[u32],
    entry: &dyn Fn(u32) -> T,
    token_strs: Option<Each<'_, Option<String>>>,
    max_model_len: usize,
    hints: Hints,
) -> Result<String, ApiError> {
    let answer = Tokenized { count: tokens.len(), max_model_len, tokens: Each { tokens, entry }, token_strs, hints };
    // Numbers and strings serialize; what can end this is a client that left.
    serde_json::to_string(&answer).map_err(|_| ApiError::internal())
}

fn text_refused(error: &TextError) -> ApiError {
    let message = match error {
        TextError::TooLong { bytes, limit } => {
            format!("'prompt' has {bytes} bytes of text; this model's tokenizer takes at most {limit} at once.")
        }
        _ => "The tokenizer could not encode this text.".to_owned(),
    };
    ApiError::bad_request(message).with_param("prompt")
}

/// Ids to the text they stand for.
pub(crate) fn detokenize(body: Value, app: &App) -> Result<String, ApiError> {
    let mut fields = Fields::of(body, &shapes::DETOKENIZE)?;
    params::model(&mut fields, app)?;
    let items = fields.list("tokens")?.unwrap_or_default();
    fields.finish()?;
    let model = app.engine.model();
    let Some(tokenizer) = &model.tokenizer else { return Err(no_tokenizer()) };
    let vocab = model.config.vocab_size;
    let mut ids = Vec::with_capacity(items.len());
    for (at, id) in params::token_ids(&items, |at| format!("tokens[{at}]"))?.into_iter().enumerate() {
        match u32::try_from(id) {
            Ok(id) if (id as usize) < vocab => ids.push(id),
            _ => {
                let message = format!("token id {id} is outside the vocabulary (0 to {})", vocab - 1);
                return Err(ApiError::bad_request(message).with_param(format!("tokens[{at}]")));
            }
        }
    }
    params::check_text("tokens", ids.iter().map(|&id| tokenizer.token_len(id)).sum())?;
    // vLLM's name for it, and llama-server's.
    let text = Value::from(app.decode(&ids)).to_string();
    Ok(format!("{{\"prompt\":{text},\"content\":{text}}}"))
}

fn no_tokenizer() -> ApiError {
    ApiError::bad_request("This model has no tokenizer.")
}
