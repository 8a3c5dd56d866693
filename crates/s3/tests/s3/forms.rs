//! Objects that come by HTML forms.

use crate::client::{ACCESS, Answer, SECRET, Server, Sign, sign_v2};

const BOUNDARY: &str = "xxxx";

/// Posts a form with these fields and a file of five bytes, under a policy that leaves them free.
async fn post(server: &Server, fields: &[(&str, &str)]) -> Answer {
    let mut conditions =
        vec![r#"{"bucket":"bkt"}"#.to_owned(), r#"["starts-with","$key",""]"#.to_owned()];
    conditions.extend(fields.iter().map(|(name, _)| format!(r#"["starts-with","${name}",""]"#)));
    post_under(server, &conditions, fields).await
}

/// The same under a policy of these conditions.
async fn post_under(server: &Server, conditions: &[String], fields: &[(&str, &str)]) -> Answer {
    let policy = format!(
        r#"{{"expiration":"2099-01-01T00:00:00Z","conditions":[{}]}}"#,
        conditions.join(",")
    );
    let policy = base64_simd::STANDARD.encode_to_string(policy);
    let signature = sign_v2(SECRET, &policy);
    let signed = [("AWSAccessKeyId", ACCESS), ("policy", &policy), ("signature", &signature)];
    let mut body = String::new();
    for (name, value) in [("key", "form key")].iter().chain(fields).chain(&signed) {
        body.push_str(&format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        ));
    }
    body.push_str(&format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\
         Content-Type: text/plain\r\n\r\nhello\r\n--{BOUNDARY}--\r\n"
    ));
    let ask = server.ask("POST", "/bkt").sign(Sign::Not).body(body);
    ask.header("content-type", format!("multipart/form-data; boundary={BOUNDARY}")).send().await
}

#[tokio::test]
async fn a_form_tags_its_object() {
    let server = Server::bucket().await;
    let xml = "<Tagging><TagSet><Tag><Key>a&amp;b</Key><Value>1 2</Value></Tag></TagSet></Tagging>";
    post(&server, &[("tagging", xml)]).await.expect(204);
    let tags = server.get("/bkt/form%20key?tagging").await.expect(200);
    assert_eq!(
        (tags.tags("Key"), tags.tags("Value")),
        (vec!["a&amp;b".into()], vec!["1 2".into()])
    );
    post(&server, &[("tagging", "<Tagging><TagSet>")]).await.refused(400, "MalformedXML");
    let empty = "<Tagging><TagSet><Tag><Key></Key><Value></Value></Tag></TagSet></Tagging>";
    post(&server, &[("tagging", empty)]).await.refused(400, "InvalidTag");
}

#[tokio::test]
async fn what_a_form_asks_for_and_cannot_have_is_refused() {
    let server = Server::bucket().await;
    for (name, value, status, code) in [
        ("acl", "public-read", 501, "NotImplemented"),
        ("x-amz-checksum-algorithm", "FOO", 400, "InvalidRequest"),
        ("x-amz-checksum-sha512", "AAAA", 400, "InvalidRequest"),
        ("x-amz-checksum-foo", "AAAA", 400, "InvalidRequest"),
    ] {
        post(&server, &[(name, value)]).await.refused(status, code);
    }
    server.head("/bkt/form%20key").await.expect(404);
    for (name, value) in [("acl", "private"), ("x-amz-checksum-algorithm", "CRC32")] {
        post(&server, &[(name, value)]).await.expect(204);
    }
}

#[tokio::test]
async fn a_form_that_does_not_meet_its_policy_is_told_the_condition() {
    let server = Server::bucket().await;
    let free = [r#"["starts-with","$key",""]"#, r#"["starts-with","$Content-Type",""]"#];
    let post = async |condition: &str, bucket: &str| {
        let mut conditions = vec![format!(r#"{{"bucket":"{bucket}"}}"#), condition.to_owned()];
        conditions.extend(free.map(str::to_owned));
        let fields = [("Content-Type", "text/plain")];
        let denied = post_under(&server, &conditions, &fields).await.refused(403, "AccessDenied");
        denied.tag("Message").unwrap().replace("&quot;", "\"")
    };
    for (condition, bucket, named) in [
        (r#"{"key":"<other>"}"#, "bkt", r#"["eq", "$key", "&lt;other&gt;"]"#),
        (r#"["starts-with","$key","user/"]"#, "bkt", r#"["starts-with", "$key", "user/"]"#),
        (r#"["eq","$Content-Type","image/png"]"#, "bkt", r#"["eq", "$Content-Type", "image/png"]"#),
        (free[0], "other", r#"["eq", "$bucket", "other"]"#),
    ] {
        let message = post(condition, bucket).await;
        let denied = format!("Invalid according to Policy: Policy Condition failed: {named}");
        assert_eq!(message, denied);
    }
    server.head("/bkt/form%20key").await.expect(404);
}

#[tokio::test]
async fn a_form_is_told_where_its_object_is() {
    let server = Server::bucket().await;
    let url = format!("http://{}/bkt/form%20key", server.address);
    let etag = "\"5d41402abc4b2a76b9719d911017c592\"";
    for status in ["204", "200", "201"] {
        let posted = post(&server, &[("success_action_status", status)]).await;
        let posted = posted.expect(status.parse().unwrap());
        assert_eq!((posted.header("etag"), posted.header("location")), (etag, &*url), "{status}");
        if status == "201" {
            assert_eq!(posted.tag("Location").as_deref(), Some(&*url));
            assert_eq!(posted.tag("ETag").unwrap().replace("&quot;", "\""), etag);
            assert_eq!(posted.tag("Key").as_deref(), Some("form key"));
            let namespace = "<PostResponse xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
            assert!(posted.text().contains(namespace), "{}", posted.text());
        }
    }
    let redirect = post(&server, &[("success_action_redirect", "http://x.test/y")]).await;
    let redirect = redirect.expect(303);
    assert!(redirect.header("location").starts_with("http://x.test/y?bucket=bkt&key=form+key"));
    let got = server.get("/bkt/form%20key").await.expect(200);
    assert_eq!(got.text(), "hello");
}
