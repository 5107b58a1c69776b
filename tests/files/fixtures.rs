//! Files that other programs wrote: npy and npz by NumPy 2.4, safetensors by its own library (0.8, Python), NDAR by a
//! script after DJL's description of it.

/// `[[0, 1, 2], [3, 4, 5]]` of u8, as all below unless said otherwise.
pub(crate) const NPY_U8: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }                                   \
    \x20                      \n\0\x01\x02\x03\x04\x05";

/// Of u32.
pub(crate) const NPY_U32: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '<u4', 'fortran_order': False, 'shape': (2, 3), }                                   \
    \x20                      \n\0\0\0\0\x01\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0\x05\0\0\0";

/// Of i64.
pub(crate) const NPY_I64: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }                                   \
    \x20                      \n\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\
    \0\0\x05\0\0\0\0\0\0\0";

/// Of f32.
pub(crate) const NPY_F32: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }                                   \
    \x20                      \n\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@";

/// Of f64.
pub(crate) const NPY_F64: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }                                   \
    \x20                      \n\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xf0?\0\0\0\0\0\0\0@\0\0\0\0\0\0\x08@\0\0\0\0\0\0\x10@\0\
    \0\0\0\0\0\x14@";

/// The f64 1.5, without axes.
pub(crate) const NPY_SCALAR: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '<f8', 'fortran_order': False, 'shape': (), }                                       \
    \x20                      \n\0\0\0\0\0\0\xf8?";

/// `[-7]` of i64.
pub(crate) const NPY_VECTOR: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }                                     \
    \x20                      \n\xf9\xff\xff\xff\xff\xff\xff\xff";

/// No elements, shape `[0, 3]`, f32.
pub(crate) const NPY_EMPTY: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }                                   \
    \x20                      \n";

/// `[true, false, true]`.
pub(crate) const NPY_BOOL: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }                                     \
    \x20                      \n\x01\0\x01";

/// Of f32, the first index fastest.
pub(crate) const NPY_FORTRAN: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }                                    \
    \x20                      \n\0\0\0\0\0\0@@\0\0\x80?\0\0\x80@\0\0\0@\0\0\xa0@";

/// 0 to 23 in shape `[2, 3, 4]`, of u32, the first index fastest, the highest byte first.
pub(crate) const NPY_FORTRAN_3: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '>u4', 'fortran_order': True, 'shape': (2, 3, 4), }                                 \
    \x20                      \n\0\0\0\0\0\0\0\x0c\0\0\0\x04\0\0\0\x10\0\0\0\x08\0\0\0\x14\0\0\0\x01\0\0\0\x0d\0\0\0\
    \x05\0\0\0\x11\0\0\0\x09\0\0\0\x15\0\0\0\x02\0\0\0\x0e\0\0\0\x06\0\0\0\x12\0\0\0\n\0\0\0\x16\0\0\0\x03\0\0\0\x0f\
    \0\0\0\x07\0\0\0\x13\0\0\0\x0b\0\0\0\x17";

/// Of f64, the highest byte first.
pub(crate) const NPY_BIG_ENDIAN: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '>f8', 'fortran_order': False, 'shape': (2, 3), }                                   \
    \x20                      \n\0\0\0\0\0\0\0\0?\xf0\0\0\0\0\0\0@\0\0\0\0\0\0\0@\x08\0\0\0\0\0\0@\x10\0\0\0\0\0\0@\
    \x14\0\0\0\0\0\0";

/// Of f32, version 2.
pub(crate) const NPY_VERSION_2: &[u8] = b"\
    \x93NUMPY\x02\0t\0\0\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }                               \
    \x20                        \n\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@";

/// Of f32, version 3.
pub(crate) const NPY_VERSION_3: &[u8] = b"\
    \x93NUMPY\x03\0t\0\0\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }                               \
    \x20                        \n\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@";

/// Of f16.
pub(crate) const NPY_F16: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }                                   \
    \x20                      \n\0\0\0<\0@\0B\0D\0E";

