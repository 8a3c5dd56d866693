//! Calls between a cluster's proxies and the one that is the gateway to other regions: it alone reaches them.
//!
//! # Invariants
//!
//! 1. What a gateway is asked, it asks other regions, and no other proxy. It asks those only how many clients they serve.
//! 2. A proxy that has no answer does without one: a key that is not here is not here. A change is refused, and so is a part of a large
//!    object.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use larder_link::limits::{CHANGE_PLACE_TIME_MAX, CHANGE_TIME_MAX};
use larder_link::{Change, ChangeAnswer};
use larder_net::{CallError, Rejected, Responder};
use larder_objects::ObjectError;
use larder_protocol::manager::state::{ServerRecord, ServerRole, ServerState, Topology};
use larder_protocol::region::listing::{ListedPage, PageRequest};
use larder_types::codec::{decode, encode};
use larder_types::{BucketName, BucketRecord, MapVersion, ObjectKey, RegionId, ServerId};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::super::home_change::{HomeChange, answer_of, made_of};
use super::super::other_regions::RegionLookup;
use super::super::unavailable;
use super::RemoteRoles;
use crate::limits::{
    GATEWAY_CLIENTS_MS, GATEWAY_LIST_MS, GATEWAY_PART_MS, GATEWAY_QUIET_MS, GATEWAY_REFRESH_MS,
    GATEWAY_STATE_MS, MAP_LAG_MAX, PROTOCOL_LOCAL, PROTOCOL_REMOTE_READS, REGION_DELETION_MS,
};
use crate::managers::down;
use crate::proxy::ClusterProxy;
use crate::proxy::role_access::RoleAccess;
use crate::wire::{
    DeletionEnd, ListRefusal, PartRefusal, ProxyCall, ProxyReply, ProxyService, RemotePart,
    RemoteVersion,
};

impl RemoteRoles {
    /// Asks the gateway; `None` if there is none but this proxy, or it does not answer.
    async fn call_gateway(
        &self,
        call: &ProxyCall,
        payload: Bytes,
        deadline: Instant,
    ) -> Option<(ProxyReply, Bytes)> {
        let map = self.managers.map();
        let gateway = map.gateway.filter(|gateway| *gateway != self.gateway)?;
        let peer = self.proxies.of(&map, gateway.server)?;
        tokio::select! {
            biased;
            answered = peer.call(call, payload, deadline) => match answered {
                Ok(answered) => Some(answered),
                Err(error) => {
                    tracing::debug!(server = %gateway.server, %error, "the gateway did not respond");
                    None
                }
            },
            () = down(&*self.managers, gateway.server) => None,
        }
    }

