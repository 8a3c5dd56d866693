//! A primary that serves above its high-water marks, and is told later what its rows left free when it began.

use larder_protocol::rebuild::Space;
use larder_protocol::{LvInfo, Outbox};
use larder_types::{PgId, View};

use super::Node;
use crate::fate::Fate;
use crate::happening::NodeIn;
use crate::index::Port;
use crate::net::{MS, Net};
use crate::verdict::Finding;

/// Microseconds for which the rows are read, at most: several views may come and go.
const READ_US: u64 = 2_000 * MS;

impl Node {
    pub(super) fn serves_early(&self, view: View) -> bool {
        self.setup.options.early && view.0.is_multiple_of(2)
    }

    /// Serves at once; `found` is what its rows leave free now.
    pub(super) fn adopt_early(
        &mut self,
        pg: PgId,
        lvs: Vec<LvInfo>,
        found: Space,
        net: &mut Net,
    ) -> Result<(), Fate> {
        let (run, mut out) = (self.run, Outbox::new());
        let machine = &mut self.member(pg).pg;
        let view = machine.view();
        if let Err(fault) = machine.adopt_early(lvs.into_iter(), &mut out) {
            net.find(Finding::Contradiction(format!("pg {pg} in view {view}: {fault}")));
            return Ok(());
        }
        self.life().unread.insert(pg, (view, found));
        net.faults.add("views served before the rows are read", 1);
        let delay = net.rng.below(READ_US);
        net.after(delay, (self.id, NodeIn::SpaceRead { run, pg, view }));
        self.carry_out(pg, out, net)
    }

    /// The rows of the time at which it began are read.
    pub(super) fn space_read(&mut self, pg: PgId, view: View, net: &mut Net) -> Result<(), Fate> {
        let is_of_view = |(of, _): &mut (View, Space)| *of == view;
        let entry = self.life().unread.get_mut(&pg).is_some_and(is_of_view);
        if !entry || self.member(pg).pg.view() != view {
            return Ok(());
        }
        let Some((_, found)) = self.life().unread.remove(&pg) else { return Ok(()) };
        let (now, kv, mut out) = (self.now(net), self.kv.clone(), Outbox::new());
        self.member(pg).pg.complete_space(now, found, &Port(&kv), &mut out);
        self.carry_out(pg, out, net)
    }
}
