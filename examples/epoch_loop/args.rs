//! The command line of the epoch loop.
//!
//! [`parse`] turns the words after the program's name into [`Args`]. The rules: an option that is
//! given wins over `--quick` wherever it stands; a count of 0 is an error; every error names the
//! option, the value that was found and what is allowed. The parent starts its children through
//! [`Args::for_child`], so that one run has one set of parameters.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use lexopt::prelude::{Long, Short, Value};
use serde::{Deserialize, Serialize};

use super::plot::Format;

/// Passes over the training images.
const EPOCHS: usize = 10;
/// Images in one step.
const BATCH: usize = 32;
/// Training images.
const IMAGES: usize = 20_000;
/// Start of every pseudo-random sequence.
const SEED: u64 = 42;
/// Where the picture goes.
const PLOT: &str = "target/epoch_loop.svg";
/// `EPOCHS` under `--quick`.
const QUICK_EPOCHS: usize = 3;
/// `IMAGES` under `--quick`.
const QUICK_IMAGES: usize = 1_500;
/// The largest count that `--epochs`, `--batch` and `--images` take.
const MAX_COUNT: usize = 1_000_000;

/// What becomes of the arrays that a step leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// They are kept and never given back.
    Leaky,
    /// They are reclaimed once nothing uses them.
    Reclaiming,
    /// They belong to a scope that ends with the step.
    Scoped,
    /// They lie in a workspace, whose cycle ends with the step.
    Workspace,
    /// They lie where `ndgc::train` puts them, which trains by `fit`.
    Network,
}

impl Mode {
    /// Every mode, in the order in which they run by default.
    pub(crate) const ALL: [Mode; 5] = [Mode::Leaky, Mode::Reclaiming, Mode::Scoped, Mode::Workspace, Mode::Network];

    /// The name on the command line, in reports and in the picture.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Leaky => "leaky",
            Mode::Reclaiming => "reclaiming",
            Mode::Scoped => "scoped",
            Mode::Workspace => "workspace",
            Mode::Network => "network",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Mode::ALL.into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| format!("no mode is called '{text}'"))
    }
}

/// How the weights follow the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Optimizer {
    /// Plain gradient descent.
    Sgd,
    /// Adam, with two moments per weight.
    Adam,
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Optimizer::Sgd => "sgd",
            Optimizer::Adam => "adam",
        })
    }
}

impl FromStr for Optimizer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "sgd" => Ok(Optimizer::Sgd),
            "adam" => Ok(Optimizer::Adam),
            _ => Err(format!("no optimizer is called '{text}'")),
        }
    }
}

/// The parameters of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Args {
    /// The modes to run, in this order, each once.
    pub(crate) modes: Vec<Mode>,
    /// Passes over the training images.
    pub(crate) epochs: usize,
    /// Images in one step.
    pub(crate) batch: usize,
    /// Training images to draw, or to use at most when they come from `data`.
    pub(crate) images: usize,
    /// The folder of the IDX files; without it the program draws its digits.
    pub(crate) data: Option<PathBuf>,
    /// How the weights follow the gradients.
    pub(crate) optimizer: Optimizer,
    /// Start of every pseudo-random sequence.
    pub(crate) seed: u64,
    /// Whether every step walks all arrays for gradients, as DJL 0.20 did.
    pub(crate) scan_gradients: bool,
    /// Where to train, as `NDGC_DEVICE` names it; that variable decides if nothing is said.
    pub(crate) device: Option<String>,
    /// The picture's file.
    pub(crate) plot: PathBuf,
    /// The file of what other systems need, which is drawn beside the modes.
    pub(crate) beside: Option<PathBuf>,
    /// The file of rows, where one is wanted.
    pub(crate) json: Option<PathBuf>,
    /// The page of what happens to memory, one for each mode, where it is wanted.
    pub(crate) report: Option<PathBuf>,
    /// Set in a child process: the one mode that it runs.
    pub(crate) child: Option<Mode>,
}

