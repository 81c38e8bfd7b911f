//! What an answer must look like, as masks over a vocabulary.
//!
//! ```text
//! Rule (a schema, an expression, a grammar) --Vocabulary::compile--> Grammar, cached for the next request
//!                                                                      |  one per answer
//!                                                                      v
//!                        tokens of the answer --accept--> Constraint --mask--> one bit per token that may follow
//! ```
//!
//! The grammars are llguidance's (<https://github.com/guidance-ai/llguidance>): an Earley parser over a lexer of
//! derivatives, which walks the vocabulary as a trie. This crate adds the request ([`Rule`]), the bytes of a model's
//! tokens ([`Vocabulary`]), the limits, llama.cpp's grammars in its words (`gbnf.rs`), and the rewind that drafts need:
//! a [`Constraint`] is asked for the mask behind a number of tokens, and forgets those it had accepted beyond.
//!
//! **A mask is a pure function of the rule, the vocabulary and the tokens before it.** Each answer has its own
//! lexer, made when the rule was compiled and never shared: the state of one answer changes no other's.
//!
//! A thinking budget (`budget.rs`) is a rule too: it masks nothing until it closes the thought. So is the set of tokens
//! that an answer may have at all (`tokens.rs`), a mask over those of the others.
//!
//! **A rule is an untrusted program.** Compiling counts steps and not time, and what no step counts is counted
//! before (`limits.rs`), so the same rule is refused on every machine; a mask counts too, and a rule that takes more
//! ends its own answer. Chains of rules are followed on a stack that is as deep as the limits let chains be.

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
pub use vocabulary::{Grammar, Vocabulary, check_rule};
