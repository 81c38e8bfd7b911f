//! Which parts of a grammar the lexer may read as a whole.
//!
//! A lexer reads the longest text that any lexeme of the place can be, and never goes back. A grammar of single
//! characters needs no more, but then each character of each token of the vocabulary is a step of the parser. So as
//! many parts as possible are lexemes, and each is one only where that changes nothing: wherever a text of `s` may have
//! ended, and another lexeme `t` of the same place (or `s` itself) would go on with a byte, nothing that may follow `s`
//! begins with that byte. Where something does, `t` is taken apart, in the end to characters, which never go on. What
//! is computed is at most too careful: counts are read as "any number", and a place is known by the lexeme before it.
//!
//! ```text
//! parts --largest that are regular and small--> lexemes --first, follow--> places --conflicts--> apart, and again
//! ```

use std::borrow::Cow;
use std::collections::HashMap;

use super::parse::{Chars, GROUP_CHARS, Id, Part, Parts};

/// Characters that a lexeme may have in the grammar. A JSON string or number has some 20, a date 50; what is larger
/// makes states of the lexer that no other place of an answer shares.
const MAX_CHARS: usize = GROUP_CHARS;
/// Parts in parts of a lexeme.
const MAX_DEPTH: usize = 40;
/// Lexemes of a grammar: pairs of them are compared.
const MAX_LEXEMES: usize = 2048;
/// Steps of all of it (words of sets, pairs of characters), of some nanoseconds each. The largest grammars of
/// llama.cpp's converter take a hundredth.
const MAX_STEPS: usize = 10_000_000;

/// Names in the rules that the parser is left with: it makes some states of each.
const MAX_NAMES: usize = 10_000;

/// It takes more than [`MAX_LEXEMES`], [`MAX_NAMES`] or [`MAX_STEPS`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooIntricate;

/// How a grammar is to be read.
pub(super) struct Plan {
    /// Parts that are reached from the root and hold lexemes, or nothing at all; children first.
    pub(super) rules: Vec<Id>,
    /// Those in them that the lexer reads.
    pub(super) lexemes: Vec<Id>,
    /// Which parts can be nothing, which a lexeme never is: there it may be absent.
    pub(super) is_nullable: Vec<bool>,
}

/// Texts that stay no lexemes become sequences of characters.
pub(super) fn plan(parts: &mut Parts) -> Result<Plan, TooIntricate> {
    let single = |(id, part): (Id, &Part)| if let Part::Char(set) = part { Some((set.single()?, id)) } else { None };
    let mut chars: HashMap<char, Id> = parts.all.iter().enumerate().filter_map(single).collect();
    for id in 0..parts.all.len() {
        if matches!(&parts.all[id], Part::Text(text) if text.len() > MAX_CHARS) {
            parts.take_apart(id, &mut chars);
        }
    }
    let mut is_nullable = parts.nullable();
    let regular = parts.settled(|part| part.children().len());
    let sizes = sizes(parts, &regular.order);
    let mut is_whole: Vec<bool> =
        sizes.iter().map(|&(chars, depth)| (1..=MAX_CHARS).contains(&chars) && depth <= MAX_DEPTH).collect();
    let mut met = HashMap::new();
    let mut left = MAX_STEPS;
    loop {
        let (rules, lexemes) = reached(parts, &is_whole);
        let names: usize = rules.iter().map(|&id| parts.all[id].children().len()).sum();
        if lexemes.len() > MAX_LEXEMES || names > MAX_NAMES {
            return Err(TooIntricate);
        }
        let mut round = Round { parts, is_nullable: &is_nullable, rules: &rules, lexemes: &lexemes, left };
        let apart = round.conflicts(&mut met)?;
        left = round.left;
        if apart.is_empty() {
            return Ok(Plan { rules, lexemes, is_nullable });
        }
        for id in apart {
            is_whole[id] = false;
            parts.take_apart(id, &mut chars);
        }
        is_whole.resize(parts.all.len(), true);
        is_nullable.resize(parts.all.len(), false);
    }
}

