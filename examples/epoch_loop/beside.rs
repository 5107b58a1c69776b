//! The same training in other systems: a file of figures that were measured once, and a picture of two panels, seconds
//! of an epoch and resident memory after it, with the modes of this run among them.
//!
//! The file has lines of `system,mode,epoch,seconds,arrays,resident_mib` below a line that says so. Lines that begin
//! with `#` are notes; the first is written below the picture. Series that [`SERIES`] does not name are not drawn.

use std::fmt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::panel::{Line, Look, Panel, Pen, QUIET, Scale, figure};
use super::plot::{PlotError, epochs, look};
use super::report::{Row, modes};

/// Width and height of the picture in points.
pub(crate) const SIZE: (u32, u32) = (1120, 500);
/// What the picture shows.
pub(crate) const HEADLINE: &str =
    "One training in ndgc and on the JVM: seconds of an epoch, and resident memory after it";
/// Top and bottom of the axes.
const PANEL_Y: (f64, f64) = (112.0, 418.0);
/// Left and right of the axes of seconds, and of memory.
const PANELS_X: [(f64, f64); 2] = [(60.0, 424.0), (634.0, 950.0)];
/// Where the note stands.
const NOTE_Y: f64 = 484.0;
/// System and mode in the file, the name in the picture, and its colour.
const SERIES: [(&str, &str, &str, RGBColor); 7] = [
    ("DJL 0.20", "leaky", "DJL 0.20", RGBColor(176, 32, 48)),
    ("DJL 0.20", "trainer", "DJL 0.20 Trainer", RGBColor(222, 110, 110)),
    ("DJL PR 2273", "leaky", "DJL proxies, off", RGBColor(120, 78, 40)),
    ("DJL PR 2273", "gc", "DJL proxies, on", RGBColor(190, 140, 60)),
    ("DJL 0.35", "leaky", "DJL 0.35", RGBColor(64, 68, 74)),
    ("DJL 0.35", "trainer", "DJL 0.35 Trainer", RGBColor(140, 146, 152)),
    ("DL4J 1.0.0-M2.1", "ENABLED", "DL4J", RGBColor(196, 84, 160)),
];

/// One epoch of one system.
#[derive(Clone, Debug, PartialEq)]
struct Epoch {
    system: String,
    mode: String,
    epoch: usize,
    seconds: f64,
    resident_mib: f64,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Others {
    note: String,
    epochs: Vec<Epoch>,
}

/// Why there are no figures of other systems.
#[derive(Debug)]
pub(crate) enum BesideError {
    /// The file cannot be read.
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A line is not of the form.
    Line {
        /// The file.
        file: PathBuf,
        /// The line's number, from 1.
        number: usize,
    },
}

impl fmt::Display for BesideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { file, error } => write!(f, "{}: {error}", file.display()),
            Self::Line { file, number } => {
                let form = "system,mode,epoch,seconds,arrays,resident_mib";
                write!(f, "{}: line {number} is not of the form {form}", file.display())
            }
        }
    }
}

impl std::error::Error for BesideError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { error, .. } => Some(error),
            Self::Line { .. } => None,
        }
    }
}

/// Reads the file.
pub(crate) fn read(path: &Path) -> Result<Others, BesideError> {
    let file = || path.to_owned();
    let text = fs::read_to_string(path).map_err(|error| BesideError::Read { file: file(), error })?;
    let mut others = Others { note: String::new(), epochs: Vec::new() };
    let mut has_head = false;
    for (at, line) in text.lines().enumerate() {
        if let Some(note) = line.strip_prefix('#') {
            if others.note.is_empty() {
                others.note = note.trim().to_owned();
            }
        } else if !has_head {
            has_head = true;
        } else {
            others.epochs.push(epoch(line).ok_or_else(|| BesideError::Line { file: file(), number: at + 1 })?);
        }
    }
    Ok(others)
}

fn epoch(line: &str) -> Option<Epoch> {
    let fields: Vec<&str> = line.split(',').collect();
    let [system, mode, epoch, seconds, _, resident_mib] = fields[..] else { return None };
    Some(Epoch {
        system: system.to_owned(),
        mode: mode.to_owned(),
        epoch: epoch.parse().ok()?,
        seconds: seconds.parse().ok()?,
        resident_mib: resident_mib.parse().ok()?,
    })
}

