//! Coalesces pieces of objects that were appended to, behind the appends. It reads some that follow each
//! other, stores their bytes as one chunk, and has the primary put that in their place (ADR 65).
//!
//! # Invariants
//!
//! 1. A proxy coalesces one window at a time, of a chunk's bytes at most: what it holds for that is bounded.
//! 2. What is stored for a window has the bytes of just that version's pieces, verified as any read is.
//! 3. Chunks of a window that was not coalesced are dropped, as those of a put without a parent.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::TryStreamExt;
use larder_objects::{ObjectError, ReadBody};
use larder_protocol::{Call, CoalesceCall, CoalescePlan, CoalesceRequest, Content};
use larder_types::limits::{CHUNK_BYTES_MAX, INLINE_BYTES_MAX};
use larder_types::{
    Appended, Attributes, Body, BucketId, BucketName, Condition, Epoch, ObjectKey, PgId, PiecesId,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::put::Pieces;
use super::role_access::RoleAccess;
use super::{Proxy, unavailable, unexpected};
use crate::limits::{
    COALESCE_AGAIN_MAX, COALESCE_AGAIN_MS, COALESCE_EVERY, COALESCE_KEYS_MAX, COALESCE_QUEUE_MAX,
    COALESCE_TURN_WINDOWS,
};
use crate::ticket::Settled;

/// Counters of a proxy's work on pieces, for metrics.
#[derive(Debug, Default)]
pub struct CoalesceCounters {
    /// Windows that it stored as one piece.
    pub windows: AtomicU64,
    /// Bytes of these.
    pub bytes: AtomicU64,
    /// Looks at objects that failed, or found no place in the queue.
    pub failed: AtomicU64,
}

/// An object whose pieces are to be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Object {
    bucket: BucketName,
    key: ObjectKey,
}

/// Objects whose pieces are to be looked at.
#[derive(Default)]
pub(super) struct Coalescing {
    state: Mutex<State>,
    wake: Notify,
    counters: CoalesceCounters,
}

#[derive(Default)]
struct State {
    queued: VecDeque<Object>,
    /// Those of which pieces were to stay, how often that was so, and when they are looked at again.
    held: Vec<(Object, u32, Instant)>,
    /// Where the next look at an object begins.
    settled: HashMap<(BucketId, ObjectKey), (PiecesId, u64)>,
}

