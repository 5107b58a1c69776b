//! Networks within the budgets of a manager: parameters, what updaters keep, and the workspaces of each thread.

use ndgc::train::{
    BatchNormalization, DataSet, Dense, InputType, ListDataSetIterator, Loss, Lstm, Network, NetworkConfig,
    OutputLayer, ParallelInference, ParallelWrapper, Updater, WorkspaceMode,
};
use ndgc::{Budget, DType, Device, Error, NdManager, Tensor, Workspace};

use super::both::both;
use super::network_layers::MODES;

/// Bytes of the parameters of [`network`].
const PARAMS: u64 = 4 * (16 * 64 + 64 + 64 * 4 + 4);

fn network() -> NetworkConfig {
    let config = NetworkConfig::builder().seed(1).updater(Updater::adam(1e-3)).input_type(InputType::feed_forward(16));
    config.layer(Dense::new(64)).layer(OutputLayer::new(4, Loss::Mse))
}

fn batch(rows: usize) -> DataSet {
    let of = |columns| Tensor::ones((rows, columns), DType::F32, &Device::Cpu).unwrap();
    DataSet::new(of(16), of(4)).unwrap()
}

fn tenant(name: &str) -> NdManager {
    let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
    manager.set_name(name);
    manager.set_budget(Budget::new()).unwrap();
    manager
}

fn used(manager: &NdManager) -> u64 {
    manager.budget_use().unwrap().bytes
}

/// Bytes of this thread's workspaces of a network, each of which is charged to a budget.
fn blocks(net: &Network) -> u64 {
    net.workspaces().iter().map(|space: &Workspace| space.budget_use().unwrap().bytes).sum()
}

#[test]
fn a_network_counts_within_the_budget_that_it_is_charged_to() {
    both(|| {
        for mode in MODES {
            let tenant = tenant("tenant");
            let mut net = network().training_workspace_mode(mode).inference_workspace_mode(mode).build().unwrap();
            net.charge_to(&tenant).unwrap();
            assert_eq!((used(&tenant), blocks(&net)), (PARAMS, 0));
            for _ in 0..4 {
                net.fit_batch(&batch(8)).unwrap();
                net.output(&batch(8).features).unwrap();
            }
            assert_eq!(used(&tenant), 3 * PARAMS + blocks(&net), "{mode:?}: parameters, two moments, and blocks");
            // More than there is room for is refused, and the network goes on with what fits.
            let room = used(&tenant) + (1 << 14);
            tenant.set_budget(Budget::new().max_bytes(room)).unwrap();
            let refused = net.fit_batch(&batch(4096)).map_err(|error| error.to_string());
            // Without workspaces, what a step makes from the batch belongs to the handles of its arrays.
            let is_bound = !net.workspaces().is_empty();
            assert_eq!(refused.is_err_and(|why| why.contains("budget of `tenant`")), is_bound, "{mode:?}");
            net.fit_batch(&batch(8)).unwrap();
            assert!(used(&tenant) <= room);
            net.release_workspaces().unwrap();
            assert_eq!(used(&tenant), 3 * PARAMS);
            tenant.close().unwrap();
            assert!(net.fit_batch(&batch(8)).is_err(), "its parameters ended with their owner");
        }
    });
}

#[test]
fn replicas_and_workers_of_a_network_are_charged_where_it_is() {
    both(|| {
        let tenant = tenant("tenant");
        let mut net = network().build().unwrap();
        net.charge_to(&tenant).unwrap();
        let replica = net.replica().unwrap();
        assert_eq!(used(&tenant), 2 * PARAMS);
        let model = ParallelInference::builder(replica).workers(1).build().unwrap();
        model.output(&batch(8).features).unwrap();
        assert!(used(&tenant) > 2 * PARAMS, "a worker's workspaces");
        model.shutdown();
        drop(model);
        let mut wrapper = ParallelWrapper::builder(net).workers(2).build().unwrap();
        wrapper.fit(ListDataSetIterator::new(vec![batch(8), batch(8)])).unwrap();
        assert!(used(&tenant) > 6 * PARAMS, "two workers with their moments, and their workspaces");
        drop(wrapper);
        tenant.close().unwrap();
        assert_eq!(tenant.budget_use(), None);
    });
}

/// What begins with a parameter, such as a turned weight or a penalty, would be its owner's.
#[test]
fn what_a_network_computes_is_not_its_managers() {
    both(|| {
        for mode in MODES {
            let tenant = tenant("tenant");
            let config = network().l1(1e-4).l2(1e-4).training_workspace_mode(mode).inference_workspace_mode(mode);
            let mut net = config.build().unwrap();
            net.charge_to(&tenant).unwrap();
            for _ in 0..3 {
                net.fit_batch(&batch(8)).unwrap();
                net.output(&batch(8).features).unwrap();
                net.score_batch(&batch(8), false).unwrap();
                assert_eq!(tenant.array_count(), 3 * 4, "{mode:?}: parameters and two moments of each");
            }
        }
    });
}

