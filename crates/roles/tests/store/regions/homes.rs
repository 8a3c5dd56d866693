//! The home of a bucket: conditions hold in all regions, wherever clients are, and while the home moves.

use larder_link::{HomeOrder, Order};
use larder_types::{EtagList, HomeScope, HomeState};

use super::*;

async fn ordered(region: &Region, order: Order) {
    let bucket = bucket();
    larder_link::submit_order(region.dir.path(), HomeOrder { bucket, order }).unwrap();
}

const HERE: Order = Order::Here(HomeScope::Conditions);

fn state(region: &Region) -> Option<HomeState> {
    let record = region.proxy().bucket(&bucket()).unwrap();
    record.home.map(|home| home.state)
}

async fn becomes(region: &Region, wanted: HomeState) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while state(region) != Some(wanted) {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", state(region));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Makes an object only if there is none.
async fn make(region: &Region, name: &str, bytes: &Bytes) -> Result<(), ObjectError> {
    use md5::Digest;
    let if_none_match = Some(EtagList::Any);
    let condition = Condition { if_none_match, ..Condition::default() };
    let options = PutOptions { condition, ..PutOptions::default() };
    let body = Digested { body: Body::of(bytes), md5: md5::Md5::digest(bytes).into() };
    region.proxy().put(&bucket(), &key(name), options, body).await.map(|_done| ())
}

fn counted(region: &Region) -> (u64, u64) {
    let homes = region.regions.as_ref().expect("it runs").homes();
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    (load(&homes.asked), load(&homes.made))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_holds_in_all_regions_once_the_bucket_has_a_home() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    ordered(&two, HERE).await;
    becomes(&two, HomeState::Here).await;
    assert_eq!(state(&one), Some(HomeState::Elsewhere), "no other decides any more");
    // At once: what the other region has taken is not here yet.
    make(&two, "lock", &content(1, 10)).await.unwrap();
    let refused = make(&one, "lock", &content(2, 10)).await;
    assert_eq!(refused, Err(ObjectError::PreconditionFailed));
    make(&one, "large", &content(3, 3_000_000)).await.unwrap();
    assert_eq!(make(&two, "large", &content(4, 10)).await, Err(ObjectError::PreconditionFailed));
    assert_eq!((counted(&one), counted(&two).1), ((2, 0), 1));
    // Others are made where the client is.
    put(one.proxy(), "plain", &content(5, 10)).await;
    assert_eq!(counted(&one), (2, 0));
    let condition = Condition { if_match: Some(EtagList::Any), ..Condition::default() };
    one.proxy().delete(&bucket(), &key("lock"), condition.clone()).await.unwrap();
    let refused = one.proxy().delete(&bucket(), &key("lock"), condition).await;
    assert_eq!(refused, Err(ObjectError::NoSuchKey));
    let (proxy, parts) = (one.proxy(), key("parts"));
    let upload = proxy.create_upload(&bucket(), &parts, UploadOptions::default()).await.unwrap();
    let if_none_match = Some(EtagList::Any);
    let condition = Condition { if_none_match, ..Condition::default() };
    let options = larder_objects::CompleteOptions { condition, ..Default::default() };
    let completed = proxy.complete_upload(&bucket(), &parts, upload, options).await;
    assert!(matches!(completed, Err(ObjectError::Unsupported { .. })), "{completed:?}");
    let all = converged(&[&one, &two]).await;
    assert!(all.iter().any(|(name, _)| name == "large") && all.len() == 4, "{all:?}");
    assert_eq!(two.proxy().delete_bucket(&bucket()).await, Err(ObjectError::HasHome));
    // Without a home each region decides for itself again.
    ordered(&two, Order::Nowhere).await;
    becomes(&one, HomeState::Nowhere).await;
    make(&one, "lock", &content(6, 10)).await.unwrap();
    assert_eq!(counted(&one), (4, 0), "nobody was asked");
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_home_moves_with_all_that_it_decided_and_survives_restarts() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    ordered(&one, HERE).await;
    becomes(&one, HomeState::Here).await;
    for round in 0..6 {
        let (from, to) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let keys: Vec<_> = (0..20).map(|number| format!("{round}-{number}")).collect();
        for name in &keys {
            make(from, name, &content(1, 100)).await.unwrap();
        }
        ordered(to, HERE).await;
        becomes(to, HomeState::Here).await;
        for name in &keys {
            let refused = make(to, name, &content(2, 100)).await;
            assert_eq!(refused, Err(ObjectError::PreconditionFailed), "{name}");
        }
    }
    ordered(&two, HERE).await;
    becomes(&two, HomeState::Here).await;
    for region in [&mut one, &mut two] {
        region.stop();
        region.start().await;
    }
    assert_eq!((state(&one), state(&two)), (Some(HomeState::Given), Some(HomeState::Here)));
    make(&two, "after", &content(3, 10)).await.unwrap();
    two.stop();
    let refused = make(&one, "while it is away", &content(4, 10)).await;
    let Err(ObjectError::Unavailable { reason }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("region two is the home of this bucket"), "{reason}");
    ordered(&one, HERE).await;
    put(one.proxy(), "plain", &content(5, 10)).await;
    two.start().await;
    becomes(&one, HomeState::Here).await;
    assert_eq!(make(&one, "after", &content(4, 10)).await, Err(ObjectError::PreconditionFailed));
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn all_writes_of_a_bucket_go_to_its_home_if_that_is_asked() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    ordered(&two, Order::Here(HomeScope::Writes)).await;
    becomes(&two, HomeState::Here).await;
    put(one.proxy(), "plain", &content(1, 70_000)).await;
    let tags = vec![("a".to_owned(), "b".to_owned())];
    one.proxy().set_tags(&bucket(), &key("plain"), tags).await.unwrap();
    one.proxy().delete(&bucket(), &key("before"), Condition::default()).await.unwrap();
    assert_eq!((counted(&one), counted(&two)), ((3, 0), (0, 3)));
    let too_large = content(2, larder_link::limits::CHANGE_BYTES_MAX + 1);
    let refused = try_put(one.proxy(), "too large", &too_large).await;
    assert!(matches!(refused, Err(ObjectError::TooLarge { .. })), "{refused:?}");
    let (proxy, parts) = (one.proxy(), key("parts"));
    let options = UploadOptions::default();
    let upload = proxy.create_upload(&bucket(), &parts, options).await.unwrap();
    let body = Body::of(&content(3, 70_000));
    let part = proxy.put_part(&bucket(), &parts, upload, 1, body).await.unwrap();
    let lies_at = async |region: &Region| {
        region
            .proxy()
            .list_parts(&bucket(), &parts, upload, 0, 9)
            .await
            .map(|page| page.parts.len())
    };
    assert_eq!((lies_at(&one).await, lies_at(&two).await), (Ok(1), Ok(1)));
    let too_large = Body::of(&too_large);
    let refused = proxy.put_part(&bucket(), &parts, upload, 2, too_large).await;
    assert!(matches!(refused, Err(ObjectError::TooLarge { .. })), "{refused:?}");
    let named = NamedPart { number: 1, etag: part.etag.text(), checksum: None };
    let if_none_match = Some(EtagList::Any);
    let condition = Condition { if_none_match, ..Condition::default() };
    let options = CompleteOptions { parts: vec![named], condition, ..Default::default() };
    proxy.complete_upload(&bucket(), &parts, upload, options).await.unwrap();
    assert_eq!(counted(&two).1, counted(&one).0, "each step was made there");
    let gone = proxy.abort_upload(&bucket(), &parts, upload).await;
    assert_eq!(gone, Err(ObjectError::NoSuchUpload));
    ordered(&two, HERE).await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while two.proxy().bucket(&bucket()).unwrap().home.unwrap().scope != HomeScope::Conditions {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    converged(&[&one, &two]).await;
    one.stop();
    two.stop();
}

/// Homes of a bucket begin with the same term again if it is deleted and made anew: what was passed before does not count.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_home_of_a_bucket_that_was_made_again_lacks_nothing() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    for name in ["before", "before/small"] {
        one.proxy().delete(&bucket(), &key(name), Condition::default()).await.unwrap();
    }
    converged(&[&one, &two]).await;
    ordered(&two, HERE).await;
    becomes(&two, HomeState::Here).await;
    ordered(&two, Order::Nowhere).await;
    becomes(&one, HomeState::Nowhere).await;
    two.proxy().delete_bucket(&bucket()).await.unwrap();
    one.proxy().create_bucket(&bucket(), None).await.unwrap();
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while two.proxy().bucket(&bucket()).is_err() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    two.pause("one", true).await;
    make(&one, "lock", &content(1, 10)).await.unwrap();
    ordered(&two, HERE).await;
    let status = async || {
        larder_link::RegionStatus::read(two.dir.path())
            .unwrap()
            .and_then(|it| it.homes.first().cloned())
    };
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !status()
        .await
        .is_some_and(|home| home.why.is_some_and(|why| why.contains("on their way")))
    {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", status().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(state(&two), None, "nobody waits for it meanwhile");
    make(&one, "another", &content(1, 10)).await.unwrap();
    two.pause("one", false).await;
    becomes(&two, HomeState::Here).await;
    for name in ["lock", "another"] {
        let refused = make(&two, name, &content(2, 10)).await;
        assert_eq!(refused, Err(ObjectError::PreconditionFailed), "{name}");
    }
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_cannot_be_carried_out_is_dropped_with_its_reason() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    ordered(&two, HERE).await;
    becomes(&one, HomeState::Elsewhere).await;
    let none = BucketName::new("there-is-none").unwrap();
    larder_link::submit_order(one.dir.path(), HomeOrder { bucket: none, order: HERE }).unwrap();
    ordered(&one, Order::Nowhere).await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !larder_link::asked::<HomeOrder>(one.dir.path()).unwrap().is_empty() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let reasons = || {
        let status = larder_link::RegionStatus::read(one.dir.path()).unwrap().unwrap();
        let homes = status.homes.into_iter().filter_map(|home| home.why);
        homes.collect::<Vec<_>>().join(", ")
    };
    while !reasons().contains("give it up there") || !reasons().contains("no such bucket") {
        assert!(tokio::time::Instant::now() < deadline, "{}", reasons());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    one.stop();
    two.stop();
}

/// Regions look at their orders at different moments. So each finds that the other has the home, and takes it again.
#[tokio::test(flavor = "multi_thread")]
async fn orders_of_two_regions_at_once_are_carried_out() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    for _ in 0..3 {
        for region in [&one, &two] {
            ordered(region, HERE).await;
        }
        let orders = |region: &Region| larder_link::asked::<HomeOrder>(region.dir.path()).unwrap();
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while [&one, &two].iter().any(|region| !orders(region).is_empty()) {
            assert!(tokio::time::Instant::now() < deadline, "{:?}", [state(&one), state(&two)]);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let states = [state(&one), state(&two)];
        let here = states.iter().filter(|state| **state == Some(HomeState::Here));
        assert_eq!(here.count(), 1, "{states:?}");
    }
    one.stop();
    two.stop();
}

/// A run that waits for what is missing ends with its order.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_taken_back_moves_nothing_later() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    two.pause("one", true).await;
    put(one.proxy(), "missing", &content(1, 10)).await;
    ordered(&two, HERE).await;
    let why = || {
        let status = larder_link::RegionStatus::read(two.dir.path()).unwrap().unwrap();
        status.homes.into_iter().find_map(|home| home.why)
    };
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !why().is_some_and(|why| why.contains("on their way")) {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", why());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ordered(&two, Order::Nowhere).await;
    while !larder_link::asked::<HomeOrder>(two.dir.path()).unwrap().is_empty() || why().is_some() {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", why());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    two.pause("one", false).await;
    converged(&[&one, &two]).await;
    // As long as a run would take that goes on.
    let until = tokio::time::Instant::now() + Duration::from_secs(4);
    while tokio::time::Instant::now() < until {
        assert_eq!((state(&one), state(&two)), (None, None));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    one.stop();
    two.stop();
}
