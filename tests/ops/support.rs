//! What the tests share: operands in every form, and comparison. Every test runs inside [`alone`] or [`each`].

use ndgc::{DType, Device, Error, Result, Shape, Tensor, WithDType, gc};

use crate::common::assert_names_its_line;
pub(crate) use crate::common::{alone, check, devices, each_case};
use crate::ops::reference::{Host, Native};

/// Runs `body` in both positions of the switch on every device; see [`each_case`].
pub(crate) fn each(body: impl Fn(&Device)) {
    each_case(&[false, true], body);
}

/// Bytes of live storages, after everything dead was reclaimed.
pub(crate) fn active(device: &Device) -> u64 {
    gc::collect();
    device.memory().active
}

/// All elements in row-major order.
pub(crate) fn values<T: WithDType>(array: &Tensor) -> Vec<T> {
    array.to_vec().unwrap()
}

/// All elements as the bits of doubles, those of NaN alike.
pub(crate) fn bits(array: &Tensor) -> Vec<u64> {
    let all = values::<f64>(&array.to_dtype(DType::F64).unwrap());
    all.into_iter().map(|x| if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// An array of f64 on a device.
pub(crate) fn f64s<S: Into<Shape>>(device: &Device, data: &[f64], shape: S) -> Tensor {
    Tensor::from_slice(data, shape, device).unwrap()
}

/// Whether two arrays share a storage: then both together are not unique, and a change of one shows in the other.
pub(crate) fn shares(a: &Tensor, b: &Tensor) -> bool {
    let before = values::<f32>(b);
    a.affine_(1.0, 1.0).unwrap();
    let after = values::<f32>(b);
    a.affine_(1.0, -1.0).unwrap();
    before != after
}

/// An operand with what it holds.
pub(crate) struct Operand<T> {
    pub(crate) form: &'static str,
    pub(crate) tensor: Tensor,
    pub(crate) host: Host<T>,
}

/// Puts a host array on a device.
pub(crate) fn put<T: Native>(host: &Host<T>, device: &Device) -> Tensor {
    Tensor::from_slice(&host.data, &host.dims, device).unwrap()
}

/// Operands of shape `[2, 3, 4]` in every form a view can give: plain, transposed, permuted, narrowed, backwards with
/// steps, an entry of a longer one, broadcast in the middle and from the front, windows that share elements (whose
/// name begins as that of the other ones that nothing may be written to).
pub(crate) fn forms<T: Native>(device: &Device, seed: u64) -> Vec<Operand<T>> {
    let base = |dims: &[usize]| {
        let host = Host::<T>::sample(dims, seed);
        (put(&host, device), host)
    };
    let mut all = Vec::new();
    let mut add = |form, tensor: Result<Tensor>, host| all.push(Operand { form, tensor: tensor.unwrap(), host });
    let (a, h) = base(&[2, 3, 4]);
    add("plain", Ok(a), h);
    let (a, h) = base(&[2, 4, 3]);
    add("transposed", a.transpose(1, 2), h.permute(&[0, 2, 1]));
    let (a, h) = base(&[4, 2, 3]);
    add("permuted", a.permute((1, 2, 0)), h.permute(&[1, 2, 0]));
    let (a, h) = base(&[3, 5, 6]);
    let inner = a.narrow(0, 1, 2).and_then(|a| a.narrow(1, 0, 3)).and_then(|a| a.narrow(2, 2, 4));
    add("narrowed", inner, h.narrow(0, 1, 2).narrow(1, 0, 3).narrow(2, 2, 4));
    let (a, h) = base(&[2, 5, 4]);
    let turned = Host::from_fn(&[2, 3, 4], |index| h.at(&[1 - index[0], 4 - 2 * index[1], 3 - index[2]]));
    add("turned", a.narrow_step(1, 4, 3, -2).and_then(|a| a.flip(&[0, 2])), turned);
    let (a, h) = base(&[3, 2, 3, 4]);
    add("an entry", a.get(2), h.get(0, 2));
    let (a, h) = base(&[2, 1, 4]);
    add("broadcast inside", a.broadcast_as((2, 3, 4)), h.broadcast(&[2, 3, 4]));
    let (a, h) = base(&[3, 1]);
    add("broadcast in front", a.broadcast_as((2, 3, 4)), h.broadcast(&[2, 3, 4]));
    let (a, h) = base(&[2, 8]);
    let windows = Host::from_fn(&[2, 3, 4], |index| h.at(&[index[0], 2 * index[1] + index[2]]));
    add("broadcast in windows", a.unfold(1, 4, 2), windows);
    all
}

/// Operands of other shapes: a scalar, an empty one, one that is long and lies in strides, one that is large enough
/// for several threads.
pub(crate) fn shapes<T: Native>(device: &Device, seed: u64) -> Vec<Operand<T>> {
    let of = |form, dims: &[usize]| {
        let host = Host::<T>::sample(dims, seed);
        Operand { form, tensor: put(&host, device), host }
    };
    let long = of("long", &[67, 3]);
    let strided =
        Operand { form: "long, in strides", tensor: long.tensor.t().unwrap(), host: long.host.permute(&[1, 0]) };
    vec![of("a scalar", &[]), of("empty", &[2, 0, 3]), of("one axis", &[19]), of("long", &[3, 67]), strided]
}

/// Asserts shape, dtype and elements: integers exactly, floats to the accuracy of their type.
#[track_caller]
pub(crate) fn assert_same<T: Native>(what: &str, got: &Tensor, want: &Host<T>) {
    assert_eq!(got.dtype(), T::DTYPE, "{what}: dtype");
    assert_eq!(got.dims(), want.dims, "{what}: shape");
    let data = values::<T>(got);
    for (i, (&g, &w)) in data.iter().zip(&want.data).enumerate() {
        assert!(T::close(g, w), "{what}: element {i} is {g}, not {w}");
    }
    assert_eq!(data.len(), want.data.len(), "{what}: number of elements");
}

/// The error of a call that must fail.
#[track_caller]
pub(crate) fn error<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("the call succeeded"),
        Err(error) => {
            assert_names_its_line(&error);
            error
        }
    }
}
