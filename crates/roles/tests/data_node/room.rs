//! Room on the disk of a data server, and space that goes back to its file system.

use std::os::unix::fs::MetadataExt;

use larder_env::rng::unique_u64;
use larder_env::{Disk, OpenMode, RealDisk};
use larder_roles::progress::{DiskRoomStatus, FileStatus};
use larder_types::codec::decode;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_room_of_a_disk_is_that_of_its_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let (map, mut hears) = Map::founded();
    let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
    served.opened(&mut hears).await;
    let room = async || {
        let (reply, payload) = served.call(DataCall::Room, b"").await;
        assert_eq!(reply, DataReply::Room);
        decode::<DiskRoomStatus>("room", &payload).unwrap()
    };
    let before = room().await;
    assert_eq!((before.disk, before.file.map(|file| file.held)), (served.disk.0, Some(0)));
    assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::Written);
    let FileStatus { held, spare } = room().await.file.expect("it is no device");
    assert_eq!(held, 1 << 20, "the least by which a physical volume grows");
    assert_eq!(spare, served.node.server().spare_bytes());
    // Operators ask with whatever certificate their machine has.
    let data = Peer::<DataService>::new(&served.data, ME, served.address.clone());
    let deadline = Instant::now() + Duration::from_secs(30);
    let answer = data.call(&DataCall::Room, Bytes::new(), deadline).await;
    assert_eq!(answer.unwrap().0, DataReply::Room);
    served.node.close();
}

/// Has another data server take over a volume of this one, whose place is free from then on.
fn move_away(map: &Map) {
    let (other, boot) = (ServerId(2), BootId(3));
    map.add("other", ServerRole::Data, Some([8; 32]));
    for command in [
        Command::ServerStarted(ME, BootId(11), Vec::new(), Vec::new()),
        Command::ServerStarted(other, boot, Vec::new(), Vec::new()),
        Command::AddDisk(other, Weight(1), 9),
        Command::CreateLv(PgId(0), vec![(ME, DiskId(0))]),
        Command::LvCreated(LV),
        Command::AddReplica(LV, other, DiskId(1)),
        Command::ReplicaCurrent(LV, 1),
        Command::DropReplica(LV, 0),
    ] {
        map.done(command);
    }
    let freed = map.map().servers[&ME].disks[&DiskId(0)].freed.clone();
    assert_eq!(freed, BTreeSet::from([PvId(0)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_space_of_a_volume_that_moved_away_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (map, mut hears) = Map::founded();
    let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
    served.opened(&mut hears).await;
    assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::Written);
    let watched = served.node.clone();
    let watch = tokio::spawn(async move { watched.watch_disk().await });
    let blocks = || std::fs::metadata(dir.path().join("data0")).unwrap().blocks();
    let (before, punches) = (blocks(), punches(dir.path()));
    move_away(&map);
    // A file system that keeps the space lets the volume go all the same.
    let is_gone = async || matches!(served.pg(open_again(&served)).await, DataAnswer::Failed);
    let has_gone = async {
        while !is_gone().await || served.node.server().held_bytes() > 0 && punches {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), has_gone).await.expect("it is freed");
    if punches {
        assert!(blocks() < before, "{} of {before}", blocks());
        let counted = async {
            while served.node.bytes_freed() < 1 << 20 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), counted).await.expect("it is counted");
    }
    // The same place is given to the volume again.
    map.done(Command::AddReplica(LV, ME, DiskId(0)));
    let (lv, pg, replica, disk, pv) = (LV, PgId(0), 0, served.disk, PvId(0));
    let (blocks, map) = (16_384, map.map().version);
    let create = ManagerMessage::CreatePv { lv, pg, replica, disk, pv, blocks, map };
    served.manager.send(&DataMessage::Manager(create), Bytes::new()).unwrap();
    assert_eq!(hears.recv().await, Some(ServerMessage::Created(LV, 0, disk, pv)));
    let floor = GrantKey { view: VIEW, seq: OpSeq(0) };
    assert_eq!(served.pg(open_again(&served)).await, DataAnswer::Floor(floor));
    assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::Written);
    watch.abort();
    served.node.close();
}

fn open_again(served: &Served) -> DataRequest {
    let floor = GrantKey { view: VIEW, seq: OpSeq(0) };
    DataRequest::Open { view: VIEW, floor, boot: served.node.boot() }
}

/// True if the file system of a directory gives the space of ranges back.
fn punches(dir: &Path) -> bool {
    let disk = RealDisk::open(dir).unwrap();
    let mode = OpenMode::CreateNew;
    let name = format!("punched-{}", unique_u64());
    let file = disk.open(&name, mode).unwrap();
    file.allocate(0, 1 << 20).unwrap();
    file.punch(0, 1 << 20).unwrap()
}
