//! A meta server's connections to other members, data servers and managers of its cluster, and its messages to members and
//! managers. `effects.rs` carries out effects of machines through them.
//!
//! # Invariants
//!
//! 1. No function here blocks: they are called under a PG's lock.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use larder_env::Disk;
use larder_net::SendError;
use larder_protocol::PeerMessage;
use larder_protocol::limits::{LEASE_GRANTED_MS, LEASE_MS};
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::manager::state::{MapVersion, ServerState};
use larder_types::codec::encode;
use larder_types::{BootId, PgId, ServerId, View};
use tokio::runtime::Handle;

use super::adoption::Adoption;
use super::copy_backoff::CopyBackoff;
use super::{Member, Meta, OtherRoles};
use crate::limits::{MAP_LAG_MAX, PEER_BYTES_MAX};
use crate::managers::{DeferredOrders, Managers};
use crate::peers::Peers;
use crate::wire::{DataService, MetaMessage, MetaService};

/// The version of the kept map, the version that an order needs, and its subject: a view of the group, or its volumes (`None`).
pub(super) type AboutOrder = (MapVersion, MapVersion, (PgId, Option<View>));

/// A meta server's connections to the other servers of its cluster.
pub(super) struct Cluster {
    pub(super) me: ServerId,
    /// The id of this run.
    pub(super) boot: BootId,
    /// The addresses at which this server listens.
    pub(super) addresses: Vec<String>,
    /// The views of its PGs at its start; `None` for one that is not whole.
    pub(super) had: Vec<(PgId, Option<View>)>,
    pub(super) managers: Arc<dyn Managers>,
    pub(super) metas: Peers<MetaService>,
    pub(super) data: Peers<DataService>,
    pub(super) copy_backoff: CopyBackoff,
    /// The disk of the server's directory.
    pub(super) disk: Arc<dyn Disk>,
    /// The folder of a damaged index that is kept, from the server's start on.
    pub(super) set_aside: Option<PathBuf>,
    pub(super) runtime: Handle,
    pub(super) meta: OnceLock<Weak<Meta>>,
    pub(super) adoption: Adoption,
    /// Orders about views and volumes whose map is not kept yet.
    pub(super) deferred_orders: Arc<DeferredOrders<(PgId, Option<View>)>>,
    /// A PG has begun to serve: its lease does not wait for the next beat.
    pub(super) renew_soon: AtomicBool,
    /// The last renewal of leases, and who granted one.
    pub(super) renewals: parking_lot::Mutex<Renewals>,
    /// Frames with messages of several groups, and the messages in them.
    pub(super) batches: AtomicU64,
    pub(super) batched: AtomicU64,
    /// The map up to which closed sessions were handled, and the number of beats that have checked.
    pub(super) sessions_seen: parking_lot::Mutex<(MapVersion, u32)>,
}

/// Renewals of a meta server's leases.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    /// The time at which the last one was sent.
    sent_ms: u64,
    /// The manager that granted leases last, and the time at which the renewal was sent that it granted.
    granted: Option<(ServerId, u64)>,
}

impl Renewals {
    /// Leases are renewed now. Returns the manager that granted those of the last renewal, if one did.
    fn renewed(&mut self, now_ms: u64) -> Option<ServerId> {
        let before_ms = std::mem::replace(&mut self.sent_ms, now_ms);
        self.granted.filter(|(_, sent_ms)| *sent_ms >= before_ms).map(|(manager, _)| manager)
    }

    /// A manager granted leases that count from this time on.
    fn granted(&mut self, by: ServerId, from_ms: u64) {
        self.granted = Some((by, from_ms.saturating_add(LEASE_MS - LEASE_GRANTED_MS)));
    }
}

impl Cluster {
    /// Notes that leases are renewed now. Returns the manager that granted those of the last renewal, if one did.
    pub(super) fn renewed(&self, now_ms: u64) -> Option<ServerId> {
        self.renewals.lock().renewed(now_ms)
    }

