//! Sizes in bytes: one way to print them and one way to read them. Counts in words.

use std::fmt;

/// Prints a number of bytes with a 1024-based unit and two decimals: `1.50 GiB`, `512 B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.2} {}", UNITS[unit])
    }
}

/// Reads `4096`, `64k`, `1.5g`, `2 GiB` or, where `whole` is given, `80%` of it.
/// `None` if the text is no size, is negative or exceeds 64 bits.
pub fn parse_size(text: &str, whole: Option<u64>) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let (unit, parts): (u64, u32) = match unit.trim() {
        "" | "b" => (1, 1),
        "k" | "kb" | "kib" => (1 << 10, 1),
        "m" | "mb" | "mib" => (1 << 20, 1),
        "g" | "gb" | "gib" => (1 << 30, 1),
        "t" | "tb" | "tib" => (1 << 40, 1),
        "%" => (whole?, 100),
        _ => return None,
    };
    if number.contains('.') {
        let bytes = number.parse::<f64>().ok()? * unit as f64 / f64::from(parts);
        return (bytes.is_finite() && bytes < u64::MAX as f64).then_some(bytes as u64);
    }
    // Whole numbers are exact, which floats are up to 2^53.
    let number: u128 = number.parse().ok()?;
    u64::try_from(number.checked_mul(u128::from(unit))? / u128::from(parts)).ok()
}

/// As [`parse_size`], or `none`: no limit.
#[doc(hidden)]
pub fn parse_limit(text: &str, whole: Option<u64>) -> Option<Option<u64>> {
    if text.trim().eq_ignore_ascii_case("none") { Some(None) } else { parse_size(text, whole).map(Some) }
}

/// As many as there are, in words: `1 array`, `2 arrays`.
#[doc(hidden)]
pub fn counted(count: impl Into<u128>, what: &str) -> String {
    let count = count.into();
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
