//! The kinds of requests to a meta server, as its counts break them down.

use larder_protocol::Call;
use larder_types::Target;

use crate::breakdown::{ByKind, CountsNow, META_TABLE};

/// A kind of request. Its place is that of its count.
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

const NAMES: [&str; MetaKind::COUNT] = [
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

impl MetaKind {
    const COUNT: usize = Self::Status as usize + 1;

    /// The kind of a call; `None` of one that only waits, as a part of a list that is counted itself.
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
            Call::Told(_) => Self::Region,
            Call::PlanCoalesce(_) | Call::Coalesce(_) => Self::Coalesce,
            Call::Barrier | Call::Settle(_) => return None,
        })
    }
}

/// Counts of requests by kind. Those that the index answers without a step of a group have no time.
#[derive(Debug, Default)]
pub struct MetaRequests(ByKind<{ MetaKind::COUNT }>);

impl MetaRequests {
    pub(crate) fn note(&self, kind: MetaKind) {
        self.0.note(kind as usize);
    }

    /// Adds the milliseconds from the step that took a request to the one that gave its first answer.
    pub(super) fn note_time(&self, kind: MetaKind, served_ms: u64) {
        self.0.note_time(kind as usize, served_ms);
    }

    /// Each kind by name, with its requests and the milliseconds of those that a step of a group answered.
    pub fn sums(&self) -> impl Iterator<Item = (&'static str, (u64, u64))> {
        NAMES.into_iter().enumerate().map(|(kind, name)| (name, self.0.of(kind)))
    }

    /// The counts, for those that add them up.
    #[must_use]
    pub fn now(&self) -> CountsNow {
        let mut now = CountsNow::default();
        for (name, sums) in self.sums() {
            now.add_requests(META_TABLE, name, sums);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_stands_at_its_name() {
        let requests = MetaRequests::default();
        requests.note(MetaKind::Status);
        requests.note(MetaKind::LookUp);
        requests.note(MetaKind::DropStream);
        requests.note_time(MetaKind::DropStream, 7);
        let seen: Vec<_> = requests.sums().filter(|(_, (count, _))| *count > 0).collect();
        assert_eq!(seen, [("look_up", (1, 0)), ("drop_stream", (1, 7)), ("status", (1, 0))]);
    }
}
