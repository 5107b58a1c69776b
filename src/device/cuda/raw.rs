//! The CUDA libraries, symbol by symbol: the driver, the kernel compiler (NVRTC), the matrix products (cuBLAS), the
//! sums over devices (NCCL).
//!
//! `cudarc` finds and opens the libraries and names their types. The functions themselves are looked up here, with
//! a plain 32-bit number as their answer: the enums of the bindings know the codes of one version, and a newer
//! driver may answer with another. A library or a symbol that is missing is an error, not a panic.
//!
//! The unsafe code rests on the headers of CUDA: each symbol has the parameters that stand here. What its arguments
//! must be is asked of the caller, `checked.rs`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::{cublas::sys as cublas, driver::sys as cuda, nvrtc::sys as nvrtc};

pub(super) use cublas::cublasHandle_t as BlasHandle;
pub(super) use cuda::{
    CUcontext as RawContext, CUdevice as RawDevice, CUdeviceptr as Address, CUevent as RawEvent,
    CUfunction as RawFunction, CUgraph as RawGraph, CUgraphExec as RawGraphExec, CUmemPoolProps,
    CUmemoryPool as RawPool, CUmodule as RawModule, CUstream as RawStream,
};
pub(super) use cudarc::nccl::sys::{ncclComm_t as RawRank, ncclUniqueId as RawId};
pub(super) use nvrtc::nvrtcProgram as Program;

/// A call that did not answer 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) call: &'static str,
    pub(super) code: u32,
}

pub(super) type Answer<T = ()> = Result<T, Failure>;

/// A function of which the parameters are not said: each is looked up as one, so that looking up is code once.
type Function = unsafe extern "C" fn();

/// A table of functions: how each is called here, its symbol, its parameters.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident, $open:ident of $library:ident, {
        $($name:ident = $symbol:literal ($($arg:ident: $type:ty),*);)*
    }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $table {
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        /// The table, opened once; or what is missing.
        pub(super) fn $open() -> Result<&'static $table, &'static str> {
            $table::place().get_or_init($table::open).as_ref().map_err(String::as_str)
        }

        impl $table {
            fn place() -> &'static OnceLock<Result<Self, String>> {
                static TABLE: OnceLock<Result<$table, String>> = OnceLock::new();
                &TABLE
            }

            /// The table, if it was opened before.
            pub(super) fn opened() -> Option<&'static Self> {
                $table::place().get()?.as_ref().ok()
            }

            fn open() -> Result<Self, String> {
                // SAFETY: opens the library and closes it again; what it runs on loading is its own business.
                let present = unsafe { $library::is_culib_present() };
                if !present {
                    return Err(concat!("no library for ", stringify!($library), " was found").to_owned());
                }
                // SAFETY: the library is there, so `culib` does not panic; it stays open until the process ends. Each
                // symbol is a function with the parameters stated here in the headers of CUDA 11.4 to 13, and of NCCL
                // from 2.10 on, and answers an enum of 32 bits.
                unsafe {
                    let library = $library::culib();
                    let find = |symbol: &str| match library.get::<Function>(symbol.as_bytes()) {
                        Ok(found) => Ok(*found),
                        Err(_) => {
                            let symbol = symbol.trim_end_matches('\0');
                            Err(format!("the library for {} has no {symbol}", stringify!($library)))
                        }
                    };
                    Ok($table { $($name: std::mem::transmute::<Function, unsafe extern "C" fn($($type),*) -> u32>(
                        find(concat!($symbol, "\0"))?
                    ),)* })
                }
            }

            $(
                /// # Safety
                /// As the library's documentation of the call demands of its arguments.
                #[allow(clippy::too_many_arguments)] // as many as the library's call has
                #[inline]
                pub(super) unsafe fn $name(&self, $($arg: $type),*) -> Answer {
                    // SAFETY: the caller's promise.
                    match unsafe { (self.$name)($($arg),*) } {
                        0 => Ok(()),
                        code => Err(Failure { call: $symbol, code }),
                    }
                }
            )*
        }
    };
}

