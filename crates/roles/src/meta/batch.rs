//! Batches messages of several groups to one server in one frame.
//!
//! A tick, a group of records of the log that has become durable, and a frame of another member each concern many groups, one
//! after the other. Heartbeats and acknowledgements of these groups are gathered, and leave together.
//! Ops, and all other messages, leave at once.
//!
//! # Invariants
//!
//! 1. Only messages that may come late or never are gathered: their sender repeats them.
//!    No op is among them: the next op would overtake it, and be dropped.
//! 2. Gathered messages leave before the thread waits for a group's lock that another thread was found to hold, and
//!    [`BATCH_AGE_MAX`] after the first was gathered.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use larder_protocol::PeerMessage;
use larder_types::codec::encode;
use larder_types::{PgId, ServerId};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::{Member, Meta};
use crate::limits::{BATCH_AGE_MAX, BATCH_SENT_MAX, PROTOCOL_BATCHES};

/// Messages that a group sends while it is stepped.
pub(super) type SentMessages = Vec<(ServerId, PeerMessage)>;

/// True of a message that may be gathered.
pub(super) fn may_wait(message: &PeerMessage) -> bool {
    match message {
        PeerMessage::Append { entries, .. } => entries.is_empty(),
        PeerMessage::Acked { .. } => true,
        _ => false,
    }
}

/// Gathers messages of groups; dropping this sends them.
pub(super) struct MessageBatch<'a> {
    /// `None` on a single node, or if not all servers know batches.
    cluster: Option<&'a Cluster>,
    to: BTreeMap<ServerId, Vec<(PgId, Bytes)>>,
    /// The time at which the first of them was gathered.
    since: Option<Instant>,
    /// Kept to reuse its memory.
    sent: SentMessages,
}

impl Meta {
    /// Begins a batch, for groups that are stepped one after the other.
    pub(super) fn together(&self) -> MessageBatch<'_> {
        let knows = |it: &&Cluster| it.managers.map().cluster_version >= PROTOCOL_BATCHES;
        let cluster = self.cluster().filter(knows);
        MessageBatch { cluster, to: BTreeMap::new(), since: None, sent: SentMessages::new() }
    }

    /// The number of frames with messages of several groups, and of the messages in them.
    #[must_use]
    pub fn batches(&self) -> (u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.cluster().map_or((0, 0), |it| (of(&it.batches), of(&it.batched)))
    }
}

impl MessageBatch<'_> {
    /// Runs `does` with a member, and gathers the messages that it sends.
    pub(super) fn with(&mut self, member: &mut Member, does: impl FnOnce(&mut Member)) {
        let Some(cluster) = self.cluster else { return does(member) };
        debug_assert!(member.sent.is_none(), "a member is stepped by one thread");
        member.sent = Some(take(&mut self.sent));
        does(member);
        let Some(mut sent) = member.sent.take() else { return };
        if sent.is_empty() {
            self.sent = sent;
            return;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        for (to, message) in sent.drain(..) {
            let gathered = self.to.entry(to).or_default();
            gathered.push((member.pg.id(), encode(&message).into()));
            if gathered.len() >= BATCH_SENT_MAX {
                cluster.send_batch(to, take(gathered));
            }
        }
        self.sent = sent;
        if since.elapsed() > BATCH_AGE_MAX {
            self.leave();
        }
    }

    /// Sends the gathered messages.
    pub(super) fn leave(&mut self) {
        self.since = None;
        let Some(cluster) = self.cluster else { return };
        for (to, messages) in &mut self.to {
            cluster.send_batch(*to, take(messages));
        }
    }
}

impl Drop for MessageBatch<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
