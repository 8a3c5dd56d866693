//! The modelled cluster: disks, volumes on them, and the groups that write volumes.

use std::collections::{BTreeMap, BTreeSet};

use larder_protocol::placement::{
    CopyRules, DiskInfo, FailureDomains, LvCopy, LvPlacement, MachineId, PlacementState, RackId,
    Room, Weight, place_lv, place_lv_of_shares,
};
use larder_types::{DiskId, LvId, RegionId, ServerId};

use larder_bench::workload::Random;

/// Copies of every volume.
pub(super) const RULES: CopyRules = CopyRules { copies: 3, min_copies: 3 };
/// Servers join once this share of all PVs is left, in percent.
const JOIN_FREE_PERCENT: u64 = 5;
/// By how much the writes of a group in one week differ from its share at most, in percent.
const UNEVEN_PERCENT: u64 = 10;

/// The settings of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setup {
    /// Data servers at first, and as many at each join.
    pub(super) servers: u32,
    pub(super) servers_max: u32,
    pub(super) disks_per_server: u32,
    /// PVs of a disk.
    pub(super) pvs: u32,
    pub(super) volume_mib: u64,
    /// Groups: each writes one volume at a time.
    pub(super) groups: u32,
    /// MiB that clients write in a week, each byte once.
    pub(super) weekly_mib: u64,
    pub(super) weeks: u32,
    pub(super) seed: u64,
}

/// Bytes of a volume.
#[derive(Debug, Default)]
pub(super) struct Volume {
    pub(super) used_mib: u64,
    /// The week in which they were written, and MiB.
    by_week: Vec<(u32, u64)>,
}

/// A group of keys.
#[derive(Debug)]
struct Group {
    /// Place of the volume that it writes.
    writes: usize,
    /// MiB that it wrote last week.
    rate_mib: u64,
}

/// Use and load of a disk in a week.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) used_mib: u64,
    pub(super) writes_mib: u64,
    /// By each age that was asked for, in parts of an unknown whole.
    pub(super) reads: Vec<f64>,
}

#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) setup: Setup,
    /// Each at the place that its number says.
    pub(super) disks: Vec<DiskInfo>,
    /// The same of volumes.
    pub(super) lvs: Vec<(LvId, Vec<LvCopy>)>,
    /// Copies of volumes that are written, on each disk.
    pub(super) written_on: BTreeMap<DiskId, u64>,
    /// True if new volumes go where few are written.
    by_shares: bool,
    volumes: Vec<Volume>,
    groups: Vec<Group>,
    pub(super) week: u32,
    dice: Random,
}

impl Cluster {
    /// The first servers, and a volume for each group, full to a share drawn by chance: some are nearly full, others new.
    pub(super) fn new(setup: &Setup, by_shares: bool) -> Self {
        let mut new = Self {
            setup: setup.clone(),
            disks: Vec::new(),
            lvs: Vec::new(),
            written_on: BTreeMap::new(),
            by_shares,
            volumes: Vec::new(),
            groups: Vec::new(),
            week: 0,
            dice: Random(setup.seed),
        };
        new.join();
        for _ in 0..setup.groups {
            let writes = new.draw_volume();
            let used_mib = new.dice.below(setup.volume_mib);
            new.volumes[writes] = Volume { used_mib, by_week: vec![(0, used_mib)] };
            new.groups.push(Group { writes, rate_mib: 0 });
        }
        new
    }

    fn servers(&self) -> u32 {
        self.disks.last().map_or(0, |disk| disk.server.0 + 1)
    }

    /// As many servers more as there were at first.
    fn join(&mut self) {
        let first = self.servers();
        for server in first..(first + self.setup.servers).min(self.setup.servers_max) {
            for _ in 0..self.setup.disks_per_server {
                self.disks.push(self.new_disk(server));
            }
        }
    }

    fn new_disk(&self, server: u32) -> DiskInfo {
        let pvs = self.setup.pvs;
        DiskInfo {
            disk: DiskId(self.disks.len() as u32),
            server: ServerId(server),
            domains: FailureDomains {
                region: RegionId::default(),
                rack: RackId(0),
                machine: MachineId(server),
            },
            weight: Weight(pvs),
            pv_count: pvs,
            pv_free: pvs,
            placement_state: PlacementState::In,
            up: true,
            room: Room::Some,
        }
    }

