//! The picture: live memory of arrays after each epoch, one line per mode, and beside it the time of an epoch if each step
//! walked all arrays, since it grows with the leak then; without that walk it is the same in all modes, and not drawn.
//!
//! [`write`] draws once, in quarters of a picture point, for both kinds of file: an SVG keeps the
//! quarters, a PNG is averaged down to half points, which smooths every edge. Every line carries its
//! name and its last value at its right end, so there is no legend; names that would touch are moved
//! apart, the line with the larger median above. An axis has one unit, which its names have as well. Lines far below
//! the others have an inset with a scale of their own. Axes begin at 0 and turn logarithmic only where the
//! values differ more than a thousandfold and there is no inset. The ground is white, on a dark page too.
//! The headline is computed: it tells what live memory gained per epoch, or claims nothing.

use std::fmt;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::args::Mode;
use super::report::{Course, Row, bytes, course, grouped, modes};

/// Width and height of the picture in points.
const SIZE: (u32, u32) = (1120, 440);
/// Drawing units in a point.
const FINE: u32 = 4;
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
/// Values that differ more than this call for a logarithmic axis.
const LOG_RATIO: f64 = 1_000.0;
/// The last epoch of a line that grows takes so many times as long as the first.
const GROWTH: f64 = 1.5;
/// More epochs than this have no marks of their own.
const MAX_MARKED: usize = 30;

const INK: RGBColor = RGBColor(31, 41, 51);
const QUIET: RGBColor = RGBColor(97, 110, 124);
const GRID: RGBColor = RGBColor(226, 231, 236);
const LEADER: RGBColor = RGBColor(170, 180, 190);

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

fn draw_error(error: impl fmt::Display) -> PlotError {
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
    let (width, height) = SIZE;
    let fine = (width * FINE, height * FINE);
    picture(SVGBackend::with_string(&mut text, fine), 0.0, content)?;
    // The drawing units stay in `viewBox`; what is shown is smaller.
    let size = |(width, height)| format!("width=\"{width}\" height=\"{height}\"");
    Ok(text.replacen(&size(fine), &size(SIZE), 1))
}

fn png(content: Content<'_>) -> Result<Vec<u8>, PlotError> {
    let fine = (SIZE.0 * FINE, SIZE.1 * FINE);
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
struct Look {
    color: RGBColor,
    /// Of the line, in points.
    width: f64,
    /// Radius of its marks, in points.
    mark: f64,
    /// In dashes and with hollow marks, so that a line below it is seen too.
    dashed: bool,
}

fn look(mode: Mode) -> Look {
    let (color, width, mark, dashed) = match mode {
        Mode::Leaky => (RGBColor(213, 94, 0), 3.0, 5.0, false),
        Mode::Reclaiming => (RGBColor(0, 114, 178), 3.5, 6.0, false),
        Mode::Scoped => (RGBColor(0, 148, 108), 3.0, 4.0, true),
        Mode::Workspace => (RGBColor(136, 70, 160), 2.0, 3.0, false),
    };
    Look { color, width, mark, dashed }
}

/// One mode's values in one panel.
struct Line {
    mode: Mode,
    /// Epochs and values.
    points: Vec<(usize, f64)>,
    /// The value in the middle of all when they are sorted.
    median: f64,
    /// What is written at its end: a value, in words.
    value: String,
    /// What the values do, in words; may be empty.
    note: String,
}

impl Line {
    fn first(&self) -> f64 {
        self.points.first().map_or(0.0, |point| point.1)
    }

    fn last(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.1)
    }

    fn highest(&self) -> f64 {
        self.points.iter().map(|point| point.1).fold(0.0, f64::max)
    }
}

/// Draws everything on `backend`, with texts moved down by `nudge` of their size.
fn picture<B: DrawingBackend>(backend: B, nudge: f64, content: Content<'_>) -> Result<(), PlotError> {
    let Content { rows, subtitle, scanned } = content;
    let root = backend.into_drawing_area();
    root.fill(&WHITE).map_err(draw_error)?;
    let pen = Pen { root: &root, nudge };
    pen.text(&headline(rows), (24.0, 26.0), (20.0, INK, true), HPos::Left)?;
    pen.text(subtitle, (24.0, 52.0), (13.5, QUIET, false), HPos::Left)?;
    memory(&pen, if scanned { PAIR_X[0] } else { ALONE_X }, rows)?;
    if scanned {
        time(&pen, PAIR_X[1], rows)?;
    }
    root.present().map_err(draw_error)
}

