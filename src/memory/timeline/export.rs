//! A timeline in the formats of other tools.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::base::order::sort_by;

use super::{Event, EventKind, Span, SpanEdge, Timeline};

/// A text as JSON, which does not end a script that it stands in.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('<', "\\u003c")
}

/// A name, with the device behind it unless that is the host.
pub(super) fn on_device(name: &str, device: &str) -> String {
    if device == "cpu" { name.to_owned() } else { format!("{name} on {device}") }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

impl Timeline {
    /// Writes it as Chrome's trace events in JSON, which Perfetto and `chrome://tracing` open: a counter of the live
    /// bytes of each manager and workspace on each device, each span as an asynchronous one under its line, and the
    /// events. Counters are of all arrays, also where one in many was noted.
    ///
    /// ```
    /// # use ndgc::memory;
    /// let mut file: Vec<u8> = Vec::new(); // or std::fs::File::create("run.json")?
    /// memory::timeline().write_chrome_json(&mut file)?;
    /// assert!(file.starts_with(b"{\"displayTimeUnit\":"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_chrome_json(&self, out: &mut impl Write) -> io::Result<()> {
        write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        write!(out, "{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{{\"name\":\"ndgc\"}}}}")?;
        let mut now: HashMap<(&str, &str), u64> = HashMap::new();
        for SpanEdge { at, starts, span: i } in self.edges() {
            let Span { bytes, ref owner, ref device, .. } = self.spans[i];
            let all = self.bytes_of(&self.spans[i]);
            let (name, line) = (quoted(&on_device(owner, device)), quoted(&self.spans[i].line()));
            let count = now.entry((owner, device)).or_default();
            *count = if starts { count.saturating_add(all) } else { count.saturating_sub(all) };
            let (time, phase) = (micros(at), if starts { "b" } else { "e" });
            write!(out, ",\n{{\"ph\":\"C\",\"pid\":1,\"ts\":{time},\"name\":{name},\"args\":{{\"bytes\":{count}}}}}")?;
            write!(out, ",\n{{\"ph\":\"{phase}\",\"cat\":\"bytes\",\"id\":{i},\"pid\":1,\"tid\":1,\"ts\":{time}")?;
            write!(out, ",\"name\":{line},\"args\":{{\"bytes\":{bytes},\"owner\":{name}}}}}")?;
        }
        for event in &self.events {
            let kind = event.kind.name();
            let (time, amount) = (micros(event.at), event.amount);
            write!(out, ",\n{{\"ph\":\"i\",\"s\":\"p\",\"pid\":1,\"tid\":1,\"ts\":{time},\"name\":\"{kind}\"")?;
            write!(
                out,
                ",\"args\":{{\"amount\":{amount},\"name\":{}}}}}",
                quoted(event.name.as_deref().unwrap_or(""))
            )?;
        }
        writeln!(out, "\n]}}")
    }

    /// The bytes alive at the end, as folded stacks for flame graphs: `owner;line bytes` in each line, by name, with
    /// the device before the owner where it is not the host.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager, memory};
    /// let model = NdManager::new_base_manager(&Device::Cpu)?;
    /// model.set_name("model");
    /// memory::set_trace(memory::TraceMode::Full);
    /// # memory::clear_trace();
    /// let _w = model.zeros(1024, DType::F32)?;
    /// memory::set_trace(memory::TraceMode::Off);
    /// let stacks = memory::timeline().to_folded(); // model;src/main.rs:5:16 4096
    /// assert!(stacks.starts_with("model;") && stacks.ends_with(" 4096\n"), "{stacks}");
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn to_folded(&self) -> String {
        // A semicolon ends a frame, and a line break the stack.
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let frame = |name: &str| name.replace(';', ",").chars().map(plain).collect::<String>();
        let mut stacks: HashMap<(String, String), u64> = HashMap::new();
        for span in self.spans.iter().filter(|span| span.end.is_none() && span.bytes > 0) {
            let owner = match &*span.device {
                "cpu" => frame(&span.owner),
                device => format!("{device};{}", frame(&span.owner)),
            };
            let bytes = stacks.entry((owner, frame(&span.line()))).or_default();
            *bytes = bytes.saturating_add(self.bytes_of(span));
        }
        let mut stacks: Vec<_> = stacks.into_iter().collect();
        sort_by(&mut stacks, |a, b| a.0.cmp(&b.0));
        stacks.into_iter().map(|((owner, line), bytes)| format!("{owner};{line} {bytes}\n")).collect()
    }

    /// Writes it as a memory snapshot of PyTorch: a pickle of protocol 2 that its public viewer
    /// (`pytorch.org/memory_viz`) and `torch.cuda._memory_viz` open. Its devices are those that there are arrays of,
    /// the host first, then those that only refused some. One segment stands for all memory of one, in which each span
    /// has addresses of its own; frames are the lines, with the owner as their function. Refused requests are its
    /// `oom`, with what is free of the segment.
    ///
    /// Of a sampled trace it has one array in so many ([`Timeline::sample`]), each with its own bytes alone: a block of
    /// the viewer is an allocation, and none stands for others. What is alive there is that much less than what was,
    /// but for blocks of workspaces, where the other exports count all.
    ///
    /// # Errors
    /// Those of `out`; [`io::ErrorKind::InvalidData`] for so many bytes that an address would be 2^53 or more, which
    /// the viewer has no numbers for.
    pub fn write_pytorch_snapshot(&self, out: &mut impl Write) -> io::Result<()> {
        let mut pickle = Pickle { out, frames: HashMap::new() };
        let total = self.spans.iter().fold(0u64, |sum, span| sum.saturating_add(span.bytes));
        if total >= (1 << 53) - ADDRESS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more bytes than the viewer can count"));
        }
        let mut devices = self.devices();
        for device in self.events.iter().filter_map(refused_by) {
            if !devices.iter().any(|one| **one == *device) {
                devices.push(device.into());
            }
        }
        if devices.is_empty() {
            devices.push("cpu".into());
        }
        pickle.out.write_all(&[0x80, 2])?;
        pickle.out.write_all(b"}(")?;
        pickle.text("segments")?;
        pickle.out.write_all(b"](")?;
        for (number, device) in devices.iter().enumerate() {
            self.segment(&mut pickle, number as u64, device)?;
        }
        pickle.out.write_all(b"e")?;
        pickle.text("device_traces")?;
        pickle.out.write_all(b"](")?;
        for device in &devices {
            pickle.out.write_all(b"](")?;
            self.entries(&mut pickle, device)?;
            pickle.out.write_all(b"e")?;
        }
        pickle.out.write_all(b"e")?;
        pickle.text("allocator_settings")?;
        pickle.out.write_all(b"}u.")
    }

    /// Those of a device.
    fn spans_of<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a Span> {
        self.spans.iter().filter(move |span| *span.device == *device)
    }

    /// The segment of a device at the end: the spans that go on, and between them what is free.
    fn segment<W: Write>(&self, pickle: &mut Pickle<'_, W>, number: u64, device: &str) -> io::Result<()> {
        let total: u64 = self.spans_of(device).map(|span| span.bytes).sum();
        let live: u64 = self.spans_of(device).filter(|span| span.end.is_none()).map(|span| span.bytes).sum();
        pickle.out.write_all(b"}(")?;
        let numbers = [
            ("device", number),
            ("address", ADDRESS),
            ("total_size", total),
            ("allocated_size", live),
            ("active_size", live),
            ("requested_size", live),
            ("stream", 0),
        ];
        pickle.numbers(&numbers)?;
        pickle.texts(&[("segment_type", "large")])?;
        pickle.text("segment_pool_id")?;
        pickle.out.write_all(b"K\0K\0\x86")?;
        pickle.text("is_expandable")?;
        pickle.out.write_all(b"\x89")?;
        pickle.text("frames")?;
        pickle.out.write_all(b"]")?;
        pickle.text("blocks")?;
        pickle.out.write_all(b"](")?;
        let (mut address, mut free) = (ADDRESS, 0);
        for span in self.spans_of(device) {
            if span.end.is_some() {
                free += span.bytes;
            } else {
                pickle.block(address, free, None)?;
                pickle.block(address + free, span.bytes, Some(span))?;
                address += free + span.bytes;
                free = 0;
            }
        }
        pickle.block(address, free, None)?;
        pickle.out.write_all(b"eu")
    }

    fn entries<W: Write>(&self, pickle: &mut Pickle<'_, W>, device: &str) -> io::Result<()> {
        let total: u64 = self.spans_of(device).map(|span| span.bytes).sum();
        pickle.entry("segment_alloc", ADDRESS, total, 0, None)?;
        let mut addresses = Vec::with_capacity(self.spans.len());
        let mut address = ADDRESS;
        for span in &self.spans {
            addresses.push(address);
            address += if *span.device == *device { span.bytes } else { 0 };
        }
        let mut refusals = self.events.iter().filter(|event| refused_by(event) == Some(device)).peekable();
        let mut free = total;
        for SpanEdge { at, starts, span: i } in self.edges() {
            let span = &self.spans[i];
            // One of no bytes has no block, and another's address.
            if *span.device != *device || span.bytes == 0 {
                continue;
            }
            while let Some(refusal) = refusals.next_if(|refusal| refusal.at <= at) {
                pickle.refusal(refusal, free)?;
            }
            if starts {
                pickle.entry("alloc", addresses[i], span.bytes, at, Some(span))?;
                free -= span.bytes;
            } else {
                pickle.entry("free_requested", addresses[i], span.bytes, at, Some(span))?;
                pickle.entry("free_completed", addresses[i], span.bytes, at, Some(span))?;
                free += span.bytes;
            }
        }
        refusals.try_for_each(|refusal| pickle.refusal(refusal, free))
    }
}

