//! Meta and data servers with valid certificates that send wrong answers: the proxy keeps running.

use std::marker::PhantomData;
use std::sync::atomic::AtomicBool;

use larder_env::SeededRng;
use larder_env::hostile::{rounds, spoiled};
use larder_net::{Handler, PeerIdentity, Responder, Service};
use larder_protocol::scheduler::Report;
use larder_protocol::{Answer, Call, Refusal};
use larder_types::codec::encode;
use larder_types::{
    Attributes, Body, Chunk, Extent, Grant, Holders, HybridClock, LvId, Metax, OpId, OpSeq,
    PartRef, PartRow, SessionId, StreamId, UploadId, UploadRow, VersionRow, rows,
};
use parking_lot::Mutex;
use serde::Serialize;

use super::*;
use crate::manager::quorum::tests::raw::{Raw, panics};
use crate::wire::{DataCall, DataMessage, DataReply, MetaCall, MetaMessage, MetaReply, Rows};

/// Rounds of a short run.
const ROUNDS: u64 = 24;
/// Requests of each kind in a round.
const EACH: usize = 2;
/// Time that a request of a client has. Most answers are wrong, and asked for again until then.
const TIMEOUT: Duration = Duration::from_millis(60);

/// A service that is answered in bytes.
struct Lied<S>(PhantomData<S>);

impl<S: Service> Service for Lied<S> {
    const ROLE: Role = S::ROLE;
    type Request = S::Request;
    type Answer = Raw;
    type Message = S::Message;
}

/// Answers wrongly as long as it lies.
struct Liar {
    fake: FakeMeta,
    lies: Arc<AtomicBool>,
    draw: Arc<Mutex<SeededRng>>,
}

/// A value as a message has it.
fn bytes_of(value: &impl Serialize) -> Vec<u8> {
    encode(value)[1..].to_vec()
}

fn chunk(draw: &mut SeededRng) -> Chunk {
    let op = OpId { view: View(1), seq: OpSeq(draw.below(9)) };
    Chunk {
        grant: Grant { pg: PgId(draw.below(4) as u32), op, attempt: 0 },
        seed: draw.next_u64(),
        lv: LvId(draw.below(4) as u32),
        extents: vec![Extent { first: draw.below(9) as u32, blocks: 2 }],
        len: 5000,
        sums: vec![1, 2],
        holders: Holders(0b11),
    }
}

fn version(draw: &mut SeededRng) -> VersionRow {
    let op = OpId { view: View(1), seq: OpSeq(draw.below(9)) };
    let upload = UploadId { pg: PgId(1), op };
    let body = match draw.below(4) {
        0 => Body::Inline(Bytes::from_static(b"inline")),
        1 => Body::Chunk(chunk(draw)),
        2 => Body::Stream {
            stream: StreamId { session: SessionId(7), number: 1 },
            chunks: 2,
            chunk_bytes: 4096,
        },
        _ => Body::Parts {
            upload,
            parts: vec![PartRef { number: 1, len: 6 }, PartRef { number: 3, len: 5000 }],
        },
    };
    VersionRow { op, metax: metax(draw.below(9000)), body }
}

fn metax(size: u64) -> Metax {
    Metax::new(size, HybridClock(5), ETag::Md5([7; 16]))
}

/// A row that one of a key, an upload, a part or a stream may have.
fn row(draw: &mut SeededRng) -> Vec<u8> {
    let op = OpId { view: View(1), seq: OpSeq(3) };
    let (upload, clock) = (UploadId { pg: PgId(1), op }, HybridClock(4));
    match draw.below(4) {
        0 => encode(&version(draw)),
        1 => encode(&chunk(draw)),
        2 => encode(&UploadRow {
            upload,
            key: key("k"),
            clock,
            attributes: Attributes::default(),
            checksum: None,
        }),
        _ => encode(&PartRow {
            op,
            metax: metax(6),
            body: Body::Inline(Bytes::from_static(b"inline")),
        }),
    }
}

