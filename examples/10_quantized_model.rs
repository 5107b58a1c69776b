//! A model whose weights have two to eight bits a number, from a GGUF file.
//!
//! What you learn: weights are made blocks (`QTensor::quantize`) and written to a GGUF file with what there is to say
//! of them; blocks that are read are arrays of bytes, counted to the byte, and multiplied as they are (`QMatMul`); and
//! what fewer bits cost in right answers. (`gguf_file::MmapedContent` maps a file instead: then its blocks take no
//! memory.)
//!
//! ```text
//! $ cargo run --release --example 10_quantized_model
//! trained: 1000 rows, … right
//! format   file bytes  bits a weight  memory to load      right
//! F32         273760          32.00        273488 B  …
//! Q8_0         73728           8.50         73456 B  …
//! Q6K          57248           6.56         56964 B  …
//! Q4K          39680           4.50         39408 B  …
//! Q4_0         39680           4.50         39408 B  …
//! Q2K          23744           2.62         23448 B  …
//! ```

use std::fs::{self, File};
use std::path::Path;

use ndgc::nn::{Adam, Linear, Module, Optimizer, VarBuilder, VarMap, linear, loss};
use ndgc::quantized::gguf_file::{self, Content, Value};
use ndgc::quantized::{GgmlDType, QMatMul, QTensor};
use ndgc::{D, DType, Device, Result, Tensor, gc, no_grad};

/// Numbers of a row: whole blocks of every format.
const WIDTH: usize = 256;
const CLASSES: usize = 10;
const LAYERS: [(&str, usize); 2] = [("blk.0", WIDTH), ("output", CLASSES)];

/// Rows that are each one of ten patterns under noise, and which.
fn rows(patterns: &Tensor, count: usize) -> Result<(Tensor, Tensor)> {
    let device = patterns.device();
    let labels = Tensor::rand(0f32, CLASSES as f32, count, device)?.to_dtype(DType::U32)?;
    let noise = Tensor::randn(0f32, 2.5, (count, WIDTH), device)?;
    Ok((patterns.index_select(&labels, 0)?.add(&noise)?, labels))
}

/// How many of the rows are told right, by a forward pass.
fn right(scores: &Tensor, labels: &Tensor) -> Result<f32> {
    scores.argmax(D::Minus1)?.eq(labels)?.to_dtype(DType::F32)?.sum_all()?.to_scalar()
}

/// Trains two layers.
fn trained(patterns: &Tensor) -> Result<Vec<Linear>> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, patterns.device());
    let layers: Vec<Linear> =
        LAYERS.iter().map(|(name, out)| linear(WIDTH, *out, vb.pp(name))).collect::<Result<_>>()?;
    let mut optimizer = Adam::new(variables.all_vars(), 1e-3)?;
    for _ in 0..60 {
        let (x, labels) = rows(patterns, 128)?;
        let scores = layers[1].forward(&layers[0].forward(&x)?.relu()?)?;
        optimizer.backward_step(&loss::cross_entropy(&scores, &labels)?)?;
    }
    Ok(layers)
}

/// Writes the layers with weights in blocks of this format, and biases as they are.
fn write(layers: &[Linear], format: GgmlDType, path: &Path) -> Result<()> {
    let mut tensors = Vec::new();
    for ((name, _), layer) in LAYERS.iter().zip(layers) {
        tensors.push((format!("{name}.weight"), QTensor::quantize(layer.weight(), format)?));
        let bias = layer.bias().expect("made with one");
        tensors.push((format!("{name}.bias"), QTensor::quantize(bias, GgmlDType::F32)?));
    }
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let architecture = Value::String("two layers".to_owned());
    gguf_file::write(&mut File::create(path)?, &[("general.architecture", &architecture)], &tensors)
}

/// A layer of a file: its blocks, and its bias.
struct Layer(QMatMul, Tensor);

/// The layers of a file.
fn load(path: &Path, device: &Device) -> Result<Vec<Layer>> {
    let mut file = File::open(path)?;
    let content = Content::read(&mut file)?;
    let mut tensor = |name: String| content.tensor(&mut file, &name, device);
    let mut layer = |(name, _): &(&str, usize)| {
        let weight = QMatMul::from_qtensor(tensor(format!("{name}.weight"))?)?;
        Ok(Layer(weight, tensor(format!("{name}.bias"))?.dequantize(device)?))
    };
    LAYERS.iter().map(&mut layer).collect()
}

fn main() -> Result<()> {
    let device = Device::Cpu;
    device.set_seed(3)?;
    let patterns = Tensor::randn(0f32, 1., (CLASSES, WIDTH), &device)?;
    let layers = trained(&patterns)?;
    let (x, labels) = rows(&patterns, 1000)?;
    let told = no_grad(|| right(&layers[1].forward(&layers[0].forward(&x)?.relu()?)?, &labels))?;
    println!("trained: 1000 rows, {told} right");

    println!("format   file bytes  bits a weight  memory to load      right");
    let path = std::env::temp_dir().join(format!("ndgc-quantized-{}.gguf", std::process::id()));
    for format in [GgmlDType::F32, GgmlDType::Q8_0, GgmlDType::Q6K, GgmlDType::Q4K, GgmlDType::Q4_0, GgmlDType::Q2K] {
        write(&layers, format, &path)?;
        gc::collect(); // what was written is dead: its bytes come back now, and not at some later call
        let before = device.memory().active;
        let loaded = load(&path, &device)?;
        let memory = device.memory().active - before;
        let apply = |x: &Tensor, Layer(weight, bias): &Layer| weight.forward(x)?.broadcast_add(bias);
        let told = no_grad(|| right(&apply(&apply(&x, &loaded[0])?.relu()?, &loaded[1])?, &labels))?;
        let bits = (8 * format.type_size()) as f64 / format.block_size() as f64;
        let bytes = fs::metadata(&path)?.len();
        println!("{:6}  {bytes:10}  {bits:13.2}  {memory:12} B  {told:9}", format!("{format:?}"));
    }
    fs::remove_file(&path)?;
    Ok(())
}
