//! Encodings of indices.

use crate::{Result, Tensor, WithDType};

/// For each index (any integers) a row of `depth` elements that is `on_value` there, else `off_value`: shape
/// `[own.., depth]`. An index of -1 gives a row of `off_value`.
///
/// # Errors
/// As [`TensorExt::one_hot`](crate::TensorExt::one_hot).
///
/// ```
/// # use ndgc::{Device, Tensor, nn::encoding::one_hot};
/// let ids = Tensor::new(&[2u32, 0], &Device::Cpu)?;
/// assert_eq!(one_hot(ids, 3, 1f32, 0f32)?.to_vec2::<f32>()?, [[0., 0., 1.], [1., 0., 0.]]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn one_hot<T: WithDType>(indices: Tensor, depth: usize, on_value: T, off_value: T) -> Result<Tensor> {
    indices.one_hot_of(depth, on_value, off_value)
}
