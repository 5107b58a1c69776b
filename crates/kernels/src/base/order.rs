//! Stable sorts that are compiled once, whatever they sort: for lists that are shown or written. Those of the standard
//! library are compiled for each type and each comparison.

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
    arrange(items, places);
}

/// Sorts items by a key that each is asked for once; equal ones stay in their order.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    let keys: Vec<K> = items.iter().map(key).collect();
    arrange(items, places_by(keys.len(), &|a, b| keys[a].cmp(&keys[b])));
}

/// Puts what is at each of these places where the place stands.
fn arrange<T>(items: &mut [T], mut places: Vec<usize>) {
    for first in 0..items.len() {
        let mut at = first;
        // Around the ring that this place is of.
        while places[at] != first {
            let from = std::mem::replace(&mut places[at], at);
            items.swap(at, from);
            at = from;
        }
        places[at] = at;
    }
}
