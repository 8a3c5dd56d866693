//! Objects of every shape: records that are appended, uploads in parts, tags, ranges, lists, and many small objects
//! of which every other is deleted. Clients of a proxy or of a single node ask for all of it, whatever fails meanwhile.
//!
//! Each object is made of whole records, which say their numbers. So every read is judged by itself. To some objects nothing
//! is done but appends: in the end each record that was acknowledged is in them once, and where it was said to be.

mod judge;
mod records;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use larder_objects::{
    AppendAt, AppendOptions, CompleteOptions, ListItem, ListRequest, NamedPart, ObjectError,
    Objects, Opened, PutOptions, ReadBody, UploadOptions,
};
use larder_types::limits::PART_BYTES_MIN;
use larder_types::{
    Attributes, BucketName, Condition, CorsMethod, CorsRule, CorsRules, ETag, EtagList, ObjectKey,
    UploadId,
};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::SimRng;
use super::clients::{Body, CALL_MAX, whole};
use super::proxies::Findings;
pub(super) use records::{record, records_in};

/// Objects to which nothing is done but appends.
const GROWING: u64 = 2;
/// Others.
const MIXED: u64 = 3;
/// Small objects that are put one after the other, before every other of them is deleted.
const SCATTERED: u64 = 40;
/// The same now and then: so many that they fill small volumes.
const MANY: u64 = 400;
/// Of these, those that are under way at a time.
const AT_ONCE: u64 = 8;
/// Records that are appended one after the other: with some of before they are so many that pieces are made one.
const GROWS: u64 = 50;
/// A record that was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Acked {
    object: u64,
    number: u64,
    offset: u64,
}

/// The knowledge of a small object that one client puts and deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    There(u64),
    Gone,
    /// A call was not answered.
    Unknown,
}

/// Calls that were answered with what was asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MetShapes {
    pub(super) appended: u64,
    pub(super) uploaded: u64,
    pub(super) tagged: u64,
    pub(super) read: u64,
    pub(super) scattered: u64,
    /// Refused for want of room.
    pub(super) full: u64,
    /// Reads that broke off: what they read was replaced, and space given again.
    pub(super) cut: u64,
}

impl MetShapes {
    /// Counts another run in.
    pub(super) fn add(&mut self, other: &Self) {
        self.appended += other.appended;
        self.uploaded += other.uploaded;
        self.tagged += other.tagged;
        self.read += other.read;
        self.scattered += other.scattered;
        self.full += other.full;
        self.cut += other.cut;
    }
}

#[derive(Default)]
struct State {
    /// The number of the last record.
    last: u64,
    acked: Vec<Acked>,
    scattered: BTreeMap<String, Known>,
    coverage: MetShapes,
}

/// See the module's head.
pub(super) struct Shapes {
    sim_rng: SimRng,
    findings: Arc<Findings>,
    bucket: BucketName,
    /// Some records are longer than a part must be, and than a chunk may be.
    has_large: bool,
    state: Mutex<State>,
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(name).expect("it is a key")
}

fn key_of(object: u64) -> ObjectKey {
    let kind = if object < GROWING { "growing" } else { "mixed" };
    key(&format!("{kind}/{object}"))
}

fn body(number: u64, bytes: &Bytes) -> Body {
    let half = bytes.len() / 2;
    Body { pieces: vec![bytes.slice(half..), bytes.slice(..half)], value: number }
}

fn if_absent(is_wanted: bool) -> Condition {
    Condition { if_none_match: is_wanted.then_some(EtagList::Any), ..Condition::default() }
}

impl Shapes {
    pub(super) fn new(sim_rng: &SimRng, findings: &Arc<Findings>, has_large: bool) -> Arc<Self> {
        let bucket = BucketName::new("shapes").expect("it is a name");
        let (sim_rng, findings, state) = (sim_rng.clone(), findings.clone(), Mutex::default());
        Arc::new(Self { sim_rng, findings, bucket, has_large, state })
    }

    pub(super) fn coverage(&self) -> MetShapes {
        self.state.lock().coverage
    }

