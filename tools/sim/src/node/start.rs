//! The start of a meta server, the loss of its disk, and rot in its log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use larder_env::SimDisk;
use larder_kv::SimKv;
use larder_metalog::LogError;
use larder_protocol::IndexError;
use larder_protocol::limits::FREED_REST_MS;
use larder_protocol::pg::{CopyPriority, LogGap, Origin, Recovering};
use larder_types::codec::decode;
use larder_types::{BootId, Op, OpId, PgId, ServerId, View, rows};

use super::early::OLDER_ONE_IN;
use super::{Life, Member, Node};
use crate::clock::MS;
use crate::event::{NodeIn, ReadStep};
use crate::index::Port;
use crate::log::{self, Log, fate};
use crate::managers::Managers;
use crate::net::Net;
use crate::process_end::ProcessEnd;
use crate::servers::Server;

/// Most rows of a step in which garbage goes.
const STEP_ROWS: u64 = 5;
/// In one of so many runs of a server freed blocks rest.
const PAUSE_ONE_IN: u64 = 4;

/// The reason that a server does not start.
pub(crate) enum NoStart {
    /// Something failed that may be over later.
    Later(ProcessEnd),
    /// Its log is damaged.
    Damaged(String),
    /// Its log and index do not fit each other.
    Unfit(String),
}

impl Node {
    /// Starts: takes up log and index, and tells the managers.
    pub(crate) fn start(&mut self, net: &mut Net) -> Result<(), NoStart> {
        assert!(self.life.is_none(), "a server runs once");
        self.disk = self.disk.reopen();
        self.run = BootId(net.rng.next_u64());
        let mut pgs = Vec::new();
        for pg in (0..self.setup.pgs).map(PgId) {
            let origin = self.origin(pg).map_err(|error| NoStart::Unfit(error.0))?;
            pgs.push(Recovering::new(origin));
        }
        let mut unfit = None;
        let log_id = net.rng.next_u64();
        let opened = Log::open(&self.disk, log_id, self.setup.options.bugs, &mut |recovered| {
            let record = &recovered.record;
            let id = OpId { view: record.view, seq: record.seq };
            match decode::<Op>("op", record.payload) {
                Ok(op) => pgs[record.pg.0 as usize].replay(id, op, record.commit),
                Err(error) => {
                    unfit.get_or_insert(error.to_string());
                }
            }
        });
        let log = match opened {
            Ok(log) => log,
            Err(LogError::Damaged(damage)) => return Err(NoStart::Damaged(damage.to_string())),
            Err(error) => return Err(NoStart::Later(fate(&error))),
        };
        if let Some(error) = unfit {
            return Err(NoStart::Unfit(error));
        }
        // Objects here are small: so are steps, and each run of a server has others.
        let step_rows = (self.run.0 % STEP_ROWS) as u32 + 1;
        // Where freed blocks are given again soon, other faults are found than where they rest.
        let rests = (self.run.0 / STEP_ROWS).is_multiple_of(PAUSE_ONE_IN);
        let rest_ms = if rests { FREED_REST_MS } else { 0 };
        let coalesces = self.setup.coalesces;
        let members = pgs
            .into_iter()
            .map(|recovering| {
                let mut pg = recovering.finish()?;
                pg.reap_in_steps_of(step_rows);
                pg.rest_for(rest_ms);
                pg.let_coalesce(coalesces);
                pg.coalesce_from(2);
                Ok(Member::new(pg))
            })
            .collect::<Result<Vec<_>, LogGap>>()
            .map_err(|gap| NoStart::Unfit(gap.to_string()))?;
        let claims_all = self.setup.options.bugs.driver.claims_all();
        let has = |Member { pg, .. }: &Member| {
            let last = if claims_all { View(u64::MAX) } else { pg.last().view };
            (pg.id(), pg.is_whole().then_some(last))
        };
        let is_older = self.setup.options.early && net.rng.one_in(OLDER_ONE_IN);
        let managers = Managers::new(Server::Node(self.id), self.run, &self.setup, net);
        self.life = Some(Life {
            managers,
            has: members.iter().map(has).collect(),
            log,
            members,
            places: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            closed: BTreeSet::new(),
            snapshots: BTreeMap::new(),
            digests: BTreeMap::new(),
            walking: None,
            compacting: None,
            reading: None,
            is_reading: true,
            is_older,
            bound: CopyPriority::new(1, false),
        });
        let (node, run) = (self.id, self.run);
        let jitter = net.rng.below(5 * MS);
        net.after(50 + jitter, (node, NodeIn::Beat { run }));
        net.soon((node, NodeIn::ReadIndex { run, step: ReadStep::Begin }));
        net.after(100 * MS, (node, NodeIn::Tick { run }));
        net.after(60 * MS, (node, NodeIn::Flush { run }));
        Ok(())
    }

    fn origin(&self, pg: PgId) -> Result<Origin, IndexError> {
        let row = |row: Vec<u8>| larder_protocol::Index::get(&Port(&self.kv), &row);
        let applied = row(rows::applied(pg))?.map(|row| decode("applied position", &row));
        let snapshot = row(rows::snapshot(pg))?.map(|row| decode("snapshot row", &row));
        let high_water = row(rows::high_water(pg))?.map(|row| decode("marks row", &row));
        Ok(Origin {
            pg,
            pg_count: self.setup.pgs,
            me: ServerId(self.id as u32),
            applied: applied.transpose()?.unwrap_or_default(),
            snapshot: snapshot.transpose()?,
            high_water: high_water.transpose()?,
            planted: self.setup.options.bugs.protocol,
        })
    }

    /// Everything is lost: a new disk, and nothing on it.
    pub(crate) fn wipe(&mut self, disk: Arc<SimDisk>) {
        assert!(self.life.is_none(), "a server that runs has its disk");
        self.disk = disk;
        self.kv = Arc::new(SimKv::new());
    }

    /// Says in the log that all of it is synced, dies, and flips a bit of it; false if nothing is left
    /// in the log.
    pub(crate) fn rot_log(&mut self, net: &mut Net) -> bool {
        let Some(life) = &mut self.life else { return false };
        if life.log.mark().is_err() || !life.log.take() || life.log.commit().is_err() {
            return false;
        }
        self.die();
        let Some((file, offset)) = log::place_in_record(&self.disk.reopen(), &mut net.rng) else {
            return false;
        };
        net.say(format_args!("FAULT: a bit of {file} rots at {offset}"));
        self.disk.flip_bit(&file, offset).is_ok()
    }
}
