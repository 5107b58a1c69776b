//! The public names of the crate, read from its sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the methods of the trait that programs import are listed.
const EXTENSION: &str = "extension! {";

/// The folder of the project: that of the tests lies in it.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The Rust files below a folder.
fn files(folder: &str) -> Vec<PathBuf> {
    let (mut found, mut todo) = (Vec::new(), vec![root().join(folder)]);
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// A public function: where it is declared, its name, and the text from its name to its body.
pub(crate) struct Function {
    /// `ops` for `src/nn/ops.rs`.
    pub(crate) module: String,
    pub(crate) name: String,
    pub(crate) signature: String,
    /// Whether it stands in an `impl`.
    pub(crate) is_method: bool,
}

/// Lower-case names at the beginning of a line of a macro's call: those of the functions that it makes.
fn made_by_macro(line: &str) -> Vec<&str> {
    let names = line.split(',').map(str::trim);
    let is_name = |name: &&str| {
        *name == word(name) && name.starts_with(|c: char| c.is_ascii_lowercase()) && !["true", "false"].contains(name)
    };
    names.take_while(is_name).collect()
}

/// Public functions of a file, those that its macros make included.
pub(crate) fn functions(path: &Path) -> Vec<Function> {
    let text = fs::read_to_string(path).unwrap();
    let module = path.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut found = Vec::new();
    let (mut makers, mut maker, mut calling): (Vec<(String, String)>, String, Option<usize>) =
        (Vec::new(), String::new(), None);
    let mut in_extension = false;
    for (at, line) in text.lines().enumerate() {
        let code = line.trim_start();
        in_extension |= line == EXTENSION;
        if let Some(rest) = line.strip_prefix("macro_rules! ") {
            maker = word(rest).to_owned();
        }
        let heads = ["pub fn ", "pub unsafe fn ", if in_extension { "fn " } else { "pub fn " }];
        if let Some(rest) = heads.iter().find_map(|head| code.strip_prefix(head)) {
            let body: String = text.lines().skip(at).take_while(|line| !line.trim_end().ends_with("}")).collect();
            let signature = body.split('{').next().and_then(|head| head.split(" = ext_").next());
            let signature = signature.unwrap_or_default().to_owned();
            if rest.starts_with('$') {
                makers.push((maker.clone(), signature));
            } else {
                let is_method = line.starts_with(' ');
                found.push(Function { module: module.clone(), name: word(rest).to_owned(), signature, is_method });
            }
        }
        if line == "}" {
            calling = None;
        }
        if let Some(maker) = calling
            && line.starts_with("    ")
            && !code.starts_with("//")
        {
            for name in made_by_macro(code) {
                let (module, signature) = (module.clone(), makers[maker].1.clone());
                found.push(Function { module, name: name.to_owned(), signature, is_method: true });
            }
        }
        if let Some((name, rest)) = line.split_once("! {")
            && rest.is_empty()
            && let Some(maker) = makers.iter().position(|(maker, _)| maker == name)
        {
            calling = Some(maker);
        }
    }
    found
}

/// The methods of the table of operations, all forms, from rows such as `Floor [floor floor_ floor_into] whole`.
fn table() -> Vec<String> {
    let text = fs::read_to_string(root().join("crates/kernels/src/operations.rs")).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with("macro_rules! for_each_unary"));
    let rows = lines.filter_map(|line| line.trim_start().split_once(" [")?.1.split_once("] "));
    let names: Vec<String> = rows
        .flat_map(|(names, _)| names.split_whitespace())
        .filter(|name| *name == word(name))
        .map(str::to_owned)
        .collect();
    assert!(names.len() > 100, "the rows of the table look different: {names:?}");
    names
}

/// Files whose functions are no rows: those of optional features, which have tests of their own, and those that run what
/// the caller gives them, or wrap what has a row; and products of experts and attention of packed sequences, for which
/// no sample has lists and blocks, or lengths (`tests/ops/moe.rs`, `tests/ops/attention.rs`).
const ELSEWHERE: [&str; 10] = [
    "factors",
    "fourier",
    "ndarrays",
    "custom",
    "compose",
    "expression",
    "checkpoint",
    "scoped",
    "moe",
    "varlen_attention",
];

