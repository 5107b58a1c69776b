//! Behaviour 57 and section 9 points 2 and 3: memory and time that do not grow, with a manager that is never closed.

use std::time::Duration;

use ndgc::nn::{Adam, Mlp, Module, Optimizer};
use ndgc::{DType, Device, Generator, NdManager, Result, Tensor, Var, gc, no_grad};

use crate::common::system::busy;
use crate::it::support::{alone, base, block, both, live_bytes, switched};

/// What a program holds at one of its points: arrays of its manager, arrays of the process, bytes of the device.
type Held = (usize, u64, u64);

fn held(manager: &NdManager) -> Held {
    gc::collect();
    (manager.array_count(), gc::stats().live, manager.device().memory().active)
}

/// Runs epochs and asserts that the first makes what lasts: after it nothing is added, to the byte.
fn assert_flat(what: &str, manager: &NdManager, epochs: usize, mut epoch: impl FnMut() -> Result<()>) {
    let held: Vec<Held> = (0..epochs)
        .map(|_| {
            epoch().unwrap();
            held(manager)
        })
        .collect();
    assert!(held.iter().all(|epoch| epoch == &held[0]), "{what}: {held:?}");
}

/// What a processor takes for the fastest of many rounds, which knows little of what else the machine does.
fn fastest(rounds: usize, mut round: impl FnMut()) -> Duration {
    let times = (0..rounds).map(|_| {
        let start = busy();
        round();
        busy() - start
    });
    times.min().unwrap()
}

/// Asserts that rounds now take about as long as those before, when `early` was measured. What is looked for grows with
/// the number of arrays, a hundredfold; a busy machine slows a round by less than three times, and gets several
/// chances.
fn assert_as_fast(early: Duration, mut now: impl FnMut() -> Duration) {
    let mut late = Vec::new();
    for _ in 0..5 {
        late.push(now());
        if late[late.len() - 1].as_secs_f64() < 3. * early.as_secs_f64() {
            return;
        }
    }
    panic!("{early:?} at first, {late:?} at last");
}

/// Linear regression from scratch: `y = x w + b`, 1000 points, batches of 10, plain gradient steps by hand.
struct Regression {
    x: Tensor,
    y: Tensor,
    weight: Var,
    bias: Var,
}

impl Regression {
    fn new(manager: &NdManager) -> Result<Self> {
        let x = Generator::new(7).normal(0., 1., (1000, 2), DType::F32, manager)?;
        let truth = manager.from_slice(&[2f32, -3.4], (2, 1))?;
        let y = (x.matmul(&truth)? + 4.2)?;
        let weight = Var::zeros((2, 1), DType::F32, manager)?;
        let bias = Var::zeros(1, DType::F32, manager)?;
        Ok(Regression { x, y, weight, bias })
    }

    fn epoch(&self, points: usize) -> Result<()> {
        for first in (0..points).step_by(10) {
            let (x, y) = (self.x.narrow(0, first, 10)?, self.y.narrow(0, first, 10)?);
            let prediction = x.matmul(&self.weight)?.broadcast_add(&self.bias)?;
            let loss = (prediction - y)?.sqr()?.mean_all()?;
            let grads = loss.backward()?;
            no_grad(|| {
                for variable in [&self.weight, &self.bias] {
                    variable.sub_(&(grads.get(variable).unwrap() * 0.03)?)?;
                }
                Ok::<_, ndgc::Error>(())
            })?;
        }
        Ok(())
    }
}

#[test]
fn f57_linear_regression_from_scratch_holds_no_byte_and_takes_no_time_more_after_a_hundred_epochs() {
    switched(true, |device| {
        let manager = base(device);
        let task = Regression::new(&manager).unwrap();
        let epoch = || task.epoch(1000).unwrap();
        let early = fastest(20, epoch);
        assert_flat("linear regression", &manager, 60, || task.epoch(1000));
        assert_as_fast(early, || fastest(20, epoch));
        let learned = task.weight.to_vec::<f32>().unwrap();
        assert!((learned[0] - 2.).abs() < 0.01 && (learned[1] + 3.4).abs() < 0.01, "{learned:?}");
    });
}

#[test]
fn f57_with_the_switch_off_the_same_program_grows_by_the_same_amount_in_each_epoch() {
    // What the reclaiming form is measured against; it also shows that the test above can fail.
    switched(false, |device| {
        let manager = base(device);
        let task = Regression::new(&manager).unwrap();
        let epochs = (0..4).map(|_| {
            task.epoch(100).unwrap();
            held(&manager)
        });
        let held: Vec<Held> = epochs.collect();
        let growth: Vec<_> = held.windows(2).map(|w| (w[1].0 - w[0].0, w[1].2 - w[0].2)).collect();
        // Ten steps of seven results each.
        assert!(growth[0].0 == 70 && growth[0].1 > 0, "{growth:?}");
        assert!(growth.iter().all(|g| g == &growth[0]), "{growth:?}");
    });
}

