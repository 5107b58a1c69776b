//! Who uses whom, read from the paths in the sources: no layer one above it, no module itself by way of others, and no
//! method that a higher layer gives to a type of a lower one.

use std::collections::{BTreeMap, BTreeSet};

use super::{LAYERS, read, relative, sources};

/// Methods that the standard library and CUDA's have too, under names of methods of arrays.
const OF_OTHERS: &[&str] = &[
    "abs",
    "all",
    "any",
    "ceil",
    "clamp",
    "flatten",
    "is_empty",
    "is_finite",
    "log",
    "parent",
    "repeat",
    "replace",
    "to_vec",
    "transpose",
    "write_bytes",
];

/// A module by its path: `["memory", "gc"]`; that of a folder is its `mod.rs`.
type Path = Vec<String>;

/// The modules below a folder, each with its code: without comments, and without its tests.
fn modules(folder: &str) -> BTreeMap<Path, String> {
    let files = sources(folder).into_iter().filter(|path| !relative(path).contains("tests"));
    let of = |path: &std::path::Path| {
        let name = relative(path)[folder.len() + 1..].trim_end_matches(".rs").to_owned();
        let parts = name.split('/').map(str::to_owned);
        let own = parts.filter(|part| part != "mod" && part != "lib").collect();
        let lines =
            read(path).lines().take_while(|line| *line != "mod tests {").map(without_comment).collect::<String>();
        (own, lines)
    };
    files.map(|path| of(&path)).collect()
}

fn without_comment(line: &str) -> String {
    format!("{}\n", line.split("//").next().unwrap_or_default())
}

fn words(path: &str) -> Path {
    path.split("::").map(|word| word.split(" as ").next().unwrap_or_default().trim().to_owned()).collect()
}

/// The paths of a tree such as `a::{b, c::{d, e}}`.
fn leaves(before: &[String], tree: &str, found: &mut Vec<Path>) {
    let Some((head, rest)) = tree.split_once('{') else {
        found.push([before, &words(tree)].concat());
        return;
    };
    let head: Path = words(head).into_iter().filter(|word| !word.is_empty()).collect();
    let before = [before, &head].concat();
    let (mut depth, mut start) = (0, 0);
    let inside = rest.rsplit_once('}').map_or(rest, |(inside, _)| inside);
    for (at, letter) in inside.char_indices().chain([(inside.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = inside[start..at].trim();
                start = (at + 1).min(inside.len());
                if !part.is_empty() {
                    leaves(&before, part, found);
                }
            }
            _ => {}
        }
    }
}

/// The paths in a module's code: those of its `use` declarations, and those that name what they use where they use it.
fn paths(code: &str) -> Vec<Path> {
    let (mut found, mut rest) = (Vec::new(), String::new());
    let mut statements = code.split_inclusive('\n').peekable();
    while let Some(line) = statements.next() {
        let head = line.trim_start();
        let head = head.strip_prefix("pub").map_or(head, |head| head.trim_start_matches(|c| c != ' ').trim_start());
        let Some(tree) = head.strip_prefix("use ") else {
            rest.push_str(line);
            continue;
        };
        let mut tree = tree.to_owned();
        while !tree.contains(';') {
            tree.push_str(statements.next().expect("the end of a declaration"));
        }
        leaves(&[], tree.split(';').next().unwrap_or_default(), &mut found);
    }
    let in_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':' || c == '$';
    found.extend(rest.split(|c| !in_path(c)).filter(|word| word.contains("::")).map(words));
    found
}

/// What each module of a folder uses of the others: the module, and what of it.
fn uses(modules: &BTreeMap<Path, String>) -> BTreeMap<Path, BTreeSet<(Path, String)>> {
    let paths: BTreeMap<&Path, Vec<Path>> = modules.iter().map(|(own, code)| (own, paths(code))).collect();
    // What a module shows of another crate is nothing of its own.
    let foreign = |of: &Path, name: &String| {
        let shown = paths.get(of).into_iter().flatten().filter(|path| path[0].starts_with("ndgc_"));
        shown.filter_map(|path| path.last()).any(|last| last == name)
    };
    let mut all = BTreeMap::new();
    for (own, used) in &paths {
        let found = all.entry((*own).clone()).or_insert_with(BTreeSet::new);
        for path in used {
            let up = path.iter().take_while(|word| *word == "super").count();
            let mut full: Path = match path[0].as_str() {
                "crate" => path[1..].to_vec(),
                "super" if up <= own.len() => [&own[..own.len() - up], &path[up..]].concat(),
                "self" => [&own[..], &path[1..]].concat(),
                child if modules.contains_key(&[&own[..], &[child.to_owned()]].concat()) => [&own[..], path].concat(),
                _ => continue,
            };
            let mut name = String::new();
            while !full.is_empty() && !modules.contains_key(&full) {
                name = full.pop().unwrap_or_default();
            }
            if !full.is_empty() && full != **own && !foreign(&full, &name) {
                found.insert((full, name));
            }
        }
    }
    all
}

