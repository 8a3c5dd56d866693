//! A proxy of a cluster, over loopback, against servers that do what the test says.

mod buckets;
mod coalesced;
mod data;
mod hedges;
mod homes;
mod hostile;
mod located;
mod managers;
mod meta;
mod policies;
mod reads;
mod rows;
mod writes;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use larder_identity::{Authority, Credentials, Role, Roles};
use larder_net::limits::PROTOCOL_MAX;
use larder_net::{Endpoint, Listener, Services};
use larder_objects::{
    BodyDigest, BodyError, CompleteOptions, ListItem, ListRequest, NamedPart, ObjectError, Objects,
    PutBody, PutDone, PutOptions, ReadBody, UploadOptions,
};
use larder_protocol::manager::state::Command;
use larder_protocol::placement::pg_of;
use larder_protocol::scheduler::Policy;
use larder_types::limits::{CHUNK_BYTES_MAX, PART_BYTES_MIN};
use larder_types::{
    BootId, BucketName, BucketRecord, ClusterId, Condition, ETag, ObjectKey, PgId, ServerId, View,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::super::ClusterProxy;
use super::super::role_access::{RoleAccess, Scan, ScanStep};
use super::ClusterConfig;
use super::scan::scan_until;
use crate::wire::{DataService, MetaService};
use data::{Disk, FakeData, Fault};
use managers::{FakeManagers, PGS, PROXY};
use meta::{FakeMeta, World};

struct Cluster {
    proxy: ClusterProxy,
    world: Arc<World>,
    disks: Vec<Arc<Disk>>,
    bucket: BucketRecord,
    _listeners: Vec<Listener>,
}

/// The roles that may call servers.
fn callers() -> Roles {
    Roles::of(&[Role::Proxy])
}

/// A body in pieces, without digests.
struct Whole(Vec<Bytes>);

impl Whole {
    fn of(bytes: &Bytes) -> Self {
        let pieces = (0..bytes.len()).step_by(1 << 20);
        Self(pieces.rev().map(|at| bytes.slice(at..bytes.len().min(at + (1 << 20)))).collect())
    }
}

impl PutBody for Whole {
    fn len(&self) -> Option<u64> {
        None
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        self.0.pop().map(Ok)
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        Ok(BodyDigest { md5: [7; 16], checksum: None })
    }
}

fn content(len: usize, seed: u8) -> Bytes {
    (0..len).map(|at| (at / 251) as u8 ^ at as u8 ^ seed).collect()
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(name).unwrap()
}

/// Waits for an event that comes, but not for ever.
async fn soon<T>(event: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), event).await.expect("it comes within a minute")
}

async fn reaches(counter: &watch::Sender<u32>, count: u32) {
    let mut counter = counter.subscribe();
    soon(counter.wait_for(|now| *now >= count)).await.unwrap();
}

impl Cluster {
    async fn begin() -> Self {
        Self::reading_by(Policy::RoundRobin).await
    }

    async fn reading_by(read_policy: Policy) -> Self {
        Self::of_releases(read_policy, PROTOCOL_MAX).await
    }

    /// With data servers that speak no newer version of the protocol.
    async fn of_releases(read_policy: Policy, data_speaks: u8) -> Self {
        Self::of_servers(read_policy, data_speaks, |id, world, disks| {
            let services = Services::new();
            match id {
                0 | 1 => {
                    services.with::<MetaService>(callers(), FakeMeta { me: ServerId(id), world })
                }
                _ => services
                    .with::<DataService>(callers(), FakeData(disks[id as usize - 2].clone())),
            }
        })
        .await
    }

