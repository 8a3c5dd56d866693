//! The end of a run: every fault ends, and the store must come to rest and serve; then everything restarts, and it must
//! come to rest again and be whole.

use larder_protocol::IndexError;
use larder_protocol::index::Row;
use larder_protocol::pg::{Role, owner};
use larder_types::{PgId, rows};

use crate::clock::MS;
use crate::content::{digest_of, tags_number, values_in};
use crate::event::Piece;
use crate::history::Shown;
use crate::index::{BUCKET, Port};
use crate::node::{NoStart, scan};
use crate::quiescence::CHECK_INTERVAL_US;
use crate::verdict::Finding;
use crate::world::World;

/// One in so many runs ends with damage to a log.
const LOG_ROT_ONE_IN: u64 = 8;
/// Virtual microseconds that a call of a run may take on average: a single client waits out each cut.
const CALL_US: u64 = 7_200 * MS;

impl World {
    /// Runs clients and faults, then ends the faults and checks everything.
    pub(crate) fn run(&mut self) {
        while self.ops < self.setup.options.ops || self.clients.busy() {
            let until_us = self.net.now_us() + CHECK_INTERVAL_US;
            self.run_until(until_us);
            if self.net.finding().is_some() {
                return;
            }
            if self.net.now_us() > CALL_US * u64::from(self.setup.options.ops) {
                self.net.find(Finding::NotQuiescent("clients do not get on".to_owned()));
                return;
            }
        }
        self.closing = true;
        self.end_faults();
        self.quiesce();
        self.probe_all();
        // Before a restart, after which all is learnt anew.
        if self.net.finding().is_none()
            && let Err(finding) = self.check_known()
        {
            self.net.find(finding);
        }
        self.count_grants();
        self.restart_all();
        self.quiesce();
        if self.net.finding().is_none()
            && let Err(finding) = self.check()
        {
            self.net.find(finding);
        }
        if self.net.finding().is_none() && self.net.rng.one_in(LOG_ROT_ONE_IN) {
            self.rot_log();
        }
    }

    /// Counts what members gave on most replicas since they began.
    fn count_grants(&mut self) {
        let on_most = |pg: &larder_protocol::Pg| pg.gauges().grants_on_most;
        let on_most = self.nodes.iter().flat_map(|node| node.pgs().map(on_most)).sum();
        self.net.faults.add("grants on most replicas of a volume", on_most);
    }

    /// A bit of a log rots below what is known to be synced: the server must not start.
    fn rot_log(&mut self) {
        let machine = self.net.rng.below(self.setup.machines as u64) as usize;
        if !self.nodes[machine].rot_log(&mut self.net) {
            return;
        }
        self.net.faults.add("bit rot of the log", 1);
        match self.nodes[machine].start(&mut self.net) {
            Err(NoStart::Damaged(_)) => {}
            Ok(()) => self.net.find(Finding::DamageMissed(format!("meta server {machine} runs"))),
            Err(NoStart::Unfit(text)) => self.net.find(Finding::DamageMissed(text)),
            Err(NoStart::Later(fate)) => {
                self.net.find(Finding::DamageMissed(format!("{fate:?}")));
            }
        }
    }

    fn check(&mut self) -> Result<(), Finding> {
        self.check_replicas()?;
        self.check_space()?;
        self.check_known()?;
        self.read_all()?;
        self.check_copies()?;
        let judged_twice = self.clients.history.judged_twice() as u64;
        self.net.faults.add("keys judged by a second checker", judged_twice);
        self.clients.history.check().map_err(Finding::History)
    }

    /// Members know without looking at their indexes exactly what these show.
    fn check_known(&self) -> Result<(), Finding> {
        self.nodes.iter().try_for_each(|node| node.check_ledgers().map_err(contradiction))
    }

    /// Every member's index shows the same.
    fn check_replicas(&self) -> Result<(), Finding> {
        for pg in (0..self.setup.pgs).map(PgId) {
            let rows = |node: usize| self.rows_of(node, pg).map_err(contradiction);
            let members = self.agreed.borrow().whole(pg).unwrap_or_default();
            let Some((&primary, backups)) = members.split_first() else { continue };
            let first = rows(primary)?;
            for &node in backups {
                let other = rows(node)?;
                if first == other {
                    continue;
                }
                let differing = first.iter().zip(&other).find(|(a, b)| a != b).map(|(a, _)| &a.0);
                let row = differing.map_or_else(String::new, |row| row.escape_ascii().to_string());
                let (ours, theirs) = (first.len(), other.len());
                let text = format!(
                    "pg {pg}: meta servers {primary} and {node} differ: {ours} and {theirs} rows, at {row}"
                );
                return Err(Finding::Contradiction(text));
            }
        }
        Ok(())
    }

    /// Reads a PG's rows in a meta server's index, with the one that says through which op they go.
    fn rows_of(&self, node: usize, pg: PgId) -> Result<Vec<Row>, IndexError> {
        let mut rows = Port(&self.nodes[node].kv).collect(b"")?;
        let mut failed = None;
        rows.retain(|(row, value)| match owner(row, value, self.setup.pgs) {
            Ok(of) => of == Some(pg) || *row == rows::applied(pg),
            Err(error) => {
                failed = Some(error);
                false
            }
        });
        failed.map_or(Ok(rows), Err)
    }

