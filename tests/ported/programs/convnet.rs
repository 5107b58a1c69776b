// Training of a convolutional network with a batch norm, and its use: convolutions, pools, dropout, SGD.

struct Net {
    first: Conv2d,
    norm: BatchNorm,
    second: Conv2d,
    up: ConvTranspose2d,
    last: Linear,
    dropout: Dropout,
}

impl Net {
    fn new(vb: VarBuilder) -> Result<Self> {
        let padded = Conv2dConfig { padding: 1, ..Default::default() };
        let strided = Conv2dConfig { stride: 2, groups: 2, ..Default::default() };
        Ok(Self {
            first: nn::conv2d(1, 4, 3, padded, vb.pp("first"))?,
            norm: nn::batch_norm(4, 1e-5, vb.pp("norm"))?,
            second: nn::conv2d_no_bias(4, 6, 3, strided, vb.pp("second"))?,
            up: nn::conv_transpose2d(6, 3, 2, Default::default(), vb.pp("up"))?,
            last: nn::linear(48, 5, vb.pp("last"))?,
            dropout: Dropout::new(0.3),
        })
    }
}

impl ModuleT for Net {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        // The largest of the pixels, not of what a layer makes of them: candle's gradient of it is off by the window.
        let xs = xs.max_pool2d_with_stride(3, 1)?.apply(&self.first)?.apply_t(&self.norm, train)?.relu()?;
        let xs = xs.avg_pool2d(2)?.apply(&self.second)?;
        let xs = nn::ops::leaky_relu(&xs, 0.1)?.apply(&self.up)?;
        // Dropout in use only: its numbers are random.
        let xs = self.dropout.forward(&xs.flatten_from(1)?, false)?;
        xs.apply(&self.last)
    }
}

fn program() -> Result<Vec<f32>> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let net = Net::new(vb.clone())?;
    // The statistics of the norm are its own; the rest of the weights are replaced.
    fill(&variables)?;
    let mut sgd = SGD::new(ordered(&variables), 0.05)?;
    let mut out = Vec::new();
    for step in 0..6 {
        let images = array(&[8, 1, 16, 16], 200 + step, 1.0)?;
        let targets = array(&[8, 5], 300 + step, 1.0)?;
        let got = images.apply_t(&net, true)?;
        let loss = nn::loss::mse(&got, &targets)?;
        sgd.backward_step(&loss)?;
        out.push(loss.to_scalar::<f32>()?);
    }
    let images = array(&[2, 1, 16, 16], 777, 1.0)?;
    let got = net.forward_t(&images, false)?;
    out.extend(got.flatten_all()?.to_vec1::<f32>()?);
    out.extend(net.norm.running_mean().to_vec1::<f32>()?);
    out.extend(net.norm.running_var().to_vec1::<f32>()?);
    let pooled = images.avg_pool2d_with_stride((3, 2), (2, 2))?;
    out.push(pooled.sqr()?.sum_all()?.to_scalar::<f32>()?);
    Ok(out)
}
