//! Space of a cluster, its servers and disks, and what its buckets have. Meta servers say it of their volumes, and data servers of
//! their file systems.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use larder_protocol::manager::state::{
    DiskRecord, DiskState, PgRecord, ReplicaState, ServerState, Topology,
};
use larder_roles::observed::{Growth, Place};
use larder_roles::progress::{BucketUsage, FileStatus, SpaceStatus, VolumeStatus};
use larder_types::limits::BLOCK_BYTES;
use larder_types::{DiskId, ServerId};
use serde::{Deserialize, Serialize};

use super::bar::bar;
use crate::cluster::disk_free_space::DiskFreeSpace;
use crate::quantity::{bytes, span};

/// From so many hundredths on a disk, a machine or a cluster is nearly full.
pub(super) const FULL_PERCENT: u64 = 90;
/// With more hundredths free where no volume can be made, deletes have left so much that most groups find space of their own: keys
/// are spread over all of them.
const AGAIN_PERCENT: u64 = 50;
/// Buckets that are shown to people one by one: those with the most bytes.
const ROWS_SHOWN_MAX: usize = 10;

/// Bytes of disks: of copies, so that an object in three copies counts three times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Space {
    /// All that volumes may have there, as places and file systems allow.
    pub(crate) bytes: u64,
    /// Bytes that hold data.
    pub(crate) used: u64,
    /// Freed ones that are not given again before older writes have drained.
    pub(crate) waiting: u64,
    /// Free ones, in volumes and outside of them.
    pub(crate) free: u64,
    /// Bytes of volumes whose use no server reports now.
    pub(crate) unknown: u64,
}

impl Space {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.used += other.used;
        self.waiting += other.waiting;
        self.free += other.free;
        self.unknown += other.unknown;
    }

    fn of_copy(now: Option<&VolumeStatus>, blocks: u32) -> Self {
        let bytes = |blocks: u32| u64::from(blocks) * u64::from(BLOCK_BYTES);
        let all = bytes(blocks);
        let Some(now) = now else { return Self { bytes: all, unknown: all, ..Self::default() } };
        let (free, waiting, unknown) = (bytes(now.free), bytes(now.waiting), bytes(now.unread));
        let used = all.saturating_sub(free + waiting + unknown);
        Self { bytes: all, used, waiting, free, unknown }
    }

    /// The same where no more than this finds room: what the file holds, and what its file system has for more.
    fn within(self, FileStatus { held, spare }: FileStatus) -> Self {
        let taken = self.taken();
        let bytes = self.bytes.min(held.saturating_add(spare).max(taken));
        let unknown = self.unknown.min(bytes - taken);
        Self { bytes, unknown, free: bytes - taken - unknown, ..self }
    }

    /// Bytes that are not free, as far as is known.
    pub(super) fn taken(&self) -> u64 {
        self.used + self.waiting
    }

    /// Hundredths that are taken.
    pub(crate) fn percent(&self) -> u64 {
        self.taken() * 100 / self.bytes.max(1)
    }

    /// As people read it.
    pub(crate) fn text(&self) -> String {
        let bar = bar((self.taken() >> 10) as usize, (self.bytes >> 10) as usize);
        format!("{bar} of {}", bytes(self.bytes))
    }
}

/// Space of a cluster.
#[derive(Debug, Default, Serialize)]
pub(super) struct Spaces {
    pub(super) all: Space,
    #[serde(skip)]
    pub(super) by_server: BTreeMap<ServerId, Space>,
    #[serde(skip)]
    pub(super) by_disk: BTreeMap<DiskId, Space>,
    /// Bytes that volumes have taken, times the copies wanted. Copies that are made or given up change nothing of it.
    #[serde(skip)]
    pub(super) taken_wanted: u64,
    /// Free bytes of disks that take volumes: of none that drain or whose server is down.
    #[serde(skip)]
    pub(super) free_given: u64,
    /// Servers whose disks have no room, by name, if too few have any for another volume and little of theirs is free: puts find
    /// none.
    #[serde(skip)]
    pub(super) full: Vec<String>,
    /// Disks to which a copy of a volume is being made, and their servers.
    #[serde(skip)]
    receiving: BTreeSet<Place>,
    /// Objects of all buckets, and their bytes as clients see them.
    pub(super) objects: u64,
    pub(super) object_bytes: u64,
    /// The buckets with the most bytes come first.
    pub(super) buckets: Vec<Bucket>,
    /// Buckets that no meta server names, as there are too many.
    pub(super) buckets_not_named: u64,
    /// Placement groups of which nobody says what they have: they are not counted yet, are not served, or their server does not
    /// answer.
    pub(super) pgs_uncounted: u64,
}

/// Objects and bytes of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bucket {
    pub(crate) name: String,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

