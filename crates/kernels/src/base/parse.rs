//! Words that name things: dtypes.

use std::str::FromStr;

use crate::base::{dtype::DType, error::Error};

impl FromStr for DType {
    type Err = Error;

    /// From its name as printed.
    ///
    /// # Errors
    /// [`Error::Argument`] with the names there are.
    fn from_str(name: &str) -> Result<Self, Error> {
        let found = DType::ALL.into_iter().find(|dtype| dtype.as_str() == name);
        found.ok_or_else(|| {
            Error::argument(
                "DType::from_str",
                "name",
                name,
                "bool, u8, u16, u32, u64, i8, i16, i32, i64, f8e4m3, f16, bf16, f32 or f64",
            )
        })
    }
}
