//! Each kernel against plain loops over values in f64.

use ndgc_kernels::base::dtype::{DType, WithDType, with_type};
use ndgc_kernels::cpu::{
    few::{self, FEW},
    threads,
};
use ndgc_kernels::kernel::{BinaryOp, CmpOp, Domain, Kept, Kernel, Map, Rectifier, UnaryOp};

use super::arrays::{Array, Draw, FLOATS, NUMBERS, SHAPES, assert_close, run, tolerance, wrapped};
use super::formulas::{Formula, formula, formula_of_two};

fn supports(op: UnaryOp, dtype: DType) -> bool {
    dtype.is_float() || op.domain() == Domain::Number
}

#[test]
fn unary_kernels_match_plain_loops_on_any_layout() {
    let mut draw = Draw::new(1);
    for dtype in NUMBERS {
        for op in UnaryOp::ALL.iter().copied().filter(|&op| supports(op, dtype)) {
            let plain = formula(op).value;
            for dims in SHAPES {
                let mut src = Array::random(&mut draw, dtype, dims);
                let mut target = Array::random_target(&mut draw, dtype, dims);
                let expected = |array: &Array| -> Vec<f64> {
                    array.values().into_iter().map(|x| wrapped(dtype, plain(x))).collect()
                };
                let (new, in_place) = (expected(&src), expected(&target));
                let mut dst = Array::new(dtype, dims);
                run(&Kernel::Map { map: Map::Unary(op), src: src.view(), dst: dst.view() }).expect("supported");
                assert_close(&dst.values(), &new, tolerance(dtype), &format!("{op:?} {dtype} {dims:?}"));
                run(&Kernel::MapAssign { map: Map::Unary(op), dst: target.view() }).expect("supported");
                assert_close(&target.values(), &in_place, tolerance(dtype), &format!("{op:?} {dtype} in place"));
            }
        }
    }
}

/// To the last bit, and for the same dtypes.
#[test]
fn a_few_numbers_on_the_spot_are_those_of_the_kernels() {
    let mut draw = Draw::new(21);
    let same = |a: &f64, b: &f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let with_numbers = [
        Map::Affine { mul: 3.0, add: 2.0 },
        Map::Clamp { min: 0.3, max: 0.8 },
        Map::Powf(2.0),
        Map::Powf(1.7),
        Map::Divide { number: 3.0, first: false },
        Map::Divide { number: 3.0, first: true },
        Map::Rectifier(Rectifier { scale: 1.5, below: 0.7, curved: false }),
        Map::Rectifier(Rectifier { scale: 1.5, below: 0.7, curved: true }),
        Map::Copy,
    ];
    for map in UnaryOp::ALL.iter().map(|&op| Map::Unary(op)).chain(with_numbers) {
        for dtype in NUMBERS {
            for count in [1, 5, FEW] {
                let mut src = Array::new(dtype, &[count]).map(|_| draw.value(dtype));
                let (mut few, mut many) = (Array::new(dtype, &[count]), Array::new(dtype, &[count]));
                let done = few::map(map, dtype, src.all::<u8>(), few.all::<u8>());
                let run = run(&Kernel::Map { map, src: src.view(), dst: many.view() });
                assert_eq!(done, run.is_ok(), "{map:?} {dtype}");
                let (few, many) = (few.values(), many.values());
                assert!(few.iter().zip(&many).all(|(a, b)| same(a, b)), "{map:?} {dtype}: {few:?} and {many:?}");
            }
        }
    }
}

/// Zeros of both signs, what is no number, infinities, and numbers.
const SPECIAL: [f64; 7] = [0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0, -3.0];

/// Pairs of them, `first` places apart in the list.
fn pairs_of_special(dtype: DType, count: usize, first: usize) -> [Array; 2] {
    [0, first].map(|first| {
        let values: Vec<f64> = (0..count).map(|i| SPECIAL[(first + i) % SPECIAL.len()]).collect();
        Array::of(dtype, &[count], &values)
    })
}

