//! Views, padding, arrays made from a rule, picking and putting: against loops, with the errors that are promised.

use ndgc::{D, DType, Device, Error, NdManager, Tensor, TensorExt, nn};

use crate::ops::cases::for_types;
use crate::ops::reference::{Host, Native};
use crate::ops::support::{assert_same, each, error, forms, put, values};

#[test]
fn moving_turning_and_repeating_match_loops_on_every_form() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 1) {
            let (what, x, host) = (operand.form, &operand.tensor, &operand.host);
            assert_same(what, &x.movedim(0, D::Minus1).unwrap(), &host.permute(&[1, 2, 0]));
            assert_same(what, &x.movedim(2, 1).unwrap(), &host.permute(&[0, 2, 1]));
            for dims in [&[][..], &[1], &[0, 2]] {
                let want = Host::from_fn(&host.dims, |mut index| {
                    dims.iter().for_each(|&axis| index[axis] = host.dims[axis] - 1 - index[axis]);
                    host.at(&index)
                });
                assert_same(what, &x.flip(dims).unwrap(), &want);
            }
            for (shift, axis) in [(1, 0), (-1, 1), (7, 2), (4, 2), (i32::MIN, 1)] {
                let size = host.dims[axis];
                let by = shift.rem_euclid(size as i32) as usize;
                let want = Host::from_fn(&host.dims, |mut index| {
                    index[axis] = (index[axis] + size - by) % size;
                    host.at(&index)
                });
                assert_same(what, &x.roll(shift, axis).unwrap(), &want);
            }
            for counts in [&[1, 2, 3][..], &[2, 1, 1, 2], &[3], &[1, 0, 1], &[]] {
                let lead = counts.len().saturating_sub(3);
                let count = |axis: usize| counts.get(axis).copied().unwrap_or(1);
                let own = [vec![1; lead], host.dims.clone()].concat();
                let dims: Vec<usize> = own.iter().enumerate().map(|(axis, dim)| dim * count(axis)).collect();
                let want = Host::from_fn(&dims, |index| {
                    let inner: Vec<usize> = index[lead..].iter().zip(&host.dims).map(|(i, dim)| i % dim).collect();
                    host.at(&inner)
                });
                assert_same(&format!("{what} repeated {counts:?}"), &x.repeat(counts).unwrap(), &want);
                assert_same(what, &x.tile(counts).unwrap(), &want);
            }
            assert_same(what, &x.flatten_to(1).unwrap(), &host.reshape(&[6, 4]));
            assert_same(what, &x.broadcast_left((2, 1)).unwrap(), &host.broadcast(&[2, 1, 2, 3, 4]));
        }
    }
    each(|device| for_types!(device, body, u8, i64, f32));
}

