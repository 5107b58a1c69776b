//! Rows: what one mode shows after one epoch, and what a reader learns from all of them.
//!
//! A child prints JSON objects, one per line: [`StepReport`]s under the key `progress`, and a
//! [`Row`] after each epoch; [`parse_line`] reads both. [`write_json`] writes all rows as one
//! array. [`table`] sets the modes one below the other, in columns of one width, below 120
//! characters in all. [`verdict`] says in two sentences what the numbers show, also when they do not
//! show what this program is meant to show. KiB, MiB and GiB are powers of 1024.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Deserializer, Serialize};

use super::args::Mode;

/// Bytes in a MiB.
const MIB: f64 = 1_048_576.0;

/// One mode after one epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// How arrays were treated.
    pub(crate) mode: Mode,
    /// Counted from 1.
    pub(crate) epoch: usize,
    /// Wall time of the epoch's training, without the test.
    pub(crate) seconds: f64,
    /// Training steps of the epoch.
    pub(crate) steps: usize,
    /// Wall time of the first of them, which fills stocks and learns sizes.
    pub(crate) first_step_seconds: f64,
    /// Arrays that hold memory after the epoch.
    pub(crate) live_arrays: u64,
    /// Bytes that they hold.
    pub(crate) live_bytes: u64,
    /// Arrays that nothing uses any more but that still hold memory.
    pub(crate) dead_arrays: u64,
    /// Bytes that the device's pool holds: those of live arrays and those kept for reuse.
    pub(crate) held_bytes: u64,
    /// The most bytes that were held at once so far.
    pub(crate) peak_bytes: u64,
    /// Memory of the process as the system counts it.
    pub(crate) resident_bytes: u64,
    /// Mean training loss of the epoch; may be NaN, which JSON writes as `null`.
    #[serde(deserialize_with = "number")]
    pub(crate) loss: f64,
    /// Share of the test images that are recognised, `0.0..=1.0`.
    #[serde(deserialize_with = "number")]
    pub(crate) accuracy: f64,
}

/// Where a mode stands within an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StepReport {
    /// Counted from 1.
    pub(crate) epoch: usize,
    /// Steps done in this epoch.
    pub(crate) step: usize,
    /// Steps of an epoch.
    pub(crate) steps: usize,
    /// Loss of the latest step.
    #[serde(deserialize_with = "number")]
    pub(crate) loss: f64,
}

/// One line of a child.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Line {
    /// Still within an epoch.
    Progress(StepReport),
    /// An epoch is over.
    Row(Row),
}

/// Why rows cannot be read or written.
#[derive(Debug)]
pub(crate) enum ReportError {
    /// A line is not what a child prints.
    Line {
        /// The line, shortened.
        line: String,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// A row cannot be put as JSON.
    Encode(serde_json::Error),
    /// The file cannot be written.
    Write {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { line, error } => {
                write!(f, "a child printed a line that is no report: {error}: '{line}'")
            }
            Self::Encode(error) => write!(f, "a report cannot be put as JSON: {error}"),
            Self::Write { file, error } => write!(f, "{}: {error}", file.display()),
        }
    }
}

impl std::error::Error for ReportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Line { error, .. } | Self::Encode(error) => Some(error),
            Self::Write { error, .. } => Some(error),
        }
    }
}

/// A number, or NaN for `null`.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// The line that a child prints within an epoch.
pub(crate) fn progress_line(report: &StepReport) -> Result<String, ReportError> {
    let inner = serde_json::to_string(report).map_err(ReportError::Encode)?;
    Ok(format!("{{\"progress\":{inner}}}"))
}

/// The line that a child prints after an epoch.
pub(crate) fn row_line(row: &Row) -> Result<String, ReportError> {
    serde_json::to_string(row).map_err(ReportError::Encode)
}

/// Reads one line of a child.
pub(crate) fn parse_line(line: &str) -> Result<Line, ReportError> {
    let fault = |error| ReportError::Line { line: line.chars().take(200).collect(), error };
    let mut value: serde_json::Value = serde_json::from_str(line).map_err(fault)?;
    match value.get_mut("progress") {
        Some(inner) => serde_json::from_value(inner.take()).map(Line::Progress).map_err(fault),
        None => serde_json::from_value(value).map(Line::Row).map_err(fault),
    }
}

/// Writes all rows as one JSON array, a row on each line, and makes the folder where needed.
pub(crate) fn write_json(path: &Path, rows: &[Row]) -> Result<(), ReportError> {
    let lines: Vec<_> = rows.iter().map(row_line).collect::<Result<_, _>>()?;
    let text = if lines.is_empty() { "[]\n".into() } else { format!("[\n{}\n]\n", lines.join(",\n")) };
    write_page(path, &text)
}

