//! `larder-compare rebalance`: a cluster that grows for eight years, with rebalancing and without, in simulated time.
//!
//! The planner of the managers, [`larder_protocol::placement`], moves volumes; the cluster around it is modelled
//! ([`cluster`]). The set-up is that of Ambry (SIGMOD 2016, section 6.3): 15 data servers of 10 disks at first and 240 in
//! the end, over 400 weeks. Volumes have three copies, fill and turn read-only. Reads go mostly to young objects.
//!
//! # Invariants
//!
//! - One seed makes one document: nothing in it was measured on a clock.
//! - Runs that are compared get the same writes. They differ in the planner alone, and in what follows from it: where new
//!   volumes go, as that depends on the room that disks have.
//!
//! | module | what it answers |
//! |---|---|
//! | [`cluster`] | what is modelled |
//! | [`moves`] | how the planner is asked, and its moves carried out |
//! | [`measure`] | how even the disks are, and what was moved |
//! | [`cases`] | which runs there are |
//! | [`show`] | tables and plots |

mod cases;
mod cluster;
mod measure;
mod moves;
mod show;

use crate::args::RebalanceArgs;
use crate::document::{self, write};
use crate::error::CompareError;

/// The part of the documents that is written.
const PART: &str = "rebalance";
/// The page below the folder of documents.
const PAGE: &str = "rebalancing.md";

/// Simulates, writes the documents and gives the number of errors: there are none.
///
/// # Errors
/// [`CompareError`] if a document cannot be written.
pub(crate) fn run(args: &RebalanceArgs) -> Result<u64, CompareError> {
    let part = document::of_command("rebalance", PART);
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
