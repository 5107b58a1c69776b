//! The shape of the sources: layers and circles (`tidy/imports.rs`), homes of unsafe code, what is said beside it and
//! beside atomics (`tidy/remarks.rs`), lengths of functions and files, names in design.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod imports;
mod remarks;

/// The layers of each crate, lowest first. A file may use its own layer and those before it.
const LAYERS: [(&str, &[&str]); 2] = [
    ("src", &["base", "device", "memory", "array", "ops", "io", "quantized", "nn", "promised", "train"]),
    ("crates/kernels/src", &["base", "operations", "span", "shared", "view", "axiswise", "window", "kernel", "cpu"]),
];
const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 800;
const UNSAFE_FILES_MAX: usize = 12;
/// As of code (rustfmt.toml), which rustfmt does not ask of comments.
const COMMENT_COLUMNS_MAX: usize = 120;

/// The folder of the project: that of the tests lies in it.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder around the tests")
}

fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![root().join(folder)];
    while let Some(path) = todo.pop() {
        // What was built is nobody's source.
        if path.is_dir() && !path.ends_with("target") {
            todo.extend(fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path()));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("inside").display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a source file")
}

/// A file of the library as design.md names it: `memory/gc.rs`, `kernels/span.rs`.
fn in_design(path: &Path) -> String {
    let name = relative(path);
    match name.strip_prefix("crates/kernels/src/") {
        Some(rest) => format!("kernels/{rest}"),
        None => name.strip_prefix("src/").expect("a file of the library").to_owned(),
    }
}

/// All files of the library.
fn library() -> Vec<PathBuf> {
    LAYERS.iter().flat_map(|(folder, _)| sources(folder)).collect()
}

/// The program of the tests beside the code ends with `array` (`src/lib.rs`): above it none would ever run.
#[test]
fn no_test_stands_beside_code_that_its_program_leaves_out() {
    let lower = ["src/base/", "src/device/", "src/memory/", "src/array/"];
    for path in sources("src").into_iter().filter(|path| !lower.iter().any(|layer| relative(path).starts_with(layer))) {
        let text = read(&path);
        let found = ["#[test]", "cfg(test)", "cfg(all(test"].into_iter().find(|word| text.contains(word));
        assert!(found.is_none(), "{}: a test here never runs", relative(&path));
    }
}

#[test]
fn networks_and_files_use_what_users_can_use() {
    for path in ["src/nn", "src/io", "src/train"].into_iter().flat_map(sources) {
        let text = read(&path);
        for hidden in ["crate::device", "crate::memory", "crate::array", "unsafe {"] {
            assert!(!text.contains(hidden), "{} has {hidden}", relative(&path));
        }
    }
}

/// Files with unsafe code, without comments, tests, and the words in names and attributes.
fn with_unsafe() -> BTreeSet<String> {
    library()
        .iter()
        .filter(|path| !relative(path).contains("tests"))
        .filter(|path| read(path).lines().any(remarks::is_unsafe))
        .map(|path| in_design(path))
        .collect()
}

#[test]
fn unsafe_code_lives_where_the_design_says() {
    let design = read(&root().join("design.md"));
    let section =
        design.split("## Where unsafe lives").nth(1).expect("the section").split("\n## ").next().expect("text");
    let listed: BTreeSet<String> =
        section.split('`').filter(|word| word.ends_with(".rs") && word.contains('/')).map(str::to_owned).collect();
    let found = with_unsafe();
    assert_eq!(found, listed, "left: found in the sources; right: listed in design.md");
    assert!(found.len() <= UNSAFE_FILES_MAX, "{} files with unsafe code", found.len());
}

/// F4 and F14 of design.md, "What attack found": what safety may rest on is asked in every build.
#[test]
fn nothing_below_the_operations_is_asserted_in_some_builds_alone() {
    for path in ["src/memory", "src/device", "crates/kernels/src"].into_iter().flat_map(sources) {
        let asserts = ["debug_assert!(", "debug_assert_eq!(", "debug_assert_ne!("];
        assert!(!asserts.iter().any(|macro_| read(&path).contains(macro_)), "{}", relative(&path));
    }
}

#[test]
fn nothing_that_was_built_is_kept() {
    let files = Command::new("git").args(["-C", &root().display().to_string(), "ls-files"]).output();
    // A copy without history has nothing to ask.
    let Some(files) = files.ok().filter(|files| files.status.success()) else { return };
    let names = String::from_utf8(files.stdout).expect("names");
    assert!(!names.lines().any(|name| name.split('/').any(|part| part == "target")), "{names}");
}

#[test]
fn what_is_launched_was_pinned_or_is_fresh() {
    // The one file makes operands of pinned arrays, of fresh results, and of arrays that were taken over.
    for path in ["src/array", "src/ops", "src/promised", "src/io", "src/nn"].into_iter().flat_map(sources) {
        let is_exec = relative(&path) == "src/ops/call/exec.rs";
        assert!(is_exec || !read(&path).contains(" View::new("), "{} makes an operand", relative(&path));
    }
}

