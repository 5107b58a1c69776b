//! Printing, in the manner of candle and PyTorch: the whole text.

use ndgc::{DType, Device, NdManager, Tensor, Var};

use crate::ops::support::{alone, each};

/// The text without the last line, which names shape, dtype and device.
fn body(array: &Tensor) -> String {
    let text = array.to_string();
    let (body, suffix) = text.rsplit_once('\n').unwrap();
    assert_eq!(suffix, format!("Tensor[{}, {}{}]", array.shape(), array.dtype(), place(array.device())));
    body.to_owned()
}

/// How the device is named: the host is not.
fn place(device: &Device) -> String {
    if device.is_cpu() { String::new() } else { format!(", {device}") }
}

fn floats(data: &[f32]) -> String {
    body(&Tensor::from_slice(data, data.len(), &Device::Cpu).unwrap())
}

#[test]
fn arrays_print_as_nested_brackets_with_shape_dtype_and_device() {
    each(|device| {
        let a = Tensor::new([[1i64, 20], [-300, 4]], device).unwrap();
        assert_eq!(a.to_string(), format!("[[   1,   20],\n [-300,    4]]\nTensor[[2, 2], i64{}]", place(device)));
        let a = Tensor::arange(0u8, 8, device).unwrap().reshape((2, 2, 2)).unwrap();
        assert_eq!(body(&a), "[[[0, 1],\n  [2, 3]],\n [[4, 5],\n  [6, 7]]]");
        assert_eq!(body(&a.transpose(0, 2).unwrap().get(1).unwrap()), "[[1, 5],\n [3, 7]]", "a view prints itself");
        assert_eq!(body(&Tensor::new(1.5f64, device).unwrap()), "[1.5000]");
        assert_eq!(body(&Tensor::new(7u32, device).unwrap()), "[7]");
    });
}

#[test]
fn floats_print_whole_or_with_four_decimals_or_in_powers_of_ten() {
    alone(|| {
        assert_eq!(floats(&[1., 2., -3.]), "[ 1.,  2., -3.]");
        assert_eq!(floats(&[0.5, 2.]), "[0.5000, 2.0000]");
        assert_eq!(floats(&[1. / 3., 10.]), "[ 0.3333, 10.0000]");
        assert_eq!(floats(&[0., -0.]), "[ 0., -0.]");
        assert_eq!(floats(&[1., f32::NAN, f32::INFINITY, f32::NEG_INFINITY]), "[  1.,  NaN,  inf, -inf]");
        assert_eq!(floats(&[1e10, 1.]), "[1.0000e10,  1.0000e0]");
        assert_eq!(floats(&[1e-6]), "[1.0000e-6]");
        assert_eq!(floats(&[1., 1000.]), "[   1., 1000.]");
        assert_eq!(floats(&[1., 1001.]), "[1.0000e0, 1.0010e3]");
        assert_eq!(floats(&[1e-4]), "[0.0001]", "the limits are inside, in each precision");
    });
}

#[test]
fn tenths_print_alike_in_either_precision() {
    alone(|| {
        let tenths = [0.1, 0.2, 0.3, 0.7, 1.1];
        let doubles = Tensor::from_slice(&tenths, 5, &Device::Cpu).unwrap();
        assert_eq!(body(&doubles), "[0.1000, 0.2000, 0.3000, 0.7000, 1.1000]");
        assert_eq!(floats(&tenths.map(|x| x as f32)), "[0.1000, 0.2000, 0.3000, 0.7000, 1.1000]");
    });
}

#[test]
fn long_arrays_print_their_ends() {
    each(|device| {
        let a = Tensor::arange(0i64, 2000, device).unwrap();
        assert_eq!(body(&a), "[   0,    1,    2, ..., 1997, 1998, 1999]");
        let a = Tensor::arange(0i64, 1000, device).unwrap();
        assert!(!body(&a).contains("..."), "1000 elements print in full");
        let a = Tensor::zeros(30, DType::U8, device).unwrap();
        let row = ["0"; 26].join(", ");
        assert_eq!(body(&a), format!("[{row},\n 0, 0, 0, 0]"), "a line has 80 letters");
        let a = Tensor::zeros((500, 4), DType::U8, device).unwrap();
        let row = "[0, 0, 0, 0]";
        assert_eq!(body(&a), format!("[{row},\n {row},\n {row},\n ...\n {row},\n {row},\n {row}]"));
        let a = Tensor::zeros((2, 7, 200), DType::U8, device).unwrap();
        let row = "[0, 0, 0, ..., 0, 0, 0]";
        let block = format!("[{row},\n  {row},\n  {row},\n  ...\n  {row},\n  {row},\n  {row}]");
        assert_eq!(body(&a), format!("[{block},\n {block}]"));
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
fn debug_is_one_line_and_in_its_long_form_names_the_owner() {
    each(|device| {
        let at = place(device);
        let a = Tensor::new([1.5f32, 2., -0.25], device).unwrap();
        assert_eq!(format!("{a:?}"), format!("Tensor[1.5, 2, -0.25; f32{at}]"));
        assert_eq!(format!("{:?}", a.get(1).unwrap()), format!("Tensor[2; f32{at}]"));
        let a = Tensor::zeros(10, DType::U8, device).unwrap();
        assert_eq!(format!("{a:?}"), format!("Tensor[dims 10; u8{at}]"));
        assert_eq!(format!("{:?}", a.reshape((2, 5)).unwrap()), format!("Tensor[dims 2, 5; u8{at}]"));
        let manager = NdManager::new_base_manager(device).unwrap();
        manager.set_name("epoch");
        let a = manager.zeros((2, 3), DType::F32).unwrap();
        a.set_name("weights").unwrap();
        let key = a.key();
        assert_eq!(format!("{a:#?}"), format!("Proxy({key} `weights` f32 [2, 3] on {device}, owned by epoch)"));
        let b = a.detach();
        let key = b.key();
        assert_eq!(format!("{b:#?}"), format!("Proxy({key} f32 [2, 3] on {device}, owned by its handles)"));
        assert_eq!(format!("{:?}", Var::from_tensor(&b).unwrap()), format!("Var(Tensor[dims 2, 3; f32{at}])"));
        manager.close().unwrap();
    });
}