impl Parts {
    /// A text to its characters.
    fn take_apart(&mut self, id: Id, known: &mut HashMap<char, Id>) {
        let Part::Text(text) = &self.all[id] else { return };
        let mut characters = Vec::with_capacity(text.len());
        for c in text.clone() {
            let id = *known.entry(c).or_insert_with(|| {
                self.all.push(Part::Char(Chars::of(vec![(c.into(), c.into())])));
                self.all.len() - 1
            });
            characters.push(id);
        }
        self.all[id] = Part::Sequence(characters);
    }

    fn nullable(&self) -> Vec<bool> {
        let is = self.settled(|part| match part {
            Part::Char(_) | Part::Text(_) => 1,
            Part::Sequence(parts) => parts.len(),
            Part::Either(_) => 1,
            Part::Repeat { least, .. } => usize::from(*least > 0),
        });
        is.is
    }
}

/// Characters and depth of each regular part, as they stand in it; of others, more than any limit.
fn sizes(parts: &Parts, order: &[Id]) -> Vec<(usize, usize)> {
    let mut sizes = vec![(usize::MAX, usize::MAX); parts.all.len()];
    for &id in order {
        let part = &parts.all[id];
        let own = match part {
            Part::Char(_) => 1,
            Part::Text(text) => text.len(),
            _ => 0,
        };
        let inner = part.children().iter().map(|&child| sizes[child]);
        sizes[id] = inner.fold((own, 1), |sum, of| (of.0.saturating_add(sum.0), sum.1.max(of.1.saturating_add(1))));
    }
    sizes
}

/// The parts that stay rules, children first, and the lexemes in them.
fn reached(parts: &Parts, is_whole: &[bool]) -> (Vec<Id>, Vec<Id>) {
    let (mut rules, mut lexemes) = (Vec::new(), Vec::new());
    let mut is_seen = vec![false; parts.all.len()];
    let mut open = vec![(parts.root, 0)];
    is_seen[parts.root] = true;
    while let Some((id, next)) = open.pop() {
        if is_whole[id] {
            lexemes.push(id);
        } else if let Some(&child) = parts.all[id].children().get(next) {
            open.push((id, next + 1));
            if !std::mem::replace(&mut is_seen[child], true) {
                open.push((child, 0));
            }
        } else {
            rules.push(id);
        }
    }
    (rules, lexemes)
}

/// One choice of lexemes.
struct Round<'a> {
    parts: &'a Parts,
    is_nullable: &'a [bool],
    rules: &'a [Id],
    lexemes: &'a [Id],
    left: usize,
}

/// First bytes of characters.
type Bytes = [u64; 4];

/// What two lexemes have in common.
#[derive(Clone, Copy, Default)]
struct Met {
    /// With what the second goes on where the first may have ended.
    goes_on: Bytes,
    /// Whether one text is both.
    is_both: bool,
}

