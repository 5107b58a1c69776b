//! The crate `ndarray`: its arrays give their memory, and ours are seen as its views.

use ndarray::{Array1, Array2, ArrayD, ArrayViewD, IxDyn, s};
use ndgc::{DType, Error, NdManager, Tensor};

use crate::ops::support::{each, error, values};

#[test]
fn arrays_come_in_any_order_of_elements() {
    each(|device| {
        let a = Array2::from_shape_fn((3, 4), |(i, j)| (4 * i + j) as f32);
        let got = Tensor::from_ndarray(a.clone(), device).unwrap();
        assert_eq!((got.dims(), values::<f32>(&got)), (&[3, 4][..], (0..12u8).map(f32::from).collect()));
        let turned = Tensor::from_ndarray(a.clone().reversed_axes(), device).unwrap();
        assert_eq!(values::<f32>(&turned), values::<f32>(&got.t().unwrap()));
        let part = Tensor::from_ndarray(a.clone().slice_move(s![1.., ..]), device).unwrap();
        assert_eq!(values::<f32>(&part), (4..12u8).map(f32::from).collect::<Vec<_>>());
        let back = Tensor::from_ndarray(a.slice_move(s![..;-1, 1..3]), device).unwrap();
        assert_eq!(values::<f32>(&back), [9., 10., 5., 6., 1., 2.]);
        let none = Tensor::from_ndarray(Array2::<i64>::zeros((0, 3)), device).unwrap();
        assert_eq!((none.dims(), none.dtype()), (&[0, 3][..], DType::I64));
        let long = ArrayD::<u8>::zeros(IxDyn(&[1; 7]));
        assert!(matches!(error(Tensor::from_ndarray(long, device)), Error::RankTooLarge { op: "from_ndarray", .. }));
        let manager = NdManager::new_base_manager(device).unwrap();
        let owned = Tensor::from_ndarray(Array1::from_elem(5, 2u8), &manager).unwrap();
        manager.close().unwrap();
        assert!(matches!(error(owned.copy()), Error::StaleArray(_)));
    });
}

#[test]
fn memory_is_given_and_lent_without_a_copy() {
    each(|device| {
        if !device.is_cpu() {
            let a = Tensor::ones(3, DType::F32, device).unwrap();
            let found = error(a.as_ndarray_view(|_: ArrayViewD<'_, f32>| ()));
            return assert!(matches!(found, Error::DeviceMismatch { .. }), "{found}");
        }
        let a = Array1::from_elem(4096, 1.5f64);
        let start = a.as_ptr().addr();
        let got = Tensor::from_ndarray(a, device).unwrap();
        let (sum, at) = got.as_ndarray_view(|v: ArrayViewD<'_, f64>| (v.sum(), v.as_ptr().addr())).unwrap();
        assert_eq!((sum, at), (6144., start));
        let found = error(got.reshape((64, 64)).unwrap().t().unwrap().as_ndarray_view(|_: ArrayViewD<'_, f64>| ()));
        assert!(matches!(found, Error::RequiresContiguous { .. }));
        let scalar = got.get(0).unwrap();
        assert_eq!(scalar.as_ndarray_view(|v: ArrayViewD<'_, f64>| v[[]]).unwrap(), 1.5);
    });
}
