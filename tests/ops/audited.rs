//! What a reader of the operations found: values at the ends of dtypes, and gradients where a formula breaks.

use ndgc::nn::{Module, PReLU, init::Init};
use ndgc::{DType, Device, Error, F8E4M3, NdManager, Tensor, TensorExt, Var, WithDType, bf16, f16, t};

use crate::ops::cases::for_floats;
use crate::ops::support::{each, error, f64s, values};

/// The gradient of the sum of what a function makes of a variable.
fn slope<T: WithDType>(x: &Var, y: ndgc::Result<Tensor>) -> Vec<T> {
    values(y.unwrap().sum_all().unwrap().backward().unwrap().get(x).unwrap())
}

#[track_caller]
fn assert_near(got: &[f64], want: &[f64], what: &str) {
    let near = got.len() == want.len() && got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-9);
    assert!(near, "{what}: {got:?}, not {want:?}");
}

#[test]
fn the_largest_index_is_padding_only_where_the_axis_lacks_it() {
    each(|device| {
        let (long, short) = (Tensor::arange(0i64, 200, device).unwrap(), Tensor::arange(1i64, 101, device).unwrap());
        let (id, five) = (Tensor::new([127i8], device).unwrap(), Tensor::new([5i64], device).unwrap());
        assert_eq!(values::<i64>(&long.index_select(&id, 0).unwrap()), [127]);
        assert_eq!(values::<i64>(&long.gather(&id, 0).unwrap()), [127]);
        assert_eq!(values::<i64>(&short.index_select(&id, 0).unwrap()), [0]);
        assert!(matches!(
            error(short.index_select(&five.to_dtype(DType::I16).unwrap(), 1)),
            Error::DimOutOfRange { .. }
        ));
        let added = |x: Tensor| values::<i64>(&x)[127];
        assert_eq!(added(long.index_add(&id, &five, 0).unwrap()), 132);
        assert_eq!(added(long.scatter_add(&id, &five, 0).unwrap()), 132);
        assert_eq!(added(long.scatter(&id, &five, 0).unwrap()), 5);
        for padded in [short.index_add(&id, &five, 0), short.scatter_add(&id, &five, 0), short.scatter(&id, &five, 0)] {
            assert_eq!(values::<i64>(&padded.unwrap()), values::<i64>(&short));
        }
        let wide = Tensor::arange(0i64, 70_000, device).unwrap();
        assert_eq!(values::<i64>(&wide.index_select(&Tensor::new([32_767i16], device).unwrap(), 0).unwrap()), [32_767]);
        assert_eq!(values::<i64>(&wide.index_select(&Tensor::new([65_535u16], device).unwrap(), 0).unwrap()), [65_535]);
        for none in [Tensor::new([i32::MAX], device), Tensor::new([u64::MAX], device)] {
            assert_eq!(values::<i64>(&wide.index_select(&none.unwrap(), 0).unwrap()), [0]);
        }
        let loss = Tensor::zeros((1, 200), DType::F32, device).unwrap().cross_entropy(&id).unwrap();
        assert!((loss.to_scalar::<f32>().unwrap() - 200f32.ln()).abs() < 1e-4);
        let counts = values::<i64>(&id.bincount(0).unwrap());
        assert_eq!((counts.len(), counts[127]), (128, 1));
        let mask = Tensor::new([127i8, 0], device).unwrap();
        let (yes, no) = (Tensor::new([1f32, 2.], device).unwrap(), Tensor::new([3f32, 4.], device).unwrap());
        assert_eq!(values::<f32>(&mask.where_cond(&yes, &no).unwrap()), [1., 4.]);
    });
}

