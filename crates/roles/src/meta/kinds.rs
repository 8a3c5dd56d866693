//! The kinds of requests to a meta server, for its counts.

use larder_protocol::Call;
use larder_types::Target;

use crate::breakdown::{ByKind, CountsStatus, META_TABLE};

/// A kind of request. Its number is the place of its count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetaKind {
    LookUp,
    LookUpOpen,
    Row,
    List,
    Put,
    PutChunk,
    PutPart,
    Append,
    AwaitPut,
    Commit,
    GiveUp,
    Delete,
    SetTags,
    CreateUpload,
    CompleteUpload,
    AbortUpload,
    DropStream,
    Coalesce,
    Suspect,
    Region,
    Status,
}

/// Each kind with its name, at the place of its count.
const KINDS: [(MetaKind, &str); MetaKind::COUNT] = [
    (MetaKind::LookUp, "look_up"),
    (MetaKind::LookUpOpen, "look_up_open"),
    (MetaKind::Row, "row"),
    (MetaKind::List, "list"),
    (MetaKind::Put, "put"),
    (MetaKind::PutChunk, "put_chunk"),
    (MetaKind::PutPart, "put_part"),
    (MetaKind::Append, "append"),
    (MetaKind::AwaitPut, "await_put"),
    (MetaKind::Commit, "commit"),
    (MetaKind::GiveUp, "give_up"),
    (MetaKind::Delete, "delete"),
    (MetaKind::SetTags, "set_tags"),
    (MetaKind::CreateUpload, "create_upload"),
    (MetaKind::CompleteUpload, "complete_upload"),
    (MetaKind::AbortUpload, "abort_upload"),
    (MetaKind::DropStream, "drop_stream"),
    (MetaKind::Coalesce, "coalesce"),
    (MetaKind::Suspect, "suspect"),
    (MetaKind::Region, "region"),
    (MetaKind::Status, "status"),
];
const _: () = {
    let mut at = 0;
    while at < KINDS.len() {
        assert!(KINDS[at].0 as usize == at, "a kind is counted at the place of its name");
        at += 1;
    }
};

impl MetaKind {
    const COUNT: usize = Self::Status as usize + 1;

    /// The kind of a call; `None` for a barrier, which is part of a request that is counted itself.
    pub(super) fn of(call: &Call) -> Option<Self> {
        Some(match call {
            Call::Put(put) => match put.target {
                Target::Version => Self::Put,
                Target::Chunk { .. } => Self::PutChunk,
                Target::Part { .. } => Self::PutPart,
            },
            Call::Commit { .. } => Self::Commit,
            Call::Abandon { .. } | Call::Withdraw { .. } | Call::NoRoom { .. } => Self::GiveUp,
            Call::Delete { .. } => Self::Delete,
            Call::SetTags { .. } => Self::SetTags,
            Call::CreateUpload { .. } => Self::CreateUpload,
            Call::CompleteUpload { .. } => Self::CompleteUpload,
            Call::AbortUpload { .. } => Self::AbortUpload,
            Call::DropStream { .. } => Self::DropStream,
            Call::Read { .. } => Self::LookUpOpen,
            Call::Suspect { .. } => Self::Suspect,
            Call::Append(_) => Self::Append,
            Call::RemoteChange(_) => Self::Region,
            Call::PlanCoalesce(_) | Call::Coalesce(_) => Self::Coalesce,
            Call::Barrier | Call::Settle(_) => return None,
        })
    }
}

/// Counts of proxies' requests by kind as they come, refused ones included, without the server's own work.
/// Requests that the index answers without a step of a group have no time.
#[derive(Debug, Default)]
pub struct MetaRequests(ByKind<{ MetaKind::COUNT }>);

impl MetaRequests {
    pub(crate) fn note(&self, kind: MetaKind) {
        self.0.note(kind as usize);
    }

    /// Counts a call as a request of its kind.
    pub(super) fn note_call(&self, call: &Call) {
        if let Some(kind) = MetaKind::of(call) {
            self.note(kind);
        }
    }

    /// Adds the milliseconds from the step that took a request to the one that gave its first answer.
    pub(super) fn note_time(&self, kind: MetaKind, served_ms: u64) {
        self.0.note_time(kind as usize, served_ms);
    }

    /// Each kind by name, with its requests and the milliseconds of those that a step of a group answered.
    pub fn sums(&self) -> impl Iterator<Item = (&'static str, (u64, u64))> {
        KINDS.into_iter().map(|(kind, name)| (name, self.0.of(kind as usize)))
    }

    /// The names of all kinds.
    pub fn kinds() -> impl Iterator<Item = &'static str> {
        KINDS.into_iter().map(|(_, name)| name)
    }

    /// The counts now, for a sum over servers.
    #[must_use]
    pub fn now(&self) -> CountsStatus {
        let mut now = CountsStatus { age_s: self.0.age_s(), counts: Vec::new() };
        for (name, sums) in self.sums() {
            now.add_requests(META_TABLE, name, sums);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use larder_protocol::RowSpan;
    use larder_types::{BucketId, ObjectKey, OpId, SessionId, StreamId};

    use super::*;

    #[test]
    fn each_kind_stands_at_its_name() {
        let requests = MetaRequests::default();
        for (at, (kind, _)) in KINDS.into_iter().enumerate() {
            (0..=at).for_each(|_| requests.note(kind));
            requests.note_time(kind, 100 + at as u64);
        }
        let expected = [
            "look_up",
            "look_up_open",
            "row",
            "list",
            "put",
            "put_chunk",
            "put_part",
            "append",
            "await_put",
            "commit",
            "give_up",
            "delete",
            "set_tags",
            "create_upload",
            "complete_upload",
            "abort_upload",
            "drop_stream",
            "coalesce",
            "suspect",
            "region",
            "status",
        ];
        let counted = |at: usize| (at as u64 + 1, 100 + at as u64);
        let expected = expected.into_iter().enumerate().map(|(at, name)| (name, counted(at)));
        assert_eq!(requests.sums().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_call_is_of_its_kind() {
        let (bucket, stream) = (BucketId(1), StreamId { session: SessionId(1), number: 1 });
        let span = RowSpan { from: Vec::new(), to: None };
        for (call, kind) in [
            (Call::DropStream { bucket, stream }, Some(MetaKind::DropStream)),
            (Call::Read { bucket, key: ObjectKey::new("k").unwrap() }, Some(MetaKind::LookUpOpen)),
            (Call::Withdraw { op: OpId::default(), disk_full: false }, Some(MetaKind::GiveUp)),
            (Call::Barrier, None),
            (Call::Settle(span), None),
        ] {
            assert_eq!(MetaKind::of(&call), kind, "{call:?}");
        }
    }
}
