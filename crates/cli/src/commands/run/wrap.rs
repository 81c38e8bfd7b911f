//! Words of a streamed answer that stay whole at the edge of a terminal. Text in, and the columns: text out.
//!
//! ```text
//! "The quick br" "own fox"   20 columns   >   "The quick " held "br" ; "brown" does not fit: "\nbrown " held "fox"
//! ```
//! The last word is held until its end is known. Wide characters (Chinese, Japanese, Korean, emoji) may stand on lines of
//! their own, but for punctuation that closes. A word that is longer than a line is cut. Lines between the fences of code
//! stay as they are.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Columns from one stop of the tabulator to the next.
const TAB: usize = 8;
/// Bytes of one word, beside those of a line, after which it is no word.
const MAX_WORD_BYTES: usize = 256;
/// No line begins with one of these.
const CLOSING: &str = "、。，．・：；？！）」』】〕》〉’”…ー〜";

/// Where a text is on its way to the terminal.
#[derive(Debug, Default)]
pub(super) struct Wrap {
    /// Columns of the line that are written.
    column: usize,
    /// White space behind them, written with the word that follows it.
    gap: String,
    /// What may go on.
    word: String,
    /// The word is longer than a line, and some of it is written.
    is_cut: bool,
    line: Line,
    /// The mark of the fence that the text is behind.
    fence: Option<char>,
}

/// The beginning of a line of the text, as far as it shows a fence.
#[derive(Debug, Default)]
struct Line {
    /// Of `mark`s at the beginning.
    marks: usize,
    mark: char,
    /// Something stands behind the marks.
    has_more: bool,
    /// The mark is there too: what looked like a fence is code within a line.
    has_mark_again: bool,
}

impl Line {
    fn push(&mut self, c: char) {
        match c {
            ' ' if self.marks == 0 => {}
            '`' | '~' if self.marks == 0 && !self.has_more => (self.mark, self.marks) = (c, 1),
            _ if self.marks > 0 && c == self.mark && !self.has_more => self.marks += 1,
            _ => {
                self.has_mark_again |= c == self.mark && c == '`';
                self.has_more |= !c.is_whitespace() || self.marks > 0;
            }
        }
    }

    /// The fence that the text is behind after this line.
    fn fence(&self, fence: Option<char>) -> Option<char> {
        let is_fence = self.marks >= 3 && !self.has_mark_again;
        match fence {
            None => is_fence.then_some(self.mark),
            Some(mark) if is_fence && self.mark == mark && !self.has_more => None,
            fence => fence,
        }
    }
}

impl Wrap {
    /// The next piece of a text, on a terminal of this width; 0 where it has none.
    pub(super) fn push(&mut self, text: &str, columns: usize) -> String {
        let mut out = String::with_capacity(text.len() + 8);
        for c in text.chars() {
            if c == '\n' {
                self.settle(true, columns, &mut out);
                self.gap.clear();
                out.push('\n');
                (self.column, self.is_cut) = (0, false);
                self.fence = std::mem::take(&mut self.line).fence(self.fence);
                continue;
            }
            self.line.push(c);
            match c {
                _ if columns == 0 || self.fence.is_some() => {
                    self.settle(true, columns, &mut out);
                    out.push_str(&std::mem::take(&mut self.gap));
                    out.push(c);
                }
                ' ' | '\t' | '\u{3000}' => {
                    self.settle(true, columns, &mut out);
                    self.gap.push(c);
                    self.is_cut = false;
                }
                c => self.word.push(c),
            }
        }
        self.settle(false, columns, &mut out);
        out
    }

    /// What is still held: nothing goes on for now.
    pub(super) fn end(&mut self, columns: usize) -> String {
        let mut out = String::new();
        self.settle(true, columns, &mut out);
        out.push_str(&std::mem::take(&mut self.gap));
        out
    }

    /// Writes what is known of the word; `is_whole`: all of it.
    fn settle(&mut self, is_whole: bool, columns: usize, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let word = std::mem::take(&mut self.word);
        if columns == 0 {
            out.push_str(&std::mem::take(&mut self.gap));
            out.push_str(&word);
            return;
        }
        let mut units = units(&word);
        if !is_whole && word.len() <= columns + MAX_WORD_BYTES {
            self.word = units.pop().unwrap_or_default().to_owned();
        }
        for unit in units {
            self.write(unit, columns, out);
        }
        // More than a line of it: no wait makes it a word that fits.
        if self.word.len() > columns && self.word.width() > columns {
            let word = std::mem::take(&mut self.word);
            let held = word.grapheme_indices(true).next_back().map_or(0, |(at, _)| at);
            self.write(&word[..held], columns, out);
            self.word = word[held..].to_owned();
            self.is_cut = true;
        }
    }

    /// Writes what stays together, on the next line if this one has no room for it.
    fn write(&mut self, unit: &str, columns: usize, out: &mut String) {
        let gap = std::mem::take(&mut self.gap);
        let (behind_gap, width) = (after(self.column, &gap), unit.width());
        if behind_gap + width <= columns {
            out.push_str(&gap);
            self.column = behind_gap;
        } else if self.column > 0 && !self.is_cut {
            out.push('\n');
            self.column = 0;
        }
        if self.column + width <= columns {
            out.push_str(unit);
            self.column += width;
            return;
        }
        for part in unit.graphemes(true) {
            let width = part.width();
            if self.column > 0 && self.column + width > columns {
                out.push('\n');
                self.column = 0;
            }
            out.push_str(part);
            self.column += width;
        }
    }
}

/// The column behind white space.
fn after(column: usize, gap: &str) -> usize {
    gap.chars().fold(column, |column, c| match c {
        '\t' => (column / TAB + 1) * TAB,
        '\u{3000}' => column + 2,
        _ => column + 1,
    })
}

