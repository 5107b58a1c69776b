//! What lies at addresses, in order: in a vector, since there is little of it, and the code of a tree for each kind of
//! it would be a tenth of this backend.

use std::ops::Range;

/// Values by address.
#[derive(Debug)]
pub(super) struct AddressMap<V>(Vec<(usize, V)>);

impl<V> Default for AddressMap<V> {
    fn default() -> Self {
        AddressMap(Vec::new())
    }
}

impl<V> AddressMap<V> {
    /// How many lie below an address.
    fn below(&self, at: usize) -> usize {
        self.0.partition_point(|(place, _)| *place < at)
    }

    fn find(&self, at: usize) -> Option<usize> {
        let index = self.below(at);
        (self.0.get(index)?.0 == at).then_some(index)
    }

    /// Puts a value at an address, in the place of one that is there.
    pub(super) fn insert(&mut self, at: usize, value: V) {
        match self.find(at) {
            Some(index) => self.0[index].1 = value,
            None => self.0.insert(self.below(at), (at, value)),
        }
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<V> {
        self.find(at).map(|index| self.0.remove(index).1)
    }

    pub(super) fn get(&self, at: usize) -> Option<&V> {
        self.find(at).map(|index| &self.0[index].1)
    }

    /// The last value below an address.
    pub(super) fn last_below(&self, at: usize) -> Option<&(usize, V)> {
        self.below(at).checked_sub(1).map(|index| &self.0[index])
    }

    pub(super) fn last_below_mut(&mut self, at: usize) -> Option<&mut (usize, V)> {
        self.below(at).checked_sub(1).map(|index| &mut self.0[index])
    }

    pub(super) fn within_mut(&mut self, range: Range<usize>) -> &mut [(usize, V)] {
        let (start, end) = (self.below(range.start), self.below(range.end));
        &mut self.0[start..end]
    }

    /// Takes out what lies in a range.
    pub(super) fn take(&mut self, range: Range<usize>) -> Vec<(usize, V)> {
        let (start, end) = (self.below(range.start), self.below(range.end));
        self.0.drain(start..end).collect()
    }
}
