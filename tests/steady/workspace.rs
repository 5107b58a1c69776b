//! A settled training step in a workspace asks nobody for anything: no heap, no system call, no fresh page. Its arrays
//! have the addresses of the step before, so that the same work could be replayed.
//!
//! The products of these models are small: the crate that computes larger ones takes room of its own from the heap,
//! twice in each call, which no workspace sees.
//!
//! The heap is counted by a counting allocator, pages by the system, and system calls by the kernel itself, which sends
//! the thread a signal instead of making one (Linux on x86-64; elsewhere they are not looked at).

#![allow(unsafe_code)]

use ndgc::nn::{self, Module, Optimizer, RNN, VarBuilder, VarMap, loss};
use ndgc::{DType, Device, Result, SimConfig, Tensor, Workspace, WorkspaceConfig, gc};

use crate::{alone, counting};

/// Steps until every stock is filled, the workspace has learned, and idle lanes were looked at.
const WARM_UP: usize = 50;
const STEPS: usize = 20;

/// A model: its variables, and the loss of a pass over the data.
type Model = (VarMap, Box<dyn Fn(&Data) -> Result<Tensor>>);

/// What the steps learn from, outside of the workspace: a batch is copied into it each time.
struct Data {
    device: Device,
    input: Vec<f32>,
    labels: Vec<u32>,
}

impl Data {
    fn new(device: &Device) -> Self {
        let input = (0..4 * 2 * 4 * 4).map(|i| ((i * 37 + 11) % 101) as f32 / 50. - 1.).collect();
        Data { device: device.clone(), input, labels: vec![0, 2, 1, 0] }
    }

    fn input(&self, dims: &[usize]) -> Result<Tensor> {
        Tensor::from_slice(&self.input[..dims.iter().product()], dims, &self.device)
    }

    fn labels(&self) -> Result<Tensor> {
        Tensor::from_slice(&self.labels, self.labels.len(), &self.device)
    }
}

fn weights(device: &Device) -> (VarMap, VarBuilder<'static>) {
    let map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, DType::F32, device);
    (map, builder)
}

fn mlp(device: &Device) -> Model {
    let (map, vb) = weights(device);
    let (first, second) = (nn::linear(12, 8, vb.pp("first")).unwrap(), nn::linear(8, 3, vb.pp("second")).unwrap());
    let pass = move |data: &Data| {
        let x = first.forward(&data.input(&[4, 12])?)?.relu()?;
        loss::cross_entropy(&second.forward(&x)?, &data.labels()?)
    };
    (map, Box::new(pass))
}

fn convolution(device: &Device) -> Model {
    let (map, vb) = weights(device);
    let same = nn::Conv2dConfig { padding: 1, ..Default::default() };
    let conv = nn::conv2d(2, 3, 3, same, vb.pp("conv")).unwrap();
    let dense = nn::linear(3 * 4, 3, vb.pp("dense")).unwrap();
    let pass = move |data: &Data| {
        let seen = conv.forward(&data.input(&[4, 2, 4, 4])?)?.relu()?.max_pool2d(2)?;
        loss::cross_entropy(&dense.forward(&seen.flatten_from(1)?)?, &data.labels()?)
    };
    (map, Box::new(pass))
}

fn lstm(device: &Device) -> Model {
    let (map, vb) = weights(device);
    let lstm = nn::lstm(4, 5, Default::default(), vb.pp("lstm")).unwrap();
    let dense = nn::linear(5, 3, vb.pp("dense")).unwrap();
    let pass = move |data: &Data| {
        let x = data.input(&[8, 4, 4])?;
        let mut state = lstm.zero_state(4)?;
        for time in 0..8 {
            state = lstm.step(&x.get(time)?, &state)?;
        }
        loss::cross_entropy(&dense.forward(state.h())?, &data.labels()?)
    };
    (map, Box::new(pass))
}

type Make = fn(&Device) -> Model;

const MODELS: [(&str, Make); 3] = [("mlp", mlp), ("convolution", convolution), ("lstm", lstm)];

/// Bytes of the device's live arrays and blocks at five points of a step.
type Points = [u64; 5];

