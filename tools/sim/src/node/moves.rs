//! Walks over the index to compact LVs, and the copies that they ask for: read from a holder, verified, written to all
//! replicas at the new place. What is late on the way stays on its way.

use std::collections::BTreeMap;

use larder_protocol::pg::{Move, MoveCounts, chunk_at};
use larder_protocol::{Event, IndexError};
use larder_types::{Holders, PgId, rows};
use larder_volume::verify_range;

use super::Node;
use crate::clock::MS;
use crate::event::{DataCaller, ProxyEvent, StoreIn};
use crate::index::Port;
use crate::net::Net;
use crate::process_end::ProcessEnd;
use crate::servers::Server;
use crate::verdict::Finding;

/// Microseconds after which copies are given up that nobody answers for.
const MOVE_US: u64 = 1_000 * MS;
/// One in so many ticks begins a walk where an LV is fragmented.
const WALK_ONE_IN: u64 = 3;

/// A walk under way: chunks that are being copied.
pub(super) struct Compacting {
    pgs: Vec<PgId>,
    moves: BTreeMap<u64, Moving>,
}

/// A chunk that is being copied.
struct Moving {
    pg: PgId,
    to: Move,
    /// Holders that were not asked yet.
    left: Vec<usize>,
    /// Replicas that have not answered that it is written.
    unwritten: Holders,
    until_us: u64,
}

impl Node {
    /// At a tick: gives up what nobody answers for, and begins a walk if an LV is fragmented.
    pub(super) fn compact_on(&mut self, net: &mut Net) -> Result<(), ProcessEnd> {
        let now_us = net.now_us();
        let under_way = self.life().compacting.iter().flat_map(|compacting| &compacting.moves);
        let overdue = under_way.filter(|(_, moving)| moving.until_us <= now_us);
        let overdue: Vec<u64> = overdue.map(|(id, _)| *id).collect();
        for id in overdue {
            self.moved(id, false, net)?;
        }
        if self.life().compacting.is_none() && net.rng.one_in(WALK_ONE_IN) {
            self.begin_compaction(net);
        }
        Ok(())
    }

    fn begin_compaction(&mut self, net: &mut Net) {
        let from = self.setup.fragmentation;
        let members = self.life().members.iter_mut();
        let fragmented = members.filter_map(|member| {
            (member.pg.begin_compaction(from).lvs > 0).then_some(member.pg.id())
        });
        let pgs: Vec<PgId> = fragmented.collect();
        if pgs.is_empty() {
            return;
        }
        net.faults.add("walks to compact", 1);
        match self.consider_moves(&pgs) {
            Ok(moves) => {
                self.life().compacting = Some(Compacting { pgs, moves: BTreeMap::new() });
                for (pg, to) in moves {
                    self.begin_move(pg, to, net);
                }
                self.end_compaction();
            }
            Err(error) => net.find(Finding::Contradiction(error.0)),
        }
    }

    fn consider_moves(&mut self, pgs: &[PgId]) -> Result<Vec<(PgId, Move)>, IndexError> {
        let (kv, pg_count) = (self.kv.clone(), self.setup.pgs);
        let port = Port(&kv);
        let mut moves = Vec::new();
        for table in rows::SPACE_TABLES {
            for (row, value) in port.collect(&[table])? {
                let found = chunk_at(&row, &value, pg_count, |pg| pgs.contains(&pg))?;
                let Some((pg, chunk)) = found else { continue };
                let found = self.member(pg).pg.consider_move(&row, &chunk, &port)?;
                moves.extend(found.map(|to| (pg, *to)));
            }
        }
        Ok(moves)
    }

    fn begin_move(&mut self, pg: PgId, to: Move, net: &mut Net) {
        net.faults.add("moves begun", 1);
        let life = self.life();
        life.next_request += 1;
        let (id, until_us) = (life.next_request, net.now_us() + MOVE_US);
        let (left, unwritten) = (to.replicas.iter().collect(), to.replicas);
        let moving = Moving { pg, to, left, unwritten, until_us };
        if let Some(compacting) = &mut life.compacting {
            compacting.moves.insert(id, moving);
        }
        self.read_to_move(id, net);
    }

