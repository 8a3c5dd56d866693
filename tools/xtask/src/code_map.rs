//! The code map names files and folders that exist, each in one way: crate, folders, file.

use std::collections::BTreeSet;

use crate::Failure;
use crate::tree::{Tree, within_crate};

const MAP: &str = "docs/code-map.md";

/// Reports each path of the map that is not in the tree, with its line.
pub(crate) fn check(tree: &Tree) -> Result<(), Failure> {
    let Some(map) = tree.files.iter().find(|source| source.path == MAP) else {
        return Failure::of("code map", vec![format!("{MAP}: is not there")]);
    };
    let known = known(tree.files.iter().map(|source| source.path.as_str()));
    Failure::of("code map", faults(&map.text, &known))
}

/// Paths as the map writes them, of Rust sources and of the folders that hold them.
fn known<'a>(paths: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for path in paths.filter(|path| path.ends_with(".rs")) {
        let Some((krate, path)) = within_crate(path) else { continue };
        let Some(inside) = path.strip_prefix("src/") else { continue };
        let path = format!("{krate}/{inside}");
        let folders = path.match_indices('/').map(|(at, _)| path[..=at].to_owned());
        known.extend(folders.collect::<Vec<_>>());
        known.insert(path);
    }
    known
}

fn faults(text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        // Every second part is between backticks.
        let spans = line.split('`').skip(1).step_by(2);
        let paths = spans.filter(|span| span.ends_with(".rs") || span.ends_with('/'));
        for path in paths.filter(|path| {
            !path.starts_with("crates/") && !path.starts_with("tools/") && !known.contains(*path)
        }) {
            let at = index + 1;
            faults.push(format!("{MAP}:{at}: `{path}` is no path of crate, folders and file"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

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
