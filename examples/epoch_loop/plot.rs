//! The picture: live memory of arrays after each epoch, one line per mode, and beside it the time of an epoch if each
//! step walked all arrays, since it grows with the leak then; without that walk it is the same in all modes, and not
//! drawn.
//!
//! [`write`] draws once, in quarters of a picture point, for both kinds of file: an SVG keeps the quarters, a PNG is
//! averaged down to half points, which smooths every edge. Lines far below the others have an inset with a scale of
//! their own. The ground is white, on a dark page too. The headline is computed: it tells what live memory gained per
//! epoch, or claims nothing.
//!
//! With the figures of other systems ([`Others`]) it is another picture, that of `beside.rs`.

use std::fmt;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::HPos;

use super::args::Mode;
use super::beside::{self, Others};
use super::panel::{FINE, INK, Line, Look, Panel, Pen, QUIET, Scale, figure};
use super::report::{Course, Row, bytes, course, modes};

/// Width and height of the picture in points; beside other systems, `beside::SIZE`.
const SIZE: (u32, u32) = (1120, 440);
/// Drawing units in a pixel of a PNG.
const SHRINK: u32 = 2;
/// Top and bottom of both panels' axes.
const PANEL_Y: (f64, f64) = (112.0, 384.0);
/// Left and right of the axes of a panel that has the picture for itself; its names stand to the right.
const ALONE_X: (f64, f64) = (64.0, 940.0);
/// The same of two panels.
const PAIR_X: [(f64, f64); 2] = [(64.0, 500.0), (748.0, 960.0)];
/// Lines that stay below this part of a panel have an inset.
const SMALL_PART: f64 = 0.1;

/// The kinds of picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Vectors.
    Svg,
    /// Pixels.
    Png,
}

impl Format {
    /// The kind that the file's name asks for.
    pub(crate) fn of(path: &Path) -> Result<Self, PlotError> {
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        match extension.to_str() {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => Err(PlotError::Extension(path.to_owned())),
        }
    }
}

/// Why there is no picture.
#[derive(Debug)]
pub(crate) enum PlotError {
    /// The file's name ends neither in .svg nor in .png.
    Extension(PathBuf),
    /// There is no row to draw.
    Empty,
    /// The drawing failed.
    Draw(String),
    /// The file cannot be written.
    Write {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

impl fmt::Display for PlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Extension(file) => {
                write!(f, "{}: a picture's name ends in .svg or in .png", file.display())
            }
            Self::Empty => f.write_str("no epoch was finished, so there is nothing to draw"),
            Self::Draw(text) => write!(f, "the picture cannot be drawn: {text}"),
            Self::Write { file, error } => write!(f, "{}: {error}", file.display()),
        }
    }
}

impl std::error::Error for PlotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Write { error, .. } => Some(error),
            _ => None,
        }
    }
}

pub(super) fn draw_error(error: impl fmt::Display) -> PlotError {
    PlotError::Draw(error.to_string())
}

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    /// One for each epoch and mode.
    pub(crate) rows: &'a [Row],
    /// The run's parameters, in words.
    pub(crate) subtitle: &'a str,
    /// Whether each step walked all arrays: then there is a panel of seconds.
    pub(crate) scanned: bool,
    /// The same training in other systems: then the panels are seconds and resident memory.
    pub(crate) beside: Option<&'a Others>,
}

impl Content<'_> {
    fn size(&self) -> (u32, u32) {
        if self.beside.is_some() { beside::SIZE } else { SIZE }
    }
}

/// Draws `content` into `path`, and makes the folder.
pub(crate) fn write(path: &Path, content: Content<'_>) -> Result<(), PlotError> {
    let format = Format::of(path)?;
    if content.rows.is_empty() {
        return Err(PlotError::Empty);
    }
    fonts()?;
    let drawn = match format {
        Format::Svg => svg(content)?.into_bytes(),
        Format::Png => png(content)?,
    };
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    let done = folder.and_then(|()| fs::write(path, drawn));
    done.map_err(|error| PlotError::Write { file: path.to_owned(), error })
}

/// Makes the letters known, once; the SVG names no font but the reader's own sans-serif.
fn fonts() -> Result<(), PlotError> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    let known = *KNOWN.get_or_init(|| {
        register_font("sans-serif", FontStyle::Normal, ttf_noto_sans::REGULAR).is_ok()
            && register_font("sans-serif", FontStyle::Bold, ttf_noto_sans::BOLD).is_ok()
    });
    if known { Ok(()) } else { Err(draw_error("the built-in font is damaged")) }
}

