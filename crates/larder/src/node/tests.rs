//! What may lie in a directory, and what not.

use super::*;

#[test]
fn a_single_nodes_store_is_told_apart() {
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
    let write = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    };
    clear(dir.path()).unwrap();
    for name in ["manager/quorum/log", "manager/authority.pem", "meta/identity.pem", "kept"] {
        write(name);
    }
    clear(dir.path()).unwrap();
    assert!(!dir.path().join("manager").exists() && !dir.path().join("meta").exists());
    assert!(dir.path().join("kept").exists());

    write("manager/authority.pem");
    write("data/data0");
    let error = clear(dir.path()).unwrap_err();
    assert!(error.to_string().contains("data0"), "{error}");
    assert!(dir.path().join("data/data0").exists(), "nothing that may have objects");
    assert!(dir.path().join("manager/authority.pem").exists(), "nothing at all then");
}
