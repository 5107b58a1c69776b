//! Rows of a table, looked up by number.

use crate::nn::{init::Init, module::Module, var_builder::VarBuilder};
use crate::{Result, Tensor};

/// A table `[rows, width]`: indices of any shape become `[ids.., width]`.
#[derive(Clone, Debug)]
pub struct Embedding {
    embeddings: Tensor,
    hidden_size: usize,
}

impl Embedding {
    /// A given table of rows of `hidden_size` numbers.
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        Embedding { embeddings, hidden_size }
    }

    /// The table.
    pub fn embeddings(&self) -> &Tensor {
        &self.embeddings
    }

    /// Numbers of a row.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }
}

impl Module for Embedding {
    /// The result belongs to the owner of the table.
    #[track_caller]
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.embeddings.embedding(ids)
    }
}

/// A table of normal numbers, or out of a file.
///
/// # Errors
/// As [`VarBuilder::get_with_hints`].
#[track_caller]
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    let table = vb.get_with_hints((in_size, out_size), "weight", Init::Randn { mean: 0.0, stdev: 1.0 })?;
    Ok(Embedding::new(table, out_size))
}
