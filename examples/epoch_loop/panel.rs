//! Axes, lines and their names: what a picture of epochs is made of.
//!
//! Every line carries its name and its last value at its right end, so there is no legend; names that would touch are
//! moved apart, the line with the larger median above, unless its rank says otherwise. An axis has one unit, which its
//! names have as well. Axes begin at 0 and turn logarithmic only where it was asked for, or values differ more than a
//! thousandfold.

use std::ops::RangeInclusive;

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::plot::{PlotError, draw_error};
use super::report::grouped;

/// Drawing units in a point.
pub(crate) const FINE: u32 = 4;
/// Values that differ more than this call for a logarithmic axis.
const LOG_RATIO: f64 = 1_000.0;
/// The last value of a line that grows is so many times the first.
const GROWTH: f64 = 1.5;
/// More epochs than this have no marks of their own.
const MAX_MARKED: usize = 30;

pub(crate) const INK: RGBColor = RGBColor(31, 41, 51);
pub(crate) const QUIET: RGBColor = RGBColor(97, 110, 124);
const GRID: RGBColor = RGBColor(226, 231, 236);
const LEADER: RGBColor = RGBColor(170, 180, 190);

/// How a line is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) color: RGBColor,
    /// Of the line, in points.
    pub(crate) width: f64,
    /// Radius of its marks, in points.
    pub(crate) mark: f64,
    /// In dashes and with hollow marks, so that a line below it is seen too.
    pub(crate) dashed: bool,
}

/// Values by epoch in one panel.
pub(crate) struct Line {
    /// What is written at its end.
    pub(crate) name: String,
    pub(crate) look: Look,
    /// Epochs and values.
    points: Vec<(usize, f64)>,
    /// The value in the middle of all when they are sorted.
    pub(crate) median: f64,
    /// Names stand from top to bottom in the order of this: the median, which noise at the end does not change, unless
    /// it is set.
    pub(crate) rank: f64,
    /// Written behind the name: a value, in words.
    pub(crate) value: String,
    /// What the values do, in words; may be empty.
    pub(crate) note: String,
}

impl Line {
    /// A line of those points that have a value; nothing, if none has.
    pub(crate) fn new(name: String, look: Look, points: impl Iterator<Item = (usize, f64)>) -> Option<Self> {
        let points: Vec<_> = points.filter(|(_, value)| value.is_finite() && *value >= 0.0).collect();
        let mut sorted: Vec<f64> = points.iter().map(|point| point.1).collect();
        sorted.sort_by(f64::total_cmp);
        let median = *sorted.get(sorted.len() / 2)?;
        Some(Line { name, look, points, median, rank: median, value: String::new(), note: String::new() })
    }

    /// Whether it ends much higher than it began.
    pub(crate) fn grows(&self) -> bool {
        self.last() > GROWTH * self.first()
    }

    pub(crate) fn first(&self) -> f64 {
        self.points.first().map_or(0.0, |point| point.1)
    }

    pub(crate) fn last(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.1)
    }

    pub(crate) fn highest(&self) -> f64 {
        self.points.iter().map(|point| point.1).fold(0.0, f64::max)
    }
}

/// A number with about three digits.
pub(crate) fn figure(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => grouped(value.round() as u64),
    }
}

