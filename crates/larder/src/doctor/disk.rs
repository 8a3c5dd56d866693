//! The file system of the directory: its kind, its room, and how long a sync takes; and the device of the data.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Finding, Patient};
use crate::quantity::bytes;

/// Syncs that are timed, and bytes before each.
const SYNCS: usize = 32;
const SYNC_BYTES: usize = 4096;
/// A put waits for two syncs, side by side: slower ones are felt.
const SYNC_MAX: Duration = Duration::from_millis(10);
/// Below this part of the file system's room it is nearly full.
const ROOM_PART: u64 = 10;
/// The index and the log have some thousand files.
const FILES_MIN: u64 = 20_000;

/// Kinds of file systems by their magic number (`statfs(2)`), as far as there is something to say.
const KINDS: [(u64, &str, Fitness); 12] = [
    (0xEF53, "ext4", Fitness::Good),
    (0x5846_5342, "xfs", Fitness::Good),
    (0x9123_683E, "btrfs", Fitness::CopiesOnWrite),
    (0x2FC1_2FC1, "zfs", Fitness::CopiesOnWrite),
    (0x0102_1994, "tmpfs", Fitness::Forgets),
    (0x8584_58F6, "ramfs", Fitness::Forgets),
    (0x794C_7630, "overlayfs", Fitness::OfContainer),
    (0x6969, "nfs", Fitness::Remote),
    (0xFF53_4D42, "cifs", Fitness::Remote),
    (0xFE53_4D42, "smb2", Fitness::Remote),
    (0x6573_5546, "fuse", Fitness::Remote),
    (0x0102_1997, "9p", Fitness::Remote),
];

#[derive(Clone, Copy)]
enum Fitness {
    Good,
    /// A rewrite takes new space, also of bytes that were reserved.
    CopiesOnWrite,
    /// Nothing of it outlives the machine's restart.
    Forgets,
    /// It goes with its container.
    OfContainer,
    /// Somebody else decides what a sync means.
    Remote,
}

pub(super) fn check(patient: &Patient) -> Vec<Finding> {
    let mut findings = vec![kind(&patient.there), room(&patient.there)];
    findings.push(syncs(patient));
    if Path::new(&patient.config.data).is_absolute() {
        findings.push(device(Path::new(&patient.config.data), patient.is_running));
    }
    findings
}

fn kind(there: &Path) -> Finding {
    const CHECK: &str = "file system";
    let about = match rustix::fs::statfs(there) {
        Ok(about) => about,
        Err(error) => {
            return Finding::fault(
                CHECK,
                format!("{}: {error}", there.display()),
                "look at the disk (dmesg)",
            );
        }
    };
    of_kind(about.f_type as u64 & u64::from(u32::MAX))
}

fn of_kind(magic: u64) -> Finding {
    const CHECK: &str = "file system";
    let Some((_, name, fitness)) = KINDS.iter().find(|(of, ..)| *of == magic) else {
        return Finding::ok(CHECK, format!("of a kind that is not known here ({magic:#x})"));
    };
    match fitness {
        Fitness::Good => Finding::ok(CHECK, *name),
        Fitness::CopiesOnWrite => Finding::warning(
            CHECK,
            format!(
                "{name}: it takes new space for what is written again, so that a full disk stops the server"
            ),
            "keep other files off it and watch its free space, or use ext4 or xfs; on btrfs, chattr +C the empty directory",
        ),
        Fitness::Forgets => Finding::fault(
            CHECK,
            format!("{name}: what is there is gone when the machine restarts"),
            "name a directory on a disk",
        ),
        Fitness::OfContainer => Finding::warning(
            CHECK,
            format!("{name}: what is there goes with its container"),
            "mount a volume at the directory",
        ),
        Fitness::Remote => Finding::warning(
            CHECK,
            format!("{name}: another machine decides when something is on disk"),
            "use a local disk; Larder makes copies on other machines itself",
        ),
    }
}

fn room(there: &Path) -> Finding {
    const CHECK: &str = "room";
    let about = match rustix::fs::statvfs(there) {
        Ok(about) => about,
        Err(error) => return Finding::fault(CHECK, error.to_string(), "look at the disk (dmesg)"),
    };
    let (all, free) = (about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize);
    let saw = format!("{} of {} free", bytes(free), bytes(all));
    if free < all / ROOM_PART {
        return Finding::warning(
            CHECK,
            saw,
            "make room before puts get 507: see docs/operations.md, full disk",
        );
    }
    // Some file systems make them as they are needed, and say 0 of 0.
    if about.f_files > 0 && about.f_favail < FILES_MIN {
        let saw = format!("{saw}, and {} more files", about.f_favail);
        return Finding::warning(
            CHECK,
            saw,
            "delete files there, or make the file system with more inodes",
        );
    }
    Finding::ok(CHECK, saw)
}

