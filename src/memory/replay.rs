//! What a program asked of its pool, asked of other pools: without its arrays, and without memory.
//!
//! The pools are those of the library (`device/host/store.rs`, `device/stream/mod.rs`) above addresses with nothing
//! behind them, so a recording may be of any size, and each replay of it gives the same figures.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io::{self, BufRead, Write};

use crate::base::units::Bytes;
use crate::base::work;
pub use crate::device::host::store::HostPool;
pub use crate::device::stream::Segments;
use crate::device::{
    host::addresses::HostAddresses,
    span::Span,
    stream::{Addresses, AsyncDevice, DevicePlan, Rules},
};
use crate::memory::timeline::Timeline;

/// What a request of the system gives at least, and a multiple of.
const PAGE: u64 = 4096;

/// A request, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplayStep {
    /// So many bytes for a place that has none.
    Take(u32, u64),
    Put(u32),
}

/// Requests for bytes and their ends, in the order in which a program made them. Made by [`Timeline::recording`], or
/// read.
///
/// As text, a line is `+ NUMBER BYTES` or `- NUMBER`, where a number names bytes until they end; a line that begins
/// with `#` says nothing.
///
/// ```
/// # use ndgc::memory::{Recording, ReplayPool, Segments};
/// let text = "+ 1 1000000\n- 1\n+ 1 2000000\n+ 2 2000000\n- 1\n- 2\n";
/// let recording = Recording::read(text.as_bytes())?;
/// let replayed = recording.replay(ReplayPool::Device(Segments::Of(4 << 20), u64::MAX), 10);
/// assert_eq!((replayed.requests, replayed.misses, replayed.peak_live), (30, 1, 4_000_000));
/// assert_eq!(replayed.peak_reserved, 4 << 20);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    steps: Vec<ReplayStep>,
    /// How many places there are: the most that are taken at once.
    places: u32,
}

/// A recording that is made, with the places of what goes on.
#[derive(Default)]
struct RecordingBuilder {
    recording: Recording,
    open: HashMap<u64, u32>,
    free: Vec<u32>,
}

impl RecordingBuilder {
    fn take(&mut self, number: u64, bytes: u64) -> Result<(), String> {
        let Entry::Vacant(entry) = self.open.entry(number) else { return Err(format!("{number} has bytes already")) };
        let place = *entry.insert(self.free.pop().unwrap_or(self.recording.places));
        self.recording.places = self.recording.places.max(place + 1);
        self.recording.steps.push(ReplayStep::Take(place, bytes));
        Ok(())
    }

    fn put(&mut self, number: u64) -> Result<(), String> {
        let place = self.open.remove(&number).ok_or_else(|| format!("{number} has no bytes"))?;
        self.free.push(place);
        self.recording.steps.push(ReplayStep::Put(place));
        Ok(())
    }

    /// A line of the text.
    fn line(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_ascii_whitespace();
        let (sign, number, bytes) = (words.next(), words.next(), words.next());
        match (sign, number.map(str::parse), bytes.map(str::parse), words.next()) {
            (Some("+"), Some(Ok(number)), Some(Ok(bytes)), None) => self.take(number, bytes),
            (Some("-"), Some(Ok(number)), None, None) => self.put(number),
            _ => Err(format!("{line:?} is neither `+ NUMBER BYTES` nor `- NUMBER`")),
        }
    }

    /// A row of RMM's log, of which these columns are known.
    fn row(&mut self, [action, pointer, size]: [usize; 3], row: &str) -> Result<(), String> {
        let fields: Vec<&str> = row.split(',').map(str::trim).collect();
        let field = |at: usize| fields.get(at).copied().ok_or_else(|| format!("{row:?} has too few fields"));
        let not = |what: &str| format!("{row:?} has no {what}");
        let bytes: u64 = field(size)?.parse().map_err(|_| not("size"))?;
        let number = || {
            let digits = field(pointer)?.trim_start_matches("0x");
            u64::from_str_radix(digits, 16).map_err(|_| not("pointer"))
        };
        match field(action)? {
            "allocate failure" => Ok(()),
            // Its pointer is that of others like it.
            "allocate" | "free" if bytes == 0 => Ok(()),
            "allocate" => self.take(number()?, bytes),
            "free" => self.put(number()?),
            _ => Err(not("action that is known")),
        }
    }
}

