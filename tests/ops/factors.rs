//! `ndgc::linalg`: what a factorisation promises, products and gradients against differences, matrices that do not do.

use ndgc::linalg::{cholesky, det, eigh, inverse, lu, qr, solve, svd};
use ndgc::{D, DType, Device, Error, NdManager, Result, Tensor, TensorExt};

use crate::ops::gradcheck::{Case, check_all};
use crate::ops::reference::Host;
use crate::ops::support::{each, error, put, values};

/// Matrices of these dims that are far from singular if square.
fn matrices(dims: &[usize], seed: u64) -> Host<f64> {
    let (rows, columns) = (dims[dims.len() - 2], dims[dims.len() - 1]);
    let mut host = Host::<f64>::tame(dims, seed);
    for (i, x) in host.data.iter_mut().enumerate() {
        if (i / columns) % rows == i % columns {
            *x += 4.;
        }
    }
    host
}

fn t(x: &Tensor) -> Tensor {
    x.transpose(D::Minus2, D::Minus1).unwrap()
}

#[track_caller]
fn close(got: &Tensor, want: &Tensor) {
    let tolerance = if want.dtype() == DType::F64 { 1e-9 } else { 1e-4 };
    assert_eq!((got.dims(), got.dtype()), (want.dims(), want.dtype()));
    assert!(got.all_close(want, tolerance, tolerance).unwrap(), "{got}\n{want}");
}

fn eye(like: &Tensor) -> Tensor {
    let n = like.dims()[like.rank() - 1];
    Tensor::eye(n, like.dtype(), like.device()).unwrap().broadcast_as(*like.shape()).unwrap()
}

#[test]
fn factors_multiply_to_what_they_are_of() {
    each(|device| {
        for dtype in [DType::F32, DType::F64] {
            for dims in [&[3, 3][..], &[2, 2, 4, 4], &[1, 1], &[5, 3], &[2, 3, 5], &[0, 3, 3], &[2, 0, 0], &[3, 0]] {
                let a = put(&matrices(dims, 3), device).to_dtype(dtype).unwrap();
                let (p, l, u) = lu(&a).unwrap();
                close(&p.matmul(&l).unwrap().matmul(&u).unwrap(), &a);
                close(&l.tril_of(), &l);
                let (q, r) = qr(&a).unwrap();
                close(&q.matmul(&r).unwrap(), &a);
                let inner = t(&q).matmul(&q).unwrap();
                close(&inner, &eye(&inner));
                let (u, s, vt) = svd(&a).unwrap();
                let scaled = u.broadcast_mul(&s.unsqueeze(s.rank() - 1).unwrap()).unwrap();
                close(&scaled.matmul(&vt).unwrap(), &a);
                let all = values_of(&s);
                assert!(all.chunks(s.dims()[s.rank() - 1].max(1)).all(|s| s.is_sorted_by(|a, b| a >= b)));
            }
        }
    });
}

trait Triangle {
    fn tril_of(&self) -> Tensor;
}

impl Triangle for Tensor {
    /// The lower triangles, the rest 0.
    fn tril_of(&self) -> Tensor {
        let (m, n) = (self.dims()[self.rank() - 2], self.dims()[self.rank() - 1]);
        let mask = Host::<f64>::from_fn(&[m, n], |i| f64::from(u8::from(i[0] >= i[1])));
        self.broadcast_mul(&put(&mask, self.device()).to_dtype(self.dtype()).unwrap()).unwrap()
    }
}

fn values_of(x: &Tensor) -> Vec<f64> {
    values(&x.to_dtype(DType::F64).unwrap())
}

#[test]
fn square_matrices_are_inverted_solved_and_split() {
    each(|device| {
        for dims in [&[3, 3][..], &[2, 2, 4, 4], &[1, 1], &[2, 0, 0], &[0, 3, 3]] {
            let a = put(&matrices(dims, 5), device);
            let inverted = inverse(&a).unwrap();
            close(&a.matmul(&inverted).unwrap(), &eye(&a));
            let b = put(&matrices(dims, 6), device);
            close(&a.matmul(&solve(&a, &b).unwrap()).unwrap(), &b);
            let vectors = b.narrow(b.rank() - 1, 0, dims[dims.len() - 1].min(1)).unwrap();
            if dims[dims.len() - 1] > 0 {
                let x = solve(&a, &vectors.squeeze(b.rank() - 1).unwrap()).unwrap();
                close(&a.matmul(&x.unsqueeze(x.rank()).unwrap()).unwrap(), &vectors);
            }
            let symmetric = a.matmul(&t(&a)).unwrap().add(&eye(&a)).unwrap();
            let l = cholesky(&symmetric).unwrap();
            close(&l.matmul(&t(&l)).unwrap(), &symmetric);
            let (w, v) = eigh(&symmetric).unwrap();
            let scaled = v.broadcast_mul(&w.unsqueeze(w.rank() - 1).unwrap()).unwrap();
            close(&scaled.matmul(&t(&v)).unwrap(), &symmetric);
            assert!(values_of(&w).chunks(dims[dims.len() - 1].max(1)).all(|w| w.is_sorted()));
            // The determinant is the product of the eigenvalues.
            close(&det(&symmetric).unwrap(), &w.prod(D::Minus1).unwrap());
        }
        let known = Tensor::new([[2f32, 1., 0.], [4., 1., 3.], [0., 5., 6.]], device).unwrap();
        assert!((det(&known).unwrap().to_scalar::<f32>().unwrap() + 42.).abs() < 1e-4);
        let singular = Tensor::new([[1f32, 2.], [2., 4.]], device).unwrap();
        assert_eq!(det(&singular).unwrap().to_scalar::<f32>().unwrap(), 0.);
    });
}

