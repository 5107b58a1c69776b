//! What a captured section cannot hold is an error that names the line, and the device works afterwards.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use ndgc::nn::{self, Adam, Mlp, Module, Optimizer};
use ndgc::{DType, Device, Error, Generator, Result, SimConfig, Tensor};

use crate::device::support::{alone, both, finish, sim, values, vector};

/// The error of a section, as text; afterwards the device has to capture and run as ever.
fn refused<R>(device: &Device, section: impl FnOnce() -> Result<R>) -> String {
    let error = match device.capture(section) {
        Ok(_) => panic!("the section was captured"),
        Err(error) => error,
    };
    assert!(matches!(error, Error::Capture { .. }), "{error}");
    works(device);
    error.to_string()
}

fn works(device: &Device) {
    let x = vector(&[1., 2.], device);
    assert_eq!(values(&x.sqr().unwrap()), [1., 4.]);
    let (graph, y) = device.capture(|| x.sqr()).unwrap();
    graph.replay().unwrap();
    assert_eq!(values(&y), [1., 4.]);
}

/// Asserts that an error names the file and line, and says how to go on.
#[track_caller]
fn names(error: &str, line: u32, hint: &str) {
    assert!(error.contains(&format!("tests/device/refusals.rs:{line}:")), "line {line}: {error}");
    assert!(error.contains(hint) && error.starts_with("sim:"), "{error}");
}

#[test]
fn memory_that_has_to_be_asked_for() {
    both(|device| {
        let x = vector(&[1.; 300_000], device);
        let mut line = 0;
        let error = refused(device, || {
            line = line!() + 1;
            x.exp()
        });
        names(&error, line, "run the section once before capturing it");
        drop(x);
    });
}

#[test]
fn memory_in_a_backward_pass_and_in_an_optimizer_names_the_call_of_the_user() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let network = Mlp::new(&[30, 200, 10], &mut Generator::new(1), &device).unwrap();
        let x = Tensor::ones((4, 30), DType::F32, &device).unwrap();
        let forward = || nn::loss::mse(&network.forward(&x)?, &network.forward(&x)?);
        forward().unwrap();
        let mut line = 0;
        let error = refused(&device, || {
            let loss = forward()?;
            line = line!() + 1;
            loss.backward()
        });
        names(&error, line, "run the section once before");
        forward().unwrap().backward().unwrap();
        let mut adam = Adam::new(network.variables(), 0.1).unwrap();
        let error = refused(&device, || {
            let grads = forward()?.backward()?;
            line = line!() + 1;
            adam.step(&grads)
        });
        names(&error, line, "run the section once before");
        drop((network, x, adam));
        finish(&device);
    });
}

#[test]
fn reads_and_copies_from_the_host_and_waits() {
    both(|device| {
        let x = vector(&[1., 2.], device);
        let mut line = 0;
        let error = refused(device, || {
            line = line!() + 1;
            x.to_vec::<f32>()
        });
        names(&error, line, "read after a replay");
        let error = refused(device, || {
            line = line!() + 1;
            x.get(0)?.to_scalar::<f32>()
        });
        names(&error, line, "read after a replay");
        let error = refused(device, || {
            line = line!() + 1;
            x.to_device(&Device::Cpu)
        });
        names(&error, line, "read after a replay");
        drop(vector(&[0.; 2], device));
        let error = refused(device, || {
            line = line!() + 1;
            Tensor::new([1f32, 2.], device)
        });
        names(&error, line, "before the section");
        let error = refused(device, || {
            line = line!() + 1;
            device.synchronize()
        });
        names(&error, line, "read after a replay");
        drop(x);
    });
}

#[test]
fn other_streams_other_captures_and_replays() {
    both(|device| {
        let x = vector(&[1., 2.], device);
        let spare = [x.exp().unwrap(), x.exp().unwrap()];
        drop(spare);
        let mut line = 0;
        let error = refused(device, || {
            sim(device).on_stream(1, || {
                line = line!() + 1;
                x.exp()
            })
        });
        names(&error, line, "another stream");
        let error = refused(device, || {
            line = line!() + 1;
            device.capture(|| x.exp())
        });
        names(&error, line, "a capture");
        let (graph, _y) = device.capture(|| x.exp()).unwrap();
        let error = refused(device, || {
            line = line!() + 1;
            graph.replay()
        });
        names(&error, line, "a replay");
        drop((x, graph));
    });
}

