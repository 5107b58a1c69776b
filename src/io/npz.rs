//! NumPy's `.npz`: arrays with names, as npy files in a zip archive. Reads stored and deflated entries, also in the
//! form for more than 4 GiB; writes stored ones, dated 1980, so that equal arrays make equal files.
//!
//! # Invariants
//! - Entries are found through the directory at the end, and do not overlap: no byte is unpacked twice.
//! - The size that a deflated entry claims is at most what its bytes can unpack to.
//! - An array is handed out after its checksum was compared.
//!
//! Entries whose names do not end in `.npy` are left alone.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, Write};
use std::path::{Path, PathBuf};

use flate2::{CrcReader, read::DeflateDecoder};

use super::input::Input;
use super::output::{self, OutputWriter};
use super::{Loaded, by_name, npy_format, sort_by_name};
use crate::{DType, Device, Error, Place, Result, Shape, Tensor};

/// Reads every array of a file, in the file's order.
///
/// # Errors
/// [`Error::File`]; as [`Tensor::zeros`].
///
/// ```
/// # use ndgc::{npz, Device, Tensor};
/// let path = std::env::temp_dir().join(format!("ndgc-{}.npz", std::process::id()));
/// let a = Tensor::arange(0f32, 3., &Device::Cpu)?;
/// npz::write(&[("a", &a), ("b", &a.neg()?)], &path)?;
/// let arrays = npz::read(&path, &Device::Cpu)?;
/// assert_eq!(arrays[1].0, "b");
/// assert_eq!(arrays[1].1.to_vec1::<f32>()?, [0., -1., -2.]);
/// # std::fs::remove_file(&path).map_err(Error::msg)?;
/// # use ndgc::Error;
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn read<F: AsRef<Path>, P: Place + ?Sized>(path: F, at: &P) -> Result<Vec<(String, Tensor)>> {
    read_all(&mut Input::open(path.as_ref())?, at)
}

/// Reads the arrays of these names, in this order.
///
/// # Errors
/// As [`read`]; [`Error::CannotFindTensor`] naming the first that is missing.
///
/// ```
/// # use ndgc::{npz, Device, Error, Tensor};
/// # let path = std::env::temp_dir().join(format!("ndgc-names-{}.npz", std::process::id()));
/// let (a, b) = (Tensor::new(&[1f32, 2.], &Device::Cpu)?, Tensor::new(&[3f32], &Device::Cpu)?);
/// npz::write(&[("a", &a), ("b", &b)], &path)?;
/// let arrays = npz::read_by_name(&path, &["b", "a"], &Device::Cpu)?; // in this order
/// assert_eq!(arrays[0].to_vec1::<f32>()?, [3.]);
/// let missing = npz::read_by_name(&path, &["a", "c"], &Device::Cpu);
/// assert!(matches!(missing, Err(Error::CannotFindTensor { .. })));
/// # std::fs::remove_file(&path).map_err(ndgc::Error::msg)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn read_by_name<F: AsRef<Path>, P: Place + ?Sized>(path: F, names: &[&str], at: &P) -> Result<Vec<Tensor>> {
    let mut input = Input::open(path.as_ref())?;
    let entries = directory(&mut input)?;
    let mut loaded = Loaded::default();
    for name in names {
        let Some(entry) = entries.iter().find(|entry| entry.name == *name) else {
            return Err(Error::no_tensor(name, input.path(), entries.iter().map(|entry| &entry.name)));
        };
        loaded.push(String::new(), load(&mut input, entry, at)?);
    }
    Ok(loaded.done().into_iter().map(|(_, array)| array).collect())
}

/// Reads every array from the bytes of a file.
///
/// # Errors
/// As [`read`].
#[track_caller]
pub fn decode<P: Place + ?Sized>(bytes: &[u8], at: &P) -> Result<Vec<(String, Tensor)>> {
    read_all(&mut Input::new(Cursor::new(bytes), None, bytes.len() as u64), at)
}

#[track_caller]
fn read_all<R: Read + Seek, P: Place + ?Sized>(input: &mut Input<R>, at: &P) -> Result<Vec<(String, Tensor)>> {
    let mut loaded = Loaded::default();
    for entry in directory(input)? {
        let array = load(input, &entry, at)?;
        loaded.push(entry.name, array);
    }
    Ok(loaded.done())
}

