//! The objects and bytes of each bucket, for `larder bucket usage`. Members of placement groups count them with each change, so
//! nothing is scanned.

use std::io::Write;
use std::path::Path;

use larder_protocol::manager::state::Topology;
use larder_roles::managers::Managers;
use larder_roles::peers::Peers;
use larder_roles::progress::SpaceStatus;
use larder_types::ServerId;
use serde::Serialize;

use super::super::RoleError;
use super::super::admin_client;
use super::background;
use super::space::{Bucket, Spaces};
use crate::cluster::disk_free_space::DiskFreeSpace;
use crate::quantity::bytes;

/// Times that all servers are asked if groups move meanwhile.
const ASKED_MAX: u32 = 2;

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Usage {
    /// True if every object of these buckets is counted.
    pub(crate) is_exact: bool,
    /// True if there are no buckets but these: a manager has confirmed the map that names them.
    #[serde(skip)]
    pub(crate) is_latest: bool,
    /// Placement groups whose objects are not in the counts.
    pub(crate) pgs_uncounted: u64,
    /// The buckets with the most bytes come first.
    pub(crate) buckets: Vec<Bucket>,
    /// Buckets that are not named, as there are too many.
    pub(crate) buckets_not_named: u64,
    /// Objects of all buckets, and their bytes as clients see them.
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

impl Usage {
    /// The part of one bucket; `None` if there is none of that name.
    pub(crate) fn of_bucket(mut self, name: &str) -> Option<Self> {
        self.buckets.retain(|bucket| bucket.name == name);
        let &Bucket { objects, bytes, .. } = self.buckets.first()?;
        Some(Self { objects, bytes, ..self })
    }
}

/// Asks the meta servers of the cluster that a configuration or a directory belongs to.
pub(crate) fn ask(path: &Path) -> Result<Usage, RoleError> {
    admin_client::runtime()?.block_on(async {
        let config = admin_client::config(path)?;
        let (endpoint, managers) = admin_client::connect(&config).await?;
        let metas = Peers::new(&endpoint);
        let mut asked = 0;
        loop {
            let is_latest = admin_client::is_confirmed(&*managers).await;
            let map = managers.map();
            let reported = background::spaces(&metas, &map).await;
            let was_still = is_latest
                && admin_client::is_confirmed(&*managers).await
                && are_led(&map, &managers.map());
            asked += 1;
            if was_still || !is_latest || asked == ASKED_MAX {
                return Ok(put_together(&map, &reported, is_latest, was_still));
            }
        }
    })
}

/// True if all groups are where they were. One that moved while servers were asked was counted by two of them, or by none.
fn are_led(before: &Topology, after: &Topology) -> bool {
    let views = |map: &Topology| map.pgs.iter().map(|pg| pg.view).collect::<Vec<_>>();
    views(before) == views(after)
}

fn put_together(
    map: &Topology,
    reported: &[(ServerId, SpaceStatus)],
    is_latest: bool,
    was_still: bool,
) -> Usage {
    let spaces = Spaces::of(
        map,
        reported.iter().map(|(server, now)| (*server, now)),
        &DiskFreeSpace::default(),
    );
    let Spaces { objects, object_bytes: bytes, buckets, buckets_not_named, pgs_uncounted, .. } =
        spaces;
    let is_exact = was_still && pgs_uncounted == 0 && buckets_not_named == 0;
    Usage { is_exact, is_latest, pgs_uncounted, buckets, buckets_not_named, objects, bytes }
}

/// Prints it for people.
pub(crate) fn write_text(out: &mut impl Write, usage: &Usage) -> std::io::Result<()> {
    let Usage { is_exact, pgs_uncounted, buckets, buckets_not_named, .. } = usage;
    if !is_exact {
        writeln!(out, "NOT EXACT: {}", lacks(*pgs_uncounted, *buckets_not_named))?;
    }
    writeln!(out, "{:>14}  {:>20}  {:>10}  bucket", "objects", "bytes", "")?;
    let mut line = |objects, size, name| {
        writeln!(out, "{objects:>14}  {size:>20}  {:>10}  {name}", bytes(size))
    };
    for Bucket { name, objects, bytes } in buckets {
        line(*objects, *bytes, name.as_str())?;
    }
    if buckets.len() == 1 { Ok(()) } else { line(usage.objects, usage.bytes, "(all)") }
}

/// The reason why counts are not exact.
fn lacks(pgs_uncounted: u64, buckets_not_named: u64) -> String {
    match (pgs_uncounted, buckets_not_named) {
        (0, 0) => "no manager says that its map is the latest, or placement groups moved while their servers were asked. See `larder status`, or ask again".to_owned(),
        (0, buckets) => format!(
            "there are too many buckets: at least {buckets} are in the sum of all, in part or whole, and not in their own line"
        ),
        (pgs, _) => format!(
            "without {pgs} placement groups, which are being counted after a start, or whose meta servers do not answer. See `larder status`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage() -> Usage {
        let bucket = |name: &str, objects, bytes| Bucket { name: name.to_owned(), objects, bytes };
        let buckets = vec![bucket("photos", 3, 3 << 20), bucket("logs", 2, 70)];
        Usage { is_exact: true, buckets, objects: 5, bytes: (3 << 20) + 70, ..Usage::default() }
    }

    fn shown(usage: &Usage) -> Vec<String> {
        let mut out = Vec::new();
        write_text(&mut out, usage).expect("memory takes it");
        String::from_utf8(out).expect("text").lines().map(str::to_owned).collect()
    }

    #[test]
    fn buckets_are_shown_to_the_byte_with_their_sum() {
        let lines = shown(&usage());
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[1].ends_with("3               3145728     3.0 MiB  photos"), "{lines:?}");
        assert!(lines[3].ends_with("5               3145798     3.0 MiB  (all)"), "{lines:?}");
    }

    #[test]
    fn one_bucket_is_shown_alone() {
        let logs = usage().of_bucket("logs").expect("it is there");
        assert_eq!((logs.objects, logs.bytes, logs.buckets.len()), (2, 70, 1));
        assert_eq!(shown(&logs).len(), 2);
        assert_eq!(usage().of_bucket("log"), None);
    }

    #[test]
    fn counts_are_not_exact_if_a_group_moved_meanwhile() {
        use larder_protocol::manager::state::PgRecord;
        use larder_types::View;
        let led = |view| {
            let members = vec![ServerId(1)];
            let pg = PgRecord { view: View(view), members, ..PgRecord::default() };
            Topology { pgs: vec![pg], ..Topology::default() }
        };
        assert!(are_led(&led(3), &led(3)));
        assert!(!are_led(&led(3), &led(4)));
        let reported = [(ServerId(1), SpaceStatus::default())];
        assert!(put_together(&led(3), &reported, true, true).is_exact);
        let moved = put_together(&led(3), &reported, true, false);
        assert!(!moved.is_exact && moved.is_latest);
        assert!(shown(&moved)[0].contains("moved while their servers were asked"));
    }

    #[test]
    fn incomplete_counts_are_marked_first() {
        let lacking = Usage { is_exact: false, pgs_uncounted: 4, ..usage() };
        assert!(shown(&lacking)[0].starts_with("NOT EXACT: without 4 placement groups"));
        let old = Usage { is_exact: false, ..usage() };
        assert!(shown(&old)[0].starts_with("NOT EXACT: no manager says"));
    }
}
