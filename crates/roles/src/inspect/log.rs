//! Checks the metadata log: its chain and its checksums.

use larder_env::Disk;
use larder_metalog::Recovered;

use super::Report;
use crate::meta::LOG_DIR;

/// Visits the records of the log, and reports on it. True if nothing in it is damaged; `None` if it cannot be read.
pub(super) fn scan(
    disk: &dyn Disk,
    report: &mut Report,
    visit: &mut dyn FnMut(Recovered<'_>),
) -> Option<bool> {
    let scanned = match larder_metalog::scan(disk, LOG_DIR, visit) {
        Ok(scanned) => scanned,
        Err(error) => {
            report.fault(format!("the log cannot be read: {error}"));
            return None;
        }
    };
    report.line(format!(
        "{} records in {} segments, {} bytes of torn tail to be cut",
        scanned.records, scanned.segments, scanned.torn_bytes
    ));
    for segment in &scanned.bad_headers {
        report.fault(format!(
            "the header of the log's segment {segment:016x} is damaged; its records are not"
        ));
    }
    if scanned.unreadable_pages > 0 {
        report.fault(format!("the disk cannot read {} pages of the log", scanned.unreadable_pages));
    }
    for damage in &scanned.damages {
        report.fault(damage.to_string());
    }
    Some(scanned.damages.is_empty())
}
