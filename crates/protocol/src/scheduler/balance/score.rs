//! The best of some holders, by each policy that uses reports.

use larder_types::DiskId;

use super::holder_state::{HolderState, PARTS};
use super::{Balance, Policy};
use crate::limits::CHOICES_MAX;
use crate::scheduler::meter::SizeClass;

/// Number of recent reports whose queues decide Prequal's threshold.
const RECENT: usize = 16;
/// Rank of the threshold among the recent queues in ascending order: the quantile 2^-0.25 that the paper found best.
const COLD_OF_RECENT: usize = 13;
/// Service times below so many times the least of the holders count as the least one. Averages differ by chance, and askers
/// that follow chance form a herd. A disk above that is a slow one.
const SLOW_TIMES: u64 = 2;

/// Microseconds that a trip over the network costs, the work of both ends included: a far disk is chosen only if it would
/// finish so much earlier.
const TRIP_US: u128 = 200;

/// Queues of as many requests count as equal if their bytes differ by less than about this.
const BYTES_UNIT: u64 = 128 * 1024;

/// The queues of the last reports.
#[derive(Debug, Default)]
pub(super) struct Recent {
    queues: [u64; RECENT],
    pushed: usize,
}

impl Recent {
    pub(super) fn push(&mut self, queue: u64) {
        self.queues[self.pushed % RECENT] = queue;
        self.pushed += 1;
    }

    /// The longest queue of a cold holder.
    fn threshold(&self) -> u64 {
        let mut queues = self.queues;
        let filled = &mut queues[..self.pushed.min(RECENT)];
        filled.sort_unstable();
        let rank = (filled.len() * COLD_OF_RECENT / RECENT).min(filled.len().saturating_sub(1));
        filled.get(rank).copied().unwrap_or(0)
    }
}

/// The best of some of the holders, as bits by their places, and the least score of those with reports.
fn best_of(
    seen: &[HolderState],
    scores: &[u128; CHOICES_MAX],
    is_meant: impl Fn(usize) -> bool,
) -> (u16, u128) {
    let meant = || (0..seen.len()).filter(|at| is_meant(*at));
    // An unheard holder's last report counts here: that it may be as good as the best makes no worse holder as good.
    let best = meant().map(|at| scores[at]).min().unwrap_or(u128::MAX);
    let are_equal = meant().filter(|at| seen[*at].is_report_stale || scores[*at] == best);
    let bits = are_equal.fold(0, |bits, at| bits | 1 << at);
    // If all of them are unheard, their last reports do not count.
    let least = meant().filter(|at| !seen[*at].is_report_stale).map(|at| scores[at]).min();
    (bits, least.unwrap_or(0))
}

impl Balance {
    /// The best of the holders, as bits by their places; those at the places of `far` take a trip over the network.
    pub(super) fn best(
        &self,
        now_us: u64,
        (holders, far): (&[DiskId], u16),
        class: SizeClass,
    ) -> u16 {
        let seen = self.seen(now_us, holders, class);
        let seen = &seen[..holders.len()];
        let services = seen.iter().map(|seen| seen.service_us).filter(|service| *service > 0);
        let least_us = services.min().unwrap_or(0);
        let mut scores = [u128::MAX; CHOICES_MAX];
        for (score, (disk, seen)) in scores.iter_mut().zip(holders.iter().zip(seen)) {
            *score = match self.policy {
                Policy::C3 => self.c3(*disk, seen),
                Policy::Prequal => self.prequal(*disk, seen),
                Policy::EarliestFinish => self.finish_us(now_us, *disk, seen, least_us),
                // By requests, then by bytes if these differ by much.
                _ => u128::from(seen.queue / PARTS) << 64 | u128::from(seen.bytes / BYTES_UNIT),
            };
        }
        let is_near = |at: usize| far >> at & 1 == 0;
        let near = best_of(seen, &scores, is_near);
        if far == 0 {
            return near.0;
        }
        let others = best_of(seen, &scores, |at| !is_near(at));
        let trip_us = if self.policy == Policy::EarliestFinish { TRIP_US } else { 0 };
        if near.1 <= others.1.saturating_add(trip_us) { near.0 } else { others.0 }
    }

    /// The time after which the holder would finish. There are two estimates of its queue: the report, which has all
    /// askers' requests but is old, and this asker's own requests, a sample but a present one. Where the sample says more,
    /// the mean of both errs less than either.
    fn finish_us(&self, now_us: u64, disk: DiskId, seen: &HolderState, least_us: u64) -> u128 {
        let sampled = seen.outstanding.saturating_mul(u64::from(self.askers));
        let queue = seen.queue.max(u64::midpoint(seen.queue, sampled)) / PARTS;
        let wait_us = queue.saturating_mul(seen.each_us) / seen.lanes.max(1);
        let finish_us = wait_us.saturating_add(seen.service_us);
        let is_slow = seen.service_us >= least_us.saturating_mul(SLOW_TIMES);
        let levelled = match is_slow {
            true => u128::from(finish_us),
            false => {
                u128::from(finish_us) * u128::from(least_us) / u128::from(seen.service_us.max(1))
            }
        };
        levelled.max(u128::from(self.overdue_us(now_us, disk, finish_us)))
    }

    /// The time for which the disk has been silent beyond the expected one. It is expected to be silent for as long again.
    fn overdue_us(&self, now_us: u64, disk: DiskId, expected_us: u64) -> u64 {
        let owing = self.known.get(&disk).filter(|known| known.outstanding() > 0);
        owing.map_or(0, |known| {
            now_us.saturating_sub(known.silent_since_us).saturating_sub(expected_us)
        })
    }

    /// All terms in microseconds times [`PARTS`] cubed, and shifted above 0.
    fn c3(&self, disk: DiskId, seen: &HolderState) -> u128 {
        let Some(known) = self.known.get(&disk) else { return 0 };
        let own = u64::from(known.outstanding()).saturating_mul(u64::from(self.askers));
        let queue = u128::from(PARTS * (1 + own) + known.queue_average);
        let service = u128::from(seen.service_us);
        let cubed = queue.saturating_mul(queue).saturating_mul(queue).saturating_mul(service);
        let scale = u128::from(PARTS * PARTS * PARTS);
        // A response takes at least as long as the service, but for averages that lag: q is 1 at least, so the sum is not
        // below 0.
        (u128::from(known.response_us) * scale).saturating_add(cubed) - service * scale
    }

    /// Cold holders by latency, all of them before hot ones by queue.
    fn prequal(&self, disk: DiskId, seen: &HolderState) -> u128 {
        let queue = seen.queue / PARTS;
        if queue > self.queues.threshold() {
            return 1 << 64 | u128::from(queue);
        }
        u128::from(self.known.get(&disk).map_or(0, |known| known.response_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_a_quantile_of_the_last_reports() {
        let mut recent = Recent::default();
        assert_eq!(recent.threshold(), 0);
        recent.push(7);
        assert_eq!(recent.threshold(), 7);
        (0..16).for_each(|queue| recent.push(queue));
        assert_eq!(recent.threshold(), 13);
        (0..16).for_each(|_| recent.push(2));
        assert_eq!(recent.threshold(), 2, "older ones are forgotten");
    }
}
