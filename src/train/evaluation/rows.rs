//! Arrays as rows of numbers: whatever the shape, the dtype and the mask.

use ndgc::{Error, Result, Tensor};

use super::super::data::numbers::{Numbers, numbers};
use super::super::shared::one_each;

/// Labels and predictions, and which of them count.
pub(super) struct Rows {
    labels: Numbers,
    predictions: Numbers,
    mask: Option<Mask>,
    outer: usize,
    examples: usize,
    columns: usize,
    /// Numbers from one column of a row to the next.
    inner: usize,
}

struct Mask {
    values: Numbers,
    /// Rows that a number is for; None if there is one for each output.
    rows: Option<usize>,
}

/// A row: what is labelled, what is predicted, and whether that counts.
pub(super) struct Row<'a> {
    /// Its place among all rows, those that do not count too.
    pub(super) at: usize,
    pub(super) labels: &'a [f64],
    pub(super) predictions: &'a [f64],
    pub(super) counts: &'a [bool],
}

impl Rows {
    pub(super) fn new(
        op: &'static str,
        axis: i64,
        labels: &Tensor,
        predictions: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Self> {
        let dims = predictions.dims().to_vec();
        let (axis, [outer, columns, inner]) = split(op, axis, &dims)?;
        let one_each = one_each(labels.dims(), &dims, axis);
        if labels.dims() != dims && !one_each {
            let why = "labels have the shape of the predictions, or are classes, one for each row: [n] or [n, 1], of \
                       series [n, t] or [n, 1, t]";
            return Err(shapes(op, labels, predictions, why));
        }
        // They are along the first axis, unless the columns are.
        let examples = dims[usize::from(axis == 0)];
        let mask = mask.map(|mask| Mask::new(op, mask, predictions, axis, [outer * inner, examples])).transpose()?;
        let given = numbers(op, labels)?;
        // Of one column, that is it.
        let are_classes = one_each && columns > 1;
        let labels = if are_classes { one_hot(op, &given, [columns, inner], mask.as_ref())? } else { given };
        let rows = Rows { labels, predictions: numbers(op, predictions)?, mask, outer, examples, columns, inner };
        rows.no_nan(op)?;
        Ok(rows)
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// How many rows an example has, of as many examples as there are ids.
    pub(super) fn of_each(&self, op: &'static str, ids: &[u64]) -> Result<usize> {
        if ids.len() != self.examples {
            let why = format!("{} ids for {} examples; give one for each", ids.len(), self.examples);
            return Err(Error::invalid(op, why));
        }
        Ok(self.outer * self.inner / self.examples.max(1))
    }

    /// Refuses a mask that has a number for each output.
    pub(super) fn whole_rows(&self, op: &'static str) -> Result<()> {
        match &self.mask {
            Some(mask) if mask.rows.is_none() && self.columns > 1 => Err(Error::invalid(
                op,
                "a mask for each output, where rows count as a whole; give one number for each row",
            )),
            _ => Ok(()),
        }
    }

    /// Calls `f` with each row of which something counts.
    pub(super) fn for_each(&self, f: &mut dyn FnMut(Row<'_>)) {
        let (mut labels, mut predictions) = (vec![0.; self.columns], vec![0.; self.columns]);
        let mut counts = vec![true; self.columns];
        // Rows without columns take no memory: there may be any number of them.
        let rows = if self.columns == 0 { 0 } else { self.outer * self.inner };
        for row in 0..rows {
            let first = row / self.inner * self.columns * self.inner + row % self.inner;
            if let Some(mask) = &self.mask {
                for (column, counts) in counts.iter_mut().enumerate() {
                    let at = first + column * self.inner;
                    *counts = mask.values[mask.rows.map_or(at, |rows| row / rows)] != 0.;
                }
            }
            if !counts.contains(&true) {
                continue;
            }
            if self.inner == 1 {
                let own = first..first + self.columns;
                let (labels, predictions) = (&self.labels[own.clone()], &self.predictions[own]);
                f(Row { at: row, labels, predictions, counts: &counts });
                continue;
            }
            for column in 0..self.columns {
                labels[column] = self.labels[first + column * self.inner];
                predictions[column] = self.predictions[first + column * self.inner];
            }
            f(Row { at: row, labels: &labels, predictions: &predictions, counts: &counts });
        }
    }

    fn no_nan(&self, op: &'static str) -> Result<()> {
        // All of them, without a stop between: in vectors.
        let is_any = |all: &[f64]| all.iter().fold(false, |found, x| found | x.is_nan());
        if !is_any(&self.predictions) && !is_any(&self.labels) {
            return Ok(());
        }
        let mut found = false;
        self.for_each(&mut |row| {
            let pairs = row.labels.iter().zip(row.predictions).zip(row.counts);
            found |= pairs.into_iter().any(|((label, prediction), counts)| *counts && (label + prediction).is_nan());
        });
        if found {
            return Err(Error::invalid(op, "labels or predictions hold NaN; nothing of this batch was counted"));
        }
        Ok(())
    }
}

impl Mask {
    fn new(
        op: &'static str,
        mask: &Tensor,
        predictions: &Tensor,
        axis: usize,
        [rows, examples]: [usize; 2],
    ) -> Result<Self> {
        let (own, dims) = (mask.dims(), predictions.dims());
        let rows = if one_each(own, dims, axis) {
            Some(1)
        } else if own == dims {
            None
        } else if own.first() == Some(&examples) && own[1..].iter().all(|&size| size == 1) {
            Some((rows / examples.max(1)).max(1))
        } else {
            let why = "a mask has a number for each row ([n] or [n, 1], of series [n, t] or [n, 1, t]), for each \
                       example ([n] or [n, 1]) or for each output (the shape of the predictions)";
            return Err(shapes(op, mask, predictions, why));
        };
        Ok(Mask { values: numbers(op, mask)?, rows })
    }

    /// Whether nothing of a row counts, if that is for whole rows.
    fn leaves_out(&self, row: usize) -> bool {
        self.rows.is_some_and(|rows| self.values[row / rows] == 0.)
    }
}

/// The axis of the columns; what comes before it, along it and after it.
fn split(op: &'static str, axis: i64, dims: &[usize]) -> Result<(usize, [usize; 3])> {
    let rank = dims.len();
    if rank < 2 {
        let n = dims.first().copied().ok_or_else(|| Error::shape(op, &[], "rows, such as [n, c]"))?;
        return Ok((1, [n, 1, 1]));
    }
    let place = if axis < 0 { axis + rank as i64 } else { axis.min(rank as i64 - 1) };
    let outside = |_| Error::DimOutOfRange { op, dim: axis, shape: dims.to_vec(), site: None };
    let place = usize::try_from(place).map_err(outside)?;
    Ok((place, [dims[..place].iter().product(), dims[place], dims[place + 1..].iter().product()]))
}

/// Rows with a 1 for each class; of what a mask leaves out, whatever it is, without one.
fn one_hot(op: &'static str, classes: &[f64], [columns, inner]: [usize; 2], mask: Option<&Mask>) -> Result<Numbers> {
    let mut all = Numbers::zeros(op, classes.len() * columns)?;
    for (row, &class) in classes.iter().enumerate() {
        if mask.is_some_and(|mask| mask.leaves_out(row)) {
            continue;
        }
        if class.fract() != 0. {
            let why = format!("the class {class} of row {row} is no whole number; mask what does not count");
            return Err(Error::invalid(op, why));
        }
        if !(0. ..columns as f64).contains(&class) {
            return Err(Error::index_out_of_range(op, class as i64, columns));
        }
        all[(row / inner * columns + class as usize) * inner + row % inner] = 1.;
    }
    Ok(all)
}

fn shapes(op: &'static str, lhs: &Tensor, rhs: &Tensor, why: &str) -> Error {
    Error::shape_mismatch(op, lhs.dims(), rhs.dims(), why)
}

/// The most counters of an evaluation, which its settings and the columns make together: half a GiB of each kind.
const COUNTERS_MAX: usize = 1 << 26;

/// Refuses more counters than there may be, of `columns` with `each` of them, as the setting `argument` says.
pub(super) fn room_for(op: &'static str, argument: &'static str, each: usize, columns: usize) -> Result<()> {
    if each.saturating_mul(columns) > COUNTERS_MAX {
        let value = format!("{each} for each of {columns} columns");
        return Err(Error::argument(op, argument, value, "at most 67108864 for all columns together"));
    }
    Ok(())
}

/// Whether batches have as many columns as those before, of which there were `known` if that is not 0.
pub(super) fn same_columns(op: &'static str, known: usize, columns: usize) -> Result<()> {
    if known == 0 || known == columns {
        return Ok(());
    }
    Err(Error::invalid(op, format!("{columns} columns, where there were {known}; use one evaluation for each")))
}

/// The place of the largest; the first of several.
pub(super) fn argmax(numbers: impl IntoIterator<Item = f64>) -> usize {
    let mut best = (0, f64::NEG_INFINITY);
    for (place, number) in numbers.into_iter().enumerate() {
        if number > best.1 {
            best = (place, number);
        }
    }
    best.0
}
