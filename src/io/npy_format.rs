//! The bytes of an npy file, alone or in an archive. The header is a Python literal, of which exactly the dictionary
//! that the format describes is understood.

use std::io::{Read, Write};

use super::element::{Order, READABLE, Stored};
use super::input::Input;
use super::output::OutputWriter;
use crate::{DType, Error, Place, Result, Tensor};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Far more than a header with the largest number of axes needs.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// The data begin at a multiple of this.
const ALIGN: usize = 64;

/// What a header says.
#[derive(Debug)]
pub(super) struct NpyHeader {
    pub(super) stored: Stored,
    pub(super) first_fastest: bool,
    pub(super) dims: Vec<usize>,
}

/// Reads what is next: a whole file.
#[track_caller]
pub(super) fn array<R: Read, P: Place + ?Sized>(input: &mut Input<R>, at: &P) -> Result<Tensor> {
    let header = read_header(input)?;
    input.tensor(header.stored, &header.dims, header.first_fastest, at)
}

pub(super) fn read_header<R: Read>(input: &mut Input<R>) -> Result<NpyHeader> {
    let [magic @ .., major, minor] = input.array::<8>("the head of an npy file")?;
    if magic != *MAGIC {
        return Err(input.fail_at(0, "this is no npy file: it does not begin with \\x93NUMPY"));
    }
    let length = match (major, minor) {
        (1, 0) => u64::from(u16::from_le_bytes(input.array("the length of the header")?)),
        (2 | 3, 0) => u64::from(u32::from_le_bytes(input.array("the length of the header")?)),
        _ => return Err(input.fail_at(6, format!("npy version {major}.{minor}; 1.0, 2.0 and 3.0 can be read"))),
    };
    if length > HEADER_BYTES_MAX {
        return Err(input.fail(format!("a header of {length} bytes; at most {HEADER_BYTES_MAX} are read")));
    }
    let start = input.at();
    let text = input.bytes(length, "the header")?;
    let parsed = Parser { text: &text, at: 0 }.header().map_err(|(at, why)| input.fail_at(start + at as u64, why))?;
    input.elem_count(&parsed.dims, parsed.stored.dtype)?;
    Ok(parsed)
}

/// Where in a header, and why.
type Wrong = (usize, String);

