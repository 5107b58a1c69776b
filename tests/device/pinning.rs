//! The bytes of a captured section stay with it, and come back.

use ndgc::{Device, Graph, SimConfig, Tensor, Violation, gc};

use crate::device::support::{alone, both, sim, values, vector};

/// A section with an array that goes on the way, and one that stays.
fn captured(x: &Tensor, device: &Device) -> (Graph, Tensor) {
    let section = || x.affine(2., 0.)?.affine(1., 1.);
    section().unwrap();
    device.capture(section).unwrap()
}

/// Invariant I11 (design.md).
#[test]
fn bytes_of_a_section_are_not_used_again_while_its_graph_lives() {
    both(|device| {
        let x = vector(&[1., 2.], device);
        let (graph, y) = captured(&x, device);
        gc::collect();
        let on_the_way = device.memory().captured;
        assert!(on_the_way > 0, "what went inside the section stays with it");
        drop(y);
        gc::collect();
        assert!(device.memory().captured > on_the_way, "and so does the result without a handle");
        let others: Vec<Tensor> = (0..50).map(|i| vector(&[i as f32; 2], device)).collect();
        graph.replay().unwrap();
        for (i, other) in others.iter().enumerate() {
            assert_eq!(values(other), [i as f32; 2]);
        }
        assert!(device.memory().captured > on_the_way);
        drop((graph, others, x));
    });
}

#[test]
fn pinned_bytes_come_back_with_the_drop_of_the_last_graph() {
    both(|device| {
        let x = vector(&[1., 2.], device);
        let (first, y) = captured(&x, device);
        let second = device.capture(|| y.affine_(3., 0.)).unwrap().0;
        first.replay().unwrap();
        second.replay().unwrap();
        assert_eq!(values(&y), [9., 15.]);
        drop((x, y));
        gc::collect();
        let pinned = device.memory().captured;
        drop(first);
        let left = device.memory().captured;
        assert!(0 < left && left < pinned, "the second has the result still");
        second.replay().unwrap();
        drop(second);
        let memory = device.memory();
        assert_eq!((memory.captured, memory.active), (0, 0));
        assert!(memory.cached >= pinned);
    });
}

#[test]
fn handles_outlive_the_graph_and_the_graph_the_handles() {
    both(|device| {
        let x = vector(&[1., 2.], device);
        let (graph, y) = captured(&x, device);
        graph.replay().unwrap();
        drop(graph);
        assert_eq!(device.memory().captured, 0, "what has handles is theirs");
        assert_eq!(values(&y), [3., 5.], "the last replay's values stay");
        assert_eq!(values(&y.neg().unwrap()), [-3., -5.]);
        drop(y);
        let (graph, y) = captured(&x, device);
        drop((x, y));
        gc::collect();
        assert_eq!(device.memory().active, 0);
        graph.replay().unwrap();
        device.synchronize().unwrap();
        drop(graph);
    });
}

#[test]
fn arrays_of_before_that_the_section_closes_stay_as_they_are() {
    both(|device| {
        let x = vector(&[1., 2.], device);
        drop([0; 3].map(|_| x.neg().unwrap()));
        let (graph, y) = device
            .capture(|| {
                let first = x.affine(2., 0.)?;
                x.close();
                // Were the bytes of the closed array used for this one, the next replay would read them.
                let second = first.affine(5., 1.)?;
                first.add(&second)
            })
            .unwrap();
        for _ in 0..3 {
            graph.replay().unwrap();
            assert_eq!(values(&y), [13., 25.]);
        }
    });
}

#[test]
fn the_checker_finds_bytes_of_a_graph_with_somebody_else() {
    alone(|| {
        for segment_bytes in [0, 1 << 20] {
            let device = Device::sim(SimConfig { segment_bytes, pin_graphs: false, ..SimConfig::default() });
            let x = vector(&[1., 2.], &device);
            let (graph, y) = captured(&x, &device);
            drop(y);
            gc::collect();
            let others: Vec<Tensor> = (0..4).map(|i| vector(&[i as f32; 2], &device)).collect();
            let found = sim(&device).violations();
            assert!(found.iter().any(|v| matches!(v, Violation::Shared { .. })), "{found:?}");
            graph.replay().unwrap();
            device.synchronize().unwrap();
            drop((graph, others));
        }
    });
}