#[test]
fn integers_round_to_tens_and_hundreds() {
    each(|device| {
        let x = Tensor::new([1234i64, 1250, -1250, -1249, 7], device).unwrap();
        assert_eq!(values::<i64>(&x.round_to(-2).unwrap()), [1200, 1300, -1300, -1200, 0]);
        assert_eq!(values::<i64>(&x.round_to(-1).unwrap()), [1230, 1250, -1250, -1250, 10]);
        assert_eq!(values::<i64>(&x.round_to(2).unwrap()), values::<i64>(&x));
        for decimals in [-19, -400, i32::MIN] {
            assert_eq!(values::<i64>(&x.round_to(decimals).unwrap()), [0; 5]);
        }
        let small = Tensor::new([127i8, 50, -128, 49], device).unwrap();
        assert_eq!(values::<i8>(&small.round_to(-2).unwrap()), [100, 100, -100, 0]);
        let large = Tensor::new([14_999_999_999_999_999_999u64, 9_007_199_254_740_993], device).unwrap();
        assert_eq!(values::<u64>(&large.round_to(-19).unwrap()), [10_000_000_000_000_000_000, 0]);
        assert_eq!(values::<u64>(&large.round_to(-1).unwrap()), [15_000_000_000_000_000_000, 9_007_199_254_740_990]);
        let truth = Tensor::new([true, false], device).unwrap();
        for decimals in [-1, -400] {
            assert!(matches!(error(truth.round_to(decimals)), Error::UnsupportedDType { op: "round_to", .. }));
        }
    });
}

#[test]
fn floats_round_to_decimals_without_a_trace_of_the_scale() {
    each(|device| {
        let x = Tensor::new([1.13f64, 1e300, -0.005, f64::INFINITY], device).unwrap();
        assert_eq!(values::<f64>(&x.round_to(2).unwrap()), [1.13, 1e300, -0.01, f64::INFINITY]);
        assert_eq!(values::<f64>(&x.round_to(308).unwrap()), values::<f64>(&x));
        assert_eq!(values::<f64>(&x.round_to(400).unwrap()), values::<f64>(&x));
        assert_eq!(values::<f64>(&x.round_to(-400).unwrap()), [0., 0., 0., f64::INFINITY]);
        let single = Tensor::new([1.13f32, 1e38, -7.5], device).unwrap();
        assert_eq!(values::<f32>(&single.round_to(2).unwrap()), [1.13, 1e38, -7.5]);
        assert_eq!(values::<f32>(&single.round_to(40).unwrap()), values::<f32>(&single));
        let half = Tensor::new([f16::from_f32(700.), f16::from_f32(1.26)], device).unwrap();
        assert_eq!(values::<f16>(&half.round_to(2).unwrap()), [f16::from_f32(700.), f16::from_f32(1.26)]);
        let nan = Tensor::new([f64::NAN], device).unwrap();
        for decimals in [400, 2, -2, -400] {
            assert!(values::<f64>(&nan.round_to(decimals).unwrap())[0].is_nan());
            let x = Var::new([1.5f64, -2e300], device).unwrap();
            assert_eq!(slope::<f64>(&x, x.round_to(decimals)), [0., 0.]);
        }
    });
}

#[test]
fn whole_powers_may_be_larger_than_their_dtype() {
    each(|device| {
        for exponent in [127u32, 128, 129, 300, 32_768, 32_769, 70_001, i32::MAX as u32] {
            let power = exponent as i32;
            let x = Tensor::new([-1i8, 3, 2], device).unwrap();
            assert_eq!(values::<i8>(&x.powi(power).unwrap()), [-1i8, 3, 2].map(|x| x.wrapping_pow(exponent)));
            let x = Tensor::new([-1i16, 3, 2], device).unwrap();
            assert_eq!(values::<i16>(&x.powi(power).unwrap()), [-1i16, 3, 2].map(|x| x.wrapping_pow(exponent)));
            let x = Tensor::new([7u16, 6], device).unwrap();
            assert_eq!(values::<u16>(&x.powi(power).unwrap()), [7u16, 6].map(|x| x.wrapping_pow(exponent)));
            let x = Tensor::new([-1i32, 3], device).unwrap();
            assert_eq!(values::<i32>(&x.powi(power).unwrap()), [-1i32, 3].map(|x| x.wrapping_pow(exponent)));
        }
    });
}

