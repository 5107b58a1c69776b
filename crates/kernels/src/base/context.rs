//! Making errors, and turning those of others into ours.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::{Debug, Display};
use std::panic::Location;
use std::path::Path;

use crate::base::{
    call::{Asked, Call},
    dtype::DType,
    error::{Error, Result, Site},
};

/// Declares how errors are made of what they tell, in the order of their fields.
macro_rules! made_of {
    ($($(#[$doc:meta])* $name:ident => $variant:ident { $($field:ident: $t:ty = $to:expr),* $(,)? })*) => {
        /// # Errors of operations
        ///
        /// For operations of your own, `op` is their name; where it was called is added by the call itself.
        impl Error {$(
            $(#[$doc])*
            #[cold]
            pub fn $name(op: impl Into<Asked>, $($field: $t),*) -> Self {
                let Asked { op, site } = op.into();
                Error::$variant { op, $($field: $to,)* site }
            }
        )*}
    };
}

made_of! {
    /// [`Error::ShapeMismatch`].
    shape_mismatch => ShapeMismatch {
        lhs: &[usize] = lhs.to_vec(), rhs: &[usize] = rhs.to_vec(), why: impl Into<String> = why.into(),
    }
    /// [`Error::Shape`].
    shape => Shape { found: &[usize] = found.to_vec(), expected: impl Into<String> = expected.into() }
    /// [`Error::RankTooLarge`].
    rank_too_large => RankTooLarge { rank: usize = rank }
    /// [`Error::IndexOutOfRange`].
    index_out_of_range => IndexOutOfRange { index: i64 = index, dim: usize = dim }
    /// [`Error::ElementCount`].
    element_count => ElementCount { given: usize = given, shape: &[usize] = shape.to_vec() }
    /// [`Error::SizeOverflow`].
    size_overflow => SizeOverflow { shape: &[usize] = shape.to_vec(), elem_bytes: usize = elem_bytes }
    /// [`Error::DTypeMismatch`].
    dtype_mismatch => DTypeMismatch { lhs: DType = lhs, rhs: DType = rhs }
    /// [`Error::UnsupportedDType`].
    unsupported_dtype => UnsupportedDType { dtype: DType = dtype, supported: &'static str = supported }
    /// [`Error::DeviceMismatch`].
    device_mismatch => DeviceMismatch { lhs: impl ToString = lhs.to_string(), rhs: impl ToString = rhs.to_string() }
    /// [`Error::Argument`].
    argument => Argument {
        argument: &'static str = argument, value: impl ToString = value.to_string(), expected: &'static str = expected,
    }
    /// [`Error::InUse`].
    in_use => InUse { array: String = array, by: &'static str = by }
    /// [`Error::Invalid`].
    invalid => Invalid { why: impl Into<String> = why.into() }
    /// [`Error::Workspace`].
    workspace => Workspace { workspace: &str = workspace.to_owned(), why: impl Into<String> = why.into() }
    /// [`Error::SystemManager`].
    system_manager => SystemManager {}
    /// [`Error::Forked`].
    forked => Forked {}
}

/// The operation that an error is of, and where it was called: of `&Error`, and of `&mut Error`.
macro_rules! asked_of {
    ($error:expr $(, $mutable:tt)?) => {
        match $error {
            Error::ShapeMismatch { op, site, .. }
            | Error::Shape { op, site, .. }
            | Error::Reshape { op, site, .. }
            | Error::DimOutOfRange { op, site, .. }
            | Error::DuplicateDim { op, site, .. }
            | Error::RankTooLarge { op, site, .. }
            | Error::Narrow { op, site, .. }
            | Error::IndexOutOfRange { op, site, .. }
            | Error::Index { op, site, .. }
            | Error::SizeOverflow { op, site, .. }
            | Error::ElementCount { op, site, .. }
            | Error::DTypeMismatch { op, site, .. }
            | Error::UnsupportedDType { op, site, .. }
            | Error::RequiresContiguous { op, site, .. }
            | Error::BackwardNotSupported { op, site, .. }
            | Error::DeviceMismatch { op, site, .. }
            | Error::Workspace { op, site, .. }
            | Error::ManagerClosed { op, site, .. }
            | Error::ManagerCapped { op, site, .. }
            | Error::SystemManager { op, site, .. }
            | Error::InUse { op, site, .. }
            | Error::ReadOnly { op, site, .. }
            | Error::Overlap { op, site, .. }
            | Error::Tracked { op, site, .. }
            | Error::NoGradient { op, site, .. }
            | Error::Argument { op, site, .. }
            | Error::Invalid { op, site, .. }
            | Error::Forked { op, site, .. } => Some((op, site)),
            Error::StaleArray(stale) => Some((&$($mutable)? stale.op, &$($mutable)? stale.site)),
            Error::LeakedArray(leaked) => Some((&$($mutable)? leaked.op, &$($mutable)? leaked.site)),
            Error::WorkspaceFull(full) => Some((&$($mutable)? full.op, &$($mutable)? full.site)),
            Error::OutOfMemory(oom) => Some((&$($mutable)? oom.op, &$($mutable)? oom.site)),
            _ => None,
        }
    };
}

/// The place of the call that an error is of: of `&Error`, and of `&mut Error`.
macro_rules! place_of {
    ($error:expr $(, $mutable:tt)?) => {
        match $error {
            Error::Capture { site, .. }
            | Error::CannotFindTensor { site, .. }
            | Error::Device { site, .. }
            | Error::DeviceUnavailable { site, .. }
            | Error::File { site, .. }
            | Error::WorkspaceConfig { site, .. }
            | Error::ChangedSinceSaved { backward: site, .. }
            | Error::GraphEnded { backward: site, .. } => Some(site),
            error => asked_of!(error $(, $mutable)?).map(|(_, site)| site),
        }
    };
}

/// Whether a place is in the sources of this library. If it cannot be told, all are.
fn is_of_ndgc(site: Site) -> bool {
    let Some(root) = file!().strip_suffix("crates/kernels/src/base/context.rs") else { return true };
    site.file().strip_prefix(root).is_some_and(|file| file.starts_with("src/") || file.starts_with("crates/kernels/"))
}

/// Whether a place is in the standard library, which calls what is handed to it, and says nothing of who called it.
fn is_of_std(site: Site) -> bool {
    site.file().starts_with("/rustc/")
}

/// Where the caller of the function that asks was called, if that is in neither: then no call on the way said where it
/// was, and one further out may.
#[track_caller]
fn of_user() -> Option<Site> {
    Some(Location::caller()).filter(|&place| !is_of_ndgc(place) && !is_of_std(place))
}

impl Asked {
    /// The answer; an error names the place of the call.
    #[doc(hidden)]
    #[inline(always)]
    pub fn named<R>(self, answer: Result<R>) -> Result<R> {
        // The answer that there mostly is moves alone, without the room for an error around it.
        match answer {
            Ok(value) => Ok(value),
            Err(error) => Err(match self.site {
                Some(site) => error.at(site),
                None => error,
            }),
        }
    }
}

impl Call {
    /// The answer; an error names the place of the call.
    #[doc(hidden)]
    #[inline(always)]
    pub fn named<R>(self, answer: Result<R>) -> Result<R> {
        Asked::from(self).named(answer)
    }
}

/// Takes a name to the three that are most like one, by how much they differ.
fn add_near(nearest: &mut Vec<(usize, String)>, of: &str, name: &str) {
    let distance = strsim::levenshtein(name, of);
    let at = nearest.partition_point(|(other, known)| (*other, known.as_str()) < (distance, name));
    if at < 3 {
        nearest.insert(at, (distance, name.to_owned()));
        nearest.truncate(3);
    }
}

impl Error {
    /// The place of the call that is told at the end of this error's text.
    pub(super) fn own_site(&self) -> Option<Site> {
        match self {
            // It tells of it in its text.
            Error::Capture { .. } => None,
            error => *place_of!(error)?,
        }
    }

    /// Where the user called the operation that failed, if that is known.
    pub fn site(&self) -> Option<Site> {
        match self {
            Error::Context { inner, .. } | Error::WithPath { inner, .. } | Error::WithBacktrace { inner, .. } => {
                inner.site()
            }
            error => *place_of!(error)?,
        }
    }

    /// The error itself, without what was said around it.
    fn innermost(&mut self) -> &mut Error {
        match self {
            Error::Context { inner, .. } | Error::WithPath { inner, .. } | Error::WithBacktrace { inner, .. } => {
                inner.innermost()
            }
            error => error,
        }
    }

    /// The same error, of the operation that the user called; and of the place where it was, as in [`Error::at`].
    #[doc(hidden)]
    #[cold]
    pub fn of(mut self, called: impl Into<Asked>) -> Self {
        let Asked { op: name, site } = called.into();
        if let Some((op, _)) = asked_of!(self.innermost(), mut) {
            *op = name;
        }
        match site {
            Some(site) => self.at(site),
            None => self,
        }
    }

    /// The same error, of a call at this place, unless it names a line of the user's inside of that call already: for
    /// functions that users call, with `#[track_caller]`. It may be of an operation that was called before, and fails
    /// now. A message of the user's own stays as it is.
    #[cold]
    pub fn at(mut self, place: Site) -> Self {
        let site = place_of!(self.innermost(), mut);
        if let Some(site) = site
            && site.is_none_or(|site| is_of_ndgc(site) || is_of_std(site))
        {
            *site = Some(place).filter(|&place| !is_of_std(place));
        }
        self
    }

    /// [`Error::File`], of a file or a buffer, asked for by the caller of the function that calls this.
    #[cold]
    #[track_caller]
    pub fn file(path: Option<&Path>, offset: Option<u64>, why: impl Into<String>) -> Self {
        Error::File { path: path.map(Path::to_owned), offset, why: why.into(), site: of_user() }
    }

    /// [`Error::CannotFindTensor`]: there is none of this name among `names`, asked for by the caller of the function
    /// that calls this. The names most like it are told.
    #[track_caller]
    pub fn no_tensor<S: AsRef<str>>(path: &str, file: Option<&Path>, names: impl Iterator<Item = S>) -> Error {
        let mut nearest = Vec::new();
        for name in names {
            add_near(&mut nearest, path, name.as_ref());
        }
        Error::not_among(path, file, nearest)
    }

    /// [`Error::no_tensor`], whatever the names were.
    #[track_caller]
    fn not_among(path: &str, file: Option<&Path>, nearest: Vec<(usize, String)>) -> Error {
        let nearest = nearest.into_iter().map(|(_, name)| name).collect();
        Error::CannotFindTensor { path: path.to_owned(), file: file.map(Path::to_owned), nearest, site: of_user() }
    }

    /// [`Error::Device`]; where it was called is added by the call itself.
    #[doc(hidden)]
    #[cold]
    pub fn device(device: impl Into<String>, call: &'static str, message: impl Into<String>) -> Self {
        Error::Device { device: device.into(), call, message: message.into(), site: None }
    }

    /// [`Error::DeviceUnavailable`]; where it was asked for is added by the call itself.
    #[doc(hidden)]
    #[cold]
    pub fn device_unavailable(device: impl Into<String>, found: impl Into<String>) -> Self {
        Error::DeviceUnavailable { device: device.into(), found: found.into(), site: None }
    }

    /// A message of the caller's own.
    pub fn msg(message: impl Display) -> Self {
        Error::Msg(message.to_string()).bt()
    }

    /// A message made of what `Debug` says.
    pub fn debug(message: impl Debug) -> Self {
        Error::Msg(format!("{message:?}")).bt()
    }

    /// The text of something else's error.
    pub fn wrap(error: impl Display + Send + Sync + 'static) -> Self {
        Error::Msg(error.to_string()).bt()
    }

    /// The same error with the calls that led here, if `RUST_BACKTRACE` asks for them.
    pub fn bt(self) -> Self {
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => Error::WithBacktrace { inner: Box::new(self), backtrace: Box::new(backtrace) },
            _ => self,
        }
    }

    /// The same error with the file that it is about.
    pub fn with_path<P: AsRef<Path>>(self, path: P) -> Self {
        Error::WithPath { inner: Box::new(self), path: path.as_ref().to_owned() }
    }

    /// The same error with what was going on.
    pub fn context(self, context: impl Display + Send + Sync + 'static) -> Self {
        Error::Context { inner: Box::new(self), context: context.to_string() }
    }
}

macro_rules! from_errors {
    ($($t:ty)*) => {$(
        impl From<$t> for Error {
            fn from(error: $t) -> Self {
                Error::Wrapped(Box::new(error)).bt()
            }
        }
    )*};
}
from_errors! {
    std::io::Error std::num::ParseIntError std::num::ParseFloatError std::num::TryFromIntError
    std::string::FromUtf8Error std::str::Utf8Error std::convert::Infallible serde_json::Error
}

impl From<Box<dyn std::error::Error + Send + Sync>> for Error {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        // An error of ours stays what it is.
        match error.downcast::<Error>() {
            Ok(own) => *own,
            Err(other) => Error::Wrapped(other).bt(),
        }
    }
}
