//! `docs/names.md` and `docs/djl.md`: the names of other libraries and ours, from `names.txt`, `djl.txt` and
//! `djl_around.txt`; `docs/nd4j.md`, written by hand, with a row for all that `nd4j.txt` lists. A name that the sources
//! do not have fails, and so does one that is said to be missing and is there.

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
         by `tests/table` from lists; a name that does not exist fails.\n\nA loop that drops its arrays without closing \
         them, and grows, stops growing with one line, `gc::on()`; [the guide](guide.md#who-owns-an-array) has the other ways.\n",
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

/// The rows of the tables of `docs/nd4j.md`: its part, and the line; those of ND4J's guides begin with a number.
fn rows(document: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut part = "";
    document.lines().filter_map(move |line| {
        part = line.strip_prefix("## ").unwrap_or(part);
        let is_row = line.starts_with('|') && !["|-", "| ND4J", "| no. "].iter().any(|head| line.starts_with(head));
        is_row.then_some((part, line))
    })
}

/// Whether a part goes through one of ND4J's guides.
fn is_guide(part: &str) -> bool {
    part.starts_with("The guide on ")
}

fn told_to_users_of_nd4j() -> String {
    fs::read_to_string(sources::root().join("docs/nd4j.md")).unwrap()
}

#[test]
fn what_users_of_nd4j_are_told_exists() {
    let document = told_to_users_of_nd4j();
    let (declared, tests) = (sources::declared(), sources::tests());
    let (mut wrong, mut counts) = (Vec::new(), (0, 0, 0));
    for (part, line) in rows(&document) {
        // ND4J's column is its own, and before it stands a number in what goes through its guides.
        let cells: Vec<&str> = line.split(" | ").skip(usize::from(is_guide(part))).collect();
        if is_guide(part) {
            let last = cells[cells.len() - 1].trim_end_matches('|').trim();
            let (ours, shown) = (quoted(cells[1]).count(), quoted(last).chain(last.strip_prefix("the same")).count());
            counts.2 += 1;
            wrong.extend((cells.len() != 3).then(|| format!("not three cells: {line}")));
            wrong.extend((cells[1].trim().is_empty() || ours > 0 && shown == 0).then(|| format!("not shown: {line}")));
            wrong.extend(quoted(last).filter(|test| !tests.contains(*test)).map(|test| format!("no test {test}")));
        }
        let ours = if is_guide(part) || part == "Calls" { &cells[1..2] } else { &cells[cells.len() - 1..] };
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
    assert!(counts.0 > 240 && counts.1 > 20 && counts.2 > 100, "the tables look different: {counts:?}");
}

/// The list is made from the guides and not from the document, so that no row goes unnoticed, or says another thing.
#[test]
fn every_sentence_of_nd4js_guides_has_its_row() {
    let (document, mut wrong, mut told) = (told_to_users_of_nd4j(), Vec::new(), BTreeMap::new());
    for (_, line) in rows(&document).filter(|(part, _)| is_guide(part)) {
        let mut cells = line.trim_start_matches("| ").split(" | ");
        let (number, says) = (cells.next().unwrap(), cells.next().unwrap_or_default());
        wrong.extend(told.insert(number, says).map(|_| format!("two rows are {number}")));
    }
    let mut counts = BTreeMap::new();
    for fields in lines(include_str!("nd4j.txt")) {
        let (number, words) = (fields[0], &fields[1..]);
        let (letter, at) = number.split_at(1);
        let count: &mut usize = counts.entry(letter).or_default();
        *count += 1;
        assert!(at == count.to_string() && !words.is_empty(), "the list goes on with {number}");
        match told.remove(number) {
            Some(says) => {
                let missing = words.iter().filter(|word| !says.contains(**word));
                wrong.extend(missing.map(|word| format!("{number} is not about {word}: {says}")));
            }
            None => wrong.push(format!("no row {number}: {}", words.join(", "))),
        }
    }
    wrong.extend(told.keys().map(|number| format!("{number} is in no guide")));
    assert!(wrong.is_empty(), "{wrong:#?}");
    let first = [("a", 4), ("b", 8), ("c", 3), ("d", 4), ("e", 8), ("f", 9), ("g", 2), ("h", 7), ("i", 3), ("j", 3)];
    let others = [("k", 8), ("l", 5), ("m", 5), ("n", 8), ("o", 5), ("p", 7), ("q", 3), ("r", 28)];
    assert_eq!(counts, first.into_iter().chain(others).collect::<BTreeMap<_, _>>(), "sentences of the guides");
}
