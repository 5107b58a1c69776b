//! What a network answers.

use std::panic::Location;
use std::sync::PoisonError;

use ndgc::{DType, Error, Result, Shape, Tensor, Workspace, no_grad};

use super::super::data::{DataIterator, Examples};
use super::super::evaluation::{Evaluation, IEvaluation, RegressionEvaluation, Roc, RocMultiClass};
use super::super::place::called_here;
use super::super::shared::same_bytes;
use super::engine::{Labels, MEAN, Run, Scored};
use super::layer::Layer;
use super::layers::beyond_probabilities;
use super::masks::Masks;
use super::network::{Network, Source};
use super::scratch::{Few, Slots};
use super::workspaces::{ArrayType, Entered, LayerWorkspaceMgr};

/// Where results are wanted.
#[derive(Clone, Copy)]
enum OutputPlace<'a> {
    /// Of their own.
    Detached,
    /// In the caller's workspace.
    In(&'a Workspace),
}

/// # Answers
impl Network {
    /// The output for features, as outside of training. It is the caller's: no workspace ends it, and nothing was
    /// copied to that end. Callable anywhere: inside of workspaces, and from listeners.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer, WeightInit};
    /// use ndgc::{Device, Tensor};
    ///
    /// let net = NetworkConfig::builder().weight_init(WeightInit::Constant(1.)).input_type(InputType::feed_forward(3));
    /// let net = net.layer(OutputLayer::new(2, Loss::Mse)).build()?;
    /// let y = net.output(&Tensor::new(&[[1f32, 2., 3.]], &Device::Cpu)?)?;
    /// drop(net); // the answer needs nothing of it
    /// assert_eq!(y.to_vec2::<f32>()?, [[6., 6.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the network has several inputs or outputs; those of the layers.
    #[track_caller]
    pub fn output(&self, features: &Tensor) -> Result<Tensor> {
        self.output_masked(features, None)
    }

    /// As [`Network::output`], with a mask of the features.
    ///
    /// # Errors
    /// As [`Network::output`].
    #[track_caller]
    pub fn output_masked(&self, features: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        called_here(one(self.outputs(std::slice::from_ref(features), &[mask.cloned()])?))
    }

    /// As [`Network::output`], in the caller's workspace, which is open: the output ends with its cycle.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer};
    /// use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    ///
    /// let net = NetworkConfig::builder().input_type(InputType::feed_forward(3)).layer(OutputLayer::new(2, Loss::Mse));
    /// let net = net.build()?;
    /// let cycle = Workspace::enter("ANSWERS", &WorkspaceConfig::default())?;
    /// let x = Tensor::ones((4, 3), DType::F32, &Device::Cpu)?;
    /// assert!(net.output_in(&x, &cycle)?.is_attached());
    /// assert!(!net.output(&x)?.is_attached());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::output`]; [`Error::Workspace`] if the workspace is not open.
    #[track_caller]
    pub fn output_in(&self, features: &Tensor, workspace: &Workspace) -> Result<Tensor> {
        let outputs = no_grad(|| {
            let features = self.prepared(std::slice::from_ref(features), &[], &self.inference)?;
            self.infer(&self.inferring(&features, Masks::default(), false), OutputPlace::In(workspace), false)
        });
        called_here(outputs.and_then(one))
    }

