//! The reason why a try came to nothing, and when the next is due.

use std::time::Duration;

use larder_net::CallError;
use larder_objects::ObjectError;

use super::super::unavailable;
use crate::limits::{BUSY_TRIES_MAX, PAUSE_MS_MAX, PAUSE_MS_MIN};

/// The reason why a try came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TryError {
    /// The map names no primary, or no address for it.
    NoPrimary,
    /// The server is not the primary in that view, or not yet.
    NotPrimary,
    /// The PG came into another view meanwhile.
    ViewPassed,
    /// There was no answer: it may have been executed or not.
    NoAnswer(String),
    /// Too much is under way; not executed.
    Busy,
    /// It will never be executed in this form.
    Never(String),
}

impl From<CallError> for TryError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Busy(_) => Self::Busy,
            error @ CallError::Rejected(_) => Self::Never(error.to_string()),
            // A server that must not be spoken with may be replaced by one that may.
            error @ (CallError::NotSent(_) | CallError::Unknown(_) | CallError::Denied(_)) => {
                Self::NoAnswer(error.to_string())
            }
        }
    }
}

impl TryError {
    /// Returns true if what was asked may have been done all the same.
    pub(super) fn may_be_done(&self) -> bool {
        matches!(self, Self::NoAnswer(_) | Self::ViewPassed)
    }

    /// Returns true if another primary, or the same one later, may answer.
    pub(super) fn may_pass(&self) -> bool {
        !matches!(self, Self::Busy | Self::Never(_))
    }

    /// The error that the client is told when this was the last try.
    pub(super) fn final_error(self) -> ObjectError {
        match self {
            Self::Busy => ObjectError::SlowDown,
            Self::NoPrimary | Self::NotPrimary | Self::ViewPassed => {
                unavailable("the key's placement group has no primary")
            }
            Self::NoAnswer(reason) => ObjectError::Unavailable {
                reason: format!("a meta server does not answer: {reason}"),
            },
            Self::Never(reason) => ObjectError::Unavailable { reason },
        }
    }
}

/// The tries of one request.
#[derive(Debug, Default)]
pub(super) struct RetryState {
    count: u32,
    busy: u32,
}

impl RetryState {
    /// The time to pause before the next; `None` if there must be none.
    pub(super) fn pause_after(&mut self, trouble: &TryError) -> Option<Duration> {
        self.count += 1;
        match trouble {
            TryError::Never(_) => return None,
            TryError::Busy => {
                self.busy += 1;
                if self.busy >= BUSY_TRIES_MAX {
                    return None;
                }
            }
            _ => {}
        }
        Some(pause(self.count))
    }

    /// A newer map ended the pause: nothing was waited for in vain. A failover makes one map after the other, and the
    /// pauses must not be at their longest when the last of them comes.
    pub(super) fn cut_short(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// Another primary, or another view of it, is asked: what was waited for the one before says nothing of it.
    pub(super) fn restart(&mut self) {
        self.count = 0;
    }
}

/// The pause before a try, after so many.
pub(super) fn pause(tries: u32) -> Duration {
    let doublings = tries.saturating_sub(1).min(16);
    Duration::from_millis((PAUSE_MS_MIN << doublings).min(PAUSE_MS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let mut tries = RetryState::default();
        let pauses: Vec<u64> = (0..40)
            .map(|_| tries.pause_after(&TryError::NotPrimary).unwrap().as_millis() as u64)
            .collect();
        assert_eq!(pauses[..4], [10, 20, 40, 80]);
        assert_eq!(pauses[39], PAUSE_MS_MAX);
    }

    #[test]
    fn pauses_that_a_newer_map_ends_do_not_grow() {
        let mut tries = RetryState::default();
        let next =
            |tries: &mut RetryState| tries.pause_after(&TryError::ViewPassed).unwrap().as_millis();
        for _ in 0..100 {
            assert_eq!(next(&mut tries), u128::from(PAUSE_MS_MIN));
            tries.cut_short();
        }
        assert_eq!([next(&mut tries), next(&mut tries), next(&mut tries)], [10, 20, 40]);
        tries.restart();
        assert_eq!(next(&mut tries), 10, "another view begins soon");
    }

    #[test]
    fn a_busy_server_is_retried_a_few_times() {
        let mut tries = RetryState::default();
        for _ in 1..BUSY_TRIES_MAX {
            assert!(tries.pause_after(&TryError::Busy).is_some());
        }
        assert_eq!(tries.pause_after(&TryError::Busy), None);
        assert_eq!(TryError::Busy.final_error(), ObjectError::SlowDown);
    }

    #[test]
    fn what_is_not_understood_is_not_asked_again() {
        let trouble = TryError::from(CallError::Rejected(larder_net::Rejected::NotUnderstood));
        assert_eq!(RetryState::default().pause_after(&trouble), None);
    }
}