fn answered(draw: &mut SeededRng, to_put: bool) -> Answer {
    let op = OpId { view: View(1), seq: OpSeq(draw.below(9)) };
    let chunk = chunk(draw);
    match draw.below(if to_put { 4 } else { 8 }) {
        0 | 1 => Answer::Granted {
            grant: chunk.grant,
            lv: chunk.lv,
            extents: chunk.extents,
            replicas: Holders(0b11),
            clock: HybridClock(4),
            as_of: Default::default(),
        },
        2 => Answer::Persisted { grant: chunk.grant },
        3 => Answer::Refused(Refusal::Revoked),
        4 => Answer::Done { op, clock: HybridClock(4) },
        5 => Answer::Version(Some(Box::new(version(draw)))),
        6 => Answer::AskIndex,
        _ => Answer::Settled(None),
    }
}

/// The reply and payload that would fit a call to a meta server.
fn fitting(
    draw: &mut SeededRng,
    bucket: larder_types::BucketId,
    call: &MetaCall,
) -> (MetaReply, Vec<u8>) {
    match call {
        MetaCall::Call { call: Call::Put(_), .. } | MetaCall::Await { .. } => {
            (MetaReply::Answered(answered(draw, true)), Vec::new())
        }
        MetaCall::Call { .. } => (MetaReply::Answered(answered(draw, false)), Vec::new()),
        MetaCall::Find { .. } => (MetaReply::Found(Some(Box::new(version(draw)))), Vec::new()),
        MetaCall::GetRow { .. } => (MetaReply::Row(draw.below(8) > 0), row(draw)),
        MetaCall::Scan { from, .. } => {
            let name = |name| rows::version(bucket, &key(name), rows::UNVERSIONED);
            let found: Rows =
                ["a", "b", "c/d"].map(|of| (name(of), row(draw))).into_iter().collect();
            let next = (draw.below(2) == 0).then(|| [&from[..], b"x"].concat());
            (MetaReply::Rows(next), encode(&found))
        }
        MetaCall::Progress
        | MetaCall::Doubts
        | MetaCall::Space
        | MetaCall::Counts
        | MetaCall::Journals { .. }
        | MetaCall::Kept { .. }
        | MetaCall::TellPositions(_)
        | MetaCall::Positions { .. } => (MetaReply::Progress, Vec::new()),
    }
}

impl Liar {
    fn lie(&self, good: &impl Serialize, payload: Vec<u8>, to: Responder<Lied<impl Service>>) {
        let mut draw = self.draw.lock();
        if draw.below(16) == 0 {
            // Nothing comes.
            return;
        }
        let mut spoil = |bytes: Vec<u8>| match draw.below(2) {
            _ if bytes.is_empty() => bytes,
            0 => bytes,
            _ => spoiled(&mut draw, &[bytes]),
        };
        let (reply, payload) = (spoil(bytes_of(good)), spoil(payload));
        to.answer(&Raw(reply), payload.into());
    }
}

impl Handler<Lied<MetaService>> for Liar {
    fn request(
        &self,
        _: &PeerIdentity,
        call: MetaCall,
        _: Bytes,
        to: Responder<Lied<MetaService>>,
    ) {
        if self.lies.load(Ordering::Relaxed) {
            let (reply, payload) = fitting(&mut self.draw.lock(), larder_types::BucketId(1), &call);
            self.lie(&reply, payload, to);
        } else {
            let (reply, payload) = self.fake.answer(call);
            to.answer(&Raw(bytes_of(&reply)), payload);
        }
    }

    fn message(&self, _: &PeerIdentity, _: MetaMessage, _: Bytes) {}
}

impl Handler<Lied<DataService>> for Liar {
    fn request(
        &self,
        _: &PeerIdentity,
        call: DataCall,
        _: Bytes,
        to: Responder<Lied<DataService>>,
    ) {
        let which = self.draw.lock().below(8);
        let (reply, payload) = match (call, which) {
            (DataCall::Read { len, .. }, 0) => {
                (DataReply::BytesAnd(Report::default()), vec![1; len as usize])
            }
            (DataCall::Read { len, .. }, 1..6) => {
                (DataReply::Bytes, vec![0; len.min(9000) as usize])
            }
            (DataCall::Read { .. }, _) => (DataReply::Unreadable, Vec::new()),
            (_, 0) => (DataReply::Full, Vec::new()),
            (_, 1) => (DataReply::NotWritten, Vec::new()),
            _ => (DataReply::Written, Vec::new()),
        };
        self.lie(&reply, payload, to);
    }

