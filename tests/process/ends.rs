//! The end of a process, a hundred times in each way: with arrays in statics and thread-locals while other threads
//! work, inside what the library calls of the program's, and after a fork whose child drops what it inherited. Each of
//! them ends by itself and with status 0.

use std::any::Any;
use std::cell::RefCell;
use std::process::exit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use ndgc::memory::{self, Trim};
use ndgc::nn::Prefetch;
use ndgc::train::{
    ArrayDataSetIterator, Communicator, DataSet, InputType, Loss, NetworkConfig, OutputLayer, ParallelInference,
    ParallelWrapper, ThreadCommunicator,
};
use ndgc::{
    Budget, CpuStorage, CustomOp1, DType, Device, Error, Layout, MemoryStats, NdManager, ResetPolicy, Result, Shape,
    SimConfig, Tensor, Var, Workspace, WorkspaceConfig, WorkspaceCycle, gc, no_grad,
};

use super::{PART, succeeds, unix::in_child};

const RUNS: usize = 100;
/// A process that takes so many seconds waits for something that does not come, and is ended with another status.
const SECONDS_MAX: u32 = 60;

/// Runs a part a hundred times, two at a time, each in a process of its own.
fn a_hundred_times(part: &str) {
    let next = AtomicUsize::new(0);
    let some = || {
        loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if run >= RUNS {
                break;
            }
            let part = format!("{part} {run}");
            let err = succeeds(&part, &[("NDGC", if run & 1 == 0 { "on" } else { "off" })]);
            assert!(err.contains(&format!("{part} ends here")), "{err}");
        }
    };
    thread::scope(|scope| {
        scope.spawn(some);
        scope.spawn(some);
    });
}

#[test]
fn a_process_ends_with_live_statics_and_thread_locals() {
    a_hundred_times("values");
}

#[test]
fn a_process_ends_inside_a_callback() {
    a_hundred_times("callback");
}

#[test]
fn a_forked_child_drops_what_it_inherited() {
    a_hundred_times("inherited");
}