#[test]
fn negative_powers_of_integers_are_cut_towards_zero() {
    each(|device| {
        let (bases, exponents, powers): ([i64; 7], [i64; 7], [i64; 7]) =
            ([3, 1, -1, -1, 0, 2, 0], [-4, -4, -3, -4, -1, 3, 0], [0, 1, -1, 1, 0, 8, 1]);
        // Few numbers are computed without a kernel.
        for times in [1, 40] {
            let list = |numbers: [i64; 7]| Tensor::new(numbers.repeat(times), device).unwrap();
            for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
                let [x, y] = [bases, exponents].map(|numbers| list(numbers).to_dtype(dtype).unwrap());
                let got = x.pow(&y).unwrap().to_dtype(DType::I64).unwrap();
                assert_eq!(values::<i64>(&got), powers.repeat(times), "{dtype}");
            }
        }
    });
}

#[test]
fn floats_of_8_bits_have_no_infinity() {
    each(|device| {
        let x = Tensor::new([448f32, -448., f32::NAN, 1.], device).unwrap().to_dtype(DType::F8E4M3).unwrap();
        assert_eq!(values::<u8>(&x.is_inf().unwrap()), [0; 4]);
        assert_eq!(values::<u8>(&x.is_finite().unwrap()), [1, 1, 0, 1]);
    });
}

#[test]
fn a_floored_quotient_by_infinity_is_that_of_other_libraries() {
    each(|device| {
        let infinite = f64::INFINITY;
        let x = Tensor::new([-5., 5., -5., 5., -1., -1.], device).unwrap();
        let y = Tensor::new([infinite, -infinite, -infinite, infinite, -3., 3.], device).unwrap();
        let quotients = values::<f64>(&x.floor_div(&y).unwrap());
        assert_eq!(quotients, [-1., -1., 0., 0., 0., -1.]);
        assert!(quotients[2..5].iter().all(|quotient| quotient.is_sign_positive()));
    });
}

#[test]
fn slopes_of_quotients_do_not_overflow() {
    each(|device| {
        let (x, y) = (Var::new([1e38f32], device).unwrap(), Var::new([1e20f32], device).unwrap());
        let got = slope::<f32>(&y, x.div(&y))[0];
        assert!((got + 0.01).abs() < 1e-6, "{got}");
        let half = |x: f32| Var::new([f16::from_f32(x)], device).unwrap();
        let (x, y) = (half(1000.), half(300.));
        let got = slope::<f16>(&y, x.broadcast_div(&y))[0].to_f32();
        assert!((got + 0.0111).abs() < 1e-4, "{got}");
    });
}

#[test]
fn slopes_of_roots_are_zero_where_the_root_is() {
    each(|device| {
        let x = Var::new([[2.5f64, 2.5, 2.5, 2.5], [1., 1., 3., 3.]], device).unwrap();
        let side = 1. / (3. * (4f64 / 3.).sqrt());
        for y in [x.std(1), x.std_keepdim(1)] {
            assert_near(&slope::<f64>(&x, y), &[0., 0., 0., 0., -side, -side, side, side], "std");
        }
        let still = Var::new([0f64, 0.], device).unwrap();
        for p in [1.5, 2., 3., 0.5, -1., f64::INFINITY, 1.] {
            assert_eq!(slope::<f64>(&still, still.norm_dim(p, 0)), [0., 0.], "order {p}");
        }
        for p in [0.5, 2., 3.] {
            let root = still.norm_dim(p, 0).and_then(|norm| norm.sqrt());
            assert_eq!(slope::<f64>(&still, root), [0., 0.], "a root, of order {p}");
        }
        let part = Var::new([0f64, -4.], device).unwrap();
        for p in [0.5, 1.5, 2., 3.] {
            assert_near(&slope::<f64>(&part, part.norm_dim(p, 0)), &[0., -1.], &format!("order {p}"));
        }
        let halves = Tensor::new([f16::from_f32(-300.), f16::from_f32(300.)], device).unwrap();
        assert!((values::<f16>(&halves.std(0).unwrap())[0].to_f32() - 424.26).abs() < 0.3);
    });
}