/// A training step in one cycle of a workspace. The loss that leaves is a number.
fn step(name: &str, pass: &dyn Fn(&Data) -> Result<Tensor>, data: &Data, optimiser: &mut dyn Optimizer) -> Points {
    let active = || data.device.memory().active;
    let mut points = [active(), 0, 0, 0, 0];
    let cycle = Workspace::enter_on(&data.device, name, &WorkspaceConfig::default()).unwrap();
    points[1] = active();
    let loss = pass(data).unwrap();
    points[2] = active();
    optimiser.backward_step(&loss).unwrap();
    points[3] = active();
    drop(loss);
    cycle.leave();
    points[4] = active();
    points
}

/// Minor faults of this thread so far.
#[cfg(target_os = "linux")]
fn faults() -> i64 {
    // SAFETY: writes a `rusage` that is ours; all zeros is one.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_minflt
    }
}

#[cfg(not(target_os = "linux"))]
fn faults() -> i64 {
    0
}

#[test]
fn a_settled_step_asks_for_nothing_and_has_the_same_bytes_at_each_point() {
    alone(|| {
        for (name, make) in MODELS {
            for on in [false, true] {
                let _switch = gc::scoped(on);
                let data = Data::new(&Device::Cpu);
                let (map, pass) = make(&Device::Cpu);
                let mut adam = nn::Adam::new(map.all_vars(), 0.01).unwrap();
                let points: Vec<Points> = (0..WARM_UP).map(|_| step(name, &pass, &data, &mut adam)).collect();
                let settled = points[WARM_UP - 1];
                let workspace = Workspace::find(name).unwrap();
                let (before, requests, pages) = (workspace.stats(), counting::requests(), faults());
                let mut other = None;
                for _ in 0..STEPS {
                    let now = step(name, &pass, &data, &mut adam);
                    if now != settled {
                        other = Some(now);
                    }
                }
                let (requests, mut pages) = (counting::requests() - requests, faults() - pages);
                let after = workspace.stats();
                // Where others need memory the system may take pages of code, and give them again. A step that wants
                // fresh ones does so each time.
                for _ in 0..4 {
                    if pages > 0 {
                        let before = faults();
                        (0..STEPS).for_each(|_| _ = step(name, &pass, &data, &mut adam));
                        pages = faults() - before;
                    }
                }
                assert_eq!(other, None, "{name}, switch {on}: other bytes than {settled:?}");
                assert_eq!(requests, 0, "{name}, switch {on}: requests to the heap in {STEPS} steps");
                assert_eq!(pages, 0, "{name}, switch {on}: fresh pages in {STEPS} steps");
                assert_eq!(after.system_allocations, before.system_allocations, "{name}, switch {on}");
                assert_eq!((after.spilled, after.renewals), (0, before.renewals), "{name}, switch {on}");
                assert_eq!(after.same_addresses, before.same_addresses + STEPS as u64, "{name}, switch {on}");
                workspace.destroy().unwrap();
            }
        }
    });
}

#[test]
fn a_settled_loop_gets_the_same_addresses_each_cycle() {
    alone(|| {
        let sim = Device::sim(SimConfig::default());
        for (device, id) in [(Device::Cpu, "REPLAY"), (sim, "REPLAY on sim")] {
            let data = Data::new(&device);
            let (map, pass) = lstm(&device);
            let mut sgd = nn::SGD::new(map.all_vars(), 0.01).unwrap();
            let mut before = 0;
            for cycle in 0..10 {
                step(id, &pass, &data, &mut sgd);
                device.synchronize().unwrap();
                let same = Workspace::find(id).unwrap().stats().same_addresses;
                // The first cycle learns, beside the block; the second one is the first in it.
                assert!(cycle < 2 || same == before + 1, "{device}, cycle {cycle}: {same} after {before}");
                before = same;
            }
            Workspace::find(id).unwrap().destroy().unwrap();
        }
    });
}

