// Training of a perceptron on images of digits: dense layers, cross entropy, SGD, then AdamW.

struct Net {
    first: Linear,
    second: Linear,
    last: Linear,
}

impl Net {
    fn new(vb: VarBuilder) -> Result<Self> {
        let first = nn::linear(IMAGE, 32, vb.pp("first"))?;
        let second = nn::linear(32, 16, vb.pp("second"))?;
        let last = nn::linear_no_bias(16, CLASSES, vb.pp("last"))?;
        Ok(Self { first, second, last })
    }
}

impl Module for Net {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = xs.apply(&self.first)?.relu()?;
        let xs = self.second.forward(&xs)?.gelu()?;
        xs.apply(&self.last)
    }
}

const IMAGE: usize = 64;
const CLASSES: usize = 10;
const BATCH: usize = 24;

fn batch(step: usize) -> Result<(Tensor, Tensor)> {
    let images = array(&[BATCH, 8, 8], 100 + step as u32, 1.0)?;
    let labels: Vec<u32> = (0..BATCH).map(|i| ((i * 7 + step * 3) % CLASSES) as u32).collect();
    let labels = Tensor::from_vec(labels, BATCH, images.device())?;
    // The digit shows in the brightness of a row.
    let rows = nn::encoding::one_hot(labels.clone(), CLASSES, 1f32, 0f32)?.narrow(1, 0, 8)?;
    let images = images.broadcast_add(&rows.unsqueeze(D::Minus1)?)?;
    Ok((images.flatten_from(1)?, labels))
}

fn program() -> Result<Vec<f32>> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let net = Net::new(vb.pp("net"))?;
    fill(&variables)?;
    let mut out = Vec::new();
    let mut sgd = SGD::new(ordered(&variables), 0.1)?;
    for step in 0..12 {
        let (images, labels) = batch(step)?;
        let logits = net.forward(&images)?;
        let loss = nn::loss::nll(&nn::ops::log_softmax(&logits, D::Minus1)?, &labels)?;
        sgd.backward_step(&loss)?;
        out.push(loss.to_scalar::<f32>()?);
    }
    let params = ParamsAdamW { lr: 0.003, ..Default::default() };
    let mut adam = AdamW::new(ordered(&variables), params)?;
    for step in 12..20 {
        let (images, labels) = batch(step)?;
        let loss = nn::loss::cross_entropy(&images.apply(&net)?, &labels)?;
        let grads = loss.backward()?;
        adam.step(&grads)?;
        out.push(loss.to_vec0::<f32>()?);
    }
    let (images, labels) = batch(40)?;
    let logits = net.forward(&images)?;
    let hits = logits.argmax(D::Minus1)?.eq(&labels)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
    out.push(hits / BATCH as f32);
    out.extend(nn::ops::softmax(&logits, 1)?.i(0)?.to_vec1::<f32>()?);
    out.extend(net.last.weight().mean(1)?.to_vec1::<f32>()?);
    Ok(out)
}
