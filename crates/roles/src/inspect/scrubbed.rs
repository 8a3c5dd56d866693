//! Reports the findings of a server's scrub from their file.

use larder_env::Disk;
use larder_protocol::scrub::Past;

use super::Report;
use crate::meta::{SCRUB_FILE, load_scrub};

/// Looks at the file. A copy that the scrub found bad is reported and no fault by itself: it may have been
/// mended since, and a reader of the data finds what was not.
pub(super) fn examine(disk: &dyn Disk, report: &mut Report) {
    report.section("scrub");
    let scrub = match load_scrub(disk) {
        Ok(None) => return report.line("nothing was verified yet".to_owned()),
        Ok(Some(Ok(scrub))) => scrub,
        Ok(Some(Err(error))) => return report.fault(format!("the file {SCRUB_FILE}: {error}")),
        Err(error) => {
            return report.fault(format!("the file {SCRUB_FILE} cannot be read: {error}"));
        }
    };
    if let Some(share) = scrub.share() {
        report.line(format!("a round was under way, {} % of it done", share / 10));
    }
    report.line(match scrub.past() {
        Some(Past { tally, .. }) => format!(
            "{} rounds; the last found {} copies right, {} damaged, {} without an answer",
            scrub.rounds(),
            tally.right,
            tally.bad,
            tally.unanswered
        ),
        None => "no round is over yet".to_owned(),
    });
    if scrub.bad() > 0 {
        report.line(format!("{} damaged copies: see the log, and read all data", scrub.bad()));
    }
}
