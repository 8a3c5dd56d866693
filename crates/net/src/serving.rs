//! The listener's end of a connection: hands requests to their handler and sends its answers.
//!
//! # Invariants
//!
//! 1. Requests beyond those that may be under way (`reply_queue.rs`) are answered `Busy` at once.
//! 2. While [`ANSWER_BYTES_MAX`] of answers wait to be written nothing more is read, so a caller that reads no answers
//!    fills no memory. A connection that takes no bytes for [`SILENCE_MAX`] is closed.

use std::sync::Arc;
use std::task::Waker;

use larder_types::ServerId;
use tokio::time::Instant;

use crate::connection::{Broken, End, LastSeen, PingSchedule};
use crate::frame::{Frame, FrameError, Header, Kind, Outgoing, Status};
use crate::limits::{ANSWER_BYTES_MAX, PROTOCOL_CANCELS, SILENCE_MAX};
use crate::metrics::Metrics;
use crate::reply_queue::{Reply, ReplyQueue};
use crate::service::{PeerIdentity, Serve};
use crate::transmit::Batch;

/// One connection that was accepted.
pub(crate) struct Serving {
    from: PeerIdentity,
    /// The server whose removal from the cluster ends the connection.
    ends_with: Option<ServerId>,
    service: Arc<dyn Serve>,
    reply_queue: Arc<ReplyQueue>,
    version: u8,
    metrics: Arc<Metrics>,
    ping_schedule: PingSchedule,
    not_understood: bool,
}

impl Serving {
    pub(crate) fn new(
        (from, ends_with): (PeerIdentity, Option<ServerId>),
        service: Arc<dyn Serve>,
        (metrics, ping_schedule): (Arc<Metrics>, PingSchedule),
    ) -> Self {
        let version = from.version;
        let reply_queue = ReplyQueue::new(metrics.clone());
        Self {
            from,
            ends_with,
            service,
            reply_queue,
            version,
            metrics,
            ping_schedule,
            not_understood: false,
        }
    }

    /// The server whose removal from the cluster ends the connection.
    pub(crate) fn ends_with(&self) -> Option<ServerId> {
        self.ends_with
    }

    fn request(&self, frame: Frame, batch: &mut Batch) {
        let (number, held) = (frame.header.number, frame.header.payload_len as usize);
        if self.reply_queue.admit(held) {
            self.metrics.handling.add(1);
            let reply = Reply::new(self.reply_queue.clone(), (number, self.version), held);
            self.service.request(&self.from, frame, reply);
        } else {
            self.metrics.busy.add(1);
            let mut busy = Outgoing::bare(Kind::Answer, Status::Busy).numbered(number);
            busy.address(self.version);
            batch.push(busy);
        }
    }

    fn message(&mut self, frame: Frame) {
        if self.service.message(&self.from, frame).is_err() {
            self.metrics.dropped.add(1);
            if !std::mem::replace(&mut self.not_understood, true) {
                tracing::warn!(from = %self.from, "a message cannot be decoded: do all servers run one release?");
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.reply_queue.end();
    }
}

impl End for Serving {
    fn awake(&mut self) -> Result<(), Broken> {
        self.reply_queue.awake();
        Ok(())
    }

    fn receive(&mut self, frame: Frame, batch: &mut Batch) -> Result<(), Broken> {
        match frame.header.kind {
            Kind::Request => self.request(frame, batch),
            Kind::Message => self.message(frame),
            Kind::Ping => {
                let mut pong =
                    Outgoing::bare(Kind::Pong, Status::Done).numbered(frame.header.number);
                pong.address(self.version);
                batch.push_first(pong);
            }
            Kind::Cancel if self.version >= PROTOCOL_CANCELS => {
                self.reply_queue.cancel(frame.header.number);
            }
            Kind::Cancel | Kind::Hello | Kind::Answer | Kind::Pong | Kind::Goodbye => {
                return Err(Broken::Frame(FrameError::NotDue));
            }
        }
        Ok(())
    }

    fn settle(&mut self) {}

    fn accepts(&self, batch: &Batch) -> bool {
        batch.bytes() + self.reply_queue.bytes() < ANSWER_BYTES_MAX
    }

    fn fill(&mut self, batch: &mut Batch, waker: &Waker) {
        self.reply_queue.fill(batch, self.version, waker);
    }

    fn sent(&mut self, _header: &Header) {}

    fn due(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, now: Instant, seen: LastSeen, batch: &mut Batch) -> Result<Instant, Broken> {
        if seen.is_silent(now) {
            return Err(Broken::Silent);
        }
        if !batch.is_done() && now - seen.wrote >= SILENCE_MAX {
            return Err(Broken::Stalled);
        }
        Ok(self.ping_schedule.next(now))
    }
}

#[cfg(test)]
mod tests;
