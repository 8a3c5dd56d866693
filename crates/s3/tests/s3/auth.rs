//! The clients that are let in.

use std::sync::Arc;

use larder_s3::{GatewayOptions, ServerOptions};

use crate::client::{ACCESS, SECRET, Server, Sign, sign_v2};

#[tokio::test]
async fn a_request_without_a_signature_is_denied() {
    let server = Server::bucket().await;
    for path in ["/", "/bkt", "/bkt/k"] {
        server.ask("GET", path).sign(Sign::Not).send().await.refused(403, "AccessDenied");
    }
}

#[tokio::test]
async fn wrong_keys_are_told_apart() {
    let server = Server::bucket().await;
    let ask = |access, secret| server.ask("GET", "/bkt").keys(access, secret).send();
    ask("NOBODY", SECRET).await.refused(403, "InvalidAccessKeyId");
    let refused = ask(ACCESS, "another-secret").await.refused(403, "SignatureDoesNotMatch");
    assert_eq!(refused.tag("AWSAccessKeyId").as_deref(), Some(ACCESS));
    assert!(refused.tag("StringToSign").unwrap().starts_with("AWS4-HMAC-SHA256\n"));
    assert!(refused.tag("CanonicalRequest").unwrap().starts_with("GET\n/bkt"));
    assert_eq!(refused.tag("SignatureProvided").unwrap().len(), 64);
}

#[tokio::test]
async fn a_signature_for_an_unknown_region_is_refused_with_the_right_one() {
    let server = Server::bucket().await;
    let scope = format!("{ACCESS}/20260101/US/s3/aws4_request");
    let signed = format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=00");
    let asked = server.ask("GET", "/bkt").sign(Sign::Not).unsigned("authorization", &signed);
    let refused = asked.send().await.refused(400, "AuthorizationHeaderMalformed");
    assert_eq!(refused.header("x-amz-bucket-region"), "us-east-1");
    assert!(refused.text().contains("<Region>us-east-1</Region>"), "{}", refused.text());
}

#[tokio::test]
async fn a_skewed_clock_is_reported() {
    let server = Server::bucket().await;
    server.ask("GET", "/bkt").in_past(800).send().await.expect(200);
    server.ask("GET", "/bkt").in_past(1000).send().await.refused(403, "RequestTimeTooSkewed");
    server.ask("GET", "/bkt").in_future(1000).send().await.refused(403, "RequestTimeTooSkewed");
}

#[tokio::test]
async fn a_presigned_request_works_until_it_expires() {
    let server = Server::bucket().await;
    let sign = Sign::Query { expires_s: 100 };
    let put = server.ask("PUT", "/bkt/k").body("hello").sign(sign);
    put.clone().send().await.expect(200);
    let got = server.ask("GET", "/bkt/k?response-content-type=text%2Fx").sign(sign).send().await;
    let got = got.expect(200);
    assert_eq!((got.text().as_str(), got.header("content-type")), ("hello", "text/x"));
    put.clone().in_past(90).send().await.expect(200);
    let expired = put.clone().in_past(110).send().await.refused(403, "AccessDenied");
    assert_eq!(expired.tag("X-Amz-Expires").as_deref(), Some("100"));
    assert!(expired.tag("ServerTime").is_some() && expired.tag("Expires").is_some());
    let early = put.clone().in_future(1000).send().await.refused(403, "AccessDenied");
    assert_eq!(early.tag("Message").as_deref(), Some("Request is not valid yet"));
    put.keys(ACCESS, "another-secret").send().await.refused(403, "SignatureDoesNotMatch");
}

