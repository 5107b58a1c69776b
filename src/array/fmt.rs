//! Printing arrays as NumPy does: nested brackets, aligned columns, the middle of long axes left out.

use std::fmt;

use crate::base::{
    dtype::with_type,
    error::{Error, Result},
    shape::Shape,
};
use crate::memory::{proxy::Proxy, registry, workspace::validity};

/// Elements above which the middle of an axis is left out.
const THRESHOLD: usize = 1000;
/// Elements kept at each end of an axis then.
const EDGE: usize = 3;

impl fmt::Display for Proxy {
    /// The elements, then shape, dtype and device. A closed array prints that it is closed, one that ended with its cycle
    /// of a workspace the text of [`Error::LeakedArray`]; printing never fails.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_open() {
            return match registry::stale("display", self.key()) {
                leaked @ Error::LeakedArray(_) => write!(f, "<{leaked}>"),
                _ => f.write_str("This array is already closed"),
            };
        }
        match describe(self) {
            Ok((table, suffix)) => {
                table.write(f, 0, 0, 0)?;
                write!(f, "\n{suffix}")
            }
            Err(error) => write!(f, "<{error}>"),
        }
    }
}

impl fmt::Debug for Proxy {
    /// Key, name, dtype, shape, device and owner; no elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({}", self.key())?;
        if let Some(name) = self.name() {
            write!(f, " `{name}`")?;
        }
        match self.is_detached() {
            _ if !self.is_in_scope() => f.write_str(", ended with its cycle)"),
            Ok(detached) => {
                let (dtype, shape, device) = (self.dtype(), self.shape(), self.device());
                let owner = match (registry::cycle_of(self.key()), detached) {
                    (Some(cycle), _) => format!("workspace [{}]", validity::about(cycle).workspace),
                    (None, true) => "its handles".to_owned(),
                    (None, false) => self.manager().map_or_else(|_| "?".to_owned(), |manager| manager.name()),
                };
                write!(f, " {dtype} {shape} on {device}, owned by {owner})")
            }
            _ => f.write_str(", closed)"),
        }
    }
}

fn describe(array: &Proxy) -> Result<(NumberTable, String)> {
    let dtype = array.dtype();
    let (shape, cells) = with_type!(dtype, T => {
        let (shape, values) = array.ends::<T>("display", THRESHOLD, EDGE)?;
        (shape, cells(&values))
    });
    let width = cells.iter().map(String::len).max().unwrap_or(0);
    let table = NumberTable { shape, cells, width, summarise: shape.elem_count() > THRESHOLD };
    Ok((table, format!("{shape} {dtype} {}", array.device())))
}

/// Numbers as text, in a common form: integers as they are, floats with the fewest digits (up to 4 decimals)
/// that tell them apart, or in scientific notation if they span many orders.
fn cells<T: crate::base::dtype::WithDType>(values: &[T]) -> Vec<String> {
    if !T::DTYPE.is_float() {
        return values.iter().map(T::to_string).collect();
    }
    let seen: Vec<f64> = values.iter().map(|v| v.to_f64()).filter(|v| v.is_finite() && *v != 0.0).collect();
    let largest = seen.iter().fold(0f64, |a, v| a.max(v.abs()));
    let smallest = seen.iter().fold(f64::INFINITY, |a, v| a.min(v.abs()));
    let scientific = largest >= 1e8 || (smallest < 1e-4 && smallest.is_finite()) || largest / smallest > 1e6;
    let decimals = seen.iter().map(|v| decimals(*v)).max().unwrap_or(0);
    let number = |value: &T| {
        let value = value.to_f64();
        if !value.is_finite() {
            return value.to_string().to_lowercase();
        }
        match (scientific, decimals) {
            (true, _) => format!("{value:.4e}"),
            (false, 0) => format!("{value:.0}."),
            (false, decimals) => format!("{value:.decimals$}"),
        }
    };
    values.iter().map(number).collect()
}

/// Decimals that a number needs, up to 4.
fn decimals(value: f64) -> usize {
    let longest = format!("{value:.4}");
    4 - longest.bytes().rev().take_while(|&digit| digit == b'0').count().min(4)
}

struct NumberTable {
    shape: Shape,
    /// Of what is printed.
    cells: Vec<String>,
    width: usize,
    summarise: bool,
}

impl NumberTable {
    /// How many places of an axis are printed.
    fn kept(&self, axis: usize) -> usize {
        let dim = self.shape.dims()[axis];
        if self.summarise { dim.min(2 * EDGE) } else { dim }
    }

    /// Writes the block of `axis` that begins with this cell; recursion is at most the rank deep.
    fn write(&self, f: &mut fmt::Formatter<'_>, axis: usize, first: usize, indent: usize) -> fmt::Result {
        let dims = self.shape.dims();
        if axis == dims.len() {
            return write!(f, "{:>width$}", self.cells[first], width = self.width);
        }
        let inner: usize = (axis + 1..dims.len()).map(|axis| self.kept(axis)).product();
        let skip = self.kept(axis) < dims[axis];
        let last = axis + 1 == dims.len();
        f.write_str("[")?;
        for i in 0..self.kept(axis) {
            if skip && i == EDGE {
                self.separate(f, axis, indent)?;
                f.write_str("...")?;
            }
            if i > 0 {
                self.separate(f, axis, indent)?;
            }
            self.write(f, axis + 1, first + i * inner, if last { indent } else { indent + 1 })?;
        }
        f.write_str("]")
    }

    fn separate(&self, f: &mut fmt::Formatter<'_>, axis: usize, indent: usize) -> fmt::Result {
        let deeper = self.shape.rank() - axis - 1;
        if deeper == 0 {
            return f.write_str(", ");
        }
        write!(f, ",{}{}", "\n".repeat(deeper), " ".repeat(indent + 1))
    }
}
