//! Answers other workers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use larder_types::codec::encode;
use larder_types::{HybridClock, OpSeq};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use super::ends::Ends;
use super::handed::{Handed, HandedBody};
use super::wire::{
    Asked, BODY, CHANGES, CLOCK, Call, DATE, HANDED_ON, NONCE, PROOF, STREAMED, Secret, Told,
    digest, streamed_with,
};
use crate::blocking;
use crate::bugs::{self, Bug};
use crate::clock::now_ms;
use crate::commit::spool::Spool;
use crate::error::PackError;
use crate::format::entry::Within;
use crate::format::lot::Lot;
use crate::ids::{BlobId, ProcessId, WorkerId};
use crate::index::Index;
use crate::limits::{
    CALL_HEADERS_MAX, FEED_BODIES_MAX, FEED_BYTES_MAX, FEED_CALLS_MAX, FEED_CONNECTIONS_MAX,
    FEED_WAIT_MAX, PACKED_BYTES_MAX,
};
use crate::owner::ownership::Ownership;

/// Pause after a failed `accept`, which fails while the process has no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The parts of a store that the feed answers from.
pub(crate) struct Feed {
    pub(crate) worker: WorkerId,
    pub(crate) secret: Secret,
    pub(crate) spool: Arc<Spool>,
    pub(crate) index: Arc<Index>,
    /// Bodies in memory at once; more wait.
    pub(crate) bodies: Semaphore,
    /// Answers requests that others hand on.
    pub(crate) handed: Arc<Handed>,
    /// Says when another process has the worker's place.
    owner: Option<Arc<Ownership>>,
    ends: Ends,
}

/// The answer to a call that gets nothing else.
pub(crate) type Refusal = (StatusCode, Vec<u8>);

/// A call under way.
struct Running {
    task: AbortHandle,
    /// True once its request headers were received.
    has_headers: Arc<AtomicBool>,
}