#[test]
fn slopes_in_the_exponent_at_a_base_of_zero() {
    each(|device| {
        let (x, y) = (Var::new([0f64, 0., 0.], device).unwrap(), Var::new([2f64, 0., -1.], device).unwrap());
        assert_eq!(slope::<f64>(&y, x.pow(&y)), [0., 0., f64::NEG_INFINITY]);
        let one = Var::new([0f64], device).unwrap();
        assert_eq!(slope::<f64>(&y, one.broadcast_pow(&y)), [0., 0., f64::NEG_INFINITY]);
    });
}

#[test]
fn truth_values_have_no_product_whatever_their_number() {
    each(|device| {
        for count in [0, 1, 2] {
            let x = Tensor::zeros(count, DType::Bool, device).unwrap();
            assert!(matches!(error(x.prod(0)), Error::UnsupportedDType { op: "prod", .. }));
            assert!(matches!(error(x.prod_keepdim(0)), Error::UnsupportedDType { op: "prod_keepdim", .. }));
            assert!(matches!(error(x.prod_all()), Error::UnsupportedDType { op: "prod_all", .. }));
        }
    });
}

#[test]
fn histograms_look_at_numbers_alone_for_their_range() {
    each(|device| {
        let x = Tensor::new([1f64, f64::NAN, 2., 3., 5.], device).unwrap();
        assert_eq!(values::<f64>(&x.histc(2, 0., 0.).unwrap()), [2., 2.]);
        let nan = Tensor::new([f32::NAN, f32::NAN], device).unwrap();
        assert_eq!(values::<f32>(&nan.histc(2, 0., 0.).unwrap()), [0., 0.]);
        let endless = Tensor::new([1f32, f32::INFINITY], device).unwrap();
        assert!(matches!(error(endless.histc(2, 0., 0.)), Error::Argument { op: "histc", .. }));
        assert_eq!(values::<f32>(&endless.histc(2, 0., 2.).unwrap()), [0., 1.]);
        // The width of a part would be none, and all be in the first one.
        assert!(matches!(error(x.histc(4, -1e308, 1e308)), Error::Argument { op: "histc", .. }));
    });
}

/// Broken by: a product with 1 / 49, which 49 times is less than 1.
#[test]
fn variances_and_slopes_of_means_are_divided_by_their_count() {
    each(|device| {
        let mut data = vec![0f64; 50];
        data[..4].copy_from_slice(&[7., -7., 7., -7.]);
        let x = Tensor::from_slice(&data, 50, device).unwrap();
        assert_eq!(values::<f64>(&x.var(0).unwrap()), [4.]);
        assert_eq!(values::<f64>(&x.std(0).unwrap()), [2.]);
        assert!(values::<f64>(&x.narrow(0, 0, 1).unwrap().var(0).unwrap())[0].is_nan());
        let x = Var::from_slice(&[1f64; 49], 49, device).unwrap();
        assert_eq!(slope::<f64>(&x, x.mean_all().and_then(|mean| mean.affine(49., 0.))), [1.; 49]);
    });
}

/// Broken by: a product with the rounded number of bins in one, which is 1 / 49 here.
#[test]
fn a_number_at_the_edge_of_two_bins_is_in_the_upper_one() {
    each(|device| {
        let x = Tensor::new([0f64, 48., 49., 98.], device).unwrap();
        assert_eq!(values::<f64>(&x.histc(2, 0., 98.).unwrap()), [2., 2.]);
        let wide = Tensor::new([0f64, 4.5e307, 9.5e307, 1e308], device).unwrap();
        assert_eq!(values::<f64>(&wide.histc(10, 0., 1e308).unwrap()), [1., 0., 0., 0., 1., 0., 0., 0., 0., 2.]);
    });
}

