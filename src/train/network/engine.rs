//! Passes forward and back, and the steps that they lead to.
//!
//! There are two ways back. In one graph: everything that the pass forward made is there until the step ends. Layer by
//! layer ([`WorkspaceMode::Separate`], and networks with a layer that has a backward pass of its own): the pass forward
//! keeps the layers' results alone; going back, each layer computes again what its gradient needs, in the room that the
//! one before it used. Both give the same numbers, and parameters are changed when all gradients are there.

use std::panic::Location;
use std::sync::PoisonError;

use ndgc::{DebugMode, Error, Result, Tensor, Var, Workspace, called_at, claim, no_grad};

use super::layer::{Backprop, Layer, ParamKind, Pass};
use super::masks::Masks;
use super::network::{Network, Node, Op, Source};
use super::regularization::number;
use super::scratch::{Few, List, Slots};
use super::updater::Updater;
use super::workspaces::{ArrayType, LayerWorkspaceMgr, WorkspaceMode};

/// What is asked for of a layer's scores, given its input, the labels and their mask.
pub(super) type Scored = fn(&dyn Layer, &Tensor, &Tensor, Option<&Tensor>, &Pass<'_>) -> Result<Option<Tensor>>;

/// The mean of them, which training follows.
pub(super) const MEAN: Scored = |layer, x, labels, mask, pass| layer.score(x, labels, mask, pass);

/// What a pass is about.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) features: &'a [Tensor],
    pub(super) masks: Masks<'a>,
    pub(super) mgr: &'a LayerWorkspaceMgr,
    pub(super) training: bool,
    /// Whether layers compute again what they did before.
    pub(super) again: bool,
    /// Whether recurrent layers go on from where the last pass ended.
    pub(super) carries: bool,
}

/// Labels and their masks.
#[derive(Clone, Copy)]
pub(super) struct Labels<'a> {
    pub(super) labels: &'a [Tensor],
    pub(super) masks: &'a [Option<Tensor>],
}

impl Network {
    /// What a layer is told.
    fn pass<'a>(&'a self, i: usize, run: &Run<'a>) -> Pass<'a> {
        let node = &self.nodes[i];
        Pass {
            params: &node.vars,
            training: run.training,
            again: run.again,
            mask: self.mask_of(node.inputs[0], run.masks),
            mgr: run.mgr,
            stream: scattered(self.config.seed, [self.rank << 32 | i as u64, self.iteration]),
            memory: run.carries.then_some(&node.memory),
            cache: (run.training && self.config.training_mode != WorkspaceMode::Separate).then_some(&node.cache),
            wants_epsilon: node.inputs.iter().any(|source| self.wants(source)),
        }
    }

    /// Whether the gradient of an input is wanted.
    fn wants(&self, source: &Source) -> bool {
        matches!(source, Source::Node(i) if self.nodes[*i].wants_grad)
    }

    /// Runs what computes with parameters, and with a mask if there is one, outside of workspaces or within. Parameters
    /// of a network that is charged to a manager are that manager's, and a mask may be one's; outside, with the switch
    /// off, so would be what is made of them, for as long as it lives: it belongs to its handles.
    fn for_handles<R>(&self, outside: bool, mask: Option<&Tensor>, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let outside = || outside || Workspace::debug_mode() == DebugMode::BypassEverything;
        let is_anyones = self.payer.is_some() || mask.is_some();
        if is_anyones && outside() { called_at(Location::caller(), f) } else { f() }
    }

