//! A cache of compiled grammars: an agent sends the same tools with every turn. Bounded in bytes rather than entries: a
//! schema of one field takes a thousandth of what a catalogue takes.

use std::collections::{BTreeSet, VecDeque};

use llguidance::TokenParser;

use crate::rule::Rule;
use crate::vocabulary::Grammar;

/// Limit on the bytes of all entries, as [`bytes_of`] counts them.
pub(crate) const MOST_BYTES: usize = 64 << 20;

/// The most recently used entry is first.
#[derive(Default)]
pub(crate) struct Kept {
    entries: VecDeque<(Rule, Grammar, usize)>,
    bytes: usize,
}

impl Kept {
    pub(crate) fn find(&mut self, rule: &Rule) -> Option<Grammar> {
        let at = self.entries.iter().position(|(other, ..)| other == rule)?;
        let found = self.entries.remove(at)?;
        let grammar = found.1.clone();
        self.entries.push_front(found);
        Some(grammar)
    }

    /// Adds a grammar and evicts the least recently used ones. A grammar larger than the limit is not kept and evicts
    /// nothing.
    pub(crate) fn add(&mut self, rule: &Rule, grammar: &Grammar, bytes: usize) {
        // With the rule itself, as it was asked.
        let bytes = bytes + rule.bytes();
        if bytes > MOST_BYTES {
            return;
        }
        self.entries.push_front((rule.clone(), grammar.clone(), bytes));
        self.bytes += bytes;
        while self.bytes > MOST_BYTES {
            let Some((.., bytes)) = self.entries.pop_back() else { return };
            self.bytes -= bytes;
        }
    }

    #[cfg(test)]
    pub(crate) fn len_and_bytes(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }
}

/// Estimated bytes of a compiled grammar: one to three times what it takes, as measured with an allocator. Counts what
/// its lexer reports, nodes of expressions, lexemes, and the symbols of its rules.
pub(crate) fn bytes_of(parser: &TokenParser) -> usize {
    let lexer = parser.parser.lexer_stats();
    let grammar = parser.parser.grammar();
    let mut elements = 0;
    let mut seen = BTreeSet::from([grammar.start().as_index()]);
    let mut open = vec![grammar.start()];
    while let Some(symbol) = open.pop() {
        for &rule in grammar.rules_of(symbol) {
            let (body, ..) = grammar.rule_rhs(rule);
            elements += body.len() + 1;
            open.extend(body.iter().filter(|part| seen.insert(part.as_index())));
        }
    }
    (32 << 10)
        + lexer.num_bytes
        + 128 * lexer.num_ast_nodes
        + 512 * lexer.num_regexps
        + 640 * seen.len()
        + 32 * elements
}