impl Args {
    /// The words with which the parent starts the child that runs `mode`.
    pub(crate) fn for_child(&self, mode: Mode) -> Vec<OsString> {
        let mut words: Vec<OsString> = [
            ("--child", mode.to_string()),
            ("--epochs", self.epochs.to_string()),
            ("--batch", self.batch.to_string()),
            ("--images", self.images.to_string()),
            ("--optimizer", self.optimizer.to_string()),
            ("--seed", self.seed.to_string()),
        ]
        .into_iter()
        .flat_map(|(option, value)| [OsString::from(option), OsString::from(value)])
        .collect();
        if let Some(dir) = &self.data {
            words.push("--data".into());
            words.push(dir.into());
        }
        if let Some(device) = &self.device {
            words.push("--device".into());
            words.push(device.into());
        }
        if self.scan_gradients {
            words.push("--scan-gradients".into());
        }
        if let Some(page) = self.page(mode) {
            words.push("--report".into());
            words.push(page.into());
        }
        words
    }

    /// The page of a mode: `run.html` gives `run-leaky.html`, unless there is one mode alone.
    fn page(&self, mode: Mode) -> Option<PathBuf> {
        let file = self.report.as_ref()?;
        let stem = file.file_stem()?.to_string_lossy();
        match self.modes.as_slice() {
            [_] => Some(file.clone()),
            _ => Some(file.with_file_name(format!("{stem}-{mode}.html"))),
        }
    }
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Print [`help`] and leave.
    Help,
    /// Train.
    Run(Box<Args>),
}

/// What is wrong with the command line.
#[derive(Debug)]
pub(crate) enum ArgsError {
    /// No option has this name.
    Unknown(String),
    /// A word that belongs to no option.
    Stray(OsString),
    /// The option stands last and has no value.
    NoValue {
        /// The option.
        option: String,
        /// What it takes.
        allowed: String,
    },
    /// The option's value is not one that it takes.
    BadValue {
        /// The option.
        option: String,
        /// What was given.
        value: String,
        /// What it takes.
        allowed: String,
    },
    /// A value for an option that takes none, and the like.
    Syntax(lexopt::Error),
}

impl fmt::Display for ArgsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(option) => write!(f, "there is no option {option}")?,
            Self::Stray(word) => write!(f, "'{}' belongs to no option", word.display())?,
            Self::NoValue { option, allowed } => {
                write!(f, "{option} has no value: it takes {allowed}")?;
            }
            Self::BadValue { option, value, allowed } => {
                write!(f, "{option} was given '{value}': it takes {allowed}")?;
            }
            Self::Syntax(error) => write!(f, "{error}")?,
        }
        f.write_str(" (--help lists all options)")
    }
}

impl std::error::Error for ArgsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Syntax(error) => Some(error),
            _ => None,
        }
    }
}

/// Options as given, before defaults fill the gaps.
#[derive(Default)]
struct Given {
    modes: Option<Vec<Mode>>,
    epochs: Option<usize>,
    batch: Option<usize>,
    images: Option<usize>,
    data: Option<PathBuf>,
    optimizer: Option<Optimizer>,
    seed: Option<u64>,
    scan_gradients: bool,
    device: Option<String>,
    plot: Option<PathBuf>,
    beside: Option<PathBuf>,
    json: Option<PathBuf>,
    report: Option<PathBuf>,
    quick: bool,
    child: Option<Mode>,
}

/// Reads the words that follow the program's name.
pub(crate) fn parse<I>(words: I) -> Result<Request, ArgsError>
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    let mut parser = lexopt::Parser::from_args(words);
    let mut given = Given::default();
    while let Some(word) = parser.next().map_err(ArgsError::Syntax)? {
        let option = match word {
            Long("help") | Short('h') => return Ok(Request::Help),
            Long(name) => format!("--{name}"),
            Short(letter) => return Err(ArgsError::Unknown(format!("-{letter}"))),
            Value(word) => return Err(ArgsError::Stray(word)),
        };
        accept(&mut given, &mut parser, option)?;
    }
    complete(given).map(|args| Request::Run(Box::new(args)))
}

