//! Directories of Larder's that nothing is written into.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::Command;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn documents_and_scratch_in_a_store_are_refused_before_anything_is_measured() {
    let store = tempfile::tempdir().unwrap();
    let marker = "version = 1\nkind = \"store\"\nid = \"00c0ffee00c0ffee\"\n";
    fs::write(store.path().join("larder-dir.toml"), marker).unwrap();
    let (inside, outside) = (store.path().join("docs"), tempfile::tempdir().unwrap());
    for command in ["systems", "ordered", "policies", "schedule", "rebalance"] {
        let (root, inside) = (store.path().to_str().unwrap(), inside.to_str().unwrap());
        let mut lines = vec![vec!["--docs", root], vec!["--docs", inside]];
        if !["schedule", "rebalance"].contains(&command) {
            lines.push(vec!["--docs", outside.path().to_str().unwrap(), "--scratch", root]);
        }
        for line in lines {
            let mut program = Command::new(env!("CARGO_BIN_EXE_larder-compare"));
            let ended = program.arg(command).args(&line).output().unwrap();
            let said = String::from_utf8(ended.stderr).unwrap();
            assert_eq!(ended.status.code(), Some(2), "{command} {line:?}: {said}");
            assert!(said.contains("the store of a single node"), "{command} {line:?}: {said}");
        }
    }
    assert_eq!(names(store.path()), ["larder-dir.toml"]);
    assert_eq!(names(outside.path()), [] as [&str; 0]);
}
