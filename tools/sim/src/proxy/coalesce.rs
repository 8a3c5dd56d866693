//! Coalescing: pieces of an object that was appended to are read, stored as one chunk, and replaced.

use bytes::{Bytes, BytesMut};
use larder_protocol::{Answer, Call, CoalesceCall, CoalescePlan, CoalesceRequest, Content};
use larder_types::limits::INLINE_BYTES_MAX;
use larder_types::{Attributes, Condition, ETag, ObjectKey, PgId, StreamId, Target};

use super::put::PutRequest;
use crate::event::{Located, PgRequest, ProxyEvent};
use crate::index::{BUCKET, EPOCH};
use crate::proxy_context::ProxyContext;

/// Bytes of a chunk: smaller than what some windows have, so that their streams have several.
const CHUNK_BYTES: usize = 30_000;

impl ProxyContext {
    /// Coalesces pieces of a key's version, if some are worth it.
    pub(crate) async fn coalesce(&self, key: &ObjectKey) {
        let pg = self.pg_of(key);
        let ask = CoalesceRequest { bucket: BUCKET, key: key.clone(), from: 0 };
        let answer = self.op(pg, Call::PlanCoalesce(Box::new(ask))).await;
        let Ok(Answer::Plan(Some(plan))) = answer else { return };
        let CoalescePlan { pieces, window: Some(window), .. } = *plan else { return };
        let Some(ProxyEvent::Located(Some(located))) =
            self.exchange(pg, PgRequest::Locate(BUCKET, key.clone())).await
        else {
            return;
        };
        if located.appended != Some(pieces) || located.size < window.end {
            return;
        }
        let Some(bytes) = self.read_whole(&located).await else { return };
        let bytes = bytes.slice(window.start as usize..window.end as usize);
        let stream = self.new_stream();
        let content = if bytes.len() <= INLINE_BYTES_MAX as usize {
            Content::Inline(bytes)
        } else {
            let wanted = PutRequest {
                key: key.clone(),
                target: Target::Version,
                etag: ETag::Md5([0; 16]),
                attributes: Attributes::default(),
                condition: Condition::default(),
                drop_at: None,
            };
            match self.store_chunks(&wanted, stream, &bytes, CHUNK_BYTES, false).await {
                Ok(content) => content,
                Err(_) => return self.drop_chunks(pg, stream),
            }
        };
        let open = self.begin_request();
        let call = CoalesceCall {
            request: open.request,
            bucket: BUCKET,
            epoch: EPOCH,
            key: key.clone(),
            pieces,
            window,
            content,
        };
        match self.op(pg, Call::Coalesce(Box::new(call))).await {
            Ok(_done) => self.count("coalesced pieces"),
            // They are not dropped if a piece has claimed them after all.
            Err(_) => self.drop_chunks(pg, stream),
        }
    }

    fn drop_chunks(&self, pg: PgId, stream: StreamId) {
        if !self.one_in(4) {
            self.tell(pg, Call::DropStream { bucket: BUCKET, stream });
        }
    }

    /// All bytes of a version, if they are to be had now.
    async fn read_whole(&self, located: &Located) -> Option<Bytes> {
        let pieces = self.read_pieces(located).await?;
        let mut bytes = BytesMut::new();
        pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        (bytes.len() as u64 == located.size).then(|| bytes.freeze())
    }
}
