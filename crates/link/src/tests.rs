//! Regions on loopback: their access to each other, and their requests and answers.

mod fetches;
mod hostile;
mod regions;
mod strangers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use larder_protocol::region::deletion::{CloseAnswer, Mark};
use larder_protocol::region::home::HomeAnswer;
use larder_protocol::region::listing::{KeysAnswer, RegionKey};
use larder_protocol::region::{Entry, EntryKind, Name, Slot};
use larder_types::{
    Appended, BucketId, ETag, Epoch, Home, HomeScope, HomeState, HomeTerm, HybridClock, ObjectKey,
    OpId, OpSeq, Origin, PgId, RegionId, Stamp, View,
};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::limits::PIECE_BYTES_MAX;
use crate::message::{
    ChangeAnswer, ChangeKind, Declined, Fetch, FetchRequest, Fetched, Hello, IdsQuery, IdsReply,
    List, ListAnswer, RegionList, Walk, WalkAnswer,
};
use crate::name::{Address, RegionName};
use crate::source::{FetchSink, Source};
use crate::token::JoinToken;
use crate::{Link, LinkError, Listener, Members, RegionEndpoint, change, found, join};

/// A source that answers as its test wants.
struct Fake {
    number: RegionId,
    /// Bytes that the sink took.
    sent: AtomicU64,
    /// The first piece has arrived.
    arrived: Notify,
    /// Lists that were kept, if there is a place where they can be.
    kept: Mutex<Option<Vec<RegionList>>>,
    /// The greatest number of a region whose changes are here.
    met: Mutex<RegionId>,
    how: How,
}

/// Its way of answering a fetch; some answer nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Each entry with so many bytes.
    Bytes(u64),
    /// It stops in the middle of the first entry, with an error, when the first piece has arrived.
    Breaks,
    /// It writes the first entry's head and half of its bytes, and no more.
    Hangs,
    /// It is busy.
    Busy,
    /// It never answers.
    Never,
}

impl Source for Fake {
    async fn hello(&self, from: RegionId) -> Result<Hello, Declined> {
        assert_ne!(from, self.number);
        Ok(Hello { number: self.number, pg_count: 256, now_ms: 7 })
    }

    async fn query_ids(&self, _from: RegionId, ask: IdsQuery) -> Result<IdsReply, Declined> {
        match self.how {
            How::Busy => Err(Declined::Busy),
            How::Never => std::future::pending().await,
            _ => {
                let void = larder_protocol::region::Void {
                    why: larder_protocol::region::journal::VoidReason::Overrun,
                    resume: ask.pgs[0].1,
                };
                let pgs = ask.pgs.iter().map(|(pg, _, _)| (*pg, Err(void))).collect();
                Ok(IdsReply { pgs, buckets: vec![(BucketId(1), bucket())] })
            }
        }
    }

    async fn reported(&self, _from: RegionId, _report: crate::Report) -> Result<(), Declined> {
        Ok(())
    }

    async fn close_bucket(
        &self,
        _from: RegionId,
        close: crate::CloseBucket,
    ) -> Result<CloseAnswer, Declined> {
        let closed = Mark { bucket: BucketId(1), epoch: Epoch(2) };
        Ok(if close.bucket == bucket() { CloseAnswer::Closed(closed) } else { CloseAnswer::Absent })
    }

    async fn end_closed(&self, _from: RegionId, end: crate::EndClosed) -> Result<bool, Declined> {
        Ok(end.bucket == bucket() && end.delete)
    }

    async fn ask_home(&self, from: RegionId, ask: crate::AskHome) -> Result<HomeAnswer, Declined> {
        let term = HomeTerm { count: 1, of: from };
        let home = Home { term, scope: HomeScope::Conditions, state: HomeState::Elsewhere };
        let is_known = ask.bucket == bucket();
        Ok(if is_known { HomeAnswer::Knows(Some(home)) } else { HomeAnswer::Absent })
    }

    async fn keys(&self, _: RegionId, keys: crate::Keys) -> Result<crate::KeysReply, Declined> {
        let report = |key: &str| RegionKey {
            key: ObjectKey::new(key).unwrap(),
            at: Stamp { clock: HybridClock(5), region: self.number },
            object: None,
            leaves_out: false,
        };
        // One key before the place that was asked for is what no region tells.
        let keys_reply = match self.how {
            How::Breaks => vec![report("a")],
            _ => vec![report("b"), report("c")],
        };
        let answer = KeysAnswer { keys: keys_reply, rest: None };
        Ok(match keys.bucket == bucket() {
            true => crate::KeysReply::Keys(answer),
            false => crate::KeysReply::NoBucket,
        })
    }

    async fn tell_homes(&self, _: RegionId, homes: crate::TellHomes) -> Result<(), Declined> {
        assert_eq!(homes.homes.len(), 1);
        Ok(())
    }

    async fn change(
        &self,
        _from: RegionId,
        change: crate::Change,
    ) -> Result<ChangeAnswer, Declined> {
        Ok(match change.kind {
            ChangeKind::Put { bytes, .. } => {
                ChangeAnswer::Made(Some(HybridClock(bytes.len() as u64)))
            }
            ChangeKind::Append { offset, bytes, .. } => {
                let offset = offset.unwrap_or_default();
                let (size, etag) = (offset + bytes.len() as u64, ETag::Md5([7; 16]));
                ChangeAnswer::Appended(
                    Appended { offset, size, etag, checksum: None },
                    HybridClock(7),
                )
            }
            ChangeKind::Delete | ChangeKind::Tags(_) | ChangeKind::Upload(_) => {
                ChangeAnswer::Made(None)
            }
        })
    }

