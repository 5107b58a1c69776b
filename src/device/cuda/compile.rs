//! From a kernel's source to code that a device loads: by the compiler library when first used, by a file after that.
//!
//! A file of the cache is named after a hash of everything that the code depends on: source, options, architecture,
//! versions of compiler and driver. It carries its own length and checksum; one that does not fit is compiled anew and
//! replaced. Files are written under another name and renamed, so that two processes never see half of one. A cache
//! that cannot be read or written costs time and nothing else.

use std::ffi::{CString, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use crate::base::{
    env,
    error::{Error, Result},
};
use crate::device::cuda::{
    checked::{self, CodeImage, Nvrtc},
    libraries,
    raw::{Answer, Failure},
};

/// What a cached file begins with. The number counts changes of the format.
const MAGIC: &[u8; 8] = b"ndgck\0\0\x01";

/// Code for a device, and what the compiler said about it.
pub(super) struct Compiled {
    pub(super) image: CodeImage,
    /// Registers and spills of each kernel, as the assembler prints them.
    #[cfg_attr(not(feature = "bench"), allow(dead_code))]
    pub(super) log: String,
}

/// What to compile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit<'a> {
    /// `elementwise.cu`
    pub(super) name: &'a str,
    pub(super) source: &'a str,
    /// The element type, as the kernels name it: `f32`.
    pub(super) element: &'a str,
}

/// The device to compile for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// Compute capability times 10.
    pub(super) arch: u32,
    pub(super) driver_version: i32,
}

/// Code for a unit, as far as `load` takes it: from the cache, else from the compiler. A device may refuse what the
/// cache has, after a change of the driver for instance.
pub(super) fn code<T>(unit: &Unit<'_>, target: Target, load: impl Fn(&CodeImage) -> Result<T>) -> Result<T> {
    let file = cache_folder().map(|folder| folder.join(format!("{:016x}.bin", key(unit, target))));
    let cached =
        file.as_ref().and_then(|file| std::fs::read(file).ok()).and_then(|bytes| unpack(&bytes)).map(CodeImage::kept);
    if let Some(loaded) = cached.and_then(|image| load(&image).ok()) {
        return Ok(loaded);
    }
    let compiled = compile(unit, target.arch)?;
    let loaded = load(&compiled.image)?;
    if let Some(file) = file {
        // Nobody is told if this fails: the code is here.
        let _ = store(&file, compiled.image.code());
    }
    Ok(loaded)
}

/// `NDGC_CACHE_DIR`, else the user's folder for caches; `off` for none.
fn cache_folder() -> Option<PathBuf> {
    if let Some(folder) = env::folder("NDGC_CACHE_DIR") {
        return (folder.as_os_str() != "off").then_some(folder);
    }
    let base = env::folder("XDG_CACHE_HOME").or_else(|| env::folder("HOME").map(|home| home.join(".cache")));
    base.map(|base| base.join("ndgc"))
}

/// The compiler library, wherever it lies.
fn compiler() -> std::result::Result<Nvrtc, &'static str> {
    libraries::locate();
    checked::compiler()
}

fn key(unit: &Unit<'_>, target: Target) -> u64 {
    let mut hasher = DefaultHasher::new();
    let compiler = compiler().ok().and_then(|api| api.version().ok()).unwrap_or_default();
    let unit = (unit.name, unit.source, unit.element);
    (MAGIC, unit, OPTIONS, target.arch, target.driver_version, compiler).hash(&mut hasher);
    hasher.finish()
}

fn checksum(image: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    image.hash(&mut hasher);
    hasher.finish()
}

fn unpack(bytes: &[u8]) -> Option<Vec<u8>> {
    let (magic, rest) = bytes.split_at_checked(8)?;
    let (sum, image) = rest.split_at_checked(8)?;
    let fits = magic == MAGIC && sum == checksum(image).to_le_bytes() && !image.is_empty();
    fits.then(|| image.to_vec())
}

fn store(file: &std::path::Path, image: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(file.parent().unwrap_or(file))?;
    let draft = file.with_extension(format!("{}.tmp", std::process::id()));
    let bytes = [MAGIC.as_slice(), &checksum(image).to_le_bytes(), image].concat();
    std::fs::write(&draft, bytes).and_then(|()| std::fs::rename(&draft, file)).inspect_err(|_| {
        let _ = std::fs::remove_file(&draft);
    })
}

/// The options of all kernels. Products and sums round on their own, as on the host: both give the same bits wherever
/// they can.
const OPTIONS: [&str; 3] = ["--std=c++17", "--fmad=false", "--ptxas-options=-v"];