/// What one of the tests above runs in a process of its own.
pub(super) fn play(part: &str) -> bool {
    let Some((kind, run)) = part.split_once(' ') else { return false };
    let run: usize = run.parse().unwrap();
    end_in_time();
    // The position of the switch goes with the lowest bit.
    let device = if run & 2 == 0 { Device::Cpu } else { Device::sim(SimConfig::default()) };
    match kind {
        "values" => end_with_values(run, &device),
        "callback" => end_in_callback(run / 2, &device),
        "inherited" => drop_in_child(run, &device),
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

fn say_end() {
    eprintln!("{} ends here", std::env::var(PART).unwrap());
}

/// Ends the process where it is called.
fn end<R>() -> R {
    say_end();
    exit(0)
}

/// What a program may have at its end. Its drop uses the library, which may refuse: in the middle of something, and in
/// a forked child.
struct Left {
    manager: NdManager,
    array: Tensor,
    _others: Vec<Box<dyn Any + Send>>,
}

impl Left {
    fn new(device: &Device) -> Self {
        let _out = Workspace::scope_out();
        let manager = NdManager::new_base_manager(device).unwrap();
        manager.set_budget(Budget::new().max_bytes(1 << 20)).unwrap();
        let array = manager.ones((2, 2), DType::F32).unwrap();
        array.set_name("left").unwrap();
        let w = Var::ones((2, 2), DType::F32, device).unwrap();
        let loss = array.matmul(&w).unwrap().sqr().unwrap().sum_all().unwrap();
        let grads = loss.backward().unwrap();
        let child = manager.new_sub_manager().unwrap();
        let lent = child.zeros(3, DType::F32).unwrap();
        lent.temp_attach(&manager).unwrap();
        // Queued, or kept.
        drop(manager.zeros(5, DType::F32).unwrap());
        let large = Tensor::zeros(1 << 18, DType::U8, device).unwrap();
        let shared = Tensor::from_shared(Arc::new([7u8; 64]), 0..64, DType::U8, 64, device).unwrap();
        let room = manager.reserve(1000).unwrap();
        let reclaimer = memory::on_pressure("left", 0, |_| ());
        let _others: [Box<dyn Any + Send>; 5] = [
            Box::new((w, loss, grads)),
            Box::new((child, lent)),
            Box::new((large, shared)),
            Box::new(room),
            Box::new(reclaimer),
        ];
        Left { manager, array, _others: _others.into() }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = self.array.add(&self.array);
        let _ = self.manager.zeros(3, DType::F32);
        self.array.close();
        let _ = self.manager.close();
        gc::collect();
    }
}

fn ring() -> WorkspaceConfig {
    let ring = WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached);
    ring.overallocation_limit(4.).build().unwrap()
}

/// What has threads of the library's.
fn with_threads(device: &Device) -> [Box<dyn Any + Send>; 3] {
    let own = device.clone();
    let batches = Prefetch::new_on(device, &ring(), 2, move |_| Tensor::ones(8, DType::F32, &own).map(Some));
    let inference = ParallelInference::builder(|x: &Tensor| x.affine(2., 0.)).workers(2).build().unwrap();
    let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(inference.output(&x).unwrap().dims(), [1, 2]);
    [Box::new(batches.unwrap()), Box::new(inference), Box::new(memory::watch(device))]
}

thread_local! {
    static EARLY: RefCell<Option<Left>> = const { RefCell::new(None) };
    static LATE: RefCell<Option<Left>> = const { RefCell::new(None) };
    static CYCLE: RefCell<Option<WorkspaceCycle>> = const { RefCell::new(None) };
}

static KEPT: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// Fills the thread-locals of this thread, of which some were registered before the library's own.
fn leave_here(device: &Device) {
    EARLY.with_borrow_mut(|place| assert!(place.is_none()));
    CYCLE.with_borrow_mut(|place| assert!(place.is_none()));
    EARLY.set(Some(Left::new(device)));
    LATE.set(Some(Left::new(device)));
    CYCLE.set(Some(Workspace::enter_on(device, "LEFT", &WorkspaceConfig::default()).unwrap()));
    drop(Tensor::ones(8, DType::F32, device).unwrap());
}

fn take_back_here() {
    drop((CYCLE.take(), EARLY.take(), LATE.take()));
}

/// Threads that never end by themselves: they make, compute and close, and have thread-locals too.
fn start_workers(count: usize, device: &Device) {
    let (told, ready) = mpsc::channel();
    for _ in 0..count {
        let (device, told) = (device.clone(), told.clone());
        thread::spawn(move || {
            leave_here(&device);
            let manager = NdManager::new_base_manager(&device).unwrap();
            for turn in 0u32.. {
                let child = manager.new_sub_manager().unwrap();
                let cycle = Workspace::enter_on(&device, "WORK", &WorkspaceConfig::default()).unwrap();
                let x = child.ones((8, 8), DType::F32).unwrap();
                drop(x.matmul(&x).unwrap());
                drop(cycle);
                drop(Left::new(&device));
                gc::collect();
                child.close().unwrap();
                if turn == 1 {
                    told.send(()).unwrap();
                }
                memory::trim(&device, Trim::Cache);
            }
        });
    }
    (0..count).for_each(|_| ready.recv().unwrap());
}

extern "C" fn drop_kept() {
    drop(std::mem::take(&mut *KEPT.lock().unwrap()));
    gc::collect();
}

/// Has the statics dropped after `main`.
fn drop_kept_at_end() {
    // SAFETY: the handler takes no arguments and touches nothing that ended with `main`.
    let registered = unsafe { libc::atexit(drop_kept) };
    assert_eq!(registered, 0);
}

fn end_with_values(run: usize, device: &Device) {
    let ways = run / 4;
    // Registered before anything that the library registers, or after it.
    if ways % 4 == 1 {
        drop_kept_at_end();
    }
    leave_here(device);
    KEPT.lock().unwrap().push(Box::new(Left::new(device)));
    KEPT.lock().unwrap().extend(with_threads(device));
    if ways % 4 == 2 {
        drop_kept_at_end();
    }
    if ways % 4 == 3 {
        gc::toggle_periodic_gc(true);
        gc::set_auto_gc_window(1);
    }
    start_workers(ways % 2 * 2, device);
    match ways % 3 {
        0 => end(),
        1 => say_end(),
        _ => {
            thread::spawn(end::<()>);
            loop {
                thread::park();
            }
        }
    }
}

/// Ends the process when it is dropped.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        end()
    }
}

impl AsRef<[u8]> for Ends {
    fn as_ref(&self) -> &[u8] {
        &[1; 64]
    }
}