    fn message(&self, _: &PeerIdentity, _: DataMessage, _: Bytes) {}
}

/// One request of each kind, with whether it was done in time and well.
async fn ask_all(cluster: &Cluster, draw: u64) -> usize {
    let (proxy, bucket) = (&cluster.proxy, &cluster.bucket.name);
    let (name, bytes) = (key(&format!("k{draw}")), content(70_000, draw as u8));
    let put = |len: usize| {
        let body = Whole::of(&bytes.slice(..len));
        async { proxy.put(bucket, &name, PutOptions::default(), body).await.is_ok() }
    };
    let get = || async {
        let Ok(opened) = proxy.open(bucket, &name).await else { return false };
        match proxy.read(&opened, 0..opened.metax.size).await {
            Ok(ReadBody::Stream(mut pieces)) => {
                while let Some(piece) = pieces.next().await {
                    if piece.is_err() {
                        return false;
                    }
                }
                true
            }
            read => read.is_ok(),
        }
    };
    let list = || async { proxy.list(bucket, ListRequest::default()).await.is_ok() };
    let delete = || async { proxy.delete(bucket, &name, Condition::default()).await.is_ok() };
    let upload = || async {
        let begun = proxy.create_upload(bucket, &name, UploadOptions::default()).await;
        let Ok(upload) = begun else { return false };
        let part = Whole::of(&bytes.slice(..9000));
        let part = proxy.put_part(bucket, &name, upload, 1, part).await.is_ok();
        let parts = vec![NamedPart { number: 1, etag: "\"07\"".to_owned(), checksum: None }];
        let options = CompleteOptions { parts, ..CompleteOptions::default() };
        proxy.complete_upload(bucket, &name, upload, options).await.is_ok() && part
    };
    let all = tokio::join!(
        timeout(TIMEOUT, put(100)),
        timeout(TIMEOUT, put(70_000)),
        timeout(TIMEOUT, get()),
        timeout(TIMEOUT, list()),
        timeout(TIMEOUT, delete()),
        timeout(TIMEOUT, upload()),
    );
    let all = [all.0, all.1, all.2, all.3, all.4, all.5];
    all.into_iter().filter(|done| matches!(done, Ok(true))).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_from_certified_servers_end_no_proxy() {
    let before = panics();
    let lies = Arc::new(AtomicBool::new(true));
    let draw = Arc::new(Mutex::new(SeededRng::new(0)));
    let (lying, drawn) = (lies.clone(), draw.clone());
    let cluster = Cluster::of_servers(Policy::EarliestFinish, PROTOCOL_MAX, move |id, world, _| {
        let liar = Liar {
            fake: FakeMeta { me: ServerId(id), world },
            lies: lying.clone(),
            draw: drawn.clone(),
        };
        match id {
            0 | 1 => Services::new().with::<Lied<MetaService>>(callers(), liar),
            _ => Services::new().with::<Lied<DataService>>(callers(), liar),
        }
    })
    .await;
    let mut done = 0;
    for mut of_round in rounds(ROUNDS) {
        *draw.lock() = SeededRng::new(of_round.next_u64());
        let asked = (0..EACH as u64).map(|number| ask_all(&cluster, of_round.below(1000) + number));
        done += futures::future::join_all(asked.collect::<Vec<_>>()).await.iter().sum::<usize>();
    }
    println!("{done} requests were done");
    assert!(done > 0, "some of it is believed");
    lies.store(false, Ordering::Relaxed);
    let good = Bytes::from_static(b"good");
    cluster.put("good", &good).await.unwrap();
    assert!(cluster.has("good", &good).await);
    assert_eq!(panics(), before, "nothing panicked");
}
