//! The groups of a cluster that can do without a meta server, by the managers' map.

use larder_protocol::manager::state::{PgRecord, Topology};
use larder_types::{PgId, ServerId, View};

/// A group that needs a server, or may do so.
struct Needing {
    pg: PgId,
    view: View,
    /// Another member may lead it, and is up.
    has_other: bool,
}

fn needing(map: &Topology, me: ServerId) -> impl Iterator<Item = Needing> {
    let begun = (0..).map(PgId).zip(&map.pgs).filter(|(_, record)| record.view > View(0));
    begun.filter_map(move |(pg, record)| {
        let may_lead = |server: &ServerId| *server != me && map.is_up(*server);
        let has_other = record.qualified.iter().any(may_lead);
        let counts = record.members.contains(&me) && !record.lacking.contains(&me);
        let is_to_have_it = [&record.members, &record.target].iter().any(|it| it.contains(&me))
            || record.learners.contains(&me);
        let goes_on = record.is_active() && has_other;
        (counts || is_to_have_it && !goes_on).then_some(Needing {
            pg,
            view: record.view,
            has_other,
        })
    })
}

/// A group that keeps this server from forgetting what it has; `None` if it can forget what it has of all.
pub(super) fn needed_by(map: &Topology, me: ServerId) -> Option<PgId> {
    needing(map, me).next().map(|it| it.pg)
}

/// The groups that would lose nothing with this server though they have not let it go, each with its view. There are none
/// if one would lose something: then it forgets nothing.
pub(super) fn to_leave(map: &Topology, me: ServerId) -> Vec<(PgId, View)> {
    let needing: Vec<Needing> = needing(map, me).collect();
    if needing.iter().any(|it| !it.has_other) {
        return Vec::new();
    }
    needing.into_iter().map(|it| (it.pg, it.view)).collect()
}

/// Returns true if the groups would go on without this server: it may end, and its next start finds them without it.
pub(super) fn can_be_spared(map: &Topology, me: ServerId) -> bool {
    let least = usize::from(map.settings().min_members);
    let is_spared = |record: &PgRecord| {
        let others =
            || record.members.iter().filter(|server| **server != me && map.is_up(**server));
        let may_lead = others().any(|server| record.qualified.contains(server));
        record.is_active() && may_lead && others().count() >= least
    };
    map.pgs.iter().filter(|record| record.members.contains(&me)).all(is_spared)
}
