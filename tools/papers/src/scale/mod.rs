//! `larder-papers scale`: what a thousand servers with ten thousand disks cost the managers.
//!
//! The map, the managers' log and the servers' talk are counted in bytes; the steps of the leading manager are timed on the
//! machine that runs this. Then a rack is lost, and a smaller cluster grows by a tenth.
//!
//! # Invariants
//!
//! - Counts are the same on any machine; times are not, and the page says where they were taken.
//!
//! | module | what it has |
//! |---|---|
//! | [`measure`] | what is counted and timed |
//! | [`show`] | the page |

mod measure;
mod show;
#[cfg(test)]
mod tests;

use larder_plot::document::{DocumentError, Part, with_part, write};

use crate::Options;

/// The page below the folder of documents.
const PAGE: &str = "benchmarks/papers-scale.md";

fn part() -> Part {
    Part::new("larder-papers", "scale", "papers", "papers-scale")
}

/// Measures, and writes the page.
///
/// # Errors
/// [`DocumentError`] if it cannot be written.
pub(crate) fn run(options: &Options) -> Result<(), DocumentError> {
    let (part, page) = (part(), options.docs.join(PAGE));
    with_part(&page, &part, "")?;
    let text = show::page(&measure::run(options), options);
    write(&page, &with_part(&page, &part, &text)?)?;
    println!("{text}");
    Ok(())
}
