//! The asking end of the link to one other region.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use larder_protocol::region::Name;
use larder_protocol::region::deletion::CloseAnswer;
use larder_protocol::region::home::HomeAnswer;
use larder_types::RegionId;
use larder_types::codec::{CodecError, decode, encode};
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::compression::CODING;
use crate::error::{Later, LinkError, Refused};
use crate::fetching::FetchStream;
use crate::limits::{
    ANSWER_BYTES_MAX, CALL_TIME_MAX, CHANGE_PLACE_TIME_MAX, CHANGE_TIME_MAX, CHANGES_MAX, KEYS_MAX,
    KEYS_PLACE_TIME_MAX, MISSES_MAX,
};
use crate::members::{Known, Peer};
use crate::message::{
    AskHome, Change, ChangeAnswer, CloseBucket, Declined, EndClosed, Fetch, FetchPart, FetchSince,
    Hello, IdsQuery, IdsReply, Keys, KeysReply, List, ListAnswer, PATH, RegionList, Report,
    Request, TellHomes, Walk, WalkAnswer,
};
use crate::metrics::PeerMetrics;
use crate::name::Address;
use crate::pool::{Pool, PooledConnection};
use crate::transport::{RegionConnector, Sender};

/// Asks one other region. Each request but [`Link::change`] may be repeated: none changes objects, and of a bucket that is closed
/// or deleted twice the mark tells.
#[derive(Debug)]
pub struct Link {
    number: RegionId,
    address: Address,
    pool: Arc<Pool>,
    /// Places for changes.
    changes: Semaphore,
    /// Places for keys of lists.
    lists: Semaphore,
    /// Places for keys that clients read and that are not there: for those that are fetched, and for those that are only read.
    misses: Semaphore,
    reads: Semaphore,
    /// Answers to fetches are to be compressed.
    compressed: AtomicBool,
    metrics: Arc<PeerMetrics>,
}

impl Link {
    /// Makes the link to a region, over the way to its key.
    pub(crate) fn to(peer: &Peer, way: RegionConnector, metrics: Arc<PeerMetrics>) -> Self {
        let (number, address) = (peer.number, peer.address.clone());
        let pool = Pool::new(address.clone(), way, metrics.clone());
        let (changes, lists) = (Semaphore::new(CHANGES_MAX), Semaphore::new(KEYS_MAX));
        let (misses, reads) = (Semaphore::new(MISSES_MAX), Semaphore::new(MISSES_MAX));
        let compressed = AtomicBool::new(false);
        Self { number, address, pool, changes, lists, misses, reads, compressed, metrics }
    }

    /// Asks for compressed answers to fetches from now on, or for those as they are.
    pub(crate) fn compress(&self, compressed: bool) {
        self.compressed.store(compressed, Ordering::Relaxed);
    }

    /// The other region's number.
    #[must_use]
    pub fn number(&self) -> RegionId {
        self.number
    }

    /// Asks for the region's description of itself.
    ///
    /// # Errors
    /// [`LinkError`], by what to do.
    pub async fn hello(&self) -> Result<Hello, LinkError> {
        self.call(Request::Hello).await
    }

    /// Asks for the ids behind tokens.
    ///
    /// # Errors
    /// [`LinkError`], by what to do.
    pub async fn query_ids(&self, ask: IdsQuery) -> Result<IdsReply, LinkError> {
        self.call(Request::IdsQuery(ask)).await
    }

    /// Reports how far this region is.
    ///
    /// # Errors
    /// [`LinkError`], by what to do.
    pub async fn report(&self, report: Report) -> Result<(), LinkError> {
        self.call(Request::Report(report)).await
    }

    /// Asks to close a bucket.
    ///
    /// # Errors
    /// [`LinkError`], by what to do. It may be closed all the same.
    pub async fn close_bucket(&self, close: CloseBucket) -> Result<CloseAnswer, LinkError> {
        self.call(Request::CloseBucket(close)).await
    }

    /// Asks to delete a closed bucket, or to open it again; true if it is as asked.
    ///
    /// # Errors
    /// [`LinkError`], by what to do. It may be done all the same.
    pub async fn end_closed(&self, end: EndClosed) -> Result<bool, LinkError> {
        self.call(Request::EndClosed(end)).await
    }

    /// Asks about the home of a bucket.
    ///
    /// # Errors
    /// [`LinkError`], by what to do. It may be given, or a claim accepted, all the same.
    pub async fn ask_home(&self, ask: AskHome) -> Result<HomeAnswer, LinkError> {
        self.call(Request::AskHome(ask)).await
    }