/// Of records.
pub(crate) const NPY_STRUCTURED: &[u8] = b"\
    \x93NUMPY\x01\0v\0{'descr': [('a', '<f4'), ('b', '<i8')], 'fortran_order': False, 'shape': (1,), }              \
    \x20                      \n\0\0\0\0\0\0\0\0\0\0\0\0";

/// `first` (f32), `second` (`[1.5, 2.5]` of f64) and `größe` (the i64 7) by `savez`.
pub(crate) const NPZ_STORED: &[u8] = b"\
    PK\x03\x04-\0\0\0\0\0\0\0!\0O\xe9\0*\xff\xff\xff\xff\xff\xff\xff\xff\x09\0\x14\0first.npy\x01\0\x10\0\x98\0\0\0\
    \0\0\0\0\x98\0\0\0\0\0\0\0\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }         \
    \x20                                                \n\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@PK\x03\x04\
    -\0\0\0\0\0\0\0!\0\x94\xde\x11\xc8\xff\xff\xff\xff\xff\xff\xff\xff\n\0\x14\0second.npy\x01\0\x10\0\x90\0\0\0\0\0\
    \0\0\x90\0\0\0\0\0\0\0\x93NUMPY\x01\0v\0{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }               \
    \x20                                            \n\0\0\0\0\0\0\xf8?\0\0\0\0\0\0\x04@PK\x03\x04-\0\0\x08\0\0\0\0!\
    \0#\xb8\xf0l\xff\xff\xff\xff\xff\xff\xff\xff\x0b\0\x14\0gr\xc3\xb6\xc3\x9fe.npy\x01\0\x10\0\x88\0\0\0\0\0\0\0\
    \x88\0\0\0\0\0\0\0\x93NUMPY\x01\0v\0{'descr': '<i8', 'fortran_order': False, 'shape': (), }                     \
    \x20                                        \n\x07\0\0\0\0\0\0\0PK\x01\x02-\x03-\0\0\0\0\0\0\0!\0O\xe9\0*\x98\0\
    \0\0\x98\0\0\0\x09\0\0\0\0\0\0\0\0\0\0\0\x80\x01\0\0\0\0first.npyPK\x01\x02-\x03-\0\0\0\0\0\0\0!\0\x94\xde\x11\
    \xc8\x90\0\0\0\x90\0\0\0\n\0\0\0\0\0\0\0\0\0\0\0\x80\x01\xd3\0\0\0second.npyPK\x01\x02-\x03-\0\0\x08\0\0\0\0!\0#\
    \xb8\xf0l\x88\0\0\0\x88\0\0\0\x0b\0\0\0\0\0\0\0\0\0\0\0\x80\x01\x9f\x01\0\0gr\xc3\xb6\xc3\x9fe.npyPK\x05\x06\0\0\
    \0\0\x03\0\x03\0\xa8\0\0\0d\x02\0\0\0\0";

