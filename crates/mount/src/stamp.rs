//! The attributes of a file, kept in the user metadata of its object.
//!
//! `larder-mode` has type and permissions as in `st_mode`, in octal; `larder-mtime` the time of the last write, seconds
//! since 1970 and nine digits of nanoseconds. Both are version 1 of themselves: a mount that reads something else in them
//! takes the default. An object without them is a file of mode 0644, written when it was put.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_types::{Attributes, Metax};

/// Name of the mode in user metadata (`x-amz-meta-larder-mode`).
const MODE: &str = "larder-mode";
/// Name of the time.
const MTIME: &str = "larder-mtime";
/// Permission bits that are kept.
pub const PERMISSIONS: u16 = 0o777;
/// Permissions of a file that says nothing of them.
const FILE_MODE: u16 = 0o644;
/// Mode bits of a directory.
const DIRECTORY_MODE: u16 = 0o755;

/// The kinds of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link: its object's bytes are what it says.
    Symlink,
}

impl Kind {
    /// The type's bits of `st_mode`.
    fn bits(self) -> u32 {
        match self {
            Self::File => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
        }
    }
}

/// The attributes of a file that a program sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The kind of the node.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    /// Time of the last write.
    pub mtime: SystemTime,
    /// Bytes.
    pub size: u64,
}

impl Stat {
    /// Of a new, empty file or directory.
    #[must_use]
    pub fn new(kind: Kind, mode: u16, now: SystemTime) -> Self {
        Self { kind, mode: mode & PERMISSIONS, mtime: now, size: 0 }
    }

    /// Of a directory that no marker tells about.
    #[must_use]
    pub fn directory(since: SystemTime) -> Self {
        Self::new(Kind::Directory, DIRECTORY_MODE, since)
    }

    /// Of an object that is a file, or a symbolic link.
    #[must_use]
    pub fn of_file(metax: &Metax) -> Self {
        let (kind, mode) = match mode_of(&metax.attributes) {
            Some((Kind::Symlink, mode)) => (Kind::Symlink, mode),
            Some((Kind::File, mode)) => (Kind::File, mode),
            Some((Kind::Directory, _)) | None => (Kind::File, FILE_MODE),
        };
        Self { kind, mode, mtime: mtime_of(metax), size: metax.size }
    }

    /// Of a directory's marker.
    #[must_use]
    pub fn of_marker(metax: &Metax) -> Self {
        let mode = match mode_of(&metax.attributes) {
            Some((Kind::Directory, mode)) => mode,
            _ => DIRECTORY_MODE,
        };
        Self { kind: Kind::Directory, mode, mtime: mtime_of(metax), size: 0 }
    }

    /// Writes what metadata keep of this into `attributes`, in place of what was there.
    pub fn write_into(&self, attributes: &mut Attributes) {
        attributes.user.retain(|(name, _)| name != MODE && name != MTIME);
        let mode = format!("{:o}", self.kind.bits() | u32::from(self.mode));
        attributes.user.push((MODE.into(), mode));
        attributes.user.push((MTIME.into(), time_text(self.mtime)));
    }
}

fn value<'a>(attributes: &'a Attributes, name: &str) -> Option<&'a str> {
    attributes.user.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
}

fn mode_of(attributes: &Attributes) -> Option<(Kind, u16)> {
    let mode = u32::from_str_radix(value(attributes, MODE)?, 8).ok()?;
    let permissions = (mode & u32::from(PERMISSIONS)) as u16;
    [Kind::File, Kind::Directory, Kind::Symlink]
        .into_iter()
        .find(|kind| mode & 0o170_000 == kind.bits())
        .map(|kind| (kind, permissions))
}

/// Times before 1970 are kept as 1970.
fn time_text(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:09}", since.as_secs(), since.subsec_nanos())
}

fn parse_time(text: &str) -> Option<SystemTime> {
    let (seconds, nanos) = text.split_once('.')?;
    if nanos.len() != 9 {
        return None;
    }
    UNIX_EPOCH.checked_add(Duration::new(seconds.parse().ok()?, nanos.parse().ok()?))
}

fn mtime_of(metax: &Metax) -> SystemTime {
    value(&metax.attributes, MTIME)
        .and_then(parse_time)
        .unwrap_or_else(|| UNIX_EPOCH + Duration::from_millis(metax.clock.ms()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(pairs: &[(&str, &str)]) -> Attributes {
        let user = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Attributes { user, ..Attributes::default() }
    }

    #[test]
    fn the_metadata_are_these_words() {
        let time = UNIX_EPOCH + Duration::new(1_700_000_000, 5);
        let mut attributes = user(&[("colour", "red"), ("larder-mode", "old")]);
        Stat::new(Kind::File, 0o755, time).write_into(&mut attributes);
        let golden = user(&[
            ("colour", "red"),
            ("larder-mode", "100755"),
            ("larder-mtime", "1700000000.000000005"),
        ]);
        assert_eq!(attributes, golden);
        Stat::new(Kind::Symlink, 0o777, time).write_into(&mut attributes);
        assert_eq!(value(&attributes, MODE), Some("120777"));
        Stat::new(Kind::Directory, 0o750, time).write_into(&mut attributes);
        assert_eq!(value(&attributes, MODE), Some("40750"));
    }

    #[test]
    fn what_is_written_is_read() {
        let time = UNIX_EPOCH + Duration::new(1_700_000_000, 999_999_999);
        for kind in [Kind::File, Kind::Directory, Kind::Symlink] {
            let mut attributes = Attributes::default();
            Stat::new(kind, 0o640, time).write_into(&mut attributes);
            assert_eq!(mode_of(&attributes), Some((kind, 0o640)));
            assert_eq!(value(&attributes, MTIME).and_then(parse_time), Some(time));
        }
    }

    #[test]
    fn what_others_wrote_there_is_ignored() {
        for mode in ["", "rwx", "777", "99999999999999", "60644"] {
            assert_eq!(mode_of(&user(&[("larder-mode", mode)])), None, "{mode:?}");
        }
        for time in ["", "now", "1.5", "-1.000000000", "18446744073709551615.000000000"] {
            assert_eq!(parse_time(time), None, "{time:?}");
        }
        assert_eq!(time_text(UNIX_EPOCH - Duration::from_secs(9)), "0.000000000");
    }
}
