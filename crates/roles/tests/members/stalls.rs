//! A disk that stalls, and a backup that has one.

use std::io::IoSlice;
use std::sync::Arc;

use futures::StreamExt;
use larder_env::{Disk, DiskError, DiskFile, OpenMode, RealDisk};
use larder_protocol::{Answer, Call};
use larder_roles::limits::{LOG_BUFFER_BYTES_MAX, LOG_BUFFER_SEGMENT_PART};
use parking_lot::{Condvar, Mutex};

use crate::support::{Cluster, PG, SEGMENT_BYTES, inline, put, request, until};

/// Stops what a disk does for its log, or lets it go on.
#[derive(Default)]
pub struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub fn shut(&self) {
        *self.is_shut.lock() = true;
    }

    pub fn open(&self) {
        *self.is_shut.lock() = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut is_shut = self.is_shut.lock();
        while *is_shut {
            self.opened.wait(&mut is_shut);
        }
    }
}

/// A real disk behind a gate.
pub struct GatedDisk {
    pub disk: RealDisk,
    pub gate: Arc<Gate>,
}

impl Disk for GatedDisk {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let file = self.disk.open(name, mode)?;
        Ok(Arc::new(GatedFile { file, gate: self.gate.clone() }))
    }

    fn create_dir(&self, name: &str) -> Result<(), DiskError> {
        self.disk.create_dir(name)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.disk.sync_dir(dir)
    }

    fn free_bytes(&self) -> Result<u64, DiskError> {
        self.disk.free_bytes()
    }
}

struct GatedFile {
    file: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl DiskFile for GatedFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_at(offset, buf)
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>, DiskError> {
        self.file.read_cached_at(offset, buf)
    }

    fn read_device_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_device_at(offset, buf)
    }

    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DiskError> {
        self.gate.pass();
        self.file.write_at(offset, parts)
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.gate.pass();
        self.file.sync()
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.file.allocate(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        self.file.set_len(len)
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }

    fn zeros_from(&self) -> Result<u64, DiskError> {
        self.file.zeros_from()
    }
}

const PUTS: u64 = 400;
/// Bytes of what describes each.
const PUT_BYTES: u64 = 10_000;

fn key(number: u64) -> String {
    format!("key {number}")
}

fn long_put(number: u64, bytes: usize) -> Call {
    let Call::Put(mut put) = put(request(number), &key(number), inline()) else {
        unreachable!("it is a put")
    };
    put.description.attributes.content_type = Some("a".repeat(bytes));
    Call::Put(put)
}

/// Makes puts until each is done.
async fn put_all(cluster: &Cluster, count: u64, call: impl Fn(u64) -> Call) {
    let puts = futures::stream::iter(1..=count).map(|number| {
        let call = call(number);
        async move {
            until("the put is done", async || {
                matches!(cluster.call(PG, call.clone()).await, Answer::Done { .. })
            })
            .await;
        }
    });
    puts.buffer_unordered(count as usize).collect::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ops_that_a_stalled_backup_has_no_room_for_are_turned_away_and_come_again() {
    let cluster = Cluster::start(1).await;
    let (_, members) = cluster.members(PG);
    let backup = members[1];
    let busy = LOG_BUFFER_BYTES_MAX.min(SEGMENT_BYTES / LOG_BUFFER_SEGMENT_PART);
    cluster.gate(backup).shut();
    let received = || cluster.received(backup);
    let before = received();
    let stalled = async {
        let waiting = || cluster.meta(backup).log_counters().buffered_bytes;
        // Ops that have arrived are not in the log yet.
        until("its log is behind", async || waiting() > busy).await;
        until("it was sent all of them", async || received() - before > PUTS * PUT_BYTES).await;
        let waiting = waiting();
        cluster.gate(backup).open();
        waiting
    };
    let put = |number| long_put(number, PUT_BYTES as usize);
    let (waiting, ()) = tokio::join!(stalled, put_all(&cluster, PUTS, put));
    assert!(waiting <= busy + 2 * PUT_BYTES, "{waiting} bytes wait where {busy} are many");
    cluster.shows(backup, &(1..=PUTS).map(key).collect::<Vec<_>>()).await;
}
