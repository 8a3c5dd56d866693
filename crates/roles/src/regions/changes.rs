//! Clients' changes that go to a bucket's home: has other regions make them, and makes those of other regions' clients.
//!
//! A change goes from one region to the home and no further. If the home has moved meanwhile, the client tries again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_link::limits::CHANGE_TIME_MAX;
use larder_link::{Change, ChangeAnswer, ChangeKind, PartNamed, UploadAnswer, UploadStep};
use larder_objects::{
    AppendAt, AppendOptions, BodyDigest, BodyError, CompleteOptions, NamedPart, ObjectError,
    PutBody, PutDone, PutOptions, UploadOptions,
};
use larder_types::home::{append_decider, decider};
use larder_types::{
    BucketName, BucketRecord, Condition, Decider, ObjectChecksum, ObjectKey, RegionId,
};
use tokio::time::{Instant, timeout, timeout_at};

use super::Shared;
use super::homes;
use crate::limits::{REGION_MISS_MS, REGION_WAIT_MS};
use crate::proxy::{HomeChange, Proxy, RegionAccess, answer_of, made_of};

/// Bytes that another region has read and verified.
struct Whole {
    bytes: Option<Bytes>,
    len: u64,
    md5: [u8; 16],
    checksum: Option<ObjectChecksum>,
}

impl PutBody for Whole {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        self.bytes.take().filter(|bytes| !bytes.is_empty()).map(Ok)
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        Ok(BodyDigest { md5: self.md5, checksum: self.checksum.take() })
    }
}

/// Has a region make a change.
pub(super) async fn make_at<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    home: RegionId,
    change: Change,
) -> Result<HomeChange, ObjectError> {
    let members = shared.region_endpoint.members().borrow().clone();
    let name = members.peer(home).map_or_else(|| home.to_string(), |peer| peer.name.to_string());
    let unavailable = |why: String| ObjectError::Unavailable {
        reason: format!(
            "region {name} is the home of this bucket and decides about such a change; {why}"
        ),
    };
    if members.live().all(|peer| peer.number != home) {
        let why = "it was removed: an operator orders a new home with `larder region home`";
        return Err(unavailable(why.to_owned()));
    }
    let bucket = change.bucket.clone();
    let asked = async { shared.link_to(home)?.change(change).await }.await;
    shared.homes.count_request(asked.is_ok());
    match asked {
        Ok(ChangeAnswer::Unavailable(why)) => Err(unavailable(why)),
        Ok(ChangeAnswer::NotHome(known)) => {
            if let Some(known) = known {
                homes::hear_home(shared, home, &bucket, known).await;
            }
            Err(unavailable("it says that the home has moved, or is moving: try again".to_owned()))
        }
        Ok(answer) => made_of(answer),
        Err(error) => Err(unavailable(format!("it does not answer: {error}"))),
    }
}

