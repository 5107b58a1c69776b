//! The handle: a key, and nothing else. Here is what it is, for what lies below the registry and for the registry; what
//! it does is in `proxy.rs` and `ownership.rs`.

use crate::memory::key::Key;

/// A tensor, by its key: what users hold. Its name as a handle is [`Proxy`].
///
/// A proxy is 8 bytes and owns a share in the *handle* of an array, not the array: that belongs to an
/// [`NdManager`](crate::NdManager), to its handles if it was made with a device or [detached](Proxy::detach), or to a
/// cycle of a [`Workspace`](crate::Workspace) if it was made in one.
/// `clone` gives another handle of the same array. Dropping one never blocks, allocates, locks, calls a device or
/// panics; the last drop puts the key into the reclaim queue, from where a later call, on any thread, closes the array.
/// (For an array of a manager only while [the switch](crate::gc) is on.)
///
/// A proxy may be used, cloned and dropped on any thread. One whose array was closed gives
/// [`Error::StaleArray`](crate::Error::StaleArray) wherever it is used, never other data.
///
/// # Methods by subject
///
/// - [The handle](#memory-the-handle-and-which-array-it-is-of), [life and
///   end](#memory-whether-the-array-lives-and-its-end), [owners](#memory-who-owns-the-array),
///   [bytes](#memory-the-bytes-of-the-array), [workspaces](#memory-between-workspaces), [`detach`](Proxy::detach),
///   [`copy`](Proxy::copy), [`intern`](Proxy::intern)
/// - [What the array is](#what-the-array-is), [reading its elements](#reading-the-elements)
/// - [Making arrays](#making-arrays-of-values), [indexing](#indexing-by-items-of-several-kinds), [shape](#shape-views),
///   [dtype and device](#other-dtypes-and-devices)
/// - [Arithmetic](#element-by-element-arithmetic), [functions](#element-by-element-functions),
///   [comparisons](#element-by-element-comparisons), [reductions](#reductions-sums-means-extremes),
///   [products](#linear-algebra-products-of-matrices), [networks](#networks-convolutions)
/// - [Gradients](#gradients-going-back), [operations of your own](#operations-of-your-own-made-of-others), [in
///   place](#in-place-numbers-and-copies), [exchange](#exchange-with-other-libraries-by-dlpack), [files](#files-npy)
///
/// Names that candle's users give to methods of their own, from `sort` to `masked_fill`, are those of the trait
/// [`TensorExt`](crate::TensorExt), which one imports. What other libraries call by another name is there under it too,
/// as an alias, which says so.
///
/// ```
/// # use ndgc::{Proxy, Device, DType};
/// assert_eq!(size_of::<Option<Proxy>>(), 8);
/// let a = Proxy::zeros((2, 3), DType::F32, &Device::Cpu)?;
/// let b = a.clone(); // the same array
/// drop(a);
/// assert_eq!(b.dims(), [2, 3]);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct Tensor {
    pub(super) key: Key,
}

/// The handle: DJL's name of a [`Tensor`], and that of this library where it speaks of memory. The alias is this name,
/// since it is the other one that the compiler's messages show, and that most programs are written with.
pub type Proxy = Tensor;

const _: () = assert!(size_of::<Proxy>() == 8 && size_of::<Option<Proxy>>() == 8);

impl Proxy {
    /// Takes over a count: of `create` or `upgrade`.
    #[inline]
    pub(crate) fn from_key(key: Key) -> Self {
        Proxy { key }
    }
}
