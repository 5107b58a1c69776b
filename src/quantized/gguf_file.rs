//! GGUF: named values and named tensors, behind one header. Reads versions 1 to 3, writes version 2.
//!
//! Whatever the header says of sizes is compared with the bytes that are there before memory is taken for it. An error
//! names the field and the place of its first byte, and the file where that is known: of one that is
//! [mapped](MmapedContent), not of a reader. Files in the byte order of other machines are refused.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::tensor::{QTensor, bytes_of};
use crate::base::{
    call::{Call, Site},
    dtype::DType,
    error::{Error, Result},
    ggml::GgmlDType,
    shape::Shape,
};
use crate::io::input::Input;
use crate::memory::proxy::Proxy;
use crate::ops::call::{exec::kept, place::Place};

/// Where the data of tensors begin, unless the file says otherwise: at multiples of so many bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The key under which it says otherwise.
const ALIGNMENT: &str = "general.alignment";
/// The largest alignment: what a file has of it is read into memory.
const ALIGNMENT_MAX: u64 = 1 << 20;
const DIMS_MAX: u32 = 4;
/// Arrays in arrays: what the reader calls itself for.
const DEPTH_MAX: usize = 64;
const MAGIC: &[u8; 4] = b"GGUF";

/// The version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionedMagic {
    /// Lengths of 32 bits.
    GgufV1,
    /// Lengths of 64 bits.
    GgufV2,
    /// As version 2.
    GgufV3,
}

impl VersionedMagic {
    fn length_bytes(self) -> u64 {
        if self == VersionedMagic::GgufV1 { 4 } else { 8 }
    }
}

macro_rules! values {
    ($($variant:ident $t:ty, $method:ident, $number:literal, $doc:literal;)*) => {
        /// A value of the header.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Value {
            $(#[doc = $doc] $variant($t),)*
        }

        /// The type of a [`Value`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ValueType {
            $(#[doc = $doc] $variant,)*
        }

        impl Value {
            /// Its type.
            pub fn value_type(&self) -> ValueType {
                match self {
                    $(Value::$variant(_) => ValueType::$variant,)*
                }
            }
        }

        impl ValueType {
            fn from_u32(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(ValueType::$variant),)*
                    _ => None,
                }
            }

            fn to_u32(self) -> u32 {
                match self {
                    $(ValueType::$variant => $number,)*
                }
            }
        }
    };
}
values! {
    U8 u8, to_u8, 0, "An integer.";
    I8 i8, to_i8, 1, "An integer.";
    U16 u16, to_u16, 2, "An integer.";
    I16 i16, to_i16, 3, "An integer.";
    U32 u32, to_u32, 4, "An integer.";
    I32 i32, to_i32, 5, "An integer.";
    F32 f32, to_f32, 6, "A float.";
    Bool bool, to_bool, 7, "A truth value.";
    String String, to_string, 8, "A text. What is no UTF-8 in a file becomes the sign for that; zeros at the end are left off.";
    Array Vec<Value>, to_vec, 9, "Values of one type.";
    U64 u64, to_u64, 10, "An integer.";
    I64 i64, to_i64, 11, "An integer.";
    F64 f64, to_f64, 12, "A float.";
}

macro_rules! getters {
    ($($method:ident $variant:ident $t:ty;)*) => {
        impl Value {
            $(
                /// The value, if it has this type.
                ///
                /// # Errors
                /// [`Error::Invalid`].
                #[track_caller]
                pub fn $method(&self) -> Result<$t> {
                    match self {
                        Value::$variant(value) => Ok(*value),
                        _ => Err(self.is_no(stringify!($method), stringify!($t))),
                    }
                }
            )*
        }
    };
}
getters! {
    to_u8 U8 u8; to_i8 I8 i8; to_u16 U16 u16; to_i16 I16 i16; to_u32 U32 u32; to_i32 I32 i32; to_i64 I64 i64;
    to_f32 F32 f32; to_f64 F64 f64; to_bool Bool bool;
}

impl Value {
    #[track_caller]
    fn is_no(&self, op: &'static str, wanted: &str) -> Error {
        // Arrays of values may be long.
        Error::invalid(Call::here(op), format!("the value is no {wanted}, but {:?}", self.value_type()))
    }

