use larder_objects::{Objects, UploadOptions};
use larder_types::{BucketName, ObjectKey, RegionId};

use super::*;
use crate::clock::now;
use crate::store::{Store, StoreConfig};

const HOUR_MS: u64 = 3_600_000;
const AGE_MS: u64 = 7 * 24 * HOUR_MS;

/// The time at so many hours by the steady clock, with that of the wall so many hours ahead.
fn at(begin: EventTime, hours: u64, ahead: u64) -> EventTime {
    let steady_ms = begin.steady_ms + hours * HOUR_MS;
    EventTime { steady_ms, wall_ms: begin.wall_ms + (hours + ahead) * HOUR_MS }
}

async fn begun(proxy: &Proxy, key: &str) {
    let (bucket, key) = (BucketName::new("uploads").unwrap(), ObjectKey::new(key).unwrap());
    proxy.create_upload(&bucket, &key, UploadOptions::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_ahead_aborts_no_upload() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        root: dir.path().to_owned(),
        data: crate::store::DATA_FILE.to_owned(),
        pg_count: Some(2),
        lv_bytes: Some(64 * 1024 * 1024),
        log_segment_bytes: 2 * 1024 * 1024,
        region: RegionId::OWN,
    };
    let store = Store::open(&config).unwrap();
    let proxy = store.proxy();
    proxy.create_bucket(&BucketName::new("uploads").unwrap(), None).await.unwrap();
    begun(proxy, "one").await;
    while proxy.newest_upload_ms().await.unwrap() == 0 {
        // The index does not show it yet.
        tokio::task::yield_now().await;
    }
    let begin = now();
    let mut searches = Searches::new(AGE_MS, begin);
    // For one search, and back.
    assert_eq!(searches.search(proxy, at(begin, 1, 200)).await, Ok(0));
    assert_eq!(searches.search(proxy, at(begin, 2, 0)).await, Ok(0));
    assert_eq!(searches.search(proxy, at(begin, 3, 0)).await, Ok(0));
    // For good: the newest upload does not say so.
    for hour in 4..20 {
        assert_eq!(searches.search(proxy, at(begin, hour, 200)).await, Ok(0), "{hour}");
    }
    // The clock is believed after a day.
    assert_eq!(searches.search(proxy, at(begin, 28, 200)).await, Ok(1));
    assert_eq!(proxy.expired_uploads(), 1);
    store.close();
}

#[test]
fn a_clock_that_is_steered_is_believed_and_one_that_is_set_is_not() {
    let begin = EventTime { steady_ms: 5, wall_ms: 1 << 40 };
    let mut searches = Searches::new(AGE_MS, begin);
    let mut search = |steady_ms: u64, wall_ms: u64| {
        let now = EventTime { steady_ms: 5 + steady_ms, wall_ms: (1 << 40) + wall_ms };
        searches.begin(now)
    };
    assert_eq!(search(HOUR_MS, HOUR_MS + EXPIRY_CLOCK_OFF_MS_MAX), Some(HOUR_MS));
    assert_eq!(search(2 * HOUR_MS, 2 * HOUR_MS), Some(2 * HOUR_MS));
    assert_eq!(search(3 * HOUR_MS, 3 * HOUR_MS + EXPIRY_CLOCK_OFF_MS_MAX + 1), None);
    assert_eq!(search(4 * HOUR_MS, HOUR_MS), None, "set back");
    assert_eq!(search(5 * HOUR_MS, 2 * HOUR_MS), Some(HOUR_MS));
}
