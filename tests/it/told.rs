//! What errors say, to the word, where programs of users found them wanting: the line is the user's, the operation is
//! the one that was called, the remedy helps. D1 to D7 of the outside reading.

use std::collections::HashMap;

use ndgc::nn::{self, Adam, Mlp, Module, Optimizer, Prefetch, SGD, VarBuilder, VarMap, kv_cache::KvCache};
use ndgc::{
    DType, Device, Error, Generator, GradStore, LearningPolicy, NdManager, ResetPolicy, SimConfig, Tensor, Var,
    Workspace, WorkspaceConfig, destroy_all_workspaces_for_current_thread, gc,
};

use crate::it::support::{alone, base, matrix, text};

/// The text of an array that was made in this file and closed here.
const CLOSED: &str = "exp: array KEY (made at HERE) has been closed already, by its user at HERE; call attach or detach before \
                      its owner ends";

/// Asserts that an array was made by this line of this file, and that its errors say so.
#[track_caller]
fn made_at(what: &str, array: &Tensor, line: u32) {
    let site = array.created_at().unwrap();
    assert!(site.file() == file!() && site.line() == line, "{what} is made at {site}, not in line {line}");
    array.close();
    assert_eq!(text(array.exp()), CLOSED, "{what}");
}

#[test]
fn d1_gradients_are_made_by_the_line_that_asks_for_them() {
    alone(|| {
        let of = |f: fn(&Var, &Var) -> ndgc::Result<Tensor>| {
            let [a, b] = [1f32, 2.].map(|value| Var::from_vec(vec![value; 4], (2, 2), &Device::Cpu).unwrap());
            let loss = f(&a, &b).unwrap().sum_all().unwrap();
            let (grads, line) = (loss.backward().unwrap(), line!());
            [&a, &b].into_iter().filter_map(|of| grads.get(of)).for_each(|grad| made_at("a gradient", grad, line));
        };
        of(|a, b| a.add(b));
        of(|a, b| a.mul(b)?.div(b));
        of(|a, b| a.matmul(&b.t()?)?.softmax(1)?.sqr());
        of(|a, b| Tensor::cat(&[a.as_tensor(), b], 0)?.max(0));
        of(|a, b| a.get(0)?.broadcast_mul(b)?.relu()?.mean(1));
        of(|a, b| a.cross_entropy(&b.get(0)?.to_dtype(DType::U32)?.affine(0., 1.)?));
    });
}

#[test]
fn d1_what_layers_and_builders_make_is_made_by_the_line_that_asks_for_them() {
    alone(|| {
        let (map, device) = (VarMap::new(), Device::Cpu);
        let vb = VarBuilder::from_varmap(&map, DType::F32, &device);
        let (linear, line) = (nn::linear(3, 2, vb.pp("linear")).unwrap(), line!());
        made_at("a weight", linear.weight(), line);
        made_at("a bias", linear.bias().unwrap(), line);
        let (embedding, line) = (nn::embedding(3, 2, vb.pp("embedding")).unwrap(), line!());
        made_at("an embedding", embedding.embeddings(), line);
        let (norm, line) = (nn::batch_norm(3, 1e-5, vb.pp("norm")).unwrap(), line!());
        made_at("a running mean", norm.running_mean(), line);
        let (norm, line) = (nn::layer_norm(3, 1e-5, vb.pp("layer")).unwrap(), line!());
        made_at("a weight of a norm", norm.weight(), line);
        let (conv, line) = (nn::conv2d(1, 2, 3, Default::default(), vb.pp("conv")).unwrap(), line!());
        made_at("a kernel", conv.weight(), line);
        let (lstm, line) = (nn::lstm(3, 2, Default::default(), vb.pp("lstm")).unwrap(), line!());
        let of_lstm = map.data().lock().unwrap();
        let of_lstm = of_lstm.iter().filter(|(name, _)| name.starts_with("lstm"));
        of_lstm.for_each(|(name, weight)| made_at(name, weight, line));
        drop(lstm);
        let (mlp, line) = (Mlp::new(&[3, 2], &mut Generator::new(1), &device).unwrap(), line!());
        mlp.variables().iter().for_each(|variable| made_at("a variable", variable, line));
    });
}