/// From the first epoch that there is to the last.
fn epochs(rows: &[Row]) -> RangeInclusive<usize> {
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
    let mut live = lines(rows, |row| row.live_bytes as f64 / unit);
    for line in &mut live {
        line.value = format!("{} {name}", figure(line.last()));
        line.note = match course(rows, line.mode) {
            Course::Grows(step) => format!("+{} {name} per epoch", figure(step / unit)),
            Course::Flat => "+0 bytes per epoch".to_owned(),
            Course::Varies(_) | Course::Unknown => String::new(),
        };
    }
    let highest = live.iter().map(Line::highest).fold(0.0, f64::max);
    let is_small = |line: &&Line| line.highest() < SMALL_PART * highest;
    let small: Vec<&Line> = live.iter().filter(is_small).collect();
    let all: Vec<&Line> = live.iter().collect();
    let epochs = epochs(rows);
    let scale = if small.is_empty() { Scale::of(&all) } else { Scale::even(highest, 6.0) };
    let panel = Panel { x, y: PANEL_Y, epochs: epochs.clone(), scale };
    panel.draw(pen, &format!("Live memory of arrays after each epoch, {name}"), &all)?;
    panel.names(pen, &live)?;
    if small.is_empty() {
        return Ok(());
    }
    // Above a line that grows from the left to the right there is room on the left.
    let x = (x.0 + 46.0, x.0 + 0.38 * (x.1 - x.0));
    let highest = small.iter().map(|line| line.highest()).fold(0.0, f64::max);
    let inset = Panel { x, y: (PANEL_Y.0 + 26.0, PANEL_Y.0 + 98.0), epochs, scale: Scale::even(highest, 3.0) };
    inset.ground(pen)?;
    inset.draw(pen, &format!("the same from 0 to {} {name}", inset.scale.top()), &small)
}

/// The panel of seconds.
fn time<B: DrawingBackend>(pen: &Pen<'_, B>, x: (f64, f64), rows: &[Row]) -> Result<(), PlotError> {
    let most = rows.iter().map(|row| row.seconds).filter(|seconds| seconds.is_finite()).fold(0.0, f64::max);
    let (unit, name) = if most < 1.0 { (1e-3, "ms") } else { (1.0, "s") };
    let mut seconds = lines(rows, |row| row.seconds / unit);
    for line in &mut seconds {
        let grows = line.last() > GROWTH * line.first();
        line.value = format!("{} {name}", figure(if grows { line.last() } else { line.median }));
        line.note = if grows { format!("from {} {name}", figure(line.first())) } else { String::new() };
    }
    let all: Vec<&Line> = seconds.iter().collect();
    let panel = Panel { x, y: PANEL_Y, epochs: epochs(rows), scale: Scale::of(&all) };
    panel.draw(pen, &format!("Time of an epoch whose steps walk all arrays, {name}"), &all)?;
    panel.names(pen, &seconds)
}

/// A number with about three digits.
fn figure(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => grouped(value.round() as u64),
    }
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

/// The values of every mode that has any.
fn lines(rows: &[Row], value: impl Fn(&Row) -> f64) -> Vec<Line> {
    let line = |mode| {
        let of_mode = rows.iter().filter(|row| row.mode == mode);
        let points: Vec<_> = of_mode
            .map(|row| (row.epoch, value(row)))
            .filter(|(_, value)| value.is_finite() && *value >= 0.0)
            .collect();
        let mut sorted: Vec<f64> = points.iter().map(|point| point.1).collect();
        sorted.sort_by(f64::total_cmp);
        let median = *sorted.get(sorted.len() / 2)?;
        Some(Line { mode, points, median, value: String::new(), note: String::new() })
    };
    // In the order of `ALL`, whatever ran first: the dashed one lies on top.
    Mode::ALL.into_iter().filter_map(line).collect()
}