#[test]
fn a_network_that_finds_no_room_counts_where_it_did() {
    both(|| {
        let (rich, poor) = (tenant("rich"), tenant("poor"));
        let mut net = network().build().unwrap();
        net.charge_to(&rich).unwrap();
        net.fit_batch(&batch(8)).unwrap();
        let before = used(&rich);
        poor.set_budget(Budget::new().max_bytes(PARAMS)).unwrap();
        let Err(error) = net.charge_to(&poor) else { panic!("it has three times as much") };
        assert!(matches!(&error, Error::OutOfMemory(_)) && error.to_string().contains("tests/train/budgets.rs"));
        assert_eq!((used(&rich), used(&poor)), (before, 0));
        net.fit_batch(&batch(8)).unwrap();
        poor.set_budget(Budget::new()).unwrap();
        net.charge_to(&poor).unwrap();
        net.fit_batch(&batch(8)).unwrap();
        assert_eq!((used(&rich), used(&poor)), (0, before));
        poor.close().unwrap();
        let mut other = network().build().unwrap();
        assert!(matches!(other.charge_to(&poor), Err(Error::ManagerClosed { .. })));
        let system = NdManager::system(&Device::Cpu);
        assert!(matches!(other.charge_to(&system), Err(Error::Invalid { .. })));
        other.fit_batch(&batch(8)).unwrap();
    });
}

/// An array that was detached is in no budget, nor are others with its bytes.
#[test]
fn a_network_counts_within_the_budget_whatever_its_layers_do() {
    both(|| {
        for mode in MODES {
            let tenant = tenant("tenant");
            let config = NetworkConfig::builder().seed(1).updater(Updater::adam(1e-3));
            let config = config.training_workspace_mode(mode).inference_workspace_mode(mode);
            let config =
                config.input_type(InputType::recurrent(16)).layer(Lstm::new(8)).layer(BatchNormalization::new());
            let mut net = config.layer(OutputLayer::new(4, Loss::Mse)).build().unwrap();
            net.charge_to(&tenant).unwrap();
            let params = used(&tenant);
            let series = |size| Tensor::ones((8, size, 5), DType::F32, &Device::Cpu).unwrap();
            for _ in 0..3 {
                net.fit_arrays(&series(16), &series(4)).unwrap();
                net.output(&series(16)).unwrap();
            }
            let kept: u64 = net.updater_state().unwrap().iter().map(|(_, array)| 4 * array.elem_count() as u64).sum();
            assert_eq!(used(&tenant), params + kept + blocks(&net), "{mode:?}");
        }
    });
}

/// What is added up in parts, of more than 64 KiB, would leave each part with its owner.
#[test]
fn workers_of_a_network_are_charged_where_it_is_and_leave_nothing() {
    both(|| {
        let tenant = tenant("tenant");
        let config = NetworkConfig::builder().seed(1).updater(Updater::adam(1e-3));
        // What a step makes is in no budget then.
        let config = config.training_workspace_mode(WorkspaceMode::None).inference_workspace_mode(WorkspaceMode::None);
        let config = config.input_type(InputType::feed_forward(16)).layer(Dense::new(2048));
        let mut net = config.layer(OutputLayer::new(4, Loss::Mse)).build().unwrap();
        net.charge_to(&tenant).unwrap();
        let params = used(&tenant);
        let mut wrapper = ParallelWrapper::builder(net).workers(2).build().unwrap();
        for _ in 0..3 {
            wrapper.fit(ListDataSetIterator::new(vec![batch(8); 4])).unwrap();
            assert_eq!(used(&tenant), 2 * 3 * params, "parameters and two moments of each worker");
            assert_eq!(tenant.array_count(), 2 * 3 * 4);
        }
    });
}

#[test]
fn what_a_network_is_given_stays_in_the_budget_that_it_is_in() {
    both(|| {
        for mode in MODES {
            let tenant = tenant("tenant");
            let mut net = network().training_workspace_mode(mode).inference_workspace_mode(mode).build().unwrap();
            let (x, y) = (tenant.ones((8, 16), DType::F32).unwrap(), tenant.ones((8, 4), DType::F32).unwrap());
            let before = used(&tenant);
            assert_eq!(before, 4 * 8 * (16 + 4));
            let batch = DataSet::new(x.clone(), y).unwrap();
            net.output(&x).unwrap();
            net.fit_batch(&batch).unwrap();
            net.score_batch(&batch, false).unwrap();
            assert_eq!(used(&tenant), before, "{mode:?}");
        }
    });
}