fn svg(content: Content<'_>) -> Result<String, PlotError> {
    let mut text = String::new();
    let (width, height) = content.size();
    let fine = (width * FINE, height * FINE);
    picture(SVGBackend::with_string(&mut text, fine), 0.0, content)?;
    // The drawing units stay in `viewBox`; what is shown is smaller.
    let size = |(width, height)| format!("width=\"{width}\" height=\"{height}\"");
    Ok(text.replacen(&size(fine), &size((width, height)), 1))
}

fn png(content: Content<'_>) -> Result<Vec<u8>, PlotError> {
    let fine = (content.size().0 * FINE, content.size().1 * FINE);
    let (width, height) = (fine.0 / SHRINK, fine.1 / SHRINK);
    let mut canvas = vec![0; fine.0 as usize * fine.1 as usize * 3];
    picture(BitMapBackend::with_buffer(&mut canvas, fine), 0.1, content)?;
    let pixels = shrink(&canvas, fine.0 as usize, SHRINK as usize);
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().map_err(draw_error)?;
    writer.write_image_data(&pixels).map_err(draw_error)?;
    writer.finish().map_err(draw_error)?;
    Ok(file)
}

/// Averages squares of `side` x `side` pixels of three bytes into one.
fn shrink(canvas: &[u8], width: usize, side: usize) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(canvas.len() / (side * side));
    for band in canvas.chunks_exact(3 * width * side) {
        for column in 0..width / side {
            for channel in 0..3 {
                let square = (0..side * side).map(|i| {
                    let (x, y) = (column * side + i % side, i / side);
                    u32::from(band[3 * (y * width + x) + channel])
                });
                let sum: u32 = square.sum();
                pixels.push((sum / (side * side) as u32) as u8);
            }
        }
    }
    pixels
}

/// How a mode is drawn.
pub(super) fn look(mode: Mode) -> Look {
    let (color, width, mark, dashed) = match mode {
        Mode::Leaky => (RGBColor(213, 94, 0), 3.0, 5.0, false),
        Mode::Reclaiming => (RGBColor(0, 114, 178), 3.5, 6.0, false),
        Mode::Scoped => (RGBColor(0, 148, 108), 3.0, 4.0, true),
        Mode::Workspace => (RGBColor(136, 70, 160), 2.0, 3.0, false),
        Mode::Network => (RGBColor(86, 86, 86), 1.5, 2.5, true),
    };
    Look { color, width, mark, dashed }
}

/// Draws everything on `backend`, with texts moved down by `nudge` of their size.
fn picture<B: DrawingBackend>(backend: B, nudge: f64, content: Content<'_>) -> Result<(), PlotError> {
    let Content { rows, subtitle, scanned, beside } = content;
    let root = backend.into_drawing_area();
    root.fill(&WHITE).map_err(draw_error)?;
    let pen = Pen { root: &root, nudge };
    let headline = if beside.is_some() { beside::HEADLINE.to_owned() } else { headline(rows) };
    pen.text(&headline, (24.0, 26.0), (20.0, INK, true), HPos::Left)?;
    pen.text(subtitle, (24.0, 52.0), (13.5, QUIET, false), HPos::Left)?;
    if let Some(others) = beside {
        beside::draw(&pen, rows, others)?;
        return root.present().map_err(draw_error);
    }
    memory(&pen, if scanned { PAIR_X[0] } else { ALONE_X }, rows)?;
    if scanned {
        time(&pen, PAIR_X[1], rows)?;
    }
    root.present().map_err(draw_error)
}

/// From the first epoch that there is to the last.
pub(super) fn epochs(rows: &[Row]) -> RangeInclusive<usize> {
    let epochs = rows.iter().map(|row| row.epoch);
    epochs.clone().min().unwrap_or(1)..=epochs.max().unwrap_or(1)
}

