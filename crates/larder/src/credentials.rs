//! Root credentials: drawn at the first start, kept in a file that only its owner can read.

use std::fs;
use std::path::Path;

use larder_s3::Credentials;
use serde::Deserialize;

use crate::private;

/// File in the store's directory.
pub(crate) const FILE: &str = "credentials.toml";
/// Overrides the access key at every start.
pub(crate) const ACCESS_VARIABLE: &str = "LARDER_ROOT_ACCESS_KEY";
/// Overrides the secret key at every start.
pub(crate) const SECRET_VARIABLE: &str = "LARDER_ROOT_SECRET_KEY";

const ACCESS_CHARS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const SECRET_CHARS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    access_key: String,
    secret_key: String,
}

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error(
        "{path} is not what it should be ({reason}); restore it, or delete it to draw new keys"
    )]
    Content { path: String, reason: String },
    #[error("{set} is set but {missing} is not: set both, or neither")]
    Half { set: &'static str, missing: &'static str },
}

/// The root credentials, of the environment or else of this file, and whether they were drawn just now.
pub(crate) fn load(file: &Path) -> Result<(Credentials, bool), CredentialsError> {
    let given = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (given(ACCESS_VARIABLE), given(SECRET_VARIABLE)) {
        (Some(access_key), Some(secret_key)) => Ok((Credentials { access_key, secret_key }, false)),
        (Some(_), None) => {
            Err(CredentialsError::Half { set: ACCESS_VARIABLE, missing: SECRET_VARIABLE })
        }
        (None, Some(_)) => {
            Err(CredentialsError::Half { set: SECRET_VARIABLE, missing: ACCESS_VARIABLE })
        }
        (None, None) => load_file(file),
    }
}

/// The credentials in a file, drawn just now if it was missing.
pub(crate) fn load_file(path: &Path) -> Result<(Credentials, bool), CredentialsError> {
    let name = path.display().to_string();
    let fail = |source| CredentialsError::File { path: name.clone(), source };
    match fs::read_to_string(path) {
        Ok(text) => {
            // The parser's own words could quote the secret.
            let kept: Kept = toml::from_str(&text).map_err(|_| CredentialsError::Content {
                path: name.clone(),
                reason: "it must have access_key and secret_key".to_owned(),
            })?;
            let Kept { access_key, secret_key } = kept;
            Ok((Credentials { access_key, secret_key }, false))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let drawn = Credentials {
                access_key: draw(20, ACCESS_CHARS),
                secret_key: draw(40, SECRET_CHARS),
            };
            keep(path, &drawn).map_err(fail)?;
            Ok((drawn, true))
        }
        Err(error) => Err(fail(error)),
    }
}

/// Keeps these in a file.
pub(crate) fn keep(path: &Path, root: &Credentials) -> std::io::Result<()> {
    let (access, secret) = (&root.access_key, &root.secret_key);
    private::write(path, &format!("access_key = \"{access}\"\nsecret_key = \"{secret}\"\n"))
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

    #[test]
    fn keys_are_drawn_once_and_kept_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let (first, drawn) = load_file(&path).unwrap();
        assert!(drawn);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (second, drawn) = load_file(&path).unwrap();
        assert!(!drawn);
        assert_eq!((first.access_key, first.secret_key), (second.access_key, second.secret_key));
    }

    #[test]
    fn a_broken_file_is_refused_without_quoting_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        fs::write(&path, "secret_key = \"hush").unwrap();
        let error = load_file(&path).unwrap_err().to_string();
        assert!(error.contains(FILE) && !error.contains("hush"), "{error}");
    }
}
