//! The state of some holders now, by their reports.

use larder_types::DiskId;

use super::{Balance, HolderReport};
use crate::limits::{CHOICES_MAX, STALE_US_MAX};
use crate::scheduler::meter::{Load, Report, SIZE_CLASSES, SizeClass};

/// The weight of a new report.
const WHOLE: u64 = 1 << 16;
/// Queues are counted in parts of requests.
pub(super) const PARTS: u64 = 16;

/// A holder as the asker sees it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HolderState {
    /// It has no report, or an expired one, and owes no answer.
    pub(super) is_report_stale: bool,
    /// Requests at the disk, in [`PARTS`].
    pub(super) queue: u64,
    /// Bytes of these requests.
    pub(super) bytes: u64,
    /// Requests of these that this asker sent, in [`PARTS`].
    pub(super) outstanding: u64,
    /// Expected microseconds of each request in the queue, on average.
    pub(super) each_us: u64,
    /// The number of requests that it serves at once, 1 at least.
    pub(super) lanes: u64,
    /// Expected microseconds of the request to be sent.
    pub(super) service_us: u64,
}

/// Requests of a report.
pub(super) fn requests(report: &Report) -> u64 {
    report.waiting.iter().map(|load| u64::from(load.requests)).sum()
}

/// The service time of a class in a report, or that of the nearest class that has one.
fn service_us(report: &Report, class: usize) -> u64 {
    let by_distance =
        (0..SIZE_CLASSES).flat_map(|far| [class.checked_sub(far), class.checked_add(far)]);
    let known = by_distance.flatten().filter_map(|class| report.service_us.get(class));
    u64::from(known.copied().find(|service| *service > 0).unwrap_or(0))
}

/// The sum of the service times of these requests.
fn work_us(report: &Report, waiting: &[Load; SIZE_CLASSES]) -> u64 {
    let of_class = |(class, load): (usize, &Load)| {
        u64::from(load.requests).saturating_mul(service_us(report, class))
    };
    waiting.iter().enumerate().map(of_class).fold(0, u64::saturating_add)
}

fn lanes(report: &Report) -> u64 {
    u64::from(report.lanes.max(1))
}

/// The time in which the disk would finish the queue in its report and one more request.
pub(super) fn finish_us(report: &Report) -> u64 {
    (work_us(report, &report.waiting) / lanes(report)).saturating_add(service_us(report, 0)).max(1)
}

/// The weight of a report of this age: half after each time in which its queue would be served.
fn weight(age_us: u64, half_us: u64) -> u64 {
    let halvings = age_us / half_us;
    if halvings >= 16 {
        return 0;
    }
    let whole = WHOLE >> halvings;
    // Linear between two halvings.
    whole - whole / 2 * (age_us % half_us) / half_us
}

/// The queue of a report, and its weight by now.
#[derive(Debug, Clone, Copy, Default)]
struct ReportedQueue {
    queue: u64,
    weight: u64,
}

impl ReportedQueue {
    fn of(known: &HolderReport, now_us: u64) -> Self {
        let Some(report) = &known.report else { return Self::default() };
        let age_us = now_us.saturating_sub(known.heard_us);
        let half_us = finish_us(report).min(STALE_US_MAX);
        Self { queue: PARTS * requests(report), weight: weight(age_us, half_us) }
    }
}

impl Balance {
    /// The state of each holder, of which there are at most [`CHOICES_MAX`].
    pub(super) fn seen(
        &self,
        now_us: u64,
        holders: &[DiskId],
        class: SizeClass,
    ) -> [HolderState; CHOICES_MAX] {
        let mut queues = [ReportedQueue::default(); CHOICES_MAX];
        for (queue, disk) in queues.iter_mut().zip(holders) {
            *queue = self
                .known
                .get(disk)
                .map_or_else(ReportedQueue::default, |it| ReportedQueue::of(it, now_us));
        }
        let weights: u64 = queues.iter().map(|it| it.weight).sum();
        let weighted: u64 = queues.iter().map(|it| it.queue.saturating_mul(it.weight)).sum();
        let mean = weighted.checked_div(weights).unwrap_or(0);
        let mut seen = [HolderState::default(); CHOICES_MAX];
        for ((seen, queue), disk) in seen.iter_mut().zip(&queues).zip(holders) {
            // A disk that owes an answer is not unheard because it is silent.
            let known = self.known.get(disk);
            let is_report_stale =
                known.is_none_or(|it| it.outstanding() == 0 && !it.is_heard(now_us));
            *seen = HolderState {
                is_report_stale,
                ..known.map_or_else(HolderState::default, |it| of_known(it, *queue, mean, class))
            };
        }
        self.level(holders, &mut seen);
        seen
    }
}