/// The columns of RMM's log that are wanted, if a line is its head.
fn columns(line: &str) -> Option<[usize; 3]> {
    let place = |name: &str| line.split(',').position(|column| column.trim() == name);
    Some([place("Action")?, place("Pointer")?, place("Size")?])
}

impl Recording {
    /// Reads the text of [`Recording::write`], or the log of an allocator of RMM: comma-separated values with the
    /// columns `Action`, `Pointer` and `Size`.
    ///
    /// # Errors
    /// Those of `input`; [`io::ErrorKind::InvalidData`] with the line that is not understood, ends what has not begun,
    /// or begins what goes on.
    pub fn read(input: impl BufRead) -> io::Result<Recording> {
        let (mut building, mut table) = (RecordingBuilder::default(), None);
        for (n, line) in input.lines().enumerate() {
            let line = line?;
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            if let (0, None, found @ Some(_)) = (building.recording.steps.len(), table, columns(&line)) {
                table = found;
                continue;
            }
            let added = match table {
                Some(columns) => building.row(columns, &line),
                None => building.line(&line),
            };
            added.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {why}", n + 1)))?;
        }
        Ok(building.recording)
    }

    /// Writes it as text, with small numbers.
    ///
    /// ```
    /// # use ndgc::memory::Recording;
    /// let recording = Recording::read("+ 7 100\n- 7\n+ 9 200\n".as_bytes())?;
    /// let mut file: Vec<u8> = Vec::new(); // or whatever else takes bytes
    /// recording.write(&mut file)?;
    /// assert_eq!(file, b"+ 0 100\n- 0\n+ 0 200\n"); // a number is free again with its bytes
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.steps.iter().try_for_each(|step| match step {
            ReplayStep::Take(place, bytes) => writeln!(out, "+ {place} {bytes}"),
            ReplayStep::Put(place) => writeln!(out, "- {place}"),
        })
    }

    /// How many requests there are.
    pub fn requests(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, ReplayStep::Take(..))).count()
    }

    /// Asks a pool for what was recorded, so many times; what goes on at the end of a round ends before the next one.
    ///
    /// As if one thread had made all requests, written to all it got, and kept no block for itself. What a pool would
    /// do for arrays of several streams, or for captured sections, is not in it.
    pub fn replay(&self, pool: ReplayPool, rounds: u32) -> Replayed {
        let (replayed, peak) = self.run(pool, rounds, u64::MAX);
        // Once more, to look at the pool as it was at the peak.
        let (at_peak, _) = self.run(pool, rounds, peak);
        let (largest_free, free) = (at_peak.largest_free, at_peak.free);
        Replayed { largest_free, free, ..replayed }
    }

    /// Replays so many steps at most. Returns also after how many most was reserved.
    fn run(&self, pool: ReplayPool, rounds: u32, most: u64) -> (Replayed, u64) {
        let mut run = ReplayRun { pool: Pool::new(pool), taken: Vec::new(), replayed: Replayed::default() };
        let (mut count, mut peak) = (0, 0);
        work::all(|| {
            for _ in 0..rounds {
                (0..run.taken.len()).for_each(|place| run.put(place));
                run.taken.resize(self.places as usize, None);
                for step in &self.steps {
                    if count == most {
                        return;
                    }
                    count += 1;
                    match *step {
                        ReplayStep::Take(place, bytes) => run.take(place as usize, bytes),
                        ReplayStep::Put(place) => run.put(place as usize),
                    }
                    if run.note() {
                        peak = count;
                    }
                }
            }
        });
        (run.end(), peak)
    }
}

