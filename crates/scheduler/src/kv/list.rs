//! Eviction order: a doubly linked list through the numbers `0..len`, in one vector.
//!
//! ```text
//! first -> 4 <-> 0 <-> 2 <- last        1 and 3 are not in it: held, pinned, or empty
//! ```
//!
//! The pool's free blocks and each tier's contents are such lists, least recently used first. Every operation but
//! iteration is O(1), and none allocates.

use alloc::vec::Vec;

/// A list of numbers below its size, each at most once. The owner tracks membership.
#[derive(Clone, Debug)]
pub(super) struct List {
    /// The last entry is the sentinel: its `next` is the first, its `previous` the last.
    links: Vec<Link>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

impl List {
    /// An empty list for `0..size`.
    pub(super) fn empty(size: usize) -> List {
        let sentinel = u32::try_from(size).expect("places are counted in 32 bits");
        List { links: (0..=sentinel).map(|_| Link { previous: sentinel, next: sentinel }).collect(), len: 0 }
    }

    /// All of `0..size`, in order.
    pub(super) fn full(size: usize) -> List {
        let mut list = List::empty(size);
        (0..size).for_each(|index| list.push_last(index));
        list
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    pub(super) fn last(&self) -> Option<usize> {
        let last = self.links[self.sentinel()].previous as usize;
        (last != self.sentinel()).then_some(last)
    }

    /// What follows `index`, which is in the list.
    pub(super) fn next(&self, index: usize) -> Option<usize> {
        let next = self.links[index].next as usize;
        (next != self.sentinel()).then_some(next)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        let in_list = |index: u32| (index as usize != self.sentinel()).then_some(index as usize);
        core::iter::successors(in_list(self.links[self.sentinel()].next), move |&index| in_list(self.links[index].next))
    }

    /// Inserts `index`, which is not in the list, at the front.
    pub(super) fn push_first(&mut self, index: usize) {
        self.insert_before(self.links[self.sentinel()].next as usize, index);
    }

    /// Inserts `index`, which is not in the list, at the end.
    pub(super) fn push_last(&mut self, index: usize) {
        self.insert_before(self.sentinel(), index);
    }

    /// Removes `index`, which is in the list.
    pub(super) fn remove(&mut self, index: usize) {
        let Link { previous, next } = self.links[index];
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
        self.len -= 1;
    }

    /// Panics unless links agree in both directions and with the length.
    pub(super) fn check(&self) {
        let mut previous = self.sentinel();
        let mut count = 0;
        for index in self.iter().take(self.links.len()) {
            assert_eq!(self.links[index].previous as usize, previous, "I3: links of {index}");
            (previous, count) = (index, count + 1);
        }
        assert_eq!((count, self.links[self.sentinel()].previous as usize), (self.len, previous), "I3: the list's end");
    }

    fn sentinel(&self) -> usize {
        self.links.len() - 1
    }

    /// Inserts `index`, which is not in the list, before `next`, which is.
    pub(super) fn insert_before(&mut self, next: usize, index: usize) {
        let previous = self.links[next].previous;
        self.links[index] = Link { previous, next: next as u32 };
        self.links[previous as usize].next = index as u32;
        self.links[next].previous = index as u32;
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    #[test]
    fn the_list_is_a_deque_without_doubles() {
        let (mut list, mut model) = (List::full(9), (0..9).collect::<VecDeque<usize>>());
        let mut dice = testing::Dice::new(1);
        for _ in 0..10_000 {
            let index = dice.roll(9);
            match model.iter().position(|&other| other == index) {
                Some(place) => {
                    list.remove(index);
                    model.remove(place);
                }
                None if dice.percent(50) => {
                    list.push_first(index);
                    model.push_front(index);
                }
                None => {
                    list.push_last(index);
                    model.push_back(index);
                }
            }
            list.check();
            assert!(list.iter().eq(model.iter().copied()));
            assert_eq!((list.first(), list.len()), (model.front().copied(), model.len()));
        }
    }
}
