//! The timeline of a run's memory: what was noted (`trace.rs`), as spans and events, and written for other tools
//! (`export.rs`) and as a page (`page.rs`).

mod export;
mod page;

use std::collections::HashMap;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use crate::base::{
    error::Site,
    order::{places_by, sort_by, sort_by_key},
};
use crate::memory::{
    manager,
    trace::{self, Kind, Record, SAMPLE},
};

/// Bytes from when an array or workspace took them until they were free.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// Nanoseconds from the begin of the trace.
    pub start: u64,
    /// When they were free; none if they were not yet.
    pub end: Option<u64>,
    /// How many.
    pub bytes: u64,
    /// The line that made the array; none of a block of a workspace.
    pub site: Option<Site>,
    /// The name of the manager or workspace, or `handles`.
    pub owner: Arc<str>,
    /// The device whose they are, as `cpu` or `cuda:0`.
    pub device: Arc<str>,
}

impl Span {
    /// The line, or for a block of a workspace its owner.
    pub fn line(&self) -> String {
        self.site.map_or_else(|| self.owner.to_string(), |site| site.to_string())
    }
}

/// What else happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// So many bytes that were kept for reuse went back to the system.
    Trim,
    /// A request for so many bytes was refused.
    Refusal,
    /// A request for so many bytes got them elsewhere: in a file ([`memory::set_spill`](crate::memory::set_spill)), or
    /// a device's in memory of the host ([`memory::set_device_spill`](crate::memory::set_device_spill)).
    Spill,
    /// A manager was closed.
    Close,
    /// All that was dead was closed: so many arrays.
    Drain,
    /// A cycle of a workspace ended, which needed so many bytes.
    Cycle,
}

impl EventKind {
    /// Its name in other formats.
    fn name(self) -> &'static str {
        match self {
            EventKind::Trim => "trim",
            EventKind::Refusal => "refusal",
            EventKind::Spill => "spill",
            EventKind::Close => "close",
            EventKind::Drain => "drain",
            EventKind::Cycle => "cycle",
        }
    }
}

/// Something that happened at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Nanoseconds from the begin of the trace.
    pub at: u64,
    /// What.
    pub kind: EventKind,
    /// How much, by its kind.
    pub amount: u64,
    /// The name of the manager, of a close; of the workspace, of a cycle; of the device, of a trim, refusal or spill.
    pub name: Option<String>,
    /// Arrays that got bytes in a cycle; 0 of other kinds.
    pub arrays: u64,
}

/// What was noted of a run. Made by [`timeline`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Timeline {
    /// By their starts.
    pub spans: Vec<Span>,
    /// By their times.
    pub events: Vec<Event>,
    /// Records that the rings forgot: what came first is missing.
    pub lost: u64,
    /// When the last record was made, in nanoseconds from the begin.
    pub end: u64,
    /// How many storages each span of an array stands for: more than one if they were sampled when something was noted
    /// last. Its bytes are of one. Blocks of workspaces are all noted, whatever the mode.
    pub sample: u64,
}

/// What the rings hold of the process so far: each storage with its line and manager, blocks of workspaces, ends of
/// their cycles, drains, trims, refusals, spills and closes. Nothing if [`set_trace`](crate::memory::set_trace) was
/// never called, nor `NDGC_TRACE` set.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, memory};
/// memory::set_trace(memory::TraceMode::Full);
/// # memory::clear_trace();
/// let x = Tensor::zeros(1024, DType::F32, &Device::Cpu)?;
/// let y = x.exp()?;
/// drop(x);
/// # ndgc::gc::collect();
/// memory::set_trace(memory::TraceMode::Off);
/// let timeline = memory::timeline();
/// assert_eq!((timeline.spans.len(), timeline.peak()), (2, 8192));
/// assert!(timeline.spans[0].end.is_some() && timeline.spans[1].end.is_none());
/// let page: String = timeline.to_html("two arrays"); // to be opened with any browser
/// # assert!(page.contains("two arrays"));
/// # drop(y);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn timeline() -> Timeline {
    let mut made = TimelineBuilder::default();
    let (lost, sampled) = trace::each_record(|record| made.add(record));
    Timeline { lost, sample: if sampled { SAMPLE.into() } else { 1 }, ..made.timeline }
}

#[derive(Default)]
struct TimelineBuilder {
    timeline: Timeline,
    /// Spans that go on, by whether they are blocks, and their numbers.
    open: HashMap<(bool, u32), usize>,
    /// Names of workspaces (`true`) and managers.
    owners: HashMap<(bool, u64), Arc<str>>,
    /// By their numbers.
    devices: Vec<Arc<str>>,
}

