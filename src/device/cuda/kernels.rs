//! The kernels by name: which file each is in, and its function on a device once it was loaded.
//!
//! A file is compiled once for each element type, when one of its kernels is first launched, and stays loaded. A
//! function that was found once is found by two indices, without a lock.

use std::ffi::CString;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::base::{
    dtype::DType,
    error::{Error, Result},
};
use crate::device::cuda::{
    checked::{FunctionHandle, ModuleHandle},
    compile::{self, Target, Unit},
    context::CudaContext,
};

const PRELUDE: &str = include_str!("kernels/prelude.cu");

macro_rules! files {
    ($($file:ident = $name:literal;)*) => {
        /// A file of kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum File { $($file),* }

        impl File {
            const ALL: &[File] = &[$(File::$file),*];

            fn name(self) -> &'static str {
                match self { $(File::$file => concat!($name, ".cu")),* }
            }

            fn source(self) -> String {
                let text = match self { $(File::$file => include_str!(concat!("kernels/", $name, ".cu"))),* };
                let rows = if self == File::Elementwise { ndgc_kernels::operations::cuda() } else { String::new() };
                format!("{PRELUDE}\n{rows}{text}")
            }
        }
    };
}

files! {
    Elementwise = "elementwise";
    Cast = "cast";
    Reduce = "reduce";
    Softmax = "softmax";
    Index = "index";
    Window = "window";
    Scan = "scan";
    Norm = "norm";
    Random = "random";
    Optim = "optim";
    Matmul = "matmul";
    Graph = "graph";
}

macro_rules! entries {
    ($($entry:ident = $name:literal in $file:ident;)*) => {
        /// A kernel, for every element type that its file is compiled for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Entry { $($entry),* }

        impl Entry {
            const ALL: &[Entry] = &[$(Entry::$entry),*];

            pub(super) fn name(self) -> &'static str {
                match self { $(Entry::$entry => $name),* }
            }

            fn file(self) -> File {
                match self { $(Entry::$entry => File::$file),* }
            }
        }
    };
}

entries! {
    Binary = "binary" in Elementwise;
    Bits = "bits" in Elementwise;
    Unary = "unary" in Elementwise;
    Affine = "affine" in Elementwise;
    Powf = "powf" in Elementwise;
    Divide = "divide" in Elementwise;
    Clamp = "clamp" in Elementwise;
    Rectifier = "rectifier" in Elementwise;
    Fill = "fill" in Elementwise;
    Arange = "arange" in Elementwise;
    Compare = "compare" in Elementwise;
    Choose = "choose" in Elementwise;
    UnaryGrad = "unary_grad" in Elementwise;
    RectifierGrad = "rectifier_grad" in Elementwise;
    Called = "called" in Elementwise;
    CalledGrad = "called_grad" in Elementwise;
    Copy = "copy" in Elementwise;
    Transpose = "transpose" in Elementwise;
    Cast = "cast" in Cast;
    Reduce = "reduce" in Reduce;
    ArgReduce = "arg_reduce" in Reduce;
    Softmax = "softmax" in Softmax;
    SoftmaxGrad = "softmax_grad" in Softmax;
    CrossEntropy = "cross_entropy" in Softmax;
    CrossEntropyGrad = "cross_entropy_grad" in Softmax;
    Gather = "gather" in Index;
    ScatterAdd = "scatter_add" in Index;
    Scan = "scan" in Scan;
    ProdGrad = "prod_grad" in Scan;
    Norm = "norm" in Norm;
    NormGrad = "norm_grad" in Norm;
    Unfold = "unfold" in Window;
    Fold = "fold" in Window;
    Pool = "pool" in Window;
    PoolGrad = "pool_grad" in Window;
    Resize = "resize" in Window;
    ResizeGrad = "resize_grad" in Window;
    Uniform = "uniform" in Random;
    Normal = "normal" in Random;
    Sgd = "sgd" in Optim;
    Nesterov = "nesterov" in Optim;
    Adam = "adam" in Optim;
    AmsGrad = "ams_grad" in Optim;
    Nadam = "nadam" in Optim;
    AdaMax = "ada_max" in Optim;
    RmsProp = "rms_prop" in Optim;
    AdaDelta = "ada_delta" in Optim;
    Matmul = "matmul" in Matmul;
    Bump = "bump" in Graph;
}