    /// The outputs for an array for each input, in the order of the outputs, as [`Network::output`]. `masks` has one
    /// for each input, or none at all.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer};
    /// use ndgc::{DType, Device, Error, Tensor};
    ///
    /// let net = NetworkConfig::builder()
    ///     .add_input("in", InputType::feed_forward(2))
    ///     .add_layer("number", OutputLayer::new(1, Loss::Mse), &["in"])
    ///     .add_layer("class", OutputLayer::new(3, Loss::Mcxent), &["in"])
    ///     .set_outputs(&["class", "number"])
    ///     .build()?;
    /// let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// let all = net.outputs(&[x.clone()], &[])?;
    /// assert_eq!((all[0].dims(), all[1].dims()), (&[4, 3][..], &[4, 1][..]));
    /// assert!(matches!(net.output(&x), Err(Error::Argument { argument: "outputs", .. }))); // there are two
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::output`].
    #[track_caller]
    pub fn outputs(&self, features: &[Tensor], masks: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
        called_here(no_grad(|| {
            let features = self.prepared(features, masks, &self.inference)?;
            let met = self.met(masks)?;
            let masks = Masks { given: masks, met: &met };
            self.infer(&self.inferring(&features, masks, false), OutputPlace::Detached, false)
        }))
    }

    /// What each layer or vertex makes of features, in the order of [`Network::summary`], all detached.
    ///
    /// ```
    /// use ndgc::train::{Dense, InputType, Loss, NetworkConfig, OutputLayer, WeightInit};
    /// use ndgc::{Device, Tensor};
    ///
    /// let net = NetworkConfig::builder().weight_init(WeightInit::Constant(1.)).input_type(InputType::feed_forward(2));
    /// let net = net.layer(Dense::new(3)).layer(OutputLayer::new(1, Loss::Mse)).build()?;
    /// let all = net.feed_forward(&[Tensor::new(&[[1f32, 2.]], &Device::Cpu)?], false)?;
    /// assert_eq!(all[0].to_vec2::<f32>()?, [[3., 3., 3.]]);
    /// assert_eq!(all[1].to_vec2::<f32>()?, [[9.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::output`].
    #[track_caller]
    pub fn feed_forward(&self, features: &[Tensor], training: bool) -> Result<Vec<Tensor>> {
        called_here(no_grad(|| {
            let features = self.prepared(features, &[], &self.inference)?;
            let mgr = LayerWorkspaceMgr::no_workspaces().on_device(&self.config.device);
            let run = Run { mgr: &mgr, training, again: true, ..self.inferring(&features, Masks::default(), false) };
            self.infer(&run, OutputPlace::Detached, true)
        }))
    }

