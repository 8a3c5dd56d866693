//! Golden bytes: messages and files of the first release.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Compares bytes that are written now with those of a file: a name in brackets, then hexadecimal.
pub(crate) fn check(golden: &str, written: &[(&str, Vec<u8>)]) {
    let mut known: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    let mut name = "";
    for line in golden.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(next) = line.strip_prefix('[') {
            name = next.trim_end_matches(']');
        } else {
            let bytes = line.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap());
            known.entry(name).or_default().extend(bytes);
        }
    }
    known.remove("");
    let mut faults = String::new();
    for (name, bytes) in written {
        if known.remove(name).as_ref() != Some(bytes) {
            let _ = write!(faults, "[{name}]");
            for (at, byte) in bytes.iter().enumerate() {
                let _ = write!(faults, "{}{byte:02x}", if at % 16 == 0 { "\n" } else { " " });
            }
            faults.push('\n');
        }
    }
    assert!(faults.is_empty(), "these have other bytes than the file says:\n{faults}");
    assert!(known.is_empty(), "golden bytes of {:?} are no longer checked", known.keys());
}