/// Writes arrays of any layout. Replaces a file of this name when it is complete.
///
/// # Errors
/// [`Error::File`], also if a name comes twice or has more than 65,531 bytes; as [`Tensor::to_vec`].
#[track_caller]
pub fn write<S: AsRef<str>, T: AsRef<Tensor>, F: AsRef<Path>>(arrays: &[(S, T)], path: F) -> Result<()> {
    output::save(path.as_ref(), |out| NpzArchive::new(out, u64::from(u32::MAX)).all(arrays))
}

/// The bytes of a file.
///
/// # Errors
/// As [`write()`].
///
/// ```
/// # use ndgc::{npz, Device, Tensor};
/// let a = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let bytes = npz::encode(&[("a", &a), ("turned", &a.t()?)])?; // of any layout, without a file
/// let arrays = npz::decode(&bytes, &Device::Cpu)?;
/// assert_eq!(arrays[1].0, "turned");
/// assert_eq!(arrays[1].1.to_vec2::<f32>()?, [[1.], [2.]]);
/// assert_eq!(npz::encode(&[("a", &a)])?, npz::encode(&[("a", &a)])?); // there is no date in it
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn encode<S: AsRef<str>, T: AsRef<Tensor>>(arrays: &[(S, T)]) -> Result<Vec<u8>> {
    encode_with(arrays, u64::from(u32::MAX))
}

#[track_caller]
pub(crate) fn encode_with<S: AsRef<str>, T: AsRef<Tensor>>(arrays: &[(S, T)], short_max: u64) -> Result<Vec<u8>> {
    let mut out = OutputWriter::new(Cursor::new(Vec::new()), None);
    NpzArchive::new(&mut out, short_max).all(arrays)?;
    Ok(out.into_inner().into_inner())
}

/// # Files: npz
impl Tensor {
    /// [`npz::read`](read) to the host.
    ///
    /// # Errors
    /// As [`npz::read`](read).
    #[track_caller]
    pub fn read_npz<F: AsRef<Path>>(path: F) -> Result<Vec<(String, Self)>> {
        read(path, &Device::Cpu)
    }

    /// [`npz::read_by_name`](read_by_name) to the host.
    ///
    /// # Errors
    /// As [`npz::read_by_name`](read_by_name).
    #[track_caller]
    pub fn read_npz_by_name<F: AsRef<Path>>(path: F, names: &[&str]) -> Result<Vec<Self>> {
        read_by_name(path, names, &Device::Cpu)
    }

    /// [`npz::write`](write()).
    ///
    /// # Errors
    /// As [`npz::write`](write()).
    #[track_caller]
    pub fn write_npz<S: AsRef<str>, T: AsRef<Tensor>, F: AsRef<Path>>(arrays: &[(S, T)], path: F) -> Result<()> {
        write(arrays, path)
    }
}

/// The arrays of a file, read when they are asked for. The file is opened each time and must not change.
///
/// ```
/// # use ndgc::{npz, DType, Device, Tensor};
/// # let path = std::env::temp_dir().join(format!("ndgc-tensors-{}.npz", std::process::id()));
/// npz::write(&[("a", &Tensor::new(&[[1f32, 2.]], &Device::Cpu)?)], &path)?;
/// let file = npz::NpzTensors::new(&path)?;
/// let (shape, dtype) = file.get_shape_and_dtype("a")?; // without its elements
/// assert_eq!((shape.dims(), dtype), (&[1, 2][..], DType::F32));
/// assert_eq!(file.get("a")?.unwrap().to_vec2::<f32>()?, [[1., 2.]]);
/// assert!(file.get("b")?.is_none());
/// # std::fs::remove_file(&path).map_err(ndgc::Error::msg)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NpzTensors {
    path: PathBuf,
    bytes: u64,
    /// By name.
    entries: Vec<(String, ZipEntry)>,
}

impl NpzTensors {
    /// Reads the directory of a file.
    ///
    /// # Errors
    /// [`Error::File`].
    #[track_caller]
    pub fn new<F: AsRef<Path>>(path: F) -> Result<Self> {
        let mut input = Input::open(path.as_ref())?;
        let mut entries: Vec<_> = directory(&mut input)?.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        sort_by_name(&mut entries);
        Ok(NpzTensors { path: path.as_ref().to_owned(), bytes: input.end(), entries })
    }

