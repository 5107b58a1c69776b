//! Products of matrices, and what networks are made of.

use ndgc::nn::attention::{self, AttnMask};
use ndgc::nn::{Linear, Mlp, Module, encoding, loss, ops, rotary_emb, sampling};
use ndgc::{D, Generator, Tensor, TensorExt};

use super::rows;

rows! { PRODUCTS, "Linear algebra";
    matmul |x| x.m.matmul(&x.n);
    broadcast_matmul |x| x.m.broadcast_matmul(&x.n);
    linear |x| x.m.linear(&x.m, None);
    dot |x| x.v.dot(&x.w);
    mv |x| x.m.mv(&x.m.get(0)?);
    outer |x| x.v.outer(&x.w);
    addmm |x| x.square.narrow(0, 0, x.m.dim(0)?)?.addmm(&x.m, &x.square);
    einsum |x| Tensor::einsum("ij,jk->ik", &[&x.m, &x.n]);
    kron |x| x.v.kron(&x.w);
    cross |x| x.m.cross(&x.m, D::Minus1);
    cdist |x| x.m.cdist(&x.m, 2.);
}

rows! { IMAGES, "Convolution, pooling, resizing";
    conv1d |x| x.signal.conv1d(&x.taps, 1, 1, 1, 1);
    conv2d |x| x.image.conv2d(&x.kernel, 1, 1, 1, 1);
    conv3d |x| x.image.unsqueeze(2)?.conv3d(&x.kernel.unsqueeze(2)?, 0, 1, 1, 1);
    conv_transpose1d |x| x.signal.conv_transpose1d(&x.taps, 1, 0, 1, 1, 1);
    conv_transpose2d |x| x.image.conv_transpose2d(&x.kernel, 1, 0, 1, 1);
    im2col |x| x.image.im2col(3, 1, 1, 1);
    fold |x| x.image.im2col(3, 1, 1, 1)?.fold(6, 3, 1, 1, 1);
    avg_pool1d |x| x.signal.avg_pool1d(2);
    avg_pool1d_with_stride |x| x.signal.avg_pool1d_with_stride(2, 1);
    avg_pool2d |x| x.image.avg_pool2d(2);
    avg_pool2d_with_stride |x| x.image.avg_pool2d_with_stride(2, 1);
    max_pool1d |x| x.signal.max_pool1d(2);
    max_pool1d_with_stride |x| x.signal.max_pool1d_with_stride(2, 1);
    max_pool2d |x| x.image.max_pool2d(2);
    max_pool2d_with_stride |x| x.image.max_pool2d_with_stride(2, 1);
    max_pool2d_with_indices |x| x.image.max_pool2d_with_indices(2, 2);
    adaptive_avg_pool1d |x| x.signal.adaptive_avg_pool1d(4);
    adaptive_avg_pool2d |x| x.image.adaptive_avg_pool2d((2, 4));
    interpolate1d |x| x.signal.interpolate1d(9);
    interpolate2d |x| x.image.interpolate2d(4, 9);
    upsample_nearest1d |x| x.signal.upsample_nearest1d(9);
    upsample_nearest2d |x| x.image.upsample_nearest2d(4, 9);
    upsample_bilinear2d |x| x.image.upsample_bilinear2d(4, 9, false);
    upsample_bilinear2d_with_scale |x| x.image.upsample_bilinear2d_with_scale(2., 1.5, true);
}

rows! { NETWORKS, "Networks";
    elu |x| x.a.elu(1.);
    selu |x| x.a.selu(1.6, 1.05);
    leaky_relu |x| x.a.leaky_relu(0.1);
    swiglu |x| x.a.swiglu();
    glu |x| x.a.glu(D::Minus1);
    celu |x| x.a.celu(1.);
    softshrink |x| x.a.softshrink(0.5);
    hardshrink |x| x.a.hardshrink(0.5);
    prelu |x| x.image.prelu(&x.signal.get_on_dim(-1, 0)?.get(0)?);
    softmax |x| x.a.softmax(D::Minus1);
    log_softmax |x| x.a.log_softmax(D::Minus1);
    cross_entropy |x| x.m.cross_entropy(&x.labels);
    layer_norm |x| x.a.layer_norm(&x.row, &x.row, 1e-5);
    rms_norm |x| x.a.rms_norm(&x.row, 1e-5);
    group_norm |x| x.image.group_norm(2, &x.v.narrow(0, 0, 2)?, &x.w.narrow(0, 0, 2)?, 1e-5);
    dropout |x| x.a.dropout(0.5);
    sdpa |x| x.heads.sdpa(&x.heads, &x.heads, None, true, 0.5, 1.);
    rope |x| x.heads.rope(&x.angles, &x.angles);
    rope_i |x| x.heads.rope_i(&x.angles, &x.angles);
    rope_thd |x| x.heads.transpose(1, 2)?.contiguous()?.rope_thd(&x.angles, &x.angles);
}