/// The options for an architecture; those of the newest one before it, as portable code, if the compiler is older.
fn options(api: Nvrtc, unit: &Unit<'_>, arch: u32) -> Answer<(Vec<String>, bool)> {
    let known = api.architectures()?;
    let exact = known.contains(&(arch as c_int));
    let best = known.into_iter().filter(|&known| known <= arch as c_int).max().unwrap_or(arch as c_int);
    let target = if exact { format!("sm_{arch}") } else { format!("compute_{best}") };
    let mut list = vec![format!("--gpu-architecture={target}")];
    for option in OPTIONS {
        list.push(option.to_owned());
    }
    list.push(format!("-DT={}", unit.element));
    list.push(format!("-DF={}", unit.element));
    Ok((list, exact))
}

/// Compiles a unit.
///
/// # Errors
/// [`Error::DeviceUnavailable`] without the compiler library; [`Error::Device`] with the compiler's words.
pub(super) fn compile(unit: &Unit<'_>, arch: u32) -> Result<Compiled> {
    let missing = |found| {
        let names = "libnvrtc.so, libnvrtc.so.13, libnvrtc.so.12";
        let searched = libraries::searched();
        let found = format!("{found} ({names}; looked in {searched}; CUDA_HOME names the folder of another toolkit)");
        Error::device_unavailable("the CUDA kernel compiler", found)
    };
    let api = compiler().map_err(missing)?;
    let failed = |call, message: String| Error::device("nvrtc", call, message);
    let text = |text: &str| CString::new(text).map_err(|_| failed("nvrtcCreateProgram", "a zero in the source".into()));
    let (source, name) = (text(unit.source)?, text(unit.name)?);
    let fault = |failure: Failure, log: &str| {
        let lead = if log.is_empty() { "" } else { "; the compiler said:\n" };
        let (code, meaning) = (failure.code, failure.meaning());
        failed(failure.call, format!("error {code} for {}: {meaning}{lead}{}", unit.name, log.trim_end()))
    };
    let (options, exact) = options(api, unit, arch).map_err(|failure| fault(failure, ""))?;
    let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>>>()?;
    let made = api.compile(&source, &name, &options, exact);
    let checked::CompilerOutput { image, log } = made.map_err(|failure| fault(failure, ""))?;
    match image {
        Ok(image) => Ok(Compiled { image, log }),
        Err(failure) => Err(fault(failure, &log)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_of_the_cache_is_no_code() {
        let image = b"code".to_vec();
        let packed = [MAGIC.as_slice(), &checksum(&image).to_le_bytes(), &image].concat();
        assert_eq!(unpack(&packed), Some(image));
        for length in 0..packed.len() {
            assert_eq!(unpack(&packed[..length]), None, "cut to {length} bytes");
        }
        for place in 0..packed.len() {
            let mut damaged = packed.clone();
            damaged[place] ^= 1;
            assert_eq!(unpack(&damaged), None, "damaged at {place}");
        }
    }

    #[cfg(all(unix, not(miri)))]
    #[test]
    fn the_folder_of_the_cache_need_be_no_text() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        const TEST: &str = "device::cuda::compile::tests::the_folder_of_the_cache_need_be_no_text";
        const CHILD: &str = "NDGC_TEST_CACHE";
        if let Some(wanted) = std::env::var_os(CHILD) {
            assert_eq!(cache_folder().unwrap_or_default(), PathBuf::from(wanted));
            return;
        }
        let found = |variables: &[(&str, &[u8])], wanted: &[u8]| {
            let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
            child.args(["--exact", TEST]).env_remove("NDGC_CACHE_DIR").env_remove("XDG_CACHE_HOME");
            child.envs(variables.iter().map(|(name, value)| (name, OsStr::from_bytes(value))));
            let output = child.env(CHILD, OsStr::from_bytes(wanted)).output().expect("a process");
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed")
        };
        assert!(found(&[("NDGC_CACHE_DIR", b"/c/\xff ")], b"/c/\xff "));
        assert!(found(&[("NDGC_CACHE_DIR", b" /c ")], b"/c"));
        assert!(found(&[("NDGC_CACHE_DIR", b" off ")], b""));
        assert!(found(&[("NDGC_CACHE_DIR", b""), ("XDG_CACHE_HOME", b"/x\xff")], b"/x\xff/ndgc"));
        assert!(found(&[("HOME", b"/h\xff")], b"/h\xff/.cache/ndgc"));
    }
}