/// Writes a text to a file, and makes its folder.
pub(crate) fn write_page(path: &Path, text: &str) -> Result<(), ReportError> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    let done = folder.and_then(|()| fs::write(path, text));
    done.map_err(|error| ReportError::Write { file: path.to_owned(), error })
}

/// The modes that `rows` tell of, in the order in which they appear.
pub(crate) fn modes(rows: &[Row]) -> Vec<Mode> {
    let mut modes = Vec::new();
    for row in rows {
        if !modes.contains(&row.mode) {
            modes.push(row.mode);
        }
    }
    modes
}

/// Bytes in the unit that suits them.
pub(crate) fn bytes(amount: f64) -> String {
    let (mut amount, mut unit) = (amount, "bytes");
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if amount.abs() < 1024.0 {
            break;
        }
        (amount, unit) = (amount / 1024.0, larger);
    }
    let digits = match amount.abs() {
        _ if unit == "bytes" => 0,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{amount:.digits$} {unit}")
}

/// What live memory does from the first epoch of a mode to its last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Course {
    /// There is one epoch only.
    Unknown,
    /// The same number of bytes after every epoch.
    Flat,
    /// More after every epoch than after the one before; the mean step in bytes.
    Grows(f64),
    /// Neither; the distance between the lowest and the highest in bytes.
    Varies(u64),
}

/// The course of live memory in `mode`.
pub(crate) fn course(rows: &[Row], mode: Mode) -> Course {
    let live: Vec<u64> = of(rows, mode).map(|row| row.live_bytes).collect();
    let (Some(first), Some(last)) = (live.first(), live.last()) else { return Course::Unknown };
    let (low, high) = live.iter().fold((first, last), |(low, high), x| (low.min(x), high.max(x)));
    if live.len() < 2 {
        Course::Unknown
    } else if low == high {
        Course::Flat
    } else if live.windows(2).all(|pair| pair[0] < pair[1]) {
        Course::Grows((last - first) as f64 / (live.len() - 1) as f64)
    } else {
        Course::Varies(high - low)
    }
}

fn of(rows: &[Row], mode: Mode) -> impl Iterator<Item = &Row> {
    rows.iter().filter(move |row| row.mode == mode)
}

/// The two lines of heads above each column.
const HEADS: [[&str; 10]; 2] = [
    ["", "", "first", "live", "live", "dead arrays", "device's", "resident", "", "test"],
    ["epoch", "seconds", "step ms", "arrays", "MiB", "waiting", "pool MiB", "MiB", "loss", "accuracy"],
];

/// All rows as text: one block for each mode, with the same columns at the same places.
pub(crate) fn table(rows: &[Row]) -> String {
    let cells: Vec<_> = rows.iter().map(|row| (row.mode, cells(row))).collect();
    let mut widths = [0; 10];
    let heads = HEADS.map(|line| line.map(str::to_owned));
    for line in heads.iter().chain(cells.iter().map(|(_, cells)| cells)) {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.len());
        }
    }
    let put = |text: &mut String, line: &[String; 10]| {
        for (cell, width) in line.iter().zip(widths) {
            // A String takes every write, here and below.
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    };
    let mut text = String::new();
    for mode in modes(rows) {
        let _ = writeln!(text, "{}{mode}", if text.is_empty() { "" } else { "\n" });
        heads.iter().for_each(|line| put(&mut text, line));
        cells.iter().filter(|(of, _)| *of == mode).for_each(|(_, line)| put(&mut text, line));
    }
    text
}

/// A row's cells, in the order of the columns.
fn cells(row: &Row) -> [String; 10] {
    let mib = |bytes: u64| bytes as f64 / MIB;
    [
        row.epoch.to_string(),
        format!("{:.2}", row.seconds),
        format!("{:.2}", row.first_step_seconds * 1e3),
        grouped(row.live_arrays),
        format!("{:.2}", mib(row.live_bytes)),
        grouped(row.dead_arrays),
        format!("{:.2}", mib(row.held_bytes)),
        format!("{:.1}", mib(row.resident_bytes)),
        format!("{:.4}", row.loss),
        format!("{:.1} %", row.accuracy * 100.0),
    ]
}

/// A number with commas between its thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Two sentences: what live memory does, and what a step costs.
pub(crate) fn verdict(rows: &[Row]) -> String {
    let modes = modes(rows);
    if modes.is_empty() {
        return "No epoch was finished.".to_owned();
    }
    format!("{}\n{}", memory_sentence(rows, &modes), time_sentence(rows, &modes))
}