#[test]
fn d1_what_is_looked_up_by_name_is_made_by_the_line_that_asks_for_it() {
    alone(|| {
        let device = Device::Cpu;
        let path = std::env::temp_dir().join(format!("ndgc_told_{}.safetensors", std::process::id()));
        let one = || Tensor::ones((2, 3), DType::F32, &device).unwrap();
        ndgc::safetensors::save(&HashMap::from([("w", one())]), &path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let sources = [
            VarBuilder::zeros(DType::F32, &device),
            VarBuilder::from_safetensors_files(&[&path], DType::F32, &device).unwrap(),
            VarBuilder::from_buffered_safetensors(bytes, DType::F32, &device).unwrap(),
            VarBuilder::from_tensors(HashMap::from([("w".to_owned(), one())]), DType::F64, &device),
        ];
        for vb in &sources {
            let (weight, line) = (vb.get((2, 3), "w").unwrap(), line!());
            made_at("a weight", &weight, line);
        }
        let (loaded, line) = (ndgc::safetensors::load(&path, &device).unwrap(), line!());
        made_at("a loaded array", &loaded["w"], line);
        let mut cache = KvCache::new(1, 8);
        let (k, v) = (Tensor::ones((1, 2, 4), DType::F32, &device).unwrap(), one().reshape((1, 2, 3)).unwrap());
        let ((keys, values), line) = (cache.append(&k, &v).unwrap(), line!());
        made_at("keys", &keys, line);
        made_at("values", &values, line);
        let _ = std::fs::remove_file(path);
    });
}

#[test]
fn d1_the_system_manager_is_made_by_the_line_that_asks_for_it() {
    alone(|| {
        let (array, manager) = (Tensor::ones(1, DType::F32, &Device::Cpu).unwrap(), base(&Device::Cpu));
        let made = |manager: NdManager| manager.report().created;
        let (sites, line) = ([made(NdManager::system(&Device::Cpu)), made(array.manager().unwrap())], line!());
        assert!(sites.iter().all(|site| site.file() == file!() && site.line() == line), "{sites:?}");
        let (parent, line) = (made(manager.parent().unwrap().unwrap()), line!());
        assert!(parent.file() == file!() && parent.line() == line, "{parent}");
    });
}

/// A cycle of [STEP] that made the gradient of a variable and ended.
fn ended_gradients() -> (Var, GradStore) {
    let x = Var::from_vec(vec![1f32, 2., 3.], 3, &Device::Cpu).unwrap();
    let grads = Workspace::cycle("STEP", &WorkspaceConfig::default(), || x.sqr()?.sum_all()?.backward()).unwrap();
    (x, grads)
}

/// What an operation says of such a gradient.
fn of_ended(op: &str, operand: char) -> String {
    format!(
        "Op [{op}] {operand} argument uses leaked workspace pointer from workspace [STEP]: array KEY of shape [3] and dtype \
         f32, made at HERE in cycle 1, ended with its cycle; the workspace is closed after cycle 1. All open workspaces: []. \
         Before the cycle ends, call detach() for an array that no workspace ends, or leverage_to(\"NAME\") for one that \
         lives in an enclosing workspace"
    )
}

#[test]
fn d2_gradients_that_left_their_cycle_name_the_step_and_the_line_of_backward() {
    alone(|| {
        let (x, grads) = ended_gradients();
        let mut sgd = SGD::new(vec![x.clone()], 0.1).unwrap();
        assert_eq!(text(sgd.step(&grads)), of_ended("sgd_step_", 'Y'));
        let mut adam = Adam::new(vec![x.clone()], 0.1).unwrap();
        assert_eq!(text(adam.step(&grads)), of_ended("adam_step_", 'Y'));
        assert_eq!(text(grads.get(&x).unwrap().to_vec::<f32>()), of_ended("to_vec", 'X'));
        assert_eq!(text(grads.detach()), of_ended("detach", 'X'));
        assert_eq!(x.to_vec::<f32>().unwrap(), [1., 2., 3.], "nothing was changed");
    });
}

#[test]
fn d3_a_leak_on_another_thread_names_the_thread_of_its_workspace() {
    alone(|| {
        let (_x, grads) = ended_gradients();
        let worker = std::thread::Builder::new().name("worker".to_owned());
        let told = worker.spawn(move || {
            let _own = Workspace::enter("STEP", &WorkspaceConfig::default()).unwrap();
            text(grads.detach())
        });
        let told = told.unwrap().join().unwrap();
        let mine = std::thread::current();
        let mine = mine.name().map_or_else(|| format!("{:?}", mine.id()), str::to_owned);
        let wanted = of_ended("detach", 'X').replace(
            "All open workspaces: []",
            &format!("The workspace is one of thread `{mine}`; on this thread, all open workspaces: [\"STEP\"]"),
        );
        assert_eq!(told, wanted);
    });
}

#[test]
fn d4_leaks_of_rings_say_that_the_batch_or_its_lease_is_to_be_kept() {
    alone(|| {
        let config = WorkspaceConfig::builder()
            .policy_reset(ResetPolicy::EndOfBufferReached)
            .overallocation_limit(1.)
            .build()
            .unwrap();
        let four = |n: usize| Tensor::full(n as f32, 4, &Device::Cpu);
        let first = Workspace::cycle("RING", &config, || four(0)).unwrap();
        for n in 1..4 {
            Workspace::cycle("RING", &config, || four(n)).unwrap();
        }
        let wanted = |name: &str, thread: &str| {
            format!(
                "Op [exp] X argument uses leaked workspace pointer from workspace [{name}]: array KEY of shape [4] and dtype f32, \
                 made at HERE in cycle 1, ended with its cycle; the workspace {thread}. Its cycles are those of a ring: keep \
                 the batch, or a lease() of its cycle, as long as its arrays. Before the cycle ends, call detach() for an \
                 array that no workspace ends, or leverage_to(\"NAME\") for one that lives in an enclosing workspace"
            )
        };
        assert_eq!(text(first.exp()), wanted("RING", "is closed after cycle 4. All open workspaces: []"));

        let batches = Prefetch::new(&config, 0, move |n| if n < 8 { four(n).map(Some) } else { Ok(None) }).unwrap();
        let kept: Vec<Tensor> = batches.map(|batch| batch.unwrap().clone()).collect();
        let told = text(kept[0].exp());
        let (before, after) = told.split_once(". The workspace is one of thread `").unwrap();
        let (_, after) = after.split_once("`; on this thread, all open workspaces: []").unwrap();
        let state = before.rsplit_once("the workspace ").unwrap().1;
        assert_eq!(format!("{before}{after}"), wanted("PREFETCH", state), "the thread aside");
    });
}

/// A simulated device of a MiB.
fn small() -> Device {
    Device::sim(SimConfig { memory_bytes: 1 << 20, ..SimConfig::default() })
}

#[test]
fn d5_with_the_switch_on_kept_orphans_are_closed_before_memory_is_refused() {
    alone(|| {
        gc::collect_orphans();
        let device = small();
        let manager = base(&device);
        manager.set_name("model");
        drop(manager.zeros(900_000, DType::U8).unwrap());
        assert_eq!((gc::stats().kept, manager.array_count()), (1, 1), "the switch is off");
        let told = text(manager.zeros(500_000, DType::U8));
        assert!(
            told.ends_with(
                "1 dead array of 878.91 KiB kept by their managers: gc::collect_orphans() gives them back, and with gc::on() \
                 none are kept"
            ),
            "{told}"
        );
        let _on = gc::scoped(true);
        let array = manager.zeros(500_000, DType::U8).unwrap();
        assert_eq!((gc::stats().kept, manager.array_count()), (0, 1));
        let told = text(manager.zeros(900_000, DType::U8));
        assert_eq!(
            told.split_once(" reachable, ").unwrap().1,
            "0 dead arrays closed first; tried: drain 0 B, trim 0 B, collect_orphans 0 B; largest owners: `model` (1 array, 488.28 KiB); largest lines: HERE (1 \
             array, 488.28 KiB); close one, use smaller batches, or let memory::set_device_spill() take memory of the host"
        );
        drop(array);
    });
}

#[test]
fn the_error_has_the_bytes_of_the_dead_arrays_that_were_closed_first() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        device.set_limit(Some(800_000));
        let held = Tensor::zeros(100_000, DType::U8, &device).unwrap();
        // More than a call closes by itself.
        let dead: Vec<_> = (0..600).map(|_| Tensor::zeros(1000, DType::U8, &device).unwrap()).collect();
        drop(dead);
        let Err(Error::OutOfMemory(oom)) = Tensor::zeros(750_000, DType::U8, &device) else { panic!("it fits") };
        assert!(oom.reclaimed > 0 && oom.reclaimed_bytes == oom.reclaimed * 1000, "{oom:?}");
        assert_eq!((oom.active, oom.reachable()), (100_000, 700_000));
        let told = oom.to_string();
        assert!(told.contains(" 683.59 KiB reachable, limit 781.25 KiB, "), "{told}");
        assert!(told.contains(&format!(", {} dead arrays of ", oom.reclaimed)), "{told}");
        drop(held);
    });
}

