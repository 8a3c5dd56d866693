//! Stores that are regions of each other, over their real links.

mod clocks;
mod deletions;
mod homes;
mod lists;
mod local;
mod parts;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use larder_kv::KvReader;
use larder_link::{RegionEndpoint, Setting, change, found, join};
use larder_objects::ReplicationStatus;
use larder_roles::regions::Regions;
use larder_types::RegionId;
use tokio::net::TcpListener;

use super::*;

/// The time that regions may take to tell each other what is there.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A body whose digest is that of its bytes: regions look at it.
struct Digested {
    body: Body,
    md5: [u8; 16],
}

impl PutBody for Digested {
    fn len(&self) -> Option<u64> {
        self.body.len()
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        self.body.next().await
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        Ok(BodyDigest { md5: self.md5, checksum: None })
    }
}

async fn try_put(proxy: &Proxy, name: &str, bytes: &Bytes) -> Result<(), ObjectError> {
    use md5::Digest;
    let body = Digested { body: Body::of(bytes), md5: md5::Md5::digest(bytes).into() };
    proxy.put(&bucket(), &key(name), PutOptions::default(), body).await.map(|_done| ())
}

async fn put(proxy: &Proxy, name: &str, bytes: &Bytes) {
    try_put(proxy, name, bytes).await.unwrap();
}

/// A store in a directory, as a region.
struct Region {
    dir: tempfile::TempDir,
    address: String,
    store: Option<Store>,
    regions: Option<Regions>,
}

