//! `larder-compare policies`: compares ways to choose a copy, in clusters of real processes. All disks are well, or one is
//! slow, or one stands still now and then.
//!
//! Disks are modelled in the port of the data servers ([`cases`]): without that, everything here would be read from the
//! page cache of one machine.
//!
//! # Invariants
//!
//! - Each policy gets a cluster of its own in each state of the disks, and the same load; their order is drawn anew in
//!   each round.
//! - The load is an open loop: reads begin whether or not earlier ones have been answered, so that a stall is seen by all
//!   that were due in it.
//!
//! | module | what it answers |
//! |---|---|
//! | [`cases`] | which states of the disks, and which load |
//! | [`measure`] | the results |
//! | [`show`] | tables |

mod cases;
mod measure;
mod show;

use crate::args::PoliciesArgs;
use crate::document::{self, write};
use crate::error::CompareError;
use measure::Results;

/// The part of the documents that is written.
const PART: &str = "policies";
/// The page below the folder of documents.
const PAGE: &str = "scheduling.md";

/// Measures, writes the documents and gives the number of rows with an error.
///
/// # Errors
/// [`CompareError`] if there is no result.
pub(crate) fn run(args: &PoliciesArgs) -> Result<u64, CompareError> {
    let part = document::of_command("policies", PART);
    let page = args.docs.join(PAGE);
    document::with_part(&page, &part, "")?;
    let results = match &args.from {
        Some(file) => Results::read(file, &part)?,
        None => measure::run(args)?,
    };
    write(&args.docs.join(part.rows()), &results.json())?;
    let text = show::page(&results, &part);
    write(&page, &document::with_part(&page, &part, &text)?)?;
    println!("{text}");
    Ok(results.faults())
}