#[test]
fn d6_out_of_memory_names_workspaces_and_handles_among_the_largest_owners() {
    alone(|| {
        gc::collect_orphans();
        let (device, elsewhere) = (small(), Tensor::zeros(10_000_000, DType::U8, &Device::Cpu).unwrap());
        let manager = base(&device);
        manager.set_name("training");
        let _small = manager.zeros(1000, DType::U8).unwrap();
        let _handles = [(); 2].map(|()| Tensor::zeros(100_000, DType::U8, &device).unwrap());
        let config = WorkspaceConfig::builder()
            .initial_size(400_000)
            .policy_learning(LearningPolicy::None)
            .overallocation_limit(0.)
            .build()
            .unwrap();
        Workspace::cycle_on(&device, "STEP", &config, || Ok::<_, Error>(())).unwrap();
        let told = text(manager.zeros(900_000, DType::U8));
        let (_, told) = told.split_once("; largest owners: ").unwrap();
        assert_eq!(
            told,
            "`workspace [STEP]` (1 array, 390.62 KiB), `arrays owned by their handles` (2 arrays, 195.31 KiB), `training` (1 \
             array, 1000 B); largest lines: HERE (2 arrays, 195.31 KiB), HERE (1 array, 1000 B); close one, use smaller \
             batches, or let memory::set_device_spill() take memory of the host"
        );
        drop(elsewhere);
    });
}

