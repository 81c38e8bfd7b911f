//! The rules of answers, as a stranger writes them.

use grammar::{Rule, Vocabulary};
use std::sync::OnceLock;
use text::tokenizer::Tokenizer;

/// Tokens that are followed.
const TOKENS: usize = 12;

/// A rule: one byte says of which kind, and its text. It is compiled, and followed where the bytes themselves choose.
/// It is taken where an answer to it can be begun.
pub fn rule(bytes: &[u8]) -> bool {
    static MODEL: OnceLock<(Tokenizer, Vocabulary)> = OnceLock::new();
    let (tokenizer, vocabulary) = MODEL.get_or_init(|| {
        const LANTERN: &str = include_str!("../../models/lantern/tokenizer.json");
        const SETTINGS: &str = include_str!("../../models/lantern/tokenizer_config.json");
        let tokenizer = Tokenizer::from_json(LANTERN, Some(SETTINGS), None, 1 << 16).expect("a committed tokenizer");
        let end = tokenizer.eos_id().expect("it ends its answers");
        let vocabulary = Vocabulary::new(&tokenizer, tokenizer.vocab_size(), &[end], &[]);
        (tokenizer, vocabulary)
    });
    let Some((kind, text)) = bytes.split_first() else { return false };
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let rule = match kind {
        b's' => match serde_json::from_str(text) {
            Ok(schema) => Rule::JsonSchema(schema),
            Err(_) => return false,
        },
        b'r' => Rule::Regex(text.to_owned()),
        b'c' => Rule::Choice(text.split('\n').map(str::to_owned).collect()),
        b'l' => Rule::Lark(text.to_owned()),
        b'g' => Rule::Gbnf(text.to_owned()),
        _ => return false,
    };
    let grammar = match vocabulary.compile(&rule) {
        Ok(grammar) => grammar,
        Err(error) => {
            let error = error.to_string();
            assert!(!error.is_empty() && error.len() < 2000 && !error.contains('\n'), "{error:?}");
            return false;
        }
    };
    let (mut constraint, mut again) = (grammar.constraint(), grammar.constraint());
    let mut accepted = Vec::new();
    for at in 0..TOKENS {
        // A request that takes too many steps ends its own answer.
        let Ok(Some(mask)) = constraint.mask(at) else { break };
        let mask = mask.to_vec();
        let allowed = |id: u32| mask[id as usize / 32] >> (id % 32) & 1 == 1;
        let choices: Vec<u32> = (0..tokenizer.vocab_size() as u32).filter(|id| allowed(*id)).collect();
        let Some(&token) = choices.get(bytes[at % bytes.len()] as usize * 251 % choices.len().max(1)) else { break };
        if constraint.accept(token).is_err() {
            break;
        }
        accepted.push((mask, token));
        if constraint.is_complete(at + 1) {
            break;
        }
    }
    // The same masks for later requests, and on the way back.
    for (at, (mask, token)) in accepted.iter().enumerate() {
        assert_eq!(again.mask(at).ok(), Some(Some(&mask[..])), "another mask before token {at}");
        again.accept(*token).expect("it was accepted before");
    }
    for (at, (mask, _)) in accepted.iter().enumerate().rev() {
        assert_eq!(again.mask(at).ok(), Some(Some(&mask[..])), "another mask on the way back to {at}");
    }
    true
}
