use std::time::Duration;

use larder_kv::Batch;
use larder_types::codec::encode;
use object_store::memory::InMemory;

use super::*;
use crate::format::rows::{self, BlobRow, RetiredRow};
use crate::gc::maintenance::MaintenanceReport;
use crate::ids::BlobId;

const GRACE: Duration = Duration::from_secs(3600);

/// Turns of a store with a blob that was retired when the clock said this: at once, and after the grace time.
async fn removed(retired_ms: u64) -> (MaintenanceReport, MaintenanceReport) {
    let dir = tempfile::tempdir().unwrap();
    let config = PackConfig {
        grace: GRACE,
        housekeeping_period: GRACE * 1000,
        backup_interval: Duration::ZERO,
        ..PackConfig::new(dir.path())
    };
    let store = Packer::open(config, Backend::over(Arc::new(InMemory::new()))).await.unwrap();
    let blob = BlobId { worker: WorkerId(0), seq: 7 };
    let row = BlobRow { bytes: 9, ..BlobRow::NONE };
    store.shared.index.add_blob(blob, &row, None).unwrap();
    let mut batch = Batch::new();
    batch.put(&rows::retired(blob), &encode(&RetiredRow { retired_ms, by: blob }));
    store.shared.index.commit(batch, None).unwrap();
    let before = store.run_maintenance().await.unwrap();
    tokio::time::pause();
    tokio::time::advance(GRACE).await;
    tokio::time::resume();
    (before, store.run_maintenance().await.unwrap())
}

#[tokio::test]
async fn a_clock_that_was_set_neither_hastens_nor_delays_a_removal() {
    let now = now_ms();
    let week_ms = 7 * 24 * 3600 * 1000;
    for (retired_ms, clock) in [
        (now, "as it should be"),
        (now - week_ms, "was behind, and jumped"),
        (now + week_ms, "was ahead, and was corrected"),
    ] {
        let (before, after) = removed(retired_ms).await;
        assert_eq!((before.removed, after.removed), (0, 1), "a clock that {clock}");
    }
}
