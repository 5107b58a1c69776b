//! Files that are whole whenever the program or the machine ends.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ndgc::{Error, Result};

/// Links may lead to each other for ever; systems follow as many.
const LINKS_MAX: usize = 40;

/// What a link leads to, also by other links, whether it is there or not; a path that is none, itself. One of the links
/// where these lead on and on.
pub(super) fn followed(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&target) {
            // Beside the link, unless it is absolute.
            Ok(to) => target.set_file_name(to),
            Err(_) => break,
        }
    }
    match target == path {
        true => target,
        false => fs::canonicalize(&target).unwrap_or(target),
    }
}

/// Writes a file of these bytes. What had its name stays whole until they are on the disk. A link stays a link, and
/// what it leads to is replaced, or made.
///
/// # Errors
/// [`Error::File`]; what had the name has it still, or the bytes do.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let target = followed(path);
    if target.is_symlink() {
        let why = format!("is a link to itself, or leads on by more than {LINKS_MAX} others");
        return Err(Error::file(Some(path), None, why));
    }
    // A file in the place of a device or a pipe would end that for all programs.
    if fs::metadata(&target).is_ok_and(|there| !there.is_file()) {
        return Err(Error::file(Some(path), None, "is there, and is not a regular file"));
    }
    let (beside, opened) = loop {
        let mut beside = target.as_os_str().to_owned();
        // Relaxed: a number for each is all.
        beside.push(format!(".{}-{}.part", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        match File::create_new(&beside) {
            // Of a process with this one's number, on another machine, or killed before this one began.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => break (beside, opened),
        }
    };
    let write = || {
        let mut file = opened?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, &target)?;
        sync_folder(&target)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&beside);
        Error::file(Some(path), None, error.to_string())
    })
}

/// Brings a file that has its name to the disk, and the name.
///
/// # Errors
/// [`Error::File`].
pub(super) fn sync(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|file| file.sync_all()).and_then(|()| sync_folder(path));
    synced.map_err(|error| Error::file(Some(path), None, error.to_string()))
}

/// Brings the names of a file's folder to the disk, where there is a way: not on every system and file system, nor in a
/// folder that may be written and not read.
fn sync_folder(file: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let no_way = [ErrorKind::InvalidInput, ErrorKind::Unsupported, ErrorKind::PermissionDenied];
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if no_way.contains(&error.kind()) => Ok(()),
        done => done,
    }
}
