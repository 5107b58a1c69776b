//! Lists that a step needs and that the next one uses again, so that a settled step asks the heap for none.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

use ndgc::{Result, Tensor};

/// Lists that a thread keeps: those of a pass, and of one within it.
const KEPT: usize = 8;

/// Lists of a thread that nobody uses.
type Free<T> = RefCell<Vec<Vec<T>>>;

thread_local! {
    static PLACES: Free<Option<Tensor>> = const { RefCell::new(Vec::new()) };
    static ARRAYS: Free<Tensor> = const { RefCell::new(Vec::new()) };
}

/// What lists are kept of.
pub trait Listed: Sized + 'static {
    /// Where a thread keeps them.
    #[doc(hidden)]
    fn free() -> &'static LocalKey<Free<Self>>;
}

impl Listed for Option<Tensor> {
    fn free() -> &'static LocalKey<Free<Self>> {
        &PLACES
    }
}

impl Listed for Tensor {
    fn free() -> &'static LocalKey<Free<Self>> {
        &ARRAYS
    }
}

/// A list of arrays; when it ends, its thread keeps the memory for the next one.
///
/// ```
/// use ndgc::train::List;
///
/// let gradients: List<Option<ndgc::Tensor>> = [None, None].into_iter().collect();
/// assert_eq!(gradients.len(), 2);
/// ```
#[derive(Debug)]
pub struct List<T: Listed>(Vec<T>);

/// Places for arrays.
pub(super) type Slots = List<Option<Tensor>>;

impl Slots {
    /// So many empty places.
    pub(super) fn new(count: usize) -> Self {
        Self::from_iter((0..count).map(|_| None))
    }
}

impl<T: Listed> Default for List<T> {
    fn default() -> Self {
        List(T::free().try_with(|free| free.borrow_mut().pop()).ok().flatten().unwrap_or_default())
    }
}

impl<T: Listed> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(arrays: I) -> Self {
        let mut list = List::default();
        list.extend(arrays);
        list
    }
}

impl<T: Listed> Drop for List<T> {
    fn drop(&mut self) {
        let mut list = std::mem::take(&mut self.0);
        list.clear();
        // A thread that is ending keeps nothing.
        let _ = T::free().try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < KEPT {
                free.push(list);
            }
        });
    }
}

impl<T: Listed> Deref for List<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Listed> DerefMut for List<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

/// A list that is most often one thing, or two.
pub(super) enum Few<T> {
    One([T; 1]),
    Two([T; 2]),
    Many(Vec<T>),
}

impl<T> Few<T> {
    /// What `f` makes of each, and its place.
    pub(super) fn of<'s, S>(all: &'s [S], f: impl Fn(usize, &'s S) -> Result<T>) -> Result<Self> {
        match all {
            [one] => Ok(Few::One([f(0, one)?])),
            [one, two] => Ok(Few::Two([f(0, one)?, f(1, two)?])),
            _ => {
                let mut many = Vec::with_capacity(all.len());
                for (i, each) in all.iter().enumerate() {
                    many.push(f(i, each)?);
                }
                Ok(Few::Many(many))
            }
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Few::One(one) => one,
            Few::Two(two) => two,
            Few::Many(many) => many,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Few::One(one) => one,
            Few::Two(two) => two,
            Few::Many(many) => many,
        }
    }
}
