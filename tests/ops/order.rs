//! Sorting, quantiles, unique elements, counts; variance, products, norms and running sums.

use ndgc::{D, DType, Device, Error, Tensor, TensorExt, TensorIndexer};

use crate::ops::cases::for_types;
use crate::ops::reference::{Host, Native, indices};
use crate::ops::support::{Operand, assert_same, each, error, f64s, forms, put, values};

fn order<T: Native>(a: T, b: T) -> std::cmp::Ordering {
    let nan = |x: T| x.to_f64().is_nan();
    a.partial_cmp(&b).unwrap_or_else(|| nan(a).cmp(&nan(b)))
}

/// The indices of each lane in order.
fn argsort<T: Native>(host: &Host<T>, axis: usize, descending: bool) -> Host<u32> {
    Host::from_fn(&host.dims, |index| {
        let lane: Vec<T> = (0..host.dims[axis])
            .map(|i| {
                let mut index = index.clone();
                index[axis] = i;
                host.at(&index)
            })
            .collect();
        let mut places: Vec<u32> = (0..lane.len() as u32).collect();
        places.sort_by(|&a, &b| {
            let order = order(lane[a as usize], lane[b as usize]);
            if descending { order.reverse() } else { order }
        });
        places[index[axis]]
    })
}

fn gather<T: Native>(host: &Host<T>, ids: &Host<u32>, axis: usize) -> Host<T> {
    Host::from_fn(&ids.dims, |mut index| {
        index[axis] = ids.at(&index) as usize;
        host.at(&index)
    })
}

#[test]
fn sorting_matches_loops_along_every_axis_of_every_form() {
    fn body<T: Native>(device: &Device) {
        for Operand { form, tensor, host } in forms::<T>(device, 21) {
            for axis in 0..3 {
                for descending in [false, true] {
                    let what = format!("sort {form} along {axis}");
                    let ids = argsort(&host, axis, descending);
                    let (sorted, order) = tensor.sort(axis, descending).unwrap();
                    assert_same(&what, &order, &ids);
                    assert_same(&what, &sorted, &gather(&host, &ids, axis));
                    assert_same(&what, &tensor.argsort(axis, descending).unwrap(), &ids);
                }
                let ids = argsort(&host, axis, true).narrow(axis, 0, 2);
                let (top, order) = tensor.topk(2, axis).unwrap();
                assert_same("topk", &order, &ids);
                assert_same("topk", &top, &gather(&host, &ids, axis));
            }
            let ids = argsort(&host, 2, true);
            assert_same("arg_sort_last_dim", &tensor.arg_sort_last_dim(false).unwrap(), &ids);
            assert_same("sort_last_dim", &tensor.sort_last_dim(false).unwrap().0, &gather(&host, &ids, 2));
        }
    }
    each(|device| for_types!(device, body, u8, u32, i64, f32, f64));
}

#[test]
fn ordering_refuses_what_has_no_order_and_takes_what_is_empty() {
    each(|device| {
        let empty = Tensor::zeros((2, 0), DType::F32, device).unwrap();
        assert_eq!(empty.sort(1, false).unwrap().0.dims(), [2, 0]);
        assert_eq!(empty.sort(0, true).unwrap().1.dims(), [2, 0]);
        assert!(matches!(error(empty.median(1)), Error::Shape { op: "median", .. }));
        assert!(matches!(error(empty.quantile(0.5, 1)), Error::Shape { op: "quantile", .. }));
        assert!(matches!(error(empty.topk(1, 1)), Error::Argument { op: "topk", .. }));
        assert_eq!(empty.median(0).unwrap().dims(), [0]);
        assert_eq!(empty.unique().unwrap().dims(), [0]);
        assert_eq!(empty.nonzero().unwrap().dims(), [0, 2]);
        let scalar = Tensor::new(2f32, device).unwrap();
        assert!(matches!(error(scalar.sort_last_dim(true)), Error::DimOutOfRange { op: "sort_last_dim", .. }));
        assert_eq!(scalar.nonzero().unwrap().dims(), [1, 0]);
        assert!(matches!(error(scalar.quantile(1.5, 0)), Error::Argument { op: "quantile", .. }));
    });
}

