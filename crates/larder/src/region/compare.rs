//! `larder region compare`: what two stores have in common, over S3, and what would be lost if they became regions of each other.
//!
//! Of two objects with the same key the older is gone once buckets are merged. Each store is listed through its own endpoint, so it
//! need not be a region yet.

use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use larder_bench::CallError;
use larder_bench::client::{Client, Endpoint, Target};
use larder_bench::sign::{Credentials, encode_value};
use larder_types::BucketName;

use super::drill::{REQUEST_MAX, RegionAccessError};
use crate::args::region::{CompareArgs, Named};

/// Keys of a page. Their text fits an answer, however long they are.
const PAGE_KEYS: u32 = 250;

/// An object as a list shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    key: Vec<u8>,
    etag: String,
    /// ISO 8601 in UTC: the order of the text is that of time.
    modified: String,
}

/// The objects of a bucket in the order of their keys, a page at a time.
struct Listing {
    store: String,
    client: Client,
    page: VecDeque<Listed>,
    /// The next page; `None` if there is none.
    next: Option<String>,
}

/// The comparison of a bucket that both stores have.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    same: u64,
    /// In one store alone.
    only: [u64; 2],
    /// In both, with two contents, and that of this store is newer.
    newer: [u64; 2],
    /// The same, put within one second: lists do not say which is newer.
    at_once: u64,
}

impl Counts {
    fn differing(&self) -> u64 {
        self.newer[0] + self.newer[1] + self.at_once
    }

    fn take(&mut self, one: Option<&Listed>, other: Option<&Listed>) {
        match (one, other) {
            (Some(one), Some(other)) if one.etag == other.etag => self.same += 1,
            (Some(one), Some(other)) => match one.modified.cmp(&other.modified) {
                Ordering::Greater => self.newer[0] += 1,
                Ordering::Less => self.newer[1] += 1,
                Ordering::Equal => self.at_once += 1,
            },
            (Some(_), None) => self.only[0] += 1,
            (None, Some(_)) => self.only[1] += 1,
            (None, None) => {}
        }
    }
}

impl Listing {
    fn of(
        store: &Named,
        bucket: BucketName,
        credentials: &Credentials,
    ) -> Result<Self, RegionAccessError> {
        let client = client(store, bucket, credentials)?;
        Ok(Self {
            store: store.name.clone(),
            client,
            page: VecDeque::new(),
            next: Some(String::new()),
        })
    }

    async fn peek(&mut self) -> Result<Option<&Listed>, RegionAccessError> {
        while self.page.is_empty()
            && let Some(token) = self.next.take()
        {
            let text = self.client.query_bucket(&token_query(&token)).await;
            let read =
                text.and_then(|text| page_of(&text).ok_or(CallError::Wrong("it is no list")));
            let read = read.map_err(|error| RegionAccessError::call(&self.store, "a list", error));
            let (page, next) = read?;
            self.page.extend(page);
            self.next = next;
        }
        Ok(self.page.front())
    }

    async fn count(&mut self) -> Result<u64, RegionAccessError> {
        let mut count = 0;
        while self.peek().await?.is_some() {
            count += self.page.drain(..).count() as u64;
        }
        Ok(count)
    }
}

/// The query of a page, with its parameters in order, as they are signed.
fn token_query(token: &str) -> String {
    let mut query = String::new();
    if !token.is_empty() {
        query.push_str("continuation-token=");
        encode_value(token, &mut query);
        query.push('&');
    }
    query + &format!("encoding-type=url&list-type=2&max-keys={PAGE_KEYS}")
}

/// The objects of a page and where the next one begins; `None` if it is no whole page.
fn page_of(text: &str) -> Option<(Vec<Listed>, Option<String>)> {
    text.trim_end().ends_with("</ListBucketResult>").then_some(())?;
    let within = |text: &str, tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        Some(rest.split_once(&format!("</{tag}>"))?.0.to_owned())
    };
    let listed = |object: &str| {
        let key = decoded(&within(object, "Key")?);
        Some(Listed {
            key,
            etag: within(object, "ETag")?,
            modified: within(object, "LastModified")?,
        })
    };
    let objects: Option<Vec<_>> = text.split("<Contents>").skip(1).map(listed).collect();
    let token = within(text, "NextContinuationToken");
    Some((objects?, token.map(|token| token.replace("&amp;", "&"))))
}

/// A key as it is, of its form in a URL.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let hex = behind
            .get(..2)
            .and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        let (byte, len) = match (first, hex) {
            (b'%', Some(byte)) => (byte, 3),
            (b'+', _) => (b' ', 1),
            (byte, _) => (*byte, 1),
        };
        bytes.push(byte);
        rest = &rest[len..];
    }
    bytes
}

fn client(
    store: &Named,
    bucket: BucketName,
    credentials: &Credentials,
) -> Result<Client, RegionAccessError> {
    let (endpoint, credentials) = (Endpoint::resolve(&store.url)?, credentials.clone());
    let target = Target { endpoint, bucket, credentials, sign_payload: true, timeout: REQUEST_MAX };
    Ok(Client::new(Arc::new(target)))
}

/// The buckets of a store.
async fn buckets(
    store: &Named,
    credentials: &Credentials,
) -> Result<BTreeSet<BucketName>, RegionAccessError> {
    let any = BucketName::new("any").expect("a name");
    let listed = client(store, any, credentials)?.query_service().await;
    let text = listed
        .map_err(|error| RegionAccessError::call(&store.name, "the list of buckets", error))?;
    let names = text.split("<Name>").skip(1).filter_map(|rest| rest.split_once("</Name>"));
    Ok(names.filter_map(|(name, _)| BucketName::new(name).ok()).collect())
}

