//! Copies of a running process's directory: both go on, and requests of both come late. Whichever is left afterwards has all
//! that it counts as uploaded, for everybody.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use larder_env::{Disk, OpenMode};
use larder_kv::{Batch, Kv, KvReader};

use super::super::process::Process;
use super::*;
use crate::format::blob::BlobName;
use crate::owner::counting::RECORD;

/// Steps of an original after it was copied, and of both beside each other.
const STEPS_APART: u64 = 12;
const STEPS_BESIDE: u64 = 40;
/// Steps within which most uploads end.
const STEPS_OF_UPLOAD: u64 = 60;
/// Files that say what a directory has acknowledged.
const DIRS: [&str; 2] = ["log", "spool"];
const NUMBERED: &str = "numbered";

/// The outcomes of copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::sim) struct Outcomes {
    /// A copy was refused as it was older, and the original went on.
    pub(in crate::sim) refused: u64,
    /// A copy became the owner.
    pub(in crate::sim) took_over: u64,
    /// The original was started once more, and became the owner again.
    pub(in crate::sim) restored_copies: u64,
}

impl World {
    /// A world in which directories are copied, and lists are of one moment, as the protocol wants them.
    pub(in crate::sim) async fn with_copies(seed: u64) -> Self {
        let mut world = Self::new(seed).await;
        world.store.set_prompt();
        world.copies = Some(Outcomes::default());
        world
    }

    /// The same, with a fault that shows only while somebody takes over from an older copy.
    pub(in crate::sim) async fn with_older_copies(seed: u64, bug: Bug) -> Self {
        Self { older_bug: Some(bug), ..Self::with_copies(seed).await }
    }

    pub(in crate::sim) fn outcomes(&self) -> Outcomes {
        self.copies.unwrap_or_default()
    }

    /// The directory is copied, and a process starts on the copy beside the original.
    pub(super) async fn be_copied(&mut self) {
        self.hear();
        if !self.pending.is_empty() || !self.in_doubt.is_empty() {
            // It would be in doubt what the copy has of them.
            return;
        }
        self.disk.power_off_after(u64::MAX);
        let copy = (copy_of(&self.disk, self.rng.next_u64()), copy_of_rows(&self.rows));
        let before = self.history.clone();
        for _ in 0..self.rng.below(STEPS_APART) {
            if self.process().owner.status().superseded {
                break;
            }
            match self.rng.below(6) {
                0 => self.ask().await,
                1 => self.seal(),
                2 => drop(self.store.deliver_one_late().await),
                3 => self.process().upload_unless_ended(),
                _ => self.commit().await,
            }
            tokio::time::advance(Duration::from_secs(31)).await;
        }
        if self.rng.one_in(3) && !self.process().owner.status().superseded {
            // So that the copy is older than what was acknowledged.
            self.seal();
            for _ in 0..STEPS_OF_UPLOAD {
                self.commit().await;
                self.process().upload_unless_ended();
                tokio::time::advance(Duration::from_secs(31)).await;
            }
        }
        if self.gives_up_older().await {
            return;
        }
        match self.copy_starts(&copy).await {
            None => self.tell(|outcomes| outcomes.refused += 1),
            Some(second) => self.beside(second, copy, before).await,
        }
    }

    fn tell(&mut self, what: impl FnOnce(&mut Outcomes)) {
        what(self.copies.as_mut().expect("directories are copied"));
    }

    async fn copy_starts(&self, (disk, rows): &(Arc<SimDisk>, Arc<SimKv>)) -> Option<Process> {
        self.store.set_calm(true);
        let backend = Backend::over(self.store.clone());
        let (disk, rows) = (disk.clone(), rows.clone());
        let started = Process::start(self.worker, disk, rows, backend, sizes(), None).await;
        self.store.set_calm(false);
        match started {
            Ok(process) => Some(process),
            Err(crate::error::PackError::OlderCopy { .. }) => None,
            Err(error) => panic!("a copy does not start: {error}"),
        }
    }

    /// Both go on for a while, and one of them after that.
    async fn beside(
        &mut self,
        mut second: Process,
        copy: (Arc<SimDisk>, Arc<SimKv>),
        before: History,
    ) {
        if self.rng.one_in(3) {
            self.end_between(&mut second).await;
        }
        for _ in 0..self.rng.below(STEPS_BESIDE) {
            match self.rng.below(7) {
                0 => self.process().upload_unless_ended(),
                1 | 2 => second.upload_unless_ended(),
                3 => drop(self.store.deliver_one_late().await),
                4 => drop(second.commit()),
                5 if !self.process().owner.status().superseded => self.commit().await,
                6 if !self.process().owner.status().superseded => self.seal(),
                _ => {}
            }
            tokio::time::advance(Duration::from_secs(31)).await;
        }
        self.hear();
        let (first, then) = (self.process().acknowledged(), second.acknowledged());
        let refused = second.owner.status().superseded && !self.process().owner.status().superseded;
        if refused || self.rng.one_in(3) {
            drop(second);
            self.come_back(&then, Some(before)).await;
            return;
        }
        self.process = None;
        self.pending.clear();
        self.in_doubt.clear();
        let kept = (self.disk.clone(), self.rows.clone(), self.history.clone());
        drop(second);
        copy.0.kill();
        copy.1.crash();
        let copy = (copy.0.reopen(), copy.1);
        match self.copy_starts(&copy).await {
            Some(process) => {
                (self.disk, self.rows) = copy;
                self.history = before;
                self.calls.check();
                self.calls = Calls::of(&self.history.now, KEYS);
                self.process = Some(process);
                self.compare().await;
                self.is_counted(&first).await;
                self.tell(|outcomes| outcomes.took_over += 1);
            }
            // The original had uploaded something that it does not know.
            None => {
                (self.disk, self.rows, self.history) = kept;
                self.come_back(&then, None).await;
            }
        }
    }

