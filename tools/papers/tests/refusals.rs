//! The program leaves pages alone that it cannot write.

use std::fs;
use std::process::Command;

#[test]
fn a_page_without_marks_stays_as_it_is() {
    let docs = tempfile::tempdir().unwrap();
    for command in ["gfs", "cheetah", "scale"] {
        let page = docs.path().join(format!("benchmarks/papers-{command}.md"));
        fs::create_dir_all(page.parent().unwrap()).unwrap();
        fs::write(&page, "by hand\n").unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_larder-papers"));
        let ended = program.arg(command).arg("--quick").arg("--docs").arg(docs.path());
        let ended = ended.output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.contains("not marked") && said.contains(command), "{said}");
        assert_eq!(fs::read_to_string(&page).unwrap(), "by hand\n");
    }
}
