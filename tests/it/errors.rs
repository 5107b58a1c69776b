//! Every text a user can read from an `Error`, whole and literally, each from a call that fails so. Sites, keys, uuids
//! and simulated devices are masked (`support::mask`); that sites are right is in `better.rs`, point 16.

use ndgc::nn::{self, Mlp, Optimizer, SGD, VarBuilder};
use ndgc::{Budget, DType, Device, Error, Generator, NdManager, OutOfMemory, SimConfig, Tensor, Var, gc, memory};

#[cfg(unix)]
use crate::common::in_child_with;
use crate::it::support::{alone, base, block, both, in_child, is_child, mask, matrix, text, vector};

/// Compiler messages name the struct, and most programs are written with this name.
#[test]
fn messages_of_the_compiler_speak_of_tensors() {
    assert!(std::any::type_name::<ndgc::Proxy>().ends_with("::Tensor"));
}

/// What a `main` prints that returns an error, and an `unwrap`.
#[test]
fn the_debug_of_an_error_is_its_text() {
    alone(|| {
        let error = vector(&base(&Device::Cpu)).add(&matrix(&base(&Device::Cpu))).unwrap_err();
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(format!("{error:?}").starts_with("shape mismatch in add, "));
        let kept: Result<(), Error> = Err(Error::NoGradient { op: "backward", array: "a".into(), site: None });
        let caused = ndgc::Context::context(kept, "step 7").unwrap_err();
        assert_eq!(
            format!("{caused:?}"),
            "step 7\nbackward: no variable leads to array a; make its inputs with Var, outside no_grad"
        );
    });
}

#[test]
fn a_tensor_that_is_not_there_is_told_with_the_names_most_like_it() {
    alone(|| {
        let weights = ["encoder.0.query.weight", "encoder.0.key.weight", "encoder.1.query.weight", "pooler.bias"];
        let zeros = || Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap();
        let weights = weights.map(|name| (name.to_owned(), zeros())).into_iter().collect();
        let vb = VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu);
        assert_eq!(
            text(vb.pp("encoder").pp("0").pp("self").get(2, "query.weight")),
            "there is no tensor `encoder.0.self.query.weight`; the nearest names are `encoder.0.query.weight`, \
             `encoder.1.query.weight`, `encoder.0.key.weight`"
        );
        let none = VarBuilder::from_tensors(Default::default(), DType::F32, &Device::Cpu);
        assert_eq!(text(none.get(2, "a")), "there is no tensor `a`");
    });
}

#[test]
fn errors_of_shapes_say_what_does_not_fit_and_what_would() {
    both(|device| {
        let manager = base(device);
        let (v, m) = (vector(&manager), matrix(&manager));
        let texts = [
            text(v.add(&m)),
            text(v.broadcast_add(&m)),
            text(m.matmul(&manager.ones((3, 2), DType::F32).unwrap())),
            text(m.matmul(&v)),
            text(v.dims2()),
            text(v.to_scalar::<f32>()),
            text(m.t().unwrap().with_slice(|_: &[f32]| ())),
            text(v.copy_(&m)),
            text(m.add_(&v)),
            text(nn::loss::nll(&m, &manager.zeros((2, 1), DType::U32).unwrap())),
            text(nn::loss::nll(&m, &manager.zeros(3, DType::U32).unwrap())),
            text(v.embedding(&manager.zeros(3, DType::U32).unwrap())),
            text(nn::ops::pixel_shuffle(&m, 2)),
            text(nn::ops::pixel_unshuffle(&m, 2)),
            text(nn::ops::replication_pad2d(&m, 1)),
        ];
        assert_eq!(
            texts,
            [
                "shape mismatch in add, lhs: [3], rhs: [2, 2]: the operation wants equal shapes; use the broadcast_ form to \
                 repeat axes of size 1",
                "shape mismatch in broadcast_add, lhs: [3], rhs: [2, 2]: sizes 2 and 3 differ on axis 1 and neither is 1",
                "shape mismatch in matmul, lhs: [2, 2], rhs: [3, 2]: inner axes differ (2 != 3); transpose the right side or \
                 pass one with 2 rows",
                "matmul: unexpected shape [3]: needs at least two axes; use unsqueeze for a vector",
                "dims2: unexpected shape [3]: needs 2 axes",
                "to_scalar: unexpected shape [3]: needs no axes; index it or reduce it first",
                "with_slice only supports contiguous tensors; contiguous() makes one",
                "shape mismatch in copy_, lhs: [3], rhs: [2, 2]: copy_ wants equal shapes",
                "shape mismatch in add_, lhs: [2, 2], rhs: [3]: the right side does not broadcast to the left",
                "nll: unexpected shape [2, 1]: needs 1 axes",
                "nll: unexpected shape [2, 2]: needs [rows, classes], with a row for each of 3 labels",
                "embedding: unexpected shape [3]: needs 2 axes",
                "pixel_shuffle: unexpected shape [2, 2]: needs 4 axes",
                "pixel_unshuffle: unexpected shape [2, 2]: needs 4 axes",
                "replication_pad2d: unexpected shape [2, 2]: needs 4 axes",
            ]
        );
    });
}