    fn violated(&self, what: String) {
        self.findings.violated(what);
    }

    /// Has one client make so many calls.
    pub(super) async fn run_client<P: Objects>(self: Arc<Self>, proxy: Arc<P>, calls: u64) {
        let sim_rng = &self.sim_rng;
        while proxy.bucket(&self.bucket).is_err() {
            drop(timeout(CALL_MAX, proxy.create_bucket(&self.bucket, None)).await);
            sleep(sim_rng.ms(100)).await;
        }
        for _ in 0..calls {
            sleep(sim_rng.ms(if sim_rng.one_in(4) { 1500 } else { 60 })).await;
            // Some go away before they are answered.
            let (goes, calls_on) = (sim_rng.one_in(10), sim_rng.ms(80));
            let call = self.call(&*proxy);
            let is_late = match goes {
                true => {
                    let _gone = timeout(calls_on, call).await;
                    false
                }
                // An upload is several calls.
                false => timeout(4 * CALL_MAX, call).await.is_err(),
            };
            if is_late {
                self.violated("a call of a shape does not end".to_owned());
            }
        }
    }

    async fn call<P: Objects>(&self, proxy: &P) {
        let sim_rng = &self.sim_rng;
        let (any, mixed) = (sim_rng.below(GROWING + MIXED), GROWING + sim_rng.below(MIXED));
        let outcome = match sim_rng.below(20) {
            0..7 => self.append(proxy, any).await,
            7 => self.put(proxy, mixed).await,
            8 => proxy.delete(&self.bucket, &key_of(mixed), Condition::default()).await,
            9..11 => self.upload(proxy, mixed).await,
            11 => self.grow(proxy, sim_rng.below(GROWING)).await,
            12 => self.tag(proxy, any).await,
            13..16 => self.read(proxy, any).await,
            16 => self.list(proxy).await,
            17 => self.set_rules(proxy).await,
            18 => self.list_uploads(proxy).await,
            _ => self.scatter(proxy).await,
        };
        match outcome {
            Err(ObjectError::Full) => self.state.lock().coverage.full += 1,
            Err(error) if self.is_wrong(&error) => {
                self.violated(format!("a call of a shape is refused: {error:?}"));
            }
            _ => {}
        }
    }

    /// Returns true if nothing that fails, and no other client, is a reason for this.
    fn is_wrong(&self, error: &ObjectError) -> bool {
        match error {
            ObjectError::Unavailable { .. }
            | ObjectError::SlowDown
            | ObjectError::Full
            | ObjectError::Changed
            | ObjectError::NoSuchKey
            | ObjectError::NoSuchUpload
            | ObjectError::PreconditionFailed
            | ObjectError::WriteOffset { .. } => false,
            ObjectError::Damaged => !self.findings.was_corrupt.load(Ordering::Relaxed),
            _ => true,
        }
    }

    /// The number of the next record.
    fn next(&self) -> u64 {
        let mut state = self.state.lock();
        state.last += 1;
        state.last
    }

    fn draw(&self) -> (u64, Bytes) {
        let (sim_rng, number) = (&self.sim_rng, self.next());
        let len = match sim_rng.below(16) {
            0..8 => sim_rng.below(1500),
            8..15 => sim_rng.below(30_000),
            _ => 50_000 + sim_rng.below(150_000),
        };
        (number, record(number, len as u32))
    }

    /// A record of more bytes than a part must have, and now and then more than a chunk may have.
    fn draw_large(&self) -> (u64, Bytes) {
        let number = self.next();
        let len =
            PART_BYTES_MIN + self.sim_rng.below(if self.sim_rng.one_in(3) { 8 << 20 } else { 999 });
        (number, record(number, len as u32))
    }

    /// Appends short records.
    async fn grow<P: Objects>(&self, proxy: &P, object: u64) -> Result<(), ObjectError> {
        for _ in 0..GROWS {
            let number = self.next();
            let bytes = record(number, self.sim_rng.below(300) as u32);
            self.append_record(proxy, object, AppendAt::End, (number, bytes)).await?;
        }
        Ok(())
    }

