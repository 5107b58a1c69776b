//! Files that other programs wrote are read, and what is written here is what they write.

use std::collections::HashMap;

use ndgc::{DType, Device, Error, F8E4M3, Tensor, WithDType, bf16, ndar, npy, npz, safetensors};

use crate::common::{each_case, text_of, turn};
use crate::files::fixtures::*;
use crate::files::support::{Folder, assert_same, six, why, with};

fn of<T: WithDType>(data: &[T], dims: &[usize]) -> Tensor {
    Tensor::from_slice(data, dims, &Device::Cpu).unwrap()
}

#[test]
fn npy_by_numpy() {
    each_case(&[false], |device| {
        let long = Tensor::arange(0u32, 24, &Device::Cpu).unwrap().reshape((2, 3, 4)).unwrap();
        let cases = [
            (NPY_U8, six(DType::U8)),
            (NPY_U32, six(DType::U32)),
            (NPY_I64, six(DType::I64)),
            (NPY_F32, six(DType::F32)),
            (NPY_F64, six(DType::F64)),
            (NPY_F16, six(DType::F16)),
            (NPY_SCALAR, of(&[1.5f64], &[])),
            (NPY_VECTOR, of(&[-7i64], &[1])),
            (NPY_EMPTY, of::<f32>(&[], &[0, 3])),
            (NPY_BOOL, of(&[true, false, true], &[3])),
            (NPY_FORTRAN, six(DType::F32)),
            (NPY_FORTRAN_3, long),
            (NPY_BIG_ENDIAN, six(DType::F64)),
            (NPY_VERSION_2, six(DType::F32)),
            (NPY_VERSION_3, six(DType::F32)),
        ];
        for (bytes, want) in cases {
            assert_same(&npy::decode(bytes, device).unwrap(), &want);
        }
    });
}

/// Which NumPy takes too, and other programs write.
#[test]
fn dtypes_of_npy_may_be_letters() {
    each_case(&[false], |device| {
        let letters = [
            (DType::U8, "|u1", "B"),
            (DType::U16, "<u2", "H"),
            (DType::U32, "<u4", "I"),
            (DType::U64, "<u8", "Q"),
            (DType::I8, "|i1", "b"),
            (DType::I16, "<i2", "h"),
            (DType::I32, "<i4", "i"),
            (DType::I64, "<i8", "q"),
            (DType::F16, "<f2", "e"),
            (DType::F32, "<f4", "f"),
            (DType::F64, "<f8", "d"),
        ];
        for (dtype, name, letter) in letters {
            let file = npy::encode(&six(dtype)).unwrap();
            for order in ["", "<", "="] {
                let other = format!("{:6}", format!("'{order}{letter}',"));
                let other = with(&file, format!("'{name}',").as_bytes(), other.as_bytes());
                assert_same(&npy::decode(&other, device).unwrap(), &six(dtype));
            }
        }
        // As long as C's `long`, which systems differ in.
        assert!(why(npy::decode(&with(NPY_I64, b"<i8", b"<l "), device)).contains("dtype '<l '"));
    });
}

#[test]
fn npy_is_written_as_numpy_does() {
    each_case(&[false], |_| {
        for bytes in [NPY_U8, NPY_U32, NPY_I64, NPY_F16, NPY_F32, NPY_F64, NPY_BOOL, NPY_SCALAR, NPY_VECTOR, NPY_EMPTY]
        {
            let array = npy::decode(bytes, &Device::Cpu).unwrap();
            assert_eq!(npy::encode(&array).unwrap().escape_ascii().to_string(), bytes.escape_ascii().to_string());
        }
    });
}

#[test]
fn dtypes_that_ndgc_does_not_have_are_named() {
    each_case(&[false], |device| {
        let complex = with(NPY_F16, b"<f2", b"<c8");
        assert!(why(npy::decode(&complex, device)).contains("dtype '<c8'"));
        assert!(why(npy::decode(NPY_STRUCTURED, device)).contains("structured dtype [('a', '<f4')"));
        let quarter = with(SAFETENSORS_OTHERS, br#""BF16","shape":[1]"#, br#""F4",  "shape":[4]"#);
        let file = safetensors::SliceSafetensors::new(&quarter).unwrap();
        assert!(why(file.load("half", device)).contains("array `half` has dtype F4"));
        assert!(why(file.get("half").unwrap().dtype()).contains("F4"));
        assert!(why(safetensors::load_buffer(&quarter, device)).contains("F4"));
    });
}

#[test]
fn safetensors_have_floats_of_8_bits() {
    each_case(&[false], |device| {
        let header = r#"{"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}"#;
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0x38, 0x7e, 0x81, 0x08]].concat();
        let a = &safetensors::load_buffer(&file, device).unwrap()["a"];
        assert_eq!(a.dtype(), DType::F8E4M3);
        let want = [1.0, 448.0, -1.0 / 512.0, 1.0 / 64.0];
        assert_eq!(a.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap(), want);
    });
}

