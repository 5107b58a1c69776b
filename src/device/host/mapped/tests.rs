//! Files as memory: sparse, kept, grown, reserved, locked.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use super::*;

const GIB: usize = 1 << 30;

/// A path in the temporary folder that is this test's alone; the file goes with it.
struct Named(PathBuf);

impl Named {
    fn new(name: &str) -> Self {
        Named(std::env::temp_dir().join(format!("ndgc-{}-{name}", process::id())))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn write(block: &MappedBlock, at: usize, bytes: &[u8]) {
    assert!(at + bytes.len() <= block.span().bytes());
    // SAFETY: inside the mapping, which only this thread uses.
    #[allow(unsafe_code)]
    unsafe {
        block.span().ptr().as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
    }
}

fn read(block: &MappedBlock, at: usize, len: usize) -> Vec<u8> {
    assert!(at + len <= block.span().bytes());
    let mut out = vec![0; len];
    // SAFETY: inside the mapping, which only this thread uses.
    #[allow(unsafe_code)]
    unsafe {
        out.as_mut_ptr().copy_from_nonoverlapping(block.span().ptr().as_ptr().add(at), len);
    }
    out
}

fn room(block: &MappedBlock) -> u64 {
    block.backing.file.metadata().expect("an open file").blocks() * 512
}

/// Maps a file that was let go. A child that another test starts has it too, for a moment.
fn again(named: &Named, bytes: usize) -> MappedBlock {
    let begun = Instant::now();
    loop {
        match MappedBlock::create(Some(&named.0), bytes) {
            Err(_) if begun.elapsed() < Duration::from_secs(60) => std::thread::yield_now(),
            made => return made.expect("free again"),
        }
    }
}

fn why<T: std::fmt::Debug>(answer: Result<T>) -> String {
    match answer {
        Err(Error::File { path: Some(_), offset: None, why, .. }) => why,
        other => panic!("an error about a file: {other:?}"),
    }
}

#[test]
fn a_temporary_file_is_sparse_and_has_no_name() {
    let begun = Instant::now();
    let block = MappedBlock::create(None, GIB).expect("a temporary file");
    println!("1 GiB created in {:.3} ms", begun.elapsed().as_secs_f64() * 1e3);
    let metadata = block.backing.file.metadata().expect("an open file");
    assert_eq!((metadata.nlink(), metadata.len(), metadata.mode() & 0o777), (0, GIB as u64, 0o600));
    assert!(room(&block) < 1 << 20);
    assert_eq!(block.span().bytes(), GIB);
    assert_eq!(read(&block, GIB - 8, 8), [0; 8]);
    block.sync().expect("nothing to write");
}

#[test]
fn what_a_named_file_holds_stays_and_a_longer_one_is_used_as_it_is() {
    let named = Named::new("stays");
    let block = MappedBlock::create(Some(&named.0), 100_000).expect("a new file");
    assert_eq!(block.span().bytes(), 102_400, "whole pages");
    block.reserve(100_000).expect("room");
    write(&block, 99_990, b"ten bytes.");
    block.sync().expect("a disk");
    drop(block);
    fs::OpenOptions::new().write(true).open(&named.0).expect("there").set_len(100_000).expect("shorter");
    let block = again(&named, 50_000);
    assert_eq!(block.span().bytes(), 100_000);
    block.reserve(100_000).expect("room");
    assert_eq!(read(&block, 99_990, 10), b"ten bytes.", "reserving overwrites nothing");
    drop(block);
    assert_eq!(fs::metadata(&named.0).expect("there").len(), 100_000);
}

#[test]
fn growth_keeps_the_bytes_and_the_old_mapping() {
    let small = MappedBlock::create(None, 10_000).expect("a temporary file");
    small.reserve(10_000).expect("room");
    write(&small, 0, b"before");
    let large = small.grown(3 << 20).expect("longer");
    assert_eq!((small.span().bytes(), large.span().bytes()), (12_288, 3 << 20));
    assert_eq!(read(&large, 0, 6), b"before");
    large.reserve(3 << 20).expect("room");
    write(&large, 3, b"wards");
    assert_eq!(read(&small, 0, 8), b"befwards");
    assert!(why(small.reserve(12_289)).contains("grow"));
    assert_eq!(small.grown(1).expect("as it is").span().bytes(), 3 << 20, "never shorter");
    assert!(why(small.grown(0)).contains("0 bytes"));
    drop(small);
    assert_eq!(read(&large, 0, 8), b"befwards");
}

#[test]
fn more_than_four_gib_are_reached_to_the_last_page() {
    let block = MappedBlock::create(None, 5 * GIB).expect("a temporary file");
    // Not reserved, since that would take all of it: the disk has room for two pages.
    write(&block, 5 * GIB - 4, b"last");
    write(&block, GIB - 4, b"2^30");
    let grown = block.grown(6 * GIB).expect("longer");
    assert_eq!(read(&grown, 5 * GIB - 4, 5), b"last\0");
    assert_eq!(read(&grown, GIB - 4, 5), b"2^30\0", "no address was cut to 32 bits");
    assert!(room(&grown) < 1 << 20);
}

#[test]
fn room_is_taken_in_pieces_and_once() {
    let block = MappedBlock::create(None, 2 * PIECE + 5000).expect("a temporary file");
    block.reserve(1).expect("room");
    let first = room(&block);
    assert!((PIECE as u64..PIECE as u64 * 5 / 4).contains(&first), "{first}");
    block.reserve(PIECE).expect("room");
    assert_eq!(room(&block), first);
    block.reserve(2 * PIECE + 1).expect("room");
    assert!(room(&block) >= block.span().bytes() as u64, "to the end, and no further");
    assert_eq!(block.backing.file.metadata().expect("an open file").len(), block.span().bytes() as u64);
}

/// A disk of one MiB.
fn of_one_mib(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    if from + bytes > 1 << 20 { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { allocate(file, from, bytes) }
}

#[test]
fn a_full_disk_is_an_error_and_what_was_reserved_stays() {
    let block = MappedBlock::with(None, 16 << 20, of_one_mib).expect("no room is needed yet");
    block.reserve(1 << 20).expect("just what there is, though no whole piece");
    let full = "there is no room for bytes 1048576 to 1048577: No space left on device (os error 28); make room there, \
                ask for less, or use another disk";
    assert_eq!(why(block.reserve((1 << 20) + 1)), full);
    block.reserve(1 << 20).expect("as before");
    assert!(block.reserve(16 << 20).is_err(), "again");
    assert_eq!(block.backing.reserved.load(Ordering::Relaxed), 1 << 20);
}

#[test]
fn without_a_call_for_it_room_is_taken_by_writing_what_is_there() {
    let block = MappedBlock::with(None, 300_000, rewrite).expect("a temporary file");
    write(&block, 200_000, b"here");
    block.reserve(300_000).expect("room");
    assert_eq!(read(&block, 199_999, 6), b"\0here\0");
    block.sync().expect("a disk");
    assert!(room(&block) >= 300_000);
    let full = OpenOptions::new().read(true).write(true).open("/dev/full").expect("a device that is always full");
    assert_eq!(rewrite(&full, 0, 10).expect_err("full").kind(), ErrorKind::StorageFull);
    assert!(allocate(&full, 0, 10).is_err(), "and no error is taken for success");
}

#[test]
fn a_file_is_one_blocks_alone() {
    let named = Named::new("alone");
    let first = MappedBlock::create(Some(&named.0), 1).expect("a new file");
    assert!(why(MappedBlock::create(Some(&named.0), 1 << 20)).contains("another workspace"));
    assert_eq!(fs::metadata(&named.0).expect("there").len(), 4096, "not even longer");
    let grown = first.grown(8192).expect("its own");
    drop(first);
    assert!(MappedBlock::create(Some(&named.0), 1).is_err(), "it is mapped still");
    drop(grown);
    again(&named, 1);
}

/// A file system that knows no locks.
fn without_locks(_: &File) -> std::result::Result<(), TryLockError> {
    Err(TryLockError::Error(io::Error::from_raw_os_error(libc::ENOLCK)))
}

#[test]
fn where_locks_are_refused_no_file_is_left() {
    let named = Named::new("no-locks");
    let refused = || why(MappedBlock::at(named.0.clone(), Some(&named.0), 1, (allocate, without_locks)));
    let told = "cannot be locked against others: No locks available (os error 37); use another file or folder (TMPDIR \
                names that of temporary files)";
    assert_eq!(refused(), told);
    assert!(!named.0.exists());
    fs::write(&named.0, b"content").expect("a file");
    assert_eq!(refused(), told);
    assert_eq!(fs::read(&named.0).expect("as it was"), b"content");
}

#[test]
fn names_are_as_long_as_the_system_lets_them() {
    let long = |len: usize| {
        let start = format!("ndgc-{}-", process::id());
        Named(std::env::temp_dir().join(format!("{start}{}", "n".repeat(len - start.len()))))
    };
    for len in [100, 255] {
        let named = long(len);
        MappedBlock::create(Some(&named.0), 1).expect("a name like others");
        assert!(named.0.exists());
    }
    assert!(why(MappedBlock::create(Some(&long(256).0), 1)).contains("another file"));
}

#[test]
fn what_cannot_be_mapped_is_an_error_and_leaves_nothing() {
    let named = Named::new("nothing");
    for bytes in [0, usize::MAX, isize::MAX as usize] {
        let told = format!("{bytes} bytes cannot be mapped; 1 to 9223372036854771712 can");
        assert_eq!(why(MappedBlock::create(Some(&named.0), bytes)), told);
        assert_eq!(why(MappedBlock::create(None, bytes)), told);
        assert!(!named.0.exists(), "{bytes}");
    }
    for path in [Some(&*named.0), None] {
        // Some file systems say that it is too large, of others the system has no addresses for so much.
        let refused = why(MappedBlock::create(path, 1 << 62));
        let refused = refused.strip_prefix("cannot be mapped with 4611686018427387904 bytes: ");
        assert!(refused.is_some_and(|rest| rest.ends_with("; ask for less")), "{refused:?}");
        assert!(!named.0.exists());
    }
    fs::write(&named.0, b"content").expect("a file");
    assert!(MappedBlock::create(Some(&named.0), 1 << 62).is_err());
    assert_eq!(fs::read(&named.0).expect("as it was"), b"content");
    assert!(why(MappedBlock::create(Some(Path::new("/dev/null")), 1)).contains("regular"));
    assert!(MappedBlock::create(Some(&std::env::temp_dir()), 1).is_err(), "a folder");
    assert!(MappedBlock::create(Some(&named.0.join("inside")), 1).is_err(), "no folder");
    let mut found = [0; 7];
    File::open(&named.0).and_then(|file| file.read_exact_at(&mut found, 0)).expect("unlocked and whole");
    assert_eq!(&found, b"content");
}
