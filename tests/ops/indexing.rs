//! Picking and putting by indices: every dtype, every type of index, every axis; indices out of range.

use ndgc::{DType, Device, Error, Result, Tensor};

use crate::ops::cases::for_numbers;
use crate::ops::reference::{Host, Native};
use crate::ops::support::{assert_same, each, error, forms, put, shapes, values};

const INDEX_TYPES: [DType; 8] =
    [DType::U8, DType::U16, DType::U32, DType::U64, DType::I8, DType::I16, DType::I32, DType::I64];

fn ids(device: &Device, list: &[u8]) -> [Tensor; 8] {
    let bytes = Tensor::from_slice(list, list.len(), device).unwrap();
    INDEX_TYPES.map(|dtype| bytes.to_dtype(dtype).unwrap())
}

fn select<T: Copy>(h: &Host<T>, list: &[u8], axis: usize) -> Host<T> {
    let mut dims = h.dims.clone();
    dims[axis] = list.len();
    Host::from_fn(&dims, |mut index| {
        index[axis] = usize::from(list[index[axis]]);
        h.at(&index)
    })
}

#[test]
fn index_select_picks_in_order_with_repeats_along_every_axis() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 1).into_iter().chain(shapes(device, 2)) {
            for axis in (0..operand.host.dims.len()).filter(|&axis| operand.host.dims[axis] > 0) {
                let last = operand.host.dims[axis] as u8 - 1;
                for list in [&[last, 0, last, last][..], &[0], &[]] {
                    let want = select(&operand.host, list, axis);
                    for ids in ids(device, list) {
                        let got = operand.tensor.index_select(&ids, axis).unwrap();
                        assert_same(&format!("{} along {axis} by {list:?}", operand.form), &got, &want);
                    }
                }
            }
        }
        let strided = Tensor::new([[1u32, 9], [0, 9]], device).unwrap().get_on_dim(1, 0).unwrap();
        let operand = &forms::<T>(device, 1)[0];
        let got = operand.tensor.index_select(&strided, 0).unwrap();
        assert_same("indices in strides", &got, &select(&operand.host, &[1, 0], 0));
    }
    each(|device| for_numbers!(device, body));
}

#[test]
fn embedding_takes_indices_of_any_shape() {
    each(|device| {
        let table = Host::<f32>::sample(&[5, 3], 1);
        let t = put(&table, device);
        let want = select(&table, &[4, 0, 0, 2], 0);
        let list = Tensor::new([[4u32, 0], [0, 2]], device).unwrap();
        assert_same("a matrix of indices", &t.embedding(&list).unwrap(), &want.reshape(&[2, 2, 3]));
        let turned = Tensor::new([[4i64, 0], [0, 2]], device).unwrap().t().unwrap();
        assert_same("a transposed one", &t.embedding(&turned).unwrap(), &want.reshape(&[2, 2, 3]).permute(&[1, 0, 2]));
        let one = Tensor::new(4u8, device).unwrap();
        assert_same("a scalar", &t.embedding(&one).unwrap(), &table.get(0, 4));
    });
}

/// An index of `0..dim` for each place of a shape.
fn places(dims: &[usize], dim: usize) -> Host<u8> {
    Host::from_fn(dims, |index| ((index.iter().enumerate().map(|(i, x)| (i + 2) * x).sum::<usize>() + 1) % dim) as u8)
}

#[test]
fn gather_follows_its_definition_along_every_axis_and_for_smaller_indices() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 3) {
            for (axis, dims) in [(0, [5, 3, 4]), (1, [2, 4, 4]), (2, [2, 3, 1]), (1, [1, 2, 3]), (2, [2, 3, 0])] {
                let list = places(&dims, operand.host.dims[axis]);
                let want = Host::from_fn(&dims, |mut index| {
                    index[axis] = usize::from(list.at(&index));
                    operand.host.at(&index)
                });
                let turned = put(&list.permute(&[2, 0, 1]), device).permute((1, 2, 0)).unwrap();
                for ids in INDEX_TYPES.map(|dtype| put(&list, device).to_dtype(dtype).unwrap()).iter().chain([&turned])
                {
                    let got = operand.tensor.gather(ids, axis).unwrap();
                    assert_same(&format!("gather {dims:?} of {} along {axis}", operand.form), &got, &want);
                }
            }
        }
    }
    each(|device| for_numbers!(device, body));
}

#[test]
fn scatter_add_and_index_add_follow_their_definitions_and_leave_the_operand() {
    fn body<T: Native>(device: &Device) {
        for (operand, seed) in forms::<T>(device, 4).into_iter().zip(5..) {
            let h = &operand.host;
            for (axis, dims) in [(0, [3, 3, 4]), (1, [2, 5, 4]), (2, [2, 2, 4]), (0, [0, 3, 4])] {
                let (list, src) = (places(&dims, h.dims[axis]), Host::<T>::sample(&dims, seed));
                let mut want = h.clone();
                add(&mut want, &src, |mut index| {
                    index[axis] = usize::from(list.at(&index));
                    index
                });
                for dtype in INDEX_TYPES {
                    let ids = put(&list, device).to_dtype(dtype).unwrap();
                    let got = operand.tensor.scatter_add(&ids, &put(&src, device), axis).unwrap();
                    assert_same(&format!("scatter_add {dims:?} to {} along {axis}", operand.form), &got, &want);
                }
            }
            for axis in 0..3 {
                let list = [0, h.dims[axis] as u8 - 1, 0];
                let mut dims = h.dims.clone();
                dims[axis] = 3;
                let src = Host::<T>::sample(&dims, seed);
                let mut want = h.clone();
                add(&mut want, &src, |mut index| {
                    index[axis] = usize::from(list[index[axis]]);
                    index
                });
                let turned = put(&src.permute(&[2, 1, 0]), device).permute((2, 1, 0)).unwrap();
                for ids in ids(device, &list) {
                    let got = operand.tensor.index_add(&ids, &turned, axis).unwrap();
                    assert_same(&format!("index_add to {} along {axis}", operand.form), &got, &want);
                }
            }
            assert_same("the operand itself", &operand.tensor, h);
        }
    }
    each(|device| for_numbers!(device, body));
}

