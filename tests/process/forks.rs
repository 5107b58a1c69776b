//! What a forked child has of its parent's is given up without a lock: another thread may have had it when the child
//! was forked, and has it for ever there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use ndgc::train::{
    ArrayDataSetIterator, Communicator, DataSet, EarlyStopping, InputType, Loss, NetworkConfig, OutputLayer,
    ParallelWrapper,
};
use ndgc::{DType, Device, Error, Result, SimConfig, Tensor, Workspace, WorkspaceConfig, gc, memory};

use super::{succeeds, unix::in_child};

const PART: &str = "locked";
const DEVICES: &str = "devices";
const TRAINING: &str = "training";
/// As many as meet each lock in somebody's hands.
const CHILDREN: usize = 60;
/// Who takes so many seconds waits for something that does not come.
const SECONDS_MAX: u32 = 60;

#[test]
fn a_forked_child_waits_for_no_lock_of_graphs_exports_and_default_workspaces() {
    succeeds(PART, &[]);
}

#[test]
fn a_forked_child_waits_for_no_lock_of_devices() {
    succeeds(DEVICES, &[]);
}

#[test]
fn a_forked_child_tells_the_ranks_beside_its_parent_nothing() {
    succeeds(TRAINING, &[]);
}

/// What the tests above run in a process of their own.
pub(super) fn play(part: &str) -> bool {
    match part {
        PART => fork_while_locks_are_held(),
        DEVICES => fork_while_devices_are_asked(),
        TRAINING => fork_beside_a_training(),
        _ => return false,
    }
    true
}

fn end_in_time() {
    // SAFETY: sets a timer, whose signal ends the process.
    unsafe {
        libc::alarm(SECONDS_MAX);
    }
}

fn fork_while_locks_are_held() {
    end_in_time();
    let device = Device::sim(SimConfig::default());
    let x = Tensor::new([1f32, 2.], &device).unwrap();
    drop([0; 4].map(|_| x.sqr().unwrap()));
    gc::collect();
    let (graph, _y) = device.capture(|| x.sqr()).unwrap();
    let large = Tensor::zeros(1 << 20, DType::U8, &Device::Cpu).unwrap();
    let pack = large.to_dlpack().unwrap();
    // The bytes are the pack's alone.
    large.close();
    let (mut graph, mut pack) = (Some(graph), Some(pack));
    let done = AtomicBool::new(false);
    let again = |f: &dyn Fn()| {
        while !done.load(Ordering::Relaxed) {
            f();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| again(&|| assert!(device.memory().peak > 0)));
        scope.spawn(|| again(&|| assert!(Device::Cpu.memory().peak > 0)));
        scope.spawn(|| again(&|| Workspace::set_default_configuration(WorkspaceConfig::default())));
        for _ in 0..CHILDREN {
            // For each child anew: all together may take longer.
            end_in_time();
            in_child(|| {
                // That of the parent is not the child's.
                end_in_time();
                let (graph, pack) = (graph.take().unwrap(), pack.take().unwrap());
                assert!(matches!(graph.replay(), Err(Error::Forked { .. })));
                drop((graph, pack));
                Workspace::set_default_configuration(WorkspaceConfig::default());
                assert!(matches!(Workspace::default_for_current_thread(), Err(Error::Forked { .. })));
            });
        }
        done.store(true, Ordering::Relaxed);
    });
}

fn fork_while_devices_are_asked() {
    end_in_time();
    let device = Device::sim(SimConfig::default());
    let Device::Sim(sim) = &device else { panic!("it is simulated") };
    drop(Tensor::new([1f32, 2.], &device).unwrap().sqr().unwrap());
    gc::collect();
    let done = AtomicBool::new(false);
    let again = |f: &dyn Fn()| {
        while !done.load(Ordering::Relaxed) {
            f();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| again(&|| assert!(sim.calls().allocations > 0)));
        scope.spawn(|| again(&|| assert!(sim.stats().peak > 0)));
        scope.spawn(|| again(&|| drop(memory::set_spill(None).unwrap())));
        for _ in 0..CHILDREN {
            // For each child anew: all together may take longer.
            end_in_time();
            in_child(|| {
                // That of the parent is not the child's.
                end_in_time();
                assert!(matches!(sim.synchronize(), Err(Error::Forked { .. })));
                assert_eq!((sim.calls().allocations, sim.pending(), sim.violations().len()), (0, 0, 0));
                assert_eq!((sim.stats().peak, sim.trim(), sim.set_limit(Some(1))), (0, 0, None));
                sim.reset_peak();
                sim.fail_call(Some(1));
                assert!(matches!(memory::set_spill(None), Err(Error::Forked { .. })));
                #[cfg(feature = "cuda")]
                {
                    assert!(matches!(Device::cuda(0), Err(Error::Forked { .. })));
                    assert!(matches!(Device::cuda_if_available(0), Err(Error::Forked { .. })));
                    assert!(matches!(ndgc::probe_cuda(), Err(Error::Forked { .. })));
                    assert!(matches!(ndgc::NcclId::new(), Err(Error::Forked { .. })));
                }
            });
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A rank that is alone, and counts how often the others are told to go no further.
struct Told(Arc<AtomicUsize>);

impl Communicator for Told {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_reduce(&mut self, _arrays: &[Tensor], _scale: f64) -> Result<()> {
        Ok(())
    }

    fn abort(&mut self, _why: &str) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the parent's communicator is joined to is the parent's: a library of its own, and connections.
fn fork_beside_a_training() {
    end_in_time();
    let told = Arc::new(AtomicUsize::new(0));
    let config = NetworkConfig::builder().input_type(InputType::feed_forward(2));
    let net = config.layer(OutputLayer::new(1, Loss::Mse)).build().unwrap();
    let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu).unwrap();
    let all = DataSet::new(x.clone(), x.narrow(1, 0, 1).unwrap()).unwrap();
    let mut batches = ArrayDataSetIterator::new(all, 2).unwrap();
    let wrapper = ParallelWrapper::builder(net).communicator(Box::new(Told(Arc::clone(&told))));
    let mut wrapper = wrapper.build().unwrap();
    let stopping = EarlyStopping::max_epochs(1);
    stopping.fit(&mut wrapper, &mut batches, |_| Ok(1.)).unwrap();
    in_child(|| {
        end_in_time();
        let ended = stopping.fit(&mut wrapper, &mut batches, |_| Ok(1.));
        assert!(matches!(ended, Err(Error::Forked { .. })), "{ended:?}");
        assert!(matches!(wrapper.fit(&mut batches), Err(Error::Forked { .. })));
        assert_eq!(told.load(Ordering::Relaxed), 0);
    });
}