#[test]
fn d7_a_closed_manager_names_what_was_asked_of_it_and_operands_have_their_numbers() {
    alone(|| {
        let (manager, other) = (base(&Device::Cpu), base(&Device::Cpu));
        let array = matrix(&other);
        manager.set_name("batch");
        manager.close().unwrap();
        let closed = "manager `batch` (made at HERE) has been closed already, with its manager at HERE; use a manager that is \
                      open, or a device";
        assert_eq!(text(manager.ret(&array)), format!("ret: {closed}"));
        assert_eq!(text(manager.parent()), format!("parent: {closed}"));
        assert_eq!(text(manager.ret_to(&array)), format!("attach: {closed}"));

        let config = WorkspaceConfig::default();
        let ended = Workspace::cycle("STEP", &config, || Tensor::ones(3, DType::F32, &Device::Cpu)).unwrap();
        let open = Tensor::ones(3, DType::F32, &Device::Cpu).unwrap();
        for (place, name) in "XYZ456789".chars().enumerate() {
            let mut all = vec![&open; 9];
            all[place] = &ended;
            let told = text(Tensor::cat(&all, 0));
            assert_eq!(told, of_ended("cat", name), "operand {place}");
        }
        drop((linear_of(&open), destroy_all_workspaces_for_current_thread()));
    });
}

/// The second operand of a layer is its weight.
fn linear_of(open: &Tensor) {
    let weight =
        Workspace::cycle("STEP", &WorkspaceConfig::default(), || Tensor::ones(3, DType::F32, &Device::Cpu)).unwrap();
    let layer = nn::Linear::new(weight.clone(), None);
    let told = text(layer.forward(&open.reshape((1, 3)).unwrap()));
    assert!(told.starts_with("Op [linear] Y argument uses leaked workspace pointer from workspace [STEP]"), "{told}");
}

/// The line of an error, as `file:line`.
fn line_of<T>(result: ndgc::Result<T>) -> String {
    let site = result.map(drop).unwrap_err().site().expect("it names its line");
    format!("{}:{}", site.file(), site.line())
}