    /// The names, sorted.
    pub fn names(&self) -> Vec<&String> {
        self.entries.iter().map(|(name, _)| name).collect()
    }

    /// Shape and dtype of an array, without its elements.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`] if there is no array of this name; [`Error::File`].
    #[track_caller]
    pub fn get_shape_and_dtype(&self, name: &str) -> Result<(Shape, DType)> {
        let mut input = self.open()?;
        let Some((_, entry)) = by_name(&self.entries, name) else { return Err(self.missing(name)) };
        let header = npy_format::read_header(&mut content(&mut input, entry)?)?;
        Ok((Shape::from(header.dims), header.stored.dtype))
    }

    /// An array on the host; none if there is none of this name.
    ///
    /// # Errors
    /// As [`npz::read`](read).
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<Option<Tensor>> {
        self.load(name, &Device::Cpu)
    }

    /// An array; none if there is none of this name.
    ///
    /// # Errors
    /// As [`npz::read`](read).
    #[track_caller]
    pub fn load<P: Place + ?Sized>(&self, name: &str, at: &P) -> Result<Option<Tensor>> {
        let Some((_, entry)) = by_name(&self.entries, name) else { return Ok(None) };
        Ok(Some(load(&mut self.open()?, entry, at)?))
    }

    /// What is said where there is no array of this name.
    #[track_caller]
    pub(crate) fn missing(&self, name: &str) -> Error {
        Error::no_tensor(name, Some(&self.path), self.entries.iter().map(|(name, _)| name))
    }

    #[track_caller]
    fn open(&self) -> Result<Input<BufReader<File>>> {
        let input = Input::open(&self.path)?;
        if input.end() == self.bytes {
            return Ok(input);
        }
        Err(input.fail(format!("had {} bytes before, and has {} now", self.bytes, input.end())))
    }
}

const LOCAL: [u8; 4] = *b"PK\x03\x04";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const END: [u8; 4] = *b"PK\x05\x06";
const END_64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR_64: [u8; 4] = *b"PK\x06\x07";
const LOCAL_BYTES: u64 = 30;
const CENTRAL_BYTES: u64 = 46;
const END_BYTES: u64 = 22;
const LOCATOR_BYTES: u64 = 20;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// No deflated byte unpacks to more.
const DEFLATE_RATIO_MAX: u64 = 1032;

/// An entry of an archive.
#[derive(Clone, Debug)]
pub(super) struct ZipEntry {
    /// Of an array, without `.npy`.
    pub(super) name: String,
    method: u16,
    crc: u32,
    pub(super) packed: u64,
    pub(super) unpacked: u64,
    /// Of its local header.
    start: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The arrays of an archive, in its order.
fn directory<R: Read + Seek>(input: &mut Input<R>) -> Result<Vec<ZipEntry>> {
    let arrays = entries(input)?.into_iter().filter_map(|entry| {
        let name = entry.name.strip_suffix(".npy")?.to_owned();
        Some(ZipEntry { name, ..entry })
    });
    Ok(arrays.collect())
}

/// The entries of an archive, in its order, with their full names.
pub(super) fn entries<R: Read + Seek>(input: &mut Input<R>) -> Result<Vec<ZipEntry>> {
    let Ends { entries, bytes, start } = ends(input)?;
    input.seek(start)?;
    let directory = input.bytes(bytes, "the directory")?;
    let mut central = input.section(&directory, start);
    let (mut all, mut names, mut spans) = (Vec::new(), HashSet::new(), Vec::new());
    for _ in 0..entries {
        let at = central.at();
        let entry = central_header(&mut central)?;
        let room = LOCAL_BYTES + entry.name.len() as u64;
        let end = entry.start.checked_add(room).and_then(|end| end.checked_add(entry.packed));
        match end {
            Some(end) if end <= start => spans.push((entry.start, end)),
            _ => {
                let why = format!("entry `{}` reaches past the entries", entry.name.escape_debug());
                return Err(central.fail_at(at, why));
            }
        }
        if !names.insert(entry.name.clone()) {
            return Err(central.fail_at(at, format!("two entries have the name `{}`", entry.name.escape_debug())));
        }
        all.push(entry);
    }
    spans.sort_unstable();
    match spans.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => Err(input.fail_at(pair[1].0, "this entry overlaps the one before it")),
        None => Ok(all),
    }
}

