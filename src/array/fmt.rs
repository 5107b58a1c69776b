//! Printing arrays as candle and PyTorch do: nested brackets, aligned columns, the middle of long axes left out.

use std::fmt;

use crate::base::{
    dtype::{WithDType, with_type},
    error::{Error, Result},
    shape::Shape,
};
use crate::memory::{proxy::Proxy, registry, workspace::validity};

/// Elements above which the middle of an axis is left out.
const THRESHOLD: usize = 1000;
/// Elements kept at each end of an axis then.
const EDGE: usize = 3;
/// Letters of a line, after which a vector goes on in the next.
const LINE: usize = 80;
/// Elements from which on `{:?}` shows the size of a vector instead.
const SHORT: usize = 10;

impl fmt::Display for Proxy {
    /// The elements, then shape, dtype and device. A closed array prints that it is closed, one that ended with its
    /// cycle of a workspace the text of [`Error::LeakedArray`]; printing never fails.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_open() {
            return match registry::stale("display", self.key()) {
                leaked @ Error::LeakedArray(_) => write!(f, "<{leaked}>"),
                _ => f.write_str("This array is already closed"),
            };
        }
        match describe(self) {
            Ok((table, suffix)) => {
                table.write(f, 0, 0)?;
                write!(f, "\n{suffix}")
            }
            Err(error) => write!(f, "<{error}>"),
        }
    }
}

impl fmt::Debug for Proxy {
    /// In one line: `Tensor[1, 2, 3; f32]`, or `Tensor[dims 2, 3; f32]` without the elements where there are many. With
    /// `{:#?}`: key, name, dtype, shape, device and owner, as for an array that has ended.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() || !self.is_open() {
            return self.fmt_owner(f);
        }
        let short = match self.dims() {
            [] => true,
            [len] => *len < SHORT,
            _ => false,
        };
        // What cannot be read shows its size.
        let elements = if short {
            with_type!(self.dtype(), T => self.elements::<T>("debug").map(|(_, all)| texts(&all).join(", ")).ok())
        } else {
            None
        };
        let dims = || format!("dims {}", texts(self.dims()).join(", "));
        write!(f, "Tensor[{}; {}{}]", elements.unwrap_or_else(dims), self.dtype(), device_suffix(self))
    }
}

impl Proxy {
    fn fmt_owner(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

fn texts(items: &[impl fmt::Display]) -> Vec<String> {
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        texts.push(item.to_string());
    }
    texts
}

/// Nothing for the host.
fn device_suffix(array: &Proxy) -> String {
    if array.device().is_cpu() { String::new() } else { format!(", {}", array.device()) }
}

fn describe(array: &Proxy) -> Result<(NumberTable, String)> {
    let dtype = array.dtype();
    let (shape, cells) = with_type!(dtype, T => {
        let (shape, values) = array.ends::<T>("display", THRESHOLD, EDGE)?;
        (shape, if dtype.is_float() { cells(&doubles(&values), [1e8, 1e-4].map(rounded::<T>)) } else { texts(&values) })
    });
    let width = cells.iter().map(String::len).max().unwrap_or(0);
    // Of an array without elements the places of the other axes are printed.
    let places = shape.dims().iter().filter(|&&dim| dim > 0).fold(1usize, |all, &dim| all.saturating_mul(dim));
    let table = NumberTable { shape, cells, width, summarise: places > THRESHOLD };
    Ok((table, format!("Tensor[{shape}, {dtype}{}]", device_suffix(array))))
}

fn doubles<T: WithDType>(values: &[T]) -> Vec<f64> {
    let mut doubles = Vec::with_capacity(values.len());
    for value in values {
        doubles.push(value.to_f64());
    }
    doubles
}

/// A number as the type has it.
fn rounded<T: WithDType>(number: f64) -> f64 {
    T::from_f64(number).to_f64()
}

/// Floats as text, in a common form: whole numbers as they are, others with four decimals, or in scientific notation if
/// they span more than three orders, or lie far from 1. Its limits are numbers of the type, so that they are inside in
/// each.
fn cells(values: &[f64], [high, low]: [f64; 2]) -> Vec<String> {
    let seen: Vec<f64> = values.iter().copied().filter(|v| v.is_finite() && *v != 0.0).collect();
    let largest = seen.iter().fold(0f64, |a, v| a.max(v.abs()));
    let smallest = seen.iter().fold(f64::INFINITY, |a, v| a.min(v.abs()));
    let scientific = largest / smallest > 1e3 || largest > high || smallest < low;
    let whole = seen.iter().all(|v| v.ceil() == *v);
    let number = |&value: &f64| match (scientific, whole) {
        (true, _) => format!("{value:.4e}"),
        (false, true) if value.is_finite() => format!("{value:.0}."),
        _ => format!("{value:.4}"),
    };
    values.iter().map(number).collect()
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
    fn write(&self, f: &mut fmt::Formatter<'_>, axis: usize, first: usize) -> fmt::Result {
        let dims = self.shape.dims();
        if axis == dims.len() {
            return match dims.len() {
                0 => write!(f, "[{}]", self.cells[first]),
                _ => write!(f, "{:>width$}", self.cells[first], width = self.width),
            };
        }
        let inner: usize = (axis + 1..dims.len()).map(|axis| self.kept(axis)).product();
        let skip = self.kept(axis) < dims[axis];
        let last = axis + 1 == dims.len();
        let a_line = (LINE / (self.width + 2)).max(1);
        f.write_str("[")?;
        for i in 0..self.kept(axis) {
            if skip && i == EDGE {
                f.write_str(if last { ", ..." } else { ",\n" })?;
                if !last {
                    write!(f, "{}...", " ".repeat(axis + 1))?;
                }
            }
            match i {
                0 => {}
                _ if last && (skip || i % a_line > 0) => f.write_str(", ")?,
                // The middle that was left out is followed by no comma.
                _ => write!(f, "{}\n{}", if skip && i == EDGE { "" } else { "," }, " ".repeat(axis + 1))?,
            }
            self.write(f, axis + 1, first + i * inner)?;
        }
        f.write_str("]")
    }
}