#[tokio::test]
async fn version_2_is_taken_in_a_query_if_it_is_switched_on_and_never_in_a_header() {
    let face = GatewayOptions { version_2: true, ..GatewayOptions::default() };
    let server = Server::with(ServerOptions::default(), Arc::new(()), face).await;
    server.put("/bkt", "").await.expect(200);
    server.put("/bkt/k", "hello").await.expect(200);
    let ask = |expires: u64, secret: &str| {
        let signature = sign_v2(secret, &format!("GET\n\n\n{expires}\n/bkt/k"));
        let signature = urlencoding::encode(&signature).into_owned();
        let path =
            format!("/bkt/k?AWSAccessKeyId={ACCESS}&Expires={expires}&Signature={signature}");
        server.ask("GET", &path).sign(Sign::Not).send()
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    ask(now + 100, SECRET).await.expect(200);
    ask(now - 1, SECRET).await.refused(403, "AccessDenied");
    // Parameters and headers that it signs.
    let text =
        format!("GET\n\n\n{}\nx-amz-meta-a:1,2\n/bkt/k?response-content-type=text/x", now + 100);
    let signature = sign_v2(SECRET, &text);
    let path = format!(
        "/bkt/k?response-content-type=text%2Fx&AWSAccessKeyId={ACCESS}&Expires={}&Signature={}",
        now + 100,
        urlencoding::encode(&signature)
    );
    let signed = server.ask("GET", &path).sign(Sign::Not);
    let signed = signed.header("x-amz-meta-a", "1").header("x-amz-meta-a", "2");
    assert_eq!(signed.clone().send().await.expect(200).header("content-type"), "text/x");
    signed.header("x-amz-meta-a", "3").send().await.refused(403, "SignatureDoesNotMatch");
    ask(now + 100, "another-secret").await.refused(403, "SignatureDoesNotMatch");
    let header = server.ask("GET", "/bkt/k").sign(Sign::Not);
    let header = header.header("authorization", format!("AWS {ACCESS}:AAAA")).send().await;
    header.refused(400, "InvalidRequest");
}

#[tokio::test]
async fn version_2_is_refused_in_a_query_by_default() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "hello").await.expect(200);
    let signature = sign_v2(SECRET, "GET\n\n\n4000000000\n/bkt/k");
    let signature = urlencoding::encode(&signature).into_owned();
    let path = format!("/bkt/k?AWSAccessKeyId={ACCESS}&Expires=4000000000&Signature={signature}");
    let refused = server.ask("GET", &path).sign(Sign::Not).send().await;
    assert!(refused.refused(400, "InvalidRequest").text().contains("s3v4"));
}

#[tokio::test]
async fn an_unsigned_header_that_s3_acts_upon_is_refused() {
    let server = Server::bucket().await;
    let sign = Sign::Query { expires_s: 100 };
    let put = server.ask("PUT", "/bkt/k").body("hello").sign(sign);
    put.unsigned("x-amz-meta-a", "1").send().await.refused(403, "AccessDenied");
}

#[tokio::test]
async fn signed_chunks_are_verified() {
    let server = Server::bucket().await;
    let data = vec![7u8; 200_000];
    let put = server.ask("PUT", "/bkt/k").body(data.clone());
    put.clone().signed_chunks(65_536, false).send().await.expect(200);
    let got = server.get("/bkt/k").await.expect(200);
    assert_eq!(got.body, data);
    assert_eq!(got.header("content-encoding"), "");
    put.signed_chunks(65_536, true).send().await.refused(403, "SignatureDoesNotMatch");
}

#[tokio::test]
async fn a_body_that_is_not_the_signed_one_is_not_stored() {
    let server = Server::bucket().await;
    let put = server.ask("PUT", "/bkt/k").body("hello").payload(&"0".repeat(64));
    put.send().await.refused(400, "XAmzContentSHA256Mismatch");
    server.head("/bkt/k").await.expect(404);
}

#[tokio::test]
async fn an_unsigned_payload_is_taken_as_it_is() {
    let server = Server::bucket().await;
    let put = server.ask("PUT", "/bkt/k").body("hello").payload("UNSIGNED-PAYLOAD");
    put.send().await.expect(200);
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "hello");
}

