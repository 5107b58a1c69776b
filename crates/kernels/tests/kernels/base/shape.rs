//! Shapes and axes as callers write them.

use ndgc_kernels::base::{
    blocks::StridedBlocks,
    call::Asked,
    error::{Error, Result},
    layout::Layout,
    shape::{Axes, D, Dim, Dims, Few, Shape, ShapeWithOneHole},
};

#[test]
fn shapes_come_from_tuples_slices_and_holes() {
    assert_eq!(Shape::from((2, 3)).dims(), [2, 3]);
    assert_eq!(Shape::from(()).elem_count(), 1);
    assert_eq!(Shape::from(&[2usize, 0][..]).elem_count(), 0);
    assert_eq!((2, ()).into_shape(6).expect("3 fits").dims(), [2, 3]);
    assert!((4, ()).into_shape(6).is_err());
    assert!((0, ()).into_shape(0).is_err());
}

#[test]
fn sizes_near_the_limit_are_errors() {
    assert!(Shape::from([1usize; 7]).check("zeros", 4).is_err());
    assert!(Shape::from((usize::MAX, 2)).check("zeros", 4).is_err());
    assert!(Shape::from((usize::MAX, usize::MAX, 0)).check("zeros", 4).is_err());
    assert_eq!(Shape::from((3, 0)).check("zeros", 4).expect("empty is fine"), 0);
}

#[test]
fn axes_count_from_either_end_and_never_twice() {
    let shape = Shape::from((2, 3, 4));
    assert_eq!(D::Minus1.to_index(&shape, "t").expect("last"), 2);
    assert_eq!((-3).to_index(&shape, "t").expect("first"), 0);
    assert!(3usize.to_index(&shape, "t").is_err());
    assert!((-4).to_index(&shape, "t").is_err());
    assert_eq!(D::Minus(3).to_index(&shape, "t").expect("first"), 0);
    assert_eq!(D::Minus(4).to_index_plus_one(&shape, "t").expect("before the first"), 0);
    for none in [D::Minus(0), D::Minus(5), D::Minus(usize::MAX)] {
        assert!(none.to_index(&shape, "t").is_err() && none.to_index_plus_one(&shape, "t").is_err());
    }
    // Told of as what it would be, not as a number that nobody gave.
    let behind = D::Minus(0).to_index(&shape, "t").expect_err("behind the last");
    assert!(matches!(behind, Error::DimOutOfRange { dim: 3, .. }), "{behind}");
    let behind = D::Minus(0).to_index_plus_one(&shape, "t").expect_err("behind where one more would be");
    assert!(matches!(behind, Error::DimOutOfRange { dim: 4, .. }), "{behind}");
    assert!([0, -3].to_axes(&shape, "sum").is_err());
    assert_eq!([0, 2].to_axes(&shape, "sum").expect("two axes").reduced(&shape, false).dims(), [3]);
}

/// An axis of a program's own kind, which answers what it is told to, whatever the shape.
#[derive(Clone, Copy)]
struct Answers(usize);

impl Dim for Answers {
    fn to_index(&self, _shape: &Shape, _op: &'static str) -> Result<usize> {
        Ok(self.0)
    }

    fn to_index_plus_one(&self, _shape: &Shape, _op: &'static str) -> Result<usize> {
        Ok(self.0)
    }
}

/// Axes 0 and 5, whatever the shape.
struct Foreign;

impl Dims for Foreign {
    fn to_axes(&self, _shape: &Shape, op: &'static str) -> Result<Axes> {
        [0usize, 5].to_axes(&Shape::from([1usize; 6]), op)
    }

    fn to_order(&self, _shape: &Shape, op: &'static str) -> Result<Few> {
        [0usize, 5].to_order(&Shape::from([1usize; 6]), op)
    }
}

#[test]
fn answers_of_a_programs_own_axes_that_are_not_there_are_errors() {
    let (shape, asked) = (Shape::from((2, 3, 4)), Asked::from("t"));
    let is_refused = |answer: Result<()>, axis: usize| {
        let Err(Error::DimOutOfRange { dim, shape, .. }) = answer else { return false };
        (dim, shape) == (i64::try_from(axis).unwrap_or(i64::MAX), vec![2, 3, 4])
    };
    for axis in [3, 5, 7, 8, 64, usize::MAX] {
        let dim = Answers(axis);
        assert!(is_refused(asked.axis(dim, &shape).map(drop), axis), "{axis}");
        assert!(is_refused(shape.dim(dim).map(drop), axis), "{axis}");
        assert!(is_refused([dim].to_axes(&shape, "t").map(drop), axis), "{axis}");
        assert!(is_refused((dim, 0).to_axes(&shape, "t").map(drop), axis), "{axis}");
        assert!(is_refused([dim].to_order(&shape, "t").map(drop), axis), "{axis}");
        let behind = asked.axis_plus_one(dim, &shape);
        assert!(if axis == 3 { matches!(behind, Ok(3)) } else { is_refused(behind.map(drop), axis) }, "{axis}");
    }
    assert_eq!((asked.axis(Answers(2), &shape).ok(), shape.dim(Answers(2)).ok()), (Some(2), Some(4)));
    assert!(is_refused(asked.axes(&Foreign, &shape).map(drop), 5));
    assert_eq!(asked.axes(&[0, 2], &shape).expect("two axes").reduced(&shape, false).dims(), [3]);
    assert_eq!(asked.axes(&(), &shape).expect("none").reduced(&shape, false), shape);
}

#[test]
fn shapes_are_extended_and_broadcast_under_the_names_that_candle_has() {
    let (row, column) = (Shape::from((2, 1, 3)), Shape::from((4, 1)));
    assert_eq!(column.extend(&[5, 6]).dims(), [4, 1, 5, 6]);
    assert_eq!(Shape::SCALAR.extend(&[]), Shape::SCALAR);
    assert!(row.extend(&[1; 4]).check("zeros", 4).is_err(), "seven axes");
    assert_eq!(row.broadcast_shape_binary_op(&column, "add").expect("1 fits").dims(), [2, 4, 3]);
    assert_eq!(column.broadcast_shape_binary_op(&Shape::SCALAR, "add").expect("a scalar fits"), column);
    let apart = column.broadcast_shape_binary_op(&Shape::from((3, 1)), "add");
    assert!(matches!(apart, Err(Error::ShapeMismatch { op: "add", .. })));
}

#[test]
fn a_shape_that_no_array_can_have_is_counted_and_looked_at_without_overflow() {
    assert_eq!(Shape::from((1 << 40, 1 << 40)).elem_count(), usize::MAX);
    assert_eq!(Shape::from((1 << 40, 1 << 40, 0)).elem_count(), 0);
    let long = Shape::from([2usize; 9]);
    assert_eq!(long.dim(5).expect("kept"), 2);
    assert!(long.dim(6).is_err() && long.dim(D::Minus1).is_err());
    assert!([8usize].to_axes(&long, "sum").is_err() && D::Minus1.to_axes(&long, "sum").is_err());
    assert_eq!(Layout::contiguous(long).strides().len(), 6);
    let huge = Layout::contiguous(Shape::from((1 << 40, 1 << 40)));
    let whole = huge.strided_blocks();
    assert!(matches!(whole, StridedBlocks::SingleBlock { start_offset: 0, len: usize::MAX }), "{whole:?}");
}