/// The parts of a word that may stand on lines of their own: narrow characters together, each wide one with what closes
/// behind it.
fn units(word: &str) -> Vec<&str> {
    let mut units = Vec::new();
    let (mut begin, mut was_wide) = (0, false);
    for (at, part) in word.grapheme_indices(true) {
        let is_wide = part.width() > 1;
        let closes = part.chars().all(|c| CLOSING.contains(c) || c.is_ascii_punctuation() && !"([{".contains(c));
        if at > begin && (is_wide || was_wide) && !closes {
            units.push(&word[begin..at]);
            begin = at;
        }
        was_wide = is_wide || was_wide && closes;
    }
    units.push(&word[begin..]);
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In pieces of `piece` characters.
    fn wrapped(text: &str, columns: usize, piece: usize) -> String {
        let chars: Vec<char> = text.chars().collect();
        let mut wrap = Wrap::default();
        let mut out: String =
            chars.chunks(piece).map(|piece| wrap.push(&piece.iter().collect::<String>(), columns)).collect();
        out.push_str(&wrap.end(columns));
        out
    }

    #[test]
    fn words_stay_whole_at_the_edge() {
        let table = [
            ("", 10, ""),
            ("one two three", 0, "one two three"),
            ("one two three", 13, "one two three"),
            ("one two three", 12, "one two\nthree"),
            ("one two three", 7, "one two\nthree"),
            ("one two three", 6, "one\ntwo\nthree"),
            ("one two", 1, "o\nn\ne\nt\nw\no"),
            ("one  two", 8, "one  two"),
            ("one  two", 7, "one\ntwo"),
            ("one \ntwo ", 10, "one\ntwo "),
            ("a\n\n\nb", 10, "a\n\n\nb"),
            ("  - item and more", 10, "  - item\nand more"),
            ("        deep", 6, "deep"),
            ("a\tb", 9, "a\tb"),
            ("a\tb", 8, "a\nb"),
            ("see https://a.example/long and", 12, "see\nhttps://a.ex\nample/long\nand"),
            ("日本語のテキスト", 7, "日本語\nのテキ\nスト"),
            ("日本語。", 6, "日本\n語。"),
            ("日本(a)", 4, "日本\n(a)"),
            ("x日本y", 4, "x日\n本y"),
            ("日", 1, "日"),
            ("日本", 1, "日\n本"),
            ("go 👩‍👩‍👧 go", 5, "go 👩‍👩‍👧\ngo"),
            ("go 👩‍👩‍👧 go", 4, "go\n👩‍👩‍👧\ngo"),
            ("ab 👍🏽", 5, "ab 👍🏽"),
            ("ab 👍🏽", 4, "ab\n👍🏽"),
            ("cafe\u{301} e\u{301}te\u{301}", 8, "cafe\u{301} e\u{301}te\u{301}"),
            ("cafe\u{301} e\u{301}te\u{301}", 7, "cafe\u{301}\ne\u{301}te\u{301}"),
            ("```\nlet  x = y;\n```\none two", 5, "```\nlet  x = y;\n```\none\ntwo"),
            ("  ~~~sh\na b c d\n```\n  ~~~\na b c", 3, "~~~\nsh\na b c d\n```\n  ~~~\na b\nc"),
            ("```not``` a fence\na b c", 9, "```not```\na fence\na b c"),
        ];
        for (text, columns, wanted) in table {
            for piece in [1, 2, 3, 1_000] {
                assert_eq!(wrapped(text, columns, piece), wanted, "{text:?} in {columns} columns by {piece}");
            }
        }
    }

    #[test]
    fn no_line_is_too_long_and_no_word_is_cut_that_fits() {
        const WORDS: [&str; 10] =
            ["a", "fox", "lantern,", "(quietly)", "—", "naïve", "incomprehensibilities", "x86_64", "don't", "\"so\""];
        for seed in 0..300 {
            let mut dice = testing::Dice::new(seed);
            let columns = dice.within(1..=120);
            let words: Vec<&str> = (0..200).map(|_| dice.pick(&WORDS)).collect();
            let out = wrapped(&words.join(" "), columns, dice.within(1..=8));
            assert!(out.lines().all(|line| line.width() <= columns), "seed {seed}: {columns} columns: {out}");
            let longest = words.iter().map(|word| word.width()).max().unwrap_or(0);
            if longest <= columns {
                let kept: Vec<&str> = out.split_whitespace().collect();
                assert_eq!(kept, words, "seed {seed}: {columns} columns");
            }
            let bare = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(bare(&out), bare(&words.join(" ")), "seed {seed}: nothing is lost");
        }
    }

    #[test]
    fn a_terminal_that_changes_meanwhile_counts_from_the_next_word_on() {
        let mut wrap = Wrap::default();
        let out = [("one two three ", 40), ("four five ", 10), ("six seven eight ", 20), ("nine", 0)];
        let mut out: String = out.into_iter().map(|(text, columns)| wrap.push(text, columns)).collect();
        out.push_str(&wrap.end(0));
        assert_eq!(out, "one two three\nfour five six seven\neight nine");
    }

    #[test]
    fn what_has_no_end_is_not_held_for_ever() {
        for (text, columns) in [("x", 80), ("\u{301}", 80), ("日", 80), ("\u{200d}", 1)] {
            let mut wrap = Wrap::default();
            let written: usize = (0..10_000).map(|_| wrap.push(text, columns).len()).sum();
            assert!(written + MAX_WORD_BYTES + 4 * columns > 10_000 * text.len(), "{text:?}: {written}");
        }
    }
}
