//! What the tests share: a folder of their own, arrays in every form, comparison.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ndgc::{DType, Device, Error, F8E4M3, Result, Tensor, WithDType, bf16, f16};

/// A folder that goes with the value.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("ndgc-files-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names of what is in it, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Numbers that show a byte in the wrong place, and the ends of the type.
fn numbers(count: usize, dtype: DType, device: &Device) -> Tensor {
    // Halves that no conversion changes: no NaN.
    let half = |i: usize| (i as u16).wrapping_mul(37) & 0x3fff;
    let of = |i: usize| (i as f64) * 1.25 - 3.0;
    match dtype {
        DType::Bool => Tensor::from_vec((0..count).map(|i| i % 3 == 1).collect(), count, device),
        DType::F8E4M3 => {
            Tensor::from_vec((0..count).map(|i| F8E4M3::from_bits(i as u8 % 0x7f)).collect(), count, device)
        }
        DType::F16 => Tensor::from_vec((0..count).map(|i| f16::from_bits(half(i))).collect(), count, device),
        DType::BF16 => Tensor::from_vec((0..count).map(|i| bf16::from_bits(half(i))).collect(), count, device),
        DType::F32 => Tensor::from_vec((0..count).map(|i| of(i) as f32 / 3.0).collect(), count, device),
        DType::F64 => Tensor::from_vec((0..count).map(|i| of(i) / 7.0).collect(), count, device),
        _ => {
            let spread = Tensor::from_vec(
                (0..count).map(|i| (i as i64).wrapping_mul(0x123_4567_89ab_cdef)).collect(),
                count,
                device,
            );
            spread.and_then(|spread| spread.to_dtype(dtype))
        }
    }
    .unwrap()
}

/// Arrays of every shape and layout.
pub(crate) fn forms(dtype: DType, device: &Device) -> Vec<Tensor> {
    let of = |dims: &[usize]| numbers(dims.iter().product(), dtype, device).reshape(dims).unwrap();
    vec![
        of(&[]),
        of(&[0, 3]),
        of(&[1]),
        of(&[7]),
        of(&[2, 3]),
        of(&[1, 2, 3, 1, 2, 2]),
        of(&[4, 3, 2]).permute((2, 0, 1)).unwrap(),
        of(&[6, 5]).t().unwrap(),
        of(&[5, 6]).narrow(0, 1, 3).unwrap().narrow(1, 2, 2).unwrap(),
        of(&[1, 3]).broadcast_as((2, 3)).unwrap(),
        of(&[3, 9001]), // several chunks, of which the last is not full
    ]
}

fn bits<T: WithDType>(array: &Tensor) -> Vec<u64> {
    let all = array.to_vec::<T>().unwrap();
    all.into_iter().map(|x| if T::DTYPE.is_float() { x.to_f64().to_bits() } else { x.to_i64() as u64 }).collect()
}

/// Asserts that two arrays have the same dtype, shape and bits.
#[track_caller]
pub(crate) fn assert_same(a: &Tensor, b: &Tensor) {
    assert_eq!(a.dtype(), b.dtype());
    assert_eq!(a.dims(), b.dims());
    let [a, b] = [a, b].map(|array| match array.dtype() {
        DType::Bool => bits::<bool>(array),
        DType::U8 => bits::<u8>(array),
        DType::U16 => bits::<u16>(array),
        DType::U32 => bits::<u32>(array),
        DType::U64 => bits::<u64>(array),
        DType::I8 => bits::<i8>(array),
        DType::I16 => bits::<i16>(array),
        DType::I32 => bits::<i32>(array),
        DType::I64 => bits::<i64>(array),
        DType::F8E4M3 => bits::<F8E4M3>(array),
        DType::F16 => bits::<f16>(array),
        DType::BF16 => bits::<bf16>(array),
        DType::F32 => bits::<f32>(array),
        _ => bits::<f64>(array),
    });
    assert_eq!(a, b);
}

/// `[[0, 1, 2], [3, 4, 5]]`, which most of the fixtures hold.
pub(crate) fn six(dtype: DType) -> Tensor {
    Tensor::arange(0i64, 6, &Device::Cpu).unwrap().reshape((2, 3)).unwrap().to_dtype(dtype).unwrap()
}

/// The text of the error that a reader must give, after looking at its kind.
#[track_caller]
pub(crate) fn why<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("the call succeeded"),
        Err(error @ Error::File { .. }) => error.to_string(),
        Err(error) => panic!("not an error about a file: {error}"),
    }
}

/// A file with another text in its place.
#[track_caller]
pub(crate) fn with(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    let mut bytes = bytes.to_vec();
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}