/// Times until small writes are on disk.
fn syncs(patient: &Patient) -> Finding {
    const CHECK: &str = "syncs";
    // Of a name that nobody else has: what is there already is not touched, nor followed.
    let name = format!("doctor.{:016x}.draft", larder_env::rng::unique_u64());
    let mut took = match timed(&patient.there.join(name)) {
        Ok(took) => took,
        Err(error) => {
            let saw = format!("{} cannot be written: {error}", patient.there.display());
            return Finding::fault(
                CHECK,
                saw,
                "run this as the user of the server, and give it the directory",
            );
        }
    };
    took.sort_unstable();
    let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let saw = format!("median {:.2} ms, longest {:.2} ms, of {SYNCS}", ms(median), ms(worst));
    if median > SYNC_MAX {
        return Finding::warning(
            CHECK,
            saw,
            "every put waits for one: use a disk whose cache outlives a power cut, or expect slow puts of single clients",
        );
    }
    Finding::ok(CHECK, saw)
}

fn timed(path: &Path) -> std::io::Result<Vec<Duration>> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let page = [0x5A; SYNC_BYTES];
    let took = (0..SYNCS).map(|_| {
        let began = Instant::now();
        file.write_all(&page)?;
        file.sync_data()?;
        Ok(began.elapsed())
    });
    let took = took.collect();
    fs::remove_file(path)?;
    took
}

/// A block device for the data, which nobody else may have mounted.
fn device(path: &Path, is_running: bool) -> Finding {
    const CHECK: &str = "device";
    let shown = path.display();
    match fs::metadata(path) {
        Ok(about) if about.file_type().is_block_device() => {}
        Ok(_) => {
            return Finding::fault(
                CHECK,
                format!("{shown} is no block device"),
                "name one with `data`, or a file name",
            );
        }
        Err(error) => {
            return Finding::fault(
                CHECK,
                format!("{shown}: {error}"),
                "name one with `data` that is there",
            );
        }
    }
    // Exclusively, unless the server that runs has it. The kernel refuses a device that is mounted, has a partition that is,
    // or belongs to a swap area, an array or a volume group.
    let exclusive = if is_running { OFlags::empty() } else { OFlags::EXCL };
    match rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | exclusive, Mode::empty()) {
        Ok(_) => {
            let of = if is_running { ", of the server that runs" } else { ", and nobody uses it" };
            Finding::ok(CHECK, format!("{shown} can be written{of}"))
        }
        Err(Errno::BUSY) => Finding::fault(
            CHECK,
            format!(
                "{shown} is in use: mounted, or part of a swap area, an array or a volume group"
            ),
            "name another: a store takes all of a device, and what is on it is lost",
        ),
        Err(error) => Finding::fault(
            CHECK,
            format!("{shown}: {error}"),
            "give the user of the server the right to write it (group disk)",
        ),
    }
}

/// True if a server holds the directory, as the kernel lists its locks: to try the lock would get into the way of a start.
///
/// By the number of the file alone, as some file systems (btrfs) show another device there.
pub(super) fn is_held(dir: &Path) -> bool {
    let Ok(about) = fs::metadata(dir) else { return false };
    let inode = format!(":{}", about.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let is_it = |line: &str| {
        line.contains(" FLOCK ") && line.split_whitespace().any(|word| word.ends_with(&inode))
    };
    locks.lines().any(is_it)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::Grade;
    use super::*;

    #[test]
    fn a_directory_is_held_as_long_as_somebody_locks_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_held(dir.path()));
        let lock = File::open(dir.path()).unwrap();
        lock.try_lock().unwrap();
        assert!(is_held(dir.path()));
        drop(lock);
        assert!(!is_held(dir.path()));
        assert!(!is_held(&dir.path().join("missing")));
    }

    #[test]
    fn file_systems_are_graded_by_their_kind() {
        let grade = |magic| of_kind(magic).grade;
        assert_eq!((grade(0xEF53), grade(0x5846_5342)), (Grade::Ok, Grade::Ok));
        assert_eq!((grade(0x9123_683E), grade(0x2FC1_2FC1)), (Grade::Warning, Grade::Warning));
        assert_eq!((grade(0x0102_1994), grade(1)), (Grade::Fault, Grade::Ok));
    }

    #[test]
    fn syncs_are_timed_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("draft");
        assert_eq!(timed(&path).unwrap().len(), SYNCS);
        assert!(!path.exists());
        assert!(timed(&dir.path().join("missing/file")).is_err());
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "another's").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(timed(&link).is_err() && timed(&target).is_err());
        assert_eq!(fs::read_to_string(&target).unwrap(), "another's");
    }

    #[test]
    fn what_forgets_is_a_fault() {
        let shm = Path::new("/dev/shm");
        assert!(shm.is_dir(), "this machine has no /dev/shm");
        let found = kind(shm);
        assert_eq!(found.grade, super::super::Grade::Fault, "{found:?}");
    }

    #[test]
    fn a_file_is_no_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(device(file.path(), false).grade, super::super::Grade::Fault);
        assert_eq!(device(Path::new("/dev/null"), false).grade, super::super::Grade::Fault);
    }
}
