//! Blocks that nothing holds, and which of them is allocated next.
//!
//! ```text
//! list     [ plain | leaf ... root of a conversation | leaf ... | ... ]     in the order of their release
//! groups             one pace: used and released together                    the least valued is taken from, at its leaf
//! ```
//! A plain block goes first, then one of the group that is least worth keeping ([`Returns::value`]); groups of one value in
//! the order of their release. A group behind whose first block others are cached is left alone while there is another: they
//! could not be found without it. Cost: a look at each group, of [`MOST_SEEN`] at most, once per step that evicts.

use alloc::vec;
use alloc::vec::Vec;

use protocol::Nanos;

use super::list::List;
use super::returns::{Pace, Returns};

/// Groups that are compared at once; with more of them, others are next time.
const MOST_SEEN: usize = 256;
const NONE: u32 = u32::MAX;

/// Blocks beside each other in the list.
#[derive(Clone, Copy, Debug)]
struct Group {
    first: u32,
    pace: Pace,
}

#[derive(Debug)]
pub(super) struct IdleBlocks {
    list: List,
    /// Of each block; [`NONE`] of plain ones and those that are not in the list.
    group_of: Vec<u32>,
    groups: Vec<Option<Group>>,
    vacant: Vec<u32>,
    /// Where the next comparison begins.
    cursor: usize,
    /// The group that was chosen last, and when.
    chosen: (u32, Nanos),
}