    pub(super) async fn read_gateway_state(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<RegionLookup, ObjectError> {
        if !has_other_regions(&self.managers.map()) {
            return Ok(RegionLookup::Nowhere);
        }
        if self.gateway_quiet.lock().is_some_and(|until| until > Instant::now()) {
            return Ok(RegionLookup::Nowhere);
        }
        let call = ProxyCall::Look(bucket.clone(), key.clone());
        let deadline = Instant::now() + Duration::from_millis(GATEWAY_REFRESH_MS);
        match self.call_gateway(&call, Bytes::new(), deadline).await {
            Some((ProxyReply::Looked(true), _)) => Ok(RegionLookup::Here),
            Some((ProxyReply::Looked(false), _)) => Ok(RegionLookup::Nowhere),
            Some((ProxyReply::There, version)) => {
                let version = decode::<RemoteVersion>("a version of other regions", &version);
                let version = version.map_err(|error| unavailable(&error.to_string()))?;
                Ok(RegionLookup::There(Box::new(version)))
            }
            Some((ProxyReply::NotNow(reason), _)) => Err(unavailable(&reason)),
            // Reads of keys that are nowhere do not all wait for it.
            Some(_) | None => {
                let until = Instant::now() + Duration::from_millis(GATEWAY_QUIET_MS);
                *self.gateway_quiet.lock() = Some(until);
                Ok(RegionLookup::Nowhere)
            }
        }
    }

    pub(super) async fn part_at_gateway(&self, part: RemotePart) -> Result<Bytes, ObjectError> {
        let unread = || {
            unavailable(
                "the object is in another region, and the gateway of this cluster, which reads it from there, does not answer",
            )
        };
        let map = self.managers.map();
        let gateway = map.gateway.filter(|gateway| *gateway != self.gateway).ok_or_else(unread)?;
        let peer = self.proxies.of(&map, gateway.server).ok_or_else(unread)?;
        let (call, none) = (ProxyCall::Part(part), Bytes::new());
        let deadline = Instant::now() + Duration::from_millis(GATEWAY_PART_MS);
        let answered = tokio::select! {
            biased;
            answered = peer.call_while_wanted(&call, none, deadline) => answered.ok(),
            () = down(&*self.managers, gateway.server) => None,
        };
        match answered {
            Some((ProxyReply::Part, bytes)) => Ok(bytes),
            Some((ProxyReply::NoPart(PartRefusal::Changed), _)) => Err(ObjectError::Changed),
            Some((ProxyReply::NoPart(PartRefusal::SlowDown), _)) => Err(ObjectError::SlowDown),
            Some((ProxyReply::NoPart(PartRefusal::Unavailable(why)), _)) => Err(unavailable(&why)),
            Some(_) | None => Err(unread()),
        }
    }

    /// Asks the gateway how the deletion of a bucket ended; `None` if it does not know, or does not answer.
    pub(super) async fn request_deletion(
        &self,
        marked: &BucketRecord,
        deadline: Instant,
    ) -> Option<Result<(), ObjectError>> {
        let version = self.managers.map().version;
        let call = ProxyCall::Deletion(marked.id, marked.name.clone(), marked.epoch, version.0);
        match self.call_gateway(&call, Bytes::new(), deadline).await? {
            (ProxyReply::Deletion(DeletionEnd::NotEmpty), _) => {
                Some(Err(ObjectError::BucketNotEmpty))
            }
            (ProxyReply::Deletion(DeletionEnd::Failed(why)), _) => {
                // It may be gone all the same, and the gateway was late to know.
                let map = self.managers.map();
                let is_there = map.buckets.get(&marked.name).is_some_and(|it| it.id == marked.id);
                is_there.then(|| Err(unavailable(&why)))
            }
            // This proxy is to know it before its client does.
            _ => None,
        }
    }

    pub(super) async fn change_at_gateway(
        &self,
        home: RegionId,
        change: Change,
    ) -> Result<HomeChange, ObjectError> {
        let payload = Bytes::from(encode(&change));
        // The gateway says in time that it had no answer.
        let deadline =
            Instant::now() + CHANGE_PLACE_TIME_MAX + CHANGE_TIME_MAX + Duration::from_secs(2);
        match self.call_gateway(&ProxyCall::Change(home), payload, deadline).await {
            Some((ProxyReply::Changed, answer)) => {
                let answer = decode::<ChangeAnswer>("change of a gateway", &answer);
                answer.map_or_else(|error| Err(unavailable(&error.to_string())), made_of)
            }
            Some(_) | None => Err(unavailable(&format!(
                "region {home} is the home of this bucket and decides about such a change; the gateway of this cluster, which \
                 would pass it on, does not answer"
            ))),
        }
    }
}

impl RemoteRoles {
    pub(super) async fn list_at_gateway(
        &self,
        bucket: &BucketName,
        ask: PageRequest,
    ) -> Result<ListedPage, ObjectError> {
        let unlisted = |why: &str| {
            unavailable(&format!(
                "a list of all regions needs each of them, and the gateway of this cluster, which would ask them, {why}"
            ))
        };
        let map = self.managers.map();
        let gateway = map.gateway.filter(|gateway| *gateway != self.gateway);
        let peer = gateway.and_then(|it| Some((it.server, self.proxies.of(&map, it.server)?)));
        let (server, peer) = peer.ok_or_else(|| unlisted("is not known yet"))?;
        let deadline = Instant::now() + Duration::from_millis(GATEWAY_LIST_MS);
        let call = ProxyCall::List(bucket.clone(), map.version.0, ask.clone());
        let answered = tokio::select! {
            biased;
            answered = peer.call_while_wanted(&call, Bytes::new(), deadline) => answered,
            () = down(&*self.managers, server) => return Err(unlisted("does not answer")),
        };
        match answered {
            Ok((ProxyReply::Listed, page)) => {
                let page = decode::<ListedPage>("page of a gateway", &page);
                let page = page.ok().filter(|page| page.answers(&ask));
                page.ok_or_else(|| unlisted("gives a page that was not asked for"))
            }
            Ok((ProxyReply::NotListed(refusal), _)) => Err(refusal.into()),
            Ok(_) => Err(unlisted("is another one by now: try again")),
            Err(CallError::Busy(_)) => Err(ObjectError::SlowDown),
            Err(CallError::Rejected(Rejected::NotUnderstood)) => {
                Err(unlisted("is of an earlier release"))
            }
            Err(error) => {
                tracing::debug!(%server, %error, "the gateway could not list");
                Err(unlisted("does not answer"))
            }
        }
    }
}

impl RemoteRoles {
    /// Requests of clients that are under way at the busiest of the other proxies.
    pub(super) async fn clients_of_others(&self) -> u32 {
        let map = self.managers.map();
        let is_other = |(id, server): &(&ServerId, &ServerRecord)| {
            let is_proxy =
                server.roles.contains(&ServerRole::Proxy) && server.state == ServerState::Up;
            is_proxy && **id != self.gateway.server
        };
        let others = map.servers.iter().filter(is_other);
        let deadline = Instant::now() + Duration::from_millis(GATEWAY_CLIENTS_MS);
        let asking = others.filter_map(|(id, _)| self.proxies.of(&map, *id)).map(async |peer| {
            match peer.call(&ProxyCall::Clients, Bytes::new(), deadline).await {
                Ok((ProxyReply::Clients(count), _)) => count,
                Ok(_) | Err(_) => 0,
            }
        });
        join_all(asking).await.into_iter().max().unwrap_or(0)
    }
}

impl From<ListRefusal> for ObjectError {
    fn from(refusal: ListRefusal) -> Self {
        match refusal {
            ListRefusal::NoSuchBucket => Self::NoSuchBucket,
            ListRefusal::SlowDown => Self::SlowDown,
            ListRefusal::Unavailable(reason) => Self::Unavailable { reason },
        }
    }
}

impl From<ObjectError> for ListRefusal {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::NoSuchBucket => Self::NoSuchBucket,
            ObjectError::SlowDown => Self::SlowDown,
            error => Self::Unavailable(error.into_reason()),
        }
    }
}

