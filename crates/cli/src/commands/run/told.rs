//! An answer as a terminal shows it: words are whole, thoughts are dimmed, and not written to pipes.

use std::io::IsTerminal;
use std::sync::Arc;

use dialect::{AnswerParser, AnswerPart, Dialect};
use engine::ModelInfo;
use text::tokenizer::Tokenizer;

use super::Answer;
use super::wrap::Wrap;
use crate::console::{self, put};
use crate::environment;
use crate::failure::Failure;
use crate::flags::RunFlags;

/// Tokens at the end of a prompt that are looked at for a thought that has begun.
const PROMPT_END_TOKENS: usize = 256;

/// How a model thinks, as its chat template and its vocabulary show it.
#[derive(Default)]
pub(super) struct Voice {
    dialect: Dialect,
    /// Special tokens that are marks of it.
    pub(super) shown: Arc<[u32]>,
}

impl Voice {
    /// Of a model that is asked so.
    pub(super) fn of(model: &ModelInfo, flags: &RunFlags) -> Voice {
        let (Some(template), Some(tokenizer), false) = (&model.chat_template, &model.tokenizer, flags.raw) else {
            return Voice::default();
        };
        let mut dialect = Dialect::of_template(&template.source(), &tokenizer.added_tokens());
        // Nothing is offered to be called.
        dialect.calls = None;
        let shown = marks(&dialect, tokenizer);
        Voice { dialect, shown }
    }

    /// For one answer to this prompt. `prints`: as it comes.
    pub(super) fn telling(&self, model: &ModelInfo, prompt: &[u32], prints: bool) -> Telling {
        let end = &prompt[prompt.len().saturating_sub(PROMPT_END_TOKENS)..];
        let end = model.tokenizer.as_ref().map(|tokenizer| tokenizer.decode(end, false)).unwrap_or_default();
        let on_terminal = prints && std::io::stdout().is_terminal();
        Telling {
            listener: AnswerParser::new(&self.dialect, Arc::default(), &end),
            prints,
            wrap: on_terminal.then(Wrap::default),
            shows_thoughts: on_terminal,
            is_quiet: false,
            parts: Vec::new(),
        }
    }
}

/// Special tokens that are marks of a dialect.
pub(crate) fn marks(dialect: &Dialect, tokenizer: &Tokenizer) -> Arc<[u32]> {
    let ids = dialect.marks().into_iter().filter_map(|mark| tokenizer.token_id(mark));
    ids.filter(|&id| tokenizer.is_special(id)).collect()
}

/// One answer under way.
pub(super) struct Telling {
    listener: AnswerParser,
    prints: bool,
    /// On a terminal.
    wrap: Option<Wrap>,
    shows_thoughts: bool,
    /// The terminal writes thoughts.
    is_quiet: bool,
    parts: Vec<AnswerPart>,
}

impl Telling {
    pub(super) fn take(&mut self, text: &str, answer: &mut Answer) -> Result<(), Failure> {
        self.listener.push(text, &mut self.parts);
        self.tell(answer)
    }

    /// There is no more.
    pub(super) fn end(&mut self, answer: &mut Answer) -> Result<(), Failure> {
        self.listener.finish(&mut self.parts);
        self.tell(answer)?;
        self.write_held()?;
        self.quiet(false)
    }

    /// To standard output, in lines where that is a terminal.
    fn write(&mut self, text: &str) -> Result<(), Failure> {
        match &mut self.wrap {
            None => put(text),
            Some(wrap) => put(&wrap.push(text, console::columns())),
        }
    }

    /// What waits for the end of its word.
    fn write_held(&mut self) -> Result<(), Failure> {
        match &mut self.wrap {
            None => Ok(()),
            Some(wrap) => put(&wrap.end(console::columns())),
        }
    }

    fn tell(&mut self, answer: &mut Answer) -> Result<(), Failure> {
        for part in std::mem::take(&mut self.parts) {
            match part {
                AnswerPart::Thought(text) => {
                    if self.shows_thoughts {
                        self.quiet(true)?;
                        self.write(&text)?;
                    }
                    answer.thought.push_str(&text);
                }
                AnswerPart::Text(text) => {
                    // White space between a thought and the answer is neither.
                    let begins = answer.text.is_empty() && !answer.thought.is_empty();
                    let text = if begins { text.trim_start() } else { &text };
                    if text.is_empty() {
                        continue;
                    }
                    if self.is_quiet {
                        self.write_held()?;
                        self.quiet(false)?;
                        put("\n\n")?;
                        self.wrap = self.wrap.take().map(|_| Wrap::default());
                    }
                    if self.prints {
                        self.write(text)?;
                    }
                    answer.text.push_str(text);
                }
                AnswerPart::CallBegins { .. } | AnswerPart::Arguments { .. } | AnswerPart::CallEnds { .. } => {}
            }
        }
        Ok(())
    }

    fn quiet(&mut self, is_quiet: bool) -> Result<(), Failure> {
        if std::mem::replace(&mut self.is_quiet, is_quiet) != is_quiet && environment::has_colours() {
            put(if is_quiet { "\x1b[2m" } else { "\x1b[0m" })?;
        }
        Ok(())
    }
}