    fn moving(&mut self, id: u64) -> Option<&mut Moving> {
        self.life().compacting.as_mut().and_then(|compacting| compacting.moves.get_mut(&id))
    }

    /// Asks the next holder; `false` if there is none.
    fn read_to_move(&mut self, id: u64, net: &mut Net) -> bool {
        let (node, run) = (self.id, self.run);
        let Some(moving) = self.moving(id) else { return true };
        let Some(holder) = moving.left.pop() else { return false };
        let chunk = moving.to.chunk.clone();
        if let Some(store) = self.life().store_of(chunk.lv, holder) {
            let caller = DataCaller::Node { node, run, copy: id };
            net.send(Server::Node(node), (store, StoreIn::Read { caller, chunk: Box::new(chunk) }));
        }
        true
    }

    /// A data server answers for a chunk that moves, if that is what it answers for.
    pub(super) fn move_answered(
        &mut self,
        id: u64,
        received: &ProxyEvent,
        net: &mut Net,
    ) -> Result<bool, ProcessEnd> {
        let Some(moving) = self.moving(id) else { return Ok(false) };
        match received {
            ProxyEvent::Bytes(Some(bytes)) if verify_range(&moving.to.chunk, 0, bytes).is_ok() => {
                let to = moving.to.clone();
                self.write_moved(id, &to, bytes, net);
                if self.setup.options.bugs.driver.counts_move_unwritten() {
                    self.moved(id, true, net)?;
                }
            }
            ProxyEvent::Bytes(_) => {
                if !self.read_to_move(id, net) {
                    self.moved(id, false, net)?;
                }
            }
            ProxyEvent::Written { grant, good, replica } if *grant == moving.to.grant => {
                moving.unwritten = moving.unwritten.without(Holders::default().with(*replica));
                if !good || moving.unwritten.is_empty() {
                    let good = *good;
                    self.moved(id, good, net)?;
                }
            }
            _ => self.moved(id, false, net)?,
        }
        Ok(true)
    }

    fn write_moved(&mut self, id: u64, to: &Move, data: &bytes::Bytes, net: &mut Net) {
        let (node, run, lv) = (self.id, self.run, to.chunk.lv);
        for replica in to.replicas.iter() {
            let Some(store) = self.life().store_of(lv, replica) else { continue };
            let input = StoreIn::Write {
                caller: DataCaller::Node { node, run, copy: id },
                lv,
                grant: to.grant,
                extents: to.extents.clone(),
                data: data.clone(),
                replica,
            };
            let twice = net.rng.one_in(2).then(|| input.clone());
            net.send(Server::Node(node), (store, input));
            if let Some(input) = twice {
                let late = net.rng.below(20_000 * MS);
                net.after(late, (store, input));
            }
        }
    }

    fn moved(&mut self, id: u64, is_copied: bool, net: &mut Net) -> Result<(), ProcessEnd> {
        let compacting = self.life().compacting.as_mut();
        let Some(moving) = compacting.and_then(|compacting| compacting.moves.remove(&id)) else {
            return Ok(());
        };
        net.faults.add("moves given up", u64::from(!is_copied));
        let Move { row, grant, .. } = moving.to;
        self.step(moving.pg, Event::Moved { row, grant, is_copied }, net)?;
        self.end_compaction();
        Ok(())
    }

    /// Ends the walk if no chunk is being copied.
    fn end_compaction(&mut self) {
        let is_over = |compacting: &mut Compacting| compacting.moves.is_empty();
        let Some(Compacting { pgs, .. }) = self.life().compacting.take_if(is_over) else { return };
        for pg in pgs {
            self.member(pg).pg.end_compaction();
        }
    }

    /// A PG has applied ops; `before` are the chunks that it had moved until then.
    pub(super) fn note_moves(&mut self, pg: PgId, before: MoveCounts, net: &mut Net) {
        let after = self.member(pg).pg.move_counts();
        net.faults.add("chunks moved", after.moved - before.moved);
        net.faults.add("chunks gone before they had moved", after.void - before.void);
    }
}