impl Coalescing {
    fn queue(&self, object: Object) {
        let mut state = self.state.lock();
        if state.queued.contains(&object) {
            return;
        }
        if state.queued.len() == COALESCE_QUEUE_MAX {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.queued.push_back(object);
        self.wake.notify_one();
    }

    /// Looks at an object again some time after pieces of it were to stay, which they were so many times before.
    fn hold(&self, object: Object, times: u32) {
        let mut state = self.state.lock();
        let is_there = state.held.iter().any(|(held, ..)| *held == object);
        if is_there || times >= COALESCE_AGAIN_MAX {
            return;
        }
        if state.held.len() == COALESCE_QUEUE_MAX {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let due = Instant::now() + Duration::from_millis(COALESCE_AGAIN_MS << times);
        state.held.push((object, times + 1, due));
        self.wake.notify_one();
    }

    /// The next object, and how often pieces of it were to stay.
    async fn next(&self) -> (Object, u32) {
        loop {
            let due = {
                let mut state = self.state.lock();
                let next = (0..state.held.len()).min_by_key(|at| state.held[*at].2);
                match next.map(|at| (at, state.held[at].2)) {
                    Some((at, due)) if due <= Instant::now() => {
                        let (object, times, _) = state.held.swap_remove(at);
                        return (object, times);
                    }
                    next => {
                        if let Some(object) = state.queued.pop_front() {
                            return (object, 0);
                        }
                        next.map(|(_, due)| due)
                    }
                }
            };
            match due {
                Some(due) => {
                    // Until there is another object to coalesce, or until the time is up.
                    let _either = timeout_at(due, self.wake.notified()).await;
                }
                None => self.wake.notified().await,
            }
        }
    }

    fn settled(&self, of: &(BucketId, ObjectKey)) -> Option<(PiecesId, u64)> {
        self.state.lock().settled.get(of).copied()
    }

    fn settle(&self, of: &(BucketId, ObjectKey), at: Option<(PiecesId, u64)>) {
        let settled = &mut self.state.lock().settled;
        if at.is_some() && settled.len() >= COALESCE_KEYS_MAX && !settled.contains_key(of) {
            // Each object is looked at from its beginning once more.
            settled.clear();
        }
        match at {
            Some(at) => settled.insert(of.clone(), at),
            None => settled.remove(of),
        };
    }
}

impl<R: RoleAccess> Proxy<R> {
    /// An append was made: from time to time its object's pieces are looked at.
    pub(super) fn note_appended(&self, bucket: &BucketName, key: &ObjectKey, made: &Appended) {
        if made.etag.parts().is_multiple_of(COALESCE_EVERY) {
            self.coalescing.queue(Object { bucket: bucket.clone(), key: key.clone() });
        }
    }

    /// Another region's append was made, which may be several: its object is looked at a little later, once for many.
    pub(super) fn note_remote_append(&self, bucket: &BucketName, key: &ObjectKey) {
        self.coalescing.hold(Object { bucket: bucket.clone(), key: key.clone() }, 0);
    }

    /// Makes pieces of an object one, until no more are worth it or it is another's turn.
    async fn coalesce_object(&self, object: &Object) -> Result<CoalesceCheck, ObjectError> {
        let Object { bucket, key } = object;
        if !self.access.may_coalesce() {
            return Ok(CoalesceCheck::Settled);
        }
        self.may_change()?;
        let place = self.place(bucket, key)?;
        let (of, mut windows, mut last) = ((place.0, key.clone()), 0, None);
        loop {
            if windows == COALESCE_TURN_WINDOWS {
                return Ok(CoalesceCheck::HasMore);
            }
            let known = self.coalescing.settled(&of);
            let from = known.map_or(0, |(_, settled)| settled);
            let Some(plan) = self.plan(place, key, from).await? else {
                self.coalescing.settle(&of, None);
                return Ok(CoalesceCheck::Settled);
            };
            if known.is_some_and(|(pieces, _)| pieces != plan.pieces) {
                self.coalescing.settle(&of, None);
                continue;
            }
            self.coalescing.settle(&of, Some((plan.pieces, plan.settled)));
            match plan.window {
                // It was void, or is not applied yet.
                Some(window) if last.as_ref() == Some(&window) => return Ok(CoalesceCheck::Held),
                Some(window) => {
                    windows += 1;
                    last = Some(window.clone());
                    if !self.coalesce(place, (bucket, key), plan.pieces, window).await? {
                        return Ok(CoalesceCheck::Held);
                    }
                }
                None if plan.goes_on && plan.settled > from => {}
                None if plan.is_held => return Ok(CoalesceCheck::Held),
                None => return Ok(CoalesceCheck::Settled),
            }
        }
    }

    async fn plan(
        &self,
        (bucket, _, pg): (BucketId, Epoch, PgId),
        key: &ObjectKey,
        from: u64,
    ) -> Result<Option<CoalescePlan>, ObjectError> {
        let ask = CoalesceRequest { bucket, key: key.clone(), from };
        match self.access.submit(pg, Call::PlanCoalesce(Box::new(ask))).await? {
            Settled::Plan(plan) => Ok(plan.map(|plan| *plan)),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes the pieces of a window one; false if they are others by now.
    async fn coalesce(
        &self,
        place: (BucketId, Epoch, PgId),
        (bucket, key): (&BucketName, &ObjectKey),
        pieces: PiecesId,
        window: Range<u64>,
    ) -> Result<bool, ObjectError> {
        let size = window.end - window.start;
        if size > u64::from(CHUNK_BYTES_MAX) {
            return Err(unavailable("a primary would have more bytes coalesced than fit a chunk"));
        }
        let Some(bytes) = self.window_bytes(place.0, (bucket, key), pieces, &window).await? else {
            return Ok(false);
        };
        if bytes.len as u64 != size {
            return Err(unavailable(
                "pieces of an object have not the bytes that they should have",
            ));
        }
        let (attributes, condition) = (Attributes::default(), Condition::default());
        let wanted = self.wanted(place, (bucket, key), attributes, condition);
        let mut guard = None;
        let content = if size <= u64::from(INLINE_BYTES_MAX) {
            Content::Inline(bytes.into_bytes())
        } else {
            let chunks = self.new_chunks(&wanted);
            let stream = chunks.stream();
            guard = Some(chunks);
            self.store_part_of_stream(&wanted, stream, 0, bytes).await?;
            Content::Stream { stream, chunks: 1, chunk_bytes: CHUNK_BYTES_MAX }
        };
        let request = self.requests.begin();
        let call = CoalesceCall {
            request: request.id(),
            bucket: wanted.bucket,
            epoch: wanted.epoch,
            key: wanted.key,
            pieces,
            window,
            content,
        };
        match self.access.submit(wanted.pg, Call::Coalesce(Box::new(call))).await {
            Ok(Settled::Done(..)) => {}
            Ok(other) => return Err(unexpected(&other)),
            Err(ObjectError::NoSuchKey | ObjectError::NoSuchBucket) => return Ok(false),
            Err(error) => return Err(error),
        }
        if let Some(mut guard) = guard {
            // It has a parent now, or was dropped.
            guard.claimed();
        }
        self.coalescing.counters.windows.fetch_add(1, Ordering::Relaxed);
        self.coalescing.counters.bytes.fetch_add(size, Ordering::Relaxed);
        Ok(true)
    }

    /// The bytes of a window of a version; `None` if there is another version by now.
    async fn window_bytes(
        &self,
        id: BucketId,
        (bucket, key): (&BucketName, &ObjectKey),
        pieces: PiecesId,
        window: &Range<u64>,
    ) -> Result<Option<Pieces>, ObjectError> {
        let opened = self.open_here(bucket, key).await?;
        let has = |body: &Body| matches!(body, Body::Pieces { pieces: now, .. } if *now == pieces);
        if opened.bucket != id || !has(&opened.body) || opened.metax.size < window.end {
            return Ok(None);
        }
        let mut bytes = Pieces::default();
        match self.read_range(&opened, window.clone()).await? {
            ReadBody::Whole(whole) => bytes.push(whole),
            ReadBody::Stream(mut stream) => {
                while let Some(piece) = stream.try_next().await? {
                    bytes.push(piece);
                }
            }
        }
        Ok(Some(bytes))
    }
}

impl<R> Proxy<R> {
    /// Its counters of work on pieces of objects.
    #[must_use]
    pub fn coalesced(&self) -> &CoalesceCounters {
        &self.coalescing.counters
    }
}

/// The outcome of a look at an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CoalesceCheck {
    /// No more of its pieces are worth it now.
    Settled,
    /// Some may be, and are to stay for a while.
    Held,
    /// Some are, and it is another object's turn.
    HasMore,
}

/// Coalesces pieces of the objects to which a proxy appends. It does not end.
pub async fn coalesce_pieces<R: RoleAccess>(proxy: Arc<Proxy<R>>) {
    loop {
        let (object, times) = proxy.coalescing.next().await;
        match proxy.coalesce_object(&object).await {
            Ok(CoalesceCheck::Settled)
            | Err(ObjectError::NoSuchKey | ObjectError::NoSuchBucket) => {}
            Ok(CoalesceCheck::Held) => proxy.coalescing.hold(object, times),
            Ok(CoalesceCheck::HasMore) => proxy.coalescing.queue(object),
            Err(error) => {
                proxy.coalescing.counters.failed.fetch_add(1, Ordering::Relaxed);
                let (bucket, key) = (&object.bucket, object.key.as_str());
                tracing::debug!(%bucket, key, %error, "coalescing of pieces is postponed");
                proxy.coalescing.hold(object, times);
            }
        }
    }
}
