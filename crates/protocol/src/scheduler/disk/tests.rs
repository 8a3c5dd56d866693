//! The reads that touch the device, and their times.

use super::*;

const BYTES: u64 = 4096;
const SOON: u64 = 1000;

type Disk = DiskReads<u64>;

fn arrive(disk: &mut Disk, urgency: Urgency) -> (u64, Arrival<u64>) {
    let number = disk.number();
    (number, disk.arrive(0, number, (urgency, BYTES), SOON, number))
}

/// A read that begins at once.
fn begins(disk: &mut Disk, urgency: Urgency) -> ActiveRead {
    match arrive(disk, urgency).1 {
        Arrival::Begins(begun, _) => begun,
        other => panic!("{other:?}"),
    }
}

/// A disk with as many clients' reads at the device as there may be.
fn busy() -> (Disk, Vec<ActiveRead>) {
    let mut disk = Disk::default();
    let begun = (0..READS_AT_DEVICE).map(|_| begins(&mut disk, Urgency::Client)).collect();
    (disk, begun)
}

fn waits(disk: &mut Disk, urgency: Urgency) -> u64 {
    let (number, arrival) = arrive(disk, urgency);
    assert_eq!(arrival, Arrival::Waits);
    number
}

/// One that is at the device is served within 100 µs; the read that begins in its place.
fn next(disk: &mut Disk, begun: &mut Vec<ActiveRead>) -> Option<u64> {
    disk.served(100, begun.pop().unwrap(), true);
    match disk.next(0)? {
        DiskTurn::Begins(one, read) => {
            begun.push(one);
            Some(read)
        }
        DiskTurn::Late(read) => panic!("{read} is not late"),
    }
}

/// Serves a read, and then whatever began last, until nothing waits: the reads in the order in which they began.
fn drained(disk: &mut Disk, begun: &mut Vec<ActiveRead>) -> Vec<u64> {
    std::iter::from_fn(|| next(disk, begun)).collect()
}

#[test]
fn the_oldest_begins_when_there_is_room_again() {
    let (mut disk, mut begun) = busy();
    let [first, second] = [(); 2].map(|()| waits(&mut disk, Urgency::Client));
    let [one, two, none] = [(); 3].map(|()| next(&mut disk, &mut begun));
    assert_eq!((one, two, none, disk.waits()), (Some(first), Some(second), None, 0));
}

#[test]
fn one_that_is_cancelled_before_its_turn_never_begins() {
    let (mut disk, mut begun) = busy();
    let [first, second] = [(); 2].map(|()| waits(&mut disk, Urgency::Client));
    assert_eq!(disk.cancel(first), Some(first));
    assert_eq!(disk.cancel(first), None, "it is gone");
    assert_eq!(disk.cancel(1), None, "it is at the device");
    assert_eq!(next(&mut disk, &mut begun), Some(second));
    let counts = DiskCounts { served: 1, cancelled: 1, ..DiskCounts::default() };
    assert_eq!(disk.counts(), counts);
    assert_eq!(disk.report(0).service_us, [100, 0, 0, 0], "no average is of it");
    assert_eq!(disk.report(0).waiting[0].requests, u32::from(READS_AT_DEVICE));
}

#[test]
fn one_that_nobody_can_be_waiting_for_leaves_without_touching_the_device() {
    let (mut disk, mut begun) = busy();
    let [first, second] = [(); 2].map(|()| waits(&mut disk, Urgency::Client));
    disk.served(100, begun.pop().unwrap(), true);
    assert_eq!(disk.next(SOON + 1), Some(DiskTurn::Late(first)));
    assert_eq!(disk.next(SOON + 1), Some(DiskTurn::Late(second)));
    assert_eq!(disk.next(SOON + 1), None);
    assert_eq!((disk.counts().late, disk.counts().served), (2, 1));
    let requests = u32::from(READS_AT_DEVICE) - 1;
    assert_eq!(disk.report(0).waiting[0].requests, requests, "they wait no more");
    let _room = begins(&mut disk, Urgency::Client);
}

#[test]
fn the_most_urgent_are_served_first_and_the_others_not_last_for_ever() {
    let (mut disk, mut begun) = busy();
    let scrub = waits(&mut disk, Urgency::Scrub);
    let repair = waits(&mut disk, Urgency::Repair);
    let count = 3 * READS_PASSED_OVER_MAX;
    let clients: Vec<u64> = (0..count).map(|_| waits(&mut disk, Urgency::Client)).collect();
    let served = drained(&mut disk, &mut begun);
    let at = |number| served.iter().position(|read| *read == number).unwrap();
    let passed = READS_PASSED_OVER_MAX as usize;
    assert_eq!((at(scrub), at(repair)), (passed, passed + 1));
    let others = [scrub, repair];
    let of_clients: Vec<u64> = served.into_iter().filter(|read| !others.contains(read)).collect();
    assert_eq!(of_clients, clients, "in their order");
}