#[test]
fn middles_and_quantiles_are_those_of_the_sorted_lane() {
    each(|device| {
        let x = f64s(device, &[3., 1., 2., 10., 7., 5., f64::NAN, 0.], (2, 4));
        let median = values::<f64>(&x.median(1).unwrap());
        assert!(median[0] == 2. && median[1].is_nan());
        assert_eq!(values::<f64>(&x.narrow(0, 0, 1).unwrap().quantile(0.5, 1).unwrap()), [2.5]);
        assert_eq!(values::<f64>(&x.narrow(0, 0, 1).unwrap().quantile(1., 1).unwrap()), [10.]);
        assert_eq!(values::<f64>(&x.narrow(0, 0, 1).unwrap().quantile(0., 1).unwrap()), [1.]);
        assert!(values::<f64>(&x.quantile(0.9, 1).unwrap())[1].is_nan());
        let ends = f64s(device, &[f64::INFINITY, f64::INFINITY, 0.], 3);
        assert_eq!(values::<f64>(&ends.quantile(0.75, 0).unwrap()), [f64::INFINITY]);
        let ends = f64s(device, &[f64::MAX, f64::MIN, f64::NEG_INFINITY, 1.], (2, 2));
        assert_eq!(values::<f64>(&ends.quantile(0.5, 1).unwrap()), [0., f64::NEG_INFINITY]);
    });
}

/// Broken by: a sum of two rounded shares, which between equal numbers is another one; and shares that are halves.
#[test]
fn quantiles_are_those_of_pytorch_to_the_last_bit() {
    each(|device| {
        let low: Vec<f32> = (1..200).map(|i| i as f32 / 7.).collect();
        let high: Vec<f32> = low.iter().map(|x| x * 1.3).collect();
        let [x, y] = [&low, &high].map(|all| Tensor::from_slice(all, 199, device).unwrap());
        let pairs = Tensor::stack(&[&y, &x], 0).unwrap();
        for part in [0.1, 0.3, 0.45, 0.7, 0.9f64] {
            let weight = part as f32;
            let near = |(&low, &high): (&f32, &f32)| match weight < 0.5 {
                true => low + weight * (high - low),
                false => high - (high - low) * (1. - weight),
            };
            let want: Vec<f32> = low.iter().zip(&high).map(near).collect();
            assert_eq!(values::<f32>(&pairs.quantile(part, 0).unwrap()), want, "{part}");
            for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
                let one = x.to_dtype(dtype).unwrap();
                let same = Tensor::stack(&[&one, &one], 0).unwrap().quantile(part, 0).unwrap();
                let [found, want] = [same, one].map(|x| values::<f64>(&x.to_dtype(DType::F64).unwrap()));
                assert_eq!(found, want, "{dtype}, {part}");
            }
        }
    });
}

#[test]
fn unique_elements_nonzero_places_and_counts() {
    each(|device| {
        let x = Tensor::new([[3f32, f32::NAN, -1.], [3., f32::NAN, 0.]], device).unwrap();
        let unique = values::<f32>(&x.unique().unwrap());
        assert!(unique[..3] == [-1., 0., 3.] && unique.len() == 4 && unique[3].is_nan());
        let places = x.nonzero().unwrap();
        assert_eq!(places.to_vec2::<i64>().unwrap(), [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]);
        assert_eq!(values::<i64>(&x.t().unwrap().nonzero().unwrap())[..4], [0, 0, 0, 1]);
        let ids = Tensor::new([1u32, 4, 1], device).unwrap();
        assert_eq!(values::<i64>(&ids.bincount(0).unwrap()), [0, 2, 0, 0, 1]);
        assert_eq!(values::<i64>(&ids.bincount(7).unwrap()), [0, 2, 0, 0, 1, 0, 0]);
        let none = Tensor::zeros(0, DType::I64, device).unwrap();
        assert_eq!(none.bincount(2).unwrap().dims(), [2]);
        assert!(matches!(error(x.bincount(0)), Error::UnsupportedDType { op: "bincount", .. }));
        let below = Tensor::new([-1i64], device).unwrap();
        assert!(matches!(error(below.bincount(0)), Error::IndexOutOfRange { op: "bincount", .. }));
        let far = Tensor::new([i64::MAX], device).unwrap();
        assert!(matches!(error(far.bincount(0)), Error::SizeOverflow { op: "bincount", .. }));
    });
}