/// Ends the process as the function of an operation, or of its gradient.
struct EndsAsOperation {
    in_backward: bool,
}

impl CustomOp1 for EndsAsOperation {
    fn name(&self) -> &'static str {
        "ends"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        if !self.in_backward {
            end::<()>();
        }
        Ok((CpuStorage::F32(vec![1.]), Shape::from(1)))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        end()
    }
}

thread_local! {
    static ENDS: RefCell<Option<(Left, Ends)>> = const { RefCell::new(None) };
}

fn too_much(device: &Device) -> Result<Tensor> {
    Tensor::zeros(1 << 24, DType::U8, device)
}

/// An array whose bytes end the process when they are let go.
fn last_array(manager: &NdManager) -> Tensor {
    Tensor::from_shared(Arc::new(Ends), 0..64, DType::U8, 64, manager).unwrap()
}

fn host() -> NdManager {
    NdManager::new_base_manager(&Device::Cpu).unwrap()
}

/// Where the library calls the program. An odd number of them, so that each meets every device and both positions of
/// the switch.
const CALLBACKS: [fn(&Device); 17] = [
    |device| {
        let _reclaimer = memory::on_pressure("ends", -1, |_| end());
        // What is there leaves no room for it, without which it would have some.
        device.set_limit(Some(device.memory().active + 1000));
        let _ = Tensor::zeros(1001, DType::U8, device);
    },
    |device| {
        let _reclaimer = memory::on_pressure("ends", -1, |_| end());
        let manager = NdManager::new_base_manager(device).unwrap();
        manager.set_budget(Budget::new().soft_bytes(10)).unwrap();
        let _ = manager.zeros(11, DType::U8);
    },
    |device| {
        let _reclaimer = memory::on_pressure("ends", 9, |_| end());
        let manager = NdManager::new_base_manager(device).unwrap();
        manager.set_budget(Budget::new().max_bytes(10)).unwrap();
        let _ = manager.zeros(11, DType::U8);
    },
    |device| {
        device.set_limit(Some(device.memory().active + 1000));
        let _ = memory::with_oom_split(4, |rows| if rows.len() < 4 { end() } else { too_much(device) });
    },
    |_| drop(host().zeros(3, DType::F32).unwrap().with_slice(|_: &[f32]| end::<()>())),
    |_| drop(host().ones(1, DType::F32).unwrap().apply_op1_no_bwd(&EndsAsOperation { in_backward: false })),
    |_| {
        let x = Var::ones(1, DType::F32, &Device::Cpu).unwrap();
        let y = x.apply_op1(EndsAsOperation { in_backward: true }).unwrap();
        let _ = y.sum_all().unwrap().backward();
    },
    |_| {
        let _on = gc::scoped(true);
        let manager = host();
        drop(last_array(&manager));
        let _ = manager.zeros(3, DType::F32);
    },
    |_| {
        let manager = host();
        drop(last_array(&manager));
        drop(manager.close());
    },
    |_| last_array(&host()).close(),
    |_| no_grad(end::<()>),
    |device| memory::scope("ends", device, end::<()>),
    |device| {
        let config = WorkspaceConfig::builder().initial_size(1 << 12).build().unwrap();
        let _: Result<()> = Workspace::cycle_on(device, "ENDS", &config, || {
            let _x = Tensor::ones(8, DType::F32, device)?;
            end()
        });
    },
    |_| {
        let device = Device::sim(SimConfig::default());
        let x = Tensor::ones(8, DType::F32, &device).unwrap();
        let capture = |ends: bool| {
            drop(device.capture(|| {
                x.affine_(2., 0.)?;
                if ends { end() } else { Ok(()) }
            }))
        };
        capture(false);
        capture(true);
    },
    |device| {
        let batches = Prefetch::<Tensor>::new_on(device, &ring(), 2, |_| end()).unwrap();
        batches.for_each(drop);
    },
    |_| {
        let model = |_: &Tensor| -> Result<Tensor> { end() };
        let inference = ParallelInference::builder(model).workers(2).build().unwrap();
        let _ = inference.output(&Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap());
    },
    |device| {
        let left = Left::new(device);
        let _ = thread::spawn(move || ENDS.set(Some((left, Ends)))).join();
    },
];