/// Pictures of ten classes that differ in where they are bright.
fn pictures(manager: &NdManager, count: usize) -> Result<(Tensor, Tensor)> {
    let labels: Vec<u32> = (0..count as u32).map(|i| i % 10).collect();
    let noise = Generator::new(3).uniform(0., 0.1, (count, 784), DType::F32, manager)?;
    let bright: Vec<f32> =
        labels.iter().flat_map(|&label| (0..784).map(move |i| if i / 79 == label { 1. } else { 0. })).collect();
    let pictures = noise.add(&manager.from_vec(bright, (count, 784))?)?;
    Ok((pictures, manager.from_vec(labels, count)?))
}

/// Epochs of a network under Adam.
fn train(what: &str, sizes: &[usize], epochs: usize, device: &Device) {
    const IMAGES: usize = 120;
    const BATCH: usize = 20;
    let manager = base(device);
    let (images, labels) = pictures(&manager, IMAGES).unwrap();
    let model = Mlp::new(sizes, &mut Generator::new(1), &manager).unwrap();
    let mut adam = Adam::new(model.variables(), 3e-3).unwrap();
    let mut losses = Vec::new();
    assert_flat(what, &manager, epochs, || {
        for first in (0..IMAGES).step_by(BATCH) {
            let logits = model.forward(&images.narrow(0, first, BATCH)?)?;
            let loss = logits.cross_entropy(&labels.narrow(0, first, BATCH)?)?;
            adam.backward_step(&loss)?;
            losses.push(loss.to_scalar::<f32>()?);
        }
        Ok(())
    });
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(last < 0.2 * first, "{what}: it learns: loss {first} at first, {last} at last");
}

#[test]
fn f57_softmax_regression_holds_no_byte_more() {
    switched(true, |device| train("softmax regression", &[784, 10], 12, device));
}

#[test]
fn f57_the_network_of_djls_first_tutorial_holds_no_byte_more() {
    switched(true, |device| train("mlp", &[784, 128, 64, 10], 12, device));
}

#[test]
fn point02_a_variable_that_grows_by_overwriting_holds_one_array_of_its_size() {
    // DJL #2567: every old `x` of `x = concat(x, d)` stays until the manager closes.
    switched(true, |device| {
        let manager = base(device);
        let d = manager.ones(1, DType::F32).unwrap();
        let mut x = manager.zeros(0, DType::F32).unwrap();
        for length in 1..=2000u64 {
            x = Tensor::cat(&[&x, &d], 0).unwrap();
            gc::collect();
            assert_eq!((manager.array_count(), manager.bytes_used()), (2, 4 * length + 4));
        }
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.; 2000]);
    });
}

#[test]
fn point02_a_hundred_thousand_overwrites_hold_what_the_first_held() {
    switched(true, |device| {
        let manager = base(device);
        let d = manager.ones(1, DType::F32).unwrap();
        let mut x = manager.zeros(16, DType::F32).unwrap();
        let step = |x: &Tensor| Tensor::cat(&[&x.narrow(0, 1, 15)?, &d], 0);
        let count = if device.is_cpu() { 100_000 } else { 10_000 };
        let mut first = None;
        for i in 0..count {
            x = step(&x).unwrap();
            if i % 1000 == 999 {
                let now = held(&manager);
                assert_eq!(*first.get_or_insert(now), now, "after {i} steps");
            }
        }
        assert_eq!(manager.array_count(), 2);
    });
}

#[test]
fn point03_a_step_takes_no_longer_with_a_hundred_times_the_arrays_resident() {
    // DJL 0.20 walked every array of the process in each batch, to zero its gradient. Here gradients are values that a
    // backward returns: there is none to be zeroed, and nothing walks. The fastest of many rounds is compared.
    alone(|| {
        let _on = gc::scoped(true);
        let manager = base(&Device::Cpu);
        let (seed, variable) = (block(&manager), Var::zeros(4, DType::F32, &manager).unwrap());
        let round = || {
            for _ in 0..200 {
                let loss = variable.sqr().unwrap().sum_all().unwrap();
                drop(loss.backward().unwrap());
                drop(block(&manager));
            }
        };
        let mut residents: Vec<Tensor> = (0..1000).map(|i| seed.get(i % 16).unwrap()).collect();
        let few = fastest(60, round);
        residents.extend((1000..100_000).map(|i| seed.get(i % 16).unwrap()));
        assert_as_fast(few, || fastest(60, round));
        gc::collect();
        assert_eq!(manager.array_count() - residents.len(), 2);
    });
}

#[test]
fn point02_a_step_of_a_closed_sub_manager_leaves_nothing_in_either_position() {
    // The expert's form, a manager a step, which needs no switch.
    both(|device| {
        let manager = base(device);
        let weight = manager.ones((8, 8), DType::F32).unwrap();
        let step = || {
            let scope = manager.new_sub_manager().unwrap();
            let x = scope.ones((4, 8), DType::F32).unwrap();
            let _y = x.matmul(&weight).unwrap().relu().unwrap().softmax(1).unwrap();
        };
        step();
        let before = (live_bytes(device), held(&manager));
        (0..100).for_each(|_| step());
        assert_eq!((live_bytes(device), held(&manager)), before);
    });
}