    /// Checks that allocators and rows agree, and that nothing is used twice, lost or left over.
    fn check_space(&self) -> Result<(), Finding> {
        let agreed = self.agreed.borrow();
        let infos: Vec<_> = agreed.infos().collect();
        for (at, node) in self.nodes.iter().enumerate() {
            let pgs: Vec<_> = node.pgs().filter(|pg| agreed.is_member(at, pg.id())).collect();
            let lvs = infos.iter().map(|(_, info)| info.clone());
            let derived =
                scan(&Port(&node.kv), self.setup.pgs, lvs, &pgs).map_err(contradiction)?;
            let complaint = (derived.faults.first().map(ToString::to_string))
                .or_else(|| derived.strays.first().map(ToString::to_string))
                .or_else(|| (derived.garbage > 0).then(|| "garbage is left".to_owned()))
                .or_else(|| derived.open_streams.first().map(|open| format!("{open:?} is open")));
            if let Some(complaint) = complaint {
                return Err(Finding::Contradiction(format!("meta server {at}: {complaint}")));
            }
            for pg in pgs.into_iter().filter(|pg| pg.role() == Role::Serving) {
                let is_own = |lv| infos.iter().any(|(of, info)| info.lv == lv && *of == pg.id());
                let free: u64 = derived
                    .space
                    .lvs
                    .iter()
                    .filter(|(info, _)| is_own(info.lv))
                    .map(|(_, runs)| u64::from(runs.blocks()))
                    .sum();
                let space = pg.gauges().space;
                if space.free + space.waiting + space.resting != free {
                    let text = format!("pg {}: {space:?}, but rows leave {free} free", pg.id());
                    return Err(Finding::Contradiction(text));
                }
            }
        }
        Ok(())
    }

    /// Reads every key from its primary's index, and notes it in the history.
    fn read_all(&mut self) -> Result<(), Finding> {
        let keys = self.clients.keys.clone();
        for (at, key) in keys.iter().enumerate() {
            let pg = larder_protocol::placement::pg_of(BUCKET, key, self.setup.pgs);
            let primary = self.agreed.borrow().primary(pg);
            let begun = self.clients.history.now();
            let port = Port(&self.nodes[primary].kv);
            let located = port.locate(BUCKET, key).map_err(contradiction)?;
            let shown = match &located {
                None => None,
                Some(located) => {
                    let (value, tags) = (digest_of(&located.etag), tags_number(&located.tags));
                    let mut whole = Some(Vec::new());
                    for piece in &located.pieces {
                        let bytes = match piece {
                            Piece::Inline(bytes) => Some(bytes.clone()),
                            Piece::Chunk(chunk) => self.good_copy(chunk),
                        };
                        whole = whole.zip(bytes).map(|(mut whole, bytes)| {
                            whole.push(bytes);
                            whole
                        });
                    }
                    if let Some(pieces) = whole {
                        let Some(values) = values_in(&located.etag, located.size, &pieces) else {
                            let text = format!("{key:?}: {:?} at {:?}", located.etag, located.op);
                            return Err(Finding::WrongBytes(text));
                        };
                        self.clients.history.read(&values);
                    }
                    Some(Shown { value, tags, size: located.size })
                }
            };
            self.clients.history.saw(at, begun, shown);
        }
        Ok(())
    }

    pub(crate) fn good_copy(&self, chunk: &larder_types::Chunk) -> Option<bytes::Bytes> {
        chunk.holders.iter().find_map(|replica| {
            let (store, _) = self.agreed.borrow().place(&self.setup, chunk.lv, replica)?;
            self.stores[store].read(chunk)
        })
    }

    /// Every replica of its LV holds a chunk.
    fn check_holders(&self, chunk: &larder_types::Chunk) -> Result<(), Finding> {
        let agreed = self.agreed.borrow();
        let of_lv = agreed.infos().find(|(_, info)| info.lv == chunk.lv);
        let present = of_lv.map(|(_, info)| info.present());
        // Of a PG in which a chunk cannot be copied nobody knows when it is done with the others.
        if present == Some(chunk.holders) || self.has_lost(chunk.grant.pg) {
            return Ok(());
        }
        let text = format!("{:?} of {present:?} hold {:?}", chunk.holders, chunk.grant);
        Err(Finding::LostData(text))
    }

    /// Every holder has its copy, unless it was damaged on purpose.
    fn check_copies(&self) -> Result<(), Finding> {
        for pg in (0..self.setup.pgs).map(PgId) {
            let primary = self.agreed.borrow().primary(pg);
            for chunk in self.nodes[primary].chunks_of(pg) {
                self.check_holders(&chunk)?;
                for replica in chunk.holders.iter() {
                    let place = self.agreed.borrow().place(&self.setup, chunk.lv, replica);
                    let good =
                        place.is_some_and(|(store, _)| self.stores[store].read(&chunk).is_some());
                    if !good && !self.rotten.borrow().contains(&(chunk.grant, replica)) {
                        let text = format!("replica {replica} of {:?}", chunk.grant);
                        return Err(Finding::LostData(text));
                    }
                }
            }
        }
        Ok(())
    }
}

fn contradiction(error: larder_protocol::IndexError) -> Finding {
    Finding::Contradiction(error.0)
}
