//! Views with steps, backwards and of windows, and indexing of several axes: against lists of indices, with what is
//! refused, and that writing through them is right.

use ndgc::{DType, Device, Ellipsis, Error, IndexOp, NewAxis, Result, Tensor, TensorIndexer, Var, s};

use crate::ops::reference::Host;
use crate::ops::support::{assert_same, each, error, f64s, forms, put, values};

#[test]
fn steps_and_windows_out_of_range_are_errors() {
    each(|device| {
        let x = Tensor::zeros((2, 7), DType::F32, device).unwrap();
        for (start, len, step) in [(7, 1, 1), (0, 2, -1), (6, 2, 1), (1, 3, isize::MAX), (6, usize::MAX, -1), (0, 9, 1)]
        {
            assert!(matches!(
                error(x.narrow_step(1, start, len, step)),
                Error::Narrow { op: "narrow_step", axis: 1, .. }
            ));
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
        assert!(matches!(error(six.unfold(5, 2, 1)), Error::RankTooLarge { op: "unfold", rank: 7, .. }));
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

/// Counted one by one in bf16 they would stay at 256.
#[test]
fn the_gradient_of_many_windows_of_halves_is_their_number() {
    each(|device| {
        for size in [400, 500] {
            let x = Var::zeros(399 + size, DType::BF16, device).unwrap();
            let windows = x.as_tensor().unfold(0, size, 1).unwrap();
            assert_eq!(windows.dims(), [400, size]);
            let grads = windows.sum_all().unwrap().backward().unwrap();
            let grad = grads.get(&x).unwrap();
            assert_eq!(grad.dtype(), DType::BF16);
            let counts = values::<f64>(&grad.to_dtype(DType::F64).unwrap());
            assert_eq!((counts[0], counts[399], counts[398 + size]), (1., 400., 1.), "windows of {size}");
        }
    });
}

/// What lists of indices, one for each axis, take; then seen as `dims`.
fn taken(host: &Host<f32>, lists: [&[usize]; 3], dims: &[usize]) -> Host<f32> {
    let sizes = lists.map(<[usize]>::len);
    Host::from_fn(&sizes, |at| host.at(&[lists[0][at[0]], lists[1][at[1]], lists[2][at[2]]])).reshape(dims)
}

#[test]
fn items_take_what_they_say_of_every_form() {
    let all: [&[usize]; 3] = [&[0, 1], &[0, 1, 2], &[0, 1, 2, 3]];
    let [a, b, c] = all;
    let one = vec![2u32, 0, 2];
    each(|device| {
        let ids = Tensor::new([3i64, 3, 0], device).unwrap();
        let (rows, plane) =
            (Tensor::new([1u8, 0, 1], device).unwrap(), Tensor::new([[1i64, 0, 2], [0, 3, 0]], device).unwrap());
        for operand in forms::<f32>(device, 1) {
            let (x, h) = (&operand.tensor, &operand.host);
            let same = |what: &str, got: Result<Tensor>, lists, dims: &[usize]| {
                assert_same(&format!("{what} of {}", operand.form), &got.unwrap(), &taken(h, lists, dims));
            };
            same("[]", x.slice(s![]), all, &[2, 3, 4]);
            same("0", x.i(0), [&[0], b, c], &[3, 4]);
            same("-1", x.i(-1), [&[1], b, c], &[3, 4]);
            same("(.., 2usize)", x.i((.., 2usize)), [a, &[2], c], &[2, 4]);
            same("(.., 1..3, ..=2)", x.i((.., 1..3, ..=2)), [a, &[1, 2], &[0, 1, 2]], &[2, 2, 3]);
            same("(1.., ..1, -2)", x.i((1.., ..1, -2)), [&[1], &[0], &[2]], &[1, 1]);
            same("..-1", x.i((.., .., ..-1)), [a, b, &[0, 1, 2]], &[2, 3, 3]);
            same("-3..=-2", x.i((.., .., -3..=-2)), [a, b, &[1, 2]], &[2, 3, 2]);
            same("2..1", x.i((.., std::ops::Range { start: 2, end: 1 })), [a, &[], c], &[2, 0, 4]);
            same("..;-1", x.slice(s![.., ..;-1]), [a, &[2, 1, 0], c], &[2, 3, 4]);
            same("1..4;-2", x.slice(s![.., .., 1..4;-2]), [a, b, &[3, 1]], &[2, 3, 2]);
            same("..;3", x.slice(s![.., .., ..;3]), [a, b, &[0, 3]], &[2, 3, 2]);
            same("a step over everything", x.slice(s![.., .., 1..;isize::MIN]), [a, b, &[3]], &[2, 3, 1]);
            same("new axes", x.slice(s![NewAxis, 1, NewAxis, .., 0, NewAxis]), [&[1], b, &[0]], &[1, 1, 3, 1]);
            same("an ellipsis", x.slice(s![Ellipsis, 1]), [a, b, &[1]], &[2, 3]);
            same("an ellipsis of nothing", x.slice(s![0, 1, Ellipsis, 2]), [&[0], &[1], &[2]], &[]);
            same("a Vec", x.i((.., one.clone())), [a, &[2, 0, 2], c], &[2, 3, 4]);
            same("a slice", x.i((.., &one[..2], 1)), [a, &[2, 0], &[1]], &[2, 2]);
            same("a tensor", x.i((1, .., &ids)), [&[1], b, &[3, 3, 0]], &[3, 3]);
            same("two lists", x.i((.., one.clone(), &ids)), [a, &[2, 0, 2], &[3, 3, 0]], &[2, 3, 3]);
            let mask = TensorIndexer::mask(&rows);
            same("a mask", x.slice([(..).into(), mask.clone(), (1..).into()]), [a, &[0, 2], &[1, 2, 3]], &[2, 2, 3]);
            let over = x.slice([TensorIndexer::mask(&plane), (1..2).into()]).unwrap();
            let want = [(0, 0), (0, 2), (1, 1)].map(|(i, j)| h.at(&[i, j, 1]));
            assert_same("a mask of two axes", &over, &Host { dims: vec![3, 1], data: want.to_vec() });
        }
    });
}

#[test]
fn texts_take_what_they_say() {
    let all: [&[usize]; 3] = [&[0, 1], &[0, 1, 2], &[0, 1, 2, 3]];
    let [a, b, c] = all;
    each(|device| {
        let host = Host::<f32>::sample(&[2, 3, 4], 5);
        let x = put(&host, device);
        let ids = Tensor::new([3u32, 1], device).unwrap();
        let mask = Tensor::new([0u8, 1, 1], device).unwrap();
        let same = |text: &str, arguments: &[TensorIndexer], lists, dims: &[usize]| {
            let got = x.get_index(text, arguments).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_same(text, &got, &taken(&host, lists, dims));
        };
        same("", &[], all, &[2, 3, 4]);
        same(" 1 ", &[], [&[1], b, c], &[3, 4]);
        same("*, -1", &[], [a, &[2], c], &[2, 4]);
        same(":, 1:, :3", &[], [a, &[1, 2], &[0, 1, 2]], &[2, 2, 3]);
        same("..., 1:9:2", &[], [a, b, &[1, 3]], &[2, 3, 2]);
        same("..., ::-1", &[], [a, b, &[3, 2, 1, 0]], &[2, 3, 4]);
        same("..., 2:0:-1", &[], [a, b, &[2, 1]], &[2, 3, 2]);
        same("..., -9:-2", &[], [a, b, &[0, 1]], &[2, 3, 2]);
        same("..., 9::-3", &[], [a, b, &[3, 0]], &[2, 3, 2]);
        same("..., 1:3:-1", &[], [a, b, &[]], &[2, 3, 0]);
        same("0, null, ...", &[], [&[0], b, c], &[1, 3, 4]);
        same("{}, 1", &s![-1], [&[1], &[1], c], &[4]);
        same("..., {}:{}", &s![1, 3], [a, b, &[1, 2]], &[2, 3, 2]);
        same("..., {}:3:{}", &s![NewAxis, 2], [a, b, &[0, 2]], &[2, 3, 2]);
        same("{}, ..., {}", &s![NewAxis, &ids], [a, b, &[3, 1]], &[1, 2, 3, 2]);
        same(":, {}, 0", &[TensorIndexer::mask(&mask)], [a, &[1, 2], &[0]], &[2, 2]);
        same("{}", &s![..;-1], [&[1, 0], b, c], &[2, 3, 4]);
        let wrong = |text: &str, arguments: &[TensorIndexer], why: &str| {
            let said = error(x.get_index(text, arguments));
            assert!(matches!(said, Error::Index { op: "get_index", .. }), "{text}: {said:?}");
            assert!(said.to_string().contains(why), "{text}: {said}");
        };
        wrong("1, x", &[], "Invalid argument index: x");
        wrong("1,", &[], "Invalid argument index: ");
        wrong("1:2:3:4", &[], "Invalid argument index: 1:2:3:4");
        wrong("99999999999999999999", &[], "Invalid argument index: 99999999999999999999");
        wrong("..., ...", &[], "an index can only have a single ellipsis (\"...\")");
        wrong("{}, {}", &s![1], "Incorrect number of index arguments");
        wrong("0", &s![1], "Incorrect number of index arguments");
        wrong("{}:", &s![..], "Unknown argument: ");
        assert!(matches!(error(x.get_index("0, 0, 0, 0", &[])), Error::Argument { op: "get_index", .. }));
        assert!(matches!(error(x.get_index("::0", &[])), Error::Argument { argument: "step", .. }));
        assert!(matches!(error(x.get_index("2", &[])), Error::IndexOutOfRange { index: 2, dim: 2, .. }));
        let extremes = format!("{}:{}:{}", i64::MIN, i64::MAX, i64::MAX);
        assert_eq!(x.get_index(&extremes, &[]).unwrap().dims(), [1, 3, 4]);
        let back = format!("{}:{}:{}", i64::MAX, i64::MIN, i64::MIN);
        assert_eq!(x.get_index(&back, &[]).unwrap().dims(), [1, 3, 4]);
    });
}

#[test]
fn items_that_do_not_fit_are_errors() {
    each(|device| {
        let x = Tensor::zeros((2, 3), DType::F32, device).unwrap();
        assert!(matches!(error(x.i(2)), Error::IndexOutOfRange { op: "i", index: 2, dim: 2, .. }));
        assert!(matches!(error(x.i((0, -4))), Error::IndexOutOfRange { op: "i", index: -4, dim: 3, .. }));
        assert!(matches!(error(x.i((.., 1..4))), Error::IndexOutOfRange { op: "i", index: 4, dim: 3, .. }));
        assert!(matches!(error(x.i(i64::MIN..)), Error::IndexOutOfRange { .. }));
        assert!(matches!(error(x.i(usize::MAX..=usize::MAX)), Error::IndexOutOfRange { .. }));
        assert!(matches!(error(x.i((0, 0, 0))), Error::Argument { op: "i", argument: "number of indices", .. }));
        assert!(matches!(error(x.slice(s![Ellipsis, Ellipsis])), Error::Argument { op: "slice", .. }));
        assert!(matches!(error(x.slice(s![..;0])), Error::Argument { op: "slice", argument: "step", .. }));
        assert!(matches!(error(x.slice(s![1;2])), Error::Argument { op: "slice", argument: "step", .. }));
        let many = [const { TensorIndexer::NewAxis }; 5];
        assert!(matches!(error(x.slice(many)), Error::RankTooLarge { op: "slice", rank: 7, .. }));
        let more = [const { TensorIndexer::NewAxis }; 99];
        assert!(matches!(error(x.slice(more)), Error::RankTooLarge { op: "slice", .. }));
        let mask = Tensor::ones((3, 2), DType::U8, device).unwrap();
        assert!(matches!(error(x.slice([TensorIndexer::mask(&mask)])), Error::ShapeMismatch { op: "slice", .. }));
        assert!(matches!(error(x.i(&x)), Error::Shape { op: "i", .. } | Error::UnsupportedDType { .. }));
    });
}

#[test]
fn what_items_take_can_be_replaced_in_place() {
    each(|device| {
        let base = || Tensor::arange(0f64, 12., device).unwrap().reshape((3, 4)).unwrap();
        let number = |x: f64| Tensor::new(x, device).unwrap();
        let a = base();
        a.slice_assign_(s![..;-2, 1..3], &f64s(device, &[-1., -2.], 2)).unwrap();
        assert_eq!(values::<f64>(&a), [0., -1., -2., 3., 4., 5., 6., 7., 8., -1., -2., 11.]);
        a.slice_assign_(s![.., 0], &a.i((.., 3)).unwrap()).unwrap();
        assert_eq!(values::<f64>(&a), [3., -1., -2., 3., 7., 5., 6., 7., 11., -1., -2., 11.]);
        let a = base();
        a.slice_assign_(s![1.., vec![3u32, 0, 3]], &f64s(device, &[1., 2., 3., 4., 5., 6.], (2, 3))).unwrap();
        assert_eq!(values::<f64>(&a), [0., 1., 2., 3., 2., 5., 6., 3., 5., 9., 10., 6.]);
        let mask = a.broadcast_gt(&number(4.5)).unwrap();
        a.set_index("{}", &[TensorIndexer::mask(&mask)], &number(0.)).unwrap();
        assert_eq!(values::<f64>(&a), [0., 1., 2., 3., 2., 0., 0., 3., 0., 0., 0., 0.]);
        a.t().unwrap().set_index("-1, :2", &[], &number(9.)).unwrap();
        assert_eq!(values::<f64>(&a), [0., 1., 2., 9., 2., 0., 0., 9., 0., 0., 0., 0.], "through a transposed view");
        assert!(matches!(
            error(a.slice_assign_(s![5], &number(1.))),
            Error::IndexOutOfRange { op: "slice_assign_", .. }
        ));
        let two = s![vec![0u32], vec![0u32]];
        assert!(matches!(error(a.slice_assign_(two, &number(1.))), Error::Argument { op: "slice_assign_", .. }));
        let wide = f64s(device, &[1., 2.], 2);
        assert!(matches!(error(a.slice_assign_(s![0], &wide)), Error::ShapeMismatch { op: "slice_assign_", .. }));
        assert!(matches!(error(a.slice_assign_(s![vec![9u32]], &number(1.))), Error::IndexOutOfRange { .. }));
        assert_eq!(values::<f64>(&a), [0., 1., 2., 9., 2., 0., 0., 9., 0., 0., 0., 0.], "nothing changed");
        let w = ndgc::Var::ones((2, 2), DType::F64, device).unwrap();
        assert!(matches!(error(w.slice_assign_(s![0], &number(1.))), Error::Tracked { op: "slice_assign_", .. }));
    });
}

#[test]
fn a_view_by_items_takes_no_bytes_and_belongs_to_the_owner() {
    each(|device| {
        let manager = ndgc::NdManager::new_base_manager(device).unwrap();
        let a = manager.ones((4, 4), DType::F32).unwrap();
        let before = device.memory().active;
        let part = a.slice(s![..;2, NewAxis, -1]).unwrap();
        assert_eq!(device.memory().active, before);
        assert_eq!(part.manager().unwrap().uuid(), manager.uuid());
        let picked = a.i(vec![1u32]).unwrap();
        assert_eq!(picked.manager().unwrap().uuid(), manager.uuid());
        assert_eq!(manager.array_count(), 3, "nothing but the results");
        manager.close().unwrap();
    });
}

#[test]
fn holes_and_axes_are_written_in_every_way() {
    let device = &Device::Cpu;
    crate::ops::support::alone(|| {
        let x = Tensor::zeros((2, 3, 4), DType::F32, device).unwrap();
        let rows = 6usize;
        let dims = |made: Result<Tensor>| made.unwrap().dims().to_vec();
        assert_eq!(dims(x.reshape((rows, -1))), [6, 4]);
        assert_eq!(dims(x.reshape((rows, ()))), [6, 4]);
        assert_eq!(dims(x.reshape((rows, 4))), [6, 4]);
        assert_eq!(dims(x.reshape(-1)), [24]);
        assert_eq!(dims(x.reshape([2, -1])), [2, 12]);
        assert_eq!(dims(x.reshape(&[2i64, -1][..])), [2, 12]);
        assert_eq!(dims(x.reshape(((), 1, 2, 3, 2, 1))), [2, 1, 2, 3, 2, 1]);
        assert_eq!(dims(x.reshape(((),))), [24]);
        assert_eq!(dims(x.get(0).unwrap().get(0).unwrap().get(0).unwrap().reshape(())), [0usize; 0]);
        assert!(matches!(error(x.reshape((-1, ()))), Error::Argument { op: "reshape", .. }));
        assert!(matches!(error(x.reshape((-2, 3))), Error::Argument { op: "reshape", .. }));
        assert!(matches!(error(x.reshape((5, -1))), Error::Reshape { hole: Some(1), .. }));
        assert!(matches!(error(x.reshape([1i32; 7])), Error::RankTooLarge { op: "reshape", .. }));
        assert!(matches!(error(x.reshape((i64::MAX, i64::MAX, ()))), Error::Reshape { .. }));
        assert_eq!(dims(x.sum(-1i64)), [2, 3]);
        assert_eq!(dims(x.sum((0, ndgc::D::Minus1))), [3]);
        assert_eq!(dims(x.sum(vec![0usize, 1])), [4]);
        assert_eq!(dims(x.sum(())), [2, 3, 4]);
        assert!(matches!(error(x.sum(i64::MIN)), Error::DimOutOfRange { .. }));
    });
}