/// The device that had no room, if that is what happened.
fn refused_by(event: &Event) -> Option<&str> {
    event.name.as_deref().filter(|_| event.kind == EventKind::Refusal)
}

/// Where the segment begins.
const ADDRESS: u64 = 1 << 40;

/// Writes the few things that a snapshot is made of.
struct Pickle<'a, W> {
    out: &'a mut W,
    /// Lists of frames that were written, by their number in the memo.
    frames: HashMap<(String, String), u32>,
}

impl<W: Write> Pickle<'_, W> {
    fn text(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(b"X")?;
        self.out.write_all(&(text.len() as u32).to_le_bytes())?;
        self.out.write_all(text.as_bytes())
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        match i32::try_from(number) {
            Ok(small) => {
                self.out.write_all(b"J")?;
                self.out.write_all(&small.to_le_bytes())
            }
            // Below 2^63: the sign's bit is free.
            Err(_) => {
                self.out.write_all(&[0x8a, 8])?;
                self.out.write_all(&number.to_le_bytes())
            }
        }
    }

    fn numbers(&mut self, items: &[(&str, u64)]) -> io::Result<()> {
        items.iter().try_for_each(|&(name, number)| {
            self.text(name)?;
            self.number(number)
        })
    }

    fn texts(&mut self, items: &[(&str, &str)]) -> io::Result<()> {
        items.iter().try_for_each(|(name, text)| {
            self.text(name)?;
            self.text(text)
        })
    }

    fn frames(&mut self, of: Option<&Span>) -> io::Result<()> {
        self.text("frames")?;
        let Some(span) = of else { return self.out.write_all(b"]") };
        let key = (span.line(), span.owner.to_string());
        if let Some(number) = self.frames.get(&key) {
            self.out.write_all(b"j")?;
            return self.out.write_all(&number.to_le_bytes());
        }
        let number = self.frames.len() as u32;
        self.out.write_all(b"](}(")?;
        self.texts(&[("filename", span.site.map_or(&*span.owner, |site| site.file())), ("name", &span.owner)])?;
        self.numbers(&[("line", span.site.map_or(0, |site| site.line().into()))])?;
        self.out.write_all(b"uer")?;
        self.out.write_all(&number.to_le_bytes())?;
        self.frames.insert(key, number);
        Ok(())
    }

    fn block(&mut self, address: u64, size: u64, of: Option<&Span>) -> io::Result<()> {
        if size == 0 {
            return Ok(());
        }
        self.out.write_all(b"}(")?;
        self.numbers(&[("address", address), ("size", size), ("requested_size", size)])?;
        self.texts(&[("state", if of.is_some() { "active_allocated" } else { "inactive" })])?;
        self.frames(of)?;
        self.out.write_all(b"u")
    }

    fn entry(&mut self, action: &str, address: u64, size: u64, at: u64, of: Option<&Span>) -> io::Result<()> {
        self.out.write_all(b"}(")?;
        self.texts(&[("action", action)])?;
        self.numbers(&[("addr", address), ("size", size), ("stream", 0), ("time_us", at / 1000)])?;
        self.frames(of)?;
        self.out.write_all(b"u")
    }

    /// A request for which there was no room, where so much of the segment was free.
    fn refusal(&mut self, refusal: &Event, free: u64) -> io::Result<()> {
        self.out.write_all(b"}(")?;
        self.texts(&[("action", "oom")])?;
        // The viewer counts to 2^53.
        let size = refusal.amount.min((1 << 53) - 1);
        self.numbers(&[("device_free", free), ("size", size), ("stream", 0), ("time_us", refusal.at / 1000)])?;
        self.frames(None)?;
        self.out.write_all(b"u")
    }
}
