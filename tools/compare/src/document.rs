//! The parts of the documents that this program makes.

pub(crate) use larder_plot::document::{Part, with_part, write};

use crate::error::CompareError;

/// The part that `systems` makes, of this name.
///
/// # Errors
/// [`CompareError::Usage`] unless the name is of small letters, digits and hyphens.
pub(crate) fn named(name: Option<&str>) -> Result<Part, CompareError> {
    let is_plain = |name: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !name.is_empty() && name.bytes().all(plain)
    };
    match name {
        Some(name) if !is_plain(name) => Err(CompareError::usage(
            "--part",
            format!("{name:?} is not a name: write small letters, digits and hyphens"),
        )),
        name => Ok(of_command("systems", name.unwrap_or_default())),
    }
}

/// The part that a command makes.
pub(crate) fn of_command(command: &'static str, name: &str) -> Part {
    Part::new("larder-compare", command, "compare", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_a_plain_name() {
        for name in ["", "A", "a/b", "a b"] {
            assert!(named(Some(name)).is_err(), "{name}");
        }
        assert!(named(Some("a-1")).is_ok());
    }
}
