//! Views with steps, backwards and of windows: what they refuse, and that writing through them is right.

use ndgc::{DType, Error, Tensor};

use crate::support::{each, error, f64s, values};

#[test]
fn steps_and_windows_out_of_range_are_errors() {
    each(|device| {
        let x = Tensor::zeros((2, 7), DType::F32, device).unwrap();
        for (start, len, step) in [(7, 1, 1), (0, 2, -1), (6, 2, 1), (1, 3, isize::MAX), (6, usize::MAX, -1), (0, 9, 1)]
        {
            assert!(matches!(error(x.narrow_step(1, start, len, step)), Error::Narrow { axis: 1, .. }));
        }
        assert!(matches!(
            error(x.narrow_step(1, 0, 2, 0)),
            Error::Argument { op: "narrow_step", argument: "step", .. }
        ));
        assert!(matches!(error(x.narrow_step(2, 0, 2, 1)), Error::DimOutOfRange { op: "narrow_step", .. }));
        assert_eq!(x.narrow_step(1, 99, 0, isize::MIN).unwrap().dims(), [2, 0]);
        assert_eq!(x.narrow_step(1, 6, 1, isize::MIN).unwrap().dims(), [2, 1]);
        assert!(matches!(error(x.unfold(1, 8, 1)), Error::Argument { op: "unfold", argument: "size", .. }));
        assert!(matches!(error(x.unfold(1, 0, 1)), Error::Argument { op: "unfold", argument: "size", .. }));
        assert!(matches!(error(x.unfold(1, 2, 0)), Error::Argument { op: "unfold", argument: "step", .. }));
        assert!(matches!(error(x.unfold(2, 1, 1)), Error::DimOutOfRange { op: "unfold", .. }));
        assert_eq!(x.unfold(1, 3, usize::MAX).unwrap().dims(), [2, 1, 3]);
        let six = x.reshape((1, 1, 1, 1, 2, 7)).unwrap();
        assert!(matches!(error(six.unfold(5, 2, 1)), Error::RankTooLarge { op: "unfold", rank: 7 }));
        let wide = Tensor::zeros(1, DType::F32, device).unwrap().broadcast_as(1usize << 40).unwrap();
        assert!(matches!(error(wide.unfold(0, 1 << 39, 1)), Error::SizeOverflow { op: "unfold", .. }));
    });
}

#[test]
fn writing_through_a_view_backwards_reaches_its_elements_alone() {
    each(|device| {
        let a = f64s(device, &[1., 2., 3., 4., 5., 6., 7.], 7);
        a.narrow_step(0, 5, 3, -2).unwrap().copy_(&f64s(device, &[10., 20., 30.], 3)).unwrap();
        assert_eq!(values::<f64>(&a), [1., 30., 3., 20., 5., 10., 7.]);
        a.add_(&a.flip(&[0]).unwrap()).unwrap();
        assert_eq!(values::<f64>(&a), [8., 40., 8., 40., 8., 40., 8.]);
        a.flip(&[0]).unwrap().narrow(0, 0, 2).unwrap().fill_(0.).unwrap();
        assert_eq!(values::<f64>(&a), [8., 40., 8., 40., 8., 0., 0.]);
        let windows = a.unfold(0, 3, 2).unwrap();
        assert!(matches!(error(windows.fill_(1.)), Error::Overlap { op: "fill_", .. }));
        assert!(matches!(error(windows.copy_(&windows)), Error::Overlap { op: "copy_", .. }));
        assert_eq!(values::<f64>(&a), [8., 40., 8., 40., 8., 0., 0.], "nothing changed");
        a.unfold(0, 2, 3).unwrap().affine_(1., 1.).unwrap();
        assert_eq!(values::<f64>(&a), [9., 41., 8., 41., 9., 0., 0.], "windows that share nothing");
    });
}