#[tokio::test]
async fn a_bucket_may_stand_in_the_host() {
    let face = larder_s3::GatewayOptions {
        domains: vec!["s3.test".into()],
        ..larder_s3::GatewayOptions::default()
    };
    let options = larder_s3::ServerOptions::default();
    let server = Server::with(options, std::sync::Arc::new(()), face).await;
    server.put("/bkt", "").await.expect(200);
    let below = |method, path| server.ask(method, path).header("host", "bkt.s3.test:9000");
    below("PUT", "/healthz").body("a key").send().await.expect(200);
    assert_eq!(below("GET", "/healthz").send().await.expect(200).text(), "a key");
    assert_eq!(server.get("/bkt/healthz").await.expect(200).text(), "a key");
    assert_eq!(below("GET", "/").send().await.expect(200).tags("Key"), ["healthz"]);
    let top = server.ask("GET", "/bkt").header("host", "s3.test").send().await.expect(200);
    assert_eq!(top.tags("Key"), ["healthz"]);
}

#[tokio::test]
async fn another_scheme_than_that_of_the_signature_is_refused() {
    let server = Server::bucket().await;
    let ask = |rewrite| server.ask("GET", "/bkt").rewrite(rewrite).send();
    ask(|header| header.replace("SHA256", "SHA1")).await.refused(400, "InvalidRequest");
    ask(|header| header.replace("AWS4-HMAC-SHA256", "Bearer"))
        .await
        .refused(400, "InvalidArgument");
    ask(|header| header.replace("AWS4-HMAC-SHA256", "AWS2-HMAC-SHA1"))
        .await
        .refused(400, "InvalidArgument");
    ask(|_| "Basic dXNlcjpwYXNz".into()).await.refused(400, "InvalidArgument");
}

#[tokio::test]
async fn a_malformed_authorization_is_refused() {
    let server = Server::bucket().await;
    let ask = |rewrite| server.ask("GET", "/bkt").rewrite(rewrite).send();
    let malformed: [fn(String) -> String; 6] = [
        |header| header.replace("Credential=", "Credentials="),
        |header| header.replace("/us-east-1/", "/"),
        |header| header.replace("aws4_request", "aws4"),
        |header| header.replace(", Signature=", ", Sig="),
        |header| header.replace("SignedHeaders=", "Headers="),
        |header| header.split_once(' ').map_or(String::new(), |(scheme, _)| scheme.to_owned()),
    ];
    for (index, rewrite) in malformed.into_iter().enumerate() {
        let refused = ask(rewrite).await.expect(400);
        let code = refused.tag("Code");
        assert_eq!(code.as_deref(), Some("AuthorizationHeaderMalformed"), "case {index}");
    }
}

#[tokio::test]
async fn a_malformed_presigned_query_is_refused() {
    let server = Server::bucket().await;
    let good = [
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", "AKLARDERTEST%2F20260101%2Fus-east-1%2Fs3%2Faws4_request"),
        ("X-Amz-Date", "20260101T000000Z"),
        ("X-Amz-Expires", "100"),
        ("X-Amz-SignedHeaders", "host"),
        ("X-Amz-Signature", "00"),
    ];
    for (name, bad) in [
        ("X-Amz-Algorithm", Some("AWS4-HMAC-SHA1")),
        ("X-Amz-Algorithm", None),
        ("X-Amz-Credential", Some("AKLARDERTEST%2F20260101")),
        ("X-Amz-Credential", None),
        ("X-Amz-Date", Some("yesterday")),
        ("X-Amz-Date", None),
        ("X-Amz-Expires", None),
        ("X-Amz-Signature", None),
    ] {
        let parameters = good.iter().filter_map(|(known, value)| match (*known == name, bad) {
            (true, bad) => bad.map(|bad| format!("{known}={bad}")),
            (false, _) => Some(format!("{known}={value}")),
        });
        let path = format!("/bkt?{}", parameters.collect::<Vec<_>>().join("&"));
        let refused = server.ask("GET", &path).sign(Sign::Not).send().await.expect(400);
        let code = refused.tag("Code");
        assert_eq!(code.as_deref(), Some("AuthorizationQueryParametersError"), "{name} {bad:?}");
    }
}
