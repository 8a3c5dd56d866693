//! Buckets of regions, and their deletion.

use super::*;

async fn waits_for(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !is_so().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Makes a bucket in one region, and waits until the other has heard of all that it has.
async fn received(here: &Region, there: &Region, name: &str) {
    let name = BucketName::new(name).unwrap();
    here.proxy().create_bucket(&name, None).await.unwrap();
    waits_for("a bucket is not told of", async || there.proxy().bucket(&name).is_ok()).await;
}

fn counted(region: &Region) -> (u64, u64) {
    let counters = region.regions.as_ref().expect("it runs").counters();
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    (load(&counters.deleted), load(&counters.undeleted))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_bucket_is_deleted_in_all_regions_and_may_be_made_again() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    put(two.proxy(), "two", &content(3, 70_000)).await;
    converged(&[&one, &two]).await;
    assert_eq!(two.proxy().delete_bucket(&bucket()).await, Err(ObjectError::BucketNotEmpty));
    for name in ["before", "before/small", "two"] {
        two.proxy().delete(&bucket(), &key(name), Condition::default()).await.unwrap();
    }
    converged(&[&one, &two]).await;
    two.proxy().delete_bucket(&bucket()).await.unwrap();
    for region in [&one, &two] {
        assert!(region.proxy().bucket(&bucket()).is_err());
    }
    assert_eq!((counted(&one), counted(&two)), ((0, 0), (1, 0)));
    // All names are told again, in both directions.
    received(&one, &two, "next").await;
    received(&two, &one, "last").await;
    for region in [&one, &two] {
        assert!(region.proxy().bucket(&bucket()).is_err(), "it stays away");
        has_no_tombstones(region).await;
    }
    // Under the same name it is another bucket.
    received(&one, &two, bucket().as_str()).await;
    put(one.proxy(), "two", &content(4, 70_000)).await;
    put(two.proxy(), "before", &content(5, 10)).await;
    let all = converged(&[&one, &two]).await;
    let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["before", "two"]);
    one.stop();
    two.stop();
    one.start().await;
    two.start().await;
    assert_eq!(converged(&[&one, &two]).await, all);
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_stays_if_another_region_has_objects_in_it_or_is_away() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    for name in ["before", "before/small"] {
        one.proxy().delete(&bucket(), &key(name), Condition::default()).await.unwrap();
    }
    converged(&[&one, &two]).await;
    two.pause("one", true).await;
    put(one.proxy(), "new", &content(6, 70_000)).await;
    assert_eq!(two.proxy().delete_bucket(&bucket()).await, Err(ObjectError::BucketNotEmpty));
    two.pause("one", false).await;
    assert_eq!(converged(&[&one, &two]).await.len(), 1, "it takes changes as before");
    one.proxy().delete(&bucket(), &key("new"), Condition::default()).await.unwrap();
    converged(&[&one, &two]).await;
    one.stop();
    let refused = two.proxy().delete_bucket(&bucket()).await;
    let Err(ObjectError::Unavailable { reason }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("region one does not do it now: "), "{reason}");
    put(two.proxy(), "later", &content(7, 10)).await;
    one.start().await;
    assert_eq!(converged(&[&one, &two]).await.len(), 1);
    assert_eq!(counted(&two), (0, 2));
    one.stop();
    two.stop();
}

/// Both clients may be refused, and then try again.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_two_regions_delete_at_once_is_gone_or_stays_in_both() {
    let (mut one, mut two) = two().await;
    for round in 0..8 {
        let name = BucketName::new(&format!("round-{round}")).unwrap();
        received(&one, &two, name.as_str()).await;
        let deleted =
            tokio::join!(one.proxy().delete_bucket(&name), two.proxy().delete_bucket(&name));
        let is_deleted = deleted.0.is_ok() || deleted.1.is_ok();
        for refused in [&deleted.0, &deleted.1].into_iter().filter_map(|it| it.as_ref().err()) {
            let is_clear =
                matches!(refused, ObjectError::Unavailable { .. } | ObjectError::NoSuchBucket);
            assert!(is_clear, "{refused}");
        }
        received(&one, &two, &format!("round-{round}-one")).await;
        received(&two, &one, &format!("round-{round}-two")).await;
        let has = |region: &Region| region.proxy().bucket(&name).is_ok();
        assert!(!is_deleted || !has(&one) && !has(&two), "{deleted:?}");
        waits_for("a bucket is in one region alone", async || has(&one) == has(&two)).await;
        if has(&one) {
            one.proxy().delete_bucket(&name).await.unwrap();
            assert!(!has(&one) && !has(&two), "one client alone deletes it");
        }
    }
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_stay_with_their_bucket_and_end_with_it() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    for name in ["before", "before/small"] {
        one.proxy().delete(&bucket(), &key(name), Condition::default()).await.unwrap();
    }
    converged(&[&one, &two]).await;
    let upload = async |region: &Region| {
        let options = UploadOptions::default();
        region.proxy().create_upload(&bucket(), &key("parts"), options).await.unwrap()
    };
    let (of_one, of_two) = (upload(&one).await, upload(&two).await);
    let is_open = async |region: &Region, id| {
        region.proxy().upload(&bucket(), &key("parts"), id).await.is_ok()
    };
    one.stop();
    assert!(two.proxy().delete_bucket(&bucket()).await.is_err());
    assert!(is_open(&two, of_two).await, "the bucket stays, and so does its upload");
    one.start().await;
    waits_for("the first is not reached", async || {
        two.proxy().delete_bucket(&bucket()).await.is_ok()
    })
    .await;
    assert!(!is_open(&one, of_one).await && !is_open(&two, of_two).await);
    for region in [&one, &two] {
        waits_for("uploads of a deleted bucket stay", async || rows(region, b'U') == 0).await;
    }
    one.stop();
    two.stop();
}