impl Region {
    /// A store that is no region yet.
    fn alone() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, address: String::new(), store: None, regions: None }
    }

    /// Becomes the first region.
    async fn found(&mut self) {
        let address = free_address().await;
        let (name, advertise) = ("one".parse().unwrap(), address.parse().unwrap());
        found(self.dir.path(), name, address.clone(), advertise).unwrap();
        self.address = address;
    }

    /// Becomes another, of which the first one's server runs.
    async fn join(&mut self, first: &Self, name: &str) {
        let now_ms = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
        let (token, _) = change(first.dir.path(), |members| members.issue(now_ms)).unwrap();
        let address = free_address().await;
        let advertise = address.parse().unwrap();
        // The first one's server looks at its file once a second.
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let name = name.parse().unwrap();
            let (listen, advertise) = (address.clone(), Clone::clone(&advertise));
            match join(self.dir.path(), &token, name, listen, advertise).await {
                Ok(_) => break,
                Err(error) if tokio::time::Instant::now() > deadline => panic!("{error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        self.address = address;
    }

    async fn start(&mut self) {
        let site = RegionEndpoint::open(self.dir.path()).unwrap();
        let region = site.as_ref().map_or(RegionId::OWN, |site| site.number());
        let store = Store::open(&StoreConfig { region, ..config(&self.dir) }).unwrap();
        if let Some(site) = site {
            let socket = TcpListener::bind(&self.address).await.unwrap();
            let dir = self.dir.path().to_owned();
            self.regions = Some(Regions::start(site, store.proxy(), socket, dir).unwrap());
        }
        self.store = Some(store);
    }

    fn stop(&mut self) {
        drop(self.regions.take());
        if let Some(store) = self.store.take() {
            store.close();
        }
    }

    fn proxy(&self) -> &Proxy {
        self.store.as_ref().expect("it runs").proxy()
    }

    /// Keys and their contents.
    async fn all(&self) -> Vec<(String, Result<Bytes, String>)> {
        if self.proxy().bucket(&bucket()).is_err() {
            return Vec::new();
        }
        let mut all = Vec::new();
        for name in keys(self.proxy(), ListRequest { max: 1000, ..ListRequest::default() }).await {
            let got = get(self.proxy(), &name).await.map_err(|error| error.to_string());
            all.push((name, got));
        }
        all
    }

    /// Pauses another region, or resumes it, and waits until the server has noticed.
    async fn pause(&self, name: &str, paused: bool) {
        change(self.dir.path(), |members| members.pause(name, paused)).unwrap();
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while self.regions.as_ref().expect("it runs").status().peers[0].paused != paused {
            assert!(tokio::time::Instant::now() < deadline, "the server does not notice");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn is_level(&self) -> bool {
        let status = self.regions.as_ref().expect("it runs").status();
        status.peers.iter().all(|peer| {
            peer.unreachable.is_none() && peer.operations_behind == 0 && !peer.comparing
        })
    }
}

async fn free_address() -> String {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    socket.local_addr().unwrap().to_string()
}

/// Waits until regions have the same, and know it.
async fn converged(regions: &[&Region]) -> Vec<(String, Result<Bytes, String>)> {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let mut all = Vec::new();
        for region in regions {
            all.push(region.all().await);
        }
        let are_equal = all.windows(2).all(|pair| pair[0] == pair[1]);
        if are_equal && regions.iter().all(|region| region.is_level()) {
            return all.swap_remove(0);
        }
        if tokio::time::Instant::now() > deadline {
            let names = |all: &Vec<(String, _)>| all.iter().map(|it| it.0.clone()).collect();
            let names: Vec<Vec<String>> = all.iter().map(names).collect();
            let status: Vec<_> =
                regions.iter().map(|it| it.regions.as_ref().expect("it runs").status()).collect();
            panic!("regions differ: {names:?}, {status:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Two regions that run, the first of which had objects before there were regions.
async fn two() -> (Region, Region) {
    let (mut one, mut two) = (Region::alone(), Region::alone());
    one.start().await;
    one.proxy().create_bucket(&bucket(), None).await.unwrap();
    put(one.proxy(), "before", &content(1, 100_000)).await;
    put(one.proxy(), "before/small", &content(2, 10)).await;
    one.stop();
    one.found().await;
    one.start().await;
    two.join(&one, "two").await;
    two.start().await;
    (one, two)
}

#[tokio::test(flavor = "multi_thread")]
async fn regions_come_to_the_same_also_of_what_was_there_before_and_after_restarts() {
    let (mut one, mut two) = two().await;
    assert_eq!(converged(&[&one, &two]).await.len(), 2, "what was there before");
    // A bucket that has nothing yet is there too.
    let empty = BucketName::new("empty").unwrap();
    two.proxy().create_bucket(&empty, None).await.unwrap();
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while one.proxy().bucket(&empty).is_err() {
        assert!(tokio::time::Instant::now() < deadline, "a bucket is not told of");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Objects of every shape, in both.
    let sizes = [0, 1, 3000, 70_000, CHUNK_BYTES_MAX as usize + 12_345];
    for (at, size) in sizes.iter().enumerate() {
        put(one.proxy(), &format!("one/{at}"), &content(10 + at as u64, *size)).await;
        put(two.proxy(), &format!("two/{at}"), &content(20 + at as u64, *size)).await;
    }
    let all = converged(&[&one, &two]).await;
    assert_eq!(all.len(), 2 + 2 * sizes.len());
    for (name, got) in &all {
        assert!(got.is_ok(), "{name}: {got:?}");
    }
    // Deletes and overwrites, one region being away.
    two.stop();
    one.proxy().delete(&bucket(), &key("before"), Condition::default()).await.unwrap();
    put(one.proxy(), "two/1", &content(30, 500)).await;
    two.start().await;
    two.proxy().delete(&bucket(), &key("one/2"), Condition::default()).await.unwrap();
    let all = converged(&[&one, &two]).await;
    let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
    assert!(!names.contains(&"before") && !names.contains(&"one/2"), "{names:?}");
    assert_eq!(all.len(), 2 * sizes.len());
    let replaced = all.iter().find(|(name, _)| name == "two/1").unwrap();
    assert_eq!(replaced.1, Ok(content(30, 500)));
    one.stop();
    two.stop();
    for region in [&one, &two] {
        let region_of =
            |it: &Region| RegionEndpoint::open(it.dir.path()).unwrap().unwrap().number();
        let config = StoreConfig { region: region_of(region), ..config(&region.dir) };
        let report = inspect(&config, true).unwrap();
        assert!(report.is_sound(), "{report}");
    }
}

/// The known description of an object: tags, entity tag, clock and region.
async fn described(region: &Region, name: &str) -> larder_types::Metax {
    let metax = region.proxy().open(&bucket(), &key(name)).await.unwrap().metax;
    // A version that was put before there were regions says so where it was put.
    larder_types::Metax { region: RegionId(metax.region.0.max(1)), ..metax }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_both_change_at_once_comes_to_the_same() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    let mut rng = larder_env::SeededRng::new(7);
    for round in 0..150 {
        let name = format!("k{}", rng.below(5));
        for (at, region) in [&one, &two].into_iter().enumerate() {
            match rng.below(4) {
                0 => region
                    .proxy()
                    .delete(&bucket(), &key(&name), Condition::default())
                    .await
                    .unwrap(),
                1 => {
                    let tags = vec![("round".to_owned(), format!("{at}/{round}"))];
                    match region.proxy().set_tags(&bucket(), &key(&name), tags).await {
                        Ok(()) | Err(ObjectError::NoSuchKey) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                _ => {
                    let size = [5000, 20, 0][rng.below(3) as usize];
                    put(region.proxy(), &name, &content(2 * round + at as u64, size)).await;
                }
            }
        }
    }
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        // Tags are no part of what is compared: those that were set last may still be on their way.
        let all = converged(&[&one, &two]).await;
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for (name, got) in &all {
            assert!(got.is_ok(), "{name}: {got:?}");
            here.push((name, described(&one, name).await));
            there.push((name, described(&two, name).await));
        }
        if here == there {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{here:?} and {there:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    one.stop();
    two.stop();
}

/// Returns true if a region has an object itself.
async fn has(region: &Region, name: &str) -> bool {
    region.proxy().open_here(&bucket(), &key(name)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_answered_once_as_many_regions_have_it_as_its_bucket_asks_for() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    larder_link::submit_order(one.dir.path(), Setting { bucket: bucket(), regions: 2 }).unwrap();
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    // The server forgets what was asked for once it is kept.
    while !larder_link::asked::<Setting>(one.dir.path()).unwrap().is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "the setting is not taken up");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(one.proxy().bucket(&bucket()).unwrap().regions, 2);
    for (name, size) in [("small", 100), ("chunk", 100_000), ("chunks", (9 << 20) + 1)] {
        put(one.proxy(), name, &content(3, size)).await;
        assert!(has(&two, name).await, "{name} is answered and not there");
    }
    let replication = async |region: &Region, name: &str| {
        let opened = region.proxy().open_here(&bucket(), &key(name)).await.unwrap();
        let found =
            region.proxy().replication(&bucket(), &opened).await.unwrap().expect("it is a region");
        (found.status, found.regions)
    };
    let both = || vec![RegionId(1), RegionId(2)];
    assert_eq!(replication(&one, "chunk").await, (ReplicationStatus::Completed, both()));
    assert_eq!(replication(&two, "chunk").await, (ReplicationStatus::Replica, both()));
    let tags = vec![("a".to_owned(), "b".to_owned())];
    one.proxy().set_tags(&bucket(), &key("small"), tags.clone()).await.unwrap();
    assert_eq!(described(&two, "small").await.attributes.tags, tags);
    one.proxy().delete(&bucket(), &key("small"), Condition::default()).await.unwrap();
    assert!(!has(&two, "small").await, "its deletion is answered");
    let waits = |region: &Region| {
        let waits = region.proxy().region_waits();
        (waits.met.load(Ordering::Relaxed), waits.unmet.load(Ordering::Relaxed))
    };
    assert_eq!((waits(&one), waits(&two)), ((5, 0), (0, 0)));
    two.stop();
    let late = try_put(one.proxy(), "late", &content(4, 3000)).await;
    let Err(ObjectError::Unavailable { reason }) = late else { panic!("{late:?}") };
    assert!(reason.starts_with("the change is made in this region"), "{reason}");
    assert_eq!(waits(&one), (5, 1));
    assert_eq!(replication(&one, "late").await, (ReplicationStatus::Pending, vec![RegionId(1)]));
    one.stop();
    one.start().await;
    assert_eq!(one.proxy().bucket(&bucket()).unwrap().regions, 2);
    let opened = one.proxy().open_here(&bucket(), &key("chunk")).await.unwrap();
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let found = loop {
        if let Some(found) = one.proxy().replication(&bucket(), &opened).await.unwrap() {
            break found;
        }
        assert!(tokio::time::Instant::now() < deadline, "nobody tells how far regions are");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(found.status, ReplicationStatus::Pending, "a region that says nothing has nothing");
    two.start().await;
    converged(&[&one, &two]).await;
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_reports_unsupported_requests() {
    let (mut one, mut two) = two().await;
    let options = larder_objects::AppendOptions {
        at: larder_objects::AppendAt::End,
        attributes: larder_types::Attributes::default(),
        condition: Condition::default(),
    };
    let body = Body::of(&content(1, 10));
    let refused = one.proxy().append(&bucket(), &key("a"), options, body).await;
    assert!(matches!(refused, Err(ObjectError::Unsupported { .. })), "{refused:?}");
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_not_come_yet_is_asked_for_and_what_nobody_has_is_not_there() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    // Nothing is pulled: only asking brings it, and who is paused is not asked.
    two.pause("one", true).await;
    put(one.proxy(), "new", &content(5, 200_000)).await;
    let found = get(two.proxy(), "new").await;
    assert!(matches!(found, Err(ObjectError::NoSuchKey)), "{found:?}");
    two.pause("one", false).await;
    for (name, size) in [("a", 200_000), ("b", 3), ("c", 0)] {
        put(one.proxy(), name, &content(6, size)).await;
        // However fast the regions are: at once.
        let got = get(two.proxy(), name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(got.len(), size, "{name}");
    }
    one.proxy().delete(&bucket(), &key("b"), Condition::default()).await.unwrap();
    converged(&[&one, &two]).await;
    for region in [&one, &two] {
        for name in ["b", "never"] {
            let found = get(region.proxy(), name).await;
            assert!(matches!(found, Err(ObjectError::NoSuchKey)), "{name}: {found:?}");
        }
    }
    let counters = two.regions.as_ref().unwrap().counters();
    assert!(counters.misses.load(std::sync::atomic::Ordering::Relaxed) > 0);
    one.stop();
    two.stop();
}

/// Objects with data of their own have an outcome some ops after their put: that an op of the journal was passed says
/// nothing of a put before it.
#[tokio::test(flavor = "multi_thread")]
async fn no_object_is_missed_when_regions_put_at_once_and_begin_anew() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    for round in 0..4 {
        let of_region = async |region: &Region, at: &str| {
            let puts = (0..40).map(async |number| {
                let size = if number % 2 == 0 { 20_000 } else { 30 };
                put(region.proxy(), &format!("{at}/{round}/{number}"), &content(number, size))
                    .await;
            });
            futures::future::join_all(puts).await;
        };
        tokio::join!(of_region(&one, "one"), of_region(&two, "two"));
        // One begins anew while it is behind.
        let behind = if round % 2 == 0 { &mut one } else { &mut two };
        behind.stop();
        behind.start().await;
    }
    let all = converged(&[&one, &two]).await;
    assert_eq!(all.len(), 2 + 2 * 4 * 40);
    one.stop();
    two.stop();
}

/// An object that one region cannot give holds up none of the others, and is not said to be in none.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_object_holds_up_no_other() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    two.stop();
    for number in 0..80 {
        put(one.proxy(), &format!("k{number:03}"), &content(number, 10_000)).await;
    }
    one.stop();
    let data = one.dir.path().join(larder_roles::store::DATA_FILE);
    let bytes = std::fs::read(&data).unwrap();
    let mut damaged = Vec::new();
    for number in [3, 70] {
        let wanted = content(number, 10_000);
        let at = bytes.windows(64).position(|window| *window == wanted[..64]).expect("its data");
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&data).unwrap();
        file.write_all_at(&[0xA5; 64], at as u64).unwrap();
        damaged.push(format!("k{number:03}"));
    }
    one.start().await;
    two.start().await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let listed = keys(two.proxy(), ListRequest { max: 1000, ..ListRequest::default() }).await;
        if listed.len() == 2 + 80 - damaged.len() {
            assert!(damaged.iter().all(|name| !listed.contains(name)), "{listed:?}");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{} came", listed.len());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // They are wanted still, and come when they can be had.
    // The status follows within a second.
    while two.regions.as_ref().unwrap().status().peers[0].operations_behind == 0 {
        assert!(tokio::time::Instant::now() < deadline, "what is damaged does not count as behind");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (number, name) in [3, 70].into_iter().zip(&damaged) {
        let found = get(two.proxy(), name).await;
        assert!(matches!(found, Err(ObjectError::Unavailable { .. })), "it is there: {found:?}");
        put(one.proxy(), name, &content(number, 10_000)).await;
    }
    assert_eq!(converged(&[&one, &two]).await.len(), 82);
    one.stop();
    two.stop();
}

/// Rows of a table.
fn rows(region: &Region, table: u8) -> usize {
    let mut count = 0;
    let kv = region.store.as_ref().expect("it runs").meta().kv();
    kv.scan(&[table], Some(&[table + 1]), &mut |_, _| {
        count += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    count
}

fn tombstones(region: &Region) -> usize {
    rows(region, b'T')
}

async fn has_no_tombstones(region: &Region) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while tombstones(region) > 0 {
        assert!(tokio::time::Instant::now() < deadline, "tombstones are not freed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tombstones_go_when_all_regions_have_passed_them_and_nothing_comes_back() {
    let (mut one, mut two) = two().await;
    let before = converged(&[&one, &two]).await;
    for number in 0..200 {
        put(one.proxy(), &format!("k{number:03}"), &content(number, 5000)).await;
    }
    converged(&[&one, &two]).await;
    // Deletions in region two are not pulled by one.
    one.pause("two", true).await;
    for number in 0..200 {
        let region = if number % 2 == 0 { &one } else { &two };
        region
            .proxy()
            .delete(&bucket(), &key(&format!("k{number:03}")), Condition::default())
            .await
            .unwrap();
    }
    has_no_tombstones(&one).await;
    assert_eq!(tombstones(&two), 200, "region one has passed none of them");
    one.pause("two", false).await;
    assert_eq!(converged(&[&one, &two]).await, before);
    has_no_tombstones(&one).await;
    has_no_tombstones(&two).await;
    let freed = |region: &Region| {
        let counters = region.regions.as_ref().unwrap().counters();
        counters.freed.load(std::sync::atomic::Ordering::Relaxed)
    };
    assert!(freed(&one) >= 200 && freed(&two) >= 200);
    // The state that a start derives anew has it too.
    for region in [&mut one, &mut two] {
        region.stop();
        region.start().await;
    }
    put(two.proxy(), "k000", &content(7, 5000)).await;
    let all = converged(&[&one, &two]).await;
    assert_eq!(all.len(), before.len() + 1);
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_does_not_get_its_own_changes_back() {
    let (mut one, mut two) = two().await;
    converged(&[&one, &two]).await;
    let answered = |region: &Region, to: u16| {
        let links = region.regions.as_ref().unwrap().links();
        links.of(RegionId(to)).bytes_answered.get()
    };
    let before = answered(&two, 1);
    for number in 0..300 {
        put(one.proxy(), &format!("k{number:03}"), &content(number, 100)).await;
    }
    converged(&[&one, &two]).await;
    // Region one has asked behind all that two took from it.
    put(two.proxy(), "last", &content(7, 100)).await;
    assert_eq!(converged(&[&one, &two]).await.len(), 303);
    let told_back = answered(&two, 1) - before;
    // The ids of so many have twice as many bytes at least.
    assert!(told_back < 300 * 20, "{told_back} bytes are told back");
    one.stop();
    two.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_has_its_parts_in_every_region() {
    let (mut one, mut two) = two().await;
    let (proxy, name) = (one.proxy(), key("in parts"));
    let upload = proxy.create_upload(&bucket(), &name, UploadOptions::default()).await.unwrap();
    let bodies = [content(1, PART_BYTES_MIN as usize), content(2, 70_000)];
    let mut parts = Vec::new();
    for (number, bytes) in (3..).zip(&bodies) {
        let done = proxy.put_part(&bucket(), &name, upload, number, Body::of(bytes)).await.unwrap();
        parts.push(NamedPart { number, etag: done.etag.text(), checksum: None });
    }
    let options = CompleteOptions { parts, ..CompleteOptions::default() };
    proxy.complete_upload(&bucket(), &name, upload, options).await.unwrap();
    converged(&[&one, &two]).await;
    for region in [&one, &two] {
        let opened = region.proxy().open(&bucket(), &name).await.unwrap();
        let parts: Vec<_> = opened.parts().iter().map(|part| (part.number, part.len)).collect();
        assert_eq!(parts, [(3, bodies[0].len() as u64), (4, bodies[1].len() as u64)]);
    }
    assert_eq!(get(two.proxy(), "in parts").await, Ok(Bytes::from(bodies.concat())));
    one.stop();
    two.stop();
}