/// Takes one option, with its value where it has one.
fn accept(given: &mut Given, parser: &mut lexopt::Parser, option: String) -> Result<(), ArgsError> {
    let mut taker = Taker { parser, option };
    match taker.option.as_str() {
        "--modes" => given.modes = Some(taker.modes()?),
        "--epochs" => given.epochs = Some(taker.count()?),
        "--batch" => given.batch = Some(taker.count()?),
        "--images" => given.images = Some(taker.count()?),
        "--data" => given.data = Some(taker.path("a folder that holds the IDX files")?),
        "--optimizer" => given.optimizer = Some(taker.parsed("sgd or adam")?),
        "--seed" => given.seed = Some(taker.parsed("a whole number from 0 to 2^64 - 1")?),
        "--scan-gradients" => given.scan_gradients = true,
        "--device" => given.device = Some(taker.parsed("cpu, sim, cuda, cuda:1 or best")?),
        "--plot" => given.plot = Some(taker.plot()?),
        "--beside" => given.beside = Some(taker.path("a file of figures")?),
        "--json" => given.json = Some(taker.path("a file name")?),
        "--report" => given.report = Some(taker.path("a file name")?),
        "--quick" => given.quick = true,
        "--child" => given.child = Some(taker.parsed("leaky, reclaiming, scoped, workspace or network")?),
        _ => return Err(ArgsError::Unknown(taker.option)),
    }
    Ok(())
}

/// Fills the gaps with defaults and checks what concerns two options.
fn complete(given: Given) -> Result<Args, ArgsError> {
    let (epochs, images) = if given.quick { (QUICK_EPOCHS, QUICK_IMAGES) } else { (EPOCHS, IMAGES) };
    let images = given.images.unwrap_or(images);
    if let Some(batch) = given.batch.filter(|batch| *batch > images) {
        return Err(ArgsError::BadValue {
            option: "--batch".to_owned(),
            value: batch.to_string(),
            allowed: format!("at most the number of images, here {images}"),
        });
    }
    Ok(Args {
        modes: match given.modes {
            Some(modes) => modes,
            None => modes_of_environment()?,
        },
        epochs: given.epochs.unwrap_or(epochs),
        batch: given.batch.unwrap_or(BATCH.min(images)),
        images,
        data: given.data,
        optimizer: given.optimizer.unwrap_or(Optimizer::Adam),
        seed: given.seed.unwrap_or(SEED),
        scan_gradients: given.scan_gradients,
        device: given.device,
        plot: given.plot.unwrap_or_else(|| PathBuf::from(PLOT)),
        beside: given.beside,
        json: given.json,
        report: given.report,
        child: given.child,
    })
}

/// Without `--modes`: the one that `NDGC` asks for, or all.
fn modes_of_environment() -> Result<Vec<Mode>, ArgsError> {
    match std::env::var("NDGC").as_deref() {
        Ok("on") => Ok(vec![Mode::Reclaiming]),
        Ok("off") => Ok(vec![Mode::Leaky]),
        Ok("") | Err(_) => Ok(Mode::ALL.to_vec()),
        Ok(other) => Err(ArgsError::BadValue {
            option: "NDGC (in the environment)".to_owned(),
            value: other.to_owned(),
            allowed: "on or off".to_owned(),
        }),
    }
}

/// Takes the value of one option.
struct Taker<'a> {
    parser: &'a mut lexopt::Parser,
    option: String,
}