impl From<ObjectError> for PartRefusal {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Changed => Self::Changed,
            ObjectError::SlowDown => Self::SlowDown,
            error => Self::Unavailable(error.into_reason()),
        }
    }
}

/// The result of a lookup, in the form that a proxy of this version decodes.
fn lookup_reply(looked: Result<RegionLookup, ObjectError>, version: u8) -> (ProxyReply, Bytes) {
    let reply = match looked {
        Ok(RegionLookup::There(there)) if version >= PROTOCOL_REMOTE_READS => {
            return (ProxyReply::There, encode(&*there).into());
        }
        Ok(RegionLookup::There(_)) if version >= PROTOCOL_LOCAL => ProxyReply::NotNow(
            "the object is large, in another region, and on its way here: the gateway of this cluster reads it from there".to_owned(),
        ),
        Ok(RegionLookup::Here) => ProxyReply::Looked(true),
        Ok(RegionLookup::Nowhere | RegionLookup::There(_)) => ProxyReply::Looked(false),
        Err(error) if version >= PROTOCOL_LOCAL => ProxyReply::NotNow(error.into_reason()),
        Err(_) => ProxyReply::Looked(false),
    };
    (reply, Bytes::new())
}

/// Returns true if the cluster is a region, and so there may be others.
fn has_other_regions(map: &Topology) -> bool {
    map.gateway.is_some()
}

