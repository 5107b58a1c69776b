//! Shape, layout, type and device.

use ndgc::{D, DType, Tensor};

use super::rows;

rows! { VIEWS, "Shape and views";
    reshape |x| x.a.reshape(((), 1));
    flatten |x| x.a.flatten(0, D::Minus1);
    flatten_all |x| x.a.flatten_all();
    flatten_from |x| x.a.flatten_from(1);
    flatten_to |x| x.a.flatten_to(1);
    squeeze |x| x.a.unsqueeze(0)?.squeeze(0);
    unsqueeze |x| x.a.unsqueeze(0);
    transpose |x| x.a.transpose(0, D::Minus1);
    t |x| x.m.t();
    permute |x| x.m.permute(if x.shape.len() == 6 { &[5, 4, 3, 2, 1, 0][..] } else { &[1, 0] });
    movedim |x| x.a.movedim(0, D::Minus1);
    broadcast_as |x| x.row.broadcast_as(*x.a.shape());
    expand |x| x.row.expand((3, 4));
    broadcast_left |x| x.row.broadcast_left(2);
    repeat |x| x.a.repeat((2, 1));
    tile |x| x.a.tile((2, 1));
    cat |x| Tensor::cat(&[&x.a, &x.b], 0);
    stack |x| Tensor::stack(&[&x.a, &x.b], 0);
    chunk |x| x.a.chunk(2, 0);
    split |x| x.a.split(1, 0);
    split_sizes |x| x.a.split_sizes(&[1, 1], 0);
    narrow |x| x.a.narrow(D::Minus1, 1, 1);
    narrow_step |x| x.a.narrow_step(D::Minus1, 1, 1, -1);
    get |x| x.a.get(1);
    get_on_dim |x| x.a.get_on_dim(D::Minus1, 1);
    get_in |x| x.a.get_in(&x.manager, 1);
    slice_assign |x| x.m.slice_assign(&[0..1, 1..3], &x.m.narrow(0, 0, 1)?.narrow(1, 0, 2)?);
    slice_scatter |x| x.a.slice_scatter(&x.b, 0, 0);
    slice_scatter0 |x| x.a.slice_scatter0(&x.b, 0);
    slice |x| x.a.slice(ndgc::s![1.., .., ..;-1]);
    get_index |x| x.a.get_index("0, ...", &[]);
    flip |x| x.a.flip(&[0]);
    roll |x| x.a.roll(1, 0);
    pad |x| x.a.pad(&[(1, 2)], ndgc::PadMode::Replicate);
    pad_with_zeros |x| x.a.pad_with_zeros(0, 1, 2);
    pad_with_same |x| x.a.pad_with_same(0, 1, 2);
    unfold |x| x.a.unfold(D::Minus1, 2, 1);
    diag |x| x.v.diag(1);
    diagonal |x| x.square.diagonal(0, D::Minus2, D::Minus1);
    tril |x| x.square.tril(0);
    triu |x| x.square.triu(0);
    contiguous |x| x.m.t()?.contiguous();
    copy |x| x.a.copy();
    duplicate |x| x.a.duplicate();
    force_contiguous |x| x.a.force_contiguous();
    detach |x| Ok::<_, ndgc::Error>(x.a.detach());
    try_detach |x| x.a.try_detach();
    as_detached_tensor |x| Ok::<_, ndgc::Error>(ndgc::Var::from_tensor(&x.a)?.as_detached_tensor());
    to_dtype |x| x.a.to_dtype(DType::F64);
    to_device |x| x.a.to_device(&x.device);
    intern |x| x.a.copy()?.intern(x.b.copy()?);
}
