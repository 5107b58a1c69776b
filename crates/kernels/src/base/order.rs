//! Stable sorts that are compiled once, whatever they sort: for lists that are shown or written. Those of the standard
//! library are compiled for each type and each comparison. And small maps: sorted lists of pairs, of which little is
//! compiled for each type.

use std::cmp::Ordering;

/// The places of so many items in order; equal ones stay in theirs.
pub fn places_by(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).collect();
    places.sort_by(|&a, &b| compare(a, b));
    places
}

/// Sorts items; equal ones stay in their order.
pub fn sort_by<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let places = places_by(items.len(), &|a, b| compare(&items[a], &items[b]));
    arrange(places, &mut |a, b| items.swap(a, b));
}

/// Sorts items by a key that each is asked for once; equal ones stay in their order.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    let keys: Vec<K> = items.iter().map(key).collect();
    arrange(places_by(keys.len(), &|a, b| keys[a].cmp(&keys[b])), &mut |a, b| items.swap(a, b));
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
fn arrange(mut places: Vec<usize>, swap: &mut dyn FnMut(usize, usize)) {
    for first in 0..places.len() {
        let mut at = first;
        // Around the ring that this place is of.
        while places[at] != first {
            let from = std::mem::replace(&mut places[at], at);
            swap(at, from);
            at = from;
        }
        places[at] = at;
    }
}
