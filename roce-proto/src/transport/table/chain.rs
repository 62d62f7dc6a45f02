//! Doubly linked lists of numbers: any record of a table can join, leave or move in a step.

/// The links of one table's records for one purpose: a record is in at most one list of a chain.
#[derive(Debug)]
pub struct Chain {
    /// Previous and next, one more than the number; 0 is none. Zeroes, so that memory is touched only where used.
    links: Vec<[u32; 2]>,
}

/// One list of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct List {
    head: u32,
    tail: u32,
}

impl List {
    /// The first number.
    #[inline]
    pub const fn head(self) -> Option<u32> {
        self.head.checked_sub(1)
    }

    /// Whether there is none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.head == 0
    }
}

impl Chain {
    /// For records with numbers below `capacity`.
    pub fn new(capacity: u32) -> Chain {
        Chain { links: vec![[0; 2]; capacity as usize] }
    }

    /// Appends a record that is in no list.
    #[inline]
    pub fn push_back(&mut self, list: &mut List, at: u32) {
        let me = at + 1;
        self.links[at as usize] = [list.tail, 0];
        match list.tail.checked_sub(1) {
            Some(last) => self.links[last as usize][1] = me,
            None => list.head = me,
        }
        list.tail = me;
    }

    /// Puts a record that is in no list before all others.
    #[inline]
    pub fn push_front(&mut self, list: &mut List, at: u32) {
        let me = at + 1;
        self.links[at as usize] = [0, list.head];
        match list.head.checked_sub(1) {
            Some(first) => self.links[first as usize][0] = me,
            None => list.tail = me,
        }
        list.head = me;
    }

    /// Puts a record that is in no list behind one that is in this one.
    pub fn insert_after(&mut self, list: &mut List, after: u32, at: u32) {
        let next = self.links[after as usize][1];
        self.links[at as usize] = [after + 1, next];
        self.links[after as usize][1] = at + 1;
        match next.checked_sub(1) {
            Some(n) => self.links[n as usize][0] = at + 1,
            None => list.tail = at + 1,
        }
    }

    /// Takes out a record that is in this list.
    #[inline]
    pub fn remove(&mut self, list: &mut List, at: u32) {
        let [previous, next] = self.links[at as usize];
        match previous.checked_sub(1) {
            Some(p) => self.links[p as usize][1] = next,
            None => list.head = next,
        }
        match next.checked_sub(1) {
            Some(n) => self.links[n as usize][0] = previous,
            None => list.tail = previous,
        }
    }

    /// Takes out the first.
    #[inline]
    pub fn pop_front(&mut self, list: &mut List) -> Option<u32> {
        let at = list.head()?;
        self.remove(list, at);
        Some(at)
    }

    /// The record after one that is in a list.
    #[inline]
    pub fn next(&self, at: u32) -> Option<u32> {
        self.links[at as usize][1].checked_sub(1)
    }

    /// Puts all of `from`, in order, behind `to`; `from` is empty then.
    pub fn append(&mut self, to: &mut List, from: &mut List) {
        let Some(first) = from.head() else { return };
        match to.tail.checked_sub(1) {
            Some(last) => {
                self.links[last as usize][1] = from.head;
                self.links[first as usize][0] = to.tail;
            }
            None => to.head = from.head,
        }
        to.tail = from.tail;
        *from = List::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn order(chain: &Chain, list: List) -> Vec<u32> {
        let mut out = Vec::new();
        let mut at = list.head();
        while let Some(i) = at {
            out.push(i);
            at = chain.next(i);
        }
        out
    }

    proptest! {
        #[test]
        fn two_lists_behave_like_two_deques(ops in prop::collection::vec((0u8..8, 0u32..8), 1..80)) {
            let mut chain = Chain::new(8);
            let mut lists = [List::default(); 2];
            let mut model: [VecDeque<u32>; 2] = Default::default();
            for (op, at) in ops {
                let which = usize::from(op & 1);
                match op {
                    0 | 1 if !model.iter().any(|m| m.contains(&at)) => {
                        chain.push_back(&mut lists[which], at);
                        model[which].push_back(at);
                    }
                    2 | 3 if model[which].contains(&at) => {
                        chain.remove(&mut lists[which], at);
                        model[which].retain(|x| *x != at);
                    }
                    5 | 6 if !model.iter().any(|m| m.contains(&at)) => {
                        chain.push_front(&mut lists[which], at);
                        model[which].push_front(at);
                    }
                    7 if !model[0].is_empty() && !model.iter().any(|m| m.contains(&at)) => {
                        let after = model[0].len() / 2;
                        chain.insert_after(&mut lists[0], model[0][after], at);
                        model[0].insert(after + 1, at);
                    }
                    4 if at == 0 => {
                        let [a, b] = &mut lists;
                        chain.append(a, b);
                        let moved: Vec<u32> = model[1].drain(..).collect();
                        model[0].extend(moved);
                    }
                    4 => prop_assert_eq!(chain.pop_front(&mut lists[0]), model[0].pop_front()),
                    _ => {}
                }
                for (list, m) in lists.iter().zip(&model) {
                    prop_assert_eq!(&order(&chain, *list), &m.iter().copied().collect::<Vec<_>>());
                    prop_assert_eq!(list.is_empty(), m.is_empty());
                }
            }
        }
    }
}
