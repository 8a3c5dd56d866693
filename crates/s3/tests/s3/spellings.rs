//! Requests that are spelled otherwise than they were signed: they do what was signed.

use crate::client::{Form, Server, Sign};

const PRESIGNED: Sign = Sign::Query { expires_s: 100 };

/// The address with a part of it spelled in another way.
fn spelled(from: &'static str, to: &'static str) -> impl FnOnce(&str) -> String {
    move |address| {
        assert!(address.contains(from), "{address} has {from}");
        address.replacen(from, to, 1)
    }
}

#[tokio::test]
async fn a_presigned_copy_stays_a_copy() {
    let server = Server::bucket().await;
    server.put("/bkt/src", "source").await.expect(200);
    for (from, to) in
        [("X-Amz-Signature=", "X-Amz-Signatur%65="), ("x-amz-copy-source=", "%78-amz-copy-source=")]
    {
        let copy = server.ask("PUT", "/bkt/dst?x-amz-copy-source=%2Fbkt%2Fsrc").sign(PRESIGNED);
        copy.body("other").send_spelled(spelled(from, to)).await.expect(200);
        assert_eq!(server.get("/bkt/dst").await.text(), "source", "{to}");
    }
}

#[tokio::test]
async fn presigned_metadata_is_kept() {
    let server = Server::bucket().await;
    let put = server.ask("PUT", "/bkt/k?x-amz-meta-a=1").sign(PRESIGNED).body("hello");
    put.send_spelled(spelled("x-amz-meta-a=", "x-amz-met%61-a=")).await.expect(200);
    assert_eq!(server.head("/bkt/k").await.header("x-amz-meta-a"), "1");
}

#[tokio::test]
async fn a_signed_digest_holds_for_the_body() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "hello").await.expect(200);
    let body = "<Delete><Object><Key>k</Key></Object></Delete>";
    let delete = server.ask("POST", "/bkt?delete=").sign(PRESIGNED).body(body);
    let delete = delete.header("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==");
    let spelled = spelled("delete=", "delet%65=");
    delete.send_spelled(spelled).await.refused(400, "BadDigest");
    server.get("/bkt/k").await.expect(200);
}

#[tokio::test]
async fn a_sub_resource_that_is_not_there_is_refused() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "hello").await.expect(200);
    for (from, to) in [("encryption", "encryptio%6e"), ("/bkt/k", "/bkt%2Fk")] {
        let put = server.ask("PUT", "/bkt/k?encryption=").body("<Xml/>");
        put.send_spelled(spelled(from, to)).await.refused(501, "NotImplemented");
        assert_eq!(server.get("/bkt/k").await.text(), "hello");
    }
}

#[tokio::test]
async fn headers_beside_a_form_ask_for_nothing() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "one").await.expect(200);
    let form = Form::of(&server, "bkt", "k").file(b"two").bytes();
    let post = server.ask("POST", "/bkt").sign(Sign::Not).body(form);
    let post = post.header("content-type", "multipart/form-data; boundary=edge");
    post.header("x-larder-append", "record").send().await.expect(204);
    assert_eq!(server.get("/bkt/k").await.text(), "two", "it is a put, as it was signed");
}
