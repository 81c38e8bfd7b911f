//! Log probabilities of tokens, in the shapes of each API.

use engine::TokenLogprob;
use serde::Serialize;
use serde_json::{Map, Value};
use text::tokenizer::Tokenizer;

#[derive(Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ChatLogprob>,
    pub(crate) refusal: Option<()>,
}

#[derive(Serialize)]
pub(crate) struct ChatLogprob {
    #[serde(flatten)]
    pub(crate) token: ShownToken,
    pub(crate) top_logprobs: Vec<ShownToken>,
}

/// The same in llama-server's words.
#[derive(Serialize)]
pub(crate) struct LlamaLogprob {
    #[serde(flatten)]
    token: LlamaToken,
    top_logprobs: Vec<LlamaToken>,
}

#[derive(Serialize)]
struct LlamaToken {
    id: u32,
    #[serde(flatten)]
    token: ShownToken,
}

#[derive(Serialize)]
pub(crate) struct ShownToken {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Option<Vec<u8>>,
}

/// Four lists of one length. The first token of an echoed prompt has no log probability: nothing comes before it.
#[derive(Default, Serialize)]
pub(crate) struct TextLogprobs {
    pub(crate) text_offset: Vec<usize>,
    pub(crate) token_logprobs: Vec<Option<f32>>,
    pub(crate) tokens: Vec<String>,
    pub(crate) top_logprobs: Vec<Option<Map<String, Value>>>,
}

/// Tokens as text, the way this request wants to see them.
pub(crate) struct TokenTexts<'a> {
    /// Absent for a model without one: then tokens are shown as ids.
    pub(crate) tokenizer: Option<&'a Tokenizer>,
    /// `token_id:42` instead of the text (vLLM's `return_tokens_as_token_ids`): two tokens never look alike.
    pub(crate) as_ids: bool,
}

impl TokenTexts<'_> {
    pub(crate) fn text(&self, token: u32) -> String {
        match self.tokenizer {
            Some(tokenizer) if !self.as_ids => tokenizer.token_text(token),
            _ => format!("token_id:{token}"),
        }
    }

    fn shown(&self, token: u32, logprob: f32) -> ShownToken {
        let bytes = self.tokenizer.and_then(|tokenizer| tokenizer.token_bytes(token));
        ShownToken { token: self.text(token), logprob: finite(logprob), bytes }
    }

    pub(crate) fn chat(&self, logprob: &TokenLogprob) -> ChatLogprob {
        ChatLogprob {
            token: self.shown(logprob.token, logprob.logprob),
            top_logprobs: logprob.top.iter().map(|&(token, logprob)| self.shown(token, logprob)).collect(),
        }
    }

    pub(crate) fn llama(&self, logprob: &TokenLogprob) -> LlamaLogprob {
        let token = |token: u32, logprob: f32| LlamaToken { id: token, token: self.shown(token, logprob) };
        LlamaLogprob {
            token: token(logprob.token, logprob.logprob),
            top_logprobs: logprob.top.iter().map(|&(id, logprob)| token(id, logprob)).collect(),
        }
    }

    /// Adds a token to the four lists. `None`: the first token of the prompt.
    pub(crate) fn push(
        &self,
        lists: &mut TextLogprobs,
        offset: &mut usize,
        token: u32,
        logprob: Option<&TokenLogprob>,
    ) {
        let text = self.text(token);
        lists.text_offset.push(*offset);
        *offset += text.chars().count();
        lists.tokens.push(text);
        lists.token_logprobs.push(self.logprob(logprob));
        lists.top_logprobs.push(self.top(logprob));
    }

    pub(crate) fn logprob(&self, logprob: Option<&TokenLogprob>) -> Option<f32> {
        logprob.map(|logprob| finite(logprob.logprob))
    }

    /// The token itself, then the top tokens, as in vLLM.
    pub(crate) fn top(&self, logprob: Option<&TokenLogprob>) -> Option<Map<String, Value>> {
        let logprob = logprob?;
        let mut map = Map::new();
        for &(token, value) in [(logprob.token, logprob.logprob)].iter().chain(&logprob.top) {
            // Different tokens may look alike (parts of a character); its own represents them, or the most likely.
            map.entry(self.text(token)).or_insert_with(|| number(value));
        }
        Some(map)
    }

    /// vLLM's `prompt_logprobs`: one object per token, keyed by token id.
    pub(crate) fn prompt(&self, logprobs: &[Option<TokenLogprob>]) -> Vec<Value> {
        logprobs.iter().map(|logprob| self.by_id(logprob.as_ref())).collect()
    }

    pub(crate) fn by_id(&self, logprob: Option<&TokenLogprob>) -> Value {
        let Some(logprob) = logprob else { return Value::Null };
        let entry = |token: u32, value: f32, rank: Option<usize>| serde_json::json!({"logprob": number(value), "rank": rank, "decoded_token": self.text(token)});
        let mut map = Map::new();
        for (at, &(token, value)) in logprob.top.iter().enumerate() {
            map.insert(token.to_string(), entry(token, value, Some(at + 1)));
        }
        // Its rank is known only when it is among the top tokens.
        map.entry(logprob.token.to_string()).or_insert_with(|| entry(logprob.token, logprob.logprob, None));
        Value::Object(map)
    }
}

/// JSON has no infinity: a token that cannot occur gets the floor that vLLM uses.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// The same digits as everywhere else: a value that went through `f64` would show sixteen of them.
fn number(logprob: f32) -> Value {
    finite(logprob).to_string().parse::<f64>().map_or(Value::Null, Value::from)
}
