//! Stable sorts that are compiled once, whatever they sort: for lists that are shown or written. Those of the standard
//! library are compiled for each type and each comparison. And small maps: sorted lists of pairs, of which little is
//! compiled for each type.

use std::cmp::Ordering;

/// In which order items stand. A trait of its own, as the next one: an object of `Fn` brings along two functions more
/// for each closure.
pub trait Compare {
    /// The order of the items at two places.
    fn compare(&self, a: usize, b: usize) -> Ordering;
}

impl<F: Fn(usize, usize) -> Ordering> Compare for F {
    fn compare(&self, a: usize, b: usize) -> Ordering {
        self(a, b)
    }
}

/// Items that can change places.
trait Swap {
    fn swap_places(&mut self, a: usize, b: usize);
}

impl<T> Swap for &mut [T] {
    fn swap_places(&mut self, a: usize, b: usize) {
        self.swap(a, b);
    }
}

/// The places of so many items in order; equal ones stay in theirs.
pub fn places_by(count: usize, compare: &dyn Compare) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).collect();
    places.sort_by(|&a, &b| compare.compare(a, b));
    places
}

/// Sorts items; equal ones stay in their order.
pub fn sort_by<T>(mut items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let places = places_by(items.len(), &|a: usize, b: usize| compare(&items[a], &items[b]));
    arrange(places, &mut items);
}

/// Sorts items by a key that each is asked for once; equal ones stay in their order.
pub fn sort_by_key<T, K: Ord>(mut items: &mut [T], key: impl Fn(&T) -> K) {
    let mut keys = Vec::with_capacity(items.len());
    for item in items.iter() {
        keys.push(key(item));
    }
    let places = places_by(keys.len(), &|a: usize, b: usize| keys[a].cmp(&keys[b]));
    arrange(places, &mut items);
}

/// The value of a key in pairs that are sorted by their keys: a new one, if there was none.
pub fn value_of<K: Ord, V: Default>(pairs: &mut Vec<(K, V)>, key: K) -> &mut V {
    let at = pairs.partition_point(|(own, _)| *own < key);
    if pairs.get(at).is_none_or(|(own, _)| *own != key) {
        pairs.insert(at, (key, V::default()));
    }
    &mut pairs[at].1
}

/// Puts what is at each of these places where the place stands.
fn arrange(mut places: Vec<usize>, items: &mut dyn Swap) {
    for first in 0..places.len() {
        let mut at = first;
        // Around the ring that this place is of.
        while places[at] != first {
            let from = std::mem::replace(&mut places[at], at);
            items.swap_places(at, from);
            at = from;
        }
        places[at] = at;
    }
}
