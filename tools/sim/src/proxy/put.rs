//! One put of at most a chunk: METAX and data in parallel, committed when both are durable.

use bytes::Bytes;
use larder_protocol::limits::GRANT_MS_MAX;
use larder_protocol::{Answer, Call, Content, Description, PutCall};
use larder_types::checksum::{seed_of, sum_blocks};
use larder_types::limits::INLINE_BYTES_MAX;
use larder_types::{
    Attributes, Condition, ETag, Grant, Holders, LvId, ObjectKey, OpId, PgId, Target, View,
};

use super::{REPEAT_US, TIMEOUT_US, refused};
use crate::clock::MS;
use crate::event::{PgRequest, ProxyEvent};
use crate::history::CallResult;
use crate::index::{BUCKET, EPOCH};
use crate::proxy_context::{Line, ProxyContext};

/// Where a proxy drops a put half-way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropAt {
    /// As soon as it was sent.
    Sent,
    /// With the grant, the data on its way.
    Granted,
    /// Once all is durable, before the primary is told.
    Durable,
}

/// A put, without its bytes.
#[derive(Debug, Clone)]
pub(crate) struct PutRequest {
    pub(crate) key: ObjectKey,
    pub(crate) target: Target,
    pub(crate) etag: ETag,
    pub(crate) attributes: Attributes,
    pub(crate) condition: Condition,
    pub(crate) drop_at: Option<DropAt>,
}

/// The content to store.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    Bytes(Bytes),
    Stream { content: Content, size: u64 },
}

/// The number of times that a put is begun.
const TRIES_MAX: u32 = 3;

/// The end of a try that did not store the put.
enum Ended {
    CallResult(CallResult),
    /// It is revoked.
    Lost,
}

/// A put under way.
struct Flight<'a> {
    context: &'a ProxyContext,
    line: Line,
    pg: PgId,
    data: Option<Bytes>,
    slow_us: u64,
    end_us: u64,
    granted: Option<Grant>,
    lv: Option<LvId>,
    persisted: Option<Grant>,
    /// Replicas that must have the data; 0: all.
    required_copies: u8,
    replicas: Holders,
    holders: Holders,
    /// Replicas that have not taken the data.
    without: Holders,
    failed: bool,
}

impl ProxyContext {
    /// Gives a put up; some proxies are gone before they can say so.
    pub(crate) fn abandon(&self, pg: PgId, op: OpId) {
        if !self.misbehaves(20) {
            self.tell(pg, Call::Abandon { op, disk_full: false });
        }
    }

    /// Takes a put back; at times that is lost on the way.
    fn withdraw(&self, pg: PgId, op: OpId) {
        if !self.misbehaves(10) {
            self.tell(pg, Call::Withdraw { op, disk_full: false });
        }
    }

    /// Stores one put. Begins it again if it is revoked because its write failed. `Ok` is what a client may be told is done.
    pub(crate) async fn put(
        &self,
        wanted: PutRequest,
        payload: Payload,
    ) -> Result<OpId, CallResult> {
        for _ in 1..TRIES_MAX {
            match self.try_put(wanted.clone(), payload.clone()).await {
                Err(Ended::Lost) => {}
                Err(Ended::CallResult(answered)) => return Err(answered),
                Ok(op) => return Ok(op),
            }
        }
        self.try_put(wanted, payload).await.map_err(|ended| match ended {
            Ended::Lost => CallResult::Refused,
            Ended::CallResult(answered) => answered,
        })
    }

    async fn try_put(&self, wanted: PutRequest, payload: Payload) -> Result<OpId, Ended> {
        let pg = self.pg_of(&wanted.key);
        let open = self.begin_request();
        let (size, content, data) = match payload {
            Payload::Stream { content, size } => (size, content, None),
            Payload::Bytes(bytes) => {
                let inline = bytes.len() <= INLINE_BYTES_MAX as usize
                    && !matches!(wanted.target, Target::Chunk { .. });
                if inline {
                    (bytes.len() as u64, Content::Inline(bytes), None)
                } else {
                    let seed = seed_of(&open.request);
                    let sums = sum_blocks(seed, std::iter::once(&bytes[..]));
                    let len = bytes.len() as u32;
                    (u64::from(len), Content::Data { len, seed, sums }, Some(bytes))
                }
            }
        };
        let call = PutCall {
            request: open.request,
            bucket: BUCKET,
            epoch: EPOCH,
            key: wanted.key,
            target: wanted.target,
            description: Description {
                size,
                etag: wanted.etag,
                checksum: None,
                attributes: wanted.attributes,
            },
            content,
            condition: wanted.condition,
            // As write policies of buckets are.
            required_copies: if data.is_some() && self.one_in(3) {
                1 + self.below(2) as u8
            } else {
                0
            },
        };
        let required_copies = call.required_copies;
        // Some writers are slow, and some of them patient: their data arrives about when the primary
        // ends their grant for its age.
        let (slow_us, patience_us) = if self.is_stubborn() {
            (GRANT_MS_MAX * MS - 15_000 * MS, 3 * GRANT_MS_MAX * MS)
        } else if self.misbehaves(60) {
            (50 * MS + self.below(5_000 * MS), TIMEOUT_US)
        } else {
            (0, TIMEOUT_US)
        };
        let mut flight = Flight {
            context: self,
            line: self.open_line(),
            pg,
            data,
            slow_us,
            end_us: self.now_us() + patience_us,
            granted: None,
            lv: None,
            persisted: None,
            required_copies,
            replicas: Holders::default(),
            holders: Holders::default(),
            without: Holders::default(),
            failed: false,
        };
        let ended = flight.run(Call::Put(Box::new(call)), wanted.drop_at).await;
        ended.map_err(|answered| match answered {
            CallResult::Refused if flight.failed => Ended::Lost,
            answered => Ended::CallResult(answered),
        })
    }
}

