//! Marks that are never text: those of thoughts, after a thought that was closed from outside or in an answer without
//! one. The model does not know about that, so it closes its thought again, opens another, or quotes a mark.
//!
//! ```text
//!   text ──character──► held ──no mark begins with it──► emitted
//!                        └──a complete mark──► dropped
//! ```
//!
//! All text of such an answer passes through this filter, however it was parsed before: an invalid call, the header of an
//! incomplete message, the two ends of a mark with another one inside it. Only a form's own text does not.

use std::collections::VecDeque;

/// Removes marks from a text in pieces.
#[derive(Debug, Default)]
pub(crate) struct MarkFilter {
    marks: Vec<&'static str>,
    /// Length of the longest mark in bytes.
    longest: usize,
    /// Possible beginning of a mark.
    held: String,
    /// The end of the emitted text.
    tail: String,
    /// Bytes of it after the last removal: while they are few, the next characters may complete a mark with emitted text.
    since: usize,
}

impl MarkFilter {
    pub(crate) fn new(marks: Vec<&'static str>) -> MarkFilter {
        let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
        MarkFilter { marks, longest, since: longest, ..MarkFilter::default() }
    }

    /// Whether it holds a possible beginning of a mark.
    pub(crate) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the text that can be emitted so far.
    pub(crate) fn filter(&mut self, text: &str) -> String {
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

    /// Something other than text follows: the held text is not a mark.
    pub(crate) fn interrupt(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        let mark = self.rests().filter(|rest| held.starts_with(rest)).map(str::len).max().unwrap_or(0);
        let mut shown = String::new();
        self.show(&held[mark..], &mut shown);
        self.since = 0;
        shown
    }

    /// The text is over. An incomplete mark is dropped; a single character, or a word, may belong to the text.
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

    /// The rest of each mark that may have begun in emitted text, and each complete mark.
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
                let mut filter = MarkFilter::new(marks.clone());
                let (before, behind) = text.split_at(at);
                let visible = filter.filter(before) + &filter.filter(behind) + &filter.end();
                assert_eq!(visible, shown, "{text:?}, cut at {at}");
            }
        }
        let mut filter = MarkFilter::new(marks);
        let visible = filter.filter("a</th") + &filter.interrupt() + &filter.filter("ink>b") + &filter.end();
        assert_eq!(visible, "a</thb", "a call in the middle of it");
    }
}
