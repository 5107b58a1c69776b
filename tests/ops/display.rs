//! Printing, in the manner of NumPy: the whole text.

use ndgc::{DType, Device, NdManager, Tensor, Var};

use crate::ops::support::{alone, each};

/// The text without the last line, which names shape, dtype and device.
fn body(array: &Tensor) -> String {
    let text = array.to_string();
    let (body, suffix) = text.rsplit_once('\n').unwrap();
    let (shape, device) = (*array.shape(), array.device());
    assert_eq!(suffix, format!("{shape} {} {device}", array.dtype()));
    body.to_owned()
}

fn floats(data: &[f32]) -> String {
    body(&Tensor::from_slice(data, data.len(), &Device::Cpu).unwrap())
}

#[test]
fn arrays_print_as_nested_brackets_with_shape_dtype_and_device() {
    each(|device| {
        let a = Tensor::new([[1i64, 20], [-300, 4]], device).unwrap();
        assert_eq!(a.to_string(), format!("[[   1,   20],\n [-300,    4]]\n[2, 2] i64 {device}"));
        let a = Tensor::arange(0u8, 8, device).unwrap().reshape((2, 2, 2)).unwrap();
        assert_eq!(body(&a), "[[[0, 1],\n  [2, 3]],\n\n [[4, 5],\n  [6, 7]]]");
        assert_eq!(body(&a.transpose(0, 2).unwrap().get(1).unwrap()), "[[1, 5],\n [3, 7]]", "a view prints itself");
        assert_eq!(body(&Tensor::new(1.5f64, device).unwrap()), "1.5");
        assert_eq!(body(&Tensor::new(7u32, device).unwrap()), "7");
    });
}

#[test]
fn floats_print_with_the_fewest_decimals_that_tell_them() {
    alone(|| {
        assert_eq!(floats(&[1., 2., -3.]), "[ 1.,  2., -3.]");
        assert_eq!(floats(&[0.5, 2.]), "[0.5, 2.0]");
        assert_eq!(floats(&[1. / 3., 10.]), "[ 0.3333, 10.0000]");
        assert_eq!(floats(&[0., -0.]), "[ 0., -0.]");
        assert_eq!(floats(&[1., f32::NAN, f32::INFINITY, f32::NEG_INFINITY]), "[  1.,  nan,  inf, -inf]");
        assert_eq!(floats(&[1e10, 1.]), "[1.0000e10,  1.0000e0]");
        assert_eq!(floats(&[1e-6]), "[1.0000e-6]");
    });
}

#[test]
fn tenths_print_with_one_decimal_in_either_precision() {
    alone(|| {
        let tenths = [0.1, 0.2, 0.3, 0.7, 1.1];
        let doubles = Tensor::from_slice(&tenths, 5, &Device::Cpu).unwrap();
        assert_eq!(body(&doubles), "[0.1, 0.2, 0.3, 0.7, 1.1]");
        assert_eq!(floats(&tenths.map(|x| x as f32)), "[0.1, 0.2, 0.3, 0.7, 1.1]");
        let hundredths = Tensor::from_slice(&[0.57, 1.15, 0.29], 3, &Device::Cpu).unwrap();
        assert_eq!(body(&hundredths), "[0.57, 1.15, 0.29]");
    });
}

#[test]
fn long_arrays_print_their_ends() {
    each(|device| {
        let a = Tensor::arange(0i64, 2000, device).unwrap();
        assert_eq!(body(&a), "[   0,    1,    2, ..., 1997, 1998, 1999]");
        let a = Tensor::arange(0i64, 1000, device).unwrap();
        assert!(!body(&a).contains("..."), "1000 elements print in full");
        let a = Tensor::zeros((500, 4), DType::U8, device).unwrap();
        let row = "[0, 0, 0, 0]";
        assert_eq!(body(&a), format!("[{row},\n {row},\n {row},\n ...,\n {row},\n {row},\n {row}]"));
        let a = Tensor::zeros((2, 7, 200), DType::U8, device).unwrap();
        let row = "[0, 0, 0, ..., 0, 0, 0]";
        let block = format!("[{row},\n  {row},\n  {row},\n  ...,\n  {row},\n  {row},\n  {row}]");
        assert_eq!(body(&a), format!("[{block},\n\n {block}]"));
    });
}

#[test]
fn numbers_that_are_left_out_do_not_widen_the_columns() {
    each(|device| {
        let mut data = vec![1i64; 2000];
        data[1000] = 123_456_789;
        let a = Tensor::from_slice(&data, 2000, device).unwrap();
        assert_eq!(body(&a), "[1, 1, 1, ..., 1, 1, 1]");
        let mut data = vec![1f32; 2000];
        data[1000] = 123_456.;
        let a = Tensor::from_slice(&data, 2000, device).unwrap();
        assert_eq!(body(&a), "[1., 1., 1., ..., 1., 1., 1.]");
    });
}

#[test]
fn empty_arrays_print_their_brackets() {
    each(|device| {
        assert_eq!(body(&Tensor::zeros(0, DType::F32, device).unwrap()), "[]");
        assert_eq!(body(&Tensor::zeros((2, 0), DType::F32, device).unwrap()), "[[],\n []]");
        assert_eq!(body(&Tensor::zeros((0, 2), DType::F32, device).unwrap()), "[]");
    });
}

#[test]
fn a_closed_array_says_so_and_printing_never_fails() {
    each(|device| {
        let a = Tensor::zeros(3, DType::F32, device).unwrap();
        a.close();
        assert_eq!(a.to_string(), "This array is already closed");
        assert!(format!("{a:?}").ends_with(", closed)"), "{a:?}");
    });
}

#[test]
fn debug_names_the_array_and_its_owner_without_elements() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        manager.set_name("epoch");
        let a = manager.zeros((2, 3), DType::F32).unwrap();
        a.set_name("weights").unwrap();
        let key = a.key();
        assert_eq!(format!("{a:?}"), format!("Proxy({key} `weights` f32 [2, 3] on {device}, owned by epoch)"));
        let b = a.detach();
        let key = b.key();
        assert_eq!(format!("{b:?}"), format!("Proxy({key} f32 [2, 3] on {device}, owned by its handles)"));
        assert!(format!("{:?}", Var::from_tensor(&b).unwrap()).starts_with("Var(Proxy("));
        manager.close().unwrap();
    });
}
