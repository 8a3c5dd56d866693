//! Background maintenance: repacking, removal and backups, one after the other in one task.
//!
//! # Invariants
//!
//! 1. No two of them run at once: what one of them counts on, another does not change under it.
//! 2. Work that fails is begun again at the next turn. A process that does not own the backend any
//!    more stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::backup::BackupWriter;
use crate::clock::now_ms;
use crate::error::PackError;
use crate::gc::removal::Remover;
use crate::gc::repack::Repacker;
use crate::limits::STRAYS_PERIOD;

/// The background work of one worker.
pub(crate) struct Maintenance {
    pub(crate) repacker: Repacker,
    pub(crate) remover: Remover,
    pub(crate) backups: BackupWriter,
    /// The time at which the backend was last looked through.
    pub(crate) looked: Option<Instant>,
}

/// The work that one turn did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Blobs that were repacked and retired.
    pub retired: u64,
    /// Blobs and objects removed from the backend.
    pub removed: u64,
    /// Backups of the index made.
    pub backups: u64,
}

impl Maintenance {
    /// Does what is due.
    pub(crate) async fn turn(&mut self, now_ms: u64) -> Result<MaintenanceReport, PackError> {
        // One that fails does not keep the others from their work.
        let retired = self.repacker.round().await;
        let removed = self.remove().await;
        let backup = self.backups.make_if_due(now_ms).await;
        Ok(MaintenanceReport { retired: retired?, removed: removed?, backups: u64::from(backup?) })
    }

    async fn remove(&mut self) -> Result<u64, PackError> {
        let mut removed = self.remover.blobs().await?;
        // Often enough that what is not needed goes soon after its time.
        let period = STRAYS_PERIOD.min(self.remover.grace / 2);
        if self.looked.is_none_or(|looked| looked.elapsed() >= period) {
            removed += self.remover.strays().await?;
            self.looked = Some(Instant::now());
        }
        Ok(removed)
    }
}

/// Turns until it is dropped or the backend belongs to another.
pub(crate) async fn run(maintenance: Arc<Mutex<Maintenance>>, period: Duration) {
    let mut turns = tokio::time::interval_at(Instant::now() + period, period);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let begun = Instant::now();
        match maintenance.lock().await.turn(now_ms()).await {
            Ok(kept) if kept != MaintenanceReport::default() => {
                let MaintenanceReport { retired, removed, backups } = kept;
                tracing::info!(retired, removed, backups, took = ?begun.elapsed(), "maintenance finished");
            }
            Ok(_) => {}
            Err(error) if error.is_superseded() => return,
            Err(error) => {
                tracing::warn!(%error, "background work was interrupted and will start again");
            }
        }
    }
}
