//! Root credentials: drawn at the first start, kept in a file that only its owner can read.

use std::fs;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use larder_s3::{Credentials, OptionsError};
use serde::{Deserialize, Serialize};

use crate::{exit, private_file};

/// File in the store's directory.
pub(crate) const FILE: &str = "credentials.toml";
/// Overrides the access key at every start.
pub(crate) const ACCESS_VARIABLE: &str = "LARDER_ROOT_ACCESS_KEY";
/// Overrides the secret key at every start.
pub(crate) const SECRET_VARIABLE: &str = "LARDER_ROOT_SECRET_KEY";

/// Rights of those who are neither the owner nor in the group.
const OF_OTHERS: u32 = 0o007;

const ACCESS_CHARS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const SECRET_CHARS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    access_key: String,
    secret_key: String,
    /// The pair before, which is taken until it is retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<Pair>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    access_key: String,
    secret_key: String,
}

/// Stands first in a file whose keys no terminal has shown yet.
const UNSEEN: &str = "# Not shown yet: the next start that succeeds shows them on a terminal.\n";

/// The root credentials of a start.
pub(crate) struct Root {
    pub(crate) keys: Credentials,
    /// The pair before, if it is taken, too.
    pub(crate) previous: Option<Credentials>,
    /// They lie in the directory's file, not in the environment.
    pub(crate) from_file: bool,
    /// They were drawn, and no start that succeeded has shown them since.
    pub(crate) unseen: bool,
    /// They were drawn just now.
    pub(crate) drawn: bool,
}

impl Root {
    /// Keys from the environment.
    fn given(keys: Credentials) -> Self {
        Self { keys, previous: None, from_file: false, unseen: false, drawn: false }
    }

    /// Warns of keys that were drawn although clients may have others.
    pub(crate) fn warn_if_replaced(&self, file: &Path, is_new: bool) {
        if self.drawn && !is_new {
            eprintln!(
                "warning: {} was missing: new root keys were drawn; clients with the old ones are refused. To go on \
                 with those, stop, restore the file, and start again",
                file.display()
            );
        }
    }

    /// Names the file, and shows keys that were drawn, once and on a terminal alone: anything else may be a journal that
    /// others read. Gives away whether it did.
    pub(crate) fn show_once(&self, file: &Path) -> bool {
        let mut stderr = std::io::stderr().lock();
        let is_terminal = stderr.is_terminal();
        self.show_once_on(&mut stderr, is_terminal, file)
    }

    fn show_once_on(&self, out: &mut impl Write, is_terminal: bool, file: &Path) -> bool {
        if !self.from_file {
            return false;
        }
        let written = writeln!(out, "Root credentials are kept in {}", file.display());
        let shows = written.is_ok() && self.unseen && is_terminal && self.show(out).is_ok();
        if shows && let Err(error) = mark_seen(file, &self.keys) {
            tracing::warn!(file = %file.display(), %error, "the keys will be shown again at the next start");
        }
        shows
    }

    fn show(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "Larder drew them. They are shown this once:")?;
        writeln!(out, "  access key  {}", self.keys.access_key)?;
        writeln!(out, "  secret key  {}", self.keys.secret_key)
    }
}

/// Errors that leave no credentials.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error(
        "{path} is not what it should be ({reason}); restore it, or delete it to draw new keys"
    )]
    Content { path: String, reason: String },
    #[error(
        "{path} can be read by everybody on this machine (mode {mode:04o}): run `chmod 600 {path}`, and draw new keys if \
         somebody may have read it"
    )]
    Exposed { path: String, mode: u32 },
    #[error("{set} is set but {missing} is not: set both, or neither")]
    Half { set: &'static str, missing: &'static str },
    #[error("{ACCESS_VARIABLE} and {SECRET_VARIABLE}: {0}")]
    Given(OptionsError),
}

impl CredentialsError {
    /// The exit code of a start that ends with it.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Half { .. } | Self::Given(_) | Self::Exposed { .. } => exit::USAGE,
            Self::File { .. } | Self::Content { .. } => exit::CANNOT_START,
        }
    }
}

