//! What several groups say to one server at once goes in one frame.
//!
//! A tick, a group of the log that has become durable, and a frame of another member each concern many groups, one after the
//! other. Their messages are gathered, and leave together when all have been stepped. What a group says when it is asked for
//! something leaves at once.
//!
//! # Invariants
//!
//! 1. What was gathered leaves before the thread waits for anything but the locks of groups.
//! 2. What a group says at once may overtake what it said before and is gathered: machines take what comes late as they take what
//!    comes twice.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use larder_protocol::PeerMessage;
use larder_types::codec::encode;
use larder_types::{PgId, ServerId};

use super::cluster::Cluster;
use super::{Member, Meta};
use crate::limits::{BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, PROTOCOL_BATCHES};

/// What is said while one member is stepped.
pub(super) type Said = Vec<(ServerId, PeerMessage)>;

/// Gathers what groups say, until it is dropped.
pub(super) struct Together<'a> {
    /// `None` if there is nobody to talk to, or if not all servers know batches.
    cluster: Option<&'a Cluster>,
    to: BTreeMap<ServerId, Gathered>,
    /// Kept for its room.
    said: Said,
}

#[derive(Default)]
struct Gathered {
    messages: Vec<(PgId, Bytes)>,
    bytes: usize,
}

impl Meta {
    /// For groups that are stepped one after the other.
    pub(super) fn together(&self) -> Together<'_> {
        let knows = |it: &&Cluster| it.managers.map().cluster_version >= PROTOCOL_BATCHES;
        let cluster = self.cluster().filter(knows);
        Together { cluster, to: BTreeMap::new(), said: Said::new() }
    }

    /// Messages to other members in which several groups spoke, and how often groups did in them.
    #[must_use]
    pub fn batches(&self) -> (u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.cluster().map_or((0, 0), |it| (of(&it.batches), of(&it.batched)))
    }
}

impl Together<'_> {
    /// Does something with a member, and gathers what it says.
    pub(super) fn with(&mut self, member: &mut Member, does: impl FnOnce(&mut Member)) {
        let Some(cluster) = self.cluster else { return does(member) };
        member.said = Some(take(&mut self.said));
        does(member);
        let Some(mut said) = member.said.take() else { return };
        for (to, message) in said.drain(..) {
            self.add(cluster, member.pg.id(), to, message);
        }
        self.said = said;
    }

    fn add(&mut self, cluster: &Cluster, pg: PgId, to: ServerId, message: PeerMessage) {
        let gathered = self.to.entry(to).or_default();
        let payload = encode(&message);
        if payload.len() > BATCH_BYTES_MAX {
            cluster.say_all(to, take(&mut gathered.messages));
            gathered.bytes = 0;
            return cluster.send(pg, to, message);
        }
        gathered.bytes += payload.len();
        gathered.messages.push((pg, payload.into()));
        if gathered.bytes >= BATCH_BYTES_MAX || gathered.messages.len() >= BATCH_MESSAGES_MAX {
            cluster.say_all(to, take(&mut gathered.messages));
            gathered.bytes = 0;
        }
    }
}

impl Drop for Together<'_> {
    fn drop(&mut self) {
        let Some(cluster) = self.cluster else { return };
        for (to, gathered) in take(&mut self.to) {
            cluster.say_all(to, gathered.messages);
        }
    }
}