#[test]
fn errors_of_sums_over_letters_name_the_letter_or_the_axis_behind_the_dots() {
    both(|device| {
        let manager = base(device);
        let of = |dims: &[usize]| manager.zeros(dims, DType::F32).unwrap();
        let texts = [
            text(Tensor::einsum("ij,jk->ik", &[&of(&[2, 3]), &of(&[4, 2])])),
            text(Tensor::einsum("...ij,...jk->...ik", &[&of(&[2, 4, 5]), &of(&[3, 5, 6])])),
            text(Tensor::einsum("...i,...i->...", &[&of(&[2, 7, 5]), &of(&[3, 7, 5])])),
        ];
        assert_eq!(
            texts,
            [
                "einsum: size of an axis is 3 and 4 for `j`; it must be the same wherever it stands",
                "einsum: size of an axis is 2 and 3 for axis -1 of `...`; it must be the same wherever it stands",
                "einsum: size of an axis is 2 and 3 for axis -2 of `...`; it must be the same wherever it stands",
            ]
        );
    });
}

#[test]
fn errors_of_axes_and_indices_name_the_axis_its_size_and_the_number_asked_for() {
    both(|device| {
        let manager = base(device);
        let (v, m) = (vector(&manager), matrix(&manager));
        let texts = [
            text(m.reshape(5)),
            text(m.reshape((3, ()))),
            text(m.sum(2)),
            text(m.sum(-3)),
            text(m.sum((0, 0))),
            text(manager.zeros([1; 7], DType::F32)),
            text(m.narrow(1, 1, 2)),
            text(m.get(2)),
            text(v.index_select(&manager.from_slice(&[3u32], 1).unwrap(), 0).and_then(|found| found.to_vec::<f32>())),
            text(manager.zeros((1 << 40, 1 << 40), DType::F64)),
            text(manager.from_slice(&[1f32, 2.], 3)),
        ];
        assert_eq!(
            texts,
            [
                "reshape: 4 elements do not fit [5]",
                "reshape: no size on axis 1 makes [3, 1] hold 4 elements",
                "sum: axis 2 is out of range for shape [2, 2]; it has 2 axes, counted from 0 or backwards from -1",
                "sum: axis -3 is out of range for shape [2, 2]; it has 2 axes, counted from 0 or backwards from -1",
                "sum: axis 0 is named twice",
                "zeros: 7 axes are more than the 6 an array can have; flatten some of them first",
                "narrow: indices 1 to 1 + 2 leave axis 1 of size 2",
                "get: index 2 is outside an axis of size 2",
                "index_select: index 3 is outside an axis of size 3",
                "zeros: [1099511627776, 1099511627776] elements of 8 bytes exceed the address space",
                "from_slice: 2 elements were given for shape [3], which holds 3",
            ]
        );
    });
}