    async fn append<P: Objects>(&self, proxy: &P, object: u64) -> Result<(), ObjectError> {
        let drawn = self.draw();
        let at = match self.sim_rng.one_in(4) {
            false => AppendAt::End,
            true => AppendAt::Offset(match proxy.open(&self.bucket, &key_of(object)).await {
                Ok(opened) => opened.metax.size,
                Err(ObjectError::NoSuchKey) => 0,
                Err(error) => return Err(error),
            }),
        };
        self.append_record(proxy, object, at, drawn).await
    }

    async fn append_record<P: Objects>(
        &self,
        proxy: &P,
        object: u64,
        at: AppendAt,
        (number, bytes): (u64, Bytes),
    ) -> Result<(), ObjectError> {
        let (attributes, condition) = (Attributes::default(), Condition::default());
        let options = AppendOptions { at, attributes, condition };
        let appending =
            proxy.append(&self.bucket, &key_of(object), options, body(number, &bytes)).await;
        let offset = appending?.offset;
        if at.offset().is_some_and(|at| at != offset) {
            self.violated(format!("record {number} was to be at {at:?}, and is at {offset}"));
        }
        let mut state = self.state.lock();
        state.acked.push(Acked { object, number, offset });
        state.coverage.appended += 1;
        Ok(())
    }

    async fn put<P: Objects>(&self, proxy: &P, object: u64) -> Result<(), ObjectError> {
        let is_large = self.has_large && self.sim_rng.one_in(3);
        let (number, bytes) = if is_large { self.draw_large() } else { self.draw() };
        let user = vec![("number".to_owned(), number.to_string())];
        let attributes = Attributes { user, ..Attributes::default() };
        let options = PutOptions { attributes, condition: if_absent(self.sim_rng.one_in(4)) };
        proxy.put(&self.bucket, &key_of(object), options, body(number, &bytes)).await.map(drop)
    }

    async fn upload<P: Objects>(&self, proxy: &P, object: u64) -> Result<(), ObjectError> {
        let (key, sim_rng) = (key_of(object), &self.sim_rng);
        let upload = proxy.create_upload(&self.bucket, &key, UploadOptions::default()).await?;
        let mut parts: Vec<(u16, ETag)> = Vec::new();
        for number in 1..=(if self.has_large { 1 + sim_rng.below(2) as u16 } else { 1 }) {
            let is_last = !self.has_large || number == 2;
            // The second one of a number replaces the first.
            for _ in 0..1 + sim_rng.below(2) {
                let (record, bytes) = if is_last { self.draw() } else { self.draw_large() };
                let part = body(record, &bytes);
                let part = proxy.put_part(&self.bucket, &key, upload, 10 * number, part).await?;
                parts.retain(|(put, _)| *put != 10 * number);
                parts.push((10 * number, part.etag));
            }
        }
        self.check_parts(proxy, (&key, upload), &parts).await?;
        if sim_rng.one_in(6) {
            return proxy.abort_upload(&self.bucket, &key, upload).await;
        }
        let named = |(number, etag): &(u16, ETag)| NamedPart {
            number: *number,
            etag: etag.text(),
            checksum: None,
        };
        let options = CompleteOptions {
            parts: parts.iter().map(named).collect(),
            condition: if_absent(sim_rng.one_in(3)),
            ..CompleteOptions::default()
        };
        let complete = || proxy.complete_upload(&self.bucket, &key, upload, options.clone());
        let done = complete().await?;
        self.state.lock().coverage.uploaded += 1;
        if sim_rng.one_in(3) {
            match complete().await {
                Ok(again) if again == done => {}
                // Somebody has put or deleted the object since.
                Err(ObjectError::NoSuchUpload) => {}
                Err(error) => return Err(error),
                again => self.violated(format!("an upload is {done:?}, and then {again:?}")),
            }
        }
        Ok(())
    }