    /// Tells the homes of buckets.
    ///
    /// # Errors
    /// [`LinkError`], by what to do.
    pub async fn tell_homes(&self, homes: TellHomes) -> Result<(), LinkError> {
        self.call(Request::TellHomes(homes)).await
    }

    /// Has the region make a client's change. It is not repeated.
    ///
    /// # Errors
    /// [`LinkError`], by what to do. The change may be made all the same.
    pub async fn change(&self, change: Change) -> Result<ChangeAnswer, LinkError> {
        let request = Request::Change(Box::new(change));
        let place = timeout(CHANGE_PLACE_TIME_MAX, self.changes.acquire()).await;
        let Ok(Ok(_place)) = place else { return Err(Later::Busy.into()) };
        self.call_in(CHANGE_TIME_MAX, request, true).await
    }

    /// Asks for the sums of runs.
    ///
    /// # Errors
    /// [`LinkError`], by what to do.
    pub async fn walk(&self, walk: Walk) -> Result<WalkAnswer, LinkError> {
        self.call(Request::Walk(walk)).await
    }

    /// Asks for the ids of a run.
    ///
    /// # Errors
    /// [`LinkError`], by what to do.
    pub async fn list(&self, list: List) -> Result<ListAnswer, LinkError> {
        self.call(Request::List(list)).await
    }

    /// Asks for keys of a bucket.
    ///
    /// # Errors
    /// [`LinkError`], by what to do. Of an earlier release it is that the region says what none says.
    pub async fn keys(&self, keys: Keys) -> Result<KeysReply, LinkError> {
        let ask = keys.ask.clone();
        let place = timeout(KEYS_PLACE_TIME_MAX, self.lists.acquire()).await;
        let Ok(Ok(_place)) = place else { return Err(Later::Busy.into()) };
        match self.call(Request::Keys(keys)).await? {
            KeysReply::Keys(answer) if !answer.answers(&ask) => {
                Err(LinkError::Unsound("keys that were not asked for".to_owned()))
            }
            reported => Ok(reported),
        }
    }

    /// Exchanges lists of regions with it.
    pub(crate) async fn members(&self, known: Vec<Known>) -> Result<Vec<Known>, LinkError> {
        let asked = Request::Members(RegionList { regions: known });
        self.call::<RegionList>(asked).await.map(|reported| reported.regions)
    }

    /// Asks for entries. The stream holds one of the connections until it has ended, or is dropped.
    ///
    /// # Errors
    /// [`LinkError`], by what to do.
    pub async fn fetch(&self, fetch: impl Into<FetchSince>) -> Result<FetchStream, LinkError> {
        let FetchSince { names, bases } = fetch.into();
        let whole = Request::Fetch(Fetch { names: names.clone() });
        if bases.is_empty() {
            return self.begin_fetch(names, whole).await;
        }
        let since = Request::FetchSince(FetchSince { names: names.clone(), bases });
        match self.begin_fetch(names.clone(), since).await {
            // An earlier release does not know this request.
            Err(LinkError::Unsound(_)) => self.begin_fetch(names, whole).await,
            began => began,
        }
    }

