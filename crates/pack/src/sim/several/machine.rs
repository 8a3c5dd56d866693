//! One worker's machine: its disk, its indexes, and the process that runs on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_env::SimDisk;
use larder_kv::SimKv;
use larder_types::codec::encode;
use parking_lot::Mutex;

use crate::backend::Backend;
use crate::commit::policy::Packing;
use crate::error::PackError;
use crate::format::rows::Applied;
use crate::ids::WorkerId;
use crate::index::Index;
use crate::owner::announce::Announcement;
use crate::owner::identity::Claim;
use crate::owner::name::{WorkerName, base};
use crate::peers::feed::Caller;
use crate::peers::index_store::{PeerIndex, PeerIndexStore};
use crate::peers::received_log::ReceivedLog;
use crate::peers::{Others, Reads, Sharing};
use crate::sim::SimStore;
use crate::sim::process::{Process, Rows};

/// Time for which superseded versions are kept.
pub(super) const KEPT: Duration = Duration::from_secs(3600);

/// A machine.
pub(super) struct Machine {
    pub(super) name: WorkerName,
    pub(super) worker: WorkerId,
    pub(super) disk: Arc<SimDisk>,
    pub(super) rows: Arc<SimKv>,
    index_store: Arc<Memory>,
    pub(super) process: Option<Process>,
    /// Time by which its clock is ahead.
    pub(super) ahead_ms: u64,
}

/// Indexes of other workers, which outlive a process.
#[derive(Default)]
pub(super) struct Memory(Mutex<Shelves>);

/// By name and claim: the rows, and how often they were made anew.
type Shelves = BTreeMap<(WorkerName, WorkerId), (Arc<SimKv>, u64)>;

struct Shared(Arc<Memory>, Arc<SimDisk>);

impl Shared {
    fn shelved(
        &self,
        (name, worker): (&WorkerName, WorkerId),
        (rows, number): (Arc<SimKv>, u64),
    ) -> Result<(PeerIndex, Option<Applied>), PackError> {
        let (index, applied) = Index::of_another(Box::new(Rows(rows)))?;
        let received = ReceivedLog::of(self.1.clone(), name, &format!("{}-{number}", worker.0))?;
        Ok((PeerIndex { index, received }, applied))
    }
}

impl PeerIndexStore for Shared {
    fn open(
        &self,
        name: &WorkerName,
        worker: WorkerId,
    ) -> Result<Option<(PeerIndex, Applied)>, PackError> {
        let rows = self.0.0.lock().get(&(name.clone(), worker)).cloned();
        let Some(rows) = rows else { return Ok(None) };
        let (shelved, applied) = self.shelved((name, worker), rows)?;
        Ok(applied.map(|applied| (shelved, applied)))
    }

    fn earlier(
        &self,
        name: &WorkerName,
        worker: WorkerId,
    ) -> Result<Option<(WorkerId, PeerIndex, Applied)>, PackError> {
        let all = self.0.0.lock();
        let earlier = all.range(..(name.clone(), worker)).next_back();
        let Some(((of, claim), rows)) = earlier.filter(|((of, _), _)| of == name) else {
            return Ok(None);
        };
        let (shelved, applied) = self.shelved((of, *claim), rows.clone())?;
        assert_eq!(of, name);
        Ok(applied.map(|applied| (*claim, shelved, applied)))
    }

    fn make(&self, name: &WorkerName, worker: WorkerId) -> Result<PeerIndex, PackError> {
        let (rows, mut all) = (Arc::<SimKv>::default(), self.0.0.lock());
        let at = (name.clone(), worker);
        let number = all.get(&at).map_or(1, |(_, number)| number + 1);
        all.insert(at, (rows.clone(), number));
        Ok(self.shelved((name, worker), (rows, number))?.0)
    }
}

impl Machine {
    pub(super) fn new(number: u64, seed: u64) -> Self {
        let name = WorkerName::new(["a", "b", "c"][number as usize]).unwrap();
        let worker = base(&name.prefix());
        Self {
            name,
            worker,
            disk: SimDisk::new(seed, 1 << 30),
            rows: Arc::default(),
            index_store: Arc::default(),
            process: None,
            ahead_ms: number * 60_000,
        }
    }

    pub(super) fn prefix(&self) -> String {
        self.name.prefix()
    }

    /// Claims its name anew, as a new directory does.
    pub(super) async fn claim(&mut self, store: &SimStore) {
        self.worker = WorkerId(self.worker.0 + 1);
        let claim = Bytes::from(encode(&Claim { nonce: 1, claimed_ms: 1 }));
        store.set(&format!("{}/claims/{:016x}", self.prefix(), self.worker.0), claim).await;
    }

    /// Everything of the machine is gone.
    pub(super) fn lose(&mut self, seed: u64) {
        self.disk = SimDisk::new(seed, 1 << 30);
        (self.rows, self.index_store) = (Arc::default(), Arc::default());
    }

    /// Starts as a worker does that shares a bucket.
    pub(super) async fn start(&mut self, store: &Arc<SimStore>, packing: Packing) {
        let root = Backend::over(store.clone());
        let me = Announcement {
            name: self.name.clone(),
            prefix: self.prefix(),
            worker: self.worker,
            address: None,
            announced_ms: 1,
        };
        let sharing =
            Sharing { kept: KEPT, unseen_max: KEPT / 3, ..Sharing::new(self.name.clone()) };
        let dir = std::path::PathBuf::new();
        let reads = Reads { cache: None, ahead_bytes: 0, dir, accept_loss: false };
        let index_store = Box::new(Shared(self.index_store.clone(), self.disk.clone()));
        let backend = root.below(&self.prefix());
        // Time is the simulation's.
        let uptime = || Duration::ZERO;
        let others = Others::new(me, root, sharing, index_store, reads, Caller::default(), uptime);
        others.announce().await.expect("nothing fails at a start");
        others.refresh().await.expect("nothing fails at a start");
        let (disk, rows) = (self.disk.clone(), self.rows.clone());
        let others = Some(Arc::new(others));
        let started = Process::start(self.worker, disk, rows, backend, packing, others).await;
        self.process = Some(started.unwrap_or_else(|error| panic!("no start: {error}")));
    }

    /// The process ends; what its disk and its indexes had not synced is gone with it if the power goes.
    pub(super) fn stop(&mut self, how: impl Fn(&SimDisk)) {
        how(&self.disk);
        self.process = None;
        self.disk = self.disk.reopen();
        self.rows.crash();
        for (rows, _) in self.index_store.0.lock().values() {
            rows.crash();
        }
    }

    pub(super) fn others(&self) -> Arc<Others> {
        let process = self.process.as_ref().expect("a process runs");
        process.others.clone().expect("the bucket is shared")
    }
}