#[test]
fn errors_of_types_and_devices_say_what_to_convert() {
    both(|device| {
        let manager = base(device);
        let v = vector(&manager);
        let elsewhere = manager.new_sub_manager_on(&Device::sim(SimConfig::default())).unwrap();
        let name = mask(&device.to_string());
        let texts = [
            text(v.add(&v.to_dtype(DType::F64).unwrap())),
            text(v.to_vec::<u8>()),
            text(v.to_dtype(DType::I64).unwrap().exp()),
            text(v.index_select(&v, 0)),
            text(v.add(&vector(&elsewhere))),
        ];
        assert_eq!(
            texts,
            [
                "dtype mismatch in add, lhs: f32, rhs: f64; convert one with to_dtype",
                "dtype mismatch in to_vec, lhs: f32, rhs: u8; convert one with to_dtype",
                "exp: not defined for i64; convert with to_dtype to one of f8e4m3, f16, bf16, f32, f64",
                "index_select: not defined for f32; convert with to_dtype to one of u8, u32, i64",
                &format!("device mismatch in add, lhs: {name}, rhs: SIM; move one with to_device"),
            ]
        );
    });
}

#[test]
fn errors_of_closed_arrays_name_array_maker_closer_and_remedy() {
    both(|device| {
        let (root, other) = (base(device), base(device));
        let sub = root.new_sub_manager().unwrap();
        let by_drop = vector(&base(device));
        let [by_user, by_manager, by_ancestor] = [vector(&other), vector(&root), vector(&sub)];
        by_manager.set_name("w").unwrap();
        by_user.close();
        root.close().unwrap();
        let texts = [
            text(by_user.exp()),
            text(by_manager.storage_bytes()),
            text(by_ancestor.attach(&other)),
            text(by_drop.to_vec::<f32>()),
        ];
        assert_eq!(
            texts,
            [
                "exp: array KEY (made at HERE) has been closed already, by its user at HERE; call attach or detach \
                 before its owner ends",
                "storage_bytes: array `w` (KEY) (made at HERE) has been closed already, with its manager at HERE; call attach \
                 or detach before its owner ends",
                "attach: array KEY (made at HERE) has been closed already, with a manager further up at HERE; call \
                 attach or detach before its owner ends",
                "to_vec: array KEY (made at HERE) has been closed already, when the last handle of its manager was \
                 dropped; call attach or detach before its owner ends",
            ]
        );
    });
}

#[test]
fn errors_of_managers_name_manager_maker_and_closer() {
    both(|device| {
        let (closed, capped) = (base(device), base(device));
        let of_capped = vector(&capped);
        closed.set_name("batch");
        let (sub, unnamed) = (closed.new_sub_manager().unwrap(), base(device));
        closed.close().unwrap();
        unnamed.close().unwrap();
        capped.cap().unwrap();
        let array = Tensor::zeros(1, DType::F32, device).unwrap();
        let texts = [
            text(closed.zeros(1, DType::F32)),
            text(array.attach(&closed)),
            text(unnamed.new_sub_manager()),
            text(sub.ones(1, DType::F32)),
            text(of_capped.exp()),
            text(NdManager::system(device).close()),
            text(NdManager::system(device).set_budget(Budget::new())),
        ];
        assert_eq!(
            texts,
            [
                "zeros: manager `batch` (made at HERE) has been closed already, with its manager at HERE; use a manager \
                 that is open, or a device",
                "attach: manager `batch` (made at HERE) has been closed already, with its manager at HERE; use a \
                 manager that is open, or a device",
                "new_sub_manager: manager `UUID` (made at HERE) has been closed already, with its manager at HERE; use \
                 a manager that is open, or a device",
                "ones: manager `UUID` (made at HERE) has been closed already, with a manager further up at HERE; use a \
                 manager that is open, or a device",
                "exp: manager `UUID` (made at HERE) is capped and takes no further arrays; name another manager, or \
                 make a sub-manager of it",
                "close: the system manager lives as long as the process and cannot be closed, capped, lent to or \
                 given a budget; use NdManager::new_base_manager, or Device::set_limit for all of a device",
                "set_budget: the system manager lives as long as the process and cannot be closed, capped, lent to or \
                 given a budget; use NdManager::new_base_manager, or Device::set_limit for all of a device",
            ]
        );
    });
}

