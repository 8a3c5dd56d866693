//! Records: objects of the bucket with a home that clients of all regions append to, while the home moves.
//!
//! To some objects nothing else is done: in the end each record that was acknowledged is in them once, whole, and where it was
//! said to be. Others are put, uploaded and deleted too, in any region. Of these regions come to have the same, made of whole records.

use std::sync::Arc;

use bytes::Bytes;
use larder_objects::{
    AppendAt, AppendOptions, CompleteOptions, NamedPart, ObjectError, Objects, PutOptions,
    UploadOptions,
};
use larder_types::{Attributes, BucketName, Condition, EtagList, ObjectKey};
use md5::{Digest, Md5};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::super::shapes::{record, records_in};
use super::clients::{self, Body, CALL_MAX, Client, Log, Sum};
use super::region::{PROXIES_OF_EACH, Region};

/// Objects to which nothing is done but appends.
const GROWING: u64 = 2;
/// Others.
const MIXED: u64 = 2;
/// Calls of one client.
const CALLS: u64 = 10;

/// A record that was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Acked {
    object: u64,
    number: u64,
    offset: u64,
}

/// See the module's head.
pub(super) struct Records {
    bucket: BucketName,
    /// A client notes puts and deletes here. They are not judged.
    log: Arc<Mutex<Log>>,
    /// The number of the next record.
    next: Mutex<u64>,
    acked: Mutex<Vec<Acked>>,
    /// Uploads that were completed.
    uploaded: Mutex<u64>,
}

fn key_of(object: u64) -> ObjectKey {
    ObjectKey::new(&format!("records{object}")).expect("it is a key")
}

impl Records {
    pub(super) fn new(bucket: BucketName) -> Arc<Self> {
        let (log, next, acked) = (Arc::default(), Mutex::new(1), Mutex::default());
        Arc::new(Self { bucket, log, next, acked, uploaded: Mutex::new(0) })
    }

    fn client(&self, region: &Arc<Region>, at: usize) -> Client {
        let (bucket, log) = (self.bucket.clone(), self.log.clone());
        let (makes, removes, others) = (false, false, Vec::new());
        Client { region: region.clone(), at, bucket, log, makes, removes, others }
    }

    /// Has a proxy of a region append, and put and delete.
    pub(super) async fn run_client(self: Arc<Self>, region: Arc<Region>, at: usize) {
        let client = self.client(&region, at);
        for _ in 0..CALLS {
            let sim_rng = &region.sim_rng;
            sleep(sim_rng.ms(if sim_rng.one_in(3) { 8000 } else { 400 })).await;
            let object = sim_rng.below(GROWING + MIXED);
            let call = async {
                match sim_rng.below(8) {
                    0 if object >= GROWING && sim_rng.one_in(2) => {
                        self.upload(&client, object).await
                    }
                    0 if object >= GROWING => self.put(&client, object).await,
                    1 if object >= GROWING => {
                        let key = key_of(object);
                        let delete = async |proxy: &crate::proxy::ClusterProxy| {
                            proxy.delete(&self.bucket, &key, Condition::default()).await
                        };
                        client.at(delete).await;
                    }
                    _ => self.append(&client, object).await,
                }
            };
            if timeout(CALL_MAX, call).await.is_err() {
                client.violated("an append does not end");
            }
        }
    }

    fn draw(&self, client: &Client) -> (u64, Sum, Bytes) {
        let sim_rng = &client.region.sim_rng;
        let number = {
            let mut next = self.next.lock();
            *next += 1;
            *next
        };
        let len = if sim_rng.one_in(2) { sim_rng.below(1500) } else { sim_rng.below(30_000) };
        let bytes = record(number, len as u32);
        (number, Md5::digest(&bytes).into(), bytes)
    }

    async fn append(&self, client: &Client, object: u64) {
        let (number, sum, bytes) = self.draw(client);
        let options = AppendOptions {
            at: AppendAt::End,
            attributes: Attributes::default(),
            condition: Condition::default(),
        };
        let (key, body) = (key_of(object), Body { bytes: Some(bytes), sum });
        let append =
            client.at(async |proxy| proxy.append(&self.bucket, &key, options, body).await).await;
        tracing::info!(region = %client.region.number, object, number, ?append, "a record is appended");
        match append {
            Some(Ok(done)) => {
                self.acked.lock().push(Acked { object, number, offset: done.offset });
            }
            Some(Err(ObjectError::Unsupported { what })) => {
                client.violated(&format!("an append is refused: {what}"));
            }
            Some(Err(_)) | None => {}
        }
    }

