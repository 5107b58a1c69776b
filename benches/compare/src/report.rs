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
    requests: Vec<f64>,
    /// Over all contenders and rounds.
    on_core: Spread,
}

impl Row {
    /// The first slot of each round is the baseline's, the last its second.
    pub fn new(work: Work, rounds: &[Round]) -> Row {
        let n_ops = f64::from(work.ops_per_iteration());
        let n_columns = rounds[0].len();
        let contenders = 0..n_columns - 1;
        let time = |column: usize| Spread::of(rounds.iter().map(|round| round[column].time / n_ops));
        let ratio = |column: usize| Spread::of(rounds.iter().map(|round| round[column].time / round[0].time));
        let faults = |column: usize| Spread::of(rounds.iter().map(|round| round[column].faults / n_ops)).median;
        let requests = |column: usize| Spread::of(rounds.iter().map(|round| round[column].requests / n_ops)).median;
        Row {
            name: work.name(),
            times: contenders.clone().map(time).collect(),
            ratios: (0..n_columns).map(ratio).collect(),
            faults: contenders.clone().map(faults).collect(),
            requests: contenders.map(requests).collect(),
            on_core: Spread::of(rounds.iter().flatten().map(|slot| slot.on_core)),
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
    names.pop();
    table(&mut text, "Requests to the heap per operation (median)", &names, rows, |row| {
        row.requests.iter().map(|requests| format!("{requests:.2}")).collect()
    });
    text.push_str(
        "\nThe floor is no library: hand-written loops and the gemm crate, results in buffers that are there already. \
         The training step of ndarray is written by hand, too.\n",
    );
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
        "{}. {} thread(s), {} allocator, gemm {kernels} AVX-512; {} rounds of {} ms, {clock}.",
        versions.join(", "),
        options.n_threads,
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
}

/// Three or more significant digits: tenths below 100, whole numbers above.
fn short(nanoseconds: f64) -> String {
    if nanoseconds < 100.0 { format!("{nanoseconds:.1}") } else { format!("{nanoseconds:.0}") }
}

/// The version of a direct dependency that this build was locked to. The lock file names it in our list of
/// dependencies where several versions are present, else in the entry of the package.
fn version(package: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let own = lock.split_once("name = \"ndgc-compare\"").map_or("", |(_, rest)| rest);
    let own = own.split_once(']').map_or("", |(list, _)| list);
    let after = |text: &'static str, before: &str| Some(text.split_once(before)?.1.split_once('"')?.0);
    after(own, &format!("\"{package} "))
        .or_else(|| after(lock, &format!("name = \"{package}\"\nversion = \"")))
        .unwrap_or("of unknown version")
}
