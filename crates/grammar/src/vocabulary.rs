//! A model's tokens as bytes, and the grammars that were compiled for them.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Logger, Matcher, ParserFactory};
use text::tokenizer::Tokenizer;

use crate::budget::ThoughtBudget;
use crate::constraint::Constraint;
use crate::kept::{Kept, bytes_of};
use crate::limits::{self, StepLimits};
use crate::rule::{Parts, Rule, RuleError};
use crate::tokens::Filter;

/// Longest token that takes part; the trie has room for 1024 bytes.
const MAX_TOKEN_BYTES: usize = 512;
/// Nodes that the trie may have: its counters have 22 bits.
const MAX_TRIE_BYTES: usize = (1 << 22) - 1;
/// Before a token's bytes: it is a special one, which no text spells.
const SPECIAL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// Steps of the compiler and of a mask, far above what published schemas take (its authors measure FHIR's at half of
/// the first) and low enough that a rule that means harm costs others little: 20 ms of a thread that computes nothing
/// else, and some 4 ms of a step. What these do not count has its limits in `limits.rs`.
const COMPILE_STEPS: u64 = 1_000_000;
const MASK_LEXER_STEPS: u64 = 50_000;
/// States of one answer's lexer, of one or two KiB each.
const MAX_LEXER_STATES: usize = 50_000;

/// What a rule is said to have taken that used up what the compiler may take: most often some 30 ms.
const EXHAUSTED_BYTES: usize = 3 << 20;

/// Stack of the thread that compiles: only what is used of it is memory. The deepest chains of rules that the limits
/// let through take less than a quarter of it.
const STACK_BYTES: usize = 128 << 20;

/// The tokens of a model, as a trie of their bytes.
///
/// 152,000 tokens take a third of a second to arrange, and some 20 MB.
pub struct Vocabulary {
    factory: ParserFactory,
    /// Ends that are text as well.
    spelled_ends: Arc<[u32]>,
    kept: Mutex<Kept>,
}

/// A rule that was compiled for a vocabulary. Clones share it.
#[derive(Clone)]
pub struct Grammar {
    /// `None`: any text will do.
    fresh: Option<Arc<Fresh>>,
    budget: Option<(Arc<ThoughtBudget>, TokEnv)>,
    filter: Option<Arc<Filter>>,
    spelled_ends: Arc<[u32]>,
}

/// What an answer's own matcher is a copy of.
struct Fresh {
    /// Has accepted nothing, and never will.
    matcher: Mutex<Matcher>,
    /// What it takes.
    bytes: usize,
}

impl Vocabulary {
    /// `vocab_size`: logits of a row. `ends`: the tokens that end an answer; they may follow what is complete. `shown`:
    /// special tokens whose text is part of an answer; one that is an end may also be the last of that text.
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
        let is_spelled = |&id: &u32| words[id as usize].first().is_some_and(|&first| first != SPECIAL);
        let spelled_ends = ends.iter().copied().filter(is_spelled).collect();
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
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.verbose_errors = false;
        Vocabulary { factory, spelled_ends, kept: Mutex::default() }
    }

    /// The grammar of a rule: milliseconds, unless it was asked for a short while ago. Not for the threads that serve
    /// connections, nor for the engine's.
    pub fn compile(&self, rule: &Rule) -> Result<Grammar, RuleError> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(grammar) = kept().find(rule) {
            return Ok(grammar);
        }
        rule.check_length()?;
        let Parts { tokens, thought, text } = rule.parts();
        let fresh = match text {
            Some(text) => {
                let grammar = text.grammar()?;
                let larks: Vec<_> = grammar.grammars.iter().map(|part| part.lark_grammar.as_deref()).collect();
                let limits = StepLimits::of(text, &larks);
                let fresh = on_a_deep_stack(|| self.fresh(grammar, limits));
                Some(Arc::new(fresh.map_err(|error| in_its_words(text, error))?))
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
            if thought.written().any(is_refused) {
                let message = "the end of its thought has tokens that this model has not, or that may not be chosen";
                return Err(RuleError::Refused(message.to_owned()));
            }
        }
        let budget = thought.map(|thought| (Arc::new(thought.clone()), env.clone()));
        let grammar = Grammar { fresh, budget, filter, spelled_ends: self.spelled_ends.clone() };
        let bytes = grammar.fresh.as_ref().map_or(0, |fresh| fresh.bytes);
        kept().add(rule, &grammar, bytes);
        Ok(grammar)
    }

    fn fresh(&self, grammar: TopLevelGrammar, limits: StepLimits) -> Result<Fresh, RuleError> {
        self.tried(grammar, limits).0
    }

    /// And what it took, in bytes of grammars, however it ended.
    fn tried(&self, grammar: TopLevelGrammar, limits: StepLimits) -> (Result<Fresh, RuleError>, usize) {
        let refused = |error: &dyn fmt::Display| RuleError::Refused(one_line(&error.to_string()));
        let (init, logger) = (GrammarInit::Serialized(grammar), Logger::new(0, 0));
        let mut all = self.factory.limits().clone();
        (all.max_items_in_row, all.step_max_items) = (limits.place_items, limits.mask_items);
        let parser = self.factory.create_parser_from_init_ext(init, logger, InferenceCapabilities::default(), all);
        let parser = match parser {
            Ok(parser) => parser,
            Err(error) => {
                let error = one_line(&error.to_string());
                let work = if error == TOO_LARGE || error == TOO_MANY_STEPS { EXHAUSTED_BYTES } else { 0 };
                return (Err(RuleError::Refused(error)), work);
            }
        };
        let bytes = bytes_of(&parser);
        let fresh = Matcher::new(Ok(parser));
        // What cannot be begun is refused here, and not in the middle of an answer.
        let ends = self.factory.tok_env().tok_trie().eos_tokens();
        let begin = |mut begun: Matcher| {
            let mask = begun.compute_mask().map_err(|error| refused(&error))?;
            if let Some(token) = mask.iter().find(|token| !ends.contains(token)) {
                begun.consume_token(token).map_err(|error| refused(&error))?;
                // Some of Lark's attributes have no way back, which a constraint needs.
                begun.rollback(1).map_err(|error| refused(&error))?;
            }
            begun.grammar_warnings().first().map_or(Ok(()), |warning| Err(refused(warning)))
        };
        let begun = begin(fresh.deep_clone());
        // A row with more ways than are followed was found all the same.
        let work = if begun.is_err() { 2 * bytes } else { bytes };
        (begun.map(|()| Fresh { matcher: Mutex::new(fresh), bytes }), work)
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
            let fresh = fresh.matcher.lock().unwrap_or_else(PoisonError::into_inner);
            fresh.deep_clone()
        });
        Constraint::new(matcher, self.budget.clone(), self.filter.clone(), self.spelled_ends.clone())
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammar")
    }
}

