//! Captured sections compute what the program would have computed, on whatever stream, from whatever thread.

use ndgc::nn::{self, Adam, AdamConfig, Mlp, Module, Optimizer, SGD, SgdConfig, StepRule};
use ndgc::train::{
    Activation, DataSet, Dense, InputType, Loss, Network, NetworkConfig, OutputLayer, Updater, WorkspaceMode,
};
use ndgc::{
    DType, Device, Error, Generator, Graph, LearningPolicy, PlanStats, Result, SimConfig, Tensor, Workspace,
    WorkspaceConfig, gc,
};

use crate::common::check;
use crate::device::support::{alone, both, finish, sim, values, vector};

const ROWS: usize = 8;
const REPLAYS: usize = 20;

/// Numbers that are others in every replay.
fn noise(device: &Device) -> Result<Tensor> {
    Generator::new(7).uniform(0.5, 1.5, (ROWS, 6), DType::F32, device)
}

/// What one training step reads and changes.
struct Training {
    network: Mlp,
    inputs: Tensor,
    labels: Tensor,
    optimizer: Box<dyn Optimizer>,
}

impl Training {
    fn new(device: &Device, optimizer: &str) -> Self {
        let mut random = Generator::new(3);
        let network = Mlp::new(&[6, 16, 4], &mut random, device).unwrap();
        let inputs = random.normal(0., 1., (ROWS, 6), DType::F32, device).unwrap();
        let labels = Tensor::from_vec((0..ROWS as u32).map(|i| i % 4).collect(), ROWS, device).unwrap();
        let variables = network.variables();
        let optimizer: Box<dyn Optimizer> = match optimizer {
            "sgd" => Box::new(SGD::new(variables, 0.1).unwrap()),
            "momentum" => {
                let config = SgdConfig { rate: 0.1, momentum: 0.9, decay: 0.01 };
                Box::new(SGD::with_config(variables, config).unwrap())
            }
            _ => {
                let config = AdamConfig { rate: 0.01, decay: 0.1, ..AdamConfig::default() };
                Box::new(Adam::with_config(variables, config).unwrap())
            }
        };
        Training { network, inputs, labels, optimizer }
    }

    fn step(&mut self, noise: &Tensor) -> Result<Tensor> {
        let logits = self.network.forward(&self.inputs.mul(noise)?)?;
        let loss = nn::loss::cross_entropy(&logits, &self.labels)?;
        self.optimizer.backward_step(&loss)?;
        Ok(loss)
    }

    fn weights(&self) -> Vec<Vec<f32>> {
        self.network.variables().iter().map(|variable| values(variable)).collect()
    }
}

#[test]
fn a_captured_training_step_is_the_training_step() {
    both(|device| {
        for name in ["sgd", "momentum", "adam"] {
            // Twice: the first one makes the optimiser's state.
            let mut replayed = Training::new(device, name);
            (0..2).for_each(|_| drop(replayed.step(&noise(device).unwrap()).unwrap()));
            let (graph, loss) = device.capture(|| replayed.step(&noise(device)?)).unwrap();
            let (eager_device, mut losses) = (Device::sim(SimConfig::default()), Vec::new());
            let mut eager = Training::new(&eager_device, name);
            // The same numbers as in the replays: they are those of a section of their own.
            (0..2).for_each(|_| drop(eager.step(&noise(&eager_device).unwrap()).unwrap()));
            let (draw, drawn) = eager_device.capture(|| noise(&eager_device)).unwrap();
            for replay in 0..REPLAYS {
                graph.replay().unwrap();
                draw.replay().unwrap();
                if replay == 0 {
                    assert_eq!(values(&drawn), values(&noise(&eager_device).unwrap()), "the first is the eager one");
                }
                let expected = values(&eager.step(&drawn).unwrap());
                assert_eq!(values(&loss), expected, "{name}, replay {replay}");
                losses.extend(expected);
            }
            assert_eq!(replayed.weights(), eager.weights(), "{name}");
            losses.dedup();
            assert_eq!(losses.len(), REPLAYS, "{name}: each replay drew other numbers");
            drop((eager, draw, drawn));
            finish(&eager_device);
        }
    });
}