/// Compares two stores, and prints what it sees. True if no key has two contents.
pub(crate) async fn compare(args: &CompareArgs) -> Result<bool, RegionAccessError> {
    let [one, other] = &args.stores[..] else { unreachable!("there are two") };
    if one.name == other.name {
        return Err(RegionAccessError::Twice(one.name.clone()));
    }
    let credentials = Credentials::from_env()?;
    let (first, second) = (buckets(one, &credentials).await?, buckets(other, &credentials).await?);
    let mut differing = 0;
    for bucket in first.union(&second) {
        let names = [&one.name, &other.name].map(String::as_str);
        let listing = |store| Listing::of(store, bucket.clone(), &credentials);
        let (in_first, in_second) = (first.contains(bucket), second.contains(bucket));
        if in_first && in_second {
            let (counts, keys) = merged([listing(one)?, listing(other)?], args.keys).await?;
            println!("{}", describe(bucket, names, &counts));
            keys.iter().for_each(|key| println!("  {key}"));
            differing += counts.differing();
        } else {
            let store = if in_first { one } else { other };
            let count = listing(store)?.count().await?;
            println!("{bucket}: only in {}, {count} objects", store.name);
        }
    }
    match differing {
        0 => println!("no key has two contents"),
        1 => println!("1 key has two contents: the older would be gone, in both"),
        count => {
            println!("{count} keys have two contents: the older of each would be gone, in both");
        }
    }
    Ok(differing == 0)
}

/// Compares the lists of a bucket; also returns the first differing keys.
async fn merged(
    [mut one, mut other]: [Listing; 2],
    keys_max: usize,
) -> Result<(Counts, Vec<String>), RegionAccessError> {
    let (mut counts, mut keys) = (Counts::default(), Vec::new());
    loop {
        let (first, second) = (one.peek().await?, other.peek().await?);
        let order = match (first, second) {
            (None, None) => return Ok((counts, keys)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(first), Some(second)) => first.key.cmp(&second.key),
        };
        let (first, second) = (first.filter(|_| order.is_le()), second.filter(|_| order.is_ge()));
        let before = counts.differing();
        counts.take(first, second);
        if let (true, Some(first)) = (counts.differing() > before && keys.len() < keys_max, first) {
            keys.push(format!("{:?}", String::from_utf8_lossy(&first.key)));
        }
        if order.is_le() {
            one.page.pop_front();
        }
        if order.is_ge() {
            other.page.pop_front();
        }
    }
}

/// Says how a bucket differs.
fn describe(bucket: &BucketName, [one, other]: [&str; 2], counts: &Counts) -> String {
    let mut parts = vec![format!("{} the same", counts.same)];
    for (name, count) in [one, other].into_iter().zip(counts.only) {
        parts.push(format!("{count} only in {name}"));
    }
    if counts.differing() > 0 {
        let mut newer = vec![];
        for (name, count) in [one, other].into_iter().zip(counts.newer) {
            newer.push(format!("{name}'s is newer of {count}"));
        }
        if counts.at_once > 0 {
            newer.push(format!("{} were put within one second", counts.at_once));
        }
        parts.push(format!("{} with two contents ({})", counts.differing(), newer.join(", ")));
    }
    format!("{bucket}: in both, {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_with_its_keys_as_they_are() {
        let text = "<?xml version=\"1.0\"?><ListBucketResult><NextContinuationToken>a&amp;b=</NextContinuationToken>\
                    <Contents><Key>a%2Fb+%26</Key><LastModified>2026-11-27T10:00:00.000Z</LastModified>\
                    <ETag>&quot;1&quot;</ETag></Contents><Contents><Key>%C3%A9</Key><LastModified>2026</LastModified>\
                    <ETag>2</ETag></Contents></ListBucketResult>\n";
        let (page, next) = page_of(text).expect("a page");
        let keys: Vec<_> = page.iter().map(|it| String::from_utf8_lossy(&it.key)).collect();
        assert_eq!((keys, next.as_deref()), (vec!["a/b &".into(), "é".into()], Some("a&b=")));
        assert_eq!(page_of(&text[..text.len() - 5]), None, "it is cut");
        assert_eq!(
            token_query("a&b="),
            "continuation-token=a%26b%3D&encoding-type=url&list-type=2&max-keys=250"
        );
    }

    #[test]
    fn what_would_be_lost_is_counted_by_who_has_the_newer() {
        let listed = |etag: &str, modified: &str| Listed {
            key: b"k".to_vec(),
            etag: etag.to_owned(),
            modified: modified.to_owned(),
        };
        let (old, new) = (listed("1", "2026-01-01"), listed("2", "2026-01-02"));
        let mut counts = Counts::default();
        counts.take(Some(&old), Some(&new));
        counts.take(Some(&new), Some(&old));
        counts.take(Some(&new), Some(&new));
        counts.take(None, Some(&new));
        counts.take(Some(&old), Some(&listed("2", "2026-01-01")));
        assert_eq!(counts, Counts { same: 1, only: [0, 1], newer: [1, 1], at_once: 1 });
        let name = BucketName::new("photos").expect("a name");
        assert_eq!(
            describe(&name, ["eu", "us"], &counts),
            "photos: in both, 1 the same, 0 only in eu, 1 only in us, 3 with two contents (eu's is newer of 1, us's is newer of \
             1, 1 were put within one second)"
        );
    }
}
