//! Random groups against a model, through losses of power at every operation, kills and failed syncs.
//! With the `planted-bugs` feature the same runs must find every planted bug.

use std::sync::Arc;

use crate::support::*;
use larder_env::{SeededRng, SimDisk};
use larder_types::{BootId, Chunk, Grant, GrantKey, LvId, PvId};
use larder_volume::limits::VOIDS_MAX;
use larder_volume::{
    Action, Answer, Planted, PvDescription, Refusal, Volume, VolumeError, describe,
};

macro_rules! require {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}

/// The state that the LV's PV should have.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    view: u64,
    floor: GrantKey,
    voids: Vec<Grant>,
    is_open: bool,
}

impl Model {
    fn refuses(&self, grant: &Grant) -> bool {
        grant.op.view.0 != self.view || grant.op < self.floor || self.voids.contains(grant)
    }

    fn is_implied(&self, grant: &Grant) -> bool {
        grant.op.view.0 < self.view || grant.op < self.floor
    }

    /// Answers, and acts, as a sound volume of this boot.
    fn apply(&mut self, action: &Action, boot: u64) -> bool {
        match action {
            Action::Write { grant, .. } => self.is_open && !self.refuses(grant),
            Action::Verify { .. } => true,
            Action::RaiseFloor { floor, .. } => self.raise(*floor),
            Action::Open { view, floor, boot: meant, .. } => {
                if meant.0 != boot || view.0 < self.view || floor.view > *view {
                    return false;
                }
                self.is_open = true;
                self.view = view.0;
                self.raise(*floor)
            }
            Action::Void { grant, .. } => {
                let known = self.is_implied(grant) || self.voids.contains(grant);
                if !known && self.voids.len() < VOIDS_MAX {
                    self.voids.push(*grant);
                }
                known || self.voids.contains(grant)
            }
            Action::CreatePv { .. } | Action::FreePv { .. } => unreachable!("the LV has its PV"),
        }
    }

    fn raise(&mut self, floor: GrantKey) -> bool {
        self.floor = if floor.view.0 <= self.view { self.floor.max(floor) } else { self.floor };
        let mut voids = std::mem::take(&mut self.voids);
        voids.retain(|grant| !self.is_implied(grant));
        self.voids = voids;
        floor.view.0 <= self.view
    }
}

struct Run {
    rng: SeededRng,
    disk: Arc<SimDisk>,
    planted: Planted,
    boot: u64,
    next_seq: u64,
    next_block: u32,
    /// The state that was acknowledged.
    acked: Model,
    written: Vec<Chunk>,
    /// Writes under way when the disk failed: they may be there or not, but once verified they stay.
    in_doubt: Vec<Chunk>,
    /// Grants given out, by whatever became of them.
    grants: Vec<Grant>,
}

impl Run {
    fn new(seed: u64, planted: Planted) -> (Self, Volume) {
        let (mut disk, volume) = opened(seed);
        drop(volume);
        let volume = if planted == Planted::None {
            restart(&mut disk, 2)
        } else {
            disk.crash();
            disk = disk.reopen();
            Volume::open_with(&*disk, NAME, BootId(2), planted).unwrap()
        };
        let acked = Model { view: 1, floor: key(1, 0), ..Model::default() };
        let run = Self {
            rng: SeededRng::new(seed),
            disk,
            planted,
            boot: 2,
            next_seq: 1,
            next_block: 0,
            acked,
            written: Vec::new(),
            in_doubt: Vec::new(),
            grants: vec![grant(1, 0)],
        };
        (run, volume)
    }

    fn some_grant(&mut self) -> Grant {
        let recent = self.grants.len().min(12);
        let place = self.grants.len() - 1 - self.rng.below(recent as u64) as usize;
        self.grants[place]
    }

    /// A write to blocks that were never written, so that everything answered for stays verifiable.
    fn new_write(&mut self, view: u64) -> (Action, Chunk) {
        let len = 1 + self.rng.below(20_000) as u32;
        let new = chunk_at(grant(view, self.next_seq), self.next_block, len);
        self.next_seq += 1;
        self.next_block += len.div_ceil(4096) + u32::from(self.rng.one_in(3));
        self.grants.push(new.grant);
        (write(&new), new)
    }