/// Also of what compares as no number does.
#[test]
fn a_few_comparisons_on_the_spot_are_those_of_the_kernels() {
    for op in [CmpOp::Eq, CmpOp::Ne, CmpOp::Lt, CmpOp::Le, CmpOp::Gt, CmpOp::Ge] {
        for dtype in DType::ALL {
            for (count, first) in (1..=FEW).flat_map(|count| (0..SPECIAL.len()).map(move |first| (count, first))) {
                let [mut lhs, mut rhs] = pairs_of_special(dtype, count, first);
                let (mut few, mut many) = (Array::new(DType::U8, &[count]), Array::new(DType::U8, &[count]));
                few::compare(op, dtype, lhs.all::<u8>(), rhs.all::<u8>(), few.all::<u8>());
                run(&Kernel::Compare { op, lhs: lhs.view(), rhs: rhs.view(), dst: many.view() }).expect("any dtype");
                assert_eq!(few.values(), many.values(), "{op:?} {dtype} of {count}, {first} apart");
            }
        }
    }
}

fn plain_binary(op: BinaryOp, dtype: DType, x: f64, y: f64) -> f64 {
    let value = match op {
        BinaryOp::Div | BinaryOp::FloorDiv if y == 0.0 && !dtype.is_float() => 0.0,
        BinaryOp::Fmod | BinaryOp::Rem if y == 0.0 && !dtype.is_float() => x,
        BinaryOp::Div if !dtype.is_float() => (x / y).trunc(),
        BinaryOp::Pow if !dtype.is_float() => {
            let power = (0..y as u32).fold(1i64, |power, _| power.wrapping_mul(x as i64));
            return with_type!(dtype, T => T::from_i128(power.into()).to_f64());
        }
        _ => (formula_of_two(op).value)(x, y),
    };
    wrapped(dtype, value)
}

#[test]
fn binary_kernels_match_plain_loops_on_any_layout() {
    let mut draw = Draw::new(2);
    for dtype in NUMBERS {
        for &op in BinaryOp::ALL.iter().filter(|op| dtype.is_float() || op.domain() != Domain::Float) {
            for dims in SHAPES {
                let mut lhs = Array::random(&mut draw, dtype, dims);
                let mut rhs = Array::random(&mut draw, dtype, dims);
                let mut target = Array::random_target(&mut draw, dtype, dims);
                let expected = |lhs: &Array| -> Vec<f64> {
                    let pairs = lhs.values().into_iter().zip(rhs.values());
                    pairs.map(|(x, y)| plain_binary(op, dtype, x, y)).collect()
                };
                let (new, in_place) = (expected(&lhs), expected(&target));
                let mut dst = Array::new(dtype, dims);
                run(&Kernel::Binary { op, lhs: lhs.view(), rhs: rhs.view(), dst: dst.view() }).expect("any dtype");
                assert_close(&dst.values(), &new, tolerance(dtype), &format!("{op:?} {dtype} {dims:?}"));
                run(&Kernel::BinaryAssign { op, dst: target.view(), rhs: rhs.view() }).expect("any dtype");
                assert_close(&target.values(), &in_place, tolerance(dtype), &format!("{op:?} {dtype} in place"));
            }
        }
    }
}

#[test]
fn an_operation_in_place_leaves_elements_outside_its_view_alone() {
    let mut array = Array::of(DType::F32, &[4, 6], &[1.0]);
    let whole = array.layout;
    array.layout = whole.narrow(0, 1, 2).and_then(|rows| rows.narrow(1, 2, 3)).expect("inside");
    run(&Kernel::MapAssign { map: Map::Affine { mul: 2.0, add: 3.0 }, dst: array.view() }).expect("floats");
    array.layout = array.layout.transpose(0, 1);
    run(&Kernel::MapAssign { map: Map::Unary(UnaryOp::Neg), dst: array.view() }).expect("floats");
    array.layout = whole;
    let expected: Vec<f64> =
        (0..24).map(|i| if (1..3).contains(&(i / 6)) && (2..5).contains(&(i % 6)) { -5.0 } else { 1.0 }).collect();
    assert_eq!(array.values(), expected);
}

/// What masks may be of.
const MASKS: [DType; 4] = [DType::Bool, DType::U8, DType::U32, DType::I64];

