//! The operands that rows are called with.

use ndgc::{DType, Device, NdManager, Result, Tensor, Var};

/// What the operands look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Several axes.
    Many,
    /// As many axes as there can be.
    Six,
    /// None.
    Scalar,
    /// No elements.
    Empty,
}

impl Form {
    pub(crate) const ALL: [Form; 4] = [Form::Many, Form::Six, Form::Scalar, Form::Empty];
}

#[allow(dead_code)] // an operand may wait for its row
/// Operands of one form, dtype and device. Those without a dtype in their comment have that of the sample.
pub(crate) struct Sample {
    pub(crate) device: Device,
    pub(crate) dtype: DType,
    /// Shape of `a`.
    pub(crate) shape: &'static [usize],
    /// Three arrays of one shape; an axis 0 of at least 1 if there is one, a last one of 4 (`Six`: 2).
    pub(crate) a: Tensor,
    pub(crate) b: Tensor,
    pub(crate) c: Tensor,
    /// One axis: the last one of `a`.
    pub(crate) row: Tensor,
    /// Matrices that can be multiplied, `[2, 3]` and `[3, 2]` behind batch axes.
    pub(crate) m: Tensor,
    pub(crate) n: Tensor,
    /// A square matrix.
    pub(crate) square: Tensor,
    /// Two vectors.
    pub(crate) v: Tensor,
    pub(crate) w: Tensor,
    /// `[batch, channels 2, 6, 6]`, and kernels `[2, 2, 3, 3]`.
    pub(crate) image: Tensor,
    pub(crate) kernel: Tensor,
    /// `[batch, channels 2, 6]`, and kernels `[2, 2, 3]`.
    pub(crate) signal: Tensor,
    pub(crate) taps: Tensor,
    /// `[batch, heads 2, positions 3, size 4]`, and `[3, 2]` for its angles.
    pub(crate) heads: Tensor,
    pub(crate) angles: Tensor,
    /// u8, the shape of `a`: 1, 0, 1, 0, ..
    pub(crate) mask: Tensor,
    /// u32, one axis: valid on axis 0 of `a`, of `square` and of `v`.
    pub(crate) ids: Tensor,
    /// u32, the shape of `a`: valid on its axis 0.
    pub(crate) places: Tensor,
    /// u32, for each row of `m` a class below 3.
    pub(crate) labels: Tensor,
    /// Owner of the operands, if they have one.
    pub(crate) manager: NdManager,
    _variables: Vec<Var>,
}

/// Who owns the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Handles,
    Manager,
    /// Handles, and gradients are recorded for all floats.
    Variables,
}

/// Shapes of `a`, `m`, `n`, `square`, `v`, the leading axes of images, and the number of ids.
type Shapes = ([&'static [usize]; 5], &'static [usize], usize);

fn shapes(form: Form) -> Shapes {
    match form {
        Form::Many => ([&[2, 3, 4], &[2, 3], &[3, 2], &[3, 3], &[4]], &[2], 2),
        Form::Six => {
            ([&[2, 1, 3, 1, 2, 2], &[1, 2, 1, 1, 2, 3], &[1, 2, 1, 1, 3, 2], &[1, 1, 1, 1, 3, 3], &[4]], &[1], 2)
        }
        Form::Scalar => ([&[]; 5], &[], 1),
        Form::Empty => ([&[2, 0, 4], &[0, 3], &[3, 0], &[0, 0], &[0]], &[0], 0),
    }
}

impl Sample {
    pub(crate) fn new(form: Form, dtype: DType, device: &Device, owner: Owner) -> Result<Self> {
        let manager = NdManager::new_base_manager(device)?;
        let mut variables = Vec::new();
        let mut make = |dims: &[usize], dtype: DType, value: fn(usize) -> f64| -> Result<Tensor> {
            let data: Vec<f64> = (0..dims.iter().product()).map(value).collect();
            let array = Tensor::from_slice(&data, dims, device)?.to_dtype(dtype)?;
            if owner == Owner::Manager {
                array.attach(&manager)?;
            }
            if owner == Owner::Variables && dtype.is_float() {
                variables.push(Var::from_tensor(&array)?);
                return Ok(variables.last().unwrap().as_tensor().clone());
            }
            Ok(array)
        };
        let ([a, m, n, square, v], lead, ids) = shapes(form);
        let number: fn(usize) -> f64 = |i| (i % 5) as f64 + 1.;
        let behind = |rest: &[usize]| if form == Form::Scalar { Vec::new() } else { [lead, rest].concat() };
        let fixed = |all: &'static [usize]| if form == Form::Scalar { &[] } else { all };
        let rows = if form == Form::Scalar { &[][..] } else { &m[..m.len() - 1] };
        Ok(Sample {
            device: device.clone(),
            dtype,
            shape: a,
            a: make(a, dtype, number)?,
            b: make(a, dtype, |i| (i % 3) as f64 + 1.)?,
            c: make(a, dtype, |i| (i % 4) as f64 + 1.)?,
            row: make(&a[a.len().saturating_sub(1)..], dtype, number)?,
            m: make(m, dtype, number)?,
            n: make(n, dtype, number)?,
            square: make(square, dtype, |i| [7., 1., 2., 1., 5., 1., 2., 1., 6.][i % 9])?,
            v: make(v, dtype, number)?,
            w: make(v, dtype, number)?,
            image: make(&behind(&[2, 6, 6]), dtype, number)?,
            kernel: make(fixed(&[2, 2, 3, 3]), dtype, number)?,
            signal: make(&behind(&[2, 6]), dtype, number)?,
            taps: make(fixed(&[2, 2, 3]), dtype, number)?,
            heads: make(&behind(&[2, 3, 4]), dtype, number)?,
            angles: make(fixed(&[3, 2]), dtype, |i| 1. / (i as f64 + 1.))?,
            mask: make(a, DType::U8, |i| (i % 2) as f64)?,
            ids: make(&[ids], DType::U32, |_| 0.)?,
            places: make(a, DType::U32, |_| 0.)?,
            labels: make(rows, DType::U32, |i| (i % 3) as f64)?,
            manager,
            _variables: variables,
        })
    }
}

/// What a row's call gives, as arrays; without a list on the heap where the call gave none.
#[derive(Debug, Default)]
pub(crate) struct List {
    few: [Option<Tensor>; 3],
    many: Vec<Tensor>,
}

impl List {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.few.iter().flatten().chain(&self.many)
    }
}

/// What calls return.
pub(crate) trait Results {
    fn list(self) -> List;
}

impl Results for Tensor {
    fn list(self) -> List {
        List { few: [Some(self), None, None], ..List::default() }
    }
}

impl Results for (Tensor, Tensor) {
    fn list(self) -> List {
        List { few: [Some(self.0), Some(self.1), None], ..List::default() }
    }
}

impl Results for (Tensor, Tensor, Tensor) {
    fn list(self) -> List {
        List { few: [Some(self.0), Some(self.1), Some(self.2)], ..List::default() }
    }
}

impl Results for Vec<Tensor> {
    fn list(self) -> List {
        List { many: self, ..List::default() }
    }
}

impl Results for Var {
    fn list(self) -> List {
        self.as_tensor().clone().list()
    }
}

impl Results for () {
    fn list(self) -> List {
        List::default()
    }
}

impl Results for bool {
    fn list(self) -> List {
        List::default()
    }
}
