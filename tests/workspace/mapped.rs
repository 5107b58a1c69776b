//! Mapped workspaces: temporary and named files, across processes, growth, spill, what a full disk does.

#![allow(unsafe_code)]
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use ndgc::{
    D, DType, Device, Error, LocationPolicy, ResetPolicy, SpillPolicy, Tensor, Workspace, WorkspaceConfig,
    WorkspaceConfigBuilder, destroy_all_workspaces_for_current_thread, nn,
};

use crate::common::{system::busy, text_of};
use crate::workspace::rings::{MIB, assert_filled, cycle_on, in_use, made};
use crate::workspace::support::{alone, el, filled};

fn mapped(bytes: u64) -> WorkspaceConfigBuilder {
    WorkspaceConfig::builder().initial_size(bytes).policy_location(LocationPolicy::Mmap)
}

/// A path that is this test's alone; the file goes with it.
struct Named(PathBuf);

impl Named {
    fn new(name: &str) -> Self {
        Named(std::env::temp_dir().join(format!("ndgc-{}-{name}", std::process::id())))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn at(path: &Path, builder: WorkspaceConfigBuilder) -> WorkspaceConfigBuilder {
    // SAFETY: the file has a name that only this test uses, and nothing else writes to it while it is mapped.
    unsafe { builder.temp_file_path(path) }
}

/// The doubles at the begin of a file.
fn doubles_of(path: &Path, count: usize) -> Vec<f64> {
    let bytes = std::fs::read(path).unwrap();
    bytes.chunks_exact(8).take(count).map(|x| f64::from_le_bytes(x.try_into().unwrap())).collect()
}

/// Waits until nobody keeps others from a file: a process that another test starts has it too, for a moment.
fn until_free(path: &Path) {
    let (file, begun) = (std::fs::File::open(path).unwrap(), Instant::now());
    while file.try_lock().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "its workspace is destroyed, and it is not let go");
        std::thread::yield_now();
    }
    // Closing is not enough, as above.
    file.unlock().unwrap();
}

/// Bytes of the disk that a file takes.
fn room(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).unwrap()) * 512
}

/// The sample of ND4J's guide, as written: there it throws, for a mapped workspace may not learn; without that it takes
/// 2.5 s, for the file is filled.
#[test]
fn r15_the_sample_of_the_documentation() {
    alone(|| {
        let mmap = WorkspaceConfig::builder()
            .initial_size(1_000_000_000)
            .policy_location(LocationPolicy::Mmap)
            .build()
            .unwrap();
        let mut fastest = Duration::MAX;
        for _ in 0..3 {
            // What a processor takes: others may keep the disk, and the machine.
            let begun = busy();
            let cycle = Workspace::enter("M2", &mmap).unwrap();
            fastest = fastest.min(busy() - begun);
            let x = Tensor::zeros(10_000, DType::F32, &Device::Cpu).unwrap();
            assert!(x.is_attached());
            assert_eq!(x.to_vec::<f32>().unwrap(), [0.; 10_000]);
            let stats = cycle.stats();
            assert_eq!((stats.location, stats.offset), ("mapped file", 40_000u64.next_multiple_of(64)));
            assert!(stats.size >= 1_000_000_000);
            cycle.leave();
            destroy_all_workspaces_for_current_thread().unwrap();
        }
        println!("1 GB made and entered in {:.3} ms", fastest.as_secs_f64() * 1e3);
        assert!(fastest < Duration::from_millis(50), "{fastest:?}");
    });
}

