//! Host memory that lies in a file: a temporary one without a name, or a named one that persists.
//!
//! The file is sparse: its length costs nothing, and its bytes take room on the disk as they are reserved. Where the
//! temporary folder is held in memory, as `tmpfs` is, so is the file.
//!
//! # Invariants
//! - Bytes are used only below what was reserved. A write to others takes room from the disk at that moment, and a disk
//!   without any answers with SIGBUS; so room is taken before, where its lack is an error.
//! - A file never becomes shorter, and what it holds is changed by nobody but the users of the span.
//!
//! # What a named file asks of its owner
//! Nobody may shorten it while it is mapped, or the next access behind its new end is a SIGBUS; nor write to it, which
//! would change arrays under their readers (the same promise as in `promised/mod.rs`). Other blocks, of this process or
//! of others, are kept out by a lock, but the lock is advisory: programs that do not ask for it are not.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::{MmapOptions, MmapRaw};

use crate::base::{
    error::{Error, Result},
    system,
};
use crate::device::span::Span;

/// Lengths of files are multiples of this.
const PAGE: usize = 4096;
/// Room is taken from the disk in pieces of so many bytes.
const PIECE: usize = 64 << 20;

/// Takes room on the disk for so many bytes of a file from an offset on, and leaves their contents.
type Allocate = fn(&File, u64, u64) -> io::Result<()>;

/// Locks a file against others, until it is closed.
type TryLock = fn(&File) -> std::result::Result<(), TryLockError>;

/// Bytes of files that are mapped. Relaxed: a number that is reported, and nobody reads other memory by it.
static MAPPED: AtomicU64 = AtomicU64::new(0);

/// Bytes of files that are mapped now.
pub(crate) fn mapped_bytes() -> u64 {
    // Relaxed: as above, and below.
    MAPPED.load(Ordering::Relaxed)
}

/// Counts bytes of a mapped file while it lives.
#[derive(Debug, Default)]
pub(crate) struct MappedBytes(AtomicU64);

impl MappedBytes {
    /// Counts the bytes of a file.
    pub(crate) fn new(bytes: usize) -> Self {
        let counted = Self::default();
        counted.raise(bytes);
        counted
    }

    /// The file is as long as this now.
    fn raise(&self, bytes: usize) {
        // Relaxed: a number that is reported.
        let before = self.0.fetch_max(bytes as u64, Ordering::Relaxed);
        MAPPED.fetch_add((bytes as u64).saturating_sub(before), Ordering::Relaxed);
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        // Relaxed: a number that is reported.
        MAPPED.fetch_sub(*self.0.get_mut(), Ordering::Relaxed);
    }
}

/// A file that is mapped, once or more often.
#[derive(Debug)]
struct BackingFile {
    file: File,
    /// The file, or the folder of one without a name.
    path: PathBuf,
    /// Its length when it was opened.
    existed: usize,
    /// Bytes from its start that have their room on the disk.
    reserved: AtomicUsize,
    /// Held by whoever changes its length or takes room.
    changing: Mutex<()>,
    counted: MappedBytes,
    allocate: Allocate,
}

/// A mapping of a whole file. Its bytes are initialised: zero, or what the file held.
#[derive(Debug)]
pub(crate) struct MappedBlock {
    map: MmapRaw,
    backing: Arc<BackingFile>,
}

impl MappedBlock {
    /// Maps a file of at least `bytes`: a temporary one, created and unlinked at once, or the one at `path`, which is
    /// created if it is not there, made longer if it is shorter, and used as it is if it is longer.
    ///
    /// # Errors
    /// [`Error::File`]: no bytes or too many, no such folder, another block that has this file, a refusal of the
    /// system. The file is as it was.
    pub(crate) fn create(path: Option<&Path>, bytes: usize) -> Result<MappedBlock> {
        Self::with(path, bytes, allocate)
    }

    /// Maps a temporary file in this folder, with room on the disk for all of its bytes.
    ///
    /// # Errors
    /// As of [`MappedBlock::create`], and a full disk.
    pub(crate) fn create_in(folder: &Path, bytes: usize) -> Result<MappedBlock> {
        let block = Self::at(folder.to_owned(), None, bytes, (allocate, File::try_lock))?;
        block.reserve(bytes)?;
        Ok(block)
    }

    fn with(path: Option<&Path>, bytes: usize, allocate: Allocate) -> Result<MappedBlock> {
        Self::at(path.map_or_else(std::env::temp_dir, Path::to_owned), path, bytes, (allocate, File::try_lock))
    }

