//! Characters of keys that XML cannot carry as they are.

use crate::client::Server;

/// Keys as they stand in an address, and as XML shows them.
const KEYS: [(&str, &str); 5] = [
    ("cr%0Dkey", "cr&#13;key"),
    ("nul%00", "nul&#x0;"),
    ("one%01%1F", "one&#x1;&#x1f;"),
    ("plain%09%0A%7F%C2%85%EF%BF%BD", "plain\t\n\u{7f}\u{85}\u{fffd}"),
    ("too%EF%BF%BE%EF%BF%BF", "too&#xfffe;&#xffff;"),
];

#[tokio::test]
async fn lists_of_objects_escape_what_xml_cannot_carry() {
    let server = Server::bucket().await;
    for (key, _) in KEYS {
        server.put(&format!("/bkt/{key}"), "x").await.expect(200);
    }
    let shown = KEYS.map(|(_, shown)| shown);
    for list in ["/bkt", "/bkt?list-type=2", "/bkt?versions"] {
        assert_eq!(server.get(list).await.expect(200).tags("Key"), shown, "{list}");
    }
    let encoded = server.get("/bkt?encoding-type=url").await.expect(200);
    assert_eq!(encoded.tags("Key")[0], "cr%0Dkey");
    let groups = server.get("/bkt?delimiter=%0D&prefix=c").await.expect(200);
    assert_eq!(groups.tag("CommonPrefixes").as_deref(), Some("<Prefix>cr&#13;</Prefix>"));
    assert_eq!(groups.tag("Delimiter").as_deref(), Some("&#13;"));
}

#[tokio::test]
async fn answers_about_uploads_escape_what_xml_cannot_carry() {
    let server = Server::bucket().await;
    let begun = server.ask("POST", "/bkt/cr%0Dkey?uploads").send().await.expect(200);
    assert_eq!(begun.tag("Key").as_deref(), Some("cr&#13;key"));
    let id = begun.tag("UploadId").unwrap();
    let path = format!("/bkt/cr%0Dkey?uploadId={id}");
    let put = server.put(&format!("{path}&partNumber=1"), "x").await.expect(200);
    assert_eq!(
        server.get("/bkt?uploads").await.expect(200).tag("Key").as_deref(),
        Some("cr&#13;key")
    );
    assert_eq!(server.get(&path).await.expect(200).tag("Key").as_deref(), Some("cr&#13;key"));
    let parts = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part>\
         </CompleteMultipartUpload>",
        put.header("etag")
    );
    let done = server.ask("POST", &path).body(parts).send().await.expect(200);
    assert_eq!(done.tag("Key").as_deref(), Some("cr&#13;key"));
    assert!(done.tag("Location").unwrap().ends_with("/bkt/cr%0Dkey"));
}

#[tokio::test]
async fn results_of_a_batch_delete_escape_what_xml_cannot_carry() {
    let server = Server::bucket().await;
    server.put("/bkt/cr%0Dkey", "x").await.expect(200);
    let batch = |version: &str| {
        let xml = format!("<Delete><Object><Key>cr&#13;key</Key>{version}</Object></Delete>")
            .into_bytes();
        let md5 = base64_simd::STANDARD.encode_to_string(<md5::Md5 as sha2::Digest>::digest(&xml));
        server.ask("POST", "/bkt?delete").header("content-md5", md5).body(xml).send()
    };
    let refused = batch("<VersionId>v&#13;</VersionId>").await.expect(200);
    let shown = (refused.tag("Key"), refused.tag("VersionId"));
    assert_eq!(shown, (Some("cr&#13;key".into()), Some("v&#13;".into())), "{}", refused.text());
    let odd = batch("</Object><Object><Key>one&#x1;</Key>").await;
    odd.refused(400, "MalformedXML");
    let deleted = batch("").await.expect(200);
    assert_eq!(deleted.tag("Key").as_deref(), Some("cr&#13;key"));
    server.head("/bkt/cr%0Dkey").await.expect(404);
}

#[tokio::test]
async fn an_error_that_quotes_the_request_escapes_what_xml_cannot_carry() {
    let server = Server::bucket().await;
    let refused = server.get("/bkt?list-type=2&fetch-owner=a%0D%01").await.expect(400);
    assert!(refused.text().contains("a&#13;&#x1;"), "{}", refused.text());
}

#[tokio::test]
async fn an_objects_bytes_are_never_touched() {
    let server = Server::bucket().await;
    let bytes = "<?xml version=\"1.0\"?>\r\n<Key>\u{1}\u{ffff}</Key>";
    let put = server.ask("PUT", "/bkt/k").header("content-type", "application/xml").body(bytes);
    put.send().await.expect(200);
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), bytes);
}
