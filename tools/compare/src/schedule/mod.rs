//! `larder-compare schedule`: policies of the read scheduler on modelled disks, in simulated time.
//!
//! The machines are those of `larder_protocol::scheduler`; what stands around them is modelled ([`world`]). The set-up is
//! that of Shi et al. (An approach to improve I/O parallelism for strong consistent distributed object storage, 2019). It
//! has 5 data servers with 30 disks, 512 placement groups, three copies, 100,000 objects of 4 KiB.
//!
//! # Invariants
//!
//! - One seed makes one document: nothing in it was measured on a clock.
//! - Runs that are compared differ in what is compared alone: the layout and the requests are drawn of the same seed.
//!
//! | module | what it answers |
//! |---|---|
//! | [`disk`], [`layout`] | what is modelled |
//! | [`world`] | how it moves |
//! | [`cases`] | which runs there are |
//! | [`show`] | tables and plots |

mod cases;
mod disk;
mod layout;
mod show;
mod world;

use crate::args::ScheduleArgs;
use crate::document::{self, write};
use crate::error::CompareError;

/// The part of the documents that is written.
const PART: &str = "schedule";
/// The page below the folder of documents.
const PAGE: &str = "scheduling.md";

/// Simulates, writes the documents and gives the number of errors: there are none.
///
/// # Errors
/// [`CompareError`] if a document cannot be written.
pub(crate) fn run(args: &ScheduleArgs) -> Result<u64, CompareError> {
    let part = document::of_command("schedule", PART);
    let page = args.docs.join(PAGE);
    document::with_part(&page, &part, "")?;
    let rows = cases::run(args);
    let plots = show::plots(&rows);
    for plot in &plots {
        write(&args.docs.join(part.plots()).join(plot.file), &plot.svg)?;
    }
    let text = show::page(&rows, &plots, &part, args);
    write(&page, &document::with_part(&page, &part, &text)?)?;
    println!("{text}");
    Ok(0)
}

#[cfg(test)]
mod tests;
