//! Writing: elements as bytes, and files that appear under their name when they are complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::element::Bits;
use crate::base::{call::Site, dtype::with_bits};
use crate::{DType, Error, Result, Tensor};

/// Bytes converted at a time.
const CHUNK_BYTES: usize = 1 << 16;

/// Bytes of a file's name that leave room for more; file systems take 255.
const SHORT_NAME: usize = 200;

/// A writer with its place in it.
#[derive(Debug)]
pub(super) struct OutputWriter<W> {
    writer: W,
    path: Option<PathBuf>,
    at: u64,
    /// Of what was written since it was set, where an archive wants one.
    crc: Option<flate2::Crc>,
    /// Where what writes it was called, for its errors.
    site: Site,
}

impl<W: Write> OutputWriter<W> {
    #[track_caller]
    pub(super) fn new(writer: W, path: Option<PathBuf>) -> Self {
        OutputWriter { writer, path, at: 0, crc: None, site: Location::caller() }
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn into_inner(self) -> W {
        self.writer
    }

    pub(super) fn fail(&self, why: impl Into<String>) -> Error {
        Error::file(self.path.as_deref(), None, why).at(self.site)
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|error| self.fail(format!("cannot be written: {error}")))?;
        self.at += bytes.len() as u64;
        if let Some(crc) = &mut self.crc {
            crc.update(bytes);
        }
        Ok(())
    }

    /// The elements of an array in row-major order, the lowest byte first. `dtype` and `dims` are what the head of the
    /// file says of it: if it is another array by now (`Tensor::intern`), that is an error.
    #[track_caller]
    pub(super) fn elements(&mut self, array: &Tensor, (dtype, dims): (DType, &[usize])) -> Result<()> {
        with_bits!(dtype, B => {
            let (shape, all) = array.bits::<B>("to_vec", dtype)?;
            if shape.dims() != dims {
                return Err(self.fail(format!("the array was {dims:?} and became {shape} while it was written")));
            }
            in_chunks(&all, &mut |bytes| self.put(bytes))
        })
    }

    /// Starts a checksum.
    pub(super) fn begin_crc(&mut self) {
        self.crc = Some(flate2::Crc::new());
    }

    /// The checksum of what was written since.
    pub(super) fn end_crc(&mut self) -> u32 {
        self.crc.take().map_or(0, |crc| crc.sum())
    }
}

impl<W: Write + Seek> OutputWriter<W> {
    /// Writes over bytes written before, and goes on at the end.
    pub(super) fn patch(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let end = self.at;
        let done = (|| {
            self.writer.seek(SeekFrom::Start(at))?;
            self.writer.write_all(bytes)?;
            self.writer.seek(SeekFrom::Start(end))
        })();
        done.map(drop).map_err(|error: std::io::Error| self.fail(format!("cannot be written: {error}")))
    }
}

/// Numbers as bytes, the lowest first, some at a time.
fn in_chunks<B: Bits>(all: &[B], put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut bytes = Vec::with_capacity(CHUNK_BYTES.min(size_of_val(all)));
    for chunk in all.chunks(CHUNK_BYTES / size_of::<B>()) {
        bytes.clear();
        chunk.iter().for_each(|number| number.append(&mut bytes));
        put(&bytes)?;
    }
    Ok(())
}

/// Writes a file, which takes its name when `write` has succeeded.
#[track_caller]
pub(super) fn save(path: &Path, write: impl FnOnce(&mut OutputWriter<BufWriter<File>>) -> Result<()>) -> Result<()> {
    let site = Location::caller();
    let fail = |why: String| Error::file(Some(path), None, why).at(site);
    // A link stays a link, and what it leads to is replaced, or made.
    let known = fs::canonicalize(path).ok().or_else(|| led_to(path));
    let endless = || fail(format!("is a link to itself, or leads on by more than {LINKS_MAX} others"));
    let target = known.ok_or_else(endless)?;
    let before = fs::metadata(&target).ok();
    let special = before.as_ref().is_some_and(|before| !before.is_file());
    let opened = if special {
        OpenOptions::new().write(true).open(&target).map(|file| (target.clone(), file))
    } else {
        beside(&target).ok_or_else(|| fail("has no file name".into()))?
    };
    let (part, file) = opened.map_err(|error| fail(format!("cannot be made: {error}")))?;
    if let Some(before) = before.filter(|_| !special) {
        // Before anything is in it. Not every file system has permissions to carry over.
        let _ = file.set_permissions(before.permissions());
    }
    let mut out = OutputWriter::new(BufWriter::new(file), Some(path.to_owned()));
    let finish = |mut out: OutputWriter<BufWriter<File>>| {
        out.writer.flush().map_err(|error| fail(format!("cannot be written: {error}")))?;
        if special {
            return Ok(());
        }
        fs::rename(&part, &target).map_err(|error| fail(format!("cannot be given its name: {error}")))
    };
    let result = write(&mut out).and_then(|()| finish(out)).map_err(|error| error.at(site));
    if result.is_err() && !special {
        // The first error is the one to tell.
        let _ = fs::remove_file(&part);
    }
    result
}

/// Links that are followed, as many as Linux follows.
const LINKS_MAX: usize = 40;

/// Where a path leads at whose end there is no file. None if it leads on and on, as links do that lead to each other.
fn led_to(path: &Path) -> Option<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..=LINKS_MAX {
        let Ok(to) = fs::read_link(&target) else { return Some(target) };
        target.pop();
        target.push(to);
    }
    None
}

/// A new file in the same folder, under a name that nobody else uses; None for a path without a name.
fn beside(target: &Path) -> Option<io::Result<(PathBuf, File)>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let file_name = target.file_name()?;
    // With what is added a long name would be too long.
    let short = file_name.len() <= SHORT_NAME;
    loop {
        let mut name = std::ffi::OsString::from(".");
        name.push(if short { file_name } else { "long".as_ref() });
        // Relaxed: nothing but the number itself is read.
        name.push(format!(".{}-{}.part", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        let part = target.with_file_name(name);
        match OpenOptions::new().write(true).create_new(true).open(&part) {
            // Of a process with this one's number, in another container, or killed before this one began.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return Some(opened.map(|file| (part, file))),
        }
    }
}
