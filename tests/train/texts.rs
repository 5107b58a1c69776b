//! The texts of errors of networks, data, evaluations and workers, each to the word.

use ndgc::train::{Evaluation, IEvaluation, InputType, Loss, NetworkConfig, OutputLayer};
use ndgc::{DType, Device, Result, Tensor, Workspace, WorkspaceConfig};

use super::both::both;
use crate::common::text_of;

/// What an error says, without the line of these tests that it names.
fn text<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "no error".to_owned(),
        Err(error) => text_of(&error),
    }
}

fn ones(dims: &[usize]) -> Tensor {
    Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap()
}

fn config() -> NetworkConfig {
    NetworkConfig::builder().input_type(InputType::feed_forward(3))
}

fn out() -> OutputLayer {
    OutputLayer::new(2, Loss::Mse)
}

#[test]
fn a_network_of_several_outputs_says_where_it_was_asked_for_one() {
    both(|| {
        let config = config().add_layer("a", out(), &["input"]).add_layer("b", out(), &["input"]);
        let (net, x) = (config.set_outputs(&["a", "b"]).build().unwrap(), ones(&[4, 3]));
        let wanted = "output: outputs is 2; it must be one output; use outputs(), or do_evaluation_of(), for networks \
                      with several";
        assert_eq!(text(net.output(&x)), wanted);
        assert_eq!(text(net.output_masked(&x, None)), wanted);
        let answers = Workspace::for_current_thread("ANSWERS", &WorkspaceConfig::default()).unwrap();
        let cycle = answers.activate().unwrap();
        assert_eq!(text(net.output_in(&x, &cycle)), wanted);
        cycle.leave();
        answers.destroy().unwrap();
    });
}

#[test]
fn an_axis_that_no_evaluation_has_is_told_as_it_was_given() {
    both(|| {
        let x = ones(&[2, 3]);
        let told = text(Evaluation::default().with_axis(-3).eval(&x, &x, None));
        let wanted = "Evaluation::eval: axis -3 is out of range for shape [2, 3]; it has 2 axes, counted from 0 or \
                      backwards from -1";
        assert_eq!(told, wanted);
    });
}