#[test]
fn values_are_placed_in_a_sorted_axis() {
    each(|device| {
        let sorted = f64s(device, &[-1., 0., 0., 2., f64::NAN, 5., 6., 7., 7., 8.], (2, 5));
        let x = f64s(device, &[-0., f64::NAN, -9., 7., 6.5, 99.], (2, 3));
        let places = |right| values::<u32>(&sorted.searchsorted(&x, right).unwrap());
        assert_eq!(places(false), [1, 4, 0, 2, 2, 5]);
        assert_eq!(places(true), [3, 5, 0, 4, 2, 5]);
        // In one vector anything is looked for, also a scalar; by columns, backwards and broadcast as well.
        let vector = sorted.get(1).unwrap();
        let found = vector.searchsorted(&x.t().unwrap(), true).unwrap();
        assert_eq!((found.dims(), values::<u32>(&found)), (&[3, 2][..], vec![0, 4, 5, 2, 0, 5]));
        let one = vector.searchsorted(&x.get(1).unwrap().get(0).unwrap(), false).unwrap();
        assert_eq!((one.rank(), values::<u32>(&one)), (0, vec![2]));
        let same = vector.broadcast_as((2, 5)).unwrap();
        assert_eq!(values::<u32>(&same.searchsorted(&x, false).unwrap()), [0, 5, 0, 2, 2, 5]);
        // By numbers that f64 does not tell apart.
        let large = Tensor::new([i64::MIN, i64::MAX - 1, i64::MAX], device).unwrap();
        assert_eq!(values::<u32>(&large.searchsorted(&large, true).unwrap()), [1, 2, 3]);
        let none = Tensor::zeros((2, 0), DType::F64, device).unwrap();
        assert_eq!(values::<u32>(&none.searchsorted(&x, true).unwrap()), [0; 6]);
        assert_eq!(sorted.searchsorted(&none, true).unwrap().dims(), [2, 0]);

        let deep = x.unsqueeze(0).unwrap();
        assert!(matches!(error(sorted.searchsorted(&deep, false)), Error::ShapeMismatch { op: "searchsorted", .. }));
        let scalar = Tensor::new(2f64, device).unwrap();
        assert!(matches!(error(sorted.searchsorted(&scalar, false)), Error::ShapeMismatch { op: "searchsorted", .. }));
        assert!(matches!(error(scalar.searchsorted(&x, false)), Error::Shape { op: "searchsorted", .. }));
        assert!(matches!(error(large.searchsorted(&x, false)), Error::DTypeMismatch { op: "searchsorted", .. }));
    });
}

/// Where `docs/djl.md` names several methods for one of DJL's.
#[test]
fn what_takes_several_methods_here_gives_what_djl_gives() {
    each(|device| {
        // countNonzero: of more than a u8 holds.
        let differs = Tensor::ones((2, 300), DType::F32, device).unwrap().ne(0f32).unwrap();
        assert_eq!(values::<i64>(&differs.to_dtype(DType::I64).unwrap().sum(1).unwrap()), [300, 300]);
        // take, put: by indices of all elements in a row.
        let x = f64s(device, &[1., 2., 3., 4., 5., 6.], (2, 3));
        let flat = x.flatten_all().unwrap();
        let ids = Tensor::new([5u32, 0, 4], device).unwrap();
        assert_eq!(values::<f64>(&flat.index_select(&ids, 0).unwrap()), [6., 1., 5.]);
        flat.scatter_set(&ids, &f64s(device, &[60., 10., 50.], 3), 0).unwrap();
        assert_eq!(values::<f64>(&x), [10., 2., 3., 4., 50., 60.]);
        // booleanMask: of rows.
        let rows = Tensor::new([0u8, 1], device).unwrap();
        let second = x.slice([TensorIndexer::mask(&rows)]).unwrap();
        assert_eq!((second.dims(), values::<f64>(&second)), (&[1, 3][..], vec![4., 50., 60.]));
        // topK of the smallest.
        let least = x.sort(1, false).unwrap().0.narrow(1, 0, 2).unwrap();
        assert_eq!(values::<f64>(&least), [2., 3., 4., 50.]);
        // mod, round: as PyTorch has them.
        let halves = f64s(device, &[-2.5, 0.5, 1.5], 3);
        assert_eq!(values::<f64>(&halves.rem(&f64s(device, &[2.; 3], 3)).unwrap()), [1.5, 0.5, 1.5]);
        assert_eq!(values::<f64>(&halves.round_ties_even().unwrap()), [-2., 0., 2.]);
        assert_eq!(values::<f64>(&halves.round().unwrap()), [-3., 1., 2.]);
        // trace of other axes.
        let cube = f64s(device, &[1., 2., 3., 4., 5., 6., 7., 8.], (2, 2, 2));
        assert_eq!(values::<f64>(&cube.diagonal(0, 0, 1).unwrap().sum(D::Minus1).unwrap()), [8., 10.]);
    });
}

