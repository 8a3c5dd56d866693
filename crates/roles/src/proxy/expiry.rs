//! Uploads in parts that were begun long ago and never ended: their parts take space that no list of objects shows.
//!
//! S3 ends them by a rule of the bucket's lifecycle, which few set. Here they end after a time that the operator sets. One proxy of
//! a store looks for them, as each search costs every primary a scan. Two that search at once do no harm.
//!
//! # Invariant
//!
//! A clock that steps ahead aborts nothing at once, as what it aborts was acknowledged. Two searches must agree by the steady
//! clock. Until they have agreed for a day, no upload goes that is not older than the newest one by the whole age.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_objects::ObjectError;
use larder_protocol::{Call, EventTime};
use larder_types::codec::decode;
use larder_types::{BucketId, UploadRow, rows};
use tokio::time::sleep;

use super::Proxy;
use super::role_access::{RoleAccess, Scan, ScanStep};
use crate::limits::{
    EXPIRY_BELIEVED_MS_MAX, EXPIRY_CLOCK_OFF_MS_MAX, EXPIRY_PAUSE_MS_MAX, EXPIRY_ROWS_MAX,
};

/// Prefix of the rows of open uploads, and the first row behind them.
const UPLOADS: (&[u8], &[u8]) = (b"U", b"V");

/// Open uploads that were begun too long ago, and the row where the search goes on.
type Found = (Vec<(BucketId, UploadRow)>, Option<Vec<u8>>);

impl<R: RoleAccess> Proxy<R> {
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
                match self
                    .access
                    .submit(pg, Call::AbortUpload { request, bucket, key, upload })
                    .await
                {
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
        let mut old = Vec::new();
        let next = self.visit_uploads(from, |bucket, upload| {
            if upload.clock.ms() < before_ms {
                old.push((bucket, upload));
            }
        });
        let next = next.await?;
        Ok((old, next))
    }

    /// The time at which the newest open upload was begun, in milliseconds since 1970; 0 if there is none.
    async fn newest_upload_ms(&self) -> Result<u64, ObjectError> {
        let (mut from, mut newest_ms) = (Some(UPLOADS.0.to_vec()), 0);
        while let Some(first) = from {
            let visit = |_, upload: UploadRow| newest_ms = upload.clock.ms().max(newest_ms);
            from = self.visit_uploads(first, visit).await?;
        }
        Ok(newest_ms)
    }

    /// Visits the open uploads of some rows. Returns the row where the next ones begin, if there are more.
    async fn visit_uploads(
        &self,
        from: Vec<u8>,
        mut visit: impl FnMut(BucketId, UploadRow) + Send,
    ) -> Result<Option<Vec<u8>>, ObjectError> {
        let (mut looked_at, mut next) = (0, None);
        let (to, wanted) = (Some(UPLOADS.1), EXPIRY_ROWS_MAX);
        let scan = Scan { pg: None, settle: false, from, to, wanted };
        let scanned = self.access.scan(scan, |row, value| {
            looked_at += 1;
            if looked_at > EXPIRY_ROWS_MAX {
                next = Some(row.to_vec());
                return ScanStep::Stop;
            }
            match (rows::bucket_of(row), decode::<UploadRow>("upload row", value)) {
                (Some(bucket), Ok(upload)) => visit(bucket, upload),
                // A list of its bucket's uploads says so to a client.
                (_, damaged) => tracing::debug!(?damaged, "the row of an upload cannot be used"),
            }
            ScanStep::Next
        });
        scanned.await?;
        Ok(next)
    }
}

/// The searches of one proxy: how far the wall's clock, which alone tells the age of an upload, is believed.
#[derive(Debug)]
struct Searches {
    age_ms: u64,
    /// The time of the last one.
    last: EventTime,
    /// The time from which on both clocks went alike.
    alike_since: EventTime,
}

impl Searches {
    fn new(age_ms: u64, now: EventTime) -> Self {
        Self { age_ms, last: now, alike_since: now }
    }

    /// Notes that it is time for a search. Returns for how many milliseconds both clocks have gone alike; `None` if they have
    /// not since the last search: then the wall's is wrong, or was.
    fn begin(&mut self, now: EventTime) -> Option<u64> {
        let wall_ms = now.wall_ms.checked_sub(self.last.wall_ms);
        let steady_ms = now.steady_ms.saturating_sub(self.last.steady_ms);
        let off_ms = (self.age_ms / 8).min(EXPIRY_CLOCK_OFF_MS_MAX);
        let are_alike = wall_ms.is_some_and(|wall_ms| wall_ms.abs_diff(steady_ms) <= off_ms);
        self.last = now;
        if !are_alike {
            self.alike_since = now;
            return None;
        }
        Some(now.steady_ms.saturating_sub(self.alike_since.steady_ms))
    }

    /// Aborts uploads that are too old at this time. Returns how many.
    async fn search<R: RoleAccess>(
        &mut self,
        proxy: &Proxy<R>,
        now: EventTime,
    ) -> Result<u64, ObjectError> {
        let alike_ms = self.begin(now);
        if !proxy.access.tidies() {
            return Ok(0);
        }
        let Some(alike_ms) = alike_ms else {
            tracing::info!("the clock was set: no upload counts as abandoned yet");
            return Ok(0);
        };
        let mut before_ms = now.wall_ms.saturating_sub(self.age_ms);
        if alike_ms < self.age_ms.min(EXPIRY_BELIEVED_MS_MAX) {
            let newest_ms = proxy.newest_upload_ms().await?;
            before_ms = before_ms.min(newest_ms.saturating_sub(self.age_ms));
        }
        proxy.abort_uploads_before(before_ms).await
    }
}

/// Aborts uploads that were begun longer than `age` ago, again and again. It does not end.
pub async fn expire_uploads<R: RoleAccess>(proxy: Arc<Proxy<R>>, age: Duration) {
    let age_ms = age.as_millis() as u64;
    let pause = Duration::from_millis((age_ms / 4).min(EXPIRY_PAUSE_MS_MAX));
    let mut searches = Searches::new(age_ms, proxy.access.clock().now());
    loop {
        sleep(pause).await;
        match searches.search(&proxy, proxy.access.clock().now()).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "aborted uploads that no client completed"),
            Err(error) => {
                tracing::info!(%error, "the search for abandoned uploads failed: will retry later")
            }
        }
    }
}

#[cfg(test)]
mod tests;
