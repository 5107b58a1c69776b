//! What training, evaluation and normalisers ask of a batch.

use ndgc::Tensor;

use super::data_set::{DataSet, MultiDataSet};

/// A batch, however many inputs and outputs it has.
///
/// Masks are as of a `DataSet`; a list without masks may be empty.
pub trait Examples {
    /// An array for each input.
    fn features(&self) -> &[Tensor];
    /// An array for each output.
    fn labels(&self) -> &[Tensor];
    /// A mask for each input, or an empty list.
    fn features_masks(&self) -> &[Option<Tensor>];
    /// A mask for each output, or an empty list.
    fn labels_masks(&self) -> &[Option<Tensor>];
    /// An id for each example, for evaluations, or None.
    fn example_ids(&self) -> Option<&[u64]> {
        None
    }
}

impl Examples for DataSet {
    fn features(&self) -> &[Tensor] {
        std::slice::from_ref(&self.features)
    }
    fn labels(&self) -> &[Tensor] {
        std::slice::from_ref(&self.labels)
    }
    fn features_masks(&self) -> &[Option<Tensor>] {
        std::slice::from_ref(&self.features_mask)
    }
    fn labels_masks(&self) -> &[Option<Tensor>] {
        std::slice::from_ref(&self.labels_mask)
    }
    fn example_ids(&self) -> Option<&[u64]> {
        self.example_ids()
    }
}

impl Examples for MultiDataSet {
    fn features(&self) -> &[Tensor] {
        &self.features
    }
    fn labels(&self) -> &[Tensor] {
        &self.labels
    }
    fn features_masks(&self) -> &[Option<Tensor>] {
        &self.features_masks
    }
    fn labels_masks(&self) -> &[Option<Tensor>] {
        &self.labels_masks
    }
    fn example_ids(&self) -> Option<&[u64]> {
        self.example_ids()
    }
}
