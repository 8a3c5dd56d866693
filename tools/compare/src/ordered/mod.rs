//! `larder-compare ordered`: what it gains to write metadata and data in parallel, and what the other parts of the
//! design gain, each against a cluster without it.
//!
//! It runs clusters of this program, `dev-cluster` on this machine, and slows down network and disks in their ports.
//! Ordered puts are in no crate: the program has to be built with the patch `ordered` of `tools/ablations`.
//!
//! # Invariants
//!
//! - Parallel and ordered puts are measured in one cluster, one after the other, each pair in an order drawn anew: they
//!   differ in nothing but the proxy that takes them. What disturbs the machine disturbs both.
//! - Ratios are those of one round; what is shown is their median.
//!
//! | module | what it answers |
//! |---|---|
//! | [`cases`] | which delays, which variants, and the least time that each can take |
//! | [`measure`] | the results |
//! | [`show`] | tables and plots |

mod cases;
mod measure;
mod show;

use crate::args::OrderedArgs;
use crate::document::{self, write};
use crate::error::CompareError;
use measure::Results;

/// The part of the documents that is written.
const PART: &str = "ordered";

/// Measures, writes the documents and gives the number of rows with an error.
///
/// # Errors
/// [`CompareError`] if there is no result.
pub(crate) fn run(args: &OrderedArgs) -> Result<u64, CompareError> {
    let part = document::of_command("ordered", PART);
    let page = args.docs.join(part.page());
    document::with_part(&page, &part, "")?;
    let results = match &args.from {
        Some(file) => Results::read(file, &part)?,
        None => measure::run(args)?,
    };
    write(&args.docs.join(part.rows()), &results.json())?;
    let plots = show::plots(&results);
    for plot in &plots {
        write(&args.docs.join(part.plots()).join(plot.file), &plot.svg)?;
    }
    let text = show::page(&results, &plots, &part);
    write(&page, &document::with_part(&page, &part, &text)?)?;
    println!("{text}");
    Ok(results.faults())
}
