//! The queue of a disk that does nothing until the test has it begin.

use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use larder_env::SimDisk;
use larder_types::{DiskId, GrantKey, OpId, OpSeq, PvId, View};
use larder_volume::VolumeConfig;

use super::*;

const BOOT: BootId = BootId(1);
const LV: LvId = LvId(0);
const VIEW: View = View(1);
const CAPACITY_BYTES: u64 = 1 << 30;

/// A data server, what its disk thread is to work on, and an LV that is being made.
fn server() -> (Arc<DataServer>, Volume) {
    let disk = SimDisk::new(1, CAPACITY_BYTES);
    let config =
        VolumeConfig { cluster: 1, disk_id: DiskId(0), pv_bytes: 1 << 20, pv_count_max: 1 };
    let volume = Volume::create(&*disk, "data", config, BOOT).unwrap();
    let server = DataServer::new(disk, CAPACITY_BYTES, &volume, BOOT).unwrap();
    let floor = GrantKey { view: VIEW, seq: OpSeq(0) };
    let create = Action::CreatePv { pv: PvId(0), lv: LV, replica: 0, map: MapVersion(1) };
    for action in [create, Action::Open { lv: LV, view: VIEW, floor, boot: BOOT }] {
        server.perform(action, 0, Box::new(|done| assert!(done.is_ok())));
    }
    (server, volume)
}

fn begin(server: &Arc<DataServer>, volume: Volume) -> JoinHandle<()> {
    let server = server.clone();
    std::thread::spawn(move || server.disk_loop(volume))
}

/// A write, counted as so many bytes, and what becomes of it.
fn write(server: &DataServer, number: u32, bytes: usize) -> Receiver<Result<Answer, Refusal>> {
    let op = OpId { view: VIEW, seq: OpSeq(u64::from(number) + 1) };
    let action = Action::Write {
        lv: LV,
        grant: Grant { pg: PgId(0), op, attempt: 0 },
        extents: vec![Extent { first: number, blocks: 1 }],
        data: vec![Bytes::from_static(b"bytes")],
        len: 5,
    };
    let (done, becomes) = channel();
    server.perform(action, bytes, Box::new(move |result| done.send(result).unwrap()));
    becomes
}

fn answer(becomes: &Receiver<Result<Answer, Refusal>>) -> Result<Answer, Refusal> {
    becomes.recv_timeout(Duration::from_secs(60)).expect("it is answered within a minute")
}

#[test]
fn a_write_of_too_many_bytes_is_refused_and_one_is_taken_when_the_disk_has_written() {
    let (server, volume) = server();
    let first = write(&server, 0, DISK_QUEUE_BYTES_MAX - 5);
    let last = write(&server, 1, 5);
    assert_eq!(answer(&write(&server, 2, 1)), Err(Refusal::Busy));
    let ticket = Arc::new(Ticket::default());
    ticket.writing(1);
    let (extents, data) = (vec![Extent { first: 2, blocks: 1 }], vec![Bytes::from_static(b"b")]);
    let grant = Grant { pg: PgId(0), op: OpId { view: VIEW, seq: OpSeq(3) }, attempt: 0 };
    server.write(LV, grant, PutWrite { extents, data, len: 1, replica: 0 }, &ticket);
    assert!(ticket.hit_busy_disk(), "its client is told to slow down");
    let disk = begin(&server, volume);
    assert_eq!(answer(&first), Ok(Answer::Written));
    assert_eq!(answer(&last), Ok(Answer::Written));
    assert_eq!(server.counters().queued_bytes, 0, "there is room for all");
    assert_eq!(answer(&write(&server, 2, DISK_QUEUE_BYTES_MAX)), Ok(Answer::Written));
    server.stop();
    disk.join().unwrap();
}

#[test]
fn a_write_behind_too_many_commands_is_refused_and_one_is_taken_when_they_are_done() {
    let (server, volume) = server();
    let floor = GrantKey { view: VIEW, seq: OpSeq(0) };
    while server.counters().queued_commands < DISK_QUEUE_COMMANDS_MAX as u64 {
        let elsewhere = Action::RaiseFloor { lv: LvId(9), floor };
        server.perform(elsewhere, 0, Box::new(|done| assert!(done.is_err())));
    }
    assert_eq!(answer(&write(&server, 0, 5)), Err(Refusal::Busy));
    // A group's request is never refused.
    let (done, raised) = channel();
    let raise = Action::RaiseFloor { lv: LV, floor };
    server.perform(raise, 0, Box::new(move |result| done.send(result).unwrap()));
    let disk = begin(&server, volume);
    assert_eq!(answer(&raised), Ok(Answer::Floor(floor)), "all before it is done");
    assert_eq!(answer(&write(&server, 0, 5)), Ok(Answer::Written));
    server.stop();
    disk.join().unwrap();
}

#[test]
fn writes_that_succeed_are_counted_by_size_and_no_other_command_is() {
    let (server, volume) = server();
    let disk = begin(&server, volume);
    assert_eq!(answer(&write(&server, 0, 1023)), Ok(Answer::Written));
    assert_eq!(answer(&write(&server, 1, 1024)), Ok(Answer::Written));
    let (done, raised) = channel();
    let floor = GrantKey { view: VIEW, seq: OpSeq(9) };
    let raise = Action::RaiseFloor { lv: LV, floor };
    server.perform(raise, 0, Box::new(move |result| done.send(result).unwrap()));
    assert_eq!(answer(&raised), Ok(Answer::Floor(floor)));
    assert_eq!(answer(&write(&server, 2, 9000)), Err(Refusal::BelowFloor));
    let cells = server.counts_now().counts.into_iter();
    let cells: Vec<_> = cells.map(|it| (it.kind, it.size, it.ops, it.bytes)).collect();
    let cell = |size: &str, bytes| ("write".to_owned(), size.to_owned(), 1, bytes);
    assert_eq!(cells, [cell("1B..1K", 1023), cell("1K..8K", 1024)]);
    server.stop();
    disk.join().unwrap();
}
