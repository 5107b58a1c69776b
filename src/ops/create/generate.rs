//! Arrays made from a rule: spaced numbers, unit and triangular matrices, grids, raw bytes; and diagonals, which are
//! their counterpart.

use std::ops::Range;

use crate::array::autograd::no_grad;
use crate::base::{
    call::Call,
    dtype::{DType, WithDType},
    error::{Error, Result},
    shape::{D, Dim, Few, Shape},
};
use crate::device::kernel::{CmpOp, Kernel, Map};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::{argument, composite, composite_at, number_like, shape_of, wrong_shape},
        exec::{adopt, all_or_none, device, enter, launch, map_on_the_spot, output, pin, record, view},
        place::Place,
    },
    create::values::of_elements,
    elementwise::unary::one,
};

/// The diagonal `k`, or, beyond the matrix, where each is as good as the next, one that is near.
fn near(k: i64, rows: usize, columns: usize) -> i64 {
    k.clamp(-(rows as i64) - 1, columns as i64 + 1)
}

/// A mask of `[rows, columns]`: where `column - row` compares so to `k`.
fn band(like: &crate::Device, rows: usize, columns: usize, k: i64, op: CmpOp) -> Result<Proxy> {
    shape_of("mask", &[rows, columns], DType::I64.size_in_bytes())?;
    let k = near(k, rows, columns);
    let rows = Proxy::arange(k, k + rows as i64, like)?.unsqueeze(1)?;
    let columns = Proxy::arange(0, columns as i64, like)?.unsqueeze(0)?;
    let shape = (rows.dim(0)?, columns.dim(1)?);
    columns.broadcast_as(shape)?.cmp(&rows.broadcast_as(shape)?, op)
}

fn square<P: Place + ?Sized>(call: Call, n: usize, dtype: DType, at: &P, op: CmpOp) -> Result<Proxy> {
    composite_at(call, &at, &mut || {
        shape_of(call, &[n, n], dtype.size_in_bytes())?;
        band(at.device_of_place(), n, n, 0, op)?.to_dtype(dtype)
    })
}

fn triangle(call: Call, x: &Proxy, k: i64, op: CmpOp) -> Result<Proxy> {
    if x.rank() >= 2
        && x.device().is_cpu()
        && let Some(result) = triangle_on_host(call, x, k, op)?
    {
        return Ok(result);
    }
    composite(call, x, &mut || {
        let shape = *x.shape();
        let &[.., rows, columns] = shape.dims() else {
            return wrong_shape(call, x, "at least two axes");
        };
        let mask = band(x.device(), rows, columns, k, op)?;
        mask.broadcast_as(shape)?.where_cond(x, &number_like(x, 0.0, call.site)?)
    })
}

/// The columns of a row where `column - row` compares so to `k`, which is near.
fn kept(row: usize, columns: usize, k: i64, op: CmpOp) -> Range<usize> {
    let column = |at: i64| at.clamp(0, columns as i64) as usize;
    let first = row as i64 + k;
    match op {
        CmpOp::Ge => column(first)..columns,
        _ => 0..column(first + 1),
    }
}

/// As [`triangle`], without a mask: a copy, and zeros outside. `None` if the array is another device's by now.
fn triangle_on_host(call: Call, x: &Proxy, k: i64, op: CmpOp) -> Result<Option<Proxy>> {
    enter(call, |context| {
        let pins = pin(context, call.op, [x])?;
        let [a] = pins.arrays();
        let shape = a.layout.shape();
        let (&[.., rows, columns], true) = (shape.dims(), device(&a).is_cpu()) else { return Ok(None) };
        // As of the mask for other devices.
        shape_of(call, &[rows, columns], DType::I64.size_in_bytes())?;
        let mut out = output(context, call.op, device(&a), a.dtype, shape, false)?;
        if !map_on_the_spot(Map::Copy, &a, &mut out.storage) {
            launch(device(&a), &Kernel::copy(view(&a), out.view()))?;
        }
        let (size, k) = (a.dtype.size_in_bytes(), near(k, rows, columns));
        let Some(bytes) = out.buffer().on_host() else { return Ok(None) };
        for matrix in bytes.chunks_exact_mut((rows * columns * size).max(1)) {
            for (row, line) in matrix.chunks_exact_mut((columns * size).max(1)).enumerate() {
                let kept = kept(row, columns, k, op);
                line[..kept.start * size].fill(0);
                line[kept.end * size..].fill(0);
            }
        }
        let node = record(&[&a], || move |grad: &Proxy, _| Ok(one(triangle(call, grad, k, op)?)));
        adopt(call, context, out, x, node).map(Some)
    })
}

