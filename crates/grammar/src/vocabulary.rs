//! A model's tokens as bytes, and the grammars that were compiled for them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use text::tokenizer::Tokenizer;

use crate::budget::ThoughtBudget;
use crate::constraint::Constraint;
use crate::rule::{Parts, Rule, RuleError};
use crate::tokens::Filter;

/// Grammars that are kept: an agent sends the same tools with every turn.
const MOST_KEPT: usize = 16;
/// Longest token that takes part; the trie has room for 1024 bytes.
const MAX_TOKEN_BYTES: usize = 512;
/// Nodes that the trie may have: its counters have 22 bits.
const MAX_TRIE_BYTES: usize = (1 << 22) - 1;
/// Before a token's bytes: it is a special one, which no text stands for.
const SPECIAL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// Steps of the compiler and of a mask, far above what published schemas take (its authors measure FHIR's at half of
/// the first) and low enough that a rule that means harm costs others little: 20 ms of a thread that computes nothing
/// else, and some 4 ms of a step. What these do not count has its limits in `limits.rs`.
const COMPILE_STEPS: u64 = 1_000_000;
const MASK_LEXER_STEPS: u64 = 50_000;
const MASK_ITEMS: usize = 20_000;
/// Ways in which an answer may go on at one place. The work for them grows with their square: the worst rules found
/// take 75 ms of a step. An object with 250 properties that may all be absent has as many.
const PLACE_ITEMS: usize = 1000;
/// States of one answer's lexer, of one or two KiB each.
const MAX_LEXER_STATES: usize = 50_000;

/// Stack of the thread that compiles: only what is used of it is memory. The deepest chains of rules that the limits
/// let through take less than a quarter of it.
const STACK_BYTES: usize = 128 << 20;

/// The tokens of a model, as a trie of their bytes.
///
/// 152,000 tokens take a third of a second to arrange, and some 20 MB.
pub struct Vocabulary {
    factory: ParserFactory,
    kept: Mutex<VecDeque<(Rule, Grammar)>>,
}

/// A rule that was compiled for a vocabulary. Clones share it.
#[derive(Clone)]
pub struct Grammar {
    /// Has accepted nothing, and never will. `None`: any text will do.
    fresh: Option<Arc<Mutex<Matcher>>>,
    budget: Option<(Arc<ThoughtBudget>, TokEnv)>,
    filter: Option<Arc<Filter>>,
}

impl Vocabulary {
    /// `vocab_size`: logits of a row. `ends`: the tokens that end an answer; they may follow what is complete. `shown`:
    /// special tokens whose text is part of an answer.
    pub fn new(tokenizer: &Tokenizer, vocab_size: usize, ends: &[u32], shown: &[u32]) -> Vocabulary {
        let word = |id: u32| {
            let Some(bytes) = tokenizer.token_bytes(id) else { return Vec::new() };
            if tokenizer.is_special(id) && !shown.contains(&id) {
                return [&[SPECIAL], bytes.as_slice()].concat();
            }
            // A byte that is in no text would be read as the mark of a special token.
            if bytes.first() == Some(&SPECIAL) { Vec::new() } else { bytes }
        };
        let mut left = MAX_TRIE_BYTES;
        let mut words = Vec::with_capacity(vocab_size);
        for id in 0..vocab_size as u32 {
            let mut word = word(id);
            if word.len() > MAX_TOKEN_BYTES || word.len() > left {
                word.clear();
            }
            left -= word.len();
            words.push(word);
        }
        Vocabulary::of_words(&words, ends)
    }