/// The panel of live memory.
fn memory<B: DrawingBackend>(pen: &Pen<'_, B>, x: (f64, f64), rows: &[Row]) -> Result<(), PlotError> {
    let most = rows.iter().map(|row| row.live_bytes).max().unwrap_or(0);
    let (unit, name) = match most {
        0..1_048_576 => (1024.0, "KiB"),
        1_048_576..21_474_836_480 => (1_048_576.0, "MiB"),
        _ => (1_073_741_824.0, "GiB"),
    };
    let live = lines(
        rows,
        |row| row.live_bytes as f64 / unit,
        |mode, line| {
            line.value = format!("{} {name}", figure(line.last()));
            line.note = match course(rows, mode) {
                Course::Grows(step) => format!("+{} {name} per epoch", figure(step / unit)),
                Course::Flat => "+0 bytes per epoch".to_owned(),
                Course::Varies(_) | Course::Unknown => String::new(),
            };
        },
    );
    let highest = live.iter().map(Line::highest).fold(0.0, f64::max);
    let is_small = |line: &&Line| line.highest() < SMALL_PART * highest;
    let small: Vec<&Line> = live.iter().filter(is_small).collect();
    let all: Vec<&Line> = live.iter().collect();
    let epochs = epochs(rows);
    let scale = if small.is_empty() { Scale::of(&all) } else { Scale::even(highest, 6.0) };
    let panel = Panel { x, y: PANEL_Y, epochs: epochs.clone(), scale, is_inset: false };
    panel.draw(pen, &format!("Live memory of arrays after each epoch, {name}"), &all)?;
    panel.names(pen, &live)?;
    if small.is_empty() {
        return Ok(());
    }
    // Above a line that grows from the left to the right there is room on the left.
    let x = (x.0 + 46.0, x.0 + 0.38 * (x.1 - x.0));
    let highest = small.iter().map(|line| line.highest()).fold(0.0, f64::max);
    let y = (PANEL_Y.0 + 26.0, PANEL_Y.0 + 98.0);
    let inset = Panel { x, y, epochs, scale: Scale::even(highest, 3.0), is_inset: true };
    inset.ground(pen)?;
    inset.draw(pen, &format!("the same from 0 to {} {name}", inset.scale.top()), &small)
}

/// The panel of seconds.
fn time<B: DrawingBackend>(pen: &Pen<'_, B>, x: (f64, f64), rows: &[Row]) -> Result<(), PlotError> {
    let most = rows.iter().map(|row| row.seconds).filter(|seconds| seconds.is_finite()).fold(0.0, f64::max);
    let (unit, name) = if most < 1.0 { (1e-3, "ms") } else { (1.0, "s") };
    let seconds = lines(
        rows,
        |row| row.seconds / unit,
        |_, line| {
            let (value, note) = match line.grows() {
                true => (line.last(), format!("from {} {name}", figure(line.first()))),
                false => (line.median, "median of the epochs".to_owned()),
            };
            (line.value, line.note) = (format!("{} {name}", figure(value)), note);
        },
    );
    let all: Vec<&Line> = seconds.iter().collect();
    let panel = Panel { x, y: PANEL_Y, epochs: epochs(rows), scale: Scale::of(&all), is_inset: false };
    panel.draw(pen, &format!("Time of an epoch whose steps walk all arrays, {name}"), &all)?;
    panel.names(pen, &seconds)
}

/// What live memory gained per epoch, where that can be said of every mode.
fn headline(rows: &[Row]) -> String {
    let (mut growing, mut flat) = (Vec::new(), Vec::new());
    for mode in modes(rows) {
        match course(rows, mode) {
            Course::Grows(step) => growing.push(format!("{mode}: +{} per epoch", bytes(step))),
            Course::Flat => flat.push(mode.name()),
            Course::Varies(_) | Course::Unknown => return "Live memory of arrays after each epoch".to_owned(),
        }
    }
    if !flat.is_empty() {
        growing.push(format!("{}: +0 bytes", flat.join(", ")));
    }
    growing.join("; ")
}

