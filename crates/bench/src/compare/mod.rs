//! `larder bench compare`: larder, the floor and other stores, one after the other, on one machine.
//!
//! # Invariants
//! - All systems get the same works from the same client, in an order drawn anew for each round, on
//!   an empty directory of one file system. What is read is compared; warm-up does not count.
//! - Documents are looked at before anything is measured and written when all is: a comparison that
//!   is interrupted changes none.
//! - A system that fails a work gets a row that says so, and the others go on.
//!
//! | module | what it answers |
//! |---|---|
//! | [`systems`] | which systems there are, and how they are started |
//! | [`works`] | what they are given to do |
//! | [`rounds`], [`launch`], [`process`], [`usage`], [`machine`] | what came of it |
//! | [`results`], [`statistics`] | the rows, and what can be said of them |
//! | [`document`], [`tables`], [`plots`], [`svg`] | how it is shown |

mod document;
mod launch;
mod machine;
mod plots;
mod process;
mod results;
mod rounds;
mod statistics;
mod svg;
mod systems;
mod tables;
mod usage;
mod works;

use std::fs;
use std::path::{Path, PathBuf};

use crate::BenchError;
use crate::args::CompareArgs;
use results::Results;

/// Names below the folder of documents.
const ROWS: &str = "benchmarks.json";
const DOCUMENT: &str = "benchmarks.md";
const PLOTS: &str = "plots";

/// Compares, writes the documents and gives the number of works that larder or the floor failed.
///
/// # Errors
/// [`BenchError`] if there is no comparison.
pub fn run(args: &CompareArgs) -> Result<u64, BenchError> {
    let document = args.docs.join(DOCUMENT);
    document::with_part(&document, "")?;
    let (results, faults) = match &args.from {
        Some(file) => (Results::read(file)?, 0),
        None => {
            let results = rounds::run(args)?;
            write(&args.docs.join(ROWS), &results.json())?;
            let faults = faults(&results);
            (results, faults)
        }
    };
    let plots = plots::all(&results);
    let part = tables::render(&results, &plots);
    for plot in &plots {
        write(&args.docs.join(PLOTS).join(plot.file), &plot.svg)?;
    }
    write(&document, &document::with_part(&document, &part)?)?;
    println!("{part}");
    Ok(faults)
}

/// Works that larder or the floor, bare or not, failed.
fn faults(results: &Results) -> u64 {
    let ours =
        |name: &str| systems::KINDS.iter().any(|kind| kind.name == name && kind.peer.is_none());
    results.rows.iter().filter(|row| ours(&row.system) && row.is_fault()).count() as u64
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    let failed = |source| BenchError::File { path: PathBuf::from(path), source };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)
}