#[test]
fn pieces_of_an_axis_are_views_in_order() {
    each(|device| {
        let host = Host::<f32>::tame(&[2, 7], 3);
        let x = put(&host, device);
        let sizes = |parts: &[Tensor]| parts.iter().map(|part| part.dim(1).unwrap()).collect::<Vec<_>>();
        let check = |parts: &[Tensor], want: &[usize]| {
            assert_eq!(sizes(parts), want);
            let mut start = 0;
            for (part, &size) in parts.iter().zip(want) {
                assert_same("a piece", part, &host.narrow(1, start, size));
                start += size;
            }
        };
        check(&x.chunk(3, 1).unwrap(), &[3, 2, 2]);
        check(&x.chunk(9, 1).unwrap(), &[1; 7]);
        check(&x.split(3, D::Minus1).unwrap(), &[3, 3, 1]);
        check(&x.split(usize::MAX, 1).unwrap(), &[7]);
        check(&x.split_sizes(&[0, 5, 2], 1).unwrap(), &[0, 5, 2]);
        assert!(matches!(error(x.chunk(0, 1)), Error::Argument { op: "chunk", .. }));
        assert!(matches!(error(x.split(0, 1)), Error::Argument { op: "split", .. }));
        assert!(matches!(error(x.split_sizes(&[usize::MAX, 8], 1)), Error::Argument { op: "split_sizes", .. }));
        assert!(matches!(error(x.chunk(2, 2)), Error::DimOutOfRange { op: "chunk", .. }));
        let empty = Tensor::zeros((2, 0), DType::F32, device).unwrap();
        assert_eq!(sizes(&empty.split(2, 1).unwrap()), [0]);
        assert!(empty.chunk(2, 1).unwrap().is_empty());
        assert_eq!(empty.roll(3, 1).unwrap().dims(), [2, 0]);
        assert_eq!(empty.flip(&[1]).unwrap().dims(), [2, 0]);
        assert_eq!(empty.repeat((2, 3)).unwrap().dims(), [4, 0]);
        assert!(matches!(error(x.repeat((usize::MAX, 2))), Error::SizeOverflow { op: "repeat", .. }));
        assert!(matches!(error(x.repeat([1; 7])), Error::RankTooLarge { op: "repeat", .. }));
        assert!(matches!(error(x.broadcast_left([2; 5])), Error::RankTooLarge { op: "broadcast_left", .. }));
        assert!(matches!(error(x.flip(&[2])), Error::DimOutOfRange { op: "flip", .. }));
        assert_eq!((x.numel(), x.unsqueeze(0).unwrap().dims3().unwrap()), (14, (1, 2, 7)));
        assert!(matches!(error(x.dims4()), Error::Shape { op: "dims4", .. }));
        assert!(matches!(error(x.dims5()), Error::Shape { op: "dims5", .. }));
    });
}

#[test]
fn padding_adds_zeros_or_the_edges() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 5) {
            for (axis, left, right) in [(0, 0, 0), (1, 2, 0), (2, 0, 3), (2, 1, 2)] {
                let size = operand.host.dims[axis];
                let mut dims = operand.host.dims.clone();
                dims[axis] += left + right;
                let at = |mut index: Vec<usize>| {
                    let inside = index[axis] >= left && index[axis] < left + size;
                    index[axis] = index[axis].saturating_sub(left).min(size - 1);
                    (inside, operand.host.at(&index))
                };
                let zeros = Host::from_fn(&dims, |index| if at(index.clone()).0 { at(index).1 } else { T::default() });
                assert_same("zeros", &operand.tensor.pad_with_zeros(axis, left, right).unwrap(), &zeros);
                let same = Host::from_fn(&dims, |index| at(index).1);
                assert_same("same", &operand.tensor.pad_with_same(axis, left, right).unwrap(), &same);
            }
        }
    }
    each(|device| {
        for_types!(device, body, u8, i64, f64);
        let empty = Tensor::zeros((2, 0), DType::F32, device).unwrap();
        assert_eq!(values::<f32>(&empty.pad_with_zeros(1, 1, 1).unwrap()), [0.; 4]);
        assert!(matches!(error(empty.pad_with_same(1, 1, 0)), Error::Shape { op: "pad_with_same", .. }));
        let huge = error(empty.pad_with_zeros(1, usize::MAX, 1));
        assert!(matches!(huge, Error::SizeOverflow { op: "pad_with_zeros", .. }));
    });
}