table! {
    /// The driver.
    Cuda, driver of cuda, {
        init = "cuInit" (flags: c_uint);
        driver_version = "cuDriverGetVersion" (version: *mut c_int);
        device_count = "cuDeviceGetCount" (count: *mut c_int);
        device_get = "cuDeviceGet" (device: *mut RawDevice, ordinal: c_int);
        device_name = "cuDeviceGetName" (name: *mut c_char, bytes: c_int, device: RawDevice);
        device_memory = "cuDeviceTotalMem_v2" (bytes: *mut usize, device: RawDevice);
        device_attribute = "cuDeviceGetAttribute" (value: *mut c_int, attribute: c_int, device: RawDevice);
        context_retain = "cuDevicePrimaryCtxRetain" (context: *mut RawContext, device: RawDevice);
        context_set = "cuCtxSetCurrent" (context: RawContext);
        memory_info = "cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
        pool_create = "cuMemPoolCreate" (pool: *mut RawPool, properties: *const CUmemPoolProps);
        pool_set = "cuMemPoolSetAttribute" (pool: RawPool, attribute: c_int, value: *mut c_void);
        pool_trim = "cuMemPoolTrimTo" (pool: RawPool, keep: usize);
        pool_alloc = "cuMemAllocFromPoolAsync" (address: *mut Address, bytes: usize, pool: RawPool, stream: RawStream);
        pool_free = "cuMemFreeAsync" (address: Address, stream: RawStream);
        alloc = "cuMemAlloc_v2" (address: *mut Address, bytes: usize);
        free = "cuMemFree_v2" (address: Address);
        host_alloc = "cuMemHostAlloc" (ptr: *mut *mut c_void, bytes: usize, flags: c_uint);
        host_free = "cuMemFreeHost" (ptr: *mut c_void);
        host_address = "cuMemHostGetDevicePointer_v2" (address: *mut Address, ptr: *mut c_void, flags: c_uint);
        stream_create = "cuStreamCreate" (stream: *mut RawStream, flags: c_uint);
        stream_destroy = "cuStreamDestroy_v2" (stream: RawStream);
        stream_synchronize = "cuStreamSynchronize" (stream: RawStream);
        stream_wait = "cuStreamWaitEvent" (stream: RawStream, event: RawEvent, flags: c_uint);
        event_create = "cuEventCreate" (event: *mut RawEvent, flags: c_uint);
        event_destroy = "cuEventDestroy_v2" (event: RawEvent);
        event_record = "cuEventRecord" (event: RawEvent, stream: RawStream);
        copy_to_device = "cuMemcpyHtoDAsync_v2" (dst: Address, src: *const c_void, bytes: usize, stream: RawStream);
        copy_to_host = "cuMemcpyDtoHAsync_v2" (dst: *mut c_void, src: Address, bytes: usize, stream: RawStream);
        set_bytes = "cuMemsetD8Async" (dst: Address, value: u8, count: usize, stream: RawStream);
        module_load = "cuModuleLoadData" (module: *mut RawModule, image: *const c_void);
        module_function = "cuModuleGetFunction" (function: *mut RawFunction, module: RawModule, name: *const c_char);
        launch = "cuLaunchKernel" (
            function: RawFunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, shared: c_uint, stream: RawStream, params: *mut *mut c_void, extra: *mut *mut c_void
        );
        capture_begin = "cuStreamBeginCapture_v2" (stream: RawStream, mode: c_uint);
        capture_end = "cuStreamEndCapture" (stream: RawStream, graph: *mut RawGraph);
        graph_instantiate = "cuGraphInstantiateWithFlags" (exec: *mut RawGraphExec, graph: RawGraph, flags: u64);
        graph_destroy = "cuGraphDestroy" (graph: RawGraph);
        graph_launch = "cuGraphLaunch" (exec: RawGraphExec, stream: RawStream);
        graph_exec_destroy = "cuGraphExecDestroy" (exec: RawGraphExec);
    }
}

table! {
    /// The kernel compiler.
    Nvrtc, compiler of nvrtc, {
        version = "nvrtcVersion" (major: *mut c_int, minor: *mut c_int);
        arch_count = "nvrtcGetNumSupportedArchs" (count: *mut c_int);
        archs = "nvrtcGetSupportedArchs" (archs: *mut c_int);
        create = "nvrtcCreateProgram" (
            program: *mut Program, source: *const c_char, name: *const c_char, headers: c_int,
            header_sources: *const *const c_char, header_names: *const *const c_char
        );
        compile = "nvrtcCompileProgram" (program: Program, count: c_int, options: *const *const c_char);
        log_size = "nvrtcGetProgramLogSize" (program: Program, bytes: *mut usize);
        log = "nvrtcGetProgramLog" (program: Program, log: *mut c_char);
        cubin_size = "nvrtcGetCUBINSize" (program: Program, bytes: *mut usize);
        cubin = "nvrtcGetCUBIN" (program: Program, image: *mut c_char);
        ptx_size = "nvrtcGetPTXSize" (program: Program, bytes: *mut usize);
        ptx = "nvrtcGetPTX" (program: Program, image: *mut c_char);
        destroy = "nvrtcDestroyProgram" (program: *mut Program);
    }
}

