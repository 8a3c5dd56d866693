//! An inspection of what a manager of a cluster keeps.

use larder_env::disk::read_file;
use larder_env::{Disk, DiskError};
use larder_identity::Subject;
use larder_protocol::manager::quorum::{Item, LogIndex, Stored};
use larder_protocol::manager::state::{Command, Topology};
use larder_types::codec::decode;

use super::Report;
use crate::manager::quorum::{ManagerError, PATH, decode_file};

/// Looks at the log, and at the map that it makes if all of it was agreed on: how much of it was, the managers only
/// know together.
pub(crate) fn examine(disk: &dyn Disk, subject: &Subject, report: &mut Report) {
    report.section("quorum");
    let bytes = match read_file(disk, PATH) {
        Ok(bytes) => bytes,
        Err(DiskError::NotFound { .. }) => return report.fault(ManagerError::LogGone.to_string()),
        Err(error) => return report.fault(format!("{PATH}: {error}")),
    };
    let contents = match decode_file(&bytes) {
        Ok(contents) => contents,
        Err(error) => return report.fault(format!("{PATH}: {error}")),
    };
    if (contents.header.cluster, contents.header.server) != (subject.cluster, subject.server) {
        let (cluster, server) = (contents.header.cluster.0, contents.header.server);
        report.fault(format!("{PATH} is of server {server} of cluster {cluster:016x}"));
    }
    report.line(format!(
        "{} records, {} bytes of torn tail to be cut",
        contents.writes.len(),
        bytes.len() - contents.end
    ));
    let mut stored = Stored::default();
    contents.writes.into_iter().for_each(|write| stored.take(write));
    check_map(&stored, report);
}

fn check_map(stored: &Stored, report: &mut Report) {
    report.section("map");
    let mut map = match &stored.snapshot {
        None => Topology::default(),
        Some(snapshot) => match Topology::decode(&snapshot.state) {
            Ok(map) => map,
            Err(error) => return report.fault(format!("the snapshot: {error}")),
        },
    };
    if let Some(why) = map.contradiction() {
        return report.fault(format!("the snapshot contradicts itself: {why}"));
    }
    for (index, (_, item)) in (stored.base().index.0 + 1..).zip(&stored.items) {
        let Item::Command(command) = item else { continue };
        match decode::<Command>("a command of the managers", command) {
            // That it may be refused is part of what it says.
            Ok(command) => drop(map.apply(LogIndex(index), command)),
            Err(error) => return report.fault(format!("entry {index}: {error}")),
        }
    }
    if let Some(why) = map.contradiction() {
        report.fault(format!("the map contradicts itself: {why}"));
    }
    report.line(format!(
        "version {}, {} servers, {} placement groups, {} volumes, {} buckets",
        map.version,
        map.servers.len(),
        map.pgs.len(),
        map.lvs.len(),
        map.buckets.len()
    ));
}
