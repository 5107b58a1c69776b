//! What a reader of gradients and of exchange found: arrays of the user's in the hands of operations.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ndgc::{
    Budget, CpuStorage, CustomOp1, DType, Device, Error, Layout, NdManager, Result, Shape, Tensor, Var, checkpoint,
    no_grad,
};

use crate::ops::support::{alone, each, error, values};

/// Has bytes when it is asked first, and none after that.
struct Fickle(AtomicUsize);

impl AsRef<[u8]> for Fickle {
    fn as_ref(&self) -> &[u8] {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 { &[1; 8] } else { &[] }
    }
}

#[test]
fn a_keeper_that_answers_otherwise_each_time_is_asked_once() {
    alone(|| {
        let fickle = Arc::new(Fickle(AtomicUsize::new(0)));
        let a = Tensor::from_shared(fickle, 0..8, DType::U8, 8, &Device::Cpu).unwrap();
        assert_eq!(values::<u8>(&a), [1; 8]);
        let empty = Arc::new(Fickle(AtomicUsize::new(1)));
        let refused = error(Tensor::from_shared(empty, 0..8, DType::U8, 8, &Device::Cpu));
        assert!(matches!(refused, Error::Argument { .. }), "{refused}");
    });
}

#[test]
fn a_checkpoint_gives_nobodys_array_away() {
    // Broken by: giving what the function returned, a variable of the user's, to the manager of the input.
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let x = manager.ones(2, DType::F32).unwrap();
        let w = Var::ones(2, DType::F32, device).unwrap();
        let inner = w.clone();
        let y = no_grad(|| checkpoint(move |_| Ok(inner.as_tensor().clone()), &[&x])).unwrap();
        assert_eq!((values::<f32>(&y), manager.array_count()), (vec![1.; 2], 2));
        manager.close().unwrap();
        assert!(w.is_open() && !y.is_open());
    });
}

/// Two numbers, aligned as such.
#[repr(align(8))]
struct Numbers([u8; 8]);

impl AsRef<[u8]> for Numbers {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Has a gradient that lies in memory which is lent for reading.
struct Lends;

impl CustomOp1 for Lends {
    fn name(&self) -> &'static str {
        "lends"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), *layout.shape()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        let three = 3f32.to_ne_bytes();
        let bytes = std::array::from_fn(|at| three[at % 4]);
        Tensor::from_shared(Arc::new(Numbers(bytes)), 0..8, DType::F32, 2, &Device::Cpu).map(Some)
    }
}

#[test]
fn a_gradient_that_lies_in_lent_memory_is_added_up_and_may_be_changed() {
    alone(|| {
        let x = Var::ones(2, DType::F32, &Device::Cpu).unwrap();
        let lends = || x.apply_op1(Lends).unwrap();
        let twice = lends().add(&lends()).unwrap().sum_all().unwrap();
        assert_eq!(values::<f32>(twice.backward().unwrap().get(&x).unwrap()), [6.; 2]);
        let grads = lends().sum_all().unwrap().backward().unwrap();
        let grad = grads.get(&x).unwrap();
        grad.affine_(2., 0.).unwrap();
        assert_eq!(values::<f32>(grad), [6.; 2]);
    });
}

#[test]
fn an_operation_with_several_results_that_is_refused_leaves_its_operand() {
    alone(|| {
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        manager.set_budget(Budget::new().max_arrays(1)).unwrap();
        let x = manager.ones((2, 2), DType::F32).unwrap();
        let refused = x.compose_all("both", || Ok([x.clone(), x.t()?])).map(drop);
        assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
        assert_eq!((values::<f32>(&x), manager.array_count()), (vec![1.; 4], 1));
        // A second operand stays too, and what was given to the manager before it refused does not.
        manager.set_budget(Budget::new().max_arrays(3)).unwrap();
        let w = manager.ones((2, 2), DType::F32).unwrap();
        let refused = x.compose_all("all", || Ok([x.clone(), w.clone(), x.t()?, w.t()?])).map(drop);
        assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
        assert_eq!((values::<f32>(&x), values::<f32>(&w), manager.array_count()), (vec![1.; 4], vec![1.; 4], 2));
    });
}

#[test]
fn a_variable_takes_one_place_of_its_manager() {
    alone(|| {
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        manager.set_budget(Budget::new().max_arrays(1)).unwrap();
        let made: [(&str, &dyn Fn() -> Result<Var>); 9] = [
            ("zeros", &|| Var::zeros(2, DType::F32, &manager)),
            ("ones", &|| Var::ones(2, DType::F32, &manager)),
            ("new", &|| Var::new([1f32, 2.], &manager)),
            ("from_vec", &|| Var::from_vec(vec![1f32, 2.], 2, &manager)),
            ("from_slice", &|| Var::from_slice(&[1f32, 2.], 2, &manager)),
            ("rand", &|| Var::rand(0f32, 1., 2, &manager)),
            ("randn", &|| Var::randn(0f32, 1., 2, &manager)),
            ("rand_f64", &|| Var::rand_f64(0., 1., 2, DType::F32, &manager)),
            ("randn_f64", &|| Var::randn_f64(0., 1., 2, DType::F32, &manager)),
        ];
        for (name, make) in made {
            let var = make().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((values::<f32>(&var).len(), manager.array_count()), (2, 1), "{name}");
            assert!(var.is_variable() && !var.is_detached().unwrap(), "{name}");
            var.close();
        }
        manager.set_budget(Budget::new().max_arrays(2)).unwrap();
        let x = manager.ones(2, DType::F32).unwrap();
        let copy = Var::from_tensor(&x).unwrap();
        assert_eq!((values::<f32>(&copy), manager.array_count()), (vec![1.; 2], 2));
    });
}

