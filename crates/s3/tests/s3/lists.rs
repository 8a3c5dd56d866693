//! Lists.

use crate::client::Server;

async fn with_keys(keys: &[&str]) -> Server {
    let server = Server::bucket().await;
    for key in keys {
        let path = urlencoding::encode(key).replace("%2F", "/");
        server.put(&format!("/bkt/{path}"), "x").await.expect(200);
    }
    server
}

#[tokio::test]
async fn keys_come_in_byte_order_with_groups_between() {
    let server = with_keys(&["a", "b/1", "b/2", "c", "ä"]).await;
    let all = server.get("/bkt").await.expect(200);
    assert_eq!(all.tags("Key"), ["a", "b/1", "b/2", "c", "ä"]);
    assert_eq!(all.tag("IsTruncated").as_deref(), Some("false"));
    assert_eq!(all.tag("Size").as_deref(), Some("1"));
    assert_eq!(all.tag("StorageClass").as_deref(), Some("STANDARD"));
    assert!(all.tag("Owner").is_some());
    let grouped = server.get("/bkt?delimiter=%2F").await.expect(200);
    assert_eq!(grouped.tags("Key"), ["a", "c", "ä"]);
    assert_eq!(grouped.tags("CommonPrefixes"), ["<Prefix>b/</Prefix>"]);
    let below = server.get("/bkt?delimiter=%2F&prefix=b%2F").await.expect(200);
    assert_eq!(below.tags("Key"), ["b/1", "b/2"]);
}

#[tokio::test]
async fn pages_follow_each_other_without_gap_or_repeat() {
    let server = with_keys(&["a", "b/1", "b/2", "c", "d+d"]).await;
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let path = format!("/bkt?list-type=2&delimiter=%2F&max-keys=1{token}");
        let page = server.get(&path).await.expect(200);
        assert_eq!(page.tag("KeyCount").as_deref(), Some("1"));
        seen.extend(page.tags("Key"));
        seen.extend(page.tags("CommonPrefixes"));
        let Some(next) = page.tag("NextContinuationToken") else { break };
        token = format!("&continuation-token={next}");
    }
    assert_eq!(seen, ["a", "<Prefix>b/</Prefix>", "c", "d+d"]);
    let first = server.get("/bkt?delimiter=%2F&max-keys=2").await.expect(200);
    assert_eq!(first.tag("NextMarker").as_deref(), Some("b/"));
    let rest = server.get("/bkt?delimiter=%2F&marker=b%2F").await.expect(200);
    assert_eq!(rest.tags("Key"), ["c", "d+d"]);
    assert!(rest.tags("CommonPrefixes").is_empty());
}

#[tokio::test]
async fn version_2_has_its_own_fields() {
    let server = with_keys(&["a", "b", "c"]).await;
    let page = server.get("/bkt?list-type=2&start-after=a").await.expect(200);
    assert_eq!(page.tags("Key"), ["b", "c"]);
    assert_eq!(page.tag("StartAfter").as_deref(), Some("a"));
    assert!(page.tag("Owner").is_none());
    let owned = server.get("/bkt?list-type=2&fetch-owner=true").await.expect(200);
    assert_eq!(owned.tags("Owner").len(), 3);
    let none = server.get("/bkt?list-type=2&max-keys=0").await.expect(200);
    assert_eq!(none.tag("IsTruncated").as_deref(), Some("false"));
    assert!(none.tags("Key").is_empty());
    let bad = server.get("/bkt?list-type=2&continuation-token=%20").await;
    bad.refused(400, "InvalidArgument");
    server.get("/bkt?list-type=2&max-keys=-1").await.refused(400, "InvalidArgument");
    server.get("/bkt?list-type=2&max-keys=x").await.refused(400, "InvalidArgument");
    server.get("/none?list-type=2&max-keys=0").await.refused(404, "NoSuchBucket");
}

#[tokio::test]
async fn names_are_encoded_on_request() {
    let server = with_keys(&["a+b/c d", "x"]).await;
    let page = server.get("/bkt?encoding-type=url&delimiter=%2F").await.expect(200);
    assert_eq!(page.tags("CommonPrefixes"), ["<Prefix>a%2Bb/</Prefix>"]);
    assert_eq!(page.tag("EncodingType").as_deref(), Some("url"));
    server.get("/bkt?encoding-type=xml").await.refused(400, "InvalidArgument");
}

#[tokio::test]
async fn each_object_is_one_version() {
    let server = with_keys(&["a", "b"]).await;
    let page = server.get("/bkt?versions&max-keys=1").await.expect(200);
    assert_eq!(page.tags("Key"), ["a"]);
    assert_eq!(page.tag("VersionId").as_deref(), Some("null"));
    assert_eq!(page.tag("IsLatest").as_deref(), Some("true"));
    assert_eq!(page.tag("NextKeyMarker").as_deref(), Some("a"));
    assert_eq!(page.tag("NextVersionIdMarker").as_deref(), Some("null"));
    let rest = server.get("/bkt?versions&key-marker=a&version-id-marker=null").await.expect(200);
    assert_eq!(rest.tags("Key"), ["b"]);
    server.get("/bkt?versions&version-id-marker=null").await.refused(400, "InvalidArgument");
}

#[tokio::test]
async fn the_keys_of_all_regions_are_asked_for_with_a_header() {
    let server = with_keys(&["a"]).await;
    for path in ["/bkt", "/bkt?list-type=2", "/bkt?versions"] {
        let ask = |value: &str| server.ask("GET", path).header("x-larder-list-regions", value);
        let all = ask("all").send().await.expect(200);
        assert_eq!(all.tags("CommonPrefixes"), ["<Prefix>of-all-regions/</Prefix>"], "{path}");
        assert_eq!(all.tags("Key"), ["a"]);
        assert_eq!(all.header("x-larder-list-regions"), "all", "a client can tell");
        let here = server.get(path).await.expect(200);
        assert!(here.tags("CommonPrefixes").is_empty());
        assert_eq!(here.header("x-larder-list-regions"), "");
        for value in ["", "ALL", "1,2"] {
            let refused = ask(value).send().await.refused(400, "InvalidArgument");
            assert!(refused.text().contains("one value, all"), "{}", refused.text());
        }
    }
}
