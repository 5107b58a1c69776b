// One call of each operation that models are written with, in candle's names and argument orders.

fn push(out: &mut Vec<f32>, values: Result<Tensor>) -> Result<()> {
    out.extend(values?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?);
    Ok(())
}

fn views(out: &mut Vec<f32>, x: &Tensor) -> Result<()> {
    let dev = x.device();
    push(out, x.reshape(((), 4))?.t()?.contiguous())?;
    push(out, x.permute((2, 0, 1))?.flatten(0, 1))?;
    push(out, x.transpose(0, D::Minus1)?.squeeze(D::Minus2).or_else(|_| x.unsqueeze(0)))?;
    push(out, x.narrow(1, 1, 2)?.broadcast_as((2, 2, 2, 4)))?;
    push(out, x.i((.., 1..3, ..=1)))?;
    push(out, x.i((1, .., 3)))?;
    push(out, x.i(0)?.get(2))?;
    push(out, x.get_on_dim(1, 0))?;
    push(out, Tensor::cat(&[x, &x.neg()?], 1)?.flatten_from(1))?;
    push(out, Tensor::stack(&[x.i(0)?, x.i(1)?], 2)?.flatten_to(1))?;
    for part in x.chunk(2, 2)? {
        push(out, part.sum_all())?;
    }
    push(out, x.pad_with_zeros(1, 1, 2)?.pad_with_same(0, 1, 0))?;
    push(out, x.flip(&[0, 2]))?;
    push(out, x.roll(1, 1))?;
    push(out, x.repeat((1, 2, 1)))?;
    push(out, x.broadcast_left(2))?;
    push(out, x.slice_assign(&[0..1, 1..3, 0..4], &Tensor::zeros((1, 2, 4), x.dtype(), dev)?))?;
    push(out, x.slice_scatter(&x.narrow(1, 0, 1)?, 1, 2))?;
    let ids = Tensor::new(&[2u32, 0], dev)?;
    push(out, x.index_select(&ids, 1))?;
    push(out, x.i(0)?.gather(&Tensor::new(&[[1u32, 0], [3, 3], [2, 1]], dev)?, 1))?;
    push(out, x.index_add(&ids, &x.narrow(1, 0, 2)?.contiguous()?, 1))?;
    push(out, x.i(0)?.scatter_add(&Tensor::new(&[[0u32, 0, 1, 1]], dev)?, &x.i((1, 0..1, ..))?.contiguous()?, 0))?;
    push(out, x.i(0)?.embedding(&ids))?;
    out.extend(x.dims().iter().map(|&dim| dim as f32));
    out.push(x.rank() as f32 + x.elem_count() as f32 + x.dim(D::Minus1)? as f32);
    Ok(())
}

fn elementwise(out: &mut Vec<f32>, x: &Tensor) -> Result<()> {
    let y = (x * 0.5)?;
    let all = [
        x.abs()?,
        x.neg()?,
        x.exp()?,
        x.abs()?.log()?,
        x.sin()?,
        x.cos()?,
        x.tanh()?,
        x.sqr()?,
        x.abs()?.sqrt()?,
        x.recip()?,
        x.relu()?,
        x.gelu()?,
        x.silu()?,
        x.elu(0.7)?,
        x.erf()?,
        x.gelu_erf()?,
        x.floor()?,
        x.ceil()?,
        x.round()?,
        x.sign()?,
        x.affine(2., -1.)?,
        x.abs()?.powf(1.7)?,
        x.clamp(-0.5f32, 0.5f32)?,
        x.maximum(&y)?,
        x.minimum(0.1f64)?,
        (x + &y)?,
        (x - &y)?,
        (x / 3.)?,
        (2. - x)?,
        (x * &y)?,
        (1.5 / x)?,
        x.eq(&y)?,
        x.ge(0f32)?,
        x.lt(&y)?,
        x.ne(x)?,
        x.gt(&y)?.where_cond(x, &y)?,
        x.broadcast_mul(&x.narrow(1, 0, 1)?)?,
        x.broadcast_sub(&x.mean_keepdim(0)?)?,
        nn::ops::sigmoid(x)?,
        nn::ops::hard_sigmoid(x)?,
        nn::ops::leaky_relu(x, 0.2)?,
        nn::ops::mish(x)?,
        nn::ops::swiglu(x)?,
        nn::ops::softmax(x, 1)?,
        nn::ops::log_softmax(x, D::Minus1)?,
        x.apply(&Activation::HardSwish)?,
        x.apply(&Activation::Gelu)?,
        x.apply(&Activation::Relu6)?,
    ];
    for value in all {
        push(out, Ok(value))?;
    }
    Ok(())
}