    /// The value, if it is an unsigned integer of any size, or a truth value.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    #[track_caller]
    pub fn to_u64(&self) -> Result<u64> {
        match *self {
            Value::U64(value) => Ok(value),
            Value::U32(value) => Ok(value.into()),
            Value::U16(value) => Ok(value.into()),
            Value::U8(value) => Ok(value.into()),
            Value::Bool(value) => Ok(value.into()),
            _ => Err(self.is_no("to_u64", "u64")),
        }
    }

    /// The values, if it is an array.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    #[track_caller]
    pub fn to_vec(&self) -> Result<&Vec<Value>> {
        match self {
            Value::Array(values) => Ok(values),
            _ => Err(self.is_no("to_vec", "array")),
        }
    }

    /// The text, if it is one.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    #[track_caller]
    #[allow(clippy::inherent_to_string_shadow_display, clippy::wrong_self_convention)] // candle's name
    pub fn to_string(&self) -> Result<&String> {
        match self {
            Value::String(text) => Ok(text),
            _ => Err(self.is_no("to_string", "string")),
        }
    }

    fn append(&self, to: &mut Vec<u8>, depth: usize) -> Result<()> {
        match self {
            Value::U8(x) => to.push(*x),
            Value::I8(x) => to.extend(x.to_le_bytes()),
            Value::U16(x) => to.extend(x.to_le_bytes()),
            Value::I16(x) => to.extend(x.to_le_bytes()),
            Value::U32(x) => to.extend(x.to_le_bytes()),
            Value::I32(x) => to.extend(x.to_le_bytes()),
            Value::U64(x) => to.extend(x.to_le_bytes()),
            Value::I64(x) => to.extend(x.to_le_bytes()),
            Value::F32(x) => to.extend(x.to_le_bytes()),
            Value::F64(x) => to.extend(x.to_le_bytes()),
            Value::Bool(x) => to.push(u8::from(*x)),
            Value::String(text) => append_text(text, to),
            Value::Array(_) if depth >= DEPTH_MAX => {
                let why = format!("the nesting depth of arrays is more than {DEPTH_MAX}");
                return Err(Error::file(None, None, why));
            }
            Value::Array(all) => {
                // Of no value, any type will do.
                let kind = all.first().map_or(ValueType::U32, Value::value_type);
                if let Some(other) = all.iter().find(|value| value.value_type() != kind) {
                    let why = format!("an array of both {kind:?} and {:?}; it has one type", other.value_type());
                    return Err(Error::file(None, None, why));
                }
                to.extend(kind.to_u32().to_le_bytes());
                to.extend((all.len() as u64).to_le_bytes());
                all.iter().try_for_each(|value| value.append(to, depth + 1))?;
            }
        }
        Ok(())
    }
}

fn append_text(text: &str, to: &mut Vec<u8>) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}

/// What the header says of a tensor.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// The format of its numbers.
    pub ggml_dtype: GgmlDType,
    /// Its shape, the last axis fastest.
    pub shape: Shape,
    /// Bytes from the start of the data.
    pub offset: u64,
}

impl TensorInfo {
    /// Reads the blocks.
    ///
    /// # Errors
    /// [`Error::File`] if they are not all there, or the shape is not one of whole blocks; as [`Proxy::zeros`].
    #[track_caller]
    pub fn read<R: Read + Seek, P: Place + ?Sized>(
        &self,
        reader: &mut R,
        tensor_data_offset: u64,
        at: &P,
    ) -> Result<QTensor> {
        self.read_named(None, reader, tensor_data_offset, at)
    }

    #[track_caller]
    fn read_named<R: Read + Seek, P: Place + ?Sized>(
        &self,
        name: Option<&str>,
        reader: &mut R,
        tensor_data_offset: u64,
        at: &P,
    ) -> Result<QTensor> {
        let site = Location::caller();
        let unreadable = unreadable(site);
        let end = reader.seek(SeekFrom::End(0)).map_err(&unreadable)?;
        let mut input = Input::new(reader, None, end);
        let range = self.range(name, &input, tensor_data_offset)?;
        // The reader is at its end, where the input does not know it to be.
        input.reader_mut().seek(SeekFrom::Start(0)).map_err(unreadable)?;
        input.seek(range.start)?;
        let bytes = input.bytes(range.end - range.start, "the tensor")?;
        let len = bytes.len();
        kept(site, || QTensor::from_blocks(Proxy::from_vec(bytes, len, at)?, self.ggml_dtype, self.shape))
    }