    /// Notes a manager's grant of leases, which count from this time on.
    pub(super) fn granted(&self, by: ServerId, from_ms: u64) {
        self.renewals.lock().granted(by, from_ms);
        self.managers.led_by(by);
    }

    /// This server, unless it is being dropped.
    pub(super) fn meta(&self) -> Option<Arc<Meta>> {
        self.meta.get().and_then(Weak::upgrade)
    }

    /// Queues a PG for adoption once this map is known here. The managers repeat the order at each beat, so few wait at
    /// once.
    pub(super) fn adopt_under(&self, map: MapVersion, pg: PgId) {
        if self.managers.map().version >= map {
            return self.adoption.adopt(pg);
        }
        self.managers.note_newer_map(map);
        let (mut versions, meta) = (self.managers.versions(), self.meta.get().cloned());
        self.runtime.spawn(async move {
            let known = versions.reaches(map);
            if let Ok(Ok(())) = tokio::time::timeout(MAP_LAG_MAX, known).await
                && let Some(meta) = meta.and_then(|meta| meta.upgrade())
                && let Some(cluster) = meta.cluster()
            {
                cluster.adoption.adopt(pg);
            }
        });
    }

    /// Holds an order until its map is kept.
    pub(super) fn hold(&self, about: AboutOrder, order: ManagerMessage) {
        let meta = self.meta.get().cloned();
        self.deferred_orders.hold(&self.runtime, about, order, move |order| {
            if let Some(meta) = meta.as_ref().and_then(Weak::upgrade)
                && let Some(cluster) = meta.cluster()
            {
                meta.handle_manager_message(cluster, order);
            }
        });
    }

    pub(super) fn stop(&self) {
        self.adoption.stop();
    }

    /// Reports that this run has begun, unless the map has it.
    pub(super) fn say_started(&self) {
        let map = self.managers.map();
        let is_named = map.servers.get(&self.me).is_some_and(|record| {
            record.state == ServerState::Up
                && record.boot == self.boot
                && record.addresses == self.addresses
        });
        if !is_named {
            let start = (self.boot, self.addresses.clone(), self.had.clone());
            self.managers.send_message(ServerMessage::started(&map, self.me, start));
        }
    }

    pub(super) fn report_active(&self, pg: PgId, view: View) {
        self.managers.send_message(ServerMessage::Active(self.boot, pg, view));
    }

    pub(super) fn request_lv(&self, member: &Member) {
        let (pg, has) = (&member.pg, member.view_state.places.len());
        self.managers.send_message(ServerMessage::need_lv(pg.id(), pg.view(), has, pg.has_most()));
    }

    /// Reports that this member's rows differ from those of the others.
    pub(super) fn report_lacking(&self, pg: PgId, view: View) {
        self.managers.send_message(ServerMessage::Lacks(self.boot, pg, view));
    }

    pub(super) fn report_unresponsive(&self, pg: PgId, view: View, members: Vec<ServerId>) {
        tracing::debug!(%pg, %view, ?members, "members of the view are silent");
        self.managers.send_message(ServerMessage::Unheard(self.boot, pg, view, members));
    }

    pub(super) fn renew_soon(&self) {
        self.renew_soon.store(true, Ordering::Relaxed);
    }

    /// Sends a message to another member. Machines repeat messages that may be lost.
    pub(super) fn send(&self, pg: PgId, to: ServerId, message: PeerMessage) {
        let Some(peer) = self.metas.of(&self.managers.map(), to) else { return };
        for payload in in_parts(message, PEER_BYTES_MAX) {
            match peer.send(&MetaMessage::Peer(pg), payload.into()) {
                Ok(()) => {}
                Err(error @ SendError::TooLong) => {
                    tracing::error!(%pg, %to, %error, "a message that a member needs cannot be encoded");
                }
                Err(error) => tracing::trace!(%pg, %to, %error, "a message to a member is lost"),
            }
        }
    }

