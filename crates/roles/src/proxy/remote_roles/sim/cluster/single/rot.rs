//! Bits that rot while the store stands still. An inspection that finds nothing is right: then everything is read as it was put.
//! One that finds something promises nothing but that no wrong bytes are shown.

use std::sync::atomic::Ordering;

use super::super::places::Ends;
use super::Simulation;
use crate::directory::DATA_FILE;
use crate::manager::MANAGER_DIR;
use crate::meta::LOG_DIR;

/// Files in which bits rot, mostly those with data.
const FILES: [&str; 5] = [DATA_FILE, DATA_FILE, DATA_FILE, LOG_DIR, MANAGER_DIR];
/// Bits that rot at once.
const BITS_MAX: u64 = 8;

impl Simulation {
    /// Has bits rot in a store that was at rest and stands still, and looks at what is left.
    pub(super) async fn rot(&self) {
        let files = FILES[self.sim_rng.below(FILES.len() as u64) as usize];
        if !self.node.rot(files, 1 + self.sim_rng.below(BITS_MAX)) {
            return;
        }
        let Some(report) = self.node.inspect() else {
            return self.findings.violated("a store that has run has no map".to_owned());
        };
        let is_found = !report.is_sound();
        self.coverage.lock().rotten += u64::from(is_found);
        self.findings.was_corrupt.store(is_found, Ordering::Relaxed);
        if !is_found {
            return self.read_all_as_before().await;
        }
        // It may refuse to begin, or not be able to.
        self.node.may_fail();
        let Some(running) = self.node.begin(false).await else { return };
        self.shapes.judge_rotten(&**running.proxy()).await;
        self.end(running, Ends::Killed).await;
    }

    async fn read_all_as_before(&self) {
        let Some(running) = self.node.begin(false).await else { return };
        self.quiesce(&running).await;
        self.client(&running).read_all().await;
        self.shapes.judge(&**running.proxy()).await;
        self.end(running, Ends::Stopped).await;
    }
}
