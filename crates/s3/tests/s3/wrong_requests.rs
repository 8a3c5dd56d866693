//! Requests that S3 refuses: they change nothing, and are told what is wrong in its words.

use std::sync::Arc;

use larder_s3::{GatewayOptions, ServerOptions};

use crate::client::{Answer, Form, Server, Sign};

const TAGS: &str = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
const PRESIGNED: Sign = Sign::Query { expires_s: 100 };

/// Asserts the message, and what the error says of the argument at fault.
#[track_caller]
fn about(refused: &Answer, message: &str, argument: &str) {
    let reported = refused.tag("Message").map(|text| text.replace("&apos;", "'"));
    assert_eq!(reported.as_deref(), Some(message), "{}", refused.text());
    assert_eq!(refused.tag("ArgumentName").as_deref(), Some(argument), "{}", refused.text());
}

#[tokio::test]
async fn two_sub_resources_are_not_one_request() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    for (method, path, names) in [
        ("GET", "/bkt?cors&acl", "acl, cors"),
        ("PUT", "/bkt?acl&cors", "acl, cors"),
        ("DELETE", "/bkt?cors&policy", "cors, policy"),
        ("GET", "/bkt?uploads&versions", "uploads, versions"),
        ("GET", "/bkt/k?acl&tagging", "acl, tagging"),
        ("PUT", "/bkt/k?acl&tagging", "acl, tagging"),
        ("POST", "/bkt/k?uploads&uploadId=x", "uploadId, uploads"),
        ("DELETE", "/bkt/k?uploadId=x&tagging", "tagging, uploadId"),
    ] {
        let refused = server.ask(method, path).body(TAGS).send().await;
        let refused = refused.refused(400, "InvalidArgument");
        let message = format!("Conflicting query string parameters: {names}");
        about(&refused, &message, "ResourceType");
    }
    assert_eq!(server.get("/bkt/k?tagging").await.expect(200).tags("Key").len(), 0);
}

#[tokio::test]
async fn lists_of_a_bucket_are_not_asked_of_a_key() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    for (name, message) in [
        ("uploads", "Key is not expected for the GET method ?uploads subresource"),
        ("versions", "There is no such thing as the ?versions sub-resource for a key"),
    ] {
        let refused = server.get(&format!("/bkt/k?{name}")).await.refused(400, "InvalidRequest");
        assert_eq!(refused.tag("Message").as_deref(), Some(message));
    }
    let refused = server.put("/", "").await.refused(405, "MethodNotAllowed");
    let reported = (refused.tag("Method").unwrap(), refused.tag("ResourceType").unwrap());
    assert_eq!((reported.0.as_str(), reported.1.as_str()), ("PUT", "SERVICE"));
}

#[tokio::test]
async fn a_list_takes_no_place_of_the_other_kind_of_list() {
    let server = Server::bucket().await;
    for key in ["a", "b"] {
        server.put(&format!("/bkt/{key}"), "x").await.expect(200);
    }
    for (query, message, argument) in [
        (
            "start-after=a",
            "startAfter only supported in REST.GET.BUCKET with list-type=2",
            "start-after",
        ),
        (
            "list-type=1&continuation-token=",
            "continuation-token only supported in REST.GET.BUCKET with list-type=2",
            "continuation-token",
        ),
        (
            "list-type=2&marker=a",
            "Marker unsupported with REST.GET.BUCKET in list-type=2",
            "marker",
        ),
        (
            "versions&key-marker=a&version-id-marker=x",
            "Invalid version id specified",
            "version-id-marker",
        ),
        (
            "list-type=2&continuation-token=x",
            "The continuation token provided is incorrect",
            "continuation-token",
        ),
        ("encoding-type=xml", "Invalid Encoding Method specified in Request", "encoding-type"),
        ("uploads&key-marker=a&upload-id-marker=x", "Invalid uploadId marker", "upload-id-marker"),
        ("max-keys=-1", "Argument maxKeys must be an integer between 0 and 2147483647", "max-keys"),
    ] {
        let refused = server.get(&format!("/bkt?{query}")).await.refused(400, "InvalidArgument");
        about(&refused, message, argument);
    }
    // As in S3 another type of list is the first.
    for kind in ["1", "3", ""] {
        let list = server.get(&format!("/bkt?list-type={kind}&marker=a")).await.expect(200);
        assert_eq!(list.tags("Key"), ["b"]);
    }
}

