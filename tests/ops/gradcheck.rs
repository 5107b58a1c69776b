//! Every gradient against central differences in f64, on both devices and in both positions of the switch: with the
//! gradient of the result in a plain, a broadcast and a transposed layout.

use ndgc::{DType, Device, Error, Result, Tensor, Var, Workspace, WorkspaceConfig, no_grad};

use crate::ops::reference::Host;
use crate::ops::support::{each, put, values};

pub(crate) type Run = fn(&[Tensor]) -> Result<Tensor>;

/// An operation on variables.
pub(crate) struct Case {
    /// The method whose gradient it checks.
    pub(crate) name: &'static str,
    /// What is special about it.
    pub(crate) how: &'static str,
    pub(crate) inputs: Vec<Host<f64>>,
    pub(crate) run: Run,
    /// Half the distance of the differences, and what the gradient may be off.
    pub(crate) step: f64,
    pub(crate) tolerance: f64,
}

/// How the result becomes a scalar, and with it the layout of the gradient that comes back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    /// The sum: the gradient is one number, repeated.
    Sum,
    /// A weighted sum: the gradient is an array of its own.
    Weighted,
    /// A weighted sum of the axes in reverse order: the gradient is transposed.
    Turned,
}

pub(super) fn loss(out: &Tensor, loss: Loss) -> Result<Tensor> {
    let out = out.to_dtype(DType::F64)?;
    if let Loss::Sum = loss {
        return out.sum_all();
    }
    let turned = match loss {
        Loss::Turned => out.permute((0..out.rank()).rev().collect::<Vec<_>>())?,
        _ => out,
    };
    let shape = *turned.shape();
    let weights: Vec<f64> = (0..shape.elem_count()).map(|i| ((i * 7 + 3) % 11) as f64 / 4. - 1.1).collect();
    turned.mul(&Tensor::from_vec(weights, shape, turned.device())?)?.sum_all()
}

/// The loss at a point, without gradients, on the host.
fn at(case: &Case, inputs: &[Host<f64>], kind: Loss) -> f64 {
    let inputs: Vec<Tensor> = inputs.iter().map(|host| put(host, &Device::Cpu)).collect();
    no_grad(|| loss(&(case.run)(&inputs)?, kind)?.to_scalar()).unwrap()
}

/// The gradients by central differences.
fn differences(case: &Case, kind: Loss) -> Vec<Vec<f64>> {
    let slope = |input: usize, element: usize| {
        let moved = |by: f64| {
            let mut inputs = case.inputs.clone();
            inputs[input].data[element] += by;
            at(case, &inputs, kind)
        };
        (moved(case.step) - moved(-case.step)) / (2. * case.step)
    };
    let of = |input: usize| (0..case.inputs[input].data.len()).map(|element| slope(input, element)).collect();
    (0..case.inputs.len()).map(of).collect()
}

/// When the gradient is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    AtOnce,
    /// The operation ran in a cycle of a workspace, which ended since.
    PastItsCycle,
}

fn check(case: &Case, device: &Device, (kind, when): (Loss, When), want: &[Vec<f64>]) {
    let what = format!("{} ({}) with {kind:?} {when:?}", case.name, case.how);
    let variables: Vec<Var> =
        case.inputs.iter().map(|host| Var::from_vec(host.data.clone(), &host.dims, device).unwrap()).collect();
    let operands: Vec<Tensor> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
    let cycle = (when == When::PastItsCycle)
        .then(|| Workspace::enter_on(device, "GRADIENT", &WorkspaceConfig::default()).unwrap());
    let out = (case.run)(&operands).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(out.track_op(), "{what}: the result is tracked");
    let loss = {
        let _out = Workspace::scope_out();
        loss(&out, kind).unwrap()
    };
    if let Some(cycle) = cycle {
        let workspace = cycle.workspace();
        cycle.leave();
        assert!(!out.is_attached() || !out.is_in_scope(), "{what}: the result ended");
        // What the graph saved of the cycle ended with it; without such values the gradient is right.
        workspace.destroy().unwrap();
    }
    let grads = match loss.backward() {
        Err(Error::GraphEnded { workspace, .. }) if when == When::PastItsCycle => {
            assert_eq!(workspace, "GRADIENT", "{what}");
            return;
        }
        answer => answer.unwrap_or_else(|e| panic!("{what}: {e}")),
    };
    for (i, (variable, want)) in variables.iter().zip(want).enumerate() {
        let grad = grads.get(variable).unwrap_or_else(|| panic!("{what}: operand {i} has no gradient"));
        assert_eq!(grad.dims(), case.inputs[i].dims, "{what}: operand {i}");
        assert!(grad.is_unique().unwrap() && grad.is_contiguous(), "{what}: operand {i} owns its gradient");
        let got = values::<f64>(grad);
        let far = got.iter().zip(want).any(|(g, w)| (g - w).abs() > case.tolerance * (1. + w.abs()) || g.is_nan());
        assert!(!far, "{what}: operand {i}:\n{got:?}\nby differences\n{want:?}");
    }
}

/// Checks cases with every loss; the differences are computed once.
pub(crate) fn check_all(cases: Vec<Case>) {
    let kinds = [Loss::Sum, Loss::Weighted, Loss::Turned];
    let wanted = crate::ops::support::alone(|| {
        let of = |case: &Case| kinds.map(|kind| differences(case, kind));
        cases.iter().map(of).collect::<Vec<_>>()
    });
    each(|device| {
        for (case, wanted) in cases.iter().zip(&wanted) {
            kinds.iter().zip(wanted).for_each(|(&kind, want)| check(case, device, (kind, When::AtOnce), want));
            // It has workspaces of its own, and destroys all.
            if case.name != "leverage" {
                check(case, device, (Loss::Weighted, When::PastItsCycle), &wanted[1]);
            }
        }
    });
}
