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

use std::collections::{HashMap, HashSet};

use llguidance::toktrie::SimpleVob;
use regex_automata::nfa::thompson::{NFA, State, Transition, WhichCaptures};
use regex_automata::util::primitives::StateID;

use super::parse::{GROUP_CHARS, Id, Part, Parts};

/// Characters that a lexeme may have in the grammar. A JSON string or number has some 20, a date 50; what is larger
/// makes states of the lexer that no other place of an answer shares.
const MAX_CHARS: usize = GROUP_CHARS;
/// Parts in parts of a lexeme.
const MAX_DEPTH: usize = 40;
/// Lexemes of a grammar: pairs of them are compared.
const MAX_LEXEMES: usize = 2048;
/// Names in the rules that the parser is left with: it makes some states of each.
const MAX_NAMES: usize = 10_000;
/// Steps of all of it (words of sets), of some nanoseconds each. The largest grammars of llama.cpp's converter take a
/// hundredth.
const MAX_STEPS: usize = 10_000_000;
/// Steps that a range of characters takes to become part of an automaton, and a pair of states to be followed.
const RANGE_STEPS: usize = 20;
const PAIR_STEPS: usize = 24;

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

pub(super) fn plan(parts: &Parts) -> Result<Plan, TooIntricate> {
    let is_nullable = parts.nullable();
    let sizes = sizes(parts);
    let mut is_whole: Vec<bool> =
        sizes.iter().map(|size| (1..=MAX_CHARS).contains(&size.chars) && size.depth <= MAX_DEPTH).collect();
    let mut reading = Reading {
        parts,
        sizes: &sizes,
        is_nullable: &is_nullable,
        readers: HashMap::new(),
        met: HashMap::new(),
        left: MAX_STEPS,
    };
    loop {
        let (rules, lexemes) = reached(parts, &is_whole);
        let names: usize = rules.iter().map(|&id| parts.all[id].children().len()).sum();
        if lexemes.len() > MAX_LEXEMES || names > MAX_NAMES {
            return Err(TooIntricate);
        }
        let apart = reading.conflicts(&rules, &lexemes)?;
        if apart.is_empty() {
            return Ok(Plan { rules, lexemes, is_nullable });
        }
        apart.into_iter().for_each(|id| is_whole[id] = false);
    }
}

impl Parts {
    fn nullable(&self) -> Vec<bool> {
        let is = self.settled(|part| match part {
            Part::Char(_) | Part::Either(_) => 1,
            Part::Sequence(parts) => parts.len(),
            Part::Repeat { least, .. } => usize::from(*least > 0),
        });
        is.is
    }
}

/// Size of a regular part as written; of others, more than any limit.
#[derive(Clone, Copy)]
struct Size {
    chars: usize,
    ranges: usize,
    depth: usize,
}

