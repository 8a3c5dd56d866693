//! Which reads touch the device, and when.

use super::*;

const BYTES: u64 = 4096;
const SOON: u64 = 1000;

type Disk = DiskReads<u64>;

fn arrive(disk: &mut Disk, urgency: Urgency) -> (u64, Arrival<u64>) {
    let number = disk.number();
    (number, disk.arrive(number, (urgency, BYTES), SOON, number))
}

/// A disk with as many clients' reads at the device as there may be.
fn busy() -> Disk {
    let mut disk = Disk::default();
    for _ in 0..READS_AT_DEVICE {
        let (number, arrival) = arrive(&mut disk, Urgency::Client);
        assert_eq!(arrival, Arrival::Begins(number));
    }
    disk
}

fn waits(disk: &mut Disk, urgency: Urgency) -> u64 {
    let (number, arrival) = arrive(disk, urgency);
    assert_eq!(arrival, Arrival::Waits);
    number
}

/// A client's read is served; the read that begins in its place.
fn next(disk: &mut Disk) -> Option<u64> {
    disk.served((Urgency::Client, BYTES), Some(100));
    match disk.next(0)? {
        Turn::Begins { read, .. } => Some(read),
        Turn::Late(read) => panic!("{read} is not late"),
    }
}

/// Serves a client's read, and then whatever began last, until nothing waits: the reads in the order in which they began.
fn drained(disk: &mut Disk) -> Vec<u64> {
    let (mut began, mut last) = (Vec::new(), (Urgency::Client, BYTES));
    loop {
        disk.served(last, Some(100));
        let Some(Turn::Begins { urgency, bytes, read }) = disk.next(0) else { return began };
        began.push(read);
        last = (urgency, bytes);
    }
}

#[test]
fn the_oldest_begins_when_there_is_room_again() {
    let mut disk = busy();
    let [first, second] = [(); 2].map(|()| waits(&mut disk, Urgency::Client));
    assert_eq!((next(&mut disk), next(&mut disk)), (Some(first), Some(second)));
    assert_eq!((next(&mut disk), disk.waits()), (None, 0));
}

#[test]
fn one_that_is_cancelled_before_its_turn_never_begins() {
    let mut disk = busy();
    let [first, second] = [(); 2].map(|()| waits(&mut disk, Urgency::Client));
    assert_eq!(disk.cancel(first), Some(first));
    assert_eq!(disk.cancel(first), None, "it is gone");
    assert_eq!(disk.cancel(1), None, "it is at the device");
    assert_eq!(next(&mut disk), Some(second));
    let counts = DiskCounts { served: 1, cancelled: 1, ..DiskCounts::default() };
    assert_eq!(disk.counts(), counts);
    assert_eq!(disk.report().service_us, [100, 0, 0, 0], "no average is of it");
    assert_eq!(disk.report().waiting[0].requests, u32::from(READS_AT_DEVICE));
}

#[test]
fn one_that_nobody_can_be_waiting_for_leaves_without_touching_the_device() {
    let mut disk = busy();
    let [first, second] = [(); 2].map(|()| waits(&mut disk, Urgency::Client));
    disk.served((Urgency::Client, BYTES), Some(100));
    assert_eq!(disk.next(SOON + 1), Some(Turn::Late(first)));
    assert_eq!(disk.next(SOON + 1), Some(Turn::Late(second)));
    assert_eq!(disk.next(SOON + 1), None);
    assert_eq!((disk.counts().late, disk.counts().served), (2, 1));
    let requests = u32::from(READS_AT_DEVICE) - 1;
    assert_eq!(disk.report().waiting[0].requests, requests, "they wait no more");
    let (number, arrival) = arrive(&mut disk, Urgency::Client);
    assert_eq!(arrival, Arrival::Begins(number), "there is room");
}

#[test]
fn the_most_urgent_are_served_first_and_the_others_not_last_for_ever() {
    let mut disk = busy();
    let scrub = waits(&mut disk, Urgency::Scrub);
    let repair = waits(&mut disk, Urgency::Repair);
    let count = 3 * READS_PASSED_OVER_MAX;
    let clients: Vec<u64> = (0..count).map(|_| waits(&mut disk, Urgency::Client)).collect();
    let served = drained(&mut disk);
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
    for (urgency, share) in
        [(Urgency::Scrub, SCRUBS_AT_DEVICE), (Urgency::Repair, REPAIRS_AT_DEVICE)]
    {
        for _ in 0..share {
            assert!(matches!(arrive(&mut disk, urgency).1, Arrival::Begins(_)));
        }
        waits(&mut disk, urgency);
    }
    assert!(matches!(arrive(&mut disk, Urgency::Client).1, Arrival::Begins(_)));
    assert_eq!(disk.next(0), None, "the others wait for their like");
    disk.served((Urgency::Scrub, BYTES), Some(100));
    let turn = disk.next(0);
    assert!(matches!(turn, Some(Turn::Begins { urgency: Urgency::Scrub, .. })), "{turn:?}");
}

#[test]
fn what_waits_is_bounded() {
    let mut disk = busy();
    for _ in 0..READS_WAITING_MAX {
        waits(&mut disk, Urgency::Client);
    }
    let (number, arrival) = arrive(&mut disk, Urgency::Client);
    assert_eq!(arrival, Arrival::TurnedAway(number));
    let requests = READS_WAITING_MAX as u32 + u32::from(READS_AT_DEVICE);
    assert_eq!(disk.report().waiting[0].requests, requests, "it counts nowhere");
    assert!(next(&mut disk).is_some());
    waits(&mut disk, Urgency::Client);
}

#[test]
fn writes_are_told_and_move_no_average() {
    let mut disk = Disk::default();
    disk.write_begins(100 * 1024);
    assert_eq!(disk.report().waiting[1].requests, 1);
    disk.write_ends(100 * 1024);
    let report = disk.report();
    assert_eq!((report.waiting[1].requests, report.service_us), (0, [0; 4]));
}

#[test]
fn what_is_late_leaves_also_while_the_device_serves_nothing() {
    let mut disk = busy();
    let late = [Urgency::Client, Urgency::Scrub].map(|urgency| waits(&mut disk, urgency));
    let number = disk.number();
    let stays = disk.arrive(number, (Urgency::Client, BYTES), u64::MAX, number);
    assert_eq!(stays, Arrival::Waits);
    assert_eq!(disk.shed(SOON), [] as [u64; 0], "somebody may wait for them");
    assert_eq!(disk.shed(SOON + 1), late);
    assert_eq!((disk.waits(), disk.counts().late), (1, 2));
}

#[test]
fn a_read_that_failed_at_once_does_not_say_that_the_disk_is_quick() {
    let mut disk = Disk::default();
    let serve = |disk: &mut Disk, took_us| {
        let (_, arrival) = arrive(disk, Urgency::Client);
        assert!(matches!(arrival, Arrival::Begins(_)));
        disk.served((Urgency::Client, BYTES), took_us);
        disk.report()
    };
    let before = serve(&mut disk, Some(5_000));
    for _ in 0..100 {
        assert_eq!(serve(&mut disk, None), before);
    }
    assert_ne!(serve(&mut disk, Some(100)), before);
}
