//! Pictures of curves and matrices, in SVG.

use std::fmt::Write;

const SIDE: f64 = 360.;
const LEFT: f64 = 60.;
const TOP: f64 = 40.;
/// Points that lie within so much of a pixel from left to right are in one column.
const COLUMN: f64 = 0.25;

/// What is seen of a line: of its points that lie in one column the first, the last, the lowest and the highest. Of ten
/// million that are a few thousand.
fn seen(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let (mut kept, mut start) = (Vec::<(f64, f64)>::new(), 0);
    for point in points {
        if kept.get(start).is_some_and(|first| (point.0 - first.0).abs() >= COLUMN) {
            start = kept.len();
        }
        kept.push(point);
        if kept.len() - start == 5 {
            // One of the three between the first and the last is neither the lowest nor the highest of them.
            let mut between = start + 1..start + 4;
            let by_height = |a: &usize, b: &usize| kept[*a].1.total_cmp(&kept[*b].1);
            let ends = [between.clone().min_by(by_height), between.clone().max_by(by_height)];
            if let Some(hidden) = between.find(|&place| !ends.contains(&Some(place))) {
                kept.remove(hidden);
            }
        }
    }
    kept
}

/// A line through points of the unit square, without those that have NaN; `diagonal` is that from one corner to the
/// other.
pub(super) fn curve(title: &str, axes: [&str; 2], xs: &[f64], ys: &[f64], diagonal: Option<[f64; 2]>) -> String {
    let at = |x: f64, y: f64| (LEFT + x.clamp(0., 1.) * SIDE, TOP + (1. - y.clamp(0., 1.)) * SIDE);
    let mut out = head(title, LEFT + SIDE + 20., TOP + SIDE + 50.);
    for tick in 0..=5 {
        let part = f64::from(tick) / 5.;
        let ((x, _), (_, y)) = (at(part, 0.), at(0., part));
        let (left, right, top, bottom) = (LEFT, LEFT + SIDE, TOP, TOP + SIDE);
        let _ = write!(
            out,
            "<path d=\"M{x:.1} {top}V{bottom}M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{part:.1}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{part:.1}</text>",
            bottom + 15.,
            left - 5.,
            y + 4.
        );
    }
    if let Some([from, to]) = diagonal {
        let ((x0, y0), (x1, y1)) = (at(from, from), at(to, to));
        let _ = write!(out, "<path d=\"M{x0} {y0}L{x1} {y1}\" stroke=\"#999\" stroke-dasharray=\"4\"/>");
    }
    let points = xs.iter().zip(ys).filter(|(x, y)| !x.is_nan() && !y.is_nan());
    let points = seen(points.map(|(&x, &y)| at(x, y)));
    let points: Vec<String> = points.into_iter().map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"2\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text></svg>",
        points.join(" "),
        LEFT + SIDE / 2.,
        TOP + SIDE + 36.,
        escaped(axes[0]),
        TOP + SIDE / 2.,
        escaped(axes[1])
    );
    out
}

/// Counts of rows and columns, the darker the larger their share of the row.
pub(super) fn matrix(title: &str, names: &[String], count: &dyn Fn(usize, usize) -> u64) -> String {
    let n = names.len();
    let cell = (SIDE / n.max(1) as f64).clamp(12., 60.);
    let left = 20. + 8. * names.iter().map(|name| name.chars().count()).max().unwrap_or(0) as f64;
    let size = cell * n as f64;
    let mut out = head(title, left + size + 20., TOP + size + 50.);
    for (actual, name) in names.iter().enumerate() {
        let row: u64 = (0..n).map(|predicted| count(actual, predicted)).sum();
        let y = TOP + cell * actual as f64;
        let middle = y + cell / 2. + 4.;
        let name = escaped(name);
        let _ = write!(out, "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{name}</text>", left - 5.);
        let x = left + cell * (actual as f64 + 0.5);
        let _ = write!(out, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>", TOP + size + 15.);
        for predicted in 0..n {
            let own = count(actual, predicted);
            let share = own as f64 / row.max(1) as f64;
            let x = left + cell * predicted as f64;
            let ink = if share > 0.5 { "white" } else { "black" };
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{cell:.1}\" height=\"{cell:.1}\" fill=\"#1f77b4\" \
                 fill-opacity=\"{share:.3}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{middle:.1}\" fill=\"{ink}\" \
                 text-anchor=\"middle\">{own}</text>",
                x + cell / 2.
            );
        }
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">predicted (rows: actual)</text></svg>",
        left + size / 2.,
        TOP + size + 36.
    );
    out
}

fn head(title: &str, width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\
         <text x=\"{:.1}\" y=\"24\" text-anchor=\"middle\" font-size=\"14\">{}</text>",
        width / 2.,
        escaped(title)
    )
}

/// As text of XML; characters that XML has no way to write become spaces.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push(' '),
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}
