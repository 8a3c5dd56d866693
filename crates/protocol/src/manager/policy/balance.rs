//! Rebalancing: a volume of a disk that is fuller than others gets a copy more on an emptier one. Once that has
//! everything, [`plan_moves`](crate::placement::plan_moves) has the fullest disk's copy go, as with a disk that drains.
//!
//! # Invariants
//!
//! 1. Copies that are missing come first: nothing begins while one is to be made, or a data server is away.
//! 2. Nothing begins that a majority does not follow, nor while a manager is of a release that would undo it, nor while
//!    operators have it paused. What moves already goes on: a copy that was begun is filled, and one too many goes.
//! 3. A volume begins to move only while less than [`BALANCE_MOVES_MAX`] have more lasting copies than wanted.
//! 4. A plan is made once in [`LV_PLAN_MS`], or when a disk joins or a data server is up again, and only if something may begin.

use larder_types::LvId;

use super::{StepContext, Subject};
use crate::limits::{BALANCE_MOVES_MAX, LV_PLAN_MS};
use crate::manager::balance::{aims, made, written};
use crate::manager::state::{Command, ServerRole};
use crate::placement::{
    Balance, DiskInfo, LvCopy, LvMove, PlacementState, plan_balance, repairs, wider,
};

impl StepContext<'_> {
    /// Begins the next moves for balance, beside the changes of the volumes that are not as they should be.
    pub(super) fn balance_lvs(
        &mut self,
        lvs: &[(LvId, Vec<LvCopy>)],
        disks: &[DiskInfo],
        planned: &[LvMove],
    ) {
        let is_due = self.now_ms >= self.leading.balanced_ms + LV_PLAN_MS;
        let may_move = self.moves_volumes && self.map.balance_paused_ms.is_none();
        if !is_due || !may_move || !self.leading.leases.is_followed(self.now_ms) {
            return;
        }
        let limit = BALANCE_MOVES_MAX.saturating_sub(self.moving_lvs(lvs, disks));
        if limit == 0 || !self.may_balance(lvs, disks, planned) {
            return;
        }
        self.leading.balanced_ms = self.now_ms;
        let (rules, written) = (self.copy_rules(), written(self.map));
        let first = self.leading.balanced_to;
        let all = self.copies(made(self.map));
        let of = Balance { first, ..aims(&all, &written, disks, rules) };
        let plan = plan_balance(&of, limit);
        // Where something moves there may be more.
        if plan.shifts.is_empty() {
            self.leading.balanced_to = plan.next;
        }
        for shift in plan.shifts {
            let to = disks.iter().find(|info| info.disk == shift.to);
            if let Some(server) = to.map(|info| info.server) {
                self.propose(
                    Subject::Lv(shift.lv),
                    Command::AddReplica(shift.lv, server, shift.to),
                );
            }
        }
    }

    /// Volumes that have a copy more than wanted, or may be about to.
    fn moving_lvs(&self, lvs: &[(LvId, Vec<LvCopy>)], disks: &[DiskInfo]) -> usize {
        let copies = self.copy_rules().copies;
        let narrower = |lv: LvId| self.map.lv(lv).is_some_and(|lv| lv.present().count() <= copies);
        let is_coming = |subject: &&Subject| matches!(subject, Subject::Lv(lv) if narrower(*lv));
        let coming = self.leading.under_way.iter().filter(is_coming).count();
        wider(lvs, disks, self.copy_rules()) + coming
    }

    fn may_balance(
        &self,
        lvs: &[(LvId, Vec<LvCopy>)],
        disks: &[DiskInfo],
        planned: &[LvMove],
    ) -> bool {
        let is_away = |server| self.placement_state(server) == PlacementState::Away;
        let data = self.map.servers.iter().filter(|(_, s)| s.roles.contains(&ServerRole::Data));
        !planned.iter().any(|step| matches!(step, LvMove::Add(..)))
            && !data.map(|(server, _)| *server).any(is_away)
            && !repairs(lvs, disks, self.copy_rules())
    }
}
