//! Paths below the mount's root, and the keys that they are.
//!
//! A path is names joined by `/`. A file's key is its path. A directory is there when a key begins with its path and `/`.
//! The key that has nothing behind that is its *marker*.
//!
//! Keys that no path leads to are not shown and never made: with an empty name, `.` or `..` in them, a NUL, or a name longer
//! than [`NAME_BYTES_MAX`].

use std::ffi::OsStr;

use larder_types::ObjectKey;
use larder_types::limits::KEY_BYTES_MAX;

use crate::limits::NAME_BYTES_MAX;
use crate::refusal::Refusal;

/// A path below the root; the root's own is empty. No `/` at either end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreePath(String);

impl TreePath {
    /// The root.
    #[must_use]
    pub fn root() -> Self {
        Self(String::new())
    }

    /// The path that a key is a file at; none if no path leads to it.
    #[must_use]
    pub fn of_key(key: &ObjectKey) -> Option<Self> {
        key.as_str().split('/').all(is_name).then(|| Self(key.as_str().to_owned()))
    }

    /// True if it is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path of `name` in this directory.
    ///
    /// # Errors
    /// [`Refusal::NameNotText`], [`Refusal::NameTooLong`] also if the key would be, [`Refusal::Invalid`].
    pub fn child(&self, name: &OsStr) -> Result<Self, Refusal> {
        let name = name.to_str().ok_or(Refusal::NameNotText)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Refusal::NameTooLong);
        }
        if !is_name(name) {
            return Err(Refusal::Invalid);
        }
        Self(format!("{}{name}", self.below())).fitting()
    }

    /// This path, if the directory of that name has a key too.
    fn fitting(self) -> Result<Self, Refusal> {
        match self.0.len() < KEY_BYTES_MAX {
            true => Ok(self),
            false => Err(Refusal::NameTooLong),
        }
    }

    /// The directory that it is in; none for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        Some(Self(self.0.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned()))
    }

    /// The prefix of the keys below this directory.
    #[must_use]
    pub fn below(&self) -> String {
        if self.is_root() { String::new() } else { format!("{}/", self.0) }
    }

    /// Its key as a file. The root has none.
    ///
    /// # Errors
    /// [`Refusal::IsADirectory`] for the root.
    pub fn file_key(&self) -> Result<ObjectKey, Refusal> {
        ObjectKey::new(&self.0).map_err(|_| Refusal::IsADirectory)
    }

    /// Its marker's key as a directory. The root needs none.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`] for the root.
    pub fn marker_key(&self) -> Result<ObjectKey, Refusal> {
        ObjectKey::new(&self.below()).map_err(|_| Refusal::NotPermitted)
    }

    /// Where this path, at or below `from`, is when `from` is renamed to `to`; none if it is elsewhere.
    #[must_use]
    pub fn moved(&self, from: &Self, to: &Self) -> Option<Self> {
        if self == from {
            return Some(to.clone());
        }
        Some(Self(format!("{}{}", to.below(), self.0.strip_prefix(&from.below())?)))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// True if a name can be a file's.
#[must_use]
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name != "."
        && name != ".."
        && name.len() <= NAME_BYTES_MAX
        && !name.contains(['/', '\0'])
}

#[cfg(test)]
pub(crate) fn path(text: &str) -> TreePath {
    TreePath(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_path_is_a_key_and_a_directory_what_keys_begin_with() {
        let docs = TreePath::root().child(OsStr::new("docs")).unwrap();
        let file = docs.child(OsStr::new("a b.txt")).unwrap();
        assert_eq!(file.file_key().unwrap().as_str(), "docs/a b.txt");
        assert_eq!(docs.marker_key().unwrap().as_str(), "docs/");
        assert_eq!((docs.below(), TreePath::root().below()), ("docs/".into(), String::new()));
        assert_eq!(file.parent(), Some(docs.clone()));
        assert_eq!((docs.parent(), TreePath::root().parent()), (Some(TreePath::root()), None));
        assert_eq!(TreePath::root().file_key(), Err(Refusal::IsADirectory));
    }

    #[test]
    fn names_that_no_key_can_have_are_refused() {
        let refused = |name: &[u8]| TreePath::root().child(OsStr::from_bytes(name)).unwrap_err();
        assert_eq!(refused(b"\xff"), Refusal::NameNotText);
        assert_eq!(refused(b".."), Refusal::Invalid);
        assert_eq!(refused(&[b'n'; 256]), Refusal::NameTooLong);
        let mut deep = TreePath::root();
        let refusal = loop {
            match deep.child(OsStr::new(&"d".repeat(100))) {
                Ok(child) => deep = child,
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(refusal, Refusal::NameTooLong);
        assert!(deep.marker_key().is_ok(), "what was allowed has a key, as a directory too");
    }

    #[test]
    fn a_subtree_moves_and_its_neighbours_do_not() {
        let moved = |it: &str| path(it).moved(&path("a/b"), &path("c"));
        assert_eq!(moved("a/b"), Some(path("c")));
        assert_eq!(moved("a/b/x/y"), Some(path("c/x/y")));
        assert_eq!((moved("a/bx"), moved("a")), (None, None));
    }
}
