//! A timeline as one page that needs nothing else: memory over time by line and by owner, the lines, the events.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use crate::base::order::sort_by;

use super::{
    EventKind, Span, Timeline,
    export::{on_device, quoted},
};

/// Moments that are drawn.
const MOMENTS: usize = 1500;
/// Groups with a colour of their own.
const GROUPS: usize = 12;
/// Rows of the table, and marks of refusals.
const ROWS: usize = 40;
const MARKS: usize = 2000;

const PAGE: &str = include_str!("page.html");

/// What the table says of a line.
#[derive(Default)]
struct Row {
    arrays: u64,
    live: u64,
    live_bytes: u64,
    bytes: u64,
    /// Those alive when a quarter and a half of all spans had begun, to tell a leak from a plateau.
    early: u64,
    half: u64,
}

impl Timeline {
    /// One page of HTML that needs no network: live bytes over time by line, by owner and by device, with a place to
    /// look at any moment and to zoom; a table of the lines with what each made, what of it is alive, and whether it
    /// grows; drains, refusals, spills, closes and cycles.
    pub fn to_html(&self, title: &str) -> String {
        let mut data = String::from("{");
        let _ = write!(
            data,
            "\"title\":{},\"end\":{},\"lost\":{},\"sample\":{}",
            quoted(title),
            self.end,
            self.lost,
            self.sample.max(1)
        );
        for (name, group) in [
            ("lines", Span::line as fn(&Span) -> String),
            ("owners", |span| on_device(&span.owner, &span.device)),
            ("devices", |span| span.device.to_string()),
        ] {
            let _ = write!(data, ",\"{name}\":[");
            for (i, series) in self.series(MOMENTS, GROUPS, group).iter().enumerate() {
                let lead = if i > 0 { "," } else { "" };
                let _ = write!(data, "{lead}{{\"name\":{},\"bytes\":{:?}}}", quoted(&series.name), series.bytes);
            }
            data.push(']');
        }
        data.push_str(",\"rows\":[");
        self.rows(&mut data);
        data.push_str("],\"events\":[");
        let mut totals: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for event in &self.events {
            let total = totals.entry(event.kind.name()).or_default();
            *total = (total.0 + 1, total.1.saturating_add(event.amount));
        }
        for (i, (kind, (count, amount))) in totals.into_iter().enumerate() {
            let lead = if i > 0 { "," } else { "" };
            let _ = write!(data, "{lead}[\"{kind}\",{count},{amount}]");
        }
        data.push_str("],\"refusals\":[");
        // The last ones, if there are too many to draw.
        let refusals = self.events.iter().rev().filter(|event| event.kind == EventKind::Refusal);
        for (i, event) in refusals.take(MARKS).enumerate() {
            let lead = if i > 0 { "," } else { "" };
            let _ = write!(data, "{lead}{}", event.at);
        }
        data.push_str("]}");
        PAGE.replacen("/*DATA*/null", &data, 1)
    }

    /// Writes [`Timeline::to_html`] to a file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write_html(&self, path: impl AsRef<Path>, title: &str) -> io::Result<()> {
        std::fs::write(path, self.to_html(title))
    }

    fn rows(&self, data: &mut String) {
        let mut rows: HashMap<(String, String), Row> = HashMap::new();
        let at = |quarter: usize| self.spans.get(self.spans.len() * quarter / 4).map_or(0, |span| span.start);
        let alive_at = |span: &Span, at: u64| span.start <= at && span.end.is_none_or(|end| end > at);
        for span in &self.spans {
            let row = rows.entry((span.line(), on_device(&span.owner, &span.device))).or_default();
            let (arrays, bytes) = (self.sample.max(1), span.bytes.saturating_mul(self.sample.max(1)));
            row.arrays = row.arrays.saturating_add(arrays);
            row.bytes = row.bytes.saturating_add(bytes);
            if span.end.is_none() {
                row.live = row.live.saturating_add(arrays);
                row.live_bytes = row.live_bytes.saturating_add(bytes);
            }
            row.early += u64::from(alive_at(span, at(1)));
            row.half += u64::from(alive_at(span, at(2)));
        }
        let mut rows: Vec<_> = rows.into_iter().collect();
        sort_by(&mut rows, |(a, x), (b, y)| (y.live_bytes, y.bytes, a).cmp(&(x.live_bytes, x.bytes, b)));
        for (i, ((line, owner), row)) in rows.iter().take(ROWS).enumerate() {
            let lead = if i > 0 { "," } else { "" };
            let live = row.live / self.sample.max(1);
            let grows = row.early < row.half && row.half < live && live >= 4;
            let Row { arrays, bytes, live_bytes, live, .. } = row;
            let (line, owner) = (quoted(line), quoted(owner));
            let _ = write!(data, "{lead}[{line},{owner},{arrays},{bytes},{live},{live_bytes},{grows}]");
        }
    }
}
