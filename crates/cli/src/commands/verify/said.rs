//! The text of an answer, held against what its tokens decode to.
//!
//! ```text
//! tokens ──stop rules──> pieces of text ──a parser of the server's──> reasoning, text, calls   =?   those of the answer
//! ```
//! A receipt does not say what its server showed of a thought, nor which tools it was offered: an answer is right if one
//! of the readings that there may have been gives it.

use std::collections::BTreeMap;
use std::sync::Arc;

use dialect::{AnswerParser, AnswerPart, Dialect, Tool, whole_cut};
use engine::{ModelInfo, RawRequest, Rule, Verifier};
use receipt::{Discrepancy, Receipt};
use serde_json::{Value, json};

/// Tokens at the end of a prompt that are looked at for a thought that has begun.
const PROMPT_END_TOKENS: usize = 256;
/// A thought is closed this many tokens behind its limit at most: marks and parts of characters are none of it.
const CLOSED_WITHIN: usize = 16;
/// Characters of a text that are shown where it differs.
const SHOWN: usize = 40;

/// What a choice says beside its receipt, as far as it was read.
#[derive(Default)]
pub(super) struct Said {
    /// It is a chat's, whole or in pieces.
    is_chat: bool,
    is_stream: bool,
    /// Its beginning is there.
    has_begun: bool,
    text: String,
    /// Under both names that servers give it.
    thoughts: [Option<String>; 2],
    /// Names and arguments.
    calls: BTreeMap<u64, (String, String)>,
}

/// What came of the comparison.
#[derive(Clone, Default)]
pub(super) enum Compared {
    /// There is no text.
    #[default]
    Nothing,
    /// Equal; what else is to be known of it.
    Equal(String),
    /// It cannot be, and why.
    Not(&'static str),
    Differs(Discrepancy),
}

impl Said {
    /// A choice of an answer, or of an event of one.
    pub(super) fn read(&mut self, choice: &Value) {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let Some(said) = choice.get("message").or(choice.get("delta")) else {
            self.has_begun |= choice.get("text").is_some();
            self.text += &text(choice.get("text")).unwrap_or_default();
            return;
        };
        self.is_chat = true;
        self.is_stream |= choice.get("delta").is_some();
        self.has_begun |= choice.get("message").is_some() || said.get("role").is_some();
        self.text += &text(said.get("content")).unwrap_or_default();
        for (thought, name) in self.thoughts.iter_mut().zip(["reasoning", "reasoning_content"]) {
            if let Some(more) = text(said.get(name)) {
                thought.get_or_insert_default().push_str(&more);
            }
        }
        for (at, call) in said.get("tool_calls").and_then(Value::as_array).into_iter().flatten().enumerate() {
            let index = call.get("index").and_then(Value::as_u64).unwrap_or(at as u64);
            let (name, arguments) = self.calls.entry(index).or_default();
            *name += &text(call.pointer("/function/name")).unwrap_or_default();
            *arguments += &text(call.pointer("/function/arguments")).unwrap_or_default();
        }
    }

    /// What came behind it.
    pub(super) fn append(&mut self, more: Said) {
        self.text += &more.text;
        for (thought, more) in self.thoughts.iter_mut().zip(more.thoughts) {
            *thought = [thought.take(), more].into_iter().flatten().reduce(|thought, more| thought + &more);
        }
        self.calls.extend(more.calls);
    }

    /// Holds it against the tokens of its receipt, which were found equal.
    pub(super) fn compare(&self, receipt: &Receipt, verifier: &Verifier, dialect: &Dialect) -> Compared {
        let (has_text, model) = (self.is_chat || self.has_begun, verifier.model());
        if !has_text {
            return Compared::Nothing;
        }
        let Some(tokenizer) = &model.tokenizer else { return Compared::Not("this model has no tokenizer") };
        if !self.has_begun {
            return Compared::Not("the beginning of its stream is missing");
        }
        let pieces = verifier.text(receipt);
        let prompt = &receipt.asked.prompt;
        let end = tokenizer.decode(&prompt[prompt.len().saturating_sub(PROMPT_END_TOKENS)..], false);
        let rule = receipt.asked.rule.clone().and_then(|rule| serde_json::from_value(rule).ok());
        let tokens = Tokens { pieces: &pieces, raw: pieces.concat(), prompt_end: &end, rule: rule.as_ref() };
        let prompt = Prompt { tokens: prompt, text: tokenizer.decode(prompt, false), model };
        let mut nearest: Option<Difference> = None;
        let plain = Reading { text: tokens.raw.clone(), ..Reading::default() };
        let parsed = self.is_chat.then(|| self.readings(dialect, &tokens));
        for reading in std::iter::once(plain).chain(parsed.into_iter().flatten()) {
            match self.differ(&reading, &prompt) {
                Ok(note) => return Compared::Equal(note),
                Err(one) => nearest = nearest.into_iter().chain([one]).max_by_key(|one| (one.num_equal, one.at)),
            }
        }
        nearest.map_or(Compared::Nothing, |one| Compared::Differs(one.said()))
    }