    /// The copy has a number, and looks for blobs; one that is on its way from the original comes after that, and the record of
    /// the copy is late.
    async fn end_between(&mut self, second: &mut Process) {
        self.seal();
        self.commit().await;
        self.store.set_late(Some(crate::format::blob::PREFIX));
        for _ in 0..STEPS_OF_UPLOAD / 2 {
            self.process().upload_unless_ended();
            tokio::time::advance(Duration::from_secs(31)).await;
        }
        self.store.set_late(Some(RECORD));
        for _ in 0..STEPS_OF_UPLOAD {
            second.upload_unless_ended();
            tokio::time::advance(Duration::from_secs(31)).await;
        }
        self.store.set_late(None);
        for _ in 0..self.rng.below(4) {
            self.store.deliver_one_late().await;
        }
    }

    /// The original starts again: it knows what the copy has acknowledged as uploaded, or is refused, and then there is what
    /// the copy had, as far as that was uploaded.
    async fn come_back(&mut self, of_copy: &BTreeSet<String>, had: Option<History>) {
        if self.process.is_some() {
            self.stop(|disk| disk.kill());
        } else {
            self.disk.kill();
            self.disk = self.disk.reopen();
            self.rows.crash();
        }
        self.store.set_calm(true);
        let backend = Backend::over(self.store.clone());
        let (disk, rows) = (self.disk.clone(), self.rows.clone());
        let started = Process::start(self.worker, disk, rows, backend, sizes(), None).await;
        self.store.set_calm(false);
        match started {
            Ok(process) => {
                self.process = Some(process);
                self.settle().await;
                self.compare().await;
                self.is_counted(of_copy).await;
                self.tell(|outcomes| outcomes.restored_copies += 1);
            }
            Err(crate::error::PackError::OlderCopy { .. }) => {
                // The copy has gone another way, and both directories are given up: what counts is found again.
                self.history = had.expect("one of both knows all that counts");
                self.take_over(None).await;
                self.is_counted(of_copy).await;
            }
            Err(error) => panic!("the original does not start again: {error}"),
        }
    }

    /// Blobs that some process acknowledged count, also for those after it, or were removed since.
    pub(super) async fn is_counted(&mut self, acknowledged: &BTreeSet<String>) {
        let there: BTreeSet<_> =
            self.store.names(crate::format::blob::PREFIX).await.into_iter().collect();
        let counted = self.store.counted("").await;
        for name in acknowledged.intersection(&there) {
            let blob = name.rsplit_once('/').and_then(|(_, name)| BlobName::parse(name)).unwrap();
            let counts = counted.contains(name) && self.process().takeover_fence.has(blob.id);
            assert!(counts, "{name} was acknowledged, and is void");
        }
    }
}

impl Process {
    fn upload_unless_ended(&mut self) {
        if !self.owner.status().superseded {
            self.upload();
        }
    }

    /// Names of all blobs that it counts as uploaded.
    pub(super) fn acknowledged(&self) -> BTreeSet<String> {
        let rows = self.index.uploaded().unwrap().into_iter();
        rows.map(|(id, row)| row.name(id).path()).collect()
    }
}

fn copy_of(disk: &SimDisk, seed: u64) -> Arc<SimDisk> {
    let copy = SimDisk::new(seed, 1 << 30);
    let mut names = vec![NUMBERED.to_owned()];
    for dir in DIRS {
        copy.create_dir(dir).unwrap();
        let files = disk.list(dir).unwrap_or_default();
        names.extend(files.into_iter().map(|file| format!("{dir}/{file}")));
    }
    for name in names {
        let Ok(from) = disk.open(&name, OpenMode::Read) else { continue };
        let mut bytes = vec![0; from.len().unwrap() as usize];
        from.read_at(0, &mut bytes).unwrap();
        let to = copy.open(&name, OpenMode::CreateNew).unwrap();
        to.write_at(0, &[std::io::IoSlice::new(&bytes)]).unwrap();
        to.sync().unwrap();
    }
    for dir in ["", DIRS[0], DIRS[1]] {
        copy.sync_dir(dir).unwrap();
    }
    copy
}

fn copy_of_rows(rows: &SimKv) -> Arc<SimKv> {
    let copy = Arc::<SimKv>::default();
    let mut batch = Batch::new();
    rows.scan(&[], None, &mut |row, value| {
        batch.put(row, value);
        ControlFlow::Continue(())
    })
    .unwrap();
    copy.apply(&batch).unwrap();
    copy.flush().unwrap();
    copy
}
