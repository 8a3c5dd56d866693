//! Objects and bytes of each bucket in the groups that this server leads, as the groups' ledgers have
//! counted them, without a read of the index. A key is in one group, and a group has one primary. So the
//! sums over all meta servers are the cluster's, but for a group whose former primary is cut off and does
//! not know of its successor.

use std::cmp::Reverse;
use std::collections::BTreeMap;
#[cfg(test)]
use std::ops::ControlFlow;

#[cfg(test)]
use larder_kv::KvReader;
use larder_protocol::SpaceUse;
#[cfg(test)]
use larder_protocol::ledger::BucketCounts;
use larder_protocol::ledger::ObjectCount;
use larder_protocol::pg::Role;
use larder_types::{BucketId, BucketName, BucketRecord, LvId};
#[cfg(test)]
use larder_types::{PgId, VersionRow, rows};

use super::Meta;
use super::index::Buckets;
use crate::limits::{BUCKETS_REPORTED_MAX, VOLUMES_REPORTED_MAX};
use crate::progress::{BucketUsage, SpaceStatus, VolumeStatus};

/// Of the groups that a server leads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BucketUse {
    /// Objects and bytes of each bucket there, as far as they are counted.
    pub counts: BTreeMap<BucketId, ObjectCount>,
    /// Groups that the server leads and does not serve yet, has not counted yet, or whose counts are void.
    pub uncounted: usize,
}

impl Meta {
    /// Objects and bytes of each bucket in the groups that this server leads.
    #[must_use]
    pub fn bucket_use(&self) -> BucketUse {
        let (mut all, mut copied) = (BucketUse::default(), Vec::new());
        for pg in self.pg_ids() {
            let member = self.lock(pg);
            match (member.pg.role(), member.pg.counts()) {
                (Role::Serving, Some(counts)) => copied.extend(counts.iter()),
                (Role::Serving | Role::Levelling | Role::Active | Role::Halted, _) => {
                    all.uncounted += 1;
                }
                _ => {}
            }
            // Puts wait for the lock: of many buckets no sums are made under it.
            drop(member);
            for (bucket, count) in copied.drain(..) {
                let sum = all.counts.entry(bucket).or_default();
                sum.objects = sum.objects.saturating_add(count.objects);
                sum.bytes = sum.bytes.saturating_add(count.bytes);
            }
        }
        all
    }

    /// Space of the volumes of the groups that this server leads, and what buckets have in these.
    #[must_use]
    pub fn space_now(&self) -> SpaceStatus {
        let mut now = SpaceStatus::default();
        for pg in self.pg_ids() {
            let member = self.lock(pg);
            if member.pg.role() == Role::Serving {
                let room = VOLUMES_REPORTED_MAX - now.volumes.len();
                now.volumes.extend(member.pg.usage_by_lv().take(room).map(volume_now));
            }
        }
        let used = self.bucket_use();
        let of = |(bucket, count): (BucketId, ObjectCount)| {
            let ObjectCount { objects, bytes } = count;
            BucketUsage { bucket: bucket.0, objects, bytes }
        };
        now.buckets = used.counts.into_iter().map(of).collect();
        now.buckets.sort_by_key(|it| (Reverse(it.bytes), it.bucket));
        for other in now.buckets.split_off(BUCKETS_REPORTED_MAX.min(now.buckets.len())) {
            let all = &mut now.other_buckets;
            all.bucket += 1;
            all.objects = all.objects.saturating_add(other.objects);
            all.bytes = all.bytes.saturating_add(other.bytes);
        }
        now.uncounted = used.uncounted as u32;
        now
    }

    /// The buckets of the map by number.
    #[must_use]
    pub fn bucket_names(&self) -> BTreeMap<BucketId, BucketName> {
        self.index.buckets.names()
    }
}

fn volume_now((lv, usage): (LvId, SpaceUse)) -> VolumeStatus {
    let blocks = |count: u64| u32::try_from(count).expect("a volume has fewer");
    VolumeStatus {
        volume: lv.0,
        blocks: blocks(usage.total),
        free: blocks(usage.free + usage.resting + usage.withheld),
        waiting: blocks(usage.waiting),
        unread: blocks(usage.unread),
    }
}

impl Buckets {
    fn names(&self) -> BTreeMap<BucketId, BucketName> {
        let name = |(name, record): (&BucketName, &BucketRecord)| (record.id, name.clone());
        match self {
            Self::Here(manager) => manager.map().map.buckets.iter().map(name).collect(),
            Self::Apart(live) => live.managers.map().buckets.iter().map(name).collect(),
        }
    }
}

#[cfg(test)]
impl Meta {
    /// The difference between the counts of a group here and a scan of its rows, if there is one, for tests.
    pub(crate) fn miscounted(&self, pg: PgId) -> Option<String> {
        let member = self.lock(pg);
        let Some(counted) = member.pg.counts() else {
            return member.pg.count_fault().map(|fault| fault.to_string());
        };
        let mut scanned = BucketCounts::default();
        let behind = rows::prefix_end(b"V");
        let scan = self.index.kv.scan(b"V", behind.as_deref(), &mut |row, value| {
            let (bucket, key, _) = rows::parse_keyed(row).expect("a key's row");
            if self.pg_of(bucket, &key) == pg {
                let size = VersionRow::read(value).expect("a version").metax.size;
                scanned.note(bucket, size).expect("few objects");
            }
            ControlFlow::Continue(())
        });
        scan.expect("an index that can be read");
        (*counted != scanned).then(|| format!("counted {counted:?}, found {scanned:?}"))
    }
}
