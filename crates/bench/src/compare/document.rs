//! The part of a document that is made, between two marks; what is around them stays as written.

use std::fs;
use std::io;
use std::path::Path;

use crate::BenchError;

/// The marks: comments that Markdown does not show.
const BEGIN: &str = "<!-- compare: made by `larder bench compare`, not by hand -->";
const END: &str = "<!-- compare: end -->";

/// The document `path` with its made part replaced; a new one if there is none.
///
/// # Errors
/// [`BenchError::File`], or [`BenchError::Document`] if the marks are not there.
pub(super) fn with_part(path: &Path, part: &str) -> Result<String, BenchError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("# Benchmarks\n\n{BEGIN}\n{END}\n")
        }
        Err(source) => return Err(BenchError::File { path: path.to_owned(), source }),
    };
    replace(&text, part).ok_or_else(|| BenchError::Document {
        path: path.to_owned(),
        reason: format!("the table's place is not marked: write {BEGIN} and, below it, {END}"),
    })
}

/// `None` unless each mark is there once, in order.
fn replace(text: &str, part: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (old, after) = rest.split_once(END)?;
    let again = |text: &str| text.contains(BEGIN) || text.contains(END);
    (!again(before) && !again(old) && !again(after))
        .then(|| format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", part.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_around_the_marks_stays() {
        let text = format!("# Head\n\n{BEGIN}\nold\n{END}\n\n## By hand\n");
        let new = replace(&text, "new\n").unwrap();
        assert_eq!(new, format!("# Head\n\n{BEGIN}\n\nnew\n\n{END}\n\n## By hand\n"));
        assert_eq!(replace(&new, "new").unwrap(), new, "making it again changes nothing");
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
            assert_eq!(replace(&text, "new"), None, "{text}");
        }
    }

    #[test]
    fn a_document_that_is_not_there_begins_with_the_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("benchmarks.md");
        assert!(with_part(&path, "part").unwrap().contains("part"));
        fs::write(&path, "no marks").unwrap();
        let error = with_part(&path, "part").unwrap_err().to_string();
        assert!(error.contains(BEGIN) && error.contains("benchmarks.md"), "{error}");
    }
}