#[test]
fn a_refusal_that_the_section_went_over_is_told_by_the_capture() {
    both(|device| {
        let x = vector(&[1., 2.], device);
        x.neg().unwrap();
        let mut line = 0;
        let error = refused(device, || {
            line = line!() + 1;
            let _ = x.to_vec::<f32>();
            let _ = device.synchronize();
            x.neg()
        });
        names(&error, line, "a read by the host");
        let error = refused(device, || {
            line = line!() + 1;
            x.to_vec::<f32>().map_err(|_| Error::msg("something of the section's own"))
        });
        names(&error, line, "a read by the host");
        drop(x);
    });
}

#[test]
fn errors_and_panics_of_the_section_end_the_capture() {
    both(|device| {
        let (x, y) = (vector(&[1., 2.], device), vector(&[1.; 3], device));
        x.neg().unwrap();
        let answer = device.capture(|| {
            let negated = x.neg()?;
            negated.add(&y)
        });
        assert!(matches!(answer, Err(Error::ShapeMismatch { .. })));
        works(device);
        let panicked = catch_unwind(AssertUnwindSafe(|| device.capture::<()>(|| panic!("{:?}", x.neg()))));
        assert!(panicked.is_err());
        works(device);
        assert_eq!(device.memory().captured, 0);
    });
}

#[test]
fn the_host_has_no_graphs() {
    let _turn = crate::common::turn();
    let line = line!() + 1;
    let error = Device::Cpu.capture(|| Ok(())).unwrap_err();
    assert!(matches!(error, Error::Capture { .. }));
    assert!(error.to_string().contains(&format!("refusals.rs:{line}:")) && error.to_string().contains("no graphs"));
}

#[test]
fn other_threads_may_free_and_nothing_else() {
    both(|device| {
        let x = vector(&[1., 2.], device);
        let gone = vector(&[3.; 40], device);
        x.neg().unwrap();
        let (to_them, orders) = mpsc::channel::<()>();
        let (to_us, answers) = mpsc::channel::<Vec<String>>();
        std::thread::scope(|scope| {
            let theirs = vector(&[5., 6.], device);
            scope.spawn(move || {
                orders.recv().unwrap();
                gone.close();
                let said = |answer: Result<()>| answer.map_or_else(|error| error.to_string(), |()| "nothing".into());
                let answers = vec![
                    said(theirs.neg().map(drop)),
                    said(theirs.to_vec::<f32>().map(drop)),
                    said(Tensor::new([1f32, 2.], device).map(drop)),
                    said(device.synchronize()),
                    said(device.capture(|| Ok(())).map(drop)),
                ];
                drop(theirs);
                assert_eq!(device.clear_cache(), 0, "nothing is given back meanwhile");
                to_us.send(answers).unwrap();
            });
            let (graph, y) = device
                .capture(|| {
                    to_them.send(()).unwrap();
                    for answer in answers.recv().unwrap() {
                        assert!(answer.contains("captured on another thread"), "{answer}");
                        assert!(answer.contains("tests/device/refusals.rs"), "{answer}");
                    }
                    x.neg()
                })
                .unwrap();
            graph.replay().unwrap();
            assert_eq!(values(&y), [-1., -2.]);
        });
        drop(x);
    });
}

#[test]
fn the_section_may_use_all_that_the_device_keeps() {
    alone(|| {
        let device = Device::sim(SimConfig { segment_bytes: 1 << 20, memory_bytes: 2 << 20, ..SimConfig::default() });
        let small = || Tensor::zeros(1 << 16, DType::F32, &device);
        let large = || Tensor::zeros((1 << 18) - 64, DType::F32, &device);
        // Small ones that are gone, and a large one on their bytes: nothing is left to ask for.
        let section = || {
            for _ in 0..3 {
                small()?.close();
            }
            large()
        };
        let kept = section().unwrap();
        section().unwrap();
        let (graph, y) = device.capture(section).unwrap();
        graph.replay().unwrap();
        assert_eq!(values(&y)[..3], [0.; 3]);
        assert_eq!(sim(&device).calls().allocations, 2);
        drop((kept, y, graph));
        finish(&device);
    });
}
