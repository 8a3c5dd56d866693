//! The code map names files and folders that exist, each in one way: crate, folders, file. Its tables of the files that a put
//! and a get cross stay short, and name functions that are there.

use std::collections::BTreeSet;

use crate::Failure;
use crate::tree::{Tree, within_crate};

const MAP: &str = "docs/code-map.md";
const PUT: Crossing = Crossing { title: "Files that a put crosses", files_max: 25 };
const GET: Crossing = Crossing { title: "Files that a get crosses", files_max: 21 };

/// A table of the files that a reader opens to follow a request between the socket and the disk.
struct Crossing {
    title: &'static str,
    /// Most rows of the table.
    files_max: usize,
}

/// Reports each path of the map that is not in the tree, with its line, and the faults of its tables.
pub(crate) fn check(tree: &Tree) -> Result<(), Failure> {
    let Some(map) = tree.files.iter().find(|source| source.path == MAP) else {
        return Failure::of("code map", vec![format!("{MAP}: is not there")]);
    };
    let known = known(tree.files.iter().map(|source| source.path.as_str()));
    let text_of = |path: &str| {
        let source = tree.files.iter().find(|source| named(&source.path).as_deref() == Some(path));
        source.map(|source| source.text.as_str())
    };
    let mut faults = faults(&map.text, &known);
    for crossing in [PUT, GET] {
        faults.extend(crossing.faults(&map.text, text_of));
    }
    Failure::of("code map", faults)
}

/// The path of a Rust source as the map writes it.
fn named(path: &str) -> Option<String> {
    let (krate, path) = within_crate(path).filter(|(_, path)| path.ends_with(".rs"))?;
    Some(format!("{krate}/{}", path.strip_prefix("src/")?))
}

/// Paths as the map writes them, of Rust sources and of the folders that hold them.
fn known<'a>(paths: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for path in paths.filter_map(named) {
        let folders = path.match_indices('/').map(|(at, _)| path[..=at].to_owned());
        known.extend(folders.collect::<Vec<_>>());
        known.insert(path);
    }
    known
}

fn faults(text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let paths = spans(line).filter(|span| span.ends_with(".rs") || span.ends_with('/'));
        for path in paths.filter(|path| {
            !path.starts_with("crates/") && !path.starts_with("tools/") && !known.contains(*path)
        }) {
            let at = index + 1;
            faults.push(format!("{MAP}:{at}: `{path}` is no path of crate, folders and file"));
        }
    }
    faults
}

/// The parts of a line between backticks.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

impl Crossing {
    /// The faults of the table: it has too many rows, they are not numbered, or one names a function that its file does not have.
    fn faults<'t>(&self, text: &str, text_of: impl Fn(&str) -> Option<&'t str>) -> Vec<String> {
        let Self { title, files_max } = self;
        let section = text.split_once(&format!("### {title}\n")).map_or("", |(_, section)| section);
        let section = section.split_once("\n#").map_or(section, |(section, _)| section);
        let (mut faults, mut rows) = (Vec::new(), 0);
        for line in section.lines() {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            let Some(number) = cells.next().and_then(|cell| cell.parse::<usize>().ok()) else {
                continue;
            };
            let (file, functions) =
                (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
            rows += 1;
            if number != rows {
                faults.push(format!("{MAP}: row {rows} of \"{title}\" has the number {number}"));
            }
            let source = spans(file).next().and_then(&text_of).unwrap_or_default();
            let is_there = |name: &&str| {
                ["(", "<"].iter().any(|end| source.contains(&format!("fn {name}{end}")))
            };
            let gone = spans(functions).filter(|name| !is_there(name));
            faults.extend(gone.map(|name| format!("{MAP}: {file} has no function `{name}`")));
        }
        if !(1..=*files_max).contains(&rows) {
            let most = format!("{rows} rows of \"{title}\", of at most {files_max}");
            faults.push(format!("{MAP}: {most}: take out a layer that only passes on"));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_a_request_that_grows_or_names_what_is_gone_is_reported() {
        for crossing in [PUT, GET] {
            let most = crossing.files_max;
            let table = |rows: usize| {
                let rows = (1..=rows).map(|row| format!("| {row} | `kv/lsm.rs` | `open` |\n"));
                format!(
                    "### {}\n\n| | file | in |\n|---|---|---|\n{}\n## Next\n\n| 1 |\n",
                    crossing.title,
                    rows.collect::<String>()
                )
            };
            let faults = |text: &str| {
                crossing.faults(text, |path| (path == "kv/lsm.rs").then_some("fn open<T>()"))
            };
            assert_eq!(faults(&table(most)), Vec::<String>::new());
            assert!(faults(&table(most + 1))[0].contains(&format!(" {} rows", most + 1)));
            assert!(faults("## The path of a put\n")[0].contains(" 0 rows"));
            let gone = |name: &str| format!("has no function `{name}`");
            assert!(faults(&table(1).replace("open", "shut"))[0].ends_with(&gone("shut")));
            assert!(faults(&table(1).replace("lsm", "btree"))[0].ends_with(&gone("open")));
            assert!(faults(&table(2).replace("| 2 |", "| 1 |"))[0].contains("row 2"));
        }
    }

    #[test]
    fn a_path_that_is_not_there_is_named_with_its_line() {
        let tree = ["crates/kv/src/lsm/mod.rs", "crates/kv/tests/mod.rs", "docs/kv.md"];
        let known = known(tree.into_iter());
        let text = "`kv/lsm/mod.rs` and `kv/lsm/`\n`lsm/mod.rs`, `kv/mod.rs`, `Kv::open`\n";
        let faults = faults(text, &known);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains(":2: `lsm/mod.rs`") && faults[1].contains("`kv/mod.rs`"));
    }
}
