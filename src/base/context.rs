//! Making errors, saying what was going on, and turning those of others into ours.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::{Debug, Display};
use std::path::Path;

use crate::base::error::Error;

impl Error {
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

mod sealed {
    pub trait Sealed {}
    impl<T, E: std::error::Error> Sealed for Result<T, E> {}
    impl<T> Sealed for Option<T> {}
}

/// Saying what was going on, on the way out: for results whose error is any [`std::error::Error`], and for options.
///
/// ```
/// use ndgc::{Context, Result};
/// fn layers(text: &str) -> Result<usize> {
///     text.parse::<usize>().with_context(|| format!("the number of layers, `{text}`"))
/// }
/// assert!(layers("x").unwrap_err().to_string().starts_with("the number of layers, `x`"));
/// ```
pub trait Context<T>: sealed::Sealed {
    /// The error with what was going on.
    ///
    /// # Errors
    /// [`Error::Context`] if there was one, or nothing.
    fn context<C: Display + Send + Sync + 'static>(self, context: C) -> std::result::Result<T, Error>;

    /// As [`Context::context`]; the text is made if it is needed.
    ///
    /// # Errors
    /// As [`Context::context`].
    fn with_context<C: Display + Send + Sync + 'static>(
        self,
        context: impl FnOnce() -> C,
    ) -> std::result::Result<T, Error>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> Context<T> for std::result::Result<T, E> {
    fn context<C: Display + Send + Sync + 'static>(self, context: C) -> std::result::Result<T, Error> {
        self.with_context(|| context)
    }

    fn with_context<C: Display + Send + Sync + 'static>(
        self,
        context: impl FnOnce() -> C,
    ) -> std::result::Result<T, Error> {
        self.map_err(|error| {
            let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
            Error::Context { inner: Box::new(Error::from(boxed)), context: context().to_string() }
        })
    }
}

impl<T> Context<T> for Option<T> {
    fn context<C: Display + Send + Sync + 'static>(self, context: C) -> std::result::Result<T, Error> {
        self.ok_or_else(|| Error::msg(context))
    }

    fn with_context<C: Display + Send + Sync + 'static>(
        self,
        context: impl FnOnce() -> C,
    ) -> std::result::Result<T, Error> {
        self.ok_or_else(|| Error::msg(context()))
    }
}

/// Leaves the function with an [`Error::Msg`]; takes what `format!` takes.
///
/// ```
/// fn heads(width: usize) -> ndgc::Result<usize> {
///     if width % 64 != 0 {
///         ndgc::bail!("a width of {width} is no multiple of 64");
///     }
///     Ok(width / 64)
/// }
/// assert!(heads(100).is_err());
/// ```
#[macro_export]
macro_rules! bail {
    ($message:literal $(,)?) => {
        return ::std::result::Result::Err($crate::Error::msg(::std::format!($message)))
    };
    ($message:expr $(,)?) => {
        return ::std::result::Result::Err($crate::Error::msg($message))
    };
    ($format:expr, $($argument:tt)*) => {
        return ::std::result::Result::Err($crate::Error::msg(::std::format!($format, $($argument)*)))
    };
}
