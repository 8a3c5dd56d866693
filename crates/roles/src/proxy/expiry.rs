//! Uploads in parts that were begun long ago and never ended: their parts take space that no list of objects shows.
//!
//! S3 ends them by a rule of the bucket's lifecycle, which few set. Here they end after a time that the operator sets. One proxy of
//! a store looks for them, as each search costs every primary a scan. Two that search at once do no harm.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_objects::ObjectError;
use larder_protocol::Call;
use larder_types::codec::decode;
use larder_types::{BucketId, UploadRow, rows};
use tokio::time::sleep;

use super::Proxy;
use super::reach::{Onward, Reach, Scan};
use crate::clock::now_ms;
use crate::limits::{EXPIRY_PAUSE_MS_MAX, EXPIRY_ROWS_MAX};

/// Prefix of the rows of open uploads, and the first row behind them.
const UPLOADS: (&[u8], &[u8]) = (b"U", b"V");

/// Open uploads that were begun too long ago, and the row where the search goes on.
type Found = (Vec<(BucketId, UploadRow)>, Option<Vec<u8>>);

impl<R: Reach> Proxy<R> {
    /// Aborts uploads that were begun before a time, in milliseconds since 1970. Returns how many.
    ///
    /// # Errors
    /// If the index cannot be read now, or a primary does not answer: the others are left for the next time.
    pub async fn abort_uploads_before(&self, before_ms: u64) -> Result<u64, ObjectError> {
        let (mut from, mut count) = (Some(UPLOADS.0.to_vec()), 0);
        while let Some(first) = from {
            let (old, next) = self.uploads_before(first, before_ms).await?;
            from = next;
            for (bucket, UploadRow { upload, key, .. }) in old {
                let request = self.requests.begin();
                let (pg, request) = (upload.pg, request.id());
                match self.reach.ask(pg, Call::AbortUpload { request, bucket, key, upload }).await {
                    Ok(_) => {
                        count += 1;
                        self.expired_uploads.fetch_add(1, Ordering::Relaxed);
                    }
                    // It ended by itself meanwhile.
                    Err(ObjectError::NoSuchUpload | ObjectError::NoSuchBucket) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(count)
    }

    /// Looks through some rows for such uploads.
    async fn uploads_before(&self, from: Vec<u8>, before_ms: u64) -> Result<Found, ObjectError> {
        let (mut old, mut looked_at, mut next) = (Vec::new(), 0, None);
        let (to, wanted) = (Some(UPLOADS.1), EXPIRY_ROWS_MAX);
        let scan = Scan { pg: None, settle: false, from, to, wanted };
        let scanned = self.reach.scan(scan, |row, value| {
            looked_at += 1;
            if looked_at > EXPIRY_ROWS_MAX {
                next = Some(row.to_vec());
                return Onward::Stop;
            }
            match (rows::bucket_of(row), decode::<UploadRow>("upload row", value)) {
                (Some(bucket), Ok(upload)) if upload.clock.ms() < before_ms => {
                    old.push((bucket, upload));
                }
                (Some(_), Ok(_)) => {}
                // A list of its bucket's uploads says so to a client.
                (_, damaged) => tracing::debug!(?damaged, "the row of an upload cannot be used"),
            }
            Onward::Next
        });
        scanned.await?;
        Ok((old, next))
    }
}

/// Aborts uploads that were begun longer than `age` ago, again and again. It does not end.
pub async fn expire_uploads<R: Reach>(proxy: Arc<Proxy<R>>, age: Duration) {
    let age_ms = age.as_millis() as u64;
    let pause = Duration::from_millis((age_ms / 4).min(EXPIRY_PAUSE_MS_MAX));
    loop {
        sleep(pause).await;
        if !proxy.reach.tidies() {
            continue;
        }
        match proxy.abort_uploads_before(now_ms().saturating_sub(age_ms)).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "uploads that nobody ended were aborted"),
            Err(error) => {
                tracing::info!(%error, "abandoned uploads could not be looked for, and are later")
            }
        }
    }
}
