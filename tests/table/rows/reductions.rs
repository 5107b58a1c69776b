//! Sums and the like, scans, and order.

use ndgc::D;
use ndgc::TensorExt;

use super::rows;

rows! { REDUCTIONS, "Reductions and scans";
    sum |x| x.a.sum(D::Minus1);
    sum_keepdim |x| x.a.sum_keepdim(D::Minus1);
    sum_all |x| x.a.sum_all();
    mean |x| x.a.mean(D::Minus1);
    mean_keepdim |x| x.a.mean_keepdim(D::Minus1);
    mean_all |x| x.a.mean_all();
    max |x| x.a.max(D::Minus1);
    max_keepdim |x| x.a.max_keepdim(D::Minus1);
    max_all |x| x.a.max_all();
    min |x| x.a.min(D::Minus1);
    min_keepdim |x| x.a.min_keepdim(D::Minus1);
    min_all |x| x.a.min_all();
    argmax |x| x.a.argmax(D::Minus1);
    argmax_keepdim |x| x.a.argmax_keepdim(D::Minus1);
    argmin |x| x.a.argmin(D::Minus1);
    argmin_keepdim |x| x.a.argmin_keepdim(D::Minus1);
    var |x| x.a.var(D::Minus1);
    var_keepdim |x| x.a.var_keepdim(D::Minus1);
    std |x| x.a.std(D::Minus1);
    std_keepdim |x| x.a.std_keepdim(D::Minus1);
    var_mean |x| x.a.var_mean(D::Minus1);
    nansum |x| x.a.nansum(D::Minus1);
    nanmean |x| x.a.nanmean(D::Minus1);
    prod |x| x.a.prod(D::Minus1);
    prod_keepdim |x| x.a.prod_keepdim(D::Minus1);
    prod_all |x| x.a.prod_all();
    any |x| x.a.any(D::Minus1);
    any_keepdim |x| x.a.any_keepdim(D::Minus1);
    any_all |x| x.a.any_all();
    all |x| x.a.all(D::Minus1);
    all_keepdim |x| x.a.all_keepdim(D::Minus1);
    all_all |x| x.a.all_all();
    norm |x| x.a.norm();
    norm_dim |x| x.a.norm_dim(2., D::Minus1);
    log_sum_exp |x| x.a.log_sum_exp(D::Minus1);
    cumsum |x| x.a.cumsum(D::Minus1);
    logcumsumexp |x| x.a.logcumsumexp(D::Minus1);
    cumprod |x| x.a.cumprod(D::Minus1);
    cummax |x| x.a.cummax(D::Minus1);
    cummin |x| x.a.cummin(D::Minus1);
    trace |x| x.square.trace();
}

rows! { ORDER, "Order and counting";
    sort |x| x.a.sort(D::Minus1, true);
    argsort |x| x.a.argsort(D::Minus1, true);
    sort_last_dim |x| x.a.sort_last_dim(true);
    arg_sort_last_dim |x| x.a.arg_sort_last_dim(true);
    searchsorted |x| x.a.searchsorted(&x.b, false);
    topk |x| x.a.topk(2, D::Minus1);
    median |x| x.a.median(D::Minus1);
    quantile |x| x.a.quantile(0.3, D::Minus1);
    unique |x| x.a.unique();
    nonzero |x| x.a.nonzero();
    histc |x| x.v.histc(3, 0., 9.);
    bincount |x| x.v.bincount(3);
}