#[tokio::test]
async fn a_version_that_is_none_is_told_from_one_that_is_gone() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    let gone = "3HL4kqtJlcpXroDTDmJ.rmSpXd3dIbrHY";
    for (method, path) in [
        ("GET", "/bkt/k?"),
        ("HEAD", "/bkt/k?"),
        ("DELETE", "/bkt/k?"),
        ("GET", "/bkt/k?tagging&"),
        ("PUT", "/bkt/k?tagging&"),
        ("GET", "/bkt/k?acl&"),
        ("GET", "/bkt/k?attributes&"),
    ] {
        let ask = |version: &str| {
            let ask = server.ask(method, &format!("{path}versionId={version}"));
            ask.header("x-amz-object-attributes", "ETag").body(if method == "PUT" {
                TAGS
            } else {
                ""
            })
        };
        for (version, message) in
            [("foo", "Invalid version id specified"), ("", "Version id cannot be the empty string")]
        {
            let refused = ask(version).send().await.expect(400);
            if method != "HEAD" {
                about(&refused, message, "versionId");
            }
        }
        ask(gone).send().await.expect(404);
    }
    server.get(&format!("/bkt/k?versionId={gone}")).await.refused(404, "NoSuchVersion");
    server.head("/bkt/k").await.expect(200);
}

#[tokio::test]
async fn tags_have_the_characters_that_s3_gives_them() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    for tagging in ["key!=v", "key%23=v", "a=v(", "a=v*", "a=v$", "a=v?", "a%3Cb=c", "a=b%3Cc"] {
        let put = server.ask("PUT", "/bkt/new").header("x-amz-tagging", tagging).body("x");
        let refused = put.send().await.refused(400, "InvalidTag");
        assert!(refused.tag("TagKey").is_some(), "{}", refused.text());
    }
    server.head("/bkt/new").await.expect(404);
    let tag = |inside: &str| {
        let xml = format!("<Tagging><TagSet><Tag>{inside}</Tag></TagSet></Tagging>");
        server.ask("PUT", "/bkt/k?tagging").body(xml).send()
    };
    for (inside, code) in [
        ("<Key>a&lt;</Key><Value>b</Value>", "InvalidTag"),
        ("<Key>a</Key><Value>&#13;</Value>", "InvalidTag"),
        ("<Key>a</Key><Value>&#128512;</Value>", "InvalidTag"),
        ("<Key>a</Key>", "MalformedXML"),
        ("<Value>a</Value>", "MalformedXML"),
    ] {
        tag(inside).await.refused(400, code);
    }
    assert!(server.get("/bkt/k?tagging").await.expect(200).tags("Key").is_empty());
    tag("<Key>é 1_.:/=+-@</Key><Value/>").await.expect(200);
    assert_eq!(server.get("/bkt/k?tagging").await.expect(200).tags("Key"), ["é 1_.:/=+-@"]);
}