impl Spaces {
    pub(super) fn of<'a>(
        map: &Topology,
        reported: impl Iterator<Item = (ServerId, &'a SpaceStatus)>,
        disk_free_space: &DiskFreeSpace,
    ) -> Self {
        let (mut volumes, mut buckets) = (BTreeMap::new(), BTreeMap::<u64, BucketUsage>::new());
        let (mut spaces, mut answered) = (Self::default(), BTreeSet::new());
        for (server, now) in reported {
            answered.insert(server);
            volumes.extend(now.volumes.iter().map(|volume| (volume.volume, *volume)));
            for bucket in &now.buckets {
                let sum = buckets.entry(bucket.bucket).or_default();
                sum.objects += bucket.objects;
                sum.bytes += bucket.bytes;
            }
            spaces.objects += now.other_buckets.objects;
            spaces.object_bytes += now.other_buckets.bytes;
            spaces.buckets_not_named = spaces.buckets_not_named.max(now.other_buckets.bucket);
            spaces.pgs_uncounted += u64::from(now.uncounted);
        }
        let is_heard = |pg: &PgRecord| pg.members.first().is_some_and(|it| answered.contains(it));
        spaces.pgs_uncounted += map.pgs.iter().filter(|pg| !is_heard(pg)).count() as u64;
        spaces.add_buckets(map, &buckets);
        let mut by_disk: BTreeMap<DiskId, Space> = BTreeMap::new();
        for (id, lv) in (0..).zip(&map.lvs) {
            let copy = Space::of_copy(volumes.get(&id), lv.blocks);
            spaces.taken_wanted += copy.taken() * u64::from(lv.width);
            for (_, replica) in lv.present() {
                by_disk.entry(replica.disk).or_default().add(copy);
                if replica.state == ReplicaState::Rebuilding {
                    spaces.receiving.insert(Place::Disk(replica.disk.0));
                    spaces.receiving.insert(Place::Server(replica.server.0));
                }
            }
        }
        let blocks = map.founded.map_or(0, |(_, settings)| settings.lv_blocks);
        let pv_bytes = u64::from(blocks) * u64::from(BLOCK_BYTES);
        let (lacking, mut roomy, mut full) = (disk_free_space.lacking(), 0, Vec::new());
        for (server, record) in &map.servers {
            let is_given = record.state == ServerState::Up && !record.draining;
            let takes =
                |(_, disk): &(&DiskId, &DiskRecord)| is_given && disk.state == DiskState::In;
            let taking = || record.disks.iter().filter(takes);
            if taking().any(|(id, disk)| disk.pv_free() > 0 && !lacking.contains(id)) {
                roomy += 1;
            } else if taking().any(|(id, _)| lacking.contains(id)) {
                full.push((*server, record.name.clone()));
            }
            for (disk, record) in
                record.disks.iter().filter(|(_, it)| it.state != DiskState::Removed)
            {
                let free = u64::from(record.pv_free()) * pv_bytes;
                let mut space = by_disk.get(disk).copied().unwrap_or_default();
                space.add(Space { bytes: free, free, ..Space::default() });
                let space = disk_free_space.file(*disk).map_or(space, |file| space.within(file));
                spaces.by_disk.insert(*disk, space);
                spaces.by_server.entry(*server).or_default().add(space);
                spaces.all.add(space);
                if is_given && record.state == DiskState::In {
                    spaces.free_given += space.free;
                }
            }
        }
        let is_short = roomy < map.founded.map_or(0, |(_, it)| usize::from(it.min_copies));
        let of_full = full.iter().filter_map(|(server, _)| spaces.by_server.get(server));
        let of_full = of_full.fold(Space::default(), |mut all, space| {
            all.add(*space);
            all
        });
        if is_short && of_full.free <= of_full.bytes / 100 * AGAIN_PERCENT {
            spaces.full = full.into_iter().map(|(_, name)| name).collect();
        }
        spaces
    }

    /// True while a copy of a volume is being made there. Its bytes are no growth.
    pub(super) fn receives(&self, place: Place) -> bool {
        self.receiving.contains(&place)
    }

    fn add_buckets(&mut self, map: &Topology, counted: &BTreeMap<u64, BucketUsage>) {
        let named = map.buckets.iter().map(|(name, record)| {
            let now = counted.get(&record.id.0).copied().unwrap_or_default();
            Bucket { name: name.to_string(), objects: now.objects, bytes: now.bytes }
        });
        self.buckets = named.collect();
        self.buckets.sort_by(|one, other| (other.bytes, &one.name).cmp(&(one.bytes, &other.name)));
        // Those of a bucket that is no more in the map are in no line, and so not in the sum.
        self.objects += self.buckets.iter().map(|it| it.objects).sum::<u64>();
        self.object_bytes += self.buckets.iter().map(|it| it.bytes).sum::<u64>();
    }
}

pub(super) fn write_text(
    out: &mut impl Write,
    spaces: &Spaces,
    growth: Option<&Growth>,
) -> std::io::Result<()> {
    let Spaces { all, objects, object_bytes, buckets, .. } = spaces;
    if all.bytes > 0 {
        writeln!(
            out,
            "space: {}, {} free, {} waiting for reuse",
            all.text(),
            bytes(all.free),
            bytes(all.waiting)
        )?;
    }
    if let Some(Growth { bytes: grown, within_s, .. }) = growth {
        writeln!(out, "  {} more taken than {} ago", bytes(*grown), span(*within_s))?;
    }
    if all.unknown > 0 {
        writeln!(
            out,
            "  of {} nobody says now how much is used: their placement groups begin, or their servers do not answer",
            bytes(all.unknown)
        )?;
    }
    self::buckets(out, buckets, (*objects, *object_bytes), spaces.pgs_uncounted)
}

/// Buckets, and the objects of all of them with their bytes.
pub(crate) fn buckets(
    out: &mut impl Write,
    buckets: &[Bucket],
    (objects, object_bytes): (u64, u64),
    pgs_uncounted: u64,
) -> std::io::Result<()> {
    writeln!(
        out,
        "buckets: {}, with {objects} objects of {}, each counted once",
        buckets.len(),
        bytes(object_bytes)
    )?;
    if pgs_uncounted > 0 {
        writeln!(
            out,
            "  without those of {pgs_uncounted} placement groups, which are not counted now"
        )?;
    }
    for Bucket { name, objects, bytes: size } in buckets.iter().take(ROWS_SHOWN_MAX) {
        writeln!(out, "  {:>10}  {objects:>12} objects  {name}", bytes(*size))?;
    }
    match buckets.len().saturating_sub(ROWS_SHOWN_MAX) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more, which `--json` shows"),
    }
}
