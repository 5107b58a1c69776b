//! Batches that keep the part of a ring that their arrays lie in, and what else only batches of this crate can do.

use std::sync::Arc;

use ndgc::{CycleLease, Result, Tensor};

use super::data_set::{DataSet, MultiDataSet};

/// What can keep a lease. Nobody else can name it, so that there are no others.
pub trait Held: Sized {
    /// Keeps a lease as long as this lives.
    fn hold(&mut self, lease: CycleLease);

    /// The same in the current workspace, if it keeps a lease of another.
    fn moved(self) -> Result<Self>;

    /// Number of its examples.
    fn count(&self) -> usize;

    /// Views of the examples `start..start + len`.
    fn part(&self, start: usize, len: usize) -> Result<Self>;

    /// Copies of the examples of these rows, with these ids.
    fn picked(&self, rows: &Tensor, ids: Option<Arc<[u64]>>) -> Result<Self>;

    /// The ids of its examples, as many as these are.
    fn each_id(&self) -> Result<Option<&[u64]>>;

    /// Gives each example an id.
    fn set_ids(&mut self, ids: Arc<[u64]>);

    /// Features, and labels.
    fn arrays_mut(&mut self) -> [&mut [Tensor]; 2];
}

macro_rules! held {
    ($($batch:ty),*) => {
        $(impl Held for $batch {
            fn hold(&mut self, lease: CycleLease) {
                self.lease = Some(Arc::new(lease));
            }

            fn moved(self) -> Result<Self> {
                if self.lease.is_some() { self.migrate() } else { Ok(self) }
            }

            fn count(&self) -> usize {
                self.num_examples()
            }

            fn part(&self, start: usize, len: usize) -> Result<Self> {
                self.rows(start, len)
            }

            fn picked(&self, rows: &Tensor, ids: Option<Arc<[u64]>>) -> Result<Self> {
                let mut some = self.map(|array| array.index_select(rows, 0))?;
                some.ids = ids;
                Ok(some)
            }

            fn each_id(&self) -> Result<Option<&[u64]>> {
                self.fitting_ids()
            }

            fn set_ids(&mut self, ids: Arc<[u64]>) {
                self.ids = Some(ids);
            }

            fn arrays_mut(&mut self) -> [&mut [Tensor]; 2] {
                self.parts_mut()
            }
        })*
    };
}

held!(DataSet, MultiDataSet);
