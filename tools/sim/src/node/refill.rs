//! Walks over the index, and the copies that they ask for: read from a holder, verified, written to the replica that
//! lacks it. What is late on the way stays on its way.

use std::collections::BTreeMap;

use larder_protocol::pg::{CopyPriority, Refill, Walk, chunk_at};
use larder_protocol::{Event, IndexError};
use larder_types::{PgId, rows};
use larder_volume::verify_range;

use super::Node;
use crate::clock::MS;
use crate::event::{DataCaller, ProxyEvent, StoreIn};
use crate::index::Port;
use crate::net::Net;
use crate::process_end::ProcessEnd;
use crate::servers::Server;
use crate::verdict::Finding;

/// Microseconds after which a copy is given up that nobody answers for.
const COPY_US: u64 = 1_000 * MS;
/// One in so many ticks begins a walk where one is wanted.
const WALK_ONE_IN: u64 = 3;

/// A walk under way.
pub(super) struct Walking {
    walk: Walk,
    copies: BTreeMap<u64, Copying>,
}

/// A copy under way.
struct Copying {
    pg: PgId,
    refill: Refill,
    /// Holders that were not asked yet.
    left: Vec<usize>,
    until_us: u64,
}

impl Node {
    /// At a tick: gives up what nobody answers for, and begins a walk if one is wanted.
    pub(super) fn walk_on(&mut self, net: &mut Net) -> Result<(), ProcessEnd> {
        let now_us = net.now_us();
        let life = self.life();
        let overdue: Vec<u64> = life
            .walking
            .iter()
            .flat_map(|walking| &walking.copies)
            .filter(|(_, copying)| copying.until_us <= now_us)
            .map(|(id, _)| *id)
            .collect();
        for copy in overdue {
            self.copied(copy, false, net)?;
        }
        if self.life().walking.is_none() && net.rng.one_in(WALK_ONE_IN) {
            self.begin_walk(net)?;
        }
        Ok(())
    }

    fn begin_walk(&mut self, net: &mut Net) -> Result<(), ProcessEnd> {
        let life = self.life();
        let mut walk = Walk::new(life.bound);
        life.members.iter().for_each(|member| walk.add(&member.pg));
        if walk.pgs().next().is_none() {
            return Ok(());
        }
        net.faults.add("walks over the index", 1);
        match self.consider_all(&mut walk) {
            Ok(refills) => {
                self.life().walking = Some(Walking { walk, copies: BTreeMap::new() });
                for (pg, refill) in refills {
                    self.begin_copy(pg, refill, net);
                }
                self.end_walk(net)
            }
            Err(error) => {
                net.find(Finding::Contradiction(error.0));
                Ok(())
            }
        }
    }

    fn consider_all(&mut self, walk: &mut Walk) -> Result<Vec<(PgId, Refill)>, IndexError> {
        let (kv, pg_count) = (self.kv.clone(), self.setup.pgs);
        let port = Port(&kv);
        let mut refills = Vec::new();
        for table in rows::SPACE_TABLES {
            for (row, value) in port.collect(&[table])? {
                let found = chunk_at(&row, &value, pg_count, |pg| walk.is_for(pg))?;
                let Some((pg, chunk)) = found else { continue };
                let found = walk.consider(&mut self.member(pg).pg, (&row, &chunk), &port)?;
                refills.extend(found.map(|refill| (pg, *refill)));
            }
        }
        Ok(refills)
    }

    fn begin_copy(&mut self, pg: PgId, refill: Refill, net: &mut Net) {
        net.faults.add("copies begun", 1);
        let life = self.life();
        life.next_request += 1;
        let (copy, until_us) = (life.next_request, net.now_us() + COPY_US);
        let left = refill.from.iter().collect();
        let copying = Copying { pg, refill, left, until_us };
        if let Some(walking) = &mut life.walking {
            walking.copies.insert(copy, copying);
        }
        self.read_next(copy, net);
    }

    /// Asks the next holder; `false` if there is none.
    fn read_next(&mut self, copy: u64, net: &mut Net) -> bool {
        let (node, run) = (self.id, self.run);
        let life = self.life();
        let copying = life.walking.as_mut().and_then(|walking| walking.copies.get_mut(&copy));
        let Some(copying) = copying else { return true };
        let Some(holder) = copying.left.pop() else { return false };
        let chunk = copying.refill.chunk.clone();
        if let Some(store) = life.store_of(chunk.lv, holder) {
            let input = StoreIn::Read {
                caller: DataCaller::Node { node, run, copy },
                chunk: Box::new(chunk),
            };
            net.send(Server::Node(node), (store, input));
        }
        true
    }

    /// A data server answers for a copy.
    pub(super) fn copy_answered(
        &mut self,
        copy: u64,
        received: ProxyEvent,
        net: &mut Net,
    ) -> Result<(), ProcessEnd> {
        let (node, run) = (self.id, self.run);
        let life = self.life();
        let copying = life.walking.as_mut().and_then(|walking| walking.copies.get_mut(&copy));
        let Some(copying) = copying else { return Ok(()) };
        let Refill { chunk, to, grant, .. } = copying.refill.clone();
        match received {
            ProxyEvent::Bytes(Some(bytes)) if verify_range(&chunk, 0, &bytes).is_ok() => {
                let Some(store) = life.store_of(chunk.lv, to) else {
                    return self.copied(copy, false, net);
                };
                let input = StoreIn::Write {
                    caller: DataCaller::Node { node, run, copy },
                    lv: chunk.lv,
                    grant,
                    extents: chunk.extents,
                    data: bytes,
                    replica: to,
                };
                let twice = net.rng.one_in(2).then(|| input.clone());
                net.send(Server::Node(node), (store, input));
                if let Some(input) = twice {
                    let late = net.rng.below(20_000 * MS);
                    net.after(late, (store, input));
                }
                if self.setup.options.bugs.driver.counts_copy_unwritten() {
                    return self.copied(copy, true, net);
                }
                Ok(())
            }
            ProxyEvent::Bytes(_) if self.read_next(copy, net) => Ok(()),
            ProxyEvent::Written { grant: of, good, .. } if of == grant => {
                self.copied(copy, good, net)
            }
            _ => self.copied(copy, false, net),
        }
    }

    fn copied(&mut self, copy: u64, is_copied: bool, net: &mut Net) -> Result<(), ProcessEnd> {
        let walking = self.life().walking.as_mut();
        let Some(copying) = walking.and_then(|walking| walking.copies.remove(&copy)) else {
            return Ok(());
        };
        net.faults.add("copies made", u64::from(is_copied));
        let Refill { row, grant, .. } = copying.refill;
        self.step(copying.pg, Event::Refilled { row, grant, is_copied }, net)?;
        self.end_walk(net)
    }

    /// Ends the walk if no copy is under way.
    fn end_walk(&mut self, net: &mut Net) -> Result<(), ProcessEnd> {
        let life = self.life();
        let Some(walking) = life.walking.take_if(|walking| walking.copies.is_empty()) else {
            return Ok(());
        };
        // Nothing is read much here: what is hot comes before nothing.
        life.bound = walking.walk.next_bound().max(CopyPriority::new(1, false));
        for pg in walking.walk.pgs() {
            if let Some(event) = walking.walk.ended(&self.member(pg).pg) {
                self.step(pg, event, net)?;
            }
        }
        Ok(())
    }
}
