//! A store that keeps nothing.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::stream;
use larder_objects::{
    CompleteOptions, ListPage, ListRequest, ListedObject, ListedPart, ObjectError, Objects, Opened,
    PartsPage, PutBody, PutDone, PutOptions, ReadBody, UploadOptions,
};
use larder_types::{
    Attributes, Body, BucketId, BucketName, BucketRecord, BucketState, Condition, ETag, Epoch,
    HybridClock, Metax, ObjectKey, OpId, RegionId, UploadId, UploadRow,
};

use crate::file::{FILE_BYTES_MAX, FloorFile};
use larder_bench::content::PIECE_BYTES;

pub(super) struct FloorStore {
    file: Arc<FloorFile>,
    started_ms: u64,
}

impl FloorStore {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { file: Arc::new(FloorFile::new()?), started_ms: now_ms() })
    }

    /// Every bucket is there, and has always been.
    fn record(&self, name: &BucketName) -> BucketRecord {
        BucketRecord {
            id: BucketId(1),
            name: name.clone(),
            epoch: Epoch(1),
            state: BucketState::Live,
            created_ms: self.started_ms,
            location: None,
            write_policy: larder_types::WritePolicy::All,
            regions: 1,
            home: None,
            sharing: larder_types::Sharing::All,
            cors: None,
        }
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn unavailable(error: &io::Error) -> ObjectError {
    ObjectError::Unavailable { reason: format!("the floor's file: {error}") }
}

fn empty_page<T>() -> ListPage<T> {
    ListPage { items: Vec::new(), truncated: false }
}

impl Objects for FloorStore {
    async fn create_bucket(
        &self,
        name: &BucketName,
        _: Option<String>,
    ) -> Result<BucketRecord, ObjectError> {
        Ok(self.record(name))
    }

    async fn delete_bucket(&self, _: &BucketName) -> Result<(), ObjectError> {
        Ok(())
    }

    fn bucket(&self, name: &BucketName) -> Result<BucketRecord, ObjectError> {
        Ok(self.record(name))
    }

    fn buckets(&self) -> Result<Vec<BucketRecord>, ObjectError> {
        Ok(Vec::new())
    }

    /// Reads the body, so that all its digests are computed and compared, and drops it.
    async fn put<B: PutBody>(
        &self,
        _: &BucketName,
        _: &ObjectKey,
        _: PutOptions,
        mut body: B,
    ) -> Result<PutDone, ObjectError> {
        let mut size = 0;
        while let Some(piece) = body.next().await {
            size += piece?.len() as u64;
        }
        let digest = body.finish()?;
        self.file.note_put(size);
        Ok(PutDone {
            etag: ETag::Md5(digest.md5),
            checksum: digest.checksum,
            clock: HybridClock::at_ms(now_ms()),
            size,
        })
    }

    async fn open(&self, _: &BucketName, key: &ObjectKey) -> Result<Opened, ObjectError> {
        let size = self.file.size_of(key.as_str());
        if size > FILE_BYTES_MAX {
            return Err(ObjectError::TooLarge {
                what: "the floor's file",
                limit_bytes: FILE_BYTES_MAX,
            });
        }
        Ok(Opened {
            bucket: BucketId(1),
            key: key.clone(),
            op: OpId::default(),
            metax: Metax {
                size,
                clock: HybridClock::at_ms(self.started_ms),
                region: RegionId(0),
                etag: ETag::Md5([0; 16]),
                checksum: None,
                attributes: Attributes::default(),
                expires_ms: None,
                encryption: None,
                retention: None,
            },
            body: Body::Inline(bytes::Bytes::new()),
            remote_parts: Vec::new(),
            bytes: None,
            remote: None,
        })
    }

    async fn read(&self, _: &Opened, range: Range<u64>) -> Result<ReadBody, ObjectError> {
        if range.end - range.start <= PIECE_BYTES as u64 {
            return self.file.read(range).map(ReadBody::Whole).map_err(|error| unavailable(&error));
        }
        let file = Arc::clone(&self.file);
        let pieces = range.clone().step_by(PIECE_BYTES).map(move |start| {
            let end = range.end.min(start + PIECE_BYTES as u64);
            file.read(start..end).map_err(|error| unavailable(&error))
        });
        Ok(ReadBody::Stream(Box::pin(stream::iter(pieces))))
    }

    async fn part(&self, _: &Opened, number: u16) -> Result<ListedPart, ObjectError> {
        Err(ObjectError::InvalidPart { number })
    }

    async fn delete(&self, _: &BucketName, _: &ObjectKey, _: Condition) -> Result<(), ObjectError> {
        Ok(())
    }

    async fn set_tags(
        &self,
        _: &BucketName,
        _: &ObjectKey,
        _: Vec<(String, String)>,
    ) -> Result<(), ObjectError> {
        Ok(())
    }

    async fn list(
        &self,
        _: &BucketName,
        _: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        Ok(empty_page())
    }

    async fn create_upload(
        &self,
        _: &BucketName,
        _: &ObjectKey,
        _: UploadOptions,
    ) -> Result<UploadId, ObjectError> {
        Err(ObjectError::Unavailable { reason: "the floor server takes no uploads".into() })
    }

    async fn upload(
        &self,
        _: &BucketName,
        _: &ObjectKey,
        _: UploadId,
    ) -> Result<UploadRow, ObjectError> {
        Err(ObjectError::NoSuchUpload)
    }

    async fn put_part<B: PutBody>(
        &self,
        _: &BucketName,
        _: &ObjectKey,
        _: UploadId,
        _: u16,
        _: B,
    ) -> Result<PutDone, ObjectError> {
        Err(ObjectError::NoSuchUpload)
    }

    async fn list_parts(
        &self,
        _: &BucketName,
        _: &ObjectKey,
        _: UploadId,
        _: u16,
        _: usize,
    ) -> Result<PartsPage, ObjectError> {
        Err(ObjectError::NoSuchUpload)
    }

    async fn complete_upload(
        &self,
        _: &BucketName,
        _: &ObjectKey,
        _: UploadId,
        _: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        Err(ObjectError::NoSuchUpload)
    }

    async fn abort_upload(
        &self,
        _: &BucketName,
        _: &ObjectKey,
        _: UploadId,
    ) -> Result<(), ObjectError> {
        Err(ObjectError::NoSuchUpload)
    }

    async fn list_uploads(
        &self,
        _: &BucketName,
        _: ListRequest,
        _: Option<UploadId>,
    ) -> Result<ListPage<UploadRow>, ObjectError> {
        Ok(empty_page())
    }
}
