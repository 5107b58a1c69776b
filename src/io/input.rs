//! Reading: bytes that arrive in order, of which the number is known beforehand.
//!
//! Nothing is allocated for more bytes than are left, so that a false length costs an error and no memory.

use std::fs::{self, File};
use std::io::{BufReader, Read, Seek, SeekFrom, Take};
use std::panic::Location;
use std::path::{Path, PathBuf};

use super::element::{Bits, Stored};
use crate::base::{
    call::{Call, Site},
    dtype::with_bits,
};
use crate::ops::create::values::of_values;
use crate::{DType, Error, Place, Result, Shape, Tensor};

/// Bytes converted at a time.
const CHUNK_BYTES: usize = 1 << 16;

/// A reader with its place in it, and its end.
#[derive(Debug)]
pub(crate) struct Input<R> {
    reader: R,
    path: Option<PathBuf>,
    /// The entry of an archive that this is.
    part: Option<String>,
    at: u64,
    end: u64,
    /// Where what reads it was called, for its errors.
    site: Site,
}

impl Input<BufReader<File>> {
    /// The whole of a file.
    #[track_caller]
    pub(super) fn open(path: &Path) -> Result<Self> {
        let site = Location::caller();
        let fail = |why: String| Error::file(Some(path), None, why).at(site);
        let special = || fail("is not a regular file, so its length is not known".into());
        // Before it is opened: a pipe without a writer is waited for.
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(special());
        }
        let file = File::open(path).map_err(|error| fail(format!("cannot be opened: {error}")))?;
        let metadata = file.metadata().map_err(|error| fail(format!("cannot be asked for its length: {error}")))?;
        if !metadata.is_file() {
            return Err(special());
        }
        Ok(Input::new(BufReader::new(file), Some(path.to_owned()), metadata.len()))
    }
}

impl<'a> Input<&'a [u8]> {
    /// A buffer.
    #[track_caller]
    pub(crate) fn buffer(bytes: &'a [u8]) -> Self {
        Input::new(bytes, None, bytes.len() as u64)
    }
}

impl<R> Input<R> {
    #[track_caller]
    pub(crate) fn new(reader: R, path: Option<PathBuf>, end: u64) -> Self {
        Input { reader, path, part: None, at: 0, end, site: Location::caller() }
    }

    /// What comes next is read for the caller of the function that asks.
    #[track_caller]
    pub(super) fn ask(&mut self) -> &mut Self {
        self.site = Location::caller();
        self
    }

    /// A part of this one, of which offsets count from the start of this one.
    pub(crate) fn section<'a>(&self, bytes: &'a [u8], at: u64) -> Input<&'a [u8]> {
        let end = at + bytes.len() as u64;
        Input { reader: bytes, path: self.path.clone(), part: self.part.clone(), at, end, site: self.site }
    }

    /// An entry of an archive, of which offsets count from the start of the entry.
    pub(super) fn entry<T>(&self, reader: T, name: &str, bytes: u64) -> Input<T> {
        Input { reader, path: self.path.clone(), part: Some(name.to_owned()), at: 0, end: bytes, site: self.site }
    }

    /// The same place in the same file, read from something else.
    pub(super) fn with_reader<T>(self, reader: T) -> Input<T> {
        Input { reader, path: self.path, part: self.part, at: self.at, end: self.end, site: self.site }
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(crate) fn reader_mut(&mut self) -> &mut R {
        &mut self.reader
    }

    /// An error about the bytes at `at`.
    pub(crate) fn fail_at(&self, at: u64, why: impl Into<String>) -> Error {
        let why = why.into();
        let why = match &self.part {
            Some(part) => format!("in entry `{}`: {why}", part.escape_debug()),
            None => why,
        };
        Error::file(self.path.as_deref(), Some(at), why).at(self.site)
    }

    /// An error about the bytes that come next.
    pub(crate) fn fail(&self, why: impl Into<String>) -> Error {
        self.fail_at(self.at, why)
    }

    /// Whether that many bytes are left.
    pub(crate) fn need(&self, bytes: u64, what: &str) -> Result<()> {
        let left = self.end.saturating_sub(self.at);
        if bytes <= left {
            return Ok(());
        }
        Err(self.fail(format!("{what} takes {bytes} bytes, and {left} are left")))
    }

    /// The number of elements of an array with these dims, if one can be that large and its bytes are there.
    pub(super) fn elem_count(&self, dims: &[usize], dtype: DType) -> Result<usize> {
        let size = dtype.size_in_bytes();
        let count = Shape::from(dims).check("read", size).map_err(|error| self.fail(error.to_string()))?;
        self.need((count * size) as u64, "the data")?;
        Ok(count)
    }
}

