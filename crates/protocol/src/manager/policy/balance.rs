//! Rebalancing: a volume of a disk that is fuller than others gets a copy more on an emptier one. Once that has
//! everything, [`plan_moves`](crate::placement::plan_moves) has the fullest disk's copy go, as with a disk that drains.
//!
//! # Invariants
//!
//! 1. Copies that are missing come first: nothing begins while one is to be made, or a data server is away.
//! 2. Nothing begins that a majority does not follow.
//! 3. At most [`BALANCE_MOVES_MAX`] volumes have a copy more at a time.

use larder_types::LvId;

use super::{Subject, Turn};
use crate::limits::BALANCE_MOVES_MAX;
use crate::manager::balance::{aims, moving, written};
use crate::manager::state::{Command, ServerRole};
use crate::placement::{DiskInfo, LvCopy, LvMove, Standing, plan_balance};

impl Turn<'_> {
    /// Begins the next moves for balance.
    pub(super) fn balance_lvs(
        &mut self,
        lvs: &[(LvId, Vec<LvCopy>)],
        disks: &[DiskInfo],
        planned: &[LvMove],
    ) {
        if !self.may_balance(lvs, planned) {
            return;
        }
        let written = written(self.map);
        let limit = BALANCE_MOVES_MAX.saturating_sub(moving(lvs, self.copy_rules()));
        for shift in plan_balance(&aims(lvs, &written, disks, self.copy_rules()), limit) {
            let to = disks.iter().find(|info| info.disk == shift.to);
            if let Some(server) = to.map(|info| info.server) {
                self.propose(
                    Subject::Lv(shift.lv),
                    Command::AddReplica(shift.lv, server, shift.to),
                );
            }
        }
    }

    fn may_balance(&self, lvs: &[(LvId, Vec<LvCopy>)], planned: &[LvMove]) -> bool {
        #[cfg(feature = "ablation")]
        if self.without_groups {
            return false;
        }
        let copies = self.copy_rules().copies;
        let repairs = |(_, of): &(LvId, Vec<LvCopy>)| {
            of.iter().filter(|copy| copy.current).count() < copies
                && of.iter().any(|copy| !copy.current)
        };
        let is_away = |server| self.standing(server) == Standing::Away;
        let data = self.map.servers.iter().filter(|(_, s)| s.roles.contains(&ServerRole::Data));
        let is_whole = !planned.iter().any(|step| matches!(step, LvMove::Add(..)))
            && !lvs.iter().any(repairs)
            && !data.map(|(server, _)| *server).any(is_away);
        is_whole && self.leading.leases.is_followed(self.now_ms)
    }
}