/// Invariant I7 (design.md).
#[test]
fn errors_of_changes_in_place_say_what_is_in_the_way() {
    both(|device| {
        let manager = base(device);
        let (v, variable) = (vector(&manager), Var::ones(3, DType::F32, &manager).unwrap());
        variable.set_name("w").unwrap();
        let squares = variable.sqr().unwrap();
        variable.set(&v).unwrap();
        let mut texts = vec![
            text(v.broadcast_as((2, 3)).unwrap().affine_(1., 1.)),
            text(variable.affine_(1., 1.)),
            text(v.backward()),
            text(squares.sum_all().unwrap().backward()),
        ];
        let mut expected = vec![
            "affine_: several indices of this [2, 3] view lead to the same element; call contiguous() first",
            "affine_: gradients are recorded through array `w` (KEY), which an in-place change would falsify; use the \
             form that returns a new array, or change it inside no_grad",
            "backward: no variable leads to array KEY; make its inputs with Var, outside no_grad",
            "backward: a value that the gradient of sqr (called at HERE) needs was changed in place after it was \
             saved; use the form that returns a new array, or change it after backward",
        ];
        if device.is_cpu() {
            texts.push(v.with_slice(|_: &[f32]| text(v.affine_(1., 1.))).unwrap());
            texts.push(v.with_slice(|_: &[f32]| text(v.intern(matrix(&manager)))).unwrap());
            expected.push("affine_: array KEY is in use by a call further up on this thread; let that end first");
            expected.push("intern: array KEY is in use by a call that has not ended; let that end first");
        }
        assert_eq!(texts, expected);
    });
}

#[test]
fn errors_of_arguments_say_what_they_may_be() {
    both(|device| {
        let manager = base(device);
        let (v, none) = (vector(&manager), Vec::<Tensor>::new());
        let mut random = Generator::new(1);
        let texts = [
            text(Tensor::cat(&none, 0)),
            text(v.permute((0, 0))),
            text(Tensor::arange_step(0f32, 1., 0., &manager)),
            text(random.uniform(1., 0., 1, DType::F32, &manager)),
            text(Mlp::new(&[3], &mut random, &manager)),
            text(SGD::new(Vec::new(), -1.)),
        ];
        assert_eq!(
            texts,
            [
                "cat: arrays is []; it must be not empty",
                "permute: order is [0, 0]; it must be each axis once",
                "arange_step: step is 0 from 0 to 1; it must be a step that reaches the end",
                "rand: range is 1 to 0; it must be in ascending order",
                "mlp: sizes is [3]; it must be an input and an output, each at least 1",
                "sgd: learning rate is -1; it must be finite, not negative",
            ]
        );
        assert_eq!(Error::msg("of the caller's own").to_string(), "of the caller's own");
    });
}

