//! Saying what was going on, on the way out.

use std::fmt::Display;

use crate::base::error::Error;

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
