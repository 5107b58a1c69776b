//! Tables of fixed width, as DL4J prints them.

/// A line of cells, each padded to its width.
pub(super) fn line(out: &mut String, cells: &[(String, usize)]) {
    for (text, width) in cells {
        // A cell that is too long is still apart from the next.
        let long = text.chars().count();
        out.push_str(text);
        // Not by a format, whose width has an end.
        out.extend(std::iter::repeat_n(' ', (*width).max(long + 1) - long));
    }
}

/// With four decimals, or `undefined`.
pub(super) fn decimals(number: Option<f64>) -> String {
    number.map_or_else(|| "undefined".to_owned(), |number| format!("{number:.4}"))
}

/// The width of a first column, which is at least that.
pub(super) fn label_width(names: &[String], least: usize) -> usize {
    names.iter().map(|name| name.chars().count() + 4).max().unwrap_or(0).max(least)
}

/// The given name of a column, or its number.
pub(super) fn name(names: &[String], column: usize) -> String {
    names.get(column).cloned().unwrap_or_else(|| column.to_string())
}

/// All names of that many columns.
pub(super) fn names(given: &[String], columns: usize) -> Vec<String> {
    (0..columns).map(|column| name(given, column)).collect()
}

/// As C prints `%.5e`: two digits of the exponent at least.
pub(super) fn scientific(number: f64, decimals: usize) -> String {
    let text = format!("{number:.decimals$e}");
    match text.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => text,
    }
}