    /// The output for the next steps of series, from where the last call ended: `[n, size]` for one step, `[n, size,
    /// t]` for several. [`Network::rnn_clear_previous_state`] begins again.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, Lstm, NetworkConfig, OutputLayer};
    /// use ndgc::{DType, Device, Tensor};
    ///
    /// let config = NetworkConfig::builder().seed(1).input_type(InputType::recurrent(2));
    /// let net = config.layer(Lstm::new(3)).layer(OutputLayer::new(1, Loss::Mse)).build()?;
    /// let whole = net.output(&Tensor::ones((1, 2, 4), DType::F32, &Device::Cpu)?)?.to_vec3::<f32>()?;
    /// let first = net.rnn_time_step(&Tensor::ones((1, 2, 3), DType::F32, &Device::Cpu)?)?; // three steps
    /// let last = net.rnn_time_step(&Tensor::ones((1, 2), DType::F32, &Device::Cpu)?)?; // and one
    /// assert_eq!((first.dims(), last.dims()), (&[1, 1, 3][..], &[1, 1][..]));
    /// assert!((last.to_vec2::<f32>()?[0][0] - whole[0][0][3]).abs() < 1e-5);
    /// net.rnn_clear_previous_state(); // the next call begins a series
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::output`]; [`Error::ShapeMismatch`] for another number of examples than the call before had. The
    /// series is where it was then.
    #[track_caller]
    pub fn rnn_time_step(&self, features: &Tensor) -> Result<Tensor> {
        let one_step = features.rank() == 2;
        let series = if one_step { features.unsqueeze(2)? } else { features.clone() };
        let mut before = self.memories();
        let outputs = no_grad(|| {
            let features = self.prepared(&[series], &[], &self.inference)?;
            self.infer(&self.inferring(&features, Masks::default(), true), OutputPlace::Detached, false)
        });
        let y = outputs.and_then(one);
        if y.is_err() {
            // Layers before the one that failed were a step further.
            self.swap_memories(&mut before, true);
        }
        let y = called_here(y)?;
        if one_step && y.rank() == 3 { y.squeeze(2) } else { Ok(y) }
    }

    /// Forgets what [`Network::rnn_time_step`] left.
    pub fn rnn_clear_previous_state(&self) {
        for node in &self.nodes {
            node.memory.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    pub(super) fn inferring<'a>(&'a self, features: &'a [Tensor], masks: Masks<'a>, carries: bool) -> Run<'a> {
        Run { features, masks, mgr: &self.inference, training: false, again: false, carries }
    }

    /// Features as the network needs them: floats in its type, 0 where a mask leaves them out, in the form of the
    /// input, and of no manager, to which results would belong too.
    pub(super) fn prepared(
        &self,
        features: &[Tensor],
        masks: &[Option<Tensor>],
        mgr: &LayerWorkspaceMgr,
    ) -> Result<Few<Tensor>> {
        let prepare = |place: usize, array: &Tensor| {
            let is_float = matches!(array.dtype(), DType::F64 | DType::F32 | DType::F16 | DType::BF16);
            let array = match array.is_attached() {
                true if !mgr.is_scoped_out(ArrayType::Activations) => array.clone(),
                // Bytes of a workspace are copied.
                true => array.try_detach()?,
                false => same_bytes(array)?,
            };
            // Half floats do not have all whole numbers.
            let casts = is_float && array.dtype() != self.config.dtype && !self.takes_indices(place);
            let array = if casts { array.to_dtype(self.config.dtype)? } else { array };
            let array = match masks.get(place).and_then(Option::as_ref) {
                Some(mask) if is_float => counted(array, mask)?,
                _ => array,
            };
            match self.config.inputs.get(place).and_then(|(_, input)| input.other_shape(array.dims())) {
                Some(shape) => array.reshape(shape),
                None => Ok(array),
            }
        };
        Few::of(features, prepare)
    }

    /// Whether an input goes to a layer that takes numbers of rows.
    fn takes_indices(&self, input: usize) -> bool {
        let mut nodes = self.nodes.iter().filter(|node| node.inputs.contains(&Source::Input(input)));
        nodes.any(|node| node.op.layer().is_some_and(Layer::takes_indices))
    }

    /// The results of the outputs, or of all nodes.
    fn infer(&self, run: &Run<'_>, place: OutputPlace<'_>, all: bool) -> Result<Vec<Tensor>> {
        let mgr = run.mgr;
        let mut last = mgr.clone();
        match place {
            OutputPlace::Detached => last.set_scoped_out_for(ArrayType::Activations)?,
            OutputPlace::In(space) => last.set_workspace(ArrayType::Activations, space.id(), space.configuration())?,
        }
        let side_by_side = mgr.workspace_name(ArrayType::Activations) == mgr.workspace_name(ArrayType::Input);
        let _whole = if side_by_side { Some(mgr.enter(ArrayType::Activations)?) } else { None };
        let mut made = Slots::new(self.nodes.len());
        let mut held = None;
        for i in 0..self.nodes.len() {
            let inputs = self.inputs_of(i, run, &made)?;
            let is_output = all || self.outputs.contains(&i);
            let turn = if is_output || side_by_side { None } else { Some(mgr.enter(ArrayType::Activations)?) };
            let _room = mgr.enter(ArrayType::FfWorkingMem)?;
            let own = if is_output { Run { mgr: &last, ..*run } } else { *run };
            let mut y = self.activate(i, &inputs, &own)?;
            if is_output && run.features.iter().any(|input| input.is_same(&y)) {
                y = last.dup(ArrayType::Activations, &y)?;
            }
            made[i] = Some(y);
            if self.is_chain && !all && i > 0 {
                made[i - 1] = None;
            }
            // What the node before made was needed until here.
            held = turn.as_ref().map(Entered::lease).transpose()?.flatten();
        }
        drop(held);
        let take = |i: usize| made[i].take().ok_or_else(|| Error::msg("each node was computed"));
        match all {
            true => (0..self.nodes.len()).map(take).collect(),
            false => self.outputs.iter().copied().map(take).collect(),
        }
    }
}

/// # Scores, and evaluations
impl Network {
    /// The score of a batch: the mean of its losses, and penalties. As in training (batch normalisation by the batch,
    /// with dropout) or not.
    ///
    /// # Errors
    /// As [`Network::fit_batch`].
    #[track_caller]
    pub fn score_batch<B: Examples>(&self, batch: &B, training: bool) -> Result<f64> {
        // As in training, whose mean of halves is rounded once.
        let means = self.with_scores(batch, training, MEAN, super::regularization::number);
        Ok(called_here(means)?.iter().sum::<f64>() + self.penalties()?)
    }

    /// The loss of each example, `[n]`, detached; with penalties added to each if asked for.
    ///
    /// ```
    /// use ndgc::train::{DataSet, InputType, Loss, NetworkConfig, OutputLayer, WeightInit};
    /// use ndgc::{DType, Device, Tensor};
    ///
    /// let net = NetworkConfig::builder().weight_init(WeightInit::Constant(0.)).input_type(InputType::feed_forward(3));
    /// let net = net.layer(OutputLayer::new(1, Loss::Mse)).build()?; // it answers 0
    /// let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
    /// let batch = DataSet::new(x, Tensor::new(&[[1f32], [3.]], &Device::Cpu)?)?;
    /// assert_eq!(net.score_examples(&batch, false)?.to_vec1::<f32>()?, [1., 9.]);
    /// assert_eq!(net.score_batch(&batch, false)?, 5.);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::fit_batch`].
    #[track_caller]
    pub fn score_examples<B: Examples>(&self, batch: &B, add_penalties: bool) -> Result<Tensor> {
        let penalties = if add_penalties { self.penalties()? } else { 0.0 };
        let each: Scored = |layer, x, labels, mask, pass| layer.scores(x, labels, mask, pass);
        let mut all = called_here(self.with_scores(batch, false, each, Tensor::try_detach))?.into_iter();
        let first = all.next().ok_or_else(|| Error::msg("a network has an output"))?;
        // In the caller's workspace they would end with its cycle.
        let _out = Workspace::scope_out();
        let sum = all.try_fold(first, |sum, next| sum.add(&next));
        called_here(sum.and_then(|sum| sum.affine(1.0, penalties)))
    }