    /// Sends messages of several groups to one server.
    pub(super) fn send_batch(&self, to: ServerId, mut messages: Vec<(PgId, Bytes)>) {
        let sent = match messages.len() {
            0 => return,
            1 => messages.pop().map(|(pg, payload)| (MetaMessage::Peer(pg), payload)),
            count => {
                self.batches.fetch_add(1, Ordering::Relaxed);
                self.batched.fetch_add(count as u64, Ordering::Relaxed);
                Some((MetaMessage::Peers, encode(&messages).into()))
            }
        };
        let peer = self.metas.of(&self.managers.map(), to);
        if let (Some(peer), Some((message, payload))) = (peer, sent)
            && let Err(error) = peer.send(&message, payload)
        {
            tracing::trace!(%to, %error, "messages to a member are lost");
        }
    }
}

impl Meta {
    /// The connections to other servers; `None` on a single node.
    pub(super) fn cluster(&self) -> Option<&Cluster> {
        match &self.other_roles {
            OtherRoles::Here(_) => None,
            OtherRoles::Apart(cluster) => Some(cluster),
        }
    }
}

/// Encodes a message; ops that are too long for one become several, in order.
fn in_parts(message: PeerMessage, bytes_max: usize) -> Vec<Vec<u8>> {
    let payload = encode(&message);
    match message {
        PeerMessage::Append { view, prev, mut entries, commit }
            if payload.len() > bytes_max && entries.len() > 1 =>
        {
            let rest = entries.split_off(entries.len() / 2);
            let between = entries.last().map_or(prev, |entry| entry.id);
            let first = PeerMessage::Append { view, prev, entries, commit };
            let rest = PeerMessage::Append { view, prev: between, entries: rest, commit };
            let mut parts = in_parts(first, bytes_max);
            parts.extend(in_parts(rest, bytes_max));
            parts
        }
        _ => vec![payload],
    }
}

#[cfg(test)]
mod tests {
    use larder_protocol::LogEntry;
    use larder_types::codec::decode;
    use larder_types::{BucketId, Op, OpId, OpSeq, SessionId, StreamId};

    use super::*;

    #[test]
    fn a_renewal_that_was_not_granted_names_nobody_at_the_next() {
        let mut renewals = Renewals::default();
        let (leader, next) = (ServerId(4), ServerId(5));
        let from = |sent_ms| sent_ms - (LEASE_MS - LEASE_GRANTED_MS);
        assert_eq!(renewals.renewed(10_000), None);
        renewals.granted(leader, from(10_000));
        assert_eq!(renewals.renewed(10_300), Some(leader));
        assert_eq!(renewals.renewed(10_600), None, "that of 10.3 s was not granted");
        renewals.granted(leader, from(10_300));
        assert_eq!(renewals.renewed(10_900), None, "nor that of 10.6 s");
        renewals.granted(next, from(10_900));
        assert_eq!(renewals.renewed(11_200), Some(next));
    }

    #[test]
    fn ops_that_are_too_long_for_one_message_follow_each_other_in_several() {
        let id = |seq| OpId { view: View(3), seq: OpSeq(seq) };
        let stream = StreamId { session: SessionId(1), number: 1 };
        let op = Arc::new(Op::DropStream { bucket: BucketId(1), stream });
        let entry = |seq| LogEntry { id: id(seq), op: op.clone() };
        let entries: Vec<LogEntry> = (8..20).map(entry).collect();
        let message = |entries| PeerMessage::Append {
            view: View(3),
            prev: id(7),
            entries,
            commit: OpSeq(19),
        };
        let bytes_max = encode(&message(entries.clone())).len() / 3;
        let parts = in_parts(message(entries.clone()), bytes_max);
        assert!(parts.len() > 3 && parts.iter().all(|part| part.len() <= bytes_max));
        let (mut last, mut all) = (id(7), Vec::new());
        for part in parts {
            let PeerMessage::Append { prev, entries, .. } = decode("part", &part).unwrap() else {
                panic!("ops go on as ops");
            };
            assert_eq!(prev, last, "each part goes on where the one before ended");
            last = entries.last().unwrap().id;
            all.extend(entries);
        }
        assert_eq!(all, entries);
        assert_eq!(in_parts(message(vec![entry(8)]), 1).len(), 1, "one op is one message");
    }
}
