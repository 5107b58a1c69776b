//! What is missing: the driver, devices, the compiler, the library of products, a sound cache. Each in a process of its
//! own, since a library that was opened stays.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ndgc::{DType, Device, OutOfMemoryClass, Tensor, memory, probe_cuda};

use crate::common::{
    cuda::{Pretend, device},
    text_of,
};

/// Set in processes that a test started to run itself again.
const CHILD: &str = "NDGC_TEST_CHILD";

pub(super) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The folder of the pretend driver.
fn pretend_folder() -> Option<PathBuf> {
    device()?;
    Pretend::get()?;
    let path = std::env::var("LD_LIBRARY_PATH").ok()?;
    path.split(':').map(PathBuf::from).find(|folder| folder.join("libcuda.so.1").exists())
}

/// Runs one test of this program in a process with these libraries and variables.
pub(super) fn run(test: &str, libraries: &Path, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1").env("LD_LIBRARY_PATH", libraries).env_remove("NDGC_REQUIRE_CUDA");
    command.env("PRETEND_STRICT", "1");
    command.envs(variables.iter().copied()).output().unwrap()
}

/// Asserts that it went well; returns what it wrote to standard error.
pub(super) fn passed(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}\n{}\n{text}", output.status, String::from_utf8_lossy(&output.stdout));
    text
}

