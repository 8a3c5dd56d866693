//! Buckets that one region alone has, and that it shares with the others later.

use larder_link::SharingSetting;
use larder_types::{BucketRecord, Sharing};

use super::*;

fn logs() -> BucketName {
    BucketName::new("logs").unwrap()
}

fn record(region: &Region) -> Option<BucketRecord> {
    region.proxy().bucket(&logs()).ok()
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !is_so().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Has a region have the bucket alone, or share it, as its command does.
async fn set_local(region: &Region, is_local: bool) {
    let dir = region.dir.path();
    larder_link::submit_order(dir, SharingSetting { bucket: logs(), is_local }).unwrap();
    let is_taken = async || larder_link::asked::<SharingSetting>(dir).unwrap().is_empty();
    until("the setting is not taken up", is_taken).await;
    assert_eq!(record(region).map(|it| it.is_local()), Some(is_local));
}

/// Shares the bucket, and waits until all of it is told.
async fn share(region: &Region) {
    let dir = region.dir.path();
    larder_link::submit_order(dir, SharingSetting { bucket: logs(), is_local: false }).unwrap();
    until("it is not shared", async || record(region).unwrap().sharing == Sharing::All).await;
}

async fn put_log(region: &Region, name: &str, bytes: &Bytes) {
    use md5::Digest;
    let body = Digested { body: Body::of(bytes), md5: md5::Md5::digest(bytes).into() };
    region.proxy().put(&logs(), &key(name), PutOptions::default(), body).await.unwrap();
}

async fn log_keys(region: &Region) -> Vec<String> {
    if record(region).is_none() {
        return Vec::new();
    }
    let request = ListRequest { max: 1000, ..ListRequest::default() };
    let page = region.proxy().list(&logs(), request).await.unwrap();
    let name = |item| match item {
        ListItem::Entry(larder_objects::ListedObject { key, .. }) => key.as_str().to_owned(),
        ListItem::Group(group) => panic!("no group was asked for, and {group} came"),
    };
    page.items.into_iter().map(name).collect()
}

fn left_out(region: &Region) -> u64 {
    let counters = region.regions.as_ref().expect("it runs").counters();
    counters.left_out.load(Ordering::Relaxed)
}

/// Waits until a change that a region makes now is in the other one: all that it told before is, too.
async fn passes(from: &Region, to: &Region, name: &str) {
    put(from.proxy(), name, &content(9, 10)).await;
    until("a change does not pass", async || has(to, name).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_bucket_is_not_replicated_until_it_is_shared() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    set_local(&one, true).await;
    assert_eq!(record(&one).unwrap().sharing, Sharing::Local, "it is made so");
    put_log(&one, "a", &content(3, 100)).await;
    put_log(&one, "b", &content(4, 100_000)).await;
    one.proxy().delete(&logs(), &key("a"), Condition::default()).await.unwrap();
    passes(&one, &two, "after").await;
    assert_eq!(record(&two), None, "no other region hears of it");
    assert!(left_out(&one) > 0);
    // Another bucket of that name has nothing to do with it.
    two.proxy().create_bucket(&logs(), None).await.unwrap();
    put_log(&two, "c", &content(5, 70_000)).await;
    passes(&two, &one, "later").await;
    assert_eq!(log_keys(&one).await, ["b"]);
    assert_eq!(log_keys(&two).await, ["c"]);
    let looked = async |region: &Region, name: &str| {
        region.proxy().open(&logs(), &key(name)).await.map(|_opened| ())
    };
    assert_eq!(looked(&two, "b").await, Err(ObjectError::NoSuchKey), "it is not asked for");
    assert_eq!(looked(&one, "c").await, Err(ObjectError::NoSuchKey));
    let opened = one.proxy().open(&logs(), &key("b")).await.unwrap();
    assert!(one.proxy().replication(&logs(), &opened).await.unwrap().is_none());
    // Restarts change nothing of that.
    for region in [&mut one, &mut two] {
        region.stop();
        region.start().await;
    }
    passes(&two, &one, "restarted").await;
    passes(&one, &two, "restarted too").await;
    assert_eq!((log_keys(&one).await, log_keys(&two).await), (vec!["b".into()], vec!["c".into()]));

    // The other one's stays what it is, as long as it is there.
    larder_link::submit_order(one.dir.path(), SharingSetting { bucket: logs(), is_local: false })
        .unwrap();
    let why = || {
        let status = larder_link::RegionStatus::read(one.dir.path()).unwrap();
        status.and_then(|status| status.unshared.get("logs").cloned())
    };
    let is_refused = async || why().is_some_and(|why| why.contains("region two has a bucket"));
    until("it is not refused", is_refused).await;
    assert_eq!(record(&one).unwrap().sharing, Sharing::Local);
    two.proxy().delete(&logs(), &key("c"), Condition::default()).await.unwrap();
    two.proxy().delete_bucket(&logs()).await.unwrap();
    assert_eq!(log_keys(&one).await, ["b"], "it is not deleted with the other's");
    share(&one).await;
    until("the reason stays", async || why().is_none()).await;
    until("it is not shared", async || log_keys(&two).await == ["b"]).await;
    put_log(&two, "d", &content(6, 10)).await;
    until("it takes no changes", async || log_keys(&one).await.len() == 2).await;
    one.proxy().delete(&logs(), &key("b"), Condition::default()).await.unwrap();
    until("it tells no deletions", async || log_keys(&two).await == ["d"]).await;
    converged(&[&one, &two]).await;
    has_no_tombstones(&one).await;
    has_no_tombstones(&two).await;
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_becomes_local_stays_in_the_others_and_is_shared_as_if_it_were_new() {
    let (mut one, mut two) = two().await;
    one.proxy().create_bucket(&logs(), None).await.unwrap();
    put_log(&one, "shared", &content(3, 10)).await;
    until("it does not pass", async || log_keys(&two).await == ["shared"]).await;
    set_local(&one, true).await;
    put_log(&one, "one", &content(4, 10)).await;
    put_log(&two, "two", &content(5, 100_000)).await;
    passes(&one, &two, "x").await;
    passes(&two, &one, "y").await;
    assert_eq!(log_keys(&one).await, ["one", "shared"]);
    assert_eq!(log_keys(&two).await, ["shared", "two"]);
    // The other deletes its own, and the one here stays.
    for name in ["shared", "two"] {
        two.proxy().delete(&logs(), &key(name), Condition::default()).await.unwrap();
    }
    two.proxy().delete_bucket(&logs()).await.unwrap();
    assert_eq!(record(&two), None);
    assert_eq!(log_keys(&one).await, ["one", "shared"]);
    // A version that it had while others had it, too, is as new: they passed it before they deleted it.
    let tags = vec![("a".to_owned(), "b".to_owned())];
    one.proxy().set_tags(&logs(), &key("one"), tags.clone()).await.unwrap();
    let dir = one.dir.path().to_owned();
    one.stop();
    larder_link::submit_order(&dir, SharingSetting { bucket: logs(), is_local: false }).unwrap();
    one.start().await;
    until("it is not shared", async || log_keys(&two).await == ["one", "shared"]).await;
    until("it goes on", async || record(&one).unwrap().sharing == Sharing::All).await;
    let opened = two.proxy().open(&logs(), &key("one")).await.unwrap();
    assert_eq!(opened.metax.attributes.tags, tags);
    converged(&[&one, &two]).await;
    one.stop();
    let region = RegionId(1);
    let report = inspect(&StoreConfig { region, ..config(&one.dir) }, true).unwrap();
    assert!(report.is_sound(), "{report}");
    one.start().await;
    // While the other has one of that name, which would come in its place, it stays.
    set_local(&two, true).await;
    put_log(&one, "passed over", &content(8, 10)).await;
    passes(&one, &two, "z").await;
    for name in ["one", "shared"] {
        two.proxy().delete(&logs(), &key(name), Condition::default()).await.unwrap();
    }
    let refused = two.proxy().delete_bucket(&logs()).await;
    assert!(
        matches!(&refused, Err(ObjectError::Unavailable { reason }) if reason.contains("region one has a bucket")),
        "{refused:?}"
    );
    assert_eq!(log_keys(&two).await, [""; 0]);
    for name in ["one", "shared", "passed over"] {
        one.proxy().delete(&logs(), &key(name), Condition::default()).await.unwrap();
    }
    one.proxy().delete_bucket(&logs()).await.unwrap();
    assert!(record(&two).is_some(), "it is another one");
    two.proxy().delete_bucket(&logs()).await.unwrap();
    assert_eq!((record(&one), record(&two)), (None, None));
    passes(&one, &two, "last").await;
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn sharing_does_not_wait_for_ever_for_a_region_that_takes_nothing() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    set_local(&one, true).await;
    // More than are renewed before regions are looked at.
    let bytes = content(3, 10);
    let names: Vec<_> = (0..1_100).map(|number| format!("{number:04}")).collect();
    let putting = names.iter().map(|name| put_log(&one, name, &bytes));
    futures::future::join_all(putting).await;
    two.pause("one", true).await;
    share(&one).await;
    assert_eq!(log_keys(&two).await, [""; 0]);
    two.pause("one", false).await;
    let last = key("1099");
    let has_last = async || two.proxy().open_here(&logs(), &last).await.is_ok();
    until("the last one is not told", has_last).await;
    converged(&[&one, &two]).await;
    one.stop();
    two.stop();
}