impl Round<'_> {
    /// Lexemes that would go on where another has ended.
    fn conflicts(&mut self, met: &mut HashMap<(Id, Id), Met>) -> Result<Vec<Id>, TooIntricate> {
        let count = self.lexemes.len();
        self.spend(self.parts.all.len() * (1 + count.div_ceil(64)))?;
        let mut slot = vec![usize::MAX; self.parts.all.len()];
        for (at, &id) in self.lexemes.iter().enumerate() {
            slot[id] = at;
        }
        let first = self.first(&slot)?;
        let next = self.follow(&slot, &first)?;
        let readers: Vec<Reader> = self.lexemes.iter().map(|&id| Reader::new(self.parts, id)).collect();
        self.spend(readers.iter().flat_map(|reader| &reader.next).map(|next| 1 + next.len()).sum())?;
        let follows: Vec<Bytes> =
            (0..count).map(|s| next.of(s).fold([0; 4], |sum, t| union(sum, readers[t].first_bytes()))).collect();
        // Which may be asked for at one place: those that may begin an answer, those that may follow one lexeme, and
        // those that may follow two that can be the same text at one place.
        let mut places = Sets::new(count, count);
        let mut new = Vec::new();
        let root = self.parts.root;
        self.join(&mut places, first.row(root), first.row(root), &mut new)?;
        for s in 0..count {
            self.join(&mut places, next.row(s), next.row(s), &mut new)?;
        }
        let mut apart = Vec::new();
        while let Some((s, t)) = new.pop() {
            self.spend(1)?;
            if !meet(readers[s].first_bytes(), readers[t].first_bytes()) {
                continue;
            }
            // What ends the answer is followed by nothing that could be read wrongly.
            if follows[s] == [0; 4] {
                continue;
            }
            let key = (self.lexemes[s], self.lexemes[t]);
            let common = match met.get(&key) {
                Some(&common) => common,
                None => {
                    let common = self.common(&readers[s], &readers[t])?;
                    met.insert(key, common);
                    common
                }
            };
            if meet(common.goes_on, follows[s]) {
                apart.push(key.1);
            }
            if common.is_both && s != t {
                self.join(&mut places, next.row(s), next.row(t), &mut new)?;
            }
        }
        apart.sort_unstable();
        apart.dedup();
        Ok(apart)
    }

    /// Each of `a` is asked for where each of `b` is; pairs that were not known before are new.
    fn join(
        &mut self,
        places: &mut Sets,
        a: &[u64],
        b: &[u64],
        new: &mut Vec<(usize, usize)>,
    ) -> Result<(), TooIntricate> {
        for (from, to) in [(a, b), (b, a)] {
            for s in ones(from) {
                self.spend(to.len())?;
                for (word, &bits) in to.iter().enumerate() {
                    let row = &mut places.row_mut(s)[word];
                    let fresh = bits & !*row;
                    *row |= bits;
                    new.extend(ones(&[fresh]).map(|bit| (s, word * 64 + bit)));
                }
            }
        }
        Ok(())
    }

    /// Lexemes that a part may begin with.
    fn first(&mut self, slot: &[usize]) -> Result<Sets, TooIntricate> {
        let mut first = Sets::new(self.parts.all.len(), self.lexemes.len());
        for &id in self.lexemes {
            first.add(id, slot[id]);
        }
        let mut is_changing = true;
        while is_changing {
            is_changing = false;
            for &id in self.rules {
                for &child in self.parts.all[id].children() {
                    self.spend(first.width)?;
                    is_changing |= first.union(id, child);
                    if matches!(self.parts.all[id], Part::Sequence(_)) && !self.is_nullable[child] {
                        break;
                    }
                }
            }
        }
        Ok(first)
    }

    /// Lexemes that may follow each lexeme.
    fn follow(&mut self, slot: &[usize], first: &Sets) -> Result<Sets, TooIntricate> {
        let mut follow = Sets::new(self.parts.all.len(), self.lexemes.len());
        let mut behind = vec![0; follow.width];
        let mut is_changing = true;
        while is_changing {
            is_changing = false;
            for &id in self.rules.iter().rev() {
                behind.copy_from_slice(follow.row(id));
                let part = &self.parts.all[id];
                if let Part::Repeat { part, most, .. } = part
                    && *most != Some(1)
                {
                    or(&mut behind, first.row(*part));
                }
                for &child in part.children().iter().rev() {
                    self.spend(2 * first.width)?;
                    is_changing |= or(follow.row_mut(child), &behind);
                    if let Part::Sequence(_) = part {
                        if !self.is_nullable[child] {
                            behind.fill(0);
                        }
                        or(&mut behind, first.row(child));
                    }
                }
            }
        }
        let mut of_lexemes = Sets::new(self.lexemes.len(), self.lexemes.len());
        for &id in self.lexemes {
            of_lexemes.row_mut(slot[id]).copy_from_slice(follow.row(id));
        }
        Ok(of_lexemes)
    }

    /// Both read the same text, in all ways at once.
    fn common(&mut self, s: &Reader, t: &Reader) -> Result<Met, TooIntricate> {
        let mut common = Met::default();
        // To begin costs something too.
        self.spend(8 + s.chars.len() * t.chars.len() / 64)?;
        let mut is_seen = vec![false; s.chars.len() * t.chars.len()];
        let mut open = Vec::new();
        let mut steps = vec![(&s.first, &t.first)];
        loop {
            if let Some((from, to)) = steps.pop() {
                self.spend(from.len() * to.len())?;
                for (&p, &q) in from.iter().flat_map(|p| to.iter().map(move |q| (p, q))) {
                    let pair = p * t.chars.len() + q;
                    if !is_seen[pair] && s.chars[p].meets(&t.chars[q]) {
                        is_seen[pair] = true;
                        open.push((p, q));
                    }
                }
            }
            let Some((p, q)) = open.pop() else { return Ok(common) };
            if s.is_last[p] {
                common.goes_on = t.next[q].iter().fold(common.goes_on, |sum, &next| union(sum, t.bytes[next]));
                common.is_both |= t.is_last[q];
            }
            steps.push((&s.next[p], &t.next[q]));
        }
    }

    fn spend(&mut self, steps: usize) -> Result<(), TooIntricate> {
        self.left = self.left.checked_sub(steps).ok_or(TooIntricate)?;
        Ok(())
    }
}