/// What the counter of the same addresses says is so: looked at by address.
#[test]
fn addresses_repeat_and_change_with_a_shape() {
    alone(|| {
        let addresses = |rows: usize| {
            let _cycle = Workspace::enter("ADDRESSES", &WorkspaceConfig::default()).unwrap();
            let x = Tensor::ones((rows, 40), DType::F32, &Device::Cpu).unwrap();
            let made = [x.add(&x).unwrap(), x.exp().unwrap(), x.sum_all().unwrap()];
            made.map(|array| array.with_slice(|values: &[f32]| values.as_ptr().addr()).unwrap())
        };
        let same = || Workspace::find("ADDRESSES").unwrap().stats().same_addresses;
        addresses(8);
        let settled = addresses(8);
        for cycle in 1..5 {
            assert_eq!(addresses(8), settled);
            assert_eq!(same(), cycle);
        }
        let others = addresses(4);
        assert!(others[0] != settled[0] && others[2] != settled[2]);
        assert_eq!(same(), 0);
        assert_eq!(addresses(4), others);
        assert_eq!(same(), 1);
        Workspace::find("ADDRESSES").unwrap().destroy().unwrap();
    });
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn a_settled_step_makes_no_system_call() {
    alone(|| {
        assert!(
            matches!(calls::first_in(std::thread::yield_now), None | Some(Some(libc::SYS_sched_yield))),
            "a call is seen"
        );
        for (name, make) in MODELS {
            let data = Data::new(&Device::Cpu);
            let (map, pass) = make(&Device::Cpu);
            let mut adam = nn::Adam::new(map.all_vars(), 0.01).unwrap();
            let mut steps = |count: usize| {
                for _ in 0..count {
                    step(name, &pass, &data, &mut adam);
                }
            };
            steps(WARM_UP);
            let call = calls::first_in(|| steps(STEPS));
            match call {
                None => println!("{name}: this kernel does not tell system calls"),
                Some(call) => assert_eq!(call, None, "{name}: the number of the first system call in {STEPS} steps"),
            }
            Workspace::find(name).unwrap().destroy().unwrap();
        }
    });
}

/// The first system call of a piece of code, told by the kernel (`PR_SET_SYSCALL_USER_DISPATCH`).
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(crate) mod calls {
    use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};

    const DISPATCH: libc::c_int = 59;
    const ALLOW: u8 = 0;
    const BLOCK: u8 = 1;

    /// Read by the kernel at each system call of the thread.
    static SELECTOR: AtomicU8 = AtomicU8::new(ALLOW);
    static FIRST: AtomicI64 = AtomicI64::new(-1);

    /// Notes the call, makes it after all, and lets further ones pass.
    extern "C" fn noted(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        SELECTOR.store(ALLOW, Ordering::SeqCst);
        // SAFETY: the kernel gives the context of the interrupted thread, whose registers hold a system call; it is
        // made with the same arguments, as the thread meant it.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            let get = |register: libc::c_int| registers[register as usize];
            let number = get(libc::REG_RAX);
            FIRST.store(number, Ordering::SeqCst);
            let (a, b, c) = (get(libc::REG_RDI), get(libc::REG_RSI), get(libc::REG_RDX));
            let (d, e, f) = (get(libc::REG_R10), get(libc::REG_R8), get(libc::REG_R9));
            let answer = libc::syscall(number, a, b, c, d, e, f);
            registers[libc::REG_RAX as usize] =
                if answer == -1 { -i64::from(*libc::__errno_location()) } else { answer };
        }
    }

    /// The number of the first system call that `f` makes on this thread, if it makes one; `None` if the kernel does
    /// not tell.
    pub(crate) fn first_in(f: impl FnOnce()) -> Option<Option<libc::c_long>> {
        FIRST.store(-1, Ordering::SeqCst);
        // SAFETY: the handler is one for three arguments; the selector lives for ever, and the kernel only reads it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = noted as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()), 0);
            if libc::prctl(DISPATCH, 1, 0, 0, SELECTOR.as_ptr()) != 0 {
                return None;
            }
        }
        SELECTOR.store(BLOCK, Ordering::SeqCst);
        f();
        SELECTOR.store(ALLOW, Ordering::SeqCst);
        // SAFETY: takes no memory of ours.
        assert_eq!(unsafe { libc::prctl(DISPATCH, 0, 0, 0, 0) }, 0);
        let first = FIRST.load(Ordering::SeqCst);
        Some((first >= 0).then_some(first))
    }
}