/// Every set of axes of an array with three.
fn axes() -> Vec<Vec<usize>> {
    (0u8..8).map(|bits| (0..3).filter(|axis| bits >> axis & 1 == 1).collect()).collect()
}

#[test]
fn spreads_and_norms_match_loops_over_every_set_of_axes() {
    fn body<T: Native>(device: &Device) {
        let host = Host::<T>::tame(&[2, 3, 4], 31);
        let x = put(&host, device);
        let of = |group: &[T]| group.iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
        let var = |group: &[T]| {
            let group = of(group);
            let mean = group.iter().sum::<f64>() / group.len() as f64;
            T::from_f64(group.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (group.len() as f64 - 1.))
        };
        let norm = |p: f64| {
            move |group: &[T]| {
                let sizes = group.iter().map(|x| x.to_f64().abs());
                T::from_f64(match p {
                    f64::INFINITY => sizes.fold(0., f64::max),
                    f64::NEG_INFINITY => sizes.fold(f64::INFINITY, f64::min),
                    0. => sizes.filter(|&x| x != 0.).count() as f64,
                    _ => sizes.map(|x| x.powf(p)).sum::<f64>().powf(1. / p),
                })
            }
        };
        let lse = |group: &[T]| T::from_f64(of(group).iter().map(|x| x.exp()).sum::<f64>().ln());
        for axes in axes() {
            let what = format!("over {axes:?}");
            if !axes.is_empty() {
                assert_same(&what, &x.var(&axes[..]).unwrap(), &host.reduce(&axes, false, var));
                assert_same(&what, &x.var_keepdim(&axes[..]).unwrap(), &host.reduce(&axes, true, var));
                let std = host.reduce(&axes, false, var).map(|x| T::from_f64(x.to_f64().sqrt()));
                assert_same(&what, &x.std(&axes[..]).unwrap(), &std);
                assert_same(&what, &x.var_mean(&axes[..]).unwrap().0, &host.reduce(&axes, false, var));
            }
            for p in [0., 0.5, 1., 2., 3., f64::INFINITY, f64::NEG_INFINITY] {
                let want = host.reduce(&axes, false, norm(p));
                assert_same(&format!("norm {p} {what}"), &x.norm_dim(p, &axes[..]).unwrap(), &want);
            }
            assert_same(&what, &x.log_sum_exp(&axes[..]).unwrap(), &host.reduce(&axes, false, lse));
        }
        assert_same("norm", &x.norm().unwrap(), &host.reduce(&[0, 1, 2], false, norm(2.)));
    }
    each(|device| for_types!(device, body, f32, f64));
}

#[test]
fn products_and_truth_match_loops_over_every_set_of_axes() {
    fn body<T: Native>(device: &Device) {
        for Operand { form, tensor: x, host } in forms::<T>(device, 41) {
            let any = |group: &[T]| u8::from(group.iter().any(|x| x.to_f64() != 0.));
            let all = |group: &[T]| u8::from(group.iter().all(|x| x.to_f64() != 0.));
            for axes in axes() {
                let what = format!("{form} over {axes:?}");
                assert_same(&what, &x.any(&axes[..]).unwrap(), &host.reduce(&axes, false, any));
                assert_same(&what, &x.all_keepdim(&axes[..]).unwrap(), &host.reduce(&axes, true, all));
                assert_same(&what, &x.all(&axes[..]).unwrap(), &host.reduce(&axes, false, all));
                assert_same(&what, &x.any_keepdim(&axes[..]).unwrap(), &host.reduce(&axes, true, any));
            }
            assert_same(form, &x.any_all().unwrap(), &host.reduce(&[0, 1, 2], false, any));
            assert_same(form, &x.all_all().unwrap(), &host.reduce(&[0, 1, 2], false, all));
        }
        let host = Host::<T>::tame(&[2, 3, 5], 42);
        let x = put(&host, device);
        let product = |group: &[T]| group.iter().fold(T::from_f64(1.), |product, &x| product.times(x));
        for axes in axes() {
            assert_same("prod", &x.prod(&axes[..]).unwrap(), &host.reduce(&axes, false, product));
            assert_same("prod_keepdim", &x.prod_keepdim(&axes[..]).unwrap(), &host.reduce(&axes, true, product));
        }
        assert_same("prod_all", &x.prod_all().unwrap(), &host.reduce(&[0, 1, 2], false, product));
    }
    each(|device| for_types!(device, body, u8, u32, i64, f32, f64));
}

