//! What an answer is made of: thoughts, text, calls of tools.

use std::collections::VecDeque;
use std::sync::Arc;

use dialect::{AnswerParser, AnswerPart, Dialect, Tool, whole_cut};
use engine::TokenLogprob;
use telemetry::timeline::RequestTrace;

use super::ResponsePlan;

/// How the answers of a request are told apart into their parts.
#[derive(Clone)]
pub(crate) struct OutputParser {
    pub(crate) dialect: Dialect,
    /// What may be called.
    pub(crate) tools: Arc<[Tool]>,
    /// The last part of the prompt, in which a thought may have begun.
    pub(crate) prompt_end: String,
    /// Whether the client wants to see what was thought.
    pub(crate) shows_thoughts: bool,
    /// Most tokens of a thought, which is closed behind them; `None` where nothing closes it.
    pub(crate) thought_tokens: Option<u32>,
    /// Whether white space at the head of the answer is part of its form.
    pub(crate) is_exact: bool,
}

impl OutputParser {
    /// The parts of a whole answer, which `parser` has read before.
    pub(crate) fn whole(&self, text: &str, parser: Option<&StreamParser>) -> Vec<AnswerPart> {
        let cut = parser.and_then(|parser| parser.count.cut);
        let mut parts = whole_cut(&self.dialect, self.tools.clone(), &self.prompt_end, text, cut);
        Shown::new(self).keep(&mut parts);
        parts
    }
}

/// Which of the parts a client sees.
struct Shown {
    thoughts: bool,
    /// White space between a thought and the answer is neither.
    trims: bool,
}

impl Shown {
    fn new(output_parser: &OutputParser) -> Shown {
        // Without a thought there may be what is left of its marks.
        let thoughts = output_parser.shows_thoughts;
        Shown { thoughts, trims: output_parser.dialect.thoughts.is_some() && !output_parser.is_exact }
    }

    fn keep(&mut self, parts: &mut Vec<AnswerPart>) {
        parts.retain_mut(|part| match part {
            AnswerPart::Thought(_) => self.thoughts,
            AnswerPart::Text(text) if self.trims => {
                let start = text.len() - text.trim_start().len();
                text.drain(..start);
                self.trims = text.is_empty();
                !text.is_empty()
            }
            _ => true,
        });
    }
}

/// Which tokens of an answer have text of a thought in them.
#[derive(Default)]
struct Count {
    /// Where the text of tokens ends of which it is not known yet, and how many have that text: most often one.
    open: VecDeque<Texted>,
    /// Characters of all texts, and of those that are known.
    pushed: usize,
    known: usize,
    /// Tokens whose text comes with a later one.
    silent: usize,
    tokens: usize,
    /// Most of them.
    limit: Option<u32>,
    /// Characters before the place at which the thought was closed from outside.
    cut: Option<usize>,
}

struct Texted {
    end: usize,
    tokens: usize,
    is_thought: bool,
}

impl Count {
    /// What was pushed into the parser, with its number of tokens.
    fn add(&mut self, text: &str, tokens: usize, parser: &mut AnswerParser) {
        self.silent += tokens;
        if !text.is_empty() {
            self.pushed += text.chars().count();
            self.open.push_back(Texted { end: self.pushed, tokens: self.silent, is_thought: false });
            self.silent = 0;
        }
        let mut last = None;
        for thought in parser.thought() {
            self.pass(thought.start);
            let mut start = self.known;
            for texted in &mut self.open {
                if start >= thought.end {
                    break;
                }
                if !std::mem::replace(&mut texted.is_thought, true) {
                    self.tokens += texted.tokens;
                }
                start = texted.end;
            }
            last = Some(thought.end);
        }
        self.pass(parser.num_classified());
        let is_used_up = self.limit.is_some_and(|limit| self.tokens >= limit as usize);
        if self.cut.is_none() && is_used_up {
            let at = last.unwrap_or(parser.num_classified());
            self.cut = Some(at);
            parser.cut(at);
        }
    }

