//! The managers that are asked for a newer map, in turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_types::ServerId;
use tokio::time::Instant;

use super::fetch::Progress;
use crate::limits::{MANAGER_AVOIDED_MS, MANAGERS_PAUSE_MS_MAX, MANAGERS_PAUSE_MS_MIN};

/// A question for a newer map.
#[derive(Debug, Clone)]
pub(super) struct MapQuery {
    pub(super) question: u64,
    pub(super) manager: ServerId,
    pub(super) progress: Arc<Progress>,
}

/// Whom to ask next for a newer map.
pub(super) struct MapSources {
    avoided: BTreeMap<ServerId, Instant>,
    turn: usize,
    failures: usize,
    pause: Duration,
    /// A manager has answered since all of them failed last: the next such failure is logged at `WARN`.
    is_answered: bool,
}

impl MapSources {
    pub(super) fn new() -> Self {
        let pause = Duration::from_millis(MANAGERS_PAUSE_MS_MIN);
        Self { avoided: BTreeMap::new(), turn: 0, failures: 0, pause, is_answered: false }
    }

    /// The manager to ask; `None` if all are being asked.
    pub(super) fn next(
        &mut self,
        all: &[ServerId],
        asked: &BTreeMap<ServerId, MapQuery>,
    ) -> Option<ServerId> {
        let now = Instant::now();
        self.avoided.retain(|_, until| *until > now);
        let in_turn = (0..all.len()).map(|at| all[(self.turn + at) % all.len()]);
        let free = in_turn.filter(|it| !asked.contains_key(it));
        free.clone().find(|it| !self.avoided.contains_key(it)).or(free.min())
    }

    /// One is late: others are asked for a while.
    pub(super) fn late(&mut self, manager: ServerId) {
        self.avoided.insert(manager, Instant::now() + Duration::from_millis(MANAGER_AVOIDED_MS));
        self.turn = self.turn.wrapping_add(1);
    }

    /// One that has news is asked again, and else another.
    pub(super) fn answered(&mut self, has_updates: bool) {
        if self.pause > Duration::from_millis(MANAGERS_PAUSE_MS_MIN) {
            tracing::info!("a manager responded");
        }
        (self.failures, self.is_answered) = (0, true);
        self.pause = Duration::from_millis(MANAGERS_PAUSE_MS_MIN);
        if !has_updates {
            self.turn = self.turn.wrapping_add(1);
        }
    }

    /// One did not answer, or none is known; of so many, how long to wait if it was the last.
    pub(super) fn failed(&mut self, manager: Option<ServerId>, of: usize) -> Option<Duration> {
        manager.into_iter().for_each(|manager| self.late(manager));
        self.failures += 1;
        if self.failures < of {
            return None;
        }
        match std::mem::take(&mut self.is_answered) {
            true => tracing::warn!(managers = of, "no manager responds"),
            // No manager has answered since the start, or since the last warning.
            false => tracing::debug!(managers = of, "no manager responds"),
        }
        self.avoided.clear();
        self.failures = 0;
        let pause = self.pause;
        self.pause = longer(pause);
        Some(pause)
    }
}

/// The pause after this one, while nobody answers.
pub(super) fn longer(pause: Duration) -> Duration {
    (pause * 2).min(Duration::from_millis(MANAGERS_PAUSE_MS_MAX))
}