    /// All that a server with this dialect may have made of the tokens.
    fn readings(&self, dialect: &Dialect, tokens: &Tokens<'_>) -> Vec<Reading> {
        let tool = |name: &str| Tool { name: name.to_owned(), parameters: json!({}), strict: false };
        let mut offers: Vec<Arc<[Tool]>> = vec![self.calls.values().map(|(name, _)| tool(name)).collect()];
        if self.calls.is_empty() && dialect.calls.is_some() {
            // Offered and not called: the beginning of a call is no text.
            offers.push([tool("\0")].into());
        }
        let mut readings = Vec::new();
        for (is_formed, is_thoughtless) in [(false, false), (true, false), (true, true)] {
            if is_formed && tokens.rule.is_none() {
                continue;
            }
            let mut dialect = dialect.clone();
            if is_thoughtless {
                dialect = dialect.thoughtless();
            }
            if is_formed {
                dialect = dialect.formed();
            }
            for tools in &offers {
                for cut in std::iter::once(None).chain(cuts(&dialect, tools, tokens).into_iter().map(Some)) {
                    let parts = self.parse(&dialect, tools, tokens, cut);
                    let has_thoughts = dialect.thoughts.is_some();
                    for (trims, shows) in [(has_thoughts, true), (has_thoughts, false), (false, true), (false, false)] {
                        readings.push(Reading::of(&parts, trims, shows, self.is_stream));
                    }
                }
            }
        }
        readings
    }

    fn parse(
        &self,
        dialect: &Dialect,
        tools: &Arc<[Tool]>,
        tokens: &Tokens<'_>,
        cut: Option<usize>,
    ) -> Vec<AnswerPart> {
        if !self.is_stream {
            return whole_cut(dialect, tools.clone(), tokens.prompt_end, &tokens.raw, cut);
        }
        let (mut parser, mut parts) = (AnswerParser::new(dialect, tools.clone(), tokens.prompt_end), Vec::new());
        if let Some(at) = cut {
            parser.cut(at);
        }
        parser.push(&tokens.raw, &mut parts);
        parser.finish(&mut parts);
        parts
    }

    /// What is to be known of equal ones, or where they part.
    fn differ(&self, reading: &Reading, prompt: &Prompt<'_>) -> Result<String, Difference> {
        let names = |calls: &mut dyn Iterator<Item = &(String, String)>| {
            calls.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let names = [names(&mut self.calls.values()), names(&mut reading.calls.iter())];
        let echoed = self.text.strip_suffix(&reading.text).unwrap_or_default();
        let is_echo = !echoed.is_empty() && prompt.is_echoed(echoed, self.is_chat);
        let text = if is_echo { &self.text[echoed.len()..] } else { &self.text };
        let shown = |thought: &&Option<String>| thought.is_some() || self.thoughts == [const { None }; 2];
        let thoughts = self.thoughts.iter().filter(shown).map(|thought| thought.as_deref().unwrap_or_default());
        let thoughts = thoughts.map(|thought| ("reasoning", thought, &*reading.thought));
        let pairs = [("list of called tools", &*names[0], &*names[1]), ("text", text, &*reading.text)];
        let pairs: Vec<_> = pairs.into_iter().chain(thoughts).collect();
        if let Some(&(what, claimed, found)) = pairs.iter().rev().find(|(_, claimed, found)| claimed != found) {
            let num_equal = pairs.iter().filter(|(_, claimed, found)| claimed == found).count();
            let at = claimed.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
            let rest = |text: &str| text.chars().skip(at).take(SHOWN).collect();
            return Err(Difference { what, num_equal, at, claimed: rest(claimed), found: rest(found) });
        }
        let mut note = String::new();
        if reading.hides_thought {
            note += " (its reasoning is not in it)";
        }
        if is_echo {
            note += &format!(", whose first {} characters are the prompt's", echoed.chars().count());
        }
        if !self.calls.values().eq(&reading.calls) {
            note += "; arguments of calls not compared: they follow schemas, which are not in a receipt";
        }
        Ok(note)
    }
}

/// What the tokens of an answer say, before any parser.
struct Tokens<'a> {
    /// Of each, and the rest.
    pieces: &'a [String],
    raw: String,
    prompt_end: &'a str,
    rule: Option<&'a Rule>,
}

struct Prompt<'a> {
    tokens: &'a [u32],
    text: String,
    model: &'a ModelInfo,
}