#[test]
fn arrays_made_from_a_rule_hold_what_it_says() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let spaced = Tensor::linspace(-1., 2., 7, DType::F64, &manager).unwrap();
        assert_eq!(spaced.manager().unwrap().uuid(), manager.uuid());
        assert_eq!(values::<f64>(&spaced), [-1., -0.5, 0., 0.5, 1., 1.5, 2.]);
        let count = |n| Tensor::linspace(3., 9., n, DType::I64, device).unwrap();
        assert_eq!((values::<i64>(&count(3)), values::<i64>(&count(1))), (vec![3, 6, 9], vec![3]));
        for n in [12, 13, 35, 49] {
            let whole = |dtype| Tensor::linspace(1., n as f64, n, dtype, device).unwrap();
            assert_eq!(values::<f64>(&whole(DType::F64)), (1..=n).map(|i| i as f64).collect::<Vec<f64>>());
            assert_eq!(values::<i64>(&whole(DType::I64)), (1..=n as i64).collect::<Vec<i64>>());
        }
        let far = |n| values::<f64>(&Tensor::linspace(-1e308, 1e308, n, DType::F64, device).unwrap());
        assert_eq!((far(1), far(2)), (vec![-1e308], vec![-1e308, 1e308])); // the way between them is no number
        assert_eq!(far(3), [-1e308, 0., 1e308]);
        assert_eq!(count(0).dims(), [0]);
        assert!(matches!(error(Tensor::linspace(0., f64::INFINITY, 2, DType::F32, device)), Error::Argument { .. }));
        let square = |f: fn(usize, usize) -> bool| Host::from_fn(&[4, 4], |i| u8::from(f(i[0], i[1])));
        for dtype in DType::ALL {
            let as_u8 = |x: ndgc::Result<Tensor>| x.unwrap().to_dtype(DType::U8).unwrap();
            assert_same("eye", &as_u8(Tensor::eye(4, dtype, &manager)), &square(|r, c| r == c));
            assert_same("tril2", &as_u8(Tensor::tril2(4, dtype, device)), &square(|r, c| c <= r));
            assert_same("triu2", &as_u8(Tensor::triu2(4, dtype, device)), &square(|r, c| c >= r));
            assert_eq!(Tensor::eye(0, dtype, device).unwrap().dims(), [0, 0]);
        }
        assert!(matches!(error(Tensor::eye(1 << 40, DType::F32, device)), Error::SizeOverflow { op: "eye", .. }));
        assert_eq!(values::<u32>(&Tensor::from_iter([1u32, 5, 9], device).unwrap()), [1, 5, 9]);
        let bytes: Vec<u8> = [1.5f32, -2.].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let raw = Tensor::from_raw_buffer(&bytes, DType::F32, (2, 1), device).unwrap();
        assert_eq!(raw.to_vec2::<f32>().unwrap(), [[1.5], [-2.]]);
        let short = error(Tensor::from_raw_buffer(&bytes, DType::F64, 2, device));
        assert!(matches!(short, Error::Argument { op: "from_raw_buffer", .. }));
        let (a, b) = (Tensor::new([1f32, 2.], device).unwrap(), Tensor::new([3f32, 4., 5.], device).unwrap());
        let grid = Tensor::meshgrid(&[&a, &b], false).unwrap();
        assert_eq!(grid[0].to_vec2::<f32>().unwrap(), [[1.; 3], [2.; 3]]);
        assert_eq!(grid[1].to_vec2::<f32>().unwrap(), [[3., 4., 5.]; 2]);
        let grid = Tensor::meshgrid(&[&a, &b], true).unwrap();
        assert_eq!(grid[0].to_vec2::<f32>().unwrap(), [[1., 2.]; 3]);
        assert_eq!(grid[1].to_vec2::<f32>().unwrap(), [[3.; 2], [4.; 2], [5.; 2]]);
        assert!(matches!(error(Tensor::meshgrid(&[&a], true)), Error::Argument { op: "meshgrid", .. }));
        manager.close().unwrap();
    });
}

