//! Objects that come by HTML forms.

use crate::client::{ACCESS, Answer, SECRET, Server, Sign, sign_v2};

const BOUNDARY: &str = "xxxx";
const BUCKET: &str = r#"{"bucket":"bkt"}"#;

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
    let fields: Vec<_> =
        [("key", "form key")].iter().chain(fields).chain(&signed).copied().collect();
    post_fields(server, "/bkt", &fields).await
}

/// The same with these fields and no others.
async fn post_fields(server: &Server, path: &str, fields: &[(&str, &str)]) -> Answer {
    let mut body = String::new();
    for (name, value) in fields {
        body.push_str(&format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        ));
    }
    body.push_str(&format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"d/f\"\r\n\
         Content-Type: text/plain\r\n\r\nhello\r\n--{BOUNDARY}--\r\n"
    ));
    let ask = server.ask("POST", path).sign(Sign::Not).body(body);
    ask.header("content-type", format!("multipart/form-data; boundary={BOUNDARY}")).send().await
}

#[tokio::test]
async fn a_form_tags_its_object() {
    let server = Server::bucket().await;
    let xml = "<Tagging><TagSet><Tag><Key>a@b</Key><Value>1 2</Value></Tag></TagSet></Tagging>";
    post(&server, &[("tagging", xml)]).await.expect(204);
    let tags = server.get("/bkt/form%20key?tagging").await.expect(200);
    assert_eq!((tags.tags("Key"), tags.tags("Value")), (vec!["a@b".into()], vec!["1 2".into()]));
    post(&server, &[("tagging", "<Tagging><TagSet>")]).await.refused(400, "MalformedXML");
    let cdata = xml.replace("1 2", "<![CDATA[1 2]]>");
    post(&server, &[("tagging", &cdata)]).await.expect(204);
    let tags = server.get("/bkt/form%20key?tagging").await.expect(200);
    assert_eq!(tags.tags("Value"), ["1 2"], "all of the text is read");
    let empty = "<Tagging><TagSet><Tag><Key></Key><Value></Value></Tag></TagSet></Tagging>";
    post(&server, &[("tagging", empty)]).await.refused(400, "InvalidTag");
}

