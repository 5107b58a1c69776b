//! Command line of the comparison.

use std::path::PathBuf;
use std::time::Duration;

use crate::work::Work;

const USAGE: &str = "usage: ndgc-compare [--quick] [--rounds N] [--workloads a,b] [--clock wall|cpu] \
    [--threads N] [--out FILE.md]";

/// Which clock the quoted times are read from; both are always measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Elapsed time.
    Wall,
    /// CPU time of the whole process: waiting for a core does not count, helper threads do.
    Cpu,
}

/// What to run and how long.
#[derive(Debug)]
pub struct Options {
    pub works: Vec<Work>,
    pub n_rounds: usize,
    /// Time one contender gets in one round.
    pub slot: Duration,
    pub clock: Clock,
    /// For the contenders that have threads in this build: candle and ndgc.
    pub n_threads: usize,
    pub out: Option<PathBuf>,
}

impl Options {
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            works: Work::all(),
            n_rounds: 15,
            slot: Duration::from_millis(50),
            clock: Clock::Wall,
            n_threads: 1,
            out: None,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n{USAGE}"));
            match arg.as_str() {
                "--quick" => (options.n_rounds, options.slot) = (3, Duration::from_millis(10)),
                "--rounds" => options.n_rounds = parse_positive("--rounds", &value()?)?,
                "--threads" => options.n_threads = parse_positive("--threads", &value()?)?,
                "--workloads" => options.works = parse_works(&value()?)?,
                "--clock" => options.clock = parse_clock(&value()?)?,
                "--out" => options.out = Some(value()?.into()),
                _ => return Err(format!("unknown argument {arg}\n{USAGE}")),
            }
        }
        Ok(options)
    }
}

fn parse_positive(flag: &str, text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| format!("{flag} {text}: not a positive number"))
}

fn parse_works(text: &str) -> Result<Vec<Work>, String> {
    let unknown = |name: &str| {
        let known: Vec<String> = Work::all().iter().map(Work::name).collect();
        format!("unknown workload {name}; known: {}", known.join(", "))
    };
    text.split(',').map(|name| Work::named(name).ok_or_else(|| unknown(name))).collect()
}

fn parse_clock(text: &str) -> Result<Clock, String> {
    match text {
        "wall" => Ok(Clock::Wall),
        "cpu" => Ok(Clock::Cpu),
        _ => Err(format!("--clock {text}: expected wall or cpu")),
    }
}