#[test]
fn triangles_and_diagonals_match_loops_on_every_form() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 7) {
            let (x, host) = (&operand.tensor, &operand.host);
            for k in [0, 1, -1, 3, -3, i64::MAX, i64::MIN] {
                let of = |keep: fn(i128, i128) -> bool| {
                    Host::from_fn(&host.dims, |i| {
                        let diagonal = i[2] as i128 - i[1] as i128;
                        if keep(diagonal, i128::from(k)) { host.at(&i) } else { T::default() }
                    })
                };
                assert_same("tril", &x.tril(k).unwrap(), &of(|d, k| d <= k));
                assert_same("triu", &x.triu(k).unwrap(), &of(|d, k| d >= k));
                for (a, b) in [(1, 2), (2, 0), (0, 1)] {
                    let rest = 3 - a - b;
                    let start = |k: i64| usize::try_from(k).unwrap_or(0);
                    let places: Vec<(usize, usize)> = (0..host.dims[a])
                        .flat_map(|r| (0..host.dims[b]).map(move |c| (r, c)))
                        .filter(|&(r, c)| c as i128 - r as i128 == i128::from(k))
                        .collect();
                    assert!(start(k) >= host.dims[b] || places.len() <= host.dims[a]);
                    let want = Host::from_fn(&[host.dims[rest], places.len()], |i| {
                        let mut index = vec![0; 3];
                        (index[rest], index[a], index[b]) = (i[0], places[i[1]].0, places[i[1]].1);
                        host.at(&index)
                    });
                    assert_same(&format!("diagonal {k} of {a}, {b}"), &x.diagonal(k, a, b).unwrap(), &want);
                }
            }
        }
    }
    each(|device| {
        for_types!(device, body, u8, u32, f64);
        let v = Tensor::new([1f32, 2.], device).unwrap();
        assert_eq!(v.diag(1).unwrap().to_vec2::<f32>().unwrap(), [[0., 1., 0.], [0., 0., 2.], [0.; 3]]);
        assert_eq!(v.diag(-1).unwrap().to_vec2::<f32>().unwrap(), [[0.; 3], [1., 0., 0.], [0., 2., 0.]]);
        assert_eq!(values::<f32>(&v.diag(1).unwrap().diag(1).unwrap()), [1., 2.]);
        assert_eq!(v.diag(0).unwrap().trace().unwrap().to_scalar::<f32>().unwrap(), 3.);
        assert!(matches!(error(v.diag(i64::MIN)), Error::SizeOverflow { op: "diag", .. }));
        let truth = Tensor::new([true, true], device).unwrap();
        assert_eq!(values::<bool>(&truth.diag(0).unwrap()), [true, false, false, true]);
        let zero = Tensor::new([-0f32], device).unwrap();
        assert!(values::<f32>(&zero.diag(0).unwrap())[0].is_sign_negative());
        assert_eq!(v.narrow(0, 0, 0).unwrap().diag(2).unwrap().to_vec2::<f32>().unwrap(), [[0.; 2]; 2]);
        assert!(matches!(error(v.tril(0)), Error::Shape { op: "tril", .. }));
        assert!(matches!(
            error(v.unsqueeze(0).unwrap().diagonal(0, 1, -1)),
            Error::DuplicateDim { op: "diagonal", .. }
        ));
        let none = Tensor::zeros((0, 3), DType::F32, device).unwrap();
        assert_eq!(none.tril(0).unwrap().dims(), [0, 3]);
        assert_eq!(none.diagonal(0, 0, 1).unwrap().dims(), [0]);
        assert_eq!(none.trace().unwrap().to_scalar::<f32>().unwrap(), 0.);
    });
}