fn reductions(out: &mut Vec<f32>, x: &Tensor) -> Result<()> {
    let all = [
        x.sum(1)?,
        x.sum((0, 2))?,
        x.sum_keepdim(D::Minus1)?,
        x.mean(0)?,
        x.mean_all()?,
        x.max(1)?,
        x.min_keepdim(2)?,
        x.argmax(D::Minus1)?,
        x.argmin_keepdim(0)?,
        x.var(1)?,
        x.var_keepdim(2)?,
        x.log_sum_exp(2)?,
        x.cumsum(1)?,
        x.norm()?,
        x.max_all()?,
        x.min_all()?,
        x.arg_sort_last_dim(true)?,
        x.sort_last_dim(false)?.0,
    ];
    for value in all {
        push(out, Ok(value))?;
    }
    let (a, b) = (x.i(0)?, x.i(1)?);
    push(out, a.matmul(&b.t()?))?;
    push(out, x.broadcast_matmul(&b.t()?))?;
    push(out, a.i(0)?.dot(&b.i(0)?))?;
    push(out, a.mv(&b.i(1)?))?;
    Ok(())
}

fn making(out: &mut Vec<f32>) -> Result<()> {
    let dev = &Device::Cpu;
    push(out, Tensor::arange(2i64, 9, dev))?;
    push(out, Tensor::arange_step(0f32, 2., 0.5, dev))?;
    push(out, Tensor::eye(3, DType::F32, dev))?;
    push(out, Tensor::tril2(3, DType::U8, dev))?;
    push(out, Tensor::triu2(3, DType::F64, dev))?;
    push(out, Tensor::full(7u32, (2, 2), dev))?;
    push(out, Tensor::new(&[[1u8, 200], [3, 4]], dev)?.to_dtype(DType::F64))?;
    push(out, Tensor::from_iter((0..5).map(|i| i as f64 / 3.), dev))?;
    push(out, Tensor::new(&[-1.7f32, 2.9, 1e9], dev)?.to_dtype(DType::I64))?;
    for grid in Tensor::meshgrid(&[Tensor::new(&[1f32, 2.], dev)?, Tensor::new(&[3f32, 4., 5.], dev)?], true)? {
        push(out, Ok(grid))?;
    }
    let image = array(&[1, 2, 4, 6], 9, 1.0)?;
    push(out, image.avg_pool2d(2))?;
    push(out, image.max_pool2d((2, 3)))?;
    push(out, image.upsample_nearest2d(8, 6))?;
    push(out, image.interpolate2d(2, 3))?;
    push(out, image.conv2d(&array(&[4, 1, 3, 3], 10, 1.0)?, 1, 2, 1, 2))?;
    push(out, image.i(0)?.conv1d(&array(&[3, 4, 2], 11, 1.0)?, 1, 1, 2, 1))?;
    push(out, image.i(0)?.conv_transpose1d(&array(&[4, 2, 3], 12, 1.0)?, 1, 1, 2, 1, 1))?;
    push(out, image.conv_transpose2d(&array(&[2, 3, 3, 3], 13, 1.0)?, 1, 1, 2, 1))?;
    push(out, nn::ops::pixel_shuffle(&image.reshape((1, 12, 2, 2))?, 2))?;
    push(out, nn::ops::layer_norm(&image, &array(&[6], 14, 1.0)?, &array(&[6], 15, 1.0)?, 1e-5))?;
    push(out, nn::ops::rms_norm(&image, &array(&[6], 14, 1.0)?, 1e-6))?;
    Ok(())
}

fn gradients(out: &mut Vec<f32>) -> Result<()> {
    let x = Var::from_tensor(&array(&[3, 4], 20, 1.0)?)?;
    let w = Var::from_tensor(&array(&[4, 2], 21, 1.0)?)?;
    let y = x.matmul(&w)?.tanh()?.broadcast_add(&w.i(0)?)?;
    let z = (y.sqr()?.sum_keepdim(1)?.sqrt()? + x.narrow(1, 1, 1)?.exp()?)?;
    let picked = x.index_select(&Tensor::new(&[1u32, 1], x.device())?, 0)?.detach();
    let loss = (z.log()?.mean_all()? + x.i((0..2, ..))?.mul(&picked)?.sum_all()?)?;
    let mut grads = loss.backward()?;
    push(out, Ok(loss))?;
    push(
        out,
        grads.get(&x).context("a gradient")?.clone().reshape(()).or_else(|_| Ok(grads.get(&x).context("x")?.clone())),
    )?;
    push(out, grads.remove(&w).context("a gradient"))?;
    x.set(&x.zeros_like()?)?;
    push(out, x.as_tensor().abs()?.sum_all())
}

fn program() -> Result<Vec<f32>> {
    let x = array(&[2, 3, 4], 1, 2.0)?;
    let mut out = Vec::new();
    views(&mut out, &x)?;
    elementwise(&mut out, &x)?;
    reductions(&mut out, &x)?;
    making(&mut out)?;
    gradients(&mut out)?;
    Ok(out)
}