#[test]
fn gradients_of_square_matrices_match_differences() {
    let case = |name, inputs: Vec<Host<f64>>, run: fn(&[Tensor]) -> Result<Tensor>| Case {
        name,
        how: "batched",
        inputs,
        run,
        step: 1e-4,
        tolerance: 1e-5,
    };
    let a = || matrices(&[2, 3, 3], 1);
    check_all(vec![
        case("inverse", vec![a()], |x| inverse(&x[0])),
        case("solve", vec![a(), matrices(&[2, 3, 2], 2)], |x| solve(&x[0], &x[1])),
        case("solve", vec![a(), matrices(&[2, 3], 2)], |x| solve(&x[0], &x[1])),
        case("det", vec![a()], |x| det(&x[0])),
        case("cholesky", vec![a()], |x| cholesky(&x[0])),
    ]);
}

#[test]
fn matrices_that_do_not_do_are_named_and_leave_nothing() {
    each(|device| {
        let good = put(&matrices(&[3, 3], 1), device);
        let zeros = good.zeros_like().unwrap();
        let stacked = Tensor::stack(&[&good, &zeros], 0).unwrap();
        let odd = good.affine(f64::NAN, 0.).unwrap();
        type Call = fn(&Tensor) -> Result<Tensor>;
        let calls: [(&str, Call); 7] = [
            ("inverse", |x| inverse(x)),
            ("solve", |x| solve(x, x)),
            ("cholesky", |x| cholesky(x)),
            ("svd", |x| svd(x).map(|parts| parts.0)),
            ("eigh", |x| eigh(x).map(|parts| parts.0)),
            ("det", |x| det(x)),
            ("lu", |x| lu(x).map(|parts| parts.0)),
        ];
        for (name, call) in calls {
            if !matches!(name, "det" | "lu") {
                let bad = if matches!(name, "svd" | "eigh") { &odd } else { &stacked };
                let found = error(call(bad));
                assert!(matches!(&found, Error::Argument { op, argument: "matrix", .. } if *op == name), "{found}");
            }
            let integers = Tensor::ones((2, 2), DType::I64, device).unwrap();
            assert!(matches!(error(call(&integers)), Error::UnsupportedDType { op, .. } if op == name));
            for bad in [&good.get(0).unwrap(), &good.narrow(0, 0, 2).unwrap()] {
                if bad.rank() == 1 || !matches!(name, "svd" | "lu") {
                    assert!(matches!(error(call(bad)), Error::Shape { op, .. } if op == name), "{name}");
                }
            }
            assert!(call(&odd).is_err() || matches!(name, "det" | "lu"));
        }
        for rhs in [good.narrow(0, 0, 2).unwrap(), stacked.clone(), good.to_dtype(DType::F32).unwrap()] {
            let found = error(solve(&good, &rhs));
            assert!(matches!(found, Error::ShapeMismatch { .. } | Error::DTypeMismatch { .. }), "{found}");
        }
        let elsewhere = good.to_device(&Device::sim(Default::default())).unwrap();
        assert!(matches!(error(solve(&good, &elsewhere)), Error::DeviceMismatch { op: "solve", .. }));
    });
}

#[test]
fn results_belong_to_the_owner_of_the_matrix() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let a = put(&matrices(&[3, 3], 1), device);
        a.attach(&manager).unwrap();
        let kept = (inverse(&a).unwrap(), svd(&a).unwrap(), eigh(&a).unwrap());
        assert_eq!(manager.array_count(), 7);
        manager.close().unwrap();
        assert!(matches!(error(kept.1.0.copy()), Error::StaleArray(_)));
    });
}

#[test]
fn results_that_no_memory_holds_are_refused_also_of_matrices_without_elements() {
    each(|device| {
        let of = |dims: &[usize]| Tensor::zeros(dims, DType::F64, device).unwrap();
        assert!(matches!(error(det(&of(&[1 << 59, 0, 0]))), Error::OutOfMemory(_)));
        assert!(matches!(error(lu(&of(&[1 << 59, 1, 0]))), Error::OutOfMemory(_)));
        assert!(matches!(error(lu(&of(&[1 << 40, 0]))), Error::SizeOverflow { op: "lu", .. }));
        let (p, l, u) = lu(&of(&[2, 3, 0])).unwrap();
        let eye = [1., 0., 0., 0., 1., 0., 0., 0., 1.];
        assert_eq!(values::<f64>(&p), [eye, eye].concat());
        assert_eq!((l.dims(), u.dims()), (&[2, 3, 0][..], &[2, 0, 0][..]));
    });
}
