//! A timeline as one page that needs nothing else: memory over time by line and by owner, the lines, the events.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use crate::base::order::{sort_by, value_of};

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

/// What was made at one line for one owner, the first first.
#[derive(Default)]
struct PageRow<'a> {
    spans: Vec<&'a Span>,
    live: u64,
    live_bytes: u64,
}

impl PageRow<'_> {
    /// How many were alive when this part of them, in quarters, had begun.
    fn alive(&self, quarters: usize) -> usize {
        let at = self.begun(quarters);
        self.spans.iter().filter(|span| span.start <= at && span.end.is_none_or(|end| end > at)).count()
    }

    fn begun(&self, quarters: usize) -> u64 {
        self.spans[self.spans.len() * quarters / 4].start
    }

    /// Whether more and more of them are alive: not a level that is kept, and not what was made at one go and stayed.
    fn grows(&self, last: u64) -> bool {
        let (first, most) = (self.spans[0].start, self.begun(3));
        let (early, half, live) = (self.alive(1), self.alive(2), self.live as usize);
        let (begins, all) = (most.saturating_sub(first), last.saturating_sub(first));
        early < half && half < live && live >= 4 && begins.saturating_mul(8) >= all
    }
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
        let mut totals: Vec<(&str, (u64, u64))> = Vec::new();
        for event in &self.events {
            let total = value_of(&mut totals, event.kind.name());
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
        let mut rows: HashMap<(String, String), PageRow<'_>> = HashMap::new();
        let last = self.spans.last().map_or(0, |span| span.start);
        for span in &self.spans {
            let row = rows.entry((span.line(), on_device(&span.owner, &span.device))).or_default();
            row.spans.push(span);
            if span.end.is_none() {
                row.live += 1;
                row.live_bytes = row.live_bytes.saturating_add(self.bytes_of(span));
            }
        }
        let bytes =
            |row: &PageRow<'_>| row.spans.iter().fold(0u64, |sum, span| sum.saturating_add(self.bytes_of(span)));
        let mut rows: Vec<_> = rows.into_iter().map(|(name, row)| (name, bytes(&row), row)).collect();
        sort_by(&mut rows, |(a, x, r), (b, y, q)| (q.live_bytes, y, a).cmp(&(r.live_bytes, x, b)));
        for (i, ((line, owner), bytes, row)) in rows.iter().take(ROWS).enumerate() {
            let lead = if i > 0 { "," } else { "" };
            let (line, owner) = (quoted(line), quoted(owner));
            let each = row.spans.first().map_or(1, |span| self.stands_for(span));
            let [arrays, live] = [row.spans.len() as u64, row.live].map(|n| n.saturating_mul(each));
            let live_bytes = row.live_bytes;
            let grows = row.grows(last);
            let _ = write!(data, "{lead}[{line},{owner},{arrays},{bytes},{live},{live_bytes},{grows}]");
        }
    }
}
