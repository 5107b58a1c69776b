// Inference of a small transformer, one token at a time: embedding, RMS norms, rotary positions, grouped heads, cache
// of keys and values, gated perceptron, greedy choice.

const WIDTH: usize = 32;
const HEADS: usize = 4;
const GROUPS: usize = 2;
const HEAD: usize = WIDTH / HEADS;
const VOCABULARY: usize = 50;

struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    cache: KvCache,
}

impl Attention {
    fn new(vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            q: nn::linear_no_bias(WIDTH, HEADS * HEAD, vb.pp("q_proj"))?,
            k: nn::linear_no_bias(WIDTH, GROUPS * HEAD, vb.pp("k_proj"))?,
            v: nn::linear_b(WIDTH, GROUPS * HEAD, true, vb.pp("v_proj"))?,
            o: nn::linear_no_bias(HEADS * HEAD, WIDTH, vb.pp("o_proj"))?,
            cache: KvCache::new(2, 8),
        })
    }

    fn forward(&mut self, xs: &Tensor, cos: &Tensor, sin: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (b, len, _) = xs.dims3()?;
        let split = |xs: Tensor, heads: usize| xs.reshape((b, len, heads, HEAD))?.transpose(1, 2)?.contiguous();
        let q = split(xs.apply(&self.q)?, HEADS)?;
        let k = split(xs.apply(&self.k)?, GROUPS)?;
        let v = split(xs.apply(&self.v)?, GROUPS)?;
        let q = nn::rotary_emb::rope(&q, cos, sin)?;
        let k = nn::rotary_emb::rope(&k, cos, sin)?;
        let (k, v) = self.cache.append(&k, &v)?;
        let (k, v) = (repeated(k)?, repeated(v)?);
        let scores = (q.matmul(&k.t()?)? / (HEAD as f64).sqrt())?;
        let scores = match mask {
            None => scores,
            Some(mask) => scores.broadcast_add(mask)?,
        };
        let weights = nn::ops::softmax_last_dim(&scores)?;
        let ys = weights.matmul(&v)?.transpose(1, 2)?.reshape((b, len, HEADS * HEAD))?;
        self.o.forward(&ys)
    }
}

fn repeated(xs: Tensor) -> Result<Tensor> {
    let (b, groups, len, head) = xs.dims4()?;
    let times = HEADS / groups;
    if times == 1 {
        return Ok(xs);
    }
    xs.unsqueeze(2)?.expand((b, groups, times, len, head))?.contiguous()?.reshape((b, groups * times, len, head))
}

struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let gate = nn::ops::silu(&self.gate.forward(xs)?)?;
        (gate * self.up.forward(xs)?)?.apply(&self.down)
    }
}

struct Block {
    norm1: RmsNorm,
    attention: Attention,
    norm2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn new(vb: VarBuilder) -> Result<Self> {
        let mlp = Mlp {
            gate: nn::linear_no_bias(WIDTH, 48, vb.pp("mlp").pp("gate"))?,
            up: nn::linear_no_bias(WIDTH, 48, vb.pp("mlp").pp("up"))?,
            down: nn::linear_no_bias(48, WIDTH, vb.pp("mlp").pp("down"))?,
        };
        Ok(Self {
            norm1: nn::rms_norm(WIDTH, 1e-6, vb.pp("norm1"))?,
            attention: Attention::new(vb.pp("attention"))?,
            norm2: nn::layer_norm(WIDTH, 1e-5, vb.pp("norm2"))?,
            mlp,
        })
    }

    fn forward(&mut self, xs: &Tensor, cos: &Tensor, sin: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let residual = xs;
        let xs = self.attention.forward(&self.norm1.forward(xs)?, cos, sin, mask)?;
        let xs = (xs + residual)?;
        let residual = &xs;
        residual + xs.apply(&self.norm2)?.apply(&self.mlp)
    }
}

fn angles(positions: usize) -> Result<(Tensor, Tensor)> {
    let device = &Device::Cpu;
    let rates: Vec<f32> = (0..HEAD).step_by(2).map(|i| 1f32 / 10_000f32.powf(i as f32 / HEAD as f32)).collect();
    let count = rates.len();
    let rates = Tensor::from_vec(rates, (1, count), device)?;
    let places = Tensor::arange(0u32, positions as u32, device)?.to_dtype(DType::F32)?.reshape((positions, 1))?;
    let angles = places.matmul(&rates)?;
    Ok((angles.cos()?, angles.sin()?))
}

fn causal(len: usize, device: &Device) -> Result<Tensor> {
    let mask: Vec<f32> =
        (0..len).flat_map(|i| (0..len).map(move |j| if j > i { f32::NEG_INFINITY } else { 0. })).collect();
    Tensor::from_slice(&mask, (len, len), device)
}

fn program() -> Result<Vec<f32>> {
    let device = Device::cuda_if_available(9999).unwrap_or(Device::Cpu);
    // The weights as a file would give them.
    let variables = VarMap::new();
    build(VarBuilder::from_varmap(&variables, DType::F32, &device))?;
    fill(&variables)?;
    let weights: HashMap<String, Tensor> =
        variables.data().lock().unwrap().iter().map(|(name, var)| (name.clone(), var.as_tensor().detach())).collect();
    let (table, mut blocks, norm, head) = build(VarBuilder::from_tensors(weights, DType::F32, &device))?;
    let (cos, sin) = angles(32)?;
    let mut tokens = vec![3u32, 17, 42, 8, 21];
    let (mut out, mut start) = (Vec::new(), 0);
    for _ in 0..14 {
        let new = &tokens[start..];
        let input = Tensor::new(new, &device)?.unsqueeze(0)?;
        let mask = if new.len() > 1 { Some(causal(new.len(), &device)?) } else { None };
        let (cos, sin) = (cos.narrow(0, start, new.len())?, sin.narrow(0, start, new.len())?);
        let mut xs = table.forward(&input)?;
        for block in blocks.iter_mut() {
            xs = block.forward(&xs, &cos, &sin, mask.as_ref())?;
        }
        let last = xs.i((.., new.len() - 1, ..))?.contiguous()?.apply(&norm)?;
        let logits = last.apply(&head)?.squeeze(0)?;
        let best = logits.argmax(D::Minus1)?.to_scalar::<u32>()?;
        out.push(best as f32);
        out.push(logits.max(0)?.to_scalar::<f32>()?);
        out.push(logits.log_sum_exp(0)?.to_scalar::<f32>()?);
        start = tokens.len();
        tokens.push(best);
    }
    Ok(out)
}

type Model = (Embedding, Vec<Block>, RmsNorm, Linear);

fn build(vb: VarBuilder) -> Result<Model> {
    let blocks = (0..2).map(|i| Block::new(vb.pp(format!("layers.{i}")))).collect::<Result<Vec<_>>>()?;
    let table = nn::embedding(VOCABULARY, WIDTH, vb.pp("embed"))?;
    let norm = nn::rms_norm(WIDTH, 1e-6, vb.pp("norm"))?;
    let head = nn::linear_no_bias(WIDTH, VOCABULARY, vb.pp("head"))?;
    if table.hidden_size() != WIDTH {
        bail!("a table of {} numbers a row", table.hidden_size());
    }
    Ok((table, blocks, norm, head))
}
