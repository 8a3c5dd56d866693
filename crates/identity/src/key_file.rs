//! Files with keys in them: readable by their owner alone, replaced as a whole.
//!
//! They do not go through the disk port of `larder-env`. A simulation is to lose and tear the files of a store, not these: a
//! server whose key file is lost joins again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject;

use crate::error::IdentityError;

/// Longest key file: a key and two certificates of our own making are a tenth of it.
const FILE_BYTES_MAX: u64 = 32 * 1024;
const OWNER_ONLY: u32 = 0o600;
const LINE: usize = 64;

pub(crate) fn write(path: &Path, text: &str) -> Result<(), IdentityError> {
    replace(path, text.as_bytes())
        .map_err(|source| IdentityError::File { path: path.to_owned(), source })
}

/// Replaces the file, durably: after a crash it is the old one or the new one. Only its owner may read it. No other thread or
/// process may write the file meanwhile.
///
/// # Errors
/// If it cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = draft_of(path);
    // A draft that a crash left behind may have other permissions: the mode is set at creation only.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Reads the file; refuses one that others than its owner can read.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    let failed = |source| IdentityError::File { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if about.mode() & 0o077 != 0 {
        return Err(IdentityError::Exposed { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(IdentityError::unusable("key file", "it is too long to be one"));
    }
    Ok(bytes)
}

fn draft_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".draft");
    PathBuf::from(name)
}

/// One section of a PEM file.
#[must_use]
pub fn pem(label: &str, der: &[u8]) -> String {
    let base64 = base64_simd::STANDARD.encode_to_string(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in base64.as_bytes().chunks(LINE) {
        text.extend(line.iter().map(|letter| char::from(*letter)));
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}

/// All sections of one type.
pub(crate) fn sections<T: PemObject>(bytes: &[u8]) -> Result<Vec<T>, IdentityError> {
    let all: Result<Vec<T>, _> = T::pem_slice_iter(bytes).collect();
    all.map_err(|error| IdentityError::unusable("key file", error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_is_its_owners_alone_and_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity.pem");
        fs::write(draft_of(&path), "a leftover that everybody may read").unwrap();
        write(&path, "first").unwrap();
        write(&path, "second").unwrap();
        assert_eq!(read(&path).unwrap(), b"second");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, OWNER_ONLY);
        assert!(!draft_of(&path).exists());
    }

    #[test]
    fn a_key_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity.pem");
        write(&path, "secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(read(&path), Err(IdentityError::Exposed { .. })));
    }
}