/// Draws in points, on whatever backend there is.
struct Pen<'a, B: DrawingBackend> {
    root: &'a DrawingArea<B, Shift>,
    /// How far down a text moves to look centred, as a part of its size.
    nudge: f64,
}

impl<B: DrawingBackend> Pen<'_, B> {
    fn at((x, y): (f64, f64)) -> (i32, i32) {
        let fine = f64::from(FINE);
        ((x * fine).round() as i32, (y * fine).round() as i32)
    }

    /// A style of `width` points.
    fn style(color: RGBColor, width: f64) -> ShapeStyle {
        color.stroke_width((width * f64::from(FINE)).round().max(1.0) as u32)
    }

    /// Writes at the middle of the line's height; the look is size, colour and weight.
    fn text(
        &self,
        text: &str,
        at: (f64, f64),
        (size, color, bold): (f64, RGBColor, bool),
        side: HPos,
    ) -> Result<(), PlotError> {
        let weight = if bold { FontStyle::Bold } else { FontStyle::Normal };
        let font = FontDesc::new(FontFamily::SansSerif, size * f64::from(FINE), weight);
        let style = TextStyle::from(font).color(&color).pos(Pos::new(side, VPos::Center));
        let at = Self::at((at.0, at.1 + self.nudge * size));
        self.root.draw(&Text::new(text.to_owned(), at, style)).map_err(draw_error)
    }

    fn path(&self, points: &[(f64, f64)], color: RGBColor, width: f64) -> Result<(), PlotError> {
        let points: Vec<_> = points.iter().map(|point| Self::at(*point)).collect();
        let path = PathElement::new(points, Self::style(color, width));
        self.root.draw(&path).map_err(draw_error)
    }

    fn dashes(&self, points: &[(f64, f64)], color: RGBColor, width: f64) -> Result<(), PlotError> {
        let points: Vec<_> = points.iter().map(|point| Self::at(*point)).collect();
        let (dash, gap) = (7 * FINE as i32, 6 * FINE as i32);
        let path = DashedPathElement::new(points, dash, gap, Self::style(color, width));
        self.root.draw(&path).map_err(draw_error)
    }

    fn dot(&self, at: (f64, f64), radius: f64, color: RGBColor) -> Result<(), PlotError> {
        let radius = (radius * f64::from(FINE)).round() as i32;
        self.root.draw(&Circle::new(Self::at(at), radius, color.filled())).map_err(draw_error)
    }
}

/// One pair of axes.
struct Panel {
    x: (f64, f64),
    y: (f64, f64),
    epochs: RangeInclusive<usize>,
    scale: Scale,
}

/// How values become heights.
enum Scale {
    /// From 0 to this value, with a line at every step.
    Even { top: f64, step: f64 },
    /// From one power of ten to another.
    Log { low: i32, high: i32 },
}

impl Scale {
    fn of(lines: &[&Line]) -> Self {
        Self::new(lines.iter().flat_map(|line| line.points.iter().map(|point| point.1)))
    }

    fn new(values: impl Iterator<Item = f64> + Clone) -> Self {
        let high = values.clone().fold(0.0, f64::max);
        let low = values.fold(f64::INFINITY, f64::min);
        if low > 0.0 && high / low > LOG_RATIO {
            return Self::Log { low: low.log10().floor() as i32, high: high.log10().ceil() as i32 };
        }
        Self::even(high, 6.0)
    }

    /// From 0 to `high` at least, in about so many steps.
    fn even(high: f64, steps: f64) -> Self {
        let high = if high > 0.0 { high } else { 1.0 };
        let rough = high * 1.04 / steps;
        let power = 10f64.powf(rough.log10().floor());
        let round = [1.0, 2.0, 2.5, 5.0].into_iter().find(|step| step * power >= rough);
        let step = round.unwrap_or(10.0) * power;
        Self::Even { top: (high * 1.04 / step).ceil() * step, step }
    }

    /// Where `value` lies, 0 at the bottom and 1 at the top.
    fn part(&self, value: f64) -> f64 {
        match *self {
            Self::Even { top, .. } => value / top,
            Self::Log { low, high } => (value.log10() - f64::from(low)) / f64::from(high - low),
        }
    }