impl TimelineBuilder {
    fn add(&mut self, record: &Record) {
        let Record { at, id, kind, device, bytes, of, site } = *record;
        self.timeline.end = at;
        match kind {
            Kind::Made => {
                let (owner, device) = (self.owner(false, of), self.device(device));
                self.begin((false, id), Span { start: at, end: None, bytes, site, owner, device });
            }
            Kind::BlockMade => {
                let (owner, device) = (self.owner(true, of), self.device(device));
                self.begin((true, id), Span { start: at, end: None, bytes, site: None, owner, device });
            }
            Kind::Freed => self.end((false, id), at),
            Kind::BlockFreed => self.end((true, id), at),
            Kind::Trimmed => self.event(at, EventKind::Trim, bytes, Some(trace::device_name(device)), 0),
            Kind::Refused => self.event(at, EventKind::Refusal, bytes, Some(trace::device_name(device)), 0),
            Kind::Spilled => self.event(at, EventKind::Spill, bytes, Some(trace::device_name(device)), 0),
            Kind::Drained => self.event(at, EventKind::Drain, bytes, None, 0),
            Kind::CycleEnded => {
                let name = self.owner(true, of).to_string();
                self.event(at, EventKind::Cycle, bytes, Some(name), id.into());
            }
            Kind::ManagerClosed => {
                let name = self.owner(false, of).to_string();
                self.event(at, EventKind::Close, bytes, Some(name), 0);
            }
        }
    }

    fn begin(&mut self, key: (bool, u32), span: Span) {
        // A storage that an array took over from another one is noted again.
        self.end(key, span.start);
        self.open.insert(key, self.timeline.spans.len());
        self.timeline.spans.push(span);
    }

    fn end(&mut self, key: (bool, u32), at: u64) {
        if let Some(span) = self.open.remove(&key) {
            self.timeline.spans[span].end = Some(at);
        }
    }

    fn event(&mut self, at: u64, kind: EventKind, amount: u64, name: Option<String>, arrays: u64) {
        self.timeline.events.push(Event { at, kind, amount, name, arrays });
    }

    fn device(&mut self, number: u16) -> Arc<str> {
        for next in self.devices.len() as u16..=number {
            self.devices.push(trace::device_name(next).into());
        }
        Arc::clone(&self.devices[usize::from(number)])
    }

    fn owner(&mut self, is_workspace: bool, of: u64) -> Arc<str> {
        let name = || match is_workspace {
            true => format!("workspace [{}]", trace::workspace_name(of)),
            false if of == 0 => "handles".to_owned(),
            false => trace::manager_name(of).unwrap_or_else(|| manager::name_of(of)),
        };
        Arc::clone(self.owners.entry((is_workspace, of)).or_insert_with(|| name().into()))
    }
}

/// The start of a span, or its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpanEdge {
    pub(crate) at: u64,
    pub(crate) starts: bool,
    /// Its number in the timeline.
    pub(crate) span: usize,
}

/// Starts and ends by time, an end before a start of the same moment, but for spans of no time, which start before they
/// end. Takes two numbers a span.
struct SpanEdges<'a> {
    spans: &'a [Span],
    starts: Peekable<vec::IntoIter<usize>>,
    ends: Peekable<vec::IntoIter<usize>>,
}

impl<'a> SpanEdges<'a> {
    fn new(spans: &'a [Span]) -> Self {
        let end = |i: usize| (spans[i].end, spans[i].end == Some(spans[i].start));
        let starts = places_by(spans.len(), &|a: usize, b: usize| spans[a].start.cmp(&spans[b].start));
        let mut ends = places_by(spans.len(), &|a: usize, b: usize| end(a).cmp(&end(b)));
        ends.retain(|&i| spans[i].end.is_some());
        SpanEdges { spans, starts: starts.into_iter().peekable(), ends: ends.into_iter().peekable() }
    }
}

impl Iterator for SpanEdges<'_> {
    type Item = SpanEdge;

    fn next(&mut self) -> Option<SpanEdge> {
        let start = self.starts.peek().map(|&i| self.spans[i].start);
        let next_end = self.ends.peek().map(|&i| &self.spans[i]);
        let end = next_end.and_then(|span| Some((span.end?, span.end == Some(span.start))));
        let ends = match (start, end) {
            (Some(start), Some((end, is_moment))) => end < start || end == start && !is_moment,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        let (at, from) = if ends { (end?.0, &mut self.ends) } else { (start?, &mut self.starts) };
        from.next().map(|span| SpanEdge { at, starts: !ends, span })
    }
}