fn add<T: Native>(to: &mut Host<T>, src: &Host<T>, place: impl Fn(Vec<usize>) -> Vec<usize>) {
    let dims = to.dims.clone();
    for index in crate::ops::reference::indices(&src.dims) {
        let value = src.at(&index);
        let flat = place(index).iter().zip(&dims).fold(0, |flat, (&i, &dim)| flat * dim + i);
        to.data[flat] = to.data[flat].plus(value);
    }
}

/// The error of an operation, at once or, on a device that works later, when its result is read.
fn late(result: Result<Tensor>) -> Error {
    match result {
        Err(error) => error,
        Ok(array) => error(array.to_vec::<f32>()),
    }
}

#[test]
fn an_index_out_of_range_is_an_error_that_names_it() {
    each(|device| {
        let a = Tensor::ones((3, 4), DType::F32, device).unwrap();
        let src = Tensor::ones((2, 4), DType::F32, device).unwrap();
        for bad in [3i64, -1, i64::MAX - 1, i64::MIN] {
            let list = Tensor::new([0, bad], device).unwrap();
            let wide = list.unsqueeze(1).unwrap().broadcast_as((2, 4)).unwrap();
            let cases = [
                ("index_select", late(a.index_select(&list, 0))),
                ("index_add", late(a.index_add(&list, &src, 0))),
                ("gather", late(a.gather(&wide, 0))),
                ("scatter_add", late(a.scatter_add(&wide, &src, 0))),
            ];
            for (name, found) in cases {
                assert!(
                    matches!(found, Error::IndexOutOfRange { op, index, dim: 3, .. } if op == name && index == bad),
                    "{name} of {bad}: {found}"
                );
            }
        }
        let labels = Tensor::new([0u32, 1, 4], device).unwrap();
        let found = late(a.cross_entropy(&labels));
        assert!(matches!(found, Error::IndexOutOfRange { op: "cross_entropy", index: 4, dim: 4, .. }), "{found}");
        assert_eq!(
            values::<f32>(&a.index_select(&labels.narrow(0, 0, 2).unwrap(), 0).unwrap()),
            [1.; 8],
            "all is well after"
        );
    });
}

/// An axis without elements has no index, so that the largest one is padding there as anywhere else.
#[test]
fn padding_reads_zeros_from_an_axis_without_elements_and_writes_nothing_to_it() {
    each(|device| {
        let none = Tensor::zeros((2, 0), DType::F32, device).unwrap();
        let src = Tensor::ones((2, 3), DType::F32, device).unwrap();
        let pads = Tensor::full(u32::MAX, (2, 3), device).unwrap();
        assert_eq!(values::<f32>(&none.gather(&pads, 1).unwrap()), [0.; 6]);
        assert_eq!(none.scatter_add(&pads, &src, 1).unwrap().dims(), [2, 0]);
        let found = late(none.gather(&pads.zeros_like().unwrap(), 1));
        assert!(matches!(found, Error::IndexOutOfRange { op: "gather", index: 0, dim: 0, .. }), "{found}");
    });
}

#[test]
fn indices_of_the_wrong_form_are_typed_errors() {
    each(|device| {
        let a = Tensor::ones((3, 4), DType::F32, device).unwrap();
        let list = Tensor::new([0u32, 1], device).unwrap();
        let table = list.unsqueeze(0).unwrap();
        let floats = list.to_dtype(DType::F32).unwrap();
        assert!(matches!(error(a.index_select(&table, 0)), Error::Shape { op: "index_select", .. }));
        assert!(matches!(error(a.index_select(&floats, 0)), Error::UnsupportedDType { op: "index_select", .. }));
        assert!(matches!(error(a.index_select(&list, 2)), Error::DimOutOfRange { op: "index_select", .. }));
        assert!(matches!(error(a.gather(&list, 0)), Error::ShapeMismatch { op: "gather", .. }));
        assert!(matches!(error(a.gather(&floats, 0)), Error::UnsupportedDType { op: "gather", .. }));
        let tall = Tensor::zeros((4, 1), DType::U32, device).unwrap();
        assert!(matches!(error(a.gather(&tall, 1)), Error::ShapeMismatch { op: "gather", .. }));
        assert!(matches!(error(a.scatter_add(&table, &a, 0)), Error::ShapeMismatch { op: "scatter_add", .. }));
        let ints = a.to_dtype(DType::I64).unwrap();
        let found = error(a.index_add(&list, &ints, 0));
        assert!(
            matches!(found, Error::DTypeMismatch { op: "index_add", lhs: DType::F32, rhs: DType::I64, .. }),
            "{found}"
        );
        assert!(matches!(error(a.index_add(&list, &a, 0)), Error::ShapeMismatch { op: "index_add", .. }));
        assert!(matches!(error(a.get(0).unwrap().embedding(&list)), Error::Shape { .. }));
    });
}