    /// The name of the highest value.
    fn top(&self) -> String {
        self.ticks().pop().map_or_else(String::new, |(_, name)| name)
    }

    /// The values that get a line, with their names.
    fn ticks(&self) -> Vec<(f64, String)> {
        match *self {
            Self::Even { top, step } => {
                let count = (top / step).round() as usize;
                let values = (0..=count).map(|i| i as f64 * step);
                values.map(|value| (value, plain(value, step))).collect()
            }
            Self::Log { low, high } => {
                let every = ((high - low) as usize).div_ceil(6).max(1);
                let values = (low..=high).step_by(every).map(|power| 10f64.powi(power));
                values.map(|value| (value, plain(value, value))).collect()
            }
        }
    }
}

/// The value with as many digits as a multiple of `step` needs.
fn plain(value: f64, step: f64) -> String {
    if !(1e-4..1e7).contains(&step) {
        return format!("{value:.1e}").replace(".0e", "e");
    }
    let exact = |digits: &usize| {
        let shifted = step * 10f64.powi(*digits as i32);
        (shifted / shifted.round() - 1.0).abs() < 1e-6
    };
    match (0..6).find(exact).unwrap_or(6) {
        0 => grouped(value.round() as u64),
        digits => format!("{value:.digits$}"),
    }
}

impl Panel {
    /// Whether it lies in another one.
    fn is_inset(&self) -> bool {
        self.y != PANEL_Y
    }

    /// Covers what is drawn there already.
    fn ground<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Result<(), PlotError> {
        let corners = [(self.x.0 - 34.0, self.y.0 - 26.0), (self.x.1 + 6.0, self.y.1 + 22.0)].map(Pen::<B>::at);
        let white = Rectangle::new(corners, WHITE.filled());
        pen.root.draw(&white).map_err(draw_error)?;
        pen.root.draw(&Rectangle::new(corners, Pen::<B>::style(GRID, 1.0))).map_err(draw_error)
    }

    fn place(&self, (epoch, value): (usize, f64)) -> (f64, f64) {
        let (left, right) = (self.x.0 + 14.0, self.x.1 - 10.0);
        let (first, last) = (*self.epochs.start(), *self.epochs.end());
        let part = if first == last { 0.5 } else { (epoch - first) as f64 / (last - first) as f64 };
        let (top, bottom) = self.y;
        (left + part * (right - left), bottom - self.scale.part(value) * (bottom - top))
    }

    fn draw<B: DrawingBackend>(&self, pen: &Pen<'_, B>, title: &str, lines: &[&Line]) -> Result<(), PlotError> {
        self.axes(pen, title)?;
        let marked = self.epochs.end() - self.epochs.start() < MAX_MARKED;
        let thin = if self.is_inset() { 0.6 } else { 1.0 };
        for line in lines {
            let Look { color, width, mark, dashed } = look(line.mode);
            let (width, mark) = (width * thin, mark * thin);
            let points: Vec<_> = line.points.iter().map(|point| self.place(*point)).collect();
            if dashed {
                pen.dashes(&points, color, width)?;
            } else {
                pen.path(&points, color, width)?;
            }
            for &point in points.iter().filter(|_| marked) {
                pen.dot(point, mark, color)?;
                if dashed {
                    pen.dot(point, mark / 2.0, WHITE)?;
                }
            }
        }
        Ok(())
    }

