//! Processes that believe that they own one backend: what only the owner may acknowledge.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder_objects::{ObjectError, Objects};
use larder_pack::{Acknowledge, PackConfig, Packer};

use crate::support::{Faulty, bucket, config, content, get, put, try_open};

/// A store that answers once a change is uploaded, which is at once.
fn sure(dir: &Path) -> PackConfig {
    PackConfig {
        flush_timeout: Duration::from_millis(10),
        acknowledge: Acknowledge::Uploaded,
        ..config(dir)
    }
}

async fn heir_of(backend: &Arc<Faulty>) -> (tempfile::TempDir, Packer) {
    let dir = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..config(dir.path()) };
    let heir = try_open(takes, backend).await.unwrap();
    (dir, heir)
}

fn spooled(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("spool")).unwrap().count()
}

#[tokio::test]
async fn a_blob_that_arrives_after_a_take_over_is_not_acknowledged_and_stays_in_the_spool() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let store = Arc::new(try_open(sure(dir.path()), &backend).await.unwrap());
    store.create_bucket(&bucket("first"), None).await.unwrap();
    let held = backend.puts.write().await;
    let putting = store.clone();
    let putting = tokio::spawn(async move { put(&putting, "late", content(1, 1000)).await });
    while backend.puts_waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let (_dir, heir) = heir_of(&backend).await;
    drop(held);
    let answer = putting.await.unwrap();
    assert!(matches!(answer, Err(ObjectError::Unavailable { .. })), "{answer:?}");
    assert_eq!(backend.names("blobs").await.len(), 2, "it came all the same");
    let fatal = store.fatal().borrow().clone().unwrap();
    assert!(fatal.contains("has taken over"), "{fatal}");
    assert_eq!(get(&heir, "late").await, Err(ObjectError::NoSuchKey));
    drop(store);
    assert_eq!(spooled(dir.path()), 1, "the only copy that counts");
}
