//! Files that only their owner can read. Each is there whole or not at all.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Writes such a file, durably, in place of one that is there.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    let draft = draft(path, content.as_ref())?;
    if let Err(error) = fs::rename(&draft, path) {
        drop(fs::remove_file(&draft));
        return Err(error);
    }
    sync_above(path)
}

/// Writes such a file, durably, unless there is one: then it gives `false`. The caller has locked the directory.
pub(crate) fn write_new(path: &Path, content: impl AsRef<[u8]>) -> io::Result<bool> {
    let draft = draft(path, content.as_ref())?;
    let written = match fs::hard_link(&draft, path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        // Some file systems have no links: there the lock alone keeps others away.
        Err(error) if has_no_links(&error) && !path.try_exists()? => {
            fs::rename(&draft, path).map(|()| true)
        }
        Err(error) => Err(error),
    };
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    sync_above(path)?;
    written
}

/// Makes the name of a file or directory durable.
pub(crate) fn sync_above(path: &Path) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    fs::File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

/// The first entry of a directory whose name is not known; a directory that is missing has none. Drafts are known.
pub(crate) fn first_other(
    dir: &Path,
    is_known: impl Fn(&str) -> bool,
) -> io::Result<Option<PathBuf>> {
    let is_other = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        !name.is_some_and(|name| name.ends_with(".draft") || is_known(name))
    };
    Ok(entries(dir)?.into_iter().find(is_other))
}

/// The entries of a directory; none if it is missing.
pub(crate) fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn has_no_links(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied)
}

/// The content in a file of its own beside the path: several processes may write at once.
fn draft(path: &Path, content: &[u8]) -> io::Result<PathBuf> {
    let draft = path.with_extension(format!("{:016x}.draft", larder_env::rng::unique_u64()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    if let Err(error) = written {
        drop(fs::remove_file(&draft));
        return Err(error);
    }
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_two_writers_wins_and_no_draft_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        let barrier = std::sync::Barrier::new(8);
        let won = std::thread::scope(|scope| {
            let write = |text: String| {
                let (path, barrier) = (&path, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    write_new(path, text.as_bytes()).unwrap().then_some(text)
                })
            };
            let writers: Vec<_> = (0..8).map(|n| write(format!("{n}"))).collect();
            writers.into_iter().filter_map(|it| it.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(won, [fs::read_to_string(&path).unwrap()]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "drafts are left");
    }
}
