//! `docs/operations.md`: what the rows were found to do, as a table.

use std::fmt::Write;
use std::fs;

use ndgc::{DType, Device};

use crate::common::{alone, in_child, is_child};
use crate::table::facts::{Facts, Samples, is_recorded, requests, taken};
use crate::table::rows;
use crate::table::sample::Owner;
use crate::table::sources;

/// Compares a document with what it should say, or writes it if `BLESS` is set.
pub(crate) fn compare(path: &str, wanted: &str) {
    let file = sources::root().join(path);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, wanted).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    let differs = found.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
    let hint = "BLESS=1 cargo test --test all table:: writes it anew";
    assert!(differs.is_none(), "{path} says\n{}\nbut it is\n{}\n{hint}", differs.unwrap().0, differs.unwrap().1);
    assert_eq!(found.lines().count(), wanted.lines().count(), "{path} is too short or too long; {hint}");
}

/// Dtypes in words.
fn dtypes(all: &[DType]) -> String {
    let of = |wanted: fn(&DType) -> bool| DType::ALL.iter().copied().filter(wanted).collect::<Vec<_>>();
    let kinds: [(&str, Vec<DType>); 3] =
        [("all", of(|_| true)), ("floats", of(|d| d.is_float())), ("integers", of(|d| !d.is_float()))];
    if let Some((name, _)) = kinds.iter().find(|(_, kind)| kind == all) {
        return (*name).to_owned();
    }
    let absent: Vec<&str> = DType::ALL.iter().filter(|d| !all.contains(d)).map(|d| d.as_str()).collect();
    if absent.len() <= 3 {
        return format!("all but {}", absent.join(", "));
    }
    all.iter().map(|d| d.as_str()).collect::<Vec<_>>().join(", ")
}

const HEAD: &str = "# Operations

Written by `tests/table`, which calls every operation and writes down what happened; `BLESS=1 cargo test --test all
table::` does it anew. An operation that is missing here fails the test.

- **dtypes**: those of the first operand; every other gives a typed error.
- **gradient**: whether a call on variables is recorded. `tests/ops` compares each with central differences.
- **n-d, 0-d, empty**: whether it takes arrays of 2 to 6 axes, of none, and of no elements. Where it does not, the shape
  is no operand of it, and the error says so.
- **heap**: requests to the heap per call after warm-up, on arrays of 2 to 6 axes. The
  reasons are at the end.

Every row is run on the host and on the simulated device, and on CUDA where there is one (or the pretend driver),
with the switch in both positions, and gives the same everywhere.
";

/// Why these rows ask the heap for something in steady state; no other does.
const REASONS: [(&str, &[&str]); 6] = [
    (
        "take, make or give a list of the caller's",
        &["create", "from_vec", "from_iter", "chunk", "split", "split_sizes", "meshgrid", "einsum"],
    ),
    ("keep the memory of somebody else", &["from_shared", "from_dlpack", "from_blob"]),
    ("make a network, which has a list of layers; the row makes one", &["Mlp::forward"]),
    (
        "find on the host which element goes where, or what is equal",
        &[
            "sort",
            "argsort",
            "sort_last_dim",
            "arg_sort_last_dim",
            "searchsorted",
            "topk",
            "median",
            "quantile",
            "unique",
            "nonzero",
            "bincount",
            "masked_select",
            "randperm",
            "scatter",
            "scatter_set",
            "gather_nd",
            "one_hot",
            "encoding::one_hot",
            "all_close",
            "content_equals",
        ],
    ),
    ("read indices on the host before they are used", &["pad"]),
    ("make a mask, and put blocks of rows together", &["attention::flash_attn"]),
];

#[test]
fn the_table_of_operations_is_what_the_operations_do() {
    // How often the heap is asked depends on what a process did before.
    if !is_child() {
        in_child("table::document::the_table_of_operations_is_what_the_operations_do", &[]);
        return;
    }
    let text = alone(|| {
        let samples = Samples::new(&Device::Cpu, Owner::Handles);
        let mut text = String::from(HEAD);
        let (mut family, mut asking) = ("", Vec::new());
        for row in rows::all() {
            if row.family != family {
                family = row.family;
                write!(text, "\n## {family}\n\n| operation | dtypes | gradient | n-d | 0-d | empty | heap |\n")
                    .unwrap();
                text.push_str("|---|---|---|---|---|---|---|\n");
            }
            let (taken, forms) = taken(row, &samples);
            let facts =
                Facts { dtypes: taken, forms, gradient: is_recorded(row, &Device::Cpu), requests: requests(row) };
            if facts.requests > 0. {
                asking.push(row.name);
            }
            let yes = |fact: bool| if fact { "yes" } else { "-" };
            let [many, six, scalar, empty] = facts.forms;
            writeln!(
                text,
                "| `{}` | {} | {} | {} | {} | {} | {:.0} |",
                row.name,
                dtypes(&facts.dtypes),
                yes(facts.gradient),
                yes(many || six),
                yes(scalar),
                yes(empty),
                facts.requests.ceil()
            )
            .unwrap();
        }
        text.push_str(
            "\n## Operations that ask the heap for something\n\nAll others ask for nothing in steady state.\n\n",
        );
        for (reason, names) in REASONS {
            writeln!(
                text,
                "- To {reason}: {}.",
                names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
            )
            .unwrap();
        }
        let explained: Vec<&str> = REASONS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let unexplained: Vec<_> = asking.iter().filter(|name| !explained.contains(*name)).collect();
        assert!(unexplained.is_empty(), "ask the heap for something without a reason: {unexplained:?}");
        let idle: Vec<_> = explained.iter().filter(|name| !asking.contains(*name)).collect();
        assert!(idle.is_empty(), "have a reason and ask for nothing: {idle:?}");
        text
    });
    compare("docs/operations.md", &text);
}