/// Bytes of one group at each of some moments.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) bytes: Vec<u64>,
}

impl Timeline {
    /// The devices that spans are of, the host first.
    pub(super) fn devices(&self) -> Vec<Arc<str>> {
        let mut all: Vec<Arc<str>> = Vec::new();
        for span in &self.spans {
            if !all.contains(&span.device) {
                all.push(Arc::clone(&span.device));
            }
        }
        sort_by_key(&mut all, |device| (&**device != "cpu", Arc::clone(device)));
        all
    }

    /// The most bytes that were alive at once, of what was noted, on all devices together.
    pub fn peak(&self) -> u64 {
        let (mut now, mut peak) = (0u64, 0u64);
        for edge in self.edges() {
            now = self.after(edge, now);
            peak = peak.max(now);
        }
        peak
    }

    /// How many storages or blocks a span stands for.
    pub(super) fn stands_for(&self, span: &Span) -> u64 {
        if span.site.is_some() { self.sample.max(1) } else { 1 }
    }

    /// The bytes of all that a span stands for.
    pub(super) fn bytes_of(&self, span: &Span) -> u64 {
        span.bytes.saturating_mul(self.stands_for(span))
    }

    /// Starts and ends by time.
    pub(crate) fn edges(&self) -> impl Iterator<Item = SpanEdge> + '_ {
        SpanEdges::new(&self.spans)
    }

    /// What `now` bytes are after an edge. Spans are the program's to change.
    fn after(&self, edge: SpanEdge, now: u64) -> u64 {
        let bytes = self.bytes_of(&self.spans[edge.span]);
        if edge.starts { now.saturating_add(bytes) } else { now.saturating_sub(bytes) }
    }

    /// The bytes of each group at so many moments, each that of the peak of its part of the run: the largest groups,
    /// and the rest as one.
    pub(super) fn series(&self, moments: usize, most: usize, group: impl Fn(&Span) -> String) -> Vec<Series> {
        let mut groups: HashMap<String, usize> = HashMap::new();
        let mut own: Vec<u32> = Vec::with_capacity(self.spans.len());
        for span in &self.spans {
            let next = groups.len();
            own.push(*groups.entry(group(span)).or_insert(next) as u32);
        }
        let peaks = self.peaks(moments);
        let mut edges = self.edges();
        let mut now = vec![0u64; groups.len()];
        let mut bytes = vec![Vec::with_capacity(moments); groups.len()];
        let mut at = 0;
        for &peak in &peaks {
            for edge in edges.by_ref().take(peak - at) {
                let value = &mut now[own[edge.span] as usize];
                *value = self.after(edge, *value);
            }
            at = peak;
            for (all, &value) in bytes.iter_mut().zip(&now) {
                all.push(value);
            }
        }
        let mut named: Vec<Series> =
            groups.into_iter().map(|(name, i)| Series { name, bytes: std::mem::take(&mut bytes[i]) }).collect();
        sort_by(&mut named, |a, b| (b.bytes.iter().max(), &a.name).cmp(&(a.bytes.iter().max(), &b.name)));
        if named.len() > most {
            let rest = named.split_off(most);
            let sum = |moment: usize| rest.iter().fold(0u64, |sum, series| sum.saturating_add(series.bytes[moment]));
            named.push(Series { name: format!("{} others", rest.len()), bytes: (0..moments).map(sum).collect() });
        }
        named
    }

    /// For each of so many parts of the run how many edges there are until its peak.
    fn peaks(&self, moments: usize) -> Vec<usize> {
        let (mut now, mut at, mut edges) = (0u64, 0, self.edges().peekable());
        // In integers, so that the last part ends behind the last record, however long the run was.
        let end = u128::from(self.end.saturating_add(1));
        let part = |moment: usize| (end * (moment as u128 + 1) / moments as u128) as u64;
        (0..moments)
            .map(|moment| {
                let (mut peak, mut place) = (now, at);
                while let Some(edge) = edges.next_if(|edge| edge.at < part(moment)) {
                    now = self.after(edge, now);
                    at += 1;
                    if now >= peak {
                        (peak, place) = (now, at);
                    }
                }
                place
            })
            .collect()
    }
}
