//! Programs written for candle, with nothing but the `use` lines different: they give the numbers that candle gives.
//!
//! candle's numbers are in `numbers.txt`; `cargo run --bin ported` in `benches/compare` runs both and compares.

mod names {
    pub(crate) use ndgc::nn::rnn::RNN;
    pub(crate) use ndgc::nn::{self, kv_cache::KvCache};
    pub(crate) use ndgc::nn::{
        Activation, AdamW, BatchNorm, Conv2d, Conv2dConfig, ConvTranspose2d, Dropout, Embedding, LayerNorm, Linear,
        Optimizer, ParamsAdamW, RmsNorm, SGD, VarBuilder, VarMap,
    };
    pub(crate) use ndgc::{Context, D, DType, Device, IndexOp, Module, ModuleT, Result, Tensor, Var, bail};
    pub(crate) use std::collections::HashMap;
}

/// Compares a program's numbers with those of its line in the file.
fn check(name: &str, got: &[f32]) {
    let lines = include_str!("numbers.txt").lines();
    let line = lines.filter_map(|line| line.split_once(": ")).find(|(program, _)| *program == name);
    let want: Vec<f32> = line.expect("a line").1.split(' ').map(|number| number.parse().expect("a number")).collect();
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "number {i}: {got}, and candle has {want}");
    }
}

macro_rules! programs {
    ($($name:ident)*) => {$(
        #[allow(unused_imports, dead_code, clippy::all, clippy::unwrap_used)] // written for another library
        mod $name {
            use crate::ported::names::*;
            include!("programs/common.rs");
            include!(concat!("programs/", stringify!($name), ".rs"));

            #[test]
            fn gives_the_numbers_that_candle_gives() {
                let _turn = crate::common::turn();
                for on in [false, true] {
                    let _switch = ndgc::gc::scoped(on);
                    crate::ported::check(stringify!($name), &program().unwrap());
                }
            }
        }
    )*};
}
programs! { mnist_mlp convnet transformer recurrent operations }
