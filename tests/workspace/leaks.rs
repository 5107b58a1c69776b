//! Handles that are left over when their cycle ends: found on every access, in every state of the workspace. R13.

use ndgc::nn::ops as nn_ops;
use ndgc::{
    DType, DebugMode, Device, Generator, IndexOp, LearningPolicy, NdManager, ResetPolicy, Result, SimConfig, Tensor,
    Var, Workspace, WorkspaceState, gc, ndar, npy, npz, safetensors, t,
};

use crate::workspace::support::{alone, basic, doubles, filled, leak, loop_first, sum};

/// A 2x3 matrix of ones that ended with the first cycle of [LOOP], which is closed.
fn ended(dtype: DType) -> Tensor {
    Workspace::cycle("LOOP", &basic().build().unwrap(), || Tensor::ones((2, 3), dtype, &Device::Cpu)).unwrap()
}

/// What an operation says of such an array.
fn text_of(op: &str, operand: char, name: &str, array: &Tensor, state: &str) -> String {
    format!(
        "Op [{op}] {operand} argument uses leaked workspace pointer from workspace [LOOP]: array {name} of shape \
         [2, 3] and dtype f64, made at {} in cycle 1, ended with its cycle; the workspace {state}. Before the cycle \
         ends, call detach() for an array that no workspace ends, or leverage_to(\"NAME\") for one that lives in an \
         enclosing workspace",
        array.created_at().unwrap()
    )
}

#[test]
fn r13_the_text_names_operand_array_maker_cycles_what_is_open_and_the_ways_out() {
    alone(|| {
        let config = basic().build().unwrap();
        let open = Tensor::ones((2, 3), DType::F64, &Device::Cpu).unwrap();
        let (x, line) = {
            let _cycle = Workspace::enter("LOOP", &config).unwrap();
            (Tensor::ones((2, 3), DType::F64, &Device::Cpu).unwrap(), line!())
        };
        let site = x.created_at().unwrap();
        assert!(site.file().ends_with("leaks.rs") && site.line() == line, "{site}");
        let key = x.key().to_string();
        let closed = "is closed after cycle 1. All open workspaces: []";
        assert_eq!(leak(x.add(&open)), text_of("add", 'X', &key, &x, closed));
        assert_eq!(leak(open.add(&x)), text_of("add", 'Y', &key, &x, closed));
        let condition = open.gt(0.).unwrap();
        assert_eq!(leak(condition.where_cond(&open, &x)), text_of("where_cond", 'Z', &key, &x, closed));
        assert_eq!(leak(condition.where_cond(&x, &open)), text_of("where_cond", 'Y', &key, &x, closed));

        let _outer = Workspace::enter("OUTER", &config).unwrap();
        let again = Workspace::enter("LOOP", &config).unwrap();
        let reopened = "is in cycle 2. All open workspaces: [\"OUTER\", \"LOOP\"]";
        assert_eq!(leak(x.exp()), text_of("exp", 'X', &key, &x, reopened));
        let workspace = again.workspace();
        again.leave();
        workspace.destroy().unwrap();
        let destroyed = "was destroyed after cycle 2. All open workspaces: [\"OUTER\"]";
        assert_eq!(leak(x.exp()), text_of("exp", 'X', &key, &x, destroyed));
    });
}

#[test]
fn r13_a_named_array_is_named_and_the_parts_of_the_error_can_be_read() {
    alone(|| {
        let config = basic().build().unwrap();
        let x = Workspace::cycle("LOOP", &config, || {
            let x = Tensor::ones((2, 3), DType::F64, &Device::Cpu)?;
            x.set_name("weights")?;
            Ok::<_, ndgc::Error>(x)
        })
        .unwrap();
        let name = format!("`weights` ({})", x.key());
        let closed = "is closed after cycle 1. All open workspaces: []";
        assert_eq!(leak(x.exp()), text_of("exp", 'X', &name, &x, closed));
        let Err(ndgc::Error::LeakedArray(parts)) = x.exp() else { panic!("as above") };
        assert_eq!((parts.op, parts.operand, &parts.array, &parts.shape[..]), ("exp", 'X', &name, &[2, 3][..]));
        assert_eq!((parts.dtype, &parts.workspace[..], parts.cycle, parts.now), (DType::F64, "LOOP", 1, 1));
        assert_eq!((parts.state, parts.created, &parts.open[..]), (WorkspaceState::Closed, x.created_at(), &[][..]));
    });
}