    pub(crate) fn of_words(words: &[Vec<u8>], ends: &[u32]) -> Vocabulary {
        let ends: Vec<u32> = ends.iter().copied().filter(|&id| (id as usize) < words.len()).collect();
        let info = TokRxInfo {
            vocab_size: words.len() as u32,
            tok_eos: ends.first().copied().unwrap_or(INVALID_TOKEN),
            tok_bos: None,
            tok_pad: None,
            tok_unk: None,
            tok_end_of_turn: None,
        };
        let mut trie = TokTrie::from(&info, words);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).expect("its own expressions for JSON compile");
        factory.quiet();
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel = COMPILE_STEPS;
        limits.step_lexer_fuel = MASK_LEXER_STEPS;
        limits.step_max_items = MASK_ITEMS;
        limits.max_items_in_row = PLACE_ITEMS;
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.verbose_errors = false;
        Vocabulary { factory, kept: Mutex::default() }
    }

    /// The grammar of a rule: milliseconds, unless it was asked for a short while ago. Not for the threads that serve
    /// connections, nor for the engine's.
    pub fn compile(&self, rule: &Rule) -> Result<Grammar, RuleError> {
        if let Some(grammar) = self.find(rule) {
            return Ok(grammar);
        }
        rule.check_length()?;
        let Parts { tokens, thought, text } = rule.parts();
        let fresh = match text {
            Some(text) => {
                let grammar = text.grammar()?;
                Some(Arc::new(Mutex::new(on_a_deep_stack(|| self.fresh(grammar))?)))
            }
            None => None,
        };
        let env = self.factory.tok_env();
        let filter = tokens.map(|tokens| Arc::new(Filter::new(tokens, env.tok_trie())));
        if let Some(thought) = thought {
            let is_refused = |&id: &u32| {
                let is_allowed = filter.as_ref().is_none_or(|filter| filter.allows(id, &[]));
                id as usize >= env.tok_trie().vocab_size() || !is_allowed
            };
            if thought.closing.iter().any(is_refused) {
                let message = "the end of its thought has tokens that this model has not, or that may not be chosen";
                return Err(RuleError::Refused(message.to_owned()));
            }
        }
        let budget = thought.map(|thought| (Arc::new(thought.clone()), env.clone()));
        let grammar = Grammar { fresh, budget, filter };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(MOST_KEPT - 1);
        kept.push_front((rule.clone(), grammar.clone()));
        Ok(grammar)
    }

    fn fresh(&self, grammar: TopLevelGrammar) -> Result<Matcher, RuleError> {
        let refused = |error: &dyn fmt::Display| RuleError::Refused(one_line(&error.to_string()));
        let parser = self.factory.create_parser(grammar).map_err(|error| refused(&error))?;
        let mut fresh = Matcher::new(Ok(parser));
        // What cannot be begun is refused here, and not in the middle of an answer.
        let mut begun = fresh.deep_clone();
        let mask = begun.compute_mask().map_err(|error| refused(&error))?;
        let ends = self.factory.tok_env().tok_trie().eos_tokens();
        if let Some(token) = mask.iter().find(|token| !ends.contains(token)) {
            begun.consume_token(token).map_err(|error| refused(&error))?;
            // Some of Lark's attributes have no way back, which a constraint needs.
            begun.rollback(1).map_err(|error| refused(&error))?;
        }
        if let Some(warning) = fresh.grammar_warnings().first() {
            return Err(refused(warning));
        }
        Ok(fresh)
    }

    /// Who was asked for last stands first.
    fn find(&self, rule: &Rule) -> Option<Grammar> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(other, _)| other == rule)?;
        let found = kept.remove(at)?;
        let grammar = found.1.clone();
        kept.push_front(found);
        Some(grammar)
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.factory.tok_env().tok_trie().vocab_size()).finish()
    }
}

impl Grammar {
    /// For an answer that has no token yet.
    pub fn constraint(&self) -> Constraint {
        let matcher = self.fresh.as_ref().map(|fresh| {
            let fresh = fresh.lock().unwrap_or_else(PoisonError::into_inner);
            fresh.deep_clone()
        });
        Constraint::new(matcher, self.budget.clone(), self.filter.clone())
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammar")
    }
}

/// The compiler follows a rule into the rules that it names by recursion, 7 KiB a step.
fn on_a_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, RuleError> + Send) -> Result<T, RuleError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, work);
        let thread =
            thread.map_err(|error| RuleError::Refused(format!("there is no thread to compile it: {error}")))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// What a compiler says, fit for an error's message.
fn one_line(text: &str) -> String {
    // It catches its own panics, and has the stack behind them.
    let text = text.split("<backtrace>").next().unwrap_or_default().trim_end_matches("<non-verbose/>");
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}