impl Timeline {
    /// The requests for bytes that it has, with their ends: of arrays, and of blocks of workspaces. Of a
    /// [sampled](Timeline::sample) one it is those that were noted.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, memory};
    /// memory::set_trace(memory::TraceMode::Full);
    /// # memory::clear_trace();
    /// let x = Tensor::zeros(1000, DType::U8, &Device::Cpu)?;
    /// x.close();
    /// let y = Tensor::zeros(2000, DType::U8, &Device::Cpu)?;
    /// memory::set_trace(memory::TraceMode::Off);
    /// let recording = memory::timeline().recording();
    /// let replayed = recording.replay(memory::ReplayPool::System, 1);
    /// assert_eq!((recording.requests(), replayed.peak_live), (2, 2000)); // never both at once
    /// # drop(y);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn recording(&self) -> Recording {
        let mut building = RecordingBuilder::default();
        for edge in self.edges() {
            let number = edge.span as u64;
            // A span begins once, and ends after that.
            let _ = if edge.starts { building.take(number, self.spans[edge.span].bytes) } else { building.put(number) };
        }
        building.recording
    }
}

/// A pool that a [`Recording`] is asked of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayPool {
    /// None: each request goes to the system, which gives whole pages and gets them back.
    System,
    /// The host's. That of this process is the default.
    Host(HostPool),
    /// That of a device with so many bytes. Of a CUDA device the segments are [`Segments::Graded`].
    Device(Segments, u64),
}

/// What a pool did with the requests of a [`Recording`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// Requests.
    pub requests: u64,
    /// Those for which the system or the driver gave something.
    pub misses: u64,
    /// All bytes that it gave for these.
    pub fresh: u64,
    /// Those for which the device had too few bytes.
    pub refused: u64,
    /// The most bytes that were asked for and not given back.
    pub peak_live: u64,
    /// The most that the pool had of the system or the driver, those included.
    pub peak_reserved: u64,
    /// As `peak_live`, at the end.
    pub live: u64,
    /// As `peak_reserved`, at the end.
    pub reserved: u64,
    /// When most was reserved: free bytes in the pool.
    pub free: u64,
    /// And those of its largest free block.
    pub largest_free: u64,
}

impl Replayed {
    /// Requests that were served from what the pool had.
    pub fn hits(&self) -> u64 {
        self.requests.saturating_sub(self.misses).saturating_sub(self.refused)
    }

    /// The most that was reserved, to the most that was alive; 1 of nothing.
    ///
    /// ```
    /// # use ndgc::memory::{Recording, ReplayPool};
    /// let recording = Recording::read("+ 1 1024\n".as_bytes())?;
    /// let replayed = recording.replay(ReplayPool::System, 1);
    /// assert_eq!(replayed.overhead(), 4.); // the system gives whole pages, of 4 KiB
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn overhead(&self) -> f64 {
        if self.peak_live == 0 { 1. } else { self.peak_reserved as f64 / self.peak_live as f64 }
    }

    /// When most was reserved: the part of the free bytes that is not in the largest free block; 0 if none was free.
    pub fn fragmentation(&self) -> f64 {
        if self.free == 0 { 0. } else { 1. - self.largest_free as f64 / self.free as f64 }
    }
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "peak {} for {} alive ({:.2}), fragmentation {:.2}, {} hits, {} misses of {}, {} refused",
            Bytes(self.peak_reserved),
            Bytes(self.peak_live),
            self.overhead(),
            self.fragmentation(),
            self.hits(),
            self.misses,
            Bytes(self.fresh),
            self.refused
        )
    }
}

/// A pool of addresses.
enum Pool {
    /// Bytes of pages now, requests, and bytes of all of them.
    System(u64, u64, u64),
    Host(Box<HostAddresses>),
    Device(Box<AsyncDevice<Addresses>>, u64),
}