/// Where the directory is.
struct Ends {
    entries: u64,
    bytes: u64,
    start: u64,
}

fn ends<R: Read + Seek>(input: &mut Input<R>) -> Result<Ends> {
    let tail = input.end().min(END_BYTES + u64::from(u16::MAX));
    let tail_start = input.end() - tail;
    input.seek(tail_start)?;
    let tail = input.bytes(tail, "the end of the archive")?;
    let fits = |at: &usize| {
        tail[*at..].starts_with(&END) && usize::from(u16_at(&tail, at + 20)) == tail.len() - at - END_BYTES as usize
    };
    let last = tail.len().checked_sub(END_BYTES as usize);
    let Some(at) = last.and_then(|last| (0..=last).rev().find(fits)) else {
        return Err(input.fail_at(0, "this is no npz or pth file: it has no end of a zip archive"));
    };
    let position = tail_start + at as u64;
    let mut found = Ends {
        entries: u64::from(u16_at(&tail, at + 10)),
        bytes: u64::from(u32_at(&tail, at + 12)),
        start: u64::from(u32_at(&tail, at + 16)),
    };
    let mut limit = position;
    let is_long = found.entries == 0xFFFF || found.bytes == 0xFFFF_FFFF || found.start == 0xFFFF_FFFF;
    if is_long
        && let Some(at) = at.checked_sub(LOCATOR_BYTES as usize)
        && tail[at..].starts_with(&LOCATOR_64)
    {
        limit = u64_at(&tail, at + 8);
        if limit >= position {
            return Err(input.fail_at(position, "the end of the archive is said to lie behind itself"));
        }
        input.seek(limit)?;
        let end: [u8; 56] = input.array("the long end of the archive")?;
        if !end.starts_with(&END_64) {
            return Err(input.fail_at(limit, "the long end of the archive is not here"));
        }
        found = Ends { entries: u64_at(&end, 32), bytes: u64_at(&end, 40), start: u64_at(&end, 48) };
    }
    let fits = found.start.checked_add(found.bytes).is_some_and(|end| end <= limit);
    if !fits || found.entries > found.bytes / CENTRAL_BYTES {
        let Ends { entries, bytes, start } = found;
        let why = format!("{entries} entries in {bytes} bytes from byte {start} do not fit before the archive's end");
        return Err(input.fail_at(position, why));
    }
    Ok(found)
}

/// Reads an entry of the directory; the name still has its ending.
fn central_header(central: &mut Input<&[u8]>) -> Result<ZipEntry> {
    let at = central.at();
    let head: [u8; CENTRAL_BYTES as usize] = central.array("an entry of the directory")?;
    if !head.starts_with(&CENTRAL) {
        return Err(central.fail_at(at, "no entry of the directory begins here"));
    }
    let [name, extra, comment] = [28, 30, 32].map(|at| u64::from(u16_at(&head, at)));
    let name = central.bytes(name, "the name of an entry")?;
    let extra = central.bytes(extra, "the extra field of an entry")?;
    central.bytes(comment, "the comment of an entry")?;
    let name = String::from_utf8(name).map_err(|_| central.fail_at(at, "the name of this entry is not UTF-8"))?;
    let [mut unpacked, mut packed, mut start] = [24, 20, 42].map(|at| u64::from(u32_at(&head, at)));
    let mut long = long_sizes(&extra);
    for size in [&mut unpacked, &mut packed, &mut start] {
        if *size == 0xFFFF_FFFF
            && let Some((value, rest)) = long.split_first_chunk()
        {
            *size = u64::from_le_bytes(*value);
            long = rest;
        }
    }
    let (flags, method, crc) = (u16_at(&head, 8), u16_at(&head, 10), u32_at(&head, 16));
    let wrong = match method {
        _ if flags & 1 != 0 => "is encrypted".to_owned(),
        STORED if packed != unpacked => format!("is stored, in {packed} bytes for {unpacked}"),
        DEFLATED if unpacked / DEFLATE_RATIO_MAX > packed => {
            format!("claims {unpacked} bytes, more than its {packed} can unpack to")
        }
        STORED | DEFLATED => return Ok(ZipEntry { name, method, crc, packed, unpacked, start }),
        _ => format!("is packed by method {method}; stored (0) and deflated (8) entries can be read"),
    };
    Err(central.fail_at(at, format!("entry `{}` {wrong}", name.escape_debug())))
}

