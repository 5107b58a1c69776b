//! Views of views, by the places they lead to.

use ndgc_kernels::base::{layout::Layout, shape::Shape};

fn l(dims: &[usize]) -> Layout {
    Layout::contiguous(Shape::from(dims))
}

fn offsets(layout: &Layout) -> Vec<isize> {
    let mut all = vec![layout.offset() as isize];
    for (&dim, &stride) in layout.dims().iter().zip(layout.strides()) {
        all = all.iter().flat_map(|o| (0..dim as isize).map(move |i| o + i * stride)).collect();
    }
    all
}

#[test]
fn reshape_of_views_keeps_the_order_or_gives_up() {
    let shapes: [&[usize]; 9] =
        [&[24], &[2, 12], &[4, 6], &[2, 3, 4], &[4, 3, 2], &[1, 24, 1], &[6, 1, 4], &[2, 2, 2, 3], &[3, 8]];
    let base = l(&[2, 3, 4]);
    let wide = l(&[4, 5, 6]).narrow(0, 1, 2).and_then(|v| v.narrow(1, 1, 3)).and_then(|v| v.narrow(2, 0, 4));
    let views = [base, base.transpose(0, 1), base.transpose(1, 2), base.transpose(0, 2), wide.expect("inside")];
    for view in views {
        for dims in shapes {
            if let Some(seen) = view.reshape(&Shape::from(dims)) {
                assert_eq!(offsets(&seen), offsets(&view), "{view:?} as {dims:?}");
            }
        }
    }
    assert!(base.transpose(0, 1).reshape(&Shape::from(24)).is_none());
    assert!(l(&[4, 6]).narrow(0, 1, 2).expect("rows").reshape(&Shape::from(12)).is_some());
}

#[test]
fn flipped_and_stepped_axes_lead_to_the_indices_they_name() {
    let base = l(&[4, 5]);
    let turned = base.flip(1).stepped(0, 3, 2, -2).expect("rows 3 and 1");
    assert_eq!(offsets(&turned), [19, 18, 17, 16, 15, 9, 8, 7, 6, 5]);
    assert_eq!(turned.bounds(), Some((5, 20)));
    assert_eq!(offsets(&turned.narrow(1, 1, 2).expect("inside")), [18, 17, 8, 7]);
    assert_eq!(offsets(&turned.select(1, 4)), [15, 5]);
    assert_eq!(offsets(&base.flip(0).flip(1).reshape(&Shape::from(20)).expect("one step")).first(), Some(&19));
    assert!(!turned.is_contiguous() && !turned.repeats());
    for (start, len, step) in [(4, 1, 1), (0, 2, -1), (0, 5, 1), (3, 2, isize::MAX), (1, usize::MAX, 1)] {
        assert!(base.stepped(0, start, len, step).is_err(), "{start} {len} {step}");
    }
    assert_eq!(base.stepped(0, 9, 0, 7).expect("no index").end(), 0);
}

#[test]
fn windows_that_share_elements_repeat_and_others_do_not() {
    let base = l(&[3, 8]);
    assert_eq!(offsets(&base.select(0, 1).windows(0, 3, 4, 2)), [8, 9, 10, 11, 10, 11, 12, 13, 12, 13, 14, 15]);
    assert!(base.windows(1, 3, 4, 2).repeats());
    assert!(!base.windows(1, 2, 4, 4).repeats());
    assert!(!base.flip(0).transpose(0, 1).repeats());
    assert!(base.narrow(0, 0, 1).and_then(|l| l.broadcast_to(&Shape::from((2, 8)), "t")).expect("fits").repeats());
}

#[test]
fn the_offset_of_an_empty_view_stays() {
    let mut view = l(&[0, 1 << 60]);
    for _ in 0..40 {
        view = view.narrow(1, (1 << 60) - 1, 1).expect("inside").flip(1);
        view = view.broadcast_to(&Shape::from((0, 1 << 60)), "t").expect("repeats");
        view = view.reshape(&Shape::from((0, 1 << 60))).expect("empty");
    }
    assert_eq!((view.offset(), view.bounds()), (0, Some((0, 0))));
}

#[test]
fn narrow_checks_its_range_without_overflow() {
    assert!(l(&[3]).narrow(0, 1, usize::MAX).is_err());
    assert_eq!(l(&[3, 4]).narrow(1, 1, 2).expect("columns").offset(), 1);
}

#[test]
fn an_axis_of_size_one_does_not_break_contiguity() {
    assert!(l(&[1, 4]).transpose(0, 1).is_contiguous());
    assert!(!l(&[2, 4]).transpose(0, 1).is_contiguous());
}