/// Answers until it is dropped. Calls whose heads have come have places, or wait for them. Where
/// there are too many connections, the oldest without a head makes room. So a machine that only
/// connects keeps no other worker away.
pub(crate) async fn serve(listener: TcpListener, feed: Arc<Feed>) {
    let places = Arc::new(Semaphore::new(FEED_CALLS_MAX));
    let mut running: VecDeque<Running> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a call of another worker could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        running.retain(|call| !call.task.is_finished());
        if running.len() >= FEED_CONNECTIONS_MAX {
            let is_silent = |call: &Running| !call.has_headers.load(Ordering::Relaxed);
            let Some(oldest) = running.iter().position(is_silent) else {
                tracing::warn!("a call of another worker is turned away: too many are under way");
                continue;
            };
            if let Some(oldest) = running.remove(oldest) {
                oldest.task.abort();
            }
        }
        let (feed, has_headers) = (feed.clone(), Arc::new(AtomicBool::new(false)));
        let (received, places) = (has_headers.clone(), places.clone());
        let task = tokio::spawn(async move {
            // Until all of the answer has left.
            let place = Arc::new(OnceLock::new());
            let answer = service_fn(|call| {
                received.store(true, Ordering::Relaxed);
                let (feed, place, places) = (feed.clone(), place.clone(), places.clone());
                async move {
                    if let Ok(taken) = places.acquire_owned().await {
                        // A connection has one call.
                        let _ = place.set(taken);
                    }
                    Ok::<_, Infallible>(feed.answer(call).await)
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(CALL_HEADERS_MAX)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a call of another worker broke off");
            }
        });
        running.push_back(Running { task: task.abort_handle(), has_headers });
    }
}

impl Feed {
    pub(crate) fn new(
        worker: WorkerId,
        secret: Secret,
        spool: Arc<Spool>,
        index: Arc<Index>,
        handed: Arc<Handed>,
    ) -> Self {
        let bodies = Semaphore::new(FEED_BODIES_MAX);
        let (owner, ends) = (None, Ends::default());
        Self { worker, secret, spool, index, bodies, handed, owner, ends }
    }

    /// The same, that tells nothing once the worker's place is another's.
    pub(crate) fn owned(self, owner: Arc<Ownership>) -> Self {
        Self { owner: Some(owner), ..self }
    }

    async fn answer(&self, mut call: Request<Incoming>) -> Response<HandedBody> {
        let nonce = header(call.headers(), NONCE).to_owned();
        let (status, body) = match self.is_proven(&call) {
            false => refuse(StatusCode::FORBIDDEN),
            true if call.headers().contains_key(HANDED_ON) => {
                for ours in [HANDED_ON, DATE, NONCE, PROOF] {
                    call.headers_mut().remove(ours);
                }
                match self.handed.answer(call).await {
                    Some(mut answer) => {
                        let body = streamed_with(header(answer.headers(), CLOCK));
                        self.prove(&mut answer, &nonce, &body);
                        return answer;
                    }
                    None => refuse(StatusCode::SERVICE_UNAVAILABLE),
                }
            }
            true => match self.answer_with(&call).await {
                Ok(body) => (StatusCode::OK, body),
                Err(refusal) => refusal,
            },
        };
        let digest = digest(&body);
        let body = Full::from(body).map_err(|never| match never {});
        let mut response = Response::new(HandedBody::new(body));
        *response.status_mut() = status;
        // A caller that proves nothing gets no proof.
        if status != StatusCode::FORBIDDEN {
            self.prove(&mut response, &nonce, &digest);
        }
        response
    }

    fn prove(&self, answer: &mut Response<HandedBody>, nonce: &str, body: &str) {
        let proof = self.secret.prove_answer(nonce, answer.status(), body);
        if let Ok(proof) = HeaderValue::try_from(proof) {
            answer.headers_mut().insert(PROOF, proof);
        }
    }

    fn is_proven(&self, call: &Request<Incoming>) -> bool {
        let headers = call.headers();
        let none = digest(b"");
        let body = match headers.contains_key(HANDED_ON) {
            true => STREAMED,
            // Nobody reads what else would come.
            false => &none,
        };
        let proven = Call {
            method: call.method(),
            asked: call.uri().path_and_query().map_or("", |asked| asked.as_str()),
            date_ms: header(headers, DATE).parse().unwrap_or(0),
            nonce: header(headers, NONCE),
            body,
        };
        self.secret.is_proven(&proven, now_ms(), header(headers, PROOF))
    }

    async fn answer_with(&self, call: &Request<Incoming>) -> Result<Vec<u8>, Refusal> {
        let query = call.uri().query().unwrap_or_default();
        let number = |name| number_of(query, name).ok_or_else(|| refuse(StatusCode::BAD_REQUEST));
        if WorkerId(number("worker")?) != self.worker {
            return Err(refuse(StatusCode::CONFLICT));
        }
        self.refuse_superseded()?;
        match call.uri().path() {
            CHANGES => {
                let last = number_of(query, "seq").zip(number_of(query, "clock"));
                let last = last.map(|(seq, clock)| (OpSeq(seq), HybridClock(clock)));
                self.changes(&Asked { blob: number("blob")?, from: number("from")?, last }).await
            }
            BODY => {
                let lot = u8::try_from(number("lot")?).ok().and_then(Lot::numbered);
                let lot = lot.ok_or_else(|| refuse(StatusCode::BAD_REQUEST))?;
                self.body(number("blob")?, lot, number("from")?..number("to")?).await
            }
            _ => Err(refuse(StatusCode::NOT_FOUND)),
        }
    }

    fn refuse_superseded(&self) -> Result<(), Refusal> {
        match self.owner.as_ref().is_some_and(|owner| owner.status().superseded) {
            true => Err(refuse(StatusCode::CONFLICT)),
            false => Ok(()),
        }
    }

    /// Tells the changes from there on; if there are none, once there are some.
    async fn changes(&self, asked: &Asked) -> Result<Vec<u8>, Refusal> {
        let mut grown = self.spool.grown();
        let end = tokio::time::Instant::now() + FEED_WAIT_MAX;
        loop {
            grown.mark_unchanged();
            self.refuse_superseded()?;
            let told = self.tell(asked).map_err(|error| failed(&error))?;
            let (told, bytes) = told.ok_or_else(|| refuse(StatusCode::CONFLICT))?;
            let waited = match told {
                Told::Nothing { .. } => tokio::time::timeout_at(end, grown.changed()).await,
                _ => return Ok([told.encode(), bytes].concat()),
            };
            if !matches!(waited, Ok(Ok(()))) {
                return Ok(told.encode());
            }
        }
    }

    /// Tells the changes that there are now; `None` if another process told what the caller has
    /// heard.
    pub(crate) fn tell(&self, asked: &Asked) -> Result<Option<(Told, Vec<u8>)>, PackError> {
        let Asked { blob, from, .. } = *asked;
        if let Some(some) = self.spool.entries(blob, from, FEED_BYTES_MAX) {
            if !self.ends.has(&self.spool, asked)? {
                return Ok(None);
            }
            let behind = some.behind;
            if some.bytes.is_empty() && !some.is_whole {
                return Ok(Some((Told::Nothing { blob }, Vec::new())));
            }
            let told = Told::Entries { blob, from, is_whole: some.is_whole, behind };
            return Ok(Some((told, some.bytes)));
        }
        if from > 0 && self.spool.waits(blob) {
            // It has less than that.
            return Ok(None);
        }
        let row = self.index.blob(BlobId { worker: self.worker, seq: blob })?;
        let told = row.map_or(Told::Nothing { blob }, |row| Told::Uploaded { blob, row });
        Ok(Some((told, Vec::new())))
    }

    /// Bytes of the bodies in a blob that waits, or in one of its bundles.
    pub(crate) async fn body(
        &self,
        blob: u64,
        lot: Lot,
        range: Range<u64>,
    ) -> Result<Vec<u8>, Refusal> {
        let Range { start: from, end: to } = range;
        if from >= to || to - from > PACKED_BYTES_MAX {
            return Err(refuse(StatusCode::BAD_REQUEST));
        }
        let given = if bugs::planted(Bug::BundleNotTold) { Lot::SHARED } else { lot };
        let Some(file) = self.spool.file(blob, given) else {
            return Err(self.not_waiting(blob, lot).unwrap_or_else(|error| failed(&error)));
        };
        // The semaphore is never closed.
        let _room = self.bodies.acquire().await;
        let read = blocking::run(move || {
            let mut bytes = vec![0; (to - from) as usize];
            let read = file.read_at(from, &mut bytes)?;
            Ok::<_, PackError>((read == bytes.len()).then_some(bytes))
        });
        match read.await.and_then(|read| read) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(refuse(StatusCode::RANGE_NOT_SATISFIABLE)),
            Err(error) => Err(failed(&error)),
        }
    }

    /// The reason why there is no file of a lot: it is uploaded, or there never was one.
    fn not_waiting(&self, blob: u64, lot: Lot) -> Result<Refusal, PackError> {
        let row = self.index.blob(BlobId { worker: self.worker, seq: blob })?;
        // The row of a blob may be gone before its bundles.
        let is_uploaded = row.is_some() || blob <= *self.spool.uploaded().borrow();
        let within = lot.within(BlobId { worker: self.worker, seq: blob });
        Ok(match (within, row) {
            (Within::Blob(_), Some(row)) => (StatusCode::GONE, encode(&row)),
            (Within::Own(bundle), _) if is_uploaded => match self.index.bundle_process(bundle)? {
                None | Some(ProcessId::UNNUMBERED) => refuse(StatusCode::GONE),
                Some(process) => (StatusCode::GONE, encode(&process)),
            },
            (_, _) => refuse(StatusCode::NOT_FOUND),
        })
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn refuse(status: StatusCode) -> Refusal {
    (status, Vec::new())
}

fn failed(error: &PackError) -> Refusal {
    tracing::error!(%error, "another worker could not be answered");
    refuse(StatusCode::INTERNAL_SERVER_ERROR)
}

fn number_of(query: &str, name: &str) -> Option<u64> {
    let values = query.split('&').filter_map(|pair| pair.split_once('='));
    values.into_iter().find(|(of, _)| *of == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use larder_env::SimDisk;
    use larder_kv::SimKv;

    use super::*;
    use crate::format::rows::BlobRow;
    use crate::ids::OwnId;
    use crate::read::Held;

    #[tokio::test]
    async fn a_bundle_is_said_to_be_uploaded_also_when_its_blob_is_gone() {
        let (worker, row) = (WorkerId(3), BlobRow { bytes: 9, ..BlobRow::NONE });
        let spool = Spool::new(SimDisk::new(1, 1 << 20), worker).unwrap();
        spool.start(4);
        let index = Index::over(Box::new(SimKv::default())).unwrap().0;
        index.add_blob(BlobId { worker, seq: 4 }, &row, None).unwrap();
        let handed = Arc::new(Handed::new(Arc::default()));
        let secret = Secret::known(b"secret");
        let feed = Feed::new(worker, secret, Arc::new(spool), Arc::new(index), handed);
        for (seq, nth, expected) in [
            (4, 0, Some(Within::Blob(BlobId { worker, seq: 4 }))),
            (4, 1, Some(Within::Own(OwnId { worker, run: 0, number: 4 << 8 | 1 }))),
            (3, 2, Some(Within::Own(OwnId { worker, run: 0, number: 3 << 8 | 2 }))),
            (3, 0, None),
            (5, 1, None),
        ] {
            let (lot, range) = (Lot::numbered(nth).unwrap(), 0..5);
            let (status, body) = feed.body(seq, lot, range.clone()).await.unwrap_err();
            let held = Held::read((BlobId { worker, seq }, lot), &range, (status, body.into()));
            let named = held.ok().map(|held| match held {
                Held::Uploaded(name) => name,
                Held::Bytes(_) => panic!("nothing waits"),
            });
            let expected = expected.map(|within| match within {
                Within::Blob(id) => row.name(id).path(),
                Within::Own(own) => own.path(),
            });
            assert_eq!(named, expected, "blob {seq}, lot {nth}");
        }
    }

    #[test]
    fn numbers_are_found_by_their_names() {
        let query = "worker=18446744073709551615&blob=7&from=x";
        assert_eq!(number_of(query, "worker"), Some(u64::MAX));
        assert_eq!(number_of(query, "blob"), Some(7));
        assert_eq!(number_of(query, "from"), None);
        assert_eq!(number_of(query, "lob"), None);
        assert_eq!(number_of("", "blob"), None);
    }
}