#[test]
fn errors_of_exhausted_memory_list_what_there_is_and_who_has_it() {
    alone(|| {
        gc::collect_orphans();
        let device = Device::sim(SimConfig { memory_bytes: 1 << 20, ..SimConfig::default() });
        let (large, small) = (base(&device), base(&device));
        large.set_name("large");
        small.set_name("small");
        let _kept = [large.zeros(100_000, DType::U8).unwrap(), large.zeros(100_000, DType::U8).unwrap()];
        let _view = block(&small).t();
        drop(Tensor::zeros(1000, DType::U8, &device).unwrap());
        gc::collect();
        device.set_limit(Some(1 << 19));
        device.clear_cache();
        let refused = text(large.zeros(1 << 19, DType::U8));
        let thread = refused.split(['\u{20}', ';']).skip_while(|&word| word != "threadId:").nth(1).unwrap();
        assert_eq!(
            refused.replacen(&format!("threadId: {thread}"), "threadId: N", 1),
            "Can't allocate [DEVICE] memory: 524288; threadId: N; zeros wants 512.00 KiB on SIM, over the limit of the \
             device: 195.38 KiB live, 0 B kept for reuse, 316.69 KiB reachable, limit 512.00 KiB, 0 dead arrays closed \
             first; tried: drain 0 B, trim 0 B; largest owners: `large` (2 arrays, 195.31 KiB), `small` (1 \
             array, 64 B); largest lines: HERE (1 array, 97.66 KiB), HERE (1 array, 97.66 KiB), HERE (1 array, 64 B); 1 \
             dead array of 64 B kept by their managers: gc::collect_orphans() gives them back, and with gc::on() none are kept"
        );
        let mut bare = OutOfMemory::of("cpu".to_owned(), "zeros", 1);
        (bare.active, bare.cached, bare.reclaimed, bare.kept, bare.kept_bytes) = (2, 3, 4, 5, 6);
        (bare.largest_free, bare.reclaimed_bytes) = (1, 7);
        assert_eq!(
            Error::OutOfMemory(Box::new(bare)).to_string(),
            "Can't allocate [HOST] memory: 1; threadId: 0; zeros wants 1 B on cpu, and there is no more memory: 2 B live, \
             3 B kept for reuse (at most 1 B in one piece), 9 B reachable, 4 dead arrays of 7 B closed first; \
             5 dead arrays of 6 B kept by their managers: gc::collect_orphans() gives them back, and with gc::on() none are kept"
        );
    });
}

#[test]
fn errors_of_devices_name_the_device_the_call_and_its_answer() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let Device::Sim(sim) = &device else { return };
        sim.fail_call(Some(1));
        assert_eq!(text(base(&device).zeros(1, DType::F32)), "SIM: alloc failed: made to fail on request");
        assert_eq!(
            text(Device::new_metal(0)),
            "metal:0 is not available: ndgc computes on the host and on CUDA devices"
        );
    });
}

#[test]
fn a_number_of_threads_that_is_none_is_said_once() {
    if is_child() {
        let large = Tensor::zeros(1 << 20, DType::F32, &Device::Cpu).unwrap();
        let _ = [large.exp().unwrap(), large.sqr().unwrap()];
        return;
    }
    let test = "it::errors::a_number_of_threads_that_is_none_is_said_once";
    for (value, times) in [("many", 1), ("0", 1), ("2", 0)] {
        let told = String::from_utf8(in_child(test, &[("NDGC_THREADS", value)]).stderr).unwrap();
        let wanted = format!("ndgc: NDGC_THREADS={value} is not understood; it may be a number from 1 on\n");
        assert_eq!(told.matches(&wanted).count(), times, "{told}");
    }
}

#[test]
fn a_crash_report_that_cannot_be_written_is_told_of_once() {
    if is_child() {
        let manager = base(&Device::Cpu);
        manager.set_budget(Budget::new().max_bytes(100)).unwrap();
        (0..3).for_each(|_| assert!(manager.zeros(101, DType::U8).is_err()));
        return;
    }
    let test = "it::errors::a_crash_report_that_cannot_be_written_is_told_of_once";
    // Below a file there is no folder.
    let folder = std::env::current_exe().unwrap().join("reports").display().to_string();
    let told = String::from_utf8(in_child(test, &[("NDGC_CRASH_REPORT", &folder)]).stderr).unwrap();
    let wanted = format!("ndgc: no crash report can be written to {folder}: ");
    assert_eq!(told.matches(&wanted).count(), 1, "{told}");
}