#[test]
fn numbers_in_expressions_keep_all_their_bits() {
    each(|device| {
        let (n, x) = ((1i64 << 53) + 1, Tensor::new([1i64], device).unwrap());
        let number = |array: ndgc::Result<Tensor>| values::<i64>(&array.unwrap())[0];
        assert_eq!(number(t!(x + n)), n + 1);
        assert_eq!(number(t!(n - x)), n - 1);
        assert_eq!(number(t!(-n + x)), 1 - n);
        assert_eq!(number(t!(2 * n * x)), 2 * n);
        assert_eq!(number(t!(x * (n + n - 3))), 2 * n - 3);
        assert_eq!(number(t!(n / x)), n);
        assert_eq!(number(t!(x * (7 / 2))), 3);
        let (count, y) = ((1usize << 63) + 5, Tensor::new([1u64], device).unwrap());
        assert_eq!(values::<u64>(&t!(y + count).unwrap()), [(1u64 << 63) + 6]);
        let one = Tensor::new([1f64], device).unwrap();
        assert_eq!(values::<f64>(&t!(one / -0.0).unwrap()), [f64::NEG_INFINITY]);
    });
}

/// The gradient of the sum of running products along the first axis, by its definition.
fn products_have_their_slope<T: WithDType>(device: &Device, near: f64) {
    let (len, lines) = (21, 3);
    let data: Vec<T> = (0..len * lines).map(|i| T::from_f64(0.75 + (i * 29 % 67) as f64 / 120.)).collect();
    let x = Var::from_slice(&data, (len, lines), device).unwrap();
    let got = slope::<T>(&x, x.cumprod(0));
    for (place, got) in got.iter().enumerate() {
        let (k, line) = (place / lines, place % lines);
        let product = |j: usize| (0..=j).filter(|&i| i != k).map(|i| data[i * lines + line].to_f64()).product::<f64>();
        let want: f64 = (k..len).map(product).sum();
        let far = (got.to_f64() - want).abs();
        assert!(far <= near * want, "{} {k} of line {line}: {got}, not {want}", T::DTYPE);
    }
}

#[test]
fn slopes_of_running_products_are_kept_in_doubles() {
    each(|device| {
        let x = Var::new([1e20f32, 1e20, 1., 0.], device).unwrap();
        let got = slope::<f32>(&x, x.cumprod(0).and_then(|products| products.narrow(0, 3, 1)));
        assert_eq!(got, [0., 0., 0., f32::INFINITY]);
        products_have_their_slope::<f64>(device, 1e-12);
        products_have_their_slope::<f32>(device, 1e-6);
        products_have_their_slope::<f16>(device, 1e-3);
        products_have_their_slope::<bf16>(device, 8e-3);
        products_have_their_slope::<F8E4M3>(device, 0.07);
    });
}

#[test]
fn views_with_more_elements_than_memory_are_refused() {
    each(|device| {
        let one = Tensor::ones((1, 1), DType::F32, device).unwrap();
        let wide = one.broadcast_as((1 << 25, 1 << 20)).unwrap();
        assert!(matches!(error(wide.sort(1, false)), Error::OutOfMemory(_)));
        assert!(matches!(error(wide.argsort(0, true)), Error::OutOfMemory(_)));
        assert!(matches!(error(wide.unique()), Error::OutOfMemory(_)));
        let id = Tensor::new([[0u32]], device).unwrap();
        assert!(matches!(error(wide.scatter(&id, &one, 0)), Error::OutOfMemory(_)));
    });
}

/// Rest and quotient of a division, rounded towards zero and down.
fn divided(x: f64, y: f64) -> [f64; 3] {
    let rest = x % y;
    let quotient = if x.is_infinite() { x / y } else { ((x - rest) / y).round() };
    if rest != 0. && (rest < 0.) != (y < 0.) { [rest, rest + y, quotient - 1.] } else { [rest, rest, quotient] }
}

