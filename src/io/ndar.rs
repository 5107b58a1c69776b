//! DJL's NDAR: an array with its name, and NDLists of them. Reads versions 1 to 3, writes 3.
//!
//! Everything but the elements is big-endian; texts are Java's modified UTF-8 behind their length. Version 1 has no
//! name, and before version 3 there is no word on the order of the elements' bytes: it was that of the machine, for
//! which little-endian is taken. dtypes: all, under DJL's names (BOOLEAN, UINT8, .., FLOAT16, BFLOAT16, ..).

use std::io::{Read, Write};
use std::path::Path;

use super::element::{Order, READABLE, Stored};
use super::input::Input;
use super::output::{self, OutputWriter};
use super::{Loaded, named, npy, npz, safetensors};
use crate::base::order::sort_by;
use crate::{DType, Place, Result, Tensor};

const MAGIC: &str = "NDAR";
const VERSION: u32 = 3;
/// No array takes fewer bytes.
const ARRAY_BYTES_MIN: u64 = 24;
/// More than any array has.
const RANK_MAX: u32 = 64;
/// What DJL writes for an axis of no special meaning.
const LAYOUT_UNKNOWN: u8 = b'?';

/// Reads a file of one array. A name in it becomes the array's name.
///
/// # Errors
/// [`Error::File`](crate::Error::File); as [`Tensor::zeros`].
#[track_caller]
pub fn read<F: AsRef<Path>, P: Place + ?Sized>(path: F, at: &P) -> Result<Tensor> {
    array(&mut Input::open(path.as_ref())?, at)
}

/// Reads the bytes of one array.
///
/// # Errors
/// As [`read`].
///
/// ```
/// # use ndgc::{ndar, Device, Tensor};
/// let a = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
/// a.set_name("weight")?;
/// let b = ndar::decode(&ndar::encode(&a)?, &Device::Cpu)?;
/// assert_eq!((b.name().as_deref(), b.to_vec1::<f32>()?), (Some("weight"), vec![1., 2.]));
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn decode<P: Place + ?Sized>(bytes: &[u8], at: &P) -> Result<Tensor> {
    array(&mut Input::buffer(bytes), at)
}

/// Writes an array of any layout with its name. Replaces a file of this name when it is complete.
///
/// # Errors
/// [`Error::File`](crate::Error::File), also for 2 GiB and more, which the format cannot say; as [`Tensor::to_vec`].
#[track_caller]
pub fn write<F: AsRef<Path>>(array: &Tensor, path: F) -> Result<()> {
    output::save(path.as_ref(), |out| put(array, out))
}

/// The bytes of an array with its name.
///
/// # Errors
/// As [`write()`].
#[track_caller]
pub fn encode(array: &Tensor) -> Result<Vec<u8>> {
    let mut out = OutputWriter::new(Vec::new(), None);
    put(array, &mut out)?;
    Ok(out.into_inner())
}

/// Reads a list: an NDList, or, as DJL does, whatever else the first bytes show it to be (npy, npz, safetensors).
/// Names become the arrays' names.
///
/// # Errors
/// As [`read`].
#[track_caller]
pub fn read_list<F: AsRef<Path>, P: Place + ?Sized>(path: F, at: &P) -> Result<Vec<Tensor>> {
    let mut input = Input::open(path.as_ref())?;
    let head = input.bytes(input.end().min(9), "the head of a list")?;
    match FileKind::of(&head) {
        FileKind::Npz => all_named(npz::read(path, at)?),
        FileKind::Npy => Ok(vec![npy::read(path, at)?]),
        FileKind::Safetensors => all_named(sorted(safetensors::load(path, at)?)),
        FileKind::List => {
            input.seek(0)?;
            list(&mut input, at)
        }
    }
}

/// Reads the bytes of a list. See [`read_list`].
///
/// # Errors
/// As [`read_list`].
#[track_caller]
pub fn decode_list<P: Place + ?Sized>(bytes: &[u8], at: &P) -> Result<Vec<Tensor>> {
    match FileKind::of(bytes) {
        FileKind::Npz => all_named(npz::decode(bytes, at)?),
        FileKind::Npy => Ok(vec![npy::decode(bytes, at)?]),
        FileKind::Safetensors => all_named(sorted(safetensors::load_buffer(bytes, at)?)),
        FileKind::List => list(&mut Input::buffer(bytes), at),
    }
}

/// Writes an NDList. Replaces a file of this name when it is complete.
///
/// # Errors
/// As [`write()`].
#[track_caller]
pub fn write_list<T: AsRef<Tensor>, F: AsRef<Path>>(arrays: &[T], path: F) -> Result<()> {
    output::save(path.as_ref(), |out| put_list(arrays, out))
}

