//! Incremental detokenization: never half a character, and no part of a stop string.
//!
//! ```text
//! tokens     "Ce"  "llo"  " E2"  " 82"  " AC"   "\nUs"  "er:"         stop: "\nUser:"
//! pushed     Ce    llo    ·      ·      €       ·       (stopped)
//!                         └ bytes of €, held   └ could begin the stop string, held
//! ```
//!
//! The concatenation of what [`Detokenizer::push`] and [`Detokenizer::finish`] return is the full decode of the tokens,
//! cut before the first stop string, for any way of cutting the tokens into steps. What is held back is at most an
//! unfinished character (3 bytes) and one byte less than the longest stop string.

use std::sync::Arc;

use crate::tokenizer::{DecodeState, Tokenizer};

/// The texts that end an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStrings {
    /// Each non-empty; request validation limits their number and length.
    pub strings: Vec<String>,
    /// Whether the answer keeps the stop string that ended it.
    pub include: bool,
}

/// The text that one token added to the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextPiece {
    /// Text that can be sent now; empty while all of it is held back.
    pub text: String,
    /// Index of the stop string that ended the answer. Nothing may be pushed after it.
    pub stopped: Option<usize>,
}

/// Streaming decoder of one answer.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    shown: Arc<[u32]>,
    state: DecodeState,
    /// Bytes of a character that is not complete.
    bytes: Vec<u8>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stops: Vec<Stop>,
    include: bool,
    stopped: bool,
}

impl Detokenizer {
    /// A decoder at the beginning of an answer. `skip_special`: special tokens produce no text.
    pub fn new(tokenizer: Arc<Tokenizer>, stop: &StopStrings, skip_special: bool) -> Detokenizer {
        Detokenizer {
            tokenizer,
            skip_special,
            shown: Arc::default(),
            state: DecodeState::default(),
            bytes: Vec::new(),
            held: String::new(),
            stops: stop.strings.iter().map(|text| Stop::new(text)).collect(),
            include: stop.include,
            stopped: false,
        }
    }

    /// Special tokens that are text even with `skip_special`.
    pub fn showing(self, shown: Arc<[u32]>) -> Detokenizer {
        Detokenizer { shown, ..self }
    }

    /// Adds the next token; returns the text that can no longer change.
    pub fn push(&mut self, token: u32) -> TextPiece {
        let text = self.decode(token);
        self.release(&text)
    }

    /// [`push`](Self::push) for a token before `min_tokens` is reached: no stop string may begin in its text.
    pub fn push_unstoppable(&mut self, token: u32) -> String {
        let text = self.decode(token);
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
        std::mem::take(&mut self.held) + &text
    }

    /// The rest of an answer that no stop string ended: held text, and U+FFFD for an unfinished character. Empty after
    /// a stop string.
    pub fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let text = take_text(&mut self.bytes, true);
        // U+FFFD can complete a stop string only if the stop string holds one; it ends the answer like any other.
        let piece = self.release(&text);
        piece.text + &std::mem::take(&mut self.held)
    }

    fn decode(&mut self, token: u32) -> String {
        assert!(!self.stopped, "a token after the stop string");
        let skip = self.skip_special && !self.shown.contains(&token);
        self.tokenizer.append(token, skip, &mut self.state, &mut self.bytes);
        take_text(&mut self.bytes, false)
    }

    /// Adds `text` to the held text, and returns what can no longer belong to a stop string. The stop string that
    /// completes first ends the answer; if several complete at the same byte, the longest.
    fn release(&mut self, text: &str) -> TextPiece {
        for (i, &byte) in text.as_bytes().iter().enumerate() {
            let mut complete: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                if stop.step(byte) && complete.is_none_or(|(_, longest)| stop.text.len() > longest) {
                    complete = Some((index, stop.text.len()));
                }
            }
            let Some((stop, length)) = complete else { continue };
            let end = self.held.len() + i + 1;
            self.held.push_str(text);
            self.held.truncate(if self.include { end } else { end - length });
            self.stopped = true;
            return TextPiece { text: std::mem::take(&mut self.held), stopped: Some(stop) };
        }
        self.held.push_str(text);
        let uncertain = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        // A stop string begins with a whole character, so this is a character's boundary.
        let rest = self.held.split_off(self.held.len() - uncertain);
        TextPiece { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }
}

/// One stop string, searched for byte by byte (Knuth, Morris & Pratt, 1977).
#[derive(Clone, Debug)]
struct Stop {
    text: Vec<u8>,
    /// `[text]`: length of the longest proper prefix of the text that ends here.
    borders: Vec<usize>,
    /// Bytes of `text` that the input so far ends with; less than all of them.
    matched: usize,
}

impl Stop {
    fn new(text: &str) -> Stop {
        assert!(!text.is_empty(), "an empty stop string");
        let text = text.as_bytes().to_vec();
        let mut borders = vec![0; text.len()];
        let mut length = 0;
        for i in 1..text.len() {
            while length > 0 && text[i] != text[length] {
                length = borders[length - 1];
            }
            length += usize::from(text[i] == text[length]);
            borders[i] = length;
        }
        Stop { text, borders, matched: 0 }
    }

    /// True when `byte` completes the stop string.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.text[self.matched] == byte);
        let complete = self.matched == self.text.len();
        if complete {
            self.matched = self.borders[self.matched - 1];
        }
        complete
    }
}

/// Takes the complete characters off the front; invalid UTF-8 becomes U+FFFD, exactly as `from_utf8_lossy` on the whole
/// text. `at_end`: an unfinished character becomes U+FFFD too.
fn take_text(bytes: &mut Vec<u8>, at_end: bool) -> String {
    let mut text = String::new();
    let mut taken = 0;
    while taken < bytes.len() {
        match std::str::from_utf8(&bytes[taken..]) {
            Ok(valid) => {
                text.push_str(valid);
                taken = bytes.len();
            }
            Err(error) => {
                let valid = &bytes[taken..taken + error.valid_up_to()];
                text.push_str(std::str::from_utf8(valid).expect("checked by the line above"));
                taken += valid.len();
                match error.error_len() {
                    Some(wrong) => taken += wrong,
                    None if at_end => taken = bytes.len(),
                    None => break,
                }
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }
    bytes.drain(..taken);
    text
}