    fn axes<B: DrawingBackend>(&self, pen: &Pen<'_, B>, title: &str) -> Result<(), PlotError> {
        let ((left, right), (top, bottom)) = (self.x, self.y);
        let kind = if matches!(self.scale, Scale::Log { .. }) { ", logarithmic" } else { "" };
        let (size, at, look) = match self.is_inset() {
            true => (11.0, (left - 26.0, top - 14.0), (12.0, QUIET, false)),
            false => (13.0, (left - 40.0, top - 24.0), (15.0, INK, true)),
        };
        pen.text(&format!("{title}{kind}"), at, look, HPos::Left)?;
        for (value, name) in self.scale.ticks() {
            let y = self.place((*self.epochs.start(), value)).1;
            let color = if y >= bottom - 0.5 { QUIET } else { GRID };
            pen.path(&[(left, y), (right, y)], color, 1.0)?;
            pen.text(&name, (left - 8.0, y), (size, QUIET, false), HPos::Right)?;
        }
        for epoch in epoch_ticks(&self.epochs, if self.is_inset() { 6 } else { 12 }) {
            let x = self.place((epoch, 1.0)).0;
            pen.path(&[(x, bottom), (x, bottom + 4.0)], QUIET, 1.0)?;
            pen.text(&epoch.to_string(), (x, bottom + 3.0 + size), (size, QUIET, false), HPos::Center)?;
        }
        if self.is_inset() {
            return Ok(());
        }
        pen.text("epoch", ((left + right) / 2.0, bottom + 37.0), (13.5, QUIET, false), HPos::Center)
    }

    /// Writes each line's name and value at its right end, or ties them to it where that is somewhere else; from top to
    /// bottom in the order of medians, which noise at the end does not change.
    fn names<B: DrawingBackend>(&self, pen: &Pen<'_, B>, lines: &[Line]) -> Result<(), PlotError> {
        let ends: Vec<_> = lines.iter().filter_map(|line| line.points.last()).map(|end| self.place(*end)).collect();
        let needs = |line: &Line| if line.note.is_empty() { 19.0 } else { 37.0 };
        let wishes: Vec<_> = lines.iter().zip(&ends).map(|(line, end)| (end.1, needs(line))).collect();
        let mut order: Vec<_> = (0..lines.len()).collect();
        order.sort_by(|a, b| lines[*b].median.total_cmp(&lines[*a].median));
        for ((line, end), y) in lines.iter().zip(&ends).zip(apart(&wishes, &order)) {
            let (color, x) = (look(line.mode).color, self.x.1 + 12.0);
            let shift = if line.note.is_empty() { 0.0 } else { 8.5 };
            if (y - shift - end.1).abs() > 9.0 || x - end.0 > 30.0 {
                let start = (end.0 + 7.0, end.1);
                pen.path(&[start, (x - 4.0, y - shift)], LEADER, 1.0)?;
            }
            let name = format!("{}  {}", line.mode, line.value);
            pen.text(&name, (x, y - shift), (14.0, color, true), HPos::Left)?;
            if !line.note.is_empty() {
                pen.text(&line.note, (x, y + shift), (12.5, QUIET, false), HPos::Left)?;
            }
        }
        Ok(())
    }
}

/// Epochs that get a name: the first, and every round one that does not touch it, less than `most` in all.
fn epoch_ticks(epochs: &RangeInclusive<usize>, most: usize) -> Vec<usize> {
    let (first, last) = (*epochs.start(), *epochs.end());
    let powers = std::iter::successors(Some(1usize), |power| power.checked_mul(10));
    let mut steps = powers.flat_map(|power| [power, power.saturating_mul(5)]);
    let step = steps.find(|step| (last - first) / step < most).unwrap_or(usize::MAX);
    let mut ticks = vec![first];
    let round = (first / step..=last / step).skip(1).map(|count| count * step);
    ticks.extend(round.filter(|epoch| epoch - first >= step.div_ceil(2)));
    ticks
}