#[test]
fn divisions_with_a_rest_are_exact_in_every_dtype_and_form() {
    each(|device| {
        let tops = [5.5, -5.5, 1e8, -1e8, 3e7, 0.3, 7., -448., 6.5, 1e-3];
        let bottoms = [2., -2., 3.3, 0.7, -0.1, 0.3, 3.];
        let pairs: Vec<(f64, f64)> = tops.iter().flat_map(|&x| bottoms.iter().map(move |&y| (x, y))).collect();
        for dtype in [DType::F8E4M3, DType::F16, DType::BF16, DType::F32, DType::F64] {
            let of = |numbers: Vec<f64>| Tensor::new(&numbers[..], device).unwrap().to_dtype(dtype).unwrap();
            let wide = |x: &Tensor| values::<f64>(&x.to_dtype(DType::F64).unwrap());
            let x = of(pairs.iter().map(|pair| pair.0).collect());
            let y = of(pairs.iter().map(|pair| pair.1).collect());
            let all: Vec<[f64; 3]> = wide(&x).iter().zip(wide(&y)).map(|(&x, y)| divided(x, y)).collect();
            let same = |got: ndgc::Result<Tensor>, which: usize| {
                let (got, want) = (wide(&got.unwrap()), wide(&of(all.iter().map(|all| all[which]).collect())));
                let wrong =
                    got.iter().zip(&want).position(|(got, want)| got != want && !(got.is_nan() && want.is_nan()));
                assert_eq!(wrong, None, "{dtype}: {got:?}, not {want:?}");
            };
            same(x.fmod(&y), 0);
            same(x.rem(&y), 1);
            same(x.floor_div(&y), 2);
            same(x.copy().unwrap().fmod_(&y), 0);
            same(x.copy().unwrap().rem_(&y), 1);
            same(x.copy().unwrap().floor_div_(&y), 2);
            let (column, row) = (of(tops.to_vec()).unsqueeze(1).unwrap(), of(bottoms.to_vec()));
            same(column.broadcast_fmod(&row).and_then(|all| all.flatten_all()), 0);
            same(column.broadcast_rem(&row).and_then(|all| all.flatten_all()), 1);
            same(column.broadcast_floor_div(&row).and_then(|all| all.flatten_all()), 2);
        }
        let x = Var::new([5.5f64, -5.5, 5.5, -5.5], device).unwrap();
        let y = Var::new([2f64, 2., -2., -2.], device).unwrap();
        assert_eq!(slope::<f64>(&y, x.fmod(&y)), [-2., 2., 2., -2.]);
        assert_eq!(slope::<f64>(&y, x.rem(&y)), [-2., 3., 3., -2.]);
        assert_eq!(slope::<f64>(&x, x.rem(&y)), [1.; 4]);
        assert_eq!(slope::<f64>(&y, x.floor_div(&y)), [0.; 4]);
    });
}

#[test]
fn rests_and_quotients_of_small_integers_keep_their_sign() {
    each(|device| {
        let (x, y) = ([-128i64, -128, -7, 7, -7, 7, -7], [-1i64, 3, 2, -2, -2, 2, 0]);
        // Few numbers are computed without a kernel.
        for times in [1, 40] {
            let list = |numbers: [i64; 7]| Tensor::new(numbers.repeat(times), device).unwrap();
            for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
                let [a, b] = [x, y].map(|numbers| list(numbers).to_dtype(dtype).unwrap());
                let is = |got: ndgc::Result<Tensor>, want: [i64; 7]| {
                    let got = values::<i64>(&got.unwrap().to_dtype(DType::I64).unwrap());
                    assert_eq!(got, want.repeat(times), "{dtype}");
                };
                is(a.fmod(&b), [0, -2, -1, 1, -1, 1, -7]);
                is(a.rem(&b), [0, 1, 1, -1, -1, 1, -7]);
                let least = if dtype == DType::I8 { -128 } else { 128 };
                is(a.floor_div(&b), [least, -43, -4, -4, 3, 3, 0]);
            }
        }
        let truth = Tensor::new([true, false], device).unwrap();
        assert!(matches!(error(truth.rem(&truth)), Error::UnsupportedDType { op: "rem", .. }));
    });
}

