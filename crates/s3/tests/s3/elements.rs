//! The words and the elements of errors, and the form of those that clients of other services read.

use crate::client::{Answer, Server, Sign};

/// Asserts that an error has such elements.
#[track_caller]
fn has(answer: Answer, elements: &[(&str, &str)]) -> Answer {
    for (name, text) in elements {
        assert_eq!(answer.tag(name).as_deref(), Some(*text), "{}", answer.text());
    }
    answer
}

#[tokio::test]
async fn an_error_names_what_it_is_about() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "hello").await.expect(200);
    let get = |path: &str| server.ask("GET", path);
    let refused = get("/none/k").send().await.refused(404, "NoSuchBucket");
    has(refused, &[("BucketName", "none"), ("Resource", "/none/k")]);
    let refused = get("/bkt/a%20%26").send().await.refused(404, "NoSuchKey");
    has(refused, &[("Key", "a &amp;")]);
    let gone = "v".repeat(32);
    let refused = get(&format!("/bkt/k?versionId={gone}")).send().await;
    has(refused.refused(404, "NoSuchVersion"), &[("Key", "k"), ("VersionId", &gone)]);
    let refused = get("/bkt/k").header("range", "bytes=50-").send().await;
    let range = [("RangeRequested", "bytes=50-"), ("ActualObjectSize", "5")];
    has(refused.refused(416, "InvalidRange"), &range);
    let refused = get("/bkt/k?partNumber=2").send().await.refused(416, "InvalidPartNumber");
    has(refused, &[("PartNumberRequested", "2"), ("ActualPartCount", "1")]);
    for number in ["0", "-1", "10001", "abc"] {
        let refused = get(&format!("/bkt/k?partNumber={number}")).send().await;
        let argument = [("ArgumentName", "partNumber"), ("ArgumentValue", number)];
        let refused = has(refused.refused(400, "InvalidArgument"), &argument);
        let message = "Part number must be an integer between 1 and 10000, inclusive";
        assert_eq!(refused.tag("Message").as_deref(), Some(message));
    }
    let long = "k".repeat(1025);
    let refused = get(&format!("/bkt/{long}")).send().await.refused(400, "KeyTooLongError");
    has(refused, &[("Size", "1025"), ("MaxSizeAllowed", "1024")]);
}

#[tokio::test]
async fn a_condition_that_does_not_hold_is_named() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "hello").await.expect(200);
    let date = "Wed, 21 Oct 2015 07:28:00 GMT";
    for (method, header, value, condition) in [
        ("GET", "if-match", "\"x\"", "If-Match"),
        ("GET", "if-unmodified-since", date, "If-Unmodified-Since"),
        ("PUT", "if-match", "\"x\"", "If-Match"),
        ("PUT", "if-none-match", "*", "If-None-Match"),
    ] {
        let refused = server.ask(method, "/bkt/k").header(header, value).send().await;
        has(refused.refused(412, "PreconditionFailed"), &[("Condition", condition)]);
    }
    let refused = server.ask("PUT", "/bkt/k").header("if-unmodified-since", date).send().await;
    has(refused.refused(501, "NotImplemented"), &[("Header", "if-unmodified-since")]);
    let post = server.ask("POST", "/bkt").body("x").send().await;
    let form = "Bucket POST must be of the enclosure-type multipart/form-data";
    has(post.refused(412, "PreconditionFailed"), &[("Condition", form)]);
}

#[tokio::test]
async fn a_refused_header_gets_an_s3_error() {
    let server = Server::bucket().await;
    let long = "v".repeat(2048);
    let put = |name: &str, value: &str| server.ask("PUT", "/bkt/k").header(name, value).body("hi");
    for (name, value, message, elements) in [
        (
            "x-amz-checksum-crc32",
            "AAAAAA==",
            "The CRC32 you specified did not match the calculated checksum.",
            &[][..],
        ),
        ("content-md5", "x", "The Content-MD5 you specified was invalid.", &[("Content-MD5", "x")]),
        (
            "content-md5",
            "AAAAAAAAAAAAAAAAAAAAAA==",
            "The Content-MD5 you specified did not match what we received.",
            &[
                ("ExpectedDigest", "AAAAAAAAAAAAAAAAAAAAAA=="),
                ("CalculatedDigest", "SfaKXIST7CwL9ImCHCH8Ow=="),
            ],
        ),
        (
            "x-amz-storage-class",
            "x",
            "The storage class you specified is not valid",
            &[("StorageClassRequested", "x")],
        ),
        (
            "x-amz-acl",
            "x",
            "The specified canned ACL is not valid",
            &[("ArgumentName", "x-amz-acl"), ("ArgumentValue", "x")],
        ),
        (
            "x-amz-tagging",
            "aws:a=b",
            "System tags cannot be added/updated by requester",
            &[("TagKey", "aws:a")],
        ),
        (
            "x-amz-meta-a",
            &long,
            "Your metadata headers exceed the maximum allowed metadata size",
            &[("Size", "2049"), ("MaxSizeAllowed", "2048")],
        ),
    ] {
        let refused = put(name, value).send().await.expect(400);
        assert_eq!(refused.tag("Message").as_deref(), Some(message), "{name}");
        has(refused, elements);
    }
    server.head("/bkt/k").await.expect(404);
}

#[tokio::test]
async fn an_answer_shows_the_date_that_its_client_wants_even_if_it_is_none() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "hello").await.expect(200);
    for (asked, shown) in [("soon", "soon"), ("0", "0"), ("", "")] {
        let got = server.get(&format!("/bkt/k?response-expires={asked}")).await.expect(200);
        assert_eq!(got.header("expires"), shown);
    }
}

/// Without domains the path names the bucket, whatever the host.
#[tokio::test]
async fn a_virtual_host_request_without_domains_gets_the_remedy() {
    let server = Server::bucket().await;
    for (host, is_told) in [("bkt.s3.local", true), ("other.s3.local", false)] {
        let answer = server.ask("GET", "/dir/k").header("host", host).send().await;
        let message = answer.refused(404, "NoSuchBucket").tag("Message").unwrap();
        assert_eq!(message.contains("`domains`"), is_told, "{host}: {message}");
    }
}

/// The form in which clients of IAM and STS read errors, and of no other service.
#[tokio::test]
async fn iam_and_sts_clients_get_an_error_in_their_form() {
    let server = Server::bucket().await;
    let ask = server.ask("POST", "/").body("Action=ListUsers&Version=2010-05-08");
    let iam = |header: String| header.replace("/s3/", "/iam/");
    let reported = |answer: Answer, namespace: &str| {
        let answer = answer.refused(400, "InvalidAction");
        let begin =
            format!("<ErrorResponse xmlns=\"{namespace}\"><Error><Type>Sender</Type><Code>");
        assert!(answer.text().starts_with(&begin), "{}", answer.text());
        assert!(answer.tag("Message").unwrap().contains("no users"));
        assert_eq!(answer.tag("RequestId").as_deref(), Some(answer.header("x-amz-request-id")));
    };
    let form = "application/x-www-form-urlencoded; charset=utf-8";
    let signed = ask.clone().header("content-type", form).rewrite(iam).send().await;
    reported(signed, "https://iam.amazonaws.com/doc/2010-05-08/");
    let unsigned = ask.clone().sign(Sign::Not).unsigned("content-type", form).send().await;
    reported(unsigned, "https://sts.amazonaws.com/doc/2011-06-15/");
    let s3 = ask.send().await;
    assert!(s3.text().contains("<Error><Code>"), "{}", s3.text());
}
