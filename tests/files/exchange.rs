//! Files that DJL and ND4J themselves wrote, in `exchange/`: read, and written again as they wrote them.

use std::collections::HashMap;

use ndgc::{DType, Device, Tensor, ndar, npy, npz, safetensors};

use crate::common::each_case;
use crate::files::support::{assert_same, why};

const NDAR: &[u8] = include_bytes!("exchange/djl-list.ndar");
const NPZ: &[u8] = include_bytes!("exchange/djl-list.npz");
const SAFETENSORS: &[u8] = include_bytes!("exchange/djl-list.safetensors");

/// The types of DJL's list, as it names them.
const TYPES: [(&str, DType); 8] = [
    ("float32", DType::F32),
    ("float64", DType::F64),
    ("float16", DType::F16),
    ("int8", DType::I8),
    ("uint8", DType::U8),
    ("int32", DType::I32),
    ("int64", DType::I64),
    ("boolean", DType::Bool),
];
const SHAPES: [(&str, &[usize]); 6] =
    [("", &[]), ("0_", &[0]), ("3_", &[3]), ("2_3_", &[2, 3]), ("2_0_3_", &[2, 0, 3]), ("2_1_3_2_", &[2, 1, 3, 2])];

/// The list in its order: each array counts from 0, halves only to 5 and from there again.
fn list() -> Vec<(String, Tensor)> {
    let of = |dtype, dims: &[usize]| {
        let count = dims.iter().product::<usize>() as u32;
        let numbers = (0..count).map(|i| if dtype == DType::F16 { i % 6 } else { i }).collect();
        Tensor::from_vec(numbers, dims, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
    };
    let each = TYPES.iter().flat_map(|ty| SHAPES.iter().map(move |shape| (ty, shape)));
    each.map(|((ty, dtype), (suffix, dims))| (format!("{ty}-_{suffix}"), of(*dtype, dims))).collect()
}

fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

#[test]
fn djl_list_in_three_formats() {
    each_case(&[false], |device| {
        let want = list();
        for (bytes, sorted) in [(NDAR, false), (NPZ, false), (SAFETENSORS, true)] {
            let found = ndar::decode_list(bytes, device).unwrap();
            assert_eq!(found.len(), want.len());
            let mut want: Vec<_> = want.iter().collect();
            if sorted {
                want.sort_by(|(a, _), (b, _)| a.cmp(b));
            }
            for (found, (name, want)) in found.iter().zip(want) {
                assert_eq!(found.name().as_deref(), Some(&name[..]));
                assert_same(found, want);
            }
        }
    });
}

#[test]
fn djl_list_is_written_as_djl_does() {
    each_case(&[false], |device| {
        let arrays = ndar::decode_list(NDAR, device).unwrap();
        assert_eq!(escaped(&ndar::encode_list(&arrays).unwrap()), escaped(NDAR));
    });
}

/// An archive and a safetensors file may order and pack their arrays otherwise; what comes back is the same.
#[test]
fn djl_list_comes_back_from_archive_and_safetensors() {
    each_case(&[false], |device| {
        let arrays = npz::decode(NPZ, device).unwrap();
        let again = npz::decode(&npz::encode(&arrays).unwrap(), device).unwrap();
        let named = safetensors::load_buffer(SAFETENSORS, device).unwrap();
        let folder = crate::files::support::Folder::new();
        let path = folder.file("list.safetensors");
        safetensors::save(&named, &path).unwrap();
        let read: HashMap<_, _> = safetensors::load(&path, device).unwrap();
        assert_eq!((again.len(), read.len()), (arrays.len(), arrays.len()));
        for ((name, array), (name_again, array_again)) in arrays.iter().zip(&again) {
            assert_eq!(name, name_again);
            assert_same(array_again, array);
            assert_same(&read[name], array);
        }
    });
}

/// The numbers 0 to 5 in each of ND4J's types.
const NPY: [(DType, &[u8]); 13] = [
    (DType::Bool, include_bytes!("exchange/nd4j-BOOL.npy")),
    (DType::I8, include_bytes!("exchange/nd4j-BYTE.npy")),
    (DType::I16, include_bytes!("exchange/nd4j-SHORT.npy")),
    (DType::I32, include_bytes!("exchange/nd4j-INT.npy")),
    (DType::I64, include_bytes!("exchange/nd4j-LONG.npy")),
    (DType::U8, include_bytes!("exchange/nd4j-UBYTE.npy")),
    (DType::U16, include_bytes!("exchange/nd4j-UINT16.npy")),
    (DType::U32, include_bytes!("exchange/nd4j-UINT32.npy")),
    (DType::U64, include_bytes!("exchange/nd4j-UINT64.npy")),
    (DType::F16, include_bytes!("exchange/nd4j-HALF.npy")),
    (DType::F32, include_bytes!("exchange/nd4j-FLOAT.npy")),
    (DType::F32, include_bytes!("exchange/nd4j-forder.npy")),
    (DType::F64, include_bytes!("exchange/nd4j-DOUBLE.npy")),
];

#[test]
fn npy_by_nd4j() {
    each_case(&[false], |device| {
        let six = Tensor::arange(0u32, 6, &Device::Cpu).unwrap().reshape((2, 3)).unwrap();
        for (dtype, bytes) in NPY {
            let found = npy::decode(bytes, device).unwrap();
            assert_same(&found, &six.to_dtype(dtype).unwrap());
            assert_eq!(escaped(&npy::encode(&found).unwrap()), escaped(bytes));
        }
        let scalar: &[u8] = include_bytes!("exchange/nd4j-scalar.npy");
        let found = npy::decode(scalar, device).unwrap();
        assert_same(&found, &Tensor::new(5f64, &Device::Cpu).unwrap());
        assert_eq!(escaped(&npy::encode(&found).unwrap()), escaped(scalar));
    });
}

/// ND4J writes bf16 as a dtype that is not NumPy's, which NumPy refuses too.
#[test]
fn npy_of_bf16_by_nd4j_is_refused() {
    each_case(&[false], |device| {
        assert!(why(npy::decode(include_bytes!("exchange/nd4j-BFLOAT16.npy"), device)).contains("'<?2'"));
    });
}
