//! One error type, grouped by cause; every text a user can read from it lives here.
//!
//! Each text says what was asked, where, and how to go on. Misuse (`ShapeMismatch`, `StaleArray`) is
//! kept apart from bad luck (`OutOfMemory`, `Device`). A failed call leaves every operand as it was.

use std::fmt;
use std::path::PathBuf;

pub use crate::base::call::Site;
use crate::base::{dtype::DType, limits::MAX_RANK, out_of_memory::OutOfMemory};

use crate::base::leak::{LeakedArray, WorkspaceFull};

/// The result of every call of this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, with the values that made it so.
///
/// `Debug` shows the text too, so that a `main` which returns an error, or an `unwrap`, says how to go on.
#[non_exhaustive]
pub enum Error {
    /// Shapes that do not fit each other.
    ShapeMismatch {
        /// The operation.
        op: &'static str,
        /// Dims of the first operand.
        lhs: Vec<usize>,
        /// Dims of the second operand.
        rhs: Vec<usize>,
        /// Which sizes differ, and what would fit.
        why: String,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// A shape that does not have the form the operation needs.
    Shape {
        /// The operation.
        op: &'static str,
        /// The dims found.
        found: Vec<usize>,
        /// The form needed.
        expected: String,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// A reshape to another number of elements, or a hole that nothing fits.
    Reshape {
        /// The operation.
        op: &'static str,
        /// Elements there are.
        elem_count: usize,
        /// Dims asked for, with 1 in the place of the hole.
        to: Vec<usize>,
        /// Axis of the hole.
        hole: Option<usize>,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// An axis that the array does not have.
    DimOutOfRange {
        /// The operation.
        op: &'static str,
        /// The axis as given; negative ones count from the end. `D::Minus(0)` is one behind the last.
        dim: i64,
        /// Dims of the array.
        shape: Vec<usize>,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// An axis named twice.
    DuplicateDim {
        /// The operation.
        op: &'static str,
        /// The axis.
        dim: usize,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// More axes than [`MAX_RANK`].
    RankTooLarge {
        /// The operation.
        op: &'static str,
        /// Axes asked for.
        rank: usize,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// A range that leaves its axis.
    Narrow {
        /// The operation.
        op: &'static str,
        /// The axis.
        axis: usize,
        /// First index.
        start: usize,
        /// Number of indices.
        len: usize,
        /// Size of the axis.
        dim: usize,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// An index outside its axis.
    IndexOutOfRange {
        /// The operation.
        op: &'static str,
        /// The index.
        index: i64,
        /// Size of the axis indexed.
        dim: usize,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// An index written as text that is none.
    Index {
        /// The operation.
        op: &'static str,
        /// The text.
        text: String,
        /// What is wrong with it.
        why: String,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// More bytes than an address can count.
    SizeOverflow {
        /// The operation.
        op: &'static str,
        /// Dims asked for.
        shape: Vec<usize>,
        /// Bytes of an element.
        elem_bytes: usize,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// A number of elements that is not the shape's.
    ElementCount {
        /// The operation.
        op: &'static str,
        /// Elements given.
        given: usize,
        /// The shape.
        shape: Vec<usize>,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// Operands of different dtypes, or a read as another dtype.
    DTypeMismatch {
        /// The operation.
        op: &'static str,
        /// Dtype of the first.
        lhs: DType,
        /// Dtype of the second.
        rhs: DType,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// A dtype the operation is not defined for.
    UnsupportedDType {
        /// The operation.
        op: &'static str,
        /// The dtype found.
        dtype: DType,
        /// The dtypes it is defined for.
        supported: &'static str,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// An operation of the user's own that is not defined for the dtype.
    UnsupportedDTypeForOp(DType, &'static str),
    /// An operation that reads or writes elements where they lie, of an array whose elements do not lie one after the
    /// other.
    RequiresContiguous {
        /// The operation.
        op: &'static str,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// The gradient of an operation that has none.
    BackwardNotSupported {
        /// The operation.
        op: &'static str,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// Operands on different devices. Nothing is moved silently.
    DeviceMismatch {
        /// The operation.
        op: &'static str,
        /// Device of the first.
        lhs: String,
        /// Device of the second.
        rhs: String,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// An array that was closed: by hand, with its manager, or by the end of its scope.
    StaleArray(Box<StaleArray>),
    /// An array of a workspace that was used after the end of its cycle.
    LeakedArray(Box<LeakedArray>),
    /// A workspace that has no room, and may not take any elsewhere.
    WorkspaceFull(Box<WorkspaceFull>),
    /// A workspace that cannot do what was asked of it.
    Workspace {
        /// What was asked of it.
        op: &'static str,
        /// Its name.
        workspace: String,
        /// Why not, and what to do instead.
        why: String,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// Settings of a workspace that contradict each other.
    WorkspaceConfig {
        /// The setting, as the builder calls it.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What it contradicts, and what it may be.
        why: String,
        /// Where the user gave it, where that is known.
        site: Option<Site>,
    },
    /// A manager that was closed.
    ManagerClosed {
        /// What was asked of it.
        op: &'static str,
        /// Its name.
        manager: String,
        /// Where it was made.
        created: Site,
        /// Who closed it.
        closed_by: Closer,
        /// Where.
        closed: Option<Site>,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// A manager that was capped: it may not take further arrays.
    ManagerCapped {
        /// What was asked of it.
        op: &'static str,
        /// Its name.
        manager: String,
        /// Where it was made.
        created: Site,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// Something that the system manager does not do, because it lives as long as the process.
    SystemManager {
        /// What was asked of it.
        op: &'static str,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// An exclusive access while the bytes are being used elsewhere.
    InUse {
        /// The operation.
        op: &'static str,
        /// The array as `name` or `7v3`.
        array: String,
        /// Who holds it.
        by: &'static str,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// An in-place change of memory that was lent for reading: a mapped file, a read-only exchange.
    ReadOnly {
        /// The operation.
        op: &'static str,
        /// The array as `name` or `7v3`.
        array: String,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// An in-place change of an array whose elements repeat.
    Overlap {
        /// The operation.
        op: &'static str,
        /// Dims of the array.
        shape: Vec<usize>,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// An in-place change of a value that gradients are recorded for.
    Tracked {
        /// The operation.
        op: &'static str,
        /// The array as `name` or `7v3`.
        array: String,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// A value saved for the gradient was changed in place before `backward`.
    ChangedSinceSaved {
        /// The operation whose gradient needs the value.
        op: &'static str,
        /// Where that operation was called.
        site: Site,
        /// Where `backward` was called, where that is known.
        backward: Option<Site>,
    },
    /// A value that the gradient needs was an array of a workspace's cycle that ended before `backward`.
    GraphEnded {
        /// The operation whose gradient needs the value.
        op: &'static str,
        /// Where that operation was called.
        site: Site,
        /// Where `backward` was called, where that is known.
        backward: Option<Site>,
        /// The workspace.
        workspace: String,
    },
    /// `backward` of a value that no variable leads to.
    NoGradient {
        /// The operation.
        op: &'static str,
        /// The array as `name` or `7v3`.
        array: String,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// Not enough memory, after everything was tried.
    OutOfMemory(Box<OutOfMemory>),
    /// A device call that failed.
    Device {
        /// The device.
        device: String,
        /// The call.
        call: &'static str,
        /// What it answered.
        message: String,
        /// Where the user called what failed, where that is known.
        site: Option<Site>,
    },
    /// A device that is not there.
    DeviceUnavailable {
        /// The device asked for.
        device: String,
        /// What was looked for and what was found.
        found: String,
        /// Where the user asked for it, where that is known.
        site: Option<Site>,
    },
    /// Something that a captured section cannot hold, or that has to wait until one is captured.
    Capture {
        /// The device.
        device: String,
        /// What it was, and what to do instead.
        what: String,
        /// Where, if a call in the user's source did it.
        site: Option<Site>,
    },
    /// An environment variable that cannot be understood.
    Environment {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// An argument outside its range.
    Argument {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// A file, or a buffer in a file's format, that cannot be read or written.
    File {
        /// The file; none for a buffer.
        path: Option<PathBuf>,
        /// Bytes from its start to the place that is wrong, if there is one.
        offset: Option<u64>,
        /// What is wrong there, and what was expected.
        why: String,
        /// Where the user called what reads or writes it, where that is known.
        site: Option<Site>,
    },
    /// What a call was given, or is called on, does not do for it.
    Invalid {
        /// The operation.
        op: &'static str,
        /// What is wrong, and how to go on.
        why: String,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// The handle was made before a `fork`, and this is the child.
    Forked {
        /// The operation.
        op: &'static str,
        /// Where the user called it, where that is known.
        site: Option<Site>,
    },
    /// A tensor that is not among those of a model, a file or a buffer.
    CannotFindTensor {
        /// Its name with the names of the modules around it.
        path: String,
        /// The file, the first one of several; none for a buffer or a model.
        file: Option<PathBuf>,
        /// The names there that are most like it: three at most, the most alike first.
        nearest: Vec<String>,
        /// Where the user asked for it, where that is known.
        site: Option<Site>,
    },
    /// An error of something else: of a file, of a number that was to be parsed.
    Wrapped(Box<dyn std::error::Error + Send + Sync>),
    /// An error with what was going on.
    Context {
        /// The error.
        inner: Box<Error>,
        /// What was going on.
        context: String,
    },
    /// An error with the file that it is about.
    WithPath {
        /// The error.
        inner: Box<Error>,
        /// The file.
        path: PathBuf,
    },
    /// An error with the calls that led to it, if `RUST_BACKTRACE` asks for them: its text is the error's, and `Debug`
    /// shows the calls.
    WithBacktrace {
        /// The error.
        inner: Box<Error>,
        /// The calls.
        backtrace: Box<std::backtrace::Backtrace>,
    },
    /// A message of the caller's own.
    Msg(String),
}

/// An array that was used after its end.
#[derive(Debug)]
pub struct StaleArray {
    /// The operation.
    pub op: &'static str,
    /// The array's name, or its key as `7v3`.
    pub array: String,
    /// Where it was made.
    pub created: Option<Site>,
    /// Who closed it.
    pub closed_by: Closer,
    /// Where, if a call in the user's source did.
    pub closed: Option<Site>,
    /// Where the user called the operation, where that is known.
    pub site: Option<Site>,
}

/// Who ended an array or a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closer {
    /// `close()` on the handle itself, or a call that takes the array's content.
    User,
    /// The close of the manager that owned it.
    Manager,
    /// The drop of the last handle of a manager.
    ManagerDrop,
    /// The close of a manager further up.
    Ancestor,
    /// The drain: its last proxy was gone.
    Reaper,
    /// Nobody: the call that should have made it failed. The name says which, where and why.
    Failure,
    /// Unknown: the slot is in use for another array by now.
    Unknown,
}

impl fmt::Display for Closer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Closer::User => "by its user",
            Closer::Manager => "with its manager",
            Closer::ManagerDrop => "when the last handle of its manager was dropped",
            Closer::Ancestor => "with a manager further up",
            Closer::Reaper => "by the reaper, as an orphan",
            Closer::Failure => "as the call that should have made it failed",
            Closer::Unknown => "long ago",
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Wrapped(error) => Some(error.as_ref()),
            Error::Context { inner, .. } | Error::WithPath { inner, .. } | Error::WithBacktrace { inner, .. } => {
                Some(inner.as_ref())
            }
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_text(f)?;
        match self.own_site() {
            Some(site) => write!(f, " (called at {site})"),
            None => Ok(()),
        }
    }
}

impl Error {
    fn fmt_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ShapeMismatch { .. }
            | Error::Shape { .. }
            | Error::Reshape { .. }
            | Error::DimOutOfRange { .. }
            | Error::DuplicateDim { .. }
            | Error::RankTooLarge { .. }
            | Error::Narrow { .. }
            | Error::IndexOutOfRange { .. }
            | Error::Index { .. }
            | Error::SizeOverflow { .. }
            | Error::ElementCount { .. } => self.fmt_shape(f),
            Error::StaleArray(_)
            | Error::LeakedArray(_)
            | Error::WorkspaceFull(_)
            | Error::Workspace { .. }
            | Error::WorkspaceConfig { .. }
            | Error::ManagerClosed { .. }
            | Error::ManagerCapped { .. }
            | Error::SystemManager { .. }
            | Error::InUse { .. }
            | Error::ReadOnly { .. }
            | Error::Forked { .. } => self.fmt_lifetime(f),
            Error::Overlap { .. }
            | Error::Tracked { .. }
            | Error::ChangedSinceSaved { .. }
            | Error::GraphEnded { .. }
            | Error::NoGradient { .. } => self.fmt_gradient(f),
            Error::DTypeMismatch { .. }
            | Error::UnsupportedDType { .. }
            | Error::UnsupportedDTypeForOp(..)
            | Error::RequiresContiguous { .. }
            | Error::BackwardNotSupported { .. }
            | Error::DeviceMismatch { .. }
            | Error::OutOfMemory(_)
            | Error::Device { .. }
            | Error::DeviceUnavailable { .. }
            | Error::Capture { .. }
            | Error::Environment { .. }
            | Error::Argument { .. }
            | Error::File { .. }
            | Error::Invalid { .. }
            | Error::CannotFindTensor { .. }
            | Error::Wrapped(_)
            | Error::Context { .. }
            | Error::WithPath { .. }
            | Error::WithBacktrace { .. }
            | Error::Msg(_) => self.fmt_rest(f),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        match self {
            Error::WithBacktrace { backtrace, .. } => write!(f, "\n{backtrace}"),
            _ => Ok(()),
        }
    }
}

/// What stands for a text where a variant has come to the wrong family.
const NO_TEXT: &str = "an error without a text";

impl Error {
    fn fmt_shape(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ShapeMismatch { op, lhs, rhs, why, .. } => {
                write!(f, "shape mismatch in {op}, lhs: {lhs:?}, rhs: {rhs:?}: {why}")
            }
            Error::Shape { op, found, expected, .. } => {
                write!(f, "{op}: unexpected shape {found:?}: needs {expected}")
            }
            Error::Reshape { op, elem_count, to, hole: None, .. } => {
                write!(f, "{op}: {elem_count} elements do not fit {to:?}")
            }
            Error::Reshape { op, elem_count, to, hole: Some(hole), .. } => {
                write!(f, "{op}: no size on axis {hole} makes {to:?} hold {elem_count} elements")
            }
            Error::DimOutOfRange { op, dim, shape, .. } => write!(
                f,
                "{op}: axis {dim} is out of range for shape {shape:?}; it has {} axes, counted from 0 or backwards from -1",
                shape.len()
            ),
            Error::DuplicateDim { op, dim, .. } => write!(f, "{op}: axis {dim} is named twice"),
            Error::RankTooLarge { op, rank, .. } => write!(
                f,
                "{op}: {rank} axes are more than the {} an array can have; flatten some of them first",
                MAX_RANK
            ),
            Error::Narrow { op, axis, start, len, dim, .. } => {
                write!(f, "{op}: indices {start} to {start} + {len} leave axis {axis} of size {dim}")
            }
            Error::IndexOutOfRange { op, index, dim, .. } => {
                write!(f, "{op}: index {index} is outside an axis of size {dim}")
            }
            Error::Index { op, text, why, .. } => write!(f, "{op}: {why}, in \"{text}\""),
            Error::SizeOverflow { op, shape, elem_bytes, .. } => {
                write!(f, "{op}: {shape:?} elements of {elem_bytes} bytes exceed the address space")
            }
            Error::ElementCount { op, given, shape, .. } => write!(
                f,
                "{op}: {given} elements were given for shape {shape:?}, which holds {}",
                shape.iter().product::<usize>()
            ),
            _ => f.write_str(NO_TEXT),
        }
    }

    fn fmt_lifetime(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::StaleArray(stale) => fmt_stale(f, stale),
            Error::LeakedArray(leaked) => fmt::Display::fmt(leaked, f),
            Error::WorkspaceFull(full) => fmt::Display::fmt(full, f),
            Error::Workspace { op, workspace, why, .. } => write!(f, "{op}: workspace [{workspace}]: {why}"),
            Error::WorkspaceConfig { setting, value, why, .. } => write!(f, "workspace: {setting} is {value}: {why}"),
            Error::ManagerClosed { op, manager, created, closed_by, closed, .. } => {
                write!(f, "{op}: manager `{manager}` (made at {created}) has been closed already, {closed_by}")?;
                if let Some(site) = closed {
                    write!(f, " at {site}")?;
                }
                f.write_str("; use a manager that is open, or a device")
            }
            Error::ManagerCapped { op, manager, created, .. } => write!(
                f,
                "{op}: manager `{manager}` (made at {created}) is capped and takes no further arrays; \
                 name another manager, or make a sub-manager of it"
            ),
            Error::SystemManager { op, .. } => write!(
                f,
                "{op}: the system manager lives as long as the process and cannot be closed, capped, lent to or \
                 given a budget; use NdManager::new_base_manager, or Device::set_limit for all of a device"
            ),
            Error::InUse { op, array, by, .. } => {
                write!(f, "{op}: array {array} is in use by {by}; let that end first")
            }
            Error::ReadOnly { op, array, .. } => write!(
                f,
                "{op}: the memory of array {array} was lent for reading; copy() gives an array that may be changed"
            ),
            Error::Forked { op, .. } => write!(
                f,
                "{op}: this process was forked from one that used ndgc; arrays made before the fork cannot be \
                 used in the child, start a new process instead"
            ),
            _ => f.write_str(NO_TEXT),
        }
    }

    fn fmt_gradient(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Overlap { op, shape, .. } => write!(
                f,
                "{op}: several indices of this {shape:?} view lead to the same element; call contiguous() first"
            ),
            Error::Tracked { op, array, .. } => write!(
                f,
                "{op}: gradients are recorded through array {array}, which an in-place change would falsify; \
                 use the form that returns a new array, or change it inside no_grad"
            ),
            Error::ChangedSinceSaved { op, site, .. } => write!(
                f,
                "backward: a value that the gradient of {op} (called at {site}) needs was changed in place \
                 after it was saved; use the form that returns a new array, or change it after backward"
            ),
            Error::GraphEnded { op, site, workspace, .. } => write!(
                f,
                "backward: a value that the gradient of {op} (called at {site}) needs ended with its cycle of workspace \
                 [{workspace}]; call backward before the cycle ends, and keep a loss by its number or by detach()"
            ),
            Error::NoGradient { op, array, .. } => {
                write!(f, "{op}: no variable leads to array {array}; make its inputs with Var, outside no_grad")
            }
            _ => f.write_str(NO_TEXT),
        }
    }

    fn fmt_rest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::DTypeMismatch { op, lhs, rhs, .. } => {
                write!(f, "dtype mismatch in {op}, lhs: {lhs}, rhs: {rhs}; convert one with to_dtype")
            }
            Error::UnsupportedDType { op, dtype, supported, .. } => {
                write!(f, "{op}: not defined for {dtype}; convert with to_dtype to one of {supported}")
            }
            Error::UnsupportedDTypeForOp(dtype, op) => write!(f, "unsupported dtype {dtype} for op {op}"),
            Error::RequiresContiguous { op, .. } => {
                write!(f, "{op} only supports contiguous tensors; contiguous() makes one")
            }
            Error::BackwardNotSupported { op, .. } => {
                write!(f, "backward is not supported for {op}; implement `bwd` of that operation")
            }
            Error::DeviceMismatch { op, lhs, rhs, .. } => {
                write!(f, "device mismatch in {op}, lhs: {lhs}, rhs: {rhs}; move one with to_device")
            }
            Error::OutOfMemory(oom) => fmt::Display::fmt(oom, f),
            Error::Device { device, call, message, .. } => write!(f, "{device}: {call} failed: {message}"),
            Error::DeviceUnavailable { device, found, .. } => write!(f, "{device} is not available: {found}"),
            Error::Capture { device, what, site } => {
                write!(f, "{device}: ")?;
                if let Some(site) = site {
                    write!(f, "at {site}: ")?;
                }
                f.write_str(what)
            }
            Error::Environment { name, value, expected } => {
                write!(f, "environment: {name}={value} is not understood; it may be {expected}")
            }
            Error::Argument { op, argument, value, expected, .. } => {
                write!(f, "{op}: {argument} is {value}; it must be {expected}")
            }
            Error::File { path, offset, why, .. } => {
                match path {
                    Some(path) => write!(f, "{}: ", path.display())?,
                    None => f.write_str("buffer: ")?,
                }
                if let Some(offset) = offset {
                    write!(f, "at byte {offset}: ")?;
                }
                f.write_str(why)
            }
            Error::CannotFindTensor { path, file, nearest, .. } => {
                if let Some(file) = file {
                    write!(f, "{}: ", file.display())?;
                }
                write!(f, "there is no tensor `{}`", path.escape_debug())?;
                for (i, name) in nearest.iter().enumerate() {
                    let lead = if i == 0 { "; the nearest names are" } else { "," };
                    write!(f, "{lead} `{}`", name.escape_debug())?;
                }
                Ok(())
            }
            Error::Invalid { op, why, .. } => write!(f, "{op}: {why}"),
            Error::Wrapped(error) => write!(f, "{error}"),
            Error::Context { inner, context } => write!(f, "{context}\n{inner}"),
            Error::WithPath { inner, path } => write!(f, "{}: {inner}", path.display()),
            Error::WithBacktrace { inner, .. } => fmt::Display::fmt(inner, f),
            Error::Msg(message) => f.write_str(message),
            _ => f.write_str(NO_TEXT),
        }
    }
}

fn fmt_stale(f: &mut fmt::Formatter<'_>, stale: &StaleArray) -> fmt::Result {
    write!(f, "{}: array {}", stale.op, stale.array)?;
    if stale.closed_by == Closer::Failure {
        return f.write_str(" was never made");
    }
    if let Some(site) = stale.created {
        write!(f, " (made at {site})")?;
    }
    write!(f, " has been closed already, {}", stale.closed_by)?;
    if let Some(site) = stale.closed {
        write!(f, " at {site}")?;
    }
    f.write_str("; call attach or detach before its owner ends")
}