/// Quotients of multiples, in each form in which a number divides, few and as many as may be written in place.
fn quotients_are_exact<T: WithDType>(device: &Device) {
    for n in [2., 3., 41., 47., 49., 55., 61., 98., 103., 107., 161., 187., 197.] {
        for count in [3, 5000] {
            let whole: Vec<T> = (0..count).map(|i| T::from_f64(n * f64::from(i % 3))).collect();
            let want: Vec<T> = (0..count).map(|i| T::from_f64(f64::from(i % 3))).collect();
            let x = Tensor::from_slice(&whole, whole.len(), device).unwrap();
            let is = |got: ndgc::Result<Tensor>| {
                assert_eq!(values::<T>(&got.unwrap()), want, "{} by {n}", T::DTYPE);
            };
            is(&x / n);
            is(x.copy().unwrap() / n);
            is(t!(x / n));
            is(t!((x + 0) / n));
            let mut changed = x.copy().unwrap();
            let same = changed.clone();
            changed /= n;
            assert!(changed.is_same(&same));
            is(Ok(changed));
        }
        let x = Tensor::full(T::from_f64(n), 5000, device).unwrap();
        for one in [n / &x, n / x.copy().unwrap(), t!(n / (x + 0))] {
            assert!(values::<T>(&one.unwrap()).iter().all(|&one| one.to_f64() == 1.), "{n} by itself");
        }
    }
}

#[test]
fn floats_are_divided_by_numbers_not_multiplied_by_a_rounded_inverse() {
    each(|device| {
        let x = Tensor::new([49f64], device).unwrap();
        assert_eq!(values::<f64>(&(&x / 49.).unwrap().floor().unwrap()), [1.]);
        quotients_are_exact::<f64>(device);
        quotients_are_exact::<f32>(device);
        let x = Tensor::new([f64::MIN_POSITIVE, -0., 3.], device).unwrap();
        let least = f64::from_bits(1);
        assert_eq!(values::<f64>(&(&x / least).unwrap()), [2f64.powi(52), 0., f64::INFINITY]);
        assert!(values::<f64>(&(&x / 2.).unwrap())[1].is_sign_negative());
        assert!(values::<f64>(&(&x / 3.).unwrap())[1].is_sign_negative());
        assert_eq!(values::<f64>(&(&x / 0.).unwrap())[2], f64::INFINITY);
        let half = Tensor::new([f16::from_f32(1000.), f16::from_f32(49.)], device).unwrap();
        assert_eq!(values::<f16>(&(100_000. / &half).unwrap())[0], f16::from_f32(100.));
        assert_eq!(values::<f16>(&(&half / 49.).unwrap())[1], f16::from_f32(1.));
        let x = Var::new([2f64, -4.], device).unwrap();
        assert_eq!(slope::<f64>(&x, &*x / 49.), [1. / 49.; 2]);
        assert_eq!(slope::<f64>(&x, 3. / &*x), [-0.75, -0.1875]);
        let small = Var::new([1e-200f64], device).unwrap();
        assert_eq!(slope::<f64>(&small, 1e-300 / &*small), [-(1e-300 / 1e-200 / 1e-200)]);
    });
}

/// Broken by: a product of the gradient with the share of an operand, which is 0.
#[test]
fn an_infinite_gradient_reaches_what_was_chosen_and_nothing_else() {
    each(|device| {
        let high = f64::INFINITY;
        let of = |data: &[f64]| Var::from_slice(data, data.len(), device).unwrap();
        let steep = |y: ndgc::Result<Tensor>| y?.affine(high, 0.);
        let (x, y) = (of(&[1., 2., 3.]), of(&[2., 2., 1.]));
        assert_eq!(slope::<f64>(&x, steep(x.maximum(&y))), [0., high, high]);
        assert_eq!(slope::<f64>(&y, steep(x.maximum(&y))), [high, high, 0.]);
        assert_eq!(slope::<f64>(&x, steep(x.minimum(&y))), [high, high, 0.]);
        assert_eq!(slope::<f64>(&y, steep(x.broadcast_minimum(&y))), [0., high, high]);
        assert_eq!(slope::<f64>(&x, x.maximum(&y)), [0., 0.5, 1.]);
        let (base, exponent) = (of(&[3., 0.]), of(&[0., 2.]));
        assert_eq!(slope::<f64>(&base, steep(base.pow(&exponent)))[0], 0.);
        assert_eq!(slope::<f64>(&exponent, steep(base.pow(&exponent)))[1], 0.);
        let (x, y) = (of(&[0., 3.]), of(&[0., 4.]));
        assert_eq!(slope::<f64>(&x, steep(x.hypot(&y))), [0., high]);
        let y = of(&[2., 2.]);
        assert_eq!(slope::<f64>(&y, steep(x.xlogy(&y))), [0., high]);
    });
}

