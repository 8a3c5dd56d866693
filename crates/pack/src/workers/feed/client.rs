//! Asks other workers.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use larder_objects::ObjectError;
use larder_types::codec::decode;
use parking_lot::Mutex;
use tokio::net::TcpStream;

use super::wire::{BODY, CHANGES, DATE, Heard, PROOF, Secret, Told};
use crate::committer::now_ms;
use crate::entry::{BlobId, WorkerId};
use crate::error::PackError;
use crate::limits::{
    CALL_CONNECT_MAX, CALL_TIME_MAX, FEED_BYTES_MAX, FEED_WAIT_MAX, PACKED_BYTES_MAX,
};
use crate::rows::BlobRow;
use crate::workers::announce::Announcement;

/// Bytes of an answer beside what it is asked for.
const HEAD_BYTES_MAX: usize = 4096;

/// Makes calls. Without a secret it reaches nobody.
#[derive(Default)]
pub(crate) struct Caller {
    pub(crate) secret: Option<Secret>,
}

/// Where bytes of another worker's spool are.
pub(crate) enum Held {
    Bytes(Bytes),
    /// In the bucket by now.
    Uploaded(BlobRow),
}

/// The way to a worker.
pub(crate) struct Link {
    /// What it told last of itself.
    told: Arc<Mutex<Announcement>>,
    caller: Arc<Caller>,
}

impl Link {
    pub(crate) fn new(told: Arc<Mutex<Announcement>>, caller: Arc<Caller>) -> Self {
        Self { told, caller }
    }

    /// Bytes of the bodies of a blob that is not known to be in the bucket.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the worker does not give them: nobody else has them.
    pub(crate) async fn body(&self, id: BlobId, range: Range<u64>) -> Result<Held, ObjectError> {
        let told = self.told.lock().clone();
        let asked = format!(
            "{BODY}?worker={}&blob={}&from={}&to={}",
            id.worker.0, id.seq, range.start, range.end
        );
        let most = PACKED_BYTES_MAX as usize + HEAD_BYTES_MAX;
        let answer = match &told.address {
            Some(address) if told.worker == id.worker => {
                self.caller.call(address, &asked, most, CALL_TIME_MAX).await
            }
            _ => Err("it cannot be reached".to_owned()),
        };
        let reason = match answer {
            Ok((StatusCode::OK, bytes)) if bytes.len() as u64 == range.end - range.start => {
                return Ok(Held::Bytes(bytes));
            }
            Ok((StatusCode::GONE, row)) => match decode::<BlobRow>("a blob's row", &row) {
                Ok(row) => return Ok(Held::Uploaded(row)),
                Err(error) => error.to_string(),
            },
            Ok((status, bytes)) => format!("it answers {status}, with {} bytes", bytes.len()),
            Err(reason) => reason,
        };
        let name = &told.name;
        tracing::warn!(worker = %name, blob = %id, reason, "a body that another worker has not uploaded did not come");
        Err(ObjectError::Unavailable {
            reason: format!("worker {name}, which has not uploaded it yet, does not give it"),
        })
    }
}

impl Caller {
    /// What a worker tells of a blob from a byte of its entries on, and how many bytes wait behind that. Waits a while
    /// if there is nothing.
    pub(crate) async fn changes(
        &self,
        address: &str,
        worker: WorkerId,
        blob: u64,
        from: u64,
    ) -> Result<(Heard, u64), PackError> {
        let asked = format!("{CHANGES}?worker={}&blob={blob}&from={from}", worker.0);
        let most = FEED_BYTES_MAX + HEAD_BYTES_MAX;
        let within = FEED_WAIT_MAX + CALL_TIME_MAX;
        match self.call(address, &asked, most, within).await {
            Ok((StatusCode::OK, answer)) => Told::read(&answer),
            Ok((status, _)) => Err(PackError::Deferred { reason: format!("it answers {status}") }),
            Err(reason) => Err(PackError::Deferred { reason }),
        }
    }

    /// One call on a connection of its own.
    async fn call(
        &self,
        address: &str,
        asked: &str,
        most: usize,
        within: Duration,
    ) -> Result<(StatusCode, Bytes), String> {
        let Some(secret) = &self.secret else { return Err("there is no way to it".to_owned()) };
        let date = now_ms();
        let call = Request::get(asked)
            .header(http::header::HOST, address)
            .header(DATE, date)
            .header(PROOF, secret.prove(asked, date))
            .body(Empty::<Bytes>::new());
        let call = call.map_err(|error| error.to_string())?;
        let stream = tokio::time::timeout(CALL_CONNECT_MAX, TcpStream::connect(address)).await;
        let stream = stream.map_err(|_| "it does not answer".to_owned())?;
        let stream = TokioIo::new(stream.map_err(|error| error.to_string())?);
        let answered = tokio::time::timeout(within, async {
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(stream).await.map_err(|e| e.to_string())?;
            let answer = async {
                let answer = sender.send_request(call).await.map_err(|e| e.to_string())?;
                let status = answer.status();
                let body = Limited::new(answer.into_body(), most).collect().await;
                Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
            };
            // The connection moves only while it is polled.
            tokio::pin!(connection, answer);
            tokio::select! {
                biased;
                answer = &mut answer => answer,
                ended = &mut connection => match ended {
                    // What came before the end is there still.
                    Ok(()) => answer.await,
                    Err(error) => Err(error.to_string()),
                },
            }
        });
        answered.await.unwrap_or_else(|_| Err("it does not answer in time".to_owned()))
    }
}
