//! What the system is asked for beyond std, each as a function that is safe to call.
//!
//! The unsafe code calls the C library, with numbers, a local to write to, a function of this file, or memory that the
//! caller has alone: by a borrow, or since it is a mapping's own.

#![allow(unsafe_code)]

use std::io::Read as _;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// A barrier on every running thread of the process, for who runs none himself.
pub(crate) mod membarrier {
    /// Prepares the process for [`interrupt`]. `false` where there is no such call.
    pub(crate) fn register() -> bool {
        call(1 << 4)
    }

    /// A full barrier on every running thread of the process, which was registered. `false` if it was not.
    pub(crate) fn interrupt() -> bool {
        call(1 << 3)
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn call(command: libc::c_long) -> bool {
        // SAFETY: `membarrier` takes three integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn call(_: i64) -> bool {
        false
    }
}

/// A large page of the system.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Asks for large pages under memory that is not touched yet, where it has room for whole ones. Returns the bytes under
/// which the system will try; without any, nothing changes.
pub(crate) fn advise_large_pages<T>(memory: &mut [std::mem::MaybeUninit<T>]) -> usize {
    let all = memory.as_mut_ptr_range();
    let before = all.start.addr().next_multiple_of(LARGE_PAGE) - all.start.addr();
    let bytes = size_of_val(memory).saturating_sub(before) / LARGE_PAGE * LARGE_PAGE;
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: advice about a part of the slice; its bytes stay what they are.
    let advised = bytes > 0
        && unsafe { libc::madvise(all.start.wrapping_byte_add(before).cast(), bytes, libc::MADV_HUGEPAGE) == 0 };
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let advised = false;
    if advised { bytes } else { 0 }
}

/// A range of the address space, whose bytes are zero when it is new. It knows only of their addresses: who uses them
/// has to know what else becomes of it.
#[derive(Debug)]
pub(crate) struct Mapping(MmapRaw);

impl Mapping {
    /// A range of so many bytes, in large pages where the system has some. `None`: there is none.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let map = MmapRaw::from(MmapOptions::new().len(bytes).map_anon().ok()?);
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Some(Mapping(map))
    }

    /// Its first address.
    pub(crate) fn start(&self) -> NonNull<u8> {
        NonNull::new(self.0.as_mut_ptr()).expect("nothing is mapped at null")
    }

    /// Where in it an address lies, if it does.
    pub(crate) fn place_of(&self, address: NonNull<u8>) -> Option<usize> {
        let place = address.addr().get().checked_sub(self.start().addr().get());
        place.filter(|&place| place < self.0.len())
    }

    /// Gives the pages of a part back, whose bytes are zero from then on. Whether they went. Of pages that the part has
    /// not whole, which may be larger than its grain, its bytes are made zero.
    pub(crate) fn return_pages(&mut self, place: usize, bytes: usize) -> bool {
        assert!(place.checked_add(bytes).is_some_and(|end| end <= self.0.len()), "a part of the mapping");
        #[cfg(target_os = "linux")]
        {
            let Some(page) = configured(libc::_SC_PAGESIZE) else { return false };
            let (end, at) = (place + bytes, |place: usize| self.0.as_mut_ptr().wrapping_add(place));
            let whole = whole_pages(place..end, page as usize);
            // SAFETY: bytes of this mapping, which is borrowed alone, has no file, and lends its bytes to nobody: they
            // stay what they were, or become zero. The system would take the rest of a page along.
            unsafe {
                if libc::madvise(at(whole.start).cast(), whole.len(), libc::MADV_DONTNEED) != 0 {
                    return false;
                }
                at(place).write_bytes(0, whole.start - place);
                at(whole.end).write_bytes(0, end - whole.end);
            }
            true
        }
        #[cfg(not(target_os = "linux"))]
        {
            false
        }
    }
}

/// The pages that a part has whole; nothing at its end if it has none.
#[cfg(target_os = "linux")]
fn whole_pages(part: std::ops::Range<usize>, page: usize) -> std::ops::Range<usize> {
    let start = part.start.next_multiple_of(page).min(part.end);
    start..(part.end / page * page).max(start)
}

