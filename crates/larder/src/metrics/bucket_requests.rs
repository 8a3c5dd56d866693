//! Requests of each bucket and their bytes, as clients send them to this process.
//!
//! # Invariants
//!
//! 1. Only a verified user's requests count, and only one that succeeded gives a bucket its name here: others may name what there is
//!    not. Each counts where its client sent it, and not where it was handed on to.
//! 2. At most [`BUCKETS_NAMED_MAX`] buckets have names, those that were asked first; all others count together. One that is
//!    gone loses its name and its counts at the next scrape, also if another server deleted it.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_s3::FinishedRequest;
use larder_types::BucketName;
use parking_lot::RwLock;

/// Buckets with names. A label for each of all that there may be would be more than Prometheus is to keep.
const BUCKETS_NAMED_MAX: usize = 100;
/// Statuses of requests that were done, or had nothing to do.
const SUCCESS: std::ops::Range<u16> = 200..400;
/// Names of the label `kind`, by [`Kind`].
const KINDS: [&str; 5] = ["read", "list", "write", "delete", "other"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    List,
    Write,
    Delete,
    Other,
}

impl Kind {
    /// By S3's name of the operation. Requests about a bucket itself are another kind than those
    /// about its objects.
    fn of(op: &str) -> Self {
        match op {
            "GetObject" | "HeadObject" | "GetObjectAttributes" => Self::Read,
            "ListObjects"
            | "ListObjectsV2"
            | "ListObjectVersions"
            | "ListMultipartUploads"
            | "ListParts" => Self::List,
            "PutObject"
            | "PostObject"
            | "CopyObject"
            | "CreateMultipartUpload"
            | "UploadPart"
            | "UploadPartCopy"
            | "CompleteMultipartUpload" => Self::Write,
            "DeleteObject" | "DeleteObjects" | "AbortMultipartUpload" => Self::Delete,
            _ => Self::Other,
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    requests: [AtomicU64; KINDS.len()],
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Counts {
    fn add(&self, kind: Kind, (received, sent): (u64, u64)) {
        self.requests[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.received_bytes.fetch_add(received, Ordering::Relaxed);
        self.sent_bytes.fetch_add(sent, Ordering::Relaxed);
    }

    fn is_none(&self) -> bool {
        self.requests.iter().all(|of_kind| of_kind.load(Ordering::Relaxed) == 0)
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct BucketRequests {
    by_name: RwLock<HashMap<BucketName, Counts>>,
    others: Counts,
}

impl BucketRequests {
    pub(super) fn note(&self, ended: &FinishedRequest<'_>) {
        if ended.user.is_none() || ended.client().is_none() {
            return;
        }
        // A name is a label: nothing else than a bucket may be called.
        let Some(bucket) = ended.bucket().and_then(|name| BucketName::new(&name).ok()) else {
            return;
        };
        let bytes = (ended.bytes_in, ended.bytes_out);
        self.count(bucket, Kind::of(ended.op), bytes, SUCCESS.contains(&ended.status));
    }

    fn count(&self, bucket: BucketName, kind: Kind, bytes: (u64, u64), has_succeeded: bool) {
        let by_name = self.by_name.read();
        if let Some(counts) = by_name.get(&bucket) {
            return counts.add(kind, bytes);
        }
        if !has_succeeded || by_name.len() >= BUCKETS_NAMED_MAX {
            return self.others.add(kind, bytes);
        }
        drop(by_name);
        let mut by_name = self.by_name.write();
        match by_name.len() < BUCKETS_NAMED_MAX || by_name.contains_key(&bucket) {
            true => by_name.entry(bucket).or_default().add(kind, bytes),
            false => self.others.add(kind, bytes),
        }
    }

    /// Forgets buckets that are not there any more.
    pub(super) fn keep(&self, are_there: &BTreeSet<BucketName>) {
        self.by_name.write().retain(|name, _| are_there.contains(name));
    }

    pub(super) fn write(&self, out: &mut String) -> std::fmt::Result {
        let by_name = self.by_name.read();
        let mut all: Vec<(&str, &Counts)> =
            by_name.iter().map(|(name, counts)| (name.as_str(), counts)).collect();
        all.sort_by_key(|(name, _)| *name);
        // A process without S3 says nothing. No bucket has an empty name.
        if all.is_empty() && self.others.is_none() {
            return Ok(());
        }
        all.push(("", &self.others));
        let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
        head(out, "bucket_requests", "Requests of the bucket")?;
        for (bucket, counts) in &all {
            for (kind, count) in KINDS.iter().zip(&counts.requests) {
                let count = load(count);
                writeln!(
                    out,
                    "larder_bucket_requests_total{{bucket=\"{bucket}\",kind=\"{kind}\"}} {count}"
                )?;
            }
        }
        type OfBucket = (&'static str, &'static str, fn(&Counts) -> &AtomicU64);
        let bytes: [OfBucket; 2] = [
            ("bucket_received_bytes", "Body bytes received for the bucket", |it| {
                &it.received_bytes
            }),
            ("bucket_sent_bytes", "Body bytes sent from the bucket", |it| &it.sent_bytes),
        ];
        for (name, help, of) in bytes {
            head(out, name, help)?;
            for (bucket, counts) in &all {
                writeln!(out, "larder_{name}_total{{bucket=\"{bucket}\"}} {}", load(of(counts)))?;
            }
        }
        Ok(())
    }
}

fn head(out: &mut String, name: &str, help: &str) -> std::fmt::Result {
    writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} counter")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(requests: &BucketRequests) -> Vec<String> {
        let mut out = String::new();
        requests.write(&mut out).unwrap();
        out.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    fn has(requests: &BucketRequests, line: &str) {
        assert!(lines(requests).iter().any(|it| it == line), "{line} in {:#?}", lines(requests));
    }

    fn name(name: &str) -> BucketName {
        BucketName::new(name).expect("a name")
    }

    #[test]
    fn a_bucket_has_its_requests_and_bytes() {
        let requests = BucketRequests::default();
        let photos = |op: &str, bytes| requests.count(name("photos"), Kind::of(op), bytes, true);
        photos("PutObject", (70, 0));
        photos("UploadPartCopy", (0, 5));
        photos("GetObject", (0, 70));
        photos("ListObjectsV2", (0, 9));
        photos("DeleteObjects", (0, 0));
        photos("PutObjectTagging", (3, 0));
        for (kind, count) in [("write", 2), ("read", 1), ("list", 1), ("delete", 1), ("other", 1)] {
            let of = format!("{{bucket=\"photos\",kind=\"{kind}\"}}");
            has(&requests, &format!("larder_bucket_requests_total{of} {count}"));
        }
        has(&requests, "larder_bucket_received_bytes_total{bucket=\"photos\"} 73");
        has(&requests, "larder_bucket_sent_bytes_total{bucket=\"photos\"} 84");
    }

    #[test]
    fn many_buckets_count_together_and_those_that_are_gone_make_room() {
        let requests = BucketRequests::default();
        let list = |bucket: &str| requests.count(name(bucket), Kind::List, (0, 1), true);
        for number in 0..BUCKETS_NAMED_MAX + 3 {
            list(&format!("bucket-{number:03}"));
        }
        has(&requests, "larder_bucket_sent_bytes_total{bucket=\"\"} 3");
        let all = requests.by_name.read().keys().cloned().collect::<BTreeSet<_>>();
        requests.keep(&all.into_iter().filter(|it| it.as_str() != "bucket-007").collect());
        assert!(!lines(&requests).iter().any(|line| line.contains("bucket-007")));
        has(&requests, "larder_bucket_sent_bytes_total{bucket=\"\"} 3");
        list("late");
        has(&requests, "larder_bucket_requests_total{bucket=\"late\",kind=\"list\"} 1");
    }

    #[test]
    fn an_unknown_bucket_id_gets_no_name() {
        let requests = BucketRequests::default();
        requests.count(name("nowhere"), Kind::Read, (0, 300), false);
        assert!(!lines(&requests).iter().any(|line| line.contains("nowhere")));
        has(&requests, "larder_bucket_requests_total{bucket=\"\",kind=\"read\"} 1");
    }
}
