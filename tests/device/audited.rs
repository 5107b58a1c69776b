//! What a reader of the devices found: bytes that two sections use, segments of odd sizes, failures that nobody saw.

use ndgc::memory::{HostPool, Recording, ReplayPool, Segments};
use ndgc::{Device, Error, Graph, Result, SimConfig, Tensor, gc};

use crate::device::support::{alone, both, finish, values, vector};

/// Captures a section that doubles an array, and goes on with `rest` when that array, and another graph that reads it,
/// are gone.
fn captured<R>(device: &Device, rest: impl FnOnce(Tensor) -> Result<R>) -> Result<(Graph, R)> {
    let x = vector(&[1., 2.], device);
    let double = || x.affine(2., 0.);
    // Blocks for both sections.
    drop([0; 6].map(|_| double().unwrap()));
    gc::collect();
    let (first, _) = device.capture(double).unwrap();
    device.capture(|| {
        let y = double()?;
        x.close();
        drop(first);
        rest(y)
    })
}

#[test]
fn bytes_that_a_section_reads_stay_with_it_when_another_graph_that_has_them_goes() {
    // Broken by: giving the block to whoever asks next in the section, whose first replay would be right.
    both(|device| {
        let captured = captured(device, |y| {
            let z = y.affine(0., 7.)?;
            Ok((y, z))
        });
        let (graph, (y, z)) = captured.unwrap();
        for _ in 0..3 {
            graph.replay().unwrap();
            assert_eq!((values(&y), values(&z)), (vec![2., 4.], vec![7., 7.]));
        }
    });
}

#[test]
fn a_section_that_was_refused_lets_go_of_what_another_graph_had_too() {
    both(|device| {
        assert!(captured(device, |y| y.to_vec::<f32>()).is_err());
    });
}

#[test]
fn segments_of_any_size_are_divided() {
    // Broken by: a rest that is smaller than what blocks are multiples of, and so has no class.
    alone(|| {
        for segment_bytes in [1, 300, 1000, 5000, usize::MAX] {
            let device = Device::sim(SimConfig { segment_bytes, ..SimConfig::default() });
            let arrays: Vec<Tensor> = (1..40usize).map(|n| Tensor::full(n as f32, 10 * n, &device).unwrap()).collect();
            for (n, array) in (1..).zip(&arrays) {
                assert_eq!(values(array), vec![n as f32; 10 * n]);
            }
            drop(arrays);
            finish(&device);
        }
        let replayed = |text: &str, pool| Recording::read(text.as_bytes()).unwrap().replay(pool, 2).requests;
        for range_bytes in [1, 100_000, usize::MAX] {
            let pool = HostPool { range_bytes, ..HostPool::default() };
            assert!(replayed("+ 1 98304\n+ 2 50000\n- 1\n- 2\n", ReplayPool::Host(pool)) > 0);
        }
        for bytes in [1, 300, 5000] {
            assert!(replayed("+ 1 100\n+ 2 1000\n- 1\n- 2\n", ReplayPool::Device(Segments::Of(bytes), 1 << 30)) > 0);
        }
    });
}

#[test]
fn a_copy_that_is_let_go_leaves_failures_to_who_asks_next() {
    // Broken by: a wait whose answer nobody sees, which takes the failure with it.
    both(|device| {
        let x = vector(&[1., 2.], device);
        let far = Tensor::new([9u32], device).unwrap();
        let y = x.index_select(&far, 0).unwrap();
        drop(x.unsafe_duplication_async().unwrap());
        let read = y.to_vec::<f32>();
        assert!(matches!(read, Err(Error::IndexOutOfRange { index: 9, .. })), "{read:?}");
    });
}