    /// Forgets texts that end before this place.
    fn pass(&mut self, place: usize) {
        while let Some(texted) = self.open.front().filter(|texted| texted.end <= place) {
            self.known = texted.end;
            self.open.pop_front();
        }
    }
}

/// Parses one answer as it comes, and notes which tokens of it are thought.
pub(crate) struct StreamParser {
    trace: Arc<RequestTrace>,
    /// Of the answer, over all prompts.
    index: usize,
    tokens: usize,
    /// The last token was of a thought, or a mark of one.
    is_thought: bool,
    parser: AnswerParser,
    shown: Shown,
    count: Count,
}

/// What became known with a token, or with the end of an answer.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) parts: Vec<AnswerPart>,
    /// The token's own text.
    pub(crate) text: String,
    pub(crate) logprob: Option<TokenLogprob>,
    pub(crate) is_thought: bool,
    /// At the end: it has called something, as it should.
    pub(crate) has_called: bool,
}

impl Parsed {
    /// The next token. Without a parser all is text.
    pub(crate) fn token(parser: Option<&mut StreamParser>, text: String, logprob: Option<TokenLogprob>) -> Parsed {
        let mut parsed = Parsed { text, logprob, ..Parsed::default() };
        match parser {
            Some(parser) => {
                parser.token(&parsed.text, &mut parsed.parts);
                parsed.is_thought = parser.is_thought;
            }
            None => parsed.all_is_text(),
        }
        parsed
    }

    /// The answer has ended, with this text that was held back.
    pub(crate) fn end(parser: Option<&mut StreamParser>, text: String) -> Parsed {
        let mut parsed = Parsed { text, ..Parsed::default() };
        match parser {
            Some(parser) => parsed.has_called = parser.end(&parsed.text, &mut parsed.parts),
            None => parsed.all_is_text(),
        }
        parsed
    }

    fn all_is_text(&mut self) {
        if !self.text.is_empty() {
            self.parts.push(AnswerPart::Text(self.text.clone()));
        }
    }
}

impl StreamParser {
    /// `None` where only the text is wanted. `index`: of the answer, over all prompts.
    pub(crate) fn of(plan: &ResponsePlan, trace: &Arc<RequestTrace>, index: usize) -> Option<StreamParser> {
        let output_parser = plan.output_parser.as_ref()?;
        let limit = output_parser.thought_tokens;
        let mut parser =
            AnswerParser::new(&output_parser.dialect, output_parser.tools.clone(), &output_parser.prompt_end);
        let cut = (limit == Some(0)).then_some(0);
        if let Some(at) = cut {
            parser.cut(at);
        }
        Some(StreamParser {
            trace: trace.clone(),
            index,
            tokens: 0,
            is_thought: false,
            parser,
            shown: Shown::new(output_parser),
            count: Count { limit, cut, ..Count::default() },
        })
    }

    /// The next token.
    pub(crate) fn token(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        let before = self.parser.is_thinking();
        self.parser.push(text, parts);
        let thinks = before || self.parser.is_thinking();
        self.is_thought = thinks;
        self.count.add(text, 1, &mut self.parser);
        if thinks {
            self.trace.thoughts[self.index].grow(self.tokens);
        } else {
            self.trace.thoughts[self.index].close();
        }
        self.tokens += 1;
        self.shown.keep(parts);
    }

    /// The answer has ended, with this text that was held back. True: [`Parsed::has_called`].
    pub(crate) fn end(&mut self, text: &str, parts: &mut Vec<AnswerPart>) -> bool {
        self.parser.push(text, parts);
        self.parser.finish(parts);
        self.count.add(text, 0, &mut self.parser);
        self.trace.thoughts[self.index].close();
        self.shown.keep(parts);
        self.parser.num_calls() > 0 && self.parser.calls_complete()
    }

    /// Tokens that have text of a thought in them: none where none was to be thought.
    pub(crate) fn thought_tokens(&self) -> usize {
        if self.count.limit == Some(0) { 0 } else { self.count.tokens }
    }
}