    /// What a node makes of its inputs, in the workspace of activations.
    pub(super) fn activate(&self, i: usize, inputs: &[&Tensor], run: &Run<'_>) -> Result<Tensor> {
        let node = &self.nodes[i];
        let y = match &node.op {
            Op::Vertex(vertex) => {
                let _place = run.mgr.borrow(ArrayType::Activations)?;
                vertex.forward(inputs)?
            }
            Op::Layer(layer) => {
                let pass = self.pass(i, run);
                let x = pass.of_input().drop_out(inputs[0], node.dropout)?;
                let outside = run.mgr.is_scoped_out(ArrayType::Activations);
                let y = self.for_handles(outside, pass.mask, || layer.activate(&x, &pass));
                y.map_err(|error| self.in_layer(i, error))?
            }
        };
        // What a layer hands on lies where it was given it.
        let hands_on = || inputs.iter().any(|input| input.is_same(&y));
        if self.config.validate && !hands_on() {
            let located = run.mgr.validate_array_location(ArrayType::Activations, &y, false, false);
            return located.map_err(|error| self.misplaced("activate", ArrayType::Activations, i, error));
        }
        run.mgr.leverage_to(ArrayType::Activations, &y)
    }

    /// What is asked for of the scores at an output.
    fn scored_at(
        &self,
        output: usize,
        x: &Tensor,
        labels: &Labels<'_>,
        run: &Run<'_>,
        score: Scored,
    ) -> Result<Tensor> {
        let i = self.outputs[output];
        let node = &self.nodes[i];
        let missing = |argument| {
            Error::argument(
                "score",
                argument,
                format!("none at output {} ({})", output, node.name),
                "labels for each output, and outputs with a loss",
            )
        };
        let layer = node.op.layer().ok_or_else(|| missing("loss"))?;
        let given = labels.labels.get(output).ok_or_else(|| missing("labels"))?;
        let mask = self.labels_mask(output, labels.masks, run.masks);
        let pass = self.pass(i, run);
        let x = pass.of_input().drop_out(x, node.dropout)?;
        let outside = run.mgr.is_scoped_out(ArrayType::Activations);
        let scores = self.for_handles(outside, pass.mask, || score(layer, &x, given, mask, &pass));
        scores.map_err(|error| self.in_layer(i, error))?.ok_or_else(|| missing("loss"))
    }

    pub(super) fn in_layer(&self, i: usize, error: Error) -> Error {
        error.context(format!("layer {} ({})", self.nodes[i].name, self.nodes[i].op.kind()))
    }

    fn misplaced(&self, op: &'static str, array_type: ArrayType, i: usize, error: Error) -> Error {
        let (name, kind) = (&self.nodes[i].name, self.nodes[i].op.kind());
        error.context(format!(
            "{op}: array ({array_type}) workspace validation failed (layer {name} - class: {kind}) - array is defined \
             in incorrect workspace"
        ))
    }

    /// The arrays that a node is given.
    pub(super) fn inputs_of<'t>(&self, i: usize, run: &Run<'t>, made: &'t [Option<Tensor>]) -> Result<Few<&'t Tensor>> {
        let find = |_: usize, &source: &Source| {
            let found = match source {
                Source::Input(input) => run.features.get(input),
                Source::Node(node) => made.get(node).and_then(Option::as_ref),
            };
            let (argument, expected) = ("features", "an array for each input of the network");
            let value = || run.features.len().to_string();
            found.ok_or_else(|| Error::argument("network", argument, value(), expected))
        };
        Few::of(&self.nodes[i].inputs, find)
    }

    /// Gives what is asked for of the scores at each output to `f`.
    pub(super) fn scores(
        &self,
        labels: &Labels<'_>,
        run: &Run<'_>,
        score: Scored,
        mut f: impl FnMut(Tensor) -> Result<()>,
    ) -> Result<()> {
        let mut made = Slots::new(self.nodes.len());
        for i in 0..self.nodes.len() {
            if self.nodes[i].feeds_others {
                let y = self.activate(i, &self.inputs_of(i, run, &made)?, run)?;
                made[i] = Some(y);
            }
        }
        let of_output = |output: usize| {
            let inputs = self.inputs_of(self.outputs[output], run, &made)?;
            f(self.scored_at(output, inputs[0], labels, run, score)?)
        };
        (0..self.outputs.len()).try_for_each(of_output)
    }

