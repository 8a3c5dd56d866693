//! `larder-compare systems`: larder, the floor and other stores, one after the other, on one machine.
//!
//! # Invariants
//! - All systems get the same works from the same client, in an order drawn anew for each round, on
//!   an empty directory of one file system. What is read is compared; warm-up does not count.
//! - Documents are looked at before anything is measured and written when all is: a comparison that
//!   is interrupted changes none.
//! - A system that fails a work gets a row that says so, and the others go on.

use crate::args::SystemsArgs;
use crate::document::{self, write};
use crate::error::CompareError;
use crate::results::Results;
use crate::{plots, rounds, systems, tables};

/// The part that a comparison of clusters writes, unless another is named.
const CLUSTER_PART: &str = "cluster";

/// Compares, writes the documents and gives the number of works that larder or the floor failed.
///
/// # Errors
/// [`CompareError`] if there is no comparison.
pub(crate) fn run(args: &SystemsArgs) -> Result<u64, CompareError> {
    let cluster = args.cluster.then_some(CLUSTER_PART);
    let part = document::named(args.part.as_deref().or(cluster))?;
    let document = args.docs.join(part.page());
    document::with_part(&document, &part, "")?;
    let (results, faults) = match &args.from {
        Some(file) => (Results::read(file)?, 0),
        None => {
            let results = rounds::run(args)?;
            write(&args.docs.join(part.rows()), &results.json())?;
            let faults = faults(&results);
            (results, faults)
        }
    };
    let plots = plots::all(&results);
    let text = tables::render(&results, &plots, &part);
    for plot in &plots {
        write(&args.docs.join(part.plots()).join(plot.file), &plot.svg)?;
    }
    write(&document, &document::with_part(&document, &part, &text)?)?;
    println!("{text}");
    Ok(faults)
}

/// Works that larder or the floor, bare or not, failed.
fn faults(results: &Results) -> u64 {
    let ours =
        |name: &str| systems::KINDS.iter().any(|kind| kind.name == name && kind.peer.is_none());
    let rows = results.rows.iter().filter(|row| ours(&row.system) && row.is_fault());
    let at_peaks = results.at_peaks.iter().filter(|at_peak| at_peak.is_fault());
    (rows.count() + at_peaks.count()) as u64
}
