//! CUDA devices in tests: the one there is, and the pretend driver if that is what was loaded.
//!
//! Without a device such tests do nothing, unless `NDGC_REQUIRE_CUDA=1` asks for one. The pretend driver
//! (tests/pretend_cuda) is a `libcuda.so.1` that runs kernels on the host and checks every access; it is there if
//! `LD_LIBRARY_PATH` names its folder.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;
use ndgc::Device;

/// The first CUDA device.
pub(crate) fn device() -> Option<Device> {
    static SAID: std::sync::Once = std::sync::Once::new();
    match Device::cuda(0) {
        Ok(device) => Some(device),
        Err(error) if std::env::var_os("NDGC_REQUIRE_CUDA").is_some_and(|value| value == "1") => {
            panic!("NDGC_REQUIRE_CUDA=1, but {error}")
        }
        Err(error) => {
            SAID.call_once(|| eprintln!("skipped on CUDA devices: {error}"));
            None
        }
    }
}

/// Asserts that the pretend driver found nothing, if there is one.
pub(crate) fn check() {
    if let Some(pretend) = Pretend::get() {
        let mut found = pretend.violations();
        pretend.clear();
        let count = found.len();
        found.truncate(5);
        assert!(count == 0, "the pretend driver found {count} things wrong, first {found:#?}");
    }
}

/// The pretend driver's controls.
pub(crate) struct Pretend {
    library: Library,
}

impl Pretend {
    /// The controls, if the driver that was loaded is the pretended one.
    pub(crate) fn get() -> Option<&'static Self> {
        static PRETEND: OnceLock<Option<Pretend>> = OnceLock::new();
        PRETEND
            .get_or_init(|| {
                // SAFETY: the library is the one that ndgc loads; loading it runs nothing of note.
                let library = unsafe { Library::new("libcuda.so.1") }.ok()?;
                // SAFETY: only looked up.
                let pretends = unsafe { library.get::<unsafe extern "C" fn()>(b"pretend_violations\0") }.is_ok();
                pretends.then_some(Pretend { library })
            })
            .as_ref()
    }

    fn call<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller names the function's type as tests/pretend_cuda declares it; the library stays open.
        unsafe { *self.library.get::<F>(name.as_bytes()).unwrap_or_else(|_| panic!("the pretend driver has {name}")) }
    }

    /// What it objected to, in words.
    pub(crate) fn violations(&self) -> Vec<String> {
        let count: unsafe extern "C" fn() -> c_uint = self.call("pretend_violations");
        let text: unsafe extern "C" fn(c_uint) -> *const c_char = self.call("pretend_violation");
        // SAFETY: the texts stay until they are cleared, which only tests do, one at a time.
        unsafe { (0..count()).map(|i| CStr::from_ptr(text(i)).to_string_lossy().into_owned()).collect() }
    }

    pub(crate) fn clear(&self) {
        let clear: unsafe extern "C" fn() = self.call("pretend_clear_violations");
        // SAFETY: no argument.
        unsafe {
            clear();
        }
    }

    /// Calls of this name so far; of all names, if none is given.
    pub(crate) fn calls(&self, name: Option<&str>) -> u64 {
        let calls: unsafe extern "C" fn(*const c_char) -> u64 = self.call("pretend_calls");
        let name = name.map(|name| CString::new(name).unwrap());
        // SAFETY: null, or a text that ends in a zero and outlives the call.
        unsafe { calls(name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr())) }
    }

    /// Lets the `nth` call of this name (or of any) from now answer `code`.
    pub(crate) fn fail(&self, name: Option<&str>, nth: u32, code: u32) {
        let fail: unsafe extern "C" fn(*const c_char, c_uint, c_uint) = self.call("pretend_fail");
        let name = name.map(|name| CString::new(name).unwrap());
        // SAFETY: as in `calls`.
        unsafe {
            fail(name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr()), nth, code);
        }
    }

    pub(crate) fn fail_off(&self) {
        let off: unsafe extern "C" fn() = self.call("pretend_fail_off");
        // SAFETY: no argument.
        unsafe {
            off();
        }
    }

    /// Breaks a rule of the driver itself, to see that it notices.
    pub(crate) fn mutate(&self, what: &str, on: bool) {
        let mutate: unsafe extern "C" fn(*const c_char, c_int) = self.call("pretend_mutate");
        let what = CString::new(what).unwrap();
        // SAFETY: a text that ends in a zero and outlives the call.
        unsafe {
            mutate(what.as_ptr(), c_int::from(on));
        }
    }

    /// Makes the context of a device current on this thread, as a library beside us may.
    pub(crate) fn make_current(&self, ordinal: c_int) {
        let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int = self.call("cuDevicePrimaryCtxRetain");
        let set: unsafe extern "C" fn(*mut c_void) -> c_int = self.call("cuCtxSetCurrent");
        let mut context = std::ptr::null_mut();
        // SAFETY: the context is written to a local, and never released.
        let answers = unsafe { [retain(&raw mut context, ordinal), set(context)] };
        assert_eq!(answers, [0, 0]);
    }

    /// The last calls, one a line.
    pub(crate) fn log(&self) -> String {
        let log: unsafe extern "C" fn() -> *const c_char = self.call("pretend_log");
        // SAFETY: the text stays until the next call of this function, and is copied before.
        unsafe { CStr::from_ptr(log()).to_string_lossy().into_owned() }
    }
}
