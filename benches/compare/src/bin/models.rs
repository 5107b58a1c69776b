//! Models beside candle's: an encoder, generation with floats and with blocks, products with blocks, and loading. Each
//! program is written once (`models/programs.rs`) and compiled against both libraries, which take turns. One thread:
//! `RAYON_NUM_THREADS=1 NDGC_THREADS=1 taskset -c 1 cargo run --release --bin models [PTH]`, with a PyTorch file to load.

use std::alloc::System;
use std::time::Instant;

#[path = "../counting.rs"]
mod counting;

#[global_allocator]
static ALLOCATOR: counting::Counting<System> = counting::Counting(System);

mod ours {
    use ndgc::nn::kv_cache::KvCache;
    use ndgc::nn::{self, LayerNorm, Linear, Module, RmsNorm, VarBuilder, VarMap};
    use ndgc::quantized::{GgmlDType, QMatMul, QTensor};
    use ndgc::{D, DType, Device, Error, Result, Tensor, pickle, safetensors};

    include!("../models/programs.rs");
}

mod theirs {
    use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
    use candle_core::{D, DType, Device, Error, Module, Result, Tensor, pickle, safetensors};
    use candle_nn::kv_cache::KvCache;
    use candle_nn::{self as nn, LayerNorm, Linear, RmsNorm, VarBuilder, VarMap};

    include!("../models/programs.rs");
}

/// Milliseconds of the median of each, run in turns.
fn compare(what: &str, rounds: usize, mut ours: impl FnMut(), mut theirs: impl FnMut()) {
    let time = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64() * 1e3
    };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    (ours(), theirs());
    for _ in 0..rounds {
        a.push(time(&mut ours));
        b.push(time(&mut theirs));
    }
    a.sort_by(f64::total_cmp);
    b.sort_by(f64::total_cmp);
    let (a, b) = ((a[0], a[rounds / 2]), (b[0], b[rounds / 2]));
    println!("| {what} | {:.3} ({:.3}) | {:.3} ({:.3}) | {:.2} ({:.2}) |", a.1, a.0, b.1, b.0, a.1 / b.1, a.0 / b.0);
}

fn main() {
    type Ours = ndgc::quantized::GgmlDType;
    type Theirs = candle_core::quantized::GgmlDType;
    let only = std::env::var("ONLY").unwrap_or_default();
    let is_wanted = |what: &str| only.is_empty() || what.contains(&only);
    println!("| milliseconds, median (best) | ndgc | candle | ratio |\n|---|---|---|---|");
    for (batch, len) in [(4, 32), (1, 128)] {
        let what = format!("encoder, 6 layers of width 384, {batch} x {len}");
        if is_wanted(&what) {
            let (a, b) = (ours::Encoder::new(384).unwrap(), theirs::Encoder::new(384).unwrap());
            let x = ours::sentences(batch, len, 384).unwrap();
            let y = theirs::sentences(batch, len, 384).unwrap();
            let ours = || drop(ndgc::no_grad(|| a.forward(&x.0, &x.1)).unwrap());
            compare(&what, 60, ours, || drop(b.forward(&y.0, &y.1).unwrap()));
        }
    }
    for (name, a, b) in [("f32", None, None), ("Q4_0", Some(Ours::Q4_0), Some(Theirs::Q4_0))] {
        let what = format!("{} tokens, 8 layers of width 512, {name}", ours::TOKENS);
        if is_wanted(&what) {
            let (mut a, mut b) = (ours::Decoder::new(a).unwrap(), theirs::Decoder::new(b).unwrap());
            let mut ours = || assert!(a.write(ours::TOKENS).unwrap() < 8192);
            let mut theirs = || assert!(b.write(theirs::TOKENS).unwrap() < 8192);
            compare(&what, 5, &mut ours, &mut theirs);
            let memory = || {
                ndgc::gc::collect();
                ndgc::Device::Cpu.memory()
            };
            ndgc::Device::Cpu.reset_peak();
            let before = memory();
            let [a, b] = [&mut ours as &mut dyn FnMut(), &mut theirs].map(|f| {
                let before = counting::requests();
                f();
                (counting::requests() - before) as f64 / ours::TOKENS as f64
            });
            println!("| requests to the heap, a token | {a:.2} | {b:.2} | |");
            let (peak, after) = (memory().peak - before.active, memory().active as i64 - before.active as i64);
            println!("| bytes above what lived before: peak, at the end | {peak}, {after} | | |");
        }
    }
    for (name, a, b) in [("Q4_0", Ours::Q4_0, Theirs::Q4_0), ("Q8_0", Ours::Q8_0, Theirs::Q8_0)] {
        for rows in [1, 32] {
            let what = format!("{name} product, 4096 x 4096 by {rows}");
            if is_wanted(&what) {
                let (a, x) = ours::blocks(a, rows).unwrap();
                let (b, y) = theirs::blocks(b, rows).unwrap();
                use candle_core::Module as _;
                let ours = || drop(ndgc::nn::Module::forward(&a, &x).unwrap());
                compare(&what, 40, ours, || drop(b.forward(&y).unwrap()));
            }
        }
    }
    let path = std::env::temp_dir().join("ndgc-models.safetensors");
    let path = path.to_str().expect("a path of letters");
    let tensors = (0..64).map(|i| {
        let value = ndgc::Tensor::randn(0f32, 1f32, (512, 512), &ndgc::Device::Cpu).unwrap();
        (format!("layer{i}.weight"), value)
    });
    ndgc::safetensors::save(&tensors.collect(), path).unwrap();
    let pth = std::env::args().nth(1);
    let files = [("buffered", Some(path)), ("mapped", Some(path)), ("pth", pth.as_deref())];
    for (kind, path) in files {
        let what = format!("loading, {kind}");
        if let Some(path) = path.filter(|_| is_wanted(&what)) {
            let ours = || assert!(ours::load(path, kind).unwrap() > 0);
            compare(&what, 20, ours, || assert!(theirs::load(path, kind).unwrap() > 0));
        }
    }
    let _ = std::fs::remove_file(path);
}
