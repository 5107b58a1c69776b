//! The files of candle's published tests, each as a module, against ndgc under candle's names.

#![allow(warnings, clippy::all)] // of others

// candle-core's names, of which its tests use both, stand for this crate, which passes ndgc on.
extern crate self as candle;
extern crate self as candle_core;

pub use ndgc::quantized::k_quants;
pub use ndgc::*;

/// candle's macro for tests of several devices, of which there is the host.
#[macro_export]
macro_rules! test_device {
    ($run:ident, $cpu:ident, $($other:ident),*) => {
        #[test]
        fn $cpu() -> Result<()> {
            $run(&Device::Cpu)
        }
    };
}

/// The tests of one of candle's packages.
macro_rules! tests_of {
    ($package:ident: $($file:ident)*) => {
        mod $package {
            $(mod $file {
                include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/dropin/tests/", stringify!($file), ".rs"));
            })*
        }
    };
}

// Those that want no GPU.
tests_of!(core_tests: tensor_tests grad_tests indexing_tests layout_tests matmul_tests conv_tests pool_tests
    display_tests serialization_tests bilinear_tests custom_op_tests pth_tests gguf_tests quantized_tests);
tests_of!(nn_tests: ops loss optim batch_norm layer_norm group_norm one_hot rnn kv_cache cpu_flash_attn
    varlen_flash_attention bf16_cpu_ops bf16_add_bisect bf16_conv_bench);