/// What a program sees of a mistake: which of its lines made it, and not which of the library's found it.
#[test]
fn d8_an_error_names_the_users_line_the_innermost_that_there_is() {
    alone(|| {
        let of = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
        let (a, b) = (of(&[2, 3]), of(&[4]));
        let here = |line: u32| format!("{}:{line}", file!());
        assert_eq!(line_of(a.add(&b)), here(line!()));
        assert_eq!(line_of(&a + &b), here(line!()));
        assert_eq!(line_of(ndgc::t!((a - b).exp())), here(line!()));
        assert_eq!(line_of(nn::Linear::new(of(&[5, 7]), None).forward(&a)), here(line!()));
        assert_eq!(line_of(nn::loss::mse(&a, &b)), here(line!()), "an operation that is made of others");
        let ids = Tensor::zeros((1, 3), DType::U32, &Device::Cpu).unwrap();
        assert_eq!(line_of(a.scatter(&ids, &of(&[1, 3]), 9)), here(line!()), "an axis that there is not");
        let points = ids.reshape([1, 1, 1, 1, 1, 3]).unwrap();
        assert_eq!(line_of(a.embedding(&points)), here(line!()), "more axes than there can be");
        let (mut inside, outside) = (0, line!() + 1);
        let composed = a.compose("mine", || {
            inside = line!() + 1;
            a.sqr()?.matmul(&a)
        });
        let told = composed.as_ref().map(drop).unwrap_err().to_string();
        assert!(told.starts_with("shape mismatch in mine, ") && told.ends_with(")"), "{told}");
        assert!(told.contains(&format!(" (called at {}:", here(inside))) && inside > outside, "{told}");

        let about = ndgc::Context::context(a.narrow(0, 1, 2), "step 7");
        assert_eq!(line_of(about), here(line!() - 1), "also under what was said around it");
        assert_eq!(Error::msg("of nothing that was called").site(), None);
    });
}

/// What goes wrong inside of a network is told of the line that called it, with the layer.
#[test]
fn d9_an_error_in_a_network_names_the_users_line_and_the_layer() {
    use ndgc::train::{DataSet, Dense, InputType, Loss, NetworkConfig, OutputLayer};
    alone(|| {
        let config = NetworkConfig::builder().input_type(InputType::feed_forward(3)).layer(Dense::new(2));
        let mut network = config.layer(OutputLayer::new(2, Loss::Mse)).build().unwrap();
        let of = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
        let here = |line: u32| format!("{}:{line}", file!());
        let wrong = DataSet::new(of(&[4, 3]), of(&[4, 5])).unwrap();
        assert_eq!(line_of(network.fit_batch(&wrong)), here(line!()));
        assert_eq!(line_of(network.score_batch(&wrong, false)), here(line!()));
        assert_eq!(line_of(network.output(&of(&[4, 9]))), here(line!()));
        assert_eq!(line_of(DataSet::new(of(&[4, 3]), of(&[3, 2]))), here(line!()));
        let told = network.fit_batch(&wrong).unwrap_err().to_string();
        assert!(told.starts_with("layer ") && told.contains(file!()), "{told}");
    });
}

/// What iterators of data, evaluations, normalisers and files refuse is told of the line that asked.
#[test]
fn d10_an_error_of_data_or_an_evaluation_names_the_users_line() {
    use ndgc::train::{
        ArrayDataSetIterator, CsvDataSetIterator, CsvLabels, DataIterator, DataSet, Evaluation, IEvaluation,
        Normalizer, RegressionEvaluation, Roc, read_idx,
    };
    alone(|| {
        let of = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
        let here = |line: u32| format!("{}:{line}", file!());
        let (mut evaluation, mut roc) = (Evaluation::new(3), Roc::default());
        assert_eq!(line_of(evaluation.eval(&of(&[4, 3]), &of(&[5, 3]), None)), here(line!()));
        assert_eq!(line_of(evaluation.eval(&of(&[4, 2]), &of(&[4, 2]), None)), here(line!()));
        assert_eq!(line_of(roc.eval(&of(&[4, 3]), &of(&[4, 3]), None)), here(line!()));
        assert_eq!(line_of(roc.merge(&Roc::new(5).unwrap())), here(line!()));
        assert_eq!(line_of(RegressionEvaluation::from_json("{}")), here(line!()));
        let closed = of(&[4, 3]);
        closed.close();
        assert_eq!(line_of(evaluation.eval(&closed, &of(&[4, 3]), None)), here(line!()));

        let set = DataSet::new(of(&[4, 3]), of(&[4, 3])).unwrap();
        assert_eq!(line_of(DataSet::merge(&[])), here(line!()));
        let narrower = DataSet::new(of(&[1, 2]), of(&[1, 3])).unwrap();
        assert_eq!(line_of(DataSet::merge(&[set.clone(), narrower])), here(line!()));
        assert_eq!(line_of(ArrayDataSetIterator::new(set.clone(), 0)), here(line!()));
        assert_eq!(line_of(Normalizer::standardize().transform(&set)), here(line!()));
        assert_eq!(line_of(read_idx("/there is no such file")), here(line!()));
        assert_eq!(line_of(CsvDataSetIterator::new("/nor this", CsvLabels::None, 2)), here(line!()));
        let mut batches = ArrayDataSetIterator::new(set.clone(), 3).unwrap();
        set.features.close();
        assert_eq!(line_of(set.detach()), here(line!()));
        assert_eq!(line_of(Normalizer::standardize().fit(&mut batches)), here(line!()));
        batches.reset().unwrap();
        for batch in &mut batches {
            let refused = batch.map(drop).unwrap_err();
            assert_eq!(refused.site(), None, "the standard library asks: no line is better than one of this library's");
        }
        batches.reset().unwrap();
        for batch in batches {
            assert_eq!(line_of(batch), here(line!() - 1), "that of the loop");
        }
    });
}

