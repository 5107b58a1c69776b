//! Programs written for candle, compiled against candle and against ndgc with nothing but the `use` lines different,
//! and their numbers compared.
//!
//! ```text
//! cargo run --bin ported             # each program's largest difference; fails above 1e-5
//! cargo run --bin ported -- --bless  # writes candle's numbers to tests/ported/numbers.txt
//! ```

use std::fmt::Write;
use std::process::ExitCode;

/// The names that the programs use, from one library.
mod candle {
    pub(crate) use candle_core::{Context, D, DType, Device, IndexOp, Module, ModuleT, Result, Tensor, Var, bail};
    pub(crate) use candle_nn::rnn::RNN;
    pub(crate) use candle_nn::{self as nn, kv_cache::KvCache};
    pub(crate) use candle_nn::{
        Activation, AdamW, BatchNorm, Conv2d, Conv2dConfig, ConvTranspose2d, Dropout, Embedding, LayerNorm, Linear,
        Optimizer, ParamsAdamW, RmsNorm, SGD, VarBuilder, VarMap,
    };
    pub(crate) use std::collections::HashMap;
}

/// The same names from the other.
mod ndgc {
    pub(crate) use ::ndgc::nn::rnn::RNN;
    pub(crate) use ::ndgc::nn::{self as nn, kv_cache::KvCache};
    pub(crate) use ::ndgc::nn::{
        Activation, AdamW, BatchNorm, Conv2d, Conv2dConfig, ConvTranspose2d, Dropout, Embedding, LayerNorm, Linear,
        Optimizer, ParamsAdamW, RmsNorm, SGD, VarBuilder, VarMap,
    };
    pub(crate) use ::ndgc::{Context, D, DType, Device, IndexOp, Module, ModuleT, Result, Tensor, Var, bail};
    pub(crate) use std::collections::HashMap;
}

macro_rules! programs {
    ($($name:ident)*) => {
        #[allow(unused_imports, dead_code)]
        mod on_candle {$(
            pub(crate) mod $name {
                use crate::candle::*;
                include!("../../../../tests/ported/programs/common.rs");
                include!(concat!("../../../../tests/ported/programs/", stringify!($name), ".rs"));
                pub(crate) fn run() -> std::result::Result<Vec<f32>, String> {
                    program().map_err(|error| error.to_string())
                }
            }
        )*}

        #[allow(unused_imports, dead_code)]
        mod on_ndgc {$(
            pub(crate) mod $name {
                use crate::ndgc::*;
                include!("../../../../tests/ported/programs/common.rs");
                include!(concat!("../../../../tests/ported/programs/", stringify!($name), ".rs"));
                pub(crate) fn run() -> std::result::Result<Vec<f32>, String> {
                    program().map_err(|error| error.to_string())
                }
            }
        )*}

        type Run = fn() -> std::result::Result<Vec<f32>, String>;

        const PROGRAMS: &[(&str, Run, Run)] = &[$((stringify!($name), on_candle::$name::run, on_ndgc::$name::run)),*];
    };
}
programs! { mnist_mlp convnet transformer recurrent operations }

fn compare(name: &str, candle: &[f32], ndgc: &[f32]) -> bool {
    let difference = |(a, b): (&f32, &f32)| (a - b).abs() / a.abs().max(1.0);
    let largest = candle.iter().zip(ndgc).map(difference).fold(0f32, f32::max);
    if std::env::args().any(|argument| argument == "--all") {
        candle.iter().zip(ndgc).for_each(|(a, b)| println!("{a} {b}"));
    }
    println!("{name}: {} numbers, largest difference {largest:e}", candle.len());
    let finite = candle.iter().chain(ndgc).all(|x| x.is_finite());
    candle.len() == ndgc.len() && finite && largest <= 1e-5
}

fn main() -> ExitCode {
    let (mut agree, mut text) = (true, String::new());
    for (name, candle, ndgc) in PROGRAMS {
        match (candle(), ndgc()) {
            (Ok(theirs), Ok(ours)) => {
                agree &= compare(name, &theirs, &ours);
                let numbers: Vec<String> = theirs.iter().map(f32::to_string).collect();
                let _ = writeln!(text, "{name}: {}", numbers.join(" "));
            }
            (theirs, ours) => {
                println!("{name}: candle {theirs:?}, ndgc {ours:?}");
                agree = false;
            }
        }
    }
    if std::env::args().any(|argument| argument == "--bless") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/ported/numbers.txt");
        if let Err(error) = std::fs::write(path, text) {
            println!("{path}: {error}");
            agree = false;
        }
    }
    if agree { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
