//! Chooses the replicas for a proxy's reads: the machine that a real proxy has too, with reports that no server
//! would give. Whatever it is told, what is read is right.

use std::sync::Arc;

use larder_env::SeededRng;
use larder_protocol::manager::state::Topology;
use larder_protocol::scheduler::reads::{PendingRead, Reads};
use larder_protocol::scheduler::{Load, Reading, Replica, Report, ServerHealth};
use larder_types::{Chunk, DiskId, Holders, ServerId};

use crate::setup::Setup;

/// The knowledge that all reads of a proxy share.
pub(crate) struct Choices {
    reads: Reads,
    /// Of its own, so that runs in which there is nothing to choose stay what they are.
    rng: SeededRng,
    setup: Arc<Setup>,
}

impl Choices {
    pub(crate) fn new(seed: u64, setup: &Arc<Setup>) -> Self {
        let mut reads = Reads::new(setup.read_policy);
        reads.set_requesters(setup.proxies);
        Self { reads, rng: SeededRng::new(seed ^ 0x4EAD), setup: setup.clone() }
    }

    /// A read of a chunk begins. Holders that the map does not know are down.
    pub(crate) fn begin(&mut self, map: &Topology, chunk: &Chunk) -> Reading {
        self.reads.begin();
        let present = |index: usize| map.lv(chunk.lv)?.present().find(|(at, _)| *at == index);
        let replica = |index: usize| match present(index) {
            Some((_, replica)) => Replica {
                index,
                server: replica.server,
                disk: replica.disk,
                is_near: replica.server.0.is_multiple_of(2),
                health: ServerHealth::Up,
            },
            None => Replica {
                index,
                server: ServerId(u32::MAX),
                disk: DiskId(u32::MAX - index as u32),
                is_near: false,
                health: ServerHealth::Down,
            },
        };
        if self.setup.options.bugs.driver.reads_non_holders() {
            let all = Holders(u16::MAX);
            let any = all.iter().filter(|index| present(*index).is_some());
            return Reading::of(all, any.map(replica), u64::from(chunk.len));
        }
        Reading::of(chunk.holders, chunk.holders.iter().map(replica), u64::from(chunk.len))
    }

    pub(crate) fn next(
        &mut self,
        now_us: u64,
        reading: &mut Reading,
        draw: u64,
    ) -> Option<PendingRead> {
        self.reads.next(now_us, reading, draw)
    }

    pub(crate) fn hedge(&mut self, now_us: u64, reading: &mut Reading) -> Option<PendingRead> {
        let draw = self.rng.next_u64();
        self.reads.hedge(now_us, reading, draw)
    }

    /// It answered, and said anything of its queue, or nothing.
    pub(crate) fn answered(&mut self, now_us: u64, asked: PendingRead) {
        let report = match self.rng.below(4) {
            0 => None,
            1 => Some(Report::default()),
            2 => Some(Report { service_us: [u32::MAX; 4], ..Report::default() }),
            _ => {
                let requests = self.rng.below(100) as u32;
                let load = Load { requests, bytes: u64::from(requests) * 4096 };
                let service_us = [self.rng.below(100_000) as u32; 4];
                Some(Report { waiting: [load; 4], service_us, lanes: self.rng.below(9) as u16 })
            }
        };
        self.reads.answered(now_us, asked, report);
    }

    pub(crate) fn gave_up(&mut self, asked: PendingRead) {
        self.reads.gave_up(asked);
    }

    pub(crate) fn outrun(&mut self, now_us: u64, asked: PendingRead) {
        self.reads.outrun(now_us, asked);
    }
}
