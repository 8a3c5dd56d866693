//! The licences of the crates from outside that a release is made of: each text once, with the crates that have it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::Failure;
use crate::metadata::{Metadata, Package};

/// Beginnings of the names of files with a licence, in capitals.
const NAMES: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];

const HEAD: &str = "\
Larder is distributed under the Apache License, Version 2.0. It is linked with the crates below, and with the C library of
the system (in the image: GNU libc, LGPL-2.1-or-later, as Debian or Ubuntu distributes it). Crates that are used by the
build alone are listed, too.
";

/// Writes them into a file.
pub(super) fn write(to: &Path) -> Result<(), Failure> {
    let metadata = Metadata::read()?;
    let outside = metadata.outside();
    let mut text = HEAD.to_owned();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in outside.values().flatten() {
        let name = format!("{} {}", package.name, package.version);
        let licence = package.license.as_deref().unwrap_or("see its text");
        // Writing into a string does not fail.
        let _ok = writeln!(text, "{name}: {licence}");
        for licence in of(package)? {
            texts.entry(licence).or_default().push(name.clone());
        }
    }
    for (licence, crates) in texts {
        let _ok = writeln!(text, "\n{}\n{}\n\n{licence}", "-".repeat(72), crates.join(", "));
    }
    fs::write(to, text).map_err(|e| Failure::file(to, e))
}

/// The texts that a crate comes with.
fn of(package: &Package) -> Result<Vec<String>, Failure> {
    let Some(dir) = package.manifest_path.parent() else { return Ok(Vec::new()) };
    let failed = |e| Failure::file(dir, e);
    let mut texts = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if entry.path().is_file() && NAMES.iter().any(|it| name.starts_with(it)) {
            let bytes = fs::read(entry.path()).map_err(failed)?;
            texts.push(String::from_utf8_lossy(&bytes).trim().to_owned());
        }
    }
    texts.sort();
    Ok(texts)
}
