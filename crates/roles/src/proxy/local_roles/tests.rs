//! A whole store in one process, with a put that has its place and no data yet.

use std::sync::Arc;
use std::time::Duration;

use larder_objects::{ListItem, ListRequest, ObjectError, Objects};
use larder_protocol::{Call, Content, Description, PutCall};
use larder_types::{
    Attributes, BucketName, BucketRecord, Condition, ETag, Holders, ObjectKey, PgId, Target,
};
use tokio::time::timeout;

use super::super::role_access::{BucketSnapshot, RoleAccess};
use super::super::{ChangeOutcome, Proxy};
use crate::store::{DATA_FILE, Store, StoreConfig};
use crate::ticket::{Granted, Settled, Ticket, WriteOutcome};

fn open(dir: &tempfile::TempDir) -> Store {
    let config = StoreConfig {
        root: dir.path().to_owned(),
        data: DATA_FILE.to_owned(),
        pg_count: Some(1),
        lv_bytes: Some(64 * 1024 * 1024),
        log_segment_bytes: 4 * 1024 * 1024,
        region: larder_types::RegionId::OWN,
    };
    Store::open(&config).unwrap()
}

/// Of one among several regions.
fn open_region(dir: &tempfile::TempDir) -> Store {
    drop(open(dir));
    let config = StoreConfig {
        root: dir.path().to_owned(),
        data: DATA_FILE.to_owned(),
        pg_count: None,
        lv_bytes: None,
        log_segment_bytes: 4 * 1024 * 1024,
        region: larder_types::RegionId(2),
    };
    Store::open(&config).unwrap()
}

fn name(bucket: &str) -> BucketName {
    BucketName::new(bucket).unwrap()
}

async fn bucket(store: &Store, bucket: &str) -> BucketRecord {
    store.proxy().create_bucket(&name(bucket), None).await.unwrap()
}

/// The call of a put of five bytes.
fn put(store: &Store, bucket: &BucketRecord, key: &str, number: u64) -> (PgId, Call) {
    let key = ObjectKey::new(key).unwrap();
    let pg = store.proxy().access.pg_of(bucket.id, &key);
    let session = store.proxy().requests.session();
    let call = PutCall {
        request: larder_types::Request { session, number, floor: 0 },
        bucket: bucket.id,
        epoch: bucket.epoch,
        key,
        target: Target::Version,
        description: Description {
            size: 5,
            etag: ETag::Md5([1; 16]),
            checksum: None,
            attributes: Attributes::default(),
        },
        content: Content::Data { len: 5, seed: 1, sums: vec![0] },
        condition: Condition::default(),
        required_copies: 0,
    };
    (pg, Call::Put(Box::new(call)))
}

async fn lists(proxy: &Proxy, bucket: &str) -> Result<Vec<String>, ObjectError> {
    let request = ListRequest { max: 10, ..ListRequest::default() };
    let page = proxy.list(&name(bucket), request).await?;
    let names = page.items.into_iter().map(|item| match item {
        ListItem::Entry(object) => object.key.as_str().to_owned(),
        ListItem::Group(group) => group,
    });
    Ok(names.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_put_keeps_back_the_lists_of_its_own_page_and_no_deletion_of_another_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let own = bucket(&store, "own-bucket").await;
    bucket(&store, "another").await;
    let request = store.proxy().requests.begin();
    let ticket = Arc::new(Ticket::default());
    let (pg, call) = put(&store, &own, "m", request.id().number);
    store.meta().call(pg, call, &ticket);
    let Granted { grant, .. } = ticket.granted().await.expect("it has a place");

    let proxy = store.proxy().clone();
    assert_eq!(lists(&proxy, "another").await, Ok(Vec::new()));
    let deleted = proxy.delete_bucket(&name("another")).await;
    assert_eq!(deleted, Ok(()), "it waits for no put of another bucket");
    assert_eq!(lists(&proxy, "another").await, Err(ObjectError::NoSuchBucket));

    let mut listing = tokio::spawn(async move { lists(&proxy, "own-bucket").await });
    let early = timeout(Duration::from_millis(300), &mut listing).await;
    assert!(early.is_err(), "the key may be there or not: {early:?}");
    ticket.writing(1);
    ticket.written(0, WriteOutcome::Durable);
    assert!(matches!(ticket.settled().await, Settled::Written(..)));
    let (op, attempt, holders) = (grant.op, grant.attempt, Holders::default().with(0));
    store.meta().notify(pg, Call::Commit { op, attempt, holders });
    assert_eq!(listing.await.unwrap(), Ok(vec!["m".to_owned()]));
    drop(request);
    store.close();
}

/// A tombstone that would beat it may have gone with a deletion that came to nothing here.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_was_asked_for_before_its_bucket_was_closed_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_region(&dir);
    let (proxy, name, key) = (store.proxy(), name("own-bucket"), ObjectKey::new("k").unwrap());
    let before = BucketSnapshot::of(&bucket(&store, "own-bucket").await);
    let purge = async |known: BucketSnapshot| {
        let region = larder_types::RegionId(1);
        let at = larder_types::Stamp { clock: larder_types::HybridClock(7 << 16), region };
        let op = larder_types::OpId { view: larder_types::View(1), seq: larder_types::OpSeq(9) };
        let origin = larder_types::Origin { region, pg: PgId(0), op };
        proxy.purge_remote((&name, known), &key, (at, origin)).await
    };
    let marked = proxy.access.begin_deletion(&name).await.unwrap();
    let closed = BucketSnapshot::of(&marked);
    assert!(purge(closed).await.is_err(), "it takes no changes");
    proxy.access.end_deletion(marked, false).await.unwrap();
    for known in [before, closed] {
        assert_eq!(purge(known).await, Err(ObjectError::NoSuchBucket));
    }
    let now = proxy.access.bucket(&name, BucketSnapshot::of).unwrap();
    assert_eq!(purge(now).await, Ok(ChangeOutcome::Taken));
    store.close();
}

#[tokio::test]
async fn cors_rules_outlive_a_restart_and_go_with_their_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let photos = bucket(&store, "photos").await;
    let rule = larder_types::CorsRule {
        id: None,
        methods: vec![larder_types::CorsMethod::Get],
        origins: vec!["*".to_owned()],
        headers: Vec::new(),
        exposed: Vec::new(),
        max_age_s: None,
    };
    let rules = larder_types::CorsRules::new(vec![rule]).ok();
    store.proxy().set_cors(&photos.name, rules.clone()).await.unwrap();
    let missing = store.proxy().set_cors(&name("none"), rules.clone()).await;
    assert_eq!(missing, Err(ObjectError::NoSuchBucket));
    drop(store);
    let store = open(&dir);
    assert_eq!(store.proxy().cors(&photos.name), rules);
    store.proxy().delete_bucket(&photos.name).await.unwrap();
    bucket(&store, "photos").await;
    assert_eq!(store.proxy().cors(&photos.name), None);
}