    /// Of servers, by id, that offer these services.
    async fn of_servers(
        read_policy: Policy,
        data_speaks: u8,
        offered: impl Fn(u32, Arc<World>, &[Arc<Disk>]) -> Services,
    ) -> Self {
        let authority = Authority::create(ClusterId(9)).unwrap();
        let endpoint = |id, role| {
            let identity = authority.identity(ServerId(id), Roles::of(&[role])).unwrap();
            let newest = if role == Role::Data { data_speaks } else { PROTOCOL_MAX };
            Endpoint::as_of(Credentials::new(&identity).unwrap(), newest)
        };
        let mut sockets = Vec::new();
        for _ in 0..4 {
            sockets.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let address = |socket: &TcpListener| socket.local_addr().unwrap();
        let mut addresses: Vec<SocketAddr> = sockets.iter().map(address).collect();
        // Nobody calls the proxy.
        addresses.push(addresses[0]);
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let managers = FakeManagers::new(&addresses);
        let world = World::new(managers.clone());
        let disks: Vec<Arc<Disk>> = (0..2).map(|_| Arc::default()).collect();
        let mut listeners = Vec::new();
        for (id, socket) in (0..).zip(sockets) {
            let role = if id < 2 { Role::Meta } else { Role::Data };
            let services = offered(id, world.clone(), &disks);
            listeners.push(Listener::start(&endpoint(id, role), socket, services).unwrap());
        }
        let proxy = soon(ClusterProxy::begin(ClusterConfig {
            endpoint: endpoint(PROXY.0, Role::Proxy),
            managers: managers.clone(),
            me: PROXY,
            boot: BootId(1),
            read_policy,
        }));
        let proxy = proxy.await;
        let name = BucketName::new("bucket").unwrap();
        let bucket = soon(proxy.create_bucket(&name, None)).await.unwrap();
        Self { proxy, world, disks, bucket, _listeners: listeners }
    }

    fn pg(&self, name: &str) -> PgId {
        pg_of(self.bucket.id, &key(name), PGS)
    }

    async fn put(&self, name: &str, bytes: &Bytes) -> Result<PutDone, ObjectError> {
        let options = PutOptions::default();
        soon(self.proxy.put(&self.bucket.name, &key(name), options, Whole::of(bytes))).await
    }

    async fn read(&self, name: &str, range: Range<u64>) -> Result<Bytes, ObjectError> {
        let opened = soon(self.proxy.open(&self.bucket.name, &key(name))).await?;
        match soon(self.proxy.read(&opened, range)).await? {
            ReadBody::Whole(bytes) => Ok(bytes),
            ReadBody::Stream(mut pieces) => {
                let mut read = Vec::new();
                while let Some(piece) = soon(pieces.next()).await {
                    read.extend_from_slice(&piece?);
                }
                Ok(read.into())
            }
        }
    }

    /// Returns true if an object is there with these bytes.
    async fn has(&self, name: &str, bytes: &Bytes) -> bool {
        self.read(name, 0..bytes.len() as u64).await.as_ref() == Ok(bytes)
    }

    /// Returns true if this part of it is there: one of its own, which no other read joins.
    async fn has_from(&self, name: &str, bytes: &Bytes, from: u32) -> bool {
        let range = u64::from(from)..bytes.len() as u64;
        self.read(name, range).await == Ok(bytes.slice(from as usize..))
    }

    async fn list(&self, request: ListRequest) -> (Vec<String>, bool) {
        let page = soon(self.proxy.list(&self.bucket.name, request)).await.unwrap();
        let names = page.items.into_iter().map(|item| match item {
            ListItem::Entry(object) => object.key.as_str().to_owned(),
            ListItem::Group(group) => group,
        });
        (names.collect(), page.truncated)
    }

    fn fail(&self, disk: usize, fault: Fault) {
        *self.disks[disk].fault.lock() = fault;
    }
}

#[tokio::test]
async fn objects_of_all_sizes_come_back() {
    let cluster = Cluster::begin().await;
    let sizes = [0, 1, 2048, 2049, 100_000, 3 << 20, CHUNK_BYTES_MAX as usize + 70_000];
    for (number, size) in sizes.into_iter().enumerate() {
        let (name, bytes) = (format!("object {number}"), content(size, number as u8));
        let done = cluster.put(&name, &bytes).await.unwrap();
        assert_eq!(done.size, size as u64);
        assert!(cluster.has(&name, &bytes).await, "{size} bytes");
    }
    let large = content(CHUNK_BYTES_MAX as usize + 70_000, 6);
    let range = u64::from(CHUNK_BYTES_MAX) - 10..u64::from(CHUNK_BYTES_MAX) + 10;
    let across = cluster.read("object 6", range.clone()).await.unwrap();
    assert_eq!(across, large.slice(range.start as usize..range.end as usize));
    let (fourth, always) = (key("object 4"), Condition::default());
    soon(cluster.proxy.delete(&cluster.bucket.name, &fourth, always)).await.unwrap();
    assert_eq!(cluster.read("object 4", 0..1).await, Err(ObjectError::NoSuchKey));
}

#[tokio::test]
async fn a_put_follows_the_primary() {
    let cluster = Cluster::begin().await;
    let pg = cluster.pg("moved");
    cluster.world.managers.change_primary(pg);
    // The proxy's map still has the old one.
    let bytes = content(50_000, 1);
    let (stored, ()) = tokio::join!(cluster.put("moved", &bytes), async {
        reaches(&cluster.world.refused, 1).await;
        cluster.world.managers.publish();
    });
    stored.unwrap();
    assert!(cluster.has("moved", &bytes).await);
    assert!(cluster.proxy.counters().retries.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn a_grant_that_a_new_primary_does_not_know_is_replaced() {
    let cluster = Cluster::begin().await;
    let pg = cluster.pg("lost");
    *cluster.world.forgetful.lock() = Some(View(1));
    let bytes = content(50_000, 2);
    let (stored, ()) = tokio::join!(cluster.put("lost", &bytes), async {
        reaches(&cluster.world.holding, 1).await;
        cluster.world.managers.change_primary(pg);
        cluster.world.managers.publish();
    });
    stored.unwrap();
    assert!(cluster.has("lost", &bytes).await);
    let opened = soon(cluster.proxy.open(&cluster.bucket.name, &key("lost"))).await.unwrap();
    assert_eq!(opened.op.view, View(2), "it was made anew");
    assert_eq!(*cluster.world.abandoned.borrow(), 0);
}

#[tokio::test]
async fn nothing_is_written_by_an_older_map_than_it_was_granted_by() {
    let cluster = Cluster::begin().await;
    let bytes = content(50_000, 4);
    cluster.put("before", &bytes).await.unwrap();
    let managers = &cluster.world.managers;
    // The replicas of its volume may be others by the map that nobody sees yet.
    managers.change_primary(PgId((cluster.pg("late").0 + 1) % PGS));
    cluster.world.index.lock().as_of = managers.version();
    let (stored, ()) = tokio::join!(cluster.put("late", &bytes), async {
        soon(async {
            while cluster.world.index.lock().granted() == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // While it was granted and not written others come and go.
        for _ in 0..5 {
            assert!(cluster.has("before", &bytes).await);
        }
        assert!(cluster.disks.iter().all(|disk| disk.chunks() == 1), "it waits for the map");
        managers.publish();
    });
    stored.unwrap();
    assert!(cluster.disks.iter().all(|disk| disk.chunks() == 2));
    assert!(cluster.has("late", &bytes).await);
    assert_eq!(cluster.proxy.counters().begun_anew.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_put_whose_client_goes_away_is_abandoned() {
    let cluster = Cluster::begin().await;
    let bytes = content(70_000, 12);
    // With its grant on the way.
    *cluster.world.holds_put.lock() = true;
    tokio::select! {
        _ = cluster.put("gone", &bytes) => unreachable!("it is not answered"),
        () = reaches(&cluster.world.holding, 1) => {}
    }
    reaches(&cluster.world.abandoned, 1).await;
    // With METAX on the way.
    *cluster.world.forgetful.lock() = Some(View(1));
    tokio::select! {
        _ = cluster.put("gone", &bytes) => unreachable!("it is not answered"),
        () = reaches(&cluster.world.holding, 2) => {}
    }
    reaches(&cluster.world.abandoned, 2).await;
    assert_eq!(cluster.read("gone", 0..1).await, Err(ObjectError::NoSuchKey));
}

#[tokio::test]
async fn a_put_without_room_ends() {
    let cluster = Cluster::begin().await;
    cluster.fail(0, Fault::Full);
    let put = async || cluster.put("large", &content(70_000, 4)).await;
    let without_room =
        |put| matches!(put, Err(ObjectError::Unavailable { reason }) if reason.contains("no room"));
    assert!(
        without_room(put().await),
        "each try is revoked, and its primary would know other places"
    );
    assert_eq!(cluster.read("large", 0..1).await, Err(ObjectError::NoSuchKey));
    cluster.fail(1, Fault::Full);
    assert!(without_room(put().await));
    assert!(cluster.put("small", &content(2000, 4)).await.is_ok(), "it needs no data server");
}

#[tokio::test]
async fn a_damaged_copy_is_never_given_out() {
    let cluster = Cluster::begin().await;
    let bytes = content(200_000, 5);
    cluster.put("damaged", &bytes).await.unwrap();
    cluster.fail(0, Fault::Corrupt);
    for _ in 0..4 {
        assert!(cluster.has("damaged", &bytes).await);
    }
    assert!(cluster.proxy.counters().mismatches.load(Ordering::Relaxed) >= 1);
    cluster.fail(1, Fault::Corrupt);
    assert_eq!(cluster.read("damaged", 0..10).await, Err(ObjectError::Damaged));
    cluster.fail(1, Fault::Silent);
    let error = cluster.read("damaged", 0..10).await.unwrap_err();
    assert!(matches!(error, ObjectError::Unavailable { .. }), "one copy may be good: {error}");
}

#[tokio::test]
async fn bytes_that_are_damaged_by_an_older_map_are_read_again_by_a_newer_one() {
    let cluster = Cluster::begin().await;
    let bytes = content(50_000, 9);
    cluster.put("moved", &bytes).await.unwrap();
    (0..2).for_each(|disk| cluster.fail(disk, Fault::Corrupt));
    cluster.world.managers.change_primary(PgId((cluster.pg("moved").0 + 1) % PGS));
    let mismatches = &cluster.proxy.counters().mismatches;
    let (read, ()) = tokio::join!(cluster.read("moved", 0..50_000), async {
        soon(async {
            while mismatches.load(Ordering::Relaxed) < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        cluster.fail(0, Fault::None);
        cluster.world.managers.publish();
    });
    assert!(read.is_ok_and(|read| read[..] == bytes[..]), "the map was older than the replicas");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_left_alone() {
    let cluster = Cluster::begin().await;
    let bytes = content(10_000, 6);
    cluster.put("read", &bytes).await.unwrap();
    cluster.fail(0, Fault::Silent);
    for _ in 0..20 {
        assert!(cluster.has("read", &bytes).await);
    }
    let failed = cluster.proxy.counters().failed_reads.load(Ordering::Relaxed);
    assert!((1..20 / 2).contains(&failed), "it is not asked by turns: {failed}");
}

#[tokio::test]
async fn a_list_is_one_of_all_servers() {
    let cluster = Cluster::begin().await;
    let mut names: Vec<String> = (0..60).map(|n| format!("dir{}/key{n:02}", n % 7)).collect();
    names.extend((0..20).map(|n| format!("plain{n:02}")));
    for name in &names {
        cluster.put(name, &content(10, 7)).await.unwrap();
    }
    names.sort();
    assert!((0..PGS).all(|pg| names.iter().any(|name| cluster.pg(name) == PgId(pg))));
    let all = ListRequest { max: 1000, ..ListRequest::default() };
    assert_eq!(cluster.list(all.clone()).await, (names.clone(), false));
    let mut after = None;
    let mut listed = Vec::new();
    loop {
        let (page, truncated) =
            cluster.list(ListRequest { max: 9, after: after.clone(), ..all.clone() }).await;
        after = page.last().cloned();
        listed.extend(page);
        if !truncated {
            break;
        }
    }
    assert_eq!(listed, names);
    let grouped = ListRequest { delimiter: Some("/".into()), max: 10, ..all };
    let (page, truncated) = cluster.list(grouped).await;
    let groups: Vec<String> = (0..7).map(|n| format!("dir{n}/")).collect();
    assert_eq!(page[..7], groups);
    assert_eq!((&page[7..], truncated), (&names[60..63], true));
}

#[tokio::test]
async fn a_list_is_repeated_only_at_a_new_primary() {
    let cluster = Cluster::begin().await;
    let names: Vec<String> = (0..40).map(|n| format!("key{n:02}")).collect();
    for name in &names {
        cluster.put(name, &content(10, 8)).await.unwrap();
    }
    let moved = (0..PGS).map(PgId).find(|pg| cluster.world.managers.leader(*pg).0 == ServerId(0));
    cluster.world.managers.change_primary(moved.unwrap());
    let all = ListRequest { max: 1000, ..ListRequest::default() };
    let ((listed, _), ()) = tokio::join!(cluster.list(all), async {
        reaches(&cluster.world.refused, 1).await;
        cluster.world.managers.publish();
    });
    assert_eq!(listed, names);
    // Server 1: what it led, and then what it leads by now; server 0: the rest of what it led.
    let index = cluster.world.index.lock();
    assert_eq!(index.scans.get(&ServerId(1)), Some(&2));
    assert_eq!(index.scans.get(&ServerId(0)), Some(&1));
}

#[tokio::test]
async fn a_newer_record_of_the_bucket_is_waited_for() {
    let cluster = Cluster::begin().await;
    // A deletion that found the bucket not empty: the epoch is another, and the proxy has not heard.
    let name = cluster.bucket.name.clone();
    cluster.world.managers.agree(Command::BeginDeletion(name.clone()));
    let marked = cluster.world.managers.epoch(cluster.bucket.id).unwrap();
    cluster.world.managers.agree(Command::EndDeletion(name, marked, false));
    let bytes = content(5000, 9);
    let managers = cluster.world.managers.clone();
    let (stored, ()) = tokio::join!(cluster.put("stale", &bytes), async move {
        tokio::task::yield_now().await;
        managers.publish();
    });
    stored.unwrap();
    assert!(cluster.has("stale", &bytes).await);
}

#[tokio::test]
async fn buckets_are_made_and_deleted() {
    let cluster = Cluster::begin().await;
    let name = BucketName::new("another").unwrap();
    soon(cluster.proxy.create_bucket(&name, None)).await.unwrap();
    let again = soon(cluster.proxy.create_bucket(&name, None)).await;
    assert_eq!(again, Err(ObjectError::BucketExists));
    assert_eq!(cluster.proxy.buckets().unwrap().len(), 2);
    cluster.put("object", &content(10, 10)).await.unwrap();
    let full = soon(cluster.proxy.delete_bucket(&cluster.bucket.name)).await;
    assert_eq!(full, Err(ObjectError::BucketNotEmpty));
    soon(cluster.proxy.delete_bucket(&name)).await.unwrap();
    assert_eq!(cluster.proxy.bucket(&name), Err(ObjectError::NoSuchBucket));
}

#[tokio::test]
async fn what_the_managers_may_have_done_is_not_done_twice() {
    let cluster = Cluster::begin().await;
    let name = BucketName::new("unheard").unwrap();
    *cluster.world.managers.unheard.lock() = 1;
    let made = soon(cluster.proxy.create_bucket(&name, None)).await.unwrap();
    assert_eq!(cluster.proxy.bucket(&name), Ok(made));
    // The marking, and the end.
    *cluster.world.managers.unheard.lock() = 2;
    soon(cluster.proxy.delete_bucket(&name)).await.unwrap();
    assert_eq!(cluster.proxy.bucket(&name), Err(ObjectError::NoSuchBucket));
}

#[tokio::test]
async fn uploads_are_put_together() {
    let cluster = Cluster::begin().await;
    let (proxy, bucket, key) = (&cluster.proxy, &cluster.bucket.name, key("in parts"));
    let upload = soon(proxy.create_upload(bucket, &key, UploadOptions::default())).await.unwrap();
    assert_eq!(soon(proxy.upload(bucket, &key, upload)).await.unwrap().upload, upload);
    let parts = [content(PART_BYTES_MIN as usize, 13), content(9000, 14)];
    for (number, part) in (1..).zip(&parts) {
        soon(proxy.put_part(bucket, &key, upload, number, Whole::of(part))).await.unwrap();
    }
    let listed = soon(proxy.list_parts(bucket, &key, upload, 0, 1)).await.unwrap();
    assert_eq!((listed.parts[0].number, listed.truncated), (1, true));
    let etag = ETag::Md5([7; 16]).text();
    let named = |number| NamedPart { number, etag: etag.clone(), checksum: None };
    let options = CompleteOptions { parts: vec![named(1), named(2)], ..Default::default() };
    let done = soon(proxy.complete_upload(bucket, &key, upload, options)).await.unwrap();
    assert_eq!(done.size, PART_BYTES_MIN + 9000);
    assert!(cluster.has("in parts", &Bytes::from(parts.concat())).await);
    let again = soon(proxy.upload(bucket, &key, upload)).await;
    assert_eq!(again.unwrap_err(), ObjectError::NoSuchUpload);
}

#[tokio::test]
async fn meta_servers_learn_open_and_finished_requests() {
    let cluster = Cluster::begin().await;
    *cluster.world.holds_put.lock() = true;
    let bytes = content(70_000, 12);
    let reported = async {
        reaches(&cluster.world.holding, 1).await;
        cluster.put("later", &content(10, 1)).await.unwrap();
        let mut finished = cluster.world.finished.subscribe();
        let is_told = |(below, open): &(u64, Vec<u64>)| open.len() == 1 && *below > open[0] + 1;
        drop(soon(finished.wait_for(is_told)).await.unwrap());
    };
    tokio::select! {
        _ = cluster.put("open", &bytes) => unreachable!("it is not answered"),
        () = reported => {}
    }
}

#[tokio::test]
async fn a_conditional_put_that_is_rolled_forward_is_done() {
    let cluster = Cluster::begin().await;
    cluster.fail(1, Fault::NextWrite);
    *cluster.world.rolls_forward.lock() = true;
    let bytes = content(70_000, 3);
    let if_none_match = Some(larder_types::EtagList::Any);
    let condition = Condition { if_none_match, ..Condition::default() };
    let options = PutOptions { condition, ..PutOptions::default() };
    let (bucket, once) = (&cluster.bucket.name, key("once"));
    soon(cluster.proxy.put(bucket, &once, options.clone(), Whole::of(&bytes))).await.unwrap();
    assert!(cluster.has("once", &bytes).await, "its own success is no conflict");
    assert_eq!(cluster.proxy.counters().begun_anew.load(Ordering::Relaxed), 0);
    let again = soon(cluster.proxy.put(bucket, &once, options, Whole::of(&bytes))).await;
    assert_eq!(again, Err(ObjectError::PreconditionFailed), "that of another is one");
}

#[tokio::test]
async fn a_closed_session_is_followed_by_another() {
    let cluster = Cluster::begin().await;
    cluster.put("before", &content(10, 11)).await.unwrap();
    let first = cluster.proxy.requests.session();
    reaches(&cluster.world.floors, 2).await;
    // The next one is closed before it is seen to be open.
    *cluster.world.managers.closed_early.lock() = 1;
    cluster.world.managers.close_sessions();
    cluster.world.managers.publish();
    soon(async {
        while cluster.proxy.requests.session() == first || cluster.proxy.access.admit().is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    cluster.put("after", &content(10, 11)).await.unwrap();
    assert_eq!(cluster.proxy.counters().lost_sessions.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_scan_has_one_deadline_for_all_that_it_waits_for() {
    let cluster = Cluster::begin().await;
    *cluster.world.drips.lock() = true;
    let scan = Scan { pg: None, settle: true, from: b"V".to_vec(), to: None, wanted: 1000 };
    let (primaries, mut rows) = (&cluster.proxy.access.primaries, 0);
    let deadline = Instant::now() + Duration::from_secs(1);
    let scanned = soon(scan_until(primaries, scan, deadline, |_, _| {
        rows += 1;
        ScanStep::Next
    }));
    let error = scanned.await.unwrap_err();
    assert!(matches!(error, ObjectError::Unavailable { reason } if reason.contains("in time")));
    assert!(rows > 0, "each wait was short");
}
