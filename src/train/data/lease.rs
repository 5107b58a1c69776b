//! Batches that keep the part of a ring that their arrays lie in.

use std::sync::Arc;

use ndgc::{CycleLease, Result};

use super::data_set::{DataSet, MultiDataSet};

/// What can keep a lease. Nobody else can name it, so that there are no others.
pub trait Held: Sized {
    /// Keeps a lease as long as this lives.
    fn hold(&mut self, lease: CycleLease);

    /// The same in the current workspace, if it keeps a lease of another.
    fn moved(self) -> Result<Self>;
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
        })*
    };
}

held!(DataSet, MultiDataSet);