#[test]
fn r15_more_than_four_gib() {
    alone(|| {
        // 1280 blocks of 4 MiB: a ring gives each cycle a whole one, so that the last begins 4 MiB before the end.
        const BLOCKS: u64 = 1280;
        let bytes = 5 << 30;
        let config = mapped(bytes).policy_reset(ResetPolicy::EndOfBufferReached);
        let named = Named::new("5GiB");
        let workspace = made("LARGE", at(&named.0, config.overallocation_limit((BLOCKS - 1) as f64)));
        assert!(room(&named.0) < MIB, "its length costs nothing");
        let mut kept = Vec::new();
        for number in 1..=BLOCKS {
            let cycle = workspace.activate().unwrap();
            let len = if number == BLOCKS { (4 << 20) / 8 } else { 16 };
            let array = match Tensor::full(number as f64, len, &Device::Cpu) {
                // Room is taken from the disk up to the last array.
                Err(Error::File { why, .. }) if why.contains("make room there") => {
                    return println!("skipped, the disk has no room left: {why}");
                }
                array => array.unwrap(),
            };
            if number == 1 || number > BLOCKS - 2 {
                kept.push(array);
            }
            cycle.leave();
            assert_eq!(workspace.stats().offset, number * (4 << 20));
        }
        assert_eq!((workspace.stats().size, workspace.stats().offset), (bytes, bytes), "full to the last byte");
        assert_eq!(workspace.stats().pinned_requests, 0);
        assert_filled(&kept[0], 1.);
        assert_filled(&kept[1], (BLOCKS - 1) as f64);
        assert_filled(&kept[2], BLOCKS as f64);
        let sum = (kept[0].sum_all().unwrap() + kept[2].max(0).unwrap()).unwrap();
        assert_eq!(sum.to_scalar::<f64>().unwrap(), 16. + BLOCKS as f64);
    });
}

#[test]
fn r15_a_named_file_stays_and_opens_again() {
    alone(|| {
        let named = Named::new("stays");
        let config = at(&named.0, mapped(MIB)).build().unwrap();
        Workspace::cycle("NAMED", &config, || {
            let array = filled(7., 100);
            Workspace::find("NAMED").unwrap().sync()?;
            assert_eq!(doubles_of(&named.0, 100), [7.; 100], "written on request");
            assert_filled(&array, 7.);
            Ok::<_, ndgc::Error>(())
        })
        .unwrap();
        // The lock of the file keeps a second workspace out, on this thread and elsewhere.
        let second = Workspace::enter("OTHER", &config);
        assert!(matches!(&second, Err(Error::File { why, .. }) if why.contains("another workspace")), "{second:?}");
        destroy_all_workspaces_for_current_thread().unwrap();
        assert_eq!(std::fs::metadata(&named.0).unwrap().len(), MIB);
        assert_eq!(doubles_of(&named.0, 100), [7.; 100]);
        // In another process, which finds the bytes and adds some.
        until_free(&named.0);
        let output = play("add", &named.0);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(doubles_of(&named.0, 120)[104..], [8.; 16]);
        let output = play("die", &named.0);
        assert!(!output.status.success(), "it was ended: {output:?}");
        assert_eq!(doubles_of(&named.0, 100), [9.; 100], "a process that was ended leaves what it wrote");
        Workspace::cycle("NAMED", &config, || filled(1., 8).sum_all().map(drop)).unwrap();
    });
}

const PART: &str = "NDGC_TEST_CHILD";
const FILE: &str = "NDGC_TEST_FILE";

/// Runs the part in a new process.
fn play(part: &str, file: &Path) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "workspace::mapped::the_part_of_a_child", "--nocapture", "--test-threads=1"]);
    command.env(PART, part).env(FILE, file).output().unwrap()
}

/// Not a test by itself: what the others run in a process of their own.
#[test]
fn the_part_of_a_child() {
    let (Ok(part), Some(file)) = (std::env::var(PART), std::env::var_os(FILE)) else { return };
    let file = PathBuf::from(file);
    let config = at(&file, mapped(MIB)).build().unwrap();
    match part.as_str() {
        "add" => {
            let _cycle = Workspace::enter("CHILD", &config).unwrap();
            // As long as what is there, which is then found behind it; both were written by this process's parent or
            // it.
            let first = filled(7., 100);
            let second = filled(8., 16);
            assert_eq!(Workspace::current().unwrap().stats().offset, el(100) + el(16));
            assert_eq!(doubles_of(&file, 100), first.to_vec::<f64>().unwrap());
            drop(second);
        }
        "die" => {
            let _cycle = Workspace::enter("CHILD", &config).unwrap();
            let _array = filled(9., 100);
            std::process::abort();
        }
        "limit" => the_file_cannot_grow(&file),
        other => panic!("no part is called {other}"),
    }
}