    fn action(&mut self, expected: &Model) -> (Action, Option<Chunk>) {
        let action = match self.rng.below(12) {
            0 => void(self.some_grant()),
            1 => {
                let grant = self.some_grant();
                raise(grant.op)
            }
            2 => {
                let view = expected.view + self.rng.below(2);
                let floor = key(view, self.next_seq.saturating_sub(self.rng.below(6)));
                open(view, floor, self.boot)
            }
            3 => {
                // A late one: of an earlier boot or view, or with an older floor.
                let view = expected.view.saturating_sub(self.rng.below(2));
                let boot = self.boot - self.rng.below(2);
                open(view, key(view, self.rng.below(self.next_seq)), boot)
            }
            4 if !self.written.is_empty() => {
                let place = self.rng.below(self.written.len() as u64) as usize;
                verify(&self.written[place])
            }
            5 => {
                // A late write. Its blocks are fresh, so that landing would harm nothing but the rule.
                let grant = self.some_grant();
                let late = chunk_at(grant, self.next_block, 4096);
                self.next_block += 1;
                return (write(&late), Some(late));
            }
            _ => {
                let (action, chunk) = self.new_write(expected.view);
                return (action, Some(chunk));
            }
        };
        (action, None)
    }

    /// One group. `false` if the disk failed in it.
    fn group(&mut self, volume: &mut Volume) -> Result<(bool, Model), String> {
        let mut expected = self.acked.clone();
        let mut group = Vec::new();
        for _ in 0..1 + self.rng.below(6) {
            let (action, chunk) = self.action(&expected);
            let does = expected.apply(&action, self.boot);
            group.push((action, chunk, does));
        }
        let actions = group.iter().map(|(action, ..)| action.clone()).collect();
        let results = all(volume, actions);
        for ((action, chunk, does), result) in group.into_iter().zip(&results) {
            if *result == Err(Refusal::Broken) {
                self.in_doubt.extend(chunk);
                continue;
            }
            require!(result.is_ok() == does, "{action:?}: {result:?}");
            if result.is_ok() {
                self.acked.apply(&action, self.boot);
                self.written.extend(chunk);
            }
            match result {
                Ok(Answer::Floor(floor)) => {
                    require!(*floor == self.acked.floor, "{floor:?} for {:?}", self.acked);
                }
                Ok(Answer::Mismatch { .. }) => return Err(format!("{action:?}: {result:?}")),
                _ => {}
            }
        }
        Ok((!results.contains(&Err(Refusal::Broken)), expected))
    }

    /// Groups until the disk fails or `groups` are done. Returns the state that was aimed for.
    fn live(&mut self, volume: &mut Volume, groups: u64) -> Result<Model, String> {
        for _ in 0..groups {
            let (sound, expected) = self.group(volume)?;
            if !sound {
                return Ok(expected);
            }
            require!(expected == self.acked, "{expected:?} but {:?}", self.acked);
        }
        Ok(self.acked.clone())
    }

    /// Comes back after the power or the process went, and compares.
    fn come_back(&mut self, aimed: &Model) -> Result<Volume, String> {
        self.disk = self.disk.reopen();
        self.boot += 1;
        let volume = Volume::open_with(&*self.disk, NAME, BootId(self.boot), self.planted);
        let mut volume = volume.map_err(|error| error.to_string())?;
        let described = describe(&*self.disk, NAME).map_err(|error| error.to_string())?;
        require!(described.damaged.is_empty(), "PVs {:?} are lost", described.damaged);
        let found: &PvDescription = described.pvs.first().ok_or("the PV is gone")?;
        let range = self.acked.view..=aimed.view;
        require!(range.contains(&found.view.0), "view {} not in {range:?}", found.view);
        let range = self.acked.floor..=aimed.floor;
        require!(range.contains(&found.floor), "floor {:?} not in {range:?}", found.floor);
        let mut now = Model {
            view: found.view.0,
            floor: found.floor,
            voids: found.voids.clone(),
            is_open: false,
        };
        for grant in &self.acked.voids {
            let holds = now.is_implied(grant) || now.voids.contains(grant);
            require!(holds, "the void of {grant:?} is gone");
        }
        std::mem::swap(&mut self.acked, &mut now);
        for chunk in &self.written {
            let verdict = one(&mut volume, verify(chunk));
            require!(verdict == verified(self.boot), "{verdict:?} of {:?}", chunk.grant);
        }
        for chunk in std::mem::take(&mut self.in_doubt) {
            let verdict = one(&mut volume, verify(&chunk));
            if verdict == verified(self.boot) {
                self.written.push(chunk);
            }
        }
        self.check_closed(&mut volume)?;
        Ok(volume)
    }