/// `first` (f32), `zeros` (shape `[100, 100]`, f32) and `order` (u8, the first index fastest) by `savez_compressed`.
pub(crate) const NPZ_DEFLATED: &[u8] = b"\
    PK\x03\x04-\0\0\0\x08\0\0\0!\0O\xe9\0*\xff\xff\xff\xff\xff\xff\xff\xff\x09\0\x14\0first.npy\x01\0\x10\0\x98\0\0\
    \0\0\0\0\0U\0\0\0\0\0\0\0\x9b\xec\x17\xea\x1b\x10\xc9\xc8P\xc6P\xad\x9e\x92Z\x9c\\\xa4n\xa5\xa0n\x93f\xa2\xae\
    \xa3\xa0\x9e\x96_TR\x94\x98\x17\x9f_\x94\x92\n\x12wK\xcc)N\x05\x8a\x17g$\x16\xa4\x02\xf9\x1aF:\n\xc6\x9a:\n\xb5\
    \nd\x03.\x060h\xb0\x07\x12\x0e@\x04\xc4\x0d@\xbc\xc0\x01\0PK\x03\x04-\0\0\0\x08\0\0\0!\0/\x8bzL\xff\xff\xff\xff\
    \xff\xff\xff\xff\x09\0\x14\0zeros.npy\x01\0\x10\0\xc0\x9c\0\0\0\0\0\0\x8c\0\0\0\0\0\0\0\xed\xc8\xa1\n\xc2P\0\x85\
    \xe1Y}\x8a\xdb\xae\xc2\xc2\x04\x93\x98m\x0e\x8b\xc1$\xc3\xdda\x10'wb\x11\x9f\xc2\x17v\x16\x1f\xc0\xfc}\xe1\xc0\
    \xf9\xdf\xf5~\xbb;L\x8aG\xf1\x8cm\x1aN9\xaeB\\w\xcbX\x86\xd8\xf5\xf9\x9e\x9b\xeb\xb1\xcfm\xfa\xf6Ms\x19\xd2\xd8\
    \x87ssK\xe3\x9f-\xaa\xaa\x0c\xe3\xcc\xcb\xf0\n\x7f\x99\x16\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\xc0\xcf\x07PK\x03\x04-\0\0\0\x08\0\0\0!\0#\xc8\xe7\xfe\xff\xff\xff\xff\xff\xff\xff\xff\
    \x09\0\x14\0order.npy\x01\0\x10\0\x86\0\0\0\0\0\0\0K\0\0\0\0\0\0\0\x9b\xec\x17\xea\x1b\x10\xc9\xc8P\xc6P\xad\x9e\
    \x92Z\x9c\\\xa4n\xa5\xa0^Sj\xa8\xae\xa3\xa0\x9e\x96_TR\x94\x98\x17\x9f_\x94\x92\n\x12\x0f)*M\x05\n\x17g$\x16\xa4\
    \x02\xb9\x1aF:\n\xc6\x9a:\n\xb5\n\xe4\x03.\x06fF\x16&V\0PK\x01\x02-\x03-\0\0\0\x08\0\0\0!\0O\xe9\0*U\0\0\0\x98\0\
    \0\0\x09\0\0\0\0\0\0\0\0\0\0\0\x80\x01\0\0\0\0first.npyPK\x01\x02-\x03-\0\0\0\x08\0\0\0!\0/\x8bzL\x8c\0\0\0\xc0\
    \x9c\0\0\x09\0\0\0\0\0\0\0\0\0\0\0\x80\x01\x90\0\0\0zeros.npyPK\x01\x02-\x03-\0\0\0\x08\0\0\0!\0#\xc8\xe7\xfeK\0\
    \0\0\x86\0\0\0\x09\0\0\0\0\0\0\0\0\0\0\0\x80\x01W\x01\0\0order.npyPK\x05\x06\0\0\0\0\x03\0\x03\0\xa5\0\0\0\xdd\
    \x01\0\0\0\0";

/// `w` (f32), `b` (`[1.5, 2.5]` of f64), `a"` and a line break (the i64 7), `u` (`[1, 2, 3]` of u8), `v` (`[9]` of
/// u32), `e` (no elements, shape `[0, 2]`, f32).
pub(crate) const SAFETENSORS: &[u8] = b"\
    P\x01\0\0\0\0\0\0{\"a\\\"\\n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F64\",\
    \"shape\":[2],\"data_offsets\":[8,24]},\"e\":{\"dtype\":\"F32\",\"shape\":[0,2],\"data_offsets\":[24,24]},\"w\":\
    {\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[24,48]},\"v\":{\"dtype\":\"U32\",\"shape\":[1],\"data_offse\
    ts\":[48,52]},\"u\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[52,55]}}  \x07\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \xf8?\0\0\0\0\0\0\x04@\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@\x09\0\0\0\x01\x02\x03";

/// `ok` (`[1.5]` of f32), `truth` (`[true, false]`), `half` (bf16), and the text `a test` under `made by`.
pub(crate) const SAFETENSORS_OTHERS: &[u8] = b"\
    \xd0\0\0\0\0\0\0\0{\"__metadata__\":{\"made by\":\"a test\"},\"ok\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offs\
    ets\":[0,4]},\"half\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[4,6]},\"truth\":{\"dtype\":\"BOOL\",\"\
    shape\":[2],\"data_offsets\":[6,8]}}  \0\0\xc0?\x80?\x01\0";

