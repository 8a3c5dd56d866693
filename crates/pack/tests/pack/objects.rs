//! Objects: put, read, conditions, lists, links, tags, damage.

use std::sync::Arc;

use larder_objects::{ListItem, ListRequest, ObjectError, Objects, PutOptions};
use larder_types::{Attributes, Condition, EtagList};
use object_store::path::Path as Name;
use object_store::{ObjectStoreExt, PutPayload};

use crate::support::{
    MIB, Sent, bucket, content, count, delete, get, get_range, key, list, made, only_if_new, put,
};

#[tokio::test]
async fn an_object_is_read_from_the_spool_and_then_with_one_request() {
    let (_dir, backend, store) = made().await;
    let bytes = content(1, 300_000);
    put(&store, "a", content(2, 5000)).await.unwrap();
    put(&store, "k", bytes.clone()).await.unwrap();
    let reads = &store.counters().requests.get;
    let before = count(reads);
    assert_eq!(get(&store, "k").await.unwrap(), bytes);
    assert_eq!(count(reads), before, "the spool has it");

    assert!(store.flush().await);
    assert_eq!(store.waiting().blobs, 0);
    assert_eq!(backend.names("blobs").await.len(), 1);
    let before = count(reads);
    assert_eq!(get(&store, "k").await.unwrap(), bytes);
    assert_eq!(count(reads), before + 1);
    for range in [0..1, 65_535..65_537, 100_000..299_999, 299_999..300_000] {
        let wanted = bytes.slice(range.start as usize..range.end as usize);
        assert_eq!(get_range(&store, "k", Some(range.clone())).await.unwrap(), wanted, "{range:?}");
    }
    assert_eq!(count(reads), before + 5);
}

#[tokio::test]
async fn empty_objects_and_bodies_of_unknown_length_are_kept() {
    let (_dir, _backend, store) = made().await;
    put(&store, "empty", content(0, 0)).await.unwrap();
    let bytes = content(3, 250_000);
    let body = Sent::unannounced(bytes.clone());
    store.put(&bucket("first"), &key("k"), PutOptions::default(), body).await.unwrap();
    let large = content(4, 3 * MIB + 17);
    let body = Sent::unannounced(large.clone());
    store.put(&bucket("first"), &key("large"), PutOptions::default(), body).await.unwrap();
    assert!(store.flush().await);
    assert_eq!(get(&store, "empty").await.unwrap().len(), 0);
    assert_eq!(get(&store, "k").await.unwrap(), bytes);
    assert_eq!(get(&store, "large").await.unwrap(), large);
}

#[tokio::test]
async fn of_racing_puts_of_a_new_key_one_is_taken() {
    let (_dir, _backend, store) = made().await;
    let store = Arc::new(store);
    let tries = (0..32).map(|seed| {
        let store = store.clone();
        tokio::spawn(async move {
            let body = Sent::whole(content(seed, 1000));
            store.put(&bucket("first"), &key("k"), only_if_new(), body).await
        })
    });
    let mut taken = 0;
    for outcome in futures::future::join_all(tries).await {
        match outcome.unwrap() {
            Ok(_) => taken += 1,
            Err(refused) => assert_eq!(refused, ObjectError::PreconditionFailed),
        }
    }
    assert_eq!(taken, 1);
    let wrong = EtagList::Of(vec!["00".into()]);
    let condition = Condition { if_match: Some(wrong), ..Condition::default() };
    let refused = store.delete(&bucket("first"), &key("k"), condition).await;
    assert_eq!(refused, Err(ObjectError::PreconditionFailed));
}

#[tokio::test]
async fn a_body_that_breaks_off_changes_nothing() {
    let (_dir, backend, store) = made().await;
    put(&store, "k", content(1, 100)).await.unwrap();
    for len in [5000, 10 * MIB] {
        let body = Sent::broken(content(2, len));
        let refused = store.put(&bucket("first"), &key("k"), PutOptions::default(), body).await;
        assert!(matches!(refused, Err(ObjectError::Body(_))), "{refused:?}");
    }
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 100));
    assert!(backend.names("objects").await.is_empty());
}

#[tokio::test]
async fn a_large_object_is_an_object_of_its_own() {
    let (_dir, backend, store) = made().await;
    let bytes = content(5, 20 * MIB + 3);
    put(&store, "large", bytes.clone()).await.unwrap();
    let own = backend.names("objects").await;
    assert_eq!(own.len(), 1);
    assert_eq!(own[0].1, bytes.len() as u64);
    assert_eq!(get(&store, "large").await.unwrap(), bytes);
    let range = 9 * MIB as u64 - 1..9 * MIB as u64 + 1;
    let wanted = bytes.slice(range.start as usize..range.end as usize);
    assert_eq!(get_range(&store, "large", Some(range)).await.unwrap(), wanted);

    let body = Sent::whole(content(6, 10 * MIB));
    let refused = store.put(&bucket("first"), &key("large"), only_if_new(), body).await;
    assert_eq!(refused.unwrap_err(), ObjectError::PreconditionFailed);
    assert_eq!(backend.names("objects").await, own, "nothing of it stays");
}