/// Draws in points, on whatever backend there is.
pub(crate) struct Pen<'a, B: DrawingBackend> {
    pub(crate) root: &'a DrawingArea<B, Shift>,
    /// How far down a text moves to look centred, as a part of its size.
    pub(crate) nudge: f64,
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
    pub(crate) fn text(
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
pub(crate) struct Panel {
    /// Left and right.
    pub(crate) x: (f64, f64),
    /// Top and bottom.
    pub(crate) y: (f64, f64),
    pub(crate) epochs: RangeInclusive<usize>,
    pub(crate) scale: Scale,
    /// Whether it lies in another one.
    pub(crate) is_inset: bool,
}

/// How values become heights.
pub(crate) enum Scale {
    /// From 0 to this value, with a line at every step.
    Even { top: f64, step: f64 },
    /// From one power of ten to another; the exponents need not be whole.
    Log { low: f64, high: f64 },
}

impl Scale {
    pub(crate) fn of(lines: &[&Line]) -> Self {
        Self::new(lines.iter().flat_map(|line| line.points.iter().map(|point| point.1)))
    }

    fn new(values: impl Iterator<Item = f64> + Clone) -> Self {
        let high = values.clone().fold(0.0, f64::max);
        let low = values.fold(f64::INFINITY, f64::min);
        if low > 0.0 && high / low > LOG_RATIO {
            return Self::Log { low: low.log10().floor(), high: high.log10().ceil() };
        }
        Self::even(high, 6.0)
    }

    /// Logarithmic, around the values above 0.
    pub(crate) fn log(lines: &[Line]) -> Self {
        let values = lines.iter().flat_map(|line| line.points.iter().map(|point| point.1)).filter(|value| *value > 0.0);
        let (low, high) = values.fold((f64::INFINITY, 0f64), |(low, high), value| (low.min(value), high.max(value)));
        if high > 0.0 { Self::Log { low: low.log10() - 0.1, high: high.log10() + 0.1 } } else { Self::even(1.0, 6.0) }
    }

    /// From 0 to `high` at least, in about so many steps.
    pub(crate) fn even(high: f64, steps: f64) -> Self {
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
            Self::Log { low, high } => (value.log10() - low) / (high - low),
        }
    }

    /// The name of the highest value.
    pub(crate) fn top(&self) -> String {
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
                let every = ((high - low).ceil() as usize).div_ceil(6).max(1);
                let between: &[f64] = if high - low < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let powers = (low.floor() as i32..=high.floor() as i32).step_by(every);
                let values = powers.flat_map(|power| between.iter().map(move |times| times * 10f64.powi(power)));
                let inside = values.filter(|value| (low - 1e-9..=high + 1e-9).contains(&value.log10()));
                inside.map(|value| (value, plain(value, value))).collect()
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
    /// Covers what is drawn there already.
    pub(crate) fn ground<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Result<(), PlotError> {
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

    pub(crate) fn draw<B: DrawingBackend>(
        &self,
        pen: &Pen<'_, B>,
        title: &str,
        lines: &[&Line],
    ) -> Result<(), PlotError> {
        self.axes(pen, title)?;
        let marked = self.epochs.end() - self.epochs.start() < MAX_MARKED;
        let thin = if self.is_inset { 0.6 } else { 1.0 };
        for line in lines {
            let Look { color, width, mark, dashed } = line.look;
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
        let (size, at, look) = match self.is_inset {
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
        for epoch in epoch_ticks(&self.epochs, if self.is_inset { 6 } else { 12 }) {
            let x = self.place((epoch, 1.0)).0;
            pen.path(&[(x, bottom), (x, bottom + 4.0)], QUIET, 1.0)?;
            pen.text(&epoch.to_string(), (x, bottom + 3.0 + size), (size, QUIET, false), HPos::Center)?;
        }
        if self.is_inset {
            return Ok(());
        }
        pen.text("epoch", ((left + right) / 2.0, bottom + 37.0), (13.5, QUIET, false), HPos::Center)
    }

    /// Top and bottom of the room for names.
    fn beside(&self) -> (f64, f64) {
        (self.y.0 - 12.0, self.y.1 + 40.0)
    }

    /// Writes each line's name and value at its right end, or ties them to it where that is somewhere else.
    pub(crate) fn names<B: DrawingBackend>(&self, pen: &Pen<'_, B>, lines: &[Line]) -> Result<(), PlotError> {
        let ends: Vec<_> = lines.iter().filter_map(|line| line.points.last()).map(|end| self.place(*end)).collect();
        let needs = |line: &Line| if line.note.is_empty() { 19.0 } else { 37.0 };
        let wishes: Vec<_> = lines.iter().zip(&ends).map(|(line, end)| (end.1, needs(line))).collect();
        let mut order: Vec<_> = (0..lines.len()).collect();
        order.sort_by(|a, b| lines[*b].rank.total_cmp(&lines[*a].rank));
        for ((line, end), y) in lines.iter().zip(&ends).zip(apart(&wishes, &order, self.beside())) {
            let (color, x) = (line.look.color, self.x.1 + 12.0);
            let shift = if line.note.is_empty() { 0.0 } else { 8.5 };
            if (y - shift - end.1).abs() > 9.0 || x - end.0 > 30.0 {
                let start = (end.0 + 7.0, end.1);
                pen.path(&[start, (x - 4.0, y - shift)], LEADER, 1.0)?;
            }
            let name = format!("{}  {}", line.name, line.value);
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
fn apart(wishes: &[(f64, f64)], order: &[usize], (top, bottom): (f64, f64)) -> Vec<f64> {
    struct Block {
        middle: f64,
        height: f64,
        names: Vec<usize>,
    }
    let inside = |middle: f64, height: f64| middle.min(bottom - height / 2.0).max(top + height / 2.0);
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

    #[test]
    fn names_stand_in_the_order_of_medians() {
        let middles = apart(&[(370.0, 37.0), (371.0, 37.0), (372.0, 37.0)], &[2, 0, 1], (100.0, 424.0));
        assert!(middles[2] < middles[0] && middles[0] < middles[1], "{middles:?}");
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
    fn a_logarithmic_axis_ends_near_its_values() {
        let look = Look { color: INK, width: 1.0, mark: 0.0, dashed: false };
        let line = |values: &[f64]| Line::new("a".into(), look, values.iter().copied().enumerate()).expect("points");
        let names = |values: &[f64]| -> Vec<String> {
            Scale::log(&[line(values)]).ticks().into_iter().map(|(_, name)| name).collect()
        };
        assert_eq!(names(&[0.03, 13.9]), ["0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10"]);
        assert_eq!(names(&[0.003, 13.9]), ["0.01", "0.1", "1", "10"]);
        assert_eq!(names(&[0.0, 43.0, 4272.0]), ["50", "100", "200", "500", "1,000", "2,000", "5,000"]);
        assert!(Line::new("a".into(), look, [(1, f64::NAN)].into_iter()).is_none());
    }

    #[test]
    fn names_never_touch() {
        for wishes in [&[(379.0, 37.0), (380.0, 37.0), (120.0, 37.0)][..], &[(112.0, 19.0); 6], &[]] {
            let mut order: Vec<_> = (0..wishes.len()).collect();
            order.sort_by(|a, b| f64::total_cmp(&wishes[*a].0, &wishes[*b].0));
            let mut found: Vec<_> =
                apart(wishes, &order, (100.0, 424.0)).into_iter().zip(wishes.iter().map(|wish| wish.1)).collect();
            found.sort_by(|a, b| a.0.total_cmp(&b.0));
            for pair in found.windows(2) {
                assert!(pair[0].0 + (pair[0].1 + pair[1].1) / 2.0 <= pair[1].0 + 1e-9, "{found:?}");
            }
            assert!(found.iter().all(|(middle, _)| (100.0..424.0).contains(middle)), "{found:?}");
        }
    }
}