impl Prompt<'_> {
    /// Whether a server that was asked for an echo puts this before an answer: a prompt, or the message that is gone on
    /// with.
    fn is_echoed(&self, text: &str, is_chat: bool) -> bool {
        let marks = self.model.tokenizer.as_ref().map(|tokenizer| tokenizer.added_tokens()).unwrap_or_default();
        if is_chat {
            let message = text.trim_end();
            let before = self.text.trim_end().strip_suffix(message).filter(|_| !message.is_empty());
            let behind = |mark: &String| Some(&before?[before?.rfind(mark.as_str())? + mark.len()..]);
            let role = marks.iter().filter(|mark| !mark.is_empty()).filter_map(behind).min_by_key(|role| role.len());
            // All of it: between the last mark and the message is at most the name of its role.
            let is_role =
                |role: &str| role.split_whitespace().count() <= 1 && role.trim_end().len() < role.len().max(1);
            return role.is_some_and(is_role) && !marks.iter().any(|mark| !mark.is_empty() && message.contains(mark));
        }
        let encoded = || self.model.encode(&RawRequest::new(engine::Prompt::Text(text.to_owned())));
        // Between two texts that it is to fill the gap of.
        let is_marked = |at: usize| {
            let (before, behind) = (&self.text[..at], &self.text[at + text.len()..]);
            let has = |is: &dyn Fn(&str) -> bool| marks.iter().any(|mark| !mark.is_empty() && is(mark));
            has(&|mark| before.ends_with(mark)) && has(&|mark| behind.starts_with(mark))
        };
        self.text == text
            || encoded().is_ok_and(|tokens| tokens == self.tokens)
            || self.text.match_indices(text).any(|(at, _)| is_marked(at))
    }
}

/// One of the answers that the tokens may have been shown as.
#[derive(Default)]
struct Reading {
    text: String,
    thought: String,
    calls: Vec<(String, String)>,
    hides_thought: bool,
}

impl Reading {
    fn of(parts: &[AnswerPart], trims: bool, shows_thoughts: bool, is_stream: bool) -> Reading {
        let mut reading = Reading::default();
        for part in parts {
            match part {
                AnswerPart::Thought(text) if shows_thoughts => reading.thought += text,
                AnswerPart::Thought(_) => reading.hides_thought = true,
                AnswerPart::CallEnds { .. } => {}
                AnswerPart::Text(text) => reading.text += text,
                AnswerPart::CallBegins { name, .. } => reading.calls.push((name.clone(), String::new())),
                AnswerPart::Arguments { index, json } => {
                    reading.calls.get_mut(*index).into_iter().for_each(|(_, arguments)| arguments.push_str(json));
                }
            }
        }
        // White space beside a thought or a call is dropped, but was sent before it is known of a stream.
        let has_more = !reading.thought.is_empty() || !reading.calls.is_empty();
        let is_blank = reading.text.trim().is_empty();
        if has_more && is_blank && !is_stream {
            reading.text.clear();
        } else if trims {
            reading.text = reading.text.trim_start().to_owned();
        }
        reading
    }
}

/// Where an answer and a reading part.
struct Difference {
    what: &'static str,
    /// Parts of the answer that do not.
    num_equal: usize,
    at: usize,
    claimed: String,
    found: String,
}

impl Difference {
    fn said(self) -> Discrepancy {
        let Difference { what, at, claimed, found, .. } = self;
        Discrepancy::Text { what, at, claimed, found }
    }
}

/// Characters behind which a thought may have been closed from outside, where its tokens were limited.
fn cuts(dialect: &Dialect, tools: &Arc<[Tool]>, tokens: &Tokens<'_>) -> Vec<usize> {
    let mut rule = tokens.rule;
    let limit = loop {
        match rule {
            Some(Rule::Budget { thought, .. }) => break thought.tokens as usize,
            Some(Rule::Tokens { rule: inner, .. }) => rule = inner.as_deref(),
            Some(Rule::Behind { rule: inner, .. }) => rule = Some(inner),
            _ => return Vec::new(),
        }
    };
    if limit == 0 {
        return vec![0];
    }
    let (mut parser, mut parts) = (AnswerParser::new(dialect, tools.clone(), tokens.prompt_end), Vec::new());
    let mut end = |piece: &String| {
        parser.push(piece, &mut parts);
        parser.thought().last().map(|thought| thought.end)
    };
    let ends = tokens.pieces.iter().take(limit + CLOSED_WITHIN).map(&mut end);
    ends.collect::<Vec<_>>().into_iter().skip(limit - 1).flatten().collect()
}
