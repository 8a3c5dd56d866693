//! An object of many bytes, which every proxy of another region reads where it is until it has come, from whichever region gives it.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use larder_env::SeededRng;
use larder_objects::{ObjectError, Objects, Opened, PutOptions, ReadBody};
use larder_types::ServerId;
use md5::{Digest, Md5};
use tokio::time::{Instant, sleep};

use super::super::clients::whole;
use super::clients::{Body, Client, key_of};
use super::region::PROXIES_OF_EACH;
use super::wan::place;
use super::{Simulation, Tried};
use crate::limits::REGION_MISS_BYTES_MAX;

const BYTES: u64 = 2 * REGION_MISS_BYTES_MAX + 123_456;
const TIMEOUT: Duration = Duration::from_secs(60);
/// One way. A look is over in two of these, and an object has come after three: they begin at once.
const DELAY: Duration = Duration::from_millis(300);

fn content(seed: u64) -> Bytes {
    let mut rng = SeededRng::new(seed);
    let words = (0..BYTES.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes());
    words.take(BYTES as usize).collect::<Vec<_>>().into()
}

impl Simulation {
    pub(super) fn place_of(&self, number: usize) -> ServerId {
        place(self.regions()[number].number)
    }

    pub(super) fn cut_both(&self, one: usize, other: usize, is_cut: bool) {
        let (one, other) = (self.place_of(one), self.place_of(other));
        for (from, to) in [(one, other), (other, one)] {
            match is_cut {
                true => self.targets.network.cut(from, to),
                false => self.targets.network.heal(from, to),
            }
        }
    }

    pub(super) fn slow(&self, one: usize, other: usize, by: Duration) {
        let (one, other) = (self.place_of(one), self.place_of(other));
        self.targets.network.slow(one, other, by);
        self.targets.network.slow(other, one, by);
    }

    async fn put_large(&self, client: &Client, key: usize, bytes: &Bytes) {
        let body = Body { bytes: Some(bytes.clone()), sum: Md5::digest(bytes).into() };
        let put = async |proxy: &crate::proxy::ClusterProxy| {
            proxy.put(&client.bucket, &key_of(key), PutOptions::default(), body).await
        };
        let put = client.at(put).await;
        if !matches!(put, Some(Ok(_))) {
            self.violated(format!("a large object is not put: {put:?}"));
        }
    }

    /// Reads the last bytes of an object, and then the first.
    async fn reads(&self, client: &Client, opened: &Opened, bytes: &Bytes) {
        for range in [BYTES - 100_000..BYTES, 5..BYTES - 7] {
            let part = bytes.slice(range.start as usize..range.end as usize);
            match read(client, opened, range.clone()).await {
                Some(Ok(read)) if read == part => {}
                Some(Ok(read)) => client.violated(&format!("{} bytes are others", read.len())),
                Some(Err(error)) => client.violated(&format!("{range:?} is not read: {error}")),
                None => client.violated("a proxy ends"),
            }
        }
    }