impl Taker<'_> {
    fn word(&mut self, allowed: &str) -> Result<OsString, ArgsError> {
        let word = self
            .parser
            .value()
            .map_err(|_| ArgsError::NoValue { option: self.option.clone(), allowed: allowed.to_owned() })?;
        if word.is_empty() { Err(self.bad("", allowed)) } else { Ok(word) }
    }

    fn bad(&self, value: impl Into<String>, allowed: &str) -> ArgsError {
        ArgsError::BadValue { option: self.option.clone(), value: value.into(), allowed: allowed.to_owned() }
    }

    fn path(&mut self, allowed: &str) -> Result<PathBuf, ArgsError> {
        self.word(allowed).map(PathBuf::from)
    }

    fn text(&mut self, allowed: &str) -> Result<String, ArgsError> {
        let word = self.word(allowed)?;
        word.into_string().map_err(|word| self.bad(word.to_string_lossy(), allowed))
    }

    fn parsed<T: FromStr>(&mut self, allowed: &str) -> Result<T, ArgsError> {
        let text = self.text(allowed)?;
        text.parse().map_err(|_| self.bad(text, allowed))
    }

    fn count(&mut self) -> Result<usize, ArgsError> {
        let allowed = format!("a whole number from 1 to {MAX_COUNT}");
        let count: usize = self.parsed(&allowed)?;
        if (1..=MAX_COUNT).contains(&count) { Ok(count) } else { Err(self.bad(count.to_string(), &allowed)) }
    }

    fn modes(&mut self) -> Result<Vec<Mode>, ArgsError> {
        let allowed = "leaky, reclaiming, scoped, workspace and network, each at most once, with commas between";
        let text = self.text(allowed)?;
        let mut modes = Vec::new();
        for name in text.split(',') {
            match name.trim().parse::<Mode>() {
                Ok(mode) if !modes.contains(&mode) => modes.push(mode),
                _ => return Err(self.bad(text, allowed)),
            }
        }
        Ok(modes)
    }

    fn plot(&mut self) -> Result<PathBuf, ArgsError> {
        let allowed = "a file name that ends in .svg or .png";
        let path = self.path(allowed)?;
        match Format::of(&path) {
            Ok(_) => Ok(path),
            Err(_) => Err(self.bad(path.display().to_string(), allowed)),
        }
    }
}

