//! After warm-up an operation on small tensors asks the heap for nothing: neither for the result, whose slot, storage
//! and bytes are used again, nor on the way. A counting allocator looks at every call of the thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ndgc::nn::{Adam, Optimizer, SGD, SgdConfig, StepRule};
use ndgc::quantized::{GgmlDType, QTensor};
use ndgc::{DType, Device, NdManager, Result, Tensor, Var, gc};

use crate::{alone, counting};

/// Calls before counting. More than enough for every stock of slots, storages and blocks to be filled, and for the
/// looks at other threads' lanes, which come every 64 calls.
const WARM_UP: usize = 300;
const CALLS: u64 = 1000;

/// The operands: small, so that what surrounds a kernel is all there is.
struct Operands {
    /// `[2, 3]`
    a: Tensor,
    b: Tensor,
    /// `[3, 2]`
    c: Tensor,
    /// `[3]`
    row: Tensor,
    /// `[2, 2, 3]`
    cube: Tensor,
    /// `[2, 3]`, i64
    ints: Tensor,
    /// `[2, 3]`, u8
    mask: Tensor,
    /// `[2]`, u32
    ids: Tensor,
    /// `[32, 32]`
    big: Tensor,
}

impl Operands {
    /// Of a manager, or owned by their handles.
    fn new(manager: Option<&NdManager>) -> Self {
        let of = |dims: &[usize], dtype: DType| {
            let count: usize = dims.iter().product();
            let data: Vec<f64> = (0..count).map(|i| 0.25 * i as f64 + 0.5).collect();
            let array = Tensor::from_slice(&data, dims, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            manager.map_or(Ok(()), |manager| array.attach(manager)).unwrap();
            array
        };
        Operands {
            a: of(&[2, 3], DType::F32),
            b: of(&[2, 3], DType::F32),
            c: of(&[3, 2], DType::F32),
            row: of(&[3], DType::F32),
            cube: of(&[2, 2, 3], DType::F32),
            ints: of(&[2, 3], DType::I64),
            mask: of(&[2, 3], DType::U8),
            ids: of(&[2], DType::U32),
            big: of(&[32, 32], DType::F32),
        }
    }
}

type Run = fn(&Operands) -> Result<Tensor>;

/// Operations that make an array.
const FUNCTIONS: &[(&str, Run)] = &[
    ("add", |x| x.a.add(&x.b)),
    ("+ operator", |x| &x.a + &x.b),
    ("+ number", |x| &x.a + 2.),
    ("sub", |x| x.a.sub(&x.b)),
    ("mul", |x| x.a.mul(&x.b)),
    ("div", |x| x.a.div(&x.b)),
    ("maximum", |x| x.a.maximum(&x.b)),
    ("pow", |x| x.a.pow(&x.b)),
    ("add of a transposed view", |x| x.a.add(&x.c.t()?)),
    ("broadcast_add", |x| x.a.broadcast_add(&x.row)),
    ("neg", |x| x.a.neg()),
    ("exp", |x| x.a.exp()),
    ("log", |x| x.a.log()),
    ("tanh", |x| x.a.tanh()),
    ("relu", |x| x.a.relu()),
    ("sigmoid", |x| x.a.sigmoid()),
    ("affine", |x| x.a.affine(2., 1.)),
    ("powf", |x| x.a.powf(1.5)),
    ("clamp", |x| x.a.clamp(0., 1.)),
    ("gt", |x| x.a.gt(&x.b)),
    ("broadcast_le", |x| x.a.broadcast_le(&x.row)),
    ("where_cond", |x| x.mask.where_cond(&x.a, &x.b)),
    ("matmul", |x| x.a.matmul(&x.c)),
    ("matmul of a transposed view", |x| x.a.matmul(&x.b.t()?)),
    ("linear", |x| x.a.linear(&x.b, None)),
    ("sum", |x| x.a.sum(0)),
    ("sum of integers", |x| x.ints.sum(1)),
    ("sum_all", |x| x.a.sum_all()),
    ("mean_keepdim", |x| x.cube.mean_keepdim((0, 2))),
    ("max", |x| x.a.max(1)),
    ("argmax", |x| x.a.argmax(1)),
    ("softmax", |x| x.a.softmax(1)),
    ("log_softmax over another axis", |x| x.cube.log_softmax(1)),
    ("cross_entropy", |x| x.a.cross_entropy(&x.ids)),
    ("gather", |x| x.a.gather(&x.ids.unsqueeze(0)?, 1)),
    ("to_dtype", |x| x.a.to_dtype(DType::F64)),
    ("copy", |x| x.a.copy()),
    ("contiguous", |x| x.a.t()?.contiguous()),
    ("zeros_like", |x| x.a.zeros_like()),
];

/// Views.
const VIEWS: &[(&str, Run)] = &[
    ("reshape", |x| x.a.reshape((3, 2))),
    ("reshape with a hole", |x| x.cube.reshape(((), 3))),
    ("flatten_all", |x| x.cube.flatten_all()),
    ("transpose", |x| x.cube.transpose(0, 2)),
    ("t", |x| x.a.t()),
    ("narrow", |x| x.a.narrow(1, 0, 2)),
    ("get", |x| x.a.get(1)),
    ("unsqueeze", |x| x.a.unsqueeze(0)),
    ("squeeze", |x| x.a.unsqueeze(0)?.squeeze(0)),
    ("broadcast_as", |x| x.row.broadcast_as((4, 3))),
    ("detach", |x| x.a.try_detach()),
];

/// Changes in place, handles and metadata.
const OTHERS: &[(&str, Run)] = &[
    ("add_", |x| x.a.add_(&x.b)),
    ("sub_", |x| x.a.sub_(&x.b)),
    ("mul_ by a broadcast row", |x| x.b.mul_(&x.row)),
    ("add_ of itself", |x| x.a.add_(&x.a)),
    ("add_ of its own transpose", |x| x.a.narrow(1, 0, 2)?.add_(&x.a.narrow(1, 0, 2)?.t()?)),
    ("affine_", |x| x.a.affine_(0.5, 0.1)),
    ("relu_", |x| x.a.relu_()),
    ("tanh_", |x| x.a.tanh_()),
    ("fill_", |x| x.b.fill_(1.)),
    ("copy_", |x| x.a.copy_(&x.b).map(|()| x.a.clone())),
    ("sgd_step_", |x| x.a.sgd_step_(&x.b, None, 0.1, 0., 0.).map(|()| x.a.clone())),
    ("optimizer_step_", |x| {
        let rule = StepRule::Nesterov { momentum: 0.9 };
        x.a.optimizer_step_(&x.b, &[x.b.copy()?], rule, 0.1, 1).map(|()| x.a.clone())
    }),
    ("clone", |x| Ok(x.a.clone())),
    ("shape", |x| x.a.narrow(0, 0, x.a.shape().dims()[0])),
    ("dim", |x| x.a.dim(1).map(|_| x.a.clone())),
    ("dims2", |x| x.a.dims2().map(|_| x.a.clone())),
];

/// Requests for each of the calls, after warm-up.
fn requests(mut call: impl FnMut()) -> f64 {
    (0..WARM_UP).for_each(|_| call());
    let before = counting::requests();
    (0..CALLS).for_each(|_| call());
    (counting::requests() - before) as f64 / CALLS as f64
}

#[track_caller]
fn assert_none(owner: &str, operands: &Operands) {
    for (name, run) in FUNCTIONS.iter().chain(VIEWS).chain(OTHERS) {
        let each = requests(|| drop(run(operands).unwrap()));
        assert_eq!(each, 0., "{name} on arrays of {owner} asks the heap for something");
    }
}

/// Invariant I2 (design.md).
#[test]
fn operations_on_arrays_that_their_handles_own_ask_the_heap_for_nothing() {
    alone(|| {
        for on in [false, true] {
            let _switch = gc::scoped(on);
            assert_none(if on { "handles, switch on" } else { "handles" }, &Operands::new(None));
        }
    });
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// An array, and a closed one, whose last handle goes inside a call that the thread makes when it has left already; for
/// how many requests.
struct Last(Tensor, Option<Tensor>, Arc<AtomicU64>);

impl Drop for Last {
    fn drop(&mut self) {
        let closed = self.1.take();
        let drop_closed = |_: &[f32]| {
            let before = counting::requests();
            drop(closed);
            counting::requests() - before
        };
        self.2.store(self.0.with_slice(drop_closed).unwrap(), Ordering::Relaxed);
    }
}

/// Invariant I2 (design.md), of a thread that has no part in the runtime any more: each call makes one for itself.
#[test]
fn a_closed_array_that_goes_inside_a_late_call_asks_the_heap_for_nothing() {
    alone(|| {
        let asked = Arc::new(AtomicU64::new(u64::MAX));
        let told = Arc::clone(&asked);
        let thread = std::thread::spawn(move || {
            // Registers this destructor first, so that it runs after the library's own.
            LAST.with_borrow_mut(|place| assert!(place.is_none()));
            let [open, closed] = [0; 2].map(|_| Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap());
            closed.close();
            LAST.set(Some(Last(open, Some(closed), told)));
        });
        thread.join().unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn operations_on_arrays_of_a_manager_ask_the_heap_for_nothing_with_the_switch_on() {
    alone(|| {
        let _on = gc::scoped(true);
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let operands = Operands::new(Some(&manager));
        let own = manager.array_count();
        assert_none("a manager", &operands);
        gc::collect();
        assert_eq!(manager.array_count(), own, "nothing stayed with the manager");
        manager.close().unwrap();
    });
}

#[test]
fn a_chain_of_operations_that_replaces_its_value_asks_the_heap_for_nothing() {
    alone(|| {
        let _on = gc::scoped(true);
        let x = Operands::new(None);
        let mut value = x.a.clone();
        let each = requests(|| {
            let next = value.add(&x.b).unwrap().tanh().unwrap().matmul(&x.c).unwrap();
            value = next.matmul(&x.a).unwrap().softmax(1).unwrap();
        });
        assert_eq!(each, 0.);
    });
}

#[test]
fn creation_asks_the_heap_for_nothing() {
    alone(|| {
        let _on = gc::scoped(true);
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let data = [1f32; 6];
        let cases: [(&str, &dyn Fn() -> Result<Tensor>); 9] = [
            ("zeros", &|| Tensor::zeros((2, 3), DType::F32, &Device::Cpu)),
            ("zeros of a manager", &|| manager.zeros((2, 3), DType::F32)),
            ("ones", &|| manager.ones((2, 3), DType::F32)),
            ("full", &|| Tensor::full(7i64, (2, 3), &Device::Cpu)),
            ("new of a slice", &|| Tensor::new(data.as_slice(), &Device::Cpu)),
            ("new of lists", &|| Tensor::new([[1u32, 2], [3, 4]], &Device::Cpu)),
            ("from_slice", &|| manager.from_slice(&data, (2, 3))),
            ("arange", &|| Tensor::arange(0f32, 6., &Device::Cpu)),
            ("randn", &|| manager.randn(0f32, 1., (2, 3))),
        ];
        for (name, make) in cases {
            assert_eq!(requests(|| drop(make().unwrap())), 0., "{name} asks the heap for something");
        }
        manager.close().unwrap();
    });
}

#[test]
fn the_steps_of_optimisers_ask_the_heap_for_nothing() {
    alone(|| {
        let x = Var::from_vec(vec![1f32, 2., 3.], 3, &Device::Cpu).unwrap();
        let grads = x.sqr().unwrap().backward().unwrap();
        let momentum = SgdConfig { rate: 0.01, momentum: 0.9, decay: 0.1 };
        let mut optimisers: [(&str, Box<dyn Optimizer>); 3] = [
            ("sgd", Box::new(SGD::new(vec![x.clone()], 0.01).unwrap())),
            ("sgd with momentum", Box::new(SGD::with_config(vec![x.clone()], momentum).unwrap())),
            ("adam", Box::new(Adam::new(vec![x.clone()], 0.01).unwrap())),
        ];
        for (name, optimiser) in &mut optimisers {
            assert_eq!(
                requests(|| optimiser.step(&grads).unwrap()),
                0.,
                "a step of {name} asks the heap for something"
            );
        }
    });
}

/// What operations outside the tables ask for: each at most this often, so that it does not grow unseen.
#[test]
fn other_operations_ask_the_heap_for_no_more_than_they_do_today() {
    alone(|| {
        let x = Operands::new(None);
        let w = Var::from_tensor(&x.b).unwrap();
        let long = Tensor::ones((2, 64), DType::F32, &Device::Cpu).unwrap();
        let weights = Tensor::ones((1024, 64), DType::F32, &Device::Cpu).unwrap();
        let [q4, q8, based] = [GgmlDType::Q4_0, GgmlDType::Q8_0, GgmlDType::Q4_1]
            .map(|format| QTensor::quantize(&weights, format).unwrap());
        let cases: [(&str, f64, &dyn Fn()); 14] = [
            ("a product with Q4_0", 0., &|| drop(q4.matmul(&long).unwrap())),
            ("a product with Q8_0", 0., &|| drop(q8.matmul(&long).unwrap())),
            ("a product with Q4_1", 0., &|| drop(based.matmul(&long).unwrap())),
            ("to_vec", 1., &|| drop(x.a.to_vec::<f32>().unwrap())),
            ("to_scalar", 0., &|| assert!(x.a.sum_all().unwrap().to_scalar::<f32>().is_ok())),
            ("permute", 0., &|| drop(x.cube.permute((2, 0, 1)).unwrap())),
            ("flatten", 0., &|| drop(x.cube.flatten(0, 1).unwrap())),
            ("cat of two", 0., &|| drop(Tensor::cat(&[&x.a, &x.b], 0).unwrap())),
            ("stack of two", 0., &|| drop(Tensor::stack(&[&x.a, &x.b], 0).unwrap())),
            ("index_select", 0., &|| drop(x.cube.index_select(&x.ids, 2).unwrap())),
            ("a tracked mul", 0., &|| drop(x.a.mul(&w).unwrap())),
            ("a tracked linear", 0., &|| drop(x.a.linear(&w, None).unwrap())),
            ("mul, sum_all, backward", 0., &|| drop(x.a.mul(&w).unwrap().sum_all().unwrap().backward().unwrap())),
            ("matmul by the library", 2., &|| drop(x.big.matmul(&x.big).unwrap())),
        ];
        for (name, most, call) in cases {
            let each = requests(call);
            println!("{name:24}{each:6.2} requests");
            assert!(each <= most, "{name} asks for {each} blocks, {most} were enough");
        }
        assert_eq!(requests(|| drop(vec![0u8])), 1., "the allocator counts");
    });
}