impl Balance {
    /// Gives disks that answer without a service time the mean of those that have one. Their servers have an older
    /// release, or their devices have served nothing yet.
    fn level(&self, holders: &[DiskId], seen: &mut [HolderState; CHOICES_MAX]) {
        let answers = |disk: &DiskId| {
            self.known.get(disk).is_some_and(|it| it.is_mute || it.report.is_some())
        };
        let is_silent = |seen: &HolderState, disk: &DiskId| seen.service_us == 0 && answers(disk);
        if !seen.iter().zip(holders).any(|(seen, disk)| is_silent(seen, disk)) {
            return;
        }
        let (mut like, mut count) = (HolderState::default(), 0_u64);
        for seen in seen.iter().filter(|seen| seen.service_us > 0) {
            like.each_us = like.each_us.saturating_add(seen.each_us);
            like.service_us = like.service_us.saturating_add(seen.service_us);
            like.lanes = like.lanes.saturating_add(seen.lanes);
            count += 1;
        }
        let mean = |sum: u64| sum.checked_div(count).unwrap_or(0).max(1);
        for (seen, _) in seen.iter_mut().zip(holders).filter(|(seen, disk)| is_silent(seen, disk)) {
            (seen.each_us, seen.service_us) = (mean(like.each_us), mean(like.service_us));
            seen.lanes = mean(like.lanes);
        }
    }
}

fn of_known(
    known: &HolderReport,
    reported: ReportedQueue,
    mean: u64,
    class: SizeClass,
) -> HolderState {
    let report = known.report.unwrap_or_default();
    // A long queue at another disk says nothing about a disk that usually has a short one.
    let usual = mean.min(known.queue_average);
    let faded = (reported.queue * reported.weight + usual * (WHOLE - reported.weight)) / WHOLE;
    let requests_of = |loads: &[Load; SIZE_CLASSES]| {
        loads.iter().map(|load| u64::from(load.requests)).sum::<u64>()
    };
    let bytes_of = |loads: &[Load; SIZE_CLASSES]| {
        loads.iter().fold(0_u64, |bytes, load| bytes.saturating_add(load.bytes))
    };
    let service_us = service_us(&report, class as usize);
    let at_disk = requests_of(&report.waiting) + requests_of(&known.since);
    let work_us = work_us(&report, &report.waiting).saturating_add(work_us(&report, &known.since));
    let outstanding = PARTS * requests_of(&known.outstanding);
    // Of each, on average.
    let reported_bytes =
        bytes_of(&report.waiting).checked_div(requests_of(&report.waiting)).unwrap_or(0);
    HolderState {
        is_report_stale: false,
        // This asker's own requests are in the queue for certain.
        queue: (faded + PARTS * requests_of(&known.since)).max(outstanding),
        bytes: (faded / PARTS)
            .saturating_mul(reported_bytes)
            .saturating_add(bytes_of(&known.since))
            .max(bytes_of(&known.outstanding)),
        outstanding,
        each_us: work_us.checked_div(at_disk).unwrap_or(service_us),
        lanes: lanes(&report),
        service_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_halves_with_each_half_life_and_falls_in_between() {
        assert_eq!(weight(0, 100), WHOLE);
        assert_eq!(weight(50, 100), WHOLE / 4 * 3);
        assert_eq!(weight(100, 100), WHOLE / 2);
        assert_eq!(weight(200, 100), WHOLE / 4);
        assert_eq!(weight(u64::MAX, 1), 0);
        let weights: Vec<u64> = (0..2000).map(|age| weight(age, 100)).collect();
        assert!(weights.windows(2).all(|pair| pair[0] >= pair[1]));
    }

    #[test]
    fn a_class_that_was_never_served_takes_as_long_as_the_next_one() {
        let report = Report { service_us: [0, 20, 0, 400], ..Report::default() };
        let all: Vec<u64> = (0..SIZE_CLASSES).map(|class| service_us(&report, class)).collect();
        assert_eq!(all, [20, 20, 20, 400]);
        assert_eq!(service_us(&Report::default(), 0), 0);
    }
}