#[test]
fn r15_growth_keeps_what_the_file_holds() {
    alone(|| {
        let named = Named::new("grows");
        let config = at(&named.0, mapped(64 << 10)).policy_spill(SpillPolicy::Reallocate);
        let workspace = made("GROWS", config);
        assert_eq!(cycle_on(&workspace, &[8192]).externals, 0);
        let stats = cycle_on(&workspace, &[16, 8192, 8192]);
        assert_eq!((stats.externals, stats.size), (2, 64 << 10));
        let stats = workspace.stats();
        assert!(stats.size >= 2 * (64 << 10) + el(16), "{stats:?}");
        workspace.sync().unwrap();
        // Cycles 2 and 1, in this order.
        let found = doubles_of(&named.0, 8192);
        assert_eq!((&found[..16], &found[16..]), (&[2000.; 16][..], &[1000.; 8192 - 16][..]));
        assert_eq!(cycle_on(&workspace, &[16, 8192, 8192]).externals, 0);
        workspace.destroy().unwrap();
        assert_eq!(std::fs::metadata(&named.0).unwrap().len(), stats.size);
    });
}

#[test]
fn r15_a_ring_in_a_file_grows_when_nothing_in_it_is_leased() {
    alone(|| {
        let ring = mapped(64 << 10).policy_reset(ResetPolicy::EndOfBufferReached).overallocation_limit(3.);
        let workspace = made("FILE_RING", ring.policy_spill(SpillPolicy::Reallocate));
        let size = workspace.stats().size;
        let cycle = workspace.activate().unwrap();
        let (kept, lease) = (filled(-1., 100), cycle.lease().unwrap());
        cycle.leave();
        for _ in 0..40 {
            cycle_on(&workspace, &[12_500]);
            assert_filled(&kept, -1.);
        }
        assert_eq!(workspace.stats().size, size, "a second mapping would show the same bytes");
        drop(lease);
        for _ in 0..40 {
            cycle_on(&workspace, &[12_500]);
        }
        let stats = cycle_on(&workspace, &[12_500]);
        assert!(stats.size >= 4 * el(12_500) && stats.pinned_requests == 0, "{stats:?}");
        assert!(matches!(kept.to_vec::<f64>(), Err(Error::LeakedArray(_))));
    });
}

#[test]
fn w57_what_does_not_fit_spills_to_memory() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        let workspace = made("W57", mapped(200 << 20));
        // Zeros of more than the file take no time where nothing is written.
        let cycle = workspace.activate().unwrap();
        let (small, large) = (filled(1., 1000), filled(2., (200 << 20) / 8));
        let stats = cycle.stats();
        assert_eq!((stats.offset, stats.externals, stats.spilled), (el(1000), 1, 200 << 20));
        assert!(in_use(&Device::Cpu) >= before + (200 << 20));
        assert_filled(&small, 1.);
        assert_eq!(large.sum_all().unwrap().to_scalar::<f64>().unwrap(), 2. * ((200 << 20) / 8) as f64);
        cycle.leave();
        assert_eq!((workspace.stats().externals, workspace.stats().size), (0, 200 << 20));
        assert_eq!(in_use(&Device::Cpu), before);
    });
}

#[test]
fn w57_a_long_name_is_a_name() {
    alone(|| {
        let start = format!("ndgc-{}-", std::process::id());
        let named = Named(std::env::temp_dir().join(format!("{start}{}", "n".repeat(100 - start.len()))));
        let workspace = made("W57_LONG", at(&named.0, mapped(MIB)));
        assert_eq!(cycle_on(&workspace, &[1000]).externals, 0);
        assert!(named.0.exists());
    });
}