#[tokio::test]
async fn a_link_moves_no_bytes_and_outlives_its_source() {
    let (_dir, _backend, store) = made().await;
    let bytes = content(7, 70_000);
    put(&store, "a", bytes.clone()).await.unwrap();
    assert!(store.flush().await);
    let packed = count(&store.counters().packed_bytes);
    let source = store.open(&bucket("first"), &key("a")).await.unwrap();
    let attributes = Attributes { content_type: Some("x/y".into()), ..Attributes::default() };
    let options = PutOptions { attributes, ..PutOptions::default() };
    let done = store.link(&source, &bucket("first"), &key("b"), options).await.unwrap().unwrap();
    assert_eq!(done.etag, source.metax.etag);
    delete(&store, "a").await;
    assert_eq!(get(&store, "b").await.unwrap(), bytes);
    assert_eq!(count(&store.counters().packed_bytes), packed);
    let refused = store.link(&source, &bucket("first"), &key("c"), PutOptions::default()).await;
    assert_eq!(refused.unwrap_err(), ObjectError::Changed, "the source is gone");
}

#[tokio::test]
async fn tags_are_replaced_and_the_bytes_stay() {
    let (_dir, _backend, store) = made().await;
    put(&store, "k", content(1, 100)).await.unwrap();
    let tags = vec![("colour".to_owned(), "green".to_owned())];
    store.set_tags(&bucket("first"), &key("k"), tags.clone()).await.unwrap();
    let opened = store.open(&bucket("first"), &key("k")).await.unwrap();
    assert_eq!(opened.metax.attributes.tags, tags);
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 100));
    let missing = store.set_tags(&bucket("first"), &key("none"), tags).await;
    assert_eq!(missing, Err(ObjectError::NoSuchKey));
}

#[tokio::test]
async fn lists_group_by_the_delimiter_and_go_on_behind_the_marker() {
    let (_dir, _backend, store) = made().await;
    for name in ["a/1", "a/2", "b", "c/1", "d"] {
        put(&store, name, content(1, 10)).await.unwrap();
    }
    delete(&store, "d").await;
    let request = |after: Option<&str>| ListRequest {
        delimiter: Some("/".into()),
        after: after.map(str::to_owned),
        max: 2,
        ..ListRequest::default()
    };
    let names = |items: Vec<ListItem<_>>| -> Vec<String> {
        let name = |item| match item {
            ListItem::Entry(larder_objects::ListedObject { key, .. }) => key.as_str().to_owned(),
            ListItem::Group(group) => group,
        };
        items.into_iter().map(name).collect()
    };
    let first = store.list(&bucket("first"), request(None)).await.unwrap();
    assert!(first.truncated);
    assert_eq!(names(first.items), ["a/", "b"]);
    let second = store.list(&bucket("first"), request(Some("b"))).await.unwrap();
    assert!(!second.truncated);
    assert_eq!(names(second.items), ["c/"]);
}

#[tokio::test]
async fn buckets_are_made_once_and_removed_when_empty() {
    let (_dir, _backend, store) = made().await;
    let again = store.create_bucket(&bucket("first"), None).await;
    assert_eq!(again.unwrap_err(), ObjectError::BucketExists);
    put(&store, "k", content(1, 10)).await.unwrap();
    let old = store.bucket(&bucket("first")).unwrap().id;
    assert_eq!(store.delete_bucket(&bucket("first")).await, Err(ObjectError::BucketNotEmpty));
    delete(&store, "k").await;
    store.delete_bucket(&bucket("first")).await.unwrap();
    assert_eq!(store.delete_bucket(&bucket("first")).await, Err(ObjectError::NoSuchBucket));
    let refused = put(&store, "k", content(1, 10)).await;
    assert_eq!(refused.unwrap_err(), ObjectError::NoSuchBucket);
    let new = store.create_bucket(&bucket("first"), None).await.unwrap();
    assert_ne!(new.id, old);
    assert!(list(&store, &bucket("first")).await.is_empty());
}

#[tokio::test]
async fn bytes_that_do_not_verify_are_never_given_out() {
    let (_dir, backend, store) = made().await;
    let bytes = content(8, 200_000);
    put(&store, "k", bytes.clone()).await.unwrap();
    assert!(store.flush().await);
    let (name, _) = backend.names("blobs").await.remove(0);
    let mut blob = backend.bytes(&name).await.to_vec();
    blob[150_000] ^= 1;
    backend.inner.put(&Name::from(name), PutPayload::from(blob)).await.unwrap();
    assert_eq!(get(&store, "k").await, Err(ObjectError::Damaged));
    assert_eq!(count(&store.counters().lost_reads), 1);
    let sound = get_range(&store, "k", Some(0..65_536)).await.unwrap();
    assert_eq!(sound, bytes.slice(..65_536), "other pieces are as they were");
}