/// Where a diagonal of `[rows, columns]` begins in row-major order, and how long it is.
fn diagonal_of(rows: usize, columns: usize, k: i64) -> (usize, usize) {
    let right = usize::try_from(k).unwrap_or(0);
    let down = usize::try_from(k.unsigned_abs()).unwrap_or(usize::MAX) * usize::from(k < 0);
    let length = rows.saturating_sub(down).min(columns.saturating_sub(right));
    if length == 0 { (0, 0) } else { (right + down * columns, length) }
}

/// Diagonal `k` of the matrices that two axes span, of an array that had this shape when the axes were looked up.
fn diagonal(call: Call, (x, shape): (&Proxy, Shape), k: i64, (a, b): (usize, usize)) -> Result<Proxy> {
    composite(call, x, &mut || {
        if a == b {
            return Err(Error::DuplicateDim { op: call.op, dim: a, site: Some(call.site) });
        }
        let mut order: Few = (0..shape.rank()).filter(|&axis| axis != a && axis != b).collect();
        let mut lead: Few = order.iter().map(|&axis| shape.dims()[axis]).collect();
        [a, b].into_iter().for_each(|axis| order.push(axis));
        let (rows, columns) = (shape.dims()[a], shape.dims()[b]);
        lead.push(rows * columns);
        let ids = diagonal_ids(x, diagonal_of(rows, columns, k), columns)?;
        x.permute(order)?.reshape(lead)?.index_select(&ids, D::Minus1)
    })
}

/// The numbers of a diagonal in row-major order.
fn diagonal_ids(x: &Proxy, (start, length): (usize, usize), columns: usize) -> Result<Proxy> {
    // Where these cannot be counted, there is one number, or none.
    let step = (columns as i64).saturating_add(1);
    let end = (start as i64).saturating_add(step.saturating_mul(length as i64));
    Proxy::arange_step(start as i64, end, step, x.device())
}

/// The distance of neighbours of which number `last` is at `end`: by one rounding where the whole way is no infinity,
/// so that whole numbers lie between whole ends. Of two numbers, which are the ends, none is needed.
fn step_between(start: f64, end: f64, last: f64) -> f64 {
    let way = end - start;
    if last < 2.0 {
        0.0
    } else if way.is_finite() {
        way / last
    } else {
        end / last - start / last
    }
}

