//! The gradient of every operation against central differences, in f64, and in halves to their accuracy. The list of
//! operations is read from the sources, so that a new one without a case fails here.

use std::collections::BTreeSet;

use ndgc::{DType, Error, Result, Tensor, Var};

use crate::ops::gradcheck::{Case, Loss, check_all, loss};
use crate::ops::support::{each, put};
use crate::ops::{gradients, of_one, of_two};

/// The table's, and the lists of `gradients.rs`.
fn lists() -> [Vec<Case>; 9] {
    [
        of_one::gradients(),
        of_two::gradients(),
        gradients::functions(),
        gradients::arithmetic(),
        gradients::reductions(),
        gradients::views(),
        gradients::indexing(),
        gradients::products(),
        gradients::compositions(),
    ]
}

/// The gradients of a case, as doubles, with operands of a dtype at points that it holds.
fn gradients_in(case: &Case, points: &[Tensor], dtype: DType) -> Result<Vec<Vec<f64>>> {
    let variables: Vec<Var> = points.iter().map(|x| Var::from_tensor(&x.to_dtype(dtype)?)).collect::<Result<_>>()?;
    let operands: Vec<Tensor> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
    let grads = loss(&(case.run)(&operands)?, Loss::Weighted)?.backward()?;
    let of = |variable: &Var| {
        let grad = grads.get(variable).expect("every operand has a gradient");
        assert_eq!(grad.dtype(), dtype, "{} ({}): a gradient has the dtype of its variable", case.name, case.how);
        grad.to_dtype(DType::F64)?.to_vec()
    };
    variables.iter().map(of).collect()
}

#[test]
fn gradients_of_halves_are_those_of_doubles_to_their_accuracy() {
    let cases: Vec<Case> = lists().into_iter().flatten().collect();
    each(|device| {
        for (dtype, tolerance) in [(DType::F16, 0.02), (DType::BF16, 0.15)] {
            let mut compared = 0;
            for case in &cases {
                let what = format!("{} ({}) of {dtype}", case.name, case.how);
                let round = |host| put(host, device).to_dtype(dtype).and_then(|x| x.to_dtype(DType::F64)).unwrap();
                let points: Vec<Tensor> = case.inputs.iter().map(round).collect();
                let got = match gradients_in(case, &points, dtype) {
                    Ok(got) => got,
                    // The case brings operands of another dtype.
                    Err(Error::DTypeMismatch { .. }) => continue,
                    Err(error) => panic!("{what}: {error}"),
                };
                let want = gradients_in(case, &points, DType::F64).unwrap();
                for (got, want) in got.iter().zip(&want) {
                    let far = |(g, w): (&f64, &f64)| (g - w).abs() > tolerance * (1. + w.abs()) || g.is_nan();
                    assert!(!got.iter().zip(want).any(far), "{what}:\n{got:?}\nin f64\n{want:?}");
                }
                compared += 1;
            }
            assert!(compared > cases.len() * 3 / 4, "{compared} of {} compared", cases.len());
        }
    });
}

#[test]
fn gradients_of_functions_match_differences() {
    check_all(gradients::functions());
}

#[test]
fn gradients_of_arithmetic_match_differences_also_when_broadcasting() {
    check_all(gradients::arithmetic());
}

#[test]
fn gradients_of_reductions_match_differences() {
    check_all(gradients::reductions());
}

#[test]
fn gradients_of_views_and_joins_match_differences() {
    check_all(gradients::views());
}

#[test]
fn gradients_of_indexing_match_differences() {
    check_all(gradients::indexing());
}

#[test]
fn gradients_of_products_match_differences() {
    check_all(gradients::products());
}

#[test]
fn gradients_of_compositions_match_differences() {
    check_all(gradients::compositions());
}

#[test]
fn every_differentiable_operation_in_the_sources_has_a_case() {
    let others = [
        crate::ops::conv::gradients(),
        crate::ops::pool::gradients(),
        crate::ops::scan::gradients(),
        crate::ops::special::gradients(),
        crate::ops::gradcheck_more::functions(),
    ];
    let cases = lists().into_iter().chain(others).flatten();
    let covered: BTreeSet<String> = cases.map(|case| case.name.to_owned()).collect();
    let found = differentiable();
    for known in ["add", "broadcast_pow", "exp", "linear", "max_all", "cat", "where_cond", "reshape", "to_device"] {
        assert!(found.contains(known), "the reading of the sources misses {known}: {found:?}");
    }
    // Between two devices, so it is not a case of the table: `autograd` checks it. And a copy outside the graph.
    let elsewhere: BTreeSet<String> = ["to_device", "try_detach"].map(str::to_owned).into();
    let missing: Vec<&String> =
        found.iter().filter(|name| !covered.contains(*name) && !elsewhere.contains(*name)).collect();
    assert!(missing.is_empty(), "without a case: {missing:?}");
}