const DTYPES: usize = DType::ALL.len();

/// The number of a dtype, as kernels count them.
pub(super) fn dtype_number(dtype: DType) -> u32 {
    dtype as u32
}

/// The dtype whose kernels an operand's elements are passed to: truth values are bytes.
pub(super) fn element(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::U8 } else { dtype }
}

/// Bytes of what an element computes in.
pub(super) fn computing_bytes(dtype: DType) -> usize {
    if dtype.is_float() { dtype.size_in_bytes().max(4) } else { dtype.size_in_bytes() }
}

/// What a device has loaded.
#[derive(Debug)]
pub(super) struct Kernels {
    functions: Vec<[OnceLock<FunctionHandle>; DTYPES]>,
    /// By file and dtype.
    modules: Mutex<[[Option<ModuleHandle>; DTYPES]; File::ALL.len()]>,
}

impl Kernels {
    pub(super) fn new() -> Self {
        let functions = Entry::ALL.iter().map(|_| Default::default()).collect();
        Kernels { functions, modules: Mutex::new([[None; DTYPES]; File::ALL.len()]) }
    }

    /// A kernel that was loaded before.
    #[inline]
    pub(super) fn loaded(&self, entry: Entry, dtype: DType) -> Option<FunctionHandle> {
        self.functions[entry as usize][dtype_number(dtype) as usize].get().copied()
    }

    /// A kernel; compiled and loaded if this is its first use.
    #[cold]
    pub(super) fn load(&self, context: &CudaContext, entry: Entry, dtype: DType) -> Result<FunctionHandle> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let place = &mut modules[entry.file() as usize][dtype_number(dtype) as usize];
        let module = match *place {
            Some(module) => module,
            None => *place.insert(load(context, entry.file(), dtype)?),
        };
        let found = function(context, module, &symbol(entry, dtype))?;
        Ok(*self.functions[entry as usize][dtype_number(dtype) as usize].get_or_init(|| found))
    }
}

/// The name of a kernel in its module.
fn symbol(entry: Entry, dtype: DType) -> String {
    match entry {
        Entry::Bump => "bump".to_owned(),
        _ => format!("{}_{}", entry.name(), dtype.as_str()),
    }
}

fn load(context: &CudaContext, file: File, dtype: DType) -> Result<ModuleHandle> {
    let target = Target { arch: context.arch, driver_version: context.driver_version };
    let source = file.source();
    let unit = Unit { name: file.name(), source: &source, element: dtype.as_str() };
    compile::code(&unit, target, |image| {
        context.make_current()?;
        context.call(|api| api.load(image))
    })
}

fn function(context: &CudaContext, module: ModuleHandle, name: &str) -> Result<FunctionHandle> {
    let name = CString::new(name).map_err(Error::msg)?;
    context.call(|api| api.function(module, &name))
}

/// Compiles every file for every element type. Returns, for each, its name, its type and the compiler's words.
///
/// # Errors
/// As of the first kernel of a file that is used: the compiler is missing, or refuses a file.
#[cfg(feature = "bench")]
pub fn compile_all(arch: u32) -> Result<Vec<(&'static str, &'static str, String)>> {
    let mut logs = Vec::new();
    for &file in File::ALL {
        let source = file.source();
        let floats = [File::Softmax, File::Norm, File::Optim].contains(&file);
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float() || (dtype.is_int() && !floats)) {
            if file == File::Graph && dtype != DType::U32 {
                continue;
            }
            let unit = Unit { name: file.name(), source: &source, element: dtype.as_str() };
            logs.push((file.name(), dtype.as_str(), compile::compile(&unit, arch)?.log));
        }
    }
    Ok(logs)
}
