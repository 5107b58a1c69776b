//! Shapes and axes as callers write them.

use ndgc_kernels::base::{
    blocks::StridedBlocks,
    error::Error,
    layout::Layout,
    shape::{D, Dim, Dims, Shape, ShapeWithOneHole},
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
