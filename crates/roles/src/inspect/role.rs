//! Checks what one role of a cluster stores, by the identity in its directory.
//!
//! A server's directory alone says less than a store's: what should be there is in the managers' map, and what an object
//! should be is on other servers. What is checked here is what must hold by itself.

use std::path::Path;

use larder_env::{Disk, RealDisk};
use larder_identity::{Identity, Role};
use larder_types::ClusterId;

use super::{Report, member, quorum};
use crate::StoreError;
use crate::directory::LOCK_FILE;
use crate::identity::IDENTITY_FILE;

/// Checks what the server whose identity is in a directory keeps there. `data` is a data server's file or device.
///
/// # Errors
/// [`StoreError`] if it cannot be looked at at all: in use, or no server's that keeps anything.
pub fn inspect_role(root: &Path, data: &str) -> Result<Report, StoreError> {
    let no_role = |found: String| StoreError::Config {
        field: "DIR",
        found,
        remedy: "the directory of a manager, meta or data server".to_owned(),
    };
    let identity = Identity::load(&root.join(IDENTITY_FILE));
    let subject = identity.map_err(|error| no_role(error.to_string()))?.subject();
    let keeps = [Role::Manager, Role::Meta, Role::Data];
    if !keeps.iter().any(|role| subject.roles.has(*role)) {
        let dir = root.display();
        return Err(no_role(format!("{dir}, of a {}, which keeps nothing,", subject.roles)));
    }
    let disk = RealDisk::open(root)?;
    let _lock = disk.lock(LOCK_FILE).map_err(|error| StoreError::of_lock(root, error))?;
    let mut report = Report::default();
    report.section("identity");
    report.line(subject.to_string());
    if subject.roles.has(Role::Manager) {
        quorum::examine(&disk, &subject, &mut report);
    }
    if subject.roles.has(Role::Meta) {
        member::examine(&disk, root, &subject, &mut report);
    }
    if subject.roles.has(Role::Data) {
        check_disk(&disk, data, subject.cluster, &mut report);
    }
    Ok(report)
}

/// Superblock and headers. Whose the physical volumes should be is in the map, and what is in them on meta servers.
pub(crate) fn check_disk(disk: &dyn Disk, data: &str, cluster: ClusterId, report: &mut Report) {
    report.section("data");
    let found = match larder_volume::describe(disk, data) {
        Ok(found) => found,
        Err(error) => return report.fault(format!("the data in {data}: {error}")),
    };
    report.line(format!(
        "disk {}: {} of {} physical volumes of {} MiB in use, {} let go, {} of 2 superblocks good",
        found.disk,
        found.pvs.len(),
        found.pv_count_max,
        found.pv_bytes / (1024 * 1024),
        found.let_go.len(),
        found.superblock_copies
    ));
    if found.superblock_copies < 2 {
        report.fault("a copy of the superblock is damaged".to_owned());
    }
    if found.cluster != cluster.0 {
        report.fault(format!("the data belongs to cluster {:016x}", found.cluster));
    }
    for pv in &found.damaged {
        report.fault(format!("the header of physical volume {pv} is damaged"));
    }
    for pv in found.pvs.iter().filter(|pv| pv.provisioned_bytes > found.pv_bytes) {
        report.fault(format!("physical volume {} has reserved more than it is long", pv.pv));
    }
}
