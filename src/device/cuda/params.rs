//! What kernels get: the structs of `kernels/prelude.cu`, field by field in their order, and how views become them.
//!
//! Shapes and strides travel by value. Before that, axes that lie one behind the other in every operand become one, so
//! that most launches count along a single axis or none.

use crate::base::{layout::Layout, shape::MAX_RANK};
use crate::device::{
    cuda::{checked::PARAMS_MAX, raw::Address},
    kernel::OwnedView,
};

/// A struct that a kernel takes by value: the same as one struct of `kernels/prelude.cu`.
pub(super) trait Params: Copy {}

macro_rules! params {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default)]
            pub(super) struct $name { $(pub(super) $field: $type,)* }

            impl Params for $name {}
            const _: () = assert!(size_of::<$name>() <= PARAMS_MAX, "a launch hands on so much");
        )*
    };
}

params! {
    /// An operand: the address of its first element, and the steps along each axis, in elements.
    struct Ref {
        ptr: Address,
        strides: [i64; MAX_RANK],
    }
    struct Each {
        count: u64,
        rank: u32,
        op: u32,
        dims: [u64; MAX_RANK],
        dst: Ref,
        a: Ref,
        b: Ref,
        c: Ref,
        x: f64,
        y: f64,
    }
    struct Fold {
        count: u64,
        len: u64,
        op: u32,
        lanes: u32,
        lanes_first: u32,
        parts: u32,
        kept_rank: u32,
        folded_rank: u32,
        kept_dims: [u64; MAX_RANK],
        kept_strides: [i64; MAX_RANK],
        folded_dims: [u64; MAX_RANK],
        folded_strides: [i64; MAX_RANK],
        src: Address,
        dst: Address,
        scratch: Address,
        tickets: Address,
    }
    struct Rows {
        rows: u64,
        cols: u64,
        op: u32,
        label_type: u32,
        a: Ref,
        b: Ref,
        dst: Ref,
        labels: Address,
        label_stride: i64,
        loss: Address,
        scratch: Address,
        ticket: Address,
        fault: Address,
    }
    struct Pick {
        count: u64,
        rank: u32,
        axis: u32,
        id_type: u32,
        ordered: u32,
        dims: [u64; MAX_RANK],
        dst: Ref,
        src: Ref,
        ids: Ref,
        limit: u64,
        fault: Address,
        op: u32,
        pad: u32,
    }
    struct Draw {
        count: u64,
        dst: Address,
        seed: u64,
        first: u64,
        low: f64,
        high: f64,
        replay: Address,
    }
    struct Step {
        count: u64,
        param: Address,
        grad: Address,
        m: Address,
        v: Address,
        h: Address,
        rate: f64,
        a: f64,
        b: f64,
        eps: f64,
        decay: f64,
        fix1: f64,
        fix2: f64,
        next: f64,
        step: u64,
        replay: Address,
    }
    struct Product {
        m: u64,
        n: u64,
        k: u64,
        batch: u64,
        rank: u32,
        pad: u32,
        dims: [u64; MAX_RANK],
        a: Ref,
        b: Ref,
        a_row: i64,
        a_col: i64,
        b_row: i64,
        b_col: i64,
        dst: Address,
    }
    struct Slide {
        count: u64,
        channels: u64,
        ins: [u64; 3],
        outs: [u64; 3],
        size: [u64; 3],
        stride: [u64; 3],
        padding: [u64; 3],
        dilation: [u64; 3],
        src: Ref,
        dst: Address,
        ids: Address,
        op: u32,
        adaptive: u32,
        scale: [f64; 2],
        shift: f64,
    }
    struct Scan {
        lines: u64,
        len: u64,
        rank: u32,
        op: u32,
        reverse: u32,
        pad: u32,
        dims: [u64; MAX_RANK],
        src: Ref,
        grad: Ref,
        dst: Ref,
        steps: [i64; 3],
        ids: Address,
    }
    struct Norm {
        rows: u64,
        cols: u64,
        centred: u32,
        pad: u32,
        src: Ref,
        grad: Ref,
        dst: Address,
        products: Address,
        scale: Address,
        shift: Address,
        scale_step: i64,
        shift_step: i64,
        eps: f64,
    }
    /// One address.
    struct Counter {
        address: Address,
    }
}

