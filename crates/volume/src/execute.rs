//! Executing a group: in order, with one sync, answered as a whole.
//!
//! ```text
//!  commands ─▶ judged and queued, in order ─▶ pwritev per run ─▶ dirty headers ─▶ sync ─▶ completions
//! ```
//!
//! A `Verify` cuts a group in two, each part with its own sync: it has to read what came before it from the
//! device. So does the giving of a PV that has an owner, or to an LV that has another, and the freeing of one. The completions of a part
//! are right as soon as its sync returned. PVs that are given for the first time share a sync between the first and
//! the second slots of their headers, however many they are.

use larder_env::DiskError;

use crate::command::{Action, Answer, Command, Completion, Refusal, Verdict};
use crate::limits::GROUP_COMMANDS_MAX;
use crate::part::Part;
use crate::run::Run;
use crate::volume::Volume;
use crate::write::Write;

impl Volume {
    /// Does all of a group and appends its completions to `done`, in the order of the commands.
    ///
    /// # Panics
    /// If the group has more than [`GROUP_COMMANDS_MAX`] commands.
    pub fn execute(&mut self, group: Vec<Command>, done: &mut Vec<Completion>) {
        assert!(group.len() <= GROUP_COMMANDS_MAX, "a group of {} commands", group.len());
        self.counters.groups += 1;
        self.counters.commands += group.len() as u64;
        self.counters.largest_group = self.counters.largest_group.max(group.len() as u64);
        let expected = done.len() + group.len();
        let mut part = Part { run: Run::new(), first: done.len(), done };
        for command in &group {
            let result = self.do_unless_broken(|volume| volume.step(&command.action, &mut part));
            part.done.push(Completion { tag: command.tag, result });
        }
        let synced = self.do_unless_broken(|volume| volume.commit(&mut part).map(Ok));
        if synced.is_err() {
            for completion in &mut part.done[part.first..] {
                completion.result = Err(Refusal::Broken);
            }
        }
        assert_eq!(done.len(), expected, "each command has one completion");
    }

    /// Nothing is done on a broken disk, and a failure breaks it for good.
    fn do_unless_broken<T>(
        &mut self,
        action: impl FnOnce(&mut Self) -> Result<Result<T, Refusal>, DiskError>,
    ) -> Result<T, Refusal> {
        if self.broken.is_some() {
            return Err(Refusal::Broken);
        }
        action(self).unwrap_or_else(|error| {
            self.broken = Some(error);
            Err(Refusal::Broken)
        })
    }

    fn step<'a>(
        &mut self,
        action: &'a Action,
        part: &mut Part<'a, '_>,
    ) -> Result<Verdict, DiskError> {
        let planted = self.planted;
        Ok(match action {
            Action::Write { lv, grant, extents, data, len } => {
                return self.write(&Write { lv: *lv, grant, extents, data, len: *len }, part);
            }
            Action::CreatePv { pv, lv, replica, map } => {
                return self.give(*pv, (*lv, *replica), *map, part);
            }
            Action::FreePv { pv, map } => return self.free(*pv, *map, part),
            Action::Verify { chunk } => return self.verify(chunk, part),
            Action::Open { lv, view, floor, boot } => {
                let boots = (*boot, self.boot);
                self.change(*lv, |pv| pv.open(*view, *floor, boots, planted)).map(Answer::Floor)
            }
            Action::RaiseFloor { lv, floor } => {
                self.change(*lv, |pv| pv.raise_floor(*floor, planted)).map(Answer::Floor)
            }
            Action::Void { lv, grant } => {
                self.change(*lv, |pv| pv.void(*grant, planted)).map(|_| Answer::Voided)
            }
        })
    }
}
