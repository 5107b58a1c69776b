//! Which masks of the features hold for what a node of a network makes, and what those that meet are together.
//!
//! As in DL4J (`feedForwardMaskArrays`): where several masked series meet, a step is there if it is in any of them, and
//! all are if one of the series has no mask.

use ndgc::{Error, Result, Tensor, Workspace};

use super::layer::InputType;
use super::network::{Network, Source};
use super::scratch::Few;

/// The masks of the features in a pass.
#[derive(Clone, Copy, Default)]
pub(super) struct Masks<'a> {
    /// One for each input of the network, or none at all.
    pub(super) given: &'a [Option<Tensor>],
    /// What [`Network::met`] made of them.
    pub(super) met: &'a [Option<Tensor>],
}

impl Network {
    /// Finds the inputs whose masks hold for each node, and those whose masks meet. Nodes come after their inputs.
    pub(super) fn find_masks(&mut self) {
        for i in 0..self.nodes.len() {
            let (inputs, in_series) = (self.masked_by(i), is_series(self.nodes[i].output));
            match self.meeting.iter().position(|(known, _)| *known == inputs) {
                Some(at) => self.meeting[at].1 |= in_series,
                None if inputs.len() > 1 => self.meeting.push((inputs.clone(), in_series)),
                None => {}
            }
            self.nodes[i].masked_by = inputs;
        }
    }

    /// The inputs of the network whose masks hold for a node; none where there are no steps any more. Of a series those
    /// of the inputs that are series.
    fn masked_by(&self, i: usize) -> Vec<usize> {
        let node = &self.nodes[i];
        let ends_mask = node.op.layer().is_some_and(|layer| layer.ends_mask());
        // Of images, which have no steps, it says which examples count.
        if ends_mask && is_series(self.type_of(node.inputs[0])) {
            return Vec::new();
        }
        let has_steps = |&input: &Source| is_series(self.type_of(input));
        let of_series = is_series(node.output) && node.inputs.iter().any(has_steps);
        let mut all = Vec::new();
        for &input in node.inputs.iter().filter(|&input| !of_series || has_steps(input)) {
            match input {
                Source::Input(place) => all.push(place),
                // All of that one is there, and so all of the result.
                Source::Node(before) if self.nodes[before].masked_by.is_empty() => return Vec::new(),
                Source::Node(before) => all.extend_from_slice(&self.nodes[before].masked_by),
            }
        }
        (0..self.config.inputs.len()).filter(|place| all.contains(place)).collect()
    }

    /// What an input of a node is like.
    fn type_of(&self, source: Source) -> InputType {
        match source {
            Source::Input(i) => self.config.inputs[i].1,
            Source::Node(i) => self.nodes[i].output,
        }
    }

    /// What the masks that meet are together, for each place of `meeting`: made once a pass, and held as long as it.
    pub(super) fn met(&self, given: &[Option<Tensor>]) -> Result<Few<Option<Tensor>>> {
        Few::of(&self.meeting, |_, (inputs, in_series)| any_of(inputs, given, *in_series))
    }

    /// The mask of what comes from an input or a node.
    pub(super) fn mask_of<'a>(&self, source: Source, masks: Masks<'a>) -> Option<&'a Tensor> {
        let inputs = match source {
            Source::Input(i) => return masks.given.get(i)?.as_ref(),
            Source::Node(i) => &self.nodes[i].masked_by,
        };
        match inputs[..] {
            [] => None,
            [one] => masks.given.get(one)?.as_ref(),
            _ => masks.met.get(self.meeting.iter().position(|(known, _)| known == inputs)?)?.as_ref(),
        }
    }

    /// Which mask labels have: without one of their own, they count where the features do, in series by steps, else by
    /// examples. A mask of all numbers of rows says nothing of labels.
    pub(super) fn labels_mask<'a>(
        &self,
        output: usize,
        own: &'a [Option<Tensor>],
        masks: Masks<'a>,
    ) -> Option<&'a Tensor> {
        let i = self.outputs[output];
        let node = &self.nodes[i];
        let source = if node.op.layer().is_some() { node.inputs[0] } else { Source::Node(i) };
        let of_examples = |mask: &Tensor| matches!(mask.dims(), [_] | [_, 1]);
        let of_features = || self.mask_of(source, masks).filter(|mask| is_series(node.output) || of_examples(mask));
        own.get(output).and_then(Option::as_ref).or_else(of_features)
    }
}

fn is_series(form: InputType) -> bool {
    matches!(form, InputType::Recurrent { .. })
}

/// 1 for what counts in any of the inputs; none if one of them has no mask, or if masks of unlike shapes are of single
/// numbers, which do not say which examples and steps are there.
fn any_of(inputs: &[usize], given: &[Option<Tensor>], in_series: bool) -> Result<Option<Tensor>> {
    let all = || inputs.iter().map(move |&input| given.get(input).and_then(Option::as_ref));
    let Some(first) = all().next().flatten().filter(|_| all().all(|mask| mask.is_some())) else { return Ok(None) };
    let others = || all().flatten().skip(1);
    if others().all(|mask| mask.is_same(first)) {
        return Ok(Some(first.clone()));
    }
    let other = others().find(|mask| mask.dims() != first.dims());
    if let Some(other) = other {
        // Of examples `[n]` or `[n, 1]` beside steps `[n, t]`: of all steps of an example.
        let steps = |mask: &Tensor| mask.dims().get(1).copied().unwrap_or(1);
        let most = all().flatten().map(steps).max().unwrap_or(1);
        let fits = |mask: &Tensor| mask.dims().first() == first.dims().first() && [1, most].contains(&steps(mask));
        let of_numbers = all().flatten().any(|mask| mask.rank() > 2);
        match !of_numbers && all().flatten().all(fits) {
            true => {}
            false if of_numbers || !in_series => return Ok(None),
            false => {
                let why = "masks of series that meet in a vertex are of the same examples and steps, [n, t], or [n] or \
                           [n, 1] for all steps of an example; give the series as many steps, of which masks leave \
                           some out";
                return Err(Error::shape_mismatch("mask", first.dims(), other.dims(), why));
            }
        }
    }
    // No workspace of the caller's takes it, and no manager: what is first has none.
    let _out = Workspace::scope_out();
    let counts = |mask: &Tensor| {
        let counts = Tensor::zeros((), mask.dtype(), mask.device())?.broadcast_ne(mask)?;
        if other.is_some() && mask.rank() == 1 { counts.unsqueeze(1) } else { Ok(counts) }
    };
    let any = others().try_fold(counts(first)?, |any, mask| any.broadcast_maximum(&counts(mask)?))?;
    any.to_dtype(first.dtype()).map(Some)
}