    /// Where the blocks lie in the file.
    fn range<R>(&self, name: Option<&str>, input: &Input<R>, data: u64) -> Result<Range<u64>> {
        let fail = |at: u64, why: String| match name {
            Some(name) => input.fail_at(at, format!("tensor `{}`: {why}", name.escape_debug())),
            None => input.fail_at(at, format!("the tensor: {why}")),
        };
        let start = data.saturating_add(self.offset);
        let bytes =
            bytes_of("read", &self.shape, self.ggml_dtype).map_err(|error| fail(start, error.to_string()))? as u64;
        let left = input.end().saturating_sub(start);
        if bytes > left {
            return Err(fail(start, format!("the data take {bytes} bytes, and {left} are remaining")));
        }
        Ok(start..start + bytes)
    }
}

/// What is said, to who called at `site`, of a reader that fails.
pub(super) fn unreadable(site: Site) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::file(None, None, format!("cannot be read: {error}")).at(site)
}

/// The header of a file.
///
/// ```
/// # use std::io::Cursor;
/// # use ndgc::{DType, Device, Tensor, quantized::{GgmlDType, QTensor, gguf_file}};
/// let w = QTensor::quantize(&Tensor::ones((2, 32), DType::F32, &Device::Cpu)?, GgmlDType::Q4_0)?;
/// let mut file = Cursor::new(Vec::new());
/// gguf_file::write(&mut file, &[("layers", &gguf_file::Value::U32(1))], &[("w", &w)])?;
/// file.set_position(0);
/// let content = gguf_file::Content::read(&mut file)?;
/// assert_eq!(content.metadata["layers"].to_u32()?, 1);
/// let w = content.tensor(&mut file, "w", &Device::Cpu)?;
/// assert_eq!(w.dequantize(&Device::Cpu)?.to_vec2::<f32>()?, [[1.; 32]; 2]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Debug)]
pub struct Content {
    /// The version.
    pub magic: VersionedMagic,
    /// Values by name.
    pub metadata: HashMap<String, Value>,
    /// Tensors by name.
    pub tensor_infos: HashMap<String, TensorInfo>,
    /// Where the data of the tensors begin, from the start of the file.
    pub tensor_data_offset: u64,
}