/// Draws both panels and the note.
pub(crate) fn draw<B: DrawingBackend>(pen: &Pen<'_, B>, rows: &[Row], others: &Others) -> Result<(), PlotError> {
    let seconds = lines(
        rows,
        others,
        |row| row.seconds,
        |epoch| epoch.seconds,
        |line| {
            let value = if line.grows() { line.last() } else { line.median };
            if value < 1.0 { format!("{value:.3} s") } else { format!("{} s", figure(value)) }
        },
    );
    panel(pen, PANELS_X[0], rows, "Seconds of an epoch", &seconds)?;
    let resident = |row: &Row| row.resident_bytes as f64 / 1_048_576.0;
    let memory =
        lines(rows, others, resident, |epoch| epoch.resident_mib, |line| format!("{} MiB", figure(line.last())));
    panel(pen, PANELS_X[1], rows, "Resident memory, MiB", &memory)?;
    pen.text(&others.note, (24.0, NOTE_Y), (12.5, QUIET, false), HPos::Left)
}

fn panel<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    x: (f64, f64),
    rows: &[Row],
    title: &str,
    lines: &[Line],
) -> Result<(), PlotError> {
    let panel = Panel { x, y: PANEL_Y, epochs: epochs(rows), scale: Scale::log(lines), is_inset: false };
    panel.draw(pen, title, &lines.iter().collect::<Vec<_>>())?;
    panel.names(pen, lines)
}

/// A line for each series that is drawn, those of this run last and so on top; only the epochs that this run has.
fn lines(
    rows: &[Row],
    others: &Others,
    of_row: impl Fn(&Row) -> f64,
    of_epoch: impl Fn(&Epoch) -> f64,
    value: impl Fn(&Line) -> String,
) -> Vec<Line> {
    let shown = epochs(rows);
    let foreign = SERIES.iter().filter_map(|&(system, mode, name, color)| {
        let series = others.epochs.iter().filter(|epoch| epoch.system == system && epoch.mode == mode);
        let points = series.filter(|epoch| shown.contains(&epoch.epoch)).map(|epoch| (epoch.epoch, of_epoch(epoch)));
        Line::new(name.to_owned(), Look { color, width: 2.0, mark: 0.0, dashed: false }, points)
    });
    let own = modes(rows).into_iter().filter_map(|mode| {
        let points = rows.iter().filter(|row| row.mode == mode).map(|row| (row.epoch, of_row(row)));
        let look = Look { mark: 0.0, ..look(mode) };
        Line::new(format!("ndgc {mode}"), look, points.filter(|(_, value)| *value > 0.0))
    });
    let mut lines: Vec<Line> = foreign.chain(own).collect();
    for line in &mut lines {
        (line.value, line.rank) = (value(line), line.last());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# measured once\n# and by whom\nsystem,mode,epoch,seconds,arrays,resident_mib\n";

    fn read_text(name: &str, text: &str) -> Result<Others, BesideError> {
        let path = std::env::temp_dir().join(format!("epoch_loop_beside_{}_{name}", std::process::id()));
        fs::write(&path, text).expect("written");
        let read = read(&path);
        fs::remove_file(&path).expect("removed");
        read
    }

    #[test]
    fn the_first_note_and_all_lines_are_read() {
        let lines = "DJL 0.20,leaky,1,0.437,10506,463.4\nDL4J 1.0.0-M2.1,NONE,1,0.607,,336\n";
        let others = read_text("good", &format!("{HEAD}{lines}")).expect("good");
        assert_eq!(others.note, "measured once");
        let found: Vec<_> = others.epochs.iter().map(|e| (&e.system[..], e.epoch, e.seconds, e.resident_mib)).collect();
        assert_eq!(found, [("DJL 0.20", 1, 0.437, 463.4), ("DL4J 1.0.0-M2.1", 1, 0.607, 336.0)]);
    }

    #[test]
    fn other_lines_are_refused_with_their_number() {
        for line in ["DJL 0.20,leaky,1,0.437,10506", "DJL 0.20,leaky,one,0.437,10506,463.4", ""] {
            let error = read_text("bad", &format!("{HEAD}{line}\n")).expect_err("a bad line").to_string();
            assert!(error.contains("line 4 is not of the form system,mode,epoch"), "{error}");
        }
        assert!(matches!(read(Path::new("no such file")), Err(BesideError::Read { .. })));
    }
}
