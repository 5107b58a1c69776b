//! Settings and counters as JSON, and back.

use serde_json::Value;

use ndgc::{Error, Result};

/// The most rows that counters are read of: doubles have all whole numbers up to it, and sums of counters end far from
/// where they would wrap.
const ROWS_MAX: u64 = 1 << 53;

/// A JSON object that is read, and what it is of.
pub(super) struct JsonReader {
    of: &'static str,
    value: Value,
}

impl JsonReader {
    pub(super) fn new(of: &'static str, text: &str) -> Result<Self> {
        let value = serde_json::from_str(text).map_err(|error| Error::invalid(of, format!("not JSON: {error}")))?;
        Self::of(of, value)
    }

    /// Of a part of a larger object.
    pub(super) fn of(of: &'static str, value: Value) -> Result<Self> {
        let reader = JsonReader { of, value };
        match reader.value.get("type").and_then(Value::as_str) {
            Some(found) if found == of => Ok(reader),
            found => Err(Error::invalid(of, format!("this is JSON of {}", found.unwrap_or("something else")))),
        }
    }

    pub(super) fn get<T>(&self, key: &str, read: impl FnOnce(&Value) -> Option<T>) -> Result<T> {
        self.value.get(key).and_then(read).ok_or_else(|| self.wrong(key))
    }

    fn wrong(&self, key: &str) -> Error {
        self.refuse(&format!("`{key}` is not there, or is not what it should be"))
    }

    pub(super) fn count(&self, key: &str) -> Result<u64> {
        self.get(key, count)
    }

    pub(super) fn size(&self, key: &str) -> Result<usize> {
        self.get(key, |value| usize::try_from(value.as_u64()?).ok())
    }

    /// A size that memory is asked for by.
    pub(super) fn size_upto(&self, key: &str, most: usize) -> Result<usize> {
        let size = self.size(key)?;
        if size <= most { Ok(size) } else { Err(self.refuse(&format!("`{key}` is {size}; it may be {most} at most"))) }
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool> {
        self.get(key, Value::as_bool)
    }

    pub(super) fn integer(&self, key: &str) -> Result<i64> {
        self.get(key, Value::as_i64)
    }

    pub(super) fn names(&self, key: &str) -> Result<Vec<String>> {
        self.get(key, |value| list(value, |name| name.as_str().map(str::to_owned)))
    }

    pub(super) fn counts(&self, key: &str) -> Result<Vec<u64>> {
        self.get(key, counts)
    }

    /// Something that may be null.
    pub(super) fn option<T>(&self, key: &str, read: impl FnOnce(&Value) -> Option<T>) -> Result<Option<T>> {
        self.get(key, |value| if value.is_null() { Some(None) } else { read(value).map(Some) })
    }

    /// Something that may be left out.
    pub(super) fn if_there<T>(&self, key: &str, read: impl FnOnce(&Value) -> Option<T>) -> Result<Option<T>> {
        if self.value.get(key).is_none() { Ok(None) } else { self.get(key, read).map(Some) }
    }

    pub(super) fn values(&self, key: &str) -> Result<Vec<Value>> {
        self.get(key, |value| value.as_array().cloned())
    }

    /// An error about the whole.
    pub(super) fn refuse(&self, why: &str) -> Error {
        Error::invalid(self.of, why)
    }
}

/// A list whose elements are all of one kind.
pub(super) fn list<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    let mut all = Vec::new();
    for value in value.as_array()? {
        all.push(read(value)?);
    }
    Some(all)
}

/// Rows that were counted.
pub(super) fn count(value: &Value) -> Option<u64> {
    value.as_u64().filter(|&rows| rows <= ROWS_MAX)
}

/// Counters of which each row is in one.
pub(super) fn counts(value: &Value) -> Option<Vec<u64>> {
    let all = list(value, count)?;
    let sum = all.iter().try_fold(0u64, |sum, &rows| sum.checked_add(rows));
    sum.filter(|&sum| sum <= ROWS_MAX).map(|_| all)
}

/// Doubles as text: read back to the last bit, as `serde_json` reads numbers only with a feature that takes time.
pub(super) fn exact(numbers: &[f64]) -> Value {
    numbers.iter().map(|number| Value::String(format!("{number:?}"))).collect()
}

/// What [`exact`] wrote, or a number.
pub(super) fn number(value: &Value) -> Option<f64> {
    value.as_str().map_or_else(|| value.as_f64(), |text| text.parse().ok())
}