#[tokio::test]
async fn a_source_is_named_by_copies_alone() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    for (method, path) in [
        ("GET", "/bkt/k"),
        ("DELETE", "/bkt/k"),
        ("PUT", "/bkt/k?tagging"),
        ("POST", "/bkt/k?uploads"),
        ("PUT", "/new"),
    ] {
        let ask = server.ask(method, path).header("x-amz-copy-source", "/bkt/k").body(TAGS);
        let refused = ask.send().await.refused(400, "InvalidArgument");
        let message = "You can only specify a copy source header for copy requests.";
        about(&refused, message, "x-amz-copy-source");
    }
    server.head("/bkt/k").await.expect(200);
    server.head("/new").await.expect(404);
    let copy = |source: &str| server.ask("PUT", "/bkt/copy").header("x-amz-copy-source", source);
    for (source, message) in [
        ("bkt", "Invalid copy source object key"),
        ("BKT_/k", "Invalid copy source bucket name"),
        ("bkt/%zz", "Invalid copy source encoding"),
        ("bkt/k?versionId=", "Version id cannot be the empty string"),
    ] {
        let refused = copy(source).send().await.refused(400, "InvalidArgument");
        about(&refused, message, "x-amz-copy-source");
    }
    let directive = copy("bkt/k").header("x-amz-metadata-directive", "MIX").send().await;
    let directive = directive.refused(400, "InvalidArgument");
    about(&directive, "Unknown metadata directive.", "x-amz-metadata-directive");
    server.head("/bkt/copy").await.expect(404);
}

#[tokio::test]
async fn a_range_of_a_copy_that_is_none_copies_nothing() {
    let server = Server::bucket().await;
    server.put("/bkt/src", "0123456789").await.expect(200);
    let begun = server.ask("POST", "/bkt/k?uploads").send().await.expect(200);
    let path = format!("/bkt/k?partNumber=1&uploadId={}", begun.tag("UploadId").unwrap());
    let part = |range: &str| {
        let ask = server.ask("PUT", &path).header("x-amz-copy-source", "/bkt/src");
        ask.header("x-amz-copy-source-range", range).send()
    };
    for (range, status, code) in [
        ("", 400, "InvalidArgument"),
        ("bytes=0-", 400, "InvalidArgument"),
        ("bytes=0-10", 416, "InvalidRange"),
    ] {
        let refused = part(range).await.refused(status, code);
        assert_eq!(refused.tag("ArgumentName").as_deref(), Some("x-amz-copy-source-range"));
    }
    let id = begun.tag("UploadId").unwrap();
    let listed = server.get(&format!("/bkt/k?uploadId={id}")).await.expect(200);
    assert!(listed.tag("Part").is_none(), "{}", listed.text());
    part("bytes=0-9").await.expect(200);
}

#[tokio::test]
async fn a_condition_of_a_change_that_is_empty_changes_nothing() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "old").await.expect(200);
    for (method, name) in [
        ("PUT", "if-none-match"),
        ("PUT", "if-match"),
        ("DELETE", "if-match"),
        ("DELETE", "x-amz-if-match-size"),
        ("DELETE", "x-amz-if-match-last-modified-time"),
    ] {
        let ask = server.ask(method, "/bkt/k").header(name, "").body("new");
        let refused = ask.send().await.refused(400, "InvalidArgument");
        assert_eq!(refused.tag("ArgumentName").as_deref(), Some(name));
    }
    for name in ["x-amz-copy-source-if-match", "if-none-match"] {
        let copy = server.ask("PUT", "/bkt/copy").header("x-amz-copy-source", "/bkt/k");
        copy.header(name, "").send().await.refused(400, "InvalidArgument");
    }
    server.head("/bkt/copy").await.expect(404);
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "old");
    let read = server.ask("GET", "/bkt/k").header("if-none-match", "").send().await;
    assert_eq!(read.expect(200).text(), "old", "of a read it is none");
}

#[tokio::test]
async fn names_that_clients_take_for_something_else_are_no_new_buckets() {
    let server = Server::start().await;
    for name in [
        "xn--abc",
        "sthree-abc",
        "sthree-configurator-a",
        "amzn-s3-demo-abc",
        "abc-s3alias",
        "abc--ol-s3",
        "abc.mrap",
        "abc--x-s3",
        "abc--table-s3",
    ] {
        server.put(&format!("/{name}"), "").await.refused(400, "InvalidBucketName");
        server.head(&format!("/{name}")).await.expect(404);
    }
    for name in ["abc-xn--a", "s3alias", "a-sthree-", "abc.mrap.x"] {
        server.put(&format!("/{}", name.trim_end_matches('-')), "").await.expect(200);
    }
}

