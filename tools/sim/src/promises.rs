//! The promises of a data server, which it must keep over every restart ("Crashes" and "Space" in
//! `ARCHITECTURE.md`). An independent model of floors, views and voids, held against what its volume admits and
//! remembers.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{BootId, Grant, GrantKey, LvId, MapVersion, PvId, View};
use larder_volume::{Action, Answer, Description};

#[derive(Debug, Default)]
struct Promise {
    view: View,
    floor: GrantKey,
    voided: BTreeSet<Grant>,
    /// Runs and views in which it was opened.
    opened: Option<(BootId, View)>,
    /// Its PV, and the newest map that was answered for.
    place: Option<(PvId, MapVersion)>,
}

/// Promises of one data server, by LV.
#[derive(Debug, Default)]
pub(crate) struct Promises(BTreeMap<LvId, Promise>);

impl Promises {
    /// Takes note of what was answered to a command.
    ///
    /// # Errors
    /// What was promised before and is broken by it.
    pub(crate) fn answered(
        &mut self,
        action: &Action,
        answer: Answer,
        boot: BootId,
    ) -> Result<(), String> {
        match (action, answer) {
            (Action::CreatePv { pv, lv, map, .. }, Answer::Created) => self.given(*pv, *lv, *map),
            (Action::Open { lv, view, boot: meant, .. }, Answer::Floor(floor)) => {
                let promise = self.0.entry(*lv).or_default();
                if *meant != boot {
                    return Err(format!("LV {lv} was opened for another run"));
                }
                if *view < promise.view {
                    return Err(format!("LV {lv} went from view {} to {view}", promise.view));
                }
                promise.view = *view;
                promise.opened = Some((boot, *view));
                promise.raise(*lv, floor)
            }
            (Action::RaiseFloor { lv, .. }, Answer::Floor(floor)) => {
                self.0.entry(*lv).or_default().raise(*lv, floor)
            }
            (Action::Void { lv, grant }, Answer::Voided) => {
                self.0.entry(*lv).or_default().voided.insert(*grant);
                Ok(())
            }
            (Action::Write { lv, grant, .. }, Answer::Written) => {
                let promise = self.0.entry(*lv).or_default();
                let is_open = promise.opened == Some((boot, grant.op.view));
                if is_open && grant.op >= promise.floor && !promise.voided.contains(grant) {
                    return Ok(());
                }
                Err(format!("LV {lv} took a write of {grant:?} although {promise:?}"))
            }
            _ => Ok(()),
        }
    }

    /// A PV that goes to another LV takes all promises about the former with it, and so does one that its LV has
    /// another for.
    fn given(&mut self, pv: PvId, lv: LvId, map: MapVersion) -> Result<(), String> {
        let of_others = self.0.iter().filter(|(other, _)| **other != lv);
        let mut newest =
            of_others.filter_map(|(_, promise)| promise.place).filter(|(at, _)| *at == pv);
        if newest.any(|(_, newest)| map <= newest) {
            return Err(format!("PV {pv} went to LV {lv} under map {map}, which is not newer"));
        }
        self.0
            .retain(|other, promise| *other == lv || promise.place.is_none_or(|(at, _)| at != pv));
        let promise = self.0.entry(lv).or_default();
        if promise.place.is_some_and(|(at, _)| at != pv) {
            *promise = Promise::default();
        }
        let before = promise.place.map_or(MapVersion(0), |(_, before)| before);
        promise.place = Some((pv, before.max(map)));
        Ok(())
    }

    /// Compares with what a volume remembers after a start.
    ///
    /// # Errors
    /// What it has forgotten.
    pub(crate) fn check(&mut self, found: &Description) -> Result<(), String> {
        // An LV given elsewhere under a newer map is promised no more, though nobody was answered.
        self.0.retain(|lv, promise| {
            promise.place.is_none_or(|(pv, map)| {
                // The PV to another LV, or another PV to the LV.
                let is_another =
                    found.pvs.iter().any(|it| (it.pv == pv) != (it.lv == *lv) && it.given > map);
                let is_let_go = found.let_go.iter().any(|(it, newest)| *it == pv && *newest > map);
                !is_another && !is_let_go
            })
        });
        for (lv, promise) in &self.0 {
            let Some(pv) = found.pvs.iter().find(|pv| pv.lv == *lv) else {
                return Err(format!("LV {lv} is gone"));
            };
            let is_void = |grant: &Grant| {
                grant.op.view < pv.view || grant.op < pv.floor || pv.voids.contains(grant)
            };
            if pv.view < promise.view || pv.floor < promise.floor {
                let (view, floor) = (pv.view, pv.floor);
                return Err(format!(
                    "LV {lv} has view {view} and floor {floor:?}, not {promise:?}"
                ));
            }
            if let Some(grant) = promise.voided.iter().find(|grant| !is_void(grant)) {
                return Err(format!("LV {lv} has forgotten the void of {grant:?}"));
            }
        }
        Ok(())
    }
}

impl Promise {
    fn raise(&mut self, lv: LvId, floor: GrantKey) -> Result<(), String> {
        if floor < self.floor {
            return Err(format!("LV {lv} went from floor {:?} to {floor:?}", self.floor));
        }
        self.floor = floor;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use larder_types::DiskId;
    use larder_volume::PvDescription;

    use super::*;

    /// Checks LV 4, which was promised view 15 in PV 2 under map 161.
    fn check(pv: u32, lv: u32, view: u64, given: u64) -> Result<(), String> {
        let place = Some((PvId(2), MapVersion(161)));
        let promise = Promise { view: View(15), place, ..Promise::default() };
        let found = PvDescription {
            pv: PvId(pv),
            lv: LvId(lv),
            replica: 0,
            view: View(view),
            floor: GrantKey::default(),
            voids: Vec::new(),
            provisioned_bytes: 0,
            generation: 1,
            given: MapVersion(given),
        };
        let description = Description {
            cluster: 1,
            disk: DiskId(1),
            pv_bytes: 1,
            pv_count_max: 4,
            data_start: 0,
            superblock_copies: 2,
            pvs: vec![found],
            let_go: Vec::new(),
            damaged: Vec::new(),
        };
        Promises(BTreeMap::from([(LvId(4), promise)])).check(&description)
    }

    #[test]
    fn only_what_a_newer_map_gave_away_is_promised_no_more() {
        assert_eq!(check(2, 4, 15, 161), Ok(()));
        assert!(check(2, 4, 14, 161).is_err(), "its view is forgotten");
        assert!(check(2, 4, 14, 302).is_err(), "the same PV once more is no other one");
        assert_eq!(check(2, 5, 0, 302), Ok(()), "the PV went to another LV");
        assert_eq!(check(0, 4, 0, 302), Ok(()), "the LV has another PV, though nobody was told");
        assert!(check(0, 4, 0, 160).is_err(), "that is older");
        assert!(check(2, 5, 0, 161).is_err(), "under no newer map");
    }
}