/// The address of a view's first element.
pub(super) fn address(view: &OwnedView) -> Address {
    let base = view.span().ptr().addr().get() as Address;
    base + (view.layout().offset() * view.dtype().size_in_bytes()) as Address
}

/// A view as an operand along the axes of its own layout.
pub(super) fn operand(view: &OwnedView) -> Ref {
    Ref { ptr: address(view), strides: strides(view.layout()) }
}

pub(super) fn strides(layout: &Layout) -> [i64; MAX_RANK] {
    let mut strides = [0; MAX_RANK];
    for (to, &from) in strides.iter_mut().zip(layout.strides()) {
        *to = from as i64;
    }
    strides
}

/// Axes that several operands share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid<const N: usize> {
    pub(super) rank: usize,
    pub(super) dims: [u64; MAX_RANK],
    pub(super) strides: [[i64; MAX_RANK]; N],
}

impl<const N: usize> Grid<N> {
    /// The axes of operands of one shape, as few as possible. Axes of size 1 vanish; an axis behind which the next one
    /// follows without a gap, in every operand, takes that one in.
    pub(super) fn new(dims: &[usize], operands: [&[i64]; N]) -> Self {
        let mut grid = Grid { rank: 0, dims: [1; MAX_RANK], strides: [[0; MAX_RANK]; N] };
        for (axis, &dim) in dims.iter().enumerate().filter(|&(_, &dim)| dim != 1) {
            // Of an operand without elements a step may be as long as numbers go.
            let reach = |i: usize| operands[i][axis].wrapping_mul(dim as i64);
            let follows = grid.rank > 0 && (0..N).all(|i| grid.strides[i][grid.rank - 1] == reach(i));
            if !follows {
                grid.rank += 1;
            }
            let last = grid.rank - 1;
            grid.dims[last] *= dim as u64;
            for (own, operand) in grid.strides.iter_mut().zip(&operands) {
                own[last] = operand[axis];
            }
        }
        grid
    }

    /// Whether element follows element in every operand.
    pub(super) fn is_flat(&self) -> bool {
        match self.rank {
            0 => true,
            1 => self.strides.iter().all(|strides| strides[0] == 1),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(size_of::<Ref>(), 56);
        assert_eq!(size_of::<Each>(), 8 + 8 + 48 + 4 * 56 + 16);
        assert_eq!(size_of::<Fold>(), 16 + 24 + 4 * 48 + 32);
        assert_eq!(size_of::<Rows>(), 24 + 3 * 56 + 48);
        assert_eq!(size_of::<Pick>(), 8 + 16 + 48 + 3 * 56 + 24);
        assert_eq!(size_of::<Draw>(), 56);
        assert_eq!(size_of::<Step>(), 16 * 8);
        assert_eq!(size_of::<Slide>(), 16 + 6 * 24 + 56 + 16 + 8 + 24);
        assert_eq!(size_of::<Scan>(), 16 + 16 + 48 + 3 * 56 + 32);
        assert_eq!(size_of::<Norm>(), 24 + 2 * 56 + 56);
        assert_eq!(size_of::<Product>(), 32 + 8 + 48 + 2 * 56 + 40);
    }

    #[test]
    fn axes_without_gaps_become_one() {
        let flat = Grid::new(&[2, 3, 4], [&[12, 4, 1], &[12, 4, 1]]);
        assert_eq!((flat.rank, flat.dims[0]), (1, 24));
        assert!(flat.is_flat());
        let row = Grid::new(&[2, 3, 4], [&[12, 4, 1], &[0, 0, 1]]);
        assert_eq!((row.rank, &row.dims[..2], row.strides[1][..2].to_vec()), (2, &[6, 4][..], vec![0, 1]));
        let scalar = Grid::new(&[2, 3, 4], [&[12, 4, 1], &[0, 0, 0]]);
        assert_eq!((scalar.rank, scalar.strides[1][0]), (1, 0));
        assert!(!scalar.is_flat());
        assert!(Grid::new(&[1, 1], [&[5, 7]]).is_flat());
        let turned = Grid::new(&[4, 1, 3], [&[3, 9, 1], &[1, 9, 4]]);
        assert_eq!((turned.rank, &turned.dims[..2]), (2, &[4, 3][..]));
    }
}