#[tokio::test]
async fn what_a_form_asks_for_and_cannot_have_is_refused() {
    let server = Server::bucket().await;
    for (name, value, status, code) in [
        ("acl", "public-read", 400, "AccessControlListNotSupported"),
        ("acl", "nonsense", 400, "InvalidArgument"),
        ("x-amz-website-redirect-location", "nonsense", 400, "InvalidRedirectLocation"),
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
async fn a_form_that_violates_its_policy_is_refused_with_the_condition() {
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
async fn a_forms_reply_gives_the_objects_location() {
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

#[tokio::test]
async fn a_key_names_the_clients_file() {
    let server = Server::bucket().await;
    let conditions = [BUCKET, r#"["starts-with","$key","u/f"]"#].map(str::to_owned);
    let key = ("key", "u/${filename}.${filename}");
    post_under(&server, &conditions, &[key]).await.expect(204);
    assert_eq!(server.get("/bkt/u/f.f").await.expect(200).text(), "hello");
    let key = ("key", "v/${filename}");
    post_under(&server, &conditions, &[key]).await.refused(403, "AccessDenied");
    let many = "${filename}".repeat(2000);
    post_under(&server, &conditions, &[("key", &many)]).await.refused(400, "KeyTooLongError");
    let any = [r#"["starts-with","$key",""]"#.to_owned()];
    // It would be good for every bucket.
    post_under(&server, &any, &[]).await.refused(403, "AccessDenied");
}

#[tokio::test]
async fn fields_are_those_of_a_put_and_no_others() {
    let server = Server::bucket().await;
    server.put("/bkt/other", "other").await.expect(200);
    let md5 = "XUFAKrxLKna5cZ2REBfFkg==";
    let fields = [
        ("Content-Type", "text/html"),
        ("Cache-Control", "no-cache"),
        ("Content-Disposition", "attachment; filename=\"\u{e9}\""),
        ("x-amz-meta-a", "\u{e9} b"),
        ("Content-MD5", md5),
        ("x-ignored", "as S3 does"),
    ];
    post(&server, &fields).await.expect(204);
    let got = server.get("/bkt/form%20key").await.expect(200);
    assert_eq!(
        (got.header("content-type"), got.header("cache-control")),
        ("text/html", "no-cache")
    );
    assert!(got.headers.contains_key("x-amz-meta-a"));
    let disposition = "attachment; filename=\"\u{e9}\"";
    assert_eq!(got.headers["content-disposition"].as_bytes(), disposition.as_bytes());
    let wrong = [("Content-MD5", "1B2M2Y8AsgTpgAmY7PhCfg==")];
    post(&server, &wrong).await.refused(400, "BadDigest");
    // As a header it would have another object copied.
    for name in
        ["x-amz-copy-source", "x-amz-decoded-content-length", "x-amz-foo", "x-larder-append"]
    {
        post(&server, &[(name, "/bkt/other")]).await.refused(400, "InvalidArgument");
    }
    post(&server, &[("x-amz-meta-b", "a\rb")]).await.refused(400, "InvalidArgument");
    post(&server, &[("x-amz-meta-a b", "1")]).await.refused(400, "InvalidArgument");
    post(&server, &[("key", "")]).await.refused(400, "InvalidArgument");
    assert_eq!(server.get("/bkt/form%20key").await.expect(200).text(), "hello");
}

#[tokio::test]
async fn a_form_without_a_valid_signature_or_policy_is_refused() {
    let server = Server::bucket().await;
    let policy = |expiration: &str| {
        let policy = format!(
            r#"{{"expiration":"{expiration}","conditions":[{BUCKET},["starts-with","$key",""]]}}"#
        );
        base64_simd::STANDARD.encode_to_string(policy)
    };
    let ask = async |policy: &str, path: &str| {
        let signature = sign_v2(SECRET, policy);
        let key = [("key", "k"), ("AWSAccessKeyId", ACCESS), ("policy", policy)];
        post_fields(&server, path, &[&key[..], &[("signature", &signature)]].concat()).await
    };
    ask(&policy("2099-01-01T00:00:00Z"), "/bkt").await.expect(204);
    ask(&policy("2099-01-01T00:00:00Z"), "/bkt/key").await.refused(405, "MethodNotAllowed");
    ask(&policy("2099-01-01 00:00:00.5+00:00"), "/bkt").await.refused(400, "InvalidPolicyDocument");
    ask(&policy("2009-01-01T00:00:00Z"), "/bkt").await.refused(403, "AccessDenied");
    let good = policy("2099-01-01T00:00:00Z");
    let unsigned = [("key", "k"), ("AWSAccessKeyId", ACCESS), ("policy", &good)];
    post_fields(&server, "/bkt", &unsigned).await.refused(400, "InvalidArgument");
    let without_policy = [("key", "k"), ("AWSAccessKeyId", ACCESS), ("signature", "x")];
    let refused = post_fields(&server, "/bkt", &without_policy).await;
    assert_eq!(refused.refused(400, "InvalidArgument").tag("ArgumentName").unwrap(), "policy");
    post_fields(&server, "/bkt", &[("key", "k")]).await.refused(403, "AccessDenied");
    let length = [BUCKET, r#"["content-length-range",6,9]"#, r#"["starts-with","$key",""]"#]
        .map(str::to_owned);
    post_under(&server, &length, &[]).await.refused(400, "EntityTooSmall");
    let length = [BUCKET, r#"["content-length-range",0,4]"#, r#"["starts-with","$key",""]"#]
        .map(str::to_owned);
    post_under(&server, &length, &[]).await.refused(400, "EntityTooLarge");
}

#[tokio::test]
async fn a_redirect_keeps_its_own_query_and_one_that_is_no_address_is_ignored() {
    let server = Server::bucket().await;
    let to = async |to: &str| post(&server, &[("success_action_redirect", to)]).await;
    let etag = "5d41402abc4b2a76b9719d911017c592";
    assert_eq!(
        to("https://x.test/y?a=b#c").await.expect(303).header("location"),
        format!("https://x.test/y?a=b&bucket=bkt&key=form+key&etag={etag}#c")
    );
    for wrong in ["javascript:alert(1)", "/y", "http://", "ftp://x.test/y"] {
        to(wrong).await.expect(204);
    }
}