/// What changed before `backward` is told of the operation that needs it, and of the call that found it.
#[test]
fn d11_a_gradient_that_cannot_be_names_the_operation_and_the_call_of_backward() {
    alone(|| {
        let x = ndgc::Var::ones(3, DType::F32, &Device::Cpu).unwrap();
        let y = x.as_tensor().affine(2., 0.).unwrap();
        let (loss, operation) = (y.sqr().unwrap().sum_all().unwrap(), line!());
        ndgc::no_grad(|| y.add_(&y)).unwrap();
        let (refused, line) = (loss.backward(), line!());
        let told = refused.as_ref().map(drop).unwrap_err().to_string();
        assert!(matches!(refused, Err(Error::ChangedSinceSaved { op: "sqr", .. })), "{told}");
        assert_eq!(line_of(refused), format!("{}:{line}", file!()));
        assert!(told.contains(&format!("sqr (called at {}:{operation}:", file!())), "{told}");
        assert!(told.contains(&format!("after backward (called at {}:{line}:", file!())), "{told}");
    });
}

/// What a file refuses is told of the line that reads it, with the reader made before or not.
#[test]
fn d12_an_error_of_a_file_names_the_users_line() {
    use ndgc::quantized::{ggml_file, gguf_file};
    use ndgc::{nn::VarBuilder, nn::VarMap, npy, npz, pickle, safetensors};
    use std::io::Cursor;
    alone(|| {
        let (cpu, dtype) = (Device::Cpu, DType::F32);
        let here = |line: u32| format!("{}:{line}", file!());
        let folder = std::env::temp_dir().join(format!("ndgc-told-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (none, bad, archive, model) =
            (folder.join("none"), folder.join("bad"), folder.join("a.npz"), folder.join("a.safetensors"));
        std::fs::write(&bad, b"nothing of the kind").unwrap();
        // More than a reader reads ahead.
        let w = Tensor::ones(20_000, dtype, &cpu).unwrap();
        npz::write(&[("w", &w)], &archive).unwrap();
        safetensors::save(&std::collections::HashMap::from([("w", w.clone())]), &model).unwrap();
        let (nowhere, garbage) = (none.join("under it"), &b"nothing of the kind"[..]);

        assert_eq!(line_of(npy::read(&none, &cpu)), here(line!()));
        assert_eq!(line_of(npy::read(&bad, &cpu)), here(line!()));
        assert_eq!(line_of(npy::decode(garbage, &cpu)), here(line!()));
        assert_eq!(line_of(npy::write(&w, &nowhere)), here(line!()));
        assert_eq!(line_of(npz::read(&bad, &cpu)), here(line!()));
        assert_eq!(line_of(npz::read_by_name(&archive, &["v"], &cpu)), here(line!()));
        assert_eq!(line_of(npz::encode(&[("w", &w), ("w", &w)])), here(line!()));
        assert_eq!(line_of(npz::NpzTensors::new(&none)), here(line!()));
        let arrays = npz::NpzTensors::new(&archive).unwrap();
        assert_eq!(line_of(arrays.get_shape_and_dtype("v")), here(line!()));
        assert_eq!(line_of(ndgc::ndar::decode_list(garbage, &cpu)), here(line!()));
        assert_eq!(line_of(pickle::read_all(&bad)), here(line!()));
        assert_eq!(line_of(pickle::PthTensors::new(&none, None)), here(line!()));
        assert_eq!(line_of(safetensors::load(&bad, &cpu)), here(line!()));
        assert_eq!(line_of(safetensors::SliceSafetensors::new(garbage)), here(line!()));
        assert_eq!(line_of(safetensors::SafeTensorsFile::multi(&[&model, &none])), here(line!()));
        let file = safetensors::SafeTensorsFile::new(&model).unwrap();
        assert_eq!(line_of(file.load("v", &cpu)), here(line!()));
        let bytes = safetensors::BufferedSafetensors::new(std::fs::read(&model).unwrap()).unwrap();
        assert_eq!(line_of(bytes.get("v")), here(line!()));

        let gguf = gguf_file::Content::read(&mut Cursor::new(garbage));
        assert_eq!(line_of(gguf), here(line!() - 1));
        let mut packed = Cursor::new(Vec::new());
        gguf_file::write(&mut packed, &[("layers", &gguf_file::Value::U32(1))], &[]).unwrap();
        packed.set_position(0);
        let content = gguf_file::Content::read(&mut packed).unwrap();
        assert_eq!(line_of(content.tensor(&mut packed, "v", &cpu)), here(line!()));
        assert_eq!(line_of(content.metadata["layers"].to_f64()), here(line!()));
        assert_eq!(line_of(ggml_file::Content::read(&mut Cursor::new(garbage), &cpu)), here(line!()));

        assert_eq!(line_of(VarBuilder::from_npz(&none, dtype, &cpu)), here(line!()));
        let of_file = VarBuilder::from_safetensors_files(&[&model], dtype, &cpu).unwrap();
        assert_eq!(line_of(of_file.get(2, "v")), here(line!()));
        assert_eq!(line_of(of_file.get(3, "w")), here(line!()));
        let of_arrays = VarBuilder::from_npz(&archive, dtype, &cpu).unwrap();
        assert_eq!(line_of(of_arrays.pp("layer").get(2, "w")), here(line!()));
        assert_eq!(line_of(VarMap::new().set_one("v", &w)), here(line!()));
        assert_eq!(line_of(VarMap::new().load(&bad)), here(line!()));

        std::fs::write(&model, b"{}").unwrap();
        assert_eq!(line_of(file.load("w", &cpu)), here(line!()), "of a file that was opened in another line");
        std::fs::remove_dir_all(&folder).unwrap();
    });
}

/// Settings, devices and checkpoints too.
#[test]
fn d13_what_is_made_or_configured_names_the_users_line() {
    use ndgc::train::{
        Dense, InputType, Loss, Network, NetworkConfig, OutputLayer, ParallelInference, ParallelWrapper,
    };
    alone(|| {
        let here = |line: u32| format!("{}:{line}", file!());
        let wrong = WorkspaceConfig::builder().initial_size(10).max_size(5);
        assert_eq!(line_of(wrong.build()), here(line!()));
        assert_eq!(line_of(Device::new_metal(0)), here(line!()));
        assert_eq!(line_of(Device::new_cuda(1 << 20)), here(line!()));
        let device = Device::sim(ndgc::SimConfig::default());
        let Device::Sim(sim) = &device else { return };
        sim.fail_call(Some(1));
        assert_eq!(line_of(Tensor::zeros(1, DType::F32, &device)), here(line!()));

        let config = NetworkConfig::builder().input_type(InputType::feed_forward(3)).layer(Dense::new(2));
        let (network, line) = (config.layer(OutputLayer::new(2, Loss::Mse)).build(), line!());
        let mut network = network.unwrap();
        for (name, var) in network.params() {
            let site = var.as_tensor().created_at().unwrap();
            assert_eq!(format!("{}:{}", site.file(), site.line()), here(line), "{name}");
        }
        let w = Tensor::ones(2, DType::F32, &Device::Cpu).unwrap();
        assert_eq!(line_of(network.set_param("9_W", &w)), here(line!()));
        let told = network.set_param("0_w", &w).unwrap_err().to_string();
        assert!(told.contains("the nearest names are `0_W`"), "{told}");
        assert_eq!(line_of(network.set_updater_state([("0_W/M", &w)])), here(line!()));
        assert_eq!(line_of(network.save("/there is no such folder/model")), here(line!()));
        assert_eq!(line_of(network.restore("/nor this/model")), here(line!()));
        assert_eq!(line_of(Network::load("/nor that/model", &Device::Cpu)), here(line!()));
        assert_eq!(line_of(NetworkConfig::from_json("{}")), here(line!()));
        assert_eq!(line_of(ParallelInference::builder(network.replica().unwrap()).workers(0).build()), here(line!()));
        assert_eq!(line_of(ParallelWrapper::builder(network).workers(0).build()), here(line!()));
    });
}
