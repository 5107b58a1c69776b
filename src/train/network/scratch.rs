//! Lists that a step needs and that the next one uses again, so that a settled step asks the heap for none.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use ndgc::{Result, Tensor};

/// Lists that a thread keeps: those of a pass, and of one within it.
const KEPT: usize = 8;

thread_local! {
    static LISTS: RefCell<Vec<Vec<Option<Tensor>>>> = const { RefCell::new(Vec::new()) };
}

/// Places for arrays; the list is kept by the thread for the next one.
pub(super) struct Slots(Vec<Option<Tensor>>);

impl Slots {
    /// So many empty places.
    pub(super) fn new(count: usize) -> Self {
        Self::from_iter((0..count).map(|_| None))
    }
}

impl FromIterator<Option<Tensor>> for Slots {
    fn from_iter<I: IntoIterator<Item = Option<Tensor>>>(arrays: I) -> Self {
        let mut list = LISTS.try_with(|kept| kept.borrow_mut().pop()).ok().flatten().unwrap_or_default();
        list.extend(arrays);
        Slots(list)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let mut list = std::mem::take(&mut self.0);
        list.clear();
        // A thread that is ending keeps nothing.
        let _ = LISTS.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT {
                kept.push(list);
            }
        });
    }
}

impl Deref for Slots {
    type Target = [Option<Tensor>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Slots {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// A list that is most often one thing.
pub(super) enum Few<T> {
    One([T; 1]),
    Many(Vec<T>),
}

impl<T> Few<T> {
    /// What `f` makes of each, and its place.
    pub(super) fn of<S>(all: &[S], f: impl Fn(usize, &S) -> Result<T>) -> Result<Self> {
        match all {
            [one] => Ok(Few::One([f(0, one)?])),
            _ => all.iter().enumerate().map(|(i, each)| f(i, each)).collect::<Result<_>>().map(Few::Many),
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Few::One(one) => one,
            Few::Many(many) => many,
        }
    }
}