/// Steps that differ by their number: a replay is the one after.
#[test]
fn replays_count_the_steps_of_every_rule() {
    let (beta1, beta2, epsilon) = (0.8, 0.95, 1e-3);
    let rules = [
        StepRule::AmsGrad { beta1, beta2, epsilon },
        StepRule::Nadam { beta1, beta2, epsilon },
        StepRule::AdaMax { beta1, beta2 },
        StepRule::AdaDelta { rho: beta2, epsilon },
    ];
    both(|device| {
        for rule in rules {
            let make = || {
                let x = vector(&[1., -2., 3.], device);
                let kept: Vec<Tensor> = (0..rule.kept()).map(|_| x.zeros_like().unwrap()).collect();
                (x.ones_like().unwrap(), kept, x)
            };
            let (grad, kept, x) = make();
            let (graph, ()) = device.capture(|| x.optimizer_step_(&grad, &kept, rule, 0.1, 1)).unwrap();
            (0..5).for_each(|_| graph.replay().unwrap());
            let (grad, kept, y) = make();
            (1..=5).for_each(|t| y.optimizer_step_(&grad, &kept, rule, 0.1, t).unwrap());
            assert_eq!(values(&x), values(&y), "{rule:?}");
        }
    });
}

#[test]
fn a_replay_is_one_driver_call() {
    both(|device| {
        let mut training = Training::new(device, "adam");
        (0..2).for_each(|_| drop(training.step(&noise(device).unwrap()).unwrap()));
        let (graph, _loss) = device.capture(|| training.step(&noise(device)?)).unwrap();
        device.synchronize().unwrap();
        let before = sim(device).calls();
        for _ in 0..5 {
            graph.replay().unwrap();
        }
        let after = sim(device).calls();
        assert_eq!(after.replays - before.replays, 5);
        let others = |calls: ndgc::SimCalls| (calls.launches, calls.records, calls.waits, calls.synchronisations);
        assert_eq!((others(after), after.allocations), (others(before), before.allocations));
    });
}

#[test]
fn replays_see_what_is_written_between_them() {
    both(|device| {
        let x = vector(&[1., 2.], device);
        let section = || x.affine(2., 1.)?.sqr();
        section().unwrap();
        let (graph, y) = device.capture(section).unwrap();
        for factor in [1f32, -3., 10.] {
            x.copy_(&vector(&[factor, 2. * factor], device)).unwrap();
            graph.replay().unwrap();
            let expected: Vec<f32> = [factor, 2. * factor].iter().map(|x| (2. * x + 1.) * (2. * x + 1.)).collect();
            assert_eq!(values(&y), expected);
        }
    });
}

#[test]
fn replays_on_several_streams_are_ordered() {
    both(|device| {
        let x = vector(&[1.; 300], device);
        let section = || {
            let grown = x.affine(1., 1.)?;
            x.copy_(&grown)?;
            grown.affine(2., 0.)
        };
        section().unwrap();
        let (graph, y) = device.capture(section).unwrap();
        for round in 0..40 {
            sim(device).on_stream(round % 4, || graph.replay()).unwrap();
            let other = sim(device).on_stream((round + 1) % 4, || y.add(&x)).unwrap();
            drop(sim(device).on_stream((round * 3 + 2) % 4, || x.affine_(1., 1.)).unwrap());
            let now = 4. + 2. * round as f32;
            if round % 7 == 0 {
                assert_eq!(values(&other)[..3], [3. * (now - 1.); 3], "round {round}");
            }
        }
        assert_eq!(values(&x)[..2], [82.; 2]);
    });
}

#[test]
fn a_graph_may_be_replayed_and_dropped_by_another_thread() {
    both(|device| {
        let x = vector(&[1., 2., 3.], device);
        x.exp().unwrap();
        let (graph, y) = device.capture(|| x.exp()).unwrap();
        std::thread::scope(|scope| scope.spawn(move || graph.replay()).join().unwrap()).unwrap();
        assert_eq!(values(&y), values(&x.exp().unwrap()));
    });
}

#[test]
fn results_that_are_read_before_the_first_replay_are_reported() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let x = vector(&[1., 2.], &device);
        x.neg().unwrap();
        let (graph, y) = device.capture(|| x.neg()).unwrap();
        y.to_vec::<f32>().unwrap();
        let found = sim(&device).violations();
        assert!(matches!(found[..], [ndgc::Violation::Uninitialised { byte: 0, .. }]), "{found:?}");
        graph.replay().unwrap();
        assert_eq!(values(&y), [-1., -2.]);
        assert_eq!(sim(&device).violations().len(), 1);
    });
}