    /// Maps the file at `path`, or a temporary one in the folder `place`.
    fn at(
        place: PathBuf,
        path: Option<&Path>,
        bytes: usize,
        (allocate, try_lock): (Allocate, TryLock),
    ) -> Result<MappedBlock> {
        let length = length_for(&place, bytes)?;
        let cannot = |error| failed(&place, "cannot be opened as memory", &error);
        let (file, is_new) = match path {
            Some(path) => named(path).map_err(cannot)?,
            None => (temporary(&place).map_err(cannot)?, false),
        };
        let found = regular_length(&file).map_err(cannot)?;
        if path.is_some()
            && let Err(error) = try_lock(&file)
        {
            // Whoever has it locked has a use for it.
            if is_new && matches!(error, TryLockError::Error(_)) {
                let _ = fs::remove_file(&place);
            }
            return Err(not_locked(&place, error));
        }
        let existed = usize::try_from(found).unwrap_or(usize::MAX);
        let (reserved, changing, counted) = Default::default();
        let backing = BackingFile { file, path: place, existed, reserved, changing, counted, allocate };
        match backing.map(length) {
            Ok(map) => Ok(MappedBlock { map, backing: Arc::new(backing) }),
            Err(error) => {
                if is_new {
                    let _ = fs::remove_file(&backing.path);
                }
                Err(error)
            }
        }
    }

    /// All bytes of the mapping: a multiple of 4096, or the length of the file if that was longer already.
    pub(crate) fn span(&self) -> Span {
        let ptr = NonNull::new(self.map.as_mut_ptr()).expect("nothing is mapped at null");
        Span::new(ptr, self.map.len())
    }

    /// From now on a write to the first `bytes` cannot fail for lack of room on the disk, as far as the file system
    /// keeps its promise (one that writes to new places each time, or compresses, may not). One load if they were
    /// reserved already.
    ///
    /// # Errors
    /// [`Error::File`]: a full disk, or more bytes than the mapping has. What was reserved stays so.
    #[inline]
    pub(crate) fn reserve(&self, bytes: usize) -> Result<()> {
        // Acquire: pairs with the Release in `reserve_more`: whoever sees the number comes after the room was taken for
        // it.
        let reserved = self.backing.reserved.load(Ordering::Acquire);
        if bytes <= reserved.min(self.map.len()) { Ok(()) } else { self.reserve_more(bytes) }
    }

    #[cold]
    fn reserve_more(&self, bytes: usize) -> Result<()> {
        let BackingFile { file, path, reserved, allocate, .. } = &*self.backing;
        if bytes > self.map.len() {
            let why = format!("{bytes} bytes were to be reserved of {}; let the block grow before", self.map.len());
            return Err(Error::file(Some(path), None, why));
        }
        let _one = self.backing.change();
        // Acquire: as above; the lock alone would do.
        let from = reserved.load(Ordering::Acquire);
        if bytes <= from {
            return Ok(());
        }
        let take = |to: usize| allocate(file, from as u64, (to - from) as u64).map(|()| to);
        let end = |grain| bytes.checked_next_multiple_of(grain).map_or(self.map.len(), |to| to.min(self.map.len()));
        // Where there is no room for a whole piece, there may be for what is needed now.
        let taken = take(end(PIECE)).or_else(|_| take(end(PAGE)));
        let what = format!("there is no room for bytes {from} to {bytes}");
        let to = taken.map_err(|error| failed(path, &what, &error))?;
        // Release: pairs with the Acquire in `reserve` and `sync`.
        reserved.store(to, Ordering::Release);
        Ok(())
    }

    /// Writes to the disk what was changed in the bytes that were reserved or in the file from the start, and waits
    /// for it.
    ///
    /// # Errors
    /// [`Error::File`]: the disk failed.
    pub(crate) fn sync(&self) -> Result<()> {
        let BackingFile { existed, reserved, path, .. } = &*self.backing;
        // Acquire: as in `reserve`.
        let used = reserved.load(Ordering::Acquire).max(*existed).min(self.map.len());
        if used == 0 {
            return Ok(());
        }
        self.map.flush_range(0, used).map_err(|error| failed(path, "cannot be written to the disk", &error))
    }

