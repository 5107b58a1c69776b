// Written once, for whatever library's `Tensor`, `nn` and `quantized` are in scope.

/// A layer of an encoder as programs for sentences have it: no part of it is written for one library.
struct EncoderLayer {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    norm1: LayerNorm,
    up: Linear,
    down: Linear,
    norm2: LayerNorm,
}

const HEADS: usize = 12;

impl EncoderLayer {
    fn new(width: usize, vb: VarBuilder) -> Result<Self> {
        Ok(EncoderLayer {
            q: nn::linear(width, width, vb.pp("q"))?,
            k: nn::linear(width, width, vb.pp("k"))?,
            v: nn::linear(width, width, vb.pp("v"))?,
            out: nn::linear(width, width, vb.pp("out"))?,
            norm1: nn::layer_norm(width, 1e-12, vb.pp("norm1"))?,
            up: nn::linear(width, 4 * width, vb.pp("up"))?,
            down: nn::linear(4 * width, width, vb.pp("down"))?,
            norm2: nn::layer_norm(width, 1e-12, vb.pp("norm2"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (batch, len, width) = x.dims3()?;
        let heads = |x: Tensor| x.reshape((batch, len, HEADS, width / HEADS))?.transpose(1, 2)?.contiguous();
        let (q, k, v) = (heads(self.q.forward(x)?)?, heads(self.k.forward(x)?)?, heads(self.v.forward(x)?)?);
        let scores = (q.matmul(&k.t()?)? / ((width / HEADS) as f64).sqrt())?.broadcast_add(mask)?;
        let seen = nn::ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
        let seen = seen.transpose(1, 2)?.contiguous()?.flatten_from(D::Minus2)?;
        let x = self.norm1.forward(&(self.out.forward(&seen)? + x)?)?;
        let inner = self.up.forward(&x)?.gelu_erf()?;
        self.norm2.forward(&(self.down.forward(&inner)? + &x)?)
    }
}

/// Six layers.
pub struct Encoder {
    layers: Vec<EncoderLayer>,
}

impl Encoder {
    pub fn new(width: usize) -> Result<Self> {
        let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
        let layers = (0..6).map(|i| EncoderLayer::new(width, vb.pp(format!("layer{i}")))).collect::<Result<_>>()?;
        Ok(Encoder { layers })
    }

    pub fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward(&x, mask)?;
        }
        Ok(x)
    }
}

/// A batch of sentences and their mask.
pub fn sentences(batch: usize, len: usize, width: usize) -> Result<(Tensor, Tensor)> {
    let x = Tensor::randn(0f32, 1f32, (batch, len, width), &Device::Cpu)?;
    Ok((x, Tensor::zeros((batch, 1, 1, len), DType::F32, &Device::Cpu)?))
}

/// Weights of a decoder: floats, or blocks.
pub enum Weights {
    Floats(Tensor),
    Blocks(QMatMul),
}

impl Weights {
    fn new(from: usize, to: usize, kind: Option<GgmlDType>) -> Result<Self> {
        let w = Tensor::randn(0f32, 1. / (from as f32).sqrt(), (to, from), &Device::Cpu)?;
        Ok(match kind {
            None => Weights::Floats(w),
            Some(kind) => Weights::Blocks(QMatMul::from_qtensor(QTensor::quantize(&w, kind)?)?),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Weights::Floats(w) => x.broadcast_matmul(&w.t()?),
            Weights::Blocks(w) => w.forward(x),
        }
    }
}

struct DecoderLayer {
    norm1: RmsNorm,
    qkv: Weights,
    out: Weights,
    norm2: RmsNorm,
    gate: Weights,
    up: Weights,
    down: Weights,
    cache: KvCache,
}

/// A transformer that writes a token at a time, greedily: 8 layers of width 512.
pub struct Decoder {
    words: Tensor,
    layers: Vec<DecoderLayer>,
    head: Weights,
}

pub const TOKENS: usize = 256;
const WIDTH: usize = 512;
const WORDS: usize = 8192;

impl Decoder {
    pub fn new(kind: Option<GgmlDType>) -> Result<Self> {
        let norm = || Ok::<_, Error>(RmsNorm::new(Tensor::ones(WIDTH, DType::F32, &Device::Cpu)?, 1e-5));
        let layer = |_| {
            Ok(DecoderLayer {
                norm1: norm()?,
                qkv: Weights::new(WIDTH, 3 * WIDTH, kind)?,
                out: Weights::new(WIDTH, WIDTH, kind)?,
                norm2: norm()?,
                gate: Weights::new(WIDTH, 4 * WIDTH, kind)?,
                up: Weights::new(WIDTH, 4 * WIDTH, kind)?,
                down: Weights::new(4 * WIDTH, WIDTH, kind)?,
                cache: KvCache::new(2, TOKENS + 1),
            })
        };
        Ok(Decoder {
            words: Tensor::randn(0f32, 1f32, (WORDS, WIDTH), &Device::Cpu)?,
            layers: (0..8).map(layer).collect::<Result<_>>()?,
            head: Weights::new(WIDTH, WORDS, kind)?,
        })
    }

    pub fn write(&mut self, tokens: usize) -> Result<u32> {
        let mut token = 1u32;
        for layer in &mut self.layers {
            layer.cache.reset();
        }
        for _ in 0..tokens {
            let ids = Tensor::new(&[token], &Device::Cpu)?;
            let mut x = self.words.index_select(&ids, 0)?.unsqueeze(0)?;
            for layer in &mut self.layers {
                let qkv = layer.qkv.forward(&layer.norm1.forward(&x)?)?;
                let heads = |part: usize| {
                    qkv.narrow(D::Minus1, part * WIDTH, WIDTH)?.reshape((1, 1, 8, WIDTH / 8))?.transpose(1, 2)?.contiguous()
                };
                let (k, v) = layer.cache.append(&heads(1)?, &heads(2)?)?;
                let scores = (heads(0)?.matmul(&k.t()?)? / 8.)?;
                let seen = nn::ops::softmax_last_dim(&scores)?.matmul(&v.contiguous()?)?;
                let seen = seen.transpose(1, 2)?.reshape((1, 1, WIDTH))?;
                x = (x + layer.out.forward(&seen)?)?;
                let inner = layer.norm2.forward(&x)?;
                let inner = (layer.gate.forward(&inner)?.silu()? * layer.up.forward(&inner)?)?;
                x = (x + layer.down.forward(&inner)?)?;
            }
            token = self.head.forward(&x)?.flatten_all()?.argmax(0)?.to_scalar::<u32>()?;
        }
        Ok(token)
    }
}

/// A product with a matrix of blocks, 4096 by 4096, and `rows` rows to multiply with it.
pub fn blocks(kind: GgmlDType, rows: usize) -> Result<(QMatMul, Tensor)> {
    let w = Tensor::randn(0f32, 1f32, (4096, 4096), &Device::Cpu)?;
    let x = Tensor::randn(0f32, 1f32, (rows, 4096), &Device::Cpu)?;
    Ok((QMatMul::from_qtensor(QTensor::quantize(&w, kind)?)?, x))
}

/// Loads every tensor and reads one number of it; how many there were.
pub fn load(path: &str, kind: &str) -> Result<usize> {
    let all: Vec<(String, Tensor)> = match kind {
        "buffered" => safetensors::load(path, &Device::Cpu)?.into_iter().collect(),
        "mapped" => {
            // SAFETY: nobody writes to the file meanwhile.
            let file = unsafe { safetensors::MmapedSafetensors::new(path)? };
            let names: Vec<String> = file.tensors().into_iter().map(|(name, _)| name).collect();
            names.into_iter().map(|name| Ok((name.clone(), file.load(&name, &Device::Cpu)?))).collect::<Result<_>>()?
        }
        _ => pickle::read_all(path)?,
    };
    for (_, tensor) in &all {
        tensor.flatten_all()?.get(0)?.to_scalar::<f32>()?;
    }
    Ok(all.len())
}
