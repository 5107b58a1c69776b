//! The texts of errors of devices, each to the word.

use std::thread;

use ndgc::{DType, Device, Error, Result, Tensor, gc};

use crate::common::text_of;
use crate::device::support::{both, sim, vector};

/// What is tried in a section.
type Section<'a> = &'a dyn Fn() -> Result<()>;

/// What is told of something that a section cannot hold, without its device and the line of these tests.
#[track_caller]
fn what<R>(device: &Device, answer: Result<R>) -> String {
    let Err(error) = answer else { panic!("nothing was refused") };
    let (text, site) = (text_of(&error), error.site().expect("a line of these tests"));
    text.strip_prefix(&format!("{device}: at {site}: ")).unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn what_a_section_cannot_hold_is_told_with_what_to_do_instead() {
    both(|device| {
        let (x, large) = (vector(&[1., 2.], device), Tensor::zeros(1 << 18, DType::F32, device).unwrap());
        drop([x.exp().unwrap(), x.exp().unwrap(), vector(&[0.; 2], device)]);
        gc::collect();
        let (graph, y) = device.capture(|| x.exp()).unwrap();
        let cases: [(Section<'_>, &str); 7] = [
            (
                &|| large.exp().map(drop),
                "asking the driver for 1048576 bytes cannot be part of a captured section; run the section once before \
                 capturing it, and again if that run made things that stay",
            ),
            (
                &|| Tensor::new([1f32, 2.], device).map(drop),
                "a copy of numbers from the host cannot be part of a captured section; do it before the section",
            ),
            (
                &|| x.to_vec::<f32>().map(drop),
                "a read by the host cannot be part of a captured section; read after a replay",
            ),
            (
                &|| device.synchronize(),
                "a wait for the device cannot be part of a captured section; read after a replay",
            ),
            (
                &|| sim(device).on_stream(1, || x.exp()).map(drop),
                "work on another stream cannot be part of a captured section; keep to one stream",
            ),
            (
                &|| device.capture(|| x.exp()).map(drop),
                "a capture cannot be part of a captured section; end the first one before",
            ),
            (&|| graph.replay(), "a replay cannot be part of a captured section; do it before the section"),
        ];
        for (section, told) in cases {
            assert_eq!(what(device, device.capture(section)), told);
        }
        drop((x, large, y, graph));
    });
}

#[test]
fn what_waits_for_a_section_of_another_thread_says_so() {
    both(|device| {
        let x = vector(&[1., 2.], device);
        drop(x.neg().unwrap());
        gc::collect();
        let asked = || {
            [
                ("memory for an array", what(device, x.neg())),
                ("a read by the host", what(device, x.to_vec::<f32>())),
                ("a wait for the device", what(device, device.synchronize())),
                ("a capture", what(device, device.capture(|| Ok(())))),
            ]
        };
        let section = || {
            for (this, told) in thread::scope(|scope| scope.spawn(asked).join().unwrap()) {
                let wanted = "has to wait: the device is being captured on another thread; let that end";
                assert_eq!(told, format!("{this} {wanted}"));
            }
            x.neg()
        };
        drop(device.capture(section).unwrap());
        drop(x);
    });
}

#[test]
fn devices_that_are_not_there_say_what_is() {
    let _turn = crate::common::turn();
    let told = "the host has no graphs: a capture needs a device whose work is submitted";
    assert_eq!(what(&Device::Cpu, Device::Cpu.capture(|| Ok(()))), told);
    let told = "Device::from_str: name is gpu; it must be cpu, sim, cuda, cuda:<number> or best";
    assert_eq!("gpu".parse::<Device>().unwrap_err().to_string(), told);
    let told = "metal:0 is not available: ndgc computes on the host and on CUDA devices";
    assert_eq!(text_of(&Device::new_metal(0).unwrap_err()), told);
    #[cfg(not(feature = "cuda"))]
    assert_eq!(text_of(&Device::new_cuda(3).unwrap_err()), "cuda:3 is not available: this build has no feature `cuda`");
}

#[test]
fn a_call_that_was_made_to_fail_says_so() {
    both(|device| {
        let x = vector(&[1., 2.], device);
        device.synchronize().unwrap();
        sim(device).fail_call(Some(1));
        let error = x.exp().unwrap_err();
        sim(device).fail_call(None);
        let Error::Device { call, .. } = &error else { panic!("{error}") };
        assert_eq!(text_of(&error), format!("{device}: {call} failed: made to fail on request"));
        drop(x);
    });
}