/// The bytes of an NDList.
///
/// # Errors
/// As [`write()`].
#[track_caller]
pub fn encode_list<T: AsRef<Tensor>>(arrays: &[T]) -> Result<Vec<u8>> {
    let mut out = OutputWriter::new(Vec::new(), None);
    put_list(arrays, &mut out)?;
    Ok(out.into_inner())
}

/// What a list may be.
enum FileKind {
    Npz,
    Npy,
    Safetensors,
    List,
}

impl FileKind {
    fn of(head: &[u8]) -> Self {
        match head {
            [b'P', b'K', ..] => FileKind::Npz,
            [b'\x93', b'N', b'U', b'M', ..] => FileKind::Npy,
            [_, _, _, _, _, _, _, _, b'{', ..] => FileKind::Safetensors,
            _ => FileKind::List,
        }
    }
}

fn sorted(arrays: std::collections::HashMap<String, Tensor>) -> Vec<(String, Tensor)> {
    let mut arrays: Vec<_> = arrays.into_iter().collect();
    sort_by(&mut arrays, |(a, _), (b, _)| a.cmp(b));
    arrays
}

/// Arrays under their names; all closed if one refuses.
fn all_named(arrays: Vec<(String, Tensor)>) -> Result<Vec<Tensor>> {
    let loaded = Loaded(arrays);
    for (name, array) in &loaded.0 {
        array.set_name(name)?;
    }
    Ok(loaded.done().into_iter().map(|(_, array)| array).collect())
}

#[track_caller]
fn list<R: Read, P: Place + ?Sized>(input: &mut Input<R>, at: &P) -> Result<Vec<Tensor>> {
    let count = u32::from_be_bytes(input.array("the number of arrays")?);
    // Also refuses what Java reads as a negative number.
    input.need(u64::from(count) * ARRAY_BYTES_MIN, &format!("a list of {count} arrays"))?;
    let mut loaded = Loaded::default();
    for _ in 0..count {
        loaded.push(String::new(), array(input, at)?);
    }
    Ok(loaded.done().into_iter().map(|(_, array)| array).collect())
}

#[track_caller]
fn array<R: Read, P: Place + ?Sized>(input: &mut Input<R>, at: &P) -> Result<Tensor> {
    let start = input.at();
    if text(input, "the head of an NDAR array")? != MAGIC {
        return Err(input.fail_at(start, "no NDAR array begins here"));
    }
    let version = u32::from_be_bytes(input.array("the version")?);
    if version == 0 || version > VERSION {
        return Err(input.fail_at(start, format!("NDAR version {version}; 1 to {VERSION} can be read")));
    }
    let name =
        if version > 1 && input.array("the mark of a name")? == [1] { Some(text(input, "the name")?) } else { None };
    let sparse = text(input, "the sparse format")?;
    if !matches!(&sparse[..], "DENSE" | "UNDEFINED") {
        return Err(input.fail(format!("sparse format {}; only DENSE can be read", sparse.escape_debug())));
    }
    let dtype = text(input, "the dtype")?;
    let Some(mut stored) = stored(&dtype) else {
        return Err(input.fail(format!("dtype {}; {READABLE} can be read", dtype.escape_debug())));
    };
    let dims = shape(input)?;
    if version > 2 && input.array("the byte order")? == [b'>'] {
        stored.order = Order::Big;
    }
    let bytes = u32::from_be_bytes(input.array("the number of bytes")?);
    let count = input.elem_count(&dims, stored.dtype)?;
    if count as u64 * stored.dtype.size_in_bytes() as u64 != u64::from(bytes) {
        return Err(input.fail(format!("{bytes} bytes for {dtype} of shape {dims:?}")));
    }
    let array = input.tensor(stored, &dims, false, at)?;
    match name {
        Some(name) => named(array, &name),
        None => Ok(array),
    }
}

fn shape<R: Read>(input: &mut Input<R>) -> Result<Vec<usize>> {
    let start = input.at();
    let rank = u32::from_be_bytes(input.array("the number of axes")?);
    if rank > RANK_MAX {
        return Err(input.fail_at(start, format!("a shape of {rank} axes")));
    }
    let mut dims = Vec::new();
    for _ in 0..rank {
        let dim = i64::from_be_bytes(input.array("the size of an axis")?);
        dims.push(usize::try_from(dim).map_err(|_| input.fail(format!("an axis of size {dim}")))?);
    }
    let letters = u32::from_be_bytes(input.array("the number of letters of the layout")?);
    if letters != rank {
        return Err(input.fail(format!("{letters} letters of layout for {rank} axes")));
    }
    input.bytes(2 * u64::from(letters), "the layout")?;
    Ok(dims)
}

