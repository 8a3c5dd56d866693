//! Bounds the time that an answer waits for its client.
//!
//! # Invariants
//!
//! 1. A client that takes nothing for [`ANSWER_WAIT_MAX`] is given up, and so is one that takes less than
//!    [`ANSWER_RATE_MIN`] in the long run. One that takes that much is not, whatever it was sent before.
//! 2. Time in which there is nothing to send does not count.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::limits::{ANSWER_RATE_MIN, ANSWER_WAIT_MAX};

/// A timer that is set at its first use, and again only when it has expired or would fire too late: moving its deadline
/// on costs nothing.
#[derive(Default)]
pub(crate) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Ready once the deadline has passed.
    pub(crate) fn poll_at(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if deadline < timer.deadline() {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// The time that a connection still waits for its client to take something. Waiting spends it, and each byte that the
/// client takes earns some of it back.
pub(crate) struct SendDeadline {
    left: Duration,
    /// Since when the client takes nothing.
    waiting: Option<Instant>,
    alarm: Alarm,
}

impl Default for SendDeadline {
    fn default() -> Self {
        Self { left: ANSWER_WAIT_MAX, waiting: None, alarm: Alarm::default() }
    }
}

impl SendDeadline {
    /// Notes that the client took something.
    pub(crate) fn took(&mut self, bytes: usize) {
        if let Some(since) = self.waiting.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        let earned = Duration::from_micros(bytes as u64 * 1_000_000 / ANSWER_RATE_MIN);
        self.left = (self.left + earned).min(ANSWER_WAIT_MAX);
    }

    /// Waits for the client; ready when it is too late.
    pub(crate) fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.waiting.get_or_insert_with(Instant::now);
        self.alarm.poll_at(since + self.left, cx)
    }
}
