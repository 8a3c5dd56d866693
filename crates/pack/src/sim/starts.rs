//! Checks what a start may count on.

use std::sync::Arc;

use bytes::Bytes;
use larder_env::SimDisk;

use super::process::{Process, sizes};
use super::{RUNNING, SimStore};
use crate::backend::Backend;
use crate::error::PackError;
use crate::ids::WorkerId;
use crate::owner::counting::PREFIX;

/// The blobs that it lists may have come after its heir's list; and it would remove the files of
/// blobs that it lists.
#[tokio::test]
async fn a_rebuild_beside_a_take_over_counts_nothing_as_uploaded() {
    RUNNING.set(true);
    let (store, disk) = (SimStore::new(1), SimDisk::new(1, 1 << 30));
    store.set_calm(true);
    let start = |disk: Arc<SimDisk>| {
        let backend = Backend::over(store.clone());
        Process::start(WorkerId(1), disk, Arc::default(), backend, sizes(), None)
    };
    drop(start(disk.clone()).await.unwrap());
    store.set("claims/0000000000000002", Bytes::from_static(b"x")).await;
    disk.kill();
    let refused = start(disk.reopen()).await.err().expect("it is superseded");
    assert!(matches!(refused, PackError::Superseded { .. }), "{refused}");
    RUNNING.set(false);
}

/// Otherwise a directory on a full disk, started again and again, takes the worker each time from a process that runs.
#[tokio::test]
async fn a_start_without_an_index_on_a_full_disk_takes_no_number() {
    RUNNING.set(true);
    let (store, disk) = (SimStore::new(1), SimDisk::new(1, 1 << 30));
    store.set_calm(true);
    let start = |disk: Arc<SimDisk>| {
        let backend = Backend::over(store.clone());
        Process::start(WorkerId(0), disk, Arc::default(), backend, sizes(), None)
    };
    drop(start(disk.clone()).await.unwrap());
    let before = store.names(PREFIX).await;
    assert_eq!(before.len(), 2, "{before:?}");
    disk.kill();
    let disk = disk.reopen();
    disk.set_capacity(0);
    assert!(start(disk.clone()).await.is_err(), "the disk is full");
    assert_eq!(store.names(PREFIX).await, before);
    disk.set_capacity(1 << 30);
    drop(start(disk).await.unwrap());
    assert_eq!(store.names(PREFIX).await.len(), 4);
    RUNNING.set(false);
}