#[track_caller]
fn put_list<T: AsRef<Tensor>, W: Write>(arrays: &[T], out: &mut OutputWriter<W>) -> Result<()> {
    let count = i32::try_from(arrays.len()).map_err(|_| out.fail(format!("a list of {} arrays", arrays.len())))?;
    out.put(&count.to_be_bytes())?;
    for array in arrays {
        put(array.as_ref(), out)?;
    }
    Ok(())
}

#[track_caller]
fn put<W: Write>(array: &Tensor, out: &mut OutputWriter<W>) -> Result<()> {
    let (dtype, dims) = (array.dtype(), array.dims());
    let bytes = dims.iter().product::<usize>() * dtype.size_in_bytes();
    let Ok(bytes) = i32::try_from(bytes) else {
        return Err(out.fail(format!("NDAR has no room for an array of {bytes} bytes; use npy or safetensors")));
    };
    let mut head = Vec::new();
    put_text(MAGIC, &mut head, out)?;
    head.extend_from_slice(&VERSION.to_be_bytes());
    match array.name() {
        Some(name) => {
            head.push(1);
            put_text(&name, &mut head, out)?;
        }
        None => head.push(0),
    }
    put_text("DENSE", &mut head, out)?;
    put_text(name_of(dtype), &mut head, out)?;
    let rank = (dims.len() as u32).to_be_bytes();
    head.extend_from_slice(&rank);
    dims.iter().for_each(|dim| head.extend_from_slice(&(*dim as u64).to_be_bytes()));
    head.extend_from_slice(&rank);
    dims.iter().for_each(|_| head.extend_from_slice(&[0, LAYOUT_UNKNOWN]));
    head.push(b'<');
    head.extend_from_slice(&bytes.to_be_bytes());
    out.put(&head)?;
    out.elements(array, (dtype, dims))
}

fn stored(name: &str) -> Option<Stored> {
    DType::ALL.into_iter().find(|&dtype| name_of(dtype) == name).map(Stored::little)
}

fn name_of(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "BOOLEAN",
        DType::U8 => "UINT8",
        DType::U16 => "UINT16",
        DType::U32 => "UINT32",
        DType::U64 => "UINT64",
        DType::I8 => "INT8",
        DType::I16 => "INT16",
        DType::I32 => "INT32",
        DType::I64 => "INT64",
        DType::F8E4M3 => "FLOAT8_E4M3",
        DType::F16 => "FLOAT16",
        DType::BF16 => "BFLOAT16",
        DType::F32 => "FLOAT32",
        DType::F64 => "FLOAT64",
    }
}

/// A text in Java's modified UTF-8: the 16-bit units of UTF-16, each in one to three bytes.
fn text<R: Read>(input: &mut Input<R>, what: &str) -> Result<String> {
    let length = u16::from_be_bytes(input.array(what)?);
    let start = input.at();
    let bytes = input.bytes(u64::from(length), what)?;
    units(&bytes)
        .and_then(|units| String::from_utf16(&units).ok())
        .ok_or_else(|| input.fail_at(start, format!("{what} is not text")))
}

fn units(mut bytes: &[u8]) -> Option<Vec<u16>> {
    let mut units = Vec::new();
    let low = |byte: u8| (byte & 0xC0 == 0x80).then_some(u16::from(byte & 0x3F));
    while let [first, rest @ ..] = bytes {
        let first = u16::from(*first);
        let (unit, rest) = match (first, rest) {
            (0..0x80, rest) => (first, rest),
            (0xC0..0xE0, [second, rest @ ..]) => ((first & 0x1F) << 6 | low(*second)?, rest),
            (0xE0..0xF0, [second, third, rest @ ..]) => {
                ((first & 0x0F) << 12 | low(*second)? << 6 | low(*third)?, rest)
            }
            _ => return None,
        };
        units.push(unit);
        bytes = rest;
    }
    Some(units)
}

fn put_text<W: Write>(text: &str, head: &mut Vec<u8>, out: &OutputWriter<W>) -> Result<()> {
    let mut bytes = Vec::new();
    for unit in text.encode_utf16() {
        let low = |shift: u16| 0x80 | (unit >> shift & 0x3F) as u8;
        match unit {
            1..0x80 => bytes.push(unit as u8),
            0..0x800 => bytes.extend_from_slice(&[0xC0 | (unit >> 6) as u8, low(0)]),
            _ => bytes.extend_from_slice(&[0xE0 | (unit >> 12) as u8, low(6), low(0)]),
        }
    }
    let Ok(length) = u16::try_from(bytes.len()) else {
        return Err(out.fail(format!("the name takes {} bytes; NDAR has room for 65535", bytes.len())));
    };
    head.extend_from_slice(&length.to_be_bytes());
    head.extend(bytes);
    Ok(())
}
