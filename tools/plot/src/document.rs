//! The parts of a document that are made, each between two marks; what is around them stays as
//! written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Errors of a document, sorted by what to do about them.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// Mend the file.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Mend the document.
    #[error("{}: {reason}", path.display())]
    Marks {
        /// The document.
        path: PathBuf,
        /// The fault, and what would be right.
        reason: String,
    },
}

/// One made part of the document, and the files that belong to it.
#[derive(Debug)]
pub struct Part {
    /// The program that makes it.
    program: &'static str,
    /// The command of it.
    command: &'static str,
    /// The word that its marks begin with.
    kind: &'static str,
    /// Empty: the first one, which has no name.
    name: String,
}

impl Part {
    /// The part that a command of a program makes: with `larder-compare`, `systems` and `compare` the marks begin with
    /// `compare`, and say `larder-compare systems`.
    #[must_use]
    pub fn new(
        program: &'static str,
        command: &'static str,
        kind: &'static str,
        name: &str,
    ) -> Self {
        Self { program, command, kind, name: name.to_owned() }
    }

    /// Its title: the systems or the thing compared.
    #[must_use]
    pub fn title(&self) -> &str {
        if self.name.is_empty() { "all systems" } else { &self.name }
    }

    /// The page that shows a part of a comparison, below the folder of documents.
    #[must_use]
    pub fn page(&self) -> String {
        format!("benchmarks/{}.md", self.title().replace(' ', "-"))
    }

    /// The file of its rows.
    #[must_use]
    pub fn rows(&self) -> String {
        format!("benchmarks{}.json", self.after("-"))
    }

    /// The folder of its plots.
    #[must_use]
    pub fn plots(&self) -> String {
        format!("plots{}", self.after("-"))
    }

    /// The marks: comments that Markdown does not show.
    fn marks(&self) -> (String, String) {
        let Self { program, command, kind, .. } = self;
        let name = self.after(" ");
        (
            format!("<!-- {kind}{name}: made by `{program} {command}`, not by hand -->"),
            format!("<!-- {kind}{name}: end -->"),
        )
    }

    fn after(&self, sign: &str) -> String {
        if self.name.is_empty() { String::new() } else { format!("{sign}{}", self.name) }
    }
}

/// The document `path` with this made part replaced by `text`; a new one if there is none.
///
/// # Errors
/// [`DocumentError::File`], or [`DocumentError::Marks`] if the marks are not there.
pub fn with_part(path: &Path, part: &Part, text: &str) -> Result<String, DocumentError> {
    let (begin, end) = part.marks();
    let old = match fs::read_to_string(path) {
        Ok(old) => old,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("# Benchmarks: {}\n\n{begin}\n{end}\n", part.title())
        }
        Err(source) => return Err(DocumentError::File { path: path.to_owned(), source }),
    };
    replace(&old, (&begin, &end), text).ok_or_else(|| DocumentError::Marks {
        path: path.to_owned(),
        reason: format!("the table's place is not marked: write {begin} and, below it, {end}"),
    })
}

/// Writes a file, and the folder that it is in.
///
/// # Errors
/// [`DocumentError::File`].
pub fn write(path: &Path, text: &str) -> Result<(), DocumentError> {
    let failed = |source| DocumentError::File { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)
}

/// `None` unless each mark is there once, in order.
fn replace(document: &str, (begin, end): (&str, &str), text: &str) -> Option<String> {
    let (before, rest) = document.split_once(begin)?;
    let (old, after) = rest.split_once(end)?;
    let again = |text: &str| text.contains(begin) || text.contains(end);
    (!again(before) && !again(old) && !again(after))
        .then(|| format!("{before}{begin}\n\n{}\n\n{end}{after}", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: (&str, &str) = ("<!-- begin -->", "<!-- end -->");
    const BEGIN: &str = MARKS.0;
    const END: &str = MARKS.1;

    fn part(name: &str) -> Part {
        Part::new("larder-compare", "systems", "compare", name)
    }

    #[test]
    fn what_is_around_the_marks_stays() {
        let text = format!("# Head\n\n{BEGIN}\nold\n{END}\n\n## By hand\n");
        let new = replace(&text, MARKS, "new\n").unwrap();
        assert_eq!(new, format!("# Head\n\n{BEGIN}\n\nnew\n\n{END}\n\n## By hand\n"));
        assert_eq!(replace(&new, MARKS, "new").unwrap(), new, "making it again changes nothing");
    }

    #[test]
    fn marks_that_are_missing_doubled_or_in_the_wrong_order_are_refused() {
        for text in [
            String::new(),
            BEGIN.to_owned(),
            format!("{END}\n{BEGIN}\n"),
            format!("{BEGIN}\n{BEGIN}\n{END}\n"),
            format!("{BEGIN}\n{END}\n{END}\n"),
        ] {
            assert_eq!(replace(&text, MARKS, "new"), None, "{text}");
        }
    }

    #[test]
    fn a_document_that_is_not_there_begins_with_the_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("benchmarks.md");
        let part = part("");
        assert!(with_part(&path, &part, "text").unwrap().contains("text"));
        fs::write(&path, "no marks").unwrap();
        let error = with_part(&path, &part, "text").unwrap_err().to_string();
        assert!(error.contains(&part.marks().0) && error.contains("benchmarks.md"), "{error}");
    }

    #[test]
    fn parts_have_pages_marks_and_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("benchmarks.md");
        let (first, other) = (part(""), part("million"));
        let (a, b) = (first.marks(), other.marks());
        fs::write(&path, format!("{}\n{}\n{}\n{}\n", a.0, a.1, b.0, b.1)).unwrap();
        for (part, text) in [(&first, "one"), (&other, "two")] {
            fs::write(&path, with_part(&path, part, text).unwrap()).unwrap();
        }
        let both = fs::read_to_string(&path).unwrap();
        assert!(both.find("one") < both.find("two"), "{both}");
        assert_eq!(
            (first.rows(), other.rows()),
            ("benchmarks.json".into(), "benchmarks-million.json".into())
        );
        assert_eq!(
            (first.page(), other.page()),
            ("benchmarks/all-systems.md".into(), "benchmarks/million.md".into())
        );
    }
}
