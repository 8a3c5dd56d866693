//! Lists of the keys of all regions.

use larder_objects::ListPage;

use super::*;

async fn of_all(region: &Region, request: ListRequest) -> Result<Vec<String>, ObjectError> {
    let page = region.proxy().list_all_regions(&bucket(), request).await?;
    let ListPage { items, truncated: false } = page else { panic!("it is short") };
    let name = |item| match item {
        ListItem::Entry(larder_objects::ListedObject { key, .. }) => key.as_str().to_owned(),
        ListItem::Group(group) => format!("[{group}]"),
    };
    Ok(items.into_iter().map(name).collect())
}

fn below(prefix: &str) -> ListRequest {
    ListRequest { prefix: prefix.to_owned(), max: 1000, ..ListRequest::default() }
}

fn counted(region: &Region) -> (u64, u64) {
    let counters = region.regions.as_ref().expect("it runs").counters();
    (counters.lists.load(Ordering::Relaxed), counters.lists_failed.load(Ordering::Relaxed))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_all_regions_has_each_change_at_once() {
    let (one, two) = two().await;
    converged(&[&one, &two]).await;
    let mut lacked = 0;
    for number in 0..50 {
        let name = format!("new/{number:02}");
        put(two.proxy(), &name, &content(number, 100)).await;
        let here = keys(one.proxy(), below("new/")).await;
        lacked += usize::from(!here.contains(&name));
        let all = of_all(&one, below("new/")).await.unwrap();
        assert_eq!(all, [&name[..]], "{number}");
        if number % 2 == 0 {
            // Deleted there, and it may be here still.
            two.proxy().delete(&bucket(), &key(&name), Condition::default()).await.unwrap();
            assert!(of_all(&one, below("new/")).await.unwrap().is_empty(), "{number}");
            let grouped = ListRequest { delimiter: Some("/".into()), ..below("new") };
            assert!(of_all(&one, grouped).await.unwrap().is_empty(), "{number}");
        } else {
            let grouped = ListRequest { delimiter: Some("/".into()), ..below("new") };
            assert_eq!(of_all(&one, grouped).await.unwrap(), ["[new/]"], "{number}");
            // Deleted here once it came, and it may be there still.
            converged(&[&one, &two]).await;
            one.proxy().delete(&bucket(), &key(&name), Condition::default()).await.unwrap();
            assert!(of_all(&two, below("new/")).await.unwrap().is_empty(), "{number}");
        }
    }
    assert!(lacked > 0, "no change was listed before it was here");
    assert_eq!(counted(&two), (25, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_all_regions_needs_each_of_them() {
    let (one, mut two) = two().await;
    converged(&[&one, &two]).await;
    let all = || of_all(&one, below(""));
    let here = keys(one.proxy(), below("")).await;
    assert_eq!(all().await.unwrap(), here, "they have the same");
    let why = async || match all().await {
        Err(ObjectError::Unavailable { reason }) => reason,
        other => panic!("{other:?}"),
    };
    one.pause("two", true).await;
    assert!(why().await.contains("Region two: an operator paused it here"));
    one.pause("two", false).await;
    assert_eq!(all().await.unwrap(), here);
    two.stop();
    assert!(why().await.contains("Region two: "), "{}", why().await);
    assert_eq!(counted(&one), (2, 2));
    assert_eq!(keys(one.proxy(), below("")).await, here, "this region's are there");
    two.start().await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while all().await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "it is not asked again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let nothing = ListRequest { max: 0, ..ListRequest::default() };
    assert!(of_all(&one, nothing).await.unwrap().is_empty());
    assert!(of_all(&one, below(&"k".repeat(2000))).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_alone_lists_what_it_has() {
    let mut alone = Region::alone();
    alone.start().await;
    assert_eq!(of_all(&alone, below("")).await, Err(ObjectError::NoSuchBucket));
    alone.proxy().create_bucket(&bucket(), None).await.unwrap();
    put(alone.proxy(), "a", &content(1, 10)).await;
    assert_eq!(of_all(&alone, below("")).await.unwrap(), ["a"]);
}