/// Whether a text names an invariant.
fn names(text: &str, number: usize) -> bool {
    let name = format!("nvariant I{number} (design.md)");
    text.contains(&name)
}

#[test]
fn each_invariant_is_named_at_its_guard_and_at_a_test() {
    let design = read(&root().join("design.md"));
    let count = (1..).take_while(|number| design.contains(&format!("\n- I{number} "))).count();
    assert!(count >= 13, "{count} invariants in design.md");
    let is_test = |path: &Path| relative(path).contains("tests");
    let (tests, guards): (Vec<_>, Vec<_>) =
        ["src", "tests"].into_iter().flat_map(sources).partition(|path| is_test(path));
    for (what, files) in [("guard", guards), ("test", tests)] {
        let texts: Vec<String> = files.iter().map(|path| read(path)).collect();
        let missing: Vec<usize> = (1..=count).filter(|&n| !texts.iter().any(|text| names(text, n))).collect();
        assert!(missing.is_empty(), "without a {what}: {missing:?}");
    }
}

/// Those of `tests/faults/table.txt`, which `.ci/faults` plants and runs.
#[test]
fn each_fault_of_the_table_has_a_place_and_each_invariant_a_fault() {
    let table = read(&root().join("tests/faults/table.txt"));
    let (mut text, mut after) = (String::new(), "");
    for line in table.lines() {
        match line.split_once(' ') {
            Some(("file", file)) => (text, after) = (read(&root().join(file)), ""),
            Some(("after", found)) => after = found,
            Some(("from", piece)) => {
                let place = text.find(after).unwrap_or_else(|| panic!("{after} is not there"));
                let count = text[place..].matches(piece).count();
                assert!(count == 1 || count > 1 && !after.is_empty(), "{count} times {piece}");
            }
            _ => {}
        }
    }
    let missing: Vec<u32> = (1..=15).filter(|n| !table.contains(&format!("\nI{n}: "))).collect();
    assert!(missing.is_empty(), "invariants without a planted fault: {missing:?}");
}

#[test]
fn functions_fit_a_screen_and_files_a_sitting() {
    let mut wrong = Vec::new();
    for path in ["src", "crates", "tests", "examples", "benches"].into_iter().flat_map(sources) {
        let (name, text) = (relative(&path), read(&path));
        let lines: Vec<&str> = text.lines().collect();
        if lines.len() > FILE_LINES_MAX {
            wrong.push(format!("{name} has {} lines", lines.len()));
        }
        for (start, line) in lines.iter().enumerate() {
            let head = line.trim_start();
            let is_fn = ["fn ", "pub fn ", "pub(crate) fn ", "pub(super) fn ", "pub(crate) unsafe fn ", "unsafe fn "]
                .iter()
                .any(|prefix| head.starts_with(prefix));
            if !is_fn || line.ends_with([';', '}']) {
                continue;
            }
            let close = format!("{}}}", " ".repeat(line.len() - head.len()));
            if let Some(length) = lines[start..].iter().position(|l| *l == close)
                && length >= FUNCTION_LINES_MAX
            {
                wrong.push(format!("{name}:{}: {} lines: {head}", start + 1, length + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_design_names_files_that_exist() {
    let root = root();
    let design = read(&root.join("design.md"));
    for word in design.split('`').filter(|word| word.ends_with(".rs") && word.contains('/') && !word.contains(' ')) {
        let in_crate = word.strip_prefix("kernels/").map(|rest| format!("crates/kernels/src/{rest}"));
        let names = [Some(word.to_owned()), Some(format!("src/{word}")), in_crate];
        assert!(names.iter().flatten().any(|name| root.join(name).exists()), "design.md names {word}");
    }
}

#[test]
fn every_file_of_the_library_says_what_it_is() {
    for path in library() {
        let text = read(&path);
        assert!(text.starts_with("//!") || text.starts_with("#![doc"), "{} begins without docs", relative(&path));
    }
}

/// By which the pages of types with many methods are read.
#[test]
fn every_block_of_public_methods_has_a_heading() {
    for path in library() {
        let text = read(&path);
        let heads = ["\nimpl Proxy {", "\nimpl NdManager {", "\nimpl Device {"];
        for (at, _) in heads.iter().flat_map(|head| text.match_indices(head)) {
            let is_public = text[at..].split("\n}").next().is_some_and(|block| block.contains("\n    pub fn "));
            let mut docs = text[..at].lines().rev().take_while(|line| line.starts_with("///") || line.starts_with('#'));
            let line = text[..at].lines().count() + 1;
            assert!(!is_public || docs.any(|line| line.starts_with("/// # ")), "{}:{line}", relative(&path));
        }
    }
}

#[test]
fn comments_are_as_narrow_as_code() {
    for path in library() {
        for (line, text) in read(&path).lines().enumerate() {
            // A row of a table cannot be broken.
            let is_prose = text.trim_start().starts_with("//") && !text.contains("| ");
            let columns = text.chars().count();
            assert!(!is_prose || columns <= COMMENT_COLUMNS_MAX, "{}:{}: {columns}", relative(&path), line + 1);
        }
    }
}