/// What each mode's live memory does; modes of one course share a phrase.
fn memory_sentence(rows: &[Row], modes: &[Mode]) -> String {
    let mut phrases: Vec<(&str, Vec<String>)> = Vec::new();
    for &mode in modes {
        let live: Vec<f64> = of(rows, mode).map(|row| row.live_bytes as f64).collect();
        let (Some(&first), Some(&last)) = (live.first(), live.last()) else { continue };
        let (start, end) = (bytes(first), bytes(last));
        let (phrase, detail) = match course(rows, mode) {
            Course::Unknown => ("cannot be judged from one epoch", format!("{mode} ({end})")),
            Course::Flat => ("stays the same to the byte after every epoch", format!("{mode} ({end})")),
            Course::Grows(step) => {
                let (step, count) = (bytes(step), live.len());
                let detail = format!("{mode} (by {step}, from {start} after the first to {end} after {count})");
                ("grows with every epoch", detail)
            }
            Course::Varies(span) => ("goes up and down", format!("{mode} (by {}, now {end})", bytes(span as f64))),
        };
        match phrases.iter_mut().find(|(known, _)| *known == phrase) {
            Some((_, details)) => details.push(detail),
            None => phrases.push((phrase, vec![detail])),
        }
    }
    let said = phrases.iter().map(|(phrase, list)| format!("{phrase} in {}", joined(list)));
    let mut text = format!("Live memory {}", joined(&said.collect::<Vec<_>>()));
    let surprises: Vec<_> = modes.iter().filter_map(|mode| surprise(*mode, course(rows, *mode))).collect();
    if !surprises.is_empty() {
        text += &format!(": not what was expected, since {}", joined(&surprises));
    }
    text + "."
}

/// How the course of a mode differs from what the mode is meant to show.
fn surprise(mode: Mode, course: Course) -> Option<String> {
    match (mode, course) {
        (_, Course::Unknown) | (Mode::Leaky, Course::Grows(_)) => None,
        (Mode::Leaky, _) => Some(format!("{mode} ought to grow")),
        (_, Course::Flat) => None,
        _ => Some(format!("{mode} ought to stay flat")),
    }
}

/// What a step costs in each mode, against the first.
fn time_sentence(rows: &[Row], modes: &[Mode]) -> String {
    let mut base = None;
    let mut parts = Vec::new();
    for &mode in modes {
        let steps: usize = of(rows, mode).map(|row| row.steps).sum();
        let seconds: f64 = of(rows, mode).map(|row| row.seconds).sum();
        let each = seconds / steps as f64;
        if steps == 0 || !each.is_finite() || each <= 0.0 {
            parts.push(format!("an unknown time in {mode}"));
            continue;
        }
        let mut part = format!("{} in {mode}", duration(each));
        match base {
            None => base = Some((mode, each)),
            Some((first, time)) => {
                // A String takes every write.
                let _ = write!(part, " ({:.2} times {first})", each / time);
            }
        }
        parts.push(part);
    }
    format!("A training step takes {}.", joined(&parts))
}

/// Seconds in the unit that suits them.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.0} µs", seconds * 1e6),
        ..1e-2 => format!("{:.2} ms", seconds * 1e3),
        ..1e-1 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// The items with commas, and `and` before the last.