    /// What penalties add to the score.
    pub(super) fn penalties(&self) -> Result<f64> {
        no_grad(|| {
            self.for_handles(true, None, || {
                let mut sum = 0.;
                for (param, var) in self.named() {
                    sum += param.regularization.score(var)?;
                }
                Ok(sum)
            })
        })
    }

    /// Whether gradients are found layer by layer.
    pub(super) fn goes_by_layer(&self) -> bool {
        let own = |node: &Node| node.op.layer().is_some_and(|layer| layer.has_own_backprop());
        self.config.training_mode == WorkspaceMode::Separate || self.nodes.iter().any(own)
    }

    /// Scores of the whole batch at each output, and their sum, whose gradients are wanted.
    pub(super) fn loss(&self, labels: &Labels<'_>, run: &Run<'_>) -> Result<(f64, Tensor)> {
        let (mut score, mut sum) = (0.0, None::<Tensor>);
        self.scores(labels, run, MEAN, |loss| {
            score += number(&loss)?;
            sum = Some(match sum.take() {
                Some(sum) => sum.add(&loss)?,
                None => loss,
            });
            Ok(())
        })?;
        Ok((score, sum.ok_or_else(|| Error::msg("a network has an output"))?))
    }

    /// The score without penalties, and the gradients of all parameters in the order of [`Network::named`]: within a
    /// step, as long as it.
    pub(super) fn gradients(&self, labels: &Labels<'_>, run: &Run<'_>) -> Result<(f64, Slots)> {
        if self.goes_by_layer() {
            let _kept = KeptOfPass(&self.nodes);
            return self.gradients_by_layer(labels, run);
        }
        let (score, loss) = self.loss(labels, run)?;
        // Nothing else leads to the graph: what layers kept ends where it was used.
        let mut grads = loss.backward_once()?;
        Ok((score, self.named().map(|(_, var)| grads.remove(var)).collect()))
    }

    fn gradients_by_layer(&self, labels: &Labels<'_>, run: &Run<'_>) -> Result<(f64, Slots)> {
        let mut made = Slots::new(self.nodes.len());
        let mut memories = if run.carries { self.memories() } else { Vec::new() };
        for i in (0..self.nodes.len()).filter(|&i| self.nodes[i].feeds_others) {
            let _room = run.mgr.enter(ArrayType::FfWorkingMem)?;
            let y = no_grad(|| self.activate(i, &self.inputs_of(i, run, &made)?, run))?;
            made[i] = Some(y);
        }
        // What is computed again begins where it did, and not where it ended.
        self.swap_memories(&mut memories, false);
        let again = Run { again: true, mgr: &self.again, ..*run };
        let (mut score, mut epsilons) = (0.0, Slots::new(self.nodes.len()));
        let (mut parts, mut held) = (Few::of(&self.outputs, |_, _| Ok(0.0))?, None);
        let mut all = Slots::new(self.named().count());
        let mut end = all.len();
        for i in (0..self.nodes.len()).rev() {
            let turn = run.mgr.enter(ArrayType::ActivationGrad)?;
            let _room = run.mgr.enter(ArrayType::BpWorkingMem)?;
            let inputs = self.inputs_of(i, run, &made)?;
            let back = Back { i, inputs, epsilon: epsilons[i].take() };
            // What nothing else needs is computed here for the first time.
            let own = Run { again: self.nodes[i].feeds_others || run.again, ..again };
            let mut gradients = self.back(back, labels, &own, &mut parts, &mut epsilons)?;
            made[i] = None;
            let start = end - self.nodes[i].vars.len();
            // The room ends with the layer, gradients with the step.
            for (place, grad) in all[start..end].iter_mut().zip(gradients.iter_mut()) {
                *place = grad.take().map(|grad| run.mgr.leverage_to(ArrayType::Activations, &grad)).transpose()?;
            }
            end = start;
            // The gradient that this node was given was needed until here.
            held = turn.lease()?;
        }
        drop(held);
        self.swap_memories(&mut memories, false);
        parts.iter().for_each(|part| score += part);
        Ok((score, all))
    }