/// # Making arrays: by a rule, triangles and diagonals
impl Proxy {
    /// `n` numbers from `start` to `end`, both included, at equal distances.
    ///
    /// # Errors
    /// [`Error::Argument`] if a bound is not finite; as [`Proxy::zeros`].
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let a = Tensor::linspace(0., 1., 5, DType::F32, &Device::Cpu)?;
    /// assert_eq!(a.to_vec1::<f32>()?, [0., 0.25, 0.5, 0.75, 1.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn linspace<P: Place + ?Sized>(start: f64, end: f64, n: usize, dtype: DType, at: &P) -> Result<Self> {
        let call = Call::here("linspace");
        let (start, end) = (check::finite(call, "start", start)?, check::finite(call, "end", end)?);
        shape_of(call, &[n], dtype.size_in_bytes())?;
        let last = n.saturating_sub(1) as f64;
        let step = step_between(start, end, last);
        composite_at(call, &at, &mut || {
            let device = at.device_of_place();
            // Counted from the nearer end, so that both ends are exact.
            let (up, down) = (Proxy::arange(0.0, n as f64, device)?, Proxy::arange_step(last, -1.0, -1.0, device)?);
            let near = up.broadcast_lt(&Proxy::new(n as f64 / 2.0, device)?)?;
            let down = if n == 0 { up.clone() } else { down };
            near.where_cond(&up.affine(step, start)?, &down.affine(-step, end)?)?.to_dtype(dtype)
        })
    }

    /// Ones on the diagonal of `[n, n]`, else zeros.
    ///
    /// # Errors
    /// As [`Proxy::zeros`].
    #[doc(alias = "identity")]
    #[track_caller]
    pub fn eye<P: Place + ?Sized>(n: usize, dtype: DType, at: &P) -> Result<Self> {
        square(Call::here("eye"), n, dtype, at, CmpOp::Eq)
    }

    /// Ones on and below the diagonal of `[n, n]`, else zeros.
    ///
    /// # Errors
    /// As [`Proxy::zeros`].
    #[track_caller]
    pub fn tril2<P: Place + ?Sized>(n: usize, dtype: DType, at: &P) -> Result<Self> {
        square(Call::here("tril2"), n, dtype, at, CmpOp::Le)
    }

    /// Ones on and above the diagonal of `[n, n]`, else zeros.
    ///
    /// # Errors
    /// As [`Proxy::zeros`].
    #[track_caller]
    pub fn triu2<P: Place + ?Sized>(n: usize, dtype: DType, at: &P) -> Result<Self> {
        square(Call::here("triu2"), n, dtype, at, CmpOp::Ge)
    }

    #[track_caller]
    pub(crate) fn ext_tril(&self, k: i64) -> Result<Self> {
        triangle(Call::here("tril"), self, k, CmpOp::Le)
    }

    #[track_caller]
    pub(crate) fn ext_triu(&self, k: i64) -> Result<Self> {
        triangle(Call::here("triu"), self, k, CmpOp::Ge)
    }

    #[track_caller]
    pub(crate) fn ext_diag(&self, k: i64) -> Result<Self> {
        let call = Call::here("diag");
        composite(call, self, &mut || match self.dims()[..] {
            [_, _] => self.ext_diagonal(k, 0, 1),
            [length] => {
                let beside = usize::try_from(k.unsigned_abs()).unwrap_or(usize::MAX);
                let n = length.saturating_add(beside);
                shape_of(call, &[n, n], self.dtype().size_in_bytes())?;
                let matrix = no_grad(|| {
                    let all = Proxy::zeros(n * n, self.dtype(), self.device())?;
                    let (start, count) = diagonal_of(n, n, k);
                    all.narrow_step(0, start, count, n as isize + 1)?.copy_(self)?;
                    all.reshape((n, n))
                })?;
                matrix.with_gradient(call, [self], false, move |grad, _, _| Ok(one(grad.ext_diagonal(k, 0, 1)?)))
            }
            _ => wrong_shape(call, self, "one or two axes"),
        })
    }

    #[track_caller]
    pub(crate) fn ext_diagonal<A: Dim, B: Dim>(&self, k: i64, a: A, b: B) -> Result<Self> {
        let (call, shape) = (Call::here("diagonal"), *self.shape());
        diagonal(call, (self, shape), k, (call.axis(a, &shape)?, call.axis(b, &shape)?))
    }

    #[track_caller]
    pub(crate) fn ext_trace(&self) -> Result<Self> {
        composite(Call::here("trace"), self, &mut || self.ext_diagonal(0, D::Minus2, D::Minus1)?.sum(D::Minus1))
    }

    /// The coordinates of a grid over vectors: for each vector an array with all their sizes as axes, which varies
    /// along its own. `xy`: the first two axes change places, as for pictures; the others too, in reverse order. With
    /// gradients; each result belongs to the owner of its vector.
    ///
    /// # Errors
    /// [`Error::Argument`] for fewer than two arrays; [`Error::Shape`] if one is no vector; [`Error::RankTooLarge`],
    /// [`Error::SizeOverflow`], [`Error::StaleArray`], [`Error::OutOfMemory`].
    #[track_caller]
    pub fn meshgrid<T: AsRef<Proxy>>(arrays: &[T], xy: bool) -> Result<Vec<Self>> {
        let call = Call::here("meshgrid");
        if arrays.len() < 2 {
            return argument(call, "arrays", arrays.len(), "at least two");
        }
        let mut arrays: Vec<&Proxy> = arrays.iter().map(AsRef::as_ref).collect();
        if xy {
            arrays.reverse();
        }
        let sizes: Result<Vec<usize>> = arrays.iter().map(|array| array.dims1()).collect();
        let sizes = sizes.map_err(|error| error.of(call))?;
        let shape = shape_of(call, &sizes, DType::F64.size_in_bytes())?;
        let grid = |(axis, array): (usize, &&Proxy)| {
            composite(call, array, &mut || {
                let mut own = vec![1; sizes.len()];
                own[axis] = sizes[axis];
                array.reshape(own)?.broadcast_as(shape)?.copy()
            })
        };
        let mut grids = all_or_none(call, arrays.iter().enumerate().map(grid))?;
        if xy {
            grids.reverse();
        }
        Ok(grids)
    }

    /// A vector of an iterator's numbers.
    ///
    /// # Errors
    /// As [`Proxy::from_vec`].
    #[track_caller]
    pub fn from_iter<T: WithDType>(numbers: impl IntoIterator<Item = T>, at: &(impl Place + ?Sized)) -> Result<Self> {
        let numbers: Vec<T> = numbers.into_iter().collect();
        let count = numbers.len();
        Proxy::from_vec(numbers, count, at).map_err(|error| error.of("from_iter"))
    }

    /// An array of elements given as bytes, in row-major order and in the byte order of the machine.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are not as many bytes as the shape and dtype need; as [`Proxy::zeros`].
    #[track_caller]
    pub fn from_raw_buffer<S: Into<Shape>, P: Place + ?Sized>(
        bytes: &[u8],
        dtype: DType,
        shape: S,
        at: &P,
    ) -> Result<Self> {
        let (call, shape) = (Call::here("from_raw_buffer"), shape.into());
        let needed = shape.check(call, dtype.size_in_bytes())? * dtype.size_in_bytes();
        if bytes.len() != needed {
            return argument(call, "number of bytes", bytes.len(), "that of the shape's elements");
        }
        if dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return argument(call, "truth value", "another byte", "0 or 1");
        }
        of_elements(call, bytes, (shape, dtype), &at)
    }
}