/// The root credentials, of the environment or else of this file of Larder's own, which is made if it is missing.
pub(crate) fn load(file: &Path) -> Result<Root, CredentialsError> {
    match given()? {
        Some(keys) => Ok(Root::given(keys)),
        None => load_file(file),
    }
}

/// The root credentials of the environment, if it has any.
pub(crate) fn given() -> Result<Option<Credentials>, CredentialsError> {
    let given = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (given(ACCESS_VARIABLE), given(SECRET_VARIABLE)) {
        (Some(access_key), Some(secret_key)) => {
            let keys = Credentials { access_key, secret_key };
            keys.check().map_err(CredentialsError::Given)?;
            Ok(Some(keys))
        }
        (Some(_), None) => {
            Err(CredentialsError::Half { set: ACCESS_VARIABLE, missing: SECRET_VARIABLE })
        }
        (None, Some(_)) => {
            Err(CredentialsError::Half { set: SECRET_VARIABLE, missing: ACCESS_VARIABLE })
        }
        (None, None) => Ok(None),
    }
}

/// The root credentials, of the environment or else of a file that an operator named and keeps. The operator chooses the
/// rights of that file: all may read secrets that are mounted into containers, often.
pub(crate) fn load_named(file: &Path) -> Result<Root, CredentialsError> {
    match given()? {
        Some(keys) => Ok(Root::given(keys)),
        None => read_or_draw(file),
    }
}

/// The credentials in a file of Larder's own, drawn just now if it was missing.
///
/// # Errors
/// [`CredentialsError::Exposed`] if everybody can read it.
pub(crate) fn load_file(path: &Path) -> Result<Root, CredentialsError> {
    check_rights(path)?;
    read_or_draw(path)
}

/// Larder makes the file for its owner alone: others' rights come of a careless copy. A link in its place was made by an
/// operator, like a mounted secret. A group's rights are left alone: orchestrators give volumes to a group, and its rights to
/// all files in them, at each mount.
fn check_rights(path: &Path) -> Result<(), CredentialsError> {
    let name = path.display().to_string();
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(CredentialsError::File { path: name, source }),
    };
    let mode = about.mode() & 0o7777;
    match about.is_file() && mode & OF_OTHERS != 0 {
        true => Err(CredentialsError::Exposed { path: name, mode }),
        false => Ok(()),
    }
}

fn read_or_draw(path: &Path) -> Result<Root, CredentialsError> {
    if let Some(root) = read(path)? {
        return Ok(root);
    }
    let fail = |source| CredentialsError::File { path: path.display().to_string(), source };
    // Of an operator's secret that is not mounted yet.
    if path.is_symlink() {
        return Err(fail(std::io::ErrorKind::NotFound.into()));
    }
    let drawn = drawn();
    private_file::write(path, format!("{UNSEEN}{}", text(&drawn, None))).map_err(fail)?;
    Ok(Root { keys: drawn, previous: None, from_file: true, unseen: true, drawn: true })
}

/// The pairs in a file; `None` if there is none.
fn read(path: &Path) -> Result<Option<Root>, CredentialsError> {
    let name = path.display().to_string();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(CredentialsError::File { path: name, source }),
    };
    // The parser's own words could quote the secret.
    let kept: Kept = toml::from_str(&text).map_err(|_| CredentialsError::Content {
        path: name,
        reason: "it must have access_key and secret_key".to_owned(),
    })?;
    let Kept { access_key, secret_key, previous } = kept;
    let keys = Credentials { access_key, secret_key };
    let pair = |Pair { access_key, secret_key }| Credentials { access_key, secret_key };
    let (previous, unseen) = (previous.map(pair), text.starts_with(UNSEEN));
    Ok(Some(Root { keys, previous, from_file: true, unseen, drawn: false }))
}