/// A lexeme as an automaton, a state for each of its characters (Glushkov's).
struct Reader<'a> {
    chars: Vec<Cow<'a, Chars>>,
    /// First bytes of each.
    bytes: Vec<Bytes>,
    /// With which it begins, which may follow each, and with which it may end.
    first: Vec<usize>,
    next: Vec<Vec<usize>>,
    is_last: Vec<bool>,
}

impl<'a> Reader<'a> {
    fn new(parts: &'a Parts, id: Id) -> Reader<'a> {
        let empty =
            Reader { chars: Vec::new(), bytes: Vec::new(), first: Vec::new(), next: Vec::new(), is_last: Vec::new() };
        let mut reader = empty;
        let whole = reader.add(parts, id);
        reader.first = whole.first;
        reader.is_last = vec![false; reader.chars.len()];
        whole.last.iter().for_each(|&last| reader.is_last[last] = true);
        reader
    }

    /// By recursion: at most [`MAX_DEPTH`].
    fn add(&mut self, parts: &'a Parts, id: Id) -> Span {
        match &parts.all[id] {
            Part::Char(chars) => {
                let state = self.state(Cow::Borrowed(chars));
                Span { first: vec![state], last: vec![state], is_nullable: false }
            }
            Part::Text(text) => {
                let from = self.chars.len();
                for (at, &c) in text.iter().enumerate() {
                    self.state(Cow::Owned(Chars::of(vec![(c.into(), c.into())])));
                    if at > 0 {
                        self.next[from + at - 1].push(from + at);
                    }
                }
                Span { first: vec![from], last: vec![from + text.len() - 1], is_nullable: false }
            }
            Part::Sequence(children) => {
                let mut whole = Span { first: Vec::new(), last: Vec::new(), is_nullable: true };
                for &child in children {
                    let span = self.add(parts, child);
                    self.link(&whole.last, &span.first);
                    if whole.is_nullable {
                        whole.first.extend(&span.first);
                    }
                    if !span.is_nullable {
                        whole.last.clear();
                    }
                    whole.last.extend(span.last);
                    whole.is_nullable &= span.is_nullable;
                }
                whole
            }
            Part::Either(children) => {
                let mut whole = Span { first: Vec::new(), last: Vec::new(), is_nullable: false };
                for &child in children {
                    let span = self.add(parts, child);
                    whole.first.extend(span.first);
                    whole.last.extend(span.last);
                    whole.is_nullable |= span.is_nullable;
                }
                whole
            }
            Part::Repeat { part, least, most } => {
                let span = self.add(parts, *part);
                if *most != Some(1) {
                    self.link(&span.last, &span.first);
                }
                Span { is_nullable: span.is_nullable || *least == 0, ..span }
            }
        }
    }

    fn state(&mut self, chars: Cow<'a, Chars>) -> usize {
        self.bytes.push(chars.first_bytes());
        self.next.push(Vec::new());
        self.chars.push(chars);
        self.chars.len() - 1
    }

    fn link(&mut self, from: &[usize], to: &[usize]) {
        for &state in from {
            self.next[state].extend(to);
            self.next[state].sort_unstable();
            self.next[state].dedup();
        }
    }

    fn first_bytes(&self) -> Bytes {
        self.first.iter().fold([0; 4], |sum, &state| union(sum, self.bytes[state]))
    }
}

/// A piece of a reader.
struct Span {
    first: Vec<usize>,
    last: Vec<usize>,
    is_nullable: bool,
}

impl Chars {
    /// Bytes that UTF-8 begins them with.
    fn first_bytes(&self) -> Bytes {
        let mut bytes = [0; 4];
        for &(first, last) in &self.0 {
            for (low, high, shift, mark) in
                [(0, 0x7F, 0, 0), (0x80, 0x7FF, 6, 0xC0), (0x800, 0xFFFF, 12, 0xE0), (0x1_0000, 0x10_FFFF, 18, 0xF0)]
            {
                let (first, last) = (first.max(low), last.min(high));
                if first <= last {
                    for byte in (mark | first >> shift) as usize..=(mark | last >> shift) as usize {
                        bytes[byte / 64] |= 1 << (byte % 64);
                    }
                }
            }
        }
        bytes
    }
}

fn union(a: Bytes, b: Bytes) -> Bytes {
    std::array::from_fn(|word| a[word] | b[word])
}

fn meet(a: Bytes, b: Bytes) -> bool {
    a.iter().zip(b).any(|(a, b)| a & b != 0)
}

/// Sets of lexemes, a row of bits each.
struct Sets {
    width: usize,
    words: Vec<u64>,
}

impl Sets {
    fn new(rows: usize, members: usize) -> Sets {
        let width = members.div_ceil(64);
        Sets { width, words: vec![0; rows * width] }
    }