/// Also by masks of which only one byte is not 0.
#[test]
fn few_elements_chosen_on_the_spot_are_those_of_the_kernels() {
    let same = |a: &f64, b: &f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let others = SPECIAL.map(|x| 2.0 - x);
    for (of, dtype) in DType::ALL.iter().flat_map(|&dtype| MASKS.map(|of| (of, dtype))) {
        for count in 1..=FEW {
            let mut cond = Array::of(of, &[count], &[0.0, 1.0, 65_536.0, 0.0, 4_294_967_296.0]);
            let (mut yes, mut no) = (Array::of(dtype, &[count], &SPECIAL), Array::of(dtype, &[count], &others));
            let (mut few, mut many) = (Array::new(dtype, &[count]), Array::new(dtype, &[count]));
            few::select((of, &*cond.all::<u8>()), dtype, yes.all::<u8>(), no.all::<u8>(), few.all::<u8>());
            let (yes, no) = (yes.view(), no.view());
            run(&Kernel::Where { cond: cond.view(), yes, no, dst: many.view() }).expect("a mask");
            let (few, many) = (few.values(), many.values());
            assert!(few.iter().zip(&many).all(|(a, b)| same(a, b)), "{of} {dtype}: {few:?} and {many:?}");
        }
    }
}

#[test]
fn comparison_and_choice_match_plain_loops() {
    let mut draw = Draw::new(3);
    let ops = [CmpOp::Eq, CmpOp::Ne, CmpOp::Lt, CmpOp::Le, CmpOp::Gt, CmpOp::Ge];
    for dtype in DType::ALL {
        for dims in SHAPES {
            let mut lhs = Array::random(&mut draw, dtype, dims);
            let mut rhs = Array::random(&mut draw, dtype, dims);
            let pairs: Vec<(f64, f64)> = lhs.values().into_iter().zip(rhs.values()).collect();
            for op in ops {
                let mut dst = Array::new(DType::U8, dims);
                run(&Kernel::Compare { op, lhs: lhs.view(), rhs: rhs.view(), dst: dst.view() }).expect("any dtype");
                let holds = |&(x, y): &(f64, f64)| match op {
                    CmpOp::Eq => x == y,
                    CmpOp::Ne => x != y,
                    CmpOp::Lt => x < y,
                    CmpOp::Le => x <= y,
                    CmpOp::Gt => x > y,
                    CmpOp::Ge => x >= y,
                };
                let expected: Vec<f64> = pairs.iter().map(|pair| f64::from(u8::from(holds(pair)))).collect();
                assert_eq!(dst.values(), expected, "{op:?} {dtype} {dims:?}");
            }
            for of in MASKS {
                let mut cond = Array::random(&mut draw, of, dims).map(|c| c % 2.0);
                let mask = cond.values();
                let mut dst = Array::new(dtype, dims);
                let (yes, no) = (lhs.view(), rhs.view());
                run(&Kernel::Where { cond: cond.view(), yes, no, dst: dst.view() }).expect("indices");
                let chosen = pairs.iter().zip(&mask).map(|(&(x, y), &c)| if c != 0.0 { x } else { y });
                assert_eq!(dst.values(), chosen.collect::<Vec<f64>>(), "{of} {dtype} {dims:?}");
            }
        }
    }
}

#[test]
fn gradients_are_the_slopes_of_their_functions() {
    let mut draw = Draw::new(4);
    for (dtype, &op) in FLOATS.into_iter().flat_map(|dtype| UnaryOp::ALL.iter().map(move |op| (dtype, op))) {
        let Formula { range: [low, _], value: plain } = formula(op);
        // Where each function is smooth.
        let place = |v: f64| match 0.063 + v.abs() / 10.0 {
            size if plain(size).is_nan() => low + size,
            size if v < 0.0 && !plain(-0.3).is_nan() => -size,
            size => size,
        };
        for dims in SHAPES {
            let mut x = Array::random(&mut draw, dtype, dims).map(place);
            let mut grad = Array::random(&mut draw, dtype, dims);
            let (mut out, mut dst) = (Array::new(dtype, dims), Array::new(dtype, dims));
            run(&Kernel::Map { map: Map::Unary(op), src: x.view(), dst: out.view() }).expect("floats");
            let saved = match op.kept() {
                Kept::Input => x.view(),
                Kept::Output => out.view(),
                Kept::Nothing => grad.view(),
            };
            run(&Kernel::UnaryGrad { op, saved, grad: grad.view(), dst: dst.view() }).expect("floats");
            let slope = |x: f64| (plain(x + 1e-5) - plain(x - 1e-5)) / 2e-5;
            let pairs = x.values().into_iter().zip(grad.values());
            let expected: Vec<f64> = pairs.map(|(x, g)| g * slope(x)).collect();
            // What is kept was rounded, and a difference is no slope.
            let near = (16.0 * tolerance(dtype)).max(2e-6);
            assert_close(&dst.values(), &expected, near, &format!("{op:?} {dtype} {dims:?}"));
        }
    }
}