/// Whether a rule of text compiles, with a token for each byte and nothing kept.
pub fn check_rule(rule: &Rule) -> Result<(), RuleError> {
    try_rule(rule).0
}

/// And what it took, in bytes of grammars: a function of the rule, as the answer is.
///
/// A model has other tokens, and a rule may stand behind another: what is allowed here is somewhat less, and beginnings
/// of values that are often one token are one.
pub(crate) fn try_rule(rule: &Rule) -> (Result<(), RuleError>, usize) {
    static BYTES: OnceLock<Vocabulary> = OnceLock::new();
    let grammar = match rule.check_length().and_then(|()| rule.grammar()) {
        Ok(grammar) => grammar,
        Err(error) => return (Err(error), rule.bytes()),
    };
    let larks: Vec<_> = grammar.grammars.iter().map(|part| part.lark_grammar.as_deref()).collect();
    let StepLimits { place_items, mask_items } = StepLimits::of(rule, &larks);
    let limits = StepLimits { place_items: place_items - 10, mask_items: mask_items / 10 * 9 };
    let bytes = BYTES.get_or_init(|| {
        let end = [&[SPECIAL][..], b"end"].concat();
        let begins = ["{\"", "[{", "[{\"", "[[", "[[[", "[\""].map(|text| text.as_bytes().to_vec());
        let words: Vec<Vec<u8>> = (0..=0xFE).map(|byte| vec![byte]).chain([end]).chain(begins).collect();
        Vocabulary::of_words(&words, &[0xFF])
    });
    let tried = on_a_deep_stack(|| Ok(bytes.tried(grammar, limits)));
    let (result, work) = tried.unwrap_or_else(|error| (Err(error), 0));
    let steps = if let Rule::JsonSchema(schema) = rule { limits::steps(schema) } else { 0 };
    (result.map(|_| ()), work + 8 * rule.bytes() + ((steps as usize) << 10))
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

/// What is wrong with an expression, without the grammar that it was put into.
fn in_its_words(rule: &Rule, error: RuleError) -> RuleError {
    let is_expression = match rule {
        Rule::Behind { rule, .. } => matches!(**rule, Rule::Regex(_)),
        rule => matches!(rule, Rule::Regex(_)),
    };
    match error {
        RuleError::Refused(text) if is_expression => RuleError::Refused(of_the_expression(&text)),
        other => other,
    }
}

fn of_the_expression(text: &str) -> String {
    let Some((_, problem)) = text.split_once("(in regex): ") else { return text.to_owned() };
    let problem = problem.split(" 1 | ").next().unwrap_or_default();
    // One parser shows the expression before its words, another behind them.
    let problem = problem.rsplit_once(" error: ").map_or(problem, |(_, problem)| problem);
    format!("the regex is not taken: {}", problem.split(" in regex /").next().unwrap_or_default())
}

const TOO_MANY_STEPS: &str =
    "it takes too many steps to compile: simplify its expressions, or ask for smaller counts and lengths";
const TOO_LARGE: &str = "it becomes too large: simplify it, with fewer branches of 'anyOf' within 'allOf'";
pub(crate) const NOT_APART: &str = "that no two of them hold at once cannot be seen; send 'anyOf'";
/// What the compiler says of its own parts, and what that means to who wrote the rule.
const IN_OUR_WORDS: [(&str, &str); 11] = [
    ("NoExtensionBias", "nothing that it allows ever comes to an end: it is made of itself alone"),
    ("fuel exhausted", TOO_MANY_STEPS),
    ("lexer precomputation failed", TOO_MANY_STEPS),
    ("Unable to determine if regex is empty", TOO_MANY_STEPS),
    ("Too many items", "an answer may go on in too many ways: fewer alternatives, or fewer parts that may be absent"),
    ("schema too large", TOO_LARGE),
    ("grammar.symbols.len()", TOO_LARGE),
    ("too big (limit for this grammar", TOO_LARGE),
    ("Schema intersection stack level exceeded", TOO_LARGE),
    ("oneOf constraints are not supported", NOT_APART),
    ("Regex is empty", "nothing satisfies it: no text has all that is said of texts here"),
];
/// The same of parts of what it says.
const WORDS: [(&str, &str); 11] = [
    ("regex parse error: ", "an expression is not taken: "),
    ("Unsatisfiable schema: ", "nothing satisfies it: "),
    (
        "can't determine if patternProperty regexes ",
        "it takes too many steps to see whether one name may match two of ",
    ),
    ("patternProperty regexes ", "one name may match two of "),
    (" are not disjoint", ", and one of them alone can be held to then: write expressions that have no name in common"),
    (" are disjoint", ": write simpler expressions"),
    ("required property ", "there must be a property "),
    ("required item is unsatisfiable", "there must be an item, and none is allowed"),
    (" is unsatisfiable but minItems is ", " allows nothing, and the least number of items is "),
    (" is unsatisfiable", ", and nothing is allowed in it"),
    ("All options in anyOf are unsatisfiable", "no branch of 'anyOf' allows anything"),
];

/// What a compiler says, fit for an error's message.
fn one_line(text: &str) -> String {
    // It catches its own panics, and has the stack behind them.
    let text = text.split("<backtrace>").next().unwrap_or_default().trim_end_matches("<non-verbose/>");
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((_, counts)) = line.split_once("Current row has ") {
        let counts: Vec<&str> = counts.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
        if let [ways, most, ..] = counts[..] {
            line = format!(
                "an answer may go on in {ways} ways at one place, and {most} are followed: fewer alternatives, or fewer \
                 properties that may be absent"
            );
        }
    }
    if let Some((_, ours)) = IN_OUR_WORDS.iter().find(|(inner, _)| line.contains(inner)) {
        line = (*ours).to_owned();
    }
    for (inner, ours) in WORDS {
        line = line.replace(inner, ours);
    }
    if let Some(panic) = line.strip_prefix("panic: ") {
        line = format!("the compiler failed on it, which is no fault of the rule; say it in other words ({panic})");
    }
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::kept::MOST_BYTES;

    fn vocabulary() -> Vocabulary {
        let words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).chain([b"\xFFend".to_vec()]).collect();
        Vocabulary::of_words(&words, &[256])
    }

    fn kept(vocabulary: &Vocabulary) -> (usize, usize) {
        vocabulary.kept.lock().unwrap().len_and_bytes()
    }

    fn properties(count: usize) -> Rule {
        let all: Map<String, Value> = (0..count).map(|i| (format!("k{i}"), json!({"type": "string"}))).collect();
        Rule::JsonSchema(json!({"type": "object", "properties": all}))
    }

    /// A choice of 4,096 texts that `number` makes distinct.
    fn catalogue(number: usize) -> Rule {
        Rule::Choice((0..4096).map(|i| format!("{number} {i:0100}")).collect())
    }

    #[test]
    fn many_small_grammars_are_kept_and_few_large_ones() {
        let vocabulary = vocabulary();
        let small = |i: usize| Rule::Regex(format!("[a-c]{{{i}}}"));
        for i in 1..200 {
            vocabulary.compile(&small(i)).unwrap();
        }
        assert_eq!(kept(&vocabulary).0, 199, "far more than were kept when their number was bounded");
        let (count, before) = kept(&vocabulary);
        // Who is asked for again takes nothing more.
        vocabulary.compile(&small(1)).unwrap();
        assert_eq!(kept(&vocabulary), (count, before));
        let mut most = 0;
        for i in 0..40 {
            vocabulary.compile(&catalogue(i)).unwrap();
            let (count, bytes) = kept(&vocabulary);
            assert!(bytes <= MOST_BYTES, "{count} grammars of {bytes} bytes");
            most = most.max(count);
            // The newest is always among them.
            assert!(vocabulary.kept.lock().unwrap().find(&catalogue(i)).is_some());
        }
        let (count, _) = kept(&vocabulary);
        assert!(count < 40 && most >= 200, "{count} large ones, after {most} at most");
        assert!(vocabulary.kept.lock().unwrap().find(&small(1)).is_none(), "the oldest went");
        // One that is larger than the limit evicts nothing.
        let before = kept(&vocabulary);
        let grammar = vocabulary.compile(&catalogue(39)).unwrap();
        vocabulary.kept.lock().unwrap().add(&small(7), &grammar, MOST_BYTES);
        assert_eq!(kept(&vocabulary), before);
    }

    /// A mark of calls that ends the answer as well: text to its grammar, and the end of all that is written.
    #[test]
    fn an_end_that_is_text_stands_where_the_answer_is_complete() {
        const MARK: u32 = 257;
        let bytes = (0..=255).map(|byte| vec![byte]);
        let words: Vec<Vec<u8>> = bytes.chain([b"\xFFend".to_vec(), b"<|call|>".to_vec()]).collect();
        let vocabulary = Vocabulary::of_words(&words, &[256, MARK]);
        let text = json!({"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]});
        for (rule, begun, is_allowed) in [
            (Rule::JsonSchema(text.clone()), "{\"s\": \"2", false),
            (Rule::JsonSchema(text.clone()), "{\"s\": \"2\"", false),
            (Rule::JsonSchema(json!({"type": "integer"})), "2", true),
            (Rule::Regex("(?s)a.*z".into()), "ab", false),
            (Rule::Regex("(?s)a.*z".into()), "abz", true),
            (Rule::Choice(vec!["a<|call|>".into(), "b<|call|>c".into()]), "a", true),
            (Rule::Choice(vec!["a<|call|>".into(), "b<|call|>c".into()]), "b", false),
            (Rule::Lark("start: \"a\" /[^z]*/ \"<|call|>\"".into()), "a", true),
        ] {
            let mut constraint = vocabulary.compile(&rule).unwrap().constraint();
            begun.bytes().for_each(|byte| constraint.accept(byte.into()).unwrap());
            let allows = |mask: Option<Option<&[u32]>>| {
                mask.flatten().is_some_and(|mask| mask[MARK as usize / 32] >> (MARK % 32) & 1 == 1)
            };
            let at = begun.len();
            assert_eq!(allows(constraint.mask(at).ok()), is_allowed, "{rule:?} behind {begun}");
            assert_eq!(allows(constraint.mask_behind(at, &[])), is_allowed, "{rule:?} behind {begun}, drafted");
            if is_allowed {
                let before = constraint.mask(at).unwrap().map(<[u32]>::to_vec);
                constraint.accept(MARK).unwrap();
                assert!(constraint.is_complete(at + 1), "{rule:?} behind {begun}");
                assert_eq!(constraint.mask(at).unwrap(), before.as_deref(), "{rule:?} behind {begun}, again");
            }
        }
    }

    #[test]
    fn what_a_grammar_is_said_to_take_is_about_what_it_takes() {
        let vocabulary = vocabulary();
        let lark = |text: String| Rule::Lark(text);
        for rule in [
            Rule::JsonObject,
            properties(40),
            properties(200),
            catalogue(1),
            Rule::Regex(r"(?i)\p{L}\p{Lu}\w\W\d".repeat(100)),
            lark(format!("start: {}", (0..500).map(|i| format!("\"w{i}\"? ")).collect::<String>())),
            lark(format!(
                "start: r0\n{}r300: \"x\"",
                (0..300).map(|i| format!("r{i}: r{} \"y\"\n", i + 1)).collect::<String>()
            )),
            Rule::JsonSchema(json!({"anyOf": (0..60).map(|i| json!({
                "type": "array", "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 100 + i},
                "maxItems": 900 + i,
            })).collect::<Vec<_>>()})),
        ] {
            let (grammar, mut fresh) = (rule.grammar().unwrap(), None);
            let limits = StepLimits { place_items: 20_000, mask_items: 100_000 };
            // On this thread, where bytes are counted.
            let took = allocation_counter::measure(|| fresh = Some(vocabulary.fresh(grammar, limits).unwrap()));
            let said = fresh.expect("it compiles").bytes + rule.bytes();
            let took = took.bytes_current as usize;
            let start: String = format!("{rule:?}").chars().take(80).collect();
            assert!((took / 2..=4 * took).contains(&said), "{start}: {took} bytes, said to be {said}");
        }
    }
}
