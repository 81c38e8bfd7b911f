//! Marks that are never text: those of thoughts, behind a thought that was closed from outside, and in an answer that
//! may have none. A model is not told of that, so it closes its thought once more, opens another, or speaks of one.
//!
//! ```text
//!   text ──character──► held ──no mark begins with it──► shown
//!                        └──a whole mark──► gone
//! ```
//!
//! Here goes all text of such an answer, whatever it was read as before: what looked like a call and is none, the head
//! of a message that never came, the two ends of a mark with another one inside it.

use std::collections::VecDeque;

/// Takes marks out of a text that comes in pieces.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    marks: Vec<&'static str>,
    /// Bytes of the longest.
    longest: usize,
    /// What may become a mark.
    held: String,
    /// The end of what was shown.
    tail: String,
    /// Bytes of it behind the last place where something was taken out: as long as they are few, what comes may make a
    /// mark of what was shown.
    since: usize,
}

impl Unseen {
    pub(crate) fn new(marks: Vec<&'static str>) -> Unseen {
        let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
        Unseen { marks, longest, since: longest, ..Unseen::default() }
    }

    /// Whether there is something that may become a mark.
    pub(crate) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// What is shown of the text so far.
    pub(crate) fn hear(&mut self, text: &str) -> String {
        let (mut shown, mut input) = (String::new(), text.chars().collect::<VecDeque<char>>());
        while let Some(c) = input.pop_front() {
            self.held.push(c);
            if self.rests().any(|rest| rest.len() > self.held.len() && rest.starts_with(&self.held)) {
                continue;
            }
            let mark = self.rests().filter(|rest| self.held.starts_with(rest)).map(str::len).max();
            let mut held = std::mem::take(&mut self.held);
            let end = mark.or_else(|| held.chars().next().map(char::len_utf8)).unwrap_or(0);
            for c in held.split_off(end).chars().rev() {
                input.push_front(c);
            }
            match mark {
                Some(_) => self.since = 0,
                None => self.show(&held, &mut shown),
            }
        }
        shown
    }

    /// Something other than text comes next: what is held is no mark.
    pub(crate) fn interrupt(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        let mark = self.rests().filter(|rest| held.starts_with(rest)).map(str::len).max().unwrap_or(0);
        let mut shown = String::new();
        self.show(&held[mark..], &mut shown);
        self.since = 0;
        shown
    }

    /// The text is over. A mark that has begun is not shown; a single character, or a word, may be
    /// the text's own.
    pub(crate) fn end(&mut self) -> String {
        let mut characters = self.held.chars();
        let is_word = characters.next().is_some_and(char::is_alphanumeric);
        if !is_word && characters.next().is_some() {
            self.held.clear();
        }
        self.interrupt()
    }

    fn show(&mut self, text: &str, shown: &mut String) {
        shown.push_str(text);
        self.tail.push_str(text);
        self.since = self.since.saturating_add(text.len());
        while self.tail.len() > self.longest {
            self.tail.remove(0);
        }
    }

    /// What is left of each mark that may have begun in what was shown, and each mark itself.
    fn rests(&self) -> impl Iterator<Item = &'static str> {
        let seam = if self.since < self.longest { self.tail.as_str() } else { "" };
        let begun = seam.char_indices().map(move |(at, _)| &seam[at..]).chain([""]);
        begun
            .flat_map(|begun| self.marks.iter().filter_map(move |mark| mark.strip_prefix(begun)))
            .filter(|rest| !rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_gone_however_it_is_put_together() {
        let marks = vec!["<think>", "</think>", "<|channel>", "<|channel>thought\n"];
        for (text, shown) in [
            ("a<think>b</think>c", "abc"),
            ("a<b</c", "a<b</c"),
            ("<<think>", "<"),
            ("</thi</think>nk>", "</thi"),
            ("<th<think><think>ink>a", "<tha"),
            ("<|channel>thoughts", "thoughts"),
            ("<|channel>thought\ns", "s"),
            ("<|channel>", ""),
            ("a</thi", "a"),
            ("a <", "a <"),
        ] {
            for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
                let mut unseen = Unseen::new(marks.clone());
                let (before, behind) = text.split_at(at);
                let heard = unseen.hear(before) + &unseen.hear(behind) + &unseen.end();
                assert_eq!(heard, shown, "{text:?}, cut at {at}");
            }
        }
        let mut unseen = Unseen::new(marks);
        let heard = unseen.hear("a</th") + &unseen.interrupt() + &unseen.hear("ink>b") + &unseen.end();
        assert_eq!(heard, "a</thb", "a call in the middle of it");
    }
}