    async fn walk(&self, _from: RegionId, walk: Walk) -> Result<WalkAnswer, Declined> {
        let summed = larder_protocol::region::Summed { runs: Vec::new(), rest: Some(walk.range) };
        Ok(WalkAnswer { summed, buckets: Vec::new() })
    }

    async fn list(&self, _from: RegionId, list: List) -> Result<ListAnswer, Declined> {
        let listed = larder_protocol::region::Listed { ids: Vec::new(), rest: Some(list.range) };
        Ok(ListAnswer { listed, buckets: Vec::new() })
    }

    async fn last_met(&self) -> Result<RegionId, Declined> {
        Ok(*self.met.lock())
    }

    async fn keep(&self, known: RegionList) -> Result<(), Declined> {
        self.kept.lock().as_mut().map(|kept| kept.push(known)).ok_or(Declined::NotReady)
    }

    async fn fetch(
        &self,
        _from: RegionId,
        fetch: FetchRequest,
        mut sink: FetchSink,
    ) -> Result<(), Declined> {
        let (names, part) = match fetch {
            FetchRequest::Entries(fetch) => (fetch.names, None),
            FetchRequest::Part(part) => (vec![(part.name.clone(), true)], Some(part)),
        };
        let bytes = match self.how {
            How::Bytes(bytes) => bytes,
            How::Breaks | How::Hangs => 2 * PIECE_BYTES_MAX as u64,
            How::Busy => return Err(Declined::Busy),
            How::Never => std::future::pending().await,
        };
        let gone = |_| Declined::NotReady;
        for (name, with_bytes) in names {
            let bytes = match &part {
                Some(part) => bytes.saturating_sub(part.from).min(part.bytes_max),
                None if with_bytes => bytes,
                None => 0,
            };
            sink.entry(Fetched { name, entry: Some(marker()), bytes, is_withheld: false })
                .await
                .map_err(gone)?;
            let mut left = bytes;
            while left > 0 {
                let piece = left.min(PIECE_BYTES_MAX as u64);
                sink.bytes(Bytes::from(vec![7; piece as usize])).await.map_err(gone)?;
                self.sent.fetch_add(piece, Ordering::Relaxed);
                left -= piece;
                match self.how {
                    How::Breaks => {
                        self.arrived.notified().await;
                        return Err(Declined::NotReady);
                    }
                    How::Hangs => std::future::pending().await,
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn bucket() -> larder_types::BucketName {
    larder_types::BucketName::new("photos").unwrap()
}

fn name(key: &str) -> Name {
    Name { bucket: BucketId(1), key: ObjectKey::new(key).unwrap(), slot: Slot::Null }
}

/// An entry: a delete marker.
fn marker() -> Entry {
    let region = RegionId(1);
    let op = OpId { view: View(1), seq: OpSeq(9) };
    let origin = Origin { region, pg: PgId(3), op };
    Entry { at: Stamp { clock: HybridClock(5), region }, origin, what: EntryKind::Marker }
}

/// A region with its directory, which answers.
struct Region {
    dir: TempDir,
    region_endpoint: Arc<RegionEndpoint>,
    source: Arc<Fake>,
    listening: Listener,
}

fn region_name(name: &str) -> RegionName {
    name.parse().unwrap()
}

async fn a_socket() -> (TcpListener, Address) {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string().parse().unwrap();
    (socket, address)
}

impl Region {
    async fn first() -> Self {
        Self::first_that(How::Bytes(10)).await
    }

    async fn first_that(how: How) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (socket, address) = a_socket().await;
        found(dir.path(), region_name("one"), address.to_string(), address).unwrap();
        Self::start(dir, socket, how)
    }

    fn start(dir: TempDir, socket: TcpListener, how: How) -> Self {
        let region_endpoint = RegionEndpoint::open(dir.path()).unwrap().unwrap();
        let (number, sent, arrived) = (region_endpoint.number(), AtomicU64::new(0), Notify::new());
        let kept = Mutex::new(Some(Vec::new()));
        let met = Mutex::new(RegionId::OWN);
        let source = Arc::new(Fake { number, sent, arrived, kept, met, how });
        let listening = region_endpoint.listen(socket, source.clone()).unwrap();
        region_endpoint.is_kept(&region_endpoint.known());
        Self { dir, region_endpoint, source, listening }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A token, which the server has noticed.
    fn token(&self) -> JoinToken {
        change(self.path(), |members| members.issue(crate::registry::now_ms())).unwrap().0
    }

    /// A region that joins this one.
    async fn joined(&self, name: &str, how: How) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (socket, address) = a_socket().await;
        let token = self.token();
        let name = region_name(name);
        join(dir.path(), &token, name, address.to_string(), address).await.unwrap();
        Self::start(dir, socket, how)
    }

    fn to(&self, other: &Self) -> Arc<Link> {
        self.region_endpoint.link_to(other.region_endpoint.number()).unwrap().unwrap()
    }

    fn members(&self) -> Arc<Members> {
        self.region_endpoint.members().borrow().clone()
    }
}

/// Two regions, the first and one that pulls from it.
async fn two(how: How) -> (Region, Region) {
    let first = Region::first_that(how).await;
    let second = first.joined("two", How::Bytes(10)).await;
    (first, second)
}

fn ask() -> IdsQuery {
    IdsQuery { pgs: vec![(PgId(3), Default::default(), Default::default())], ids_max: 10 }
}