/// Random programs of sections and single operations, on all streams, against the same program on plain numbers.
#[test]
fn random_programs_with_graphs_are_ordered_and_right() {
    for seed in 0..6 {
        both(|device| {
            let mut random = seed + 1_u64;
            let mut draw = |below: usize| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                (random % below as u64) as usize
            };
            let mut arrays: Vec<Tensor> = (0..6).map(|i| vector(&[i as f32; 200], device)).collect();
            let mut model: Vec<f32> = (0..6).map(|i| i as f32).collect();
            // Each adds one array to another by way of a third that is gone afterwards.
            let mut graphs: Vec<(Graph, usize, usize)> = Vec::new();
            for _ in 0..300 {
                let (a, b, stream) = (draw(6), draw(6), draw(4));
                match draw(8) {
                    0 if a != b && graphs.len() < 8 => {
                        let section = |dst: &Tensor, src: &Tensor| dst.copy_(&dst.add(src)?.affine(0.5, 1.)?);
                        section(&arrays[a].copy().unwrap(), &arrays[b]).unwrap();
                        let run = || device.capture(|| section(&arrays[a], &arrays[b]));
                        graphs.push((sim(device).on_stream(stream, run).unwrap().0, a, b));
                    }
                    1 if !graphs.is_empty() => drop(graphs.swap_remove(draw(graphs.len()))),
                    2..=4 if !graphs.is_empty() => {
                        let (graph, a, b) = &graphs[draw(graphs.len())];
                        sim(device).on_stream(stream, || graph.replay()).unwrap();
                        model[*a] = (model[*a] + model[*b]) * 0.5 + 1.;
                    }
                    5 => {
                        drop(sim(device).on_stream(stream, || arrays[a].affine_(0.5, b as f32 as f64)).unwrap());
                        model[a] = model[a] * 0.5 + b as f32;
                    }
                    6 => assert_eq!(values(&arrays[a])[..2], [model[a]; 2], "seed {seed}"),
                    // The graphs keep the bytes of the array that goes; those that write it go on doing so.
                    7 => {
                        graphs.retain(|(_, dst, src)| *dst != a && *src != a);
                        arrays[a] = sim(device).on_stream(stream, || arrays[a].copy()).unwrap();
                    }
                    _ => drop(sim(device).on_stream(stream, || arrays[a].exp()).unwrap()),
                }
            }
            for (array, value) in arrays.iter().zip(model) {
                assert_eq!(values(array)[..2], [value; 2], "seed {seed}");
            }
        });
    }
}

#[test]
fn every_call_that_can_fail_leaves_the_device_in_order() {
    alone(|| {
        for n in 1.. {
            let device = Device::sim(SimConfig::default());
            let x = vector(&[1., 2.], &device);
            sim(&device).fail_call(Some(n));
            let insist = |f: &dyn Fn() -> Result<Tensor>| f().or_else(|_| f()).unwrap();
            let section = || x.affine(2., 0.)?.affine(1., 1.);
            insist(&section);
            let captured = device.capture(section).or_else(|_| device.capture(section));
            let (graph, y) = captured.unwrap();
            graph.replay().or_else(|_| graph.replay()).unwrap();
            assert_eq!(y.to_vec::<f32>().or_else(|_| y.to_vec::<f32>()).unwrap(), [3., 5.], "call {n}");
            sim(&device).fail_call(None);
            drop((graph, x, y));
            let _ = device.synchronize();
            finish(&device);
            if n > 40 {
                break;
            }
        }
    });
}

/// A device whose memory comes in pieces of a mebibyte: what a section needs is there, whatever came before.
fn roomy() -> Device {
    Device::sim(SimConfig { segment_bytes: 1 << 20, ..SimConfig::default() })
}

/// Nothing went wrong there, and nothing of the test's is left.
fn is_empty(device: &Device) {
    gc::collect();
    check(device);
    assert_eq!(device.memory().active, 0);
}

