//! Matrix products by cuBLAS, where it is there and the operands lie in a way that it takes.
//!
//! cuBLAS counts down columns. A row-major product `C = A B` is the column-major one `C' = B' A'` of the same bytes, so
//! the operands change places and every row-major matrix counts as it lies.

use std::ffi::c_int;
use std::sync::Once;

use crate::base::{
    dtype::DType,
    error::{Error, Result},
};
use crate::device::cuda::{
    context::{Context, Stream, handle},
    launch::{Arguments, Launch},
    libraries,
    params::Product,
    raw::{self, Address, Blas, BlasHandle},
};

/// Bytes of the workspace that each stream's handle gets: what the library advises for its newest devices.
pub(super) const WORKSPACE: usize = 32 << 20;

/// `cudaDataType`, `cublasComputeType_t` and `cublasGemmAlgo_t` by number.
const R_32F: c_int = 0;
const R_64F: c_int = 1;
const R_16F: c_int = 2;
const R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
const COMPUTE_64F: c_int = 70;
const COMPUTE_32F_FAST_TF32: c_int = 77;
const GEMM_DEFAULT: c_int = -1;

/// A handle for one stream. One that works is never destroyed: the library could be gone by then.
#[derive(Debug)]
pub(super) struct Handle {
    api: &'static Blas,
    raw: BlasHandle,
}

// SAFETY: the handle is used under the device's lock, by one thread at a time, on whichever thread.
#[allow(unsafe_code)]
unsafe impl Send for Handle {}

/// Whether the library is there. Says once that it is not.
pub(super) fn is_present() -> bool {
    libraries::locate();
    static SAID: Once = Once::new();
    let found = raw::blas();
    if let Err(missing) = found {
        SAID.call_once(|| eprintln!("ndgc: {missing}; matrix products on CUDA devices use a slower kernel"));
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
pub(super) struct Call {
    m: c_int,
    n: c_int,
    k: c_int,
    a: (c_int, c_int),
    b: (c_int, c_int),
    steps: [i64; 3],
    batch: c_int,
}

/// The call for a product; `None` if the library does not take operands that lie like these.
pub(super) fn plan(product: &Product) -> Option<Call> {
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
    Some(Call {
        m: int(m)?,
        n: int(n)?,
        k: int(k)?,
        a: orient(m, k, product.a_row, product.a_col)?,
        b: orient(k, n, product.b_row, product.b_col)?,
        steps,
        batch: int(batch)?,
    })
}

impl Handle {
    /// A handle that submits to `stream` and works in `workspace`.
    pub(super) fn new(context: &Context, stream: &Stream, workspace: Address) -> Result<Self> {
        let api = raw::blas().map_err(Error::msg)?;
        // The library takes the context that is current.
        context.call(|_| Ok(()))?;
        // SAFETY: the handle is written to a local; the stream is never destroyed, and the workspace never freed.
        #[allow(unsafe_code)]
        context.check(unsafe {
            handle(|out| api.create(out)).and_then(|raw| {
                let set = api.set_stream(raw, stream.raw).and_then(|()| api.set_workspace(raw, workspace, WORKSPACE));
                if set.is_err() {
                    let _ = api.destroy(raw);
                }
                set.map(|()| Handle { api, raw })
            })
        })
    }

    /// Submits a product.
    pub(super) fn run(&self, context: &Context, launch: &Launch, call: &Call, tf32: bool) -> Result<()> {
        let Arguments::Product(product) = launch.arguments else { return Err(Error::msg("not a product")) };
        context.call(|_| Ok(()))?;
        let (one, zero) = ([1f64], [0f64]);
        let (one32, zero32) = ([1f32], [0f32]);
        let (kind, compute, alpha, beta) = match (launch.dtype, tf32) {
            (DType::F64, _) => (R_64F, COMPUTE_64F, one.as_ptr().cast(), zero.as_ptr().cast()),
            // The factors and the sums of halves are f32.
            (DType::F16, _) => (R_16F, COMPUTE_32F, one32.as_ptr().cast(), zero32.as_ptr().cast()),
            (DType::BF16, _) => (R_16BF, COMPUTE_32F, one32.as_ptr().cast(), zero32.as_ptr().cast()),
            (_, false) => (R_32F, COMPUTE_32F, one32.as_ptr().cast(), zero32.as_ptr().cast()),
            (_, true) => (R_32F, COMPUTE_32F_FAST_TF32, one32.as_ptr().cast(), zero32.as_ptr().cast()),
        };
        let [a_step, b_step, c_step] = call.steps;
        // SAFETY: the handle is live and used under the device's lock; the factors are live locals of the type that
        // `compute` asks for; addresses are the device's, and a wrong one is an error of the device.
        #[allow(unsafe_code)]
        context.check(unsafe {
            self.api.gemm(
                self.raw,
                call.b.0,
                call.a.0,
                call.n,
                call.m,
                call.k,
                alpha,
                product.b.ptr,
                kind,
                call.b.1,
                b_step,
                product.a.ptr,
                kind,
                call.a.1,
                a_step,
                beta,
                product.dst,
                kind,
                call.n,
                c_step,
                call.batch,
                compute,
                GEMM_DEFAULT,
            )
        })
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