    /// The same file with at least `bytes`, mapped once more. This mapping stays, and both show the same bytes; what
    /// was reserved is reserved for both.
    ///
    /// # Errors
    /// As of [`MappedBlock::create`].
    pub(crate) fn grown(&self, bytes: usize) -> Result<MappedBlock> {
        let map = self.backing.map(length_for(&self.backing.path, bytes)?)?;
        Ok(MappedBlock { map, backing: self.backing.clone() })
    }
}

impl BackingFile {
    /// Nothing can panic while it is held.
    fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps all of the file, after making it `length` bytes long if it is shorter.
    fn map(&self, length: usize) -> Result<MmapRaw> {
        let _one = self.change();
        let cannot = |error| failed(&self.path, &format!("cannot be mapped with {length} bytes"), &error);
        let (found, wanted) = (self.file.metadata().map_err(cannot)?.len(), length as u64);
        if found < wanted {
            self.file.set_len(wanted).map_err(cannot)?;
        }
        let whole = usize::try_from(found.max(wanted)).map_err(|_| cannot(ErrorKind::FileTooLarge.into()))?;
        let map = MmapOptions::new().len(whole).map_raw(&self.file).map_err(|error| {
            if found < wanted {
                // Nobody has mapped the new part.
                let _ = self.file.set_len(found);
            }
            cannot(error)
        })?;
        self.counted.raise(whole);
        Ok(map)
    }
}

/// The length of a file for so many bytes.
fn length_for(path: &Path, bytes: usize) -> Result<usize> {
    let rounded = bytes.checked_next_multiple_of(PAGE).filter(|&length| length > 0 && length <= isize::MAX as usize);
    rounded.ok_or_else(|| {
        let why = format!("{bytes} bytes cannot be mapped; 1 to {} can", isize::MAX as usize / PAGE * PAGE);
        Error::file(Some(path), None, why)
    })
}

/// The file at a path, and whether it was created by this call.
fn named(path: &Path) -> io::Result<(File, bool)> {
    let options = || OpenOptions::new().read(true).write(true).clone();
    match options().create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => options().open(path).map(|file| (file, false)),
        opened => opened.map(|file| (file, true)),
    }
}

/// A new file that nobody else can open.
fn temporary(folder: &Path) -> io::Result<File> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    loop {
        // Relaxed: nothing but the number itself is read.
        let path = folder.join(format!("ndgc-{}-{}.mapped", process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        match options.open(&path) {
            // What an earlier process with this id left when it was ended between the two calls.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => {
                let file = opened?;
                fs::remove_file(&path)?;
                return Ok(file);
            }
        }
    }
}

/// The length of a file, if it is one that can be lengthened.
fn regular_length(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(metadata.len()) } else { Err(io::Error::other("it is not a regular file")) }
}

/// Why other blocks cannot be kept from a file.
#[cold]
fn not_locked(path: &Path, error: TryLockError) -> Error {
    match error {
        TryLockError::WouldBlock => {
            let why =
                "is mapped by another workspace, here or in another process; destroy that one, or use another file";
            Error::file(Some(path), None, why)
        }
        TryLockError::Error(error) => failed(path, "cannot be locked against others", &error),
    }
}

/// What went wrong with a file, and how to go on.
#[cold]
fn failed(path: &Path, what: &str, error: &io::Error) -> Error {
    let instead = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room there, ask for less, or use another disk",
        ErrorKind::FileTooLarge | ErrorKind::OutOfMemory | ErrorKind::InvalidInput => "ask for less",
        _ => "use another file or folder (TMPDIR names that of temporary files)",
    };
    Error::file(Some(path), None, format!("{what}: {error}; {instead}"))
}

/// `posix_fallocate` would do, but where the file system has no such call it writes a zero into each block that begins
/// with one, also into one that somebody has just changed.
#[cfg(target_os = "linux")]
fn allocate(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    loop {
        let Err(error) = system::allocate(file, from, bytes) else { return Ok(()) };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return rewrite(file, from, bytes),
            _ => return Err(error),
        }
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
fn allocate(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    rewrite(file, from, bytes)
}

/// Windows: only a file that was marked as sparse has holes, and none is here. Elsewhere nothing is known.
#[cfg(not(unix))]
fn allocate(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// Writes what is there, which fills the holes. Nobody uses bytes before they are reserved, so no write is lost.
#[cfg(unix)]
fn rewrite(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;

    let mut piece = vec![0; 1 << 16];
    let end = from.saturating_add(bytes);
    let mut at = from;
    while at < end {
        let part = &mut piece[..(end - at).min(1 << 16) as usize];
        file.read_exact_at(part, at)?;
        file.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    Ok(())
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests;