#[test]
fn gradients_at_special_points() {
    let grad = |op, saved: &[f64]| {
        let mut saved = Array::of(DType::F64, &[saved.len()], saved);
        let mut grad = Array::of(DType::F64, saved.layout.dims(), &[3.0]);
        let mut dst = Array::new(DType::F64, saved.layout.dims());
        run(&Kernel::UnaryGrad { op, saved: saved.view(), grad: grad.view(), dst: dst.view() }).expect("floats");
        dst.values()
    };
    assert_eq!(grad(UnaryOp::Relu, &[0.0, -0.0, 2.0]), [0.0, 0.0, 3.0]);
    assert_eq!(grad(UnaryOp::Abs, &[0.0, -2.0, f64::INFINITY]), [0.0, -3.0, 3.0]);
    assert_eq!(grad(UnaryOp::Floor, &[0.0, f64::INFINITY, f64::NAN]), [0.0; 3]);
    assert_eq!(grad(UnaryOp::Rsqrt, &[f64::INFINITY, 0.0]), [f64::NEG_INFINITY, 0.0]);
    assert_eq!(grad(UnaryOp::Asinh, &[1e200, -1e200]), [3e-200; 2]);
    assert_eq!(grad(UnaryOp::HardSigmoid, &[-3.5, -3.0, 3.0, 3.5]), [0.0, 0.5, 0.5, 0.0]);
    assert_eq!(grad(UnaryOp::HardSwish, &[-3.5, -3.0, 0.0, 3.0, 3.5]), [0.0, 0.0, 1.5, 3.0, 3.0]);
    assert_eq!(grad(UnaryOp::Cbrt, &[0.0, -1.0]), [f64::INFINITY, 1.0]);
}

#[test]
fn rectifiers_and_their_gradients_match_plain_loops_on_any_layout() {
    let mut draw = Draw::new(22);
    for (dtype, curved) in FLOATS.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
        let rectifier = Rectifier { scale: 1.5, below: 0.7, curved };
        let value = |x: f64| 1.5 * if x > 0.0 { x } else { 0.7 * if curved { x.exp_m1() } else { x } };
        let slope = |x: f64| 1.5 * if x > 0.0 { 1.0 } else { 0.7 * if curved { x.exp() } else { 1.0 } };
        for dims in SHAPES {
            let what = format!("{rectifier:?} {dtype} {dims:?}");
            let (mut x, mut grad) = (Array::random(&mut draw, dtype, dims), Array::random(&mut draw, dtype, dims));
            let mut target = Array::random_target(&mut draw, dtype, dims);
            let (mut out, mut dst) = (Array::new(dtype, dims), Array::new(dtype, dims));
            let values = |array: &Array| array.values().into_iter().map(value).collect::<Vec<f64>>();
            let in_place = values(&target);
            run(&Kernel::Map { map: Map::Rectifier(rectifier), src: x.view(), dst: out.view() }).expect("floats");
            assert_close(&out.values(), &values(&x), tolerance(dtype), &what);
            run(&Kernel::MapAssign { map: Map::Rectifier(rectifier), dst: target.view() }).expect("floats");
            assert_close(&target.values(), &in_place, tolerance(dtype), &what);
            run(&Kernel::RectifierGrad { rectifier, saved: x.view(), grad: grad.view(), dst: dst.view() })
                .expect("floats");
            let slopes = x.values().into_iter().zip(grad.values()).map(|(x, g)| g * slope(x));
            assert_close(&dst.values(), &slopes.collect::<Vec<f64>>(), tolerance(dtype), &what);
        }
    }
}

