//! Sequences that arrive in pieces: what a piece may be (nothing, too), and operations that wait for the other side.

use std::fmt;

use crate::nn::module::Module;
use crate::{D, Result, Shape, Tensor};

/// An axis that is named more than once.
pub trait Dim: crate::Dim + Copy {}

impl<T: crate::Dim + Copy> Dim for T {}

/// A piece of a sequence, or nothing. It has one handle of its array.
#[derive(Clone)]
pub struct StreamTensor(Option<Tensor>);

impl fmt::Debug for StreamTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(piece) => fmt::Debug::fmt(piece.shape(), f),
            None => f.write_str("Empty"),
        }
    }
}

impl From<Option<Tensor>> for StreamTensor {
    fn from(piece: Option<Tensor>) -> Self {
        StreamTensor(piece)
    }
}

impl From<Tensor> for StreamTensor {
    fn from(piece: Tensor) -> Self {
        StreamTensor(Some(piece))
    }
}

impl From<()> for StreamTensor {
    fn from((): ()) -> Self {
        StreamTensor(None)
    }
}

impl StreamTensor {
    /// Nothing.
    pub fn empty() -> Self {
        StreamTensor(None)
    }

    /// A piece.
    pub fn from_tensor(tensor: Tensor) -> Self {
        StreamTensor(Some(tensor))
    }

    /// The piece's shape, if there is one.
    pub fn shape(&self) -> Option<&Shape> {
        self.0.as_ref().map(|piece| piece.shape())
    }

    /// The piece, if there is one.
    pub fn as_option(&self) -> Option<&Tensor> {
        self.0.as_ref()
    }

    /// Becomes nothing.
    pub fn reset(&mut self) {
        self.0 = None;
    }

    /// This piece and the one behind it.
    ///
    /// # Errors
    /// As [`Tensor::cat`].
    #[track_caller]
    pub fn cat2<A: Dim>(&self, rhs: &Self, dim: A) -> Result<Self> {
        match (&self.0, &rhs.0) {
            (Some(lhs), Some(rhs)) => Ok(Tensor::cat(&[lhs, rhs], dim)?.into()),
            (one, other) => Ok(one.clone().or_else(|| other.clone()).into()),
        }
    }

    /// Size of an axis; 0 of nothing.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`](crate::Error::DimOutOfRange).
    #[track_caller]
    pub fn seq_len<A: Dim>(&self, dim: A) -> Result<usize> {
        match &self.0 {
            Some(piece) => piece.dim(dim),
            None => Ok(0),
        }
    }

    /// As many as there are of `len` positions from `offset` on; nothing, if there are none. A view.
    ///
    /// # Errors
    /// As [`Tensor::narrow`].
    #[track_caller]
    pub fn narrow<A: Dim>(&self, dim: A, offset: usize, len: usize) -> Result<StreamTensor> {
        let left = self.seq_len(dim)?.saturating_sub(offset);
        match &self.0 {
            Some(piece) if left > 0 => Ok(piece.narrow(dim, offset, len.min(left))?.into()),
            _ => Ok(Self::empty()),
        }
    }

    /// The first `lhs_len` positions, or as many as there are, and the others. Views, or nothing where there are none.
    ///
    /// # Errors
    /// As [`Tensor::narrow`].
    #[track_caller]
    pub fn split<A: Dim>(&self, dim: A, lhs_len: usize) -> Result<(Self, Self)> {
        match lhs_len {
            0 => Ok((Self::empty(), self.clone())),
            _ => Ok((self.narrow(dim, 0, lhs_len)?, self.narrow(dim, lhs_len, usize::MAX)?)),
        }
    }

    /// What a module makes of the piece; nothing of nothing.
    ///
    /// # Errors
    /// As [`Module::forward`].
    #[track_caller]
    pub fn apply<M: Module>(&self, m: &M) -> Result<Self> {
        match &self.0 {
            Some(piece) => Ok(m.forward(piece)?.into()),
            None => Ok(Self::empty()),
        }
    }
}

