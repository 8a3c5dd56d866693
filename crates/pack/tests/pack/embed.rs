//! A packed store within a program: by its own few calls, and held to what programs expect of an `ObjectStore`.

use std::sync::Arc;

use bytes::Bytes;
use larder_objects::ObjectError;
use larder_pack::{EmbedError, PackedBucket, Packer};
use object_store::path::Path as Name;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload, integration};

use crate::support::{Faulty, MIB, config, content, count, try_open};

async fn opened() -> (tempfile::TempDir, Arc<Faulty>, Arc<Packer>, PackedBucket) {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let packer = Arc::new(try_open(config(dir.path()), &backend).await.unwrap());
    let bucket = PackedBucket::open(&packer, "photos").await.unwrap();
    (dir, backend, packer, bucket)
}

#[tokio::test]
async fn a_program_puts_gets_lists_deletes_and_flushes() {
    let (_dir, backend, packer, photos) = opened().await;
    for number in 0..1500 {
        photos.put(&format!("a/{number:04}"), content(number, 50)).await.unwrap();
    }
    photos.put("large", content(1, 3 * MIB)).await.unwrap();
    photos.flush().await.unwrap();
    assert_eq!(count(&packer.counters().blobs), 1);
    assert_eq!(backend.names("objects").await.len(), 1);
    assert_eq!(photos.get("a/0700").await.unwrap(), content(700, 50));
    assert_eq!(photos.get("large").await.unwrap(), content(1, 3 * MIB));
    let page = photos.list("a/", None).await.unwrap();
    let rest = photos.list("a/", page.after.as_ref()).await.unwrap();
    assert_eq!((page.objects.len(), rest.objects.len(), rest.after), (1000, 500, None));
    photos.delete("a/0700").await.unwrap();
    photos.delete("a/0700").await.unwrap();
    let gone = photos.get("a/0700").await.unwrap_err();
    assert!(matches!(gone, EmbedError::Store(ObjectError::NoSuchKey)), "{gone}");
    let again = PackedBucket::open(&packer, "photos").await.unwrap();
    assert_eq!(again.get("a/0001").await.unwrap(), content(1, 50), "it was there");
    let refused = PackedBucket::open(&packer, "No Bucket").await.unwrap_err();
    assert!(matches!(refused, EmbedError::Name { what: "bucket", .. }), "{refused}");
    let refused = photos.put("", Bytes::new()).await.unwrap_err();
    assert!(matches!(refused, EmbedError::Name { what: "key", .. }), "{refused}");
}

#[tokio::test]
async fn it_is_an_object_store_as_programs_expect_one() {
    let (_dir, _backend, _packer, bucket) = opened().await;
    integration::put_get_delete_list(&bucket).await;
    integration::get_opts(&bucket).await;
    integration::put_opts(&bucket, true).await;
    integration::put_get_attributes(&bucket).await;
    integration::list_uses_directories_correctly(&bucket).await;
    integration::list_with_delimiter(&bucket).await;
    integration::list_with_offset_exclusivity(&bucket).await;
    integration::get_nonexistent_object(&bucket, None).await.unwrap_err();
    integration::rename_and_copy(&bucket).await;
    integration::copy_if_not_exists(&bucket).await;
    integration::copy_rename_nonexistent_object(&bucket).await;
    integration::stream_get(&bucket).await;
    integration::multipart_race_condition(&bucket, true).await;
    integration::multipart_out_of_order(&bucket).await;
}

#[tokio::test]
async fn what_came_in_parts_is_copied_and_read_in_ranges() {
    let (_dir, _backend, _packer, bucket) = opened().await;
    let bucket: &dyn ObjectStore = &bucket;
    let (from, to) = (Name::from("d/from"), Name::from("d/to"));
    let (first, second) = (content(1, 5 * MIB), content(2, 1000));
    let mut upload = bucket.put_multipart(&from).await.unwrap();
    upload.put_part(PutPayload::from_bytes(first.clone())).await.unwrap();
    upload.put_part(PutPayload::from_bytes(second.clone())).await.unwrap();
    upload.complete().await.unwrap();
    bucket.copy(&from, &to).await.unwrap();
    bucket.delete(&from).await.unwrap();
    let whole = [first, second].concat();
    assert_eq!(bucket.get(&to).await.unwrap().bytes().await.unwrap(), whole);
    let range = 5 * MIB as u64 - 10..5 * MIB as u64 + 10;
    let part = bucket.get_range(&to, range.clone()).await.unwrap();
    assert_eq!(part, whole[range.start as usize..range.end as usize]);
    let refused = bucket.copy_if_not_exists(&to, &to).await.unwrap_err();
    assert!(matches!(refused, Error::AlreadyExists { .. }), "{refused}");
    assert!(matches!(bucket.get(&from).await, Err(Error::NotFound { .. })));
    let mut given_up = bucket.put_multipart(&from).await.unwrap();
    given_up.put_part(PutPayload::from_static(b"x")).await.unwrap();
    given_up.abort().await.unwrap();
    assert!(given_up.complete().await.is_err());
}

#[tokio::test]
async fn what_came_in_one_empty_part_is_copied() {
    let (_dir, _backend, _packer, bucket) = opened().await;
    let bucket: &dyn ObjectStore = &bucket;
    let (from, to) = (Name::from("empty"), Name::from("copy"));
    let mut upload = bucket.put_multipart(&from).await.unwrap();
    upload.put_part(PutPayload::new()).await.unwrap();
    upload.complete().await.unwrap();
    bucket.copy(&from, &to).await.unwrap();
    assert_eq!(bucket.get(&to).await.unwrap().bytes().await.unwrap().len(), 0);
}
