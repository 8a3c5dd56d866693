//! Objects of many bytes, which come to the other region in parts, over a link that breaks.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const MIB: usize = 1 << 20;

/// Passes bytes on to a region, and counts those that it answers.
struct Relay {
    passed: AtomicU64,
    /// The connection over which the answers pass this number breaks.
    breaks_at: AtomicU64,
}

impl Relay {
    async fn before(region: String) -> (Arc<Self>, String) {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let relay =
            Arc::new(Self { passed: AtomicU64::new(0), breaks_at: AtomicU64::new(u64::MAX) });
        let passing = relay.clone();
        tokio::spawn(async move {
            while let Ok((caller, _)) = socket.accept().await {
                let (relay, region) = (passing.clone(), region.clone());
                tokio::spawn(async move {
                    let Ok(callee) = TcpStream::connect(region).await else { return };
                    relay.pass(caller, callee).await;
                });
            }
        });
        (relay, address)
    }

    async fn pass(&self, caller: TcpStream, callee: TcpStream) {
        let (mut from_caller, mut to_caller) = caller.into_split();
        let (mut from_callee, mut to_callee) = callee.into_split();
        let asking = tokio::io::copy(&mut from_caller, &mut to_callee);
        let answering = async {
            let mut piece = vec![0; 65_536];
            loop {
                let Ok(len @ 1..) = from_callee.read(&mut piece).await else { return };
                let passed = self.passed.fetch_add(len as u64, Ordering::Relaxed) + len as u64;
                let breaks_at = self.breaks_at.load(Ordering::Relaxed);
                if passed >= breaks_at {
                    self.breaks_at.store(u64::MAX, Ordering::Relaxed);
                    return;
                }
                if to_caller.write_all(&piece[..len]).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            _ = asking => {}
            () = answering => {}
        }
    }
}

/// Two regions of which the second pulls 8 MiB a second from the first, over a relay: as much as a part has at least.
async fn two_at_a_rate() -> (Region, Region, Arc<Relay>) {
    let (mut one, mut two) = (Region::alone(), Region::alone());
    one.start().await;
    one.proxy().create_bucket(&bucket(), None).await.unwrap();
    one.stop();
    let listen = free_address().await;
    let (relay, address) = Relay::before(listen.clone()).await;
    found(one.dir.path(), "one".parse().unwrap(), listen.clone(), address.parse().unwrap())
        .unwrap();
    one.address = listen;
    one.start().await;
    two.join(&one, "two").await;
    change(two.dir.path(), |members| members.set_rate("one", Some(8))).unwrap();
    two.start().await;
    converged(&[&one, &two]).await;
    (one, two, relay)
}

fn parts(region: &Region) -> u64 {
    region.regions.as_ref().unwrap().counters().parts.load(Ordering::Relaxed)
}

async fn until_parts(region: &Region, count: u64) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while parts(region) < count {
        assert!(tokio::time::Instant::now() < deadline, "parts do not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until nothing is here of versions that are not here as a whole.
async fn until_none_waits(region: &Region) {
    let waiting = || {
        let counters = region.regions.as_ref().unwrap().counters();
        counters.parts_waiting_bytes.load(Ordering::Relaxed)
    };
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while waiting() > 0 {
        assert!(tokio::time::Instant::now() < deadline, "{} bytes wait", waiting());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_object_goes_on_where_its_link_broke() {
    let (mut one, mut two, relay) = two_at_a_rate().await;
    let large = content(1, 20 * MIB + 7);
    let before = relay.passed.load(Ordering::Relaxed);
    // In the middle of the second part.
    relay.breaks_at.store(before + 12 * MIB as u64, Ordering::Relaxed);
    put(one.proxy(), "large", &large).await;
    let all = converged(&[&one, &two]).await;
    assert_eq!(all, [("large".to_owned(), Ok(large))]);
    assert_eq!(relay.breaks_at.load(Ordering::Relaxed), u64::MAX, "the link broke");
    assert_eq!(parts(&two), 3);
    let passed = relay.passed.load(Ordering::Relaxed) - before;
    // Once and the half chunk at which it broke; from its beginning it would be 32 MiB.
    assert!(passed < 27 * MIB as u64, "{passed} bytes");
    until_none_waits(&two).await;
    one.stop();
    two.stop();
}

async fn names(region: &Region) -> Vec<String> {
    keys(region.proxy(), ListRequest { max: 1000, ..ListRequest::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn small_changes_pass_large_objects() {
    let (mut one, mut two, _relay) = two_at_a_rate().await;
    two.pause("one", true).await;
    for number in 0..3 {
        put(one.proxy(), &format!("large {number}"), &content(number, 17 * MIB)).await;
    }
    put(one.proxy(), "small", &content(9, 100)).await;
    two.pause("one", false).await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let mut here = Vec::new();
    while !here.iter().any(|name| name == "small") {
        assert!(tokio::time::Instant::now() < deadline, "it does not come: {here:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        here = names(&two).await;
    }
    assert_eq!(here, ["small"], "it is newer than those that are still to come");
    assert_eq!(converged(&[&one, &two]).await.len(), 4);
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_two_versions_are_never_joined() {
    let (mut one, mut two, _relay) = two_at_a_rate().await;
    put(one.proxy(), "large", &content(1, 20 * MIB)).await;
    until_parts(&two, 1).await;
    let later = content(2, 20 * MIB);
    put(one.proxy(), "large", &later).await;
    until_parts(&two, 2).await;
    // One that is deleted meanwhile leaves nothing.
    put(one.proxy(), "deleted", &content(3, 20 * MIB)).await;
    let all = converged(&[&one, &two]).await;
    assert_eq!(all[1], ("large".to_owned(), Ok(later)));
    let before = parts(&two);
    put(one.proxy(), "deleted", &content(4, 20 * MIB)).await;
    until_parts(&two, before + 1).await;
    one.proxy().delete(&bucket(), &key("deleted"), Condition::default()).await.unwrap();
    assert_eq!(converged(&[&one, &two]).await.len(), 1);
    until_none_waits(&two).await;
    one.stop();
    two.stop();
}

async fn read(region: &Region, opened: &Opened, range: Range<usize>) -> Result<Bytes, ObjectError> {
    let range = range.start as u64..range.end as u64;
    match region.proxy().read(opened, range).await? {
        ReadBody::Whole(bytes) => Ok(bytes),
        ReadBody::Stream(mut pieces) => {
            let mut all = BytesMut::new();
            while let Some(piece) = pieces.next().await {
                all.extend_from_slice(&piece?);
            }
            Ok(all.freeze())
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_object_is_read_where_it_is_until_it_has_come() {
    let (mut one, mut two, _relay) = two_at_a_rate().await;
    let large = content(1, 40 * MIB);
    put(one.proxy(), "large", &large).await;
    until_parts(&two, 1).await;
    let opened = two.proxy().open(&bucket(), &key("large")).await.unwrap();
    assert!(opened.remote.is_some() && opened.metax.size == large.len() as u64);
    assert_eq!(read(&two, &opened, 0..0).await, Ok(Bytes::new()));
    for range in [5 * MIB - 3..9 * MIB, 0..40 * MIB, 40 * MIB - 1..40 * MIB] {
        assert_eq!(read(&two, &opened, range.clone()).await, Ok(large.slice(range)));
    }
    let counters = two.regions.as_ref().unwrap().counters();
    assert_eq!(counters.misses_remote.load(Ordering::Relaxed), 1);
    // Nothing of another version is given for it.
    put(one.proxy(), "large", &content(2, 40 * MIB)).await;
    assert_eq!(read(&two, &opened, 0..MIB).await, Err(ObjectError::Changed));
    converged(&[&one, &two]).await;
    let opened = two.proxy().open(&bucket(), &key("large")).await.unwrap();
    assert!(opened.remote.is_none());
    one.stop();
    two.stop();
}