impl Flight<'_> {
    async fn run(&mut self, call: Call, drop_at: Option<DropAt>) -> Result<OpId, CallResult> {
        let end_us = self.end_us;
        let (mut repeat_us, mut asked) = (0, View(0));
        loop {
            let (now_us, had_failed) = (self.context.now_us(), self.failed);
            let asks = (self.persisted.is_none() || self.failed) && now_us >= repeat_us;
            if now_us >= end_us {
                self.abandon();
                return Err(CallResult::Unknown);
            }
            if asks {
                asked = asked.max(self.context.view(self.pg));
                if self.failed {
                    self.withdraw();
                }
                self.line.ask(self.pg, PgRequest::Call(call.clone()));
                repeat_us = now_us + if self.failed { REPEAT_US / 10 } else { REPEAT_US };
                if drop_at == Some(DropAt::Sent) {
                    return Err(CallResult::Unknown);
                }
            }
            let waits = self.persisted.is_some() && !self.failed;
            let until_us = if waits { end_us } else { repeat_us.min(end_us) };
            match self.line.hear(until_us).await {
                None => self.context.refresh(self.pg),
                // A view in which it was asked later may have done it after all.
                Some(ProxyEvent::Answer(Answer::Refused(_), view)) if view < asked => {}
                Some(ProxyEvent::Answer(answer, _)) => {
                    if let Some(result) = self.answered(answer) {
                        return result;
                    }
                }
                Some(ProxyEvent::Written { replica, grant, good }) => {
                    if good && Some(grant) == self.granted {
                        self.holders = self.holders.with(replica);
                    } else if !good {
                        self.without = self.without.with(replica);
                    }
                    self.failed |= self.replicas.without(self.without).count() < self.needed();
                }
                Some(_) => {}
            }
            if drop_at == Some(DropAt::Granted) && self.granted.is_some() {
                self.abandon();
                return Err(CallResult::Unknown);
            }
            if self.failed && !had_failed {
                // It is not committed by this proxy any more: its primary says what comes of it.
                self.withdraw();
                repeat_us = self.context.now_us() + MS;
            }
            if let Some(op) = self.committed(drop_at == Some(DropAt::Durable)) {
                return op;
            }
        }
    }

    /// Takes an answer of the primary; `Some` if the put is over.
    fn answered(&mut self, answer: Answer) -> Option<Result<OpId, CallResult>> {
        match answer {
            Answer::Granted { grant, lv, extents, replicas, as_of, .. }
                if self.granted.is_none_or(|known| known.op < grant.op) =>
            {
                // A try that another view knew nothing of is done again.
                let data = self.data.clone()?;
                self.failed = false;
                (self.granted, self.lv) = (Some(grant), Some(lv));
                (self.holders, self.without) = (Holders::default(), Holders::default());
                self.replicas = replicas;
                let place = (grant, lv, &extents[..]);
                // Where not all are needed, some may be out of this proxy's reach.
                let reached = if self.required_copies > 0 && self.context.one_in(2) {
                    replicas.iter().take(self.needed()).fold(Holders::default(), Holders::with)
                } else {
                    replicas
                };
                self.failed |= !self.line.write(place, (reached, as_of), &data, self.slow_us);
                None
            }
            Answer::Persisted { grant } => {
                self.persisted = Some(grant);
                None
            }
            Answer::Done { op, .. } => Some(Ok(op)),
            Answer::Refused(larder_protocol::Refusal::NotPrimary) => {
                self.context.refresh(self.pg);
                None
            }
            Answer::Refused(refusal) => {
                if refusal == larder_protocol::Refusal::Full {
                    self.context.note_full();
                }
                Some(Err(refused(refusal)))
            }
            _ => None,
        }
    }

    /// With METAX persisted and all data of the same grant durable the put is committed.
    fn committed(&self, dropped: bool) -> Option<Result<OpId, CallResult>> {
        let grant = self.persisted.filter(|_| !self.failed)?;
        if self.granted != Some(grant) || self.holders.count() < self.needed() {
            return None;
        }
        if dropped {
            self.abandon();
            return Some(Err(CallResult::Unknown));
        }
        let (op, attempt, holders) = (grant.op, grant.attempt, self.holders);
        if self.required_copies > 0 && self.context.misbehaves(4) {
            // It has answered its client, waits for the last copies, and is never heard of again.
            if self.context.one_in(2) {
                self.abandon();
            }
            self.lose_only_holder();
            return Some(Ok(op));
        }
        self.context.tell(self.pg, Call::Commit { op, attempt, holders });
        Some(Ok(op))
    }

    /// Where one replica alone has what a client was told of, its server is gone at times before anybody looks.
    fn lose_only_holder(&self) {
        let (Some(lv), [only]) = (self.lv, &self.holders.iter().collect::<Vec<_>>()[..]) else {
            return;
        };
        if self.replicas.count() > 1 && self.context.one_in(4) {
            self.line.lose(lv, *only);
        }
    }

    /// The number of replicas that must have the data.
    fn needed(&self) -> usize {
        if self.required_copies == 0 {
            self.replicas.count()
        } else {
            usize::from(self.required_copies)
        }
    }

    /// No client was told of the put, and none will be.
    fn withdraw(&self) {
        if let Some(grant) = self.granted {
            self.context.withdraw(self.pg, grant.op);
        }
    }

    fn abandon(&self) {
        if let Some(grant) = self.granted {
            self.context.abandon(self.pg, grant.op);
        }
    }
}
