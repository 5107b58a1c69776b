//! Picking and adding by arrays of indices.

use super::rows;
use ndgc::TensorExt;

rows! { INDEXING, "Indexing";
    index_select |x| x.a.index_select(&x.ids, 0);
    gather |x| x.a.gather(&x.places, 0);
    gather_nd |x| x.v.gather_nd(&x.ids.unsqueeze(1)?);
    scatter |x| x.a.scatter(&x.places, &x.b, 0);
    scatter_add |x| x.a.scatter_add(&x.places, &x.b, 0);
    index_add |x| x.square.index_add(&x.ids, &x.square.narrow(0, 0, x.ids.dims1()?)?, 0);
    embedding |x| x.m.embedding(&x.ids);
    one_hot |x| x.places.one_hot(3);
}
