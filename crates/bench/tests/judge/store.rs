//! A small S3 look-alike in memory that can be told to lie.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// The ways in which the store lies, each time the request asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// It does not.
    None,
    /// Reads have one bit flipped.
    FlippedBit,
    /// Reads lack their last byte.
    Short,
    /// Reads give the object that was put last, whatever was asked for.
    Other,
    /// Puts are acknowledged and forgotten.
    LostPuts,
    /// Deletes are acknowledged and not made.
    KeptDeletes,
    /// Every tenth request is refused.
    Refusals,
    /// Every tenth connection breaks in the middle of an answer.
    Breaks,
    /// Lists lack a key.
    GappedLists,
    /// After [`REQUESTS_BEFORE_END`] the store is gone.
    End,
}

/// More than a small replay's preparation makes, and fewer than all of it.
const REQUESTS_BEFORE_END: u64 = 200;

/// The store, which serves until the runtime it was started on ends.
pub struct Store {
    pub endpoint: String,
    objects: Mutex<BTreeMap<String, Bytes>>,
    lie: Lie,
    requests: AtomicU64,
    ended: Notify,
}

impl Store {
    pub async fn start(lie: Lie) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let store = Arc::new(Self {
            endpoint: format!("http://{}", listener.local_addr().unwrap()),
            objects: Mutex::default(),
            lie,
            requests: AtomicU64::new(0),
            ended: Notify::new(),
        });
        let serving = Arc::clone(&store);
        tokio::spawn(async move {
            loop {
                let stream = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap().0,
                    () = serving.ended.notified() => return,
                };
                let store = Arc::clone(&serving);
                tokio::spawn(async move {
                    let service = service_fn(|request| store.answer(request));
                    let _ =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        store
    }

    /// Keys with their bytes.
    pub fn sizes(&self) -> BTreeMap<String, usize> {
        let objects = self.objects.lock().unwrap();
        objects.iter().map(|(key, bytes)| (key.clone(), bytes.len())).collect()
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let lie = self.lie;
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        if lie == Lie::End && before >= REQUESTS_BEFORE_END {
            self.ended.notify_one();
            return Err("gone on purpose".into());
        }
        let tenth = before % 10 == 9;
        if tenth && lie == Lie::Breaks {
            return Err("broken on purpose".into());
        }
        if tenth && lie == Lie::Refusals {
            return Ok(reply(503, "<Error><Code>SlowDown</Code></Error>"));
        }
        let path = head.uri.path().trim_start_matches('/');
        let query = head.uri.query().unwrap_or_default();
        let mut objects = self.objects.lock().unwrap();
        Ok(match (head.method, path.split_once('/')) {
            (Method::PUT, None) => reply(200, ""),
            (Method::GET, None) => reply(200, list(&objects, query, lie)),
            (Method::PUT, Some((_, key))) => {
                if lie != Lie::LostPuts {
                    objects.insert(key.to_owned(), body);
                }
                reply(200, "")
            }
            (Method::DELETE, Some((_, key))) => {
                if lie != Lie::KeptDeletes {
                    objects.remove(key);
                }
                reply(204, "")
            }
            (_, Some((_, key))) => match objects.get(key) {
                Some(bytes) => reply(200, read(bytes, &objects, lie)),
                None => reply(404, "<Error><Code>NoSuchKey</Code></Error>"),
            },
            _ => reply(405, ""),
        })
    }
}

fn read(bytes: &Bytes, objects: &BTreeMap<String, Bytes>, lie: Lie) -> Bytes {
    match lie {
        Lie::FlippedBit => {
            let mut bytes = bytes.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            bytes.into()
        }
        Lie::Short => bytes.slice(..bytes.len() - 1),
        Lie::Other => objects.values().next_back().cloned().unwrap_or_default(),
        _ => bytes.clone(),
    }
}

fn list(objects: &BTreeMap<String, Bytes>, query: &str, lie: Lie) -> String {
    let parameter = |name: &str| {
        query
            .split('&')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
            .unwrap_or_default()
            .replace("%2F", "/")
    };
    let (prefix, after) = (parameter("prefix"), parameter("start-after"));
    let max: usize = parameter("max-keys").parse().unwrap();
    let keys = objects.keys().filter(|key| key.starts_with(&prefix) && **key > after);
    let skipped = usize::from(lie == Lie::GappedLists);
    keys.skip(skipped)
        .take(max)
        .map(|key| format!("<Contents><Key>{key}</Key></Contents>"))
        .collect()
}

fn reply(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}