/// Few elements and many, also what no product would make 0.
#[test]
fn triangles_have_the_bits_of_what_they_keep_and_zeros_beside() {
    let numbers = [-0., f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1., -1.5, 3.];
    let square: [&[usize]; 3] = [&[1, 1], &[2, 2], &[4, 4]];
    let others: [&[usize]; 5] = [&[1, 17], &[16, 1], &[3, 5], &[3, 0], &[0, 2, 2]];
    let several: [&[usize]; 3] = [&[2, 2, 4], &[2, 1, 3, 2], &[3, 7, 9]];
    let shapes = || [&square[..], &others, &several].into_iter().flatten().copied();
    let bits = |x: &Tensor| -> Vec<u64> {
        let all = values::<f64>(&x.to_dtype(DType::F64).unwrap());
        all.into_iter().map(|x| if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() }).collect()
    };
    each(|device| {
        for (dtype, dims) in DType::ALL.into_iter().flat_map(|dtype| shapes().map(move |dims| (dtype, dims))) {
            let [.., rows, columns] = *dims else { panic!("a matrix") };
            let data: Vec<f64> = (0..dims.iter().product()).map(|i: usize| numbers[i % numbers.len()]).collect();
            let x = Tensor::from_slice(&data, dims, device).unwrap().to_dtype(dtype).unwrap();
            let turned = x.t().unwrap().copy().unwrap().t().unwrap();
            // Dense, and not at the begin of its bytes.
            let second = Tensor::stack(&[&turned, &x], 0).unwrap().get(1).unwrap();
            for k in [-20, -1, 0, 1, 2, i64::MAX, i64::MIN] {
                let of = |keep: fn(i128, i128) -> bool| -> Vec<u64> {
                    let kept = |i: usize| keep((i % columns) as i128 - (i / columns % rows) as i128, k.into());
                    bits(&x).iter().enumerate().map(|(i, &bits)| if kept(i) { bits } else { 0 }).collect()
                };
                let (lower, upper) = (of(|d, k| d <= k), of(|d, k| d >= k));
                for x in [&x, &turned, &second] {
                    let (l, u) = (x.tril(k).unwrap(), x.triu(k).unwrap());
                    assert_eq!((l.dtype(), l.dims(), u.dtype(), u.dims()), (dtype, dims, dtype, dims));
                    assert_eq!((bits(&l), bits(&u)), (lower.clone(), upper.clone()), "{k} of {dtype} {dims:?}");
                }
            }
        }
        let sevens = Tensor::new(7f32, device).unwrap().broadcast_as((2, 2)).unwrap();
        assert_eq!(values::<f32>(&sevens.tril(0).unwrap()), [7., 0., 7., 7.]);
    });
}

#[test]
fn gradients_of_triangles_are_triangles() {
    each(|device| {
        let x = ndgc::Var::new([[1f32, f32::NAN, 2.], [3., 4., f32::INFINITY]], device).unwrap();
        let weights = Tensor::new([[1f32, 2., 3.], [4., 5., 6.]], device).unwrap();
        let of = |y: Tensor| {
            let grads = y.mul(&weights).unwrap().sum_all().unwrap().backward().unwrap();
            values::<f32>(grads.get(&x).unwrap())
        };
        assert_eq!(of(x.tril(0).unwrap()), [1., 0., 0., 4., 5., 0.]);
        assert_eq!(of(x.triu(1).unwrap()), [0., 2., 3., 0., 0., 6.]);
        assert_eq!(of(x.tril(i64::MIN).unwrap()), [0.; 6]);
        assert!(!ndgc::no_grad(|| x.tril(0)).unwrap().track_op());
    });
}

