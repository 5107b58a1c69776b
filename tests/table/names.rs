//! `docs/names.md` and `docs/djl.md`: the names of other libraries and ours, from `names.txt`, `djl.txt` and
//! `djl_around.txt`; `docs/nd4j.md`, written by hand. A name that the sources do not have fails, and so does one that
//! is said to be missing and is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use crate::table::document::compare;
use crate::table::sources;

/// Ours, in words; what is wrong with a name is added to `wrong`.
fn checked(names: &str, public: &BTreeSet<String>, wrong: &mut Vec<String>) -> Vec<String> {
    let (mut shown, extension) = (Vec::new(), sources::extension());
    for name in names.split_whitespace() {
        let missing = name.strip_prefix('!');
        let name = missing.unwrap_or(name);
        match (missing, name.split("::").all(|word| public.contains(word))) {
            (None, true) if extension.contains(name) => shown.push(format!("`TensorExt::{name}`")),
            (None, true) => shown.push(format!("`{name}`")),
            (Some(_), false) => shown.push(format!("not `{name}`")),
            (None, false) => wrong.push(format!("{name} does not exist")),
            (Some(_), true) => wrong.push(format!("{name} exists")),
        }
    }
    shown
}

/// The lines of a list, without comments, split at bars.
fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('|').map(str::trim).collect())
}

#[test]
fn the_naming_table_has_names_that_exist() {
    let (public, mut wrong) = (sources::names(), Vec::new());
    let mut text = String::from(
        "# Names\n\nThe operations of the naming table: **P** has the name, the order of arguments, the result dtype and the \
         errors of candle; **N** is new for its users. Written by `tests/table` from a list; a name that does not exist \
         fails.\n\n| operation | ours | |\n|---|---|---|\n",
    );
    let (mut count, mut kinds) = (0, BTreeMap::new());
    for fields in lines(include_str!("names.txt")) {
        let parts = fields[1].split(',').map(|part| {
            let (kind, names) = part.trim().split_once(' ').unwrap();
            assert!(["P", "N"].contains(&kind), "{part}");
            for name in names.split_whitespace() {
                assert_eq!(*kinds.entry(name).or_insert(kind), kind, "{name} is in candle, or it is not");
            }
            format!("{} **{kind}**", checked(names, &public, &mut wrong).join(" "))
        });
        let parts: Vec<String> = parts.collect();
        writeln!(text, "| {} | {} | {} |", fields[0], parts.join(", "), fields.get(2).unwrap_or(&"")).unwrap();
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(count, 142, "rows of the naming table");
    compare("docs/names.md", &text);
}

#[test]
fn every_method_of_djl_has_a_name_or_a_reason() {
    let (public, mut wrong) = (sources::names(), Vec::new());
    let mut text = String::from(
        "# DJL's NDArray\n\nIts 290 methods in 19 groups, and what does the same here; after them the classes around it. Written \
         by `tests/table` from lists; a name that does not exist fails.\n",
    );
    let (mut groups, mut methods) = (0, 0);
    for fields in lines(include_str!("djl.txt")) {
        if fields.len() == 1 {
            let (letter, title) = fields[0].split_once(' ').unwrap();
            writeln!(text, "\n## {letter}: {title}\n\n| DJL | overloads | ours | |\n|---|---|---|---|").unwrap();
            groups += 1;
            continue;
        }
        let (name, overloads) = fields[0].split_once(" x").unwrap_or((fields[0], "1"));
        let why = fields.get(2).copied().unwrap_or_default();
        let ours = checked(fields[1], &public, &mut wrong);
        assert!(!ours.is_empty() || !why.is_empty(), "{name} has neither a name nor a reason");
        writeln!(text, "| `{name}` | {overloads} | {} | {why} |", ours.join(", ")).unwrap();
        methods += overloads.parse::<usize>().unwrap();
    }
    assert_eq!((groups, methods), (19, 290));
    text += "\n# Around it\n";
    for fields in lines(include_str!("djl_around.txt")) {
        let [methods, ours, why] = fields[..] else {
            writeln!(text, "\n## {}\n\n| DJL | ours | |\n|---|---|---|", fields[0]).unwrap();
            continue;
        };
        let ours = checked(ours, &public, &mut wrong);
        assert!(!ours.is_empty() || !why.is_empty(), "{methods} has neither a name nor a reason");
        let methods: Vec<String> = methods.split(", ").map(|method| format!("`{method}`")).collect();
        writeln!(text, "| {} | {} | {why} |", methods.join(", "), ours.join(", ")).unwrap();
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    compare("docs/djl.md", &text);
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn what_users_of_nd4j_are_told_exists() {
    let document = fs::read_to_string(sources::root().join("docs/nd4j.md")).unwrap();
    let (declared, tests) = (sources::declared(), sources::tests());
    let (mut wrong, mut counts) = (Vec::new(), (0, 0, 0));
    let mut part = "";
    for line in document.lines() {
        part = line.strip_prefix("## ").unwrap_or(part);
        let cells: Vec<&str> = line.split(" | ").collect();
        // ND4J's column is its own, and so are the heads of the tables.
        if !line.starts_with('|') || line.starts_with("|-") || line.starts_with("| ND4J") {
            continue;
        }
        let is_guide = part == "The guide on memory";
        if is_guide {
            let last = cells[cells.len() - 1].trim_end_matches('|').trim();
            let (ours, shown) = (quoted(cells[1]).count(), quoted(last).chain(last.strip_prefix("the same")).count());
            counts.2 += 1;
            wrong.extend((cells.len() != 3).then(|| format!("not three cells: {line}")));
            wrong.extend((cells[1].trim().is_empty() || ours > 0 && shown == 0).then(|| format!("not shown: {line}")));
            wrong.extend(quoted(last).filter(|test| !tests.contains(*test)).map(|test| format!("no test {test}")));
        }
        let ours = if is_guide || part == "Calls" { &cells[1..2] } else { &cells[cells.len() - 1..] };
        for name in ours.iter().flat_map(|cell| quoted(cell)) {
            if part == "What ND4J does wrong" {
                counts.1 += 1;
                wrong.extend((!tests.contains(name)).then(|| format!("no test {name}")));
            } else {
                counts.0 += 1;
                let words = name.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
                wrong.extend(words.filter(|word| !declared.contains(*word)).map(|word| format!("{word} of {name}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(counts.0 > 80 && counts.1 > 20 && counts.2 > 40, "the tables look different: {counts:?}");
}
