//! Batches from files of numbers between commas, read as they are needed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};

use ndgc::{Device, Error, Result, Tensor};

use super::super::place::called_here;

use super::arrays::check_batch;
use super::data_set::DataSet;
use super::iterator::DataIterator;

/// What some programs begin a file of UTF-8 with.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Which columns of a file are labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsvLabels {
    /// A column of whole numbers, which are classes: rows with a 1.
    Class {
        /// The column.
        column: usize,
        /// Number of classes; the numbers are below.
        classes: usize,
    },
    /// Columns of numbers, as they are: one at least.
    Columns(Range<usize>),
    /// None: the labels are the features.
    None,
}

/// Batches from a file whose lines are rows of numbers, in f32: `[n, columns]`. Holds one batch, however long the file
/// is.
///
/// Numbers may stand between quotation marks, without the delimiter in them (`"1,234"` is an error); empty lines are
/// skipped, and so is a byte order mark at the start, as in Excel's "CSV UTF-8". Lines end with `\n` or `\r\n`. Every
/// row has as many columns as the first. Numbers too large for f32 are errors.
///
/// ```
/// # use ndgc::train::{CsvDataSetIterator, CsvLabels, DataIterator};
/// let path = std::env::temp_dir().join(format!("ndgc-{}.csv", std::process::id()));
/// std::fs::write(&path, "x,y,class\n0.5,1,2\n2,3,0\n4,5,1\n").unwrap();
/// let labels = CsvLabels::Class { column: 2, classes: 3 };
/// let mut batches = CsvDataSetIterator::new(&path, labels, 2)?.with_skip_lines(1)?;
/// let first = batches.next().unwrap()?;
/// assert_eq!(first.features.to_vec2::<f32>()?, [[0.5, 1.], [2., 3.]]);
/// assert_eq!(first.labels.to_vec2::<f32>()?, [[0., 0., 1.], [1., 0., 0.]]);
/// assert_eq!(batches.next().unwrap()?.num_examples(), 1);
/// assert!(batches.next().is_none());
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Debug)]
pub struct CsvDataSetIterator {
    path: PathBuf,
    labels: CsvLabels,
    batch: usize,
    skip: usize,
    delimiter: char,
    has_ids: bool,
    file: BufReader<File>,
    /// Lines that were read.
    line: usize,
    /// Columns of the first row.
    columns: Option<usize>,
    /// The last line as it lies in the file, and as the text of a row.
    bytes: Vec<u8>,
    text: String,
}

impl CsvDataSetIterator {
    /// Batches of `batch` rows.
    ///
    /// # Errors
    /// [`Error::Argument`] for batches of no row, and for labels in no column; [`Error::File`] for a file that cannot
    /// be opened.
    #[track_caller]
    pub fn new(path: impl AsRef<Path>, labels: CsvLabels, batch: usize) -> Result<Self> {
        called_here(check_batch(batch).and_then(|()| check_labels(&labels)))?;
        let path = path.as_ref().to_owned();
        let file = called_here(open(&path))?;
        let (skip, delimiter, has_ids, columns) = (0, ',', false, None);
        let (bytes, text) = (Vec::new(), String::new());
        Ok(CsvDataSetIterator { path, labels, batch, skip, delimiter, has_ids, file, line: 0, columns, bytes, text })
    }

    /// Begins after that many lines, which may be of any encoding.
    ///
    /// # Errors
    /// As [`DataIterator::reset`].
    #[track_caller]
    pub fn with_skip_lines(mut self, lines: usize) -> Result<Self> {
        self.skip = lines;
        self.reset()?;
        Ok(self)
    }

    /// What stands between the columns.
    #[must_use]
    pub fn with_delimiter(mut self, delimiter: char) -> Self {
        self.delimiter = delimiter;
        self
    }

    /// Gives each row the number of its line in the file, from 1, as its id ([`DataSet::example_ids`]).
    #[must_use]
    pub fn with_example_ids(mut self) -> Self {
        self.has_ids = true;
        self
    }

    fn fail(&self, why: String) -> Error {
        Error::file(Some(&self.path), None, format!("line {}: {why}", self.line))
    }