impl ClusterProxy {
    /// Answers another proxy of the cluster, which takes this one for the gateway, or is it.
    pub async fn answer_proxy(
        &self,
        call: ProxyCall,
        payload: Bytes,
        responder: Responder<ProxyService>,
    ) {
        if call == ProxyCall::Clients {
            let count = self.clients_in_flight();
            return responder.answer(&ProxyReply::Clients(count), Bytes::new());
        }
        let Some(elsewhere) = self.elsewhere().filter(|_| self.access.is_gateway()) else {
            return responder.answer(&ProxyReply::NotGateway, Bytes::new());
        };
        match call {
            ProxyCall::Look(bucket, key) => {
                // A fetch continues even if no read waits for it any more.
                let looking =
                    tokio::spawn(async move { elsewhere.find_elsewhere(&bucket, &key).await });
                let max_wait = Duration::from_millis(GATEWAY_STATE_MS);
                let looked = match timeout(max_wait, looking).await {
                    Ok(Ok(looked)) => looked,
                    Ok(Err(_)) | Err(_) => {
                        Err(unavailable("other regions are still being asked for the key"))
                    }
                };
                let (reply, payload) = lookup_reply(looked, responder.version());
                responder.answer(&reply, payload);
            }
            ProxyCall::Part(part) => {
                let unwanted = Arc::new(Notify::new());
                let tells = unwanted.clone();
                responder.when_unwanted(move || tells.notify_one());
                let read = async {
                    if !part.is_sound() {
                        return Err(unavailable("a part that no proxy asks for"));
                    }
                    let max_wait = Duration::from_millis(GATEWAY_PART_MS);
                    let late = |_late| unavailable("another region is too slow to be read from");
                    timeout(max_wait, elsewhere.part(part)).await.map_err(late)?
                };
                tokio::select! {
                    biased;
                    read = read => match read {
                        Ok(bytes) => responder.answer(&ProxyReply::Part, bytes),
                        Err(error) => {
                            responder.answer(&ProxyReply::NoPart(error.into()), Bytes::new());
                        }
                    },
                    () = unwanted.notified() => {}
                }
            }
            ProxyCall::Deletion(bucket, name, epoch, version) => {
                let mut versions = self.access.managers.versions();
                let ended = async {
                    versions.reaches(MapVersion(version)).await.ok()?;
                    elsewhere.deletion_of((bucket, name, epoch)).await
                };
                let max_wait = Duration::from_millis(REGION_DELETION_MS);
                let end = match timeout(max_wait, ended).await.ok().flatten() {
                    Some(Ok(())) => DeletionEnd::Deleted,
                    Some(Err(ObjectError::BucketNotEmpty)) => DeletionEnd::NotEmpty,
                    Some(Err(error)) => DeletionEnd::Failed(error.into_reason()),
                    None => DeletionEnd::Unknown,
                };
                responder.answer(&ProxyReply::Deletion(end), Bytes::new());
            }
            ProxyCall::List(bucket, version, ask) => {
                let unwanted = Arc::new(Notify::new());
                let tells = unwanted.clone();
                responder.when_unwanted(move || tells.notify_one());
                let mut versions = self.access.managers.versions();
                let listed = async {
                    if !ask.is_sound() {
                        return Err(unavailable("a page that no proxy asks for"));
                    }
                    // The bucket may have been made a moment ago.
                    let known = timeout(MAP_LAG_MAX, versions.reaches(MapVersion(version))).await;
                    if !matches!(known, Ok(Ok(()))) {
                        return Err(unavailable("the gateway's map of the cluster is late"));
                    }
                    elsewhere.list(&bucket, ask).await
                };
                tokio::select! {
                    biased;
                    listed = listed => match listed {
                        Ok(page) => responder.answer(&ProxyReply::Listed, encode(&page).into()),
                        Err(error) => {
                            responder.answer(&ProxyReply::NotListed(error.into()), Bytes::new());
                        }
                    },
                    () = unwanted.notified() => {}
                }
            }
            // Answered before.
            ProxyCall::Clients | ProxyCall::Keys | ProxyCall::Counts => {}
            ProxyCall::Change(home) => {
                let change = decode::<Change>("change for a home", &payload);
                drop(payload);
                let made = match change {
                    Ok(change) if change.is_sound() => elsewhere.change(home, change).await,
                    Ok(_) | Err(_) => Err(unavailable("a change that no proxy passes on")),
                };
                responder.answer(&ProxyReply::Changed, encode(&answer_of(made)).into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_protocol::region::entry::EntryKind;
    use larder_protocol::region::{Entry, Name, Slot};
    use larder_types::{BucketId, HybridClock, OpId, OpSeq, Origin, PgId, Stamp, View};

    use super::*;
    use crate::limits::PROTOCOL_LISTS;

    #[test]
    fn a_large_remote_object_is_reported_in_a_form_that_an_earlier_release_supports() {
        let at = Stamp { clock: HybridClock(400), region: RegionId(2) };
        let op = OpId { view: View(3), seq: OpSeq(4) };
        let origin = Origin { region: RegionId(2), pg: PgId(3), op };
        let entry = Entry { at, origin, what: EntryKind::Marker };
        let key = ObjectKey::new("a").expect("a key");
        let name = Name { bucket: BucketId(2), key, slot: Slot::Null };
        let version = RemoteVersion { name, regions: vec![RegionId(2)], entry };
        let there = || Ok(RegionLookup::There(Box::new(version.clone())));
        let (reply, payload) = lookup_reply(there(), PROTOCOL_REMOTE_READS);
        assert_eq!(reply, ProxyReply::There);
        assert_eq!(decode::<RemoteVersion>("a version", &payload).expect("it is one"), version);
        let (reply, _) = lookup_reply(there(), PROTOCOL_LISTS);
        assert!(matches!(reply, ProxyReply::NotNow(_)), "{reply:?}");
        let (reply, _) = lookup_reply(there(), PROTOCOL_LOCAL - 1);
        assert_eq!(reply, ProxyReply::Looked(false));
        let remote = Err(unavailable("away"));
        assert_eq!(
            lookup_reply(remote, PROTOCOL_REMOTE_READS).0,
            ProxyReply::NotNow("away".into())
        );
    }
}
