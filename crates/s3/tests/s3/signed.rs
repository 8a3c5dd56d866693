//! Requests that hold a good signature and more than was signed: they are refused, or do what was signed.

use std::sync::Arc;

use larder_s3::{GatewayOptions, ServerOptions};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{ACCESS, Answer, Ask, Form, SECRET, Server, Sign, sign_v2};
use crate::wire::{head, read_answer};

const PRESIGNED: Sign = Sign::Query { expires_s: 100 };

/// A server with an object that the holder of a presigned URL for `/bkt/k` must not see.
async fn with_a_secret(face: GatewayOptions) -> Server {
    let server = Server::with(ServerOptions::default(), Arc::new(()), face).await;
    for (path, body) in [("/bkt", ""), ("/secret", ""), ("/secret/obj", "confidential")] {
        server.put(path, body).await.expect(200);
    }
    server
}

#[tokio::test]
async fn a_presigned_put_beside_an_authorization_reads_no_other_object() {
    let server = with_a_secret(GatewayOptions::default()).await;
    let scope = format!("{ACCESS}/20260101/us-east-1/s3/aws4_request");
    let names = "SignedHeaders=host;x-amz-copy-source";
    let shaped = format!("AWS4-HMAC-SHA256 Credential={scope}, {names}, Signature=00");
    for authorization in [shaped.as_str(), "x"] {
        let put = server.ask("PUT", "/bkt/k").sign(PRESIGNED).body("own");
        let put = put.unsigned("authorization", authorization);
        let answer = put.unsigned("x-amz-copy-source", "/secret/obj").send().await;
        answer.refused(400, "InvalidArgument");
        server.head("/bkt/k").await.expect(404);
    }
}

#[tokio::test]
async fn a_presigned_put_that_is_spelled_otherwise_reads_no_other_object() {
    let server = with_a_secret(GatewayOptions::default()).await;
    for (from, to) in [
        ("X-Amz-SignedHeaders=", "X%2DAmz-SignedHeaders="),
        ("X-Amz-Signature=", "X%2DAmz%2DSignature="),
        ("X-Amz-SignedHeaders=host", "X-Amz-SignedHeaders=%68ost"),
    ] {
        let put = server.ask("PUT", "/bkt/k").sign(PRESIGNED).body("own");
        let spell = |address: &str| {
            assert!(address.contains(from), "{address} has {from}");
            address.replacen(from, to, 1)
        };
        let copy = put.clone().unsigned("x-amz-copy-source", "/secret/obj");
        copy.send_spelled(spell).await.refused(403, "AccessDenied");
        server.head("/bkt/k").await.expect(404);
        put.send_spelled(spell).await.expect(200);
        assert_eq!(server.get("/bkt/k").await.text(), "own", "{to}");
        server.delete("/bkt/k").await.expect(204);
    }
}

#[tokio::test]
async fn a_form_beside_another_signature_is_refused() {
    let server = Server::bucket().await;
    let post = async |path: &str, authorization: &str| -> Answer {
        let form = Form::of(&server, "bkt", "k").file(b"own").bytes();
        let post = server.ask("POST", path).sign(Sign::Not).body(form);
        let post = post.header("content-type", "multipart/form-data; boundary=edge");
        let authorized = post.clone().unsigned("authorization", authorization);
        if authorization.is_empty() { post.send().await } else { authorized.send().await }
    };
    for path in ["/bkt?X-Amz-Signature=00", "/bkt?X-Amz-Signatur%65=00", "/bkt?Signature=00"] {
        post(path, "").await.refused(400, "InvalidArgument");
    }
    post("/bkt", "AWS4-HMAC-SHA256").await.refused(400, "InvalidArgument");
    server.head("/bkt/k").await.expect(404);
    post("/bkt", "").await.expect(204);
}

/// A form's signature is for an upload by its policy, whatever type and address the form is sent with.
#[tokio::test]
async fn a_form_is_an_upload_and_nothing_else() {
    let server = Server::bucket().await;
    let xml = "multipart/form-data+xml; boundary=edge";
    let form = "multipart/form-data; boundary=edge";
    let malformed = "multipart/form-data; x=\"; boundary=edge";
    for (kind, path) in [
        (xml, "/bkt/k?uploads"),
        (form, "/bkt/k?uploads"),
        (form, "/bkt?delete"),
        (xml, "/bkt?delete"),
        (malformed, "/bkt/k?uploads"),
        (malformed, "/bkt?delete"),
        (malformed, "/bkt"),
    ] {
        let form = Form::of(&server, "bkt", "k").file(b"own").bytes();
        let post = server.ask("POST", path).sign(Sign::Not).body(form);
        let status = post.header("content-type", kind).send().await.status.as_u16();
        assert!(
            status >= 400 || kind != malformed && path == "/bkt?delete",
            "{kind} {path}: {status}"
        );
    }
    let uploads = server.ask("GET", "/bkt?uploads").send().await.expect(200);
    assert!(uploads.tags("UploadId").is_empty(), "{}", uploads.text());
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "own", "one was an upload");
}

