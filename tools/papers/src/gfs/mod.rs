//! `larder-papers gfs`: servers are lost, as in Ghemawat et al., *The Google File System* (SOSP 2003), section 6.2.5.
//!
//! There one server of 227 with 600 GB was killed, and all chunks had their copies again in 23.2 minutes. Of two killed at
//! once 266 chunks had a single copy left, and a second one within 2 minutes.
//!
//! # Invariants
//!
//! - One seed makes one page: nothing in it was measured on a clock.
//!
//! | module | what it has |
//! |---|---|
//! | [`cases`] | the runs |
//! | [`show`] | the page |

mod cases;
mod show;
#[cfg(test)]
mod tests;

use larder_plot::document::{DocumentError, Part, with_part, write};

use crate::Options;

/// The page below the folder of documents.
const PAGE: &str = "benchmarks/papers-gfs.md";

fn part() -> Part {
    Part::new("larder-papers", "gfs", "papers", "papers-gfs")
}

/// Simulates, and writes the page.
///
/// # Errors
/// [`DocumentError`] if it cannot be written.
pub(crate) fn run(options: &Options) -> Result<(), DocumentError> {
    let (part, page) = (part(), options.docs.join(PAGE));
    with_part(&page, &part, "")?;
    let rows = cases::run(options);
    let plots = show::plots(&rows);
    for plot in &plots {
        write(&options.docs.join(part.plots()).join(plot.file), &plot.svg)?;
    }
    let text = show::page(&rows, &plots, &part, options);
    write(&page, &with_part(&page, &part, &text)?)?;
    println!("{text}");
    Ok(())
}