/// Broken by: slopes times the 0 that stands for what is above 0, and a layer that has a formula of its own.
#[test]
fn learned_slopes_are_of_what_is_not_above_zero() {
    each(|device| {
        let high = f64::INFINITY;
        let x = Var::new([-2f64, 0., 3.], device).unwrap();
        let slopes = Var::new([0.5f64, 0.25, 4.], device).unwrap();
        let layer = PReLU::new(slopes.as_tensor().clone(), false);
        let both = || [x.prelu(&slopes), layer.forward(&x)];
        for y in both() {
            assert_eq!(values::<f64>(y.as_ref().unwrap()), [-1., 0., 3.]);
            assert_eq!(slope::<f64>(&x, y), [0.5, 0.25, 1.], "at 0 the slope");
        }
        for y in both() {
            let steep = y.and_then(|y| y.affine(high, 0.));
            assert_eq!(slope::<f64>(&slopes, steep)[2], 0.);
        }
        let steep = Tensor::new([1f64, high, high], device).unwrap();
        let layer = PReLU::new(steep.clone(), false);
        for y in [x.prelu(&steep), layer.forward(&x)] {
            assert_eq!(values::<f64>(&y.unwrap())[2], 3.);
        }
    });
}

/// What is filled with one number, in each way there is.
fn minus_zero_stays<T: WithDType>(device: &Device) {
    let manager = NdManager::new_base_manager(device).unwrap();
    let x = Tensor::ones((2, 3), T::DTYPE, device).unwrap();
    let mask = x.ge(1.).unwrap();
    let all = [
        ("full", Tensor::full(T::from_f64(-0.), (2, 3), device)),
        ("full of a manager", manager.full(T::from_f64(-0.), (2, 3))),
        ("full_like", x.full_like(-0.)),
        ("masked_fill", x.masked_fill(&mask, -0.)),
        ("fill_", x.copy().and_then(|x| x.fill_(-0.))),
        ("const_set", x.copy().and_then(|x| x.const_set((-0f64).into()).map(|()| x))),
        ("Init::Const", Init::Const(-0.).var((2, 3), T::DTYPE, device).map(|var| var.as_tensor().clone())),
    ];
    let signs = |x: &Tensor| values::<T>(x).iter().map(|x| x.to_f64().is_sign_negative()).collect::<Vec<_>>();
    for (what, filled) in all {
        let filled = filled.unwrap();
        assert_eq!(signs(&filled), [true; 6], "{what} of {}", T::DTYPE);
        assert!(values::<T>(&filled).iter().all(|x| x.to_f64() == 0.), "{what} of {}", T::DTYPE);
    }
    assert_eq!(signs(&x.full_like(0.).unwrap()), [false; 6]);
    manager.close().unwrap();
}

#[test]
fn what_is_filled_with_minus_zero_has_its_sign() {
    each(|device| for_floats!(device, minus_zero_stays));
}

#[test]
fn the_slope_of_gelu_erf_has_its_limits_at_infinities_in_every_dtype() {
    // Broken by: an infinity times a density of 0, in f64, and on CUDA in every dtype.
    each(|device| {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let points = f64s(device, &[f64::INFINITY, f64::NEG_INFINITY, 50., -50., f64::NAN], 5);
            let x = Var::from_tensor(&points.to_dtype(dtype).unwrap()).unwrap();
            let grads = x.gelu_erf().unwrap().sum_all().unwrap().backward().unwrap();
            let slopes = values::<f64>(&grads.get(&x).unwrap().to_dtype(DType::F64).unwrap());
            assert_eq!(slopes[..4], [1., 0., 1., 0.], "{dtype}");
            assert!(slopes[4].is_nan(), "{dtype}");
        }
    });
}
