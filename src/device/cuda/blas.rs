//! Matrix products by cuBLAS, where it is there and the operands lie in a way that it takes.
//!
//! cuBLAS counts down columns. A row-major product `C = A B` is the column-major one `C' = B' A'` of the same bytes, so
//! the operands change places and every row-major matrix counts as it lies.

use std::ffi::c_int;
use std::sync::Once;

use crate::base::{
    dtype::DType,
    error::{Error, Result},
    say::say,
};
use crate::device::cuda::{
    checked::{Blas, Gemm, GemmSide},
    context::{CudaContext, CudaStream},
    launch::{Arguments, Launch},
    libraries,
    params::Product,
    raw::{self, Address},
};

/// Bytes of the workspace that each stream's handle gets: what the library advises for its newest devices.
pub(super) const WORKSPACE: usize = 32 << 20;

/// `cudaDataType` and `cublasComputeType_t` by number.
const R_32F: c_int = 0;
const R_64F: c_int = 1;
const R_16F: c_int = 2;
const R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
const COMPUTE_64F: c_int = 70;
const COMPUTE_32F_FAST_TF32: c_int = 77;

/// A handle for one stream.
#[derive(Debug)]
pub(super) struct BlasHandle(Blas);

/// Whether the library is there. Says once that it is not.
pub(super) fn is_present() -> bool {
    libraries::locate();
    static SAID: Once = Once::new();
    let found = raw::blas();
    if let Err(missing) = found {
        let what = format_args!("{missing}; matrix products on CUDA devices use a slower kernel");
        SAID.call_once(|| say(what));
    }
    found.is_ok()
}

/// An operand as the library takes it: 0 as it lies or 1 transposed, and the step between its rows or columns.
fn orient(rows: u64, cols: u64, row: i64, col: i64) -> Option<(c_int, c_int)> {
    let step = |stride: i64, least: u64, count: u64| {
        let step = if count <= 1 { least.max(1) as i64 } else { stride };
        (step >= least as i64).then(|| c_int::try_from(step).ok())?
    };
    if (col == 1 || cols == 1)
        && let Some(step) = step(row, cols, rows)
    {
        return Some((0, step));
    }
    if row == 1 || rows == 1 { step(col, rows, cols).map(|step| (1, step)) } else { None }
}

/// A product as one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GemmCall {
    m: c_int,
    n: c_int,
    k: c_int,
    a: (c_int, c_int),
    b: (c_int, c_int),
    steps: [i64; 3],
    batch: c_int,
}

/// The call for a product; `None` if the library does not take operands that lie like these.
pub(super) fn plan(product: &Product) -> Option<GemmCall> {
    let Product { mut m, n, k, mut batch, rank, .. } = *product;
    let (a_step, b_step) = (product.a.strides[0], product.b.strides[0]);
    if k == 0 || rank > 1 {
        return None;
    }
    // One right side for all: the left ones are one matrix, if they follow each other.
    if batch > 1 && b_step == 0 && a_step == m as i64 * product.a_row && product.a_col == 1 {
        (m, batch) = (m * batch, 1);
    }
    let int = |number: u64| c_int::try_from(number).ok();
    if batch > 1 && (a_step < 0 || b_step < 0) {
        return None;
    }
    let steps = if batch > 1 { [a_step, b_step, (m * n) as i64] } else { [0; 3] };
    Some(GemmCall {
        m: int(m)?,
        n: int(n)?,
        k: int(k)?,
        a: orient(m, k, product.a_row, product.a_col)?,
        b: orient(k, n, product.b_row, product.b_col)?,
        steps,
        batch: int(batch)?,
    })
}

impl BlasHandle {
    /// A handle that submits to `stream` and works in `workspace`.
    pub(super) fn new(context: &CudaContext, stream: &CudaStream, workspace: Address) -> Result<Self> {
        // The library takes the context that is current.
        context.make_current()?;
        context.check(Blas::new(stream.raw, workspace, WORKSPACE).map_err(Error::msg)?).map(BlasHandle)
    }

    /// Submits a product.
    pub(super) fn run(&mut self, context: &CudaContext, launch: &Launch, call: &GemmCall, tf32: bool) -> Result<()> {
        let Arguments::Product(product) = launch.arguments else { return Err(Error::msg("not a product")) };
        context.call(|_| Ok(()))?;
        let (kind, compute) = match (launch.dtype, tf32) {
            (DType::F64, _) => (R_64F, COMPUTE_64F),
            // The factors and the sums of halves are f32.
            (DType::F16, _) => (R_16F, COMPUTE_32F),
            (DType::BF16, _) => (R_16BF, COMPUTE_32F),
            (_, false) => (R_32F, COMPUTE_32F),
            (_, true) => (R_32F, COMPUTE_32F_FAST_TF32),
        };
        let [a_step, b_step, dst_step] = call.steps;
        let right = GemmSide { address: product.b.ptr, lies: call.b, step: b_step };
        let left = GemmSide { address: product.a.ptr, lies: call.a, step: a_step };
        let gemm = Gemm {
            sizes: [call.n, call.m, call.k],
            sides: [right, left],
            dst: product.dst,
            dst_step,
            batch: call.batch,
            kind,
            compute,
            is_wide: compute == COMPUTE_64F,
        };
        if self.0.multiply(&gemm).is_ok() {
            return Ok(());
        }
        // Once more, as `CudaContext::call`: the library does not say that another context is current.
        context.make_current()?;
        context.check(self.0.multiply(&gemm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_lie_by_rows_or_by_columns_or_not_at_all() {
        assert_eq!(orient(3, 4, 4, 1), Some((0, 4)), "rows");
        assert_eq!(orient(3, 4, 7, 1), Some((0, 7)), "rows with a gap");
        assert_eq!(orient(3, 4, 1, 3), Some((1, 3)), "columns");
        assert_eq!(orient(3, 4, 0, 1), None, "a repeated row");
        assert_eq!(orient(3, 4, 8, 2), None, "every other element");
        assert_eq!(orient(1, 4, 99, 1), Some((0, 4)), "one row has no step");
        assert_eq!(orient(3, 1, 5, 9), Some((0, 5)), "one column");
        assert_eq!(orient(4, 3, -3, 1), None, "upside down");
    }
}