/// The operation and the operand that a text names.
fn named(text: &str) -> String {
    let (begin, _) = text.split_once(" argument uses leaked workspace pointer from workspace [LOOP]: ").unwrap();
    begin.to_owned()
}

/// Operations on an array that ended, and what they have to say.
fn operations(x: &Tensor, open: &Tensor) -> Vec<(&'static str, Result<Tensor>)> {
    let ids = Tensor::zeros(2, DType::U32, &Device::Cpu).unwrap();
    let wide = open.t().unwrap();
    vec![
        ("Op [add] X", x + open),
        ("Op [sub] Y", open - x),
        ("Op [mul] Y", open * x),
        ("Op [div] X", x / open),
        ("Op [arithmetic] X", x * 2.),
        ("Op [broadcast_add] Y", open.broadcast_add(x)),
        ("Op [exp] X", x.exp()),
        ("Op [neg] X", x.neg()),
        ("Op [sum_all] X", x.sum_all()),
        ("Op [max] X", x.max(0)),
        ("Op [softmax] X", nn_ops::softmax(x, 1)),
        ("Op [eq] Y", open.eq(x)),
        ("Op [matmul] X", x.matmul(&wide)),
        ("Op [matmul] Y", wide.matmul(x)),
        ("Op [index_select] X", x.index_select(&ids, 0)),
        ("Op [to_dtype] X", x.to_dtype(DType::I64)),
        ("Op [copy] X", x.copy()),
        ("Op [arithmetic] X", t!(x + 1.)),
        ("Op [add] Y", t!(open * 2. + x)),
        ("Op [sqr] X", x.clone().sqr()),
    ]
}

/// Views of an array that ended, and what reads it as a whole.
fn views(x: &Tensor) -> Vec<(&'static str, Result<Tensor>)> {
    vec![
        ("Op [transpose] X", x.t()),
        ("Op [transpose] X", x.transpose(0, 1)),
        ("Op [permute] X", x.permute((1, 0))),
        ("Op [narrow] X", x.narrow(0, 0, 1)),
        ("Op [reshape] X", x.reshape(6)),
        ("Op [reshape] X", x.flatten_all()),
        ("Op [unsqueeze] X", x.unsqueeze(0)),
        ("Op [broadcast_as] X", x.broadcast_as((4, 2, 3))),
        ("Op [get] X", x.get(0)),
        ("Op [i] X", x.i((.., 1))),
        ("Op [chunk] X", x.chunk(2, 0).map(|mut all| all.remove(0))),
        ("Op [contiguous] X", x.contiguous()),
        ("Op [detach] X", x.try_detach()),
        ("Op [to_device] X", x.to_device(&Device::sim(SimConfig::default()))),
    ]
}

/// Changes in place with an array that ended.
fn changes(x: &Tensor, open: &Tensor) -> Vec<(&'static str, Result<()>)> {
    vec![
        ("Op [add_] X", x.add_(open).map(drop)),
        ("Op [add_] Y", open.add_(x).map(drop)),
        ("Op [sub_] Y", open.sub_(x).map(drop)),
        ("Op [fill_] X", x.fill_(1.).map(drop)),
        ("Op [exp_] X", x.exp_().map(drop)),
        ("Op [affine_] X", x.affine_(1., 1.).map(drop)),
        ("Op [copy_] X", x.copy_(open)),
        ("Op [copy_] Y", open.copy_(x)),
        ("Op [exp_into] X", x.exp_into(open)),
        ("Op [exp_into] Z", open.exp_into(x)),
        ("Op [add_into] X", x.add_into(open, open)),
        ("Op [add_into] Y", open.add_into(x, open)),
        ("Op [add_into] Z", open.add_into(open, x)),
        ("Op [const_set] X", x.const_set(1f64.into())),
        ("Op [swap_] Y", open.swap_(x)),
        ("Op [slice_set] Y", open.slice_set(x, 0, 0)),
        ("Op [intern] X", x.intern(open.copy().unwrap())),
        ("Op [intern] Y", open.intern(x.clone())),
        ("Op [replace] X", x.replace(open).map(drop)),
    ]
}