/// The word that a fork changes in the child, and what to.
static IN_CHILDREN: OnceLock<(&AtomicU32, u32)> = OnceLock::new();

/// From now on each forked child finds `value` in `word`, before it runs anything else. Once in a process.
pub(crate) fn store_in_children(word: &'static AtomicU32, value: u32) {
    if IN_CHILDREN.set((word, value)).is_ok() {
        #[cfg(unix)]
        // SAFETY: registers a handler that reads and stores atomics, which is allowed after a fork.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        }
    }
}

#[cfg(unix)]
extern "C" fn in_child() {
    if let Some((word, value)) = IN_CHILDREN.get() {
        // Relaxed: this is the child's only thread.
        word.store(*value, Ordering::Relaxed);
    }
}

/// Whether the word of [`store_in_children`] has its value: another thread may have had a lock when this process was
/// forked, and has it for ever.
pub(crate) fn is_forked_child() -> bool {
    // Relaxed: as above.
    IN_CHILDREN.get().is_some_and(|(word, value)| word.load(Ordering::Relaxed) == *value)
}

/// Seconds and nanoseconds of a clock that never goes back; if `coarse`, read in a few nanoseconds, and then it moves
/// every few milliseconds.
#[cfg(all(target_os = "linux", not(miri)))]
#[inline]
fn clock(coarse: bool) -> (u64, u64) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a `timespec` that is ours.
    unsafe {
        libc::clock_gettime(if coarse { libc::CLOCK_MONOTONIC_COARSE } else { libc::CLOCK_MONOTONIC }, &mut now);
    }
    (now.tv_sec as u64, now.tv_nsec as u64)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn clock(_: bool) -> (u64, u64) {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let now = START.get_or_init(std::time::Instant::now).elapsed();
    (now.as_secs(), now.subsec_nanos().into())
}

/// Milliseconds of the coarse clock.
pub(crate) fn coarse_millis() -> u32 {
    let (seconds, nanos) = clock(true);
    (seconds * 1000 + nanos / 1_000_000) as u32
}

/// Nanoseconds of the fine one.
pub(crate) fn nanos() -> u64 {
    let (seconds, nanos) = clock(false);
    seconds * 1_000_000_000 + nanos
}

/// Gives each byte of this part of a file its place on the disk, and changes none.
#[cfg(target_os = "linux")]
pub(crate) fn allocate(file: &std::fs::File, from: u64, bytes: u64) -> std::io::Result<()> {
    use std::io::{Error, ErrorKind};
    use std::os::fd::AsRawFd;

    let number = |value| libc::off_t::try_from(value).map_err(|_| Error::from(ErrorKind::FileTooLarge));
    let (at, len) = (number(from)?, number(bytes)?);
    // SAFETY: a call with numbers alone, of a file that is open; mode 0 changes no byte that the file has.
    let answer = unsafe { libc::fallocate(file.as_raw_fd(), 0, at, len) };
    if answer == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// What the system answers for a limit or a size of its own.
#[cfg(target_os = "linux")]
fn configured(name: libc::c_int) -> Option<u64> {
    // SAFETY: a call that takes a number and returns one.
    let answer = unsafe { libc::sysconf(name) };
    u64::try_from(answer).ok()
}

/// Bytes of the machine's memory, and of what the process's control group may have, as in a container, if that is less.
/// Read once.
#[cfg(target_os = "linux")]
fn memory_bytes() -> Option<(u64, Option<u64>)> {
    static BYTES: OnceLock<Option<(u64, Option<u64>)>> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let machine = configured(libc::_SC_PHYS_PAGES)?.checked_mul(configured(libc::_SC_PAGESIZE)?)?;
        let groups = std::fs::read("/proc/self/cgroup").unwrap_or_default();
        Some((machine, group_limit(&groups, "/sys/fs/cgroup".as_ref()).filter(|&limit| limit < machine)))
    })
}

#[cfg(not(target_os = "linux"))]
fn memory_bytes() -> Option<(u64, Option<u64>)> {
    None
}

/// Bytes of memory that the process may have: the machine's, or what its control group may have, as in a container.
pub(crate) fn physical_bytes() -> Option<u64> {
    memory_bytes().map(|(machine, group)| group.unwrap_or(machine))
}

