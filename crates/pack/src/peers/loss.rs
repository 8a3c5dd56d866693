//! Records what is lost with a worker's directory, as far as others know: changes that it announced and never uploaded.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use larder_types::codec::decode;
use larder_types::rows::parse_keyed;

use super::peer::{FollowedIndex, Peer};
use super::{Others, hidden};
use crate::error::PackError;
use crate::format::rows::PackedVersion;
use crate::ids::{BlobId, WorkerId};
use crate::index::Index;
use crate::owner::name::WorkerName;
use crate::owner::takeover_fence::TakeoverFence;

/// Called with a row's key and its version; returns true if that is lost.
type Judging<'a> = dyn FnMut(&[u8], &PackedVersion) -> Result<bool, PackError> + 'a;

impl Others {
    /// Where it is written down which blobs of another worker an index does without, if that may be:
    /// `lost-blobs-NAME.txt` of this worker's directory.
    pub(super) fn blobs_report(&self, name: &WorkerName) -> Option<PathBuf> {
        self.reads.accept_loss.then(|| self.reads.dir.join(format!("lost-blobs-{name}.txt")))
    }

    /// Another directory has taken a worker over: writes down what the one before told and its heir does not have, in
    /// `lost-NAME.txt` of this worker's directory.
    pub(super) fn write_loss(
        &self,
        peer: &Peer,
        (before, index): (WorkerId, &Index),
        takeover_fence: &TakeoverFence,
    ) -> Result<(), PackError> {
        let last = takeover_fence.last(before).unwrap_or(0);
        let lost = index.standing()?.into_iter();
        let lost = lost.filter(|(id, _)| id.worker == before && id.seq > last);
        let Some(first) = lost.map(|(_, content)| content.first).min() else { return Ok(()) };
        let is_lost =
            |version: &PackedVersion| version.op.view.0 == before.0 && version.op.seq >= first;
        let lines = lines_of(index, &mut |_, version| Ok(is_lost(version)))?;
        let why = format!("was taken over by {}", peer.announcement().worker);
        self.write_lines(peer, before, &why, &lines)
    }

    /// A worker has uploaded something else than it told of a blob: writes down what of that and of later blobs the index made
    /// of the bucket does not have.
    pub(super) fn write_stale_blobs(
        &self,
        peer: &Peer,
        known: &FollowedIndex,
        made: &Index,
        blob: BlobId,
    ) -> Result<(), PackError> {
        let reported = known.index().standing()?.into_iter();
        let reported = reported.filter(|(id, _)| id.worker == blob.worker && id.seq >= blob.seq);
        let Some(first) = reported.map(|(_, content)| content.first).min() else { return Ok(()) };
        let lines = lines_of(known.index(), &mut |row, version| {
            let is_told = version.op.view.0 == blob.worker.0 && version.op.seq >= first;
            Ok(is_told && made.version_at(row)?.as_ref() != Some(version))
        })?;
        self.write_lines(
            peer,
            blob.worker,
            "was started from an older copy of its directory",
            &lines,
        )
    }

    fn write_lines(
        &self,
        peer: &Peer,
        before: WorkerId,
        why: &str,
        lines: &[String],
    ) -> Result<(), PackError> {
        let name = &peer.name;
        tracing::error!(worker = %name, lost = lines.len(), why, "changes that a worker announced but did not upload are lost");
        if self.reads.dir.as_os_str().is_empty() {
            return Ok(());
        }
        let path = self.reads.dir.join(format!("lost-{name}.txt"));
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
        writeln!(file, "worker {name} ({before}) {why}")?;
        for line in lines {
            writeln!(file, "{line}")?;
        }
        Ok(file.sync_all()?)
    }
}

/// Tells of versions that are lost, a line each.
fn lines_of(index: &Index, is_lost: &mut Judging<'_>) -> Result<Vec<String>, PackError> {
    let mut lines = Vec::new();
    index.visit(b"V", &mut |row, value| {
        let version = decode::<PackedVersion>("a version's row", value)?;
        if is_lost(row, &version)?
            && let Some((bucket, key, _)) = parse_keyed(row)
            && let Some(record) = index.bucket_by_id(bucket)
        {
            let (ms, size) = (version.metax.clock.ms(), version.metax.size);
            let (key, name) = (key.as_str(), record.name.as_str());
            lines.push(match (hidden::is_hidden(&record.name), record.location) {
                (false, _) => format!("lost {name}/{key}: {size} bytes, put at {ms}"),
                (true, Some(of)) => format!("lost the deletion of {of}/{key}, of {ms}"),
                (true, None) => format!("lost bucket {key}, made at {ms}"),
            });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(lines)
}