/// Everything else that needs an array's numbers or its owner.
fn uses(x: &Tensor, open: &Tensor) -> Vec<(&'static str, Result<()>)> {
    let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
    let path = std::env::temp_dir().join(format!("ndgc_leaks_{}", std::process::id()));
    let variable = Var::from_tensor(open).unwrap();
    let all = [
        ("Op [to_vec] X", x.to_vec::<f32>().map(drop)),
        ("Op [to_vec2] X", x.to_vec2::<f32>().map(drop)),
        ("Op [with_slice] X", x.with_slice(|_: &[f32]| ())),
        ("Op [storage_bytes] X", x.storage_bytes().map(drop)),
        ("Op [is_unique] X", x.is_unique().map(drop)),
        ("Op [set_name] X", x.set_name("late")),
        ("Op [attach] X", x.attach(&manager)),
        ("Op [temp_attach] X", x.temp_attach(&manager)),
        ("Op [ret] X", manager.ret(x).map(drop)),
        ("Op [backward] X", x.backward().map(drop)),
        ("Op [duplicate] X", Var::from_tensor(x).map(drop)),
        ("Op [copy_] Y", variable.set(x)),
        ("Op [to_dlpack] X", x.to_dlpack().map(drop)),
        ("Op [cat] X", Tensor::cat(&[x, open], 0).map(drop)),
        ("Op [cat] Y", Tensor::cat(&[open, x], 0).map(drop)),
        ("Op [stack] Y", Tensor::stack(&[open, x], 0).map(drop)),
        ("Op [to_vec] X", npy::write(x, &path)),
        ("Op [to_vec] X", npz::write(&[("x", x)], &path)),
        ("Op [to_vec] X", ndar::encode(x).map(drop)),
        ("Op [to_vec] X", safetensors::save(&[("x", x.clone())].into(), &path)),
    ];
    let _ = std::fs::remove_file(path);
    all.into()
}