#[test]
fn slices_are_written_into_copies_and_in_place() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 9) {
            let (x, host) = (&operand.tensor, &operand.host);
            let src = Host::<T>::tame(&[2, 1, 2], 10);
            let of_src = put(&src, device);
            let want = Host::from_fn(&host.dims, |i| match (i[1] == 1, (1..3).contains(&i[2])) {
                (true, true) => src.at(&[i[0], 0, i[2] - 1]),
                _ => host.at(&i),
            });
            assert_same("slice_assign", &x.slice_assign(&[0..2, 1..2, 1..3], &of_src).unwrap(), &want);
            let part = Host::<T>::tame(&[2, 2, 4], 11);
            let of_part = put(&part, device);
            let want = Host::from_fn(&host.dims, |i| match i[1] {
                0 => host.at(&i),
                row => part.at(&[i[0], row - 1, i[2]]),
            });
            assert_same("slice_scatter", &x.slice_scatter(&of_part, 1, 1).unwrap(), &want);
            let copy = x.copy().unwrap();
            copy.slice_set(&of_part, 1, 1).unwrap();
            assert_same("slice_set", &copy, &want);
        }
    }
    each(|device| {
        for_types!(device, body, u8, i64, f32);
        let (x, y) =
            (Tensor::zeros((2, 3), DType::F32, device).unwrap(), Tensor::ones((1, 3), DType::F32, device).unwrap());
        assert_eq!(values::<f32>(&x.slice_scatter0(&y, 1).unwrap()), [0., 0., 0., 1., 1., 1.]);
        assert_eq!(values::<f32>(&x.slice_assign(&[..=0, ..=2], &y).unwrap()), [1., 1., 1., 0., 0., 0.]);
        assert!(matches!(error(x.slice_assign(&[0..1, 0..3, 0..1], &y)), Error::Argument { op: "slice_assign", .. }));
        assert!(matches!(error(x.slice_assign(&[1..1, 0..3], &y)), Error::Argument { op: "slice_assign", .. }));
        assert!(matches!(error(x.slice_assign(&[2..3, 0..3], &y)), Error::Narrow { op: "slice_assign", .. }));
        assert!(matches!(error(x.slice_assign(&[0..2, 0..3], &y)), Error::ShapeMismatch { op: "slice_assign", .. }));
        assert!(matches!(error(x.slice_scatter(&y, 0, usize::MAX)), Error::Narrow { op: "slice_scatter", .. }));
        assert!(matches!(error(x.slice_set(&y, 1, 0)), Error::ShapeMismatch { op: "slice_set", .. }));
        let doubles = y.to_dtype(DType::F64).unwrap();
        assert!(matches!(error(x.slice_scatter(&doubles, 0, 0)), Error::DTypeMismatch { op: "slice_scatter", .. }));
        let variable = ndgc::Var::from_tensor(&x).unwrap();
        assert!(matches!(error(variable.slice_set(&y, 0, 0)), Error::Tracked { op: "slice_set", .. }));
    });
}

#[test]
fn scatter_lets_the_last_one_win() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 13) {
            let host = &operand.host;
            for axis in 0..3 {
                let ids = Host::from_fn(&[2, 2, 3], |i| ((i[0] * 5 + i[1] * 3 + i[2]) % host.dims[axis]) as u32);
                let src = Host::<T>::tame(&ids.dims, 14);
                let mut want = host.clone();
                for index in crate::ops::reference::indices(&ids.dims) {
                    let mut to = index.clone();
                    to[axis] = ids.at(&index) as usize;
                    let flat = to.iter().zip(&host.dims).fold(0, |flat, (&i, &dim)| flat * dim + i);
                    want.data[flat] = src.at(&index);
                }
                let (ids, src) = (put(&ids, device), put(&src, device));
                assert_same("scatter", &operand.tensor.scatter(&ids, &src, axis).unwrap(), &want);
                let copy = operand.tensor.copy().unwrap();
                copy.scatter_set(&ids, &src, axis).unwrap();
                assert_same("scatter_set", &copy, &want);
                let copy = operand.tensor.copy().unwrap();
                copy.scatter_add_set(&ids, &src, axis).unwrap();
                let sum = operand.tensor.scatter_add(&ids, &src, axis).unwrap();
                assert_same("scatter_add_set", &copy, &Host { dims: host.dims.clone(), data: values::<T>(&sum) });
            }
        }
    }
    each(|device| {
        for_types!(device, body, u8, u32, i64, f32, f64);
        let x = Tensor::zeros((2, 2), DType::F32, device).unwrap();
        let far = Tensor::new([[2i64, 0]], device).unwrap();
        let below = Tensor::new([[-1i64, 0]], device).unwrap();
        let src = Tensor::ones((1, 2), DType::F32, device).unwrap();
        assert!(matches!(
            error(x.scatter(&far, &src, 0)),
            Error::IndexOutOfRange { op: "scatter", index: 2, dim: 2, .. }
        ));
        assert!(matches!(error(x.scatter(&below, &src, 0)), Error::IndexOutOfRange { op: "scatter", .. }));
        assert!(matches!(error(x.scatter(&far, &x, 0)), Error::ShapeMismatch { op: "scatter", .. }));
        assert!(matches!(error(x.scatter(&src, &src, 0)), Error::UnsupportedDType { op: "scatter", .. }));
        let none = Tensor::zeros((0, 2), DType::U32, device).unwrap();
        let nothing = Tensor::zeros((0, 2), DType::F32, device).unwrap();
        assert_eq!(values::<f32>(&x.scatter(&none, &nothing, 0).unwrap()), [0.; 4]);
    });
}