/// Bytes of memory that the process's control group may have, if that is less than the machine has.
pub(crate) fn group_bytes() -> Option<u64> {
    memory_bytes()?.1
}

/// The least limit on memory of the control groups that a process is in, and of those above them: `0::/path` in a line
/// of `/proc/self/cgroup` is one of version 2, `4:memory:/path` of version 1. Where a container shows its own group as
/// the root, the path is of outside and leads nowhere, and the root has the limit.
#[cfg(target_os = "linux")]
fn group_limit(groups: &[u8], root: &std::path::Path) -> Option<u64> {
    // A name of a group need be no text: then its own limit is not found, and those of others are.
    let groups = String::from_utf8_lossy(groups);
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (top, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            some if some.split(',').any(|name| name == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        let own = top.join(path.trim_start_matches('/'));
        let limits = own.ancestors().take_while(|at| at.starts_with(&top));
        // A word, as `max`, is no limit.
        limits.filter_map(|at| std::fs::read_to_string(at.join(file)).ok()?.trim_end().parse().ok()).min()
    };
    groups.lines().filter_map(of_line).min()
}

/// Bytes of memory that the process has resident, without those of files, which the system takes back where it needs
/// them.
#[cfg(target_os = "linux")]
pub(crate) fn resident_bytes() -> Option<u64> {
    // Without a heap that may be exhausted.
    let mut text = [0; 128];
    let count = std::fs::File::open("/proc/self/statm").ok()?.read(&mut text).ok()?;
    let mut pages =
        str::from_utf8(&text[..count]).ok()?.split_whitespace().skip(1).map_while(|field| field.parse().ok());
    let (all, of_files): (u64, u64) = (pages.next()?, pages.next()?);
    all.saturating_sub(of_files).checked_mul(configured(libc::_SC_PAGESIZE)?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn resident_bytes() -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Pages of the system may be larger than what blocks are cut of.
    #[cfg(not(miri))]
    #[test]
    fn what_lies_beside_a_part_that_goes_back_stays_though_it_has_the_same_page() {
        let page = configured(libc::_SC_PAGESIZE).expect("the system says so") as usize;
        let mut map = Mapping::new(4 * page).expect("a range");
        let start = map.start().as_ptr();
        // SAFETY: the bytes of the mapping, which is this test's.
        unsafe { start.write_bytes(1, 4 * page) };
        assert!(map.return_pages(page, page + 20));
        // SAFETY: as above.
        let all = unsafe { std::slice::from_raw_parts(start, 4 * page) };
        assert!(all.iter().enumerate().all(|(at, &byte)| (byte == 0) == (page..2 * page + 20).contains(&at)));
        assert_eq!((whole_pages(1..9, 4), whole_pages(4..8, 4)), (4..8, 4..8));
        assert_eq!((whole_pages(5..7, 4), whole_pages(3..7, 4)), (7..7, 4..4));
    }

    #[test]
    fn the_limit_of_a_container_is_that_of_its_group_or_of_one_above() {
        let root = std::env::temp_dir().join(format!("ndgc-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("in the folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        let limit = |groups: &str| group_limit(groups.as_bytes(), &root);
        assert_eq!(limit("0::/a/b\n"), None, "nothing is there");
        write("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), None);
        write("a/memory.max", "3000\n");
        assert_eq!((limit("0::/a/b\n"), limit("0::/c\n")), (Some(3000), None));
        write("a/b/memory.max", "2000\n");
        assert_eq!(limit("0::/a/b\n"), Some(2000));
        let odd = b"1:name=systemd:/caf\xe9\n0::/a/b\n";
        assert_eq!(group_limit(odd, &root), Some(2000), "a group whose name is no text");
        write("memory.max", "1000\n");
        assert_eq!(limit("0::/of/outside\n"), Some(1000), "the root is the container's own group");
        write("memory/docker/memory.limit_in_bytes", "700\n");
        assert_eq!(limit("12:cpuset:/docker\n4:memory:/docker\n1:name=systemd:/docker\n"), Some(700));
        assert_eq!(limit("not a group\n"), None);
        std::fs::remove_dir_all(&root).expect("it is there");
    }
}