/// Makes the change of another region's client.
pub(super) async fn make<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    from: RegionId,
    change: Change,
) -> ChangeAnswer {
    let Change { bucket, key, condition, kind } = change;
    // The answer has to be on its way before nobody waits for it.
    let until = Instant::now() + CHANGE_TIME_MAX.saturating_sub(Duration::from_secs(1));
    let max_wait = Duration::from_millis(REGION_MISS_MS);
    let Ok(Ok(_place)) = timeout(max_wait, shared.made.acquire()).await else {
        return ChangeAnswer::SlowDown;
    };
    let (has_condition, is_append) =
        (!condition.is_none(), matches!(kind, ChangeKind::Append { .. }));
    let look = |record: &BucketRecord| {
        let home = record.home.as_ref();
        let by = if is_append { append_decider(home) } else { Some(decider(home, has_condition)) };
        (record.home, by == Some(Decider::Here) && !record.is_local())
    };
    match shared.shown.access().bucket(&bucket, look) {
        None => return ChangeAnswer::NoSuchBucket,
        Some((home, false)) => return ChangeAnswer::NotHome(home),
        Some((_, true)) => {}
    }
    let proxy = &shared.proxy;
    let making = async {
        match kind {
            ChangeKind::Put { attributes, md5, checksum, bytes } => {
                let len = bytes.len() as u64;
                let body = Whole { bytes: Some(bytes), len, md5, checksum };
                let options = PutOptions { attributes: *attributes, condition };
                let done = proxy.put_here(&bucket, &key, options, body).await?;
                Ok(HomeChange::Put(done.clock))
            }
            ChangeKind::Append { offset, attributes, md5, checksum, bytes } => {
                let len = bytes.len() as u64;
                let body = Whole { bytes: Some(bytes), len, md5, checksum };
                let at = offset.map_or(AppendAt::End, AppendAt::Offset);
                let options = AppendOptions { at, attributes: *attributes, condition };
                proxy.append_here(&bucket, &key, options, body).await.map(HomeChange::Appended)
            }
            ChangeKind::Delete => {
                proxy.delete_here(&bucket, &key, condition).await.map(|()| HomeChange::Changed)
            }
            ChangeKind::Tags(tags) => {
                proxy.set_tags_here(&bucket, &key, tags).await.map(|()| HomeChange::Changed)
            }
            ChangeKind::Upload(step) => make_step(proxy, (&bucket, &key), condition, step).await,
        }
    };
    let made = timeout_at(until, making).await;
    shared.homes.count_made(matches!(made, Ok(Ok(_))));
    match made {
        Ok(made) => {
            if let Err(error) = &made {
                tracing::debug!(%from, %bucket, %error, "a change forwarded by another region was refused");
            }
            answer_of(made)
        }
        Err(_elapsed) => {
            ChangeAnswer::Unavailable("it is not made in time, and may be made later".to_owned())
        }
    }
}

/// Makes a step of an upload of another region's client.
async fn make_step<R: RegionAccess>(
    proxy: &Proxy<R>,
    (bucket, key): (&BucketName, &ObjectKey),
    condition: Condition,
    step: UploadStep,
) -> Result<HomeChange, ObjectError> {
    Ok(match step {
        UploadStep::Begin { attributes, checksum } => {
            let options = UploadOptions { attributes: *attributes, checksum };
            let upload = proxy.begin_upload_here(bucket, key, options).await?;
            HomeChange::Uploaded(UploadAnswer::Begun(upload))
        }
        UploadStep::Part { upload, number, md5, checksum, bytes } => {
            let len = bytes.len() as u64;
            let body = Whole { bytes: Some(bytes), len, md5, checksum };
            HomeChange::Put(proxy.put_upload_part(bucket, key, upload, number, body).await?.clock)
        }
        UploadStep::Show { upload, after, parts_max } => {
            let max = usize::from(parts_max);
            let page = proxy.list_upload_parts(bucket, key, upload, after, max).await?;
            let (upload, is_truncated) = (Box::new(page.upload), page.truncated);
            let parts = page.parts.into_iter().map(|part| (part.number, part.metax)).collect();
            HomeChange::Uploaded(UploadAnswer::Shown { upload, parts, is_truncated })
        }
        UploadStep::Complete { upload, parts, checksum, size } => {
            let parts = parts.into_iter().map(named).collect();
            let options = CompleteOptions { parts, condition, checksum, size };
            let done = proxy.complete_upload_here(bucket, key, upload, options).await?;
            let PutDone { etag, checksum, clock, size } = done;
            HomeChange::Uploaded(UploadAnswer::Completed { etag, checksum, size, clock })
        }
        UploadStep::Abort { upload } => {
            proxy.abort_upload_here(bucket, key, upload).await?;
            HomeChange::Changed
        }
    })
}

fn named(PartNamed { number, etag, checksum }: PartNamed) -> NamedPart {
    NamedPart { number, etag, checksum }
}

const _: () = assert!(
    REGION_WAIT_MS + 2_000 < CHANGE_TIME_MAX.as_millis() as u64,
    "a change that waits for other regions is answered in time"
);