#[test]
fn points_and_hot_rows() {
    each(|device| {
        let host = Host::<f32>::tame(&[2, 3, 4], 15);
        let x = put(&host, device);
        let ids = Tensor::new([[[1u8, 2], [0, 0]], [[1, 0], [1, 2]]], device).unwrap();
        let read = values::<u8>(&ids);
        let want = Host::from_fn(&[2, 2, 4], |i| {
            let at = (i[0] * 2 + i[1]) * 2;
            host.at(&[read[at] as usize, read[at + 1] as usize, i[2]])
        });
        assert_same("gather_nd", &x.gather_nd(&ids).unwrap(), &want);
        let whole = Tensor::zeros((2, 0), DType::I64, device).unwrap();
        assert_eq!(x.gather_nd(&whole).unwrap().dims(), [2, 2, 3, 4]);
        let far = Tensor::new([[0u32, 3]], device).unwrap();
        assert!(matches!(error(x.gather_nd(&far)), Error::IndexOutOfRange { op: "gather_nd", index: 3, dim: 3, .. }));
        let long = Tensor::zeros((1, 4), DType::U32, device).unwrap();
        assert!(matches!(error(x.gather_nd(&long)), Error::Shape { op: "gather_nd", .. }));
        let ids = Tensor::new([[2i64], [-1]], device).unwrap();
        assert_eq!(ids.one_hot(3).unwrap().to_vec3::<u8>().unwrap(), [[[0, 0, 1]], [[0, 0, 0]]]);
        let hot = nn::encoding::one_hot(ids.clone(), 3, 2f64, -1.).unwrap();
        assert_eq!(values::<f64>(&hot), [-1., -1., 2., -1., -1., -1.]);
        assert!(matches!(error(ids.one_hot(2)), Error::IndexOutOfRange { op: "one_hot", index: 2, dim: 2, .. }));
        let scalar = Tensor::new(1u32, device).unwrap();
        assert_eq!(values::<u8>(&scalar.one_hot(2).unwrap()), [0, 1]);
        let far = Tensor::new([u64::MAX, 1], device).unwrap();
        assert!(matches!(error(far.one_hot(3)), Error::IndexOutOfRange { op: "one_hot", index: i64::MAX, dim: 3, .. }));
        assert_eq!(values::<u8>(&Tensor::new([2u64], device).unwrap().one_hot(3).unwrap()), [0, 0, 1]);
    });
}

#[test]
fn results_belong_to_the_owner_of_the_receiver_and_nothing_else_stays_there() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let x = Tensor::linspace(0.1, 0.9, 6, DType::F32, &manager).unwrap().reshape((2, 3)).unwrap();
        let ops: [fn(&Tensor) -> ndgc::Result<Tensor>; 12] = [
            |x| x.atan(),
            |x| x.floor(),
            |x| x.roll(1, 0),
            |x| x.repeat((2, 2)),
            |x| x.cumsum(1),
            |x| x.var(0),
            |x| Ok(x.sort(1, true)?.0),
            |x| x.tril(0),
            |x| x.slice_scatter0(&x.narrow(0, 0, 1)?.try_detach()?, 1),
            |x| Tensor::einsum("ij,kj->ik", &[x, x]),
            |x| x.softplus(),
            |x| x.dropout(0.5),
        ];
        for (i, op) in ops.into_iter().enumerate() {
            let y = op(&x).unwrap();
            assert_eq!(y.manager().unwrap().uuid(), manager.uuid(), "operation {i}");
        }
        manager.close().unwrap();
    });
}
