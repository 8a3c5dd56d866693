//! The questions of MinIO's client beyond S3: the state, and metrics.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64_simd::URL_SAFE_NO_PAD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use larder_s3::{GatewayOptions, ServerHooks, ServerOptions};
use sha2::Sha512;

use crate::client::{ACCESS, SECRET, Server, Sign};

const INFO: &str = "/minio/admin/v3/info";
const METRICS: &str = "/minio/v2/metrics/cluster";

struct Store;

impl ServerHooks for Store {
    async fn status(&self) -> Option<Bytes> {
        Some(Bytes::from_static(b"{}"))
    }

    fn minio_info(&self, status: &[u8]) -> Option<Bytes> {
        (status == b"{}").then(|| Bytes::from_static(b"{\"mode\":\"online\"}"))
    }

    fn metrics(&self, headers: &HeaderMap) -> Option<(&'static str, String)> {
        let kind = if headers.contains_key("accept") { "text/open" } else { "text/plain" };
        // A text of metrics is no XML.
        Some((kind, "up 1\r\n".to_owned()))
    }
}

async fn server() -> Server {
    let (options, face) = (ServerOptions::default(), GatewayOptions::default());
    Server::with(options, Arc::new(Store), face).await
}

/// A token for the access key that is good for some seconds.
fn token(access: &str, secret: &str, expires_s: i64) -> String {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    let claims = format!(r#"{{"iss":"prometheus","sub":"{access}","exp":{}}}"#, now_s + expires_s);
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode_to_string(bytes);
    let text =
        format!("{}.{}", encode(br#"{"alg":"HS512","typ":"JWT"}"#), encode(claims.as_bytes()));
    let mut mac = Hmac::<Sha512>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    format!("Bearer {text}.{}", encode(&mac.finalize().into_bytes()))
}

#[tokio::test]
async fn the_state_is_told_as_minios_client_reads_it() {
    let server = server().await;
    let path = format!("{INFO}?metrics=false");
    server.ask("GET", &path).sign(Sign::Not).send().await.refused(403, "AccessDenied");
    let wrong = server.ask("GET", &path).keys(ACCESS, "wrong-secret").send().await;
    wrong.refused(403, "SignatureDoesNotMatch");
    let answer = server.get(&path).await.expect(200);
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.text(), "{\"mode\":\"online\"}");
    server.put(INFO, "").await.refused(405, "MethodNotAllowed");
    // One that shows something else is a store without a state.
    let other = Server::start().await;
    other.get(INFO).await.refused(501, "NotImplemented");
}

#[tokio::test]
async fn metrics_require_a_token_signed_by_root() {
    let server = server().await;
    let ask = |value: &str| {
        server.ask("GET", METRICS).sign(Sign::Not).unsigned("authorization", value).send()
    };
    let answer = ask(&token(ACCESS, SECRET, 60)).await.expect(200);
    assert_eq!(answer.headers["content-type"], "text/plain");
    assert_eq!(answer.text(), "up 1\r\n");
    for refused in [
        token(ACCESS, SECRET, -1),
        token(ACCESS, "another-secret", 60),
        token("somebody", SECRET, 60),
        "Bearer".to_owned(),
        "Bearer a.b.c".to_owned(),
        token(ACCESS, SECRET, 60).replace("Bearer", "Basic"),
    ] {
        ask(&refused).await.refused(403, "AccessDenied");
    }
    server.ask("GET", METRICS).sign(Sign::Not).send().await.refused(403, "AccessDenied");
    // A signature of S3 shows objects, and a token shows no object.
    server.get(METRICS).await.refused(403, "AccessDenied");
    server.put("/bkt", "").await.expect(200);
    let object = server.ask("GET", "/bkt/a").sign(Sign::Not);
    let object = object.unsigned("authorization", &token(ACCESS, SECRET, 60)).send().await;
    assert_eq!(object.status, 400, "{}", object.text());
}

#[tokio::test]
async fn in_a_bucket_of_that_name_the_paths_are_keys() {
    let server = server().await;
    server.put("/minio", "").await.expect(200);
    for path in [INFO, METRICS] {
        server.put(path, "a key").await.expect(200);
        assert_eq!(server.get(path).await.expect(200).text(), "a key");
    }
}
