//! Streams of entries: whole, long, broken, hanging.

use super::*;
use crate::error::Later;
use crate::limits::STALL_MAX;
use crate::message::FetchPart;

fn fetch(names: &[(&str, bool)]) -> Fetch {
    Fetch { names: names.iter().map(|(key, with)| (name(key), *with)).collect() }
}

#[tokio::test]
async fn entries_come_in_their_order_with_their_bytes() {
    let (first, second) = two(How::Bytes(3)).await;
    let link = second.to(&first);
    for _again in 0..3 {
        let mut stream =
            link.fetch(fetch(&[("a", true), ("b", false), ("c", true)])).await.unwrap();
        let a = stream.next().await.unwrap().unwrap();
        assert_eq!((a.name, a.entry, a.bytes), (name("a"), Some(marker()), 3));
        assert_eq!(stream.bytes().await.unwrap().unwrap(), Bytes::from_static(&[7; 3]));
        assert_eq!(stream.bytes().await.unwrap(), None);
        assert_eq!(stream.next().await.unwrap().unwrap().bytes, 0);
        // The bytes of the last are not taken.
        assert_eq!(stream.next().await.unwrap().unwrap().name, name("c"));
        assert_eq!(stream.next().await.unwrap(), None);
        assert_eq!(stream.next().await.unwrap(), None);
    }
    let metrics = second.region_endpoint.metrics().of(RegionId(1));
    assert_eq!(
        (metrics.connected.get(), metrics.failed.get()),
        (1, 0),
        "a connection is used again"
    );
}

#[tokio::test]
async fn a_part_of_an_entry_comes_alone_and_what_came_is_counted() {
    let (first, second) = two(How::Bytes(100)).await;
    let link = second.to(&first);
    for (from, bytes) in [(0, 60), (60, 40), (100, 0)] {
        let at = (from > 0).then_some(marker().at);
        let part = FetchPart { name: name("a"), at, from, bytes_max: 60 };
        let mut stream = link.fetch_part(part).await.unwrap();
        let a = stream.next().await.unwrap().unwrap();
        assert_eq!((a.name, a.entry, a.bytes), (name("a"), Some(marker()), bytes));
        assert_eq!(stream.received_bytes(), 0);
        while stream.bytes().await.unwrap().is_some() {}
        assert_eq!(stream.received_bytes(), bytes);
        assert_eq!(stream.next().await.unwrap(), None);
    }
    let part = FetchPart { name: name("a"), at: None, from: 7, bytes_max: 60 };
    let refused = link.fetch_part(part).await.unwrap_err();
    assert!(matches!(refused, LinkError::Unsound(_)), "of which version? {refused}");
    let metrics = second.region_endpoint.metrics().of(RegionId(1));
    assert_eq!(metrics.connected.get(), 1, "a connection is used again");
}

#[tokio::test]
async fn a_region_compresses_on_request() {
    let (first, second) = two(How::Bytes(3 * PIECE_BYTES_MAX as u64)).await;
    let takes = async |fetched: &[(&str, bool)]| {
        let metrics = second.region_endpoint.metrics().of(RegionId(1));
        let before = metrics.bytes_told.get();
        let mut stream = second.to(&first).fetch(fetch(fetched)).await.unwrap();
        let mut taken = 0;
        while let Some(entry) = stream.next().await.unwrap() {
            let mut left = entry.bytes;
            while let Some(bytes) = stream.bytes().await.unwrap() {
                assert!(bytes.iter().all(|byte| *byte == 7));
                (taken, left) = (taken + bytes.len(), left - bytes.len() as u64);
            }
            assert_eq!(left, 0);
        }
        (taken, metrics.bytes_told.get() - before)
    };
    let entries = [("a", true), ("b", false), ("c", true)];
    let (taken, passed) = takes(&entries).await;
    assert!(taken == 6 * PIECE_BYTES_MAX && passed > taken as u64, "{taken}, {passed}");
    let spared = || first.region_endpoint.metrics().of(RegionId(2)).bytes_spared.get();
    assert_eq!(spared(), 0);
    let set = |on| {
        change(second.path(), |members| members.set_compressed("one", on)).unwrap();
        second.region_endpoint.reload_once().unwrap();
    };
    set(true);
    for _again in 0..3 {
        let (taken, passed) = takes(&entries).await;
        assert!(taken == 6 * PIECE_BYTES_MAX && passed < taken as u64 / 50, "{taken}, {passed}");
    }
    assert!(spared() > 17 * PIECE_BYTES_MAX as u64, "{}", spared());
    set(false);
    assert!(takes(&entries).await.1 > taken as u64);
    assert_eq!(
        second.region_endpoint.metrics().of(RegionId(1)).connected.get(),
        1,
        "it is used again"
    );
}

#[tokio::test]
async fn a_compressed_stream_that_breaks_is_never_a_short_one() {
    let (first, second) = two(How::Breaks).await;
    change(second.path(), |members| members.set_compressed("one", true)).unwrap();
    second.region_endpoint.reload_once().unwrap();
    let mut stream = second.to(&first).fetch(fetch(&[("a", true)])).await.unwrap();
    stream.next().await.unwrap();
    first.source.arrived.notify_one();
    let mut taken = 0;
    let ended = loop {
        match stream.bytes().await {
            Ok(Some(bytes)) => taken += bytes.len(),
            ended => break ended,
        }
    };
    assert!(matches!(ended, Err(LinkError::Later(Later::Broken(_)))), "{ended:?}, {taken}");
}