impl<R: Read> Input<R> {
    fn fill(&mut self, bytes: &mut [u8], what: &str) -> Result<()> {
        if let Err(error) = self.reader.read_exact(bytes) {
            let error = self.fail(format!("{what} cannot be read: {error}"));
            // How far the reader came is not known: the next seek goes, wherever that is.
            self.at = u64::MAX;
            return Err(error);
        }
        self.at += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        self.need(N as u64, what)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(crate) fn bytes(&mut self, count: u64, what: &str) -> Result<Vec<u8>> {
        self.need(count, what)?;
        let mut bytes = room::<u8>(self, usize::try_from(count).unwrap_or(usize::MAX))?;
        bytes.resize(count as usize, 0);
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    /// The next bytes, of which the place is not followed: it has to be sought afterwards.
    pub(super) fn take(&mut self, bytes: u64) -> Take<&mut R> {
        self.at = u64::MAX;
        (&mut self.reader).take(bytes)
    }

    /// Reads to the end and throws it away.
    pub(super) fn skip_rest(&mut self) -> Result<()> {
        let mut bytes = vec![0; CHUNK_BYTES.min((self.end - self.at) as usize)];
        while self.at < self.end {
            let count = bytes.len().min((self.end - self.at) as usize);
            self.fill(&mut bytes[..count], "the rest")?;
        }
        Ok(())
    }

    /// The array whose elements come next; with `first_fastest`, the first index runs fastest in them.
    #[track_caller]
    pub(super) fn tensor<P: Place + ?Sized>(
        &mut self,
        stored: Stored,
        dims: &[usize],
        first_fastest: bool,
        at: &P,
    ) -> Result<Tensor> {
        let count = self.elem_count(dims, stored.dtype)?;
        let call = Call::here("from_vec");
        with_bits!(stored.dtype, B => read::<B>(call, self, count, stored, (dims, first_fastest), &at))
    }
}

/// Where elements come from, whatever the reader: their code is there once for each size of an element.
trait ByteSource {
    /// The next bytes.
    fn next(&mut self, bytes: &mut [u8]) -> Result<()>;
    /// The error for a vector that there is no memory for.
    fn no_room(&self, count: usize, size: usize) -> Error;
}

impl<R: Read> ByteSource for Input<R> {
    fn next(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.fill(bytes, "the data")
    }

    fn no_room(&self, count: usize, size: usize) -> Error {
        self.fail(format!("no memory for {count} elements of {size} bytes"))
    }
}

/// An empty vector with room, or an error where `Vec` would end the process.
fn room<T>(source: &dyn ByteSource, count: usize) -> Result<Vec<T>> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| source.no_room(count, size_of::<T>()))?;
    Ok(all)
}

fn read<B: Bits>(
    call: Call,
    source: &mut dyn ByteSource,
    count: usize,
    stored: Stored,
    (dims, first_fastest): (&[usize], bool),
    at: &dyn Place,
) -> Result<Tensor> {
    let all = elements::<B>(source, count, stored)?;
    let all = ordered(source, all, dims, first_fastest)?;
    of_values(call, all, (Shape::from(dims), stored.dtype), at)
}

fn elements<B: Bits>(source: &mut dyn ByteSource, count: usize, stored: Stored) -> Result<Vec<B>> {
    let size = size_of::<B>();
    let mut all = room::<B>(source, count)?;
    let mut bytes = vec![0; CHUNK_BYTES.min(count * size)];
    while all.len() < count {
        let chunk = bytes.len().min((count - all.len()) * size);
        source.next(&mut bytes[..chunk])?;
        if stored.dtype == DType::Bool {
            bytes[..chunk].iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        all.extend(bytes[..chunk].chunks_exact(size).map(|bytes| B::from_bytes(bytes, stored.order)));
    }
    Ok(all)
}

/// Elements in row-major order.
fn ordered<T: Copy>(source: &dyn ByteSource, all: Vec<T>, dims: &[usize], first_fastest: bool) -> Result<Vec<T>> {
    let [outer @ .., last] = dims else { return Ok(all) };
    if !first_fastest || outer.is_empty() || all.is_empty() {
        return Ok(all);
    }
    let mut strides = vec![1; dims.len()];
    for axis in 1..dims.len() {
        strides[axis] = strides[axis - 1] * dims[axis - 1];
    }
    let step = strides[outer.len()];
    let mut out = room::<T>(source, all.len())?;
    let mut index = vec![0; outer.len()];
    let mut start = 0;
    while out.len() < all.len() {
        out.extend((0..*last).map(|i| all[start + i * step]));
        for axis in (0..outer.len()).rev() {
            index[axis] += 1;
            start += strides[axis];
            if index[axis] < outer[axis] {
                break;
            }
            start -= strides[axis] * outer[axis];
            index[axis] = 0;
        }
    }
    Ok(out)
}

impl<R: Read + Seek> Input<R> {
    /// Goes to a place.
    pub(crate) fn seek(&mut self, to: u64) -> Result<()> {
        if to == self.at {
            return Ok(());
        }
        self.reader
            .seek(SeekFrom::Start(to))
            .map_err(|error| self.fail_at(to, format!("cannot be reached: {error}")))?;
        self.at = to;
        Ok(())
    }
}