/// The methods of the table of operations that make an array, from rows such as `Floor [floor floor_ floor_into]
/// whole`.
fn of_table() -> Vec<String> {
    let text = include_str!("../../crates/kernels/src/operations.rs");
    let rows = text.lines().skip_while(|line| !line.starts_with("macro_rules! for_each_unary"));
    let names = rows.filter_map(|line| line.trim_start().split_once(" [")?.1.split_once("] "));
    let names = names.flat_map(|(names, _)| names.split_whitespace());
    let is_method = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    names.filter(is_method).filter(|name| !name.ends_with('_') && !name.ends_with("_into")).map(str::to_owned).collect()
}

/// A function in a source file: its name, whether it is public, its text up to the next one.
struct Function {
    name: String,
    public: bool,
    text: String,
}

fn functions_of(source: &str) -> Vec<Function> {
    let mut all: Vec<Function> = Vec::new();
    for line in source.lines() {
        let code = line.trim_start();
        let rest = ["pub fn ", "pub(crate) fn ", "fn "].iter().find_map(|head| code.strip_prefix(head));
        if let Some(rest) = rest {
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').next().unwrap_or_default();
            all.push(Function { name: name.to_owned(), public: code.starts_with("pub fn"), text: String::new() });
        }
        if let Some(function) = all.last_mut() {
            function.text += line;
            function.text.push('\n');
        }
    }
    all
}

/// Whether the text calls a function by name: not a method, nor one of the kernels' crate.
fn calls(text: &str, name: &str) -> bool {
    ["(", "::<", "<"].iter().any(|next| {
        let call = format!("{name}{next}");
        text.match_indices(&call).any(|(at, _)| {
            let before = text[..at].chars().next_back().unwrap_or(' ');
            let other = ["fn ", "few::"].iter().any(|head| text[..at].ends_with(head));
            !(before.is_alphanumeric() || "_.".contains(before) || other)
        })
    })
}

/// What lies in a folder.
fn entries(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The public methods in `src/ops` that reach `record`, by themselves or through private functions.
fn differentiable() -> BTreeSet<String> {
    let root = format!("{}/../src/ops", env!("CARGO_MANIFEST_DIR"));
    let folders = entries(root.as_ref()).into_iter().filter(|path| path.is_dir());
    let files = entries(root.as_ref()).into_iter().chain(folders.flat_map(|folder| entries(&folder)));
    let files = files.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap());
    let sources: Vec<String> = files.map(|text| without_comments(&text)).collect();
    let mut recording: BTreeSet<String> = ["record".to_owned()].into();
    loop {
        let before = recording.len();
        for function in sources.iter().flat_map(|source| functions_of(source)) {
            if !function.public
                && !function.name.starts_with('$')
                && recording.iter().any(|name| calls(&function.text, name))
            {
                recording.insert(function.name);
            }
        }
        if recording.len() == before {
            break;
        }
    }
    let mut found = BTreeSet::from_iter(of_table());
    for source in &sources {
        let functions = functions_of(source);
        for function in functions.iter().filter(|f| f.public && recording.iter().any(|name| calls(&f.text, name))) {
            match function.name.starts_with('$') {
                false => drop(found.insert(function.name.clone())),
                true => found.extend(made_by_macro(source, &function.name)),
            }
        }
    }
    found
}

/// The names that a macro's invocation gives to the method `$variable`: `$name:ident, $broadcast:ident` in the
/// pattern says at which place they stand.
fn made_by_macro(source: &str, variable: &str) -> Vec<String> {
    let Some(pattern) = source.lines().find(|line| line.contains(&format!("{variable}:ident"))) else {
        return Vec::new();
    };
    let place = pattern.split(',').position(|part| part.contains(&format!("{variable}:ident"))).unwrap_or(0);
    let before = &source[..source.find(pattern).unwrap_or(0)];
    let name = before.rsplit("macro_rules! ").next().and_then(|rest| rest.split_whitespace().next()).unwrap_or("");
    let Some(block) = source.split(&format!("\n{name}! {{\n")).nth(1) else { return Vec::new() };
    let lines = block.lines().take_while(|line| *line != "}").filter(|line| line.ends_with(';'));
    lines.filter_map(|line| line.split(',').nth(place)).map(|name| name.trim().to_owned()).collect()
}

fn without_comments(source: &str) -> String {
    source.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}