/// The public functions that return arrays and need a row, as rows name them.
pub(crate) fn operations() -> BTreeSet<String> {
    // What writes to an array that is there has a row only if it is written by hand.
    let mut found: BTreeSet<String> =
        table().into_iter().filter(|name| !name.ends_with('_') && !name.ends_with("_into")).collect();
    for folder in ["src/ops", "src/nn", "src/promised"] {
        for path in files(folder) {
            for function in functions(&path) {
                let Some((_, answer)) = function.signature.rsplit_once("->") else { continue };
                let mut words = answer.split(|c: char| !c.is_alphanumeric());
                let gives_array =
                    answer.contains("Result<") && words.any(|word| ["Proxy", "Tensor", "Self"].contains(&word));
                // A macro that makes several forms is known by the signature of the first. What maps files has tests of
                // its own.
                if !gives_array
                    || folder == "src/promised" && function.signature.contains("AsRef<Path>")
                    || function.name.ends_with("_into")
                    || ELSEWHERE.contains(&function.module.as_str())
                    || (folder == "src/nn" && function.is_method)
                {
                    continue;
                }
                found.insert(if folder == "src/nn" {
                    format!("{}::{}", function.module, function.name)
                } else {
                    function.name
                });
            }
        }
    }
    found
}

/// Every public name: functions, types, traits, macros, and what macros make.
pub(crate) fn names() -> BTreeSet<String> {
    let mut found = BTreeSet::from_iter(table());
    for path in ["src", "crates/kernels/src"].into_iter().flat_map(files) {
        found.extend(functions(&path).into_iter().map(|function| function.name));
        let mut in_trait = false;
        for line in fs::read_to_string(&path).unwrap().lines() {
            let code = line.trim_start();
            for head in ["pub struct ", "pub enum ", "pub trait ", "pub type ", "pub mod ", "macro_rules! "] {
                found.extend(code.strip_prefix(head).map(|rest| word(rest).to_owned()));
            }
            // Methods of public traits are public without saying so, and what `lib.rs` names is.
            in_trait = line.starts_with("pub trait ") || line == EXTENSION || (in_trait && line != "}");
            found.extend(code.strip_prefix("fn ").filter(|_| in_trait).map(|rest| word(rest).to_owned()));
            if path.ends_with("src/lib.rs") {
                found.extend(code.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned));
            }
        }
    }
    found
}

/// Public names with those of variants, of fields, and of variables of the environment.
pub(crate) fn declared() -> BTreeSet<String> {
    let mut found = names();
    for path in ["src", "crates/kernels/src"].into_iter().flat_map(files) {
        let text = fs::read_to_string(&path).unwrap();
        let mut in_enum = false;
        for line in text.lines() {
            let code = line.trim_start();
            in_enum = code.starts_with("pub enum ") || (in_enum && !line.starts_with('}'));
            let is_variant = in_enum && code.starts_with(|c: char| c.is_ascii_uppercase());
            found.extend(is_variant.then(|| word(code).to_owned()));
            let field = code.strip_prefix("pub ").and_then(|rest| rest.split_once(": ")).map(|(name, _)| name);
            found.extend(field.filter(|name| *name == word(name)).map(str::to_owned));
            let quoted = code.split('"').skip(1).step_by(2).filter(|text| text.starts_with("NDGC_"));
            found.extend(quoted.map(|name| word(name).to_owned()));
        }
    }
    found
}

/// The methods of the trait that programs import.
pub(crate) fn extension() -> BTreeSet<String> {
    let file = functions(&root().join("src/ops/extension.rs"));
    file.into_iter().map(|function| function.name).collect()
}

/// The names of all tests.
pub(crate) fn tests() -> BTreeSet<String> {
    let functions = |path: PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().zip(text.lines().skip(1)).filter(|(above, _)| above.starts_with("#[test]"));
        lines.filter_map(|(_, line)| line.strip_prefix("fn ").map(|rest| word(rest).to_owned())).collect::<Vec<_>>()
    };
    files("tests").into_iter().flat_map(functions).collect()
}
