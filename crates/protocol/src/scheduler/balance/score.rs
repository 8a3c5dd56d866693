//! The best of some holders, by each policy that goes by what was heard.

use larder_types::DiskId;

use super::seen::{PARTS, Seen};
use super::{Balance, Policy};
use crate::limits::CHOICES_MAX;
use crate::scheduler::meter::SizeClass;

/// Reported queues that Prequal's threshold is taken of.
const RECENT: usize = 16;
/// The threshold is the value that so many of these do not exceed: the quantile 2^-0.25 that the paper found best.
const COLD_OF_RECENT: usize = 13;
/// Service times below so many times the least of the holders' count as that: averages differ by chance, and who follows
/// chance runs with all others. What is above is a slow disk.
const SLOW_TIMES: u64 = 2;

/// Microseconds that a trip over the network takes, with what it costs both ends: a far disk has to be done so much earlier.
const TRIP_US: u128 = 200;

/// Bytes below which queues of as many requests do not differ.
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

    /// Requests from which on a queue is among the longest.
    fn threshold(&self) -> u64 {
        let mut queues = self.queues;
        let filled = &mut queues[..self.pushed.min(RECENT)];
        filled.sort_unstable();
        let rank = (filled.len() * COLD_OF_RECENT / RECENT).min(filled.len().saturating_sub(1));
        filled.get(rank).copied().unwrap_or(0)
    }
}

/// The best of some of the holders, as bits by their places, and how good they are.
fn best_of(
    seen: &[Seen],
    scores: &[u128; CHOICES_MAX],
    is_meant: impl Fn(usize) -> bool,
) -> (u16, u128) {
    let meant = || (0..seen.len()).filter(|at| is_meant(*at));
    // Unheard ones by what they last said: that they may be as good makes no bad one as good as they.
    let best = meant().map(|at| scores[at]).min().unwrap_or(u128::MAX);
    let are_equal = meant().filter(|at| seen[*at].is_unheard || scores[*at] == best);
    let bits = are_equal.fold(0, |bits, at| bits | 1 << at);
    // If all of them are unheard, what they last said says nothing.
    let heard = meant().filter(|at| !seen[*at].is_unheard).map(|at| scores[at]).min();
    (bits, heard.unwrap_or(0))
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
                // By requests, and of as many by bytes, if they differ by much.
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

    /// Returns the time at which the holder would be done. Its queue has two witnesses: what was reported, of all askers
    /// but old, and what this one has there itself, a sample but of now. Where the sample says more, the mean of both errs
    /// less than either.
    fn finish_us(&self, now_us: u64, disk: DiskId, seen: &Seen, least_us: u64) -> u128 {
        let sampled = seen.owed.saturating_mul(u64::from(self.askers));
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

    /// For how long the disk has been silent beyond what was to be expected: it will be for as long again.
    fn overdue_us(&self, now_us: u64, disk: DiskId, expected_us: u64) -> u64 {
        let owing = self.known.get(&disk).filter(|known| known.owes() > 0);
        owing.map_or(0, |known| {
            now_us.saturating_sub(known.silent_since_us).saturating_sub(expected_us)
        })
    }

    /// All terms in microseconds times [`PARTS`] cubed, and shifted above 0.
    fn c3(&self, disk: DiskId, seen: &Seen) -> u128 {
        let Some(known) = self.known.get(&disk) else { return 0 };
        let own = u64::from(known.owes()).saturating_mul(u64::from(self.askers));
        let queue = u128::from(PARTS * (1 + own) + known.queue_average);
        let service = u128::from(seen.service_us);
        let cubed = queue.saturating_mul(queue).saturating_mul(queue).saturating_mul(service);
        let scale = u128::from(PARTS * PARTS * PARTS);
        // A response takes at least as long as the service, but for averages that lag: q is 1 at least, so the sum is not
        // below 0.
        (u128::from(known.response_us) * scale).saturating_add(cubed) - service * scale
    }

    /// Cold ones by their latency, all before hot ones by their queue.
    fn prequal(&self, disk: DiskId, seen: &Seen) -> u128 {
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
