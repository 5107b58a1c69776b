//! The result as Markdown: times, ratios paired by round, and what tells noise from difference.

use std::fmt::Write;

use crate::measure::Round;
use crate::options::{Clock, Options};
use crate::rivals::Rival;
use crate::work::Work;

/// The median of some figures and the quartiles around it.
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(figures: impl Iterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        let at = |quarters: usize| {
            let position = quarters as f64 / 4.0 * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
            below + (above - below) * position.fract()
        };
        Spread { low: at(1), median: at(2), high: at(3) }
    }
}

/// One workload's figures, a column a contender; `ratios` has one more, the control.
pub struct Row {
    name: String,
    times: Vec<Spread>,
    ratios: Vec<Spread>,
    faults: Vec<f64>,
    /// CPU time over elapsed time, over all contenders and rounds.
    on_core: Spread,
}

impl Row {
    pub fn new(work: Work, rounds: &[Round], clock: Clock) -> Row {
        let n_ops = f64::from(work.ops_per_iteration());
        let columns = 0..rounds[0].slots.len();
        let times = |column: usize| rounds.iter().map(move |round| round.slots[column].time(clock) / n_ops);
        let ratio = |column: usize| {
            let paired = |round: &Round| round.slots[column].time(clock) / round.slots[0].time(clock);
            Spread::of(rounds.iter().map(paired))
        };
        let control = rounds.iter().map(|round| round.control.time(clock) / round.slots[0].time(clock));
        let faults = |column: usize| Spread::of(rounds.iter().map(|round| round.slots[column].faults / n_ops)).median;
        Row {
            name: work.name(),
            times: columns.clone().map(|column| Spread::of(times(column))).collect(),
            ratios: columns.clone().map(ratio).chain([Spread::of(control)]).collect(),
            faults: columns.map(faults).collect(),
            on_core: Spread::of(rounds.iter().flat_map(|round| &round.slots).map(|slot| slot.cpu / slot.wall)),
        }
    }
}

pub fn markdown(rivals: &[Rival], rows: &[Row], options: &Options) -> String {
    let mut text = String::new();
    header(&mut text, rivals, options);
    let mut names: Vec<&str> = rivals.iter().map(|rival| rival.name).collect();

    table(&mut text, "Nanoseconds per operation: median [quartiles]", &names, rows, |row| {
        row.times.iter().map(|t| format!("{} [{}-{}]", short(t.median), short(t.low), short(t.high))).collect()
    });
    names.push("control");
    let title = format!("Time relative to {}: median of the ratios paired by round [quartiles]", rivals[0].name);
    table(&mut text, &title, &names, rows, |row| {
        row.ratios.iter().map(|r| format!("{:.2} [{:.2}-{:.2}]", r.median, r.low, r.high)).collect()
    });
    names.pop();
    names.push("on core");
    table(&mut text, "Page faults per operation (median); share of the time on a core", &names, rows, |row| {
        let on_core = format!(
            "{:.0} % [{:.0}-{:.0}]",
            100.0 * row.on_core.median,
            100.0 * row.on_core.low,
            100.0 * row.on_core.high
        );
        row.faults.iter().map(|faults| format!("{faults:.2}")).chain([on_core]).collect()
    });
    text.push_str("The training step of ndarray is written by hand, without autograd: a floor, not a peer.\n");
    text
}

fn header(text: &mut String, rivals: &[Rival], options: &Options) {
    let versions: Vec<String> =
        rivals.iter().map(|rival| format!("{} {}", rival.name, version(rival.package))).collect();
    let allocator = if cfg!(feature = "mimalloc") { "mimalloc" } else { "system" };
    let clock = match options.clock {
        Clock::Wall => "elapsed time",
        Clock::Cpu => "CPU time",
    };
    let kernels = if cfg!(any(feature = "ndgc", feature = "x86-v4")) { "with" } else { "without" };
    writeln!(
        text,
        "{}. One thread, {} allocator, gemm {kernels} AVX-512; {} rounds of {} ms, {clock}.",
        versions.join(", "),
        allocator,
        options.n_rounds,
        options.slot.as_millis()
    )
    .expect("writing to a String cannot fail");
}

fn table(text: &mut String, title: &str, columns: &[&str], rows: &[Row], cells: impl Fn(&Row) -> Vec<String>) {
    let rule = "---|".repeat(columns.len() + 1);
    writeln!(text, "\n{title}:\n\n| workload | {} |\n|{rule}", columns.join(" | "))
        .expect("writing to a String cannot fail");
    for row in rows {
        writeln!(text, "| {} | {} |", row.name, cells(row).join(" | ")).expect("writing to a String cannot fail");
    }
    text.push('\n');
}

/// Three or more significant digits: tenths below 100, whole numbers above.
fn short(nanoseconds: f64) -> String {
    if nanoseconds < 100.0 { format!("{nanoseconds:.1}") } else { format!("{nanoseconds:.0}") }
}

/// The version of a package that this build was locked to.
fn version(package: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let entry = format!("name = \"{package}\"\nversion = \"");
    let found = lock.split_once(&entry).and_then(|(_, rest)| rest.split_once('"'));
    found.map_or("of unknown version", |(version, _)| version)
}