#[cfg(unix)]
#[test]
fn folders_of_the_environment_need_be_no_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = OsStr::from_bytes(b"/nowhere/\xff ");
    if is_child() {
        assert_eq!(memory::set_spill(None).unwrap().unwrap(), folder);
        assert_eq!(memory::set_crash_report(None).unwrap(), folder);
        return;
    }
    let test = "it::errors::folders_of_the_environment_need_be_no_text";
    in_child_with(test, &[("NDGC_SPILL", folder), ("NDGC_CRASH_REPORT", folder)]);
}

#[test]
fn errors_of_the_environment_name_the_variable_and_what_it_may_be() {
    if is_child() {
        println!("{}", text(NdManager::new_base_manager(&Device::Cpu).map(drop)));
        println!("{}", text(Tensor::zeros(1, DType::F32, &Device::Cpu)));
        println!("{}", text(Device::from_env()));
        if std::env::var("NDGC").is_err() {
            ndgc::gc::on();
            println!("{}", text(Tensor::zeros(1, DType::F32, &Device::Cpu)));
        }
        return;
    }
    let test = "it::errors::errors_of_the_environment_name_the_variable_and_what_it_may_be";
    // A program that is to have a limit does not run without one, however the switch is set.
    for (name, value) in [("NDGC_MAX_BYTES", "2gg"), ("NDGC_MAX_PHYSICAL_BYTES", "half"), ("NDGC_DEVICE_SPILL", "-1")] {
        let out = String::from_utf8(in_child(test, &[(name, value)]).stdout).unwrap();
        let wanted = format!("environment: {name}={value} is not understood; it may be like 800m, 2g, 50% or none");
        assert_eq!(out.matches(&wanted).count(), 3, "{out}");
    }
    let output = in_child(test, &[("NDGC", "maybe"), ("NDGC_DEVICE", "abacus")]);
    let out = String::from_utf8(output.stdout).unwrap();
    // The first line begins with the test's name.
    let lines: Vec<&str> = out.lines().filter_map(|line| line.find("environment: ").map(|at| &line[at..])).collect();
    assert_eq!(
        lines,
        [
            "environment: NDGC=maybe is not understood; it may be on or off",
            "environment: NDGC=maybe is not understood; it may be on or off",
            "environment: NDGC_DEVICE=abacus is not understood; it may be cpu, sim, cuda, cuda:<number> or best",
        ]
    );
}

#[cfg(unix)]
#[test]
#[allow(unsafe_code, reason = "there is no safe fork")]
fn errors_in_a_forked_process_say_so_and_its_parent_goes_on() {
    if !is_child() {
        in_child("it::errors::errors_in_a_forked_process_say_so_and_its_parent_goes_on", &[("NDGC", "on")]);
        return;
    }
    let array = Tensor::ones(2, DType::F32, &Device::Cpu).unwrap();
    let manager = base(&Device::Cpu);
    // SAFETY: the child makes calls that refuse to work, and ends without running what its parent registered.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let texts = [text(array.storage_bytes()), text(manager.zeros(1, DType::F32)), text(manager.close())];
        drop((array, manager));
        let expected = ["storage_bytes", "zeros", "close"].map(|op| {
            format!(
                "{op}: this process was forked from one that used ndgc; arrays made before the fork cannot be used in \
                 the child, start a new process instead"
            )
        });
        if texts != expected {
            eprintln!("{texts:#?}");
        }
        // SAFETY: ends the process; runs nothing.
        unsafe { libc::_exit(i32::from(texts != expected)) }
    }
    let mut status = -1;
    // SAFETY: `status` is ours for the length of the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child ended by itself, and with what was expected");
    assert_eq!(array.to_vec::<f32>().unwrap(), [1., 1.]);
    manager.close().unwrap();
}
