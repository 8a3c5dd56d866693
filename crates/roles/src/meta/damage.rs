//! Damage of the index. With that of a single node the store serves what can be read, and takes no changes. A member of a
//! cluster ends, and its next start sets the index aside (`set_aside.rs`).
//!
//! The only copy of an index may lose some of its rows to the disk. Its other rows are as good as before, and the data
//! is whole: so the store goes on, for those who copy what is left (ADR 79). A change would make it worse. An op that is
//! acknowledged and needs a row that cannot be read is never applied, and halts its group. And without compaction the
//! index grows with each change.
//!
//! # Invariants
//!
//! 1. From the first read of the index that fails on, no call that changes anything is taken, and nothing is compacted.
//!    Ops taken before are applied as far as they can be. One that cannot be halts its group, and not the process.
//! 2. This lasts over restarts, by the file `index-damage`, until one has read the whole index without an error, and no
//!    group is halted. It reads its tables byte by byte, as a scan reads no filters, and its rows.
//! 3. A member of a cluster is never in this state. It ends once its groups can spare it, and the file `index-damage` has
//!    its next start take the index out of service. Until then it goes on as far as it can.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError};
use larder_kv::{KvError, KvReader};
use larder_protocol::Index;
use larder_protocol::pg::Role;
use larder_types::codec::CodecError;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::cluster::Cluster;
use super::spare::can_be_spared;
use super::{Here, Member, Meta, OtherRoles, summed};
use crate::clock::now_ms;

/// The file that says that the index is damaged, in the server's directory.
pub const INDEX_DAMAGE_FILE: &str = "index-damage";

/// Damage of the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexDamage {
    /// Milliseconds since 1970 when it was found.
    pub since_ms: u64,
    /// The error of the read that found it.
    pub reason: String,
}

/// The damage that is known of.
#[derive(Default)]
pub(super) struct Damage {
    known: Mutex<Option<IndexDamage>>,
    is_known: AtomicBool,
}

impl Damage {
    pub(super) fn new(known: Option<IndexDamage>) -> Self {
        let is_known = AtomicBool::new(known.is_some());
        Self { known: Mutex::new(known), is_known }
    }
}

/// As [`load`]. A file that the disk does not give says the same as one that it does: the disk is bad.
pub(super) fn load_or_assume(disk: &dyn Disk) -> Result<Option<IndexDamage>, DiskError> {
    match load(disk) {
        Err(error @ DiskError::Broken { .. }) => {
            Ok(Some(IndexDamage { since_ms: now_ms(), reason: error.to_string() }))
        }
        loaded => loaded,
    }
}