/// A workspace that plans hands the same bytes out many times in a cycle. A section takes none of them, reads none, and
/// is no part of the plan; its numbers are those of the cycles.
#[test]
fn a_loop_in_a_planned_workspace_is_captured_beside_its_plan() {
    alone(|| {
        let device = roomy();
        let config = WorkspaceConfig::builder().policy_learning(LearningPolicy::Planned).build().unwrap();
        let x = vector(&[1., 2.], &device);
        let section = || (0..5).try_fold(x.affine(2., 1.)?, |y: Tensor, _| y.sqr()?.affine(0.5, 0.25));
        let cycle = || Workspace::cycle_on(&device, "PLANNED", &config, || section()?.to_vec::<f32>()).unwrap();
        let plan = || -> PlanStats { Workspace::find("PLANNED").unwrap().stats().plan.unwrap() };
        (0..20).for_each(|_| drop(cycle()));
        let settled = plan();
        assert!(settled.planned_cycles > 10, "{settled:?}");

        let around = Workspace::enter_on(&device, "PLANNED", &config).unwrap();
        let inside = x.exp().unwrap();
        let refused = device.capture(|| inside.sqr()).unwrap_err();
        assert!(matches!(refused, Error::Capture { .. }), "{refused}");
        assert!(refused.to_string().contains("detach() it before the section"), "{refused}");
        drop((inside, around));

        // Once where the section's arrays will be: outside of the workspace.
        section().unwrap();
        let captured = device.capture(|| {
            let _cycle = Workspace::enter_on(&device, "PLANNED", &config)?;
            section()
        });
        let (graph, y) = captured.unwrap();
        assert!(!y.is_attached());
        for factor in [1f32, -3., 0.5] {
            x.copy_(&vector(&[factor, 2. * factor], &device)).unwrap();
            let expected = cycle();
            graph.replay().unwrap();
            assert_eq!(values(&y), expected);
            assert_eq!(cycle(), expected, "a replay writes into nothing of the workspace");
        }
        let after = plan();
        assert_eq!((after.bytes, after.deviations), (settled.bytes, settled.deviations));
        assert!(after.planned_cycles >= settled.planned_cycles + 6, "{after:?}");
        Workspace::find("PLANNED").unwrap().destroy().unwrap();
        drop((graph, y, x));
        is_empty(&device);
    });
}

/// Whatever its mode, what a network makes in a section is the section's. A step of `fit` reads its score, and says so.
#[test]
fn the_output_of_a_network_is_captured_and_a_step_of_fit_says_why_it_is_not() {
    alone(|| {
        for mode in [WorkspaceMode::None, WorkspaceMode::Single, WorkspaceMode::Separate, WorkspaceMode::Enabled] {
            let device = roomy();
            let build = |mode| -> Network {
                let config = NetworkConfig::builder().seed(3).updater(Updater::sgd(0.1)).device(&device);
                let config = config.training_workspace_mode(mode).inference_workspace_mode(mode);
                let config = config.input_type(InputType::feed_forward(6));
                let config = config.layer(Dense::new(16).activation(Activation::Tanh));
                config.layer(OutputLayer::new(4, Loss::Mcxent)).build().unwrap()
            };
            let numbers = |n: u16, modulus: u16| -> Vec<f32> { (0..n).map(|i| f32::from(i * 7 % modulus)).collect() };
            let x = Tensor::from_vec(numbers(48, 5), (ROWS, 6), &device).unwrap();
            let batch = DataSet::new(x.clone(), Tensor::from_vec(numbers(32, 2), (ROWS, 4), &device).unwrap()).unwrap();
            // Without workspaces, so that the device has what a section needs.
            let mut warm = build(WorkspaceMode::None);
            (0..2).for_each(|_| drop((warm.output(&x).unwrap(), warm.fit_batch(&batch).unwrap())));
            let mut net = build(mode);
            (0..20).for_each(|_| drop(net.output(&x).unwrap()));

            let (graph, y) = device.capture(|| net.output(&x)).unwrap();
            for factor in [0.5, -2., 3.] {
                x.affine_(factor, 0.25).unwrap();
                let expected = values(&net.output(&x).unwrap());
                graph.replay().unwrap();
                assert_eq!(values(&y), expected, "{mode:?}");
            }
            let refused = device.capture(|| net.fit_batch(&batch)).unwrap_err();
            assert!(refused.to_string().contains("read after a replay"), "{mode:?}: {refused}");
            assert!(net.fit_batch(&batch).unwrap().is_finite(), "{mode:?}: and it goes on");
            drop((graph, y, x, batch, warm, net));
            is_empty(&device);
        }
    });
}