/// Keeps these in a file, unless it has them already: it may say that they were not shown yet.
pub(crate) fn keep(path: &Path, root: &Credentials) -> std::io::Result<()> {
    let is_kept = |kept: String| kept.strip_prefix(UNSEEN).unwrap_or(&kept) == text(root, None);
    if fs::read_to_string(path).is_ok_and(is_kept) { Ok(()) } else { write(path, root, None) }
}

/// Writes these in place of what is there, with the pair before if that is to be taken, too.
pub(crate) fn write(
    path: &Path,
    root: &Credentials,
    previous: Option<&Credentials>,
) -> std::io::Result<()> {
    private_file::write(path, text(root, previous))
}

/// A new pair.
pub(crate) fn drawn() -> Credentials {
    Credentials { access_key: draw(20, ACCESS_CHARS), secret_key: draw(40, SECRET_CHARS) }
}

/// The current pair in a file of an operator's.
///
/// # Errors
/// If there is none, or requests cannot be signed with it.
pub(crate) fn read_given(path: &Path) -> Result<Credentials, CredentialsError> {
    Ok(read_whole(path)?.keys)
}

/// The pairs in a file of Larder's own, which is not made.
///
/// # Errors
/// If there is none, everybody can read it, or requests cannot be signed with them.
pub(crate) fn read_kept(path: &Path) -> Result<Root, CredentialsError> {
    check_rights(path)?;
    read_whole(path)
}

fn read_whole(path: &Path) -> Result<Root, CredentialsError> {
    let name = || path.display().to_string();
    let Some(root) = read(path)? else {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(CredentialsError::File { path: name(), source });
    };
    for pair in std::iter::once(&root.keys).chain(&root.previous) {
        pair.check().map_err(|error| CredentialsError::Content {
            path: name(),
            reason: error.to_string(),
        })?;
    }
    Ok(root)
}

/// Notes that these were shown, unless the file has changed since.
fn mark_seen(path: &Path, root: &Credentials) -> std::io::Result<()> {
    match fs::read_to_string(path)?.strip_prefix(UNSEEN) {
        Some(rest) if rest == text(root, None) => private_file::write(path, rest),
        _ => Ok(()),
    }
}

fn text(root: &Credentials, previous: Option<&Credentials>) -> String {
    let Credentials { access_key, secret_key } = root.clone();
    let previous = previous.cloned();
    let pair = |Credentials { access_key, secret_key }| Pair { access_key, secret_key };
    let kept = Kept { access_key, secret_key, previous: previous.map(pair) };
    toml::to_string(&kept).expect("texts are TOML")
}