/// Of f32, version 1.
pub(crate) const NDAR_1: &[u8] = b"\
    \0\x04NDAR\0\0\0\x01\0\x05DENSE\0\x07FLOAT32\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x02\0?\0?\0\0\0\
    \x18\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@";

/// Of i64, version 2, named `x`.
pub(crate) const NDAR_2: &[u8] = b"\
    \0\x04NDAR\0\0\0\x02\x01\0\x01x\0\x05DENSE\0\x05INT64\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x02\0?\
    \0?\0\0\x000\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x05\0\0\0\0\0\
    \0\0";

/// Of f64, version 3, with a name that Java writes otherwise than UTF-8 does.
pub(crate) const NDAR_3: &[u8] = b"\
    \0\x04NDAR\0\0\0\x03\x01\0\x0bw\xc0\x80\xc3\xa9\xed\xa0\xbd\xed\xb8\x80\0\x05DENSE\0\x07FLOAT64\0\0\0\x02\0\0\0\
    \0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x02\0?\0?<\0\0\x000\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xf0?\0\0\0\0\0\0\0@\0\0\0\0\0\
    \0\x08@\0\0\0\0\0\0\x10@\0\0\0\0\0\0\x14@";

/// Of u32, version 3, the highest byte first, without a name.
pub(crate) const NDAR_BIG_ENDIAN: &[u8] = b"\
    \0\x04NDAR\0\0\0\x03\0\0\x05DENSE\0\x06UINT32\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x02\0?\0?>\0\0\
    \0\x18\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0\x05";

/// `[true, false, true]`, version 3.
pub(crate) const NDAR_BOOL: &[u8] = b"\
    \0\x04NDAR\0\0\0\x03\0\0\x05DENSE\0\x07BOOLEAN\0\0\0\x01\0\0\0\0\0\0\0\x03\0\0\0\x01\0?<\0\0\0\x03\x01\0\x01";

/// A list: `x` (f32), and the u8 5 without axes.
pub(crate) const ND_LIST: &[u8] = b"\
    \0\0\0\x02\0\x04NDAR\0\0\0\x03\x01\0\x01x\0\x05DENSE\0\x07FLOAT32\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\
    \0\0\0\x02\0?\0?<\0\0\0\x18\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@\0\x04NDAR\0\0\0\x03\0\0\x05DENSE\0\
    \x05UINT8\0\0\0\0\0\0\0\0<\0\0\0\x01\x05";

/// GGUF 3: `general.name` (`hand`), `n` (`[1, 2]` of u8), `w` (32 of 0.5 in Q4_0, shape `[1, 32]`), `b` (0 to 7 of f32,
/// shape `[2, 4]`).
pub(crate) const GGUF: &[u8] = b"\
    GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x0c\0\0\0\0\0\0\0general.name\x08\0\0\0\x04\0\0\0\0\0\0\0ha\
    nd\x01\0\0\0\0\0\0\0n\x09\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x01\x02\x01\0\0\0\0\0\0\0w\x02\0\0\0 \0\0\0\0\0\0\0\
    \x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0b\x02\0\0\0\x04\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\
    \0\0\0\0 \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\08\x99\x99\x99\x99\x99\x99\x99\x99\x99\
    \x99\x99\x99\x99\x99\x99\x99\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@\0\0\
    \xc0@\0\0\xe0@";

/// GGJT 3: the tokens `a` and `bc`, and `w` as above.
pub(crate) const GGML: &[u8] = b"\
    tjgg\x03\0\0\0\x02\0\0\0 \0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x02\0\0\0\x02\0\0\0\x01\0\0\0a\0\0\0?\x02\0\0\0b\
    c\0\0\x80\xbf\x02\0\0\0\x01\0\0\0\x02\0\0\0 \0\0\0\x01\0\0\0w\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\08\x99\
    \x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99";