/// The product of all is a number of the dtype; that of the large ones is not.
#[test]
fn products_of_low_precision_are_rounded_once() {
    each(|device| {
        for (dtype, large, small, want) in [(DType::F16, 512., 0.25, 16_384.), (DType::F8E4M3, 64., 0.125, 64.)] {
            let x = f64s(device, &[large, small, large, small], 4).to_dtype(dtype).unwrap();
            for got in [x.prod(0).unwrap(), x.prod_keepdim(0).unwrap(), x.prod_all().unwrap()] {
                assert_eq!(got.dtype(), dtype);
                assert_eq!(values::<f64>(&got.to_dtype(DType::F64).unwrap()), [want], "{dtype}");
            }
        }
    });
}

#[test]
fn reductions_of_nothing_and_of_extremes_are_what_is_stated() {
    each(|device| {
        let empty = Tensor::zeros((2, 0), DType::F64, device).unwrap();
        assert_eq!(values::<f64>(&empty.prod(1).unwrap()), [1., 1.]);
        assert_eq!(values::<u8>(&empty.any(1).unwrap()), [0, 0]);
        assert_eq!(values::<u8>(&empty.all(1).unwrap()), [1, 1]);
        assert_eq!(values::<f64>(&empty.log_sum_exp(1).unwrap()), [f64::NEG_INFINITY; 2]);
        assert!(values::<f64>(&empty.var(1).unwrap()).iter().all(|x| x.is_nan()));
        assert_eq!(values::<f64>(&empty.norm().unwrap()), [0.]);
        assert_eq!(empty.cumsum(1).unwrap().dims(), [2, 0]);
        let x = f64s(device, &[1000., 1000., f64::NEG_INFINITY, f64::NEG_INFINITY, f64::INFINITY, 1.], (3, 2));
        let want = [1000. + 2f64.ln(), f64::NEG_INFINITY, f64::INFINITY];
        assert_eq!(values::<f64>(&x.log_sum_exp(D::Minus1).unwrap()), want);
        let one = f64s(device, &[3.], 1);
        assert!(values::<f64>(&one.var(0).unwrap())[0].is_nan());
        let whole = Tensor::new([1i64, 2], device).unwrap();
        assert!(matches!(error(whole.var(0)), Error::UnsupportedDType { op: "var", .. }));
        assert!(matches!(error(whole.norm()), Error::UnsupportedDType { op: "norm", .. }));
        assert!(matches!(error(one.norm_dim(f64::NAN, 0)), Error::Argument { op: "norm_dim", .. }));
        assert!(matches!(error(one.var(1)), Error::DimOutOfRange { op: "var", .. }));
    });
}

#[test]
fn running_sums_match_loops_along_every_axis_of_every_form() {
    fn body<T: Native>(device: &Device) {
        let mut all = forms::<T>(device, 51);
        let long = Host::<T>::tame(&[2, 37], 52);
        all.push(Operand { form: "long", tensor: put(&long, device), host: long });
        for Operand { form, tensor, host } in all {
            // Infinities of both signs and numbers that cancel make the order of the sum visible.
            let tame = Host {
                dims: host.dims.clone(),
                data: host.data.iter().map(|x| if x.to_f64().is_finite() { *x } else { T::from_f64(1.) }).collect(),
            };
            let tensor = if T::DTYPE.is_float() { put(&tame, device) } else { tensor };
            let host = if T::DTYPE.is_float() { tame } else { host };
            for axis in 0..host.dims.len() {
                let mut want = host.clone();
                for index in indices(&host.dims) {
                    if index[axis] > 0 {
                        let flat =
                            |index: &[usize]| index.iter().zip(&host.dims).fold(0, |flat, (&i, &dim)| flat * dim + i);
                        let mut before = index.clone();
                        before[axis] -= 1;
                        let (at, before) = (flat(&index), flat(&before));
                        want.data[at] = want.data[before].plus(host.data[at]);
                    }
                }
                assert_same(&format!("cumsum {form} along {axis}"), &tensor.cumsum(axis).unwrap(), &want);
            }
        }
    }
    each(|device| for_types!(device, body, u8, u32, i64, f32, f64));
}