#[tokio::test]
async fn a_token_of_another_service_is_refused() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    let get = |sign| server.ask("GET", "/bkt/k").sign(sign);
    let token = "x-amz-security-token";
    get(Sign::Header).header(token, "t").send().await.refused(400, "InvalidToken");
    get(Sign::Header).header(token, "").send().await.expect(200);
    get(PRESIGNED).header(token, "t").send().await.refused(400, "InvalidToken");
    let in_query = server.ask("GET", "/bkt/k?X-Amz-Security-Token=t").sign(PRESIGNED);
    in_query.clone().send().await.refused(400, "InvalidToken");
    in_query.keys("somebody", "else").send().await.refused(403, "InvalidAccessKeyId");
    let form = Form::of(&server, "bkt", "form").file(b"x");
    let post = async |form: &Form| {
        let post = server.ask("POST", "/bkt").sign(Sign::Not).body(form.bytes());
        post.header("content-type", "multipart/form-data; boundary=edge").send().await
    };
    let with_token = form.set(token, "t");
    post(&with_token).await.refused(400, "InvalidToken");
    server.head("/bkt/form").await.expect(404);
    let unknown = Form::of(&server, "bkt", "form").file(b"x");
    let unknown = unknown.set("x-amz-credential", "NOBODY/20260101/us-east-1/s3/aws4_request");
    post(&unknown).await.refused(403, "InvalidAccessKeyId");
}

/// A client that names its bucket by the host would take the list of all buckets for an empty list of objects.
#[tokio::test]
async fn a_list_of_a_bucket_that_only_the_host_names_is_no_list_of_buckets() {
    let server = Server::bucket().await;
    let ask = |query: &str| server.ask("GET", &format!("/?{query}")).header("host", "bkt.s3.local");
    for query in
        ["list-type=2&prefix=", "encoding-type=url", "delimiter=%2F", "location", "uploads"]
    {
        let refused = ask(query).send().await.refused(404, "NoSuchBucket");
        assert!(refused.tag("Message").unwrap().contains("`domains`"), "{}", refused.text());
    }
    for query in ["", "max-buckets=1&prefix=b"] {
        let buckets = ask(query).send().await.expect(200);
        assert_eq!(buckets.tags("Name"), ["bkt"], "{query}");
    }
    let face = GatewayOptions { domains: vec!["s3.local".into()], ..GatewayOptions::default() };
    let server = Server::with(ServerOptions::default(), Arc::new(()), face).await;
    server.put("/bkt", "").await.expect(200);
    server.put("/bkt/key", "x").await.expect(200);
    for host in ["bkt.s3.local", "bkt.s3.local:9000", "bkt.S3.local.", "bkt.s3.local.:9000"] {
        for query in ["", "list-type=2"] {
            let path = format!("/?{query}");
            let path = path.trim_end_matches('?');
            let list = server.ask("GET", path).header("host", host).send().await.expect(200);
            let reported = (list.tags("Name"), list.tags("Key"));
            assert_eq!(reported, (vec!["bkt".into()], vec!["key".into()]), "{host} {query}");
        }
    }
}

#[tokio::test]
async fn attributes_are_asked_for_by_their_names() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    let refused = server.get("/bkt/k?attributes").await.refused(400, "InvalidRequest");
    let message = "The x-amz-object-attributes header specifying the attributes to be retrieved is either missing or empty";
    assert_eq!(refused.tag("Message").as_deref(), Some(message));
    let ask = server.ask("GET", "/bkt/k?attributes").header("x-amz-object-attributes", "x");
    let refused = ask.send().await.refused(400, "InvalidArgument");
    about(&refused, "Invalid attribute name specified.", "x-amz-object-attributes");
}
