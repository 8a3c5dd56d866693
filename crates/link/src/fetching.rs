//! The answer to a fetch, as it arrives.
//!
//! # Invariants
//!
//! 1. Entries are those that were asked for, in their order, each with as many bytes as it says: anything else is an
//!    error, an early end too.
//! 2. Nothing is read ahead: a reader that does not take what has arrived holds up the answering region.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use larder_protocol::region::Name;
use tokio::time::{Instant, timeout};

use crate::compression::Decompressor;
use crate::error::{Later, LinkError};
use crate::frame::Unframer;
use crate::limits::{PACE_BYTES_PER_S, STALL_MAX};
use crate::message::Fetched;
use crate::metrics::PeerMetrics;
use crate::pool::PooledConnection;

/// Entries of another region. After an error nothing more comes.
#[derive(Debug)]
pub struct FetchStream {
    /// Entries that were asked for and have not come.
    names: std::vec::IntoIter<(Name, bool)>,
    body: Incoming,
    frames: Unframer,
    /// Of an answer that is compressed.
    decompressor: Option<Decompressor>,
    held: Option<PooledConnection>,
    /// Time left to wait for bytes: it grows with what comes.
    max_wait: Duration,
    /// Bytes of entries that came, as they were before they were compressed.
    received_bytes: u64,
    metrics: Arc<PeerMetrics>,
}

impl FetchStream {
    pub(crate) fn new(
        names: Vec<(Name, bool)>,
        response: http::Response<Incoming>,
        held: PooledConnection,
        metrics: Arc<PeerMetrics>,
    ) -> Self {
        let (names, frames, held) = (names.into_iter(), Unframer::default(), Some(held));
        let coding = response.headers().get(header::CONTENT_ENCODING);
        let decompressor = coding.map(|_coding| Decompressor::default());
        let (body, max_wait) = (response.into_body(), STALL_MAX);
        Self { names, body, frames, decompressor, held, max_wait, received_bytes: 0, metrics }
    }

    /// Bytes of entries that have come.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Takes the next entry, and drops the rest of the one before. `None` when all have come.
    ///
    /// # Errors
    /// [`LinkError`], by what to do.
    pub async fn next(&mut self) -> Result<Option<Fetched>, LinkError> {
        let next = self.entry().await;
        self.counted(next)
    }

    /// Takes bytes of the last entry as they come; `None` when all have.
    ///
    /// # Errors
    /// [`LinkError`], by what to do.
    pub async fn bytes(&mut self) -> Result<Option<Bytes>, LinkError> {
        let bytes = self.content().await;
        self.counted(bytes)
    }

    fn counted<T>(&mut self, come: Result<T, LinkError>) -> Result<T, LinkError> {
        come.inspect_err(|_| {
            self.metrics.failed.add(1);
            self.held = None;
        })
    }

    async fn entry(&mut self) -> Result<Option<Fetched>, LinkError> {
        while self.content().await?.is_some() {}
        let Some((name, with_bytes)) = self.names.next() else { return self.end().await };
        loop {
            if let Some(fetched) = self.frames.entry().map_err(LinkError::Unsound)? {
                return match fetched.name == name && (with_bytes || fetched.bytes == 0) {
                    true => Ok(Some(fetched)),
                    false => Err(LinkError::Unsound("an entry that was not asked for".into())),
                };
            }
            if !self.read().await? {
                return Err(LinkError::broken("the answer ended early"));
            }
        }
    }

    async fn content(&mut self) -> Result<Option<Bytes>, LinkError> {
        while self.frames.left() > 0 {
            if let Some(bytes) = self.frames.bytes() {
                self.received_bytes += bytes.len() as u64;
                return Ok(Some(bytes));
            }
            if !self.read().await? {
                return Err(LinkError::broken("the answer ended early"));
            }
        }
        Ok(None)
    }

    /// Ends the fetch: the connection goes back to the pool once the stream has ended as well.
    async fn end(&mut self) -> Result<Option<Fetched>, LinkError> {
        while self.held.is_some() && self.frames.is_between() {
            if !self.read().await? {
                self.held.take().into_iter().for_each(PooledConnection::give_back);
            }
        }
        match self.frames.is_between() {
            true => Ok(None),
            false => Err(LinkError::Unsound("more entries than were asked for".into())),
        }
    }

    /// Waits for the next bytes; false at the end of the stream.
    async fn read(&mut self) -> Result<bool, LinkError> {
        loop {
            let Some(decompressor) = &mut self.decompressor else {
                let arrived = self.arrived().await?;
                let is_more = arrived.is_some();
                arrived.into_iter().for_each(|bytes| self.push(bytes));
                return Ok(is_more);
            };
            if let Some(piece) = decompressor.next().map_err(LinkError::Unsound)? {
                self.push(piece);
                return Ok(true);
            }
            let is_between = decompressor.is_between();
            match (self.arrived().await?, &mut self.decompressor) {
                (Some(bytes), Some(decompressor)) => decompressor.push(&bytes),
                (None, _) if !is_between => {
                    return Err(LinkError::broken("the answer ended early"));
                }
                (_, _) => return Ok(false),
            }
        }
    }

    /// Takes bytes as they were before they were compressed: these count for the pace.
    fn push(&mut self, bytes: Bytes) {
        let earned = Duration::from_secs_f64(bytes.len() as f64 / PACE_BYTES_PER_S);
        self.max_wait = STALL_MAX.min(self.max_wait + earned);
        self.frames.push(bytes);
    }

    /// Waits for the next bytes of the body; `None` at its end.
    async fn arrived(&mut self) -> Result<Option<Bytes>, LinkError> {
        let since = Instant::now();
        let frame = timeout(self.max_wait, self.body.frame()).await;
        self.max_wait = self.max_wait.saturating_sub(since.elapsed());
        match frame.map_err(|_elapsed| LinkError::from(Later::Late))? {
            None => Ok(None),
            Some(Err(error)) => Err(LinkError::broken(error)),
            Some(Ok(frame)) => {
                let bytes = frame.into_data().unwrap_or_default();
                self.metrics.bytes_told.add(bytes.len() as u64);
                Ok(Some(bytes))
            }
        }
    }
}