    /// Parts that were put by a client that is the only one of the upload.
    async fn check_parts<P: Objects>(
        &self,
        proxy: &P,
        (key, upload): (&ObjectKey, UploadId),
        parts: &[(u16, ETag)],
    ) -> Result<(), ObjectError> {
        let page = proxy.list_parts(&self.bucket, key, upload, 0, 1000).await?;
        let listed: Vec<(u16, ETag)> =
            page.parts.into_iter().map(|part| (part.number, part.metax.etag)).collect();
        // Else somebody has aborted it since.
        let row = proxy.upload(&self.bucket, key, upload).await?;
        if listed != parts {
            self.violated(format!("parts {parts:?} are listed as {listed:?}"));
        }
        if row.key != *key {
            self.violated(format!("an upload of {key:?} is one of {:?}", row.key));
        }
        Ok(())
    }

    async fn tag<P: Objects>(&self, proxy: &P, object: u64) -> Result<(), ObjectError> {
        let tags = vec![("tag".to_owned(), self.sim_rng.below(100).to_string())];
        proxy.set_tags(&self.bucket, &key_of(object), tags).await?;
        self.state.lock().coverage.tagged += 1;
        Ok(())
    }

    async fn read<P: Objects>(&self, proxy: &P, object: u64) -> Result<(), ObjectError> {
        let opened = proxy.open(&self.bucket, &key_of(object)).await?;
        let size = opened.metax.size;
        let all = self.read_range(proxy, &opened, 0..size).await?;
        if records_in(&all).is_none() {
            self.violated(format!("object {object} of {size} bytes is not whole: {opened:?}"));
        }
        let from = self.sim_rng.below(size.max(1));
        let to = from + self.sim_rng.below(size - from + 1);
        let range = self.read_range(proxy, &opened, from..to).await?;
        if range != all[from as usize..to as usize] {
            self.violated(format!("object {object}: bytes {from} to {to} are others"));
        }
        if let (true, Some(part)) = (opened.keeps_parts(), opened.parts().first()) {
            let found = proxy.part(&opened, part.number).await?;
            if found.number != part.number || found.metax.size != part.len {
                self.violated(format!("part {part:?} of object {object} is {found:?}"));
            }
        }
        self.state.lock().coverage.read += 1;
        Ok(())
    }

    async fn read_range<P: Objects>(
        &self,
        proxy: &P,
        opened: &Opened,
        range: Range<u64>,
    ) -> Result<Bytes, ObjectError> {
        let wanted = range.end - range.start;
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let body = proxy.read(opened, range).await?;
        let bytes = match self.has_large && self.sim_rng.one_in(2) {
            true => self.taken_slowly(body).await,
            false => whole(body).await,
        };
        if matches!(bytes, Err(ObjectError::Changed)) {
            self.state.lock().coverage.cut += 1;
        }
        let bytes = bytes?;
        if bytes.len() as u64 != wanted {
            self.violated(format!("{} bytes are read of {wanted}", bytes.len()));
        }
        Ok(bytes)
    }

    /// As [`whole`], by a client that takes its time.
    async fn taken_slowly(&self, body: ReadBody) -> Result<Bytes, ObjectError> {
        let ReadBody::Stream(mut pieces) = body else { return whole(body).await };
        let mut read = Vec::new();
        while let Some(piece) = pieces.next().await {
            read.extend_from_slice(&piece?);
            sleep(self.sim_rng.ms(400)).await;
        }
        Ok(read.into())
    }

    async fn list<P: Objects>(&self, proxy: &P) -> Result<(), ObjectError> {
        let page = |prefix: &str, delimiter: Option<&str>| ListRequest {
            prefix: prefix.to_owned(),
            delimiter: delimiter.map(str::to_owned),
            after: None,
            max: 1000,
        };
        let groups = proxy.list(&self.bucket, page("", Some("/"))).await?;
        for item in &groups.items {
            if !matches!(item, ListItem::Group(group) if group.ends_with('/')) {
                self.violated(format!("{item:?} is no group"));
            }
        }
        let growing = proxy.list(&self.bucket, page("growing/", None)).await?;
        for item in &growing.items {
            if !matches!(item, ListItem::Entry(it) if it.key.as_str().starts_with("growing/")) {
                self.violated(format!("{item:?} was not asked for"));
            }
        }
        Ok(())
    }