/// Reads the literal of a header.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn header(mut self) -> std::result::Result<NpyHeader, Wrong> {
        let (mut stored, mut first_fastest, mut dims) = (None, None, None);
        self.expect(b'{')?;
        while !self.accept(b'}') {
            let at = self.at;
            let key = self.quoted()?;
            self.expect(b':')?;
            let again = match &key[..] {
                "descr" => stored.replace(self.descr()?).is_some(),
                "fortran_order" => first_fastest.replace(self.truth()?).is_some(),
                "shape" => dims.replace(self.shape()?).is_some(),
                _ => return Err((at, format!("unknown key '{}' in the header", short(key.as_bytes())))),
            };
            if again {
                return Err((at, format!("key '{key}' comes twice in the header")));
            }
            if !self.accept(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        self.space();
        if self.at < self.text.len() {
            return Err((self.at, "the header goes on after its end".into()));
        }
        let missing = |key: &str| (0, format!("the header has no '{key}'"));
        Ok(NpyHeader {
            stored: stored.ok_or_else(|| missing("descr"))?,
            first_fastest: first_fastest.ok_or_else(|| missing("fortran_order"))?,
            dims: dims.ok_or_else(|| missing("shape"))?,
        })
    }

    fn space(&mut self) {
        while self.text.get(self.at).is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn accept(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> std::result::Result<(), Wrong> {
        if self.accept(byte) {
            Ok(())
        } else {
            Err((self.at, format!("the header has no '{}' here", char::from(byte))))
        }
    }

    fn quoted(&mut self) -> std::result::Result<String, Wrong> {
        self.space();
        let start = self.at;
        let wrong = |why: &str| (start, why.to_owned());
        let quote = *self.text.get(start).ok_or_else(|| wrong("the header ends early"))?;
        if quote != b'\'' && quote != b'"' {
            return Err(wrong("the header has no string here"));
        }
        let inner = &self.text[start + 1..];
        let length = inner.iter().position(|byte| *byte == quote).ok_or_else(|| wrong("a string without an end"))?;
        self.at = start + length + 2;
        String::from_utf8(inner[..length].to_vec()).map_err(|_| wrong("a string that is not UTF-8"))
    }

    fn descr(&mut self) -> std::result::Result<Stored, Wrong> {
        self.space();
        let at = self.at;
        if matches!(self.text.get(at), Some(b'[' | b'(')) {
            let why = format!("structured dtype {}; {READABLE} can be read", short(&self.text[at..]));
            return Err((at, why));
        }
        let name = self.quoted()?;
        stored(&name).ok_or_else(|| (at, format!("dtype '{}'; {READABLE} can be read", short(name.as_bytes()))))
    }

    fn truth(&mut self) -> std::result::Result<bool, Wrong> {
        self.space();
        for (word, value) in [("True", true), ("False", false)] {
            if self.text[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err((self.at, "fortran_order is neither True nor False".into()))
    }

    fn shape(&mut self) -> std::result::Result<Vec<usize>, Wrong> {
        let mut dims = Vec::new();
        self.expect(b'(')?;
        while !self.accept(b')') {
            dims.push(self.number()?);
            if !self.accept(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(dims)
    }

    fn number(&mut self) -> std::result::Result<usize, Wrong> {
        self.space();
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let text = std::str::from_utf8(&self.text[self.at..self.at + digits]).expect("digits");
        let number =
            text.parse().map_err(|_| (self.at, "the shape has no size here that an array can have".to_owned()))?;
        // Python 2 wrote long integers as `3L`.
        self.at += digits + usize::from(self.text.get(self.at + digits) == Some(&b'L'));
        Ok(number)
    }
}

/// Text from a file for an error, cut to a line.
fn short(text: &[u8]) -> String {
    let text = &text[..text.len().min(60)];
    String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// What NumPy's name of a dtype means; letters for types of C where these have one size everywhere.
fn stored(descr: &str) -> Option<Stored> {
    let (order, kind) = match descr.as_bytes() {
        [b'<' | b'|', ..] => (Order::Little, &descr[1..]),
        [b'>', ..] => (Order::Big, &descr[1..]),
        [b'=', ..] => (NATIVE, &descr[1..]),
        _ => (NATIVE, descr),
    };
    let dtype = match kind {
        "b1" | "?" => DType::Bool,
        "u1" | "B" => DType::U8,
        "u2" | "H" => DType::U16,
        "u4" | "I" => DType::U32,
        "u8" | "Q" => DType::U64,
        "i1" | "b" => DType::I8,
        "i2" | "h" => DType::I16,
        "i4" | "i" => DType::I32,
        "i8" | "q" => DType::I64,
        "f2" | "e" => DType::F16,
        "f4" | "f" => DType::F32,
        "f8" | "d" => DType::F64,
        _ => return None,
    };
    Some(Stored { dtype, order })
}

const NATIVE: Order = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };

/// NumPy's name of a dtype; it has none for f8e4m3 and bf16.
fn descr(dtype: DType) -> Result<&'static str> {
    Ok(match dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::F8E4M3 | DType::BF16 => {
            return Err(Error::unsupported_dtype("write_npy", dtype, "f16, f32 and others"));
        }
    })
}

/// Everything before the data, padded as NumPy pads it, and what it says.
pub(super) struct Head<'a> {
    pub(super) bytes: Vec<u8>,
    says: (DType, &'a [usize]),
}

impl Head<'_> {
    /// Bytes of the data.
    pub(super) fn data_bytes(&self) -> u64 {
        self.says.1.iter().product::<usize>() as u64 * self.says.0.size_in_bytes() as u64
    }
}

pub(super) fn header(array: &Tensor) -> Result<Head<'_>> {
    let (dtype, dims) = (array.dtype(), array.dims());
    let descr = descr(dtype)?;
    let mut shape: String = dims.iter().map(|dim| format!("{dim}, ")).collect();
    // A tuple of one keeps its comma.
    shape.truncate(shape.len().saturating_sub(if dims.len() == 1 { 1 } else { 2 }));
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Room for the first size to grow in place, as NumPy leaves it.
    if let Some(first) = dims.first() {
        let digits = first.to_string().len();
        text.extend(std::iter::repeat_n(' ', 21usize.saturating_sub(digits)));
    }
    let padding = ALIGN - (MAGIC.len() + 4 + text.len() + 1) % ALIGN;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&[1, 0]);
    // Six axes of twenty digits do not come near the end of 16 bits.
    bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    Ok(Head { bytes, says: (dtype, dims) })
}

#[track_caller]
pub(super) fn put<W: Write>(array: &Tensor, head: &Head<'_>, out: &mut OutputWriter<W>) -> Result<()> {
    out.put(&head.bytes)?;
    out.elements(array, head.says)
}