fn sizes(parts: &Parts) -> Vec<Size> {
    let mut sizes = vec![Size { chars: usize::MAX, ranges: usize::MAX, depth: usize::MAX }; parts.all.len()];
    for id in parts.settled(|part| part.children().len()).order {
        let part = &parts.all[id];
        let (chars, ranges) = if let Part::Char(chars) = part { (1, chars.0.len()) } else { (0, 0) };
        let inner = part.children().iter().map(|&child| sizes[child]);
        sizes[id] = inner.fold(Size { chars, ranges, depth: 1 }, |sum, of| Size {
            chars: sum.chars.saturating_add(of.chars),
            ranges: sum.ranges.saturating_add(of.ranges),
            depth: sum.depth.max(of.depth.saturating_add(1)),
        });
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

/// Choices of lexemes, one after the other.
struct Reading<'a> {
    parts: &'a Parts,
    sizes: &'a [Size],
    is_nullable: &'a [bool],
    readers: HashMap<Id, Reader>,
    met: HashMap<(Id, Id), Met>,
    left: usize,
}

/// A lexeme as an automaton, and the bytes that it may begin with.
struct Reader {
    nfa: NFA,
    first: SimpleVob,
}

/// What two lexemes have in common.
struct Met {
    /// Bytes that continue the second where the first may have ended.
    goes_on: SimpleVob,
    /// Whether one text is both.
    is_both: bool,
}

impl Reading<'_> {
    /// Lexemes that would go on where another has ended.
    fn conflicts(&mut self, rules: &[Id], lexemes: &[Id]) -> Result<Vec<Id>, TooIntricate> {
        let count = lexemes.len();
        self.spend(self.parts.all.len() * (1 + count.div_ceil(64)))?;
        let first = self.first(rules, lexemes)?;
        let follow = self.follow(rules, &first)?;
        for &id in lexemes {
            self.read(id)?;
        }
        let mut follows = vec![SimpleVob::alloc(256); count];
        for (follows, &id) in follows.iter_mut().zip(lexemes) {
            follow[id].iter().for_each(|t| follows.or(&self.readers[&lexemes[t as usize]].first));
        }
        // Which may be asked for at one place: those that may begin an answer, those that may follow one lexeme, and
        // those that may follow two that can be the same text at one place.
        let mut places = vec![SimpleVob::alloc(count); count];
        let mut new = Vec::new();
        for together in lexemes.iter().map(|&id| &follow[id]).chain([&first[self.parts.root]]) {
            self.join(&mut places, together, together, &mut new)?;
        }
        let mut apart = HashSet::new();
        while let Some((s, t)) = new.pop() {
            self.spend(1)?;
            let key = (lexemes[s], lexemes[t]);
            // What ends the answer is followed by nothing that could be read wrongly.
            if follows[s].is_zero() || self.readers[&key.0].first.and_is_zero(&self.readers[&key.1].first) {
                continue;
            }
            if !self.met.contains_key(&key) {
                let met = self.common(&self.readers[&key.0].nfa, &self.readers[&key.1].nfa, false);
                self.spend(met.1)?;
                self.met.insert(key, met.0);
            }
            let Met { goes_on, is_both } = &self.met[&key];
            if !goes_on.and_is_zero(&follows[s]) {
                apart.insert(key.1);
            }
            if *is_both && s != t {
                self.join(&mut places, &follow[key.0], &follow[key.1], &mut new)?;
            }
        }
        Ok(apart.into_iter().collect())
    }

    /// Each of `a` is asked for where each of `b` is; pairs that were not known before are new.
    fn join(
        &mut self,
        places: &mut [SimpleVob],
        a: &SimpleVob,
        b: &SimpleVob,
        new: &mut Vec<(usize, usize)>,
    ) -> Result<(), TooIntricate> {
        for (from, to) in [(a, b), (b, a)] {
            for s in from.iter() {
                self.spend(1 + to.len() / 64)?;
                let mut fresh = to.clone();
                fresh.sub(&places[s as usize]);
                places[s as usize].or(&fresh);
                new.extend(fresh.iter().map(|t| (s as usize, t as usize)));
            }
        }
        Ok(())
    }

    /// Lexemes that a part may begin with.
    fn first(&mut self, rules: &[Id], lexemes: &[Id]) -> Result<Vec<SimpleVob>, TooIntricate> {
        let mut first = vec![SimpleVob::alloc(lexemes.len()); self.parts.all.len()];
        lexemes.iter().enumerate().for_each(|(at, &id)| first[id].set(at, true));
        let mut is_changing = true;
        while is_changing {
            is_changing = false;
            for &id in rules {
                let mut own = std::mem::take(&mut first[id]);
                for &child in self.parts.all[id].children() {
                    self.spend(1 + lexemes.len() / 64)?;
                    is_changing |= add(&mut own, &first[child]);
                    if matches!(self.parts.all[id], Part::Sequence(_)) && !self.is_nullable[child] {
                        break;
                    }
                }
                first[id] = own;
            }
        }
        Ok(first)
    }

    /// Lexemes that may follow a part.
    fn follow(&mut self, rules: &[Id], first: &[SimpleVob]) -> Result<Vec<SimpleVob>, TooIntricate> {
        let nothing = SimpleVob::alloc(first[self.parts.root].len());
        let mut follow = vec![nothing.clone(); self.parts.all.len()];
        let mut is_changing = true;
        while is_changing {
            is_changing = false;
            for &id in rules.iter().rev() {
                let mut behind = follow[id].clone();
                let part = &self.parts.all[id];
                if let Part::Repeat { part, most, .. } = part
                    && *most != Some(1)
                {
                    behind.or(&first[*part]);
                }
                for &child in part.children().iter().rev() {
                    self.spend(2 + nothing.len() / 32)?;
                    is_changing |= add(&mut follow[child], &behind);
                    if let Part::Sequence(_) = part {
                        if !self.is_nullable[child] {
                            behind.set_from(&nothing);
                        }
                        behind.or(&first[child]);
                    }
                }
            }
        }
        Ok(follow)
    }

    /// Makes the automaton of a lexeme.
    fn read(&mut self, id: Id) -> Result<(), TooIntricate> {
        if self.readers.contains_key(&id) {
            return Ok(());
        }
        self.spend(self.sizes[id].ranges.saturating_mul(RANGE_STEPS))?;
        let config = NFA::config().which_captures(WhichCaptures::None);
        let nfa = NFA::compiler().configure(config).build(&self.parts.expression(id, true));
        let nfa = nfa.map_err(|_| TooIntricate)?;
        // These continue it from the empty text.
        let (met, steps) = self.common(&NFA::always_match(), &nfa, true);
        self.spend(steps)?;
        self.readers.insert(id, Reader { nfa, first: met.goes_on });
        Ok(())
    }

    /// Both read the same text, in all ways at once; only one that is nothing may be nothing. And the steps that it took,
    /// or more than there are.
    fn common(&self, s: &NFA, t: &NFA, is_nothing: bool) -> (Met, usize) {
        let mut met = Met { goes_on: SimpleVob::alloc(256), is_both: false };
        let mut seen = HashSet::new();
        let mut open = vec![(s.start_anchored(), t.start_anchored(), is_nothing)];
        while let Some((p, q, may_end)) = open.pop() {
            if seen.len() * PAIR_STEPS > self.left {
                break;
            }
            if !seen.insert((p, q, may_end)) {
                continue;
            }
            let (from, to) = (s.state(p), t.state(q));
            match (from, to) {
                (_, to) if to.is_epsilon() => open.extend(free(to).map(|q| (p, q, may_end))),
                (from, _) if from.is_epsilon() => open.extend(free(from).map(|p| (p, q, may_end))),
                (State::Match { .. }, _) if !may_end => {}
                (State::Match { .. }, State::Match { .. }) => met.is_both = true,
                (State::Match { .. }, to) => {
                    bytes(to).iter().for_each(|b| met.goes_on.allow_range(b.start.into()..=b.end.into()));
                }
                _ => {
                    for a in bytes(from) {
                        let both = bytes(to).iter().filter(|b| a.start <= b.end && b.start <= a.end);
                        open.extend(both.map(|b| (a.next, b.next, true)));
                    }
                }
            }
        }
        (met, (1 + seen.len()) * PAIR_STEPS)
    }

    fn spend(&mut self, steps: usize) -> Result<(), TooIntricate> {
        self.left = self.left.checked_sub(steps).ok_or(TooIntricate)?;
        Ok(())
    }
}

/// Where a state leads without a byte.
fn free(state: &State) -> impl Iterator<Item = StateID> + '_ {
    let (one, two, more) = match state {
        State::Look { next, .. } | State::Capture { next, .. } => (Some(*next), None, &[][..]),
        State::BinaryUnion { alt1, alt2 } => (Some(*alt1), Some(*alt2), &[][..]),
        State::Union { alternates } => (None, None, &alternates[..]),
        _ => (None, None, &[][..]),
    };
    one.into_iter().chain(two).chain(more.iter().copied())
}

/// Where it leads with one.
fn bytes(state: &State) -> &[Transition] {
    match state {
        State::ByteRange { trans } => std::slice::from_ref(trans),
        State::Sparse(sparse) => &sparse.transitions,
        _ => &[],
    }
}

/// Whether anything was new.
fn add(to: &mut SimpleVob, from: &SimpleVob) -> bool {
    // A rule that begins with itself: nothing is new.
    if from.is_empty() {
        return false;
    }
    let before = to.num_set();
    to.or(from);
    to.num_set() > before
}
