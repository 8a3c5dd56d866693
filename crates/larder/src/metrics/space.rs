//! Space of the volumes that placement groups have drawn, in a store and in a cluster's meta server, which knows it of the
//! groups that it leads.

use larder_roles::SpaceUse;
use larder_roles::meta::Meta;
use larder_types::limits::BLOCK_BYTES;

use super::Metric;

pub(super) fn gauges(meta: &Meta) -> [Metric; 6] {
    let mut space = SpaceUse::default();
    for pg in meta.pg_ids() {
        let of = meta.gauges(pg).space;
        space.total += of.total;
        space.free += of.free;
        space.waiting += of.waiting;
        space.resting += of.resting;
        space.withheld += of.withheld;
        space.unread += of.unread;
    }
    let bytes = |blocks: u64| blocks as f64 * f64::from(BLOCK_BYTES);
    let used = space.total - space.free - space.resting - space.withheld - space.waiting;
    [
        ("space_used_bytes", "Bytes of blocks that hold data", bytes(used)),
        ("space_waiting_bytes", "Bytes freed that wait for the floors", bytes(space.waiting)),
        (
            "space_resting_bytes",
            "Bytes freed that are given last, as reads that began before may need them",
            bytes(space.resting),
        ),
        ("space_free_bytes", "Bytes free in volumes", bytes(space.free)),
        (
            "space_withheld_bytes",
            "Bytes free in volumes for which the disk had no room",
            bytes(space.withheld),
        ),
        (
            "space_unread_bytes",
            "Bytes of volumes of which is not known yet what is free, after a start",
            bytes(space.unread),
        ),
    ]
}