    fn with_scores<B: Examples, R>(
        &self,
        batch: &B,
        training: bool,
        score: Scored,
        f: impl Fn(&Tensor) -> Result<R>,
    ) -> Result<Vec<R>> {
        no_grad(|| {
            let mgr = &self.inference;
            let given = batch.features_masks();
            let features = self.prepared(batch.features(), given, mgr)?;
            let met = self.met(given)?;
            let masks = Masks { given, met: &met };
            // All that the losses need lives side by side.
            let name = mgr.workspace_name(ArrayType::Input);
            let single = match (name, mgr.configuration(ArrayType::Input)) {
                (Some(name), Some(config)) => self.placing().default_workspace(name, config).build(),
                _ => mgr.clone(),
            };
            let _step = single.enter(ArrayType::Activations)?;
            let run = Run { mgr: &single, training, again: true, ..self.inferring(&features, masks, false) };
            let labels = Labels { labels: batch.labels(), masks: batch.labels_masks() };
            let mut all = Vec::with_capacity(self.outputs.len());
            self.scores(&labels, &run, score, |scores| {
                all.push(f(&scores)?);
                Ok(())
            })?;
            Ok(all)
        })
    }

    /// Gives each batch and the output for it to `f`, once through the iterator, which is reset before. The outputs lie
    /// in one workspace that is used again for each batch: detach those that are to be kept.
    ///
    /// ```
    /// use ndgc::train::{ArrayDataSetIterator, DataSet, InputType, Loss, NetworkConfig, OutputLayer};
    /// use ndgc::{DType, Device, Tensor};
    ///
    /// let net = NetworkConfig::builder().input_type(InputType::feed_forward(3)).layer(OutputLayer::new(3, Loss::Mse));
    /// let net = net.build()?;
    /// let x = Tensor::ones((10, 3), DType::F32, &Device::Cpu)?;
    /// let (batches, mut rows) = (ArrayDataSetIterator::new(DataSet::new(x.clone(), x)?, 4)?, Vec::new());
    /// net.for_each_output(batches, |batch: &DataSet, output| {
    ///     assert_eq!(output.dims(), [batch.num_examples(), 3]);
    ///     rows.push(batch.num_examples());
    ///     Ok(())
    /// })?;
    /// assert_eq!(rows, [4, 4, 2]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::output`]; of the iterator; what `f` returns.
    #[track_caller]
    pub fn for_each_output<B: Examples, I: DataIterator<B>>(
        &self,
        batches: I,
        mut f: impl FnMut(&B, &Tensor) -> Result<()>,
    ) -> Result<()> {
        self.for_all_outputs(batches, |batch, _, outputs| f(batch, only(outputs)?))
    }