impl Pool {
    fn new(plan: ReplayPool) -> Pool {
        match plan {
            ReplayPool::System => Pool::System(0, 0, 0),
            ReplayPool::Host(plan) => Pool::Host(Box::new(HostAddresses::new(plan))),
            ReplayPool::Device(segments, bytes) => {
                let plan = DevicePlan { name: "replay".to_owned(), streams: 1, rules: Rules::ALL, segments };
                Pool::Device(Box::new(AsyncDevice::new(Addresses::new(bytes), plan)), bytes)
            }
        }
    }

    fn take(&mut self, bytes: u64) -> Option<Span> {
        let size = usize::try_from(bytes).ok()?;
        match self {
            Pool::System(reserved, requests, fresh) => {
                let pages = bytes.checked_next_multiple_of(PAGE)?;
                *reserved = reserved.checked_add(pages)?;
                (*requests, *fresh) = (*requests + 1, fresh.saturating_add(pages));
                Some(Span::empty())
            }
            Pool::Host(pool) => pool.take(size),
            Pool::Device(device, _) => Some(device.alloc(size).ok()?.0),
        }
    }

    fn put(&mut self, span: Span, bytes: u64) {
        match self {
            Pool::System(reserved, ..) => *reserved -= bytes.next_multiple_of(PAGE),
            Pool::Host(pool) => pool.put(span),
            Pool::Device(device, _) => device.free(span),
        }
    }

    fn reserved(&self) -> u64 {
        match self {
            Pool::System(reserved, ..) => *reserved,
            Pool::Host(pool) => pool.reserved(),
            Pool::Device(device, bytes) => bytes - device.driver().left(),
        }
    }

    /// Requests that needed more of the system or the driver, and the bytes of all of these.
    fn misses(&self) -> (u64, u64) {
        match self {
            Pool::System(_, requests, fresh) => (*requests, *fresh),
            Pool::Host(pool) => pool.misses(),
            Pool::Device(device, _) => (device.stats().misses, device.driver().given()),
        }
    }

    /// Bytes of the largest free block, and of all of them.
    fn free(&mut self) -> (u64, u64) {
        match self {
            Pool::System(..) => (0, 0),
            Pool::Host(pool) => pool.free(),
            Pool::Device(device, _) => device.free_bytes(),
        }
    }
}

/// A replay that goes on.
struct ReplayRun {
    pool: Pool,
    /// What each place has: its block, and the bytes asked for.
    taken: Vec<Option<(Span, u64)>>,
    replayed: Replayed,
}

impl ReplayRun {
    fn take(&mut self, place: usize, bytes: u64) {
        self.replayed.requests += 1;
        // No pool is asked for nothing.
        match if bytes == 0 { Some(Span::empty()) } else { self.pool.take(bytes) } {
            Some(span) => self.taken[place] = Some((span, bytes)),
            None => self.replayed.refused += 1,
        }
        self.replayed.live += self.taken[place].map_or(0, |(_, bytes)| bytes);
    }

    /// Nothing if the request was refused.
    fn put(&mut self, place: usize) {
        if let Some((span, bytes)) = self.taken[place].take() {
            self.replayed.live -= bytes;
            if bytes > 0 {
                self.pool.put(span, bytes);
            }
        }
    }

    /// Notes peaks. Whether more is reserved than ever.
    fn note(&mut self) -> bool {
        let reserved = self.pool.reserved();
        self.replayed.peak_live = self.replayed.peak_live.max(self.replayed.live);
        let is_peak = reserved > self.replayed.peak_reserved;
        self.replayed.peak_reserved = self.replayed.peak_reserved.max(reserved);
        is_peak
    }

    fn end(mut self) -> Replayed {
        let (largest_free, free) = self.pool.free();
        let ((misses, fresh), reserved) = (self.pool.misses(), self.pool.reserved());
        Replayed { misses, fresh, reserved, free, largest_free, ..self.replayed }
    }
}