#[test]
fn scalar_kernels_match_plain_loops() {
    let mut draw = Draw::new(5);
    for dtype in NUMBERS {
        for dims in SHAPES {
            let mut src = Array::random(&mut draw, dtype, dims);
            let values = src.values();
            let check = |dst: &Array, expected: &dyn Fn(f64) -> f64, what: &str| {
                let expected: Vec<f64> = values.iter().map(|&x| wrapped(dtype, expected(x))).collect();
                assert_close(&dst.values(), &expected, tolerance(dtype), &format!("{what} {dtype} {dims:?}"));
            };
            let mut dst = Array::new(dtype, dims);
            run(&Kernel::Map { map: Map::Affine { mul: 3.0, add: 2.0 }, src: src.view(), dst: dst.view() })
                .expect("any dtype");
            check(&dst, &|x| x * 3.0 + 2.0, "affine");
            run(&Kernel::Map { map: Map::Clamp { min: 1.0, max: 3.0 }, src: src.view(), dst: dst.view() })
                .expect("any dtype");
            check(&dst, &|x| x.clamp(1.0, 3.0), "clamp");
            if dtype.is_float() {
                for exponent in [2.0, 0.5, 3.0, -1.0, 0.0] {
                    run(&Kernel::Map { map: Map::Powf(exponent), src: src.view(), dst: dst.view() }).expect("floats");
                    check(&dst, &|x| x.powf(exponent), "powf");
                }
                run(&Kernel::Map { map: Map::Divide { number: 3.0, first: false }, src: src.view(), dst: dst.view() })
                    .expect("floats");
                check(&dst, &|x| x / 3.0, "divide");
                run(&Kernel::Map { map: Map::Divide { number: 3.0, first: true }, src: src.view(), dst: dst.view() })
                    .expect("floats");
                check(&dst, &|x| 3.0 / x, "divide a number");
                run(&Kernel::MapAssign { map: Map::Divide { number: 3.0, first: true }, dst: dst.view() })
                    .expect("floats");
                check(&dst, &|x| 3.0 / (3.0 / x), "divide a number in place");
            }
            let mut target = Array::random_target(&mut draw, dtype, dims);
            run(&Kernel::copy(src.view(), target.view())).expect("any dtype");
            check(&target, &|x| x, "copy");
            run(&Kernel::Fill { dst: target.view(), value: 9.0 }).expect("any dtype");
            check(&target, &|_| 9.0, "fill");
            for to in DType::ALL {
                let mut dst = Array::new(to, dims);
                run(&Kernel::Map { map: Map::Cast, src: src.view(), dst: dst.view() }).expect("any dtype");
                let expected: Vec<f64> = values.iter().map(|&x| with_type!(to, T => T::from_f64(x).to_f64())).collect();
                assert_close(&dst.values(), &expected, 0.0, &format!("{dtype} as {to}"));
            }
        }
    }
}

#[test]
fn arange_counts_in_f64_or_i64() {
    for dtype in NUMBERS {
        let mut dst = Array::new(dtype, &[37]);
        run(&Kernel::Arange { dst: dst.view(), start: 3.0, step: 2.0 }).expect("any dtype");
        let expected: Vec<f64> = (0..37).map(|i| wrapped(dtype, f64::from(3 + 2 * i))).collect();
        assert_eq!(dst.values(), expected, "{dtype}");
    }
    let mut down = Array::new(DType::F64, &[4]);
    run(&Kernel::Arange { dst: down.view(), start: 1.0, step: -0.5 }).expect("any dtype");
    assert_eq!(down.values(), [1.0, 0.5, 0.0, -0.5]);
}

#[test]
fn whole_numbers_keep_all_their_bits() {
    let large = [i64::MAX, i64::MIN, i64::MAX - 7, 3];
    let mut src = Array::new(DType::I64, &[4]);
    large.iter().enumerate().for_each(|(i, &value)| src.put(i, value));
    let mut dst = Array::new(DType::I64, &[4]);
    run(&Kernel::Map { map: Map::Cast, src: src.view(), dst: dst.view() }).expect("any dtype");
    assert_eq!(dst.typed::<i64>(), large);
    let mut narrow = Array::new(DType::U32, &[4]);
    run(&Kernel::Map { map: Map::Cast, src: src.view(), dst: narrow.view() }).expect("any dtype");
    assert_eq!(narrow.typed::<u32>(), large.map(|value| value as u32));
    let mut ones = Array::of(DType::I64, &[4], &[-1.0]);
    let kernel = Kernel::Binary { op: BinaryOp::Div, lhs: src.view(), rhs: ones.view(), dst: dst.view() };
    run(&kernel).expect("any dtype");
    assert_eq!(dst.typed::<i64>(), large.map(|value| value.wrapping_div(-1)));
}

