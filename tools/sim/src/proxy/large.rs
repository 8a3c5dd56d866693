//! Objects of several chunks: streams, and uploads in parts.

use bytes::Bytes;
use larder_protocol::{Answer, Call, Content, Description};
use larder_types::{
    Attributes, Condition, ETag, ObjectKey, OpId, PartRef, StreamId, Target, UploadId,
};

use super::put::{DropAt, Payload, PutRequest};
use crate::event::{PgRequest, ProxyEvent};
use crate::history::CallResult;
use crate::index::{BUCKET, EPOCH};
use crate::proxy_context::ProxyContext;

/// The plan of an upload.
#[derive(Debug, Clone)]
pub(crate) struct UploadPlan {
    pub(crate) key: ObjectKey,
    pub(crate) etag: ETag,
    /// Bytes of each part, in order.
    pub(crate) parts: Vec<Bytes>,
    /// Bytes of a chunk of parts that are streams.
    pub(crate) chunk_bytes: usize,
    /// A part is put twice, the first time with other bytes.
    pub(crate) put_again: bool,
    /// It ends with an abort.
    pub(crate) abort: bool,
    pub(crate) condition: Condition,
}

impl ProxyContext {
    /// Stores chunks one after the other, then the parent that names them.
    pub(crate) async fn put_stream(
        &self,
        wanted: PutRequest,
        bytes: Bytes,
        chunk_bytes: usize,
    ) -> Result<OpId, CallResult> {
        let stream = self.new_stream();
        let (pg, dropped) = (self.pg_of(&wanted.key), wanted.drop_at.is_some() && self.one_in(2));
        let result = self.store_stream(wanted, stream, &bytes, chunk_bytes, dropped).await;
        if result.is_err() && !self.one_in(4) {
            // Chunks that a parent has claimed after all are not dropped.
            self.tell(pg, Call::DropStream { bucket: BUCKET, stream });
        }
        result
    }

    async fn store_stream(
        &self,
        wanted: PutRequest,
        stream: StreamId,
        bytes: &Bytes,
        chunk_bytes: usize,
        dropped: bool,
    ) -> Result<OpId, CallResult> {
        let content = self.store_chunks(&wanted, stream, bytes, chunk_bytes, dropped).await?;
        let size = bytes.len() as u64;
        self.put(wanted, Payload::Stream { content, size }).await
    }

    /// Stores the chunks of a stream.
    pub(crate) async fn store_chunks(
        &self,
        wanted: &PutRequest,
        stream: StreamId,
        bytes: &Bytes,
        chunk_bytes: usize,
        dropped: bool,
    ) -> Result<Content, CallResult> {
        let chunks = bytes.len().div_ceil(chunk_bytes) as u32;
        let last = self.below(u64::from(chunks)) as u32;
        for number in 0..chunks {
            let from = number as usize * chunk_bytes;
            let chunk = bytes.slice(from..(from + chunk_bytes).min(bytes.len()));
            let of_chunk = PutRequest {
                key: wanted.key.clone(),
                target: Target::Chunk { stream, number },
                etag: wanted.etag.clone(),
                attributes: Attributes::default(),
                condition: Condition::default(),
                drop_at: (dropped && number == last).then_some(DropAt::Granted),
            };
            // A chunk that was refused leaves no doubt: the parent was never asked for.
            self.put(of_chunk, Payload::Bytes(chunk)).await.map_err(|_| CallResult::Refused)?;
        }
        Ok(Content::Stream { stream, chunks, chunk_bytes: chunk_bytes as u32 })
    }

    /// Uploads in parts.
    pub(crate) async fn upload(&self, plan: UploadPlan) -> CallResult {
        match self.try_upload(plan).await {
            Ok(()) => CallResult::Done,
            Err(answered) => answered,
        }
    }

    async fn try_upload(&self, plan: UploadPlan) -> Result<(), CallResult> {
        let pg = self.pg_of(&plan.key);
        let open = self.begin_request();
        let create = Call::CreateUpload {
            request: open.request,
            bucket: BUCKET,
            epoch: EPOCH,
            key: plan.key.clone(),
            attributes: Attributes::default(),
            checksum: None,
        };
        // Until the completion is asked for nothing can become of the object.
        let created = self.op(pg, create).await.map_err(|_| CallResult::Refused)?;
        drop(open);
        let Answer::Done { op, .. } = created else { return Err(CallResult::Refused) };
        let upload = UploadId { pg, op };
        let mut all_put = true;
        for (index, bytes) in plan.parts.iter().enumerate() {
            let number = index as u16 + 1;
            if plan.put_again && index == 0 {
                let other = crate::content::content(u64::MAX, 3000);
                let _replaced = self.put_part(&plan, upload, number, other).await;
            }
            all_put &= self.put_part(&plan, upload, number, bytes.clone()).await.is_ok();
        }
        if plan.abort || !all_put {
            let open = self.begin_request();
            let (request, key) = (open.request, plan.key.clone());
            let abort = Call::AbortUpload { request, bucket: BUCKET, key, upload };
            let _any = self.op(pg, abort).await;
            return Err(CallResult::Refused);
        }
        self.complete(&plan, upload).await
    }

    async fn put_part(
        &self,
        plan: &UploadPlan,
        upload: UploadId,
        number: u16,
        bytes: Bytes,
    ) -> Result<OpId, CallResult> {
        let wanted = PutRequest {
            key: plan.key.clone(),
            target: Target::Part { upload, number },
            etag: ETag::Md5([number as u8; 16]),
            attributes: Attributes::default(),
            condition: Condition::default(),
            drop_at: None,
        };
        if bytes.len() > plan.chunk_bytes {
            self.put_stream(wanted, bytes, plan.chunk_bytes).await
        } else {
            self.put(wanted, Payload::Bytes(bytes)).await
        }
    }

    async fn complete(&self, plan: &UploadPlan, upload: UploadId) -> Result<(), CallResult> {
        let pg = self.pg_of(&plan.key);
        let seen = self.exchange(pg, PgRequest::Parts(BUCKET, upload)).await;
        let Some(ProxyEvent::Parts(rows)) = seen else { return Err(CallResult::Refused) };
        let sizes = plan.parts.iter().map(|part| part.len() as u64);
        // A part whose answer was lost may have other bytes than the last that were sent.
        if !rows.iter().map(|(_, row)| row.metax.size).eq(sizes) {
            return Err(CallResult::Refused);
        }
        let open = self.begin_request();
        let part = |(number, row): &(u16, larder_types::PartRow)| {
            (PartRef { number: *number, len: row.metax.size }, row.op)
        };
        let complete = Call::CompleteUpload {
            request: open.request,
            bucket: BUCKET,
            epoch: EPOCH,
            key: plan.key.clone(),
            upload,
            description: Box::new(Description {
                size: plan.parts.iter().map(|part| part.len() as u64).sum(),
                etag: plan.etag.clone(),
                checksum: None,
                attributes: Attributes::default(),
            }),
            parts: rows.iter().map(part).collect(),
            condition: plan.condition.clone(),
        };
        self.op(pg, complete).await.map(|_done| ())
    }
}