    /// What each node has left for the next pass.
    pub(super) fn memories(&self) -> Vec<Vec<Tensor>> {
        self.nodes.iter().map(|node| node.memory.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect()
    }

    /// Exchanges what nodes have left for the next pass, `all` or those that feed others; nothing without a place for
    /// each.
    pub(super) fn swap_memories(&self, memories: &mut [Vec<Tensor>], all: bool) {
        for (node, other) in self.nodes.iter().zip(memories).filter(|(node, _)| all || node.feeds_others) {
            std::mem::swap(&mut *node.memory.lock().unwrap_or_else(PoisonError::into_inner), other);
        }
    }

    /// The gradients of a node's parameters; those of its inputs are added to `epsilons`.
    fn back(
        &self,
        Back { i, inputs, epsilon }: Back<'_>,
        labels: &Labels<'_>,
        run: &Run<'_>,
        parts: &mut [f64],
        epsilons: &mut [Option<Tensor>],
    ) -> Result<Slots> {
        let node = &self.nodes[i];
        let output = self.outputs.iter().position(|&output| output == i);
        let own = node.op.layer().filter(|layer| layer.has_own_backprop() && output.is_none());
        if let (Some(layer), Some(epsilon)) = (own, &epsilon) {
            let pass = self.pass(i, run);
            let x = no_grad(|| pass.of_input().drop_out(inputs[0], node.dropout))?;
            let outside = run.mgr.is_scoped_out(ArrayType::ActivationGrad);
            let go_back = || layer.backprop_gradient(&x, epsilon, &pass);
            let back = no_grad(|| self.for_handles(outside, pass.mask, go_back));
            let back = back.map_err(|error| self.in_layer(i, error))?;
            let missing =
                || Error::invalid("fit", "has_own_backprop() says that there are gradients, and there are none");
            let Backprop { epsilon, gradients } = back.ok_or_else(missing)?;
            if let Some(epsilon) = epsilon.filter(|_| self.wants(&node.inputs[0])) {
                if self.config.validate {
                    let kind = ArrayType::ActivationGrad;
                    let located = run.mgr.validate_array_location(kind, &epsilon, false, false);
                    located.map_err(|error| self.misplaced("backprop", kind, i, error))?;
                }
                // That of what dropout left; the same numbers are left out of it.
                let epsilon = no_grad(|| pass.of_input().drop_out(&epsilon, node.dropout))?;
                give(&mut epsilons[node_of(node.inputs[0])], &epsilon, run.mgr)?;
            }
            return Ok(gradients);
        }
        // The operands of this node alone are variables now; their bytes are copied, since a leaf cannot share them.
        let leaves = Few::of(&node.inputs, |place, source| match self.wants(source) {
            true => Var::from_tensor(inputs[place]).map(Some),
            false => Ok(None),
        })?;
        let operands = Few::of(&leaves, |place, leaf| Ok(leaf.as_ref().map_or(inputs[place], |leaf| leaf)))?;
        let mut loss = None::<Tensor>;
        if let Some(output) = output {
            let part = self.scored_at(output, operands[0], labels, run, MEAN)?;
            parts[output] = number(&part)?;
            loss = Some(part);
        }
        if let Some(epsilon) = epsilon.filter(|_| node.wants_grad) {
            // The gradient of this sum for the node's result is epsilon, to the last bit.
            let part = self.activate(i, &operands, run)?.mul(&epsilon)?.sum_all()?;
            loss = Some(match loss {
                Some(loss) => loss.add(&part)?,
                None => part,
            });
        }
        let Some(loss) = loss.filter(|_| node.wants_grad) else { return Ok(Slots::new(node.vars.len())) };
        let mut grads = loss.backward()?;
        for (source, leaf) in node.inputs.iter().zip(leaves.iter()) {
            if let Some(grad) = leaf.as_ref().and_then(|leaf| grads.remove(leaf)) {
                give(&mut epsilons[node_of(*source)], &grad, run.mgr)?;
            }
        }
        Ok(node.vars.iter().map(|var| grads.remove(var)).collect())
    }

    /// A step of all parameters along their gradients, which are in the order of [`Network::named`].
    pub(super) fn update(&self, gradients: &mut [Option<Tensor>]) -> Result<()> {
        // What may find no memory comes before the first change.
        for (param, var) in self.named() {
            param.begin_state(var, self)?;
        }
        let apart = self.config.training_mode == WorkspaceMode::Separate;
        let _room = apart.then(|| self.training.enter(ArrayType::UpdaterWorkingMem)).transpose()?;
        let outside = self.training.is_scoped_out(ArrayType::UpdaterWorkingMem);
        let mut rest = &mut *gradients;
        for node in self.nodes.iter().filter(|node| !node.vars.is_empty()) {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(node.vars.len());
            rest = others;
            let (normalization, threshold) = node.normalization;
            no_grad(|| normalization.apply(own, threshold))?;
            for ((param, var), grad) in node.params.iter().zip(&node.vars).zip(own) {
                if param.kind != ParamKind::State
                    && let Some(own) = grad.take()
                {
                    let penalised = || param.regularization.add_to(own, var)?.contiguous();
                    *grad = Some(no_grad(|| self.for_handles(outside, None, penalised))?);
                }
            }
        }
        // Where workers average, other threads had the arrays since the last step.
        let mut arrays = List::default();
        for (param, var) in self.named() {
            arrays.push(var.as_tensor().clone());
            arrays.extend(param.state().iter().cloned());
        }
        claim(&*arrays)?;
        let (iteration, epoch) = (self.iteration, self.epoch);
        let t = i32::try_from(iteration.saturating_add(1)).unwrap_or(i32::MAX);
        for ((param, var), grad) in self.named().zip(gradients) {
            let Some(grad) = grad.take().filter(|_| param.kind != ParamKind::State) else { continue };
            let rate = param.updater.rate_at(iteration, epoch);
            let penalty = param.regularization;
            if penalty.weight_decay != 0.0 && param.updater != Updater::NoOp {
                let share = penalty.weight_decay * if penalty.apply_rate { rate } else { 1.0 };
                no_grad(|| var.affine_(1.0 - share, 0.0))?;
            }
            no_grad(|| param.updater.step(var, &grad, &param.state(), rate, t))?;
        }
        Ok(())
    }
}

/// What layers keep of the way forward, which ends with the pass, also where an error or a panic ends that.
struct KeptOfPass<'a>(&'a [Node]);

