//! `docs/names.md` and `docs/djl.md`: the names of other libraries and ours, from `names.txt` and `djl.txt`. A name that the
//! sources do not have fails, and so does one that is said to be missing and is there.

use std::fmt::Write;

use crate::table::document::compare;
use crate::table::sources;

/// Ours, in words; what is wrong with a name is added to `wrong`.
fn checked(names: &str, public: &std::collections::BTreeSet<String>, wrong: &mut Vec<String>) -> Vec<String> {
    let mut shown = Vec::new();
    for name in names.split_whitespace() {
        let missing = name.strip_prefix('!');
        let name = missing.unwrap_or(name);
        match (missing, public.contains(name)) {
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
    let mut count = 0;
    for fields in lines(include_str!("names.txt")) {
        let parts = fields[1].split(',').map(|part| {
            let (kind, names) = part.trim().split_once(' ').unwrap();
            assert!(["P", "N"].contains(&kind), "{part}");
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
        "# DJL's NDArray\n\nIts 290 methods in 19 groups, and what does the same here. Written by `tests/table` from a list; a \
         name that does not exist fails.\n",
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
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!((groups, methods), (19, 290));
    compare("docs/djl.md", &text);
}
