//! Appends: chunks like those of a large put, then the op that makes them the object's end.

use bytes::Bytes;
use larder_protocol::{Answer, AppendCall, Call, Content, Description};
use larder_types::Attributes;

use super::put::PutRequest;
use crate::history::CallResult;
use crate::index::{BUCKET, EPOCH};
use crate::proxy_context::ProxyContext;

/// The plan of an append.
#[derive(Debug, Clone)]
pub(crate) struct AppendPlan {
    /// Its key, its tag, its condition, and where its proxy drops it.
    pub(crate) wanted: PutRequest,
    pub(crate) bytes: Bytes,
    /// Where it must begin, if that matters.
    pub(crate) at: Option<u64>,
    /// Bytes of its chunks; `None` if it goes along with METAX.
    pub(crate) chunk_bytes: Option<usize>,
}

impl ProxyContext {
    /// Appends.
    pub(crate) async fn append(&self, plan: AppendPlan) -> CallResult {
        let pg = self.pg_of(&plan.wanted.key);
        let Some(chunk_bytes) = plan.chunk_bytes else {
            let content = Content::Inline(plan.bytes.clone());
            return self.append_content(&plan, content).await;
        };
        let stream = self.new_stream();
        let dropped = plan.wanted.drop_at.is_some();
        let chunks =
            self.store_chunks(&plan.wanted, stream, &plan.bytes, chunk_bytes, dropped).await;
        let answered = match chunks {
            Ok(content) => self.append_content(&plan, content).await,
            Err(answered) => answered,
        };
        if !matches!(answered, CallResult::Grown(_)) && !self.one_in(4) {
            // Chunks that an append has claimed after all are not dropped.
            self.tell(pg, Call::DropStream { bucket: BUCKET, stream });
        }
        answered
    }

    async fn append_content(&self, plan: &AppendPlan, content: Content) -> CallResult {
        let pg = self.pg_of(&plan.wanted.key);
        let open = self.begin_request();
        let call = AppendCall {
            request: open.request,
            bucket: BUCKET,
            epoch: EPOCH,
            key: plan.wanted.key.clone(),
            offset: plan.at,
            description: Description {
                size: plan.bytes.len() as u64,
                etag: plan.wanted.etag.clone(),
                checksum: None,
                attributes: Attributes::default(),
            },
            content,
            condition: plan.wanted.condition.clone(),
        };
        match self.op(pg, Call::Append(Box::new(call))).await {
            Ok(Answer::Appended(done)) => CallResult::Grown(done.made.offset),
            Ok(_) => CallResult::Unknown,
            Err(answered) => answered,
        }
    }
}