fn draw(len: usize, alphabet: &[u8]) -> String {
    assert!(alphabet.len().is_power_of_two(), "every letter is equally likely");
    let mut bytes = vec![0; len];
    larder_env::rng::fill_secret(&mut bytes);
    bytes.iter().map(|byte| char::from(alphabet[*byte as usize % alphabet.len()])).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Output of a start, and true if it showed the keys.
    fn start(path: &Path, is_terminal: bool) -> (String, bool) {
        let mut said = Vec::new();
        let shows = load_file(path).unwrap().show_once_on(&mut said, is_terminal, path);
        (String::from_utf8(said).unwrap(), shows)
    }

    #[test]
    fn drawn_keys_are_shown_once_by_the_first_start_on_a_terminal_that_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let keys = load_file(&path).unwrap().keys;
        assert!(load_file(&path).unwrap().unseen, "no start has succeeded");
        let named = format!("Root credentials are kept in {}\n", path.display());
        // As a service, twice.
        for _start in 0..2 {
            assert_eq!(start(&path, false), (named.clone(), false));
        }
        let (said, shows) = start(&path, true);
        assert!(shows && said.starts_with(&named), "{said}");
        for key in [&keys.access_key, &keys.secret_key] {
            assert!(said.contains(key.as_str()), "{said}");
        }
        for is_terminal in [true, false] {
            assert_eq!(start(&path, is_terminal), (named.clone(), false));
        }
        assert_eq!(load_file(&path).unwrap().keys.secret_key, keys.secret_key);
    }

    #[test]
    fn keys_that_could_not_be_written_to_the_terminal_stay_unseen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let root = load_file(&path).unwrap();
        // Room for the name of the file, and for no keys.
        let mut room = vec![0; path.as_os_str().len() + 40];
        assert!(!root.show_once_on(&mut room.as_mut_slice(), true, &path));
        assert!(load_file(&path).unwrap().unseen);
    }

    #[test]
    fn keys_of_the_environment_are_not_shown_and_no_file_is_named() {
        let keys = Credentials { access_key: "AAA".to_owned(), secret_key: "B".repeat(8) };
        let mut said = Vec::new();
        assert!(!Root::given(keys).show_once_on(&mut said, true, Path::new("/nowhere")));
        assert!(said.is_empty());
    }

    #[test]
    fn keys_that_are_kept_already_stay_unseen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let drawn = load_file(&path).unwrap();
        assert!(drawn.drawn);
        keep(&path, &drawn.keys).unwrap();
        let kept = load_file(&path).unwrap();
        assert!(kept.unseen && !kept.drawn, "the founder of a cluster is never shown its keys");
        let others = Credentials { access_key: "AAA".to_owned(), secret_key: "B".repeat(8) };
        keep(&path, &others).unwrap();
        let kept = load_file(&path).unwrap();
        assert!(!kept.unseen && kept.keys.access_key == "AAA");
    }

    #[test]
    fn the_pair_before_is_kept_beside_the_current_one_and_both_are_read_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let pair = |access: &str, secret: &str| Credentials {
            access_key: access.to_owned(),
            secret_key: secret.to_owned(),
        };
        let (new, old) = (pair("new", r#"with "quotes" and \ "#), pair("old", "12345678"));
        write(&path, &new, Some(&old)).unwrap();
        let kept = load_file(&path).unwrap();
        let written = |pair: &Credentials| (pair.access_key.clone(), pair.secret_key.clone());
        assert_eq!(written(&kept.keys), written(&new));
        assert_eq!(kept.previous.as_ref().map(written), Some(written(&old)));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(written(&read_given(&path).unwrap()), written(&new));
        write(&path, &new, None).unwrap();
        assert!(load_file(&path).unwrap().previous.is_none());
        let plain = "access_key = \"old\"\nsecret_key = \"12345678\"\n";
        assert_eq!(text(&old, None), plain, "as every release reads it");
        let missing = read_given(&dir.path().join("other.toml")).unwrap_err();
        assert!(missing.to_string().contains("other.toml"), "{missing}");
    }

    #[test]
    fn keys_are_drawn_once_and_kept_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let first = load_file(&path).unwrap().keys;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = load_file(&path).unwrap().keys;
        assert_eq!((first.access_key, first.secret_key), (second.access_key, second.secret_key));
    }

    #[test]
    fn keys_that_everybody_can_read_are_refused_unless_an_operator_keeps_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        drop(load_file(&path).unwrap());
        let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o644, 0o604, 0o602] {
            set(mode);
            let refused = load_file(&path).err().unwrap();
            assert_eq!(refused.code(), exit::USAGE);
            let remedy = format!("(mode {mode:04o}): run `chmod 600 {}`", path.display());
            assert!(refused.to_string().contains(&remedy), "{refused}");
        }
        for mode in [0o600, 0o400, 0o660] {
            set(mode);
            assert!(load_file(&path).is_ok(), "{mode:o}");
        }
        set(0o644);
        assert!(load_named(&path).is_ok(), "a file that an operator named");
        let link = dir.path().join("link.toml");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(load_file(&link).is_ok(), "a secret that is mounted in its place");
    }

    #[test]
    fn a_broken_file_is_refused_without_quoting_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        private_file::write(&path, "secret_key = \"hush").unwrap();
        let error = load_file(&path).err().unwrap().to_string();
        assert!(error.contains(FILE) && !error.contains("hush"), "{error}");
    }
}