#[tokio::test]
async fn a_request_that_is_signed_twice_is_refused() {
    let face = GatewayOptions { version_2: true, ..GatewayOptions::default() };
    let server = with_a_secret(face).await;
    let signature = sign_v2(SECRET, "PUT\n\n\n4000000000\n/bkt/k");
    let signature = urlencoding::encode(&signature).into_owned();
    let signed = format!("AWSAccessKeyId={ACCESS}&Expires=4000000000&Signature={signature}");
    // Of a presigned URL of version 4 parameters count as headers: version 2 does not sign them.
    let copy = "X-Amz-Signature=00&x-amz-copy-source=%2Fsecret%2Fobj";
    let put = server.ask("PUT", &format!("/bkt/k?{signed}&{copy}")).sign(Sign::Not);
    put.send().await.refused(400, "InvalidArgument");
    server.head("/bkt/k").await.expect(404);
}

#[tokio::test]
async fn a_url_of_version_2_does_what_was_signed() {
    let face = GatewayOptions { version_2: true, ..GatewayOptions::default() };
    let server = with_a_secret(face).await;
    server.put("/bkt/k", "before").await.expect(200);
    let signature = sign_v2(SECRET, "PUT\n\n\n4000000000\n/bkt/k");
    let signature = urlencoding::encode(&signature).into_owned();
    let put = |more: &str| {
        let signed = format!("AWSAccessKeyId={ACCESS}&Expires=4000000000&Signature={signature}");
        server.ask("PUT", &format!("/bkt/k?{signed}{more}")).sign(Sign::Not)
    };
    // A parameter that stands twice falls out of the text that version 2 signs.
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    for twice in ["&tagging&tagging", "&tagging&taggin%67"] {
        put(twice).body(tags).send().await.refused(400, "InvalidArgument");
    }
    let shown = server.get("/bkt/k?tagging").await.expect(200);
    assert!(shown.tags("Key").is_empty(), "{}", shown.text());
    // No name that does not begin with `x-amz-` is signed.
    let append = put("").body("more").header("x-larder-append", "record").send().await;
    append.refused(403, "AccessDenied");
    let listed = put("&X-Amz-SignedHeaders=host%3Bx-larder-append").body("more");
    listed.header("x-larder-append", "record").send().await.refused(403, "AccessDenied");
    // Nobody would take the framing off.
    let framed = put("").body("1\r\na\r\n0\r\n\r\n");
    let framed = framed.header("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    framed.send().await.refused(501, "NotImplemented");
    let typed = put("").body("more").header("content-type", "a").header("content-type", "b");
    typed.send().await.refused(403, "SignatureDoesNotMatch");
    let copy = put("").header("x-amz-copy-source", "/secret/obj").send().await;
    copy.refused(403, "SignatureDoesNotMatch");
    assert_eq!(server.get("/bkt/k").await.text(), "before");
    put("").body("after").send().await.expect(200);
    assert_eq!(server.get("/bkt/k").await.text(), "after");
}

/// The answer to a request with one more header line, which need not be text.
async fn with_line(server: &Server, ask: &Ask, line: &[u8]) -> String {
    let body = ask.sent();
    let head = head(ask, &format!("content-length: {}\r\n", body.len()));
    let (first, rest) = head.split_once("\r\n").unwrap();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = [first.as_bytes(), b"\r\n", line, b"\r\n", rest.as_bytes(), body].concat();
    stream.write_all(&request).await.unwrap();
    read_answer(&mut stream).await.expect("an answer")
}

#[tokio::test]
async fn a_line_that_is_no_text_switches_no_signed_header_off() {
    let server = Server::bucket().await;
    let of_hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let put = |body: &'static str| {
        let put = server.ask("PUT", "/bkt/k").sign(PRESIGNED).body(body);
        put.header("x-amz-content-sha256", of_hello)
    };
    for line in [&b"x-amz-content-sha256: \xff"[..], b"x-amz-content-sha256: UNSIGNED-PAYLOAD"] {
        let answer = with_line(&server, &put("evil"), line).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    put("evil").send().await.refused(400, "XAmzContentSHA256Mismatch");
    // Somebody else than the signer has it listed.
    let listed = server.ask("PUT", "/bkt/k").body("evil").rewrite(|header| {
        header.replacen("SignedHeaders=host;", "SignedHeaders=host;x-amz-meta-a;", 1)
    });
    let answer = with_line(&server, &listed, b"x-amz-meta-a: \xff").await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("SignatureDoesNotMatch"));
    server.head("/bkt/k").await.expect(404);
    put("hello").send().await.expect(200);
}

#[tokio::test]
async fn a_presigned_list_is_not_widened_to_other_regions() {
    let server = Server::bucket().await;
    let list = server.ask("GET", "/bkt?list-type=2").sign(PRESIGNED);
    list.clone().send().await.expect(200);
    let widened = list.unsigned("x-larder-list-regions", "all").send().await;
    widened.refused(403, "AccessDenied");
}