    /// The same, with the masks of the features, and the outputs in their order.
    #[track_caller]
    fn for_all_outputs<B: Examples, I: DataIterator<B>>(
        &self,
        mut batches: I,
        mut f: impl FnMut(&B, Masks<'_>, &[Tensor]) -> Result<()>,
    ) -> Result<()> {
        let site = Location::caller();
        batches.reset()?;
        let place = self.output_place();
        for batch in batches {
            let batch = batch?;
            let _batch = place.enter(ArrayType::Activations)?;
            let open = place.workspace_name(ArrayType::Activations).and_then(Workspace::find);
            let given = batch.features_masks();
            let features = self.prepared(batch.features(), given, &self.inference).map_err(|error| error.at(site))?;
            let met = self.met(given).map_err(|error| error.at(site))?;
            let masks = Masks { given, met: &met };
            let run = self.inferring(&features, masks, false);
            let to = open.as_ref().filter(|space| space.is_open()).map_or(OutputPlace::Detached, OutputPlace::In);
            let outputs = no_grad(|| self.infer(&run, to, false)).map_err(|error| error.at(site))?;
            // What is looked at by evaluations is not the workspace's affair.
            let _out = Workspace::scope_out();
            f(&batch, masks, &outputs).map_err(|error| error.at(site))?;
        }
        Ok(())
    }

    /// Lets evaluations look at the outputs of all batches, in one pass: DL4J's `doEvaluation`. No array is made but
    /// the outputs, which lie in one workspace. What a mask of the labels leaves out does not count, nor, without one,
    /// the steps or examples that that of the features does: as in training, where DL4J's looks at masks of labels
    /// alone, and counts what pads series. Ids of examples are handed on ([`IEvaluation::eval_with_ids`]).
    ///
    /// ```
    /// use ndgc::train::{DataSet, Evaluation, InputType, ListDataSetIterator, Loss, LossLayer, NetworkConfig, Roc};
    /// use ndgc::{Device, Tensor};
    ///
    /// // Without weights: the softmax of what comes in.
    /// let net = NetworkConfig::builder().input_type(InputType::feed_forward(2)).layer(LossLayer::new(Loss::Mcxent));
    /// let net = net.build()?;
    /// let x = Tensor::new(&[[2f32, 0.], [0., 2.], [1., 0.]], &Device::Cpu)?;
    /// let batch = DataSet::new(x, Tensor::new(&[[1f32, 0.], [0., 1.], [0., 1.]], &Device::Cpu)?)?;
    /// let (mut evaluation, mut roc) = (Evaluation::new(2), Roc::default());
    /// net.do_evaluation(ListDataSetIterator::new(vec![batch]), &mut [&mut evaluation, &mut roc])?;
    /// assert_eq!((evaluation.recall(), roc.auc()), (0.5, Some(1.)));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::for_each_output`]; those of the evaluations.
    #[track_caller]
    pub fn do_evaluation<B: Examples, I: DataIterator<B>>(
        &self,
        batches: I,
        evaluations: &mut [&mut dyn IEvaluation],
    ) -> Result<()> {
        self.for_all_outputs(batches, |batch, masks, outputs| {
            let (output, labels) = (only(outputs)?, self.labels_of(batch, masks, 0)?);
            evaluations.iter_mut().try_for_each(|evaluation| look(&mut **evaluation, batch, labels, output))
        })
    }

    /// As [`Network::do_evaluation`], of a network with several outputs: each evaluation with the place of its output
    /// among them, in one pass. DL4J's `evaluate` with a map from outputs to evaluations.
    ///
    /// # Errors
    /// As [`Network::outputs`]; of the iterator; those of the evaluations; [`Error::Argument`] for an output that is
    /// not there.
    #[track_caller]
    pub fn do_evaluation_of<B: Examples, I: DataIterator<B>>(
        &self,
        batches: I,
        evaluations: &mut [(usize, &mut dyn IEvaluation)],
    ) -> Result<()> {
        if let Some((output, _)) = evaluations.iter().find(|(output, _)| *output >= self.outputs.len()) {
            let expected = "the place of an output, from 0, in the order of the network's outputs";
            return called_here(Err(Error::argument("do_evaluation_of", "output", output, expected)));
        }
        self.for_all_outputs(batches, |batch, masks, outputs| {
            evaluations.iter_mut().try_for_each(|(output, evaluation)| {
                look(&mut **evaluation, batch, self.labels_of(batch, masks, *output)?, &outputs[*output])
            })
        })
    }

    /// The labels of an output, and the mask that training has for them.
    fn labels_of<'b, B: Examples>(
        &self,
        batch: &'b B,
        masks: Masks<'b>,
        output: usize,
    ) -> Result<(&'b Tensor, Option<&'b Tensor>)> {
        let missing = || {
            let expected = "an array for each output that is evaluated";
            Error::argument("do_evaluation", "labels", batch.labels().len(), expected)
        };
        let labels = batch.labels().get(output).ok_or_else(missing)?;
        Ok((labels, self.labels_mask(output, batch.labels_masks(), masks)))
    }