    fn row(&self, row: usize) -> &[u64] {
        &self.words[row * self.width..][..self.width]
    }

    fn row_mut(&mut self, row: usize) -> &mut [u64] {
        &mut self.words[row * self.width..][..self.width]
    }

    fn add(&mut self, row: usize, member: usize) {
        self.row_mut(row)[member / 64] |= 1 << (member % 64);
    }

    /// Whether it was not there already.
    fn union(&mut self, row: usize, other: usize) -> bool {
        let mut is_new = false;
        for word in 0..self.width {
            let from = self.words[other * self.width + word];
            let to = &mut self.words[row * self.width + word];
            is_new |= from & !*to != 0;
            *to |= from;
        }
        is_new
    }

    fn of(&self, row: usize) -> impl Iterator<Item = usize> {
        ones(self.row(row))
    }
}

/// Whether anything was new.
fn or(to: &mut [u64], from: &[u64]) -> bool {
    let mut is_new = false;
    for (to, &from) in to.iter_mut().zip(from) {
        is_new |= from & !*to != 0;
        *to |= from;
    }
    is_new
}

fn ones(words: &[u64]) -> impl Iterator<Item = usize> {
    let bits = |word: u64| {
        std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1))).take_while(|word| *word != 0)
    };
    words
        .iter()
        .enumerate()
        .flat_map(move |(at, &word)| bits(word).map(move |word| at * 64 + word.trailing_zeros() as usize))
}