#[test]
fn an_array_that_a_format_has_no_dtype_for_is_refused_before_a_file_is_made() {
    let _turn = turn();
    let folder = Folder::new();
    let path = folder.file("a.npy");
    for array in [of(&[bf16::ONE], &[1]), of(&[F8E4M3::ONE], &[1])] {
        for refused in
            [array.write_npy(&path), Tensor::write_npz(&[("a", &array)], &path), npy::encode(&array).map(drop)]
        {
            assert!(
                matches!(refused, Err(Error::UnsupportedDType { dtype: DType::BF16 | DType::F8E4M3, .. })),
                "{refused:?}"
            );
        }
    }
    assert!(folder.names().is_empty());
}

#[test]
fn npz_by_numpy() {
    each_case(&[false], |device| {
        let arrays = npz::decode(NPZ_STORED, device).unwrap();
        let names: Vec<_> = arrays.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, ["first", "second", "größe"]);
        assert_same(&arrays[0].1, &six(DType::F32));
        assert_same(&arrays[1].1, &of(&[1.5f64, 2.5], &[2]));
        assert_same(&arrays[2].1, &of(&[7i64], &[]));
        let arrays: HashMap<_, _> = npz::decode(NPZ_DEFLATED, device).unwrap().into_iter().collect();
        assert_same(&arrays["first"], &six(DType::F32));
        assert_same(&arrays["order"], &six(DType::U8));
        assert_same(&arrays["zeros"], &Tensor::zeros((100, 100), DType::F32, &Device::Cpu).unwrap());
    });
}

#[test]
fn safetensors_by_its_own_library() {
    let folder = Folder::new();
    let path = folder.file("a.safetensors");
    each_case(&[false], |device| {
        let arrays = safetensors::load_buffer(SAFETENSORS, device).unwrap();
        assert_eq!(arrays.len(), 6);
        assert_same(&arrays["w"], &six(DType::F32));
        assert_same(&arrays["b"], &of(&[1.5f64, 2.5], &[2]));
        assert_same(&arrays["a\"\n"], &of(&[7i64], &[]));
        assert_same(&arrays["u"], &of(&[1u8, 2, 3], &[3]));
        assert_same(&arrays["v"], &of(&[9u32], &[1]));
        assert_same(&arrays["e"], &of::<f32>(&[], &[0, 2]));
        safetensors::save(&arrays, &path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().escape_ascii().to_string(), SAFETENSORS.escape_ascii().to_string());
        std::fs::write(&path, SAFETENSORS_OTHERS).unwrap();
        let file = safetensors::SafeTensorsFile::new(&path).unwrap();
        assert_same(&file.load("ok", device).unwrap(), &of(&[1.5f32], &[1]));
        assert_same(&file.load("truth", device).unwrap(), &of(&[true, false], &[2]));
        assert_same(&file.load("half", device).unwrap(), &of(&[bf16::ONE], &[1]));
        assert_eq!(file.metadata(0).unwrap()["made by"], "a test");
        let text = text_of(&file.load("none", device).unwrap_err());
        let shown = path.display();
        assert_eq!(text, format!("{shown}: there is no tensor `none`; the nearest names are `ok`, `half`, `truth`"));
    });
}

#[test]
fn ndar_of_every_version() {
    each_case(&[false], |device| {
        let cases = [
            (NDAR_1, None, six(DType::F32)),
            (NDAR_2, Some("x"), six(DType::I64)),
            (NDAR_3, Some("w\0é\u{1F600}"), six(DType::F64)),
            (NDAR_BIG_ENDIAN, None, six(DType::U32)),
            (NDAR_BOOL, None, of(&[true, false, true], &[3])),
        ];
        for (bytes, name, want) in cases {
            let array = ndar::decode(bytes, device).unwrap();
            assert_eq!(array.name().as_deref(), name);
            assert_same(&array, &want);
        }
        assert_eq!(ndar::encode(&ndar::decode(NDAR_3, device).unwrap()).unwrap(), NDAR_3);
    });
}

#[test]
fn lists_are_recognised_by_their_first_bytes() {
    let folder = Folder::new();
    let path = folder.file("list");
    each_case(&[false], |device| {
        let cases: [(&[u8], &[Option<&str>]); 4] = [
            (ND_LIST, &[Some("x"), None]),
            (NPZ_STORED, &[Some("first"), Some("second"), Some("größe")]),
            (NPY_F32, &[None]),
            (SAFETENSORS, &[Some("a\"\n"), Some("b"), Some("e"), Some("u"), Some("v"), Some("w")]),
        ];
        for (bytes, names) in cases {
            std::fs::write(&path, bytes).unwrap();
            for arrays in [ndar::decode_list(bytes, device).unwrap(), ndar::read_list(&path, device).unwrap()] {
                let found: Vec<_> = arrays.iter().map(Tensor::name).collect();
                assert_eq!(found.iter().map(Option::as_deref).collect::<Vec<_>>(), names);
            }
        }
        let arrays = ndar::decode_list(ND_LIST, device).unwrap();
        assert_eq!(ndar::encode_list(&arrays).unwrap(), ND_LIST);
    });
}
