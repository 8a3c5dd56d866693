//! Validation of messages against the state of a group: what [`crate::validation`] cannot check without it. The driver
//! validates a message before it steps the group.

use larder_types::{BucketId, ObjectKey, Op};

use super::Pg;
use crate::lv::LvInfo;
use crate::message::{Call, LogEntry, PeerMessage};
use crate::placement::pg_of;
use crate::validation::{
    Validated, check, check_call, check_lengths, check_lv, check_message, check_op, check_piece,
};

/// A view's first op is its primary's, once all have reported.
const UNBEGUN: &str = "an op is of a view that has not begun";

impl Pg {
    /// Checks a call of a proxy.
    ///
    /// # Errors
    /// [`InvalidMessage`](crate::validation::InvalidMessage): no proxy makes it.
    pub fn admits_call(&self, call: &Call) -> Validated {
        check_call(call)?;
        match call {
            Call::Put(put) => self.owns(put.bucket, &put.key),
            Call::Append(append) => self.owns(append.bucket, &append.key),
            Call::PlanCoalesce(ask) => self.owns(ask.bucket, &ask.key),
            Call::Coalesce(coalesce) => self.owns(coalesce.bucket, &coalesce.key),
            Call::RemoteChange(change) => {
                change.key().map_or(Ok(()), |(bucket, key)| self.owns(bucket, key))
            }
            Call::Delete { bucket, key, .. }
            | Call::SetTags { bucket, key, .. }
            | Call::CreateUpload { bucket, key, .. }
            | Call::CompleteUpload { bucket, key, .. }
            | Call::AbortUpload { bucket, key, .. }
            | Call::Read { bucket, key } => self.owns(*bucket, key),
            Call::Commit { .. }
            | Call::Abandon { .. }
            | Call::Withdraw { .. }
            | Call::NoRoom { .. }
            | Call::DropStream { .. }
            | Call::Suspect { .. }
            | Call::Settle(_)
            | Call::Barrier => Ok(()),
        }
    }

    /// Checks a message of a member, or of one that wants to be one, that was so many bytes long.
    ///
    /// # Errors
    /// [`InvalidMessage`](crate::validation::InvalidMessage): no member says it.
    pub fn admits(&self, message: &PeerMessage, bytes: usize) -> Validated {
        check_message(message)?;
        let admits = |entry: &LogEntry| self.admits_op(entry);
        match message {
            PeerMessage::Append { entries, .. } => {
                entries.iter().try_for_each(admits)?;
                check_lengths(entries.iter().map(|entry| &*entry.op), bytes)
            }
            PeerMessage::Report { view, report } => {
                let is_early = *view == self.view && self.is_levelling();
                check(!is_early || report.last.view < *view, UNBEGUN)?;
                report.entries.iter().try_for_each(admits)?;
                check_lengths(report.entries.iter().map(|entry| &*entry.op), bytes)
            }
            PeerMessage::Snapshot { header, .. } => {
                header.open.iter().try_for_each(|open| self.admits_op(&open.entry))?;
                check_lengths(header.open.iter().map(|open| &*open.entry.op), bytes)
            }
            PeerMessage::SnapshotRows { at, after, piece, .. } => {
                check_piece((self.id, self.pg_count), *at, after.as_deref(), piece)
            }
            _ => Ok(()),
        }
    }

    /// Checks how a manager describes an LV of the group.
    ///
    /// # Errors
    /// [`InvalidMessage`](crate::validation::InvalidMessage): no volume is like that.
    pub fn admits_lv(&self, info: &LvInfo) -> Validated {
        check_lv(info, self.space.as_ref().and_then(|space| space.info(info.lv)))
    }

    fn admits_op(&self, LogEntry { id, op }: &LogEntry) -> Validated {
        check_op(self.id, *id, op)?;
        match &**op {
            Op::Put(put) | Op::PutEnough { put, .. } => self.owns(put.bucket, &put.key),
            Op::Append(append) => self.owns(append.bucket, &append.key),
            Op::Grow(grow) => self.owns(grow.append.bucket, &grow.append.key),
            Op::Coalesce(coalesce) => self.owns(coalesce.bucket, &coalesce.key),
            Op::RemoteChange(change) => self.owns(change.put.bucket, &change.put.key),
            Op::Purge(purge) => self.owns(purge.bucket, &purge.key),
            Op::Amend(amend) => self.owns(amend.bucket, &amend.key),
            Op::Renew(renew) => self.owns(renew.bucket, &renew.key),
            Op::CreateUpload { bucket, row, .. } => self.owns(*bucket, &row.key),
            Op::Delete { bucket, key, .. }
            | Op::SetTags { bucket, key, .. }
            | Op::CompleteUpload { bucket, key, .. }
            | Op::AbortUpload { bucket, key, .. } => self.owns(*bucket, key),
            _ => Ok(()),
        }
    }

    /// Rows of another group's keys are in the order of that group's ops.
    fn owns(&self, bucket: BucketId, key: &ObjectKey) -> Validated {
        check(pg_of(bucket, key, self.pg_count) == self.id, "a key is of another group")
    }
}