    /// Opens an object that is on its way.
    async fn opened(&self, client: &Client, key: usize) -> Option<Opened> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let opened =
                client.at(async |proxy| proxy.open(&client.bucket, &key_of(key)).await).await;
            match opened {
                Some(Ok(opened)) if opened.remote.is_some() => return Some(opened),
                Some(Ok(_)) => client.violated("a large object came before it was read elsewhere"),
                _ if Instant::now() < deadline => {
                    sleep(Duration::from_millis(10)).await;
                    continue;
                }
                other => client.violated(&format!("it is not opened: {other:?}")),
            }
            return None;
        }
    }

    /// All proxies of the second region read what the first one has.
    async fn read_there(&self, bucket: &Tried, bytes: &Bytes) {
        let client = |number, at| bucket.client(self.regions(), number, at);
        self.slow(0, 1, DELAY);
        self.put_large(&client(0, 0), 0, bytes).await;
        let reading = (0..PROXIES_OF_EACH).map(async |at| {
            let client = client(1, at);
            if let Some(opened) = self.opened(&client, 0).await {
                self.reads(&client, &opened, bytes).await;
            }
        });
        futures::future::join_all(reading).await;
        self.read_replaced(bucket, bytes).await;
        self.slow(0, 1, Duration::ZERO);
    }

    /// A read goes on when the gateway ends and begins anew; one of an object that is replaced meanwhile gives no bytes of the other.
    async fn read_replaced(&self, bucket: &Tried, bytes: &Bytes) {
        let client = |number, at| bucket.client(self.regions(), number, at);
        let (region, ours) = (&self.regions()[1], client(1, PROXIES_OF_EACH - 1));
        self.put_large(&client(0, 0), 2, bytes).await;
        let Some(opened) = self.opened(&ours, 2).await else { return };
        let Some(body) = begun(&ours, &opened).await else { return };
        if region.gateway() != ours.at {
            self.slow(0, 1, Duration::ZERO);
            let restarting = region.restart_proxy(region.gateway(), true, Duration::from_secs(1));
            let (all, ()) = tokio::join!(whole(body), restarting);
            match all {
                Ok(read) if read == *bytes => {}
                other => ours.violated(&format!("a restart ends it: {:?}", other.err())),
            }
            self.slow(0, 1, DELAY);
        }
        let (other, before) = (content(2), client(0, 0));
        self.put_large(&before, 3, bytes).await;
        let Some(opened) = self.opened(&ours, 3).await else { return };
        let Some(body) = begun(&ours, &opened).await else { return };
        self.put_large(&before, 3, &other).await;
        match whole(body).await {
            Ok(read) if read == *bytes => {}
            Err(ObjectError::Changed) => {}
            other => ours.violated(&format!("of two contents: {:?}", other.err())),
        }
        match read(&ours, &opened, 0..10).await {
            Some(Err(ObjectError::Changed)) => {}
            other => ours.violated(&format!("a former version: {:?}", other.map(|it| it.err()))),
        }
    }

    /// The second region reads what the first and the third have, when the first is away.
    async fn read_anywhere(&self, bucket: &Tried, bytes: &Bytes) {
        let client = |number, at| bucket.client(self.regions(), number, at);
        self.cut_both(0, 1, true);
        self.cut_both(2, 1, true);
        self.put_large(&client(0, 0), 1, bytes).await;
        let deadline = Instant::now() + TIMEOUT;
        let is_here = async |number: usize| {
            let listed = client(number, 0).list().await.unwrap_or_default();
            listed.iter().any(|it| it.key == key_of(1))
        };
        while !is_here(2).await {
            assert!(Instant::now() < deadline, "a large object comes");
            sleep(Duration::from_millis(100)).await;
        }
        self.slow(0, 1, DELAY);
        self.slow(2, 1, DELAY);
        self.cut_both(0, 1, false);
        self.cut_both(2, 1, false);
        let client = client(1, PROXIES_OF_EACH - 1);
        if let Some(opened) = self.opened(&client, 1).await {
            self.cut_both(0, 1, true);
            self.reads_on(&client, opened, bytes).await;
            self.cut_both(0, 1, false);
        }
        self.slow(0, 1, Duration::ZERO);
        self.slow(2, 1, Duration::ZERO);
    }

    /// Reads an object that another region has besides the one that went away. A client that opened it
    /// before that other had answered opens it anew, as a client does that repeats a get.
    async fn reads_on(&self, client: &Client, mut opened: Opened, bytes: &Bytes) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match read(client, &opened, 0..BYTES).await {
                Some(Ok(read)) if read == *bytes => return,
                Some(Err(ObjectError::Unavailable { .. })) if Instant::now() < deadline => {}
                other => {
                    let other = other.map(|read| read.map(|bytes| bytes.len()));
                    return client.violated(&format!("it is not read elsewhere: {other:?}"));
                }
            }
            let again = client.at(async |proxy| proxy.open(&client.bucket, &key_of(1)).await).await;
            match again {
                Some(Ok(again)) => opened = again,
                _ => sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Makes a bucket, and waits until all proxies of all regions know it.
    pub(super) async fn make_everywhere(&self, bucket: &Tried) {
        bucket.client(self.regions(), 0, 0).make_bucket().await;
        let deadline = Instant::now() + TIMEOUT;
        for number in 0..self.regions().len() {
            for at in 0..PROXIES_OF_EACH {
                while !bucket.client(self.regions(), number, at).sees_that(|_| true).await {
                    assert!(Instant::now() < deadline, "a bucket is told in time");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Reads objects of many bytes before they have come. True if there was a third region to read them from.
    pub(super) async fn read_large(&self) -> bool {
        let (bucket, bytes) = (Tried::new("large", None, false), content(1));
        self.make_everywhere(&bucket).await;
        self.read_there(&bucket, &bytes).await;
        let has_third = self.regions().len() > 2;
        if has_third {
            self.read_anywhere(&bucket, &bytes).await;
        }
        has_third
    }
}

/// Reads bytes of an object that was opened; `None` if the proxy ends.
async fn read(
    client: &Client,
    opened: &Opened,
    range: Range<u64>,
) -> Option<Result<Bytes, ObjectError>> {
    client.at(async |proxy| whole(proxy.read(opened, range).await?).await).await
}

/// Begins to read an object.
async fn begun(client: &Client, opened: &Opened) -> Option<ReadBody> {
    let begun = client.at(async |proxy| proxy.read(opened, 0..BYTES).await).await;
    match begun {
        Some(Ok(body)) => return Some(body),
        Some(Err(error)) => client.violated(&format!("a read does not begin: {error}")),
        None => client.violated("a proxy ends"),
    }
    None
}