/// The values of every mode that has any, with what `tell` says of them.
fn lines(rows: &[Row], value: impl Fn(&Row) -> f64, tell: impl Fn(Mode, &mut Line)) -> Vec<Line> {
    let line = |mode: Mode| {
        let of_mode = rows.iter().filter(|row| row.mode == mode);
        let mut line = Line::new(mode.to_string(), look(mode), of_mode.map(|row| (row.epoch, value(row))))?;
        tell(mode, &mut line);
        Some(line)
    };
    // In the order of `ALL`, whatever ran first: the dashed one lies on top.
    Mode::ALL.into_iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mode: Mode, epochs: usize, seconds: f64, live: u64, more: u64) -> Vec<Row> {
        let row = |epoch| Row {
            mode,
            epoch,
            seconds,
            steps: 10,
            first_step_seconds: 0.0,
            live_arrays: 30,
            live_bytes: live + more * epoch as u64,
            dead_arrays: 0,
            held_bytes: 0,
            peak_bytes: 0,
            resident_bytes: 0,
            loss: 0.5,
            accuracy: 0.9,
        };
        (1..=epochs).map(row).collect()
    }

    const NOTHING: Content<'_> = Content { rows: &[], subtitle: "", scanned: false, beside: None };

    #[test]
    fn time_is_drawn_where_it_was_measured_with_the_walk() {
        fonts().expect("fonts");
        let mut leaky = run(Mode::Leaky, 10, 0.4, 1 << 20, 100 << 20);
        leaky.iter_mut().for_each(|row| row.seconds *= row.epoch as f64);
        let rows =
            [leaky, run(Mode::Reclaiming, 10, 0.25, 5 << 19, 0), run(Mode::Workspace, 10, 0.24, 11 << 18, 0)].concat();
        let text = svg(Content { rows: &rows, subtitle: "", scanned: true, beside: None }).expect("drawn");
        let wanted = [
            "leaky: +100 MiB per epoch; reclaiming, workspace: +0 bytes",
            "Live memory of arrays after each epoch, MiB",
            "leaky  1,001 MiB",
            "+100 MiB per epoch",
            "reclaiming  2.50 MiB",
            "the same from 0 to 3 MiB",
            "Time of an epoch whose steps walk all arrays, s",
            "leaky  4.00 s",
            "from 0.40 s",
            "reclaiming  0.25 s",
        ];
        wanted.iter().for_each(|words| assert!(text.contains(words), "{words} in {text}"));
    }

    #[test]
    fn beside_other_systems_there_are_seconds_and_resident_memory() {
        fonts().expect("fonts");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/results/jvm-epochs.csv");
        let others = beside::read(&file).expect("the figures of this repository");
        let mut rows = run(Mode::Reclaiming, 20, 0.03, 5 << 20, 0);
        rows.iter_mut().for_each(|row| row.resident_bytes = 70 << 20);
        let text = svg(Content { rows: &rows, subtitle: "", scanned: false, beside: Some(&others) }).expect("drawn");
        let wanted = [
            "Seconds of an epoch, logarithmic",
            "DJL 0.20  13.9 s",
            "DJL proxies, on  0.331 s",
            "ndgc reclaiming  0.030 s",
            "Resident memory, MiB, logarithmic",
            "DJL 0.35 Trainer  366 MiB",
            "DL4J  1,347 MiB",
            "ndgc reclaiming  70.0 MiB",
            "Other systems: measured once, November 2026",
        ];
        wanted.iter().for_each(|words| assert!(text.contains(words), "{words} in {text}"));
    }

    #[test]
    fn both_kinds_are_written() {
        let folder = std::env::temp_dir().join(format!("epoch_loop_plot_{}", std::process::id()));
        let leaky = run(Mode::Leaky, 3, 0.5, 1 << 20, 5 << 20);
        let rows = [leaky, run(Mode::Scoped, 3, 0.4, 1 << 20, 0)].concat();
        let content = Content { rows: &rows, subtitle: "a < b & c", scanned: false, beside: None };
        write(&folder.join("a.svg"), content).expect("written");
        let text = fs::read_to_string(folder.join("a.svg")).expect("there");
        assert!(text.starts_with("<svg width=\"1120\" height=\"440\" viewBox=\"0 0 4480 1760\""));
        assert!(text.contains("a &lt; b &amp; c") && text.contains("leaky: +5.0 MiB per epoch; scoped: +0 bytes"));
        assert!(text.contains("Live memory of arrays after each epoch, MiB") && !text.contains("Time of an epoch"));
        write(&folder.join("a.PNG"), Content { subtitle: "", ..content }).expect("written");
        let bytes = fs::read(folder.join("a.PNG")).expect("there");
        let reader = png::Decoder::new(io::Cursor::new(bytes)).read_info().expect("a PNG");
        assert_eq!((reader.info().width, reader.info().height), (2240, 880));
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn other_kinds_and_no_rows_are_refused() {
        for name in ["a.pdf", "a", "svg", "a.svg.gz"] {
            let text = write(Path::new(name), NOTHING).expect_err("no such kind").to_string();
            assert!(text.contains(name) && text.contains(".svg or in .png"), "{text}");
        }
        assert!(matches!(write(Path::new("a.svg"), NOTHING), Err(PlotError::Empty)));
    }

    #[test]
    fn strange_values_are_drawn() {
        let far = [run(Mode::Leaky, 40, 1e9, u64::MAX / 2, 1), run(Mode::Scoped, 1, 1e-9, 1, 0)].concat();
        let mut odd = run(Mode::Leaky, 3, f64::NAN, 0, 0);
        odd[1].seconds = f64::INFINITY;
        odd[2].seconds = -1.0;
        let mut late = run(Mode::Scoped, 1, 0.0, 0, 0);
        late[0].epoch = usize::MAX;
        for rows in [far, odd, late] {
            fonts().expect("fonts");
            for scanned in [false, true] {
                svg(Content { rows: &rows, subtitle: "", scanned, beside: None }).expect("drawn");
            }
        }
    }
}