    async fn put(&self, client: &Client, object: u64) {
        let (_, sum, bytes) = self.draw(client);
        let (key, body) = (key_of(object), Body { bytes: Some(bytes), sum });
        let options = PutOptions::default();
        client.at(async |proxy| proxy.put(&self.bucket, &key, options, body).await).await;
    }

    /// Uploads a record as the only part of an object. A part that was put is good for a completion, but under a condition
    /// elsewhere than at the home, and for an upload that lies where the home was.
    async fn upload(&self, client: &Client, object: u64) {
        let (_, sum, bytes) = self.draw(client);
        let (key, bucket) = (key_of(object), &self.bucket);
        let options = UploadOptions::default();
        let begun = client.at(async |proxy| proxy.create_upload(bucket, &key, options).await).await;
        let Some(Ok(upload)) = begun else { return };
        let body = Body { bytes: Some(bytes), sum };
        let put =
            client.at(async |proxy| proxy.put_part(bucket, &key, upload, 1, body).await).await;
        let Some(Ok(part)) = put else { return };
        let part = NamedPart { number: 1, etag: part.etag.text(), checksum: None };
        let has_condition = client.region.sim_rng.one_in(2);
        let if_none_match = has_condition.then_some(EtagList::Any);
        let condition = Condition { if_none_match, ..Condition::default() };
        let options = CompleteOptions { parts: vec![part], condition, ..Default::default() };
        let complete = async |proxy: &crate::proxy::ClusterProxy| {
            proxy.complete_upload(bucket, &key, upload, options).await
        };
        let done = client.at(complete).await;
        tracing::info!(region = %client.region.number, object, ?done, "an upload is completed");
        match done {
            Some(Err(error @ ObjectError::InvalidPart { .. })) => {
                client.violated(&format!("an upload is refused: {error}"));
            }
            Some(Err(error @ ObjectError::Unsupported { .. })) if !has_condition => {
                client.violated(&format!("an upload is refused: {error}"));
            }
            Some(Ok(_)) => *self.uploaded.lock() += 1,
            Some(Err(_)) | None => {}
        }
    }

    /// Says of which objects regions have other bytes, and which records are missing, there twice, or elsewhere than was said.
    pub(super) async fn judge(&self, regions: &[Arc<Region>]) {
        for object in 0..GROWING + MIXED {
            let mut all = Vec::new();
            for region in regions {
                for at in 0..PROXIES_OF_EACH {
                    let client = self.client(region, at);
                    let Some(found) = client.read(&key_of(object)).await else {
                        client.violated(&format!("records {object} are not read"));
                        continue;
                    };
                    let shown = |(metax, bytes)| (clients::at(region.number, &metax), bytes);
                    all.push(found.map(shown));
                }
            }
            if all.windows(2).any(|pair| pair[0] != pair[1]) {
                let shown: Vec<_> =
                    all.iter().map(|it| it.as_ref().map(|(at, bytes)| (at, bytes.len()))).collect();
                let what = format!("regions differ in records {object}: {shown:?}");
                regions[0].world.violated(what);
            }
            let bytes = all.into_iter().flatten().next().map(|(_, bytes)| bytes);
            for wrong in self.wrong(object, &bytes.unwrap_or_default()) {
                regions[0].world.violated(format!("records {object}: {wrong}"));
            }
        }
    }

    fn wrong(&self, object: u64, bytes: &[u8]) -> Vec<String> {
        let Some(found) = records_in(bytes) else { return vec!["they are not whole".to_owned()] };
        let mut wrong = Vec::new();
        for (number, _) in &found {
            if found.iter().filter(|it| it.0 == *number).count() > 1 {
                wrong.push(format!("{number} is there twice"));
            }
        }
        if object < GROWING {
            let acked = self.acked.lock();
            let of_object = acked.iter().filter(|it| it.object == object);
            let missing = of_object.filter(|it| !found.contains(&(it.number, it.offset)));
            wrong.extend(missing.map(|it| format!("{it:?} is not there: {found:?}")));
        }
        wrong
    }

    /// Records that were acknowledged.
    pub(super) fn count(&self) -> u64 {
        self.acked.lock().len() as u64
    }

    /// Uploads that were completed.
    pub(super) fn uploaded(&self) -> u64 {
        *self.uploaded.lock()
    }
}