impl Drop for KeptOfPass<'_> {
    fn drop(&mut self) {
        for node in self.0 {
            node.cache.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

/// A node on the way back: what it was given, and the gradient of what it made.
struct Back<'a> {
    i: usize,
    inputs: Few<&'a Tensor>,
    epsilon: Option<Tensor>,
}

fn node_of(source: Source) -> usize {
    match source {
        Source::Input(i) | Source::Node(i) => i,
    }
}

/// Adds a gradient to those that came before, where gradients of activations belong.
fn give(epsilon: &mut Option<Tensor>, grad: &Tensor, mgr: &LayerWorkspaceMgr) -> Result<()> {
    let _place = mgr.borrow(ArrayType::ActivationGrad)?;
    *epsilon = Some(match epsilon.take() {
        Some(sum) => no_grad(|| sum.add(grad))?,
        // A gradient that was made there already needs no copy.
        None => match mgr.leverage_to(ArrayType::ActivationGrad, grad)? {
            there if there.is_same(grad) && !grad.is_attached() => grad.clone(),
            there => there,
        },
    });
    Ok(())
}

/// A number that looks like no other one, from three.
fn scattered(seed: u64, parts: [u64; 2]) -> u64 {
    let mut mixed = seed;
    for part in parts {
        mixed = (mixed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
    }
    mixed
}
