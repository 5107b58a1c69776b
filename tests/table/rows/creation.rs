//! Making arrays, and numbers of chance.

use ndgc::{Generator, Tensor, Var, WithDType};

use super::{rows, typed};

rows! { CREATION, "Creation";
    new |x| typed!(x, T => Tensor::new([T::from_f64(1.), T::from_f64(2.)], &x.device));
    from_slice |x| typed!(x, T => Tensor::from_slice(&[T::from_f64(1.); 24][..elements(x.shape)], x.shape, &x.device));
    from_vec |x| typed!(x, T => Tensor::from_vec(vec![T::from_f64(1.); elements(x.shape)], x.shape, &x.device));
    from_iter |x| typed!(x, T => Tensor::from_iter([1., 2.].map(T::from_f64), &x.device));
    from_raw_buffer |x| Tensor::from_raw_buffer(&[1; 200][..bytes(x)], x.dtype, x.shape, &x.device);
    from_shared |x| Tensor::from_shared(std::sync::Arc::new([1u8; 200]), 0..bytes(x), x.dtype, x.shape, &x.device);
    from_dlpack |x| Tensor::from_dlpack(x.a.to_dlpack()?, &x.device);
    from_blob |x| typed!(x, T => {
        let data = std::sync::Arc::new([T::from_f64(1.); 24]);
        let (ptr, keeper) = (data.as_ptr().cast_mut(), data.clone());
        // SAFETY: the array is on the host, and the keeper holds as many elements as the largest shape has.
        #[allow(unsafe_code)]
        unsafe {
            Tensor::from_blob(ptr, x.shape, None, &ndgc::Device::Cpu, move || drop(keeper))
        }
    });
    zeros |x| Tensor::zeros(x.shape, x.dtype, &x.device);
    empty |x| Tensor::empty(x.shape, x.dtype, &x.device);
    ones |x| Tensor::ones(x.shape, x.dtype, &x.device);
    full |x| typed!(x, T => Tensor::full(T::from_f64(1.), x.shape, &x.device));
    zeros_like |x| x.a.zeros_like();
    ones_like |x| x.a.ones_like();
    full_like |x| x.a.full_like(3.);
    arange |x| typed!(x, T => Tensor::arange(T::from_f64(0.), T::from_f64(5.), &x.device));
    arange_step |x| typed!(x, T => Tensor::arange_step(T::from_f64(0.), T::from_f64(9.), T::from_f64(2.), &x.device));
    linspace |x| Tensor::linspace(0., 1., 5, x.dtype, &x.device);
    eye |x| Tensor::eye(3, x.dtype, &x.device);
    tril2 |x| Tensor::tril2(3, x.dtype, &x.device);
    triu2 |x| Tensor::triu2(3, x.dtype, &x.device);
    meshgrid |x| Tensor::meshgrid(&[&x.v, &x.w], false);
    create |x| typed!(x, T => x.manager.create([T::from_f64(1.)]));
    rand |x| typed!(x, T => Tensor::rand(T::from_f64(0.), T::from_f64(9.), x.shape, &x.device));
    randn |x| typed!(x, T => Tensor::randn(T::from_f64(0.), T::from_f64(1.), x.shape, &x.device));
    rand_f64 |x| Var::rand_f64(0., 9., x.shape, x.dtype, &x.device);
    randn_f64 |x| Var::randn_f64(0., 1., x.shape, x.dtype, &x.device);
    rand_like |x| x.a.rand_like(0., 9.);
    randn_like |x| x.a.randn_like(0., 1.);
    randint |x| typed!(x, T => Tensor::randint(T::from_f64(0.), T::from_f64(9.), x.shape, &x.device));
    randperm |x| Tensor::randperm(elements(x.shape), &x.device);
    multinomial |x| x.angles.multinomial(2, true);
    truncated_normal |x| typed!(x, T => Tensor::truncated_normal(T::from_f64(0.), T::from_f64(1.), x.shape, &x.device));
    bernoulli |x| x.angles.bernoulli();
    uniform |x| Generator::new(1).uniform(0., 1., x.shape, x.dtype, &x.device);
    normal |x| Generator::new(1).normal(0., 1., x.shape, x.dtype, &x.device);
    from_tensor |x| Var::from_tensor(&x.a);
}

fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn bytes(x: &crate::table::sample::Sample) -> usize {
    elements(x.shape) * x.dtype.size_in_bytes()
}
