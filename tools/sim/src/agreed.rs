//! The managers' agreement, as nobody within the world knows it: for faults that must know their victims, and for the
//! checks. Two managers must apply the same at one place of their log.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use larder_protocol::LvInfo;
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{LvRecord, LvState, PgRecord, Topology};
use larder_types::{LvId, PgId, PvId, ServerId, View};

use crate::places::{info_of, place, primary_of};
use crate::setup::Setup;

/// Shared by all who look.
pub(crate) type Shared = Rc<RefCell<Agreed>>;

#[derive(Default)]
pub(crate) struct Agreed {
    commands: BTreeMap<LogIndex, Bytes>,
    /// The latest map that any manager has applied.
    pub(crate) map: Arc<Topology>,
    /// PGs of which a row was changed in one index, and the row.
    pub(crate) changed_rows: BTreeMap<PgId, Vec<u8>>,
    /// Members found odd since the last look.
    pub(crate) odd: Vec<(PgId, usize)>,
}

impl Agreed {
    /// A manager applies a command.
    ///
    /// # Errors
    /// What is wrong: another command was applied at this place.
    pub(crate) fn applied(&mut self, index: LogIndex, command: &Bytes) -> Result<(), String> {
        let known = self.commands.entry(index).or_insert_with(|| command.clone());
        if known == command {
            return Ok(());
        }
        Err(format!("two managers apply different commands at {index:?}"))
    }

    /// A manager has made a map, or was given one.
    ///
    /// # Errors
    /// What is wrong: another map has this version.
    pub(crate) fn made(&mut self, map: &Arc<Topology>) -> Result<(), String> {
        if map.version > self.map.version {
            self.map = map.clone();
        }
        let same = Topology { applied: self.map.applied, ..Topology::clone(map) };
        if map.version == self.map.version && same != *self.map {
            return Err(format!("two maps have version {:?}", map.version));
        }
        Ok(())
    }

    fn pg(&self, pg: PgId) -> &PgRecord {
        &self.map.pgs[pg.0 as usize]
    }

    pub(crate) fn view(&self, pg: PgId) -> View {
        primary_of(&self.map, pg).1
    }

    pub(crate) fn primary(&self, pg: PgId) -> usize {
        primary_of(&self.map, pg).0
    }

    /// Members of a PG, primary first, once it is as it ought to be.
    pub(crate) fn whole(&self, pg: PgId) -> Option<Vec<usize>> {
        let record = self.map.pg(pg)?;
        let wanted = record.members.iter().all(|member| record.target.contains(member));
        let is_whole = record.is_active()
            && record.learners.is_empty()
            && wanted
            && record.members.len() == record.target.len();
        is_whole.then(|| record.members.iter().map(|member| member.0 as usize).collect())
    }

    /// True if a meta server may lose everything though `lost` have too, of which the managers know nothing yet. Then
    /// each of its PGs has enough other members with all of it.
    pub(crate) fn can_spare(&self, node: usize, lost: &BTreeSet<usize>, enough: usize) -> bool {
        let node = ServerId(node as u32);
        let has_all = |pg: &PgRecord, member: &ServerId| {
            *member != node && pg.qualified.contains(member) && !lost.contains(&(member.0 as usize))
        };
        let concerned = |pg: &&PgRecord| {
            pg.members.contains(&node) || pg.learners.contains(&node) || pg.target.contains(&node)
        };
        self.map.pgs.iter().filter(concerned).all(|pg| {
            let others = pg.members.iter().filter(|member| has_all(pg, member));
            pg.is_active() && others.count() >= enough
        })
    }

    /// True if a meta server is a member of a PG.
    pub(crate) fn is_member(&self, node: usize, pg: PgId) -> bool {
        self.pg(pg).members.contains(&ServerId(node as u32))
    }

    /// All LVs that are there, with their PGs.
    pub(crate) fn infos(&self) -> impl Iterator<Item = (PgId, LvInfo)> {
        let made = |(_, lv): &(usize, &LvRecord)| lv.state != LvState::Creating;
        let lvs = self.map.lvs.iter().enumerate().filter(made);
        lvs.map(|(id, lv)| {
            let boot = |server: ServerId| self.map.servers.get(&server).map(|record| record.boot);
            (lv.pg, info_of(LvId(id as u32), lv, self.map.version, boot))
        })
    }

    /// Where a replica of an LV lies: data server and PV.
    pub(crate) fn place(&self, setup: &Setup, lv: LvId, replica: usize) -> Option<(usize, PvId)> {
        place(setup, &self.map, lv, replica)
    }
}