    /// A week passes: servers join if room is short, and groups write. True if servers joined.
    pub(super) fn pass_week(&mut self) -> bool {
        self.week += 1;
        let joins = self.is_short() && self.servers() < self.setup.servers_max;
        if joins {
            self.join();
        }
        for group in 0..self.groups.len() {
            let spread = 2 * UNEVEN_PERCENT * 10;
            let mill = 1000 - UNEVEN_PERCENT * 10 + self.dice.below(spread + 1);
            let rate_mib = self.setup.weekly_mib * mill / 1000 / u64::from(self.setup.groups);
            self.groups[group].rate_mib = rate_mib;
            self.write(group, rate_mib);
        }
        joins
    }

    fn is_short(&self) -> bool {
        let free: u64 = self.disks.iter().map(|disk| u64::from(disk.pv_free)).sum();
        let all: u64 = self.disks.iter().map(|disk| u64::from(disk.pv_count)).sum();
        free * 100 < all * JOIN_FREE_PERCENT
    }

    fn write(&mut self, group: usize, mut mib: u64) {
        while mib > 0 {
            let at = self.groups[group].writes;
            let volume = &mut self.volumes[at];
            let takes = mib.min(self.setup.volume_mib - volume.used_mib);
            volume.used_mib += takes;
            match volume.by_week.last_mut() {
                Some((week, in_it)) if *week == self.week => *in_it += takes,
                _ => volume.by_week.push((self.week, takes)),
            }
            mib -= takes;
            if volume.used_mib == self.setup.volume_mib {
                for copy in &self.lvs[at].1 {
                    *self.written_on.entry(copy.disk).or_default() -= 1;
                }
                self.groups[group].writes = self.draw_volume();
            }
        }
    }

    /// A new volume; its place.
    fn draw_volume(&mut self) -> usize {
        let at = self.lvs.len();
        let id = LvId(at as u32);
        let placed = match self.by_shares {
            true => place_lv_of_shares(id, &self.disks, RULES, &self.written_on),
            false => place_lv(id, &self.disks, RULES),
        };
        let LvPlacement { disks, narrow, .. } = placed.expect("servers join before room runs out");
        assert!(!narrow, "three machines have room");
        let copies = disks.iter().enumerate().map(|(replica, disk)| copy(replica, *disk));
        self.lvs.push((id, copies.collect()));
        self.volumes.push(Volume::default());
        for disk in disks {
            self.count(disk, true, 1);
        }
        at
    }

    /// Counts a copy that a disk has now, or has no more.
    pub(super) fn count(&mut self, disk: DiskId, is_written: bool, by: i32) {
        let pv_free = &mut self.disks[disk.0 as usize].pv_free;
        *pv_free = pv_free.checked_add_signed(-by).expect("a PV is free");
        let on = self.written_on.entry(disk).or_default();
        *on = on.saturating_add_signed(if is_written { by.into() } else { 0 });
    }

    /// The volumes that groups write.
    pub(super) fn written(&self) -> BTreeSet<LvId> {
        self.groups.iter().map(|group| LvId(group.writes as u32)).collect()
    }

    pub(super) fn used_mib(&self, lv: LvId) -> u64 {
        self.volumes[lv.0 as usize].used_mib
    }

    /// Bytes and requests of each disk; reads by how often bytes of an age are asked for.
    pub(super) fn loads(&self, reads: &[&dyn Fn(u32) -> f64]) -> Vec<Load> {
        let none = Load { used_mib: 0, writes_mib: 0, reads: vec![0.0; reads.len()] };
        let mut loads = vec![none; self.disks.len()];
        for ((_, copies), volume) in self.lvs.iter().zip(&self.volumes) {
            let asked: Vec<f64> = reads.iter().map(|of_age| self.asked(volume, of_age)).collect();
            for copy in copies {
                let load = &mut loads[copy.disk.0 as usize];
                load.used_mib += volume.used_mib;
                let share = |asked: &f64| asked / copies.len() as f64;
                load.reads.iter_mut().zip(&asked).for_each(|(read, asked)| *read += share(asked));
            }
        }
        for group in &self.groups {
            for copy in &self.lvs[group.writes].1 {
                loads[copy.disk.0 as usize].writes_mib += group.rate_mib;
            }
        }
        loads
    }

    fn asked(&self, volume: &Volume, of_age: &dyn Fn(u32) -> f64) -> f64 {
        volume.by_week.iter().map(|(week, mib)| of_age(self.week - week) * *mib as f64).sum()
    }
}

/// A copy that has everything.
pub(super) fn copy(replica: usize, disk: DiskId) -> LvCopy {
    LvCopy { replica, disk, current: true, emptied: false, ordered: false, made: true }
}
