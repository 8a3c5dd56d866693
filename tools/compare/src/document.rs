//! The parts of a document that are made, each between two marks; what is around them stays as
//! written.

use std::fs;
use std::io;
use std::path::Path;

use crate::error::CompareError;

/// One made part of the document, and the files that belong to it.
#[derive(Debug)]
pub(crate) struct Part {
    /// The command of `larder-compare` that makes it.
    command: &'static str,
    /// Empty: the first one, which has no name.
    name: String,
}

impl Part {
    /// # Errors
    /// [`CompareError::Usage`] unless the name is of small letters, digits and hyphens.
    pub(crate) fn new(name: Option<&str>) -> Result<Self, CompareError> {
        let is_plain = |name: &str| {
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            !name.is_empty() && name.bytes().all(plain)
        };
        match name {
            Some(name) if !is_plain(name) => Err(CompareError::usage(
                "--part",
                format!("{name:?} is not a name: write small letters, digits and hyphens"),
            )),
            name => Ok(Self::of_command("systems", name.unwrap_or_default())),
        }
    }

    /// The part that another command makes.
    pub(crate) fn of_command(command: &'static str, name: &str) -> Self {
        Self { command, name: name.to_owned() }
    }

    /// Its title: the systems or the thing compared.
    pub(crate) fn title(&self) -> &str {
        if self.name.is_empty() { "all systems" } else { &self.name }
    }

    /// The page that shows a part of a comparison, below the folder of documents.
    pub(crate) fn page(&self) -> String {
        format!("benchmarks/{}.md", self.title().replace(' ', "-"))
    }

    /// The file of its rows.
    pub(crate) fn rows(&self) -> String {
        format!("benchmarks{}.json", self.after("-"))
    }

    /// The folder of its plots.
    pub(crate) fn plots(&self) -> String {
        format!("plots{}", self.after("-"))
    }

    /// The marks: comments that Markdown does not show.
    fn marks(&self) -> (String, String) {
        let name = self.after(" ");
        (
            format!(
                "<!-- compare{name}: made by `larder-compare {}`, not by hand -->",
                self.command
            ),
            format!("<!-- compare{name}: end -->"),
        )
    }

    fn after(&self, sign: &str) -> String {
        if self.name.is_empty() { String::new() } else { format!("{sign}{}", self.name) }
    }
}

/// The document `path` with this made part replaced by `text`; a new one if there is none.
///
/// # Errors
/// [`CompareError::File`], or [`CompareError::Document`] if the marks are not there.
pub(crate) fn with_part(path: &Path, part: &Part, text: &str) -> Result<String, CompareError> {
    let (begin, end) = part.marks();
    let old = match fs::read_to_string(path) {
        Ok(old) => old,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("# Benchmarks: {}\n\n{begin}\n{end}\n", part.title())
        }
        Err(source) => return Err(CompareError::File { path: path.to_owned(), source }),
    };
    replace(&old, (&begin, &end), text).ok_or_else(|| CompareError::Document {
        path: path.to_owned(),
        reason: format!("the table's place is not marked: write {begin} and, below it, {end}"),
    })
}

/// Writes a file, and the folder that it is in.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), CompareError> {
    let failed = |source| CompareError::File { path: path.to_owned(), source };
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
        let part = Part::new(None).unwrap();
        assert!(with_part(&path, &part, "text").unwrap().contains("text"));
        fs::write(&path, "no marks").unwrap();
        let error = with_part(&path, &part, "text").unwrap_err().to_string();
        assert!(error.contains(&part.marks().0) && error.contains("benchmarks.md"), "{error}");
    }

    #[test]
    fn parts_have_pages_marks_and_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("benchmarks.md");
        let (first, other) = (Part::new(None).unwrap(), Part::new(Some("million")).unwrap());
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
        for name in ["", "A", "a/b", "a b"] {
            assert!(Part::new(Some(name)).is_err(), "{name}");
        }
    }
}