impl Content {
    /// Reads the header, which begins where the reader stands. Tensors are not looked for yet.
    ///
    /// # Errors
    /// [`Error::File`].
    #[track_caller]
    pub fn read<R: Read + Seek>(reader: &mut R) -> Result<Self> {
        let unreadable = unreadable(Location::caller());
        let start = reader.stream_position().map_err(&unreadable)?;
        let end = reader.seek(SeekFrom::End(0)).map_err(&unreadable)?;
        reader.seek(SeekFrom::Start(0)).map_err(unreadable)?;
        // A header is many short reads.
        let mut input = Input::new(BufReader::new(reader), None, end);
        input.seek(start)?;
        Header::read(input)
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`]; as [`TensorInfo::read`].
    #[track_caller]
    pub fn tensor<R: Read + Seek, P: Place + ?Sized>(&self, reader: &mut R, name: &str, at: &P) -> Result<QTensor> {
        self.info(name, None)?.read_named(Some(name), reader, self.tensor_data_offset, at)
    }

    #[track_caller]
    fn info(&self, name: &str, file: Option<&Path>) -> Result<&TensorInfo> {
        match self.tensor_infos.get(name) {
            Some(info) => Ok(info),
            None => Err(Error::no_tensor(name, file, self.tensor_infos.keys())),
        }
    }
}

/// A header that is being read.
struct Header<R> {
    input: Input<R>,
    magic: VersionedMagic,
}

impl<R: Read> Header<R> {
    fn read(mut input: Input<R>) -> Result<Content> {
        let at = input.at();
        let magic: [u8; 4] = input.array("the first four bytes")?;
        if magic != *MAGIC {
            let why =
                format!("this is no GGUF file of this machine's byte order: begins with {}", magic.escape_ascii());
            return Err(input.fail_at(at, why));
        }
        let at = input.at();
        let magic = match u32::from_le_bytes(input.array("the version")?) {
            1 => VersionedMagic::GgufV1,
            2 => VersionedMagic::GgufV2,
            3 => VersionedMagic::GgufV3,
            version => return Err(input.fail_at(at, format!("version {version} of GGUF; 1, 2 and 3 are read"))),
        };
        let mut header = Header { input, magic };
        let length = magic.length_bytes();
        let tensors = header.count("tensor_count", length + 4 + 4 + 8)?;
        let values = header.count("metadata_kv_count", length + 4 + 1)?;
        let mut metadata = HashMap::new();
        for _ in 0..values {
            let at = header.input.at();
            let name = header.text("the name of a value")?;
            let field = format!("value `{}`", name.escape_debug());
            let kind = header.value_type(&field)?;
            let value = header.value(kind, &field, 0)?;
            if metadata.insert(name, value).is_some() {
                return Err(header.input.fail_at(at, format!("{field} comes twice")));
            }
        }
        let mut tensor_infos = HashMap::new();
        for _ in 0..tensors {
            let at = header.input.at();
            let name = header.text("the name of a tensor")?;
            let field = format!("tensor `{}`", name.escape_debug());
            let info = header.info(&field)?;
            if tensor_infos.insert(name, info).is_some() {
                return Err(header.input.fail_at(at, format!("{field} comes twice")));
            }
        }
        let end = header.input.at();
        let alignment = alignment(metadata.get(ALIGNMENT)).map_err(|why| header.input.fail_at(end, why))?;
        let tensor_data_offset = end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        Ok(Content { magic, metadata, tensor_infos, tensor_data_offset })
    }

    fn length(&mut self, what: &str) -> Result<u64> {
        match self.magic {
            VersionedMagic::GgufV1 => Ok(u32::from_le_bytes(self.input.array(what)?).into()),
            _ => Ok(u64::from_le_bytes(self.input.array(what)?)),
        }
    }

    /// A number of things that have so many bytes at least, which must be there.
    fn count(&mut self, what: &str, least: u64) -> Result<u64> {
        let at = self.input.at();
        let count = self.length(what)?;
        let (needed, left) = (count.saturating_mul(least), self.input.end().saturating_sub(self.input.at()));
        if needed > left {
            let why = format!("{what} {count} takes {needed} bytes at least, and {left} are remaining");
            return Err(self.input.fail_at(at, why));
        }
        Ok(count)
    }

    fn text(&mut self, what: &str) -> Result<String> {
        let length = self.count(&format!("{what}: string length"), 1)?;
        let bytes = self.input.bytes(length, what)?;
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Ok(String::from_utf8_lossy(&bytes[..used]).into_owned())
    }

    fn value_type(&mut self, field: &str) -> Result<ValueType> {
        let at = self.input.at();
        let number = u32::from_le_bytes(self.input.array(field)?);
        let unknown = || self.input.fail_at(at, format!("{field}: there is no value type {number}"));
        ValueType::from_u32(number).ok_or_else(unknown)
    }

    fn value(&mut self, kind: ValueType, field: &str, depth: usize) -> Result<Value> {
        macro_rules! number {
            ($t:ty) => {
                <$t>::from_le_bytes(self.input.array(field)?)
            };
        }
        Ok(match kind {
            ValueType::U8 => Value::U8(number!(u8)),
            ValueType::I8 => Value::I8(number!(i8)),
            ValueType::U16 => Value::U16(number!(u16)),
            ValueType::I16 => Value::I16(number!(i16)),
            ValueType::U32 => Value::U32(number!(u32)),
            ValueType::I32 => Value::I32(number!(i32)),
            ValueType::U64 => Value::U64(number!(u64)),
            ValueType::I64 => Value::I64(number!(i64)),
            ValueType::F32 => Value::F32(number!(f32)),
            ValueType::F64 => Value::F64(number!(f64)),
            ValueType::Bool => match number!(u8) {
                byte @ 0..2 => Value::Bool(byte == 1),
                byte => {
                    let at = self.input.at() - 1;
                    return Err(self.input.fail_at(at, format!("{field}: {byte} is no truth value; 0 and 1 are")));
                }
            },
            ValueType::String => Value::String(self.text(field)?),
            ValueType::Array => Value::Array(self.values(field, depth + 1)?),
        })
    }

    fn values(&mut self, field: &str, depth: usize) -> Result<Vec<Value>> {
        if depth > DEPTH_MAX {
            return Err(self.input.fail(format!("{field}: the nesting depth of arrays is more than {DEPTH_MAX}")));
        }
        let kind = self.value_type(field)?;
        let least = match kind {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 => 8,
            ValueType::String => self.magic.length_bytes(),
            ValueType::Array => 4 + self.magic.length_bytes(),
        };
        let count = self.count(&format!("{field}: array length"), least)?;
        let mut values = Vec::new();
        for _ in 0..count {
            // Each takes more memory than it has bytes in the file.
            values.try_reserve(1).map_err(|_| self.input.fail(format!("{field}: no memory for {count} values")))?;
            values.push(self.value(kind, field, depth)?);
        }
        Ok(values)
    }

    fn info(&mut self, field: &str) -> Result<TensorInfo> {
        let at = self.input.at();
        let rank = u32::from_le_bytes(self.input.array(field)?);
        if rank > DIMS_MAX {
            return Err(self.input.fail_at(at, format!("{field}: {rank} dimensions; {DIMS_MAX} is the most")));
        }
        let mut dims = Vec::new();
        for _ in 0..rank {
            let at = self.input.at();
            let dim = self.length(field)?;
            let dim = usize::try_from(dim);
            dims.push(dim.map_err(|_| self.input.fail_at(at, format!("{field}: a size of more than can be counted")))?);
        }
        // The file has the fastest axis first.
        dims.reverse();
        let at = self.input.at();
        let number = u32::from_le_bytes(self.input.array(field)?);
        let unknown = || self.input.fail_at(at, format!("{field}: blocks of type {number} cannot be read"));
        let ggml_dtype = GgmlDType::from_u32(number).ok_or_else(unknown)?;
        let offset = u64::from_le_bytes(self.input.array(field)?);
        Ok(TensorInfo { ggml_dtype, shape: Shape::from(dims), offset })
    }
}

/// What the data of tensors are aligned to.
fn alignment(value: Option<&Value>) -> std::result::Result<u64, String> {
    let found = match value {
        None => return Ok(DEFAULT_ALIGNMENT),
        Some(Value::I8(x)) => u64::try_from(*x).ok(),
        Some(Value::I16(x)) => u64::try_from(*x).ok(),
        Some(Value::I32(x)) => u64::try_from(*x).ok(),
        Some(value) => value.to_u64().ok(),
    };
    let wrong = || format!("{ALIGNMENT} is no power of two up to {ALIGNMENT_MAX}: {value:?}");
    found.filter(|found| found.is_power_of_two() && *found <= ALIGNMENT_MAX).ok_or_else(wrong)
}

/// Writes a file of version 2, where the writer stands.
///
/// # Errors
/// [`Error::File`] if it cannot be written, or could not be read again: an array of values is of several types or too
/// deep, a name comes twice or ends with a zero, a tensor has more than four axes; as [`QTensor::data`].
#[track_caller]
pub fn write<W: Seek + Write>(w: &mut W, metadata: &[(&str, &Value)], tensors: &[(&str, &QTensor)]) -> Result<()> {
    Call::here("gguf_file::write").named(put(w, metadata, tensors))
}

fn put<W: Seek + Write>(w: &mut W, metadata: &[(&str, &Value)], tensors: &[(&str, &QTensor)]) -> Result<()> {
    let failed = |error: std::io::Error| {
        let why = format!("cannot be written: {error}");
        Error::file(None, None, why)
    };
    let said = metadata.iter().find(|(name, _)| *name == ALIGNMENT).map(|(_, value)| *value);
    let alignment = alignment(said).map_err(|why| Error::file(None, None, why))?;
    let padded = |bytes: u64| bytes.next_multiple_of(alignment);
    writable(metadata, tensors).map_err(|why| Error::file(None, None, why))?;
    let mut header = Vec::from(MAGIC);
    header.extend(2u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (name, value) in metadata {
        append_text(name, &mut header);
        header.extend(value.value_type().to_u32().to_le_bytes());
        value.append(&mut header, 0)?;
    }
    let mut offset = 0;
    for (name, tensor) in tensors {
        append_text(name, &mut header);
        header.extend((tensor.rank() as u32).to_le_bytes());
        tensor.shape().dims().iter().rev().for_each(|&dim| header.extend((dim as u64).to_le_bytes()));
        header.extend(tensor.dtype().to_u32().to_le_bytes());
        header.extend(u64::to_le_bytes(offset));
        offset = padded(offset + tensor.storage_size_in_bytes() as u64);
    }
    let start = w.stream_position().map_err(failed)?;
    let end = start + header.len() as u64;
    header.resize((padded(end) - start) as usize, 0);
    w.write_all(&header).map_err(failed)?;
    for (_, tensor) in tensors {
        let data = tensor.data()?;
        w.write_all(&data).map_err(failed)?;
        let bytes = data.len() as u64;
        w.write_all(&vec![0; (padded(bytes) - bytes) as usize]).map_err(failed)?;
    }
    Ok(())
}

/// Whether what is written could be read again; else why not.
fn writable(metadata: &[(&str, &Value)], tensors: &[(&str, &QTensor)]) -> std::result::Result<(), String> {
    let (mut keys, mut names) = (HashSet::new(), HashSet::new());
    let all = metadata.iter().map(|(name, _)| ("value", *name, keys.insert(*name)));
    for (what, name, is_new) in all.chain(tensors.iter().map(|(name, _)| ("tensor", *name, names.insert(*name)))) {
        if !is_new {
            return Err(format!("{what} `{}` comes twice", name.escape_debug()));
        }
        if name.ends_with('\0') {
            return Err(format!("{what} `{}` ends with a zero, which a reader takes off", name.escape_debug()));
        }
    }
    if let Some((name, _)) = tensors.iter().find(|(_, tensor)| tensor.rank() > DIMS_MAX as usize) {
        return Err(format!("tensor `{}` has more than {DIMS_MAX} dimensions", name.escape_debug()));
    }
    Ok(())
}

/// Bytes that several arrays share.
type SharedFile = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A GGUF file that is mapped into memory: the blocks of a tensor on the host are the file's own bytes, without a copy.
///
/// They stay mapped until the last of them has gone, also if this value goes first, and are not counted with the
/// device's bytes, of which they are none. On another device blocks are a copy.
pub struct MmapedContent {
    content: Content,
    path: PathBuf,
    bytes: SharedFile,
}

impl fmt::Debug for MmapedContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MmapedContent({} tensors of {})", self.content.tensor_infos.len(), self.path.display())
    }
}

impl MmapedContent {
    /// The content of a file whose bytes are in memory.
    #[track_caller]
    pub(crate) fn of(path: &Path, bytes: SharedFile) -> Result<Self> {
        let data = (*bytes).as_ref();
        let content = Header::read(Input::new(data, Some(path.to_owned()), data.len() as u64))?;
        Ok(MmapedContent { content, path: path.to_owned(), bytes })
    }

    /// The header.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// A tensor, of the file's own bytes if it is put on the host. It is there to be kept: no workspace takes it.
    ///
    /// # Errors
    /// As [`Content::tensor`].
    #[track_caller]
    pub fn tensor<P: Place + ?Sized>(&self, name: &str, at: &P) -> Result<QTensor> {
        let info = self.content.info(name, Some(&self.path))?;
        let data = (*self.bytes).as_ref();
        let input = Input::new(data, Some(self.path.clone()), data.len() as u64);
        let Range { start, end } = info.range(Some(name), &input, self.content.tensor_data_offset)?;
        // Inside of what is mapped, so an address can count them.
        let (range, len) = (start as usize..end as usize, (end - start) as usize);
        kept(Location::caller(), || {
            let blocks = Proxy::from_shared(Arc::clone(&self.bytes), range, DType::U8, len, at)?;
            QTensor::from_blocks(blocks, info.ggml_dtype, info.shape)
        })
    }
}
