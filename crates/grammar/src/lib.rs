//! What an answer must look like, as masks over a vocabulary.
//!
//! ```text
//! Rule (a schema, an expression, a grammar) --Vocabulary::compile--> Grammar, kept for the next who asks
//!                                                                      |  one per answer
//!                                                                      v
//!                        tokens of the answer --accept--> Constraint --mask--> one bit per token that may follow
//! ```
//!
//! The grammars are llguidance's (<https://github.com/guidance-ai/llguidance>): an Earley parser over a lexer of
//! derivatives, which walks the vocabulary as a trie. Here are what is asked for ([`Rule`]), the bytes of a model's
//! tokens ([`Vocabulary`]), the limits, llama.cpp's grammars in its words (`gbnf.rs`), and the way back that guesses
//! need: a [`Constraint`] is asked for the mask behind so many tokens, and forgets those it had accepted beyond.
//!
//! **A mask is a pure function of the rule, the vocabulary and the tokens before it.** Each answer has a lexer of its
//! own, made when the rule was compiled and shared with nobody: what one answer has made of it changes no other's.
//!
//! A thought that may take so many tokens (`budget.rs`) is a rule too: it masks nothing until it closes the thought.
//! So are the tokens that an answer may have at all (`tokens.rs`), a mask over those of the others.
//!
//! **A rule is a program from a stranger.** Compiling counts steps and not time, and what no step counts is counted
//! before (`limits.rs`), so the same rule is refused on every machine; a mask counts too, and a rule that takes more
//! ends its own answer. Whoever follows chains of rules does so on a stack that is as deep as the limits let chains be.

mod budget;
mod constraint;
mod ecma;
mod gbnf;
mod kept;
mod lark;
mod limits;
mod rule;
mod schema;
mod tokens;
mod vocabulary;

pub use budget::ThoughtBudget;
pub use constraint::{Constraint, ConstraintError};
pub use rule::{MAX_CHOICES, MAX_RULE_BYTES, Rule, RuleError};
pub use schema::{Fitted, Misfit, fit_schema};
pub use tokens::TokenRule;
pub use vocabulary::{Grammar, Vocabulary};
