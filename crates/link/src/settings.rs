//! Settings of buckets that an operator asked for and that the running server has not taken up yet: DIR/region/settings.
//!
//! They belong to the store, which keeps them with its buckets. Here they only wait.

use std::io::ErrorKind;
use std::path::Path;

use larder_types::BucketName;
use larder_types::codec::{decode, encode};
use serde::{Deserialize, Serialize};

use crate::error::{LinkError, Usage};
use crate::files;
use crate::limits::SETTINGS_MAX;
use crate::registry::read;

const SETTINGS: &str = "settings";

/// A bucket's changes are answered once so many regions have them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The bucket.
    pub bucket: BucketName,
    /// Regions, this one among them.
    pub regions: u8,
}

/// Asks the server to take up a setting, in place of an earlier one of that bucket.
///
/// # Errors
/// [`Usage::NotRegion`], [`Usage::ManySettings`], and if the file cannot be read or written.
pub fn ask(dir: &Path, setting: Setting) -> Result<(), LinkError> {
    if read(dir)?.is_none() {
        return Err(Usage::NotRegion(dir.to_owned()).into());
    }
    change(dir, |asked| {
        asked.retain(|it| it.bucket != setting.bucket);
        asked.push(setting);
    })
}

/// The settings that are asked for.
///
/// # Errors
/// If the file cannot be read, or is not what was written.
pub fn asked(dir: &Path) -> Result<Vec<Setting>, LinkError> {
    let path = files::path(dir, SETTINGS);
    let bytes = match files::read(&path) {
        Err(LinkError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        read => read?,
    };
    decode("settings of buckets", &bytes)
        .map_err(|error| LinkError::Damaged { path, why: error.to_string() })
}

/// Forgets settings that were taken up, or cannot be.
///
/// # Errors
/// If the file cannot be read or written.
pub fn forget(dir: &Path, taken: &[Setting]) -> Result<(), LinkError> {
    change(dir, |asked| asked.retain(|it| !taken.contains(it)))
}

fn change(dir: &Path, with: impl FnOnce(&mut Vec<Setting>)) -> Result<(), LinkError> {
    let _lock = files::lock(dir)?;
    let mut settings = asked(dir)?;
    with(&mut settings);
    if settings.len() > SETTINGS_MAX {
        return Err(Usage::ManySettings.into());
    }
    files::replace(&files::path(dir, SETTINGS), &encode(&settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_waits_until_it_is_taken_up() {
        let dir = tempfile::tempdir().unwrap();
        let setting =
            |name: &str, regions| Setting { bucket: BucketName::new(name).unwrap(), regions };
        assert!(matches!(
            ask(dir.path(), setting("photos", 2)),
            Err(LinkError::Usage(Usage::NotRegion(_)))
        ));
        let address = "127.0.0.1:7001";
        let (name, advertise) = ("one".parse().unwrap(), address.parse().unwrap());
        crate::found(dir.path(), name, address.to_owned(), advertise).unwrap();
        assert_eq!(asked(dir.path()).unwrap(), []);
        for (name, regions) in [("photos", 2), ("films", 3), ("photos", 1)] {
            ask(dir.path(), setting(name, regions)).unwrap();
        }
        assert_eq!(asked(dir.path()).unwrap(), [setting("films", 3), setting("photos", 1)]);
        forget(dir.path(), &[setting("films", 3), setting("photos", 2)]).unwrap();
        assert_eq!(asked(dir.path()).unwrap(), [setting("photos", 1)], "another was asked since");
        assert_eq!(encode(&asked(dir.path()).unwrap()), b"\x01\x01\x06photos\x01");
    }
}