    /// The next line that is not empty, to `text`.
    fn next_line(&mut self) -> Result<bool> {
        loop {
            self.bytes.clear();
            let read = self.file.read_until(b'\n', &mut self.bytes);
            self.line += 1;
            if read.map_err(|error| self.fail(error.to_string()))? == 0 {
                return Ok(false);
            }
            if self.line <= self.skip {
                continue;
            }
            let line = str::from_utf8(&self.bytes).map_err(|error| self.fail(error.to_string()))?;
            let is_first = self.line == 1;
            let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| is_first).unwrap_or(line);
            if !line.trim().is_empty() {
                self.text.clear();
                self.text.push_str(line);
                return Ok(true);
            }
        }
    }

    /// Adds the row in `text`.
    fn row(&mut self, features: &mut Vec<f32>, labels: &mut Vec<f32>) -> Result<()> {
        let cells = self.text.trim_end_matches(['\n', '\r']).split(self.delimiter);
        let mut columns = 0;
        for (column, cell) in cells.enumerate() {
            columns = column + 1;
            let wrong = |why: &str| self.fail(format!("column {column} has `{}`, {why}", cell.trim()));
            let bare = unquoted(cell).ok_or_else(|| {
                wrong("whose quotation marks are not around one number, which has no delimiter in it")
            })?;
            let number: f32 =
                bare.parse().map_err(|_| self.fail(format!("column {column} has `{bare}`, which is no number")))?;
            // `inf` is what the file says, 1e40 is not.
            if number.is_infinite() && bare.contains(|letter: char| letter.is_ascii_digit()) {
                return Err(wrong("which is too large for f32"));
            }
            match &self.labels {
                CsvLabels::Class { column: own, classes } if *own == column => {
                    if number.fract() != 0. || !(0. ..*classes as f32).contains(&number) {
                        return Err(self.fail(format!("{number} is none of {classes} classes")));
                    }
                    let (start, classes) = (labels.len(), *classes);
                    let full = |_| self.fail(format!("no memory for a row of {classes} classes"));
                    labels.try_reserve(classes).map_err(full)?;
                    labels.resize(start + classes, 0.);
                    labels[start + number as usize] = 1.;
                }
                CsvLabels::Columns(own) if own.contains(&column) => labels.push(number),
                _ => features.push(number),
            }
        }
        let wanted = *self.columns.get_or_insert(columns);
        if wanted != columns {
            return Err(self.fail(format!("{columns} columns, where the first row has {wanted}")));
        }
        let last = match &self.labels {
            CsvLabels::Class { column, .. } => column.saturating_add(1),
            CsvLabels::Columns(own) => own.end,
            CsvLabels::None => 0,
        };
        if last > columns {
            return Err(self.fail(format!("{columns} columns, and labels are looked for in column {}", last - 1)));
        }
        Ok(())
    }

    fn make(&mut self) -> Result<Option<DataSet>> {
        let (mut features, mut labels, mut ids, mut rows) = (Vec::new(), Vec::new(), Vec::new(), 0);
        while rows < self.batch && self.next_line()? {
            self.row(&mut features, &mut labels)?;
            if self.has_ids {
                ids.push(self.line as u64);
            }
            rows += 1;
        }
        if rows == 0 {
            return Ok(None);
        }
        let array = |all: &[f32]| Tensor::from_slice(all, (rows, all.len() / rows), &Device::Cpu);
        let features = array(&features)?;
        let labels = if self.labels == CsvLabels::None { features.clone() } else { array(&labels)? };
        let mut batch = DataSet::new(features, labels)?;
        batch.ids = self.has_ids.then(|| ids.into());
        Ok(Some(batch))
    }
}

impl Iterator for CsvDataSetIterator {
    type Item = Result<DataSet>;

    #[track_caller]
    fn next(&mut self) -> Option<Result<DataSet>> {
        called_here(self.make()).transpose()
    }
}

impl DataIterator<DataSet> for CsvDataSetIterator {
    #[track_caller]
    fn reset(&mut self) -> Result<()> {
        self.file = called_here(open(&self.path))?;
        self.line = 0;
        Ok(())
    }

    fn batch(&self) -> Option<usize> {
        Some(self.batch)
    }
}

/// What a cell holds, between its quotation marks if it has them. None if they are no pair around it: the delimiter
/// stands between them then, as in `"1,234"`, and it is part of a number.
fn unquoted(cell: &str) -> Option<&str> {
    let cell = cell.trim();
    let inner = match cell.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"')?.trim(),
        None => cell,
    };
    (!inner.contains('"')).then_some(inner)
}

fn check_labels(labels: &CsvLabels) -> Result<()> {
    match labels {
        CsvLabels::Columns(own) if own.is_empty() => {
            let expected = "columns from one to a later one; CsvLabels::None is without labels";
            Err(Error::argument("CsvDataSetIterator", "labels", format!("{own:?}"), expected))
        }
        _ => Ok(()),
    }
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let fail = |error: std::io::Error| Error::file(Some(path), None, error.to_string());
    Ok(BufReader::new(File::open(path).map_err(fail)?))
}
