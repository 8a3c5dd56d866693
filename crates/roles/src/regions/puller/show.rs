//! Shows operators the machine's state: alarms, and how far this region is behind.

use larder_protocol::region::Name;
use larder_protocol::region::journal::VoidReason;
use larder_protocol::region::pull::{Alarm, Lag};
use larder_types::BucketName;

use super::super::taking;
use super::super::watch::ReplicationLag;
use super::Puller;
use crate::clock::now;
use crate::proxy::RegionAccess;

impl<R: RegionAccess> Puller<R> {
    pub(super) fn alarm(&self, alarm: &Alarm) {
        let watch = &self.shared.watch;
        match alarm {
            Alarm::ClockAhead { region, clock } => {
                tracing::debug!(%region, clock_ms = clock.ms(), "a change from another region is held back");
                watch.alarm(*region, taking::clock_ahead(*region));
            }
            Alarm::Contradiction { name, why } => {
                let what = format!("key {:?}: {why}. Neither is changed", name.key.as_str());
                watch.alarm(why.at.region, what);
            }
            Alarm::Unsound { region } => watch.unsound(*region),
            Alarm::Void { source, void } => {
                let (region, pg, why) = (source.region, source.pg, void.why);
                if why == VoidReason::Ahead {
                    let what = "it has lost changes that it had sent: was its directory restored from a backup? \
                                Then remove it, and let an empty store join in its place";
                    watch.lost(region, what);
                }
                tracing::debug!(%region, %pg, ?why, "a journal cannot be resumed");
            }
            Alarm::Resync { region, journals } => {
                watch.counters().comparisons.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                tracing::info!(%region, journals, "comparing all keys");
            }
        }
    }

    pub(super) fn report_lag(&self) {
        let Some(pull) = &self.pull else { return };
        let silent = pull.silent(now());
        let here_bytes = self.shared.partials.bytes();
        self.shared.watch.counters().set_parts_waiting(here_bytes.values().sum());
        let (oldest_names, buckets) = (pull.oldest(), self.shared.shown.buckets());
        let shown = |name: &Name| {
            let bucket =
                buckets.all().get(&name.bucket).map_or_else(String::new, BucketName::to_string);
            (name.clone(), bucket)
        };
        for (region, Lag { outcomes, bytes, oldest, is_comparing }) in pull.lags() {
            let oldest_ms = oldest.map(|oldest| oldest.ms());
            let oldest = oldest_names.get(&region).map(|(_, name)| shown(name));
            let here_bytes = here_bytes.get(&region).copied().unwrap_or_default();
            let bytes = bytes.saturating_sub(here_bytes);
            let behind =
                ReplicationLag { operations: outcomes, bytes, oldest_ms, oldest, is_comparing };
            self.shared.watch.set_behind(region, behind);
            // While much is behind a PG may wait for long before it is asked.
            let is_level = outcomes == 0 && !is_comparing;
            let silent = silent.get(&region).filter(|_| is_level);
            self.shared.watch.set_silent(region, silent.copied());
        }
    }
}
