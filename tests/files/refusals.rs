//! What is wrong with a file is said, with the place.

use ndgc::{Device, ndar, npy, npz, safetensors};

use crate::common::turn;
use crate::files::fixtures::{ND_LIST, NDAR_3, NPY_F32, NPY_F64, NPZ_DEFLATED, NPZ_STORED};
use crate::files::support::{six, why, with};
use ndgc::DType;

/// Asserts what the error says of each file.
#[track_caller]
fn refused<T>(read: impl Fn(&[u8]) -> ndgc::Result<T>, cases: &[(Vec<u8>, &str)]) {
    for (bytes, want) in cases {
        let text = why(read(bytes));
        assert!(text.starts_with("buffer: at byte ") && text.contains(want), "{text}: no word of: {want}");
    }
}

#[test]
fn npy() {
    let _turn = turn();
    let header = |text: &str| {
        let mut bytes = b"\x93NUMPY\x01\0".to_vec();
        bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&[0; 24]);
        bytes
    };
    let shape = |shape: &str| header(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"));
    refused(
        |bytes| npy::decode(bytes, &Device::Cpu),
        &[
            (vec![], "the head of an npy file takes 8 bytes, and 0 are left"),
            (with(NPY_F32, b"NUMPY", b"NUMPI"), "this is no npy file"),
            (with(NPY_F32, b"NUMPY\x01", b"NUMPY\x04"), "npy version 4.0"),
            (b"\x93NUMPY\x02\0\xFF\xFF\xFF\x7F".to_vec(), "a header of 2147483647 bytes"),
            (b"\x93NUMPY\x01\0\xFF\xFF{".to_vec(), "the header takes 65535 bytes, and 1 are left"),
            (NPY_F64[..NPY_F64.len() - 1].to_vec(), "the data takes 48 bytes, and 47 are left"),
            (shape("(4611686018427387904, 4)"), "exceed the address space"),
            (shape("(1099511627776,)"), "the data takes 4398046511104 bytes, and 24 are left"),
            (shape("(0, 99999999999999999999)"), "no size here that an array can have"),
            (shape("(0, 4611686018427387904, 4)"), "exceed the address space"),
            (shape("(1, 1, 1, 1, 1, 1, 1)"), "7 axes are more than the 6"),
            (shape("(-1,)"), "no size here"),
            (shape("(2 3)"), "no ')' here"),
            (shape("2"), "no '(' here"),
            (header("{'descr': '<f4', 'descr': '<f4'}"), "key 'descr' comes twice"),
            (header("{'descr': '<f4', 'shape': ()}"), "no 'fortran_order'"),
            (header("{'descr': '<f4', 'fortran_order': 1, 'shape': ()}"), "neither True nor False"),
            (header("{'descr': '<f4', 'more': 1}"), "unknown key 'more'"),
            (header("{'descr': '<c8', "), "dtype '<c8'"),
            (header("{'descr"), "a string without an end"),
            (header(""), "no '{' here"),
            (header("{'descr': '<f4', 'fortran_order': False, 'shape': ()} x"), "goes on after its end"),
        ],
    );
}

#[test]
fn npz() {
    let _turn = turn();
    let pair = npz::encode(&[("a", six(DType::F32)), ("b", six(DType::F32))]).unwrap();
    let is_b = |i: usize| pair[i..].starts_with(b"b.npy");
    let twice = (0..pair.len()).map(|i| if is_b(i) { b'a' } else { pair[i] }).collect();
    let one = npz::encode(&[("a", six(DType::F32))]).unwrap();
    let directory = one.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let changed = |at: usize, to: &[u8]| {
        let mut bytes = one.clone();
        bytes[directory + at..directory + at + to.len()].copy_from_slice(to);
        bytes
    };
    let mut overlapping = pair.clone();
    let second = overlapping.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    overlapping[second + 42..second + 46].copy_from_slice(&[1, 0, 0, 0]);
    let end = one.len() - 22;
    let mut many = one.clone();
    many[end + 10] = 200;
    refused(
        |bytes| npz::decode(bytes, &Device::Cpu),
        &[
            (vec![], "no end of a zip archive"),
            (NPY_F32.to_vec(), "no end of a zip archive"),
            (NPZ_STORED[1..].to_vec(), "do not fit before the archive's end"),
            (twice, "two entries have the name `a.npy`"),
            (overlapping, "overlaps the one before it"),
            (many, "200 entries"),
            (changed(8, &[1]), "is encrypted"),
            (changed(10, &[12]), "packed by method 12"),
            (changed(10, &[8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1]), "can unpack to"),
            (changed(20, &[1]), "is stored, in"),
            (changed(42, &[255, 255]), "reaches past the entries"),
            (changed(42, &[1]), "reaches past the entries"),
            (changed(46, &[0xFF]), "is not UTF-8"),
            (changed(0, b"PK\x01\x03"), "no entry of the directory begins here"),
            (changed(16, &[0; 4]), "in entry `a`: the checksum is"),
            (with(&one, b"PK\x03\x04", b"PK\x03\x05"), "does not begin here"),
            (with(NPZ_DEFLATED, &NPZ_DEFLATED[50..60], &[0xFF; 10]), "in entry `first`: "),
        ],
    );
}

