//! Making errors, and turning those of others into ours.

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