/// Bytes that may be on their way: of the sink's queue, of HTTP, of TLS, and of the two sockets.
const IN_FLIGHT_MAX: u64 = 24 << 20;

#[tokio::test]
async fn a_long_stream_is_sent_only_as_fast_as_it_is_taken() {
    const LEN: u64 = 64 << 20;
    let (first, second) = two(How::Bytes(LEN)).await;
    let mut stream = second.to(&first).fetch(fetch(&[("a", true)])).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().bytes, LEN);
    let (mut taken, mut ahead) = (0, 0);
    while let Some(bytes) = stream.bytes().await.unwrap() {
        assert!(bytes.iter().all(|byte| *byte == 7));
        taken += bytes.len() as u64;
        ahead = ahead.max(first.source.sent.load(Ordering::Relaxed).saturating_sub(taken));
        // The sender has every chance to be ahead.
        tokio::task::yield_now().await;
    }
    assert_eq!(taken, LEN);
    assert!(ahead < IN_FLIGHT_MAX, "{ahead} bytes were sent ahead");
    assert_eq!(stream.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_stream_that_breaks_is_never_a_short_one() {
    let (first, second) = two(How::Breaks).await;
    let mut stream = second.to(&first).fetch(fetch(&[("a", true), ("b", true)])).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().bytes, 2 * PIECE_BYTES_MAX as u64);
    let mut taken = 0;
    let broken = loop {
        match stream.bytes().await {
            Ok(Some(bytes)) => {
                taken += bytes.len();
                if taken == PIECE_BYTES_MAX {
                    first.source.arrived.notify_one();
                }
            }
            other => break other,
        }
    };
    assert!(matches!(broken, Err(LinkError::Later(Later::Broken(_)))), "{broken:?}");
    assert_eq!(taken, PIECE_BYTES_MAX);
    assert!(stream.next().await.is_err());
    assert!(second.to(&first).hello().await.is_ok());
}

#[tokio::test]
async fn a_fetch_declined_at_its_start_reports_the_reason() {
    let (first, second) = two(How::Busy).await;
    let busy = second.to(&first).fetch(fetch(&[("a", true)])).await;
    assert!(matches!(busy, Err(LinkError::Later(Later::Busy))), "{busy:?}");
}

#[tokio::test]
async fn a_region_that_does_not_answer_is_not_waited_for() {
    let (first, second) = two(How::Never).await;
    let link = second.to(&first);
    link.hello().await.unwrap();
    // From here on time passes when nothing else can happen.
    tokio::time::pause();
    let since = tokio::time::Instant::now();
    let late = link.query_ids(ask()).await;
    assert!(matches!(late, Err(LinkError::Later(Later::Late | Later::Busy))), "{late:?}");
    let late = link.fetch(fetch(&[("a", true)])).await;
    assert!(matches!(late, Err(LinkError::Later(Later::Late | Later::Busy))), "{late:?}");
    assert!(since.elapsed() < 3 * crate::limits::CALL_TIME_MAX);
}

#[tokio::test]
async fn a_stream_that_hangs_is_not_waited_for() {
    let (first, second) = two(How::Hangs).await;
    let mut stream = second.to(&first).fetch(fetch(&[("a", true)])).await.unwrap();
    assert!(stream.next().await.unwrap().is_some());
    let mut taken = 0;
    while taken < PIECE_BYTES_MAX {
        taken += stream.bytes().await.unwrap().unwrap().len();
    }
    tokio::time::pause();
    let since = tokio::time::Instant::now();
    let late = stream.bytes().await;
    assert!(matches!(late, Err(LinkError::Later(Later::Late))), "{late:?}");
    assert!(since.elapsed() <= 2 * STALL_MAX);
}

#[tokio::test]
async fn whoever_writes_an_answer_hears_that_the_other_end_is_gone() {
    let (first, second) = two(How::Bytes(1 << 40)).await;
    let link = second.to(&first);
    let mut stream = link.fetch(fetch(&[("a", true)])).await.unwrap();
    assert!(stream.next().await.unwrap().is_some());
    assert!(Arc::strong_count(&first.source) > 2, "the answer is being written");
    drop(stream);
    // The listener's and this one.
    while Arc::strong_count(&first.source) > 2 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn whoever_takes_nothing_is_cut_off() {
    let (first, second) = two(How::Bytes(1 << 40)).await;
    let mut stream = second.to(&first).fetch(fetch(&[("a", true)])).await.unwrap();
    assert!(stream.next().await.unwrap().is_some());
    // Until all buffers on the way are full, and for as long as a write may wait.
    tokio::time::pause();
    while Arc::strong_count(&first.source) > 2 {
        tokio::time::sleep(STALL_MAX / 2).await;
    }
    let cut = loop {
        match stream.bytes().await {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(cut, Err(LinkError::Later(_))), "{cut:?}");
}