    /// A place for a key that a client reads and that is not here: fetches of it leave connections to all else. Waits for it.
    pub async fn place_for_miss(&self) -> Option<SemaphorePermit<'_>> {
        self.misses.acquire().await.ok()
    }

    /// The same for a part of one that is only read.
    pub async fn place_for_read(&self) -> Option<SemaphorePermit<'_>> {
        self.reads.acquire().await.ok()
    }

    /// Asks for a part of an entry's bytes. The stream has that entry alone.
    ///
    /// # Errors
    /// [`LinkError`], by what to do. Of an earlier release it is that the region says what none says.
    pub async fn fetch_part(&self, part: FetchPart) -> Result<FetchStream, LinkError> {
        let names = vec![(part.name.clone(), true)];
        self.begin_fetch(names, Request::FetchPart(part)).await
    }

    async fn begin_fetch(
        &self,
        names: Vec<(Name, bool)>,
        request: Request,
    ) -> Result<FetchStream, LinkError> {
        let began = self.in_time(CALL_TIME_MAX, async {
            let (response, held) = self.send(&request, false).await?;
            if response.status() != StatusCode::OK {
                return Err(return_connection(declined(response, &self.address).await, held));
            }
            Ok((response, held))
        });
        let (response, held) = began.await?;
        let coding = response.headers().get(header::CONTENT_ENCODING);
        if coding.is_some_and(|coding| coding != CODING) {
            return Err(LinkError::Unsound(format!("an answer in the coding {coding:?}")));
        }
        Ok(FetchStream::new(names, response, held, self.metrics.clone()))
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn tend(&self) {
        self.pool.tend();
    }

    async fn call<T: DeserializeOwned>(&self, request: Request) -> Result<T, LinkError> {
        self.call_in(CALL_TIME_MAX, request, false).await
    }

    async fn call_in<T: DeserializeOwned>(
        &self,
        time_max: Duration,
        request: Request,
        once: bool,
    ) -> Result<T, LinkError> {
        self.in_time(time_max, async {
            let (response, held) = self.send(&request, once).await?;
            match read_answer(response, &self.address).await {
                Ok((answer, bytes)) => {
                    self.metrics.bytes_told.add(bytes as u64);
                    held.give_back();
                    Ok(answer)
                }
                Err(error) => Err(return_connection(error, held)),
            }
        })
        .await
    }

    async fn in_time<T>(
        &self,
        time_max: Duration,
        asking: impl Future<Output = Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
        self.metrics.asked.add(1);
        let asked = timeout(time_max, asking).await;
        let asked = asked.unwrap_or_else(|_elapsed| Err(Later::Late.into()));
        asked.inspect_err(|_| self.metrics.failed.add(1))
    }

    /// Sends a request; unless it may be sent only `once`, again if the other end has closed the idle connection that was taken.
    async fn send(
        &self,
        request: &Request,
        once: bool,
    ) -> Result<(http::Response<Incoming>, PooledConnection), LinkError> {
        let body = Bytes::from(encode(request));
        let is_fetch =
            matches!(request, Request::Fetch(_) | Request::FetchSince(_) | Request::FetchPart(_));
        let is_compressed = is_fetch && self.compressed.load(Ordering::Relaxed);
        let coding = is_compressed.then_some(CODING);
        loop {
            let mut held = self.pool.take().await?;
            self.metrics.bytes_requested.add(body.len() as u64);
            match send_accepting(held.sender(), body.clone(), coding).await {
                Ok(response) => return Ok((response, held)),
                Err(_closed) if held.is_used && !once => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the connection of a refusal to the pool: the refusal was read as a whole.
fn return_connection(error: LinkError, held: PooledConnection) -> LinkError {
    if matches!(error, LinkError::Later(Later::Busy | Later::NotReady) | LinkError::Refused(_)) {
        held.give_back();
    }
    error
}

/// Sends a request over a connection, and waits for the head of its answer.
pub(crate) async fn send(
    sender: &mut Sender,
    body: Bytes,
) -> Result<http::Response<Incoming>, LinkError> {
    send_accepting(sender, body, None).await
}

/// As [`send`], with a coding that the answer may have.
async fn send_accepting(
    sender: &mut Sender,
    body: Bytes,
    coding: Option<&'static str>,
) -> Result<http::Response<Incoming>, LinkError> {
    let mut request = http::Request::builder()
        .method(Method::POST)
        .uri(PATH)
        .header(header::HOST, "region")
        .body(Full::new(body))
        .map_err(LinkError::broken)?;
    if let Some(coding) = coding {
        let coding = HeaderValue::from_static(coding);
        request.headers_mut().insert(header::ACCEPT_ENCODING, coding);
    }
    sender.send_request(request).await.map_err(LinkError::broken)
}

/// Reads an answer and its length in bytes.
pub(crate) async fn read_answer<T: DeserializeOwned>(
    response: http::Response<Incoming>,
    address: &Address,
) -> Result<(T, usize), LinkError> {
    if response.status() != StatusCode::OK {
        return Err(declined(response, address).await);
    }
    let body = read(response).await?;
    Ok((decoded("answer of a region", &body, address)?, body.len()))
}

async fn declined(response: http::Response<Incoming>, address: &Address) -> LinkError {
    let status = response.status();
    let body = match read(response).await {
        Ok(body) => body,
        Err(error) => return error,
    };
    match decoded::<Declined>("refusal of a region", &body, address) {
        Ok(declined) => declined.into(),
        Err(LinkError::Unsound(_)) => {
            LinkError::Unsound(format!("status {status} without a reason"))
        }
        Err(error) => error,
    }
}

async fn read(response: http::Response<Incoming>) -> Result<Bytes, LinkError> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
    match body.collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(LinkError::Unsound(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")))
        }
        Err(error) => Err(LinkError::broken(error)),
    }
}

fn decoded<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
    address: &Address,
) -> Result<T, LinkError> {
    decode(what, bytes).map_err(|error| match error {
        CodecError::Version { .. } => Refused::Release(address.clone()).into(),
        CodecError::Damaged { .. } => LinkError::Unsound(error.to_string()),
    })
}