/// Invariant I12 (design.md).
#[test]
fn r13_every_access_finds_it() {
    alone(|| {
        let mut wrong = Vec::new();
        let mut check = |expected: &str, error: Option<ndgc::Error>| {
            let found = match error {
                Some(error @ ndgc::Error::LeakedArray(_)) => named(&crate::common::text_of(&error)),
                other => format!("{other:?}"),
            };
            if found != expected {
                wrong.push((expected.to_owned(), found));
            }
        };
        for dtype in [DType::F32, DType::F64] {
            let (x, open) = (ended(dtype), Tensor::ones((2, 3), dtype, &Device::Cpu).unwrap());
            let with_tensor = operations(&x, &open).into_iter().chain(views(&x));
            with_tensor.for_each(|(expected, result)| check(expected, result.err()));
            let without = changes(&x, &open).into_iter().chain(uses(&x, &open));
            without.for_each(|(expected, result)| check(expected, result.err()));
            assert_eq!(open.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), [1.; 6], "nothing was written");
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn r13_what_a_handle_tells_without_the_numbers_stays() {
    alone(|| {
        let x = ended(DType::F64);
        assert_eq!((x.dims(), x.dtype(), x.elem_count(), x.device()), (&[2, 3][..], DType::F64, 6, &Device::Cpu));
        assert!(x.is_attached() && !x.is_in_scope() && !x.is_open() && x.is_released());
        assert!(!x.is_closeable() && !x.track_op() && x.handle_count() == 1);
        assert!(Tensor::from_registry(x.key()).is_none());
        x.close();
        let text = x.to_string();
        assert!(text.starts_with("This array is already closed") || named(&text[1..]) == "Op [display] X", "{text}");
    });
}

#[test]
fn r13_printing_tells_it_and_does_not_fail() {
    alone(|| {
        let x = ended(DType::F64);
        let text = x.to_string();
        assert_eq!(named(&text), "<Op [display] X");
        assert!(text.ends_with("enclosing workspace>"), "{text}");
        assert_eq!(format!("{x:?}"), format!("Proxy({}, ended with its cycle)", x.key()));
        x.set_name("late").unwrap_err();
    });
}

#[test]
fn r13_a_view_ends_with_the_cycle_of_its_array_and_its_clones_do() {
    alone(|| {
        let config = basic().build().unwrap();
        let (view, clone, of_view) = Workspace::cycle("LOOP", &config, || {
            let x = doubles(6);
            let view = x.narrow(0, 1, 3)?;
            // Made where no workspace is current, but of bytes of one.
            let _out = Workspace::scope_out();
            Ok::<_, ndgc::Error>((view.clone(), x.clone(), view.narrow(0, 0, 1)?))
        })
        .unwrap();
        for left in [&view, &clone, &of_view] {
            assert!(left.is_attached() && !left.is_in_scope());
            leak(left.to_vec::<f64>());
        }
    });
}

#[test]
fn r13_another_thread_finds_it_too() {
    alone(|| {
        let (x, here) = (ended(DType::F64), std::thread::current().id());
        let other = x.clone();
        let text = std::thread::spawn(move || {
            let _own = Workspace::enter("OTHER", &basic().build().unwrap()).unwrap();
            leak(other.exp())
        });
        let text = text.join().unwrap();
        let now = format!(
            "is closed after cycle 1. The workspace is one of thread `{here:?}`; on this thread, all open workspaces: \
             [\"OTHER\"]"
        );
        assert_eq!(text, text_of("exp", 'X', &x.key().to_string(), &x, &now));
    });
}

#[test]
fn r13_circular_workspaces_are_not_exempt() {
    alone(|| {
        let block = 4096;
        let config = loop_first()
            .initial_size(2 * block)
            .policy_learning(LearningPolicy::None)
            .policy_reset(ResetPolicy::EndOfBufferReached)
            .build()
            .unwrap();
        let fill = |value: f64| {
            let _cycle = Workspace::enter("LOOP", &config).unwrap();
            filled(value, block as usize / 8)
        };
        let arrays: Vec<Tensor> = (0..6).map(|i| fill(f64::from(i))).collect();
        let mut found = 0;
        for (i, array) in arrays.iter().enumerate() {
            match array.to_vec::<f64>() {
                Ok(all) => assert_eq!(all, vec![i as f64; block as usize / 8], "it is its own"),
                Err(error) => {
                    found += 1;
                    let text = leak::<()>(Err(error));
                    assert!(text.contains(&format!(" in cycle {}, ended with its cycle", i + 1)), "{text}");
                    assert!(leak(array + 1.).contains("] X argument uses leaked workspace pointer"));
                }
            }
        }
        assert_eq!(found, 4, "the ring holds the last two");
    });
}

#[test]
fn r13_neither_the_switch_nor_a_debug_mode_hides_it() {
    alone(|| {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                Workspace::set_debug_mode(DebugMode::Disabled);
            }
        }
        let _restore = Restore;
        for on in [false, true] {
            let _switch = gc::scoped(on);
            for mode in [DebugMode::Disabled, DebugMode::SpillEverything] {
                Workspace::set_debug_mode(mode);
                let x = ended(DType::F64);
                gc::collect();
                assert!(x.is_attached(), "{mode:?}");
                leak(x.exp());
                leak(x.to_vec::<f64>());
            }
        }
    });
}

#[test]
fn r13_an_array_that_was_closed_by_hand_is_closed_and_not_leaked() {
    alone(|| {
        let config = basic().build().unwrap();
        let cycle = Workspace::enter("LOOP", &config).unwrap();
        let (x, y) = (doubles(10), filled(2., 10));
        x.close();
        assert!(matches!(x.exp(), Err(ndgc::Error::StaleArray(_))));
        assert_eq!(sum(&y), 20.);
        cycle.leave();
        assert!(matches!(x.exp(), Err(ndgc::Error::StaleArray(_))));
        leak(y.exp());
    });
}

#[test]
fn r13_random_draws_and_generators_write_nothing_into_an_array_that_ended() {
    alone(|| {
        let x = ended(DType::F64);
        let _again = Workspace::enter("LOOP", &basic().build().unwrap()).unwrap();
        let same_place = filled(2., 6);
        leak(x.uniform_(0., 1.));
        leak(x.normal_(0., 1.));
        let mut random = Generator::new(1);
        assert!(random.uniform(0., 1., 6, DType::F64, &Device::Cpu).unwrap().is_attached());
        assert_eq!(sum(&same_place), 12.);
    });
}