    /// The classification of all batches: DL4J's `evaluate`.
    ///
    /// ```
    /// use ndgc::train::{Activation, DataSet, InputType, ListDataSetIterator, Loss, LossLayer, NetworkConfig};
    /// use ndgc::{Device, Error, Tensor};
    ///
    /// let x = Tensor::new(&[[2f32, 0.], [0., 2.], [2., 0.], [0., 2.]], &Device::Cpu)?;
    /// let batch = DataSet::new(x, Tensor::new(&[[1f32, 0.], [0., 1.], [0., 1.], [0., 1.]], &Device::Cpu)?)?;
    /// let batches = ListDataSetIterator::new(vec![batch]);
    /// let config = NetworkConfig::builder().input_type(InputType::feed_forward(2));
    /// let net = config.clone().layer(LossLayer::new(Loss::Mcxent)).build()?; // a softmax
    /// assert_eq!(net.evaluate(batches.clone())?.accuracy(), 0.75);
    /// let net = config.layer(LossLayer::new(Loss::Mse).activation(Activation::Relu)).build()?;
    /// assert!(matches!(net.evaluate(batches), Err(Error::Invalid { .. }))); // no probabilities
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the activation of the output layer is none of probabilities, such as ReLU; as
    /// [`Network::do_evaluation`], which looks at outputs of any kind.
    #[track_caller]
    pub fn evaluate<B: Examples, I: DataIterator<B>>(&self, batches: I) -> Result<Evaluation> {
        self.evaluate_classes(batches, "Evaluation", Evaluation::new(0))
    }

    /// The ROC curve of all batches, with as many steps as [`Roc::new`] has: DL4J's `evaluateROC`.
    ///
    /// # Errors
    /// As [`Roc::new`] and [`Network::evaluate`].
    #[track_caller]
    pub fn evaluate_roc<B: Examples, I: DataIterator<B>>(&self, batches: I, threshold_steps: usize) -> Result<Roc> {
        self.evaluate_classes(batches, "Roc", Roc::new(threshold_steps)?)
    }

    /// A ROC curve for each class: DL4J's `evaluateROCMultiClass`.
    ///
    /// # Errors
    /// As [`Network::evaluate_roc`].
    #[track_caller]
    pub fn evaluate_roc_multi_class<B: Examples, I: DataIterator<B>>(
        &self,
        batches: I,
        threshold_steps: usize,
    ) -> Result<RocMultiClass> {
        self.evaluate_classes(batches, "RocMultiClass", RocMultiClass::new(threshold_steps)?)
    }