    async fn set_rules<P: Objects>(&self, proxy: &P) -> Result<(), ObjectError> {
        let rule = CorsRule {
            id: None,
            methods: vec![CorsMethod::Get],
            origins: vec![format!("https://{}.example", self.sim_rng.below(100))],
            headers: Vec::new(),
            exposed: Vec::new(),
            max_age_s: None,
        };
        let rules =
            self.sim_rng.one_in(2).then(|| CorsRules::new(vec![rule]).expect("they are rules"));
        proxy.set_cors(&self.bucket, rules).await?;
        // Another client may have set others.
        drop(proxy.cors(&self.bucket));
        Ok(())
    }

    /// Lists open uploads, and aborts one now and then, which its client may go on with meanwhile.
    async fn list_uploads<P: Objects>(&self, proxy: &P) -> Result<(), ObjectError> {
        let request = ListRequest { max: 1 + self.sim_rng.below(3) as usize, ..Default::default() };
        let page = proxy.list_uploads(&self.bucket, request.clone(), None).await?;
        let rows = page.items.iter().filter_map(|item| match item {
            ListItem::Entry(row) => Some(row),
            ListItem::Group(_) => None,
        });
        let Some(last) = rows.last() else { return Ok(()) };
        let after = Some(last.key.as_str().to_owned());
        let request = ListRequest { after, ..request };
        drop(proxy.list_uploads(&self.bucket, request, Some(last.upload)).await?);
        match self.sim_rng.one_in(3) {
            true => proxy.abort_upload(&self.bucket, &last.key, last.upload).await,
            false => Ok(()),
        }
    }

    /// Puts small objects one after the other, and deletes every other of them. What was put stays for the rest of the run, or
    /// until it is scattered anew.
    async fn scatter<P: Objects>(&self, proxy: &P) -> Result<(), ObjectError> {
        let run = self.sim_rng.below(u64::MAX);
        let name = |at: u64| format!("scatter/{run:016x}/{at:03}");
        let count = if self.sim_rng.one_in(8) { MANY } else { SCATTERED };
        for first in (0..count).step_by(AT_ONCE as usize) {
            let puts = (first..first + AT_ONCE).map(|at| self.put_small(proxy, name(at)));
            join_all(puts).await.into_iter().collect::<Result<(), _>>()?;
        }
        for at in (0..count).filter(|at| at % 2 == 1) {
            self.remove(proxy, &name(at)).await?;
        }
        self.state.lock().coverage.scattered += 1;
        let before = self.before(run);
        for name in before {
            self.remove(proxy, &name).await?;
        }
        Ok(())
    }

    async fn put_small<P: Objects>(&self, proxy: &P, name: String) -> Result<(), ObjectError> {
        let number = self.next();
        self.state.lock().scattered.insert(name.clone(), Known::Unknown);
        let bytes = record(number, 8_000 + self.sim_rng.below(4_000) as u32);
        let (options, body) = (PutOptions::default(), body(number, &bytes));
        proxy.put(&self.bucket, &key(&name), options, body).await?;
        self.state.lock().scattered.insert(name, Known::There(number));
        Ok(())
    }

    /// Some objects of earlier runs that are there.
    fn before(&self, run: u64) -> Vec<String> {
        let own = format!("scatter/{run:016x}/");
        let state = self.state.lock();
        let there = state
            .scattered
            .iter()
            .filter(|(name, known)| matches!(known, Known::There(_)) && !name.starts_with(&own));
        there.map(|(name, _)| name.clone()).take(SCATTERED as usize).collect()
    }

    async fn remove<P: Objects>(&self, proxy: &P, name: &str) -> Result<(), ObjectError> {
        self.state.lock().scattered.insert(name.to_owned(), Known::Unknown);
        proxy.delete(&self.bucket, &key(name), Condition::default()).await?;
        self.state.lock().scattered.insert(name.to_owned(), Known::Gone);
        Ok(())
    }
}
