//! Functions of two operands, all rows of the table of operations, against their formulas (`formulas.rs` of the
//! kernels' tests): those of floats of every pair of numbers at which they break, in each dtype; the gradients of all.

use std::f64::consts::{FRAC_1_SQRT_2, LN_2};

use ndgc::{DType, Device, Error, Result, Tensor, Var};
use ndgc_kernels::kernel::{BinaryOp, Domain};

use crate::ops::formulas::formula_of_two;
use crate::ops::gradcheck::{Case, Run, check_all};
use crate::ops::reference::Host;
use crate::ops::support::{alone, bits, each, error, f64s, values};

type Method = fn(&Tensor, &Tensor) -> Result<Tensor>;

struct Function {
    name: &'static str,
    op: BinaryOp,
    strict: Method,
    broadcast: Method,
}

macro_rules! of_table {
    ([] $($(#[$doc:meta])* $op:ident
        [$name:ident $wide:ident $($form:ident)*] $kind:ident $value:tt $of_x:tt $of_y:tt)*) => {
        fn table() -> Vec<Function> {
            vec![$(Function {
                name: stringify!($name),
                op: BinaryOp::$op,
                strict: |x, y| x.$name(y),
                broadcast: |x, y| x.$wide(y),
            }),*]
        }

        /// The cases of the gradient check.
        pub(crate) fn gradients() -> Vec<Case> {
            vec![$(
                case(stringify!($name), BinaryOp::$op, &[2, 3], |x| x[0].$name(&x[1])),
                case(stringify!($wide), BinaryOp::$op, &[3], |x| x[0].$wide(&x[1])),
            )*]
        }
    };
}
ndgc_kernels::for_each_binary!(of_table);

/// Those of floats alone.
fn functions() -> impl Iterator<Item = Function> {
    table().into_iter().filter(|function| function.op.domain() == Domain::Float)
}

/// Of six numbers and others of that shape.
fn case(name: &'static str, op: BinaryOp, right: &[usize], run: Run) -> Case {
    // Of both operands together: where they are alike, their slopes may be too.
    let mut i = 0i32;
    let mut spread = |dims: &[usize], [low, high]: [f64; 2]| {
        Host::from_fn(dims, |_| {
            i += 1;
            low + (high - low) * (f64::from(i * 29 % 67) / 67.)
        })
    };
    let [x, y] = formula_of_two(op).ranges;
    let inputs = vec![spread(&[2, 3], x), spread(right, y)];
    Case { name, how: "of two", inputs, run, step: 1e-5, tolerance: 1e-6 }
}

/// Numbers at which formulas break.
const EDGES: [f64; 15] =
    [2.5, -0.3, 0., -0., 1., -1., 1e-3, 300., -300., 3e4, 1e30, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];

/// The rounding of a dtype, and a bit.
const ROUNDINGS: [(DType, f64); 5] =
    [(DType::F8E4M3, 0.13), (DType::F16, 2e-3), (DType::BF16, 1e-2), (DType::F32, 1e-5), (DType::F64, 1e-12)];

fn wide(x: &Tensor) -> Vec<f64> {
    values(&x.to_dtype(DType::F64).unwrap())
}

#[test]
fn functions_of_two_floats_match_std_at_the_ends_of_their_ranges() {
    each(|device| {
        let pairs: Vec<(f64, f64)> = EDGES.iter().flat_map(|&x| EDGES.iter().map(move |&y| (x, y))).collect();
        for (dtype, near) in ROUNDINGS {
            let of = |numbers: Vec<f64>| f64s(device, &numbers, numbers.len()).to_dtype(dtype).unwrap();
            let x = of(pairs.iter().map(|pair| pair.0).collect());
            let y = of(pairs.iter().map(|pair| pair.1).collect());
            let (column, row) = (of(EDGES.to_vec()).unsqueeze(1).unwrap(), of(EDGES.to_vec()));
            let held: Vec<(f64, f64)> = wide(&x).into_iter().zip(wide(&y)).collect();
            for function in functions() {
                let formula = formula_of_two(function.op).value;
                let want = wide(&of(held.iter().map(|&(x, y)| formula(x, y)).collect()));
                let same = |got: Result<Tensor>, count: usize| {
                    let got = wide(&got.unwrap());
                    assert_eq!(got.len(), count);
                    for ((&got, &want), (x, y)) in got.iter().zip(&want).zip(&held) {
                        // Which sign NaN has is nobody's promise.
                        let any = function.name == "copysign" && y.is_nan();
                        let (got, want) = if any { (got.abs(), want.abs()) } else { (got, want) };
                        let is_same = got == want
                            || got.is_nan() && want.is_nan()
                            || want.is_finite() && (got - want).abs() <= near * want.abs().max(1.);
                        assert!(is_same, "{} of {x:e} and {y:e} in {dtype}: {got:e}, not {want:e}", function.name);
                    }
                };
                same((function.strict)(&x, &y), pairs.len());
                same((function.broadcast)(&column, &row).and_then(|all| all.flatten_all()), pairs.len());
                // So few are computed without a kernel.
                same((function.strict)(&x.narrow(0, 0, 9).unwrap(), &y.narrow(0, 0, 9).unwrap()), 9);
            }
        }
    });
}

/// So many that several threads compute them, with a row that repeats, and a column.
#[test]
fn functions_of_two_floats_are_the_same_of_operands_that_repeat() {
    alone(|| {
        let shape = (600usize, 500usize);
        let many = |count: usize, by: f64| (0..count).map(|i| (i as f64 * by).sin() * 3.).collect::<Vec<f64>>();
        let x = f64s(&Device::Cpu, &many(600 * 500, 0.7), shape);
        let (row, column) = (f64s(&Device::Cpu, &many(500, 1.3), 500), f64s(&Device::Cpu, &many(600, 1.9), (600, 1)));
        for function in functions() {
            for y in [&row, &column] {
                let repeated = y.broadcast_as(shape).unwrap().copy().unwrap();
                for (strict, broadcast) in [([&x, &repeated], [&x, y]), ([&repeated, &x], [y, &x])] {
                    let want = (function.strict)(strict[0], strict[1]).unwrap();
                    let got = (function.broadcast)(broadcast[0], broadcast[1]).unwrap();
                    assert!(bits(&got) == bits(&want), "{}", function.name);
                }
            }
        }
    });
}

/// A function of two numbers.
fn of(device: &Device, x: f64, y: f64, f: Method) -> f64 {
    wide(&f(&f64s(device, &[x], 1), &f64s(device, &[y], 1)).unwrap())[0]
}

#[test]
fn functions_of_two_floats_neither_overflow_nor_lose_a_sign() {
    each(|device| {
        let is = |got: f64, want: f64| assert!((got / want - 1.).abs() < 1e-14, "{got}, not {want}");
        is(of(device, 3e200, -4e200, |x, y| x.hypot(y)), 5e200);
        is(of(device, 3e-200, 4e-200, |x, y| x.hypot(y)), 5e-200);
        is(of(device, 1000., 1000., |x, y| x.logaddexp(y)), 1000. + LN_2);
        is(of(device, -1000., -1000., |x, y| x.logaddexp(y)), LN_2 - 1000.);
        let signs = [(0., -1.), (-2., 0.), (3., -0.), (f64::INFINITY, -5.)];
        let got = signs.map(|(x, y)| of(device, x, y, |x, y| x.copysign(y)));
        assert_eq!(got, [0., 2., -3., f64::NEG_INFINITY]);
        assert!(got[0].is_sign_negative());
        assert_eq!([0., f64::INFINITY, -1.].map(|y| of(device, 0., y, |x, y| x.xlogy(y))), [0.; 3]);
        assert!(
            of(device, 0., f64::NAN, |x, y| x.xlogy(y)).is_nan() && of(device, 1., -1., |x, y| x.xlogy(y)).is_nan()
        );
        let whole = Tensor::zeros(3, DType::I64, device).unwrap();
        for function in functions() {
            let refused = error((function.strict)(&whole, &whole));
            assert!(matches!(refused, Error::UnsupportedDType { op, .. } if op == function.name), "{refused}");
        }
    });
}

/// The slopes by both operands.
fn slopes(device: &Device, [x, y]: [&[f64]; 2], f: Method) -> [Vec<f64>; 2] {
    let [x, y] = [x, y].map(|data| Var::from_vec(data.to_vec(), data.len(), device).unwrap());
    let grads = f(x.as_tensor(), y.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
    [&x, &y].map(|variable| values(grads.get(variable).unwrap()))
}

#[test]
fn gradients_of_two_floats_at_special_points_are_what_is_stated() {
    const FAR: f64 = f64::INFINITY;
    type Point = (&'static str, Method, [[f64; 4]; 2], [[f64; 4]; 2]);
    let side = FRAC_1_SQRT_2;
    let points: [Point; 4] = [
        (
            "hypot",
            |x, y| x.hypot(y),
            [[0., 3., -3., 1e200], [0., 4., 0., 1e200]],
            [[0., 0.6, -1., side], [0., 0.8, 0., side]],
        ),
        ("copysign", |x, y| x.copysign(y), [[-2., 0., 3., 4.], [1., -1., -0., 2.]], [[-1., 0., -1., 1.], [0.; 4]]),
        (
            "logaddexp",
            |x, y| x.logaddexp(y),
            [[1000., -FAR, 7., FAR], [0., -FAR, 7., -FAR]],
            [[1., 0.5, 0.5, 1.], [0., 0.5, 0.5, 0.]],
        ),
        (
            "xlogy",
            |x, y| x.xlogy(y),
            [[0., 0., 2., 0.], [0., 2., 4., -1.]],
            [[0., LN_2, 2. * LN_2, 0.], [0., 0., 0.5, 0.]],
        ),
    ];
    each(|device| {
        for (name, method, [x, y], want) in points {
            let got = slopes(device, [&x, &y], method);
            for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
                assert!((got - want).abs() < 1e-12, "{name}: {got}, not {want}");
            }
        }
    });
}

#[test]
fn gradients_of_two_operands_match_differences() {
    check_all(gradients());
}
