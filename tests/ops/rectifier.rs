//! `elu`, `selu` and `leaky_relu`: one kernel each, and one for the gradient, and both are rounded once.

use ndgc::{Device, Result, SimConfig, Tensor, Var, bf16, f16, gc};

use crate::ops::reference::Native;
use crate::ops::support::{alone, check, each, values};

/// How it is called, its value, and its slope.
type Rectifier = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64, fn(f64) -> f64);

const RECTIFIERS: [Rectifier; 3] = [
    ("elu", |x| x.elu(0.7), |x| if x > 0. { x } else { 0.7 * x.exp_m1() }, |x| if x > 0. { 1. } else { 0.7 * x.exp() }),
    (
        "selu",
        |x| x.selu(1.3, 1.1),
        |x| 1.1 * if x > 0. { x } else { 1.3 * x.exp_m1() },
        |x| 1.1 * if x > 0. { 1. } else { 1.3 * x.exp() },
    ),
    ("leaky_relu", |x| x.leaky_relu(0.3), |x| if x > 0. { x } else { 0.3 * x }, |x| if x > 0. { 1. } else { 0.3 }),
];

const POINTS: [f64; 18] = [
    0.,
    -0.,
    1.5,
    -1.5,
    6e-8,
    -6e-8,
    1e-300,
    -1e-300,
    0.013,
    -0.013,
    -0.37,
    -4.2,
    18.,
    -18.,
    300.,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];
const N: usize = POINTS.len();

/// The points on three rows.
fn rows<T: Native>(device: &Device) -> Tensor {
    let points: Vec<T> = POINTS.iter().cycle().take(3 * N).map(|&x| T::from_f64(x)).collect();
    Tensor::from_slice(&points, (3, N), device).unwrap()
}

/// Equal, or off by no more than `tolerance` times the size; of halves the nearest one.
#[track_caller]
fn assert_near<T: Native>(what: &str, at: T, got: T, want: f64, tolerance: f64) {
    let (at, got) = (at.to_f64(), got.to_f64());
    let want = if tolerance == 0. { T::from_f64(want).to_f64() } else { want };
    let is_near = want.is_finite() && (got - want).abs() <= tolerance * want.abs();
    assert!(got == want || got.is_nan() && want.is_nan() || is_near, "{what} of {at} is {got}, not {want}");
    assert!(at != 0. || got != 0. || got.is_sign_positive(), "{what} of {at} is {got}");
}

fn values_match<T: Native>(device: &Device, tolerance: f64) -> Result<()> {
    let all = rows::<T>(device);
    let forms = [
        ("dense", all.clone()),
        ("transposed", all.t()?),
        ("narrowed", all.narrow(1, 2, 7)?),
        ("few", all.get(0)?.narrow(0, 0, 5)?),
        ("broadcast", all.get(0)?.broadcast_as((2, N))?),
        ("a scalar", all.get(1)?.get(3)?),
        ("empty", all.narrow(0, 0, 0)?),
    ];
    for (name, run, value, _) in RECTIFIERS {
        for (form, x) in &forms {
            let (y, what) = (run(x)?, format!("{name} {} {form}", T::DTYPE));
            assert_eq!((y.dims(), y.dtype()), (x.dims(), T::DTYPE), "{what}");
            for (at, got) in values::<T>(x).into_iter().zip(values::<T>(&y)) {
                assert_near(&what, at, got, value(at.to_f64()), tolerance);
            }
        }
    }
    Ok(())
}

/// Of a variable, and of a transposed view of it. At NaN the slope is 0, as that of `relu` and `clamp` is.
fn gradients_match<T: Native>(device: &Device, tolerance: f64) -> Result<()> {
    for (name, run, _, slope) in RECTIFIERS {
        for turned in [false, true] {
            let x = Var::from_tensor(&rows::<T>(device))?;
            let seen = if turned { x.as_tensor().t()? } else { x.as_tensor().clone() };
            let grads = run(&seen)?.affine(0.75, 0.)?.backward()?;
            let grad = grads.get(&x).expect("the result depends on it");
            let what = format!("the gradient of {name} {}, turned: {turned},", T::DTYPE);
            assert_eq!((grad.dims(), grad.dtype()), (x.dims(), T::DTYPE), "{what}");
            for (at, got) in values::<T>(&x).into_iter().zip(values::<T>(grad)) {
                let place = at.to_f64();
                assert_near(&what, at, got, if place.is_nan() { 0. } else { 0.75 * slope(place) }, tolerance);
            }
        }
    }
    Ok(())
}

#[test]
fn rectifiers_and_their_gradients_are_rounded_once() {
    fn body<T: Native>(device: &Device, tolerance: f64) {
        values_match::<T>(device, tolerance).unwrap();
        gradients_match::<T>(device, tolerance).unwrap();
    }
    each(|device| {
        body::<f16>(device, 0.);
        body::<bf16>(device, 0.);
        body::<f32>(device, 1e-6);
        body::<f64>(device, 2e-15);
    });
}

/// The kernels that `f` submits, where they wait until somebody asks, and the arrays that it makes.
fn work<R>(device: &Device, f: impl FnOnce() -> R) -> ((usize, u64), R) {
    device.synchronize().unwrap();
    let before = gc::stats().created;
    let result = f();
    let kernels = if let Device::Sim(sim) = device { sim.pending() } else { 0 };
    ((kernels, gc::stats().created - before), result)
}

#[test]
fn a_rectifier_is_one_kernel_and_one_array_and_goes_back_as_relu_does() {
    alone(|| {
        let simulated = Device::sim(SimConfig { streams: 1, ..SimConfig::default() });
        for (device, one) in [(Device::Cpu, 0), (simulated, 1)] {
            let counts = |name: &str, run: fn(&Tensor) -> Result<Tensor>| {
                let x = Var::from_vec(vec![-1f32; 64], 64, &device).unwrap();
                let (there, y) = work(&device, || run(x.as_tensor()).unwrap());
                assert_eq!(there, (one, 1), "kernels and arrays of {name} on {device}");
                let (back, grads) = work(&device, || y.backward().unwrap());
                assert_eq!(grads.len(), 1);
                back
            };
            let relu = counts("relu", |x| x.relu());
            for (name, run, ..) in RECTIFIERS {
                assert_eq!(counts(name, run), relu, "kernels and arrays of the gradient of {name} on {device}");
            }
            check(&device);
        }
    });
}
