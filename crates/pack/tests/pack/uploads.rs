//! Multipart uploads.

use bytes::Bytes;
use larder_objects::{
    CompleteOptions, ListRequest, NamedPart, ObjectError, Objects, PutDone, UploadOptions,
};
use larder_pack::Packer;
use larder_types::UploadId;

use crate::support::{MIB, Sent, bucket, content, delete, get, get_range, key, made, open, put};

async fn begin(store: &Packer) -> UploadId {
    store.create_upload(&bucket("first"), &key("whole"), UploadOptions::default()).await.unwrap()
}

async fn part(
    store: &Packer,
    upload: UploadId,
    number: u16,
    bytes: Bytes,
) -> Result<PutDone, ObjectError> {
    let body = Sent::whole(bytes);
    store.put_part(&bucket("first"), &key("whole"), upload, number, body).await
}

async fn complete(
    store: &Packer,
    upload: UploadId,
    parts: &[(u16, &PutDone)],
) -> Result<PutDone, ObjectError> {
    let named = |(number, done): &(u16, &PutDone)| NamedPart {
        number: *number,
        etag: done.etag.text(),
        checksum: None,
    };
    let parts = parts.iter().map(named).collect();
    let options = CompleteOptions { parts, ..CompleteOptions::default() };
    store.complete_upload(&bucket("first"), &key("whole"), upload, options).await
}

#[tokio::test]
async fn parts_become_an_object_that_is_read_across_them() {
    let (dir, backend, store) = made().await;
    let upload = begin(&store).await;
    let (large, unused, small) = (content(1, 6 * MIB), content(2, 500), content(3, 90_000));
    let one = part(&store, upload, 1, large.clone()).await.unwrap();
    part(&store, upload, 5, unused).await.unwrap();
    let last = part(&store, upload, 9, small.clone()).await.unwrap();
    let done = complete(&store, upload, &[(1, &one), (9, &last)]).await.unwrap();
    assert!(done.etag.text().ends_with("-2"));
    let again = complete(&store, upload, &[(1, &one), (9, &last)]).await.unwrap();
    assert_eq!(again, done, "repeated, it is answered the same");

    let whole: Bytes = [large, small].concat().into();
    assert_eq!(get(&store, "whole").await.unwrap(), whole);
    assert!(store.flush().await);
    drop(store);
    let store = open(dir.path(), &backend).await;
    assert_eq!(get(&store, "whole").await.unwrap(), whole);
    let range = 6 * MIB as u64 - 10..6 * MIB as u64 + 10;
    let wanted = whole.slice(range.start as usize..range.end as usize);
    assert_eq!(get_range(&store, "whole", Some(range)).await.unwrap(), wanted);
    let opened = store.open(&bucket("first"), &key("whole")).await.unwrap();
    assert_eq!(opened.parts().len(), 2);
    assert_eq!(store.part(&opened, 9).await.unwrap().metax.size, 90_000);
    assert!(store.part(&opened, 5).await.is_err(), "a part that was not named");

    put(&store, "whole", content(4, 10)).await.unwrap();
    assert_eq!(get(&store, "whole").await.unwrap(), content(4, 10));
    delete(&store, "whole").await;
    assert_eq!(get(&store, "whole").await, Err(ObjectError::NoSuchKey));
}

#[tokio::test]
async fn an_aborted_upload_and_its_parts_are_gone() {
    let (_dir, _backend, store) = made().await;
    let upload = begin(&store).await;
    part(&store, upload, 1, content(1, 100)).await.unwrap();
    let listed = store.list_parts(&bucket("first"), &key("whole"), upload, 0, 10).await.unwrap();
    assert_eq!(listed.parts.len(), 1);
    store.abort_upload(&bucket("first"), &key("whole"), upload).await.unwrap();
    let refused = part(&store, upload, 2, content(1, 100)).await;
    assert_eq!(refused.unwrap_err(), ObjectError::NoSuchUpload);
    let again = store.abort_upload(&bucket("first"), &key("whole"), upload).await;
    assert_eq!(again, Err(ObjectError::NoSuchUpload));
    let request = ListRequest { max: 10, ..ListRequest::default() };
    let uploads = store.list_uploads(&bucket("first"), request, None).await.unwrap();
    assert!(uploads.items.is_empty());
    let other = begin(&store).await;
    let empty = complete(&store, other, &[]).await;
    assert_eq!(empty.unwrap_err(), ObjectError::InvalidPartOrder);
}