rows! { MODULES, "Functions of `nn`";
    encoding::one_hot |x| encoding::one_hot(x.places.clone(), 3, 1f32, 0.);
    loss::cross_entropy |x| loss::cross_entropy(&x.m, &x.labels);
    loss::nll |x| loss::nll(&x.m, &x.labels);
    loss::mse |x| loss::mse(&x.a, &x.b);
    loss::binary_cross_entropy_with_logit |x| loss::binary_cross_entropy_with_logit(&x.a, &x.b);
    loss::huber |x| loss::huber(&x.a, &x.b, 1.);
    ops::softmax |x| ops::softmax(&x.a, 0);
    ops::softmax_last_dim |x| ops::softmax_last_dim(&x.a);
    ops::log_softmax |x| ops::log_softmax(&x.a, 0);
    ops::sigmoid |x| ops::sigmoid(&x.a);
    ops::silu |x| ops::silu(&x.a);
    ops::swiglu |x| ops::swiglu(&x.a);
    ops::hard_sigmoid |x| ops::hard_sigmoid(&x.a);
    ops::mish |x| ops::mish(&x.a);
    ops::leaky_relu |x| ops::leaky_relu(&x.a, 0.1);
    ops::selu |x| ops::selu(&x.a, 1.6, 1.05);
    ops::dropout |x| ops::dropout(&x.a, 0.5);
    ops::layer_norm |x| ops::layer_norm(&x.a, &x.row, &x.row, 1e-5);
    ops::rms_norm |x| ops::rms_norm(&x.a, &x.row, 1e-5);
    ops::sdpa |x| ops::sdpa(&x.heads, &x.heads, &x.heads, None, true, 0.5, 1.);
    ops::layer_norm_slow |x| ops::layer_norm_slow(&x.a, &x.row, &x.row, 1e-5);
    ops::rms_norm_slow |x| ops::rms_norm_slow(&x.a, &x.row, 1e-5);
    ops::pixel_shuffle |x| ops::pixel_shuffle(&x.image.reshape(((), 8, 3, 3))?, 2);
    ops::pixel_unshuffle |x| ops::pixel_unshuffle(&x.image, 2);
    ops::replication_pad2d |x| ops::replication_pad2d(&x.image, 1);
    rotary_emb::rope_slow |x| rotary_emb::rope_slow(&x.heads, &x.angles, &x.angles);
    rotary_emb::rope_i_slow |x| rotary_emb::rope_i_slow(&x.heads, &x.angles, &x.angles);
    rotary_emb::rope |x| rotary_emb::rope(&x.heads, &x.angles, &x.angles);
    rotary_emb::rope_i |x| rotary_emb::rope_i(&x.heads, &x.angles, &x.angles);
    attention::flash_attn |x| attention::flash_attn::<f32>(&x.heads, &x.heads, &x.heads, 0.5, AttnMask::causal(), None, None);
    sampling::gumbel_softmax |x| sampling::gumbel_softmax(&x.m, 1., 0);
    rotary_emb::rope_thd |x| {
        rotary_emb::rope_thd(&x.heads.transpose(1, 2)?.contiguous()?, &x.angles, &x.angles)
    };
    Linear::forward |x| {
        let bias = x.m.sum(1)?;
        Linear::new(x.m.clone(), Some(bias)).forward(&x.m)
    };
    Mlp::forward |x| Mlp::new(&[3, 2], &mut Generator::new(1), &x.device)?.forward(&x.m);
}
