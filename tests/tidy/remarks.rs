//! What is said beside unsafe code and beside atomics: why it is sound, and what an ordering is there for.

use super::{in_design, library, read, relative};

/// The files of the library without their tests, each as its name and its lines.
fn files() -> Vec<(String, Vec<String>)> {
    let sources = library().into_iter().filter(|path| !relative(path).contains("tests"));
    let lines = |text: String| text.lines().take_while(|line| *line != "mod tests {").map(str::to_owned).collect();
    sources.map(|path| (in_design(&path), lines(read(&path)))).collect()
}

fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

fn is_remark(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn remarks(lines: &[String]) -> String {
    lines.iter().filter_map(|line| line.split_once("//")).map(|(_, text)| format!("{text}\n")).collect()
}

/// What is said of a line: on it, and in the comments that end within so many lines before it, each from its beginning;
/// not across an empty line.
fn said_of(lines: &[String], at: usize, before: usize) -> String {
    let mut first = at;
    while first > 0 && !lines[first - 1].is_empty() && (at - first < before || is_remark(&lines[first])) {
        if at - first >= before && !is_remark(&lines[first - 1]) {
            break;
        }
        first -= 1;
    }
    remarks(&lines[first..=at])
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn is_fn(line: &str) -> bool {
    const BEFORE: [&str; 7] = ["pub", "pub(crate)", "pub(super)", "const", "unsafe", "extern", "\"C\""];
    let words = code(line).split_whitespace().find(|word| !BEFORE.contains(word));
    words == Some("fn")
}

/// What is said in the function around a line, and above that.
fn said_around(lines: &[String], at: usize) -> String {
    let begins = |i: &usize| is_fn(&lines[*i]) && (*i == at || indent(&lines[*i]) < indent(&lines[at]));
    let Some(start) = (0..=at).rev().find(begins) else { return String::new() };
    let close = format!("{}}}", " ".repeat(indent(&lines[start])));
    let end = (start..lines.len()).find(|&i| lines[i] == close).unwrap_or(start);
    let is_above = |line: &str| is_remark(line) || line.trim_start().starts_with("#[");
    let above = lines[..start].iter().rev().take_while(|line| is_above(line)).count();
    remarks(&lines[start - above..=end])
}

/// What is said once for a whole block: in the header of the file, or as the first thing in an `impl`.
fn said_for_all(lines: &[String], at: usize) -> bool {
    const MARK: &str = "Relaxed throughout";
    let header = lines.iter().take_while(|line| line.starts_with("//!")).any(|line| line.contains(MARK));
    let block = (0..at).rev().take_while(|&i| lines[i] != "}").any(|i| lines[i].contains(MARK));
    header || block
}

/// The orderings in a line, in their order.
fn orderings(line: &str) -> Vec<&str> {
    let names = code(line).split("Ordering::").skip(1).map(|rest| rest.split(|c: char| !c.is_alphabetic()).next());
    names.flatten().filter(|name| ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"].contains(name)).collect()
}

/// Whether a remark names an ordering, and says with what it goes together.
fn names_partner(said: &str, ordering: &str) -> bool {
    // "as in" another place is where the partner stands.
    let joins = ["pairs with", "partner", ": as ", ": see "];
    let halves: &[&str] = if ordering == "AcqRel" { &["AcqRel", "Release", "Acquire"] } else { &[] };
    (said.contains(ordering) || halves.iter().any(|half| said.contains(half)))
        && joins.iter().any(|join| said.replace('\n', " ").contains(join))
}

#[test]
fn an_ordering_names_its_partner_and_a_relaxed_one_its_reason() {
    let mut wrong = Vec::new();
    for (name, lines) in files() {
        for (i, line) in lines.iter().enumerate() {
            // The first of two is that of success; a failed exchange only reads the number to try again with.
            let Some(&ordering) = orderings(line).first() else { continue };
            let said = match ordering {
                "Relaxed" => said_around(&lines, i).contains("Relaxed") || said_for_all(&lines, i),
                strong => names_partner(&said_of(&lines, i, 4), strong),
            };
            if !said {
                wrong.push(format!("{name}:{}: {}", i + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "nothing says what these go with, or why Relaxed is enough:\n{}", wrong.join("\n"));
}

/// Whether unsafe code begins here: a block, or a promise about a type.
fn is_site(line: &str) -> bool {
    ["unsafe {", "unsafe impl"].iter().any(|site| code(line).contains(site))
}

/// Whether an unsafe function or trait is declared here, which says what it asks for.
fn is_unsafe_item(line: &str) -> bool {
    let mut words = code(line).split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "const");
    words.next() == Some("unsafe") && matches!(words.next(), Some("fn" | "extern" | "trait"))
}

/// Whether a line has unsafe code.
pub(super) fn is_unsafe(line: &str) -> bool {
    is_site(line) || is_unsafe_item(line)
}

#[test]
fn unsafe_code_is_allowed_once_a_file_and_argued_at_each_site() {
    let mut wrong = Vec::new();
    for (name, lines) in files() {
        let allowed: Vec<&String> =
            lines.iter().filter(|line| code(line).contains("allow(") && line.contains("unsafe_code")).collect();
        let is_unsafe = lines.iter().any(|line| is_unsafe(line));
        let once = ["#![allow(unsafe_code)]"];
        if allowed != if is_unsafe { &once[..] } else { &[] } {
            wrong.push(format!("{name}: {allowed:?}"));
        }
        let header: String = lines.iter().take_while(|line| line.starts_with("//!")).map(String::as_str).collect();
        if is_unsafe && !header.contains("unsafe code") {
            wrong.push(format!("{name}: its header says nothing of its unsafe code"));
        }
        for (i, line) in lines.iter().enumerate() {
            let said = |word: &str, before| said_of(&lines, i, before).contains(word);
            if is_site(line) && !said("SAFETY:", 6) || is_unsafe_item(line) && !said("# Safety", 6) {
                wrong.push(format!("{name}:{}: {}", i + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
