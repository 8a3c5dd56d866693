//! Files that only their owner can read.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes such a file, durably; it is there whole or not at all.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("draft");
    // A leftover may have been made with other rights: they are given at creation only.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    fs::File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}