#[test]
fn safetensors() {
    let _turn = turn();
    let file = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    };
    let one = |text: &str| file(&format!("{{\"a\":{text}}}"), 8);
    let two = |b: &str| {
        let a = r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        file(&format!("{{{a},{b}}}"), 8)
    };
    refused(
        |bytes| safetensors::load_buffer(bytes, &Device::Cpu),
        &[
            (vec![0; 7], "the length of the header takes 8 bytes, and 7 are left"),
            (vec![0xFF; 16], "a header of 18446744073709551615 bytes"),
            (100_000_000u64.to_le_bytes().to_vec(), "the header takes 100000000 bytes, and 0 are left"),
            (file(" {}", 0), "does not begin with {"),
            (file("{", 0), "not understood"),
            (file("{}", 1), "the arrays end at byte 0 of the data, which have 1"),
            (file(&format!("{{\"a\":{}", "[".repeat(10_000)), 0), "not understood"),
            (file(&format!("{{\"a\":{{\"x\":{}", "[".repeat(10_000)), 0), "EOF while parsing"),
            (one(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#), "end at byte 4 of the data, which have 8"),
            (
                one(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#),
                "F32 of shape [3] takes 12 bytes, and it has the bytes 0 to 8",
            ),
            (one(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#), "it has the bytes 8 to 0"),
            (one(r#"{"dtype":"F32","shape":[2],"data_offsets":[4,12]}"#), "begins at byte 4"),
            (one(r#"{"dtype":"F4","shape":[16],"data_offsets":[0,8]}"#), "array `a` has dtype F4"),
            (one(r#"{"dtype":"F99","shape":[2],"data_offsets":[0,8]}"#), "unknown dtype `F99`"),
            (one(r#"{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}"#), "than can be counted"),
            (one(r#"{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}"#), "not understood"),
            (one(r#"{"dtype":"F32","shape":[1,1,1,1,1,1,2],"data_offsets":[0,8]}"#), "7 axes are more than the 6"),
            (one(r#"{"dtype":"F32","shape":[2]}"#), "missing field `data_offsets`"),
            (one(r#"{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}"#), "`dtype` comes twice"),
            (one(&format!(r#"{{"shape":[{}1]}}"#, "1,".repeat(99))), "more than 64 axes"),
            (two(r#""a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#), "the name `a` comes twice"),
            (two(r#""b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#), "the one before ends at 4"),
            (two(r#""b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}"#), "begins at byte 8"),
            (two(r#""b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}"#), "of the data, which have 8"),
        ],
    );
}

#[test]
fn ndar() {
    let _turn = turn();
    let list = |count: i32| [&count.to_be_bytes()[..], &[0; 50]].concat();
    refused(
        |bytes| ndar::decode_list(bytes, &Device::Cpu),
        &[
            (list(-1), "a list of 4294967295 arrays takes"),
            (list(i32::MAX), "a list of 2147483647 arrays takes"),
            (list(2), "no NDAR array begins here"),
            (vec![0, 0], "the number of arrays takes 4 bytes"),
            (ND_LIST[..ND_LIST.len() - 1].to_vec(), "the data takes 1 bytes, and 0 are left"),
        ],
    );
    refused(
        |bytes| ndar::decode(bytes, &Device::Cpu),
        &[
            (with(NDAR_3, b"NDAR\0\0\0\x03", b"NDAR\0\0\0\x04"), "NDAR version 4"),
            (with(NDAR_3, b"NDAR\0\0\0\x03", b"NDAR\0\0\0\0"), "NDAR version 0"),
            (with(NDAR_3, b"NDAR", b"NDAX"), "no NDAR array begins here"),
            (with(NDAR_3, b"DENSE", b"CSR  "), "sparse format CSR"),
            (with(NDAR_3, b"FLOAT64", b"FLOAT99"), "dtype FLOAT99"),
            (with(NDAR_3, b"\0\0\0\x02\0\0", b"\x7F\0\0\x02\0\0"), "axes"),
            (with(NDAR_3, b"\0\0\0\0\0\0\0\x03", &[0xFF; 8]), "an axis of size -1"),
            (with(NDAR_3, b"\0\0\0\0\0\0\0\x03", b"\0\0\0\0\0\0\0\x04"), "the data takes 64 bytes, and 48 are left"),
            (with(NDAR_3, b"\0\0\0\0\0\0\0\x03", b"\0\0\0\0\0\0\0\x01"), "48 bytes for FLOAT64 of shape [2, 1]"),
            (with(NDAR_3, b"\xC0\x80", b"\xC0\x20"), "the name is not text"),
            (with(NDAR_3, b"\0\0\0\x02\0?", b"\0\0\0\x03\0?"), "3 letters of layout for 2 axes"),
        ],
    );
}