/// Reads the file; `None` if there is none. One that cannot be decoded says the same.
pub(crate) fn load(disk: &dyn Disk) -> Result<Option<IndexDamage>, DiskError> {
    match read_file(disk, INDEX_DAMAGE_FILE) {
        Ok(bytes) => Ok(Some(decode_file(&bytes).unwrap_or_else(|error| IndexDamage {
            since_ms: now_ms(),
            reason: format!("the file {INDEX_DAMAGE_FILE}: {error}"),
        }))),
        Err(DiskError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn decode_file(bytes: &[u8]) -> Result<IndexDamage, CodecError> {
    summed::decode_file("the damage of the index", bytes)
}

impl Meta {
    /// Returns true if this is a single node whose index is damaged: it takes no changes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match &self.other_roles {
            OtherRoles::Here(_) => {
                self.damage.is_known.load(Ordering::Acquire) || self.index.kv.damage().is_some()
            }
            OtherRoles::Apart(_) => false,
        }
    }

    /// The damage of a single node's index.
    #[must_use]
    pub fn index_damage(&self) -> Option<IndexDamage> {
        let OtherRoles::Here(here) = &self.other_roles else { return None };
        self.note_damage(here);
        self.damage.known.lock().clone()
    }

    /// Heeds damage that a read has met since the last call: tells of it once, and keeps it for later starts.
    pub(super) fn note_damage(&self, here: &Here) {
        let Some(met) = self.index.kv.damage() else { return };
        let found = {
            let mut known = self.damage.known.lock();
            if known.is_some() {
                return;
            }
            let found = IndexDamage { since_ms: now_ms(), reason: met.to_string() };
            self.damage.is_known.store(true, Ordering::Release);
            known.insert(found).clone()
        };
        notify(&found);
        let bytes = summed::encode_file(&found);
        if let Err(error) = replace_file(&*here.disk, "", INDEX_DAMAGE_FILE, &bytes) {
            tracing::warn!(%error, "that the index is damaged is not kept: the next start finds it again");
        }
    }

    /// Reads the whole index once it is known to be damaged, and takes changes again if all of it is whole and no group is
    /// halted. Blocks for as long as that takes.
    pub(super) fn look_at_damage(&self) -> Result<(), KvError> {
        let OtherRoles::Here(here) = &self.other_roles else { return Ok(()) };
        if self.damage.known.lock().is_none() {
            return Ok(());
        }
        self.index.kv.verify_tables(&|| !self.is_stopping())?;
        // Each row has a checksum of its own as well.
        self.index.kv.scan(&[], None, &mut |_, _| match self.is_stopping() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })?;
        if self.is_stopping() || self.index.kv.damage().is_some() {
            return Ok(());
        }
        if self.groups_halted() > 0 {
            tracing::error!(
                "the index was read and is whole, but placement groups are halted: the store takes no changes before the next start"
            );
            return Ok(());
        }
        let removed = here.disk.remove(INDEX_DAMAGE_FILE);
        if let Err(error) = removed.and_then(|()| here.disk.sync_dir("")) {
            tracing::warn!(%error, "the index is whole, but the file that says otherwise stays: the store takes no changes");
            return Ok(());
        }
        *self.damage.known.lock() = None;
        self.damage.is_known.store(false, Ordering::Release);
        tracing::info!("the index was read and is whole: the store takes changes again");
        Ok(())
    }

    /// Returns true if a read of the index has failed since the start.
    #[must_use]
    pub fn has_met_damage(&self) -> bool {
        self.index.kv.damage().is_some()
    }

    /// Returns true if a damaged index of an earlier run is kept aside.
    #[must_use]
    pub fn keeps_index_aside(&self) -> bool {
        let folder = self.cluster().and_then(|cluster| cluster.set_aside.as_ref());
        folder.is_some_and(|folder| folder.exists())
    }

    /// Ends a member whose index is damaged, once its groups can spare it.
    pub(super) fn note_member_damage(&self, cluster: &Cluster) {
        let Some(met) = self.index.kv.damage() else { return };
        if self.fatal.borrow().is_none() && can_be_spared(&cluster.managers.map(), cluster.me) {
            self.fail(format!("{met}: the next start copies the groups from their other members"));
        }
    }

    /// Returns true if this member's index is damaged, and a group cannot spare it.
    pub(super) fn is_damaged_and_needed(&self, cluster: &Cluster) -> bool {
        self.has_met_damage() && !can_be_spared(&cluster.managers.map(), cluster.me)
    }

    /// Keeps for the next start that a member's index is damaged, if its groups can spare the member.
    pub(super) fn keep_member_damage(&self, cluster: &Cluster) {
        let Some(met) = self.index.kv.damage() else { return };
        if !can_be_spared(&cluster.managers.map(), cluster.me) {
            return tracing::error!(%met, "the index is damaged, and groups need this server: start their other meta servers");
        }
        let damage = IndexDamage { since_ms: now_ms(), reason: met.to_string() };
        let bytes = summed::encode_file(&damage);
        if let Err(error) = replace_file(&*cluster.disk, "", INDEX_DAMAGE_FILE, &bytes) {
            tracing::warn!(%error, "that the index is damaged is not kept: the next start may find it again");
        }
    }

    /// The number of halted groups, for whatever reason.
    #[must_use]
    pub fn groups_halted(&self) -> usize {
        self.pg_ids().filter(|pg| self.lock(*pg).pg.role() == Role::Halted).count()
    }

    /// Heeds that a group is halted. On a single node with a damaged index the others go on, and it answers what its index
    /// shows whole.
    pub(super) fn halted(&self, member: &mut Member, reason: String) {
        // Damage of an earlier run explains no error of this one.
        if !self.index.is_damaged() {
            return self.fail(reason);
        }
        tracing::warn!(%reason, "a placement group is halted, as the index is damaged");
        member.pg.refuse_appended(&mut member.out);
    }
}

/// Tells of damage in the log, once a run.
pub(super) fn notify(damage: &IndexDamage) {
    let IndexDamage { since_ms, reason } = damage;
    tracing::error!(
        since_ms, %reason,
        "the index is damaged: the store serves what it can read, and takes no changes. Copy what is left to another store, or restore a backup; then look at the disk (docs/operations.md, \"A damaged index\")"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_keeps_its_bytes() {
        let damage = IndexDamage { since_ms: 1000, reason: "rot".to_owned() };
        let bytes = summed::encode_file(&damage);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex, "01e80703726f74d77df58fe1c00dac",
            "bytes that another release wrote must be read"
        );
        assert_eq!(decode_file(&bytes), Ok(damage));
    }

    #[test]
    fn a_file_that_cannot_be_decoded_says_that_the_index_is_damaged() {
        let disk = larder_env::SimDisk::new(1, 1 << 20);
        assert_eq!(load(&*disk).unwrap(), None);
        replace_file(&*disk, "", INDEX_DAMAGE_FILE, b"nothing").unwrap();
        assert!(load(&*disk).unwrap().is_some());
    }
}