/// Panics.
struct Panics;

impl CustomOp1 for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        panic!("no luck")
    }
}

#[test]
fn a_panic_that_is_caught_inside_an_operation_leaves_who_pays_for_it() {
    alone(|| {
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        manager.set_budget(Budget::new().max_bytes(1 << 20)).unwrap();
        let x = manager.ones(2, DType::F32).unwrap();
        for panics in [false, true] {
            let refused = x.compose("outer", || {
                if panics {
                    catch_unwind(AssertUnwindSafe(|| x.apply_op1(Panics))).unwrap_err();
                }
                Tensor::zeros(1 << 20, DType::F32, &Device::Cpu)?.sum_all()
            });
            assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{panics}: {refused:?}");
        }
    });
}

/// Bytes that panic when they go.
struct Bytes([u8; 8]);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        panic!("no luck");
    }
}

#[test]
fn what_keeps_memory_that_is_refused_may_panic_when_it_goes() {
    alone(|| {
        // SAFETY: no memory is there, and none is used: a null address is refused.
        #[allow(unsafe_code)]
        let blob =
            unsafe { Tensor::from_blob(std::ptr::null_mut::<f32>(), 2, None, &Device::Cpu, || panic!("no luck")) };
        assert!(matches!(error(blob), Error::Argument { .. }));
        let shared = Tensor::from_shared(Arc::new(Bytes([0; 8])), 0..9, DType::U8, 9, &Device::Cpu);
        assert!(matches!(error(shared), Error::Argument { .. }));
    });
}

/// Broken by: a count of equals that is no half, or none of its numbers: 257 of bf16, and 70,000 of f16.
#[test]
fn a_gradient_is_shared_among_as_many_equals_as_there_are() {
    each(|device| {
        for (dtype, count) in [(DType::BF16, 257), (DType::F16, 70_000), (DType::F32, 5)] {
            let x = Var::ones((2, count), dtype, device).unwrap();
            for extreme in [x.max(1), x.min_keepdim(1)] {
                let loss = extreme.unwrap().affine(1000., 0.).unwrap().sum_all().unwrap();
                let grads = loss.backward().unwrap();
                let want = Tensor::full(1000. / count as f32, (2, count), device).unwrap().to_dtype(dtype).unwrap();
                let single = |x: &Tensor| values::<f32>(&x.to_dtype(DType::F32).unwrap());
                assert_eq!(single(grads.get(&x).unwrap()), single(&want), "{dtype:?}");
            }
        }
    });
}

/// Gives the gradient on, and exchanges an array for one of another shape and dtype.
enum Exchanging {
    /// The gradient that it is shown, which another step is given too.
    Shown,
    /// Its operand, for whose new form it gives a gradient.
    Operand,
    /// The gradient that the first of two gave, when the second one is asked.
    Given(Arc<Mutex<Option<Tensor>>>),
}

impl CustomOp1 for Exchanging {
    fn name(&self) -> &'static str {
        "exchanging"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), *layout.shape()))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let other = || Tensor::ones(3, DType::F64, &Device::Cpu);
        let given = grad.copy()?;
        match self {
            Exchanging::Shown => grad.intern(other()?)?,
            Exchanging::Operand => {
                arg.intern(other()?)?;
                return other().map(Some);
            }
            Exchanging::Given(kept) => {
                let mut kept = kept.lock().unwrap();
                match kept.take() {
                    None => *kept = Some(given.clone()),
                    Some(before) => before.intern(other()?)?,
                }
            }
        }
        Ok(Some(given))
    }
}

#[test]
fn a_derivative_that_exchanges_what_it_is_shown_or_gave_changes_no_step_of_the_walk() {
    // Broken by: arrays of the walk in the hands of the program, of which the next step found another shape and dtype.
    alone(|| {
        let x = Var::zeros(2, DType::F32, &Device::Cpu).unwrap();
        // The step that was made last of one rank is walked first.
        let y = x.exp().unwrap();
        let loss = y.add(&x.apply_op1(Exchanging::Shown).unwrap()).unwrap();
        assert_eq!(values::<f32>(loss.backward().unwrap().get(&x).unwrap()), [2.; 2]);

        let kept = Arc::new(Mutex::new(None));
        let [first, second] = [0; 2].map(|_| Exchanging::Given(Arc::clone(&kept)));
        let y = x.exp().unwrap().apply_op1(first).unwrap();
        let loss = y.add(&x.apply_op1(second).unwrap()).unwrap();
        assert_eq!(values::<f32>(loss.backward().unwrap().get(&x).unwrap()), [2.; 2]);

        let loss = x.exp().unwrap().apply_op1(Exchanging::Operand).unwrap();
        assert!(matches!(loss.backward(), Err(Error::ShapeMismatch { .. })));
    });
}

#[test]
fn a_checkpoint_whose_function_exchanges_its_input_has_the_gradient_of_what_it_computed_with() {
    // Broken by: looking for the input's node after the function, which had put a variable of another form there.
    alone(|| {
        let x = Var::zeros(2, DType::F32, &Device::Cpu).unwrap();
        let y = x.exp().unwrap();
        let loss = checkpoint(
            |inputs| {
                let other = Var::ones(3, DType::F64, &Device::Cpu)?;
                let out = inputs[0].affine(3., 0.)?.broadcast_add(&other.sum_all()?.to_dtype(DType::F32)?)?;
                inputs[0].intern(other.as_tensor().clone())?;
                Ok(out)
            },
            &[&y],
        );
        let grads = loss.unwrap().backward().unwrap();
        assert_eq!(values::<f32>(grads.get(&x).unwrap()), [3.; 2]);
    });
}