pub(crate) fn joined<T: AsRef<str>>(items: &[T]) -> String {
    let mut text = String::new();
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            text += if at + 1 == items.len() { " and " } else { ", " };
        }
        text += item.as_ref();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mode: Mode, epoch: usize, live: u64) -> Row {
        Row {
            mode,
            epoch,
            seconds: 0.5,
            steps: 125,
            first_step_seconds: 0.006,
            live_arrays: 12_345,
            live_bytes: live,
            dead_arrays: 6,
            held_bytes: 3 * live,
            peak_bytes: live + 1,
            resident_bytes: 2 * live,
            loss: 0.25,
            accuracy: 0.9375,
        }
    }

    fn run(mode: Mode, live: &[u64]) -> Vec<Row> {
        live.iter().zip(1..).map(|(live, epoch)| row(mode, epoch, *live)).collect()
    }

    const M: u64 = 1 << 20;

    #[test]
    fn lines_survive_the_way_to_the_parent() {
        let mut sent = row(Mode::Scoped, 3, 5);
        sent.live_bytes = u64::MAX;
        let line = row_line(&sent).expect("JSON");
        let keys = "mode, epoch, seconds, steps, first_step_seconds, live_arrays, live_bytes, dead_arrays, held_bytes, peak_bytes, \
                    resident_bytes, loss, accuracy";
        let mut rest = line.as_str();
        for key in keys.split(", ") {
            let at = rest.find(&format!("\"{key}\":")).expect("the key, in order");
            rest = &rest[at..];
        }
        sent.peak_bytes = 7;
        let line = row_line(&sent).expect("JSON");
        assert_eq!(parse_line(&line).expect("a row"), Line::Row(sent.clone()));
        sent.loss = f64::NAN;
        match parse_line(&row_line(&sent).expect("JSON")).expect("a row") {
            Line::Row(row) => assert!(row.loss.is_nan()),
            other => panic!("{other:?}"),
        }
        let step = StepReport { epoch: 1, step: 2, steps: 125, loss: 2.3 };
        let line = progress_line(&step).expect("JSON");
        assert_eq!(parse_line(&line).expect("progress"), Line::Progress(step));
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["", "hello", "{}", "[]", "3", r#"{"progress":{}}"#, r#"{"mode":"eager"}"#] {
            let error = parse_line(line).expect_err("no report");
            assert!(error.to_string().contains(line), "{error}");
        }
        let good = row_line(&row(Mode::Leaky, 1, 1)).expect("JSON");
        assert!(parse_line(&good.replace("\"loss\"", "\"lost\"")).is_err());
        assert!(parse_line(&good.replace("12345", "-12345")).is_err());
    }

    #[test]
    fn the_file_is_one_array() {
        let path = std::env::temp_dir().join(format!("epoch_loop_{}/rows.json", std::process::id()));
        let rows = run(Mode::Leaky, &[1, 2, 3]);
        write_json(&path, &rows).expect("written");
        let text = fs::read_to_string(&path).expect("there");
        assert_eq!(serde_json::from_str::<Vec<Row>>(&text).expect("an array"), rows);
        write_json(&path, &[]).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("there"), "[]\n");
        let error = write_json(&path.join("below a file"), &rows).expect_err("no folder");
        assert!(error.to_string().contains("below a file"), "{error}");
        fs::remove_dir_all(path.parent().expect("a folder")).expect("removed");
    }

    #[test]
    fn tables_fit() {
        let leaky = run(Mode::Leaky, &[200 * M, 400 * M]);
        let three = [&leaky[..], &run(Mode::Reclaiming, &[M]), &run(Mode::Scoped, &[M, M])].concat();
        for rows in [&leaky[..], &three] {
            let text = table(rows);
            assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        }
        let text = table(&three);
        assert_eq!(text.matches("12,345").count(), 5);
        for name in ["leaky", "reclaiming", "scoped", "200.00", "93.8 %"] {
            assert!(text.contains(name), "{text}");
        }
        assert_eq!(table(&[]), "");
    }

    #[test]
    fn the_verdict_follows_the_numbers() {
        let leaky = run(Mode::Leaky, &[200 * M, 400 * M, 600 * M]);
        let mut flat = run(Mode::Reclaiming, &[20 * M; 3]);
        flat.iter_mut().for_each(|row| row.seconds = 0.55);
        let text = verdict(&[&leaky[..], &flat, &run(Mode::Scoped, &[19 * M; 3])].concat());
        assert_eq!(
            text,
            "Live memory grows with every epoch in leaky (by 200 MiB, from 200 MiB after the first \
             to 600 MiB after 3) and stays the same to the byte after every epoch in reclaiming (20.0 MiB) and \
             scoped (19.0 MiB).\n\
             A training step takes 4.00 ms in leaky, 4.40 ms in reclaiming (1.10 times leaky) and \
             4.00 ms in scoped (1.00 times leaky)."
        );
    }

    #[test]
    fn the_verdict_is_honest() {
        let text = verdict(&[&run(Mode::Leaky, &[M, M])[..], &run(Mode::Scoped, &[M, 3 * M])].concat());
        assert!(text.contains("leaky ought to grow and scoped ought to stay flat"), "{text}");
        let text = verdict(&run(Mode::Reclaiming, &[3 * M, M, 2 * M]));
        assert!(text.contains("goes up and down in reclaiming (by 2.0 MiB, now 2.0 MiB)"), "{text}");
        let text = verdict(&run(Mode::Leaky, &[M]));
        assert!(text.contains("cannot be judged from one epoch") && !text.contains("ought"));
        let mut rows = run(Mode::Leaky, &[M, 2 * M]);
        rows.iter_mut().for_each(|row| row.steps = 0);
        assert!(verdict(&rows).contains("an unknown time in leaky"));
        assert_eq!(verdict(&[]), "No epoch was finished.");
    }

    #[test]
    fn units_are_binary() {
        assert_eq!([bytes(1023.0), bytes(1024.0), bytes(-1536.0)], ["1023 bytes", "1.0 KiB", "-1.5 KiB"]);
        assert_eq!(bytes(1_234.0 * MIB), "1.2 GiB");
        assert_eq!([grouped(0), grouped(999), grouped(1_234_567)], ["0", "999", "1,234,567"]);
    }
}