/// Middles of names that want to stand at the first number and need the second as height, moved so
/// that none touches another, all stay beside the panel, and they stand in `order`. Names that would touch become
/// one block around the middle of their wishes.
fn apart(wishes: &[(f64, f64)], order: &[usize]) -> Vec<f64> {
    struct Block {
        middle: f64,
        height: f64,
        names: Vec<usize>,
    }
    let inside = |middle: f64, height: f64| {
        let (top, bottom) = (PANEL_Y.0 - 12.0, PANEL_Y.1 + 40.0);
        middle.min(bottom - height / 2.0).max(top + height / 2.0)
    };
    let mut blocks: Vec<Block> = Vec::new();
    for &at in order {
        let (wish, height) = wishes[at];
        let mut block = Block { middle: inside(wish, height), height, names: vec![at] };
        let touches = |last: &mut Block, middle, height| last.middle + (last.height + height) / 2.0 > middle;
        while let Some(last) = blocks.pop_if(|last| touches(last, block.middle, block.height)) {
            let names = [last.names, block.names].concat();
            let wished: f64 = names.iter().map(|at| wishes[*at].0).sum();
            let height = last.height + block.height;
            block = Block { middle: inside(wished / names.len() as f64, height), height, names };
        }
        blocks.push(block);
    }
    let mut middles = vec![0.0; wishes.len()];
    for block in blocks {
        let mut top = block.middle - block.height / 2.0;
        for at in block.names {
            middles[at] = top + wishes[at].1 / 2.0;
            top += wishes[at].1;
        }
    }
    middles
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

    const NOTHING: Content<'_> = Content { rows: &[], subtitle: "", scanned: false };

    #[test]
    fn time_is_drawn_where_it_was_measured_with_the_walk() {
        fonts().expect("fonts");
        let mut leaky = run(Mode::Leaky, 10, 0.4, 1 << 20, 100 << 20);
        leaky.iter_mut().for_each(|row| row.seconds *= row.epoch as f64);
        let rows =
            [leaky, run(Mode::Reclaiming, 10, 0.25, 5 << 19, 0), run(Mode::Workspace, 10, 0.24, 11 << 18, 0)].concat();
        let text = svg(Content { rows: &rows, subtitle: "", scanned: true }).expect("drawn");
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
    fn names_stand_in_the_order_of_medians() {
        let middles = apart(&[(370.0, 37.0), (371.0, 37.0), (372.0, 37.0)], &[2, 0, 1]);
        assert!(middles[2] < middles[0] && middles[0] < middles[1], "{middles:?}");
    }

    #[test]
    fn both_kinds_are_written() {
        let folder = std::env::temp_dir().join(format!("epoch_loop_plot_{}", std::process::id()));
        let leaky = run(Mode::Leaky, 3, 0.5, 1 << 20, 5 << 20);
        let rows = [leaky, run(Mode::Scoped, 3, 0.4, 1 << 20, 0)].concat();
        let content = Content { rows: &rows, subtitle: "a < b & c", scanned: false };
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
                svg(Content { rows: &rows, subtitle: "", scanned }).expect("drawn");
            }
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        for high in [0.0, 1e-12, 0.0012, 0.53, 1.0, 17.4, 952.4, 3757.4, 1e9] {
            let scale = Scale::new([high, high / 2.0].into_iter());
            let ticks = scale.ticks();
            assert!((3..=8).contains(&ticks.len()), "{high}: {ticks:?}");
            assert!(ticks[ticks.len() - 1].0 >= high, "{high}: {ticks:?}");
            let mut names: Vec<_> = ticks.iter().map(|tick| &tick.1).collect();
            names.dedup();
            assert_eq!(names.len(), ticks.len(), "{high}: {ticks:?}");
        }
        let names = |step: f64| plain(2.0 * step, step);
        assert_eq!([names(0.25), names(500.0), names(1e-5)], ["0.50", "1,000", "2e-5"]);
        assert_eq!(epoch_ticks(&(1..=5), 12), [1, 2, 3, 4, 5]);
        assert_eq!(epoch_ticks(&(1..=20), 12), [1, 5, 10, 15, 20]);
        assert_eq!(epoch_ticks(&(3..=3), 12), [3]);
    }

    #[test]
    fn names_never_touch() {
        for wishes in [&[(379.0, 37.0), (380.0, 37.0), (120.0, 37.0)][..], &[(112.0, 19.0); 6], &[]] {
            let mut order: Vec<_> = (0..wishes.len()).collect();
            order.sort_by(|a, b| f64::total_cmp(&wishes[*a].0, &wishes[*b].0));
            let mut found: Vec<_> = apart(wishes, &order).into_iter().zip(wishes.iter().map(|wish| wish.1)).collect();
            found.sort_by(|a, b| a.0.total_cmp(&b.0));
            for pair in found.windows(2) {
                assert!(pair[0].0 + (pair[0].1 + pair[1].1) / 2.0 <= pair[1].0 + 1e-9, "{found:?}");
            }
            assert!(found.iter().all(|(middle, _)| (100.0..424.0).contains(middle)), "{found:?}");
        }
    }
}