#[test]
fn large_arrays_are_cut_into_pieces_without_a_seam() {
    let n = threads::ELEMENTS_MIN + 1234;
    let mut lhs = Array::new(DType::F32, &[n]);
    run(&Kernel::Arange { dst: lhs.view(), start: 0.0, step: 1.0 }).expect("any dtype");
    let mut rhs = Array::of(DType::F32, &[n], &[0.5]);
    let mut dst = Array::new(DType::F32, &[n]);
    let kernel = Kernel::Binary { op: BinaryOp::Add, lhs: lhs.view(), rhs: rhs.view(), dst: dst.view() };
    run(&kernel).expect("any dtype");
    run(&Kernel::BinaryAssign { op: BinaryOp::Sub, dst: dst.view(), rhs: lhs.view() }).expect("any dtype");
    run(&Kernel::MapAssign { map: Map::Affine { mul: 4.0, add: 0.0 }, dst: dst.view() }).expect("any dtype");
    assert!(dst.values().iter().all(|&x| x == 2.0));
}

/// Lines that repeat: of either side or of both, of each length, some on several threads.
#[test]
fn a_line_that_repeats_is_taken_for_each_row() {
    let line = |width: usize| Array::of(DType::F32, &[width], &(0..width).map(|i| i as f64).collect::<Vec<_>>());
    let wide = |line: &Array, rows: usize| {
        let layout = line.layout.broadcast_to(&[rows, 1, line.dims()[0]].as_slice().into(), "test").expect("it fits");
        let mut wide = line.clone();
        wide.layout = layout;
        wide
    };
    let many = threads::ELEMENTS_MIN / 400 + 3;
    for (rows, width) in
        [(3, 1), (0, 9), (5, 7), (100, 10), (1, 8), (4, 8), (9, 33), (2, 300), (many, 400), (2, threads::ELEMENTS_MIN)]
    {
        let values: Vec<f64> = (0..rows * width).map(|i| (i % 1021) as f64 * 4.0).collect();
        let mut whole = Array::of(DType::F32, &[rows, 1, width], &values);
        let mut row = wide(&line(width), rows);
        let mut dst = Array::new(DType::F32, &[rows, 1, width]);
        let mut is = |lhs: &mut Array, rhs: &mut Array, f: &dyn Fn(usize) -> f64| {
            run(&Kernel::Binary { op: BinaryOp::Sub, lhs: lhs.view(), rhs: rhs.view(), dst: dst.view() })
                .expect("numbers");
            let wrong = dst.values().iter().enumerate().position(|(i, &x)| x != f(i));
            assert_eq!(wrong, None, "{rows} rows of {width}");
        };
        is(&mut whole, &mut row, &|i| values[i] - (i % width) as f64);
        is(&mut row, &mut whole, &|i| (i % width) as f64 - values[i]);
        let mut other = row.clone().map(|x| x * 3.0);
        is(&mut row, &mut other, &|i| (i % width) as f64 * -2.0);
        run(&Kernel::BinaryAssign { op: BinaryOp::Sub, dst: whole.view(), rhs: row.view() }).expect("numbers");
        let found = whole.values();
        assert!(found.iter().enumerate().all(|(i, &x)| x == values[i] - (i % width) as f64), "{rows} rows of {width}");
    }
}

/// Both sides repeat, the one along fewer axes than the other.
#[test]
fn lines_of_two_lengths_repeat_together() {
    let many = threads::ELEMENTS_MIN / 96 + 5;
    for times in [2, 9, many] {
        let dims = [times, 3, 32];
        let of = |own: &[usize], scale: f64| {
            let values: Vec<f64> = (0..own.iter().product()).map(|i| i as f64 * scale).collect();
            let mut array = Array::of(DType::F32, own, &values);
            array.layout = array.layout.broadcast_to(&dims.as_slice().into(), "test").expect("it fits");
            array
        };
        let (mut long, mut short) = (of(&[3, 32], 100.0), of(&[32], 1.0));
        for long_first in [true, false] {
            let (lhs, rhs) = if long_first { (long.view(), short.view()) } else { (short.view(), long.view()) };
            let mut dst = Array::new(DType::F32, &dims);
            run(&Kernel::Binary { op: BinaryOp::Sub, lhs, rhs, dst: dst.view() }).expect("numbers");
            let sign = if long_first { 1.0 } else { -1.0 };
            let expected = |i: usize| sign * ((i % 96) as f64 * 100.0 - (i % 32) as f64);
            let wrong = dst.values().iter().enumerate().position(|(i, &x)| x != expected(i));
            assert_eq!(wrong, None, "{times} times, the longer one first: {long_first}");
        }
    }
}