/// The part of an extra field that holds sizes of more than 32 bits.
fn long_sizes(mut extra: &[u8]) -> &[u8] {
    while extra.len() >= 4 {
        let (id, bytes) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let Some(field) = extra.get(4..4 + bytes) else { break };
        if id == 1 {
            return field;
        }
        extra = &extra[4 + bytes..];
    }
    &[]
}

/// An entry's content, unpacked.
pub(super) fn content<'a, R: Read + Seek>(
    input: &'a mut Input<R>,
    entry: &ZipEntry,
) -> Result<Input<CrcReader<Box<dyn Read + 'a>>>> {
    input.seek(entry.start)?;
    let head: [u8; LOCAL_BYTES as usize] = input.array("the head of an entry")?;
    if !head.starts_with(&LOCAL) {
        let why = format!("entry `{}` does not begin here", entry.name.escape_debug());
        return Err(input.fail_at(entry.start, why));
    }
    let skipped = u64::from(u16_at(&head, 26)) + u64::from(u16_at(&head, 28));
    input.seek(entry.start + LOCAL_BYTES + skipped)?;
    input.need(entry.packed, "the entry")?;
    let shape = input.entry((), &entry.name, entry.unpacked);
    let packed = input.take(entry.packed);
    let reader: Box<dyn Read + 'a> =
        if entry.method == STORED { Box::new(packed) } else { Box::new(DeflateDecoder::new(packed)) };
    Ok(shape.with_reader(CrcReader::new(reader)))
}

#[track_caller]
fn load<R: Read + Seek, P: Place + ?Sized>(input: &mut Input<R>, entry: &ZipEntry, at: &P) -> Result<Tensor> {
    let mut content = content(input, entry)?;
    let array = npy_format::array(&mut content, at)?;
    finish(&mut content, entry).inspect_err(|_| array.close())?;
    Ok(array)
}

/// Reads the rest of an entry, and compares its length and its checksum.
pub(super) fn finish<R: Read>(content: &mut Input<CrcReader<R>>, entry: &ZipEntry) -> Result<()> {
    content.skip_rest()?;
    if !matches!(content.reader_mut().read(&mut [0]), Ok(0)) {
        return Err(content.fail("the entry is longer than the directory says"));
    }
    let crc = content.reader_mut().crc().sum();
    if crc != entry.crc {
        return Err(content.fail(format!("the checksum is {crc:08x}, and the directory says {:08x}", entry.crc)));
    }
    Ok(())
}

/// An archive that is being written.
struct NpzArchive<'a, W> {
    out: &'a mut OutputWriter<W>,
    /// Sizes and places from here on are written in the long form.
    short_max: u64,
    directory: Vec<u8>,
    names: HashSet<String>,
}

impl<'a, W: Write + Seek> NpzArchive<'a, W> {
    fn new(out: &'a mut OutputWriter<W>, short_max: u64) -> Self {
        NpzArchive { out, short_max, directory: Vec::new(), names: HashSet::new() }
    }

    #[track_caller]
    fn all<S: AsRef<str>, T: AsRef<Tensor>>(mut self, arrays: &[(S, T)]) -> Result<()> {
        for (name, array) in arrays {
            self.entry(name.as_ref(), array.as_ref())?;
        }
        self.end()
    }

    #[track_caller]
    fn entry(&mut self, name: &str, array: &Tensor) -> Result<()> {
        let full = format!("{name}.npy");
        if full.len() > usize::from(u16::MAX) {
            return Err(self.out.fail(format!("a name of {} bytes; an archive has room for 65531", name.len())));
        }
        if !self.names.insert(full.clone()) {
            return Err(self.out.fail(format!("two arrays have the name `{name}`")));
        }
        let header = npy_format::header(array)?;
        let bytes = header.bytes.len() as u64 + header.data_bytes();
        let start = self.out.at();
        let head = self.local_head(&full, 0, bytes);
        self.out.put(&head)?;
        self.out.begin_crc();
        npy_format::put(array, &header, self.out)?;
        let crc = self.out.end_crc();
        self.out.patch(start, &self.local_head(&full, crc, bytes))?;
        self.central_head(&full, crc, bytes, start);
        Ok(())
    }

