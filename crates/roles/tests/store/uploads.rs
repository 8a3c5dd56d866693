//! Uploads in parts that nobody ends.

use larder_objects::{ListItem, ListRequest, ObjectError, Objects, UploadOptions};
use larder_roles::{Proxy, Store};
use larder_types::limits::PART_BYTES_MIN;
use larder_types::{BucketName, ObjectKey, UploadId, UploadRow};

use super::{Body, assert_sound, bucket, config, content, key};

async fn begun(proxy: &Proxy, bucket: &BucketName, name: &ObjectKey) -> UploadId {
    let upload = proxy.create_upload(bucket, name, UploadOptions::default()).await.unwrap();
    let part = Body::of(&content(1, PART_BYTES_MIN as usize));
    proxy.put_part(bucket, name, upload, 1, part).await.unwrap();
    upload
}

async fn open(proxy: &Proxy, bucket: &BucketName) -> Vec<UploadId> {
    let all = ListRequest { max: 10, ..ListRequest::default() };
    let listed = proxy.list_uploads(bucket, all, None).await.unwrap().items.into_iter();
    let upload = |item: ListItem<UploadRow>| match item {
        ListItem::Entry(row) => row.upload,
        ListItem::Group(group) => panic!("{group:?} was not asked for"),
    };
    listed.map(upload).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_were_begun_too_long_ago_are_aborted_in_all_buckets_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let (proxy, other) = (store.proxy(), BucketName::new("other").unwrap());
    for name in [&bucket(), &other] {
        proxy.create_bucket(name, None).await.unwrap();
    }
    let (one, two, name) = (key("one"), key("two"), key("three"));
    let first = begun(proxy, &bucket(), &one).await;
    let second = begun(proxy, &other, &two).await;
    let began_ms = async |bucket: &BucketName, key: &ObjectKey, upload: UploadId| {
        proxy.upload(bucket, key, upload).await.unwrap().clock.ms()
    };
    let second_ms = began_ms(&other, &two, second).await;
    // Stamps tell milliseconds: the third is later by one at least.
    let third = loop {
        let third = begun(proxy, &bucket(), &name).await;
        if began_ms(&bucket(), &name, third).await > second_ms {
            break third;
        }
        proxy.abort_upload(&bucket(), &name, third).await.unwrap();
    };
    let first_ms = began_ms(&bucket(), &one, first).await;
    assert_eq!(proxy.abort_uploads_before(first_ms).await, Ok(0));
    assert_eq!(proxy.abort_uploads_before(second_ms + 1).await, Ok(2));
    assert_eq!(proxy.expired_uploads(), 2);
    assert_eq!(open(proxy, &bucket()).await, [third]);
    assert_eq!(open(proxy, &other).await, []);
    let part = Body::of(&content(2, PART_BYTES_MIN as usize));
    let late = proxy.put_part(&bucket(), &one, first, 2, part).await;
    assert_eq!(late.unwrap_err(), ObjectError::NoSuchUpload);
    store.close();
    assert_sound(&dir);
}