    fn check_closed(&mut self, volume: &mut Volume) -> Result<(), String> {
        let early = self.new_write(self.acked.view).0;
        let refused = one(volume, early);
        require!(refused == Err(Refusal::Closed), "a write before the Open: {refused:?}");
        let late = one(volume, open(self.acked.view, self.acked.floor, self.boot - 1));
        require!(late.is_err(), "an Open of an earlier boot: {late:?}");
        let opened = open(self.acked.view, self.acked.floor, self.boot);
        require!(self.acked.apply(&opened, self.boot), "the model opens");
        let answer = one(volume, opened);
        require!(answer == Ok(Answer::Floor(self.acked.floor)), "{answer:?}");
        Ok(())
    }
}

/// Several lives of one disk, all of them ended by a fault.
fn lives(seed: u64, planted: Planted) -> Result<(), String> {
    let (mut run, mut volume) = Run::new(seed, planted);
    for _ in 0..6 {
        let aimed = match run.rng.below(8) {
            0 => {
                let aimed = run.live(&mut volume, 4)?;
                run.disk.kill();
                aimed
            }
            1 => {
                run.live(&mut volume, 2)?;
                run.disk.fail_next_sync();
                let aimed = run.live(&mut volume, 3)?;
                if run.rng.one_in(2) {
                    run.disk.kill()
                } else {
                    run.disk.crash()
                }
                aimed
            }
            2 => {
                let aimed = run.live(&mut volume, 3)?;
                run.disk.crash();
                aimed
            }
            _ => {
                run.disk.power_off_after(1 + run.rng.below(40));
                let aimed = run.live(&mut volume, 40)?;
                if run.disk.is_up() {
                    run.disk.crash();
                }
                aimed
            }
        };
        drop(volume);
        volume = run.come_back(&aimed)?;
    }
    Ok(())
}

#[test]
fn what_is_answered_survives_every_fault() {
    for seed in 0..60 {
        if let Err(message) = lives(seed, Planted::None) {
            panic!("seed {seed}: {message}");
        }
    }
}

#[test]
fn what_is_answered_survives_the_loss_of_power_at_every_operation() {
    for seed in 0..4 {
        for operation in 1.. {
            let (mut run, mut volume) = Run::new(seed, Planted::None);
            run.disk.power_off_after(operation);
            let aimed = run.live(&mut volume, 12).unwrap();
            if run.disk.is_up() {
                assert!(operation > 10, "the run has operations");
                break;
            }
            if let Err(message) = run.come_back(&aimed) {
                panic!("seed {seed}, operation {operation}: {message}");
            }
        }
    }
}

#[test]
fn creation_survives_the_loss_of_power_at_every_operation() {
    for seed in 0..20 {
        for operation in 1.. {
            let mut disk = SimDisk::new(seed, CAPACITY);
            disk.power_off_after(operation);
            let created = Volume::create(&*disk, NAME, config(), BootId(1));
            let answers = created.map(|mut volume| {
                [create(2, LV), create(0, LvId(41)), create(3, LvId(42))]
                    .map(|action| one(&mut volume, action))
            });
            if disk.is_up() {
                break;
            }
            disk = disk.reopen();
            let mut volume = match Volume::open(&*disk, NAME, BootId(2)) {
                Err(VolumeError::Disk(larder_env::DiskError::NotFound { .. })) => {
                    assert!(answers.is_err(), "seed {seed}, operation {operation}");
                    Volume::create(&*disk, NAME, config(), BootId(2)).unwrap()
                }
                other => other.unwrap(),
            };
            assert_eq!(volume.damaged_pvs().collect::<Vec<PvId>>(), []);
            let answers = answers.unwrap_or([Err(Refusal::Broken); 3]);
            let lvs: Vec<_> = volume.lvs().map(|(lv, _)| lv).collect();
            for (lv, answer) in [LV, LvId(41), LvId(42)].iter().zip(&answers) {
                assert!(answer.is_err() || lvs.contains(lv), "seed {seed}, operation {operation}");
            }
            assert_eq!(one(&mut volume, create(2, LV)), Ok(Answer::Created));
        }
    }
}

#[cfg(feature = "planted-bugs")]
#[test]
fn every_planted_bug_is_found() {
    let found_in_lives = |planted| (0..400).any(|seed| lives(seed, planted).is_err());
    for planted in [
        Planted::AckBeforeSync,
        Planted::FloorInMemoryOnly,
        Planted::VoidNotDurable,
        Planted::OpenLowers,
        Planted::OpenOfAnyBoot,
        Planted::OpenAfterRestart,
        Planted::OneHeaderSlot,
        Planted::VerifyFromCache,
    ] {
        assert!(found_in_lives(planted), "{planted:?}");
    }
}
