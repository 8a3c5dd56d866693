use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use object_store::memory::InMemory;

use super::feed::Caller;
use super::index_store::Directory;
use super::{Others, Reads, Sharing};
use crate::backend::Backend;
use crate::ids::WorkerId;
use crate::owner::announce::Announcement;
use crate::owner::name::WorkerName;

/// Hours of uptime of the machine.
static NIGHT: AtomicU64 = AtomicU64::new(0);

#[tokio::test(start_paused = true)]
async fn a_worker_that_wakes_up_answers_only_once_it_has_looked() {
    let root = Backend::over(Arc::new(InMemory::new()));
    let dir = tempfile::tempdir().unwrap();
    let name = WorkerName::new("a").unwrap();
    let me = Announcement {
        prefix: name.prefix(),
        name: name.clone(),
        worker: WorkerId(1),
        address: None,
        announced_ms: 0,
    };
    let path = dir.path().to_owned();
    let reads = Reads { cache: None, ahead_bytes: 0, dir: path, accept_loss: false };
    let index_store = Box::new(Directory::of(dir.path()).unwrap());
    let night = || Duration::from_secs(3600 * NIGHT.load(Ordering::Relaxed));
    let (sharing, caller) = (Sharing::new(name), Caller::default());
    let others = Others::new(me, root, sharing, index_store, reads, caller, night);
    others.announce().await.unwrap();
    others.refresh().await.unwrap();
    others.fresh().unwrap();
    NIGHT.store(8, Ordering::Relaxed);
    assert!(others.fresh().is_err());
    others.refresh().await.unwrap();
    others.fresh().unwrap();
}