/// A folder with links to some of the pretended libraries.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str, links: &[&str]) -> Option<Self> {
        let from = pretend_folder()?.canonicalize().unwrap();
        let path = std::env::temp_dir().join(format!("ndgc-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        for link in links {
            std::os::unix::fs::symlink(from.join(link), path.join(link)).unwrap();
        }
        Some(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn without_a_driver_the_error_says_what_was_looked_for() {
    if is_child() {
        let told = "cuda is not available: no library for cuda was found (libcuda.so, libcuda.so.1, in the loader's \
                    folders; NVIDIA's driver has it)";
        assert_eq!(text_of(&Device::cuda(0).unwrap_err()), told);
        assert_eq!(Device::best(), Device::Cpu);
        assert_eq!(Device::best(), Device::Cpu);
        assert!(Device::from_env().is_err(), "an explicit wish is not replaced");
        return;
    }
    let Some(folder) = Folder::new("no-driver", &[]) else { return };
    let test = "pretend_cuda::missing::without_a_driver_the_error_says_what_was_looked_for";
    let said = passed(&run(test, &folder.0, &[("NDGC_DEVICE", "cuda")]));
    assert_eq!(said.matches("computing on the cpu").count(), 1, "said once: {said}");
}

#[test]
fn a_driver_without_devices_is_an_error_that_says_so() {
    if is_child() {
        let error = probe_cuda().unwrap_err().to_string();
        assert!(error.contains("100") && error.contains("no device"), "{error}");
        assert_eq!(Device::best(), Device::Cpu);
        return;
    }
    let Some(folder) = pretend_folder() else { return };
    let test = "pretend_cuda::missing::a_driver_without_devices_is_an_error_that_says_so";
    passed(&run(test, &folder, &[("PRETEND_DEVICES", "0")]));
}

#[test]
fn a_device_number_that_is_not_there_is_an_error() {
    if pretend_folder().is_some() {
        let error = Device::cuda(99).unwrap_err().to_string();
        let told = "cuda:99 is not available: the driver shows 2 device(s), numbered from 0";
        assert_eq!(error.split(" (called at").next(), Some(told));
    }
}

#[test]
fn without_the_compiler_the_first_kernel_is_an_error() {
    if is_child() {
        let device = Device::cuda(0).unwrap();
        // Bytes alone need no kernel.
        let zeros = Tensor::zeros(10, DType::F32, &device).unwrap();
        assert_eq!(zeros.to_vec::<f32>().unwrap(), [0.; 10]);
        let folders = "the loader's folders, /no-toolkit/lib64, /no-toolkit/targets/x86_64-linux/lib, /none/lib64, \
                       /none/targets/x86_64-linux/lib, /usr/local/cuda/lib64, \
                       /usr/local/cuda/targets/x86_64-linux/lib";
        let told = format!(
            "the CUDA kernel compiler is not available: no library for nvrtc was found (libnvrtc.so, libnvrtc.so.13, \
             libnvrtc.so.12; looked in {folders}; CUDA_HOME names the folder of another toolkit)"
        );
        assert_eq!(text_of(&zeros.exp().unwrap_err()), told);
        return;
    }
    let Some(folder) = Folder::new("no-compiler", &["libcuda.so.1", "kernels"]) else { return };
    let test = "pretend_cuda::missing::without_the_compiler_the_first_kernel_is_an_error";
    let toolkits = [("CUDA_HOME", "/no-toolkit"), ("CUDA_PATH", "/none"), ("NDGC_CACHE_DIR", "off")];
    passed(&run(test, &folder.0, &toolkits));
}

#[test]
fn code_that_cannot_be_made_or_loaded_is_told_with_its_file() {
    if is_child() {
        let (device, pretend) = (Device::cuda(0).unwrap(), Pretend::get().unwrap());
        let a = Tensor::zeros(10, DType::F32, &device).unwrap();
        let refused = |call: &str, code: u32| {
            pretend.fail(Some(call), 1, code);
            let error = a.exp().unwrap_err();
            pretend.fail_off();
            text_of(&error)
        };
        let of_compiler = [
            (1, "out of memory"),
            (5, "an option that this version does not know"),
            (6, "the source does not compile"),
            (7, "no libnvrtc-builtins of its version beside it"),
            (11, "an internal error"),
            (12, "see nvrtcResult in the library's documentation"),
        ];
        for call in ["nvrtcGetNumSupportedArchs", "nvrtcCreateProgram", "nvrtcCompileProgram"] {
            for (code, meaning) in of_compiler {
                let told = format!("nvrtc: {call} failed: error {code} for elementwise.cu: {meaning}");
                assert_eq!(refused(call, code), told);
            }
        }
        let of_driver = [(200, "a kernel does not fit the device"), (218, "a kernel was compiled for another driver")];
        for (code, meaning) in of_driver {
            let told = format!("cuda:0: cuModuleLoadData failed: error {code}: {meaning}");
            assert_eq!(refused("cuModuleLoadData", code), told);
        }
        assert_eq!(a.exp().unwrap().to_vec::<f32>().unwrap(), [1.; 10]);
        return;
    }
    let Some(folder) = pretend_folder() else { return };
    let test = "pretend_cuda::missing::code_that_cannot_be_made_or_loaded_is_told_with_its_file";
    passed(&run(test, &folder, &[("NDGC_CACHE_DIR", "off")]));
}

#[test]
fn without_the_library_products_are_computed_all_the_same_and_that_is_said_once() {
    if is_child() {
        let device = Device::cuda(0).unwrap();
        let a = Tensor::arange(0f32, 12., &device).unwrap().reshape((3, 4)).unwrap();
        for _ in 0..2 {
            let product = a.matmul(&a.t().unwrap()).unwrap();
            assert_eq!(product.to_vec::<f32>().unwrap(), [14., 38., 62., 38., 126., 214., 62., 214., 366.]);
        }
        return;
    }
    let Some(folder) = Folder::new("no-blas", &["libcuda.so.1", "libnvrtc.so.13", "kernels"]) else { return };
    let test = "pretend_cuda::missing::without_the_library_products_are_computed_all_the_same_and_that_is_said_once";
    let said = passed(&run(test, &folder.0, &[]));
    assert_eq!(said.matches("slower kernel").count(), 1, "said once: {said}");
}

#[test]
fn a_crash_report_names_the_libraries_that_are_open_and_opens_none() {
    if is_child() {
        let told = || {
            let report = memory::crash_report(&Device::Cpu);
            report.lines().find(|line| line.starts_with("cuda: ")).map(str::to_owned)
        };
        let pretend = Pretend::get().unwrap();
        assert_eq!((told(), pretend.calls(None)), (None, 0), "nobody opened a device");
        let device = Device::cuda(0).unwrap();
        assert_eq!(told().as_deref(), Some("cuda: driver 13.0"));
        let a = Tensor::full(1f32, (4, 4), &device).unwrap();
        assert_eq!(a.matmul(&a).unwrap().to_vec::<f32>().unwrap(), [4.; 16]);
        assert_eq!(told().as_deref(), Some("cuda: driver 13.0, NVRTC 13.0, cuBLAS 13.0.0"));
        pretend.fail(Some("nvrtcVersion"), 1, 7);
        let unknown = "NVRTC unknown: nvrtcVersion answered error 7";
        assert_eq!(told().unwrap(), format!("cuda: driver 13.0, {unknown}, cuBLAS 13.0.0"));
        return;
    }
    let Some(folder) = pretend_folder() else { return };
    let test = "pretend_cuda::missing::a_crash_report_names_the_libraries_that_are_open_and_opens_none";
    passed(&run(test, &folder, &[("NDGC_CACHE_DIR", "off")]));
}

#[test]
fn libraries_are_found_in_a_toolkit_that_the_loader_does_not_know() {
    if is_child() {
        let device = Device::cuda(0).unwrap();
        let a = Tensor::full(1f32, (4, 4), &device).unwrap();
        assert_eq!(a.matmul(&a).unwrap().to_vec::<f32>().unwrap(), [4.; 16]);
        assert!(Pretend::get().unwrap().calls(Some("nvrtcCompileProgram")) > 0);
        return;
    }
    let Some(folder) = Folder::new("toolkit", &["libcuda.so.1", "kernels"]) else { return };
    let toolkit = folder.0.join("lib64");
    std::fs::create_dir(&toolkit).unwrap();
    for name in ["libnvrtc.so.13", "libcublas.so.13", "kernels"] {
        let from = pretend_folder().unwrap().canonicalize().unwrap();
        std::os::unix::fs::symlink(from.join(name), toolkit.join(name)).unwrap();
    }
    let variables = [("CUDA_HOME", folder.0.to_str().unwrap()), ("NDGC_CACHE_DIR", "off")];
    let test = "pretend_cuda::missing::libraries_are_found_in_a_toolkit_that_the_loader_does_not_know";
    let said = passed(&run(test, &folder.0, &variables));
    assert!(!said.contains("slower kernel"), "{said}");
}

#[test]
fn the_environment_limits_what_the_driver_gives() {
    if is_child() {
        let device = Device::cuda(0).unwrap();
        let fits = Tensor::zeros(30 << 20, DType::U8, &device).unwrap();
        let error = Tensor::zeros(40 << 20, DType::U8, &device).unwrap_err();
        let ndgc::Error::OutOfMemory(refused) = &error else { panic!("{error}") };
        assert!(matches!(refused.class, OutOfMemoryClass::OverPhysicalLimit { max, .. } if max == 64 << 20), "{error}");
        assert_eq!(device.set_physical_limit(Some(128 << 20)).unwrap(), Some(64 << 20));
        drop(Tensor::zeros(40 << 20, DType::U8, &device).unwrap());
        device.set_physical_limit(Some(64 << 20)).unwrap();
        drop(fits);
        drop(Tensor::zeros(40 << 20, DType::U8, &device).unwrap());
        return;
    }
    let Some(folder) = pretend_folder() else { return };
    let test = "pretend_cuda::missing::the_environment_limits_what_the_driver_gives";
    passed(&run(test, &folder, &[("NDGC_MAX_PHYSICAL_BYTES", "64m")]));
    let error = run(test, &folder, &[("NDGC_MAX_PHYSICAL_BYTES", "much")]);
    assert!(String::from_utf8_lossy(&error.stderr).contains("NDGC_MAX_PHYSICAL_BYTES"), "{error:?}");
}

#[test]
fn a_limit_of_0_lets_the_driver_give_nothing() {
    // Broken by: a pool of at most 0 bytes, which is one without a limit to the driver.
    if is_child() {
        let device = Device::cuda(0).unwrap();
        let error = Tensor::zeros(1, DType::U8, &device).unwrap_err();
        assert!(matches!(error, ndgc::Error::OutOfMemory(_)), "{error}");
        assert_eq!((device.memory().active, device.memory().cached), (0, 0));
        return;
    }
    let Some(folder) = pretend_folder() else { return };
    let test = "pretend_cuda::missing::a_limit_of_0_lets_the_driver_give_nothing";
    for name in ["NDGC_MAX_PHYSICAL_BYTES", "NDGC_MAX_BYTES"] {
        passed(&run(test, &folder, &[(name, "0")]));
    }
}

#[test]
fn code_is_kept_on_disk_and_a_damaged_file_is_made_anew() {
    if is_child() {
        let device = Device::cuda(0).unwrap();
        let one = Tensor::full(1f32, 10, &device).unwrap();
        assert_eq!(one.affine(2., 1.).unwrap().to_vec::<f32>().unwrap(), [3.; 10]);
        println!("compiled: {}", Pretend::get().unwrap().calls(Some("nvrtcCompileProgram")));
        return;
    }
    let Some(libraries) = pretend_folder() else { return };
    let cache = Folder::new("cache", &[]).unwrap();
    let folder = cache.0.join("inner").display().to_string();
    let test = "pretend_cuda::missing::code_is_kept_on_disk_and_a_damaged_file_is_made_anew";
    let compiled = || {
        let output = run(test, &libraries, &[("NDGC_CACHE_DIR", &folder)]);
        passed(&output);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split("compiled: ").nth(1).unwrap().split_whitespace().next().unwrap().parse::<u32>().unwrap()
    };
    let first = compiled();
    assert!(first > 0);
    assert_eq!(compiled(), 0, "the second process finds the code");
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x40;
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(compiled(), first, "damaged files are made anew");
    assert_eq!(compiled(), 0);
    // A folder that cannot be made costs time only.
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "a file").unwrap();
    assert_eq!(compiled(), first);
    std::fs::remove_file(&folder).unwrap();
}

#[test]
fn the_end_of_a_process_is_quiet_whatever_still_lives() {
    if is_child() {
        let device = Device::cuda(0).unwrap();
        let array = Tensor::full(1f32, 10, &device).unwrap();
        // A thread that still works, one array in a static place, one that is forgotten, one in a thread's own place.
        static KEPT: std::sync::OnceLock<Tensor> = std::sync::OnceLock::new();
        KEPT.set(array.affine(2., 0.).unwrap()).ok().unwrap();
        std::mem::forget(array.affine(3., 0.).unwrap());
        thread_local! { static OWN: std::cell::RefCell<Option<Tensor>> = const { std::cell::RefCell::new(None) } }
        OWN.set(Some(array.affine(4., 0.).unwrap()));
        std::thread::spawn(move || {
            let mut x = array;
            loop {
                x = x.affine(1., 0.).unwrap();
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        return;
    }
    let Some(folder) = pretend_folder() else { return };
    for _ in 0..5 {
        let said =
            passed(&run("pretend_cuda::missing::the_end_of_a_process_is_quiet_whatever_still_lives", &folder, &[]));
        assert!(said.trim().is_empty(), "{said}");
    }
}