#[test]
fn w58_the_file_can_be_deleted_after_destroy() {
    alone(|| {
        let named = Named::new("deleted");
        let config = at(&named.0, mapped(MIB)).build().unwrap();
        for _ in 0..2 {
            let leaked = Workspace::cycle("W58", &config, || Ok::<_, ndgc::Error>(filled(1., 10))).unwrap();
            destroy_all_workspaces_for_current_thread().unwrap();
            assert!(matches!(leaked.to_vec::<f64>(), Err(Error::LeakedArray(_))));
            std::fs::remove_file(&named.0).unwrap();
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            assert!(!maps.contains(named.0.to_str().unwrap()), "nothing maps it any more");
        }
    });
}

/// Results of operations of all kinds.
fn results(x: &Tensor) -> ndgc::Result<Vec<Vec<f32>>> {
    let square = x.narrow(1, 0, 6)?;
    let image = x.reshape((1, 2, 3, 8))?;
    let kernel = x.flatten_all()?.narrow(0, 0, 16)?.reshape((2, 2, 2, 2))?;
    let ids = Tensor::new([5u32, 0, 3], &Device::Cpu)?;
    let weights = ndgc::Var::from_tensor(&x.detach())?;
    let loss = (weights.as_tensor() * x)?.exp()?.sum_all()?;
    let gradient = loss.backward()?.get(weights.as_tensor()).map(|g| g.detach());
    let all = [
        (x + x)?,
        (x * 2.)?,
        x.exp()?,
        x.t()?.contiguous()?,
        square.matmul(&x.contiguous()?)?,
        nn::ops::softmax(x, D::Minus1)?,
        image.conv2d(&kernel, 0, 1, 1, 1)?,
        x.sum_keepdim(0)?,
        x.max(1)?,
        x.argmax(1)?.to_dtype(DType::F32)?,
        x.index_select(&ids, 0)?,
        Tensor::cat(&[x, x], 0)?,
        x.cumsum(1)?,
        x.ge(0.2f32)?.to_dtype(DType::F32)?,
        x.to_dtype(DType::F64)?.to_dtype(DType::F32)?,
        gradient.expect("a gradient"),
    ];
    all.iter().map(Tensor::to_vec::<f32>).collect()
}

#[test]
fn r15_arrays_in_a_file_compute_like_others() {
    alone(|| {
        let values: Vec<f32> = (0..48).map(|n| ((n * 37 % 48) as f32) / 50.).collect();
        let x = Tensor::from_vec(values, (6, 8), &Device::Cpu).unwrap();
        let expected = results(&x).unwrap();
        let workspace = made("COMPUTE", mapped(MIB));
        let _cycle = workspace.activate().unwrap();
        let inside = x.migrate(false).unwrap();
        let found = results(&inside).unwrap();
        assert!(inside.is_attached());
        assert_eq!(found, expected);
        let stats = workspace.stats();
        assert!(stats.arrays > 20 && stats.externals == 0, "{stats:?}");
    });
}

/// A file system in memory: it knows before it gives any room that there is not enough.
const MEMORY: &str = "/dev/shm";

/// Bytes of the file system in memory, if there is one and it has an end.
fn memory_bytes() -> Option<u64> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    mounts.lines().find(|line| line.starts_with("tmpfs /dev/shm ") || line.starts_with("shm /dev/shm tmpfs"))?;
    let path = std::ffi::CString::new(MEMORY).ok()?;
    // SAFETY: `statvfs` is numbers alone, for which zeros are values; the call fills it, and the path ends with a zero.
    let (answer, stats) = unsafe {
        let mut stats: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &raw mut stats), stats)
    };
    (answer == 0 && (1..1 << 40).contains(&(stats.f_blocks * stats.f_frsize)))
        .then_some(stats.f_blocks * stats.f_frsize)
}

