//! `larder-papers cheetah`: meta servers are added, as in Figure 10 of the paper on Cheetah.
//!
//! There throughput grows with the number of meta servers, from 3 to 15. All requests of a key go to the primary of its
//! placement group, so the busiest server bounds the whole. Its share is what the placement that ships makes of it.
//!
//! # Invariants
//!
//! - Nothing here was measured on a clock: placement is a function of ids.
//!
//! | module | what it has |
//! |---|---|
//! | [`balance`] | placement groups on meta servers |
//! | [`show`] | the page |

mod balance;
mod show;
#[cfg(test)]
mod tests;

use larder_plot::document::{DocumentError, Part, with_part, write};

use crate::Options;

/// The page below the folder of documents.
const PAGE: &str = "benchmarks/papers-cheetah.md";

fn part() -> Part {
    Part::new("larder-papers", "cheetah", "papers", "papers-cheetah")
}

/// Places groups, and writes the page.
///
/// # Errors
/// [`DocumentError`] if it cannot be written.
pub(crate) fn run(options: &Options) -> Result<(), DocumentError> {
    let (part, page) = (part(), options.docs.join(PAGE));
    with_part(&page, &part, "")?;
    let rows = balance::run(options);
    let plots = show::plots(&rows);
    for plot in &plots {
        write(&options.docs.join(part.plots()).join(plot.file), &plot.svg)?;
    }
    let text = show::page(&rows, &plots, &part, options);
    write(&page, &with_part(&page, &part, &text)?)?;
    println!("{text}");
    Ok(())
}
