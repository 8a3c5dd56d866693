//! Files that may lie in a directory, and those that may not.

use std::fs;

use super::*;

fn write(dir: &Path, names: &[&str]) {
    for name in names {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
}

#[test]
fn a_single_nodes_store_is_recognized() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("log")).unwrap();
    fs::write(dir.path().join(LOCK_FILE), "").unwrap();
    let error = start(dir.path(), &Config::default()).unwrap_err();
    assert!(error.to_string().contains("the store of a single node"), "{error}");
    assert_eq!(error.code(), crate::exit::CANNOT_START);
}

#[test]
fn only_what_was_left_by_a_coming_in_that_was_cut_off_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    entering::begin(dir.path()).unwrap();
    write(
        dir.path(),
        &["manager/quorum/log", "manager/authority.pem", "meta/identity.pem", "kept"],
    );
    entering::begin(dir.path()).unwrap();
    assert!(!dir.path().join("manager").exists() && !dir.path().join("meta").exists());
    assert!(dir.path().join("kept").exists());

    write(dir.path(), &["manager/authority.pem", "data/data0"]);
    let error = entering::begin(dir.path()).unwrap_err();
    assert!(error.to_string().contains("data0"), "{error}");
    assert!(dir.path().join("data/data0").exists(), "nothing that may have objects");
    assert!(dir.path().join("manager/authority.pem").exists(), "nothing at all then");
}

#[test]
fn a_cluster_that_is_not_known_to_be_left_over_is_refused() {
    let founded = ["manager/quorum/log", "manager/authority.pem", "manager/identity.pem"];
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &founded);
    let error = entering::begin(dir.path()).unwrap_err().to_string();
    assert!(error.contains("the directory of a manager"), "{error}");
    // Another directory of a machine that has come in, but for its record.
    let dir = tempfile::tempdir().unwrap();
    entering::begin(dir.path()).unwrap();
    write(dir.path(), &founded);
    entering::end(dir.path()).unwrap();
    write(dir.path(), &["larder-dir.toml"]);
    let error = entering::begin(dir.path()).unwrap_err().to_string();
    assert!(error.contains("restore node.toml"), "{error}");
    assert!(founded.iter().all(|name| dir.path().join(name).exists()));
    assert!(!dir.path().join("entering").exists(), "a refusal changes nothing");
}