impl IdleBlocks {
    /// All of `0..len`, plain.
    pub(super) fn full(len: usize) -> IdleBlocks {
        IdleBlocks {
            list: List::full(len),
            group_of: vec![NONE; len],
            groups: Vec::with_capacity(len),
            vacant: Vec::with_capacity(len),
            cursor: 0,
            chosen: (NONE, Nanos(0)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.list.iter()
    }

    pub(super) fn push_plain(&mut self, block: usize) {
        self.list.push_first(block);
    }

    /// Adds a cached block: the leaf of a conversation first.
    pub(super) fn push_cached(&mut self, block: usize, pace: Pace) {
        let last = self.list.last().map_or(NONE, |last| self.group_of[last]);
        self.group_of[block] = match self.groups.get(last as usize) {
            Some(Some(group)) if group.pace == pace => last,
            _ => self.new_group(Group { first: block as u32, pace }),
        };
        self.list.push_last(block);
    }

    fn new_group(&mut self, group: Group) -> u32 {
        match self.vacant.pop() {
            Some(number) => {
                self.groups[number as usize] = Some(group);
                number
            }
            None => {
                self.groups.push(Some(group));
                self.groups.len() as u32 - 1
            }
        }
    }

    pub(super) fn remove(&mut self, block: usize) {
        let number = core::mem::replace(&mut self.group_of[block], NONE);
        if let Some(Some(group)) = self.groups.get_mut(number as usize)
            && group.first as usize == block
        {
            match self.list.next(block).filter(|&next| self.group_of[next] == number) {
                Some(next) => group.first = next as u32,
                None => {
                    self.groups[number as usize] = None;
                    self.vacant.push(number);
                    if self.chosen.0 == number {
                        self.chosen.0 = NONE; // the next group of that number is another one
                    }
                }
            }
        }
        self.list.remove(block);
    }

    /// The block to allocate. `is_parent`: whether cached blocks are behind one.
    pub(super) fn next(&mut self, now: Nanos, returns: &Returns, is_parent: impl Fn(usize) -> bool) -> Option<usize> {
        let first = self.list.first()?;
        if self.group_of[first] == NONE {
            return Some(first);
        }
        let (chosen, when) = self.chosen;
        if let Some(Some(group)) = self.groups.get(chosen as usize)
            && when == now
            && !is_parent(group.first as usize)
        {
            return Some(group.first as usize);
        }
        let all = self.groups.len();
        let compared = (0..all.min(MOST_SEEN)).map(|index| (self.cursor + index) % all);
        let groups = compared.filter_map(|number| Some((number, self.groups[number]?)));
        let free = groups.filter(|(_, group)| !is_parent(group.first as usize));
        let rank = |&(_, Group { first, pace }): &(usize, Group)| (returns.value(pace, now), pace.used, first);
        let least = free.min_by(|a, b| {
            let ((a, a_used, a_first), (b, b_used, b_first)) = (rank(a), rank(b));
            a.total_cmp(&b).then((a_used, a_first).cmp(&(b_used, b_first)))
        });
        self.cursor = (self.cursor + MOST_SEEN.min(all)) % all.max(1);
        match least {
            Some((number, group)) => {
                self.chosen = (number as u32, now);
                Some(group.first as usize)
            }
            None => Some(first),
        }
    }

    /// Panics unless groups and list agree.
    pub(super) fn check(&self) {
        self.list.check();
        let mut firsts = 0;
        let mut last = NONE;
        for block in self.list.iter() {
            let number = self.group_of[block];
            if number != last && number != NONE {
                let group = self.groups[number as usize].expect("I3: a block of no group");
                assert_eq!(group.first as usize, block, "I3: the first block of a group");
                firsts += 1;
            }
            last = number;
        }
        assert_eq!(firsts, self.groups.iter().flatten().count(), "I3: each group is in one piece");
        assert_eq!(firsts + self.vacant.len(), self.groups.len(), "I3: vacant groups");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Blocks, adjacent ones of one pace, as they would be allocated at second 100.
    fn order(groups: &[(&[usize], Pace)], parents: &[usize]) -> Vec<usize> {
        let mut idle = IdleBlocks::full(9);
        (0..9).for_each(|block| idle.remove(block));
        for (blocks, pace) in groups {
            blocks.iter().for_each(|&block| idle.push_cached(block, *pace));
        }
        let (returns, mut order) = (Returns::new(), Vec::new());
        while let Some(block) = idle.next(Nanos(100 * SECOND), &returns, |block| parents.contains(&block)) {
            idle.remove(block);
            idle.check();
            order.push(block);
        }
        order
    }

    #[test]
    fn the_group_that_is_worth_least_goes_first_and_a_parent_last() {
        let pace = |used: u64, gap: u64| Pace { used: Nanos(used * SECOND), gap: Nanos(gap * SECOND) };
        let soon = Pace { gap: Pace::SOON, ..pace(100, 0) };
        let [old, new] = [(&[0, 1][..], pace(10, 0)), (&[2, 3][..], pace(90, 0))];
        let cases = [
            ("the longest unused", vec![new, old], vec![], vec![0, 1, 2, 3]),
            ("one moment, one group", vec![old, (&[2, 3], pace(10, 0))], vec![], vec![0, 1, 2, 3]),
            ("what is wanted at once", vec![(&[4], soon), new, old], vec![], vec![0, 1, 2, 3, 4]),
            (
                "what came back often is kept longer",
                vec![(&[4], pace(10, 2)), (&[5], pace(95, 500))],
                vec![],
                vec![5, 4],
            ),
            ("a block behind which others are", vec![new, old], vec![0], vec![2, 3, 0, 1]),
            ("all are", vec![new, old], vec![0, 1, 2, 3], vec![2, 3, 0, 1]),
        ];
        for (what, groups, parents, wanted) in cases {
            assert_eq!(order(&groups, &parents), wanted, "{what}");
        }
    }

    #[test]
    fn a_group_that_takes_the_number_of_the_last_choice_is_not_chosen() {
        let (now, returns) = (Nanos(100 * SECOND), Returns::new());
        let mut idle = IdleBlocks::full(3);
        (0..3).for_each(|block| idle.remove(block));
        idle.push_cached(0, Pace::default());
        idle.push_cached(1, Pace { used: Nanos(50 * SECOND), gap: Nanos(0) });
        assert_eq!(idle.next(now, &returns, |_| false), Some(0));
        idle.remove(0);
        idle.push_cached(2, Pace { used: now, gap: Pace::SOON });
        assert_eq!(idle.next(now, &returns, |_| false), Some(1), "and not what is wanted at once");
    }
}