#[test]
fn reads_of_little_urgency_leave_most_of_the_device_to_clients() {
    let mut disk = Disk::default();
    let mut begun = Vec::new();
    for (urgency, share) in
        [(Urgency::Repair, REPAIRS_AT_DEVICE), (Urgency::Scrub, SCRUBS_AT_DEVICE)]
    {
        begun.extend((0..share).map(|_| begins(&mut disk, urgency)));
        waits(&mut disk, urgency);
    }
    let at_device = u32::from(REPAIRS_AT_DEVICE + SCRUBS_AT_DEVICE);
    let requests = disk.report(0).waiting[0].requests;
    assert_eq!(requests, at_device, "no client waits for those that wait");
    let _client = begins(&mut disk, Urgency::Client);
    assert_eq!(disk.next(0), None, "the others wait for their like");
    disk.served(100, begun.pop().unwrap(), false);
    let turn = disk.next(0);
    let is_scrub = |begun: &ActiveRead| begun.urgency == Urgency::Scrub;
    assert!(matches!(&turn, Some(DiskTurn::Begins(begun, _)) if is_scrub(begun)), "{turn:?}");
    assert_eq!(disk.report(0).waiting[0].requests, at_device + 1);
}

#[test]
fn what_waits_is_bounded() {
    let (mut disk, mut begun) = busy();
    for _ in 0..CLIENT_READS_WAITING_MAX {
        waits(&mut disk, Urgency::Client);
    }
    let (number, arrival) = arrive(&mut disk, Urgency::Client);
    assert_eq!(arrival, Arrival::TurnedAway(number));
    let requests = CLIENT_READS_WAITING_MAX as u32 + u32::from(READS_AT_DEVICE);
    assert_eq!(disk.report(0).waiting[0].requests, requests, "it counts nowhere");
    for (urgency, bound) in
        [(Urgency::Repair, REPAIR_READS_WAITING_MAX), (Urgency::Scrub, SCRUB_READS_WAITING_MAX)]
    {
        for _ in 0..bound {
            waits(&mut disk, urgency);
        }
        assert!(matches!(arrive(&mut disk, urgency).1, Arrival::TurnedAway(_)), "{urgency:?}");
    }
    assert!(next(&mut disk, &mut begun).is_some());
    waits(&mut disk, Urgency::Client);
}

#[test]
fn writes_are_told_and_move_no_average() {
    let mut disk = Disk::default();
    disk.write_begins(100 * 1024);
    assert_eq!(disk.report(0).waiting[1].requests, 1);
    disk.write_ends(100 * 1024);
    let report = disk.report(0);
    assert_eq!((report.waiting[1].requests, report.service_us), (0, [0; 4]));
}

#[test]
fn what_is_late_leaves_also_while_the_device_serves_nothing() {
    let (mut disk, _begun) = busy();
    let late = [Urgency::Client, Urgency::Scrub].map(|urgency| waits(&mut disk, urgency));
    let number = disk.number();
    let stays = disk.arrive(0, number, (Urgency::Client, BYTES), u64::MAX, number);
    assert_eq!(stays, Arrival::Waits);
    assert_eq!(disk.shed(SOON), [] as [u64; 0], "somebody may wait for them");
    assert_eq!(disk.shed(SOON + 1), late);
    assert_eq!((disk.waits(), disk.counts().late), (1, 2));
}

#[test]
fn an_immediate_failure_does_not_count_as_a_fast_disk() {
    let mut disk = Disk::default();
    let serve = |disk: &mut Disk, took_us, is_measure| {
        let begun = begins(disk, Urgency::Client);
        disk.served(took_us, begun, is_measure);
        disk.report(took_us)
    };
    let before = serve(&mut disk, 5_000, true);
    for _ in 0..100 {
        assert_eq!(serve(&mut disk, 100, false), before);
    }
    assert_ne!(serve(&mut disk, 100, true), before);
}

#[test]
fn a_hanging_device_is_reported_and_ends_nothing() {
    let (mut disk, mut begun) = busy();
    let served = |disk: &mut Disk, begun| {
        disk.served(1_000, begun, true);
        disk.report(1_000).service_us[0]
    };
    assert_eq!(served(&mut disk, begun.pop().unwrap()), 1_000);
    assert_eq!(disk.report(3_000).service_us[0], 1_000, "the oldest of many may be that old");
    assert_eq!(disk.report(1_000_000).service_us[0], 250_000);
    while let Some(begun) = begun.pop() {
        served(&mut disk, begun);
    }
    assert_eq!(disk.report(1_000_000).service_us[0], 1_000, "all have ended");
    let verified = begins(&mut disk, Urgency::Scrub);
    assert_eq!(disk.report(1_000_000).service_us[0], 1_000, "of many pieces: it may take long");
    disk.served(2_000_000, verified, false);
}

#[test]
fn what_the_page_cache_answers_makes_reads_quicker_that_are_to_be_expected() {
    let mut disk = Disk::default();
    let begun = begins(&mut disk, Urgency::Client);
    disk.served(8_000, begun, true);
    (0..200).for_each(|_| disk.answered_by_cache(BYTES));
    let reported = disk.report(0).service_us[0];
    assert!((1..1_000).contains(&reported), "{reported}");
    let begun = [Urgency::Repair, Urgency::Scrub].map(|urgency| begins(&mut disk, urgency));
    assert_eq!(disk.report(0).service_us[0], reported, "clients' reads alone count");
    for begun in begun {
        disk.served(0, begun, false);
    }
}
