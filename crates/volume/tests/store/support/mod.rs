//! A volume on a simulated disk, and short words for its commands.

use std::sync::Arc;

use bytes::Bytes;
use larder_env::SimDisk;
use larder_types::checksum::sum_blocks;
use larder_types::limits::BLOCK_BYTES;
use larder_types::{
    BootId, Chunk, DiskId, Extent, Grant, GrantKey, Holders, LvId, MapVersion, OpId, OpSeq, PgId,
    PvId, View,
};
use larder_volume::{Action, Answer, Command, Completion, Refusal, Volume, VolumeConfig};

pub const NAME: &str = "volumes/disk";
pub const LV: LvId = LvId(40);
pub const CAPACITY: u64 = 1 << 30;

pub type Verdict = Result<Answer, Refusal>;

pub fn config() -> VolumeConfig {
    VolumeConfig { cluster: 11, disk_id: DiskId(3), pv_bytes: 16 << 20, pv_count_max: 4 }
}

/// A disk with a volume on which LV 40 has PV 0 and is open in view 1.
pub fn opened(seed: u64) -> (Arc<SimDisk>, Volume) {
    let disk = SimDisk::new(seed, CAPACITY);
    let mut volume = Volume::create(&*disk, NAME, config(), BootId(1)).unwrap();
    assert_eq!(one(&mut volume, create(0, LV)), Ok(Answer::Created));
    assert_eq!(one(&mut volume, open(1, key(1, 0), 1)), Ok(Answer::Floor(key(1, 0))));
    (disk, volume)
}

/// The machine loses its power and starts again.
pub fn restart(disk: &mut Arc<SimDisk>, boot: u64) -> Volume {
    disk.crash();
    *disk = disk.reopen();
    Volume::open(&**disk, NAME, BootId(boot)).unwrap()
}

/// Executes a group of one.
pub fn one(volume: &mut Volume, action: Action) -> Verdict {
    all(volume, vec![action]).remove(0)
}

/// Executes a group.
pub fn all(volume: &mut Volume, actions: Vec<Action>) -> Vec<Verdict> {
    let mut done = Vec::new();
    let group: Vec<_> = (100..).zip(actions).map(|(tag, action)| Command { tag, action }).collect();
    let tags: Vec<u64> = group.iter().map(|command| command.tag).collect();
    volume.execute(group, &mut done);
    assert_eq!(done.iter().map(|completion| completion.tag).collect::<Vec<_>>(), tags);
    done.into_iter().map(|Completion { result, .. }| result).collect()
}

pub fn key(view: u64, seq: u64) -> GrantKey {
    OpId { view: View(view), seq: OpSeq(seq) }
}

pub fn grant(view: u64, seq: u64) -> Grant {
    Grant { pg: PgId(2), op: key(view, seq), attempt: 0 }
}

/// Bytes that are different for each grant.
pub fn content(grant: &Grant, len: u32) -> Bytes {
    let seed = grant.op.view.0 * 31 + grant.op.seq.0 * 7 + u64::from(grant.attempt);
    (0..u64::from(len)).map(|at| (at * 13 + at / 251 + seed) as u8).collect::<Vec<_>>().into()
}

/// The chunk of a grant's content at one extent that begins with block `first`.
pub fn chunk_at(grant: Grant, first: u32, len: u32) -> Chunk {
    chunk(grant, vec![Extent { first, blocks: len.div_ceil(BLOCK_BYTES) }], len)
}

pub fn chunk(grant: Grant, extents: Vec<Extent>, len: u32) -> Chunk {
    let seed = grant.op.seq.0 + 1000;
    let sums = sum_blocks(seed, std::iter::once(&content(&grant, len)[..]));
    Chunk { grant, seed, lv: LV, extents, len, sums, holders: Holders(1) }
}

pub fn create(pv: u32, lv: LvId) -> Action {
    create_under(1, pv, lv)
}

/// Gives a PV under the map of this version.
pub fn create_under(map: u64, pv: u32, lv: LvId) -> Action {
    Action::CreatePv { pv: PvId(pv), lv, replica: 0, map: MapVersion(map) }
}

pub fn open(view: u64, floor: GrantKey, boot: u64) -> Action {
    Action::Open { lv: LV, view: View(view), floor, boot: BootId(boot) }
}

pub fn raise(floor: GrantKey) -> Action {
    Action::RaiseFloor { lv: LV, floor }
}

pub fn void(grant: Grant) -> Action {
    Action::Void { lv: LV, grant }
}

pub fn verify(chunk: &Chunk) -> Action {
    Action::Verify { chunk: Box::new(chunk.clone()) }
}

/// Writes a chunk's content in pieces of odd sizes.
pub fn write(chunk: &Chunk) -> Action {
    let whole = content(&chunk.grant, chunk.len);
    let cut = whole.len() / 3;
    let data = vec![whole.slice(..cut), Bytes::new(), whole.slice(cut..)];
    Action::Write {
        lv: chunk.lv,
        grant: chunk.grant,
        extents: chunk.extents.clone(),
        data,
        len: chunk.len,
    }
}

pub fn verified(boot: u64) -> Verdict {
    Ok(Answer::Verified { boot: BootId(boot) })
}