#[test]
fn r15_a_full_disk_is_a_typed_error_and_the_workspace_goes_on() {
    let Some(bytes) = memory_bytes() else { return println!("{MEMORY} is not a file system in memory") };
    alone(|| {
        let named = Named(Path::new(MEMORY).join(format!("ndgc-{}-full", std::process::id())));
        let workspace = made("FULL", at(&named.0, mapped(4 * bytes)));
        for _ in 0..2 {
            let cycle = workspace.activate().unwrap();
            let first = filled(1., 100);
            let before = cycle.stats();
            // More than it could ever have: so it refuses before it gives anything.
            let refused = Tensor::zeros(3 * bytes as usize, DType::U8, &Device::Cpu);
            let told = format!(
                "{}: there is no room for bytes {} to {}: No space left on device (os error 28); make room there, ask \
                 for less, or use another disk",
                named.0.display(),
                room(&named.0),
                el(100) + 3 * bytes
            );
            assert_eq!(text_of(&refused.unwrap_err()), told);
            assert_eq!(cycle.stats(), before, "a refused request leaves nothing");
            let second = filled(2., 100);
            assert_filled(&first, 1.);
            assert_filled(&second, 2.);
        }
        assert_eq!(cycle_on(&workspace, &[10]).externals, 0);
    });
}

#[test]
fn r15_a_file_that_may_not_grow_keeps_its_size() {
    let named = Named::new("limit");
    let output = play("limit", &named.0);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::metadata(&named.0).unwrap().len(), MIB);
}

/// The process may not make files longer than 1 MiB.
fn the_file_cannot_grow(file: &Path) {
    // SAFETY: calls with numbers and a struct of numbers; the signal that would end the process is ignored.
    unsafe {
        let limit = libc::rlimit { rlim_cur: MIB, rlim_max: MIB };
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    let workspace = made("GROWS", at(file, mapped(MIB)).policy_spill(SpillPolicy::Reallocate));
    for number in 1..=5 {
        let stats = cycle_on(&workspace, &[100_000, 100_000]);
        assert_eq!((stats.size, stats.externals, stats.cycles), (MIB, 1, number - 1));
    }
    let config = mapped(2 * MIB).build().unwrap();
    let told = "cannot be mapped with 2097152 bytes: File too large (os error 27); ask for less";
    let refused = Workspace::enter("TOO_LARGE", &config).unwrap_err();
    assert_eq!(text_of(&refused), format!("{}: {told}", std::env::temp_dir().display()));
    assert!(Workspace::find("TOO_LARGE").is_none());
}

#[test]
fn a_file_that_cannot_be_a_workspace_is_told_with_what_to_do_instead() {
    alone(|| {
        let (named, folder) = (Named::new("taken"), std::env::temp_dir());
        let first = Workspace::enter("FIRST", &at(&named.0, mapped(MIB)).build().unwrap()).unwrap();
        let cannot = |why: &str| {
            format!(
                "cannot be opened as memory: {why}; use another file or folder (TMPDIR names that of temporary files)"
            )
        };
        let taken = "is mapped by another workspace, here or in another process; destroy that one, or use another file";
        let cases = [
            (named.0.clone(), taken.to_owned()),
            (folder.clone(), cannot("Is a directory (os error 21)")),
            (PathBuf::from("/dev/null"), cannot("it is not a regular file")),
            (folder.join("ndgc-no-such-folder/file"), cannot("No such file or directory (os error 2)")),
        ];
        for (path, why) in cases {
            let error = Workspace::enter("OTHER", &at(&path, mapped(MIB)).build().unwrap()).unwrap_err();
            assert_eq!(text_of(&error), format!("{}: {why}", path.display()));
            assert!(Workspace::find("OTHER").is_none());
        }
        first.leave();
        destroy_all_workspaces_for_current_thread().unwrap();
    });
}