fn end_in_callback(run: usize, device: &Device) {
    leave_here(device);
    CYCLE.take();
    KEPT.lock().unwrap().push(Box::new(Left::new(device)));
    drop_kept_at_end();
    // On the device that no callback sets a limit of.
    start_workers(1, &if device.is_cpu() { Device::sim(SimConfig::default()) } else { Device::Cpu });
    CALLBACKS[run % CALLBACKS.len()](device);
    // Another thread took in what was dropped, and is ending the process.
    loop {
        thread::park();
    }
}

/// Replicas that train on threads, and two that belong together, of which one waits for the other.
fn at_training() -> [Box<dyn Any + Send>; 2] {
    let config = NetworkConfig::builder().input_type(InputType::feed_forward(2));
    let net = config.layer(OutputLayer::new(1, Loss::Mse)).build().unwrap();
    let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu).unwrap();
    let batches = DataSet::new(x.clone(), x.narrow(1, 0, 1).unwrap()).unwrap();
    let mut wrapper = ParallelWrapper::builder(net).workers(2).build().unwrap();
    wrapper.fit(ArrayDataSetIterator::new(batches, 2).unwrap()).unwrap();
    let [first, mut second] = ThreadCommunicator::group(2).unwrap().try_into().unwrap();
    thread::spawn(move || second.all_reduce(&[x], 1.));
    [Box::new(wrapper), Box::new(first)]
}

/// What says something of the process, or sets it, has nothing to say and nothing to wait for in a child.
fn ask_everything(device: &Device, (manager, array): (&NdManager, &Tensor)) {
    assert_eq!(device.memory(), MemoryStats::default());
    device.reset_peak();
    assert_eq!(device.set_limit(Some(1)), None);
    assert!(device.synchronize().is_err());
    assert_eq!(gc::stats().created, 0);
    assert!(memory::mark().diff().is_empty() && memory::scopes().is_empty());
    memory::scope("child", device, || ());
    memory::clear_scopes();
    memory::clear_trace();
    assert!(!gc::is_periodic_gc_active());
    assert_eq!(memory::stats(device).get("bytes.current"), Some(0));
    drop(memory::on_pressure("child", 0, |_| ()));
    drop(memory::timeline());
    assert!(manager.budget_use().is_none() && manager.budget() == Budget::new() && !manager.can_fit(1));
    assert_eq!((manager.array_count(), manager.bytes_used(), manager.is_capped()), (0, 0, false));
    assert!(manager.report().arrays.is_empty() && manager.leak_report().is_empty());
    assert!(!manager.to_string().is_empty() && !manager.debug_dump().is_empty());
    assert!(!memory::crash_report(device).is_empty());
    let is_forked = |result: ndgc::Result<()>| matches!(result, Err(Error::Forked { .. }));
    assert!(is_forked(manager.set_budget(Budget::new()).map(drop)) && is_forked(manager.reserve(1).map(drop)));
    assert!(is_forked(manager.cap()) && is_forked(manager.parent().map(drop)));
    assert!(is_forked(array.manager().map(drop)));
}

/// The child is forked while other threads have whatever locks they have.
fn drop_in_child(run: usize, device: &Device) {
    leave_here(device);
    let left = Left::new(device);
    KEPT.lock().unwrap().extend(with_threads(device));
    KEPT.lock().unwrap().extend(at_training());
    drop_kept_at_end();
    start_workers(run / 8 % 3, device);
    let numbers = (0..8).map(|_| Prefetch::new_on(device, &ring(), 1, |number| Ok(Some(number))).unwrap());
    let mut numbers: Vec<_> = numbers.collect();
    // There are places for the next ones: some of their threads have a lock of their channel.
    for _ in 0..20 {
        numbers.iter_mut().for_each(|numbers| drop(numbers.next()));
    }
    KEPT.lock().unwrap().push(Box::new(numbers));
    let manager = NdManager::new_base_manager(device).unwrap();
    manager.set_budget(Budget::new().max_bytes(1 << 20)).unwrap();
    let array = manager.zeros(4, DType::F32).unwrap();
    in_child(|| {
        end_in_time();
        ask_everything(device, (&manager, &array));
        // In the one half of the runs what is left is dropped here, in the other by the end of the process.
        if run & 4 == 0 {
            take_back_here();
            drop_kept();
        }
        drop(left);
    });
    take_back_here();
    say_end();
}