/// The text of `--help`.
pub(crate) fn help() -> String {
    format!(
        "\
Trains a small network on digits in five ways and shows what each does to memory.

Usage: epoch_loop [options]

  --modes LIST         the ways to run, with commas between (all):
                         leaky       keeps every array that a step makes
                         reclaiming  gives arrays back once nothing uses them
                         scoped      ties the arrays of a step to a scope that ends with it
                         workspace   makes each step a cycle, whose memory the next step uses again
                         network     leaves all that to ndgc::train, which trains by `fit`
  --epochs N           passes over the training images ({EPOCHS})
  --batch N            images in one step ({BATCH})
  --images N           training images to draw, or to use at most with --data ({IMAGES})
  --data DIR           read the MNIST files in DIR, plain or gzip, instead of drawing digits
  --optimizer NAME     sgd or adam (adam)
  --seed N             start of every pseudo-random sequence ({SEED})
  --scan-gradients     in every step, walk all arrays for gradients, as DJL 0.20 did;
                       the picture then has the seconds too
  --device NAME        where to train: cpu, sim, cuda, cuda:1 or best (as NDGC_DEVICE says, or cpu)
  --plot FILE          where the picture goes, .svg or .png ({PLOT})
  --beside FILE        draw seconds and resident memory instead, beside other systems' figures
                       (benches/results/jvm-epochs.csv)
  --json FILE          write all rows, one object per mode and epoch, as one JSON array
  --report FILE        draw memory over time: FILE run.html gives run-leaky.html and so on
  --quick              a short run: {QUICK_EPOCHS} epochs of {QUICK_IMAGES} images unless given otherwise
  --help               this text

Without --modes, NDGC=on in the environment runs `reclaiming` alone, NDGC=off `leaky`.
Each way runs in a process of its own, so that none sees the memory of another.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> Args {
        match parse(words) {
            Ok(Request::Run(args)) => *args,
            other => panic!("{words:?} gave {other:?}"),
        }
    }

    fn fault(words: &[&str]) -> String {
        parse(words).expect_err("the words are wrong").to_string()
    }

    #[test]
    fn nothing_given_means_the_defaults() {
        let args = run(&[]);
        assert_eq!(args.modes, Mode::ALL);
        assert_eq!(Mode::ALL.map(|mode| mode.name().parse()), Mode::ALL.map(Ok));
        assert_eq!((args.epochs, args.batch, args.images), (EPOCHS, BATCH, IMAGES));
        assert_eq!((args.optimizer, args.seed), (Optimizer::Adam, SEED));
        assert_eq!(args.plot, PathBuf::from(PLOT));
        assert_eq!((args.data, args.beside, args.json, args.report, args.child), (None, None, None, None, None));
        assert!(!args.scan_gradients);
        assert_eq!(args.device, None);
    }

    #[test]
    fn quick_yields_to_what_is_given() {
        let args = run(&["--epochs", "7", "--quick"]);
        assert_eq!((args.epochs, args.images), (7, QUICK_IMAGES));
        let args = run(&["--quick", "--images=9"]);
        assert_eq!((args.epochs, args.images, args.batch), (QUICK_EPOCHS, 9, 9));
    }

    #[test]
    fn a_child_gets_the_parameters_of_its_parent() {
        let words = ["--epochs=2", "--batch", "8", "--images", "64", "--data", "some dir"];
        let more = ["--optimizer", "sgd", "--seed", "7", "--scan-gradients", "--device", "cuda:1"];
        let parent = run(&[&words[..], &more[..]].concat());
        let Ok(Request::Run(child)) = parse(parent.for_child(Mode::Scoped)) else {
            panic!("the child's words are wrong");
        };
        assert_eq!(*child, Args { child: Some(Mode::Scoped), ..parent });
    }

    #[test]
    fn errors_name_option_value_and_what_is_allowed() {
        let text = fault(&["--epochs", "0"]);
        assert!(text.contains("--epochs was given '0': it takes a whole number from 1"), "{text}");
        for word in ["-1", "2.5", "many", "", "99999999999999999999999"] {
            let text = fault(&["--images", word]);
            assert!(text.contains(&format!("--images was given '{word}'")), "{text}");
        }
        let text = fault(&["--batch", "33", "--images", "32"]);
        assert!(text.contains("--batch was given '33'") && text.contains("32"), "{text}");
        let text = fault(&["--optimizer", "lion"]);
        assert!(text.contains("'lion'") && text.contains("sgd or adam"), "{text}");
        let text = fault(&["--plot", "a.pdf"]);
        assert!(text.contains("'a.pdf'") && text.contains(".svg or .png"), "{text}");
        let text = fault(&["--seed"]);
        assert!(text.contains("--seed has no value"), "{text}");
        for list in ["leaky,eager", "leaky,leaky", ",", "leaky,"] {
            assert!(fault(&["--modes", list]).contains(&format!("'{list}'")));
        }
        assert!(fault(&["--speed", "3"]).contains("no option --speed"));
        assert!(fault(&["-x"]).contains("no option -x"));
        assert!(fault(&["leaky"]).contains("'leaky' belongs to no option"));
        assert!(fault(&["--quick=3"]).contains("--quick"));
    }

    #[test]
    fn modes_keep_their_order_and_help_wins() {
        assert_eq!(run(&["--modes", "scoped, leaky"]).modes, [Mode::Scoped, Mode::Leaky]);
        assert_eq!(parse(["--epochs", "2", "-h"]).expect("fine"), Request::Help);
        assert!(help().lines().all(|line| line.len() <= 100));
    }
}