table! {
    /// Matrix products.
    Blas, blas of cublas, {
        create = "cublasCreate_v2" (handle: *mut BlasHandle);
        destroy = "cublasDestroy_v2" (handle: BlasHandle);
        set_stream = "cublasSetStream_v2" (handle: BlasHandle, stream: RawStream);
        set_workspace = "cublasSetWorkspace_v2" (handle: BlasHandle, workspace: Address, bytes: usize);
        set_math = "cublasSetMathMode" (handle: BlasHandle, mode: c_int);
        property = "cublasGetProperty" (which: c_int, value: *mut c_int);
        gemm = "cublasGemmStridedBatchedEx" (
            handle: BlasHandle, trans_a: c_int, trans_b: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void,
            a: Address, a_type: c_int, lda: c_int, stride_a: i64, b: Address, b_type: c_int, ldb: c_int, stride_b: i64,
            beta: *const c_void, c: Address, c_type: c_int, ldc: c_int, stride_c: i64, batch: c_int, compute: c_int,
            algorithm: c_int
        );
    }
}

table! {
    /// Sums over devices.
    Nccl, sums of nccl, {
        version = "ncclGetVersion" (version: *mut c_int);
        id = "ncclGetUniqueId" (id: *mut RawId);
        join = "ncclCommInitRank" (rank: *mut RawRank, ranks: c_int, id: RawId, number: c_int);
        abort = "ncclCommAbort" (rank: RawRank);
        fault = "ncclCommGetAsyncError" (rank: RawRank, fault: *mut c_int);
        all_reduce = "ncclAllReduce" (
            send: Address, receive: Address, count: usize, dtype: c_int, operation: c_int, rank: RawRank,
            stream: RawStream
        );
    }
}

/// The library for sums. `cudarc` looks for it under names that it does not have where only its users are installed.
mod nccl {
    use std::sync::OnceLock;

    use libloading::Library;

    /// # Safety
    /// What the library runs on loading is its own business. It is never closed.
    unsafe fn find() -> Option<&'static Library> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        // SAFETY: the caller's promise.
        let open = |name: &&str| unsafe { Library::new(*name) }.ok();
        LIBRARY.get_or_init(|| ["libnccl.so.2", "libnccl.so"].iter().find_map(open)).as_ref()
    }

    /// # Safety
    /// As [`find`].
    pub(super) unsafe fn is_culib_present() -> bool {
        // SAFETY: the caller's promise.
        unsafe { find() }.is_some()
    }

    /// # Safety
    /// As [`find`].
    pub(super) unsafe fn culib() -> &'static Library {
        // SAFETY: the caller's promise.
        unsafe { find() }.expect("asked for where it is present")
    }
}

/// Whether the loader finds the compiler and the products by itself.
pub(super) fn are_found() -> bool {
    // SAFETY: opens the libraries and closes them again; what they run on loading is their own business.
    unsafe { nvrtc::is_culib_present() && cublas::is_culib_present() }
}

/// Opens a library by its path, so that it is found by its name afterwards. It is never closed.
pub(super) fn open(path: &CStr) -> bool {
    // SAFETY: the path ends in a zero; what the library runs on loading is its own business.
    !unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null()
}

/// What a library that only pretends to be the driver offers beyond it, to check more.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    /// A block of the pool gets an owner (1), or loses it (0).
    pub(super) block: Option<unsafe extern "C" fn(Address, u64, c_int)>,
    /// The host is about to write (1) or read (0) pinned bytes.
    pub(super) host_access: Option<unsafe extern "C" fn(*const c_void, u64, c_int)>,
}

/// The hooks that the opened driver has: none, if it is a real one.
pub(super) fn hooks() -> &'static Hooks {
    static HOOKS: OnceLock<Hooks> = OnceLock::new();
    HOOKS.get_or_init(|| {
        if driver().is_err() {
            return Hooks::default();
        }
        // SAFETY: `driver()` opened the library. Only the pretend driver of the tests has these names, and it is
        // written with these parameters (tests/pretend_cuda).
        unsafe {
            let library = cuda::culib();
            Hooks {
                block: library.get(b"pretend_block\0").ok().map(|symbol| *symbol),
                host_access: library.get(b"pretend_host_access\0").ok().map(|symbol| *symbol),
            }
        }
    })
}