    /// How far the outputs of all batches are from their labels, by column: DL4J's `evaluateRegression`. The output may
    /// be of any kind.
    ///
    /// # Errors
    /// As [`Network::do_evaluation`].
    #[track_caller]
    pub fn evaluate_regression<B: Examples, I: DataIterator<B>>(&self, batches: I) -> Result<RegressionEvaluation> {
        let mut evaluation = RegressionEvaluation::default();
        self.do_evaluation(batches, &mut [&mut evaluation])?;
        Ok(evaluation)
    }

    /// What an evaluation of classes finds, unless the output cannot be one of classes.
    #[track_caller]
    fn evaluate_classes<B: Examples, I: DataIterator<B>, E: IEvaluation>(
        &self,
        batches: I,
        name: &str,
        mut evaluation: E,
    ) -> Result<E> {
        let op = &self.nodes[self.outputs[0]].op;
        if let Some(activation) = op.layer().and_then(beyond_probabilities) {
            let why = format!(
                "{name} is of classes, and the output of {} with the activation {activation:?} is no probability; give \
                 the layer another activation, or ask do_evaluation(), which does not look at it",
                op.kind()
            );
            return called_here(Err(Error::invalid("evaluate", why)));
        }
        self.do_evaluation(batches, &mut [&mut evaluation])?;
        Ok(evaluation)
    }

    /// Where outputs lie that are looked at and forgotten: a workspace of their own, or nowhere.
    fn output_place(&self) -> LayerWorkspaceMgr {
        let Some(config) = self.inference.configuration(ArrayType::Input) else { return self.inference.clone() };
        let name = format!("WS_OUTPUT_MEM#{}", self.id);
        self.placing().default_workspace(&name, config).build()
    }
}

/// Lets an evaluation look at an output of a batch, with the ids of its examples if they have any.
fn look<B: Examples>(
    evaluation: &mut dyn IEvaluation,
    batch: &B,
    (labels, mask): (&Tensor, Option<&Tensor>),
    output: &Tensor,
) -> Result<()> {
    match batch.example_ids() {
        Some(ids) => evaluation.eval_with_ids(labels, output, mask, ids),
        None => evaluation.eval(labels, output, mask),
    }
}

/// Features with 0 where their mask has 0, in an array that its handles own: 0 times a NaN that is there is NaN, in
/// results and in gradients of weights. A mask that does not fit is for the layers to refuse.
fn counted(features: Tensor, mask: &Tensor) -> Result<Tensor> {
    let Some(shape) = shape_beside(mask.dims(), features.dims()) else { return Ok(features) };
    // No workspace of the caller's takes it, and no manager: what is first has none, and results are its owner's.
    let _out = Workspace::scope_out();
    let zero = |dtype| Tensor::zeros((), dtype, features.device());
    let left_out = zero(mask.dtype())?.broadcast_eq(mask)?.reshape(shape)?.broadcast_as(*features.shape())?;
    left_out.where_cond(&zero(features.dtype())?.broadcast_as(*features.shape())?, &features)
}

/// The shape beside features of a mask of all their numbers, of examples (`[n]`, `[n, 1]`) or of steps (`[n, t]`).
fn shape_beside(mask: &[usize], features: &[usize]) -> Option<Shape> {
    match (mask, features) {
        _ if mask == features => Some(features.into()),
        (&[n] | &[n, 1], &[of, ..]) if n == of => [n, 1, 1, 1].get(..features.len()).map(Shape::from),
        (&[n, t], &[of, _, steps]) if (n, t) == (of, steps) => Some((n, 1, t).into()),
        _ => None,
    }
}

/// The only one.
fn one(mut all: Vec<Tensor>) -> Result<Tensor> {
    only(&all)?;
    Ok(all.remove(0))
}

fn only(all: &[Tensor]) -> Result<&Tensor> {
    let expected = "one output; use outputs(), or do_evaluation_of(), for networks with several";
    match all {
        [one] => Ok(one),
        _ => Err(Error::argument("output", "outputs", all.len(), expected)),
    }
}
