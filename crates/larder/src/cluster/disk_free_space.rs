//! Room on the disks of a cluster, as its data servers tell it: the map counts places alone, which a file system may have too little
//! room for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use larder_net::Peer;
use larder_protocol::manager::state::{DiskRecord, DiskState, ServerRole, ServerState, Topology};
use larder_roles::peers::Peers;
use larder_roles::progress::{DiskRoomStatus, FileStatus};
use larder_roles::wire::{DataCall, DataReply, DataService};
use larder_types::codec::decode;
use larder_types::limits::BLOCK_BYTES;
use larder_types::{DiskId, ServerId};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::quantity::bytes;

/// The time that a data server has to answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// See the module's head. A disk of which nobody says anything is taken to have room for all of its places.
#[derive(Debug, Default)]
pub(crate) struct DiskFreeSpace(BTreeMap<DiskId, DiskRoomStatus>);

impl DiskFreeSpace {
    /// Asks all data servers that are up, side by side. Each speaks for disks alone that the map says it has.
    pub(crate) async fn ask(peers: &Peers<DataService>, map: &Topology) -> Self {
        let (mut asked, until) = (JoinSet::new(), Instant::now() + TIMEOUT);
        for (&id, record) in &map.servers {
            let is_asked =
                record.state == ServerState::Up && record.roles.contains(&ServerRole::Data);
            if let Some(peer) = peers.of(map, id).filter(|_| is_asked) {
                asked.spawn(async move { (id, fetch_room(peer, until).await) });
            }
        }
        let has = |server: &ServerId, disk: &DiskId| {
            map.servers.get(server).is_some_and(|record| record.disks.contains_key(disk))
        };
        let replies = asked.join_all().await.into_iter();
        let replies = replies.filter_map(|(server, room)| Some((server, room?)));
        let named = replies.map(|(server, room)| (server, DiskId(room.disk), room));
        let sound = named.filter(|(server, disk, _)| has(server, disk));
        Self(sound.map(|(_, disk, room)| (disk, room)).collect())
    }

    /// Disks that have no room for another volume.
    pub(crate) fn lacking(&self) -> BTreeSet<DiskId> {
        self.0.iter().filter(|(_, room)| room.lacks_room).map(|(disk, _)| *disk).collect()
    }

    /// Bytes of a disk's file; `None` of a block device, or if nobody says.
    pub(super) fn file(&self, disk: DiskId) -> Option<FileStatus> {
        self.0.get(&disk)?.file
    }

    /// The reason that what lies on some disks finds no room on the others, though it may find places. `None` if it does, or if
    /// that is not known of all disks.
    pub(crate) fn shortfall(&self, map: &Topology, leave: &BTreeSet<DiskId>) -> Option<String> {
        let add = |all: u64, of: Option<u64>| Some(all.saturating_add(of?));
        let held = leave.iter().map(|disk| Some(self.file(*disk)?.held));
        let leaving = held.into_iter().try_fold(0, add)?;
        let pv_bytes = u64::from(map.settings().lv_blocks) * u64::from(BLOCK_BYTES);
        let takes = map.servers.values().filter(|record| {
            !record.draining && matches!(record.state, ServerState::Up | ServerState::Down)
        });
        let disks = takes.flat_map(|record| &record.disks);
        let stay = disks.filter(|(id, disk)| disk.state == DiskState::In && !leave.contains(id));
        let room = |(id, disk): (&DiskId, &DiskRecord)| {
            let places = u64::from(disk.pv_free()) * pv_bytes;
            let DiskRoomStatus { file, .. } = self.0.get(id)?;
            Some(file.map_or(places, |file| file.spare.min(places)))
        };
        let room = stay.map(room).try_fold(0, add)?;
        (leaving > room).then(|| {
            format!(
                "its file holds {}, and the other disks have room for {}",
                bytes(leaving),
                bytes(room)
            )
        })
    }
}

/// `None` if it does not answer, or is of an earlier release.
async fn fetch_room(peer: Peer<DataService>, until: Instant) -> Option<DiskRoomStatus> {
    match peer.call(&DataCall::Room, Bytes::new(), until).await {
        Ok((DataReply::Room, payload)) => decode("the room of a data server", &payload).ok(),
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
impl FromIterator<DiskRoomStatus> for DiskFreeSpace {
    fn from_iter<T: IntoIterator<Item = DiskRoomStatus>>(disk_free_space: T) -> Self {
        Self(disk_free_space.into_iter().map(|room| (DiskId(room.disk), room)).collect())
    }
}
