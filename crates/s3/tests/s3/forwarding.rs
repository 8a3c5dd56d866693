//! Requests of uploads that another server has begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use larder_objects::ObjectError;
use larder_s3::{GatewayOptions, Inbound, ServerOptions, UploadForwarder, listen};
use larder_types::{OpId, OpSeq, PgId, UploadId, View};

use crate::client::{ACCESS, SECRET, Server, Sign};
use crate::strangers::put_in_flight;

/// Has all uploads, and never answers.
#[derive(Default)]
struct Silent {
    asked: AtomicUsize,
}

impl UploadForwarder for Silent {
    fn have(&self, _upload: UploadId) -> bool {
        true
    }

    fn hand_on(
        &self,
        _upload: UploadId,
        _request: Request<Inbound>,
    ) -> BoxFuture<'_, Result<Response<Incoming>, ObjectError>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let silent = ObjectError::Unavailable { reason: "it is silent".into() };
        async { Err(silent) }.boxed()
    }
}

/// With one turn, which another request has: one that took a turn would be told to slow down.
#[tokio::test]
async fn only_a_verified_request_takes_a_turn_and_is_handed_on() {
    let others = Arc::new(Silent::default());
    let options = ServerOptions { requests_max: 1, waiting_max: 0, ..ServerOptions::default() };
    let listener = listen("127.0.0.1:0").await.unwrap();
    let (face, neighbours) = (GatewayOptions::default(), others.clone());
    let server =
        Server::at(listener, options, Arc::new(()), face, |it| it.with_forwarder(neighbours));
    server.put("/bkt", "").await.expect(200);
    let upload = UploadId { pg: PgId(0), op: OpId { view: View(7), seq: OpSeq(9) } };
    let part = format!("/bkt/k?partNumber=1&uploadId={upload}");
    let ask = |sign| server.ask("PUT", &part).sign(sign).body("hello");
    let query = Sign::Query { expires_s: 100 };
    let busy = put_in_flight(&server).await;
    for (stranger, code) in [
        (ask(Sign::Not), "AccessDenied"),
        (ask(Sign::Header).keys(ACCESS, "another-secret"), "SignatureDoesNotMatch"),
        (ask(Sign::Header).keys("NOBODY", SECRET), "InvalidAccessKeyId"),
        (ask(query).keys(ACCESS, "another-secret"), "SignatureDoesNotMatch"),
        (ask(query).in_past(110), "AccessDenied"),
    ] {
        stranger.send().await.refused(403, code);
    }
    for sign in [Sign::Header, query] {
        ask(sign).send().await.refused(503, "SlowDown");
    }
    assert_eq!(others.asked.load(Ordering::Relaxed), 0);
    drop(busy);
    for (nth, sign) in [Sign::Header, query].into_iter().enumerate() {
        // The turn is given back once the server has seen that the client is gone.
        while others.asked.load(Ordering::Relaxed) == nth {
            ask(sign).send().await.expect(503);
        }
    }
    ask(Sign::Header).signed_chunks(2, false).send().await.expect(503);
    assert_eq!(others.asked.load(Ordering::Relaxed), 3);
}