    /// What both heads of an entry share: needed version, flags, method, date, checksum, sizes, length of the name.
    fn common(&self, name: &str, crc: u32, bytes: u64) -> Vec<u8> {
        let is_long = bytes >= self.short_max;
        let mut head = Vec::new();
        head.extend_from_slice(&(if is_long { 45u16 } else { 20 }).to_le_bytes());
        head.extend_from_slice(&[0, 8]); // names are UTF-8
        head.extend_from_slice(&STORED.to_le_bytes());
        head.extend_from_slice(&[0, 0, 0x21, 0]); // the first of January 1980
        head.extend_from_slice(&crc.to_le_bytes());
        let size = if is_long { u32::MAX } else { bytes as u32 };
        head.extend_from_slice(&size.to_le_bytes());
        head.extend_from_slice(&size.to_le_bytes());
        head.extend_from_slice(&(name.len() as u16).to_le_bytes());
        head
    }

    fn local_head(&self, name: &str, crc: u32, bytes: u64) -> Vec<u8> {
        let mut head = LOCAL.to_vec();
        head.extend(self.common(name, crc, bytes));
        let long = if bytes >= self.short_max { vec![bytes, bytes] } else { Vec::new() };
        let extra = long_field(&long);
        head.extend_from_slice(&(extra.len() as u16).to_le_bytes());
        head.extend_from_slice(name.as_bytes());
        head.extend(extra);
        head
    }

    fn central_head(&mut self, name: &str, crc: u32, bytes: u64, start: u64) {
        let mut long = if bytes >= self.short_max { vec![bytes, bytes] } else { Vec::new() };
        let is_far = start >= self.short_max;
        if is_far {
            long.push(start);
        }
        let extra = long_field(&long);
        let mut head = CENTRAL.to_vec();
        head.extend_from_slice(&45u16.to_le_bytes()); // the version that wrote it
        head.extend(self.common(name, crc, bytes));
        head.extend_from_slice(&(extra.len() as u16).to_le_bytes());
        head.extend_from_slice(&[0; 10]); // comment, disk, attributes
        head.extend_from_slice(&(if is_far { u32::MAX } else { start as u32 }).to_le_bytes());
        head.extend_from_slice(name.as_bytes());
        head.extend(extra);
        self.directory.extend(head);
    }

    fn end(self) -> Result<()> {
        let (start, bytes, entries) = (self.out.at(), self.directory.len() as u64, self.names.len() as u64);
        self.out.put(&self.directory)?;
        let after = self.out.at();
        let mut end = Vec::new();
        let is_long = entries >= 0xFFFF || start.max(bytes) >= self.short_max;
        if is_long {
            end.extend_from_slice(&END_64);
            end.extend_from_slice(&44u64.to_le_bytes()); // bytes of the rest of this record
            end.extend_from_slice(&[45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]); // versions, disks
            [entries, entries, bytes, start].iter().for_each(|value| end.extend_from_slice(&value.to_le_bytes()));
            end.extend_from_slice(&LOCATOR_64);
            end.extend_from_slice(&[0; 4]);
            end.extend_from_slice(&after.to_le_bytes());
            end.extend_from_slice(&1u32.to_le_bytes());
        }
        let [count, length, place] = if is_long { [u64::MAX; 3] } else { [entries, bytes, start] };
        end.extend_from_slice(&END);
        end.extend_from_slice(&[0; 4]);
        end.extend_from_slice(&(count as u16).to_le_bytes());
        end.extend_from_slice(&(count as u16).to_le_bytes());
        end.extend_from_slice(&(length as u32).to_le_bytes());
        end.extend_from_slice(&(place as u32).to_le_bytes());
        end.extend_from_slice(&[0; 2]);
        self.out.put(&end)
    }
}

/// The extra field with sizes of more than 32 bits; nothing for none.
fn long_field(values: &[u64]) -> Vec<u8> {
    let mut field = Vec::new();
    if !values.is_empty() {
        field.extend_from_slice(&[1, 0]);
        field.extend_from_slice(&(8 * values.len() as u16).to_le_bytes());
        values.iter().for_each(|value| field.extend_from_slice(&value.to_le_bytes()));
    }
    field
}