/// Something that maps pieces to pieces, and may keep some until more have come.
pub trait StreamingModule {
    /// What can be said with one piece more.
    ///
    /// # Errors
    /// Those of the operations inside.
    #[track_caller]
    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor>;

    /// Forgets what it keeps.
    fn reset_state(&mut self);
}

/// An operation of two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names say it
pub enum BinOp {
    Add,
    Mul,
    Sub,
    Div,
}

/// An operation of two sequences, whose pieces may come at different times: what one side is ahead is kept.
#[derive(Clone, Debug)]
pub struct StreamingBinOp {
    prev_lhs: StreamTensor,
    prev_rhs: StreamTensor,
    /// The operation.
    pub op: BinOp,
    /// The axis of positions.
    pub dim: D,
}

impl StreamingBinOp {
    /// With nothing kept.
    pub fn new(op: BinOp, dim: D) -> Self {
        StreamingBinOp { prev_lhs: StreamTensor::empty(), prev_rhs: StreamTensor::empty(), op, dim }
    }

    /// Forgets what it keeps.
    pub fn reset_state(&mut self) {
        self.prev_lhs.reset();
        self.prev_rhs.reset();
    }

    /// The operation, of sides that are complete.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    #[track_caller]
    pub fn forward(&self, lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
        match self.op {
            BinOp::Add => lhs.add(rhs),
            BinOp::Mul => lhs.mul(rhs),
            BinOp::Sub => lhs.sub(rhs),
            BinOp::Div => lhs.div(rhs),
        }
    }

    /// The operation, of the positions that both sides have by now.
    ///
    /// # Errors
    /// As [`Tensor::add`] and [`Tensor::cat`]. What was kept before is kept then, without these pieces.
    ///
    /// ```
    /// # use ndgc::{D, Device, Tensor, streaming::{BinOp, StreamTensor, StreamingBinOp}};
    /// let piece = |numbers: &[f32]| Ok::<_, ndgc::Error>(StreamTensor::from(Tensor::new(numbers, &Device::Cpu)?));
    /// let mut sum = StreamingBinOp::new(BinOp::Add, D::Minus1);
    /// let first = sum.step(&piece(&[1., 2.])?, &piece(&[10.])?)?; // the 2 waits
    /// assert_eq!(first.as_option().unwrap().to_vec1::<f32>()?, [11.]);
    /// let second = sum.step(&StreamTensor::empty(), &piece(&[20.])?)?;
    /// assert_eq!(second.as_option().unwrap().to_vec1::<f32>()?, [22.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn step(&mut self, lhs: &StreamTensor, rhs: &StreamTensor) -> Result<StreamTensor> {
        let lhs = self.prev_lhs.cat2(lhs, self.dim)?;
        let rhs = self.prev_rhs.cat2(rhs, self.dim)?;
        let common = lhs.seq_len(self.dim)?.min(rhs.seq_len(self.dim)?);
        let (lhs, prev_lhs) = lhs.split(self.dim, common)?;
        let (rhs, prev_rhs) = rhs.split(self.dim, common)?;
        let ys = match (lhs.0, rhs.0) {
            (Some(lhs), Some(rhs)) => self.forward(&lhs, &rhs)?.into(),
            _ => StreamTensor::empty(),
        };
        (self.prev_lhs, self.prev_rhs) = (prev_lhs, prev_rhs);
        Ok(ys)
    }
}

/// A module that needs no more than the piece there is.
#[derive(Clone, Debug)]
pub struct Map<T: Module>(T);

impl<T: Module> From<T> for Map<T> {
    fn from(module: T) -> Self {
        Map(module)
    }
}

impl<T: Module> StreamingModule for Map<T> {
    #[track_caller]
    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        xs.apply(&self.0)
    }

    fn reset_state(&mut self) {}
}