#[test]
fn no_layer_uses_one_above_it() {
    let mut wrong = Vec::new();
    for (folder, layers) in LAYERS {
        let place = |module: &Path| layers.iter().position(|layer| module.first().is_some_and(|first| first == layer));
        for (own, used) in uses(&modules(folder)) {
            for (other, name) in used {
                if place(&own).zip(place(&other)).is_some_and(|(own, other)| own < other) {
                    wrong.push(format!("{} uses {}::{name}", own.join("/"), other.join("/")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_module_uses_itself_by_way_of_others() {
    let mut wrong = Vec::new();
    for (folder, layers) in LAYERS {
        let uses = uses(&modules(folder));
        for own in uses.keys().filter(|own| own.first().is_some_and(|first| layers.contains(&first.as_str()))) {
            let (mut seen, mut todo) = (BTreeSet::new(), vec![own]);
            while let Some(module) = todo.pop() {
                let within = uses[module].iter().map(|(other, _)| other).filter(|other| other[0] == own[0]);
                todo.extend(within.filter(|other| seen.insert(*other)));
            }
            if seen.contains(own) {
                wrong.push(own.join("/"));
            }
        }
    }
    assert!(wrong.is_empty(), "in a circle:\n{}", wrong.join("\n"));
}

/// The names after each of the words, such as `fn `.
fn after<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    code.split(word).skip(1).filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
}

/// The methods that the code of a layer gives to types that several layers give methods to.
fn methods(code: &str) -> BTreeSet<&str> {
    let types = ["Proxy", "Tensor", "NdManager", "Device", "Var", "Workspace", "GradStore"];
    let heads = types.map(|of| format!("\nimpl {of} {{"));
    let blocks = heads.iter().flat_map(|head| code.split(head.as_str()).skip(1));
    blocks.flat_map(|block| after(block.split("\n}").next().unwrap_or_default(), "fn ")).collect()
}

#[test]
fn no_layer_calls_methods_that_one_above_it_defines() {
    let (folder, layers) = LAYERS[0];
    let modules = modules(folder);
    let code = |layer: &str| -> String {
        modules
            .iter()
            .filter(|(own, _)| own.first().is_some_and(|first| first == layer))
            .map(|(_, code)| &**code)
            .collect()
    };
    let below: String = self::modules(LAYERS[1].0).into_values().collect();
    // Rows of the table: its macros make methods of `ops`.
    let rows = below.split("macro_rules! for_each_unary").nth(1).expect("the table of operations");
    let rows = rows.lines().filter_map(|line| line.split_once(" [")?.1.split_once(']')).map(|(names, _)| names);
    let table: BTreeSet<&str> = rows.flat_map(str::split_whitespace).collect();
    let texts: Vec<String> = layers.iter().map(|layer| code(layer)).collect();
    let mut wrong = Vec::new();
    for (place, text) in texts.iter().enumerate() {
        let known: BTreeSet<&str> =
            texts[..=place].iter().chain([&below]).flat_map(|text| after(text, "fn ")).collect();
        let mut above: BTreeSet<&str> = texts[place + 1..].iter().flat_map(|text| methods(text)).collect();
        above.extend(table.iter().filter(|_| layers[place..].contains(&"ops") && layers[place] != "ops"));
        let called = text.match_indices('.').filter_map(|(at, _)| {
            let rest = &text[at + 1..];
            let name = &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_')?];
            (rest[name.len()..].starts_with('(') || rest[name.len()..].starts_with("::<")).then_some(name)
        });
        let called: BTreeSet<&str> = called.collect();
        wrong.extend(
            called
                .into_iter()
                .filter(|name| above.contains(name) && !known.contains(name) && !OF_OTHERS.contains(name))
                .map(|name| format!("{} calls {name}", layers[place])),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
